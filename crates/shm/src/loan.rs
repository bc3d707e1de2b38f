//! A write loan: who may change which part of an object's files.
//!
//! A daemon lends an object's files for writing to processes of its node. The files are cut into [`GRAIN`]s; a
//! borrower takes the grain's word for the time of one write, so that two borrowers never change the same checksum
//! entries at once. The daemon changes nothing while the files are lent: it recalls the loan first, which waits for writes under
//! way. A borrower that is stopped in the middle of one loses it: its word is void, and so is what it writes afterwards.

use crate::segment::Segment;
use crate::spin::Spin;
use rustix::thread::futex;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

/// Bytes of an object under one word; a write does not cross its border.
pub const GRAIN: u64 = 512 << 10;
/// Processes that one loan goes to at most.
pub const BORROWERS_MAX: usize = 64;

const BYTES: usize = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"TPLOAN02");
const WORDS_AT: usize = 64;
const WORDS: usize = 64;
const DATA_LEN_AT: usize = 512;
const SUM_BLOCKS_AT: usize = 520;
const WRITTEN_AT: usize = 528;

const STATE: u32 = 0xff;
const FREE: u32 = 0;
const BUSY: u32 = 1;
const ENDED: u32 = 2;
const VOID: u32 = 3;
/// Another borrower sleeps until the word changes.
const AWAITED: u32 = 0x100;
/// The daemon wants it back.
const RECALLED: u32 = 0x200;
/// The borrower that is busy stands above this bit.
const WHO: u32 = 16;

/// How long a borrower waits for another one before it leaves the write to the daemon.
const WAIT_MAX: Duration = Duration::from_millis(200);
/// How long a waiting daemon sleeps before it looks whether the borrower lives.
const NAP: Duration = Duration::from_millis(10);

/// How a recall ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recalled {
    /// Nobody writes any more.
    Clean,
    /// A borrower that is stopped may still write to the files: the daemon has to leave them to it.
    Stopped,
}

/// A mapped loan.
pub struct Loan {
    segment: Segment,
    number: u32,
}

impl Loan {
    /// A new loan of empty files, and the descriptor for borrowers.
    pub fn create() -> io::Result<(Loan, OwnedFd)> {
        let (segment, fd) = Segment::create(BYTES)?;
        segment.long(0).store(MAGIC, Release);
        Ok((Loan { segment, number: 0 }, fd))
    }

    /// The side of borrower `number`.
    pub fn open(fd: &OwnedFd, number: u32) -> io::Result<Loan> {
        let segment = Segment::open(fd, BYTES)?;
        if segment.long(0).load(Acquire) != MAGIC || number as usize >= BORROWERS_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a loan of this version"));
        }
        Ok(Loan { segment, number })
    }

    fn word(&self, grain: usize) -> &AtomicU32 {
        self.segment.word(WORDS_AT + 4 * (grain % WORDS))
    }

    // --- borrowers ---

    /// Takes the word of the grain at `offset`; false when the loan has ended, or another borrower does not let go.
    pub fn begin(&self, offset: u64) -> bool {
        let word = self.word((offset / GRAIN) as usize);
        let mine = BUSY | self.number << WHO;
        let mut spin = Spin::default();
        let mut since = None;
        loop {
            let seen = match word.compare_exchange(FREE, mine, Acquire, Acquire) {
                Ok(_) => return true,
                Err(seen) => seen,
            };
            if seen & STATE != BUSY || seen & RECALLED != 0 {
                return false;
            }
            if since.get_or_insert_with(Instant::now).elapsed() > WAIT_MAX {
                return false;
            }
            let here = || (word.load(Acquire) != seen).then_some(());
            if spin.until(here).is_none() {
                sleep_while(word, seen, AWAITED);
            }
        }
    }

    /// Lets go of the grain at `offset`; false when the write does not count because the files were left to this process.
    pub fn end(&self, offset: u64) -> bool {
        let word = self.word((offset / GRAIN) as usize);
        let mut seen = word.load(Relaxed);
        loop {
            if seen & STATE != BUSY {
                return false;
            }
            let next = if seen & RECALLED != 0 { ENDED } else { FREE };
            match word.compare_exchange_weak(seen, next, AcqRel, Relaxed) {
                Ok(_) if seen & (AWAITED | RECALLED) != 0 => {
                    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
                    return true;
                }
                Ok(_) => return true,
                Err(other) => seen = other,
            }
        }
    }

    /// Length of the data file, and entries that the checksum file has room for; exact for what the caller's grain holds.
    pub fn lengths(&self) -> (u64, u64) {
        (self.segment.long(DATA_LEN_AT).load(Acquire), self.segment.long(SUM_BLOCKS_AT).load(Acquire))
    }

    /// To be called after the files have grown.
    pub fn grown_to(&self, data_len: u64, sum_blocks: u64) {
        self.segment.long(DATA_LEN_AT).fetch_max(data_len, AcqRel);
        self.segment.long(SUM_BLOCKS_AT).fetch_max(sum_blocks, AcqRel);
    }

    /// To be called after a write, before its grain is let go of: when it was, in nanoseconds since 1970. Files have a coarser clock.
    pub fn wrote_at(&self, nanos: u64) {
        self.segment.long(WRITTEN_AT).fetch_max(nanos, AcqRel);
    }

    /// When a borrower last wrote, as it says; 0 when none has.
    pub fn written(&self) -> u64 {
        self.segment.long(WRITTEN_AT).load(Acquire)
    }

    // --- the daemon ---

    /// Ends the loan: no write begins any more, and those under way are waited for, up to `limit` while the borrower lives.
    pub fn recall(&self, limit: Duration, lives: impl Fn(usize) -> bool) -> Recalled {
        let mut busy: Vec<usize> = (0..WORDS).filter(|grain| !self.try_recall(*grain)).collect();
        let since = Instant::now();
        let mut stopped = false;
        while let Some(grain) = busy.last().copied() {
            let word = self.word(grain);
            let seen = word.load(Acquire);
            if seen & STATE != BUSY || self.try_recall(grain) {
                busy.pop();
            } else if !lives((seen >> WHO) as usize) {
                word.store(ENDED, Release);
                busy.pop();
            } else if since.elapsed() > limit {
                stopped |= word.compare_exchange(seen, VOID, AcqRel, Relaxed).is_ok();
            } else {
                sleep_while(word, seen, RECALLED);
            }
        }
        if stopped { Recalled::Stopped } else { Recalled::Clean }
    }

    /// Takes a grain's word back; false while a borrower is busy with it, who is told that it is wanted.
    fn try_recall(&self, grain: usize) -> bool {
        let word = self.word(grain);
        let mut seen = word.load(Acquire);
        loop {
            let next = if seen & STATE == BUSY { seen | RECALLED } else { ENDED };
            match word.compare_exchange_weak(seen, next, AcqRel, Acquire) {
                Ok(_) => return next == ENDED,
                Err(other) => seen = other,
            }
        }
    }
}

