//! A machine that is at work already: jobs run on their nodes, others wait.

use super::chances::Chances;
use super::{Done, Engine, Setup, Task};
use crate::plan::Plan;
use crate::predict::Predictor;
use std::cmp::Reverse;

/// A job that runs when the simulation begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Running<L> {
    pub start_s: u64,
    pub list: L,
}

/// A machine at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Present<'a, L> {
    pub now_s: u64,
    /// First those that run, then those that wait, in the order of their submission, which is not before `now_s`. One that runs does so
    /// for longer than it has run already, and may: its request is its limit.
    pub tasks: &'a [Task],
    /// Of the first tasks.
    pub running: &'a [Running<L>],
    /// For each task those whose ends it waits for before it comes into the queue. Empty where nobody does.
    pub after: &'a [Vec<usize>],
    pub setup: &'a Setup,
}

/// What becomes of them, until all of `asked` have started, or nothing happens any more: none for those that have not started by then.
pub fn resume<P: Plan + Clone>(
    plan: P,
    present: &Present<'_, P::List>,
    predictor: &mut dyn Predictor,
    asked: &[usize],
) -> Vec<Option<Done<P::List>>> {
    resume_by(plan, present, predictor, asked, true)
}

/// `lazily`: no further planned than is needed, where that is the same.
pub(super) fn resume_by<P: Plan + Clone>(
    plan: P,
    present: &Present<'_, P::List>,
    predictor: &mut dyn Predictor,
    asked: &[usize],
    lazily: bool,
) -> Vec<Option<Done<P::List>>> {
    let Present { now_s, tasks, running, after, setup } = *present;
    let mut engine = Engine::new(plan, tasks, setup, predictor);
    engine.plan.forget_before(now_s);
    engine.run_on(now_s, running);
    engine.wait_for(after);
    if lazily {
        engine.plan_no_further_than_needed();
    }
    let mut open: Vec<usize> = asked.to_vec();
    open.retain(|index| *index >= running.len());
    while let Some(now) = engine.next().filter(|_| !open.is_empty()) {
        engine.step(now);
        open.retain(|index| engine.done.get(*index).is_none_or(|done| done.end_s == 0));
    }
    let started = |done: Done<P::List>| Some(done).filter(|done| done.end_s > 0);
    engine.done.into_iter().map(started).chain(std::iter::repeat_with(|| None)).take(tasks.len()).collect()
}

impl<P: Plan> Engine<'_, P> {
    fn run_on(&mut self, now: u64, running: &[Running<P::List>]) {
        for (index, (task, Running { start_s, list })) in self.tasks.iter().zip(running).enumerate() {
            let end_s = start_s + task.job.run_s;
            let limit = start_s + task.job.request_s;
            assert!(end_s > now && limit > now, "who runs ends later, and may");
            self.plan.take(list, task.nodes, now, limit);
            self.limits.push(limit);
            self.running.insert((limit, index));
            self.ends.push(Reverse((end_s, index)));
            if end_s > limit {
                self.expiries.push(Reverse((limit, index)));
            }
            self.chances.push(Some(Chances::new(None, task.job.request_s)));
            self.done.push(Done {
                start_s: *start_s,
                end_s,
                estimate_s: task.job.request_s,
                corrections: 0,
                list: list.clone(),
                fixed_s: *start_s,
                pinned_s: None,
                plans: Vec::new(),
            });
        }
    }

    /// A job that waits for another that is none of the tasks waits for ever.
    fn wait_for(&mut self, after: &[Vec<usize>]) {
        self.unmet = after.iter().map(|after| after.len() as u32).collect();
        self.dependents = vec![Vec::new(); after.len()];
        for (index, after) in after.iter().enumerate() {
            for before in after {
                if let Some(dependents) = self.dependents.get_mut(*before) {
                    dependents.push(index);
                }
            }
        }
    }
}
