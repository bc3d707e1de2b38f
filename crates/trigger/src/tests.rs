//! The trigger against slow oracles, and its laws on random experiences.

use super::*;
use proptest::prelude::*;

const SECOND: u64 = 1000;

/// Seconds: estimate, took, (at, planned) of each look, begun, start.
fn experience(estimate: u64, took: u64, looks: &[(u64, u64)], began: u64, start: u64) -> Experience {
    let looks = looks.iter().map(|(at, planned)| Look { at_ms: at * SECOND, planned_ms: planned * SECOND });
    Experience::new(Some(estimate * SECOND), (began * SECOND, took * SECOND, start * SECOND), looks)
}

#[test]
fn what_would_have_been_needed_by_hand() {
    // Planned for 1000, from 200 on for 600, and started at 500.
    let past = experience(70, 70, &[(0, 1000), (200, 600)], 200, 500);
    let need = |padded: u64| past.need_ms(Some(padded * SECOND)).map(|ms| ms / SECOND);
    // Begun at 400, when 200 were left.
    assert_eq!(need(100), Some(200));
    assert_eq!(need(300), Some(400));
    // Begun at 199 and before, when the plan said 1000.
    assert_eq!(need(301), Some(801));
    assert_eq!(need(500), Some(1000));
    assert_eq!(need(501), None);
    assert!(past.was_possible() && !past.was_late());
    assert!(experience(70, 301, &[(0, 1000), (200, 600)], 200, 500).was_late());
    assert!(!experience(70, 501, &[(0, 1000)], 0, 500).was_possible());
    assert!(!experience(70, 1, &[], 0, 500).was_possible());
}

/// A plan that recedes: what was once near counts until something was nearer.
#[test]
fn a_plan_that_recedes_needs_no_more() {
    let past = experience(0, 0, &[(0, 300), (250, 1000)], 0, 900);
    // At 250 only 50 were left; until 950 that is the least.
    for padded in [30, 100, 650] {
        assert_eq!(past.need_ms(Some(padded * SECOND)), Some(50 * SECOND), "{padded}");
    }
    assert_eq!(past.need_ms(Some(700 * SECOND)), Some(100 * SECOND));
}

#[test]
fn without_experience_the_prior_holds() {
    let mut trigger = Trigger::default();
    assert_eq!(trigger.lead_ms(None), PRIOR * MARGIN_MS);
    assert_eq!(trigger.lead_ms(Some(0)), PRIOR * MARGIN_MS);
    assert_eq!(trigger.lead_ms(Some(30 * SECOND)), PRIOR * 60 * SECOND);
    assert_eq!(trigger.early_ms(0, 601 * SECOND, Some(30 * SECOND)), Some(SECOND));
    for now in [1, 2, 1000] {
        assert_eq!(trigger.early_ms(now * SECOND, 601 * SECOND, Some(30 * SECOND)), None, "{now}");
    }
}

/// Stagings that took what was expected, of jobs that started as planned, need little more than that.
#[test]
fn a_world_without_surprises_needs_the_estimate_and_the_margin() {
    let past = (0..50).map(|_| experience(100, 100, &[(0, 10_000)], 9_000, 10_000));
    let lead = Trigger::of(past).lead_ms(Some(100 * SECOND));
    assert!((130 * SECOND..140 * SECOND).contains(&lead), "{lead}");
}

/// One world in which all jobs start at half the planned time.
#[test]
fn plans_that_come_nearer_are_learned() {
    let past = (0..50).map(|_| experience(100, 100, &[(0, 10_000)], 0, 5_000));
    let lead = Trigger::of(past).lead_ms(Some(100 * SECOND));
    // 130 s before its real start at 5,000 the plan said 5,130.
    assert!((5_130 * SECOND..5_140 * SECOND).contains(&lead), "{lead}");
}

#[test]
fn late_jobs_move_the_share_and_the_bounds_hold() {
    let mut trigger = Trigger::default();
    for _ in 0..1000 {
        trigger.learn(experience(10, 10, &[(0, 100)], 95, 100));
    }
    assert_eq!((trigger.share, trigger.experiences()), (SHARE_MIN, EXPERIENCES_MAX));
    // More than 40 s before the start was never needed: here the prior is more, and it is owed twice.
    assert_eq!(trigger.lead_ms(Some(0)), 2 * PRIOR * MARGIN_MS);
    for _ in 0..3000 {
        trigger.learn(experience(10, 10, &[(0, 100)], 0, 100));
    }
    assert_eq!(trigger.share, SHARE_MAX);
}

#[test]
fn looks_are_bounded() {
    let looks: Vec<(u64, u64)> = (0..100_000).map(|n| (n, 300_000 - n)).collect();
    let past = experience(1, 1, &looks, 0, 200_000);
    assert!(past.seen.len() <= LOOKS_MAX, "{}", past.seen.len());
    assert_eq!(past.seen[0].before_ms, 200_000 * SECOND);
}

#[test]
fn numbers_at_their_limits_overflow_nowhere() {
    let far = u64::MAX;
    let looks = [Look { at_ms: 0, planned_ms: far }, Look { at_ms: far - 1, planned_ms: 0 }];
    let mut trigger = Trigger::default();
    for (estimate, took) in [(Some(0), far), (Some(far), 0), (Some(far), far), (None, far), (Some(0), 0)] {
        for _ in 0..20 {
            trigger.learn(Experience::new(estimate, (far, took, far), looks));
        }
        for asked in [None, Some(0), Some(1 << 40), Some(far)] {
            assert!(trigger.lead_ms(asked) >= MARGIN_MS);
            trigger.early_ms(far, 0, asked);
            trigger.early_ms(0, far, asked);
        }
    }
}

