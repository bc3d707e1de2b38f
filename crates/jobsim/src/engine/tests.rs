//! The engine against a simulation that does everything anew each second with arrays, and what each policy promises.

use super::*;
use crate::plan::{Allocation, Counts, NodeSet, Nodes, Share};
use crate::predict::Request;
use proptest::prelude::*;

const NODES: u32 = 5;
const SECONDS: usize = 4000;

/// Says what it was told to, and chances where there are any.
struct Told(Vec<u64>, Vec<Vec<f32>>);

impl Predictor for Told {
    fn predict(&mut self, job: &Submitted) -> u64 {
        self.0[job.index]
    }

    fn chances(&self, job: &Submitted) -> Option<&[f32]> {
        self.1.get(job.index).map(|points| &points[..])
    }
}

/// Some seconds around the estimate, in no deep pattern, none above the request.
fn points(tasks: &[Task], estimates: &[u64]) -> Vec<Vec<f32>> {
    let of = |(task, estimate): (&Task, &u64)| {
        let mut points: Vec<f32> = [1, 3, 4, 9]
            .iter()
            .map(|quarters| (estimate * quarters / 4).clamp(1, task.job.request_s) as f32)
            .collect();
        points.sort_by(f32::total_cmp);
        points
    };
    tasks.iter().zip(estimates).map(of).collect()
}

fn told(tasks: &[Task], estimates: &[u64]) -> Told {
    Told(estimates.to_vec(), points(tasks, estimates))
}

fn task(submit_s: u64, run_s: u64, request_s: u64, nodes: u32) -> Task {
    let job = Job { submit_s, run_s: run_s.min(request_s), request_s, processors: nodes, ..Job::default() };
    Task { job, nodes, partition: 0, rank: 0 }
}

/// A job of the slow simulation.
#[derive(Clone, Debug, Default)]
struct Slow {
    estimate: u64,
    points: Vec<f32>,
    planned: Option<u64>,
    started: bool,
    ended: bool,
    start: u64,
    end: u64,
    limit: u64,
    list: Vec<u32>,
    fixed: u64,
    corrections: u32,
}

/// With a bit for each node and second, or where `named` is false with a number.
struct Slowly<'a> {
    tasks: &'a [Task],
    setup: &'a Setup,
    named: bool,
    jobs: Vec<Slow>,
    /// First in the queue first.
    queue: Vec<usize>,
    known: Vec<Block>,
    points: Vec<Vec<f32>>,
}

