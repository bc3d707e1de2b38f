//! Searching for the best configuration (S1 §I, §IV-D): which of some values for each of some knobs does best.
//!
//! Small spaces are tried whole. In larger ones the knobs are turned one after the other, each through all its values with
//! the others where they did best so far, until a round has brought nothing or enough was tried (coordinate search):
//! plain, and it tells what it tried; it may end beside the best when knobs depend on each other much.

use crate::experiment::Experiment;
use std::collections::BTreeMap;
use std::fmt;
use tidepool_types::parse_size;

/// Most values of a knob.
pub const VALUES_MAX: usize = 10_000;

/// What can be varied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Knob {
    StripeSize,
    Eager,
    ServerThreads,
    /// Of a class of servers.
    Weight(usize),
    Count(usize),
}

/// A knob and the values that it is tried with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vary {
    pub name: String,
    knob: Knob,
    pub values: Vec<u64>,
}

/// Why a knob cannot be turned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VaryError(String);

impl fmt::Display for VaryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for VaryError {}

impl Vary {
    /// `stripe-size=64KiB,256KiB`, `eager=..`, `server-threads=1..4`, `weight.CLASS=1..8`, `count.CLASS=..`.
    pub fn parse(text: &str, experiment: &Experiment) -> Result<Vary, VaryError> {
        let fail = |why: String| Err(VaryError(format!("'{text}': {why}")));
        let Some((name, values)) = text.split_once('=') else {
            return fail("write KNOB=VALUE,VALUE or KNOB=FROM..TO".into());
        };
        let knob = match name.split_once('.') {
            None if name == "stripe-size" => Knob::StripeSize,
            None if name == "eager" => Knob::Eager,
            None if name == "server-threads" => Knob::ServerThreads,
            Some((what @ ("weight" | "count"), class)) => match experiment.class(class) {
                Some(at) if what == "weight" => Knob::Weight(at),
                Some(at) => Knob::Count(at),
                None => return fail(format!("there is no class of servers '{class}'")),
            },
            _ => {
                return fail(
                    "there are stripe-size, eager, server-threads, weight.CLASS and count.CLASS".into(),
                );
            }
        };
        let mut all = Vec::new();
        for part in values.split(',') {
            let sizes = match part.split_once("..") {
                None => parse_size(part).map(|value| value..=value),
                Some((from, to)) => parse_size(from).and_then(|from| Ok(from..=parse_size(to)?)),
            };
            match sizes {
                Ok(range) if (range.end() - range.start().min(range.end())) < VALUES_MAX as u64 => {
                    all.extend(range)
                }
                Ok(_) => return fail(format!("at most {VALUES_MAX} values")),
                Err(why) => return fail(why.to_string()),
            }
        }
        all.sort_unstable();
        all.dedup();
        match all.len() {
            0 => fail("no value".into()),
            1..=VALUES_MAX => Ok(Vary { name: name.into(), knob, values: all }),
            _ => fail(format!("at most {VALUES_MAX} values")),
        }
    }

    fn of(&self, experiment: &Experiment) -> u64 {
        match self.knob {
            Knob::StripeSize => experiment.stripe,
            Knob::Eager => experiment.network.eager.into(),
            Knob::ServerThreads => experiment.server.threads.into(),
            Knob::Weight(at) => experiment.servers[at].weight.into(),
            Knob::Count(at) => experiment.servers[at].class.count.into(),
        }
    }

    fn set(&self, experiment: &mut Experiment, value: u64) {
        let small = u32::try_from(value).unwrap_or(u32::MAX);
        match self.knob {
            Knob::StripeSize => experiment.stripe = value,
            Knob::Eager => experiment.network.eager = small,
            Knob::ServerThreads => experiment.server.threads = small,
            Knob::Weight(at) => experiment.servers[at].weight = small,
            Knob::Count(at) => experiment.servers[at].class.count = small,
        }
    }
}

/// An experiment with its knobs where a trial has them.
pub fn turned(experiment: &Experiment, space: &[Vary], values: &[u64]) -> Experiment {
    let mut turned = experiment.clone();
    space.iter().zip(values).for_each(|(vary, value)| vary.set(&mut turned, *value));
    turned
}

