//! Byte-range and whole-file locks of objects at home here.
//!
//! POSIX locks belong to a process: (session, owner). Locks on open files (`Flock`) and the
//! pool's own rename lock belong to an owner number alone, because forked processes with
//! sessions of their own share them. Who waits is in `waiting.rs`.
//!
//! Of each owner the locks of an object are kept as ranges that do not overlap, neighbours of one mode as one: what F_GETLK tells is what
//! fcntl(2) says, and a process that locks a file byte by byte costs no more than its ranges.

use std::collections::{BTreeMap, HashMap};
use tidepool_types::{Ino, SessionId};
use tidepool_wire::message::{LockKind, LockMode, LockRequest};

/// Ranges that a daemon keeps, of all objects and owners. More are refused: each takes memory that its asker does not pay for.
const RANGES_MAX: usize = 1 << 20;

/// Whose a lock is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Owner {
    kind: LockKind,
    /// Of POSIX locks alone.
    session: Option<SessionId>,
    number: u64,
}

impl Owner {
    pub(crate) fn of(session: SessionId, lock: &LockRequest) -> Owner {
        let session = (lock.kind == LockKind::Posix).then_some(session);
        Owner { kind: lock.kind, session, number: lock.owner }
    }
}

/// Whether locks of different owners cannot share a byte.
pub(crate) fn excludes(one: LockMode, other: LockMode) -> bool {
    one == LockMode::Write || other == LockMode::Write
}

/// A range from its start, which is its key, to `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Held {
    end: u64,
    mode: LockMode,
    pid: u32,
    /// Who asked for it last: its end ends what it holds of an open file's, too.
    session: SessionId,
}

/// The ranges of one owner, by their starts.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, Held>);

impl Ranges {
    /// The start of the first range that ends at `from` or behind it.
    fn first_from(&self, from: u64) -> u64 {
        let before = self.0.range(..from).next_back();
        before.filter(|(_, held)| held.end >= from).map_or(from, |(start, _)| *start)
    }

    /// The first one in the way of a lock.
    fn in_the_way(&self, lock: &LockRequest) -> Option<(u64, Held)> {
        let met = self.0.range(self.first_from(lock.start)..=lock.end);
        met.map(|(start, held)| (*start, *held)).find(|(_, held)| excludes(held.mode, lock.mode))
    }

    /// Takes a range out; what lies before and behind it stays.
    fn cut(&mut self, start: u64, end: u64) {
        let from = self.first_from(start);
        let met: Vec<u64> = self.0.range(from..=end).map(|(at, _)| *at).collect();
        for at in met {
            let Some(held) = self.0.remove(&at) else { continue };
            if at < start {
                self.0.insert(at, Held { end: start - 1, ..held });
            }
            if held.end > end {
                self.0.insert(end + 1, held);
            }
        }
    }

    /// Puts a range where none is, together with its neighbours of the same mode.
    fn put(&mut self, mut start: u64, mut held: Held) {
        let before = self.0.range(..start).next_back().map(|(at, held)| (*at, *held));
        if let Some((at, other)) = before
            && other.mode == held.mode
            && other.end.checked_add(1) == Some(start)
        {
            start = at;
        }
        if let Some(next) = held.end.checked_add(1)
            && let Some(other) = self.0.get(&next).copied().filter(|other| other.mode == held.mode)
        {
            self.0.remove(&next);
            held.end = other.end;
        }
        self.0.insert(start, held);
    }
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Set {
    Done,
    /// Another owner's lock is.
    InTheWay,
    /// There are too many ([`RANGES_MAX`]).
    NoRoom,
}

/// Locks held, by object. Volatile, as `docs/consistency.md` says.
pub struct LockTable {
    by_object: HashMap<Ino, HashMap<Owner, Ranges>>,
    count: usize,
    room: usize,
}

impl Default for LockTable {
    fn default() -> LockTable {
        LockTable::with_room(RANGES_MAX)
    }
}

impl LockTable {
    /// For as many ranges.
    fn with_room(room: usize) -> LockTable {
        LockTable { by_object: HashMap::new(), count: 0, room }
    }

    /// The first lock of another owner that `lock` cannot coexist with.
    pub fn conflict(&self, ino: Ino, session: SessionId, lock: &LockRequest) -> Option<LockRequest> {
        let owner = Owner::of(session, lock);
        let others = self.by_object.get(&ino)?.iter().filter(|(o, _)| **o != owner && o.kind == lock.kind);
        let met = others.filter_map(|(other, ranges)| Some((other, ranges.in_the_way(lock)?)));
        met.min_by_key(|(other, (start, _))| (*start, other.number)).map(|(other, (start, held))| {
            LockRequest {
                owner: other.number,
                kind: lock.kind,
                start,
                end: held.end,
                mode: held.mode,
                pid: held.pid,
            }
        })
    }

