//! Sums over stretches of time, in bounded memory: when a run gets longer than all bins, two become one.

use tidepool_sim::checkpoint::{LoadError, Reader, Saved};
use tidepool_sim::saved;

/// Most bins. A run that is done has more than half as many, if it is long enough.
pub const BINS_MAX: usize = 128;
/// Ticks of a bin at first: a microsecond.
const WIDTH_FIRST: u64 = 1_000;

/// How wide all bins are at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grid {
    pub width: u64,
}

/// A sum for each bin. Those at the end that are 0 need not be there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Series(Vec<u64>);

saved!(struct Grid { width });

impl Saved for Series {
    /// As a list.
    fn save(&self, out: &mut Vec<u8>) {
        self.0.save(out);
    }

    fn load(from: &mut Reader<'_>) -> Result<Series, LoadError> {
        let bins: Vec<u64> = Saved::load(from)?;
        match bins.len() {
            0..=BINS_MAX => Ok(Series(bins)),
            _ => Err(LoadError::Damaged("sums of more stretches of time than there are")),
        }
    }
}

impl Default for Grid {
    fn default() -> Grid {
        Grid { width: WIDTH_FIRST }
    }
}

impl Grid {
    /// Whether bins can have become so wide.
    pub(super) fn is_sound(&self) -> bool {
        self.width.is_multiple_of(WIDTH_FIRST) && (self.width / WIDTH_FIRST).is_power_of_two()
    }

    /// Whether a moment lies behind all bins.
    pub fn ends_before(&self, time: u64) -> bool {
        time / self.width >= BINS_MAX as u64
    }
}

impl Series {
    /// Makes one bin of two.
    pub fn fold(&mut self) {
        self.0 = self
            .0
            .chunks(2)
            .map(|pair| pair.iter().fold(0u64, |sum, bin| sum.saturating_add(*bin)))
            .collect();
    }

    fn bin(&mut self, at: usize) -> &mut u64 {
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        &mut self.0[at]
    }

    /// Something that is of a moment.
    pub fn add(&mut self, grid: Grid, time: u64, what: u64) {
        let bin = self.bin((time / grid.width) as usize);
        *bin = bin.saturating_add(what);
    }

    /// The ticks of a span, each to the bin that it lies in.
    pub fn add_span(&mut self, grid: Grid, from: u64, until: u64) {
        let mut at = from;
        while at < until {
            let number = at / grid.width;
            let end = until.min((number + 1).saturating_mul(grid.width));
            let bin = self.bin(number as usize);
            *bin = bin.saturating_add(end - at);
            at = end;
        }
    }

    /// Of so many bins.
    pub fn values(&self, count: usize) -> impl Iterator<Item = u64> {
        (0..count).map(|at| self.0.get(at).copied().unwrap_or(0))
    }

    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_divided_among_bins() {
        let (grid, mut series) = (Grid { width: 10 }, Series::default());
        series.add_span(grid, 7, 31);
        series.add_span(grid, 12, 12);
        series.add(grid, 39, 100);
        assert_eq!(series.values(5).collect::<Vec<_>>(), [3, 10, 10, 101, 0]);
        series.fold();
        assert_eq!(series.values(3).collect::<Vec<_>>(), [13, 111, 0]);
        assert_eq!(series.sum(), 124);
    }
}
