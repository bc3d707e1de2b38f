//! Ends the connection of a mount whose process was killed and cannot end.
//!
//! A thread that makes the kernel forget a name waits, and cannot be killed while it does, for the lock of the name's directory. A program's
//! request may hold that lock and wait for an answer that only this process could give. Once the process is killed neither ends, because the
//! kernel gives a connection up when its last descriptor is closed, and the thread that waits has them open. So another process stands by,
//! without any of these descriptors, and gives the connection up when the first one has died and is still there.

use crate::connection::open_connection;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the other threads of a process that has died have to end. Most need no time.
const GRACE: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(2);
/// How often the process is looked at unless its end is told: it is not where the thread that started the guard has ended before.
const LOOK: Duration = Duration::from_secs(5);

/// The process that stands by; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Guard(Child);

impl Guard {
    /// Starts `command`, which is to call [`stand_guard`], for the connection of a mount's device `0:minor`. `None` where this user
    /// cannot end connections: he is not root, and the system does not show them.
    pub(crate) fn start(device: &str, mut command: Command) -> io::Result<Option<Guard>> {
        let Some(connection) = open_connection(device) else { return Ok(None) };
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::from(connection))
            // Ctrl-C is for the mount.
            .process_group(0)
            .spawn()?;
        Ok(Some(Guard(child)))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How it is with the process that the guard was started by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Guarded {
    Alive,
    /// It has died, and threads of it are still there.
    Dying,
    Gone,
}

/// The guard: returns when the process `guarded` that started it is gone, which it may be by now. Its standard output is what ends the
/// connection.
pub fn stand_guard(guarded: u32, mut connection: impl Write) -> io::Result<()> {
    let guarded = i32::try_from(guarded).ok().and_then(Pid::from_raw);
    let told = hear_of_its_end()?;
    loop {
        match look_at(guarded) {
            Guarded::Alive => {
                if wait_to_be_told(&told)? {
                    // The kernel tells it just before it shows.
                    while_it_is(Guarded::Alive, guarded);
                }
            }
            Guarded::Gone => return Ok(()),
            Guarded::Dying if while_it_is(Guarded::Dying, guarded) => {
                connection.write_all(b"1")?;
                connection.flush()?;
            }
            Guarded::Dying => {}
        }
    }
}

/// Waits until this is no longer how it is with a process; whether it still is after [`GRACE`].
fn while_it_is(so: Guarded, guarded: Option<Pid>) -> bool {
    let since = Instant::now();
    while since.elapsed() < GRACE {
        if look_at(guarded) != so {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    true
}

/// Readable after a signal, which none of the usual ones ends this process with: that of the process that is guarded is sent to its end.
fn hear_of_its_end() -> io::Result<UnixStream> {
    let (told, tell) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, tell.try_clone()?)?;
    }
    set_parent_process_death_signal(Some(Signal::TERM))?;
    told.set_read_timeout(Some(LOOK))?;
    Ok(told)
}

/// Whether it was told, or the time was over.
fn wait_to_be_told(mut told: &UnixStream) -> io::Result<bool> {
    match told.read(&mut [0; 16]) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// A process is its children's parent until its last thread has ended.
fn look_at(guarded: Option<Pid>) -> Guarded {
    let Some(pid) = guarded.filter(|pid| getppid() == Some(*pid)) else { return Guarded::Gone };
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    match stat.as_deref().ok().and_then(state_in) {
        Some('Z' | 'X') => Guarded::Dying,
        Some(_) => Guarded::Alive,
        None => Guarded::Gone,
    }
}

/// The state in a line of `/proc/PID/stat`; the name before it may hold anything.
fn state_in(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_does_not_pass_for_a_state() {
        for (stat, state) in [
            ("7 (tidepool) S 1 7 7 0", Some('S')),
            ("7 (a) Z (b) Z 1 7 7 0", Some('Z')),
            ("7 (x) Z) R 1", Some('R')),
            ("7 (tidepool", None),
            ("", None),
        ] {
            assert_eq!(state_in(stat), state, "{stat}");
        }
    }

    #[test]
    fn what_lives_and_what_is_no_parent_is_told_apart() {
        assert_eq!(look_at(getppid()), Guarded::Alive);
        assert_eq!(look_at(Some(rustix::process::getpid())), Guarded::Gone);
        assert_eq!(look_at(None), Guarded::Gone);
    }
}
