//! How well forecasts hold: a log is run on a simulated machine, and at some moments all that wait are told of, as of a real queue. What
//! then really happens is known, without those that are submitted later, and with them.

use crate::calibrate::{Rolling, Widening};
use crate::cluster::Cluster;
use crate::later;
use crate::rows::{Entry, Id, State};
use crate::scene::{self, Rules, Set};
use crate::teach::{Alike, Teacher, until_limits};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use tidepool_jobsim::engine::{Early, Order, Policy, Setup, Task};
use tidepool_jobsim::forecast::{Forecast, Range, Slot, at};
use tidepool_jobsim::machine::{Fate, Load, Machine};
use tidepool_jobsim::plan::Allocation;
use tidepool_jobsim::predict::Request;
use tidepool_jobsim::random::Random;
use tidepool_predict::mixture::{Mixture, Outlook};
use tidepool_predict::{Job, Predictor};

/// Shares of draws in ranges of different widths: how often each holds is counted.
pub const WIDTHS: [f64; 11] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98];
/// Which of them is told to users (`SHARES` of `forecast`).
pub const TOLD: usize = 8;

/// Of a log's submissions those between these shares are moments that can be chosen to calibrate, and to be judged. The ones before teach.
const PARTS: [(f64, f64); 2] = [(0.25, 0.5), (0.5, 1.0)];

/// A queue at a moment, and what is thought and known of its jobs.
pub struct Moment {
    pub now_s: u64,
    entries: Vec<Entry>,
    outlooks: Vec<Outlook>,
    users: Vec<u64>,
    /// Numbers in the log.
    numbers: Vec<u64>,
    /// The log's submissions until now.
    past: usize,
    /// Of each entry: how long it really runs, and when it really started, with all that was submitted later.
    truth: Vec<(u64, u64)>,
}

/// What was said of a waiting job, and what came. Seconds.
#[derive(Clone, PartialEq, Debug)]
pub struct Verdict {
    pub now_s: u64,
    /// The job's number in the log.
    pub job: u64,
    pub start: Range,
    pub end: Range,
    /// With the likeliest run times, and with limits as run times.
    pub planned_s: u64,
    pub by_limits_s: u64,
    /// Without later submissions: start, end.
    pub alone_s: (u64, u64),
    /// With them.
    pub real_s: (u64, u64),
    /// It was said with which probability its nodes stay the planned ones, and whether they did.
    pub same_nodes: (f64, bool),
    /// Of [`WIDTHS`], whether what came was within the range, each as in [`Measures::held`].
    pub held: [[bool; 4]; WIDTHS.len()],
}

/// Moments of a log.
pub struct Moments {
    /// Of its second quarter, from which [`Rolling`] goes on.
    pub past: Vec<Moment>,
    /// Of its second half.
    pub judged: Vec<Moment>,
}

/// Runs a log's jobs and stops at so many moments of each part, chosen by a seed.
pub fn moments(machine: &Machine, load: &Load, policy: Policy, seed: u64, count: u32) -> Moments {
    // As in a scene.
    let setup = Setup { early: Early::Anew(Order::Queue), keeps_nodes: false, ..Setup::new(policy) };
    let tasks = &load.tasks;
    let fates = machine.run(load, &setup, Some(Allocation::Lowest), &mut Request);
    let at = |share: f64| ((tasks.len() as f64 * share) as usize).min(tasks.len() - 1);
    let mut random = Random::of(seed, 0);
    let mut chosen: Vec<u64> = Vec::with_capacity(2 * count as usize);
    for (from, until) in PARTS {
        let (first, end) = (at(from), at(until));
        let some = |_| first + random.below((end - first).max(1) as u64) as usize;
        chosen.extend((0..count).map(some).map(|index| tasks[index].job.submit_s));
    }
    chosen.sort_unstable();
    chosen.dedup();
    let mut pass = Pass { machine, tasks, fates: &fates, mixture: Mixture::default() };
    let half_s = tasks[at(PARTS[1].0)].job.submit_s;
    let (past, judged) = pass.run(&chosen).into_iter().partition(|moment| moment.now_s < half_s);
    Moments { past, judged }
}

/// What happens, in this order at one second; a moment is after all else of its second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    End,
    Submit,
    Start,
    Look,
}

