//! What this process knows of its descriptors: one word each, which leads to a slot (`slots.rs`) for pool
//! objects; and the registry of slots, under one lock.
//!
//! ```text
//!   unknown --looked at--> foreign            unknown --looked at / opened--> ours(slot)
//!      ^---- close, dup2, ... ----'              ^---- close, dup2, ... ---------'
//! ```
//! `unknown` is always true to say: the kernel tells the rest. A child that shares this memory but not
//! the descriptors (posix_spawn's inner child) therefore never changes `ours` entries and asks the kernel.

use crate::inside::{Inside, Work};
use crate::lock::ForkLock;
use crate::placeholder::{self, Record};
use crate::raw::{self, sys};
use crate::slots::{self, SlotId, slot};
use crate::{config, inside, pool, standin};
use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use tidepool_types::{Ino, InstanceId};

pub use crate::slots::Entry;

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

#[derive(Default)]
struct Registry {
    /// Placed descriptions: a placeholder may turn up under further numbers.
    by_description: HashMap<[u8; 16], SlotId>,
    free: Vec<SlotId>,
    made: u32,
    /// Descriptions that are lazy.
    lazy: u32,
    /// The pool, for the records of placeholders. Known when anything is lazy.
    instance: Option<InstanceId>,
}

static REGISTRY: ForkLock<Option<Registry>> = ForkLock::new(None);

/// A table word that leads to a slot.
fn word(id: SlotId) -> u32 {
    id.0 + SLOT_BASE
}

fn slot_of(state: u32) -> Option<SlotId> {
    state.checked_sub(SLOT_BASE).map(SlotId)
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
    match cell(fd).map_or(UNKNOWN, |cell| cell.load(Ordering::Acquire)) {
        FOREIGN | INTERNAL => None,
        state if state >= SLOT_BASE && !pool::in_shared_child() => remembered(fd).or_else(|| look(fd)),
        _ => look(fd),
    }
}

/// True when the table leads from `fd` to a slot: one of ours, unless this is a shared child.
#[inline]
pub fn has_slot(fd: i32) -> bool {
    cell(fd).is_some_and(|cell| cell.load(Ordering::Acquire) >= SLOT_BASE)
}

