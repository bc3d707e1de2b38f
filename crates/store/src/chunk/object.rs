//! One object: its data file and its checksum file.
//!
//! The protocol of a write and why a kill leaves every block valid:
//! `docs/formats/03-chunk-store.md`. The numbers (§) in comments are its sections.

use super::sums::{self, BLOCK, Cover, ENTRY_LEN, Entry, HEADER_LEN, HOLE, Sums, Unfit, covers, entry_at};
use crate::error::{StoreError, StoreErrorKind};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;
use tidepool_env::{Disk, DiskFile, OpenMode, RealFile};
use tidepool_types::{BLOCK_SIZE, Errno, FILE_SIZE_MAX, Ino, TimeSpec};

const BLOCK64: u64 = BLOCK_SIZE as u64;
/// Entries fetched at once while checksums are scanned.
const SCAN_ENTRIES: u64 = 8192;
/// Blocks read at once while data is scrubbed.
const SCRUB_BLOCKS: u64 = 256;
/// Bytes copied at once when an object moves: whole blocks.
const COPY_BYTES: usize = 256 * BLOCK;
/// How often a piece is read again that does not match its entries, and how long the pause is.
const COPY_TRIES: u32 = 20;
const COPY_PAUSE: Duration = Duration::from_millis(5);

/// A block whose content does not match its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadBlock {
    /// Byte in the object where the block starts.
    pub offset: u64,
    /// Checksum that the content should have; 0: a hole, all zeros.
    pub expected: u32,
    pub found: u32,
}

/// File names of an object.
pub(super) struct Names {
    pub dir: String,
    pub data: String,
    pub sums: String,
}

impl Names {
    pub fn of(ino: Ino) -> Names {
        let dir = dir_name(ino.0 as u8);
        let data = format!("{dir}/{:016x}", ino.0);
        let sums = format!("{data}.sum");
        Names { dir, data, sums }
    }

    /// Where an object is copied to while somebody else still may write to its own files.
    pub fn moved(ino: Ino) -> Names {
        let Names { dir, data, .. } = Names::of(ino);
        Names { dir, sums: format!("{data}.moved.sum"), data: format!("{data}.moved") }
    }

    /// The note that an object is lent.
    pub fn note(ino: Ino) -> String {
        format!("{}.lent", Names::of(ino).data)
    }

    /// The object that a name in a directory is the note of.
    pub fn noted(name: &str) -> Option<Ino> {
        let ino = Ino(u64::from_str_radix(name.strip_suffix(".lent")?, 16).ok()?);
        Names::note(ino).ends_with(&format!("/{name}")).then_some(ino)
    }

    pub fn files(&self) -> [&str; 2] {
        [&self.data, &self.sums]
    }
}

pub(super) fn dir_name(shard: u8) -> String {
    format!("data/{shard:02x}")
}

/// What changes under the lock of an object.
pub(super) struct State {
    /// Length of the data file.
    data_len: u64,
    /// Entries that the checksum file has room for.
    sum_blocks: u64,
    /// Others write to the files: what is known of their lengths is old, and nothing may be changed.
    lent: bool,
}

impl State {
    pub fn is_lent(&self) -> bool {
        self.lent
    }

    pub fn set_lent(&mut self, lent: bool) {
        self.lent = lent;
    }

    /// Length of the data file, and entries that the checksum file has room for.
    pub fn lengths(&self) -> (u64, u64) {
        (self.data_len, self.sum_blocks)
    }
}

/// An error, and by how much the number of stored blocks changed all the same.
pub(super) struct Failed {
    pub error: StoreError,
    pub delta: i64,
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Failed {
        Failed { error, delta: 0 }
    }
}

pub(super) struct Object<F> {
    pub ino: Ino,
    data: F,
    sums: F,
    state: RwLock<State>,
    /// Both files are removed; whoever waited for the lock must open the object anew.
    gone: AtomicBool,
}

impl<F> Object<F> {
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// `None` when the object was dropped in the meantime, an error while it is lent.
    pub fn lock_read(&self) -> Result<Option<RwLockReadGuard<'_, State>>, StoreError> {
        let state = self.state.read().expect("no thread panics while it holds an object");
        self.refuse_lent(&state)?;
        Ok((!self.is_gone()).then_some(state))
    }

    /// `None` when the object was dropped in the meantime, an error while it is lent.
    pub fn lock_write(&self) -> Result<Option<RwLockWriteGuard<'_, State>>, StoreError> {
        let state = self.lock_lent();
        self.refuse_lent(&state)?;
        Ok((!self.is_gone()).then_some(state))
    }

    /// For who lends it and takes it back.
    pub fn lock_lent(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().expect("no thread panics while it holds an object")
    }

    fn refuse_lent(&self, state: &State) -> Result<(), StoreError> {
        match state.lent {
            true => Err(StoreError::new(StoreErrorKind::Lent, "use the data", "").of(self.ino)),
            false => Ok(()),
        }
    }
}

