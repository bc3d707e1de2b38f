//! How near a model comes to what was measured.

use super::spread::quantile;
use super::{Class, Disk, DiskModel};
use crate::Direction;
use crate::trace::measured::Measured;
use tidepool_sim::{Stream, Time};

/// A measured request beside the simulated one, us.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pair {
    pub measured_us: f64,
    pub simulated_us: f64,
    pub class: Class,
}

/// Serves the requests of a trace. The disk is told direction, address, length and when each one comes: the trace's gap
/// after the end of the *simulated* request before. It sees no measured time.
pub fn replay(model: &DiskModel, trace: &[Measured], seed: u64) -> Vec<Pair> {
    let (mut disk, mut random, mut now) = (Disk::default(), Stream::new(seed, 0), Time::ZERO);
    let mut serve = |measured: &Measured| {
        let served = disk.serve(model, &measured.request, now, &mut random);
        now = now.plus(served.time).plus(crate::microseconds(measured.gap_us)).min(Time::MAX);
        Pair {
            measured_us: measured.service_us,
            simulated_us: served.time.0 as f64 / 1e3,
            class: served.class,
        }
    };
    trace.iter().map(&mut serve).collect()
}

/// Figures of a comparison.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Score {
    pub requests: usize,
    pub measured_mean_us: f64,
    pub simulated_mean_us: f64,
    /// Root mean square of the horizontal distance of the two distributions, as a share of the measured mean: the
    /// demerit figure of Ruemmler and Wilkes (An introduction to disk drive modeling, 1994).
    pub demerit: f64,
    /// Mean of the distance of each request's two times, as a share of the measured mean.
    pub per_request: f64,
    /// Pearson's, of each request's two times; 0 where one of them does not vary.
    pub correlation: f64,
}

impl Score {
    /// The simulated mean's deviation, as a share of the measured mean.
    pub fn mean_error(&self) -> f64 {
        if self.requests == 0 { 0.0 } else { self.simulated_mean_us / self.measured_mean_us - 1.0 }
    }

    pub fn of(pairs: impl IntoIterator<Item = (f64, f64)>) -> Score {
        let (measured, simulated): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
        let count = measured.len() as f64;
        if measured.is_empty() {
            return Score::default();
        }
        let mean = |values: &[f64]| values.iter().sum::<f64>() / count;
        let of_both = |f: &dyn Fn(f64, f64) -> f64, a: &[f64], b: &[f64]| {
            a.iter().zip(b).map(|(a, b)| f(*a, *b)).sum::<f64>() / count
        };
        let (measured_mean, simulated_mean) = (mean(&measured), mean(&simulated));
        // A trace of zeros has no relative error: as if its mean were a nanosecond.
        let unit = measured_mean.max(1e-3);
        let covariance = of_both(&|a, b| (a - measured_mean) * (b - simulated_mean), &measured, &simulated);
        let variance = |values: &[f64], mean: f64| of_both(&|a, b| (a - mean) * (b - mean), values, values);
        let spreads = (variance(&measured, measured_mean) * variance(&simulated, simulated_mean)).sqrt();
        let per_request = of_both(&|a, b| (a - b).abs(), &measured, &simulated) / unit;
        let (mut low, mut high) = (measured, simulated);
        low.sort_by(f64::total_cmp);
        high.sort_by(f64::total_cmp);
        Score {
            requests: low.len(),
            measured_mean_us: measured_mean,
            simulated_mean_us: simulated_mean,
            demerit: of_both(&|a, b| (a - b) * (a - b), &low, &high).sqrt() / unit,
            per_request,
            correlation: if spreads > 0.0 { covariance / spreads } else { 0.0 },
        }
    }
}

pub fn score(pairs: &[Pair]) -> Score {
    Score::of(pairs.iter().map(|pair| (pair.measured_us, pair.simulated_us)))
}

/// Measured and simulated quantiles, us: probability, measured, simulated.
pub fn quantiles(pairs: &[Pair]) -> Vec<(f64, f64, f64)> {
    let sorted = |of: fn(&Pair) -> f64| {
        let mut all: Vec<f64> = pairs.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let (measured, simulated) = (sorted(|pair| pair.measured_us), sorted(|pair| pair.simulated_us));
    const AT: [f64; 9] = [0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99];
    AT.map(|p| (p, quantile(&measured, p), quantile(&simulated, p))).into()
}

/// What needs no model: each request takes the time of one that was measured before, drawn among those of its direction
/// and, as far as there are any, of its length.
pub fn baseline(past: &[Measured], trace: &[Measured], seed: u64) -> Vec<(f64, f64)> {
    let mut random = Stream::new(seed, 0);
    let alike = |direction: Direction, sectors: Option<u32>| -> Vec<f64> {
        let fits = |old: &&Measured| {
            old.request.direction == direction && sectors.is_none_or(|sectors| sectors == old.request.sectors)
        };
        past.iter().filter(fits).map(|old| old.service_us).collect()
    };
    let mut known = std::collections::BTreeMap::new();
    let mut draw = |new: &Measured| {
        let key = (new.request.direction == Direction::Read, new.request.sectors);
        let times: &Vec<f64> = known.entry(key).or_insert_with(|| {
            let same = alike(new.request.direction, Some(new.request.sectors));
            if same.is_empty() { alike(new.request.direction, None) } else { same }
        });
        let drawn = if times.is_empty() { 0.0 } else { times[random.below(times.len() as u64) as usize] };
        (new.service_us, drawn)
    };
    trace.iter().map(&mut draw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_those_worked_out_by_hand() {
        let same = Score::of([(1.0, 3.0), (3.0, 1.0)]);
        assert_eq!(
            (same.demerit, same.mean_error(), same.per_request, same.correlation),
            (0.0, 0.0, 1.0, -1.0)
        );
        // All 10 % later: 10 % of the root mean square of 1 and 3, by the mean of 2.
        let late = Score::of([(1.0, 1.1), (3.0, 3.3)]);
        assert!((late.demerit - 0.1 * 5f64.sqrt() / 2.0).abs() < 1e-12, "{late:?}");
        assert!((late.mean_error() - 0.1).abs() < 1e-12 && (late.correlation - 1.0).abs() < 1e-12);
        assert_eq!(Score::of([]), Score::default());
    }
}
