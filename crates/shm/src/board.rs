//! The board: counters that tell whether anything about a name or an object has changed.
//!
//! A daemon adds 1 to a bucket whenever it changes an entry or an object that falls into it, before it
//! acknowledges the change. A client of the same node that remembers what it was told, and the counters at that
//! moment, knows by looking at them that it still holds. The counters only grow, in one file for the life of a store: a daemon that is
//! killed and started again goes on in it, under another epoch, so that nobody trusts what he
//! learned before.

use crate::segment::Segment;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Counters on a board.
const BUCKETS: usize = 1 << 18;
const BYTES: usize = COUNTERS_AT + 4 * BUCKETS;
const MAGIC_AT: usize = 0;
const MAGIC: u64 = u64::from_le_bytes(*b"TPBOARD1");
/// The daemon's directory epoch; 0 while it does not serve.
const EPOCH_AT: usize = 64;
const COUNTERS_AT: usize = 4096;

/// The bucket of a name in a directory, or of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bucket(u32);

impl Bucket {
    pub fn of_object(ino: u64) -> Bucket {
        Bucket((mix(ino) % BUCKETS as u64) as u32)
    }

    pub fn of_entry(parent: u64, name: &[u8]) -> Bucket {
        let hash =
            name.iter().fold(mix(parent), |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3));
        Bucket::of_object(hash)
    }
}

/// Finisher of SplitMix64.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A mapped board.
pub struct Board {
    segment: Segment,
}

impl Board {
    /// The daemon's side: takes over the board in `file`, or makes one in an empty file. Its blocks are
    /// allocated at once, because a full disk must not show while memory is written.
    pub fn take_over(file: &File) -> io::Result<Board> {
        rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, BYTES as u64)?;
        let segment = Segment::map_file(file, BYTES, true)?;
        let magic = segment.long(MAGIC_AT).load(Acquire);
        if magic != 0 && magic != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a board of this version"));
        }
        segment.long(EPOCH_AT).store(0, Release);
        segment.long(MAGIC_AT).store(MAGIC, Release);
        Ok(Board { segment })
    }

    /// The client's side, for looking only.
    pub fn open(fd: impl AsFd) -> io::Result<Board> {
        if (rustix::fs::fstat(&fd)?.st_size as u64) < BYTES as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the board is too short"));
        }
        let segment = Segment::map_file(fd, BYTES, false)?;
        if segment.long(MAGIC_AT).load(Acquire) != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a board of this version"));
        }
        Ok(Board { segment })
    }

    /// The daemon's epoch; 0 while it does not serve.
    pub fn epoch(&self) -> u64 {
        self.segment.long(EPOCH_AT).load(Acquire)
    }

    /// Of the daemon's side only, like [`Board::touch`].
    pub fn set_epoch(&self, epoch: u64) {
        self.segment.long(EPOCH_AT).store(epoch, Release);
    }

    pub fn count(&self, bucket: Bucket) -> u32 {
        self.segment.word(COUNTERS_AT + 4 * bucket.0 as usize).load(Acquire)
    }

    /// Something in the bucket has changed.
    pub fn touch(&self, bucket: Bucket) {
        self.segment.word(COUNTERS_AT + 4 * bucket.0 as usize).fetch_add(1, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn file() -> File {
        rustix::fs::memfd_create("board", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into()
    }

    #[test]
    fn changes_and_restarts_show() {
        let file = file();
        let daemon = Board::take_over(&file).unwrap();
        daemon.set_epoch(7);
        let client = Board::open(&file).unwrap();
        let (name, other) = (Bucket::of_entry(1, b"a"), Bucket::of_entry(1, b"b"));
        let seen = (client.epoch(), client.count(name), client.count(other));
        daemon.touch(name);
        assert_eq!((client.epoch(), client.count(name), client.count(other)), (7, seen.1 + 1, seen.2));
        drop(daemon);
        let again = Board::take_over(&file).unwrap();
        assert_eq!(client.epoch(), 0, "until it serves");
        again.set_epoch(9);
        assert_eq!((client.epoch(), client.count(name)), (9, seen.1 + 1));
    }

    #[test]
    fn buckets_are_pinned_and_spread() {
        assert_eq!(Bucket::of_object(1), Bucket((mix(1) % (1 << 18)) as u32));
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf, "the first number of SplitMix64 from 0");
        let names = (0..10_000u32).map(|i| Bucket::of_entry(1, format!("file.{i}").as_bytes()).0);
        let distinct: HashSet<u32> = names.collect();
        assert!(distinct.len() > 9_700, "{}", distinct.len());
    }

    #[test]
    fn other_files_are_refused() {
        let empty = file();
        assert!(Board::open(&empty).is_err());
        rustix::fs::ftruncate(&empty, BYTES as u64).unwrap();
        assert!(Board::open(&empty).is_err());
        std::os::unix::fs::FileExt::write_at(&empty, b"something", 0).unwrap();
        assert!(Board::take_over(&empty).is_err());
    }
}
