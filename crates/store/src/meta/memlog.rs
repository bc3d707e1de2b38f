//! Tables in memory behind a write-ahead log, with snapshots.
//!
//! What stands on disk, and why a crash at any call leaves it readable:
//! `docs/formats/02-metadata-log.md`. The numbers (§) in comments are its sections.

use super::append::Ahead;
use super::frame::{self, HEADER_LEN, LOG_MAGIC, PREFIX_LEN, Record, RecordReader, SNAP_MAGIC};
use super::generation::{DIR, Found, log_name, snap_name, temp_name};
use super::room::{self, KeptBack, SPARE_MIN};
use super::tables::Tables;
use crate::error::{StoreError, StoreErrorKind};
use std::fmt;
use std::io;
use tidepool_env::{Disk, DiskFile, OpenMode};
use tidepool_fs_state::{MetaStore, MetaView};
use tidepool_types::{Ino, TxnId};
use tidepool_wire::Field;
use tidepool_wire::record::{Dentry, DirPart, Inode, Mutation, Outcome};
use tidepool_wire::tail::{Tail, judge};

/// A log shorter than this is never worth a compaction, in bytes.
pub const COMPACT_LOG_MIN: u64 = 64 << 20;
/// After so many bytes of a log the last mark is written again.
const MARK_EVERY: u64 = 4096;
/// Bytes of a log that no mutation takes, for one batch: its frame, and a mark.
const FRAMES_LEN: u64 = 64;
/// Bytes of mutations in one record of a snapshot.
const SNAP_RECORD_LEN: usize = 1 << 20;

/// The last mark of a log.
#[derive(Clone, Copy, Debug)]
struct Marks {
    /// All before is durable.
    synced: u64,
    /// Where the mark ends.
    end: u64,
}

impl Marks {
    /// Of a log that was just made: it is made durable with its header.
    const NEW: Marks = Marks { synced: HEADER_LEN, end: HEADER_LEN };
}

/// The end of a log that a power failure had left with holes, and that was cut off.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unwritten {
    /// Name of the log.
    pub file: String,
    /// Where it was cut.
    pub at: u64,
    /// Bytes cut off.
    pub bytes: u64,
}

impl fmt::Display for Unwritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the last {} bytes of {}, from byte {}, were never synced and had not all been written when the power failed; they are cut off, and changes of the last moments with them",
            self.bytes, self.file, self.at
        )
    }
}

/// The default metadata store.
pub struct MemLogStore<D: Disk> {
    disk: D,
    tables: Tables,
    generation: u64,
    log: D::File,
    ahead: Ahead,
    /// Blocks of the log for what makes the tables smaller, and for the next snapshot.
    kept: KeptBack,
    /// Where the next record goes; everything before is valid.
    log_len: u64,
    /// What the log says of its durability; none in a log of a version without marks.
    marks: Option<Marks>,
    unwritten: Option<Unwritten>,
    snap_len: u64,
    compact_log_min: u64,
    /// Why nothing can be committed until a compaction has written everything anew.
    broken: Option<String>,
    /// A sync failed: the kernel may have dropped what it could not write, and the next
    /// sync would not tell. Only a new generation makes the state durable again.
    sync_failed: bool,
    /// Names were changed since the directory was last synced.
    names_unsynced: bool,
    scratch: Vec<u8>,
}

impl<D: Disk> MemLogStore<D> {
    /// Opens the store in the root of `disk`, or makes an empty one there.
    pub fn open(disk: D) -> Result<MemLogStore<D>, StoreError> {
        let found = Found::scan(&disk)?;
        let generation = found.snaps.iter().copied().max().unwrap_or(0);
        if let (0, Some(log)) = (generation, found.logs.iter().max())
            && !found.logs.contains(&0)
        {
            let lost =
                StoreError::new(StoreErrorKind::Corrupt, "open the metadata store", "the file is missing");
            return Err(lost.in_file(snap_name(*log)));
        }
        let mut tables = Tables::default();
        let snap_len = match found.snaps.contains(&generation) {
            true => load_snapshot(&disk, generation, &mut tables)?,
            false => 0,
        };
        let log = match found.logs.contains(&generation) {
            true => load_log(&disk, generation, snap_len == 0, &mut tables)?,
            false if snap_len == 0 => Loaded::new(create_log(&disk, generation)?),
            false => {
                let lost = StoreError::new(
                    StoreErrorKind::Corrupt,
                    "open the metadata store",
                    "the file is missing",
                );
                return Err(lost.in_file(log_name(generation)));
            }
        };
        remove_all(&disk, &found.stale(generation))?;
        let mut store = MemLogStore {
            disk,
            tables,
            generation,
            log: log.file,
            ahead: Ahead::default(),
            kept: KeptBack::default(),
            log_len: log.end,
            marks: log.marks,
            unwritten: log.unwritten,
            snap_len,
            compact_log_min: COMPACT_LOG_MIN,
            broken: None,
            sync_failed: false,
            // Whoever ran before may have died between a change of names and its sync.
            names_unsynced: true,
            scratch: Vec::new(),
        };
        // What a full disk has not is missing for what makes the tables larger, which then says so.
        let _ = store.keep_back(0);
        Ok(store)
    }

