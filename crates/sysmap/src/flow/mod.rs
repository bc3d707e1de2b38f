//! A model, nothing measured: how fast nodes write to a pool over a network, each at its max-min fair rate.
//!
//! - A writer is one flow: its data go to the nodes of its pool in equal shares, so it is as fast as the slowest of its ways.
//! - Traffic goes by the shortest ways: node, leaf switch, core, leaf switch, node; to the own node by none.
//! - Each direction of a link has its whole speed. Each node's device takes so many bytes a second.
//! - Left out: protocols, metadata, what processors and memory can do, anything that changes with time.

mod fair;
mod route;

pub use fair::{Rates, Uses, max_min};
pub use route::Routing;

use crate::system::clip;
use crate::topology::Topology;
use route::{Hop, Shares, Ways};
use serde::Serialize;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// What every output says of its figures.
pub const LABEL: &str = "model, not measured";
/// Most pairs of a writer and a node that it writes to: their memory is some 50 bytes each.
const PAIRS_MAX: usize = 1 << 22;
const BYTES_PER_GIGABIT: f64 = 1e9 / 8.0;

/// Which nodes keep the data of a writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pools {
    /// Any.
    #[default]
    None,
    /// Those at the writer's leaf switch.
    Leaf,
}

/// What is to be modelled.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Scenario {
    /// Nodes that keep data; all hosts of the network when there are none.
    pub nodes: Vec<String>,
    /// Nodes that write; those that keep data when there are none.
    pub writers: Vec<String>,
    /// Switches that are off.
    pub off: Vec<String>,
    pub pools: Pools,
    /// To so many nodes each writer's data go, in turn; to all of its pool without, or when there are no more.
    pub stripe: Option<usize>,
    /// Bytes that a node's device takes in a second.
    pub device_write: f64,
    /// Of links of which nobody tells the speed.
    pub gigabits_per_second: Option<f64>,
    pub routing: Routing,
}

/// Why there is nothing to model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowError {
    UnknownHost(String),
    UnknownSwitch(String),
    /// All switches of a host are off.
    Off(String),
    /// Of what no speed is known.
    NoSpeed(String),
    /// No way leads from one leaf to another.
    NoWay(String, String),
    /// No node keeps data at the leaf of a writer.
    NoPool(String),
    NoNodes,
    BadFigure(&'static str),
    TooLarge,
}

impl std::fmt::Display for FlowError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FlowError::UnknownHost(host) => write!(f, "no switch has a host '{}'", clip(host)),
            FlowError::UnknownSwitch(name) => write!(f, "there is no switch '{}'", clip(name)),
            FlowError::Off(host) => write!(f, "host '{}' has no switch that is on", clip(host)),
            FlowError::NoSpeed(what) => {
                write!(f, "the speed of {what} is not known; say --gigabits-per-second for such links")
            }
            FlowError::NoWay(from, to) => {
                write!(f, "no way leads from switch '{}' to switch '{}'", clip(from), clip(to))
            }
            FlowError::NoPool(leaf) => write!(f, "no node at switch '{}' keeps data", clip(leaf)),
            FlowError::NoNodes => f.write_str("there are no nodes"),
            FlowError::BadFigure(what) => write!(f, "{what} has to be more than 0"),
            FlowError::TooLarge => {
                write!(f, "more than {PAIRS_MAX} pairs of a writer and a node; say --stripe")
            }
        }
    }
}

impl std::error::Error for FlowError {}

/// What a link is, and in which direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// A node's storage.
    Device,
    /// From a node to its switch.
    NodeUp,
    NodeDown,
    /// From a switch to one of a higher level, or of the same.
    CoreUp,
    CoreDown,
}

/// All of them.
pub const CLASSES: [Class; 5] =
    [Class::Device, Class::NodeUp, Class::NodeDown, Class::CoreUp, Class::CoreDown];

impl Class {
    pub fn word(self) -> &'static str {
        match self {
            Class::Device => "device",
            Class::NodeUp => "node link up",
            Class::NodeDown => "node link down",
            Class::CoreUp => "core up",
            Class::CoreDown => "core down",
        }
    }

    fn bottleneck(self) -> Bottleneck {
        match self {
            Class::Device => Bottleneck::Device,
            Class::NodeUp | Class::NodeDown => Bottleneck::NodeLink,
            Class::CoreUp | Class::CoreDown => Bottleneck::Core,
        }
    }
}

/// What holds writers back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bottleneck {
    Device,
    NodeLink,
    /// Links between switches.
    Core,
}

