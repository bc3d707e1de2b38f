//! fcntl and flock locks.
//!
//! Who waits queues at the daemon on a connection of its own, and sleeps until that becomes readable. Its thread may leave in the
//! middle of the sleep (cancelled, or by siglongjmp out of a handler), and the process may fork, so places in queues are not
//! on stacks: they are in a table, by thread, and the next one to wait gives up those of threads that are gone.

use crate::fdtable::Entry;
use crate::files::{kernel_unless_hidden, object};
use crate::inside::{Inside, Work};
use crate::lock::ForkLock;
use crate::raw::{self, err, sys};
use crate::{files, pool, signals};
use libc::c_int;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use tidepool_client::{
    Client, FsError, LockKind, LockMode, LockOwner, LockPlace, LockRange, LockWish, PID_OPEN_FILE, Queued,
};
use tidepool_types::Errno;

static POSIX_USED: AtomicBool = AtomicBool::new(false);
static FLOCK_USED: AtomicBool = AtomicBool::new(false);
/// Owner number of this process's POSIX locks and the process it was made for.
static OWNER: AtomicU64 = AtomicU64::new(0);
static OWNER_PID: AtomicI32 = AtomicI32::new(0);

/// Waits between two tries of a blocking lock call in a child that shares its parent's memory, in microseconds.
const WAIT_FIRST_US: i64 = 200;
const WAIT_MOST_US: i64 = 20_000;

/// All bytes a file can have. Bytes beyond are locks of our own (`mmap.rs`).
const WHOLE: LockRange = LockRange { start: 0, end: i64::MAX as u64 };

pub fn any_posix() -> bool {
    POSIX_USED.load(Ordering::Relaxed)
}

fn process() -> LockOwner {
    let pid = raw::getpid();
    if OWNER_PID.load(Ordering::Acquire) != pid {
        OWNER.store(pool::process_owner(pid), Ordering::Relaxed);
        OWNER_PID.store(pid, Ordering::Release);
    }
    LockOwner(OWNER.load(Ordering::Relaxed))
}

fn description(entry: &Entry) -> LockOwner {
    let id = entry.description.0;
    let mut low = [0; 8];
    low.copy_from_slice(&id[8..]);
    let high = id[..8].iter().fold(0u64, |hash, b| hash.wrapping_mul(257).wrapping_add(u64::from(*b)));
    LockOwner(u64::from_le_bytes(low) ^ high)
}

/// One request of a program, in the pool's terms.
struct Wish<'a> {
    entry: &'a Entry,
    owner: LockOwner,
    kind: LockKind,
    range: LockRange,
    mode: LockMode,
    pid: u32,
}

/// What to do about a lock that is not granted: report it; or ask again and again until a signal comes, as a
/// cancellation point or not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    No,
    Plainly,
    Cancellable,
}

/// Places in queues, by thread.
static PLACES: ForkLock<Vec<(c_int, LockPlace)>> = ForkLock::new(Vec::new());

/// How many they are, for who would only look.
static PLACE_COUNT: AtomicUsize = AtomicUsize::new(0);

/// The kernel's PF_EXITING, among a task's flags.
const EXITING: u64 = 4;

/// Whether a thread of this process is gone, or on its way: pthread_join returns before the kernel has done with it.
fn is_leaving(thread: c_int) -> bool {
    let mut digits = [0; 20];
    let name = [b"/proc/self/task/", raw::decimal(thread as u64, &mut digits), b"/stat\0"].concat();
    let mut text = [0; 512];
    // SAFETY: the name ends with a zero, and the buffer is as long as is said.
    let len = unsafe {
        let fd = sys!(libc::SYS_openat, libc::AT_FDCWD, name.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC, 0);
        if raw::is_err(fd) {
            return fd == err(libc::ENOENT) || fd == err(libc::ESRCH);
        }
        let len = sys!(libc::SYS_read, fd, text.as_mut_ptr(), text.len());
        raw::close(fd as c_int);
        len
    };
    if raw::is_err(len) {
        return len == err(libc::ESRCH);
    }
    exits(&text[..len as usize])
}

