//! What this process knows of its descriptors: one word each, plus shared slots for pool objects.
//!
//! ```text
//!   unknown --looked at--> foreign            unknown --looked at / opened--> ours(slot)
//!      ^---- close, dup2, ... ----'              ^---- close, dup2, ... ---------'
//! ```
//! `unknown` is always true to say: the kernel tells the rest. A child that shares this memory but not
//! the descriptors (posix_spawn's inner child) therefore never changes `ours` entries and asks the kernel.

use crate::lock::ForkLock;
use crate::placeholder::{self, DescriptionId, Record};
use crate::{config, inside, pool};
use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use tidepool_types::Ino;

/// Descriptors beyond are never remembered; each call asks the kernel.
const FDS_MAX: usize = 1 << 20;

const UNKNOWN: u32 = 0;
const FOREIGN: u32 = 1;
/// One of the client's own descriptors: the program may not touch it.
const INTERNAL: u32 = 2;
const SLOT_BASE: u32 = 3;

static TABLE: [AtomicU32; FDS_MAX] = [const { AtomicU32::new(UNKNOWN) }; FDS_MAX];
/// Highest internal descriptor so far; bounds the scan after a fork.
static INTERNAL_MAX: AtomicI32 = AtomicI32::new(-1);

/// One open file description of the pool, as this process knows it. Slots are reused, never freed.
struct Slot {
    ino: AtomicU64,
    flags: AtomicU32,
    description: [AtomicU64; 2],
    /// Descriptors of this process that lead here.
    fds: AtomicU32,
}

const CHUNK: usize = 256;
const CHUNKS: usize = 4096;
static SLOTS: [std::sync::atomic::AtomicPtr<[Slot; CHUNK]>; CHUNKS] =
    [const { std::sync::atomic::AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS];

#[derive(Default)]
struct Registry {
    by_description: HashMap<[u8; 16], u32>,
    free: Vec<u32>,
    made: u32,
}

static REGISTRY: ForkLock<Option<Registry>> = ForkLock::new(None);

/// A copy of what is known about a pool descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub ino: Ino,
    /// As opened: access mode, `O_PATH`, `O_DIRECTORY`.
    pub flags: i32,
    pub description: DescriptionId,
}

impl Entry {
    pub fn readable(&self) -> bool {
        self.flags & libc::O_PATH == 0 && self.flags & libc::O_ACCMODE != libc::O_WRONLY
    }
    pub fn writable(&self) -> bool {
        self.flags & libc::O_PATH == 0 && self.flags & libc::O_ACCMODE != libc::O_RDONLY
    }
    /// The pool counts a handle for this description.
    pub fn held(&self) -> bool {
        self.flags & (libc::O_PATH | libc::O_DIRECTORY) == 0
    }
    pub fn directory(&self) -> bool {
        self.flags & libc::O_DIRECTORY != 0
    }
}

fn cell(fd: i32) -> Option<&'static AtomicU32> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// True when `fd` is known to be no business of ours. The fast way out of every hot call.
#[inline(always)]
pub fn surely_foreign(fd: i32) -> bool {
    cell(fd).is_some_and(|cell| cell.load(Ordering::Relaxed) == FOREIGN)
}

/// What `fd` is, if it is an open pool object.
#[inline]
pub fn ours(fd: i32) -> Option<Entry> {
    let cell = cell(fd);
    match cell.map_or(UNKNOWN, |cell| cell.load(Ordering::Acquire)) {
        FOREIGN | INTERNAL => None,
        state if state >= SLOT_BASE && !pool::in_shared_child() => Some(slot(state).entry()),
        _ => look(fd),
    }
}

/// True for the client's descriptors, seen by the program.
pub fn hidden(fd: i32) -> bool {
    cell(fd).is_some_and(|cell| cell.load(Ordering::Relaxed) == INTERNAL) && !inside::inside()
}

#[cold]
fn look(fd: i32) -> Option<Entry> {
    if fd < 0 || config::mount().is_none() || inside::inside() {
        return None;
    }
    let found = placeholder::recognise(fd).filter(|record| pool::is_our_instance(record.instance));
    if pool::in_shared_child() {
        return found.map(|record| Entry::from(&record));
    }
    let cell = cell(fd);
    match (found, cell) {
        (None, Some(cell)) => {
            // Loses against an open() that takes this number meanwhile, as it must.
            let _ = cell.compare_exchange(UNKNOWN, FOREIGN, Ordering::AcqRel, Ordering::Relaxed);
            None
        }
        (Some(record), Some(_)) => {
            if adopt(fd, &record) && Entry::from(&record).held() {
                pool::register(record.ino);
            }
            Some(Entry::from(&record))
        }
        (found, None) => found.map(|record| Entry::from(&record)),
    }
}

