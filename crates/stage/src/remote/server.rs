//! The serving side: connections, proof of the secret, sessions. What is asked in a session is answered by threads of this process, or
//! by somebody who gets its connections.

use super::fabric::Fabric;
use super::message::{Answer, Ask, RootRequest};
use super::session::{Greeted, Serving, Session};
use crate::end::{End, EndError, EndResult};
use crate::sync::lock;
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidepool_transport::remote::{Channel, Door, Guest, Peer, Sealed, admit};
use tidepool_transport::{CONNECT_MS_MAX, Seals, Secret, random_bytes, tune_tcp};
use tidepool_types::{Errno, SessionId};

/// Connections that have not proved themselves yet. When another one comes, the oldest of them ends: who greets does so within
/// moments, and who only holds a place gives it up.
pub const HALF_OPEN_MAX: usize = 128;
/// Connections served at a time: enough for 120 copies with all the streams that they may have (17 connections each).
pub const CONNECTIONS_MAX: usize = 2048;
/// Of these, those of who has one key: no node keeps all others away. Who has no key of his own takes a new one for each connection.
pub const OF_ONE_MAX: usize = CONNECTIONS_MAX / 4;
/// Those of one key that have not said yet in whose name they are, when there are as many as there may be.
const OF_ONE_SPARE: usize = 64;
/// How long greeting and first request may take, in all.
const GREETING_MAX: Duration = Duration::from_millis(CONNECT_MS_MAX);
/// How long the listener rests after an error (no descriptors left, for instance).
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// A root opened for a client.
pub struct OpenedRoot {
    pub by: ServedBy,
    /// Kept as long as the session lives.
    pub guard: Box<dyn Any + Send + Sync>,
    /// Only connections of who has this key join; all that know the session's number without.
    pub for_key: Option<[u8; 32]>,
    /// Set when what allowed it is gone: nobody joins. Who asks for the root again is judged anew.
    pub is_over: Arc<AtomicBool>,
}

/// Whose work a session is.
pub enum ServedBy {
    /// Threads of the server.
    Threads(Serving),
    /// Somebody who gets all of its connections.
    Other(Box<dyn Host>),
}

impl OpenedRoot {
    /// One without limits, for whoever has proved himself.
    pub fn of(end: impl End + 'static, write: bool) -> OpenedRoot {
        let is_over = Arc::default();
        let serving = Serving { end: Box::new(end), charge: None, write, is_over: Arc::clone(&is_over) };
        OpenedRoot { by: ServedBy::Threads(serving), guard: Box::new(()), for_key: None, is_over }
    }
}

/// Serves a session elsewhere.
pub trait Host: Send + Sync {
    /// The session's first connection, which opens the root, or another one, which joins. Gives it back, with the reason, when it
    /// cannot be served.
    fn take(&self, handed: Handed) -> Result<(), (Box<Handed>, EndError)>;
}

/// A connection for somebody else to serve: [`Greeted`] does it.
pub struct Handed {
    pub session: SessionId,
    /// Number of the request that opens or joins the root, which is to be answered.
    pub request: u32,
    pub stream: TcpStream,
    pub seals: Seals,
    /// To be kept as long as the connection is served.
    pub kept: Kept,
}

/// What stays here of a connection that somebody else serves: it counts, and ends where its client loses its standing. It ends when
/// this is dropped, too, whoever has it.
pub struct Kept {
    stream: TcpStream,
    listed: Listed,
    session: Option<Arc<Known>>,
}

impl Kept {
    /// Ends the connection. Who serves it is done with at most one more request.
    pub fn end(&self) {
        if let Some(served) = lock(&self.listed.shared.connections).get_mut(&self.listed.number) {
            served.end();
        }
    }

    /// The connection, to see whether the other side has gone.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.end();
        self.session = None;
        forget_sessions(&self.listed.shared);
    }
}

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

/// A session, and who may join it.
struct Known {
    id: SessionId,
    /// In whose name it is.
    user: u32,
    by: By,
    _guard: Box<dyn Any + Send + Sync>,
    for_key: Option<[u8; 32]>,
    is_over: Arc<AtomicBool>,
}