    /// Replaces [`COMPACT_LOG_MIN`], for tests and small disks.
    pub fn set_compact_log_min(&mut self, bytes: u64) {
        self.compact_log_min = bytes;
    }

    /// Bytes on disk: log and snapshot.
    pub fn disk_len(&self) -> u64 {
        self.log_len + self.snap_len
    }

    /// What a power failure had cost, if the log was found with holes in it.
    pub fn unwritten(&self) -> Option<&Unwritten> {
        self.unwritten.as_ref()
    }

    /// Bytes behind the log that the tables need to become smaller, however large they are: a snapshot of them, and as many
    /// records as make one worth it.
    fn spare(&self) -> u64 {
        self.tables.len() + self.step()
    }

    /// With so much to give back, a full disk is worth a compaction.
    fn step(&self) -> u64 {
        SPARE_MIN.max(self.tables.len() / 8)
    }

    /// Has room for a record and all that may follow it.
    fn keep_back(&mut self, record: u64) -> io::Result<()> {
        let end = self.log_len + record + self.spare();
        self.kept.reach(&self.log, (self.log_len, end), || free(&self.disk))
    }

    /// Refuses what makes the tables larger where the disk has no room for what would make them smaller.
    fn check_room(&mut self, batch: &[Mutation]) -> Result<(), StoreError> {
        let record = FRAMES_LEN + batch.iter().map(room::of).sum::<u64>();
        if self.keep_back(record).is_ok() {
            return Ok(());
        }
        self.compact_if_full();
        match self.keep_back(record) {
            Err(full) if room::grows(self, batch) => {
                let error = StoreError::io("keep room for removals", &full);
                Err(error.in_file(log_name(self.generation)))
            }
            _ => Ok(()),
        }
    }

    /// On a full disk: gives back what is worth it, where a snapshot has room.
    fn compact_if_full(&mut self) {
        let gives = (self.log_len + self.snap_len).saturating_sub(self.tables.len());
        let free = self.disk.space().map_or(0, |space| space.free);
        if gives >= self.step() / 2
            && free + self.kept.left(self.log_len) >= self.tables.len() + self.step() / 4
        {
            // Without it the batch takes what there is, or fails and says why.
            let _ = self.rotate();
        }
    }

    /// Gives back the blocks behind the log.
    fn release(&mut self) {
        if self.kept.release() | self.ahead.end() {
            // The next start does it otherwise.
            let _ = self.log.set_len(self.log_len);
        }
    }

    fn append(&mut self, batch: &[Mutation]) -> Result<(), StoreError> {
        if let Some(why) = &self.broken {
            return Err(StoreError::new(StoreErrorKind::Broken, "commit", why.clone()));
        }
        self.scratch.clear();
        // Also where what was synced ends within a page that is damaged, a page behind it says so.
        let marked = self.marks.filter(|marks| self.log_len >= marks.end + MARK_EVERY);
        if let Some(marks) = marked {
            frame::put_mark(marks.synced, self.log_len, &mut self.scratch)?;
        }
        let end = self.log_len + self.scratch.len() as u64;
        frame::put_record(batch, end, &mut self.scratch)?;
        self.append_scratch()?;
        if let Some(marks) = marked {
            self.marks = Some(Marks { end, ..marks });
        }
        Ok(())
    }

