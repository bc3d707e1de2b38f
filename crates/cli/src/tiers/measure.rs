//! `tidepool tiers measure`: processes that write or read at once, more and more of them.

use super::flags::{Direction, MeasureArgs, PatternFlag};
use super::report;
use super::worker::{ALIGNED, Answer, Job};
use crate::crew::{Leash, Member, PROCESSES_HERE_MAX, allow_pipes, watched};
use crate::exit::{Context, Failure, Kind, Result};
use crate::signals::Signals;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tidepool_iosched::Pattern;
use tidepool_iosched::curve::POINTS_MAX;
use tidepool_shape::{Measured, Point, ShapeError, Shaper};
use tidepool_transport::random_bytes;
use tidepool_types::format_size;

/// Blocks of one file: the order of all of them is in memory.
const BLOCKS_MAX: u64 = 1 << 20;
/// Bytes of a block: each process has one in memory.
const BLOCK_MAX: u64 = 64 << 20;
const SECONDS_MAX: f64 = 86_400.0;

/// What is to be done, checked.
pub struct Plan {
    pub dir: PathBuf,
    pub processes: Vec<u32>,
    pub patterns: Vec<PatternFlag>,
}

pub fn measure(args: &MeasureArgs) -> Result<ExitCode> {
    let plan = check(args)?;
    if args.dry_run {
        match args.json {
            true => println!("{}", report::dry_value(args, &plan)),
            false => print!("{}", report::dry(args, &plan)),
        }
        return Ok(ExitCode::SUCCESS);
    }
    has_room(&plan, args.bytes)?;
    let signals = Signals::watch()?;
    allow_pipes()?;
    let shaper = args.shape.as_ref().map(|shape| Shaper::open(&plan.dir, shape)).transpose();
    let shaper = shaper.map_err(of_shape)?;
    let first: u64 = u64::from_le_bytes(random_bytes());
    let result = measured(args, &plan, shaper.as_ref(), first, &signals);
    let left = shaper.map_or(Ok(()), |shaper| forget(&shaper, &plan, first).map_err(of_shape));
    let mut found = None;
    crate::exit::first(result.map(|measured| found = Some(measured)), left)?;
    let measured = found.expect("there was no failure");
    measured.write(&plan.dir).map_err(|e| Failure::new(Kind::Other, e.to_string()))?;
    report::tell(args, &plan.dir, &measured)
}

/// Also after a failure, when processes could not say that they end.
fn forget(shaper: &Shaper, plan: &Plan, first: u64) -> std::result::Result<(), ShapeError> {
    let most = plan.processes.last().copied().unwrap_or(0);
    (0..=most).try_for_each(|rank| shaper.leave(who(first, rank)))?;
    shaper.forget()
}

fn of_shape(error: ShapeError) -> Failure {
    Failure::new(Kind::Other, error.to_string())
}

/// Sharers have numbers that no other measurement has.
fn who(first: u64, rank: u32) -> u64 {
    first.wrapping_add(u64::from(rank))
}

fn check(args: &MeasureArgs) -> Result<Plan> {
    let usage = |text: String| Err(Failure::new(Kind::Usage, text));
    let mut processes = args.processes.clone();
    processes.sort_unstable();
    processes.dedup();
    if processes.first() == Some(&0) || processes.last().is_some_and(|n| u64::from(*n) > PROCESSES_HERE_MAX) {
        return usage(format!("--processes: 1 to {PROCESSES_HERE_MAX}, as 2,4,8"));
    }
    if processes.len() > POINTS_MAX {
        return usage(format!("--processes: at most {POINTS_MAX} numbers"));
    }
    if args.block == 0 || !args.block.is_multiple_of(ALIGNED) || args.block > BLOCK_MAX {
        return usage(format!("--block: a multiple of {ALIGNED} bytes, at most {}", format_size(BLOCK_MAX)));
    }
    if args.bytes == 0 || !args.bytes.is_multiple_of(args.block) || args.bytes / args.block > BLOCKS_MAX {
        return usage(format!("--bytes: 1 to {BLOCKS_MAX} times --block, {}", format_size(args.block)));
    }
    if !(args.seconds > 0.0 && args.seconds <= SECONDS_MAX) {
        return usage(format!("--seconds: more than 0, at most {SECONDS_MAX}"));
    }
    let mut patterns = Vec::new();
    for pattern in &args.patterns {
        if !patterns.contains(pattern) {
            patterns.push(*pattern);
        }
    }
    let dir = fs::canonicalize(&args.dir).context(Kind::Usage, || args.dir.display().to_string())?;
    if !dir.is_dir() {
        return usage(format!("{} is no directory", dir.display()));
    }
    Ok(Plan { dir, processes, patterns })
}

/// All files of the largest number of processes are there at once.
fn has_room(plan: &Plan, bytes: u64) -> Result<()> {
    let most = plan.processes.last().copied().unwrap_or(0);
    let needed = u64::from(most).saturating_mul(bytes);
    let stat = rustix::fs::statvfs(&plan.dir).context(Kind::Other, || plan.dir.display().to_string())?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if needed <= free {
        return Ok(());
    }
    let text = format!(
        "{}: {most} processes with {} each need {}, and {} are free; set fewer --processes or --bytes",
        plan.dir.display(),
        format_size(bytes),
        format_size(needed),
        format_size(free)
    );
    Err(Failure::new(Kind::Other, text))
}

