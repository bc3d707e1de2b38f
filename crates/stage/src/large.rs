//! Large files: cut into ranges that all workers copy, and that a rerun need not copy again.
//!
//! ```text
//! Copy ──all ranges written──▶ Settle ──durable──▶ Verify ──all read back──▶ Seal ──▶ named
//!   │                            │                   │                        │
//!   └────────────────────────────┴─── any failure ───┴────────────────────────┘──▶ Ended
//! ```
//!
//! Where what is read back does not depend on the sync, each block is read back when it is written, and
//! there is nothing to do between Settle and Seal. The worker that finishes the last range of a phase does the step between the phases.
//! After a failure the others finish what they hold, and the last of them ends the file.
//! The temporary file stays when the failure is not the file's own, so that a rerun can go on.

use crate::RANGE_BYTES;
use crate::data::Output;
use crate::end::{At, End, FileRef, Meta};
use crate::job::{Job, Worker, bump};
use crate::journal::{Record, Version};
use crate::links::Key;
use crate::report::Failure;
use crate::sync::lock;
use crate::tree::Entry;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use tidepool_blocks::crc;
use tidepool_types::Errno;

/// A written range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sum {
    index: u64,
    crc: u32,
}

/// A piece of work on a large file.
pub(crate) enum Claim {
    Copy {
        index: u64,
    },
    /// A range that an earlier run wrote: trusted only if its checksum is right.
    Recheck(Sum),
    Settle,
    Verify(Sum),
    /// After a failure: nobody works on the file any more.
    End,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Copy,
    Settle,
    Verify,
    Ended,
}

struct State {
    phase: Phase,
    /// Ranges handed out and not finished.
    busy: usize,
    /// Where to look for the next range to copy.
    cursor: u64,
    /// No range is left to copy.
    exhausted: bool,
    /// Ranges of an earlier run, by index.
    past: BTreeMap<u64, u32>,
    sums: Vec<Sum>,
    /// Next of `sums` to verify.
    next_verify: usize,
    failure: Option<Failure>,
    entry: Entry,
    verified: u64,
}

pub(crate) struct Large {
    key: Option<Key>,
    src: FileRef,
    dst: FileRef,
    part: Vec<u8>,
    meta: Meta,
    /// Its ranges are read back while they are written, so none is left to verify afterwards.
    checked: bool,
    /// Of the workers that write.
    turn: Mutex<()>,
    state: Mutex<State>,
}

impl Large {
    fn range(&self, index: u64) -> Range<u64> {
        let start = index * RANGE_BYTES;
        start..(start + RANGE_BYTES).min(self.meta.size)
    }

    /// The next piece of work, if there is one now.
    pub fn claim(&self, src: &dyn End, writers_max: usize) -> Option<Claim> {
        let mut state = lock(&self.state);
        if state.failure.is_some() && state.phase != Phase::Ended {
            return (state.busy == 0).then(|| {
                state.phase = Phase::Ended;
                Claim::End
            });
        }
        let claim = match state.phase {
            Phase::Copy if state.busy >= writers_max => None,
            Phase::Copy => self.claim_copy(&mut state, src),
            Phase::Verify => {
                let sum = state.sums.get(state.next_verify).copied();
                state.next_verify += usize::from(sum.is_some());
                sum.map(Claim::Verify)
            }
            Phase::Settle | Phase::Ended => None,
        };
        state.busy += usize::from(claim.is_some());
        claim
    }

    fn claim_copy(&self, state: &mut State, src: &dyn End) -> Option<Claim> {
        match self.next_range(state, src) {
            Err(failure) => {
                state.failure = Some(failure);
                None
            }
            Ok(Some(index)) => {
                state.cursor = self.range(index).end;
                Some(match state.past.remove(&index) {
                    Some(crc) => Claim::Recheck(Sum { index, crc }),
                    None => Claim::Copy { index },
                })
            }
            Ok(None) => {
                state.exhausted = true;
                (state.busy == 0).then(|| {
                    state.phase = Phase::Settle;
                    Claim::Settle
                })
            }
        }
    }

