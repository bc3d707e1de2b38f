//! Which server has which bytes of a file: round robin with a fixed stripe size (S1 §III-D), weighted (§IV-D), by regions
//! (§III-G2).

use crate::pool::PoolLayout;
use std::collections::BTreeMap;
use std::fmt;

/// Most stripes in one turn of a round robin.
pub const RING_MAX: usize = 1 << 20;
/// Most bytes of a stripe.
pub const STRIPE_MAX: u64 = 1 << 30;

/// A stripe's place in the round robin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Slot {
    server: u32,
    /// Places of the same server before this one.
    nth: u32,
    /// Places of this server.
    of: u32,
}

/// Servers in turn. One that has a weight of 3 comes three times, spread over the turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ring {
    stripe: u64,
    slots: Vec<Slot>,
}

/// A sub-request: what one server does of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    pub server: u32,
    /// In the file.
    pub offset: u64,
    /// In what the server keeps of the file.
    pub local: u64,
    pub length: u32,
}

/// Why servers cannot be striped over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RingError {
    Stripe(u64),
    /// No server has a weight above 0.
    Empty,
    TooLong(u64),
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RingError::Stripe(stripe) => write!(f, "a stripe of {stripe} bytes; it can be 1 to {STRIPE_MAX}"),
            RingError::Empty => f.write_str("no server has a weight above 0"),
            RingError::TooLong(sum) => {
                write!(f, "the weights of all servers add up to {sum}; at most {RING_MAX}")
            }
        }
    }
}

impl std::error::Error for RingError {}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Ring {
    /// Of servers and their weights.
    pub fn new(stripe: u64, servers: &[(u32, u32)]) -> Result<Ring, RingError> {
        if !(1..=STRIPE_MAX).contains(&stripe) {
            return Err(RingError::Stripe(stripe));
        }
        let common = servers.iter().fold(0, |all, (_, weight)| gcd(all, u64::from(*weight)));
        if common == 0 {
            return Err(RingError::Empty);
        }
        let weights: Vec<u64> = servers.iter().map(|(_, weight)| u64::from(*weight) / common).collect();
        let total: u64 = weights.iter().sum();
        if total > RING_MAX as u64 {
            return Err(RingError::TooLong(total));
        }
        let turns = spread(&weights, total);
        let mut seen = vec![0; servers.len()];
        let slots = turns.into_iter().map(|at| {
            seen[at] += 1;
            Slot { server: servers[at].0, nth: seen[at] - 1, of: weights[at] as u32 }
        });
        Ok(Ring { stripe, slots: slots.collect() })
    }

    pub fn stripe(&self) -> u64 {
        self.stripe
    }

    /// A part of one stripe.
    fn piece(&self, file: u32, offset: u64, length: u32) -> Option<Piece> {
        let mut found = None;
        self.split(u64::from(file), offset, u64::from(length), |piece| {
            found.get_or_insert(piece);
        });
        found.filter(|piece: &Piece| piece.length == length)
    }

    /// The servers, each once.
    pub fn servers(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().filter(|slot| slot.nth == 0).map(|slot| slot.server)
    }

    /// Stripes in one turn.
    pub fn turn(&self) -> usize {
        self.slots.len()
    }

    /// Cuts a range of a file whose first stripe has place `first` of the ring (modulo its length).
    #[inline]
    pub fn split(&self, first: u64, mut offset: u64, mut length: u64, mut each: impl FnMut(Piece)) {
        let slots = self.slots.len() as u64;
        while length > 0 {
            let (stripe, within) = (offset / self.stripe + first % slots, offset % self.stripe);
            let slot = self.slots[(stripe % slots) as usize];
            let now = length.min(self.stripe - within);
            let local = (stripe / slots * u64::from(slot.of) + u64::from(slot.nth)) * self.stripe + within;
            each(Piece { server: slot.server, offset, local, length: now as u32 });
            offset += now;
            length -= now;
        }
    }
}