impl Slowly<'_> {
    /// Nodes that are free over a time beside those that run and those planned; numbers count from below.
    fn free(&self, from: u64, until: u64, without: Option<usize>) -> Vec<u32> {
        let taken = |second: u64| -> Vec<u32> {
            let mut taken: Vec<u32> = Vec::new();
            for (number, job) in self.jobs.iter().enumerate() {
                let placed = job.started && !job.ended || job.planned.is_some();
                if placed && Some(number) != without && job.start <= second && job.limit > second {
                    taken.extend(&job.list);
                }
            }
            for block in self.known.iter().filter(|block| block.from_s <= second && block.until_s > second) {
                taken.extend(block.set.nodes());
            }
            taken
        };
        if self.named {
            let all: Vec<u32> = (from..until).flat_map(taken).collect();
            return (0..NODES).filter(|node| !all.contains(node)).collect();
        }
        let most = (from..until).map(|second| taken(second).len()).max().unwrap_or(0);
        (0..(NODES as usize).saturating_sub(most) as u32).collect()
    }

    fn fit(&self, number: usize, start: u64, without: Option<usize>) -> Option<Vec<u32>> {
        let nodes = self.tasks[number].nodes as usize;
        let free = self.free(start, start + self.jobs[number].estimate, without);
        let job = &self.jobs[number];
        let kept = job.planned.is_some() || !job.list.is_empty();
        if self.named && kept && self.setup.keeps_nodes && job.list.iter().all(|node| free.contains(node)) {
            return Some(job.list.clone());
        }
        (free.len() >= nodes).then(|| free[..nodes].to_vec())
    }

    fn put(&mut self, number: usize, now: u64, start: u64, list: Vec<u32>) {
        let job = &mut self.jobs[number];
        if job.list != list {
            job.fixed = now;
        }
        (job.planned, job.start, job.limit, job.list) = (Some(start), start, start + job.estimate, list);
    }

    fn place(&mut self, number: usize, now: u64, from: u64) {
        let (start, list) = (from..).find_map(|at| Some((at, self.fit(number, at, None)?))).unwrap();
        self.put(number, now, start, list);
    }

    fn from(&self, now: u64, before: Option<usize>) -> u64 {
        let before = before.filter(|_| self.setup.policy == Policy::Fcfs);
        before.map_or(now, |before| self.jobs[before].start.max(now))
    }

    fn anew(&mut self, now: u64, order: &[usize]) {
        order.iter().for_each(|number| self.jobs[*number].planned = None);
        for (at, number) in order.iter().enumerate() {
            let from = self.from(now, at.checked_sub(1).map(|at| order[at]));
            self.place(*number, now, from);
        }
    }

    fn order(&self, order: Order) -> Vec<usize> {
        let mut all = self.queue.clone();
        if order == Order::Start && self.setup.policy != Policy::Fcfs {
            all.sort_by_key(|number| (self.jobs[*number].start, *number));
        }
        all
    }

    fn replan(&mut self, now: u64, freed: bool, void: bool) {
        match self.setup.early {
            Early::Anew(order) if freed || void => self.anew(now, &self.order(order)),
            _ if void => self.anew(now, &self.order(Order::Start)),
            Early::Nearer(order) if freed => {
                let order = self.order(order);
                for (at, number) in order.iter().enumerate() {
                    let from = self.from(now, at.checked_sub(1).map(|at| order[at]));
                    let old = self.jobs[*number].start;
                    let nearer = (from..old).find_map(|at| Some((at, self.fit(*number, at, Some(*number))?)));
                    if let Some((start, list)) = nearer {
                        self.put(*number, now, start, list);
                    }
                }
            }
            _ => {}
        }
    }

    fn begin(&mut self, number: usize, now: u64) {
        let job = &mut self.jobs[number];
        (job.started, job.planned) = (true, None);
        let beyond = if self.setup.kills { 0 } else { self.tasks[number].job.overran_s };
        job.end = now + self.tasks[number].job.run_s + beyond;
        self.queue.retain(|other| *other != number);
    }

    fn submit(&mut self, number: usize, now: u64, estimate: u64) {
        self.jobs[number].estimate = estimate;
        self.jobs[number].points = self.points[number].clone();
        self.jobs[number].fixed = now;
        let rank = self.tasks[number].rank;
        let place =
            self.queue.iter().position(|other| self.tasks[*other].rank > rank).unwrap_or(self.queue.len());
        self.queue.insert(place, number);
    }

    /// EASY from nothing: the first ones that fit start, the next one gets a place, others start that fit beside it.
    fn easy(&mut self, now: u64) {
        for number in self.queue.clone() {
            self.jobs[number].planned = None;
        }
        if self.setup.policy == Policy::Easy && self.setup.precedence == Precedence::Expected {
            // The one who comes before all others, again and again.
            let mut left = std::mem::take(&mut self.queue);
            while !left.is_empty() {
                let first =
                    |one: usize| left.iter().all(|other| *other == one || self.is_before(one, *other, now));
                let at = left.iter().position(|one| first(*one)).unwrap();
                self.queue.push(left.remove(at));
            }
        }
        while let Some(head) = self.queue.first().copied() {
            self.place(head, now, now);
            if self.jobs[head].start > now {
                break;
            }
            self.begin(head, now);
        }
        let mut others: Vec<usize> = self.queue.iter().skip(1).copied().collect();
        if self.setup.backfill != Backfill::Queue {
            others.sort_by_key(|number| (self.jobs[*number].estimate, *number));
        }
        for number in others.into_iter().filter(|_| self.setup.policy == Policy::Easy) {
            // It has never had a place that it could keep.
            let old = std::mem::take(&mut self.jobs[number].list);
            let mut fit = self.fit(number, now, None);
            let head = self.queue[0];
            let delays = fit.is_none()
                && self.setup.backfill == Backfill::Expected
                && self.is_worth(number, head, now);
            if delays {
                self.jobs[head].planned = None;
                fit = self.fit(number, now, None);
            }
            self.jobs[number].list = old;
            if let Some(list) = fit {
                self.put(number, now, now, list);
                self.begin(number, now);
            }
            if delays {
                self.place(head, now, now);
            }
        }
    }

    fn is_before(&self, one: usize, other: usize, now: u64) -> bool {
        let turn = |number: usize| self.second_costs(number, now) / self.mean(number, |point| point);
        match self.tasks[one].rank.cmp(&self.tasks[other].rank) {
            std::cmp::Ordering::Equal => (-turn(one), one) < (-turn(other), other),
            ranks => ranks.is_lt(),
        }
    }

    fn mean(&self, number: usize, of: impl Fn(f64) -> f64) -> f64 {
        let points = &self.jobs[number].points;
        points.iter().map(|point| of(f64::from(*point))).sum::<f64>() / points.len() as f64
    }

    /// What a second more of waiting costs, by now.
    fn second_costs(&self, number: usize, now: u64) -> f64 {
        let patiences = (now - self.tasks[number].job.submit_s) as f64 / self.setup.patience_s as f64;
        self.mean(number, |point| 1.0 / point.max(10.0))
            * (1.0 + patiences * patiences * patiences * patiences)
    }

    /// Whether what a job is spared by starting now is more than what it costs the first, point by point.
    fn is_worth(&self, number: usize, head: usize, now: u64) -> bool {
        let window = (self.jobs[head].start - now) as f64;
        let spared = window + self.mean(head, |point| point);
        let costs = self.mean(number, |point| (point - window).max(0.0));
        spared * self.second_costs(number, now) >= costs * self.second_costs(head, now)
    }

    fn run(mut self, estimates: &[u64], plans_all: bool) -> Vec<Slow> {
        let kills = self.setup.kills;
        for now in 0..SECONDS as u64 {
            let mut freed = false;
            // The queue is looked at when something happens.
            let mut happens = self.queue.first().is_some_and(|head| self.jobs[*head].start == now);
            for job in self.jobs.iter_mut().filter(|job| job.started && !job.ended && job.end == now) {
                job.ended = true;
                freed |= job.limit > now;
                happens = true;
            }
            let mut void = false;
            for (job, task) in self.jobs.iter_mut().zip(self.tasks) {
                if job.started && !job.ended && job.limit == now {
                    let chances = Chances::new(Some(&job.points), job.estimate);
                    job.limit = self.setup.correction.limit(
                        &task.job,
                        job.start,
                        now,
                        job.corrections,
                        kills,
                        &chances,
                    );
                    job.corrections += 1;
                    void = true;
                }
            }
            for (_, block) in self.setup.blocks.iter().filter(|(known, _)| *known == now) {
                void |= block.until_s > now;
                self.known.push(block.clone());
            }
            happens |=
                void || self.setup.blocks.iter().any(|(known, block)| *known == now || block.until_s == now);
            if plans_all {
                self.replan(now, freed, void);
            }
            for (number, estimate) in estimates.iter().enumerate() {
                if self.tasks[number].job.submit_s != now {
                    continue;
                }
                happens = true;
                self.submit(number, now, (*estimate).clamp(1, self.tasks[number].job.request_s));
                if plans_all {
                    let at = self.queue.iter().position(|other| *other == number).unwrap();
                    let from = self.from(now, at.checked_sub(1).map(|before| self.queue[before]));
                    self.place(number, now, from);
                    let rules =
                        self.setup.policy == Policy::Fcfs || self.setup.early == Early::Anew(Order::Queue);
                    if rules && at + 1 < self.queue.len() {
                        self.anew(now, &self.queue.clone());
                    }
                }
            }
            if plans_all {
                for number in self.queue.clone() {
                    if self.jobs[number].start == now {
                        self.begin(number, now);
                    }
                }
            } else if happens {
                self.easy(now);
            }
        }
        self.jobs
    }
}

