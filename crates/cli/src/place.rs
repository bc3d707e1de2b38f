//! Which nodes a pool has, which of them get a daemon, and which are for programs.
//!
//! ```text
//! --deploy        first N nodes      the other nodes
//! shared          daemon, programs   daemon, programs
//! subset:N        daemon, programs   programs
//! dedicated:N     daemon             programs
//! ```

use crate::allocation::{self, Allocation};
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::PoolShape;
use std::ops::Range;
use std::process::Command;
use tidepool_plan::Deploy;

/// Where a pool's nodes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// That many daemons on this machine.
    Local(usize),
    /// These hosts.
    Ssh(Vec<String>),
    /// That many nodes of the allocation.
    Slurm(usize),
    /// Nodes that this machine is none of, through their stagers (`stagers.rs`).
    Stagers(Vec<NodeAt>),
}

/// A node, and where its stager listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAt {
    pub name: String,
    /// `host:port`
    pub address: String,
}

impl std::str::FromStr for NodeAt {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<NodeAt, String> {
        let (name, address) = text.split_once('=').ok_or(format!("'{text}' is no NAME=HOST:PORT"))?;
        // Names go into lists of hosts, and people see them.
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
            return Err(format!("'{name}' is no name of a node"));
        }
        Ok(NodeAt { name: name.into(), address: crate::stage::flags::address(address)? })
    }
}

/// What each node is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub place: Place,
    /// Nodes that get daemons, from the first one on.
    pub daemon_nodes: usize,
    /// Nodes that programs are to use.
    pub compute: Range<usize>,
}

impl Place {
    /// Decides from the flags and the environment.
    pub fn choose(shape: &PoolShape) -> Result<Place> {
        if let Some(hosts) = &shape.hosts {
            return Ok(Place::Ssh(parse_hosts(hosts)?));
        }
        let allocated = if shape.local { None } else { allocation::find(&allocation::Here)? };
        match (allocated, shape.nodes) {
            (Some(Allocation::Slurm(nodes)), wanted) => {
                let wanted = wanted.unwrap_or(nodes);
                within(wanted, nodes)?;
                Ok(Place::Slurm(wanted))
            }
            (Some(Allocation::Hosts(mut hosts, _)), wanted) => {
                let wanted = wanted.unwrap_or(hosts.len());
                within(wanted, hosts.len())?;
                hosts.truncate(wanted);
                Ok(Place::Ssh(checked(hosts)?))
            }
            (None, wanted) => match wanted.unwrap_or(1) {
                0 => Err(Failure::new(Kind::Usage, "--nodes 0: a pool has at least one daemon")),
                n if n > tidepool_types::DAEMONS_MAX => {
                    Err(Failure::new(Kind::Usage, format!("--nodes {n}: a pool has at most 65536 daemons")))
                }
                n => Ok(Place::Local(n)),
            },
        }
    }

    /// Names of the nodes.
    pub fn names(&self) -> Result<Vec<String>> {
        match self {
            Place::Local(_) => Ok(vec![crate::agent::own_name()]),
            Place::Ssh(hosts) => Ok(hosts.clone()),
            Place::Slurm(nodes) => Ok(slurm_names()?.into_iter().take(*nodes).collect()),
            Place::Stagers(nodes) => Ok(nodes.iter().map(|node| node.name.clone()).collect()),
        }
    }

    fn describe(&self) -> String {
        match self {
            Place::Local(n) => format!("{n} daemon(s) on this machine"),
            Place::Ssh(hosts) => format!("{} host(s) through ssh: {}", hosts.len(), hosts.join(", ")),
            Place::Slurm(n) => format!("{n} node(s) of the Slurm allocation through srun"),
            Place::Stagers(nodes) => {
                let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
                format!("{} node(s) through their stagers: {}", names.len(), names.join(", "))
            }
        }
    }
}

impl Layout {
    /// As the flags say, without a plan.
    pub fn asked(shape: &PoolShape) -> Result<Layout> {
        Layout::new(Place::choose(shape)?, shape.deploy.unwrap_or(Deploy::Shared))
    }

    pub fn new(place: Place, deploy: Deploy) -> Result<Layout> {
        let refuse = |why: String| Err(Failure::new(Kind::Usage, format!("--deploy {deploy}: {why}")));
        let nodes = match &place {
            Place::Local(_) => 1,
            Place::Ssh(hosts) => hosts.len(),
            Place::Slurm(nodes) => *nodes,
            Place::Stagers(nodes) => nodes.len(),
        };
        if matches!(place, Place::Local(_)) && deploy != Deploy::Shared {
            return refuse("one machine cannot be divided; use --hosts or a Slurm allocation".into());
        }
        match deploy {
            Deploy::Shared => Ok(Layout { place, daemon_nodes: nodes, compute: 0..nodes }),
            Deploy::Subset(n) if n <= nodes => Ok(Layout { place, daemon_nodes: n, compute: 0..nodes }),
            Deploy::Subset(_) => refuse(format!("there are {nodes} nodes")),
            Deploy::Dedicated(n) if n < nodes => Ok(Layout { place, daemon_nodes: n, compute: n..nodes }),
            Deploy::Dedicated(_) => refuse(format!("of {nodes} nodes none would be left for programs")),
        }
    }

