//! Writing to the files of a daemon on this node without the daemon.
//!
//! A daemon lends the files of an object; as long as it does not take the loan back, this process changes data and entries as the
//! daemon would (`docs/formats/03-chunk-store.md`, section 4). A write that the loan did not outlive is repeated by
//! request, and so is everything out of the ordinary: what goes wrong here needs no words of its own.

use crate::Client;
use crate::calls::{Access, lock};
use rustc_hash::FxHashMap;
use rustix::io::{Errno, pread, pwrite};
use rustix::process::{Resource, getrlimit};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;
use tidepool_blocks::{BLOCK, ENTRY_LEN, Entry, Sums, covers, entry_at, padded_sum, prepare};
use tidepool_shm::{GRAIN, Loan};
use tidepool_types::{DaemonIndex, Ino};
use tidepool_wire::message::{Reply, Request};

/// Objects borrowed at a time. Each takes two descriptors of the program's limit.
const OBJECTS_MAX: usize = 8;
/// Writes or bytes sent to the daemon before its files are asked for: most files are written in a few pieces.
const WRITES_BEFORE: u32 = 8;
pub(crate) const BYTES_BEFORE: u64 = 1 << 20;
/// So many times that is waited after a refusal.
const AFTER_REFUSAL: u32 = 16;
/// Bytes written at once, so that they are in the cache when they are summed up again: 64 MiB take a fifth less processor time
/// than with 512 KiB.
const STEP: u64 = 128 << 10;
/// Objects whose writes are counted; the table is emptied when it is full.
const COUNTED_MAX: usize = 1024;

type Key = (DaemonIndex, Ino);

/// The files of one object at one daemon.
struct Borrowed {
    data: Arc<OwnedFd>,
    sums: Arc<OwnedFd>,
    loan: Loan,
    /// Starts of the daemon when they were asked for: with the next one the loan is void.
    starts: u64,
    used: AtomicU64,
}

/// Writes to one object by request since its files were last asked for.
#[derive(Default)]
struct Count {
    writes: u32,
    bytes: u64,
    /// How many times as much it takes.
    times: u32,
}

/// What a client has borrowed.
#[derive(Default)]
pub(crate) struct Loans {
    open: RwLock<FxHashMap<Key, Arc<Borrowed>>>,
    counts: Mutex<FxHashMap<Key, Count>>,
    clock: AtomicU64,
    bytes: AtomicU64,
    /// Nobody changes what is handed over for writing while it is written.
    stable: AtomicBool,
}

impl Loans {
    fn get(&self, key: &Key) -> Option<Arc<Borrowed>> {
        let found = self.open.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()?;
        found.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        Some(found)
    }

    /// Counts a write by request; true when it is time to ask for the files.
    fn is_worth_it(&self, key: Key) -> bool {
        lock(&self.counts).get(&key).is_some_and(|count| {
            let times = count.times.max(1);
            count.writes >= WRITES_BEFORE * times || count.bytes >= BYTES_BEFORE * u64::from(times)
        })
    }

    fn count(&self, key: Key, len: usize) {
        let mut counts = lock(&self.counts);
        if counts.len() >= COUNTED_MAX {
            counts.clear();
        }
        let count = counts.entry(key).or_default();
        count.writes += 1;
        count.bytes += len as u64;
    }

    fn asked(&self, key: Key, granted: bool) {
        let times = if granted { 1 } else { AFTER_REFUSAL };
        lock(&self.counts).insert(key, Count { times, ..Count::default() });
    }

