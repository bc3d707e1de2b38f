//! Starting: the state from the journal and the configuration, sockets, directories.

use crate::agents::Agents;
use crate::config::{Access, Config};
use crate::doors::Bridges;
use crate::journal::{Journal, JournalError, JournalOpen, SYNC_EVERY, Unsynced};
use crate::journals::Journals;
use crate::peers::PeerRoots;
use crate::places::Directly;
use crate::server::{nobody, now};
use crate::tasks::Teller;
use crate::worker::{Template, Workers};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fmt;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tidepool_rundir::{Dir, UNWRITABLE, Unusable, Want};
use tidepool_stage::remote::{EndServer, Fabric};
use tidepool_stage_state::{Rank, ReplayError, State};
use tidepool_wire::stager::{Code, DataspaceSpec, Policy, Refusal};

/// Why a stager did not start or go on.
#[derive(Debug)]
pub enum StartError {
    Journal(JournalError),
    /// A directory that somebody else has a hand in.
    Place(Unusable),
    Replay {
        dir: PathBuf,
        source: ReplayError,
    },
    Listen {
        path: PathBuf,
        source: io::Error,
    },
    /// Something of the configuration.
    Configured(Refusal),
    Fabric(String),
    System {
        what: &'static str,
        source: io::Error,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Journal(error) => error.fmt(f),
            StartError::Place(why) => {
                write!(f, "{why}; mend that, or name another directory in the configuration")
            }
            StartError::Replay { dir, source } => {
                write!(
                    f,
                    "the journal in {} cannot be used: {source}; move it away to start anew",
                    dir.display()
                )
            }
            StartError::Listen { path, source } => write!(f, "cannot listen on {}: {source}", path.display()),
            StartError::Configured(refusal) => refusal.fmt(f),
            StartError::Fabric(why) => f.write_str(why),
            StartError::System { what, source } => write!(f, "cannot {what}: {source}"),
        }
    }
}

impl std::error::Error for StartError {}

