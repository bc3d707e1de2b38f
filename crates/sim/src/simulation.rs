//! All that a simulation has come to, and its way further.

use crate::checkpoint::Saved;
use crate::emitted::{Emitted, Sink};
use crate::error::{Error, Fault, FaultKind};
use crate::event::{Event, ProcessId, Time};
use crate::link::Over;
use crate::model::{Model, Process, Rules, Turn};
use crate::queue::{Heap, Ladder};
use crate::random::{Stream, mix};
use crate::ranks::{Codec, Part, RANKS_MAX, Ranks};
use crate::{check, conservative, optimistic, sequential};
use std::ops::{ControlFlow, Range};

/// Most threads of a run.
pub const THREADS_MAX: usize = 1024;
/// Uncommitted events of one thread under the optimistic scheduler, unless told otherwise.
const AHEAD_MAX: usize = 1 << 16;

/// There is no event that a record of a start could belong to, and no run that could give it on.
const EARLY: &str = "a record at the start; records belong to events";

/// Who decides what is handled when. All come to the same results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheduler {
    /// One thread, a ladder queue.
    Sequential,
    /// One thread, a binary heap: slower, and simple enough to be believed. The others are tested against it.
    Reference,
    /// One thread; every event is handled, undone and handled again, and the states compared.
    RollbackCheck,
    /// Threads handle windows as long as the model's lookahead, then wait for each other.
    Conservative,
    /// Threads run ahead and go back when a message comes too late (Jefferson's Time Warp).
    Optimistic,
}

/// How to run.
pub struct Options<'a> {
    pub scheduler: Scheduler,
    /// For the parallel schedulers; 1 to [`THREADS_MAX`].
    pub threads: usize,
    /// Optimistic: events that a thread may have handled beyond what is certain. With it, the memory is bounded.
    pub ahead_max: usize,
    /// Optimistic: go back for no reason, at random, with this seed. For tests.
    pub forced_rollbacks: Option<u64>,
    /// Called now and then; may end the run early.
    pub progress: Option<&'a (dyn Fn(Progress) -> ControlFlow<()> + Sync)>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options {
            scheduler: Scheduler::Sequential,
            threads: 1,
            ahead_max: AHEAD_MAX,
            forced_rollbacks: None,
            progress: None,
        }
    }
}

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Everything before is certain.
    pub now: Time,
    pub until: Time,
    /// Handled in this run; under the optimistic scheduler some may be undone.
    pub events: u64,
}

/// What a run did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Events that count.
    pub events: u64,
    /// Handled, and undone because a message came too late or was taken back.
    pub undone: u64,
    /// Times that a process was set back.
    pub rollbacks: u64,
    /// Messages taken back.
    pub anti_messages: u64,
    /// Times that the threads waited for each other.
    pub rounds: u64,
    /// Most uncommitted events that a thread ever had.
    pub ahead: u64,
    /// Everything before this time is done: `until`, or earlier when progress said to end.
    pub reached: Time,
}

impl Report {
    /// Share of the handled events that count.
    pub fn efficiency(&self) -> f64 {
        let handled = self.events + self.undone;
        if handled == 0 { 1.0 } else { self.events as f64 / handled as f64 }
    }

    /// With what another thread or rank did in the same time: they waited for each other in the same rounds.
    pub fn beside(&mut self, other: &Report) {
        let rounds = self.rounds.max(other.rounds);
        self.then(other);
        self.rounds = rounds;
    }

    /// With what was done after it, in a next part of the run.
    pub fn then(&mut self, next: &Report) {
        self.events += next.events;
        self.undone += next.undone;
        self.rollbacks += next.rollbacks;
        self.anti_messages += next.anti_messages;
        self.rounds += next.rounds;
        self.ahead = self.ahead.max(next.ahead);
        self.reached = self.reached.max(next.reached);
    }
}

/// A model at a point of virtual time: the states of all processes, and the messages on their way.
pub struct Simulation<M: Model> {
    pub(crate) model: M,
    pub(crate) rules: Rules,
    pub(crate) now: Time,
    pub(crate) processes: Vec<Process<M::State>>,
    pub(crate) pending: Vec<Event<M::Message>>,
    pub(crate) events: u64,
    broken: bool,
}

/// What each scheduler is given.
pub(crate) struct Work<'a, M: Model> {
    pub model: &'a M,
    pub rules: Rules,
    pub processes: &'a mut [Process<M::State>],
    pub pending: Vec<Event<M::Message>>,
    pub until: Time,
    pub options: &'a Options<'a>,
    pub ranks: Option<Ranks<'a, M>>,
}

/// What each scheduler gives back.
pub(crate) struct Done<M: Model> {
    pub pending: Vec<Event<M::Message>>,
    pub report: Report,
}

