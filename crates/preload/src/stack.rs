//! A stack of our own where the program's has little room: in posix_spawn's inner child, which glibc gives 32 KiB, in threads of
//! the least size, as glibc's own for POSIX AIO, on stacks that a program has switched to itself, and in handlers.

use crate::inside;
use crate::raw::{self, sys};
use std::arch::asm;

const STACK_BYTES: usize = 1 << 20;
/// What work gets at least. Debug builds have taken more than 16 KiB.
const ROOM_BYTES: usize = 256 << 10;
/// Memory that programs map lies at least this far below the main thread's stack, however large that may become (Linux's `mmap_base`).
const MAIN_BYTES_MAX: usize = 128 << 20;

/// Addresses of a stack; both 0 before anybody has asked.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    low: usize,
    high: usize,
}

impl Bounds {
    /// Stacks with little room, and those we know nothing of, have none.
    fn has_room(self, here: usize) -> bool {
        here <= self.high && here.saturating_sub(self.low) >= ROOM_BYTES
    }
}

/// Whether work may go on where this thread is now. Asks for the thread's own stack once; any other than that counts as small.
#[inline]
pub fn has_room() -> bool {
    let here: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) here, options(nomem, nostack, preserves_flags)) };
    let known = inside::bounds();
    // SAFETY: this thread's own words.
    unsafe {
        if (*known).high == 0 {
            *known = of_thread();
        }
        (*known).has_room(here)
    }
}

unsafe extern "C" {
    /// glibc's: where the kernel began the main thread's stack.
    safe static __libc_stack_end: usize;
}

#[cold]
fn of_thread() -> Bounds {
    // SAFETY: no arguments.
    if unsafe { sys!(libc::SYS_gettid) } == raw::getpid() as isize {
        of_main_thread()
    } else {
        of_other_thread()
    }
}

/// `pthread_getattr_np` would read /proc/self/maps for it.
fn of_main_thread() -> Bounds {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a struct of the right size.
    unsafe { sys!(libc::SYS_prlimit64, 0, libc::RLIMIT_STACK, 0, &raw mut limit) };
    let high = __libc_stack_end;
    let bytes = usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX).min(MAIN_BYTES_MAX);
    Bounds { low: high.saturating_sub(bytes), high }
}

fn of_other_thread() -> Bounds {
    // Where nobody can tell, nothing has room.
    let mut found = Bounds { low: usize::MAX, high: usize::MAX };
    // SAFETY: attributes are read after they were filled in, and given back.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        if libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes) == 0 {
            let (mut low, mut bytes) = (std::ptr::null_mut(), 0);
            if libc::pthread_attr_getstack(&raw const attributes, &raw mut low, &raw mut bytes) == 0 {
                found = Bounds { low: low as usize, high: low as usize + bytes };
            }
            libc::pthread_attr_destroy(&raw mut attributes);
        }
    }
    found
}

/// Runs `work` on a fresh stack; on the present one when there is no memory. `work` must not panic.
pub fn with_room(work: &mut dyn FnMut()) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping, given back below.
    let base = unsafe { sys!(libc::SYS_mmap, 0, STACK_BYTES, prot, flags, -1isize, 0) };
    if raw::is_err(base) {
        return work();
    }
    // SAFETY: the mapping is ours, and large.
    unsafe {
        on(base as usize, base as usize + STACK_BYTES, work);
        sys!(libc::SYS_munmap, base, STACK_BYTES);
    }
}

/// Runs `work` on the stack from `low` to `top`.
///
/// # Safety
/// Memory between the two, `top` aligned to 16, that is nobody else's.
pub unsafe fn on(low: usize, top: usize, mut work: &mut dyn FnMut()) {
    // SAFETY: the caller's promise; `enter` returns normally; r12 keeps the old stack
    // pointer over the call, which saves it as the ABI demands.
    unsafe {
        let before = inside::bounds().replace(Bounds { low, high: top });
        asm!("mov r12, rsp", "mov rsp, {top}", "call {enter}", "mov rsp, r12",
             top = in(reg) top, enter = sym enter, in("rdi") &raw mut work,
             out("r12") _, clobber_abi("C"));
        inside::bounds().write(before);
    }
}

extern "C" fn enter(work: *mut &mut dyn FnMut()) {
    // SAFETY: the pointer `with_room` passed, alive until we return.
    unsafe { (*work)() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_on_another_stack() {
        let here = 0u8;
        let mut far = false;
        with_room(&mut || {
            let there = [1u8; 60_000];
            far = (&raw const there as usize).abs_diff(&raw const here as usize) > 100_000;
        });
        assert!(far);
    }

    #[test]
    fn small_stacks_and_unknown_ones_have_no_room() {
        let (low, high) = (1 << 30, (1 << 30) + (1 << 20));
        let known = Bounds { low, high };
        assert!(known.has_room(high) && known.has_room(low + ROOM_BYTES));
        assert!(
            !known.has_room(low + ROOM_BYTES - 1) && !known.has_room(high + 1) && !known.has_room(low - 1)
        );
        assert!(!Bounds { low: usize::MAX, high: usize::MAX }.has_room(high));
    }

    #[test]
    fn every_thread_knows_its_own_stack() {
        let in_thread =
            |bytes| std::thread::Builder::new().stack_size(bytes).spawn(has_room).unwrap().join().unwrap();
        assert!(in_thread(2 << 20) && !in_thread(64 << 10));
        let mut there = false;
        let small = std::thread::Builder::new().stack_size(64 << 10);
        let roomy = move || {
            with_room(&mut || there = has_room());
            (there, has_room())
        };
        assert_eq!(small.spawn(roomy).unwrap().join().unwrap(), (true, false));
    }
}
