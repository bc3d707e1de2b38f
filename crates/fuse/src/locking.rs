//! Locks of programs, kept by the daemons so that they hold on all nodes.
//!
//! The kernel keeps no record of them; it tells when an owner closes the file (`flush`, by
//! the owner of POSIX locks) and when a file that was locked by flock(2) is let go
//! (`release`, by the file). This table remembers which owners may hold something, so that
//! the usual close, of a file without locks, costs no request.

use crate::caller;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tidepool_client::{Client, FsError, HeldLock, LockKind, LockMode, LockOwner, LockRange};
use tidepool_types::{Errno, Ino};

/// The kernel's end of a lock that reaches to the end of file.
const OFFSET_MAX: u64 = i64::MAX as u64;
/// Most programs that may wait for locks at the same time; each has a thread.
const WAITERS_MAX: usize = 1024;

/// The kinds of lock an owner may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kinds {
    Posix,
    Flock,
    /// It could not be found out which of them is meant. Both are taken: that may exclude
    /// too much, never too little.
    Both,
}

impl Kinds {
    fn each(self) -> &'static [LockKind] {
        match self {
            Kinds::Posix => &[LockKind::Posix],
            Kinds::Flock => &[LockKind::Flock],
            Kinds::Both => &[LockKind::Posix, LockKind::Flock],
        }
    }

    fn and(self, other: Kinds) -> Kinds {
        if self == other { self } else { Kinds::Both }
    }
}

/// A lock somebody wants, or wants to be rid of.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    pub ino: Ino,
    pub owner: u64,
    pub range: LockRange,
    pub mode: LockMode,
    /// The process, for those who ask who is in their way.
    pub pid: u32,
    /// The thread that waits for the answer.
    pub thread: u32,
}

/// A lock's mode from `l_type`.
pub fn mode_of(l_type: i32) -> Result<LockMode, Errno> {
    match l_type {
        libc::F_RDLCK => Ok(LockMode::Read),
        libc::F_WRLCK => Ok(LockMode::Write),
        libc::F_UNLCK => Ok(LockMode::Unlock),
        _ => Err(Errno::EINVAL),
    }
}

pub fn l_type_of(mode: LockMode) -> i32 {
    match mode {
        LockMode::Read => libc::F_RDLCK,
        LockMode::Write => libc::F_WRLCK,
        LockMode::Unlock => libc::F_UNLCK,
    }
}

/// The kernel's range as ours.
pub fn range_of(start: u64, end: u64) -> LockRange {
    LockRange { start, end: if end >= OFFSET_MAX { u64::MAX } else { end } }
}

/// Our range as the kernel takes it.
pub fn kernel_range(range: LockRange) -> (u64, u64) {
    (range.start.min(OFFSET_MAX), range.end.min(OFFSET_MAX))
}

#[derive(Default)]
struct PerObject {
    opens: u32,
    owners: Vec<(u64, Kinds)>,
}

/// Who may hold locks, and how often each object is open.
#[derive(Default)]
struct Table {
    objects: HashMap<Ino, PerObject>,
}

impl Table {
    fn opened(&mut self, ino: Ino) {
        self.objects.entry(ino).or_default().opens += 1;
    }

    /// Counts a close; the owners whose locks end with it. With the last close all do, which
    /// is how locks of F_OFD_SETLK end: the kernel does not tell when their owner goes.
    fn closed(&mut self, ino: Ino, owner: Option<u64>) -> Vec<(u64, Kinds)> {
        let Some(object) = self.objects.get_mut(&ino) else { return Vec::new() };
        object.opens = object.opens.saturating_sub(1);
        if object.opens == 0 {
            return self.objects.remove(&ino).map(|o| o.owners).unwrap_or_default();
        }
        owner.and_then(|owner| Some((owner, self.take(ino, owner)?))).into_iter().collect()
    }

    /// Notes that an owner may hold locks from now on.
    fn note(&mut self, ino: Ino, owner: u64, kinds: Kinds) {
        let owners = &mut self.objects.entry(ino).or_default().owners;
        match owners.iter_mut().find(|(o, _)| *o == owner) {
            Some((_, known)) => *known = known.and(kinds),
            None => owners.push((owner, kinds)),
        }
    }

    fn kinds(&self, ino: Ino, owner: u64) -> Option<Kinds> {
        self.objects.get(&ino)?.owners.iter().find(|(o, _)| *o == owner).map(|(_, kinds)| *kinds)
    }

    fn take(&mut self, ino: Ino, owner: u64) -> Option<Kinds> {
        let owners = &mut self.objects.get_mut(&ino)?.owners;
        let at = owners.iter().position(|(o, _)| *o == owner)?;
        Some(owners.swap_remove(at).1)
    }
}

/// All locks of a mount.
#[derive(Default)]
pub struct Locks {
    table: Mutex<Table>,
    waiters: AtomicUsize,
    stopping: AtomicBool,
}

impl Locks {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn opened(&self, ino: Ino) {
        self.table().opened(ino);
    }

    /// Ends the locks that end with this close of a file.
    pub fn closed(&self, client: &Client, ino: Ino, owner: Option<u64>) -> Result<(), FsError> {
        let ended = self.table().closed(ino, owner);
        ended.into_iter().try_for_each(|(owner, kinds)| unlock(client, ino, owner, kinds, LockRange::ALL))
    }

