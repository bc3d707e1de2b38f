//! How long a job will run: what the scheduler plans by.
//!
//! A [`Predictor`] is asked when a job is submitted and told when one has ended, so it can only know what a machine knows then.
//! [`Learning`] is any of `tidepool-predict`. [`Refined`] is the exception that the papers want (S0 equation 1): it is made from
//! the run times themselves.

use tidepool_joblog::Job;
use tidepool_predict::{Job as Asked, Prediction};

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
    /// Those that it asked for; where the log does not say, those that it was given.
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
            processors: job.requested_processors.unwrap_or(job.processors),
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

    /// Equally likely run times in ascending order, none above the request, of a job that was just predicted. `None` where
    /// nothing is known beside the prediction.
    fn chances(&self, job: &Submitted) -> Option<&[f32]> {
        let _ = job;
        None
    }

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

/// What of a prediction is planned by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    RunTime,
    /// The time within which so much of such jobs are over: a place among [`tidepool_predict::LEVELS`].
    Within(usize),
}

impl Value {
    /// In whole seconds.
    fn of(self, prediction: &Prediction) -> u64 {
        let seconds = match self {
            Value::RunTime => prediction.run_s,
            Value::Within(level) => prediction.within_s[level],
        };
        seconds.round() as u64
    }
}

/// A predictor that learns from the simulated machine, job by job.
pub struct Learning {
    predictor: Box<dyn tidepool_predict::Predictor + Send>,
    value: Value,
}

impl Learning {
    pub fn new(predictor: Box<dyn tidepool_predict::Predictor + Send>, value: Value) -> Learning {
        Learning { predictor, value }
    }
}

impl Predictor for Learning {
    fn predict(&mut self, job: &Submitted) -> u64 {
        let Submitted { submit_s, processors, user, group, executable, queue, partition, .. } = *job;
        // Where the log says no limit nobody knew the run time that stands for it.
        let (id, request_s) = (job.index as u64, job.asked.then_some(job.request_s));
        let asked = Asked { id, submit_s, request_s, processors, user, group, executable, queue, partition };
        let prediction = self.predictor.submitted(&asked);
        self.value.of(&prediction)
    }

    fn chances(&self, job: &Submitted) -> Option<&[f32]> {
        self.predictor.chances(job.index as u64)
    }

    fn started(&mut self, job: &Submitted, now_s: u64) {
        self.predictor.started(job.index as u64, now_s);
    }

    fn ended(&mut self, job: &Submitted, run_s: u64, _now_s: u64) {
        self.predictor.ended(job.index as u64, run_s as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidepool_predict::catalog::Entry;

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
        let learning = |name| Learning::new(Entry::named(name).unwrap().make(), Value::RunTime);
        let mut two = learning("last-two");
        let mut ratio = learning("alea");
        // Run times, and what is predicted before each, with 100 s requested.
        let runs = [
            (10, 100, 100),
            (20, 10, 10),
            (50, 15, 20),
            (5, 35, 50),
            (5, 28, 50),
            (5, 5, 50),
            (5, 5, 50),
            (1, 5, 50),
            (1, 3, 5),
        ];
        for (at, (run_s, by_two, by_ratio)) in runs.into_iter().enumerate() {
            let asked = Submitted::of(at, &Job { asked: true, ..job(3, run_s, 100) });
            assert_eq!((two.predict(&asked), ratio.predict(&asked)), (by_two, by_ratio), "run {at}");
            two.ended(&asked, run_s, 0);
            ratio.ended(&asked, run_s, 0);
        }
        let other = Submitted::of(99, &Job { asked: true, ..job(4, 1, 100) });
        assert_eq!((two.predict(&other), ratio.predict(&other), Request.predict(&other)), (100, 100, 100));
    }

    /// Nobody knows the run time that stands for a request where the log has none.
    #[test]
    fn a_request_that_nobody_made_is_not_known() {
        let mut learning = Learning::new(Entry::named("last").unwrap().make(), Value::RunTime);
        let asked = Submitted::of(0, &Job { asked: false, ..job(3, 7, 7) });
        assert_eq!(learning.predict(&asked), tidepool_predict::UNKNOWN_S as u64);
    }

    #[test]
    fn all_chances_of_the_default_are_told_until_the_end() {
        let mut learning = Learning::new(Entry::named("default").unwrap().make(), Value::Within(0));
        let asked = Submitted::of(0, &Job { asked: true, ..job(3, 7, 100) });
        let predicted = learning.predict(&asked);
        let points = learning.chances(&asked).unwrap();
        assert!(points.is_sorted() && points.iter().all(|point| (0.0..=100.0).contains(point)), "{points:?}");
        assert!(predicted <= 100);
        learning.started(&asked, 5);
        learning.ended(&asked, 7, 12);
        assert_eq!(learning.chances(&asked), None);
    }
}
