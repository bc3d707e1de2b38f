//! Who gets how much of a shared tier: the one rule that [`crate::fluid`] runs by and `model` reckons with.

use crate::curve::Curves;
use crate::model::Pattern;

/// Somebody who writes to a tier, or reads from it for a flush.
#[derive(Clone, Copy, Debug)]
pub struct Sharer {
    pub weight: u32,
    pub processes: u32,
    pub pattern: Pattern,
    /// What it can use at most, in bytes/s.
    pub most: Option<u64>,
}

/// The whole of a tier's time, in parts.
const WHOLE: u128 = 1_000_000_000_000;

/// The bandwidth of each sharer, in bytes/s.
pub fn share(curves: &Curves, sharers: &[Sharer]) -> Vec<u64> {
    let processes = sharers.iter().fold(0u32, |sum, sharer| sum.saturating_add(sharer.processes));
    let bandwidths: Vec<u64> =
        sharers.iter().map(|sharer| curves.of(sharer.pattern).at(processes).max(1)).collect();
    divide(sharers, &bandwidths)
}

/// Divides a tier's time by weights; who needs less than its part for its most, gets only that, and the others the rest.
fn divide(sharers: &[Sharer], bandwidths: &[u64]) -> Vec<u64> {
    let mut rates: Vec<Option<u64>> = vec![None; sharers.len()];
    let mut left = WHOLE;
    loop {
        let open: Vec<usize> = (0..sharers.len()).filter(|at| rates[*at].is_none()).collect();
        let weights: u128 = open.iter().map(|at| u128::from(sharers[*at].weight)).sum();
        let part = |at: usize| left * u128::from(sharers[at].weight) / weights;
        let bounded = |at: &&usize| {
            let Some(most) = sharers[**at].most else { return false };
            u128::from(most) * WHOLE < u128::from(bandwidths[**at]) * part(**at)
        };
        let less: Vec<usize> = open.iter().filter(bounded).copied().collect();
        if less.is_empty() {
            for at in open {
                let rate = (u128::from(bandwidths[at]) * part(at) / WHOLE) as u64;
                rates[at] = Some(rate.max(1).min(sharers[at].most.unwrap_or(u64::MAX)));
            }
            return rates.into_iter().map(|rate| rate.unwrap_or(1)).collect();
        }
        for at in less {
            let most = sharers[at].most.unwrap_or(1);
            let used = (u128::from(most) * WHOLE).div_ceil(u128::from(bandwidths[at]));
            left = left.saturating_sub(used);
            rates[at] = Some(most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Curve;

    fn sharer(weight: u32, most: Option<u64>) -> Sharer {
        Sharer { weight, processes: 1, pattern: Pattern::Sequential, most }
    }

    #[test]
    fn weights_divide_and_what_is_not_used_goes_to_the_others() {
        let divided = |sharers: &[Sharer]| divide(sharers, &vec![1000; sharers.len()]);
        assert_eq!(divided(&[sharer(1, None), sharer(3, None)]), [250, 750]);
        assert_eq!(divided(&[sharer(1, None), sharer(3, Some(200)), sharer(1, None)]), [400, 200, 400]);
        assert_eq!(divided(&[sharer(1, Some(100)), sharer(1, Some(450)), sharer(2, None)]), [100, 300, 600]);
        assert_eq!(divided(&[sharer(1, Some(5000))]), [1000], "nobody gets more than there is");
        assert_eq!(divided(&[]), []);
    }

    /// 4 processes: 100 bytes/s. Half of the time each; the random one gets half of its own curve's 20.
    #[test]
    fn time_is_shared_and_each_pattern_has_its_own_bandwidth() {
        let flat = |rate| Curve::new(&[(4, rate)]).unwrap();
        let curves = Curves { sequential: flat(100), strided: flat(50), random: flat(20) };
        let with = |pattern| Sharer { processes: 2, pattern, ..sharer(2, None) };
        assert_eq!(share(&curves, &[with(Pattern::Sequential), with(Pattern::Random)]), [50, 10]);
        assert_eq!(share(&curves, &[with(Pattern::Strided)]), [25], "2 processes bring half");
    }
}