    /// All other owners that `lock` of `owner` cannot coexist with.
    pub(crate) fn holders(&self, ino: Ino, owner: &Owner, lock: &LockRequest) -> Vec<Owner> {
        let all = self.by_object.get(&ino).into_iter().flatten();
        let others = all.filter(|(other, _)| *other != owner && other.kind == owner.kind);
        others.filter(|(_, ranges)| ranges.in_the_way(lock).is_some()).map(|(other, _)| *other).collect()
    }

    /// Sets or releases a range. What the owner already has of it gets the new mode, as fcntl(2) demands.
    pub fn set(&mut self, ino: Ino, session: SessionId, lock: &LockRequest) -> Set {
        if lock.mode != LockMode::Unlock {
            if self.conflict(ino, session, lock).is_some() {
                return Set::InTheWay;
            }
            if self.count >= self.room {
                return Set::NoRoom;
            }
        }
        let owners = self.by_object.entry(ino).or_default();
        let owner = Owner::of(session, lock);
        let ranges = owners.entry(owner).or_default();
        let before = ranges.0.len();
        ranges.cut(lock.start, lock.end);
        if lock.mode != LockMode::Unlock {
            ranges.put(lock.start, Held { end: lock.end, mode: lock.mode, pid: lock.pid, session });
        }
        self.count = self.count - before + ranges.0.len();
        if ranges.0.is_empty() {
            owners.remove(&owner);
        }
        if owners.is_empty() {
            self.by_object.remove(&ino);
        }
        Set::Done
    }

    pub fn release_session(&mut self, session: SessionId) {
        let count = &mut self.count;
        self.by_object.retain(|_, owners| {
            owners.retain(|_, ranges| {
                let before = ranges.0.len();
                ranges.0.retain(|_, held| held.session != session);
                *count -= before - ranges.0.len();
                !ranges.0.is_empty()
            });
            !owners.is_empty()
        });
    }
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
        assert_eq!(table.set(INO, A, &lock(1, LockMode::Read, 0, 9)), Set::Done);
        assert_eq!(table.set(INO, B, &lock(1, LockMode::Read, 5, 20)), Set::Done);
        assert_eq!(table.set(INO, B, &lock(1, LockMode::Write, 9, 9)), Set::InTheWay);
        assert_eq!(table.set(INO, B, &lock(1, LockMode::Write, 10, 20)), Set::Done);
        table.release_session(A);
        assert_eq!(table.set(INO, B, &lock(1, LockMode::Write, 0, 9)), Set::Done);
        table.release_session(B);
        assert_eq!((table.count, table.by_object.len()), (0, 0));
    }

    #[test]
    fn unlocking_the_middle_leaves_both_ends() {
        let mut table = LockTable::default();
        assert_eq!(table.set(INO, A, &lock(1, LockMode::Write, 0, u64::MAX)), Set::Done);
        assert_eq!(table.set(INO, A, &lock(1, LockMode::Unlock, 10, 19)), Set::Done);
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
        assert_eq!(table.set(INO, A, &flock(3, LockMode::Write)), Set::Done);
        let again = table.set(INO, B, &flock(3, LockMode::Read));
        assert_eq!(again, Set::Done, "the same open file in a forked process");
        assert_eq!(table.set(INO, B, &flock(4, LockMode::Write)), Set::InTheWay);
        assert_eq!(table.set(INO, B, &lock(4, LockMode::Write, 0, 9)), Set::Done, "of another kind");
    }

    #[test]
    fn the_first_lock_in_the_way_is_told_whatever_came_first() {
        let mut table = LockTable::default();
        for (owner, start, mode) in
            [(1, 100, LockMode::Write), (2, 10, LockMode::Read), (3, 50, LockMode::Write)]
        {
            assert_eq!(table.set(INO, A, &lock(owner, mode, start, start + 4)), Set::Done);
        }
        let first = |mode, start| {
            table.conflict(INO, B, &lock(9, mode, start, u64::MAX)).map(|l| (l.owner, l.start, l.end))
        };
        assert_eq!(first(LockMode::Write, 0), Some((2, 10, 14)));
        assert_eq!(first(LockMode::Write, 12), Some((2, 10, 14)), "one that began before");
        assert_eq!(first(LockMode::Read, 0), Some((3, 50, 54)), "readers are in no reader's way");
        assert_eq!(first(LockMode::Write, 55), Some((1, 100, 104)));
        assert_eq!(first(LockMode::Write, 105), None);
    }

