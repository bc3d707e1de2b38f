//! What several strategies have in common: room, ranks, when a flush is in nobody's way.

use crate::model::{App, Dirty, JobId, Knowledge, Tier, View};
use crate::strategy::{FlushVerdict, Verdict};
use std::collections::BTreeMap;

pub type Phases = BTreeMap<JobId, Verdict>;
pub type Flushes = BTreeMap<(JobId, Tier), FlushVerdict>;

/// Weight of one flush beside phases, in processes: one stream for each of a small tier's nodes.
pub const FLUSH_WEIGHT: u32 = 4;

/// A phase that is not on a tier yet needs this part of it free (or all it has still to write), so that a tier that fills
/// does not take a phase in and turn it out with every few bytes that are flushed.
const ROOM_PART: u64 = 16;

/// Below this part of free space flushing is urgent: phases would soon find the tier full.
const URGENT_PART: u64 = 4;

/// True when the application's phase can write to the tier now.
pub fn has_room(view: &View, app: &App, tier: Tier) -> bool {
    let free = view.free_bytes(tier, app);
    let here = app.phase.is_some_and(|phase| phase.tier == Some(tier));
    let wanted = app.remaining_bytes().unwrap_or(0).min(view.capacity_bytes(tier, app) / ROOM_PART);
    free > 0 && (here || free >= wanted)
}

/// The verdict that the phase goes to the first of `tiers` with room; it waits when none has.
pub fn first_with_room(view: &View, app: &App, tiers: &[Tier], weight: u32) -> Verdict {
    let found = tiers.iter().find(|tier| has_room(view, app, **tier));
    found.map_or(Verdict::Wait, |tier| Verdict::Go { tier: *tier, weight })
}

/// Weight of an application whose processes are left to compete as they will.
pub fn unmanaged(app: &App) -> u32 {
    app.processes
}

/// Without knowledge of the load: the first half of the running applications, by job, has the burst buffer, the second the
/// PFS. Who runs changes far more slowly than who writes, so schedulers agree on it, and no tier ever has more than half of
/// the applications (rounded up).
pub fn tiers_by_rank(view: &View, app: &App) -> [Tier; 3] {
    let rank = view.apps().partition_point(|other| other.job < app.job);
    if view.knowledge(Tier::Burst) != Knowledge::Missing && 2 * rank < view.apps().len() {
        [Tier::Burst, Tier::Pfs, Tier::Local]
    } else {
        [Tier::Pfs, Tier::Local, Tier::Burst]
    }
}

/// True when both shared tiers are known well enough to let somebody wait for them.
pub fn is_load_known(view: &View) -> bool {
    [Tier::Burst, Tier::Pfs].into_iter().all(|tier| view.knowledge(tier) == Knowledge::Fresh)
}

/// The verdicts of a strategy that knows nothing of the load: nobody waits, nobody is moved without need.
pub fn by_rank(view: &View) -> Phases {
    let verdict = |(app, phase): (&App, &crate::model::Phase)| {
        let stay = phase.tier.filter(|tier| has_room(view, app, *tier));
        let verdict = match stay {
            Some(tier) => Verdict::Go { tier, weight: unmanaged(app) },
            None => first_with_room(view, app, &tiers_by_rank(view, app), unmanaged(app)),
        };
        (app.job, verdict)
    };
    view.active().into_iter().map(verdict).collect()
}

/// Applications in a phase on a shared tier, as the verdicts say, and those that the view does not list.
pub fn users(view: &View, phases: &Phases, tier: Tier) -> u32 {
    let sent =
        phases.values().filter(|v| matches!(v, Verdict::Go { tier: t, .. } if *t == tier)).count() as u32;
    let foreign = match tier {
        Tier::Local => 0,
        Tier::Burst => view.burst().foreign_users,
        Tier::Pfs => view.pfs().foreign_users,
    };
    sent + foreign
}

/// True when data must leave their tier soon: it fills, or it belongs to the nodes of a job that has ended.
fn is_urgent(view: &View, lump: &Dirty) -> bool {
    let (free, capacity) = match (lump.tier, view.app(lump.job)) {
        (Tier::Local, None) => return true,
        (Tier::Local, Some(app)) => (view.free_bytes(lump.tier, app), view.capacity_bytes(lump.tier, app)),
        _ => (view.burst().free_bytes, view.burst().capacity_bytes),
    };
    free < capacity / URGENT_PART
}

/// Where flushes stop being in somebody's way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// Always: at once.
    Always,
    /// When no application writes to where they go.
    TargetIdle,
    /// When none writes there, nor to where they come from.
    BothIdle,
}

/// Flushes all data to the PFS, `when` they are in nobody's way or their tier fills. Late or missing knowledge of the PFS
/// says nothing about who is in whose way: then they go on with the least weight, so that they end in any case.
pub fn flush_to_pfs(view: &View, phases: &Phases, when: When) -> Flushes {
    let verdict = |lump: &Dirty| ((lump.job, lump.tier), flush_one(view, phases, lump, when));
    view.dirty().iter().map(verdict).collect()
}

pub fn flush_one(view: &View, phases: &Phases, lump: &Dirty, when: When) -> FlushVerdict {
    if view.pfs().free_bytes == 0 {
        return FlushVerdict::Wait;
    }
    let source_idle = match lump.tier {
        Tier::Local => !matches!(phases.get(&lump.job), Some(Verdict::Go { tier: Tier::Local, .. })),
        tier => users(view, phases, tier) == 0,
    };
    let target_idle = users(view, phases, Tier::Pfs) == 0;
    let free = match when {
        When::Always => true,
        When::TargetIdle => target_idle,
        When::BothIdle => target_idle && source_idle,
    };
    if when == When::Always || is_urgent(view, lump) {
        FlushVerdict::Go { to: Tier::Pfs, weight: FLUSH_WEIGHT }
    } else if view.knowledge(Tier::Pfs) != Knowledge::Fresh {
        FlushVerdict::Go { to: Tier::Pfs, weight: 1 }
    } else if free {
        FlushVerdict::Go { to: Tier::Pfs, weight: FLUSH_WEIGHT }
    } else {
        FlushVerdict::Wait
    }
}
