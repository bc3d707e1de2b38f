//! Listening, the event loop and the daemon's life.

use crate::config::{Backend, Config, Ready};
use crate::conn::{Conn, Next, Socket};
use crate::counters::Counters;
use crate::fabric::Fabric;
use crate::lanes::{After, Lanes};
use crate::serve::{Service, Stop};
use crate::storedir::{self, StoreDir, StoreDirError, Wanted};
use crate::tiering::Tiering;
use crate::{CONNECTIONS_MAX, HANDSHAKE_MS_MAX, UNPROVEN_MAX, background};
use rustix::event::epoll::{self, EventData, EventFlags};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidepool_env::{Clock, RealDisk, SystemClock};
use tidepool_fs_state::{MetaStore, State, StateConfig, Watched};
use tidepool_shm::{Board, Listed, part_key};
use tidepool_store::{ChunkStore, LmdbOptions, LmdbStore, MemLogStore, StoreError, StoreErrorKind, Tiers};
use tidepool_transport::{LocalNode, Sealed, random_bytes, tune_tcp};
use tidepool_types::Ino;
use tidepool_wire::frame::Header;
use tidepool_wire::message::Reply;
use tidepool_wire::record::Mutation;

/// Event tokens of the listeners and of the wake-up pipe; connections count from above.
const TOKEN_UNIX: u64 = 0;
const TOKEN_TCP: u64 = 1;
const TOKEN_WAKE: u64 = 2;
const TOKEN_FABRIC: u64 = 3;
const TOKEN_FIRST: u64 = 16;
/// How often a worker looks for peers that take too long to prove themselves.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Connections that may wait to be taken; the kernel may allow less.
const CONNECTIONS_WAITING_MAX: i32 = 4096;
/// How long a worker rests that could not accept a connection for want of a descriptor.
const NO_DESCRIPTOR_PAUSE: Duration = Duration::from_millis(50);