fn slowly(tasks: &[Task], setup: &Setup, estimates: &[u64], named: bool) -> Vec<Slow> {
    let plans_all = match setup.policy {
        Policy::Easy => false,
        Policy::Fcfs => named || setup.history,
        Policy::Conservative => true,
    };
    let jobs = vec![Slow::default(); tasks.len()];
    Slowly {
        tasks,
        setup,
        named,
        jobs,
        queue: Vec::new(),
        known: Vec::new(),
        points: points(tasks, estimates),
    }
    .run(estimates, plans_all)
}

fn logs(ranks: i64) -> impl Strategy<Value = (Vec<Task>, Vec<u64>)> {
    let one = (0u64..50, 1u64..16, 0u64..16, 1u32..=NODES, 0..=ranks, 1u64..40, 0u64..20);
    prop::collection::vec(one, 1..16).prop_map(|mut all| {
        all.sort_by_key(|one| one.0);
        let of = |(at, run, more, nodes, rank, _, over): &(u64, u64, u64, u32, i64, u64, u64)| {
            let mut task = Task { rank: *rank, ..task(*at, *run, run + more, *nodes) };
            // Some outlive their request in the log.
            task.job.overran_s = if *more == 0 { *over } else { 0 };
            task
        };
        (all.iter().map(of).collect(), all.iter().map(|one| one.5).collect())
    })
}

