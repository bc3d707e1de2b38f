//! Checksums of blocks and the entries that hold them: `docs/formats/03-chunk-store.md`.
//!
//! Shared by the chunk store, which keeps them, and by clients that read a store's files themselves.
//! `crc` sums data of any length, for copies and for what stagers send each other.

#![forbid(unsafe_code)]

mod change;
mod check;
pub mod crc;

pub use change::{Cover, Unfit, covers, prepare};
pub use check::{Window, window};

use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi};
use tidepool_types::BLOCK_SIZE;

/// Bytes under one checksum.
pub const BLOCK: usize = BLOCK_SIZE as usize;
/// Bytes before the first entry, and of an entry.
pub const HEADER_LEN: u64 = 16;
pub const ENTRY_LEN: u64 = 8;
pub const MAGIC: &[u8; 8] = b"TPCHKSUM";
pub const VERSION: u32 = 1;
/// The sum of a block that was never written.
pub const HOLE: u32 = 0;

static ZEROS: [u8; BLOCK] = [0; BLOCK];

/// What a checksum file starts with.
pub fn header() -> [u8; HEADER_LEN as usize] {
    let mut bytes = [0; HEADER_LEN as usize];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..].copy_from_slice(&BLOCK_SIZE.to_le_bytes());
    bytes
}

/// Where the entry of a block stands.
pub fn entry_at(block: u64) -> u64 {
    HEADER_LEN + block * ENTRY_LEN
}

/// The sums under which a block counts as valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Entry {
    pub prev: u32,
    pub cur: u32,
}

impl Entry {
    pub fn settled(sum: u32) -> Entry {
        Entry { prev: sum, cur: sum }
    }

    /// No write was cut short between the two.
    pub fn is_settled(self) -> bool {
        self.prev == self.cur
    }

    /// Counts as a stored block.
    pub fn is_stored(self) -> bool {
        self != Entry::default()
    }

    /// The half that `content` (short at the end of the file) matches.
    pub fn valid_half(self, content: &[u8]) -> Option<u32> {
        self.valid_half_of(&[content])
    }

    /// The same for content in pieces.
    pub fn valid_half_of(self, pieces: &[&[u8]]) -> Option<u32> {
        // Nearly all blocks are settled and stored: one comparison.
        if self.cur != HOLE || self.prev != HOLE {
            let sum = joined_sum(pieces);
            if sum == self.cur || sum == self.prev {
                return Some(sum);
            }
        }
        let hole = self.cur == HOLE || self.prev == HOLE;
        (hole && pieces.iter().all(|piece| **piece == ZEROS[..piece.len()])).then_some(HOLE)
    }

    /// Whether the block may lie wholly beyond the end of the file.
    pub fn valid_absent(self) -> bool {
        self.cur == HOLE || self.prev == HOLE
    }
}

/// Sum of a block given as its leading bytes; the rest counts as zeros. Never [`HOLE`].
pub fn padded_sum(content: &[u8]) -> u32 {
    joined_sum(&[content])
}

/// Sum of a block given in pieces.
pub fn joined_sum(pieces: &[&[u8]]) -> u32 {
    let crc = match pieces {
        [whole] if whole.len() >= BLOCK => crc32_iscsi(whole),
        pieces => {
            let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
            pieces.iter().for_each(|piece| digest.update(piece));
            let len: usize = pieces.iter().map(|piece| piece.len()).sum();
            digest.update(ZEROS.get(len..).unwrap_or_default());
            digest.finalize() as u32
        }
    };
    if crc == HOLE { u32::MAX } else { crc }
}

/// Entry number `index` of some that stand one behind the other.
pub(crate) fn entry_in(bytes: &[u8], index: usize) -> Entry {
    let at = index * ENTRY_LEN as usize;
    let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    Entry { prev: half(at), cur: half(at + 4) }
}

/// Entries of neighbouring blocks, as they stand in the file.
pub struct Sums {
    pub first: u64,
    pub bytes: Vec<u8>,
}

impl Sums {
    pub fn blocks(&self) -> u64 {
        self.bytes.len() as u64 / ENTRY_LEN
    }

    pub fn get(&self, block: u64) -> Entry {
        entry_in(&self.bytes, (block - self.first) as usize)
    }

