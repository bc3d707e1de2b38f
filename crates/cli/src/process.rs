//! Processes that records name. A number alone says nothing: it may be another process's by now, or somebody's wish.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};
use std::fs;

/// Where the time of the start is in `/proc/PID/stat`, behind the program's name (proc_pid_stat(5): field 22).
const START_FIELD: usize = 19;

/// A process of this machine since it was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Process {
    pub pid: u32,
    /// When it began, in ticks of the machine's clock since its start.
    pub start: u64,
}

impl Process {
    pub fn own() -> Process {
        Process::of(std::process::id())
    }

    /// The process that has this number now; one that has ended has begun at no time that any other does.
    pub fn of(pid: u32) -> Process {
        Process { pid, start: start_of(pid).unwrap_or(u64::MAX) }
    }

    /// True while it runs a program of ours, as this user.
    pub fn lives(self) -> bool {
        self.hold().is_some()
    }

    /// Sends a signal, to this process or to none.
    pub fn signal(self, signal: Signal) {
        if let Some(held) = self.hold() {
            held.signal(signal);
        }
    }

    /// The process, if it lives. Its number is held first: what is looked at afterwards is this process, or its start is another.
    pub fn hold(self) -> Option<Held> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw)?;
        let held = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let is_it = start_of(self.pid) == Some(self.start) && is_own(self.pid) && runs_ours(self.pid);
        is_it.then_some(Held(held))
    }
}

/// A process that lived when it was looked at; nothing else can have its place.
pub struct Held(OwnedFd);

impl Held {
    pub fn signal(&self, signal: Signal) {
        // It may end at any time.
        let _ = pidfd_send_signal(&self.0, signal);
    }

    /// Whether it has ended with all its threads: only then it holds no lock any more. One whose first thread is gone looks dead in `/proc`.
    pub fn has_ended(&self) -> bool {
        let mut of_end = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut of_end, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

fn start_of(pid: u32) -> Option<u64> {
    start_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name may hold anything, also what looks like the fields behind it.
fn start_in(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(START_FIELD)?.parse().ok()
}

fn is_own(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    uid_in(&status) == Some(geteuid().as_raw())
}

/// The one that counts for what it may do.
fn uid_in(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn runs_ours(pid: u32) -> bool {
    let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    exe.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"tidepool"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_start_is_found_behind_any_name() {
        let fields: Vec<String> = (3..=30).map(|field| field.to_string()).collect();
        for name in ["tidepoold", "a b", ") S 1 1 1 (", "x)"] {
            assert_eq!(start_in(&format!("7 ({name}) {}", fields.join(" "))), Some(22), "{name}");
        }
        assert_eq!(start_in("7 (x) S 1"), None);
        assert_eq!(start_in(""), None);
        assert_eq!(uid_in("Name:\tUid:\nUid:\t1\t2\t3\t4\n"), Some(2));
    }

    #[test]
    fn a_number_that_was_given_again_is_nobody_of_ours() {
        // This test's program has a name of ours; another start says that it is another process.
        let own = Process::own();
        assert!(own.lives(), "{own:?}");
        for other in [own.start - 1, own.start + 1, 0, u64::MAX] {
            assert!(!Process { start: other, ..own }.lives());
        }
        for pid in [0, u32::MAX, i32::MAX as u32] {
            assert!(!Process { pid, start: own.start }.lives() && !Process::of(pid).lives());
        }
    }

    #[test]
    fn another_program_is_not_ended() {
        let mut sleep = Command::new("sleep").arg("60").spawn().expect("sleep is there");
        let named = Process::of(sleep.id());
        assert!(!named.lives());
        named.signal(Signal::KILL);
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(sleep.try_wait().expect("it is ours").is_none(), "it was ended");
        sleep.kill().expect("it is ours");
        sleep.wait().expect("it is ours");
        assert!(!named.lives());
    }
}
