//! The guard around our own code: while a thread is inside, its libc calls go straight to the
//! kernel, no signal handler of the program runs on it, and nobody cancels it.
//!
//! Signals are held back because a handler may write to a pool file (and would meet our locks held by
//! the thread it interrupted) or leave by `siglongjmp` (and our locks would stay held), and because a
//! process that a signal ends between two steps of a change leaves waste in the pool. Work that only
//! looks needs neither when the program has no handlers, which spares two system calls.

use crate::cancel;
use crate::pool;
use crate::raw::sys;
use crate::signals;
use crate::stack::Bounds;
use std::arch::{asm, global_asm};

// Initial-exec thread-local storage: no call, no allocation, right from the thread's first instruction.
// Rust's `thread_local!` would call __tls_get_addr, which may allocate.
global_asm!(
    ".section .tbss,\"awT\",@nobits",
    ".globl tidepool_preload_inside",
    ".hidden tidepool_preload_inside",
    ".type tidepool_preload_inside,@object",
    ".size tidepool_preload_inside,40",
    ".p2align 3",
    "tidepool_preload_inside: .zero 40",
    ".text",
);

/// This thread's own words.
#[repr(C)]
struct State {
    flags: u64,
    /// The program's signal mask while `MASKED`.
    mask: u64,
    /// The kernel looks here before it hands a call over; see `dispatch.rs`.
    selector: u64,
    stack: Bounds,
}

/// Calls outside libc are the kernel's, or are handed over.
pub const ALLOW: u64 = 0;
pub const BLOCK: u64 = 1;

/// Sets this thread's selector; its address. The kernel reads the lowest byte.
pub fn selector(value: u64) -> *mut u64 {
    // SAFETY: the address is this thread's own variable.
    unsafe {
        (*state()).selector = value;
        &raw mut (*state()).selector
    }
}

/// What of this thread's stack is known; see `stack.rs`.
pub fn bounds() -> *mut Bounds {
    // SAFETY: the address is this thread's own variable.
    unsafe { &raw mut (*state()).stack }
}

/// Inside, in the process that owns the tables.
const OWNER: u64 = 1;
/// Inside, in a child that shares the owner's memory.
const SHARED_CHILD: u64 = 2;
const MASKED: u64 = 4;

const SIGSET_BYTES: usize = 8;

/// What the work inside may do to the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Nothing that could be left half done: no signal needs to wait unless a handler could run.
    Looks,
    Changes,
}

fn state() -> *mut State {
    let address: *mut State;
    // SAFETY: reads the thread pointer (fs:0 holds its own address) and our variable's offset.
    unsafe {
        asm!("mov {a}, qword ptr fs:[0]", "add {a}, qword ptr [rip + tidepool_preload_inside@GOTTPOFF]",
             a = out(reg) address, options(nostack, readonly));
    }
    address
}

/// True while this thread runs our own code.
#[inline]
pub fn inside() -> bool {
    // SAFETY: the address is this thread's own variable.
    unsafe { (*state()).flags != 0 }
}

/// Inside: is this a shared child? Asked of the kernel once, on the way in; a thread's process does not
/// change while it is inside.
#[inline]
pub fn in_shared_child() -> Option<bool> {
    // SAFETY: the address is this thread's own variable.
    match unsafe { (*state()).flags } {
        0 => None,
        flags => Some(flags & SHARED_CHILD != 0),
    }
}

/// This thread is inside until the value is dropped. Keeps `errno` as it was.
pub struct Inside {
    errno: i32,
    cancelling: cancel::Held,
}

impl Inside {
    /// `None` when the thread is inside already.
    pub fn enter(work: Work) -> Option<Inside> {
        if inside() {
            return None;
        }
        let cancelling = cancel::Held::back();
        let role = if pool::in_shared_child() { SHARED_CHILD } else { OWNER };
        // SAFETY: errno and flags are this thread's.
        unsafe {
            if work == Work::Changes || signals::may_run_handlers() {
                mask_signals();
            }
            (*state()).flags |= role;
            // A thread that made a child by itself is watched again.
            (*state()).selector = BLOCK;
            Some(Inside { errno: *libc::__errno_location(), cancelling })
        }
    }
}

/// Inside, before a change in several steps: from here on signals wait, whatever the guard was made for.
pub fn hold_signals() {
    // SAFETY: the flags are this thread's.
    if unsafe { (*state()).flags } & MASKED == 0 {
        // SAFETY: not masked yet; dropping the guard unmasks.
        unsafe { mask_signals() };
    }
}

/// # Safety
/// The mask must be set back by whoever clears `MASKED`.
unsafe fn mask_signals() {
    let all = !0u64;
    let mut mask = 0u64;
    // SAFETY: both sets are 8 bytes, as the kernel's. No handler runs once the call is done, so the words
    // are changed by nobody else.
    unsafe {
        sys!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all, &raw mut mask, SIGSET_BYTES);
        (*state()).mask = mask;
        (*state()).flags |= MASKED;
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // SAFETY: as in `enter`. The flags are cleared first: a handler that comes with the old mask is
        // outside. It may leave for good, so cancellation is as before by then.
        unsafe {
            *libc::__errno_location() = self.errno;
            let State { flags, mask, .. } = state().read();
            (*state()).flags = 0;
            self.cancelling.as_before();
            if flags & MASKED != 0 {
                sys!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, 0, SIGSET_BYTES);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocked(signal: i32) -> bool {
        // SAFETY: a set of its own.
        unsafe {
            let mut now: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut now);
            libc::sigismember(&raw const now, signal) == 1
        }
    }

    #[test]
    fn signals_wait_while_something_changes() {
        let guard = Inside::enter(Work::Changes).unwrap();
        assert!(inside() && Inside::enter(Work::Looks).is_none() && blocked(libc::SIGUSR1));
        drop(guard);
        assert!(!inside() && !blocked(libc::SIGUSR1));
        let guard = Inside::enter(Work::Looks).unwrap();
        hold_signals();
        hold_signals();
        assert!(blocked(libc::SIGUSR1) && in_shared_child() == Some(false));
        drop(guard);
        assert!(!blocked(libc::SIGUSR1) && in_shared_child().is_none());
    }
}
