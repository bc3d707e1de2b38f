//! What the stores need of a local file system, in four versions: real, in memory,
//! failing after N calls, and forgetting what was not synced.

mod faulty;
mod mem;
mod real;
#[cfg(test)]
mod suite;

pub use faulty::{Fault, FaultyDisk, FaultyFile, Tear};
pub use mem::{ForgetfulDisk, MemDisk, MemFile};
pub use real::{RealDisk, RealFile};

use std::io;
use std::os::fd::BorrowedFd;

/// Whether [`Disk::open`] may make the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    /// The file must exist.
    Existing,
    /// The file is made when it is missing.
    Create,
    /// The file must not exist yet.
    CreateNew,
}

/// Bytes of the file system below a [`Disk`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// What an ordinary user may still write.
    pub free: u64,
    pub total: u64,
}

/// One name in a directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DirEntry {
    pub name: String,
    pub is_dir: bool,
}

/// A directory tree. Clones share it.
///
/// Paths are relative to the root of the tree, separated by `/`; `.` is the root. A path
/// that would leave the tree is refused with `EINVAL`.
pub trait Disk: Clone + Send + Sync + 'static {
    type File: DiskFile;

    /// Opens a file for reading and writing.
    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Self::File>;
    /// Replaces `to` atomically.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file. Open handles of it stay usable.
    fn remove(&self, path: &str) -> io::Result<()>;
    /// Names in a directory, sorted.
    fn list(&self, dir: &str) -> io::Result<Vec<DirEntry>>;
    fn create_dir_all(&self, dir: &str) -> io::Result<()>;
    /// Makes the names in a directory (not what they lead to) survive a power failure.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;
    fn space(&self) -> io::Result<Space>;
}

/// An open file. All access is positional, so threads share a handle freely.
#[allow(clippy::len_without_is_empty)]
pub trait DiskFile: Send + Sync + 'static {
    /// Fills `buf` from `offset`; the count is smaller only when the file ends.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Appends up to `len` bytes from `offset` to `out`, fewer only when the file ends.
    /// Saves the zeroing of memory that [`DiskFile::read_at`] would demand of its caller.
    fn read_append(&self, out: &mut Vec<u8>, len: usize, offset: u64) -> io::Result<usize> {
        read_zeroed(self, out, len, offset)
    }

    /// Writes all of `buf` at `offset`, extending the file as needed. On an error any part
    /// of it may have been written.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    fn len(&self) -> io::Result<u64>;
    /// Cuts or extends (with zeros) the file.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Has blocks for all of a range from now on, past the file's end too; its length stays. False where blocks cannot be had in
    /// advance. [`DiskFile::set_len`] gives back those behind the end.
    ///
    /// # Errors
    /// `ENOSPC`; some of the range may have got blocks.
    fn allocate(&self, _offset: u64, _len: u64) -> io::Result<bool> {
        Ok(false)
    }
    /// Makes what the file has of a range zeros and, where the file system can, gives its room back. The length
    /// stays. On an error any part of the range may have been zeroed.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Makes content and length (not the name) survive a power failure.
    fn sync(&self) -> io::Result<()>;
    /// The file itself, for what this trait does not offer. `None`: there is none, or it shall not be reached past the disk.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// First offset at or after `from` that may hold something else than a hole.
    fn next_data(&self, from: u64) -> io::Result<Option<u64>>;
}

/// Appends through memory that is zeroed first.
fn read_zeroed<F: DiskFile + ?Sized>(
    file: &F,
    out: &mut Vec<u8>,
    len: usize,
    offset: u64,
) -> io::Result<usize> {
    let start = out.len();
    out.resize(start + len, 0);
    let result = file.read_at(&mut out[start..], offset);
    out.truncate(start + *result.as_ref().unwrap_or(&0));
    result
}

/// The parts of `path`; an error when it would leave the tree.
fn parts(path: &str) -> io::Result<impl Iterator<Item = &str>> {
    let kept = || path.split('/').filter(|part| !part.is_empty() && *part != ".");
    if path.starts_with('/') || kept().any(|part| part == "..") {
        return Err(os_error(libc::EINVAL));
    }
    Ok(kept())
}

fn os_error(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}
