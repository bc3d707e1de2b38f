//! Starting and stopping a pool's agents: here, through ssh, or through srun.

use crate::agent::{self, Go, NodePlan, NodeRecord, Order, Plan, Report};
use crate::backend::LocalTree;
use crate::exit::{Context, Failure, Kind, Result, first};
use crate::flags::{BackendFlag, Door, ModeFlag, PoolShape};
use crate::instance::{Instance, QUESTION_MAX, Reach};
use crate::layout::Spread;
use crate::place::Place;
use crate::plan::Setup;
use crate::process::{Held, Process};
use crate::relay::Tree;
use crate::remote;
use crate::side_by_side::each_daemon;
use crate::streams::Streams;
use rustix::process::Signal;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tidepool_client::{Client, PoolFile, PoolMode};
use tidepool_fsd::{Backend, Config, IdleStore, Ready};
use tidepool_fuse::Connection;
use tidepool_transport::{Secret, Transport, random_bytes};
use tidepool_types::InstanceId;
use tidepool_wire::message::{Member, Request};

/// How long daemons and agents may take to end.
pub const STOP_MAX: Duration = Duration::from_secs(30);
/// How long agents of a pool that does not come up may take to end by themselves.
pub const ABANDON_MAX: Duration = Duration::from_secs(10);
/// How long daemons may take that end one after the other.
const ENDING_MAX: Duration = Duration::from_secs(3);

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

/// Variables that name the directory for pools' data, and how that is told.
const STORE_VARIABLES: [(&str, &str); 2] =
    [("TIDEPOOL_STORE", "$TIDEPOOL_STORE says so"), ("TMPDIR", "$TMPDIR says so")];

