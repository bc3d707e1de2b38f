//! Queues of pending events, all with the same answers.

mod ladder;

use crate::event::{Key, Keyed, Time};
use std::cmp::Ordering;
use std::collections::BinaryHeap;

pub use ladder::Ladder;

/// Gives events back in the order of their keys.
pub trait Queue<T: Keyed> {
    fn push(&mut self, item: T);
    /// The least, when its time is before `end`.
    fn pop_before(&mut self, end: Time) -> Option<T>;
    /// Time of the least.
    fn next_time(&mut self) -> Option<Time>;
    fn len(&self) -> usize;

    /// Perhaps what comes next: a hint what memory will be needed.
    fn likely_next(&self) -> Option<&T> {
        None
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The plain queue that the other one is held against.
pub struct Heap<T> {
    heap: BinaryHeap<Entry<T>>,
}

struct Entry<T> {
    key: Key,
    item: T,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Entry<T>) -> bool {
        self.key == other.key
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Entry<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    /// The heap's greatest is the least key.
    fn cmp(&self, other: &Entry<T>) -> Ordering {
        other.key.cmp(&self.key)
    }
}

impl<T> Default for Heap<T> {
    fn default() -> Heap<T> {
        Heap { heap: BinaryHeap::new() }
    }
}

impl<T: Keyed> Queue<T> for Heap<T> {
    fn push(&mut self, item: T) {
        self.heap.push(Entry { key: item.key(), item });
    }

    fn pop_before(&mut self, end: Time) -> Option<T> {
        self.heap.peek().filter(|entry| entry.key.time < end)?;
        self.heap.pop().map(|entry| entry.item)
    }

    fn next_time(&mut self) -> Option<Time> {
        self.heap.peek().map(|entry| entry.key.time)
    }

    fn len(&self) -> usize {
        self.heap.len()
    }
}
