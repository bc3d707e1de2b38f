//! The one client of this process: made at the first touch of the pool, made anew after a fork.
//!
//! Three kinds of process meet this code: the owner of the tables; a forked child (memory copied: it
//! becomes an owner at once); and a *shared child* such as posix_spawn's, which runs in its parent's
//! memory with descriptors of its own. The last may change nothing here and uses a client of its own
//! for each call.

use crate::inside::{self, Inside, Work};
use crate::lock::ForkLock;
use crate::placeholder::DescriptionId;
use crate::raw::{self, sys};
use crate::{config, fdtable, fork, mmap, stack, standin};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use tidepool_client::{Client, FsError};
use tidepool_types::{Errno, Ino, InstanceId};

/// What handlers return inside: the call's value, or an error number.
pub type Outcome = Result<isize, Errno>;

/// The process that owns the tables; 0 before the first question.
static OWNER: AtomicI32 = AtomicI32::new(0);
static CLIENT: AtomicPtr<Client> = AtomicPtr::new(std::ptr::null_mut());
/// The parent's client: only its configuration may be used.
static PARENT: AtomicPtr<Client> = AtomicPtr::new(std::ptr::null_mut());
static CONNECTING: ForkLock<()> = ForkLock::new(());

/// True in a child that runs in the memory of the owner. Outside the guard this costs a system call, which
/// is the only safe answer: such a child has its parent's thread-local storage too.
#[inline]
pub fn in_shared_child() -> bool {
    inside::in_shared_child().unwrap_or_else(ask)
}

#[inline]
fn ask() -> bool {
    let pid = raw::getpid();
    OWNER.load(Ordering::Relaxed) != pid && is_shared_child(pid)
}

#[cold]
fn is_shared_child(pid: i32) -> bool {
    if OWNER.load(Ordering::Relaxed) == 0 {
        fork::own(pid);
        return false;
    }
    if fork::memory_was_copied() {
        fork::became_child();
        return false;
    }
    true
}

pub fn set_owner(pid: i32) {
    OWNER.store(pid, Ordering::Relaxed);
}

/// Runs `work` inside the guard with the client; a negative error number on failure.
pub fn run(work: impl FnOnce(&Client) -> Outcome) -> isize {
    run_as(Work::Changes, work)
}

/// The same for work that changes nothing in the pool.
pub fn look(work: impl FnOnce(&Client) -> Outcome) -> isize {
    run_as(Work::Looks, work)
}

pub fn run_as(kind: Work, work: impl FnOnce(&Client) -> Outcome) -> isize {
    let Some(_inside) = Inside::enter(kind) else { return raw::err(libc::EDEADLK) };
    run_inside(work)
}

/// The same for callers that are inside already.
pub fn run_inside(work: impl FnOnce(&Client) -> Outcome) -> isize {
    if in_shared_child() || !stack::has_room() {
        let (mut work, mut result) = (Some(work), raw::err(libc::EIO));
        stack::with_room(&mut || {
            if let Some(work) = work.take() {
                result = guarded(work);
            }
        });
        return result;
    }
    guarded(work)
}

fn guarded(work: impl FnOnce(&Client) -> Outcome) -> isize {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| with_client(work))) {
        Ok(Ok(value)) => value,
        Ok(Err(errno)) => raw::err(errno.0),
        Err(_) => abort_with("panic in the preload client"),
    }
}

/// Panics must not cross into C; the file system's state in this process is unknown after one.
pub fn abort_with(why: &str) -> ! {
    raw::write_all(2, b"tidepool preload: ");
    raw::write_all(2, why.as_bytes());
    raw::write_all(2, b"\n");
    std::process::abort()
}

fn with_client(work: impl FnOnce(&Client) -> Outcome) -> Outcome {
    if in_shared_child() {
        let client = fresh_client().map_err(|error| report(&error))?;
        return work(&client);
    }
    work(client()?)
}

fn client() -> Result<&'static Client, Errno> {
    let known = CLIENT.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: leaked when stored; never freed.
        return Ok(unsafe { &*known });
    }
    let _lock = CONNECTING.lock();
    if CLIENT.load(Ordering::Acquire).is_null() {
        let client = fresh_client().map_err(|error| report(&error))?;
        // After a fork: what was open stays open, now in this process's name.
        for ino in fdtable::open_objects() {
            let _ = client.reopen(ino);
        }
        CLIENT.store(Box::leak(Box::new(client)), Ordering::Release);
    }
    // SAFETY: as above.
    Ok(unsafe { &*CLIENT.load(Ordering::Acquire) })
}

