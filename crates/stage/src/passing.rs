//! Data that pass through the kernel's cache and do not stay there.
//!
//! A copy reads and writes each byte once. Pages that it leaves behind are taken from whoever uses the
//! node's memory, and each of them has to be found first, on a virtual machine often at its host; pages that
//! are given back at once are used again and again. What was in the cache before stays there. Linux can do
//! this since 6.14 (`RWF_DONTCACHE`), file systems have learned it one by one.

use crate::nearby::Medium;
use rustix::io::{Errno as Sys, IoSlice, IoSliceMut, ReadWriteFlags};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// `RWF_DONTCACHE` of `linux/fs.h`.
const DONT_CACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);
/// What is moved in smaller pieces stays: small files, which are read and written whole.
const PASSING_BYTES_MIN: usize = 128 << 10;

/// Kernels and file systems that cannot do it say one of these.
const CANNOT: [Sys; 2] = [Sys::OPNOTSUPP, Sys::NOSYS];

/// Reads and writes of one end.
pub(crate) struct Passing(AtomicBool);

impl Passing {
    pub fn new(medium: Medium) -> Passing {
        Passing(AtomicBool::new(medium == Medium::Disk))
    }

    /// False once it has turned out otherwise.
    pub fn works(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub fn read(&self, fd: &OwnedFd, offset: u64, buf: &mut [u8]) -> Result<usize, Sys> {
        if self.takes(buf.len()) {
            let passed = rustix::io::preadv2(fd, &mut [IoSliceMut::new(buf)], offset, DONT_CACHE);
            if self.answers(&passed) {
                return passed;
            }
        }
        rustix::io::pread(fd, buf, offset)
    }

    /// Also has the kernel begin to store what was written.
    pub fn write(&self, fd: &OwnedFd, offset: u64, data: &[u8]) -> Result<usize, Sys> {
        if self.takes(data.len()) {
            let passed = rustix::io::pwritev2(fd, &[IoSlice::new(data)], offset, DONT_CACHE);
            if self.answers(&passed) {
                return passed;
            }
        }
        rustix::io::pwrite(fd, data, offset)
    }

    fn takes(&self, len: usize) -> bool {
        len >= PASSING_BYTES_MIN && self.works()
    }

    /// The result is about the file, not about this way to it.
    fn answers(&self, passed: &Result<usize, Sys>) -> bool {
        let cannot = passed.as_ref().is_err_and(|errno| CANNOT.contains(errno));
        if cannot {
            self.0.store(false, Ordering::Relaxed);
        }
        !cannot
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    #[test]
    fn where_it_cannot_be_done_the_usual_way_is_taken_from_then_on() {
        // File systems in memory have nothing else to keep data in.
        let file = memfd_create("passing", MemfdFlags::CLOEXEC).unwrap();
        let data = vec![7; 2 * PASSING_BYTES_MIN];
        let mut back = vec![0; data.len()];
        let (writes, reads) = (Passing::new(Medium::Disk), Passing::new(Medium::Disk));
        assert_eq!(writes.write(&file, 0, &data), Ok(data.len()));
        assert_eq!(reads.read(&file, 0, &mut back), Ok(data.len()));
        assert!(back == data && !writes.works() && !reads.works());
        assert!(!Passing::new(Medium::Memory).works() && !Passing::new(Medium::Other).works());
    }

    #[test]
    fn errors_of_a_file_are_told_and_do_not_end_it() {
        let passing = Passing::new(Medium::Disk);
        for errno in [Sys::NOSPC, Sys::IO, Sys::INTR, Sys::INVAL] {
            assert!(passing.answers(&Err(errno)) && passing.works(), "{errno}");
        }
        assert!(!passing.answers(&Err(Sys::OPNOTSUPP)) && !passing.works());
    }

    #[test]
    fn small_pieces_stay() {
        let passing = Passing::new(Medium::Disk);
        assert!(!passing.takes(PASSING_BYTES_MIN - 1) && passing.takes(PASSING_BYTES_MIN));
        assert!(PASSING_BYTES_MIN as u64 > crate::end::PackLimits::NEAR.file_bytes);
    }
}
