//! The state machine: what happens to tasks, jobs and dataspaces.
//!
//! ```text
//!            submit                start_next               ended
//!  (nothing) ──────▶ Pending ─────────────────▶ Running ──────────────▶ Finished
//!                     │  ▲                        │ ended                 Failed
//!                     │  └───── resume ───────────┼──────────────────── Cancelled
//!                     └─────────── cancel ────────┴─ cancel, then ended ──▶ ▲
//! ```
//! What gives way to others (`turn.rs`) is pending again, and so is after a restart what was running. Tasks may be held before they are pending: `held.rs`.

use crate::Millis;
use crate::arbiter::{Arbiter, Class, Queued};
use crate::backlog::Backlog;
use crate::budget::{Budget, Usage};
use crate::ended::EndedTasks;
use crate::held::Held;
use crate::learn::Learned;
use crate::permit::Lines;
use crate::persist::Locations;
use crate::placed::Placed;
use crate::record::{Record, ReplayError, put_submitted};
use crate::rights::{Caller, refuse};
use crate::spaces::{Member, Spaces};
use crate::task::{Ended, Identity, Made, Origin, Start, Task, place_of, put_at, space_of};
use crate::turn::{Outcome, Turn};
use std::collections::{BTreeMap, BTreeSet};
use tidepool_types::Aging;
use tidepool_wire::stager::{
    Code, Command, DataspaceSpec, JobSpec, Op, Owner, PairReport, Policy, ProcessSpec, Refusal, Resource,
    TaskSpec, TaskState,
};
use tidepool_wire::{Field, Reader};

/// Pairs of dataspaces that a job's report keeps apart.
const PAIRS_MAX: usize = 1024;

/// How a stager is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the node, for people.
    pub node: String,
    /// Tasks that run at a time.
    pub workers: u32,
    /// Unended tasks that are taken on.
    pub tasks_max: usize,
    /// Ended tasks that are remembered.
    pub ended_max: usize,
    pub policy: Policy,
    /// The user that this stager serves without jobs, because he runs it for himself.
    pub personal_uid: Option<u32>,
    pub budget: Budget,
}

/// What cancelling did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cancelled {
    /// It had not begun, and has ended.
    AtOnce,
    /// Its worker has to be told.
    Tell,
}

/// Everything a stager knows.
pub struct State {
    pub(crate) config: Config,
    pub(crate) spaces: Spaces,
    pub(crate) tasks: BTreeMap<u32, Box<Task>>,
    pub(crate) queue: Arbiter,
    /// Of what is in the queue.
    pub(crate) backlog: Backlog,
    /// What is not in the queue because its job is not released.
    pub(crate) held: Held,
    pub(crate) running: BTreeSet<u32>,
    pub(crate) ended: EndedTasks,
    pub(crate) learned: Learned,
    pub(crate) persisted: Locations,
    /// What locations with an end age by; none while there are none.
    pub(crate) clock: Option<Aging>,
    /// Time since what it says was last written down.
    pub(crate) clock_unnoted: Millis,
    pub(crate) permits: Lines,
    pub(crate) paused: bool,
    pub(crate) last_task: u32,
    last_seq: u64,
    /// Seconds that the stager has run, as it has counted them.
    pub(crate) looks: u64,
    /// Places of tasks that have given way, and that nobody has taken yet.
    pub(crate) given: u32,
    /// What each user has.
    pub(crate) usage: Usage,
    /// Encoded records that the journal has not got yet.
    records: Vec<u8>,
}

impl State {
    pub fn new(config: Config) -> State {
        State {
            queue: Arbiter::new(config.policy),
            config,
            spaces: Spaces::default(),
            tasks: BTreeMap::new(),
            backlog: Backlog::default(),
            held: Held::default(),
            running: BTreeSet::new(),
            ended: EndedTasks::default(),
            learned: Learned::default(),
            persisted: Locations::default(),
            clock: None,
            clock_unnoted: 0,
            permits: Lines::default(),
            paused: false,
            last_task: 0,
            last_seq: 0,
            looks: 0,
            given: 0,
            usage: Usage::default(),
            records: Vec::new(),
        }
    }

