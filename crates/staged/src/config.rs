//! The configuration: validated whole before any of it applies.

use crate::agents::AgentOf;
use clap::Parser;
use serde::Deserialize;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tidepool_rundir::{Chosen, Places};
use tidepool_stage_state::Budget;
use tidepool_transport::{Secret, digits, hex};
use tidepool_types::parse_size;
use tidepool_wire::stager::{DATASPACE_NAME_MAX, DataspaceKind, DataspaceSpec, Policy};

/// Most tasks at a time.
pub const WORKERS_MAX: u32 = 256;
const WORKERS_DEFAULT: u32 = 4;
/// Most threads that one task copies with.
pub const TASK_THREADS_MAX: usize = 64;
const TASKS_MAX_DEFAULT: usize = 2_000_000;
const WORKER_MEMORY_DEFAULT: u64 = 4 << 30;
const USER_JOURNALS_MAX_DEFAULT: u64 = 1 << 30;
const ENDED_MAX_DEFAULT: usize = 100_000;
/// Seconds of a turn: a day.
const TURN_MAX: u64 = 86_400;

const EXAMPLES: &str = "\
Examples:
  tidepool-staged --dir /tmp/stager            a stager of one's own, sockets and journal in one directory
  tidepool-staged --config /etc/tidepool/stager.toml
  tidepool-staged --config stager.toml --check

SIGHUP has it read again whom to trust: the keys secret-file, accept-secret-file, admins, controllers and peers.
Exit codes: 0 ended as asked, 1 could not start or go on, 2 wrong usage or configuration.";

/// Stages data for jobs, schedulers and applications on this node.
#[derive(Parser, Clone, Debug, Default)]
#[command(name = "tidepool-staged", version, after_help = EXAMPLES)]
pub struct Args {
    /// Configuration file (TOML), see docs/guide/stager.md
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Directory of sockets and journal, where the file does not say otherwise
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Read back from disks themselves what is verified, and not what the kernel holds of it
    #[arg(long)]
    pub verify_disk: bool,
    /// Only check the configuration
    #[arg(long)]
    pub check: bool,
    /// Write the manual page of this program; `make install` does
    #[arg(long, value_name = "DIR", hide = true)]
    pub man: Option<PathBuf>,
    /// Become the agent of a node of a user's pool; stagers do, in a process of its own
    #[arg(long, value_name = "UID:GID:GROUPS:NODE", hide = true)]
    pub agent: Option<AgentOf>,
    /// Become the worker of a user; root's stager does, in a process of its own
    #[arg(long, hide = true)]
    pub worker: bool,
}

/// Why a configuration cannot be used.
#[derive(Debug)]
pub struct ConfigError {
    file: Option<PathBuf>,
    why: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{}: {}", file.display(), self.why),
            None => f.write_str(&self.why),
        }
    }
}

impl std::error::Error for ConfigError {}

/// The file, as it is written.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct File {
    node: Option<String>,
    state_dir: Option<PathBuf>,
    control_socket: Option<PathBuf>,
    control_mode: Option<String>,
    control_group: Option<String>,
    user_socket: Option<PathBuf>,
    user_mode: Option<String>,
    user_group: Option<String>,
    norns_socket: Option<PathBuf>,
    listen: Option<String>,
    secret_file: Option<PathBuf>,
    accept_secret_file: Option<PathBuf>,
    admins: Vec<String>,
    controllers: Vec<String>,
    peers: Vec<String>,
    fabric: Option<String>,
    agents: bool,
    workers: Option<u32>,
    task_threads: Option<usize>,
    tasks_max: Option<usize>,
    ended_max: Option<usize>,
    policy: Option<String>,
    verify_disk: bool,
    gentle: bool,
    jobs_dir: Option<PathBuf>,
    worker_memory: Option<String>,
    user_journals_max: Option<String>,
    user_tasks_max: Option<u64>,
    user_queue_max: Option<String>,
    user_priority_min: Option<i32>,
    user_priority_max: Option<i32>,
    user_extra_max: Option<u32>,
    user_turn: Option<u64>,
    bandwidth_min: Option<String>,
    dataspace: Vec<FileDataspace>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FileDataspace {
    name: String,
    kind: String,
    mount: String,
    #[serde(default)]
    tracked: bool,
    capacity: Option<String>,
    #[serde(default)]
    streams_max: u32,
    bandwidth: Option<String>,
}