impl<M: Model<State: Saved, Message: Saved, Record: Saved>> Simulation<M> {
    /// As [`Simulation::run`], over several ranks, each of which calls this with the same simulation. All of them end with the
    /// same simulation, the same report, and the same [`Error::Fault`]. Needs the conservative or the optimistic
    /// scheduler, and uses the link on the calling thread alone. `progress` is called at rank 0.
    pub fn run_over(
        &mut self,
        until: Time,
        options: &Options<'_>,
        over: &mut Over<'_>,
    ) -> Result<Report, Error> {
        let ranks = Ranks { link: &mut *over.link, about: over.about, codec: Codec::new() };
        self.run_to::<false>(until, options, &mut |_| {}, Some(ranks))
    }

    /// As [`Simulation::run_with`], over several ranks; the sink of rank 0 gets the records of all.
    pub fn run_over_with(
        &mut self,
        until: Time,
        options: &Options<'_>,
        over: &mut Over<'_>,
        mut sink: impl FnMut(Emitted<M::Record>) + Send,
    ) -> Result<Report, Error> {
        let ranks = Ranks { link: &mut *over.link, about: over.about, codec: Codec::new() };
        self.run_to::<true>(until, options, &mut sink, Some(ranks))
    }
}

impl<M: Model<Message: Saved, Record: Saved>> Simulation<M> {
    /// As [`Simulation::run_over_with`], for a model whose states cannot be written, and therefore for the last time:
    /// afterwards each rank has the states of its own processes (those of the range) as they are at the end, and those of the
    /// others as they were at the start, so it cannot go on. Everything else is as after other runs. Without a sink nobody wants
    /// the records.
    pub fn run_over_once(
        &mut self,
        until: Time,
        options: &Options<'_>,
        over: &mut Over<'_>,
        sink: Option<Sink<'_, M::Record>>,
    ) -> Result<(Report, Range<usize>), Error> {
        let ranks = Ranks { link: &mut *over.link, about: over.about, codec: Codec::without_states() };
        let report = match sink {
            Some(sink) => self.run_to::<true>(until, options, sink, Some(ranks)),
            None => self.run_to::<false>(until, options, &mut |_| {}, Some(ranks)),
        }?;
        self.broken = over.link.ranks() > 1;
        let part = Part::new(self.rules.processes, options.threads, Some(&*over.link));
        Ok((report, part.of(part.rank)))
    }
}

impl<M: Model> Simulation<M> {
    /// Time 0: starts every process, in the order of their numbers.
    pub fn new(model: M, seed: u64) -> Result<Simulation<M>, Error> {
        let rules = Rules { processes: model.processes(), lookahead: model.lookahead() };
        if rules.processes == 0 || rules.processes == u32::MAX {
            return Err(Error::Invalid(format!("a model has 1 to {} processes", u32::MAX - 1)));
        }
        if rules.lookahead == Time::ZERO || rules.lookahead > Time::MAX {
            return Err(Error::Invalid(format!("a lookahead is 1 ns to {}", Time::MAX)));
        }
        let (mut processes, mut pending) = (Vec::with_capacity(rules.processes as usize), Vec::new());
        for number in 0..rules.processes {
            let (mut random, mut sequence, mut early) = (Stream::new(seed, number.into()), 0, Vec::new());
            let mut turn = Turn {
                me: ProcessId(number),
                now: Time::ZERO,
                rules,
                random: &mut random,
                sequence: &mut sequence,
                sent: &mut pending,
                changes: None,
                emitted: Some(&mut early),
                fault: None,
            };
            let state = model.start(&mut turn);
            let fault = turn.fault;
            let fault = fault.or_else(|| (!early.is_empty()).then(|| FaultKind::Model(EARLY.into())));
            if let Some(kind) = fault {
                let key = crate::Key { time: Time::ZERO, source: ProcessId(number), sequence: 0 };
                return Err(Error::Fault(Fault { at: key, process: ProcessId(number), kind }));
            }
            processes.push(Process { random, sequence, trace: 0, state });
        }
        Ok(Simulation { model, rules, now: Time::ZERO, processes, pending, events: 0, broken: false })
    }