impl Bottleneck {
    pub fn word(self) -> &'static str {
        match self {
            Bottleneck::Device => "device",
            Bottleneck::NodeLink => "node link",
            Bottleneck::Core => "core",
        }
    }
}

/// All links of a class.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClassUse {
    pub class: Class,
    pub links: usize,
    /// Bytes a second of all together.
    #[serde(rename = "capacity_bytes_per_second")]
    pub capacity: f64,
    #[serde(rename = "used_bytes_per_second")]
    pub used: f64,
    /// `used` of `capacity`.
    pub utilisation: f64,
    /// Of the fullest link.
    pub utilisation_max: f64,
}

/// The least and the most of some figures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Range {
    pub min: f64,
    pub max: f64,
}

impl Range {
    fn of(figures: impl Iterator<Item = f64>) -> Range {
        let (min, max) = figures.fold((f64::INFINITY, 0.0), |(min, max), x| (x.min(min), x.max(max)));
        Range { min, max }
    }
}

/// What the model says. Rates are bytes a second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    pub label: &'static str,
    pub nodes: usize,
    pub writers: usize,
    #[serde(rename = "total_bytes_per_second")]
    pub total: f64,
    /// Of `total`: how much of what all devices can take.
    pub of_devices: f64,
    /// What each writer writes.
    #[serde(rename = "written_bytes_per_second")]
    pub written: Range,
    /// What each node keeps.
    #[serde(rename = "kept_bytes_per_second")]
    pub kept: Range,
    /// What holds most writers back.
    pub bottleneck: Bottleneck,
    /// How many writers each holds back.
    pub held_back: BTreeMap<Bottleneck, usize>,
    pub classes: Vec<ClassUse>,
}

/// Models a scenario.
pub fn run(topology: &Topology, scenario: &Scenario) -> Result<Outcome, FlowError> {
    if !(scenario.device_write > 0.0 && scenario.device_write.is_finite()) {
        return Err(FlowError::BadFigure("what a device takes"));
    }
    if scenario.gigabits_per_second.is_some_and(|speed| !(speed > 0.0 && speed.is_finite())) {
        return Err(FlowError::BadFigure("the speed of links"));
    }
    if scenario.stripe == Some(0) {
        return Err(FlowError::BadFigure("the stripe"));
    }
    let net = Net::new(topology, scenario)?;
    let flows = net.flows(scenario)?;
    let rates = max_min(&net.capacities, &flows);
    Ok(net.outcome(&flows, &rates))
}

/// A node, its links and its device by their places among all links.
struct Node {
    switch: usize,
    up: usize,
    down: usize,
    device: Option<usize>,
}

/// All that has a capacity.
struct Net {
    switches: Vec<String>,
    hops: Vec<Vec<Hop>>,
    capacities: Vec<f64>,
    classes: Vec<Class>,
    nodes: Vec<Node>,
    /// Those that keep data, and those that write, by their places in `nodes`.
    keepers: Vec<usize>,
    writers: Vec<usize>,
}

impl Net {
    fn new(topology: &Topology, scenario: &Scenario) -> Result<Net, FlowError> {
        let off = off(topology, scenario)?;
        let on = topology.switches().iter().filter(|switch| !off.contains(switch.name.as_str()));
        let levels: BTreeMap<&str, u32> = on.map(|switch| (switch.name.as_str(), switch.level)).collect();
        let switches: Vec<String> = levels.keys().map(|name| name.to_string()).collect();
        let mut net = Net {
            hops: switches.iter().map(|_| Vec::new()).collect(),
            switches,
            capacities: Vec::new(),
            classes: Vec::new(),
            nodes: Vec::new(),
            keepers: Vec::new(),
            writers: Vec::new(),
        };
        net.add_nodes(topology, scenario)?;
        net.add_links(topology, scenario, &levels)?;
        Ok(net)
    }

    fn add(&mut self, class: Class, capacity: f64) -> usize {
        self.capacities.push(capacity);
        self.classes.push(class);
        self.capacities.len() - 1
    }

    fn place(&self, switch: &str) -> Option<usize> {
        self.switches.binary_search_by(|name| name.as_str().cmp(switch)).ok()
    }

    fn add_nodes(&mut self, topology: &Topology, scenario: &Scenario) -> Result<(), FlowError> {
        let keepers = match scenario.nodes.is_empty() {
            true => topology.hosts(),
            false => known(topology, &scenario.nodes)?,
        };
        let writers = match scenario.writers.is_empty() {
            true => keepers.clone(),
            false => known(topology, &scenario.writers)?,
        };
        if keepers.is_empty() || writers.is_empty() {
            return Err(FlowError::NoNodes);
        }
        let mut places = BTreeMap::new();
        for host in &keepers {
            let device = Some(self.add(Class::Device, scenario.device_write));
            places.insert(*host, self.add_node(topology, scenario, host, device)?);
        }
        for host in &writers {
            if !places.contains_key(host) {
                places.insert(*host, self.add_node(topology, scenario, host, None)?);
            }
        }
        self.keepers = keepers.iter().map(|host| places[host]).collect();
        self.writers = writers.iter().map(|host| places[host]).collect();
        Ok(())
    }