fn store_by(variables: &[(&str, &'static str)]) -> Option<(PathBuf, &'static str)> {
    variables.iter().find_map(|(name, who)| {
        let path = std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())?;
        Some((path, *who))
    })
}

/// The directory for a pool's data that somebody has named, and who. Of this machine's temporary directory nothing follows
/// for nodes that it is none of.
pub fn named_store(shape: &PoolShape, place: &Place) -> Option<(PathBuf, &'static str)> {
    let variables = match place {
        Place::Stagers(_) => &STORE_VARIABLES[..1],
        Place::Local(_) | Place::Ssh(_) | Place::Slurm(_) => &STORE_VARIABLES[..],
    };
    shape.store.clone().map(|path| (path, "asked for")).or_else(|| store_by(variables))
}

/// Directory for data of a node that nothing is planned for.
pub fn default_store() -> PathBuf {
    store_by(&STORE_VARIABLES).map_or_else(|| "/tmp".into(), |(path, _)| path)
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
    /// Some nodes are other machines, which nobody here can clean up.
    remote: bool,
    stopped: bool,
}

/// Identity of a pool that was stopped with `--keep`, to be reopened.
pub struct Kept {
    /// Its directory.
    pub dir: PathBuf,
    pub instance: InstanceId,
    pub secret: Secret,
    pub daemons: usize,
    pub weights: Vec<u32>,
    pub groups: Vec<String>,
    /// Where its data are on every node.
    pub store: Option<PathBuf>,
}

/// Starts a pool and returns when every daemon answers.
pub fn start(
    shape: &PoolShape,
    setup: Setup,
    name: &str,
    kept: Option<&Kept>,
    keep: bool,
) -> Result<RunningPool> {
    Transport::from_env().context(Kind::Usage, || "environment".into())?;
    let reach = match setup.layout.place {
        Place::Local(_) => Reach::Here,
        Place::Ssh(_) | Place::Slurm(_) | Place::Stagers(_) => Reach::Everywhere,
    };
    let id = kept.map_or_else(|| InstanceId(random_bytes()), |k| k.instance);
    let remote = !matches!(setup.layout.place, Place::Local(_));
    let mut taken = Vec::new();
    let mut last: Option<Failure> = None;
    loop {
        let instance = match kept {
            Some(kept) => Instance { name: name.into(), dir: kept.dir.clone() },
            None => Instance::create_but(name, reach, &taken).map_err(|none| last.take().unwrap_or(none))?,
        };
        let mut starting = Starting { agents: Vec::new(), streams: Streams::default() };
        let noted = NodeRecord::note_starter(&instance, id, &setup.store);
        let failure = match noted.and_then(|()| starting.start(shape, &setup, &instance, id, kept, keep)) {
            Ok((pool, mounted)) => {
                return Ok(RunningPool {
                    instance,
                    pool,
                    mounted,
                    agents: starting.agents,
                    remote,
                    stopped: false,
                });
            }
            Err(failure) => failure,
        };
        starting.abandon();
        if kept.is_some() {
            return Err(failure);
        }
        if let Err(left) = clean_here(&instance, true) {
            eprintln!("tidepool: {failure}");
            return Err(left);
        }
        // All nodes need the same path: where one of them has another user in its way, the next name is tried on all.
        let base = instance.dir.parent().filter(|_| failure.kind == Kind::Taken).map(Path::to_path_buf);
        let Some(base) = base else { return Err(failure) };
        eprintln!("tidepool: warning: {failure}; another directory is tried");
        taken.push(base);
        last = Some(failure);
    }
}

/// Agents on their way up.
struct Starting {
    agents: Vec<Child>,
    streams: Streams,
}

impl Starting {
    fn start(
        &mut self,
        shape: &PoolShape,
        setup: &Setup,
        instance: &Instance,
        id: InstanceId,
        kept: Option<&Kept>,
        keep: bool,
    ) -> Result<(PoolFile, bool)> {
        let secret = kept.map_or_else(Secret::random, |k| k.secret.clone());
        let mount = wants_mount(shape.door())?;
        let tree = tree(shape, &setup.layout.place)?;
        let plan = Plan {
            tree,
            ..make_plan(shape, setup, instance, (id, &secret), Keep { keep, again: kept.is_some() })
        };
        self.spawn_all(&setup.layout.place, &plan.tree, instance)?;
        let (pool, go) = agree(&self.streams, shape, setup, &plan, (id, secret), |_| mount)?;
        if instance.read_pool_file().map_or(true, |there| there.to_json() != go.pool) {
            // This machine is no node of the pool, but programs of this command run here.
            let streams = self.streams.len();
            self.spawn_here(setup.layout.nodes(), instance)?;
            self.streams.ask(streams, &plan)?;
            self.streams.ask(streams, &go)?;
        }
        Ok((pool, mount))
    }

    fn spawn_all(&mut self, place: &Place, tree: &Tree, instance: &Instance) -> Result<()> {
        let own = own_program()?;
        match place {
            Place::Local(_) => self.spawn_here(0, instance),
            Place::Ssh(hosts) => tree.roots().try_for_each(|number| {
                let host = &hosts[number];
                let log = instance.log_path().with_file_name(format!("log-{host}"));
                let nodes = tree.reached_through(number);
                self.spawn(tree.command(number, &own), format!("host {host}"), nodes, log)
            }),
            Place::Slurm(nodes) => {
                let log = instance.log_path().with_file_name("log-srun");
                self.spawn(remote::srun(*nodes, &own), "srun".into(), *nodes, log)
            }
            Place::Stagers(_) => {
                Err(Failure::new(Kind::Start, "these nodes are reached through stagers, by no process here"))
            }
        }
    }

    fn spawn_here(&mut self, number: usize, instance: &Instance) -> Result<()> {
        let mut command = Command::new(own_program()?);
        command.args(["node", "--node", &number.to_string()]);
        self.spawn(command, "this machine".into(), 1, instance.log_path())
    }

    fn spawn(&mut self, mut command: Command, name: String, nodes: usize, log: PathBuf) -> Result<()> {
        // A group of its own: Ctrl-C is for the command, which stops the pool in order.
        let mut child = command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(agent::open_log_at(&log)?)
            .spawn()
            .context(Kind::Start, || format!("{name}: {}", command.get_program().to_string_lossy()))?;
        let (input, output) = (child.stdin.take().expect("stdin is piped"), child.stdout.take());
        self.agents.push(child);
        self.streams.add((name, nodes), input, output.expect("stdout is piped"), Some(log));
        Ok(())
    }

    /// Ends agents of a pool that did not come up. They clean their nodes when their input
    /// ends; a signal to ssh or srun could leave those on the other side behind.
    fn abandon(&mut self) {
        self.streams.clear();
        if wait_all(&mut self.agents, ABANDON_MAX) > 0 {
            self.agents.iter().for_each(|a| terminate(a.id()));
            wait_all(&mut self.agents, STOP_MAX);
        }
    }
}

/// Tells the agents the plan and, when their daemons can be reached, the pool; that, and what it was told with. `mount`
/// decides by the reports whether it is mounted.
pub fn agree(
    streams: &Streams,
    shape: &PoolShape,
    setup: &Setup,
    plan: &Plan,
    (id, secret): (InstanceId, Secret),
    mount: impl FnOnce(&[Report]) -> bool,
) -> Result<(PoolFile, Go)> {
    let nodes = streams.ask(0, plan)?;
    let mut ready: Vec<Ready> = nodes.iter().flat_map(|r| r.daemons.clone()).collect();
    ready.sort_by_key(|r| r.index);
    let Spread { layout, weights, groups, hints } = setup.spread.clone();
    let pool = PoolFile {
        instance: id,
        secret,
        mount: plan.instance().mount_path(),
        layout,
        weights,
        groups,
        hints,
        size_cache: shape.size_cache,
        mode: match shape.mode() {
            ModeFlag::Posix => PoolMode::Posix,
            ModeFlag::Relaxed => PoolMode::Relaxed,
            ModeFlag::Compat => PoolMode::Compat,
        },
        members: ready.into_iter().map(member).collect(),
        fabric: shape.fabric.clone().unwrap_or_default(),
        encryption: shape.encryption(),
        answer_ms: shape.answer_timeout.as_millis() as u64,
    };
    let computes = |r: &&Report| setup.layout.compute.contains(&r.node);
    let compute = nodes.iter().filter(computes).map(|r| r.host.clone()).collect();
    let go = Go { pool: pool.to_json(), mount: mount(&nodes), cache_ttl_ms: shape.cache_ttl, compute };
    streams.ask(0, &go)?;
    Ok((pool, go))
}

fn own_program() -> Result<PathBuf> {
    std::env::current_exe().context(Kind::Start, || "finding this program".into())
}

/// All that a daemon stores, on its node and on shared storage.
fn stores_of(config: &Config) -> Vec<PathBuf> {
    let shared = config.tiers.as_ref().map(|tiers| tiers.stores(config.instance, config.index));
    std::iter::once(config.dir.clone()).chain(shared.into_iter().flatten()).collect()
}

/// What is to become, and has become, of a pool's data.
#[derive(Clone, Copy)]
pub struct Keep {
    /// They stay when the daemons end.
    pub keep: bool,
    /// They are there, of an earlier run.
    pub again: bool,
}

/// What each node of a pool is to do.
pub fn make_plan(
    shape: &PoolShape,
    setup: &Setup,
    instance: &Instance,
    (id, secret): (InstanceId, &Secret),
    Keep { keep, again }: Keep,
) -> Plan {
    let Setup { layout, store, .. } = setup;
    let own_host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let cores_of = |node: usize| setup.cores.get(node).cloned().unwrap_or_default();
    let config = |index: usize, cores: Vec<u16>, host: &str, tcp: Option<SocketAddr>| Config {
        instance: id,
        secret: secret.clone(),
        index: index as u16,
        host: host.to_string(),
        dir: instance.store_dir(store, index),
        unix: Some(instance.socket(index)),
        tcp,
        advertise: host.to_string(),
        backend: match shape.backend {
            BackendFlag::Memlog => Backend::Memlog,
            BackendFlag::Lmdb => Backend::Lmdb,
        },
        keep,
        again,
        wipe: shape.wipe,
        workers: match (shape.daemon_threads, cores.len()) {
            // It is chosen where the daemon is.
            (0, 0) if matches!(layout.place, Place::Stagers(_)) => 0,
            (0, 0) => tidepool_fsd::default_workers(),
            (0, cores) => tidepool_fsd::workers_for(cores),
            (threads, _) => threads,
        },
        cores,
        lifeline: false,
        quota_bytes: shape.quota().div_ceil(layout.daemons() as u64),
        quota_objects: shape.quota_objects.div_ceil(layout.daemons() as u64),
        fabric: shape.fabric.clone().unwrap_or_default(),
        encryption: shape.encryption(),
        tiers: shape.tiers(&instance.name, layout.daemons()),
    };
    let any: SocketAddr = ([0, 0, 0, 0], 0).into();
    let node = |host: &str, configs: Vec<Config>| NodePlan {
        host: host.to_string(),
        stores: configs.iter().flat_map(stores_of).collect(),
        daemons: configs.iter().map(Config::to_json).collect(),
        nic: setup.nic.clone().unwrap_or_default(),
    };
    let remote = |number: usize, host: &str| {
        let wanted = number < layout.daemon_nodes;
        let config = || config(number, cores_of(number), host, Some(any));
        node(host, wanted.then(config).into_iter().collect())
    };
    let mut nodes: Vec<NodePlan> = match &layout.place {
        Place::Local(count) => {
            // Nobody else needs the port: it is for comparisons on this machine.
            let loopback: SocketAddr = ([127, 0, 0, 1], 0).into();
            let wanted = shape.fabric.is_some() || Transport::from_env() == Ok(Transport::Tcp);
            let tcp = wanted.then_some(loopback);
            vec![node(&own_host, (0..*count).map(|i| config(i, cores_of(0), &own_host, tcp)).collect())]
        }
        Place::Ssh(hosts) => {
            let address = |host: &str| host.rsplit('@').next().unwrap_or(host).to_string();
            hosts.iter().enumerate().map(|(i, host)| remote(i, &address(host))).collect()
        }
        Place::Slurm(count) => (0..*count).map(|i| remote(i, "")).collect(),
        Place::Stagers(all) => all.iter().enumerate().map(|(i, at)| remote(i, &at.name)).collect(),
    };
    let alone = match &layout.place {
        Place::Stagers(_) => id.to_string(),
        _ => {
            // For this machine, if it turns out to be none of them.
            nodes.push(node(&own_host, Vec::new()));
            String::new()
        }
    };
    let (name, dir) = (instance.name.clone(), instance.dir.clone());
    let (tree, pool, store) = (Tree::default(), id.to_string(), store.clone());
    Plan { name, dir, nodes, tree, alone, pool, store, order: Order::Start }
}

/// Who starts whose agent. Only ssh needs it.
fn tree(shape: &PoolShape, place: &Place) -> Result<Tree> {
    match place {
        Place::Ssh(hosts) => {
            Ok(Tree { fan_out: shape.fan_out, hosts: hosts.clone(), ssh: remote::ssh_words()? })
        }
        Place::Local(_) | Place::Slurm(_) | Place::Stagers(_) => Ok(Tree::default()),
    }
}

fn member(ready: Ready) -> Member {
    Member { index: ready.index, host: ready.host, boot_id: ready.boot_id, tcp: ready.tcp, unix: ready.unix }
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

    /// True when the pool has ended without being asked from here, and its data with it, as
    /// when the batch system ends a job.
    pub fn is_gone(&mut self) -> bool {
        self.all_daemons_end()
            && wait_all(&mut self.agents, ABANDON_MAX) == 0
            && NodeRecord::read(&self.instance)
                .is_ok_and(|record| !record.stores.iter().any(|s| tidepool_fsd::is_store(s)))
    }

    /// True when no daemon answers. Where one does not, a batch system may just be ending them all: the others
    /// get a moment.
    fn all_daemons_end(&self) -> bool {
        let began = Instant::now();
        loop {
            let client = self.client().hurried(QUESTION_MAX);
            let answers = |daemon: &u16| client.is_there(*daemon);
            let there = (0..client.members() as u16).filter(answers).count();
            if there == 0 || there == client.members() || began.elapsed() > ENDING_MAX {
                return there == 0;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Stops all daemons and returns when nothing of the pool is left on any node.
    pub fn stop(mut self) -> Result<()> {
        self.stop_now()
    }

    fn stop_now(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.stopped, true) {
            return Ok(());
        }
        if !crate::exec::is_mounted(&self.instance) {
            // Before the agents do it: what they say is in a log that goes with the pool.
            if let Err(error) = self.instance.move_cores_away() {
                eprintln!("tidepool: core files in {}: {error}", self.instance.mount_path().display());
            }
        }
        // Whatever cannot be looked at: the daemons and agents of this run are told to end all the same.
        let continued = continue_here(&self.instance);
        let unreachable = tell_daemons(&self.client().hurried(STOP_MAX), true);
        let mut stragglers = wait_all(&mut self.agents, STOP_MAX);
        if stragglers > 0 {
            self.agents.iter().for_each(|a| terminate(a.id()));
            stragglers = wait_all(&mut self.agents, STOP_MAX);
        }
        let cleaned = clean_here(&self.instance, true).map_err(|failure| self.left_behind(&failure));
        // What could not be looked at at first is no trouble where it is gone.
        if cleaned.is_err() {
            return first(cleaned, continued);
        }
        if stragglers > 0 || !unreachable.is_empty() && self.remote {
            let text = format!(
                "{stragglers} agent(s) did not end; not reached: {}; run 'tidepool doctor' there",
                unreachable.join(", ")
            );
            return Err(Failure::new(Kind::Cleanup, text));
        }
        Ok(())
    }

    fn left_behind(&self, failure: &Failure) -> Failure {
        let name = &self.instance.name;
        let text = format!(
            "pool '{name}' is not wholly gone: {failure}; 'tidepool pool stop --pool {name}' tries again, 'tidepool doctor' tells what is left"
        );
        Failure::new(failure.kind, text)
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
    let tell = |daemon| match client.request(daemon, &Request::Shutdown { wipe }) {
        Ok(_) => None,
        Err(error) => Some(format!("daemon {daemon} on {} ({error})", client.host(daemon))),
    };
    each_daemon(client, tell).into_iter().flatten().collect()
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

/// Has a process end; one that is stopped has to go on for that.
pub fn terminate(pid: u32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
        let _ = rustix::process::kill_process(pid, Signal::TERM);
        let _ = rustix::process::kill_process(pid, Signal::CONT);
    }
}

/// Has the processes of a pool on this node go on that are stopped (SIGSTOP): they can end in order then, and nobody waits for an answer
/// that does not come.
pub fn continue_here(instance: &Instance) -> Result<()> {
    let records = NodeRecord::all(instance)?;
    records.iter().flat_map(NodeRecord::processes).for_each(|process| process.signal(Signal::CONT));
    Ok(())
}

/// Takes away what this user has mounted of a pool here with `tidepool mount`, also where its process is dead; what ends the mounts' connections
/// once the daemons are gone.
pub fn unmount_others(instance: &Instance) -> Result<Vec<Connection>> {
    // Without a pool file nobody could mount it.
    let Ok(pool) = instance.read_pool_file() else { return Ok(Vec::new()) };
    let mut mounts = tidepool_fuse::mounts_of(pool.instance);
    // Those below are the agents' own.
    mounts.retain(|mount| !mount.path().starts_with(&instance.dir));
    mounts.iter().try_for_each(|mount| unmount(mount.path()))?;
    Ok(mounts)
}

/// What ends the connections of this user's mounts of a pool that other mount namespaces of this node have. The agents' own end with these.
pub fn copies_elsewhere(instance: &Instance) -> Vec<Connection> {
    let Ok(pool) = instance.read_pool_file() else { return Vec::new() };
    let mut agents = tidepool_fuse::mounts_of(pool.instance);
    agents.retain(|mount| mount.path().starts_with(&instance.dir));
    let mut copies = tidepool_fuse::copies_of(pool.instance);
    copies.retain(|copy| !agents.iter().any(|mount| mount.is_of_same(copy)));
    copies
}

/// For a pool whose daemons are gone: nobody gets anything from its mounts any more, and their processes end. Says what stays.
pub fn end_connections(connections: Vec<Connection>) {
    for stays in connections.into_iter().filter_map(|connection| connection.end().err()) {
        eprintln!("tidepool: {stays}");
    }
}

fn unmount(path: &Path) -> Result<()> {
    tidepool_fuse::unmount(path).context(Kind::Cleanup, || format!("unmounting {}", path.display()))
}

/// Removes what is left of a pool on this node: processes, mounts, stores, the directory.
/// With `wipe` false the stores and the pool file stay.
pub fn clean_here(instance: &Instance, wipe: bool) -> Result<()> {
    let records = NodeRecord::all(instance)?;
    let own = Process::own();
    let others = records.iter().flat_map(NodeRecord::processes).filter(|process| *process != own);
    end_processes(&others.filter_map(Process::hold).collect::<Vec<Held>>());
    end_connections(unmount_others(instance)?);
    // Their processes are the agents', which have been ended.
    tidepool_fuse::mounts_below(&instance.dir).iter().try_for_each(|path| {
        tidepool_fuse::end_and_unmount(path)
            .context(Kind::Cleanup, || format!("unmounting {}", path.display()))
    })?;
    if !wipe {
        return Ok(());
    }
    let fail = |error: &dyn std::fmt::Display| Failure::new(Kind::Cleanup, error.to_string());
    // All is looked at before the first of it goes: what is refused stays whole.
    let stores = NodeRecord::own_stores(&records).map_err(|error| fail(&error))?;
    let locals = LocalTree::of(&records).map_err(|error| fail(&error))?;
    instance.look_before_removal().map_err(|error| fail(&error))?;
    stores.into_iter().try_for_each(IdleStore::remove).map_err(|error| fail(&error))?;
    locals.into_iter().try_for_each(LocalTree::remove).map_err(|error| fail(&error))?;
    records.iter().for_each(|record| agent::remove_empty_parents(&record.stores));
    instance.remove().context(Kind::Cleanup, || instance.dir.display().to_string())
}

/// Asks processes to end, then makes them.
fn end_processes(processes: &[Held]) {
    for signal in [Signal::TERM, Signal::CONT] {
        processes.iter().for_each(|process| process.signal(signal));
    }
    wait_for_end(processes);
    processes.iter().for_each(|process| process.signal(Signal::KILL));
    // Until they have ended they hold their stores.
    wait_for_end(processes);
}

fn wait_for_end(processes: &[Held]) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !processes.iter().all(Held::has_ended) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
}