struct Pass<'a> {
    machine: &'a Machine,
    tasks: &'a [Task],
    fates: &'a [Fate],
    mixture: Mixture,
}

impl Pass<'_> {
    fn run(&mut self, chosen: &[u64]) -> Vec<Moment> {
        let mut events: BinaryHeap<Reverse<(u64, Event, usize)>> = BinaryHeap::new();
        for (index, (task, fate)) in self.tasks.iter().zip(self.fates).enumerate() {
            events.push(Reverse((task.job.submit_s, Event::Submit, index)));
            events.push(Reverse((fate.start_s, Event::Start, index)));
            events.push(Reverse((fate.end_s, Event::End, index)));
        }
        events.extend(chosen.iter().map(|at| Reverse((*at, Event::Look, 0))));
        let mut moments = Vec::with_capacity(chosen.len());
        while let Some(Reverse((at, event, index))) = events.pop() {
            match event {
                Event::End => self.mixture.ended(index as u64, (at - self.fates[index].start_s) as f64),
                Event::Submit => drop(self.mixture.submitted(&known(index, &self.tasks[index]))),
                Event::Start => self.mixture.started(index as u64, at),
                Event::Look => moments.push(self.look(at)),
            }
        }
        moments
    }

    fn look(&mut self, now_s: u64) -> Moment {
        let is_there =
            |index: &usize| self.tasks[*index].job.submit_s <= now_s && self.fates[*index].end_s > now_s;
        let there: Vec<usize> = (0..self.tasks.len()).filter(is_there).collect();
        let outlook = |index: &usize| self.mixture.outlook(*index as u64, now_s);
        let outlooks = there.iter().filter_map(outlook).collect();
        let truth = |index: &usize| {
            let fate = &self.fates[*index];
            (fate.end_s - fate.start_s, fate.start_s)
        };
        let truth = there.iter().map(truth).collect();
        let entries = there.iter().map(|index| self.entry(*index, now_s)).collect();
        let users =
            there.iter().map(|index| self.tasks[*index].job.user.map_or(u64::MAX, u64::from)).collect();
        let numbers = there.iter().map(|index| self.tasks[*index].job.number).collect();
        let past = self.tasks.partition_point(|task| task.job.submit_s <= now_s);
        Moment { now_s, entries, outlooks, users, numbers, past, truth }
    }

    fn entry(&self, index: usize, now_s: u64) -> Entry {
        let (task, fate) = (&self.tasks[index], &self.fates[index]);
        let runs = fate.start_s <= now_s;
        let list = fate.nodes.iter().flat_map(|nodes| nodes.nodes()).filter(|_| runs);
        Entry {
            id: Id { job: index as u64, task: None },
            state: if runs { State::Running } else { State::Waiting },
            submit_s: Some(task.job.submit_s),
            start_s: runs.then_some(fate.start_s),
            limit_s: Some(task.job.request_s),
            nodes: task.nodes,
            processors: task.nodes * self.machine.processors_per_node,
            list: list.map(|node| format!("n{node}")).collect(),
            priority: -(task.rank as f64),
            exclusive: true,
            ..Entry::default()
        }
    }
}

/// With what is known at submission.
fn known(index: usize, task: &Task) -> Job {
    let job = &task.job;
    Job {
        id: index as u64,
        submit_s: job.submit_s,
        request_s: job.asked.then_some(job.request_s),
        processors: job.processors,
        user: job.user,
        group: job.group,
        executable: job.executable,
        queue: job.queue,
        partition: job.partition,
    }
}

impl Moment {
    /// Jobs that run and that wait.
    pub fn jobs(&self) -> usize {
        self.entries.len()
    }

