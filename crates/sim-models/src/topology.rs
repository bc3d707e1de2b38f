//! Switches between nodes: leaf switches that nodes hang on, and those between them (`docs/formats/17-topology.md` has such
//! networks as files). Every message goes the shortest way; of several, which one is drawn from who sends what to whom, so
//! that all messages together are spread evenly.

use crate::kept::are_small;
use crate::message::{Kind, Message, Op};
use crate::network::{Link, per_byte};
use crate::server::eager;
use crate::system::{Pfs, Undo};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use tidepool_sim::{ProcessId, Time, Turn, saved};

/// Most switches, and most nodes.
pub const SWITCHES_MAX: usize = 4096;
pub const NODES_MAX: usize = 1 << 20;

/// A network as it is described.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Description {
    pub switches: Vec<String>,
    /// Nodes in the order in which servers and ranks get them, the switch of each, and bytes/s each way of all its links to
    /// it; 0: not known.
    pub nodes: Vec<(String, String, u64)>,
    /// Two switches, and bytes/s each way of all links between them; 0: unlimited.
    pub links: Vec<(String, String, u64)>,
}

/// Why something is no network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TopologyError {
    TooLarge,
    NoNodes,
    NoSuchSwitch(String),
    /// A node hangs on one that is off.
    Off(String),
    NoWay(String, String),
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TopologyError::TooLarge => write!(f, "at most {SWITCHES_MAX} switches and {NODES_MAX} nodes"),
            TopologyError::NoNodes => f.write_str("no node hangs on any switch"),
            TopologyError::NoSuchSwitch(name) => write!(f, "there is no switch '{name}'"),
            TopologyError::Off(name) => write!(f, "switch '{name}' has nodes and cannot be off"),
            TopologyError::NoWay(from, to) => write!(f, "no way leads from switch '{from}' to '{to}'"),
        }
    }
}

impl std::error::Error for TopologyError {}

/// A network with its ways.
#[derive(Clone, PartialEq, Debug)]
pub struct Topology {
    /// Of each node.
    leaf_of: Vec<u32>,
    /// Ns of a byte on the links of each node; 0: not known.
    node_per_byte: Vec<f64>,
    /// From each switch: to which, and ns of a byte.
    links: Vec<Vec<(u32, f64)>>,
    /// For each leaf that is gone to: from each switch, the links that are on a shortest way.
    ways: BTreeMap<u32, Vec<Vec<u32>>>,
}

impl Topology {
    /// Without the switches that are off.
    pub fn new(all: &Description, off: &[String]) -> Result<Topology, TopologyError> {
        if all.switches.len() > SWITCHES_MAX || all.nodes.len() > NODES_MAX {
            return Err(TopologyError::TooLarge);
        }
        let numbers: BTreeMap<&str, u32> = all.switches.iter().map(String::as_str).zip(0..).collect();
        let number = |name: &str| {
            numbers.get(name).copied().ok_or_else(|| TopologyError::NoSuchSwitch(name.to_string()))
        };
        let off = off.iter().map(|name| number(name)).collect::<Result<Vec<u32>, _>>()?;
        let mut links = vec![Vec::new(); all.switches.len()];
        for (a, b, bandwidth) in &all.links {
            let (a, b) = (number(a)?, number(b)?);
            if !off.contains(&a) && !off.contains(&b) {
                links[a as usize].push((b, per_byte(*bandwidth)));
                links[b as usize].push((a, per_byte(*bandwidth)));
            }
        }
        let leaf_of =
            all.nodes.iter().map(|(_, switch, _)| number(switch)).collect::<Result<Vec<u32>, _>>()?;
        if let Some(leaf) = leaf_of.iter().find(|leaf| off.contains(leaf)) {
            return Err(TopologyError::Off(all.switches[*leaf as usize].clone()));
        }
        let node_per_byte = all.nodes.iter().map(|(_, _, bandwidth)| per_byte(*bandwidth)).collect();
        let mut ways = BTreeMap::new();
        for leaf in &leaf_of {
            ways.entry(*leaf).or_insert_with(|| ways_to(*leaf, &links));
        }
        let no_way = |(from, to): (u32, u32)| {
            let name = |switch: u32| all.switches[switch as usize].clone();
            TopologyError::NoWay(name(from), name(to))
        };
        let leaves: Vec<u32> = ways.keys().copied().collect();
        let pairs = leaves.iter().flat_map(|from| leaves.iter().map(move |to| (*from, *to)));
        let mut pairs = pairs.filter(|(from, to)| from != to);
        match pairs.find(|(from, to)| ways[to][*from as usize].is_empty()) {
            _ if leaf_of.is_empty() => Err(TopologyError::NoNodes),
            Some(pair) => Err(no_way(pair)),
            None => Ok(Topology { leaf_of, node_per_byte, links, ways }),
        }
    }

    pub fn switches(&self) -> u32 {
        self.links.len() as u32
    }
}

/// From each switch, the links that bring one nearer to another switch.
fn ways_to(to: u32, links: &[Vec<(u32, f64)>]) -> Vec<Vec<u32>> {
    let mut far = vec![u32::MAX; links.len()];
    far[to as usize] = 0;
    let mut next = VecDeque::from([to]);
    while let Some(at) = next.pop_front() {
        for (neighbour, _) in &links[at as usize] {
            if far[*neighbour as usize] == u32::MAX {
                far[*neighbour as usize] = far[at as usize] + 1;
                next.push_back(*neighbour);
            }
        }
    }
    let nearer = |(at, links): (usize, &Vec<(u32, f64)>)| {
        let all = (0..).zip(links).filter(|(_, link)| far[at] != u32::MAX && far[link.0 as usize] < far[at]);
        all.map(|(number, _)| number).collect()
    };
    links.iter().enumerate().map(nearer).collect()
}