/// A socket's place and who may connect.
#[derive(Clone, Debug)]
pub struct Access {
    pub mode: u32,
    pub group: Option<String>,
}

/// How the daemon runs.
#[derive(Clone, Debug)]
pub struct Config {
    pub node: String,
    pub state_dir: PathBuf,
    pub control_socket: PathBuf,
    pub control: Access,
    pub user_socket: PathBuf,
    pub user: Access,
    /// A socket for the published NORNS libraries, with the rights of the user socket.
    pub norns_socket: Option<PathBuf>,
    pub workers: u32,
    /// Threads of one task; 0 for as many as seem good.
    pub task_threads: usize,
    pub tasks_max: usize,
    pub ended_max: usize,
    /// None: as it was set last.
    pub policy: Option<Policy>,
    /// Whatever is verified is read back from disks.
    pub verify_disk: bool,
    /// Tasks use only what others leave of processors and disks.
    pub gentle: bool,
    pub dataspaces: Vec<DataspaceSpec>,
    /// Where other stagers connect; none without.
    pub listen: Option<SocketAddr>,
    /// What stagers prove to each other.
    pub secret: Option<Secret>,
    /// Counts as proof of others as well, while secrets are exchanged.
    pub accepted: Option<Secret>,
    /// Public keys of administrators on other nodes.
    pub admins: Vec<[u8; 32]>,
    /// Those of batch systems' controllers.
    pub controllers: Vec<[u8; 32]>,
    /// Where tasks may go, by where it listens; anywhere that knows the secret when there is none.
    pub peers: Vec<Peer>,
    /// Provider of libfabric for large data between stagers; TCP without.
    pub fabric: Option<String>,
    /// Starts agents of users' pools for those who know the secret.
    pub agents: bool,
    /// Has a file for each registered job, for shells to look at; none without.
    pub jobs_dir: Option<PathBuf>,
    /// Bytes of memory that one worker may take; 0 for any number.
    pub worker_memory: u64,
    /// Bytes that the journals of one user's copies may take.
    pub user_journals_max: u64,
    /// What one user may have of it.
    pub budget: Budget,
}

impl Config {
    pub fn load(args: &Args) -> Result<Config, ConfigError> {
        let fail = |why| ConfigError { file: args.config.clone(), why };
        let file = match &args.config {
            None => File::default(),
            Some(path) => read(path).map_err(fail)?,
        };
        let config = validate(file, args.dir.as_deref()).map_err(fail)?;
        Ok(Config { verify_disk: config.verify_disk || args.verify_disk, ..config })
    }
}

fn read(path: &Path) -> Result<File, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("cannot be read: {e}"))?;
    toml::from_str(&text).map_err(|e| e.to_string())
}

/// Where sockets and journal are when nobody says: those of the system for root, else the user's.
fn places(dir: Option<&Path>) -> Result<(PathBuf, PathBuf), String> {
    if let Some(dir) = dir {
        return Ok((dir.into(), dir.into()));
    }
    if rustix::process::geteuid().is_root() {
        return Ok(("/run/tidepool/stager".into(), "/var/lib/tidepool/stager".into()));
    }
    let home = std::env::var_os("HOME").map_or_else(|| "/".into(), PathBuf::from);
    let Chosen { dir, passed } = Places::own().choose_stager().map_err(|none| none.to_string())?;
    for why in passed {
        eprintln!("tidepool-staged: warning: {why}; {} is used instead", dir.path().display());
    }
    let state = std::env::var_os("XDG_STATE_HOME").map_or_else(|| home.join(".local/state"), PathBuf::from);
    Ok((dir.path().into(), state.join("tidepool/stager")))
}