    /// Ends the locks of an owner, as each close by a process does.
    pub fn flushed(&self, client: &Client, ino: Ino, owner: u64) -> Result<(), FsError> {
        let ended = self.table().take(ino, owner);
        ended.map_or(Ok(()), |kinds| unlock(client, ino, owner, kinds, LockRange::ALL))
    }

    /// Sets or releases a lock at once; `EAGAIN` when another owner is in the way.
    pub fn set(&self, client: &Client, want: &Want) -> Result<(), FsError> {
        if want.mode == LockMode::Unlock {
            let known = self.table().kinds(want.ino, want.owner);
            return known.map_or(Ok(()), |kinds| unlock(client, want.ino, want.owner, kinds, want.range));
        }
        let kinds = self.kinds_for(want);
        // Before the lock is taken: a close at the same time must not overlook it.
        self.table().note(want.ino, want.owner, kinds);
        take(client, want, kinds)
    }

    fn kinds_for(&self, want: &Want) -> Kinds {
        if want.range != LockRange::ALL {
            return Kinds::Posix;
        }
        // One owner never holds both: it is a file for flock(2), a process for fcntl(2).
        if let Some(known) = self.table().kinds(want.ino, want.owner) {
            return known;
        }
        match caller::lock_call(want.thread) {
            Some(LockKind::Posix) => Kinds::Posix,
            Some(LockKind::Flock) => Kinds::Flock,
            _ => Kinds::Both,
        }
    }

    /// Waits until a lock is free, the caller gets a signal, or the mount ends.
    pub fn wait(&self, client: &Client, want: &Want) -> Result<(), FsError> {
        for attempt in 0.. {
            Client::pause(attempt);
            if self.stopping.load(Ordering::Acquire) || caller::is_interrupted(want.thread) {
                break;
            }
            match self.set(client, want) {
                Err(error) if error.errno() == Errno::EAGAIN => {}
                other => return other,
            }
        }
        Err(Errno::EINTR.into())
    }

    /// Counts one more waiter; false when there are too many.
    pub fn begin_wait(&self) -> bool {
        let before = self.waiters.fetch_add(1, Ordering::AcqRel);
        if before >= WAITERS_MAX {
            self.end_wait();
            return false;
        }
        true
    }

    pub fn end_wait(&self) {
        self.waiters.fetch_sub(1, Ordering::AcqRel);
    }

    /// Lets all waiters give up.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }
}

/// A POSIX lock that is in the way of `want`.
pub fn test(client: &Client, want: &Want) -> Result<Option<HeldLock>, FsError> {
    client.test_lock(want.ino, LockOwner(want.owner), LockKind::Posix, want.range, want.mode)
}

fn take(client: &Client, want: &Want, kinds: Kinds) -> Result<(), FsError> {
    let owner = LockOwner(want.owner);
    let lock = |kind, mode| client.lock(want.ino, owner, kind, want.range, mode, want.pid);
    let [first, rest @ ..] = kinds.each() else { return Ok(()) };
    // Looked at first, because giving the first back would also drop an older, weaker lock.
    for kind in rest {
        if client.test_lock(want.ino, owner, *kind, want.range, want.mode)?.is_some() {
            return Err(Errno::EAGAIN.into());
        }
    }
    lock(*first, want.mode)?;
    for kind in rest {
        if let Err(error) = lock(*kind, want.mode) {
            lock(*first, LockMode::Unlock)?;
            return Err(error);
        }
    }
    Ok(())
}

fn unlock(client: &Client, ino: Ino, owner: u64, kinds: Kinds, range: LockRange) -> Result<(), FsError> {
    let mut result = Ok(());
    for kind in kinds.each() {
        result = result.and(client.lock(ino, LockOwner(owner), *kind, range, LockMode::Unlock, 0));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(4);

    #[test]
    fn a_close_ends_what_its_owner_holds_and_the_last_one_all() {
        let mut table = Table::default();
        table.opened(INO);
        table.opened(INO);
        table.opened(INO);
        table.note(INO, 1, Kinds::Posix);
        table.note(INO, 2, Kinds::Flock);
        table.note(INO, 3, Kinds::Posix);
        assert_eq!(table.closed(INO, None), []);
        assert_eq!(table.closed(INO, Some(2)), [(2, Kinds::Flock)]);
        assert_eq!(table.take(INO, 1), Some(Kinds::Posix));
        assert_eq!(table.take(INO, 1), None);
        assert_eq!(table.closed(INO, None), [(3, Kinds::Posix)]);
        assert!(table.objects.is_empty());
    }

    #[test]
    fn an_owner_seen_with_two_kinds_has_both_released() {
        let mut table = Table::default();
        table.note(INO, 1, Kinds::Posix);
        table.note(INO, 1, Kinds::Posix);
        assert_eq!(table.kinds(INO, 1), Some(Kinds::Posix));
        table.note(INO, 1, Kinds::Flock);
        assert_eq!(table.kinds(INO, 1), Some(Kinds::Both));
    }

    #[test]
    fn ranges_convert_at_the_end_of_file() {
        assert_eq!(range_of(0, OFFSET_MAX), LockRange::ALL);
        assert_eq!(range_of(5, 9), LockRange { start: 5, end: 9 });
        assert_eq!(kernel_range(LockRange::ALL), (0, OFFSET_MAX));
    }

    #[test]
    fn waiters_are_bounded() {
        let locks = Locks::default();
        for _ in 0..WAITERS_MAX {
            assert!(locks.begin_wait());
        }
        assert!(!locks.begin_wait());
        locks.end_wait();
        assert!(locks.begin_wait());
    }
}
