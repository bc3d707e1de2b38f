//! One process of a benchmark. Plain POSIX calls only, so that it measures whatever its
//! paths lead to: the preload library, a FUSE mount, or the file system underneath.
//!
//! ```text
//! command → phase, one line     worker → Answer, one line of JSON
//! ```
//! The first line a worker writes is `ready`; it ends when its standard input does.

use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::BenchWorkerArgs;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::ExitCode;
use tidepool_workload::data::{fill, mix, stamp, wrong_stamp};

/// Bytes read at once when all data is compared.
const VERIFY_BYTES: usize = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// All processes in one directory, or in one file.
    Shared,
    /// Each process in a directory, or in a file, of its own.
    PerProcess,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    Sequential,
    Random,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Work {
    /// Empty files: so many of each process.
    Md { files: u64, layout: Layout },
    /// Data: each process writes and reads `bytes` in pieces of `transfer`.
    Io { transfer: u64, bytes: u64, layout: Layout, order: Order, seed: u64 },
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    pub dir: PathBuf,
    pub rank: u64,
    pub procs: u64,
    pub work: Work,
}

/// What all processes do at the same time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Makes the directories.
    Prepare,
    Create,
    /// Of the files that the next process made, so that nobody's cache answers.
    Stat,
    Remove,
    Write,
    /// Of this process's data once more: the file has all its blocks.
    Rewrite,
    /// Of the data that the next process wrote.
    Read,
    /// Compares all of the next process's data; not timed.
    Verify,
    /// Removes this process's files and directory.
    Clear,
    /// Removes the common directory.
    Finish,
}

impl Phase {
    pub const ALL: [Phase; 10] = [
        Phase::Prepare,
        Phase::Create,
        Phase::Stat,
        Phase::Remove,
        Phase::Write,
        Phase::Rewrite,
        Phase::Read,
        Phase::Verify,
        Phase::Clear,
        Phase::Finish,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Phase::Prepare => "prepare",
            Phase::Create => "create",
            Phase::Stat => "stat",
            Phase::Remove => "remove",
            Phase::Write => "write",
            Phase::Rewrite => "rewrite",
            Phase::Read => "read",
            Phase::Verify => "verify",
            Phase::Clear => "clear",
            Phase::Finish => "finish",
        }
    }
}

/// What a phase did in one process.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// Monotonic clock of the node, in nanoseconds.
    pub began_ns: u64,
    pub ended_ns: u64,
    /// After the fsync of a write; else as `ended_ns`.
    pub synced_ns: u64,
    pub cpu_ns: u64,
    pub operations: u64,
    pub bytes: u64,
    /// Empty when all went well.
    pub error: String,
}

/// What a phase has done.
#[derive(Default)]
struct Done {
    operations: u64,
    bytes: u64,
    /// When the writes, before their fsync, were done.
    written_ns: Option<u64>,
}

/// An error and what it was about.
#[derive(Debug)]
struct Trouble(String);

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

type Tried<T> = std::result::Result<T, Trouble>;

/// Names the path in an error.
trait At<T> {
    fn at(self, what: &str, path: &std::path::Path) -> Tried<T>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, what: &str, path: &std::path::Path) -> Tried<T> {
        self.map_err(|e| Trouble(format!("{what} {}: {e}", path.display())))
    }
}

