//! What a disk's buffer holds: runs of sectors around what was read last, and what was written last.

use super::{NUMBER_MAX, SEGMENTS_MAX, Zones};
use crate::{Request, microseconds};
use tidepool_sim::{Stream, saved};

/// How a buffer keeps and reads ahead.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CacheModel {
    /// Runs that are kept at a time; 0 where there is no buffer.
    pub segments: usize,
    /// Sectors that are kept from before what was read, as passed under the head before it.
    pub behind_sectors: u64,
    /// Sectors that are read behind what was asked for.
    pub ahead_sectors: u64,
    /// Reading ahead and behind ends where a track of so many sectors does; 0 where it goes on. Where a track begins is not
    /// known, and drawn.
    pub track_sectors: u64,
    /// The chance that what should be there is there: for what the model does not know of the firmware.
    pub keep: f64,
    /// The same after something was written in between.
    pub keep_after_write: f64,
    /// The chance that what was just written can be read from the buffer.
    pub keep_written: f64,
}

impl CacheModel {
    pub const NONE: CacheModel = CacheModel {
        segments: 0,
        behind_sectors: 0,
        ahead_sectors: 0,
        track_sectors: 0,
        keep: 0.0,
        keep_after_write: 0.0,
        keep_written: 0.0,
    };
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    from: u64,
    to: u64,
    /// All up to here has come in at `at_ns`, and what lies behind it comes in from then on.
    read_to: u64,
    at_ns: u64,
    /// Where the track begins, with tracks.
    track: u64,
}

saved!(struct Run { from, to, read_to, at_ns, track });

/// The runs that are kept, the latest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Cache {
    runs: Vec<Run>,
    /// The last write, with what it went on from.
    written: Option<(u64, u64)>,
    /// Something was written after the last read.
    after_write: bool,
}

saved!(struct Cache { runs, written, after_write });

impl Cache {
    /// Whether a disk of this model can have come to it, as far as sums need it.
    pub fn fits(&self, model: &CacheModel) -> bool {
        let run = |run: &Run| {
            [run.from, run.to, run.read_to, run.at_ns, run.track].iter().all(|n| *n <= NUMBER_MAX)
        };
        self.runs.len() <= model.segments.min(SEGMENTS_MAX)
            && self.runs.iter().all(run)
            && self.written.is_none_or(|(from, to)| from <= to && to <= NUMBER_MAX)
    }

    /// Whether a read is served by the buffer and, if so, when all of it has come in (ns).
    pub fn look(
        &self,
        model: &CacheModel,
        zones: &Zones,
        request: &Request,
        random: &mut Stream,
    ) -> Option<u64> {
        let within = |from: u64, to: u64| from <= request.sector && request.end() <= to;
        if self.written.is_some_and(|(from, to)| within(from, to)) {
            return random.chance(model.keep_written).then_some(0);
        }
        let run = self.runs.iter().find(|run| within(run.from, run.to))?;
        let keep = if self.after_write { model.keep_after_write } else { model.keep };
        let missing = || microseconds(zones.time_us(run.read_to, request.end())).0;
        random.chance(keep).then(|| run.at_ns.saturating_add(missing()))
    }

    /// A read ended at a time (ns): what it leaves.
    pub fn read(
        &mut self,
        model: &CacheModel,
        zones: &Zones,
        request: &Request,
        hit: bool,
        at_ns: u64,
        random: &mut Stream,
    ) {
        self.after_write = false;
        let near = self.runs.iter().position(|run| run.from <= request.end() && request.sector <= run.to);
        let old = near.map(|at| self.runs.remove(at));
        let (from, to, track) = match model.track_sectors {
            0 => {
                let from = old
                    .filter(|_| hit)
                    .map_or(request.sector.saturating_sub(model.behind_sectors), |run| run.from);
                (from, request.end().saturating_add(model.ahead_sectors), 0)
            }
            length => {
                let track = track_of(request.sector, length, old, random);
                let last_track =
                    track_of(request.end() - 1, length, Some(Run { track, ..Run::AT_ZERO }), random);
                let from = request.sector.saturating_sub(model.behind_sectors).max(track);
                let to =
                    request.end().saturating_add(model.ahead_sectors).min(last_track.saturating_add(length));
                (from, to, track)
            }
        };
        // What has come in until now stays; one that read ahead goes on with it, from now on where it had no room for more.
        let (read_to, at_ns) = match old.filter(|_| hit) {
            Some(run) if run.is_full(zones, at_ns) => (run.to.max(request.end()), at_ns),
            Some(run) => (run.read_to, run.at_ns),
            None => (request.end(), at_ns),
        };
        self.runs.insert(0, Run { from, to, read_to, at_ns, track });
        self.runs.truncate(model.segments.min(SEGMENTS_MAX));
    }

    /// A write: nothing older is kept of its sectors.
    pub fn write(&mut self, request: &Request) {
        self.after_write = true;
        self.runs.retain(|run| request.end() <= run.from || run.to <= request.sector);
        self.written = match self.written {
            Some((from, to)) if to == request.sector => Some((from, request.end())),
            _ => Some((request.sector, request.end())),
        };
    }
}

impl Run {
    const AT_ZERO: Run = Run { from: 0, to: 0, read_to: 0, at_ns: 0, track: 0 };

    /// All that was to be read ahead has come in.
    fn is_full(&self, zones: &Zones, now_ns: u64) -> bool {
        self.at_ns.saturating_add(microseconds(zones.time_us(self.read_to, self.to)).0) <= now_ns
    }
}

/// The beginning of a sector's track: on the grid of a run nearby, or anywhere.
fn track_of(sector: u64, length: u64, nearby: Option<Run>, random: &mut Stream) -> u64 {
    match nearby {
        Some(run) if sector >= run.track => sector - (sector - run.track) % length,
        Some(run) => {
            let tracks = (run.track - sector).div_ceil(length);
            run.track.saturating_sub(tracks * length)
        }
        None => sector.saturating_sub(random.below(length)),
    }
}