enum By {
    Threads(Arc<Session>),
    Other(Box<dyn Host>),
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
    /// In whose name it is, once it is for a root.
    user: Option<u32>,
    /// It was ended here, and does not count any more.
    ended: bool,
}

impl Served {
    fn end(&mut self) {
        self.ended = true;
        // It may be closed already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

struct Shared {
    /// Those that are taken for proof. While they are exchanged there are two.
    secrets: RwLock<Arc<[Secret]>>,
    roots: Arc<dyn Roots>,
    /// Offered to clients that have the same.
    fabric: Option<Fabric>,
    sessions: Mutex<HashMap<SessionId, Weak<Known>>>,
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

    /// A connection is for a root in this user's name. Where its key has as many as it may, the user with most of them has one less, or
    /// does not get one more.
    fn settle(&self, number: u64, user: u32) -> EndResult<()> {
        let mut connections = lock(&self.connections);
        let Some(served) = connections.get_mut(&number) else { return Ok(()) };
        served.user = Some(user);
        let key = served.peer.key;
        let mut of_users: HashMap<u32, (usize, u64)> = HashMap::new();
        for (number, served) in connections.iter().filter(|(_, known)| !known.ended && known.peer.key == key)
        {
            let Some(user) = served.user else { continue };
            let (count, newest) = of_users.entry(user).or_default();
            (*count, *newest) = (*count + 1, (*number).max(*newest));
        }
        if of_users.values().map(|(count, _)| count).sum::<usize>() <= OF_ONE_MAX {
            return Ok(());
        }
        let most = of_users.into_iter().max_by_key(|(known, (count, _))| (*count, *known == user));
        let Some((_, (_, newest))) = most.filter(|(most, _)| *most != user) else {
            if let Some(served) = connections.get_mut(&number) {
                served.user = None;
            }
            let detail =
                format!("this node serves {OF_ONE_MAX} connections of yours already; try again later");
            return Err(EndError { errno: Errno::EAGAIN, operation: "open dataspace", detail: Some(detail) });
        };
        if let Some(served) = connections.get_mut(&newest) {
            served.end();
        }
        Ok(())
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
        let shared = Arc::new(Shared {
            secrets: RwLock::new(Arc::new([secret])),
            roots,
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
    /// The error says of what there are as many as there may be.
    fn new(shared: &Arc<Shared>, number: u64, served: Served) -> Result<Listed, String> {
        let mut connections = lock(&shared.connections);
        if connections.values().filter(|known| !known.ended).count() >= CONNECTIONS_MAX {
            return Err(format!("this node serves {CONNECTIONS_MAX} connections already; try again later"));
        }
        let counts = |known: &&Served| !known.ended && known.peer.key == served.peer.key;
        if connections.values().filter(counts).count() >= OF_ONE_MAX + OF_ONE_SPARE {
            return Err(format!(
                "this node serves {OF_ONE_MAX} connections of yours already, the most that one may have; try again later"
            ));
        }
        connections.insert(number, served);
        Ok(Listed { shared: shared.clone(), number })
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
        let served = Served {
            stream: handle,
            peer: peer.clone(),
            secret: secret.clone(),
            standing,
            door: false,
            user: None,
            ended: false,
        };
        let listed = Listed::new(shared, number, served)?;
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
    let wanted = find_wanted(shared, (&peer, number), &mut channel)?;
    channel.get_mut().end_at(None);
    channel.get_ref().get_ref().set_read_timeout(None)?;
    channel.get_ref().get_ref().set_write_timeout(None)?;
    match wanted {
        Wanted::Session(known, session) => {
            channel.read_ahead();
            let served = session.serve(&mut channel, shared.fabric.as_ref());
            drop((known, session));
            forget_sessions(shared);
            served
        }
        Wanted::Other(known, request) => hand_over(channel, (known, request), listed),
        Wanted::Door(door, id) => {
            listed.hand_over();
            shared.roots.enter(door, Guest::new(channel, id, peer))
        }
    }
}

/// Those that have no connection any more.
fn forget_sessions(shared: &Shared) {
    lock(&shared.sessions).retain(|_, session| session.strong_count() > 0);
}

/// Gives a connection to whom it is served by. From here on its thread here is not needed.
fn hand_over(
    channel: Channel<Sealed<TcpStream>>,
    (known, request): (Arc<Known>, u32),
    listed: Listed,
) -> io::Result<()> {
    let By::Other(host) = &known.by else { return Err(io::Error::other("nobody else serves it")) };
    let shared = Arc::clone(&listed.shared);
    let (stream, seals) = channel.into_stream().take_apart()?;
    let kept = Kept { stream: stream.try_clone()?, listed, session: Some(Arc::clone(&known)) };
    let handed = Handed { session: known.id, request, stream, seals, kept };
    let served = match host.take(handed) {
        Ok(()) => Ok(()),
        Err((back, error)) => {
            let Handed { stream, seals, request, kept, .. } = *back;
            let told = Greeted::new(stream, seals, request).serve(Err(error), None);
            drop(kept);
            told
        }
    };
    drop(known);
    forget_sessions(&shared);
    served
}

/// What a connection is for.
enum Wanted {
    Session(Arc<Known>, Arc<Session>),
    /// A session of somebody else's, with the number of the request, which is not answered yet.
    Other(Arc<Known>, u32),
    /// With the number of the request.
    Door(Door, u32),
}

/// Waits for the client to open a root, to join a session, or to want something else.
fn find_wanted(
    shared: &Shared,
    (peer, number): (&Peer, u64),
    channel: &mut Channel<Sealed<TcpStream>>,
) -> io::Result<Wanted> {
    loop {
        let head = channel.receive()?;
        channel.bulk(&head)?;
        if let Ok(door) = Door::decode(head.kind, channel.meta()) {
            return Ok(Wanted::Door(door, head.id));
        }
        let known = match Ask::decode(head.kind, channel.meta()) {
            Ok(Ask::OpenRoot { root }) => open_session(shared, peer, &root),
            Ok(Ask::JoinRoot { session }) => join_session(shared, peer, session),
            _ => Err(EndError::new("check the request", Errno::EPROTO)),
        };
        let known = known.and_then(|known| shared.settle(number, known.user).map(|()| known));
        let ready = known.map(|known| match &known.by {
            By::Threads(session) => {
                let session = Arc::clone(session);
                Wanted::Session(known, session)
            }
            By::Other(_) => Wanted::Other(known, head.id),
        });
        let answer = match &ready {
            Ok(Wanted::Session(_, session)) => Some(session.welcome()),
            Ok(Wanted::Other(..) | Wanted::Door(..)) => None,
            Err(error) => Some(Answer::Failed { error: error.clone() }),
        };
        if let Some(answer) = answer {
            channel.send(answer.kind(), head.id, |out| answer.encode(out), &[])?;
        }
        if let Ok(wanted) = ready {
            return Ok(wanted);
        }
    }
}

fn open_session(shared: &Shared, peer: &Peer, want: &RootRequest) -> EndResult<Arc<Known>> {
    let OpenedRoot { by, guard, for_key, is_over } = shared.roots.open(peer, want)?;
    let id = SessionId(random_bytes());
    let by = match by {
        ServedBy::Threads(serving) => By::Threads(Arc::new(Session::open(id, serving)?)),
        ServedBy::Other(host) => By::Other(host),
    };
    let known = Arc::new(Known { id, user: want.uid, by, _guard: guard, for_key, is_over });
    lock(&shared.sessions).insert(id, Arc::downgrade(&known));
    Ok(known)
}

fn join_session(shared: &Shared, peer: &Peer, id: SessionId) -> EndResult<Arc<Known>> {
    let known = lock(&shared.sessions).get(&id).and_then(Weak::upgrade);
    let known = known.filter(|known| {
        known.for_key.is_none_or(|key| key == peer.key) && !known.is_over.load(Ordering::Acquire)
    });
    known.ok_or_else(|| EndError::new("open dataspace", Errno::ESTALE))
}
