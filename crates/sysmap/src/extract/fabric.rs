//! The network of the whole machine: switches, and which host hangs on which.

use super::{Extractor, Found, Gaps, Source, told};
use crate::hostlist;
use crate::record::{Class, Missing};
use crate::system::{System, clip};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

/// Where an administrator writes down a network that nothing tells of (`docs/formats/17-topology.md`).
pub const TOPOLOGY: &str = "/etc/tidepool/topology.toml";
/// Where Slurm's administrators do.
pub const SLURM: &str = "/etc/slurm/topology.conf";

/// A network of switches.
#[derive(Serialize, Deserialize, Debug, Default, PartialEq, Clone)]
pub struct Fabric {
    pub switches: Vec<Switch>,
    pub hosts: Vec<Port>,
    /// Between switches.
    pub links: Vec<Link>,
    /// Records of version 1 have none.
    #[serde(default)]
    pub racks: Vec<Rack>,
}

#[derive(Serialize, Deserialize, Debug, PartialEq, Clone)]
pub struct Switch {
    pub name: String,
    /// 1 for a leaf, which hosts hang on; more for those above.
    pub level: u32,
}

/// How a host hangs on a switch.
#[derive(Serialize, Deserialize, Debug, PartialEq, Clone)]
pub struct Port {
    pub host: String,
    pub switch: String,
    pub count: u32,
    /// Of one link; none where nobody tells.
    pub gigabits_per_second: Option<f64>,
}

/// Links between two switches; `a` comes before `b` by name.
#[derive(Serialize, Deserialize, Debug, PartialEq, Clone)]
pub struct Link {
    pub a: String,
    pub b: String,
    pub count: u32,
    pub gigabits_per_second: Option<f64>,
}

/// Hosts that stand together.
#[derive(Serialize, Deserialize, Debug, PartialEq, Clone)]
pub struct Rack {
    pub name: String,
    pub hosts: Vec<String>,
}

impl Fabric {
    /// Reads a topology file (`docs/formats/17-topology.md`), wherever it lies.
    pub fn read(path: &Path) -> Result<Fabric, Missing> {
        let system = System::default().with_file(TOPOLOGY, path.into());
        by_file(&system).map_err(|missing| Missing::new(path.display().to_string(), missing.why))
    }

    /// Reads Slurm's `topology.conf`, wherever it lies.
    pub fn read_slurm(path: &Path) -> Result<Fabric, Missing> {
        let system = System::default().with_file(SLURM, path.into());
        by_slurm(&system).map_err(|missing| Missing::new(path.display().to_string(), missing.why))
    }
}

pub const FABRIC: Extractor = Extractor {
    name: "fabric",
    about: "switches of the machine's network, and the switch of each host",
    class: Class::Static,
    version: 2,
    sources: &[
        Source { name: "file", about: TOPOLOGY, read: |system, _| told(by_file(system)) },
        Source {
            name: "ibnetdiscover",
            about: "the program ibnetdiscover (InfiniBand)",
            read: |system, gaps| told(by_ibnetdiscover(system, gaps)),
        },
        Source { name: "slurm", about: SLURM, read: |system, _| told(by_slurm(system)) },
    ],
};

/// A network while it is read: equal links are counted.
#[derive(Default)]
struct Net {
    switches: BTreeSet<String>,
    hosts: BTreeMap<(String, String), (u32, Option<f64>)>,
    links: BTreeMap<(String, String), (u32, Option<f64>)>,
    racks: Vec<Rack>,
}

impl Net {
    fn host(&mut self, host: &str, switch: &str, count: u32, speed: Option<f64>) {
        let known = self.hosts.entry((host.into(), switch.into())).or_insert((0, speed));
        known.0 = known.0.saturating_add(count);
    }

    fn link(&mut self, one: &str, other: &str, count: u32, speed: Option<f64>) {
        let (a, b) = if one <= other { (one, other) } else { (other, one) };
        let known = self.links.entry((a.into(), b.into())).or_insert((0, speed));
        known.0 = known.0.saturating_add(count);
    }

