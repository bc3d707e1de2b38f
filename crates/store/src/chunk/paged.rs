//! What the chunk store does with objects that are in pages, and how they get files.

use super::handles::Handle;
use super::small::{Page, SMALL_MAX, Shard, Slot};
use super::{BadBlock, ChunkStore};
use crate::error::StoreError;
use tidepool_env::Disk;
use tidepool_types::Ino;

/// Where a write goes.
pub(super) enum Place<D: Disk> {
    /// It is in a page, which took so many blocks.
    Page(i64),
    Files(Handle<D>),
}

impl<D: Disk> ChunkStore<D> {
    /// Stores small data in a page, or tells the files that they belong in.
    pub(super) fn place(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<Place<D>, StoreError> {
        let mut shard = self.small.lock(ino);
        let fits = offset + data.len() as u64 <= SMALL_MAX as u64;
        match shard.get(ino) {
            Some(slot) if fits => return self.change_page(ino, slot, offset as usize, data),
            Some(slot) => self.move_to_files(&mut shard, ino, slot)?,
            None if fits && self.get(ino)?.is_none() => {
                let content = [&[0; SMALL_MAX][..offset as usize], data].concat();
                let made = self.small.create(&mut shard, ino, &content);
                // Where the failure could not be undone, it is there all the same.
                let blocks = i64::from(shard.get(ino).is_some());
                self.add_blocks(blocks);
                if made? {
                    return Ok(Place::Page(blocks));
                }
            }
            None => {}
        }
        self.get_or_create(ino).map(Place::Files)
    }

    fn change_page(&self, ino: Ino, slot: Slot, offset: usize, data: &[u8]) -> Result<Place<D>, StoreError> {
        // What is overwritten as a whole need not be whole: that heals it.
        let old =
            if offset == 0 && data.len() == SMALL_MAX { None } else { Some(self.small.read(slot, ino)?) };
        let mut content = old.as_ref().map_or_else(Vec::new, |page| page.content().to_vec());
        content.resize(content.len().max(offset + data.len()), 0);
        content[offset..offset + data.len()].copy_from_slice(data);
        self.small.replace(slot, ino, old.as_ref(), &content).map(|()| Place::Page(0))
    }

    /// Gives an object files and takes its page away. Files first: until the page is gone it is the object.
    fn move_to_files(&self, shard: &mut Shard, ino: Ino, slot: Slot) -> Result<(), StoreError> {
        let page = self.small.read(slot, ino)?;
        if !matches!(self.get(ino), Ok(None)) {
            // An earlier attempt has left some.
            self.remove_files(ino)?;
        }
        let moved = self.fill_files(ino, &page, slot.is_synced()).and_then(|()| {
            self.small.leaves(ino);
            self.small.remove(shard, ino, slot, Some(&page))
        });
        moved.inspect_err(|_| {
            // Files that stay are removed before the next attempt or at the next start. Where the page is lost, they are all there is.
            if self.small.read(slot, ino).is_ok() {
                let _ = self.remove_files(ino);
            }
        })
    }

    fn fill_files(&self, ino: Ino, page: &Page, durably: bool) -> Result<(), StoreError> {
        let object = self.get_or_create(ino)?;
        let mut state = object.lock_lent();
        object.write(&mut state, 0, page.content()).map_err(|failed| failed.error)?;
        self.handles.mark_dirty(ino);
        if durably {
            object.sync()?;
            self.sync_names(ino.0 as u8)?;
        }
        Ok(())
    }

    /// Removes the files of an object that is in a page.
    pub(super) fn remove_files(&self, ino: Ino) -> Result<(), StoreError> {
        if let Some(object) = self.handles.get(ino, || self.open_or_clear(ino))? {
            let removed = object.remove(&self.disk, &mut object.lock_lent());
            self.names_changed(ino);
            self.handles.forget(ino);
            removed?;
        }
        Ok(())
    }

    /// Sees to it that an object has files of its own, for others to write to.
    pub(super) fn give_files(&self, ino: Ino) -> Result<(), StoreError> {
        let mut shard = self.small.lock(ino);
        match shard.get(ino) {
            Some(slot) => self.move_to_files(&mut shard, ino, slot),
            None => Ok(()),
        }
    }

    /// The object, if it is in a page.
    pub(super) fn page(&self, ino: Ino) -> Result<Option<Page>, StoreError> {
        let shard = self.small.look(ino);
        shard.get(ino).map(|slot| self.small.read(slot, ino)).transpose()
    }

    pub(super) fn is_small(&self, ino: Ino) -> bool {
        self.small.look(ino).get(ino).is_some()
    }

    /// None when the object is in no page.
    pub(super) fn trim_page(&self, ino: Ino, size: u64) -> Result<Option<i64>, StoreError> {
        let mut shard = self.small.lock(ino);
        let Some(slot) = shard.get(ino) else { return Ok(None) };
        if size == 0 {
            return self.clear_page(&mut shard, ino, slot).map(Some);
        }
        let page = self.small.read(slot, ino)?;
        if size < page.content().len() as u64 {
            self.small.replace(slot, ino, Some(&page), &page.content()[..size as usize])?;
        }
        Ok(Some(0))
    }

    pub(super) fn punch_page(&self, ino: Ino, offset: u64, len: u64) -> Result<Option<i64>, StoreError> {
        let mut shard = self.small.lock(ino);
        let Some(slot) = shard.get(ino) else { return Ok(None) };
        let page = self.small.read(slot, ino)?;
        let punched = part_of(page.content(), offset, len.min(SMALL_MAX as u64) as usize).len();
        if punched == page.content().len() {
            return self.clear_page(&mut shard, ino, slot).map(Some);
        }
        if punched > 0 {
            let mut content = page.content().to_vec();
            content[offset as usize..offset as usize + punched].fill(0);
            self.small.replace(slot, ino, Some(&page), &content)?;
        }
        Ok(Some(0))
    }

    /// An object without any data has no page.
    fn clear_page(&self, shard: &mut Shard, ino: Ino, slot: Slot) -> Result<i64, StoreError> {
        // A damaged one may go.
        let page = self.small.read(slot, ino).ok();
        self.small.leaves(ino);
        self.small.remove(shard, ino, slot, page.as_ref())?;
        self.add_blocks(-1);
        Ok(-1)
    }

    pub(super) fn scrub_page(&self, ino: Ino) -> Result<Option<Vec<BadBlock>>, StoreError> {
        let shard = self.small.look(ino);
        let Some(slot) = shard.get(ino) else { return Ok(None) };
        let bad = self.small.scrub(slot, ino)?;
        Ok(Some(bad.map(|(expected, found)| BadBlock { offset: 0, expected, found }).into_iter().collect()))
    }
}

/// What there is of a range.
pub(super) fn part_of(content: &[u8], offset: u64, len: usize) -> &[u8] {
    let from = offset.min(content.len() as u64) as usize;
    &content[from..content.len().min(from.saturating_add(len))]
}