/// Sleeps for a moment, or until the word is not `seen` any more; `flag` says that somebody does.
fn sleep_while(word: &AtomicU32, seen: u32, flag: u32) {
    if seen & flag == 0 && word.compare_exchange(seen, seen | flag, AcqRel, Relaxed).is_err() {
        return;
    }
    let nap = futex::Timespec { tv_sec: 0, tv_nsec: NAP.as_nanos() as _ };
    let _ = futex::wait(word, futex::Flags::empty(), seen | flag, Some(&nap));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn loan() -> (Loan, Loan, Loan) {
        let (daemon, fd) = Loan::create().unwrap();
        let (one, two) = (Loan::open(&fd, 0).unwrap(), Loan::open(&fd, 1).unwrap());
        (daemon, one, two)
    }

    #[test]
    fn writes_begin_until_the_loan_is_recalled() {
        let (daemon, one, two) = loan();
        assert!(one.begin(0) && two.begin(GRAIN), "different grains");
        assert!(one.end(0) && two.end(GRAIN));
        one.grown_to(100, 3);
        one.grown_to(50, 2);
        assert_eq!(two.lengths(), (100, 3));
        assert_eq!(daemon.written(), 0);
        two.wrote_at(9);
        one.wrote_at(7);
        assert_eq!(daemon.written(), 9);
        assert_eq!(daemon.recall(Duration::ZERO, |_| true), Recalled::Clean);
        assert!(!one.begin(0) && !two.begin(5 * GRAIN));
    }

    #[test]
    fn a_recall_waits_for_a_write_under_way() {
        let (daemon, one, _) = loan();
        assert!(one.begin(3));
        std::thread::scope(|scope| {
            let recall = scope.spawn(|| daemon.recall(Duration::from_secs(60), |_| true));
            while one.word(0).load(Acquire) & RECALLED == 0 {
                std::thread::yield_now();
            }
            assert!(!recall.is_finished());
            assert!(one.end(3), "it counts");
            assert_eq!(recall.join().unwrap(), Recalled::Clean);
        });
        assert!(!one.begin(3));
    }

    #[test]
    fn a_stopped_borrower_loses_its_write_and_a_dead_one_is_not_waited_for() {
        let (daemon, one, two) = loan();
        assert!(one.begin(0) && two.begin(GRAIN));
        assert_eq!(daemon.recall(Duration::from_millis(1), |who| who == 0), Recalled::Stopped);
        assert!(!one.end(0), "the files were left to it");
        let (daemon, one, _) = loan();
        assert!(one.begin(0));
        assert_eq!(daemon.recall(Duration::from_secs(60), |_| false), Recalled::Clean);
    }

    #[test]
    fn one_grain_has_one_writer() {
        let (_daemon, one, two) = loan();
        let count = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for side in [&one, &two] {
                let count = &count;
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        assert!(side.begin(7));
                        // Not one step: two at once would lose some.
                        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                        assert!(side.end(7));
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 40_000);
    }

    /// Format 7 as it stands in memory.
    #[test]
    fn the_layout_is_as_specified() {
        let (loan, fd) = Loan::create().unwrap();
        loan.grown_to(0x1122, 0x33);
        loan.wrote_at(0x4455);
        let one = Loan::open(&fd, 5).unwrap();
        assert!(one.begin(65 * GRAIN));
        let mut bytes = [0; BYTES];
        one.segment.read(0, &mut bytes);
        assert_eq!(&bytes[..8], b"TPLOAN02");
        assert_eq!(bytes[68..72], [1, 0, 5, 0], "word 1: busy, borrower 5");
        assert_eq!(bytes[512..528], [0x22, 0x11, 0, 0, 0, 0, 0, 0, 0x33, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[528..536], [0x55, 0x44, 0, 0, 0, 0, 0, 0]);
        assert!(Loan::open(&fd, BORROWERS_MAX as u32).is_err());
    }

    #[test]
    fn garbage_in_the_words_ends_the_loan() {
        let (daemon, one, _) = loan();
        for grain in 0..WORDS {
            one.word(grain).store(mixed(grain), Relaxed);
        }
        daemon.recall(Duration::ZERO, |_| false);
        assert!((0..WORDS).all(|grain| !one.begin(grain as u64 * GRAIN)));
    }

    fn mixed(n: usize) -> u32 {
        (n as u32).wrapping_mul(0x9e37_79b9) ^ 0x5bd1_e995
    }
}
