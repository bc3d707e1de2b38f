//! The agent of one node: starts the node's daemons, keeps its mount, and cleans up when
//! the daemons have ended.
//!
//! It speaks lines of JSON with the command that started it, directly, through ssh, through a stager, or
//! through srun, which hands the same input to the agents of all nodes:
//!
//! ```text
//! command → Plan            agent → Report (daemons reachable, or why not)
//! command → Go              agent → Report (pool file written, peers told, mounted)
//! ```
//! A plan may also order to end what the pool has on the node, or to remove it with all data; after the one report the agent ends.
//!
//! An agent may start others, and hands all of this on ([`crate::relay`]).
//!
//! After that it needs nobody: it ends when its daemons do or, on a node without daemons,
//! when no daemon of the pool answers any more. Agents of several nodes may share a machine
//! and the instance's directory, as in a test cluster of many `slurmd`: the first one mounts,
//! the last one removes the directory.

use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::NodeArgs;
use crate::instance::{self, Instance, own_uid};
use crate::launch::tool_path;
use crate::process::Process;
pub use crate::record::NodeRecord;
use crate::relay::{Below, Tree};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGTERM};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidepool_client::{Client, PoolFile};
use tidepool_fsd::{Config, IdleStore, Ready, TierConfig};
use tidepool_wire::message::{Reply, Request};

/// Longest line an agent reads: the plan of a large pool.
pub const LINE_MAX: u64 = 256 << 20;
/// How often daemons and signals are looked at.
pub const POLL: Duration = Duration::from_millis(20);
/// How often a node without daemons asks whether the pool is still there.
const PING_EVERY: Duration = Duration::from_millis(800);
/// Pause between rounds in which no daemon answered, and how many of them end the pool here.
const PING_AGAIN: Duration = Duration::from_millis(200);
const PING_ROUNDS: usize = 3;
/// How much of a log is quoted in an error.
const WORDS_BYTES_MAX: usize = 2048;
const WORDS_LINES_MAX: usize = 3;

/// For a node whose daemons are to end at once.
static ENDED: AtomicBool = AtomicBool::new(true);

/// What all agents of a pool are told first.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub name: String,
    /// The instance's directory, the same path on every node.
    pub dir: PathBuf,
    pub nodes: Vec<NodePlan>,
    /// Who starts whose agent.
    pub tree: Tree,
    /// The pool's identity, where its starter is on none of the nodes, so that the directory is made, and the log begun, by the
    /// agents; empty elsewhere.
    pub alone: String,
    /// The pool's identity; empty where a plan only orders to end what there is of it.
    pub pool: String,
    /// The directory on every node in which the stores are.
    pub store: PathBuf,
    #[serde(default)]
    pub order: Order,
}

/// What is to be done with the pool on a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    #[default]
    Start,
    /// End what runs and is mounted there; the data stay.
    Rest,
    /// The same, and remove the data.
    Remove,
}

impl Plan {
    /// The same for all daemons.
    fn tiers(&self) -> Result<Option<TierConfig>> {
        let Some(first) = self.nodes.iter().flat_map(|node| &node.daemons).next() else { return Ok(None) };
        let config = Config::parse(first).context(Kind::Start, || "the starter's plan".into())?;
        Ok(config.tiers)
    }

    pub fn instance(&self) -> Instance {
        Instance { name: self.name.clone(), dir: self.dir.clone() }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodePlan {
    /// Name of the node, for people and as an address; empty: `$SLURMD_NODENAME`.
    pub host: String,
    /// Daemon configurations, as `tidepoold` reads them.
    pub daemons: Vec<String>,
    /// Where the daemons' stores are.
    pub stores: Vec<PathBuf>,
    /// The network interface that others are to reach the daemons by; empty: whatever the node's name leads to.
    pub nic: String,
}

/// What they are told when all daemons are known.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Go {
    /// Text of the pool file.
    pub pool: String,
    /// Mount the pool by FUSE at its path.
    pub mount: bool,
    /// How long the mount may reuse names and attributes.
    pub cache_ttl_ms: u64,
    /// Nodes that programs are to use.
    pub compute: Vec<String>,
}

/// What an agent answers to either.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    pub node: usize,
    pub pid: u32,
    /// Name of the node.
    pub host: String,
    pub daemons: Vec<Ready>,
    /// A mount would work there; told where the starter is on none of the nodes.
    pub fuse: bool,
    /// Of a node that was to have its part ended: stores of the plan that are there now.
    #[serde(default)]
    pub stores: usize,
    /// The directory of the user's pools is somebody else's there; the pool may be elsewhere.
    #[serde(default)]
    pub taken: bool,
    /// Empty when all is well.
    pub error: String,
}

