//! Staging ahead of the jobs of a run: how many are late, and for how long data lie there before their job (INVENTORY H11).
//!
//! Each job of a log reads data, whose size and rate of transfer are made up from a seed. When its staging begins is decided
//! in virtual time by a [`Rule`], from what a daemon knows then: planned starts until now, sizes, and the stagings that have
//! come to an end. Nothing of what is staged changes the schedule: late data would hold their job up, and here do not.

use crate::random::Random;
use crate::scheduler::{Outcome, Planned, Run};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use tidepool_stage_state::Model;
use tidepool_trigger::{Experience, Look, MARGIN_MS, Trigger};

/// What is staged, and how.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Data {
    pub seed: u64,
    /// Of the sizes, which are log-normal: the median, and the deviation of their logarithm.
    pub bytes: f64,
    pub bytes_scatter: f64,
    /// Of the rates at which they are transferred, bytes per second: the same.
    pub rate: f64,
    pub rate_scatter: f64,
}

/// What a job reads, and how long that takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    pub bytes: u64,
    pub took_ms: u64,
}

/// 100 GB, of which one job in forty has twenty times as much; 500 MB/s, as from a shared file system in use.
impl Default for Data {
    fn default() -> Data {
        Data { seed: 1, bytes: 100e9, bytes_scatter: 1.5, rate: 500e6, rate_scatter: 0.5 }
    }
}

impl Data {
    /// Of so many jobs.
    pub fn loads(&self, count: usize) -> Vec<Load> {
        let load = |number| {
            let mut random = Random::of(self.seed, number);
            let bytes = random.lognormal(self.bytes, self.bytes_scatter).max(1.0);
            let rate = random.lognormal(self.rate, self.rate_scatter).max(1.0);
            Load { bytes: bytes as u64, took_ms: (bytes / rate * 1000.0) as u64 }
        };
        (0..count as u64).map(load).collect()
    }
}

/// When staging begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// By the trigger that the daemons use.
    Learned,
    /// As much before the planned start as it should take, and the margin.
    Mean,
    /// At submission.
    AtOnce,
}

/// A job's staging. Milliseconds of the log's time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Staging {
    /// Of the log.
    pub number: u64,
    pub processors: u32,
    pub bytes: u64,
    pub submit_ms: u64,
    pub start_ms: u64,
    /// None before anything has been learned.
    pub estimate_ms: Option<u64>,
    pub took_ms: u64,
    pub began_ms: u64,
}

impl Rule {
    pub const ALL: [Rule; 3] = [Rule::Learned, Rule::Mean, Rule::AtOnce];

    pub fn name(self) -> &'static str {
        match self {
            Rule::Learned => "trigger",
            Rule::Mean => "mean",
            Rule::AtOnce => "at-once",
        }
    }
}

impl Staging {
    pub fn end_ms(&self) -> u64 {
        self.began_ms.saturating_add(self.took_ms)
    }

    /// It would have been in time if it had begun at submission.
    pub fn is_possible(&self) -> bool {
        self.start_ms - self.submit_ms >= self.took_ms
    }

    pub fn is_late(&self) -> bool {
        self.end_ms() > self.start_ms
    }
}

/// What a rule comes to.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Tally {
    pub jobs: u64,
    /// Jobs that waited for at least as long as their staging took.
    pub possible: u64,
    /// Of those.
    pub late: u64,
    /// Of all jobs.
    pub late_of_all: u64,
    /// Share of late ones among those possible, in each tenth of the log.
    pub tenths: [f64; 10],
    /// How long jobs that were late waited for their data, of those possible: the median.
    pub delay_median_s: f64,
    /// How long data that were in time lay there before the start: the median, and with the processors that waited.
    pub lay_median_s: f64,
    pub lay_processor_hours: f64,
    /// Processor-hours of all jobs that ran, to compare with.
    pub used_processor_hours: f64,
}

impl Tally {
    /// Of late ones among those possible.
    pub fn late_share(&self) -> f64 {
        share(self.late, self.possible)
    }

