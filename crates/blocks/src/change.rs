//! The entries of a write: what is valid before it, and what will be (`docs/formats/03-chunk-store.md`, section 4).

use crate::{BLOCK, Entry, Sums, joined_sum, padded_sum};

const BLOCK64: u64 = BLOCK as u64;

/// The part of a block that a write covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cover {
    pub block: u64,
    /// Range within the block.
    pub from: usize,
    pub to: usize,
    /// Where the bytes start in the caller's buffer.
    pub at: usize,
}

impl Cover {
    /// The caller's bytes for this block.
    pub fn of<'b>(&self, buf: &'b [u8]) -> &'b [u8] {
        &buf[self.at..self.at + self.to - self.from]
    }
}

/// The blocks that `len` bytes at `offset` touch.
pub fn covers(offset: u64, len: usize) -> impl Iterator<Item = Cover> {
    let end = offset + len as u64;
    let last = if len == 0 { 0 } else { end.div_ceil(BLOCK64) };
    (offset / BLOCK64..last).map(move |block| {
        let start = block * BLOCK64;
        let from = offset.max(start) - start;
        let to = end.min(start + BLOCK64) - start;
        Cover { block, from: from as usize, to: to as usize, at: (start + from - offset) as usize }
    })
}

/// Why a write cannot be prepared.
#[derive(Debug)]
pub enum Unfit<E> {
    /// Old content was needed and could not be read.
    Read(E),
    /// This block, of which bytes would remain, does not match its entry. Damaged bytes never get a right sum.
    Damaged(u64),
}

/// Sets the entries of the blocks that `buf` at `offset` touches, all of them in `sums`, to what is valid now and what
/// will be. `content` reads what the data file, `data_len` bytes long, has of a block, and tells how much that is.
pub fn prepare<E>(
    sums: &mut Sums,
    data_len: u64,
    offset: u64,
    buf: &[u8],
    mut content: impl FnMut(u64, &mut [u8; BLOCK]) -> Result<usize, E>,
) -> Result<(), Unfit<E>> {
    for cover in covers(offset, buf.len()) {
        let (old, new) = (sums.get(cover.block), cover.of(buf));
        let present = data_len.saturating_sub(cover.block * BLOCK64).min(BLOCK64) as usize;
        // Nothing of the old content remains.
        let whole = cover.from == 0 && cover.to >= present;
        let entry = if whole && old.is_settled() {
            Entry { prev: old.cur, cur: padded_sum(new) }
        } else {
            let mut block = [0; BLOCK];
            let len = content(cover.block, &mut block).map_err(Unfit::Read)?;
            match (old.valid_half(&block[..len]), whole) {
                (Some(prev), true) => Entry { prev, cur: padded_sum(new) },
                // Overwriting all of a damaged block heals it.
                (None, true) => Entry { prev: old.cur, cur: padded_sum(new) },
                (None, false) => return Err(Unfit::Damaged(cover.block)),
                (Some(prev), false) => {
                    let cur = joined_sum(&[&block[..cover.from], new, &block[cover.to..]]);
                    Entry { prev, cur }
                }
            }
        };
        sums.set(cover.block, entry);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(count: usize) -> Sums {
        Sums { first: 0, bytes: vec![0; 8 * count] }
    }

    fn no_read(_: u64, _: &mut [u8; BLOCK]) -> Result<usize, ()> {
        panic!("nothing has to be read")
    }

    #[test]
    fn nothing_touches_no_block() {
        assert_eq!(covers(5000, 0).count(), 0);
        assert_eq!(
            covers(4095, 2).map(|c| (c.block, c.from, c.to, c.at)).collect::<Vec<_>>(),
            [(0, 4095, 4096, 0), (1, 0, 1, 1)]
        );
    }

    #[test]
    fn whole_blocks_need_no_reading() {
        let mut sums = entries(2);
        let data = [7; BLOCK + 100];
        prepare(&mut sums, 0, 0, &data, no_read).unwrap();
        assert_eq!(sums.get(0), Entry { prev: 0, cur: padded_sum(&data[..BLOCK]) });
        assert_eq!(sums.get(1), Entry { prev: 0, cur: padded_sum(&data[..100]) });
    }

    #[test]
    fn bytes_that_remain_are_checked() {
        let old = [3; BLOCK];
        let mut sums = entries(1);
        sums.set(0, Entry::settled(padded_sum(&old)));
        let read = |_, block: &mut [u8; BLOCK]| {
            block.copy_from_slice(&old);
            Ok::<_, ()>(BLOCK)
        };
        prepare(&mut sums, 4096, 10, &[4; 5], read).unwrap();
        let mut new = old;
        new[10..15].fill(4);
        assert_eq!(sums.get(0), Entry { prev: padded_sum(&old), cur: padded_sum(&new) });

        sums.set(0, Entry::settled(1));
        assert!(matches!(prepare(&mut sums, 4096, 10, &[4; 5], read), Err(Unfit::Damaged(0))));
        // All of it is replaced: nothing wrong remains.
        prepare(&mut sums, 4096, 0, &[4; BLOCK], no_read).unwrap();
        assert_eq!(sums.get(0).cur, padded_sum(&[4; BLOCK]));
    }
}