/// Why a daemon did not start.
#[derive(Debug)]
pub enum StartError {
    StoreDir(StoreDirError),
    Store(String),
    Listen { at: String, source: io::Error },
    Fabric(String),
    System { what: &'static str, source: io::Error },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::StoreDir(error) => error.fmt(f),
            StartError::Store(why) => write!(f, "cannot open the stores: {why}"),
            StartError::Listen { at, source } => write!(f, "cannot listen at {at}: {source}"),
            StartError::Fabric(why) => write!(f, "cannot offer a fabric: {why}"),
            StartError::System { what, source } => write!(f, "{what}: {source}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<StoreDirError> for StartError {
    fn from(error: StoreDirError) -> StartError {
        StartError::StoreDir(error)
    }
}

/// The connections and what they wait for.
pub(crate) struct Hub {
    service: Arc<Service>,
    epoll: OwnedFd,
    unix: Option<UnixListener>,
    tcp: Option<TcpListener>,
    /// Reading end of a pipe that is closed, and so becomes readable for all workers, at the end.
    wake: OwnedFd,
    conns: RwLock<HashMap<u64, Arc<Mutex<Conn>>>>,
    /// Of connections whose peers have not proved themselves, oldest first, and since when.
    unproven: Mutex<VecDeque<(u64, Instant)>>,
    pub(crate) lanes: Lanes,
    next_token: AtomicU64,
    uid: u32,
}

/// A running daemon.
pub struct Daemon {
    service: Arc<Service>,
    pub(crate) hub: Arc<Hub>,
    wake: OwnedFd,
    pub(crate) threads: Vec<JoinHandle<()>>,
    dir: StoreDir,
    /// Its stores on shared storage.
    lower: Vec<StoreDir>,
    unix: Option<PathBuf>,
    keep: bool,
    ready: Ready,
}

impl Daemon {
    /// Opens the stores, listens and starts serving.
    pub fn start(config: &Config) -> Result<Daemon, StartError> {
        let wanted = Wanted::by(config);
        let dir = StoreDir::claim(&config.dir, &wanted)?;
        storedir::check_parts(config)?;
        let lower = claim_tiers(config, &wanted, dir.path())?;
        let service = Arc::new(open_service(config, dir.path(), &lower)?);
        let own = dir.tether(&[storedir::METADATA, storedir::DATA]);
        service.set_tethers(lower.iter().map(|store| store.tether(&[])).chain([own]).collect());
        if let Some(tiers) = &config.tiers {
            let tiering = Tiering::new(config, tiers).map_err(|e| StartError::Store(e.to_string()))?;
            let tiering = Arc::new(tiering);
            tiering.look(&service);
            service.set_tiering(tiering);
        }
        if !config.fabric.is_empty() {
            let fabric = Fabric::open(&config.fabric, config.tcp, &config.advertise);
            service.set_fabric(fabric.map_err(StartError::Fabric)?);
        }
        let (hub, wake) = Hub::open(config, Arc::clone(&service))?;
        let ready = hub.ready(config)?;
        let hub = Arc::new(hub);
        let mut threads = Vec::new();
        for _ in 0..config.workers {
            let hub = Arc::clone(&hub);
            threads.push(spawn("worker", move || hub.work())?);
        }
        for _ in 0..config.workers {
            let hub = Arc::clone(&hub);
            threads.push(spawn("lanes", move || hub.work_lanes())?);
        }
        let recalls = Arc::clone(&hub);
        threads.push(spawn("recalls", move || recalls.send_recalls())?);
        let background = Arc::clone(&hub);
        let nudge = move || background.lanes.nudge();
        let background_service = Arc::clone(&service);
        threads.push(spawn("background", move || background::run(&background_service, nudge))?);
        if let Some(tiering) = service.tiering().cloned() {
            let service = Arc::clone(&service);
            let (flushing, flushed) = (Arc::clone(&tiering), Arc::clone(&service));
            threads.push(spawn("flush", move || flushing.run_flush(&flushed))?);
            threads.push(spawn("tiers", move || tiering.run(&service))?);
        }
        let unix = config.unix.clone();
        Ok(Daemon { service, hub, wake, threads, dir, lower, unix, keep: config.keep, ready })
    }

    /// Where the daemon can be reached.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// A handle that asks the daemon to end as a signal does: its stores stay with `keep`.
    pub fn stopper(&self) -> impl Fn() + Send + Sync + 'static {
        let service = Arc::clone(&self.service);
        let wipe = !self.keep;
        move || service.stop(Stop { wipe })
    }

    /// Serves until asked to end, then closes all connections, syncs or removes the stores,
    /// and returns when nothing of the daemon is left.
    pub fn run(self) -> Result<(), StartError> {
        let stop = self.service.wait_for_stop();
        drop(self.wake);
        self.hub.lanes.stop();
        self.service.recalls().end();
        for thread in self.threads {
            // A panicked worker has printed its message; the others still end in order.
            let _ = thread.join();
        }
        if let Some(tiering) = self.service.tiering() {
            tiering.leave_shapers();
        }
        self.service.close_board();
        if let Some(path) = &self.unix {
            let _ = fs::remove_file(path);
        }
        drop(self.hub);
        if stop.wipe {
            drop(self.service);
            let fail = |e: io::Error| StartError::Store(format!("cannot remove them: {e}"));
            self.lower.into_iter().try_for_each(StoreDir::wipe).map_err(fail)?;
            return self.dir.wipe().map_err(fail);
        }
        self.service.call_in_all().map_err(|e| StartError::Store(e.to_string()))?;
        let synced = self.service.chunks().sync_all();
        synced.map_err(|e| StartError::Store(e.to_string()))?;
        self.service.state().sync().map_err(|e| StartError::Store(e.to_string()))
    }
}

/// Name of a file in the store directory: which stores on shared storage have data of it.
const TIERS: &str = "tiers.json";

/// The daemon's directories on shared storage, from fast to slow. A store that was kept needs those that it had.
fn claim_tiers(config: &Config, wanted: &Wanted, own: &Path) -> Result<Vec<StoreDir>, StartError> {
    let fail = |what: &Path, why: &dyn fmt::Display| StartError::Store(format!("{}: {why}", what.display()));
    let tiers = config.tiers.as_ref();
    let dirs = tiers.map(|tiers| tiers.stores(config.instance, config.index)).unwrap_or_default();
    let note = own.join(TIERS);
    let before: Vec<PathBuf> = match fs::read_to_string(&note) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(fail(&note, &error)),
        Ok(text) => serde_json::from_str(&text).map_err(|e| fail(&note, &e))?,
    };
    for dir in &before {
        if !dirs.contains(dir) {
            return Err(fail(dir, &"data of this pool lie there, too: name it with --burst or --pfs again"));
        }
        if !crate::storedir::is_store(dir) {
            return Err(fail(dir, &"is gone, and what data of this pool lay there"));
        }
    }
    let claim = |dir: &PathBuf| {
        let parent = dir.parent().expect("it is below a directory");
        crate::tiering::make_public(parent).map_err(|e| fail(parent, &e))?;
        Ok(StoreDir::claim(dir, &wanted.of_tiers())?)
    };
    let claimed = dirs.iter().map(claim).collect::<Result<Vec<_>, StartError>>()?;
    if !dirs.is_empty() {
        let text = serde_json::to_string(&dirs).expect("paths of a configuration are text");
        fs::write(&note, text).map_err(|e| fail(&note, &e))?;
    }
    Ok(claimed)
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StartError> {
    std::thread::Builder::new()
        .name(name.to_string())
        .spawn(run)
        .map_err(|source| StartError::System { what: "cannot start a thread", source })
}

impl Hub {
    /// Listens and registers everything. The second value keeps the workers going until dropped.
    fn open(config: &Config, service: Arc<Service>) -> Result<(Hub, OwnedFd), StartError> {
        let system = |what| move |e: rustix::io::Errno| StartError::System { what, source: e.into() };
        let unix = config.unix.as_deref().map(listen_unix).transpose()?;
        let tcp = config.tcp.map(listen_tcp).transpose()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("cannot make an epoll"))?;
        let (wake, keep) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(system("cannot make a pipe"))?;
        let hub = Hub {
            service,
            epoll,
            unix,
            tcp,
            wake,
            conns: RwLock::default(),
            unproven: Mutex::default(),
            lanes: Lanes::new()
                .map_err(|source| StartError::System { what: "cannot share memory", source })?,
            next_token: AtomicU64::new(TOKEN_FIRST),
            uid: rustix::process::geteuid().as_raw(),
        };
        let add = |fd: &dyn AsFd, token| {
            epoll::add(&hub.epoll, fd.as_fd(), EventData::new_u64(token), EventFlags::IN)
                .map_err(system("cannot watch a socket"))
        };
        if let Some(unix) = &hub.unix {
            add(unix, TOKEN_UNIX)?;
        }
        if let Some(tcp) = &hub.tcp {
            add(tcp, TOKEN_TCP)?;
        }
        add(&hub.wake, TOKEN_WAKE)?;
        if let Some(fd) = hub.service.fabric().and_then(Fabric::wait_fd) {
            let flags = EventFlags::IN | EventFlags::ONESHOT;
            epoll::add(&hub.epoll, fd, EventData::new_u64(TOKEN_FABRIC), flags)
                .map_err(system("cannot watch the fabric"))?;
        }
        Ok((hub, keep))
    }

