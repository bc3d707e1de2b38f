//! What descriptors of one description share: offset, status flags, the name it was opened by. The slot
//! has them or, once the description is placed, the kernel. Called inside the guard, but for `path`.

use crate::fdtable;
use crate::inside::{Inside, Work};
use crate::placeholder;
use crate::raw::{self, err};
use crate::slots::{Entry, Keeper, Lazy, with_lazy};

/// Flags that can be kept here for a lazy description.
pub const STATUS: i32 = libc::O_APPEND | libc::O_NONBLOCK;
/// What F_SETFL may change, by the kernel's rules.
const SETTABLE: i32 = STATUS | libc::O_DIRECT | libc::O_NOATIME | libc::O_ASYNC;
/// The kernel reports this for every file opened by a 64-bit process.
const O_LARGEFILE: i32 = 0o100_000;

/// `lseek` with `SEEK_SET` or `SEEK_CUR`.
#[inline]
pub fn seek(fd: i32, entry: &Entry, offset: i64, whence: i32) -> isize {
    match with_lazy(entry, |lazy| lazy.seek(offset, whence)) {
        Keeper::Slot(at) => at,
        Keeper::Kernel => raw::lseek(fd, offset, whence),
        Keeper::Nobody => err(libc::EBADF),
    }
}

impl Lazy {
    /// With the kernel's bounds for a memfd: offsets from 0 to the largest `i64`.
    fn seek(&mut self, offset: i64, whence: i32) -> isize {
        let base = if whence == libc::SEEK_CUR { self.offset } else { 0 };
        match base.checked_add(offset).filter(|at| *at >= 0) {
            Some(at) => {
                self.offset = at;
                at as isize
            }
            None => err(libc::EINVAL),
        }
    }
}

/// `F_GETFL`, without the access mode.
pub fn status(fd: i32, entry: &Entry) -> isize {
    match with_lazy(entry, |lazy| lazy.status | O_LARGEFILE) {
        Keeper::Slot(status) => status as isize,
        Keeper::Kernel => raw::fcntl(fd, libc::F_GETFL, 0),
        Keeper::Nobody => err(libc::EBADF),
    }
}

/// `F_SETFL`. Flags that only the kernel understands make it know the description.
pub fn set_status(fd: i32, entry: &Entry, flags: i32) -> isize {
    if flags & SETTABLE & !STATUS != 0 {
        let placed = fdtable::place(fd);
        if placed < 0 {
            return placed;
        }
    }
    match with_lazy(entry, |lazy| lazy.status = flags & STATUS) {
        Keeper::Slot(()) => 0,
        Keeper::Kernel => raw::fcntl(fd, libc::F_SETFL, flags as usize),
        Keeper::Nobody => err(libc::EBADF),
    }
}

#[inline]
pub fn appends(fd: i32, entry: &Entry) -> bool {
    let status = status(fd, entry);
    status >= 0 && status & libc::O_APPEND as isize != 0
}

/// `F_SETFD`: the number's own, but a description being placed must not lose it.
pub fn set_cloexec(fd: i32, entry: &Entry, flags: usize) -> isize {
    let set = || raw::fcntl(fd, libc::F_SETFD, flags);
    match with_lazy(entry, |_| set()) {
        Keeper::Slot(result) => result,
        _ => set(),
    }
}

/// The path that `fd` was opened by; empty if it is none of ours.
pub fn path(fd: i32) -> Vec<u8> {
    let Some(entry) = fdtable::ours(fd) else { return Vec::new() };
    // The caller may be inside already.
    let _inside = Inside::enter(Work::Looks);
    match with_lazy(&entry, |lazy| lazy.path.clone()) {
        Keeper::Slot(path) => path,
        Keeper::Kernel => placeholder::path_of(fd),
        Keeper::Nobody => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lazy_offsets_keep_the_kernels_bounds() {
        let mut lazy = Lazy { offset: 0, status: 0, path: Vec::new() };
        assert_eq!(lazy.seek(5, libc::SEEK_SET), 5);
        assert_eq!(lazy.seek(-6, libc::SEEK_CUR), err(libc::EINVAL));
        assert_eq!(lazy.seek(-5, libc::SEEK_CUR), 0);
        assert_eq!(lazy.seek(i64::MAX, libc::SEEK_CUR), i64::MAX as isize);
        assert_eq!(lazy.seek(1, libc::SEEK_CUR), err(libc::EINVAL));
        assert_eq!(lazy.seek(-1, libc::SEEK_SET), err(libc::EINVAL));
    }
}