    #[test]
    fn neighbours_of_one_mode_are_one_lock() {
        let mut table = LockTable::default();
        let told = |table: &LockTable| {
            table.conflict(INO, B, &lock(1, LockMode::Write, 0, u64::MAX)).map(|l| (l.start, l.end, l.mode))
        };
        for (start, end) in [(0, 9), (20, u64::MAX), (10, 19)] {
            assert_eq!(table.set(INO, A, &lock(1, LockMode::Write, start, end)), Set::Done);
        }
        assert_eq!((told(&table), table.count), (Some((0, u64::MAX, LockMode::Write)), 1));
        assert_eq!(table.set(INO, A, &lock(1, LockMode::Read, 5, 6)), Set::Done);
        assert_eq!((told(&table), table.count), (Some((0, 4, LockMode::Write)), 3));
        assert_eq!(table.set(INO, A, &lock(2, LockMode::Read, 5, 6)), Set::Done, "another's is none of them");
        assert_eq!(table.set(INO, A, &lock(1, LockMode::Write, 5, 6)), Set::InTheWay);
        assert_eq!(table.set(INO, A, &lock(2, LockMode::Unlock, 0, u64::MAX)), Set::Done);
        assert_eq!(table.set(INO, A, &lock(1, LockMode::Write, 5, 6)), Set::Done);
        assert_eq!((told(&table), table.count), (Some((0, u64::MAX, LockMode::Write)), 1));
    }

    /// Each second byte, in ascending and in descending order.
    #[test]
    fn there_is_a_limit_and_unlocking_makes_room() {
        let mut table = LockTable::with_room(1000);
        for n in 0..1000 {
            let at = if n % 2 == 0 { n * 2 } else { u64::MAX - n * 2 };
            assert_eq!(table.set(INO, A, &lock(1, LockMode::Write, at, at)), Set::Done);
        }
        assert_eq!(table.set(INO, A, &lock(1, LockMode::Write, 1 << 40, 1 << 40)), Set::NoRoom);
        assert_eq!(table.set(Ino(6), B, &lock(1, LockMode::Read, 0, 0)), Set::NoRoom);
        assert_eq!(table.set(INO, A, &lock(1, LockMode::Unlock, 0, 0)), Set::Done);
        assert_eq!(table.set(Ino(6), B, &lock(1, LockMode::Read, 0, 0)), Set::Done);
        table.release_session(A);
        assert_eq!(table.count, 1);
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
            let excludes = |held: &LockMode| match held {
                LockMode::Unlock => false,
                LockMode::Read => mode == LockMode::Write,
                LockMode::Write => mode != LockMode::Unlock,
            };
            // The first one that is met, from its first byte on, which may lie before the range.
            let first = range.clone().find_map(|at| {
                let owners = (0..3).filter(|o| *o != owner && excludes(&oracle[*o][at]));
                let run = |o: usize| {
                    let same = |i: &usize| oracle[o][*i] == oracle[o][at];
                    let begin = (0..=at).rev().take_while(same).last().unwrap();
                    (begin, (at..24).take_while(same).last().unwrap(), oracle[o][at])
                };
                owners.map(run).min_by_key(|(begin, ..)| *begin)
            });
            let told = table.conflict(INO, A, &lock(owner as u64, mode, start, end));
            if mode != LockMode::Unlock {
                let told = told.map(|l| (l.start as usize, l.end as usize, l.mode));
                assert_eq!(told.map(|(begin, ..)| begin), first.map(|(begin, ..)| begin), "step {step}");
            }
            let granted = table.set(INO, A, &lock(owner as u64, mode, start, end)) == Set::Done;
            assert_eq!(granted, first.is_none(), "step {step}");
            if granted {
                oracle[owner][range].fill(mode);
            }
            let runs = |held: &[LockMode; 24]| {
                let begins =
                    |i: &usize| held[*i] != LockMode::Unlock && (*i == 0 || held[*i - 1] != held[*i]);
                (0..24).filter(begins).count()
            };
            assert_eq!(
                table.count,
                oracle.iter().map(runs).sum::<usize>(),
                "neighbours are one, step {step}"
            );
        }
    }
}
