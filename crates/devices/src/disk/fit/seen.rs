//! Measured requests with what of the past a disk's answer depends on.

use crate::disk::{After, Place};
use crate::trace::measured::Measured;
use crate::{Direction, Request};

/// Requests back that the last read may lie.
const BACK_MAX: usize = 3;

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Seen {
    pub request: Request,
    pub us: f64,
    pub place: Place,
    pub after: After,
    /// Where the request before ended.
    pub from: u64,
    /// How it lies to the last read.
    pub to_read: Option<ToRead>,
    /// It lies within what was written last.
    pub in_written: bool,
    /// From the end of the request before, us.
    pub gap_us: f64,
    /// Reads up to this one of which each goes on where the one before ended, and after a gap shorter than itself.
    pub streak: u32,
    /// Sectors and time of the request before.
    pub before: (u32, f64),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct ToRead {
    /// Sectors of the shortest run that both lie in.
    pub span: u64,
    /// Sectors that it goes beyond that one's end, and that it begins before it.
    pub ahead: u64,
    pub behind: u64,
    /// Something was written in between.
    pub after_write: bool,
}

pub(super) fn all(trace: &[Measured], near_sectors: u64) -> Vec<Seen> {
    let mut seen = Vec::with_capacity(trace.len());
    let mut written: Option<(u64, u64)> = None;
    let mut streak = 0;
    for (at, measured) in trace.iter().enumerate() {
        let request = measured.request;
        let before = at.checked_sub(1).map(|before| &trace[before].request);
        let past = &trace[at.saturating_sub(BACK_MAX)..at];
        let gap_us = at.checked_sub(1).map_or(0.0, |before| trace[before].gap_us);
        let (place, after) = (Place::of(&request, before, near_sectors), After::of(before));
        let reads_on =
            request.direction == Direction::Read && place == Place::Sequential && after == After::Read;
        streak = if reads_on && gap_us < measured.service_us { streak + 1 } else { 0 };
        seen.push(Seen {
            request,
            us: measured.service_us,
            place,
            after,
            from: before.map_or(request.sector, Request::end),
            to_read: to_read(&request, past),
            in_written: written.is_some_and(|(from, to)| from <= request.sector && request.end() <= to),
            gap_us,
            streak,
            before: at
                .checked_sub(1)
                .map_or((0, 0.0), |at| (trace[at].request.sectors, trace[at].service_us)),
        });
        if request.direction == Direction::Write {
            written = match written {
                Some((from, to)) if to == request.sector => Some((from, request.end())),
                _ => Some((request.sector, request.end())),
            };
        }
    }
    seen
}

fn to_read(request: &Request, past: &[Measured]) -> Option<ToRead> {
    let back = past.iter().rev().position(|one| one.request.direction == Direction::Read)?;
    let last = past[past.len() - 1 - back].request;
    Some(ToRead {
        span: request.end().max(last.end()) - request.sector.min(last.sector),
        ahead: request.end().saturating_sub(last.end()),
        behind: last.sector.saturating_sub(request.sector),
        after_write: back > 0,
    })
}
