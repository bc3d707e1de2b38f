//! One method for each request. Bytes are bytes, times are of the monotonic clock, ids are the stager's.

use crate::error::StageError;
use crate::stager::Stager;
use std::fmt;
use std::time::{Duration, Instant};
use tidepool_wire::stager::{
    Cleaning, Code, Command, DataspaceInfo, DataspaceSpec, JobReport, JobSpec, Leftover, OnBehalf, Owner,
    PersistOp, Persisted, Plan, Policy, ProcessSpec, Refusal, Reply, Request, Resource, StagerStatus,
    TASKS_AT_ONCE_MAX, TaskSpec, TaskState, TaskStatus,
};

/// How long [`Stager::submit_and_wait`] waits before it waits by the task's number, which a restart of the stager does not end.
pub const FIRST_WAIT: Duration = Duration::from_millis(100);
/// A wait at a stager of another node is asked for anew so often.
const WAIT_SLICE: Duration = Duration::from_secs(10);

/// A name in a directory.
pub type Name = Box<[u8]>;

/// What became of many tasks submitted together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Submitted {
    /// One for each task in their order; 0 where it was refused.
    pub ids: Vec<u32>,
    /// Places of the refused tasks, and why.
    pub refused: Vec<(u32, Refusal)>,
}

impl Submitted {
    fn add(&mut self, ids: Vec<u32>, refused: Vec<(u32, Refusal)>) {
        let before = self.ids.len() as u32;
        self.ids.extend(ids);
        self.refused.extend(refused.into_iter().map(|(place, why)| (before.saturating_add(place), why)));
    }
}

/// Submitting many tasks ended before all of them were submitted.
#[derive(Debug)]
pub struct SubmitManyError {
    /// The tasks before the one the error is about; they are with the stager.
    pub done: Submitted,
    pub error: StageError,
}

impl fmt::Display for SubmitManyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {} tasks: {}", self.done.ids.len(), self.error)
    }
}

impl std::error::Error for SubmitManyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

macro_rules! expect {
    ($self:ident, $request:expr, $pattern:pat => $value:expr) => {
        match $self.call(&$request)? {
            $pattern => Ok($value),
            other => Err($self.unexpected(&other)),
        }
    };
}

/// Tasks (Table I: task management).
fn is_over(until: Option<Instant>) -> bool {
    until.is_some_and(|until| Instant::now() >= until)
}

impl Stager {
    /// Returns when the stager answers.
    pub fn ping(&self) -> Result<(), StageError> {
        self.done(&Request::Ping {})
    }

    /// Hands a task over and returns its id; it runs when its turn comes (Table I: `submit`). After an error with
    /// [`StageError::may_be_done`] the stager may have it all the same.
    pub fn submit(&self, task: &TaskSpec) -> Result<u32, StageError> {
        self.before_submit(task);
        expect!(self, Request::Submit { task: task.clone() }, Reply::Submitted { id } => id)
    }

    /// Hands many tasks over, in as few requests as limits allow. A refused task does not keep the others.
    pub fn submit_many(&self, tasks: Vec<TaskSpec>) -> Result<Submitted, SubmitManyError> {
        self.submit_by(tasks, false)
    }

    fn submit_by(&self, mut tasks: Vec<TaskSpec>, held: bool) -> Result<Submitted, SubmitManyError> {
        let mut done = Submitted::default();
        let mut at_once = TASKS_AT_ONCE_MAX;
        while !tasks.is_empty() {
            let rest = tasks.split_off(at_once.min(tasks.len()));
            match self.submit_some(tasks, held, &mut done) {
                Ok(()) => tasks = rest,
                // Long paths: fewer of them fit.
                Err((mut same, StageError::TooLong { .. })) if at_once > 1 => {
                    at_once = same.len().div_ceil(2).min(at_once - 1);
                    same.extend(rest);
                    tasks = same;
                }
                Err((_, error)) => return Err(SubmitManyError { done, error }),
            }
        }
        Ok(done)
    }

