//! Starting and stopping a pool's agents: here, through ssh, or through srun.

use crate::agent::{self, Go, NodePlan, NodeRecord, Plan, Report};
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::{BackendFlag, Door, ModeFlag, PoolShape};
use crate::instance::Instance;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tidepool_client::{Client, PoolFile, PoolMode};
use tidepool_fsd::{Backend, Config, Ready};
use tidepool_transport::{Secret, random_bytes};
use tidepool_types::InstanceId;
use tidepool_wire::message::{Member, Request};

/// How long all agents may take for one step.
const STEP_MAX: Duration = Duration::from_secs(60);
/// How long daemons and agents may take to end.
const STOP_MAX: Duration = Duration::from_secs(30);

/// Where a pool's nodes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// That many daemons on this machine.
    Local(usize),
    /// One daemon on each host.
    Ssh(Vec<String>),
    /// One daemon on each of that many nodes of the allocation.
    Slurm(usize),
}

impl Place {
    /// Decides from the flags and the environment.
    pub fn choose(shape: &PoolShape) -> Result<Place> {
        if let Some(hosts) = &shape.hosts {
            return Ok(Place::Ssh(parse_hosts(hosts)?));
        }
        let allocated = std::env::var("SLURM_JOB_NUM_NODES").ok().and_then(|n| n.parse().ok());
        match allocated {
            Some(nodes) if !shape.local => {
                let wanted = shape.nodes.unwrap_or(nodes);
                if wanted == 0 || wanted > nodes {
                    let text = format!("--nodes {wanted}: the allocation has {nodes} nodes");
                    return Err(Failure::new(Kind::Usage, text));
                }
                Ok(Place::Slurm(wanted))
            }
            _ => match shape.nodes.unwrap_or(1) {
                0 => Err(Failure::new(Kind::Usage, "--nodes 0: a pool has at least one daemon")),
                n if n > tidepool_types::DAEMONS_MAX => {
                    Err(Failure::new(Kind::Usage, format!("--nodes {n}: a pool has at most 65536 daemons")))
                }
                n => Ok(Place::Local(n)),
            },
        }
    }

    pub fn nodes(&self) -> usize {
        match self {
            Place::Local(_) => 1,
            Place::Ssh(hosts) => hosts.len(),
            Place::Slurm(nodes) => *nodes,
        }
    }

    pub fn daemons(&self) -> usize {
        if let Place::Local(count) = self { *count } else { self.nodes() }
    }

    pub fn describe(&self) -> String {
        match self {
            Place::Local(n) => format!("{n} daemon(s) on this machine"),
            Place::Ssh(hosts) => format!("{} host(s) through ssh: {}", hosts.len(), hosts.join(", ")),
            Place::Slurm(n) => format!("{n} node(s) of the Slurm allocation through srun"),
        }
    }
}

/// Hosts separated by commas, or the lines of a file after `@`; `#` starts a comment there.
fn parse_hosts(text: &str) -> Result<Vec<String>> {
    let listed = match text.strip_prefix('@') {
        Some(file) => std::fs::read_to_string(file).context(Kind::Usage, || format!("--hosts {text}"))?,
        None => text.replace(',', "\n"),
    };
    let hosts: Vec<String> = listed
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim().to_string())
        .filter(|host| !host.is_empty())
        .collect();
    // ssh would take a leading dash for an option.
    if let Some(bad) = hosts.iter().find(|h| h.starts_with('-') || h.contains(char::is_whitespace)) {
        return Err(Failure::new(Kind::Usage, format!("--hosts: '{bad}' is no host name")));
    }
    let mut sorted = hosts.clone();
    sorted.sort();
    if let Some(pair) = sorted.windows(2).find(|w| w[0] == w[1]) {
        return Err(Failure::new(Kind::Usage, format!("--hosts: '{}' is named twice", pair[0])));
    }
    if hosts.is_empty() { Err(Failure::new(Kind::Usage, "--hosts names no host")) } else { Ok(hosts) }
}

/// A program of this installation, found beside the running one.
pub fn tool_path(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context(Kind::Start, || "finding this program".into())?;
    let path = own.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    let text = format!("{name} is missing beside {}; install it there", own.display());
    Err(Failure::new(Kind::Start, text))
}

