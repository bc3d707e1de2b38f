//! What is thought of a job at a moment, later than its submission: the whole distribution, by what has been learned since, and of
//! a running job only what is longer than it has run already.

use super::sample::{Mixed, POINTS, Sample, least};
use super::{LEVEL_WITHIN, Mixture, loss};
use crate::{Job, LEVELS};

/// Beyond the last sample there is so much of it again, at the most.
const BEYOND: f64 = 0.5;
/// Shares closer to 0 and 1 are taken as if they were here.
const SHARE_MIN: f64 = 1e-6;
/// A job that runs for longer than this share of all that is known has outlived it.
const OUTLIVED: f64 = 1.0 - 2.0 * SHARE_MIN;
/// Halvings of the interval in which a share is looked for.
const HALVINGS: u32 = 40;

/// A distribution of run times.
#[derive(Clone, PartialEq, Debug)]
pub struct Outlook {
    /// Run times in ascending order, with the share of jobs that are over within them.
    steps: Vec<(f32, f32)>,
    /// Where the distribution is read so that [`LEVELS`] of jobs are over by then, in logits, less those of the levels.
    shifts: [f64; 2],
    /// The least share that is possible: it runs already.
    share_min: f64,
    age_s: f64,
    most_s: f64,
}

impl Mixture {
    /// Of a job that was submitted and is not over; none of another. One that runs will run for longer than it has by `now_s`.
    pub fn outlook(&mut self, id: u64, now_s: u64) -> Option<Outlook> {
        let pending = self.pending.peek(id)?.clone();
        let age_s = pending.start_s.map_or(0, |start| now_s.saturating_sub(start)) as f64;
        // Others that run have done so until now, and not until this one was submitted.
        let job = Job { submit_s: now_s.max(pending.job.submit_s), ..pending.job };
        let opinion = self.opinion(&job, &pending.keys);
        let mut all: Vec<Sample> = Vec::with_capacity(opinion.samples.len());
        // Those that weigh little count too: for a job that runs for long they may be all that is left.
        for part in &opinion.parts {
            let samples = &opinion.samples[part.begins as usize..part.ends as usize];
            all.extend(samples.iter().map(|one| Sample { weight: one.weight * part.weight, ..*one }));
        }
        let steps = Mixed::new(&mut all).steps();
        let logit = |share: f64| (share / (1.0 - share)).ln();
        let shares = pending.reading.shares;
        let shifts = std::array::from_fn(|level| {
            logit(shares[level].clamp(SHARE_MIN, 1.0 - SHARE_MIN)) - logit(LEVELS[level])
        });
        let most_s = job.request_s.map_or(f64::MAX, |request| request as f64);
        let mut outlook = Outlook { steps, shifts, share_min: 0.0, age_s, most_s };
        outlook.share_min = outlook.share_within(age_s);
        Some(outlook)
    }
}

impl Outlook {
    /// The run time that such a share of jobs like this is over within, from 0 to 1: seconds from its start, beyond its age, and not beyond
    /// its request. From the middle of the distribution up it is read where 90 and 95 % of jobs were over.
    pub fn at(&self, share: f64) -> f64 {
        let share = share.clamp(0.0, 1.0);
        let most_s = self.most_s.max(self.age_s);
        if self.share_min >= OUTLIVED {
            // Nothing is known of those that run for so long: all until the limit is as likely.
            let most_s = most_s.min(self.age_s * (1.0 + BEYOND));
            return self.age_s + share * (most_s - self.age_s);
        }
        let share = self.share_min + share * (1.0 - self.share_min);
        self.plain(self.read_at(share)).clamp(self.age_s, most_s)
    }

    /// The run time with the least expected loss, as the mixture predicts.
    pub fn likely_s(&self) -> f64 {
        let points: [f32; POINTS] =
            std::array::from_fn(|point| self.at((point as f64 + 0.5) / POINTS as f64) as f32);
        f64::from(least(&points, loss))
    }

    /// Where the distribution is read for a share. Never falls as that grows.
    fn read_at(&self, share: f64) -> f64 {
        let share = share.clamp(SHARE_MIN, 1.0 - SHARE_MIN);
        let logit = (share / (1.0 - share)).ln();
        let [first, second] = LEVELS.map(|level| (level / (1.0 - level)).ln());
        let low = (first + self.shifts[0]).max(0.0);
        let high = (second + self.shifts[1]).max(low);
        // Straight lines from the middle, which is not moved, to both levels; beyond them as far off as the second.
        let read = match logit {
            below if below <= 0.0 => below,
            below if below <= first => low * below / first,
            below if below <= second => low + (high - low) * (below - first) / (second - first),
            beyond => high + beyond - second,
        };
        1.0 / (1.0 + (-read).exp())
    }

