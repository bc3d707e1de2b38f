//! Experiments: a system and what is done with it, as a file has them (`docs/formats/28-experiments.md`). All of a file is
//! looked at, and everything that is wrong is told with its line.

mod fields;
pub mod measured;
mod read;
mod trace;

use crate::striping::{Layout, Region, Ring, RingError};
use crate::system::{Application, Class, Pfs, PfsError};
use crate::{Network, ServerSpec};
pub use fields::Problem;
pub use fields::unknown;
pub use read::{LOADS_MAX, TEXT_MAX};
use std::collections::BTreeMap;
use std::fmt;

/// Which servers take a part of the files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Spreading {
    /// Over classes of servers, by their weights.
    Striped(Vec<usize>),
    /// One class in front of another.
    Buffered { buffer: usize, store: usize },
    /// Parts of files on a class each: file, from, to, class; the rest on `rest`. Parts of a file follow each other.
    Tiered { regions: Vec<(u32, u64, u64, usize)>, rest: usize },
}

/// A class of servers and its weight among those that files are striped over.
#[derive(Clone, PartialEq, Debug)]
pub struct Servers {
    pub class: Class,
    pub weight: u32,
    /// What one of them costs, in whatever unit.
    pub price: f64,
}

/// What a device was fitted to, for whoever wants to know how far to trust it. Nothing is simulated with it.
#[derive(Clone, PartialEq, Debug)]
pub struct Calibration {
    pub source: String,
    /// Runs that it was fitted to.
    pub runs: u64,
    /// Nine of ten rates of runs that a fit had not seen were at most so far from the simulated ones, as logarithms.
    pub error_90: Option<f64>,
    /// Mean distance of a run from the median of its repeats, relative to the run.
    pub noise: Option<f64>,
    pub notes: Vec<String>,
}

/// All of a file.
#[derive(Clone, PartialEq, Debug)]
pub struct Experiment {
    pub seed: u64,
    pub network: Network,
    pub server: ServerSpec,
    pub servers: Vec<Servers>,
    pub stripe: u64,
    pub spreading: Spreading,
    pub applications: Vec<Application>,
    pub calibration: Option<Calibration>,
}

/// Why an experiment is no system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BuildError {
    Ring(RingError),
    System(PfsError),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::Ring(error) => error.fmt(f),
            BuildError::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for BuildError {}

impl Experiment {
    /// `load` gives the text of a file that a trace is in.
    pub fn read(
        text: &str,
        load: &dyn Fn(&str) -> Result<String, String>,
    ) -> Result<Experiment, Vec<Problem>> {
        read::read(text, load)
    }

    /// What all servers cost.
    pub fn price(&self) -> f64 {
        self.servers.iter().map(|servers| servers.price * f64::from(servers.class.count)).sum()
    }

    /// Class of this name.
    pub fn class(&self, name: &str) -> Option<usize> {
        self.servers.iter().position(|servers| servers.class.name == name)
    }

    pub fn system(&self) -> Result<Pfs, BuildError> {
        let layout = self.layout().map_err(BuildError::Ring)?;
        let classes = self.servers.iter().map(|servers| servers.class.clone()).collect();
        let (network, server) = (self.network.clone(), self.server.clone());
        Pfs::new(network, server, classes, layout, self.applications.clone()).map_err(BuildError::System)
    }

    /// All servers of some classes, in the order of classes.
    fn ring(&self, classes: &[usize], weighted: bool) -> Result<Ring, RingError> {
        let mut first = 0;
        let mut all = Vec::new();
        for (at, servers) in self.servers.iter().enumerate() {
            let weight = if weighted { servers.weight } else { 1 };
            if classes.contains(&at) {
                all.extend((first..first + servers.class.count).map(|number| (number, weight)));
            }
            first += servers.class.count;
        }
        Ring::new(self.stripe, &all)
    }

    fn layout(&self) -> Result<Layout, RingError> {
        Ok(match &self.spreading {
            Spreading::Striped(classes) => Layout::Striped(self.ring(classes, true)?),
            Spreading::Buffered { buffer, store } => Layout::Buffered {
                buffer: self.ring(&[*buffer], false)?,
                store: self.ring(&[*store], false)?,
            },
            Spreading::Tiered { regions, rest } => {
                // Ring 0 is for what is in no region.
                let mut rings = vec![self.ring(&[*rest], false)?];
                for class in 0..self.servers.len() {
                    rings.push(match regions.iter().any(|region| region.3 == class) {
                        true => self.ring(&[class], false)?,
                        false => rings[0].clone(),
                    });
                }
                let mut by_file: BTreeMap<u32, Vec<Region>> = BTreeMap::new();
                for (file, from, to, class) in regions {
                    let all = by_file.entry(*file).or_default();
                    if all.last().map_or(0, |last| last.end) < *from {
                        all.push(Region { end: *from, ring: 0 });
                    }
                    all.push(Region { end: *to, ring: 1 + class });
                }
                Layout::Tiered { regions: by_file, rings }
            }
        })
    }
}
