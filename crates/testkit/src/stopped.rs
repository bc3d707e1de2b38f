//! Processes that are stopped.

use crate::eventually;
use rustix::process::{Pid, Signal, kill_process};

/// The state of each thread of a process, as proc(5) has them; nothing of a process that is gone.
pub fn thread_states(pid: u32) -> Vec<char> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    stats.filter_map(|stat| stat.rsplit_once(") ")?.1.chars().next()).collect()
}

/// Stops a process, and returns when none of its threads runs any more. To send it the signal is not enough: the others go on until one of them
/// has taken it, which is a while on a busy machine, and a daemon still answers in that time.
///
/// # Panics
/// When the process is gone.
pub fn stop(pid: u32) {
    let process = Pid::from_raw(pid as i32).expect("process ids are positive");
    kill_process(process, Signal::STOP).expect("a running process can be stopped");
    // One that was killed meanwhile runs as little.
    let runs = |state: &char| !matches!(state, 'T' | 't' | 'Z' | 'X');
    eventually("a process that is stopped", || !thread_states(pid).iter().any(runs));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn what_is_stopped_does_nothing_more() {
        // It ends by itself if this test fails.
        let work = "i=0; while [ $i -lt 100000000 ]; do i=$((i + 1)); done";
        let mut busy = Command::new("sh").args(["-c", work]).spawn().unwrap();
        assert!(!thread_states(busy.id()).contains(&'T'));
        stop(busy.id());
        assert_eq!(thread_states(busy.id()), ['T']);
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(thread_states(busy.id()).is_empty());
    }
}
