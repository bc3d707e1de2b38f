//! `tidepool pool flush`: has all that lies above a tier of a pool moved there, and waits for it.

pub mod flags;

use crate::exit::{Failure, Kind, Result};
use crate::instance::{self, Instance};
use crate::output::{ProgressLine, duration, rate, time_left};
use crate::side_by_side::each_daemon;
use crate::signals::Signals;
use flags::{FlushArgs, FlushTarget};
use serde_json::json;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidepool_client::Client;
use tidepool_types::{Errno, format_size};
use tidepool_wire::message::{FlushTo, Reply, Request};

/// How often it is looked how far the daemons are.
const LOOK: Duration = Duration::from_millis(100);
/// Failures of a daemon, one after another and some time apart, after which it is not waited for any more.
const FAILURES_MAX: u32 = 3;

/// What a daemon says.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Look {
    above: u64,
    moved: u64,
    failures: u32,
    why: String,
    written: u64,
}

/// What waiting for all daemons has come to.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Flushed {
    pub left: u64,
    pub moved: u64,
    /// By programs, since it began.
    pub written: u64,
    pub seconds: f64,
}

pub fn flush(args: &FlushArgs) -> Result<ExitCode> {
    let instance = instance::find(&args.choice)?;
    let client = instance.client()?;
    let (to, bandwidth) = (args.to, args.bandwidth.unwrap_or(0));
    let flushed = match args.wait {
        true => wait(&instance, &client, to, bandwidth, &Signals::watch()?)?,
        false => {
            let looks = look(&client, to, bandwidth)?;
            Flushed { left: looks.iter().map(|look| look.above).sum(), ..Flushed::default() }
        }
    };
    tell(args, &instance.name, &flushed);
    Ok(ExitCode::SUCCESS)
}

fn tell(args: &FlushArgs, name: &str, flushed: &Flushed) {
    let Flushed { left, moved, written, seconds } = *flushed;
    if args.json {
        let story = match args.wait {
            true => json!({
                "name": name, "complete": true, "moved_bytes": moved, "written_meanwhile_bytes": written,
                "seconds": seconds,
            }),
            false => json!({"name": name, "complete": left == 0, "left_bytes": left}),
        };
        println!("{story}");
        return;
    }
    let place = args.to.place();
    if args.wait {
        println!("pool '{name}': all data are {place}; {} were moved, {seconds:.1} s", format_size(moved));
        if written > 0 {
            println!("{} were written meanwhile", format_size(written));
        }
    } else if left > 0 {
        println!(
            "pool '{name}': {} are on the way; with --wait the command ends when all are {place}",
            format_size(left)
        );
    } else {
        println!("pool '{name}': nothing is to be moved");
    }
}

/// Returns when everything lies where it is to be, and not before.
pub fn wait(
    instance: &Instance,
    client: &Client,
    to: FlushTarget,
    bandwidth: u64,
    signals: &Signals,
) -> Result<Flushed> {
    let (began, mut line) = (Instant::now(), ProgressLine::new());
    let first = look(client, to, bandwidth)?;
    let mut last = first.clone();
    let mut patience: Vec<Patience> = first.iter().map(|look| Patience::new(look.failures)).collect();
    loop {
        let flushed = Flushed {
            left: last.iter().map(|look| look.above).sum(),
            moved: since(&first, &last, |look| look.moved),
            written: since(&first, &last, |look| look.written),
            seconds: began.elapsed().as_secs_f64(),
        };
        line.draw(&progress(&instance.name, &flushed));
        if signals.seen().is_some() {
            line.clear();
            let left = format_size(flushed.left);
            eprintln!("tidepool: the daemons go on moving what is left, {left}");
            signals.check()?;
        }
        if flushed.left > 0 {
            std::thread::sleep(LOOK);
        }
        let now = look(client, to, bandwidth).inspect_err(|_| line.clear())?;
        if are_done(&last, &now) {
            line.clear();
            return Ok(flushed);
        }
        patience.iter_mut().zip(&now).for_each(|(patience, look)| patience.see(look.failures));
        give_up(client, &now, &patience).inspect_err(|_| line.clear())?;
        last = now;
    }
}

/// There was a moment at which nothing lay above, at any daemon. Each was seen empty twice, and moved nothing in between:
/// what one got after the first look would have been there at the second. That moment is the one between both looks.
fn are_done(before: &[Look], now: &[Look]) -> bool {
    before.iter().chain(now).all(|look| look.above == 0)
        && before.iter().zip(now).all(|(before, now)| before.moved == now.moved)
}

/// Counts of a daemon that was started anew meanwhile begin at nothing again.
fn since(first: &[Look], last: &[Look], count: impl Fn(&Look) -> u64) -> u64 {
    let more = |(first, last): (&Look, &Look)| match (count(first), count(last)) {
        (first, last) if last >= first => last - first,
        (_, last) => last,
    };
    first.iter().zip(last).map(more).sum()
}