/// Of a line of `/proc/.../stat`: the name, in brackets, may hold anything.
fn exits(stat: &[u8]) -> bool {
    let behind = stat.iter().rposition(|byte| *byte == b')').map_or(&b""[..], |at| &stat[at + 1..]);
    let mut words = behind.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let flags =
        words.nth(6).and_then(|word| std::str::from_utf8(word).ok()).and_then(|word| word.parse().ok());
    flags.is_some_and(|flags: u64| flags & EXITING != 0)
}

/// Gives up the places of this thread, and of threads that are gone.
fn leave_queues() {
    if PLACE_COUNT.load(Ordering::Acquire) == 0 || pool::in_shared_child() {
        return;
    }
    let me = raw::gettid();
    pool::run(|_| {
        let mut places = PLACES.lock();
        let left: Vec<_> =
            places.extract_if(.., |(thread, _)| *thread == me || is_leaving(*thread)).collect();
        PLACE_COUNT.store(places.len(), Ordering::Release);
        drop(places);
        left.into_iter().for_each(|(_, place)| place.leave());
        Ok(0)
    });
}

impl Wish<'_> {
    fn ask(&self, client: &Client) -> Result<isize, FsError> {
        client.lock(self.entry.ino, self.owner, self.kind, self.range, self.mode, self.pid).map(|()| 0)
    }

    fn carry_out(&self, wait: Wait) -> isize {
        leave_queues();
        if wait == Wait::No {
            return self.ask_once();
        }
        // A signal that comes between an answer and the sleep would be forgotten by the sleep.
        let signals = signals::Held::back();
        let is_cancellable = wait == Wait::Cancellable;
        if pool::in_shared_child() {
            return self.ask_again(&signals, is_cancellable);
        }
        let result = match self.ask_once() {
            refused if refused == err(libc::EAGAIN) => self.wait_in_queue(&signals, is_cancellable),
            result => result,
        };
        leave_queues();
        result
    }

    fn wait_in_queue(&self, signals: &signals::Held, is_cancellable: bool) -> isize {
        loop {
            let socket = self.queue();
            if raw::is_err(socket) {
                return socket;
            }
            loop {
                if signals.sleep_until_readable(socket as c_int, is_cancellable) {
                    return err(libc::EINTR);
                }
                match look() {
                    Ok(Queued::Waits) => {}
                    Ok(Queued::Turn | Queued::Lost) => break,
                    Err(code) => return code,
                }
            }
            match self.ask_once() {
                refused if refused == err(libc::EAGAIN) => leave_queues(),
                result => return result,
            }
        }
    }

    /// Takes this thread's place in the queue; the socket that tells when it is its turn.
    fn queue(&self) -> isize {
        pool::run(|client| {
            let Wish { owner, kind, range, mode, pid, .. } = *self;
            let wish = LockWish { ino: self.entry.ino, owner, kind, range, mode, pid };
            let place = client.queue_for_lock(&wish).map_err(|error| pool::report(&error))?;
            let socket = place.socket().as_raw_fd();
            let mut places = PLACES.lock();
            places.push((raw::gettid(), place));
            PLACE_COUNT.store(places.len(), Ordering::Release);
            Ok(socket as isize)
        })
    }

    /// Where there is one session for each request there is no queue.
    fn ask_again(&self, signals: &signals::Held, is_cancellable: bool) -> isize {
        let mut wait_us = WAIT_FIRST_US;
        loop {
            let result = self.ask_once();
            if result != err(libc::EAGAIN) {
                return result;
            }
            if signals.sleep(wait_us, is_cancellable) {
                return err(libc::EINTR);
            }
            wait_us = (wait_us * 2).min(WAIT_MOST_US);
        }
    }

    fn ask_once(&self) -> isize {
        pool::run(|client| self.ask(client).map_err(|error| pool::report(&error)))
    }
}

/// What is to be seen from this thread's place in a queue. A handler that forked has none in the child.
fn look() -> Result<Queued, isize> {
    let mut seen = Queued::Lost;
    let result = pool::run(|_| {
        let me = raw::gettid();
        if let Some((_, place)) = PLACES.lock().iter_mut().find(|(thread, _)| *thread == me) {
            seen = place.look().map_err(|error| pool::report(&error))?;
        }
        Ok(0)
    });
    if raw::is_err(result) { Err(result) } else { Ok(seen) }
}

