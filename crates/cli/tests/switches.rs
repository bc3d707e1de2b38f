//! Pools over switches: nodes are network name spaces, each on the bridge that is its leaf switch, and the bytes between
//! the leaves are counted where they pass.

mod common;

use common::{Sandbox, processes_of, text};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tidepool_testkit::put_program;

const PREFIX: &str = "tpswitch";
const LEAVES: usize = 2;
const NODES_PER_LEAF: usize = 2;
const NODES: usize = LEAVES * NODES_PER_LEAF;
/// Of each node's own file.
const FILE_BYTES: u64 = 16 << 20;
const ALL_BYTES: u64 = NODES as u64 * FILE_BYTES;
const CHUNK_BYTES: u64 = 512 << 10;
/// What may cross between leaves when data do not: names, and what keeps connections.
const METADATA_PERCENT_MAX: u64 = 2;
/// What crosses beside data that do: headers, acknowledgements.
const HEADERS_PERCENT_MAX: u64 = 8;

const PATIENCE: Duration = Duration::from_secs(30);

/// Fabrics of this process.
static FABRICS: AtomicU32 = AtomicU32::new(0);

fn quietly(words: &[&str]) -> bool {
    let done = Command::new(words[0]).args(&words[1..]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    done.is_ok_and(|status| status.success())
}

fn must(words: &str) {
    assert!(quietly(&words.split(' ').collect::<Vec<_>>()), "{words}");
}

/// Removes the name spaces that `doomed` names, and ends what still runs in them.
fn remove(doomed: impl Fn(&str) -> bool) {
    let Ok(entries) = fs::read_dir("/run/netns") else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !doomed(&name) {
            continue;
        }
        let inside = Command::new("ip").args(["netns", "pids", &name]).output();
        let pids = inside.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        for pid in pids.unwrap_or_default().lines() {
            quietly(&["kill", "-9", pid]);
        }
        quietly(&["ip", "netns", "del", &name]);
    }
}

/// What runs that were killed have left behind.
fn sweep() {
    let owner = |space: &str| -> Option<u32> {
        space.strip_prefix(PREFIX)?.strip_prefix('-')?.split('-').next()?.parse().ok()
    };
    remove(|space| owner(space).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()));
}

/// Nodes n1, n2, ... on leaf switches, which a core switch joins. Each node has a boot id, runtime and store directories
/// of its own, so that nothing but the network leads from one to another.
struct Fabric {
    name: String,
    sandbox: Sandbox,
}

fn leaf_of(node: usize) -> usize {
    (node - 1) / NODES_PER_LEAF + 1
}

