//! The end of a file that one process appends to, mapped: bytes put there outlive the process as written ones do, and cost no
//! system call.

use crate::segment::Segment;
use rustix::fs::{FallocateFlags, fallocate, fstatfs};
use std::io;
use std::os::fd::BorrowedFd;

/// Windows start at multiples of this: the largest page size there is.
pub const WINDOW_ALIGN: u64 = 64 << 10;

/// File systems whose allocated blocks take what is stored in them: on others the store may fail, and end the process (`statfs(2)`).
const SAFE: [u64; 3] = [TMPFS, EXT4, XFS];
const TMPFS: u64 = 0x0102_1994;
const EXT4: u64 = 0xef53;
const XFS: u64 = 0x5846_5342;

/// A mapped piece of a file that nobody makes shorter as long as this lives.
pub struct Window(Segment);

impl Window {
    /// Allocates `len` bytes of a file from `offset` on, which makes it so long, and maps them. `None` where what is put there
    /// could get lost or where files cannot be allocated.
    ///
    /// # Errors
    /// `ENOSPC`, and what else the file system says.
    pub fn open(file: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Option<Window>> {
        assert!(offset.is_multiple_of(WINDOW_ALIGN), "a window starts at a page");
        if !SAFE.contains(&(fstatfs(file)?.f_type as u64)) {
            return Ok(None);
        }
        match fallocate(file, FallocateFlags::empty(), offset, len as u64) {
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(None),
            Err(error) => Err(error.into()),
            Ok(()) => Ok(Some(Window(Segment::map_file_at(file, offset, len, true)?))),
        }
    }

    /// Puts bytes at `at`, counted from the window's start.
    ///
    /// # Panics
    /// When they do not fit.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        self.0.write(at, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn what_is_put_is_in_the_file() {
        let mut file = tempfile::tempfile_in("/dev/shm").unwrap();
        io::Write::write_all(&mut file, b"before").unwrap();
        let Some(window) = Window::open(file.as_fd(), 0, 1 << 17).unwrap() else {
            println!("SKIPPED: /dev/shm is no tmpfs here");
            return;
        };
        window.put(6, b" and behind");
        let mut got = [0; 18];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut got, 0).unwrap();
        assert_eq!(&got, b"before and behind\0");
        assert_eq!(file.metadata().unwrap().len(), 1 << 17);
        let more = Window::open(file.as_fd(), WINDOW_ALIGN, 1 << 17).unwrap().unwrap();
        more.put(0, b"x");
        assert_eq!(file.metadata().unwrap().len(), WINDOW_ALIGN + (1 << 17));
    }
}
