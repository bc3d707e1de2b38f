//! All predictors by name.

use crate::conformal::Calibrated;
use crate::expert::Expert;
use crate::mixture::Mixture;
use crate::regression::PerUser;
use crate::simple::{Alike, Last, Request, Statistic};
use crate::templates::{Downey, Gibbons, Same};
use crate::{Point, Predictor};

/// A predictor of which there can be two that know the same.
pub trait Copied: Predictor + Send {
    fn copied(&self) -> Box<dyn Copied>;
}

impl<P: Predictor + Send + Clone + 'static> Copied for P {
    fn copied(&self) -> Box<dyn Copied> {
        Box::new(self.clone())
    }
}

/// A predictor that can be had by its name.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub name: &'static str,
    /// In a few words.
    pub about: &'static str,
    make: fn() -> Box<dyn Copied>,
}

impl Entry {
    pub fn make(&self) -> Box<dyn Predictor + Send> {
        self.make_copied()
    }

    /// One that can be copied with all that it knows.
    pub fn make_copied(&self) -> Box<dyn Copied> {
        (self.make)()
    }

    pub fn named(name: &str) -> Option<&'static Entry> {
        ALL.iter().find(|entry| entry.name == name)
    }
}

fn calibrated(point: impl Point + Send + Clone + 'static) -> Box<dyn Copied> {
    Box::new(Calibrated::new(point))
}

const fn entry(name: &'static str, about: &'static str, make: fn() -> Box<dyn Copied>) -> Entry {
    Entry { name, about, make }
}

fn user(count: usize, statistic: Statistic) -> Box<dyn Copied> {
    calibrated(Last::new(count, statistic, Alike::User))
}

/// The default first, then from the simplest on.
pub const ALL: &[Entry] = &[
    entry("default", "templates' distributions, mixed", || Box::new(Mixture::default())),
    entry("request", "the user's time limit", || calibrated(Request)),
    entry("last", "the user's last run", || calibrated(Last::run())),
    entry("last-two", "mean of the user's last two runs (Tsafrir)", || calibrated(Last::two())),
    entry("mean-10", "mean of the user's last ten runs", || user(10, Statistic::Mean)),
    entry("median-10", "median of the user's last ten runs", || user(10, Statistic::Median)),
    entry("max-10", "longest of the user's last ten runs", || user(10, Statistic::Max)),
    entry("alea", "largest share of the request in five runs (Alea)", || calibrated(Last::alea())),
    entry("mean-ratio", "mean share of the request in five runs", || calibrated(Last::mean_ratio())),
    entry("same", "median of runs with the same user, processors, request", || calibrated(Same::default())),
    entry("gibbons", "the first of six templates with data", || calibrated(Gibbons::default())),
    entry("downey", "log-uniform run times of each queue", || calibrated(Downey::default())),
    entry("linear", "linear regression for each user", || calibrated(PerUser::default())),
    entry("expert", "the simple predictor that was best for the user lately", || {
        calibrated(Expert::default())
    }),
];
