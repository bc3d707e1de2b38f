//! Hard links: the first name of an object is copied, the others become links to it.
//!
//! The map grows with the number of hard-linked objects, not of files: it is one of the few
//! things that are not bounded by a constant.

use crate::sync::lock;
use crate::tree::{DirNode, Entry};
use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::{Arc, Mutex};

/// Identity of an object at the source.
pub(crate) type Key = (u64, u64);

/// Where the first name of an object is at the destination.
#[derive(Clone)]
pub(crate) struct Leader {
    pub dir: Arc<DirNode>,
    pub name: Arc<[u8]>,
    pub crc: u32,
}

enum State {
    /// Being copied; the entries wait for it.
    Copying(Vec<Entry>),
    Done(Leader),
}

/// What a name of a hard-linked object has to do.
pub(crate) enum Claimed {
    /// Copy it, then call [`Links::done`] or [`Links::abandon`].
    Lead,
    /// Nothing: the leader's worker queues it again.
    Parked,
    Link(Leader),
}

#[derive(Default)]
pub(crate) struct Links {
    map: Mutex<HashMap<Key, State>>,
    /// Names that would have to copy an object of which another name may be at the
    /// destination already. They wait until all other entries are looked at.
    deferred: Mutex<Vec<Entry>>,
}

impl Links {
    pub fn claim(&self, key: Key, entry: &Entry) -> Claimed {
        match lock(&self.map).entry(key) {
            Slot::Vacant(slot) => {
                slot.insert(State::Copying(Vec::new()));
                Claimed::Lead
            }
            Slot::Occupied(mut slot) => match slot.get_mut() {
                State::Copying(waiting) => {
                    waiting.push(entry.clone());
                    Claimed::Parked
                }
                State::Done(leader) => Claimed::Link(leader.clone()),
            },
        }
    }

    pub fn is_known(&self, key: Key) -> bool {
        lock(&self.map).contains_key(&key)
    }

    /// Names that wait for the first one of their object.
    pub fn parked(&self) -> usize {
        let waiting = |state: &State| match state {
            State::Copying(waiting) => waiting.len(),
            State::Done(_) => 0,
        };
        lock(&self.map).values().map(waiting).sum()
    }

    pub fn defer(&self, mut entry: Entry) {
        entry.deferred = true;
        lock(&self.deferred).push(entry);
    }

    pub fn take_deferred(&self) -> Vec<Entry> {
        std::mem::take(&mut lock(&self.deferred))
    }

    /// The leader is under its name; the entries that waited for it.
    pub fn done(&self, key: Key, leader: Leader) -> Vec<Entry> {
        waiting(lock(&self.map).insert(key, State::Done(leader)))
    }

    /// The leader failed; one of those that waited has to try.
    pub fn abandon(&self, key: Key) -> Vec<Entry> {
        waiting(lock(&self.map).remove(&key))
    }
}

fn waiting(state: Option<State>) -> Vec<Entry> {
    match state {
        Some(State::Copying(waiting)) => waiting,
        _ => Vec::new(),
    }
}