    /// A node hangs on the first of its switches that is on.
    fn add_node(
        &mut self,
        topology: &Topology,
        scenario: &Scenario,
        host: &str,
        device: Option<usize>,
    ) -> Result<usize, FlowError> {
        let mut ports = topology.ports_of(host).iter();
        let port = ports.find(|port| self.place(&port.switch).is_some());
        let port = port.ok_or_else(|| FlowError::Off(host.into()))?;
        let capacity = capacity(port.count, port.gigabits_per_second, scenario)
            .ok_or_else(|| FlowError::NoSpeed(format!("the link of host '{}'", clip(host))))?;
        let switch = self.place(&port.switch).ok_or_else(|| FlowError::Off(host.into()))?;
        let (up, down) = (self.add(Class::NodeUp, capacity), self.add(Class::NodeDown, capacity));
        self.nodes.push(Node { switch, up, down, device });
        Ok(self.nodes.len() - 1)
    }

    fn add_links(
        &mut self,
        topology: &Topology,
        scenario: &Scenario,
        levels: &BTreeMap<&str, u32>,
    ) -> Result<(), FlowError> {
        for link in topology.links() {
            let (Some(a), Some(b)) = (self.place(&link.a), self.place(&link.b)) else { continue };
            let capacity = capacity(link.count, link.gigabits_per_second, scenario).ok_or_else(|| {
                FlowError::NoSpeed(format!(
                    "the link of switches '{}' and '{}'",
                    clip(&link.a),
                    clip(&link.b)
                ))
            })?;
            let (low, high) = if levels[&*link.a] <= levels[&*link.b] { (a, b) } else { (b, a) };
            let (up, down) = (self.add(Class::CoreUp, capacity), self.add(Class::CoreDown, capacity));
            self.hops[low].push(Hop { to: high, link: up, count: link.count });
            self.hops[high].push(Hop { to: low, link: down, count: link.count });
        }
        Ok(())
    }

    /// The nodes that keep the data of each writer.
    fn targets(&self, scenario: &Scenario) -> Result<Vec<Vec<usize>>, FlowError> {
        let mut pools: BTreeMap<Option<usize>, Vec<usize>> = BTreeMap::new();
        let pool = |node: usize| (scenario.pools == Pools::Leaf).then_some(self.nodes[node].switch);
        for &keeper in &self.keepers {
            pools.entry(pool(keeper)).or_default().push(keeper);
        }
        let (mut turns, mut pairs) = (BTreeMap::<Option<usize>, usize>::new(), 0);
        let mut all = Vec::with_capacity(self.writers.len());
        for &writer in &self.writers {
            let leaf = || FlowError::NoPool(self.switches[self.nodes[writer].switch].clone());
            let members = pools.get(&pool(writer)).ok_or_else(leaf)?;
            let width = scenario.stripe.unwrap_or(members.len()).min(members.len());
            pairs += width;
            if pairs > PAIRS_MAX {
                return Err(FlowError::TooLarge);
            }
            let turn = turns.entry(pool(writer)).or_default();
            all.push((0..width).map(|n| members[(*turn + n) % members.len()]).collect());
            *turn = (*turn + width) % members.len();
        }
        Ok(all)
    }

    fn flows(&self, scenario: &Scenario) -> Result<Vec<Uses>, FlowError> {
        let mut ways =
            AllWays { net: self, ways: BTreeMap::new(), evenly: BTreeMap::new(), hashed: Shares::new() };
        // Of the whole net: how much of the flow at hand goes over each link.
        let mut load = vec![0.0; self.capacities.len()];
        let mut flows = Vec::with_capacity(self.writers.len());
        for (&writer, targets) in self.writers.iter().zip(self.targets(scenario)?) {
            let share = 1.0 / targets.len() as f64;
            let mut touched = BTreeSet::new();
            let mut put = |link: usize, part: f64| {
                load[link] += part;
                touched.insert(link);
            };
            for target in targets {
                let (from, to) = (&self.nodes[writer], &self.nodes[target]);
                to.device.into_iter().for_each(|device| put(device, share));
                if writer == target {
                    continue;
                }
                put(from.up, share);
                put(to.down, share);
                if from.switch != to.switch {
                    let shares = ways.between(writer, target, scenario.routing)?;
                    shares.iter().for_each(|(link, part)| put(*link, share * part));
                }
            }
            flows.push(touched.into_iter().map(|link| (link, std::mem::take(&mut load[link]))).collect());
        }
        Ok(flows)
    }

