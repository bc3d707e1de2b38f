//! A disk at work.

use super::cache::Cache;
use super::{After, Class, DiskModel, Kind, NUMBER_MAX, Place, SEGMENTS_MAX};
use crate::{Direction, Request, microseconds};
use tidepool_sim::{Stream, Time, saved};

/// Shortest service of all: a tick would let a simulator serve a thousand million requests a second.
const SERVICE_MIN_NS: u64 = 1_000;

/// All that a disk's past does to what comes. A clone goes its own way, and is a few hundred bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Disk {
    before: Option<Request>,
    cache: Cache,
    dirty: Vec<Dirty>,
}

/// A run of sectors in the buffer, to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Dirty {
    sectors: u64,
    end: u64,
    /// When the disk turns to it, and when it is done with it.
    from_ns: u64,
    until_ns: u64,
}

saved!(struct Disk { before, cache, dirty });
saved!(struct Dirty { sectors, end, from_ns, until_ns });

/// What a request came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Served {
    pub time: Time,
    pub class: Class,
}

impl Disk {
    /// Whether a disk of this model can have come to this state, as far as going on from it needs it: what was kept in a
    /// checkpoint may have been forged.
    pub fn fits(&self, model: &DiskModel) -> bool {
        let dirty = |dirty: &Dirty| {
            [dirty.sectors, dirty.end, dirty.from_ns, dirty.until_ns]
                .iter()
                .all(|number| *number <= NUMBER_MAX)
        };
        self.cache.fits(&model.cache)
            && self.before.is_none_or(|before| before.sector <= NUMBER_MAX)
            && self.dirty.iter().all(dirty)
    }

    /// How long a request takes that begins now. Requests come one after the other: the next one not before this one's end.
    pub fn service(&mut self, model: &DiskModel, request: &Request, now: Time, random: &mut Stream) -> Time {
        self.serve(model, request, now, random).time
    }

    /// The same, and of which class it was.
    pub fn serve(&mut self, model: &DiskModel, request: &Request, now: Time, random: &mut Stream) -> Served {
        // Sizes come from outside; a request of nothing is one of a sector.
        let request = &Request { sectors: request.sectors.max(1), ..*request };
        self.dirty.retain(|dirty| dirty.until_ns > now.0);
        let place = Place::of(request, self.before.as_ref(), model.near_sectors);
        let after = After::of(self.before.as_ref());
        let (kind, ready_ns) = match request.direction {
            Direction::Write => (Kind::Write, self.room(model)),
            Direction::Read => match self.cache.look(&model.cache, &model.zones, request, random) {
                Some(ready_ns) => (Kind::ReadHit, ready_ns),
                None => (Kind::ReadMiss, self.arm_free(model, now)),
            },
        };
        let class = Class { kind, place, after };
        let waits = Time(ready_ns.saturating_sub(now.0));
        let own = self.own_time(model, class, request, random);
        // What comes into the buffer is handed on while it comes; for room and for the arm a request has to wait.
        let time = if kind == Kind::ReadHit { own.max(waits) } else { own.plus(waits) };
        let time = Time(time.0.clamp(SERVICE_MIN_NS, Time::MAX.0));
        self.remember(model, request, class, now.plus(time), random);
        Served { time, class }
    }

    /// When all that the buffer has taken is on the platter, if nothing else comes; not before `now`.
    pub fn written_out(&self, now: Time) -> Time {
        Time(self.dirty.iter().map(|dirty| dirty.until_ns).max().unwrap_or(0).max(now.0))
    }

    fn own_time(&self, model: &DiskModel, class: Class, request: &Request, random: &mut Stream) -> Time {
        let cost = model.cost(class);
        let seek_us = match (class.place, self.before) {
            (Place::Far, Some(before)) => model.seek_us(before.end(), request.sector),
            _ => 0.0,
        };
        let media_us = match cost.media_share {
            0.0 => 0.0,
            share => share * model.zones.time_us(request.sector, request.end()),
        };
        let fixed = cost.sector_us * f64::from(request.sectors) + media_us + cost.seek_share * seek_us;
        microseconds(fixed + cost.wait.draw(random))
    }

    /// When the buffer has room for a write.
    fn room(&self, model: &DiskModel) -> u64 {
        let segments = model.write_back.segments.min(SEGMENTS_MAX);
        if segments == 0 || self.dirty.len() < segments { 0 } else { self.dirty[0].until_ns }
    }

    /// When the arm is done with the write that it is at.
    fn arm_free(&self, model: &DiskModel, now: Time) -> u64 {
        let at_work =
            self.dirty.first().filter(|dirty| dirty.from_ns <= now.0 && model.write_back.reads_wait);
        at_work.map_or(0, |dirty| dirty.until_ns)
    }

    fn remember(
        &mut self,
        model: &DiskModel,
        request: &Request,
        class: Class,
        end: Time,
        random: &mut Stream,
    ) {
        match request.direction {
            Direction::Read => {
                let hit = class.kind == Kind::ReadHit;
                self.cache.read(&model.cache, &model.zones, request, hit, end.0, random);
            }
            Direction::Write => {
                self.cache.write(request);
                if model.write_back.segments > 0 {
                    self.soil(model, request, end);
                }
            }
        }
        self.before = Some(*request);
    }

    /// A write is in the buffer: when it will be on the platter.
    fn soil(&mut self, model: &DiskModel, request: &Request, end: Time) {
        let sectors = u64::from(request.sectors);
        let media_ns = microseconds(model.zones.time_us(request.sector, request.end())).0;
        let most = model.write_back.segment_sectors.max(sectors);
        if let Some(last) = self.dirty.last_mut()
            && last.end == request.sector
            && last.sectors + sectors <= most
        {
            *last = Dirty { sectors: last.sectors + sectors, end: request.end(), ..*last };
            last.until_ns = last.until_ns.saturating_add(media_ns);
            return;
        }
        self.dirty.retain(|dirty| dirty.until_ns > end.0);
        let from_ns = self.dirty.last().map_or(end.0, |last| last.until_ns);
        let place = Place::of(request, self.before.as_ref(), model.near_sectors);
        let seek_us = match (place, self.before) {
            (Place::Far, Some(before)) => model.seek_us(before.end(), request.sector),
            _ => 0.0,
        };
        let cost = model.cost(Class { kind: Kind::ReadMiss, place, after: After::Write });
        let arm = microseconds(cost.seek_share * seek_us + cost.wait.mean());
        let until_ns = from_ns.saturating_add(arm.0).saturating_add(media_ns);
        self.dirty.push(Dirty { sectors, end: request.end(), from_ns, until_ns });
    }
}
