//! Small objects: a page each in one file, instead of two files each.
//!
//! Pages, and why a kill leaves each object either here or in its files: `docs/formats/03-chunk-store.md`, "Small objects".

use super::sums::BLOCK;
use crate::error::{StoreError, StoreErrorKind};
use rustc_hash::{FxHashMap, FxHashSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tidepool_env::{Disk, DiskFile, OpenMode};
use tidepool_types::Ino;

/// Most bytes of an object that is kept in a page: what is left beside head and tail.
pub(super) const SMALL_MAX: usize = BLOCK - HEAD_LEN - TAIL_LEN;
/// Pages of a daemon; objects beyond get files. All are read at the start: 4 GiB.
pub(super) const SLOTS_MAX: u32 = 1 << 20;

pub(super) const FILE: &str = "data/small";
const MAGIC: &[u8; 8] = b"TPSMALL1";
/// Object, length, checksum.
const HEAD_LEN: usize = 16;
const CRC_AT: usize = 12;
/// The object once more: damage to one of the two leaves the other.
const TAIL_LEN: usize = 8;
const TAIL_AT: usize = BLOCK - TAIL_LEN;
/// The first page has the file's header.
const SLOT_FIRST: u32 = 1;
const SHARDS: usize = 256;
/// Pages read at once at the start.
const SCAN_SLOTS: usize = 256;
/// Objects remembered that gave their page up since the last sync; with more, all count as such.
const LEFT_MAX: usize = 4096;

/// The page of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slot {
    number: u32,
    /// What was synced once must not be lost when the object moves to files.
    synced: bool,
    /// It did not match its checksum at the start: it yields to files.
    damaged: bool,
}

impl Slot {
    pub fn is_synced(self) -> bool {
        self.synced
    }
}

/// The pages of some objects.
#[derive(Default)]
pub(super) struct Shard(FxHashMap<u64, Slot>);

impl Shard {
    pub fn get(&self, ino: Ino) -> Option<Slot> {
        self.0.get(&ino.0).copied()
    }
}

/// A page with an object in it, as it is on disk.
#[derive(Clone)]
pub(super) struct Page(Box<[u8; BLOCK]>);

impl Page {
    fn new(slot: u32, ino: Ino, content: &[u8]) -> Page {
        let mut page = Box::new([0; BLOCK]);
        page[..8].copy_from_slice(&ino.0.to_le_bytes());
        page[8..CRC_AT].copy_from_slice(&(content.len() as u32).to_le_bytes());
        page[HEAD_LEN..HEAD_LEN + content.len()].copy_from_slice(content);
        page[TAIL_AT..].copy_from_slice(&ino.0.to_le_bytes());
        let crc = crc_of(slot, &page);
        page[CRC_AT..HEAD_LEN].copy_from_slice(&crc.to_le_bytes());
        Page(page)
    }

    pub fn content(&self) -> &[u8] {
        &self.0[HEAD_LEN..HEAD_LEN + u32_at(&self.0[..], 8) as usize]
    }
}

