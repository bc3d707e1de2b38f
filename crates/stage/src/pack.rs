//! Small regular files, several at a time: each step is one call of an end for all of them,
//! which for an end that is far away is one exchange of messages.
//!
//! ```text
//! get ──▶ put (temporary name, durable, read back) ──▶ source still the same? ──▶ final name
//! ```
//! What does not fit (holes, sizes, names taken at the destination) goes on one by one.

use crate::end::{End, EndResult, Got, Meta, Name, Naming, Put, PutHow, SetMeta, Xattr};
use crate::job::{Job, Outcome, Worker, bump};
use crate::journal::Record;
use crate::links::Key;
use crate::ordered::Held;
use crate::report::Failure;
use crate::small::Started;
use crate::tree::Entry;
use tidepool_blocks::crc;
use tidepool_types::{Errno, FileKind};

/// Reasons to copy a file under a temporary name that was to get its own at once.
const ONE_BY_ONE: [Errno; 5] =
    [Errno::EEXIST, Errno::EOPNOTSUPP, Errno::EISDIR, Errno::EINVAL, Errno::ENOENT];

/// A file that was read.
pub(crate) struct Read {
    entry: Entry,
    key: Option<Key>,
    part: Vec<u8>,
    meta: Meta,
    data: Vec<u8>,
    crc: u32,
    set: SetMeta,
    xattrs: Vec<Xattr>,
    /// Identity of what was made of it, if the destination told.
    made: Option<(u64, u64)>,
}

impl Read {
    fn part(&self) -> Name<'_> {
        Name { dir: &self.entry.dir.dst, name: &self.part }
    }

    /// Removes the temporary file after a failure.
    pub fn drop_part(&self, dst: &dyn End) {
        // The first error is the one to tell; a rerun removes the file.
        let _ = dst.unlink(&self.entry.dir.dst, &self.part);
    }

    fn held(self) -> Held {
        let Read { entry, key, part, meta, crc, .. } = self;
        let outcome = Outcome::Copied { size: meta.size, crc };
        Held { entry, key, part, meta, crc, outcome }
    }

    fn target(&self) -> Name<'_> {
        Name { dir: &self.entry.dir.dst, name: &self.entry.to }
    }
}

fn source_name(entry: &Entry) -> Name<'_> {
    Name { dir: &entry.dir.src, name: &entry.from }
}

/// The result for each, one by one; an end that returns fewer has lost them.
fn each<T>(results: Vec<EndResult<T>>) -> impl Iterator<Item = EndResult<T>> {
    let none = || Err(crate::EndError::new("answer", Errno::EPROTO));
    results.into_iter().chain(std::iter::repeat_with(none))
}

