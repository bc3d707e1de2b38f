//! Time Warp (Jefferson: Virtual Time, 1985) on threads: each handles its processes' events as far ahead as it may, and
//! goes back when a message comes that should have been handled before.
//!
//! ```text
//!            certain  |  handled, can be undone  |  pending
//!  ───────────────────┼──────────────────────────┼──────────────→ virtual time
//!            the global virtual time (GVT)      horizon
//! ```
//! Threads work in rounds. Between two rounds they exchange messages, anti-messages, and the earliest time that each still
//! has to do with; the least of these is the GVT: nothing before it can be undone, so it is committed and forgotten.
//!
//! **Going back** is incremental: handlers say how to take each change back ([`Turn::keep`](crate::Turn::keep)), and the
//! kernel remembers the random stream's position, the count of messages, and what was sent. A process goes back alone. Its
//! undone events become pending again; what they sent is taken back by anti-messages, which find their message pending, or
//! make its receiver go back in turn.
//!
//! **Memory** is bounded: a thread with `ahead_max` uncommitted events handles nothing but events at the GVT itself. Those it
//! always may, so the GVT always moves: each is certain as soon as the round is over. Forced rollbacks (for tests)
//! undo nothing at the GVT for the same reason.
//!
//! **How far ahead** is the same on all threads and follows from their common notices: the horizon doubles while nearly
//! nothing is undone and rounds are short, and halves when much is undone. It decides about speed only.

use crate::checkpoint::{Load, LoadError, Reader, Save, Saved, load_event, save_event};
use crate::conservative::{Ended, gathered, on_threads};
use crate::emitted::{Emitted, Ledger, Sink};
use crate::error::{Error, Fault};
use crate::event::{Event, Key, Keyed, ProcessId, Time};
use crate::exchange::{Exchange, Lead, Notice, Post};
use crate::model::{Model, Process, Rules, execute, trace};
use crate::queue::{Ladder, Queue};
use crate::random::Stream;
use crate::ranks::{Leader, Part};
use crate::sequential::drain;
use crate::simulation::{Done, Options, Progress, Report, Work};
use std::collections::HashSet;
use std::hint::black_box;
use std::ops::Range;

/// Events between two calls of the progress function, at least.
const PROGRESS_EVERY: u64 = 1 << 16;
/// What would be wrong without a word otherwise; looked for also in releases, once for each message from another thread.
const TOO_LATE: &str = "the kernel has committed too much: a message is from before the global virtual time";
/// No record.
const NONE: u32 = u32::MAX;
/// Nothing is pending.
const NEVER: u64 = u64::MAX;
/// Events of a thread's round above which the horizon does not grow, and the most that one round may have.
const ROUND_WANTED: u64 = 1 << 6;
const ROUND_MAX: u64 = 1 << 8;
/// The horizon grows when at most one event of so many was undone, and shrinks when more than one of so many was.
const GROW_BELOW: u64 = 16;
const SHRINK_ABOVE: u64 = 4;
/// The horizon does not grow when the GVT comes forward by less than a part of so many of it: what is far ahead only waits
/// then, and takes room in the processor's cache. It shrinks when that is less than the square of it.
const LAG_MAX: u64 = 4;
/// Forced rollbacks: after one of so many events a process goes back.
const FORCED_ONE_OF: u64 = 6;

/// A message with a name of its own: a message that was taken back and sent again has the same key, but another name.
#[derive(Clone)]
struct Named<M> {
    event: Event<M>,
    name: u64,
}

impl<M> Keyed for Named<M> {
    fn key(&self) -> Key {
        self.event.key
    }
}

/// What takes a message back.
#[derive(Clone, Copy)]
struct Anti {
    key: Key,
    to: ProcessId,
    name: u64,
}

enum Mail<M> {
    Message(Named<M>),
    Anti(Anti),
}