    pub fn nodes(&self) -> usize {
        // Programs may use the last node in every deployment.
        self.compute.end
    }

    pub fn daemons(&self) -> usize {
        if let Place::Local(count) = self.place { count } else { self.daemon_nodes }
    }

    pub fn describe(&self) -> String {
        let place = self.place.describe();
        match (self.daemon_nodes, self.compute.start) {
            (n, _) if n == self.nodes() => place,
            (n, 0) => format!("{place}; daemons on the first {n}, programs on all"),
            (n, _) => format!("{place}; daemons on the first {n}, programs on the others"),
        }
    }
}

/// So many nodes of so many.
fn within(wanted: usize, nodes: usize) -> Result<()> {
    if wanted == 0 || wanted > nodes {
        let text = format!("--nodes {wanted}: the allocation has {nodes} nodes");
        return Err(Failure::new(Kind::Usage, text));
    }
    Ok(())
}

/// Nodes of the allocation, in its order.
fn slurm_names() -> Result<Vec<String>> {
    let what = || "scontrol show hostnames".to_string();
    let list = std::env::var("SLURM_JOB_NODELIST").context(Kind::Start, || "$SLURM_JOB_NODELIST".into())?;
    let said =
        Command::new("scontrol").args(["show", "hostnames", &list]).output().context(Kind::Start, what)?;
    if !said.status.success() {
        let why = String::from_utf8_lossy(&said.stderr).trim().to_string();
        return Err(Failure::new(Kind::Start, format!("{}: {why}", what())));
    }
    Ok(String::from_utf8_lossy(&said.stdout).lines().map(String::from).collect())
}

/// Hosts separated by commas, or the lines of a file after `@`; `#` starts a comment there.
fn parse_hosts(text: &str) -> Result<Vec<String>> {
    let listed = match text.strip_prefix('@') {
        Some(file) => std::fs::read_to_string(file).context(Kind::Usage, || format!("--hosts {text}"))?,
        None => text.replace(',', "\n"),
    };
    let hosts: Vec<String> = listed
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim().to_string())
        .filter(|host| !host.is_empty())
        .collect();
    checked(hosts)
}

/// Names that can be used, each of them once.
fn checked(hosts: Vec<String>) -> Result<Vec<String>> {
    // ssh would take a leading dash for an option; hosts also name log files.
    let bad = |h: &&String| h.starts_with('-') || h.contains(char::is_whitespace) || h.contains('/');
    if let Some(bad) = hosts.iter().find(bad) {
        return Err(Failure::new(Kind::Usage, format!("--hosts: '{bad}' is no host name")));
    }
    let mut sorted = hosts.clone();
    sorted.sort();
    if let Some(pair) = sorted.windows(2).find(|w| w[0] == w[1]) {
        return Err(Failure::new(Kind::Usage, format!("--hosts: '{}' is named twice", pair[0])));
    }
    if hosts.is_empty() { Err(Failure::new(Kind::Usage, "--hosts names no host")) } else { Ok(hosts) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_lists_are_checked() {
        assert_eq!(parse_hosts("a, b,c").unwrap(), ["a", "b", "c"]);
        for bad in ["", "-oProxyCommand=x", "a,a", "../a", "@/no/such/file"] {
            assert!(parse_hosts(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nodes_with_stagers_have_names_and_addresses() {
        let node = NodeAt { name: "n1".into(), address: "10.0.0.1:42000".into() };
        assert_eq!("n1=10.0.0.1:42000".parse(), Ok(node));
        for bad in ["n1", "=h:1", "n1=h", "n1=:1", "n 1=h:1", "n/1=h:1", "n1=h:x"] {
            assert!(bad.parse::<NodeAt>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a16_deployments_divide_the_nodes() {
        for (deploy, daemons, compute) in [
            (Deploy::Shared, 4, 0..4),
            (Deploy::Subset(1), 1, 0..4),
            (Deploy::Subset(4), 4, 0..4),
            (Deploy::Dedicated(1), 1, 1..4),
            (Deploy::Dedicated(3), 3, 3..4),
        ] {
            let layout = Layout::new(Place::Slurm(4), deploy).unwrap();
            assert_eq!((layout.daemons(), layout.compute.clone()), (daemons, compute), "{deploy}");
            assert_eq!(layout.nodes(), 4);
        }
    }

    #[test]
    fn a16_impossible_deployments_are_refused_with_a_reason() {
        let hosts = || Place::Ssh(vec!["a".into(), "b".into()]);
        for (place, deploy, words) in [
            (Place::Local(4), Deploy::Subset(1), "one machine"),
            (Place::Local(4), Deploy::Dedicated(1), "one machine"),
            (hosts(), Deploy::Subset(3), "there are 2 nodes"),
            (hosts(), Deploy::Dedicated(2), "none would be left"),
        ] {
            let said = Layout::new(place, deploy).unwrap_err().to_string();
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn descriptions_tell_who_does_what() {
        let text = Layout::new(Place::Slurm(4), Deploy::Dedicated(1)).unwrap().describe();
        assert!(text.ends_with("daemons on the first 1, programs on the others"), "{text}");
    }
}
