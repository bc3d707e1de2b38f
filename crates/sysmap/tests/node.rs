//! A node made of files: two sockets, an NVMe disk and an InfiniBand adapter at the second one, a disk below a logical
//! volume, a graphics processor. And the same node with files and programs that lie.

use proptest::prelude::*;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidepool_sysmap::{Record, System, all, collect, collect_with};
use tidepool_testkit::put_program;

struct Node {
    dir: tempfile::TempDir,
}

impl Node {
    fn new() -> Node {
        Node { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn put_all(&self, below: &str, files: &[(&str, &str)]) {
        files.iter().for_each(|(name, text)| self.put(&format!("{below}/{name}"), text));
    }

    /// A link as `/sys` has them: relative.
    fn link(&self, at: &str, to: &str) {
        let at = Path::new(at);
        let up: PathBuf = at.parent().unwrap().iter().map(|_| "..").collect();
        let real = self.path(at.to_str().unwrap());
        fs::create_dir_all(real.parent().unwrap()).unwrap();
        symlink(up.join(to), real).unwrap();
    }

    fn program(&self, name: &str, script: &str) {
        fs::create_dir_all(self.path("bin")).unwrap();
        put_program(&self.path(&format!("bin/{name}")), &format!("#!/bin/sh\n{script}\n"));
    }

    fn system(&self) -> System {
        System::at(self.dir.path(), vec![self.path("bin")]).with_patience(Duration::from_secs(20))
    }

    fn record(&self, name: &str) -> Record {
        collect(all().iter().find(|extractor| extractor.name == name).unwrap(), &self.system(), 1)
    }
}

const PCI: &str = "sys/devices/pci0000:80";

fn pci_device(node: &Node, address: &str, class: &str, numa: &str) {
    let at = format!("{PCI}/{address}");
    node.put_all(
        &at,
        &[
            ("class", class),
            ("vendor", "0x8086"),
            ("device", "0x0a54"),
            ("numa_node", numa),
            ("local_cpulist", "2-3,6-7"),
        ],
    );
    node.link(&format!("sys/bus/pci/devices/{address}"), &at);
}

fn disk(node: &Node, name: &str, at: &str, rotational: &str) {
    node.put_all(
        at,
        &[
            ("size", "2000"),
            ("ro", "0"),
            ("removable", "0"),
            ("queue/rotational", rotational),
            ("queue/logical_block_size", "512"),
            ("queue/physical_block_size", "4096"),
            ("queue/scheduler", "mq-deadline [none] kyber"),
        ],
    );
    node.link(&format!("sys/block/{name}"), at);
}

/// Eight hardware threads on four cores of two sockets.
fn processors(node: &Node) {
    node.put("sys/devices/system/cpu/online", "0-7\n");
    for cpu in 0..8 {
        let (core, socket) = (cpu % 4, cpu % 4 / 2);
        let at = format!("sys/devices/system/cpu/cpu{cpu}");
        node.put_all(
            &at,
            &[
                ("topology/physical_package_id", &format!("{socket}\n")),
                ("topology/core_cpus_list", &format!("{core},{}\n", core + 4)),
            ],
        );
        for (index, level, kind, size, shared) in [
            (0, "1", "Data", "48K", format!("{core},{}", core + 4)),
            (1, "1", "Instruction", "32K", format!("{core},{}", core + 4)),
            (3, "3", "Unified", "32768K", format!("{}-{}", socket * 2, socket * 2 + 1)),
        ] {
            let files = [("level", level), ("type", kind), ("size", size), ("coherency_line_size", "64")];
            node.put_all(&format!("{at}/cache/index{index}"), &files);
            node.put(&format!("{at}/cache/index{index}/shared_cpu_list"), &shared);
        }
    }
    for (numa, cpus) in [(0, "0-1,4-5"), (1, "2-3,6-7")] {
        let at = format!("sys/devices/system/node/node{numa}");
        let memory = format!("Node {numa} MemTotal:       1000 kB\nNode {numa} MemFree: 1 kB\n");
        node.put_all(&at, &[("cpulist", cpus), ("meminfo", &memory), ("distance", "10 21")]);
    }
    node.put("proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n");
    node.put("proc/meminfo", "MemTotal: 2000 kB\nMemFree: 10 kB\nSwapTotal: 0 kB\nHugepagesize: 2048 kB\n");
    node.put("proc/loadavg", "0.25 0.50 1.00 3/200 12345\n");
}

fn cluster_node() -> Node {
    let node = Node::new();
    processors(&node);
    pci_device(&node, "0000:81:00.0", "0x010802", "1");
    pci_device(&node, "0000:82:00.0", "0x020700", "1");
    pci_device(&node, "0000:83:00.0", "0x030200", "-1");
    pci_device(&node, "0000:84:00.0", "0x060400", "1");
    let nvme = format!("{PCI}/0000:81:00.0/nvme/nvme0/nvme0n1");
    disk(&node, "nvme0n1", &nvme, "0");
    node.put_all(&format!("{nvme}/nvme0n1p1"), &[("partition", "1"), ("start", "8"), ("size", "1000")]);
    node.link(&format!("{nvme}/device"), &format!("{PCI}/0000:81:00.0/nvme/nvme0"));
    node.put(&format!("{PCI}/0000:81:00.0/nvme/nvme0/model"), "A Model   \n");
    disk(&node, "sda", "sys/devices/virtual/sda", "1");
    disk(&node, "loop0", "sys/devices/virtual/loop0", "0");
    let ib = format!("{PCI}/0000:82:00.0/net/ib0");
    node.put_all(&ib, &[("type", "32"), ("mtu", "4092"), ("operstate", "up"), ("speed", "100000")]);
    node.link(&format!("{ib}/device"), &format!("{PCI}/0000:82:00.0"));
    node.link("sys/class/net/ib0", &ib);
    node.put("sys/class/net/bonding_masters", "");
    node.put_all(
        "sys/devices/virtual/net/lo",
        &[("type", "772"), ("mtu", "65536"), ("operstate", "unknown")],
    );
    node.link("sys/class/net/lo", "sys/devices/virtual/net/lo");
    node.put("proc/driver/nvidia/gpus/0000:83:00.0/information", "Model: \t Fast GPU\nIRQ: 1\n");
    node.put("proc/modules", "ext4 1 0 - Live 0x0\nahci 2 1 ext4, Live 0x0\n");
    node.put("proc/sys/kernel/osrelease", "6.1.0\n");
    node.put("proc/filesystems", "nodev\tproc\n\text4\n");
    node.put("proc/self/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n");
    node
}

#[test]
fn processors_are_told_by_their_sockets_cores_and_nodes() {
    let record = cluster_node().record("cpu");
    // hwloc tells of the machine it runs on only.
    assert_eq!((record.source.as_deref(), record.missing.len()), (Some("sysfs"), 1), "{record:?}");
    let data = record.data;
    assert_eq!((&data["sockets"], &data["cores"], &data["threads"]), (&json!(2), &json!(4), &json!(8)));
    assert_eq!(data["model"], "Some CPU @ 2 GHz");
    assert_eq!(data["numa"][1], json!({"node": 1, "cpus": "2-3,6-7", "memory_bytes": 1_024_000}));
    let counts: Vec<Value> = data["caches"].as_array().unwrap().iter().map(|c| c["count"].clone()).collect();
    assert_eq!(counts, [4, 4, 2]);
}

#[test]
fn disks_are_told_with_where_they_are() {
    let record = cluster_node().record("disks");
    let disks = record.data["disks"].as_array().unwrap();
    let names: Vec<&str> = disks.iter().map(|disk| disk["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["nvme0n1", "sda"], "loops are none");
    let nvme = &disks[0];
    assert_eq!(
        (&nvme["kind"], &nvme["model"], &nvme["bytes"]),
        (&json!("nvme"), &json!("A Model"), &json!(1_024_000))
    );
    assert_eq!((&nvme["pci"], &nvme["numa_node"]), (&json!("0000:81:00.0"), &json!(1)));
    assert_eq!(
        (&nvme["scheduler"], &nvme["schedulers"]),
        (&json!("none"), &json!(["kyber", "mq-deadline", "none"]))
    );
    assert_eq!(nvme["partitions"], json!([{"name": "nvme0n1p1", "start_byte": 4096, "bytes": 512_000}]));
    assert_eq!((&disks[1]["kind"], &disks[1]["numa_node"]), (&json!("hdd"), &Value::Null));
}

#[test]
fn adapters_and_their_distances_are_told() {
    let node = cluster_node();
    let interfaces = node.record("network").data["interfaces"].clone();
    assert_eq!(
        interfaces[0],
        json!({"name": "ib0", "kind": "infiniband", "megabits_per_second": 100_000, "mtu": 4092, "up": true,
            "driver": null, "numa_node": 1, "pci": "0000:82:00.0"})
    );
    assert_eq!((&interfaces[1]["kind"], &interfaces[1]["up"]), (&json!("loopback"), &json!(true)));
    let pci = node.record("pci").data;
    let kinds: Vec<&Value> =
        pci["devices"].as_array().unwrap().iter().map(|device| &device["kind"]).collect();
    assert_eq!(kinds, ["storage", "infiniband", "display"], "bridges are none");
    assert_eq!(pci["devices"][2]["numa_node"], Value::Null);
    assert_eq!(pci["numa_distances"][1], json!({"node": 1, "to": [10, 21]}));
    assert_eq!(node.record("gpus").data["gpus"][0]["model"], "Fast GPU");
}

#[test]
fn the_rest_is_told() {
    let node = cluster_node();
    assert_eq!(node.record("kernel").data, json!({"release": "6.1.0", "modules": ["ahci", "ext4"]}));
    assert_eq!(node.record("filesystem-types").data["known"], json!(["ext4", "proc"]));
    assert_eq!(node.record("load").data, json!({"load": [0.25, 0.5, 1.0], "running": 3, "threads": 200}));
    let memory = node.record("memory-use");
    assert_eq!((&memory.data["free_bytes"], memory.missing.len()), (&json!(10_240), 5), "{memory:?}");
    assert_eq!(node.record("mounts").data["mounts"][0]["device"], "8:1");
}

/// One record, by one source, of programs that print this.
fn told_by(node: &Node, extractor: &str, source: &str) -> Record {
    let extractor = all().iter().find(|known| known.name == extractor).unwrap();
    collect_with(extractor, source, &node.system(), 1).unwrap()
}

const ASKED: &[(&str, &str, &str)] = &[
    ("disks", "lsblk", "lsblk"),
    ("mounts", "findmnt", "findmnt"),
    ("network", "ip", "ip"),
    ("kernel", "lsmod", "lsmod"),
    ("fabric", "ibnetdiscover", "ibnetdiscover"),
];

#[test]
fn programs_that_are_missing_fail_or_lie_make_records_that_say_so() {
    for (extractor, source, program) in ASKED {
        let node = Node::new();
        let record = told_by(&node, extractor, source);
        let why =
            |record: &Record| record.missing.iter().map(|m| m.why.clone()).collect::<Vec<_>>().join("; ");
        assert!(record.data.is_null() && why(&record).contains("not installed"), "{record:?}");
        node.program(program, "echo broken >&2; exit 7");
        let record = told_by(&node, extractor, source);
        assert!(record.data.is_null() && why(&record).contains("exit status: 7: broken"), "{record:?}");
        for lie in [
            "exit 0",
            "echo '{'",
            "echo '{\"blockdevices\": 5, \"filesystems\": {}}'",
            "printf '\\377\\000\\n'",
        ] {
            node.program(program, lie);
            let record = told_by(&node, extractor, source);
            // Any lines are a list of modules to who does not know their names.
            let is_list = *program == "lsmod" && record.data["modules"].is_array();
            assert!(record.data.is_null() && !record.missing.is_empty() || is_list, "{lie}: {record:?}");
        }
    }
}

#[test]
fn files_that_cannot_be_read_are_said_to_be_missing() {
    let node = cluster_node();
    for path in
        ["sys/block/nvme0n1/size", "sys/class/net/ib0/mtu", "sys/devices/system/cpu/cpu3/cache/index0/size"]
    {
        let real = fs::canonicalize(node.path(path)).unwrap();
        fs::remove_file(&real).unwrap();
        fs::create_dir(&real).unwrap();
    }
    for (extractor, part) in
        [("disks", "nvme0n1/size"), ("network", "ib0/mtu"), ("cpu", "cpu3/cache/index0/size")]
    {
        let record = node.record(extractor);
        assert!(!record.data.is_null(), "{record:?}");
        let missing = record.missing.iter().find(|missing| missing.what.contains(part));
        assert!(missing.is_some_and(|missing| missing.why.contains("directory")), "{record:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any of a node's files holds anything: every record comes, and nothing panics.
    #[test]
    fn no_content_of_files_is_too_strange(
        junk in prop::collection::vec(prop_oneof!["[ -~\n]{0,60}", "-?[0-9]{1,25}", "[0-9,-]{0,20}", "(0x)?[0-9a-f]{1,12}"], 1..6),
        pick in 0usize..1000,
    ) {
        let node = cluster_node();
        let mut files = Vec::new();
        let mut dirs = vec![node.dir.path().to_path_buf()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).unwrap().flatten() {
                let kind = entry.file_type().unwrap();
                if kind.is_dir() { dirs.push(entry.path()) } else if kind.is_file() { files.push(entry.path()) }
            }
        }
        files.sort();
        for (at, text) in junk.iter().enumerate() {
            fs::write(&files[(pick + at * 37) % files.len()], text).unwrap();
        }
        for extractor in all() {
            let record = collect(extractor, &node.system(), 1);
            prop_assert!(!record.data.is_null() || !record.missing.is_empty(), "{record:?}");
        }
    }
}
