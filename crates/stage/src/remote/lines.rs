//! The connections of a [`RemoteEnd`](super::RemoteEnd): made when needed, proved, and made
//! again when they break.
//!
//! Requests that are asked and answered one by one wait for a free connection. Streams of
//! data keep theirs for a while, so one connection is never given to them: whoever holds a
//! stream can always ask something else meanwhile.

use super::client::RemoteOptions;
use super::dial::{Dial, Dialed, FIRST_ID, Reach};
use super::message::{Answer, Ask, RootInfo};
use crate::end::EndError;
use crate::sync::lock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno as SystemError;
use rustix::net::sockopt::socket_error;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidepool_transport::remote::{Channel, GreetError, Sealed, greet};
use tidepool_transport::{CONNECT_MS_MAX, Secret, random_bytes, tune_tcp};
use tidepool_types::Errno;

/// How long an answer may take. A dead node is noticed long before by its connections; this
/// is for syncing a large file to a slow disk.
const ANSWER_MAX: Duration = Duration::from_secs(600);
/// First and longest wait before connecting again.
const BACKOFF_MIN: Duration = Duration::from_millis(5);
const BACKOFF_MAX: Duration = Duration::from_millis(500);
/// How often a wait looks whether it is of use.
const LOOK_AROUND: Duration = Duration::from_millis(20);
/// Once a node is given up, how often it is tried again; meanwhile requests fail at once.
const GIVEN_UP_PAUSE: Duration = Duration::from_secs(1);

/// Why a request was not answered as hoped.
pub(super) enum Trouble {
    /// The connection broke; the request may have been carried out.
    Lost(io::Error),
    /// The other side said so, or there is no use in asking again.
    Said(EndError),
}

impl Trouble {
    /// What there is no room for now is tried again, as a connection that broke is.
    fn or_later(self) -> Trouble {
        match self {
            Trouble::Said(EndError { errno: Errno::EAGAIN, detail, .. }) => {
                let detail = detail.unwrap_or_default();
                Trouble::Lost(io::Error::new(io::ErrorKind::ConnectionRefused, detail))
            }
            trouble => trouble,
        }
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::Lost(error)
    }
}

impl From<EndError> for Trouble {
    fn from(error: EndError) -> Trouble {
        Trouble::Said(error)
    }
}

/// Something closed here that the server does not know of yet.
#[derive(Clone, Copy)]
pub(super) enum Closed {
    Dir(u32),
    File(u32),
}

/// What is to be told to the server with the next request, with the session it belongs to.
pub(super) type Closing = Arc<Mutex<Vec<(u64, Closed)>>>;

struct Conn {
    channel: Channel<Sealed<TcpStream>>,
    number: u64,
    /// Which session it belongs to, counted here.
    generation: u64,
    last_id: u32,
}

#[derive(Default)]
struct Pool {
    idle: Vec<Conn>,
    /// Connections, idle and in use.
    open: usize,
    /// Those that streams have.
    streaming: usize,
    /// Counts losses: connections made before one are not trusted after it.
    losses: u64,
    /// Handles of the open connections, to end them from another thread.
    streams: Vec<(u64, TcpStream)>,
    /// Number of the connection made last.
    last: u64,
    abandoned: bool,
    /// When connecting was last tried in vain, after the node was given up.
    given_up: Option<(Instant, EndError)>,
}

impl Pool {
    /// A connection is closed.
    fn forget(&mut self, number: u64) {
        self.open -= 1;
        self.streams.retain(|(known, _)| *known != number);
    }

    /// The error for requests that are not even tried.
    fn barred(&mut self) -> Option<EndError> {
        if self.abandoned {
            return Some(EndError::new("reach the other node", Errno::ECANCELED));
        }
        let (tried, error) = self.given_up.as_mut()?;
        if tried.elapsed() < GIVEN_UP_PAUSE {
            return Some(error.clone());
        }
        *tried = Instant::now();
        None
    }
}

#[derive(Clone)]
struct Current {
    generation: u64,
    info: Arc<RootInfo>,
}

impl Current {
    /// False when the session is over.
    fn join(&self, ask: &mut AskFirst<'_>) -> Result<bool, Trouble> {
        match ask(&Ask::JoinRoot { session: self.info.session }) {
            Ok(_) => Ok(true),
            Err(Trouble::Said(error)) if error.errno == Errno::ESTALE => Ok(false),
            Err(trouble) => Err(trouble.or_later()),
        }
    }
}

/// Asks before there is a session: on one connection, or each time on another one.
type AskFirst<'a> = dyn FnMut(&Ask) -> Result<Answer, Trouble> + 'a;

