//! Links between nodes and the network: first come, first served, each with the time at which it is free again (S1 §III-C).

use tidepool_sim::{Time, saved};

/// Latency and bandwidth, from the configuration (S1 §III-B). Every client and every server has a link to a network
/// that is itself never full, one way out and one way in.
#[derive(Clone, PartialEq, Debug)]
pub struct Network {
    /// From the sender's link to the receiver's; at least a tick.
    pub latency: Time,
    /// Of a client's link each way, bytes/s; 0: unlimited.
    pub client_bandwidth: u64,
    /// Bytes of every message beside its data.
    pub header: u32,
    /// Writes of at most so many bytes go to a server with their data; those of larger ones wait for its answer.
    pub eager: u32,
}

/// Nanoseconds of a byte at so many bytes/s; 0: none.
pub(crate) fn per_byte(bandwidth: u64) -> f64 {
    if bandwidth == 0 { 0.0 } else { 1e9 / bandwidth as f64 }
}

/// One direction of a link: when it is free again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Link {
    pub free: u64,
}

saved!(struct Link { free });

impl Link {
    /// A message leaves: when its first byte and when its last one are on the wire.
    #[inline]
    pub fn send(&mut self, now: u64, bytes: u64, per_byte: f64) -> (u64, u64) {
        let begin = self.free.max(now);
        self.free = begin.saturating_add((bytes as f64 * per_byte) as u64);
        (begin, self.free)
    }

    /// A message's first byte is there now, the last one at `tail` or later: when all of it is there. The link is taken for as
    /// long as it needs for so many bytes itself, so that a slow sender does not keep others away.
    #[inline]
    pub fn receive(&mut self, now: u64, tail: u64, bytes: u64, per_byte: f64) -> u64 {
        self.send(now, bytes, per_byte).1.max(tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_path_takes_as_long_as_its_slower_link() {
        for (out, into, expected) in [(1.0, 4.0, 400), (4.0, 1.0, 400), (0.0, 2.0, 200), (0.0, 0.0, 0)] {
            let (head, tail) = Link::default().send(0, 100, out);
            assert_eq!(Link::default().receive(head, tail, 100, into), expected);
        }
    }

    #[test]
    fn messages_wait_for_those_before() {
        let mut link = Link::default();
        assert_eq!(link.send(10, 5, 2.0), (10, 20));
        assert_eq!(link.send(12, 5, 2.0), (20, 30));
        assert_eq!(link.send(50, 1, 2.0), (50, 52));
    }
}