fn blocks() -> impl Strategy<Value = Vec<(u64, Block)>> {
    let one = (0u64..30, 0u64..60, 1u64..30, 0u32..NODES);
    prop::collection::vec(one, 0..3).prop_map(|all| {
        let of = |(known, from_s, seconds, first): (u64, u64, u64, u32)| {
            let mut set = NodeSet::none(NODES);
            set.add(first, NODES);
            (known, Block { from_s, until_s: from_s + seconds, nodes: NODES - first, set })
        };
        let mut blocks: Vec<_> = all.into_iter().map(of).collect();
        blocks.sort_by_key(|(known, _)| *known);
        blocks
    })
}

fn early() -> impl Strategy<Value = Early> {
    prop_oneof![
        Just(Early::Keep),
        Just(Early::Nearer(Order::Queue)),
        Just(Early::Nearer(Order::Start)),
        Just(Early::Anew(Order::Queue)),
        Just(Early::Anew(Order::Start)),
    ]
}

fn setups() -> impl Strategy<Value = Setup> {
    let backfill = prop::sample::select(vec![Backfill::Queue, Backfill::Shortest, Backfill::Expected]);
    let correction = prop::sample::select(vec![
        Correction::Steps,
        Correction::Double,
        Correction::Request,
        Correction::Expected,
    ]);
    let policy = prop::sample::select(&Policy::ALL[..]);
    let precedence = prop::sample::select(vec![Precedence::Submission, Precedence::Expected]);
    let orders = (backfill, precedence, prop::sample::select(vec![1u64, 30, 3000]));
    (policy, early(), orders, correction, any::<[bool; 3]>()).prop_map(
        |(policy, early, (backfill, precedence, patience_s), correction, [kills, keeps_nodes, history])| {
            Setup {
                precedence,
                patience_s,
                early,
                backfill,
                correction,
                kills,
                keeps_nodes,
                history,
                ..Setup::new(policy)
            }
        },
    )
}

fn nodes() -> Nodes {
    Nodes::new(NODES, Vec::new(), Allocation::Lowest)
}

/// Nobody runs before submission, and no node has two jobs.
fn is_sound(tasks: &[Task], done: &[Done<NodeSet>]) -> bool {
    let apart = |a: &Done<NodeSet>, b: &Done<NodeSet>| {
        a.end_s <= b.start_s || b.end_s <= a.start_s || a.list.nodes().all(|node| !b.list.has(node))
    };
    let pairs = (0..done.len()).all(|at| done[..at].iter().all(|other| apart(other, &done[at])));
    pairs
        && tasks
            .iter()
            .zip(done)
            .all(|(task, done)| done.start_s >= task.job.submit_s && done.list.count() == task.nodes)
}