    /// Moves the records of what has happened since the last call to the end of `out`. They must be
    /// in the journal before anybody is told.
    pub fn take_records(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.records);
    }

    /// Bytes of records that have not been taken yet.
    pub fn untaken(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn note(&mut self, record: &Record) {
        record.put(&mut self.records);
    }

    pub(crate) fn records(&mut self) -> &mut Vec<u8> {
        &mut self.records
    }

    // ----- tasks

    /// Takes a task on; its number.
    pub fn submit(&mut self, now: Millis, caller: &Caller, spec: TaskSpec) -> Result<u32, Refusal> {
        let identity = self.identity(caller, spec.on_behalf)?;
        check_memory(caller, &spec)?;
        self.check_budget(caller, identity.uid, &spec)?;
        self.submit_as(now, identity, caller.origin(), spec)
    }

    pub(crate) fn submit_as(
        &mut self,
        now: Millis,
        identity: Identity,
        origin: Origin,
        spec: TaskSpec,
    ) -> Result<u32, Refusal> {
        self.check_room()?;
        self.check(identity, &spec)?;
        let id = self.free_id();
        put_submitted(&mut self.records, (id, now), (identity, origin), &spec, false);
        self.insert(id, now, (identity, origin), spec, false);
        Ok(id)
    }

    /// Whether a task more is taken.
    pub(crate) fn check_room(&self) -> Result<(), Refusal> {
        if self.paused {
            return refuse(Code::PAUSED, "this stager takes no new tasks at the moment");
        }
        if self.tasks.len() - self.ended.len() >= self.config.tasks_max {
            return refuse(
                Code::TOO_MANY_TASKS,
                format!("{} tasks have not ended; wait for some of them", self.config.tasks_max),
            );
        }
        Ok(())
    }

    /// A number that no task has that is still known; never 0.
    pub(crate) fn free_id(&mut self) -> u32 {
        loop {
            self.last_task = self.last_task.wrapping_add(1).max(1);
            // Mostly no number is as high, which is less to ask than for a certain one.
            let higher = self.tasks.last_key_value().is_none_or(|(last, _)| *last < self.last_task);
            if higher || !self.tasks.contains_key(&self.last_task) {
                return self.last_task;
            }
        }
    }

    pub(crate) fn insert(
        &mut self,
        id: u32,
        at: Millis,
        (identity, origin): (Identity, Origin),
        spec: TaskSpec,
        held: bool,
    ) {
        let queued = Queued {
            id,
            priority: spec.priority,
            seq: 0,
            size: size_of_task(&spec),
            job: identity.job,
            uid: identity.uid,
            class: (0, 0),
        };
        self.count_unended(identity, &spec, true);
        let task = Task {
            spec,
            identity,
            origin,
            submitted: at,
            queued,
            again: false,
            held,
            running: false,
            turn: Turn::default(),
            cancelling: false,
            made: None,
            permit_for: None,
            ended: None,
            ended_seq: 0,
        };
        self.tasks.insert(id, Box::new(task));
        self.enqueue(id);
    }

    /// A task waits for its turn, or, held, for the release of its job.
    pub(crate) fn enqueue(&mut self, id: u32) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        self.last_seq += 1;
        task.queued.seq = self.last_seq;
        if task.held {
            return self.held.add(task.identity.job, self.last_seq, id);
        }
        let number = |resource| self.spaces.number(space_of(resource));
        task.queued.class = (number(Some(&task.spec.src)), number(task.spec.dst.as_ref()));
        self.spaces.count_unended(&task.spec, 1);
        self.queue.push(task.queued);
        self.backlog.add(&task.spec, task.queued.size);
        self.line_up(id);
    }

    fn count_unended(&mut self, who: Identity, spec: &TaskSpec, more: bool) {
        self.usage.unended(who, spec, more);
        let by = if more { 1 } else { -1 };
        if let Some(job) = self.spaces.jobs.get_mut(&who.job) {
            job.unended = job.unended.saturating_add_signed(by);
        }
    }

    /// The next task to be run, when there is a worker for it.
    pub fn start_next(&mut self) -> Option<Start> {
        if !self.has_place() {
            return None;
        }
        // Started although all workers are taken, or in the place of one that has given way: by who has none of his own.
        let free = self.running.len() < self.config.workers as usize;
        let given = self.given > 0;
        self.given = self.given.saturating_sub(1);
        let full: Vec<u32> = self.full_dataspaces();
        let room = |(a, b): Class| !full.contains(&a) && !full.contains(&b);
        let mut queued = None;
        if given || !free {
            queued = self.queue.pop_of(|uid| self.usage.rank(uid, self.config.budget.turn), room);
        }
        let queued = queued.or_else(|| if free { self.queue.pop(room) } else { None })?;
        let task = self.tasks.get_mut(&queued.id)?;
        self.backlog.take(&task.spec, queued.size);
        task.running = true;
        task.turn.begin(self.looks);
        self.running.insert(queued.id);
        self.usage.running(task.identity.uid, 1);
        let takes_away = matches!(task.spec.op, Op::Move | Op::Remove);
        let quotas = space_of(task.spec.dst.as_ref())
            .map(|space| self.spaces.quotas(task.identity.job, space))
            .unwrap_or_default();
        let made = task.made.as_deref().cloned();
        let start = Start {
            id: queued.id,
            spec: task.spec.clone(),
            identity: task.identity,
            origin: task.origin,
            again: task.again,
            quotas,
            made,
            permit: None,
        };
        if takes_away && !task.again {
            // For a restart only; this run is the first.
            task.again = true;
            self.note(&Record::Begun { id: queued.id });
        }
        self.count_running(&start.spec, 1);
        self.usage.extra = self.extra();
        let permit = self.tasks.get(&start.id).and_then(|task| self.permit_now(task));
        let made =
            start.made.as_ref().map(|made| Made { spared: self.spared_by(&start, made), ..made.clone() });
        Some(Start { permit, made, ..start })
    }

    /// Whether a task more may run, if only of a user who has none running.
    pub(crate) fn has_place(&self) -> bool {
        self.running.len() < self.config.workers as usize || self.usage.extra < self.config.budget.extra_max
    }

    /// Running tasks beyond the workers.
    fn extra(&self) -> u32 {
        (self.running.len() as u32).saturating_sub(self.config.workers)
    }

    /// Takes a task out of the queue, if it is there.
    pub(crate) fn unqueue(&mut self, id: u32) {
        if let (Some(queued), Some(task)) = (self.queue.remove(id), self.tasks.get(&id)) {
            self.backlog.take(&task.spec, queued.size);
        }
    }

    /// Dataspaces that have as many tasks as they may.
    pub(crate) fn full_dataspaces(&self) -> Vec<u32> {
        let full = |space: &&crate::spaces::Dataspace| {
            space.spec.streams_max > 0 && space.running >= space.spec.streams_max
        };
        self.spaces.dataspaces.values().filter(full).map(|space| space.number).collect()
    }

    fn count_running(&mut self, spec: &TaskSpec, by: i32) {
        let names = [space_of(Some(&spec.src)), space_of(spec.dst.as_ref())];
        // Both ends in one dataspace: one task.
        let second = names[1].filter(|name| Some(*name) != names[0]);
        for name in [names[0], second].into_iter().flatten() {
            if let Some(space) = self.spaces.dataspaces.get_mut(name) {
                space.running = space.running.saturating_add_signed(by);
            }
        }
    }

    /// A copy of another stager reads from a dataspace here, or writes to it: as a task it takes one of its streams, but it does
    /// not wait for one, because it may have another open already. Which dataspace it is, for [`State::peer_left`].
    pub fn peer_came(&mut self, dataspace: &str) -> u32 {
        let Some(space) = self.spaces.dataspaces.get_mut(dataspace) else { return 0 };
        space.running += 1;
        space.number
    }

    /// It is over. A dataspace that was registered anew meanwhile knows nothing of it.
    pub fn peer_left(&mut self, number: u32) {
        let space = self.spaces.dataspaces.values_mut().find(|space| space.number == number);
        if let Some(space) = space {
            space.running = space.running.saturating_sub(1);
        }
    }

    /// A running task has ended, or given way.
    pub fn ended(&mut self, now: Millis, id: u32, mut ended: Ended) -> Outcome {
        let Some(task) = self.tasks.get_mut(&id).filter(|task| task.running) else { return Outcome::Over };
        let gave_way = State::has_given_way(task, &ended);
        task.running = false;
        self.running.remove(&id);
        self.usage.running(task.identity.uid, -1);
        let (spec, queued, identity) = (task.spec.clone(), task.queued, task.identity);
        self.usage.extra = self.extra();
        self.count_running(&spec, -1);
        self.queue.settle(&queued, ended.moved);
        if gave_way {
            self.wait_again(id, &ended);
            return Outcome::WaitsAgain;
        }
        if let Some(advice) = self.advice_on_sharing(identity, &spec, &ended.refusal) {
            ended.refusal.detail.push_str(&advice);
        }
        self.note(&Record::Ended { id, at: now, ended: ended.clone() });
        self.apply_end(id, now, ended);
        self.forget_oldest();
        self.forget_failures(identity.job);
        Outcome::Over
    }

    /// What an end changes, now or in replay.
    pub(crate) fn apply_end(&mut self, id: u32, at: Millis, ended: Ended) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let (spec, identity) = (task.spec.clone(), task.identity);
        // Dataspaces know nothing of held ones.
        match task.held {
            true => self.held.remove(identity.job, task.queued.seq),
            false => self.spaces.count_unended(&spec, -1),
        }
        task.running = false;
        task.cancelling = false;
        let well = ended.state == TaskState::Finished;
        task.ended = Some(Box::new((at, ended.clone())));
        self.last_seq += 1;
        task.ended_seq = self.last_seq;
        let failure = ended.state == TaskState::Failed && spec.op != Op::Remove;
        let failed_of = Some(identity.job).filter(|job| failure && self.spaces.jobs.contains_key(job));
        self.ended.insert(task.ended_seq, id, failed_of);
        self.count_unended(identity, &spec, false);
        self.account(&spec, identity.job, &ended);
        self.leave_line(id, &spec);
        let moves = matches!(spec.op, Op::Copy | Op::Move);
        if well && ended.moved == ended.bytes && ended.busy_ms > 0 && moves {
            let pair = (place_of(Some(&spec.src)), place_of(spec.dst.as_ref()));
            self.learned.add(pair, ended.bytes, ended.files, ended.busy_ms as f64 / 1000.0);
        }
    }

    /// Forgets the oldest ended tasks beyond those that are remembered.
    pub(crate) fn forget_oldest(&mut self) {
        while let Some(id) = self.ended.pop_old(self.config.ended_max) {
            self.tasks.remove(&id);
            self.note(&Record::Forgotten { id });
        }
    }

    /// Forgets the oldest failures of a job beyond those that it may have; the job remembers how many.
    pub(crate) fn forget_failures(&mut self, job: u32) {
        while let Some(id) = self.ended.pop_failure(job) {
            self.tasks.remove(&id);
            let count = self.forgotten_failures(job).saturating_add(1);
            self.set_forgotten_failures(job, count);
            // The count is first: what is cut off between them counts too much, never too little.
            self.note(&Record::FailuresForgotten { job, count });
            self.note(&Record::Forgotten { id });
        }
    }

    /// Failed tasks of a registered job that nothing else is known of.
    pub fn forgotten_failures(&self, job: u32) -> u64 {
        self.spaces.jobs.get(&job).map_or(0, |job| job.failures_forgotten)
    }

    fn set_forgotten_failures(&mut self, job: u32, count: u64) {
        if let Some(job) = self.spaces.jobs.get_mut(&job) {
            job.failures_forgotten = count;
        }
    }

    /// Another stager's task has put `bytes` into a dataspace here, for `job`.
    pub fn received(&mut self, job: u32, (dataspace, place): (&str, &[u8]), bytes: u64) {
        self.spaces.put(job, (dataspace, place), bytes);
        let record = Record::Placed { dataspace: dataspace.to_string(), place: place.into(), job, bytes };
        self.note(&record);
        for (job, bytes) in self.spaces.used(job, dataspace) {
            self.note(&Record::Used { job, dataspace: dataspace.to_string(), bytes });
        }
    }

    /// Adds what a task has put at its destination, so many bytes and files, to its job and the dataspace.
    pub(crate) fn count_put(&mut self, spec: &TaskSpec, job: u32, (bytes, files): (u64, u64)) {
        if let (Some(space), true) = (space_of(spec.dst.as_ref()), spec.op != Op::Remove) {
            self.spaces.put(job, (space, &put_at(spec, files)), bytes);
        }
    }

    /// Adds what a task moved to its job and dataspaces.
    fn account(&mut self, spec: &TaskSpec, job: u32, ended: &Ended) {
        self.count_put(spec, job, (ended.moved, ended.files));
        if let (Some(space), Resource::Path { path, .. }, Op::Remove | Op::Move, true) =
            (space_of(Some(&spec.src)), &spec.src, spec.op, ended.state == TaskState::Finished)
        {
            self.spaces.gone(space, path);
        }
        let Some(job) = self.spaces.jobs.get_mut(&job) else { return };
        let report = &mut job.report;
        report.tasks += 1;
        report.failed += u64::from(ended.state != TaskState::Finished);
        report.bytes += ended.moved;
        report.files += ended.files;
        report.busy_ms += ended.busy_ms;
        let (from, to) = (place_of(Some(&spec.src)), place_of(spec.dst.as_ref()));
        let place = report.pairs.iter().position(|pair| pair.from == from && pair.to == to);
        let place = place.unwrap_or_else(|| {
            // The last line of a full report gathers what has no line of its own.
            if report.pairs.len() < PAIRS_MAX {
                report.pairs.push(PairReport { from, to, bytes: 0, files: 0, busy_ms: 0 });
            }
            report.pairs.len() - 1
        });
        let pair = &mut report.pairs[place];
        pair.bytes += ended.moved;
        pair.files += ended.files;
        pair.busy_ms += ended.busy_ms;
    }

    /// Stops a task.
    pub fn cancel(&mut self, now: Millis, caller: &Caller, id: u32) -> Result<Cancelled, Refusal> {
        let task = self.visible_mut(caller, id)?;
        if task.ended.is_some() {
            return refuse(Code::TASK_STATE, format!("task {id} has ended already"));
        }
        if task.running {
            task.cancelling = true;
            self.note(&Record::Cancelling { id });
            return Ok(Cancelled::Tell);
        }
        self.end_pending(now, id);
        Ok(Cancelled::AtOnce)
    }

    fn end_pending(&mut self, now: Millis, id: u32) {
        self.unqueue(id);
        let ended = Ended::cancelled();
        self.note(&Record::Ended { id, at: now, ended: ended.clone() });
        self.apply_end(id, now, ended);
        self.forget_oldest();
    }

    /// After a restart: tasks that had been told to end, and had not when the daemon died, have ended.
    pub fn end_cancelled(&mut self, now: Millis) {
        let told = |task: &Task| task.cancelling && task.ended.is_none();
        let ids: Vec<u32> = self.tasks.iter().filter(|(_, task)| told(task)).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.end_pending(now, id));
    }

    /// Lets a failed or cancelled task go on where it stopped.
    pub fn resume(&mut self, caller: &Caller, id: u32) -> Result<(), Refusal> {
        let task = self.visible_mut(caller, id)?;
        if uses_memory(&task.spec) && task.origin != caller.origin() {
            // Nobody else knows whether it still holds what it held.
            let text =
                format!("task {id} is about memory of process {}; only that can resume it", task.origin.pid);
            return refuse(Code::NOT_PERMITTED, text);
        }
        match task.state() {
            TaskState::Failed | TaskState::Cancelled => {}
            TaskState::Finished => {
                return refuse(Code::TASK_STATE, format!("task {id} is finished; nothing is left to resume"));
            }
            _ => return refuse(Code::TASK_STATE, format!("task {id} has not ended")),
        }
        let (spec, uid) = (task.spec.clone(), task.identity.uid);
        if self.paused {
            return refuse(Code::PAUSED, "this stager takes no new tasks at the moment");
        }
        self.check_budget(caller, uid, &spec)?;
        self.note(&Record::Again { id });
        self.apply_again(id);
        Ok(())
    }

    fn apply_again(&mut self, id: u32) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        self.ended.remove(task.ended_seq, task.identity.job);
        task.ended = None;
        // It has told how far it came: what is gone now, it did not take away.
        task.again = false;
        let (identity, spec) = (task.identity, task.spec.clone());
        self.count_unended(identity, &spec, true);
        self.enqueue(id);
    }

    /// Forgets an ended task.
    pub fn forget(&mut self, caller: &Caller, id: u32) -> Result<(), Refusal> {
        if self.visible_mut(caller, id)?.ended.is_none() {
            return refuse(Code::TASK_STATE, format!("task {id} has not ended; cancel it first"));
        }
        self.note(&Record::Forgotten { id });
        self.apply_forget(id);
        Ok(())
    }

    fn apply_forget(&mut self, id: u32) {
        if let Some(task) = self.tasks.remove(&id) {
            self.ended.remove(task.ended_seq, task.identity.job);
        }
    }

    /// A task of the caller's, or any for administrators. Tasks of others are not even said to exist.
    pub(crate) fn visible(&self, caller: &Caller, id: u32) -> Result<&Task, Refusal> {
        let task = self.tasks.get(&id).map(|task| &**task).filter(|task| caller.sees(task.identity));
        task.ok_or_else(|| Refusal::new(Code::NO_SUCH_TASK, format!("there is no task {id} of yours")))
    }

    fn visible_mut(&mut self, caller: &Caller, id: u32) -> Result<&mut Task, Refusal> {
        self.visible(caller, id)?;
        Ok(self.tasks.get_mut(&id).expect("it was found a moment ago"))
    }

    // ----- administration

    pub fn register_dataspace(&mut self, caller: &Caller, spec: DataspaceSpec) -> Result<(), Refusal> {
        self.demand_batch(caller)?;
        check_dataspace(&spec)?;
        if self.spaces.dataspaces.contains_key(&spec.name) {
            return refuse(Code::DATASPACE_EXISTS, format!("dataspace '{}' exists already", spec.name));
        }
        self.note(&Record::Dataspace { spec: spec.clone() });
        self.spaces.set_dataspace(spec);
        Ok(())
    }

    /// Changes what is not its place: a dataspace in use stays where it is.
    pub fn update_dataspace(&mut self, caller: &Caller, spec: DataspaceSpec) -> Result<(), Refusal> {
        self.demand_control(caller)?;
        check_dataspace(&spec)?;
        let there = self.demand_dataspace(&spec.name)?;
        let moves = there.spec.mount != spec.mount || there.spec.kind != spec.kind;
        if moves && there.unended > 0 {
            let text = format!(
                "{} tasks use dataspace '{}': it cannot get another place now",
                there.unended, spec.name
            );
            return refuse(Code::DATASPACE_BUSY, text);
        }
        self.note(&Record::Dataspace { spec: spec.clone() });
        self.spaces.set_dataspace(spec);
        Ok(())
    }

    pub fn unregister_dataspace(&mut self, caller: &Caller, name: &str) -> Result<(), Refusal> {
        self.demand_batch(caller)?;
        let unended = self.demand_dataspace(name)?.unended;
        if unended > 0 {
            return refuse(Code::DATASPACE_BUSY, format!("{unended} unended tasks use dataspace '{name}'"));
        }
        self.note(&Record::DataspaceGone { name: name.to_string() });
        self.spaces.dataspaces.remove(name);
        Ok(())
    }

    pub(crate) fn demand_dataspace(&self, name: &str) -> Result<&crate::spaces::Dataspace, Refusal> {
        self.spaces.dataspaces.get(name).ok_or_else(|| {
            Refusal::new(Code::NO_SUCH_DATASPACE, format!("there is no dataspace '{name}' here"))
        })
    }

    pub fn register_job(
        &mut self,
        caller: &Caller,
        spec: JobSpec,
        owner: Option<Owner>,
    ) -> Result<(), Refusal> {
        self.demand_batch(caller)?;
        let job = spec.id;
        if self.spaces.jobs.contains_key(&job) {
            return refuse(Code::JOB_EXISTS, format!("job {job} is registered already"));
        }
        self.put_job(spec)?;
        if let Some(owner) = owner {
            self.note(&Record::JobOwner { job, owner });
            self.spaces.set_owner(job, owner);
        }
        Ok(())
    }

    pub fn update_job(&mut self, caller: &Caller, spec: JobSpec) -> Result<(), Refusal> {
        self.demand_control(caller)?;
        self.demand_job(spec.id)?;
        self.put_job(spec)
    }

    fn put_job(&mut self, spec: JobSpec) -> Result<(), Refusal> {
        if spec.id == 0 {
            return refuse(Code::BAD_ARGS, "0 is no number of a job");
        }
        self.note(&Record::Job { spec: spec.clone() });
        self.spaces.set_job(spec);
        Ok(())
    }

    pub fn unregister_job(&mut self, caller: &Caller, id: u32) -> Result<(), Refusal> {
        self.check_job_release(caller, id)?;
        self.note(&Record::JobGone { id });
        self.apply_job_gone(id);
        self.forget_oldest();
        Ok(())
    }

    fn apply_job_gone(&mut self, id: u32) {
        self.spaces.remove_job(id);
        self.ended.job_gone(id);
    }

    pub(crate) fn check_job_release(&self, caller: &Caller, id: u32) -> Result<(), Refusal> {
        self.demand_batch(caller)?;
        self.demand_job(id)?;
        let (unended, held) = (self.spaces.jobs[&id].unended, self.held.of(id).count());
        let text = match (unended, held) {
            (0, _) => return Ok(()),
            (_, 0) => format!("{unended} tasks of job {id} have not ended; wait for them or cancel them"),
            _ => format!(
                "{unended} tasks of job {id} have not ended, of which {held} are held until it is released; release or cancel those"
            ),
        };
        refuse(Code::JOB_BUSY, text)
    }

    /// `started`: when the process started, 0 when nobody can tell.
    pub fn add_process(
        &mut self,
        caller: &Caller,
        job: u32,
        process: ProcessSpec,
        started: u64,
    ) -> Result<(), Refusal> {
        self.demand_control(caller)?;
        self.demand_job(job)?;
        if process.pid <= 0 {
            return refuse(Code::BAD_ARGS, format!("{} is no number of a process", process.pid));
        }
        self.note(&Record::Process { job, process, started });
        self.spaces.add_member(Member { job, process, started });
        Ok(())
    }

    pub fn remove_process(&mut self, caller: &Caller, job: u32, process: ProcessSpec) -> Result<(), Refusal> {
        self.demand_control(caller)?;
        self.demand_job(job)?;
        if !self.spaces.remove_member(job, process.pid) {
            let text = format!("process {} was not added to job {job}", process.pid);
            return refuse(Code::NO_SUCH_PROCESS, text);
        }
        self.note(&Record::ProcessGone { job, pid: process.pid });
        Ok(())
    }

    /// Pauses and resumes. A shutdown is only checked here: carrying it out is the daemon's.
    pub fn command(&mut self, caller: &Caller, command: Command) -> Result<(), Refusal> {
        if command == Command::Ping {
            return Ok(());
        }
        self.demand_control(caller)?;
        match command {
            Command::Ping => {}
            Command::Pause | Command::Resume => {
                self.paused = command == Command::Pause;
                self.note_settings();
            }
            Command::Shutdown if !self.is_idle() => {
                let (running, pending, held) = (self.running.len(), self.queue.len(), self.held.len());
                let held = if held > 0 { format!(", {held} are held for their jobs") } else { String::new() };
                let text = format!("{running} tasks run and {pending} are pending{held}");
                return refuse(Code::TASKS_PENDING, text);
            }
            Command::Shutdown => {}
        }
        Ok(())
    }

    pub fn set_policy(&mut self, caller: &Caller, policy: Policy) -> Result<(), Refusal> {
        self.demand_control(caller)?;
        self.queue.set_policy(policy);
        self.note_settings();
        Ok(())
    }

    fn note_settings(&mut self) {
        let (policy, paused) = (self.queue.policy(), self.paused);
        self.note(&Record::Settings { policy, paused });
    }

    // ----- the journal

    /// Does again what a journal's records say.
    pub fn replay(&mut self, bytes: &[u8]) -> Result<(), ReplayError> {
        let mut from = Reader::new(bytes);
        while from.remaining() > 0 {
            let record = Record::get(&mut from).map_err(ReplayError::Decode)?;
            self.replay_one(record)?;
        }
        Ok(())
    }

    /// Replays what can be read of a damaged journal, a frame at a time, and puts the records that still make sense into `kept`.
    pub fn salvage(&mut self, frame: &[u8], kept: &mut Vec<u8>) -> Left {
        let (mut from, mut left) = (Reader::new(frame), Left::default());
        while from.remaining() > 0 {
            let start = frame.len() - from.remaining();
            let Ok(record) = Record::get(&mut from) else {
                left.bytes += (frame.len() - start) as u64;
                return left;
            };
            match self.replay_one(record) {
                Ok(()) => kept.extend_from_slice(&frame[start..frame.len() - from.remaining()]),
                Err(_) => left.records += 1,
            }
        }
        left
    }

    /// After `lost` bytes of records: numbers of tasks that may have been given out there are not given out again. A record.
    pub fn leap(&mut self, lost: u64) -> Vec<u8> {
        let most = u32::try_from(lost / SUBMITTED_BYTES_MIN).unwrap_or(u32::MAX).saturating_add(1);
        self.last_task = self.last_task.saturating_add(most);
        let mut record = Vec::new();
        Record::LastTask { id: self.last_task }.put(&mut record);
        record
    }

    fn replay_one(&mut self, record: Record) -> Result<(), ReplayError> {
        match record {
            Record::Submitted { id, at, identity, origin, spec } => {
                self.last_task = id;
                self.insert(id, at, (identity, origin), spec, false);
            }
            Record::Held { id, at, identity, origin, spec } => {
                self.last_task = id;
                self.insert(id, at, (identity, origin), spec, true);
            }
            Record::Released { id } => {
                self.replayed(id)?;
                self.apply_release(id);
            }
            Record::Begun { id } => self.replayed(id)?.again = true,
            Record::Ended { id, at, ended } => {
                self.replayed(id)?;
                self.unqueue(id);
                self.apply_end(id, at, ended);
            }
            Record::Again { id } => {
                self.replayed(id)?;
                self.apply_again(id);
            }
            Record::GaveWay { id, moved, files, busy_ms } => {
                self.replayed(id)?;
                self.apply_gave_way(id, moved, files, busy_ms);
            }
            Record::Forgotten { id } => self.apply_forget(id),
            Record::Cancelling { id } => self.replayed(id)?.cancelling = true,
            Record::Permit { id, user } => {
                self.replayed(id)?;
                self.apply_permit(id, user);
            }
            Record::Makes { id, place, top, of } => {
                self.replayed(id)?.made = Some(Box::new(Made { place, top, of, spared: Vec::new() }));
            }
            Record::FailuresForgotten { job, count } => self.set_forgotten_failures(job, count),
            Record::Dataspace { spec } => self.spaces.set_dataspace(spec),
            Record::DataspaceGone { name } => drop(self.spaces.dataspaces.remove(&name)),
            Record::Job { spec } => self.spaces.set_job(spec),
            Record::JobOwner { job, owner } => self.spaces.set_owner(job, owner),
            Record::JobGone { id } => self.apply_job_gone(id),
            Record::Process { job, process, started } => {
                self.spaces.add_member(Member { job, process, started });
            }
            Record::ProcessGone { job, pid } => drop(self.spaces.remove_member(job, pid)),
            Record::Used { job, dataspace, bytes } => self.set_used(job, &dataspace, bytes),
            Record::Report { report } => {
                if let Some(job) = self.spaces.jobs.get_mut(&report.job) {
                    job.report = report;
                }
            }
            Record::Persisted { location } => self.persisted.put(location),
            Record::PersistedGone { dataspace, path } => drop(self.persisted.remove(&dataspace, &path)),
            Record::Settings { policy, paused } => {
                self.queue.set_policy(policy);
                self.paused = paused;
            }
            Record::Learned { from, to, model } => self.learned.set((from, to), model),
            Record::LastTask { id } => self.last_task = id,
            Record::Clock { at } => self.clock = Some(Aging::new(at)),
            Record::Placed { dataspace, place, job, bytes } => {
                self.spaces.placed(job, (&dataspace, &place), bytes);
            }
            Record::Unplaced { dataspace } => {
                if let Some(space) = self.spaces.dataspaces.get_mut(&dataspace) {
                    space.placed = Placed::default();
                }
            }
        }
        Ok(())
    }

    /// A task that may have been forgotten for its age is none that never was: the number tells.
    fn replayed(&mut self, id: u32) -> Result<&mut Task, ReplayError> {
        self.tasks.get_mut(&id).map(|task| &mut **task).ok_or(ReplayError::UnknownTask(id))
    }

    fn set_used(&mut self, job: u32, dataspace: &str, bytes: u64) {
        match job {
            0 => {
                if let Some(space) = self.spaces.dataspaces.get_mut(dataspace) {
                    space.used = bytes;
                }
            }
            _ => {
                if let Some(job) = self.spaces.jobs.get_mut(&job) {
                    job.used.insert(dataspace.to_string(), bytes);
                }
            }
        }
    }
}