/// The place is part of it, so that a page that a faulty disk put elsewhere does not count.
fn crc_of(slot: u32, page: &[u8; BLOCK]) -> u32 {
    let head = crc32c::crc32c_append(crc32c::crc32c(&slot.to_le_bytes()), &page[..CRC_AT]);
    crc32c::crc32c_append(head, &page[HEAD_LEN..])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn ino_at(page: &[u8; BLOCK], at: usize) -> Ino {
    Ino(u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes")))
}

fn is_valid(slot: u32, page: &[u8; BLOCK]) -> bool {
    let len = u32_at(page, 8) as usize;
    let (head, tail) = (ino_at(page, 0), ino_at(page, TAIL_AT));
    head == tail
        && head.0 != 0
        && (1..=SMALL_MAX).contains(&len)
        && u32_at(page, CRC_AT) == crc_of(slot, page)
}

fn place_of(slot: u32) -> u64 {
    u64::from(slot) * BLOCK as u64
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Free {
    /// Pages below `end` with nothing in them.
    numbers: Vec<u32>,
    end: u32,
}

/// Objects that have given up their page since the last sync, which has to last before they count as synced.
#[derive(Default)]
struct Left {
    inos: FxHashSet<u64>,
    all: bool,
}

pub(super) struct Small<F> {
    file: F,
    shards: Vec<RwLock<Shard>>,
    free: Mutex<Free>,
    slots_max: u32,
    changes: AtomicU64,
    /// Changes that are synced. Held while the file is.
    synced: Mutex<u64>,
    left: Mutex<Left>,
    /// Pages of which nobody can tell whose they are.
    lost: bool,
}

impl<F: DiskFile> Small<F> {
    pub fn open<D: Disk<File = F>>(disk: &D, slots_max: u32) -> Result<Small<F>, StoreError> {
        let failed = |e: io::Error| StoreError::io("open the small objects", &e).in_file(FILE);
        let file = disk.open(FILE, OpenMode::Create).map_err(failed)?;
        let len = file.len().map_err(failed)?;
        let mut head = [0; 16];
        let count = file.read_at(&mut head, 0).map_err(failed)?;
        if len <= BLOCK as u64 && head[..count].iter().all(|byte| *byte == 0) {
            file.write_at(&header(), 0).map_err(failed)?;
        } else if head != header() {
            let (kind, detail) = match &head[..8] == MAGIC {
                true => (StoreErrorKind::Version, "the file has a format that this program does not know"),
                false => (StoreErrorKind::Corrupt, "the file does not start as one of small objects does"),
            };
            return Err(StoreError::new(kind, "open the small objects", detail).in_file(FILE).at(0));
        }
        let mut small = Small {
            file,
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            free: Mutex::default(),
            slots_max,
            // Nobody knows what an earlier process has synced.
            changes: AtomicU64::new(1),
            synced: Mutex::new(0),
            left: Mutex::new(Left { all: true, ..Left::default() }),
            lost: false,
        };
        small.scan(len.div_ceil(BLOCK as u64)).map_err(failed)?;
        Ok(small)
    }

    /// Finds out what each page holds.
    fn scan(&mut self, end: u64) -> io::Result<()> {
        let end = u32::try_from(end).unwrap_or(u32::MAX).max(SLOT_FIRST);
        let (mut numbers, mut at) = (Vec::new(), SLOT_FIRST);
        let mut doubtful = Vec::new();
        while at < end {
            let next = self.file.next_data(place_of(at))?.map_or(end, |next| (next / BLOCK as u64) as u32);
            numbers.extend(at..next.min(end));
            at = next.max(at);
            let mut bytes = Vec::new();
            let count = SCAN_SLOTS.min(end.saturating_sub(at) as usize);
            self.file.read_append(&mut bytes, count * BLOCK, place_of(at))?;
            bytes.resize(count * BLOCK, 0);
            for page in bytes.chunks_exact(BLOCK) {
                let page: &[u8; BLOCK] = page.try_into().expect("whole pages");
                if page.iter().all(|byte| *byte == 0) {
                    numbers.push(at);
                } else if !is_valid(at, page) {
                    doubtful.push((at, [ino_at(page, 0), ino_at(page, TAIL_AT)]));
                } else if !self.adopt(ino_at(page, 0), at, false) {
                    // The power failed before it was durable that this one had gone.
                    self.file.punch(place_of(at), BLOCK as u64)?;
                    numbers.push(at);
                }
                at += 1;
            }
        }
        for (at, inos) in doubtful {
            let known = inos.into_iter().filter(|ino| ino.0 != 0 && self.adopt(*ino, at, true)).count();
            self.lost |= known == 0 && inos.into_iter().all(|ino| ino.0 == 0);
        }
        *lock(&self.free) = Free { numbers, end };
        Ok(())
    }

    /// False when the object has a page already.
    fn adopt(&self, ino: Ino, number: u32, damaged: bool) -> bool {
        let mut shard = self.lock(ino);
        let fresh = !shard.0.contains_key(&ino.0);
        if fresh {
            shard.0.insert(ino.0, Slot { number, synced: true, damaged });
        }
        fresh
    }

    fn shard(&self, ino: Ino) -> &RwLock<Shard> {
        &self.shards[usize::from(ino.0 as u8)]
    }

    pub fn look(&self, ino: Ino) -> RwLockReadGuard<'_, Shard> {
        self.shard(ino).read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn lock(&self, ino: Ino) -> RwLockWriteGuard<'_, Shard> {
        self.shard(ino).write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Objects with this last byte.
    pub fn objects(&self, last: u8) -> Vec<Ino> {
        self.look(Ino(last.into())).0.keys().copied().map(Ino).collect()
    }

    pub fn count(&self) -> u64 {
        (0..=u8::MAX).map(|last| self.look(Ino(last.into())).0.len() as u64).sum()
    }

    /// An object at the start that has files as well. True when the page is it, and the files are to go.
    pub fn wins(&self, ino: Ino) -> bool {
        let mut shard = self.lock(ino);
        if shard.get(ino).is_some_and(|slot| slot.damaged) {
            shard.0.remove(&ino.0);
        }
        shard.get(ino).is_some()
    }

    /// To be asked about objects that are nowhere: one of them may have been in a page that is lost.
    pub fn check_lost(&self, ino: Ino) -> Result<(), StoreError> {
        match self.lost {
            true => {
                Err(corrupt(ino, 0, "a page of small objects is so damaged that it may have been this one's"))
            }
            false => Ok(()),
        }
    }

    fn load(&self, slot: Slot, ino: Ino) -> Result<Box<[u8; BLOCK]>, StoreError> {
        let mut page = Box::new([0; BLOCK]);
        let read = self.file.read_at(&mut page[..], place_of(slot.number));
        read.map_err(|e| failed("read the data", &e, ino, slot.number))?;
        Ok(page)
    }

    pub fn read(&self, slot: Slot, ino: Ino) -> Result<Page, StoreError> {
        let page = self.load(slot, ino)?;
        match is_valid(slot.number, &page) && ino_at(&page, 0) == ino {
            true => Ok(Page(page)),
            false => Err(corrupt(ino, slot.number, "the page does not match its checksum")),
        }
    }

    /// What its checksum should be and is, when they differ.
    pub fn scrub(&self, slot: Slot, ino: Ino) -> Result<Option<(u32, u32)>, StoreError> {
        let page = self.load(slot, ino)?;
        let whole = is_valid(slot.number, &page) && ino_at(&page, 0) == ino;
        Ok((!whole).then(|| (u32_at(&page[..], CRC_AT), crc_of(slot.number, &page))))
    }

    /// Stores an object that is nowhere; false when all pages are taken.
    pub fn create(&self, shard: &mut Shard, ino: Ino, content: &[u8]) -> Result<bool, StoreError> {
        let Some(number) = self.take_number() else { return Ok(false) };
        self.changed();
        if let Err(error) = self.file.write_at(&Page::new(number, ino, content).0[..], place_of(number)) {
            match self.is_empty(number) || self.clear(number).is_ok() {
                true => lock(&self.free).numbers.push(number),
                // Something of it may be there for ever, so it has to be the object.
                false => drop(shard.0.insert(ino.0, Slot { number, synced: false, damaged: false })),
            }
            return Err(failed("write the data", &error, ino, number));
        }
        shard.0.insert(ino.0, Slot { number, synced: false, damaged: false });
        Ok(true)
    }

    /// Changes an object; `old` is put back where the change leaves neither the one nor the other. None: nothing of it is needed.
    pub fn replace(
        &self,
        slot: Slot,
        ino: Ino,
        old: Option<&Page>,
        content: &[u8],
    ) -> Result<(), StoreError> {
        self.changed();
        let new = Page::new(slot.number, ino, content);
        self.file.write_at(&new.0[..], place_of(slot.number)).map_err(|error| {
            self.restore(slot, ino, old.unwrap_or(&new));
            failed("write the data", &error, ino, slot.number)
        })
    }

    fn restore(&self, slot: Slot, ino: Ino, page: &Page) {
        if self.read(slot, ino).is_err() {
            // When this fails as well, it reads as EIO.
            let _ = self.file.write_at(&page.0[..], place_of(slot.number));
        }
    }

    /// Takes an object's page away. `old` is put back when that fails.
    pub fn remove(
        &self,
        shard: &mut Shard,
        ino: Ino,
        slot: Slot,
        old: Option<&Page>,
    ) -> Result<(), StoreError> {
        self.changed();
        if let Err(error) = self.clear(slot.number) {
            if let Some(old) = old {
                self.restore(slot, ino, old);
            }
            return Err(failed("remove the data", &error, ino, slot.number));
        }
        shard.0.remove(&ino.0);
        lock(&self.free).numbers.push(slot.number);
        Ok(())
    }

    fn clear(&self, number: u32) -> io::Result<()> {
        self.file.punch(place_of(number), BLOCK as u64).or_else(|error| {
            // One that fails may have zeroed some of it, or all.
            let zeroed = self.file.write_at(&[0; BLOCK], place_of(number));
            if zeroed.is_ok() || self.is_empty(number) { Ok(()) } else { Err(error) }
        })
    }

    fn is_empty(&self, number: u32) -> bool {
        let mut page = [0; BLOCK];
        self.file.read_at(&mut page, place_of(number)).is_ok() && page.iter().all(|byte| *byte == 0)
    }

    /// The object goes on without its page: it does not count as synced before that is.
    pub fn leaves(&self, ino: Ino) {
        let mut left = lock(&self.left);
        left.inos.insert(ino.0);
        if left.inos.len() > LEFT_MAX {
            *left = Left { all: true, ..Left::default() };
        }
    }

    /// Before a sync that an object is to have been part of.
    pub fn mark_synced(&self, shard: &mut Shard, ino: Ino) {
        if let Some(slot) = shard.0.get_mut(&ino.0) {
            slot.synced = true;
        }
    }

    pub fn mark_all_synced(&self) {
        for last in 0..=u8::MAX {
            self.lock(Ino(last.into())).0.values_mut().for_each(|slot| slot.synced = true);
        }
    }

    /// Returns when all pages survive a power failure.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.sync_held(&mut lock(&self.synced))
    }

    /// The same, if the object had one since the last time.
    pub fn sync_if_left(&self, ino: Ino) -> Result<(), StoreError> {
        let mut synced = lock(&self.synced);
        let left = lock(&self.left);
        let concerned = left.all || left.inos.contains(&ino.0);
        drop(left);
        if concerned { self.sync_held(&mut synced) } else { Ok(()) }
    }

    fn sync_held(&self, synced: &mut u64) -> Result<(), StoreError> {
        let changes = self.changes.load(Ordering::Acquire);
        if *synced == changes {
            return Ok(());
        }
        let left = std::mem::take(&mut *lock(&self.left));
        if let Err(error) = self.file.sync() {
            lock(&self.left).all = true;
            return Err(StoreError::io("sync the small objects", &error).in_file(FILE));
        }
        drop(left);
        *synced = changes;
        Ok(())
    }

    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    fn take_number(&self) -> Option<u32> {
        let mut free = lock(&self.free);
        if let Some(number) = free.numbers.pop() {
            return Some(number);
        }
        let number = free.end.max(SLOT_FIRST);
        (number - SLOT_FIRST < self.slots_max).then(|| {
            free.end = number + 1;
            number
        })
    }
}

pub(super) fn header() -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&1u32.to_le_bytes());
    bytes[12..].copy_from_slice(&(BLOCK as u32).to_le_bytes());
    bytes
}

fn failed(operation: &'static str, error: &io::Error, ino: Ino, slot: u32) -> StoreError {
    StoreError::io(operation, error).of(ino).in_file(FILE).at(place_of(slot))
}

fn corrupt(ino: Ino, slot: u32, detail: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, "read the data", detail).of(ino).in_file(FILE).at(place_of(slot))
}