/// Directory for a pool's data when none is named.
pub fn default_store() -> PathBuf {
    ["TIDEPOOL_STORE", "TMPDIR"]
        .iter()
        .find_map(|name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute()))
        .unwrap_or_else(|| "/tmp".into())
}

/// True when programs will see the pool through FUSE.
pub fn wants_mount(door: Door) -> Result<bool> {
    match door {
        Door::Preload => Ok(false),
        Door::Fuse => Ok(true),
        Door::Auto => Ok(tidepool_fuse::probe().usable()),
    }
}

/// A pool that this process started.
pub struct RunningPool {
    pub instance: Instance,
    pub pool: PoolFile,
    pub mounted: bool,
    agents: Vec<Child>,
    stopped: bool,
}

/// Identity of a pool that was stopped with `--keep`, to be reopened.
pub struct Kept {
    pub instance: InstanceId,
    pub secret: Secret,
    pub daemons: usize,
}

/// Starts a pool and returns when every daemon answers.
pub fn start(shape: &PoolShape, name: &str, kept: Option<&Kept>, keep: bool) -> Result<RunningPool> {
    let place = Place::choose(shape)?;
    let instance = match kept {
        Some(_) => Instance { name: name.into(), dir: crate::instance::base_dir()?.join(name) },
        None => Instance::create(name)?,
    };
    let mut starting = Starting { agents: Vec::new(), streams: Vec::new() };
    let started = starting.start(shape, &place, &instance, kept, keep);
    match started {
        Ok((pool, mounted)) => {
            Ok(RunningPool { instance, pool, mounted, agents: starting.agents, stopped: false })
        }
        Err(failure) => {
            starting.abandon();
            if kept.is_none() {
                clean_here(&instance, true)?;
            }
            Err(failure)
        }
    }
}

/// Agents on their way up.
struct Starting {
    agents: Vec<Child>,
    streams: Vec<(ChildStdin, Receiver<String>)>,
}

impl Starting {
    fn start(
        &mut self,
        shape: &PoolShape,
        place: &Place,
        instance: &Instance,
        kept: Option<&Kept>,
        keep: bool,
    ) -> Result<(PoolFile, bool)> {
        let id = kept.map_or_else(|| InstanceId(random_bytes()), |k| k.instance);
        let secret = kept.map_or_else(Secret::random, |k| k.secret.clone());
        let mount = wants_mount(shape.client)?;
        let plan = make_plan(shape, place, instance, id, &secret, keep);
        self.spawn(place, instance)?;
        self.tell(&plan)?;
        let mut ready: Vec<Ready> =
            self.reports(place.nodes())?.into_iter().flat_map(|r| r.daemons).collect();
        ready.sort_by_key(|r| r.index);
        let pool = PoolFile {
            instance: id,
            secret,
            mount: instance.mount_path(),
            chunk_size: shape.chunk_size,
            mode: match shape.mode {
                ModeFlag::Posix => PoolMode::Posix,
                ModeFlag::Relaxed => PoolMode::Relaxed,
            },
            members: ready.into_iter().map(member).collect(),
        };
        self.tell(&Go { pool: pool.to_json(), mount, cache_ttl_ms: shape.cache_ttl })?;
        self.reports(place.nodes())?;
        Ok((pool, mount))
    }

    fn spawn(&mut self, place: &Place, instance: &Instance) -> Result<()> {
        let own = std::env::current_exe().context(Kind::Start, || "finding this program".into())?;
        let mut commands = Vec::new();
        match place {
            Place::Local(_) => {
                let mut command = Command::new(&own);
                command.args(["node", "--node", "0"]);
                commands.push(command);
            }
            Place::Ssh(hosts) => {
                for (number, host) in hosts.iter().enumerate() {
                    let mut command = Command::new("ssh");
                    command.args(["-o", "BatchMode=yes", "-T", host, "--"]);
                    command.arg(quote(&own)).args(["node", "--node", &number.to_string()]);
                    commands.push(command);
                }
            }
            Place::Slurm(nodes) => {
                let mut command = Command::new("srun");
                command.args(["--overlap", "--ntasks-per-node=1", "--mpi=none", "--input=all"]);
                command.arg(format!("--nodes={nodes}")).arg(format!("--ntasks={nodes}"));
                command.arg(&own).arg("node");
                commands.push(command);
            }
        }
        for mut command in commands {
            // A group of its own: Ctrl-C is for the command, which stops the pool in order.
            let mut child = command
                .process_group(0)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(agent::open_log_at(&instance.log_path())?)
                .spawn()
                .context(Kind::Start, || format!("{}", command.get_program().to_string_lossy()))?;
            let stdin = child.stdin.take().expect("stdin is piped");
            let lines = read_lines(child.stdout.take().expect("stdout is piped"));
            self.agents.push(child);
            self.streams.push((stdin, lines));
        }
        Ok(())
    }