    pub fn late_share_of_all(&self) -> f64 {
        share(self.late_of_all, self.jobs)
    }

    /// The largest share of late ones of any tenth.
    pub fn worst_tenth(&self) -> f64 {
        self.tenths.into_iter().fold(0.0, f64::max)
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Of stagings in the order of submission, and their jobs.
pub fn tally(run: &Run, stagings: &[Staging]) -> Tally {
    let mut tally = Tally { jobs: stagings.len() as u64, ..Tally::default() };
    let (mut delays, mut lays) = (Vec::new(), Vec::new());
    let mut tenths = [(0u64, 0u64); 10];
    for (number, (staging, outcome)) in stagings.iter().zip(&run.outcomes).enumerate() {
        let (possible, late) = (u64::from(staging.is_possible()), u64::from(staging.is_late()));
        tally.possible += possible;
        tally.late += possible & late;
        tally.late_of_all += late;
        let tenth = &mut tenths[number * 10 / stagings.len()];
        *tenth = (tenth.0 + (possible & late), tenth.1 + possible);
        let lay = staging.start_ms.saturating_sub(staging.end_ms()) as f64 / 1000.0;
        if late == 0 {
            lays.push(lay);
        } else if possible == 1 {
            delays.push((staging.end_ms() - staging.start_ms) as f64 / 1000.0);
        }
        let hours = f64::from(staging.processors) / 3600.0;
        tally.lay_processor_hours += lay * hours;
        tally.used_processor_hours += outcome.job.run_s as f64 * hours;
    }
    tally.tenths = tenths.map(|(late, possible)| share(late, possible));
    tally.delay_median_s = median(&mut delays);
    tally.lay_median_s = median(&mut lays);
    tally
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// The stagings of a run's jobs, in their order, each with its load. Plans are looked at every `look_s`.
pub fn stage_ahead(run: &Run, loads: &[Load], look_s: u64, rule: Rule) -> Vec<Staging> {
    assert_eq!(run.outcomes.len(), loads.len(), "each job has a load");
    let mut study = Study {
        loads,
        look_s,
        rule,
        outcomes: &run.outcomes,
        model: Model::default(),
        trigger: Trigger::default(),
        open: (0..run.outcomes.len()).map(|_| None).collect(),
        events: BinaryHeap::new(),
    };
    for (index, outcome) in run.outcomes.iter().enumerate() {
        study.events.push(Reverse((outcome.job.submit_s * 1000, Kind::Look, index)));
        study.events.push(Reverse((outcome.start_s * 1000, Kind::Start, index)));
    }
    while let Some(Reverse((now, kind, index))) = study.events.pop() {
        match kind {
            Kind::Arrive => study.arrive(index),
            Kind::Learn => study.learn(index),
            Kind::Look => study.look(index, now),
            Kind::Start => study.start(index, now),
        }
    }
    let ended = |open: Option<Open>| open.expect("each job has been looked at when it was submitted").staging;
    study.open.into_iter().map(ended).collect()
}

/// What happens to a job at a time, in this order where times are the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    /// Its data are there.
    Arrive,
    /// They are, and it has started.
    Learn,
    Look,
    Start,
}

struct Open {
    staging: Staging,
    has_begun: bool,
    looks: Vec<Look>,
}

struct Study<'a> {
    loads: &'a [Load],
    look_s: u64,
    rule: Rule,
    outcomes: &'a [Outcome],
    model: Model,
    trigger: Trigger,
    open: Vec<Option<Open>>,
    events: BinaryHeap<Reverse<(u64, Kind, usize)>>,
}

impl Study<'_> {
    fn look(&mut self, index: usize, now: u64) {
        let outcome = &self.outcomes[index];
        let planned = plan_at(outcome, now);
        let staging = self.staging(index);
        let open =
            self.open[index].get_or_insert_with(|| Open { staging, has_begun: false, looks: Vec::new() });
        if open.has_begun {
            return;
        }
        let planned_ms = planned.start_s * 1000;
        open.looks.push(Look { at_ms: now, planned_ms });
        let estimate = open.staging.estimate_ms;
        let early = match self.rule {
            Rule::Learned => self.trigger.early_ms(now, planned_ms, estimate),
            Rule::Mean => {
                planned_ms.checked_sub(now + estimate.unwrap_or(0) + MARGIN_MS).filter(|early| *early > 0)
            }
            Rule::AtOnce => None,
        };
        let Some(early) = early else { return self.begin(index, now) };
        let seen = self.next_look(outcome, planned);
        let next = seen.map_or(now + early, |seen| seen.min(now + early));
        self.events.push(Reverse((next, Kind::Look, index)));
    }

