//! Straight lines by normal equations, one for each user (INVENTORY B7: the papers' "default linear regression").

use crate::bounded::Bounded;
use crate::conformal::user;
use crate::{Job, Point, USERS_MAX};

/// Weight of each coefficient's square beside the runs, in parts of its feature's: keeps equations solvable.
const RIDGE: f64 = 1e-6;
/// Runs of a user before the line counts.
const RUNS_MIN: f64 = 5.0;
/// The sums are halved when so many runs are in them: what is long past counts less, and no sum outgrows its digits.
const RUNS_MAX: f64 = 4096.0;

/// Least squares over `N` features, of which the first should be 1.
#[derive(Clone, Debug)]
pub struct Line<const N: usize> {
    squares: [[f64; N]; N],
    products: [f64; N],
    count: f64,
    sum: f64,
}

impl<const N: usize> Default for Line<N> {
    fn default() -> Line<N> {
        Line { squares: [[0.0; N]; N], products: [0.0; N], count: 0.0, sum: 0.0 }
    }
}

impl<const N: usize> Line<N> {
    pub fn learn(&mut self, features: [f64; N], value: f64) {
        if self.count >= RUNS_MAX {
            self.squares.iter_mut().flatten().for_each(|sum| *sum /= 2.0);
            self.products.iter_mut().for_each(|sum| *sum /= 2.0);
            (self.count, self.sum) = (self.count / 2.0, self.sum / 2.0);
        }
        for (row, feature) in features.iter().enumerate() {
            features.iter().zip(&mut self.squares[row]).for_each(|(other, sum)| *sum += feature * other);
            self.products[row] += feature * value;
        }
        self.count += 1.0;
        self.sum += value;
    }

    pub fn count(&self) -> f64 {
        self.count
    }

    /// Of all values. None of none.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }

    /// None before there is a run, and where the equations have no solution.
    pub fn at(&self, features: [f64; N]) -> Option<f64> {
        if self.count == 0.0 {
            return None;
        }
        let coefficients = self.solved()?;
        let value: f64 = coefficients.iter().zip(features).map(|(weight, feature)| weight * feature).sum();
        value.is_finite().then_some(value)
    }

    /// Gauss's elimination with pivots.
    fn solved(&self) -> Option<[f64; N]> {
        let (mut left, mut right) = (self.squares, self.products);
        for (at, row) in left.iter_mut().enumerate() {
            row[at] += RIDGE * (row[at] + self.count);
        }
        for at in 0..N {
            let pivot = (at..N).max_by(|a, b| left[*a][at].abs().total_cmp(&left[*b][at].abs()))?;
            left.swap(at, pivot);
            right.swap(at, pivot);
            if left[at][at] == 0.0 {
                return None;
            }
            let (upper, lower) = left.split_at_mut(at + 1);
            for (row, below) in lower.iter_mut().enumerate() {
                let factor = below[at] / upper[at][at];
                below.iter_mut().zip(upper[at]).for_each(|(value, above)| *value -= factor * above);
                right[at + 1 + row] -= factor * right[at];
            }
        }
        for at in (0..N).rev() {
            let known: f64 = (at + 1..N).map(|other| left[at][other] * right[other]).sum();
            right[at] = (right[at] - known) / left[at][at];
        }
        Some(right)
    }
}

/// Run time over request, processors, and time of the day, for each user.
#[derive(Clone, Debug)]
pub struct PerUser {
    users: Bounded<u64, Line<5>>,
}

impl Default for PerUser {
    fn default() -> PerUser {
        PerUser { users: Bounded::new(USERS_MAX) }
    }
}

fn features(job: &Job) -> [f64; 5] {
    const DAY_S: u64 = 86_400;
    let hour = (job.submit_s % DAY_S) as f64 / 3600.0;
    let weekday = (job.submit_s / DAY_S % 7) as f64;
    // Hours, so that the features are of one size.
    [1.0, job.unknown_s() / 3600.0, f64::from(job.processors), hour, weekday]
}

impl Point for PerUser {
    /// A line goes on beyond what was seen: no run is shorter than nothing or longer than its limit.
    fn predict(&mut self, job: &Job) -> f64 {
        let line = self.users.get_mut(user(job)).filter(|line| line.count() >= RUNS_MIN);
        let most = job.request_s.map_or(f64::MAX, |request| request as f64);
        let value = line.and_then(|line| line.at(features(job)));
        value.map_or(job.unknown_s(), |value| value.clamp(0.0, most))
    }

    fn learn(&mut self, job: &Job, _: f64, run_s: f64) {
        self.users.entry(user(job), Line::default).learn(features(job), run_s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What is on a plane is found again, away from the points, too.
        #[test]
        fn a_plane_is_found(a in -50.0..50.0f64, b in -5.0..5.0f64, c in -5.0..5.0f64) {
            let mut line: Line<3> = Line::default();
            for n in 0..60u32 {
                let (x, y) = (f64::from(n % 7), f64::from(n % 11));
                line.learn([1.0, x, y], a + b * x + c * y);
            }
            let got = line.at([1.0, 3.5, 12.0]).unwrap();
            prop_assert!((got - (a + b * 3.5 + c * 12.0)).abs() < 0.01, "{got}");
        }
    }

    #[test]
    fn one_run_and_the_same_runs_are_their_value() {
        let mut line: Line<3> = Line::default();
        assert_eq!(line.at([1.0, 2.0, 3.0]), None);
        for _ in 0..5000 {
            line.learn([1.0, 2.0, 3.0], 70.0);
            let got = line.at([1.0, 2.0, 3.0]).unwrap();
            assert!((got - 70.0).abs() < 0.01, "{got}");
        }
    }
}
