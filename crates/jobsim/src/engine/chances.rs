//! What is known of a run time, as a distribution: what [`super::Backfill::Expected`], [`super::Precedence::Expected`] and
//! [`super::Correction::Expected`] go by.

use crate::measure::SLOWDOWN_BOUND_S;

/// Equally likely run times, in ascending order. Seconds.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Chances {
    points: Box<[f32]>,
    /// Of a second of waiting to the job's bounded slowdown, as expected.
    per_second: f64,
    mean_s: f64,
    /// How many are over within the estimate.
    within: usize,
}

impl Chances {
    /// Of a job that is planned for so many seconds; that alone where nothing else is known.
    pub fn new(points: Option<&[f32]>, estimate_s: u64) -> Chances {
        let alone = [estimate_s as f32];
        let points = points.filter(|points| !points.is_empty()).unwrap_or(&alone);
        let (mut per_second, mut sum) = (0.0, 0.0);
        for point in points {
            per_second += 1.0 / f64::from(*point).max(SLOWDOWN_BOUND_S as f64);
            sum += f64::from(*point);
        }
        let count = points.len() as f64;
        let within = points.partition_point(|point| f64::from(*point) <= estimate_s as f64);
        Chances { points: points.into(), per_second: per_second / count, mean_s: sum / count, within }
    }

    /// By how much it is expected to run for longer than that.
    fn beyond_s(&self, seconds: u64) -> f64 {
        let from = self.points.partition_point(|point| f64::from(*point) <= seconds as f64);
        let sum: f64 = self.points[from..].iter().map(|point| f64::from(*point) - seconds as f64).sum();
        sum / self.points.len() as f64
    }

    /// How long it will have run, for a job that has run for so long: as likely to be over by then as it was within its
    /// estimate. None where none of the run times is longer.
    pub fn outlived(&self, ran_s: u64) -> Option<u64> {
        let longer = &self.points[self.points.partition_point(|point| f64::from(*point) <= ran_s as f64)..];
        let at = longer.len() * self.within / self.points.len();
        longer.get(at).or(longer.last()).map(|point| point.ceil() as u64)
    }
}

/// How fast a second of waiting gets dearer: the power of the wait in patiences.
const IMPATIENCE: i32 = 4;

/// A job that waits.
pub(super) struct Waiting<'a> {
    chances: &'a Chances,
    /// What a second more costs: of bounded slowdown the mean of 1 / max(run, 10 s), twice as much of a job that has waited for
    /// its patience, 17 times as much after two.
    per_second: f64,
}

impl Chances {
    /// Of a job that has waited for so long. Seconds.
    pub fn after(&self, waited_s: u64, patience_s: u64) -> Waiting<'_> {
        let patiences = waited_s as f64 / patience_s.max(1) as f64;
        Waiting { chances: self, per_second: self.per_second * (1.0 + patiences.powi(IMPATIENCE)) }
    }
}

impl Waiting<'_> {
    /// Smith's rule (1956): of jobs that take turns, the sum of what their waits cost is least when those come first whose second costs
    /// most for as long as they take.
    pub fn turn(&self) -> f64 {
        self.per_second / self.chances.mean_s.max(1.0)
    }

    /// Whether it should start now though the first of the queue, planned in `window_s` from now, may have to wait for it.
    ///
    /// When it does not start now, it waits until the first has started and ended, or for longer; when it does, the first waits for
    /// as long as it runs beyond the window.
    pub fn is_worth_a_delay(&self, window_s: u64, first: &Waiting<'_>) -> bool {
        let spared = (window_s as f64 + first.chances.mean_s) * self.per_second;
        spared >= self.chances.beyond_s(window_s) * first.per_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_S: u64 = 86_400;

    #[test]
    fn by_hand() {
        let job = Chances::new(Some(&[5.0, 10.0, 100.0, 1000.0]), 100);
        // (0.1 + 0.1 + 0.01 + 0.001) / 4.
        assert!((job.per_second - 0.05275).abs() < 1e-9 && job.mean_s == 278.75);
        assert_eq!([0, 5, 60, 1000].map(|window| job.beyond_s(window)), [278.75, 273.75, 245.0, 0.0]);
        // A first one that runs for an hour: 70 s more cost it less than what three quarters of a chance to be over at once spare.
        let first = Chances::new(None, 3600);
        let worth = |one: &Chances, window, other: &Chances, waited_s| {
            one.after(0, DAY_S).is_worth_a_delay(window, &other.after(waited_s, DAY_S))
        };
        assert!(worth(&job, 60, &first, 0) && worth(&job, 0, &first, 0));
        // The other way round 3,600 s more of the short one's waiting are not worth it, but for a window that is nearly as long.
        assert!(!worth(&first, 60, &job, 0) && worth(&first, 3590, &job, 0));
        // 3,670 s x 0.05275 spared are worth 245 s x 1/3600 of the first up to 2,844 times: until it has waited for 7.3 days.
        assert!(worth(&job, 60, &first, 7 * DAY_S) && !worth(&job, 60, &first, 8 * DAY_S));
        // Short ones first, and of alike ones the one that waits for longer: 1 day makes it twice, 2 days 17 times as urgent.
        let turn = |of: &Chances, waited_s| of.after(waited_s, DAY_S).turn();
        assert!(turn(&job, 0) > turn(&first, 0) && turn(&first, DAY_S) == 2.0 / 3600.0 / 3600.0);
        assert!((turn(&first, 2 * DAY_S) / turn(&first, 0) - 17.0).abs() < 1e-9);
        // Three in four were within the estimate: so is the first of one that is left.
        assert_eq!(
            [5, 50, 100, 999].map(|ran| job.outlived(ran)),
            [Some(1000), Some(1000), Some(1000), Some(1000)]
        );
        assert_eq!([0, 1000].map(|ran| job.outlived(ran)), [Some(1000), None]);
        let half = Chances::new(Some(&[5.0, 10.0, 100.0, 1000.0]), 10);
        assert_eq!(
            [0, 5, 10, 100].map(|ran| half.outlived(ran)),
            [Some(100), Some(100), Some(1000), Some(1000)]
        );
    }
}
