//! What a daemon knows, as the strategies see it. Pure.

use super::loads::Load;
use super::phases::Phases;
use std::collections::BTreeMap;
use tidepool_iosched::{App, Dirty, JobId, Local, Pattern, Phase, Shared, Tier, View, ViewError};
use tidepool_store::Usage;
use tidepool_types::BLOCK_SIZE;

/// Of node-local storage; only strategies that daemons do not offer look at it.
const LOCAL_BYTES_PER_S: u64 = 1 << 30;
const NS_OF_MS: u64 = 1_000_000;

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
    pub job: u64,
    pub processes: u32,
    pub phases: &'a Phases,
    /// Where its own phase writes now.
    pub target: Tier,
    pub found: &'a [Found],
    /// Of all daemons but this one, of its own pool, too.
    pub heard: &'a [Load],
}

impl Known<'_> {
    /// `about_to_write`: as if a phase of this pool began just now, if none goes on.
    pub fn view(&self, about_to_write: bool) -> Result<View, ViewError> {
        let mut own = self.own();
        if about_to_write && own.phase.is_none() {
            own.phase = Some(self.phase_at(self.now_ns, 0, None));
        }
        let mut apps = BTreeMap::from([(self.job, own)]);
        for load in self.heard {
            let theirs = self.other(load);
            match apps.get_mut(&load.job) {
                None => {
                    apps.insert(load.job, theirs);
                }
                Some(app) => merge(app, theirs),
            }
        }
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
        let current = self.phases.current();
        let phase = current.map(|current| self.phase_at(current.begin_ns, current.bytes, Some(self.target)));
        let local = self.usage(Tier::Local).map(|usage| Local {
            capacity_bytes: usage.total,
            free_bytes: usage.free.min(usage.total),
            bytes_per_s: LOCAL_BYTES_PER_S,
        });
        App { phase, past: self.phases.past(), local, ..app(self.job, self.processes) }
    }

    fn other(&self, load: &Load) -> App {
        let phase = load.phase.as_ref().map(|phase| {
            let ago = self.now_ms.saturating_sub(phase.began_ms).saturating_mul(NS_OF_MS);
            self.phase_at(self.now_ns.saturating_sub(ago), phase.bytes, Some(phase.tier.into()))
        });
        // Its node has room of its own; how much, only it knows.
        let local = Local { capacity_bytes: u64::MAX, free_bytes: u64::MAX, bytes_per_s: LOCAL_BYTES_PER_S };
        App { phase, local: Some(local), ..app(load.job, load.processes) }
    }

    fn phase_at(&self, begin_ns: u64, written_bytes: u64, tier: Option<Tier>) -> Phase {
        Phase { begin_ns, written_bytes, expected_bytes: None, pattern: Pattern::Sequential, tier }
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
            curves: None,
        }
    }

    fn dirty(&self, tier: Tier) -> Option<Dirty> {
        let bytes = self.usage(tier)?.blocks * u64::from(BLOCK_SIZE);
        // What lies on the last tier lies where it is to be.
        let is_last = self.found.last().is_some_and(|last| last.tier == tier);
        let since_ns = self.phases.past().first().map_or(0, |past| past.begin_ns);
        (bytes > 0 && !is_last).then_some(Dirty { job: JobId(self.job), tier, bytes, since_ns })
    }
}

fn app(job: u64, processes: u32) -> App {
    let (past, link_bytes_per_s, local) = (Vec::new(), None, None);
    App {
        job: JobId(job),
        processes: processes.max(1),
        weight: 1,
        phase: None,
        past,
        link_bytes_per_s,
        local,
    }
}

/// Daemons of one pool are one application. Each sees its clients; most see the same ones.
fn merge(app: &mut App, other: App) {
    app.processes = app.processes.max(other.processes);
    app.phase = match (app.phase, other.phase) {
        (Some(one), Some(other)) => Some(Phase {
            begin_ns: one.begin_ns.min(other.begin_ns),
            written_bytes: one.written_bytes.saturating_add(other.written_bytes),
            ..one
        }),
        (one, other) => one.or(other),
    };
}

#[cfg(test)]
mod tests {
    use super::super::loads::{PhaseLoad, TierWord};
    use super::*;
    use tidepool_iosched::{Verdict, by_name, decide};

    const MS: u64 = 1_000_000;

    fn found(tier: Tier, blocks: u64, free: u64) -> Found {
        Found { tier, usage: Usage { blocks, free, total: 1 << 30 } }
    }

    fn load(job: u64, tier: TierWord) -> Load {
        let phase = PhaseLoad { began_ms: 900, bytes: 5, tier };
        Load { at_ms: 990, phase: Some(phase), ..Load::new(job, 0) }
    }

    /// Where the strategy sends a phase of the daemon's own that begins.
    fn target(name: &str, found: &[Found], heard: &[Load]) -> Tier {
        let phases = Phases::default();
        let known = Known {
            now_ns: 1000 * MS,
            now_ms: 1000,
            job: 7,
            processes: 2,
            phases: &phases,
            target: Tier::Local,
            found,
            heard,
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

    #[test]
    fn what_lies_above_the_last_tier_is_to_be_flushed() {
        let phases = Phases::default();
        let dirty = |found: &[Found]| {
            let (now_ns, now_ms, heard) = (0, 0, &[][..]);
            let known = Known {
                now_ns,
                now_ms,
                job: 7,
                processes: 1,
                phases: &phases,
                target: Tier::Local,
                found,
                heard,
            };
            let view = known.view(false).unwrap();
            view.dirty().iter().map(|dirty| (dirty.tier, dirty.bytes)).collect::<Vec<_>>()
        };
        let found = [found(Tier::Local, 1, FREE), found(Tier::Burst, 2, FREE), found(Tier::Pfs, 3, FREE)];
        assert_eq!(dirty(&found), [(Tier::Local, 4096), (Tier::Burst, 8192)]);
        assert_eq!(dirty(&found[..2]), [(Tier::Local, 4096)]);
    }
}
