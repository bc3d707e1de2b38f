//! The scheduler: jobs come, are planned, start and end.
//!
//! Plans go by what a job is expected to take, its *estimate*: the request, or what a [`Predictor`] says. At one moment
//! things happen in this order: jobs end; predictions that jobs have outlived are corrected; blocks become known; plans are made
//! nearer; jobs that are submitted are planned, in the order of the log; what is planned for this moment starts.
//!
//! | policy | who starts |
//! |---|---|
//! | [`Policy::Fcfs`] | nobody before those ahead in the queue |
//! | [`Policy::Easy`] | the first of the queue has a place in the plan; others start when they fit beside that now, else have no plan (Lifka 1995) |
//! | [`Policy::Conservative`] | each job has a place in the plan from its submission on, beside those of all others (Mu'alem and Feitelson 2001) |
//!
//! The queue is in the order of [`Task::rank`], then of [`Precedence`], then of the log. It is looked at when something happens.
//!
//! When a job ends before its limit, plans can come nearer. [`Early`] says how; all but [`Early::Anew`] in the order of the queue keep
//! every promise as long as nobody outlives a prediction: no job's planned start recedes. When one does, its limit moves
//! ([`Correction`]), and all plans are made anew in the order of their starts, since some are void.

mod chances;
mod easy;
mod lazy;
mod reserve;
mod resume;

pub use resume::{Present, Running, resume};

use self::chances::Chances;
use crate::plan::{Ask, Block, Plan};
use crate::predict::{Predictor, Submitted};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use tidepool_joblog::Job;

/// In which order jobs may start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    Fcfs,
    Easy,
    Conservative,
}

impl Policy {
    pub const ALL: [Policy; 3] = [Policy::Fcfs, Policy::Easy, Policy::Conservative];

    pub fn name(self) -> &'static str {
        match self {
            Policy::Fcfs => "fcfs",
            Policy::Easy => "easy",
            Policy::Conservative => "conservative",
        }
    }
}

/// An order of jobs that wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// As they stand in the queue.
    Queue,
    /// By their planned starts, those with the same one as they were submitted.
    Start,
}

/// What becomes of plans when a job has ended before its limit. First come first served plans in the order of the queue always.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Early {
    /// They stay as they are: no compression.
    Keep,
    /// One job after the other gets the first place that is free beside all others, or keeps its own.
    Nearer(Order),
    /// All are dropped, and one job after the other gets the first place that is free.
    Anew(Order),
}

impl Early {
    /// What holds where nothing is said: beside all others in the order of the queue, as batsched does; where nodes are told from
    /// each other anew, since plans on certain nodes leave no room to come nearer one by one.
    pub fn usual(policy: Policy, named: bool) -> Early {
        match (policy, named) {
            (Policy::Fcfs, _) => Early::Anew(Order::Queue),
            (_, true) => Early::Anew(Order::Start),
            (_, false) => Early::Nearer(Order::Queue),
        }
    }
}

/// In which order others than the first of the queue are tried, under EASY.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backfill {
    Queue,
    /// The shortest estimate first: the SJBF of EASY++ (Tsafrir, Etsion and Feitelson 2007).
    Shortest,
    /// The shortest estimate first, and such too that may delay the first of the queue, where that is expected to spare more
    /// bounded slowdown than it costs: a relaxed reservation (Ward, Mahood and West 2002), with the slack weighed for each pair.
    Expected,
}

/// In which order jobs of the same rank stand in the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precedence {
    /// As they were submitted.
    Submission,
    /// Under EASY: whose waiting is expected to cost most bounded slowdown for as long as the job takes (Smith 1956), the more the longer
    /// it has waited. Others, where the order is that of plans, stay as they were submitted.
    Expected,
}

/// The new limit of a job that outlives its prediction. Never beyond its request, if jobs are killed there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Correction {
    /// Later by 1 min, then by 5, 15 and 30 min, 1, 2, 5, 10, 20, 50, 100 h (Tsafrir, Etsion and Feitelson 2007).
    Steps,
    /// Twice the time that it has run for.
    Double,
    /// Its request.
    Request,
    /// From what such jobs take that have run for so long: as likely to hold as the estimate was. Beyond all that is known as
    /// with [`Correction::Steps`].
    Expected,
}

