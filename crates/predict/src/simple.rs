//! Predictors of a line each: they answer well where users repeat themselves.

use crate::bounded::Bounded;
use crate::{Job, Point, USERS_MAX};
use std::collections::VecDeque;

/// Runs of a user that are remembered.
pub const RUNS_MAX: usize = 64;

/// A value in the middle; of an even number the mean of the two there. None of none.
pub fn median(values: &mut [f64]) -> Option<f64> {
    let middle = values.len().checked_sub(1)? / 2;
    values.sort_unstable_by(f64::total_cmp);
    Some(if values.len() % 2 == 1 { values[middle] } else { (values[middle] + values[middle + 1]) / 2.0 })
}

/// The user's time limit (INVENTORY B5's baseline).
#[derive(Clone, Debug, Default)]
pub struct Request;

impl Point for Request {
    fn predict(&mut self, job: &Job) -> f64 {
        job.unknown_s()
    }

    fn learn(&mut self, _: &Job, _: f64, _: f64) {}
}

/// What is made of the last runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Statistic {
    Mean,
    Median,
    Max,
}

impl Statistic {
    fn of(self, mut runs: Vec<f64>) -> Option<f64> {
        let count = runs.len() as f64;
        match self {
            _ if runs.is_empty() => None,
            Statistic::Mean => Some(runs.iter().sum::<f64>() / count),
            Statistic::Median => median(&mut runs),
            Statistic::Max => runs.into_iter().reduce(f64::max),
        }
    }
}

/// Which jobs count as alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alike {
    User,
    /// And as many processors, and the same time limit.
    UserProcessorsRequest,
}

impl Alike {
    fn key(self, job: &Job) -> [u64; 3] {
        let user = job.user.map_or(u64::MAX, u64::from);
        match self {
            Alike::User => [user, 0, 0],
            Alike::UserProcessorsRequest => {
                [user, u64::from(job.processors), job.request_s.unwrap_or(u64::MAX)]
            }
        }
    }
}

/// A statistic of the last runs of alike jobs.
#[derive(Clone, Debug)]
pub struct Last {
    count: usize,
    statistic: Statistic,
    alike: Alike,
    /// Of each the run time and what it is of the request, newest first.
    runs: Bounded<[u64; 3], VecDeque<(f64, f64)>>,
    /// Predict by the share of the request that was used.
    ratio: bool,
}

impl Last {
    /// Of up to `count` last runs.
    pub fn new(count: usize, statistic: Statistic, alike: Alike) -> Last {
        let count = count.clamp(1, RUNS_MAX);
        Last { count, statistic, alike, runs: Bounded::new(USERS_MAX), ratio: false }
    }

    /// The last run of the user.
    pub fn run() -> Last {
        Last::new(1, Statistic::Mean, Alike::User)
    }

    /// The mean of the last two runs of the user (Tsafrir, Etsion and Feitelson 2007).
    pub fn two() -> Last {
        Last::new(2, Statistic::Mean, Alike::User)
    }

    /// The largest share of the request that the last five jobs used, as Alea does (S0 Figure 6; INVENTORY B8, M4).
    pub fn alea() -> Last {
        Last { ratio: true, ..Last::new(5, Statistic::Max, Alike::User) }
    }

    /// The mean share of the request that the last five jobs used.
    pub fn mean_ratio() -> Last {
        Last { ratio: true, ..Last::new(5, Statistic::Mean, Alike::User) }
    }

    /// None without enough of a past.
    pub fn of(&mut self, job: &Job) -> Option<f64> {
        let request = if self.ratio { job.request_s? as f64 } else { 1.0 };
        let runs = self.runs.get_mut(self.alike.key(job))?;
        let values = runs.iter().take(self.count).map(|(run, share)| if self.ratio { *share } else { *run });
        self.statistic.of(values.collect()).map(|value| value * request)
    }
}

impl Point for Last {
    fn predict(&mut self, job: &Job) -> f64 {
        self.of(job).unwrap_or(job.unknown_s())
    }

    fn learn(&mut self, job: &Job, _: f64, run_s: f64) {
        let share = match (self.ratio, job.request_s) {
            (true, Some(request)) if request > 0 => run_s / request as f64,
            (true, _) => return,
            _ => 0.0,
        };
        let runs = self.runs.entry(self.alike.key(job), VecDeque::new);
        runs.push_front((run_s, share));
        runs.truncate(self.count);
    }
}
