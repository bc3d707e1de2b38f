//! Which programs have signal handlers. See `inside.rs` for what that matters to.

use crate::cancel;
use crate::dispatch::{self, Action};
use crate::raw::{self, err, sys};
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
    // SAFETY: the caller's promise; the first word of a set is the kernel's set.
    unsafe {
        let mut copy = new.as_ref().copied();
        if let Some(new) = &mut copy {
            note(signal, new.sa_sigaction);
            let mask = (&raw mut new.sa_mask).cast::<u64>();
            *mask = dispatch::allowed(*mask);
        }
        if signal == libc::SIGSYS && dispatch::is_on() {
            let before = dispatch::replace_action(copy.as_ref().map(from_libc));
            if let Some(old) = old.as_mut() {
                *old = to_libc(&before);
            }
            return 0;
        }
        let new = copy.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        real!(SIGACTION(signal, new, old) as fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int)
    }
}

fn from_libc(action: &libc::sigaction) -> Action {
    // SAFETY: the first word of a set is the kernel's set.
    let mask = unsafe { *(&raw const action.sa_mask).cast::<u64>() };
    Action { handler: action.sa_sigaction, flags: action.sa_flags as u64, restorer: 0, mask }
}

fn to_libc(action: &Action) -> libc::sigaction {
    // SAFETY: numbers and an empty pointer.
    unsafe {
        let mut result: libc::sigaction = std::mem::zeroed();
        result.sa_sigaction = action.handler;
        result.sa_flags = action.flags as c_int;
        *(&raw mut result.sa_mask).cast::<u64>() = action.mask;
        result
    }
}

/// `signal` and its kin, by their function of libc.
pub fn signal(old_style: OldStyle, signal: c_int, handler: usize) -> isize {
    note(signal, handler);
    if signal == libc::SIGSYS && dispatch::is_on() {
        let restarts = if let OldStyle::Signal = old_style { libc::SA_RESTART as u64 } else { 0 };
        return dispatch::replace_action(Some(Action { handler, flags: restarts, ..Action::default() }))
            .handler as isize;
    }
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

/// `rt_sigaction` by number.
///
/// # Safety
/// The arguments of the system call.
pub unsafe fn by_number(args: [usize; 6]) -> isize {
    let (signal, new, old) = (args[0] as c_int, args[1] as *const Action, args[2] as *mut Action);
    let given = |at: usize| at == 0 || raw::is_memory(at, size_of::<Action>());
    if args[3] != size_of::<u64>() {
        return err(libc::EINVAL);
    }
    if !given(args[1]) || !given(args[2]) {
        return err(libc::EFAULT);
    }
    // SAFETY: the caller's promise.
    unsafe {
        let mut copy = (!new.is_null()).then(|| new.read_unaligned());
        if let Some(new) = &mut copy {
            note(signal, new.handler);
            new.mask = dispatch::allowed(new.mask);
        }
        if signal == libc::SIGSYS && dispatch::is_on() {
            let before = dispatch::replace_action(copy);
            if !old.is_null() {
                old.write_unaligned(before);
            }
            return 0;
        }
        let new = copy.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        sys!(libc::SYS_rt_sigaction, signal, new, old, args[3])
    }
}

/// How long handlers with SA_RESTART wait at most where there are others, too.
const RESTARTING_WAIT_US: i64 = 50_000;
/// Set of all signals; sets are the kernel's, signal 1 in the lowest bit.
static ALL: u64 = !0;
const SET_BYTES: usize = 8;

/// Signals wait while something is asked again and again, except in the sleeps between.
pub struct Held {
    before: u64,
}

impl Held {
    pub fn back() -> Held {
        let mut before = 0u64;
        // SAFETY: both sets are as long as the kernel's.
        unsafe {
            sys!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const ALL, &raw mut before, SET_BYTES)
        };
        Held { before }
    }

    /// Sleeps with signals let through as before; true when a handler ran that ends calls. Handlers installed
    /// with SA_RESTART do not: as long as there are others, too, they wait for the end of the sleep, because the
    /// kernel does not tell which one ran.
    pub fn sleep(&self, micros: i64, cancellable: bool) -> bool {
        self.sleep_or_wake(-1, micros, cancellable)
    }

    /// The same until a descriptor is readable; sometimes it is not when this returns.
    pub fn sleep_until_readable(&self, fd: c_int, cancellable: bool) -> bool {
        self.sleep_or_wake(fd, RESTARTING_WAIT_US, cancellable)
    }

    fn sleep_or_wake(&self, fd: c_int, micros: i64, cancellable: bool) -> bool {
        let (restarting, ending) = handlers();
        let hold = if ending & !self.before == 0 { 0 } else { restarting };
        let woken = self.pause(fd, micros, hold, cancellable);
        if hold != 0 {
            self.pause(-1, 0, ending, cancellable);
        }
        woken && ending & !self.before != 0
    }

    /// True when a handler ran.
    fn pause(&self, fd: c_int, micros: i64, hold: u64, cancellable: bool) -> bool {
        let time = libc::timespec { tv_sec: 0, tv_nsec: micros * 1000 };
        let mask = self.before | hold;
        // One that is negative is passed over.
        let wait = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: reads the given structs. The mask is changed for the sleep and set back in one step.
        let call = || unsafe {
            let mut time = time;
            let mut wait = wait;
            sys!(libc::SYS_ppoll, &raw mut wait, 1, &raw mut time, &raw const mask, SET_BYTES)
        };
        let slept = if cancellable { cancel::point(&call) } else { call() };
        slept == err(libc::EINTR)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: the set is as long as the kernel's.
        unsafe { sys!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const self.before, 0, SET_BYTES) };
    }
}

/// Which signals have handlers: those that let calls go on, and those that end them.
fn handlers() -> (u64, u64) {
    let (mut restarting, mut ending) = (0, 0);
    // SIGSYS may be ours.
    for signal in (1..=64).filter(|signal| *signal != libc::SIGSYS) {
        // The kernel's struct: handler, flags, restorer, mask.
        let mut now = [0u64; 4];
        // SAFETY: fills the given words.
        unsafe { sys!(libc::SYS_rt_sigaction, signal, 0, now.as_mut_ptr(), SET_BYTES) };
        let set = if now[1] & libc::SA_RESTART as u64 != 0 { &mut restarting } else { &mut ending };
        if ![libc::SIG_DFL, libc::SIG_IGN].contains(&(now[0] as usize)) {
            *set |= 1 << (signal - 1);
        }
    }
    (restarting, ending)
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
