//! Held tasks: they wait for the release of their job, and for nothing else until then. What a job's script says of its
//! stage-out is submitted so before the job runs, when the pool that it is about does not even exist.
//!
//! ```text
//!  submit_held          release_job                    start_next
//!  ──────────▶ held ─────────────────▶ pending ─────────────────▶ ...
//!               │  ▲                      │ its dataspace is missing: failed
//!        cancel ▼  │ resume               ▼
//!            cancelled
//! ```

use crate::Millis;
use crate::record::{Record, put_submitted};
use crate::rights::{Caller, check_form, refuse};
use crate::state::{State, uses_memory};
use crate::task::Ended;
use std::collections::BTreeMap;
use tidepool_wire::stager::{Code, RELEASED_AT_ONCE_MAX, Refusal, TaskSpec};

/// Held tasks by job, in the order they came.
#[derive(Default)]
pub(crate) struct Held {
    jobs: BTreeMap<u32, BTreeMap<u64, u32>>,
    count: usize,
}

impl Held {
    pub fn add(&mut self, job: u32, seq: u64, id: u32) {
        self.count += usize::from(self.jobs.entry(job).or_default().insert(seq, id).is_none());
    }

    pub fn remove(&mut self, job: u32, seq: u64) {
        let Some(tasks) = self.jobs.get_mut(&job) else { return };
        self.count -= usize::from(tasks.remove(&seq).is_some());
        if tasks.is_empty() {
            self.jobs.remove(&job);
        }
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn of(&self, job: u32) -> impl Iterator<Item = u32> {
        self.jobs.get(&job).into_iter().flat_map(|tasks| tasks.values().copied())
    }
}

/// What a release did.
#[derive(Debug, PartialEq, Eq)]
pub struct Release {
    pub tasks: u32,
    /// Some are held still.
    pub more: bool,
    /// Those of them that have failed at once.
    pub failed: Vec<u32>,
}

/// Held tasks are submitted together for one job only.
pub fn check_one_job(tasks: &[TaskSpec]) -> Result<(), Refusal> {
    let job = |task: &TaskSpec| task.on_behalf.map_or(0, |behalf| behalf.job);
    let first = tasks.first().map_or(0, job);
    if !tasks.is_empty() && (first == 0 || tasks.iter().any(|task| job(task) != first)) {
        return refuse(
            Code::BAD_ARGS,
            "held tasks are of one job, in whose name they are submitted (on_behalf)",
        );
    }
    Ok(())
}

impl State {
    /// Takes a task on that does not start before its job is released; its number. Its dataspaces need not be there yet.
    pub fn submit_held(&mut self, now: Millis, caller: &Caller, spec: TaskSpec) -> Result<u32, Refusal> {
        self.demand_batch(caller)?;
        check_one_job(std::slice::from_ref(&spec))?;
        let identity = self.identity(caller, spec.on_behalf)?;
        if uses_memory(&spec) {
            return refuse(Code::BAD_ARGS, "memory of a process cannot be held until its job is released");
        }
        check_form(&spec)?;
        self.check_budget(caller, identity.uid, &spec)?;
        self.check_room()?;
        let id = self.free_id();
        put_submitted(self.records(), (id, now), (identity, caller.origin()), &spec, true);
        self.insert(id, now, (identity, caller.origin()), spec, true);
        Ok(id)
    }

    /// Makes held tasks of a job pending, in the order they came; those that cannot run fail. At most
    /// [`RELEASED_AT_ONCE_MAX`] of them.
    pub fn release_job(&mut self, now: Millis, caller: &Caller, job: u32) -> Result<Release, Refusal> {
        self.demand_batch(caller)?;
        self.demand_job(job)?;
        let seen = |id: &u32| self.tasks.get(id).is_some_and(|task| caller.sees(task.identity));
        let mut ids: Vec<u32> = self.held.of(job).filter(seen).take(RELEASED_AT_ONCE_MAX + 1).collect();
        let more = ids.len() > RELEASED_AT_ONCE_MAX;
        ids.truncate(RELEASED_AT_ONCE_MAX);
        let mut failed = Vec::new();
        for id in &ids {
            self.release(*id);
            if let Err(refusal) = self.check_again(*id) {
                self.fail_pending(now, *id, refusal);
                failed.push(*id);
            }
        }
        if !more {
            self.release_cancelled(caller, job);
        }
        self.forget_oldest();
        Ok(Release { tasks: ids.len() as u32, more, failed })
    }

    fn release(&mut self, id: u32) {
        self.note(&Record::Released { id });
        self.apply_release(id);
    }

    /// Those that were cancelled meanwhile start at once when they are resumed after this.
    fn release_cancelled(&mut self, caller: &Caller, job: u32) {
        let of_job = |id: &u32| {
            let task = &self.tasks[id];
            task.held && task.identity.job == job && caller.sees(task.identity)
        };
        let ids: Vec<u32> = self.ended.in_order().into_iter().filter(of_job).collect();
        ids.into_iter().for_each(|id| self.release(id));
    }

    /// What a release changes, now or in replay.
    pub(crate) fn apply_release(&mut self, id: u32) {
        let Some(task) = self.tasks.get_mut(&id).filter(|task| task.held) else { return };
        task.held = false;
        if task.ended.is_some() {
            return;
        }
        self.held.remove(task.identity.job, task.queued.seq);
        self.enqueue(id);
    }

    /// What was not asked when it was submitted: whether it may use its dataspaces, and whether they are there.
    fn check_again(&self, id: u32) -> Result<(), Refusal> {
        let task = &self.tasks[&id];
        self.check(task.identity, &task.spec)
    }

    fn fail_pending(&mut self, now: Millis, id: u32, refusal: Refusal) {
        self.unqueue(id);
        let ended = Ended::badly(refusal);
        self.note(&Record::Ended { id, at: now, ended: ended.clone() });
        self.apply_end(id, now, ended);
    }

    /// Tasks that wait for the release of their jobs.
    pub fn held(&self) -> usize {
        self.held.len()
    }
}
