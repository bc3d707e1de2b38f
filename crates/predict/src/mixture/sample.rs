//! Distributions as weighted run times.

/// A run time, and how much it counts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sample {
    pub seconds: f32,
    pub weight: f32,
}

/// Weights below this part of the newest run's are left out.
const WEIGHT_MIN: f32 = 0.004;
/// What a running job will have taken, in times of its age, when no known run was longer.
const BEYOND: f32 = 1.5;

/// Appends a distribution whose weights sum up to 1: the newest run counts most, the one before it `fade` times as much, and so on.
///
/// Running jobs are newer than all that ended. Of one is only known that it takes longer than its `age`: its weight goes to what
/// is longer, in proportion (Efron's redistribution to the right, which is Kaplan and Meier's estimate). Without
/// that, the first jobs of many that were submitted together would say that all are short: they ended first.
///
/// `runs` and `ages` are newest first. There has to be a run.
pub fn weigh(out: &mut Vec<Sample>, runs: impl Iterator<Item = f32>, ages: &[f32], fade: f32, most: f32) {
    let begun = out.len();
    let (mut weight, mut sum) = (1.0, 0.0);
    let mut next = || {
        let this = weight;
        weight *= fade;
        sum += this;
        this
    };
    let mut running: Vec<Sample> = ages.iter().map(|age| Sample { seconds: *age, weight: next() }).collect();
    for seconds in runs {
        let weight = next();
        out.push(Sample { seconds, weight });
        if weight < WEIGHT_MIN {
            break;
        }
    }
    running.sort_unstable_by(|a, b| a.seconds.total_cmp(&b.seconds));
    for at in 0..running.len() {
        let age = running[at];
        let longer: f32 = out[begun..]
            .iter()
            .chain(&running[at + 1..])
            .filter(|one| one.seconds > age.seconds)
            .map(|one| one.weight)
            .sum();
        if longer > 0.0 {
            let more = 1.0 + age.weight / longer;
            let others = out[begun..].iter_mut().chain(&mut running[at + 1..]);
            others.filter(|one| one.seconds > age.seconds).for_each(|one| one.weight *= more);
        } else {
            let seconds = (age.seconds * BEYOND).min(most.max(age.seconds));
            out.push(Sample { seconds, weight: age.weight });
        }
    }
    out[begun..].iter_mut().for_each(|one| one.weight /= sum);
}

/// Equally likely values that stand for a distribution.
pub const POINTS: usize = 64;

/// A distribution in ascending order.
#[derive(Debug)]
pub struct Mixed<'a> {
    samples: &'a [Sample],
    sum: f32,
}

impl<'a> Mixed<'a> {
    /// There has to be a sample with a weight.
    pub fn new(samples: &'a mut [Sample]) -> Mixed<'a> {
        samples.sort_unstable_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let sum = samples.iter().map(|one| one.weight).sum();
        Mixed { samples, sum }
    }

    /// The longest that is possible.
    pub fn longest(&self) -> f32 {
        self.samples.last().map_or(0.0, |last| last.seconds)
    }

    /// The value at each of some shares, which have to ascend.
    pub fn at<const N: usize>(&self, shares: [f32; N]) -> [f32; N] {
        let mut values = [self.longest(); N];
        let (mut sum, mut known) = (0.0, 0);
        for one in self.samples {
            sum += one.weight / self.sum;
            while known < N && sum >= shares[known] {
                values[known] = one.seconds;
                known += 1;
            }
        }
        values
    }

    /// Each value with the share that is not above it.
    pub fn steps(&self) -> Vec<(f32, f32)> {
        let mut sum = 0.0;
        let step = |one: &Sample| {
            sum += one.weight / self.sum;
            (one.seconds, sum)
        };
        self.samples.iter().map(step).collect()
    }

    /// [`POINTS`] values, none above `most`.
    pub fn points(&self, most: f32) -> [f32; POINTS] {
        let shares = std::array::from_fn(|point| (point as f32 + 0.5) / POINTS as f32);
        self.at(shares).map(|value| value.min(most))
    }
}

/// The point with the least expected loss, where an error of so many seconds costs `loss`. The least such point of several.
pub fn least(points: &[f32; POINTS], loss: impl Fn(f32) -> f32) -> f32 {
    let mut best = (f32::INFINITY, points[0]);
    for (at, point) in points.iter().enumerate() {
        if at > 0 && points[at - 1] == *point {
            continue;
        }
        let sum: f32 = points.iter().map(|other| loss((point - other).abs())).sum();
        if sum < best.0 {
            best = (sum, *point);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn weighed(runs: &[f32], ages: &[f32], fade: f32) -> Vec<Sample> {
        let mut out = Vec::new();
        weigh(&mut out, runs.iter().copied(), ages, fade, 1e6);
        out
    }

    #[test]
    fn kaplan_and_meier_by_hand() {
        // Runs of 10, 30 and 50, and jobs that run for 20 and for 60 now. The weight of 20 goes to 30, 50 and 60 alike: each
        // has 1/5 + 1/15; what 60 has then stays beyond 60.
        let got = weighed(&[10.0, 30.0, 50.0], &[60.0, 20.0], 1.0);
        let wanted = [(10.0, 0.2), (30.0, 4.0 / 15.0), (50.0, 4.0 / 15.0), (90.0, 4.0 / 15.0)];
        assert_eq!(got.len(), wanted.len());
        for (one, (seconds, weight)) in got.iter().zip(wanted) {
            assert!(one.seconds == seconds && (one.weight - weight).abs() < 1e-6, "{got:?}");
        }
    }

    #[test]
    fn concave_losses_find_the_mode_and_straight_ones_the_median() {
        let mut samples: Vec<Sample> = (0..100)
            .map(|n| Sample { seconds: if n < 40 { 10.0 } else { 100.0 + 10.0 * n as f32 }, weight: 1.0 })
            .collect();
        let points = Mixed::new(&mut samples).points(1e9);
        assert_eq!(least(&points, f32::sqrt), 10.0);
        let median = least(&points, |error| error);
        assert!((580.0..=620.0).contains(&median), "{median}");
        assert_eq!(least(&Mixed::new(&mut samples).points(60.0), |error| error), 60.0);
    }

    proptest! {
        #[test]
        fn weights_sum_up_to_one_and_nothing_is_shorter_than_it_can_be(
            runs in prop::collection::vec(0.0f32..1e5, 1..30),
            ages in prop::collection::vec(0.0f32..1e5, 0..9),
            fade in 0.2f32..1.0,
        ) {
            let got = weighed(&runs, &ages, fade);
            let sum: f32 = got.iter().map(|one| one.weight).sum();
            prop_assert!((sum - 1.0).abs() < 1e-3, "{sum}");
            prop_assert!(got.iter().all(|one| one.weight >= 0.0 && one.seconds.is_finite()));
            // What is running for so long is not said to be over: no less weight lies beyond the longest age than that job's own.
            if let (Some(oldest), 1) = (ages.iter().copied().reduce(f32::max), ages.len()) {
                let beyond: f32 = got.iter().filter(|one| one.seconds > oldest || oldest == 0.0).map(|one| one.weight).sum();
                let own = 1.0 / (0..=runs.len()).map(|rank| fade.powi(rank as i32)).sum::<f32>();
                prop_assert!(beyond > own * 0.99, "{beyond} {own}");
            }
        }
    }
}
