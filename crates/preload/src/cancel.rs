//! Cancellation points: a thread blocked in `read` on a pipe must still be cancellable when we do the
//! call in libc's stead.

use std::sync::atomic::{AtomicU8, Ordering};

unsafe extern "C" {
    static __libc_single_threaded: AtomicU8;
}
// "C-unwind": a cancelled thread unwinds through this frame.
unsafe extern "C-unwind" {
    fn pthread_setcanceltype(kind: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}
const ASYNCHRONOUS: libc::c_int = 1;

/// Makes a blocking kernel call that `pthread_cancel` may end, as glibc's own wrappers do.
#[inline(always)]
pub fn point(call: &dyn Fn() -> isize) -> isize {
    // SAFETY: libc's variable, always readable.
    if unsafe { __libc_single_threaded.load(Ordering::Relaxed) } != 0 { call() } else { cancellable(call) }
}

#[inline(never)]
fn cancellable(call: &dyn Fn() -> isize) -> isize {
    let mut kind = 0;
    // SAFETY: no frame between here and the program owns anything (no destructors are skipped).
    unsafe {
        pthread_setcanceltype(ASYNCHRONOUS, &mut kind);
        let result = call();
        pthread_setcanceltype(kind, &mut kind);
        result
    }
}
