//! Who is in whose way on one tier: what each application loses there, and by whom. Pure.
//!
//! What an application has alone is what the tier's curve says of its own processes and pattern; without a curve, what it had
//! in its best phase. What it has less now is put down, in this order,
//! - to itself: what the tier would still give, it does not ask for;
//! - to the scheduler, which made it wait for a turn or a share;
//! - to the others, by the part of the tier's time that each takes. They cost no more than that time, and by how much their
//!   processes make the tier slower.
//!
//! Only the latter two are its slowdown. Shares of time, not of bytes: where there are curves, a byte of a slow pattern counts for more.

use crate::curve::Curves;
use crate::model::{JobId, Pattern};
use std::collections::BTreeMap;

/// A tier that is used to this part of its curve is taken to be busy: curves are medians, and rates are those of one second.
const BUSY: f64 = 0.8;
/// Who gets less than this part of what it has alone is told as slowed down by as much.
const SLOWDOWN_MAX: f64 = 1000.0;

/// What an application does to the tier now.
#[derive(Clone, PartialEq, Debug)]
pub struct Mover {
    pub job: JobId,
    /// That write; 0 for one that only flushes.
    pub processes: u32,
    pub pattern: Pattern,
    pub write_per_s: u64,
    /// Daemons that flush, and what they move together.
    pub flushers: u32,
    pub flush_per_s: u64,
    /// Of its best earlier phase.
    pub best_per_s: Option<u64>,
    /// In which part of the time it was made to wait for a turn or a share, 0 to 1.
    pub held: f64,
}

/// What is known of an application alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// The tier's curve.
    Curve,
    /// Its own best earlier phase.
    BestPhase,
}

/// What one loses.
#[derive(Clone, PartialEq, Debug)]
pub struct Judged {
    pub mover: Mover,
    /// What it would have alone, in bytes/s; none where nothing is known, or it only flushes.
    pub alone: Option<(u64, By)>,
    /// 1 for none.
    pub slowdown: Option<f64>,
    /// The part of the loss that its own turn or share makes.
    pub held_back: f64,
    /// The parts of others, the largest first. All parts together are 1, or there are none.
    pub blame: Vec<Blame>,
}

/// The part of another one in a loss.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Blame {
    pub job: JobId,
    /// By what its programs write, and by what is flushed.
    pub write: f64,
    pub flush: f64,
}

impl Blame {
    pub fn part(&self) -> f64 {
        self.write + self.flush
    }
}

/// A tier.
#[derive(Clone, PartialEq, Debug)]
pub struct Tally {
    /// Those that suffer most come first.
    pub all: Vec<Judged>,
    pub write_per_s: u64,
    pub flush_per_s: u64,
    /// Applications that write, and their processes.
    pub users: usize,
    pub processes: u32,
    /// Of its curves.
    pub peak_per_s: Option<u64>,
    /// What is moved, as a part of the peak.
    pub utilisation: Option<f64>,
    /// Of all whose slowdown is known.
    pub slowdown: Option<Spread>,
}

/// Slowdowns of several (also called stretch).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    pub max: f64,
    pub mean: f64,
    /// Jain's index of what each has of what it would have alone: 1 when all have the same part, 1/n when one has all.
    pub fairness: f64,
}

/// Judges everybody on a tier. What is told of one job twice is added.
pub fn judge(movers: &[Mover], curves: Option<&Curves>) -> Tally {
    let movers = by_job(movers);
    let sum = |part: fn(&Mover) -> u64| movers.iter().map(part).fold(0, u64::saturating_add);
    let count = |part: fn(&Mover) -> u32| movers.iter().map(part).fold(0, u32::saturating_add);
    let (processes, flushers) = (count(|all| all.processes), count(|all| all.flushers));
    let ground = Ground::of(&movers, curves, processes.saturating_add(flushers));
    let mut all: Vec<Judged> = (0..movers.len()).map(|at| ground.judged(&movers, at)).collect();
    all.sort_by(|a, b| b.slowdown.unwrap_or(0.0).total_cmp(&a.slowdown.unwrap_or(0.0)));
    let (write_per_s, flush_per_s) = (sum(|all| all.write_per_s), sum(|all| all.flush_per_s));
    let peak_per_s = curves.map(Curves::peak);
    let moved = write_per_s.saturating_add(flush_per_s) as f64;
    Tally {
        slowdown: Spread::of(&all.iter().filter_map(|one| one.slowdown).collect::<Vec<_>>()),
        all,
        write_per_s,
        flush_per_s,
        users: movers.iter().filter(|all| all.processes > 0).count(),
        processes,
        peak_per_s,
        utilisation: peak_per_s.map(|peak| moved / peak as f64),
    }
}