impl<M> Mail<M> {
    fn save(&self, message: Save<M>, out: &mut Vec<u8>) {
        match self {
            Mail::Message(named) => {
                out.push(0);
                named.name.save(out);
                save_event(&named.event, message, out);
            }
            Mail::Anti(Anti { key, to, name }) => {
                out.push(1);
                name.save(out);
                key.save(out);
                to.0.save(out);
            }
        }
    }

    fn load(message: Load<M>, from: &mut Reader<'_>) -> Result<(Key, ProcessId, Mail<M>), LoadError> {
        let (kind, name) = (u8::load(from)?, from.u64()?);
        match kind {
            0 => {
                let event = load_event(from, message)?;
                Ok((event.key, event.to, Mail::Message(Named { event, name })))
            }
            1 => {
                let (key, to) = (Key::load(from)?, ProcessId(from.u32()?));
                Ok((key, to, Mail::Anti(Anti { key, to, name })))
            }
            _ => Err(LoadError::Damaged("mail of no known kind")),
        }
    }
}

/// An event that was handled and may be undone, in a list of its process.
struct Handled<M: Model> {
    /// None while the record is not in use.
    named: Option<Named<M::Message>>,
    /// Before it was handled.
    position: u64,
    sequence: u64,
    changes: Vec<M::Undo>,
    sent: Vec<Anti>,
    emitted: Vec<M::Record>,
    fault: Option<Box<Fault>>,
    older: u32,
    newer: u32,
}

/// All records of a thread. Those that are free are used again, the last freed one first: it is still in the processor's
/// cache, and its vectors have their memory.
struct Records<M: Model> {
    all: Vec<Handled<M>>,
    free: Vec<u32>,
}

impl<M: Model> Records<M> {
    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            let at = u32::try_from(self.all.len()).ok().filter(|at| *at != NONE);
            self.all.push(Handled {
                named: None,
                position: 0,
                sequence: 0,
                changes: Vec::new(),
                sent: Vec::new(),
                emitted: Vec::new(),
                fault: None,
                older: NONE,
                newer: NONE,
            });
            at.expect("4 billion uncommitted events do not fit into memory")
        })
    }

    fn at(&mut self, at: u32) -> &mut Handled<M> {
        &mut self.all[at as usize]
    }

    fn key(&self, at: u32) -> Key {
        self.all[at as usize].named.as_ref().expect("records in lists are in use").event.key
    }

    fn release(&mut self, at: u32) -> Named<M::Message> {
        let record = self.at(at);
        record.changes.clear();
        record.sent.clear();
        record.emitted.clear();
        record.fault = None;
        self.free.push(at);
        self.all[at as usize].named.take().expect("records in lists are in use")
    }
}

/// One process's uncommitted past.
#[derive(Clone, Copy)]
struct Past {
    oldest: u32,
    newest: u32,
    /// Whether it is in the list of those with a past.
    listed: bool,
}

/// Earliest of what a thread has sent to others in a round: they do not have it yet when they say what they have.
#[derive(Clone, Copy)]
struct InFlight {
    message: u64,
    anti: u64,
}

const LANDED: InFlight = InFlight { message: NEVER, anti: NEVER };

/// The earliest time that a thread has to do with; the least of all threads is the GVT. What was sent counts here, with the
/// sender, because its receiver cannot know of it: forgotten, it would arrive behind what is committed.
fn earliest(pending: u64, in_flight: InFlight) -> u64 {
    pending.min(in_flight.message).min(in_flight.anti)
}

