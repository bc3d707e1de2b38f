//! What concerns single nodes: daemons or programs, cores, network interface, transport.

use crate::{Asked, Basis, Choice, Deploy, Facts, Job, Machine, Place, Transport};

pub(crate) fn deploy(machine: &Machine, job: &Job, asked: &Asked) -> Choice<Deploy> {
    if let Some(deploy) = asked.deploy {
        return Choice::asked(deploy);
    }
    let nodes = machine.nodes.len();
    match job.program_nodes.filter(|needed| *needed < nodes) {
        Some(0) | None => {
            let why =
                "every node gives its storage; a daemon at rest takes no processor time and 4 MiB of memory";
            Choice::new(Deploy::Shared, Basis::Usual, why)
        }
        Some(needed) => {
            let why =
                format!("programs need {needed} of {nodes} nodes: the others keep the data, undisturbed");
            Choice::new(Deploy::Dedicated(nodes - needed), Basis::Asked, why)
        }
    }
}

/// The cores of the NUMA node at which a node's store is.
pub(crate) fn cores(place: &Place, store: &str, asked: &Asked) -> Choice<Vec<Vec<u16>>> {
    if let Some(cores) = &asked.cores {
        return Choice::asked(vec![cores.clone(); place.nodes.len()]);
    }
    let all = vec![Vec::new(); place.nodes.len()];
    let Some(known) = place.of_all(|_, facts| Some(facts.numa.len())) else {
        return Choice::new(all, Basis::Usual, "all cores: the NUMA nodes are not known everywhere");
    };
    if known.iter().all(|count| *count <= 1) {
        return Choice::new(all, Basis::Recorded, "all cores: no node has more than one NUMA node");
    }
    let near: Vec<Vec<u16>> =
        place.nodes.iter().map(|node| near_cores(node.facts.as_ref(), store).unwrap_or_default()).collect();
    match near.iter().filter(|cores| !cores.is_empty()).count() {
        0 => Choice::new(all, Basis::Recorded, "all cores: no store's disk is nearer to one NUMA node"),
        n => {
            let why = format!("on {n} of {} nodes, the NUMA node at which the store's disk is", near.len());
            Choice::new(near, Basis::Recorded, why)
        }
    }
}

fn near_cores(facts: Option<&Facts>, store: &str) -> Option<Vec<u16>> {
    let facts = facts.filter(|facts| facts.numa.len() > 1)?;
    let node = facts.numa_of(store)?;
    cores_in(&facts.numa.iter().find(|numa| numa.node == node)?.cpus)
}

/// Hardware threads of a node; none when they are not known.
pub(crate) fn cores_of(facts: &Facts) -> Option<usize> {
    let of_nodes = facts.numa.iter().map(|numa| cores_in(&numa.cpus).map(|cores| cores.len()));
    of_nodes.sum::<Option<usize>>().filter(|count| *count > 0)
}

/// Most cores of a NUMA node that are believed.
const CORES_MAX: usize = 4096;

/// `0-3,8`; none when it is no such list.
fn cores_in(list: &str) -> Option<Vec<u16>> {
    let mut cores = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cores.extend(first.trim().parse::<u16>().ok()?..=last.trim().parse::<u16>().ok()?);
        if cores.len() > CORES_MAX {
            return None;
        }
    }
    Some(cores)
}

/// How much faster an interface has to be than all others of its node to be named.
const CLEARLY_FASTER: u64 = 2;

/// The interface that is clearly the fastest on every node.
pub(crate) fn nic(place: &Place, asked: &Asked) -> Choice<Option<String>> {
    if let Some(nic) = &asked.nic {
        return Choice::asked(Some(nic.clone()));
    }
    if place.nodes.len() == 1 {
        return Choice::new(None, Basis::Usual, "one node needs no network");
    }
    let by_names = |why: &str| Choice::new(None, Basis::Usual, why);
    let Some(fastest) = place.of_all(|_, facts| Some(clearly_fastest(facts))) else {
        return by_names("what the nodes' names lead to: their interfaces are not known everywhere");
    };
    match fastest.first().cloned().flatten().filter(|first| fastest.iter().all(|f| f.as_ref() == Some(first)))
    {
        Some((name, speed)) => {
            let why = format!("the fastest one of every node, {} Gbit/s", speed as f64 / 1000.0);
            Choice::new(Some(name), Basis::Recorded, why)
        }
        None => by_names("what the nodes' names lead to: no interface is clearly the fastest on every node"),
    }
}

fn clearly_fastest(facts: &Facts) -> Option<(String, u64)> {
    let mut speeds: Vec<(u64, &str)> = facts
        .interfaces
        .iter()
        .filter(|i| i.up && i.driver.is_some() && matches!(i.kind.as_str(), "ethernet" | "infiniband"))
        .filter_map(|i| Some((i.megabits_per_second?, i.name.as_str())))
        .collect();
    speeds.sort_unstable();
    match speeds[..] {
        [.., (next, _), (speed, name)] if speed >= next * CLEARLY_FASTER => Some((name.into(), speed)),
        _ => None,
    }
}

pub(crate) fn transport(place: &Place, asked: &Asked) -> Choice<Transport> {
    if let Some(provider) = &asked.fabric {
        return Choice::asked(Transport::Fabric(provider.clone()));
    }
    if place.nodes.len() == 1 {
        return Choice::new(Transport::SharedMemory, Basis::Usual, "all daemons are on the programs' node");
    }
    let infiniband = place.of_all(|_, facts| {
        let fast = |i: &&crate::Interface| i.up && i.kind == "infiniband";
        Some(facts.interfaces.iter().any(|i| fast(&i)))
    });
    let why = match infiniband.is_some_and(|all| all.into_iter().all(|has| has)) {
        true => {
            "works everywhere; the nodes have InfiniBand: where this build has libfabric, compare with --fabric 'verbs;ofi_rxm'"
        }
        false => "works everywhere; on a node, shared memory",
    };
    Choice::new(Transport::Tcp, Basis::Usual, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_read() {
        assert_eq!(cores_in("0-2,8"), Some(vec![0, 1, 2, 8]));
        assert_eq!(cores_in("5"), Some(vec![5]));
        for bad in ["", "a", "1-", "70000", "0-x", "0-5000"] {
            assert_eq!(cores_in(bad), None, "{bad}");
        }
        assert_eq!(cores_in("3-1"), Some(vec![]));
    }
}
