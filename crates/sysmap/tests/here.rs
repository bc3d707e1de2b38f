//! On the machine that the tests run on: the sources of an extractor tell the same, and the same as the tools that
//! people know. What is not installed is said.

use serde_json::Value;
use std::process::Command;
use tidepool_sysmap::{Extractor, Record, System, all, collect, collect_with};

fn extractor(name: &str) -> &'static Extractor {
    all().iter().find(|extractor| extractor.name == name).unwrap()
}

fn record(name: &str) -> Record {
    collect(extractor(name), &System::default(), 1)
}

/// What each source tells that there is here.
fn by_source(name: &str) -> Vec<(&'static str, Value)> {
    let mut told = Vec::new();
    for source in extractor(name).sources {
        let record = collect_with(extractor(name), source.name, &System::default(), 1).unwrap();
        match record.source {
            Some(_) => told.push((source.name, record.data)),
            None => println!("SKIPPED: {name} by {}: {:?}", source.name, record.missing),
        }
    }
    told
}

/// A program's output; none, said loudly, where it is not installed.
fn said(program: &str, args: &[&str]) -> Option<String> {
    match Command::new(program).args(args).env("LC_ALL", "C").output() {
        Ok(output) => {
            assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
            Some(String::from_utf8(output.stdout).unwrap())
        }
        Err(error) => {
            println!("SKIPPED: {program}: {error}");
            None
        }
    }
}

#[test]
fn all_sources_of_an_extractor_tell_the_same() {
    for extractor in all() {
        let told = by_source(extractor.name);
        for pair in told.windows(2) {
            assert_eq!(pair[0].1, pair[1].1, "{}: {} and {}", extractor.name, pair[0].0, pair[1].0);
        }
        let missing = collect(extractor, &System::default(), 1).missing;
        assert!(!told.is_empty() || !missing.is_empty(), "{}: nobody tells it, nor why", extractor.name);
    }
}

#[test]
fn processors_are_as_many_as_lscpu_counts() {
    let cpu = record("cpu");
    let Some(text) = said("lscpu", &["--parse=CPU,CORE,SOCKET,NODE"]) else { return };
    let mut columns: [Vec<&str>; 4] = Default::default();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        line.split(',').zip(&mut columns).for_each(|(word, column)| column.push(word));
    }
    let counts = columns.map(|mut column| {
        column.sort_unstable();
        column.dedup();
        column.len() as u64
    });
    for (name, count) in [("threads", counts[0]), ("cores", counts[1]), ("sockets", counts[2])] {
        assert_eq!(cpu.data[name], count, "{name}");
    }
    assert_eq!(cpu.data["numa"].as_array().unwrap().len() as u64, counts[3]);
}

#[test]
fn processors_and_caches_are_as_many_as_lstopo_counts() {
    let cpu = record("cpu");
    let only =
        |kind: &str| said("lstopo-no-graphics", &["--only", kind]).map(|text| text.lines().count() as u64);
    for (kind, name) in [("Package", "sockets"), ("Core", "cores"), ("PU", "threads")] {
        let Some(count) = only(kind) else { return };
        assert_eq!(cpu.data[name], count, "{kind}");
    }
    let caches = cpu.data["caches"].as_array().unwrap();
    for (kind, level) in [("L1Cache", 1), ("L2Cache", 2), ("L3Cache", 3)] {
        let of_level = caches.iter().filter(|c| c["level"] == level && c["kind"] != "instruction");
        let count: u64 = of_level.map(|cache| cache["count"].as_u64().unwrap()).sum();
        assert_eq!(Some(count), only(kind), "{kind}");
    }
}

#[test]
fn the_scheduler_and_size_of_each_disk_are_those_of_the_kernel() {
    for disk in record("disks").data["disks"].as_array().unwrap() {
        let name = disk["name"].as_str().unwrap();
        let file = |below: &str| std::fs::read_to_string(format!("/sys/block/{name}/{below}")).unwrap();
        let scheduler = file("queue/scheduler");
        let used = disk["scheduler"].as_str().unwrap();
        assert!(scheduler.contains(&format!("[{used}]")) || scheduler.trim() == used, "{scheduler} {used}");
        let sectors: u64 = file("size").trim().parse().unwrap();
        assert_eq!(disk["bytes"], sectors * 512);
    }
}

#[test]
fn modules_are_those_of_lsmod() {
    if !std::path::Path::new("/proc/modules").exists() {
        println!("SKIPPED: this kernel was built without modules; node.rs has one with some");
        assert_eq!(record("kernel").data["modules"], serde_json::json!([]));
        return;
    }
    let Some(text) = said("lsmod", &[]) else { return };
    let mut loaded: Vec<&str> = text.lines().skip(1).map(|line| line.split(' ').next().unwrap()).collect();
    loaded.sort_unstable();
    assert_eq!(record("kernel").data["modules"], serde_json::json!(loaded));
}

#[test]
fn free_space_is_what_df_tells() {
    let Some(text) = said("df", &["--block-size=1", "--output=target,size", "/"]) else { return };
    let line = text.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>();
    let space = record("filesystems").data["filesystems"].clone();
    let found = space.as_array().unwrap().iter().find(|f| f["target"] == line[0]).unwrap().clone();
    assert_eq!(found["total_bytes"].to_string(), line[1]);
    assert!(found["available_bytes"].as_u64().unwrap() <= found["total_bytes"].as_u64().unwrap());
}
