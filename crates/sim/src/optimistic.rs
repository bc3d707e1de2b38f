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
//! always may, so the GVT always moves: each is certain as soon as the round is over. Forced rollbacks (for tests) come
//! before a round's first event for the same reason.
//!
//! **How far ahead** is the same on all threads and follows from their common notices: the horizon doubles while nearly
//! nothing is undone and rounds are short, and halves when much is undone. It decides about speed only.

use crate::conservative::{Blocks, Ended, gathered, join};
use crate::emitted::{Emitted, Ledger, Sink};
use crate::error::{Error, Fault};
use crate::event::{Event, Key, Keyed, ProcessId, Time};
use crate::exchange::{Exchange, Notice, Post};
use crate::model::{Model, Process, Rules, execute, trace};
use crate::queue::{Ladder, Queue};
use crate::random::Stream;
use crate::sequential::drain;
use crate::simulation::{Done, Options, Progress, Report, Work};
use std::collections::HashSet;
use std::hint::black_box;

/// Events between two calls of the progress function, at least.
const PROGRESS_EVERY: u64 = 1 << 16;
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
/// Forced rollbacks: one of so many processes with uncommitted events goes back before each round.
const FORCED_ONE_OF: u64 = 3;

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

struct Worker<'a, 's, M: Model> {
    model: &'a M,
    rules: Rules,
    options: &'a Options<'a>,
    me: usize,
    threads: u64,
    blocks: Blocks,
    first: u32,
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
    post: Post<'a, Mail<M::Message>>,
    names: u64,
    /// Earliest of what was sent to others in this round.
    posted: u64,
    /// Events undone in this round.
    undone: u64,
    forced: Option<Stream>,
    ledger: Option<&'a Ledger<'s, M::Record>>,
    /// Records that have just been committed.
    rows: Vec<Emitted<M::Record>>,
    fault: Option<Fault>,
    report: Report,
    // Kept for their memory.
    sent: Vec<Event<M::Message>>,
    antis: Vec<Anti>,
    mail: Vec<Mail<M::Message>>,
}