    fn ready(&self, config: &Config) -> Result<Ready, StartError> {
        let tcp = match &self.tcp {
            Some(tcp) => {
                let at = tcp.local_addr();
                let at = at.map_err(|source| StartError::Listen { at: "tcp".into(), source })?;
                format!("{}:{}", config.advertise, at.port())
            }
            None => String::new(),
        };
        let unix = config.unix.as_ref().map(|p| p.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Ready {
            ready: true,
            index: config.index,
            pid: std::process::id(),
            host: config.host.clone(),
            boot_id: LocalNode::detect().boot_id,
            tcp,
            unix,
            error: String::new(),
        })
    }

    /// One worker thread: takes one event at a time until the pipe closes.
    fn work(&self) {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 1];
        let mut looked = Instant::now();
        loop {
            // Also where there is always something else to do.
            if looked.elapsed() > LOOK_EVERY {
                self.close_late();
                looked = Instant::now();
            }
            let tick = self.service.fabric().is_some_and(Fabric::needs_tick);
            let count = match epoll::wait(&self.epoll, &mut events, Some(&timeout(tick))) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => continue,
                // Without its epoll a worker can do nothing; the daemon must not linger half dead.
                Err(_) => return self.service.stop(Stop { wipe: false }),
            };
            if count == 0 {
                if tick {
                    self.serve_fabric();
                }
                continue;
            }
            match events[0].data.u64() {
                TOKEN_WAKE => return,
                TOKEN_UNIX => self.accept_unix(),
                TOKEN_TCP => self.accept_tcp(),
                TOKEN_FABRIC => self.serve_fabric(),
                token => self.serve(token),
            }
        }
    }

    /// Takes what has come over the fabric and serves it.
    fn serve_fabric(&self) {
        let Some(fabric) = self.service.fabric() else { return };
        let rearm = || {
            let flags = EventFlags::IN | EventFlags::ONESHOT;
            if let Some(fd) = fabric.wait_fd() {
                // It was added when the daemon started, and stays until it ends.
                let _ = epoll::modify(&self.epoll, fd, EventData::new_u64(TOKEN_FABRIC), flags);
            }
        };
        fabric.turn(&self.service, rearm, |token, ring| {
            if !ring {
                return self.close(token);
            }
            let mut frame = Vec::new();
            self.service.put_plain(&Header::default(), &Reply::Done {}, &mut frame);
            self.deliver(token, &frame);
        });
    }

    fn send_recalls(&self) {
        self.service.recalls().run(|token, header, reply| {
            let mut frame = Vec::new();
            self.service.put_plain(header, reply, &mut frame);
            self.deliver(token, &frame);
        });
    }

    /// Puts a frame that no request on it asked for into a connection.
    fn deliver(&self, token: u64, frame: &[u8]) {
        let conn = self.conns.read().unwrap_or_else(PoisonError::into_inner).get(&token).cloned();
        let Some(conn) = conn else { return };
        let queued = conn.lock().unwrap_or_else(PoisonError::into_inner).deliver(frame);
        if queued { self.serve(token) } else { self.close(token) }
    }

    /// One worker thread for lanes.
    fn work_lanes(&self) {
        let deliver = |token, frame: &[u8]| {
            let conn = self.conns.read().unwrap_or_else(PoisonError::into_inner).get(&token).cloned();
            // What is not there any more needs no reply.
            conn.is_none_or(|conn| conn.lock().unwrap_or_else(PoisonError::into_inner).deliver(frame))
        };
        self.lanes.work(&self.service, deliver, |after| match after {
            After::Close { token } => self.close(token),
            After::Serve { token } => self.serve(token),
        });
    }

    /// What a listener has let in. Where the process has no descriptor left, one that has proved nothing gives way.
    fn accepted<S>(&self, accepted: Option<io::Result<S>>) -> Option<S> {
        let error = match accepted? {
            Ok(stream) => return Some(stream),
            Err(error) => rustix::io::Errno::from_io_error(&error),
        };
        if matches!(error, Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE)) && !self.end_oldest(0) {
            // It stays readable, and asking again at once would only keep a core busy.
            std::thread::sleep(NO_DESCRIPTOR_PAUSE);
        }
        None
    }

    fn accept_unix(&self) {
        let accepted = self.unix.as_ref().map(UnixListener::accept);
        let Some((stream, _)) = self.accepted(accepted) else { return };
        // Only processes of the pool's own user, and root, get as far as the handshake.
        let allowed = rustix::net::sockopt::socket_peercred(&stream)
            .is_ok_and(|peer| peer.uid.as_raw() == self.uid || peer.uid.is_root());
        if !allowed {
            return self.service.refused();
        }
        if stream.set_nonblocking(true).is_ok() {
            self.admit(Socket::Unix(stream));
        }
    }

    fn accept_tcp(&self) {
        let accepted = self.tcp.as_ref().map(TcpListener::accept);
        let Some((stream, _)) = self.accepted(accepted) else { return };
        if tune_tcp(&stream).and_then(|()| stream.set_nonblocking(true)).is_ok() {
            self.admit(Socket::Tcp(Box::new(Sealed::new(stream))));
        }
    }

    fn admit(&self, socket: Socket) {
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        let conn = Arc::new(Mutex::new(Conn::new(socket, token)));
        {
            let mut conns = self.conns.write().unwrap_or_else(PoisonError::into_inner);
            if conns.len() >= CONNECTIONS_MAX {
                return self.service.refused();
            }
            conns.insert(token, Arc::clone(&conn));
        }
        self.unproven().push_back((token, Instant::now()));
        self.end_oldest(UNPROVEN_MAX);
        Counters::add(&self.service.counters.connections, 1);
        let conn = conn.lock().unwrap_or_else(PoisonError::into_inner);
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        if epoll::add(&self.epoll, conn.socket(), EventData::new_u64(token), flags).is_err() {
            drop(conn);
            self.close(token);
        }
    }

    /// Gives a connection its turn. `ONESHOT` keeps it to one worker at a time.
    fn serve(&self, token: u64) {
        let conn = self.conns.read().unwrap_or_else(PoisonError::into_inner).get(&token).cloned();
        let Some(conn) = conn else { return };
        let mut conn = conn.lock().unwrap_or_else(PoisonError::into_inner);
        let unproven = conn.is_unproven();
        let next = conn.turn(&self.service, &self.lanes);
        if unproven && !conn.is_unproven() {
            self.unproven().retain(|(known, _)| *known != token);
        }
        let flags = match next {
            Next::Close => {
                drop(conn);
                return self.close(token);
            }
            Next::Read => EventFlags::IN,
            Next::Write => EventFlags::OUT,
            // A writable socket brings the connection back at once, after the others.
            Next::Again => EventFlags::IN | EventFlags::OUT,
        };
        let flags = flags | EventFlags::ONESHOT;
        let lost = epoll::modify(&self.epoll, conn.socket(), EventData::new_u64(token), flags).is_err();
        drop(conn);
        if lost {
            self.close(token);
        }
        if self.service.fabric().is_some_and(Fabric::take_ring) {
            self.serve_fabric();
        }
    }

    fn close(&self, token: u64) {
        let conn = self.conns.write().unwrap_or_else(PoisonError::into_inner).remove(&token);
        let Some(conn) = conn else { return };
        let conn = conn.lock().unwrap_or_else(PoisonError::into_inner);
        if conn.is_unproven() {
            self.unproven().retain(|(known, _)| *known != token);
        }
        let _ = epoll::delete(&self.epoll, conn.socket());
        if let Some(lane) = conn.lane() {
            self.lanes.close(lane);
        }
        if let (Some(known), Some(fabric)) = (conn.fabric(), self.service.fabric()) {
            fabric.dismiss(known);
        }
        if let Some(session) = conn.session() {
            if conn.waits() {
                self.service.waits_no_more(token);
            }
            self.service.watches_no_more(session, token);
            self.service.session_leaves(session);
        }
    }

    fn unproven(&self) -> MutexGuard<'_, VecDeque<(u64, Instant)>> {
        self.unproven.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes connections whose peers take too long to prove themselves.
    fn close_late(&self) {
        let limit = Duration::from_millis(HANDSHAKE_MS_MAX);
        while self.end_first(|count, since| count > 0 && since.elapsed() > limit) {}
    }

    /// Closes the oldest of those whose peers have not proved themselves, where there are more than `max`; false where there are not.
    fn end_oldest(&self, max: usize) -> bool {
        self.end_first(|count, _| count > max)
    }

    fn end_first(&self, ends: impl FnOnce(usize, Instant) -> bool) -> bool {
        let mut unproven = self.unproven();
        let count = unproven.len();
        let Some((token, _)) = unproven.front().copied().filter(|(_, since)| ends(count, *since)) else {
            return false;
        };
        unproven.pop_front();
        drop(unproven);
        let conn = self.conns.read().unwrap_or_else(PoisonError::into_inner).get(&token).cloned();
        // One that is being served may prove itself right now.
        if conn.is_some_and(|conn| conn.lock().unwrap_or_else(PoisonError::into_inner).give_up()) {
            self.service.refused();
            self.close(token);
        }
        true
    }
}