impl Fabric {
    /// `None`, loudly, where name spaces cannot be made.
    fn new() -> Option<Fabric> {
        sweep();
        let number = FABRICS.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}-{}-{number}", std::process::id());
        let switches = format!("{name}-switches");
        // Made before its parts, so that a failure takes down what there is.
        let fabric = Fabric { name, sandbox: Sandbox::new() };
        let made = quietly(&["ip", "netns", "add", &switches])
            && quietly(&["ip", "-n", &switches, "link", "add", "core1", "type", "bridge"]);
        if !made {
            println!("SKIPPED: network name spaces with bridges cannot be made here (not root, or no ip)");
            return None;
        }
        must(&format!("ip -n {switches} link set core1 up"));
        (1..=LEAVES).for_each(|leaf| fabric.add_leaf(&switches, leaf));
        (1..=NODES).for_each(|node| fabric.add_node(&switches, node));
        fabric.write_files();
        Some(fabric)
    }

    fn add_leaf(&self, switches: &str, leaf: usize) {
        must(&format!("ip -n {switches} link add leaf{leaf} type bridge"));
        must(&format!("ip -n {switches} link set leaf{leaf} up"));
        must(&format!("ip -n {switches} link add up{leaf} type veth peer name down{leaf}"));
        must(&format!("ip -n {switches} link set up{leaf} master leaf{leaf} up"));
        must(&format!("ip -n {switches} link set down{leaf} master core1 up"));
    }

    fn add_node(&self, switches: &str, node: usize) {
        let (space, leaf) = (format!("{}-n{node}", self.name), leaf_of(node));
        must(&format!("ip netns add {space}"));
        must(&format!("ip -n {space} link add eth0 type veth peer name port{node} netns {switches}"));
        must(&format!("ip -n {switches} link set port{node} master leaf{leaf} up"));
        must(&format!("ip -n {space} addr add 10.80.0.{node}/24 dev eth0"));
        must(&format!("ip -n {space} link set lo up"));
        must(&format!("ip -n {space} link set eth0 up"));
    }

    /// The topology, and what makes a name space a node: `on NODE COMMAND...`, as ssh would.
    fn write_files(&self) {
        let dir = self.sandbox.dir.path();
        let put = |name: &str, text: &str| fs::write(self.sandbox.path(name), text).unwrap();
        let mut hosts = "127.0.0.1 localhost\n".to_string();
        for node in 1..=NODES {
            fs::create_dir(self.sandbox.path(&format!("n{node}"))).unwrap();
            put(&format!("boot-n{node}"), &format!("5a17ab1e-0000-4000-8000-{node:012}\n"));
            hosts += &format!("10.80.0.{node} n{node}\n");
            let byte = |i: u32| (i.wrapping_mul(0x9e37_79b1 + 2 * node as u32) >> 24) as u8;
            let data: Vec<u8> = (0..FILE_BYTES as u32).map(byte).collect();
            fs::write(self.sandbox.path(&format!("data-n{node}")), data).unwrap();
        }
        fs::create_dir(self.sandbox.path("here")).unwrap();
        put("hosts", &hosts);
        let mut switches = String::new();
        for leaf in 1..=LEAVES {
            let first = (leaf - 1) * NODES_PER_LEAF + 1;
            let nodes = format!("n[{first}-{}]", first + NODES_PER_LEAF - 1);
            switches += &format!("[[switch]]\nname = \"leaf{leaf}\"\nhosts = \"{nodes}\"\n");
        }
        switches += &format!("[[switch]]\nname = \"core1\"\nswitches = \"leaf[1-{LEAVES}]\"\n");
        put("switches.toml", &switches);
        let (dir, name) = (dir.display(), &self.name);
        let on = format!(
            "#!/bin/sh\nnode=$1\nshift\nexport DIR='{dir}' NODE=$node\nexec ip netns exec {name}-$node sh -c '\n\
             mount --bind \"$DIR/boot-$NODE\" /proc/sys/kernel/random/boot_id &&\n\
             mount --bind \"$DIR/hosts\" /etc/hosts &&\n\
             mount --bind \"$DIR/$NODE\" \"$DIR/here\" || exit 125\n\
             eval \"exec $0\"' \"$*\"\n"
        );
        put_program(&self.sandbox.path("on"), &on);
    }

    /// `tidepool` at a node; words as a shell has them.
    fn tidepool_on(&self, node: usize, words: &str) -> Command {
        let here = |name: &str| self.sandbox.path("here").join(name);
        let mut command = Command::new(self.sandbox.path("on"));
        let program = env!("CARGO_BIN_EXE_tidepool");
        command.arg(format!("n{node}")).arg(format!("'{program}' {words}"));
        command.env("TIDEPOOL_RUNTIME", here("rt")).env("TIDEPOOL_STORE", here("store"));
        command.env("XDG_STATE_HOME", here("state")).env("TIDEPOOL_SSH", self.sandbox.path("on"));
        for name in
            ["TIDEPOOL_POOL", "TIDEPOOL_DIR", "TIDEPOOL_TRANSPORT", "TIDEPOOL_RESOURCES", "LD_PRELOAD"]
        {
            command.env_remove(name);
        }
        command
    }

    fn ok(&self, node: usize, words: &str) -> String {
        demand(words, &self.tidepool_on(node, words).output().unwrap())
    }

    /// The same at all nodes at once.
    fn all(&self, words: &str) {
        let start = |node: usize| {
            self.tidepool_on(node, words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let children: Vec<Child> = (1..=NODES).map(start).collect();
        for child in children {
            demand(words, &child.wait_with_output().unwrap());
        }
    }

    /// A program at all nodes at once, which sees the pool as its working directory; bytes that went between leaves.
    fn crossing(&self, program: &str) -> u64 {
        let before = self.between_leaves();
        self.all(&format!("exec --pool p --client preload -- sh -c '{program}'"));
        self.between_leaves() - before
    }

    /// What has passed the first leaf's way up, in both directions: with two leaves all that has gone between them.
    fn between_leaves(&self) -> u64 {
        let files = ["rx", "tx"].map(|way| format!("/sys/class/net/up1/statistics/{way}_bytes"));
        let space = format!("{}-switches", self.name);
        let output = Command::new("ip").args(["netns", "exec", &space, "cat"]).args(files).output().unwrap();
        demand("counters", &output).lines().map(|line| line.parse::<u64>().unwrap()).sum()
    }

    /// Chunks of a file by the leaf that they lie on.
    fn chunks(&self, path: &str) -> [u64; LEAVES] {
        let topology = self.sandbox.path("switches.toml");
        let words = format!("topology draw --topology {} --pool p --path {path} -o -", topology.display());
        let drawn = self.ok(1, &words);
        let mut found = [0; LEAVES];
        for node in 1..=NODES {
            let title = format!("<title>n{node}, leaf{}, daemons: 1, chunks: ", leaf_of(node));
            let (_, rest) = drawn.split_once(&title).unwrap_or_else(|| panic!("{title}: {drawn}"));
            found[leaf_of(node) - 1] += rest.split('<').next().unwrap().parse::<u64>().unwrap();
        }
        assert_eq!(found.iter().sum::<u64>(), FILE_BYTES / CHUNK_BYTES, "{path}");
        found
    }

    fn start_pool(&self, placement: &str) {
        let topology = self.sandbox.path("switches.toml");
        let words = format!(
            "pool start --name p --hosts n1,n2,n3,n4 --topology {} --placement {placement} \
             --chunk-size {CHUNK_BYTES} --client preload",
            topology.display()
        );
        self.ok(1, &words);
    }

    fn stop_pool(&self) {
        self.ok(1, "pool stop --pool p");
        // Other nodes are cleaned by their agents, which end after the daemons.
        let deadline = Instant::now() + PATIENCE;
        while !processes_of(self.sandbox.dir.path()).is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.sandbox.assert_nothing_left("after the pool");
        for (node, folder) in (1..=NODES).flat_map(|node| ["rt", "store"].map(|folder| (node, folder))) {
            let left = fs::read_dir(self.sandbox.path(&format!("n{node}/{folder}")));
            let left: Vec<_> = left.map(|entries| entries.flatten().collect()).unwrap_or_default();
            assert!(left.is_empty(), "n{node}: {left:?}");
        }
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        remove(|space| space.strip_prefix(&self.name).is_some_and(|rest| rest.starts_with('-')));
    }
}

fn demand(what: &str, output: &Output) -> String {
    assert!(output.status.success(), "{what}: {}", text(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const WRITE: &str = "cp \"$DIR/data-$NODE\" file-$NODE";
/// Of what this node wrote.
const READ: &str = "cmp \"$DIR/data-$NODE\" file-$NODE";

/// INVENTORY A12 and A13: in a pool with placement "group" each node's file lies on its leaf switch, all chunks of it, and
/// between the leaves there is next to nothing.
#[test]
fn r_a12_data_stay_on_the_switch_where_they_are_written() {
    let Some(fabric) = Fabric::new() else { return };
    fabric.start_pool("group");
    let (written, read) = (fabric.crossing(WRITE), fabric.crossing(READ));
    println!("of {ALL_BYTES} bytes between leaves: {written} when written, {read} when read");
    let status: Value = serde_json::from_str(&fabric.ok(1, "pool status --pool p --json")).unwrap();
    for node in 1..=NODES {
        let shown = fabric.ok(1, &format!("layout show --pool p --json /file-n{node}"));
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["group"], format!("leaf{}", leaf_of(node)), "{shown}");
        for daemon in shown["daemons"].as_array().unwrap() {
            let host = status["daemons"][daemon.as_u64().unwrap() as usize]["host"].as_str().unwrap();
            assert_eq!(leaf_of(host[1..].parse().unwrap()), leaf_of(node), "{host}: {shown}");
        }
        assert_eq!(fabric.chunks(&format!("/file-n{node}"))[leaf_of(node) - 1], FILE_BYTES / CHUNK_BYTES);
    }
    for crossed in [written, read] {
        assert!(crossed * 100 < METADATA_PERCENT_MAX * ALL_BYTES, "{crossed} bytes went between leaves");
    }
    fabric.stop_pool();
}

/// The same without groups: what goes between the leaves is what the placement of chunks says, about half of the data.
#[test]
fn r_a13_without_groups_data_go_between_switches() {
    let Some(fabric) = Fabric::new() else { return };
    fabric.start_pool("wide");
    let (written, read) = (fabric.crossing(WRITE), fabric.crossing(READ));
    let away = |node: usize| {
        let chunks = fabric.chunks(&format!("/file-n{node}"));
        chunks.iter().sum::<u64>() - chunks[leaf_of(node) - 1]
    };
    let predicted = (1..=NODES).map(away).sum::<u64>() * CHUNK_BYTES;
    println!(
        "of {ALL_BYTES} bytes {predicted} belong on the other leaf; {written} went there, {read} came back"
    );
    assert!(predicted * 4 > ALL_BYTES && predicted * 4 < 3 * ALL_BYTES, "{predicted}");
    for crossed in [written, read] {
        assert!(crossed >= predicted && crossed * 100 < (100 + HEADERS_PERCENT_MAX) * predicted, "{crossed}");
    }
    fabric.stop_pool();
}
