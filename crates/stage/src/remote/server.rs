//! The serving side: connections, proof of the secret, sessions.

use super::fabric::Fabric;
use super::message::{Answer, Ask, ROOT, RootInfo, RootRequest};
use super::table::Table;
use crate::end::{At, End, EndError, EndResult};
use crate::limit::Charge;
use crate::sync::lock;
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidepool_transport::remote::{Aside, Channel, Door, Guest, Peer, Sealed, admit};
use tidepool_transport::{CONNECT_MS_MAX, Secret, random_bytes, tune_tcp};
use tidepool_types::{Errno, SessionId};

/// Connections that have not proved themselves yet. When another one comes, the oldest of them ends: who greets does so within
/// moments, and who only holds a place gives it up.
pub const HALF_OPEN_MAX: usize = 128;
/// Connections served at a time, each by a thread of its own: enough for 32 nodes with all the streams
/// that they may have (17 connections each).
pub const CONNECTIONS_MAX: usize = 1024;
/// How long greeting and first request may take, in all.
const GREETING_MAX: Duration = Duration::from_millis(CONNECT_MS_MAX);
/// How long the listener rests after an error (no descriptors left, for instance).
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// A root opened for a client.
pub struct OpenedRoot {
    pub end: Box<dyn End>,
    /// Kept as long as the session lives.
    pub guard: Box<dyn Any + Send + Sync>,
    /// Called once on every thread that serves the root, before anything else: where the
    /// end acts as its thread's identity.
    pub on_thread: Option<OnThread>,
    /// Limits on what is put there.
    pub charge: Option<Arc<dyn Charge>>,
    /// Only connections of who has this key join; all that know the session's number without.
    pub for_key: Option<[u8; 32]>,
    /// Set when what allowed it is gone: its connections end with their next request, and nobody joins. Who asks for the root again is
    /// judged anew.
    pub is_over: Arc<AtomicBool>,
}

impl OpenedRoot {
    /// One without limits, for whoever has proved himself.
    pub fn of(end: impl End + 'static) -> OpenedRoot {
        OpenedRoot {
            end: Box::new(end),
            guard: Box::new(()),
            on_thread: None,
            charge: None,
            for_key: None,
            is_over: Arc::default(),
        }
    }
}

/// Prepares a thread.
pub type OnThread = Box<dyn Fn() -> EndResult<()> + Send + Sync>;

/// Decides what clients may work on.
pub trait Roots: Send + Sync {
    /// What who has proved that he knows the secret, and has this key, may do, in words; else why he may not ask for anything. Whose
    /// standing changes loses his connections.
    fn welcome(&self, _peer: &Peer) -> Result<String, String> {
        Ok(String::new())
    }

    fn open(&self, peer: &Peer, want: &RootRequest) -> EndResult<OpenedRoot>;

    /// Somebody has not proved himself.
    fn refused(&self, _from: SocketAddr, _why: &str) {}

    /// Serves who wants something else than a directory, on a thread of its own.
    fn enter(&self, _door: Door, guest: Guest) -> io::Result<()> {
        guest.turn_away("only directories are served here")
    }
}

/// One root opened by a client, for all of its connections.
pub(super) struct Session {
    pub root: OpenedRoot,
    pub table: Table,
    pub write: bool,
    info: RootInfo,
}

/// A connection that is served.
struct Served {
    stream: TcpStream,
    peer: Peer,
    /// What it was proved by.
    secret: Secret,
    standing: String,
    /// It is somebody else's, who may have it longer than this server lives.
    door: bool,
}

struct Shared {
    /// Those that are taken for proof. While they are exchanged there are two.
    secrets: RwLock<Arc<[Secret]>>,
    roots: Arc<dyn Roots>,
    boot: Box<[u8]>,
    /// Offered to clients that have the same.
    fabric: Option<Fabric>,
    sessions: Mutex<HashMap<SessionId, Weak<Session>>>,
    /// To close them when the server stops, or who is there is not welcome any more.
    connections: Mutex<HashMap<u64, Served>>,
    /// Those that have not proved themselves, in the order they came.
    half_open: Mutex<VecDeque<(u64, TcpStream)>>,
    /// What this node is called.
    name: String,
    last: AtomicU64,
    stopping: AtomicBool,
}

