//! A page cache, of a server in front of its device or of a compute node in front of the servers: writes are done when they
//! are in memory, and go to the device later; reads find what was written or read lately, and what was read ahead. Of a
//! node, "the device" is the file system.
//!
//! ```text
//!               write                    a flush begins                  the device has it
//!   nothing ───────────→ dirty ────────────────────────────→ flushing ─────────────────────→ clean ──→ nothing
//!      │                   ↑ └ stamp: when it became so          │                              │  the least recently
//!      │                   └────────── written again ────────────┴──────────────────────────────┘  used, when there
//!      └─────────────────────────────── read ──────────────────────────────────────────────────→   is no room
//! ```
//! What is kept are extents of bytes, as long as the sub-requests that brought them: the pages of a real cache would cost an
//! entry each. The first half of what may be dirty waits until it is old; more than that is written at once, the oldest first;
//! and who would make it too much waits.

use crate::kept::{Knows, are_small};
use crate::message::{Message, Op};
use crate::network::Link;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tidepool_sim::checkpoint::{LoadError, Reader, Saved};
use tidepool_sim::{Time, saved};

/// A cache's figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheSpec {
    /// Bytes of each server, or node.
    pub size: u64,
    /// Most that may not be on the device.
    pub dirty: u64,
    /// What has been dirty for so long is written; at least a tick.
    pub delay: Time,
    /// Of memory, bytes/s; 0: unlimited.
    pub rate: u64,
    /// Read behind what is read in order.
    pub read_ahead: u32,
    /// Flushes under way at once; at least 1.
    pub flushes: u32,
    /// Neighbouring extents are flushed together, up to so many bytes.
    pub flush_bytes: u32,
}

