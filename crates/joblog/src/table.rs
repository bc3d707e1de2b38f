//! The table: a row for each job that ran.

use crate::header::Header;
use crate::repairs::Repairs;
use std::collections::BTreeMap;

/// Jobs of one log; the longest that is known of has six million.
pub const JOBS_MAX: usize = 20_000_000;
/// A job's number: what numbers with a point, as SWF and data frames have them, can be without a gap.
pub const NUMBER_MAX: u64 = 1 << 53;
/// Processors of a machine.
pub const PROCESSORS_MAX: u32 = 100_000_000;
/// Seconds of a time or a limit: 2,000 years.
pub const SECONDS_MAX: u64 = 1 << 36;
/// KiB of memory: an exbibyte.
pub const KIB_MAX: u64 = 1 << 50;

/// How a job ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Status {
    /// The log does not say.
    #[default]
    Unknown,
    Completed,
    Failed,
    Cancelled,
    /// At its limit; SWF does not tell it from failed.
    Timeout,
    NodeFail,
    OutOfMemory,
    Preempted,
}

impl Status {
    pub const ALL: [Status; 8] = [
        Status::Unknown,
        Status::Completed,
        Status::Failed,
        Status::Cancelled,
        Status::Timeout,
        Status::NodeFail,
        Status::OutOfMemory,
        Status::Preempted,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Status::Unknown => "unknown",
            Status::Completed => "completed",
            Status::Failed => "failed",
            Status::Cancelled => "cancelled",
            Status::Timeout => "timeout",
            Status::NodeFail => "node-fail",
            Status::OutOfMemory => "out-of-memory",
            Status::Preempted => "preempted",
        }
    }

    pub fn named(name: &str) -> Option<Status> {
        Status::ALL.into_iter().find(|status| status.name() == name)
    }
}

/// A job as it was submitted, and how long it then ran. Times are seconds. What the log does not say is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Job {
    pub number: u64,
    /// Since the log's [`Header::unix_start_s`].
    pub submit_s: u64,
    /// Not above `request_s`: there it would have been ended.
    pub run_s: u64,
    /// Its time limit.
    pub request_s: u64,
    /// Those that it was given: what other simulators take, too. Where that is not said, those that it asked for.
    pub processors: u32,
    /// For how long it ran on beyond `request_s`, on the real machine.
    pub overran_s: u64,
    pub user: Option<u32>,
    pub group: Option<u32>,
    /// Slurm: the job's name.
    pub executable: Option<u32>,
    /// Slurm: the quality of service.
    pub queue: Option<u32>,
    pub partition: Option<u32>,
    /// On the real machine, from its submission to its start.
    pub waited_s: Option<u64>,
    /// False where no time limit is said, and `request_s` is the run time: that, nobody knew at submission.
    pub asked: bool,
    pub status: Status,
    /// Those that it asked for.
    pub requested_processors: Option<u32>,
    /// Memory that it asked for, and that it used, for each processor.
    pub requested_memory_kib: Option<u64>,
    pub used_memory_kib: Option<u64>,
    /// Mean processor time, for each processor.
    pub cpu_s: Option<u64>,
    /// Number of the job that it waited for, and for how long it was submitted after that one's end.
    pub preceding: Option<u64>,
    pub think_s: Option<u64>,
    /// How many nodes it had, and which.
    pub nodes: Option<u32>,
    pub node_list: Option<u32>,
    pub account: Option<u32>,
}

impl Job {
    /// How long it ran on the real machine.
    pub fn ran_s(&self) -> u64 {
        self.run_s + self.overran_s
    }

    /// When it began on the real machine.
    pub fn start_s(&self) -> Option<u64> {
        self.waited_s.map(|waited| self.submit_s + waited)
    }

    /// When it ended on the real machine.
    pub fn end_s(&self) -> Option<u64> {
        self.start_s().map(|start| start + self.ran_s())
    }

    /// Whether it used up its time limit.
    pub fn reached_limit(&self) -> bool {
        self.status == Status::Timeout || (self.asked && self.ran_s() >= self.request_s)
    }

    /// Processor seconds.
    pub fn area(&self) -> u128 {
        u128::from(self.processors) * u128::from(self.ran_s())
    }

    /// Makes a job of what a log says: its whole run time in `run_s`, a limit of 0 and 0 processors where none are said.
    /// What is repaired is counted; none where the job is left out.
    pub(crate) fn settle(mut self, repairs: &mut Repairs) -> Option<Job> {
        if self.run_s == 0 {
            repairs.never_ran += 1;
            return None;
        }
        if self.processors == 0 {
            let Some(requested) = self.requested_processors else {
                repairs.no_processors += 1;
                return None;
            };
            self.processors = requested;
            repairs.requested_for_given += 1;
        }
        self.asked = self.request_s > 0;
        if !self.asked {
            repairs.no_request += 1;
            self.request_s = self.run_s;
        }
        repairs.overran += u64::from(self.run_s > self.request_s);
        self.overran_s = self.run_s.saturating_sub(self.request_s);
        self.run_s -= self.overran_s;
        Some(self)
    }
}

/// What the numbers of a column stand for, where that is known.
pub type Numbered = BTreeMap<u32, String>;

/// Names of what jobs have numbers of.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Names {
    pub users: Numbered,
    pub groups: Numbered,
    pub executables: Numbered,
    pub queues: Numbered,
    pub partitions: Numbered,
    pub accounts: Numbered,
    pub node_lists: Numbered,
}

/// A log in the order of submission.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Log {
    pub header: Header,
    pub jobs: Vec<Job>,
    /// `MaxProcs` of the header, else `MaxNodes`.
    pub processors: Option<u32>,
    /// `MaxNodes` of the header.
    pub nodes: Option<u32>,
    pub names: Names,
    pub repairs: Repairs,
}