    /// With an error the tasks come back.
    fn submit_some(
        &self,
        tasks: Vec<TaskSpec>,
        held: bool,
        done: &mut Submitted,
    ) -> Result<(), (Vec<TaskSpec>, StageError)> {
        if let Some(task) = tasks.iter().find(|task| has_memory(task)) {
            self.before_submit(task);
        }
        let count = tasks.len();
        let request = if held { Request::SubmitHeld { tasks } } else { Request::SubmitMany { tasks } };
        let error = match self.call(&request) {
            Ok(Reply::SubmittedMany { ids, refused }) if ids.len() == count => {
                done.add(ids, refused);
                return Ok(());
            }
            Ok(other) => self.unexpected(&other),
            Err(error) => error,
        };
        match request {
            Request::SubmitMany { tasks } | Request::SubmitHeld { tasks } => Err((tasks, error)),
            _ => Err((Vec::new(), error)),
        }
    }

    fn before_submit(&self, task: &TaskSpec) {
        if has_memory(task) {
            self.allow_memory_access();
        }
    }

    /// How a task is (Table I: `error`).
    pub fn status(&self, id: u32) -> Result<TaskStatus, StageError> {
        expect!(self, Request::Status { id }, Reply::Task { status } => status)
    }

    /// Submits a task and waits for its end: with one request when it ends soon, and else as [`Stager::submit`] and
    /// [`Stager::wait`] do. As there, that the task has ended does not mean that it succeeded.
    pub fn submit_and_wait(&self, task: &TaskSpec) -> Result<TaskStatus, StageError> {
        let status = self.submit_and_wait_for(task, FIRST_WAIT)?;
        if status.state.is_ended() {
            return Ok(status);
        }
        self.only_one(self.wait(&[status.id], false, None)?)
    }

    /// With one request, submits a task and waits for its end, but no longer than `limit`: how it is then, ended or not.
    /// When the stager goes away meanwhile, nobody knows the task's number: where that may take long, wait by its number.
    pub fn submit_and_wait_for(&self, task: &TaskSpec, limit: Duration) -> Result<TaskStatus, StageError> {
        self.before_submit(task);
        let request = Request::SubmitAndWait { task: task.clone(), timeout_ms: millis(limit) };
        self.only_one(expect!(self, request, Reply::Tasks { tasks, .. } => tasks)?)
    }

    fn only_one(&self, mut tasks: Vec<TaskStatus>) -> Result<TaskStatus, StageError> {
        tasks.pop().ok_or_else(|| StageError::Protocol {
            at: self.at().clone(),
            what: "an answer that tells of no task".into(),
        })
    }

    /// Waits until all the tasks have ended, or one of them with `any` (Table I: `wait`). Without a timeout it waits for
    /// ever; with one, the refusal afterwards has [`Code::TIMEOUT`]. That a task has ended does not mean that it
    /// succeeded: see the statuses, which are those of `ids` in their order, with `any` as they are at that moment.
    pub fn wait(
        &self,
        ids: &[u32],
        any: bool,
        timeout: Option<Duration>,
    ) -> Result<Vec<TaskStatus>, StageError> {
        if any && ids.len() > TASKS_AT_ONCE_MAX {
            let detail = format!("{} tasks to wait for any of; at most {TASKS_AT_ONCE_MAX}", ids.len());
            return Err(StageError::Refused(Refusal::new(Code::BAD_ARGS, detail)));
        }
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut ended = Vec::with_capacity(ids.len());
        for some in ids.chunks(TASKS_AT_ONCE_MAX) {
            ended.extend(self.wait_for_some(some, any, until)?);
        }
        Ok(ended)
    }

