//! The connection to a daemon of the same node: its Unix socket and, once it is clear that
//! more than a few requests will come, a lane in shared memory.

use crate::Link;
use crate::socket::{Received, SocketLink};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use tidepool_shm::{Bell, Board, ClientLane, Posted, Waited};
use tidepool_wire::frame::{FLAG_ONE_WAY, HEADER_LEN, Header};
use tidepool_wire::message::{Reply, Request};

/// Requests that go over the socket first. Making a lane costs about as much as twenty requests
/// save by it, and most processes of a shell script send fewer.
const SOCKET_REQUESTS: u32 = 16;
/// Most bytes of an answer that brings descriptors, or says why not.
const ANSWER_MAX: usize = 8192;

/// Where a request went, and so where its reply comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Via {
    Socket,
    Lane,
}

enum Lane {
    /// Not asked for yet.
    Later,
    /// Not wanted, or the daemon gave none.
    Never,
    Open(Box<OpenLane>),
}

struct OpenLane {
    client: ClientLane,
    bell: Bell,
    number: usize,
}

/// A Unix socket and a lane as one [`Link`].
pub struct LocalLink {
    socket: SocketLink<UnixStream>,
    lane: Lane,
    requests: u32,
    /// Requests without a reply so far, oldest first.
    waiting: VecDeque<Via>,
    timeout: Duration,
    board: Option<Arc<Board>>,
}

impl LocalLink {
    /// Waits for as long as the stream does, until [`Link::set_timeout`] says how long.
    pub fn new(stream: UnixStream, shared_memory: bool) -> LocalLink {
        LocalLink {
            socket: SocketLink::new(stream),
            lane: if shared_memory { Lane::Later } else { Lane::Never },
            requests: 0,
            waiting: VecDeque::new(),
            timeout: Duration::MAX,
            board: None,
        }
    }

    /// Asks for a lane when it is time to. A daemon that gives none (it has too many, or no
    /// memory) is not asked again.
    fn upgrade(&mut self) -> io::Result<()> {
        self.requests += 1;
        if self.requests > SOCKET_REQUESTS && self.waiting.is_empty() {
            self.lane = self.open_lane()?;
        }
        Ok(())
    }

    fn open_lane(&mut self) -> io::Result<Lane> {
        let (reply, fds) = self.ask(&Request::OpenLane {})?;
        let (Reply::Lane { number }, [lane, bell, board]) = (reply, &fds[..]) else { return Ok(Lane::Never) };
        self.board = Board::open(board).ok().map(Arc::new);
        match (ClientLane::open(lane), Bell::open(bell)) {
            (Ok(client), Ok(bell)) => {
                Ok(Lane::Open(Box::new(OpenLane { client, bell, number: number as usize })))
            }
            // No memory to map it here. The daemon lets go of it when the connection ends.
            _ => Ok(Lane::Never),
        }
    }

    /// Only while no other reply is due on the socket.
    fn ask(&mut self, request: &Request) -> io::Result<(Reply, Vec<OwnedFd>)> {
        let mut meta = Vec::new();
        request.encode(&mut meta);
        let header = Header { kind: request.kind(), meta_len: meta.len() as u32, ..Header::default() };
        self.socket.send(&header, &meta, &[])?;
        receive_with_descriptors(&mut self.socket)
    }

    /// Puts a request into the lane; false when it has to go over the socket.
    fn post(&mut self, header: &Header, meta: &[u8], bulk: &[u8]) -> io::Result<bool> {
        let Lane::Open(lane) = &mut self.lane else { return Ok(false) };
        let one_way = header.flags & FLAG_ONE_WAY != 0;
        let bytes = header.encode();
        let mut posted = lane.client.post(&bytes, meta, bulk, one_way);
        if posted == Posted::Full && lane.client.gets_room() {
            // Requests that nobody waits for hold slots, and perhaps nobody was woken for them. Over the socket this one
            // could overtake those whose replies do not fit the lane.
            lane.bell.ring(lane.number);
            let socket = &self.socket;
            as_io(lane.client.wait_for_room(self.timeout, || socket.is_stale()))?;
            posted = lane.client.post(&bytes, meta, bulk, one_way);
        }
        match posted {
            Posted::Yes if one_way => lane.bell.mark(lane.number),
            Posted::Yes => lane.bell.ring(lane.number),
            Posted::Full | Posted::TooLong => return Ok(false),
        }
        Ok(true)
    }
}