/// How long a worker waits before it looks for late handshakes, or, with `tick`, at the fabric.
fn timeout(tick: bool) -> rustix::event::Timespec {
    if tick {
        rustix::event::Timespec { tv_sec: 0, tv_nsec: 1_000_000 }
    } else {
        rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 }
    }
}

fn listen_unix(path: &Path) -> Result<UnixListener, StartError> {
    let fail = |source| StartError::Listen { at: path.display().to_string(), source };
    // The store directory's lock makes sure that no living daemon listens there.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(fail)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(fail)?;
    listener.set_nonblocking(true).map_err(fail)?;
    Ok(listener)
}

fn listen_tcp(at: SocketAddr) -> Result<TcpListener, StartError> {
    let fail = |source| StartError::Listen { at: at.to_string(), source };
    let listener = TcpListener::bind(at).map_err(fail)?;
    // Of a daemon that is stopped for a while nobody is to be turned away.
    rustix::net::listen(&listener, CONNECTIONS_WAITING_MAX).map_err(|e| fail(e.into()))?;
    listener.set_nonblocking(true).map_err(fail)?;
    Ok(listener)
}

/// A store that another back end has made would look empty to this one.
fn made_with(meta_dir: &Path, backend: Backend) -> Result<(), String> {
    let names = fs::read_dir(meta_dir).map_err(|e| format!("{}: {e}", meta_dir.display()))?;
    let names: Vec<_> =
        names.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let lmdb = names.iter().any(|name| name == "data.mdb");
    let memlog = names.iter().any(|name| name.starts_with("meta-"));
    let other = match backend {
        Backend::Memlog if lmdb && !memlog => "lmdb",
        Backend::Lmdb if memlog && !lmdb => "memlog",
        _ => return Ok(()),
    };
    Err(format!("{} was made with --backend {other}; start the pool with that", meta_dir.display()))
}

