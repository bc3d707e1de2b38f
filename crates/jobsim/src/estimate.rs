//! What plans go by, in words: of the command line and of Python.

use crate::predict::{Learning, Predictor, Refined, Request, Value};
use std::fmt;
use std::str::FromStr;
use tidepool_joblog::Job;
use tidepool_predict::catalog::{ALL, Entry};

/// A way to say how long jobs will run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Estimate {
    /// What the user requested.
    Request,
    /// S0 equation 1; at 0 the run time itself.
    Lambda(f64),
    Learnt(Learnt),
}

/// A predictor of `tidepool jobs evaluate`, and what of its predictions.
#[derive(Clone, Copy, Debug)]
pub struct Learnt {
    by: &'static Entry,
    value: Value,
}

impl PartialEq for Learnt {
    fn eq(&self, other: &Learnt) -> bool {
        (self.by.name, self.value) == (other.by.name, other.value)
    }
}

/// Of [`tidepool_predict::LEVELS`], in their order.
const LEVELS: [&str; 2] = ["90", "95"];

const WANTED: &str = "'request', 'run-time', 'lambda=X' with X from 0 to 1, or a predictor of 'tidepool jobs \
                      evaluate', 'default', 'last-two' or 'alea' say, and 'default:90' or 'default:95' for the time \
                      within which so many per cent of such jobs are over";

fn learnt(word: &str) -> Option<Learnt> {
    let (name, level) = word.split_once(':').map_or((word, None), |(name, level)| (name, Some(level)));
    let value = match level {
        None => Value::RunTime,
        Some(level) => Value::Within(LEVELS.iter().position(|known| *known == level)?),
    };
    ALL.iter().find(|entry| entry.name == name).map(|by| Learnt { by, value })
}

impl FromStr for Estimate {
    type Err = String;

    fn from_str(word: &str) -> Result<Estimate, String> {
        let lambda = |text: &str| text.parse().ok().filter(|lambda: &f64| (0.0..=1.0).contains(lambda));
        match word {
            "request" => Ok(Estimate::Request),
            "run-time" => Ok(Estimate::Lambda(0.0)),
            _ => word
                .strip_prefix("lambda=")
                .and_then(lambda)
                .map(Estimate::Lambda)
                .or_else(|| learnt(word).map(Estimate::Learnt))
                .ok_or_else(|| format!("'{word}' is none of {WANTED}")),
        }
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Estimate::Request => f.write_str("request"),
            Estimate::Lambda(lambda) => write!(f, "lambda={lambda}"),
            Estimate::Learnt(Learnt { by, value: Value::RunTime }) => f.write_str(by.name),
            Estimate::Learnt(Learnt { by, value: Value::Within(level) }) => {
                write!(f, "{}:{}", by.name, LEVELS[*level])
            }
        }
    }
}

/// Of the jobs of a run.
pub fn predictor(estimate: &Estimate, jobs: &[Job]) -> Box<dyn Predictor> {
    match estimate {
        Estimate::Request => Box::new(Request),
        Estimate::Lambda(lambda) => Box::new(Refined::new(jobs, *lambda)),
        Estimate::Learnt(Learnt { by, value }) => Box::new(Learning::new(by.make(), *value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_they_are_shown() {
        for word in
            ["request", "lambda=0.05", "last-two", "alea", "lambda=1", "default", "expert:90", "default:95"]
        {
            assert_eq!(word.parse::<Estimate>().unwrap().to_string(), word);
        }
        assert_eq!("run-time".parse(), Ok(Estimate::Lambda(0.0)));
        for word in
            ["lambda=2", "lambda=x", "lambda=NaN", "", "req", "default:", "default:50", ":90", "last-two:9x"]
        {
            assert!(word.parse::<Estimate>().is_err(), "{word}");
        }
    }
}
