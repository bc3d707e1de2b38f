//! PHOLD (Fujimoto: Performance of Time Warp Under Synthetic Workloads, 1990): the benchmark of event kernels.
//!
//! Every process starts with some messages to itself. Who gets one sends one, `lookahead` plus an exponential time later: to
//! a process drawn from all, or, with probability 1 - `remote`, to itself. The number of messages never changes.
//! Messages carry `8 * WORDS` bytes, all of which the sender writes and the receiver reads.

use crate::checkpoint::{LoadError, Reader, Saved};
use crate::event::{ProcessId, Time};
use crate::model::{Model, Turn};
use crate::random::Stream;
use std::convert::Infallible;

#[derive(Clone, Debug)]
pub struct Phold<const WORDS: usize> {
    pub processes: u32,
    /// Messages of each process at the start.
    pub messages: u32,
    /// Probability that a message goes to a process drawn from all.
    pub remote: f64,
    pub lookahead: Time,
    /// Mean of the exponential part of a delay.
    pub mean: Time,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Visits {
    pub count: u64,
    /// Depends on every word of every message, and on their order.
    pub digest: u64,
}

impl Saved for Visits {
    fn save(&self, out: &mut Vec<u8>) {
        [self.count, self.digest].save(out);
    }

    fn load(from: &mut Reader<'_>) -> Result<Visits, LoadError> {
        let [count, digest] = <[u64; 2]>::load(from)?;
        Ok(Visits { count, digest })
    }
}

/// The digest before a message; the count is undone by counting back.
pub struct Digest(u64);

#[inline]
fn folded(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| sum.wrapping_add(*word))
}

impl<const WORDS: usize> Phold<WORDS> {
    #[inline]
    fn delay(&self, random: &mut Stream) -> Time {
        self.lookahead.plus(random.exponential(self.mean))
    }

    #[inline]
    fn message(first: u64) -> [u64; WORDS] {
        std::array::from_fn(|word| first.wrapping_add(word as u64))
    }
}

impl<const WORDS: usize> Model for Phold<WORDS> {
    type State = Visits;
    type Message = [u64; WORDS];
    type Undo = Digest;
    type Record = Infallible;

    fn processes(&self) -> u32 {
        self.processes
    }

    fn lookahead(&self) -> Time {
        self.lookahead
    }

    fn start(&self, turn: &mut Turn<'_, Self>) -> Visits {
        for number in 0..self.messages {
            let after = self.delay(turn.random());
            turn.send(turn.me(), after, Self::message(number.into()));
        }
        Visits::default()
    }

    #[inline]
    fn handle(&self, state: &mut Visits, message: &[u64; WORDS], turn: &mut Turn<'_, Self>) {
        turn.keep(|| Digest(state.digest));
        state.count += 1;
        state.digest = state.digest.rotate_left(5) ^ folded(message) ^ turn.now().0;
        let random = turn.random();
        let to = match random.chance(self.remote) {
            true => ProcessId(random.below(self.processes.into()) as u32),
            false => turn.me(),
        };
        let after = self.delay(turn.random());
        turn.send(to, after, Self::message(state.digest));
    }

    fn undo(&self, state: &mut Visits, Digest(digest): Digest) {
        state.count -= 1;
        state.digest = digest;
    }

    fn digest(&self, message: &[u64; WORDS]) -> u64 {
        folded(message)
    }
}
