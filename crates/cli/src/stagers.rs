//! Starting a user's pool on nodes that this machine is none of, through their stagers: what a batch system's controller does.
//! Nothing of the pool is on this machine, neither meanwhile nor afterwards; the user stops it on any of its nodes.

use crate::agent::{Go, NodePlan, Order, Plan, Report};
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::{Door as Entrance, PoolShape, ThroughFlags};
use crate::instance::Instance;
use crate::launch::{ABANDON_MAX, Keep, agree, make_plan};
use crate::place::{NodeAt, Place};
use crate::plan::{Setup, Staged};
use crate::relay::Tree;
use crate::side_by_side::each;
use crate::stage::read_secret;
use crate::streams::Streams;
use nix::unistd::{Gid, Uid, getgrouplist};
use std::collections::HashSet;
use std::ffi::CString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use tidepool_client::PoolFile;
use tidepool_transport::remote::{Door, open_door};
use tidepool_transport::{Secret, random_bytes};
use tidepool_types::{InstanceId, show_bytes};

/// Longest report. Agents are another user's.
const REPORT_BYTES_MAX: u64 = 1 << 20;

/// Whose pool.
#[derive(Clone, Debug)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// Where, whose, and for which job.
pub struct Through {
    pub nodes: Vec<NodeAt>,
    /// The stagers' secret.
    pub secret: Secret,
    pub user: User,
    /// Its number in the batch system; 0 for none.
    pub job: u32,
}

/// Whether a pool's data are to stay when its daemons end, and whether they are there.
pub enum Begin {
    /// Its data end with its daemons.
    Once,
    /// They stay.
    ToStay,
    /// They are on these nodes: those of the pool of this identity.
    Again(InstanceId, Secret),
}

/// A pool that runs, without anybody here.
pub struct Started {
    /// The paths are those of its nodes.
    pub instance: Instance,
    pub pool: PoolFile,
    pub mounted: bool,
}

impl User {
    /// With the groups that the name service of this machine knows.
    pub fn known_here(uid: u32, gid: u32) -> Result<User> {
        let fail = |error: nix::Error| Failure::new(Kind::Start, format!("groups of user {uid}: {error}"));
        let entry = nix::unistd::User::from_uid(Uid::from_raw(uid)).map_err(fail)?;
        let name = entry.and_then(|entry| CString::new(entry.name).ok());
        let groups = match name {
            Some(name) => getgrouplist(&name, Gid::from_raw(gid)).map_err(fail)?,
            None => vec![Gid::from_raw(gid)],
        };
        Ok(User { uid, gid, groups: groups.into_iter().map(Gid::as_raw).collect() })
    }
}

impl Through {
    /// What flags say.
    pub fn asked(flags: &ThroughFlags) -> Result<Option<Through>> {
        let (Some(file), Some((uid, gid))) = (&flags.secret_file, flags.as_user) else { return Ok(None) };
        let (secret, user) = (read_secret(file)?, User::known_here(uid, gid)?);
        Ok(Some(Through { nodes: flags.stagers.clone(), secret, user, job: flags.job }))
    }

    /// What the pool will be like. `shape` is checked, and files that it names are read here, with the rights of this process.
    pub fn choose(&self, shape: &PoolShape, staged: Staged) -> Result<Setup> {
        let usage = |text: &str| Err(Failure::new(Kind::Usage, text));
        if shape.hosts.is_some() || shape.nodes.is_some() || shape.local {
            return usage("--stagers names the nodes; --hosts, --nodes and --local are for other pools");
        }
        let mut names = HashSet::new();
        if let Some(twice) = self.nodes.iter().find(|node| !names.insert(&node.name)) {
            return usage(&format!("--stagers: '{}' is named twice", twice.name));
        }
        Setup::choose_at(Place::Stagers(self.nodes.clone()), self.user.uid, shape, staged, None)
    }

    /// Starts the pool and returns when every daemon answers.
    pub fn start(&self, shape: &PoolShape, setup: &Setup, name: &str, begin: Begin) -> Result<Started> {
        let keep = Keep { keep: !matches!(begin, Begin::Once), again: matches!(begin, Begin::Again(..)) };
        let (id, secret) = match begin {
            Begin::Again(id, secret) => (id, secret),
            Begin::Once | Begin::ToStay => (InstanceId(random_bytes()), Secret::random()),
        };
        let mut places = Instance::everywhere(name, self.user.uid)?.into_iter().peekable();
        while let Some(instance) = places.next() {
            let plan = make_plan(shape, setup, &instance, (id, &secret), keep);
            let mut streams = self.connect()?;
            let mount = |reports: &[Report]| mounts(shape.door(), reports);
            match agree(&streams, shape, setup, &plan, (id, secret.clone()), mount) {
                Ok((pool, go)) => {
                    let Go { mount: mounted, .. } = go;
                    return Ok(Started { instance, pool, mounted });
                }
                Err(failure) => {
                    // Agents clean their nodes when their input ends.
                    streams.end(ABANDON_MAX);
                    // All nodes need the same path.
                    if failure.kind != Kind::Taken || places.peek().is_none() {
                        return Err(failure);
                    }
                    eprintln!("tidepool: warning: {failure}; another directory is tried");
                }
            }
        }
        Err(Failure::new(Kind::Start, "there is no directory for pools"))
    }

