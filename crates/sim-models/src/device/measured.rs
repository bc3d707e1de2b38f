//! Devices known by measurements only, as virtual disks are: what is inside is somebody else's secret. Three stages in a row
//! that explain how throughput depends on size and concurrency, each with a cost by direction and order:
//!
//! ```text
//!            one at a time:     one at a time:       `lanes` at a time:
//!  request ─ operation ──────── bytes / rate ─────── setup + bytes / lane-rate ─── done
//!            (limit of IOPS)    (limit of bytes/s)   (latency)
//! ```
//!
//! Requests pass the first two in the order of their coming, so their times can be added up at once, as each leaves them in
//! that order, too.

use super::{Change, Context, Io, LANES_MAX};
use crate::kept::are_small;
use crate::message::Op;
use crate::network::per_byte;
use crate::span::Span;
use tidepool_sim::{Time, saved};

/// Streams that a device tells apart: files with the place where the last request ended. As many as readahead of usual systems
/// follows, and few enough to look through.
pub const STREAMS: usize = 64;

/// What a request of one class costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// Of each request, one at a time.
    pub operation: Span,
    /// Of all requests together that have come while the ones before were at it: a notification, or a commit.
    pub batch: Span,
    /// Bytes/s of all together; 0: unlimited.
    pub rate: u64,
    /// The bytes of a request that has waited for so long take twice as long, of others less in proportion, and never more: more
    /// under way than caches hold, as a rule. Zero: no difference.
    pub crowding: Time,
    /// Of each request in its lane.
    pub setup: Span,
    /// Bytes/s of a lane; 0: unlimited.
    pub lane_rate: u64,
}

impl Cost {
    pub const NONE: Cost = Cost {
        operation: Span::NONE,
        batch: Span::NONE,
        rate: 0,
        crowding: Time::ZERO,
        setup: Span::NONE,
        lane_rate: 0,
    };

    /// Nanoseconds for `length` bytes of a request that came so long ago.
    fn moved(&self, length: u32, waited: u64) -> u64 {
        let crowded = match self.crowding {
            Time::ZERO => 0.0,
            crowding => (waited as f64 / crowding.0 as f64).min(1.0),
        };
        (f64::from(length) * per_byte(self.rate) * (1.0 + crowded)) as u64
    }
}

/// A device's figures.
#[derive(Clone, PartialEq, Debug)]
pub struct MeasuredSpec {
    /// Requests in the last stage at a time.
    pub lanes: u32,
    /// The first two stages are one: who moves the bytes does nothing else meanwhile, as one thread would.
    pub joined: bool,
    /// By [`class`].
    pub costs: [Cost; 4],
    /// Of an open.
    pub open: Span,
    /// Of an fsync, after all that came before.
    pub flush: Span,
}

/// Place of a class among the costs.
pub fn class(is_write: bool, is_random: bool) -> usize {
    2 * usize::from(is_write) + usize::from(is_random)
}

/// Times at which parts are free: the two stages, then the lanes; and what was asked for last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Measured {
    parts: Vec<u64>,
    /// File, and where its last request ended.
    streams: Vec<(u32, u64)>,
    /// Which of them is given up next.
    oldest: u32,
}

const OPERATION: u32 = 0;
const BYTES: u32 = 1;
/// When the requests that were let in together last begin.
const BATCH: u32 = 2;
const LANES: u32 = 3;
/// Of no file: reads and writes end below.
const NO_STREAM: (u32, u64) = (u32::MAX, u64::MAX);

saved!(struct Measured { parts, streams, oldest });

impl Measured {
    pub fn set(&mut self, part: u32, free: u64) {
        self.parts[part as usize] = free;
    }

    pub fn set_stream(&mut self, slot: u32, stream: (u32, u64), oldest: u32) {
        self.streams[slot as usize] = stream;
        self.oldest = oldest;
    }

    fn take(&mut self, part: u32, from: u64, time: u64, with: &mut impl Context) -> u64 {
        let was = self.parts[part as usize];
        with.keep(|| Change::Part(part, was));
        let until = was.max(from).saturating_add(time);
        self.parts[part as usize] = until;
        until
    }

    /// What a request pays for its batch: nothing when it comes before those that wait have begun.
    fn batch(&mut self, cost: &Cost, now: u64, with: &mut impl Context) -> u64 {
        let (free, began) = (self.parts[OPERATION as usize], self.parts[BATCH as usize]);
        if cost.batch == Span::NONE || now < began {
            return 0;
        }
        with.keep(|| Change::Part(BATCH, began));
        self.parts[BATCH as usize] = free.max(now);
        cost.batch.draw(with.random())
    }

