//! What is flushed when: by an order, by the strategy, or while the pool's programs are quiet. In a thread of its own: storage that
//! is slow must not keep the scheduler from looking.

use super::flush::Way;
use super::loads::Load;
use super::order::Progress;
use super::scheduler::Work;
use super::{Tiering, locked};
use crate::flush_config::FlushWhen;
use crate::serve::Service;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidepool_env::RealDisk;
use tidepool_iosched::{Decision, FlushVerdict, JobId, Pattern, Tier};
use tidepool_store::{StoreError, Tiers};
use tidepool_types::Errno;
use tidepool_wire::message::{FlushTo, Reply};

/// How long it rests where there is nothing to do.
const REST: Duration = Duration::from_millis(50);
/// A flush counts as so many processes on a shaped tier: as a stream for each of a small tier's nodes (decision 26).
const STREAMS: u32 = tidepool_iosched::FLUSH_WEIGHT;
/// Marks a daemon's flush among those who share a shaped tier.
const FLUSH_BIT: u64 = 1 << 63;
/// Bytes of one request of a stream.
const REQUEST: u64 = 64 << 10;
/// What is moved before it is waited for a shaped tier.
const SHAPED_BYTES: u64 = 512 << 10;

/// Sleeps, unless the service stops.
fn rest(service: &Service, mut wait: Duration) {
    while !wait.is_zero() && !service.stopping() {
        let some = wait.min(REST);
        std::thread::sleep(some);
        wait -= some;
    }
}

impl Tiering {
    /// What the strategy wants moved now.
    pub(super) fn ways_to_flush(&self, decision: &Decision, work: &Work) -> Vec<Way> {
        let last = self.tiers.len() - 1;
        match self.when {
            FlushWhen::Idle if self.is_idle(work) => (0..last).map(|from| (from, last)).collect(),
            FlushWhen::Idle => Vec::new(),
            FlushWhen::Strategy => {
                let own = decision.flushes.iter().filter(|((job, _), _)| *job == JobId(self.job));
                own.filter_map(|((_, tier), verdict)| {
                    let FlushVerdict::Go { to, .. } = verdict else { return None };
                    // A pool may not have the tier that the strategy has in mind.
                    Some((self.index_of(*tier)?, self.index_of(*to)?))
                })
                .collect()
            }
        }
    }

    /// The pool's programs write nowhere, as far as its daemons have told.
    fn is_idle(&self, work: &Work) -> bool {
        let of_pool = |load: &&Load| load.job == self.job;
        work.phases.current().is_none() && work.heard.iter().filter(of_pool).all(|load| load.phase.is_none())
    }

    /// Flushes until the service stops.
    pub fn run_flush(&self, service: &Service) {
        while !service.stopping() {
            match self.flush_once(service) {
                Ok(0) => std::thread::sleep(REST),
                Ok(_) => {}
                Err(error) => {
                    service.note_trouble(&error);
                    self.flusher.rest_after(&error);
                }
            }
        }
    }

    /// Something was written since it was looked whether anybody writes.
    fn is_disturbed(&self, service: &Service) -> bool {
        let written = service.counters.bytes_written.load(Ordering::Relaxed);
        self.when == FlushWhen::Idle && written != self.looked_at.load(Ordering::Relaxed)
    }

    /// Bytes that were moved.
    fn flush_once(&self, service: &Service) -> Result<u64, StoreError> {
        let order = self.flusher.look_at_order(service.chunks());
        let ways = match order {
            Some(to) => (0..to).map(|from| (from, to)).collect(),
            None => locked(&self.ways).clone(),
        };
        let stop = || service.stopping() || (order.is_none() && self.is_disturbed(service));
        let mut moved = 0;
        for way in ways {
            let most = if self.is_shaped(way) { SHAPED_BYTES } else { u64::MAX };
            let some = self.flusher.go(service.chunks(), way, most, &stop)?;
            self.wait_for_shapes(service, way, some)?;
            moved += some;
        }
        Ok(moved)
    }

    fn is_shaped(&self, (from, to): Way) -> bool {
        self.shaper(from).is_some() || self.shaper(to).is_some()
    }

    /// What was moved was read from one tier and written to the other, in requests of a usual size: larger ones would have
    /// more of a tier that is served in order of arrival.
    fn wait_for_shapes(&self, service: &Service, (from, to): Way, moved: u64) -> Result<(), StoreError> {
        let mut left = moved;
        while left > 0 {
            let slice = left.min(u64::from(STREAMS) * REQUEST);
            for shaper in [from, to].into_iter().filter_map(|tier| self.shaper(tier)) {
                let wait = shaper.admit(self.who() ^ FLUSH_BIT, STREAMS, slice, Pattern::Sequential);
                rest(service, wait.map_err(|e| StoreError::unknown_load(&e.to_string()))?);
            }
            left -= slice;
        }
        Ok(())
    }

    pub(super) fn leave_as_flush(&self, shaper: &tidepool_shape::Shaper) {
        // What cannot be removed is forgotten when it has been silent for long.
        let _ = shaper.leave(self.who() ^ FLUSH_BIT);
    }

    /// Has everything above a tier moved to it; the reply that tells how far that is.
    pub fn order(&self, tiers: &Tiers<RealDisk>, to: FlushTo, bandwidth: u64) -> Reply {
        let index = match to {
            FlushTo::Last => Some(self.tiers.len() - 1),
            FlushTo::Burst => self.index_of(Tier::Burst),
            FlushTo::Pfs => self.index_of(Tier::Pfs),
        };
        let Some(index) = index else {
            let detail = match to {
                FlushTo::Burst => "the pool has no burst buffer",
                _ => "the pool has no parallel file system",
            };
            return Reply::Failed { errno: Errno::EINVAL, detail: detail.into() };
        };
        match self.flusher.order(tiers, index, bandwidth) {
            Ok(Progress { above, moved, failures, why: detail }) => {
                Reply::FlushState { above, moved, failures, detail }
            }
            Err(error) => Reply::Failed { errno: error.errno(), detail: error.to_string() },
        }
    }
}
