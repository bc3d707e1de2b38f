//! What batch systems ask of stagers around a job, with stagers on several nodes: whether its data are there, cleaning
//! up when they are not, another try of what failed, and where data are already.

mod common;

use common::OwnStager;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use tidepool_testkit::free_address;

const MIB: usize = 1 << 20;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Stagers that know each other: node 0, which a batch system asks, and compute nodes. All know job 42.
struct Cluster {
    nodes: Vec<OwnStager>,
    addresses: Vec<String>,
    secret: tempfile::NamedTempFile,
}

impl Cluster {
    fn of(count: usize) -> Cluster {
        let secret = tempfile::NamedTempFile::new().unwrap();
        fs::write(secret.path(), format!("{}\n{}\n", "5a".repeat(32), "07".repeat(32))).unwrap();
        let addresses: Vec<String> = (0..count).map(|_| free_address().to_string()).collect();
        let node = |(at, address): (usize, &String)| {
            let secret = secret.path().display();
            OwnStager::with(&format!(
                "node = \"n{at}\"\nadmins = [\"13be4feaeaf204c7fd3358fc9c00721881d174278128227ec674f37f7fe97b6d\"]\nsecret-file = \"{secret}\"\nlisten = \"{address}\""
            ))
        };
        let nodes: Vec<OwnStager> = addresses.iter().enumerate().map(node).collect();
        for node in &nodes {
            node.ok(&["job", "register", "42", "--host", "n0", "--limit", "a", "--limit", "b"]);
        }
        Cluster { nodes, addresses, secret }
    }

    fn put(&self, node: usize, name: &str, bytes: usize) {
        let path = self.nodes[node].sandbox.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, vec![b'x'; bytes]).unwrap();
    }

    /// Submits at node 0, in the name of job 42.
    fn submit(&self, args: &[&str]) -> String {
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let behalf = format!("{uid}:{gid}:42");
        let all = [&["submit", "--on-behalf", &behalf], args].concat();
        self.nodes[0].ok(&all).trim().to_string()
    }

    /// A place on another node, as commands read it.
    fn at(&self, node: usize, place: &str) -> String {
        format!("{}/{place}", self.addresses[node])
    }

    /// All names below a directory of a node, temporary ones too.
    fn names(&self, node: usize, dir: &str) -> Vec<String> {
        let root = self.nodes[node].sandbox.path(dir);
        let mut names = Vec::new();
        walk(&root, &root, &mut names);
        names.sort();
        names
    }

    fn socket(&self, node: usize) -> String {
        self.nodes[node].socket().display().to_string()
    }

    fn kill(&self, node: usize) {
        let stager = &self.nodes[node];
        let started = stager.sandbox.ok(&["stage", "--json", "start", "--dir", &stager.dir()]);
        let pid = json(&started)["pid"].to_string();
        assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    }
}

fn walk(root: &Path, dir: &Path, names: &mut Vec<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        names.push(path.strip_prefix(root).unwrap().display().to_string());
        if path.is_dir() {
            walk(root, &path, names);
        }
    }
}

