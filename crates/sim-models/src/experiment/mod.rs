//! Experiments: a system and what is done with it, as a file has them (`docs/formats/28-experiments.md`). All of a file is
//! looked at, and everything that is wrong is told with its line.

mod described;
mod fields;
pub mod measured;
mod read;
mod trace;

use crate::node::NodesSpec;
use crate::outages::{self, Outage};
use crate::pool::{PoolError, PoolLayout};
use crate::span::Span;
use crate::striping::{Layout, Region, Ring, RingError};
use crate::system::{Application, Class, Pfs, PfsError};
use crate::topology::{Description, Topology};
use crate::{Network, ServerSpec};
pub use fields::Problem;
pub use fields::unknown;
pub use read::{LOADS_MAX, TEXT_MAX};
use std::collections::BTreeMap;
use std::fmt;
use tidepool_sim::Time;
use tidepool_types::Placement;

/// Which servers take a part of the files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Spreading {
    /// Over classes of servers, by their weights.
    Striped(Vec<usize>),
    /// One class in front of another.
    Buffered { buffer: usize, store: usize },
    /// Parts of files on a class each: file, from, to, class; the rest on `rest`. Parts of a file follow each other.
    Tiered { regions: Vec<(u32, u64, u64, usize)>, rest: usize },
    /// A pool on all servers.
    Pool(Pool),
}

/// How a pool places data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pool {
    pub placement: Placement,
    /// Over how many servers in turn; 0: by hashing.
    pub in_turn: u16,
    /// How long it is within a node.
    pub near: Option<Time>,
    /// The group of each server; none: no groups.
    pub groups: Vec<u16>,
    /// On which all data lie; none: on that of who makes a file.
    pub group: Option<u16>,
}

/// A class of servers and its weight among those that files are striped over.
#[derive(Clone, PartialEq, Debug)]
pub struct Servers {
    pub class: Class,
    pub weight: u32,
    /// What one of them costs, in whatever unit.
    pub price: f64,
}

/// Switches between clients and servers.
#[derive(Clone, PartialEq, Debug)]
pub struct Switches {
    pub topology: Topology,
    /// Ranks live on the servers' nodes, too.
    pub together: bool,
}

/// Servers that fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    pub servers: Failing,
    pub times: FailureTimes,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failing {
    /// The one of this number.
    One(u32),
    /// Each of a class.
    Class(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureTimes {
    /// From a time on, for so long.
    Once(Time, Time),
    /// So long after the start or a repair, for so long each, up to a time.
    Drawn(Span, Span, Time),
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
    pub switches: Option<Switches>,
    pub server: ServerSpec,
    pub servers: Vec<Servers>,
    pub stripe: u64,
    pub spreading: Spreading,
    pub applications: Vec<Application>,
    pub failures: Vec<Failure>,
    /// After which clients give a request up.
    pub timeout: Option<Time>,
    /// What ranks share.
    pub nodes: Option<NodesSpec>,
    pub calibration: Option<Calibration>,
}

/// Why an experiment is no system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BuildError {
    Ring(RingError),
    Pool(PoolError),
    System(PfsError),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::Ring(error) => error.fmt(f),
            BuildError::Pool(error) => error.fmt(f),
            BuildError::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for BuildError {}

impl From<RingError> for BuildError {
    fn from(error: RingError) -> BuildError {
        BuildError::Ring(error)
    }
}

impl From<PoolError> for BuildError {
    fn from(error: PoolError) -> BuildError {
        BuildError::Pool(error)
    }
}

impl From<PfsError> for BuildError {
    fn from(error: PfsError) -> BuildError {
        BuildError::System(error)
    }
}

impl Experiment {
    /// `load` gives the text of a file that a trace is in.
    pub fn read(
        text: &str,
        load: &dyn Fn(&str) -> Result<String, String>,
    ) -> Result<Experiment, Vec<Problem>> {
        Experiment::read_with(text, load, &|_| Err("networks of switches cannot be read here".into()))
    }

    /// The same, and `switches` gives the network that is described in a file (format 17).
    pub fn read_with(
        text: &str,
        load: &dyn Fn(&str) -> Result<String, String>,
        switches: &dyn Fn(&str) -> Result<Description, String>,
    ) -> Result<Experiment, Vec<Problem>> {
        read::read(text, load, switches)
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
        let layout = self.layout()?;
        let classes = self.servers.iter().map(|servers| servers.class.clone()).collect();
        let (network, server) = (self.network.clone(), self.server.clone());
        let mut pfs = Pfs::new(network, server, classes, layout, self.applications.clone())?;
        if self.timeout == Some(Time::ZERO) {
            return Err(PfsError::Timeout.into());
        }
        pfs.timeout = self.timeout;
        if let Spreading::Pool(Pool { near, .. }) = &self.spreading {
            if *near == Some(Time::ZERO) {
                return Err(PfsError::Instant("the way within a node").into());
            }
            pfs.near = *near;
        }
        if let Some(nodes) = &self.nodes {
            pfs = pfs.with_nodes(nodes.clone())?;
        }
        if let Some(Switches { topology, together }) = &self.switches {
            pfs = pfs.with_topology(topology.clone(), *together)?;
        }
        Ok(pfs.with_outages(self.outages()?)?)
    }

    fn outages(&self) -> Result<Vec<Outage>, PfsError> {
        let mut all = Vec::new();
        for failure in &self.failures {
            let numbers = match failure.servers {
                Failing::One(number) => number..number + 1,
                Failing::Class(class) => {
                    let count =
                        |servers: &[Servers]| servers.iter().map(|servers| servers.class.count).sum::<u32>();
                    count(&self.servers[..class])..count(&self.servers[..=class])
                }
            };
            for server in numbers {
                match failure.times {
                    FailureTimes::Once(at, repair) => {
                        all.push(Outage { server, from: at, to: at.plus(repair) });
                    }
                    FailureTimes::Drawn(between, repair, until) => {
                        outages::drawn(self.seed, server, (between, repair), until, &mut all)
                            .map_err(PfsError::Outages)?;
                    }
                }
            }
        }
        Ok(all)
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

    fn layout(&self) -> Result<Layout, BuildError> {
        Ok(match &self.spreading {
            Spreading::Striped(classes) => Layout::Striped(self.ring(classes, true)?),
            Spreading::Buffered { buffer, store } => Layout::Buffered {
                buffer: self.ring(&[*buffer], false)?,
                store: self.ring(&[*store], false)?,
            },
            Spreading::Pool(Pool { placement, in_turn, groups, group, .. }) => {
                let layout = match placement {
                    Placement::Group => tidepool_types::Layout::group(self.stripe, *group),
                    Placement::Local => Ok(tidepool_types::Layout::LOCAL),
                    Placement::Weighted => tidepool_types::Layout::weighted(self.stripe),
                    Placement::Wide => tidepool_types::Layout::wide(self.stripe, *in_turn),
                };
                let weights = self.servers.iter().flat_map(|s| vec![s.weight; s.class.count as usize]);
                let weights: Vec<u32> = weights.collect();
                Layout::Pool(PoolLayout::grouped(layout.map_err(PoolError::Layout)?, &weights, groups)?)
            }
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
