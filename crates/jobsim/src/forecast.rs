//! When and where the jobs of a queue will start, from what runs now.
//!
//! The scheduler goes on from a present state with the run times that somebody gives: once with the likeliest ones, and many times
//! with run times that are drawn from what is thought of each job. From the draws come [`Range`]s, and the share in which a job got the
//! nodes that it got with the likeliest.
//!
//! Plans go by limits, as in Slurm. What is submitted later nobody knows; somebody may draw it too ([`Scene::replay_among`]).

use crate::engine::{self, Done, Running, Setup, Task};
use crate::plan::{NodeSet, Nodes};
use crate::predict::Request;

/// Shares of draws below the three values of a [`Range`].
pub const SHARES: [f64; 3] = [0.05, 0.5, 0.95];

/// A machine at work, and who waits for it. See [`engine::Present`].
#[derive(Clone, Debug)]
pub struct Scene {
    pub now_s: u64,
    /// As it is when nobody runs.
    pub plan: Nodes,
    /// Their run times are not looked at.
    pub tasks: Vec<Task>,
    pub running: Vec<Running<NodeSet>>,
    pub after: Vec<Vec<usize>>,
    pub setup: Setup,
}

/// When and where a job ran.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slot {
    pub start_s: u64,
    pub end_s: u64,
    pub list: NodeSet,
}

impl Scene {
    /// What becomes of `asked` if each task runs for so long in all, and nobody is submitted later. A job runs on for at least a
    /// second, and not beyond its limit.
    pub fn replay(&self, run_s: &[u64], asked: &[usize]) -> Vec<Option<Slot>> {
        self.replay_among(run_s, asked, &[])
    }

    /// The same, where others are submitted later: in the order of their submissions, each after the present.
    pub fn replay_among(&self, run_s: &[u64], asked: &[usize], later: &[Task]) -> Vec<Option<Slot>> {
        let at_least =
            |index: usize| self.running.get(index).map_or(0, |running| self.now_s - running.start_s) + 1;
        let task = |index: usize| {
            let mut task = self.tasks[index];
            task.job.run_s = run_s[index].clamp(at_least(index), task.job.request_s.max(at_least(index)));
            task
        };
        // Those that run, then all others as they are submitted; of one second those that wait are first.
        let mut order: Vec<(u64, Result<usize, usize>)> = (self.running.len()..self.tasks.len())
            .map(|index| (self.tasks[index].job.submit_s, Ok(index)))
            .collect();
        order.extend(later.iter().enumerate().map(|(index, task)| (task.job.submit_s, Err(index))));
        order.sort_by_key(|(submit_s, _)| *submit_s);
        let mut places: Vec<usize> = (0..self.tasks.len()).collect();
        let mut tasks: Vec<Task> = (0..self.running.len()).map(task).collect();
        let mut after: Vec<Vec<usize>> = Vec::new();
        for (_, which) in order {
            match which {
                Ok(index) => {
                    places[index] = tasks.len();
                    tasks.push(task(index));
                }
                Err(index) => tasks.push(later[index]),
            }
        }
        if !self.after.is_empty() {
            after.resize(tasks.len(), Vec::new());
            // One that is no task stays none.
            let place = |other: &usize| places.get(*other).copied().unwrap_or(usize::MAX);
            for (index, ends) in self.after.iter().enumerate() {
                after[places[index]] = ends.iter().map(place).collect();
            }
        }
        let Scene { now_s, running, setup, .. } = self;
        let present = engine::Present { now_s: *now_s, tasks: &tasks, running, after: &after, setup };
        let asked: Vec<usize> = asked.iter().map(|index| places[*index]).collect();
        let mut all = engine::resume(self.plan.clone(), &present, &mut Request, &asked);
        let slot = |done: Done<NodeSet>| Slot { start_s: done.start_s, end_s: done.end_s, list: done.list };
        asked.iter().map(|index| all[*index].take().map(slot)).collect()
    }
}

/// Of sorted draws, at least one, the one that such a share of them is not above.
pub fn at(draws: &[u64], share: f64) -> u64 {
    draws[((draws.len() as f64 * share).ceil() as usize).clamp(1, draws.len()) - 1]
}

/// Seconds that 5, 50 and 95 % of the draws are not above.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    pub low_s: u64,
    pub middle_s: u64,
    pub high_s: u64,
}