    fn append_scratch(&mut self) -> Result<(), StoreError> {
        match self.ahead.append(&self.log, &self.scratch, self.log_len) {
            Ok(()) => {
                self.log_len += self.scratch.len() as u64;
                Ok(())
            }
            Err(error) => Err(self.undo_append(StoreError::io("append to the metadata log", &error))),
        }
    }

    /// Cuts off what a failed write may have left, lest it stand before the next record.
    fn undo_append(&mut self, error: StoreError) -> StoreError {
        let name = log_name(self.generation);
        self.ahead.end();
        self.kept.release();
        if let Err(cut) = self.log.set_len(self.log_len) {
            self.broken = Some(format!(
                "appending to {name} failed ({}) and so did cutting it back to {} bytes ({cut})",
                error.detail, self.log_len
            ));
        }
        error.in_file(name).at(self.log_len)
    }

    fn sync_log(&mut self) -> Result<(), StoreError> {
        if self.sync_failed {
            return self.rotate();
        }
        if let Err(error) = self.log.sync() {
            self.sync_failed = true;
            return Err(StoreError::io("sync the metadata log", &error).in_file(log_name(self.generation)));
        }
        self.sync_names()?;
        self.mark();
        Ok(())
    }

    /// Says in the log that all before is durable: what is missing there from now on is damage, and what is missing behind may never have
    /// been written (§5).
    fn mark(&mut self) {
        let synced = self.log_len;
        if self.broken.is_some() || self.marks.is_none_or(|marks| marks.end == synced) {
            return;
        }
        self.scratch.clear();
        let put = frame::put_mark(synced, synced, &mut self.scratch);
        // Without it all is as durable as it was; the next sync makes another.
        if put.and_then(|()| self.append_scratch()).is_ok() {
            self.marks = Some(Marks { synced, end: self.log_len });
        }
    }

    fn sync_names(&mut self) -> Result<(), StoreError> {
        if self.names_unsynced {
            sync_dir(&self.disk)?;
            self.names_unsynced = false;
        }
        Ok(())
    }

    fn compaction_due(&self) -> bool {
        let worth = self.log_len > self.compact_log_min.max(2 * self.snap_len);
        worth || self.broken.is_some() || self.sync_failed
    }

    /// Writes everything anew as the next generation and drops this one (§6).
    fn rotate(&mut self) -> Result<(), StoreError> {
        let next = self.generation + 1;
        self.release();
        let snap_len = write_snapshot(&self.disk, next, &self.tables).inspect_err(|_| {
            // Only to give the room back now; the next start removes it otherwise.
            let _ = self.disk.remove(&temp_name(next));
        })?;
        let log = create_log(&self.disk, next)?;
        self.publish(next)?;
        // From here on the next start reads the new generation, so this process must use it too.
        let old = std::mem::replace(&mut self.generation, next);
        (self.log, self.ahead) = (log, Ahead::default());
        (self.log_len, self.snap_len) = (HEADER_LEN, snap_len);
        self.marks = Some(Marks::NEW);
        (self.broken, self.sync_failed) = (None, false);
        self.names_unsynced = true;
        self.sync_names()?;
        let stale = Found { snaps: vec![old], logs: vec![old], temps: Vec::new() }.stale(next);
        // Generation 0 has no snapshot.
        remove_all(&self.disk, if old == 0 { &stale[1..] } else { &stale })
    }

    /// Renames the snapshot to its final name: the moment the new generation takes over.
    fn publish(&mut self, next: u64) -> Result<(), StoreError> {
        let Err(error) = self.disk.rename(&temp_name(next), &snap_name(next)) else { return Ok(()) };
        let error = StoreError::io("rename the snapshot", &error).in_file(snap_name(next));
        // An error does not prove that nothing happened. To go on appending to the old log
        // below a new snapshot would lose all of it at the next start.
        match self.disk.open(&snap_name(next), OpenMode::Existing) {
            Ok(_) => Ok(()),
            Err(absent) if absent.kind() == io::ErrorKind::NotFound => Err(error),
            Err(unknown) => {
                self.broken =
                    Some(format!("nobody can tell whether {} took over: {unknown}", snap_name(next)));
                Err(error)
            }
        }
    }
}

impl<D: Disk> Drop for MemLogStore<D> {
    /// Gives back what was allocated in advance.
    fn drop(&mut self) {
        self.release();
    }
}

