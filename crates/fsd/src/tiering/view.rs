//! What a daemon knows, as the strategies see it. Pure.

use super::loads::Load;
use super::wall::NS_OF_MS;
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use tidepool_iosched::{
    App, Curves, Dirty, JobId, Local, PastPhase, Pattern, Phase, Shared, Tier, View, ViewError,
};
use tidepool_store::{UNIT, Usage};
use tidepool_types::BLOCK_SIZE;

/// Of node-local storage. Assumed, not measured: what a solid-state disk of a node has at least. Of the strategies only `model` looks
/// at it.
const LOCAL_BYTES_PER_S: u64 = 1 << 30;

/// What was said of a phase is believed until this part more than that has been written: headers are written again, and sizes
/// rounded. Then it is guessed.
const MORE_PART: u64 = 16;

/// A tier as this daemon finds it.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub tier: Tier,
    pub usage: Usage,
}

/// Everything at one moment.
pub struct Known<'a> {
    pub now_ns: u64,
    pub now_ms: u64,
    /// What it has told of itself last. Of its own phase, too, it knows what others know: so all who decide, decide alike.
    pub told: &'a Load,
    pub found: &'a [Found],
    /// Of all daemons but this one, of its own pool, too.
    pub heard: &'a [Load],
    /// The tiers' measured bandwidths.
    pub curves: &'a Measured,
    /// Nodes' own storage is left out.
    pub no_local: bool,
    /// What is said of the pool's phase, or of its next one: bytes, and how files are gone through.
    pub said: (Option<u64>, Option<Pattern>),
}

/// What was measured of the shared tiers.
#[derive(Clone, Default, Debug)]
pub struct Measured {
    pub burst: Option<Arc<Curves>>,
    pub pfs: Option<Arc<Curves>>,
}

impl Measured {
    pub fn put(&mut self, tier: Tier, curves: Arc<Curves>) {
        match tier {
            Tier::Local => {}
            Tier::Burst => self.burst = Some(curves),
            Tier::Pfs => self.pfs = Some(curves),
        }
    }

    pub fn of(&self, tier: Tier) -> Option<Arc<Curves>> {
        match tier {
            Tier::Local => None,
            Tier::Burst => self.burst.clone(),
            Tier::Pfs => self.pfs.clone(),
        }
    }
}

