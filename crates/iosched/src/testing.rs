//! Short ways to write views in tests.

use crate::curve::{Curve, Curves};
use crate::model::{App, Dirty, JobId, Phase, Shared, Tier, View};
use crate::strategy::Verdict;
use std::sync::Arc;

pub const MB: u64 = 1_000_000;
pub const GB: u64 = 1_000 * MB;
pub const S: u64 = 1_000_000_000;

pub fn app(job: u64, processes: u32) -> App {
    App {
        job: JobId(job),
        processes,
        weight: 1,
        phase: None,
        past: Vec::new(),
        link_bytes_per_s: None,
        under_way_bytes: 0,
        local: None,
    }
}

/// In a phase of 32 GB since `begin_ns`, of which nothing is written.
pub fn writing(job: u64, processes: u32, begin_ns: u64, tier: Option<Tier>) -> App {
    let phase = Phase {
        begin_ns,
        written_bytes: 0,
        expected_bytes: Some(32 * GB),
        pattern: crate::model::Pattern::Sequential,
        tier,
    };
    App { phase: Some(phase), ..app(job, processes) }
}

pub fn shared(capacity_bytes: u64, free_bytes: u64) -> Shared {
    Shared {
        capacity_bytes,
        free_bytes,
        foreign_users: 0,
        foreign_processes: 0,
        flush_in_bytes_per_s: 0,
        flush_out_bytes_per_s: 0,
        age_ns: Some(0),
        curves: None,
    }
}

/// A burst buffer or PFS of 1 TB, empty, with a bandwidth that rises to that of 16 processes and falls to that of 64.
pub fn tier(at_16: u64, at_64: u64) -> Shared {
    let curve = Curve::new(&[(4, at_16 / 2), (16, at_16), (64, at_64)]).unwrap();
    Shared { curves: Some(Arc::new(Curves::same(curve))), ..shared(1000 * GB, 1000 * GB) }
}

pub fn view(now_ns: u64, apps: Vec<App>) -> View {
    view_on(now_ns, apps, tier(400 * MB, 350 * MB), tier(200 * MB, 150 * MB), vec![])
}

pub fn view_on(now_ns: u64, apps: Vec<App>, burst: Shared, pfs: Shared, dirty: Vec<Dirty>) -> View {
    View::new(now_ns, apps, burst, pfs, dirty).unwrap()
}

/// The view with knowledge of both tiers of this age.
pub fn aged(view: &View, age_ns: Option<u64>) -> View {
    let old = |shared: &Shared| Shared { age_ns, ..shared.clone() };
    view_on(view.now_ns(), view.apps().to_vec(), old(view.burst()), old(view.pfs()), view.dirty().to_vec())
}

/// Where each phase is sent, by job; none where it waits.
pub fn sent(strategy: &dyn crate::Strategy, view: &View) -> Vec<Option<Tier>> {
    let tier = |verdict: &Verdict| match verdict {
        Verdict::Go { tier, .. } => Some(*tier),
        Verdict::Wait => None,
    };
    crate::decide(strategy, view).phases.values().map(tier).collect()
}

/// How each unflushed lump is judged: where it goes.
pub fn flushed(strategy: &dyn crate::Strategy, view: &View) -> Vec<Option<Tier>> {
    let to = |verdict: &crate::FlushVerdict| match verdict {
        crate::FlushVerdict::Go { to, .. } => Some(*to),
        crate::FlushVerdict::Wait => None,
    };
    crate::decide(strategy, view).flushes.values().map(to).collect()
}