    /// Index of the next range with data.
    fn next_range(&self, state: &State, src: &dyn End) -> Result<Option<u64>, Failure> {
        if state.exhausted || state.cursor >= self.meta.size {
            return Ok(None);
        }
        if self.meta.is_dense() {
            return Ok(Some(state.cursor / RANGE_BYTES));
        }
        let data = src.next_data(&self.src, state.cursor).map_err(Failure::source)?;
        Ok(data.filter(|at| *at < self.meta.size).map(|at| at / RANGE_BYTES))
    }

    /// Notes a written range; true when all are.
    fn written(&self, sum: Sum) -> bool {
        let mut state = lock(&self.state);
        state.busy -= 1;
        state.sums.push(sum);
        let last =
            state.busy == 0 && state.exhausted && state.phase == Phase::Copy && state.failure.is_none();
        if last {
            state.phase = Phase::Settle;
            state.busy += 1;
        }
        last
    }

    /// Notes a verified range; true when all are.
    fn verified(&self) -> bool {
        let mut state = lock(&self.state);
        state.busy -= 1;
        state.busy == 0
            && state.next_verify == state.sums.len()
            && state.phase == Phase::Verify
            && state.failure.is_none()
    }

    /// Notes a failure; true when nobody works on the file any more.
    fn failed(&self, failure: Failure) -> bool {
        let mut state = lock(&self.state);
        state.busy -= 1;
        state.failure.get_or_insert(failure);
        let last = state.busy == 0 && state.phase != Phase::Ended;
        if last {
            state.phase = Phase::Ended;
        }
        last
    }

    /// Checksum of the whole file from those of its ranges.
    fn crc(&self) -> u32 {
        let mut sums = lock(&self.state).sums.clone();
        sums.sort_unstable_by_key(|sum| sum.index);
        let (mut whole, mut at) = (0, 0);
        for sum in sums {
            let range = self.range(sum.index);
            whole = crc::append_zeros(whole, range.start - at);
            whole = crc::join(whole, sum.crc, range.end - range.start);
            at = range.end;
        }
        crc::append_zeros(whole, self.meta.size - at)
    }

    /// Logical bytes outside all ranges.
    fn gaps(&self) -> u64 {
        let state = lock(&self.state);
        let ranges: u64 = state.sums.iter().map(|sum| self.range(sum.index)).map(|r| r.end - r.start).sum();
        self.meta.size - ranges
    }
}

