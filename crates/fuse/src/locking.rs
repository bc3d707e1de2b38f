//! Locks of programs, kept by the daemons so that they hold on all nodes.
//!
//! The kernel keeps no record of them; it tells when a process closes the file (`flush`, by
//! the owner of POSIX locks) and when an open file is let go (`release`, by its handle). This
//! table remembers who may hold something, so that the usual close, of a file without locks,
//! costs no request.
//!
//! The kernel's number of an owner is made of an address: a process's for POSIX locks, an open
//! file's for others. A file that is opened after another was closed may lie where that one was,
//! and have its number, before the other's `release` has come. So locks of open files belong to
//! their handles, which are never used again.
//!
//! `close` does not wait for `release`, either: it returns after `flush`, which comes for each descriptor of an open file. A
//! handle with locks that was flushed is *closing* until it is used for a lock again: who meets a lock while one is waits a moment for
//! its `release` before he is refused.

use crate::caller::{self, LockCall};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidepool_client::{
    Client, FsError, HeldLock, LockKind, LockMode, LockOwner, LockPlace, LockRange, LockWish, PID_OPEN_FILE,
    Queued,
};
use tidepool_transport::random_bytes;
use tidepool_types::{Errno, Ino};

/// The kernel's end of a lock that reaches to the end of file.
const OFFSET_MAX: u64 = i64::MAX as u64;
/// Most programs that may wait for locks at the same time; each has a thread.
const WAITERS_MAX: usize = 1024;
/// How often is looked whether a signal ends a wait: the kernel's word of it does not reach us ([`caller::is_interrupted`]).
const SIGNAL_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// How long somebody who would be refused waits for the end of files that seem to be closing. The kernel sends it at once; an
/// open file with a further descriptor costs this once.
const RELEASE_WAIT_MAX: Duration = Duration::from_millis(250);
const RELEASE_PAUSE: Duration = Duration::from_micros(200);

/// The kinds of lock an owner may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kinds {
    /// A process's.
    Posix,
    /// On a part of a file, so by fcntl(2); for whom could not be found out. Taken as a process's.
    Part,
    /// An open file's, that meets those of processes (F_OFD_SETLK).
    Ofd,
    /// An open file's (flock(2)).
    Flock,
    /// It could not be found out which of them is meant. POSIX and flock are taken: that may exclude
    /// too much, never too little.
    Both,
}

impl Kinds {
    /// Whether they end when the process closes any file of the object.
    fn is_of_process(self) -> bool {
        matches!(self, Kinds::Posix | Kinds::Part | Kinds::Both)
    }
}

impl From<LockCall> for Kinds {
    fn from(call: LockCall) -> Kinds {
        match call {
            LockCall::Posix => Kinds::Posix,
            LockCall::Ofd => Kinds::Ofd,
            LockCall::Flock => Kinds::Flock,
        }
    }
}

/// A lock somebody wants, or wants to be rid of.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    pub ino: Ino,
    /// The kernel's number.
    pub owner: u64,
    /// Of the open file by which it is asked for.
    pub handle: u64,
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

/// Who may hold locks on an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Holder {
    /// The kernel's number.
    owner: u64,
    handle: u64,
    /// Of the open file, for the daemons: other mounts and sessions have handles too.
    number: u64,
    kinds: Kinds,
}

impl Holder {
    /// Whether a request by this owner, through this handle, may be about its locks.
    fn is_meant(&self, owner: u64, handle: u64) -> bool {
        self.owner == owner && (self.handle == handle || self.kinds.is_of_process())
    }

    /// The locks it may hold, and whose they are for the daemons.
    fn each(&self) -> Vec<(LockKind, LockOwner)> {
        let (process, file) = (LockOwner(self.owner), LockOwner(self.number));
        match self.kinds {
            Kinds::Posix | Kinds::Part => vec![(LockKind::Posix, process)],
            Kinds::Ofd => vec![(LockKind::Posix, file)],
            Kinds::Flock => vec![(LockKind::Flock, file)],
            Kinds::Both => vec![(LockKind::Posix, process), (LockKind::Flock, file)],
        }
    }
}

#[derive(Default)]
struct PerObject {
    opens: u32,
    holders: Vec<Holder>,
}