    fn end(self) -> Fabric {
        let leaves = self.hosts.keys().map(|(_, leaf)| leaf.as_str());
        let levels = levels(leaves, self.links.keys().map(|(a, b)| (a.as_str(), b.as_str())));
        let switch = |name: &String| Switch {
            name: name.clone(),
            level: levels.get(name.as_str()).copied().unwrap_or(1),
        };
        Fabric {
            switches: self.switches.iter().map(switch).collect(),
            hosts: self
                .hosts
                .into_iter()
                .map(|((host, switch), (count, speed))| Port {
                    host,
                    switch,
                    count,
                    gigabits_per_second: speed,
                })
                .collect(),
            links: self
                .links
                .into_iter()
                .map(|((a, b), (count, speed))| Link { a, b, count, gigabits_per_second: speed })
                .collect(),
            racks: self.racks,
        }
    }
}

/// Levels of switches: one more than the number of links to the nearest leaf. Those that no leaf reaches have none.
pub(crate) fn levels<'a>(
    leaves: impl Iterator<Item = &'a str>,
    links: impl Iterator<Item = (&'a str, &'a str)>,
) -> BTreeMap<&'a str, u32> {
    let mut next: BTreeMap<&str, Vec<&'a str>> = BTreeMap::new();
    for (a, b) in links {
        next.entry(a).or_default().push(b);
        next.entry(b).or_default().push(a);
    }
    let mut levels: BTreeMap<&str, u32> = leaves.map(|leaf| (leaf, 1)).collect();
    let mut queue: VecDeque<&str> = levels.keys().copied().collect();
    while let Some(switch) = queue.pop_front() {
        let level = levels[switch] + 1;
        for above in next.get(switch).into_iter().flatten() {
            if !levels.contains_key(above) {
                levels.insert(above, level);
                queue.push_back(above);
            }
        }
    }
    levels
}

fn by_ibnetdiscover(system: &System, gaps: &mut Gaps) -> Found<Fabric> {
    const NAME: &str = "ibnetdiscover";
    let text = system.output(NAME, &[])?;
    let net = infiniband(&text, gaps);
    match net.switches.is_empty() {
        true => Err(Missing::new(NAME, "it found no switch")),
        false => Ok(net.end()),
    }
}

/// Reads what `ibnetdiscover` prints: blocks that begin with a line for a switch or an adapter, and have a line for
/// each port in use: `[1] "H-0002c9030001"[1](2c9030001) # "node01 HCA-1" lid 5 4xEDR`.
fn infiniband(text: &str, gaps: &mut Gaps) -> Net {
    const NAME: &str = "ibnetdiscover";
    let mut names: BTreeMap<&str, String> = BTreeMap::new();
    for line in text.lines() {
        if let Some((_, id, comment)) = block(line) {
            names.insert(id, node_name(id, comment));
        }
    }
    let (mut net, mut at) = (Net::default(), None);
    for line in text.lines() {
        if let Some((kind, id, _)) = block(line) {
            at = (kind == "Switch").then_some(id);
            if kind == "Switch" {
                net.switches.insert(names[id].clone());
            }
        } else if let (Some(switch), true) = (at, line.starts_with('[')) {
            let Some((other, speed)) = port(line) else {
                gaps.push(Missing::new(NAME, format!("'{}' is no port", clip(line))));
                continue;
            };
            let own = names[switch].clone();
            match names.get(other) {
                // Each link between switches is told by both: the one with the lower number tells it here.
                Some(name) if other.starts_with("S-") && switch < other => net.link(&own, name, 1, speed),
                Some(_) if other.starts_with("S-") => {}
                Some(name) => net.host(name, &own, 1, speed),
                None => gaps.push(Missing::new(NAME, format!("'{}' is nowhere described", clip(other)))),
            }
        }
    }
    net
}

/// The first line of a block: its kind, the node's number, and what stands behind `#`.
fn block(line: &str) -> Option<(&str, &str, &str)> {
    let kind = ["Switch", "Ca", "Rt"]
        .into_iter()
        .find(|kind| line.strip_prefix(kind).is_some_and(|rest| rest.starts_with([' ', '\t'])))?;
    let (_, quoted) = line.split_once('"')?;
    let (id, rest) = quoted.split_once('"')?;
    Some((kind, id, rest.split_once('#').map_or("", |(_, comment)| comment)))
}

