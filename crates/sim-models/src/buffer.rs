//! What a server holds for those behind it (S1 §III-G1): blocks of written data, the least recently used of which are
//! forwarded first.
//!
//! ```text
//!            write                 all its writes are done          the oldest, above the mark
//!   absent ────────→ being written ──────────────────────→ old ───────────────────────────────→ moving ──→ absent
//!                          ↑────────────── write ──────────┘ ↑──── written again meanwhile ───────┘
//! ```
//! A block is what is written of a stripe: its first to its last byte.

use crate::kept::are_small;
use std::collections::BTreeMap;
use tidepool_sim::checkpoint::{LoadError, Reader, Saved};
use tidepool_sim::saved;

/// How much, and when old blocks go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufferSpec {
    /// Bytes of each server.
    pub capacity: u64,
    /// Blocks are moved while more than this is held that is not moving already.
    pub evict_above: u64,
}

/// File and stripe.
pub type Key = (u32, u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// In the file.
    pub from: u64,
    pub to: u64,
    /// When it was used last, on the buffer's own clock; no two are equal.
    touched: u64,
    /// Changes with every write.
    pub version: u32,
    /// Writes that are not done.
    writing: u32,
    moving: bool,
}

impl Block {
    /// Whether it may be moved.
    fn is_old(&self) -> bool {
        self.writing == 0 && !self.moving
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Numbers {
    pub used: u64,
    /// Of that, on its way to another server.
    pub moving: u64,
    clock: u64,
    /// Sub-requests that were sent on.
    pub redirected: u64,
    /// Bytes that other servers have taken over.
    pub moved: u64,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Buffer {
    pub numbers: Numbers,
    blocks: BTreeMap<Key, Block>,
    /// Blocks that may be moved, the one used least recently first.
    old: BTreeMap<u64, Key>,
}

saved!(struct Block { from, to, touched, version, writing, moving });
saved!(struct Numbers { used, moving, clock, redirected, moved });

impl Saved for Buffer {
    /// Who is old follows from the blocks.
    fn save(&self, out: &mut Vec<u8>) {
        let Buffer { numbers, blocks, old: _ } = self;
        numbers.save(out);
        blocks.save(out);
    }

    fn load(from: &mut Reader<'_>) -> Result<Buffer, LoadError> {
        let mut buffer = Buffer { numbers: Saved::load(from)?, ..Buffer::default() };
        for (key, block) in <BTreeMap<Key, Block>>::load(from)? {
            buffer.set(key, Some(block));
        }
        Ok(buffer)
    }
}

pub enum Change {
    Numbers(Numbers),
    /// What a block was.
    Block(Key, Option<Block>),
}

impl Buffer {
    /// Whether sums and places are right: [`kept`](crate::kept).
    pub fn fits(&self) -> bool {
        let Numbers { used, moving, clock, redirected, moved } = self.numbers;
        let is_sound = |block: &Block| {
            let Block { from, to, touched, version: _, writing, moving: _ } = *block;
            from <= to
                && are_small(&[to])
                && to - from <= u32::MAX.into()
                && touched <= clock
                && writing < u32::MAX
        };
        self.blocks.values().all(is_sound)
            && self.old.len() == self.blocks.values().filter(|block| block.is_old()).count()
            && self.blocks.values().map(|block| u128::from(block.to - block.from)).sum::<u128>()
                == used.into()
            && moving <= used
            && are_small(&[used, clock, redirected, moved])
    }

    pub fn undo(&mut self, change: Change) {
        match change {
            Change::Numbers(was) => self.numbers = was,
            Change::Block(key, was) => self.set(key, was),
        }
    }

    fn set(&mut self, key: Key, block: Option<Block>) {
        let was = match block {
            Some(block) => self.blocks.insert(key, block),
            None => self.blocks.remove(&key),
        };
        if let Some(was) = was.filter(Block::is_old) {
            self.old.remove(&was.touched);
        }
        if let Some(block) = block.filter(Block::is_old) {
            self.old.insert(block.touched, key);
        }
    }

    /// Changes a block, and says how that is undone.
    fn change(&mut self, key: Key, block: Option<Block>, keep: &mut dyn FnMut(Change)) {
        keep(Change::Block(key, self.blocks.get(&key).copied()));
        self.set(key, block);
    }

    fn tick(&mut self) -> u64 {
        self.numbers.clock += 1;
        self.numbers.clock
    }

    /// Makes room for a write, if there is any.
    pub fn admit(
        &mut self,
        key: Key,
        (from, to): (u64, u64),
        capacity: u64,
        keep: &mut dyn FnMut(Change),
    ) -> bool {
        let had = self.blocks.get(&key).copied();
        let (first, last) = had.map_or((from, to), |block| (block.from.min(from), block.to.max(to)));
        let more = (last - first) - had.map_or(0, |block| block.to - block.from);
        if self.numbers.used + more > capacity {
            self.numbers.redirected += 1;
            return false;
        }
        self.numbers.used += more;
        let block = Block {
            from: first,
            to: last,
            touched: self.tick(),
            version: had.map_or(0, |block| block.version.wrapping_add(1)),
            writing: had.map_or(0, |block| block.writing) + 1,
            moving: had.is_some_and(|block| block.moving),
        };
        self.change(key, Some(block), keep);
        true
    }

    /// A write is done.
    pub fn written(&mut self, key: Key, keep: &mut dyn FnMut(Change)) {
        if let Some(block) = self.blocks.get(&key).copied() {
            let writing = block.writing.saturating_sub(1);
            let block = Block { writing, touched: self.tick(), ..block };
            self.change(key, Some(block), keep);
        }
    }

    /// Whether all of a range is here; then it has been used.
    pub fn hit(&mut self, key: Key, (from, to): (u64, u64), keep: &mut dyn FnMut(Change)) -> bool {
        let Some(block) = self.blocks.get(&key).copied().filter(|block| block.from <= from && to <= block.to)
        else {
            self.numbers.redirected += 1;
            return false;
        };
        let block = Block { touched: self.tick(), ..block };
        self.change(key, Some(block), keep);
        true
    }

    /// The next block to be moved, when too much is held.
    pub fn evict(&mut self, above: u64, keep: &mut dyn FnMut(Change)) -> Option<(Key, Block)> {
        if self.numbers.used - self.numbers.moving <= above {
            return None;
        }
        let key = *self.old.values().next()?;
        let block = Block { moving: true, ..*self.blocks.get(&key)? };
        self.numbers.moving += block.to - block.from;
        self.change(key, Some(block), keep);
        Some((key, block))
    }

    /// Another server has taken `bytes` of a block of this version. What was written since stays.
    pub fn moved(&mut self, key: Key, version: u32, bytes: u64, keep: &mut dyn FnMut(Change)) {
        let Some(block) = self.blocks.get(&key).copied() else { return };
        self.numbers.moving = self.numbers.moving.saturating_sub(bytes);
        self.numbers.moved += bytes;
        if block.version == version {
            self.numbers.used = self.numbers.used.saturating_sub(block.to - block.from);
            self.change(key, None, keep);
        } else {
            self.change(key, Some(Block { moving: false, ..block }), keep);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no(_: Change) {}

    fn written(buffer: &mut Buffer, stripe: u64) -> bool {
        let key = (0, stripe);
        let admitted = buffer.admit(key, (stripe * 10, stripe * 10 + 10), 40, &mut no);
        if admitted {
            buffer.written(key, &mut no);
        }
        admitted
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut buffer = Buffer::default();
        assert!((0..4).all(|stripe| written(&mut buffer, stripe)));
        // Full (condition b), but what is there can be written again.
        assert!(!written(&mut buffer, 4));
        assert!(written(&mut buffer, 0));
        assert!(buffer.hit((0, 2), (22, 30), &mut no));
        assert!(!buffer.hit((0, 2), (22, 31), &mut no) && !buffer.hit((0, 9), (90, 91), &mut no));
        let order: Vec<u64> = std::iter::from_fn(|| buffer.evict(0, &mut no)).map(|(key, _)| key.1).collect();
        assert_eq!(order, [1, 3, 0, 2]);
        assert_eq!((buffer.numbers.used, buffer.numbers.moving), (40, 40));
        buffer.moved((0, 1), 0, 10, &mut no);
        // Room again (condition a).
        assert!(written(&mut buffer, 4));
        assert_eq!((buffer.numbers.used, buffer.numbers.redirected), (40, 3));
    }

    #[test]
    fn what_is_written_while_it_moves_stays() {
        let mut buffer = Buffer::default();
        assert!(written(&mut buffer, 0));
        let (key, block) = buffer.evict(0, &mut no).unwrap();
        assert!(written(&mut buffer, 0));
        assert_eq!(buffer.evict(0, &mut no), None);
        buffer.moved(key, block.version, 10, &mut no);
        assert_eq!((buffer.numbers.used, buffer.numbers.moving), (10, 0));
        let (_, again) = buffer.evict(0, &mut no).unwrap();
        buffer.moved(key, again.version, 10, &mut no);
        assert_eq!((buffer.numbers.used, buffer.numbers.moving, buffer.numbers.moved), (0, 0, 20));
    }

    #[test]
    fn nothing_moves_below_the_mark_or_before_it_is_written() {
        let mut buffer = Buffer::default();
        assert!(buffer.admit((0, 0), (0, 10), 40, &mut no));
        assert_eq!(buffer.evict(0, &mut no), None);
        buffer.written((0, 0), &mut no);
        assert_eq!(buffer.evict(10, &mut no), None);
        assert!(buffer.evict(9, &mut no).is_some());
    }
}
