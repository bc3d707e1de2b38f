//! Quantiles that hold: what share of jobs is over within a time is followed, and the next time set by it.
//!
//! A quantile of past errors covers too little where jobs change, and logs do nothing else. So the level at which a
//! distribution is read moves after each job (adaptive conformal inference; Gibbs and Candes 2021): up after one that took
//! longer, down a little after one that did not, so that in the long run the wanted share is covered whatever the distributions
//! are worth. The level (in logits) is a sum of three, which all move: one for all jobs, one for the user, and one for how
//! many jobs the user has submitted since anything was heard of its last ones. The third knows that of thousands of jobs submitted
//! at once, none can have taught about the others.

use crate::bounded::Bounded;
use crate::{Job, LEVELS, PENDING_MAX, Point, Prediction, Predictor, USERS_MAX};
use std::collections::VecDeque;

/// How far a job moves each of the three. That of all is the slowest: it is what holds of a log for good.
const ALL_STEP: f64 = 0.005;
const USER_STEP: f64 = 0.05;
const UNHEARD_STEP: f64 = 0.1;
/// What part of its own a user's level forgets at each job: it is kept for some thousand of the user's jobs, since what a burst of
/// them has shown is true of the next one too.
const USER_FORGETS: f64 = 0.0002;
/// Bounds in logits.
const ALL_RANGE: (f64, f64) = (-2.0, 9.0);
const USER_RANGE: f64 = 4.0;
const UNHEARD_RANGE: (f64, f64) = (-4.0, 6.0);
/// Powers of two of unheard jobs that are told apart.
const UNHEARD: usize = 16;

#[derive(Clone, Copy, Debug, Default)]
struct User {
    levels: [f64; 2],
    /// Jobs submitted since one of the user's was over, or not over in time.
    unheard: u64,
}

/// Where distributions are read so that [`LEVELS`] of the jobs are over by then.
#[derive(Clone, Debug)]
pub struct Levels {
    all: [f64; 2],
    unheard: [[f64; 2]; UNHEARD],
    users: Bounded<u64, User>,
}

/// Where a job's distribution is read.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Reading {
    /// From 0 to 1.
    pub shares: [f64; 2],
    user: u64,
    unheard: usize,
}

impl Default for Levels {
    fn default() -> Levels {
        let all = LEVELS.map(|level| (level / (1.0 - level)).ln());
        Levels { all, unheard: [[0.0; 2]; UNHEARD], users: Bounded::new(USERS_MAX) }
    }
}

impl Levels {
    /// For a job of the user that is submitted now.
    pub fn reading(&mut self, user: u64) -> Reading {
        let own = self.users.entry(user, User::default);
        let unheard = ((own.unheard + 1).ilog2() as usize).min(UNHEARD - 1);
        own.unheard += 1;
        let logits = |level: usize| self.all[level] + own.levels[level] + self.unheard[unheard][level];
        let shares = std::array::from_fn(|level| 1.0 / (1.0 + (-logits(level)).exp()));
        Reading { shares, user, unheard }
    }

    /// Of a job was said that it would be over within a time: it was not (`missed`), or it was.
    pub fn learn(&mut self, reading: &Reading, level: usize, missed: bool) {
        let share = 1.0 - LEVELS[level];
        let step = f64::from(missed) - share;
        let all = &mut self.all[level];
        *all = (*all + ALL_STEP * step / share).clamp(ALL_RANGE.0, ALL_RANGE.1);
        let unheard = &mut self.unheard[reading.unheard][level];
        *unheard = (*unheard + UNHEARD_STEP * step).clamp(UNHEARD_RANGE.0, UNHEARD_RANGE.1);
        let user = self.users.entry(reading.user, User::default);
        user.unheard = 0;
        let own = &mut user.levels[level];
        *own = (*own * (1.0 - USER_FORGETS) + USER_STEP * step).clamp(-USER_RANGE, USER_RANGE);
    }
}

/// Errors that are remembered of all jobs and of a user's.
const ALL_ERRORS: usize = 64;
const USER_ERRORS: usize = 32;
/// Quantiles end here: in some logs jobs run for several times their requests, and without an end one odd job's ratio
/// becomes centuries for a long one.
const REQUESTS: f64 = 10.0;
/// Seconds that are added before a ratio is taken: keeps those of short jobs small.
const PAD_S: f64 = 10.0;

/// No quantile is beyond [`REQUESTS`] of them, or below a lower one: their levels move apart from each other.
pub fn bounded(job: &Job, within_s: [f64; 2]) -> [f64; 2] {
    let most = job.request_s.map_or(f64::MAX, |request| REQUESTS * request as f64);
    let [low, high] = within_s.map(|within| within.min(most));
    [low, low.max(high)]
}