/// What a node is called: the first word of its description, which begins with the host's name; a switch's whole.
fn node_name(id: &str, comment: &str) -> String {
    let description = comment.split('"').nth(1).unwrap_or_default().trim();
    let name = match id.starts_with("S-") {
        true => description,
        false => description.split_whitespace().next().unwrap_or_default(),
    };
    if name.is_empty() { id.to_string() } else { name.to_string() }
}

/// Whom a port leads to, and how fast.
fn port(line: &str) -> Option<(&str, Option<f64>)> {
    let (_, quoted) = line.split_once('"')?;
    let (id, rest) = quoted.split_once('"')?;
    let comment = rest.rsplit_once('"').map_or(rest, |(_, after)| after);
    Some((id, comment.split_whitespace().find_map(speed)))
}

/// A link's width and generation (`4xEDR`), as data rate.
fn speed(word: &str) -> Option<f64> {
    let (width, generation) = word.split_once('x')?;
    let lane = match generation {
        "SDR" => 2.5,
        "DDR" => 5.0,
        "QDR" | "FDR10" => 10.0,
        "FDR" => 14.0,
        "EDR" => 25.0,
        "HDR" => 50.0,
        "NDR" => 100.0,
        "XDR" => 200.0,
        _ => return None,
    };
    Some(f64::from(width.parse::<u8>().ok()?) * lane)
}

