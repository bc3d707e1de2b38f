//! Main memory: what there is, and what is free.

use super::{Extractor, Found, Gaps, Source, told};
use crate::record::{Class, Missing};
use crate::system::System;
use serde::Serialize;

const MEMINFO: &str = "/proc/meminfo";

#[derive(Serialize, Debug, PartialEq)]
struct Memory {
    total_bytes: u64,
    swap_bytes: u64,
    huge_page_bytes: u64,
}

#[derive(Serialize, Debug, PartialEq)]
struct Use {
    /// What programs can have without swapping.
    available_bytes: u64,
    free_bytes: u64,
    /// Pages of files, which give way, with those of tmpfs, which do not.
    cached_bytes: u64,
    shared_bytes: u64,
    dirty_bytes: u64,
    swap_free_bytes: u64,
}

pub const MEMORY: Extractor = Extractor {
    name: "memory",
    about: "how much main memory and swap there is",
    class: Class::Static,
    version: 1,
    sources: &[Source { name: "proc", about: MEMINFO, read: |system, gaps| told(memory(system, gaps)) }],
};

pub const USE: Extractor = Extractor {
    name: "memory-use",
    about: "how much of it is free now",
    class: Class::Dynamic,
    version: 1,
    sources: &[Source { name: "proc", about: MEMINFO, read: |system, gaps| told(used(system, gaps)) }],
};

/// Fields of `/proc/meminfo`.
struct Info(String);

impl Info {
    fn read(system: &System) -> Found<Info> {
        let info = Info(system.text(MEMINFO)?);
        match info.field("MemTotal") {
            Some(_) => Ok(info),
            None => Err(Missing::new(MEMINFO, "it has no line 'MemTotal: ... kB'")),
        }
    }

    fn field(&self, name: &str) -> Option<u64> {
        let value = |line: &str| line.strip_prefix(name)?.strip_prefix(':').map(str::trim).map(String::from);
        let value = self.0.lines().find_map(value)?;
        value.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    }

    /// A field in bytes; 0 and a note when it is not there.
    fn bytes(&self, name: &str, gaps: &mut Gaps) -> u64 {
        self.field(name).unwrap_or_else(|| {
            gaps.push(Missing::new(MEMINFO, format!("it has no line '{name}: ... kB'")));
            0
        })
    }
}

fn memory(system: &System, gaps: &mut Gaps) -> Found<Memory> {
    let info = Info::read(system)?;
    Ok(Memory {
        total_bytes: info.bytes("MemTotal", gaps),
        swap_bytes: info.bytes("SwapTotal", gaps),
        huge_page_bytes: info.bytes("Hugepagesize", gaps),
    })
}

fn used(system: &System, gaps: &mut Gaps) -> Found<Use> {
    let info = Info::read(system)?;
    Ok(Use {
        available_bytes: info.bytes("MemAvailable", gaps),
        free_bytes: info.bytes("MemFree", gaps),
        cached_bytes: info.bytes("Cached", gaps),
        shared_bytes: info.bytes("Shmem", gaps),
        dirty_bytes: info.bytes("Dirty", gaps),
        swap_free_bytes: info.bytes("SwapFree", gaps),
    })
}
