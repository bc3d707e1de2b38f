//! The limit on the size of files (`RLIMIT_FSIZE`, `ulimit -f`), kept as the kernel keeps it: what would end behind it
//! is cut there, what would begin behind it fails with SIGXFSZ and EFBIG.
//!
//! The files in memory that we make for ourselves are under the same limit. A process cannot lift it, but is not to
//! be ended for what it did not write.

use crate::raw::{self, err, sys};
use tidepool_types::Errno;

const SET_BYTES: usize = 8;

fn limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: writes the given struct.
    unsafe { sys!(libc::SYS_prlimit64, 0, libc::RLIMIT_FSIZE, 0, &raw mut limit) };
    limit.rlim_cur
}

/// True when there is a limit: appending has to ask where the file ends.
pub fn is_set() -> bool {
    limit() != libc::RLIM_INFINITY
}

/// How much of `count` bytes may be written at `offset`.
pub fn room(offset: u64, count: usize) -> Result<usize, Errno> {
    let limit = limit();
    if limit == libc::RLIM_INFINITY || count == 0 {
        return Ok(count);
    }
    if offset >= limit {
        return Err(exceeded());
    }
    Ok(usize::try_from(limit - offset).unwrap_or(usize::MAX).min(count))
}

/// May a file that is `size` long become `wanted` long?
pub fn grows(size: u64, wanted: u64) -> Result<(), Errno> {
    if wanted > size && wanted > limit() { Err(exceeded()) } else { Ok(()) }
}

/// The signal waits for the end of the guard where signals wait.
fn exceeded() -> Errno {
    // SAFETY: numbers.
    unsafe { sys!(libc::SYS_tgkill, raw::getpid(), sys!(libc::SYS_gettid), libc::SIGXFSZ) };
    Errno::EFBIG
}

/// Does `work` on a file of our own; a limit shows as its error, EFBIG, and not by the signal.
pub fn without_signal(work: impl FnOnce() -> isize) -> isize {
    let set = 1u64 << (libc::SIGXFSZ - 1);
    let (mut before, mut pending) = (0u64, 0u64);
    // SAFETY: sets are as long as the kernel's.
    unsafe {
        sys!(libc::SYS_rt_sigpending, &raw mut pending, SET_BYTES);
        sys!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const set, &raw mut before, SET_BYTES);
    }
    let result = work();
    // SAFETY: as above; takes the signal that was just raised, unless it is one of the program's.
    unsafe {
        if result == err(libc::EFBIG) && pending & set == 0 {
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            sys!(libc::SYS_rt_sigtimedwait, &raw const set, 0, &raw const now, SET_BYTES);
        }
        sys!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const before, 0, SET_BYTES);
    }
    result
}