impl PerObject {
    /// A process may lock the same by two files, so where it is not known whether it is a process's it counts as one's.
    fn number(&self, owner: u64, handle: u64, kinds: Kinds) -> u64 {
        let unsure = |h: &&Holder| kinds == Kinds::Both && h.kinds == Kinds::Both && h.owner == owner;
        let same =
            self.holders.iter().find(|h| h.handle == handle).or_else(|| self.holders.iter().find(unsure));
        same.map_or_else(|| u64::from_le_bytes(random_bytes()), |h| h.number)
    }

    /// Forgets some; the locks that nobody has any more.
    fn end(&mut self, which: impl Fn(&Holder) -> bool) -> Vec<(LockKind, LockOwner)> {
        let mut ended: Vec<_> =
            self.holders.extract_if(.., |holder| which(holder)).flat_map(|h| h.each()).collect();
        ended.retain(|lock| !self.holders.iter().any(|holder| holder.each().contains(lock)));
        ended
    }
}

/// Who may hold locks, and how often each object is open.
#[derive(Default)]
struct Table {
    objects: HashMap<Ino, PerObject>,
    /// Handles with locks that were flushed, and not used for a lock since; until the daemons know of their end.
    closing: HashSet<(Ino, u64)>,
}

impl Table {
    fn opened(&mut self, ino: Ino) {
        self.objects.entry(ino).or_default().opens += 1;
    }

    /// Counts a handle that is let go; the locks that end with it. With the last one all do.
    fn closed(&mut self, ino: Ino, handle: u64) -> Vec<(LockKind, LockOwner)> {
        let Some(object) = self.objects.get_mut(&ino) else { return Vec::new() };
        object.opens = object.opens.saturating_sub(1);
        let is_last = object.opens == 0;
        let ended = object.end(|holder| is_last || holder.handle == handle);
        if is_last {
            self.objects.remove(&ino);
        }
        ended
    }

    /// The locks that end when a process closes a file of the object.
    fn flushed(&mut self, ino: Ino, owner: u64) -> Vec<(LockKind, LockOwner)> {
        let Some(object) = self.objects.get_mut(&ino) else { return Vec::new() };
        object.end(|holder| holder.owner == owner && holder.kinds.is_of_process())
    }

    /// A descriptor of this handle was closed, perhaps the last one.
    fn closing(&mut self, ino: Ino, handle: u64) {
        let Some(object) = self.objects.get_mut(&ino) else { return };
        let is_of_file =
            |h: &Holder| h.handle == handle && matches!(h.kinds, Kinds::Ofd | Kinds::Flock | Kinds::Both);
        if object.holders.iter().any(is_of_file) {
            self.closing.insert((ino, handle));
        }
    }

    /// The locks of a handle are gone, or it is in use.
    fn settled(&mut self, ino: Ino, handle: u64) {
        self.closing.remove(&(ino, handle));
    }

    /// True when locks of other handles may be about to end.
    fn is_ending(&self, ino: Ino, handle: u64) -> bool {
        self.closing.iter().any(|closing| closing.0 == ino && closing.1 != handle)
    }

    /// What was closing has further descriptors: nobody waits for it again.
    fn stays(&mut self, ino: Ino) {
        self.closing.retain(|closing| closing.0 != ino);
    }

    /// Notes that somebody may hold locks from now on.
    fn note(&mut self, ino: Ino, owner: u64, handle: u64, kinds: Kinds) -> Holder {
        let object = self.objects.entry(ino).or_default();
        let holder = Holder { owner, handle, number: object.number(owner, handle, kinds), kinds };
        if !object.holders.contains(&holder) {
            object.holders.push(holder);
        }
        self.settled(ino, handle);
        holder
    }

    /// Who may hold what such a request is about.
    fn meant(&self, ino: Ino, owner: u64, handle: u64) -> Vec<Holder> {
        let holders = self.objects.get(&ino).map(|object| &object.holders);
        holders.into_iter().flatten().filter(|h| h.is_meant(owner, handle)).copied().collect()
    }

    fn has_unsure(&self, ino: Ino) -> bool {
        self.objects.get(&ino).is_some_and(|object| object.holders.iter().any(|h| h.kinds == Kinds::Both))
    }
}

