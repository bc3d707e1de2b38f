//! Where devices are: storage and network controllers, their NUMA nodes, and how far these are from each other.

use super::{Extractor, Found, Gaps, Source, numbers, or_note, told};
use crate::record::Class;
use crate::system::System;
use serde::Serialize;
use std::path::Path;

const DEVICES: &str = "/sys/bus/pci/devices";
const NODES: &str = "/sys/devices/system/node";
/// Links from a device to its parents that are followed, at most.
const DEPTH_MAX: usize = 16;

#[derive(Serialize, Debug, PartialEq)]
struct Pci {
    devices: Vec<Device>,
    /// The kernel's distances from each NUMA node to all; 10 is a node's own.
    numa_distances: Vec<NumaDistance>,
}

#[derive(Serialize, Debug, PartialEq)]
struct NumaDistance {
    node: u32,
    to: Vec<u32>,
}

#[derive(Serialize, Debug, PartialEq)]
struct Device {
    address: String,
    /// `storage`, `network`, `infiniband` or `display`.
    kind: &'static str,
    vendor: String,
    device: String,
    driver: Option<String>,
    numa_node: Option<u32>,
    /// Hardware threads near it.
    cpus: String,
}

/// Where a device is.
#[derive(Default, Debug, PartialEq)]
pub(super) struct Place {
    pub pci: Option<String>,
    pub numa_node: Option<u32>,
}

pub const PCI: Extractor = Extractor {
    name: "pci",
    about: "storage, network and display controllers, and their distance to NUMA nodes",
    class: Class::Static,
    version: 1,
    sources: &[Source { name: "sysfs", about: DEVICES, read: |system, gaps| told(pci(system, gaps)) }],
};

fn pci(system: &System, gaps: &mut Gaps) -> Found<Pci> {
    let names = system.names(DEVICES)?;
    let devices = names.iter().filter_map(|name| device(system, name, gaps)).collect();
    Ok(Pci { devices, numa_distances: distances(system, gaps) })
}

fn device(system: &System, address: &str, gaps: &mut Gaps) -> Option<Device> {
    let file = |name: &str| format!("{DEVICES}/{address}/{name}");
    let class = or_note(system.word(&file("class")), gaps)?;
    let class = u32::from_str_radix(class.trim_start_matches("0x"), 16).ok()?;
    let kind = match class >> 16 {
        0x01 => "storage",
        0x02 if class >> 8 == 0x0207 => "infiniband",
        0x02 => "network",
        0x03 | 0x12 => "display",
        0x0c if class >> 8 == 0x0c06 => "infiniband",
        _ => return None,
    };
    let cpus = or_note(system.word(&file("local_cpulist")), gaps).unwrap_or_default();
    Some(Device {
        address: address.to_string(),
        kind,
        vendor: or_note(system.word(&file("vendor")), gaps).unwrap_or_default(),
        device: or_note(system.word(&file("device")), gaps).unwrap_or_default(),
        driver: system.linked_name(&file("driver")),
        numa_node: numa_node(system, &format!("{DEVICES}/{address}")),
        cpus: super::list(&numbers(&cpus)),
    })
}

/// The kernel writes -1 when it does not know, or there is one node only.
fn numa_node(system: &System, device: &str) -> Option<u32> {
    system.number::<i64>(&format!("{device}/numa_node")).ok().and_then(|node| u32::try_from(node).ok())
}

fn distances(system: &System, gaps: &mut Gaps) -> Vec<NumaDistance> {
    let names = or_note(system.names(NODES), gaps).unwrap_or_default();
    let mut distances = Vec::new();
    for node in names.iter().filter_map(|name| name.strip_prefix("node")?.parse::<u32>().ok()) {
        let text = or_note(system.word(&format!("{NODES}/node{node}/distance")), gaps).unwrap_or_default();
        let to = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        distances.push(NumaDistance { node, to });
    }
    distances
}

/// Whether it is called as PCI devices are: `0000:3b:00.0`.
fn is_address(name: &str) -> bool {
    let shape: Vec<usize> = name.split([':', '.']).map(str::len).collect();
    shape == [4, 2, 2, 1] && name.chars().all(|c| c.is_ascii_hexdigit() || matches!(c, ':' | '.'))
}

/// Where the device is that a link in `/sys` leads to: itself, or what it hangs on.
pub(super) fn place_of(system: &System, link: &str) -> Place {
    let Ok(device) = system.path(link).canonicalize() else { return Place::default() };
    let mut place = Place::default();
    for above in device.ancestors().take(DEPTH_MAX) {
        let name = above.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        place.numa_node = place.numa_node.or_else(|| node_in(above));
        if is_address(&name) {
            place.pci = Some(name);
            break;
        }
    }
    place
}

fn node_in(dir: &Path) -> Option<u32> {
    let text = std::fs::read_to_string(dir.join("numa_node")).ok()?;
    text.trim().parse::<i64>().ok().and_then(|node| u32::try_from(node).ok())
}