    /// Keeps a loan; the one that makes way, if any, is to be given back.
    fn keep(&self, key: Key, borrowed: Arc<Borrowed>) -> Option<Key> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        let full = open.len() >= OBJECTS_MAX;
        let oldest = open.iter().min_by_key(|(_, b)| b.used.load(Ordering::Relaxed)).map(|(key, _)| *key);
        let making_way = oldest.filter(|_| full);
        if let Some(key) = making_way {
            open.remove(&key);
        }
        open.insert(key, borrowed);
        making_way
    }

    fn drop_one(&self, key: &Key) {
        self.open.write().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// A loan was called in; it is worth another.
    fn lost(&self, key: Key) {
        self.drop_one(&key);
        lock(&self.counts).insert(key, Count { writes: WRITES_BEFORE, ..Count::default() });
    }

    /// Forgets the files of an object that this process has no longer open; at which daemons they were.
    pub fn forget(&self, ino: Ino) -> Vec<DaemonIndex> {
        let ours = |key: &&Key| key.1 == ino;
        let keys: Vec<Key> =
            self.open.read().unwrap_or_else(PoisonError::into_inner).keys().filter(ours).copied().collect();
        keys.iter().for_each(|key| self.drop_one(key));
        keys.into_iter().map(|(daemon, _)| daemon).collect()
    }
}

impl Client {
    /// Stores all of `buf` (in one chunk) in the files of a daemon on this node: how many blocks that added. `None` when the
    /// daemon has to be asked.
    pub(crate) fn write_direct(&self, daemon: DaemonIndex, ino: Ino, offset: u64, buf: &[u8]) -> Option<i64> {
        if !self.hands_out(daemon, Access::Write) || is_limited() {
            return None;
        }
        let key = (daemon, ino);
        let write = |borrowed: &Borrowed| {
            borrowed
                .write(offset, buf, self.loans.stable.load(Ordering::Relaxed))
                .filter(|_| self.starts_of(daemon) == Some(borrowed.starts))
        };
        let mut written = None;
        if let Some(borrowed) = self.loans.get(&key) {
            written = write(&borrowed);
            if written.is_none() {
                self.loans.lost(key);
            }
        }
        // A loan that was called in is asked for again at once: most likely somebody else has begun to write and borrows as well.
        if written.is_none() && self.loans.is_worth_it(key) {
            written = write(&*self.borrow(key)?);
            if written.is_none() {
                self.loans.drop_one(&key);
            }
        }
        if written.is_some() {
            self.loans.bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
            self.note_written(daemon, buf.len());
        }
        written
    }

    /// To be called for each piece that goes to a daemon by request.
    pub(crate) fn count_write(&self, daemon: DaemonIndex, ino: Ino, len: usize) {
        if self.hands_out(daemon, Access::Write) {
            self.loans.count((daemon, ino), len);
        }
    }

    fn starts_of(&self, daemon: DaemonIndex) -> Option<u64> {
        self.board(daemon).map(tidepool_shm::Board::starts)
    }

    fn borrow(&self, key: Key) -> Option<Arc<Borrowed>> {
        let (daemon, ino) = key;
        // In this order: a daemon that starts after this look voids what its predecessor lends.
        let before = self.board_for_files(daemon).map(|board| (board.starts(), board.moves()));
        let borrowed = before.and_then(|(starts, _)| self.ask_for_files(daemon, ino, starts)).map(Arc::new);
        self.loans.asked(key, borrowed.is_some());
        let (borrowed, (_, moves)) = borrowed.zip(before)?;
        // What this process wrote it often reads again; by request it would end the loan.
        let files = [Arc::clone(&borrowed.data), Arc::clone(&borrowed.sums)];
        self.keep_for_reading(daemon, ino, files, moves);
        if let Some((daemon, ino)) = self.loans.keep(key, Arc::clone(&borrowed)) {
            self.call_one_way(daemon, &Request::GiveBack { ino });
        }
        Some(borrowed)
    }

    fn ask_for_files(&self, daemon: DaemonIndex, ino: Ino, starts: u64) -> Option<Borrowed> {
        let (reply, fds) = self.files_for(Access::Write, daemon, &Request::Borrow { ino })?;
        let Reply::Borrowed { number } = reply else { return None };
        let [data, sums, loan] = <[OwnedFd; 3]>::try_from(fds).ok()?;
        let loan = Loan::open(&loan, number).ok()?;
        Some(Borrowed { data: Arc::new(data), sums: Arc::new(sums), loan, starts, used: AtomicU64::new(0) })
    }