/// Runs this command once more as that user, when this process is root and the user is not;
/// its exit code.
pub fn become_user(user: Option<(u32, u32)>) -> Result<Option<ExitCode>> {
    let Some((uid, gid)) = user.filter(|(uid, _)| *uid != rustix::process::geteuid().as_raw()) else {
        return Ok(None);
    };
    let own = std::env::current_exe().context(Kind::Start, || "finding this program".into())?;
    let status = command_as(&own, (uid, gid))
        .args(std::env::args_os().skip(1))
        .status()
        .context(Kind::Start, || format!("running as user {uid}"))?;
    Ok(Some(ExitCode::from(crate::exec::exit_byte(status))))
}

/// A program as that user.
pub fn command_as(program: &Path, (uid, gid): (u32, u32)) -> Command {
    // Of root's environment he gets what this program asks for: the rest may be secret.
    let ours = std::env::vars_os().filter(|(name, _)| {
        let name = name.as_encoded_bytes();
        let is_loaders = [&b"PATH"[..], b"LD_LIBRARY_PATH"].contains(&name);
        is_loaders || name.starts_with(b"TIDEPOOL_") || name.starts_with(b"SLURM")
    });
    // Groups go as well (`Command::uid`), and nothing brings root's identity back: all three ids are the user's. His
    // setuid programs are left to him, since fusermount3 is one, by which he unmounts.
    let mut command = Command::new(program);
    command.env_clear().envs(ours).uid(uid).gid(gid).current_dir("/");
    command
}

/// `tidepool node`.
pub fn node(args: &NodeArgs) -> Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGTERM, Arc::clone(&stop))
        .context(Kind::Start, || "cannot handle signals".into())?;
    // The terminal or connection of the starter may end; the pool then goes on.
    signal_hook::flag::register(SIGHUP, Arc::default())
        .context(Kind::Start, || "cannot handle signals".into())?;
    let number = node_number(args)?;
    let mut input = std::io::stdin().lock();
    let line = read_line(&mut input)?;
    let plan: Plan = parse_line(&line)?;
    if plan.order != Order::Start {
        return tidy(&plan, number).map(|()| ExitCode::SUCCESS);
    }
    let own = std::env::current_exe().context(Kind::Start, || "finding this program".into())?;
    let below = Below::start(&plan.tree, number, &own, &line);
    drop(line);
    let served = serve(&plan, number, &mut input, &below, &stop);
    below.finish(&stop);
    served.map(|()| ExitCode::SUCCESS)
}

/// Ends this node's part of a pool, and tells which of its data are there.
fn tidy(plan: &Plan, number: usize) -> Result<()> {
    let host = plan.nodes.get(number).map(name_of).unwrap_or_default();
    let stores: &[PathBuf] = plan.nodes.get(number).map_or(&[], |node| &node.stores);
    let tidied = tidy_here(plan, stores);
    let there = stores.iter().filter(|dir| tidepool_fsd::is_store(dir)).count();
    report(match &tidied {
        Ok(()) => Report { stores: there, ..Report::well(number, &host) },
        Err(failure) => Report::failed(number, &host, &failure.to_string()),
    });
    tidied
}

fn tidy_here(plan: &Plan, stores: &[PathBuf]) -> Result<()> {
    let wipe = plan.order == Order::Remove;
    // The starter may not know where it was made, where another user had taken the first name.
    for instance in instance::all_of(&plan.instance())? {
        crate::launch::clean_here(&instance, wipe)?;
    }
    // The records of what was here may be gone, as after a restart of the node.
    if wipe {
        let fail = |error: &dyn std::fmt::Display| Failure::new(Kind::Cleanup, error.to_string());
        let held = stores.iter().map(|dir| IdleStore::hold(dir, own_uid(), |_| true));
        let held: std::result::Result<Vec<_>, _> = held.filter_map(std::result::Result::transpose).collect();
        held.map_err(|error| fail(&error))?
            .into_iter()
            .try_for_each(IdleStore::remove)
            .map_err(|error| fail(&error))?;
        remove_empty_parents(stores);
    }
    Ok(())
}

