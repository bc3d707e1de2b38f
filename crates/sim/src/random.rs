//! Random numbers: a stream of its own for every process.
//!
//! SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014): a counter that grows by
//! an odd step, and a mixer. Each process has its own step, so no two streams run through the same numbers at a
//! distance, and all that a rollback has to restore is one word. Nothing here calls the C library: `ln` of two
//! versions of it may differ in the last bit, and with it all that follows.

use crate::event::Time;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream {
    state: u64,
    step: u64,
}

/// 2^64 divided by the golden ratio, the step of the first stream.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// 2^-53: the distance of neighbouring doubles below 1.
const ULP: f64 = 1.0 / (1u64 << 53) as f64;

/// Mixer of the numbers (Stafford's variant 13, as in the paper's `mix64variant13`).
#[inline]
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Mixer of the steps: odd, and with enough changes between neighbouring bits (the paper's `mixGamma`).
fn step_of(z: u64) -> u64 {
    let mut z = (z ^ (z >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    z = (z ^ (z >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    z = (z ^ (z >> 33)) | 1;
    if (z ^ (z >> 1)).count_ones() < 24 { z ^ 0xaaaa_aaaa_aaaa_aaaa } else { z }
}

impl Stream {
    /// Stream `number` of a seed.
    #[inline]
    pub fn new(seed: u64, number: u64) -> Stream {
        let of_seed = mix(seed.wrapping_add(GOLDEN));
        let at = of_seed.wrapping_add(number.wrapping_mul(2).wrapping_mul(GOLDEN));
        Stream { state: mix(at), step: step_of(at.wrapping_add(GOLDEN)) }
    }

    /// Position and step.
    pub(crate) fn parts(&self) -> (u64, u64) {
        (self.state, self.step)
    }

    pub(crate) fn from_parts(state: u64, step: u64) -> Stream {
        Stream { state, step }
    }

    /// The only part that drawing changes.
    #[inline]
    pub(crate) fn position(&self) -> u64 {
        self.state
    }

    #[inline]
    pub(crate) fn set_position(&mut self, position: u64) {
        self.state = position;
    }

    /// 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(self.step);
        mix(self.state)
    }

    /// A number below `bound`, each with the same probability.
    ///
    /// # Panics
    /// When `bound` is 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below 0");
        // Lemire: Fast Random Integer Generation in an Interval, 2019.
        let mut product = u128::from(self.bits()) * u128::from(bound);
        if (product as u64) < bound {
            let least = bound.wrapping_neg() % bound;
            while (product as u64) < least {
                product = u128::from(self.bits()) * u128::from(bound);
            }
        }
        (product >> 64) as u64
    }

    /// At least 0 and below 1.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * ULP
    }

    /// True with this probability.
    #[inline]
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Exponentially distributed, rounded down to a whole tick.
    #[inline]
    pub fn exponential(&mut self, mean: Time) -> Time {
        // Never 0, so that the logarithm is finite.
        let unit = ((self.bits() >> 11) as f64 + 0.5) * ULP;
        Time((-ln(unit) * mean.0 as f64) as u64)
    }
}

/// The natural logarithm of a normal, positive number, in additions, multiplications and one division, all of which
/// IEEE 754 fixes to the last bit; off by less than 1e-14 times its value or 1e-15.
#[inline]
pub fn ln(x: f64) -> f64 {
    // No branch, which would be guessed wrong four times of ten: m is between the roots of 1/2 and 2.
    const ROOT_OF_HALF: u64 = 0x3fe6_a09e_667f_3bcd;
    let exponent = (x.to_bits().wrapping_sub(ROOT_OF_HALF) as i64) >> 52;
    let m = f64::from_bits(x.to_bits().wrapping_sub((exponent as u64) << 52));
    // ln m = 2 artanh((m - 1) / (m + 1)); the argument is at most 0.172.
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let (z2, z4) = (z * z, z * z * z * z);
    let low = (1.0 + z * (1.0 / 3.0)) + z2 * (1.0 / 5.0 + z * (1.0 / 7.0));
    let high = (1.0 / 9.0 + z * (1.0 / 11.0)) + z2 * (1.0 / 13.0 + z * (1.0 / 15.0));
    let last = 1.0 / 17.0 + z * (1.0 / 19.0);
    exponent as f64 * std::f64::consts::LN_2 + 2.0 * s * (low + z4 * (high + z4 * last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_paper() {
        // The reference generator: step GOLDEN from 0.
        let mut stream = Stream { state: 0, step: GOLDEN };
        assert_eq!(stream.bits(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(stream.bits(), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn streams_of_a_seed_differ_and_stay_the_same() {
        let firsts: std::collections::BTreeSet<_> = (0..10_000).map(|n| Stream::new(1, n).bits()).collect();
        assert_eq!(firsts.len(), 10_000);
        // Pinned: results of runs must not change from release to release.
        assert_eq!(Stream::new(42, 7).bits(), 3_786_372_230_932_795_310);
    }

    #[test]
    fn neighbouring_streams_are_not_correlated() {
        let (n, mut sum) = (200_000, 0.0);
        let (mut a, mut b) = (Stream::new(3, 0), Stream::new(3, 1));
        for _ in 0..n {
            sum += (a.unit() - 0.5) * (b.unit() - 0.5);
        }
        // The deviation of the mean of n products is 1/12/sqrt(n); five of them.
        assert!((sum / f64::from(n)).abs() < 5.0 / 12.0 / f64::from(n).sqrt(), "{sum}");
    }

    #[test]
    fn distributions_have_their_moments() {
        let mut stream = Stream::new(9, 9);
        let n = 400_000;
        let draws: Vec<f64> = (0..n).map(|_| stream.exponential(Time(1_000_000)).0 as f64 / 1e6).collect();
        let mean = draws.iter().sum::<f64>() / f64::from(n);
        let square = draws.iter().map(|x| x * x).sum::<f64>() / f64::from(n);
        assert!((mean - 1.0).abs() < 0.008 && (square - 2.0).abs() < 0.04, "{mean} {square}");
        let mut counts = [0u32; 7];
        (0..70_000).for_each(|_| counts[stream.below(7) as usize] += 1);
        assert!(counts.iter().all(|c| (9_500..10_500).contains(c)), "{counts:?}");
    }

    #[test]
    fn logarithms_are_those_of_the_library() {
        let mut stream = Stream::new(5, 5);
        for _ in 0..200_000 {
            let x = f64::from_bits((stream.bits() >> 2) % (0x7fe0 << 48) + (1 << 52));
            let (ours, theirs) = (ln(x), x.ln());
            assert!((ours - theirs).abs() <= 1e-14 * theirs.abs() + 1e-15, "{x}: {ours} {theirs}");
        }
        assert_eq!(ln(1.0), 0.0);
    }
}