impl Job<'_> {
    /// Opens the temporary file of a large file, an earlier run's if it fits, and offers its
    /// ranges to all workers.
    pub fn start_large(
        &self,
        entry: Entry,
        key: Option<Key>,
        src: FileRef,
        meta: Meta,
    ) -> Result<(), Failure> {
        let part = self.part_name(&entry);
        let (dst, past) = match self.resume_large(&entry, &part, &meta) {
            Some(resumed) => resumed,
            None => {
                let dst = self.over_leftover(&entry, &part, || self.dst.create(&entry.dir.dst, &part))?;
                match self.clone_large(&entry, key, (&src, &dst), &part, &meta) {
                    Ok(false) => {}
                    Ok(true) => return Ok(()),
                    Err(failure) => {
                        let _ = self.dst.unlink(&entry.dir.dst, &part);
                        return Err(failure);
                    }
                }
                self.note(&Record::Begin { path: entry.hash(), version: Version::of(&meta) });
                (dst, BTreeMap::new())
            }
        };
        self.dst.truncate(&dst, meta.size).map_err(Failure::target)?;
        if self.dst.nature().attributes_first {
            self.copy_attributes(&|| entry.path(), At::File(&src), At::File(&dst), &meta)?;
        }
        let checked = self.checks_at_once(&entry.dir);
        let state = State {
            phase: Phase::Copy,
            busy: 0,
            cursor: 0,
            exhausted: false,
            past,
            sums: Vec::new(),
            next_verify: 0,
            failure: None,
            entry,
            verified: 0,
        };
        let state = Mutex::new(state);
        self.sched.add_large(Arc::new(Large {
            key,
            src,
            dst,
            part,
            meta,
            checked,
            turn: Mutex::default(),
            state,
        }));
        Ok(())
    }

    fn resume_large(&self, entry: &Entry, part: &[u8], meta: &Meta) -> Option<(FileRef, BTreeMap<u64, u32>)> {
        // A second attempt of this run starts clean.
        let past = self.journal.past.large(entry.hash()).filter(|_| entry.attempt == 0)?;
        if past.version != Version::of(meta) {
            return None;
        }
        let dst = self.dst.open_write(&entry.dir.dst, part).ok()?;
        Some((dst, past.ranges.clone()))
    }

    /// Does a piece of work on a large file, and the step between phases if it was the last.
    pub fn large_step(&self, worker: &mut Worker, large: &Arc<Large>, claim: Claim) {
        let done = match claim {
            Claim::End => return self.end_large(large),
            Claim::Settle => self.settle(large),
            Claim::Copy { index } => {
                self.copy_large_range(worker, large, index).and_then(|sum| self.after(large, sum))
            }
            Claim::Recheck(sum) => self.recheck(worker, large, sum).and_then(|sum| self.after(large, sum)),
            Claim::Verify(sum) => self.verify_large_range(worker, large, sum),
        };
        if let Err(failure) = done
            && large.failed(failure)
        {
            self.end_large(large);
        }
    }

    fn after(&self, large: &Arc<Large>, sum: Sum) -> Result<(), Failure> {
        if large.checked {
            let range = large.range(sum.index);
            self.credit(large, range.end - range.start);
        }
        if large.written(sum) { self.settle(large) } else { Ok(()) }
    }

    fn copy_large_range(&self, worker: &mut Worker, large: &Large, index: u64) -> Result<Sum, Failure> {
        let (input, range) = (self.source(&large.src, large.meta.is_dense()), large.range(index));
        // The next range may be the same worker's: the storage gets to it meanwhile.
        self.src.will_read(&large.src, range.start, range.end - range.start + RANGE_BYTES);
        let in_turn = self.dst.writers_per_file() < self.sched.workers();
        let to = Output { file: &large.dst, check: large.checked, turn: in_turn.then_some(&large.turn) };
        let crc = self.copy_range(input, to, range.clone(), worker.buffer())?;
        self.dst.begin_sync(&large.dst, range.start, range.end - range.start);
        let path = lock(&large.state).entry.hash();
        self.note(&Record::Range { path, index, crc });
        Ok(Sum { index, crc })
    }

    fn recheck(&self, worker: &mut Worker, large: &Large, sum: Sum) -> Result<Sum, Failure> {
        let range = large.range(sum.index);
        let len = range.end - range.start;
        match self.sum_range(self.target(&large.dst, false), range, worker.buffer()) {
            Ok(crc) if crc == sum.crc => {
                bump(&self.totals.skipped, len);
                Ok(sum)
            }
            Err(Failure::Cancelled) => Err(Failure::Cancelled),
            _ => self.copy_large_range(worker, large, sum.index),
        }
    }

    /// All ranges are written: attributes, durability, then verification by all.
    fn settle(&self, large: &Arc<Large>) -> Result<(), Failure> {
        if !self.dst.nature().attributes_first {
            let path = || lock(&large.state).entry.path();
            self.copy_attributes(&path, At::File(&large.src), At::File(&large.dst), &large.meta)?;
        }
        self.dst.fsync(&large.dst).map_err(Failure::target)?;
        bump(&self.totals.holes, large.gaps());
        let verify = self.options.verify && !large.checked && {
            let mut state = lock(&large.state);
            let verify = !state.sums.is_empty();
            if verify {
                // At once: who verifies the last range must not find this worker still at it.
                state.phase = Phase::Verify;
                state.busy -= 1;
            }
            verify
        };
        if !verify {
            return self.seal_large(large);
        }
        self.sched.wake();
        Ok(())
    }

    fn verify_large_range(&self, worker: &mut Worker, large: &Arc<Large>, sum: Sum) -> Result<(), Failure> {
        let range = large.range(sum.index);
        let len = range.end - range.start;
        let dense = large.meta.is_dense();
        if self.read_back(&large.dst, range.clone(), dense, worker.buffer())? != sum.crc {
            self.mend(worker, large, sum)?;
        }
        self.credit(large, len);
        if large.verified() {
            lock(&large.state).busy += 1;
            return self.seal_large(large);
        }
        Ok(())
    }

    /// Writes a range again that did not come back as it was written.
    fn mend(&self, worker: &mut Worker, large: &Large, sum: Sum) -> Result<(), Failure> {
        let again = self.copy_large_range(worker, large, sum.index)?;
        if again.crc != sum.crc {
            return Err(Failure::Changed);
        }
        self.dst.fsync(&large.dst).map_err(Failure::target)?;
        let dense = large.meta.is_dense();
        let crc = self.read_back(&large.dst, large.range(sum.index), dense, worker.buffer())?;
        if crc == sum.crc { Ok(()) } else { Err(Failure::Mismatch) }
    }

    /// Counts verified bytes as done, but never the same ones twice over several attempts.
    fn credit(&self, large: &Large, len: u64) {
        let mut state = lock(&large.state);
        state.verified += len;
        let verified = state.verified;
        let entry = &mut state.entry;
        if verified > entry.credited {
            let more = (verified - entry.credited).min(entry.seen - entry.credited);
            entry.credited += more;
            bump(&self.control.inner.bytes_done, more);
            self.control.inner.tick();
        }
    }

    fn seal_large(&self, large: &Arc<Large>) -> Result<(), Failure> {
        let entry = lock(&large.state).entry.clone();
        let meta = &large.meta;
        self.seal(&entry, &large.src, &large.dst, &large.part, meta)?;
        lock(&large.state).phase = Phase::Ended;
        self.sched.remove_large(large);
        self.named_or_held(&entry, large.key, &large.part, meta, (meta.size, large.crc()));
        Ok(())
    }

    /// After a cancel, or when all was given up, and the workers have ended: removes the temporary files if asked to, or if no rerun
    /// would find them again.
    pub fn clean_large(&self) {
        let useless = self.leaves_none();
        for large in self.sched.large_left().iter().filter(|_| useless) {
            self.discard_part(&lock(&large.state).entry, &large.part);
        }
    }

    /// Of a copy that ends early.
    fn leaves_none(&self) -> bool {
        if self.is_cancelled() { self.options.clean_on_cancel } else { !self.options.keeps_journal() }
    }

    /// The copy has failed already; what stays of it is said.
    fn discard_part(&self, entry: &Entry, part: &[u8]) {
        match self.dst.unlink(&entry.dir.dst, part) {
            Err(error) if error.errno != Errno::ENOENT => {
                let text = format!("what was copied of it is not removed: destination: {error}");
                self.findings.warn(entry.path(), text);
            }
            _ => {}
        }
    }

    /// Nobody works on a failed file any more: what becomes of it.
    fn end_large(&self, large: &Arc<Large>) {
        self.sched.remove_large(large);
        let (entry, failure) = {
            let mut state = lock(&large.state);
            (state.entry.clone(), state.failure.take().unwrap_or(Failure::Cancelled))
        };
        let useless = match failure {
            Failure::Changed | Failure::Mismatch => true,
            Failure::Cancelled => self.leaves_none(),
            // The end may have noticed the cancel first.
            _ if self.is_cancelled() && self.options.clean_on_cancel => true,
            // Kept for a rerun, if it can find it again.
            _ => !self.options.keeps_journal(),
        };
        if useless {
            self.discard_part(&entry, &large.part);
        }
        self.give_up(entry, large.key, failure);
    }
}