impl Job<'_> {
    /// Copies small regular files.
    pub fn pack(&self, worker: &mut Worker, entries: Vec<Entry>) {
        let (held, entries): (Vec<Entry>, Vec<Entry>) =
            entries.into_iter().partition(|entry| self.may_be_held(entry));
        held.into_iter().for_each(|entry| self.regular(worker, entry));
        let entries = self.new_ones(worker, entries);
        let files = self.admit_pack(self.read_pack(worker, entries));
        if files.is_empty() {
            return;
        }
        let at_once = |file: &Read| file.entry.dir.fresh && self.dst.names_at_once(&file.entry.dir.dst);
        if !self.options.ordered && self.src.gets_rechecked() && files.iter().all(at_once) {
            return self.write_named(files);
        }
        let waits = |file: &Read| self.dst.syncs_together(&file.entry.dir.dst);
        let together = self.is_tree() && files.iter().all(waits);
        let written = self.write_pack(files, together);
        let same = if self.src.gets_rechecked() { written } else { self.recheck_pack(written) };
        if together { self.hold(same) } else { self.name_pack(same) }
    }

    /// Writes files that appear under their names when they are whole.
    fn write_named(&self, files: Vec<Read>) {
        let puts: Vec<Put<'_>> = files
            .iter()
            .map(|f| Put { at: f.target(), data: &f.data, crc: f.crc, set: f.set, xattrs: &f.xattrs })
            .collect();
        let written = self.dst.put_named(&puts, PutHow { verify: self.options.verify, keys: false });
        drop(puts);
        let mut done = Vec::with_capacity(files.len());
        for (file, written) in files.into_iter().zip(each(written)) {
            match written {
                Ok(written) if written.intact => {
                    bump(&self.control.inner.bytes_copied, file.data.len() as u64);
                    self.warn_refused(&|| file.entry.path(), &written.refused);
                    done.push(file);
                }
                Ok(_) => self.give_up(file.entry, file.key, Failure::Mismatch),
                // The name is taken, or files have to have one: the next try is the usual way.
                Err(error) if ONE_BY_ONE.contains(&error.errno) => {
                    self.give_up(file.entry, file.key, Failure::Changed);
                }
                Err(error) => self.give_up(file.entry, file.key, Failure::target(error)),
            }
        }
        self.finish_pack(done);
    }

    /// Those that all limits leave room for.
    fn admit_pack(&self, files: Vec<Read>) -> Vec<Read> {
        let mut admitted = Vec::with_capacity(files.len());
        for file in files {
            match self.admit(file.data.len() as u64) {
                Ok(()) => admitted.push(file),
                Err(failure) => self.give_up(file.entry, file.key, failure),
            }
        }
        admitted
    }

    /// Those whose names are free at the destination; the others are dealt with.
    fn new_ones(&self, worker: &mut Worker, entries: Vec<Entry>) -> Vec<Entry> {
        let (mut new, old): (Vec<Entry>, Vec<Entry>) = entries.into_iter().partition(|e| e.dir.fresh);
        if old.is_empty() {
            return new;
        }
        let names: Vec<Name<'_>> = old.iter().map(|e| Name { dir: &e.dir.dst, name: &e.to }).collect();
        let there = self.dst.stat_files(&names);
        drop(names);
        let mut taken = Vec::new();
        for (entry, there) in old.into_iter().zip(each(there)) {
            match there {
                Ok(there) => taken.push((entry, there)),
                Err(error) if error.errno == Errno::ENOENT => new.push(entry),
                Err(error) => self.give_up(entry, None, Failure::target(error)),
            }
        }
        self.take_known(worker, taken);
        new
    }

    /// Skips what the journal knows to be finished; looks at the rest one by one.
    fn take_known(&self, worker: &mut Worker, taken: Vec<(Entry, Meta)>) {
        if !self.journal.resumed {
            return taken.into_iter().for_each(|(entry, _)| self.regular(worker, entry));
        }
        let names: Vec<Name<'_>> = taken.iter().map(|(entry, _)| source_name(entry)).collect();
        let metas = self.src.stat_files(&names);
        drop(names);
        for ((mut entry, there), meta) in taken.into_iter().zip(each(metas)) {
            match meta {
                Ok(meta) if self.is_finished(&entry, &meta, &there) => {
                    self.look(&mut entry, &meta);
                    self.finish(&entry, None, &Outcome::Skipped { size: meta.size, crc: 0 });
                }
                _ => self.regular(worker, entry),
            }
        }
    }

    /// An earlier run of this copy finished it, and nothing has changed since.
    fn is_finished(&self, entry: &Entry, meta: &Meta, there: &Meta) -> bool {
        let wanted = self.wanted_meta(meta);
        let single = meta.nlink == 1 && there.nlink == 1;
        let alike = |m: &Meta| (m.kind, m.size, m.mtime) == (FileKind::Regular, meta.size, meta.mtime);
        single
            && alike(meta)
            && alike(there)
            && self.journal.past.has_file(entry.hash(), meta.size, meta.mtime)
            && wanted.owner.is_none_or(|owner| owner == (there.uid, there.gid))
            && wanted.mode == Some(there.mode)
    }

    fn read_pack(&self, worker: &mut Worker, entries: Vec<Entry>) -> Vec<Read> {
        if entries.is_empty() || self.check_cancel().is_err() {
            return Vec::new();
        }
        let names: Vec<Name<'_>> = entries.iter().map(source_name).collect();
        let got = self.src.get_files(&names, &self.pack_limits);
        drop(names);
        let mut files = Vec::with_capacity(entries.len());
        for (entry, got) in entries.into_iter().zip(each(got)) {
            let mut key = None;
            match got.map_err(Failure::source).map(|got| self.take_got(worker, entry.clone(), got, &mut key))
            {
                Ok(Ok(file)) => files.extend(file),
                Ok(Err(failure)) | Err(failure) => self.give_up(entry, key, failure),
            }
        }
        files
    }

    /// What is to be written of a file that was read; `None` when it goes on elsewhere.
    fn take_got(
        &self,
        worker: &mut Worker,
        mut entry: Entry,
        got: Got,
        key: &mut Option<Key>,
    ) -> Result<Option<Read>, Failure> {
        let meta = got.meta;
        if meta.kind != FileKind::Regular {
            return Err(Failure::Changed);
        }
        let Some(content) = got.content else {
            self.see(&mut entry, meta.size);
            if meta.size > self.pack_limits.file_bytes {
                // Not known when it was listed; the other workers get their share.
                self.sched.again(vec![entry]);
            } else {
                self.regular(worker, entry);
            }
            return Ok(None);
        };
        self.look(&mut entry, &meta);
        match self.claim_link(&entry, &meta, key)? {
            None => {}
            Some(Started::Later) => return Ok(None),
            Some(Started::Done(outcome)) => {
                self.finish(&entry, None, &outcome);
                return Ok(None);
            }
        }
        if content.data.len() as u64 != meta.size {
            return Err(Failure::Changed);
        }
        let xattrs = self.wanted_xattrs(&|| entry.path(), content.xattrs)?;
        let (part, set) = (self.part_name(&entry), self.wanted_meta(&meta));
        let crc = crc::append(0, &content.data);
        Ok(Some(Read { entry, key: *key, part, meta, data: content.data, crc, set, xattrs, made: None }))
    }

    /// Writes files under temporary names; those that are there as they should be.
    fn write_pack(&self, files: Vec<Read>, unsynced: bool) -> Vec<Read> {
        let puts: Vec<Put<'_>> = files
            .iter()
            .map(|f| Put { at: f.part(), data: &f.data, crc: f.crc, set: f.set, xattrs: &f.xattrs })
            .collect();
        let how = PutHow { verify: self.options.verify, keys: false };
        let written =
            if unsynced { self.dst.put_unsynced(&puts, how) } else { self.dst.put_files(&puts, how) };
        drop(puts);
        let mut done = Vec::with_capacity(files.len());
        for (mut file, written) in files.into_iter().zip(each(written)) {
            bump(&self.control.inner.bytes_copied, file.data.len() as u64);
            // Nobody needs it any more.
            file.data = Vec::new();
            match written {
                Ok(written) if written.intact => {
                    self.warn_refused(&|| file.entry.path(), &written.refused);
                    file.made = written.key;
                    done.push(file);
                }
                Ok(_) => self.give_up(file.entry, file.key, Failure::Mismatch),
                Err(error) => self.give_up(file.entry, file.key, Failure::target(error)),
            }
        }
        done
    }

    /// Those whose sources are still what was read.
    fn recheck_pack(&self, files: Vec<Read>) -> Vec<Read> {
        let names: Vec<Name<'_>> = files.iter().map(|file| source_name(&file.entry)).collect();
        let now = self.src.stat_files(&names);
        drop(names);
        let mut same = Vec::with_capacity(files.len());
        for (file, now) in files.into_iter().zip(each(now)) {
            let failure = match now {
                Ok(now) if file.meta.unchanged(&now) => {
                    same.push(file);
                    continue;
                }
                // Gone or replaced: another try tells which.
                Ok(_) => Failure::Changed,
                Err(error) if error.errno == Errno::ENOENT => Failure::Changed,
                Err(error) => Failure::source(error),
            };
            self.abandon_part(file, failure);
        }
        same
    }

    pub fn abandon_part(&self, file: Read, failure: Failure) {
        file.drop_part(self.dst);
        self.give_up(file.entry, file.key, failure);
    }

    /// Gives durable files their final names.
    pub fn name_pack(&self, files: Vec<Read>) {
        if self.options.ordered {
            return self.keep_back(files.into_iter().map(Read::held).collect());
        }
        let namings: Vec<Naming<'_>> =
            files.iter().map(|file| Naming { at: file.part(), to: &file.entry.to, key: file.made }).collect();
        let named = self.dst.name_files(&namings);
        drop(namings);
        let mut done = Vec::with_capacity(files.len());
        for (file, named) in files.into_iter().zip(each(named)) {
            match named {
                Ok(()) => done.push(file),
                Err(error) => self.abandon_part(file, Failure::target(error)),
            }
        }
        self.finish_pack(done);
    }

    /// Notes files that are under their names.
    fn finish_pack(&self, done: Vec<Read>) {
        let record = |file: &Read| {
            let Read { entry, meta, crc, .. } = file;
            Record::File { path: entry.hash(), size: meta.size, mtime: meta.mtime, crc: *crc }
        };
        self.note_all(&done.iter().map(record).collect::<Vec<_>>());
        for Read { entry, key, meta, crc, .. } in done {
            self.finish(&entry, key, &Outcome::Copied { size: meta.size, crc });
        }
    }
}
