//! Which points a sweep has, and what distinguishes it from any other.

use super::flags::SweepArgs;
use crate::exit::{Context, Failure, Kind, Result};
use crate::sim::run::read;
use serde_json::{Value, json};
use std::fmt::{self, Write};
use tidepool_sim_models::experiment::Experiment;
use tidepool_sim_models::tune::{Vary, point, size, turned};

/// Most points of a sweep.
const POINTS_MAX: usize = 1_000_000;

/// A sweep: all values of all knobs, each with all seeds; seeds turn fastest.
pub struct Plan {
    pub experiment: Experiment,
    pub space: Vec<Vary>,
    first_seed: u64,
    seeds: u64,
}

/// A configuration and a seed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Point {
    pub number: u64,
    pub values: Vec<u64>,
    pub seed: u64,
}

impl Plan {
    pub fn new(args: &SweepArgs) -> Result<Plan> {
        let experiment = read(&args.file)?;
        let knobs = args.vary.iter().map(|text| Vary::parse(text, &experiment));
        let space: Vec<Vary> =
            knobs.collect::<std::result::Result<_, _>>().context(Kind::Usage, || "--vary".to_string())?;
        if let Some(twice) =
            space.iter().enumerate().find(|(at, one)| space[..*at].iter().any(|all| all.name == one.name))
        {
            return Err(Failure::new(Kind::Usage, format!("--vary: '{}' is there twice", twice.1.name)));
        }
        let points = size(&space).saturating_mul(args.seeds as usize);
        if points > POINTS_MAX {
            return Err(Failure::new(Kind::Usage, format!("{points} points; at most {POINTS_MAX}")));
        }
        let first_seed = args.seed.unwrap_or(experiment.seed);
        Ok(Plan { experiment, space, first_seed, seeds: args.seeds.into() })
    }

    pub fn points(&self) -> u64 {
        size(&self.space) as u64 * self.seeds
    }

    pub fn point(&self, number: u64) -> Point {
        let values = point(&self.space, (number / self.seeds) as usize);
        Point { number, values, seed: self.first_seed.wrapping_add(number % self.seeds) }
    }

    pub fn experiment_of(&self, point: &Point) -> Experiment {
        let mut experiment = turned(&self.experiment, &self.space, &point.values);
        experiment.seed = point.seed;
        experiment
    }

    /// All that results depend on. Two sweeps with the same have the same points with the same results.
    pub fn identity(&self) -> Value {
        let knobs = self.space.iter().map(|vary| (vary.name.clone(), json!(vary.values)));
        json!({
            "kind": "tidepool sim sweep",
            "format": 1,
            "version": env!("CARGO_PKG_VERSION"),
            "experiment": format!("{:016x}", digest(&self.experiment)),
            "knobs": knobs.map(|(name, values)| json!({ "name": name, "values": values })).collect::<Vec<_>>(),
            "seed": self.first_seed,
            "seeds": self.seeds,
        })
    }
}

/// FNV-1a, 64 bits.
struct Digest(u64);

impl Write for Digest {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Ok(())
    }
}

/// Of an experiment: of what the file says, with the traces that it names; not of how it says it.
pub fn digest(what: &impl fmt::Debug) -> u64 {
    let mut digest = Digest(0xcbf2_9ce4_8422_2325);
    // This writer never fails.
    let _ = write!(digest, "{what:?}");
    digest.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_fnv() {
        let mut digest = Digest(0xcbf2_9ce4_8422_2325);
        digest.write_str("foobar").unwrap();
        assert_eq!(digest.0, 0x8594_4171_f739_67e8);
    }
}