    fn lane(&self) -> u32 {
        let lanes = LANES..self.parts.len() as u32;
        lanes.min_by_key(|part| self.parts[*part as usize]).unwrap_or(LANES)
    }

    /// Whether a request goes on where one of the last ones of its file ended, or begins a file.
    fn goes_on(&mut self, io: &Io, with: &mut impl Context) -> bool {
        let end = io.at.saturating_add(io.length.into());
        let found = self.streams.iter().position(|stream| *stream == (io.file, io.at));
        let oldest = self.oldest;
        let slot = match found {
            Some(slot) => slot as u32,
            None => {
                self.oldest = (oldest + 1) % STREAMS as u32;
                oldest
            }
        };
        let was = self.streams[slot as usize];
        with.keep(|| Change::Stream(slot, was, oldest));
        self.streams[slot as usize] = (io.file, end);
        found.is_some() || io.at == 0
    }
}

impl MeasuredSpec {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        if (1..=LANES_MAX).contains(&self.lanes) { Ok(()) } else { Err("it has 1 to 65536 lanes") }
    }

    pub(super) fn fits(&self, state: &Measured) -> bool {
        state.parts.len() == (LANES + self.lanes) as usize
            && are_small(&state.parts)
            && state.streams.len() == STREAMS
            && (state.oldest as usize) < STREAMS
    }

    pub(super) fn start(&self) -> Measured {
        let parts = vec![0; (LANES + self.lanes) as usize];
        Measured { parts, streams: vec![NO_STREAM; STREAMS], oldest: 0 }
    }

    pub fn service(&self, state: &mut Measured, io: &Io, now: u64, with: &mut impl Context) -> u64 {
        match io.op {
            Op::Open | Op::Create | Op::Unlink => return now.saturating_add(self.open.draw(with.random())),
            Op::Close | Op::Stat | Op::Barrier => return now,
            Op::Fsync => {
                let all = state.parts.iter().copied().max().unwrap_or(0).max(now);
                return all.saturating_add(self.flush.draw(with.random()));
            }
            Op::Read | Op::Write => {}
        }
        let is_random = !state.goes_on(io, with);
        let cost = self.costs[class(io.op == Op::Write, is_random)];
        let operation = cost.operation.draw(with.random()).saturating_add(state.batch(&cost, now, with));
        let admitted = state.take(OPERATION, now, operation, with);
        let stage = if self.joined { OPERATION } else { BYTES };
        let waited = state.parts[stage as usize].max(admitted) - now;
        let through = state.take(stage, admitted, cost.moved(io.length, waited), with);
        let setup = cost.setup.draw(with.random());
        let own = (f64::from(io.length) * per_byte(cost.lane_rate)) as u64;
        state.take(state.lane(), through, setup.saturating_add(own), with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_sim::Stream;

    struct Kept(Stream, Vec<Change>);

    impl Context for Kept {
        fn random(&mut self) -> &mut Stream {
            &mut self.0
        }

        fn keep(&mut self, change: impl FnOnce() -> Change) {
            self.1.push(change());
        }
    }

    fn us(n: u64) -> Span {
        Span::Fixed(Time(n * 1_000))
    }

    /// 10 us one at a time, then 1 ns for each byte, then 100 us and 2 ns for each byte in one of four lanes.
    fn spec() -> MeasuredSpec {
        let cost = Cost {
            operation: us(10),
            batch: Span::NONE,
            rate: 1_000_000_000,
            crowding: Time::ZERO,
            setup: us(100),
            lane_rate: 500_000_000,
        };
        let slow = Cost { setup: us(500), ..cost };
        MeasuredSpec { lanes: 4, joined: false, costs: [cost, slow, cost, slow], open: us(7), flush: us(9) }
    }

    fn io(op: Op, file: u32, at: u64) -> Io {
        Io { op, file, at, length: 10_000 }
    }

    fn times(all: &[Io]) -> Vec<u64> {
        let (spec, mut with) = (spec(), Kept(Stream::new(1, 1), Vec::new()));
        let mut state = spec.start();
        all.iter().map(|io| spec.service(&mut state, io, 0, &mut with) / 1_000).collect()
    }

    #[test]
    fn stages_follow_each_other_and_lanes_work_at_once() {
        // 10 + 10 + 120; the next ones leave the first two stages each 10 us later.
        let stream: Vec<Io> = (0..6).map(|n| io(Op::Read, 0, n * 10_000)).collect();
        assert_eq!(times(&stream), [140, 150, 160, 170, 260, 270]);
    }

    #[test]
    fn those_that_wait_together_pay_once() {
        let cost = Cost { operation: us(10), batch: us(30), ..Cost::NONE };
        let spec = MeasuredSpec { lanes: 4, joined: true, costs: [cost; 4], open: us(0), flush: us(0) };
        let (mut state, mut with) = (spec.start(), Kept(Stream::new(1, 1), Vec::new()));
        let mut done = |n: u64, at: u64| {
            spec.service(&mut state, &io(Op::Read, 0, n * 10_000), at * 1_000, &mut with) / 1_000
        };
        // The first is alone; the next three wait for it, and go in together at 40.
        assert_eq!([done(0, 0), done(1, 5), done(2, 6), done(3, 39)], [40, 80, 90, 100]);
        // At 40 they have begun: who comes now waits for the next time.
        assert_eq!([done(4, 40), done(5, 99), done(6, 500)], [140, 150, 540]);
    }

    #[test]
    fn joined_stages_are_one() {
        let (spec, mut with) = (MeasuredSpec { joined: true, ..spec() }, Kept(Stream::new(1, 1), Vec::new()));
        let mut state = spec.start();
        let done =
            [0, 1, 2].map(|n| spec.service(&mut state, &io(Op::Read, 0, n * 10_000), 0, &mut with) / 1_000);
        // 20 us each, one at a time, then 120 us in a lane.
        assert_eq!(done, [140, 160, 180]);
    }

    #[test]
    fn bytes_take_longer_when_more_wait() {
        for joined in [false, true] {
            let cost = Cost { crowding: Time(100_000), ..spec().costs[0] };
            let spec = MeasuredSpec { lanes: 64, joined, costs: [cost; 4], open: us(0), flush: us(0) };
            let (mut state, mut with) = (spec.start(), Kept(Stream::new(1, 1), Vec::new()));
            let mut out =
                |n: u64| spec.service(&mut state, &io(Op::Read, 0, n * 10_000), 0, &mut with) / 1_000 - 120;
            // 10 us of operations; then 10 us and a tenth for each 10 us that it has waited.
            let first = 10 + 11;
            let second = if joined { 31 + 13 } else { 21 + 12 };
            assert_eq!([out(0), out(1)], [first, second]);
            // Twice as long at most.
            let (before, after) = ((2..40).map(&mut out).last().unwrap(), out(40));
            assert_eq!(after - before, if joined { 30 } else { 20 });
        }
    }

    #[test]
    fn streams_are_told_apart() {
        let two =
            [io(Op::Write, 1, 0), io(Op::Write, 2, 0), io(Op::Write, 1, 10_000), io(Op::Write, 2, 10_000)];
        assert_eq!(times(&two), [140, 150, 160, 170]);
        let jumps = [io(Op::Write, 1, 0), io(Op::Write, 1, 50_000), io(Op::Write, 1, 10_000)];
        // Where a file was read last is forgotten only when other streams need the place.
        assert_eq!(times(&jumps), [140, 550, 160]);
    }

    #[test]
    fn old_streams_are_given_up() {
        let mut all: Vec<Io> = (0..STREAMS as u32 + 1).map(|file| io(Op::Read, file, 0)).collect();
        all.push(io(Op::Read, 0, 10_000));
        let (spec, mut with) = (spec(), Kept(Stream::new(1, 1), Vec::new()));
        let mut state = spec.start();
        let mut now = 0;
        let mut last = 0;
        for io in &all {
            let done = spec.service(&mut state, io, now, &mut with);
            (last, now) = (done - now, done);
        }
        assert_eq!(last, 540_000);
    }

    #[test]
    fn an_fsync_comes_after_all_before() {
        assert_eq!(
            times(&[io(Op::Write, 1, 0), Io { op: Op::Fsync, file: 1, at: 0, length: 0 }]),
            [140, 149]
        );
        assert_eq!(times(&[Io { op: Op::Open, file: 1, at: 0, length: 0 }]), [7]);
    }

    #[test]
    fn every_change_can_be_taken_back() {
        let (spec, mut with) = (spec(), Kept(Stream::new(5, 5), Vec::new()));
        let mut device = super::super::Device::Measured(spec.start());
        for n in 0..200u64 {
            let before = device.clone();
            with.1.clear();
            let io = io(if n % 3 == 0 { Op::Read } else { Op::Write }, (n % 70) as u32, n / 70 * 10_000);
            let super::super::Device::Measured(state) = &mut device else { unreachable!() };
            spec.service(state, &io, n * 1_000, &mut with);
            let after = device.clone();
            for change in with.1.drain(..).rev() {
                device.undo(change);
            }
            assert_eq!(device, before, "request {n}");
            device = after;
        }
    }
}
