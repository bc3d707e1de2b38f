//! The agent of one node: starts the node's daemons, keeps its mount, and cleans up when
//! the daemons have ended.
//!
//! It speaks lines of JSON with the command that started it, directly, through ssh, or
//! through srun, which hands the same input to the agents of all nodes:
//!
//! ```text
//! command → Plan            agent → Report (daemons reachable, or why not)
//! command → Go              agent → Report (pool file written, peers told, mounted)
//! ```
//! After that it needs nobody: it ends when its daemons do.

use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::NodeArgs;
use crate::instance::Instance;
use crate::launch::tool_path;
use serde::{Deserialize, Serialize};
use signal_hook::consts::SIGTERM;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidepool_client::{Client, PoolFile, PoolMode};
use tidepool_fsd::Ready;
use tidepool_wire::message::{Reply, Request};

/// Longest line an agent reads: the plan of a large pool.
const LINE_MAX: u64 = 256 << 20;
/// How often daemons and signals are looked at.
const POLL: Duration = Duration::from_millis(20);

/// What all agents of a pool are told first.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub name: String,
    /// The instance's directory, the same path on every node.
    pub dir: PathBuf,
    pub nodes: Vec<NodePlan>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodePlan {
    /// Daemon configurations, as `tidepoold` reads them.
    pub daemons: Vec<String>,
    /// Where the daemons' stores are.
    pub stores: Vec<PathBuf>,
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
}

/// What an agent answers to either.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    pub node: usize,
    pub pid: u32,
    pub daemons: Vec<Ready>,
    /// Empty when all is well.
    pub error: String,
}

/// What a node keeps of a pool, so that it can be cleaned up by anybody.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeRecord {
    pub agent: u32,
    pub daemons: Vec<u32>,
    pub stores: Vec<PathBuf>,
}

impl NodeRecord {
    fn path(instance: &Instance) -> PathBuf {
        instance.dir.join("node.json")
    }

    pub fn read(instance: &Instance) -> NodeRecord {
        let text = fs::read(NodeRecord::path(instance)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    fn write(&self, instance: &Instance) -> Result<()> {
        let text = serde_json::to_vec(self).expect("a record always serializes");
        fs::write(NodeRecord::path(instance), text)
            .context(Kind::Start, || NodeRecord::path(instance).display().to_string())
    }
}

/// `tidepool node`.
pub fn node(args: &NodeArgs) -> Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGTERM, Arc::clone(&stop))
        .context(Kind::Start, || "cannot handle signals".into())?;
    let number = node_number(args)?;
    let mut input = std::io::stdin().lock();
    let plan: Plan = read_line(&mut input)?;
    let mut agent = match Agent::start(&plan, number) {
        Ok(agent) => agent,
        Err(failure) => {
            report(number, Vec::new(), &failure.to_string());
            return Err(failure);
        }
    };
    report(number, agent.ready.clone(), "");
    let up = read_line(&mut input).and_then(|go: Go| agent.go(&go));
    report(number, Vec::new(), &up.as_ref().err().map(ToString::to_string).unwrap_or_default());
    if up.is_err() {
        stop.store(true, Ordering::Release);
    }
    agent.supervise(&stop);
    agent.finish()?;
    up.map(|()| ExitCode::SUCCESS)
}

fn node_number(args: &NodeArgs) -> Result<usize> {
    let from_slurm = || std::env::var("SLURM_PROCID").ok().and_then(|text| text.parse().ok());
    args.node
        .or_else(from_slurm)
        .ok_or_else(|| Failure::new(Kind::Usage, "which node is this? Give --node or set SLURM_PROCID"))
}

fn read_line<T: for<'a> Deserialize<'a>>(input: &mut impl BufRead) -> Result<T> {
    let mut line = String::new();
    let mut limited = std::io::Read::take(input, LINE_MAX);
    limited.read_line(&mut line).context(Kind::Start, || "reading from the starter".into())?;
    serde_json::from_str(&line).context(Kind::Start, || "the starter's line".into())
}

fn report(node: usize, daemons: Vec<Ready>, error: &str) {
    let report = Report { node, pid: std::process::id(), daemons, error: error.to_string() };
    let line = serde_json::to_string(&report).expect("a report always serializes");
    // A starter that is gone learns nothing; the pool file tells whoever comes next.
    let _ = writeln!(std::io::stdout(), "{line}");
}

struct Agent {
    instance: Instance,
    children: Vec<Child>,
    ready: Vec<Ready>,
    stores: Vec<PathBuf>,
    mounted: Option<tidepool_fuse::Mounted>,
}