proptest! {
    #[test]
    fn named_nodes_are_those_of_a_slow_simulation((tasks, estimates) in logs(1), setup in setups(), blocks in blocks()) {
        let setup = Setup { blocks, ..setup };
        let done = run(nodes(), &tasks, &setup, &mut told(&tasks, &estimates));
        prop_assert!(is_sound(&tasks, &done));
        for (got, slow) in done.iter().zip(slowly(&tasks, &setup, &estimates, true)) {
            let list: Vec<u32> = got.list.nodes().collect();
            prop_assert_eq!((got.start_s, got.end_s, list), (slow.start, slow.end, slow.list));
            prop_assert_eq!((got.fixed_s, got.corrections), (slow.fixed, slow.corrections));
        }
    }

    #[test]
    fn numbers_are_those_of_a_slow_simulation((tasks, estimates) in logs(1), setup in setups()) {
        let done = run(Counts::new(NODES), &tasks, &setup, &mut told(&tasks, &estimates));
        for (got, slow) in done.iter().zip(slowly(&tasks, &setup, &estimates, false)) {
            prop_assert_eq!((got.start_s, got.end_s, got.corrections), (slow.start, slow.end, slow.corrections));
        }
    }

    /// By requests nobody's planned start recedes: under conservative backfilling no job's, under EASY not that of the first.
    #[test]
    fn promises_are_kept((tasks, _) in logs(0), early in early(), easy: bool, named: bool) {
        let policy = if easy { Policy::Easy } else { Policy::Conservative };
        // From nothing in the order of the queue nobody but the first is promised anything; on certain nodes neither by start.
        let promises = match early {
            Early::Anew(Order::Queue) => easy,
            Early::Anew(Order::Start) => easy || !named,
            _ => true,
        };
        let setup = Setup { early, history: true, ..Setup::new(policy) };
        let moves: Vec<Vec<Planned>> = if named {
            run(nodes(), &tasks, &setup, &mut Request).into_iter().map(|done| done.plans).collect()
        } else {
            run(Counts::new(NODES), &tasks, &setup, &mut Request).into_iter().map(|done| done.plans).collect()
        };
        for plans in moves.iter().filter(|_| promises) {
            prop_assert!(plans.windows(2).all(|pair| pair[1].start_s < pair[0].start_s), "{:?}", plans);
        }
    }

    /// With plans for all or only for the first, by number or by node, first come first served is the same.
    #[test]
    fn first_come_is_first_served((tasks, estimates) in logs(0)) {
        let setup = Setup { early: Early::Anew(Order::Queue), ..Setup::new(Policy::Fcfs) };
        let planned = Setup { history: true, ..setup.clone() };
        let starts = |setup| -> Vec<u64> {
            run(Counts::new(NODES), &tasks, setup, &mut told(&tasks, &estimates)).iter().map(|done| done.start_s).collect()
        };
        let of_nodes = run(nodes(), &tasks, &setup, &mut told(&tasks, &estimates));
        prop_assert!(starts(&setup).is_sorted());
        prop_assert_eq!(starts(&setup), starts(&planned));
        prop_assert_eq!(starts(&setup), of_nodes.iter().map(|done| done.start_s).collect::<Vec<_>>());
    }

    /// Jobs are ended at their request, whatever is predicted; without that they run for as long as in the log.
    #[test]
    fn jobs_end_at_their_limit((tasks, estimates) in logs(1), setup in setups()) {
        for (task, done) in tasks.iter().zip(run(nodes(), &tasks, &setup, &mut told(&tasks, &estimates))) {
            let beyond = if setup.kills { 0 } else { task.job.overran_s };
            prop_assert_eq!(done.end_s - done.start_s, task.job.run_s + beyond);
            prop_assert!(done.corrections > 0 || done.estimate_s >= done.end_s - done.start_s);
        }
    }
}

/// Of a larger machine than the others.
const MORE: u32 = 9;

