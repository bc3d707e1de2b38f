//! One process that measures. Its file has no name, so nothing of it can be left.
//!
//! ```text
//! command → `prepare PATTERN`, `go`, `end`     worker → Answer, one line of JSON
//! ```
//! The first line it writes is `ready`; it ends when its standard input does, and with the process that started it.

use super::flags::{Direction, PatternFlag};
use crate::exit::{Context, Failure, Kind, Result};
use crate::workload::flags::JobArg;
use crate::workload::worker::{At, Tried, Trouble, now, say};
use clap::ValueEnum;
use rustix::fs::{Advice, Mode, OFlags, fadvise, fcntl_getfl, fcntl_setfl, open};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, BufRead};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidepool_shape::{Shape, Shaper};

/// What a direct write or read has to begin at and be a multiple of.
pub const ALIGNED: u64 = 4096;
/// Blocks from one to the next with the pattern `strided`.
const STRIDE: u32 = 8;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    pub dir: PathBuf,
    pub rank: u32,
    /// Among the sharers of a shaped tier.
    pub who: u64,
    pub bytes: u64,
    pub block: u64,
    pub direction: Direction,
    pub seconds: f64,
    pub shape: Option<Shape>,
}

/// What one command came to.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// Monotonic clock of the node, in nanoseconds.
    pub began_ns: u64,
    pub ended_ns: u64,
    pub bytes: u64,
    pub direct: bool,
    /// Empty when all went well.
    pub error: String,
}

