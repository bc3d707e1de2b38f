//! `tidepool plan`, and what `run` and `pool start` make of it.

mod common;

use common::sshd::Sshd;
use common::{Sandbox, text};
use serde_json::{Value, json};
use std::fs;
use std::process::Command;

/// Without the variables that name a store.
fn plain(sandbox: &Sandbox, args: &[&str]) -> Command {
    let mut command = sandbox.tidepool(args);
    command.env_remove("TIDEPOOL_STORE").env_remove("TMPDIR");
    command
}

/// What the plan is, as JSON; it may say that the data do not fit.
fn plan(sandbox: &Sandbox, args: &[&str]) -> Value {
    let output = plain(sandbox, &[&["plan", "--json"], args].concat()).output().unwrap();
    let code = output.status.code();
    assert!(code == Some(0) || code == Some(123), "{args:?}: {}", text(&output));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(code == Some(123), told["room"]["fits"] == false, "{told}");
    told
}

fn record(host: &str, extractor: &str, data: &Value) -> String {
    let line = json!({"host": host, "extractor": extractor, "version": 1, "class": "dynamic", "source": "test",
                      "taken_ms": 1, "data": data});
    format!("{line}\n")
}

/// Records of a node with a small system disk, and a fast one at NUMA node 1 that was measured.
fn node(host: &str, write: f64, gigabits: u64) -> String {
    let fs = |target: &str, disk: &str, kind: &str, bytes: u64| {
        json!({"target": target, "kind": "xfs", "source": disk, "device": "8:1", "disk": disk, "disk_kind": kind,
               "read_only": false, "total_bytes": bytes, "available_bytes": bytes, "files": 1, "files_free": 1})
    };
    let spread = |median: f64| json!({"median": median, "min": median, "max": median});
    let nic = |name: &str, speed: u64| {
        json!({"name": name, "kind": "ethernet", "megabits_per_second": speed * 1000, "mtu": 1500, "up": true,
               "driver": "x", "numa_node": 0, "pci": null})
    };
    [
        ("filesystems", json!({"filesystems": [fs("/", "sda", "hdd", 50 << 30), fs("/local", "nvme0n1", "nvme", 1000 << 30)]})),
        ("disks", json!({"disks": [{"name": "sda", "numa_node": 0}, {"name": "nvme0n1", "numa_node": 1}]})),
        ("cpu", json!({"numa": [{"node": 0, "cpus": "0-3", "memory_bytes": 1}, {"node": 1, "cpus": "4-7", "memory_bytes": 1}]})),
        ("network", json!({"interfaces": [nic("eth0", 1), nic("ib0", gigabits)]})),
        ("storage-rates", json!({"stores": [{"path": "/local", "public": true, "write": spread(write), "read": spread(write)},
                                            {"path": "/tmp", "public": true, "write": spread(1e8), "read": spread(1e8)}]})),
    ]
    .iter()
    .map(|(extractor, data)| record(host, extractor, data))
    .collect()
}

const TOPOLOGY: &str = r#"
[[switch]]
name = "leaf1"
hosts = "n[1-2]"
gigabits-per-second = 100
[[switch]]
name = "leaf2"
hosts = "n[3-4]"
gigabits-per-second = 100
[[switch]]
name = "core"
switches = "leaf[1-2]"
gigabits-per-second = 100
"#;

/// A database of four nodes, the last one slower; and the file of their network.
fn site(sandbox: &Sandbox) -> (String, String) {
    let (db, lines, network) =
        (sandbox.path("r.db"), sandbox.path("records.jsonl"), sandbox.path("topology.toml"));
    let rates = [2e9, 2e9, 2e9, 1e9];
    let text: String = (0..4).map(|n| node(&format!("n{}", n + 1), rates[n], 100)).collect();
    fs::write(&lines, text).unwrap();
    fs::write(&network, TOPOLOGY).unwrap();
    let db = db.to_str().unwrap().to_string();
    sandbox.ok(&["sysmap", "import", "--db", &db, lines.to_str().unwrap()]);
    (db, network.to_str().unwrap().to_string())
}

