//! One connection: collecting frames, proving the peer, queueing replies.
//!
//! ```text
//! Unix: Hello ──▶ Answer ─┬─▶ Ready ──▶ closed
//! TCP:  Begin ──▶ End ────┤
//!                         └── anything unexpected ──▶ Refused, closed
//! ```

use crate::counters::Counters;
use crate::lanes::Lanes;
use crate::loans::{Granted, peer_of, refusal};
use crate::serve::Service;
use crate::{FRAMES_PER_TURN, HANDSHAKE_BODY_MAX};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{self, ErrorKind, IoSlice, Read, Write as _};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use tidepool_fs_state::Ticket;
use tidepool_shm::SLOTS;
use tidepool_store::StoreError;
use tidepool_transport::{Asked, Sealed, ServerAuth};
use tidepool_types::{Errno, Ino, InstanceId, SessionId};
use tidepool_wire::frame::{BULK_MAX, FLAG_ONE_WAY, HEADER_LEN, Header, META_MAX};
use tidepool_wire::message::{
    Handshake, Nonce, PROTOCOL_VERSION, Reply, Request, brings_descriptors, opens_fabric, queues_for_lock,
    watches,
};

/// Bytes asked of the kernel when no large frame is under way.
const READ_STEP: usize = 4096;
/// Largest step by which the buffer of a large frame grows ahead of its data.
const GROW_STEP: usize = 1 << 20;
/// Buffers above this are given back when they are empty.
const KEEP_MAX: usize = (1 << 20) + READ_STEP;

/// Bytes of replies that may wait for a client beside its lane: a largest one for each slot.
const UNTAKEN_MAX: usize = SLOTS * (HEADER_LEN + META_MAX + BULK_MAX);

/// A connected socket of either family.
pub enum Socket {
    Unix(UnixStream),
    Tcp(Box<Sealed<TcpStream>>),
}

impl Socket {
    /// Sends some of `bytes`; none while what was sealed before waits.
    fn offer(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(socket) => socket.write(bytes),
            Socket::Tcp(socket) => socket.offer(bytes),
        }
    }

    /// Sends what is sealed already; true when nothing waits.
    fn push(&mut self) -> io::Result<bool> {
        if let Socket::Tcp(socket) = self { socket.push() } else { Ok(true) }
    }

    /// Whether asking again would be in vain after a read that did not fill its buffer.
    fn is_dry(&self) -> bool {
        match self {
            Socket::Tcp(socket) if socket.is_sealed() => socket.is_dry(),
            _ => true,
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Unix(socket) => socket.as_fd(),
            Socket::Tcp(socket) => socket.as_fd(),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(socket) => socket.read(buf),
            Socket::Tcp(socket) => socket.read(buf),
        }
    }
}

/// How far the handshake is.
enum Phase {
    /// Nothing has been said.
    Fresh,
    Answer(ServerAuth, SessionId),
    End(Box<Asked>),
    Ready(SessionId),
    /// A last message is on its way; then the connection ends.
    Closing,
}

/// What the event loop does next with a connection.
#[derive(PartialEq, Eq, Debug)]
pub enum Next {
    /// Wait until there is more to read.
    Read,
    /// Wait until the peer takes more; nothing is read meanwhile.
    Write,
    /// More frames are waiting already, but others have their turn first.
    Again,
    Close,
}

/// A connection and its buffers.
pub struct Conn {
    socket: Socket,
    token: u64,
    /// Number of its lane, once it has one.
    lane: Option<usize>,
    /// What its messages over the fabric start with, once it sends any.
    fabric: Option<[u8; 32]>,
    /// It has waited for a lock.
    waits: bool,
    phase: Phase,
    /// Received bytes are `input[..filled]`; the rest is room.
    input: Vec<u8>,
    filled: usize,
    /// The last read took all that was there: asking again between two frames would be in vain.
    drained: bool,
    output: Vec<u8>,
    sent: usize,
    /// Descriptors that go with the first byte of `output`.
    passing: Vec<OwnedFd>,
}