    /// Opens a pool that runs elsewhere on these nodes, which get no daemons.
    pub fn join(&self, shape: &PoolShape, name: &str, pool: &PoolFile) -> Result<()> {
        let instance = Instance::of_pool(name, pool);
        let node = |at: &NodeAt| bare_node(at, Vec::new());
        // Numbers of the pool's own nodes are taken.
        let own = pool.members.iter().map(|member| NodePlan { host: member.host.clone(), ..no_node() });
        let plan = Plan {
            alone: pool.instance.to_string(),
            pool: pool.instance.to_string(),
            ..bare_plan(&instance, own.chain(self.nodes.iter().map(node)).collect())
        };
        let mut streams = self.connect_from(pool.members.len())?;
        let opened = streams.ask(0, &plan).and_then(|reports| {
            let compute = reports.iter().map(|report| report.host.clone()).collect();
            let mount = mounts(shape.door(), &reports);
            let go = Go { pool: pool.to_json(), mount, cache_ttl_ms: shape.cache_ttl, compute };
            streams.ask(0, &go).map(drop)
        });
        if opened.is_err() {
            streams.end(ABANDON_MAX);
        }
        opened
    }

    /// Ends what a pool has on these nodes, the first `daemons` of which have stores of it. Of each node: how many
    /// stores are there afterwards, or what hindered it.
    pub fn tidy(
        &self,
        order: Order,
        name: &str,
        store: &Path,
        daemons: usize,
    ) -> Result<Vec<(String, Result<usize>)>> {
        let instance = Instance::elsewhere(name, self.user.uid)?;
        let node = |(number, at): (usize, &NodeAt)| match number < daemons {
            true => bare_node(at, vec![instance.store_dir(store, number)]),
            false => bare_node(at, Vec::new()),
        };
        let nodes = self.nodes.iter().enumerate().map(node).collect();
        let plan = Plan { order, store: store.into(), ..bare_plan(&instance, nodes) };
        let line = serde_json::to_string(&plan).expect("a plan always serializes");
        let told = each(self.nodes.len(), |number| self.tell(number, &line));
        Ok(self.nodes.iter().map(|node| node.name.clone()).zip(told).collect())
    }

    /// Tells one agent one thing; its stores. It may have much to remove, so it is waited for as long as its node lives.
    fn tell(&self, number: usize, line: &str) -> Result<usize> {
        let node = &self.nodes[number];
        let (mut input, output) =
            self.agent(number).map_err(|error| self.unreached(number, &error).of_kind(Kind::NoStager))?;
        let mut said = String::new();
        let shown = || format!("node {}", node.name);
        writeln!(input, "{line}").context(Kind::Cleanup, shown)?;
        let mut output = BufReader::new(output).take(REPORT_BYTES_MAX);
        output.read_line(&mut said).context(Kind::Cleanup, shown)?;
        let report: Report = serde_json::from_str(&said).context(Kind::Cleanup, shown)?;
        match report.error.is_empty() {
            true => Ok(report.stores),
            false => {
                let why = show_bytes(report.error.as_bytes());
                Err(Failure::new(Kind::Cleanup, format!("node {}: {why}", node.name)))
            }
        }
    }

    fn unreached(&self, number: usize, error: &io::Error) -> Failure {
        let node = &self.nodes[number];
        Failure::new(Kind::Start, format!("node {}: its stager at {}: {error}", node.name, node.address))
    }

    /// An agent on each node.
    fn connect(&self) -> Result<Streams> {
        self.connect_from(0)
    }

    /// The same, with numbers from `first` on.
    fn connect_from(&self, first: usize) -> Result<Streams> {
        let connected = each(self.nodes.len(), |number| self.agent_as(number, first + number));
        let mut streams = Streams::default();
        let mut failed = None;
        for (number, connected) in connected.into_iter().enumerate() {
            let name = format!("node {}", self.nodes[number].name);
            match connected {
                Ok((input, output)) => streams.add((name, 1), input, output, None),
                Err(error) => {
                    failed.get_or_insert_with(|| self.unreached(number, &error));
                }
            }
        }
        match failed {
            None => Ok(streams),
            Some(failure) => {
                streams.end(ABANDON_MAX);
                Err(failure)
            }
        }
    }

    fn agent(&self, number: usize) -> io::Result<(Input, UnixStream)> {
        self.agent_as(number, number)
    }

    /// The agent of a node, under another number.
    fn agent_as(&self, number: usize, node: usize) -> io::Result<(Input, UnixStream)> {
        let User { uid, gid, groups } = self.user.clone();
        let door = Door::Agent { uid, gid, groups, job: self.job, node: node as u32 };
        let output = open_door(&self.nodes[number].address, &self.secret, &door)?;
        Ok((Input(output.try_clone()?), output))
    }
}

/// Whether nodes that report so are to mount a pool.
fn mounts(door: Entrance, reports: &[Report]) -> bool {
    match door {
        Entrance::Preload => false,
        Entrance::Fuse => true,
        // Of this machine's nothing follows for the nodes'.
        Entrance::Auto => reports.iter().all(|report| report.fuse),
    }
}

fn no_node() -> NodePlan {
    NodePlan { host: String::new(), daemons: Vec::new(), stores: Vec::new(), nic: String::new() }
}

/// A node without daemons.
fn bare_node(at: &NodeAt, stores: Vec<PathBuf>) -> NodePlan {
    NodePlan { host: at.name.clone(), stores, ..no_node() }
}

/// A plan that starts no daemons.
fn bare_plan(instance: &Instance, nodes: Vec<NodePlan>) -> Plan {
    let (name, dir) = (instance.name.clone(), instance.dir.clone());
    let (tree, alone, pool, store) = (Tree::default(), String::new(), String::new(), PathBuf::new());
    Plan { name, dir, nodes, tree, alone, pool, store, order: Order::Start }
}

/// An agent's input, which ends with it. Its output does not.
struct Input(UnixStream);

impl Write for Input {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        // An agent that has ended has no input.
        let _ = self.0.shutdown(Shutdown::Write);
    }
}
