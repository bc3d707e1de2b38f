//! What a pool costs the job: starting it, staging, stopping it (INVENTORY A17), and what limits the staging (A18).

use crate::{Basis, Facts, Job, Machine, Node, Place};
use serde::Serialize;
use tidepool_types::format_size;

/// To start, and again to stop, one daemon among others on one machine (`bench/README.md`: 64 in 0.25 s on two cores).
const DAEMON_SECONDS: f64 = 0.004;
/// On top of it for each pool: connecting, mounting.
const POOL_SECONDS: f64 = 0.03;
/// One level of ssh, or one srun. Sites differ; nobody measured it here.
const LAUNCH_SECONDS: f64 = 1.0;
/// What of an interface's speed reaches files (`bench/README.md`: 0.97 to 1.0 of iperf3 on 1 Gbit/s).
const NETWORK_SHARE: f64 = 0.9;
/// Kinds of disks with what they typically write and read, in bytes per second: NVMe as S0 Fig. 2a assumes it, SATA's
/// limit for SSDs.
const TYPICAL: [(&str, f64, f64); 3] =
    [("nvme", 2000e6, 3500e6), ("ssd", 500e6, 550e6), ("hdd", 150e6, 150e6)];

/// How daemons are started on nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Launcher {
    /// They are on this machine.
    Here,
    /// As a tree with so many branches; 0: all from here.
    Ssh {
        fan_out: usize,
    },
    Slurm,
    /// Through the stagers of the nodes, all from here.
    Stagers,
}

impl Launcher {
    /// Connections one after the other until the last of `nodes` is reached.
    fn levels(self, nodes: usize) -> u32 {
        match self {
            Launcher::Here => 0,
            Launcher::Slurm | Launcher::Stagers | Launcher::Ssh { fan_out: 0 } => 1,
            Launcher::Ssh { fan_out } => {
                let (mut reached, mut of_level, mut levels) = (0usize, 1usize, 0);
                while reached < nodes {
                    of_level = of_level.saturating_mul(fan_out);
                    reached = reached.saturating_add(of_level);
                    levels += 1;
                }
                levels
            }
        }
    }
}

/// Seconds, if they can be told.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    pub seconds: Option<f64>,
    pub why: String,
    pub basis: Basis,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bottleneck {
    Device,
    Network,
}

/// What staging cannot be faster than.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Limit {
    pub by: Bottleneck,
    pub bytes_per_second: f64,
    pub basis: Basis,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Costs {
    /// To start and to stop.
    pub start: Cost,
    pub stage_in: Cost,
    pub stage_out: Cost,
    /// Of the wall time, of all that can be told.
    pub share: Option<f64>,
    /// True when something cannot be told.
    pub partial: bool,
}

impl Costs {
    pub(crate) fn of(place: &Place, machine: &Machine, store: &str, nic: Option<&str>, job: &Job) -> Costs {
        let start = start(place, machine);
        let staging = |bytes: Option<u64>, writes: bool| staged(bytes, limit(place, store, nic, writes));
        let (stage_in, stage_out) = (staging(job.stage_in, true), staging(job.stage_out, false));
        let all = [&start, &stage_in, &stage_out].map(|cost| cost.seconds);
        let known: f64 = all.iter().flatten().sum();
        let wall = job.walltime.map(|time| time.as_secs_f64()).filter(|seconds| *seconds > 0.0);
        Costs {
            share: wall.map(|seconds| known / seconds),
            partial: all.iter().any(Option::is_none),
            start,
            stage_in,
            stage_out,
        }
    }

    /// Of all that can be told.
    pub fn seconds(&self) -> f64 {
        [&self.start, &self.stage_in, &self.stage_out].into_iter().filter_map(|cost| cost.seconds).sum()
    }
}

fn start(place: &Place, machine: &Machine) -> Cost {
    let levels = machine.launcher.levels(machine.nodes.len());
    let on_a_node = 2.0 * (POOL_SECONDS + DAEMON_SECONDS * place.daemons_each as f64);
    let launch = LAUNCH_SECONDS * f64::from(levels);
    let (basis, why) = match levels {
        0 => (Basis::Usual, format!("{} daemons on this machine", place.daemons())),
        1 => (Basis::Assumed, format!("all nodes at a time, {LAUNCH_SECONDS} s")),
        n => (Basis::Assumed, format!("{n} levels of ssh, {LAUNCH_SECONDS} s each")),
    };
    Cost { seconds: Some(on_a_node + launch), why, basis }
}

