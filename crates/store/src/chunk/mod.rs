//! The data of objects: one sparse file per object, every block under a checksum.
//!
//! Files, entries, the protocol of a write and the crash argument: `docs/formats/03-chunk-store.md`.

#[cfg(test)]
mod crash_tests;
mod handles;
mod lend;
mod object;
mod paged;
mod small;
#[cfg(test)]
mod small_tests;
mod sums;
#[cfg(test)]
mod tests;

pub use handles::HANDLES_MAX;
pub use lend::{Borrower, LeftLoan, Lent, Standing};
pub use object::BadBlock;
pub(crate) use object::check_range;

use crate::error::{StoreError, StoreErrorKind};
use handles::{Handle, Handles};
use object::{Failed, Names, Object, dir_name, remove_file};
use paged::{Place, part_of};
use small::{SLOTS_MAX, Small};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use tidepool_env::{Disk, RealDisk, Space};
use tidepool_types::{BLOCK_SIZE, Ino};

const DATA_DIR: &str = "data";
/// Blocks that are given back at once when an object is dropped: 1 MiB.
const INLINE_BLOCKS_MAX: u64 = 256;
/// Directories that objects are spread over.
const DIRS: usize = 256;

/// How full a chunk store is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Stored blocks of all objects.
    pub blocks: u64,
    /// Bytes that the file system below may still take, and all it has.
    pub free: u64,
    pub total: u64,
}

/// Stores the data of objects. Threads share it.
pub struct ChunkStore<D: Disk> {
    disk: D,
    handles: Handles<D>,
    /// Objects that have no files. Lock order: a shard of these, then `handles`, then an object.
    small: Small<D::File>,
    /// Stored blocks. Signed, because an error may leave it off by a few until the next start.
    blocks: AtomicI64,
    /// For each directory, whether its names changed since it was synced.
    names_dirty: Vec<Mutex<bool>>,
    /// Whether a directory was made since the directories above were synced.
    dirs_dirty: Mutex<bool>,
    /// Large objects that are dropped and whose space the file system has not taken back yet: it does so when the
    /// last handle is closed, and takes its time.
    graves: Mutex<Vec<Handle<D>>>,
    /// The directory that was listed last, and its objects: who asks for all objects page by page lists each once.
    listed: Mutex<Option<(u8, Arc<[Ino]>)>>,
    /// How often one was.
    #[cfg(test)]
    lists: std::sync::atomic::AtomicU32,
    /// Objects that an earlier process left, which may have died before it synced them.
    inherited: AtomicBool,
}

impl<D: Disk> ChunkStore<D> {
    /// Opens the store below `data` on `disk`, or makes an empty one.
    pub fn open(disk: D) -> Result<ChunkStore<D>, StoreError> {
        ChunkStore::with_slots(disk, SLOTS_MAX)
    }

    /// `slots_max`: objects that are kept without files at most.
    fn with_slots(disk: D, slots_max: u32) -> Result<ChunkStore<D>, StoreError> {
        disk.create_dir_all(DATA_DIR)
            .map_err(|e| StoreError::io("open the chunk store", &e).in_file(DATA_DIR))?;
        let store = ChunkStore {
            small: Small::open(&disk, slots_max)?,
            disk,
            handles: Handles::new(),
            blocks: AtomicI64::new(0),
            names_dirty: (0..DIRS).map(|_| Mutex::new(true)).collect(),
            dirs_dirty: Mutex::new(true),
            graves: Mutex::default(),
            listed: Mutex::default(),
            #[cfg(test)]
            lists: std::sync::atomic::AtomicU32::new(0),
            inherited: AtomicBool::new(true),
        };
        store.count_blocks()?;
        Ok(store)
    }

    fn count_blocks(&self) -> Result<(), StoreError> {
        for dir in 0..=u8::MAX {
            for ino in self.list_files(dir)? {
                if self.small.wins(ino) {
                    // A move to files that was not finished.
                    self.remove_files(ino)?;
                    continue;
                }
                match Object::open(&self.disk, ino).and_then(|object| count_of(object.as_ref())) {
                    Ok(count) => self.add_blocks(count as i64),
                    // One damaged object must not keep all others from being served.
                    Err(error) if error.kind == StoreErrorKind::Corrupt => {}
                    Err(error) => return Err(error),
                }
            }
        }
        self.add_blocks(self.small.count() as i64);
        Ok(())
    }