    fn wait_for_some(
        &self,
        ids: &[u32],
        any: bool,
        until: Option<Instant>,
    ) -> Result<Vec<TaskStatus>, StageError> {
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            // So that a stager of another node that does not work any more is not waited for.
            let slice =
                if self.is_elsewhere() { Some(left.unwrap_or(WAIT_SLICE).min(WAIT_SLICE)) } else { left };
            let request = Request::Wait { ids: ids.to_vec(), any, timeout_ms: slice.map(millis) };
            match expect!(self, request, Reply::Tasks { tasks, .. } => tasks) {
                Err(StageError::Refused(refusal)) if refusal.code == Code::TIMEOUT && !is_over(until) => {}
                result => return result,
            }
        }
    }

    /// Ends a task that has not ended. What it moved under final names stays.
    pub fn cancel(&self, id: u32) -> Result<(), StageError> {
        self.done(&Request::Cancel { id })
    }

    /// Starts a failed or cancelled task again where it stopped.
    pub fn resume(&self, id: u32) -> Result<(), StageError> {
        self.done(&Request::Resume { id })
    }

    /// All tasks the caller may see: of a job, or in a state, where these are given.
    pub fn list(&self, job: Option<u32>, only: Option<TaskState>) -> Result<Vec<TaskStatus>, StageError> {
        let mut all: Vec<TaskStatus> = Vec::new();
        loop {
            let after = all.last().map_or(0, |task| task.id);
            let (tasks, more) = self.list_page(job, only, after, TASKS_AT_ONCE_MAX as u32)?;
            let end = tasks.is_empty() || !more;
            all.extend(tasks);
            if end {
                return Ok(all);
            }
        }
    }

    /// At most `max` tasks with ids after `after`, and whether there are more.
    pub fn list_page(
        &self,
        job: Option<u32>,
        only: Option<TaskState>,
        after: u32,
        max: u32,
    ) -> Result<(Vec<TaskStatus>, bool), StageError> {
        expect!(self, Request::List { job, only, after, max }, Reply::Tasks { tasks, more } => (tasks, more))
    }

    /// What a task would do: checked and counted, nothing moved.
    pub fn plan(&self, task: &TaskSpec) -> Result<Plan, StageError> {
        expect!(self, Request::Plan { task: task.clone() }, Reply::Planned { plan } => plan)
    }

    /// Names in a directory of a dataspace, in the order of their bytes; for administrators as `on_behalf` sees it.
    pub fn entries(&self, place: &Resource, on_behalf: Option<OnBehalf>) -> Result<Vec<Name>, StageError> {
        let mut all: Vec<Name> = Vec::new();
        loop {
            let after = all.last().cloned().unwrap_or_default();
            let (names, more) = self.entries_page(place, on_behalf, &after, TASKS_AT_ONCE_MAX as u32)?;
            let end = names.is_empty() || !more;
            all.extend(names);
            if end {
                return Ok(all);
            }
        }
    }

    /// At most `max` of them after `after`, and whether there are more.
    pub fn entries_page(
        &self,
        place: &Resource,
        on_behalf: Option<OnBehalf>,
        after: &[u8],
        max: u32,
    ) -> Result<(Vec<Name>, bool), StageError> {
        let request = Request::Entries { place: place.clone(), on_behalf, after: after.into(), max };
        expect!(self, request, Reply::Entries { names, more } => (names, more))
    }

    /// Forgets an ended task.
    pub fn forget(&self, id: u32) -> Result<(), StageError> {
        self.done(&Request::Forget { id })
    }

    /// The stager as a whole (Table I: `status`).
    pub fn daemon_status(&self) -> Result<StagerStatus, StageError> {
        expect!(self, Request::DaemonStatus {}, Reply::Daemon { status } => status)
    }

    /// The dataspaces the caller may use (Table I: `get_dataspace_info`).
    pub fn dataspaces(&self) -> Result<Vec<DataspaceInfo>, StageError> {
        expect!(self, Request::Dataspaces {}, Reply::Dataspaces { dataspaces } => dataspaces)
    }

    /// What tasks of a job have moved so far: the caller's own job, or any for administrators.
    pub fn job_report(&self, job: u32) -> Result<JobReport, StageError> {
        expect!(self, Request::JobReport { job }, Reply::Report { report } => report)
    }

    /// Keeps a location beyond its job, or ends or shares that (Listing 1: `persist`). `user` is whom to share with;
    /// `expires` is in seconds since 1970, 0 for never. What is done to the files is a task: its id is returned.
    pub fn persist(
        &self,
        op: PersistOp,
        dataspace: &str,
        path: &[u8],
        user: u32,
        expires: u64,
    ) -> Result<Option<u32>, StageError> {
        let (dataspace, path) = (dataspace.to_string(), path.into());
        match self.call(&Request::Persist { op, dataspace, path, user, expires })? {
            Reply::Done {} => Ok(None),
            Reply::Submitted { id } => Ok(Some(id)),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Ends that a location of `user`'s is kept, and leaves what lies there; for administrators.
    pub fn unkeep(&self, dataspace: &str, path: &[u8], user: u32) -> Result<(), StageError> {
        let (dataspace, path) = (dataspace.to_string(), path.into());
        self.done(&Request::Unkeep { dataspace, path, user })
    }

    /// The kept locations the caller may see.
    pub fn persisted(&self) -> Result<Vec<Persisted>, StageError> {
        expect!(self, Request::Persisted {}, Reply::Persisted { locations } => locations)
    }

    fn done(&self, request: &Request) -> Result<(), StageError> {
        expect!(self, *request, Reply::Done {} => ())
    }

    /// For what the stager does after a look at what lies in tracked dataspaces, which it then tells.
    fn done_after_a_look(&self, request: &Request) -> Result<(Vec<Leftover>, bool), StageError> {
        match self.call(request)? {
            Reply::Leftovers { entries, more } => Ok((entries, more)),
            Reply::Done {} => Ok((Vec::new(), false)),
            other => Err(self.unexpected(&other)),
        }
    }
}

/// Administration: on the control socket only (Table I: the control API).
impl Stager {
    /// Table I: `register_dataspace`.
    pub fn register_dataspace(&self, dataspace: &DataspaceSpec) -> Result<(), StageError> {
        self.done(&Request::RegisterDataspace { dataspace: dataspace.clone() })
    }

    /// Table I: `update_dataspace`.
    pub fn update_dataspace(&self, dataspace: &DataspaceSpec) -> Result<(), StageError> {
        self.done(&Request::UpdateDataspace { dataspace: dataspace.clone() })
    }

    /// Table I: `unregister_dataspace`. Refused with [`Code::DATASPACE_NOT_EMPTY`] while it is tracked and holds
    /// anything that is not persisted.
    pub fn unregister_dataspace(&self, name: &str) -> Result<(), StageError> {
        self.done_after_a_look(&Request::UnregisterDataspace { name: name.to_string() }).map(drop)
    }

    /// Table I: `register_job`.
    pub fn register_job(&self, job: &JobSpec) -> Result<(), StageError> {
        self.done(&Request::RegisterJob { job: job.clone() })
    }

    /// The same for a job whose owner is known: other nodes open what it may use here in his name only.
    pub fn register_job_of(&self, job: &JobSpec, owner: Owner) -> Result<(), StageError> {
        self.done(&Request::RegisterJobOf { job: job.clone(), owner })
    }

    /// Table I: `update_job`.
    pub fn update_job(&self, job: &JobSpec) -> Result<(), StageError> {
        self.done(&Request::UpdateJob { job: job.clone() })
    }

    /// Table I: `unregister_job`. Returns what tracked dataspaces still hold, and whether there is more of it.
    pub fn unregister_job(&self, job: u32) -> Result<(Vec<Leftover>, bool), StageError> {
        self.done_after_a_look(&Request::UnregisterJob { job })
    }

    /// Table I: `add_process`.
    pub fn add_process(&self, job: u32, process: ProcessSpec) -> Result<(), StageError> {
        self.done(&Request::AddProcess { job, process })
    }

    /// Table I: `remove_process`.
    pub fn remove_process(&self, job: u32, process: ProcessSpec) -> Result<(), StageError> {
        self.done(&Request::RemoveProcess { job, process })
    }

    /// Table I: `send_command`. Shutting down is refused with [`Code::TASKS_PENDING`] or [`Code::DATASPACE_NOT_EMPTY`].
    pub fn command(&self, command: Command) -> Result<(), StageError> {
        self.done_after_a_look(&Request::Command { command }).map(drop)
    }

    /// All jobs.
    pub fn jobs(&self) -> Result<Vec<JobSpec>, StageError> {
        expect!(self, Request::Jobs {}, Reply::Jobs { jobs } => jobs)
    }

    /// At most `max` entries that lie in a dataspace and are not kept, and whether there are more.
    pub fn leftovers(&self, dataspace: &str, max: u32) -> Result<(Vec<Leftover>, bool), StageError> {
        let request = Request::Leftovers { dataspace: dataspace.to_string(), max };
        expect!(self, request, Reply::Leftovers { entries, more } => (entries, more))
    }

    /// Starts the removal of what the copies of a job have put where there was nothing before; with `dry_run` it is
    /// only told. Refused with [`Code::JOB_BUSY`] while some have not ended.
    pub fn clean_job(&self, job: u32, dry_run: bool) -> Result<Vec<Cleaning>, StageError> {
        self.cleaned(|after| Request::CleanJob { job, after, dry_run })
    }

    /// Starts the removal of what copies of a job have made in tracked dataspaces of the stager's node, with the directories
    /// that they made: what belongs to the job's user, is not kept, and is not another job's. Refused with [`Code::JOB_BUSY`]
    /// while tasks of the job have not ended, and with [`Code::TASK_STATE`] where failed ones have been forgotten.
    pub fn clean_own(&self, job: u32) -> Result<Vec<Cleaning>, StageError> {
        self.cleaned(|after| Request::CleanOwn { job, after })
    }

    fn cleaned(&self, from: impl Fn(u32) -> Request) -> Result<Vec<Cleaning>, StageError> {
        let mut all: Vec<Cleaning> = Vec::new();
        loop {
            let request = from(all.last().map_or(0, |place| place.task));
            let (places, more) = expect!(self, request, Reply::Cleaned { places, more } => (places, more))?;
            let end = places.is_empty() || !more;
            all.extend(places);
            if end {
                return Ok(all);
            }
        }
    }

    /// Hands over tasks that do not start before [`Stager::release_job`], all in the name of one job (`on_behalf`). Their
    /// dataspaces need not be there yet. Otherwise as [`Stager::submit_many`].
    pub fn submit_held(&self, tasks: Vec<TaskSpec>) -> Result<Submitted, SubmitManyError> {
        self.submit_by(tasks, true)
    }

    /// Makes the held tasks of a job pending, in the order they came; how many. Those whose dataspaces are missing, or not for
    /// the job, have failed with that.
    pub fn release_job(&self, job: u32) -> Result<u64, StageError> {
        let mut released = 0;
        loop {
            let request = Request::ReleaseJob { job };
            let (tasks, more) = expect!(self, request, Reply::Released { tasks, more } => (tasks, more))?;
            released += u64::from(tasks);
            if !more {
                return Ok(released);
            }
        }
    }

    /// The order in which pending tasks start.
    pub fn set_policy(&self, policy: Policy) -> Result<(), StageError> {
        self.done(&Request::SetPolicy { policy })
    }
}

/// Rounded up: a wait never ends early.
fn millis(limit: Duration) -> u64 {
    u64::try_from(limit.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn has_memory(task: &TaskSpec) -> bool {
    let is_memory = |resource: &Resource| matches!(resource, Resource::Memory { .. });
    is_memory(&task.src) || task.dst.as_ref().is_some_and(is_memory)
}