/// A file as `docs/formats/17-topology.md` has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    switch: Vec<WrittenSwitch>,
    #[serde(default)]
    rack: Vec<WrittenRack>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRack {
    name: String,
    hosts: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WrittenSwitch {
    name: String,
    /// Hosts that hang on it.
    #[serde(default)]
    hosts: String,
    /// Switches below it.
    #[serde(default)]
    switches: String,
    /// Links to each of them.
    links: Option<u32>,
    gigabits_per_second: Option<f64>,
}

fn by_file(system: &System) -> Found<Fabric> {
    let text = system.text(TOPOLOGY)?;
    let written: Written = toml::from_str(&text).map_err(|error| Missing::new(TOPOLOGY, error))?;
    let mut net = Net::default();
    for switch in written.switch {
        let (count, speed) = (switch.links.unwrap_or(1), switch.gigabits_per_second);
        if count == 0 || speed.is_some_and(|speed| !speed.is_finite() || speed <= 0.0) {
            let why =
                format!("switch '{}': links and gigabits-per-second are more than 0", clip(&switch.name));
            return Err(Missing::new(TOPOLOGY, why));
        }
        add(&mut net, TOPOLOGY, (&switch.name, &switch.hosts, &switch.switches), (count, speed))?;
    }
    net.racks = racks(written.rack)?;
    whole(net, TOPOLOGY)
}

/// Racks by name; a host stands in one.
fn racks(written: Vec<WrittenRack>) -> Found<Vec<Rack>> {
    let (mut racks, mut stands) = (BTreeMap::new(), BTreeMap::<String, String>::new());
    for WrittenRack { name, hosts } in written {
        let wrong = |why: String| Missing::new(TOPOLOGY, format!("rack '{}': {why}", clip(&name)));
        let hosts = hosts_of(&hosts).map_err(|error| wrong(error.to_string()))?;
        if let Some(host) = hosts.iter().find(|host| stands.contains_key(*host)) {
            let other = clip(&stands[host]);
            return Err(wrong(format!("host '{}' stands in rack '{other}', too", clip(host))));
        }
        stands.extend(hosts.iter().map(|host| (host.clone(), name.clone())));
        if name.is_empty() || racks.insert(name.clone(), hosts).is_some() {
            return Err(wrong("it has no name, or is there twice".into()));
        }
    }
    Ok(racks.into_iter().map(|(name, hosts)| Rack { name, hosts }).collect())
}

/// Each host of a list once, in order.
fn hosts_of(list: &str) -> Result<Vec<String>, hostlist::BadList> {
    let mut hosts = hostlist::expand(list)?;
    hosts.sort_unstable();
    hosts.dedup();
    Ok(hosts)
}

/// Adds a switch with what hangs on it.
fn add(
    net: &mut Net,
    file: &str,
    (name, hosts, below): (&str, &str, &str),
    (count, speed): (u32, Option<f64>),
) -> Found<()> {
    let wrong = |error: hostlist::BadList| Missing::new(file, format!("switch '{}': {error}", clip(name)));
    if name.is_empty() || !net.switches.insert(name.into()) {
        return Err(Missing::new(file, format!("switch '{}' has no name, or is there twice", clip(name))));
    }
    for host in hostlist::expand(hosts).map_err(wrong)? {
        net.host(&host, name, count, speed);
    }
    for other in hostlist::expand(below).map_err(wrong)? {
        net.link(name, &other, count, speed);
    }
    Ok(())
}

/// Checks that all switches that are named are described.
fn whole(net: Net, file: &str) -> Found<Fabric> {
    let named = net.links.keys().flat_map(|(a, b)| [a, b]);
    if let Some(unknown) = named.into_iter().find(|name| !net.switches.contains(*name)) {
        return Err(Missing::new(file, format!("switch '{}' is named, but not described", clip(unknown))));
    }
    if net.switches.is_empty() {
        return Err(Missing::new(file, "it describes no switch"));
    }
    Ok(net.end())
}

/// Slurm's file for its plug-in topology/tree. It knows no speeds: `LinkSpeed` is of no unit.
fn by_slurm(system: &System) -> Found<Fabric> {
    let text = system.text(SLURM)?;
    let mut net = Net::default();
    for line in text.lines() {
        let line = line.split_once('#').map_or(line, |(line, _)| line);
        let value = |key: &str| {
            let mut words = line.split_whitespace().filter_map(|word| word.split_once('='));
            words.find(|(name, _)| name.eq_ignore_ascii_case(key)).map(|(_, value)| value)
        };
        if let Some(name) = value("SwitchName") {
            let (hosts, below) = (value("Nodes").unwrap_or(""), value("Switches").unwrap_or(""));
            add(&mut net, SLURM, (name, hosts, below), (1, None))?;
        }
    }
    whole(net, SLURM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What Debian's `ibnetdiscover` printed of a simulated network: 3 leafs with 4 hosts each, 2 switches above, 2
    /// links from each leaf to each of them.
    const RECORDED: &str = include_str!("../../tests/data/ibnetdiscover");

    fn node(path: &str, text: &str) -> (tempfile::TempDir, System) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(path.trim_start_matches('/'));
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
        let system = System::at(dir.path(), vec![]);
        (dir, system)
    }

    fn without_speeds(mut fabric: Fabric) -> Fabric {
        fabric.hosts.iter_mut().for_each(|port| port.gigabits_per_second = None);
        for link in &mut fabric.links {
            (link.gigabits_per_second, link.count) = (None, 1);
        }
        fabric
    }

    #[test]
    fn a_recorded_network_is_read() {
        let mut gaps = Vec::new();
        let fabric = infiniband(RECORDED, &mut gaps).end();
        assert_eq!(gaps, []);
        let switches: Vec<(&str, u32)> = fabric.switches.iter().map(|s| (s.name.as_str(), s.level)).collect();
        assert_eq!(switches, [("core1", 2), ("core2", 2), ("leaf1", 1), ("leaf2", 1), ("leaf3", 1)]);
        assert_eq!(fabric.hosts.len(), 12);
        for (at, port) in fabric.hosts.iter().enumerate() {
            let (host, switch) = (format!("node{:02}", at + 1), format!("leaf{}", at / 4 + 1));
            assert_eq!((&port.host, &port.switch, port.count), (&host, &switch, 1));
            assert_eq!(port.gigabits_per_second, Some(10.0));
        }
        assert_eq!(fabric.links.len(), 6);
        assert!(fabric.links.iter().all(|link| link.count == 2), "{:?}", fabric.links);
    }

    #[test]
    fn the_same_network_in_files_is_the_same() {
        let (_dir, system) = node(
            TOPOLOGY,
            r#"
            switch = [
              { name = "core1", switches = "leaf[1-3]", links = 2, gigabits-per-second = 10 },
              { name = "core2", switches = "leaf[1-3]", links = 2, gigabits-per-second = 10 },
              { name = "leaf1", hosts = "node[01-04]", gigabits-per-second = 10 },
              { name = "leaf2", hosts = "node[05-08]", gigabits-per-second = 10 },
              { name = "leaf3", hosts = "node[09-12]", gigabits-per-second = 10 },
            ]"#,
        );
        let recorded = infiniband(RECORDED, &mut Vec::new()).end();
        assert_eq!(by_file(&system).unwrap(), recorded);
        let (_dir, system) = node(
            SLURM,
            "# a comment\nSwitchName=leaf1 Nodes=node[01-04]\nswitchname=leaf2 nodes=node[05-08]\n\
             SwitchName=leaf3 Nodes=node[09-12] LinkSpeed=4\nSwitchName=core1 Switches=leaf[1-3]\n\
             SwitchName=core2 Switches=leaf[1-3]\n",
        );
        assert_eq!(by_slurm(&system).unwrap(), without_speeds(recorded));
    }

    #[test]
    fn what_is_wrong_in_a_file_is_said() {
        for (text, why) in [
            ("switch = [{ name = \"a\", host = \"x\" }]", "unknown field `host`"),
            ("switch = [{ name = \"a\", hosts = \"x[\" }]", "switch 'a': 'x['"),
            ("switch = [{ name = \"a\" }, { name = \"a\" }]", "is there twice"),
            ("switch = [{ name = \"a\", switches = \"b\" }]", "switch 'b' is named, but not described"),
            ("switch = [{ name = \"a\", gigabits-per-second = -1.0 }]", "more than 0"),
            ("rack = [{ name = \"r\", hosts = \"a\", switch = \"b\" }]", "unknown field `switch`"),
            ("rack = [{ name = \"r\", hosts = \"a[\" }]", "rack 'r': 'a['"),
            ("rack = [{ name = \"r\", hosts = \"a\" }, { name = \"r\", hosts = \"b\" }]", "is there twice"),
            (
                "rack = [{ name = \"r\", hosts = \"a\" }, { name = \"s\", hosts = \"b,a\" }]",
                "in rack 'r', too",
            ),
            ("", "describes no switch"),
        ] {
            let (_dir, system) = node(TOPOLOGY, text);
            let missing = by_file(&system).unwrap_err();
            assert!(missing.why.contains(why), "{text}: {missing:?}");
        }
    }

    #[test]
    fn racks_are_read_and_records_without_them_too() {
        let text = "switch = [{ name = \"s\", hosts = \"n[1-3]\" }]\n\
                    rack = [{ name = \"r2\", hosts = \"n3\" }, { name = \"r1\", hosts = \"n[1-2],n1\" }]";
        let (_dir, system) = node(TOPOLOGY, text);
        let fabric = by_file(&system).unwrap();
        let rack = |name: &str, hosts: &[&str]| Rack {
            name: name.into(),
            hosts: hosts.iter().map(|host| host.to_string()).collect(),
        };
        assert_eq!(fabric.racks, [rack("r1", &["n1", "n2"]), rack("r2", &["n3"])]);
        let before = serde_json::json!({"switches": [], "hosts": [], "links": []});
        assert_eq!(serde_json::from_value::<Fabric>(before).unwrap(), Fabric::default());
    }

    #[test]
    fn what_is_wrong_in_a_file_elsewhere_is_said_with_its_name() {
        let (dir, _) = node("/mine", "nonsense");
        let path = dir.path().join("mine");
        for missing in [Fabric::read(&path).unwrap_err(), Fabric::read_slurm(&path).unwrap_err()] {
            assert_eq!(missing.what, path.display().to_string());
        }
    }

    #[test]
    fn speeds_are_read() {
        let speeds = ["4xEDR", "1xSDR", "12xHDR", "4xABC", "xEDR", "300xEDR"].map(speed);
        assert_eq!(speeds, [Some(100.0), Some(2.5), Some(600.0), None, None, None]);
    }

    proptest! {
        /// Lines of the real thing in any order, cut anywhere, with anything between.
        #[test]
        fn no_output_is_too_strange(picks in prop::collection::vec((0usize..1000, 0usize..90, ".{0,9}"), 0..80)) {
            let lines: Vec<&str> = RECORDED.lines().collect();
            let strange: String = picks.iter().map(|(line, cut, junk)| {
                let line = lines[line % lines.len()];
                format!("{}{junk}\n", &line[..(*cut).min(line.len())])
            }).collect();
            let fabric = infiniband(&strange, &mut Vec::new()).end();
            prop_assert!(fabric.switches.iter().all(|switch| switch.level >= 1));
        }
    }
}
