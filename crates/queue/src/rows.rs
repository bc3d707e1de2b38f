//! Jobs of a queue.

use crate::words::After;
use std::fmt;

/// Jobs of a queue, array tasks counted one by one.
pub const JOBS_MAX: usize = 100_000;
/// Bytes of what a command printed.
pub const BYTES_MAX: u64 = 256 << 20;
/// Seconds of a time or a limit: 2,000 years.
pub const SECONDS_MAX: u64 = 1 << 36;
/// Processors of a job.
pub const PROCESSORS_MAX: u32 = 100_000_000;

/// `5`, or `5_7` for a task of an array.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Id {
    pub job: u64,
    pub task: Option<u32>,
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.task {
            Some(task) => write!(f, "{}_{task}", self.job),
            None => write!(f, "{}", self.job),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum State {
    /// It has nodes.
    Running,
    /// It waits.
    #[default]
    Waiting,
    /// It waits until somebody lets it go.
    Held,
}

/// A job that has not ended. Times are seconds of the same clock, mostly since 1970.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Entry {
    pub id: Id,
    pub name: String,
    pub user: String,
    pub group: Option<String>,
    /// Quality of service.
    pub qos: Option<String>,
    /// Any of them; none said is the whole machine.
    pub partitions: Vec<String>,
    pub state: State,
    /// Why it waits, in Slurm's word.
    pub reason: String,
    pub submit_s: Option<u64>,
    /// Of one that runs; of one that waits when it may begin, if it has to wait for that.
    pub start_s: Option<u64>,
    /// Its time limit; none without one.
    pub limit_s: Option<u64>,
    pub nodes: u32,
    pub processors: u32,
    /// Its program is over, and it will soon be.
    pub is_ending: bool,
    /// Where it runs.
    pub list: Vec<String>,
    /// The highest is the first in the queue.
    pub priority: f64,
    pub after: After,
    /// Its nodes are its own.
    pub exclusive: bool,
    pub required: Vec<String>,
    pub excluded: Vec<String>,
    /// What nodes have to have.
    pub features: Option<String>,
    /// So many tasks of its array run at once.
    pub throttle: Option<u32>,
}

/// What a batch system has to do, and when that was.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Queue {
    pub entries: Vec<Entry>,
    /// The latest moment that it knows of.
    pub now_s: Option<u64>,
    /// That moment is when it was written: from the time that a job has run for.
    pub is_now_sure: bool,
    /// Of local time, ahead of UTC, where it says so.
    pub zone_s: Option<i64>,
}

/// What is wrong with a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wrong {
    /// From 1; none where it is no line's fault.
    pub line: Option<usize>,
    pub what: String,
}

impl Wrong {
    pub fn all(what: impl Into<String>) -> Wrong {
        Wrong { line: None, what: what.into() }
    }

    pub fn at(line: usize, what: impl Into<String>) -> Wrong {
        Wrong { line: Some(line), what: what.into() }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl std::error::Error for Wrong {}

/// What a job is at, by Slurm's long or short word; none for one that has ended. `SUSPENDED` ones keep their memory, but their nodes
/// are others' now: when they go on is nobody's to say.
pub fn state(word: &str) -> Result<Option<State>, String> {
    match word {
        "RUNNING" | "R" | "CONFIGURING" | "CF" | "COMPLETING" | "CG" | "RESIZING" | "RS" | "SIGNALING"
        | "SI" | "STAGE_OUT" | "SO" | "STOPPED" | "ST" => Ok(Some(State::Running)),
        "PENDING" | "PD" | "REQUEUED" | "RQ" | "REQUEUE_FED" | "RF" => Ok(Some(State::Waiting)),
        "SUSPENDED" | "S" | "REQUEUE_HOLD" | "RH" | "SPECIAL_EXIT" | "SE" | "RESV_DEL_HOLD" | "RD" => {
            Ok(Some(State::Held))
        }
        "COMPLETED" | "CD" | "FAILED" | "F" | "CANCELLED" | "CA" | "TIMEOUT" | "TO" | "NODE_FAIL" | "NF"
        | "PREEMPTED" | "PR" | "BOOT_FAIL" | "BF" | "DEADLINE" | "DL" | "OUT_OF_MEMORY" | "OOM"
        | "REVOKED" | "RV" => Ok(None),
        _ => Err(format!("'{}' is no state of a job", cut(word))),
    }
}

/// Whether a job with this state is about to give its nodes back.
pub fn is_ending(word: &str) -> bool {
    ["COMPLETING", "CG"].contains(&word)
}

/// Enough of a text to know it by.
pub(crate) fn cut(text: &str) -> String {
    const SHOWN_MAX: usize = 40;
    let start: String =
        text.chars().take(SHOWN_MAX).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().count() > SHOWN_MAX { start + "..." } else { start }
}