    fn tell(&mut self, message: &impl serde::Serialize) -> Result<()> {
        let line = serde_json::to_string(message).expect("messages always serialize");
        for (stdin, _) in &mut self.streams {
            // An agent that is gone is reported with what it said last.
            let _ = writeln!(stdin, "{line}").and_then(|()| stdin.flush());
        }
        Ok(())
    }

    /// One report of every node; any error among them is the result.
    fn reports(&mut self, nodes: usize) -> Result<Vec<Report>> {
        let deadline = Instant::now() + STEP_MAX;
        let per_stream = nodes / self.streams.len();
        let mut reports = Vec::new();
        for (_, lines) in &self.streams {
            for _ in 0..per_stream {
                let left = deadline.saturating_duration_since(Instant::now());
                let line = lines.recv_timeout(left).map_err(|error| {
                    let why = match error {
                        RecvTimeoutError::Timeout => "a node did not answer in time",
                        RecvTimeoutError::Disconnected => "a node's agent ended early",
                    };
                    Failure::new(Kind::Start, format!("{why}; what it said: {}", self.last_words()))
                })?;
                let report: Report =
                    serde_json::from_str(&line).context(Kind::Start, || format!("an agent said '{line}'"))?;
                reports.push(report);
            }
        }
        match reports.iter().find(|r| !r.error.is_empty()) {
            Some(bad) => Err(Failure::new(Kind::Start, format!("node {}: {}", bad.node, bad.error))),
            None => Ok(reports),
        }
    }

    fn last_words(&self) -> String {
        "see the pool's log".into()
    }

    /// Ends agents of a pool that did not come up. They clean their nodes when told to stop.
    fn abandon(&mut self) {
        self.streams.clear();
        for agent in &mut self.agents {
            terminate(agent.id());
        }
        wait_all(&mut self.agents, STOP_MAX);
    }
}

fn make_plan(
    shape: &PoolShape,
    place: &Place,
    instance: &Instance,
    id: InstanceId,
    secret: &Secret,
    keep: bool,
) -> Plan {
    let store = shape.store.clone().unwrap_or_else(default_store);
    let store = std::path::absolute(&store).unwrap_or(store);
    let own_host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let config = |index: usize, host: &str, tcp: Option<SocketAddr>| Config {
        instance: id,
        secret: secret.clone(),
        index: index as u16,
        host: host.to_string(),
        dir: instance.store_dir(&store, index),
        unix: Some(instance.socket(index)),
        tcp,
        advertise: host.to_string(),
        backend: match shape.backend {
            BackendFlag::Memlog => Backend::Memlog,
            BackendFlag::Lmdb => Backend::Lmdb,
        },
        keep,
        wipe: shape.wipe,
        workers: if shape.daemon_threads == 0 {
            tidepool_fsd::default_workers()
        } else {
            shape.daemon_threads
        },
        lifeline: false,
    };
    let any: SocketAddr = ([0, 0, 0, 0], 0).into();
    let node = |configs: Vec<Config>| NodePlan {
        stores: configs.iter().map(|c| c.dir.clone()).collect(),
        daemons: configs.iter().map(Config::to_json).collect(),
    };
    let nodes = match place {
        Place::Local(count) => vec![node((0..*count).map(|i| config(i, &own_host, None)).collect())],
        Place::Ssh(hosts) => {
            let address = |host: &str| host.rsplit('@').next().unwrap_or(host).to_string();
            hosts.iter().enumerate().map(|(i, h)| node(vec![config(i, &address(h), Some(any))])).collect()
        }
        Place::Slurm(count) => (0..*count).map(|i| node(vec![config(i, "", Some(any))])).collect(),
    };
    Plan { name: instance.name.clone(), dir: instance.dir.clone(), nodes }
}

fn member(ready: Ready) -> Member {
    Member { index: ready.index, host: ready.host, boot_id: ready.boot_id, tcp: ready.tcp, unix: ready.unix }
}