/// What a job waits for until its waiting counts twice, where nothing is said. Chosen on KTH and CTC, where half and twice as much
/// hardly differ (docs/decisions/0037-batch-simulator.md).
pub const PATIENCE_S: u64 = 48 * 3600;

/// Seconds of [`Correction::Steps`]; the last one again and again.
const STEPS: [u64; 11] = [60, 300, 900, 1800, 3600, 7200, 18_000, 36_000, 72_000, 180_000, 360_000];

impl Correction {
    /// What holds where nothing is said.
    pub fn usual(backfill: Backfill) -> Correction {
        match backfill {
            Backfill::Expected => Correction::Expected,
            Backfill::Queue | Backfill::Shortest => Correction::Steps,
        }
    }

    /// The limit after `corrections` ones.
    fn limit(
        self,
        job: &Job,
        start: u64,
        limit: u64,
        corrections: u32,
        kills: bool,
        chances: &Chances,
    ) -> u64 {
        let last = start + job.request_s;
        let steps = limit + STEPS[(corrections as usize).min(STEPS.len() - 1)];
        let later = match self {
            Correction::Steps => steps,
            Correction::Expected => chances.outlived(limit - start).map_or(steps, |ran_s| start + ran_s),
            Correction::Double => limit + (limit - start),
            Correction::Request if limit < last => last,
            Correction::Request => steps,
        };
        if kills { later.min(last) } else { later }
    }
}

/// How the machine is run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setup {
    pub policy: Policy,
    pub early: Early,
    pub backfill: Backfill,
    pub precedence: Precedence,
    /// Of [`Backfill::Expected`] and [`Precedence::Expected`]: for who has waited for so long, a second more counts twice. Seconds.
    pub patience_s: u64,
    pub correction: Correction,
    /// Jobs are ended at their request; else they run for as long as they did, beyond it too.
    pub kills: bool,
    /// A job that gets a nearer start keeps its nodes if they are free then.
    pub keeps_nodes: bool,
    /// Each change of a planned start is kept.
    pub history: bool,
    /// Where each job ran is kept when it has ended.
    pub keeps_lists: bool,
    /// When each becomes known, in that order, and what it is.
    pub blocks: Vec<(u64, Block)>,
    /// Nodes are reserved for jobs whose data are staged ahead. Of conservative backfilling on certain nodes only.
    pub pins: Option<Pins>,
}

/// Staging ahead on reserved nodes (S0, Sections 4.2 and 6): when the planned start of a job is near, its nodes are its own until it
/// starts; then its data come, and it starts when they are there and the nodes are free. A job whose planned start is too near
/// for its data already when it is submitted, or becomes so before its nodes are reserved, starts without.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pins {
    /// How long the data of each task take. Seconds.
    pub takes_s: Vec<u64>,
    /// How long before its planned start nodes are reserved for each task; at least as long as its data take.
    pub leads_s: Vec<u64>,
}

impl Setup {
    pub fn new(policy: Policy) -> Setup {
        Setup {
            policy,
            early: Early::Nearer(Order::Queue),
            backfill: Backfill::Queue,
            precedence: Precedence::Submission,
            patience_s: PATIENCE_S,
            correction: Correction::Steps,
            kills: true,
            keeps_nodes: true,
            history: false,
            keeps_lists: true,
            blocks: Vec::new(),
            pins: None,
        }
    }
}

/// A job as the scheduler sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Task {
    pub job: Job,
    pub nodes: u32,
    /// Of the plan; 0 where there are none.
    pub partition: usize,
    /// The lowest is the first in the queue.
    pub rank: i64,
}

/// What is planned for a job from a time on. Seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Planned {
    pub at_s: u64,
    pub start_s: u64,
}