struct Worker<'a, 's, M: Model, const WRITES: bool> {
    model: &'a M,
    rules: Rules,
    options: &'a Options<'a>,
    part: Part,
    /// Of all ranks.
    threads: u64,
    /// This thread's processes.
    block: Range<u32>,
    processes: &'a mut [Process<M::State>],
    pasts: Vec<Past>,
    records: Records<M>,
    /// Processes with a past.
    listed: Vec<u32>,
    /// Uncommitted events.
    ahead: usize,
    queue: Ladder<Named<M::Message>>,
    /// Names of pending messages that were taken back.
    cancelled: HashSet<u64>,
    post: Post<'a, 'a, Mail<M::Message>>,
    names: u64,
    in_flight: InFlight,
    /// [`earliest`], or in tests one that forgets.
    earliest: fn(u64, InFlight) -> u64,
    /// Events undone in this round.
    undone: u64,
    forced: Option<Stream>,
    ledger: &'a Ledger<'s, M::Record>,
    /// Records that have just been committed.
    rows: Vec<Emitted<M::Record>>,
    fault: Option<Fault>,
    report: Report,
    // Kept for their memory.
    sent: Vec<Event<M::Message>>,
    antis: Vec<Anti>,
    mail: Vec<Mail<M::Message>>,
}

pub(crate) fn run<M: Model, const WRITES: bool>(
    work: Work<'_, M>,
    sink: Sink<'_, M::Record>,
) -> Result<Done<M>, Error> {
    run_with::<M, WRITES>(work, sink, earliest)
}

