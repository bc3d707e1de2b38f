//! What a strategy is asked and what it answers.

use crate::model::{JobId, Tier, View};
use std::collections::BTreeMap;

/// What becomes of an I/O phase until the next verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Write to `tier`. Those that write there share its bandwidth as their weights, 1 or more, stand to each other; the
    /// application's number of processes is what it would get if nobody interfered.
    Go { tier: Tier, weight: u32 },
    /// Write nothing until its turn comes, or until there is room anywhere.
    Wait,
}

/// What becomes of unflushed data until the next verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushVerdict {
    /// Move them to `to`, with a weight that stands beside those of the phases there.
    Go {
        to: Tier,
        weight: u32,
    },
    Wait,
}

/// The verdicts on everything in a view.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// For each application in a phase.
    pub phases: BTreeMap<JobId, Verdict>,
    /// For each of the view's unflushed data.
    pub flushes: BTreeMap<(JobId, Tier), FlushVerdict>,
}

/// Decides what goes where. Pure: the same view gives the same verdicts, always.
pub trait Strategy: std::fmt::Debug + Sync {
    /// What it is chosen by.
    fn name(&self) -> &'static str;

    /// One line for people who choose.
    fn about(&self) -> &'static str;

    /// True when weights are shares to be kept. Without, they say what happens where nobody interferes.
    fn gives_shares(&self) -> bool {
        false
    }

    /// True when it needs the tiers' measured bandwidths.
    fn needs_curves(&self) -> bool {
        self.gives_shares()
    }

    /// True when phases may have to wait for their turn.
    fn gives_turns(&self) -> bool {
        false
    }

    /// A verdict for each application in a phase. None may be sent to a tier without free bytes.
    fn phases(&self, view: &View) -> BTreeMap<JobId, Verdict>;

    /// A verdict for each of the unflushed data, given those on phases.
    fn flushes(
        &self,
        view: &View,
        phases: &BTreeMap<JobId, Verdict>,
    ) -> BTreeMap<(JobId, Tier), FlushVerdict>;
}

/// Asks `strategy` about everything in `view`.
///
/// # Panics
/// When the strategy leaves something out, gives no weight, or sends data to where there is no room: each would make an
/// application hang.
pub fn decide(strategy: &dyn Strategy, view: &View) -> Decision {
    let phases = strategy.phases(view);
    let flushes = strategy.flushes(view, &phases);
    let name = strategy.name();
    let active = view.active();
    assert_eq!(phases.len(), active.len(), "{name} gives each phase one verdict");
    for (app, _) in active {
        match phases.get(&app.job) {
            Some(Verdict::Go { tier, weight }) => {
                assert!(*weight > 0, "{name} gives job {} no share", app.job.0);
                assert!(view.free_bytes(*tier, app) > 0, "{name} sends job {} to a full tier", app.job.0);
            }
            Some(Verdict::Wait) => (),
            None => panic!("{name} has no verdict on job {}", app.job.0),
        }
    }
    assert_eq!(flushes.len(), view.dirty().len(), "{name} gives all unflushed data one verdict");
    for lump in view.dirty() {
        match flushes.get(&(lump.job, lump.tier)) {
            Some(FlushVerdict::Go { to, weight }) => {
                assert!(*weight > 0, "{name} gives a flush no share");
                assert!(*to > lump.tier, "{name} flushes upwards");
            }
            Some(FlushVerdict::Wait) => (),
            None => panic!("{name} has no verdict on data of job {}", lump.job.0),
        }
    }
    Decision { phases, flushes }
}