impl Conn {
    pub fn new(socket: Socket, token: u64) -> Conn {
        Conn {
            socket,
            token,
            lane: None,
            fabric: None,
            waits: false,
            phase: Phase::Fresh,
            input: Vec::new(),
            filled: 0,
            drained: false,
            output: Vec::new(),
            sent: 0,
            passing: Vec::new(),
        }
    }

    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The session, once the peer has proved itself.
    pub fn session(&self) -> Option<SessionId> {
        if let Phase::Ready(session) = self.phase { Some(session) } else { None }
    }

    /// Number of its lane, if it has one.
    pub fn lane(&self) -> Option<usize> {
        self.lane
    }

    /// By what it is known at the fabric, if it is.
    pub fn fabric(&self) -> Option<[u8; 32]> {
        self.fabric
    }

    /// Whether somebody may wait for a lock on it.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Queues a reply that did not fit the connection's lane; false when the client asks for more of them without taking
    /// any: one that keeps to the rules has no more than its lane has slots.
    pub fn deliver(&mut self, frame: &[u8]) -> bool {
        let room = self.output.len() - self.sent + frame.len() <= UNTAKEN_MAX;
        if room {
            self.output.extend_from_slice(frame);
        }
        room
    }

    /// True while its peer has not proved itself.
    pub fn is_unproven(&self) -> bool {
        matches!(self.phase, Phase::Fresh | Phase::Answer(..) | Phase::End(..))
    }

    /// Takes nothing more from a peer that has not proved itself; false when it has.
    pub fn give_up(&mut self) -> bool {
        let unproven = self.is_unproven();
        if unproven {
            self.phase = Phase::Closing;
        }
        unproven
    }

    /// Serves what has arrived, until the socket runs dry, the peer stops taking replies,
    /// or the turn is over.
    pub fn turn(&mut self, service: &Service, lanes: &Lanes) -> Next {
        match self.turn_io(service, lanes) {
            Ok(next) => next,
            Err(_) => Next::Close,
        }
    }

    fn turn_io(&mut self, service: &Service, lanes: &Lanes) -> io::Result<Next> {
        if !self.flush()? {
            return Ok(Next::Write);
        }
        for _ in 0..FRAMES_PER_TURN {
            match self.complete_frame()? {
                Some(header) => {
                    if self.is_wanted(&header) {
                        self.handle(service, lanes, &header);
                    }
                    self.consume(HEADER_LEN + header.body_len());
                    if !self.flush()? {
                        return Ok(Next::Write);
                    }
                    if matches!(self.phase, Phase::Closing) {
                        return Ok(Next::Close);
                    }
                }
                None => match self.fill()? {
                    Filled::Some => {}
                    Filled::Dry => return Ok(Next::Read),
                    Filled::End => return Ok(Next::Close),
                },
            }
        }
        Ok(Next::Again)
    }

    /// Whether somebody waits for the answer, or nobody is meant to. Who has closed the connection has given the request up: it
    /// must not be carried out behind what he, or who he told, has asked for since. That is so of what lay here while we
    /// were stopped.
    fn is_wanted(&self, header: &Header) -> bool {
        let mut closed = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        header.flags & FLAG_ONE_WAY != 0 || poll(&mut closed, Some(&Timespec::default())) == Ok(0)
    }

    /// The header of the first frame, when all of the frame is here.
    fn complete_frame(&self) -> io::Result<Option<Header>> {
        let Some(header) = self.first_header()? else { return Ok(None) };
        Ok((self.filled >= HEADER_LEN + header.body_len()).then_some(header))
    }

    fn first_header(&self) -> io::Result<Option<Header>> {
        let Some(bytes) = self.input[..self.filled].first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let header = Header::decode(bytes).map_err(|e| io::Error::new(ErrorKind::InvalidData, e))?;
        if self.is_unproven() && header.body_len() > HANDSHAKE_BODY_MAX {
            return Err(io::Error::new(ErrorKind::InvalidData, "handshake frame too long"));
        }
        Ok(Some(header))
    }