    /// Gives back what was borrowed of an object. Its home hears of it by the `Close` that follows.
    pub(crate) fn give_back(&self, ino: Ino) {
        for daemon in self.loans.forget(ino).into_iter().filter(|daemon| *daemon != ino.home()) {
            self.call_one_way(daemon, &Request::GiveBack { ino });
        }
    }

    /// To be called when nobody changes memory that is handed over for writing until it is written, as with a kernel's requests: then it is
    /// not summed up twice.
    pub fn buffers_are_stable(&self) {
        self.loans.stable.store(true, Ordering::Relaxed);
    }

    /// Bytes this client has written without a daemon: straight from the caller's buffer into a file of a daemon
    /// on this node.
    pub fn bytes_written_direct(&self) -> u64 {
        self.loans.bytes.load(Ordering::Relaxed)
    }
}

/// By the clock that the daemon of this node has.
pub(crate) fn nanos_now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Borrowed {
    fn write(&self, offset: u64, buf: &[u8], stable: bool) -> Option<i64> {
        let (mut at, mut rest, mut blocks) = (offset, buf, 0);
        while !rest.is_empty() {
            let room = (GRAIN - at % GRAIN).min(STEP).min(rest.len() as u64) as usize;
            let (part, tail) = rest.split_at(room);
            if !self.loan.begin(at) {
                return None;
            }
            let written = self.write_part(at, part, stable);
            self.loan.wrote_at(nanos_now());
            if !self.loan.end(at) {
                return None;
            }
            blocks += written?;
            (at, rest) = (at + room as u64, tail);
        }
        Some(blocks)
    }

    /// Within one grain, whose word is held.
    fn write_part(&self, offset: u64, buf: &[u8], stable: bool) -> Option<i64> {
        let (data_len, sum_blocks) = self.loan.lengths();
        let first = offset / BLOCK as u64;
        let end = offset + buf.len() as u64;
        let mut sums = self.entries(first, end.div_ceil(BLOCK as u64) - first, sum_blocks)?;
        let before = sums.stored();
        // Blocks written in part are summed up together with what they hold: from a copy, because the program may change
        // its memory meanwhile. The others are looked at once more when they are written.
        let pieces = Pieces::of(offset, buf);
        let (head, tail) = (pieces.head.to_vec(), pieces.tail.to_vec());
        let parts = [(offset, &head[..]), (pieces.middle_at, pieces.middle), (pieces.tail_at, &tail[..])];
        for (at, part) in parts {
            prepare(&mut sums, data_len, at, part, |block, into| self.content(block, into)).ok()?;
        }
        self.put_entries(&sums)?;
        let written = parts.iter().try_for_each(|(at, part)| write_all(&self.data, part, *at));
        if written.is_err() {
            self.settle_failed(&mut sums, offset, buf);
            return None;
        }
        if !stable && !pieces.is_unchanged(&sums) {
            self.rewrite(&mut sums, &pieces)?;
        }
        self.loan.grown_to(end, first + sums.blocks());
        sums.settle();
        self.put_entries(&sums)?;
        Some(sums.stored() as i64 - before as i64)
    }

    fn entries(&self, first: u64, count: u64, sum_blocks: u64) -> Option<Sums> {
        let mut bytes = vec![0; (count * ENTRY_LEN) as usize];
        if first < sum_blocks {
            // What lies beyond the end of the file was never written.
            pread(&self.sums, &mut bytes, entry_at(first)).ok()?;
        }
        Some(Sums { first, bytes })
    }

    fn put_entries(&self, sums: &Sums) -> Option<()> {
        write_all(&self.sums, &sums.bytes, entry_at(sums.first)).ok()
    }

    fn content(&self, block: u64, into: &mut [u8; BLOCK]) -> Result<usize, Errno> {
        pread(&self.data, into, block * BLOCK as u64)
    }

    /// The program has changed its memory during the write: what was stored matches no entry. Stores a copy instead.
    fn rewrite(&self, sums: &mut Sums, pieces: &Pieces<'_>) -> Option<()> {
        let copy = pieces.middle.to_vec();
        for cover in covers(pieces.middle_at, copy.len()) {
            let old = sums.get(cover.block).cur;
            sums.set(cover.block, Entry { prev: old, cur: padded_sum(cover.of(&copy)) });
        }
        self.put_entries(sums)?;
        write_all(&self.data, &copy, pieces.middle_at).ok()
    }

    /// After a failed write: has every block that is wholly old or wholly new say so. The daemon, which is asked next, cuts off
    /// what has come behind the end.
    fn settle_failed(&self, sums: &mut Sums, offset: u64, buf: &[u8]) {
        for cover in covers(offset, buf.len()) {
            let mut block = [0; BLOCK];
            let valid = |block: &mut [u8; BLOCK]| {
                let len = self.content(cover.block, block).ok()?;
                sums.get(cover.block).valid_half(&block[..len])
            };
            let mut sum = valid(&mut block);
            if sum.is_none() {
                // Torn in the middle.
                let at = cover.block * BLOCK as u64 + cover.from as u64;
                let _ = write_all(&self.data, cover.of(buf), at);
                sum = valid(&mut block);
            }
            if let Some(sum) = sum {
                sums.set(cover.block, Entry::settled(sum));
            }
        }
        // Entries that cannot be written stay legal with both halves.
        let _ = self.put_entries(sums);
    }
}