/// `tidepool bench worker`.
pub fn run(args: &BenchWorkerArgs) -> Result<ExitCode> {
    let job: Job = serde_json::from_str(&args.job).context(Kind::Usage, || "bench worker".into())?;
    let mut worker = Worker::new(job);
    say("ready")?;
    for line in io::stdin().lock().lines() {
        let line = line.context(Kind::Other, || "reading the next phase".into())?;
        let Some(phase) = Phase::ALL.into_iter().find(|p| p.name() == line) else {
            return Err(Failure::new(Kind::Usage, format!("bench worker: no phase '{line}'")));
        };
        let answer = worker.timed(phase);
        say(&serde_json::to_string(&answer).expect("an answer always serializes"))?;
        if !answer.error.is_empty() {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn say(line: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context(Kind::Other, || "answering".into())
}

fn clock(id: rustix::time::ClockId) -> u64 {
    let time = rustix::time::clock_gettime(id);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

fn now() -> u64 {
    clock(rustix::time::ClockId::Monotonic)
}

struct Worker {
    job: Job,
    buf: Vec<u8>,
}

impl Worker {
    fn new(job: Job) -> Worker {
        let len = match job.work {
            Work::Md { .. } => 0,
            Work::Io { transfer, .. } => transfer as usize,
        };
        let mut buf = vec![0; len];
        fill(&mut buf);
        Worker { job, buf }
    }

    fn timed(&mut self, phase: Phase) -> Answer {
        let cpu = clock(rustix::time::ClockId::ProcessCPUTime);
        let began_ns = now();
        let result = self.perform(phase);
        let synced_ns = now();
        let cpu_ns = clock(rustix::time::ClockId::ProcessCPUTime) - cpu;
        let answer = Answer { began_ns, ended_ns: synced_ns, synced_ns, cpu_ns, ..Answer::default() };
        match result {
            Ok(done) => Answer {
                ended_ns: done.written_ns.unwrap_or(synced_ns),
                operations: done.operations,
                bytes: done.bytes,
                ..answer
            },
            Err(trouble) => Answer { error: trouble.to_string(), ..answer },
        }
    }

    fn perform(&mut self, phase: Phase) -> Tried<Done> {
        let own = self.job.rank;
        let next = (own + 1) % self.job.procs;
        match phase {
            Phase::Prepare => {
                let dir = self.dir_of(own);
                fs::create_dir_all(&dir).at("making", &dir).map(|()| Done::default())
            }
            Phase::Create => self.each_file(own, create),
            Phase::Stat => self.each_file(next, stat),
            Phase::Remove => self.each_file(own, |path| fs::remove_file(path).at("removing", path)),
            Phase::Write | Phase::Rewrite => self.write(),
            Phase::Read => self.read(next),
            Phase::Verify => self.verify(next),
            Phase::Clear => self.clear(),
            Phase::Finish if own == 0 => {
                fs::remove_dir(&self.job.dir).at("removing", &self.job.dir).map(|()| Done::default())
            }
            Phase::Finish => Ok(Done::default()),
        }
    }

    fn layout(&self) -> Layout {
        match self.job.work {
            Work::Md { layout, .. } | Work::Io { layout, .. } => layout,
        }
    }

    /// Directory with the files of a process.
    fn dir_of(&self, rank: u64) -> PathBuf {
        match (&self.job.work, self.layout()) {
            (Work::Md { .. }, Layout::PerProcess) => self.job.dir.join(format!("dir.{rank}")),
            _ => self.job.dir.clone(),
        }
    }

    fn each_file(&self, rank: u64, act: impl Fn(&std::path::Path) -> Tried<()>) -> Tried<Done> {
        let Work::Md { files, .. } = self.job.work else {
            return Err(Trouble("this phase is not for data".into()));
        };
        let dir = self.dir_of(rank);
        for number in 0..files {
            act(&dir.join(format!("file.{rank}.{number}")))?;
        }
        Ok(Done { operations: files, ..Done::default() })
    }

    fn io(&self) -> Tried<Io> {
        let Work::Io { transfer, bytes, layout, order, seed } = self.job.work else {
            return Err(Trouble("this phase is not for empty files".into()));
        };
        Ok(Io { transfer, bytes, layout, order, seed })
    }

    fn write(&mut self) -> Tried<Done> {
        let io = self.io()?;
        let rank = self.job.rank;
        let path = io.path(&self.job.dir, rank);
        let open = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let file = open.at("creating", &path)?;
        for offset in io.offsets(rank, rank) {
            stamp(&mut self.buf, io.key(rank), offset);
            file.write_all_at(&self.buf, offset).at("writing", &path)?;
        }
        let written_ns = Some(now());
        file.sync_all().at("syncing", &path)?;
        Ok(Done { operations: io.bytes / io.transfer, bytes: io.bytes, written_ns })
    }

    /// Reads another process's data and looks at its stamps, which costs next to nothing.
    fn read(&mut self, rank: u64) -> Tried<Done> {
        let io = self.io()?;
        let path = io.path(&self.job.dir, rank);
        let file = File::open(&path).at("opening", &path)?;
        for offset in io.offsets(rank, self.job.rank) {
            file.read_exact_at(&mut self.buf, offset).at("reading", &path)?;
            let wrong = wrong_stamp(&self.buf, io.key(rank), offset);
            wrong.map_or(Ok(()), |at| Err(wrong_data(&path, at)))?;
        }
        fill(&mut self.buf);
        Ok(Done { operations: io.bytes / io.transfer, bytes: io.bytes, written_ns: None })
    }

    /// Compares every byte.
    fn verify(&self, rank: u64) -> Tried<Done> {
        let io = self.io()?;
        let path = io.path(&self.job.dir, rank);
        let file = File::open(&path).at("opening", &path)?;
        let (start, end) = (io.base(rank), io.base(rank) + io.bytes);
        let mut wanted = vec![0; VERIFY_BYTES];
        let mut found = vec![0; VERIFY_BYTES];
        fill(&mut wanted);
        for offset in (start..end).step_by(VERIFY_BYTES) {
            let len = (end - offset).min(VERIFY_BYTES as u64) as usize;
            stamp(&mut wanted, io.key(rank), offset);
            file.read_exact_at(&mut found[..len], offset).at("reading", &path)?;
            let wrong = wanted[..len].iter().zip(&found[..len]).position(|(w, f)| w != f);
            wrong.map_or(Ok(()), |at| Err(wrong_data(&path, offset + at as u64)))?;
        }
        Ok(Done { bytes: io.bytes, ..Done::default() })
    }

    fn clear(&self) -> Tried<Done> {
        match (&self.job.work, self.layout()) {
            (Work::Md { .. }, Layout::PerProcess) => {
                let dir = self.dir_of(self.job.rank);
                fs::remove_dir(&dir).at("removing", &dir)?;
            }
            (Work::Io { .. }, layout) if layout == Layout::PerProcess || self.job.rank == 0 => {
                let path = self.io()?.path(&self.job.dir, self.job.rank);
                fs::remove_file(&path).at("removing", &path)?;
            }
            _ => {}
        }
        Ok(Done::default())
    }
}

fn create(path: &std::path::Path) -> Tried<()> {
    let open = OpenOptions::new().write(true).create_new(true).open(path);
    open.at("creating", path).map(drop)
}

fn stat(path: &std::path::Path) -> Tried<()> {
    let meta = fs::symlink_metadata(path).at("looking at", path)?;
    if meta.is_file() && meta.len() == 0 {
        return Ok(());
    }
    Err(Trouble(format!("{} is no empty file", path.display())))
}

fn wrong_data(path: &std::path::Path, offset: u64) -> Trouble {
    Trouble(format!("WRONG DATA in {} at offset {offset}", path.display()))
}

/// What a data benchmark does, taken apart.
struct Io {
    transfer: u64,
    bytes: u64,
    layout: Layout,
    order: Order,
    seed: u64,
}

impl Io {
    fn path(&self, dir: &std::path::Path, rank: u64) -> PathBuf {
        match self.layout {
            Layout::Shared => dir.join("data"),
            Layout::PerProcess => dir.join(format!("data.{rank}")),
        }
    }

    /// Offset of a process's part in its file.
    fn base(&self, rank: u64) -> u64 {
        if self.layout == Layout::Shared { rank * self.bytes } else { 0 }
    }

    /// Distinguishes the data of different files.
    fn key(&self, rank: u64) -> u64 {
        let file = if self.layout == Layout::Shared { 0 } else { rank };
        mix(self.seed ^ (file << 32))
    }

    /// Offsets of the transfers in `rank`'s part, in the order in which `reader` goes.
    fn offsets(&self, rank: u64, reader: u64) -> Vec<u64> {
        let mut all: Vec<u64> =
            (0..self.bytes / self.transfer).map(|i| self.base(rank) + i * self.transfer).collect();
        if self.order == Order::Random {
            shuffle(&mut all, self.seed ^ reader);
        }
        all
    }
}

/// Fisher-Yates; the same seed gives the same order.
fn shuffle(items: &mut [u64], seed: u64) {
    for last in (1..items.len()).rev() {
        let chosen = mix(seed.wrapping_add(mix(last as u64))) % (last as u64 + 1);
        items.swap(last, chosen as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pool's work in a plain directory, so that each phase runs once.
    fn work(name: &str, work: Work) -> Vec<(Phase, Answer)> {
        let dir = std::env::temp_dir().join(format!("tidepool-worker-{name}-{}", std::process::id()));
        let job = |rank| Job { dir: dir.clone(), rank, procs: 2, work: work.clone() };
        let mut workers = [Worker::new(job(1)), Worker::new(job(0))];
        let phases: &[Phase] = match work {
            Work::Md { .. } => &[Phase::Prepare, Phase::Create, Phase::Stat, Phase::Remove],
            Work::Io { .. } => &[Phase::Prepare, Phase::Write, Phase::Read, Phase::Verify],
        };
        let all = phases.iter().chain(&[Phase::Clear, Phase::Finish]);
        let answers = all.flat_map(|p| workers.iter_mut().map(|w| (*p, w.timed(*p))).collect::<Vec<_>>());
        let answers: Vec<_> = answers.collect();
        assert!(!dir.exists(), "the last phase removes all");
        answers
    }

    #[test]
    fn all_phases_run_in_every_layout_and_order() {
        for layout in [Layout::Shared, Layout::PerProcess] {
            for (_, answer) in work("md", Work::Md { files: 5, layout }) {
                assert_eq!(answer.error, "");
            }
            for order in [Order::Sequential, Order::Random] {
                let io = Work::Io { transfer: 8192, bytes: 65_536, layout, order, seed: 3 };
                for (phase, answer) in work("io", io) {
                    assert_eq!(answer.error, "", "{phase:?}");
                    if phase == Phase::Read {
                        assert_eq!((answer.operations, answer.bytes), (8, 65_536));
                    }
                }
            }
        }
    }

    #[test]
    fn wrong_data_is_found_by_reading_and_by_comparing() {
        let dir = std::env::temp_dir().join(format!("tidepool-worker-bad-{}", std::process::id()));
        let (layout, order) = (Layout::PerProcess, Order::Sequential);
        let work = Work::Io { transfer: 4096, bytes: 16_384, layout, order, seed: 1 };
        let mut worker = Worker::new(Job { dir: dir.clone(), rank: 0, procs: 1, work });
        worker.timed(Phase::Prepare);
        worker.timed(Phase::Write);
        let file = OpenOptions::new().write(true).open(dir.join("data.0")).unwrap();
        file.write_all_at(&[9], 8192 + 100).unwrap();
        assert_eq!(worker.timed(Phase::Read).error, "");
        assert!(worker.timed(Phase::Verify).error.contains("offset 8292"));
        file.write_all_at(&[9; 8], 4096).unwrap();
        assert!(worker.timed(Phase::Read).error.contains("WRONG DATA"));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn random_offsets_cover_everything_once() {
        let (layout, order) = (Layout::Shared, Order::Random);
        let io = Io { transfer: 10, bytes: 1000, layout, order, seed: 5 };
        let mut offsets = io.offsets(2, 1);
        assert_ne!(offsets[..5], [2000, 2010, 2020, 2030, 2040]);
        offsets.sort();
        assert_eq!(offsets, (0..100).map(|i| 2000 + i * 10).collect::<Vec<_>>());
    }

    #[test]
    fn jobs_survive_their_json() {
        let work = Work::Md { files: 3, layout: Layout::Shared };
        let job = Job { dir: "/x".into(), rank: 1, procs: 2, work };
        let text = serde_json::to_string(&job).unwrap();
        assert_eq!(serde_json::from_str::<Job>(&text).unwrap(), job);
    }
}
