//! Advisory locks.

use crate::calls::expect_reply;
use crate::{Client, FsError, LockKind, LockMode};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use tidepool_transport::Link;
use tidepool_types::{Errno, Ino};
use tidepool_wire::frame::Header;
use tidepool_wire::message::{LockRequest, Reply, Request};

/// `pid` of locks that belong to open files: no process can wait for itself through them.
pub const PID_OPEN_FILE: u32 = u32::MAX;

/// Who holds a lock. POSIX: unique within this process; open-file locks: within the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockOwner(pub u64);

/// Bytes `start` to `end`, inclusive; `u64::MAX` as `end` means to the end of file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockRange {
    pub start: u64,
    pub end: u64,
}

impl LockRange {
    pub const ALL: LockRange = LockRange { start: 0, end: u64::MAX };
}

/// Somebody else's lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldLock {
    pub range: LockRange,
    pub mode: LockMode,
    pub pid: u32,
}

/// A lock to be waited for.
#[derive(Clone, Copy, Debug)]
pub struct LockWish {
    pub ino: Ino,
    pub owner: LockOwner,
    pub kind: LockKind,
    pub range: LockRange,
    pub mode: LockMode,
    /// Of the process, or [`PID_OPEN_FILE`].
    pub pid: u32,
}

impl LockWish {
    fn request(&self) -> LockRequest {
        let LockWish { owner, kind, range, mode, pid, .. } = *self;
        LockRequest { owner: owner.0, kind, start: range.start, end: range.end, mode, pid }
    }
}

/// What a look at the queue shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Queued {
    Waits,
    /// The lock can be taken, for a moment.
    Turn,
    /// The daemon is gone, and with it the queue.
    Lost,
}

/// A place in the queue for a lock. Who drops it has left it a moment later; who leaves it, at once.
///
/// ```text
/// Heard ──PROBE_EVERY──▶ Asked (how are you?) ──an answer──▶ Heard
///                          └──the pool's limit──▶ silent: EIO
/// ```
pub struct LockPlace {
    link: Box<dyn Link>,
    host: String,
    /// When the daemon was last heard of, or asked how it is.
    since: Instant,
    asked: bool,
    /// What to say when it does not answer, and after how long.
    silence: FsError,
    limit: Duration,
}

/// Ids of the requests on a place's connection.
const WAIT_ID: u64 = 1;
const LEAVE_ID: u64 = 2;
const PROBE_ID: u64 = 3;
/// How long a waiter lets a daemon say nothing before it asks whether it is there; a quarter of the limit where that is less.
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// Who leaves waits so long for the daemon to say that it has understood. One that is stopped finds the connection closed
/// when it goes on, which means the same.
const LEAVE_MAX: Duration = Duration::from_secs(1);

impl LockPlace {
    /// Readable when there is something to see.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.link.socket()
    }

    /// Nobody is kept waiting for us any more when this returns.
    pub fn leave(mut self) {
        let header = Header { kind: Request::LeaveQueue {}.kind(), id: LEAVE_ID, ..Header::default() };
        if self.link.set_timeout(LEAVE_MAX.min(self.limit)).is_ok()
            && self.link.send(&header, &[], &[]).is_ok()
        {
            // One that is lost has left as well.
            while self.link.receive(&mut []).is_ok_and(|received| received.header.id != LEAVE_ID) {}
        }
    }

    /// Does not wait; to be called a few times in a second, so that a daemon that is stopped is noticed. An error: the lock is
    /// refused, or the daemon has not said anything for as long as the pool allows (EIO).
    pub fn look(&mut self) -> Result<Queued, FsError> {
        if !self.link.is_stale() {
            return self.watch();
        }
        let Ok(received) = self.link.receive(&mut []) else { return Ok(Queued::Lost) };
        if received.header.id == PROBE_ID {
            (self.asked, self.since) = (false, Instant::now());
            return Ok(Queued::Waits);
        }
        match Reply::decode(received.header.kind, received.meta) {
            Ok(Reply::Done {}) => Ok(Queued::Turn),
            Ok(Reply::Failed { errno, detail }) if detail.is_empty() => Err(errno.into()),
            Ok(Reply::Failed { errno, detail }) => {
                Err(FsError::new(errno, format!("node {}: {detail}", self.host)))
            }
            other => Err(FsError::new(Errno::EPROTO, format!("node {}: locks: {other:?}", self.host))),
        }
    }

    /// Nothing has come.
    fn watch(&mut self) -> Result<Queued, FsError> {
        let silent = self.since.elapsed();
        if self.asked {
            return if silent > self.limit { Err(self.silence.clone()) } else { Ok(Queued::Waits) };
        }
        if silent >= PROBE_EVERY.min(self.limit / 4) {
            let header = Header { kind: Request::Ping {}.kind(), id: PROBE_ID, ..Header::default() };
            if self.link.send(&header, &[], &[]).is_err() {
                return Ok(Queued::Lost);
            }
            (self.asked, self.since) = (true, Instant::now());
        }
        Ok(Queued::Waits)
    }
}

impl Client {
    /// Queues for a lock. When its turn has come, [`Client::lock`] takes it, while the place is kept.
    pub fn queue_for_lock(&self, wish: &LockWish) -> Result<LockPlace, FsError> {
        let daemon = wish.ino.home();
        let mut link = self.own_link(daemon)?;
        let request = Request::WaitLock { ino: wish.ino, lock: wish.request() };
        let mut meta = Vec::new();
        request.encode(&mut meta);
        let (kind, meta_len) = (request.kind(), meta.len() as u32);
        let header = Header { kind, id: WAIT_ID, meta_len, ..Header::default() };
        let host = self.host(daemon).to_string();
        link.send(&header, &meta, &[]).map_err(|e| FsError::new(Errno::EIO, format!("node {host}: {e}")))?;
        let (silence, limit) = (self.silence(daemon, request.name()), self.answer_limit());
        Ok(LockPlace { link, host, since: Instant::now(), asked: false, silence, limit })
    }

    /// Sets or releases a lock at once; `EAGAIN` when another owner is in the way.
    pub fn lock(
        &self,
        ino: Ino,
        owner: LockOwner,
        kind: LockKind,
        range: LockRange,
        mode: LockMode,
        pid: u32,
    ) -> Result<(), FsError> {
        if mode == LockMode::Unlock {
            // Who gets the lock next is to see what was done under it.
            self.settle(ino)?;
        }
        let lock = LockRequest { owner: owner.0, kind, start: range.start, end: range.end, mode, pid };
        let reply = self.request(ino.home(), &Request::Lock { ino, lock })?;
        expect_reply!(self, ino.home(), reply, Reply::Done {} => ())
    }

    /// A lock that would be in the way.
    pub fn test_lock(
        &self,
        ino: Ino,
        owner: LockOwner,
        kind: LockKind,
        range: LockRange,
        mode: LockMode,
    ) -> Result<Option<HeldLock>, FsError> {
        let lock = LockRequest { owner: owner.0, kind, start: range.start, end: range.end, mode, pid: 0 };
        let reply = self.request(ino.home(), &Request::TestLock { ino, lock })?;
        let held = expect_reply!(self, ino.home(), reply, Reply::LockHeld { lock } => lock)?;
        Ok(held.map(|l| HeldLock {
            range: LockRange { start: l.start, end: l.end },
            mode: l.mode,
            pid: l.pid,
        }))
    }
}
