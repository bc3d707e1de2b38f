//! How long a job will run, from what is known when it is submitted (INVENTORY B1-B10).
//!
//! ```text
//! submitted(job) ─▶ Prediction: run time, and the times within which 90 % and 95 % of such jobs are over
//! started(id)    ─▶ the job runs now: for as long as it does, others like it are likely to run for longer than that
//! ended(id)      ─▶ what it took teaches; cancelled(id): it teaches nothing
//! ```
//! | module | what |
//! |---|---|
//! | [`simple`] | the request, the last runs of a user, Alea's ratio |
//! | [`templates`] | groups of alike jobs: same user, processors and request; Gibbons; Downey |
//! | [`regression`] | a straight line for each user |
//! | [`expert`] | for each user the simple predictor that has been best lately |
//! | [`mixture`] | the default: distributions of many templates, mixed as they have proved themselves; later, when a job waits or runs, [`mixture::Outlook`] |
//! | [`conformal`] | quantiles that hold |
//! | [`catalog`] | all of them by name |
//! | [`judge`] | measures over a log: error at the median user, share predicted too short, coverage |
//! | [`replay`] | a log told to a predictor in the order of time |
//!
//! No I/O and no clock; the same in each run; memory is bounded by named constants. Nothing passes over the past: a job
//! costs what its own templates cost.

#![forbid(unsafe_code)]

pub mod bounded;
pub mod catalog;
pub mod conformal;
pub mod expert;
pub mod judge;
pub mod mixture;
pub mod regression;
pub mod replay;
pub mod simple;
pub mod templates;

/// Jobs that are waiting or running: of more, those submitted first are forgotten and teach nothing.
pub const PENDING_MAX: usize = 1 << 17;
/// Users that are remembered, at least.
pub const USERS_MAX: usize = 1 << 14;
/// Predicted for a job without a request and without a past.
pub const UNKNOWN_S: f64 = 3600.0;
/// Shares of jobs that are over within [`Prediction::within_s`].
pub const LEVELS: [f64; 2] = [0.90, 0.95];

/// What is known of a job when it is submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Job {
    /// Of no other job that is waiting or running.
    pub id: u64,
    pub submit_s: u64,
    /// Its time limit.
    pub request_s: Option<u64>,
    pub processors: u32,
    pub user: Option<u32>,
    pub group: Option<u32>,
    pub executable: Option<u32>,
    pub queue: Option<u32>,
    pub partition: Option<u32>,
}

impl Job {
    /// What stands for the run time when nothing is known.
    pub fn unknown_s(&self) -> f64 {
        self.request_s.map_or(UNKNOWN_S, |request| request as f64)
    }
}

/// Seconds from a job's start.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Prediction {
    pub run_s: f64,
    /// Within which the shares [`LEVELS`] of jobs are over.
    pub within_s: [f64; 2],
}

/// Learns job by job. Told of one log's jobs in the order of time.
pub trait Predictor {
    /// Asked once for each job, when it is submitted.
    fn submitted(&mut self, job: &Job) -> Prediction;
    fn started(&mut self, id: u64, at_s: u64);
    /// It ran for so long and is over.
    fn ended(&mut self, id: u64, run_s: f64);
    /// It will never have run. Nothing is learned.
    fn cancelled(&mut self, id: u64);
    /// Equally likely run times of a job that was submitted and has not ended, in ascending order, none above its request: of
    /// those who know more than the [`Prediction`].
    fn chances(&self, id: u64) -> Option<&[f32]> {
        let _ = id;
        None
    }
}

/// A predictor of run times alone; [`conformal::Calibrated`] makes quantiles of its errors.
pub trait Point {
    fn predict(&mut self, job: &Job) -> f64;
    /// The job for which it said `predicted_s` has ended.
    fn learn(&mut self, job: &Job, predicted_s: f64, run_s: f64);
}
