//! What `/proc` tells of the process behind a request and FUSE does not.
//!
//! The kernel names the calling thread. It waits for our reply while we look, so it cannot
//! go away in between; a thread of another PID name space cannot be looked at and counts as
//! unknown.

use std::time::Duration;
use tidepool_client::LockKind;

/// Tries to look at a caller that is still on its way to sleep.
const SLEEP_TRIES: u32 = 20;
const SLEEP_PAUSE: Duration = Duration::from_micros(20);

/// Supplementary groups of a caller.
pub fn groups(thread: u32) -> Vec<u32> {
    parse_groups(&status(thread))
}

/// True when a signal is waiting that should end the caller's system call. The FUSE crate
/// refuses the kernel's interrupt requests, so waiting for a lock has to look by itself.
pub fn is_interrupted(thread: u32) -> bool {
    has_signal(&status(thread))
}

/// Which system call a lock request comes from; `None` when that cannot be found out. The
/// FUSE crate does not hand on the flag that tells flock(2) from fcntl(2).
pub fn lock_call(thread: u32) -> Option<LockKind> {
    for _ in 0..SLEEP_TRIES {
        let text = std::fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
        if text.trim() != "running" {
            return parse_lock_call(&text);
        }
        std::thread::sleep(SLEEP_PAUSE);
    }
    None
}

fn status(thread: u32) -> String {
    std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn parse_groups(status: &str) -> Vec<u32> {
    let list = field(status, "Groups").unwrap_or_default();
    list.split_whitespace().filter_map(|g| g.parse().ok()).collect()
}

fn has_signal(status: &str) -> bool {
    let mask = |name| field(status, name).and_then(|m| u64::from_str_radix(m, 16).ok()).unwrap_or(0);
    (mask("SigPnd") | mask("ShdPnd")) & !mask("SigBlk") & !mask("SigIgn") != 0
}

fn parse_lock_call(text: &str) -> Option<LockKind> {
    match text.split_whitespace().next()?.parse::<i64>().ok()? {
        libc::SYS_flock => Some(LockKind::Flock),
        libc::SYS_fcntl => Some(LockKind::Posix),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_fields_parse() {
        let status = "Name:\tx\nGroups:\t4 24 27 \nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000002\n\
                      SigBlk:\t0000000000000000\nSigIgn:\t0000000000000004\n";
        assert_eq!(parse_groups(status), [4, 24, 27]);
        assert!(has_signal(status));
        assert!(!has_signal(&status.replace("SigBlk:\t0000000000000000", "SigBlk:\t0000000000000002")));
        assert!(!has_signal(&status.replace("SigIgn:\t0000000000000004", "SigIgn:\t0000000000000006")));
        assert!(!has_signal(""));
    }

    #[test]
    fn system_calls_are_told_apart() {
        let line = |number| format!("{number} 0x3 0x2 0x0 0x0 0x0 0x0 0x7ffc 0x7f\n");
        assert_eq!(parse_lock_call(&line(libc::SYS_flock)), Some(LockKind::Flock));
        assert_eq!(parse_lock_call(&line(libc::SYS_fcntl)), Some(LockKind::Posix));
        for text in ["-1 0x7ffc 0x7f", "running", "", "0 0x1"] {
            assert_eq!(parse_lock_call(text), None);
        }
    }

    #[test]
    fn a_missing_process_is_unknown() {
        assert_eq!(lock_call(0), None);
        assert!(!is_interrupted(0));
        assert!(groups(0).is_empty());
    }
}
