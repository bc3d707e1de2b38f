//! Distributions of times in bounded memory.

use std::collections::BTreeMap;
use tidepool_sim::saved;

/// Cells for each doubling of the time, as a power of two: a quantile is off by less than a thousandth.
const FINE_BITS: u32 = 10;
/// Bins for each doubling in what people are shown, as a power of two.
const COARSE_BITS: u32 = 2;

/// Times in ticks, counted in cells whose width is at most a thousandth of the time. What is in one cell counts as its mean, so
/// that times that are all the same have exact quantiles. At most 56,320 cells.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Latencies {
    pub count: u64,
    sum: u128,
    least: u64,
    most: u64,
    /// How many, and their sum.
    cells: BTreeMap<u32, (u64, u128)>,
}

saved!(struct Latencies { count, sum, least, most, cells });

/// A bin of a histogram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bin {
    pub from: u64,
    /// The first time that is not in it.
    pub to: u64,
    pub count: u64,
}

/// Where a number's first `bits` bits behind the leading one end.
fn shift(value: u64, bits: u32) -> u32 {
    (u64::BITS - value.leading_zeros()).saturating_sub(bits + 1)
}

fn cell(value: u64) -> u32 {
    let shift = shift(value, FINE_BITS);
    (shift << FINE_BITS) + (value >> shift) as u32
}

/// The least number in a cell.
fn low(cell: u32) -> u64 {
    let shift = (cell >> FINE_BITS).saturating_sub(1);
    u64::from(cell - (shift << FINE_BITS)) << shift
}

impl Latencies {
    /// Whether sums and cells are of each other.
    pub(super) fn is_sound(&self) -> bool {
        let (mut count, mut sum) = (0u128, 0u128);
        for (at, (times, of_them)) in &self.cells {
            // So that what they add up to fits.
            let most = u128::from(u64::MAX) * u128::from(*times);
            if *at > cell(u64::MAX) || *times == 0 || *of_them > most {
                return false;
            }
            (count, sum) = (count + u128::from(*times), sum.saturating_add(*of_them));
        }
        count == u128::from(self.count) && sum == self.sum && self.least <= self.most
    }

    pub fn add(&mut self, time: u64) {
        self.least = if self.count == 0 { time } else { self.least.min(time) };
        self.most = self.most.max(time);
        self.count += 1;
        self.sum += u128::from(time);
        let cell = self.cells.entry(cell(time)).or_default();
        *cell = (cell.0 + 1, cell.1 + u128::from(time));
    }

    pub fn merge(&mut self, other: &Latencies) {
        if other.count == 0 {
            return;
        }
        self.least = if self.count == 0 { other.least } else { self.least.min(other.least) };
        self.most = self.most.max(other.most);
        self.count += other.count;
        self.sum += other.sum;
        for (at, (count, sum)) in &other.cells {
            let cell = self.cells.entry(*at).or_default();
            *cell = (cell.0 + count, cell.1 + sum);
        }
    }

    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    pub fn least(&self) -> u64 {
        self.least
    }

    pub fn most(&self) -> u64 {
        self.most
    }

    /// At most so long is this share of the times (nearest rank); 0 of none.
    pub fn quantile(&self, share: f64) -> u64 {
        let rank = ((self.count as f64 * share).ceil() as u64).clamp(1, self.count.max(1));
        if rank == self.count {
            return self.most;
        }
        let mut before = 0;
        for (count, sum) in self.cells.values() {
            before += count;
            if before >= rank {
                return (sum / u128::from(*count)) as u64;
            }
        }
        self.most
    }

    /// With bins that grow with the time, four for each doubling; empty ones are left out.
    pub fn histogram(&self) -> Vec<Bin> {
        let mut bins: Vec<Bin> = Vec::new();
        for (at, (count, _)) in &self.cells {
            let low = low(*at);
            let shift = shift(low, COARSE_BITS);
            let from = low >> shift << shift;
            match bins.last_mut() {
                Some(last) if last.from == from => last.count += count,
                _ => bins.push(Bin { from, to: from + (1 << shift), count: *count }),
            }
        }
        bins
    }

    /// Shares of the times that are at most so long, at the ends of its cells; at most `points_max` of them.
    pub fn curve(&self, points_max: usize) -> Vec<(u64, f64)> {
        let step = self.cells.len().div_ceil(points_max.max(1)).max(1);
        let mut before = 0;
        let mut points = Vec::new();
        for (number, (count, sum)) in (1..).zip(self.cells.values()) {
            before += count;
            if number == self.cells.len() || number % step == 0 {
                points.push(((sum / u128::from(*count)) as u64, before as f64 / self.count as f64));
            }
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_sim::Stream;

    #[test]
    fn cells_follow_each_other_and_are_a_thousandth_wide() {
        let mut random = Stream::new(7, 7);
        for round in 0..20_000u32 {
            let value = random.bits() >> (round % 64);
            let at = cell(value);
            assert!(low(at) <= value, "{value}");
            let next = u128::from(low(at)) + (u128::from(value) >> FINE_BITS).max(1);
            assert!(u128::from(value) < next, "{value} in {at}");
        }
        for at in 0..8_000 {
            assert_eq!(cell(low(at)), at);
        }
        assert_eq!(cell(u64::MAX), 56_319);
    }

    /// Against sorting, seeds fixed.
    #[test]
    fn quantiles_are_those_of_sorted_times() {
        let mut random = Stream::new(1, 2);
        for (count, spread) in [(1u64, 10u64), (2, 3), (10, 1 << 40), (5_000, 100), (5_000, 1 << 30)] {
            let mut times: Vec<u64> = (0..count).map(|_| random.below(spread)).collect();
            let (mut one, mut two) = (Latencies::default(), Latencies::default());
            times
                .iter()
                .enumerate()
                .for_each(|(at, time)| if at % 3 == 0 { &mut one } else { &mut two }.add(*time));
            one.merge(&two);
            times.sort_unstable();
            for share in [0.0, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0] {
                let exact = times[((times.len() as f64 * share).ceil() as usize).max(1) - 1];
                let off = one.quantile(share).abs_diff(exact);
                assert!(off <= exact >> FINE_BITS, "{share} of {count}: {exact}, off by {off}");
            }
            assert_eq!((one.least(), one.most()), (times[0], times[times.len() - 1]));
            let mean = times.iter().sum::<u64>() as f64 / count as f64;
            assert!((one.mean() - mean).abs() <= mean * 1e-12);
            for bin in one.histogram() {
                let inside = times.iter().filter(|time| (bin.from..bin.to).contains(time)).count();
                assert_eq!(bin.count, inside as u64, "{bin:?}");
            }
            assert_eq!(one.histogram().iter().map(|bin| bin.count).sum::<u64>(), count);
            assert_eq!(one.curve(50).last().map(|point| point.1), Some(1.0));
        }
        assert_eq!(Latencies::default().quantile(0.5), 0);
    }
}
