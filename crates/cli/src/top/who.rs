//! What loads say of who does what to which tier. Pure; the judgement is `tidepool_iosched::blame`.
//!
//! What a daemon tells, and what not (`docs/formats/24-tier-loads.md`):
//! - Its rate of writing is put down to the tier where its phase writes new data. What it overwrites elsewhere counts there, too.
//! - Where it reads is not told, so reads are shown and nobody is blamed for them.
//! - Where it flushes to is not told either: it counts for the slowest tier, and for the burst buffer when something there waits to be flushed.
//! - Of shared storage its files lie beside one directory only: pools there are taken to share the burst buffer as well.
//! - Its earlier phases may have been on any tier.

use std::collections::BTreeMap;
use std::sync::Arc;
use tidepool_fsd::loads::{Load, PhaseLoad};
use tidepool_iosched::blame::{Mover, Tally, judge};
use tidepool_iosched::{Curves, JobId, Pattern, Tier};

/// A phase that is younger has a rate of its own: that of the last second is older than it.
const YOUNG_MS: u64 = 2_000;
/// Shorter phases say nothing of what storage can do.
const PHASE_MIN_MS: u64 = 100;

/// What is known beside the loads.
#[derive(Clone, Default)]
pub struct Known {
    /// Without a parallel file system the burst buffer is the slowest.
    pub no_pfs: bool,
    pub burst: Option<Arc<Curves>>,
    pub pfs: Option<Arc<Curves>>,
}

impl Known {
    fn slowest(&self) -> Tier {
        if self.no_pfs { Tier::Burst } else { Tier::Pfs }
    }

    pub fn curves(&self, tier: Tier) -> Option<&Curves> {
        match tier {
            Tier::Local => None,
            Tier::Burst => self.burst.as_deref(),
            Tier::Pfs => self.pfs.as_deref(),
        }
    }
}

/// Everybody who tells a load beside one directory.
#[derive(Clone, PartialEq, Debug)]
pub struct Scene {
    pub pools: BTreeMap<JobId, Pool>,
    /// Those that somebody uses, from fast to slow.
    pub tiers: Vec<(Tier, Tally)>,
}

/// A pool, of all its daemons.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pool {
    pub name: String,
    pub daemons: usize,
    pub processes: u32,
    pub write_per_s: u64,
    pub read_per_s: u64,
    pub flush_per_s: u64,
    pub held_back_ms: u64,
    /// Since when a phase that waits for its turn has gone on, in milliseconds since 1970.
    pub waits_since_ms: Option<u64>,
    pub dirty_burst: u64,
    pub dirty_local: u64,
}

impl Scene {
    pub fn of(loads: &[Load], known: &Known, held: &Held) -> Scene {
        let mut jobs: BTreeMap<JobId, Vec<&Load>> = BTreeMap::new();
        for load in loads {
            jobs.entry(JobId(load.job)).or_default().push(load);
        }
        let pools = jobs.iter().map(|(job, loads)| (*job, Pool::of(loads))).collect();
        let tier = |tier: Tier| {
            let mover = |(job, loads): (&JobId, &Vec<&Load>)| mover(*job, loads, tier, known, held);
            let movers: Vec<Mover> = jobs.iter().filter_map(mover).collect();
            if movers.is_empty() {
                return None;
            }
            // Storage of their own is nobody else's.
            let all = if tier == Tier::Local { apart(&movers) } else { movers };
            Some((tier, judge(&all, known.curves(tier))))
        };
        Scene { tiers: Tier::ALL.into_iter().filter_map(tier).collect(), pools }
    }

    pub fn pool(&self, job: JobId) -> &Pool {
        &self.pools[&job]
    }
}

/// Without what would make them comparable.
fn apart(movers: &[Mover]) -> Vec<Mover> {
    movers.iter().map(|mover| Mover { best_per_s: None, ..mover.clone() }).collect()
}

impl Pool {
    fn of(loads: &[&Load]) -> Pool {
        let mut pool = Pool::default();
        for load in loads {
            pool.name.clone_from(&load.name);
            pool.daemons += 1;
            pool.processes = pool.processes.max(load.processes);
            pool.write_per_s = pool.write_per_s.saturating_add(load.write_per_s);
            pool.read_per_s = pool.read_per_s.saturating_add(load.read_per_s);
            pool.flush_per_s = pool.flush_per_s.saturating_add(load.flush_per_s);
            pool.held_back_ms = pool.held_back_ms.saturating_add(load.held_back_ms);
            pool.dirty_burst = pool.dirty_burst.saturating_add(load.dirty_burst);
            pool.dirty_local = pool.dirty_local.saturating_add(load.dirty_local);
            let waits = load.phase.as_ref().filter(|phase| phase.tier.is_none()).map(|phase| phase.began_ms);
            pool.waits_since_ms = pool.waits_since_ms.into_iter().chain(waits).min();
        }
        pool
    }
}