    /// Tells of all that wait, and what came. Nothing where more is known of the machine's nodes than their number.
    pub fn judge(&self, machine: &Machine, load: &Load, policy: Policy, told: &Told) -> Vec<Verdict> {
        let nodes = machine.nodes as usize;
        let cluster = Cluster {
            names: (0..nodes).map(|node| format!("n{node}")).collect(),
            processors: vec![machine.processors_per_node; nodes],
            is_up: vec![true; nodes],
            features: vec![Default::default(); nodes],
            ..Cluster::default()
        };
        let rules = Rules { now_s: self.now_s, policy, tiers: BTreeMap::new(), blocks: Vec::new() };
        let set = scene::set(&self.entries, &cluster, &rules, &[]);
        let asked: Vec<usize> = (set.scene.running.len()..set.places.len()).collect();
        let teacher = Teacher::of(self.outlooks.clone());
        let replay = |runs: &[u64]| set.scene.replay(runs, &asked);
        let planned = replay(&teacher.likely_s(&set.places));
        let by_limits = replay(&until_limits(&set.scene));
        let truth: Vec<u64> = set.places.iter().map(|place| self.truth[*place].0).collect();
        let alone = replay(&truth);
        let until_s = later::until_s(&set.scene, &planned);
        // Only those that are over are known. They would be behind all that wait, and may have any nodes, as here.
        let there: BTreeSet<u64> = self.entries.iter().map(|entry| entry.id.job).collect();
        let is_over = |(index, _): &(u64, &Task)| told.later && !there.contains(index);
        let behind = |(_, task): (u64, &Task)| Task { partition: 0, rank: i64::MAX, ..*task };
        let past: Vec<Task> = (0..).zip(&load.tasks[..self.past]).filter(is_over).map(behind).collect();
        let draw = |number: u64| {
            let run_s = teacher.draw(&set.places, &self.users, told.alike, told.seed, number);
            let later = later::draw(&past, self.now_s, until_s, told.seed, number);
            set.scene.replay_among(&run_s, &asked, &later)
        };
        let draws: Vec<Vec<Option<Slot>>> = (0..told.draws.into()).map(draw).collect();
        let one =
            |at: usize| self.verdict(&set, asked[at], [&planned[at], &by_limits[at], &alone[at]], &draws, at);
        (0..asked.len()).filter_map(one).collect()
    }

    fn verdict(
        &self,
        set: &Set,
        task: usize,
        [planned, by_limits, alone]: [&Option<Slot>; 3],
        draws: &[Vec<Option<Slot>>],
        place: usize,
    ) -> Option<Verdict> {
        let (planned, by_limits, alone) = (planned.as_ref()?, by_limits.as_ref()?, alone.as_ref()?);
        let own: Vec<Option<Slot>> = draws.iter().map(|slots| slots[place].clone()).collect();
        let forecast = Forecast::of(planned, &own)?;
        let (run_s, start_s) = self.truth[set.places[task]];
        let sorted = |time: fn(&Slot) -> u64| {
            let mut times: Vec<u64> = own.iter().flatten().map(time).collect();
            times.sort_unstable();
            times
        };
        let (starts, ends) = (sorted(|slot| slot.start_s), sorted(|slot| slot.end_s));
        let within = |draws: &[u64], width: f64, real: u64| {
            (at(draws, (1.0 - width) / 2.0)..=at(draws, (1.0 + width) / 2.0)).contains(&real)
        };
        Some(Verdict {
            now_s: self.now_s,
            job: self.numbers[set.places[task]],
            start: forecast.start,
            end: forecast.end,
            planned_s: planned.start_s,
            by_limits_s: by_limits.start_s,
            alone_s: (alone.start_s, alone.end_s),
            real_s: (start_s, start_s + run_s),
            same_nodes: (forecast.same_nodes, alone.list == planned.list),
            held: WIDTHS.map(|width| {
                [
                    within(&starts, width, alone.start_s),
                    within(&ends, width, alone.end_s),
                    within(&starts, width, start_s),
                    within(&ends, width, start_s + run_s),
                ]
            }),
        })
    }
}

/// As they would have been told by what was known at each moment; `held` stays that of the draws. `all` are in the order of their moments,
/// none of which is before one that was told of already. And what factors there were for each, where enough was known.
pub fn rolled(all: &[Verdict], rolling: &mut Rolling) -> Vec<(Verdict, Option<Widening>)> {
    let moment = |some: &[Verdict]| -> Vec<(Verdict, Option<Widening>)> {
        let starts: Vec<(Range, u64)> = some.iter().map(|one| (one.start, one.real_s.0)).collect();
        let ends: Vec<(Range, u64)> = some.iter().map(|one| (one.end, one.real_s.1)).collect();
        let widening = rolling.tell(some[0].now_s, &starts, &ends);
        let told = |one: &Verdict| widening.map_or_else(|| one.clone(), |widening| one.widened(&widening));
        some.iter().map(|one| (told(one), widening)).collect()
    };
    all.chunk_by(|a, b| a.now_s == b.now_s).flat_map(moment).collect()
}

