//! Numbers that are the same for the same seed, on each machine and in each order of asking.

/// A stream of numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of one thing among many.
    pub fn of(seed: u64, number: u64) -> Random {
        Random(mixed(seed ^ mixed(number)))
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0)
    }

    /// At least 0, below 1.
    pub fn share(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// At least 0, below `end`; 0 when that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(end)) >> 64) as u64
    }

    /// Normal, mean 0, deviation 1 (Box and Muller 1958).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.share()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.share()).cos()
    }

    /// Log-normal: its median, and the deviation of its logarithm.
    pub fn lognormal(&mut self, median: f64, scatter: f64) -> f64 {
        median * (scatter * self.normal()).exp()
    }
}

/// The finalizer of SplitMix64.
fn mixed(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_pinned() {
        let mut random = Random::of(1, 2);
        let first = [random.word(), random.word(), random.below(1000)];
        assert_eq!(first, [9_793_979_767_479_580_297, 17_992_739_674_594_014_422, 81]);
        assert_ne!(Random::of(1, 3).word(), Random::of(1, 2).word());
        assert_ne!(Random::of(2, 2).word(), Random::of(1, 2).word());
    }

    #[test]
    fn they_scatter_as_they_should() {
        let mut random = Random::of(7, 0);
        let count = 20_000;
        let all: Vec<f64> = (0..count).map(|_| random.normal()).collect();
        let mean = all.iter().sum::<f64>() / f64::from(count);
        let square = all.iter().map(|x| x * x).sum::<f64>() / f64::from(count);
        assert!(mean.abs() < 0.03 && (square - 1.0).abs() < 0.05, "mean {mean}, mean square {square}");
        let mut logs: Vec<f64> = (0..count).map(|_| random.lognormal(100.0, 0.5)).collect();
        logs.sort_by(f64::total_cmp);
        let middle = logs[count as usize / 2];
        assert!((97.0..103.0).contains(&middle), "{middle}");
        assert!((0..1000).all(|_| random.below(3) < 3 && (0.0..1.0).contains(&random.share())));
    }
}