fn progress(name: &str, flushed: &Flushed) -> String {
    let Flushed { left, moved, seconds, .. } = *flushed;
    let mut text = format!("flush of '{name}': {} moved, {} left", format_size(moved), format_size(left));
    if let Some(eta) = time_left(moved, left, seconds) {
        text.push_str(&format!(", {}, {} left", rate(moved, seconds), duration(eta)));
    }
    text
}

/// Failures of a daemon since it is waited for; those before are another one's.
struct Patience {
    before: u32,
    failures: u32,
}

impl Patience {
    fn new(before: u32) -> Patience {
        Patience { before, failures: 0 }
    }

    fn see(&mut self, failures: u32) {
        // The daemon has begun to count anew: something was moved.
        self.before = self.before.min(failures);
        self.failures = failures - self.before;
    }

    fn is_over(&self) -> bool {
        self.failures >= FAILURES_MAX
    }
}

/// A daemon that fails again and again has to be looked after.
fn give_up(client: &Client, looks: &[Look], patience: &[Patience]) -> Result<()> {
    let Some(daemon) = patience.iter().position(Patience::is_over) else { return Ok(()) };
    let (host, look) = (client.host(daemon as u16), &looks[daemon]);
    let left = format_size(look.above);
    let text = format!("daemon {daemon} on {host} cannot move {left}: {}; it goes on trying", look.why);
    Err(Failure::new(Kind::StageOut, text))
}

/// Asks all daemons, or asks them again, to move what lies above.
fn look(client: &Client, to: FlushTarget, bandwidth: u64) -> Result<Vec<Look>> {
    let request = Request::Flush { to: to.message(), bandwidth };
    each_daemon(client, |daemon| ask(client, daemon, &request)).into_iter().collect()
}

fn ask(client: &Client, daemon: u16, request: &Request) -> Result<Look> {
    let fail = |kind: Kind, why: &str| {
        Failure::new(kind, format!("daemon {daemon} on {}: {why}", client.host(daemon)))
    };
    let strange = |reply: &Reply| fail(Kind::Other, &format!("unexpected answer {}", reply.name()));
    let send = |request| client.request(daemon, request).map_err(|e| fail(Kind::NoPool, &e.to_string()));
    let written = match send(&Request::Status {})? {
        Reply::Report { status } => status.counters.into_iter().find(|(name, _)| name == "bytes_written"),
        other => return Err(strange(&other)),
    };
    match send(request)? {
        Reply::FlushState { above, moved, failures, detail: why } => {
            let written = written.map_or(0, |(_, bytes)| bytes);
            Ok(Look { above, moved, failures, why, written })
        }
        // It does not depend on the daemon.
        Reply::Failed { errno: Errno::EOPNOTSUPP | Errno::EINVAL, detail } => {
            Err(Failure::new(Kind::Usage, detail))
        }
        Reply::Failed { errno, detail } => Err(fail(Kind::StageOut, &format!("{errno}: {detail}"))),
        other => Err(strange(&other)),
    }
}

impl FlushTarget {
    fn message(self) -> FlushTo {
        match self {
            FlushTarget::Last => FlushTo::Last,
            FlushTarget::Burst => FlushTo::Burst,
            FlushTarget::Pfs => FlushTo::Pfs,
        }
    }

    fn place(self) -> &'static str {
        match self {
            FlushTarget::Last => "on the last tier",
            FlushTarget::Burst => "on the burst buffer or below",
            FlushTarget::Pfs => "on the parallel file system",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(above: u64, moved: u64) -> Look {
        Look { above, moved, failures: 0, why: String::new(), written: 0 }
    }

    #[test]
    fn it_is_done_when_a_moment_is_known_at_which_nothing_lay_above() {
        assert!(are_done(&[look(0, 5), look(0, 7)], &[look(0, 5), look(0, 7)]));
        assert!(!are_done(&[look(0, 5), look(0, 7)], &[look(0, 5), look(1, 7)]), "something is above");
        assert!(!are_done(&[look(1, 5), look(0, 7)], &[look(0, 5), look(0, 7)]), "something was above");
        // Something came and went.
        assert!(!are_done(&[look(0, 5), look(0, 7)], &[look(0, 6), look(0, 7)]));
    }

    #[test]
    fn progress_tells_what_was_moved_and_how_long_the_rest_takes() {
        let flushed = Flushed { left: 30, moved: 10, written: 0, seconds: 2.0 };
        assert_eq!(progress("p", &flushed), "flush of 'p': 10 B moved, 30 B left, 5 B/s, 6.0 s left");
    }

    #[test]
    fn failures_are_counted_since_it_is_waited() {
        let over = |looks: &[u32]| {
            let mut patience = Patience::new(7);
            looks.iter().for_each(|failures| patience.see(*failures));
            patience.is_over()
        };
        assert!(!over(&[7, 8, 9]) && over(&[8, 10]));
        assert!(!over(&[0, 1, 2]) && over(&[0, 3]));
    }

    #[test]
    fn counts_of_a_daemon_that_was_started_anew_begin_at_nothing() {
        let moved = |first, last| since(&[look(0, first)], &[look(0, last)], |look| look.moved);
        assert_eq!((moved(5, 9), moved(5, 2)), (4, 2));
    }
}
