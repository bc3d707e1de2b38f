//! Open file descriptions of the pool, as this process knows them: one slot each, reused and never freed.
//!
//! ```text
//!                 open, alone            shared, or seen by the kernel
//!   free ──────────────────────▶ lazy ──────────────────────────▶ placed ──▶ free
//!     └──────────── placeholder recognised ──────────────────────▲
//! ```
//! A *lazy* description lives here alone: offset and status flags are in its slot. A *placed* one has a
//! placeholder in the kernel, which keeps both. A slot's lock guards its lazy part and the step from lazy
//! to placed; it is taken inside the guard (no signal handler may wait for it), after the registry's.

use crate::placeholder::{DescriptionId, Record};
use crate::raw;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
use tidepool_types::Ino;

/// Number of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotId(pub u32);

pub struct Slot {
    lock: AtomicU32,
    /// Counts the beginnings and ends of changes to the next three: odd while one is under way.
    changes: AtomicU32,
    placed: AtomicBool,
    ino: AtomicU64,
    flags: AtomicU32,
    description: [AtomicU64; 2],
    /// Descriptors of this process that lead here. Changed under the registry's lock.
    fds: AtomicU32,
    lazy: UnsafeCell<Lazy>,
}

// SAFETY: `lazy` is used under the lock only.
unsafe impl Sync for Slot {}

/// What the kernel does not know of a lazy description.
pub struct Lazy {
    pub offset: i64,
    /// Flags that F_SETFL changes.
    pub status: i32,
    /// Absolute, as opened. Keeps its memory from one use of the slot to the next.
    pub path: Vec<u8>,
}

const CHUNK: usize = 256;
const CHUNKS: usize = 4096;
static SLOTS: [AtomicPtr<[Slot; CHUNK]>; CHUNKS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS];

/// A copy of what is known about a pool descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub ino: Ino,
    /// As opened: access mode, `O_PATH`, `O_DIRECTORY`.
    pub flags: i32,
    pub description: DescriptionId,
    /// `None` when the kernel alone knows the description.
    pub slot: Option<SlotId>,
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

impl From<&Record> for Entry {
    fn from(record: &Record) -> Entry {
        Entry { ino: record.ino, flags: record.flags, description: record.description, slot: None }
    }
}

/// Makes room for slot `id`, the lowest that was never used.
pub fn grow(id: SlotId) {
    let index = id.0 as usize;
    assert!(index < CHUNK * CHUNKS, "more open files than slots");
    if index.is_multiple_of(CHUNK) {
        let chunk = Box::leak(Box::new([const { Slot::empty() }; CHUNK]));
        SLOTS[index / CHUNK].store(chunk, Ordering::Release);
    }
}

pub fn slot(id: SlotId) -> &'static Slot {
    let index = id.0 as usize;
    let chunk = SLOTS[index / CHUNK].load(Ordering::Acquire);
    // SAFETY: an id is handed out only after its chunk was leaked into SLOTS.
    unsafe { &(*chunk)[index % CHUNK] }
}

/// In a child with a copy of the memory: threads that held locks do not exist here.
pub fn force_open_all() {
    for chunk in &SLOTS {
        let chunk = chunk.load(Ordering::Acquire);
        if chunk.is_null() {
            return;
        }
        // SAFETY: leaked when stored.
        for slot in unsafe { &*chunk } {
            slot.lock.store(0, Ordering::Release);
            slot.changes.fetch_and(!1, Ordering::Relaxed);
        }
    }
}

impl Slot {
    const fn empty() -> Slot {
        Slot {
            lock: AtomicU32::new(0),
            changes: AtomicU32::new(0),
            placed: AtomicBool::new(true),
            ino: AtomicU64::new(0),
            flags: AtomicU32::new(0),
            description: [const { AtomicU64::new(0) }; 2],
            fds: AtomicU32::new(0),
            lazy: UnsafeCell::new(Lazy { offset: 0, status: 0, path: Vec::new() }),
        }
    }

