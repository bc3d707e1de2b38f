//! One event after the other.

use crate::emitted::{Emitted, Sink};
use crate::error::Error;
use crate::event::{Event, Time};
use crate::model::{Model, execute, trace};
use crate::queue::Queue;
use crate::simulation::{Done, Progress, Report, Work};
use std::hint::black_box;

/// Events between two calls of the progress function.
const PROGRESS_EVERY: u64 = 1 << 16;

pub(crate) fn run<M: Model, Q: Queue<Event<M::Message>> + Default, const WRITES: bool>(
    work: Work<'_, M>,
    sink: Sink<'_, M::Record>,
) -> Result<Done<M>, Error> {
    let Work { model, rules, processes, pending, mut until, options, .. } = work;
    let mut queue = Q::default();
    pending.into_iter().for_each(|event| queue.push(event));
    let (mut sent, mut events, mut told) = (Vec::new(), 0, 0);
    let mut emitted = Vec::new();
    while let Some(event) = queue.pop_before(until) {
        // A load that nothing waits for: the next process is on its way from memory while this one works.
        if let Some(next) = queue.likely_next() {
            black_box(processes[next.to.0 as usize].sequence);
        }
        let process = &mut processes[event.to.0 as usize];
        process.trace = trace(model, process.trace, &event);
        let wanted = WRITES.then_some(&mut emitted);
        if let Some(fault) = execute(model, rules, process, &event, &mut sent, None, wanted) {
            return Err(Error::Fault(fault));
        }
        if WRITES {
            let of_event = |record| Emitted { at: event.key, process: event.to, record };
            emitted.drain(..).map(of_event).for_each(&mut *sink);
        }
        sent.drain(..).for_each(|event| queue.push(event));
        events += 1;
        if events - told == PROGRESS_EVERY {
            told = events;
            let now = event.key.time;
            let stop = options.progress.is_some_and(|tell| tell(Progress { now, until, events }).is_break());
            until = if stop { now.plus(Time(1)) } else { until };
        }
    }
    Ok(Done { pending: drain(queue), report: Report { events, reached: until, ..Report::default() } })
}

/// What is left, in order.
pub(crate) fn drain<T: crate::Keyed>(mut queue: impl Queue<T>) -> Vec<T> {
    let mut left = Vec::with_capacity(queue.len());
    while let Some(item) = queue.pop_before(Time(u64::MAX)) {
        left.push(item);
    }
    left
}
