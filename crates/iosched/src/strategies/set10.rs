//! `set10`: sets by period, in the manner of Set-10 of IO-Sets (Boito, Pallez, Teylo, Vidal: "IO-SETS: Simple and efficient
//! approaches for I/O bandwidth management", 2023).
//!
//! An application's characteristic time is the mean time between the beginnings of its phases; its set is that time's order
//! of magnitude in seconds, rounded. Within a set one phase writes at a time, in the order in which they began; the sets share
//! the tier, each with a tenth of the weight of the next shorter one, so that those with short, frequent phases are not held
//! up by those with long ones. Applications without a second phase yet are a set of their own, with the least weight. The
//! site's weight of the application multiplies that of its set.
//!
//! The published strategy knows one tier. Here that is the burst buffer; while it is full, the same holds for the PFS. Data
//! are flushed when no application uses either, or when the burst buffer fills.
//!
//! Late or missing information: exclusion would let applications wait for some that have gone. Nobody waits: all share, with
//! the weights of their sets, which come from history and do not age. Late: on the burst buffer as long as it has room;
//! missing: on the PFS.

use crate::model::{App, Knowledge, Tier, View};
use crate::rules::{FLUSH_WEIGHT, Flushes, Phases, When, first_with_room, flush_to_pfs, is_load_known};
use crate::strategy::{Strategy, Verdict};
use std::collections::BTreeSet;

#[derive(Debug)]
pub struct Set10;

/// Orders of magnitude between the heaviest and the lightest set; beyond them, sets weigh the same.
const ORDERS_MAX: u32 = 6;

impl Strategy for Set10 {
    fn name(&self) -> &'static str {
        "set10"
    }

    fn about(&self) -> &'static str {
        "one application at a time of those with similar periods; short periods have priority"
    }

    fn gives_shares(&self) -> bool {
        true
    }

    fn gives_turns(&self) -> bool {
        true
    }

    fn phases(&self, view: &View) -> Phases {
        let known = is_load_known(view);
        let least = view.active().iter().filter_map(|(app, _)| set_of(app)).min();
        let mut served: BTreeSet<Option<i32>> = BTreeSet::new();
        let mut verdict = |app: &App| {
            let set = set_of(app);
            if known && served.contains(&set) {
                return Verdict::Wait;
            }
            let verdict = first_with_room(view, app, tiers(view), weight(app, set, least));
            if verdict != Verdict::Wait {
                served.insert(set);
            }
            verdict
        };
        view.active().into_iter().map(|(app, _)| (app.job, verdict(app))).collect()
    }

    fn flushes(&self, view: &View, phases: &Phases) -> Flushes {
        flush_to_pfs(view, phases, When::BothIdle)
    }
}

fn tiers(view: &View) -> &'static [Tier] {
    match view.knowledge(Tier::Burst) {
        Knowledge::Missing => &[Tier::Pfs],
        _ => &[Tier::Burst, Tier::Pfs],
    }
}

/// The order of magnitude of its period in seconds, rounded: the k with 10^(k - 1/2) <= period < 10^(k + 1/2). None before
/// its second phase.
pub fn set_of(app: &App) -> Option<i32> {
    let period_ns = u128::from(app.period_ns()?.max(1));
    // The square is compared, so that half an order is a whole one: 10^(2k - 1) <= period^2 < 10^(2k + 1), in nanoseconds.
    let digits = (period_ns * period_ns).ilog10() as i32;
    Some((digits + 1).div_euclid(2) - 9)
}

/// Ten times as much for each order of magnitude that a set is shorter than the longest; the least is a flush's.
fn weight(app: &App, set: Option<i32>, shortest: Option<i32>) -> u32 {
    let behind = match (set, shortest) {
        (Some(set), Some(shortest)) => (set.saturating_sub(shortest) as u32).min(ORDERS_MAX),
        (None, Some(_)) => ORDERS_MAX,
        (_, None) => 0,
    };
    FLUSH_WEIGHT * app.weight * 10u32.pow(ORDERS_MAX - behind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{PastPhase, Pattern, Phase};
    use crate::testing::*;

    const BURST: Option<Tier> = Some(Tier::Burst);

    /// Whose phases began `period_ns` apart, the last one now, at 10^15 ns.
    fn periodic(job: u64, period_ns: u64) -> App {
        let now = 1_000_000 * S;
        let phase = Phase {
            begin_ns: now,
            written_bytes: 0,
            expected_bytes: None,
            pattern: Pattern::Sequential,
            tier: None,
        };
        let past = vec![PastPhase { begin_ns: now - period_ns, end_ns: now - period_ns, bytes: GB }];
        App { phase: Some(phase), past, ..app(job, 8) }
    }

    /// The limits are 10^0.5 s = 3.162... s and ten times that.
    #[test]
    fn sets_are_orders_of_magnitude() {
        let sets = [
            (S / 10, -1),
            (S / 2, 0),
            (S, 0),
            (3_162_277_660, 0),
            (3_162_277_661, 1),
            (10 * S, 1),
            (31 * S, 1),
            (32 * S, 2),
            (300 * S, 2),
            (1000 * S, 3),
        ];
        for (period_ns, set) in sets {
            assert_eq!(set_of(&periodic(1, period_ns)), Some(set), "{period_ns} ns");
        }
        assert_eq!(set_of(&writing(1, 1, 0, None)), None);
    }

    #[test]
    fn one_of_each_set_writes_and_short_periods_weigh_more() {
        let apps = vec![
            periodic(1, 20 * S),
            periodic(2, 25 * S),
            periodic(3, 200 * S),
            periodic(4, 500 * S),
            periodic(5, 2000 * S),
            writing(6, 8, 1_000_000 * S, None),
        ];
        let all = view(1_000_000 * S, apps);
        let sent = crate::decide(&Set10, &all).phases.into_values().collect::<Vec<_>>();
        let go = |weight: u32| Verdict::Go { tier: Tier::Burst, weight: 4 * weight };
        let expected = [go(1_000_000), Verdict::Wait, go(100_000), go(10_000), Verdict::Wait, go(1)];
        assert_eq!(sent, expected, "500 s round to 10^3 s, so that 2000 s wait for them");
    }

    #[test]
    fn while_the_burst_buffer_is_full_the_turns_are_taken_on_the_pfs() {
        let apps = vec![periodic(1, 20 * S), periodic(2, 25 * S)];
        let full = view_on(1_000_000 * S, apps, shared(GB, 0), tier(4, 4), vec![]);
        assert_eq!(sent(&Set10, &full), [Some(Tier::Pfs), None]);
    }

    #[test]
    fn with_late_news_nobody_waits() {
        let all = view(1_000_000 * S, vec![periodic(1, 20 * S), periodic(2, 25 * S)]);
        assert_eq!(sent(&Set10, &all), [BURST, None]);
        assert_eq!(sent(&Set10, &aged(&all, Some(6 * S))), [BURST; 2]);
        assert_eq!(sent(&Set10, &aged(&all, None)), [Some(Tier::Pfs); 2]);
    }
}
