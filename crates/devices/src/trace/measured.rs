//! Requests that were measured on a disk, as DiskSim's validation has them: `R|W Hit|Miss LBN SECTORS SERVICE_US GAP_US`.
//!
//! One request was on its way at a time. The gap is from the end of a request to the beginning of the next: some gaps are
//! shorter than the service time before them. What the cache did is checked and not used, since a simulator does not know it
//! either: on most of DiskSim's traces `Hit` stands on every line, on that of the HP C2247A there are `Miss`, `Doub` and `Trip`, too.

use super::{
    REQUESTS_MAX, SECTOR_MAX, SECTORS_MAX, SPAN_US_MAX, TraceError, each_line, real, shown, whole, wrong,
};
use crate::{Direction, Request};
use std::io::BufRead;

/// Words that DiskSim's traces have for what the cache did.
const CACHE_WORDS: [&str; 4] = ["Hit", "Miss", "Doub", "Trip"];

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measured {
    pub request: Request,
    pub service_us: f64,
    /// From the end of this request to the next.
    pub gap_us: f64,
}

pub fn read(from: impl BufRead) -> Result<Vec<Measured>, TraceError> {
    let mut all = Vec::new();
    each_line(from, |line, text| {
        if all.len() == REQUESTS_MAX {
            return Err(TraceError::TooMany { what: "requests", most: REQUESTS_MAX });
        }
        all.push(measured(line, text)?);
        Ok(())
    })?;
    if all.is_empty() { Err(TraceError::Empty { what: "requests" }) } else { Ok(all) }
}

fn measured(line: u64, text: &str) -> Result<Measured, TraceError> {
    let fields: Vec<&str> = text.split_ascii_whitespace().take(7).collect();
    let [direction, cache, sector, sectors, service, gap] = fields[..] else {
        let what = format!("'{}': 'R|W Hit|Miss LBN SECTORS SERVICE_US GAP_US' is expected", shown(text));
        return Err(wrong(line, what));
    };
    let direction = match direction {
        "R" => Direction::Read,
        "W" => Direction::Write,
        other => return Err(wrong(line, format!("direction '{}': R or W", shown(other)))),
    };
    if !CACHE_WORDS.contains(&cache) {
        return Err(wrong(line, format!("cache '{}': {}", shown(cache), CACHE_WORDS.join(", "))));
    }
    let sector = whole(line, "block address", sector, 0, SECTOR_MAX)?;
    let sectors = whole(line, "sectors", sectors, 1, u64::from(SECTORS_MAX))? as u32;
    Ok(Measured {
        request: Request { direction, sector, sectors },
        service_us: real(line, "service time", service, 0.0, SPAN_US_MAX)?,
        gap_us: real(line, "gap", gap, 0.0, SPAN_US_MAX)?,
    })
}