/// Of a metadata store that is damaged: with the way out.
fn damaged(error: &StoreError, dir: &Path) -> String {
    match error.kind {
        StoreErrorKind::Corrupt => {
            let dir = dir.display();
            format!(
                "{error}. Nothing was changed; 'tidepool check --repair {dir} --dry-run' says what is lost, and without --dry-run makes a store of the rest"
            )
        }
        _ => error.to_string(),
    }
}

fn open_service(config: &Config, dir: &Path, lower: &[StoreDir]) -> Result<Service, StartError> {
    let fail = |e: &dyn fmt::Display| StartError::Store(e.to_string());
    let meta_dir = dir.join(storedir::METADATA);
    let data_dir = dir.join(storedir::DATA);
    for made in [&meta_dir, &data_dir] {
        fs::create_dir_all(made).map_err(|e| fail(&format!("{}: {e}", made.display())))?;
    }
    made_with(&meta_dir, config.backend).map_err(|e| fail(&e))?;
    let (board, board_file) = open_board(dir).map_err(|e| fail(&format!("{BOARD}: {e}")))?;
    let store: Box<dyn MetaStore> = match config.backend {
        Backend::Memlog => {
            let disk = RealDisk::new(&meta_dir).map_err(|e| fail(&e))?;
            let store = MemLogStore::open(disk).map_err(|e| fail(&damaged(&e, dir)))?;
            if let Some(unwritten) = store.unwritten() {
                eprintln!("tidepoold {}: {}: {unwritten}", config.index, meta_dir.display());
            }
            Box::new(store)
        }
        Backend::Lmdb => {
            let opened = LmdbStore::open(&meta_dir, LmdbOptions::default());
            Box::new(opened.map_err(|e| fail(&damaged(&e, dir)))?)
        }
    };
    let told = Arc::clone(&board);
    let watch = move |batch: &[Mutation]| batch.iter().for_each(|change| tell(&told, change));
    let store: Box<dyn MetaStore> = Box::new(Watched { store, watch });
    let clock = SystemClock::default();
    let me = StateConfig {
        me: config.index,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        epoch: first_epoch(),
        objects_max: config.quota_objects,
    };
    let (now, monotonic) = (clock.now(), clock.monotonic());
    let state = State::open(store, &me, now, monotonic)
        .map_err(|e| fail(&damaged(&StoreError::of_record(Ino::ROOT, e), dir)))?;
    let open = |dir: &Path| {
        let disk = RealDisk::new(dir).map_err(|e| fail(&e))?;
        ChunkStore::open(disk).map_err(|e| fail(&e))
    };
    let chunks = match lower {
        [] => Tiers::single(open(&data_dir)?),
        lower => {
            let all = std::iter::once(data_dir.as_path()).chain(lower.iter().map(StoreDir::path));
            Tiers::open(all.map(open).collect::<Result<_, _>>()?).map_err(|e| fail(&e))?
        }
    };
    let device_of = |dir: &Path| fs::metadata(dir).map(|meta| meta.dev()).map_err(|e| fail(&e));
    let last = lower.last().map_or(data_dir.as_path(), StoreDir::path);
    let devices = (device_of(&data_dir)?, device_of(last)?);
    let note = dir.join(LEASES);
    let service =
        Service::new(config, Box::new(clock), state, chunks, devices, (board, board_file.into()), note);
    service.recover_leases().map_err(|e| fail(&format!("{LEASES}: {e}")))?;
    service.recover_loans().map_err(|e| fail(&e))?;
    Ok(service)
}

