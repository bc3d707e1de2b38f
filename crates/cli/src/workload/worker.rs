//! One process of an application. Plain POSIX calls only, so that it measures whatever its paths lead to: the preload
//! library, a FUSE mount, or any other file system.
//!
//! ```text
//! command → `compute NANOSECONDS sleep|busy` or `io PHASE`     worker → Answer, one line of JSON
//! ```
//! The first line it writes is `ready`; it ends when its standard input does, and with the process that started it.

use super::flags::JobArg;
use crate::exit::{Context, Failure, Kind, Result};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidepool_workload::data::{Maker, wrong_stamp};
use tidepool_workload::{Access, Application, Content, Name, Operation, Place};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// The application's own directory.
    pub dir: PathBuf,
    pub rank: u32,
    pub application: Application,
}

/// What one command came to.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// Monotonic clock of the node, in nanoseconds.
    pub began_ns: u64,
    pub ended_ns: u64,
    /// Of that, making data and looking at them.
    pub own_ns: u64,
    pub bytes_written: u64,
    pub bytes_read: u64,
    pub operations: u64,
    /// Empty when all went well.
    pub error: String,
}

impl Answer {
    /// What the calls took.
    pub fn calls(&self) -> Duration {
        Duration::from_nanos((self.ended_ns - self.began_ns).saturating_sub(self.own_ns))
    }
}

/// An error and what it was about.
#[derive(Debug)]
pub struct Trouble(pub String);

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

pub type Tried<T> = std::result::Result<T, Trouble>;

/// Names the path in an error.
pub trait At<T> {
    fn at(self, what: &str, path: &Path) -> Tried<T>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, what: &str, path: &Path) -> Tried<T> {
        self.map_err(|e| Trouble(format!("{what} {}: {e}{}", path.display(), advice(&e))))
    }
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; fewer processes, steps or bytes need less room ('tidepool workload show' tells how much)"
        }
        _ => "",
    }
}

/// `tidepool workload worker`.
pub fn run(args: &JobArg) -> Result<ExitCode> {
    // Whoever started it may be killed while this one computes, and so cannot see its input end.
    let with_parent = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    with_parent.context(Kind::Other, || "asking to end with the command".into())?;
    let job: Job = serde_json::from_str(&args.job).context(Kind::Usage, || "workload worker".into())?;
    let mut worker = Worker::new(job);
    say("ready")?;
    for line in io::stdin().lock().lines() {
        let line = line.context(Kind::Other, || "reading the next command".into())?;
        let answer = worker.answer(&line)?;
        say(&serde_json::to_string(&answer).expect("an answer always serializes"))?;
        if !answer.error.is_empty() {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub fn say(line: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context(Kind::Other, || "answering".into())
}

/// The node's monotonic clock, which all its processes share.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

struct Worker {
    job: Job,
    maker: Maker,
    read: Vec<u8>,
    open: HashMap<Name, File>,
    done: Answer,
}

impl Worker {
    fn new(job: Job) -> Worker {
        let transfer = job.application.transfer as usize;
        let (maker, read) = (Maker::new(transfer), vec![0; transfer]);
        Worker { job, maker, read, open: HashMap::new(), done: Answer::default() }
    }

    fn answer(&mut self, line: &str) -> Result<Answer> {
        let words: Vec<&str> = line.split(' ').collect();
        let unknown = || Failure::new(Kind::Usage, format!("workload worker: no command '{line}'"));
        self.done = Answer { began_ns: now(), ..Answer::default() };
        let tried = match words[..] {
            ["compute", nanoseconds, how @ ("sleep" | "busy")] => {
                let time = nanoseconds.parse().map(Duration::from_nanos).map_err(|_| unknown())?;
                compute(time, how == "busy");
                Ok(())
            }
            ["io", phase] => self.io(phase.parse().map_err(|_| unknown())?),
            _ => return Err(unknown()),
        };
        self.done.ended_ns = now();
        self.done.error = tried.err().map_or_else(String::new, |trouble| trouble.to_string());
        Ok(std::mem::take(&mut self.done))
    }

    fn io(&mut self, index: u64) -> Tried<()> {
        let application = self.job.application.clone();
        let phase = application.phase(index).ok_or_else(|| Trouble(format!("there is no phase {index}")))?;
        for operation in application.operations(&phase, self.job.rank) {
            self.perform(operation)?;
            self.done.operations += 1;
        }
        Ok(())
    }

    fn path(&self, file: Name) -> PathBuf {
        self.job.dir.join(file.path())
    }

    fn perform(&mut self, operation: Operation) -> Tried<()> {
        match operation {
            Operation::MakeDirectory { directory } => {
                let path = self.job.dir.join(directory.path());
                fs::create_dir(&path).at("making", &path)
            }
            Operation::Open { file, access } => {
                let path = self.path(file);
                let mut options = OpenOptions::new();
                let options = match access {
                    Access::Create => options.write(true).create_new(true),
                    Access::CreateShared => options.write(true).create(true).truncate(false),
                    Access::Read => options.read(true),
                };
                let opened = options.open(&path).at("opening", &path)?;
                self.open.insert(file, opened);
                Ok(())
            }
            Operation::Write { file, offset, len, place, content } => {
                self.write(file, offset, len, place, content)
            }
            Operation::Read { file, offset, len, place } => self.read(file, offset, len, place),
            Operation::Sync { file } => self.opened(file)?.sync_all().at("syncing", &self.path(file)),
            Operation::Close { file } => self.open.remove(&file).map(drop).ok_or_else(|| not_open(file)),
            Operation::Rename { from, to } => {
                let from = self.path(from);
                fs::rename(&from, self.path(to)).at("renaming", &from)
            }
        }
    }

    fn opened(&self, file: Name) -> Tried<&File> {
        self.open.get(&file).ok_or_else(|| not_open(file))
    }

    fn write(&mut self, file: Name, offset: u64, len: u64, place: Place, content: Content) -> Tried<()> {
        let opened = self.open.get(&file).ok_or_else(|| not_open(file))?;
        let began = now();
        let data = match content {
            Content::Made => self.maker.piece(place.key, place.at, len as usize),
            Content::Read => &self.read[..len as usize],
        };
        self.done.own_ns += now() - began;
        opened.write_all_at(data, offset).at("writing", &self.job.dir.join(file.path()))?;
        self.done.bytes_written += len;
        Ok(())
    }

    /// What is read is looked at by its stamps, which costs next to nothing.
    fn read(&mut self, file: Name, offset: u64, len: u64, place: Place) -> Tried<()> {
        let path = self.path(file);
        let opened = self.open.get(&file).ok_or_else(|| not_open(file))?;
        let data = &mut self.read[..len as usize];
        opened.read_exact_at(data, offset).at("reading", &path)?;
        let began = now();
        let wrong = wrong_stamp(data, place.key, place.at);
        self.done.own_ns += now() - began;
        self.done.bytes_read += len;
        match wrong {
            Some(at) => {
                let at = offset + (at - place.at);
                Err(Trouble(format!("WRONG DATA in {} at offset {at}", path.display())))
            }
            None => Ok(()),
        }
    }
}

fn not_open(file: Name) -> Trouble {
    Trouble(format!("{} is not open", file.path()))
}

fn compute(time: Duration, busy: bool) {
    if !busy {
        return std::thread::sleep(time);
    }
    let began = Instant::now();
    let mut value = 1_u64;
    while began.elapsed() < time {
        // So much that looking at the clock is little of it.
        for _ in 0..10_000 {
            value = std::hint::black_box(value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7));
        }
    }
}
