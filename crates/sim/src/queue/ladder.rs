//! A ladder queue (Tang, Goh, Thng: Ladder Queue: An O(1) Priority Queue Structure for Large-Scale Discrete Event
//! Simulation, ACM TOMACS 15(3), 2005) for integer times.
//!
//! ```text
//! bottom  sorted, events are taken from its end     time →
//! rung 2  |.|.|.|.|                                 buckets of 2^k ticks, lists without order
//! rung 1  |       |       |       |       |         one of its buckets became rung 2
//! rung 0  |               |               | ...     made of all of top
//! top     no order: everything after rung 0
//! ```
//! A bucket is sorted when its turn comes, or becomes a finer rung when it holds too many. Unlike the paper's, buckets are
//! powers of two wide, so that finding one is a shift; lists run through one array of small nodes, so that a bucket is one
//! word and nothing is allocated while the number of pending events does not grow; equal times are sorted at once; and an
//! event may come before all others at any time, as those do that are rolled back.

use super::Queue;
use crate::event::{Key, Keyed, ProcessId, Time};
use std::cmp::Reverse;
use std::hint::black_box;

/// A bucket with more is divided.
const SORTED_MAX: usize = 48;
/// The bottom becomes a rung when it has grown beyond this and to twice what it was.
const BOTTOM_MAX: usize = 256;
/// Deeper, buckets are sorted whatever they hold. Each rung divides by at least 32; 62 bits of time need at most 13.
const RUNGS_MAX: usize = 13;
/// Buckets of a rung, at most. A rung of more events has more of them in each bucket.
const BUCKETS_MAX: usize = 1 << 20;
/// Buckets of a rung for each of its events, at least half of them.
const SPREAD: usize = 4;
/// No node: the end of a list.
const NONE: u32 = u32::MAX;

/// Key of a stored item, and the next one of its list.
#[derive(Clone, Copy)]
struct Node {
    time: u64,
    sequence: u64,
    source: u32,
    next: u32,
}

#[derive(Clone, Copy)]
struct Entry {
    time: u64,
    sequence: u64,
    source: u32,
    slot: u32,
}

impl Entry {
    fn order(&self) -> Key {
        Key { time: Time(self.time), source: ProcessId(self.source), sequence: self.sequence }
    }
}

#[derive(Clone, Copy)]
struct List {
    head: u32,
    count: u32,
}

impl List {
    fn add(&mut self, nodes: &mut [Node], slot: u32) {
        nodes[slot as usize].next = self.head;
        *self = List { head: slot, count: self.count + 1 };
    }
}

const EMPTY: List = List { head: NONE, count: 0 };

#[derive(Default)]
struct Rung {
    /// Time of bucket 0.
    start: u64,
    /// A bucket is 2^shift ticks wide.
    shift: u32,
    /// The first bucket that has not been taken.
    current: usize,
    /// Where `current` begins.
    boundary: u64,
    buckets: Vec<List>,
}

impl Rung {
    /// For `count` events of which none is before `least`, and none at `limit` or behind it.
    fn set(&mut self, least: u64, limit: u64, count: usize) {
        let wanted = (count * SPREAD).next_power_of_two().clamp(1, BUCKETS_MAX) as u64;
        let last = limit - 1 - least;
        self.shift = (u64::BITS - last.leading_zeros()).saturating_sub(wanted.trailing_zeros());
        (self.start, self.current, self.boundary) = (least, 0, least);
        self.buckets.clear();
        self.buckets.resize((last >> self.shift) as usize + 1, EMPTY);
    }

    fn add(&mut self, nodes: &mut [Node], slot: u32) {
        let bucket = (nodes[slot as usize].time - self.start) >> self.shift;
        self.buckets[bucket as usize].add(nodes, slot);
    }

    /// Behind the last bucket.
    fn end(&self) -> u64 {
        self.start + ((self.buckets.len() as u64) << self.shift)
    }

    /// Takes the next list that is not empty.
    fn take(&mut self) -> Option<List> {
        let ahead = self.buckets[self.current..].iter().position(|list| list.count > 0)?;
        let found = std::mem::replace(&mut self.buckets[self.current + ahead], EMPTY);
        self.current += ahead + 1;
        self.boundary = self.start + ((self.current as u64) << self.shift);
        Some(found)
    }
}

pub struct Ladder<T> {
    items: Vec<Option<T>>,
    nodes: Vec<Node>,
    /// Slots without an item, as a list.
    free: u32,
    len: usize,
    top: List,
    top_most: u64,
    /// Events from here on go to the top.
    top_start: u64,
    /// The first `active` are in use; the widest first.
    rungs: Vec<Rung>,
    active: usize,
    /// Sorted, the next event last.
    bottom: Vec<Entry>,
    bottom_max: usize,
}

impl<T> Default for Ladder<T> {
    fn default() -> Ladder<T> {
        Ladder {
            items: Vec::new(),
            nodes: Vec::new(),
            free: NONE,
            len: 0,
            top: EMPTY,
            top_most: 0,
            top_start: 0,
            rungs: Vec::new(),
            active: 0,
            bottom: Vec::new(),
            bottom_max: BOTTOM_MAX,
        }
    }
}

