//! The stand-in: one descriptor of this process whose duplicates are the numbers of open pool files.
//!
//! An open file that only this process knows needs a number and nothing else from the kernel; all else is
//! in our memory (`slots.rs`). The stand-in is an empty sealed memfd, open for writing only: what gets past
//! us fails (read: EBADF, write: EPERM) instead of going astray, and poll, select and epoll treat it as the
//! regular file that it is. Directories have one that is open for reading: fdopendir asks for the mode by a
//! call within libc that cannot be caught. `sharing.rs` puts a real placeholder in its place when others are to see the
//! file.

use crate::fdtable;
use crate::placeholder::{self, SEALS};
use crate::pool;
use crate::raw::{self, sys};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Open for writing, for files; open for reading, for directories.
static FDS: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);
/// Numbers held free for making placeholders: a process that has opened all it may must still be able to
/// fork.
static SPARES: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];

/// The stand-in, made at the first question. `None` when the kernel has no room for it. Called under the
/// registry's lock.
pub fn get(directory: bool) -> Option<i32> {
    let place = &FDS[usize::from(directory)];
    let known = place.load(Ordering::Acquire);
    if known >= 0 {
        return Some(known);
    }
    make().then(|| place.load(Ordering::Acquire))
}

/// False when there is no room.
fn make() -> bool {
    // SAFETY: the name is a C string; the other calls take numbers.
    unsafe {
        let flags = libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC;
        let memfd = sys!(libc::SYS_memfd_create, c"tidepool".as_ptr(), flags) as i32;
        if memfd < 0 {
            return false;
        }
        raw::fcntl(memfd, libc::F_ADD_SEALS, SEALS as usize);
        let opened = [libc::O_WRONLY, libc::O_RDONLY]
            .map(|mode| move_up(placeholder::open_by_name(memfd, mode | libc::O_CLOEXEC)));
        // Nobody shall open it once more through /proc and read nothing in it.
        sys!(libc::SYS_fchmod, memfd, 0);
        raw::close(memfd);
        match (identity(opened[0]), identity(opened[1])) {
            (Some((device, inode)), Some(_)) => {
                DEVICE.store(device, Ordering::Relaxed);
                INODE.store(inode, Ordering::Relaxed);
            }
            _ => {
                for fd in opened.into_iter().filter(|fd| *fd >= 0) {
                    raw::close(fd);
                }
                return false;
            }
        }
        for (place, fd) in FDS.iter().zip(opened) {
            fdtable::hide(fd);
            place.store(fd, Ordering::Release);
        }
    }
    refill();
    true
}

fn move_up(fd: isize) -> i32 {
    if fd < 0 {
        return fd as i32;
    }
    let moved = raw::fcntl(fd as i32, libc::F_DUPFD_CLOEXEC, pool::lowest_of_ours());
    if moved < 0 {
        return fd as i32;
    }
    raw::close(fd as i32);
    moved as i32
}

fn identity(fd: i32) -> Option<(u64, u64)> {
    // SAFETY: a struct of integers, filled by the kernel.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (sys!(libc::SYS_fstat, fd, &raw mut stat) == 0).then_some((stat.st_dev, stat.st_ino))
    }
}

/// True when the kernel's `fd` is a duplicate of the stand-in.
pub fn is_behind(fd: i32) -> bool {
    FDS[0].load(Ordering::Acquire) >= 0
        && identity(fd) == Some((DEVICE.load(Ordering::Relaxed), INODE.load(Ordering::Relaxed)))
}

/// True for the stand-ins themselves and the spares, which forked children keep.
pub fn owns(fd: i32) -> bool {
    fd >= 0 && FDS.iter().chain(&SPARES).any(|own| own.load(Ordering::Relaxed) == fd)
}

/// Makes descriptors with the spare numbers free, if it does not work without.
pub fn with_spares(make: impl Fn() -> isize) -> isize {
    let made = make();
    if made != raw::err(libc::EMFILE) || pool::in_shared_child() {
        return made;
    }
    for spare in &SPARES {
        let fd = spare.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            fdtable::unhide(fd);
            raw::close(fd);
        }
    }
    make()
}

/// Takes spare numbers again, as far as there are any.
pub fn refill() {
    let stand_in = FDS[0].load(Ordering::Relaxed);
    for spare in SPARES.iter().filter(|spare| stand_in >= 0 && spare.load(Ordering::Relaxed) < 0) {
        let fd = raw::fcntl(stand_in, libc::F_DUPFD_CLOEXEC, pool::lowest_of_ours());
        if fd >= 0 {
            fdtable::hide(fd as i32);
            spare.store(fd as i32, Ordering::Relaxed);
        }
    }
}
