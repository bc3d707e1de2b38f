//! The network of a machine as pools and plans want it: leaf switches with their hosts, islands, racks.
//!
//! - A *leaf* is a switch that hosts hang on. A host that hangs on several belongs to the first of them by name.
//! - *Levels*: 1 for a leaf, else one more than the number of links to the nearest one.
//! - An *island* is a set of leaves that reach each other without going over switches of the highest level. With two levels
//!   all goes over the highest one, and it counts as one island; so do networks of one switch. Networks that no link joins
//!   are islands of their own.
//!
//! Names are in the order that people expect: `leaf2` before `leaf10`.

mod merge;
mod names;

pub use names::{by_name, short};

use crate::extract::{Fabric, Link, Port, Rack, Switch};
use merge::Merge;
use std::collections::{BTreeMap, BTreeSet};

/// With fewer levels there is nothing but the highest one between leaves.
const ISLAND_LEVELS_MIN: u32 = 3;

/// Why something is no network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopologyError {
    /// It describes no switch.
    Empty,
    /// One description is wrong in itself.
    Bad(String),
    /// Two descriptions that cannot both be right.
    Contradiction { what: String, one: Told, other: Told },
}

/// What a description says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Which of those given, from 0.
    pub record: usize,
    pub says: String,
}

impl std::fmt::Display for TopologyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TopologyError::Empty => f.write_str("no switch is described"),
            TopologyError::Bad(what) => f.write_str(what),
            TopologyError::Contradiction { what, one, other } => {
                write!(f, "{what}: one description says {}, another says {}", one.says, other.says)
            }
        }
    }
}

impl std::error::Error for TopologyError {}

/// A network, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Topology {
    switches: Vec<Switch>,
    ports: Vec<Port>,
    links: Vec<Link>,
    racks: Vec<Rack>,
    leaves: Vec<Leaf>,
    islands: Vec<Vec<String>>,
    /// Of switches below the highest level.
    island_of: BTreeMap<String, usize>,
    /// The leaf of each host, by its place.
    leaf_of: BTreeMap<String, usize>,
    /// Hosts by the first parts of their names; none where several begin so.
    shorts: BTreeMap<String, Option<String>>,
    rack_of: BTreeMap<String, usize>,
}

/// A switch that hosts hang on.
#[derive(Debug, Clone, PartialEq)]
pub struct Leaf {
    pub name: String,
    /// Hosts that belong to it, by name. None when all of its hosts belong to a leaf before it.
    pub hosts: Vec<String>,
    /// Its place in [`Topology::islands`].
    pub island: usize,
}

impl Topology {
    /// Of a description of the whole network.
    pub fn new(fabric: &Fabric) -> Result<Topology, TopologyError> {
        let mut merge = Merge::default();
        merge.add(fabric)?;
        Topology::of(merge.end())
    }

    /// Of several that each tell the whole or a part. Each that tells of a host tells all of its switches; what else only
    /// one tells is taken; who tells neither speeds nor more than one link says nothing of widths. The order does not
    /// matter, but for which of two contradicting ones is named first.
    pub fn merged(fabrics: impl Iterator<Item = Fabric>) -> Result<Topology, TopologyError> {
        let mut merge = Merge::default();
        for fabric in fabrics {
            merge.add(&fabric)?;
        }
        Topology::of(merge.end())
    }

    fn of(fabric: Fabric) -> Result<Topology, TopologyError> {
        let Fabric { mut switches, hosts: mut ports, mut links, mut racks } = fabric;
        if switches.is_empty() {
            return Err(TopologyError::Empty);
        }
        switches.sort_by(|one, other| by_name(&one.name, &other.name));
        ports.sort_by(|one, other| {
            by_name(&one.host, &other.host).then_with(|| by_name(&one.switch, &other.switch))
        });
        links.sort_by(|one, other| by_name(&one.a, &other.a).then_with(|| by_name(&one.b, &other.b)));
        racks.sort_by(|one, other| by_name(&one.name, &other.name));
        racks.iter_mut().for_each(|rack| rack.hosts.sort_by(|one, other| by_name(one, other)));
        let leaf_names = leaf_names(&ports);
        let (islands, island_of) = islands(&switches, &links, &leaf_names);
        let leaf = |name: &String| Leaf { name: name.clone(), hosts: Vec::new(), island: island_of[name] };
        let mut leaves: Vec<Leaf> = leaf_names.iter().map(leaf).collect();
        let leaf_of = homes(&ports, &mut leaves);
        let shorts = shorts(leaf_of.keys());
        let in_racks =
            racks.iter().enumerate().flat_map(|(at, rack)| rack.hosts.iter().map(move |h| (h.clone(), at)));
        let rack_of = in_racks.collect();
        Ok(Topology { switches, ports, links, racks, leaves, islands, island_of, leaf_of, shorts, rack_of })
    }

    /// The name under which a host is known here: the same, or one that is the same up to the first dot of either, if only
    /// one is.
    pub fn known_host(&self, host: &str) -> Option<&str> {
        if let Some((known, _)) = self.leaf_of.get_key_value(host) {
            return Some(known);
        }
        self.shorts.get(short(host))?.as_deref()
    }

    /// The leaf switch that a host belongs to.
    pub fn leaf_of(&self, host: &str) -> Option<&str> {
        let at = self.leaf_of[self.known_host(host)?];
        Some(&self.leaves[at].name)
    }

