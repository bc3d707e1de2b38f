//! Faults at a system call of a real process: strace(1) makes the n-th call of a kind fail, or sends a signal with it.

use super::bounded::send;
use rustix::process::Signal;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use tidepool_testkit::Rng;

/// Calls of one kind, as strace takes them, and what they may fail with.
pub struct Kind {
    name: &'static str,
    calls: &'static str,
    errors: &'static [&'static str],
    /// Calls that a process makes before it has begun with what it is for.
    first: u64,
}

const WRITE: Kind = Kind {
    name: "writing",
    calls: "/^(pwrite64|pwritev2?|write|copy_file_range|fallocate|ftruncate)$",
    errors: &["EIO", "ENOSPC", "EDQUOT", "EINTR"],
    first: 1,
};
const SYNC: Kind = Kind {
    name: "a sync",
    calls: "/^(fsync|fdatasync|syncfs|sync_file_range)$",
    errors: &["EIO", "ENOSPC"],
    first: 1,
};
const NAME: Kind = Kind {
    name: "naming",
    calls: "/^(rename|renameat2?|linkat|symlinkat|mkdir|mkdirat|unlinkat|mknodat)$",
    errors: &["EIO", "ENOSPC", "EACCES", "EROFS"],
    first: 1,
};
const OPEN: Kind = Kind {
    name: "opening",
    calls: "/^openat2?$",
    errors: &["EIO", "EMFILE", "ENFILE", "ENOMEM"],
    // Libraries come first.
    first: 6,
};
const READ: Kind = Kind {
    name: "reading",
    calls: "/^(pread64|preadv2?|getdents64|lseek|readlinkat)$",
    errors: &["EIO", "ESTALE", "EINTR"],
    first: 1,
};
const LOOK: Kind =
    Kind { name: "looking", calls: "/^(newfstatat|statx|fstat)$", errors: &["EIO", "ESTALE"], first: 6 };
const DRESS: Kind = Kind {
    name: "attributes",
    calls: "/^(fchmodat2?|fchmod|fchown|fchownat|utimensat)$",
    errors: &["EIO", "EPERM"],
    first: 1,
};
/// All that change something.
const CHANGE: &str = "/^(pwrite64|pwritev2?|write|copy_file_range|fallocate|ftruncate|fsync|fdatasync|syncfs|rename|renameat2?|linkat|symlinkat|mkdir|mkdirat|unlinkat|mknodat|fchmod|fchmodat2?|utimensat)$";

/// One fault of a process.
pub struct Injection {
    name: String,
    calls: String,
    how: String,
    at: u64,
    /// From that call on, each.
    lasts: bool,
}

impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = if self.lasts { " and all after it" } else { "" };
        write!(f, "{} at {} (call {}{all})", self.how, self.name, self.at)
    }
}

/// Mostly among the first few, sometimes far on.
fn moment(rng: &mut Rng) -> u64 {
    let max = [4, 12, 40][rng.below(3) as usize];
    rng.below(max)
}

impl Injection {
    pub fn error(rng: &mut Rng) -> Injection {
        let kinds = [WRITE, SYNC, NAME, OPEN, READ, LOOK, DRESS];
        let Kind { name, calls, errors, first } = &kinds[rng.below(kinds.len() as u64) as usize];
        let how = format!("error={}", errors[rng.below(errors.len() as u64) as usize]);
        // A call that is always interrupted is none that the kernel knows.
        let (at, lasts) = (first + moment(rng), rng.below(4) == 0 && how != "error=EINTR");
        Injection { name: (*name).into(), calls: (*calls).into(), how, at, lasts }
    }

    /// The `at`-th call of this name fails so.
    pub fn of(call: &str, errno: &str, at: u64) -> Injection {
        Injection { name: call.into(), calls: call.into(), how: format!("error={errno}"), at, lasts: false }
    }

    /// `kill -9` at the `at`-th of these calls.
    pub fn kill(calls: &str, at: u64) -> Injection {
        Injection { name: calls.into(), calls: calls.into(), how: "signal=KILL".into(), at, lasts: false }
    }

    /// A signal, with a call that would have changed something and, if the signal ends the process, does not.
    pub fn signal(rng: &mut Rng, signal: &str) -> Injection {
        let at = 1 + moment(rng);
        Injection {
            name: "a change".into(),
            calls: CHANGE.into(),
            how: format!("signal={signal}"),
            at,
            lasts: false,
        }
    }

    /// What kind of fault it is, without its moment.
    pub fn kind(&self) -> String {
        format!("{} at {}", self.how, self.name)
    }

    /// The errno that it is, if it is one.
    pub fn errno(&self) -> Option<&str> {
        self.how.strip_prefix("error=")
    }

    /// The command under strace, without the programs that it starts. What strace sees it notes in `log`.
    pub fn on(&self, command: &Command, log: &Path) -> Command {
        let mut traced = Command::new("strace");
        let when = format!("{}{}", self.at, if self.lasts { "+" } else { "" });
        traced.args(["-f", "-b", "execve", "-o"]).arg(log);
        traced.args(["-e", &format!("trace={}", self.calls)]);
        traced.args(["-e", &format!("inject={}:{}:when={when}", self.calls, self.how)]);
        traced.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => traced.env(name, value),
                None => traced.env_remove(name),
            };
        }
        command.get_current_dir().map(|dir| traced.current_dir(dir));
        traced
    }

    /// The same for a process that runs, and all its threads.
    pub fn into(&self, pid: u32, log: &Path) -> Attached {
        let when = format!("{}{}", self.at, if self.lasts { "+" } else { "" });
        let mut tracer = Command::new("strace");
        tracer.args(["-f", "-o"]).arg(log).args(["-p", &pid.to_string()]);
        tracer.args(["-e", &format!("trace={}", self.calls)]);
        tracer.args(["-e", &format!("inject={}:{}:when={when}", self.calls, self.how)]);
        let mut child = tracer.stderr(Stdio::piped()).spawn().expect("strace(1) runs");
        // "Process N attached"; the rest of its threads it names on the same line.
        let mut line = String::new();
        let said = child.stderr.take().expect("it is piped");
        let mut said = BufReader::new(said);
        said.read_line(&mut line).expect("strace(1) says that it is attached");
        Attached { child, _said: said }
    }

    /// It was standard error that could not be written: nothing can be told of anything.
    pub fn has_muted(&self, log: &Path) -> bool {
        let log = std::fs::read(log).unwrap_or_default();
        String::from_utf8_lossy(&log)
            .lines()
            .any(|line| line.contains("(INJECTED)") && line.contains("write(2,"))
    }

    /// By strace's own word; what was written to standard error and out alone does not count.
    pub fn has_struck(&self, log: &Path) -> bool {
        let log = std::fs::read(log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let signal = self.how.strip_prefix("signal=");
        log.lines().any(|line| match signal {
            None => line.contains("(INJECTED)") && !line.contains("write(2,") && !line.contains("write(1,"),
            Some(name) => line.contains(&format!("SIG{name}")),
        })
    }
}

/// strace at a process, which goes on without it when this is dropped.
pub struct Attached {
    child: Child,
    _said: BufReader<ChildStderr>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        send(self.child.id(), Signal::INT);
        let _ = self.child.wait();
    }
}

/// Said loudly where it cannot be had.
pub fn is_possible() -> bool {
    let runs = Command::new("strace").args(["-o", "/dev/null", "true"]).stderr(Stdio::null()).status();
    let runs = runs.is_ok_and(|status| status.success());
    if !runs {
        println!("SKIPPED: strace(1) makes no calls fail here; nothing is tested under faults");
    }
    runs
}
