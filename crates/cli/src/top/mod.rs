//! `tidepool top`: who loads shared storage, whom that slows down, and who is to blame.

pub mod flags;
pub mod place;
pub mod show;
pub mod watch;
pub mod who;

use crate::exit::{Failure, Kind, Result};
use crate::output::Screen;
use crate::signals::Signals;
use flags::TopArgs;
use place::{Look, Observer, places};
use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidepool_fsd::loads;

/// Between two looks, unless something else is asked for.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often signals are looked at.
const POLL: Duration = Duration::from_millis(50);

pub fn top(args: &TopArgs) -> Result<ExitCode> {
    let mut observers: Vec<Observer> = places(&args.at)?.into_iter().map(Observer::new).collect();
    let first = look(&mut observers)?;
    if first.iter().all(|look| look.loads.is_empty()) {
        return Err(nobody(&first));
    }
    if args.once || (args.interval.is_none() && !stdout().is_terminal()) {
        tell(args, &first, None);
        return Ok(ExitCode::SUCCESS);
    }
    let signals = Signals::watch()?;
    let mut screen = (!args.json && stdout().is_terminal()).then(Screen::default);
    tell(args, &first, screen.as_mut());
    loop {
        pause(args.interval.unwrap_or(INTERVAL), &signals)?;
        tell(args, &look(&mut observers)?, screen.as_mut());
    }
}

pub fn look(observers: &mut [Observer]) -> Result<Vec<Look>> {
    observers.iter_mut().map(Observer::look).collect()
}

fn pause(interval: Duration, signals: &Signals) -> Result<()> {
    let began = Instant::now();
    loop {
        signals.check()?;
        let left = interval.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(POLL));
    }
}

fn tell(args: &TopArgs, looks: &[Look], screen: Option<&mut Screen>) {
    match screen {
        _ if args.json => {
            println!("{}", show::json(looks.iter().map(|look| look.at_ms).max().unwrap_or(0), looks))
        }
        Some(screen) => screen.draw(&show::text(looks)),
        None => print!("{}", show::text(looks)),
    }
}

fn nobody(looks: &[Look]) -> Failure {
    let dirs: Vec<String> =
        looks.iter().map(|look| look.dir.join(loads::DIR).display().to_string()).collect();
    let text = format!(
        "{}: no pool tells its load there; name the slowest directory that a running pool was started with, its --pfs or else \
         its --burst",
        dirs.join(", ")
    );
    Failure::new(Kind::NoPool, text)
}