impl Known<'_> {
    /// `about_to_write`: as if a phase of this pool began just now, if none goes on.
    pub fn view(&self, about_to_write: bool) -> Result<View, ViewError> {
        let mut own = self.own();
        if about_to_write && own.phase.is_none() {
            let (expected_bytes, pattern) = self.said;
            let pattern = pattern.unwrap_or(Pattern::Sequential);
            own.phase = Some(Phase { expected_bytes, ..phase_at(self.now_ns, 0, None, pattern) });
        }
        let mut apps = BTreeMap::from([(self.told.job, own)]);
        for load in self.heard {
            let theirs = self.other(load);
            match apps.get_mut(&load.job) {
                None => {
                    apps.insert(load.job, theirs);
                }
                Some(app) => merge(app, theirs),
            }
        }
        apps.values_mut().filter_map(|app| app.phase.as_mut()).for_each(forget_the_disproved);
        let dirty: Vec<Dirty> =
            [Tier::Local, Tier::Burst].into_iter().filter_map(|tier| self.dirty(tier)).collect();
        View::new(
            self.now_ns,
            apps.into_values().collect(),
            self.shared(Tier::Burst),
            self.shared(Tier::Pfs),
            dirty,
        )
    }

    fn own(&self) -> App {
        let local = self.usage(Tier::Local).filter(|_| !self.no_local).map(|usage| Local {
            capacity_bytes: usage.total,
            free_bytes: usage.free.min(usage.total),
            bytes_per_s: LOCAL_BYTES_PER_S,
        });
        App { local, ..self.other(self.told) }
    }

    fn other(&self, load: &Load) -> App {
        let phase = load.phase.as_ref().map(|phase| {
            let tier = phase.tier.map(Tier::from);
            let begin_ns = self.moment(phase.began_ms);
            let seen = phase_at(begin_ns, phase.bytes, tier, phase.pattern.into());
            Phase { expected_bytes: phase.expected, ..seen }
        });
        let past = load.past.iter().map(|past| PastPhase {
            begin_ns: self.moment(past.began_ms),
            end_ns: self.moment(past.ended_ms),
            bytes: past.bytes,
        });
        // Its node has room of its own; how much, only it knows.
        let local = Local { capacity_bytes: u64::MAX, free_bytes: u64::MAX, bytes_per_s: LOCAL_BYTES_PER_S };
        let local = Some(local).filter(|_| !self.no_local);
        let link_bytes_per_s = load.link_per_s.map(NonZeroU64::get);
        App { phase, past: past.collect(), local, link_bytes_per_s, ..app(load.job, load.processes) }
    }

    /// A time of others by this daemon's clock.
    fn moment(&self, at_ms: u64) -> u64 {
        self.now_ns.saturating_sub(self.now_ms.saturating_sub(at_ms).saturating_mul(NS_OF_MS))
    }

    fn usage(&self, tier: Tier) -> Option<Usage> {
        self.found.iter().find(|found| found.tier == tier).map(|found| found.usage)
    }

    fn shared(&self, tier: Tier) -> Shared {
        let ages = self
            .heard
            .iter()
            .filter(|load| load.phase.is_some())
            .map(|load| self.now_ms.saturating_sub(load.at_ms));
        let (capacity, free) =
            self.usage(tier).map_or((0, 0), |usage| (usage.total, usage.free.min(usage.total)));
        Shared {
            capacity_bytes: capacity,
            free_bytes: free,
            foreign_users: 0,
            foreign_processes: 0,
            flush_in_bytes_per_s: 0,
            flush_out_bytes_per_s: 0,
            age_ns: Some(ages.max().unwrap_or(0).saturating_mul(NS_OF_MS)),
            curves: self.curves.of(tier),
        }
    }

    fn dirty(&self, tier: Tier) -> Option<Dirty> {
        let bytes = self.usage(tier)?.blocks * u64::from(BLOCK_SIZE);
        // What lies on the last tier lies where it is to be.
        let is_last = self.found.last().is_some_and(|last| last.tier == tier);
        let since_ns = self.told.past.first().map_or(0, |past| self.moment(past.began_ms));
        (bytes > 0 && !is_last).then_some(Dirty { job: JobId(self.told.job), tier, bytes, since_ns })
    }
}

fn phase_at(begin_ns: u64, written_bytes: u64, tier: Option<Tier>, pattern: Pattern) -> Phase {
    Phase { begin_ns, written_bytes, expected_bytes: None, pattern, tier }
}

/// Each process writes one unit at a time.
fn app(job: u64, processes: u32) -> App {
    let processes = processes.max(1);
    let (past, link_bytes_per_s, local) = (Vec::new(), None, None);
    App {
        job: JobId(job),
        processes,
        weight: 1,
        phase: None,
        past,
        link_bytes_per_s,
        under_way_bytes: u64::from(processes) * UNIT,
        local,
    }
}

fn forget_the_disproved(phase: &mut Phase) {
    let believed = |bytes: &u64| phase.written_bytes <= bytes.saturating_add(bytes / MORE_PART);
    phase.expected_bytes = phase.expected_bytes.filter(believed);
}

