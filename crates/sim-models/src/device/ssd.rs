//! Solid-state disks (S1 §III-F2, Figure 3): channels with packages of dies behind a flash translation layer. Each part has
//! its next available time; channels and dies work at once.
//!
//! ```text
//!            ┌ channel 0 ─ package 0: die, die ...
//!  FTL ──────┤            └ package 1: die, die ...
//!            └ channel 1 ─ ...
//! ```

use super::{Change, Context, Io, LANES_MAX};
use crate::kept::are_small;
use crate::message::Op;
use crate::network::per_byte;
use crate::span::Span;
use tidepool_sim::saved;

/// A disk's figures.
#[derive(Clone, PartialEq, Debug)]
pub struct SsdSpec {
    pub channels: u32,
    /// Of each channel.
    pub packages: u32,
    /// Of each package.
    pub dies: u32,
    /// Bytes that a die reads or programs at once.
    pub page: u32,
    /// Of a page, in the die.
    pub read: Span,
    pub program: Span,
    /// Bytes/s of a channel.
    pub channel_rate: u64,
    /// Of a request, in the translation layer: one at a time.
    pub ftl: Span,
    /// Of an fsync.
    pub flush: Span,
}

/// Times at which parts are free: the translation layer, the channels, the dies; then the die that is written to next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ssd {
    parts: Vec<u64>,
}

saved!(struct Ssd { parts });

impl Ssd {
    pub fn set(&mut self, part: u32, to: u64) {
        self.parts[part as usize] = to;
    }

    fn change(&mut self, part: u32, to: u64, with: &mut impl Context) {
        let was = self.parts[part as usize];
        with.keep(|| Change::Part(part, was));
        self.parts[part as usize] = to;
    }

    /// Takes a part from `from` on, or from when it is free; until when.
    fn take(&mut self, part: u32, from: u64, time: u64, with: &mut impl Context) -> u64 {
        let until = self.parts[part as usize].max(from).saturating_add(time);
        self.change(part, until, with);
        until
    }
}

const FTL: u32 = 0;

impl SsdSpec {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let dies = [self.channels, self.packages, self.dies].map(u64::from).iter().product::<u64>();
        match (dies, self.page) {
            (0, _) => Err("it has no dies: channels, packages and dies are at least 1"),
            (dies, _) if dies > LANES_MAX.into() => Err("it has more than 65536 dies"),
            (_, ..512) => Err("a page has at least 512 bytes"),
            _ => Ok(()),
        }
    }

    pub(super) fn fits(&self, ssd: &Ssd) -> bool {
        let next_die = 1 + self.channels + self.dies_all();
        ssd.parts.len() == next_die as usize + 1
            && are_small(&ssd.parts)
            && ssd.parts[next_die as usize] < self.dies_all().into()
    }

    pub fn dies_all(&self) -> u32 {
        self.channels * self.packages * self.dies
    }

    pub(super) fn start(&self) -> Ssd {
        Ssd { parts: vec![0; (1 + self.channels + self.dies_all() + 1) as usize] }
    }

    /// Channel and die of a page's place: neighbours are on different channels.
    fn parts(&self, place: u64) -> (u32, u32) {
        let die = (place % u64::from(self.dies_all())) as u32;
        (1 + die % self.channels, 1 + self.channels + die)
    }

    pub fn service(&self, ssd: &mut Ssd, io: &Io, now: u64, with: &mut impl Context) -> u64 {
        let time = self.ftl.draw(with.random());
        let begin = ssd.take(FTL, now, time, with);
        match io.op {
            Op::Open | Op::Close | Op::Create | Op::Stat | Op::Unlink | Op::Barrier => begin,
            Op::Fsync => begin.saturating_add(self.flush.draw(with.random())),
            Op::Read | Op::Write => self.pages(ssd, io, begin, with),
        }
    }

    fn pages(&self, ssd: &mut Ssd, io: &Io, begin: u64, with: &mut impl Context) -> u64 {
        let page = u64::from(self.page);
        let (first, end) = (io.at / page, (io.at + u64::from(io.length)).div_ceil(page));
        // Files begin anywhere.
        let file = u64::from(io.file).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let next_die = 1 + self.channels + self.dies_all();
        let mut done = begin;
        for number in first..end {
            let from = io.at.max(number * page);
            let bytes = (io.at + u64::from(io.length)).min((number + 1) * page) - from;
            let transfer = (bytes as f64 * per_byte(self.channel_rate)) as u64;
            let until = if io.op == Op::Read {
                let (channel, die) = self.parts(file.wrapping_add(number));
                let time = self.read.draw(with.random());
                let read = ssd.take(die, begin, time, with);
                ssd.take(channel, read, transfer, with)
            } else {
                // What is written goes to the next die in turn, whatever its address: that is what the translation is for.
                let place = ssd.parts[next_die as usize];
                ssd.change(next_die, (place + 1) % u64::from(self.dies_all()), with);
                let (channel, die) = self.parts(place);
                let time = self.program.draw(with.random());
                let there = ssd.take(channel, begin, transfer, with);
                ssd.take(die, there, time, with)
            };
            done = done.max(until);
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_sim::{Stream, Time};

    struct Alone(Stream);

    impl Context for Alone {
        fn random(&mut self) -> &mut Stream {
            &mut self.0
        }

        fn keep(&mut self, _: impl FnOnce() -> Change) {}
    }

    fn spec() -> SsdSpec {
        SsdSpec {
            channels: 4,
            packages: 2,
            dies: 1,
            page: 4096,
            read: Span::Fixed(Time(50_000)),
            program: Span::Fixed(Time(200_000)),
            channel_rate: 40_960_000,
            ftl: Span::Fixed(Time(1_000)),
            flush: Span::NONE,
        }
    }

    fn times(count: u32, op: Op, far: u64) -> u64 {
        let (spec, mut with) = (spec(), Alone(Stream::new(1, 1)));
        let mut ssd = spec.start();
        let io = |n: u32| Io { op, file: 0, at: u64::from(n) * 4096 * far, length: 4096 };
        (0..count).map(|n| spec.service(&mut ssd, &io(n), 0, &mut with)).max().unwrap()
    }

    /// A page takes 100 us on a channel, and 50 us to be read.
    #[test]
    fn channels_serve_at_once_until_they_are_full() {
        assert_eq!(times(1, Op::Read, 1), 151_000);
        // The translation goes on one after the other; all else is at once.
        assert_eq!(times(4, Op::Read, 1), 154_000);
        // The fifth and further ones share channels: each channel has two.
        assert_eq!(times(8, Op::Read, 1), 254_000);
        assert_eq!(times(32, Op::Read, 1), 51_000 + 3_000 + 8 * 100_000);
        // All on one die: reading the next one goes on while one is on the channel.
        assert_eq!(times(4, Op::Read, 8), 51_000 + 4 * 100_000);
    }

    #[test]
    fn writes_go_to_the_next_die_wherever_they_are() {
        assert_eq!(times(4, Op::Write, 1), times(4, Op::Write, 8));
        assert_eq!(times(1, Op::Write, 1), 301_000);
        // Two rounds of the eight dies.
        assert!(times(16, Op::Write, 1) >= 501_000);
    }

    #[test]
    fn throughput_rises_with_the_queue_until_the_channels_are_full() {
        let rate = |depth: u32| f64::from(depth) / times(depth, Op::Read, 1) as f64;
        assert!(rate(2) > 1.9 * rate(1) && rate(4) > 3.8 * rate(1));
        assert!(rate(256) < 1.15 * rate(32));
    }
}