    /// What is known at submission; `began_ms` is not yet.
    fn staging(&self, index: usize) -> Staging {
        if let Some(open) = &self.open[index] {
            return open.staging;
        }
        let outcome = &self.outcomes[index];
        let load = self.loads[index];
        let estimate = self.model.estimate(load.bytes, 0);
        Staging {
            number: outcome.job.number,
            processors: outcome.job.processors,
            bytes: load.bytes,
            submit_ms: outcome.job.submit_s * 1000,
            start_ms: outcome.start_s * 1000,
            estimate_ms: estimate.map(|seconds| (seconds * 1000.0) as u64),
            took_ms: load.took_ms,
            began_ms: u64::MAX,
        }
    }

    /// When the next change of the plan is seen.
    fn next_look(&self, outcome: &Outcome, planned: Planned) -> Option<u64> {
        let next = outcome.plans.partition_point(|plan| plan.at_s <= planned.at_s);
        outcome.plans.get(next).map(|plan| seen_at(outcome, plan, self.look_s))
    }

    fn begin(&mut self, index: usize, now: u64) {
        let open = self.open[index].as_mut().expect("a job that is looked at is open");
        open.has_begun = true;
        open.staging.began_ms = now;
        let end = open.staging.end_ms();
        self.events.push(Reverse((end, Kind::Arrive, index)));
        self.events.push(Reverse((end.max(open.staging.start_ms), Kind::Learn, index)));
    }

    fn arrive(&mut self, index: usize) {
        let Some(Open { staging, .. }) = &self.open[index] else { return };
        self.model.add(staging.bytes, 0, staging.took_ms as f64 / 1000.0);
    }

    fn learn(&mut self, index: usize) {
        let Some(open) = &mut self.open[index] else { return };
        let (outcome, staging) = (&self.outcomes[index], open.staging);
        let mut looks = std::mem::take(&mut open.looks);
        // Nobody looks any more when the data are there.
        for plan in &outcome.plans {
            let at_ms = seen_at(outcome, plan, self.look_s);
            if at_ms > staging.began_ms && at_ms <= staging.end_ms() {
                looks.push(Look { at_ms, planned_ms: plan_at(outcome, at_ms).start_s * 1000 });
            }
        }
        let times = (staging.began_ms, staging.took_ms, staging.start_ms);
        self.trigger.learn(Experience::new(staging.estimate_ms, times, looks));
    }

    /// Whatever was planned: its data are needed now.
    fn start(&mut self, index: usize, now: u64) {
        if self.open[index].as_ref().is_some_and(|open| !open.has_begun) {
            self.begin(index, now);
        }
    }
}

/// The plan that stands at a time.
fn plan_at(outcome: &Outcome, now_ms: u64) -> Planned {
    let known = outcome.plans.partition_point(|plan| plan.at_s * 1000 <= now_ms);
    outcome.plans[known.saturating_sub(1)]
}

/// The first look at which a plan can be seen.
fn seen_at(outcome: &Outcome, plan: &Planned, look_s: u64) -> u64 {
    let since = plan.at_s - outcome.job.submit_s;
    (outcome.job.submit_s + since.next_multiple_of(look_s.max(1))) * 1000
}