fn validate(file: File, dir: Option<&Path>) -> Result<Config, String> {
    let (sockets, state) = places(dir)?;
    let between = |name: &str, value: u64, max: u64| match (1..=max).contains(&value) {
        true => Ok(()),
        false => Err(format!("{name} is {value}; it can be 1 to {max}")),
    };
    let workers = file.workers.unwrap_or(WORKERS_DEFAULT);
    between("workers", workers.into(), WORKERS_MAX.into())?;
    let task_threads = file.task_threads.unwrap_or(0);
    if task_threads > TASK_THREADS_MAX {
        return Err(format!("task-threads is {task_threads}; it can be 0 (chosen) to {TASK_THREADS_MAX}"));
    }
    let tasks_max = file.tasks_max.unwrap_or(TASKS_MAX_DEFAULT);
    between("tasks-max", tasks_max as u64, u32::MAX as u64 / 2)?;
    let ended_max = file.ended_max.unwrap_or(ENDED_MAX_DEFAULT);
    between("ended-max", ended_max as u64, u32::MAX as u64 / 2)?;
    let dataspaces = file.dataspace.iter().map(dataspace).collect::<Result<Vec<_>, _>>()?;
    check_unique(&dataspaces)?;
    let secret = file.secret_file.as_deref().map(read_secret).transpose()?;
    let accepted = file.accept_secret_file.as_deref().map(read_accepted).transpose()?;
    if accepted.is_some() && secret.is_none() {
        return Err(
            "accept-secret-file is for the time when secrets are exchanged, and needs secret-file".into()
        );
    }
    let listen = file.listen.as_deref().map(listen_at).transpose()?;
    if listen.is_some() && secret.is_none() {
        return Err("listen needs secret-file: other stagers have to prove who they are".into());
    }
    if let Some(dir) = file.jobs_dir.as_ref().filter(|dir| !dir.is_absolute()) {
        return Err(format!("jobs-dir is '{}'; write a path from '/' on", dir.display()));
    }
    check_fabric(file.fabric.as_deref(), secret.is_some())?;
    if file.agents && listen.is_none() {
        return Err("agents needs listen: they are started for controllers on other nodes".into());
    }
    let budget = budget(&file)?;
    let admins = public_keys("admins", &file.admins)?;
    let controllers = public_keys("controllers", &file.controllers)?;
    if let Some(both) = controllers.iter().find(|key| admins.contains(key)) {
        return Err(format!(
            "{} is in admins and in controllers: who has it would be an administrator; give the controller a key of its own",
            hex(both)
        ));
    }
    let peers = file.peers.iter().map(|text| peer(text)).collect::<Result<Vec<_>, _>>()?;
    check_keys(&peers, (&admins, &controllers), secret.as_ref())?;
    Ok(Config {
        budget,
        node: file.node.unwrap_or_else(host_name),
        state_dir: file.state_dir.unwrap_or(state),
        control_socket: file.control_socket.unwrap_or_else(|| sockets.join("control.socket")),
        control: access(file.control_mode, file.control_group, 0o600)?,
        user_socket: file.user_socket.unwrap_or_else(|| sockets.join("user.socket")),
        user: access(file.user_mode, file.user_group, 0o666)?,
        norns_socket: file.norns_socket,
        workers,
        task_threads,
        tasks_max,
        ended_max,
        policy: file.policy.as_deref().map(policy).transpose()?,
        verify_disk: file.verify_disk,
        gentle: file.gentle,
        dataspaces,
        listen,
        secret,
        accepted,
        admins,
        controllers,
        peers,
        fabric: file.fabric,
        agents: file.agents,
        jobs_dir: file.jobs_dir,
        worker_memory: size("worker-memory", file.worker_memory, WORKER_MEMORY_DEFAULT)?,
        user_journals_max: size("user-journals-max", file.user_journals_max, USER_JOURNALS_MAX_DEFAULT)?,
    })
}

fn public_keys(list: &str, keys: &[String]) -> Result<Vec<[u8; 32]>, String> {
    let key = |key: &String| {
        digits(key).ok_or_else(|| {
            format!("{list} has '{key}', which is no public key: 64 hexadecimal digits, as 'tidepool stage key' prints them")
        })
    };
    keys.iter().map(key).collect()
}

