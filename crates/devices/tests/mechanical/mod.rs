//! A disk that turns: zones, heads, skew, the phase of the rotation, a buffer that reads ahead and a cache of writes, moved
//! step by step. It shares no code and no simplification with the model that is fitted to it.

use tidepool_devices::trace::measured::Measured;
use tidepool_devices::{Direction, Request};
use tidepool_sim::Stream;

#[derive(Clone)]
pub struct Mechanics {
    pub revolution_us: f64,
    /// Cylinders with so many sectors on each track, from the outside in.
    pub zones: Vec<(u64, u64)>,
    pub heads: u64,
    /// Settling, and by the square root of cylinders.
    pub settle_us: f64,
    pub root_us: f64,
    /// To the next track; tracks are skewed by so much.
    pub switch_us: f64,
    pub overhead_us: f64,
    pub bus_sector_us: f64,
    /// 0: none.
    pub read_ahead: u64,
    /// Sectors; 0: writes go through.
    pub write_cache: u64,
}

/// Sectors that are not worth a seek.
const SOON: u64 = 32;

#[derive(Default)]
struct State {
    /// When the arm is free, and where it is.
    free: f64,
    cylinder: u64,
    /// What the buffer holds from, what has been read ahead to at which time, and how far it may.
    from: u64,
    read_to: u64,
    at: f64,
    limit: u64,
    dirty: std::collections::VecDeque<(u64, u64)>,
}

impl Mechanics {
    pub fn sectors(&self) -> u64 {
        self.zones.iter().map(|(cylinders, track)| cylinders * self.heads * track).sum()
    }

    /// First sectors of the zones, and how long a sector takes there with its part of the switch.
    pub fn truth(&self) -> Vec<(u64, f64)> {
        let mut first = 0;
        let of = |&(cylinders, track): &(u64, u64)| {
            let zone = (first, (self.revolution_us + self.switch_us) / track as f64);
            first += cylinders * self.heads * track;
            zone
        };
        self.zones.iter().map(of).collect()
    }

    /// Track, place on it, and how many it has.
    fn place(&self, sector: u64) -> (u64, u64, u64) {
        let (mut left, mut track) = (sector, 0);
        for &(cylinders, of_track) in &self.zones {
            if left < cylinders * self.heads * of_track {
                return (track + left / of_track, left % of_track, of_track);
            }
            left -= cylinders * self.heads * of_track;
            track += cylinders * self.heads;
        }
        (track - 1, 0, self.zones[self.zones.len() - 1].1)
    }

    /// From when the first sector is under the head, with no turn lost between tracks.
    fn passing(&self, sector: u64, sectors: u64) -> f64 {
        let (mut at, mut left, mut us) = (sector, sectors, 0.0);
        while left > 0 {
            let (_, within, of_track) = self.place(at);
            let here = left.min(of_track - within);
            us += here as f64 / of_track as f64 * self.revolution_us;
            (at, left) = (at + here, left - here);
            us += if left > 0 { self.switch_us } else { 0.0 };
        }
        us
    }

    fn turn_to(&self, sector: u64, now: f64) -> f64 {
        let (track, within, of_track) = self.place(sector);
        let skew = self.switch_us / self.revolution_us;
        let wanted = (track as f64 * skew + within as f64 / of_track as f64).fract();
        let is = (now / self.revolution_us).fract();
        (wanted - is).rem_euclid(1.0) * self.revolution_us
    }

    /// The arm goes there and the sectors pass: when that is over.
    fn pass(&self, state: &mut State, sector: u64, sectors: u64, from: f64) -> f64 {
        let cylinder = self.place(sector).0 / self.heads;
        let distance = cylinder.abs_diff(state.cylinder);
        let seek = if distance == 0 { 0.0 } else { self.settle_us + self.root_us * (distance as f64).sqrt() };
        let there = from + seek;
        state.cylinder = cylinder;
        there + self.turn_to(sector, there) + self.passing(sector, sectors)
    }

    /// Writes what is cached as long as there is time, and at least until so much room is left. What was begun is ended.
    fn write_out(&self, state: &mut State, until: f64, room: u64) {
        let used = |state: &State| state.dirty.iter().map(|(_, sectors)| sectors).sum::<u64>();
        while let Some(&(sector, sectors)) = state.dirty.front() {
            let is_full = used(state) + room > self.write_cache;
            if !is_full && state.free >= until {
                break;
            }
            // Reading ahead ends.
            let came = self.came(state, state.free);
            (state.read_to, state.limit) = (came, came);
            state.free = self.pass(state, sector, sectors, state.free);
            state.dirty.pop_front();
        }
    }