/// File, and where in what the server has of it; of a node, where in the file.
type Key = (u32, u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    Clean,
    /// Its number among all that became dirty, and when.
    Dirty(u64, u64),
    /// By which flush.
    Flushing(u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    to: u64,
    condition: Condition,
    /// When it was used last, on the cache's own clock.
    touched: u64,
}

/// An fsync that waits for flushes.
#[derive(Clone, PartialEq, Debug)]
pub struct Sync {
    message: Message,
    /// The last flush that it may wait for.
    upto: u32,
    left: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Numbers {
    clock: u64,
    next_flush: u32,
    /// Bytes that are kept.
    pub held: u64,
    /// Of these, not on their way to the device.
    pub dirty: u64,
    /// On their way.
    pub flushing: u64,
    pub dirty_most: u64,
    timer: bool,
    pub memory: Link,
    /// Bytes that were read without the device, and with it.
    pub hits: u64,
    pub misses: u64,
    pub read_ahead: u64,
    /// Bytes that were written again before they went to the device.
    pub overwritten: u64,
    /// Writes that had to wait for room.
    pub throttled: u64,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Cache {
    pub numbers: Numbers,
    extents: BTreeMap<Key, Extent>,
    /// Clean ones by when they were used, dirty ones by their numbers.
    clean: BTreeSet<(u64, Key)>,
    dirty: BTreeSet<(u64, Key)>,
    /// File, from and to of each flush.
    flushes: BTreeMap<u32, (u32, u64, u64)>,
    /// What is being read ahead: from, and to.
    coming: BTreeMap<Key, u64>,
    /// Writes that wait for room, the first first.
    throttled: VecDeque<Message>,
    syncs: Vec<Sync>,
    /// Reads that wait for what is coming.
    readers: Vec<Message>,
}

saved!(enum Condition { 0 => Clean, 1 => Dirty(stamp, since), 2 => Flushing(flush) });
saved!(struct Extent { to, condition, touched });
saved!(struct Sync { message, upto, left });
saved!(struct Numbers {
    clock, next_flush, held, dirty, flushing, dirty_most, timer, memory, hits, misses, read_ahead, overwritten, throttled,
});

impl Saved for Cache {
    /// Who is clean and who is dirty follows from the extents.
    fn save(&self, out: &mut Vec<u8>) {
        let Cache { numbers, extents, clean: _, dirty: _, flushes, coming, throttled, syncs, readers } = self;
        numbers.save(out);
        extents.save(out);
        flushes.save(out);
        coming.save(out);
        throttled.save(out);
        syncs.save(out);
        readers.save(out);
    }

    fn load(from: &mut Reader<'_>) -> Result<Cache, LoadError> {
        let mut cache = Cache { numbers: Saved::load(from)?, ..Cache::default() };
        for (key, extent) in <BTreeMap<Key, Extent>>::load(from)? {
            cache.set(key, Some(extent));
        }
        (cache.flushes, cache.coming) = (Saved::load(from)?, Saved::load(from)?);
        (cache.throttled, cache.syncs, cache.readers) =
            (Saved::load(from)?, Saved::load(from)?, Saved::load(from)?);
        Ok(cache)
    }
}

pub enum Change {
    Numbers(Numbers),
    Extent(Key, Option<Extent>),
    Flush(u32, Option<(u32, u64, u64)>),
    Coming(Key, Option<u64>),
    Throttled,
    Admitted(Box<Message>),
    Syncs(Vec<Sync>),
    Readers(Vec<Message>),
}

/// What its server or node has to do then.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// A sub-request moves so many bytes in memory, and is done.
    Memory(Message),
    /// A sub-request goes to the device.
    Device(Message),
    /// Bytes of the cache go to the device, or come from it: file, from, length, and the number of the flush.
    Flush(u32, u64, u32, u32),
    ReadAhead(u32, u64, u32),
    /// [`Cache::tick`] is to be called so long from now.
    Timer(u64),
}

/// How a change is taken back.
pub type Keep<'a> = &'a mut dyn FnMut(Change);

/// What all of a cache's handlers get.
pub struct At<'a, 'b> {
    pub spec: &'a CacheSpec,
    pub now: u64,
    pub keep: Keep<'b>,
    pub out: &'a mut Vec<Action>,
}

fn range(message: &Message) -> (u64, u64) {
    (message.local, message.local + u64::from(message.length))
}

impl Cache {
    /// Whether sums and places are right: [`kept`](crate::kept).
    pub fn fits(&self, knows: Knows<'_>) -> bool {
        self.are_numbers_right() && self.are_extents_right() && self.are_waiting_right(knows)
    }

    fn are_numbers_right(&self) -> bool {
        let Numbers {
            clock,
            next_flush: _,
            held,
            dirty,
            flushing,
            dirty_most,
            timer: _,
            memory,
            hits,
            misses,
            read_ahead,
            overwritten,
            throttled,
        } = self.numbers;
        let sum = |of: fn(&Condition) -> bool| {
            let all = self.extents.iter().filter(|(_, extent)| of(&extent.condition));
            all.map(|(key, extent)| u128::from(extent.to.saturating_sub(key.1))).sum::<u128>()
        };
        let flushes = self.flushes.values().map(|(_, from, to)| u128::from(to.saturating_sub(*from)));
        are_small(&[clock, held, dirty, flushing, dirty_most, memory.free, hits, misses, read_ahead])
            && are_small(&[overwritten, throttled])
            && sum(|_| true) == held.into()
            && sum(|condition| matches!(condition, Condition::Dirty(..))) == dirty.into()
            && flushes.sum::<u128>() == flushing.into()
    }

    fn are_extents_right(&self) -> bool {
        let follows = |((file, from), extent): (&Key, &Extent)| {
            let next = self.extents.range((*file, from.saturating_add(1))..).next();
            let stamp = match extent.condition {
                Condition::Dirty(stamp, since) => stamp.max(since),
                Condition::Clean | Condition::Flushing(_) => 0,
            };
            *from <= extent.to
                && are_small(&[extent.to, extent.touched, stamp])
                && next.is_none_or(|(key, _)| key.0 != *file || extent.to <= key.1)
        };
        let coming = |((_, from), to): (&Key, &u64)| from <= to && are_small(&[*to]);
        self.extents.iter().all(follows)
            && self.coming.iter().all(coming)
            && self.flushes.values().all(|(_, from, to)| from <= to && are_small(&[*to]))
    }

    fn are_waiting_right(&self, knows: Knows<'_>) -> bool {
        let sync = |sync: &Sync| {
            let mine = |(number, flush): (&u32, &(u32, u64, u64))| {
                flush.0 == sync.message.file && *number < sync.upto
            };
            knows(&sync.message)
                && self.flushes.iter().filter(|flush| mine(*flush)).count() == sync.left as usize
                && sync.left > 0
        };
        self.throttled.iter().chain(&self.readers).all(knows) && self.syncs.iter().all(sync)
    }

    pub fn undo(&mut self, change: Change) {
        match change {
            Change::Numbers(was) => self.numbers = was,
            Change::Extent(key, was) => self.set(key, was),
            Change::Flush(number, was) => place(&mut self.flushes, number, was),
            Change::Coming(key, was) => place(&mut self.coming, key, was),
            Change::Throttled => drop(self.throttled.pop_back()),
            Change::Admitted(message) => self.throttled.push_front(*message),
            Change::Syncs(was) => self.syncs = was,
            Change::Readers(was) => self.readers = was,
        }
    }

    fn set(&mut self, key: Key, extent: Option<Extent>) {
        let was = match extent {
            Some(extent) => self.extents.insert(key, extent),
            None => self.extents.remove(&key),
        };
        if let Some(was) = was {
            match was.condition {
                Condition::Clean => drop(self.clean.remove(&(was.touched, key))),
                Condition::Dirty(stamp, _) => drop(self.dirty.remove(&(stamp, key))),
                Condition::Flushing(_) => {}
            }
        }
        match extent.map(|extent| (extent.condition, extent.touched)) {
            Some((Condition::Clean, touched)) => drop(self.clean.insert((touched, key))),
            Some((Condition::Dirty(stamp, _), _)) => drop(self.dirty.insert((stamp, key))),
            _ => {}
        }
    }

    fn change(&mut self, key: Key, extent: Option<Extent>, keep: Keep<'_>) {
        keep(Change::Extent(key, self.extents.get(&key).copied()));
        self.set(key, extent);
    }

    fn tick_clock(&mut self) -> u64 {
        self.numbers.clock += 1;
        self.numbers.clock
    }

    /// Extents that have a part of a range, in their order.
    fn touching(&self, file: u32, (from, to): (u64, u64)) -> Vec<(u64, Extent)> {
        let before = self.extents.range((file, 0)..(file, from)).next_back();
        let before = before.filter(|(_, extent)| extent.to > from);
        let within = self.extents.range((file, from)..(file, to.max(from)));
        before.into_iter().chain(within).map(|(key, extent)| (key.1, *extent)).collect()
    }

    /// Until where all is here from a place on, also of what is coming.
    fn covered(&self, file: u32, from: u64, most: u64, coming: bool) -> u64 {
        let mut at = from;
        while at < most {
            let held = self.extents.range(..=(file, at)).next_back().filter(|(key, _)| key.0 == file);
            let to = held.map_or(0, |(_, extent)| extent.to);
            let soon =
                self.coming.range(..=(file, at)).next_back().filter(|(key, _)| coming && key.0 == file);
            let to = to.max(soon.map_or(0, |(_, to)| *to));
            if to <= at {
                return at;
            }
            at = to;
        }
        most
    }

    /// Takes a range out, whatever it is.
    fn cut(&mut self, file: u32, (from, to): (u64, u64), keep: Keep<'_>) {
        for (begin, extent) in self.touching(file, (from, to)) {
            let gone = extent.to.min(to) - begin.max(from);
            self.numbers.held -= gone;
            if matches!(extent.condition, Condition::Dirty(..)) {
                self.numbers.dirty -= gone;
                self.numbers.overwritten += gone;
            }
            self.change((file, begin), (begin < from).then_some(Extent { to: from, ..extent }), keep);
            if extent.to > to {
                self.change((file, to), Some(extent), keep);
            }
        }
    }

    fn put(&mut self, file: u32, (from, to): (u64, u64), condition: Condition, keep: Keep<'_>) {
        self.numbers.held += to - from;
        let touched = self.tick_clock();
        self.change((file, from), Some(Extent { to, condition, touched }), keep);
    }

    /// Drops what is clean until there is room.
    fn shrink(&mut self, spec: &CacheSpec, keep: Keep<'_>) {
        while self.numbers.held > spec.size
            && let Some((_, key)) = self.clean.first().copied()
            && let Some(extent) = self.extents.get(&key).copied()
        {
            self.numbers.held -= extent.to - key.1;
            self.change(key, None, keep);
        }
    }

    /// Keeps the numbers: before anything else of an event.
    fn begin(&self, at: &mut At<'_, '_>) {
        (at.keep)(Change::Numbers(self.numbers));
    }

    pub fn write(&mut self, message: &Message, at: &mut At<'_, '_>) {
        self.begin(at);
        let bytes = u64::from(message.length);
        if bytes > at.spec.dirty {
            // It would never fit: past the cache, and what was here is old.
            self.cut(message.file, range(message), at.keep);
            at.out.push(Action::Device(message.clone()));
        } else if !self.throttled.is_empty() || !self.has_room(bytes, at.spec) {
            self.numbers.throttled += 1;
            (at.keep)(Change::Throttled);
            self.throttled.push_back(message.clone());
        } else {
            self.soil(message, at);
        }
        self.pump(at);
    }

    fn has_room(&self, bytes: u64, spec: &CacheSpec) -> bool {
        self.numbers.dirty + self.numbers.flushing + bytes <= spec.dirty
    }

    /// A write is taken.
    fn soil(&mut self, message: &Message, at: &mut At<'_, '_>) {
        self.cut(message.file, range(message), at.keep);
        let stamp = self.tick_clock();
        self.put(message.file, range(message), Condition::Dirty(stamp, at.now), at.keep);
        self.numbers.dirty += u64::from(message.length);
        self.numbers.dirty_most = self.numbers.dirty_most.max(self.numbers.dirty + self.numbers.flushing);
        self.shrink(at.spec, at.keep);
        at.out.push(Action::Memory(message.clone()));
    }

    pub fn read(&mut self, message: &Message, at: &mut At<'_, '_>) {
        self.begin(at);
        self.look(message, at);
        self.read_ahead(message, at);
    }

    fn look(&mut self, message: &Message, at: &mut At<'_, '_>) {
        let (file, (from, to)) = (message.file, range(message));
        if self.covered(file, from, to, false) >= to {
            self.numbers.hits += to - from;
            for (begin, extent) in self.touching(file, (from, to)) {
                let touched = self.tick_clock();
                self.change((file, begin), Some(Extent { touched, ..extent }), at.keep);
            }
            at.out.push(Action::Memory(message.clone()));
        } else if self.covered(file, from, to, true) >= to {
            (at.keep)(Change::Readers(self.readers.clone()));
            self.readers.push(message.clone());
        } else {
            self.numbers.misses += to - from;
            at.out.push(Action::Device(message.clone()));
        }
    }

    /// Who reads in order will read on. In order is what begins a file, or goes on behind what is here.
    fn read_ahead(&mut self, message: &Message, at: &mut At<'_, '_>) {
        let (file, (from, to)) = (message.file, range(message));
        let ahead = u64::from(at.spec.read_ahead);
        let in_order = from == 0 || self.covered(file, from - 1, from, true) == from;
        if ahead == 0 || !in_order {
            return;
        }
        // In halves, so that one is there when the other is being read.
        let there = self.covered(file, to, to + ahead, true);
        if there - to > ahead / 2 {
            return;
        }
        let length = (to + ahead - there) as u32;
        (at.keep)(Change::Coming((file, there), self.coming.get(&(file, there)).copied()));
        self.coming.insert((file, there), to + ahead);
        self.numbers.read_ahead += u64::from(length);
        at.out.push(Action::ReadAhead(file, there, length));
    }

    /// The device has read something.
    fn fill(&mut self, file: u32, (from, to): (u64, u64), at: &mut At<'_, '_>) {
        let mut next = from;
        for (begin, extent) in self.touching(file, (from, to)) {
            if begin > next {
                self.put(file, (next, begin), Condition::Clean, at.keep);
            }
            next = extent.to;
        }
        if next < to {
            self.put(file, (next, to), Condition::Clean, at.keep);
        }
        self.shrink(at.spec, at.keep);
    }

    /// The device has done a client's read.
    pub fn filled(&mut self, message: &Message, at: &mut At<'_, '_>) {
        self.begin(at);
        self.fill(message.file, range(message), at);
    }

    /// The device has read ahead.
    pub fn arrived(&mut self, file: u32, from: u64, length: u32, at: &mut At<'_, '_>) {
        self.begin(at);
        (at.keep)(Change::Coming((file, from), self.coming.get(&(file, from)).copied()));
        self.coming.remove(&(file, from));
        self.fill(file, (from, from + u64::from(length)), at);
        if !self.readers.is_empty() {
            (at.keep)(Change::Readers(self.readers.clone()));
            // Those who still wait are put back.
            std::mem::take(&mut self.readers).iter().for_each(|reader| self.look(reader, at));
        }
    }

    /// Past the cache: what a write is about is here no more. Nothing is written before a read.
    pub fn past(&mut self, message: &Message, at: &mut At<'_, '_>) {
        self.begin(at);
        if message.op == Op::Write {
            self.cut(message.file, range(message), at.keep);
        }
        at.out.push(Action::Device(message.clone()));
    }

    /// What is here of a file and not on its way is here no more; of what is dirty only when the file is gone.
    pub fn forget(&mut self, file: u32, is_gone: bool, at: &mut At<'_, '_>) {
        self.begin(at);
        for (begin, extent) in self.touching(file, (0, u64::MAX)) {
            let bytes = extent.to - begin;
            match extent.condition {
                Condition::Dirty(..) if is_gone => {
                    self.numbers.dirty -= bytes;
                    self.numbers.overwritten += bytes;
                }
                Condition::Clean => {}
                _ => continue,
            }
            self.numbers.held -= bytes;
            self.change((file, begin), None, at.keep);
        }
        self.admit(at);
        self.pump(at);
    }

    /// All that is dirty of the file goes to the device at once; the fsync when it is there. So does a close that waits for it.
    pub fn fsync(&mut self, message: &Message, at: &mut At<'_, '_>) {
        self.begin(at);
        let of_file = |(_, key): &(u64, Key)| (key.0 == message.file).then_some(*key);
        let dirty: Vec<Key> = self.dirty.iter().filter_map(of_file).collect();
        for key in dirty {
            // Some have gone with the one before them.
            if let Some(Condition::Dirty(..)) = self.extents.get(&key).map(|extent| extent.condition) {
                self.flush(key, at);
            }
        }
        let left = self.flushes.values().filter(|flush| flush.0 == message.file).count() as u32;
        if left == 0 {
            return at.out.push(Action::Device(message.clone()));
        }
        self.keep_syncs(at);
        self.syncs.push(Sync { message: message.clone(), upto: self.numbers.next_flush, left });
    }

    fn keep_syncs(&self, at: &mut At<'_, '_>) {
        (at.keep)(Change::Syncs(self.syncs.clone()));
    }

    /// A dirty extent and those that go on where it ends are written.
    fn flush(&mut self, (file, from): Key, at: &mut At<'_, '_>) {
        let number = self.numbers.next_flush;
        let mut to = from;
        while let Some(extent) = self.extents.get(&(file, to)).copied() {
            let fits = to == from || extent.to - from <= u64::from(at.spec.flush_bytes);
            if !matches!(extent.condition, Condition::Dirty(..)) || !fits {
                break;
            }
            self.change(
                (file, to),
                Some(Extent { condition: Condition::Flushing(number), ..extent }),
                at.keep,
            );
            to = extent.to;
        }
        self.numbers.next_flush = number.wrapping_add(1);
        self.numbers.dirty -= to - from;
        self.numbers.flushing += to - from;
        (at.keep)(Change::Flush(number, None));
        self.flushes.insert(number, (file, from, to));
        at.out.push(Action::Flush(file, from, (to - from) as u32, number));
    }

    /// A flush is done.
    pub fn flushed(&mut self, number: u32, at: &mut At<'_, '_>) {
        self.begin(at);
        (at.keep)(Change::Flush(number, self.flushes.get(&number).copied()));
        let Some((file, from, to)) = self.flushes.remove(&number) else { return };
        self.numbers.flushing -= to - from;
        for (begin, extent) in self.touching(file, (from, to)) {
            // What was written since stays dirty.
            if extent.condition == Condition::Flushing(number) {
                self.change((file, begin), Some(Extent { condition: Condition::Clean, ..extent }), at.keep);
            }
        }
        if self.syncs.iter().any(|sync| sync.message.file == file) {
            self.keep_syncs(at);
            for sync in self.syncs.iter_mut().filter(|sync| sync.message.file == file && number < sync.upto) {
                sync.left -= 1;
            }
            let done = self.syncs.extract_if(.., |sync| sync.left == 0);
            at.out.extend(done.map(|sync| Action::Device(sync.message)));
        }
        self.admit(at);
        self.shrink(at.spec, at.keep);
        self.pump(at);
    }

    /// Writes that have waited are taken while there is room.
    fn admit(&mut self, at: &mut At<'_, '_>) {
        while let Some(bytes) = self.throttled.front().map(|message| u64::from(message.length))
            && self.has_room(bytes, at.spec)
            && let Some(message) = self.throttled.pop_front()
        {
            (at.keep)(Change::Admitted(Box::new(message.clone())));
            self.soil(&message, at);
        }
    }

    /// The time of a timer has come.
    pub fn tick(&mut self, at: &mut At<'_, '_>) {
        self.begin(at);
        self.numbers.timer = false;
        self.pump(at);
    }

    /// Flushes what has to go, and asks to be called when the rest gets old.
    fn pump(&mut self, at: &mut At<'_, '_>) {
        while let Some((_, key)) = self.dirty.first().copied() {
            let Some(Extent { condition: Condition::Dirty(_, since), .. }) = self.extents.get(&key) else {
                return;
            };
            let old = since.saturating_add(at.spec.delay.0);
            let urgent = !self.throttled.is_empty() || self.numbers.dirty > at.spec.dirty / 2;
            if !urgent && old > at.now {
                if !self.numbers.timer {
                    self.numbers.timer = true;
                    at.out.push(Action::Timer(old - at.now));
                }
                return;
            }
            if self.flushes.len() >= at.spec.flushes as usize {
                return;
            }
            self.flush(key, at);
        }
    }

    /// Bytes that are not on the device.
    pub fn unwritten(&self) -> u64 {
        let waiting: u64 = self.throttled.iter().map(|message| u64::from(message.length)).sum();
        self.numbers.dirty + self.numbers.flushing + waiting
    }
}

fn place<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
}

impl CacheSpec {
    /// What makes no sense among the figures.
    pub fn check(&self) -> Result<(), String> {
        match self {
            CacheSpec { size: 0, .. } => Err("it has no room: its size is at least 1".into()),
            CacheSpec { dirty, size, .. } if dirty > size => {
                Err(format!("{dirty} bytes may be dirty, of a size of {size}"))
            }
            CacheSpec { delay: Time(0), .. } => Err("its delay is 0; at least 1ns".into()),
            CacheSpec { flushes: 0, .. } => Err("it has no flushes: at least 1 at once".into()),
            _ => Ok(()),
        }
    }
}

/// What a cache came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheResult {
    /// Bytes that were read without the device, and with it.
    pub hits: u64,
    pub misses: u64,
    /// Bytes that were read ahead.
    pub read_ahead: u64,
    /// Bytes that were written again before they went to the device, or whose file was taken away.
    pub overwritten: u64,
    /// Most bytes that were not on the device, and how many are not at the end.
    pub dirty_most: u64,
    pub dirty: u64,
    /// Writes that had to wait for room.
    pub throttled: u64,
}