    pub fn set(&mut self, block: u64, entry: Entry) {
        let at = self.index(block);
        self.bytes[at..at + 4].copy_from_slice(&entry.prev.to_le_bytes());
        self.bytes[at + 4..at + 8].copy_from_slice(&entry.cur.to_le_bytes());
    }

    /// Makes every entry settled on its current half.
    pub fn settle(&mut self) {
        for entry in self.bytes.chunks_exact_mut(ENTRY_LEN as usize) {
            let (prev, cur) = entry.split_at_mut(4);
            prev.copy_from_slice(cur);
        }
    }

    pub fn stored(&self) -> u64 {
        let entries = self.bytes.chunks_exact(ENTRY_LEN as usize);
        entries.filter(|entry| entry.iter().any(|byte| *byte != 0)).count() as u64
    }

    /// Leaves away holes at both ends.
    pub fn narrow(&mut self) {
        let stored = |entry: &[u8]| entry.iter().any(|byte| *byte != 0);
        let mut entries = self.bytes.chunks_exact(ENTRY_LEN as usize);
        let before = entries.position(stored).unwrap_or(0);
        let after = self.bytes.rchunks_exact(ENTRY_LEN as usize).position(stored);
        // All holes: nothing remains.
        let end = after.map_or(0, |after| self.bytes.len() - after * ENTRY_LEN as usize);
        self.bytes.truncate(end);
        self.bytes.drain(..before * ENTRY_LEN as usize);
        self.first += before as u64;
    }

    fn index(&self, block: u64) -> usize {
        ((block - self.first) * ENTRY_LEN) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_never_look_like_holes() {
        // Four bytes chosen so that the CRC32C of the padded block is 0.
        let mut block = vec![0u8; BLOCK];
        let state = zero_crc_prefix();
        block[..4].copy_from_slice(&state);
        assert_eq!(crc32c::crc32c(&block), 0, "by another implementation");
        assert_eq!(padded_sum(&block), u32::MAX);
        assert_eq!(Entry::settled(u32::MAX).valid_half(&block), Some(u32::MAX));
    }

    /// Solves for the first word of an otherwise zero block: a CRC is linear, so 32 probes tell.
    fn zero_crc_prefix() -> [u8; 4] {
        let crc_of = |word: u32| {
            let mut block = vec![0u8; BLOCK];
            block[..4].copy_from_slice(&word.to_le_bytes());
            crc32c::crc32c(&block)
        };
        let base = crc_of(0);
        let mut rows: Vec<(u32, u32)> = (0..32).map(|bit| (crc_of(1 << bit) ^ base, 1 << bit)).collect();
        let (mut wanted, mut word) = (base, 0);
        for bit in (0..32).rev() {
            let Some(pivot) = rows.iter().position(|row| row.0 >> bit & 1 == 1) else { continue };
            let pivot = rows.swap_remove(pivot);
            rows.iter_mut().filter(|row| row.0 >> bit & 1 == 1).for_each(|row| {
                row.0 ^= pivot.0;
                row.1 ^= pivot.1;
            });
            if wanted >> bit & 1 == 1 {
                wanted ^= pivot.0;
                word ^= pivot.1;
            }
        }
        word.to_le_bytes()
    }

    #[test]
    fn short_blocks_count_as_padded_with_zeros() {
        let mut block = b"abc".to_vec();
        let short = padded_sum(&block);
        block.resize(BLOCK, 0);
        assert_eq!(padded_sum(&block), short);
        assert_eq!(joined_sum(&[b"a", b"bc"]), short);
    }

    #[test]
    fn entries_accept_either_half_and_holes() {
        let (old, new) = (padded_sum(b"old"), padded_sum(b"new"));
        let entry = Entry { prev: old, cur: new };
        assert_eq!(entry.valid_half(b"old"), Some(old));
        assert_eq!(entry.valid_half(b"new"), Some(new));
        assert_eq!(entry.valid_half(b"odd"), None);
        assert_eq!(entry.valid_half(&[0; 4]), None);
        assert_eq!(Entry { prev: HOLE, cur: new }.valid_half(&[0; BLOCK]), Some(HOLE));
        assert_eq!(Entry::default().valid_half(&[0, 1]), None);
    }

    #[test]
    fn a_written_block_of_zeros_is_no_hole() {
        let sum = padded_sum(&[0; BLOCK]);
        assert_ne!(sum, HOLE);
        assert_eq!(Entry::settled(sum).valid_half(&[0; BLOCK]), Some(sum));
    }
}
