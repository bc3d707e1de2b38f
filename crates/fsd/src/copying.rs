//! Copying data from one file to another without the client: from this daemon's chunks, or from a peer's.

use crate::counters::Counters;
use crate::serve::Service;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tidepool_fs_state::Context;
use tidepool_store::StoreError;
use tidepool_transport::{Link, LocalNode, connect, random_bytes};
use tidepool_types::{CHUNK_SIZE_MAX, DaemonIndex, Errno, Ino, SessionId};
use tidepool_wire::frame::Header;
use tidepool_wire::message::{Reply, Request};

/// Idle connections kept per peer.
const IDLE_MAX: usize = 2;

/// A piece of data and where it goes.
#[derive(Clone, Copy)]
pub struct Copied {
    pub from: Ino,
    pub at: u64,
    pub source: DaemonIndex,
    pub to: Ino,
    pub offset: u64,
    pub len: u32,
}

/// Connections to peers that data are fetched from.
pub struct PeerLinks {
    idle: Mutex<HashMap<DaemonIndex, Vec<Box<dyn Link>>>>,
    free: AtomicUsize,
}

/// The right to wait for a peer. Fewer than there are workers: two daemons that waited for each other with all of theirs
/// would wait for ever.
struct Permit<'p>(&'p AtomicUsize);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

impl PeerLinks {
    /// `workers`: threads that serve requests.
    pub fn new(workers: usize) -> PeerLinks {
        PeerLinks { idle: Mutex::default(), free: AtomicUsize::new(workers / 2) }
    }

    fn permit(&self) -> Option<Permit<'_>> {
        let take = |free: usize| free.checked_sub(1);
        self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).ok().map(|_| Permit(&self.free))
    }

    fn idle(&self) -> MutexGuard<'_, HashMap<DaemonIndex, Vec<Box<dyn Link>>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, peer: DaemonIndex) -> Option<Box<dyn Link>> {
        let links = &mut *self.idle();
        std::iter::from_fn(|| links.get_mut(&peer)?.pop()).find(|link| !link.is_stale())
    }

    fn put_back(&self, peer: DaemonIndex, link: Box<dyn Link>) {
        let mut idle = self.idle();
        let links = idle.entry(peer).or_default();
        if links.len() < IDLE_MAX {
            links.push(link);
        }
    }
}

impl Service {
    /// Copies a piece; the change in stored blocks. `EAGAIN` when the client has to move it by itself.
    pub fn copy(&self, ctx: &Context, piece: &Copied) -> Reply {
        if piece.len > CHUNK_SIZE_MAX {
            let detail = format!("{} bytes are more than one request may copy", piece.len);
            return Reply::Failed { errno: Errno::EINVAL, detail };
        }
        let data = match piece.source == self.index() {
            true => self.own_data(ctx.session, piece),
            false => match self.peers_data(piece) {
                Ok(data) => Ok(data),
                Err(reply) => return *reply,
            },
        };
        let stored = data.and_then(|data| self.put_copy(ctx, piece, &data));
        self.blocks_reply(stored)
    }

    fn own_data(&self, session: SessionId, piece: &Copied) -> Result<Vec<u8>, StoreError> {
        let mut data = Vec::new();
        self.owning(session, piece.from, || {
            data.clear();
            self.chunks().read(piece.from, piece.at, piece.len as usize, &mut data)
        })?;
        Counters::add(&self.counters.bytes_read, data.len() as u64);
        Ok(data)
    }

    fn peers_data(&self, piece: &Copied) -> Result<Vec<u8>, Box<Reply>> {
        let failed = |errno, detail: String| Box::new(Reply::Failed { errno, detail });
        let Some(_permit) = self.peer_links().permit() else {
            return Err(failed(Errno::EAGAIN, "all others that fetch data are busy".into()));
        };
        // A client that cannot reach the peer either names it better than we can.
        let fetched = self.fetch(piece);
        fetched.map_err(|e| failed(Errno::EAGAIN, format!("daemon {}: {e}", piece.source)))?
    }

    /// The outer error is one of the connection, the inner one the peer's answer.
    fn fetch(&self, piece: &Copied) -> io::Result<Result<Vec<u8>, Box<Reply>>> {
        let mut link = match self.peer_links().take(piece.source) {
            Some(link) => link,
            None => self.connect_to(piece.source)?,
        };
        let request = Request::Read { ino: piece.from, offset: piece.at, len: piece.len };
        let mut meta = Vec::new();
        request.encode(&mut meta);
        let header = Header { kind: request.kind(), meta_len: meta.len() as u32, ..Header::default() };
        link.send(&header, &meta, &[])?;
        let mut data = vec![0; piece.len as usize];
        let received = link.receive(&mut data)?;
        let (kind, count) = (received.header.kind, received.header.bulk_len as usize);
        let reply = Reply::decode(kind, received.meta)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))?;
        self.peer_links().put_back(piece.source, link);
        data.truncate(count);
        Ok(match reply {
            Reply::Data { .. } => Ok(data),
            other => Err(Box::new(other)),
        })
    }

    fn connect_to(&self, peer: DaemonIndex) -> io::Result<Box<dyn Link>> {
        let member = self.members().into_iter().find(|member| member.index == peer);
        let member = member.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such daemon"))?;
        let identity = self.identity(SessionId(random_bytes()));
        let local = LocalNode { answer: crate::PEER_ANSWER_MAX, ..LocalNode::detect() };
        let connected = connect(&member, &local, &identity, |fd| fd);
        Ok(connected.map_err(|e| io::Error::other(e.to_string()))?.link)
    }

    /// What the source has not is a hole, or lies behind its end: zeros.
    fn put_copy(&self, ctx: &Context, piece: &Copied, data: &[u8]) -> Result<i64, StoreError> {
        let mut blocks = 0;
        if !data.is_empty() {
            blocks += self.owning_quietly(piece.to, || self.store(piece.to, piece.offset, data))?;
            self.count_written(ctx, piece.to, piece.offset, data.len());
        }
        let missing = u64::from(piece.len) - data.len() as u64;
        if missing > 0 {
            let hole = piece.offset + data.len() as u64;
            blocks += self.owning(ctx.session, piece.to, || self.chunks().punch(piece.to, hole, missing))?;
        }
        Ok(blocks)
    }
}
