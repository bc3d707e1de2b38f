//! Copies in which names appear in the order in which the source was changed: who looks at the destination never sees a
//! file without an older one that it builds on, as long as programs publish by rename.
//!
//! ```text
//! copied, durable, verified ──▶ held under its temporary name ──all are──▶ is every source still the same?
//!                                        ▲                                        │ no: copied again
//!                                        └────────────────────────────────────────┤
//!                                final names, one after another, oldest first ◀───┘ yes
//! ```
//! All that is named was the same at one moment, before the last look at the sources began: a copy of something that
//! changes all the time gets no names at all. After a kill, what is held is found again by the journal, and the names that are
//! there are the oldest ones: so a rerun goes on in the same order.

use crate::end::{At, Meta, Name};
use crate::job::{Job, Outcome, Worker, bump};
use crate::journal::{Record, Version};
use crate::links::{Key, Leader};
use crate::report::{Failure, StageError};
use crate::sync::lock;
use crate::tree::{DirNode, Entry};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidepool_types::{Errno, FileKind};

/// Sources that are looked at together.
const LOOKED_AT: usize = 256;
const NOTHING_NAMED: &str =
    "nothing more gets its name, or newer files would be there without older ones; run the same copy again";

/// What is whole under its temporary name.
pub(crate) struct Held {
    pub entry: Entry,
    pub key: Option<Key>,
    pub part: Vec<u8>,
    pub meta: Meta,
    pub crc: u32,
    pub outcome: Outcome,
}

/// What an ordered copy keeps until its end.
#[derive(Default)]
pub(crate) struct Waiting {
    held: Vec<Held>,
    dirs: Vec<Arc<DirNode>>,
}

/// True for what is counted as alive: everything but directories.
pub(crate) fn is_counted(entry: &Entry) -> bool {
    entry.kind != Some(FileKind::Directory)
}

impl Held {
    fn source(&self) -> Name<'_> {
        Name { dir: &self.entry.dir.src, name: &self.entry.from }
    }

    fn is_file(&self) -> bool {
        self.meta.kind == FileKind::Regular
    }

    fn named(&self) -> Record {
        let Meta { size, mtime, .. } = self.meta;
        Record::File { path: self.entry.hash(), size, mtime, crc: self.crc }
    }

    /// Oldest first: by the time at which it was renamed or last changed.
    fn is_before(&self, other: &Held) -> std::cmp::Ordering {
        let times = |held: &Held| (held.meta.ctime, held.meta.mtime);
        times(self).cmp(&times(other)).then_with(|| self.entry.path_bytes().cmp(&other.entry.path_bytes()))
    }
}

