//! What a simulated system is made of.

use crate::error::{Fault, FaultKind};
use crate::event::{Event, Key, ProcessId, Time};
use crate::random::Stream;

/// A system of logical processes that know nothing of each other but the messages they send.
///
/// A handler may depend on the process's state, the message, the time and the process's random stream, and on nothing
/// else: it may run several times, on any thread, and be undone in between. Under the optimistic scheduler it can also
/// meet a state and messages that in the end never were; it must then neither panic nor loop for ever
/// ([`Turn::fail`] is the way out: it counts only when the event turns out to be real).
pub trait Model: Sync + Sized {
    /// Of one process. Comparing and cloning are needed by the rollback check only.
    type State: Clone + PartialEq + Send;
    type Message: Clone + PartialEq + Send;
    /// One change of a state, as [`Model::undo`] needs it.
    type Undo: Send;
    /// What a handler writes out ([`Turn::emit`]), for example a row for each request that is done. `Infallible` for a
    /// model that writes nothing. Comparing is needed by the rollback check only.
    type Record: PartialEq + Send;

    /// How many processes there are.
    fn processes(&self) -> u32;

    /// The least time between a message's sending and its arrival at *another* process; at least 1 tick. A message to
    /// oneself takes at least 1 tick.
    fn lookahead(&self) -> Time;

    /// The state of process `turn.me()` at time 0. It may send.
    fn start(&self, turn: &mut Turn<'_, Self>) -> Self::State;

    /// A message has arrived. Before the state is changed, `turn.keep` is told how to change it back.
    fn handle(&self, state: &mut Self::State, message: &Self::Message, turn: &mut Turn<'_, Self>);

    /// Takes one change back. Changes come in the reverse order of their making.
    fn undo(&self, state: &mut Self::State, change: Self::Undo);

    /// What of a message goes into the trace's hash beside time, sender and receiver.
    fn digest(&self, _message: &Self::Message) -> u64 {
        0
    }
}

/// What the kernel keeps of a process.
pub(crate) struct Process<S> {
    pub random: Stream,
    /// Messages sent so far.
    pub sequence: u64,
    /// Hash of the events handled so far, in their order.
    pub trace: u64,
    pub state: S,
}

/// What sends are held against.
#[derive(Clone, Copy)]
pub(crate) struct Rules {
    pub processes: u32,
    pub lookahead: Time,
}

/// One process's turn: what a handler sees of the kernel.
pub struct Turn<'a, M: Model> {
    pub(crate) me: ProcessId,
    pub(crate) now: Time,
    pub(crate) rules: Rules,
    pub(crate) random: &'a mut Stream,
    pub(crate) sequence: &'a mut u64,
    pub(crate) sent: &'a mut Vec<Event<M::Message>>,
    pub(crate) changes: Option<&'a mut Vec<M::Undo>>,
    /// None when nobody wants records.
    pub(crate) emitted: Option<&'a mut Vec<M::Record>>,
    pub(crate) fault: Option<FaultKind>,
}

impl<M: Model> Turn<'_, M> {
    pub fn me(&self) -> ProcessId {
        self.me
    }

    pub fn now(&self) -> Time {
        self.now
    }

    /// This process's random numbers.
    pub fn random(&mut self) -> &mut Stream {
        self.random
    }

    /// Says how a change that is about to be made is taken back. Schedulers that never go back do not ask.
    #[inline]
    pub fn keep(&mut self, change: impl FnOnce() -> M::Undo) {
        if let Some(changes) = &mut self.changes {
            changes.push(change());
        }
    }

    /// Writes a record out, if this event turns out to be real: `Simulation::run_with` is given all records in the order of
    /// their events. Not at the start, before there are events.
    #[inline]
    pub fn emit(&mut self, record: M::Record) {
        if let Some(emitted) = &mut self.emitted {
            emitted.push(record);
        }
    }

    /// Sends a message that arrives `after` from now: at least 1 tick to oneself, at least the model's lookahead to
    /// others. What is against the rules ends the run with an error that names it.
    #[inline]
    pub fn send(&mut self, to: ProcessId, after: Time, message: M::Message) {
        let least = if to == self.me { Time(1) } else { self.rules.lookahead };
        let time = self.now.plus(after);
        if to.0 >= self.rules.processes || after < least || time > Time::MAX {
            return self.refuse(to, after, least);
        }
        let key = Key { time, source: self.me, sequence: *self.sequence };
        *self.sequence += 1;
        self.sent.push(Event { key, to, message });
    }

    #[cold]
    fn refuse(&mut self, to: ProcessId, after: Time, least: Time) {
        self.fault.get_or_insert(if to.0 >= self.rules.processes {
            FaultKind::NoSuchProcess { to, processes: self.rules.processes }
        } else if after < least {
            FaultKind::TooSoon { to, after, least }
        } else {
            FaultKind::TooLate { to, after }
        });
    }

    /// Ends the run with an error of the model, if this event turns out to be real.
    #[cold]
    pub fn fail(&mut self, why: impl Into<String>) {
        self.fault.get_or_insert_with(|| FaultKind::Model(why.into()));
    }
}

/// Lets a process handle an event.
#[inline]
pub(crate) fn execute<M: Model>(
    model: &M,
    rules: Rules,
    process: &mut Process<M::State>,
    event: &Event<M::Message>,
    sent: &mut Vec<Event<M::Message>>,
    changes: Option<&mut Vec<M::Undo>>,
    emitted: Option<&mut Vec<M::Record>>,
) -> Option<Fault> {
    let mut turn = Turn {
        me: event.to,
        now: event.key.time,
        rules,
        random: &mut process.random,
        sequence: &mut process.sequence,
        sent,
        changes,
        emitted,
        fault: None,
    };
    model.handle(&mut process.state, &event.message, &mut turn);
    turn.fault.map(|kind| Fault { at: event.key, process: event.to, kind })
}

/// Adds an event to the hash of its process's history.
#[inline]
pub(crate) fn trace<M: Model>(model: &M, trace: u64, event: &Event<M::Message>) -> u64 {
    let fold = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9fb2_1c65_1e98_df25).rotate_left(29);
    let who = u64::from(event.key.source.0) ^ event.key.sequence.rotate_left(32);
    fold(fold(fold(trace, event.key.time.0), who), model.digest(&event.message))
}