impl<F: DiskFile> Object<F> {
    /// Opens an object; `None` when it is not here.
    pub fn open<D: Disk<File = F>>(disk: &D, ino: Ino) -> Result<Option<Object<F>>, StoreError> {
        let names = Names::of(ino);
        let data = match disk.open(&names.data, OpenMode::Existing) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|e| StoreError::io("open the data", &e).of(ino).in_file(&names.data))?,
        };
        let sums = open_sums(disk, ino, &names.sums)?;
        Object::with_files(ino, data, sums).map(Some)
    }

    /// Makes an object that is not here. Its data file comes last: without it there is no
    /// object, and a checksum file that a kill left alone is emptied here.
    pub fn create<D: Disk<File = F>>(disk: &D, ino: Ino) -> Result<Object<F>, StoreError> {
        Object::create_as(disk, ino, &Names::of(ino))
    }

    fn create_as<D: Disk<File = F>>(disk: &D, ino: Ino, names: &Names) -> Result<Object<F>, StoreError> {
        let make = || {
            let sums = match disk.open(&names.sums, OpenMode::Create) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    disk.create_dir_all(&names.dir)?;
                    disk.open(&names.sums, OpenMode::Create)?
                }
                other => other?,
            };
            sums.set_len(0)?;
            sums.write_at(&sums::header(), 0)?;
            Ok((disk.open(&names.data, OpenMode::CreateNew)?, sums))
        };
        let (data, sums) = make()
            .map_err(|e: io::Error| StoreError::io("create the data", &e).of(ino).in_file(&names.data))?;
        Object::with_files(ino, data, sums)
    }

    fn with_files(ino: Ino, data: F, sums: F) -> Result<Object<F>, StoreError> {
        let (data_len, sum_blocks) = lengths(ino, &data, &sums)?;
        let state = RwLock::new(State { data_len, sum_blocks, lent: false });
        Ok(Object { ino, data, sums, state, gone: AtomicBool::new(false) })
    }

    fn failed(&self, operation: &'static str, error: &io::Error) -> StoreError {
        StoreError::io(operation, error).of(self.ino)
    }

    fn corrupt(&self, operation: &'static str, block: u64) -> StoreError {
        let detail = "the block does not match its checksum";
        StoreError::new(StoreErrorKind::Corrupt, operation, detail)
            .of(self.ino)
            .at(block * BLOCK64)
            .in_file(Names::of(self.ino).data)
    }

    // --- checksums ---

    fn read_sums(&self, first: u64, count: u64) -> Result<Sums, StoreError> {
        let len = (count * ENTRY_LEN) as usize;
        let mut bytes = Vec::with_capacity(len);
        let read = self.sums.read_append(&mut bytes, len, entry_at(first));
        read.map_err(|e| self.failed("read the checksums", &e))?;
        // Beyond the end of the file nothing was ever written.
        bytes.resize(len, 0);
        Ok(Sums { first, bytes })
    }

    fn write_sums(&self, state: &mut State, sums: &Sums) -> Result<(), StoreError> {
        let written = self.sums.write_at(&sums.bytes, entry_at(sums.first));
        // Even a failed write may have made the file longer.
        state.sum_blocks = state.sum_blocks.max(sums.first + sums.blocks());
        written.map_err(|e| self.failed("write the checksums", &e))
    }

    /// Hands the entries from block `from` to `visit`, in pieces, without the holes of the
    /// checksum file, until it returns false.
    fn scan_sums(
        &self,
        state: &State,
        from: u64,
        mut visit: impl FnMut(&Sums) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        let mut block = from;
        while let Some(next) = self.next_sums(state, block)? {
            let sums = self.read_sums(next, SCAN_ENTRIES.min(state.sum_blocks - next))?;
            block = next + sums.blocks();
            if !visit(&sums)? {
                break;
            }
        }
        Ok(())
    }

    /// First block at or after `block` whose entry may be anything but zeros.
    fn next_sums(&self, state: &State, block: u64) -> Result<Option<u64>, StoreError> {
        if block >= state.sum_blocks {
            return Ok(None);
        }
        let at = self.sums.next_data(entry_at(block)).map_err(|e| self.failed("scan the checksums", &e))?;
        let next = at.map(|at| at.saturating_sub(HEADER_LEN) / ENTRY_LEN);
        Ok(next.filter(|next| *next < state.sum_blocks))
    }

    /// The next entries at or after `block` that may be anything but zeros, below `end`.
    fn sums_within(&self, state: &State, block: u64, end: u64) -> Result<Option<Sums>, StoreError> {
        let Some(next) = self.next_sums(state, block)?.filter(|next| *next < end) else { return Ok(None) };
        self.read_sums(next, SCAN_ENTRIES.min(state.sum_blocks.min(end) - next)).map(Some)
    }

    /// Stored blocks.
    pub fn blocks(&self, state: &State) -> Result<u64, StoreError> {
        let mut total = 0;
        self.scan_sums(state, 0, |sums| {
            total += sums.stored();
            Ok(true)
        })?;
        Ok(total)
    }

    /// Blocks of a range that are not stored.
    pub fn missing_blocks(&self, state: &State, offset: u64, len: usize) -> Result<u64, StoreError> {
        let (first, count) = (offset / BLOCK64, blocks_touched(offset, len));
        let known = count.min(state.sum_blocks.saturating_sub(first));
        let stored = if known == 0 { 0 } else { self.read_sums(first, known)?.stored() };
        Ok(count - stored)
    }

    /// Stored ranges from the block that holds `from`, at most `max`.
    pub fn extents(&self, state: &State, from: u64, max: usize) -> Result<Vec<(u64, u64)>, StoreError> {
        self.ranges(state, from, max, |_, entry| Ok(entry.is_stored()))
    }

    /// The same without blocks that hold nothing: their dropping was begun, or their first writing, and not finished. What is
    /// damaged holds something: whoever reads it is told.
    pub fn solid_extents(&self, state: &State, from: u64, max: usize) -> Result<Vec<(u64, u64)>, StoreError> {
        self.ranges(state, from, max, |block, entry| {
            if !entry.is_stored() || entry.is_settled() {
                return Ok(entry.is_stored());
            }
            let mut buf = [0; BLOCK];
            Ok(entry.valid_half(self.read_block(state, block, &mut buf)?) != Some(HOLE))
        })
    }

    fn ranges(
        &self,
        state: &State,
        from: u64,
        max: usize,
        counts: impl Fn(u64, Entry) -> Result<bool, StoreError>,
    ) -> Result<Vec<(u64, u64)>, StoreError> {
        let mut found: Vec<(u64, u64)> = Vec::new();
        self.scan_sums(state, from / BLOCK64, |sums| {
            for block in sums.first..sums.first + sums.blocks() {
                if !counts(block, sums.get(block))? {
                    continue;
                }
                let start = block * BLOCK64;
                let full = found.len() == max;
                match found.last_mut() {
                    Some((offset, len)) if *offset + *len == start => *len += BLOCK64,
                    _ if full => return Ok(false),
                    _ => found.push((start, BLOCK64)),
                }
            }
            Ok(true)
        })?;
        Ok(found)
    }

    // --- reading ---

    /// Appends up to `len` checked bytes from `offset` to `out`.
    pub fn read(&self, state: &State, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<(), StoreError> {
        let wanted_end = offset.saturating_add(len as u64).min(FILE_SIZE_MAX);
        self.check_lost(state, offset, wanted_end)?;
        let end = wanted_end.min(state.data_len);
        if offset >= end {
            return Ok(());
        }
        let start = out.len();
        let first = offset / BLOCK64;
        let sums = self.read_sums(first, end.div_ceil(BLOCK64) - first)?;
        let done = self.read_head(state, &sums, offset, end, out).and_then(|from| match from < end {
            true => self.read_aligned(state, &sums, from, end, out),
            false => Ok(()),
        });
        done.inspect_err(|_| out.truncate(start))
    }

    /// The first block when `offset` lies inside it; returns where to go on. Separate, so
    /// that everything else lands in `out` at its place.
    fn read_head(
        &self,
        state: &State,
        sums: &Sums,
        offset: u64,
        end: u64,
        out: &mut Vec<u8>,
    ) -> Result<u64, StoreError> {
        let within = (offset % BLOCK64) as usize;
        if within == 0 {
            return Ok(offset);
        }
        let mut buf = [0; BLOCK];
        let content = self.read_block(state, sums.first, &mut buf)?;
        self.verify("read the data", sums, sums.first, content)?;
        let stop = (end - sums.first * BLOCK64).min(BLOCK64) as usize;
        out.extend_from_slice(&content[within..stop]);
        Ok((sums.first + 1) * BLOCK64)
    }

    fn read_aligned(
        &self,
        state: &State,
        sums: &Sums,
        from: u64,
        end: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let start = out.len();
        // Whole blocks, because sums are over whole blocks.
        let len = (end.next_multiple_of(BLOCK64).min(state.data_len) - from) as usize;
        let count =
            self.data.read_append(out, len, from).map_err(|e| self.failed("read the data", &e).at(from))?;
        if count < len {
            return Err(self.shrunk(from + count as u64));
        }
        for (content, block) in out[start..].chunks(BLOCK).zip(from / BLOCK64..) {
            self.verify("read the data", sums, block, content)?;
        }
        out.truncate(start + (end - from) as usize);
        Ok(())
    }

    /// Fills `buf` with checked bytes from `offset`, as far as the data here go; how many those are.
    pub fn read_into(&self, state: &State, offset: u64, buf: &mut [u8]) -> Result<usize, StoreError> {
        let wanted_end = offset.saturating_add(buf.len() as u64).min(FILE_SIZE_MAX);
        self.check_lost(state, offset, wanted_end)?;
        let end = wanted_end.min(state.data_len);
        if offset >= end {
            return Ok(0);
        }
        let first = offset / BLOCK64;
        let sums = self.read_sums(first, end.div_ceil(BLOCK64) - first)?;
        // Whole blocks go straight to their place; the ends are cut out of their blocks.
        let whole = offset.next_multiple_of(BLOCK64)..end / BLOCK64 * BLOCK64;
        if whole.start < whole.end {
            let place = &mut buf[(whole.start - offset) as usize..(whole.end - offset) as usize];
            self.read_whole(&sums, whole.start, place)?;
        }
        for cover in covers(offset, (end - offset) as usize) {
            if whole.contains(&(cover.block * BLOCK64)) {
                continue;
            }
            let mut block = [0; BLOCK];
            let content = self.read_block(state, cover.block, &mut block)?;
            self.verify("read the data", &sums, cover.block, content)?;
            buf[cover.at..cover.at + cover.to - cover.from].copy_from_slice(&content[cover.from..cover.to]);
        }
        Ok((end - offset) as usize)
    }

    fn read_whole(&self, sums: &Sums, from: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        let read = self.data.read_at(buf, from).map_err(|e| self.failed("read the data", &e).at(from))?;
        if read < buf.len() {
            return Err(self.shrunk(from + read as u64));
        }
        for (content, block) in buf.chunks(BLOCK).zip(from / BLOCK64..) {
            self.verify("read the data", sums, block, content)?;
        }
        Ok(())
    }

    fn shrunk(&self, at: u64) -> StoreError {
        let detail = "the data file became shorter behind the store's back";
        StoreError::new(StoreErrorKind::Corrupt, "read the data", detail).of(self.ino).at(at)
    }

    /// What the data file holds of a block.
    fn read_block<'b>(
        &self,
        state: &State,
        block: u64,
        buf: &'b mut [u8; BLOCK],
    ) -> Result<&'b [u8], StoreError> {
        let start = block * BLOCK64;
        let len = state.data_len.saturating_sub(start).min(BLOCK64) as usize;
        let count = self
            .data
            .read_at(&mut buf[..len], start)
            .map_err(|e| self.failed("read the data", &e).at(start))?;
        if count < len { Err(self.shrunk(start + count as u64)) } else { Ok(&buf[..len]) }
    }

    /// The valid half of the entry of a block.
    fn verify(
        &self,
        operation: &'static str,
        sums: &Sums,
        block: u64,
        content: &[u8],
    ) -> Result<u32, StoreError> {
        sums.get(block).valid_half(content).ok_or_else(|| self.corrupt(operation, block))
    }

    /// Finds blocks that should be here but lie beyond the end of the data: what a power
    /// failure may leave. Costs nothing as long as both files end together.
    fn check_lost(&self, state: &State, from: u64, to: u64) -> Result<(), StoreError> {
        let first = from.max(state.data_len).div_ceil(BLOCK64);
        let end = to.div_ceil(BLOCK64).min(state.sum_blocks);
        let mut block = first;
        while block < end {
            let Some(next) = self.next_sums(state, block)?.filter(|next| *next < end) else { break };
            let sums = self.read_sums(next, SCAN_ENTRIES.min(end - next))?;
            block = next + sums.blocks();
            if let Some(lost) = (next..block).find(|block| !sums.get(*block).valid_absent()) {
                return Err(self.corrupt("read the data", lost));
            }
        }
        Ok(())
    }

    // --- writing ---

    /// Writes `buf` (not empty); returns the change in the number of stored blocks.
    pub fn write(&self, state: &mut State, offset: u64, buf: &[u8]) -> Result<i64, Failed> {
        let first = offset / BLOCK64;
        let count = (offset + buf.len() as u64).div_ceil(BLOCK64) - first;
        let mut sums = self.read_sums(first, count)?;
        let before = sums.stored();
        self.prepare(state, &mut sums, offset, buf)?;
        // §4: first both sums, then the data, then the new sum alone.
        if let Err(error) = self.write_sums(state, &sums) {
            return Err(self.take_back(state, sums, before, offset, buf, error));
        }
        if let Err(error) = self.data.write_at(buf, offset) {
            let error = self.failed("write the data", &error).at(offset);
            return Err(self.take_back(state, sums, before, offset, buf, error));
        }
        state.data_len = state.data_len.max(offset + buf.len() as u64);
        sums.settle();
        let delta = sums.stored() as i64 - before as i64;
        self.write_sums(state, &sums).map_err(|error| Failed { error, delta })?;
        Ok(delta)
    }

    fn prepare(&self, state: &State, sums: &mut Sums, offset: u64, buf: &[u8]) -> Result<(), StoreError> {
        let content = |block, into: &mut [u8; BLOCK]| self.read_block(state, block, into).map(<[u8]>::len);
        sums::prepare(sums, state.data_len, offset, buf, content).map_err(|unfit| match unfit {
            Unfit::Read(error) => error,
            Unfit::Damaged(block) => self.corrupt("write into the data", block),
        })
    }

    /// After a failed write: makes every block wholly old or wholly new again, and its entry
    /// say which. Best effort: entries that cannot be written stay legal with both halves.
    fn take_back(
        &self,
        state: &mut State,
        mut sums: Sums,
        before: u64,
        offset: u64,
        buf: &[u8],
        error: StoreError,
    ) -> Failed {
        self.cut_back(state, offset, offset + buf.len() as u64);
        for cover in covers(offset, buf.len()) {
            let settled = self.settled_half(state, cover, sums.get(cover.block), buf);
            if let Some(sum) = settled {
                sums.set(cover.block, Entry::settled(sum));
            }
        }
        let after = match self.write_sums(state, &sums) {
            Ok(()) => Some(sums.stored()),
            Err(_) => self.read_sums(sums.first, sums.blocks()).ok().map(|sums| sums.stored()),
        };
        Failed { error, delta: after.map_or(0, |after| after as i64 - before as i64) }
    }

    /// Removes what a failed write left beyond the old end of the data: it would show up when
    /// the object grows later. The block that the old end lies in stays as it is when the write
    /// changed bytes before the end, since half a block is neither old nor new.
    fn cut_back(&self, state: &mut State, offset: u64, end: u64) {
        let old_len = state.data_len;
        let keep = if offset < old_len { old_len.next_multiple_of(BLOCK64) } else { old_len };
        state.data_len = match self.data.len() {
            Ok(len) if len > keep && self.data.set_len(keep).is_ok() => keep,
            Ok(len) => len,
            Err(_) => old_len.max(end),
        };
    }

    /// The sum of what a block holds after a failed write. A block torn in the middle is
    /// written once more; `None` when that fails as well.
    fn settled_half(&self, state: &mut State, cover: Cover, entry: Entry, buf: &[u8]) -> Option<u32> {
        let mut block = [0; BLOCK];
        let content = self.read_block(state, cover.block, &mut block).ok()?;
        if let Some(sum) = entry.valid_half(content) {
            return Some(sum);
        }
        let new = cover.of(buf);
        let start = cover.block * BLOCK64;
        self.data.write_at(new, start + cover.from as u64).ok()?;
        state.data_len = state.data_len.max(start + cover.to as u64);
        let content = self.read_block(state, cover.block, &mut block).ok()?;
        entry.valid_half(content)
    }

    // --- trimming ---

    /// Drops everything at and beyond `size`; returns the change in the number of stored blocks.
    pub fn trim(&self, state: &mut State, size: u64) -> Result<i64, Failed> {
        let keep = size.div_ceil(BLOCK64);
        if state.data_len <= size && state.sum_blocks <= keep {
            return Ok(0);
        }
        let border = self.trim_border(state, size)?;
        let dropped = self.mark_dropped(state, keep, u64::MAX)?;
        if state.data_len > size {
            self.data.set_len(size).map_err(|e| self.failed("trim the data", &e).at(size))?;
            state.data_len = size;
        }
        if state.sum_blocks > keep {
            self.sums.set_len(entry_at(keep)).map_err(|e| self.failed("trim the checksums", &e))?;
            state.sum_blocks = keep;
        }
        let delta = -(dropped as i64);
        if let Some(mut border) = border {
            border.settle();
            self.write_sums(state, &border).map_err(|error| Failed { error, delta })?;
        }
        Ok(delta)
    }

    /// Gives the block that `size` cuts through (if any is stored) the sum of what will be
    /// left of it. The cut itself zeroes the rest, since the file ends there.
    fn trim_border(&self, state: &mut State, size: u64) -> Result<Option<Sums>, StoreError> {
        let left = (size % BLOCK64) as usize;
        if left == 0 || state.data_len <= size {
            return Ok(None);
        }
        let block = size / BLOCK64;
        let mut sums = self.read_sums(block, 1)?;
        if !sums.get(block).is_stored() {
            return Ok(None);
        }
        let mut buf = [0; BLOCK];
        let content = self.read_block(state, block, &mut buf)?;
        let prev = self.verify("trim the data", &sums, block, content)?;
        let cur = if prev == HOLE { HOLE } else { sums::padded_sum(&content[..left]) };
        sums.set(block, Entry { prev, cur });
        self.write_sums(state, &sums)?;
        Ok(Some(sums))
    }

    /// Allows the blocks from `first` up to `end` to become holes; returns how many are stored (§7).
    fn mark_dropped(&self, state: &mut State, first: u64, end: u64) -> Result<u64, StoreError> {
        let mut dropped = 0;
        let mut block = first;
        while let Some(mut sums) = self.sums_within(state, block, end)? {
            block = sums.first + sums.blocks();
            dropped += sums.stored();
            // Not one byte more than needed: it would fill holes of the checksum file.
            sums.narrow();
            for block in sums.first..sums.first + sums.blocks() {
                let entry = sums.get(block);
                if entry.is_stored() {
                    let prev = self.valid_before_drop(state, block, entry)?;
                    sums.set(block, Entry { prev, cur: HOLE });
                }
            }
            if sums.blocks() > 0 {
                self.write_sums(state, &sums)?;
            }
        }
        Ok(dropped)
    }

    fn valid_before_drop(&self, state: &State, block: u64, entry: Entry) -> Result<u32, StoreError> {
        if entry.is_settled() {
            return Ok(entry.cur);
        }
        let mut buf = [0; BLOCK];
        let content = self.read_block(state, block, &mut buf)?;
        // A damaged block may go: dropping launders nothing.
        Ok(entry.valid_half(content).unwrap_or(entry.cur))
    }

    // --- punching ---

    /// Makes a range (not empty) zeros and drops the blocks wholly in it; returns the change in the number of
    /// stored blocks. The data file keeps its length. Behind it there may be blocks that were begun and have no data.
    pub fn punch(&self, state: &mut State, offset: u64, len: u64) -> Result<i64, Failed> {
        let end = offset.saturating_add(len).min(state.data_len.max(state.sum_blocks * BLOCK64));
        if offset >= end {
            return Ok(0);
        }
        let data_end = end.min(state.data_len);
        // The last block ends with the data: nothing of it is left.
        let whole_end = if end < state.data_len { end } else { end.max(data_end.next_multiple_of(BLOCK64)) };
        let (first, last) = (offset.div_ceil(BLOCK64), whole_end / BLOCK64);
        if first > last {
            return self.zero_part(state, offset, data_end);
        }
        self.zero_part(state, offset, data_end.min(first * BLOCK64))?;
        self.zero_part(state, last * BLOCK64, data_end)?;
        let before = self.mark_dropped(state, first, last)?;
        if before == 0 {
            return Ok(0);
        }
        let (from, len) = (first * BLOCK64, (last - first) * BLOCK64);
        let punched = self.data.punch(from, len).map_err(|e| self.failed("punch the data", &e).at(from));
        match punched.and_then(|()| self.settle_dropped(state, first, last)) {
            Ok(()) => Ok(-(before as i64)),
            Err(error) => {
                // Some entries may have gone all the same.
                let after = self.stored_within(state, first, last).unwrap_or(before);
                Err(Failed { error, delta: after as i64 - before as i64 })
            }
        }
    }

    /// Zeroes a range of one block, which may be empty. A block that is not stored is all zeros.
    fn zero_part(&self, state: &mut State, from: u64, to: u64) -> Result<i64, Failed> {
        if from >= to || !self.read_sums(from / BLOCK64, 1)?.get(from / BLOCK64).is_stored() {
            return Ok(0);
        }
        self.write(state, from, &[0; BLOCK][..(to - from) as usize])
    }

    /// Forgets blocks that were allowed to become holes and are by now.
    fn settle_dropped(&self, state: &mut State, first: u64, end: u64) -> Result<(), StoreError> {
        let mut block = first;
        while let Some(mut sums) = self.sums_within(state, block, end)? {
            block = sums.first + sums.blocks();
            sums.narrow();
            if sums.blocks() > 0 {
                sums.settle();
                self.write_sums(state, &sums)?;
            }
        }
        Ok(())
    }

    fn stored_within(&self, state: &State, first: u64, end: u64) -> Result<u64, StoreError> {
        let (mut stored, mut block) = (0, first);
        while let Some(sums) = self.sums_within(state, block, end)? {
            block = sums.first + sums.blocks();
            stored += sums.stored();
        }
        Ok(stored)
    }

    // --- lent files ---

    /// Looks how long the files are by now.
    pub fn refresh(&self, state: &mut State) -> Result<(), StoreError> {
        (state.data_len, state.sum_blocks) = lengths(self.ino, &self.data, &self.sums)?;
        Ok(())
    }

    /// Moves the object to other files, because somebody else may write to these. `moved` is called before the
    /// others are the object's. Afterwards the object has to be opened anew. After an error before that it is as it was.
    pub fn copy_to<D: Disk<File = F>>(
        &self,
        disk: &D,
        state: &mut State,
        names: &Names,
        moved: impl FnOnce(),
    ) -> Result<(), StoreError> {
        if let Err(error) = self.copy_all(disk, state, names) {
            // What there is of the copy takes room; should it stay, the next attempt removes it.
            names.files().iter().for_each(|name| drop(remove_file(disk, self.ino, name)));
            return Err(error);
        }
        moved();
        let own = Names::of(self.ino);
        for (from, to) in names.files().into_iter().zip(own.files()).rev() {
            disk.rename(from, to).map_err(|e| self.failed("move the data", &e).in_file(to))?;
        }
        self.gone.store(true, Ordering::Release);
        Ok(())
    }

    fn copy_all<D: Disk<File = F>>(&self, disk: &D, state: &State, names: &Names) -> Result<(), StoreError> {
        names.files().iter().try_for_each(|name| remove_file(disk, self.ino, name))?;
        let copy = Object::create_as(disk, self.ino, names)?;
        let mut into = copy.lock_lent();
        for (offset, len) in self.extents(state, 0, usize::MAX)? {
            for at in (offset..offset + len).step_by(COPY_BYTES) {
                let piece = (offset + len - at).min(COPY_BYTES as u64) as usize;
                self.copy_piece(state, &copy, &mut into, at, piece)?;
            }
        }
        if into.data_len < state.data_len {
            copy.data.set_len(state.data_len).map_err(|e| self.failed("move the data", &e))?;
        }
        Ok(())
    }

    /// Whole blocks. One that never matches its entry is damaged, and stays so.
    fn copy_piece(
        &self,
        state: &State,
        copy: &Object<F>,
        into: &mut State,
        at: u64,
        len: usize,
    ) -> Result<(), StoreError> {
        let mut buf = vec![0; len];
        for _ in 0..COPY_TRIES {
            match self.read_into(state, at, &mut buf) {
                Ok(0) => return Ok(()),
                Ok(count) => return copy.write(into, at, &buf[..count]).map(|_| ()).map_err(|f| f.error),
                // A write under way, perhaps.
                Err(error) if error.kind == StoreErrorKind::Corrupt => std::thread::sleep(COPY_PAUSE),
                Err(error) => return Err(error),
            }
        }
        if len > BLOCK {
            return (at..at + len as u64)
                .step_by(BLOCK)
                .try_for_each(|at| self.copy_piece(state, copy, into, at, BLOCK));
        }
        let block = at / BLOCK64;
        copy.write_sums(into, &self.read_sums(block, 1)?)?;
        let mut buf = [0; BLOCK];
        let content = self.read_block(state, block, &mut buf)?;
        copy.data.write_at(content, at).map_err(|e| self.failed("move the data", &e).at(at))
    }

    // --- the whole object ---

    /// Removes both files, the data first: without it there is no object.
    pub fn remove<D: Disk<File = F>>(&self, disk: &D, _held: &mut State) -> Result<(), StoreError> {
        let names = Names::of(self.ino);
        remove_file(disk, self.ino, &names.data)?;
        self.gone.store(true, Ordering::Release);
        // Clients that read the files themselves find no sums any more.
        self.sums.set_len(0).map_err(|e| self.failed("remove the checksums", &e))?;
        remove_file(disk, self.ino, &names.sums)
    }

    pub fn sync(&self) -> Result<(), StoreError> {
        self.data.sync().map_err(|e| self.failed("sync the data", &e))?;
        self.sums.sync().map_err(|e| self.failed("sync the checksums", &e))
    }

    /// Checks up to [`SCRUB_BLOCKS`] blocks at or after `from`; returns where to go on.
    pub fn scrub_some(
        &self,
        state: &State,
        from: u64,
        bad: &mut Vec<BadBlock>,
    ) -> Result<Option<u64>, StoreError> {
        let data = self.data.next_data(from * BLOCK64).map_err(|e| self.failed("scrub the data", &e))?;
        let in_data = data.map(|at| (at / BLOCK64).max(from));
        let Some(first) = in_data.into_iter().chain(self.next_sums(state, from)?).min() else {
            return Ok(None);
        };
        let end = (first + SCRUB_BLOCKS).min(state.data_len.div_ceil(BLOCK64).max(state.sum_blocks));
        if first >= end {
            return Ok(None);
        }
        let sums = self.read_sums(first, end - first)?;
        let mut buf = Vec::new();
        let here = state.data_len.saturating_sub(first * BLOCK64).min((end - first) * BLOCK64) as usize;
        let read = self.data.read_append(&mut buf, here, first * BLOCK64);
        read.map_err(|e| self.failed("scrub the data", &e).at(first * BLOCK64))?;
        for block in first..end {
            let start = (((block - first) * BLOCK64) as usize).min(buf.len());
            let content = &buf[start..(start + BLOCK).min(buf.len())];
            bad.extend(check_block(block, sums.get(block), content));
        }
        Ok(Some(end))
    }
}