/// What a pool's daemons do to a tier; none for nothing.
fn mover(job: JobId, loads: &[&Load], tier: Tier, known: &Known, held: &Held) -> Option<Mover> {
    let mut mover = Mover {
        job,
        processes: 0,
        pattern: Pattern::Sequential,
        write_per_s: 0,
        flushers: 0,
        flush_per_s: 0,
        best_per_s: best(loads),
        held: held.part(job),
    };
    for load in loads {
        if let Some(phase) = load.phase.as_ref().filter(|phase| phase.tier.map(Tier::from) == Some(tier)) {
            mover.processes = mover.processes.max(load.processes);
            mover.pattern = mover.pattern.max(phase.pattern.into());
            mover.write_per_s = mover.write_per_s.saturating_add(rate(load, phase));
        }
        let flushes = tier == known.slowest() || (tier == Tier::Burst && load.dirty_burst > 0);
        if flushes && load.flush_per_s > 0 {
            mover.flushers += 1;
            mover.flush_per_s = mover.flush_per_s.saturating_add(load.flush_per_s);
        }
    }
    (mover.processes > 0 || mover.flushers > 0).then_some(mover)
}

fn rate(load: &Load, phase: &PhaseLoad) -> u64 {
    let age = load.at_ms.saturating_sub(phase.began_ms);
    if age < YOUNG_MS { per_s(phase.bytes, age.max(PHASE_MIN_MS)) } else { load.write_per_s }
}

fn per_s(bytes: u64, ms: u64) -> u64 {
    u64::try_from(u128::from(bytes) * 1000 / u128::from(ms.max(1))).unwrap_or(u64::MAX)
}

/// The rate of the best earlier phase. Its daemons' phases are put together from the last one back.
fn best(loads: &[&Load]) -> Option<u64> {
    let most = loads.iter().map(|load| load.past.len()).max()?;
    let of = |back: usize| {
        let parts = || loads.iter().filter_map(|load| load.past.iter().rev().nth(back));
        let began = parts().map(|past| past.began_ms).min()?;
        let ended = parts().map(|past| past.ended_ms).max()?;
        let bytes = parts().map(|past| past.bytes).fold(0, u64::saturating_add);
        let lasted = ended.saturating_sub(began);
        (lasted >= PHASE_MIN_MS && bytes > 0).then(|| per_s(bytes, lasted))
    };
    (0..most).filter_map(of).max()
}

/// In which part of the time each pool is held back, from one look to the next.
#[derive(Clone, Default)]
pub struct Held {
    daemons: BTreeMap<(u64, u16), Then>,
    parts: BTreeMap<JobId, f64>,
}

#[derive(Clone, Copy)]
struct Then {
    at_ms: u64,
    held_back_ms: u64,
    part: f64,
}

impl Held {
    /// With one look only, somebody who is held back is held back all the time: more is not told.
    pub fn look(&mut self, loads: &[Load]) {
        let mut daemons = BTreeMap::new();
        let mut parts: BTreeMap<JobId, f64> = BTreeMap::new();
        for load in loads {
            let key = (load.job, load.index);
            let part = match self.daemons.get(&key) {
                Some(then) if then.at_ms >= load.at_ms => then.part,
                Some(then) => {
                    let passed = (load.at_ms - then.at_ms).saturating_mul(u64::from(load.processes));
                    let held = load.held_back_ms.saturating_sub(then.held_back_ms);
                    (held as f64 / passed as f64).min(1.0)
                }
                None => f64::from(u8::from(load.holding)),
            };
            daemons.insert(key, Then { at_ms: load.at_ms, held_back_ms: load.held_back_ms, part });
            let of_pool = parts.entry(JobId(load.job)).or_default();
            *of_pool = (*of_pool + part).min(1.0);
        }
        (self.daemons, self.parts) = (daemons, parts);
    }

