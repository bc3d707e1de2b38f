//! Queues with some places: of servers' threads, and as a device for what queueing theory knows.

use super::{Change, Context};
use crate::kept::are_small;
use crate::span::Span;
use tidepool_sim::saved;

/// First come, first served by as many at once as there are lanes: an array of next available times (S1 §III-C).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lanes {
    free: Vec<u64>,
}

saved!(struct Lanes { free });

impl Lanes {
    /// Whether these are so many, and what they can have come to.
    pub fn fits(&self, count: u32) -> bool {
        self.free.len() == count as usize && are_small(&self.free)
    }

    pub fn new(count: u32) -> Lanes {
        Lanes { free: vec![0; count as usize] }
    }

    /// The lane that is free first.
    #[inline]
    pub fn next(&self) -> u32 {
        let next = (0..self.free.len()).min_by_key(|lane| self.free[*lane]);
        next.unwrap_or(0) as u32
    }

    #[inline]
    pub fn free(&self, lane: u32) -> u64 {
        self.free[lane as usize]
    }

    /// Somebody takes a lane from now, or from when it is free, for `time`; until when.
    #[inline]
    pub fn take(&mut self, lane: u32, now: u64, time: u64) -> u64 {
        let free = &mut self.free[lane as usize];
        *free = (*free).max(now).saturating_add(time);
        *free
    }

    pub fn set(&mut self, lane: u32, free: u64) {
        self.free[lane as usize] = free;
    }
}

/// A device that takes the same time for whatever it is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StationSpec {
    /// Requests at a time.
    pub lanes: u32,
    pub time: Span,
}

impl StationSpec {
    pub fn service(&self, lanes: &mut Lanes, now: u64, with: &mut impl Context) -> u64 {
        let time = self.time.draw(with.random());
        let lane = lanes.next();
        with.keep(|| Change::Part(lane, lanes.free(lane)));
        lanes.take(lane, now, time)
    }
}
