//! The default predictor: distributions of many templates, mixed as they have proved themselves.
//!
//! ```text
//! submitted ─▶ marks: 17 templates of alike jobs ─▶ sample: each one's runs as distributions, running jobs as "longer than"
//!                                                 ─▶ gate: one distribution, by what each expert has been worth
//!                                                 ─▶ run time: the least expected loss; quantiles: read at adapted levels
//! ended     ─▶ the gate learns which experts were right about this job; its templates get its run; the levels move
//! ```
//! The run time is the point with the least expected `error^(3/4)`. With the error itself it would be the median, which has the
//! least mean absolute error, and is between the modes where a user's jobs are of several kinds. A concave loss
//! prefers a value that is right for many of the jobs; most users' typical errors are a third to a half smaller with it, the
//! mean over all jobs is 1 to 3 % larger (docs/decisions/0038-predictions.md).

mod gate;
mod marks;
mod outlook;
mod sample;

pub use outlook::Outlook;

use crate::bounded::Bounded;
use crate::conformal::{Levels, Reading, bounded, user};
use crate::{Job, LEVELS, PENDING_MAX, Prediction, Predictor, UNKNOWN_S, USERS_MAX};
use gate::{EXPERTS, Expert, Gate, Part, REQUEST, experts, state};
use marks::{Keys, Template, User, keys};
use sample::{Mixed, POINTS, Sample, least, weigh};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Templates that are remembered, at least.
pub const TEMPLATES_MAX: usize = 1 << 17;
/// Jobs whose distributions are kept until they end, at least; of older ones only the runs teach.
pub const OPINIONS_MAX: usize = 1 << 13;
/// Runs of a template.
const RUNS: usize = 20;
/// Runs of a template of many users' jobs.
const RUNS_BROAD: usize = 64;
/// Running jobs of a user that are remembered, and that count in a template.
const RUNNING: usize = 32;
const RUNNING_ALIKE: usize = 8;
/// Parts that weigh less are left out of the mixture.
const WEIGHT_MIN: f32 = 1e-4;
/// Overruns: how much longer than their requests those jobs ran that used them up.
const OVERRUNS: usize = 20;
/// Share of a request from which on it counts as used up.
const USED_UP: f64 = 0.98;
/// Levels beyond this are beyond the last sample, up to half as much again.
const LEVEL_WITHIN: f64 = 0.99;

/// A density is measured over the logarithm of seconds, to which this many are added.
const PAD_S: f32 = 10.0;
/// Around each sample there are two Cauchy distributions: near, and far enough that nothing is impossible.
const NEAR: (f32, f32) = (0.8, 0.05);
const FAR: (f32, f32) = (0.2, 0.5);
const FLOOR: f32 = 1e-4;

#[derive(Clone, Copy, Debug)]
struct Run {
    run_s: f32,
    /// Of its request; none without one.
    share: Option<f32>,
}

/// A job that has not ended.
#[derive(Clone, Debug)]
struct Pending {
    job: Job,
    keys: Keys,
    start_s: Option<u64>,
    prediction: Prediction,
    points: [f32; POINTS],
    reading: Reading,
    /// Whether the levels know already that it was not over in time.
    missed: [bool; 2],
}

#[derive(Clone, Debug)]
struct Opinion {
    parts: Vec<Part>,
    samples: Vec<Sample>,
}

/// When a running job will not be over within its quantile: the time, which quantile, and the job's id.
type Deadline = Reverse<(u64, usize, u64)>;

#[derive(Clone, Debug)]
pub struct Mixture {
    experts: Vec<Expert>,
    gate: Gate,
    levels: Levels,
    /// Newest first.
    templates: Bounded<u64, VecDeque<Run>>,
    users: Bounded<u64, User>,
    pending: Bounded<u64, Pending>,
    opinions: Bounded<u64, Opinion>,
    deadlines: BinaryHeap<Deadline>,
    overruns: VecDeque<f32>,
}

impl Default for Mixture {
    fn default() -> Mixture {
        Mixture {
            experts: experts(),
            gate: Gate::default(),
            levels: Levels::default(),
            templates: Bounded::new(TEMPLATES_MAX),
            users: Bounded::new(USERS_MAX),
            pending: Bounded::new(PENDING_MAX),
            opinions: Bounded::new(OPINIONS_MAX),
            deadlines: BinaryHeap::new(),
            overruns: VecDeque::new(),
        }
    }
}