/// Another stager that tasks may go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// What it has to say it is called.
    pub name: String,
    /// `host:port`, as tasks name it.
    pub address: String,
    /// By which it is known.
    pub key: Option<[u8; 32]>,
}

/// `n1=10.0.0.7:42000`, and the node's public key after a space.
fn peer(text: &str) -> Result<Peer, String> {
    let (text, key) = match text.split_once(' ') {
        None => (text, None),
        Some((node, key)) => {
            let known = digits(key).ok_or_else(|| {
                format!("peers has '{text}', in which '{key}' is no public key: 64 hexadecimal digits, as 'tidepool stage key' prints them")
            })?;
            (node, Some(known))
        }
    };
    let (name, address) = text.split_once('=').unwrap_or_default();
    let port = address
        .rsplit_once(':')
        .and_then(|(host, port)| port.parse::<u16>().ok().filter(|_| !host.is_empty()));
    match port {
        Some(_) if !name.is_empty() => Ok(Peer { name: name.into(), address: address.into(), key }),
        _ => Err(format!(
            "peers has '{text}'; it has to be NAME=HOST:PORT, such as n1=10.0.0.7:42000, and may have the node's public key after a space"
        )),
    }
}

/// Either all nodes are known by their keys or none is, and no key is two things: a taken node must not be somebody else.
fn check_keys(
    peers: &[Peer],
    (admins, controllers): (&[[u8; 32]], &[[u8; 32]]),
    secret: Option<&Secret>,
) -> Result<(), String> {
    let Some(keyed) = peers.iter().find(|peer| peer.key.is_some()) else { return Ok(()) };
    if let Some(without) = peers.iter().find(|peer| peer.key.is_none()) {
        let (with, without) = (&keyed.name, &without.name);
        return Err(format!(
            "peers has a key for '{with}' and none for '{without}': give all nodes keys, or none"
        ));
    }
    for (at, peer) in peers.iter().enumerate() {
        let (name, key) = (&peer.name, peer.key.unwrap_or_default());
        if let Some(other) = peers[..at].iter().find(|other| other.key == peer.key && other.name != peer.name)
        {
            return Err(format!(
                "peers has the same key for '{}' and '{name}'; each node needs its own",
                other.name
            ));
        }
        if admins.contains(&key) {
            return Err(format!(
                "the key of '{name}' in peers is in admins, too: whoever took that node would administer this stager; give administrators keys of their own"
            ));
        }
        if controllers.contains(&key) {
            return Err(format!(
                "the key of '{name}' in peers is in controllers, too: whoever took that node would act for all users here; give the controller a key of its own"
            ));
        }
    }
    match secret.and_then(Secret::public_key) {
        Some(_) => Ok(()),
        None => Err("peers has keys, so this stager needs one, too: a second line in its secret-file, of 64 hexadecimal digits".into()),
    }
}

fn budget(file: &File) -> Result<Budget, String> {
    let usual = Budget::default();
    let priorities = (
        file.user_priority_min.unwrap_or(usual.priorities.0),
        file.user_priority_max.unwrap_or(usual.priorities.1),
    );
    if priorities.0 > priorities.1 || !(priorities.0..=priorities.1).contains(&0) {
        let (least, most) = priorities;
        return Err(format!(
            "user-priority-min is {least} and user-priority-max {most}; 0, which tasks have that ask for nothing, must be between them"
        ));
    }
    Ok(Budget {
        tasks_max: file.user_tasks_max.unwrap_or(usual.tasks_max),
        bytes_max: size("user-queue-max", file.user_queue_max.clone(), usual.bytes_max)?,
        priorities,
        bandwidth_min: size("bandwidth-min", file.bandwidth_min.clone(), usual.bandwidth_min)?,
        extra_max: file.user_extra_max.unwrap_or(usual.extra_max),
        turn: turn(file.user_turn, usual.turn)?,
    })
}

fn turn(seconds: Option<u64>, usual: u64) -> Result<u64, String> {
    let seconds = seconds.unwrap_or(usual);
    match seconds {
        1..=TURN_MAX => Ok(seconds),
        _ => Err(format!("user-turn is {seconds}; it can be 1 to {TURN_MAX} seconds")),
    }
}

