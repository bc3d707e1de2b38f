//! What a stager tells of itself, and the snapshot that a new journal starts with.

use crate::Millis;
use crate::learn::Model;
use crate::record::Record;
use crate::rights::{Caller, Rank, Side, check_path, refuse};
use crate::state::{State, check_memory};
use crate::task::{Live, Origin, Start, Task, place_of, space_of};
use std::ops::Bound;
use tidepool_wire::Field;
use tidepool_wire::stager::{
    Code, DataspaceInfo, DataspaceSpec, JobReport, JobSpec, OnBehalf, Op, Policy, Refusal, Resource,
    StagerStatus, TaskSpec, TaskState, TaskStatus,
};

impl State {
    /// Tasks that are known, ended ones among them.
    pub fn task_count(&self) -> usize {
        self.tasks.len()
    }

    /// How a task is; `live` tells of a running one.
    pub fn status(
        &self,
        now: Millis,
        caller: &Caller,
        id: u32,
        live: impl Fn(u32) -> Option<Live>,
    ) -> Result<TaskStatus, Refusal> {
        Ok(self.visible(caller, id)?.status(id, now, live(id)))
    }

    /// The tasks among `ids` that have not ended, each once. Fails when the caller may not see one.
    pub fn unended(&self, caller: &Caller, ids: &[u32]) -> Result<Vec<u32>, Refusal> {
        let mut unended = Vec::new();
        for id in ids {
            if self.visible(caller, *id)?.ended.is_none() {
                unended.push(*id);
            }
        }
        unended.sort_unstable();
        unended.dedup();
        Ok(unended)
    }

    /// Tasks after number `after`, at most `max`, and whether there are more.
    pub fn list(
        &self,
        now: Millis,
        caller: &Caller,
        (job, only): (Option<u32>, Option<TaskState>),
        (after, max): (u32, usize),
        live: impl Fn(u32) -> Option<Live>,
    ) -> (Vec<TaskStatus>, bool) {
        let wanted = |task: &Task| {
            caller.sees(task.identity)
                && job.is_none_or(|job| task.identity.job == job)
                && only.is_none_or(|only| task.state() == only)
        };
        let later = self.tasks.range((Bound::Excluded(after), Bound::Unbounded));
        let mut found = later.filter(|(_, task)| wanted(task));
        let tasks = found.by_ref().take(max).map(|(id, task)| task.status(*id, now, live(*id))).collect();
        let more = found.next().is_some();
        (tasks, more)
    }

    /// Some job has processes.
    pub fn has_processes(&self) -> bool {
        self.spaces.has_members()
    }

    pub fn knows(&self, id: u32) -> bool {
        self.tasks.contains_key(&id)
    }

    /// Whose task this is.
    pub fn owner(&self, id: u32) -> Option<u32> {
        self.tasks.get(&id).map(|task| task.identity.uid)
    }

