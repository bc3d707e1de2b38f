//! What models write out: records of events that count, in the one order of all events.
//!
//! ```text
//! round k   read notices k ── post rows that are certain now ── handle events ── barrier k+1 ── thread 0 gives them on
//! ```
//! A thread knows after each barrier before which time all is certain, and posts its rows of before that time. Behind the
//! next barrier the rows of all threads up to there are together, so thread 0 can sort them and give them on: nothing earlier
//! will come. As at the exchange, two halves used in turn make one barrier enough.

use crate::event::{Key, ProcessId};
use crate::exchange::{Aligned, lock};
use std::sync::Mutex;

/// A record, and the event whose handler emitted it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Emitted<R> {
    /// Of the event. Records of one event follow each other as they were emitted.
    pub at: Key,
    /// Who handled it.
    pub process: ProcessId,
    pub record: R,
}

/// Where records go.
pub(crate) type Sink<'a, R> = &'a mut (dyn FnMut(Emitted<R>) + Send);

/// Where threads bring their rows.
pub(crate) struct Ledger<'a, R> {
    /// And what is sorted for it, kept for its memory.
    sink: Mutex<(Sink<'a, R>, Vec<Emitted<R>>)>,
    /// By thread.
    halves: [Vec<Aligned<Mutex<Vec<Emitted<R>>>>>; 2],
}

impl<'a, R> Ledger<'a, R> {
    pub fn new(sink: Sink<'a, R>, threads: usize) -> Ledger<'a, R> {
        let half = || (0..threads).map(|_| Aligned(Mutex::new(Vec::new()))).collect();
        Ledger { sink: Mutex::new((sink, Vec::new())), halves: [half(), half()] }
    }

    /// Thread `me` posts rows that are certain, to be given on behind the barrier of `round`.
    pub fn post(&self, me: usize, round: u64, rows: impl IntoIterator<Item = Emitted<R>>) {
        lock(&self.halves[(round % 2) as usize][me].0).extend(rows);
    }

    /// Thread 0, behind the barrier of `round`.
    pub fn deliver(&self, round: u64) {
        self.give_on(&self.halves[(round % 2) as usize..][..1], None);
    }

    /// All that is left when all threads have ended: up to the first fault, as if events came one after the other.
    pub fn finish(&self, fault: Option<Key>) {
        self.give_on(&self.halves, fault);
    }

    fn give_on(&self, halves: &[Vec<Aligned<Mutex<Vec<Emitted<R>>>>>], before: Option<Key>) {
        let mut sink = lock(&self.sink);
        let (sink, rows) = &mut *sink;
        halves.iter().flatten().for_each(|place| rows.append(&mut lock(&place.0)));
        // Stable: rows of an event come from one thread in their order.
        rows.sort_by_key(|row| row.at);
        rows.drain(..).filter(|row| before.is_none_or(|before| row.at < before)).for_each(sink);
    }
}