    /// The run time at a share of the plain distribution.
    fn plain(&self, share: f64) -> f64 {
        let at = self.steps.partition_point(|(_, within)| f64::from(*within) < share);
        let seconds =
            self.steps.get(at).or(self.steps.last()).map_or(0.0, |(seconds, _)| f64::from(*seconds));
        let longest = self.steps.last().map_or(0.0, |(seconds, _)| f64::from(*seconds));
        let beyond = ((share - LEVEL_WITHIN) / (1.0 - LEVEL_WITHIN)).max(0.0);
        if beyond > 0.0 { longest * (1.0 + BEYOND * beyond * beyond) } else { seconds }
    }

    /// The largest share at which jobs are over within so many seconds.
    fn share_within(&self, seconds: f64) -> f64 {
        if seconds <= 0.0 {
            return 0.0;
        }
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..HALVINGS {
            let middle = (low + high) / 2.0;
            if self.plain(self.read_at(middle)) <= seconds { low = middle } else { high = middle }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Predictor;
    use proptest::prelude::*;

    fn job(id: u64, submit_s: u64) -> Job {
        Job { id, submit_s, request_s: Some(10_000), processors: 4, user: Some(1), ..Job::default() }
    }

    /// Half of a user's jobs take 100 s, the others 5000 s. One that has run for 200 s is of the others.
    #[test]
    fn a_job_that_runs_for_longer_than_some_is_like_the_others() {
        let mut mixture = Mixture::default();
        for id in 0..60 {
            let now = id * 6000;
            mixture.submitted(&job(id, now));
            mixture.started(id, now);
            mixture.ended(id, if id % 2 == 0 { 100.0 } else { 5000.0 });
        }
        let now = 60 * 6000;
        mixture.submitted(&job(60, now));
        let waiting = mixture.outlook(60, now).unwrap();
        assert!(waiting.at(0.2) <= 101.0 && waiting.at(0.8) >= 4900.0, "{waiting:?}");
        mixture.started(60, now + 50);
        let running = mixture.outlook(60, now + 250).unwrap();
        assert!((4900.0..5100.0).contains(&running.at(0.5)) && running.at(0.02) >= 200.0, "{running:?}");
        assert_eq!(running.likely_s(), running.at(0.5));
        // One that has outlived all others has its request ahead.
        let old = mixture.outlook(60, now + 50 + 9000).unwrap();
        assert!(old.at(0.5) >= 9000.0 && old.at(1.0) <= 10_000.0);
        assert!(mixture.outlook(61, now).is_none());
        mixture.ended(60, 9100.0);
        assert!(mixture.outlook(60, now).is_none());
    }

    proptest! {
        /// Whatever it has learned: quantiles never fall, and are between its age and its limit.
        #[test]
        fn quantiles_never_fall(
            runs in prop::collection::vec((0u32..3, 1.0f64..20_000.0), 0..60),
            age in 0u64..20_000,
            shares in prop::collection::vec(0.0f64..=1.0, 2..20),
        ) {
            let mut mixture = Mixture::default();
            for (id, (user, run_s)) in (0u64..).zip(&runs) {
                let now = id * 500;
                mixture.submitted(&Job { user: Some(*user), ..job(id, now) });
                mixture.started(id, now);
                mixture.ended(id, *run_s);
            }
            let (id, now) = (runs.len() as u64, 40_000);
            mixture.submitted(&job(id, now));
            mixture.started(id, now);
            let outlook = mixture.outlook(id, now + age).unwrap();
            let mut shares = shares;
            shares.sort_by(f64::total_cmp);
            let values: Vec<f64> = shares.iter().map(|share| outlook.at(*share)).collect();
            prop_assert!(values.is_sorted(), "{values:?}");
            let most = 10_000.0f64.max(age as f64);
            let likely = outlook.likely_s();
            prop_assert!(values.iter().chain([&likely]).all(|value| *value >= age as f64 * 0.999_999 && *value <= most));
        }
    }
}