    /// The numbers of running tasks.
    pub fn running(&self) -> Vec<u32> {
        self.running.iter().copied().collect()
    }

    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.queue.is_empty() && self.held() == 0
    }

    pub fn daemon_status(&self, live: impl Fn(u32) -> Option<Live>) -> StagerStatus {
        let lives: Vec<Live> = self.running().into_iter().filter_map(live).collect();
        StagerStatus {
            node: self.config.node.clone(),
            pending: (self.queue.len() + self.held()) as u64,
            running: self.running.len() as u64,
            ended: self.ended.len() as u64,
            eta_ms: self.eta(&lives),
            bytes_done: lives.iter().map(|live| live.bytes_done).sum(),
            rate: lives.iter().map(|live| live.rate).sum(),
            paused: self.paused,
            policy: self.queue.policy(),
            workers: self.config.workers,
            counters: Vec::new(),
        }
    }

    /// Until nothing is left but what is held: the longest of the running tasks, and the pending ones shared among the
    /// workers. None when one of them cannot be told.
    fn eta(&self, lives: &[Live]) -> Option<u64> {
        if lives.len() < self.running.len() {
            return None;
        }
        let running = lives.iter().map(|live| live.eta_ms).collect::<Option<Vec<u64>>>()?;
        let pending = self.backlog.seconds(&self.learned)?;
        let pending = (pending * 1000.0 / f64::from(self.config.workers.max(1))) as u64;
        Some(running.into_iter().max().unwrap_or(0) + pending)
    }

    /// Seconds that so much takes between the ends of a task, as learned.
    pub fn estimate(&self, spec: &TaskSpec, bytes: u64, files: u64) -> Option<f64> {
        let (from, to) = (place_of(Some(&spec.src)), place_of(spec.dst.as_ref()));
        self.learned.estimate(&from, &to, bytes, files)
    }

    /// Dataspaces the caller may use, with what he may still put there.
    pub fn dataspaces(&self, caller: &Caller) -> Result<Vec<DataspaceInfo>, Refusal> {
        let job = match caller.rank {
            Rank::Controller => None,
            Rank::User | Rank::Administrator => self.spaces.jobs.get(&self.identity(caller, None)?.job),
        };
        let info = |space: &crate::spaces::Dataspace| {
            let quota = match job {
                Some(job) => job.quota(&space.spec.name)?,
                None => 0,
            };
            let used = job.map_or(space.used, |j| j.used.get(&space.spec.name).copied().unwrap_or(0));
            Some(DataspaceInfo { dataspace: space.spec.clone(), quota, used })
        };
        Ok(self.spaces.dataspaces.values().filter_map(info).collect())
    }

    pub fn dataspace(&self, name: &str) -> Result<&DataspaceSpec, Refusal> {
        Ok(&self.demand_dataspace(name)?.spec)
    }

    /// Names of all dataspaces.
    pub fn dataspace_names(&self) -> Vec<String> {
        self.spaces.dataspaces.keys().cloned().collect()
    }

    pub fn jobs(&self, caller: &Caller) -> Result<Vec<JobSpec>, Refusal> {
        self.demand_control(caller)?;
        Ok(self.spaces.jobs.values().map(|job| job.spec.clone()).collect())
    }

    /// Numbers of all registered jobs.
    pub fn job_ids(&self) -> Vec<u32> {
        self.spaces.jobs.keys().copied().collect()
    }

    /// Limits of a job on a dataspace, and bytes per second that all its tasks together may take.
    pub fn job(&self, job: u32) -> Option<&JobSpec> {
        self.spaces.jobs.get(&job).map(|job| &job.spec)
    }

    pub fn report(&self, caller: &Caller, job: u32) -> Result<JobReport, Refusal> {
        self.demand_job(job)?;
        let own = self.spaces.job_of(caller.uid, &caller.ancestry) == Some(job);
        if self.demand_batch(caller).is_err() && !own {
            return refuse(Code::NOT_PERMITTED, format!("job {job} is not yours"));
        }
        Ok(self.spaces.jobs[&job].report.clone())
    }

    /// In whose name a caller's task would run, and that it may: for plans.
    pub fn admit(&self, caller: &Caller, spec: &TaskSpec) -> Result<Start, Refusal> {
        let identity = self.identity(caller, spec.on_behalf)?;
        check_memory(caller, spec)?;
        self.check(identity, spec)?;
        let quotas = space_of(spec.dst.as_ref())
            .map(|space| self.spaces.quotas(identity.job, space))
            .unwrap_or_default();
        let (spec, origin) = (spec.clone(), caller.origin());
        Ok(Start { id: 0, spec, identity, origin, again: false, quotas, made: None, permit: None })
    }

    /// The same for a look at what lies somewhere in a dataspace here.
    pub fn admit_look(
        &self,
        caller: &Caller,
        place: Resource,
        behalf: Option<OnBehalf>,
    ) -> Result<Start, Refusal> {
        let identity = self.identity(caller, behalf)?;
        match &place {
            Resource::Path { host: None, dataspace, path, .. } => {
                check_path(&place)?;
                // Who may read it may see it: what is shared with him, too.
                self.may_use(identity, dataspace, path, Side::Source)?;
            }
            Resource::Path { host: Some(host), .. } => {
                let text = format!("what lies at another stager, that one tells: ask {host}");
                return refuse(Code::BAD_ARGS, text);
            }
            Resource::Memory { .. } => return refuse(Code::BAD_ARGS, "memory has no entries"),
        }
        // Only the source counts: nobody copies anything.
        let spec = TaskSpec::new(Op::Copy, place, None);
        let origin = caller.origin();
        Ok(Start {
            id: 0,
            spec,
            identity,
            origin,
            again: false,
            quotas: Vec::new(),
            made: None,
            permit: None,
        })
    }

    /// About what [`State::snapshot`] takes, without making one.
    pub fn snapshot_bytes(&self) -> u64 {
        const TASK_BYTES: u64 = 160;
        self.tasks.len() as u64 * TASK_BYTES
    }

    /// Everything, as the records that bring a new state to where this one is.
    pub fn snapshot(&self, out: &mut Vec<u8>) {
        for space in self.spaces.dataspaces.values() {
            Record::Dataspace { spec: space.spec.clone() }.put(out);
        }
        for job in self.spaces.jobs.values() {
            Record::Job { spec: job.spec.clone() }.put(out);
            if let Some(owner) = job.owner {
                Record::JobOwner { job: job.spec.id, owner }.put(out);
            }
        }
        for member in self.spaces.members.values().flatten() {
            let (job, process, started) = (member.job, member.process, member.started);
            Record::Process { job, process, started }.put(out);
        }
        for location in self.persisted.iter() {
            Record::Persisted { location: location.clone() }.put(out);
        }
        let (policy, paused): (Policy, bool) = (self.queue.policy(), self.paused);
        Record::Settings { policy, paused }.put(out);
        self.put_tasks(out);
        // After the tasks, whose ends count as well: these say how much it is in the end.
        self.put_sums(out);
    }

    /// Ended tasks in the order of their ends, then the others as they were submitted.
    fn put_tasks(&self, out: &mut Vec<u8>) {
        let mut unended: Vec<&Task> =
            self.tasks.values().map(|task| &**task).filter(|task| task.ended.is_none()).collect();
        unended.sort_unstable_by_key(|task| task.queued.seq);
        let ended = self.ended.in_order();
        let ended = ended.iter().filter_map(|id| self.tasks.get(id).map(|task| &**task));
        for task in ended.chain(unended) {
            put_task(task, out);
        }
    }

    fn put_sums(&self, out: &mut Vec<u8>) {
        for (name, space) in &self.spaces.dataspaces {
            Record::Used { job: 0, dataspace: name.clone(), bytes: space.used }.put(out);
            Record::Unplaced { dataspace: name.clone() }.put(out);
            for (place, job, bytes) in space.placed.iter() {
                Record::Placed { dataspace: name.clone(), place: place.into(), job, bytes }.put(out);
            }
        }
        for (id, job) in &self.spaces.jobs {
            for (name, bytes) in &job.used {
                Record::Used { job: *id, dataspace: name.clone(), bytes: *bytes }.put(out);
            }
            Record::Report { report: job.report.clone() }.put(out);
            if job.failures_forgotten > 0 {
                Record::FailuresForgotten { job: *id, count: job.failures_forgotten }.put(out);
            }
        }
        for ((from, to), model) in self.learned.iter() {
            Record::Learned { from: from.clone(), to: to.clone(), model: *model }.put(out);
        }
        Record::LastTask { id: self.last_task }.put(out);
        if let Some(clock) = &self.clock {
            Record::Clock { at: clock.at() }.put(out);
        }
    }
}