/// A range cut at the first and the last border between blocks in it.
struct Pieces<'b> {
    head: &'b [u8],
    middle_at: u64,
    middle: &'b [u8],
    tail_at: u64,
    tail: &'b [u8],
}

impl<'b> Pieces<'b> {
    fn of(offset: u64, buf: &'b [u8]) -> Pieces<'b> {
        let block = BLOCK as u64;
        let head_len = (offset.next_multiple_of(block) - offset).min(buf.len() as u64) as usize;
        let (head, rest) = buf.split_at(head_len);
        let (middle, tail) = rest.split_at(rest.len() / BLOCK * BLOCK);
        let middle_at = offset + head_len as u64;
        Pieces { head, middle_at, middle, tail_at: middle_at + middle.len() as u64, tail }
    }

    /// Whether the whole blocks are still what their entries say.
    fn is_unchanged(&self, sums: &Sums) -> bool {
        covers(self.middle_at, self.middle.len())
            .all(|cover| sums.get(cover.block).cur == padded_sum(cover.of(self.middle)))
    }
}

/// Does this process have a limit on the size of files (`ulimit -f`)? The kernel would cut writes to the daemon's files by it,
/// in the middle of a block, and then neither block nor entry could be mended. Asked each time: limits change while a process runs.
fn is_limited() -> bool {
    getrlimit(Resource::Fsize).current.is_some()
}

fn write_all(fd: &OwnedFd, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match pwrite(fd, bytes, at) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => (bytes, at) = (&bytes[count..], at + count as u64),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_at_block_borders() {
        let buf = vec![0; 3 * BLOCK];
        let cut = |offset: u64, len: usize| {
            let p = Pieces::of(offset, &buf[..len]);
            (p.head.len(), p.middle_at, p.middle.len(), p.tail_at, p.tail.len())
        };
        assert_eq!(cut(0, 3 * BLOCK), (0, 0, 3 * BLOCK, 12288, 0));
        assert_eq!(cut(100, 50), (50, 150, 0, 150, 0));
        assert_eq!(cut(4000, 9000), (96, 4096, 2 * BLOCK, 12288, 712));
        assert_eq!(cut(8192, 10), (0, 8192, 0, 8192, 10));
    }
}