/// Bytes that the disk has; none where it cannot tell.
fn free<D: Disk>(disk: &D) -> u64 {
    disk.space().map_or(0, |space| space.free)
}

/// Reads a snapshot into `tables`; returns its length.
fn load_snapshot<D: Disk>(disk: &D, generation: u64, tables: &mut Tables) -> Result<u64, StoreError> {
    let name = snap_name(generation);
    let result = open_file(disk, &name).and_then(|file| {
        let mut reader = RecordReader::new(&file)?;
        frame::check_header(SNAP_MAGIC, reader.bytes(0, HEADER_LEN as usize)?)?;
        let mut at = HEADER_LEN;
        loop {
            match reader.record(at)? {
                Record::Batch { batch, end } if batch.is_empty() => return snapshot_end(&reader, end),
                Record::Batch { batch, end } => {
                    batch.into_iter().for_each(|mutation| tables.apply(mutation));
                    at = end;
                }
                Record::Mark { .. } => return Err(frame::corrupt(at, "a mark in a snapshot")),
                Record::End => return Err(frame::corrupt(at, "the snapshot ends without its last record")),
                Record::Bad(why) => return Err(frame::corrupt(at, why)),
            }
        }
    });
    result.map_err(|error| error.in_file(name))
}

fn snapshot_end<F: DiskFile>(reader: &RecordReader<'_, F>, end: u64) -> Result<u64, StoreError> {
    match end == reader.len() {
        true => Ok(end),
        false => Err(frame::corrupt(end, "bytes follow the last record of the snapshot")),
    }
}

/// A log that can be appended to.
struct Loaded<F> {
    file: F,
    /// Where its records end.
    end: u64,
    marks: Option<Marks>,
    unwritten: Option<Unwritten>,
}

impl<F> Loaded<F> {
    /// One that was just made.
    fn new(file: F) -> Loaded<F> {
        Loaded { file, end: HEADER_LEN, marks: Some(Marks::NEW), unwritten: None }
    }
}

/// Replays a log into `tables` and cuts off what was not written whole.
///
/// `first`: this log has no snapshot below it, so a kill may have caught it half made.
fn load_log<D: Disk>(
    disk: &D,
    generation: u64,
    first: bool,
    tables: &mut Tables,
) -> Result<Loaded<D::File>, StoreError> {
    let name = log_name(generation);
    let file = open_file(disk, &name)?;
    let result = RecordReader::new(&file).and_then(|mut reader| {
        if first && half_made(&mut reader)? {
            return Ok(None);
        }
        let marks = frame::check_header(LOG_MAGIC, reader.bytes(0, HEADER_LEN as usize)?)?;
        let replayed = replay(&mut reader, marks, tables)?;
        let end = replayed.end;
        if end < reader.len() {
            // Synced: what stands behind the cut must not come back between records that are written there.
            let cut = file.set_len(end).and_then(|()| file.sync());
            cut.map_err(|e| StoreError::io("cut the torn tail", &e).at(end))?;
        }
        Ok(Some((marks, reader.len() - end, replayed)))
    });
    let Some((marks, bytes, replayed)) = result.map_err(|error| error.in_file(name.clone()))? else {
        return Ok(Loaded::new(create_log(disk, generation)?));
    };
    let unwritten = replayed.unwritten.then_some(Unwritten { file: name, at: replayed.end, bytes });
    Ok(Loaded { file, end: replayed.end, marks: marks.then_some(replayed.marks), unwritten })
}

/// Whether the file is a beginning of a header: nothing can have been committed to it yet.
fn half_made<F: DiskFile>(reader: &mut RecordReader<'_, F>) -> Result<bool, StoreError> {
    if reader.len() >= HEADER_LEN {
        return Ok(false);
    }
    let start = reader.bytes(0, HEADER_LEN as usize)?;
    // All zeros: a power failure kept the length but not the content.
    Ok(frame::header(LOG_MAGIC).starts_with(start) || start.iter().all(|byte| *byte == 0))
}

/// How far the records of a log go.
struct Replayed {
    end: u64,
    marks: Marks,
    /// Records that follow a hole are given up.
    unwritten: bool,
}

