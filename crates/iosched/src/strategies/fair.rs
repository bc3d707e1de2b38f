//! `fair`: each application's part, whatever the number of its processes, in the manner of ThemisIO (Huang et al.:
//! "Fine-grained policy-driven I/O sharing for burst buffers", SC23).
//!
//! Shares follow the site's weights of the applications, not their processes. What an application does not use, the others
//! have (opportunity fairness: weights count only among those that write).
//!
//! An equal share alone does not protect a victim that wants all of a tier for a short time from one that wants it always:
//! with two applications it would be slowed down twice. So what applications have written lately counts. One that wrote more
//! than 5/4 of its part of what all running ones wrote is **over**. While others that are not over write, those that are go
//! to the PFS, and the burst buffer belongs to the others. Without room on the PFS all share the burst buffer, and those that are
//! not over weigh [`VICTIM_FACTOR`] times as much: those over leave them 7/8, a slowdown of 8/7 for one against one of the same weight.
//!
//! Data are flushed when no application uses either shared tier, or when theirs fills.
//!
//! Late or missing information: whether somebody is there to be protected is not known. All share by weight; nobody is sent
//! away from the burst buffer while it has room. Missing: all are on the PFS.

use crate::model::{App, Knowledge, Tier, View};
use crate::rules::{Flushes, Phases, When, first_with_room, flush_to_pfs, has_room, is_load_known};
use crate::strategy::Strategy;

/// How far back writing counts: some periods of a usual application.
pub const WINDOW_NS: u64 = 600_000_000_000;
/// By how much those within their part outweigh those over it on one tier.
pub const VICTIM_FACTOR: u32 = 7;
/// What an application of weight 1 weighs beside a flush, whose weight is that of a few processes.
const UNIT: u32 = 32;
/// An application is over its part beyond 5/4 of it.
const OVER: (u128, u128) = (5, 4);

#[derive(Debug)]
pub struct Fair;

impl Strategy for Fair {
    fn name(&self) -> &'static str {
        "fair"
    }

    fn about(&self) -> &'static str {
        "equal parts for applications; who wrote more than its part makes way for who did not"
    }

    fn gives_shares(&self) -> bool {
        true
    }

    fn phases(&self, view: &View) -> Phases {
        let over = over(view);
        let is_over = |app: &App| over.binary_search(&app.job).is_ok();
        let active = view.active();
        let protect = is_load_known(view)
            && active.iter().any(|(a, _)| is_over(a))
            && !active.iter().all(|(a, _)| is_over(a));
        let verdict = |app: &App| {
            let tiers: &[Tier] = match view.knowledge(Tier::Burst) {
                Knowledge::Missing => &[Tier::Pfs],
                _ if protect && is_over(app) && has_room(view, app, Tier::Pfs) => &[Tier::Pfs],
                _ => &[Tier::Burst, Tier::Pfs],
            };
            let factor = if protect && !is_over(app) { VICTIM_FACTOR } else { 1 };
            first_with_room(view, app, tiers, app.weight * factor * UNIT)
        };
        active.iter().map(|(app, _)| (app.job, verdict(app))).collect()
    }

    fn flushes(&self, view: &View, phases: &Phases) -> Flushes {
        flush_to_pfs(view, phases, When::BothIdle)
    }
}

/// What it has written lately.
fn usage_bytes(view: &View, app: &App) -> u128 {
    let since = view.now_ns().saturating_sub(WINDOW_NS);
    let past = app.past.iter().filter(|past| past.begin_ns >= since).map(|past| u128::from(past.bytes));
    past.sum::<u128>() + app.phase.map_or(0, |phase| u128::from(phase.written_bytes))
}

/// The applications that are over their part, by job.
fn over(view: &View) -> Vec<crate::JobId> {
    let all: u128 = view.apps().iter().map(|app| usage_bytes(view, app)).sum();
    let weights: u128 = view.apps().iter().map(|app| u128::from(app.weight)).sum();
    let is_over = |app: &&App| {
        let part = all.saturating_mul(u128::from(app.weight));
        usage_bytes(view, app).saturating_mul(weights).saturating_mul(OVER.1) > part.saturating_mul(OVER.0)
    };
    view.apps().iter().filter(is_over).map(|app| app.job).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::Verdict;
    use crate::testing::*;

    fn having_written(bytes: u64, mut app: App) -> App {
        app.phase.as_mut().unwrap().written_bytes = bytes;
        app
    }

    fn go(tier: Tier, weight: u32) -> Verdict {
        Verdict::Go { tier, weight: weight * UNIT }
    }

    fn verdicts(view: &View) -> Vec<Verdict> {
        crate::decide(&Fair, view).phases.into_values().collect()
    }

    #[test]
    fn shares_follow_weights_and_not_processes() {
        let apps = vec![writing(1, 256, 0, None), App { weight: 3, ..writing(2, 1, 0, None) }];
        assert_eq!(verdicts(&view(0, apps)), [go(Tier::Burst, 1), go(Tier::Burst, 3)]);
    }

    /// 5 of 8 GB are 5/4 of a half; one byte more is over.
    #[test]
    fn who_wrote_more_than_its_part_makes_way() {
        let two = |first, second| {
            let apps = vec![
                having_written(first, writing(1, 256, 0, Some(Tier::Burst))),
                having_written(second, writing(2, 1, 0, None)),
            ];
            verdicts(&view(0, apps))
        };
        assert_eq!(two(5 * GB, 3 * GB), [go(Tier::Burst, 1), go(Tier::Burst, 1)]);
        assert_eq!(two(5 * GB + 1, 3 * GB - 1), [go(Tier::Pfs, 1), go(Tier::Burst, 7)]);
        let alone = having_written(9 * GB, writing(1, 256, 0, None));
        assert_eq!(verdicts(&view(0, vec![alone, app(2, 1)])), [go(Tier::Burst, 1)], "nobody is hurt");
    }

    #[test]
    fn what_was_written_long_ago_is_forgotten() {
        let past = |begin_ns| {
            let past = vec![crate::PastPhase { begin_ns, end_ns: 200 * S, bytes: 9 * GB }];
            let one = App { past, ..writing(1, 8, 700 * S, None) };
            let two = having_written(GB, writing(2, 8, 700 * S, None));
            verdicts(&view(700 * S, vec![one, two]))
        };
        assert_eq!(past(100 * S), [go(Tier::Pfs, 1), go(Tier::Burst, 7)]);
        assert_eq!(past(100 * S - 1), [go(Tier::Burst, 7), go(Tier::Pfs, 1)]);
    }

    #[test]
    fn without_room_elsewhere_the_victim_outweighs() {
        let apps = vec![having_written(9 * GB, writing(1, 256, 0, None)), writing(2, 1, 0, None)];
        let full = view_on(0, apps, tier(4, 4), shared(GB, 0), vec![]);
        assert_eq!(verdicts(&full), [go(Tier::Burst, 1), go(Tier::Burst, 7)]);
    }

    #[test]
    fn with_late_news_all_share() {
        let apps = vec![having_written(9 * GB, writing(1, 256, 0, None)), writing(2, 1, 0, None)];
        let known = view(0, apps);
        assert_eq!(verdicts(&aged(&known, Some(6 * S))), [go(Tier::Burst, 1), go(Tier::Burst, 1)]);
        assert_eq!(verdicts(&aged(&known, None)), [go(Tier::Pfs, 1), go(Tier::Pfs, 1)]);
    }
}
