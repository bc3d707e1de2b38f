//! Reading the files of a daemon on this node without the daemon.
//!
//! A daemon lends read-only descriptors of an object's data and checksums. The data go straight into the
//! caller's buffer, then the checksums are read; when all blocks match, the data were the object's
//! content at that moment. Anything else (a hole's end, a write under way, an object that was dropped,
//! damage) is the daemon's to answer. So nothing has to be locked or revoked: a dropped object's
//! checksums are cut off before its removal is acknowledged, and ids are never used again.

use crate::Client;
use crate::calls::{Access, lock};
use rustc_hash::FxHashMap;
use rustix::io::{pread, preadv};
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use tidepool_blocks::{BLOCK, ENTRY_LEN, Window, window};
use tidepool_types::{DaemonIndex, Ino};
use tidepool_wire::message::{Reply, Request};

/// Objects whose files are kept open. Each takes two descriptors of the program's limit.
const OBJECTS_MAX: usize = 16;
/// Reads through the daemon before its descriptors are asked for: most files are read once, and are small.
const READS_BEFORE: i64 = 4;
/// So many more after a refusal.
const READS_AFTER_REFUSAL: i64 = 60;
/// A read counts once more for each of so many bytes: asking costs less than a copy of a few of them.
const READ_UNIT: usize = 64 << 10;
/// Objects whose reads are counted; the table is emptied when it is full.
const COUNTED_MAX: usize = 1024;
/// Reads in a row that did not succeed before the files are given back.
const MISSES_MAX: u32 = 16;
/// Bytes read before their checksums are computed: what a core's cache still holds then.
const STEP_BYTES: u64 = 128 << 10;
/// Bytes of entries kept on the stack: for reads of up to 64 blocks.
const STACK_SUMS: usize = 64 * ENTRY_LEN as usize;

type Key = (DaemonIndex, Ino);

/// The open files of one object at one daemon.
struct Files {
    data: Arc<OwnedFd>,
    sums: Arc<OwnedFd>,
    /// Moves of the daemon's objects when the files were asked for: later ones may have left them behind.
    moves: u64,
    misses: AtomicU32,
    used: AtomicU64,
}

/// What a client has open, and what it may open soon.
#[derive(Default)]
pub(crate) struct Direct {
    open: RwLock<FxHashMap<Key, Arc<Files>>>,
    reads: Mutex<FxHashMap<Key, i64>>,
    clock: AtomicU64,
    bytes: AtomicU64,
}

impl Direct {
    /// Bytes read without a daemon and without a copy but the kernel's own.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn files(&self, key: &Key) -> Option<Arc<Files>> {
        let files = self.open.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()?;
        files.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        Some(files)
    }

    /// Counts a read of `len` bytes through the daemon; true when it is time to ask for the files.
    fn is_worth_it(&self, key: Key, len: usize) -> bool {
        let mut reads = lock(&self.reads);
        if reads.len() >= COUNTED_MAX {
            reads.clear();
        }
        let count = reads.entry(key).or_default();
        *count += 1 + (len / READ_UNIT) as i64;
        let worth = *count > READS_BEFORE;
        if worth {
            reads.remove(&key);
        }
        worth
    }

    /// The daemon has declined: small objects have no files.
    fn refused(&self, key: Key) {
        lock(&self.reads).insert(key, -READS_AFTER_REFUSAL);
    }

    fn keep(&self, key: Key, [data, sums]: [Arc<OwnedFd>; 2], moves: u64) -> Arc<Files> {
        let used = self.clock.fetch_add(1, Ordering::Relaxed);
        let files =
            Arc::new(Files { data, sums, moves, misses: AtomicU32::new(0), used: AtomicU64::new(used) });
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= OBJECTS_MAX
            && let Some(oldest) =
                open.iter().min_by_key(|(_, f)| f.used.load(Ordering::Relaxed)).map(|(k, _)| *k)
        {
            open.remove(&oldest);
        }
        open.insert(key, Arc::clone(&files));
        files
    }

    fn give_back(&self, key: &Key) {
        self.open.write().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// Closes the files of an object that this process has no longer open.
    pub fn forget(&self, ino: Ino) {
        let none = self.open.read().unwrap_or_else(PoisonError::into_inner).keys().all(|(_, i)| *i != ino);
        if !none {
            self.open.write().unwrap_or_else(PoisonError::into_inner).retain(|(_, i), _| *i != ino);
        }
    }
}

