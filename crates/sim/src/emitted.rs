//! What models write out: records of events that count, in the one order of all events.
//!
//! ```text
//! round k   read notices k ── post rows that are certain now ── handle events ── barrier k+1 ── thread 0 gives them on
//! ```
//! A thread knows after each barrier before which time all is certain, and posts its rows of before that time. Behind the
//! next barrier the rows of all threads up to there are together, so thread 0 can sort them and give them on: nothing earlier
//! will come. As at the exchange, two halves used in turn make one barrier enough. In a run over ranks, thread 0 of each other
//! rank gives its rank's rows to rank 0 with what is exchanged at that barrier.

use crate::event::{Key, ProcessId};
use crate::exchange::{Aligned, lock};
use crate::sync::Mutex;

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
pub type Sink<'a, R> = &'a mut (dyn FnMut(Emitted<R>) + Send);

/// Rows posted in rounds of one parity, by thread; the last place is for rows of other ranks.
type Half<R> = Vec<Aligned<Mutex<Vec<Emitted<R>>>>>;

/// Where threads bring their rows.
pub(crate) struct Ledger<'a, R> {
    /// And what is sorted for it, kept for its memory.
    sink: Mutex<(Sink<'a, R>, Vec<Emitted<R>>)>,
    halves: [Half<R>; 2],
}

impl<'a, R> Ledger<'a, R> {
    pub fn new(sink: Sink<'a, R>, threads: usize) -> Ledger<'a, R> {
        let half = || (0..=threads).map(|_| Aligned(Mutex::new(Vec::new()))).collect();
        Ledger { sink: Mutex::new((sink, Vec::new())), halves: [half(), half()] }
    }

    /// Thread `me` posts rows that are certain, to be given on behind the barrier of `round`.
    pub fn post(&self, me: usize, round: u64, rows: impl IntoIterator<Item = Emitted<R>>) {
        lock(&self.halves[(round % 2) as usize][me].0).extend(rows);
    }

    /// Rows of another rank, as if its threads had posted them here.
    pub fn post_far(&self, round: u64, rows: Vec<Emitted<R>>) {
        if !rows.is_empty() {
            let half = &self.halves[(round % 2) as usize];
            lock(&half[half.len() - 1].0).extend(rows);
        }
    }

    /// Takes what threads have posted for a round, or all that is left, to be given to rank 0.
    pub fn take(&self, round: Option<u64>, into: &mut Vec<Emitted<R>>) {
        let halves = match round {
            Some(round) => &self.halves[(round % 2) as usize..][..1],
            None => &self.halves[..],
        };
        halves.iter().flatten().for_each(|place| into.append(&mut lock(&place.0)));
    }

    /// Thread 0, behind the barrier of `round`.
    pub fn deliver(&self, round: u64) {
        self.give_on(&self.halves[(round % 2) as usize..][..1], None);
    }

    /// All that is left when all threads have ended: up to the first fault, as if events came one after the other.
    pub fn finish(&self, fault: Option<Key>) {
        self.give_on(&self.halves, fault);
    }

    fn give_on(&self, halves: &[Half<R>], before: Option<Key>) {
        let mut sink = lock(&self.sink);
        let (sink, rows) = &mut *sink;
        halves.iter().flatten().for_each(|place| rows.append(&mut lock(&place.0)));
        // Stable: rows of an event come from one thread in their order.
        rows.sort_by_key(|row| row.at);
        rows.drain(..).filter(|row| before.is_none_or(|before| row.at < before)).for_each(sink);
    }
}
