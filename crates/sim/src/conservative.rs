//! Windows on threads (Nicolas's YAWNS): what is earlier than the earliest event plus the lookahead cannot be changed by
//! any message, so each thread handles that much of its own processes, and then all exchange messages.

use crate::checkpoint::{Reader, load_event, save_event};
use crate::emitted::{Emitted, Ledger, Sink};
use crate::error::{Error, Fault};
use crate::event::{Event, Time};
use crate::exchange::{Exchange, Lead, Notice, Post};
use crate::model::{Model, Process, Rules, execute, trace};
use crate::queue::{Ladder, Queue};
use crate::ranks::{Leader, Part, Ranks};
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

/// One thread's part of the work.
struct Worker<'a, 's, M: Model, const WRITES: bool> {
    model: &'a M,
    rules: Rules,
    options: &'a Options<'a>,
    part: Part,
    processes: &'a mut [Process<M::State>],
    queue: Ladder<Event<M::Message>>,
    post: Post<'a, 'a, Event<M::Message>>,
    sent: Vec<Event<M::Message>>,
    /// Where records go, those that are not yet certain, and those of one event.
    ledger: &'a Ledger<'s, M::Record>,
    held: VecDeque<Emitted<M::Record>>,
    emitted: Vec<M::Record>,
    fault: Option<Fault>,
    report: Report,
}

pub(crate) fn run<M: Model, const WRITES: bool>(
    work: Work<'_, M>,
    sink: Sink<'_, M::Record>,
) -> Result<Done<M>, Error> {
    let Work { model, rules, processes, pending, until, options, mut ranks } = work;
    let part = Part::new(rules.processes, options.threads, ranks.as_ref().map(|ranks| &*ranks.link));
    let blocks = part.split(processes);
    let mut queues: Vec<Ladder<_>> = blocks.iter().map(|_| Ladder::default()).collect();
    for event in pending {
        if let Some(thread) = part.own_thread_of(event.to) {
            queues[thread].push(event);
        }
    }
    let message = ranks.as_ref().map(|ranks| ranks.codec.message);
    let save =
        message.map(|(save, _)| move |event: &Event<_>, out: &mut Vec<u8>| save_event(event, save, out));
    let load = message.map(|(_, load)| {
        move |from: &mut Reader<'_>| load_event(from, load).map(|event| (event.key, event.to, event))
    });
    let exchange = Exchange::new(queues.len(), save.as_ref().map(|save| part.far(save)));
    let ledger = Ledger::new(sink, queues.len());
    let workers =
        blocks.into_iter().zip(queues).enumerate().map(|(me, (processes, queue))| Worker::<_, WRITES> {
            model,
            rules,
            options,
            part,
            processes,
            queue,
            post: exchange.join(me),
            sent: Vec::new(),
            ledger: &ledger,
            held: VecDeque::new(),
            emitted: Vec::new(),
            fault: None,
            report: Report::default(),
        });
    let mut leader =
        ranks.as_mut().zip(load.as_ref()).map(|(ranks, load)| Leader::new(ranks, &ledger, part, load));
    let ended = on_threads(workers.collect(), leader.as_mut(), |worker, lead| worker.run(until, lead));
    match leader.and_then(Leader::into_error) {
        Some(error) => Err(error),
        None => gathered(part, ended, &ledger, ranks, processes),
    }
}

/// What a thread ends with: pending events, what it did, and the first wrong event.
pub(crate) type Ended<E> = (Vec<E>, Report, Option<Fault>);

/// Runs the first worker here, because what reaches other ranks may be used by no other thread, and the others on threads.
/// The panic of a model goes on in the caller.
pub(crate) fn on_threads<W: Send, T, E: Send>(
    workers: Vec<W>,
    lead: Option<&mut impl Lead<T>>,
    run: impl Fn(W, Option<&mut dyn Lead<T>>) -> Option<Ended<E>> + Sync,
) -> Vec<Option<Ended<E>>> {
    std::thread::scope(|scope| {
        let mut workers = workers.into_iter();
        let first = workers.next().expect("there is at least one thread");
        let run = &run;
        let others: Vec<_> = workers.map(|worker| scope.spawn(move || run(worker, None))).collect();
        let mut ended = vec![run(first, lead.map(|lead| lead as &mut dyn Lead<T>))];
        let joined: Vec<_> = others.into_iter().map(|thread| thread.join()).collect();
        ended.extend(
            joined.into_iter().map(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))),
        );
        ended
    })
}