/// A flock lock this process holds.
#[derive(Clone)]
pub struct Hold {
    pub entry: Entry,
    mode: LockMode,
}

static HOLDS: ForkLock<Vec<Hold>> = ForkLock::new(Vec::new());

pub fn lock_for_fork() {
    HOLDS.acquire();
    PLACES.acquire();
}

pub fn unlock_after_fork() {
    PLACES.force_open();
    HOLDS.force_open();
}

/// A forked child shares its parent's locks but is not the one that must hand them on.
pub fn became_child() {
    HOLDS.lock().clear();
    PLACES.lock().clear();
    PLACE_COUNT.store(0, Ordering::Release);
}

/// True when this process has locked by description, ever.
pub fn any_by_description() -> bool {
    FLOCK_USED.load(Ordering::Relaxed)
}

pub fn holds_any() -> bool {
    FLOCK_USED.load(Ordering::Relaxed) && !HOLDS.lock().is_empty()
}

pub fn take_holds() -> Vec<Hold> {
    if FLOCK_USED.load(Ordering::Relaxed) { std::mem::take(&mut HOLDS.lock()) } else { Vec::new() }
}

fn note(entry: &Entry, mode: LockMode) {
    let _inside = Inside::enter(Work::Looks);
    let mut holds = HOLDS.lock();
    holds.retain(|hold| hold.entry.description != entry.description);
    if mode != LockMode::Unlock {
        holds.push(Hold { entry: *entry, mode });
    }
}

pub fn drop_hold(hold: &Hold) {
    drop_all(&hold.entry, description(&hold.entry), LockKind::Flock);
}

/// Takes a lock over into this process's session: the owner is the same, so it is granted.
pub fn take_again(hold: &Hold) -> bool {
    let owner = description(&hold.entry);
    let (entry, mode, pid) = (&hold.entry, hold.mode, raw::getpid() as u32);
    Wish { entry, owner, kind: LockKind::Flock, range: WHOLE, mode, pid }.carry_out(Wait::No) == 0
}

pub fn flock(fd: c_int, operation: c_int) -> isize {
    let Some(entry) = object(fd) else {
        // SAFETY: no pointers.
        return kernel_unless_hidden(fd, || unsafe { sys!(libc::SYS_flock, fd, operation) });
    };
    let mode = match operation & !libc::LOCK_NB {
        libc::LOCK_SH => LockMode::Read,
        libc::LOCK_EX => LockMode::Write,
        libc::LOCK_UN => LockMode::Unlock,
        _ => return err(libc::EINVAL),
    };
    FLOCK_USED.store(true, Ordering::Relaxed);
    let pid = raw::getpid() as u32;
    let owner = description(&entry);
    let wish = Wish { entry: &entry, owner, kind: LockKind::Flock, range: WHOLE, mode, pid };
    let result = wish.carry_out(if operation & libc::LOCK_NB == 0 { Wait::Plainly } else { Wait::No });
    if result == 0 && !pool::in_shared_child() {
        note(&entry, mode);
    }
    result
}

/// `fcntl` with a lock command on one of ours.
///
/// # Safety
/// `lock` is valid for a `struct flock`.
pub unsafe fn fcntl(fd: c_int, entry: &Entry, command: c_int, lock: *mut libc::flock) -> isize {
    let by_description = [libc::F_OFD_SETLK, libc::F_OFD_SETLKW, libc::F_OFD_GETLK].contains(&command);
    if !raw::is_memory(lock as usize, size_of::<libc::flock>()) {
        return err(libc::EFAULT);
    }
    // SAFETY: the caller's promise.
    let lock = unsafe { &mut *lock };
    let mode = match i32::from(lock.l_type) {
        libc::F_RDLCK => LockMode::Read,
        libc::F_WRLCK => LockMode::Write,
        libc::F_UNLCK => LockMode::Unlock,
        _ => return err(libc::EINVAL),
    };
    let range = match range_of(fd, entry, lock) {
        Ok(range) => range,
        Err(code) => return code,
    };
    let owner = if by_description { description(entry) } else { process() };
    let pid = if by_description { PID_OPEN_FILE } else { raw::getpid() as u32 };
    // Locks by description and by process conflict with each other, so they are of one kind.
    let wish = Wish { entry, owner, kind: LockKind::Posix, range, mode, pid };
    if [libc::F_GETLK, libc::F_OFD_GETLK].contains(&command) {
        return test(&wish, lock);
    }
    let allowed = match mode {
        LockMode::Read => entry.readable(),
        LockMode::Write => entry.writable(),
        LockMode::Unlock => true,
    };
    if !allowed {
        return err(libc::EBADF);
    }
    let used = if by_description { &FLOCK_USED } else { &POSIX_USED };
    used.store(true, Ordering::Relaxed);
    let waits = [libc::F_SETLKW, libc::F_OFD_SETLKW].contains(&command);
    wish.carry_out(if waits { Wait::Cancellable } else { Wait::No })
}

