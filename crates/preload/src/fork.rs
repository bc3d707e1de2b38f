//! What a fork means for our tables.
//!
//! Lock order, for the prepare step and everywhere: connecting, registry, listings, mappings,
//! locks held, working directory, credentials, libraries, libaio's queue, what is done with SIGSYS. None is held while another thread's user code runs.

use crate::raw::{self, sys};
use crate::{config, cred, cwd, dirs, dispatch, fdtable, libaio, library, locks, mmap, pool, slots};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// A page that the kernel clears in every child with a copy of our memory (MADV_WIPEONFORK), however it
/// was made. Tells a forked child from one that shares our memory.
static STAMP: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
const STAMPED: u64 = 0x7469_6465;

unsafe extern "C" {
    fn __register_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
        dso: *const libc::c_void,
    ) -> libc::c_int;
}

/// Prepares this process: called by the constructor or by the first door used before it.
pub fn own(pid: i32) {
    if STAMP.load(Ordering::Acquire).is_null() {
        // SAFETY: a fresh anonymous page; the advice applies to it alone.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let page = sys!(libc::SYS_mmap, 0, 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1isize, 0);
            if !raw::is_err(page) {
                sys!(libc::SYS_madvise, page, 4096, libc::MADV_WIPEONFORK);
                let stamp = page as *mut AtomicU64;
                (*stamp).store(STAMPED, Ordering::Relaxed);
                STAMP.store(stamp, Ordering::Release);
            }
        }
    }
    pool::set_owner(pid);
}

pub fn register() {
    // SAFETY: the functions live as long as the process: a preloaded library is never unloaded.
    unsafe { __register_atfork(Some(prepare), Some(parent), Some(child), std::ptr::null()) };
}

/// True in a child whose memory is a copy.
pub fn memory_was_copied() -> bool {
    let stamp = STAMP.load(Ordering::Acquire);
    // SAFETY: the page is never unmapped. Without a page (mmap failed) a fork is the likelier case.
    stamp.is_null() || unsafe { (*stamp).load(Ordering::Relaxed) } != STAMPED
}

/// A fork past libc's, whose handlers it does not call.
pub fn around(fork: impl FnOnce() -> isize) -> isize {
    prepare();
    let made = fork();
    if made == 0 {
        child();
    } else {
        parent();
    }
    made
}

extern "C" fn prepare() {
    if config::mount().is_none() || pool::in_shared_child() {
        return;
    }
    mmap::flush_all();
    pool::lock_for_fork();
    fdtable::lock_for_fork();
    dirs::lock_for_fork();
    mmap::lock_for_fork();
    locks::lock_for_fork();
    cwd::lock_for_fork();
    cred::lock_for_fork();
    library::lock_for_fork();
    libaio::lock_for_fork();
    dispatch::lock_for_fork();
}

fn unlock() {
    dispatch::unlock_after_fork();
    libaio::unlock_after_fork();
    library::unlock_after_fork();
    cred::unlock_after_fork();
    cwd::unlock_after_fork();
    locks::unlock_after_fork();
    mmap::unlock_after_fork();
    dirs::unlock_after_fork();
    fdtable::unlock_after_fork();
    pool::unlock_after_fork();
}

extern "C" fn parent() {
    if config::mount().is_some() && !pool::in_shared_child() {
        unlock();
    }
}

extern "C" fn child() {
    // Any question notices the copy; this one does it before the child's own code runs.
    if config::mount().is_some() {
        pool::in_shared_child();
    }
}

/// Makes a forked child the owner of its copied tables.
pub fn became_child() {
    let stamp = STAMP.load(Ordering::Acquire);
    if !stamp.is_null() {
        // SAFETY: the page is never unmapped.
        unsafe { (*stamp).store(STAMPED, Ordering::Relaxed) };
    }
    pool::set_owner(raw::getpid());
    unlock();
    slots::force_open_all();
    pool::drop_parents_client();
    libaio::became_child();
    dispatch::watch();
    locks::became_child();
    if UNLINKED.load(Ordering::Relaxed) && fdtable::any_open() {
        // An open object without a name lives only as long as a process is known to have it open, and
        // the parent may close it at once.
        pool::run(|_| Ok(0));
    }
}

/// This process removed a name while it had files open.
static UNLINKED: AtomicBool = AtomicBool::new(false);

pub fn unlinked() -> bool {
    UNLINKED.load(Ordering::Relaxed)
}

pub fn note_unlink() {
    if !UNLINKED.load(Ordering::Relaxed) && fdtable::any_open() {
        UNLINKED.store(true, Ordering::Relaxed);
    }
}
