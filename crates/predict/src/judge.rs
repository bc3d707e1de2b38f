//! How good predictions were: the measures of the papers (S0 Figure 5, S2 Figure 5) and those of calibration.

use crate::simple::median;
use crate::{LEVELS, Prediction};
use std::collections::BTreeMap;

/// Users with fewer judged jobs are not looked at one by one.
pub const JOBS_OF_USER_MIN: usize = 20;
pub const TENTHS: usize = 10;

/// A job whose prediction is judged.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Judged {
    pub user: Option<u32>,
    pub run_s: f64,
    pub prediction: Prediction,
}

/// Times are seconds.
#[derive(Clone, PartialEq, Debug)]
pub struct Measures {
    pub jobs: usize,
    /// The median absolute error of each user with enough jobs, ascending.
    pub of_users_s: Vec<f64>,
    /// Share of jobs that ran for longer than predicted.
    pub under: f64,
    /// Mean absolute error over all jobs.
    pub mean_s: f64,
    /// Mean pinball loss at a half and at [`LEVELS`].
    pub pinball_s: [f64; 3],
    /// Share of jobs that were over within [`Prediction::within_s`].
    pub covered: [f64; 2],
    /// The same for each tenth of the jobs, in their order.
    pub covered_tenths: [[f64; TENTHS]; 2],
}

impl Measures {
    /// Of jobs in the order of their submission.
    pub fn of(judged: &[Judged]) -> Measures {
        let jobs = judged.len();
        let mean =
            |value: &dyn Fn(&Judged) -> f64| judged.iter().map(value).sum::<f64>() / jobs.max(1) as f64;
        let covers =
            |level: usize| move |one: &Judged| f64::from(one.run_s <= one.prediction.within_s[level]);
        let tenths = |level: usize| {
            std::array::from_fn(|tenth| {
                let part = &judged[tenth * jobs / TENTHS..(tenth + 1) * jobs / TENTHS];
                part.iter().map(covers(level)).sum::<f64>() / part.len().max(1) as f64
            })
        };
        Measures {
            jobs,
            of_users_s: of_users(judged),
            under: mean(&|one| f64::from(one.prediction.run_s < one.run_s)),
            mean_s: mean(&|one| (one.prediction.run_s - one.run_s).abs()),
            pinball_s: [
                mean(&|one| pinball(0.5, one.prediction.run_s, one.run_s)),
                mean(&|one| pinball(LEVELS[0], one.prediction.within_s[0], one.run_s)),
                mean(&|one| pinball(LEVELS[1], one.prediction.within_s[1], one.run_s)),
            ],
            covered: [mean(&covers(0)), mean(&covers(1))],
            covered_tenths: [tenths(0), tenths(1)],
        }
    }

    /// Median absolute error of the user at a quantile, such as 0.5 and 0.75; none without users.
    pub fn at_user_s(&self, quantile: f64) -> Option<f64> {
        let place = quantile.clamp(0.0, 1.0) * self.of_users_s.len().checked_sub(1)? as f64;
        let (low, part) = (place.floor() as usize, place.fract());
        let high = self.of_users_s[(low + 1).min(self.of_users_s.len() - 1)];
        Some(self.of_users_s[low] * (1.0 - part) + high * part)
    }
}

/// The loss that a quantile minimises.
fn pinball(level: f64, predicted: f64, real: f64) -> f64 {
    let short = real - predicted;
    if short > 0.0 { level * short } else { (level - 1.0) * short }
}

fn of_users(judged: &[Judged]) -> Vec<f64> {
    let mut errors: BTreeMap<Option<u32>, Vec<f64>> = BTreeMap::new();
    for one in judged {
        errors.entry(one.user).or_default().push((one.prediction.run_s - one.run_s).abs());
    }
    let enough = errors.values_mut().filter(|errors| errors.len() >= JOBS_OF_USER_MIN);
    let mut all: Vec<f64> = enough.filter_map(|errors| median(errors)).collect();
    all.sort_unstable_by(f64::total_cmp);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(user: u32, run_s: f64, predicted: f64, within_s: [f64; 2]) -> Judged {
        Judged { user: Some(user), run_s, prediction: Prediction { run_s: predicted, within_s } }
    }

    #[test]
    fn measures_by_hand() {
        // User 1: errors 0 to 19, median 9.5. User 2: always 4. User 3 has too few jobs.
        let mut all: Vec<Judged> =
            (0..20).map(|n| judged(1, 100.0, 100.0 + f64::from(n), [100.0, 99.0])).collect();
        all.extend((0..20).map(|_| judged(2, 10.0, 6.0, [9.0, 10.0])));
        all.push(judged(3, 1.0, 1001.0, [1.0, 1.0]));
        let got = Measures::of(&all);
        assert_eq!(got.of_users_s, [4.0, 9.5]);
        assert_eq!((got.at_user_s(0.5), got.at_user_s(0.75)), (Some(6.75), Some(8.125)));
        assert_eq!(got.jobs, 41);
        assert!((got.under - 20.0 / 41.0).abs() < 1e-12);
        assert!((got.mean_s - (190.0 + 80.0 + 1000.0) / 41.0).abs() < 1e-9);
        assert!((got.pinball_s[0] - got.mean_s / 2.0).abs() < 1e-9);
        assert!((got.pinball_s[1] - 20.0 * 0.9 / 41.0).abs() < 1e-9);
        assert!((got.pinball_s[2] - 20.0 * 0.95 / 41.0).abs() < 1e-9);
        assert!((got.covered[0] - 21.0 / 41.0).abs() < 1e-12 && (got.covered[1] - 21.0 / 41.0).abs() < 1e-12);
        assert_eq!(got.covered_tenths[0][0], 1.0);
        assert_eq!(got.covered_tenths[1][0], 0.0);
        assert_eq!(Measures::of(&[]).at_user_s(0.5), None);
    }
}