fn fresh_client() -> Result<Client, FsError> {
    tidepool_client::set_fd_placer(place_descriptor);
    for known in [&CLIENT, &PARENT] {
        let known = known.load(Ordering::Acquire);
        if !known.is_null() {
            // SAFETY: leaked when stored; `reborn` reads only what never changes.
            return Ok(unsafe { &*known }.reborn());
        }
    }
    let file = config::pool_file();
    if file.is_empty() {
        return Err(FsError::new(Errno::ENOTCONN, "TIDEPOOL_POOL names no pool file"));
    }
    let client = Client::from_pool_file(Path::new(std::ffi::OsStr::from_bytes(file)))?;
    match config::phase_bytes() {
        b"" => Ok(client),
        said => client.with_phase_bytes(said),
    }
}

/// Errors with a cause (a dead daemon, a lost pool file) are told once per kind of error number.
pub fn report(error: &FsError) -> Errno {
    static TOLD: AtomicU32 = AtomicU32::new(0);
    if let Some(detail) = error.detail() {
        let bit = 1u32 << (error.errno().0 as u32 % 32);
        config::log(&[b"error: ", detail.as_bytes()]);
        if TOLD.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            raw::write_all(2, format!("tidepool: {error}\n").as_bytes());
        }
    }
    error.errno()
}

/// Where the client's own descriptors start: above the numbers that programs expect for themselves.
pub fn lowest_of_ours() -> usize {
    /// Where select()'s sets end; programs rarely look up here.
    const TOP: u64 = 1024;
    const ROOM: u64 = 96;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes the given struct.
    unsafe { sys!(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0, &raw mut limit) };
    limit.rlim_cur.min(TOP).saturating_sub(ROOM).max(64) as usize
}

/// Moves a client's socket there.
fn place_descriptor(fd: OwnedFd) -> OwnedFd {
    let kept = move_up(fd.into_raw_fd());
    // SAFETY: the descriptor is open and nobody else's.
    unsafe { OwnedFd::from_raw_fd(kept) }
}

/// Moves a descriptor of the client's there and hides it; where it is now.
pub fn move_up(old: i32) -> i32 {
    let moved = raw::fcntl(old, libc::F_DUPFD_CLOEXEC, lowest_of_ours());
    let kept = if moved >= 0 {
        raw::close(old);
        moved as i32
    } else {
        old
    };
    if !in_shared_child() {
        fdtable::hide(kept);
    }
    kept
}

/// After a fork, in the child: the parent's sockets are closed (or its session would live as long as we
/// do) and its client is kept for its configuration only.
pub fn drop_parents_client() {
    for fd in fdtable::hidden_between(0, u32::MAX)
        .filter(|fd| !mmap::owns(*fd as i32) && !standin::owns(*fd as i32))
    {
        raw::close(fd as i32);
        fdtable::unhide(fd as i32);
    }
    let parent = CLIENT.swap(std::ptr::null_mut(), Ordering::AcqRel);
    if !parent.is_null() {
        PARENT.store(parent, Ordering::Release);
    }
    SEED[0].store(0, Ordering::Relaxed);
}

/// True when this process has a session with the pool.
pub fn connected() -> bool {
    !CLIENT.load(Ordering::Acquire).is_null()
}

/// Does a placeholder belong to the pool that `TIDEPOOL_POOL` names?
pub fn is_our_instance(instance: InstanceId) -> bool {
    let mut same = false;
    run(|client| {
        same = client.instance() == instance;
        Ok(0)
    });
    same
}

/// Tells the pool that this process has `ino` open (a descriptor that came from another process).
pub fn register(ino: Ino) {
    run(|client| client.reopen(ino).map(|_| 0).map_err(|error| error.errno()));
}

/// Before `ino` is closed: tells the pool how far this process has written, as far as it has not.
pub fn settle(client: &Client, ino: Ino) -> Result<(), Errno> {
    client.settle(ino).map_err(|error| report(&error))
}