fn test(wish: &Wish, out: &mut libc::flock) -> isize {
    pool::run(|client| {
        let held = client.test_lock(wish.entry.ino, wish.owner, wish.kind, wish.range, wish.mode);
        let Some(held) = held.map_err(|error| pool::report(&error))? else {
            out.l_type = libc::F_UNLCK as i16;
            return Ok(0);
        };
        out.l_type = if held.mode == LockMode::Read { libc::F_RDLCK as i16 } else { libc::F_WRLCK as i16 };
        out.l_whence = libc::SEEK_SET as i16;
        out.l_start = held.range.start as i64;
        out.l_len =
            if held.range.end >= WHOLE.end { 0 } else { (held.range.end - held.range.start + 1) as i64 };
        out.l_pid = held.pid as i32;
        Ok(0)
    })
}

fn range_of(fd: i32, entry: &Entry, lock: &libc::flock) -> Result<LockRange, isize> {
    let base = match i32::from(lock.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => files::lseek(fd, 0, libc::SEEK_CUR) as i64,
        libc::SEEK_END => {
            let ask = |client: &Client| client.get_attr(entry.ino).map(|attr| attr.size as isize);
            match pool::run(|client| ask(client).map_err(|error| pool::report(&error))) {
                code if raw::is_err(code) => return Err(code),
                size => size as i64,
            }
        }
        _ => return Err(err(libc::EINVAL)),
    };
    let start = base.checked_add(lock.l_start).ok_or(err(libc::EOVERFLOW))?;
    let (first, last) = match lock.l_len {
        0 => (start, i64::MAX),
        len if len > 0 => (start, start.checked_add(len - 1).ok_or(err(libc::EOVERFLOW))?),
        len => (start + len, start - 1),
    };
    if first < 0 {
        return Err(err(libc::EINVAL));
    }
    Ok(LockRange { start: first as u64, end: last as u64 })
}

/// POSIX: closing any descriptor of a file drops all the process's locks on it.
pub fn closing(entry: &Entry) {
    if any_posix() && entry.held() {
        drop_all(entry, process(), LockKind::Posix);
    }
}

/// The description has no descriptor left in this process. Its locks end when its last holder ends: we
/// cannot know whether another process still holds it, so only the pool's end of session drops them,
/// unless this process is the one that opened it.
pub fn closed(entry: &Entry) {
    if holds_any() {
        note(entry, LockMode::Unlock);
    }
    if FLOCK_USED.load(Ordering::Relaxed) && entry.held() && pool::made_here(&entry.description) {
        drop_all(entry, description(entry), LockKind::Flock);
        drop_all(entry, description(entry), LockKind::Posix);
    }
}

fn drop_all(entry: &Entry, owner: LockOwner, kind: LockKind) {
    leave_queues();
    let wish = Wish { entry, owner, kind, range: WHOLE, mode: LockMode::Unlock, pid: raw::getpid() as u32 };
    pool::run(|client| wish.ask(client).map_err(|_| Errno::EIO));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_leave_are_known_by_their_flags() {
        let line = |flags| format!("12 (a) b (c) S 1 12 12 0 -1 {flags} 9 0 0");
        assert!(exits(line(4_194_304 | 4).as_bytes()) && !exits(line(4_194_304).as_bytes()) && !exits(b""));
        assert!(!is_leaving(raw::gettid()) && is_leaving(c_int::MAX));
    }
}
