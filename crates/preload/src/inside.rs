//! The guard around our own code: while a thread is inside, its libc calls go straight to the
//! kernel, and no signal handler can run on it.
//!
//! Signals are held back because a handler may write to a pool file (and would meet our locks held by
//! the thread it interrupted) or leave by `siglongjmp` (and our locks would stay held).

use crate::raw::sys;
use std::arch::{asm, global_asm};

// Initial-exec thread-local storage: no call, no allocation, right from the thread's first instruction.
// Rust's `thread_local!` would call __tls_get_addr, which may allocate.
global_asm!(
    ".section .tbss,\"awT\",@nobits",
    ".globl tidepool_preload_inside",
    ".hidden tidepool_preload_inside",
    ".type tidepool_preload_inside,@object",
    ".size tidepool_preload_inside,8",
    ".p2align 3",
    "tidepool_preload_inside: .zero 8",
    ".text",
);

fn flag() -> *mut u64 {
    let address: *mut u64;
    // SAFETY: reads the thread pointer (fs:0 holds its own address) and our variable's offset.
    unsafe {
        asm!("mov {a}, qword ptr fs:[0]", "add {a}, qword ptr [rip + tidepool_preload_inside@GOTTPOFF]",
             a = out(reg) address, options(nostack, readonly));
    }
    address
}

/// True while this thread runs our own code.
pub fn inside() -> bool {
    // SAFETY: the address is this thread's own variable.
    unsafe { *flag() != 0 }
}

/// This thread is inside until the value is dropped. Keeps `errno` as it was.
pub struct Inside {
    errno: i32,
    mask: u64,
}

const SIGSET_BYTES: usize = 8;

impl Inside {
    /// `None` when the thread is inside already.
    pub fn enter() -> Option<Inside> {
        if inside() {
            return None;
        }
        let all = !0u64;
        let mut mask = 0u64;
        // SAFETY: both sets are 8 bytes, as the kernel's; errno and flag are this thread's.
        unsafe {
            sys!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all, &raw mut mask, SIGSET_BYTES);
            *flag() = 1;
            Some(Inside { errno: *libc::__errno_location(), mask })
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // SAFETY: as in `enter`.
        unsafe {
            *libc::__errno_location() = self.errno;
            *flag() = 0;
            sys!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const self.mask, 0, SIGSET_BYTES);
        }
    }
}