/// In an order that does not depend on that in which they were told.
fn by_job(movers: &[Mover]) -> Vec<Mover> {
    let mut jobs: BTreeMap<JobId, Mover> = BTreeMap::new();
    for mover in movers {
        let Some(known) = jobs.get_mut(&mover.job) else {
            jobs.insert(mover.job, mover.clone());
            continue;
        };
        known.processes = known.processes.saturating_add(mover.processes);
        known.flushers = known.flushers.saturating_add(mover.flushers);
        known.write_per_s = known.write_per_s.saturating_add(mover.write_per_s);
        known.flush_per_s = known.flush_per_s.saturating_add(mover.flush_per_s);
        known.best_per_s = known.best_per_s.max(mover.best_per_s);
        known.held = known.held.max(mover.held);
        known.pattern = known.pattern.max(mover.pattern);
    }
    jobs.into_values().collect()
}

/// What everybody together does to the tier.
struct Ground<'a> {
    curves: Option<&'a Curves>,
    /// All that are at work, for flushes, too.
    processes: u32,
    /// The part of the tier's time that each takes with writing and with flushing; bytes/s where there are no curves.
    takes: Vec<[f64; 2]>,
}

impl Ground<'_> {
    fn of<'a>(movers: &[Mover], curves: Option<&'a Curves>, processes: u32) -> Ground<'a> {
        let rate = |pattern| curves.map_or(1.0, |curves| curves.of(pattern).at(processes).max(1) as f64);
        let takes = movers.iter().map(|mover| {
            let flush = mover.flush_per_s as f64 / rate(Pattern::Sequential);
            [mover.write_per_s as f64 / rate(mover.pattern), flush]
        });
        Ground { curves, processes, takes: takes.collect() }
    }

    fn alone(&self, mover: &Mover) -> Option<(u64, By)> {
        if mover.processes == 0 {
            return None;
        }
        let known = match self.curves {
            Some(curves) => Some((curves.of(mover.pattern).at(mover.processes), By::Curve)),
            None => mover.best_per_s.map(|best| (best, By::BestPhase)),
        };
        known.map(|(rate, by)| (rate.max(mover.write_per_s), by))
    }

    fn judged(&self, movers: &[Mover], at: usize) -> Judged {
        let mover = movers[at].clone();
        let alone = self.alone(&mover);
        let Some((most, _)) = alone else {
            return Judged { mover, alone, slowdown: None, held_back: 0.0, blame: Vec::new() };
        };
        let most = most as f64;
        let lost = most - mover.write_per_s as f64;
        let others: f64 = (0..movers.len()).filter(|other| *other != at).map(|other| self.time(other)).sum();
        let held = (lost - self.unasked(&mover)).max(0.0) * mover.held.clamp(0.0, 1.0);
        let by_others = self.by_others(&mover, most, lost - held, others);
        let all = held + by_others;
        let mut blame: Vec<Blame> = Vec::new();
        if by_others > 0.0 {
            let part = |takes: f64| takes / others * by_others / all;
            let of = |other: usize| {
                let [write, flush] = self.takes[other].map(part);
                Blame { job: movers[other].job, write, flush }
            };
            blame =
                (0..movers.len()).filter(|other| *other != at && self.time(*other) > 0.0).map(of).collect();
            blame.sort_by(|a, b| b.part().total_cmp(&a.part()));
        }
        let slowdown = (most / (most - all).max(1.0)).clamp(1.0, SLOWDOWN_MAX);
        let held_back = if held > 0.0 { held / all } else { 0.0 };
        Judged { mover, alone, slowdown: Some(slowdown), held_back, blame }
    }

    fn time(&self, of: usize) -> f64 {
        let [write, flush] = self.takes[of];
        write + flush
    }

    /// What the tier would still give, in bytes/s; without curves nobody knows.
    fn unasked(&self, mover: &Mover) -> f64 {
        let Some(curves) = self.curves else { return 0.0 };
        let used: f64 = (0..self.takes.len()).map(|of| self.time(of)).sum();
        (BUSY - used).max(0.0) * curves.of(mover.pattern).at(self.processes) as f64
    }

    /// What of a loss is the doing of others that take so much time.
    fn by_others(&self, mover: &Mover, alone: f64, lost: f64, others: f64) -> f64 {
        if others <= 0.0 {
            return 0.0;
        }
        let Some(curves) = self.curves else { return lost.max(0.0) };
        let falls = (alone - curves.of(mover.pattern).at(self.processes) as f64).max(0.0);
        let most = others.min(1.0) * alone + falls;
        (lost - self.unasked(mover)).clamp(0.0, most)
    }
}