fn put_task(task: &Task, out: &mut Vec<u8>) {
    let id = task.queued.id;
    let (identity, origin, spec): (_, Origin, _) = (task.identity, task.origin, task.spec.clone());
    let at = task.submitted;
    match task.held {
        true => Record::Held { id, at, identity, origin, spec }.put(out),
        false => Record::Submitted { id, at, identity, origin, spec }.put(out),
    }
    if task.spec.op == Op::Permit {
        Record::Permit { id, user: task.permit_for }.put(out);
    }
    if task.again {
        Record::Begun { id }.put(out);
    }
    if let Some(made) = task.made.as_deref().cloned() {
        Record::Makes { id, place: made.place, top: made.top, of: made.of }.put(out);
    }
    if task.cancelling {
        Record::Cancelling { id }.put(out);
    }
    if let Some((at, ended)) = task.ended.as_deref() {
        Record::Ended { id, at: *at, ended: ended.clone() }.put(out);
    }
}

impl State {
    /// What has been learned of transfers between the ends of a task.
    pub fn model(&self, spec: &TaskSpec) -> Option<Model> {
        self.learned.model(&place_of(Some(&spec.src)), &place_of(spec.dst.as_ref()))
    }

    /// Dataspaces in which something left behind is to be told of.
    pub fn tracked(&self) -> Vec<DataspaceSpec> {
        self.spaces
            .dataspaces
            .values()
            .map(|space| &space.spec)
            .filter(|spec| spec.tracked)
            .cloned()
            .collect()
    }

    /// The tracked dataspaces of a job that can be unregistered.
    pub fn tracked_of_job(&self, caller: &Caller, job: u32) -> Result<Vec<DataspaceSpec>, Refusal> {
        self.check_job_release(caller, job)?;
        let job = &self.spaces.jobs[&job];
        Ok(self.tracked().into_iter().filter(|spec| job.quota(&spec.name).is_some()).collect())
    }

    /// A dataspace whose content an administrator wants to see.
    pub fn leftovers_of(&self, caller: &Caller, dataspace: &str) -> Result<DataspaceSpec, Refusal> {
        self.demand_control(caller)?;
        Ok(self.demand_dataspace(dataspace)?.spec.clone())
    }
}
