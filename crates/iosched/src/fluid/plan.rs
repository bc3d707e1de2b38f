//! What is run.

use crate::curve::Curves;
use crate::model::{APPS_MAX, JobId, PROCESSES_MAX, Pattern, Tier, WEIGHT_MAX};
use std::fmt;
use std::sync::Arc;

/// I/O phases of one application.
pub const STEPS_MAX: u32 = 100_000;
/// Bytes of one run, of all applications: keeps billionths of bytes far from the end of `u128`.
pub const BYTES_MAX: u128 = 1 << 70;

/// How late news can be: a day.
pub const DELAY_MAX_NS: u64 = 86_400_000_000_000;
/// A tier that is there holds this at least. Smaller ones would be filled and emptied in pieces that are no model of anything.
pub const CAPACITY_MIN: u64 = 64 << 20;

/// A shared tier; one of 0 bytes is none.
#[derive(Clone, Debug)]
pub struct SharedTier {
    pub capacity_bytes: u64,
    pub curves: Arc<Curves>,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Testbed {
    pub burst: SharedTier,
    pub pfs: SharedTier,
    /// Streams of one flush, which count as so many processes.
    pub flush_streams: u32,
    /// Data are flushed in lumps of so many bytes, or what there is when a phase ends.
    pub lump_bytes: u64,
    /// Schedulers that decide side by side; applications belong to them in turn.
    pub schedulers: u32,
    /// How late a scheduler learns of what is not its own.
    pub delay_ns: u64,
}

/// An application: computes, then writes, `steps` times.
#[derive(Clone, Debug)]
pub struct Workload {
    pub job: JobId,
    pub processes: u32,
    pub weight: u32,
    pub pattern: Pattern,
    pub bytes_per_process: u64,
    pub steps: u32,
    /// Computing before each phase.
    pub compute_ns: u64,
    pub start_ns: u64,
    /// What the links of its nodes carry to shared tiers; none: no limit.
    pub link_bytes_per_s: Option<u64>,
    /// Size and bandwidth of its nodes' local memory.
    pub local: Option<(u64, u64)>,
}

impl Workload {
    /// Bytes of one step.
    pub fn step_bytes(&self) -> u64 {
        self.bytes_per_process.saturating_mul(u64::from(self.processes))
    }
}

/// Why something cannot be run, or did not come to its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FluidError {
    NoApps,
    Apps(usize),
    Twice(JobId),
    Workload(JobId, &'static str),
    Testbed(&'static str),
    TooMuch(u128),
    /// Nothing moves any more, though there is something to write or to flush.
    Stuck {
        at_ns: u64,
        full: Option<Tier>,
    },
    TooManyEvents(u64),
    /// It would take longer than the clock counts, 292 years.
    TooLong {
        at_ns: u64,
    },
}

impl fmt::Display for FluidError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FluidError::NoApps => f.write_str("no application to run"),
            FluidError::Apps(count) => write!(f, "{count} applications; at most {APPS_MAX}"),
            FluidError::Twice(job) => write!(f, "job {} is there twice", job.0),
            FluidError::Workload(job, what) => write!(f, "job {}: {what}", job.0),
            FluidError::Testbed(what) => write!(f, "testbed: {what}"),
            FluidError::TooMuch(bytes) => write!(f, "{bytes} bytes in all; at most {BYTES_MAX}"),
            FluidError::Stuck { at_ns, full: Some(tier) } => {
                write!(f, "nothing moves after {at_ns} ns; {} is full: give it more room", tier.name())
            }
            FluidError::Stuck { at_ns, full: None } => {
                write!(f, "nothing moves after {at_ns} ns; the strategy lets all wait")
            }
            FluidError::TooLong { at_ns } => {
                write!(f, "what moves after {at_ns} ns would take centuries; is a bandwidth in bytes/s?")
            }
            FluidError::TooManyEvents(max) => write!(f, "no end after {max} events; run fewer steps"),
        }
    }
}

impl std::error::Error for FluidError {}

pub(super) fn check(testbed: &Testbed, apps: &[Workload]) -> Result<(), FluidError> {
    check_testbed(testbed)?;
    if apps.is_empty() {
        return Err(FluidError::NoApps);
    }
    if apps.len() > APPS_MAX {
        return Err(FluidError::Apps(apps.len()));
    }
    if let Some(pair) = apps.windows(2).find(|pair| pair[0].job == pair[1].job) {
        return Err(FluidError::Twice(pair[0].job));
    }
    for app in apps {
        check_app(app).map_err(|what| FluidError::Workload(app.job, what))?;
    }
    let bytes = |app: &Workload| {
        u128::from(app.bytes_per_process) * u128::from(app.processes) * u128::from(app.steps)
    };
    match apps.iter().map(bytes).sum() {
        all if all > BYTES_MAX => Err(FluidError::TooMuch(all)),
        _ => Ok(()),
    }
}

fn check_testbed(testbed: &Testbed) -> Result<(), FluidError> {
    let wrong = if testbed.schedulers == 0 {
        "one scheduler at least"
    } else if testbed.delay_ns > DELAY_MAX_NS {
        "news are late by a day at most"
    } else if !(1..=1024).contains(&testbed.flush_streams) {
        "a flush has 1 to 1024 streams"
    } else if testbed.lump_bytes < 1_000_000 {
        "lumps of 1 MB at least"
    } else if [&testbed.burst, &testbed.pfs].iter().any(|tier| !is_capacity(tier.capacity_bytes)) {
        "tiers of 64 MiB at least, or 0 bytes for none"
    } else {
        return Ok(());
    };
    Err(FluidError::Testbed(wrong))
}

fn is_capacity(bytes: u64) -> bool {
    bytes == 0 || bytes >= CAPACITY_MIN
}

fn check_app(app: &Workload) -> Result<(), &'static str> {
    if !(1..=PROCESSES_MAX).contains(&app.processes) {
        return Err("1 to 16777216 processes");
    }
    if !(1..=WEIGHT_MAX).contains(&app.weight) {
        return Err("a weight of 1 to 1000");
    }
    if !(1..=STEPS_MAX).contains(&app.steps) {
        return Err("1 to 100000 steps");
    }
    if app.bytes_per_process == 0 {
        return Err("1 byte per process and step at least");
    }
    if app.local.is_some_and(|(capacity, _)| !is_capacity(capacity)) {
        return Err("local memory of 64 MiB at least, or 0 bytes for none");
    }
    if app.link_bytes_per_s == Some(0) || app.local.is_some_and(|(_, rate)| rate == 0) {
        return Err("links and local memory of 1 byte/s at least");
    }
    if u128::from(app.start_ns) + u128::from(app.compute_ns) * u128::from(app.steps)
        > u128::from(u64::MAX >> 2)
    {
        return Err("computes for more than a century");
    }
    Ok(())
}
