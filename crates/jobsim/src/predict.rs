//! How long a job will run: what the scheduler plans by.
//!
//! A [`Predictor`] is asked when a job is submitted and told when one has ended, so it can only know what a machine knows then.
//! [`Refined`] is the exception that the papers want (S0 equation 1): it is made from the run times themselves.

use crate::swf::Job;
use std::collections::{HashMap, VecDeque};

/// Runs of a user that [`MaxRatio`] looks at.
const RATIOS: usize = 5;
/// Runs of a user that [`LastTwo`] looks at.
const RUNS: usize = 2;

/// What is known of a job when it is submitted. Seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Submitted {
    /// Its place among the jobs of the run, from 0.
    pub index: usize,
    /// In the log.
    pub number: u64,
    pub submit_s: u64,
    /// Its time limit.
    pub request_s: u64,
    /// False where the log says no limit: then `request_s` is the run time, which nobody knew.
    pub asked: bool,
    pub processors: u32,
    pub user: Option<u32>,
    pub group: Option<u32>,
    pub executable: Option<u32>,
    pub queue: Option<u32>,
    pub partition: Option<u32>,
}

impl Submitted {
    pub fn of(index: usize, job: &Job) -> Submitted {
        Submitted {
            index,
            number: job.number,
            submit_s: job.submit_s,
            request_s: job.request_s,
            asked: job.asked,
            processors: job.processors,
            user: job.user,
            group: job.group,
            executable: job.executable,
            queue: job.queue,
            partition: job.partition,
        }
    }
}

/// A way to predict run times. Calls come in the order of time; at the same second ends come before submissions, and these before
/// starts.
pub trait Predictor {
    /// Seconds that a job will run for, told at its submission. The simulator takes at least 1 and at most the time limit.
    fn predict(&mut self, job: &Submitted) -> u64;

    /// A job has started.
    fn started(&mut self, job: &Submitted, now_s: u64) {
        let _ = (job, now_s);
    }

    /// A job has ended, `now_s`, after it had run for so long.
    fn ended(&mut self, job: &Submitted, run_s: u64, now_s: u64) {
        let _ = (job, run_s, now_s);
    }
}

/// The time limit that the user requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Request;

impl Predictor for Request {
    fn predict(&mut self, job: &Submitted) -> u64 {
        job.request_s
    }
}

/// S0 equation 1: `run + lambda (request - run)`, to whole seconds. At 1 it is the request, at 0 the run time itself: nobody can know it.
#[derive(Clone, PartialEq, Debug)]
pub struct Refined {
    seconds: Vec<u64>,
}

impl Refined {
    /// Of the jobs of a run, in their order; lambda is from 0 to 1.
    pub fn new(jobs: &[Job], lambda: f64) -> Refined {
        Refined { seconds: jobs.iter().map(|job| refined(job, lambda)).collect() }
    }
}

/// The refined request of a job (S0 equation 1).
pub fn refined(job: &Job, lambda: f64) -> u64 {
    let more = job.request_s.saturating_sub(job.run_s);
    job.run_s + ((more as f64 * lambda.clamp(0.0, 1.0)).round() as u64).min(more)
}

impl Predictor for Refined {
    fn predict(&mut self, job: &Submitted) -> u64 {
        self.seconds[job.index]
    }
}

/// The last values of each user. Jobs without a user are of one.
#[derive(Clone, PartialEq, Debug)]
struct Last<T> {
    count: usize,
    of: HashMap<Option<u32>, VecDeque<T>>,
}

impl<T> Last<T> {
    fn new(count: usize) -> Last<T> {
        Last { count, of: HashMap::new() }
    }

    fn push(&mut self, user: Option<u32>, value: T) {
        let last = self.of.entry(user).or_default();
        if last.len() == self.count {
            last.pop_front();
        }
        last.push_back(value);
    }

    fn get(&self, user: Option<u32>) -> Option<&VecDeque<T>> {
        self.of.get(&user).filter(|last| !last.is_empty())
    }
}

/// The mean of the user's last two jobs that ended; before any has, the request (Tsafrir, Etsion and Feitelson 2007).
#[derive(Clone, PartialEq, Debug)]
pub struct LastTwo {
    runs: Last<u64>,
}

impl Default for LastTwo {
    fn default() -> LastTwo {
        LastTwo { runs: Last::new(RUNS) }
    }
}

impl Predictor for LastTwo {
    fn predict(&mut self, job: &Submitted) -> u64 {
        let last = self.runs.get(job.user).filter(|last| last.len() == RUNS);
        last.map_or(job.request_s, |last| (last.iter().sum::<u64>() / RUNS as u64).min(job.request_s))
    }

    fn ended(&mut self, job: &Submitted, run_s: u64, _now_s: u64) {
        self.runs.push(job.user, run_s);
    }
}

/// The request times the largest share of it that any of the user's last five jobs has used, as the simulator Alea predicts.
#[derive(Clone, PartialEq, Debug)]
pub struct MaxRatio {
    ratios: Last<f64>,
}

impl Default for MaxRatio {
    fn default() -> MaxRatio {
        MaxRatio { ratios: Last::new(RATIOS) }
    }
}

impl Predictor for MaxRatio {
    fn predict(&mut self, job: &Submitted) -> u64 {
        let most = self.ratios.get(job.user).map(|last| last.iter().copied().fold(0.0, f64::max));
        most.map_or(job.request_s, |ratio| (job.request_s as f64 * ratio).round() as u64)
    }

    fn ended(&mut self, job: &Submitted, run_s: u64, _now_s: u64) {
        self.ratios.push(job.user, run_s as f64 / job.request_s.max(1) as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn job(user: u32, run_s: u64, request_s: u64) -> Job {
        Job { run_s, request_s, processors: 1, user: Some(user), ..Job::default() }
    }

    proptest! {
        #[test]
        fn a_refined_request_lies_between_run_time_and_request(run_s in 1u64..1 << 36, more in 0u64..1 << 36, low: f64, high: f64) {
            let job = job(1, run_s, run_s + more);
            let (low, high) = (low.abs().fract(), high.abs().fract());
            prop_assert_eq!((refined(&job, 0.0), refined(&job, 1.0)), (run_s, run_s + more));
            let (low, high) = (low.min(high), low.max(high));
            prop_assert!(run_s <= refined(&job, low) && refined(&job, low) <= refined(&job, high));
            prop_assert!(refined(&job, high) <= run_s + more);
        }
    }

    #[test]
    fn predictions_by_hand() {
        let mut two = LastTwo::default();
        let mut ratio = MaxRatio::default();
        // Run times, and what is predicted before each, with 100 s requested.
        let runs = [
            (10, 100, 100),
            (20, 100, 10),
            (50, 15, 20),
            (5, 35, 50),
            (5, 27, 50),
            (5, 5, 50),
            (5, 5, 50),
            (1, 5, 50),
            (1, 3, 5),
        ];
        for (at, (run_s, by_two, by_ratio)) in runs.into_iter().enumerate() {
            let asked = Submitted::of(at, &job(3, run_s, 100));
            assert_eq!((two.predict(&asked), ratio.predict(&asked)), (by_two, by_ratio), "run {at}");
            two.ended(&asked, run_s, 0);
            ratio.ended(&asked, run_s, 0);
        }
        let other = Submitted::of(0, &job(4, 1, 100));
        assert_eq!((two.predict(&other), ratio.predict(&other), Request.predict(&other)), (100, 100, 100));
    }
}
