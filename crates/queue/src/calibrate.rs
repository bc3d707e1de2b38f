//! Ranges that hold as often as they say: widened, or made narrower, each side by itself, by what was told at moments of the past and what
//! then came. Nothing is looked at that came after the moment for which a range is made.
//!
//! Two things make a side's factor. **What would have been enough**: the quantile of how far off the past was, in times of the
//! drawn distances (conformalized quantiles; Romano, Patterson, Candes 2019), the latest weighing most. A job that still waits has surely
//! not started before now: of those the share is reckoned as Kaplan and Meier (1958) do. **What was missed**: each job that
//! was beyond a range as it was told makes later ones wider, each that was not a little narrower, so that in the long run as many are
//! missed as should be, whatever the past is worth (adaptive conformal inference; Gibbs and Candes 2021).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use tidepool_jobsim::forecast::{Forecast, Range, SHARES};

/// Where draws do not differ, a range is that long to each side before it is widened. Seconds.
const PAD_S: f64 = 60.0;
/// Wider than so many times the draws no range is made by the past.
const TIMES_MAX: f64 = 1000.0;
/// After so long a job of the past weighs half as much. Seconds.
const HALF_S: f64 = 60.0 * 86_400.0;
/// So many jobs are remembered, the latest.
pub const JOBS_MAX: usize = 20_000;
/// With fewer whose times are known ranges stay as they are.
const KNOWN_MIN: usize = 20;
/// How far a job moves the logarithm of its side's factor; those of one moment together no further than so many.
const STEP: f64 = 0.1;
const STEPS_MAX: f64 = 20.0;
/// Bounds of that logarithm: no range gets centuries long for one bad week.
const LOGARITHMS: (f64, f64) = (-0.5, 1.5);

/// So many times as far from the middle as the draws say: down and up.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sides {
    pub below: f64,
    pub above: f64,
}

/// See the module.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Widening {
    pub start: Sides,
    pub end: Sides,
}

impl Sides {
    /// Not before `least_s`: nothing starts or ends in the past.
    fn apply(self, range: Range, least_s: u64) -> Range {
        let down = ((range.middle_s - range.low_s) as f64 + PAD_S) * self.below;
        let up = ((range.high_s - range.middle_s) as f64 + PAD_S) * self.above;
        let least_s = least_s.min(range.middle_s);
        Range {
            low_s: range.middle_s.saturating_sub(down as u64).max(least_s),
            high_s: range.middle_s.saturating_add(up as u64),
            ..range
        }
    }
}

impl Widening {
    /// Of a job that waits at `now_s`.
    pub fn apply(&self, forecast: &Forecast, now_s: u64) -> Forecast {
        Forecast {
            start: self.start.apply(forecast.start, now_s),
            end: self.end.apply(forecast.end, now_s),
            same_nodes: forecast.same_nodes,
        }
    }
}

/// A job of which something was told.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Past {
    at_s: u64,
    /// As it was drawn.
    range: Range,
    real_s: u64,
}

impl Past {
    /// How far off what came was from the middle, in times of the drawn distance, below it negative; and whether that is known at
    /// `now_s`. Else it is more than that.
    fn off(&self, now_s: u64) -> (f64, bool) {
        let Range { low_s, middle_s, high_s } = self.range;
        let (until_s, is_known) = (self.real_s.min(now_s), self.real_s <= now_s);
        let times = match until_s >= middle_s {
            true => (until_s - middle_s) as f64 / ((high_s - middle_s) as f64 + PAD_S),
            false => -((middle_s - until_s) as f64) / ((middle_s - low_s) as f64 + PAD_S),
        };
        (times, is_known)
    }
}

/// Of values with weights, some of which are only known to be at least so much, those that the shares are not above (Kaplan and Meier 1958).
/// The highest value where a share is beyond all that are known; none where nothing is known.
fn quantiles(mut all: Vec<(f64, f64, bool)>, shares: [f64; 2]) -> Option<[f64; 2]> {
    // Of equal values those that are known come first.
    all.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.2.cmp(&a.2)));
    let highest = all.last()?.0;
    let mut left: f64 = all.iter().map(|one| one.1).sum();
    let (mut above, mut found) = (1.0, [None; 2]);
    for (value, weight, _) in all.iter().filter_map(|one| {
        let (value, weight, is_known) = *one;
        let at_risk = left;
        left -= weight;
        is_known.then_some((value, weight / at_risk.max(weight), is_known))
    }) {
        above *= 1.0 - weight;
        for (found, share) in found.iter_mut().zip(shares) {
            if found.is_none() && 1.0 - above >= share - 1e-9 {
                *found = Some(value);
            }
        }
    }
    Some(found.map(|found| found.unwrap_or(highest)))
}

/// What becomes known of a job's range at a moment: seconds; how far it moves both logarithms.
#[derive(Clone, Copy, PartialEq, Debug)]
struct News {
    known_s: u64,
    below: f64,
    above: f64,
}

impl Eq for News {}