impl Job<'_> {
    /// An ordered copy looks at its directories again before anything gets a name.
    pub fn note_walked(&self, node: &Arc<DirNode>) {
        if self.options.ordered {
            lock(&self.waiting).dirs.push(node.clone());
        }
    }

    /// A regular file is whole: it has its name and is finished, or has to wait for its name.
    pub fn named_or_held(
        &self,
        entry: &Entry,
        key: Option<Key>,
        part: &[u8],
        meta: &Meta,
        (size, crc): (u64, u32),
    ) {
        let outcome = Outcome::Copied { size, crc };
        if self.options.ordered {
            let (entry, part, meta) = (entry.clone(), part.to_vec(), meta.clone());
            return self.keep_back(vec![Held { entry, key, part, meta, crc, outcome }]);
        }
        self.note(&Record::File { path: entry.hash(), size, mtime: meta.mtime, crc });
        self.finish(entry, key, &outcome);
    }

    /// They wait for their names.
    pub fn keep_back(&self, mut files: Vec<Held>) {
        let copied =
            files.iter().filter(|held| held.is_file() && matches!(held.outcome, Outcome::Copied { .. }));
        let record = |held: &Held| {
            let (path, version, crc) = (held.entry.hash(), Version::of(&held.meta), held.crc);
            Record::Held { path, version, crc }
        };
        self.note_all(&copied.map(record).collect::<Vec<_>>());
        for Held { entry, .. } in &mut files {
            bump(&self.control.inner.bytes_done, entry.seen.saturating_sub(entry.credited));
            entry.credited = entry.credited.max(entry.seen);
        }
        lock(&self.waiting).held.extend(files);
    }

    /// The checksum of what an earlier run left under the temporary name of an entry, if it is the whole file.
    pub fn held_before(
        &self,
        worker: &mut Worker,
        entry: &Entry,
        meta: &Meta,
    ) -> Result<Option<u32>, Failure> {
        if !self.may_be_held(entry) {
            return Ok(None);
        }
        let past = self.journal.past.held(entry.hash()).filter(|past| past.version == Version::of(meta));
        let Some(past) = past else { return Ok(None) };
        let Ok(part) = self.dst.open_read(&entry.dir.dst, &self.part_name(entry)) else { return Ok(None) };
        let there = self.dst.stat(At::File(&part)).map_err(Failure::target)?;
        if (there.kind, there.size, there.mtime) != (FileKind::Regular, meta.size, meta.mtime) {
            return Ok(None);
        }
        match self.read_back(&part, 0..meta.size, there.is_dense(), worker.buffer()) {
            Ok(crc) if crc == past.crc => Ok(Some(crc)),
            Err(Failure::Cancelled) => Err(Failure::Cancelled),
            // It is copied anew.
            _ => Ok(None),
        }
    }

    /// Something may be left of an entry that an earlier run had copied wholly.
    pub fn may_be_held(&self, entry: &Entry) -> bool {
        let wanted = self.options.ordered && entry.attempt == 0;
        wanted && self.journal.past.held(entry.hash()).is_some()
    }

    /// When all that is left to do is giving names: gives them. False when it is not.
    pub fn publish(&self) -> bool {
        if !self.options.ordered {
            return false;
        }
        let Some(held) = self.take_held() else { return false };
        if self.findings.has_errors() {
            self.refuse(held);
        } else if let Some(held) = self.same_sources(held) {
            self.name_in_order(held);
        }
        true
    }

    /// All that waits, when nothing else is under way.
    fn take_held(&self) -> Option<Vec<Held>> {
        let mut waiting = lock(&self.waiting);
        if waiting.held.is_empty() || !self.sched.is_quiet() {
            return None;
        }
        let held = waiting.held.iter().filter(|held| is_counted(&held.entry)).count() + self.links.parked();
        // What is neither held nor waits for a name of its object is in some worker's hands.
        (self.alive.load(Ordering::Acquire) == held as i64).then(|| std::mem::take(&mut waiting.held))
    }

    /// All of it, when no source has changed since it was copied; else what has changed is copied again, and the rest waits.
    fn same_sources(&self, held: Vec<Held>) -> Option<Vec<Held>> {
        let (mut same, mut changed) = (Vec::with_capacity(held.len()), false);
        let mut rest = held.into_iter();
        loop {
            let some: Vec<Held> = rest.by_ref().take(LOOKED_AT).collect();
            if some.is_empty() {
                break;
            }
            let names: Vec<Name<'_>> = some.iter().map(Held::source).collect();
            let now = self.src.stat_files(&names);
            drop(names);
            let none = || Err(crate::EndError::new("answer", Errno::EPROTO));
            for (held, now) in some.into_iter().zip(now.into_iter().chain(std::iter::repeat_with(none))) {
                match now {
                    Ok(now) if held.meta.unchanged(&now) => same.push(held),
                    Ok(_) => (changed, _) = (true, self.drop_held(held, Failure::Changed)),
                    Err(error) if error.errno == Errno::ENOENT => {
                        (changed, _) = (true, self.drop_held(held, Failure::Changed));
                    }
                    Err(error) => (changed, _) = (true, self.drop_held(held, Failure::source(error))),
                }
            }
        }
        if !changed && self.same_dirs() {
            return Some(same);
        }
        lock(&self.waiting).held.extend(same);
        None
    }

    fn drop_held(&self, held: Held, failure: Failure) {
        // The first error is the one to tell; a rerun removes the file.
        let _ = self.dst.unlink(&held.entry.dir.dst, &held.part);
        self.give_up(held.entry, held.key, failure);
    }

    /// Nothing has come or gone since the directories were listed.
    fn same_dirs(&self) -> bool {
        let dirs = lock(&self.waiting).dirs.clone();
        let mut same = true;
        for dir in dirs {
            let Some(meta) = &dir.meta else { continue };
            let now = self.src.stat(At::Dir(&dir.src)).map_err(Failure::source);
            let failure = match now {
                Ok(now) if meta.unchanged(&now) => continue,
                Ok(_) => Failure::Changed,
                Err(failure) => failure,
            };
            self.report_error(&dir, dir.path(), &failure);
            same = false;
        }
        same
    }

    fn name_in_order(&self, mut held: Vec<Held>) {
        held.sort_unstable_by(Held::is_before);
        let mut rest = held.into_iter();
        while let Some(held) = rest.next() {
            if self.is_cancelled() {
                lock(&self.waiting).held.extend(std::iter::once(held).chain(rest));
                return;
            }
            if let Err(error) = self.dst.rename(&held.entry.dir.dst, &held.part, &held.entry.to) {
                let failure = Failure::target(error);
                self.report_error(&held.entry.dir, held.entry.path(), &failure);
                return self.refuse(std::iter::once(held).chain(rest).collect());
            }
            self.named(held);
        }
    }

    /// A held entry has got its name; the other names of its object follow at once: they are as old.
    fn named(&self, held: Held) {
        if held.is_file() {
            self.note(&held.named());
        }
        let Held { entry, key, crc, outcome, .. } = held;
        let leader = Leader { dir: entry.dir.clone(), name: entry.to.clone(), crc };
        let others = key.map(|key| self.links.done(key, leader.clone())).unwrap_or_default();
        self.finish(&entry, None, &outcome);
        for other in others {
            match self.link_to(&other, &leader) {
                Ok(()) => self.finish(&other, None, &Outcome::Link),
                Err(failure) => self.give_up(other, None, failure),
            }
        }
    }

    /// Ends a copy in which not everything can get its name. What is held stays for a rerun that can find it.
    fn refuse(&self, held: Vec<Held>) {
        let failure = Failure::Refused(NOTHING_NAMED.into());
        self.findings.error(StageError::new(".".into(), &failure));
        for Held { entry, key, part, .. } in held {
            if !self.stays_for_a_rerun() {
                let _ = self.dst.unlink(&entry.dir.dst, &part);
            }
            let others = key.map(|key| self.links.abandon(key)).unwrap_or_default();
            std::iter::once(entry).chain(others).for_each(|entry| self.leave(entry));
        }
    }

    fn stays_for_a_rerun(&self) -> bool {
        self.options.keeps_journal() && !(self.is_cancelled() && self.options.clean_on_cancel)
    }

    /// An entry is not finished, and the error has been told.
    fn leave(&self, entry: Entry) {
        entry.dir.failed.store(true, Ordering::Release);
        self.bury(&entry);
        self.one_less(entry.dir);
    }

    /// After a cancel, when the workers have ended.
    pub fn discard_held(&self) {
        if self.stays_for_a_rerun() {
            return;
        }
        for held in std::mem::take(&mut lock(&self.waiting).held) {
            let _ = self.dst.unlink(&held.entry.dir.dst, &held.part);
        }
    }
}