#[test]
fn the_quantile_is_that_of_sorting() {
    // Of 99 values the 95th smallest leaves at most one in twenty above.
    assert_eq!(rank(99, 0.05), Some(94));
    assert_eq!(rank(19, 0.05), Some(18));
    assert_eq!(rank(18, 0.05), None);
    assert_eq!(rank(0, 0.5), None);
    assert_eq!(rank(10, 1.0), Some(0));
}

/// Second by second: the last moment at which one could begin and be in time, and what had been seen until then.
fn slow_need(looks: &[(u64, u64)], start: u64, takes: u64) -> Option<u64> {
    let last = start.checked_sub(takes)?;
    let mut least = None;
    for now in looks.first()?.0..=last {
        // At a look both the plan before it and the new one.
        let before = looks.iter().rfind(|(at, _)| *at < now);
        let since = looks.iter().rfind(|(at, _)| *at <= now);
        for (_, planned) in before.into_iter().chain(since) {
            let left = planned.saturating_sub(now);
            least = Some(least.map_or(left, |least: u64| least.min(left)));
        }
    }
    least
}

/// Gaps between looks, and how far each plan is from it.
fn plans() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((1u64..200, 0u64..2000), 1..20).prop_map(|steps| {
        let mut at = 0;
        let look = |(gap, left): (u64, u64)| {
            at += gap;
            (at, at + left)
        };
        steps.into_iter().map(look).collect()
    })
}

fn experiences() -> impl Strategy<Value = Vec<Experience>> {
    let one = (plans(), 0u64..2000, 0u64..500, 0u64..500, 0u64..4000);
    prop::collection::vec(one, 0..60).prop_map(|all| {
        let of = |(looks, more, estimate, took, began): (Vec<(u64, u64)>, u64, u64, u64, u64)| {
            let start = looks[0].0 + more;
            experience(estimate, took, &looks, began, start)
        };
        all.into_iter().map(of).collect()
    })
}

proptest! {
    #[test]
    fn needs_are_those_of_a_slow_look_at_each_second(looks in plans(), more in 0u64..3000, takes in 30u64..3000) {
        let start = looks[0].0 + more;
        let past = experience(0, 0, &looks, 0, start);
        let need = past.need_ms(Some(takes * SECOND)).map(|ms| ms / SECOND);
        prop_assert_eq!(need, slow_need(&looks, start, takes));
    }

    #[test]
    fn more_data_never_begin_later(past in experiences(), a in 0u64..2_000_000_000, b in 0u64..2_000_000_000) {
        let mut trigger = Trigger::of(past);
        let (less, more) = (a.min(b), a.max(b));
        prop_assert!(trigger.lead_ms(Some(less)) <= trigger.lead_ms(Some(more)));
        prop_assert!(trigger.lead_ms(Some(less)) >= less + MARGIN_MS, "earlier than the mean and the margin");
    }

    /// Jobs that wait for long enough whatever happens, with the same plans: when transfers scatter more, or plans come nearer
    /// by more, nothing begins later.
    #[test]
    fn more_scatter_never_begins_later(
        took in prop::collection::vec((1u64..400, 0u64..400, 0u64..5000, 0u64..5000), 10..80),
        estimate in 1u64..400,
    ) {
        let world = |longer: bool, nearer: bool| {
            let one = |&(took, more, ahead, further): &(u64, u64, u64, u64)| {
                let took = took + if longer { more } else { 0 };
                let planned = 20_000 + ahead + if nearer { further } else { 0 };
                experience(100, took, &[(0, planned)], 0, 20_000)
            };
            Trigger::of(took.iter().map(one)).lead_ms(Some(estimate * SECOND))
        };
        prop_assert!(world(false, false) <= world(true, false));
        prop_assert!(world(false, false) <= world(false, true));
    }

    #[test]
    fn the_lead_is_the_sorted_one(past in experiences(), step in 0usize..20) {
        let mut trigger = Trigger::of(past);
        let at = |trigger: &Trigger, step: usize| {
            let mut needs: Vec<u64> =
                trigger.past.iter().filter_map(|past| past.need_ms(Some(step_ms(step)))).collect();
            needs.sort_unstable();
            let count = needs.len() as f64;
            // The least of them that all but the share of one more are not above.
            let wanted = (1..=needs.len()).find(|n| *n as f64 >= (count + 1.0) * (1.0 - trigger.share) - 1e-9);
            match wanted.filter(|_| needs.len() >= EXPERIENCES_MIN) {
                Some(n) => needs[n - 1],
                None => {
                    let most = needs.last().copied().unwrap_or(0).max(PRIOR * step_ms(step));
                    if trigger.share > 0.0 { most } else { 2 * most }
                }
            }
        };
        let slow = (0..=step).map(|step| at(&trigger, step).max(step_ms(step))).max().unwrap();
        prop_assert_eq!(trigger.lead_ms(Some(step_ms(step) - MARGIN_MS)), slow);
    }
}
