//! Copying with what others leave of the processors and disks.

use std::io;
use thread_priority::{
    Error, NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id, thread_schedule_policy,
};

const IDLE: ThreadSchedulePolicy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);

/// Gives the calling thread, and those it starts from now on, the policy `SCHED_IDLE`: a core only while nobody else
/// wants it, but for a share of some tenths of a percent. Threads without an I/O class of their own then have `idle` for disks,
/// too, where the disk's scheduler knows classes (ioprio_set(2)). Needs no privilege; not for threads that others wait for.
pub fn be_gentle() -> io::Result<()> {
    let set = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, IDLE);
    // With the policy it resets the nice value, which may not be permitted and does not count under this policy.
    match thread_schedule_policy() {
        Ok(policy) if policy == IDLE => Ok(()),
        Ok(_) => set.map_err(io_error),
        Err(error) => Err(io_error(error)),
    }
}

/// Whether the calling thread gives way: it, or who started it, has said so, or a program such as chrt(1).
pub(crate) fn is_gentle() -> bool {
    thread_schedule_policy() == Ok(IDLE)
}

fn io_error(error: Error) -> io::Error {
    match error {
        Error::OS(errno) => io::Error::from_raw_os_error(errno),
        other => io::Error::other(format!("{other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `SCHED_IDLE` as proc_pid_stat(5) has it.
    const POLICY: &str = "5";

    fn policy() -> String {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        // The name, in brackets, may hold blanks; the policy is field 41 of all.
        stat.rsplit_once(") ").unwrap().1.split(' ').nth(41 - 3).unwrap().to_owned()
    }

    #[test]
    fn a_gentle_thread_and_those_it_starts_are_idle_and_others_are_not() {
        let policies = std::thread::spawn(|| {
            be_gentle().unwrap();
            (policy(), is_gentle(), std::thread::spawn(|| (policy(), is_gentle())).join().unwrap())
        });
        assert_eq!(policies.join().unwrap(), (POLICY.into(), true, (POLICY.into(), true)));
        assert_ne!(policy(), POLICY);
        assert!(!is_gentle());
    }

    #[test]
    fn a_nice_value_that_may_not_be_lowered_does_not_matter() {
        let after = std::thread::spawn(|| {
            rustix::process::setpriority_process(None, 10).unwrap();
            // On Linux both are of this thread only. Root may lower it.
            if rustix::process::geteuid().is_root() {
                rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65_534)).unwrap();
            }
            be_gentle().map(|()| policy())
        });
        assert_eq!(after.join().unwrap().unwrap(), POLICY);
    }
}
