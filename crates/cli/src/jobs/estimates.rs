//! What plans go by, as the command line says it.

use std::fmt;
use std::str::FromStr;
use tidepool_jobsim::Job;
use tidepool_jobsim::predict::{LastTwo, MaxRatio, Predictor, Refined, Request};

/// A way to say how long jobs will run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Estimate {
    /// What the user requested.
    Request,
    /// S0 equation 1; at 0 the run time itself.
    Lambda(f64),
    LastTwo,
    MaxRatio,
}

const WANTED: &str = "'request', 'run-time', 'lambda=X' with X from 0 to 1, 'last-two' or 'alea'";

impl FromStr for Estimate {
    type Err = String;

    fn from_str(word: &str) -> Result<Estimate, String> {
        let lambda = |text: &str| text.parse().ok().filter(|lambda: &f64| (0.0..=1.0).contains(lambda));
        match word {
            "request" => Ok(Estimate::Request),
            "run-time" => Ok(Estimate::Lambda(0.0)),
            "last-two" => Ok(Estimate::LastTwo),
            "alea" => Ok(Estimate::MaxRatio),
            _ => word
                .strip_prefix("lambda=")
                .and_then(lambda)
                .map(Estimate::Lambda)
                .ok_or_else(|| format!("'{word}' is none of {WANTED}")),
        }
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Estimate::Request => f.write_str("request"),
            Estimate::Lambda(lambda) => write!(f, "lambda={lambda}"),
            Estimate::LastTwo => f.write_str("last-two"),
            Estimate::MaxRatio => f.write_str("alea"),
        }
    }
}

/// Of the jobs of a run.
pub fn predictor(estimate: &Estimate, jobs: &[Job]) -> Box<dyn Predictor> {
    match estimate {
        Estimate::Request => Box::new(Request),
        Estimate::Lambda(lambda) => Box::new(Refined::new(jobs, *lambda)),
        Estimate::LastTwo => Box::new(LastTwo::default()),
        Estimate::MaxRatio => Box::new(MaxRatio::default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_are_shown() {
        for word in ["request", "lambda=0.05", "last-two", "alea", "lambda=1"] {
            assert_eq!(word.parse::<Estimate>().unwrap().to_string(), word);
        }
        assert_eq!("run-time".parse(), Ok(Estimate::Lambda(0.0)));
        for word in ["lambda=2", "lambda=x", "lambda=NaN", "", "req"] {
            assert!(word.parse::<Estimate>().is_err(), "{word}");
        }
    }
}
