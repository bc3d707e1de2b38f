//! Processors, caches and NUMA nodes.

use super::{Extractor, Found, Gaps, Source, list, numbers, or_note, told};
use crate::hwloc;
use crate::record::{Class, Missing};
use crate::system::System;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

const CPUS: &str = "/sys/devices/system/cpu";
const NODES: &str = "/sys/devices/system/node";

#[derive(Serialize, Debug, Default, PartialEq)]
pub(crate) struct Cpu {
    pub model: Option<String>,
    pub architecture: String,
    pub sockets: u32,
    pub cores: u32,
    /// Hardware threads that are online.
    pub threads: u32,
    pub numa: Vec<NumaNode>,
    pub caches: Vec<Cache>,
}

#[derive(Serialize, Debug, PartialEq)]
pub(crate) struct NumaNode {
    pub node: u32,
    /// Its hardware threads, as the kernel lists them: `0-3,8`.
    pub cpus: String,
    pub memory_bytes: u64,
}

/// Caches that are alike.
#[derive(Serialize, Debug, PartialEq, Eq, PartialOrd, Ord, Clone)]
pub(crate) struct Cache {
    pub level: u32,
    /// `data`, `instruction` or `unified`.
    pub kind: String,
    pub bytes: u64,
    pub line_bytes: u32,
    pub count: u32,
}

pub const CPU: Extractor = Extractor {
    name: "cpu",
    about: "sockets, cores, hardware threads, caches, NUMA nodes",
    class: Class::Static,
    version: 1,
    sources: &[
        Source {
            name: "hwloc",
            about: "the library hwloc",
            read: |system, gaps| told(by_hwloc(system, gaps)),
        },
        Source {
            name: "sysfs",
            about: "/sys/devices/system/cpu and node",
            read: |system, gaps| told(by_sysfs(system, gaps)),
        },
    ],
};

/// Counts caches that are alike.
pub(crate) fn count(caches: impl Iterator<Item = Cache>) -> Vec<Cache> {
    let mut counted: BTreeMap<Cache, u32> = BTreeMap::new();
    for cache in caches {
        *counted.entry(Cache { count: 0, ..cache }).or_default() += 1;
    }
    counted.into_iter().map(|(cache, count)| Cache { count, ..cache }).collect()
}

fn by_hwloc(system: &System, gaps: &mut Gaps) -> Found<Cpu> {
    if !system.is_here() {
        return Err(Missing::new("hwloc", "it only tells of the node it runs on"));
    }
    let mut cpu = hwloc::cpu(&hwloc::export()?)?;
    cpu.model = model(system, gaps);
    cpu.architecture = rustix::system::uname().machine().to_string_lossy().into_owned();
    Ok(cpu)
}

fn by_sysfs(system: &System, gaps: &mut Gaps) -> Found<Cpu> {
    let online = numbers(&system.word(&format!("{CPUS}/online"))?);
    let (mut sockets, mut cores) = (BTreeSet::new(), BTreeSet::new());
    let mut caches = BTreeMap::new();
    for &cpu in &online {
        let (socket, core) = place(system, cpu, gaps);
        sockets.insert(socket);
        cores.insert((socket, core));
        for (shared, cache) in caches_of(system, cpu, gaps) {
            caches.insert((cache.level, cache.kind.clone(), shared), cache);
        }
    }
    Ok(Cpu {
        model: model(system, gaps),
        architecture: rustix::system::uname().machine().to_string_lossy().into_owned(),
        sockets: sockets.len() as u32,
        cores: cores.len() as u32,
        threads: online.len() as u32,
        numa: numa(system, gaps),
        caches: count(caches.into_values()),
    })
}

/// A hardware thread's socket and core. Cores have the numbers of a die or of a socket; those of all threads
/// of one are the same list.
fn place(system: &System, cpu: u32, gaps: &mut Gaps) -> (i64, String) {
    let topology = format!("{CPUS}/cpu{cpu}/topology");
    let socket = or_note(system.number(&format!("{topology}/physical_package_id")), gaps);
    let core = system
        .word(&format!("{topology}/core_cpus_list"))
        .or_else(|_| system.word(&format!("{topology}/thread_siblings_list")));
    (socket.unwrap_or(0), or_note(core, gaps).unwrap_or_else(|| cpu.to_string()))
}

/// Caches of a hardware thread, with who shares each.
fn caches_of(system: &System, cpu: u32, gaps: &mut Gaps) -> Vec<(String, Cache)> {
    let dir = format!("{CPUS}/cpu{cpu}/cache");
    let indexes = or_note(system.names(&dir), gaps).unwrap_or_default();
    let mut read = |index: &String| -> Option<(String, Cache)> {
        let file = |name: &str| format!("{dir}/{index}/{name}");
        let level = or_note(system.number(&file("level")), gaps)?;
        let kind = or_note(system.word(&file("type")), gaps)?.to_lowercase();
        let bytes = or_note(system.word(&file("size")), gaps).and_then(|size| kibibytes(&size))?;
        let line_bytes = or_note(system.number(&file("coherency_line_size")), gaps).unwrap_or(0);
        let shared = or_note(system.word(&file("shared_cpu_list")), gaps)?;
        Some((shared, Cache { level, kind, bytes, line_bytes, count: 1 }))
    };
    indexes.iter().filter(|name| name.starts_with("index")).filter_map(&mut read).collect()
}

/// A size as the kernel writes it: `32K`.
fn kibibytes(text: &str) -> Option<u64> {
    text.strip_suffix('K')?.parse::<u64>().ok()?.checked_mul(1024)
}

fn numa(system: &System, gaps: &mut Gaps) -> Vec<NumaNode> {
    let names = or_note(system.names(NODES), gaps).unwrap_or_default();
    let mut nodes = Vec::new();
    for node in names.iter().filter_map(|name| name.strip_prefix("node")?.parse::<u32>().ok()) {
        let cpus = or_note(system.word(&format!("{NODES}/node{node}/cpulist")), gaps).unwrap_or_default();
        let info = or_note(system.text(&format!("{NODES}/node{node}/meminfo")), gaps).unwrap_or_default();
        let total = info.lines().find(|line| line.contains("MemTotal:"));
        let kib = total.and_then(|line| line.split_whitespace().rev().nth(1)?.parse::<u64>().ok());
        let memory_bytes = kib.unwrap_or(0).saturating_mul(1024);
        nodes.push(NumaNode { node, cpus: list(&numbers(&cpus)), memory_bytes });
    }
    nodes
}

fn model(system: &System, gaps: &mut Gaps) -> Option<String> {
    let info = or_note(system.text("/proc/cpuinfo"), gaps)?;
    let value = |line: &str| Some(line.split_once(':')?.1.trim().to_string());
    info.lines().find(|line| line.starts_with("model name")).and_then(value)
}