/// What a wait that found nothing means.
fn as_io(waited: Waited) -> io::Result<()> {
    match waited {
        Waited::Here | Waited::Elsewhere => Ok(()),
        Waited::NotBegun => Err(io::Error::new(io::ErrorKind::NotConnected, "the daemon is gone")),
        Waited::Lost => Err(io::ErrorKind::UnexpectedEof.into()),
        Waited::TimedOut => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl Link for LocalLink {
    fn send(&mut self, header: &Header, meta: &[u8], bulk: &[u8]) -> io::Result<()> {
        if matches!(self.lane, Lane::Later) {
            self.upgrade()?;
        }
        let via = if self.post(header, meta, bulk)? {
            Via::Lane
        } else {
            self.socket.send(header, meta, bulk)?;
            Via::Socket
        };
        if header.flags & FLAG_ONE_WAY == 0 {
            self.waiting.push_back(via);
        }
        Ok(())
    }

    fn receive(&mut self, bulk: &mut [u8]) -> io::Result<Received<'_>> {
        let via = self.waiting.pop_front().unwrap_or(Via::Socket);
        let (Lane::Open(lane), Via::Lane) = (&mut self.lane, via) else { return self.socket.receive(bulk) };
        let socket = &self.socket;
        let waited = lane.client.wait(self.timeout, || socket.is_stale());
        if waited == Waited::Elsewhere {
            lane.client.next();
            return self.socket.receive(bulk);
        }
        as_io(waited)?;
        let invalid = |e: &str| io::Error::new(io::ErrorKind::InvalidData, e.to_string());
        let header = Header::decode(&lane.client.header()).map_err(|e| invalid(&e.to_string()))?;
        let Some(target) = bulk.get_mut(..header.bulk_len as usize) else {
            return Err(invalid("more data than was asked for"));
        };
        let meta = lane.client.fetch(header.meta_len as usize, target);
        Ok(Received { header, meta: meta.map_err(|_| invalid("more than a slot holds"))? })
    }

    fn ask_for_descriptors(&mut self, request: &Request) -> io::Result<Option<(Reply, Vec<OwnedFd>)>> {
        if self.waiting.is_empty() { self.ask(request).map(Some) } else { Ok(None) }
    }

    fn share_memory(&mut self) -> io::Result<()> {
        if matches!(self.lane, Lane::Later) && self.waiting.is_empty() {
            self.lane = self.open_lane()?;
        }
        Ok(())
    }

    fn board(&self) -> Option<&Arc<Board>> {
        self.board.as_ref()
    }

    fn is_stale(&self) -> bool {
        match &self.lane {
            // A daemon that was killed shows at the next request, which it has then not begun.
            Lane::Open(lane) => lane.client.is_closed(),
            _ => self.socket.is_stale(),
        }
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.socket()
    }

    fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.timeout = timeout;
        self.socket.set_timeout(timeout)
    }
}

/// Receives a small frame and the descriptors sent with it.
fn receive_with_descriptors(socket: &mut SocketLink<UnixStream>) -> io::Result<(Reply, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; ANSWER_MAX];
    // Descriptors come with the first byte of the frame; nothing follows the frame.
    let got =
        recvmsg(socket.stream(), &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let fds = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let fds = fds.collect();
    let invalid = |e: &str| io::Error::new(io::ErrorKind::InvalidData, e.to_string());
    let frame = bytes.get(..got.bytes).unwrap_or_default();
    // The daemon sends so small a frame in one piece.
    let (head, body) = frame.split_first_chunk::<HEADER_LEN>().ok_or_else(|| invalid("a short answer"))?;
    let header = Header::decode(head).map_err(|e| invalid(&e.to_string()))?;
    if body.len() != header.body_len() {
        return Err(invalid("an answer of another length than it says"));
    }
    let reply = Reply::decode(header.kind, body).map_err(|e| invalid(&e.to_string()))?;
    Ok((reply, fds))
}
