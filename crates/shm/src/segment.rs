//! One sealed piece of shared memory. All unsafe code of this crate is here.

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Without these a peer could cut the memory off under the other's feet.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Mapped shared memory.
pub struct Segment {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping lives until drop and belongs to no thread; its bytes are reached through
// atomics, or copied by `read` and `write`, or lent under the rules of `lend`.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// New memory, all zeros, and the descriptor by which a peer maps it.
    pub fn create(len: usize) -> io::Result<(Segment, OwnedFd)> {
        let fd = rustix::fs::memfd_create("tidepool-lane", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, len as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        Ok((Segment::map_file(&fd, len, true)?, fd))
    }

    /// Maps what a peer made; it must be sealed and have at least `len` bytes.
    pub fn open(fd: &OwnedFd, len: usize) -> io::Result<Segment> {
        let sealed = rustix::fs::fcntl_get_seals(fd)?;
        if !sealed.contains(SEALS) || (rustix::fs::fstat(fd)?.st_size as u64) < len as u64 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "shared memory that is not sealed or too short",
            ));
        }
        Segment::map_file(fd, len, true)
    }

    /// Maps a file that nobody makes shorter: a sealed one, or a daemon's own whose blocks are allocated.
    pub(crate) fn map_file(fd: impl AsFd, len: usize, writable: bool) -> io::Result<Segment> {
        Segment::map_file_at(fd, 0, len, writable)
    }

    /// The same from `offset` on, which is a multiple of the page size.
    pub(crate) fn map_file_at(fd: impl AsFd, offset: u64, len: usize, writable: bool) -> io::Result<Segment> {
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address the kernel chooses; its pages stay, see above. Where it
        // is not writable, this crate only loads from it.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, fd.as_fd(), offset)?
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Segment { base, len })
    }

    /// Address of `count` bytes at `at`.
    ///
    /// # Panics
    /// When they are not all inside: offsets come from this crate's layout, never from a peer.
    fn at(&self, at: usize, count: usize) -> *mut u8 {
        assert!(at.checked_add(count).is_some_and(|end| end <= self.len), "outside the segment");
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.base.as_ptr().add(at) }
    }

    pub(crate) fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4));
        // SAFETY: aligned (the mapping is, by pages), inside, and only reached as an atomic.
        unsafe { AtomicU32::from_ptr(self.at(at, 4).cast()) }
    }

    pub(crate) fn long(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8));
        // SAFETY: as in `word`.
        unsafe { AtomicU64::from_ptr(self.at(at, 8).cast()) }
    }

    /// Copies bytes out. The peer may change them meanwhile: then any mix arrives.
    pub(crate) fn read(&self, at: usize, out: &mut [u8]) {
        // SAFETY: both ranges are valid for the length and cannot overlap: `out` is a
        // reference to memory of this process alone.
        unsafe { std::ptr::copy_nonoverlapping(self.at(at, out.len()), out.as_mut_ptr(), out.len()) }
    }

    /// Appends `count` bytes to `out`.
    pub(crate) fn append_to(&self, at: usize, count: usize, out: &mut Vec<u8>) {
        out.reserve(count);
        let len = out.len();
        // SAFETY: the room was just reserved and is written before the length says so.
        unsafe {
            std::ptr::copy_nonoverlapping(self.at(at, count), out.as_mut_ptr().add(len), count);
            out.set_len(len + count);
        }
    }

    /// Copies bytes in.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(at, bytes.len()), bytes.len()) }
    }

    /// Lends bytes to system calls and checksums without a copy.
    ///
    /// A peer that keeps to the layout leaves them alone while the slot is the borrower's. One that does not can
    /// change them under the slice. The borrowers (`pread`, `pwrite`, CRC) make no decision
    /// about memory from these bytes: the worst that comes of it is wrong bytes in
    /// that peer's own request.
    #[allow(clippy::mut_from_ref)]
    pub(crate) fn lend(&self, at: usize, count: usize) -> &mut [u8] {
        // SAFETY: inside the mapping; the one caller is the lane's only server, see above.
        unsafe { std::slice::from_raw_parts_mut(self.at(at, count), count) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and no borrow of it outlives self. A failure leaves it mapped.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn both_sides_see_the_same_bytes() {
        let (one, fd) = Segment::create(8192).unwrap();
        let two = Segment::open(&fd, 8192).unwrap();
        one.write(4000, b"across a page border, whatever it is worth");
        let mut got = [0; 6];
        two.read(4000, &mut got);
        assert_eq!(&got, b"across");
        two.word(64).store(7, Ordering::Release);
        assert_eq!(one.word(64).load(Ordering::Acquire), 7);
    }

    #[test]
    fn memory_that_could_vanish_is_refused() {
        let fd = rustix::fs::memfd_create("loose", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, 8192).unwrap();
        assert!(Segment::open(&fd, 8192).is_err(), "not sealed");
        let (_segment, short) = Segment::create(4096).unwrap();
        assert!(Segment::open(&short, 8192).is_err(), "too short");
        assert!(rustix::fs::ftruncate(&short, 0).is_err(), "cannot be cut");
    }
}