fn size(name: &str, text: Option<String>, default: u64) -> Result<u64, String> {
    text.map_or(Ok(default), |text| parse_size(&text).map_err(|error| format!("{name}: {error}")))
}

fn check_fabric(provider: Option<&str>, secret: bool) -> Result<(), String> {
    let Some(provider) = provider else { return Ok(()) };
    if !cfg!(feature = "libfabric") {
        return Err(format!(
            "this tidepool-staged was built without libfabric, which fabric = \"{provider}\" needs \
             (cargo build --features libfabric)"
        ));
    }
    match secret {
        true => Ok(()),
        false => {
            Err("fabric needs secret-file: it is for data between stagers, which have to prove who they are"
                .into())
        }
    }
}

fn listen_at(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("listen is '{text}'; it has to be address:port, such as 10.0.0.7:42000"))
}

fn read_accepted(path: &Path) -> Result<Secret, String> {
    Secret::read(path).map_err(|why| format!("accept-secret-file {}: {why}", path.display()))
}

fn read_secret(path: &Path) -> Result<Secret, String> {
    Secret::read(path).map_err(|why| format!("secret-file {}: {why}", path.display()))
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn access(mode: Option<String>, group: Option<String>, default: u32) -> Result<Access, String> {
    let mode = match mode {
        None => default,
        Some(text) => u32::from_str_radix(&text, 8).ok().filter(|mode| *mode <= 0o777).ok_or_else(|| {
            format!("'{text}' is no mode of a socket; write octal digits, such as \"0660\"")
        })?,
    };
    Ok(Access { mode, group })
}

/// The policy of a name.
pub fn policy(name: &str) -> Result<Policy, String> {
    match name {
        "first-come" => Ok(Policy::FirstCome),
        "shortest-first" => Ok(Policy::ShortestFirst),
        "fair-by-job" => Ok(Policy::FairByJob),
        "fair-by-user" => Ok(Policy::FairByUser),
        _ => Err(format!(
            "'{name}' is no policy; there are first-come, shortest-first, fair-by-job, fair-by-user"
        )),
    }
}

fn dataspace(file: &FileDataspace) -> Result<DataspaceSpec, String> {
    let at = |why: String| format!("dataspace '{}': {why}", file.name);
    if file.name.is_empty() || file.name.len() > DATASPACE_NAME_MAX {
        return Err(format!("a dataspace's name has 1 to {DATASPACE_NAME_MAX} bytes"));
    }
    let kind = match file.kind.as_str() {
        "local" => DataspaceKind::Local,
        "shared" => DataspaceKind::Shared,
        "pool" => DataspaceKind::Pool,
        "object" => DataspaceKind::Object,
        other => return Err(at(format!("kind '{other}' is unknown; there are local, shared, pool, object"))),
    };
    if kind == DataspaceKind::Object {
        let url: Result<tidepool_object::ObjectUrl, _> = file.mount.parse();
        url.map_err(|error| at(error.to_string()))?;
    }
    let size = |text: &Option<String>| match text {
        None => Ok(0),
        Some(text) => parse_size(text).map_err(|e| at(e.to_string())),
    };
    Ok(DataspaceSpec {
        name: file.name.clone(),
        kind,
        mount: file.mount.clone(),
        tracked: file.tracked,
        capacity: size(&file.capacity)?,
        streams_max: file.streams_max,
        bandwidth: size(&file.bandwidth)?,
    })
}

fn check_unique(dataspaces: &[DataspaceSpec]) -> Result<(), String> {
    for (at, one) in dataspaces.iter().enumerate() {
        if dataspaces[..at].iter().any(|other| other.name == one.name) {
            return Err(format!("dataspace '{}' is there twice", one.name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        validate(toml::from_str(text).map_err(|e: toml::de::Error| e.to_string())?, Some("/d".as_ref()))
    }

    #[test]
    fn a_whole_configuration_is_read() {
        let config = parse(
            "workers = 2\npolicy = \"fair-by-job\"\nuser-mode = \"0660\"\nuser-group = \"norns-user\"\n\
             [[dataspace]]\nname = \"nvme0://\"\nkind = \"local\"\nmount = \"/mnt\"\ncapacity = \"100GiB\"\n",
        );
        let config = config.unwrap();
        assert_eq!((config.workers, config.policy, config.user.mode), (2, Some(Policy::FairByJob), 0o660));
        assert_eq!(config.dataspaces[0].capacity, 100 << 30);
        assert_eq!(config.control_socket, Path::new("/d/control.socket"));
    }

    #[test]
    fn a_fabric_needs_a_build_with_it_and_others_to_talk_to() {
        let error = parse("fabric = \"tcp;ofi_rxm\"").unwrap_err();
        let expected =
            if cfg!(feature = "libfabric") { "fabric needs secret-file" } else { "built without libfabric" };
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_be_right() {
        let wrong = [
            ("worker = 2", "expected one of"),
            ("user-turn = 0", "1 to 86400 seconds"),
            ("user-turn = 86401", "1 to 86400 seconds"),
            ("workers = 0", "1 to 256"),
            ("policy = \"fifo\"", "first-come"),
            ("ended-max = 0", "1 to "),
            ("agents = true", "needs listen"),
            ("peers = [\"n1\"]", "NAME=HOST:PORT"),
            ("admins = [\"5a\"]", "no public key"),
            ("controllers = [\"5a\"]", "controllers has '5a'"),
            ("peers = [\"n1=a:1 5a\"]", "no public key"),
            ("user-priority-max = -1", "must be between"),
            ("bandwidth-min = \"slow\"", "bandwidth-min"),
            ("control-mode = \"rw\"", "octal"),
            ("[[dataspace]]\nname = \"a\"\nkind = \"tape\"\nmount = \"/\"", "local, shared, pool"),
            ("[[dataspace]]\nname = \"a\"\nkind = \"local\"\nmount = \"/\"\ncapacity = \"1.5GB\"", "1.5GB"),
            ("[[dataspace]]\nname = \"a\"\nkind = \"object\"\nmount = \"s3://data?regoin=x\"", "'region'"),
            (
                "[[dataspace]]\nname = \"a\"\nkind = \"local\"\nmount = \"/\"\n[[dataspace]]\nname = \"a\"\nkind = \"local\"\nmount = \"/\"",
                "twice",
            ),
        ];
        for (text, expected) in wrong {
            let error = parse(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn keys_of_nodes_are_complete_and_of_one_use() {
        let (one, two) = ("1".repeat(64), "2".repeat(64));
        let wrong = [
            (format!("peers = [\"a=a:1 {one}\", \"b=b:1\"]"), "none for 'b'"),
            (format!("peers = [\"a=a:1 {one}\", \"b=b:1 {one}\"]"), "each node needs its own"),
            (format!("admins = [\"{one}\"]\npeers = [\"a=a:1 {one}\"]"), "would administer"),
            (format!("controllers = [\"{one}\"]\npeers = [\"a=a:1 {one}\"]"), "is in controllers, too"),
            (format!("controllers = [\"{one}\"]\nadmins = [\"{one}\"]"), "in admins and in controllers"),
            (format!("peers = [\"a=a:1 {one}\"]"), "this stager needs one"),
        ];
        for (text, expected) in wrong {
            let error = parse(&text).expect_err(&text);
            assert!(error.contains(expected), "{text}: {error}");
        }
        let secret = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(secret.path(), format!("{one}\n{two}\n")).unwrap();
        // Two keys of one node, while it gets a new one.
        let text = format!(
            "secret-file = \"{}\"\npeers = [\"a=a:1 {one}\", \"a=a:1 {two}\"]",
            secret.path().display()
        );
        assert_eq!(parse(&text).unwrap().peers.len(), 2);
    }

    #[test]
    fn a_secret_of_another_user_is_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "5a".repeat(32)).unwrap();
        assert!(read_secret(file.path()).is_ok());
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: needs root, to give a file away");
            return;
        }
        std::os::unix::fs::chown(file.path(), Some(65_534), None).unwrap();
        let error = read_secret(file.path()).map(drop).expect_err("user 65534 knows it");
        assert!(error.contains("belongs to user 65534"), "{error}");
    }
}
