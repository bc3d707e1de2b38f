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
    /// From the end of the request before, in sectors.
    pub distance: u64,
    /// How it lies to the last read.
    pub to_read: Option<ToRead>,
    /// It lies within what was written last.
    pub in_written: bool,
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
    for (at, measured) in trace.iter().enumerate() {
        let request = measured.request;
        let before = at.checked_sub(1).map(|before| &trace[before].request);
        let past = &trace[at.saturating_sub(BACK_MAX)..at];
        seen.push(Seen {
            request,
            us: measured.service_us,
            place: Place::of(&request, before, near_sectors),
            after: After::of(before),
            distance: before.map_or(0, |before| request.sector.abs_diff(before.end())),
            to_read: to_read(&request, past),
            in_written: written.is_some_and(|(from, to)| from <= request.sector && request.end() <= to),
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