/// All locks of a mount.
#[derive(Default)]
pub struct Locks {
    table: Mutex<Table>,
    /// Held by who takes or ends locks of [`Kinds::Both`]: those of a file that is let go and of the next one may have one owner.
    unsure: Mutex<()>,
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

    fn in_turn(&self) -> MutexGuard<'_, ()> {
        self.unsure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the locks that end when a handle is let go.
    pub fn closed(&self, client: &Client, ino: Ino, handle: u64) -> Result<(), FsError> {
        let unsure = self.table().has_unsure(ino);
        let _in_turn = unsure.then(|| self.in_turn());
        let ended = self.table().closed(ino, handle);
        let done = unlock(client, ino, ended, LockRange::ALL);
        self.table().settled(ino, handle);
        done
    }

    /// Ends the locks of a process, as each close by it does.
    pub fn flushed(&self, client: &Client, ino: Ino, owner: u64, handle: u64) -> Result<(), FsError> {
        let ended = {
            let mut table = self.table();
            table.closing(ino, handle);
            table.flushed(ino, owner)
        };
        unlock(client, ino, ended, LockRange::ALL)
    }

    /// Sets or releases a lock at once; `EAGAIN` when another owner is in the way.
    pub fn set(&self, client: &Client, want: &Want) -> Result<(), FsError> {
        if want.mode == LockMode::Unlock {
            return self.release(client, want);
        }
        self.take(client, want, self.kinds_for(want))
    }

    /// Whether somebody who was refused may soon not be.
    pub fn is_ending(&self, want: &Want) -> bool {
        self.table().is_ending(want.ino, want.handle)
    }

    /// As [`Locks::set`], but waits a moment for files that are closing. Not from a thread that serves requests: what is
    /// waited for is one.
    pub fn set_after_release(&self, client: &Client, want: &Want) -> Result<(), FsError> {
        let began = Instant::now();
        loop {
            let ending = self.is_ending(want);
            match self.set(client, want) {
                Err(error) if error.errno() == Errno::EAGAIN && ending => {}
                other => return other,
            }
            if began.elapsed() > RELEASE_WAIT_MAX {
                self.table().stays(want.ino);
            }
            std::thread::sleep(RELEASE_PAUSE);
        }
    }

    fn take(&self, client: &Client, want: &Want, kinds: Kinds) -> Result<(), FsError> {
        let _in_turn = (kinds == Kinds::Both).then(|| self.in_turn());
        // Before the lock is taken: a close at the same time must not overlook it.
        let holder = self.table().note(want.ino, want.owner, want.handle, kinds);
        take(client, want, &holder)
    }

    fn release(&self, client: &Client, want: &Want) -> Result<(), FsError> {
        let mut meant = self.table().meant(want.ino, want.owner, want.handle);
        // A file may have locks by flock(2) and by F_OFD_SETLK.
        if meant.iter().any(|holder| holder.kinds != meant[0].kinds)
            && let Some(call) = caller::lock_call(want.thread)
        {
            let unsure = |kinds| matches!(kinds, Kinds::Both | Kinds::Part);
            meant.retain(|holder| unsure(holder.kinds) || holder.kinds == call.into());
        }
        unlock(client, want.ino, meant.iter().flat_map(Holder::each), want.range)
    }

    fn kinds_for(&self, want: &Want) -> Kinds {
        let is_whole = want.range == LockRange::ALL;
        // A process is asked about once: nothing else has its number while it may hold anything.
        let meant = self.table().meant(want.ino, want.owner, want.handle);
        let known = |kinds| meant.iter().any(|holder| holder.kinds == kinds);
        if known(Kinds::Posix) {
            return Kinds::Posix;
        }
        if !is_whole && known(Kinds::Part) {
            return Kinds::Part;
        }
        match caller::lock_call(want.thread) {
            Some(call) => call.into(),
            None if is_whole => Kinds::Both,
            None => Kinds::Part,
        }
    }

    /// A lock of fcntl(2) that is in the way of `want`.
    pub fn test(&self, client: &Client, want: &Want) -> Result<Option<HeldLock>, FsError> {
        let meant = self.table().meant(want.ino, want.owner, want.handle);
        let number = meant.iter().find(|holder| holder.kinds == Kinds::Ofd).map(|holder| holder.number);
        let owner = LockOwner(number.unwrap_or(want.owner));
        client.test_lock(want.ino, owner, LockKind::Posix, want.range, want.mode)
    }