    /// Writes `data` at `offset`; returns the change in the number of stored blocks.
    ///
    /// After an error each block that the write touched is wholly old or wholly new.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<i64, StoreError> {
        object::check_range(ino, offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(0);
        }
        match self.write_once(ino, offset, data) {
            Err(error) if error.kind == StoreErrorKind::NoSpace && self.bury() => {
                self.write_once(ino, offset, data)
            }
            other => other,
        }
    }

    fn write_once(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<i64, StoreError> {
        let result = loop {
            let object = match self.place(ino, offset, data)? {
                Place::Page(blocks) => return Ok(blocks),
                Place::Files(object) => object,
            };
            if let Some(mut state) = object.lock_write()? {
                break object.write(&mut state, offset, data);
            }
        };
        self.changed(ino, result)
    }

    /// Gives back the space of objects that were dropped; true when there were any.
    pub fn bury(&self) -> bool {
        let graves = std::mem::take(&mut *self.graves.lock().expect("no thread panics here"));
        !graves.is_empty()
    }

    /// Appends the data from `offset` on to `out`: `len` bytes, fewer when the data here ends
    /// before, none when the object is not here. Holes are zeros.
    ///
    /// An error leaves `out` as it was.
    pub fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<(), StoreError> {
        if let Some(page) = self.page(ino)? {
            out.extend_from_slice(part_of(page.content(), offset, len));
            return Ok(());
        }
        while let Some(object) = self.get(ino)? {
            if let Some(state) = object.lock_read()? {
                return object.read(&state, offset, len, out);
            }
        }
        self.small.check_lost(ino)
    }

    /// Fills `buf` with the data from `offset` on; how many bytes there were, as for [`ChunkStore::read`].
    /// After an error `buf` holds anything.
    pub fn read_into(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize, StoreError> {
        if let Some(page) = self.page(ino)? {
            let part = part_of(page.content(), offset, buf.len());
            buf[..part.len()].copy_from_slice(part);
            return Ok(part.len());
        }
        while let Some(object) = self.get(ino)? {
            if let Some(state) = object.lock_read()? {
                return object.read_into(&state, offset, buf);
            }
        }
        self.small.check_lost(ino).map(|()| 0)
    }

    /// Drops everything at and beyond `size`; returns the change in the number of stored
    /// blocks, never above 0. Never makes the data longer.
    pub fn trim(&self, ino: Ino, size: u64) -> Result<i64, StoreError> {
        if let Some(delta) = self.trim_page(ino, size)? {
            return Ok(delta);
        }
        while let Some(object) = self.get(ino)? {
            if let Some(mut state) = object.lock_write()? {
                let result = object.trim(&mut state, size);
                drop(state);
                return self.changed(ino, result);
            }
        }
        Ok(0)
    }

    /// Makes a range zeros and gives the room of whole blocks back; returns the change in the number of stored
    /// blocks, never above 0. Never makes the data longer or shorter.
    pub fn punch(&self, ino: Ino, offset: u64, len: u64) -> Result<i64, StoreError> {
        object::check_range(ino, offset, len)?;
        if let Some(delta) = self.punch_page(ino, offset, len)? {
            return Ok(delta);
        }
        while let Some(object) = self.get(ino)? {
            if let Some(mut state) = object.lock_write()? {
                let result = object.punch(&mut state, offset, len);
                drop(state);
                return self.changed(ino, result);
            }
        }
        Ok(0)
    }

    /// Removes an object; returns how many blocks were stored. Nothing to remove is no error. The space of a large one
    /// is free after [`ChunkStore::bury`], which whoever needs space calls.
    pub fn drop_object(&self, ino: Ino) -> Result<u64, StoreError> {
        let mut shard = self.small.lock(ino);
        if let Some(slot) = shard.get(ino) {
            self.small.remove(&mut shard, ino, slot, None)?;
            self.add_blocks(-1);
            return Ok(1);
        }
        drop(shard);
        let Some(object) = self.handles.get(ino, || self.open_or_clear(ino))? else { return Ok(0) };
        let blocks = match object.lock_write()? {
            None => 0,
            Some(mut state) => {
                let blocks = object.blocks(&state)?;
                let removed = object.remove(&self.disk, &mut state);
                if object.is_gone() {
                    self.add_blocks(-(blocks as i64));
                    self.names_changed(ino);
                }
                removed.map(|()| blocks)?
            }
        };
        self.handles.forget(ino);
        if blocks > INLINE_BLOCKS_MAX {
            self.graves.lock().expect("no thread panics here").push(object);
        }
        Ok(blocks)
    }

    /// Opens an object to drop it. One that cannot be opened must go all the same; that happens
    /// here, under the lock of its shard, so that nobody makes it anew meanwhile.
    fn open_or_clear(&self, ino: Ino) -> Result<Option<Object<D::File>>, StoreError> {
        match Object::open(&self.disk, ino) {
            Ok(Some(object)) => return Ok(Some(object)),
            Err(error) if !matches!(error.kind, StoreErrorKind::Corrupt | StoreErrorKind::Version) => {
                return Err(error);
            }
            _ => {}
        }
        let names = Names::of(ino);
        self.names_changed(ino);
        remove_file(&self.disk, ino, &names.data)?;
        remove_file(&self.disk, ino, &names.sums)?;
        Ok(None)
    }

    /// Returns when what was written to an object survives a power failure.
    pub fn sync(&self, ino: Ino) -> Result<(), StoreError> {
        // Held: an object that moves to files meanwhile would be neither here nor there.
        let mut shard = self.small.lock(ino);
        if shard.get(ino).is_some() {
            self.small.mark_synced(&mut shard, ino);
            self.small.sync()?;
            return self.sync_names_above();
        }
        drop(shard);
        let change = self.handles.dirty_change(ino);
        if let Some(object) = self.get(ino)? {
            object.sync()?;
        }
        self.handles.mark_clean(ino, change);
        self.sync_names(ino.0 as u8)?;
        // Or its page would be back, and be the object.
        self.small.sync_if_left(ino)
    }

    /// Returns when everything written survives a power failure.
    pub fn sync_all(&self) -> Result<(), StoreError> {
        if self.inherited.load(Ordering::Acquire) {
            self.sync_inherited()?;
        }
        // First: what moves to files from now on does so durably, what has moved is among those below.
        self.small.mark_all_synced();
        self.small.sync()?;
        for ino in self.handles.all_dirty() {
            self.sync(ino)?;
        }
        (0..=u8::MAX).try_for_each(|dir| self.sync_names(dir))
    }

    fn sync_inherited(&self) -> Result<(), StoreError> {
        for dir in 0..=u8::MAX {
            for ino in self.list_files(dir)? {
                match self.sync(ino) {
                    Err(error) if error.kind == StoreErrorKind::Corrupt => {}
                    other => other?,
                }
            }
        }
        self.inherited.store(false, Ordering::Release);
        Ok(())
    }

    /// Stored ranges (offset, length), whole blocks, ascending, from the block that holds
    /// `from`, at most `max`.
    pub fn extents(&self, ino: Ino, from: u64, max: usize) -> Result<Vec<(u64, u64)>, StoreError> {
        self.ranges(ino, from, max, |object, state| object.extents(state, from, max))
    }

    /// The same without blocks that hold nothing: their dropping was cut short, or their first writing.
    pub(crate) fn solid_extents(
        &self,
        ino: Ino,
        from: u64,
        max: usize,
    ) -> Result<Vec<(u64, u64)>, StoreError> {
        self.ranges(ino, from, max, |object, state| object.solid_extents(state, from, max))
    }

    fn ranges(
        &self,
        ino: Ino,
        from: u64,
        max: usize,
        look: impl Fn(&Object<D::File>, &object::State) -> Result<Vec<(u64, u64)>, StoreError>,
    ) -> Result<Vec<(u64, u64)>, StoreError> {
        let block = u64::from(BLOCK_SIZE);
        if self.is_small(ino) {
            return Ok(if from < block && max > 0 { vec![(0, block)] } else { Vec::new() });
        }
        while let Some(object) = self.get(ino)? {
            if let Some(state) = object.lock_read()? {
                return look(&object, &state);
            }
        }
        Ok(Vec::new())
    }

    /// Blocks of a range that are not stored: what writing to it would add.
    pub fn missing_blocks(&self, ino: Ino, offset: u64, len: usize) -> Result<u64, StoreError> {
        object::check_range(ino, offset, len as u64)?;
        if self.is_small(ino) {
            let stored = u64::from(offset < u64::from(BLOCK_SIZE) && len > 0);
            return Ok(object::blocks_touched(offset, len) - stored);
        }
        while let Some(object) = self.get(ino)? {
            if let Some(state) = object.lock_read()? {
                return object.missing_blocks(&state, offset, len);
            }
        }
        Ok(object::blocks_touched(offset, len))
    }

    /// Stored blocks of all objects.
    pub fn stored_blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed).max(0).unsigned_abs()
    }

    /// Stored blocks of an object.
    pub fn blocks(&self, ino: Ino) -> Result<u64, StoreError> {
        if self.is_small(ino) {
            return Ok(1);
        }
        while let Some(object) = self.get(ino)? {
            if let Some(state) = object.lock_read()? {
                return object.blocks(&state);
            }
        }
        Ok(0)
    }

    /// The next objects after `after`, at most `max`; empty at the end. All objects come
    /// once, in a fixed order that is not the order of their numbers; those made or dropped meanwhile may or may not.
    pub fn objects(&self, after: Option<Ino>, max: usize) -> Result<Vec<Ino>, StoreError> {
        let mut found = Vec::new();
        for dir in after.map_or(0, |after| after.0 as u8)..=u8::MAX {
            let first = after.filter(|after| after.0 as u8 == dir);
            let here = match first {
                Some(_) => self.listed(dir)?,
                None => self.list_anew(dir)?,
            };
            found.extend(here.iter().copied().filter(|ino| first.is_none_or(|first| *ino > first)));
            if found.len() >= max {
                break;
            }
        }
        found.truncate(max);
        Ok(found)
    }

    /// Checks every block of an object. Others may use the object meanwhile.
    pub fn scrub(&self, ino: Ino) -> Result<Vec<BadBlock>, StoreError> {
        if let Some(found) = self.scrub_page(ino)? {
            return Ok(found);
        }
        let mut bad = Vec::new();
        let mut from = 0;
        while let Some(object) = self.get(ino)? {
            // Let go of the lock now and then, so that a scrub never holds up writers for long.
            let Some(state) = object.lock_read()? else { break };
            match object.scrub_some(&state, from, &mut bad)? {
                Some(next) => from = next,
                None => break,
            }
        }
        Ok(bad)
    }

    pub fn usage(&self) -> Result<Usage, StoreError> {
        self.bury();
        let Space { free, total } =
            self.disk.space().map_err(|e| StoreError::io("ask for free space", &e))?;
        Ok(Usage { blocks: self.stored_blocks(), free, total })
    }

    fn get(&self, ino: Ino) -> Result<Option<Handle<D>>, StoreError> {
        self.handles.get(ino, || Object::open(&self.disk, ino))
    }

    fn get_or_create(&self, ino: Ino) -> Result<Handle<D>, StoreError> {
        let object = self.handles.get(ino, || match Object::open(&self.disk, ino)? {
            Some(object) => Ok(Some(object)),
            None => {
                let object = Object::create(&self.disk, ino)?;
                self.names_changed(ino);
                Ok(Some(object))
            }
        })?;
        Ok(object.expect("created when missing"))
    }

    /// Books what a change did, whether it succeeded or not.
    fn changed(&self, ino: Ino, result: Result<i64, Failed>) -> Result<i64, StoreError> {
        self.handles.mark_dirty(ino);
        let (delta, result) = match result {
            Ok(delta) => (delta, Ok(delta)),
            Err(Failed { error, delta }) => (delta, Err(error)),
        };
        self.add_blocks(delta);
        result
    }

    fn add_blocks(&self, delta: i64) {
        self.blocks.fetch_add(delta, Ordering::Relaxed);
    }

    fn names_changed(&self, ino: Ino) {
        *self.names_dirty[usize::from(ino.0 as u8)].lock().expect("no thread panics here") = true;
        *self.dirs_dirty.lock().expect("no thread panics here") = true;
    }

    /// Makes the names in one directory durable. Holds its flag meanwhile: a second caller
    /// must not return before the first has finished.
    fn sync_names(&self, dir: u8) -> Result<(), StoreError> {
        let mut dirty = self.names_dirty[usize::from(dir)].lock().expect("no thread panics here");
        if *dirty {
            self.sync_dir(&dir_name(dir))?;
            *dirty = false;
        }
        drop(dirty);
        self.sync_names_above()
    }

    fn sync_names_above(&self) -> Result<(), StoreError> {
        let mut dirty = self.dirs_dirty.lock().expect("no thread panics here");
        if *dirty {
            self.sync_dir(DATA_DIR)?;
            self.sync_dir(".")?;
            *dirty = false;
        }
        Ok(())
    }

    fn sync_dir(&self, dir: &str) -> Result<(), StoreError> {
        match self.disk.sync_dir(dir) {
            // Made when its first object is.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(|e| StoreError::io("sync a directory", &e).in_file(dir)),
        }
    }

    /// As [`ChunkStore::list_anew`] did it last.
    fn listed(&self, dir: u8) -> Result<Arc<[Ino]>, StoreError> {
        let last = self.listed.lock().expect("no thread panics here").clone();
        match last.filter(|(listed, _)| *listed == dir) {
            Some((_, objects)) => Ok(objects),
            None => self.list_anew(dir),
        }
    }

    fn list_anew(&self, dir: u8) -> Result<Arc<[Ino]>, StoreError> {
        #[cfg(test)]
        self.lists.fetch_add(1, Ordering::Relaxed);
        let objects: Arc<[Ino]> = self.list_dir(dir)?.into();
        *self.listed.lock().expect("no thread panics here") = Some((dir, objects.clone()));
        Ok(objects)
    }

    /// Objects with this last byte, ascending.
    fn list_dir(&self, dir: u8) -> Result<Vec<Ino>, StoreError> {
        let mut all = self.list_files(dir)?;
        all.extend(self.small.objects(dir));
        all.sort_unstable();
        // One that was just moving.
        all.dedup();
        Ok(all)
    }

    /// Objects with files in one directory, ascending. Foreign names are left alone.
    fn list_files(&self, dir: u8) -> Result<Vec<Ino>, StoreError> {
        let name = dir_name(dir);
        let entries = match self.disk.list(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(|e| StoreError::io("list objects", &e).in_file(name))?,
        };
        let numbers = entries.iter().filter(|entry| !entry.is_dir && entry.name.len() == 16);
        let inos = numbers.filter_map(|entry| u64::from_str_radix(&entry.name, 16).ok());
        Ok(inos.filter(|ino| *ino as u8 == dir).map(Ino).collect())
    }
}

impl ChunkStore<RealDisk> {
    /// Read-only descriptors of an object's data and checksums; `None` when it is not here, or has no files. Who
    /// reads both, the data first, and finds each block matching its entry has what [`ChunkStore::read`] would
    /// have given at that moment. The entries of an object that is dropped are cut off.
    pub fn open_read_only(&self, ino: Ino) -> Result<Option<[OwnedFd; 2]>, StoreError> {
        if self.is_small(ino) {
            return Ok(None);
        }
        let Some(object) = self.get(ino)? else { return Ok(None) };
        // Held, so that both are of the same object.
        let _state = object.lock_lent();
        if object.is_gone() {
            return Ok(None);
        }
        let names = Names::of(ino);
        let open = |name: &String| {
            let file = File::open(self.disk.root().join(name));
            file.map(OwnedFd::from).map_err(|e| StoreError::io("open the data", &e).of(ino).in_file(name))
        };
        Ok(Some([open(&names.data)?, open(&names.sums)?]))
    }
}

fn count_of<F: tidepool_env::DiskFile>(object: Option<&Object<F>>) -> Result<u64, StoreError> {
    let Some(object) = object else { return Ok(0) };
    object.lock_read()?.map_or(Ok(0), |state| object.blocks(&state))
}
