//! What is known of a pool's nodes: from the resource database, from a look at this machine, from the network's description.

use crate::agent::own_name;
use crate::exit::Result;
use crate::flags::PoolShape;
use crate::place::Place;
use crate::{sysmap, topology};
use rustix::fs::{Access, access};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use tidepool_plan::{Facts, Filesystem, Launcher, Machine, Node};
use tidepool_sysmap::db::{Database, HostRecord, Wanted};
use tidepool_sysmap::probe::is_public;
use tidepool_sysmap::{System, Topology, all, collect, collect_with};

/// What is looked at here, and by which source: those that ask no program. Free space comes first: it is what changes.
const LOOKED_AT: [(&str, &str); 4] =
    [("filesystems", "statvfs"), ("disks", "sysfs"), ("network", "sysfs"), ("cpu", "sysfs")];

/// Records of one host by their extractors.
type Records = BTreeMap<String, Value>;

/// The nodes of a pool for a job of `user`, and what is known of them.
pub fn machine(shape: &PoolShape, place: &Place, user: u32) -> Result<Machine> {
    let names = names(place);
    let mut told = or_without(shape.network.db.is_some(), told(shape, &names))?;
    let topology = topology(shape, place)?;
    let own = own_name();
    let mut nodes = Vec::with_capacity(names.len());
    for name in names {
        let mut records = told.remove(&name).unwrap_or_default();
        // Where nodes are reached through stagers, this machine is none of them, whatever it is called.
        let here = name == own && !matches!(place, Place::Stagers(_));
        if here {
            records.extend(of_here());
        }
        let facts = (!records.is_empty()).then(|| facts(&records));
        let leaf = topology.as_ref().and_then(|t| t.leaf_of(&name)).map(String::from);
        let writable = facts.iter().filter(|_| here).flat_map(writable).collect();
        nodes.push(Node { name, facts, leaf, writable });
    }
    Ok(Machine {
        oversubscription: topology.as_ref().and_then(|topology| worst(topology, &nodes)),
        nodes,
        user,
        daemons_here: if let Place::Local(count) = place { Some(*count) } else { None },
        launcher: match place {
            Place::Local(_) => Launcher::Here,
            Place::Ssh(_) => Launcher::Ssh { fan_out: shape.fan_out },
            Place::Slurm(_) => Launcher::Slurm,
            Place::Stagers(_) => Launcher::Stagers,
        },
    })
}

/// What the database tells of the nodes, if there is one.
fn told(shape: &PoolShape, names: &[String]) -> Result<HashMap<String, Records>> {
    match sysmap::open_read_if_there(shape.network.db.as_deref())? {
        Some(database) => of_hosts(&database, names),
        None => Ok(HashMap::new()),
    }
}

/// Something that helps to plan. If nobody has named it, a pool is planned without it where it is broken.
fn or_without<T: Default>(named: bool, found: Result<T>) -> Result<T> {
    match found {
        Err(failure) if !named => {
            eprintln!("tidepool: warning: {failure}; planned without it");
            Ok(T::default())
        }
        found => found,
    }
}

/// Names of the nodes. An allocation that does not tell them has nodes of which nothing is known.
fn names(place: &Place) -> Vec<String> {
    let host = |name: String| name.rsplit('@').next().unwrap_or_default().to_string();
    match (place.names(), place) {
        (Ok(names), _) => names.into_iter().map(host).collect(),
        (Err(_), Place::Slurm(count)) => (1..=*count).map(|n| format!("node {n}")).collect(),
        (Err(_), _) => vec![own_name()],
    }
}

fn facts(records: &Records) -> Facts {
    Facts::of(records.iter().map(|(extractor, data)| (extractor.as_str(), data)))
}

/// What the database has of these hosts, under the names they are asked for by. A host whose name is known up to the first
/// dot only is that host, if it is the only one.
fn of_hosts(database: &Database, names: &[String]) -> Result<HashMap<String, Records>> {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_string();
    let hosts = database.hosts().map_err(sysmap::failed)?;
    let mut by_short: HashMap<String, Vec<&String>> = HashMap::new();
    hosts.iter().for_each(|host| by_short.entry(short(host)).or_default().push(host));
    let known = |name: &String| match hosts.binary_search(name) {
        Ok(_) => Some(name.clone()),
        Err(_) => match by_short.get(&short(name)).map(Vec::as_slice) {
            Some([only]) => Some((*only).clone()),
            _ => None,
        },
    };
    let asked: HashMap<String, String> =
        names.iter().filter_map(|name| Some((known(name)?, name.clone()))).collect();
    if asked.is_empty() {
        return Ok(HashMap::new());
    }
    let wanted = Wanted {
        hosts: asked.keys().cloned().collect(),
        extractors: Facts::EXTRACTORS.map(String::from).to_vec(),
        history: false,
    };
    let mut told: HashMap<String, Records> = HashMap::new();
    for HostRecord { host, record } in database.records(&wanted).map_err(sysmap::failed)? {
        told.entry(asked[&host].clone()).or_default().insert(record.extractor, record.data);
    }
    Ok(told)
}

/// A look at this machine.
fn of_here() -> Records {
    let system = System::default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let look = |(name, source): (&str, &str)| {
        let extractor = all().iter().find(|extractor| extractor.name == name)?;
        let record = collect_with(extractor, source, &system, now);
        Some((name.to_string(), record.unwrap_or_else(|| collect(extractor, &system, now)).data))
    };
    LOOKED_AT.into_iter().filter_map(look).filter(|(_, data)| !data.is_null()).collect()
}

/// Where file systems of this node are mounted that everybody may write to, as to `/tmp`.
fn writable(facts: &Facts) -> Vec<String> {
    let open = |fs: &&Filesystem| {
        let own = !fs.read_only && !fs.in_memory();
        own && is_public(Path::new(&fs.target)) && access(&fs.target, Access::WRITE_OK).is_ok()
    };
    facts.filesystems.iter().filter(open).map(|fs| fs.target.clone()).collect()
}

/// The network, for pools of several nodes. One that cannot be understood is an error only if it was named.
fn topology(shape: &PoolShape, place: &Place) -> Result<Option<Topology>> {
    if matches!(place, Place::Local(_)) {
        return Ok(None);
    }
    let flags = &shape.network;
    let named = flags.topology.is_some() || flags.slurm_topology.is_some() || flags.db.is_some();
    or_without(named, topology::find(flags))
}

/// Of the leaf switches that are used; none when one is not known.
fn worst(topology: &Topology, nodes: &[Node]) -> Option<f64> {
    let times = nodes.iter().filter_map(|node| topology.oversubscription(node.leaf.as_deref()?));
    times.max_by(f64::total_cmp)
}
