//! Windows on threads (Nicolas's YAWNS): what is earlier than the earliest event plus the lookahead cannot be changed by
//! any message, so each thread handles that much of its own processes, and then all exchange messages.

use crate::emitted::{Emitted, Ledger, Sink};
use crate::error::{Error, Fault};
use crate::event::{Event, ProcessId, Time};
use crate::exchange::{Exchange, Notice, Post};
use crate::model::{Model, Process, Rules, execute, trace};
use crate::queue::{Ladder, Queue};
use crate::sequential::drain;
use crate::simulation::{Done, Options, Progress, Report, Work};
use std::collections::VecDeque;
use std::hint::black_box;

/// Events between two calls of the progress function, at least.
const PROGRESS_EVERY: u64 = 1 << 16;
/// Nothing is pending.
const NEVER: u64 = u64::MAX;

/// Records that a thread holds back before it handles only what is next of all. Bounds the memory.
const HELD_MAX: usize = 1 << 14;

/// Processes in blocks, one of each thread.
#[derive(Clone, Copy)]
pub(crate) struct Blocks {
    size: u32,
}

impl Blocks {
    pub fn new(processes: u32, threads: usize) -> Blocks {
        Blocks { size: processes.div_ceil(u32::try_from(threads).unwrap_or(u32::MAX)) }
    }

    pub fn size(self) -> usize {
        self.size as usize
    }

    #[inline]
    pub fn thread_of(self, process: ProcessId) -> usize {
        (process.0 / self.size) as usize
    }

    /// The first process of a thread.
    pub fn first(self, thread: usize) -> u32 {
        thread as u32 * self.size
    }
}

/// One thread's part of the work.
struct Worker<'a, 's, M: Model> {
    model: &'a M,
    rules: Rules,
    options: &'a Options<'a>,
    me: usize,
    blocks: Blocks,
    processes: &'a mut [Process<M::State>],
    queue: Ladder<Event<M::Message>>,
    post: Post<'a, Event<M::Message>>,
    sent: Vec<Event<M::Message>>,
    /// Where records go, those that are not yet certain, and those of one event.
    ledger: Option<&'a Ledger<'s, M::Record>>,
    held: VecDeque<Emitted<M::Record>>,
    emitted: Vec<M::Record>,
    fault: Option<Fault>,
    report: Report,
}

pub(crate) fn run<M: Model>(work: Work<'_, M>, sink: Option<Sink<'_, M::Record>>) -> Result<Done<M>, Error> {
    let Work { model, rules, processes, pending, until, options } = work;
    let blocks = Blocks::new(rules.processes, options.threads);
    let mut queues: Vec<Ladder<_>> = processes.chunks(blocks.size()).map(|_| Ladder::default()).collect();
    pending.into_iter().for_each(|event| queues[blocks.thread_of(event.to)].push(event));
    let exchange = Exchange::new(queues.len());
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
                    blocks,
                    processes,
                    queue,
                    post: exchange.join(me),
                    sent: Vec::new(),
                    ledger: ledger.as_ref(),
                    held: VecDeque::new(),
                    emitted: Vec::new(),
                    fault: None,
                    report: Report::default(),
                };
                scope.spawn(move || worker.run(until))
            })
            .collect();
        join(threads)
    });
    let mut done = Done { pending: Vec::new(), report: Report::default() };
    for (pending, report, fault) in gathered(ended, ledger)? {
        debug_assert!(fault.is_none());
        done.pending.extend(pending);
        done.report.add(&report);
    }
    Ok(done)
}

/// What a thread ends with: pending events, what it did, and the first wrong event.
pub(crate) type Ended<E> = (Vec<E>, Report, Option<Fault>);

