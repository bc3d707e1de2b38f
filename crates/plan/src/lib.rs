//! How a pool is best made on the nodes that a job got, and what that costs (INVENTORY G10, A12, A15-A18; WANTS 13, 18, 23).
//!
//! Pure: who asks brings what is known of the nodes ([`Facts`]), of the job ([`Job`]) and what is fixed already
//! ([`Asked`]). Every choice says why it was made and what it rests on; nothing that is not known is made up.

#![forbid(unsafe_code)]

mod cost;
mod facts;
mod node;
mod report;
mod room;
mod spread;
mod store;

pub use cost::{Bottleneck, Cost, Costs, Launcher, Limit};
pub use facts::{Disk, Facts, Filesystem, Interface, NumaNode, PeerRate, Spread, StoreRate};
pub use room::Room;

use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use tidepool_types::{Layout, LayoutError, Placement};

/// Share of a job's wall time above which starting and staging are called expensive (S0 §3.2).
pub const EXPENSIVE: f64 = 0.1;

/// One node of the job.
#[derive(Clone, Debug, Default)]
pub struct Node {
    pub name: String,
    pub facts: Option<Facts>,
    /// The leaf switch it hangs on.
    pub leaf: Option<String>,
    /// Directories that the job's owner was seen to be able to write to, beside those measured.
    pub writable: Vec<String>,
}

/// Where a pool is to be made.
#[derive(Clone, Debug)]
pub struct Machine {
    pub nodes: Vec<Node>,
    /// Whose job it is, as a number.
    pub user: u32,
    /// Daemons when all run on one machine.
    pub daemons_here: Option<usize>,
    pub launcher: Launcher,
    /// How many times as much the hosts of a leaf switch can send as it can send on: of the worst one used.
    pub oversubscription: Option<f64>,
}

/// Whether several processes use a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// Each process has files of its own.
    Own,
    /// Processes use the same files.
    Shared,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    Sequential,
    Random,
}

/// What a job says of its I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pattern {
    pub sharing: Option<Sharing>,
    pub access: Option<Access>,
    /// Bytes of one read or write.
    pub transfer: Option<u64>,
}

/// What is known of the job.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// Most bytes that it will have in the pool at a time.
    pub bytes: Option<u64>,
    /// Bytes to be staged in and out; `None`: not known, 0: nothing.
    pub stage_in: Option<u64>,
    pub stage_out: Option<u64>,
    pub pattern: Pattern,
    pub walltime: Option<Duration>,
    /// Nodes that its programs need, when those are not all.
    pub program_nodes: Option<usize>,
}

/// Which nodes get daemons, and which are for programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Deploy {
    Shared,
    /// Daemons on the first so many nodes, programs on all.
    Subset(usize),
    /// Daemons on the first so many nodes, programs on the others.
    Dedicated(usize),
}

impl fmt::Display for Deploy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Deploy::Shared => f.write_str("shared"),
            Deploy::Subset(n) => write!(f, "subset:{n}"),
            Deploy::Dedicated(n) => write!(f, "dedicated:{n}"),
        }
    }
}

impl FromStr for Deploy {
    type Err = String;

    fn from_str(text: &str) -> Result<Deploy, String> {
        let advice = || "write shared, subset:N or dedicated:N, with N nodes for daemons".to_string();
        let count = |n: &str| n.parse().ok().filter(|n| *n > 0).ok_or_else(advice);
        match text.split_once(':') {
            None if text == "shared" => Ok(Deploy::Shared),
            Some(("subset", n)) => Ok(Deploy::Subset(count(n)?)),
            Some(("dedicated", n)) => Ok(Deploy::Dedicated(count(n)?)),
            _ => Err(advice()),
        }
    }
}

/// What is not to be chosen any more.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The directory, and who asked for it.
    pub store: Option<(String, &'static str)>,
    pub placement: Option<Placement>,
    pub chunk_size: Option<u64>,
    pub stripe: Option<u16>,
    pub weights: Vec<u32>,
    pub groups: Vec<String>,
    /// Of all nodes.
    pub cores: Option<Vec<u16>>,
    pub nic: Option<String>,
    pub fabric: Option<String>,
    pub deploy: Option<Deploy>,
    /// Most bytes of data in the pool.
    pub quota: Option<u64>,
}

/// What a choice rests on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// Somebody said so.
    Asked,
    /// Measured on these nodes.
    Measured,
    /// Recorded of these nodes.
    Recorded,
    /// What was measured to suit most, elsewhere.
    Usual,
    /// Typical figures, not of these nodes.
    Assumed,
}

/// Something chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice<T> {
    pub value: T,
    pub why: String,
    pub basis: Basis,
}

impl<T> Choice<T> {
    fn new(value: T, basis: Basis, why: impl Into<String>) -> Choice<T> {
        Choice { value, why: why.into(), basis }
    }

    fn asked(value: T) -> Choice<T> {
        Choice::new(value, Basis::Asked, "asked for")
    }
}

