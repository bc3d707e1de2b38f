//! The arbiter against a slow oracle, and what each policy promises.

use super::*;
use proptest::prelude::*;

fn task(id: u32) -> Queued {
    Queued { id, priority: 0, seq: id.into(), size: 0, job: 0, uid: 0, class: (0, 0) }
}

fn drain(arbiter: &mut Arbiter) -> Vec<u32> {
    std::iter::from_fn(|| arbiter.pop(|_| true)).map(|task| task.id).collect()
}

#[test]
fn first_come_is_first_served_but_for_priorities() {
    let mut arbiter = Arbiter::new(Policy::FirstCome);
    [3, 1, 2].iter().for_each(|id| arbiter.push(task(*id)));
    arbiter.push(Queued { priority: 1, ..task(9) });
    assert_eq!(drain(&mut arbiter), [9, 1, 2, 3]);
}

#[test]
fn the_shortest_goes_first_and_the_unknown_last() {
    let mut arbiter = Arbiter::new(Policy::ShortestFirst);
    for (id, size) in [(1, 500), (2, 0), (3, 5), (4, 500)] {
        arbiter.push(Queued { size, ..task(id) });
    }
    assert_eq!(drain(&mut arbiter), [3, 1, 4, 2]);
}

#[test]
fn a_job_with_few_tasks_does_not_wait_for_one_with_many() {
    let mut arbiter = Arbiter::new(Policy::FairByJob);
    (1..=100).for_each(|id| arbiter.push(Queued { job: 1, size: 1 << 20, ..task(id) }));
    (101..=102).for_each(|id| arbiter.push(Queued { job: 2, size: 1 << 20, ..task(id) }));
    let order = drain(&mut arbiter);
    assert!(order[..4].contains(&101) && order[..5].contains(&102), "{order:?}");
}

#[test]
fn a_user_with_nothing_running_is_found_behind_any_number_of_others_tasks() {
    for policy in [Policy::FirstCome, Policy::ShortestFirst, Policy::FairByJob, Policy::FairByUser] {
        let mut arbiter = Arbiter::new(policy);
        (1..=100).for_each(|id| arbiter.push(Queued { uid: 1, priority: i32::MAX, ..task(id) }));
        arbiter.push(Queued { uid: 2, class: (9, 0), ..task(101) });
        arbiter.push(Queued { uid: 3, ..task(102) });
        arbiter.push(Queued { uid: 3, ..task(103) });
        let mut next =
            |room: fn(Class) -> bool| arbiter.pop_of(|uid| (uid != 1).then_some(0), room).map(|task| task.id);
        assert_eq!(next(|class| class.0 != 9), Some(102), "what it uses is full for 101");
        assert_eq!(next(|_| true), Some(101), "it has waited longer than 103");
        assert_eq!([next(|_| true), next(|_| true)], [Some(103), None]);
        assert_eq!(arbiter.by_user.keys().collect::<Vec<_>>(), [&1]);
        assert_eq!(drain(&mut arbiter).len(), 100);
        assert!(arbiter.by_user.is_empty());
    }
}

#[test]
fn what_a_task_really_moved_counts() {
    let mut arbiter = Arbiter::new(Policy::FairByUser);
    for id in 1..=20 {
        arbiter.push(Queued { uid: 1 + id % 2, ..task(id) });
    }
    let first = arbiter.pop(|_| true).expect("20 are pending");
    arbiter.settle(&first, 100 << 20);
    let next: Vec<u32> = (0..5).map(|_| arbiter.pop(|_| true).expect("19 are pending").uid).collect();
    assert!(next.iter().all(|uid| *uid != first.uid), "{next:?}");
}

#[test]
fn who_was_away_gets_no_backlog_of_turns() {
    let mut arbiter = Arbiter::new(Policy::FairByJob);
    (1..=50).for_each(|id| arbiter.push(Queued { job: 1, size: 1 << 20, ..task(id) }));
    (0..40).for_each(|_| assert!(arbiter.pop(|_| true).is_some()));
    (51..=60).for_each(|id| arbiter.push(Queued { job: 2, size: 1 << 20, ..task(id) }));
    let jobs: Vec<u32> = (0..8).map(|_| arbiter.pop(|_| true).expect("20 are pending").job).collect();
    assert!(jobs.iter().filter(|job| **job == 1).count() >= 3, "{jobs:?}");
}

#[test]
fn a_full_dataspace_blocks_its_tasks_only() {
    let mut arbiter = Arbiter::new(Policy::FirstCome);
    arbiter.push(Queued { class: (1, 2), ..task(1) });
    arbiter.push(Queued { class: (3, 2), ..task(2) });
    assert_eq!(arbiter.pop(|class| class.0 != 1).map(|t| t.id), Some(2));
    assert_eq!(arbiter.pop(|class| class.0 != 1), None);
    assert_eq!(arbiter.pop(|_| true).map(|t| t.id), Some(1));
}

/// All pending tasks in a list; the same rules by looking at each.
#[derive(Default)]
struct Oracle {
    tasks: Vec<Queued>,
    served: std::collections::HashMap<u32, u64>,
    now: u64,
}

