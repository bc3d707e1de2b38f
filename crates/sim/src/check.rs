//! The rollback check: every event forward, back and forward again.

use crate::emitted::{Emitted, Sink};
use crate::error::Error;
use crate::event::{Event, Time};
use crate::model::{Model, Process, execute, trace};
use crate::queue::{Ladder, Queue};
use crate::sequential::drain;
use crate::simulation::{Done, Progress, Report, Work};

/// Events between two calls of the progress function.
const PROGRESS_EVERY: u64 = 1 << 12;

pub(crate) fn run<M: Model>(work: Work<'_, M>, sink: Sink<'_, M::Record>) -> Result<Done<M>, Error> {
    let Work { model, rules, processes, pending, mut until, options, .. } = work;
    let mut queue = Ladder::default();
    pending.into_iter().for_each(|event| queue.push(event));
    let mut events = 0;
    while let Some(event) = queue.pop_before(until) {
        let process = &mut processes[event.to.0 as usize];
        let fails = |what| Err(Error::NotReversible { at: event.key, process: event.to, what });
        let before = kept(process);
        let (mut sent, mut changes, mut emitted) = (Vec::new(), Vec::new(), Vec::new());
        let fault = execute(model, rules, process, &event, &mut sent, Some(&mut changes), Some(&mut emitted));
        let after = kept(process);
        while let Some(change) = changes.pop() {
            model.undo(&mut process.state, change);
        }
        process.random.set_position(before.position);
        process.sequence = before.sequence;
        if process.state != before.state {
            return fails("undoing what the handler kept did not bring the state back");
        }
        let (mut again, mut rows) = (Vec::new(), Vec::new());
        let fault_again =
            execute(model, rules, process, &event, &mut again, Some(&mut changes), Some(&mut rows));
        if kept(process) != after || fault != fault_again {
            return fails("handling the event again led to another state");
        }
        if again != sent {
            return fails("handling the event again sent other messages");
        }
        if rows != emitted {
            return fails("handling the event again emitted other records");
        }
        if let Some(fault) = fault {
            return Err(Error::Fault(fault));
        }
        process.trace = trace(model, process.trace, &event);
        let of_event = |record| Emitted { at: event.key, process: event.to, record };
        rows.into_iter().map(of_event).for_each(&mut *sink);
        sent.into_iter().for_each(|event: Event<M::Message>| queue.push(event));
        events += 1;
        if events % PROGRESS_EVERY == 0 {
            let now = event.key.time;
            let stop = options.progress.is_some_and(|tell| tell(Progress { now, until, events }).is_break());
            until = if stop { now.plus(Time(1)) } else { until };
        }
    }
    let report = Report { events, undone: events, rollbacks: events, reached: until, ..Report::default() };
    Ok(Done { pending: drain(queue), report })
}

/// What a rollback has to bring back.
#[derive(PartialEq)]
struct Kept<S> {
    state: S,
    position: u64,
    sequence: u64,
}

fn kept<S: Clone>(process: &Process<S>) -> Kept<S> {
    Kept { state: process.state.clone(), position: process.random.position(), sequence: process.sequence }
}
