//! What events are, and their order.

use std::fmt;

/// A point, or a length, of virtual time in ticks. Models of this repository take a tick for a nanosecond.
///
/// Integers, because sums of floating-point times depend on the order of adding, and because equal times must be
/// exactly equal on every machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(pub u64);

impl Time {
    pub const ZERO: Time = Time(0);
    /// The last time that an event may have: 146 years of nanoseconds. Half of what would fit, so that sums of two
    /// times need no care.
    pub const MAX: Time = Time(1 << 62);

    /// The sum; at most twice [`Time::MAX`].
    #[inline]
    pub fn plus(self, other: Time) -> Time {
        Time(self.0.saturating_add(other.0).min(2 * Time::MAX.0))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
        let whole = UNITS.iter().find(|(scale, _)| self.0 >= *scale && self.0.is_multiple_of(*scale));
        let (scale, unit) = whole.unwrap_or(&(1, "ns"));
        write!(f, "{} {unit}", self.0 / scale)
    }
}

/// A logical process: its index, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessId(pub u32);

/// Where an event stands in the one order of all events: by time, then by who sent it, then by how many that one had
/// sent before. No two events have the same key, so threads and machines cannot change the order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    pub time: Time,
    pub source: ProcessId,
    /// Of the source's messages.
    pub sequence: u64,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {} of process {} for {}", self.sequence, self.source.0, self.time)
    }
}

/// A message on its way.
#[derive(Clone, PartialEq, Debug)]
pub struct Event<M> {
    pub key: Key,
    pub to: ProcessId,
    pub message: M,
}

/// What a queue orders.
pub trait Keyed {
    fn key(&self) -> Key;
}

impl<M> Keyed for Event<M> {
    #[inline]
    fn key(&self) -> Key {
        self.key
    }
}

#[cfg(test)]
mod tests {
    use super::Time;

    #[test]
    fn times_are_shown_exactly() {
        let shown =
            [0, 1_001, 5_000, 100_000, 1_500_000, 2_000_000, 3_000_000_000].map(|t| Time(t).to_string());
        assert_eq!(shown, ["0 ns", "1001 ns", "5 us", "100 us", "1500 us", "2 ms", "3 s"]);
    }
}