impl Verdict {
    fn widened(&self, widening: &Widening) -> Verdict {
        let told = Forecast { start: self.start, end: self.end, same_nodes: self.same_nodes.0 };
        let told = widening.apply(&told, self.now_s);
        Verdict { start: told.start, end: told.end, ..self.clone() }
    }
}

/// How it is told.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Told {
    pub alike: Alike,
    pub draws: u32,
    pub seed: u64,
    /// Later submissions are drawn, too.
    pub later: bool,
}

/// How ranges did against what came.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Coverage {
    /// Of jobs whose time was within the range, before it, and after it.
    pub within: f64,
    pub before: f64,
    pub after: f64,
    /// Standard error of `within`, with what is missed in a week taken as one thing: jobs that wait together are late together.
    pub error: f64,
}

impl Coverage {
    /// With the moment of each.
    fn of(ranges: impl Iterator<Item = (u64, Range, u64)>) -> Coverage {
        let (mut count, mut before, mut after) = (0u64, 0u64, 0u64);
        // Jobs, and those that were missed.
        let mut weeks: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
        for (now_s, range, real) in ranges {
            let (is_before, is_after) = (real < range.low_s, real > range.high_s);
            count += 1;
            before += u64::from(is_before);
            after += u64::from(is_after);
            let week = weeks.entry(now_s / later::WEEK_S).or_default();
            *week = (week.0 + 1.0, week.1 + f64::from(u8::from(is_before || is_after)));
        }
        let share = |number: u64| number as f64 / count.max(1) as f64;
        let missed = share(before + after);
        let square: f64 = weeks.values().map(|(jobs, own)| (own - missed * jobs).powi(2)).sum();
        Coverage {
            within: share(count - before - after),
            before: share(before),
            after: share(after),
            error: square.sqrt() / count.max(1) as f64,
        }
    }
}

/// Over all that were told of. Seconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Measures {
    pub jobs: u64,
    /// Without later submissions.
    pub start_alone: Coverage,
    pub end_alone: Coverage,
    /// With them.
    pub start_real: Coverage,
    pub end_real: Coverage,
    /// Median and mean of how far the real start was from the plan with likely run times, from the middle of the draws, and from
    /// the plan by limits.
    pub planned_error_s: (f64, f64),
    pub middle_error_s: (f64, f64),
    pub limits_error_s: (f64, f64),
    /// Median and mean wait from the moment on.
    pub wait_s: (f64, f64),
    /// Of the ranges of starts, and of ends: median and mean length.
    pub start_length_s: (f64, f64),
    pub end_length_s: (f64, f64),
    /// Share that was said to keep the planned nodes, and that did.
    pub same_nodes: (f64, f64),
    /// Of [`WIDTHS`], the share of jobs whose time was within: start and end without later submissions, start and end with them.
    pub held: [[f64; 4]; WIDTHS.len()],
}

/// Median and mean.
fn middle_and_mean(mut values: Vec<u64>) -> (f64, f64) {
    if values.is_empty() {
        return (0.0, 0.0);
    }
    values.sort_unstable();
    let mean = values.iter().map(|value| *value as f64).sum::<f64>() / values.len() as f64;
    (values[values.len() / 2] as f64, mean)
}