pub(crate) fn run<M: Model>(work: Work<'_, M>, sink: Option<Sink<'_, M::Record>>) -> Result<Done<M>, Error> {
    let Work { model, rules, processes, pending, until, options } = work;
    let blocks = Blocks::new(rules.processes, options.threads);
    let mut queues: Vec<Ladder<_>> = processes.chunks(blocks.size()).map(|_| Ladder::default()).collect();
    // Nobody takes these back, so their names matter to none.
    let unnamed = |event| Named { event, name: NEVER };
    pending.into_iter().for_each(|event| queues[blocks.thread_of(event.to)].push(unnamed(event)));
    let (exchange, threads) = (Exchange::new(queues.len()), queues.len() as u64);
    let ledger = sink.map(|sink| Ledger::new(sink, queues.len()));
    let ended = std::thread::scope(|scope| {
        let parts = processes.chunks_mut(blocks.size()).zip(queues).enumerate();
        let threads: Vec<_> = parts
            .map(|(me, (processes, queue))| {
                let worker = Worker {
                    model,
                    rules,
                    options,
                    me,
                    threads,
                    blocks,
                    first: blocks.first(me),
                    pasts: vec![Past { oldest: NONE, newest: NONE, listed: false }; processes.len()],
                    records: Records { all: Vec::new(), free: Vec::new() },
                    processes,
                    listed: Vec::new(),
                    ahead: 0,
                    queue,
                    cancelled: HashSet::new(),
                    post: exchange.join(me),
                    names: me as u64,
                    posted: NEVER,
                    undone: 0,
                    forced: options.forced_rollbacks.map(|seed| Stream::new(seed, me as u64)),
                    ledger: ledger.as_ref(),
                    rows: Vec::new(),
                    fault: None,
                    report: Report::default(),
                    sent: Vec::new(),
                    antis: Vec::new(),
                    mail: Vec::new(),
                };
                scope.spawn(move || worker.run(until))
            })
            .collect();
        join(threads)
    });
    let mut done = Done { pending: Vec::new(), report: Report::default() };
    for (pending, report, _) in gathered(ended, ledger)? {
        done.pending.extend(pending);
        done.report.add(&report);
    }
    Ok(done)
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

impl<M: Model> Worker<'_, '_, M> {
    /// None when another thread has panicked.
    fn run(mut self, until: Time) -> Option<Ended<Event<M::Message>>> {
        let mut horizon =
            Horizon { reach: self.rules.lookahead.0, round_wanted: ROUND_WANTED * self.threads, gvt: 0 };
        let mut mine = Notice { next: NEVER, handled: 0, undone: 0, until: until.0, fault: false };
        let (mut events, mut told, mut farthest) = (0u64, 0, 0);
        loop {
            mine.next = self.queue.next_time().map_or(NEVER, |time| time.0).min(self.posted);
            mine.fault = self.fault.is_some();
            let all = self.post.meet(mine).ok()?;
            self.report.rounds = self.post.round();
            if all.fault {
                // All faults that were committed were so in the same round: the first of them is the run's first.
                return Some((Vec::new(), self.report, self.fault));
            }
            if let Some(ledger) = self.ledger.filter(|_| self.me == 0) {
                ledger.deliver(self.post.round() - 1);
            }
            (self.posted, self.undone) = (NEVER, 0);
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
            if self.me == 0 && events.abs_diff(told) >= PROGRESS_EVERY {
                told = events;
                let progress = Progress { now: Time(all.next), until: Time(all.until), events };
                if self.options.progress.is_some_and(|tell| tell(progress).is_break()) {
                    // Nobody has gone farther.
                    mine.until = farthest;
                }
            }
            self.force_rollbacks();
            mine.handled = self.round(Time(all.next), Time(reach));
            mine.undone = self.undone;
        }
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
                black_box(self.processes[(next.event.to.0 - self.first) as usize].sequence);
            }
            let local = (named.event.to.0 - self.first) as usize;
            let newest = self.pasts[local].newest;
            if newest != NONE && self.records.key(newest) > named.event.key {
                self.set_back(local, named.event.key, None);
                self.settle();
            }
            self.handle(local, named);
            handled += 1;
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
        let emitted = self.ledger.is_some().then_some(&mut record.emitted);
        let fault = execute(self.model, self.rules, process, &named.event, &mut self.sent, changes, emitted);
        record.fault = fault.map(Box::new);
        record.named = Some(named);
        for event in self.sent.drain(..) {
            let (key, to, name) = (event.key, event.to, self.names);
            self.names += self.threads;
            record.sent.push(Anti { key, to, name });
            let thread = self.blocks.thread_of(to);
            if thread == self.me {
                self.queue.push(Named { event, name });
            } else {
                self.posted = self.posted.min(key.time.0);
                self.post.send(thread, Mail::Message(Named { event, name }));
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
            let thread = self.blocks.thread_of(anti.to);
            if thread == self.me {
                self.take_back(anti);
            } else {
                self.posted = self.posted.min(anti.key.time.0);
                self.post.send(thread, Mail::Anti(anti));
            }
        }
    }

    /// A message comes before its anti-message: it is handled or pending here.
    fn take_back(&mut self, anti: Anti) {
        let local = (anti.to.0 - self.first) as usize;
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
                    debug_assert!(named.event.key.time >= gvt, "the GVT is too late");
                    self.queue.push(named);
                }
                Mail::Anti(anti) => {
                    debug_assert!(anti.key.time >= gvt, "the GVT is too late");
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
                let mut emitted = std::mem::take(&mut self.records.at(at).emitted);
                let named = self.records.release(at);
                if !emitted.is_empty() {
                    let (key, to) = (named.event.key, named.event.to);
                    let of_event = |record| Emitted { at: key, process: to, record };
                    self.rows.extend(emitted.drain(..).map(of_event));
                    self.records.at(at).emitted = emitted;
                }
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
        if let Some(ledger) = self.ledger {
            ledger.post(self.me, self.post.round(), self.rows.drain(..));
        }
    }

    /// For tests: some processes go back somewhere.
    fn force_rollbacks(&mut self) {
        let Some(mut random) = self.forced else { return };
        for at in 0..self.listed.len() {
            let local = self.listed[at] as usize;
            let mut back_to = self.pasts[local].newest;
            // It may have gone back already, because of another one.
            if back_to != NONE && random.below(FORCED_ONE_OF) == 0 {
                while self.records.at(back_to).older != NONE && random.below(3) > 0 {
                    back_to = self.records.at(back_to).older;
                }
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
