//! Moves data to a slower tier, a little at a time: copy, verify, sync, give up (`tidepool_store::tiers`).

use super::order::{Order, Progress};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tidepool_env::RealDisk;
use tidepool_store::{StoreError, TIERS_MAX, TierIndex, Tiers, UNIT};
use tidepool_types::{BLOCK_SIZE, Ino};

/// Bytes of an object that are moved at once: its writers wait meanwhile.
const MOVE_BYTES: u64 = 4 << 20;
/// How long a flush goes on before it is looked whether it still should.
const FLUSH_FOR: Duration = super::scheduler::TICK;
/// Pause after a flush that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// How long a flush waits for those who ask how far it is, before it looks again.
const LET_ASK: Duration = Duration::from_micros(200);
/// Objects that are listed at once when it is counted what is left.
const LISTED: usize = 1024;

/// Most bytes in a second; 0 for no limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    pub all: u64,
    /// By the tier that is flushed to.
    pub to: [u64; TIERS_MAX],
}

/// Flushes of one daemon.
pub struct Flusher {
    limits: Limits,
    flushed: AtomicU64,
    /// Those who wait to ask how far an order is: the thread that flushes lets them.
    asking: AtomicUsize,
    /// One more than the tier of the order that stands; 0 for none.
    ordered: AtomicUsize,
    at_work: Mutex<Work>,
}

#[derive(Default)]
struct Work {
    /// Where the flush of a tier goes on.
    cursors: [Option<Ino>; TIERS_MAX],
    /// Not before then is anything flushed, after a failure.
    well_from: Option<Instant>,
    /// The same, for the limit of all.
    from: Option<Instant>,
    /// The same, for the limits of the tiers that are flushed to.
    from_to: [Option<Instant>; TIERS_MAX],
    order: Option<Order>,
}

/// Which tier's data are moved where.
pub type Way = (TierIndex, TierIndex);

impl Flusher {
    pub fn new(limits: Limits) -> Flusher {
        let at_work = Mutex::default();
        Flusher {
            limits,
            flushed: AtomicU64::new(0),
            asking: AtomicUsize::new(0),
            ordered: AtomicUsize::new(0),
            at_work,
        }
    }

    /// Bytes that were moved since the start of the daemon.
    pub fn flushed(&self) -> u64 {
        self.flushed.load(Ordering::Relaxed)
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.at_work.lock().expect("no thread panics here")
    }

    /// Nothing is tried again for a while.
    pub fn rest_after(&self, failure: &StoreError) {
        let mut work = self.work();
        work.well_from = Some(Instant::now() + AFTER_FAILURE);
        if let Some(order) = &mut work.order {
            order.failed(failure);
        }
    }

    /// Everything above `to` is to go there, whatever the strategy says; how far that is.
    pub fn order(
        &self,
        tiers: &Tiers<RealDisk>,
        to: TierIndex,
        bandwidth: u64,
    ) -> Result<Progress, StoreError> {
        self.asking.fetch_add(1, Ordering::Relaxed);
        let mut work = self.work();
        self.asking.fetch_sub(1, Ordering::Relaxed);
        let order = match work.order.take() {
            Some(order) if (order.to, order.bandwidth) == (to, bandwidth) => order.again(Instant::now()),
            _ => {
                // A pause for another limit says nothing of this one.
                (work.from, work.from_to) = Default::default();
                Order::new(to, bandwidth, Instant::now())
            }
        };
        self.ordered.store(to + 1, Ordering::Relaxed);
        let order = work.order.insert(order);
        Ok(order.progress(left_above(tiers, to)?, self.flushed()))
    }

    /// The tier of the order that stands, as it was looked at last.
    pub fn ordered(&self) -> Option<TierIndex> {
        self.ordered.load(Ordering::Relaxed).checked_sub(1)
    }

    /// The tier of the order that stands, if one does.
    pub fn look_at_order(&self, tiers: &Tiers<RealDisk>) -> Option<TierIndex> {
        let mut work = self.work();
        let is_over = |order: &Order| order.is_over(counted_above(tiers, order.to), Instant::now());
        if work.order.as_ref().is_some_and(is_over) {
            work.order = None;
        }
        let to = work.order.as_ref().map(|order| order.to);
        self.ordered.store(to.map_or(0, |to| to + 1), Ordering::Relaxed);
        to
    }

    /// Moves some of what lies on a tier, unless the limit is used up for now; how many bytes. Of an object at once, and about
    /// `most` altogether.
    pub fn go(
        &self,
        tiers: &Tiers<RealDisk>,
        way: Way,
        most: u64,
        stopping: &dyn Fn() -> bool,
    ) -> Result<u64, StoreError> {
        while self.asking.load(Ordering::Relaxed) > 0 {
            std::thread::sleep(LET_ASK);
        }
        let mut work = self.work();
        let now = Instant::now();
        if [work.well_from, work.from, work.from_to[way.1]].into_iter().flatten().any(|from| from > now) {
            return Ok(0);
        }
        let own = work.order.as_ref().map_or(0, |order| order.bandwidth);
        let (all, to) = if own > 0 { (own, 0) } else { (self.limits.all, self.limits.to[way.1]) };
        let rate = [all, to].into_iter().filter(|rate| *rate > 0).min();
        let before = self.flushed();
        let most = most.min(rate.map_or(u64::MAX, |rate| rate / 10));
        let done = self.flush_for_a_while(tiers, &mut work.cursors[way.0], way, most, stopping);
        let moved = self.flushed() - before;
        if moved > 0 {
            let until = |rate: u64| {
                let takes = Duration::from_secs_f64(moved as f64 / rate as f64);
                (rate > 0).then(|| now + takes)
            };
            work.from = until(all.max(1)).filter(|_| all > 0);
            work.from_to[way.1] = until(to.max(1)).filter(|_| to > 0);
            work.order.iter_mut().for_each(Order::moved);
        }
        done.map(|()| moved)
    }

    fn flush_for_a_while(
        &self,
        tiers: &Tiers<RealDisk>,
        cursor: &mut Option<Ino>,
        (from, to): Way,
        most: u64,
        stopping: &dyn Fn() -> bool,
    ) -> Result<(), StoreError> {
        let (began, mut moved) = (Instant::now(), 0);
        let units = (most.min(MOVE_BYTES) / UNIT).max(1);
        let is_over = |moved: u64| {
            began.elapsed() >= FLUSH_FOR
                || (moved > 0 && (moved >= most || self.asking.load(Ordering::Relaxed) > 0))
                || stopping()
        };
        while !is_over(moved) {
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
            self.flushed.fetch_add(some, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Bytes above a tier, as the stores have counted them.
fn counted_above(tiers: &Tiers<RealDisk>, to: TierIndex) -> u64 {
    (0..to).map(|tier| tiers.tier(tier).stored_blocks()).sum::<u64>() * u64::from(BLOCK_SIZE)
}

/// The same; where that is nothing it is looked at each object that is listed there, too.
fn left_above(tiers: &Tiers<RealDisk>, to: TierIndex) -> Result<u64, StoreError> {
    let counted = counted_above(tiers, to);
    if counted > 0 {
        return Ok(counted);
    }
    let mut blocks = 0;
    for store in (0..to).map(|tier| tiers.tier(tier)) {
        let mut after = None;
        loop {
            let some = store.objects(after, LISTED)?;
            let Some(last) = some.last() else { break };
            after = Some(*last);
            for ino in some {
                blocks += store.blocks(ino)?;
            }
        }
    }
    Ok(blocks * u64::from(BLOCK_SIZE))
}