#[test]
fn a_job_is_ready_when_its_data_are_on_all_nodes() {
    let cluster = Cluster::of(3);
    let first = &cluster.nodes[0];
    let (_, error) = first.ends(120, &["job", "ready", "43"]);
    assert!(error.contains("job 43 is not registered"), "{error}");
    assert_eq!(json(&first.ok(&["--json", "job", "ready", "42"]))["state"], "ready", "nothing to be staged");
    cluster.put(0, "a/in/x", 4 * MIB);
    let ids: Vec<String> = [1, 2]
        .map(|node| {
            cluster.submit(&["--bandwidth", "2MiB", "copy", "a://in", &cluster.at(node, "b://case/in")])
        })
        .into();
    // Still moving: it waits.
    let (_, error) = first.ends(119, &["job", "ready", "42", "--timeout", "100ms"]);
    assert!(error.contains("not ended in time"), "{error}");
    let said = json(&first.ok(&["--json", "job", "ready", "42", "--timeout", "10m"]));
    assert_eq!((&said["state"], &said["exit"], &said["reason"]), (&"ready".into(), &0.into(), &Value::Null));
    assert_eq!(
        (&said["stagers"][0]["finished"], &said["stagers"][0]["bytes"]),
        (&2.into(), &(8 * MIB).into())
    );
    for id in &ids {
        assert_eq!(json(&first.ok(&["--json", "status", id]))["tasks"][0]["state"], "finished");
    }
    // Ready: at once. Data that have gone meanwhile are noticed, wherever they were.
    first.ok(&["job", "ready", "42", "--timeout", "0s"]);
    fs::remove_file(cluster.nodes[2].sandbox.path("b/case/in/x")).unwrap();
    let (_, error) = first.ends(117, &["job", "ready", "42"]);
    assert!(error.contains("gone") && error.contains(&cluster.at(2, "b://case/in")), "{error}");
    first.ok(&["job", "ready", "42", "--no-look"]);
}

