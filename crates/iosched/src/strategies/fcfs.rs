//! `fcfs`, exclusive: each shared tier belongs to one phase at a time. The phase that began first has the burst buffer, the
//! next the PFS, the others wait; when one ends, each moves up, with the rest of its phase.
//!
//! A tier with users that the view does not list is not exclusive to anybody and left out; when that leaves no tier, the
//! first phase goes to the PFS all the same. Data are flushed while nobody uses the PFS, or when their tier fills.
//!
//! Late or missing information: to wait for somebody who may have gone long ago would leave a tier idle. Nobody waits and
//! nobody is moved; the halves of the running applications have a shared tier each, by rank, as in `ia`.

use crate::model::{App, Tier, View};
use crate::rules::{
    Flushes, Phases, When, by_rank, first_with_room, flush_to_pfs, has_room, is_load_known, unmanaged,
};
use crate::strategy::{Strategy, Verdict};

#[derive(Debug)]
pub struct Fcfs;

impl Strategy for Fcfs {
    fn name(&self) -> &'static str {
        "fcfs"
    }

    fn about(&self) -> &'static str {
        "each shared tier to one application at a time, first come, first served"
    }

    fn gives_turns(&self) -> bool {
        true
    }

    fn phases(&self, view: &View) -> Phases {
        if is_load_known(view) { in_turn(view) } else { by_rank(view) }
    }

    fn flushes(&self, view: &View, phases: &Phases) -> Flushes {
        flush_to_pfs(view, phases, When::TargetIdle)
    }
}

/// The verdicts with fresh knowledge.
pub fn in_turn(view: &View) -> Phases {
    let mut tiers = free_of_others(view);
    let mut verdict = |app: &App| match tiers.iter().position(|tier| has_room(view, app, *tier)) {
        Some(at) => Verdict::Go { tier: tiers.remove(at), weight: unmanaged(app) },
        None => Verdict::Wait,
    };
    let mut phases: Phases = view.active().into_iter().map(|(app, _)| (app.job, verdict(app))).collect();
    let idle = phases.values().all(|verdict| *verdict == Verdict::Wait);
    if let Some((first, _)) = view.active().first().filter(|_| idle) {
        let any = first_with_room(view, first, &[Tier::Pfs, Tier::Burst], unmanaged(first));
        phases.insert(first.job, any);
    }
    phases
}

fn free_of_others(view: &View) -> Vec<Tier> {
    let states = [(Tier::Burst, view.burst()), (Tier::Pfs, view.pfs())];
    states.into_iter().filter(|(_, state)| state.foreign_users == 0).map(|(tier, _)| tier).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Shared;
    use crate::testing::*;

    const BURST: Option<Tier> = Some(Tier::Burst);
    const PFS: Option<Tier> = Some(Tier::Pfs);

    #[test]
    fn phases_move_up_in_the_order_in_which_they_began() {
        let three = view(9, vec![writing(1, 8, 5, None), writing(2, 8, 1, BURST), writing(3, 8, 3, PFS)]);
        assert_eq!(sent(&Fcfs, &three), [None, BURST, PFS]);
        let two = view(9, vec![writing(1, 8, 5, None), app(2, 8), writing(3, 8, 3, PFS)]);
        assert_eq!(sent(&Fcfs, &two), [PFS, BURST]);
    }

    #[test]
    fn tiers_with_unlisted_users_or_without_room_are_left_out() {
        let apps = || vec![writing(1, 8, 0, None), writing(2, 8, 1, None)];
        let foreign = || Shared { foreign_users: 1, ..tier(4, 4) };
        assert_eq!(sent(&Fcfs, &view_on(9, apps(), foreign(), tier(4, 4), vec![])), [PFS, None]);
        assert_eq!(sent(&Fcfs, &view_on(9, apps(), foreign(), foreign(), vec![])), [PFS, None]);
        assert_eq!(sent(&Fcfs, &view_on(9, apps(), shared(GB, 0), tier(4, 4), vec![])), [PFS, None]);
    }

    #[test]
    fn with_late_news_nobody_waits() {
        let four = view(9, (1..=4).map(|job| writing(job, 8, job, None)).collect());
        assert_eq!(sent(&Fcfs, &four), [BURST, PFS, None, None]);
        assert_eq!(sent(&Fcfs, &aged(&four, Some(6 * S))), [BURST, BURST, PFS, PFS]);
        assert_eq!(sent(&Fcfs, &aged(&four, None)), [PFS; 4]);
    }
}
