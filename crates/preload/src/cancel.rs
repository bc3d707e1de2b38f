//! Cancellation of threads, when we do calls in libc's stead: a thread blocked in `read` on a pipe must still
//! be cancellable, and one at work on the pool must not be cancelled in the middle, where it holds locks and
//! the daemons' handles. Calls that are cancellation points act on it when they begin; the guard of `inside.rs`
//! holds it back from there on.

use std::sync::atomic::{AtomicU8, Ordering};

unsafe extern "C" {
    static __libc_single_threaded: AtomicU8;
}
// "C-unwind": a cancelled thread unwinds through this frame.
unsafe extern "C-unwind" {
    fn pthread_setcanceltype(kind: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
    fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
    fn pthread_testcancel();
}
const DEFERRED: libc::c_int = 0;
const ASYNCHRONOUS: libc::c_int = 1;
const DISABLE: libc::c_int = 1;

fn single_threaded() -> bool {
    // SAFETY: libc's variable, always readable.
    unsafe { __libc_single_threaded.load(Ordering::Relaxed) != 0 }
}

/// The beginning of a call that is a cancellation point. Not inside the guard: the thread may end here.
#[inline]
pub fn test() {
    if !crate::inside::inside() {
        // SAFETY: no frame between here and the program owns anything.
        unsafe { pthread_testcancel() };
    }
}

/// Nobody cancels this thread until it is told to be as before: state and type then. The type is set as well,
/// because glibc's handler of a cancellation that is on its way looks at that alone.
pub struct Held(Option<(libc::c_int, libc::c_int)>);

impl Held {
    #[inline]
    pub fn back() -> Held {
        if single_threaded() {
            return Held(None);
        }
        let (mut state, mut kind) = (0, 0);
        // SAFETY: writes the given numbers.
        unsafe {
            pthread_setcanceltype(DEFERRED, &mut kind);
            pthread_setcancelstate(DISABLE, &mut state);
        }
        Held(Some((state, kind)))
    }

    /// A thread of asynchronous type that was cancelled meanwhile ends here.
    #[inline]
    pub fn as_before(&self) {
        if let Some((state, kind)) = self.0 {
            let mut held = 0;
            // SAFETY: what libc gave us; writes the given number.
            unsafe {
                pthread_setcancelstate(state, &mut held);
                pthread_setcanceltype(kind, &mut held);
            }
        }
    }
}

/// Does what owns memory outside the guard: nobody cancels this thread meanwhile, whatever its type. What comes out owns nothing.
pub fn held_back<T: Copy>(work: impl FnOnce() -> T) -> T {
    let held = Held::back();
    let result = work();
    held.as_before();
    result
}

/// Makes a blocking kernel call that `pthread_cancel` may end, as glibc's own wrappers do.
#[inline(always)]
pub fn point(call: &dyn Fn() -> isize) -> isize {
    if single_threaded() { call() } else { cancellable(call) }
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