impl Spread {
    pub fn of(slowdowns: &[f64]) -> Option<Spread> {
        let count = slowdowns.len() as f64;
        let max = slowdowns.iter().copied().reduce(f64::max)?;
        let parts = slowdowns.iter().map(|slowdown| 1.0 / slowdown);
        let (sum, squares) =
            parts.fold((0.0, 0.0), |(sum, squares), part| (sum + part, squares + part * part));
        let mean = slowdowns.iter().sum::<f64>() / count;
        Some(Spread { max, mean, fairness: sum * sum / (count * squares) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Curve;
    use proptest::prelude::*;

    fn writer(job: u64, processes: u32, write_per_s: u64) -> Mover {
        Mover {
            job: JobId(job),
            processes,
            pattern: Pattern::Sequential,
            write_per_s,
            flushers: 0,
            flush_per_s: 0,
            best_per_s: None,
            held: 0.0,
        }
    }

    fn flusher(job: u64, flush_per_s: u64) -> Mover {
        Mover { flushers: 1, flush_per_s, ..writer(job, 0, 0) }
    }

    /// 200 to 600 bytes/s with up to 8 processes, then falling to 300 with 64.
    fn curves() -> Curves {
        let curve = Curve::new(&[(1, 200), (8, 600), (64, 300)]).unwrap();
        let random = Curve::new(&[(1, 20)]).unwrap();
        Curves { sequential: curve.clone(), strided: curve, random }
    }

    fn of(tally: &Tally, job: u64) -> &Judged {
        tally.all.iter().find(|one| one.mover.job == JobId(job)).unwrap()
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 0.01, "{found} instead of {expected}");
    }

    /// One process beside 63: of the 300 bytes/s of 64 it has 5, alone it would have 200.
    #[test]
    fn a_victim_names_its_aggressor() {
        let tally = judge(&[writer(1, 1, 5), writer(2, 63, 295)], Some(&curves()));
        let victim = &tally.all[0];
        assert_eq!((victim.mover.job, victim.alone), (JobId(1), Some((200, By::Curve))));
        close(victim.slowdown.unwrap(), 40.0);
        assert_eq!(victim.blame, [Blame { job: JobId(2), write: 1.0, flush: 0.0 }]);
        let aggressor = of(&tally, 2);
        assert!(aggressor.slowdown.unwrap() < 1.05, "{aggressor:?}");
        assert_eq!((tally.users, tally.processes, tally.peak_per_s), (2, 64, Some(600)));
        close(tally.utilisation.unwrap(), 0.5);
        let spread = tally.slowdown.unwrap();
        assert!(spread.max > 39.0 && spread.mean > 20.0 && spread.fairness < 0.6, "{spread:?}");
    }

    #[test]
    fn flushes_are_told_apart_from_writing() {
        let tally = judge(&[writer(1, 1, 50), writer(2, 1, 100), flusher(3, 100)], Some(&curves()));
        let victim = of(&tally, 1);
        // Each of the two takes the same time of the tier.
        assert_eq!(victim.blame.len(), 2);
        for blame in &victim.blame {
            close(blame.part(), 0.5);
            assert_eq!((blame.write > 0.0, blame.flush > 0.0), (blame.job.0 == 2, blame.job.0 == 3));
        }
        assert_eq!((of(&tally, 3).alone, of(&tally, 3).slowdown), (None, None));
    }

    /// 20 bytes/s of a random pattern are all of the tier's time: 150 of the other one's are half of it.
    #[test]
    fn time_counts_not_bytes() {
        let random = Mover { pattern: Pattern::Random, ..writer(2, 1, 16) };
        let tally = judge(&[writer(1, 1, 40), random, writer(3, 1, 40)], Some(&curves()));
        assert_eq!(of(&tally, 1).blame[0].job, JobId(2));
        assert!(of(&tally, 1).blame[0].part() > 0.8, "{tally:?}");
    }

    /// The tier is nearly idle, and the other one takes next to nothing.
    #[test]
    fn who_asks_for_little_is_not_slowed_down() {
        let tally = judge(&[writer(1, 8, 10), writer(2, 1, 5)], Some(&curves()));
        assert!(tally.slowdown.unwrap().max < 1.03, "{tally:?}");
        // Even beside one that takes a third of it.
        let tally = judge(&[writer(1, 1, 1), writer(2, 4, 150)], Some(&curves()));
        assert!(of(&tally, 1).slowdown.unwrap() < 1.3, "{tally:?}");
    }

    #[test]
    fn turns_and_shares_are_told_apart() {
        let held = |held| Mover { held, ..writer(1, 1, 10) };
        let others = writer(2, 7, 590);
        let tally = judge(&[held(1.0), others.clone()], Some(&curves()));
        let all = of(&tally, 1);
        assert_eq!((all.held_back, all.blame.len()), (1.0, 0));
        close(all.slowdown.unwrap(), 20.0);
        let tally = judge(&[held(0.5), others], Some(&curves()));
        let half = of(&tally, 1);
        close(half.held_back, 0.5);
        close(half.blame[0].part(), 0.5);
    }

    #[test]
    fn without_curves_the_best_phase_counts_and_without_that_nothing_is_known() {
        let best = Mover { best_per_s: Some(100), ..writer(1, 1, 25) };
        let tally = judge(&[best, writer(2, 1, 75)], None);
        let victim = of(&tally, 1);
        assert_eq!((victim.alone, victim.slowdown), (Some((100, By::BestPhase)), Some(4.0)));
        assert_eq!(victim.blame, [Blame { job: JobId(2), write: 1.0, flush: 0.0 }]);
        let unknown = of(&tally, 2);
        assert_eq!((unknown.alone, unknown.slowdown, unknown.blame.len()), (None, None, 0));
        assert_eq!((tally.peak_per_s, tally.utilisation), (None, None));
        assert_eq!(judge(&[], None).slowdown, None);
    }

    #[test]
    fn a_stall_is_a_number() {
        let stalled = Mover { best_per_s: Some(1_000_000), ..writer(1, 1, 0) };
        let tally = judge(&[stalled, writer(2, 7, 600)], None);
        assert_eq!(of(&tally, 1).slowdown, Some(SLOWDOWN_MAX));
    }

    fn movers() -> impl Strategy<Value = Vec<Mover>> {
        let patterns = prop_oneof![Just(Pattern::Sequential), Just(Pattern::Strided), Just(Pattern::Random)];
        let one =
            (0..6u64, 0..70u32, patterns, 0..700u64, 0..3u32, 0..300u64, prop::option::of(0..700u64), 0..5u8);
        let mover =
            one.prop_map(|(job, processes, pattern, write, flushers, flush, best_per_s, held)| Mover {
                pattern,
                flushers,
                flush_per_s: flush * u64::from(flushers),
                best_per_s,
                held: f64::from(held) / 4.0,
                ..writer(job, processes, if processes == 0 { 0 } else { write })
            });
        prop::collection::vec(mover, 0..8)
    }

    proptest! {
        #[test]
        fn alone_nobody_is_to_blame(
            processes in 1..100u32, write in 0..1000u64, flush in 0..500u64, best in prop::option::of(0..900u64), measured: bool
        ) {
            let lone = Mover { best_per_s: best, flush_per_s: flush, flushers: 1, ..writer(1, processes, write) };
            let curves = curves();
            let tally = judge(&[lone], measured.then_some(&curves));
            let judged = &tally.all[0];
            prop_assert!(judged.blame.is_empty() && judged.held_back == 0.0);
            prop_assert!(judged.slowdown.is_none_or(|slowdown| (slowdown - 1.0).abs() < 1e-9));
        }

        #[test]
        fn parts_are_a_whole_and_order_does_not_matter(all in movers(), measured: bool) {
            let curves = curves();
            let curves = measured.then_some(&curves);
            let tally = judge(&all, curves);
            for one in &tally.all {
                let parts = one.held_back + one.blame.iter().map(Blame::part).sum::<f64>();
                prop_assert!(parts == 0.0 || (parts - 1.0).abs() < 1e-9, "{one:?}");
                prop_assert_eq!(parts > 0.0, one.slowdown.is_some_and(|slowdown| slowdown > 1.0));
                prop_assert!(one.blame.iter().all(|blame| blame.job != one.mover.job));
                prop_assert!(one.slowdown.is_none_or(|slowdown| (1.0..=SLOWDOWN_MAX).contains(&slowdown)));
            }
            let known = tally.all.iter().filter(|one| one.slowdown.is_some()).count() as f64;
            let possible = |all: Spread| {
                (1.0 / known - 1e-9..1.0 + 1e-9).contains(&all.fairness) && all.mean <= all.max + 1e-9
            };
            prop_assert!(tally.slowdown.is_none_or(possible));
            let mut turned = all.clone();
            turned.reverse();
            prop_assert_eq!(judge(&turned, curves), tally);
        }
    }
}
