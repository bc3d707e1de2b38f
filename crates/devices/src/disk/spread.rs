//! A distribution as its quantiles, from which is drawn.

use tidepool_sim::Stream;

/// Values at equally spaced probabilities from 0 to 1, rising; linear between.
#[derive(Clone, PartialEq, Debug)]
pub struct Spread(Vec<f64>);

/// Quantiles of a spread.
pub const KNOTS_MAX: usize = 1_001;
/// Quantiles that are taken of measurements; the mean is kept exactly all the same.
const KNOTS: usize = 129;

impl Spread {
    pub(crate) const ZERO: Spread = Spread(Vec::new());

    /// None where the values are not finite and rising, or none, or too many.
    pub fn new(knots: Vec<f64>) -> Option<Spread> {
        let fits = (1..=KNOTS_MAX).contains(&knots.len());
        let rising = knots.windows(2).all(|pair| pair[0] <= pair[1]);
        (fits && rising && knots.iter().all(|knot| knot.is_finite())).then_some(Spread(knots))
    }

    /// Equally likely from `least` to `most`.
    pub fn even(least: f64, most: f64) -> Spread {
        Spread(vec![least, most.max(least)])
    }

    pub fn knots(&self) -> &[f64] {
        &self.0
    }

    /// Of a sample, which is sorted; None of an empty one. A quantile is the mean of the values around it, as far as
    /// half-way to the next ones, so that the mean of the whole is that of the sample, whatever outliers it has.
    pub fn of(sample: &mut [f64]) -> Option<Spread> {
        sample.sort_by(f64::total_cmp);
        let mut sums = vec![0.0];
        for value in sample.iter() {
            sums.push(sums[sums.len() - 1] + value);
        }
        let steps = match sample.len() {
            0 => return None,
            count => (count.min(KNOTS) - 1).max(1) as f64,
        };
        // The sum of the first values, the last of them in part.
        let sum = |values: f64| {
            let whole = (values as usize).min(sample.len() - 1);
            sums[whole] + (values - whole as f64) * sample[whole]
        };
        let around = |step: f64| {
            let [low, high] =
                [step - 0.5, step + 0.5].map(|at| at.clamp(0.0, steps) / steps * sample.len() as f64);
            // A thousandth of a microsecond is a tick.
            ((sum(high) - sum(low)) / (high - low) * 1e3).round() / 1e3
        };
        let mut knots: Vec<f64> = (0..=steps as usize).map(|step| around(step as f64)).collect();
        // Sums of many values are off in the last digits.
        knots.sort_by(f64::total_cmp);
        Spread::new(knots)
    }

    pub fn mean(&self) -> f64 {
        let [first, .., last] = self.0[..] else { return self.0.first().copied().unwrap_or(0.0) };
        let inner: f64 = self.0[1..self.0.len() - 1].iter().sum();
        (inner + (first + last) / 2.0) / (self.0.len() - 1) as f64
    }

    /// The value below which a share of `probability` lies.
    pub fn at(&self, probability: f64) -> f64 {
        quantile(&self.0, probability)
    }

    pub fn draw(&self, random: &mut Stream) -> f64 {
        self.at(random.unit())
    }
}

/// Of sorted values, linear between them; 0 where there are none.
pub(crate) fn quantile(sorted: &[f64], probability: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = probability.clamp(0.0, 1.0) * last as f64;
    let (low, part) = (at as usize, at.fract());
    let high = (low + 1).min(last);
    sorted[low] + (sorted[high] - sorted[low]) * part
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_outlier_keeps_its_weight_in_the_mean() {
        let mut sample: Vec<f64> = (0..1_000).map(|n| 500.0 + f64::from(n % 10)).collect();
        sample[7] = 12_000.0;
        let wanted = sample.iter().sum::<f64>() / 1_000.0;
        let spread = Spread::of(&mut sample).unwrap();
        assert!((spread.mean() - wanted).abs() < 1e-3, "{} {wanted}", spread.mean());
    }

    #[test]
    fn drawn_values_are_spread_as_told() {
        let (spread, mut random) = (Spread::even(0.0, 8.0), Stream::new(1, 1));
        let mut drawn: Vec<f64> = (0..100_000).map(|_| spread.draw(&mut random)).collect();
        drawn.sort_by(f64::total_cmp);
        for tenth in 1..10 {
            let p = f64::from(tenth) / 10.0;
            assert!((quantile(&drawn, p) - 8.0 * p).abs() < 0.05);
        }
    }

    proptest! {
        #[test]
        fn of_any_sample_the_mean_is_kept(mut sample in prop::collection::vec(0.0..1e7f64, 1..400)) {
            let wanted = sample.iter().sum::<f64>() / sample.len() as f64;
            let spread = Spread::of(&mut sample).unwrap();
            prop_assert!(spread.knots().windows(2).all(|pair| pair[0] <= pair[1]));
            prop_assert!((spread.mean() - wanted).abs() <= 1e-9 * wanted + 1e-3, "{} {}", spread.mean(), wanted);
        }
    }
}
