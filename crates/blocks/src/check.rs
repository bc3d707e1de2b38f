//! Checking a range that was read together with the rest of the blocks at its ends.

use crate::{BLOCK, ENTRY_LEN, entry_at, entry_in};

/// The whole blocks around a range of an object, and where their entries stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// First byte of the first block.
    pub start: u64,
    /// Bytes of the first block before the range, and of the last one behind it.
    pub before: usize,
    pub behind: usize,
    /// Where the entries stand in the checksum file, and their bytes.
    pub sums_at: u64,
    pub sums_len: usize,
}

/// The window around `len` (not 0) bytes at `offset`.
pub fn window(offset: u64, len: usize) -> Window {
    let block = BLOCK as u64;
    let (first, end) = (offset / block, offset + len as u64);
    let last = end.div_ceil(block);
    Window {
        start: first * block,
        before: (offset - first * block) as usize,
        behind: (last * block - end) as usize,
        sums_at: entry_at(first),
        sums_len: (last - first) as usize * ENTRY_LEN as usize,
    }
}

impl Window {
    /// Whether every block matches its entry: `before` and `behind` are what the first and the
    /// last block hold beside `range`, the entries `sums` begin with the first block's.
    pub fn is_valid(&self, before: &[u8], range: &[u8], behind: &[u8], sums: &[u8]) -> bool {
        let blocks = (before.len() + range.len() + behind.len()).div_ceil(BLOCK);
        if sums.len() < blocks * ENTRY_LEN as usize {
            return false;
        }
        (0..blocks).all(|block| {
            let from = (block * BLOCK).saturating_sub(before.len());
            let to = ((block + 1) * BLOCK - before.len()).min(range.len());
            let piece = &range[from.min(to)..to];
            let first = if block == 0 { before } else { &[] };
            let last = if block + 1 == blocks { behind } else { &[] };
            let entry = entry_in(sums, block);
            let valid = match (first.is_empty(), last.is_empty()) {
                (true, true) => entry.valid_half(piece),
                _ => entry.valid_half_of(&[first, piece, last]),
            };
            valid.is_some()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Entry, Sums, padded_sum};

    #[test]
    fn windows_are_whole_blocks() {
        assert_eq!(
            window(5000, 10_000),
            Window { start: 4096, before: 904, behind: 1384, sums_at: 24, sums_len: 24 }
        );
        assert_eq!(window(0, 4096), Window { start: 0, before: 0, behind: 0, sums_at: 16, sums_len: 8 });
        assert_eq!(
            window(8191, 1),
            Window { start: 4096, before: 4095, behind: 0, sums_at: 24, sums_len: 8 }
        );
    }

    /// Every range of an object is accepted, and none with a flipped bit anywhere in its blocks.
    #[test]
    fn a_range_is_valid_only_as_a_whole() {
        let object: Vec<u8> = (0..4 * BLOCK).map(|i| (i * 31 / 7) as u8).collect();
        let mut sums = Sums { first: 0, bytes: vec![0; 4 * ENTRY_LEN as usize] };
        object.chunks(BLOCK).zip(0..).for_each(|(c, b)| sums.set(b, Entry::settled(padded_sum(c))));
        for (offset, len) in
            [(0, 16384), (1, 1), (4095, 2), (4096, 4096), (100, 9000), (8191, 8193), (5, 4091)]
        {
            let w = window(offset as u64, len);
            let (start, end) = (w.start as usize, offset + len + w.behind);
            let entries = sums.bytes[w.sums_at as usize - 16..][..w.sums_len].to_vec();
            let check = |object: &[u8]| {
                w.is_valid(
                    &object[start..offset],
                    &object[offset..offset + len],
                    &object[offset + len..end],
                    &entries,
                )
            };
            assert!(check(&object), "{offset} {len}");
            for flip in [start, offset, offset + len - 1, end - 1] {
                let mut bad = object.clone();
                bad[flip] ^= 4;
                assert!(!check(&bad), "{offset} {len}: byte {flip}");
            }
            assert!(!w.is_valid(&[], &object[offset..offset + len], &[], &[]), "entries are missing");
        }
    }
}