impl From<&Record> for Entry {
    fn from(record: &Record) -> Entry {
        Entry { ino: record.ino, flags: record.flags, description: record.description }
    }
}

fn slot(state: u32) -> &'static Slot {
    let index = (state - SLOT_BASE) as usize;
    let chunk = SLOTS[index / CHUNK].load(Ordering::Acquire);
    // SAFETY: an index is handed out only after its chunk was leaked into SLOTS.
    unsafe { &(*chunk)[index % CHUNK] }
}

impl Slot {
    const fn empty() -> Slot {
        Slot {
            ino: AtomicU64::new(0),
            flags: AtomicU32::new(0),
            description: [const { AtomicU64::new(0) }; 2],
            fds: AtomicU32::new(0),
        }
    }

    fn entry(&self) -> Entry {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.description[0].load(Ordering::Relaxed).to_le_bytes());
        id[8..].copy_from_slice(&self.description[1].load(Ordering::Relaxed).to_le_bytes());
        Entry {
            ino: Ino(self.ino.load(Ordering::Relaxed)),
            flags: self.flags.load(Ordering::Relaxed) as i32,
            description: DescriptionId(id),
        }
    }

    fn fill(&self, record: &Record) {
        let word = |at: usize| {
            let mut half = [0; 8];
            half.copy_from_slice(&record.description.0[at..at + 8]);
            u64::from_le_bytes(half)
        };
        self.ino.store(record.ino.0, Ordering::Relaxed);
        self.flags.store(record.flags as u32, Ordering::Relaxed);
        self.description[0].store(word(0), Ordering::Relaxed);
        self.description[1].store(word(8), Ordering::Relaxed);
    }
}

/// Remembers that `fd` is this placeholder. True when the description was new to this process.
/// Must be called inside the guard or in code that may allocate; never in a shared child.
pub fn adopt(fd: i32, record: &Record) -> bool {
    let Some(cell) = cell(fd) else { return false };
    let mut registry = REGISTRY.lock();
    let registry = registry.get_or_insert_with(Registry::default);
    let known = registry.by_description.get(&record.description.0).copied();
    let index = known.unwrap_or_else(|| registry.new_slot(record));
    slot(index + SLOT_BASE).fds.fetch_add(1, Ordering::Relaxed);
    remember(cell, fd, index + SLOT_BASE);
    known.is_none()
}

impl Registry {
    fn new_slot(&mut self, record: &Record) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            let index = self.made;
            assert!((index as usize) < CHUNK * CHUNKS, "more open files than slots");
            if (index as usize).is_multiple_of(CHUNK) {
                let chunk = Box::leak(Box::new([const { Slot::empty() }; CHUNK]));
                SLOTS[index as usize / CHUNK].store(chunk, Ordering::Release);
            }
            self.made += 1;
            index
        });
        slot(index + SLOT_BASE).fill(record);
        self.by_description.insert(record.description.0, index);
        index
    }
}

/// Forgets `fd` before the kernel closes or replaces it. The entry, when this was the last descriptor of
/// its description in this process: the caller then releases the object.
pub fn forget(fd: i32) -> Option<Entry> {
    let cell = cell(fd)?;
    let state = cell.load(Ordering::Acquire);
    if state == FOREIGN {
        cell.store(UNKNOWN, Ordering::Release);
        return None;
    }
    if state < SLOT_BASE || pool::in_shared_child() {
        return None;
    }
    let _inside = inside::Inside::enter();
    let mut registry = REGISTRY.lock();
    if cell.compare_exchange(state, UNKNOWN, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return None;
    }
    let slot = slot(state);
    if slot.fds.fetch_sub(1, Ordering::Relaxed) > 1 {
        return None;
    }
    let entry = slot.entry();
    if let Some(registry) = registry.as_mut() {
        registry.by_description.remove(&entry.description.0);
        registry.free.push(state - SLOT_BASE);
    }
    Some(entry)
}