/// Whole nodes, runs of them, and parts of three, in two partitions; how many nodes a job may want.
fn plans() -> impl Strategy<Value = (Nodes, u32)> {
    let mut part = NodeSet::none(MORE);
    part.add(3, MORE);
    let partitions = vec![NodeSet::all(MORE), part];
    let plan = move |allocation| Nodes::new(MORE, partitions.clone(), allocation);
    let shared = plan.clone();
    let shared = move |bits| {
        let shares = vec![Share::Bits(bits), Share::Whole];
        (shared(Allocation::Parts(3)).with_shares(NodeSet::all(MORE), shares), 2)
    };
    let whole = prop::sample::select(vec![Allocation::Lowest, Allocation::Contiguous]);
    prop_oneof![whole.prop_map(move |allocation| (plan(allocation), NODES)), (1u32..3).prop_map(shared)]
}

proptest! {
    /// Whether all are planned anew at each early end, or only those who may start: who starts when and where is the same.
    #[test]
    fn no_more_is_planned_than_who_starts_needs(
        (mut tasks, estimates) in logs(2),
        (plan, most) in plans(),
        kinds in prop::collection::vec((0usize..2, any::<Option<prop::sample::Index>>()), 16),
        setup in setups(),
        blocks in blocks(),
        is_counted: bool,
    ) {
        let setup = Setup { early: Early::Anew(Order::Queue), keeps_nodes: false, history: false, blocks, ..setup };
        let mut after = Vec::new();
        for (index, (task, (partition, other))) in tasks.iter_mut().zip(&kinds).enumerate() {
            (task.partition, task.nodes) = (*partition, task.nodes.min(most));
            after.push(other.filter(|_| index > 0).map(|other| other.index(index)).into_iter().collect());
        }
        let asked: Vec<usize> = (0..tasks.len()).collect();
        let of_nodes = |lazily| {
            let present = Present { now_s: 0, tasks: &tasks, running: &[], after: &after, setup: &setup };
            let all = resume::resume_by(plan.clone(), &present, &mut told(&tasks, &estimates), &asked, lazily);
            let seen = |done: Done<NodeSet>| (done.start_s, done.end_s, done.list.nodes().collect::<Vec<u32>>());
            all.into_iter().map(|done| done.map(seen)).collect::<Vec<_>>()
        };
        let of_counts = |lazily| {
            let present = Present { now_s: 0, tasks: &tasks, running: &[], after: &after, setup: &setup };
            let all = resume::resume_by(Counts::new(MORE), &present, &mut told(&tasks, &estimates), &asked, lazily);
            all.into_iter().map(|done| done.map(|done| (done.start_s, done.end_s))).collect::<Vec<_>>()
        };
        match is_counted {
            true => prop_assert_eq!(of_counts(true), of_counts(false)),
            false => prop_assert_eq!(of_nodes(true), of_nodes(false)),
        }
    }
}

fn ahead(tasks: &[Task], nodes: u32, early: Early) -> Vec<(u64, Vec<u32>, u64)> {
    let plan = Nodes::new(nodes, Vec::new(), Allocation::Lowest);
    let setup = Setup { early, ..Setup::new(Policy::Conservative) };
    let done = run(plan, tasks, &setup, &mut Request);
    done.iter().map(|done| (done.start_s, done.list.nodes().collect(), done.known_ahead_s())).collect()
}

/// T_NAP (S0, Section 4.1): shifts of the start alone do not count, other nodes do.
#[test]
fn c2_known_ahead_by_hand() {
    let by_start = Early::Anew(Order::Start);
    // The second waits for all nodes, which it has known from its submission on, though its start moves from 100 to 50.
    let tasks = [task(0, 50, 100, 3), task(1, 10, 10, 4), task(2, 5, 20, 1), task(3, 5, 200, 1)];
    let wanted = [(0, vec![0, 1, 2], 0), (50, vec![0, 1, 2, 3], 49), (2, vec![3], 0), (60, vec![0], 57)];
    assert_eq!(ahead(&tasks, 4, by_start), wanted);
    // The fourth was to start at 100 on node 0, and starts at 30 on node 1, when that becomes free: it is known then only.
    let tasks = [task(0, 100, 100, 1), task(0, 30, 200, 1), task(4, 9, 9, 2), task(5, 50, 50, 1)];
    let wanted = [(0, vec![0], 0), (0, vec![1], 0), (100, vec![0, 1], 96), (30, vec![1], 0)];
    assert_eq!(ahead(&tasks, 2, by_start), wanted);
    // The last was to start at 100 on node 2. At 20 it gets node 1 from 40 on, behind the one before it.
    let tasks =
        [task(0, 90, 90, 1), task(0, 20, 120, 1), task(0, 100, 100, 1), task(1, 20, 20, 1), task(2, 5, 5, 1)];
    let wanted = [(0, vec![0], 0), (0, vec![1], 0), (0, vec![2], 0), (20, vec![1], 0), (40, vec![1], 20)];
    assert_eq!(ahead(&tasks, 3, by_start), wanted);
}

