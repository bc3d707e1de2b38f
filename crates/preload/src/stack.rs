//! A stack of our own for work in posix_spawn's inner child, which glibc gives 32 KiB, and in handlers on small stacks.

use crate::raw::{self, sys};
use std::arch::asm;

const STACK_BYTES: usize = 1 << 20;

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
        on(base as usize + STACK_BYTES, work);
        sys!(libc::SYS_munmap, base, STACK_BYTES);
    }
}

/// Runs `work` on the stack that ends at `top`.
///
/// # Safety
/// Memory below `top`, aligned to 16, that is large enough and nobody else's.
pub unsafe fn on(top: usize, mut work: &mut dyn FnMut()) {
    // SAFETY: the caller's promise; `enter` returns normally; r12 keeps the old stack
    // pointer over the call, which saves it as the ABI demands.
    unsafe {
        asm!("mov r12, rsp", "mov rsp, {top}", "call {enter}", "mov rsp, r12",
             top = in(reg) top, enter = sym enter, in("rdi") &raw mut work,
             out("r12") _, clobber_abi("C"));
    }
}

extern "C" fn enter(work: *mut &mut dyn FnMut()) {
    // SAFETY: the pointer `with_room` passed, alive until we return.
    unsafe { (*work)() }
}

#[cfg(test)]
mod tests {
    #[test]
    fn work_runs_on_another_stack() {
        let here = 0u8;
        let mut far = false;
        super::with_room(&mut || {
            let there = [1u8; 60_000];
            far = (&raw const there as usize).abs_diff(&raw const here as usize) > 100_000;
        });
        assert!(far);
    }
}