/// Daemons of one pool are one application. Each sees its clients; most see the same ones.
fn merge(app: &mut App, other: App) {
    app.processes = app.processes.max(other.processes);
    app.under_way_bytes = app.under_way_bytes.max(other.under_way_bytes);
    // Each has a node's links. What all of them carry is known when each one's is.
    let links = app.link_bytes_per_s.zip(other.link_bytes_per_s);
    app.link_bytes_per_s = links.map(|(one, other)| one.saturating_add(other));
    let both = app.past.iter_mut().rev().zip(other.past.iter().rev());
    for (one, other) in both {
        one.begin_ns = one.begin_ns.min(other.begin_ns);
        one.end_ns = one.end_ns.max(other.end_ns);
        one.bytes = one.bytes.saturating_add(other.bytes);
    }
    if app.past.is_empty() {
        app.past = other.past;
    }
    app.phase = match (app.phase, other.phase) {
        (Some(one), Some(other)) => Some(Phase {
            begin_ns: one.begin_ns.min(other.begin_ns),
            written_bytes: one.written_bytes.saturating_add(other.written_bytes),
            // Each says it of all of them, as far as it knows who takes part.
            expected_bytes: one.expected_bytes.max(other.expected_bytes),
            ..one
        }),
        (one, other) => one.or(other),
    };
}

#[cfg(test)]
mod tests {
    use super::super::loads::{PAST_MAX, PastLoad, PatternWord, PhaseLoad, TierWord};
    use super::*;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;
    use proptest::sample::select;
    use tidepool_iosched::{Curve, PROCESSES_MAX, Verdict, by_name, decide, names};
    use tidepool_types::PHASE_BYTES_MAX;

    const MS: u64 = 1_000_000;

    fn found(tier: Tier, blocks: u64, free: u64) -> Found {
        Found { tier, usage: Usage { blocks, free, total: 1 << 30 } }
    }

    fn load(job: u64, tier: TierWord) -> Load {
        let (tier, pattern) = (Some(tier), PatternWord::Sequential);
        let phase = PhaseLoad { began_ms: 900, bytes: 5, expected: None, tier, pattern };
        Load { at_ms: 990, phase: Some(phase), ..Load::new(job, 0) }
    }

    /// Where the strategy sends a phase of the daemon's own that begins.
    fn target(name: &str, found: &[Found], heard: &[Load]) -> Tier {
        let known = Known {
            now_ns: 1000 * MS,
            now_ms: 1000,
            told: &Load { processes: 2, ..Load::new(7, 1) },
            found,
            heard,
            curves: &Measured::default(),
            no_local: false,
            said: (None, None),
        };
        match decide(by_name(name).unwrap(), &known.view(true).unwrap()).phases[&JobId(7)] {
            Verdict::Go { tier, .. } => tier,
            Verdict::Wait => panic!("{name} lets it wait"),
        }
    }

    const FREE: u64 = 1 << 29;

    fn all() -> [Found; 3] {
        [found(Tier::Local, 0, FREE), found(Tier::Burst, 0, FREE), found(Tier::Pfs, 0, FREE)]
    }

    #[test]
    fn each_strategy_sends_a_lone_pool_where_it_should() {
        assert_eq!(target("baseline", &all(), &[]), Tier::Pfs);
        assert_eq!(target("hp", &all(), &[]), Tier::Burst);
        assert_eq!(target("ia", &all(), &[]), Tier::Burst);
        // Without a burst buffer, and with a full one.
        assert_eq!(target("hp", &[all()[0], all()[2]], &[]), Tier::Pfs);
        let full = [all()[0], found(Tier::Burst, 0, 0), all()[2]];
        assert_eq!(target("hp", &full, &[]), Tier::Pfs);
    }

    /// Algorithm 1 with two applications: the first has the burst buffer, the second the PFS. Of three, two have the burst
    /// buffer: one is fewer than half of them.
    #[test]
    fn other_pools_that_write_are_reckoned_with() {
        assert_eq!(target("ia", &all(), &[load(1, TierWord::Burst)]), Tier::Pfs);
        assert_eq!(target("hp", &all(), &[load(1, TierWord::Burst)]), Tier::Burst);
        let busy = [load(1, TierWord::Burst), load(2, TierWord::Pfs)];
        assert_eq!(target("ia", &all(), &busy), Tier::Burst);
        // Another daemon of the same pool is the same application.
        assert_eq!(target("ia", &all(), &[load(7, TierWord::Burst)]), Tier::Burst);
    }

