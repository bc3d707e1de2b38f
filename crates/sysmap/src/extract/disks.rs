//! Block devices and their partitions.
//!
//! Serial numbers are left out: disks that differ in nothing else are alike, and their data are kept once.

use super::pci::place_of;
use super::{Extractor, Found, Gaps, Source, or_note, told};
use crate::record::{Class, Missing};
use crate::system::System;
use serde::{Deserialize, Serialize};

const BLOCK: &str = "/sys/block";
/// The unit of sizes in `/sys/block`, whatever the device's own blocks are.
const SECTOR: u64 = 512;
/// Devices that keep nothing of their own.
const VIRTUAL: &[&str] = &["loop", "ram", "zram", "sr", "fd", "nbd"];

#[derive(Serialize, Debug, PartialEq)]
struct Disks {
    disks: Vec<Disk>,
}

#[derive(Serialize, Debug, PartialEq)]
struct Disk {
    name: String,
    /// `nvme`, `ssd` or `hdd`; `virtual` for a disk of a virtual machine.
    kind: &'static str,
    model: Option<String>,
    bytes: u64,
    rotational: bool,
    read_only: bool,
    removable: bool,
    logical_block_bytes: u32,
    physical_block_bytes: u32,
    /// The I/O scheduler in use.
    scheduler: Option<String>,
    schedulers: Vec<String>,
    /// The NUMA node it is at; none when it is as far from all.
    numa_node: Option<u32>,
    /// Its controller: `0000:3b:00.0`.
    pci: Option<String>,
    partitions: Vec<Partition>,
}

#[derive(Serialize, Debug, PartialEq)]
struct Partition {
    name: String,
    start_byte: u64,
    bytes: u64,
}

pub const DISKS: Extractor = Extractor {
    name: "disks",
    about: "block devices: kind, size, partitions, I/O scheduler, NUMA node",
    class: Class::Static,
    version: 1,
    sources: &[
        Source { name: "sysfs", about: BLOCK, read: |system, gaps| told(by_sysfs(system, gaps)) },
        Source {
            name: "lsblk",
            about: "the program lsblk",
            read: |system, gaps| told(by_lsblk(system, gaps)),
        },
    ],
};

fn is_storage(name: &str) -> bool {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    !VIRTUAL.contains(&stem)
}

fn kind(name: &str, rotational: bool) -> &'static str {
    match name {
        name if name.starts_with("nvme") => "nvme",
        name if name.starts_with("vd") || name.starts_with("xvd") => "virtual",
        _ if rotational => "hdd",
        _ => "ssd",
    }
}

/// The disk that a device is, or a partition of; for one that is made of others, the first of these.
pub(super) fn disk_of(system: &System, device: &str) -> Option<(String, &'static str)> {
    const LAYERS_MAX: usize = 8;
    let link = system.link(&format!("/sys/dev/block/{device}"))?;
    let mut names = link.iter().map(|name| name.to_string_lossy());
    let mut disk = names.by_ref().skip_while(|name| name != "block").nth(1)?.into_owned();
    for _ in 0..LAYERS_MAX {
        match system.names(&format!("{BLOCK}/{disk}/slaves")).ok().and_then(|names| names.into_iter().next())
        {
            Some(below) => disk = parent(system, below),
            None => break,
        }
    }
    let rotational = system.number::<u8>(&format!("{BLOCK}/{disk}/queue/rotational")).ok()? == 1;
    let kind = if is_storage(&disk) { kind(&disk, rotational) } else { "virtual" };
    Some((disk, kind))
}

/// The disk of a partition; a disk itself.
fn parent(system: &System, name: String) -> String {
    let above =
        system.link(&format!("/sys/class/block/{name}")).filter(|_| !system.has(&format!("{BLOCK}/{name}")));
    let above = above.and_then(|link| Some(link.parent()?.file_name()?.to_string_lossy().into_owned()));
    above.unwrap_or(name)
}

fn by_sysfs(system: &System, gaps: &mut Gaps) -> Found<Disks> {
    let names = system.names(BLOCK)?;
    let names = names.iter().filter(|name| is_storage(name));
    Ok(Disks { disks: names.filter_map(|name| disk(system, name, gaps)).collect() })
}