/// `tidepool tiers worker`.
pub fn run(args: &JobArg) -> Result<ExitCode> {
    // Whoever started it may be killed while this one writes, and so cannot see its input end.
    let with_parent = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    with_parent.context(Kind::Other, || "asking to end with the command".into())?;
    let job: Job = serde_json::from_str(&args.job).context(Kind::Usage, || "tiers worker".into())?;
    let shaper = job.shape.as_ref().map(|shape| Shaper::open(&job.dir, shape)).transpose();
    let shaper = shaper.map_err(|e| Failure::new(Kind::Other, e.to_string()))?;
    let mut worker = Worker { buffer: Buffer::new(&job), job, shaper, turn: None };
    say("ready")?;
    for line in io::stdin().lock().lines() {
        let line = line.context(Kind::Other, || "reading the next command".into())?;
        let tried = match line.split_once(' ') {
            Some(("prepare", pattern)) => worker.prepare(pattern),
            None if line == "go" => worker.go(),
            None if line == "end" => worker.end(),
            _ => return Err(Failure::new(Kind::Usage, format!("tiers worker: no command '{line}'"))),
        };
        let answer = tried.unwrap_or_else(|trouble| Answer { error: trouble.0, ..Answer::default() });
        say(&serde_json::to_string(&answer).expect("an answer always serializes"))?;
        if !answer.error.is_empty() {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A block at an address that direct writes and reads take.
struct Buffer {
    bytes: Vec<u8>,
    begins: usize,
    len: usize,
}

impl Buffer {
    fn new(job: &Job) -> Buffer {
        let len = job.block as usize;
        let mut bytes = vec![0; len + ALIGNED as usize];
        let begins = (bytes.as_ptr() as usize).wrapping_neg() % ALIGNED as usize;
        let mut random = Random::new(job.rank);
        bytes.iter_mut().for_each(|byte| *byte = random.next() as u8);
        Buffer { bytes, begins, len }
    }

    fn block(&mut self) -> &mut [u8] {
        &mut self.bytes[self.begins..self.begins + self.len]
    }
}

/// Xorshift: the same order in each run.
struct Random(u64);

impl Random {
    fn new(rank: u32) -> Random {
        Random(0x9e37_79b9_7f4a_7c15 ^ (u64::from(rank) + 1))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// The blocks of a file, in the order of a pattern.
fn order(pattern: PatternFlag, blocks: u32, rank: u32) -> Vec<u32> {
    match pattern {
        PatternFlag::Sequential => (0..blocks).collect(),
        PatternFlag::Strided => {
            (0..STRIDE).flat_map(|first| (first..blocks).step_by(STRIDE as usize)).collect()
        }
        PatternFlag::Random => {
            let mut all: Vec<u32> = (0..blocks).collect();
            let mut random = Random::new(rank);
            for at in (1..all.len()).rev() {
                all.swap(at, (random.next() % (at as u64 + 1)) as usize);
            }
            all
        }
    }
}

/// What is measured next.
struct Turn {
    pattern: PatternFlag,
    order: Vec<u32>,
    file: File,
    direct: bool,
}

struct Worker {
    job: Job,
    shaper: Option<Shaper>,
    buffer: Buffer,
    turn: Option<Turn>,
}

impl Worker {
    fn blocks(&self) -> u32 {
        (self.job.bytes / self.job.block) as u32
    }

    /// Makes the file, with data when these are to be read, and tells the shape that somebody is at work.
    fn prepare(&mut self, pattern: &str) -> Tried<Answer> {
        let pattern = PatternFlag::from_str(pattern, false).map_err(Trouble)?;
        let (blocks, dir) = (self.blocks(), self.job.dir.clone());
        let file = self.nameless()?;
        if self.job.direction == Direction::Read {
            for block in 0..blocks {
                let at = u64::from(block) * self.job.block;
                file.write_all_at(self.buffer.block(), at).at("writing in", &dir)?;
            }
            file.sync_all().at("syncing in", &dir)?;
            // What cannot be read directly is at least not in memory.
            fadvise(&file, 0, None, Advice::DontNeed).map_err(io::Error::from).at("forgetting in", &dir)?;
        }
        let direct = directly(&file).at("asking for direct access in", &dir)?;
        self.turn = Some(Turn { pattern, order: order(pattern, blocks, self.job.rank), file, direct });
        self.admit(pattern, 0)?;
        Ok(Answer { direct, ..Answer::default() })
    }

    /// Without a name from the beginning, or, where the file system has no such files, nearly.
    fn nameless(&self) -> Tried<File> {
        let dir = &self.job.dir;
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        match open(dir, flags, Mode::from_raw_mode(0o600)) {
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                let path = dir.join(format!(".tidepool-measure-{}", std::process::id()));
                let file = File::options().read(true).write(true).create_new(true).open(&path);
                let file = file.at("making", &path)?;
                fs::remove_file(&path).at("removing", &path).map(|()| file)
            }
            other => other.map(File::from).map_err(io::Error::from).at("making a file in", dir),
        }
    }

    /// How long these bytes have to take, where they are shaped.
    fn admit(&self, pattern: PatternFlag, bytes: u64) -> Tried<Option<Duration>> {
        let Some(shaper) = &self.shaper else { return Ok(None) };
        let wait = shaper.admit(self.job.who, 1, bytes, pattern.pattern());
        wait.map(Some).map_err(|e| Trouble(e.to_string()))
    }

    fn go(&mut self) -> Tried<Answer> {
        let Some(turn) = self.turn.take() else { return Err(Trouble("nothing is prepared".into())) };
        let (began, began_ns) = (Instant::now(), now());
        let mut bytes = 0;
        for number in &turn.order {
            if bytes > 0 && began.elapsed().as_secs_f64() >= self.job.seconds {
                break;
            }
            let until = self.admit(turn.pattern, self.job.block)?.map(|wait| Instant::now() + wait);
            self.block(&turn.file, u64::from(*number) * self.job.block)?;
            bytes += self.job.block;
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            std::thread::sleep(left.unwrap_or_default());
        }
        if self.job.direction == Direction::Write {
            turn.file.sync_all().at("syncing in", &self.job.dir)?;
        }
        let answer = Answer { began_ns, ended_ns: now(), bytes, direct: turn.direct, error: String::new() };
        // Not before all have ended: removing a file is work for the storage.
        self.turn = Some(turn);
        Ok(answer)
    }

    fn block(&mut self, file: &File, at: u64) -> Tried<()> {
        let data = self.buffer.block();
        match self.job.direction {
            Direction::Write => {
                // No two blocks are the same, which storage might notice.
                data[..8].copy_from_slice(&at.to_le_bytes());
                file.write_all_at(data, at).at("writing in", &self.job.dir)
            }
            Direction::Read => file.read_exact_at(data, at).at("reading in", &self.job.dir),
        }
    }

    fn end(&mut self) -> Tried<Answer> {
        self.turn = None;
        if let Some(shaper) = &self.shaper {
            shaper.leave(self.job.who).map_err(|e| Trouble(e.to_string()))?;
        }
        Ok(Answer::default())
    }
}

/// Asks for passing by the kernel's cache; false where the file system does not.
fn directly(file: &File) -> io::Result<bool> {
    let flags = fcntl_getfl(file)?;
    match fcntl_setfl(file, flags | OFlags::DIRECT) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_has_each_block_once() {
        assert_eq!(order(PatternFlag::Sequential, 4, 0), [0, 1, 2, 3]);
        assert_eq!(order(PatternFlag::Strided, 10, 0), [0, 8, 1, 9, 2, 3, 4, 5, 6, 7]);
        let random = order(PatternFlag::Random, 100, 7);
        assert_eq!(random, order(PatternFlag::Random, 100, 7), "the same each time");
        assert_ne!(random, order(PatternFlag::Random, 100, 8), "of each process its own");
        let mut sorted = random.clone();
        sorted.sort_unstable();
        assert!(sorted != random && sorted == (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn a_buffer_is_where_devices_want_it() {
        let job = Job {
            dir: PathBuf::new(),
            rank: 0,
            who: 0,
            bytes: 8192,
            block: 8192,
            direction: Direction::Write,
            seconds: 1.0,
            shape: None,
        };
        let mut buffer = Buffer::new(&job);
        assert_eq!((buffer.block().len(), buffer.block().as_ptr() as usize % 4096), (8192, 0));
    }
}