    fn part(&self, job: JobId) -> f64 {
        self.parts.get(&job).copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_fsd::loads::{PastLoad, PatternWord, TierWord};
    use tidepool_iosched::Curve;
    use tidepool_iosched::blame::By;

    fn load(job: u64, index: u16, tier: Option<TierWord>, write_per_s: u64) -> Load {
        let phase = PhaseLoad {
            began_ms: 1_000,
            bytes: 7_000,
            expected: None,
            tier,
            pattern: PatternWord::Sequential,
        };
        Load {
            name: format!("p{job}"),
            at_ms: 9_000,
            phase: Some(phase),
            write_per_s,
            ..Load::new(job, index)
        }
    }

    fn scene(loads: &[Load], known: &Known) -> Scene {
        let mut held = Held::default();
        held.look(loads);
        Scene::of(loads, known, &held)
    }

    fn tally(scene: &Scene, tier: Tier) -> &Tally {
        &scene.tiers.iter().find(|(known, _)| *known == tier).unwrap().1
    }

    #[test]
    fn daemons_of_a_job_are_one_pool() {
        let pfs = Some(TierWord::Pfs);
        let loads = [
            Load { processes: 3, held_back_ms: 4, ..load(1, 0, pfs, 10) },
            Load { processes: 2, read_per_s: 5, ..load(1, 1, pfs, 20) },
            load(1, 2, Some(TierWord::Burst), 40),
            load(2, 0, pfs, 70),
        ];
        let found = scene(&loads, &Known::default());
        let pool = found.pool(JobId(1));
        assert_eq!((pool.daemons, pool.processes, pool.write_per_s, pool.read_per_s), (3, 3, 70, 5));
        assert_eq!((pool.held_back_ms, pool.name.as_str()), (4, "p1"));
        let of = |tier| {
            let tally = tally(&found, tier);
            (tally.users, tally.processes, tally.write_per_s)
        };
        assert_eq!((of(Tier::Burst), of(Tier::Pfs)), ((1, 1, 40), (2, 4, 100)));
        let mut turned = loads.to_vec();
        turned.reverse();
        assert_eq!(scene(&turned, &Known::default()), found);
    }

    #[test]
    fn flushes_load_where_they_come_from_and_go_to() {
        let flushes = |dirty_burst| Load { phase: None, flush_per_s: 50, dirty_burst, ..load(1, 0, None, 0) };
        let at = |load: Load, known: &Known| {
            let found = scene(&[load], known);
            found.tiers.iter().map(|(tier, tally)| (*tier, tally.flush_per_s)).collect::<Vec<_>>()
        };
        assert_eq!(at(flushes(9), &Known::default()), [(Tier::Burst, 50), (Tier::Pfs, 50)]);
        assert_eq!(at(flushes(0), &Known::default()), [(Tier::Pfs, 50)]);
        assert_eq!(at(flushes(0), &Known { no_pfs: true, ..Known::default() }), [(Tier::Burst, 50)]);
    }

    #[test]
    fn who_waits_is_on_no_tier() {
        let found = scene(&[load(1, 0, None, 0)], &Known::default());
        assert_eq!((found.tiers.len(), found.pool(JobId(1)).waits_since_ms), (0, Some(1_000)));
    }

    /// Two daemons had 3000 bytes together in 2 s once, and 9000 in 3 s before that.
    #[test]
    fn the_best_phase_is_that_of_all_daemons() {
        let past = |began_ms, ended_ms, bytes| PastLoad { began_ms, ended_ms, bytes };
        let one = vec![past(100, 3_000, 6_000), past(5_000, 6_500, 1_000), past(7_000, 7_010, 1_000_000)];
        let other = vec![past(110, 3_100, 3_000), past(5_100, 7_000, 2_000), past(7_000, 7_050, 1)];
        let with = |index, past| Load { past, ..load(1, index, Some(TierWord::Pfs), 500) };
        let found =
            scene(&[with(0, one), with(1, other), load(2, 0, Some(TierWord::Pfs), 9)], &Known::default());
        let judged = tally(&found, Tier::Pfs).all.iter().find(|all| all.mover.job == JobId(1)).unwrap();
        assert_eq!(judged.alone, Some((3_000, By::BestPhase)));
        assert_eq!(judged.slowdown, Some(3.0));
    }

    #[test]
    fn a_young_phase_is_known_by_its_own_bytes() {
        let young = Load { at_ms: 1_500, write_per_s: 0, ..load(1, 0, Some(TierWord::Pfs), 0) };
        assert_eq!(tally(&scene(&[young], &Known::default()), Tier::Pfs).write_per_s, 14_000);
    }

    #[test]
    fn pools_on_their_own_storage_are_in_nobodys_way() {
        let past = vec![PastLoad { began_ms: 0, ended_ms: 1_000, bytes: 1_000 }];
        let local = |job| Load { past: past.clone(), ..load(job, 0, Some(TierWord::Local), 10) };
        let found = scene(&[local(1), local(2)], &Known::default());
        assert!(
            tally(&found, Tier::Local).all.iter().all(|all| all.slowdown.is_none() && all.blame.is_empty())
        );
    }

    #[test]
    fn how_much_is_held_back_is_known_from_two_looks() {
        let curves = Curves::same(Curve::new(&[(4, 1_000)]).unwrap());
        let known = Known { pfs: Some(Arc::new(curves)), ..Known::default() };
        let then =
            [Load { processes: 4, holding: true, held_back_ms: 100, ..load(1, 0, Some(TierWord::Pfs), 250) }];
        let mut held = Held::default();
        held.look(&then);
        let part = |held: &Held, loads: &[Load]| {
            let tally = Scene::of(loads, &known, held).tiers.remove(0).1;
            (tally.all[0].held_back, held.part(JobId(1)))
        };
        assert_eq!(part(&held, &then), (1.0, 1.0), "holding, and more is not known");
        // 2 of the 4 processes waited for the whole second.
        let now = [Load { at_ms: 10_000, held_back_ms: 2_100, ..then[0].clone() }];
        held.look(&now);
        assert_eq!(part(&held, &now).1, 0.5);
        held.look(&now);
        assert_eq!(part(&held, &now).1, 0.5, "nothing new was told");
    }
}
