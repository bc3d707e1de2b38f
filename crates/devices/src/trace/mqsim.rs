//! Request traces of MQSim: `ARRIVAL_NS DEVICE LBA SECTORS TYPE`, where the type is 0 for a write and 1 for a read.

use super::{REQUESTS_MAX, SECTOR_MAX, SECTORS_MAX, TraceError, each_line, shown, whole, wrong};
use crate::{Direction, Request};
use std::io::BufRead;
use tidepool_sim::Time;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    pub at: Time,
    pub device: u32,
    pub request: Request,
}

/// Arrivals by time: real traces have a few lines out of order, which are sorted.
pub fn read(from: impl BufRead) -> Result<Vec<Arrival>, TraceError> {
    let mut all = Vec::new();
    each_line(from, |line, text| {
        if all.len() == REQUESTS_MAX {
            return Err(TraceError::TooMany { what: "requests", most: REQUESTS_MAX });
        }
        all.push(arrival(line, text)?);
        Ok(())
    })?;
    all.sort_by_key(|arrival| arrival.at);
    if all.is_empty() { Err(TraceError::Empty { what: "requests" }) } else { Ok(all) }
}

fn arrival(line: u64, text: &str) -> Result<Arrival, TraceError> {
    let fields: Vec<&str> = text.split_ascii_whitespace().take(6).collect();
    let [at, device, sector, sectors, kind] = fields[..] else {
        let what = format!("'{}': 'ARRIVAL_NS DEVICE LBA SECTORS TYPE' is expected", shown(text));
        return Err(wrong(line, what));
    };
    let direction = match kind {
        "0" => Direction::Write,
        "1" => Direction::Read,
        other => return Err(wrong(line, format!("type '{}': 0 (write) or 1 (read)", shown(other)))),
    };
    let sector = whole(line, "block address", sector, 0, SECTOR_MAX)?;
    let sectors = whole(line, "sectors", sectors, 1, u64::from(SECTORS_MAX))? as u32;
    Ok(Arrival {
        at: Time(whole(line, "arrival", at, 0, Time::MAX.0)?),
        device: whole(line, "device", device, 0, u64::from(u32::MAX))? as u32,
        request: Request { direction, sector, sectors },
    })
}