    pub fn lock(&self) -> SlotGuard<'_> {
        while self.lock.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // SAFETY: no arguments.
            unsafe { raw::sys!(libc::SYS_sched_yield) };
        }
        SlotGuard { slot: self }
    }

    pub fn description(&self) -> DescriptionId {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.description[0].load(Ordering::Relaxed).to_le_bytes());
        id[8..].copy_from_slice(&self.description[1].load(Ordering::Relaxed).to_le_bytes());
        DescriptionId(id)
    }

    /// All of one description: never a part of the slot's next one.
    pub fn entry(&self, id: SlotId) -> Entry {
        loop {
            let before = self.changes.load(Ordering::Acquire);
            let entry = Entry {
                ino: Ino(self.ino.load(Ordering::Relaxed)),
                flags: self.flags.load(Ordering::Relaxed) as i32,
                description: self.description(),
                slot: Some(id),
            };
            fence(Ordering::Acquire);
            if before & 1 == 0 && self.changes.load(Ordering::Relaxed) == before {
                return entry;
            }
            std::hint::spin_loop();
        }
    }

    pub fn is_lazy(&self) -> bool {
        !self.placed.load(Ordering::Acquire)
    }

    /// Under the lock.
    fn fill(&self, ino: u64, flags: i32, description: &DescriptionId) {
        let word = |at: usize| {
            let mut half = [0; 8];
            half.copy_from_slice(&description.0[at..at + 8]);
            u64::from_le_bytes(half)
        };
        self.changes.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.ino.store(ino, Ordering::Relaxed);
        self.flags.store(flags as u32, Ordering::Relaxed);
        self.description[0].store(word(0), Ordering::Relaxed);
        self.description[1].store(word(8), Ordering::Relaxed);
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Takes a free slot for a description that has a placeholder.
    pub fn use_placed(&self, record: &Record) {
        let _lock = self.lock();
        self.fill(record.ino.0, record.flags, &record.description);
    }

    /// Takes a free slot for a description of this process alone.
    pub fn use_lazily(&self, record: &Record, path: &[u8], status: i32) {
        let mut lazy = self.lock();
        self.fill(record.ino.0, record.flags, &record.description);
        (lazy.offset, lazy.status) = (0, status);
        lazy.path.clear();
        lazy.path.extend_from_slice(path);
        self.placed.store(false, Ordering::Release);
    }

    /// The description has a placeholder now, in the kernel.
    pub fn set_placed(&self, lazy: &SlotGuard) {
        assert!(std::ptr::eq(lazy.slot, self));
        self.placed.store(true, Ordering::Release);
    }

    /// Gives the slot back: entries copied before lead nowhere.
    pub fn free(&self) {
        let _lock = self.lock();
        self.fill(0, 0, &DescriptionId([0; 16]));
        self.placed.store(true, Ordering::Release);
    }

    pub fn fds(&self) -> u32 {
        self.fds.load(Ordering::Relaxed)
    }

    pub fn add_fd(&self) {
        self.fds.fetch_add(1, Ordering::Relaxed);
    }

    /// True when this was the last descriptor.
    pub fn drop_fd(&self) -> bool {
        self.fds.fetch_sub(1, Ordering::Relaxed) == 1
    }
}

pub struct SlotGuard<'a> {
    slot: &'a Slot,
}

impl Deref for SlotGuard<'_> {
    type Target = Lazy;
    fn deref(&self) -> &Lazy {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.slot.lazy.get() }
    }
}

impl DerefMut for SlotGuard<'_> {
    fn deref_mut(&mut self) -> &mut Lazy {
        // SAFETY: the guard holds the lock.
        unsafe { &mut *self.slot.lazy.get() }
    }
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        self.slot.lock.store(0, Ordering::Release);
    }
}

/// Who knows a description's offset and status flags.
pub enum Keeper<T> {
    /// The slot; what was done with it.
    Slot(T),
    /// The kernel.
    Kernel,
    /// Nobody: closed since.
    Nobody,
}

/// Does `work` on the lazy part of a description, if it has one. Called inside the guard.
#[inline]
pub fn with_lazy<T>(entry: &Entry, work: impl FnOnce(&mut Lazy) -> T) -> Keeper<T> {
    let Some(slot) = entry.slot.map(slot).filter(|slot| slot.is_lazy()) else { return Keeper::Kernel };
    let mut lazy = slot.lock();
    match () {
        () if slot.description() != entry.description => Keeper::Nobody,
        () if !slot.is_lazy() => Keeper::Kernel,
        () => Keeper::Slot(work(&mut lazy)),
    }
}

/// True for a description that only this process knows.
pub fn is_lazy(entry: &Entry) -> bool {
    entry.slot.is_some_and(|id| slot(id).is_lazy() && slot(id).description() == entry.description)
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
    fn entries_of_a_reused_slot_lead_nowhere() {
        let slot = Box::leak(Box::new(Slot::empty()));
        slot.use_lazily(&record(1), b"/m/a", 0);
        let id = SlotId(7);
        let old = slot.entry(id);
        assert!(slot.is_lazy() && old.ino == Ino(1) && slot.lock().path == b"/m/a");
        slot.free();
        assert!(!slot.is_lazy() && slot.description() != old.description);
        slot.use_lazily(&record(2), b"/m/b", libc::O_APPEND);
        let lock = slot.lock();
        assert_eq!((lock.offset, lock.status), (0, libc::O_APPEND));
        slot.set_placed(&lock);
        drop(lock);
        assert!(!slot.is_lazy());
    }
}