#[test]
fn g10_plans_follow_the_resource_database() {
    let sandbox = Sandbox::new();
    let (db, network) = site(&sandbox);
    let site = ["--db", &db, "--hosts", "n1,n2,n3,n4"];
    let with = |args: &[&str]| plan(&sandbox, &[&site[..], args].concat());
    let told = with(&[]);
    assert_eq!(told["store"]["value"], "/local");
    assert_eq!(told["store"]["basis"], "measured");
    assert_eq!(told["nic"]["value"], "ib0");
    assert_eq!(told["cores"]["value"], json!([[4, 5, 6, 7], [4, 5, 6, 7], [4, 5, 6, 7], [4, 5, 6, 7]]));
    assert_eq!(
        (&told["placement"]["value"], &told["weights"]["value"]),
        (&json!("weighted"), &json!([100, 100, 100, 50]))
    );
    assert_eq!(told["transport"]["value"], "TCP");
    // 900 GiB of 1,000 for the first three; the last one gets a seventh.
    let room = told["room"]["available_bytes"].as_u64().unwrap() >> 30;
    assert_eq!(room, 3150, "{told}");
    // More than that fits if all take the same.
    let more = with(&["--expect-size", "3500GB"]);
    assert_eq!(
        (&more["placement"]["value"], &more["room"]["fits"]),
        (&json!("wide"), &json!(true)),
        "{more}"
    );
    assert_eq!(with(&["--expect-size", "3900GB"])["room"]["fits"], false);

    let told = with(&["--pattern", "own", "--topology", &network, "--stage-in", "1GB"]);
    assert_eq!(told["placement"]["value"], "group", "{told}");
    assert_eq!(told["groups"]["value"], json!(["leaf1", "leaf1", "leaf2", "leaf2"]));
    assert_eq!(with(&["--pattern", "own"])["placement"]["value"], "local");
    assert_eq!(with(&["--program-nodes", "3"])["deploy"]["value"], "dedicated:1");
    let told = with(&["--stage-in", "1000GB", "--stage-out", "0", "--walltime", "1h"]);
    assert_eq!(told["costs"]["partial"], false, "{told}");
    assert!(told["costs"]["share"].as_f64().unwrap() > 0.01, "{told}");

    // Each choice can be made otherwise.
    for (args, what, value) in [
        (&["--store", "/x"][..], "store", json!("/x")),
        (&["--placement", "wide"], "placement", json!("wide")),
        (&["--chunk-size", "1MiB"], "chunk_size", json!(1 << 20)),
        (&["--stripe", "2"], "stripe", json!(2)),
        (&["--weights", "1,2,3,4"], "weights", json!([1, 2, 3, 4])),
        (&["--groups", "a,a,b,b"], "groups", json!(["a", "a", "b", "b"])),
        (&["--daemon-cores", "0"], "cores", json!([[0], [0], [0], [0]])),
        (&["--nic", "eth0"], "nic", json!("eth0")),
        (&["--fabric", "tcp"], "transport", json!("libfabric (tcp)")),
        (&["--deploy", "subset:2"], "deploy", json!("subset:2")),
    ] {
        let told = with(args);
        assert_eq!(told[what]["value"], value, "{args:?}: {told}");
        assert_eq!(told[what]["basis"], "asked", "{args:?}: {told}");
    }
    // Nodes that nobody has looked at.
    let told = plan(&sandbox, &["--db", &db, "--hosts", "n1,m1"]);
    assert_eq!((&told["store"]["value"], &told["nic"]["value"]), (&json!("/tmp"), &Value::Null));
    assert!(told["warnings"].to_string().contains("nothing is known of m1"), "{told}");
}

