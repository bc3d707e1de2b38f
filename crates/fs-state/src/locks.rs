//! Byte-range and whole-file locks of objects at home here.
//!
//! POSIX locks belong to a process: (session, owner). Locks on open files (`Flock`) and the
//! pool's own rename lock belong to an owner number alone, because forked processes with
//! sessions of their own share them. Waiting is done by clients, which ask again.

use std::collections::HashMap;
use tidepool_types::{Ino, SessionId};
use tidepool_wire::message::{LockKind, LockMode, LockRequest};

#[derive(Clone, Debug)]
struct Held {
    session: SessionId,
    lock: LockRequest,
}

impl Held {
    fn same_owner(&self, session: SessionId, lock: &LockRequest) -> bool {
        self.lock.kind == lock.kind
            && self.lock.owner == lock.owner
            && (lock.kind != LockKind::Posix || self.session == session)
    }

    fn overlaps(&self, lock: &LockRequest) -> bool {
        self.lock.kind == lock.kind && self.lock.start <= lock.end && lock.start <= self.lock.end
    }
}

/// Locks held, by object. Volatile, as `docs/consistency.md` says.
#[derive(Default)]
pub struct LockTable {
    by_object: HashMap<Ino, Vec<Held>>,
}

impl LockTable {
    /// A lock of another owner that `lock` cannot coexist with.
    pub fn conflict(&self, ino: Ino, session: SessionId, lock: &LockRequest) -> Option<LockRequest> {
        let held = self.by_object.get(&ino)?;
        held.iter()
            .find(|h| {
                !h.same_owner(session, lock)
                    && h.overlaps(lock)
                    && (h.lock.mode == LockMode::Write || lock.mode == LockMode::Write)
            })
            .map(|h| h.lock.clone())
    }

    /// Sets or releases a range; false when another owner is in the way. A range the owner
    /// already has is split where the new one covers only part of it, as fcntl(2) demands.
    pub fn set(&mut self, ino: Ino, session: SessionId, lock: &LockRequest) -> bool {
        if lock.mode != LockMode::Unlock && self.conflict(ino, session, lock).is_some() {
            return false;
        }
        let held = self.by_object.entry(ino).or_default();
        let mut kept = Vec::with_capacity(held.len() + 2);
        for old in held.drain(..) {
            if old.same_owner(session, lock) && old.overlaps(lock) {
                kept.extend(outside(&old, lock));
            } else {
                kept.push(old);
            }
        }
        if lock.mode != LockMode::Unlock {
            kept.push(Held { session, lock: lock.clone() });
        }
        if kept.is_empty() {
            self.by_object.remove(&ino);
        } else {
            self.by_object.insert(ino, kept);
        }
        true
    }

    pub fn release_session(&mut self, session: SessionId) {
        self.by_object.retain(|_, held| {
            held.retain(|h| h.session != session);
            !held.is_empty()
        });
    }
}

/// The parts of `old` that lie before and after `lock`.
fn outside(old: &Held, lock: &LockRequest) -> impl Iterator<Item = Held> {
    let part =
        |start, end| Held { session: old.session, lock: LockRequest { start, end, ..old.lock.clone() } };
    let before = (old.lock.start < lock.start).then(|| part(old.lock.start, lock.start - 1));
    let after = (old.lock.end > lock.end).then(|| part(lock.end + 1, old.lock.end));
    before.into_iter().chain(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId([1; 16]);
    const B: SessionId = SessionId([2; 16]);
    const INO: Ino = Ino(5);

    fn lock(owner: u64, mode: LockMode, start: u64, end: u64) -> LockRequest {
        LockRequest { owner, kind: LockKind::Posix, start, end, mode, pid: 7 }
    }

    #[test]
    fn readers_share_and_writers_exclude() {
        let mut table = LockTable::default();
        assert!(table.set(INO, A, &lock(1, LockMode::Read, 0, 9)));
        assert!(table.set(INO, B, &lock(1, LockMode::Read, 5, 20)));
        assert!(!table.set(INO, B, &lock(1, LockMode::Write, 9, 9)));
        assert!(table.set(INO, B, &lock(1, LockMode::Write, 10, 20)));
        table.release_session(A);
        assert!(table.set(INO, B, &lock(1, LockMode::Write, 0, 9)));
    }

    #[test]
    fn unlocking_the_middle_leaves_both_ends() {
        let mut table = LockTable::default();
        assert!(table.set(INO, A, &lock(1, LockMode::Write, 0, u64::MAX)));
        assert!(table.set(INO, A, &lock(1, LockMode::Unlock, 10, 19)));
        assert_eq!(table.conflict(INO, B, &lock(1, LockMode::Read, 10, 19)), None);
        for (start, end) in [(0, 9), (20, u64::MAX)] {
            let held = table.conflict(INO, B, &lock(1, LockMode::Read, start, end)).unwrap();
            assert_eq!((held.start, held.end), (start, end));
        }
    }

    #[test]
    fn open_file_locks_ignore_the_session() {
        let flock = |owner, mode| LockRequest { kind: LockKind::Flock, ..lock(owner, mode, 0, u64::MAX) };
        let mut table = LockTable::default();
        assert!(table.set(INO, A, &flock(3, LockMode::Write)));
        assert!(table.set(INO, B, &flock(3, LockMode::Read)), "the same open file in a forked process");
        assert!(!table.set(INO, B, &flock(4, LockMode::Write)));
    }

    /// Random requests against a byte-wise oracle of 24 bytes and three owners.
    #[test]
    fn ranges_match_a_bytewise_oracle() {
        let mut seed = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = |bound: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % bound
        };
        let mut table = LockTable::default();
        let mut oracle = [[LockMode::Unlock; 24]; 3];
        for step in 0..20_000 {
            let owner = next(3) as usize;
            let (x, y) = (next(24), next(24));
            let (start, end) = (x.min(y), x.max(y));
            let mode = [LockMode::Read, LockMode::Write, LockMode::Unlock][next(3) as usize];
            let range = start as usize..=end as usize;
            let free = mode == LockMode::Unlock
                || (0..3).filter(|o| *o != owner).all(|o| {
                    oracle[o][range.clone()].iter().all(|held| match held {
                        LockMode::Unlock => true,
                        LockMode::Read => mode == LockMode::Read,
                        LockMode::Write => false,
                    })
                });
            let granted = table.set(INO, A, &lock(owner as u64, mode, start, end));
            assert_eq!(granted, free, "step {step}");
            if granted {
                oracle[owner][range].fill(mode);
            }
        }
    }
}