/// Waits for all threads; the panic of a model goes on in the caller.
pub(crate) fn join<E>(
    threads: Vec<std::thread::ScopedJoinHandle<'_, Option<Ended<E>>>>,
) -> Vec<Option<Ended<E>>> {
    let joined: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
    joined.into_iter().map(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
}

/// The threads' results, or the first fault of all. The last records are given on.
pub(crate) fn gathered<E, R>(
    ended: Vec<Option<Ended<E>>>,
    ledger: Option<Ledger<'_, R>>,
) -> Result<Vec<Ended<E>>, Error> {
    let ended: Vec<_> = ended.into_iter().flatten().collect();
    let fault = ended.iter().filter_map(|(_, _, fault)| fault.clone()).min_by_key(|fault| fault.at);
    if let Some(ledger) = ledger {
        ledger.finish(fault.as_ref().map(|fault| fault.at));
    }
    match fault {
        Some(fault) => Err(Error::Fault(fault)),
        None => Ok(ended),
    }
}

impl<M: Model> Worker<'_, '_, M> {
    /// None when another thread has panicked.
    fn run(mut self, until: Time) -> Option<Ended<Event<M::Message>>> {
        let mut mine = Notice { next: NEVER, handled: 0, undone: 0, until: until.0, fault: false };
        let (mut events, mut told) = (0, 0);
        loop {
            if let Some(fault) = &self.fault {
                // The run ends there, when the others have come so far: one of them may have an earlier fault.
                mine.until = mine.until.min(fault.at.time.0 + 1);
            } else {
                mine.next = mine.next.min(self.queue.next_time().map_or(NEVER, |time| time.0));
            }
            let all = self.post.meet(mine).ok()?;
            self.report.rounds = self.post.round();
            self.give_on(all.next.min(all.until));
            let queue = &mut self.queue;
            self.post.take_mail(|event| queue.push(event));
            events += all.handled;
            if all.next >= all.until {
                self.report.reached = Time(all.until);
                return Some((drain(self.queue), self.report, self.fault));
            }
            let end = Time(all.next).plus(self.rules.lookahead).min(Time(all.until));
            mine = Notice { next: NEVER, handled: 0, undone: 0, until: all.until, fault: false };
            if self.me == 0 && events - told >= PROGRESS_EVERY {
                told = events;
                let progress = Progress { now: Time(all.next), until: Time(all.until), events };
                if self.options.progress.is_some_and(|tell| tell(progress).is_break()) {
                    // What others handle in this window is done in any case.
                    mine.until = end.0;
                }
            }
            if self.fault.is_none() {
                self.window(Time(all.next), end, &mut mine);
            }
        }
    }

    /// Gives on what is certain: records of before `certain`.
    fn give_on(&mut self, certain: u64) {
        let Some(ledger) = self.ledger else { return };
        if self.me == 0 {
            ledger.deliver(self.post.round() - 1);
        }
        let ready = self.held.partition_point(|row| row.at.time.0 < certain);
        ledger.post(self.me, self.post.round(), self.held.drain(..ready));
    }

    /// Handles what is before `end`, or what is at `next`, the earliest of all, when too many records are held back.
    fn window(&mut self, next: Time, end: Time, mine: &mut Notice) {
        let first = self.blocks.first(self.me);
        let block = first..first + self.processes.len() as u32;
        loop {
            let end = if self.held.len() < HELD_MAX { end } else { next.plus(Time(1)) };
            let Some(event) = self.queue.pop_before(end) else { break };
            // Loads that nothing waits for; see `sequential`.
            if let Some(next) = self.queue.likely_next() {
                black_box(self.processes[(next.to.0 - first) as usize].sequence);
            }
            let process = &mut self.processes[(event.to.0 - first) as usize];
            process.trace = trace(self.model, process.trace, &event);
            let emitted = self.ledger.is_some().then_some(&mut self.emitted);
            self.fault = execute(self.model, self.rules, process, &event, &mut self.sent, None, emitted);
            if self.fault.is_some() {
                break;
            }
            let of_event = |record| Emitted { at: event.key, process: event.to, record };
            self.held.extend(self.emitted.drain(..).map(of_event));
            mine.handled += 1;
            for event in self.sent.drain(..) {
                if block.contains(&event.to.0) {
                    self.queue.push(event);
                } else {
                    mine.next = mine.next.min(event.key.time.0);
                    self.post.send(self.blocks.thread_of(event.to), event);
                }
            }
        }
        self.report.events += mine.handled;
    }
}