/// Has this node's part of the pool up for as long as it lasts.
fn serve(
    plan: &Plan,
    number: usize,
    input: &mut impl BufRead,
    below: &Below,
    stop: &AtomicBool,
) -> Result<()> {
    let host = plan.nodes.get(number).map(name_of).unwrap_or_default();
    let mut agent = match Agent::start(plan, number, &host) {
        Ok(agent) => agent,
        Err(failure) => {
            let taken = failure.kind == Kind::Taken;
            report(Report { taken, ..Report::failed(number, &host, &failure.to_string()) });
            return Err(failure);
        }
    };
    let fuse = !plan.alone.is_empty() && tidepool_fuse::probe().usable();
    report(Report { daemons: agent.ready.clone(), fuse, ..Report::well(number, &host) });
    let go = read_line(input).inspect(|line| below.tell(line));
    let up = go.and_then(|line| parse_line(&line)).and_then(|go: Go| agent.go(&go));
    report(match &up {
        Ok(()) => Report::well(number, &host),
        Err(failure) => Report::failed(number, &host, &failure.to_string()),
    });
    agent.supervise(if up.is_ok() { stop } else { &ENDED });
    agent.finish()?;
    up
}

fn node_number(args: &NodeArgs) -> Result<usize> {
    let from_slurm = || std::env::var("SLURM_PROCID").ok().and_then(|text| text.parse().ok());
    args.node
        .or_else(from_slurm)
        .ok_or_else(|| Failure::new(Kind::Usage, "which node is this? Give --node or set SLURM_PROCID"))
}

pub fn own_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// What people call this node.
fn name_of(plan: &NodePlan) -> String {
    let from_slurm = || std::env::var("SLURMD_NODENAME").ok().filter(|name| !name.is_empty());
    Some(plan.host.clone()).filter(|h| !h.is_empty()).or_else(from_slurm).unwrap_or_else(own_name)
}

/// Under which name or address other nodes reach this one. Names that people use need not be
/// known to the resolver: aliases of ssh, nodes of several `slurmd` on one machine.
fn address_of(host: &str) -> String {
    let resolves =
        |name: &String| (name.as_str(), 0).to_socket_addrs().is_ok_and(|mut all| all.next().is_some());
    // "client port server port": the address under which the starter found us.
    let by_ssh = std::env::var("SSH_CONNECTION").ok().and_then(|t| t.split(' ').nth(2).map(bracketed));
    let candidates = [Some(host.to_string()), by_ssh, by_connection(), Some(own_name())];
    candidates.into_iter().flatten().find(resolves).unwrap_or_else(own_address)
}

/// The address at which the starter has reached this node's stager, which says so. Nobody else could use one of the loopback
/// interface.
fn by_connection() -> Option<String> {
    let ip: IpAddr = std::env::var("TIDEPOOL_REACHED_AT").ok()?.parse().ok()?;
    Some(ip).filter(|ip| !ip.is_loopback()).map(|ip| bracketed(&ip.to_string()))
}

/// The address of a network interface of this node; one of IPv4 rather than of IPv6.
fn address_at(nic: &str) -> Result<String> {
    let fail = |why: String| Failure::new(Kind::Start, format!("--nic {nic}: {why}"));
    let all: Vec<_> = getifaddrs().map_err(|error| fail(error.to_string()))?.collect();
    let mut addresses: Vec<IpAddr> =
        all.iter().filter(|i| i.interface_name == nic).filter_map(|i| ip(i.address.as_ref()?)).collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    let Some(first) = addresses.first() else {
        let mut names: Vec<&str> = all.iter().map(|i| i.interface_name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        return Err(fail(format!(
            "no interface of this node with an address; there are {}",
            names.join(", ")
        )));
    };
    Ok(bracketed(&first.to_string()))
}

/// Addresses that other nodes can use.
fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|at| IpAddr::V4(at.ip()));
    let v6 = address.as_sockaddr_in6().map(|at| at.ip()).filter(|ip| !ip.is_unicast_link_local());
    v4.or(v6.map(IpAddr::V6))
}

/// The address from which this node would talk to others: for nodes whose own name nobody can
/// resolve. Connecting a datagram socket sends nothing.
fn own_address() -> String {
    let outward = UdpSocket::bind(("0.0.0.0", 0)).and_then(|socket| {
        // An address of the block reserved for documentation (RFC 5737): only its route matters.
        socket.connect(("192.0.2.1", 9))?;
        socket.local_addr()
    });
    // Without a route there are no other nodes to reach.
    outward.map_or_else(|_| "127.0.0.1".into(), |address| address.ip().to_string())
}