/// Applies all records up to the first place where none begins (§5).
fn replay<F: DiskFile>(
    reader: &mut RecordReader<'_, F>,
    marks: bool,
    tables: &mut Tables,
) -> Result<Replayed, StoreError> {
    let (mut at, mut marks_seen) = (HEADER_LEN, Marks::NEW);
    loop {
        match reader.record(at)? {
            Record::Batch { batch, end } => {
                batch.into_iter().for_each(|mutation| tables.apply(mutation));
                at = end;
            }
            Record::Mark { synced, end } => (at, marks_seen) = (end, Marks { synced, end }),
            Record::End => return Ok(Replayed { end: at, marks: marks_seen, unwritten: false }),
            Record::Bad(why) => {
                let unwritten = judge_end(reader, at, marks, why)?;
                return Ok(Replayed { end: at, marks: marks_seen, unwritten });
            }
        }
    }
}

/// Whether the log ends at `at` because pages behind were not written, and not because a record is cut short. Damage is an error.
fn judge_end<F: DiskFile>(
    reader: &mut RecordReader<'_, F>,
    at: u64,
    marks: bool,
    why: &str,
) -> Result<bool, StoreError> {
    let follows = reader.valid_after(at)?;
    let synced = match follows {
        Some(next) if marks => synced_behind(reader, next)?,
        // Without marks nobody can tell what was synced.
        _ => u64::MAX,
    };
    let gap = follows.map_or(Ok(&[][..]), |next| reader.bytes(at, (next - at) as usize))?;
    match (judge(at, follows, synced, gap), follows) {
        (Tail::Damaged, Some(next)) => {
            Err(frame::corrupt(at, format!("{why}, but a valid record follows at byte {next}")))
        }
        (tail, _) => Ok(tail == Tail::Unwritten),
    }
}

/// How far the log was durable, as its records from `next` on say.
fn synced_behind<F: DiskFile>(reader: &mut RecordReader<'_, F>, next: u64) -> Result<u64, StoreError> {
    let (mut from, mut farthest) = (Some(next), 0);
    while let Some(at) = from {
        from = match reader.record(at)? {
            Record::Mark { synced, end } => {
                farthest = farthest.max(synced);
                Some(end)
            }
            Record::Batch { end, .. } => Some(end),
            Record::End => None,
            Record::Bad(_) => reader.valid_after(at)?,
        };
    }
    Ok(farthest)
}

/// Makes the log of a generation, durable with its name.
pub(super) fn create_log<D: Disk>(disk: &D, generation: u64) -> Result<D::File, StoreError> {
    let name = log_name(generation);
    let make = || {
        let file = disk.open(&name, OpenMode::Create)?;
        file.set_len(0)?;
        file.write_at(&frame::header(LOG_MAGIC), 0)?;
        file.sync()?;
        disk.sync_dir(DIR)?;
        Ok(file)
    };
    make().map_err(|e: io::Error| StoreError::io("create the metadata log", &e).in_file(name.clone()))
}

/// Writes and syncs a snapshot under its temporary name; returns its length.
pub(super) fn write_snapshot<D: Disk>(disk: &D, generation: u64, tables: &Tables) -> Result<u64, StoreError> {
    let name = temp_name(generation);
    let failed = |error: io::Error| StoreError::io("write the snapshot", &error).in_file(name.clone());
    let file = disk.open(&name, OpenMode::Create).map_err(failed)?;
    file.set_len(0).map_err(failed)?;
    let mut writer =
        SnapWriter { file: &file, at: 0, buf: frame::header(SNAP_MAGIC).to_vec(), start: 0, count: 0 };
    writer.begin();
    for mutation in tables.mutations() {
        writer.put(&mutation).map_err(|error| error.in_file(name.clone()))?;
    }
    let len = writer.finish().map_err(|error| error.in_file(name.clone()))?;
    file.sync().map_err(failed)?;
    Ok(len)
}

/// Collects mutations in records of about [`SNAP_RECORD_LEN`].
struct SnapWriter<'a, F> {
    file: &'a F,
    /// Where `buf` goes.
    at: u64,
    buf: Vec<u8>,
    /// Start of the open record in `buf`.
    start: usize,
    /// Mutations in the open record.
    count: u32,
}