impl Cache {
    pub fn result(&self) -> CacheResult {
        let Numbers { hits, misses, read_ahead, overwritten, dirty_most, throttled, .. } = self.numbers;
        CacheResult { hits, misses, read_ahead, overwritten, dirty_most, dirty: self.unwritten(), throttled }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Kind;
    use proptest::prelude::*;

    const BYTES: u64 = 40;

    fn message(op: Op, local: u64, length: u32) -> Message {
        let (kind, file, request, offset) = (Kind::Submit, 7, 0, local);
        Message { kind, op, file, request, offset, local, length, sender: 0, receiver: 0, start: 0, end: 0 }
    }

    /// What a byte is: nothing, clean, dirty, or on its way with a flush.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Byte {
        Nothing,
        Clean,
        Dirty,
        Flushing(u32),
    }

    proptest! {
        /// Against a list of single bytes, without a limit: the same hits, the same bytes flushed, and all can be taken back.
        #[test]
        fn every_byte_is_what_it_should_be(
            steps in proptest::collection::vec((0usize..9, 0u64..BYTES, 1u64..12), 1..60),
            flush_bytes in 1u32..30,
        ) {
            let spec = CacheSpec {
                size: 1 << 20,
                dirty: 20,
                delay: Time(1_000_000),
                rate: 0,
                read_ahead: 0,
                flushes: 3,
                flush_bytes,
            };
            let (mut cache, mut past) = (Cache::default(), Vec::new());
            let mut bytes = [Byte::Nothing; BYTES as usize];
            let mut under_way: Vec<(u32, u64, u32)> = Vec::new();
            let (mut written, mut flushed, mut through) = (0u64, 0u64, 0u64);
            for (now, (what, from, length)) in steps.into_iter().enumerate() {
                let length = length.min(BYTES - from);
                let range = from as usize..(from + length) as usize;
                let (before, mut changes, mut out) = (cache.clone(), Vec::new(), Vec::new());
                let mut keep = |change| changes.push(change);
                let at = &mut At { spec: &spec, now: now as u64, keep: &mut keep, out: &mut out };
                match what {
                    0 | 1 => {
                        cache.write(&message(Op::Write, from, length as u32), at);
                        written += length;
                    }
                    2 => {
                        cache.read(&message(Op::Read, from, length as u32), at);
                        let hit = bytes[range].iter().all(|byte| *byte != Byte::Nothing);
                        let done = message(Op::Read, from, length as u32);
                        let expected = if hit { Action::Memory(done) } else { Action::Device(done) };
                        prop_assert_eq!(&*at.out, &vec![expected]);
                    }
                    3 => {
                        cache.filled(&message(Op::Read, from, length as u32), at);
                        let empty = bytes[range].iter_mut().filter(|byte| **byte == Byte::Nothing);
                        empty.for_each(|byte| *byte = Byte::Clean);
                    }
                    4 => {
                        cache.past(&message(Op::Write, from, length as u32), at);
                        prop_assert_eq!(at.out.len(), 1);
                        through += length;
                        bytes[range].fill(Byte::Nothing);
                    }
                    5 => {
                        let is_gone = length.is_multiple_of(3);
                        cache.forget(7, is_gone, at);
                        for byte in &mut bytes {
                            match byte {
                                Byte::Clean => *byte = Byte::Nothing,
                                Byte::Dirty if is_gone => *byte = Byte::Nothing,
                                _ => {}
                            }
                        }
                    }
                    _ if under_way.is_empty() => {}
                    _ => {
                        let (number, from, length) = under_way.remove(now % under_way.len());
                        flushed += u64::from(length);
                        for byte in bytes.iter_mut().filter(|byte| **byte == Byte::Flushing(number)) {
                            *byte = Byte::Clean;
                        }
                        prop_assert!(from + u64::from(length) <= BYTES);
                        cache.flushed(number, at);
                    }
                }
                for action in out {
                    match action {
                        Action::Device(Message { op: Op::Write, length, .. }) => through -= u64::from(length),
                        // In the order in which they were taken, also those that had waited.
                        Action::Memory(Message { op: Op::Write, local, length, .. }) => {
                            bytes[local as usize..][..length as usize].fill(Byte::Dirty);
                        }
                        Action::Flush(_, from, length, number) => {
                            let range = &mut bytes[from as usize..][..length as usize];
                            prop_assert!(range.iter().all(|byte| *byte == Byte::Dirty));
                            range.fill(Byte::Flushing(number));
                            under_way.push((number, from, length));
                        }
                        _ => {}
                    }
                }
                let count = |is: &dyn Fn(&Byte) -> bool| bytes.iter().filter(|byte| is(byte)).count() as u64;
                let numbers = cache.numbers;
                prop_assert_eq!(numbers.held, count(&|byte| *byte != Byte::Nothing));
                prop_assert_eq!(numbers.dirty, count(&|byte| *byte == Byte::Dirty));
                prop_assert_eq!(numbers.flushing, under_way.iter().map(|flush| u64::from(flush.2)).sum::<u64>());
                prop_assert!(numbers.dirty + numbers.flushing <= spec.dirty);
                prop_assert_eq!(written, flushed + cache.unwritten() + numbers.overwritten);
                prop_assert_eq!(through, 0);
                past.push((before, changes));
            }
            for (before, changes) in past.into_iter().rev() {
                changes.into_iter().rev().for_each(|change| cache.undo(change));
                prop_assert_eq!(&cache, &before);
            }
        }
    }
}