/// What of a damaged journal makes no sense any more.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Left {
    /// Records about tasks whose submission is lost.
    pub records: u64,
    /// Bytes that are the rest of a record whose beginning is lost.
    pub bytes: u64,
}

/// A task's submission takes more.
const SUBMITTED_BYTES_MIN: u64 = 32;

/// Memory is that of the process that asks, which has to be one of this node.
pub(crate) fn check_memory(caller: &Caller, spec: &TaskSpec) -> Result<(), Refusal> {
    if caller.ancestry.is_empty() && uses_memory(spec) {
        return refuse(Code::BAD_ARGS, "memory of a process of another node cannot be reached; submit there");
    }
    Ok(())
}

pub(crate) fn uses_memory(spec: &TaskSpec) -> bool {
    let memory = |resource: &Resource| matches!(resource, Resource::Memory { .. });
    memory(&spec.src) || spec.dst.as_ref().is_some_and(memory)
}

/// Bytes a task is known to move before it runs.
fn size_of_task(spec: &TaskSpec) -> u64 {
    use tidepool_wire::stager::Resource::Memory;
    match (&spec.src, &spec.dst) {
        (Memory { size, .. }, _) | (_, Some(Memory { size, .. })) => *size,
        _ => spec.size_hint,
    }
}

fn check_dataspace(spec: &DataspaceSpec) -> Result<(), Refusal> {
    use tidepool_wire::stager::DATASPACE_NAME_MAX;
    if spec.name.is_empty() || spec.name.len() > DATASPACE_NAME_MAX || spec.name.contains(char::is_control) {
        let text =
            format!("a dataspace's name has 1 to {DATASPACE_NAME_MAX} bytes and no control characters");
        return refuse(Code::BAD_ARGS, text);
    }
    if spec.mount.is_empty() {
        return refuse(Code::BAD_ARGS, format!("dataspace '{}' needs a mount", spec.name));
    }
    Ok(())
}