    /// Two daemons of one pool, which both were told what all its processes write.
    #[test]
    fn what_is_said_of_a_phase_is_believed_until_it_is_wrong() {
        let one = |said: Option<u64>, bytes: u64, others: u64| {
            let of = |index: u16, expected, bytes| {
                let phase = PhaseLoad { bytes, expected, ..load(7, TierWord::Burst).phase.unwrap() };
                Load { phase: Some(phase), index, ..load(7, TierWord::Burst) }
            };
            let known = Known {
                now_ns: 1000 * MS,
                now_ms: 1000,
                told: &of(1, said, bytes),
                found: &all(),
                heard: &[of(2, said.map(|bytes| bytes - 10), others)],
                curves: &Measured::default(),
                no_local: false,
                said: (said, None),
            };
            let view = known.view(true).unwrap();
            let app = &view.apps()[0];
            (app.phase.unwrap().expected_bytes, app.remaining_bytes().unwrap())
        };
        assert_eq!(one(None, 100, 200), (None, 300), "as much again");
        assert_eq!(one(Some(1600), 100, 200), (Some(1600), 1300));
        assert_eq!(one(Some(1600), 1600, 100), (Some(1600), 1), "it is nearly over");
        assert_eq!(one(Some(1600), 1600, 101), (None, 1701));
    }

    /// Two pools with a link of 100 MB/s for each of their two daemons, and a burst buffer of 400 MB/s, 100 MB/s on the PFS.
    #[test]
    fn who_cannot_fill_a_tier_need_not_wait_for_others_that_cannot() {
        const MB: u64 = 1_000_000;
        let flat = |mb: u64| Some(Arc::new(Curves::same(Curve::flat(mb * MB).unwrap())));
        let curves = Measured { burst: flat(400), pfs: flat(100) };
        let verdict = |own: [Option<u64>; 2], theirs: [Option<u64>; 2]| {
            let of = |job, index, link: Option<u64>| {
                let phase = load(job, TierWord::Burst).phase.filter(|_| job != 7);
                let phase = phase.map(|phase| PhaseLoad { expected: Some(4000 * MB), ..phase });
                let link_per_s = link.and_then(|mb| NonZeroU64::new(mb * MB));
                Load { phase, link_per_s, index, processes: 8, ..load(job, TierWord::Burst) }
            };
            let known = Known {
                now_ns: 1000 * MS,
                now_ms: 1000,
                told: &of(7, 1, own[0]),
                found: &all(),
                heard: &[of(7, 2, own[1]), of(1, 1, theirs[0]), of(1, 2, theirs[1])],
                curves: &curves,
                no_local: true,
                said: (Some(4000 * MB), None),
            };
            let view = known.view(true).unwrap();
            let links: Vec<_> =
                view.apps().iter().map(|app| app.link_bytes_per_s.map(|bytes| bytes / MB)).collect();
            (links, decide(by_name("model").unwrap(), &view).phases[&JobId(7)])
        };
        let is_burst = |verdict: &Verdict| matches!(verdict, Verdict::Go { tier: Tier::Burst, .. });
        let (links, known) = verdict([Some(100); 2], [Some(100); 2]);
        assert_eq!(links, [Some(200); 2], "daemons have a node each");
        assert!(is_burst(&known), "{known:?}");
        for own in [[None; 2], [Some(100), None]] {
            let (links, unknown) = verdict(own, [None; 2]);
            assert_eq!(links, [None; 2], "what is known of one link says nothing of all");
            assert!(!is_burst(&unknown), "{unknown:?}");
        }
    }

