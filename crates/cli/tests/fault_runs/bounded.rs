//! Commands that may not hang: one that does is told with what each of its processes waits for.

use super::{Judged, Wrong, holds};
use crate::common::processes_of;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Much longer than anything takes, on a machine that does much else.
const HANGS: Duration = Duration::from_secs(150);

/// How a command ended, and what it said.
#[derive(Debug)]
pub struct Ran {
    status: ExitStatus,
    pub said: String,
}

impl Ran {
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Ended by a signal that it had not asked to be told of yet.
    pub fn is_ended_by(&self, signal: i32) -> bool {
        self.status.signal() == Some(signal) || self.code() == Some(128 + signal)
    }

    pub fn is_success(&self) -> bool {
        self.status.success()
    }

    /// The fault came before its first line: ld.so has met it.
    pub fn never_began(&self) -> bool {
        self.code() == Some(127) && self.said.contains("loading shared libraries")
    }
}

impl std::fmt::Display for Ran {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.status, self.said)
    }
}

/// A command that runs.
pub struct Going {
    child: Child,
    log: PathBuf,
    what: String,
    /// In which all its processes have something of theirs.
    root: PathBuf,
    began: Instant,
}

impl Going {
    /// Its output goes to `NAME.log` in `root`.
    pub fn start(root: &Path, name: &str, mut command: Command) -> Going {
        let log = root.join(format!("{name}.log"));
        let file = File::create(&log).expect("a log can be made");
        let errors = file.try_clone().expect("a descriptor can be duplicated");
        let what = format!("{command:?}");
        let child = command.stdin(Stdio::null()).stdout(file).stderr(errors).spawn().expect("it starts");
        Going { child, log, what, root: root.into(), began: Instant::now() }
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_some()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Stops it after a while, and lets it go on; false when it had ended before.
    pub fn stop_for(&mut self, after: Duration, lasts: Duration) -> bool {
        std::thread::sleep(after);
        send(self.child.id(), Signal::STOP);
        std::thread::sleep(lasts);
        let was_there = !self.has_ended();
        send(self.child.id(), Signal::CONT);
        was_there
    }

    pub fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    pub fn wait(mut self) -> Judged<Ran> {
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                let said = self.said();
                holds(!said.contains("panicked at"), || format!("{} PANICKED: {said}", self.what))?;
                return Ok(Ran { status, said });
            }
            if self.began.elapsed() > HANGS {
                let waits = waits_of(&self.root);
                kill_all(&self.root);
                let _ = self.child.wait();
                return Err(Wrong(format!("HANGS: {}\nit has said: {}\n{waits}", self.what, self.said())));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Runs a command to its end.
pub fn run(root: &Path, name: &str, command: Command) -> Judged<Ran> {
    Going::start(root, name, command).wait()
}

/// A process may be gone by now.
pub fn send(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = kill_process(pid, signal);
    }
}

/// Processes of this directory, with their command lines.
pub fn processes(root: &Path) -> Vec<(u32, String)> {
    let number = |told: &String| Some((told.split_once(": ")?.0.parse().ok()?, told.clone()));
    processes_of(root).iter().filter_map(number).collect()
}

pub fn kill_all(root: &Path) {
    processes(root).into_iter().for_each(|(pid, _)| send(pid, Signal::KILL));
}

/// What each thread of each process waits for.
fn waits_of(root: &Path) -> String {
    let mut told = String::new();
    for (pid, command) in processes(root) {
        told.push_str(&format!("{command}\n"));
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
            let state =
                read("status").lines().find(|line| line.starts_with("State")).unwrap_or("").to_string();
            let (comm, wchan, syscall) = (read("comm"), read("wchan"), read("syscall"));
            told.push_str(&format!("  {} {state} in {wchan}: {}\n", comm.trim(), syscall.trim()));
            told.push_str(&format!("{}\n", read("stack").trim_end()));
        }
    }
    told
}