/// A network, and who is where in it.
#[derive(Clone, PartialEq, Debug)]
pub struct Wires {
    topology: Topology,
    /// Leaf switch of each process.
    leaf_of: Vec<u32>,
    /// Ns of a byte on the link of each process; 0: unlimited.
    per_byte: Vec<f64>,
    /// The process of switch 0.
    first: u32,
}

impl Wires {
    /// Servers have the first nodes, in their order; ranks those behind, in turn, or, `together`, all nodes in turn. Who comes
    /// when there is no other node begins anew. Servers are processes, each with its link's ns of a byte where that is said;
    /// ranks processes, each with its place in the turn; all have the same where that is said. Else the topology tells.
    pub(crate) fn new(
        topology: Topology,
        together: bool,
        processes: u32,
        servers: &[(u32, Option<f64>)],
        (ranks, rank_per_byte): (&[(u32, u32)], Option<f64>),
    ) -> Wires {
        let nodes = topology.leaf_of.len();
        let behind = if together || nodes <= servers.len() { 0 } else { servers.len() };
        let (mut leaf_of, mut per_byte) = (vec![0; processes as usize], vec![0.0; processes as usize]);
        let mut put = |process: u32, node: usize, own: Option<f64>| {
            leaf_of[process as usize] = topology.leaf_of[node];
            per_byte[process as usize] = own.unwrap_or(topology.node_per_byte[node]);
        };
        for (number, (process, own)) in servers.iter().enumerate() {
            put(*process, number % nodes, *own);
        }
        for (process, place) in ranks {
            put(*process, behind + *place as usize % (nodes - behind), rank_per_byte);
        }
        Wires { topology, leaf_of, per_byte, first: processes }
    }

    /// Of a process's link, ns of a byte.
    #[inline]
    pub(crate) fn per_byte(&self, process: u32) -> f64 {
        self.per_byte[process as usize]
    }

    /// The process of the switch that a process hangs on.
    pub(crate) fn switch_of(&self, process: u32) -> u32 {
        self.first + self.leaf_of[process as usize]
    }

    pub(crate) fn links_of(&self, switch: u32) -> usize {
        self.topology.links[switch as usize].len()
    }
}

/// A switch: when its links are free.
#[derive(Clone, PartialEq, Debug)]
pub struct Switch {
    pub number: u32,
    links: Vec<Link>,
    /// That it has sent to other switches.
    pub bytes: u64,
}

saved!(struct Switch { number, links, bytes });

/// A link as it was, and the bytes.
pub struct Change {
    link: u32,
    was: Link,
    bytes: u64,
}

impl Switch {
    pub fn new(number: u32, links: usize) -> Switch {
        Switch { number, links: vec![Link::default(); links], bytes: 0 }
    }

    /// Whether this switch can have come to it, as far as going on from it needs it: [`kept`](crate::kept).
    pub(crate) fn fits(&self, pfs: &Pfs, number: u32) -> bool {
        self.number == number
            && pfs.wires.as_ref().is_some_and(|wires| wires.links_of(number) == self.links.len())
            && self.links.iter().all(|link| are_small(&[link.free]))
            && are_small(&[self.bytes])
    }

    pub fn undo(&mut self, change: Change) {
        self.links[change.link as usize] = change.was;
        self.bytes = change.bytes;
    }

    pub fn handle(&mut self, pfs: &Pfs, message: &Message, turn: &mut Turn<'_, Pfs>) {
        let Some(wires) = &pfs.wires else { return turn.fail("a switch in a network without any") };
        let (to, latency, now) = (goal(message), pfs.network.latency, turn.now().0);
        let leaf = wires.leaf_of[to as usize];
        if leaf == self.number {
            let end = message.end.saturating_add(latency.0);
            return turn.send(ProcessId(to), latency, Message { end, ..message.clone() });
        }
        let ways = wires.topology.ways.get(&leaf).map_or(&[][..], |from| &from[self.number as usize]);
        let Some(link) = ways.get(drawn(message) as usize % ways.len().max(1)).copied() else {
            return turn.fail("a switch that no way leads on from");
        };
        let (was, bytes) = (self.links[link as usize], self.bytes);
        turn.keep(|| Undo::Switch(Change { link, was, bytes }));
        let (next, per_byte) = wires.topology.links[self.number as usize][link as usize];
        let bytes = bytes_of(pfs, message);
        self.bytes += bytes;
        let (begin, tail) = self.links[link as usize].send(now, bytes, per_byte);
        let end = tail.max(message.end).saturating_add(latency.0);
        let after = Time(begin - now).plus(latency);
        turn.send(ProcessId(wires.first + next), after, Message { end, ..message.clone() });
    }
}

/// Whom a message is for.
fn goal(message: &Message) -> u32 {
    match message.kind {
        Kind::Ack | Kind::Response | Kind::Redirect => message.sender,
        _ => message.receiver,
    }
}

/// All of it on a link.
fn bytes_of(pfs: &Pfs, message: &Message) -> u64 {
    let has_data = match message.kind {
        Kind::Request => eager(pfs, message),
        Kind::Data => true,
        Kind::Response => message.op == Op::Read,
        _ => false,
    };
    u64::from(pfs.network.header) + if has_data { message.length.into() } else { 0 }
}

/// The same for the same message at every switch.
fn drawn(message: &Message) -> u64 {
    let who = u64::from(message.sender) << 32 | u64::from(message.receiver);
    let what = u64::from(message.request) << 40 ^ message.offset ^ (message.kind as u64) << 56;
    let mut z = who.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ what;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) >> 1
}