/// What a configuration came to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Score {
    /// Bytes/s.
    pub throughput: f64,
    /// Mean response time, in ticks.
    pub response: f64,
    pub price: f64,
}

/// A configuration that was tried; none when it is no system.
#[derive(Clone, PartialEq, Debug)]
pub struct Trial {
    pub values: Vec<u64>,
    pub score: Option<Score>,
}

/// What is best.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Goal {
    Throughput,
    Response,
    /// Bytes/s for what the servers cost.
    ThroughputPerPrice,
}

impl Goal {
    /// More is better.
    pub fn worth(self, score: &Score) -> f64 {
        match self {
            Goal::Throughput => score.throughput,
            Goal::Response => -score.response,
            Goal::ThroughputPerPrice => score.throughput / score.price.max(f64::MIN_POSITIVE),
        }
    }
}

/// Tries configurations, at most `trials_max`; all that were tried, in their order.
pub fn search(
    experiment: &Experiment,
    space: &[Vary],
    goal: Goal,
    trials_max: usize,
    mut evaluate: impl FnMut(&Experiment) -> Option<Score>,
) -> Vec<Trial> {
    let mut tried: BTreeMap<Vec<u64>, Option<f64>> = BTreeMap::new();
    let mut trials = Vec::new();
    // None when enough was tried.
    let mut attempt = |values: Vec<u64>| -> Option<Option<f64>> {
        if let Some(known) = tried.get(&values) {
            return Some(*known);
        }
        if trials.len() == trials_max {
            return None;
        }
        let score = evaluate(&turned(experiment, space, &values));
        let worth = score.map(|score| goal.worth(&score));
        tried.insert(values.clone(), worth);
        trials.push(Trial { values, score });
        Some(worth)
    };
    let size = size(space);
    if size <= trials_max {
        for number in 0..size {
            attempt(point(space, number));
        }
        return trials;
    }
    // From where the file has its knobs, or next to it.
    let nearest = |vary: &Vary| {
        let now = vary.of(experiment);
        vary.values.iter().copied().min_by_key(|value| value.abs_diff(now)).unwrap_or(now)
    };
    let mut best: Vec<u64> = space.iter().map(nearest).collect();
    let mut worth = attempt(best.clone()).flatten();
    loop {
        let before = best.clone();
        for (at, vary) in space.iter().enumerate() {
            for value in &vary.values {
                let mut values = best.clone();
                values[at] = *value;
                match attempt(values.clone()) {
                    None => return trials,
                    Some(seen) if seen.is_some() && seen > worth => (best, worth) = (values, seen),
                    Some(_) => {}
                }
            }
        }
        if best == before {
            return trials;
        }
    }
}

/// How many points a space has; [`usize::MAX`] for more.
pub fn size(space: &[Vary]) -> usize {
    space.iter().fold(1usize, |all, vary| all.saturating_mul(vary.values.len()))
}

/// Point `number` of a space: the last knob turns fastest.
pub fn point(space: &[Vary], mut number: usize) -> Vec<u64> {
    let mut values: Vec<u64> = Vec::with_capacity(space.len());
    for vary in space.iter().rev() {
        values.push(vary.values[number % vary.values.len()]);
        number /= vary.values.len();
    }
    values.reverse();
    values
}

/// The best of them, the first one among equals.
pub fn best(trials: &[Trial], goal: Goal) -> Option<&Trial> {
    let worth = |trial: &Trial| trial.score.map(|score| goal.worth(&score));
    let scored = trials.iter().rev().filter(|trial| trial.score.is_some());
    scored.max_by(|a, b| worth(a).partial_cmp(&worth(b)).unwrap_or(std::cmp::Ordering::Equal))
}

/// Those than which no other one has more throughput for at most the price; the cheapest first.
pub fn frontier(trials: &[Trial]) -> Vec<&Trial> {
    let mut all: Vec<(&Trial, Score)> = trials.iter().filter_map(|t| Some((t, t.score?))).collect();
    all.sort_by(|(_, a), (_, b)| a.price.total_cmp(&b.price).then(b.throughput.total_cmp(&a.throughput)));
    let mut most = f64::NEG_INFINITY;
    all.retain(|(_, score)| {
        let better = score.throughput > most;
        most = most.max(score.throughput);
        better
    });
    all.into_iter().map(|(trial, _)| trial).collect()
}