/// Name of an empty file in the store directory that says that there may be leases.
const LEASES: &str = "leases";
/// Name of the board in the store directory.
const BOARD: &str = "board";

fn open_board(dir: &Path) -> io::Result<(Arc<Board>, fs::File)> {
    let path = dir.join(BOARD);
    let file =
        fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)?;
    let board = Board::take_over(&file, random_bytes()).map_err(|e| {
        io::Error::other(format!("{e} (a daemon needs {} MiB of its store for it)", Board::BYTES >> 20))
    })?;
    Ok((Arc::new(board), fs::File::open(&path)?))
}

/// Puts a change on the board, for clients that look there.
fn tell(board: &Board, change: &Mutation) {
    match change {
        Mutation::PutInode(inode) => board.put_object(inode.attr.ino.0, &inode.attr.to_words()),
        Mutation::DelInode(ino) => board.forget_object(ino.0),
        // A held entry is in doubt: who wants it has to ask.
        Mutation::PutDentry { parent, name, dentry } if dentry.hold.is_some() => {
            board.forget_entry(board.tag(parent.0, name));
        }
        Mutation::PutDentry { parent, name, dentry } => {
            board.put_entry(board.tag(parent.0, name), Listed::Object(dentry.ino.0));
        }
        Mutation::DelDentry { parent, name } => {
            board.put_entry(board.tag(parent.0, name), Listed::Absent);
        }
        Mutation::PutDirPart { dir, part } => board.put_object(part_key(dir.0), &part.to_words()),
        Mutation::DelDirPart(dir) => board.forget_object(part_key(dir.0)),
        Mutation::PutOutcome { .. }
        | Mutation::DelOutcome(_)
        | Mutation::NextCount(_)
        | Mutation::PutReap(_)
        | Mutation::DelReap(_) => {}
    }
}

/// Differs between runs, so that clients of an earlier run notice; leaves room to count up.
fn first_epoch() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_nanos() as u64) | 1
}