    pub(crate) fn from_parts(
        model: M,
        rules: Rules,
        now: Time,
        events: u64,
        processes: Vec<Process<M::State>>,
        pending: Vec<Event<M::Message>>,
    ) -> Simulation<M> {
        Simulation { model, rules, now, processes, pending, events, broken: false }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    pub fn model(&self) -> &M {
        &self.model
    }

    /// Everything before this time is done.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Events handled since time 0.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Messages that have not arrived.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// They, in no order.
    pub fn messages(&self) -> impl Iterator<Item = &Event<M::Message>> {
        self.pending.iter()
    }

    /// States of the processes, by their numbers.
    pub fn states(&self) -> impl ExactSizeIterator<Item = &M::State> {
        self.processes.iter().map(|process| &process.state)
    }

    /// Hash of what every process has handled, in its order, and of how far its random stream is. Equal for equal
    /// histories under any scheduler, number of threads, and division into runs.
    pub fn trace(&self) -> u64 {
        self.processes.iter().fold(0, |hash, process| {
            mix(hash ^ mix(process.trace) ^ process.random.position().rotate_left(17) ^ process.sequence)
        })
    }

    /// Handles every event before `until`. After an error the simulation is of no use. Nobody wants the records.
    pub fn run(&mut self, until: Time, options: &Options<'_>) -> Result<Report, Error> {
        self.run_to::<false>(until, options, &mut |_| {}, None)
    }

    /// As [`Simulation::run`], and `sink` is called with each record that a handler emitted, in the order of their events
    /// (by [`Key`](crate::Key)): the same calls under every scheduler. At an error it has got the records of all events
    /// before the wrong one. Under parallel schedulers it is called by one of their threads and keeps the others waiting;
    /// few records are held back until it may be called.
    pub fn run_with(
        &mut self,
        until: Time,
        options: &Options<'_>,
        mut sink: impl FnMut(Emitted<M::Record>) + Send,
    ) -> Result<Report, Error> {
        self.run_to::<true>(until, options, &mut sink, None)
    }

    /// Looks whether all ranks are about to do the same.
    fn meet(
        &self,
        until: Time,
        options: &Options<'_>,
        writes: bool,
        ranks: &mut Ranks<'_, M>,
    ) -> Result<(), Error> {
        let count = ranks.link.ranks();
        if !(1..=RANKS_MAX).contains(&count) {
            return Err(Error::Invalid(format!("1 to {RANKS_MAX} ranks")));
        }
        let parallel = matches!(options.scheduler, Scheduler::Conservative | Scheduler::Optimistic);
        if count > 1 && !parallel {
            return Err(Error::Invalid(
                "several ranks need the conservative or the optimistic scheduler".into(),
            ));
        }
        let same = vec![
            ("scheduler", options.scheduler as u64),
            ("threads", options.threads as u64),
            ("records", writes.into()),
            ("until", until.0),
            ("now", self.now.0),
            ("events", self.events),
            ("seed and history (hash)", self.trace()),
        ];
        ranks.greet(self.rules, same, &self.processes, &self.pending)
    }

    /// Of its own for runs that write nothing: to look after each event for what is not there costs some of them a tenth.
    fn run_to<const WRITES: bool>(
        &mut self,
        until: Time,
        options: &Options<'_>,
        sink: Sink<'_, M::Record>,
        mut ranks: Option<Ranks<'_, M>>,
    ) -> Result<Report, Error> {
        if self.broken {
            return Err(Error::Broken);
        }
        if !(1..=THREADS_MAX).contains(&options.threads) || options.ahead_max == 0 {
            return Err(Error::Invalid(format!("1 to {THREADS_MAX} threads, at least 1 event ahead")));
        }
        if until > Time::MAX {
            return Err(Error::Invalid(format!("time ends at {}", Time::MAX)));
        }
        if let Some(ranks) = &mut ranks {
            self.meet(until, options, WRITES, ranks)?;
        }
        self.broken = true;
        let work = Work {
            model: &self.model,
            rules: self.rules,
            processes: &mut self.processes,
            pending: std::mem::take(&mut self.pending),
            until,
            options,
            ranks: ranks.as_mut().map(Ranks::again),
        };
        let done = match options.scheduler {
            Scheduler::Sequential => sequential::run::<M, Ladder<_>, WRITES>(work, sink),
            Scheduler::Reference => sequential::run::<M, Heap<_>, WRITES>(work, sink),
            Scheduler::RollbackCheck => check::run(work, sink),
            Scheduler::Conservative => conservative::run::<M, WRITES>(work, sink),
            Scheduler::Optimistic => optimistic::run::<M, WRITES>(work, sink),
        }?;
        self.pending = done.pending;
        self.now = self.now.max(done.report.reached);
        self.events += done.report.events;
        self.broken = false;
        Ok(done.report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_shared_by_threads_and_follow_each_other_in_parts() {
        let one = Report { events: 5, rounds: 3, ahead: 7, reached: Time(9), ..Report::default() };
        let two = Report { events: 4, rounds: 4, ahead: 1, reached: Time(20), ..Report::default() };
        let both = Report { events: 9, ahead: 7, reached: Time(20), ..Report::default() };
        let (mut beside, mut then) = (one, one);
        beside.beside(&two);
        then.then(&two);
        assert_eq!(beside, Report { rounds: 4, ..both });
        assert_eq!(then, Report { rounds: 7, ..both });
    }
}
