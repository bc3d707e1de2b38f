//! Which programs have signal handlers. See `inside.rs` for what that matters to.

use crate::raw::err;
use crate::real::real;
use libc::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

static HANDLERS: AtomicBool = AtomicBool::new(false);

/// Signals that a thread raises by what it does itself. While our code runs they are faults of ours or of a
/// pointer the program gave us; holding them back would only turn the handler's message into silence.
const OWN_FAULTS: [c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

/// True when a signal could make the program's own code run on a thread of ours.
#[inline]
pub fn may_run_handlers() -> bool {
    HANDLERS.load(Ordering::Relaxed)
}

/// The program sets this handler (or default, or ignore).
pub fn note(signal: c_int, handler: usize) {
    if ![libc::SIG_DFL, libc::SIG_IGN].contains(&handler) && !OWN_FAULTS.contains(&signal) {
        HANDLERS.store(true, Ordering::SeqCst);
    }
}

/// # Safety
/// The arguments of `sigaction`.
pub unsafe fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> isize {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(new) = new.as_ref() {
            note(signal, new.sa_sigaction);
        }
        real!(SIGACTION(signal, new, old) as fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int)
    }
}

/// `signal` and its kin, by their function of libc.
pub fn signal(old_style: OldStyle, signal: c_int, handler: usize) -> isize {
    note(signal, handler);
    // SAFETY: numbers, and the program's handler.
    unsafe {
        match old_style {
            OldStyle::Signal => real!(SIGNAL(signal, handler) as fn(c_int, usize) -> usize),
            OldStyle::SysvSignal => real!(SYSV_SIGNAL(signal, handler) as fn(c_int, usize) -> usize),
            OldStyle::Sigset => real!(SIGSET(signal, handler) as fn(c_int, usize) -> usize),
        }
    }
}

pub enum OldStyle {
    Signal,
    SysvSignal,
    Sigset,
}

/// `rt_sigaction` by number: the handler is the first word of the kernel's struct.
///
/// # Safety
/// The arguments of the system call.
pub unsafe fn by_number(args: [usize; 6]) -> isize {
    if args[1] != 0 {
        // SAFETY: the caller's promise.
        note(args[0] as c_int, unsafe { (args[1] as *const usize).read_unaligned() });
    }
    if args[3] != size_of::<u64>() {
        return err(libc::EINVAL);
    }
    // SAFETY: the caller's arguments.
    unsafe { crate::raw::sys!(libc::SYS_rt_sigaction, args[0], args[1], args[2], args[3]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_handlers_that_may_come_any_time_count() {
        note(libc::SIGSEGV, 0x1000);
        note(libc::SIGINT, libc::SIG_DFL);
        note(libc::SIGPIPE, libc::SIG_IGN);
        assert!(!may_run_handlers());
        note(libc::SIGUSR2, 0x1000);
        assert!(may_run_handlers());
    }
}