impl<T: Keyed> Ladder<T> {
    fn store(&mut self, node: Node, item: T) -> u32 {
        self.len += 1;
        if self.free != NONE {
            let slot = self.free;
            self.free = self.nodes[slot as usize].next;
            self.nodes[slot as usize] = node;
            self.items[slot as usize] = Some(item);
            return slot;
        }
        let slot = u32::try_from(self.nodes.len()).ok().filter(|slot| *slot != NONE);
        let slot = slot.expect("4 billion pending events do not fit into memory");
        self.nodes.push(node);
        self.items.push(Some(item));
        slot
    }

    #[inline]
    fn place(&mut self, slot: u32, time: u64) {
        if time >= self.top_start {
            self.top_most = self.top_most.max(time);
            return self.top.add(&mut self.nodes, slot);
        }
        // Each finer rung ends where the one above it goes on.
        match self.rungs[..self.active].iter_mut().find(|rung| time >= rung.boundary) {
            Some(rung) => rung.add(&mut self.nodes, slot),
            None => self.place_in_bottom(slot),
        }
    }

    fn place_in_bottom(&mut self, slot: u32) {
        let entry = self.entry(slot);
        let at = self.bottom.partition_point(|other| other.order() > entry.order());
        self.bottom.insert(at, entry);
        if self.bottom.len() > self.bottom_max && self.active < RUNGS_MAX {
            self.bottom_to_rung();
        }
    }

    fn entry(&self, slot: u32) -> Entry {
        let node = self.nodes[slot as usize];
        Entry { time: node.time, sequence: node.sequence, source: node.source, slot }
    }

    /// Where the part of the queue begins that is above the finest rung.
    fn limit(&self) -> u64 {
        self.rungs[..self.active].last().map_or(self.top_start, |rung| rung.boundary)
    }

    /// A finer rung than all others, empty.
    fn new_rung(&mut self, least: u64, limit: u64, count: usize) -> &mut Rung {
        if self.rungs.len() == self.active {
            self.rungs.push(Rung::default());
        }
        let rung = &mut self.rungs[self.active];
        self.active += 1;
        rung.set(least, limit, count);
        rung
    }

    fn bottom_to_rung(&mut self) {
        let bottom = std::mem::take(&mut self.bottom);
        let (least, limit) = (bottom[bottom.len() - 1].time, self.limit());
        self.new_rung(least, limit, bottom.len());
        let rung = &mut self.rungs[self.active - 1];
        bottom.iter().for_each(|entry| rung.add(&mut self.nodes, entry.slot));
        self.bottom = bottom;
        self.bottom.clear();
    }

    /// Moves a list to the bottom when it is short or cannot be divided, else to a new rung.
    fn divide(&mut self, list: List, limit: u64) {
        let (mut least, mut most) = (u64::MAX, 0);
        let mut slot = list.head;
        if list.count as usize > SORTED_MAX {
            while slot != NONE {
                let node = &self.nodes[slot as usize];
                (least, most, slot) = (least.min(node.time), most.max(node.time), node.next);
            }
        }
        slot = list.head;
        if least >= most || self.active == RUNGS_MAX {
            self.bottom.reserve(list.count as usize);
            while slot != NONE {
                self.bottom.push(self.entry(slot));
                slot = self.nodes[slot as usize].next;
            }
            self.bottom.sort_unstable_by_key(|entry| Reverse(entry.order()));
            self.bottom_max = BOTTOM_MAX.max(2 * self.bottom.len());
            return;
        }
        self.new_rung(least, limit, list.count as usize);
        let rung = &mut self.rungs[self.active - 1];
        while slot != NONE {
            let next = self.nodes[slot as usize].next;
            rung.add(&mut self.nodes, slot);
            slot = next;
        }
    }

    /// Fills the bottom, when it is empty and anything is left.
    #[cold]
    fn refill(&mut self) {
        while self.bottom.is_empty() && self.len > 0 {
            let Some(rung) = self.rungs[..self.active].last_mut() else {
                let top = std::mem::replace(&mut self.top, EMPTY);
                self.top_start = self.top_most + 1;
                self.divide(top, self.top_start);
                // A rung's last bucket may go on behind the last event.
                self.top_start = self.rungs[..self.active].last().map_or(self.top_start, Rung::end);
                self.top_most = 0;
                continue;
            };
            match rung.take() {
                Some(list) => {
                    let limit = rung.boundary;
                    self.divide(list, limit);
                }
                None => self.active -= 1,
            }
        }
    }
}

impl<T: Keyed> Queue<T> for Ladder<T> {
    #[inline]
    fn push(&mut self, item: T) {
        let Key { time, source, sequence } = item.key();
        let slot = self.store(Node { time: time.0, sequence, source: source.0, next: NONE }, item);
        self.place(slot, time.0);
    }

    #[inline]
    fn pop_before(&mut self, end: Time) -> Option<T> {
        if self.bottom.is_empty() {
            self.refill();
        }
        let entry = self.bottom.pop_if(|entry| entry.time < end.0)?;
        self.nodes[entry.slot as usize].next = self.free;
        self.free = entry.slot;
        self.len -= 1;
        self.items[entry.slot as usize].take()
    }

    #[inline]
    fn likely_next(&self) -> Option<&T> {
        if let [.., second, _] = &self.bottom[..] {
            black_box(self.items[second.slot as usize].is_some());
        }
        self.bottom.last().and_then(|entry| self.items[entry.slot as usize].as_ref())
    }

    fn next_time(&mut self) -> Option<Time> {
        if self.bottom.is_empty() {
            self.refill();
        }
        self.bottom.last().map(|entry| Time(entry.time))
    }

    fn len(&self) -> usize {
        self.len
    }
}