/// The same for all files.
pub fn settle_all() {
    let known = CLIENT.load(Ordering::Acquire);
    // SAFETY: leaked when stored; never freed.
    if !known.is_null() && unsafe { !(*known).has_told_all() } && !crate::inside::inside() {
        run(|client| client.settle_all().map(|()| 0).map_err(|error| report(&error)));
    }
    flush_record(false);
}

/// What was recorded of this process's requests is written; with `ends`, it ends or runs another program.
pub fn flush_record(ends: bool) {
    let known = CLIENT.load(Ordering::Acquire);
    // SAFETY: leaked when stored; never freed.
    if !known.is_null() && unsafe { (*known).is_recorded() } && !crate::inside::inside() {
        look(|client| {
            client.flush_record(ends);
            Ok(0)
        });
    }
}

/// The last descriptor of an open file description of this process is gone.
pub fn release(ino: Ino) {
    if connected() {
        look(|client| {
            let settled = settle(client, ino);
            client.release(ino);
            settled.map(|()| 0)
        });
    }
}

pub fn lock_for_fork() {
    CONNECTING.acquire();
}

pub fn unlock_after_fork() {
    CONNECTING.force_open();
}

static SEED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static COUNT: AtomicU64 = AtomicU64::new(0);

/// An id no other process will make: 8 random bytes of this process, then random plus a count.
pub fn new_description() -> DescriptionId {
    if in_shared_child() {
        return DescriptionId(random());
    }
    if SEED[0].load(Ordering::Acquire) == 0 {
        let random = random::<16>();
        let mut half = [0; 8];
        half.copy_from_slice(&random[8..]);
        SEED[1].store(u64::from_le_bytes(half), Ordering::Relaxed);
        half.copy_from_slice(&random[..8]);
        SEED[0].store(u64::from_le_bytes(half) | 1, Ordering::Release);
    }
    let n = COUNT.fetch_add(1, Ordering::Relaxed).wrapping_add(SEED[1].load(Ordering::Relaxed));
    let mut id = [0; 16];
    id[..8].copy_from_slice(&SEED[0].load(Ordering::Relaxed).to_le_bytes());
    id[8..].copy_from_slice(&n.to_le_bytes());
    DescriptionId(id)
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // SAFETY: the array is valid for its length.
    unsafe { sys!(libc::SYS_getrandom, bytes.as_mut_ptr(), N, 0) };
    bytes
}

/// True when this very process (not a parent before a fork) opened the description.
pub fn made_here(id: &DescriptionId) -> bool {
    id.0[..8] == SEED[0].load(Ordering::Relaxed).to_le_bytes()
}

/// Owner number of the POSIX locks of process `pid`. POSIX locks survive exec, so the number must come
/// out the same after it: from what the kernel keeps about the process.
pub fn process_owner(pid: i32) -> u64 {
    let mut stat = [0u8; 512];
    // SAFETY: a C string; the array is valid for its length.
    let len = unsafe {
        let fd = sys!(
            libc::SYS_openat,
            libc::AT_FDCWD,
            c"/proc/self/stat".as_ptr(),
            libc::O_RDONLY | libc::O_CLOEXEC,
            0
        );
        let len = raw::pread(fd as i32, &mut stat, 0).max(0) as usize;
        raw::close(fd as i32);
        len
    };
    // Field 22 is the start time; the name in field 2 may hold spaces but ends at the last parenthesis.
    let text = &stat[..len];
    let tail = text.iter().rposition(|&b| b == b')').map_or(&text[..0], |at| &text[at..]);
    let start = tail.split(|&b| b == b' ').nth(20).unwrap_or_default();
    let host = random_of_boot();
    start.iter().fold(host ^ pid as u64, |hash, b| hash.wrapping_mul(0x100_0000_01b3) ^ u64::from(*b))
}

/// A number that differs between nodes and boots.
fn random_of_boot() -> u64 {
    let mut id = [0u8; 36];
    // SAFETY: a C string; the array is valid for its length.
    unsafe {
        let name = c"/proc/sys/kernel/random/boot_id".as_ptr();
        let fd = sys!(libc::SYS_openat, libc::AT_FDCWD, name, libc::O_RDONLY | libc::O_CLOEXEC, 0) as i32;
        raw::pread(fd, &mut id, 0);
        raw::close(fd);
    }
    id.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, b| (hash ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

pub fn random_number() -> u64 {
    u64::from_le_bytes(random())
}
