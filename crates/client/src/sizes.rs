//! The size cache: a process's writes to other daemons than a file's home tell the home later, together (F21).
//!
//! Off unless the pool or the process asks for it: then others may see an old size and old times until the writer
//! closes the file, syncs it, or is due. The writer itself never does: whatever asks for attributes settles first.

use crate::calls::{expect_reply, lock};
use crate::{Client, FsError};
use rustc_hash::FxHashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tidepool_types::{Attr, Errno, Ino};
use tidepool_wire::message::{Reply, Request};

/// `on` or `off`: for this process, whatever the pool says.
pub const SIZE_CACHE_VARIABLE: &str = "TIDEPOOL_SIZE_CACHE";
/// Writes to a file after which its home is told.
const WRITES_MAX: u32 = 1024;
/// Age of the oldest untold write at which the next one tells.
const AGE_MAX: Duration = Duration::from_millis(100);
/// Files with untold writes; one more, and all are told.
const FILES_MAX: usize = 256;

/// What the home of a file does not know yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Untold {
    end: u64,
    blocks: i64,
    writes: u32,
    since: Instant,
}

impl Untold {
    fn add(&mut self, end: u64, blocks: i64) {
        self.end = self.end.max(end);
        self.blocks = self.blocks.saturating_add(blocks);
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
}

impl SizeCache {
    pub fn new(on: bool) -> SizeCache {
        SizeCache { on, ..SizeCache::default() }
    }

    /// Notes a write; what is to be told now.
    fn note(&self, ino: Ino, end: u64, blocks: i64, now: Instant) -> Vec<(Ino, Untold)> {
        let mut files = lock(&self.files);
        let untold = files.entry(ino).or_insert(Untold { end: 0, blocks: 0, writes: 0, since: now });
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
    /// After data were stored at other daemons: tells the home, now or, with the size cache, later.
    pub(crate) fn grew(&self, ino: Ino, end: u64, blocks: i64) -> Result<(), FsError> {
        if !self.sizes.on {
            return self.tell_home(ino, end, blocks);
        }
        let due = self.sizes.note(ino, end, blocks, Instant::now());
        self.tell_homes(due)
    }

    /// Tells the home of a file what it does not know yet of this process's writes. To be called before a file is
    /// closed; an error means that the size may be too small for what was written.
    pub fn settle(&self, ino: Ino) -> Result<(), FsError> {
        self.sizes.take(ino).map_or(Ok(()), |untold| self.tell_home(ino, untold.end, untold.blocks))
    }

    /// The same for all files.
    pub fn settle_all(&self) -> Result<(), FsError> {
        self.tell_all_used();
        if self.is_settled() {
            return Ok(());
        }
        self.tell_homes(self.sizes.take_all())
    }

    /// True when no home has to be told anything.
    pub fn is_settled(&self) -> bool {
        self.sizes.count.load(Ordering::Acquire) == 0
    }

    /// The same, and no daemon what was done in its files.
    pub fn has_told_all(&self) -> bool {
        self.is_settled() && self.tally.is_told()
    }

    pub(crate) fn is_unsettled(&self, ino: Ino) -> bool {
        self.sizes.knows(ino)
    }

    fn tell_homes(&self, untold: Vec<(Ino, Untold)>) -> Result<(), FsError> {
        let tell = |(ino, untold): (Ino, Untold)| self.tell_home(ino, untold.end, untold.blocks);
        untold.into_iter().map(tell).fold(Ok(()), Result::and)
    }

    /// After a change of its data elsewhere: the size becomes `end` at least, `blocks` are added, times move.
    pub(crate) fn tell_home(&self, ino: Ino, end: u64, blocks: i64) -> Result<(), FsError> {
        let reply = self.request(ino.home(), &Request::Extend { ino, end, blocks })?;
        expect_reply!(self, ino.home(), reply, Reply::Attributes { .. } => ())
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
        assert_eq!(cache.note(a, 10, 1, start), []);
        assert_eq!(cache.note(a, 7, -2, start), []);
        assert!(cache.knows(a) && !cache.knows(b));
        let told = cache.take(a).unwrap();
        assert_eq!((told.end, told.blocks, told.writes), (10, -1, 2));
        assert_eq!(cache.take(a), None);

        assert_eq!(cache.note(b, 1, 0, start), []);
        let told = cache.note(b, 2, 0, start + AGE_MAX);
        assert!(
            matches!(told[..], [(ino, Untold { end: 2, writes: 2, .. })] if ino == b),
            "by age: {told:?}"
        );
        let told: Vec<_> = (0..WRITES_MAX).flat_map(|i| cache.note(a, i.into(), 1, start)).collect();
        assert!(matches!(told[..], [(_, Untold { writes: WRITES_MAX, .. })]), "by number: {told:?}");
        let told: Vec<_> = (0..FILES_MAX as u64).flat_map(|i| cache.note(Ino(i + 1), 1, 0, start)).collect();
        assert_eq!(told.len(), FILES_MAX, "too many files");
        assert_eq!((cache.take_all(), cache.count.load(Ordering::Acquire)), (Vec::new(), 0));
    }
}