impl Mixture {
    /// Running jobs whose quantiles have passed are known not to be over in time, long before they end.
    fn miss(&mut self, now_s: u64) {
        while let Some(Reverse((at_s, level, id))) = self.deadlines.peek().copied() {
            if at_s >= now_s {
                break;
            }
            self.deadlines.pop();
            // One that waits again under an old id has no start.
            let Some(job) = self.pending.get_mut(id).filter(|job| job.start_s.is_some()) else { continue };
            if !std::mem::replace(&mut job.missed[level], true) {
                self.levels.learn(&job.reading, level, true);
            }
        }
    }

    fn keys(&mut self, job: &Job) -> Keys {
        let who = self.users.entry(user(job), User::default);
        let gap_s = who.submits(job.submit_s);
        let templates = &self.templates;
        let last =
            |key| templates.peek(key).and_then(|runs| runs.front()).map_or(0.0, |run| run.run_s.into());
        keys(job, who, gap_s, last)
    }

    /// How long the user's running jobs have run, with the keys of their templates, newest first.
    fn running(&self, job: &Job) -> Vec<(f32, Keys)> {
        let Some(who) = self.users.peek(user(job)) else { return Vec::new() };
        let age = |(id, start_s): &(u64, u64)| {
            let age_s = job.submit_s.saturating_sub(*start_s);
            Some((age_s as f32, self.pending.peek(*id)?.keys)).filter(|_| age_s > 0 && *id != job.id)
        };
        who.running.iter().rev().filter_map(age).collect()
    }

    fn opinion(&mut self, job: &Job, keys: &Keys) -> Opinion {
        let running = self.running(job);
        let request = job.request_s.map_or(f32::MAX, |request| request as f32);
        let mut opinion = Opinion { parts: Vec::with_capacity(EXPERTS), samples: Vec::new() };
        let mut ages = Vec::with_capacity(RUNNING_ALIKE);
        for (number, expert) in self.experts.iter().enumerate() {
            let key = keys[expert.template];
            let Some(runs) = self.templates.get_mut(key).filter(|runs| !runs.is_empty()) else { continue };
            ages.clear();
            if !expert.ratio {
                let alike = running.iter().filter(|(_, keys)| keys[expert.template] == key);
                ages.extend(alike.map(|(age, _)| *age).take(RUNNING_ALIKE));
            }
            let begins = opinion.samples.len();
            let value = |run: &Run| match run.share.filter(|_| expert.ratio && job.request_s.is_some()) {
                Some(share) => share * request,
                None => run.run_s,
            };
            weigh(&mut opinion.samples, runs.iter().map(value), &ages, expert.fade, request);
            let apart = runs.get(1).map(|second| (padded(runs[0].run_s) - padded(second.run_s)).abs());
            let state = state(runs.len(), apart);
            opinion.parts.push(Part::new(number, state, begins, opinion.samples.len()));
        }
        self.ask_request(job, &mut opinion);
        let who = self.users.entry(user(job), User::default);
        self.gate.weigh(&mut opinion.parts, &who.scores);
        opinion
    }

    /// The request, by as much longer as jobs lately ran that used theirs up.
    fn ask_request(&self, job: &Job, opinion: &mut Opinion) {
        let begins = opinion.samples.len();
        let request = job.request_s.map(|request| request as f32);
        let one = |seconds, weight| Sample { seconds, weight };
        match request {
            Some(request) if !self.overruns.is_empty() => {
                let weight = 1.0 / self.overruns.len() as f32;
                opinion.samples.extend(self.overruns.iter().map(|times| one(times * request, weight)));
            }
            _ => opinion.samples.push(one(request.unwrap_or(UNKNOWN_S as f32), 1.0)),
        }
        opinion.parts.push(Part::new(REQUEST, 0, begins, opinion.samples.len()));
    }

    fn prediction(&self, job: &Job, opinion: &Opinion, reading: &Reading) -> (Prediction, [f32; POINTS]) {
        let mut all = Vec::with_capacity(opinion.samples.len());
        for part in opinion.parts.iter().filter(|part| part.weight >= WEIGHT_MIN) {
            let samples = &opinion.samples[part.begins as usize..part.ends as usize];
            all.extend(samples.iter().map(|one| Sample { weight: one.weight * part.weight, ..*one }));
        }
        let mixed = Mixed::new(&mut all);
        let most = job.request_s.map_or(f32::MAX, |request| request as f32);
        let points = mixed.points(most);
        let run_s = least(&points, loss);
        let levels = reading.shares;
        let read = mixed.at(levels.map(|level| level as f32));
        let within = |level: usize| {
            let beyond = (levels[level] - LEVEL_WITHIN).max(0.0) / (1.0 - LEVEL_WITHIN);
            let longest = f64::from(mixed.longest()) * (1.0 + beyond * beyond / 2.0);
            if beyond > 0.0 { longest } else { f64::from(read[level]) }
        };
        (Prediction { run_s: f64::from(run_s), within_s: bounded(job, [within(0), within(1)]) }, points)
    }

