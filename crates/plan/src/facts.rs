//! What is known of a node: the parts of its sysmap records that a plan depends on.
//!
//! Records may come from other releases, and from anybody who can write to the database: a record that is not understood
//! is as good as none, and the plan says so.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Kinds of file systems that keep their data in memory.
const IN_MEMORY: [&str; 2] = ["tmpfs", "ramfs"];
/// The name under which a node records what it has measured with itself, which is no network.
const LOOPBACK: &str = "loopback";

/// A node, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    pub filesystems: Vec<Filesystem>,
    pub disks: Vec<Disk>,
    pub interfaces: Vec<Interface>,
    pub numa: Vec<NumaNode>,
    pub rates: Vec<StoreRate>,
    pub peers: Vec<PeerRate>,
    /// Extractors whose data could not be understood.
    pub strange: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Filesystem {
    pub target: String,
    pub kind: String,
    pub disk: Option<String>,
    pub disk_kind: Option<String>,
    pub read_only: bool,
    pub available_bytes: u64,
}

impl Filesystem {
    pub fn in_memory(&self) -> bool {
        IN_MEMORY.contains(&self.kind.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Disk {
    pub name: String,
    pub numa_node: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Interface {
    pub name: String,
    pub kind: String,
    pub megabits_per_second: Option<u64>,
    pub up: bool,
    /// None for those that are no devices of their own, such as bridges.
    pub driver: Option<String>,
    pub numa_node: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct NumaNode {
    pub node: u32,
    /// Hardware threads: `0-3,8`.
    pub cpus: String,
}

/// A measured quantity with its scatter.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// What a directory was measured to take and give, in bytes per second.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct StoreRate {
    pub path: String,
    /// Everybody may write there, as to `/tmp`.
    #[serde(default)]
    pub public: bool,
    /// The user who measured, and so may write there.
    #[serde(default)]
    pub uid: Option<u32>,
    pub write: Spread,
    pub read: Spread,
}

impl StoreRate {
    /// True when `user` may write there.
    pub fn is_open_to(&self, user: u32) -> bool {
        self.public || self.uid == Some(user)
    }
}

/// What was measured between this node and another one, in bytes per second.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct PeerRate {
    pub host: String,
    pub send: Spread,
    pub receive: Spread,
}

#[derive(Deserialize)]
struct Filesystems {
    filesystems: Vec<Filesystem>,
}

#[derive(Deserialize)]
struct Disks {
    disks: Vec<Disk>,
}

#[derive(Deserialize)]
struct Network {
    interfaces: Vec<Interface>,
}

#[derive(Deserialize)]
struct Cpu {
    numa: Vec<NumaNode>,
}

#[derive(Deserialize)]
struct StoreRates {
    stores: Vec<StoreRate>,
}

#[derive(Deserialize)]
struct PeerRates {
    peers: Vec<PeerRate>,
}

impl Facts {
    /// The extractors that are read.
    pub const EXTRACTORS: [&str; 6] =
        ["filesystems", "disks", "network", "cpu", "storage-rates", "network-rates"];

    /// From records: each an extractor's name and its data.
    pub fn of<'a>(records: impl IntoIterator<Item = (&'a str, &'a Value)>) -> Facts {
        let mut facts = Facts::default();
        for (extractor, data) in records {
            if !data.is_null() && facts.take(extractor, data).is_none() {
                facts.strange.push(extractor.to_string());
            }
        }
        facts
    }

    fn take(&mut self, extractor: &str, data: &Value) -> Option<()> {
        match extractor {
            "filesystems" => self.filesystems = read::<Filesystems>(data)?.filesystems,
            "disks" => self.disks = read::<Disks>(data)?.disks,
            "network" => self.interfaces = read::<Network>(data)?.interfaces,
            "cpu" => self.numa = read::<Cpu>(data)?.numa,
            "storage-rates" => self.rates = plausible(read::<StoreRates>(data)?.stores)?,
            "network-rates" => {
                self.peers = read::<PeerRates>(data)?.peers;
                self.peers.retain(|peer| peer.host != LOOPBACK);
            }
            _ => {}
        }
        Some(())
    }

    /// The file system that a path is on: the one mounted nearest above it.
    pub fn filesystem_of(&self, path: &str) -> Option<&Filesystem> {
        let above = |fs: &&Filesystem| is_below(path, &fs.target);
        self.filesystems.iter().filter(above).max_by_key(|fs| fs.target.len())
    }

    /// What was measured at this path, or elsewhere on its file system.
    pub fn rate_of(&self, path: &str) -> Option<&StoreRate> {
        let exact = self.rates.iter().find(|rate| rate.path == path);
        let target = &self.filesystem_of(path)?.target;
        let there = |rate: &&StoreRate| self.filesystem_of(&rate.path).is_some_and(|fs| fs.target == *target);
        exact.or_else(|| self.rates.iter().find(there))
    }

    /// The NUMA node that a path's disk is at.
    pub fn numa_of(&self, path: &str) -> Option<u32> {
        let disk = self.filesystem_of(path)?.disk.as_deref()?;
        self.disks.iter().find(|known| known.name == disk)?.numa_node
    }
}

fn read<T: DeserializeOwned>(data: &Value) -> Option<T> {
    T::deserialize(data).ok()
}

/// Nothing is faster than memory, and nothing that works has no speed.
fn plausible(rates: Vec<StoreRate>) -> Option<Vec<StoreRate>> {
    let fine = |spread: &Spread| spread.median.is_finite() && spread.median >= 1.0 && spread.median < 1e13;
    rates.iter().all(|rate| fine(&rate.write) && fine(&rate.read)).then_some(rates)
}

/// True when `path` is `root` or below it.
pub(crate) fn is_below(path: &str, root: &str) -> bool {
    let root = root.trim_end_matches('/');
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn the_nearest_mount_counts() {
        let fs = |target: &str| {
            json!({"target": target, "kind": "ext4", "disk": null, "disk_kind": null, "read_only": false,
                   "available_bytes": 1, "other": 1})
        };
        let data = json!({"filesystems": [fs("/"), fs("/tmp"), fs("/tmp/x")]});
        let facts = Facts::of([("filesystems", &data)]);
        for (path, target) in [("/tmp", "/tmp"), ("/tmp/x/y", "/tmp/x"), ("/tmpx", "/"), ("/", "/")] {
            assert_eq!(facts.filesystem_of(path).unwrap().target, target, "{path}");
        }
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let rate = json!({"median": 0.0, "min": 0.0, "max": 0.0});
        let rates = json!({"stores": [{"path": "/tmp", "write": rate, "read": rate}]});
        let facts =
            Facts::of([("cpu", &json!({"numa": 3})), ("disks", &Value::Null), ("storage-rates", &rates)]);
        assert_eq!(facts.strange, ["cpu", "storage-rates"]);
    }

    #[test]
    fn a_nodes_own_loopback_is_no_network() {
        let rate = json!({"median": 1e9, "min": 1e9, "max": 1e9});
        let peer = |host: &str| json!({"host": host, "send": rate, "receive": rate});
        let hosts = ["loopback", "n2", "loopback2"];
        let data = json!({"peers": hosts.map(peer)});
        let facts = Facts::of([("network-rates", &data)]);
        let left: Vec<&str> = facts.peers.iter().map(|peer| peer.host.as_str()).collect();
        assert_eq!(left, ["n2", "loopback2"]);
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[a-z/]{0,8}".prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            let names = prop_oneof![
                "filesystems|disks|interfaces|numa|stores|peers|target|kind|write|read|median",
                "[a-z]{1,5}"
            ];
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(names, inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn garbage_never_panics(data in any_json(), which in 0usize..6, path in "/[a-z/]{0,8}") {
            let facts = Facts::of([(Facts::EXTRACTORS[which], &data)]);
            let _ = (facts.filesystem_of(&path), facts.rate_of(&path), facts.numa_of(&path));
        }
    }
}
