//! `baseline`: everything goes to the PFS (S3 §III-C1).
//!
//! Late or missing information changes nothing: the load is not asked for. Data that another strategy left on upper tiers
//! are flushed at once.

use crate::model::{Tier, View};
use crate::rules::{Flushes, Phases, When, first_with_room, flush_to_pfs, unmanaged};
use crate::strategy::Strategy;

#[derive(Debug)]
pub struct Baseline;

impl Strategy for Baseline {
    fn name(&self) -> &'static str {
        "baseline"
    }

    fn about(&self) -> &'static str {
        "everything goes to the parallel file system"
    }

    fn phases(&self, view: &View) -> Phases {
        let verdict = |app| first_with_room(view, app, &[Tier::Pfs], unmanaged(app));
        view.active().into_iter().map(|(app, _)| (app.job, verdict(app))).collect()
    }

    fn flushes(&self, view: &View, phases: &Phases) -> Flushes {
        flush_to_pfs(view, phases, When::Always)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Dirty, JobId};
    use crate::testing::*;

    #[test]
    fn all_write_to_the_pfs_whatever_is_known() {
        let two = view(0, vec![writing(1, 32, 0, None), writing(2, 32, 0, Some(Tier::Burst))]);
        for known in [two.clone(), aged(&two, Some(3600 * S)), aged(&two, None)] {
            assert_eq!(sent(&Baseline, &known), [Some(Tier::Pfs); 2]);
        }
    }

    #[test]
    fn what_others_left_is_flushed_at_once() {
        let left = Dirty { job: JobId(1), tier: Tier::Burst, bytes: GB, since_ns: 0 };
        let busy = view_on(0, vec![writing(1, 32, 0, None)], tier(4, 4), tier(4, 4), vec![left]);
        assert_eq!(flushed(&Baseline, &busy), [Some(Tier::Pfs)]);
    }
}
