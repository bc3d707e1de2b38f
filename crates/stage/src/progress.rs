//! Honest progress: counts that only rise, and a time left only when it can be known.

use crate::pace::{Done, Pace};
use crate::sync::lock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What a copy is at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    Starting,
    /// Listing the source; copying goes on meanwhile.
    Walking,
    /// All is listed.
    Copying,
    Finishing,
    Complete,
    /// Ended, not complete.
    Failed,
}

const PHASES: [Phase; 6] =
    [Phase::Starting, Phase::Walking, Phase::Copying, Phase::Finishing, Phase::Complete, Phase::Failed];

/// A look at a copy under way.
#[derive(Clone, Debug)]
pub struct Progress {
    pub phase: Phase,
    /// Entries other than directories that are finished: verified and under their names.
    pub files_done: u64,
    pub files_seen: u64,
    /// Logical bytes that are verified (or were there before).
    pub bytes_done: u64,
    pub bytes_seen: u64,
    /// `files_seen` and `bytes_seen` are all there is.
    pub walk_complete: bool,
    /// Bytes per second copied lately; what was skipped does not count.
    pub rate: f64,
    /// `None` while the total or the rate is unknown.
    pub eta: Option<Duration>,
    /// Share of the whole; `None` while the whole is unknown. 100 only when complete.
    pub percent: Option<f64>,
}

/// Cancels a copy and shows its progress. Clones share their state.
#[derive(Clone, Default)]
pub struct Control {
    pub(crate) inner: Arc<Counters>,
}

pub(crate) struct Counters {
    cancel: Arc<AtomicBool>,
    started: Instant,
    phase: AtomicU8,
    pub files_done: AtomicU64,
    pub files_seen: AtomicU64,
    pub bytes_done: AtomicU64,
    pub bytes_seen: AtomicU64,
    pub bytes_copied: AtomicU64,
    pub files_skipped: AtomicU64,
    pub bytes_skipped: AtomicU64,
    /// Totals counted ahead; 0 while unknown.
    files_ahead: AtomicU64,
    bytes_ahead: AtomicU64,
    ahead_known: AtomicBool,
    walk_complete: AtomicBool,
    /// Highest share shown so far, in millionths.
    shown: AtomicU64,
    pace: Mutex<Pace>,
    /// When the pace wants to be told again, in microseconds since the start.
    next_tell: AtomicU64,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            cancel: Arc::default(),
            started: Instant::now(),
            phase: AtomicU8::new(0),
            files_done: AtomicU64::new(0),
            files_seen: AtomicU64::new(0),
            bytes_done: AtomicU64::new(0),
            bytes_seen: AtomicU64::new(0),
            bytes_copied: AtomicU64::new(0),
            files_skipped: AtomicU64::new(0),
            bytes_skipped: AtomicU64::new(0),
            files_ahead: AtomicU64::new(0),
            bytes_ahead: AtomicU64::new(0),
            ahead_known: AtomicBool::new(false),
            walk_complete: AtomicBool::new(false),
            shown: AtomicU64::new(0),
            pace: Mutex::default(),
            next_tell: AtomicU64::new(0),
        }
    }
}

impl Control {
    /// A control that is cancelled when `flag` becomes true, for signal handlers.
    pub fn with_cancel(flag: Arc<AtomicBool>) -> Control {
        Control { inner: Arc::new(Counters { cancel: flag, ..Counters::default() }) }
    }

    /// Ends the copy soon; what is finished stays, what is not can be resumed.
    pub fn cancel(&self) {
        self.inner.cancel.store(true, Ordering::Release);
    }

    /// What a part of the same work is cancelled by.
    pub(crate) fn cancel_flag(&self) -> Arc<AtomicBool> {
        self.inner.cancel.clone()
    }

    pub fn is_cancelled(&self) -> bool {
        self.inner.cancel.load(Ordering::Acquire)
    }

    pub fn progress(&self) -> Progress {
        self.inner.snapshot(self.inner.started.elapsed())
    }
}

impl Counters {
    pub fn set_phase(&self, phase: Phase) {
        // Phases come in the order of their numbers; two workers may report at once.
        self.phase.fetch_max(phase as u8, Ordering::AcqRel);
    }

    pub fn set_walk_complete(&self) {
        self.walk_complete.store(true, Ordering::Release);
        self.set_phase(Phase::Copying);
    }

    pub fn set_ahead(&self, files: u64, bytes: u64) {
        self.files_ahead.store(files, Ordering::Relaxed);
        self.bytes_ahead.store(bytes, Ordering::Relaxed);
        self.ahead_known.store(true, Ordering::Release);
    }

    fn totals(&self) -> Option<(u64, u64)> {
        let seen = (self.files_seen.load(Ordering::Acquire), self.bytes_seen.load(Ordering::Acquire));
        if self.walk_complete.load(Ordering::Acquire) {
            return Some(seen);
        }
        let ahead = self.ahead_known.load(Ordering::Acquire);
        ahead.then(|| {
            let files = self.files_ahead.load(Ordering::Relaxed).max(seen.0);
            (files, self.bytes_ahead.load(Ordering::Relaxed).max(seen.1))
        })
    }