pub(crate) fn system(what: &'static str) -> impl Fn(io::Error) -> StartError {
    move |source| StartError::System { what, source }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A directory of this stager's, made if it is missing: nobody else may change what is in it, or put another in its place,
/// and it is this node's.
fn own_dir(path: &Path, or_root: bool, mode: u32) -> Result<(), StartError> {
    let path = std::path::absolute(path).map_err(system("find the working directory"))?;
    let uid = rustix::process::geteuid().as_raw();
    let want = Want { or_root, forbidden: UNWRITABLE, mode, ..Want::private(uid) };
    Dir::make(&path, &want).map(drop).map_err(StartError::Place)
}

/// With --dir, users pass through the directory of the state to the sockets.
const STATE_MODE: u32 = 0o711;
/// Journals of tasks are the stager's alone.
const TASKS_MODE: u32 = 0o700;
/// Everybody may look which sockets there are; who may connect, their own modes say.
const SOCKETS_MODE: u32 = 0o755;

/// The state that the journal and the configuration say.
pub(crate) fn open_state(config: &Config) -> Result<(State, Journal), StartError> {
    let own = rustix::process::geteuid();
    let mut state = State::new(tidepool_stage_state::Config {
        node: config.node.clone(),
        workers: config.workers,
        tasks_max: config.tasks_max,
        ended_max: config.ended_max,
        policy: config.policy.unwrap_or(Policy::FirstCome),
        personal_uid: (!own.is_root()).then_some(own.as_raw()),
        budget: config.budget,
    });
    own_dir(&config.state_dir, false, STATE_MODE)?;
    let journal = Journal::open(&config.state_dir, |frames| {
        state.replay(&frames.concat())?;
        let mut snapshot = Vec::new();
        state.snapshot(&mut snapshot);
        Ok(snapshot)
    });
    let journal = journal.map_err(|error| match error {
        JournalOpen::Journal(error) => StartError::Journal(error),
        JournalOpen::Replay(source) => StartError::Replay { dir: config.state_dir.clone(), source },
    })?;
    // Into the new journal: its snapshot says only that they were told to.
    state.end_cancelled(now());
    let admin = tidepool_stage_state::Caller { rank: Rank::Administrator, ..nobody() };
    if let Some(policy) = config.policy {
        // What the journal says is what was set before the file was changed.
        state.set_policy(&admin, policy).map_err(StartError::Configured)?;
    }
    for spec in &config.dataspaces {
        put_dataspace(&mut state, &admin, spec)?;
    }
    Ok((state, journal))
}

/// The address of this node at which other stagers connect, if it is a certain one.
fn fabric_at(config: &Config) -> Option<String> {
    config.listen.map(|at| at.ip()).filter(|ip| !ip.is_unspecified()).map(|ip| ip.to_string())
}

/// The endpoint for data from and to other stagers, at the address where they connect. Workers open their own: here it shows at the
/// start whether that can be done.
pub(crate) fn open_fabric(config: &Config) -> Result<Option<Fabric>, StartError> {
    let at = fabric_at(config);
    let open = |provider: &String| Fabric::open(provider, at.as_deref()).map_err(StartError::Fabric);
    config.fabric.as_ref().map(open).transpose()
}

/// A dataspace of the configuration takes the place of a registered one. While tasks use that, it stays where it is: they
/// are about what lies there.
fn put_dataspace(
    state: &mut State,
    admin: &tidepool_stage_state::Caller,
    spec: &DataspaceSpec,
) -> Result<(), StartError> {
    if state.dataspace(&spec.name).is_err() {
        return state.register_dataspace(admin, spec.clone()).map_err(StartError::Configured);
    }
    match state.update_dataspace(admin, spec.clone()) {
        Err(refusal) if refusal.code == Code::DATASPACE_BUSY => {
            eprintln!(
                "tidepool-staged: {refusal}; it stays where it was, as 'tidepool stage dataspace list' shows; when they have ended, start this stager again"
            );
            Ok(())
        }
        updated => updated.map_err(StartError::Configured),
    }
}

/// Serves stagers and controllers of other nodes, when there can be some.
pub(crate) fn serve_peers(
    config: &Config,
    directly: &Directly,
    teller: &Teller,
    bridges: &Bridges,
) -> Result<Option<EndServer>, StartError> {
    let Some(at) = config.listen else { return Ok(None) };
    let listener =
        TcpListener::bind(at).map_err(|source| StartError::Listen { path: at.to_string().into(), source })?;
    // The configuration was refused without.
    let trust = directly.trusted.now();
    let secret = trust.secret.clone().ok_or_else(|| {
        system("listen to others")(io::Error::new(io::ErrorKind::InvalidInput, "there is no secret"))
    })?;
    let agents = Agents::new(config.agents, &config.node).map_err(system("find this program"))?;
    if rustix::process::geteuid().is_root() && config.peers.iter().all(|peer| peer.key.is_none()) {
        eprintln!(
            "tidepool-staged: no node is known by its key, so whoever has the secret opens data here in anybody's name; give nodes keys, and list them in 'peers'"
        );
    }
    let roots = Arc::new(PeerRoots::new(
        teller.clone(),
        (config.verify_disk, has_workers()),
        (bridges.clone(), agents),
        directly.trusted.clone(),
    ));
    let server = EndServer::start_with(listener, secret, roots, directly.fabric.clone(), &config.node);
    let server = server.map_err(system("start a thread"))?;
    server.trust(trust.secrets());
    Ok(Some(server))
}

pub(crate) fn open_journals(config: &Config, state: &State) -> Result<Journals, StartError> {
    let dir = config.state_dir.join("tasks");
    own_dir(&dir, false, TASKS_MODE)?;
    Journals::open(dir, config.user_journals_max, |id| state.owner(id))
        .map_err(system("put the journals of tasks in order"))
}

/// Root does nobody's work himself; a user's own stager has nobody to be kept apart from.
pub(crate) fn has_workers() -> bool {
    rustix::process::geteuid().is_root()
}

pub(crate) fn start_workers(config: &Config, teller: &Teller) -> Result<Option<Workers>, StartError> {
    if !has_workers() {
        return Ok(None);
    }
    let template = Template {
        node: config.node.clone(),
        workers: config.workers,
        threads: config.task_threads,
        verify_disk: config.verify_disk,
        gentle: config.gentle,
        memory: config.worker_memory,
        fabric: config.fabric.clone().unwrap_or_default(),
        fabric_at: fabric_at(config).unwrap_or_default(),
        lock: config.state_dir.join("workers.lock"),
    };
    Workers::new(template, teller.clone()).map(Some).map_err(system("start workers"))
}

/// Hooks of the batch system believe what they find there.
pub(crate) fn own_jobs_dir(dir: &Path) -> Result<(), StartError> {
    own_dir(dir, false, SOCKETS_MODE)
}

/// Of a socket that has no rights yet.
const OWNERS_SOCKET: Mode = Mode::RUSR.union(Mode::WUSR);
/// Connections that wait to be accepted; the kernel has a limit of its own (net.core.somaxconn).
const BACKLOG: i32 = 4096;

/// Listens at `path`. A socket that nobody listens at any more is replaced; a live one is not.
pub(crate) fn listen(path: &Path, access: &Access) -> Result<UnixListener, StartError> {
    let fail = |source| StartError::Listen { path: path.into(), source };
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    own_dir(dir, true, SOCKETS_MODE)?;
    if UnixStream::connect(path).is_ok() {
        return Err(fail(io::Error::new(io::ErrorKind::AddrInUse, "another stager listens there")));
    }
    remove_socket(path).map_err(fail)?;
    let listener = bind_closed(path).map_err(|errno| fail(errno.into()))?;
    if let Some(group) = &access.group {
        let found = nix::unistd::Group::from_name(group).map_err(|errno| fail(errno.into()))?;
        let group = found.ok_or_else(|| {
            fail(io::Error::new(io::ErrorKind::NotFound, format!("there is no group '{group}'")))
        })?;
        std::os::unix::fs::chown(path, None, Some(group.gid.as_raw())).map_err(fail)?;
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(access.mode)).map_err(fail)?;
    listener.set_nonblocking(true).map_err(fail)?;
    Ok(listener)
}

/// Nobody gets in before its rights are set: a socket's file has the mode of the descriptor. The umask would be that of other threads too.
fn bind_closed(path: &Path) -> Result<UnixListener, Errno> {
    let at = SocketAddrUnix::new(path)?;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::fs::fchmod(&socket, OWNERS_SOCKET)?;
    net::bind(&socket, &at)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Removes what a stager that was killed has left: a wrong path in the configuration must not cost anybody a file.
fn remove_socket(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(there) if there.file_type().is_socket() => std::fs::remove_file(path),
        Ok(_) => {
            let text = "something that is no socket is there; move it away, or give another path";
            Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
        }
    }
}

/// The thread that makes the journal durable, until there is none any more.
pub(crate) fn start_syncer(synced: &Arc<Mutex<Option<Unsynced>>>) -> io::Result<()> {
    let synced = Arc::clone(synced);
    let run = move || {
        loop {
            std::thread::sleep(SYNC_EVERY);
            let Some(unsynced) = lock(&synced).clone() else { return };
            if let Err(error) = unsynced.sync() {
                eprintln!("tidepool-staged: the journal cannot be made durable: {error}");
            }
        }
    };
    std::thread::Builder::new().name("sync".into()).spawn(run).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// The umask is the whole process's.
    #[test]
    fn what_other_threads_make_meanwhile_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, file) = (dir.path().join("socket"), dir.path().join("file"));
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let make = || {
            std::fs::File::create(&file).unwrap();
            let mode = mode(&file);
            std::fs::remove_file(&file).unwrap();
            mode
        };
        let usual = make();
        let done = AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            let maker = scope.spawn(|| {
                let mut seen = BTreeSet::from([make()]);
                while !done.load(Ordering::Acquire) {
                    seen.insert(make());
                }
                seen
            });
            for _ in 0..2000 {
                drop(listen(&socket, &Access { mode: 0o666, group: None }).unwrap());
            }
            done.store(true, Ordering::Release);
            maker.join().unwrap()
        });
        assert_eq!(seen, BTreeSet::from([usual]));
        assert_eq!(mode(&socket), 0o666);
    }

    #[test]
    fn a_socket_is_its_owners_until_its_rights_are_set() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = bind_closed(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(bind_closed(&path).unwrap_err(), Errno::ADDRINUSE, "what is there stays");
        let _client = UnixStream::connect(&path).unwrap();
        listener.accept().unwrap();
    }
}
