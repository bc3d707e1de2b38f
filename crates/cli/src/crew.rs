//! Child processes of this program that are told lines and answer each with one.

use crate::exit::{Context, Failure, Kind, Result};
use crate::output::ProgressLine;
use crate::signals::Signals;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Most processes on one machine: each is a process with two pipes.
pub const PROCESSES_HERE_MAX: u64 = 1024;
/// How often signals are looked at and progress is drawn.
const TICK: Duration = Duration::from_millis(20);

/// One process; it is killed when this is dropped, except when it has ended.
pub struct Member {
    /// As in "a bench worker".
    who: &'static str,
    child: Leash,
    /// `None` once it has been told to end.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// Ends a process while somebody else waits for its answer.
#[derive(Clone)]
pub struct Leash(Arc<Mutex<Child>>);

impl Member {
    pub fn start(
        who: &'static str,
        words: &[&str],
        environment: &[(OsString, OsString)],
        own_group: bool,
    ) -> Result<Member> {
        let own = std::env::current_exe().context(Kind::Other, || "finding this program".into())?;
        let mut command = Command::new(own);
        command.args(words).envs(environment.iter().map(|(k, v)| (k, v)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        if own_group {
            // Ctrl-C is for the one who starts it.
            command.process_group(0);
        }
        let mut child = command.spawn().context(Kind::Other, || format!("starting {who}"))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("stdout is piped"));
        Ok(Member { who, child: Leash(Arc::new(Mutex::new(child))), input, output })
    }

    pub fn leash(&self) -> Leash {
        self.child.clone()
    }

    pub fn tell(&mut self, line: &str) -> Result<()> {
        let who = self.who;
        let input = self.input.as_mut().expect("only `end` closes it");
        writeln!(input, "{line}")
            .and_then(|()| input.flush())
            .context(Kind::Other, || format!("{who} has ended early"))
    }

    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let who = self.who;
        match self.output.read_line(&mut line) {
            Ok(0) => Err(Failure::new(Kind::Other, format!("{who} has ended early; see its message above"))),
            Ok(_) => Ok(line.trim_end().to_string()),
            Err(error) => Err(Failure::new(Kind::Other, format!("listening to {who}: {error}"))),
        }
    }

    /// Demands a first line that says that it has started.
    pub fn is_ready(&mut self) -> Result<()> {
        let line = self.line()?;
        match line.as_str() {
            "ready" => Ok(()),
            _ => Err(Failure::new(Kind::Other, format!("{} said '{line}'", self.who))),
        }
    }

    /// Tells it to end, and waits until it has.
    pub fn end(&mut self) -> Result<()> {
        self.input = None;
        let status = self.child.lock().wait().context(Kind::Other, || format!("waiting for {}", self.who))?;
        match status.success() {
            true => Ok(()),
            false => Err(Failure::new(Kind::Other, format!("{} ended with {status}", self.who))),
        }
    }
}

impl Leash {
    fn lock(&self) -> std::sync::MutexGuard<'_, Child> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing, when it has ended.
    pub fn kill(&self) {
        let mut child = self.lock();
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.input = None;
        // It has ended already, except after a failure.
        self.child.kill();
    }
}

/// Two pipes for each process are more than many shells allow at first.
pub fn allow_pipes() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .context(Kind::Other, || "allowing more open files".into())
}

/// Does work that waits for processes. A signal ends these, and so the work.
pub fn watched<T: Send>(
    signals: &Signals,
    leashes: &[Leash],
    told: impl Fn() -> String,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let mut progress = ProgressLine::new();
    let result = std::thread::scope(|scope| {
        let working = scope.spawn(work);
        let mut killed = false;
        while !working.is_finished() {
            if signals.seen().is_some() && !killed {
                leashes.iter().for_each(Leash::kill);
                killed = true;
            }
            if progress.is_enabled() {
                progress.draw(&told());
            }
            std::thread::sleep(TICK);
        }
        working.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    progress.clear();
    // What ends because of a signal fails because of it.
    result.or_else(|failure| signals.check().and(Err(failure)))
}