fn staged(bytes: Option<u64>, limit: Option<Limit>) -> Cost {
    let unknown = |why: &str| Cost { seconds: None, why: why.into(), basis: Basis::Assumed };
    match (bytes, limit) {
        (None, _) => unknown("how much is staged was not said"),
        (Some(0), _) => Cost { seconds: Some(0.0), why: "nothing is staged".into(), basis: Basis::Asked },
        (Some(_), None) => unknown("neither the stores' nor the network's speed is known"),
        (Some(bytes), Some(limit)) => {
            let by = match limit.by {
                Bottleneck::Device => "the stores take",
                Bottleneck::Network => "the network takes",
            };
            let rate = format_size(limit.bytes_per_second as u64);
            let why = format!(
                "{}, of which {by} {rate}/s; the shared file system may be slower",
                format_size(bytes)
            );
            Cost { seconds: Some(bytes as f64 / limit.bytes_per_second), why, basis: limit.basis }
        }
    }
}

impl Machine {
    /// To copy so many bytes on each node to a directory of its own storage, or from there, all nodes at a time.
    pub fn own_copy(&self, dir: &str, bytes_each: Option<u64>, writes: bool) -> Cost {
        let rates = self.nodes.iter().map(|node| device(node.facts.as_ref()?, dir, writes));
        let rates: Option<Vec<(f64, Basis)>> = rates.collect();
        let slowest = rates.and_then(|rates| rates.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)));
        let limit = |(bytes_per_second, basis)| Limit { by: Bottleneck::Device, bytes_per_second, basis };
        staged(bytes_each, slowest.map(limit))
    }

    /// Bytes that a directory of each node's own storage has room for, and the node where it is least; none when it is not
    /// known of every node.
    pub fn own_room(&self, dir: &str) -> Option<(u64, &str)> {
        let rooms = self.nodes.iter().map(|node| Some((crate::room::usable(node, dir)?, node.name.as_str())));
        rooms.collect::<Option<Vec<_>>>()?.into_iter().min()
    }
}

/// What the slower of stores and network allows; with one of the two unknown, the other.
fn limit(place: &Place, store: &str, nic: Option<&str>, writes: bool) -> Option<Limit> {
    let devices = place.of_all(|_, facts| device(facts, store, writes)).map(|rates| {
        // Every store gets the same share: the slowest one is the last to be done.
        let slowest = rates.iter().map(|(rate, _)| *rate).fold(f64::INFINITY, f64::min);
        let measured = rates.iter().all(|(_, basis)| *basis == Basis::Measured);
        let basis = if measured { Basis::Measured } else { Basis::Assumed };
        Limit { by: Bottleneck::Device, bytes_per_second: slowest * rates.len() as f64, basis }
    });
    // Staging goes through the first node; what belongs to it does not go over the network.
    let network = (place.nodes.len() > 1).then(|| network(&place.nodes[0], nic)).flatten().map(|limit| {
        let elsewhere = 1.0 - 1.0 / place.nodes.len() as f64;
        Limit { bytes_per_second: limit.bytes_per_second / elsewhere, ..limit }
    });
    [devices, network].into_iter().flatten().min_by(|a, b| a.bytes_per_second.total_cmp(&b.bytes_per_second))
}

fn device(facts: &Facts, store: &str, writes: bool) -> Option<(f64, Basis)> {
    if let Some(rate) = facts.rate_of(store) {
        let spread = if writes { rate.write } else { rate.read };
        return Some((spread.median, Basis::Measured));
    }
    let kind = facts.filesystem_of(store)?.disk_kind.as_deref()?;
    let (_, write, read) = TYPICAL.iter().find(|(known, ..)| *known == kind)?;
    Some((if writes { *write } else { *read }, Basis::Assumed))
}

fn network(node: &Node, nic: Option<&str>) -> Option<Limit> {
    let facts = node.facts.as_ref()?;
    let limit = |bytes_per_second, basis| Limit { by: Bottleneck::Network, bytes_per_second, basis };
    let measured = facts.peers.iter().map(|peer| f64::min(peer.send.median, peer.receive.median));
    if let Some(rate) = measured.filter(|rate| *rate >= 1.0).min_by(f64::total_cmp) {
        return Some(limit(rate, Basis::Measured));
    }
    let usable = |i: &&crate::Interface| i.up && i.driver.is_some() && nic.is_none_or(|nic| nic == i.name);
    let megabits = facts.interfaces.iter().filter(usable).filter_map(|i| i.megabits_per_second).max()?;
    Some(limit(megabits as f64 * 1e6 / 8.0 * NETWORK_SHARE, Basis::Recorded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_have_as_many_levels_as_it_takes() {
        let tree = |fan_out| Launcher::Ssh { fan_out };
        for (launcher, nodes, levels) in [
            (Launcher::Here, 1, 0),
            (Launcher::Slurm, 512, 1),
            (Launcher::Stagers, 512, 1),
            (tree(0), 512, 1),
            (tree(8), 8, 1),
            (tree(8), 9, 2),
            (tree(8), 72, 2),
            (tree(8), 73, 3),
            (tree(2), 6, 2),
            (tree(1), 3, 3),
        ] {
            assert_eq!(launcher.levels(nodes), levels, "{launcher:?}, {nodes} nodes");
        }
    }
}