    fn outcome(&self, flows: &[Uses], found: &Rates) -> Outcome {
        let mut used = vec![0.0; self.capacities.len()];
        for (uses, rate) in flows.iter().zip(&found.rates) {
            uses.iter().for_each(|(link, share)| used[*link] += rate * share);
        }
        let mut held_back = BTreeMap::new();
        for link in found.limits.iter().flatten() {
            *held_back.entry(self.classes[*link].bottleneck()).or_default() += 1;
        }
        // Of those that hold back equally many the first.
        let most = held_back.iter().max_by_key(|(what, count)| (**count, std::cmp::Reverse(**what)));
        let total: f64 = found.rates.iter().sum();
        let devices = || self.nodes.iter().filter_map(|node| node.device);
        Outcome {
            label: LABEL,
            nodes: self.keepers.len(),
            writers: self.writers.len(),
            total,
            of_devices: total / devices().map(|device| self.capacities[device]).sum::<f64>(),
            written: Range::of(found.rates.iter().copied()),
            kept: Range::of(devices().map(|device| used[device])),
            bottleneck: most.map_or(Bottleneck::Device, |(what, _)| *what),
            held_back: held_back.clone(),
            classes: self.class_uses(&used),
        }
    }

    fn class_uses(&self, used: &[f64]) -> Vec<ClassUse> {
        let mut uses: BTreeMap<Class, ClassUse> = BTreeMap::new();
        for ((&class, &capacity), &used) in self.classes.iter().zip(&self.capacities).zip(used) {
            let none = ClassUse {
                class,
                links: 0,
                capacity: 0.0,
                used: 0.0,
                utilisation: 0.0,
                utilisation_max: 0.0,
            };
            let all = uses.entry(class).or_insert(none);
            all.links += 1;
            all.capacity += capacity;
            all.used += used;
            all.utilisation_max = all.utilisation_max.max(used / capacity);
        }
        let ended = |all: ClassUse| ClassUse { utilisation: all.used / all.capacity, ..all };
        uses.into_values().map(ended).collect()
    }
}

/// Ways that were asked for before.
struct AllWays<'a> {
    net: &'a Net,
    /// By the switch they lead to.
    ways: BTreeMap<usize, Ways<'a>>,
    evenly: BTreeMap<(usize, usize), Shares>,
    /// The way that was hashed last.
    hashed: Shares,
}

impl AllWays<'_> {
    fn between(&mut self, writer: usize, target: usize, routing: Routing) -> Result<&Shares, FlowError> {
        let (from, to) = (self.net.nodes[writer].switch, self.net.nodes[target].switch);
        let ways = self.ways.entry(to).or_insert_with(|| Ways::to(to, &self.net.hops));
        let name = |switch: usize| self.net.switches[switch].clone();
        let none = || FlowError::NoWay(name(from), name(to));
        match routing {
            Routing::Even => Ok(match self.evenly.entry((from, to)) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(ways.evenly(from).ok_or_else(none)?),
            }),
            Routing::Hashed => {
                let seed = ((writer as u64) << 32) ^ target as u64;
                self.hashed = ways.hashed(from, seed).ok_or_else(none)?;
                Ok(&self.hashed)
            }
        }
    }
}

fn capacity(count: u32, known: Option<f64>, scenario: &Scenario) -> Option<f64> {
    Some(f64::from(count) * known.or(scenario.gigabits_per_second)? * BYTES_PER_GIGABIT)
}

fn off<'a>(topology: &Topology, scenario: &'a Scenario) -> Result<BTreeSet<&'a str>, FlowError> {
    let is_there = |name: &str| topology.switches().iter().any(|switch| switch.name == name);
    match scenario.off.iter().find(|name| !is_there(name)) {
        Some(unknown) => Err(FlowError::UnknownSwitch(unknown.clone())),
        None => Ok(scenario.off.iter().map(String::as_str).collect()),
    }
}

/// Hosts by the names they have in the network, each once.
fn known<'a>(topology: &'a Topology, hosts: &[String]) -> Result<Vec<&'a str>, FlowError> {
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for host in hosts {
        let known = topology.known_host(host).ok_or_else(|| FlowError::UnknownHost(host.clone()))?;
        if seen.insert(known) {
            all.push(known);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