    /// The job is not pending any more.
    fn gone(&mut self, id: u64) -> Option<Pending> {
        let job = self.pending.remove(id)?;
        let who = self.users.entry(user(&job.job), User::default);
        who.running.retain(|(other, _)| *other != id);
        who.pending = who.pending.saturating_sub(1);
        Some(job)
    }

    fn teach_gate(&mut self, job: &Pending, run_s: f64) {
        let Some(opinion) = self.opinions.remove(job.job.id) else { return };
        let real = padded(run_s as f32);
        let density = |part: &Part| {
            let samples = &opinion.samples[part.begins as usize..part.ends as usize];
            let near = |one: &Sample| one.weight * around(padded(one.seconds) - real);
            FLOOR + samples.iter().map(near).sum::<f32>()
        };
        let densities: Vec<f32> = opinion.parts.iter().map(density).collect();
        let who = self.users.entry(user(&job.job), User::default);
        self.gate.learn(&opinion.parts, &densities, &mut who.scores);
    }

    fn teach_templates(&mut self, job: &Pending, run_s: f64) {
        let request = job.job.request_s.filter(|request| *request > 0).map(|request| request as f64);
        let share = request.map(|request| run_s / request);
        let run = Run { run_s: run_s as f32, share: share.map(|share| share as f32) };
        for (template, key) in Template::ALL.iter().zip(job.keys) {
            let runs = self.templates.entry(key, VecDeque::new);
            runs.push_front(run);
            runs.truncate(if template.is_broad() { RUNS_BROAD } else { RUNS });
        }
        if let Some(share) = share.filter(|share| *share >= USED_UP) {
            self.overruns.push_front(share as f32);
            self.overruns.truncate(OVERRUNS);
        }
    }
}

/// `error^(3/4)`: see the module.
fn loss(error: f32) -> f32 {
    let root = error.sqrt();
    root * root.sqrt()
}

fn padded(seconds: f32) -> f32 {
    (seconds + PAD_S).ln()
}

/// The density so far from a sample, but for a factor of pi.
fn around(apart: f32) -> f32 {
    let cauchy = |(weight, width): (f32, f32)| weight * width / (width * width + apart * apart);
    cauchy(NEAR) + cauchy(FAR)
}

impl Predictor for Mixture {
    fn submitted(&mut self, job: &Job) -> Prediction {
        self.miss(job.submit_s);
        let keys = self.keys(job);
        let opinion = self.opinion(job, &keys);
        let reading = self.levels.reading(user(job));
        let (prediction, points) = self.prediction(job, &opinion, &reading);
        let missed = [false; 2];
        let pending = Pending { job: *job, keys, start_s: None, prediction, points, reading, missed };
        self.pending.insert(job.id, pending);
        self.opinions.insert(job.id, opinion);
        self.users.entry(user(job), User::default).pending += 1;
        prediction
    }

    fn started(&mut self, id: u64, at_s: u64) {
        let Some(job) = self.pending.get_mut(id) else { return };
        job.start_s = Some(at_s);
        if self.deadlines.len() < LEVELS.len() * PENDING_MAX {
            let at = |level: usize| at_s.saturating_add(job.prediction.within_s[level] as u64);
            self.deadlines.extend([Reverse((at(0), 0, id)), Reverse((at(1), 1, id))]);
        }
        let who = self.users.entry(user(&job.job), User::default);
        if who.running.len() == RUNNING {
            who.running.remove(0);
        }
        who.running.push((id, at_s));
    }

    fn ended(&mut self, id: u64, run_s: f64) {
        let Some(job) = self.gone(id) else { return };
        self.users.entry(user(&job.job), User::default).run_s = run_s;
        for level in (0..LEVELS.len()).filter(|level| !job.missed[*level]) {
            self.levels.learn(&job.reading, level, run_s > job.prediction.within_s[level]);
        }
        self.teach_gate(&job, run_s);
        self.teach_templates(&job, run_s);
    }

    fn cancelled(&mut self, id: u64) {
        self.gone(id);
        self.opinions.remove(id);
    }

    fn chances(&self, id: u64) -> Option<&[f32]> {
        self.pending.peek(id).map(|job| &job.points[..])
    }
}