    fn snapshot(&self, elapsed: Duration) -> Progress {
        let load = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        let phase = PHASES[usize::from(self.phase.load(Ordering::Acquire))];
        let (files_done, bytes_done) = (load(&self.files_done), load(&self.bytes_done));
        let totals = self.totals();
        let done = self.done();
        let mut pace = lock(&self.pace);
        pace.tell(elapsed.as_secs_f64(), done);
        let eta = match (phase, totals) {
            (Phase::Complete, _) => Some(Duration::ZERO),
            (Phase::Failed, _) | (_, None) => None,
            (_, Some((files, bytes))) => {
                let left = |total: u64, done: f64| (total as f64 - done).max(0.0);
                let there = load(&self.bytes_skipped) as f64;
                let left = Done {
                    copied: left(bytes, (done.copied + there).max(bytes_done as f64)),
                    verified: left(bytes, bytes_done as f64),
                    files: left(files, files_done as f64),
                };
                pace.left(&left).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            }
        };
        Progress {
            phase,
            files_done,
            files_seen: load(&self.files_seen),
            bytes_done,
            bytes_seen: load(&self.bytes_seen),
            walk_complete: self.walk_complete.load(Ordering::Acquire),
            rate: pace.rate(),
            eta,
            percent: totals.map(|totals| self.percent(phase, files_done, totals)),
        }
    }

    /// What has been done here and now; what was there already took no time worth learning from.
    fn done(&self) -> Done {
        let load = |counter: &AtomicU64| counter.load(Ordering::Acquire) as f64;
        Done {
            copied: load(&self.bytes_copied),
            verified: (load(&self.bytes_done) - load(&self.bytes_skipped)).max(0.0),
            files: (load(&self.files_done) - load(&self.files_skipped)).max(0.0),
        }
    }

    /// Something has been done: notes how it goes, from time to time.
    pub fn tick(&self) {
        let elapsed = self.started.elapsed();
        if (elapsed.as_micros() as u64) < self.next_tell.load(Ordering::Relaxed) {
            return;
        }
        // Whoever has it notes it.
        if let Ok(mut pace) = self.pace.try_lock() {
            pace.tell(elapsed.as_secs_f64(), self.done());
            self.next_tell.store((pace.next() * 1e6) as u64, Ordering::Relaxed);
        }
    }

    /// Share of the whole. Bytes count when they are copied and when they are verified, half each, and
    /// a file as much as a small block, so that neither one large file nor many empty ones stand still.
    fn percent(&self, phase: Phase, files_done: u64, (files, bytes): (u64, u64)) -> f64 {
        const FILE_WEIGHT: f64 = 4096.0;
        if phase == Phase::Complete {
            return 100.0;
        }
        let load = |counter: &AtomicU64| counter.load(Ordering::Acquire) as f64;
        let verified = load(&self.bytes_done);
        let copied = (load(&self.bytes_copied) + load(&self.bytes_skipped)).max(verified).min(bytes as f64);
        let done = (copied + verified) / 2.0 + FILE_WEIGHT * files_done as f64;
        let whole = bytes as f64 + FILE_WEIGHT * files as f64;
        let share = if whole > 0.0 { (done / whole).min(0.999) } else { 0.999 };
        let millionths = (share * 1e6) as u64;
        self.shown.fetch_max(millionths, Ordering::AcqRel).max(millionths) as f64 / 1e4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_left_is_told_before_the_total_is_known() {
        let counters = Counters::default();
        counters.files_seen.store(10, Ordering::Relaxed);
        counters.files_done.store(5, Ordering::Relaxed);
        let before = counters.snapshot(Duration::from_secs(5));
        assert_eq!((before.eta, before.percent), (None, None));
        counters.set_walk_complete();
        let after = counters.snapshot(Duration::from_secs(5));
        let eta = after.eta.expect("half of it is done").as_secs_f64();
        assert!((eta - 5.0).abs() < 0.01, "{eta}");
        assert_eq!(after.percent, Some(50.0));
    }

    #[test]
    fn a_hundred_percent_are_for_the_complete_copy_only() {
        let counters = Counters::default();
        counters.set_walk_complete();
        assert_eq!(counters.snapshot(Duration::from_secs(1)).percent, Some(99.9));
        counters.set_phase(Phase::Complete);
        assert_eq!(counters.snapshot(Duration::from_secs(1)).percent, Some(100.0));
    }

    #[test]
    fn the_share_never_falls_when_more_is_found() {
        let counters = Counters::default();
        counters.set_ahead(2, 0);
        counters.files_done.store(1, Ordering::Relaxed);
        counters.files_seen.store(1, Ordering::Relaxed);
        assert_eq!(counters.snapshot(Duration::from_secs(1)).percent, Some(50.0));
        counters.files_seen.store(100, Ordering::Relaxed);
        assert_eq!(counters.snapshot(Duration::from_secs(1)).percent, Some(50.0));
    }
}
