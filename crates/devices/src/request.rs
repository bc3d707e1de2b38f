//! What a device is asked for.

use std::fmt;
use tidepool_sim::{Time, saved};

/// Bytes of a sector, in all formats that are read here.
pub const SECTOR_BYTES: u64 = 512;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    Read,
    Write,
}

saved!(enum Direction { 0 => Read, 1 => Write });

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Read => "read",
            Direction::Write => "write",
        })
    }
}

/// A run of sectors to be read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    pub direction: Direction,
    /// The first sector.
    pub sector: u64,
    /// How many; at least 1.
    pub sectors: u32,
}

saved!(struct Request { direction, sector, sectors });

impl Request {
    /// The sector behind the last one.
    pub fn end(&self) -> u64 {
        self.sector.saturating_add(u64::from(self.sectors))
    }
}

/// Microseconds as ticks of a nanosecond; what is below 0 or no number is 0, what is too late the last time.
pub fn microseconds(us: f64) -> Time {
    // A cast of a float takes the nearest value there is, and 0 for what is no number.
    Time(((us * 1e3).round() as u64).min(Time::MAX.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_are_a_thousand_ticks_and_never_out_of_range() {
        assert_eq!(microseconds(1.5), Time(1_500));
        assert_eq!((microseconds(-1.0), microseconds(f64::NAN)), (Time::ZERO, Time::ZERO));
        assert_eq!(microseconds(f64::INFINITY), Time::MAX);
    }
}