fn measured(
    args: &MeasureArgs,
    plan: &Plan,
    shaper: Option<&Shaper>,
    first: u64,
    signals: &Signals,
) -> Result<Measured> {
    let mut crew = Crew::start(args, &plan.dir, plan.processes.last().copied().unwrap_or(0), first, signals)?;
    let leashes: Vec<Leash> = crew.members.iter().map(Member::leash).collect();
    let line = Mutex::new(String::new());
    let told = || line.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let tell = |text: String| *line.lock().unwrap_or_else(PoisonError::into_inner) = text;
    watched(signals, &leashes, told, || {
        let mut measured = empty(args);
        for pattern in &plan.patterns {
            let mut points = Vec::new();
            for processes in &plan.processes {
                let mut repeats = Vec::new();
                for repeat in 1..=args.repeats {
                    tell(format!("{}, {processes} processes, {repeat} of {}", pattern.name(), args.repeats));
                    let (rate, direct) = crew.round(*pattern, *processes, shaper)?;
                    measured.direct &= direct;
                    repeats.push(rate);
                }
                points.extend(Point::of(*processes, &repeats));
            }
            match pattern {
                PatternFlag::Sequential => measured.sequential = points,
                PatternFlag::Strided => measured.strided = points,
                PatternFlag::Random => measured.random = points,
            }
        }
        crew.members.iter_mut().try_for_each(Member::end)?;
        Ok(measured)
    })
}

fn empty(args: &MeasureArgs) -> Measured {
    let with = concat!("tidepool ", env!("CARGO_PKG_VERSION"));
    let at_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Measured {
        shaped: args.shape.as_ref().map(|shape| shape.name().to_string()),
        direction: args.direction.name().into(),
        bytes: args.bytes,
        block: args.block,
        ..Measured::new(with, &host, at_ms)
    }
}

/// All processes of the largest number; fewer of them are measured by letting the others wait.
struct Crew {
    members: Vec<Member>,
    /// The number of the one who empties the bucket.
    emptier: u64,
}

impl Crew {
    fn start(args: &MeasureArgs, dir: &Path, most: u32, first: u64, signals: &Signals) -> Result<Crew> {
        let mut members = Vec::new();
        for rank in 0..most {
            signals.check()?;
            let job = Job {
                dir: dir.to_path_buf(),
                rank,
                who: who(first, rank),
                bytes: args.bytes,
                block: args.block,
                direction: args.direction,
                seconds: args.seconds,
                shape: args.shape.clone(),
            };
            let job = serde_json::to_string(&job).expect("a job always serializes");
            members.push(Member::start("a measuring process", &["tiers", "worker", &job], &[], true)?);
        }
        members.iter_mut().try_for_each(Member::is_ready)?;
        Ok(Crew { members, emptier: who(first, most) })
    }

    /// Bytes a second of all processes together, from when the first begins to when the last is done; and whether the cache
    /// was passed by.
    fn round(
        &mut self,
        pattern: PatternFlag,
        processes: u32,
        shaper: Option<&Shaper>,
    ) -> Result<(u64, bool)> {
        self.all(processes, &format!("prepare {}", pattern.name()))?;
        if let Some(shaper) = shaper {
            self.empty(shaper)?;
        }
        let answers = self.all(processes, "go")?;
        self.all(processes, "end")?;
        let began = answers.iter().map(|answer| answer.began_ns).min().unwrap_or(0);
        let ended = answers.iter().map(|answer| answer.ended_ns).max().unwrap_or(0);
        let bytes: u128 = answers.iter().map(|answer| u128::from(answer.bytes)).sum();
        let rate = bytes * 1_000_000_000 / u128::from(ended.saturating_sub(began).max(1));
        Ok((u64::try_from(rate).unwrap_or(u64::MAX).max(1), answers.iter().all(|answer| answer.direct)))
    }

    /// What has been saved up is not part of the curve.
    fn empty(&self, shaper: &Shaper) -> Result<()> {
        let wait = shaper.admit(self.emptier, 1, shaper.shape().burst_bytes(), Pattern::Sequential);
        let wait = wait.and_then(|wait| shaper.leave(self.emptier).map(|()| wait)).map_err(of_shape)?;
        std::thread::sleep(wait);
        Ok(())
    }

    fn all(&mut self, processes: u32, command: &str) -> Result<Vec<Answer>> {
        let members = &mut self.members[..processes as usize];
        for member in members.iter_mut() {
            member.tell(command)?;
        }
        let mut answers = Vec::new();
        for member in members {
            let line = member.line()?;
            let answer: Answer = serde_json::from_str(&line)
                .context(Kind::Other, || format!("a measuring process said '{line}'"))?;
            if !answer.error.is_empty() {
                return Err(Failure::new(Kind::Other, answer.error));
            }
            answers.push(answer);
        }
        Ok(answers)
    }
}

/// Bytes that are written in all, for files that are read, too.
pub fn written(args: &MeasureArgs, plan: &Plan) -> u64 {
    let processes: u64 = plan.processes.iter().map(|n| u64::from(*n)).sum();
    let turns = u64::from(args.repeats) * plan.patterns.len() as u64;
    processes.saturating_mul(turns).saturating_mul(args.bytes)
}

/// Seconds that a shape makes of it, unless --seconds ends it before.
pub fn shaped_seconds(args: &MeasureArgs, plan: &Plan) -> Option<f64> {
    let shape = args.shape.as_ref()?;
    let of = |pattern: &PatternFlag, n: u32| {
        let rate = shape.curves().of(pattern.pattern()).at(n).max(1);
        let bytes = u64::from(n).saturating_mul(args.bytes);
        (bytes as f64 / rate as f64).min(args.seconds) + shape.burst_bytes() as f64 / rate as f64
    };
    let turns = plan.patterns.iter().flat_map(|pattern| plan.processes.iter().map(move |n| of(pattern, *n)));
    Some(turns.sum::<f64>() * f64::from(args.repeats))
}

impl MeasureArgs {
    pub fn reads(&self) -> bool {
        self.direction == Direction::Read
    }
}