/// An IPv6 address as it is written before a port.
fn bracketed(address: &str) -> String {
    if address.contains(':') { format!("[{address}]") } else { address.to_string() }
}

/// A line without its end.
fn read_line(input: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    let mut limited = std::io::Read::take(input, LINE_MAX);
    limited.read_line(&mut line).context(Kind::Start, || "reading from the starter".into())?;
    if line.is_empty() {
        return Err(Failure::new(Kind::Start, "the starter is gone"));
    }
    line.truncate(line.trim_end().len());
    Ok(line)
}

fn parse_line<T: for<'a> Deserialize<'a>>(line: &str) -> Result<T> {
    serde_json::from_str(line).context(Kind::Start, || "the starter's line".into())
}

impl Report {
    pub fn well(node: usize, host: &str) -> Report {
        let (host, error) = (host.to_string(), String::new());
        Report {
            node,
            pid: std::process::id(),
            host,
            daemons: Vec::new(),
            fuse: false,
            stores: 0,
            taken: false,
            error,
        }
    }

    pub fn failed(node: usize, host: &str, error: &str) -> Report {
        Report { error: error.to_string(), ..Report::well(node, host) }
    }
}

/// Tells the starter, by way of the agents above.
pub fn report(report: Report) {
    let line = serde_json::to_string(&report).expect("a report always serializes");
    // A starter that is gone learns nothing; the pool file tells whoever comes next.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Tells people something; nobody may be listening any more.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "tidepool node: {text}");
}

struct Agent {
    instance: Instance,
    /// The pool's identity.
    pool: String,
    number: usize,
    /// Name of the node.
    host: String,
    children: Vec<Child>,
    ready: Vec<Ready>,
    stores: Vec<PathBuf>,
    mounted: Option<tidepool_fuse::Mounted>,
    /// The pool to watch, on a node without daemons.
    watched: Option<PoolFile>,
    /// The pool's storage below its own.
    tiers: Option<TierConfig>,
}

impl Agent {
    /// Starts the node's daemons and waits until each can be reached.
    fn start(plan: &Plan, number: usize, host: &str) -> Result<Agent> {
        let node = plan
            .nodes
            .get(number)
            .ok_or_else(|| Failure::new(Kind::Start, format!("the plan has no node {number}")))?;
        let instance = plan.instance();
        make_dirs(&instance)?;
        if !plan.alone.is_empty() {
            NodeRecord::note_alone(&instance, plan)?;
            speak_to(&open_log(&instance)?)?;
        }
        let mut agent = Agent {
            instance,
            pool: plan.pool.clone(),
            number,
            host: host.to_string(),
            children: Vec::new(),
            ready: Vec::new(),
            stores: node.stores.clone(),
            mounted: None,
            watched: None,
            tiers: plan.tiers()?,
        };
        let started = agent.record().and_then(|()| agent.start_daemons(node, host));
        if started.is_err() {
            agent.supervise(&ENDED);
            agent.finish()?;
        }
        started.map(|()| agent)
    }

    /// Writes down what there is, so that it can be found when this process is killed.
    fn record(&self) -> Result<()> {
        let record = NodeRecord {
            daemons: self.children.iter().map(|child| Process::of(child.id())).collect(),
            stores: self.stores.clone(),
            ..NodeRecord::new(&self.pool)
        };
        record.write(&NodeRecord::path(&self.instance, self.number))
    }