impl Shared {
    fn secrets(&self) -> Arc<[Secret]> {
        Arc::clone(&self.secrets.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether who has this connection may still do what he might when it was made.
    fn stays(&self, served: &Served) -> bool {
        let Served { peer, secret, standing, .. } = served;
        self.secrets().iter().any(|known| known.is_shared_with(secret))
            && self.roots.welcome(peer).is_ok_and(|now| now == *standing)
    }
}

/// Serves ends to [`RemoteEnd`](super::RemoteEnd)s until it is stopped or dropped.
pub struct EndServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

impl EndServer {
    pub fn start(listener: TcpListener, secret: Secret, roots: Arc<dyn Roots>) -> io::Result<EndServer> {
        EndServer::start_with(listener, secret, roots, None, "")
    }

    /// The same; large data go by `fabric` from and to clients that have it, too.
    pub fn start_with(
        listener: TcpListener,
        secret: Secret,
        roots: Arc<dyn Roots>,
        fabric: Option<Fabric>,
        name: &str,
    ) -> io::Result<EndServer> {
        let address = listener.local_addr()?;
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let shared = Arc::new(Shared {
            secrets: RwLock::new(Arc::new([secret])),
            roots,
            boot: boot.trim_ascii_end().into(),
            fabric,
            sessions: Mutex::default(),
            connections: Mutex::default(),
            half_open: Mutex::default(),
            name: name.into(),
            last: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        });
        let serving = shared.clone();
        let thread = std::thread::Builder::new().name("remote-accept".into());
        let acceptor = thread.spawn(move || accept(&serving, &listener))?;
        Ok(EndServer { shared, address, acceptor: Some(acceptor) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections being served.
    pub fn connections(&self) -> usize {
        lock(&self.shared.connections).len()
    }

    /// From now on these count as proof, and no others; who was welcome and is not any more loses his connections.
    pub fn trust(&self, secrets: Vec<Secret>) {
        let secrets: Arc<[Secret]> = secrets.into();
        *self.shared.secrets.write().unwrap_or_else(PoisonError::into_inner) = secrets;
        for served in lock(&self.shared.connections).values().filter(|served| !self.shared.stays(served)) {
            let _ = served.stream.shutdown(Shutdown::Both);
        }
    }

    /// Takes no more connections and closes those there are.
    pub fn stop(&mut self) {
        let Some(acceptor) = self.acceptor.take() else { return };
        self.shared.stopping.store(true, Ordering::Release);
        // Wakes the listener; if even that fails there is nothing to wake.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_millis(CONNECT_MS_MAX));
        let _ = acceptor.join();
        let half_open = std::mem::take(&mut *lock(&self.shared.half_open));
        for stream in half_open.iter().map(|(_, stream)| stream) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        for served in lock(&self.shared.connections).values().filter(|served| !served.door) {
            let _ = served.stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for EndServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    loop {
        let accepted = listener.accept();
        if shared.stopping.load(Ordering::Acquire) {
            return;
        }
        match accepted {
            Ok((stream, _)) => start(shared, stream),
            Err(_) => std::thread::sleep(ACCEPT_REST),
        }
    }
}

/// Serves a connection on a thread of its own. A failure only closes the connection, which
/// the client notices.
fn start(shared: &Arc<Shared>, stream: TcpStream) {
    let number = shared.last.fetch_add(1, Ordering::Relaxed);
    let Ok(copy) = stream.try_clone() else { return };
    {
        let mut half_open = lock(&shared.half_open);
        if half_open.len() >= HALF_OPEN_MAX
            && let Some((_, oldest)) = half_open.pop_front()
        {
            let _ = oldest.shutdown(Shutdown::Both);
        }
        half_open.push_back((number, copy));
    }
    let shared = shared.clone();
    let thread = std::thread::Builder::new().name("remote-serve".into());
    // Without a thread the closure is dropped, and with it the connection.
    let _ = thread.spawn(move || {
        // The client is told by its end of the connection.
        let _ = serve(&shared, number, stream);
    });
}

/// Takes a connection off the list, also when its thread panics.
struct Listed {
    shared: Arc<Shared>,
    number: u64,
}

impl Listed {
    /// None when there are as many as there may be.
    fn new(shared: &Arc<Shared>, number: u64, served: Served) -> Option<Listed> {
        let mut connections = lock(&shared.connections);
        if connections.len() >= CONNECTIONS_MAX {
            return None;
        }
        connections.insert(number, served);
        Some(Listed { shared: shared.clone(), number })
    }

    /// The connection is somebody else's, who may have it longer than this server lives.
    fn hand_over(&self) {
        if let Some(served) = lock(&self.shared.connections).get_mut(&self.number) {
            served.door = true;
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        lock(&self.shared.connections).remove(&self.number);
    }
}

/// Takes a connection off the list of those that have not proved themselves.
struct HalfOpen<'a>(&'a Shared, u64);

impl Drop for HalfOpen<'_> {
    fn drop(&mut self) {
        lock(&self.0.half_open).retain(|(number, _)| *number != self.1);
    }
}

/// A connection that has proved itself.
struct Proven {
    channel: Channel<Sealed<TcpStream>>,
    peer: Peer,
    listed: Listed,
}

/// Until both sides have proved themselves, which has a time for all of it.
fn greeted(shared: &Arc<Shared>, number: u64, stream: TcpStream) -> io::Result<Option<Proven>> {
    let _half_open = HalfOpen(shared, number);
    tune_tcp(&stream)?;
    stream.set_write_timeout(Some(GREETING_MAX))?;
    let (from, handle) = (stream.peer_addr()?, stream.try_clone()?);
    let mut sealed = Sealed::new(stream);
    sealed.end_at(Some(Instant::now() + GREETING_MAX));
    let mut channel = Channel::new(sealed);
    let secrets = shared.secrets();
    let listed = |peer: &Peer, secret: &Secret| {
        let standing = shared.roots.welcome(peer)?;
        let text = || format!("this node serves {CONNECTIONS_MAX} connections already; try again later");
        let served =
            Served { stream: handle, peer: peer.clone(), secret: secret.clone(), standing, door: false };
        let listed = Listed::new(shared, number, served).ok_or_else(text)?;
        // Whose standing changes while he is being listed is found on the list, or here.
        let stays = lock(&shared.connections).get(&number).is_some_and(|served| shared.stays(served));
        stays.then_some(listed).ok_or_else(|| "keys or secrets have just changed; try again".into())
    };
    match admit(&secrets, &shared.name, &mut channel, listed)? {
        Ok((peer, listed)) => Ok(Some(Proven { channel, peer, listed })),
        Err(why) => {
            shared.roots.refused(from, why);
            Ok(None)
        }
    }
}

fn serve(shared: &Arc<Shared>, number: u64, stream: TcpStream) -> io::Result<()> {
    let Some(Proven { mut channel, peer, listed }) = greeted(shared, number, stream)? else { return Ok(()) };
    let session = match find_wanted(shared, &peer, &mut channel)? {
        Wanted::Session(session) => session,
        Wanted::Door(door, id) => {
            listed.hand_over();
            channel.get_mut().end_at(None);
            return shared.roots.enter(door, Guest::new(channel, id, peer));
        }
    };
    channel.get_mut().end_at(None);
    channel.read_ahead();
    channel.get_ref().get_ref().set_read_timeout(None)?;
    channel.get_ref().get_ref().set_write_timeout(None)?;
    let served = session.serve(&mut channel);
    drop(session);
    lock(&shared.sessions).retain(|_, session| session.strong_count() > 0);
    served
}

/// A way for large data, and the answer that tells the client of it.
fn open_fabric(
    shared: &Shared,
    stream: &TcpStream,
    (provider, name, there): (&str, &[u8], u64),
) -> EndResult<(Box<dyn Aside>, Answer)> {
    let refuse = |why: String| EndError {
        errno: Errno::EOPNOTSUPP,
        operation: "check the request",
        detail: Some(why),
    };
    let fabric = shared.fabric.as_ref().filter(|fabric| fabric.provider() == provider);
    let fabric = fabric.ok_or_else(|| refuse(format!("no fabric '{provider}' here")))?;
    let here = u64::from_le_bytes(random_bytes());
    let way = fabric.way(stream, name, here, there).map_err(|error| refuse(error.to_string()))?;
    Ok((way, Answer::Fabric { name: fabric.name().into(), tag: here }))
}

/// Answers a client that offers a fabric; large data go that way from the next frame on.
fn answer_fabric(
    shared: &Shared,
    channel: &mut Channel<Sealed<TcpStream>>,
    id: u32,
    theirs: (&str, &[u8], u64),
) -> io::Result<()> {
    let (way, answer) = match open_fabric(shared, channel.get_ref().get_ref(), theirs) {
        Ok((way, answer)) => (Some(way), answer),
        Err(error) => (None, Answer::Failed { error }),
    };
    channel.send(answer.kind(), id, |out| answer.encode(out), &[])?;
    if let Some(way) = way {
        channel.go_aside(way);
    }
    Ok(())
}

/// What a connection is for.
enum Wanted {
    Session(Arc<Session>),
    /// With the number of the request.
    Door(Door, u32),
}

/// Waits for the client to open a root, to join a session, or to want something else.
fn find_wanted(shared: &Shared, peer: &Peer, channel: &mut Channel<Sealed<TcpStream>>) -> io::Result<Wanted> {
    loop {
        let head = channel.receive()?;
        channel.bulk(&head)?;
        if let Ok(door) = Door::decode(head.kind, channel.meta()) {
            return Ok(Wanted::Door(door, head.id));
        }
        let opened = match Ask::decode(head.kind, channel.meta()) {
            Ok(Ask::OpenRoot { root }) => open_session(shared, peer, &root),
            Ok(Ask::JoinRoot { session }) => join_session(shared, peer, session),
            Ok(Ask::OpenFabric { provider, name, tag }) => {
                answer_fabric(shared, channel, head.id, (&provider, &name, tag))?;
                continue;
            }
            _ => Err(EndError::new("check the request", Errno::EPROTO)),
        };
        let ready = opened.and_then(|session| match &session.root.on_thread {
            Some(prepare) => prepare().map(|()| session),
            None => Ok(session),
        });
        let answer = match &ready {
            Ok(session) => Answer::Root { info: session.info.clone() },
            Err(error) => Answer::Failed { error: error.clone() },
        };
        channel.send(answer.kind(), head.id, |out| answer.encode(out), &[])?;
        if let Ok(session) = ready {
            return Ok(Wanted::Session(session));
        }
    }
}

fn open_session(shared: &Shared, peer: &Peer, want: &RootRequest) -> EndResult<Arc<Session>> {
    let root = shared.roots.open(peer, want)?;
    if let Some(prepare) = &root.on_thread {
        prepare()?;
    }
    let end = &*root.end;
    let info = RootInfo {
        session: SessionId(random_bytes()),
        boot: shared.boot.clone(),
        describe: end.describe(),
        identity: end.identity().into(),
        rights: end.rights(),
        reads_touch_atime: end.reads_touch_atime(),
        meta: end.stat(At::Dir(&end.root()))?,
    };
    let (id, table) = (info.session, Table::new(end.root()));
    debug_assert!(table.dir(ROOT).is_ok());
    let session = Arc::new(Session { root, table, write: want.write, info });
    lock(&shared.sessions).insert(id, Arc::downgrade(&session));
    Ok(session)
}

fn join_session(shared: &Shared, peer: &Peer, id: SessionId) -> EndResult<Arc<Session>> {
    let known = lock(&shared.sessions).get(&id).and_then(Weak::upgrade);
    let known = known.filter(|session| {
        session.root.for_key.is_none_or(|key| key == peer.key)
            && !session.root.is_over.load(Ordering::Acquire)
    });
    known.ok_or_else(|| EndError::new("open dataspace", Errno::ESTALE))
}