    /// Reads once, with room for the rest of the frame under way. Memory grows with what
    /// has arrived, not with what a header promises.
    fn fill(&mut self) -> io::Result<Filled> {
        // In the middle of a frame the rest is on its way, and asking again costs less than waiting.
        if std::mem::take(&mut self.drained) && self.filled == 0 {
            return Ok(Filled::Dry);
        }
        let frame = self.first_header()?.map_or(0, |h| HEADER_LEN + h.body_len());
        let room = frame.saturating_sub(self.filled).clamp(READ_STEP, GROW_STEP);
        if self.input.len() < self.filled + room {
            self.input.resize(self.filled + room, 0);
        }
        match self.socket.read(&mut self.input[self.filled..]) {
            Ok(0) => Ok(Filled::End),
            Ok(count) => {
                self.filled += count;
                self.drained = self.filled < self.input.len() && self.socket.is_dry();
                Ok(Filled::Some)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Filled::Dry),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Filled::Some),
            Err(error) => Err(error),
        }
    }

    fn consume(&mut self, count: usize) {
        self.input.copy_within(count..self.filled, 0);
        self.filled -= count;
        if self.filled == 0 && self.input.len() > KEEP_MAX {
            self.input = Vec::new();
        }
    }

    /// Sends queued replies; false when the peer takes no more now.
    fn flush(&mut self) -> io::Result<bool> {
        while self.sent < self.output.len() {
            match self.send_some() {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if !self.socket.push()? {
            return Ok(false);
        }
        self.sent = 0;
        self.output.clear();
        if self.output.capacity() > KEEP_MAX {
            self.output = Vec::new();
        }
        Ok(true)
    }

    fn send_some(&mut self) -> io::Result<usize> {
        let rest = &self.output[self.sent..];
        if self.passing.is_empty() {
            return self.socket.offer(rest);
        }
        let Socket::Unix(socket) = &self.socket else { return Err(ErrorKind::InvalidInput.into()) };
        let fds: Vec<_> = self.passing.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(ErrorKind::InvalidInput.into());
        }
        let sent = sendmsg(socket, &[IoSlice::new(rest)], &mut control, SendFlags::empty())?;
        self.passing.clear();
        Ok(sent)
    }

    /// Gives the connection a lane. One that cannot have one goes on without.
    fn open_lane(&mut self, service: &Service, lanes: &Lanes, header: &Header, session: SessionId) {
        let opened = match self.lane {
            None => lanes.open(self.token, session).and_then(|(n, fds)| Ok((n, fds, service.board_fd()?))),
            Some(_) => Err(io::Error::other("this connection has one")),
        };
        let reply = match opened {
            Ok((number, fds, board)) => {
                self.lane = Some(number);
                self.passing.extend(fds.into_iter().chain([board]));
                Reply::Lane { number: number as u32 }
            }
            Err(error) => Reply::Failed { errno: Errno::EOPNOTSUPP, detail: format!("no lane: {error}") },
        };
        service.put_plain(header, &reply, &mut self.output);
    }

    /// Lets the client send messages over the fabric; to be called when the daemon offers one.
    fn open_fabric(&mut self, service: &Service, header: &Header, session: SessionId, request: Request) {
        let admitted = match (request, service.fabric(), self.fabric) {
            (Request::OpenFabric { name, replies }, Some(fabric), None) => {
                fabric.admit(self.token, session, &name, replies)
            }
            _ => Err(io::Error::other(
                "this connection has one, or the daemon none; start the pool with --fabric",
            )),
        };
        let reply = match admitted {
            Ok((token, reply)) => {
                self.fabric = Some(token);
                reply
            }
            Err(error) => Reply::Failed { errno: Errno::EOPNOTSUPP, detail: format!("no fabric: {error}") },
        };
        service.put_plain(header, &reply, &mut self.output);
    }

    fn watch(&self, service: &Service, session: SessionId) -> Reply {
        match service.watch(session, self.token) {
            Ok(()) => Reply::Done {},
            Err(error) => Reply::Failed { errno: Errno::EIO, detail: format!("no leases: {error}") },
        }
    }

    fn queue_for_lock(&mut self, service: &Service, session: SessionId, header: &Header, request: &Request) {
        Counters::add(&service.counters.requests, 1);
        let reply = if let Request::WaitLock { ino, lock } = request {
            self.waits = true;
            let ticket = Ticket { connection: self.token, request: header.id };
            service.wait_for_lock(session, *ino, lock, ticket)
        } else {
            service.waits_no_more(self.token);
            Some(Reply::Done {})
        };
        if let Some(reply) = reply {
            service.put_plain(header, &reply, &mut self.output);
        }
    }

    fn open_direct(&mut self, service: &Service, header: &Header, ino: Ino) {
        Counters::add(&service.counters.requests, 1);
        let never = || StoreError::never_lent(ino, "on several tiers data move while they are used");
        let opened = service.chunks().only().ok_or_else(never).and_then(|store| store.open_read_only(ino));
        let reply = match opened {
            Ok(Some(fds)) => {
                self.passing.extend(fds);
                Reply::Direct {}
            }
            Ok(None) => Reply::Failed { errno: Errno::ENOENT, detail: String::new() },
            Err(error) => Reply::Failed { errno: error.errno(), detail: error.to_string() },
        };
        service.put_plain(header, &reply, &mut self.output);
    }

    fn borrow(&mut self, service: &Service, header: &Header, session: SessionId, ino: Ino) {
        let Socket::Unix(socket) = &self.socket else { return };
        Counters::add(&service.counters.requests, 1);
        let lent = peer_of(socket)
            .map_err(|e| StoreError::refused(ino, &e.to_string()))
            .and_then(|pid| service.lend(session, pid, ino));
        let reply = match lent {
            Ok(Granted { number, fds }) => {
                self.passing.extend(fds);
                Reply::Borrowed { number }
            }
            Err(error) => refusal(&error),
        };
        service.put_plain(header, &reply, &mut self.output);
    }

    fn handle(&mut self, service: &Service, lanes: &Lanes, header: &Header) {
        let body = &self.input[HEADER_LEN..HEADER_LEN + header.body_len()];
        let (meta, bulk) = body.split_at(header.meta_len as usize);
        if let Phase::Ready(session) = self.phase {
            // Descriptors go with the first byte of a reply: nothing may be queued before it.
            let passes = brings_descriptors(header.kind) && self.output.is_empty();
            if passes && matches!(self.socket, Socket::Unix(_)) {
                match Request::decode(header.kind, meta) {
                    Ok(Request::OpenLane {}) => return self.open_lane(service, lanes, header, session),
                    Ok(Request::OpenDirect { ino }) => return self.open_direct(service, header, ino),
                    Ok(Request::Borrow { ino }) => return self.borrow(service, header, session, ino),
                    _ => {}
                }
            }
            if opens_fabric(header.kind)
                && let Ok(request) = Request::decode(header.kind, meta)
            {
                return self.open_fabric(service, header, session, request);
            }
            if watches(header.kind) && Request::decode(header.kind, meta).is_ok() {
                let reply = self.watch(service, session);
                return service.put_plain(header, &reply, &mut self.output);
            }
            if queues_for_lock(header.kind)
                && let Ok(request) = Request::decode(header.kind, meta)
            {
                return self.queue_for_lock(service, session, header, &request);
            }
            service.serve(session, header, meta, bulk, &mut self.output);
            return;
        }
        let message = Handshake::decode(header.kind, meta);
        let phase = std::mem::replace(&mut self.phase, Phase::Closing);
        let follows = self.filled > HEADER_LEN + header.body_len();
        let (reply, phase) = match (&mut self.socket, phase, message) {
            (Socket::Unix(_), Phase::Fresh, Ok(Handshake::Hello { version, instance, session, nonce })) => {
                challenge(service, (version, instance), session, nonce)
            }
            (Socket::Unix(_), Phase::Answer(auth, session), Ok(Handshake::Answer { proof })) => {
                if auth.accepts(service.secret(), &proof) {
                    (service.welcome(), Phase::Ready(session))
                } else {
                    refuse("the pool's secret is wrong")
                }
            }
            (Socket::Tcp(_), Phase::Fresh, Ok(Handshake::Begin { version, instance, encrypted, noise })) => {
                answer(service, (version, instance), encrypted, &noise)
            }
            // What follows End before Welcome is no record, and was sent by somebody who cannot wait.
            (Socket::Tcp(socket), Phase::End(asked), Ok(Handshake::End { noise })) if !follows => {
                admit(service, *asked, &noise, socket)
            }
            // Of releases before this one.
            (Socket::Tcp(_), Phase::Fresh, Ok(Handshake::Hello { version, instance, .. })) => {
                misdirected(service, (version, instance)).unwrap_or_else(|| refuse("on TCP, Begin is first"))
            }
            _ => refuse("not a handshake"),
        };
        match phase {
            Phase::Closing => service.refused(),
            Phase::Ready(session) => service.session_begins(session),
            _ => {}
        }
        self.phase = phase;
        service.put_handshake(&reply, &mut self.output);
    }
}