/// Length of the data file, and entries that the checksum file has room for.
fn lengths<F: DiskFile>(ino: Ino, data: &F, sums: &F) -> Result<(u64, u64), StoreError> {
    let len_of = |file: &F| file.len().map_err(|e| StoreError::io("open the data", &e).of(ino));
    Ok((len_of(data)?, len_of(sums)?.saturating_sub(HEADER_LEN) / ENTRY_LEN))
}

fn check_block(block: u64, entry: Entry, content: &[u8]) -> Option<BadBlock> {
    let valid = if content.is_empty() { entry.valid_absent() } else { entry.valid_half(content).is_some() };
    let found = if content.is_empty() { HOLE } else { sums::padded_sum(content) };
    (!valid).then_some(BadBlock { offset: block * BLOCK64, expected: entry.cur, found })
}

impl Object<RealFile> {
    /// When the data file was written last.
    pub fn data_written(&self) -> io::Result<TimeSpec> {
        self.data.modified()
    }
}

fn open_sums<D: Disk>(disk: &D, ino: Ino, name: &str) -> Result<D::File, StoreError> {
    let file = match disk.open(name, OpenMode::Existing) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let detail = "the checksum file is missing";
            return Err(StoreError::new(StoreErrorKind::Corrupt, "open the checksums", detail)
                .of(ino)
                .in_file(name));
        }
        other => other.map_err(|e| StoreError::io("open the checksums", &e).of(ino).in_file(name))?,
    };
    let mut header = [0; HEADER_LEN as usize];
    let count = file.read_at(&mut header, 0);
    let count = count.map_err(|e| StoreError::io("read the checksums", &e).of(ino).in_file(name))?;
    sums::check_header(&header[..count]).map_err(|error| error.of(ino).in_file(name))?;
    Ok(file)
}

/// Removes a file that may be gone already.
pub(super) fn remove_file<D: Disk>(disk: &D, ino: Ino, name: &str) -> Result<(), StoreError> {
    match disk.remove(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::io("remove the data", &error).of(ino).in_file(name))
        }
        _ => Ok(()),
    }
}

/// Blocks that `len` bytes at `offset` lie in.
pub(super) fn blocks_touched(offset: u64, len: usize) -> u64 {
    if len == 0 { 0 } else { (offset + len as u64).div_ceil(BLOCK64) - offset / BLOCK64 }
}

/// Checks that a range is one that an object may have.
pub fn check_range(ino: Ino, offset: u64, len: u64) -> Result<(), StoreError> {
    match offset.checked_add(len) {
        Some(end) if end <= FILE_SIZE_MAX => Ok(()),
        _ => {
            let detail = format!("{len} bytes from there end beyond the largest file, {FILE_SIZE_MAX} bytes");
            let error = StoreError::new(StoreErrorKind::Invalid, "write the data", detail).of(ino).at(offset);
            Err(StoreError { errno: Errno::EFBIG, ..error })
        }
    }
}