impl Measures {
    pub fn of(all: &[Verdict]) -> Measures {
        let errors = |said: fn(&Verdict) -> u64| {
            middle_and_mean(all.iter().map(|one| said(one).abs_diff(one.real_s.0)).collect())
        };
        let lengths = |told: fn(&Verdict) -> Range| {
            middle_and_mean(all.iter().map(told).map(|range| range.high_s - range.low_s).collect())
        };
        let count = all.len().max(1) as f64;
        Measures {
            jobs: all.len() as u64,
            start_alone: Coverage::of(all.iter().map(|one| (one.now_s, one.start, one.alone_s.0))),
            end_alone: Coverage::of(all.iter().map(|one| (one.now_s, one.end, one.alone_s.1))),
            start_real: Coverage::of(all.iter().map(|one| (one.now_s, one.start, one.real_s.0))),
            end_real: Coverage::of(all.iter().map(|one| (one.now_s, one.end, one.real_s.1))),
            planned_error_s: errors(|one| one.planned_s),
            middle_error_s: errors(|one| one.start.middle_s),
            limits_error_s: errors(|one| one.by_limits_s),
            wait_s: errors(|one| one.now_s),
            start_length_s: lengths(|one| one.start),
            end_length_s: lengths(|one| one.end),
            same_nodes: (
                all.iter().map(|one| one.same_nodes.0).sum::<f64>() / count,
                all.iter().filter(|one| one.same_nodes.1).count() as f64 / count,
            ),
            held: std::array::from_fn(|width| {
                std::array::from_fn(|what| {
                    all.iter().filter(|one| one.held[width][what]).count() as f64 / count
                })
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_joblog::{Job as Past, Log};

    /// 600 jobs on 16 nodes by four users, which are enough for them; `odd` runs scatter, others are what was requested.
    fn log(odd: bool) -> Log {
        let mut random = Random::of(5, 5);
        let mut now = 0;
        let job = |number: u64| {
            now += random.below(if odd { 900 } else { 1600 });
            let request_s = 600 * (1 + random.below(10));
            let run_s = if odd { 1 + random.below(request_s) } else { request_s };
            let (processors, user) = (1 + random.below(8) as u32, Some((number % 4) as u32));
            Past { number, submit_s: now, run_s, request_s, processors, user, asked: true, ..Past::default() }
        };
        let jobs = (0..600).map(job).collect();
        Log { jobs, processors: Some(16), nodes: Some(16), ..Log::default() }
    }

    fn judged(odd: bool, policy: Policy) -> Vec<Verdict> {
        let log = log(odd);
        let machine = Machine::default().complete(&log, true).unwrap();
        let load = machine.load(&log, Some(Allocation::Lowest)).unwrap();
        let Moments { past, judged: moments } = moments(&machine, &load, policy, 1, 25);
        let latest = past.iter().map(|moment| moment.now_s).max().unwrap();
        assert!(past.len() > 15 && moments.iter().all(|moment| moment.now_s > latest));
        assert!(moments.len() > 20 && moments.iter().any(|moment| moment.jobs() > 8));
        let told = Told { alike: crate::teach::ALIKE, draws: 20, seed: 1, later: true };
        let all: Vec<Verdict> =
            moments.iter().flat_map(|moment| moment.judge(&machine, &load, policy, &told)).collect();
        for one in &all {
            let within = |range: Range, real: u64| (range.low_s..=range.high_s).contains(&real);
            let held = [
                within(one.start, one.alone_s.0),
                within(one.end, one.alone_s.1),
                within(one.start, one.real_s.0),
                within(one.end, one.real_s.1),
            ];
            assert_eq!(one.held[TOLD], held, "{one:?}");
        }
        all
    }

    /// Where each job runs until its limit all is known: the plan by limits is what comes, with later submissions too, since nobody is
    /// put off for them.
    #[test]
    fn what_is_certain_is_told_exactly() {
        for policy in [Policy::Fcfs, Policy::Conservative] {
            let all = judged(false, policy);
            assert!(all.len() > 50, "{}", all.len());
            for one in &all {
                assert_eq!((one.by_limits_s, one.alone_s), (one.real_s.0, one.real_s), "{policy:?}");
            }
        }
    }

    /// Where run times scatter, ranges hold about as often as they say, and the middle is nearer than the plan by limits.
    #[test]
    fn ranges_hold_about_as_often_as_they_say() {
        let measures = Measures::of(&judged(true, Policy::Conservative));
        assert!(measures.jobs > 50, "{measures:?}");
        assert!(measures.start_alone.within > 0.65 && measures.end_alone.within > 0.65, "{measures:?}");
        assert!(measures.middle_error_s.1 < measures.limits_error_s.1, "{measures:?}");
        assert!(measures.start_length_s.0 > 0.0 && measures.same_nodes.0 < 1.0, "{measures:?}");
    }
}