#[test]
fn a_job_that_is_late_is_cleaned_up_on_all_nodes() {
    let cluster = Cluster::of(3);
    let first = &cluster.nodes[0];
    cluster.put(0, "a/small/x", 1000);
    cluster.put(0, "a/large", 64 * MIB);
    cluster.put(1, "b/mine", 7);
    let task = cluster.submit(&["copy", "a://small", &cluster.at(1, "b://case/deep/small")]);
    first.ok(&["wait", &task]);
    cluster.submit(&["--bandwidth", "8MiB", "copy", "a://large", &cluster.at(1, "b://large")]);
    cluster.submit(&["--bandwidth", "8MiB", "copy", "a://large", &cluster.at(2, "b://case/")]);
    while !cluster.names(2, "b").iter().any(|name| name.contains("tidepool-part")) {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let shown = first.ok(&["job", "ready", "42", "--clean", "--dry-run"]);
    assert!(
        shown.contains(&format!("{}: would be removed", cluster.at(1, "b://case/deep/small"))),
        "{shown}"
    );
    assert!(cluster.nodes[1].sandbox.path("b/case/deep/small/x").exists());
    let (out, error) = first.ends(119, &["job", "ready", "42", "--timeout", "200ms", "--clean"]);
    assert!(error.contains("not ended in time"), "{error}");
    assert!(out.contains(&format!("{}: removed", cluster.at(2, "b://case/large"))), "{out}");
    assert_eq!(cluster.names(1, "b"), ["mine"], "{out}");
    assert_eq!(cluster.names(2, "b"), [""; 0], "{out}");
    assert_eq!(cluster.names(0, "a"), ["large", "small", "small/x"]);
    // Once more is no harm.
    cluster.nodes[0].ends(118, &["job", "ready", "42", "--clean"]);
    assert_eq!(cluster.names(1, "b"), ["mine"]);
}

#[test]
fn a_job_whose_data_are_missing_is_cleaned_up_after_a_kill_too() {
    let cluster = Cluster::of(3);
    let first = &cluster.nodes[0];
    cluster.put(0, "a/in/x", 1000);
    for node in [1, 2] {
        let id = cluster.submit(&["copy", "a://in", &cluster.at(node, "b://in")]);
        first.ok(&["wait", &id]);
    }
    let local = cluster.submit(&["copy", "a://in", "b://here/"]);
    first.ok(&["wait", &local]);
    cluster.submit(&["copy", "a://missing", &cluster.at(1, "b://more")]);
    cluster.kill(0);
    first.start();
    let said = first.ends(117, &["--json", "job", "ready", "42", "--timeout", "1m", "--clean"]).0;
    let said = json(&said);
    let reason = said["reason"].as_str().unwrap();
    assert!(reason.contains("a://missing") && reason.contains("no such file"), "{reason}");
    assert_eq!(said["state"], "failed");
    for node in [0, 1, 2] {
        assert_eq!(cluster.names(node, "b"), [""; 0], "node {node}");
    }
    assert_eq!(cluster.names(0, "a"), ["in", "in/x"]);
}

#[test]
fn cleaning_up_removes_nothing_that_was_there_or_may_be_the_only_copy() {
    let cluster = Cluster::of(2);
    let first = &cluster.nodes[0];
    cluster.put(0, "a/in/x", 1000);
    cluster.put(0, "a/moved/y", 1000);
    cluster.put(1, "b/in/old", 5);
    for args in [
        ["copy", "a://in", &cluster.at(1, "b://in")],
        ["move", "a://moved", &cluster.at(1, "b://moved")],
        ["copy", "a://in", "b://kept"],
        // Into what another copy has made: it goes with that.
        ["copy", "a://in", "b://new/"],
        ["copy", "a://in/x", "b://new/in/again"],
    ] {
        let id = cluster.submit(&args);
        first.ok(&["wait", &id]);
    }
    first.ok(&["persist", "store", "b://kept"]);
    cluster.submit(&["copy", "a://missing", "b://missing"]);
    let (out, error) = first.ends(113, &["job", "ready", "42", "--clean"]);
    assert!(error.contains("a://missing") && error.contains("2 place(s) could not be cleaned"), "{error}");
    for part in ["was there before", "nothing else may hold it", "is kept"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert_eq!(cluster.names(1, "b"), ["in", "in/old", "in/x", "moved", "moved/y"]);
    assert_eq!(cluster.names(0, "b"), ["kept", "kept/x"]);
    let user = first.sandbox.path("run/user.socket").display().to_string();
    first.ends(122, &["--socket", &user, "job", "ready", "42", "--clean"]);
}

#[test]
fn what_a_failed_stage_out_left_is_brought_over_by_a_retry() {
    let cluster = Cluster::of(2);
    let results = tempfile::tempdir().unwrap();
    let mount = results.path().display().to_string();
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let behalf = format!("{uid}:{gid}:42");
    for (at, node) in cluster.nodes.iter().enumerate() {
        cluster.put(at, &format!("b/out/{at}"), 2000);
        let space = ["--mount", &mount, "--kind", "shared"];
        node.ok(&[&["dataspace", "register", "pfs"], &space[..], &["--capacity", "1000"]].concat());
        node.ok(&["job", "update", "42", "--host", "n0", "--limit", "b", "--limit", "pfs"]);
        let to = format!("pfs://out{at}");
        let (_, error) =
            node.ends(117, &["submit", "--wait", "--on-behalf", &behalf, "move", "b://out", &to]);
        assert!(error.contains("1000 bytes in all") && error.contains("resume"), "{error}");
        assert_eq!(cluster.names(at, "b"), ["out", &format!("out/{at}")], "nothing is removed before");
    }
    let retry = ["job", "retry", "42", "--wait", "--stager", &cluster.socket(1)];
    let (_, error) = cluster.nodes[0].ends(117, &retry);
    assert!(error.contains("1000 bytes in all"), "{error}");
    for (at, node) in cluster.nodes.iter().enumerate() {
        assert_eq!(cluster.names(at, "b").len(), 2, "it failed again, and all is still there");
        node.ok(&["dataspace", "update", "pfs", "--mount", &mount, "--kind", "shared"]);
    }
    let said = json(&cluster.nodes[0].ok(&[&retry[..], &["--json"]].concat()));
    assert_eq!(said["resumed"][1]["ids"].as_array().unwrap().len(), 1, "{said}");
    assert!(said["tasks"].as_array().unwrap().iter().all(|task| task["state"] == "finished"), "{said}");
    for at in 0..2 {
        assert_eq!(cluster.names(at, "b"), [""; 0]);
        let there = fs::read(results.path().join(format!("out{at}/{at}"))).unwrap();
        assert_eq!(there, [b'x'; 2000]);
    }
    let nothing = cluster.nodes[0].ok(&["job", "retry", "42"]);
    assert!(nothing.contains("0 task(s)"), "{nothing}");
    // What was cancelled is another matter.
    cluster.put(0, "b/slow", 32 * MIB);
    let id = cluster.submit(&["--bandwidth", "1MiB", "copy", "b://slow", "pfs://slow"]);
    cluster.nodes[0].ok(&["cancel", &id]);
    cluster.nodes[0].ends(118, &["wait", &id]);
    assert!(cluster.nodes[0].ok(&["job", "retry", "42"]).contains("0 task(s)"));
    assert!(cluster.nodes[0].ok(&["job", "retry", "42", "--cancelled"]).contains("1 task(s)"));
    cluster.nodes[0].ok(&["cancel", &id]);
}

#[test]
fn the_next_phase_runs_where_its_data_are_or_they_go_from_node_to_node() {
    let cluster = Cluster::of(3);
    let first = &cluster.nodes[0];
    cluster.put(2, "b/mesh/x", 3000);
    cluster.put(2, "b/mesh/y", 500);
    cluster.put(1, "b/mesh/y", 500);
    cluster.nodes[2].ok(&["persist", "store", "b://mesh", "--expires", "6w"]);
    let nodes = [
        "--node".to_string(),
        "n0".into(),
        "--node".into(),
        format!("n1={}", cluster.addresses[1]),
        "--node".into(),
        format!("n2={}", cluster.addresses[2]),
    ];
    let find = |more: &[&str]| {
        let words: Vec<&str> =
            ["where", "b://mesh"].into_iter().chain(nodes.iter().map(String::as_str)).collect();
        first.ok(&[&words[..], more].concat())
    };
    let said = json(&find(&["--json"]));
    assert_eq!(said["best"], "n2");
    let would_move: Vec<u64> =
        said["nodes"].as_array().unwrap().iter().map(|node| node["would_move"].as_u64().unwrap()).collect();
    assert_eq!(would_move, [3500, 3000, 0]);
    assert_eq!(find(&["--best", "2"]), "n2,n1\n");
    assert!(find(&[]).contains("2.9 KiB"), "{}", find(&[]));
    // Node 2 is not to be had: from it to node 0.
    let tasks = find(&["--bring-to", "n0"]);
    assert_eq!(tasks, format!("copy {} b://mesh\n", cluster.at(2, "b://mesh")));
    fs::write(first.sandbox.path("tasks.txt"), &tasks).unwrap();
    first.ok(&["submit", "--wait", "--from", "tasks.txt"]);
    assert_eq!(cluster.names(0, "b"), ["mesh", "mesh/x", "mesh/y"]);
    let said = json(&find(&["--json"]));
    assert_eq!((&said["best"], &said["nodes"][0]["would_move"]), (&"n0".into(), &0.into()));
    assert_eq!(find(&["--bring-to", "n0"]), "");
    // Where the data are already, a stage-in moves nothing.
    let again = cluster.submit(&["copy", &cluster.at(2, "b://mesh"), "b://mesh"]);
    first.ok(&["wait", &again]);
    assert_eq!(json(&first.ok(&["--json", "job", "report", "42"]))["bytes"], 0);
    let (_, error) = first.ends(123, &["where", "b://nothing", "--node", "n0"]);
    assert!(error.contains("b://nothing"), "{error}");
    first.ends(2, &["where", "b://mesh", "--node", "n0", "--bring-to", "n7"]);
}

#[test]
fn held_tasks_wait_for_the_release_of_their_job() {
    let stager = OwnStager::with("");
    fs::write(stager.sandbox.path("a/x"), "12345").unwrap();
    let own = format!("{}:{}:42", rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    stager.ok(&["job", "register", "42", "--host", "n0", "--limit", "a://", "--limit", "b://"]);
    let hold = |from: &str, to: &str| {
        let id = stager.ok(&["submit", "--on-behalf", &own, "--held", "copy", from, to]);
        id.trim().to_string()
    };
    let (good, bad) = (hold("a://x", "b://out/x"), hold("gone://x", "b://y"));
    let shown = json(&stager.ok(&["--json", "status", &good, &bad]));
    for task in shown["tasks"].as_array().unwrap() {
        assert_eq!((&task["state"], &task["phase"]), (&"pending".into(), &"held".into()), "{task}");
    }
    assert!(stager.ok(&["list", "--state", "pending"]).contains("held"));
    assert!(stager.ok(&["status", &good]).contains("held"));
    // Nothing waits for them, and they keep the job.
    let ready = json(&stager.ok(&["--json", "job", "ready", "42"]));
    assert_eq!((&ready["state"], &ready["stagers"][0]["tasks"]), (&"ready".into(), &0.into()));
    stager.ok(&["job", "ready", "42", "--clean", "--dry-run"]);
    assert!(stager.ok(&["status", "--watch", "--job", "42"]).contains("no task"));
    for args in [&["job", "unregister", "42"][..], &["shutdown"]] {
        let (_, said) = stager.ends(120, args);
        assert!(said.contains("2 are held"), "{said}");
    }
    let (said, error) = stager.ends(117, &["job", "release", "42", "--wait"]);
    assert!(said.starts_with("2 held task(s) of job 42 may start\n"), "{said}");
    assert!(error.contains(&format!("task {bad}")) && error.contains("gone://"), "{error}");
    assert_eq!(fs::read_to_string(stager.sandbox.path("b/out/x")).unwrap(), "12345");
    let again = json(&stager.ok(&["--json", "job", "release", "42", "--wait"]));
    assert_eq!(again["released"], 0);
    stager.ok(&["job", "unregister", "42"]);
    // What makes no sense.
    stager.ends(2, &["submit", "--held", "copy", "a://x", "b://z"]);
    stager.ends(2, &["submit", "--on-behalf", &own, "--held", "--wait", "copy", "a://x", "b://z"]);
    stager.ends(120, &["job", "release", "42"]);
    stager.ends(120, &["submit", "--on-behalf", &own, "--held", "copy", "a://x", "b://z"]);
}

/// What is scattered is seen by its stager, and by nobody else.
#[test]
fn the_names_of_a_scatter_are_asked_where_they_are() {
    let cluster = Cluster::of(2);
    let first = &cluster.nodes[0];
    for name in ["processor0", "processor1", "processor2"] {
        cluster.put(0, &format!("a/case/{name}/field"), 10);
        cluster.put(1, &format!("b/case/{name}/field"), 10);
    }
    let node = format!("n1={}", cluster.addresses[1]);
    let map = |source: &str, more: &[&str]| {
        let words = ["map", "scatter:processor{rank}", source, "a://mine", "--node", "n0", "--node", &node];
        [&words[..], more].concat().into_iter().map(String::from).collect::<Vec<_>>()
    };
    let run =
        |code: i32, args: &[String]| first.ends(code, &args.iter().map(String::as_str).collect::<Vec<_>>());
    let here = run(0, &map("a://case", &[])).0;
    assert_eq!(here.lines().count(), 3);
    assert!(here.contains("copy a://case/processor0 a://mine/processor0\n"), "{here}");
    // At another stager: with the secret.
    let there = cluster.at(1, "b://case");
    let said = run(2, &map(&there, &[])).1;
    assert!(said.contains("--secret-file") && said.contains(&cluster.addresses[1]), "{said}");
    let secret = cluster.secret.path().display().to_string();
    let list = run(0, &map(&there, &["--secret-file", &secret])).0;
    assert!(list.contains(&format!("copy {there}/processor0 a://mine/processor0\n")), "{list}");
    fs::write(first.sandbox.path("tasks.txt"), &list).unwrap();
    let own = format!("{}:{}:42", rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    first.ok(&["submit", "--wait", "--on-behalf", &own, "--from", "tasks.txt"]);
    assert_eq!(cluster.names(0, "a/mine").len() + cluster.names(1, "a/mine").len(), 6);
    // In a user's name.
    assert_eq!(run(0, &map("a://case", &["--on-behalf", &own])).0, here);
    let said = run(120, &map("a://nowhere", &[])).1;
    assert!(said.contains("no such file"), "{said}");
}