impl PartialOrd for News {
    fn partial_cmp(&self, other: &News) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for News {
    fn cmp(&self, other: &News) -> std::cmp::Ordering {
        let rest = || self.below.total_cmp(&other.below).then(self.above.total_cmp(&other.above));
        self.known_s.cmp(&other.known_s).then_with(rest)
    }
}

/// Of starts, or of ends.
#[derive(Clone, Debug, Default)]
struct Track {
    past: VecDeque<Past>,
    news: BinaryHeap<Reverse<News>>,
    /// Logarithms of factors, by what was missed.
    below: f64,
    above: f64,
}

impl Track {
    /// `now_s` never falls.
    fn sides(&mut self, now_s: u64) -> Option<Sides> {
        let bounded = |value: f64| value.clamp(LOGARITHMS.0, LOGARITHMS.1);
        while let Some(Reverse(news)) = self.news.peek().copied().filter(|news| news.0.known_s <= now_s) {
            self.news.pop();
            self.below = bounded(self.below + news.below);
            self.above = bounded(self.above + news.above);
        }
        let weighed = |past: &Past| {
            let (times, is_known) = past.off(now_s);
            let age_s = now_s.saturating_sub(past.at_s) as f64;
            (times, (-age_s / HALF_S).exp2(), is_known)
        };
        let all: Vec<(f64, f64, bool)> = self.past.iter().map(weighed).collect();
        if all.iter().filter(|one| one.2).count() < KNOWN_MIN {
            return None;
        }
        let [low, high] = quantiles(all, [SHARES[0], SHARES[2]])?;
        let enough = |times: f64| times.clamp(0.0, TIMES_MAX);
        Some(Sides { below: enough(-low) * self.below.exp(), above: enough(high) * self.above.exp() })
    }

    fn tell(&mut self, now_s: u64, sides: Option<Sides>, all: impl ExactSizeIterator<Item = (Range, u64)>) {
        let step = STEP * (STEPS_MAX / all.len().max(1) as f64).min(1.0);
        for (range, real_s) in all {
            let told = sides.map_or(range, |sides| sides.apply(range, now_s));
            let moved = |is_missed: bool| step * (f64::from(u8::from(is_missed)) - SHARES[0]);
            // When it has started, or its range is over.
            let known_s = real_s.min(told.high_s.saturating_add(1));
            let (below, above) = (moved(real_s < told.low_s), moved(real_s > told.high_s));
            self.news.push(Reverse(News { known_s, below, above }));
            self.past.push_back(Past { at_s: now_s, range, real_s });
        }
        while self.past.len() > JOBS_MAX {
            self.past.pop_front();
        }
    }
}

/// What is known of ranges at each moment, in the order of time.
#[derive(Clone, Debug, Default)]
pub struct Rolling {
    starts: Track,
    ends: Track,
}

impl Rolling {
    /// For ranges that are told at `now_s`, which is not before a moment that was asked for or told of. None while too little is known.
    pub fn widening(&mut self, now_s: u64) -> Option<Widening> {
        let (start, end) = (self.starts.sides(now_s), self.ends.sides(now_s));
        start.zip(end).map(|(start, end)| Widening { start, end })
    }