/// A turn in which each comes as often as its weight, as evenly spread as may be (smooth weighted round robin). Equal weights
/// come in their order.
fn spread(weights: &[u64], total: u64) -> Vec<usize> {
    if weights.iter().all(|weight| *weight == 1) {
        return (0..weights.len()).collect();
    }
    let mut owed = vec![0i64; weights.len()];
    let next = |_| {
        owed.iter_mut().zip(weights).for_each(|(owed, weight)| *owed += *weight as i64);
        let most = (0..owed.len()).rev().max_by_key(|at| owed[*at]).unwrap_or(0);
        owed[most] -= total as i64;
        most
    };
    (0..total).map(next).collect()
}

/// A part of a file that has its own servers, up to `end`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    pub end: u64,
    /// Index into [`Layout::Tiered`]'s rings.
    pub ring: usize,
}

/// Which servers have what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Layout {
    Striped(Ring),
    /// Servers of `buffer` first; the same stripe is kept by `store` when they have no room (S1 §III-G1). Both have the
    /// same stripe size.
    Buffered {
        buffer: Ring,
        store: Ring,
    },
    /// Regions of files, in order; what is in none is on ring 0 (S1 §III-G2).
    Tiered {
        regions: BTreeMap<u32, Vec<Region>>,
        rings: Vec<Ring>,
    },
    /// As Tidepool's pools have them.
    Pool(PoolLayout),
}

impl Layout {
    /// Sub-requests, those that a client sends first.
    #[inline]
    pub fn split(&self, file: u32, offset: u64, length: u64, mut each: impl FnMut(Piece)) {
        match self {
            Layout::Striped(ring) | Layout::Buffered { buffer: ring, .. } => {
                ring.split(u64::from(file), offset, length, each)
            }
            Layout::Pool(pool) => pool.split(file, offset, length, each),
            Layout::Tiered { regions, rings } => {
                let end = offset + length;
                let mut at = offset;
                let edges = regions.get(&file).map_or(&[][..], Vec::as_slice);
                let last = Region { end: u64::MAX, ring: 0 };
                for region in edges.iter().chain([&last]).skip_while(|region| region.end <= offset) {
                    let until = region.end.min(end);
                    if at < until {
                        rings[region.ring].split(u64::from(file), at, until - at, &mut each);
                        at = until;
                    }
                }
            }
        }
    }

    /// Where a sub-request goes that the buffer has no room for.
    pub fn behind(&self, file: u32, offset: u64, length: u32) -> Option<Piece> {
        let Layout::Buffered { store, .. } = self else { return None };
        store.piece(file, offset, length)
    }

    /// Where a buffered part of a stripe is.
    pub fn held(&self, file: u32, offset: u64, length: u32) -> Option<Piece> {
        let Layout::Buffered { buffer, .. } = self else { return None };
        buffer.piece(file, offset, length)
    }

