//! Regular files: deciding what to do, and copying those that one worker does alone.
//!
//! A worker collects small files it has written and makes them durable, verifies and
//! renames them together, because one sync of a pool costs as much as one of a file.

use crate::data::Output;
use crate::end::{At, EndError, FileRef, Meta, SetMeta};
use crate::job::{Job, Outcome, Worker, bump};
use crate::journal::Record;
use crate::links::{Claimed, Key, Leader};
use crate::ordered::Held;
use crate::report::Failure;
use crate::tree::Entry;
use crate::{BATCH_BYTES_MAX, BATCH_FILES_MAX, LARGE_BYTES_MIN};
use tidepool_types::{Errno, FileKind};

/// A small file that is written but not durable, verified and renamed yet.
pub(crate) struct Finished {
    pub entry: Entry,
    pub key: Option<Key>,
    pub src: FileRef,
    pub dst: FileRef,
    pub part: Vec<u8>,
    /// Of the source.
    pub meta: Meta,
    /// Bytes that it has, whatever it says.
    pub len: u64,
    pub crc: u32,
}

/// How far an entry got at once.
pub(crate) enum Started {
    Done(Outcome),
    /// Somebody else, or a later step, finishes it.
    Later,
}

impl Job<'_> {
    /// Copies a regular file, or starts to.
    pub fn regular(&self, worker: &mut Worker, mut entry: Entry) {
        let mut key = None;
        match self.start(worker, &mut entry, &mut key) {
            Ok(Started::Done(outcome)) => self.finish(&entry, key, &outcome),
            Ok(Started::Later) => {}
            Err(failure) => self.give_up(entry, key, failure),
        }
    }

    fn start(
        &self,
        worker: &mut Worker,
        entry: &mut Entry,
        key: &mut Option<Key>,
    ) -> Result<Started, Failure> {
        let src = self.src.open_read(&entry.dir.src, &entry.from).map_err(Failure::source)?;
        let mut meta = self.src.stat(At::File(&src)).map_err(Failure::source)?;
        if meta.kind != FileKind::Regular {
            return Err(Failure::Changed);
        }
        self.look(entry, &meta);
        if let Some(started) = self.claim_link(entry, &meta, key)? {
            return Ok(started);
        }
        let there = self.replaced(entry, &meta)?;
        if self.is_untold(&src, &meta)? {
            let finished = self.write_untold(worker, entry, *key, src, meta)?;
            return Ok(self.batched(worker, finished));
        }
        if self.dst.nature().no_holes {
            meta.stored = meta.stored.max(meta.size);
        }
        if let Some(there) = there
            && let Some(crc) = self.current(worker, entry, &src, &meta, &there)?
        {
            return Ok(Started::Done(Outcome::Skipped { size: meta.size, crc }));
        }
        if let Some(crc) = self.held_before(worker, entry, &meta)? {
            bump(&self.totals.skipped, meta.size);
            self.named_or_held(entry, *key, &self.part_name(entry), &meta, (meta.size, crc));
            return Ok(Started::Later);
        }
        if meta.size >= LARGE_BYTES_MIN {
            self.start_large(entry.clone(), *key, src, meta)?;
            return Ok(Started::Later);
        }
        let finished = self.write_small(worker, entry, *key, src, meta)?;
        Ok(self.batched(worker, finished))
    }

    /// A written file waits for others, or completes what waits.
    fn batched(&self, worker: &mut Worker, finished: Finished) -> Started {
        worker.batch_bytes += finished.len;
        worker.batch.push(finished);
        if worker.batch.len() >= BATCH_FILES_MAX || worker.batch_bytes >= BATCH_BYTES_MAX {
            self.commit(worker);
        }
        Started::Later
    }

    /// Takes the lead for an object with several names, or makes this name a link.
    pub fn claim_link(
        &self,
        entry: &Entry,
        meta: &Meta,
        key: &mut Option<Key>,
    ) -> Result<Option<Started>, Failure> {
        if meta.nlink < 2 {
            return Ok(None);
        }
        if self.revisit
            && !entry.deferred
            && !self.links.is_known(meta.key())
            && !self.may_lead(entry, meta)?
        {
            self.links.defer(entry.clone());
            return Ok(Some(Started::Later));
        }
        match self.links.claim(meta.key(), entry) {
            Claimed::Lead => *key = Some(meta.key()),
            Claimed::Parked => return Ok(Some(Started::Later)),
            Claimed::Link(leader) => {
                if self.link_or_hold(entry, &leader, meta)? {
                    return Ok(Some(Started::Later));
                }
                let (size, mtime, crc) = (meta.size, meta.mtime, leader.crc);
                self.note(&Record::File { path: entry.hash(), size, mtime, crc });
                return Ok(Some(Started::Done(Outcome::Link)));
            }
        }
        Ok(None)
    }

    /// Makes an entry a further name of what was copied under another one; true when it has to wait for it.
    pub fn link_or_hold(&self, entry: &Entry, leader: &Leader, meta: &Meta) -> Result<bool, Failure> {
        if !self.options.ordered {
            return self.link_to(entry, leader).map(|()| false);
        }
        let Some(part) = self.make_link(entry, leader)? else { return Ok(false) };
        let (entry, meta, crc) = (entry.clone(), meta.clone(), leader.crc);
        self.keep_back(vec![Held { entry, key: None, part, meta, crc, outcome: Outcome::Link }]);
        Ok(true)
    }

    /// This name seems to be at the destination, so nothing need be moved to make it the leader.
    fn may_lead(&self, entry: &Entry, meta: &Meta) -> Result<bool, Failure> {
        let there = self.there(entry)?;
        Ok(there.is_some_and(|there| there.size == meta.size && there.mtime == meta.mtime))
    }

    /// Makes an entry a further name of what was copied under another one.
    pub fn link_to(&self, entry: &Entry, leader: &Leader) -> Result<(), Failure> {
        let Some(part) = self.make_link(entry, leader)? else { return Ok(()) };
        let named = self.dst.rename(&entry.dir.dst, &part, &entry.to);
        named.map_err(|error| self.drop_part(entry, &part, error))
    }

    /// Makes the name under a temporary one, unless it is there.
    fn make_link(&self, entry: &Entry, leader: &Leader) -> Result<Option<Vec<u8>>, Failure> {
        let dir = &entry.dir.dst;
        if self.dst.nature().links_are_copies {
            self.findings.warn(entry.path(), "the destination has no hard links; the name got a copy".into());
        }
        if !entry.dir.fresh {
            let first = self.dst.stat(At::Name(&leader.dir.dst, &leader.name)).map_err(Failure::target)?;
            // rename(2) between two names of one object does nothing, not even remove one.
            if self.replaced(entry, &first)?.is_some_and(|there| there.key() == first.key()) {
                return Ok(None);
            }
        }
        let part = self.part_name(entry);
        let link = || self.dst.make_link((&leader.dir.dst, &leader.name), (dir, &part));
        self.over_leftover(entry, &part, link)?;
        Ok(Some(part))
    }

    /// What has the entry's name at the destination.
    pub fn there(&self, entry: &Entry) -> Result<Option<Meta>, Failure> {
        if entry.dir.fresh {
            return Ok(None);
        }
        match self.dst.stat(At::Name(&entry.dir.dst, &entry.to)) {
            Ok(meta) => Ok(Some(meta)),
            Err(error) if error.errno == Errno::ENOENT => Ok(None),
            Err(error) => Err(Failure::target(error)),
        }
    }

    /// Makes something under a temporary name; what a killed run left there goes first.
    pub fn over_leftover<T>(
        &self,
        entry: &Entry,
        part: &[u8],
        make: impl Fn() -> Result<T, EndError>,
    ) -> Result<T, Failure> {
        match make() {
            Err(error) if error.errno == Errno::EEXIST => {
                self.dst.unlink(&entry.dir.dst, part).map_err(Failure::target)?;
                make().map_err(Failure::target)
            }
            other => other.map_err(Failure::target),
        }
    }

    /// Removes a temporary name after a failure; the failure.
    pub fn drop_part(&self, entry: &Entry, part: &[u8], error: EndError) -> Failure {
        // The first error is the one to tell; a rerun removes the file.
        let _ = self.dst.unlink(&entry.dir.dst, part);
        Failure::target(error)
    }

    /// The checksum (0 when it was not needed) of a destination file that is the same
    /// already, with its attributes brought up to date.
    fn current(
        &self,
        worker: &mut Worker,
        entry: &Entry,
        src: &FileRef,
        meta: &Meta,
        there: &Meta,
    ) -> Result<Option<u32>, Failure> {
        let alike = there.kind == FileKind::Regular && there.size == meta.size && there.mtime == meta.mtime;
        if !alike || self.is_wrongly_shared(meta, there) {
            return Ok(None);
        }
        let known = self.journal.past.has_file(entry.hash(), meta.size, meta.mtime);
        let mut crc = 0;
        if !known && !self.options.trust_mtime {
            let Some(sum) = self.same_content(worker, entry, src, meta, there.is_dense())? else {
                return Ok(None);
            };
            crc = sum;
        }
        self.refresh(entry, src, meta, there, known)?;
        if !known {
            self.note(&Record::File { path: entry.hash(), size: meta.size, mtime: meta.mtime, crc });
        }
        Ok(Some(crc))
    }

    /// A name that the destination shares with a file the source keeps apart is made anew. Not by a
    /// move: a run of it that was killed may have removed the other names of the source already.
    pub fn is_wrongly_shared(&self, meta: &Meta, there: &Meta) -> bool {
        there.nlink > 1 && meta.nlink == 1 && !self.is_move()
    }

    fn same_content(
        &self,
        worker: &mut Worker,
        entry: &Entry,
        src: &FileRef,
        meta: &Meta,
        dense: bool,
    ) -> Result<Option<u32>, Failure> {
        // What cannot be read there is no copy; writing it anew will tell if that fails, too.
        let Ok(dst) = self.dst.open_read(&entry.dir.dst, &entry.to) else { return Ok(None) };
        let theirs = match self.read_back(&dst, 0..meta.size, dense, worker.buffer()) {
            Ok(crc) => crc,
            Err(Failure::Cancelled) => return Err(Failure::Cancelled),
            Err(_) => return Ok(None),
        };
        let ours =
            self.scan(self.source(src, meta.is_dense()), 0..meta.size, worker.buffer(), |_, _, _| Ok(()))?;
        self.check_source(src, meta)?;
        Ok((ours == theirs).then_some(ours))
    }

    fn refresh(
        &self,
        entry: &Entry,
        src: &FileRef,
        meta: &Meta,
        there: &Meta,
        known: bool,
    ) -> Result<(), Failure> {
        let wanted = self.wanted_meta(meta);
        let owner_off = wanted.owner.is_some_and(|owner| owner != (there.uid, there.gid));
        if known && !owner_off && wanted.mode == Some(there.mode) {
            return Ok(());
        }
        let to = At::Name(&entry.dir.dst, &entry.to);
        self.copy_attributes(&|| entry.path(), At::File(src), to, meta)
    }

    fn write_small(
        &self,
        worker: &mut Worker,
        entry: &Entry,
        key: Option<Key>,
        src: FileRef,
        meta: Meta,
    ) -> Result<Finished, Failure> {
        let part = self.part_name(entry);
        let dst = self.over_leftover(entry, &part, || self.dst.create(&entry.dir.dst, &part))?;
        match self.fill_small(worker, entry, &src, &dst, &meta) {
            Ok(crc) => {
                let len = meta.size;
                Ok(Finished { entry: entry.clone(), key, src, dst, part, meta, len, crc })
            }
            Err(failure) => {
                let _ = self.dst.unlink(&entry.dir.dst, &part);
                Err(failure)
            }
        }
    }

    fn fill_small(
        &self,
        worker: &mut Worker,
        entry: &Entry,
        src: &FileRef,
        dst: &FileRef,
        meta: &Meta,
    ) -> Result<u32, Failure> {
        if !meta.is_dense() {
            self.dst.truncate(dst, meta.size).map_err(Failure::target)?;
        }
        let input = self.source(src, meta.is_dense());
        let to = Output { file: dst, check: self.checks_at_once(&entry.dir), turn: None };
        let crc = self.copy_range(input, to, 0..meta.size, worker.small_buffer())?;
        self.copy_attributes(&|| entry.path(), At::File(src), At::File(dst), meta)?;
        Ok(crc)
    }

    /// Makes the worker's written files durable, verifies them and gives them their names.
    pub fn commit(&self, worker: &mut Worker) {
        let batch = std::mem::take(&mut worker.batch);
        worker.batch_bytes = 0;
        let files: Vec<&FileRef> = batch.iter().map(|f| &f.dst).collect();
        let synced = self.dst.fsync_many(&files);
        for (finished, synced) in batch.iter().zip(synced) {
            let done = synced.map_err(Failure::target).and_then(|()| self.commit_one(worker, finished));
            let entry = finished.entry.clone();
            if let Err(failure) = done {
                let _ = self.dst.unlink(&entry.dir.dst, &finished.part);
                self.give_up(entry, finished.key, failure);
            }
        }
    }

    fn commit_one(&self, worker: &mut Worker, file: &Finished) -> Result<(), Failure> {
        let meta = &file.meta;
        if self.checks_later(&file.entry.dir) {
            let dense = meta.stored >= file.len;
            let crc = self.read_back(&file.dst, 0..file.len, dense, worker.buffer())?;
            if crc != file.crc {
                return Err(Failure::Mismatch);
            }
        }
        self.seal(&file.entry, &file.src, &file.dst, &file.part, meta)?;
        self.named_or_held(&file.entry, file.key, &file.part, meta, (file.len, file.crc));
        Ok(())
    }

    /// The last steps of any file: the source is still the same, the times are right, and
    /// the final name appears, unless it has to wait.
    pub fn seal(
        &self,
        entry: &Entry,
        src: &FileRef,
        dst: &FileRef,
        part: &[u8],
        meta: &Meta,
    ) -> Result<(), Failure> {
        if self.checks_later(&entry.dir) && self.dst.reads_touch_atime() {
            let times = SetMeta { times: Some((meta.atime, meta.mtime)), ..SetMeta::default() };
            self.dst.set_meta(At::File(dst), &times).map_err(Failure::target)?;
        }
        self.check_source(src, meta)?;
        if self.options.ordered {
            return Ok(());
        }
        self.dst.rename(&entry.dir.dst, part, &entry.to).map_err(Failure::target)
    }

    pub fn check_source(&self, src: &FileRef, meta: &Meta) -> Result<(), Failure> {
        let now = self.src.stat(At::File(src)).map_err(Failure::source)?;
        if meta.unchanged(&now) { Ok(()) } else { Err(Failure::Changed) }
    }

    /// Drops what was not finished when the copy was cancelled. Small files are copied anew
    /// in a rerun, so their temporary files are of no use.
    pub fn discard(&self, worker: &mut Worker) {
        for finished in worker.batch.drain(..) {
            let _ = self.dst.unlink(&finished.entry.dir.dst, &finished.part);
        }
    }
}