    /// Waits for a lock until it is its turn, the caller gets a signal, or the mount ends.
    pub fn wait(&self, client: &Client, want: &Want) -> Result<(), FsError> {
        let kinds = self.kinds_for(want);
        if kinds == Kinds::Both {
            return self.wait_for_both(client, want);
        }
        let holder = self.table().note(want.ino, want.owner, want.handle, kinds);
        let [(kind, owner)] = holder.each()[..] else { return Err(Errno::EIO.into()) };
        let (ino, range, mode) = (want.ino, want.range, want.mode);
        let pid = if kinds == Kinds::Ofd { PID_OPEN_FILE } else { want.pid };
        let wish = LockWish { ino, owner, kind, range, mode, pid };
        loop {
            let _place = self.turn(client, want, &wish)?;
            match self.take(client, want, kinds) {
                Err(error) if error.errno() == Errno::EAGAIN => {}
                other => return other,
            }
        }
    }

    /// Queues, and again where a daemon was started anew, until it is the caller's turn, for as long as the place is kept.
    fn turn(&self, client: &Client, want: &Want, wish: &LockWish) -> Result<LockPlace, FsError> {
        let mut place = client.queue_for_lock(wish)?;
        while !self.is_over(want) {
            let mut socket = [PollFd::from_borrowed_fd(place.socket(), PollFlags::IN)];
            match poll(&mut socket, Some(&SIGNAL_PAUSE)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(FsError::new(Errno(error.raw_os_error()), "poll".to_string())),
            }
            match place.look()? {
                Queued::Waits => {}
                Queued::Turn => return Ok(place),
                Queued::Lost => place = client.queue_for_lock(wish)?,
            }
        }
        place.leave();
        Err(Errno::EINTR.into())
    }

    fn is_over(&self, want: &Want) -> bool {
        self.stopping.load(Ordering::Acquire) || caller::is_interrupted(want.thread)
    }

