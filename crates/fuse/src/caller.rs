//! What `/proc` tells of the process behind a request and FUSE does not.
//!
//! The kernel names the calling thread. It waits for our reply while we look, so it cannot
//! go away in between; a thread of another PID name space cannot be looked at and counts as
//! unknown.

use std::time::Duration;

/// Tries to look at a caller that is still on its way to sleep.
const SLEEP_TRIES: u32 = 20;
const SLEEP_PAUSE: Duration = Duration::from_micros(20);

/// The system calls by which programs lock files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockCall {
    /// fcntl(2), for the process.
    Posix,
    /// fcntl(2), for the open file.
    Ofd,
    Flock,
}

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
pub fn lock_call(thread: u32) -> Option<LockCall> {
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

fn parse_lock_call(text: &str) -> Option<LockCall> {
    let mut words = text.split_whitespace();
    let call: i64 = words.next()?.parse().ok()?;
    match call {
        libc::SYS_flock => Some(LockCall::Flock),
        libc::SYS_fcntl => {
            let command = u64::from_str_radix(words.nth(1)?.strip_prefix("0x")?, 16).ok()?;
            // An int: the upper half of the register may hold anything.
            match command as u32 as i32 {
                libc::F_OFD_SETLK | libc::F_OFD_SETLKW => Some(LockCall::Ofd),
                libc::F_SETLK | libc::F_SETLKW => Some(LockCall::Posix),
                _ => None,
            }
        }
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
        let line = |number, command: u64| format!("{number} 0x3 {command:#x} 0x0 0x0 0x0 0x0 0x7ffc 0x7f\n");
        assert_eq!(parse_lock_call(&line(libc::SYS_flock, 2)), Some(LockCall::Flock));
        for (command, call) in
            [(6, LockCall::Posix), (7, LockCall::Posix), (37, LockCall::Ofd), (38, LockCall::Ofd)]
        {
            assert_eq!(parse_lock_call(&line(libc::SYS_fcntl, command)), Some(call));
            assert_eq!(parse_lock_call(&line(libc::SYS_fcntl, command | 0xdead_0000_0000)), Some(call));
        }
        for text in ["-1 0x7ffc 0x7f", "running", "", "0 0x1", "72 0x3", "72 0x3 6", "72 0x3 0x1"] {
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
