//! `hp`, high-level priority: the burst buffer first, flushed at once and asynchronously; what finds it full goes to the PFS
//! (S3 §III-C2, the way of DataWarp).
//!
//! Late information: the last known free space must hold all that the known phases have still to write, else a phase that is
//! not on the burst buffer yet goes to the PFS. Missing: the burst buffer is not used. A phase that is on it stays in both
//! cases, and the buffer itself says when it is full.

use crate::model::{App, Knowledge, Phase, Tier, View};
use crate::rules::{Flushes, Phases, When, first_with_room, flush_to_pfs, unmanaged};
use crate::strategy::{Strategy, Verdict};

#[derive(Debug)]
pub struct HighPriority;

impl Strategy for HighPriority {
    fn name(&self) -> &'static str {
        "hp"
    }

    fn about(&self) -> &'static str {
        "burst buffer first, flushed at once; the parallel file system when it is full"
    }

    fn phases(&self, view: &View) -> Phases {
        let takes_new = takes_new(view);
        let verdict = |app: &App, phase: &Phase| -> Verdict {
            let burst = takes_new || phase.tier == Some(Tier::Burst);
            let tiers: &[Tier] = if burst { &[Tier::Burst, Tier::Pfs] } else { &[Tier::Pfs] };
            first_with_room(view, app, tiers, unmanaged(app))
        };
        view.active().into_iter().map(|(app, phase)| (app.job, verdict(app, phase))).collect()
    }

    fn flushes(&self, view: &View, phases: &Phases) -> Flushes {
        flush_to_pfs(view, phases, When::Always)
    }
}

fn takes_new(view: &View) -> bool {
    let coming: u128 = view.apps().iter().filter_map(App::remaining_bytes).map(u128::from).sum();
    match view.knowledge(Tier::Burst) {
        Knowledge::Fresh => true,
        Knowledge::Late => u128::from(view.burst().free_bytes) >= coming,
        Knowledge::Missing => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Dirty, JobId};
    use crate::testing::*;

    #[test]
    fn the_burst_buffer_comes_first_and_is_flushed_while_it_is_written() {
        let apps = vec![writing(1, 32, 0, None), writing(2, 32, 0, Some(Tier::Burst))];
        let lump = Dirty { job: JobId(2), tier: Tier::Burst, bytes: GB, since_ns: 0 };
        let both = view_on(0, apps, tier(4, 4), tier(4, 4), vec![lump]);
        assert_eq!(sent(&HighPriority, &both), [Some(Tier::Burst); 2]);
        assert_eq!(flushed(&HighPriority, &both), [Some(Tier::Pfs)]);
    }

    /// 160 GB of capacity, so that 10 GB must be free for coming in and 1 byte is enough for staying.
    #[test]
    fn what_finds_it_full_goes_to_the_pfs_and_returns_when_there_is_real_room() {
        let with_free = |free| {
            let apps = vec![writing(1, 32, 0, Some(Tier::Pfs)), writing(2, 32, 0, Some(Tier::Burst))];
            view_on(0, apps, shared(160 * GB, free), shared(GB, GB), vec![])
        };
        assert_eq!(sent(&HighPriority, &with_free(0)), [Some(Tier::Pfs), Some(Tier::Pfs)]);
        assert_eq!(sent(&HighPriority, &with_free(1)), [Some(Tier::Pfs), Some(Tier::Burst)]);
        assert_eq!(sent(&HighPriority, &with_free(10 * GB - 1)), [Some(Tier::Pfs), Some(Tier::Burst)]);
        assert_eq!(sent(&HighPriority, &with_free(10 * GB)), [Some(Tier::Burst), Some(Tier::Burst)]);
    }

    /// Two phases of 32 GB are coming: 64 GB must have been free.
    #[test]
    fn late_news_of_free_space_count_only_if_all_would_fit() {
        let with_free = |free, age_ns| {
            let apps = vec![writing(1, 32, 0, None), writing(2, 32, 0, Some(Tier::Burst))];
            let known = view_on(0, apps, shared(160 * GB, free), shared(GB, GB), vec![]);
            aged(&known, age_ns)
        };
        assert_eq!(sent(&HighPriority, &with_free(64 * GB, Some(6 * S))), [Some(Tier::Burst); 2]);
        let split = [Some(Tier::Pfs), Some(Tier::Burst)];
        assert_eq!(sent(&HighPriority, &with_free(64 * GB - 1, Some(6 * S))), split);
        assert_eq!(sent(&HighPriority, &with_free(160 * GB, None)), split);
    }
}