/// A job that outlives its prediction moves its limit, and a job planned behind it.
#[test]
fn a_correction_by_hand() {
    let tasks = [task(0, 100, 1000, 2), task(1, 5, 5, 2)];
    let chances = vec![vec![5.0, 10.0, 40.0, 70.0], vec![5.0]];
    for (correction, corrections) in
        [(Correction::Steps, 2), (Correction::Double, 4), (Correction::Request, 1), (Correction::Expected, 2)]
    {
        for policy in Policy::ALL {
            let setup = Setup { correction, history: true, ..Setup::new(policy) };
            let done = run(Counts::new(2), &tasks, &setup, &mut Told(vec![10, 5], chances.clone()));
            assert_eq!((done[0].corrections, done[1].start_s), (corrections, 100), "{correction:?}");
            let planned: Vec<u64> = done[1].plans.iter().map(|planned| planned.start_s).collect();
            let wanted: &[u64] = match correction {
                Correction::Steps => &[10, 70, 370, 100],
                Correction::Double => &[10, 20, 40, 80, 160, 100],
                Correction::Request => &[10, 1000, 100],
                // Two of the four were within the estimate of 10 s, so it is the second of the two left; beyond that steps.
                Correction::Expected => &[10, 70, 370, 100],
            };
            assert_eq!(planned, wanted, "{policy:?}");
        }
    }
}

/// Three jobs wait for the whole machine, the longest for longest: short ones go first, until it has waited for some patiences.
#[test]
fn turns_by_hand() {
    let tasks = [task(0, 100, 100, 4), task(1, 500, 500, 4), task(80, 100, 100, 4), task(99, 20, 20, 4)];
    let starts = |precedence, patience_s| -> Vec<u64> {
        let setup = Setup { precedence, patience_s, ..Setup::new(Policy::Easy) };
        run(Counts::new(4), &tasks, &setup, &mut Request).into_iter().map(|done| done.start_s).collect()
    };
    assert_eq!(starts(Precedence::Submission, 1), [0, 100, 600, 700]);
    assert_eq!(starts(Precedence::Expected, 1_000_000), [0, 220, 120, 100]);
    // At 100 s it is 1/500^2 x 105 against 1/100^2 x 1.2 and 1/20^2; at 120 s 218 against 3.8.
    assert_eq!(starts(Precedence::Expected, 31), [0, 120, 620, 100]);
    // At 100 s it is 1/500^2 x 14,642 against 1/20^2.
    assert_eq!(starts(Precedence::Expected, 9), [0, 100, 620, 600]);
}

/// A job that would run for 52 s beyond the planned start of the first: worth it where that one runs for long, not where it is short.
#[test]
fn a_delay_that_is_worth_it_by_hand() {
    for (first_s, job_s, starts) in [(1000, 150, [0, 152, 2]), (10, 1000, [0, 100, 110])] {
        let tasks = [task(0, 100, 100, 3), task(1, first_s, first_s, 4), task(2, job_s, job_s, 1)];
        for backfill in [Backfill::Shortest, Backfill::Expected] {
            let setup = Setup { backfill, ..Setup::new(Policy::Easy) };
            let got = run(Counts::new(4), &tasks, &setup, &mut Request).into_iter().map(|done| done.start_s);
            let beside = [0, 100, 100 + first_s];
            let wanted = if backfill == Backfill::Expected { starts } else { beside };
            assert_eq!(got.collect::<Vec<_>>(), wanted, "{backfill:?}");
        }
    }
}
