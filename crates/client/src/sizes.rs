//! The size cache: a process's writes to other daemons than a file's home tell the home later, together (F21).
//!
//! Off unless the pool or the process asks for it: then others may see an old size and old times until the writer
//! closes the file, syncs it, or is due. The writer itself never does: whatever asks for attributes settles first.
//!
//! What is told at once can be stored again when the home says that it may have been cleared away (`docs/formats/01-protocol.md`,
//! "Behind the end"). What is told late cannot: so the home is asked to clear a file before the first such write to it.

use crate::calls::{Bulk, expect_reply, lock};
use crate::{Client, FsError};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tidepool_types::{Attr, Errno, Ino};
use tidepool_wire::message::{Reply, Request, Told};

/// `on` or `off`: for this process, whatever the pool says.
pub const SIZE_CACHE_VARIABLE: &str = "TIDEPOOL_SIZE_CACHE";
/// Writes to a file after which its home is told.
const WRITES_MAX: u32 = 1024;
/// Age of the oldest untold write at which the next one tells.
const AGE_MAX: Duration = Duration::from_millis(100);
/// Files with untold writes; one more, and all are told.
const FILES_MAX: usize = 256;
/// Files remembered to have been cleared; the table is emptied when it is full.
const CLEARED_MAX: usize = 4096;
/// Times in a row that a file may be cleared under one write.
const REPEATS_MAX: u32 = 1_000;

/// What a home is told of bytes that were stored elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    pub start: u64,
    pub end: u64,
    pub blocks: i64,
    pub told: Told,
}

impl Growth {
    /// Of a change that stores nothing behind the end: the file becomes `end` bytes long at least.
    pub fn to(end: u64, blocks: i64) -> Growth {
        Growth { start: end, end, blocks, told: Told::Now }
    }
}

/// What the home of a file does not know yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Untold {
    end: u64,
    /// The home's epoch before the first of the writes.
    epoch: u64,
    blocks: i64,
    writes: u32,
    since: Instant,
}

impl Untold {
    fn add(&mut self, end: u64, blocks: i64) {
        self.end = self.end.max(end);
        self.blocks += blocks;
        self.writes += 1;
    }

    fn is_due(&self, now: Instant) -> bool {
        self.writes >= WRITES_MAX || now.duration_since(self.since) >= AGE_MAX
    }
}

#[derive(Default)]
pub(crate) struct SizeCache {
    on: bool,
    files: Mutex<FxHashMap<Ino, Untold>>,
    /// Length of `files`: most questions need not take the lock.
    count: AtomicUsize,
    /// Files that had nothing behind their ends when this process began to write to them.
    cleared: Mutex<FxHashSet<Ino>>,
}

impl SizeCache {
    pub fn new(on: bool) -> SizeCache {
        SizeCache { on, ..SizeCache::default() }
    }

    /// Notes a write; what is to be told now.
    fn note(&self, ino: Ino, end: u64, blocks: i64, (epoch, now): (u64, Instant)) -> Vec<(Ino, Untold)> {
        let mut files = lock(&self.files);
        let untold = files.entry(ino).or_insert(Untold { end: 0, epoch, blocks: 0, writes: 0, since: now });
        untold.add(end, blocks);
        let due = untold.is_due(now);
        let told = match files.len() {
            _ if due => files.remove_entry(&ino).into_iter().collect(),
            FILES_MAX.. => files.drain().collect(),
            _ => Vec::new(),
        };
        self.count.store(files.len(), Ordering::Release);
        told
    }

    fn take(&self, ino: Ino) -> Option<Untold> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut files = lock(&self.files);
        let taken = files.remove(&ino);
        self.count.store(files.len(), Ordering::Release);
        taken
    }

    fn take_all(&self) -> Vec<(Ino, Untold)> {
        let mut files = lock(&self.files);
        let all = files.drain().collect();
        self.count.store(0, Ordering::Release);
        all
    }

    /// A process that opens the file again asks again.
    pub fn forget(&self, ino: Ino) {
        if self.on {
            lock(&self.cleared).remove(&ino);
        }
    }

    fn knows(&self, ino: Ino) -> bool {
        self.count.load(Ordering::Acquire) > 0 && lock(&self.files).contains_key(&ino)
    }
}

/// What the environment says of the size cache.
pub(crate) fn wished() -> Result<Option<bool>, FsError> {
    match std::env::var_os(SIZE_CACHE_VARIABLE) {
        None => Ok(None),
        Some(value) if value == "on" => Ok(Some(true)),
        Some(value) if value == "off" => Ok(Some(false)),
        Some(value) => {
            let text = format!("{SIZE_CACHE_VARIABLE} is '{}'; set it to on or off", value.to_string_lossy());
            Err(FsError::new(Errno::EINVAL, text))
        }
    }
}

impl Client {
    /// Stores something at other daemons than the home and tells the home, now or, with the size cache, later; all of it once more
    /// when it may have been cleared away meanwhile. `store` says what is to be told.
    pub(crate) fn store_and_tell<T>(
        &self,
        ino: Ino,
        mut store: impl FnMut() -> (T, Growth),
    ) -> Result<T, FsError> {
        for _ in 0..REPEATS_MAX {
            self.begin_late(ino)?;
            let epoch = self.epoch_of(ino.home());
            let (stored, growth) = store();
            if self.sizes.on && growth.told == Told::Now {
                let due = self.sizes.note(ino, growth.end, growth.blocks, (epoch, Instant::now()));
                return self.tell_homes(due).map(|()| stored);
            }
            if self.extend(ino, growth, epoch)? {
                return Ok(stored);
            }
        }
        Err(FsError::new(Errno::EAGAIN, "writers of this file keep dying"))
    }

