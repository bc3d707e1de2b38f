//! The program that is watched. Who is told to end waits for it: what was recorded until then is kept, and nothing is left behind.

use crate::exit::{Context, Kind, Result};
use crate::signals::Signals;
use rustix::process::{Pid, Signal, kill_process};
use std::os::fd::AsFd;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

/// How often it looks whether the program has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Starts `command` and waits for its end. With `aside`, what it prints goes to standard error.
///
/// # Errors
/// The outer one is ours, the inner one says why there is no such program.
pub fn run(command: &mut Command, aside: bool) -> Result<std::io::Result<ExitStatus>> {
    if aside {
        let own = std::io::stderr().as_fd().try_clone_to_owned();
        command.stdout(own.context(Kind::Other, || "standard error".into())?);
    }
    let signals = Signals::watch()?;
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(Err(error)),
    };
    loop {
        if let Some(status) = child.try_wait().context(Kind::Other, || "waiting for the program".into())? {
            return Ok(Ok(status));
        }
        if let Some(number) = signals.seen() {
            signals.reset();
            pass_on(number, &child);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// To the program, and to what it runs in turn: strace lets no signal through. Not Ctrl-C: a terminal tells all of them itself, and many a
/// program takes a second one as a wish to end at once.
fn pass_on(number: i32, child: &Child) {
    let Some(signal) = Signal::from_named_raw(number).filter(|signal| *signal != Signal::INT) else { return };
    let path = format!("/proc/{0}/task/{0}/children", child.id());
    let below = std::fs::read_to_string(path).unwrap_or_default();
    let below = below.split_whitespace().filter_map(|pid| pid.parse().ok());
    for pid in std::iter::once(child.id() as i32).chain(below).filter_map(Pid::from_raw) {
        // It may have ended meanwhile.
        let _ = kill_process(pid, signal);
    }
}
