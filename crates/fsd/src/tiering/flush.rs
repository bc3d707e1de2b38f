//! Moves data to a slower tier, a little at a time: copy, verify, sync, give up (`tidepool_store::tiers`).

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidepool_env::RealDisk;
use tidepool_store::{StoreError, TierIndex, Tiers, UNIT};
use tidepool_types::Ino;

/// Units of an object that are moved at once: writers of that object wait meanwhile.
const MOVE_UNITS: u64 = 8;
/// How long a flush goes on before it is looked whether it still should.
const FLUSH_FOR: Duration = super::TICK;
/// Pause after a flush that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Flushes of one daemon.
pub struct Flusher {
    /// Most bytes in a second; 0 for no limit.
    bandwidth: u64,
    flushed: AtomicU64,
    at_work: Mutex<Work>,
}

struct Work {
    /// Where the flush of a tier goes on.
    cursors: Vec<Option<Ino>>,
    /// Not before then is anything flushed.
    from: Option<Instant>,
}

impl Flusher {
    pub fn new(bandwidth: u64, tiers: usize) -> Flusher {
        let at_work = Mutex::new(Work { cursors: vec![None; tiers], from: None });
        Flusher { bandwidth, flushed: AtomicU64::new(0), at_work }
    }

    /// Bytes that were moved since the start of the daemon.
    pub fn flushed(&self) -> u64 {
        self.flushed.load(Ordering::Relaxed)
    }

    pub fn rest_after_failure(&self) {
        self.at_work.lock().expect("no thread panics here").from = Some(Instant::now() + AFTER_FAILURE);
    }

    /// Moves some of what lies on tier `from`, unless the limit is used up for now.
    pub fn go(
        &self,
        tiers: &Tiers<RealDisk>,
        from: TierIndex,
        to: TierIndex,
        stopping: &dyn Fn() -> bool,
    ) -> Result<(), StoreError> {
        let mut work = self.at_work.lock().expect("no thread panics here");
        if work.from.is_some_and(|from| from > Instant::now()) {
            return Ok(());
        }
        let moved = self.flush_for_a_while(tiers, &mut work.cursors[from], (from, to), stopping)?;
        if self.bandwidth > 0 && moved > 0 {
            let takes = Duration::from_secs_f64(moved as f64 / self.bandwidth as f64);
            work.from = Some(Instant::now() + takes.saturating_sub(FLUSH_FOR));
        }
        Ok(())
    }

    /// Bytes that were moved.
    fn flush_for_a_while(
        &self,
        tiers: &Tiers<RealDisk>,
        cursor: &mut Option<Ino>,
        (from, to): (TierIndex, TierIndex),
        stopping: &dyn Fn() -> bool,
    ) -> Result<u64, StoreError> {
        let (began, mut moved) = (Instant::now(), 0);
        let limit = match self.bandwidth {
            0 => u64::MAX,
            rate => rate / 10,
        };
        let units = (limit / UNIT).clamp(1, MOVE_UNITS);
        while began.elapsed() < FLUSH_FOR && (moved == 0 || moved < limit) && !stopping() {
            let Some(ino) = tiers.tier(from).objects(*cursor, 1)?.first().copied() else {
                *cursor = None;
                break;
            };
            let next = tiers.tier(from).extents(ino, 0, 1)?.first().map(|(at, _)| at / UNIT);
            let some = match next {
                // One that cannot be moved keeps no others from it.
                Some(unit) => {
                    tiers.move_units(ino, unit, units, from, to).inspect_err(|_| *cursor = Some(ino))?
                }
                None => 0,
            };
            if some == 0 {
                *cursor = Some(ino);
            }
            moved += some;
        }
        self.flushed.fetch_add(moved, Ordering::Relaxed);
        Ok(moved)
    }
}