/// Adds quantiles to a predictor of run times, from its errors: logarithms of real to predicted times.
#[derive(Clone, Debug)]
pub struct Calibrated<P> {
    point: P,
    levels: Levels,
    pending: Bounded<u64, (Job, Prediction, Reading)>,
    all: VecDeque<f64>,
    users: Bounded<u64, VecDeque<f64>>,
}

impl<P: Point> Calibrated<P> {
    pub fn new(point: P) -> Calibrated<P> {
        Calibrated {
            point,
            levels: Levels::default(),
            pending: Bounded::new(PENDING_MAX),
            all: VecDeque::new(),
            users: Bounded::new(USERS_MAX),
        }
    }

    fn within(&mut self, reading: &Reading, run_s: f64) -> [f64; 2] {
        let mut errors: Vec<f64> = self.all.iter().copied().collect();
        errors.extend(self.users.get_mut(reading.user).into_iter().flat_map(|own| own.iter().copied()));
        errors.sort_unstable_by(f64::total_cmp);
        let padded = run_s + PAD_S;
        reading.shares.map(|level| {
            let place = (level * (errors.len() + 1) as f64).ceil() as usize;
            match errors.get(place.max(1) - 1).or(errors.last()) {
                // Beyond all errors: twice the longest.
                Some(error) if place > errors.len() => padded * error.exp().max(1.0) * 2.0,
                Some(error) => (padded * error.exp() - PAD_S).max(0.0),
                None => run_s,
            }
        })
    }
}

pub(crate) fn user(job: &Job) -> u64 {
    job.user.map_or(u64::MAX, u64::from)
}

impl<P: Point> Predictor for Calibrated<P> {
    fn submitted(&mut self, job: &Job) -> Prediction {
        // At its limit a job is ended: no prediction is beyond it.
        let most = job.request_s.map_or(f64::MAX, |request| request as f64);
        let run_s = self.point.predict(job).min(most);
        let reading = self.levels.reading(user(job));
        let prediction = Prediction { run_s, within_s: bounded(job, self.within(&reading, run_s)) };
        self.pending.insert(job.id, (*job, prediction, reading));
        prediction
    }

    fn started(&mut self, _: u64, _: u64) {}

    fn cancelled(&mut self, id: u64) {
        self.pending.remove(id);
    }

    fn ended(&mut self, id: u64, run_s: f64) {
        let Some((job, prediction, reading)) = self.pending.remove(id) else { return };
        self.point.learn(&job, prediction.run_s, run_s);
        for (level, within_s) in prediction.within_s.into_iter().enumerate() {
            self.levels.learn(&reading, level, run_s > within_s);
        }
        let error = ((run_s + PAD_S) / (prediction.run_s + PAD_S)).ln();
        for (errors, count) in
            [(&mut self.all, ALL_ERRORS), (self.users.entry(user(&job), VecDeque::new), USER_ERRORS)]
        {
            errors.push_front(error);
            errors.truncate(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simple::Request;

    /// Of runs whose scatter grows a hundredfold half-way, no tenth is covered much less than wanted, and all together as much.
    #[test]
    fn quantiles_hold_whatever_the_errors_do() {
        const JOBS: u64 = 4000;
        let mut calibrated = Calibrated::new(Request);
        let mut covered = [[0.0; 2]; 10];
        for id in 0..JOBS {
            let user = Some((id % 3) as u32);
            let job = Job { id, user, request_s: Some(100_000), ..Job::default() };
            let within_s = calibrated.submitted(&job).within_s;
            assert!(within_s[0] <= within_s[1], "{within_s:?}");
            // Evenly spread without order: multiples of the golden ratio.
            let share = (id as f64 * 0.618_033_988_749_895).fract();
            let scatter = if id < JOBS / 2 { 100.0 } else { 10_000.0 };
            let run_s = 1000.0 + scatter * share;
            for (count, within) in covered[(id * 10 / JOBS) as usize].iter_mut().zip(within_s) {
                *count += f64::from(run_s <= within);
            }
            calibrated.ended(id, run_s);
        }
        for (level, wanted) in LEVELS.into_iter().enumerate() {
            let shares = covered.map(|tenth| tenth[level] * 10.0 / JOBS as f64);
            let all = shares.iter().sum::<f64>() / 10.0;
            assert!((all - wanted).abs() < 0.02, "{all}");
            assert!(shares.iter().all(|share| (share - wanted).abs() < 0.05), "{shares:?}");
        }
    }

    #[test]
    fn a_job_that_is_cancelled_teaches_nothing() {
        let mut calibrated = Calibrated::new(Request);
        let job = |id| Job { id, request_s: Some(100), ..Job::default() };
        let first = calibrated.submitted(&job(1));
        calibrated.cancelled(1);
        calibrated.ended(1, 7.0);
        assert_eq!(calibrated.submitted(&job(2)), first);
        calibrated.ended(2, 7.0);
        assert_ne!(calibrated.submitted(&job(3)), first);
    }
}