    /// How far it has read ahead, as long as nothing else moved the arm.
    fn came(&self, state: &State, now: f64) -> u64 {
        let (mut low, mut high) = (state.read_to, state.limit.max(state.read_to));
        while low < high {
            let middle = (low + high).div_ceil(2);
            let is_in = state.at + self.passing(state.read_to, middle - state.read_to) <= now;
            if is_in { low = middle } else { high = middle - 1 }
        }
        low
    }

    fn read(&self, state: &mut State, request: &Request, now: f64, overhead: f64) -> f64 {
        let bus = now + overhead + f64::from(request.sectors) * self.bus_sector_us;
        self.write_out(state, now, 0);
        let came = self.came(state, now);
        let (sector, end) = (request.sector, request.end());
        let is_going = state.limit > state.read_to || came >= end;
        let limit = (end + self.read_ahead).min(self.sectors());
        // What is about to come in is waited for.
        let is_near = state.from <= sector && sector <= came + SOON && end <= came + self.read_ahead;
        if self.read_ahead > 0 && is_near && is_going {
            if came == state.limit && limit > came {
                // It had no room for more, and has to wait for the platter to come round.
                (state.read_to, state.at) = (came, now + self.turn_to(came, now));
            }
            state.limit = state.limit.max(limit);
            let missing = end.saturating_sub(state.read_to);
            return bus.max(if missing == 0 { now } else { state.at + self.passing(state.read_to, missing) });
        }
        let begin = state.free.max(now) + overhead;
        let done = self.pass(state, sector, request.sectors.into(), begin);
        (state.from, state.read_to, state.at, state.limit) = (sector, end, done, limit);
        state.cylinder = self.place(end - 1).0 / self.heads;
        state.free = done;
        done.max(bus)
    }

    fn write(&self, state: &mut State, request: &Request, now: f64, overhead: f64) -> f64 {
        let bus = now + overhead + f64::from(request.sectors) * self.bus_sector_us;
        state.from = u64::MAX;
        if self.write_cache == 0 {
            let begin = state.free.max(now) + overhead;
            state.free = self.pass(state, request.sector, request.sectors.into(), begin);
            return state.free.max(bus);
        }
        self.write_out(state, now, 0);
        let before = state.dirty.len();
        self.write_out(state, now, request.sectors.into());
        let waited = if state.dirty.len() < before { (state.free - now).max(0.0) } else { 0.0 };
        if state.dirty.is_empty() {
            state.free = state.free.max(now);
        }
        state.dirty.push_back((request.sector, request.sectors.into()));
        bus + waited
    }

    /// What somebody would have measured who asks for that.
    pub fn measure(&self, work: &Work, seed: u64) -> Vec<Measured> {
        let mut random = Stream::new(seed, 9);
        let (mut state, mut now, mut next) = (State::default(), 0.0, 0);
        let one = |_| {
            let request = work.next(self.sectors(), next, &mut random);
            next = request.end();
            let overhead = self.overhead_us * (1.0 + 0.05 * random.unit());
            let done = match request.direction {
                Direction::Read => self.read(&mut state, &request, now, overhead),
                Direction::Write => self.write(&mut state, &request, now, overhead),
            };
            let gap_us = work.gap_us.0 - work.gap_us.1 * (1.0 - random.unit()).ln();
            let (service_us, gap_us) = ((done - now).round(), gap_us.round());
            now = now + service_us + gap_us;
            Measured { request, service_us, gap_us }
        };
        (0..work.requests).map(one).collect()
    }
}

/// What is asked for: shares of reads, of requests that go on, of those near the last one; else anywhere.
#[derive(Clone)]
pub struct Work {
    pub requests: usize,
    pub reads: f64,
    pub goes_on: f64,
    pub near: f64,
    /// One of these.
    pub sectors: &'static [u32],
    /// Least and mean above it.
    pub gap_us: (f64, f64),
}

impl Work {
    fn next(&self, of_disk: u64, next: u64, random: &mut Stream) -> Request {
        let sectors = self.sectors[random.below(self.sectors.len() as u64) as usize];
        let drawn = random.unit();
        let near = (next + random.below(4_096)).saturating_sub(2_048);
        let sector = match drawn {
            drawn if drawn < self.goes_on => next,
            drawn if drawn < self.goes_on + self.near => near,
            _ => random.below(of_disk / 8) * 8,
        };
        let last = of_disk - u64::from(sectors);
        let sector = if sector > last { random.below(last) } else { sector };
        let direction = if random.chance(self.reads) { Direction::Read } else { Direction::Write };
        Request { direction, sector, sectors }
    }
}