impl<F: DiskFile> SnapWriter<'_, F> {
    fn begin(&mut self) {
        self.start = self.buf.len();
        self.count = 0;
        self.buf.extend_from_slice(&[0; PREFIX_LEN]);
        0u32.put(&mut self.buf);
    }

    fn put(&mut self, mutation: &Mutation) -> Result<(), StoreError> {
        mutation.put(&mut self.buf);
        self.count += 1;
        if self.buf.len() - self.start >= SNAP_RECORD_LEN {
            self.flush()?;
            self.begin();
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        let count_at = self.start + PREFIX_LEN;
        self.buf[count_at..count_at + 4].copy_from_slice(&self.count.to_le_bytes());
        frame::seal_record(&mut self.buf, self.start, self.at + self.start as u64)?;
        self.file
            .write_at(&self.buf, self.at)
            .map_err(|e| StoreError::io("write the snapshot", &e).at(self.at))?;
        self.at += self.buf.len() as u64;
        self.buf.clear();
        Ok(())
    }

    /// Ends with a record of no mutations: without it a snapshot is not complete.
    fn finish(mut self) -> Result<u64, StoreError> {
        if self.count > 0 {
            self.flush()?;
            self.begin();
        }
        self.flush()?;
        Ok(self.at)
    }
}

pub(super) fn open_file<D: Disk>(disk: &D, name: &str) -> Result<D::File, StoreError> {
    let opened = disk.open(name, OpenMode::Existing);
    opened.map_err(|e| StoreError::io("open the metadata store", &e).in_file(name))
}

fn sync_dir<D: Disk>(disk: &D) -> Result<(), StoreError> {
    disk.sync_dir(DIR).map_err(|e| StoreError::io("sync the directory of the metadata store", &e))
}

fn remove_all<D: Disk>(disk: &D, names: &[String]) -> Result<(), StoreError> {
    for name in names {
        match disk.remove(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::io("remove an old generation", &error).in_file(name.clone()));
            }
            _ => {}
        }
    }
    Ok(())
}

impl<D: Disk> MetaView for MemLogStore<D> {
    fn inode(&self, ino: Ino) -> Option<Inode> {
        self.tables.inodes.get(ino.0).map(|inode| (**inode).clone())
    }

    fn dentry(&self, parent: Ino, name: &[u8]) -> Option<Dentry> {
        self.tables.dentry(parent, name).cloned()
    }

    fn dir_part(&self, dir: Ino) -> Option<DirPart> {
        self.tables.parts.get(dir.0).copied()
    }

    fn list(&self, dir: Ino, after: Option<&[u8]>, max: usize) -> Vec<(Box<[u8]>, Dentry)> {
        self.tables.list(dir, after, max)
    }

    fn outcome(&self, txn: TxnId) -> Option<Outcome> {
        self.tables.outcomes.get(&txn).copied()
    }

    fn outcomes(&self, max: usize) -> Vec<(TxnId, Outcome)> {
        self.tables.outcomes.iter().take(max).map(|(txn, outcome)| (*txn, *outcome)).collect()
    }

    fn next_count(&self) -> u64 {
        self.tables.next_count
    }

    fn reaps(&self, max: usize) -> Vec<Ino> {
        self.tables.reaps.iter().take(max).copied().collect()
    }

    fn inodes_after(&self, after: Option<Ino>, max: usize) -> Vec<Inode> {
        let page = self.tables.inodes.above(after.map(|after| after.0)).take(max);
        page.map(|(_, inode)| (**inode).clone()).collect()
    }

    fn dir_parts_after(&self, after: Option<Ino>, max: usize) -> Vec<(Ino, DirPart)> {
        let page = self.tables.parts.above(after.map(|after| after.0)).take(max);
        page.map(|(dir, part)| (Ino(dir), *part)).collect()
    }

    fn inode_count(&self) -> u64 {
        self.tables.inodes.len() as u64
    }
}

impl<D: Disk> MetaStore for MemLogStore<D> {
    fn commit(&mut self, batch: &[Mutation]) -> io::Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        self.check_room(batch)?;
        self.append(batch)?;
        batch.iter().cloned().for_each(|mutation| self.tables.apply(mutation));
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(self.sync_log()?)
    }

    fn compact(&mut self) -> io::Result<()> {
        if self.compaction_due() { Ok(self.rotate()?) } else { Ok(()) }
    }

    fn name(&self) -> &'static str {
        "memlog"
    }
}