    /// Every server that may have a part of the file, each once.
    pub fn servers(&self, file: u32) -> Vec<u32> {
        let mut all: Vec<u32> = match self {
            Layout::Striped(ring) => ring.servers().collect(),
            Layout::Buffered { buffer, store } => buffer.servers().chain(store.servers()).collect(),
            Layout::Pool(pool) => pool.servers(file),
            Layout::Tiered { regions, rings } => {
                let used = regions.get(&file).into_iter().flatten().map(|region| region.ring).chain([0]);
                used.flat_map(|ring| rings[ring].servers()).collect()
            }
        };
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Every server of any file.
    pub fn all_servers(&self) -> Vec<u32> {
        match self {
            Layout::Tiered { rings, .. } => rings.iter().flat_map(Ring::servers).collect(),
            Layout::Pool(pool) => (0..pool.members()).collect(),
            _ => self.servers(0),
        }
    }

    /// Bytes of a stripe.
    pub fn stripe(&self) -> u64 {
        match self {
            Layout::Striped(ring) | Layout::Buffered { buffer: ring, .. } => ring.stripe,
            Layout::Tiered { rings, .. } => rings[0].stripe,
            Layout::Pool(pool) => pool.chunk(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn even(stripe: u64, servers: u32) -> Ring {
        Ring::new(stripe, &(0..servers).map(|server| (server, 1)).collect::<Vec<_>>()).unwrap()
    }

    fn split(ring: &Ring, offset: u64, length: u64) -> Vec<(u32, u64, u32)> {
        let mut pieces = Vec::new();
        ring.split(0, offset, length, |piece| pieces.push((piece.server, piece.offset, piece.length)));
        pieces
    }

    /// S1 §III-D, its three cases with four servers.
    #[test]
    fn the_papers_three_cases() {
        let ring = even(64, 4);
        // (a) smaller than a stripe: one server.
        assert_eq!(split(&ring, 0, 50), [(0, 0, 50)]);
        // (b) two whole stripes and the rest: three sub-requests on three servers.
        assert_eq!(split(&ring, 0, 150), [(0, 0, 64), (1, 64, 64), (2, 128, 22)]);
        // (c) more than the stripes of all four: five sub-requests, the fifth to the first server again.
        assert_eq!(split(&ring, 0, 280), [(0, 0, 64), (1, 64, 64), (2, 128, 64), (3, 192, 64), (0, 256, 24)]);
    }

    #[test]
    fn heavier_servers_come_more_often_and_evenly_spread() {
        let ring = Ring::new(1, &[(7, 1), (8, 3)]).unwrap();
        let turn: Vec<u32> = split(&ring, 0, 8).into_iter().map(|piece| piece.0).collect();
        assert_eq!(turn, [8, 7, 8, 8, 8, 7, 8, 8]);
        let without = Ring::new(1, &[(7, 0), (8, 6)]).unwrap();
        assert_eq!((without.turn(), without.servers().collect::<Vec<_>>()), (1, vec![8]));
        assert_eq!(Ring::new(1, &[(0, 0)]), Err(RingError::Empty));
        assert_eq!(Ring::new(0, &[(0, 1)]), Err(RingError::Stripe(0)));
        assert!(matches!(Ring::new(1, &[(0, u32::MAX), (1, 2)]), Err(RingError::TooLong(_))));
    }

    #[test]
    fn requests_are_cut_at_the_edges_of_regions() {
        let rings = vec![even(10, 2), Ring::new(10, &[(5, 1)]).unwrap()];
        let regions = BTreeMap::from([(3, vec![Region { end: 15, ring: 1 }, Region { end: 22, ring: 0 }])]);
        let layout = Layout::Tiered { regions, rings };
        let pieces = |file, offset, length| {
            let mut pieces = Vec::new();
            layout.split(file, offset, length, |p| pieces.push((p.server, p.offset, p.length)));
            pieces
        };
        assert_eq!(pieces(3, 12, 12), [(5, 12, 3), (0, 15, 5), (1, 20, 2), (1, 22, 2)]);
        assert_eq!(pieces(3, 30, 4), [(0, 30, 4)]);
        assert_eq!(pieces(4, 12, 4), [(1, 12, 4)]);
        assert_eq!((layout.servers(3), layout.servers(4)), (vec![0, 1, 5], vec![0, 1]));
    }

    proptest! {
        /// Against a byte-by-byte oracle: every byte is on one server, at a place that no other byte has.
        #[test]
        fn every_byte_has_one_place(
            stripe in 1u64..9,
            weights in proptest::collection::vec(0u32..5, 1..6),
            first in 0u64..20,
            cuts in proptest::collection::vec(1u64..40, 1..6),
        ) {
            let servers: Vec<_> = (0..).zip(weights.iter().copied()).collect();
            prop_assume!(weights.iter().any(|weight| *weight > 0));
            let ring = Ring::new(stripe, &servers).unwrap();
            let mut places = std::collections::HashSet::new();
            let mut offset = 0;
            for length in cuts {
                let mut at = offset;
                ring.split(first, offset, length, |piece| {
                    assert_eq!(piece.offset, at);
                    assert_eq!(piece.offset / stripe, (piece.offset + u64::from(piece.length) - 1) / stripe);
                    for byte in 0..u64::from(piece.length) {
                        assert!(places.insert((piece.server, piece.local + byte)));
                    }
                    at += u64::from(piece.length);
                });
                prop_assert_eq!(at, offset + length);
                offset = at;
            }
            // Over whole turns each server has its share.
            let mut bytes = vec![0u64; servers.len()];
            ring.split(first, 0, stripe * ring.turn() as u64, |p| bytes[p.server as usize] += u64::from(p.length));
            let total: u64 = bytes.iter().sum();
            let sum: u64 = weights.iter().map(|w| u64::from(*w)).sum();
            for (bytes, weight) in bytes.iter().zip(&weights) {
                prop_assert_eq!(bytes * sum, u64::from(*weight) * total);
            }
        }
    }
}
