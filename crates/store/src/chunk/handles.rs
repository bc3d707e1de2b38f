//! The table of open objects: sharded, bounded, and the record of what is not synced yet.

use super::object::Object;
use crate::error::StoreError;
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use tidepool_env::Disk;
use tidepool_types::Ino;

/// Most objects kept open, each with two file handles. Exceeded only while more are in use at once.
pub const HANDLES_MAX: usize = 256;
const SHARDS: usize = 16;
const SHARD_HANDLES_MAX: usize = HANDLES_MAX / SHARDS;

pub(super) type Handle<D> = Arc<Object<<D as Disk>::File>>;

struct Slot<F> {
    object: Arc<Object<F>>,
    /// Tick of the shard when it was last used.
    used: u64,
}

struct Shard<F> {
    open: FxHashMap<u64, Slot<F>>,
    tick: u64,
    /// Objects changed since they were synced, with the number of the change.
    dirty: FxHashMap<u64, u64>,
    changes: u64,
}

impl<F> Default for Shard<F> {
    fn default() -> Shard<F> {
        Shard { open: FxHashMap::default(), tick: 0, dirty: FxHashMap::default(), changes: 0 }
    }
}

impl<F> Shard<F> {
    fn find(&mut self, ino: Ino) -> Option<Arc<Object<F>>> {
        self.tick += 1;
        let slot = self.open.get_mut(&ino.0).filter(|slot| !slot.object.is_gone())?;
        slot.used = self.tick;
        Some(slot.object.clone())
    }

    fn insert(&mut self, object: Arc<Object<F>>) {
        self.open.insert(object.ino.0, Slot { object, used: self.tick });
        while self.open.len() > SHARD_HANDLES_MAX {
            // Whoever else holds an object may hold its lock: a second one for the same
            // object would guard nothing.
            let idle = self.open.iter().filter(|(_, slot)| Arc::strong_count(&slot.object) == 1);
            let Some(oldest) = idle.min_by_key(|(_, slot)| slot.used).map(|(ino, _)| *ino) else { break };
            self.open.remove(&oldest);
        }
    }
}

pub(super) struct Handles<D: Disk> {
    shards: Vec<Mutex<Shard<D::File>>>,
}

impl<D: Disk> Handles<D> {
    pub fn new() -> Handles<D> {
        Handles { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, ino: Ino) -> MutexGuard<'_, Shard<D::File>> {
        let shard = &self.shards[ino.0 as usize % SHARDS];
        shard.lock().expect("no thread panics while it holds a shard")
    }

    /// The open object, opened by `open` when it is not. `open` runs under the lock of the
    /// shard, so that nobody opens the same object a second time.
    pub fn get(
        &self,
        ino: Ino,
        open: impl FnOnce() -> Result<Option<Object<D::File>>, StoreError>,
    ) -> Result<Option<Handle<D>>, StoreError> {
        let mut shard = self.shard(ino);
        if let Some(object) = shard.find(ino) {
            return Ok(Some(object));
        }
        let Some(object) = open()?.map(Arc::new) else { return Ok(None) };
        shard.insert(object.clone());
        Ok(Some(object))
    }

    /// Forgets an object that is gone.
    pub fn forget(&self, ino: Ino) {
        let mut shard = self.shard(ino);
        if shard.open.get(&ino.0).is_some_and(|slot| slot.object.is_gone()) {
            shard.open.remove(&ino.0);
            shard.dirty.remove(&ino.0);
        }
    }

    /// To be called after a change and before it is acknowledged.
    pub fn mark_dirty(&self, ino: Ino) {
        let mut shard = self.shard(ino);
        shard.changes += 1;
        let change = shard.changes;
        shard.dirty.insert(ino.0, change);
    }

    /// Number of the last change of an object that is not synced.
    pub fn dirty_change(&self, ino: Ino) -> Option<u64> {
        self.shard(ino).dirty.get(&ino.0).copied()
    }

    /// To be called after a sync with what [`Handles::dirty_change`] returned before it.
    /// Later changes keep the object dirty.
    pub fn mark_clean(&self, ino: Ino, change: Option<u64>) {
        let mut shard = self.shard(ino);
        if change.is_some() && shard.dirty.get(&ino.0).copied() == change {
            shard.dirty.remove(&ino.0);
        }
    }

    pub fn all_dirty(&self) -> Vec<Ino> {
        let shards =
            self.shards.iter().map(|shard| shard.lock().expect("no thread panics while it holds a shard"));
        let mut all: Vec<Ino> =
            shards.flat_map(|shard| shard.dirty.keys().copied().map(Ino).collect::<Vec<_>>()).collect();
        all.sort_unstable();
        all
    }

    #[cfg(test)]
    pub fn open_count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap().open.len()).sum()
    }
}