impl Agent {
    /// Starts the node's daemons and waits until each can be reached.
    fn start(plan: &Plan, number: usize) -> Result<Agent> {
        let node = plan
            .nodes
            .get(number)
            .ok_or_else(|| Failure::new(Kind::Start, format!("the plan has no node {number}")))?;
        let instance = Instance { name: plan.name.clone(), dir: plan.dir.clone() };
        make_dirs(&instance)?;
        let mut agent = Agent {
            instance,
            children: Vec::new(),
            ready: Vec::new(),
            stores: node.stores.clone(),
            mounted: None,
        };
        let started = agent.start_daemons(&node.daemons);
        if started.is_err() {
            agent.supervise(&AtomicBool::new(true));
            agent.finish()?;
        }
        started.map(|()| agent)
    }

    fn start_daemons(&mut self, configs: &[String]) -> Result<()> {
        let program = tool_path("tidepoold")?;
        for config in configs {
            let log = open_log(&self.instance)?;
            let mut child = Command::new(&program)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(log)
                .current_dir("/")
                .spawn()
                .context(Kind::Start, || program.display().to_string())?;
            let mut stdin = child.stdin.take().expect("stdin is piped");
            let fed = writeln!(stdin, "{config}");
            self.children.push(child);
            fed.context(Kind::Start, || "a daemon ended before it read its configuration".into())?;
        }
        // All start at once; then each is waited for.
        for child in &mut self.children {
            let stdout = child.stdout.take().expect("stdout is piped");
            self.ready.push(read_ready(stdout)?);
        }
        let daemons = self.children.iter().map(Child::id).collect();
        NodeRecord { agent: std::process::id(), daemons, stores: self.stores.clone() }.write(&self.instance)
    }

    /// Writes the pool file, tells the daemons here their peers, and mounts.
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
        if go.mount {
            let options = tidepool_fuse::MountOptions {
                relaxed: pool.mode == PoolMode::Relaxed,
                cache_ttl_ms: go.cache_ttl_ms,
                ..tidepool_fuse::MountOptions::new(pool.mount.clone())
            };
            let mounted = tidepool_fuse::mount(Arc::new(client), &options);
            self.mounted =
                Some(mounted.context(Kind::Start, || format!("mounting at {}", pool.mount.display()))?);
        }
        if self.mounted.is_none() {
            // A program that is not intercepted shall fail there, not write beside the pool.
            // (Root may write all the same; `Instance::remove` then tells.)
            fs::set_permissions(self.instance.mount_path(), fs::Permissions::from_mode(0o500))
                .context(Kind::Start, || self.instance.mount_path().display().to_string())?;
        }
        // Last, because a pool with a pool file is a pool that works.
        pool.write(&self.instance.pool_file())
            .context(Kind::Start, || self.instance.pool_file().display().to_string())
    }

    /// Waits until no daemon is left; hands SIGTERM on to them.
    fn supervise(&mut self, stop: &AtomicBool) {
        let mut told = false;
        while !self.children.is_empty() {
            if stop.load(Ordering::Acquire) && !told {
                told = true;
                self.children.iter().for_each(terminate);
            }
            let mut index = 0;
            self.children.retain_mut(|child| {
                index += 1;
                match child.try_wait() {
                    Ok(None) => true,
                    Ok(Some(status)) => {
                        if !status.success() {
                            eprintln!("tidepool node: daemon process {} ended with {status}", child.id());
                        }
                        false
                    }
                    Err(error) => {
                        eprintln!("tidepool node: daemon process {}: {error}", child.id());
                        false
                    }
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
        self.instance.remove().context(Kind::Cleanup, || self.instance.dir.display().to_string())
    }
}

/// Removes the pool's own directory in each store directory once it is empty.
pub fn remove_empty_parents(stores: &[PathBuf]) {
    for parent in stores.iter().filter_map(|s| s.parent()) {
        // Fails when something is left in it, which is then kept on purpose.
        let _ = fs::remove_dir(parent);
    }
}

fn make_dirs(instance: &Instance) -> Result<()> {
    for dir in [&instance.dir, &instance.mount_path()] {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .context(Kind::Start, || dir.display().to_string())?;
    }
    Ok(())
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

fn read_ready(stdout: std::process::ChildStdout) -> Result<Ready> {
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).context(Kind::Start, || "reading from a daemon".into())?;
    let ready: Ready = serde_json::from_str(&line)
        .map_err(|_| Failure::new(Kind::Start, "a daemon ended before it was ready; see the pool's log"))?;
    if ready.ready { Ok(ready) } else { Err(Failure::new(Kind::Start, ready.error)) }
}

fn terminate(child: &Child) {
    if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}