impl Client {
    /// Fills all of `buf` (in one chunk) from the files of a daemon on this node; false when the
    /// daemon has to be asked, `buf` then holds anything.
    pub(crate) fn read_direct(&self, daemon: DaemonIndex, ino: Ino, offset: u64, buf: &mut [u8]) -> bool {
        if !self.hands_out(daemon, Access::Read) {
            return false;
        }
        let key = (daemon, ino);
        let files = match self.direct.files(&key) {
            Some(files) => files,
            None if !self.direct.is_worth_it(key, buf.len()) => return false,
            None => match self.files_for_reading(daemon, ino) {
                Some(files) => files,
                None => {
                    self.direct.refused(key);
                    return false;
                }
            },
        };
        self.read_files(&files, key, offset, buf)
    }

    /// The same, if the files are open already.
    pub(crate) fn read_open(&self, daemon: DaemonIndex, ino: Ino, offset: u64, buf: &mut [u8]) -> bool {
        let key = (daemon, ino);
        self.direct.files(&key).is_some_and(|files| self.read_files(&files, key, offset, buf))
    }

    fn read_files(&self, files: &Files, key: Key, offset: u64, buf: &mut [u8]) -> bool {
        // In this order: what was read before an object moved is what it held.
        let read = files.read(offset, buf).is_some() && self.moves_of(key.0) == Some(files.moves);
        if read {
            files.misses.store(0, Ordering::Relaxed);
            self.direct.bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
            self.note_read(key.0, buf.len());
        } else if files.misses.fetch_add(1, Ordering::Relaxed) >= MISSES_MAX {
            self.direct.give_back(&key);
        }
        read
    }

    fn files_for_reading(&self, daemon: DaemonIndex, ino: Ino) -> Option<Arc<Files>> {
        let moves = self.board_for_files(daemon)?.moves();
        let (reply, fds) = self.files_for(Access::Read, daemon, &Request::OpenDirect { ino })?;
        let ([data, sums], Reply::Direct {}) = (<[OwnedFd; 2]>::try_from(fds).ok()?, reply) else {
            return None;
        };
        Some(self.direct.keep((daemon, ino), [data, sums].map(Arc::new), moves))
    }

    /// Keeps files that were borrowed to write to them for reading as well; `moves` was looked at before.
    pub(crate) fn keep_for_reading(
        &self,
        daemon: DaemonIndex,
        ino: Ino,
        files: [Arc<OwnedFd>; 2],
        moves: u64,
    ) {
        self.direct.keep((daemon, ino), files, moves);
    }

    pub(crate) fn moves_of(&self, daemon: DaemonIndex) -> Option<u64> {
        self.board(daemon).map(tidepool_shm::Board::moves)
    }

    /// Bytes this client has read without a copy in user space: straight from a file of a
    /// daemon on this node into the caller's buffer.
    pub fn bytes_uncopied(&self) -> u64 {
        self.direct.bytes()
    }
}

impl Files {
    /// `None` when not every byte is here and matches its checksum.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Option<()> {
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let len = rest.len().min((STEP_BYTES - at % STEP_BYTES) as usize);
            let (part, tail) = rest.split_at_mut(len);
            self.read_step(at, part)?;
            (at, rest) = (at + len as u64, tail);
        }
        Some(())
    }

    fn read_step(&self, offset: u64, buf: &mut [u8]) -> Option<()> {
        let window = window(offset, buf.len());
        if window.before + window.behind > 0 {
            return self.read_unaligned(&window, buf);
        }
        let got = pread(&self.data, &mut *buf, offset).ok()?;
        (got == buf.len()).then_some(())?;
        self.check(&window, &[], buf, &[])
    }

    /// Reads what the first and the last block hold beside the range as well: sums are over whole blocks.
    fn read_unaligned(&self, window: &Window, buf: &mut [u8]) -> Option<()> {
        let (mut before, mut behind) = ([0; BLOCK], [0; BLOCK]);
        let (before, behind) = (&mut before[..window.before], &mut behind[..window.behind]);
        let parts = &mut [IoSliceMut::new(before), IoSliceMut::new(buf), IoSliceMut::new(behind)];
        let got = preadv(&self.data, parts, window.start).ok()?;
        // The last block ends with the file; what is missing of it counts as zeros.
        let missing = (before.len() + buf.len() + behind.len()).checked_sub(got)?;
        let rest = behind.len().checked_sub(missing)?;
        self.check(window, before, buf, &behind[..rest])
    }

    /// To be called after the data were read: the entries of an object that is gone by now are gone as well.
    fn check(&self, window: &Window, before: &[u8], buf: &[u8], behind: &[u8]) -> Option<()> {
        let mut on_stack = [0; STACK_SUMS];
        let mut on_heap = Vec::new();
        let sums = match on_stack.get_mut(..window.sums_len) {
            Some(sums) => sums,
            None => {
                on_heap.resize(window.sums_len, 0);
                &mut on_heap[..]
            }
        };
        let got = pread(&self.sums, &mut *sums, window.sums_at).ok()?;
        (got == sums.len() && window.is_valid(before, buf, behind, sums)).then_some(())
    }
}