    pub fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }

    fn leaf(&self, name: &str) -> Option<&Leaf> {
        self.leaves.iter().find(|leaf| leaf.name == name)
    }

    /// Hosts that belong to a leaf; each host belongs to one. None for other switches.
    pub fn hosts_of(&self, leaf: &str) -> &[String] {
        self.leaf(leaf).map_or(&[], |leaf| &leaf.hosts)
    }

    /// All hosts, by name.
    pub fn hosts(&self) -> Vec<&str> {
        let mut hosts: Vec<&str> = self.leaf_of.keys().map(String::as_str).collect();
        hosts.sort_by(|one, other| by_name(one, other));
        hosts
    }

    /// Names of the leaves of each island; islands by their first leaf.
    pub fn islands(&self) -> &[Vec<String>] {
        &self.islands
    }

    /// The place in [`Self::islands`] of the island of a leaf, or of another switch below the highest level.
    pub fn island_of(&self, switch: &str) -> Option<usize> {
        self.island_of.get(switch).copied()
    }

    /// By name.
    pub fn racks(&self) -> &[Rack] {
        &self.racks
    }

    pub fn rack_of(&self, host: &str) -> Option<&str> {
        let at = self.rack_of.get(host).or_else(|| self.rack_of.get(self.known_host(host)?))?;
        Some(&self.racks[*at].name)
    }

    /// All switches, by name.
    pub fn switches(&self) -> &[Switch] {
        &self.switches
    }

    /// The highest level of a switch.
    pub fn levels(&self) -> u32 {
        self.switches.iter().map(|switch| switch.level).max().unwrap_or(1)
    }

    /// Connections of hosts, by host and switch.
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// Connections of one host, by switch.
    pub fn ports_of(&self, host: &str) -> &[Port] {
        let first = self.ports.partition_point(|port| by_name(&port.host, host).is_lt());
        let count = self.ports[first..].iter().take_while(|port| port.host == host).count();
        &self.ports[first..first + count]
    }

    /// Connections of switches.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// Between a leaf and other switches, all together; none where one of the links has no known speed.
    pub fn uplink_gigabits(&self, leaf: &str) -> Option<f64> {
        let mut links = self.links.iter().filter(|link| link.a == leaf || link.b == leaf);
        links.try_fold(0.0, |all, link| Some(all + f64::from(link.count) * link.gigabits_per_second?))
    }

    /// Between a leaf and all hosts that hang on it; none where one of the links has no known speed.
    pub fn host_gigabits(&self, leaf: &str) -> Option<f64> {
        let mut ports = self.ports.iter().filter(|port| port.switch == leaf);
        ports.try_fold(0.0, |all, port| Some(all + f64::from(port.count) * port.gigabits_per_second?))
    }

    /// How many times as much the hosts of a leaf can send as it can send on; none where that is not known, or where
    /// nothing leads on.
    pub fn oversubscription(&self, leaf: &str) -> Option<f64> {
        let up = self.uplink_gigabits(leaf).filter(|up| *up > 0.0)?;
        Some(self.host_gigabits(leaf)? / up)
    }
}

/// Switches that hosts hang on, by name.
fn leaf_names(ports: &[Port]) -> Vec<String> {
    let names: BTreeSet<&String> = ports.iter().map(|port| &port.switch).collect();
    let mut names: Vec<String> = names.into_iter().cloned().collect();
    names.sort_by(|one, other| by_name(one, other));
    names
}

/// Gives each host to the first of its leaves; ports are by host and switch.
fn homes(ports: &[Port], leaves: &mut [Leaf]) -> BTreeMap<String, usize> {
    let places: BTreeMap<String, usize> =
        leaves.iter().enumerate().map(|(at, leaf)| (leaf.name.clone(), at)).collect();
    let mut homes = BTreeMap::new();
    for port in ports {
        if !homes.contains_key(&port.host) {
            let at = places[&port.switch];
            leaves[at].hosts.push(port.host.clone());
            homes.insert(port.host.clone(), at);
        }
    }
    homes
}

fn shorts<'a>(hosts: impl Iterator<Item = &'a String>) -> BTreeMap<String, Option<String>> {
    let mut shorts: BTreeMap<String, Option<String>> = BTreeMap::new();
    for host in hosts {
        shorts
            .entry(short(host).into())
            .and_modify(|known| *known = None)
            .or_insert_with(|| Some(host.clone()));
    }
    shorts
}

/// Leaves of each island, and the island of each switch below the highest level.
fn islands(
    switches: &[Switch],
    links: &[Link],
    leaves: &[String],
) -> (Vec<Vec<String>>, BTreeMap<String, usize>) {
    let top = switches.iter().map(|switch| switch.level).max().unwrap_or(1);
    let highest = if top >= ISLAND_LEVELS_MIN { top } else { u32::MAX };
    let below: BTreeSet<&str> =
        switches.iter().filter(|switch| switch.level < highest).map(|switch| switch.name.as_str()).collect();
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Link { a, b, .. } in links.iter().filter(|link| below.contains(&*link.a) && below.contains(&*link.b))
    {
        next.entry(a).or_default().push(b);
        next.entry(b).or_default().push(a);
    }
    let (mut islands, mut island_of) = (Vec::<Vec<String>>::new(), BTreeMap::new());
    for leaf in leaves {
        if !island_of.contains_key(leaf) {
            let mut stack = vec![leaf.as_str()];
            while let Some(switch) = stack.pop() {
                if island_of.insert(switch.to_string(), islands.len()).is_none() {
                    stack.extend(next.get(switch).into_iter().flatten());
                }
            }
            islands.push(Vec::new());
        }
        islands[island_of[leaf]].push(leaf.clone());
    }
    if top < ISLAND_LEVELS_MIN {
        island_of.retain(|switch, _| leaves.contains(switch));
    }
    (islands, island_of)
}

#[cfg(test)]
mod tests;