/// How messages between nodes go.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    SharedMemory,
    Tcp,
    /// libfabric with this provider, beside TCP.
    Fabric(String),
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Transport::SharedMemory => f.write_str("shared memory"),
            Transport::Tcp => f.write_str("TCP"),
            Transport::Fabric(provider) => write!(f, "libfabric ({provider})"),
        }
    }
}

/// How the pool is to be made.
#[derive(Clone, Debug)]
pub struct Plan {
    pub deploy: Choice<Deploy>,
    pub store: Choice<String>,
    pub placement: Choice<Placement>,
    pub chunk_size: Choice<u64>,
    pub stripe: Choice<u16>,
    /// Of the daemons; none: all count the same.
    pub weights: Choice<Vec<u32>>,
    /// Of the daemons; none: no groups.
    pub groups: Choice<Vec<String>>,
    /// Of each node with a daemon; none: all.
    pub cores: Choice<Vec<Vec<u16>>>,
    /// The interface that daemons are reached by; none: whatever their names lead to.
    pub nic: Choice<Option<String>>,
    pub transport: Choice<Transport>,
    pub room: Room,
    pub costs: Costs,
    pub warnings: Vec<String>,
}

impl Plan {
    /// For this job on these nodes.
    ///
    /// # Errors
    /// When what was asked for contradicts itself.
    ///
    /// # Panics
    /// When there is no node.
    pub fn make(machine: &Machine, job: &Job, asked: &Asked) -> Result<Plan, LayoutError> {
        assert!(!machine.nodes.is_empty(), "a pool has at least one node");
        let deploy = node::deploy(machine, job, asked);
        let place = Place::of(machine, deploy.value);
        let store = store::choose(&place, job, asked);
        let rooms = room::rooms(&place, &store.value);
        let spread = spread::choose(&place, &rooms, &store.value, job, asked)?;
        let cores = node::cores(&place, &store.value, asked);
        let nic = node::nic(&place, asked);
        let transport = node::transport(&place, asked);
        let room = Room::of(&place, &rooms, &spread, job, asked);
        let costs = Costs::of(&place, machine, &store.value, nic.value.as_deref(), job);
        let mut plan = Plan {
            deploy,
            store,
            placement: spread.placement,
            chunk_size: spread.chunk_size,
            stripe: spread.stripe,
            weights: spread.weights,
            groups: spread.groups,
            cores,
            nic,
            transport,
            room,
            costs,
            warnings: Vec::new(),
        };
        plan.warnings = plan.warn(&place);
        Ok(plan)
    }

    /// What files get in directories that say nothing else.
    pub fn layout(&self) -> Result<Layout, LayoutError> {
        spread::layout(self.placement.value, self.chunk_size.value, self.stripe.value)
    }

    fn warn(&self, place: &Place) -> Vec<String> {
        let mut warnings = Vec::new();
        let unknown: Vec<&str> =
            place.nodes.iter().filter(|n| n.facts.is_none()).map(|n| n.name.as_str()).collect();
        if !unknown.is_empty() {
            let names = some(&unknown);
            warnings.push(format!(
                "nothing is known of {names}; run 'tidepool sysmap collect --db FILE' there and name it with --db"
            ));
        }
        for node in place.nodes {
            for extractor in node.facts.iter().flat_map(|facts| &facts.strange) {
                warnings
                    .push(format!("{}: its record '{extractor}' is not understood and not used", node.name));
            }
        }
        warnings.extend(self.room.warning());
        if let Some(share) = self.costs.share.filter(|share| *share > EXPENSIVE) {
            warnings.push(format!(
                "starting and staging take {:.0} % of the wall time: a pool may not be worth it for this job",
                share * 100.0
            ));
        }
        warnings
    }
}

/// Names, the first few of many.
fn some(names: &[&str]) -> String {
    const SHOWN: usize = 3;
    let shown = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// The nodes that get daemons.
pub(crate) struct Place<'a> {
    nodes: &'a [Node],
    /// On each of them.
    daemons_each: usize,
    user: u32,
    /// Programs run on the same nodes, and on no other.
    programs_beside: bool,
    oversubscription: Option<f64>,
}

impl Place<'_> {
    fn of(machine: &Machine, deploy: Deploy) -> Place<'_> {
        let all = machine.nodes.len();
        let daemons = match deploy {
            Deploy::Shared => all,
            Deploy::Subset(n) | Deploy::Dedicated(n) => n.clamp(1, all),
        };
        Place {
            nodes: &machine.nodes[..daemons],
            daemons_each: machine.daemons_here.unwrap_or(1).max(1),
            user: machine.user,
            programs_beside: daemons == all,
            oversubscription: machine.oversubscription,
        }
    }

    fn daemons(&self) -> usize {
        self.nodes.len() * self.daemons_each
    }

    /// Something of every node, if it is known of every one.
    fn of_all<'b, T>(&'b self, look: impl Fn(&'b Node, &'b Facts) -> Option<T>) -> Option<Vec<T>> {
        self.nodes.iter().map(|node| look(node, node.facts.as_ref()?)).collect()
    }
}

#[cfg(test)]
mod tests;