#[test]
fn plans_are_for_people_too() {
    let sandbox = Sandbox::new();
    let output = plain(&sandbox, &["plan", "--expect-size", "1MiB", "--walltime", "1h"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let said = text(&output);
    for part in ["--chunk-size", "512.0 KiB", "room: ", "of the wall time", "start and stop"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    for (args, words) in [
        (&["--pattern", "own,shared"][..], "contradict"),
        (&["--pattern", "often"], "write own or shared"),
        (&["--walltime", "soon"], "is no time"),
        (&["--stage-in", "much"], "no file of this name"),
        (&["--placement", "local", "--chunk-size", "1MiB"], "not cut into chunks"),
        (&["--db", "/no/such.db"], "there is no resource database"),
        (&["--program-nodes", "1", "--deploy", "shared"], "cannot be used with"),
    ] {
        let output = plain(&sandbox, &[&["plan"], args].concat()).output().unwrap();
        assert!(!output.status.success(), "{args:?}");
        assert!(text(&output).contains(words), "{args:?}: {}", text(&output));
    }
}

/// A database that nobody has named is no reason not to start.
#[test]
fn a_broken_database_is_in_nobodys_way() {
    let sandbox = Sandbox::new();
    let broken = sandbox.path("state/tidepool/resources.db");
    fs::create_dir_all(broken.parent().unwrap()).unwrap();
    fs::write(&broken, "this is no database, and it is long enough to be looked at as if it were one")
        .unwrap();
    let output = sandbox.tidepool(&["run", "--", "true"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("planned without it"), "{}", text(&output));
    let output = sandbox.tidepool(&["run", "--db", broken.to_str().unwrap(), "--", "true"]).output().unwrap();
    assert!(!output.status.success(), "{}", text(&output));
    sandbox.assert_nothing_left("after both");
}

/// WANTS 18: what does not fit is refused before anything is started.
#[test]
fn w18_pools_that_are_too_small_are_not_started() {
    let sandbox = Sandbox::new();
    let store = sandbox.store().display().to_string();
    for args in [
        &["pool", "start", "--name", "big", "--expect-size", "900TB"][..],
        &["run", "--expect-size", "900TB", "--", "true"],
        &["run", "--quota", "1MiB", "--expect-size", "2MiB", "--", "true"],
    ] {
        let output = sandbox.tidepool(args).output().unwrap();
        assert_eq!(output.status.code(), Some(110), "{args:?}: {}", text(&output));
        assert!(text(&output).contains("do not fit"), "{args:?}: {}", text(&output));
        sandbox.assert_nothing_left("after a refusal");
    }
    sandbox.ok(&["run", "--store", &store, "--expect-size", "1MiB", "--", "true"]);
    // Starting takes some hundredths of a second.
    for (walltime, warned) in [("100ms", true), ("1h", false)] {
        let output = sandbox.tidepool(&["run", "--walltime", walltime, "--", "true"]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        assert_eq!(text(&output).contains("may not be worth it"), warned, "{walltime}: {}", text(&output));
    }
    sandbox.assert_nothing_left("after a run that fits");
}

/// The data of a pool that was stopped with `--keep` are found again wherever its plan had put them.
#[test]
fn a_kept_pool_finds_its_store() {
    let sandbox = Sandbox::new();
    let other = sandbox.path("elsewhere");
    fs::create_dir(&other).unwrap();
    let start = ["pool", "start", "--name", "kept", "--nodes", "2", "--client", "preload", "--keep"];
    sandbox.ok(&[&start[..], &["--store", other.to_str().unwrap()]].concat());
    sandbox.ok(&["mkdir", "--pool", "kept", "/there"]);
    sandbox.ok(&["pool", "stop", "--pool", "kept", "--keep"]);
    let output = plain(&sandbox, &start).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(sandbox.ok(&["ls", "--pool", "kept", "/"]).contains("there"));
    sandbox.ok(&["pool", "stop", "--pool", "kept"]);
    assert!(fs::read_dir(&other).unwrap().next().is_none(), "nothing is left where the data were");
    sandbox.assert_nothing_left("after the pool");
}

/// Daemons on other nodes are reached by the interface that is named.
#[test]
fn g10_daemons_are_reached_by_their_interface() {
    let Some(sshd) = Sshd::start() else { return };
    let sandbox = Sandbox::new();
    let start = ["pool", "start", "--name", "nic", "--hosts", "node-a,node-b", "--client", "preload"];
    sshd.ok(&sandbox, &[&start[..], &["--nic", "lo"]].concat());
    let file = fs::read(sandbox.runtime().join("nic/pool.json")).unwrap();
    let pool: Value = serde_json::from_slice(&file).unwrap();
    for member in pool["members"].as_array().unwrap() {
        let tcp = member["tcp"].as_str().unwrap();
        assert!(tcp.starts_with("127.0.0.1:"), "{tcp}");
    }
    sandbox.ok(&["mkdir", "--pool", "nic", "/d"]);
    sandbox.ok(&["pool", "stop", "--pool", "nic"]);
    let failed = sshd.tidepool(&sandbox, &[&start[..], &["--nic", "ib7"]].concat()).output().unwrap();
    assert_eq!(failed.status.code(), Some(110), "{}", text(&failed));
    let said = text(&failed);
    assert!(
        said.contains("no interface of this node with an address; there are") && said.contains("lo"),
        "{said}"
    );
    sandbox.assert_nothing_left("after both");
}