    /// At `now_s` those ranges of starts and of ends were drawn; with each comes what became of it, which is not looked at before it has.
    /// With what they are told.
    pub fn tell(&mut self, now_s: u64, starts: &[(Range, u64)], ends: &[(Range, u64)]) -> Option<Widening> {
        let widening = self.widening(now_s);
        self.starts.tell(now_s, widening.map(|widening| widening.start), starts.iter().copied());
        self.ends.tell(now_s, widening.map(|widening| widening.end), ends.iter().copied());
        widening
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidepool_jobsim::random::Random;

    fn range(low_s: u64, middle_s: u64, high_s: u64) -> Range {
        Range { low_s, middle_s, high_s }
    }

    const HOUR_S: u64 = 3600;

    /// A moment each eight hours with five jobs, whose starts scatter around the middle `wide` times as much as was drawn; how often what
    /// was told held in each quarter, with what is known then, and with what the first quarter says once for all.
    fn held(wide: impl Fn(u64) -> f64) -> [(f64, f64); 4] {
        const MOMENTS: u64 = 480;
        let (mut random, mut rolling) = (Random::of(3, 3), Rolling::default());
        let (mut counts, mut fixed) = ([(0.0, 0.0); 4], None);
        for moment in 0..MOMENTS {
            let now_s = 1_000_000 + moment * 8 * HOUR_S;
            let one = |_| {
                let width = HOUR_S as f64 * (1.0 + random.share());
                let middle_s = now_s + 20 * HOUR_S;
                let real = middle_s as f64 + wide(moment * 4 / MOMENTS) * width * random.normal();
                // 5 and 95 % of a normal distribution.
                let half = (1.645 * width) as u64;
                (range(middle_s - half, middle_s, middle_s + half), real.max(now_s as f64) as u64)
            };
            let jobs: Vec<(Range, u64)> = (0..5).map(one).collect();
            let widening = rolling.tell(now_s, &jobs, &jobs);
            if moment == MOMENTS / 4 {
                fixed = widening;
            }
            let share = |widening: Option<Widening>| {
                let told =
                    |range: Range| widening.map_or(range, |widening| widening.start.apply(range, now_s));
                let holds =
                    |(range, real): &&(Range, u64)| (told(*range).low_s..=told(*range).high_s).contains(real);
                jobs.iter().filter(holds).count() as f64 / (jobs.len() as u64 * MOMENTS / 4) as f64
            };
            let quarter = &mut counts[(moment * 4 / MOMENTS) as usize];
            (quarter.0, quarter.1) = (quarter.0 + share(widening), quarter.1 + share(fixed));
        }
        counts
    }

    /// Ranges that are half as wide as they should be are made to hold.
    #[test]
    fn widened_ranges_hold_as_often_as_they_say() {
        for (rolling, fixed) in &held(|_| 2.0)[1..] {
            assert!((0.87..0.93).contains(rolling) && (0.8..0.97).contains(fixed), "{rolling} {fixed}");
        }
    }

    /// Where the log changes, what was learned once from its beginning does not hold any more, what is learned all along does.
    #[test]
    fn a_log_that_drifts_is_followed() {
        let [_, second, third, last] = held(|quarter| [1.0, 2.0, 4.0, 1.0][quarter as usize]);
        assert!(second.0 > 0.83 && second.1 < 0.75, "{second:?}");
        assert!(third.0 > 0.83 && third.1 < 0.5, "{third:?}");
        assert!(last.0 > 0.87, "{last:?}");
    }

    #[test]
    fn factors_by_hand() {
        // Nineteen were right in the middle, the last one late by twice the distance.
        let mut all = vec![(range(40, 100, 240), 100); 19];
        all.push((range(40, 100, 240), 500));
        let mut rolling = Rolling::default();
        assert_eq!(rolling.tell(50, &all, &all), None);
        assert_eq!(rolling.clone().widening(499), None);
        let widening = rolling.widening(500).unwrap();
        // None was below, and of twenty one may be above.
        assert_eq!(widening.start, Sides { below: 0.0, above: 0.0 });
        let off = |times: f64, known: bool| (times, 1.0, known);
        // One of four, then one of the two that are left.
        let some = vec![off(1.0, true), off(2.0, false), off(3.0, true), off(4.0, true)];
        assert_eq!(quantiles(some.clone(), [0.25, 0.6]), Some([1.0, 3.0]));
        assert_eq!(quantiles(some, [0.26, 0.63]), Some([3.0, 4.0]));
        assert_eq!(quantiles(vec![off(1.0, true), off(7.0, false)], [0.5, 0.9]), Some([1.0, 7.0]));
        assert_eq!(quantiles(Vec::new(), [0.1, 0.9]), None);
        let widening =
            Widening { start: Sides { below: 3.0, above: 2.0 }, end: Sides { below: 0.0, above: 2.0 } };
        let forecast = Forecast { start: range(50, 100, 140), end: range(60, 100, 100), same_nodes: 0.5 };
        let told = widening.apply(&forecast, 70);
        assert_eq!((told.start, told.end), (range(70, 100, 300), range(100, 100, 220)));
    }

    proptest! {
        /// Whatever comes after a moment, what is told at it is the same.
        #[test]
        fn nobody_looks_ahead(
            jobs in prop::collection::vec((0u64..4000, 0u64..500, 0u64..500, 0u64..3000, 0u64..5000), 30..120),
            now_s in 1000u64..5000,
        ) {
            let told = |change: bool| {
                let mut jobs = jobs.clone();
                jobs.sort();
                let mut rolling = Rolling::default();
                for (at_s, down, up, wait, other) in jobs.into_iter().filter(|job| job.0 <= now_s) {
                    let real_s = at_s + wait;
                    let real_s = if change && real_s > now_s { now_s + 1 + other } else { real_s };
                    let middle_s = at_s + 1000;
                    let job = [(range(middle_s - down, middle_s, middle_s + up), real_s)];
                    rolling.tell(at_s, &job, &job);
                }
                rolling.widening(now_s)
            };
            prop_assert_eq!(told(false), told(true));
        }

        /// Without jobs that wait it is the plain quantile of weights, against a slow count.
        #[test]
        fn quantiles_of_known_values_are_plain(values in prop::collection::vec((-50i32..50, 1u32..5), 1..40)) {
            let all: Vec<(f64, f64, bool)> = values.iter().map(|(value, weight)| (f64::from(*value), f64::from(*weight), true)).collect();
            let sum: u32 = values.iter().map(|one| one.1).sum();
            let slow = |share: f64| {
                let below = |most: i32| values.iter().filter(|one| one.0 <= most).map(|one| one.1).sum::<u32>();
                (-50..50).find(|most| f64::from(below(*most)) >= share * f64::from(sum) - 1e-6).map(f64::from)
            };
            let [low, high] = quantiles(all, [0.05, 0.95]).unwrap();
            prop_assert_eq!((Some(low), Some(high)), (slow(0.05), slow(0.95)));
        }
    }
}