    #[test]
    fn what_is_said_of_the_next_phase_counts_before_it_begins() {
        let known = |said| {
            Known {
                now_ns: 1000 * MS,
                now_ms: 1000,
                told: &Load::new(7, 1),
                found: &[],
                heard: &[],
                curves: &Measured::default(),
                no_local: false,
                said,
            }
            .view(true)
            .unwrap()
            .apps()[0]
                .phase
                .unwrap()
        };
        let phase = known((Some(9), Some(Pattern::Random)));
        assert_eq!((phase.expected_bytes, phase.pattern), (Some(9), Pattern::Random));
        assert_eq!(known((None, None)).pattern, Pattern::Sequential);
    }

    #[test]
    fn what_lies_above_the_last_tier_is_to_be_flushed() {
        let dirty = |found: &[Found]| {
            let (now_ns, now_ms, heard) = (0, 0, &[][..]);
            let known = Known {
                now_ns,
                now_ms,
                told: &Load::new(7, 1),
                found,
                heard,
                curves: &Measured::default(),
                no_local: false,
                said: (None, None),
            };
            let view = known.view(false).unwrap();
            view.dirty().iter().map(|dirty| (dirty.tier, dirty.bytes)).collect::<Vec<_>>()
        };
        let found = [found(Tier::Local, 1, FREE), found(Tier::Burst, 2, FREE), found(Tier::Pfs, 3, FREE)];
        assert_eq!(dirty(&found), [(Tier::Local, 4096), (Tier::Burst, 8192)]);
        assert_eq!(dirty(&found[..2]), [(Tier::Local, 4096)]);
    }

    fn said() -> impl Strategy<Value = Option<u64>> {
        option::of(1..=PHASE_BYTES_MAX)
    }

    fn a_load() -> impl Strategy<Value = Load> {
        let tiers = [None, Some(TierWord::Local), Some(TierWord::Burst), Some(TierWord::Pfs)];
        let patterns = [PatternWord::Sequential, PatternWord::Strided, PatternWord::Random];
        let words = (select(tiers.to_vec()), select(patterns.to_vec()));
        let phase = (any::<u64>(), any::<u64>(), said(), words);
        let phase = phase.prop_map(|(began_ms, bytes, expected, (tier, pattern))| PhaseLoad {
            began_ms,
            bytes,
            expected,
            tier,
            pattern,
        });
        let past = (any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(a, b, bytes)| PastLoad {
            began_ms: a.min(b),
            ended_ms: a.max(b),
            bytes,
        });
        let who = (0..6u64, 0..3u16, 1..=PROCESSES_MAX, any::<u64>(), any::<bool>(), any::<u64>());
        (who, option::of(phase), vec(past, 0..PAST_MAX)).prop_map(
            |((job, index, processes, at_ms, holding, link), phase, past)| Load {
                link_per_s: NonZeroU64::new(link),
                processes,
                at_ms,
                holding,
                phase,
                past,
                ..Load::new(job, index)
            },
        )
    }

    proptest! {
        /// Everybody may tell anything: no daemon is to stumble over it, whatever its strategy.
        #[test]
        fn whatever_is_told_can_be_decided_on(
            (told, heard) in (a_load(), vec(a_load(), 0..12)),
            (now_ms, free, about_to_write) in (0..1u64 << 40, any::<u64>(), any::<bool>()),
            bytes in said(),
        ) {
            let found = Tier::ALL.map(|tier| Found { tier, usage: Usage { blocks: 1, free, total: 1 << 40 } });
            let flat = Arc::new(Curves::same(Curve::flat(1 << 30).unwrap()));
            let curves = Measured { burst: Some(Arc::clone(&flat)), pfs: Some(flat) };
            let known =
                Known { now_ns: now_ms * NS_OF_MS, now_ms, told: &told, found: &found, heard: &heard, curves: &curves, no_local: false, said: (bytes, None) };
            let view = known.view(about_to_write).unwrap();
            for name in names() {
                decide(by_name(name).unwrap(), &view);
            }
        }
    }
}
