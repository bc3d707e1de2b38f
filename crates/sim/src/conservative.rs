//! Windows on threads (Nicolas's YAWNS): what is earlier than the earliest event plus the lookahead cannot be changed by
//! any message, so each thread handles that much of its own processes, and then all exchange messages.

use crate::error::{Error, Fault};
use crate::event::{Event, ProcessId, Time};
use crate::exchange::{Exchange, Notice, Post};
use crate::model::{Model, Process, Rules, execute, trace};
use crate::queue::{Ladder, Queue};
use crate::sequential::drain;
use crate::simulation::{Done, Options, Progress, Report, Work};
use std::hint::black_box;

/// Events between two calls of the progress function, at least.
const PROGRESS_EVERY: u64 = 1 << 16;
/// Nothing is pending.
const NEVER: u64 = u64::MAX;

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
struct Worker<'a, M: Model> {
    model: &'a M,
    rules: Rules,
    options: &'a Options<'a>,
    me: usize,
    blocks: Blocks,
    processes: &'a mut [Process<M::State>],
    queue: Ladder<Event<M::Message>>,
    post: Post<'a, Event<M::Message>>,
    sent: Vec<Event<M::Message>>,
    fault: Option<Fault>,
    report: Report,
}

pub(crate) fn run<M: Model>(work: Work<'_, M>) -> Result<Done<M>, Error> {
    let Work { model, rules, processes, pending, until, options } = work;
    let blocks = Blocks::new(rules.processes, options.threads);
    let mut queues: Vec<Ladder<_>> = processes.chunks(blocks.size()).map(|_| Ladder::default()).collect();
    pending.into_iter().for_each(|event| queues[blocks.thread_of(event.to)].push(event));
    let exchange = Exchange::new(queues.len());
    let ended = std::thread::scope(|scope| {
        let parts = processes.chunks_mut(blocks.size()).zip(queues).enumerate();
        let threads: Vec<_> = parts
            .map(|(me, (processes, queue))| {
                let post = exchange.join(me);
                let (sent, fault, report) = (Vec::new(), None, Report::default());
                let worker =
                    Worker { model, rules, options, me, blocks, processes, queue, post, sent, fault, report };
                scope.spawn(move || worker.run(until))
            })
            .collect();
        join(threads)
    });
    let mut done = Done { pending: Vec::new(), report: Report::default() };
    for (pending, report, fault) in gathered(ended)? {
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

/// The threads' results, or the first fault of all.
pub(crate) fn gathered<E>(ended: Vec<Option<Ended<E>>>) -> Result<Vec<Ended<E>>, Error> {
    let ended: Vec<_> = ended.into_iter().flatten().collect();
    match ended.iter().filter_map(|(_, _, fault)| fault.clone()).min_by_key(|fault| fault.at) {
        Some(fault) => Err(Error::Fault(fault)),
        None => Ok(ended),
    }
}

impl<M: Model> Worker<'_, M> {
    /// None when another thread has panicked.
    fn run(mut self, until: Time) -> Option<Ended<Event<M::Message>>> {
        let mut mine = Notice { next: NEVER, handled: 0, undone: 0, until: until.0, fault: false };
        let (mut events, mut told) = (0, 0);
        loop {
            mine.next = mine.next.min(self.queue.next_time().map_or(NEVER, |time| time.0));
            let all = self.post.meet(mine).ok()?;
            self.report.rounds = self.post.round();
            let queue = &mut self.queue;
            self.post.take_mail(|event| queue.push(event));
            events += all.handled;
            if all.fault || all.next >= all.until {
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
            self.window(end, &mut mine);
        }
    }

    /// Handles what is before `end`.
    fn window(&mut self, end: Time, mine: &mut Notice) {
        let first = self.blocks.first(self.me);
        let block = first..first + self.processes.len() as u32;
        while let Some(event) = self.queue.pop_before(end) {
            // Loads that nothing waits for; see `sequential`.
            if let Some(next) = self.queue.likely_next() {
                black_box(self.processes[(next.to.0 - first) as usize].sequence);
            }
            let process = &mut self.processes[(event.to.0 - first) as usize];
            process.trace = trace(self.model, process.trace, &event);
            self.fault = execute(self.model, self.rules, process, &event, &mut self.sent, None);
            if self.fault.is_some() {
                mine.fault = true;
                return;
            }
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