pub(super) struct Lines {
    options: RemoteOptions,
    pool: Mutex<Pool>,
    freed: Condvar,
    /// Locked while a session is opened or joined.
    session: Mutex<Option<Current>>,
    pub closing: Closing,
}

/// A connection in use; back in the pool when dropped, unless it broke.
pub(super) struct Lease<'a> {
    lines: &'a Lines,
    conn: Option<Conn>,
    losses: u64,
    stream: bool,
    broken: bool,
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let mut pool = lock(&self.lines.pool);
        pool.streaming -= usize::from(self.stream);
        match self.conn.take() {
            Some(conn) if !self.broken && pool.losses == self.losses => pool.idle.push(conn),
            Some(conn) => pool.forget(conn.number),
            None => pool.open -= 1,
        }
        drop(pool);
        self.lines.freed.notify_one();
    }
}

/// Waits that grow, as long as the node may be away.
pub(super) struct Backoff {
    until: Option<Instant>,
    patience: Duration,
    pause: Duration,
}

impl Backoff {
    /// The wait before another try; `None` when the time is over.
    fn next(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let until = *self.until.get_or_insert(now + self.patience);
        let pause = self.pause.min(until.checked_duration_since(now).filter(|left| !left.is_zero())?);
        self.pause = (self.pause * 2).min(BACKOFF_MAX);
        Some(pause)
    }
}

impl Lines {
    pub fn new(options: RemoteOptions) -> Lines {
        Lines {
            options,
            pool: Mutex::default(),
            freed: Condvar::new(),
            session: Mutex::default(),
            closing: Closing::default(),
        }
    }

    pub fn options(&self) -> &RemoteOptions {
        &self.options
    }

    pub fn backoff(&self) -> Backoff {
        let patience = self.patience();
        // A node that has never answered is not worth a long wait for each connection either.
        let until = self.info().is_none().then(|| Instant::now() + patience);
        Backoff { until, patience, pause: BACKOFF_MIN }
    }

    fn patience(&self) -> Duration {
        match self.info() {
            Some(_) => self.options.patience,
            None => self.options.patience.min(self.options.first_patience),
        }
    }

    /// What the server told of the root, when it was opened last.
    pub fn info(&self) -> Option<Arc<RootInfo>> {
        lock(&self.session).as_ref().map(|current| current.info.clone())
    }

    /// A connection for one request after the other.
    pub fn lease(&self) -> Result<Lease<'_>, Trouble> {
        let mut pool = lock(&self.pool);
        loop {
            if let Some(lease) = self.idle(&mut pool, false) {
                return Ok(lease);
            }
            if pool.open <= self.options.streams {
                return self.another(pool, false);
            }
            pool = self.freed.wait(pool).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A connection for a stream of data, if there is one to spare.
    pub fn stream_lease(&self) -> Result<Option<Lease<'_>>, Trouble> {
        let mut pool = lock(&self.pool);
        if pool.streaming >= self.options.streams {
            return Ok(None);
        }
        if let Some(lease) = self.idle(&mut pool, true) {
            return Ok(Some(lease));
        }
        if pool.open > self.options.streams {
            return Ok(None);
        }
        self.another(pool, true).map(Some)
    }

