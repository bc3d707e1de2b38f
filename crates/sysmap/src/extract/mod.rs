//! The extractors: for each kind of thing the form of what is told, and the places to read it from.
//!
//! A new one is a module with a struct and an [`Extractor`] in [`all`]; nothing else knows its name.

mod cpu;
mod disks;
mod fabric;
mod filesystems;
mod gpus;
mod load;
mod memory;
mod modules;
mod mounts;
mod network;
mod pci;

pub use fabric::{Fabric, Link, Port, Rack, Switch};

pub(crate) use cpu::{Cache, Cpu, NumaNode, count};
pub(crate) use fabric::levels;

use crate::record::{Class, Missing, Record};
use crate::system::System;
use serde::Serialize;
use serde_json::Value;

/// What sources note of what they could not read.
type Gaps = Vec<Missing>;
/// A source's finding; the error says why there is none.
type Found<T> = Result<T, Missing>;

/// A specialised part: reads data in its extractor's form from one place.
pub struct Source {
    pub name: &'static str,
    /// For people: what it reads.
    pub about: &'static str,
    read: fn(&System, &mut Gaps) -> Found<Value>,
}

/// An abstract part: what is told, in which form.
pub struct Extractor {
    pub name: &'static str,
    pub about: &'static str,
    pub class: Class,
    /// The version of the data's form.
    pub version: u32,
    /// Those that tell most come first.
    pub sources: &'static [Source],
}

/// All extractors.
pub fn all() -> &'static [Extractor] {
    const ALL: &[Extractor] = &[
        cpu::CPU,
        memory::MEMORY,
        disks::DISKS,
        mounts::MOUNTS,
        filesystems::TYPES,
        modules::MODULES,
        network::NETWORK,
        pci::PCI,
        gpus::GPUS,
        fabric::FABRIC,
        filesystems::SPACE,
        memory::USE,
        load::LOAD,
    ];
    ALL
}

/// What the first source tells that can tell anything.
pub fn collect(extractor: &Extractor, system: &System, now_ms: u64) -> Record {
    let mut record = empty(extractor, now_ms);
    for source in extractor.sources {
        if read(source, system, &mut record) {
            break;
        }
    }
    record
}

/// What the source of this name tells; `None` when the extractor has no such source.
pub fn collect_with(extractor: &Extractor, source: &str, system: &System, now_ms: u64) -> Option<Record> {
    let source = extractor.sources.iter().find(|known| known.name == source)?;
    let mut record = empty(extractor, now_ms);
    read(source, system, &mut record);
    Some(record)
}

fn empty(extractor: &Extractor, taken_ms: u64) -> Record {
    let Extractor { name, class, version, .. } = *extractor;
    let extractor = name.to_string();
    Record { extractor, version, class, source: None, taken_ms, data: Value::Null, missing: Vec::new() }
}

fn read(source: &Source, system: &System, record: &mut Record) -> bool {
    match (source.read)(system, &mut record.missing) {
        Ok(data) => {
            record.data = data;
            record.source = Some(source.name.to_string());
            true
        }
        Err(missing) => {
            record.missing.push(missing);
            false
        }
    }
}

/// The data of a source as they are kept.
fn told<T: Serialize>(found: Found<T>) -> Found<Value> {
    serde_json::to_value(found?).map_err(|error| Missing::new("the data", error))
}

/// What was read, or nothing and a note of why.
fn or_note<T>(found: Result<T, Missing>, gaps: &mut Gaps) -> Option<T> {
    found.map_err(|missing| gaps.push(missing)).ok()
}

/// A list as the kernel writes it (`0-3,8`), in order; what is no number is left out.
fn numbers(list: &str) -> Vec<u32> {
    const RANGE_MAX: u32 = 1 << 16;
    let mut all = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
            all.extend(first..=last.min(first.saturating_add(RANGE_MAX)));
        }
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// The same the other way.
pub(crate) fn list(numbers: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let run = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written() {
        assert_eq!(numbers("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(numbers(""), [0u32; 0]);
        assert_eq!(numbers("4-2,x,1"), [1]);
        assert_eq!(numbers("0-4294967295").len(), (1 << 16) + 1);
        assert_eq!(list(&[0, 1, 2, 3, 8, 10, 11]), "0-3,8,10-11");
        assert_eq!(list(&[]), "");
    }

    #[test]
    fn names_of_extractors_and_sources_are_told_apart() {
        let mut names: Vec<&str> = all().iter().map(|extractor| extractor.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().len());
        assert!(all().iter().all(|extractor| !extractor.sources.is_empty()));
    }

    /// An empty node: every record is there, says what is missing, and nothing panics.
    #[test]
    fn a_node_that_tells_nothing_makes_records_that_say_so() {
        let dir = tempfile::tempdir().unwrap();
        let system = System::at(dir.path(), vec![]);
        for extractor in all() {
            let record = collect(extractor, &system, 7);
            assert_eq!((record.taken_ms, record.version), (7, extractor.version));
            assert!(!record.missing.is_empty(), "{record:?}");
        }
    }
}