    /// Of whom it cannot be told which kind is meant: two queues cannot be waited in at the same time, so it asks again and again.
    fn wait_for_both(&self, client: &Client, want: &Want) -> Result<(), FsError> {
        let kinds = Kinds::Both;
        for attempt in 0.. {
            Client::pause(attempt);
            if self.is_over(want) {
                break;
            }
            match self.take(client, want, kinds) {
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

fn take(client: &Client, want: &Want, holder: &Holder) -> Result<(), FsError> {
    let lock = |(kind, owner), mode| client.lock(want.ino, owner, kind, want.range, mode, want.pid);
    let each = holder.each();
    let [first, rest @ ..] = &each[..] else { return Ok(()) };
    // Looked at first, because giving the first back would also drop an older, weaker lock.
    for (kind, owner) in rest {
        if client.test_lock(want.ino, *owner, *kind, want.range, want.mode)?.is_some() {
            return Err(Errno::EAGAIN.into());
        }
    }
    lock(*first, want.mode)?;
    for one in rest {
        if let Err(error) = lock(*one, want.mode) {
            lock(*first, LockMode::Unlock)?;
            return Err(error);
        }
    }
    Ok(())
}

fn unlock(
    client: &Client,
    ino: Ino,
    locks: impl IntoIterator<Item = (LockKind, LockOwner)>,
    range: LockRange,
) -> Result<(), FsError> {
    let (mut result, mut done) = (Ok(()), Vec::new());
    for (kind, owner) in locks {
        if done.contains(&(kind, owner)) {
            continue;
        }
        done.push((kind, owner));
        result = result.and(client.lock(ino, owner, kind, range, LockMode::Unlock, 0));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(4);

    const PROCESS: u64 = 7001;
    /// The kernel's number of an open file, and of the one that lies where it was.
    const FILE: u64 = 8001;

    fn open(handles: u32) -> Table {
        let mut table = Table::default();
        (0..handles).for_each(|_| table.opened(INO));
        table
    }

    #[test]
    fn a_close_ends_what_its_file_holds_and_the_last_one_all() {
        let mut table = open(3);
        table.note(INO, PROCESS, 1, Kinds::Posix);
        let two = table.note(INO, FILE, 2, Kinds::Flock);
        table.note(INO, PROCESS + 1, 3, Kinds::Posix);
        assert_eq!(table.flushed(INO, PROCESS), [(LockKind::Posix, LockOwner(PROCESS))]);
        assert_eq!(table.closed(INO, 1), []);
        assert_eq!(table.closed(INO, 2), [(LockKind::Flock, LockOwner(two.number))]);
        assert_eq!(table.flushed(INO, PROCESS), []);
        assert_eq!(table.closed(INO, 4), [(LockKind::Posix, LockOwner(PROCESS + 1))]);
        assert!(table.objects.is_empty());
    }

    /// The kernel tells of a close after it has used the file's memory, and with it the number, again.
    #[test]
    fn the_end_of_a_file_ends_no_locks_of_the_one_in_its_place() {
        for kinds in [Kinds::Flock, Kinds::Ofd, Kinds::Both, Kinds::Part] {
            let mut table = open(3);
            let old = table.note(INO, FILE, 1, kinds);
            let new = table.note(INO, FILE, 2, kinds);
            let ended = table.closed(INO, 1);
            assert!(new.each().iter().all(|lock| !ended.contains(lock)), "{kinds:?}");
            if matches!(kinds, Kinds::Flock | Kinds::Ofd) {
                assert_eq!(ended, old.each(), "they keep each other out until then");
            }
            assert_eq!(table.closed(INO, 2), new.each());
        }
    }

    #[test]
    fn a_file_may_have_locks_of_two_kinds_and_both_end_with_it() {
        let mut table = open(2);
        let unsure = table.note(INO, FILE, 1, Kinds::Both);
        let sure = table.note(INO, FILE, 1, Kinds::Flock);
        let ofd = table.note(INO, FILE, 1, Kinds::Ofd);
        assert!(unsure.number == sure.number && sure.number == ofd.number, "it is not in its own way");
        assert_eq!(table.meant(INO, FILE, 1), [unsure, sure, ofd]);
        let mut ended = table.closed(INO, 1);
        ended.dedup();
        let number = LockOwner(sure.number);
        let posix = [(LockKind::Posix, LockOwner(FILE)), (LockKind::Posix, number)];
        assert!(posix.iter().all(|lock| ended.contains(lock)) && ended.contains(&(LockKind::Flock, number)));
    }

    #[test]
    fn a_process_of_which_that_is_not_known_is_not_in_its_own_way() {
        let mut table = open(3);
        let (one, two) = (table.note(INO, PROCESS, 1, Kinds::Both), table.note(INO, PROCESS, 2, Kinds::Both));
        assert_eq!(one.each(), two.each());
        let other = table.note(INO, PROCESS + 1, 3, Kinds::Both);
        assert!(other.each().iter().all(|lock| !one.each().contains(lock)));
        assert_eq!(table.meant(INO, PROCESS, 2), [one, two]);
        let mut ended = table.flushed(INO, PROCESS);
        ended.dedup();
        assert!(one.each().iter().all(|lock| ended.contains(lock)));
        assert_eq!(table.meant(INO, PROCESS + 1, 3), [other]);
    }

    #[test]
    fn files_with_locks_are_closing_from_a_close_to_their_end() {
        let mut table = open(3);
        table.note(INO, FILE, 1, Kinds::Flock);
        table.note(INO, PROCESS, 2, Kinds::Posix);
        table.closing(INO, 2);
        assert!(!table.is_ending(INO, 3), "a process's locks end with the close itself");
        table.closing(INO, 1);
        assert!(table.is_ending(INO, 3) && !table.is_ending(INO, 1));
        table.note(INO, FILE, 1, Kinds::Flock);
        assert!(!table.is_ending(INO, 3), "it is in use");
        table.closing(INO, 1);
        table.stays(INO);
        assert!(!table.is_ending(INO, 3));
        table.closing(INO, 1);
        table.closed(INO, 1);
        assert!(table.is_ending(INO, 3), "the daemons do not know yet");
        table.settled(INO, 1);
        assert!(!table.is_ending(INO, 3));
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