fn disk(system: &System, name: &str, gaps: &mut Gaps) -> Option<Disk> {
    let file = |below: &str| format!("{BLOCK}/{name}/{below}");
    let sectors: u64 = or_note(system.number(&file("size")), gaps)?;
    // A reader without a medium.
    if sectors == 0 {
        return None;
    }
    let flag = |below: &str, gaps: &mut Gaps| or_note(system.number::<u8>(&file(below)), gaps) == Some(1);
    let rotational = flag("queue/rotational", gaps);
    let (scheduler, schedulers) = schedulers(system, name, gaps);
    let place = place_of(system, &file("device"));
    Some(Disk {
        name: name.to_string(),
        kind: kind(name, rotational),
        // Virtual disks have none.
        model: system.word(&file("device/model")).ok().filter(|model| !model.is_empty()),
        bytes: sectors.saturating_mul(SECTOR),
        rotational,
        read_only: flag("ro", gaps),
        removable: flag("removable", gaps),
        logical_block_bytes: or_note(system.number(&file("queue/logical_block_size")), gaps).unwrap_or(0),
        physical_block_bytes: or_note(system.number(&file("queue/physical_block_size")), gaps).unwrap_or(0),
        scheduler,
        schedulers,
        numa_node: place.numa_node,
        pci: place.pci,
        partitions: partitions(system, name, gaps),
    })
}

/// The I/O scheduler in use, which stands in brackets, and all there are.
fn schedulers(system: &System, disk: &str, gaps: &mut Gaps) -> (Option<String>, Vec<String>) {
    let text = or_note(system.word(&format!("{BLOCK}/{disk}/queue/scheduler")), gaps).unwrap_or_default();
    let bare = |word: &str| word.trim_matches(['[', ']']).to_string();
    let used = text.split_whitespace().find(|word| word.starts_with('['));
    // Devices that leave no choice have one word without brackets.
    let used = used.or_else(|| text.split_whitespace().next()).map(bare);
    let mut all: Vec<String> = text.split_whitespace().map(bare).collect();
    all.sort_unstable();
    (used, all)
}

fn partitions(system: &System, disk: &str, gaps: &mut Gaps) -> Vec<Partition> {
    let names = or_note(system.names(&format!("{BLOCK}/{disk}")), gaps).unwrap_or_default();
    let of_disk =
        |name: &&String| name.starts_with(disk) && system.has(&format!("{BLOCK}/{disk}/{name}/partition"));
    let mut partitions = Vec::new();
    for name in names.iter().filter(of_disk) {
        let mut sectors = |below: &str| {
            or_note(system.number::<u64>(&format!("{BLOCK}/{disk}/{name}/{below}")), gaps).unwrap_or(0)
        };
        let (start, size) = (sectors("start"), sectors("size"));
        let (start_byte, bytes) = (start.saturating_mul(SECTOR), size.saturating_mul(SECTOR));
        partitions.push(Partition { name: name.clone(), start_byte, bytes });
    }
    partitions
}

#[derive(Deserialize)]
struct Listing {
    blockdevices: Vec<Listed>,
}

/// What `lsblk` prints. Its numbers were texts before 2.33.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Listed {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    model: Option<String>,
    size: u64,
    start: Option<u64>,
    rota: bool,
    ro: bool,
    rm: bool,
    log_sec: u32,
    phy_sec: u32,
    sched: Option<String>,
    #[serde(default)]
    children: Vec<Listed>,
}

const COLUMNS: &str = "NAME,TYPE,MODEL,SIZE,START,ROTA,RO,RM,LOG-SEC,PHY-SEC,SCHED";

fn by_lsblk(system: &System, gaps: &mut Gaps) -> Found<Disks> {
    let text = system.output("lsblk", &["--json", "--bytes", "--output", COLUMNS])?;
    let listing: Listing = serde_json::from_str(&text).map_err(|error| Missing::new("lsblk", error))?;
    let disks = listing.blockdevices.into_iter();
    let disks = disks.filter(|disk| disk.kind == "disk" && disk.size > 0 && is_storage(&disk.name));
    Ok(Disks { disks: disks.map(|disk| listed(system, disk, gaps)).collect() })
}

fn listed(system: &System, disk: Listed, gaps: &mut Gaps) -> Disk {
    let parts = disk.children.iter().filter(|part| part.kind == "part");
    let partitions = parts.map(|part| Partition {
        name: part.name.clone(),
        start_byte: part.start.unwrap_or(0).saturating_mul(SECTOR),
        bytes: part.size,
    });
    // It tells the one in use only, and nothing of places.
    let schedulers = schedulers(system, &disk.name, gaps).1;
    let place = place_of(system, &format!("{BLOCK}/{}/device", disk.name));
    Disk {
        kind: kind(&disk.name, disk.rota),
        model: disk.model.map(|model| model.trim().to_string()).filter(|model| !model.is_empty()),
        bytes: disk.size,
        rotational: disk.rota,
        read_only: disk.ro,
        removable: disk.rm,
        logical_block_bytes: disk.log_sec,
        physical_block_bytes: disk.phy_sec,
        scheduler: disk.sched,
        schedulers,
        numa_node: place.numa_node,
        pci: place.pci,
        partitions: partitions.collect(),
        name: disk.name,
    }
}