impl Range {
    /// There has to be a draw.
    pub fn of(mut draws: Vec<u64>) -> Range {
        draws.sort_unstable();
        let [low_s, middle_s, high_s] = SHARES.map(|share| at(&draws, share));
        Range { low_s, middle_s, high_s }
    }
}

/// What is said of a job.
#[derive(Clone, PartialEq, Debug)]
pub struct Forecast {
    pub start: Range,
    pub end: Range,
    /// Of the draws, with the planned nodes.
    pub same_nodes: f64,
}

impl Forecast {
    /// Of a job's slots in all draws; none without a draw, and where it did not start in one of them.
    pub fn of(planned: &Slot, draws: &[Option<Slot>]) -> Option<Forecast> {
        let slots: Option<Vec<&Slot>> = draws.iter().map(Option::as_ref).collect();
        let slots = slots.filter(|slots| !slots.is_empty())?;
        let same = slots.iter().filter(|slot| slot.list == planned.list).count();
        Some(Forecast {
            start: Range::of(slots.iter().map(|slot| slot.start_s).collect()),
            end: Range::of(slots.iter().map(|slot| slot.end_s).collect()),
            same_nodes: same as f64 / slots.len() as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Early, Order, Policy};
    use crate::plan::{Allocation, Share};
    use proptest::prelude::*;
    use tidepool_joblog::Job;

    const NODES: u32 = 6;

    fn task(submit_s: u64, run_s: u64, more_s: u64, nodes: u32) -> Task {
        let job = Job { submit_s, run_s, request_s: run_s + more_s, processors: nodes, ..Job::default() };
        Task { job, nodes, partition: 0, rank: 0 }
    }

    fn plan() -> Nodes {
        Nodes::new(NODES, Vec::new(), Allocation::Lowest)
    }

    fn setup(policy: Policy) -> Setup {
        Setup { early: Early::Anew(Order::Queue), keeps_nodes: false, ..Setup::new(policy) }
    }

    /// What runs and waits at a moment of a run; the places of those that wait.
    fn scene(now_s: u64, tasks: &[Task], done: &[Done<NodeSet>], setup: &Setup) -> (Scene, Vec<usize>) {
        let is_there = |index: &usize| tasks[*index].job.submit_s <= now_s && done[*index].end_s > now_s;
        let (running, waiting): (Vec<usize>, Vec<usize>) =
            (0..tasks.len()).filter(is_there).partition(|index| done[*index].start_s <= now_s);
        let run = |index: &usize| Running { start_s: done[*index].start_s, list: done[*index].list.clone() };
        let task = |index: &usize| {
            let mut task = tasks[*index];
            task.job.submit_s = task.job.submit_s.max(now_s);
            task
        };
        let scene = Scene {
            now_s,
            plan: plan(),
            tasks: running.iter().chain(&waiting).map(task).collect(),
            running: running.iter().map(run).collect(),
            after: Vec::new(),
            setup: setup.clone(),
        };
        (scene, running.into_iter().chain(waiting).collect())
    }

    fn policies() -> impl Strategy<Value = Policy> {
        prop_oneof![Just(Policy::Fcfs), Just(Policy::Easy), Just(Policy::Conservative)]
    }

    fn logs() -> impl Strategy<Value = Vec<Task>> {
        let one = (0u64..100, 1u64..40, 0u64..40, 1u32..=NODES);
        prop::collection::vec(one, 1..25).prop_map(|all| {
            let mut tasks: Vec<Task> =
                all.into_iter().map(|(at, run, more, nodes)| task(at, run, more, nodes)).collect();
            tasks.sort_by_key(|task| task.job.submit_s);
            tasks
        })
    }

    proptest! {
        /// When run times and later submissions are known, a forecast at any moment is what the simulator then really does.
        #[test]
        fn with_all_known_a_forecast_is_exact(log in logs(), now_s in 0u64..150, policy in policies()) {
            let later: Vec<Task> = log.iter().filter(|task| task.job.submit_s > now_s).copied().collect();
            let setup = setup(policy);
            let done = engine::run(plan(), &log, &setup, &mut Request);
            let (scene, places) = scene(now_s, &log, &done, &setup);
            let run_s: Vec<u64> = scene.tasks.iter().map(|task| task.job.run_s).collect();
            let asked: Vec<usize> = (0..places.len()).collect();
            for (slot, place) in scene.replay_among(&run_s, &asked, &later).into_iter().zip(places) {
                let Done { start_s, end_s, list, .. } = done[place].clone();
                prop_assert_eq!(slot, Some(Slot { start_s, end_s, list }), "of {} at {}", place, now_s);
            }
        }

        /// Dependencies: the first waits for all that run, the second for the first.
        #[test]
        fn who_waits_for_others_starts_at_their_ends(ends in prop::collection::vec(1u64..50, 1..4), now_s in 5u64..9) {
            let run = |end: &u64| task(0, now_s + end, 0, 1);
            let mut tasks: Vec<Task> = ends.iter().map(run).collect();
            let list = |node: u32| { let mut set = NodeSet::none(NODES); set.add(node, node + 1); set };
            let running = (0..ends.len()).map(|at| Running { start_s: 0, list: list(at as u32) }).collect();
            let first = tasks.len();
            tasks.extend([task(now_s, 5, 5, 1), task(now_s, 5, 5, 1)]);
            let mut after = vec![Vec::new(); first];
            after.extend([(0..first).collect(), vec![first]]);
            let run_s: Vec<u64> = tasks.iter().map(|task| task.job.run_s).collect();
            let scene = Scene { now_s, plan: plan(), tasks, running, after, setup: setup(Policy::Conservative) };
            let slots = scene.replay(&run_s, &[first, first + 1]);
            let last = now_s + ends.iter().max().unwrap();
            let starts: Vec<u64> = slots.iter().map(|slot| slot.as_ref().unwrap().start_s).collect();
            prop_assert_eq!(starts, [last, last + 5]);
        }
    }

    #[test]
    fn who_waits_for_ever_gets_no_start() {
        let tasks = vec![task(7, 5, 0, 1), task(7, 5, 0, 1), task(7, 5, 0, 1)];
        // The first and the second wait for each other.
        let after = vec![vec![1], vec![0], vec![]];
        let scene =
            Scene { now_s: 7, plan: plan(), tasks, running: Vec::new(), after, setup: setup(Policy::Easy) };
        let starts: Vec<Option<u64>> = scene
            .replay(&[5; 3], &[0, 1, 2])
            .iter()
            .map(|slot| slot.as_ref().map(|slot| slot.start_s))
            .collect();
        assert_eq!(starts, [None, None, Some(7)]);
    }

    /// Nodes of 4: half of one is taken; who wants three of a node gets another, who wants whole ones waits.
    #[test]
    fn parts_of_nodes_by_hand() {
        let all = NodeSet::all(12);
        let partitions = vec![all.clone(), all.clone(), all.clone()];
        let shares = vec![Share::Bits(2), Share::Bits(3), Share::Whole];
        let plan = Nodes::new(12, partitions, Allocation::Parts(4)).with_shares(all, shares);
        let mut taken = NodeSet::none(12);
        taken.add(0, 2);
        let of = |partition: usize, nodes: u32| Task { partition, nodes, ..task(10, 50, 50, nodes) };
        let tasks = vec![of(0, 1), of(1, 2), of(0, 1), of(2, 3)];
        let running = vec![Running { start_s: 0, list: taken }];
        let scene =
            Scene { now_s: 10, plan, tasks, running, after: Vec::new(), setup: setup(Policy::Conservative) };
        let slots = scene.replay(&[30, 40, 20, 5], &[1, 2, 3]);
        let got: Vec<(u64, Vec<u32>)> =
            slots.into_iter().flatten().map(|slot| (slot.start_s, slot.list.nodes().collect())).collect();
        assert_eq!(got[0], (10, vec![4, 5, 6, 8, 9, 10]));
        assert_eq!(got[1], (10, vec![2, 3]));
        assert_eq!(got[2], (50, (0..12).collect()));
    }

    #[test]
    fn ranges_by_hand() {
        let range = Range::of((1..=100).rev().collect());
        assert_eq!((range.low_s, range.middle_s, range.high_s), (5, 50, 95));
        let slot = |start_s, node| {
            let mut list = NodeSet::none(4);
            list.add(node, node + 1);
            Slot { start_s, end_s: start_s + 10, list }
        };
        let draws = [Some(slot(5, 0)), Some(slot(7, 1)), Some(slot(5, 0)), Some(slot(9, 0))];
        let forecast = Forecast::of(&slot(5, 0), &draws).unwrap();
        assert_eq!((forecast.same_nodes, forecast.end.high_s), (0.75, 19));
        assert_eq!(Forecast::of(&slot(5, 0), &[]), None);
        assert_eq!(Forecast::of(&slot(5, 0), &[Some(slot(5, 0)), None]), None);
    }
}
