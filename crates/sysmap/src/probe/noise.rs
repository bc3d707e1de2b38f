//! Data that neither a disk, a file system nor a network makes smaller.

/// What begins differently in each block and run is a page: file systems look for equal ones.
pub const PAGE: usize = 4096;

/// A buffer at an address that direct I/O takes, full of noise.
pub struct Block {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Block {
    pub fn new(len: usize, seed: u64) -> Block {
        let mut bytes = vec![0; len + PAGE];
        let start = bytes.as_ptr().align_offset(PAGE).min(PAGE);
        fill(&mut bytes, seed);
        Block { bytes, start, len }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }

    /// Makes each page differ from those of all other stamps.
    pub fn stamp(&mut self, stamp: u64) {
        for (page, number) in self.bytes().chunks_exact_mut(PAGE).zip(0..) {
            page[..16].copy_from_slice(&mark(stamp, number));
        }
    }

    /// Whether all pages are those of this stamp.
    pub fn has_stamp(&mut self, stamp: u64) -> bool {
        let mut pages = self.bytes().chunks_exact(PAGE).zip(0..);
        pages.all(|(page, number)| page[..16] == mark(stamp, number))
    }
}

fn mark(stamp: u64, page: u64) -> [u8; 16] {
    let mut mark = [0; 16];
    mark[..8].copy_from_slice(&stamp.to_le_bytes());
    mark[8..].copy_from_slice(&page.to_le_bytes());
    mark
}

/// xorshift64*: costs little, and nothing that compresses finds a pattern in it.
pub fn fill(bytes: &mut [u8], seed: u64) {
    let mut state = seed | 1;
    for word in bytes.chunks_mut(8) {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let noise = state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes();
        word.copy_from_slice(&noise[..word.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_know_their_stamps() {
        let mut block = Block::new(4 * PAGE, 7);
        assert_eq!(block.bytes().len(), 4 * PAGE);
        assert_eq!(block.bytes().as_ptr().align_offset(PAGE), 0);
        block.stamp(9);
        assert!(block.has_stamp(9) && !block.has_stamp(8));
        block.bytes()[3 * PAGE] ^= 1;
        assert!(!block.has_stamp(9));
    }

    /// Bytes come up about equally often: what compresses has nothing to go by.
    #[test]
    fn noise_has_no_favourite_bytes() {
        let mut bytes = vec![0; 1 << 20];
        fill(&mut bytes, 3);
        let mut counts = [0u32; 256];
        bytes.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
        assert!(counts.iter().all(|count| (3500..4700).contains(count)), "{counts:?}");
        let words: std::collections::BTreeSet<&[u8]> = bytes.chunks_exact(8).collect();
        assert_eq!(words.len(), bytes.len() / 8);
    }
}