/// A new descriptor `new` of what `old` is, after the kernel made it.
pub fn duplicate(old: i32, new: i32) {
    let (Some(from), Some(to)) = (cell(old), cell(new)) else { return };
    if pool::in_shared_child() {
        return;
    }
    let state = from.load(Ordering::Acquire);
    if state >= SLOT_BASE {
        slot(state).fds.fetch_add(1, Ordering::Relaxed);
    }
    if state != INTERNAL {
        remember(to, new, state);
    }
}

/// `fd` was just made by the kernel for something that is not ours.
pub fn foreign(fd: i32) {
    if let Some(cell) = cell(fd)
        && cell.load(Ordering::Relaxed) == UNKNOWN
        && !pool::in_shared_child()
    {
        remember(cell, fd, FOREIGN);
    }
}

/// `fd` came from elsewhere (a message, a call we do not see): look again.
pub fn unknown(fd: i32) {
    if let Some(cell) = cell(fd)
        && cell.load(Ordering::Relaxed) == FOREIGN
    {
        cell.store(UNKNOWN, Ordering::Release);
    }
}

/// Hides one of the client's descriptors.
pub fn hide(fd: i32) {
    if let Some(cell) = cell(fd) {
        cell.store(INTERNAL, Ordering::Release);
        INTERNAL_MAX.fetch_max(fd, Ordering::Relaxed);
    }
}

/// The client closed one of its own descriptors.
pub fn unhide(fd: i32) {
    if let Some(cell) = cell(fd)
        && !pool::in_shared_child()
    {
        let _ = cell.compare_exchange(INTERNAL, UNKNOWN, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Internal descriptors in `first..=last`, lowest first.
pub fn hidden_between(first: u32, last: u32) -> impl Iterator<Item = u32> {
    let end = (INTERNAL_MAX.load(Ordering::Relaxed) + 1) as u32;
    (first..last.saturating_add(1).min(end))
        .filter(|&fd| TABLE.get(fd as usize).is_some_and(|cell| cell.load(Ordering::Relaxed) == INTERNAL))
}

/// Remembered descriptors in `first..=last`.
pub fn known_between(first: u32, last: u32) -> impl Iterator<Item = i32> {
    let end = last.saturating_add(1).min(HIGH.load(Ordering::Relaxed) + 1);
    (first..end).map(|fd| fd as i32)
}

/// Highest descriptor this process has remembered anything about.
static HIGH: AtomicU32 = AtomicU32::new(0);

fn remember(cell: &AtomicU32, fd: i32, state: u32) {
    if HIGH.load(Ordering::Relaxed) < fd as u32 {
        HIGH.fetch_max(fd as u32, Ordering::Relaxed);
    }
    cell.store(state, Ordering::Release);
}

/// The objects held here, once per description.
pub fn open_objects() -> Vec<Ino> {
    let registry = REGISTRY.lock();
    let Some(registry) = registry.as_ref() else { return Vec::new() };
    let entries = registry.by_description.values().map(|&index| slot(index + SLOT_BASE).entry());
    entries.filter(Entry::held).map(|entry| entry.ino).collect()
}

/// True when this process has any pool object open.
pub fn any_open() -> bool {
    REGISTRY.lock().as_ref().is_some_and(|registry| !registry.by_description.is_empty())
}

/// Lock order at fork: see `fork.rs`.
pub fn lock_for_fork() {
    REGISTRY.acquire();
}

pub fn unlock_after_fork() {
    REGISTRY.force_open();
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_types::InstanceId;

    fn record(n: u8) -> Record {
        Record {
            instance: InstanceId([0; 16]),
            ino: Ino(u64::from(n)),
            flags: libc::O_RDWR,
            description: DescriptionId([n; 16]),
        }
    }

    #[test]
    fn descriptors_of_one_description_share_a_slot() {
        let (a, b) = (700_001, 700_002);
        assert!(adopt(a, &record(1)));
        duplicate(a, b);
        assert_eq!(ours(b).unwrap().ino, Ino(1));
        assert_eq!(forget(a), None);
        assert_eq!(forget(b).unwrap().ino, Ino(1));
        assert!(adopt(a, &record(2)));
        assert_eq!(ours(a).unwrap().ino, Ino(2));
        assert!(forget(a).is_some());
    }

    #[test]
    fn internal_descriptors_are_hidden() {
        hide(700_010);
        assert!(hidden(700_010));
        assert_eq!(hidden_between(700_000, u32::MAX).collect::<Vec<_>>(), [700_010]);
        assert_eq!(forget(700_010), None);
        unhide(700_010);
        assert!(!hidden(700_010));
    }
}