enum Filled {
    Some,
    Dry,
    End,
}

fn refuse(reason: &str) -> (Handshake, Phase) {
    (Handshake::Refused { reason: reason.into() }, Phase::Closing)
}

/// Why who says this has come to the wrong daemon, if he has.
fn misdirected(service: &Service, (version, instance): (u16, InstanceId)) -> Option<(Handshake, Phase)> {
    if instance != service.instance() {
        return Some(refuse("this daemon belongs to another pool"));
    }
    let other = format!("protocol version {version} is not {PROTOCOL_VERSION}; use the same release");
    (version != PROTOCOL_VERSION).then(|| refuse(&other))
}

fn challenge(
    service: &Service,
    (version, instance): (u16, InstanceId),
    session: SessionId,
    nonce: Nonce,
) -> (Handshake, Phase) {
    if let Some(refused) = misdirected(service, (version, instance)) {
        return refused;
    }
    let auth = ServerAuth::new(instance, nonce);
    let (nonce, proof) = auth.challenge(service.secret());
    (Handshake::Challenge { version: PROTOCOL_VERSION, nonce, proof }, Phase::Answer(auth, session))
}

/// Answers who comes over TCP.
fn answer(service: &Service, about: (u16, InstanceId), encrypted: bool, noise: &[u8]) -> (Handshake, Phase) {
    if let Some(refused) = misdirected(service, about) {
        return refused;
    }
    let terms = service.terms();
    if encrypted == terms.encryption.is_off() {
        let word = terms.encryption.word();
        return refuse(&format!("this pool was started with encrypt={word}; is the pool file out of date?"));
    }
    match Asked::answer(&terms, noise) {
        None => refuse("the pool's secret is wrong"),
        Some((_, member, _)) if member != service.index() => {
            refuse(&format!("this is member {} of the pool, not {member}", service.index()))
        }
        Some((asked, _, noise)) => (Handshake::Middle { noise }, Phase::End(Box::new(asked))),
    }
}

/// Welcomes who has begun, if he could go on; what follows is sealed where the pool wants that.
fn admit(
    service: &Service,
    asked: Asked,
    noise: &[u8],
    socket: &mut Sealed<TcpStream>,
) -> (Handshake, Phase) {
    let Some((greeted, session)) = asked.admit(noise) else { return refuse("the pool's secret is wrong") };
    if !service.terms().encryption.is_off() {
        greeted.seal(socket);
    }
    (service.welcome(), Phase::Ready(session))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_takes_no_replies_is_not_served_without_bound() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut conn = Conn::new(Socket::Unix(ours), 1);
        let frame = vec![0; HEADER_LEN + META_MAX + BULK_MAX];
        assert!((0..SLOTS).all(|_| conn.deliver(&frame)));
        assert!(!conn.deliver(&[0]));
    }
}