    fn idle(&self, pool: &mut Pool, stream: bool) -> Option<Lease<'_>> {
        let conn = pool.idle.pop()?;
        pool.streaming += usize::from(stream);
        Some(Lease { lines: self, conn: Some(conn), losses: pool.losses, stream, broken: false })
    }

    /// Makes a further connection.
    fn another(&self, mut pool: std::sync::MutexGuard<'_, Pool>, stream: bool) -> Result<Lease<'_>, Trouble> {
        if let Some(error) = pool.barred() {
            return Err(Trouble::Said(error));
        }
        pool.open += 1;
        pool.streaming += usize::from(stream);
        // Nobody else gets it before it is proved.
        let mut lease = Lease { lines: self, conn: None, losses: pool.losses, stream, broken: true };
        drop(pool);
        match &self.options.reach {
            Reach::Secret(secret) => self.come_by_secret(secret, &mut lease.conn)?,
            Reach::By(dial) => self.come_by(&**dial, &mut lease.conn)?,
        }
        lease.broken = false;
        lock(&self.pool).given_up = None;
        Ok(lease)
    }

    /// A connection that this process proves itself.
    fn come_by_secret(&self, secret: &Secret, made: &mut Option<Conn>) -> Result<(), Trouble> {
        let stream = self.dial()?;
        let number = self.register(&stream)?;
        // From here on the lease closes it.
        let conn = made.insert(Conn::new(Channel::new(Sealed::new(stream)), number));
        conn.wait_at_most(Duration::from_millis(CONNECT_MS_MAX))?;
        self.greet(secret, &mut conn.channel)?;
        conn.channel.read_ahead();
        conn.generation = self.enter(&mut |ask| conn.ask(ask))?;
        self.offer_fabric(conn)?;
        Ok(conn.wait_at_most(ANSWER_MAX)?)
    }

    /// One that somebody else proves, with the answer to a first request. To each other answer belongs a connection that has ended.
    fn come_by(&self, dial: &dyn Dial, made: &mut Option<Conn>) -> Result<(), Trouble> {
        let generation = self.enter(&mut |ask| {
            let Dialed { answer, connection } = dial.dial(ask).map_err(|error| self.not_greeted(error))?;
            if let Answer::Failed { error } = answer {
                return Err(Trouble::Said(error));
            }
            let (stream, seals) = connection.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
            let number = self.register(&stream)?;
            let mut channel = Channel::new(Sealed::put_together(stream, seals));
            channel.trust();
            channel.read_ahead();
            made.insert(Conn::new(channel, number)).last_id = FIRST_ID;
            Ok(answer)
        })?;
        let conn = made.as_mut().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
        conn.generation = generation;
        self.offer_fabric(conn)?;
        Ok(conn.wait_at_most(ANSWER_MAX)?)
    }

    /// From here on [`Lines::abandon`] ends the connection.
    fn register(&self, stream: &TcpStream) -> Result<u64, Trouble> {
        let handle = stream.try_clone()?;
        let mut pool = lock(&self.pool);
        if let Some(error) = pool.barred().filter(|_| pool.abandoned) {
            return Err(Trouble::Said(error));
        }
        pool.last += 1;
        let number = pool.last;
        pool.streams.push((number, handle));
        Ok(number)
    }

    /// A connection broke: its idle siblings have likely, too.
    fn lost(&self) {
        let mut pool = lock(&self.pool);
        pool.losses += 1;
        for conn in std::mem::take(&mut pool.idle) {
            pool.forget(conn.number);
        }
    }

    /// Ends all connections and fails all requests from now on.
    pub fn abandon(&self) {
        let mut pool = lock(&self.pool);
        pool.abandoned = true;
        for (_, stream) in &pool.streams {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(pool);
        self.freed.notify_all();
    }

    /// The node did not come back in time: the error for this and, for a while, all requests.
    pub fn give_up(&self, error: &io::Error) -> EndError {
        let errno = match error.kind() {
            io::ErrorKind::ConnectionRefused => Errno::ECONNREFUSED,
            io::ErrorKind::HostUnreachable => Errno::EHOSTUNREACH,
            _ => Errno::ETIMEDOUT,
        };
        let (patience, address) = (self.patience().as_secs_f64(), &self.options.address);
        let detail = format!(
            "node {}: {error} (tried {address} for {patience:.1} s; does a stager listen there, and can it be reached from here?)",
            self.options.node
        );
        let error = EndError { errno, operation: "reach the other node", detail: Some(detail) };
        let mut pool = lock(&self.pool);
        if pool.abandoned {
            return EndError::new("reach the other node", Errno::ECANCELED);
        }
        pool.given_up = Some((Instant::now(), error.clone()));
        error
    }

    /// There is no use in waiting for the node: it was given up, or the end was.
    pub fn is_hopeless(&self) -> bool {
        let pool = lock(&self.pool);
        pool.abandoned || pool.given_up.is_some()
    }

    /// Waits before another try of something; false when that is of no use.
    pub fn wait(&self, backoff: &mut Backoff) -> bool {
        let Some(pause) = backoff.next() else { return false };
        let until = Instant::now() + pause;
        while !self.is_hopeless() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(LOOK_AROUND));
        }
        false
    }

    /// Says which node an error comes from.
    pub fn named(&self, mut error: EndError) -> EndError {
        if error.node().is_none() {
            let what = error.detail.take().unwrap_or_else(|| error.errno.text().into());
            error.detail = Some(format!("node {}: {what}", self.options.node));
        }
        // Only connections of this node break in a way that this node can mend.
        if error.is_lost() {
            error.errno = Errno::EIO;
        }
        error
    }

    /// Asks for large data by the fabric. A node that has none, or another, goes on without.
    fn offer_fabric(&self, conn: &mut Conn) -> Result<(), Trouble> {
        let Some(fabric) = &self.options.fabric else { return Ok(()) };
        let stream = conn.channel.get_ref().get_ref().try_clone()?;
        let here = u64::from_le_bytes(random_bytes());
        let (provider, name) = (fabric.provider().to_string(), fabric.name().into());
        match conn.ask(&Ask::OpenFabric { provider, name, tag: here }) {
            Ok(Answer::Fabric { name, tag }) => {
                let way = fabric.way(&stream, &name, here, tag)?;
                conn.channel.go_aside(way);
                Ok(())
            }
            Ok(_) => Err(self.refused(Errno::EPROTO, "unexpected answer to opening a fabric".into())),
            Err(Trouble::Said(_)) => Ok(()),
            Err(trouble) => Err(trouble),
        }
    }

    fn dial(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address");
        for address in self.options.address.to_socket_addrs()? {
            match self.dial_to(&address) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// As `TcpStream::connect_timeout`, but ends when the lines are abandoned: a node behind a
    /// dead link answers nothing at all.
    fn dial_to(&self, address: &SocketAddr) -> io::Result<TcpStream> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        match connect(&socket, address) {
            Err(SystemError::INPROGRESS) => self.await_connected(&socket)?,
            done => done?,
        }
        let stream = TcpStream::from(socket);
        stream.set_nonblocking(false)?;
        Ok(stream)
    }

    fn await_connected(&self, socket: &OwnedFd) -> io::Result<()> {
        let until = Instant::now() + Duration::from_millis(CONNECT_MS_MAX);
        let pause = Timespec::try_from(LOOK_AROUND).map_err(io::Error::other)?;
        while Instant::now() < until && !lock(&self.pool).abandoned {
            let mut watched = [PollFd::new(socket, PollFlags::OUT)];
            match poll(&mut watched, Some(&pause)) {
                Ok(0) | Err(SystemError::INTR) => {}
                Ok(_) => return Ok(socket_error(socket)??),
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    fn refused(&self, errno: Errno, why: String) -> Trouble {
        let error = EndError { errno, operation: "reach the other node", detail: Some(why) };
        Trouble::Said(self.named(error))
    }

    fn greet(&self, secret: &Secret, channel: &mut Channel<Sealed<TcpStream>>) -> Result<(), Trouble> {
        tune_tcp(channel.get_ref().get_ref())?;
        let who = (&*self.options.own_name, &self.options.meant);
        greet(secret, who, channel).map(drop).map_err(|error| self.not_greeted(error))
    }

    fn not_greeted(&self, error: GreetError) -> Trouble {
        match error {
            GreetError::Lost(error) => Trouble::Lost(error),
            GreetError::Later(reason) => {
                Trouble::Lost(io::Error::new(io::ErrorKind::ConnectionRefused, reason))
            }
            GreetError::Refused(_) | GreetError::Stranger | GreetError::Other(_) => {
                self.refused(Errno::EACCES, error.to_string())
            }
            GreetError::OtherVersion | GreetError::Unexpected => {
                self.refused(Errno::EPROTO, error.to_string())
            }
        }
    }

    /// Joins the session, or opens one when there is none any more; which one it is, counted here.
    fn enter(&self, ask: &mut AskFirst<'_>) -> Result<u64, Trouble> {
        let known = lock(&self.session).clone();
        // Several connections may join at a time, but only one opens a session.
        if let Some(known) = &known
            && known.join(ask)?
        {
            return Ok(known.generation);
        }
        let mut session = lock(&self.session);
        if let Some(newer) = session.as_ref().filter(|s| known.is_none_or(|k| k.generation != s.generation))
            && newer.join(ask)?
        {
            return Ok(newer.generation);
        }
        let info = match ask(&Ask::OpenRoot { root: self.options.root.clone() }) {
            Ok(Answer::Root { info }) => info,
            Ok(_) => return Err(self.refused(Errno::EPROTO, "unexpected answer to opening a root".into())),
            Err(trouble) => match trouble.or_later() {
                Trouble::Said(error) => return Err(Trouble::Said(self.named(error))),
                trouble => return Err(trouble),
            },
        };
        if let Some(current) = &*session {
            self.check_same(&current.info, &info)?;
        }
        let generation = session.as_ref().map_or(1, |current| current.generation + 1);
        *session = Some(Current { generation, info: Arc::new(info) });
        Ok(generation)
    }

    /// A root opened again has to be what it was, with all that was written to it.
    fn check_same(&self, before: &RootInfo, now: &RootInfo) -> Result<(), Trouble> {
        if before.meta.key() != now.meta.key() || before.identity != now.identity {
            return Err(self.refused(Errno::ESTALE, "the directory was replaced by another one".into()));
        }
        if before.boot != now.boot {
            let why = "was started anew; what was not synced may be lost".into();
            return Err(self.refused(Errno::ESTALE, why));
        }
        Ok(())
    }
}

impl Conn {
    fn new(channel: Channel<Sealed<TcpStream>>, number: u64) -> Conn {
        Conn { channel, number, generation: 0, last_id: 0 }
    }

    fn wait_at_most(&self, timeout: Duration) -> io::Result<()> {
        let stream = self.channel.get_ref().get_ref();
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))
    }

    fn send(&mut self, ask: &Ask, bulk: &[&[u8]]) -> io::Result<u32> {
        self.last_id = self.last_id.wrapping_add(1);
        self.channel.send(ask.kind(), self.last_id, |out| ask.encode(out), bulk)?;
        Ok(self.last_id)
    }

    fn ask(&mut self, ask: &Ask) -> Result<Answer, Trouble> {
        let id = self.send(ask, &[])?;
        let (answer, bulk_len) = self.receive(id, &mut [])?;
        if bulk_len == 0 { Ok(answer) } else { Err(Trouble::Lost(io::ErrorKind::InvalidData.into())) }
    }

    /// Takes the answer to a request; its bulk data, which must fit, go to the start of `bulk`.
    fn receive(&mut self, id: u32, bulk: &mut [u8]) -> Result<(Answer, usize), Trouble> {
        let head = self.channel.receive()?;
        let answer = Answer::decode(head.kind, self.channel.meta())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let Some(room) = bulk.get_mut(..head.bulk_len) else {
            let why = "more data than was asked for";
            return Err(Trouble::Lost(io::Error::new(io::ErrorKind::InvalidData, why)));
        };
        self.channel.take_bulk(&head, room)?;
        if head.id != id {
            let why = "an answer to another request";
            return Err(Trouble::Lost(io::Error::new(io::ErrorKind::InvalidData, why)));
        }
        match answer {
            Answer::Failed { error } => Err(Trouble::Said(error)),
            answer => Ok((answer, head.bulk_len)),
        }
    }
}

impl Lease<'_> {
    pub fn generation(&self) -> u64 {
        self.conn.as_ref().map_or(0, |conn| conn.generation)
    }

    /// Notes that the connection cannot be used any more.
    pub fn lost(&mut self) {
        if !self.broken {
            self.broken = true;
            self.lines.lost();
        }
    }

    fn noting<T>(&mut self, act: impl FnOnce(&mut Conn) -> Result<T, Trouble>) -> Result<T, Trouble> {
        let conn = self.conn.as_mut().ok_or_else(|| Trouble::Lost(io::ErrorKind::NotConnected.into()))?;
        let done = act(conn);
        if matches!(done, Err(Trouble::Lost(_))) {
            self.lost();
        }
        done
    }

    /// Sends a request; its number, which the answer has as well.
    pub fn send(&mut self, ask: &Ask, bulk: &[&[u8]]) -> Result<u32, Trouble> {
        let closing = std::mem::take(&mut *lock(&self.lines.closing));
        self.noting(|conn| {
            conn.tell_closed(&closing);
            Ok(conn.send(ask, bulk)?)
        })
    }

    pub fn receive(&mut self, id: u32, bulk: &mut [u8]) -> Result<(Answer, usize), Trouble> {
        self.noting(|conn| conn.receive(id, bulk))
    }

    /// Asks and waits for the answer.
    pub fn ask(&mut self, ask: &Ask) -> Result<Answer, Trouble> {
        self.ask_with(ask, &[])
    }

    pub fn ask_with(&mut self, ask: &Ask, bulk: &[&[u8]]) -> Result<Answer, Trouble> {
        let id = self.send(ask, bulk)?;
        Ok(self.receive(id, &mut [])?.0)
    }
}

impl Conn {
    fn tell_closed(&mut self, closing: &[(u64, Closed)]) {
        let (mut dirs, mut files) = (Vec::new(), Vec::new());
        // What belongs to an earlier session went with it.
        for (_, closed) in closing.iter().filter(|(generation, _)| *generation == self.generation) {
            match closed {
                Closed::Dir(dir) => dirs.push(*dir),
                Closed::File(file) => files.push(*file),
            }
        }
        if !dirs.is_empty() || !files.is_empty() {
            let close = Ask::Close { dirs, files };
            self.channel.queue(close.kind(), 0, |out| close.encode(out), &[]);
        }
    }
}