fn run_with<M: Model, const WRITES: bool>(
    work: Work<'_, M>,
    sink: Sink<'_, M::Record>,
    earliest: fn(u64, InFlight) -> u64,
) -> Result<Done<M>, Error> {
    let Work { model, rules, processes, pending, until, options, mut ranks } = work;
    let part = Part::new(rules.processes, options.threads, ranks.as_ref().map(|ranks| &*ranks.link));
    let blocks = part.split(processes);
    let mut queues: Vec<Ladder<_>> = blocks.iter().map(|_| Ladder::default()).collect();
    for event in pending {
        if let Some(thread) = part.own_thread_of(event.to) {
            // Nobody takes these back, so their names matter to none.
            queues[thread].push(Named { event, name: NEVER });
        }
    }
    let message = ranks.as_ref().map(|ranks| ranks.codec.message);
    let save = message.map(|(save, _)| move |mail: &Mail<_>, out: &mut Vec<u8>| mail.save(save, out));
    let load = message.map(|(_, load)| move |from: &mut Reader<'_>| Mail::load(load, from));
    let exchange = Exchange::new(queues.len(), save.as_ref().map(|save| part.far(save)));
    let ledger = Ledger::new(sink, queues.len());
    let workers = blocks.into_iter().zip(queues).enumerate().map(|(me, (processes, queue))| {
        let number = (part.rank * part.threads + me) as u64;
        Worker::<_, WRITES> {
            model,
            rules,
            options,
            part,
            threads: part.threads_of_all() as u64,
            block: part.first(me)..part.first(me) + processes.len() as u32,
            pasts: vec![Past { oldest: NONE, newest: NONE, listed: false }; processes.len()],
            records: Records { all: Vec::new(), free: Vec::new() },
            processes,
            listed: Vec::new(),
            ahead: 0,
            queue,
            cancelled: HashSet::new(),
            post: exchange.join(me),
            names: number,
            in_flight: LANDED,
            earliest,
            undone: 0,
            forced: options.forced_rollbacks.map(|seed| Stream::new(seed, number)),
            ledger: &ledger,
            rows: Vec::new(),
            fault: None,
            report: Report::default(),
            sent: Vec::new(),
            antis: Vec::new(),
            mail: Vec::new(),
        }
    });
    let mut leader =
        ranks.as_mut().zip(load.as_ref()).map(|(ranks, load)| Leader::new(ranks, &ledger, part, load));
    let ended = on_threads(workers.collect(), leader.as_mut(), |worker, lead| worker.run(until, lead));
    match leader.and_then(Leader::into_error) {
        Some(error) => Err(error),
        None => gathered(part, ended, &ledger, ranks, processes),
    }
}

/// How far ahead all threads may go; each computes the same from the common notices.
struct Horizon {
    /// Ticks beyond the GVT.
    reach: u64,
    round_wanted: u64,
    gvt: u64,
}

impl Horizon {
    fn judge(&mut self, all: &Notice) {
        let advance = all.next.saturating_sub(std::mem::replace(&mut self.gvt, all.next));
        if all.undone * SHRINK_ABOVE > all.handled || advance.saturating_mul(LAG_MAX * LAG_MAX) < self.reach {
            self.reach = (self.reach / 2).max(1);
        } else if all.undone * GROW_BELOW <= all.handled
            && all.handled < self.round_wanted
            && advance.saturating_mul(LAG_MAX) >= self.reach
        {
            self.reach = (self.reach * 2).min(Time::MAX.0);
        }
    }
}

impl<M: Model, const WRITES: bool> Worker<'_, '_, M, WRITES> {
    /// None when another thread has panicked.
    fn run(
        mut self,
        until: Time,
        mut lead: Option<&mut dyn Lead<Mail<M::Message>>>,
    ) -> Option<Ended<Event<M::Message>>> {
        let mut horizon =
            Horizon { reach: self.rules.lookahead.0, round_wanted: ROUND_WANTED * self.threads, gvt: 0 };
        let mut mine = Notice { next: NEVER, handled: 0, undone: 0, until: until.0, fault: false };
        let (mut events, mut told, mut farthest) = (0u64, 0, 0);
        loop {
            let pending = self.queue.next_time().map_or(NEVER, |time| time.0);
            mine.next = (self.earliest)(pending, self.in_flight);
            mine.fault = self.fault.is_some();
            let all = self.post.meet(mine, lead.as_deref_mut()).ok()?;
            self.report.rounds = self.post.round();
            if all.fault {
                // All faults that were committed were so in the same round: the first of them is the run's first.
                return Some((Vec::new(), self.report, self.fault));
            }
            if WRITES && self.is_first() {
                self.ledger.deliver(self.post.round() - 1);
            }
            (self.in_flight, self.undone) = (LANDED, 0);
            self.receive(Time(all.next));
            self.commit(all.next);
            if all.next >= all.until {
                return Some(self.end(Time(all.until)));
            }
            mine = Notice { next: NEVER, handled: 0, undone: 0, until: all.until, fault: false };
            horizon.judge(&all);
            let reach = Time(all.next).plus(Time(horizon.reach)).0.min(all.until);
            farthest = farthest.max(reach);
            events = (events + all.handled).saturating_sub(all.undone);
            if self.is_first() && events.abs_diff(told) >= PROGRESS_EVERY {
                told = events;
                let progress = Progress { now: Time(all.next), until: Time(all.until), events };
                if self.options.progress.is_some_and(|tell| tell(progress).is_break()) {
                    // Nobody has gone farther.
                    mine.until = farthest;
                }
            }
            mine.handled = self.round(Time(all.next), Time(reach));
            mine.undone = self.undone;
        }
    }

    /// Of all threads of all ranks.
    fn is_first(&self) -> bool {
        self.part.rank == 0 && self.post.me() == 0
    }

    /// Handles events before `reach`, but for those at the GVT only as many as there is room for; their number.
    fn round(&mut self, gvt: Time, reach: Time) -> u64 {
        let mut handled = 0;
        loop {
            let full = self.ahead >= self.options.ahead_max || handled >= ROUND_MAX;
            let end = if full { gvt.plus(Time(1)) } else { reach };
            let Some(named) = self.queue.pop_before(end) else { return handled };
            if !self.cancelled.is_empty() && self.cancelled.remove(&named.name) {
                continue;
            }
            // Loads that nothing waits for; see `sequential`.
            if let Some(next) = self.queue.likely_next() {
                black_box(self.processes[(next.event.to.0 - self.block.start) as usize].sequence);
            }
            let local = (named.event.to.0 - self.block.start) as usize;
            let newest = self.pasts[local].newest;
            if newest != NONE && self.records.key(newest) > named.event.key {
                self.set_back(local, named.event.key, None);
                self.settle();
            }
            self.handle(local, named);
            handled += 1;
            if let Some(random) = self.forced {
                self.force_rollback(random, gvt);
            }
        }
    }

    fn handle(&mut self, local: usize, named: Named<M::Message>) {
        let (process, past) = (&mut self.processes[local], &mut self.pasts[local]);
        let at = self.records.take();
        if past.newest == NONE {
            past.oldest = at
        } else {
            self.records.at(past.newest).newer = at
        }
        let record = self.records.at(at);
        (record.position, record.sequence) = (process.random.position(), process.sequence);
        (record.older, record.newer) = (past.newest, NONE);
        past.newest = at;
        let changes = Some(&mut record.changes);
        let emitted = WRITES.then_some(&mut record.emitted);
        let fault = execute(self.model, self.rules, process, &named.event, &mut self.sent, changes, emitted);
        record.fault = fault.map(Box::new);
        record.named = Some(named);
        for event in self.sent.drain(..) {
            let (key, to, name) = (event.key, event.to, self.names);
            self.names += self.threads;
            record.sent.push(Anti { key, to, name });
            if self.block.contains(&to.0) {
                self.queue.push(Named { event, name });
            } else {
                self.in_flight.message = self.in_flight.message.min(key.time.0);
                self.post.send(self.part.thread_of(to), Mail::Message(Named { event, name }));
            }
        }
        if !std::mem::replace(&mut past.listed, true) {
            self.listed.push(local as u32);
        }
        self.ahead += 1;
        self.report.ahead = self.report.ahead.max(self.ahead as u64);
    }

    /// Undoes what a process has handled from `key` on. All of it is pending again but the one called `dropped`. What it
    /// sent is to be taken back by [`Self::settle`] before anything else happens.
    fn set_back(&mut self, local: usize, key: Key, dropped: Option<u64>) {
        let (process, past) = (&mut self.processes[local], &mut self.pasts[local]);
        while past.newest != NONE && self.records.key(past.newest) >= key {
            let at = past.newest;
            let record = self.records.at(at);
            while let Some(change) = record.changes.pop() {
                self.model.undo(&mut process.state, change);
            }
            self.antis.append(&mut record.sent);
            process.random.set_position(record.position);
            process.sequence = record.sequence;
            past.newest = record.older;
            let named = self.records.release(at);
            if dropped != Some(named.name) {
                self.queue.push(named);
            }
            self.ahead -= 1;
            self.undone += 1;
            self.report.undone += 1;
        }
        if past.newest == NONE {
            past.oldest = NONE
        } else {
            self.records.at(past.newest).newer = NONE
        }
        self.report.rollbacks += 1;
    }

    /// Takes messages back until none is left that an undone event had sent.
    fn settle(&mut self) {
        while let Some(anti) = self.antis.pop() {
            self.report.anti_messages += 1;
            if self.block.contains(&anti.to.0) {
                self.take_back(anti);
            } else {
                self.in_flight.anti = self.in_flight.anti.min(anti.key.time.0);
                self.post.send(self.part.thread_of(anti.to), Mail::Anti(anti));
            }
        }
    }

    /// A message comes before its anti-message: it is handled or pending here.
    fn take_back(&mut self, anti: Anti) {
        let local = (anti.to.0 - self.block.start) as usize;
        let mut at = self.pasts[local].newest;
        while at != NONE && self.records.key(at) > anti.key {
            at = self.records.at(at).older;
        }
        if at != NONE && self.records.key(at) == anti.key {
            // A message that was sent again comes after the anti-message of the first one.
            debug_assert_eq!(self.records.at(at).named.as_ref().map(|named| named.name), Some(anti.name));
            self.set_back(local, anti.key, Some(anti.name));
        } else {
            self.cancelled.insert(anti.name);
        }
    }

    fn receive(&mut self, gvt: Time) {
        let mut mail = std::mem::take(&mut self.mail);
        self.post.take_mail(|one| mail.push(one));
        for one in mail.drain(..) {
            match one {
                Mail::Message(named) => {
                    assert!(named.event.key.time >= gvt, "{TOO_LATE}");
                    self.queue.push(named);
                }
                Mail::Anti(anti) => {
                    assert!(anti.key.time >= gvt, "{TOO_LATE}");
                    self.take_back(anti);
                    self.settle();
                }
            }
        }
        self.mail = mail;
    }

    /// Forgets how to undo what is before the GVT.
    fn commit(&mut self, gvt: u64) {
        let mut listed = std::mem::take(&mut self.listed);
        listed.retain(|local| {
            let (process, past) = (&mut self.processes[*local as usize], &mut self.pasts[*local as usize]);
            while past.oldest != NONE && self.records.key(past.oldest).time.0 < gvt {
                let at = past.oldest;
                past.oldest = self.records.at(at).newer;
                if let Some(fault) = self.records.at(at).fault.take()
                    && self.fault.as_ref().is_none_or(|other| fault.at < other.at)
                {
                    self.fault = Some(*fault);
                }
                if WRITES {
                    let key = self.records.key(at);
                    let process = ProcessId(self.block.start + *local);
                    let of_event = |record| Emitted { at: key, process, record };
                    self.rows.extend(self.records.at(at).emitted.drain(..).map(of_event));
                }
                let named = self.records.release(at);
                process.trace = trace(self.model, process.trace, &named.event);
                self.ahead -= 1;
                self.report.events += 1;
            }
            if past.oldest == NONE {
                past.newest = NONE
            } else {
                self.records.at(past.oldest).older = NONE
            }
            past.listed = past.oldest != NONE;
            past.listed
        });
        self.listed = listed;
        if WRITES {
            self.ledger.post(self.post.me(), self.post.round(), self.rows.drain(..));
        }
    }

    /// For tests: now and then a process goes back somewhere. What is at the GVT stays handled, so the GVT still moves in
    /// every round.
    #[cold]
    fn force_rollback(&mut self, mut random: Stream, gvt: Time) {
        if random.below(FORCED_ONE_OF) == 0 {
            let local = self.listed[random.below(self.listed.len() as u64) as usize] as usize;
            let mut back_to = NONE;
            let mut at = self.pasts[local].newest;
            while at != NONE && self.records.key(at).time > gvt && (back_to == NONE || random.below(3) > 0) {
                (back_to, at) = (at, self.records.at(at).older);
            }
            if back_to != NONE {
                self.set_back(local, self.records.key(back_to), None);
                self.settle();
            }
        }
        self.forced = Some(random);
    }

    fn end(mut self, reached: Time) -> Ended<Event<M::Message>> {
        self.report.reached = reached;
        debug_assert_eq!(self.ahead, 0);
        let cancelled = &self.cancelled;
        let left = drain(self.queue).into_iter().filter(|named| !cancelled.contains(&named.name));
        (left.map(|named| named.event).collect(), self.report, self.fault)
    }
}

#[cfg(test)]
mod tests {
    //! A GVT that forgets what is on its way between threads must not go unseen.
    use super::*;
    use crate::{Scheduler, Simulation, Turn};
    use std::convert::Infallible;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    const END: Time = Time(60_000);
    const RUNS: u64 = 40;

    /// Few messages, so that nothing else holds the GVT back; and a message that comes too late changes what is sent, so
    /// that what is taken back is not simply sent again.
    struct Sparse {
        processes: u32,
        lookahead: u64,
    }

    impl Model for Sparse {
        type State = u64;
        type Message = u64;
        type Undo = u64;
        type Record = Infallible;

        fn processes(&self) -> u32 {
            self.processes
        }

        fn lookahead(&self) -> Time {
            Time(self.lookahead)
        }

        fn start(&self, turn: &mut Turn<'_, Self>) -> u64 {
            turn.send(turn.me(), Time(1 + u64::from(turn.me().0)), 0);
            0
        }

        fn handle(&self, state: &mut u64, message: &u64, turn: &mut Turn<'_, Self>) {
            let was = *state;
            turn.keep(|| was);
            *state = state.wrapping_mul(31).wrapping_add(message ^ turn.now().0);
            let (to, after) = (turn.random().below(self.processes.into()), turn.random().below(400));
            if state.is_multiple_of(3) {
                turn.send(ProcessId(to as u32), Time(self.lookahead + after), *state);
            }
            // One of its own always goes on.
            if *message == 0 {
                turn.send(turn.me(), Time(100 + after), 0);
            }
        }

        fn undo(&self, state: &mut u64, was: u64) {
            *state = was;
        }
    }

    fn sparse(seed: u64) -> Simulation<Sparse> {
        let model = Sparse { processes: 3 + seed as u32 % 4, lookahead: [1, 20, 100][seed as usize % 3] };
        Simulation::new(model, seed).unwrap()
    }

    fn end_of(simulation: Simulation<Sparse>) -> Vec<(u64, u64)> {
        simulation.processes.into_iter().map(|process| (process.state, process.trace)).collect()
    }

    /// What a run with this GVT comes to, unless the kernel finds that the GVT was wrong.
    fn ends_with(seed: u64, earliest: fn(u64, InFlight) -> u64) -> Option<Vec<(u64, u64)>> {
        let mut simulation = sparse(seed);
        let options = Options { threads: 2 + seed as usize % 2, ..Options::default() };
        let work = Work {
            model: &simulation.model,
            rules: simulation.rules,
            processes: &mut simulation.processes,
            pending: std::mem::take(&mut simulation.pending),
            until: END,
            options: &options,
            ranks: None,
        };
        let run = || run_with::<_, false>(work, &mut |_| {}, earliest).map(drop);
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(done) => done.unwrap(),
            Err(panic) => {
                let why = panic.downcast_ref::<String>().expect("assertions panic with texts");
                assert!(why.contains(TOO_LATE), "{why}");
                return None;
            }
        }
        Some(end_of(simulation))
    }

    /// How many runs come to the right end with this GVT, and in how many the kernel finds it wrong.
    fn right_and_found(earliest: fn(u64, InFlight) -> u64) -> (u64, u64) {
        let (mut right, mut found) = (0, 0);
        for seed in 0..RUNS {
            let mut expected = sparse(seed);
            let reference = Options { scheduler: Scheduler::Reference, ..Options::default() };
            expected.run(END, &reference).unwrap();
            match ends_with(seed, earliest) {
                None => found += 1,
                Some(seen) => right += u64::from(seen == end_of(expected)),
            }
        }
        (right, found)
    }

    /// Rounds are the same in every run, so these counts do not depend on what else the machine does.
    #[test]
    fn a_gvt_that_forgets_what_is_on_its_way_is_caught() {
        assert_eq!(right_and_found(earliest), (RUNS, 0));
        let no_messages: fn(u64, InFlight) -> u64 = |pending, in_flight| pending.min(in_flight.anti);
        let no_antis: fn(u64, InFlight) -> u64 = |pending, in_flight| pending.min(in_flight.message);
        for (what, forgetful) in [("messages", no_messages), ("anti-messages", no_antis)] {
            let (right, found) = right_and_found(forgetful);
            println!(
                "forgets {what}: of {RUNS} runs {right} right by luck, {found} found wrong by the kernel"
            );
            assert_eq!(right + found, RUNS, "a wrong end was not found");
            assert!(found > 0, "a GVT that forgets {what} is not caught");
        }
    }
}