    fn start_daemons(&mut self, node: &NodePlan, host: &str) -> Result<()> {
        if node.daemons.is_empty() {
            return Ok(());
        }
        let program = tool_path("tidepoold")?;
        // All stores before the first daemon: one that wiped its own would have lost it for a pool that is then refused.
        for text in &node.daemons {
            let config = Config::parse(text).context(Kind::Start, || "the starter's plan".into())?;
            tidepool_fsd::check_stores(&config)
                .map_err(|error| Failure::new(Kind::Start, error.to_string()))?;
        }
        let address = match node.nic.as_str() {
            "" => address_of(host),
            nic => address_at(nic)?,
        };
        let mut inputs = Vec::new();
        for _ in &node.daemons {
            let log = open_log(&self.instance)?;
            let mut child = Command::new(&program)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(log)
                .current_dir("/")
                .spawn()
                .context(Kind::Start, || program.display().to_string())?;
            inputs.push(child.stdin.take().expect("stdin is piped"));
            self.children.push(child);
        }
        // Before they are told what to do. If this process is killed earlier, they end, having done nothing; if later, whoever cleans
        // up knows them.
        self.record()?;
        for (text, mut input) in node.daemons.iter().zip(inputs) {
            let mut config = Config::parse(text).context(Kind::Start, || "the starter's plan".into())?;
            config.host = host.to_string();
            // Under another name than its address's nobody could reach the loopback for sure.
            let loopback = config.tcp.filter(|at| at.ip().is_loopback());
            config.advertise = loopback.map_or_else(|| address.clone(), |at| at.ip().to_string());
            writeln!(input, "{}", config.to_json())
                .context(Kind::Start, || "a daemon ended before it read its configuration".into())?;
        }
        // All start at once; then each is waited for.
        for child in &mut self.children {
            let stdout = child.stdout.take().expect("stdout is piped");
            self.ready.push(read_ready(stdout, &self.instance)?);
        }
        Ok(())
    }

    /// Tells the daemons here their peers, mounts, and writes the pool file.
    fn go(&mut self, go: &Go) -> Result<()> {
        let pool = PoolFile::parse(go.pool.as_bytes())
            .map_err(|why| Failure::new(Kind::Start, format!("the starter's pool file: {why}")))?;
        let client = Client::new(pool.clone());
        for ready in &self.ready {
            let request = Request::Members { members: pool.members.clone() };
            match client
                .request(ready.index, &request)
                .context(Kind::Start, || "telling a daemon its peers".into())?
            {
                Reply::Done {} => {}
                other => {
                    let text = format!("daemon {} does not take its peers: {other:?}", ready.index);
                    return Err(Failure::new(Kind::Start, text));
                }
            }
        }
        if self.ready.is_empty() {
            self.watched = Some(pool.clone());
        }
        // Not from where the pool is only ordered.
        if !self.ready.is_empty() || go.compute.contains(&self.host) {
            let own: Vec<_> = self.ready.iter().map(|ready| ready.index).collect();
            crate::reach::check(&client, self.number, &self.host, &own)?;
        }
        let _lock = self.instance.lock().context(Kind::Start, || self.instance.dir.display().to_string())?;
        if !crate::exec::is_mounted(&self.instance) {
            self.open_door(&pool, client, go)?;
        }
        self.instance.write_hostfile(&go.compute)?;
        self.instance.write_tiers(self.tiers.as_ref())?;
        // Last, because a pool with a pool file is a pool that works.
        pool.write(&self.instance.pool_file())
            .context(Kind::Start, || self.instance.pool_file().display().to_string())
    }

    /// Mounts the pool at its path, or closes the path to programs that are not intercepted.
    fn open_door(&mut self, pool: &PoolFile, client: Client, go: &Go) -> Result<()> {
        // A program that is not intercepted shall fail there, not write beside the pool (root
        // may write all the same; `Instance::remove` then tells). fusermount3 wants it writable.
        let mode = if go.mount { 0o700 } else { 0o500 };
        fs::set_permissions(self.instance.mount_path(), fs::Permissions::from_mode(mode))
            .context(Kind::Start, || self.instance.mount_path().display().to_string())?;
        if go.mount {
            let options = tidepool_fuse::MountOptions {
                relaxed: !pool.mode.checks_permissions(),
                cache_ttl_ms: go.cache_ttl_ms,
                ..tidepool_fuse::MountOptions::new(pool.mount.clone())
            };
            self.mounted = Some(crate::mount::guarded(Arc::new(client), &options)?);
        }
        Ok(())
    }

    /// Waits until no daemon is left, here or, on a node without any, in the whole pool;
    /// hands SIGTERM on to those here.
    fn supervise(&mut self, stop: &AtomicBool) {
        if let Some(pool) = self.watched.take() {
            let ended = watch(pool, self.number);
            while !ended.load(Ordering::Acquire) && !stop.load(Ordering::Acquire) {
                std::thread::sleep(POLL);
            }
        }
        let mut told = false;
        while !self.children.is_empty() {
            if stop.load(Ordering::Acquire) && !told {
                told = true;
                self.children.iter().for_each(terminate);
            }
            self.children.retain_mut(|child| match child.try_wait() {
                Ok(None) => true,
                Ok(Some(status)) => {
                    if !status.success() {
                        say(&format!("daemon process {} ended with {status}", child.id()));
                    }
                    false
                }
                Err(error) => {
                    say(&format!("daemon process {}: {error}", child.id()));
                    false
                }
            });
            std::thread::sleep(POLL);
        }
    }