impl Oracle {
    fn push(&mut self, policy: Policy, task: Queued) {
        let flow = task.flow(policy);
        if !self.tasks.iter().any(|t| t.flow(policy) == flow) {
            let served = self.served.entry(flow).or_default();
            *served = (*served).max(self.now);
        }
        self.tasks.push(task);
    }

    fn pop(&mut self, policy: Policy, blocked: u32) -> Option<u32> {
        // The head of each flow and class, and of these the one served least.
        let key = |t: &Queued| (Reverse(t.priority), t.place(policy).size, t.seq);
        let heads = self.tasks.iter().filter(|t| t.class.0 != blocked).filter(|t| {
            let same = |o: &&Queued| o.flow(policy) == t.flow(policy) && o.class == t.class;
            self.tasks.iter().filter(same).all(|o| key(o) >= key(t))
        });
        let best = heads
            .min_by_key(|t| {
                let (priority, size, seq) = key(t);
                (priority, self.served[&t.flow(policy)], size, seq)
            })
            .copied()?;
        self.tasks.retain(|t| t.id != best.id);
        let flow = best.flow(policy);
        self.now = self.now.max(self.served[&flow]);
        self.charge(policy, &best);
        Some(best.id)
    }

    fn charge(&mut self, policy: Policy, best: &Queued) {
        let flow = best.flow(policy);
        if matches!(policy, Policy::FairByJob | Policy::FairByUser) {
            let served = self.served.entry(flow).or_default();
            *served = (*served).max(self.now) + best.cost();
        }
    }

    /// The first open task of each user with a rank, the user of the least rank first, and of several the task that came first.
    fn firsts(&self, policy: Policy, rank: impl Fn(u32) -> Option<u64>, blocked: u32) -> Vec<u32> {
        let open = |t: &&Queued| t.class.0 != blocked;
        let first = |t: &&Queued| {
            let others = self.tasks.iter().filter(open).filter(|o| o.uid == t.uid);
            others.map(|o| o.place(policy)).min() == Some(t.place(policy))
        };
        let heads = self.tasks.iter().filter(open).filter(first);
        let mut ranked: Vec<(u64, u64, u32)> =
            heads.filter_map(|t| Some((rank(t.uid)?, t.seq, t.id))).collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(_, _, id)| id).collect()
    }

    fn pop_of(&mut self, policy: Policy, rank: impl Fn(u32) -> Option<u64>, blocked: u32) -> Option<u32> {
        let id = *self.firsts(policy, rank, blocked).first()?;
        let best = *self.tasks.iter().find(|t| t.id == id)?;
        self.tasks.retain(|t| t.id != id);
        self.charge(policy, &best);
        Some(id)
    }
}

/// Half of the users have one; it changes with what is given.
fn rank_of(uid: u32, with: u32) -> Option<u64> {
    (uid + with).is_multiple_of(2).then_some(u64::from((uid * 7 + with) % 3))
}

proptest! {
    #[test]
    fn it_chooses_as_the_oracle_does(
        policy in prop::sample::select(vec![Policy::FirstCome, Policy::ShortestFirst, Policy::FairByJob, Policy::FairByUser]),
        steps in prop::collection::vec((0u8..14, 0i32..3, 0u64..4, 0u32..4, 0u32..3), 1..400),
    ) {
        let (mut arbiter, mut oracle) = (Arbiter::new(policy), Oracle::default());
        for (seq, (what, priority, size, flow, class)) in steps.into_iter().enumerate() {
            match what {
                0..6 => {
                    let queued = Queued {
                        priority, size: size << 20, job: flow, uid: flow + 10, class: (class, 0), ..task(seq as u32)
                    };
                    arbiter.push(queued);
                    oracle.push(policy, queued);
                }
                6 => {
                    let task = oracle.tasks.get(seq % oracle.tasks.len().max(1)).copied();
                    if let Some(Queued { id, .. }) = task {
                        prop_assert_eq!(arbiter.remove(id), task);
                        oracle.tasks.retain(|t| t.id != id);
                    }
                }
                7 => {
                    // Takes one back at its own place, as one that has given way is.
                    let task = oracle.tasks.get(seq % oracle.tasks.len().max(1)).copied();
                    if let Some(task) = task {
                        prop_assert_eq!(arbiter.remove(task.id), Some(task));
                        oracle.tasks.retain(|t| t.id != task.id);
                        arbiter.push(task);
                        oracle.push(policy, task);
                    }
                }
                8 | 9 => {
                    let got = arbiter.pop_of(|uid| rank_of(uid, flow), |c| c.0 != class).map(|t| t.id);
                    prop_assert_eq!(got, oracle.pop_of(policy, |uid| rank_of(uid, flow), class));
                }
                10 => {
                    let got = arbiter.firsts(|uid| rank_of(uid, flow));
                    let got: Vec<u32> = got.into_iter().map(|t| t.id).collect();
                    prop_assert_eq!(got, oracle.firsts(policy, |uid| rank_of(uid, flow), u32::MAX));
                }
                _ => {
                    let got = arbiter.pop(|c| c.0 != class).map(|t| t.id);
                    prop_assert_eq!(got, oracle.pop(policy, class));
                }
            }
            prop_assert_eq!(arbiter.len(), oracle.tasks.len());
            for own in arbiter.by_user.values() {
                prop_assert!(own.new.len() <= 2 * own.pending + STALE_MAX + 1);
            }
        }
    }
}