/// What became of a job.
#[derive(Clone, PartialEq, Debug)]
pub struct Done<L> {
    pub start_s: u64,
    pub end_s: u64,
    /// At its submission.
    pub estimate_s: u64,
    pub corrections: u32,
    /// Where it ran.
    pub list: L,
    /// When its list, as it was at the start, had been planned. The start, where it never had a plan.
    pub fixed_s: u64,
    /// When its nodes were reserved.
    pub pinned_s: Option<u64>,
    /// Each change of its planned start, if they are kept.
    pub plans: Vec<Planned>,
}

impl<L> Done<L> {
    /// T_NAP: how long before its start its nodes were known.
    pub fn known_ahead_s(&self) -> u64 {
        self.start_s - self.fixed_s
    }
}

/// Runs tasks, which are in the order of submission, each of which fits into its partition.
pub fn run<P: Plan>(
    plan: P,
    tasks: &[Task],
    setup: &Setup,
    predictor: &mut dyn Predictor,
) -> Vec<Done<P::List>> {
    let mut engine = Engine::new(plan, tasks, setup, predictor);
    while let Some(now) = engine.next() {
        engine.step(now);
    }
    assert!(engine.waiting.is_empty(), "all jobs have run");
    engine.done
}

struct Engine<'a, P: Plan> {
    tasks: &'a [Task],
    setup: &'a Setup,
    predictor: &'a mut dyn Predictor,
    plan: P,
    /// Of the tasks that have been submitted. `start_s` is planned until it has started; `end_s` is 0 until then.
    done: Vec<Done<P::List>>,
    /// Until when they are in the plan: the start and the estimate, corrected.
    limits: Vec<u64>,
    /// Of those that have been submitted and have not ended.
    chances: Vec<Option<Chances>>,
    /// In the order of the queue.
    waiting: Vec<usize>,
    /// Planned starts of those that have a place in the plan.
    starts: BTreeSet<(u64, usize)>,
    /// Limits of those that run.
    running: BTreeSet<(u64, usize)>,
    /// Real ends of those that run.
    ends: BinaryHeap<Reverse<(u64, usize)>>,
    /// Limits that will be outlived.
    expiries: BinaryHeap<Reverse<(u64, usize)>>,
    /// Moments at which blocks become known or end.
    alarms: BinaryHeap<Reverse<u64>>,
    /// So many blocks are known, the first ones.
    known: usize,
    /// The first of the queue, where only that has a plan.
    head: Option<usize>,
    /// When nodes will next be reserved, as plans are.
    pin_next: Option<u64>,
    /// For how many jobs' ends each waits before it comes into the queue; empty where nobody does.
    unmet: Vec<u32>,
    /// Who waits for the end of each; empty where nobody does.
    dependents: Vec<Vec<usize>>,
    /// Those whose last such job has ended at this moment.
    released: VecDeque<usize>,
    /// Where the plan is only of those that run, and others are planned as far as it takes to see who starts.
    draft: Option<P>,
}

/// What has happened at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct News {
    /// Nodes are free earlier than was planned.
    freed: bool,
    /// Nodes are free that were not.
    ended: bool,
    /// Somebody runs for longer than was planned, or a block has become known: some plans are void.
    void: bool,
}

