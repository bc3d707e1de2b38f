//! The data of objects on several tiers: a daemon's own chunk store and, below it, others on slower storage that nodes
//! share. To whoever reads and writes, an object is one, wherever its parts lie (INVENTORY K3).
//!
//! An object is cut into units ([`UNIT`]). Each unit lies on one tier; a new one goes where the caller says, an old one is
//! written where it lies. [`Tiers::move_units`] takes units elsewhere while the object is in use.
//!
//! No list says what lies where: the stores do. So nothing can contradict them after a crash. A move writes the new
//! copy, syncs it, then gives up the old one, and nobody uses the object meanwhile. Where it was cut short, several tiers
//! have blocks of a unit; the upper ones count, and what the upper tier has given up already lies below. So
//! [`Tiers::open`], or the next one to use an object whose move failed like that, brings such units together again, on
//! the upper tier. [`Tiers::sync`] syncs the upper stores first: what a move gave up must not come back over what was
//! written below since.

#[cfg(test)]
mod tests;
mod units;

use crate::chunk::{BadBlock, ChunkStore, Lent, Standing, Usage};
use crate::error::{StoreError, StoreErrorKind};
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tidepool_env::{Disk, RealDisk};
use tidepool_types::{BLOCK_SIZE, Ino};

/// Bytes that lie on one tier together. What has begun on a tier is written to its end there, also when its writer is sent
/// elsewhere meanwhile: with 64 writers of units of 512 KiB that were 16 MB in a pool's way that was to be kept free.
pub const UNIT: u64 = 128 << 10;
/// Tiers of a daemon: its own store, a shared burst buffer, the parallel file system.
pub const TIERS_MAX: usize = 3;
/// Units whose tier is remembered for each object; more are looked up again.
const KNOWN_MAX: usize = 1 << 14;
const SHARDS: usize = 64;
const BLOCKS_OF_UNIT: usize = (UNIT / BLOCK_SIZE as u64) as usize;

/// A tier of a daemon: 0 is its own store, the others follow from fast to slow.
pub type TierIndex = usize;

/// The data of objects, on one tier or on several. Threads share it.
pub struct Tiers<D: Disk> {
    stores: Vec<ChunkStore<D>>,
    shards: Vec<RwLock<FxHashMap<Ino, Arc<Entry>>>>,
}

/// What is known of an object that may lie on several tiers.
struct Entry {
    /// Held for reading by whoever reads or writes, for writing by whoever moves or cuts.
    calm: RwLock<()>,
    /// The tiers that may have some of it, a bit each.
    mask: AtomicU8,
    /// The tier of units that were looked up.
    known: Mutex<FxHashMap<u64, TierIndex>>,
    /// A move failed, and so did what would undo it.
    torn: AtomicBool,
}

impl<D: Disk> Tiers<D> {
    /// One store, of one tier.
    pub fn single(store: ChunkStore<D>) -> Tiers<D> {
        Tiers { stores: vec![store], shards: Vec::new() }
    }

    /// Stores from fast to slow, the daemon's own first. What an interrupted move has left is brought together.
    pub fn open(stores: Vec<ChunkStore<D>>) -> Result<Tiers<D>, StoreError> {
        assert!((1..=TIERS_MAX).contains(&stores.len()), "one to three tiers");
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        let tiers = Tiers { stores, shards };
        for tier in 1..tiers.stores.len() {
            let mut after = None;
            loop {
                let some = tiers.stores[tier].objects(after, 1024)?;
                let Some(last) = some.last() else { break };
                after = Some(*last);
                for ino in some {
                    tiers.entry(ino).mask.fetch_or(1 << tier, Ordering::Relaxed);
                }
            }
        }
        for ino in tiers.entries() {
            tiers.mend(&tiers.entry(ino), ino)?;
        }
        Ok(tiers)
    }