/// The threads' results, those of all ranks, or the first fault of all. The last records are given on.
pub(crate) fn gathered<M: Model>(
    part: Part,
    ended: Vec<Option<Ended<Event<M::Message>>>>,
    ledger: &Ledger<'_, M::Record>,
    ranks: Option<Ranks<'_, M>>,
    processes: &mut [Process<M::State>],
) -> Result<Done<M>, Error> {
    let ended: Vec<_> = ended.into_iter().flatten().collect();
    if let Some(ranks) = ranks {
        return ranks.gather(part, ended, ledger, processes);
    }
    let fault = ended.iter().filter_map(|(_, _, fault)| fault.clone()).min_by_key(|fault| fault.at);
    ledger.finish(fault.as_ref().map(|fault| fault.at));
    if let Some(fault) = fault {
        return Err(Error::Fault(fault));
    }
    let mut done = Done { pending: Vec::new(), report: Report::default() };
    for (pending, report, _) in ended {
        done.pending.extend(pending);
        done.report.beside(&report);
    }
    Ok(done)
}

impl<M: Model, const WRITES: bool> Worker<'_, '_, M, WRITES> {
    /// None when another thread has panicked.
    fn run(
        mut self,
        until: Time,
        mut lead: Option<&mut dyn Lead<Event<M::Message>>>,
    ) -> Option<Ended<Event<M::Message>>> {
        let mut mine = Notice { next: NEVER, handled: 0, undone: 0, until: until.0, fault: false };
        let (mut events, mut told) = (0, 0);
        loop {
            if let Some(fault) = &self.fault {
                // The run ends there, when the others have come so far: one of them may have an earlier fault.
                mine.until = mine.until.min(fault.at.time.0 + 1);
            } else {
                mine.next = mine.next.min(self.queue.next_time().map_or(NEVER, |time| time.0));
            }
            let all = self.post.meet(mine, lead.as_deref_mut()).ok()?;
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
            if self.is_first() && events - told >= PROGRESS_EVERY {
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

    /// Of all threads of all ranks.
    fn is_first(&self) -> bool {
        self.part.rank == 0 && self.post.me() == 0
    }

    /// Gives on what is certain: records of before `certain`.
    fn give_on(&mut self, certain: u64) {
        if !WRITES {
            return;
        }
        if self.is_first() {
            self.ledger.deliver(self.post.round() - 1);
        }
        let ready = self.held.partition_point(|row| row.at.time.0 < certain);
        self.ledger.post(self.post.me(), self.post.round(), self.held.drain(..ready));
    }

    /// Handles what is before `end`, or what is at `next`, the earliest of all, when too many records are held back.
    fn window(&mut self, next: Time, end: Time, mine: &mut Notice) {
        let first = self.part.first(self.post.me());
        let block = first..first + self.processes.len() as u32;
        loop {
            let end = if WRITES && self.held.len() >= HELD_MAX { next.plus(Time(1)) } else { end };
            let Some(event) = self.queue.pop_before(end) else { break };
            // Loads that nothing waits for; see `sequential`.
            if let Some(next) = self.queue.likely_next() {
                black_box(self.processes[(next.to.0 - first) as usize].sequence);
            }
            let process = &mut self.processes[(event.to.0 - first) as usize];
            process.trace = trace(self.model, process.trace, &event);
            let emitted = WRITES.then_some(&mut self.emitted);
            self.fault = execute(self.model, self.rules, process, &event, &mut self.sent, None, emitted);
            if self.fault.is_some() {
                break;
            }
            if WRITES {
                let of_event = |record| Emitted { at: event.key, process: event.to, record };
                self.held.extend(self.emitted.drain(..).map(of_event));
            }
            mine.handled += 1;
            for event in self.sent.drain(..) {
                if block.contains(&event.to.0) {
                    self.queue.push(event);
                } else {
                    mine.next = mine.next.min(event.key.time.0);
                    self.post.send(self.part.thread_of(event.to), event);
                }
            }
        }
        self.report.events += mine.handled;
    }
}