/// Quotes a path for the shell that ssh runs on the other side.
fn quote(path: &Path) -> String {
    format!("'{}'", path.to_string_lossy().replace('\'', "'\\''"))
}

fn read_lines(stdout: std::process::ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

impl RunningPool {
    pub fn client(&self) -> Client {
        Client::new(self.pool.clone())
    }

    /// Leaves the pool running after this process.
    pub fn detach(mut self) -> Instance {
        self.stopped = true;
        self.instance.clone()
    }

    /// Stops all daemons and returns when nothing of the pool is left on any node.
    pub fn stop(mut self) -> Result<()> {
        self.stop_now()
    }

    fn stop_now(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.stopped, true) {
            return Ok(());
        }
        let unreachable = tell_daemons(&self.client(), true);
        let mut stragglers = wait_all(&mut self.agents, STOP_MAX);
        if stragglers > 0 {
            self.agents.iter().for_each(|a| terminate(a.id()));
            stragglers = wait_all(&mut self.agents, STOP_MAX);
        }
        clean_here(&self.instance, true)?;
        if stragglers > 0 || !unreachable.is_empty() && self.agents.len() > 1 {
            let text = format!(
                "{stragglers} agent(s) did not end; not reached: {}; run 'tidepool doctor' there",
                unreachable.join(", ")
            );
            return Err(Failure::new(Kind::Cleanup, text));
        }
        Ok(())
    }
}

impl Drop for RunningPool {
    fn drop(&mut self) {
        if let Err(failure) = self.stop_now() {
            eprintln!("tidepool: {failure}");
        }
    }
}

/// Asks every daemon to end; those that could not be asked.
pub fn tell_daemons(client: &Client, wipe: bool) -> Vec<String> {
    (0..client.members() as u16)
        .filter_map(|daemon| match client.request(daemon, &Request::Shutdown { wipe }) {
            Ok(_) => None,
            Err(error) => Some(format!("daemon {daemon} on {} ({error})", client.host(daemon))),
        })
        .collect()
}

/// Waits for processes to end; how many have not.
fn wait_all(children: &mut [Child], limit: Duration) -> usize {
    let deadline = Instant::now() + limit;
    loop {
        let alive = children.iter_mut().filter_map(|c| c.try_wait().ok()).filter(Option::is_none).count();
        if alive == 0 || Instant::now() > deadline {
            return alive;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn terminate(pid: u32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

/// True while a process with this id runs a program of ours.
pub fn is_ours(pid: u32) -> bool {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let name = exe.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.starts_with("tidepool")
}

/// Removes what is left of a pool on this node: processes, mounts, stores, the directory.
/// With `wipe` false the stores and the pool file stay.
pub fn clean_here(instance: &Instance, wipe: bool) -> Result<()> {
    let record = NodeRecord::read(instance);
    let processes: Vec<u32> =
        record.daemons.iter().chain([&record.agent]).copied().filter(|p| *p != 0 && is_ours(*p)).collect();
    end_processes(&processes);
    for path in tidepool_fuse::mounts_below(&instance.dir) {
        tidepool_fuse::unmount(&path).context(Kind::Cleanup, || format!("unmounting {}", path.display()))?;
    }
    if !wipe {
        return Ok(());
    }
    for store in record.stores.iter().filter(|s| tidepool_fsd::is_store(s)) {
        std::fs::remove_dir_all(store).context(Kind::Cleanup, || store.display().to_string())?;
    }
    agent::remove_empty_parents(&record.stores);
    instance.remove().context(Kind::Cleanup, || instance.dir.display().to_string())
}

/// Asks processes to end, then makes them.
fn end_processes(processes: &[u32]) {
    processes.iter().for_each(|pid| terminate(*pid));
    let deadline = Instant::now() + Duration::from_secs(5);
    while processes.iter().any(|p| is_ours(*p)) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    for pid in processes.iter().filter(|p| is_ours(**p)) {
        if let Some(pid) = rustix::process::Pid::from_raw(*pid as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_lists_are_checked() {
        assert_eq!(parse_hosts("a, b,c").unwrap(), ["a", "b", "c"]);
        for bad in ["", "-oProxyCommand=x", "a,a", "@/no/such/file"] {
            assert!(parse_hosts(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn quoting_survives_quotes() {
        assert_eq!(quote(Path::new("/a'b c")), r"'/a'\''b c'");
    }
}