    /// Nobody moves the object until this is dropped.
    fn calm<'e>(&self, entry: &'e Entry, ino: Ino) -> Result<RwLockReadGuard<'e, ()>, StoreError> {
        loop {
            let calm = entry.calm.read().expect("no thread panics here");
            if !entry.torn.load(Ordering::Acquire) {
                return Ok(calm);
            }
            drop(calm);
            drop(self.alone(entry, ino)?);
        }
    }

    /// Nobody uses the object until this is dropped.
    fn alone<'e>(&self, entry: &'e Entry, ino: Ino) -> Result<RwLockWriteGuard<'e, ()>, StoreError> {
        let alone = entry.calm.write().expect("no thread panics here");
        if entry.torn.load(Ordering::Acquire) {
            self.mend(entry, ino)?;
        }
        Ok(alone)
    }

    /// The daemon's own store, where there is no other: what clients may have files of.
    pub fn only(&self) -> Option<&ChunkStore<D>> {
        (self.stores.len() == 1).then(|| &self.stores[0])
    }

    pub fn own(&self) -> &ChunkStore<D> {
        &self.stores[0]
    }

    /// The store of a tier, for looking only.
    pub fn tier(&self, tier: TierIndex) -> &ChunkStore<D> {
        &self.stores[tier]
    }

    pub fn count(&self) -> usize {
        self.stores.len()
    }

    fn shard(&self, ino: Ino) -> &RwLock<FxHashMap<Ino, Arc<Entry>>> {
        &self.shards[(ino.0 ^ (ino.0 >> 17)) as usize % SHARDS]
    }

    fn entry(&self, ino: Ino) -> Arc<Entry> {
        if let Some(entry) = self.shard(ino).read().expect("no thread panics here").get(&ino) {
            return entry.clone();
        }
        let mut shard = self.shard(ino).write().expect("no thread panics here");
        shard.entry(ino).or_insert_with(|| Arc::new(Entry::new())).clone()
    }

    fn entries(&self) -> Vec<Ino> {
        let keys = |shard: &RwLock<FxHashMap<Ino, Arc<Entry>>>| -> Vec<Ino> {
            shard.read().expect("no thread panics here").keys().copied().collect()
        };
        let mut all: Vec<Ino> = self.shards.iter().flat_map(keys).collect();
        all.sort_unstable();
        all
    }

    /// Writes `data` at `offset`; new units go to tier `to`, or, where that is full, to the next below with room.
    /// Returns the change in the number of stored blocks. After an error each block is wholly old or wholly new.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8], to: TierIndex) -> Result<i64, StoreError> {
        if self.only().is_some() || data.is_empty() {
            return self.stores[0].write(ino, offset, data);
        }
        crate::chunk::check_range(ino, offset, data.len() as u64)?;
        let entry = self.entry(ino);
        let (mut blocks, mut at, mut rest) = (0, offset, data);
        while !rest.is_empty() {
            let len = usize::try_from(units::end(at) - at).unwrap_or(usize::MAX).min(rest.len());
            let (part, tail) = rest.split_at(len);
            blocks += self.write_unit(&entry, ino, at, part, to)?;
            (at, rest) = (at + len as u64, tail);
        }
        Ok(blocks)
    }

    fn write_unit(
        &self,
        entry: &Entry,
        ino: Ino,
        at: u64,
        part: &[u8],
        to: TierIndex,
    ) -> Result<i64, StoreError> {
        loop {
            self.forget_some(entry, ino)?;
            let calm = self.calm(entry, ino)?;
            let tier = self.tier_of(entry, ino, units::of(at), Some(to))?.expect("one was given");
            let written = self.stores[tier].write(ino, at, part);
            drop(calm);
            match written {
                Err(error) if error.kind == StoreErrorKind::NoSpace && tier + 1 < self.stores.len() => {
                    self.sink(entry, ino, units::of(at), tier)?;
                }
                other => return other,
            }
        }
    }

    /// Units that were looked up take memory. They are forgotten while nobody writes: a new unit has nothing stored yet that
    /// would tell the next writer where it is to be.
    fn forget_some(&self, entry: &Entry, ino: Ino) -> Result<(), StoreError> {
        let known = || entry.known.lock().expect("no thread panics here");
        if known().len() >= KNOWN_MAX {
            let _alone = self.alone(entry, ino)?;
            known().clear();
        }
        Ok(())
    }

    /// The tier of a unit; of a new one `new`, which it then has.
    fn tier_of(
        &self,
        entry: &Entry,
        ino: Ino,
        unit: u64,
        new: Option<TierIndex>,
    ) -> Result<Option<TierIndex>, StoreError> {
        let mut known = entry.known.lock().expect("no thread panics here");
        let found = match known.get(&unit) {
            Some(tier) => Some(*tier),
            None => self.find(entry, ino, unit)?.or(new),
        };
        if let Some(tier) = found {
            if new.is_some() || known.len() < KNOWN_MAX {
                known.insert(unit, tier);
            }
            // Also of one that was known: its tier may have had nothing left of the object meanwhile.
            entry.mask.fetch_or(1 << tier, Ordering::Relaxed);
        }
        Ok(found)
    }

    /// The tier of what lies around a byte of an object, if something does.
    pub fn tier_at(&self, ino: Ino, offset: u64) -> Result<Option<TierIndex>, StoreError> {
        if self.only().is_some() {
            return Ok(Some(0));
        }
        let entry = self.entry(ino);
        let _calm = self.calm(&entry, ino)?;
        self.tier_of(&entry, ino, units::of(offset), None)
    }

    /// Where blocks of a unit are stored.
    fn find(&self, entry: &Entry, ino: Ino, unit: u64) -> Result<Option<TierIndex>, StoreError> {
        for tier in entry.tiers() {
            if !self.stored(tier, ino, unit * UNIT, UNIT)?.is_empty() {
                return Ok(Some(tier));
            }
        }
        Ok(None)
    }

    /// A unit that its tier has no room for goes to the next one below.
    fn sink(&self, entry: &Entry, ino: Ino, unit: u64, tier: TierIndex) -> Result<(), StoreError> {
        let _alone = self.alone(entry, ino)?;
        // Somebody else may have been first.
        if entry.known.lock().expect("no thread panics here").get(&unit) == Some(&tier) {
            self.copy(entry, ino, unit * UNIT, UNIT, tier, tier + 1)?;
            entry.mask.fetch_or(1 << (tier + 1), Ordering::Relaxed);
            entry.known.lock().expect("no thread panics here").insert(unit, tier + 1);
        }
        Ok(())
    }

    /// Appends the data from `offset` on to `out`, as [`ChunkStore::read`].
    pub fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<(), StoreError> {
        if self.only().is_some() {
            return self.stores[0].read(ino, offset, len, out);
        }
        let before = out.len();
        out.resize(before + len, 0);
        let read = self.read_into(ino, offset, &mut out[before..]);
        out.truncate(before + *read.as_ref().unwrap_or(&0));
        read.map(drop)
    }

    /// Fills `buf` with the data from `offset` on; how many bytes there were, as [`ChunkStore::read_into`].
    pub fn read_into(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize, StoreError> {
        if self.only().is_some() {
            return self.stores[0].read_into(ino, offset, buf);
        }
        let entry = self.entry(ino);
        let _calm = self.calm(&entry, ino)?;
        let (mut done, mut there) = (0, 0);
        while done < buf.len() {
            let at = offset + done as u64;
            let len = usize::try_from(units::end(at) - at).unwrap_or(usize::MAX).min(buf.len() - done);
            let part = &mut buf[done..done + len];
            let got = match self.tier_of(&entry, ino, units::of(at), None)? {
                Some(tier) => self.stores[tier].read_into(ino, at, part)?,
                None => 0,
            };
            part[got..].fill(0);
            there = if got > 0 { done + got } else { there };
            done += len;
        }
        Ok(there)
    }

    /// Moves what lies on tier `from` of a range of whole units to tier `to`; how many bytes that were. Verified when it
    /// is read, and synced on its new tier before the old one gives it up.
    pub fn move_units(
        &self,
        ino: Ino,
        unit: u64,
        count: u64,
        from: TierIndex,
        to: TierIndex,
    ) -> Result<u64, StoreError> {
        let entry = self.entry(ino);
        let _alone = self.alone(&entry, ino)?;
        entry.mask.fetch_or(1 << to, Ordering::Relaxed);
        let moved = self.copy(&entry, ino, unit * UNIT, count * UNIT, from, to)?;
        let mut known = entry.known.lock().expect("no thread panics here");
        known.retain(|at, _| !(unit..unit + count).contains(at));
        Ok(moved)
    }

    /// Moves a range; the caller has the object for itself. A failure leaves the object as it was. What lies twice then
    /// does no harm where the upper copy is whole: that one counts, and the lower one goes before the upper does.
    fn copy(
        &self,
        entry: &Entry,
        ino: Ino,
        at: u64,
        len: u64,
        from: TierIndex,
        to: TierIndex,
    ) -> Result<u64, StoreError> {
        self.give_up_hollow(ino, at, len, from)?;
        let mut ranges = self.stored(from, ino, at, len)?;
        if from > 0 && !ranges.is_empty() {
            ranges = self.without_leftovers(entry, ino, ranges, from)?;
        }
        if ranges.is_empty() {
            return self.leave_if_empty(entry, ino, from).map(|()| 0);
        }
        let copied = self.copy_out(ino, &ranges, from, to);
        let copied = copied.inspect_err(|_| self.tear(entry, ino, to < from))?;
        let given_up = self.give_up(entry, ino, &ranges, from, to);
        given_up.inspect_err(|_| self.tear(entry, ino, from < to))?;
        Ok(copied)
    }

    /// Blocks of units that are on an upper tier are what a move that failed has left: they go, and the rest is what counts.
    fn without_leftovers(
        &self,
        entry: &Entry,
        ino: Ino,
        ranges: Vec<(u64, u64)>,
        tier: TierIndex,
    ) -> Result<Vec<(u64, u64)>, StoreError> {
        let (mut counts, mut from) = (Vec::new(), 0);
        for (start, len) in &ranges {
            for unit in units::of(*start).max(from)..=units::of(start + len - 1) {
                from = unit + 1;
                let (first, end) = (unit * UNIT, (unit + 1) * UNIT);
                match self.find(entry, ino, unit)? {
                    Some(upper) if upper < tier => drop(self.stores[tier].punch(ino, first, UNIT)?),
                    _ => counts.extend(units::clip(ranges.clone(), first, end)),
                }
            }
        }
        Ok(counts)
    }

    fn copy_out(
        &self,
        ino: Ino,
        ranges: &[(u64, u64)],
        from: TierIndex,
        to: TierIndex,
    ) -> Result<u64, StoreError> {
        let mut copied = 0;
        for (start, len) in ranges {
            let mut data = Vec::new();
            self.stores[from].read(ino, *start, *len as usize, &mut data)?;
            self.stores[to].write(ino, *start, &data)?;
            copied += data.len() as u64;
        }
        self.stores[to].sync(ino)?;
        Ok(copied)
    }

    fn give_up(
        &self,
        entry: &Entry,
        ino: Ino,
        ranges: &[(u64, u64)],
        from: TierIndex,
        to: TierIndex,
    ) -> Result<(), StoreError> {
        // What an earlier failure has left of these units further below.
        for other in entry.tiers().filter(|other| *other > from && *other != to) {
            for (start, len) in ranges {
                let (first, end) = (units::of(*start) * UNIT, units::end(start + len - 1));
                self.stores[other].punch(ino, first, end - first)?;
            }
        }
        for (start, len) in ranges {
            self.stores[from].punch(ino, *start, *len)?;
        }
        self.leave_if_empty(entry, ino, from)
    }

    fn leave_if_empty(&self, entry: &Entry, ino: Ino, tier: TierIndex) -> Result<(), StoreError> {
        if self.stores[tier].blocks(ino)? == 0 {
            self.stores[tier].drop_object(ino)?;
            entry.mask.fetch_and(!(1 << tier), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Blocks that hold nothing, since who wrote or dropped them was killed: they count as stored until they are given up.
    fn give_up_hollow(&self, ino: Ino, at: u64, len: u64, tier: TierIndex) -> Result<(), StoreError> {
        let most = len.div_ceil(UNIT) as usize * BLOCKS_OF_UNIT;
        let counted = units::clip(self.stores[tier].extents(ino, at, most)?, at, at + len);
        for (start, len) in units::without(&counted, &self.stored(tier, ino, at, len)?) {
            self.stores[tier].punch(ino, start, len)?;
        }
        Ok(())
    }

    /// A move has failed. Where the upper copy may have gaps, the object cannot be used before they are filled.
    fn tear(&self, entry: &Entry, ino: Ino, upper_has_gaps: bool) {
        if upper_has_gaps {
            entry.torn.store(true, Ordering::Release);
            // Where this fails, too, whoever comes next tries again.
            let _ = self.mend(entry, ino);
        }
    }

    /// Ranges of blocks that a tier has, within `len` bytes from `at` on.
    fn stored(&self, tier: TierIndex, ino: Ino, at: u64, len: u64) -> Result<Vec<(u64, u64)>, StoreError> {
        let most = len.div_ceil(UNIT) as usize * BLOCKS_OF_UNIT;
        let found = self.stores[tier].solid_extents(ino, at, most)?;
        Ok(units::clip(found, at, at + len))
    }

    /// Brings units together of which several tiers have blocks: a move was cut short. Blocks that the upper tier was
    /// giving up may be zeros there already, so they come from below.
    fn mend(&self, entry: &Entry, ino: Ino) -> Result<(), StoreError> {
        for lower in (1..self.stores.len()).rev() {
            for upper in 0..lower {
                let mut from = 0;
                while let Some((at, _)) = self.stores[upper].extents(ino, from, 1)?.first().copied() {
                    let start = units::of(at) * UNIT;
                    let below = self.stored(lower, ino, start, UNIT)?;
                    if !below.is_empty() {
                        let above = self.stored(upper, ino, start, UNIT)?;
                        self.raise(ino, &units::without(&below, &above), lower, upper)?;
                        entry.mask.fetch_or(1 << upper, Ordering::Relaxed);
                        self.stores[upper].sync(ino)?;
                        self.stores[lower].punch(ino, start, UNIT)?;
                    }
                    from = start + UNIT;
                }
            }
            if self.stores[lower].blocks(ino)? == 0 {
                self.stores[lower].drop_object(ino)?;
            }
        }
        entry.known.lock().expect("no thread panics here").clear();
        entry.torn.store(false, Ordering::Release);
        Ok(())
    }

    fn raise(
        &self,
        ino: Ino,
        ranges: &[(u64, u64)],
        from: TierIndex,
        to: TierIndex,
    ) -> Result<(), StoreError> {
        for (start, len) in ranges {
            let mut data = Vec::new();
            self.stores[from].read(ino, *start, *len as usize, &mut data)?;
            self.stores[to].write(ino, *start, &data)?;
        }
        Ok(())
    }

    /// As [`ChunkStore::trim`].
    pub fn trim(&self, ino: Ino, size: u64) -> Result<i64, StoreError> {
        self.cut(ino, |store| store.trim(ino, size))
    }

    /// As [`ChunkStore::punch`].
    pub fn punch(&self, ino: Ino, offset: u64, len: u64) -> Result<i64, StoreError> {
        self.cut(ino, |store| store.punch(ino, offset, len))
    }

    fn cut(
        &self,
        ino: Ino,
        cut: impl Fn(&ChunkStore<D>) -> Result<i64, StoreError>,
    ) -> Result<i64, StoreError> {
        if let Some(store) = self.only() {
            return cut(store);
        }
        let entry = self.entry(ino);
        let _alone = self.alone(&entry, ino)?;
        entry.known.lock().expect("no thread panics here").clear();
        entry.tiers().map(|tier| cut(&self.stores[tier])).sum()
    }

    /// As [`ChunkStore::drop_object`].
    pub fn drop_object(&self, ino: Ino) -> Result<u64, StoreError> {
        if let Some(store) = self.only() {
            return store.drop_object(ino);
        }
        let entry = self.entry(ino);
        let _alone = self.alone(&entry, ino)?;
        entry.known.lock().expect("no thread panics here").clear();
        let blocks: Result<u64, StoreError> =
            self.stores.iter().rev().map(|store| store.drop_object(ino)).sum();
        let blocks = blocks?;
        entry.mask.store(1, Ordering::Relaxed);
        self.shard(ino).write().expect("no thread panics here").remove(&ino);
        Ok(blocks)
    }

    /// Returns when what was written to an object survives a power failure.
    pub fn sync(&self, ino: Ino) -> Result<(), StoreError> {
        self.stores.iter().try_for_each(|store| store.sync(ino))
    }

    pub fn sync_all(&self) -> Result<(), StoreError> {
        self.stores.iter().try_for_each(ChunkStore::sync_all)
    }

    /// As [`ChunkStore::extents`].
    pub fn extents(&self, ino: Ino, from: u64, max: usize) -> Result<Vec<(u64, u64)>, StoreError> {
        if let Some(store) = self.only() {
            return store.extents(ino, from, max);
        }
        let entry = self.entry(ino);
        let _calm = self.calm(&entry, ino)?;
        let mut all = Vec::new();
        for tier in entry.tiers() {
            all.extend(self.stores[tier].solid_extents(ino, from, max)?);
        }
        all.sort_unstable();
        all.truncate(max);
        Ok(all)
    }

    /// As [`ChunkStore::missing_blocks`].
    pub fn missing_blocks(&self, ino: Ino, offset: u64, len: usize) -> Result<u64, StoreError> {
        if let Some(store) = self.only() {
            return store.missing_blocks(ino, offset, len);
        }
        let entry = self.entry(ino);
        let _calm = self.calm(&entry, ino)?;
        let (mut missing, end, mut at) = (0, offset + len as u64, offset);
        while at < end {
            let next = units::end(at).min(end);
            let tier = self.tier_of(&entry, ino, units::of(at), None)?.unwrap_or(0);
            missing += self.stores[tier].missing_blocks(ino, at, (next - at) as usize)?;
            at = next;
        }
        Ok(missing)
    }

    pub fn stored_blocks(&self) -> u64 {
        self.stores.iter().map(ChunkStore::stored_blocks).sum()
    }

    pub fn blocks(&self, ino: Ino) -> Result<u64, StoreError> {
        self.stores.iter().map(|store| store.blocks(ino)).sum()
    }

    /// As [`ChunkStore::objects`], of all tiers.
    pub fn objects(&self, after: Option<Ino>, max: usize) -> Result<Vec<Ino>, StoreError> {
        let mut all = Vec::new();
        for store in &self.stores {
            all.extend(store.objects(after, max)?);
        }
        // The order of each store.
        all.sort_unstable_by_key(|ino| (ino.0 as u8, ino.0));
        all.dedup();
        all.truncate(max);
        Ok(all)
    }

    pub fn scrub(&self, ino: Ino) -> Result<Vec<BadBlock>, StoreError> {
        let mut bad = Vec::new();
        for store in &self.stores {
            bad.extend(store.scrub(ino)?);
        }
        Ok(bad)
    }

    /// As [`ChunkStore::bury`].
    pub fn bury(&self) -> bool {
        self.stores.iter().fold(false, |any, store| store.bury() | any)
    }

    /// Blocks of all tiers; the room is that of the last one, where everything may go in the end.
    pub fn usage(&self) -> Result<Usage, StoreError> {
        self.bury();
        let last = self.stores.last().expect("there is one").usage()?;
        Ok(Usage { blocks: self.stored_blocks(), ..last })
    }
}

impl Tiers<RealDisk> {
    /// As [`ChunkStore::lend`]; none where an object may lie on several tiers.
    pub fn lend(&self, ino: Ino, elsewhere: i64) -> Result<Option<(Lent, Standing)>, StoreError> {
        self.only().map_or(Ok(None), |store| store.lend(ino, elsewhere))
    }
}

impl Entry {
    fn new() -> Entry {
        Entry {
            calm: RwLock::new(()),
            mask: AtomicU8::new(1),
            known: Mutex::default(),
            torn: AtomicBool::new(false),
        }
    }

    /// Tiers that may have some of the object, the fast ones first.
    fn tiers(&self) -> impl Iterator<Item = TierIndex> + use<> {
        let mask = self.mask.load(Ordering::Relaxed);
        (0..TIERS_MAX).filter(move |tier| mask & (1 << tier) != 0)
    }
}
