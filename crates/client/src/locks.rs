//! Advisory locks.

use crate::calls::expect_reply;
use crate::{Client, FsError, LockKind, LockMode};
use tidepool_types::Ino;
use tidepool_wire::message::{LockRequest, Reply, Request};

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

impl Client {
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
