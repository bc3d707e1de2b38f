//! A daemon's share of the pool's quota in bytes.

use std::sync::atomic::{AtomicU64, Ordering};
use tidepool_types::BLOCK_SIZE;

/// Blocks that may be stored, and those that writes under way are about to store.
pub struct Quota {
    blocks_max: Option<u64>,
    promised: AtomicU64,
}

/// Room for one write, given back when it has stored its blocks or failed.
pub struct Promise<'a> {
    quota: &'a Quota,
    blocks: u64,
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        self.quota.promised.fetch_sub(self.blocks, Ordering::AcqRel);
    }
}

impl Quota {
    /// `bytes`: 0 for no limit. A part of a block counts as one.
    pub fn new(bytes: u64) -> Quota {
        let blocks_max = (bytes > 0).then(|| bytes.div_ceil(u64::from(BLOCK_SIZE)));
        Quota { blocks_max, promised: AtomicU64::new(0) }
    }

    /// True when nothing has to be counted.
    pub fn is_unlimited(&self) -> bool {
        self.blocks_max.is_none()
    }

    /// Bytes that may be stored in all.
    pub fn bytes(&self) -> Option<u64> {
        self.blocks_max.map(|blocks| blocks * u64::from(BLOCK_SIZE))
    }

    /// Room for `blocks` more where `stored` are; `None` when that is too much. Two writes at the same time never
    /// get the same room.
    pub fn promise(&self, stored: u64, blocks: u64) -> Option<Promise<'_>> {
        let before = self.promised.fetch_add(blocks, Ordering::AcqRel);
        let promise = Promise { quota: self, blocks };
        let wanted = stored.saturating_add(before).saturating_add(blocks);
        self.blocks_max.is_none_or(|max| wanted <= max).then_some(promise)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_promised_once() {
        let quota = Quota::new(10 * u64::from(BLOCK_SIZE) - 1);
        let one = quota.promise(4, 3).expect("4 + 3 of 10");
        assert!(quota.promise(4, 4).is_none(), "11 of 10");
        let two = quota.promise(4, 3).expect("the failed try took nothing");
        drop((one, two));
        assert!(quota.promise(4, 6).is_some());
        assert!(quota.promise(10, 0).is_some(), "overwriting needs no room");
        assert!(Quota::new(0).promise(u64::MAX, u64::MAX).is_some());
    }
}
