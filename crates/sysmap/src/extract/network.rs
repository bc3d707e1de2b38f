//! Network interfaces.
//!
//! Addresses are left out: nodes that differ in nothing else are alike.

use super::pci::place_of;
use super::{Extractor, Found, Gaps, Source, or_note, told};
use crate::record::{Class, Missing};
use crate::system::System;
use serde::{Deserialize, Serialize};

const NET: &str = "/sys/class/net";
/// Numbers of types of links, as the kernel has them (`if_arp.h`).
const ETHER: u32 = 1;
const INFINIBAND: u32 = 32;
const LOOPBACK: u32 = 772;

#[derive(Serialize, Debug, PartialEq)]
struct Network {
    interfaces: Vec<Interface>,
}

#[derive(Serialize, Debug, PartialEq)]
struct Interface {
    name: String,
    /// `ethernet`, `infiniband`, `loopback` or `other`.
    kind: &'static str,
    /// None when it is not known: the link is down, or there is no real one.
    megabits_per_second: Option<u64>,
    mtu: u32,
    up: bool,
    driver: Option<String>,
    numa_node: Option<u32>,
    pci: Option<String>,
}

pub const NETWORK: Extractor = Extractor {
    name: "network",
    about: "network interfaces: kind, speed, NUMA node",
    class: Class::Static,
    version: 1,
    sources: &[
        Source { name: "sysfs", about: NET, read: |system, gaps| told(by_sysfs(system, gaps)) },
        Source { name: "ip", about: "the program ip", read: |system, gaps| told(by_ip(system, gaps)) },
    ],
};

fn by_sysfs(system: &System, gaps: &mut Gaps) -> Found<Network> {
    let names = system.names(NET)?;
    Ok(Network { interfaces: names.iter().filter_map(|name| interface(system, name, gaps)).collect() })
}

fn interface(system: &System, name: &str, gaps: &mut Gaps) -> Option<Interface> {
    let file = |below: &str| format!("{NET}/{name}/{below}");
    // A file among them (`bonding_masters`) is no interface.
    let kind = match system.number::<u32>(&file("type")).ok()? {
        ETHER => "ethernet",
        INFINIBAND => "infiniband",
        LOOPBACK => "loopback",
        _ => "other",
    };
    let mtu = or_note(system.number(&file("mtu")), gaps).unwrap_or(0);
    let state = or_note(system.word(&file("operstate")), gaps).unwrap_or_default();
    Some(with_place(system, Interface { mtu, up: is_up(&state), ..plain(name, kind) }))
}

/// `unknown` is what interfaces without a carrier say when they are up.
fn is_up(state: &str) -> bool {
    state.eq_ignore_ascii_case("up") || state.eq_ignore_ascii_case("unknown")
}

fn plain(name: &str, kind: &'static str) -> Interface {
    let name = name.to_string();
    Interface {
        name,
        kind,
        megabits_per_second: None,
        mtu: 0,
        up: false,
        driver: None,
        numa_node: None,
        pci: None,
    }
}

/// What only `/sys` knows.
fn with_place(system: &System, interface: Interface) -> Interface {
    let file = |below: &str| format!("{NET}/{}/{below}", interface.name);
    let place = place_of(system, &file("device"));
    // Interfaces without a speed refuse to be read, or say -1.
    let speed = system.number::<i64>(&file("speed")).ok().and_then(|speed| u64::try_from(speed).ok());
    Interface {
        megabits_per_second: speed.filter(|speed| *speed > 0),
        driver: system.linked_name(&file("device/driver")),
        numa_node: place.numa_node,
        pci: place.pci,
        ..interface
    }
}

#[derive(Deserialize)]
struct Listed {
    ifname: String,
    link_type: String,
    mtu: u32,
    operstate: String,
}

fn by_ip(system: &System, gaps: &mut Gaps) -> Found<Network> {
    let text = system.output("ip", &["-json", "link", "show"])?;
    let listed: Vec<Listed> = serde_json::from_str(&text).map_err(|error| Missing::new("ip", error))?;
    if !system.has(NET) {
        gaps.push(Missing::new(NET, "speeds, drivers and NUMA nodes are only told there"));
    }
    let kind = |kind: &str| match kind {
        "ether" => "ethernet",
        "infiniband" => "infiniband",
        "loopback" => "loopback",
        _ => "other",
    };
    let mut interfaces: Vec<Interface> = listed
        .iter()
        .map(|l| Interface { mtu: l.mtu, up: is_up(&l.operstate), ..plain(&l.ifname, kind(&l.link_type)) })
        .map(|interface| with_place(system, interface))
        .collect();
    interfaces.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Network { interfaces })
}