/// What the table says of `fd`, without a question to the kernel.
#[inline]
pub fn remembered(fd: i32) -> Option<Entry> {
    let cell = cell(fd)?;
    loop {
        let state = cell.load(Ordering::Acquire);
        let id = slot_of(state)?;
        let entry = slot(id).entry(id);
        // A thread that closes the descriptor meanwhile may have given the slot to another file.
        if cell.load(Ordering::Relaxed) == state {
            return Some(entry);
        }
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
        // The table is its parent's and not quite this child's; that a number still is what it says can be
        // seen for the stand-in.
        return match found {
            Some(record) => Some(Entry::from(&record)),
            None => remembered(fd).filter(|entry| slots::is_lazy(entry) && standin::is_behind(fd)),
        };
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

/// Remembers that `fd` is this placeholder. True when the description was new to this process.
/// Must be called inside the guard or in code that may allocate; never in a shared child.
pub fn adopt(fd: i32, record: &Record) -> bool {
    let Some(cell) = cell(fd) else { return false };
    // The caller may be inside already.
    let _inside = Inside::enter(Work::Looks);
    let mut registry = REGISTRY.lock();
    let registry = registry.get_or_insert_with(Registry::default);
    let known = registry.by_description.get(&record.description.0).copied();
    let id = known.unwrap_or_else(|| {
        let id = registry.take_free();
        slot(id).use_placed(record);
        registry.by_description.insert(record.description.0, id);
        id
    });
    slot(id).add_fd();
    remember(cell, fd, word(id));
    known.is_none()
}

/// Gives a description that this process alone has open the lowest free number. A negative error when
/// there is none; `None` when it needs a placeholder after all. As for `adopt`.
pub fn open_lazily(record: &Record, path: &[u8], status: i32, cloexec: bool) -> Option<isize> {
    // Under the lock, so that a number that leads to the stand-in always leads to a slot as well.
    let mut registry = REGISTRY.lock();
    let registry = registry.get_or_insert_with(Registry::default);
    let command = if cloexec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    let fd = raw::fcntl(standin::get(record.flags & libc::O_DIRECTORY != 0)?, command, 0);
    if fd < 0 {
        return Some(fd);
    }
    let Some(cell) = cell(fd as i32) else {
        raw::close(fd as i32);
        return None;
    };
    registry.instance = Some(record.instance);
    let id = registry.take_free();
    slot(id).use_lazily(record, path, status);
    registry.lazy += 1;
    slot(id).add_fd();
    remember(cell, fd as i32, word(id));
    Some(fd)
}

impl Registry {
    fn take_free(&mut self) -> SlotId {
        self.free.pop().unwrap_or_else(|| {
            let id = SlotId(self.made);
            slots::grow(id);
            self.made += 1;
            id
        })
    }

    fn used(&self) -> u32 {
        self.made - self.free.len() as u32
    }

    /// Makes a placeholder for a lazy description and puts it in the stand-in's place under every number
    /// from `first` up, the lowest one.
    fn place(&mut self, id: SlotId, first: i32) -> isize {
        let Some(instance) = self.instance else { return 0 };
        let slot = slot(id);
        let lazy = slot.lock();
        if !slot.is_lazy() {
            return 0;
        }
        let entry = slot.entry(id);
        let record = Record { instance, ino: entry.ino, flags: entry.flags, description: entry.description };
        let real = placeholder::create_at(&record, &lazy.path, lazy.offset, lazy.status);
        if real < 0 {
            return real;
        }
        let mut left = slot.fds();
        let mut fd = first;
        while left > 0 && fd <= HIGH.load(Ordering::Relaxed) as i32 {
            if cell(fd).is_some_and(|cell| cell.load(Ordering::Relaxed) == word(id)) {
                put_over(fd, real as i32);
                left -= 1;
            }
            fd += 1;
        }
        raw::close(real as i32);
        slot.set_placed(&lazy);
        self.lazy -= 1;
        self.by_description.insert(entry.description.0, id);
        0
    }

    /// The same for all lazy descriptions that `wanted` wants, asked by a number of theirs.
    fn place_all(&mut self, wanted: &dyn Fn(i32) -> bool) -> isize {
        if self.lazy == 0 {
            return 0;
        }
        let mut result = 0;
        for fd in 0..=HIGH.load(Ordering::Relaxed) as i32 {
            let id = cell(fd).and_then(|cell| slot_of(cell.load(Ordering::Relaxed)));
            if let Some(id) = id.filter(|id| slot(*id).is_lazy() && wanted(fd)) {
                result = self.place(id, lowest(id, fd)).min(result);
            }
        }
        standin::refill();
        result
    }
}

/// The lowest number that leads to a slot, given one that does.
fn lowest(id: SlotId, known: i32) -> i32 {
    if slot(id).fds() == 1 {
        return known;
    }
    let leads = |fd: &i32| cell(*fd).is_some_and(|cell| cell.load(Ordering::Relaxed) == word(id));
    (0..known).find(leads).unwrap_or(known)
}

/// Puts a placeholder under a number that has the stand-in. If it has something else, it was replaced past
/// us, by a call we do not see, and is left alone.
fn put_over(fd: i32, real: i32) {
    if standin::is_behind(fd) {
        let cloexec = raw::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC as isize != 0;
        // SAFETY: no pointers.
        unsafe { sys!(libc::SYS_dup3, real, fd, if cloexec { libc::O_CLOEXEC } else { 0 }) };
    }
}

/// Makes the kernel know the description behind `fd`, if it does not: others will share it now.
pub fn place(fd: i32) -> isize {
    if pool::in_shared_child() {
        return place_copy(fd);
    }
    let lazy = || remembered(fd).and_then(|entry| entry.slot).filter(|id| slot(*id).is_lazy());
    if lazy().is_none() {
        return 0;
    }
    let _inside = Inside::enter(Work::Looks);
    match (REGISTRY.lock().as_mut(), lazy()) {
        (Some(registry), Some(id)) => {
            let result = registry.place(id, lowest(id, fd));
            standin::refill();
            result
        }
        _ => 0,
    }
}

/// The same for every description of this process with a number that `wanted` wants.
pub fn place_all(wanted: &dyn Fn(i32) -> bool) -> isize {
    if pool::in_shared_child() {
        let lazy = |fd: &i32| remembered(*fd).is_some_and(|entry| slots::is_lazy(&entry));
        let all = (0..=HIGH.load(Ordering::Relaxed) as i32).filter(lazy);
        return all.filter(|fd| wanted(*fd)).map(place_copy).min().unwrap_or(0).min(0);
    }
    let _inside = Inside::enter(Work::Looks);
    REGISTRY.lock().as_mut().map_or(0, |registry| registry.place_all(wanted))
}

/// In a child that shares our memory but not our descriptors, made in a way we do not see: a placeholder
/// of its own, with the offset as it is now, for a number that it got from its parent.
fn place_copy(fd: i32) -> isize {
    let Some(entry) = remembered(fd).filter(|entry| slots::is_lazy(entry) && standin::is_behind(fd)) else {
        return 0;
    };
    let instance = REGISTRY.lock().as_ref().and_then(|registry| registry.instance);
    let mut path = [0u8; placeholder::PATH_MAX];
    let state = slots::with_lazy(&entry, |lazy| {
        let len = lazy.path.len().min(path.len());
        path[..len].copy_from_slice(&lazy.path[..len]);
        (len, lazy.offset, lazy.status)
    });
    let (Some(instance), slots::Keeper::Slot((len, offset, status))) = (instance, state) else { return 0 };
    let record = Record { instance, ino: entry.ino, flags: entry.flags, description: entry.description };
    let real = placeholder::create_at(&record, &path[..len], offset, status);
    if real >= 0 {
        put_over(fd, real as i32);
        raw::close(real as i32);
    }
    real.min(0)
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
    let id = slot_of(state)?;
    // The caller may be inside already.
    let _inside = Inside::enter(Work::Looks);
    if pool::in_shared_child() {
        return None;
    }
    let mut registry = REGISTRY.lock();
    if cell.compare_exchange(state, UNKNOWN, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return None;
    }
    let slot = slot(id);
    if !slot.drop_fd() {
        return None;
    }
    let entry = slot.entry(id);
    if let Some(registry) = registry.as_mut() {
        if slot.is_lazy() {
            registry.lazy -= 1;
        } else {
            registry.by_description.remove(&entry.description.0);
        }
        slot.free();
        registry.free.push(id);
    }
    Some(entry)
}

/// Makes a further descriptor of what `old` is by `call`, and remembers it.
pub fn duplicate(old: i32, call: impl FnOnce() -> isize) -> isize {
    if inside::inside() {
        return call();
    }
    let Some(from) = cell(old) else { return call() };
    if !has_slot(old) {
        let new = call();
        let state = from.load(Ordering::Acquire);
        if new >= 0 && [UNKNOWN, FOREIGN].contains(&state) && !pool::in_shared_child() {
            note(new as i32, state);
        }
        return new;
    }
    let _inside = Inside::enter(Work::Looks);
    if pool::in_shared_child() {
        place_copy(old);
        return call();
    }
    // Under the lock: a description placed between the call and the note would miss the new number.
    let _registry = REGISTRY.lock();
    let new = call();
    if new >= 0 {
        let state = from.load(Ordering::Acquire);
        if let Some(id) = slot_of(state)
            && note(new as i32, state)
        {
            slot(id).add_fd();
        }
    }
    new
}

fn note(fd: i32, state: u32) -> bool {
    let cell = cell(fd);
    cell.inspect(|cell| remember(cell, fd, state)).is_some()
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
    let made = registry.as_ref().map_or(0, |registry| registry.made);
    let used = (0..made).map(SlotId).filter(|id| slot(*id).fds() > 0);
    used.map(|id| slot(id).entry(id)).filter(Entry::held).map(|entry| entry.ino).collect()
}

/// True when this process has any pool object open.
pub fn any_open() -> bool {
    let _inside = Inside::enter(Work::Looks);
    REGISTRY.lock().as_ref().is_some_and(|registry| registry.used() > 0)
}

/// Lock order at fork: see `fork.rs`.
pub fn lock_for_fork() {
    let _inside = Inside::enter(Work::Looks);
    let mut registry = REGISTRY.lock();
    if let Some(registry) = registry.as_mut() {
        // A child gets what has no placeholder as a copy: better than no child.
        registry.place_all(&|_| true);
    }
    // Kept: what is opened from now on is opened after the fork.
    std::mem::forget(registry);
}

pub fn unlock_after_fork() {
    REGISTRY.force_open();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placeholder::DescriptionId;

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
        assert_eq!(duplicate(a, || b as isize), b as isize);
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