impl<'a, P: Plan> Engine<'a, P> {
    fn new(plan: P, tasks: &'a [Task], setup: &'a Setup, predictor: &'a mut dyn Predictor) -> Engine<'a, P> {
        let alarms = setup.blocks.iter().flat_map(|(known, block)| [Reverse(*known), Reverse(block.until_s)]);
        Engine {
            tasks,
            setup,
            predictor,
            plan,
            done: Vec::with_capacity(tasks.len()),
            limits: Vec::with_capacity(tasks.len()),
            chances: Vec::with_capacity(tasks.len()),
            waiting: Vec::new(),
            starts: BTreeSet::new(),
            running: BTreeSet::new(),
            ends: BinaryHeap::new(),
            expiries: BinaryHeap::new(),
            alarms: alarms.collect(),
            known: 0,
            head: None,
            pin_next: None,
            unmet: Vec::new(),
            dependents: Vec::new(),
            released: VecDeque::new(),
            draft: None,
        }
    }

    /// The next moment at which anything happens; none when all jobs have ended.
    fn next(&self) -> Option<u64> {
        let submitted = self.tasks.get(self.done.len()).map(|task| task.job.submit_s);
        let ended = self.ends.peek().map(|Reverse((end, _))| *end);
        let started = self.starts.first().map(|(start, _)| *start);
        let alarm = self.alarms.peek().map(|Reverse(at)| *at);
        // Without plans nobody knows yet who waits for a block's end.
        let awaited = alarm.filter(|_| self.draft.is_some() && !self.waiting.is_empty());
        let work = [submitted, ended, started, awaited].into_iter().flatten().min()?;
        let expired = self.expiries.peek().map(|Reverse((limit, _))| *limit);
        [expired, alarm, self.pin_next].into_iter().flatten().fold(work, u64::min).into()
    }

    fn step(&mut self, now: u64) {
        self.plan.forget_before(now);
        let mut news = self.end_those_of(now);
        news.void |= self.correct_those_of(now);
        news.void |= self.announce_those_of(now, &mut news);
        let first = self.done.len();
        if self.draft.is_some() {
            while self.next_arrival(now).is_some() {}
            self.start_those_who_may(now);
        } else if self.plans_all() {
            self.replan(now, news);
            while let Some(index) = self.next_arrival(now) {
                self.reserve(index, now);
            }
            self.start_those_of(now);
            self.pin_those_of(now);
        } else {
            while self.next_arrival(now).is_some() {}
            self.backfill(now, news, first);
        }
    }

    /// Whether each job that waits has a place in the plan. First come first served can do without where nobody asks.
    fn plans_all(&self) -> bool {
        match self.setup.policy {
            Policy::Conservative => true,
            Policy::Fcfs => P::NAMED || self.setup.history,
            Policy::Easy => false,
        }
    }

    fn end_those_of(&mut self, now: u64) -> News {
        let mut news = News::default();
        while let Some(Reverse((_, index))) =
            self.ends.peek().copied().filter(|Reverse((end, _))| *end == now)
        {
            self.ends.pop();
            let limit = self.limits[index];
            self.running.remove(&(limit, index));
            news.ended = true;
            if limit > now {
                news.freed = true;
                self.plan.give(&self.done[index].list, self.tasks[index].nodes, now, limit);
            }
            if !self.setup.keeps_lists {
                self.done[index].list = P::List::default();
            }
            self.chances[index] = None;
            self.release_those_after(index);
            let job = &self.tasks[index].job;
            let ran = now - self.done[index].start_s;
            self.predictor.ended(&Submitted::of(index, job), ran, now);
        }
        news
    }

    /// True when somebody has outlived a prediction.
    fn correct_those_of(&mut self, now: u64) -> bool {
        let mut any = false;
        while let Some(Reverse((_, index))) =
            self.expiries.peek().copied().filter(|Reverse((at, _))| *at == now)
        {
            self.expiries.pop();
            if !any {
                self.drop_head();
                any = true;
            }
            let (Setup { correction, kills, .. }, Done { start_s, corrections, .. }) =
                (self.setup, &self.done[index]);
            let chances = self.chances[index].as_ref().expect("it has not ended");
            let job = &self.tasks[index].job;
            let limit = correction.limit(job, *start_s, now, *corrections, *kills, chances);
            assert!(limit > now, "a correction moves the limit");
            self.running.remove(&(now, index));
            self.running.insert((limit, index));
            self.limits[index] = limit;
            self.done[index].corrections += 1;
            self.plan.take(&self.done[index].list, self.tasks[index].nodes, now, limit);
            if self.done[index].end_s > limit {
                self.expiries.push(Reverse((limit, index)));
            }
        }
        any
    }

    /// True when a block has become known. One that has ended leaves nodes free.
    fn announce_those_of(&mut self, now: u64, news: &mut News) -> bool {
        let mut any = false;
        while self.alarms.peek().is_some_and(|Reverse(at)| *at <= now) {
            self.alarms.pop();
            news.ended = true;
        }
        while let Some((_, block)) = self.setup.blocks.get(self.known).filter(|(known, _)| *known <= now) {
            self.known += 1;
            if block.until_s > now {
                self.drop_head();
                self.plan.block(block);
                any = true;
            }
        }
        any
    }

    /// The next job that comes into the queue at this moment, without a plan.
    fn next_arrival(&mut self, now: u64) -> Option<usize> {
        loop {
            let index = self.released.pop_front().or_else(|| self.submit_next(now))?;
            // Those that were submitted wait elsewhere for the ends of others.
            if self.unmet.get(index).is_none_or(|unmet| *unmet == 0) {
                let rank = self.tasks[index].rank;
                let place = self.waiting.partition_point(|other| self.tasks[*other].rank <= rank);
                self.waiting.insert(place, index);
                self.done[index].fixed_s = now;
                return Some(index);
            }
        }
    }

    /// The next job, if it is submitted at this moment.
    fn submit_next(&mut self, now: u64) -> Option<usize> {
        let index = self.done.len();
        let task = self.tasks.get(index).filter(|task| task.job.submit_s <= now)?;
        let asked = Submitted::of(index, &task.job);
        let estimate_s = self.predictor.predict(&asked).clamp(1, task.job.request_s.max(1));
        self.chances.push(Some(Chances::new(self.predictor.chances(&asked), estimate_s)));
        self.done.push(Done {
            start_s: u64::MAX,
            end_s: 0,
            estimate_s,
            corrections: 0,
            list: P::List::default(),
            fixed_s: now,
            pinned_s: None,
            plans: Vec::new(),
        });
        self.limits.push(u64::MAX);
        Some(index)
    }

    fn release_those_after(&mut self, index: usize) {
        for at in 0..self.dependents.get(index).map_or(0, Vec::len) {
            let dependent = self.dependents[index][at];
            self.unmet[dependent] -= 1;
            // One that is submitted later comes into the queue then.
            if self.unmet[dependent] == 0 && dependent < self.done.len() {
                self.released.push_back(dependent);
            }
        }
    }

    /// Places a job that has no place in the plan, at `from` at the earliest.
    fn place(&mut self, index: usize, now: u64, from: u64) -> u64 {
        let (task, done) = (&self.tasks[index], &self.done[index]);
        let had = done.start_s != u64::MAX && self.setup.keeps_nodes;
        let ask = Ask {
            from_s: from.max(self.ready(index)),
            before_s: u64::MAX,
            nodes: task.nodes,
            seconds: done.estimate_s,
            partition: task.partition,
            own: None,
            keep: Some(&done.list).filter(|_| had),
            only: Some(&done.list).filter(|_| done.pinned_s.is_some()),
        };
        let (start, list) = self.plan.first_fit(&ask).expect("each task fits into its partition");
        self.put(index, now, start, list);
        start
    }

    /// Its place in the plan is this from now on.
    fn put(&mut self, index: usize, now: u64, start: u64, list: P::List) {
        let (task, done) = (&self.tasks[index], &mut self.done[index]);
        let limit = start.saturating_add(done.estimate_s);
        self.plan.take(&list, task.nodes, start, limit);
        if done.list != list {
            done.list = list;
            done.fixed_s = now;
        }
        if self.setup.history && done.start_s != start {
            done.plans.push(Planned { at_s: now, start_s: start });
        }
        done.start_s = start;
        self.limits[index] = limit;
        self.starts.insert((start, index));
    }

    /// A job whose place in the plan begins now starts there. It stays in the queue until that is tidied.
    fn begin(&mut self, index: usize, now: u64) {
        let (job, done) = (&self.tasks[index].job, &mut self.done[index]);
        self.starts.remove(&(now, index));
        self.predictor.started(&Submitted::of(index, job), now);
        let beyond = if self.setup.kills { 0 } else { job.overran_s };
        done.end_s = now + job.run_s.max(1) + beyond;
        let limit = self.limits[index];
        self.running.insert((limit, index));
        self.ends.push(Reverse((done.end_s, index)));
        if done.end_s > limit {
            self.expiries.push(Reverse((limit, index)));
        }
    }

    /// Takes those that have started out of the queue.
    fn tidy(&mut self) {
        let done = &self.done;
        self.waiting.retain(|index| done[*index].end_s == 0);
    }
}

#[cfg(test)]
mod tests;