    /// Removes what the node has of the pool, unless data was left on purpose or by a crash.
    fn finish(&mut self) -> Result<()> {
        if let Some(mounted) = self.mounted.take() {
            mounted.unmount().context(Kind::Cleanup, || "unmounting".into())?;
        }
        remove_empty_parents(&self.stores);
        if self.stores.iter().any(|dir| tidepool_fsd::is_store(dir)) {
            return Ok(());
        }
        let fail = || self.instance.dir.display().to_string();
        // Without a directory somebody else has cleaned up already.
        let Ok(_lock) = self.instance.lock() else { return Ok(()) };
        remove_if_there(&NodeRecord::path(&self.instance, self.number)).context(Kind::Cleanup, fail)?;
        if NodeRecord::all(&self.instance)?.is_empty() {
            self.instance.remove().context(Kind::Cleanup, fail)?;
        }
        Ok(())
    }
}

/// Sets the flag it returns when no daemon of the pool answers any more. In a thread of its
/// own, because a daemon that hangs must not keep SIGTERM waiting.
fn watch(pool: PoolFile, node: usize) -> Arc<AtomicBool> {
    let ended = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&ended);
    std::thread::spawn(move || {
        let client = Client::new(pool);
        // Nodes ask different daemons, and stay with one that answers.
        let mut asked = node % client.members();
        let mut silent = 0;
        while silent < PING_ROUNDS {
            let all = 0..client.members();
            let mut next = all.map(|offset| (asked + offset) % client.members());
            match next.find(|daemon| client.is_there(*daemon as u16)) {
                Some(daemon) => {
                    (asked, silent) = (daemon, 0);
                    std::thread::sleep(PING_EVERY);
                }
                None => {
                    silent += 1;
                    std::thread::sleep(PING_AGAIN);
                }
            }
        }
        told.store(true, Ordering::Release);
    });
    ended
}

fn remove_if_there(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes the pool's own directory in each store directory once it is empty.
pub fn remove_empty_parents(stores: &[PathBuf]) {
    for parent in stores.iter().filter_map(|s| s.parent()) {
        // Fails when something is left in it, which is then kept on purpose.
        let _ = fs::remove_dir(parent);
    }
}

/// Makes the instance's directories; those of another node on this machine will do. The starter has said where: whether
/// they are this user's alone, here, is looked at here.
fn make_dirs(instance: &Instance) -> Result<()> {
    if let Some(base) = instance.dir.parent() {
        instance::private_dir(base).map_err(|failure| failure.of_kind(Kind::Taken))?;
    }
    instance::private_dir(&instance.dir)?;
    match fs::DirBuilder::new().mode(0o700).create(instance.mount_path()) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(error).context(Kind::Start, || instance.mount_path().display().to_string())
        }
        _ => Ok(()),
    }
}

/// From here on standard error is this file.
fn speak_to(log: &File) -> Result<()> {
    rustix::stdio::dup2_stderr(log).context(Kind::Start, || "the pool's log".into())
}

fn open_log(instance: &Instance) -> Result<File> {
    open_log_at(&instance.log_path())
}

/// Opens a log for appending, readable by its owner only.
pub fn open_log_at(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
        .context(Kind::Start, || path.display().to_string())
}

fn read_ready(stdout: std::process::ChildStdout, instance: &Instance) -> Result<Ready> {
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).context(Kind::Start, || "reading from a daemon".into())?;
    let ready: Ready = serde_json::from_str(&line).map_err(|_| {
        let said = last_words(&instance.log_path());
        Failure::new(Kind::Start, format!("a daemon ended before it was ready{said}"))
    })?;
    if ready.ready { Ok(ready) } else { Err(Failure::new(Kind::Start, ready.error)) }
}

/// The last lines of a log as `: "…"`, to end an error with; empty when it has none.
pub fn last_words(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let tail = String::from_utf8_lossy(&text[text.len().saturating_sub(WORDS_BYTES_MAX)..]).into_owned();
    let lines: Vec<&str> = tail.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(WORDS_LINES_MAX)..];
    if last.is_empty() { String::new() } else { format!(": \"{}\"", last.join(" | ")) }
}

fn terminate(child: &Child) {
    if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}