    /// Before the first write that is told late.
    fn begin_late(&self, ino: Ino) -> Result<(), FsError> {
        if !self.sizes.on || lock(&self.sizes.cleared).contains(&ino) {
            return Ok(());
        }
        let reply = self.request(ino.home(), &Request::Settle { ino })?;
        expect_reply!(self, ino.home(), reply, Reply::Done {} => ())?;
        let mut cleared = lock(&self.sizes.cleared);
        if cleared.len() >= CLEARED_MAX {
            cleared.clear();
        }
        cleared.insert(ino);
        Ok(())
    }

    /// False when what was stored under `epoch` may have been cleared away.
    fn extend(&self, ino: Ino, growth: Growth, epoch: u64) -> Result<bool, FsError> {
        let Growth { start, end, blocks, told } = growth;
        let request = Request::Extend { ino, start, end, blocks, told };
        match self.call(ino.home(), &request, epoch, Bulk::None)?.reply {
            Reply::Stale {} => Ok(false),
            reply => expect_reply!(self, ino.home(), reply, Reply::Attributes { .. } => true),
        }
    }

    /// Tells the home of a file what it does not know yet of this process's writes. To be called before a file is
    /// closed; an error means that the size may be too small for what was written.
    pub fn settle(&self, ino: Ino) -> Result<(), FsError> {
        self.sizes.take(ino).map_or(Ok(()), |untold| self.tell_late(ino, untold))
    }

    /// The same for all files.
    pub fn settle_all(&self) -> Result<(), FsError> {
        if self.is_settled() {
            return Ok(());
        }
        self.tell_homes(self.sizes.take_all())
    }

    /// True when no home has to be told anything.
    pub fn is_settled(&self) -> bool {
        self.sizes.count.load(Ordering::Acquire) == 0
    }

    pub(crate) fn is_unsettled(&self, ino: Ino) -> bool {
        self.sizes.knows(ino)
    }

    fn tell_homes(&self, untold: Vec<(Ino, Untold)>) -> Result<(), FsError> {
        let tell = |(ino, untold): (Ino, Untold)| self.tell_late(ino, untold);
        untold.into_iter().map(tell).fold(Ok(()), Result::and)
    }

    fn tell_late(&self, ino: Ino, untold: Untold) -> Result<(), FsError> {
        let growth = Growth { start: untold.end, end: untold.end, blocks: untold.blocks, told: Told::Late };
        if self.extend(ino, growth, untold.epoch)? {
            return Ok(());
        }
        let text = format!(
            "object {ino}: another writer died and what it had left was dropped, perhaps with what this process wrote since it last \
             told the size; write it again, or switch the size cache off"
        );
        Err(FsError::new(Errno::EIO, text))
    }

    /// After a change that stores nothing behind the end.
    pub(crate) fn tell_home(&self, ino: Ino, end: u64, blocks: i64) -> Result<(), FsError> {
        for _ in 0..REPEATS_MAX {
            if self.extend(ino, Growth::to(end, blocks), self.epoch_of(ino.home()))? {
                return Ok(());
            }
        }
        Err(FsError::new(Errno::EAGAIN, "writers of this file keep dying"))
    }

    /// Attributes that came with an answer, after this process's own writes.
    pub(crate) fn settled_attr(&self, attr: Attr) -> Result<Attr, FsError> {
        if self.is_unsettled(attr.ino) { self.home_attr(attr.ino) } else { Ok(attr) }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Nobody is left to hear of a failure; doors settle before they close.
        let _ = self.settle_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_told_together_when_they_are_due() {
        let (cache, start) = (SizeCache::new(true), Instant::now());
        let (a, b) = (Ino(5), Ino(6));
        assert_eq!(cache.note(a, 10, 1, (7, start)), []);
        assert_eq!(cache.note(a, 7, -2, (8, start)), []);
        assert!(cache.knows(a) && !cache.knows(b));
        let told = cache.take(a).unwrap();
        assert_eq!((told.end, told.blocks, told.writes, told.epoch), (10, -1, 2, 7));
        assert_eq!(cache.take(a), None);

        assert_eq!(cache.note(b, 1, 0, (7, start)), []);
        let told = cache.note(b, 2, 0, (7, start + AGE_MAX));
        assert!(
            matches!(told[..], [(ino, Untold { end: 2, writes: 2, .. })] if ino == b),
            "by age: {told:?}"
        );
        let told: Vec<_> = (0..WRITES_MAX).flat_map(|i| cache.note(a, i.into(), 1, (7, start))).collect();
        assert!(matches!(told[..], [(_, Untold { writes: WRITES_MAX, .. })]), "by number: {told:?}");
        let told: Vec<_> =
            (0..FILES_MAX as u64).flat_map(|i| cache.note(Ino(i + 1), 1, 0, (7, start))).collect();
        assert_eq!(told.len(), FILES_MAX, "too many files");
        assert_eq!((cache.take_all(), cache.count.load(Ordering::Acquire)), (Vec::new(), 0));
    }
}
