//! From requests to the state machine, and back to replies.

use crate::apart::Running;
use crate::audit;
use crate::errands::{Task, Then};
use crate::peer;
use crate::places::Places;
use crate::server::Daemon;
use tidepool_stage_state::{Caller, Cancelled, Late, Live, Rank, Release, Start, Wait, check_one_job};
use tidepool_wire::stager::{
    Code, Command, JobSpec, Leftover, Owner, Refusal, Reply, Request, STAGER_MAGIC, STAGER_VERSION,
    TASKS_AT_ONCE_MAX, TaskSpec,
};

/// Tasks of one [`Request::Wait`].
const WAIT_IDS_MAX: usize = TASKS_AT_ONCE_MAX;
/// Entries that are looked for before a dataspace is said to be not empty.
const LOOK_MAX: usize = 1000;

/// What is to be sent.
pub enum Answer {
    Now(Reply),
    /// Comes later.
    Later,
}

impl Answer {
    fn of(result: Result<(), Refusal>) -> Answer {
        Answer::Now(result.map_or_else(|refusal| Reply::Failed { refusal }, |()| Reply::Done {}))
    }

    fn reply(result: Result<Reply, Refusal>) -> Answer {
        Answer::Now(result.unwrap_or_else(|refusal| Reply::Failed { refusal }))
    }
}

impl Daemon {
    /// Serves one request of a connection that has said hello.
    pub(crate) fn serve(&mut self, conn: u64, request: u64, caller: &Caller, message: Request) -> Answer {
        if let Err(refusal) = self.state.check_rank(caller, &message) {
            let name = message.name();
            let act = audit::act(&message).unwrap_or_else(|| name.into());
            self.attempts.tell(&audit::line(caller, &act, &format!("refused: {refusal}")));
            return Answer::Now(Reply::Failed { refusal });
        }
        match message {
            Request::Hello { .. } => refused(Code::BAD_REQUEST, "this connection has said hello already"),
            Request::Ping {} => Answer::Now(Reply::Done {}),
            Request::Submit { task } => self.submit(caller, task),
            Request::SubmitMany { tasks } => {
                self.submit_many(tasks, |daemon, task| daemon.state.submit(daemon.now, caller, task))
            }
            Request::Status { id } => {
                let status = self.state.status(self.now, caller, id, |id| self.live(id));
                Answer::reply(status.map(|status| Reply::Task { status }))
            }
            Request::Wait { ids, any, timeout_ms } => {
                let deadline = timeout_ms.map(|ms| self.up.saturating_add(ms));
                self.wait(caller, Wait { conn, request, ids, any, deadline, late: Late::Refuse })
            }
            Request::SubmitAndWait { task, timeout_ms } => match self.state.submit(self.now, caller, task) {
                Ok(id) => {
                    let (ids, deadline) = (vec![id], Some(self.up.saturating_add(timeout_ms)));
                    self.wait(caller, Wait { conn, request, ids, any: false, deadline, late: Late::Tell })
                }
                Err(refusal) => Answer::Now(Reply::Failed { refusal }),
            },
            Request::Cancel { id } => self.cancel(caller, id),
            Request::Resume { id } => Answer::of(self.state.resume(caller, id)),
            Request::Forget { id } => self.forget(caller, id),
            Request::List { job, only, after, max } => {
                let max = (max as usize).min(TASKS_AT_ONCE_MAX);
                let live = |id| self.live(id);
                let (tasks, more) = self.state.list(self.now, caller, (job, only), (after, max), live);
                Answer::Now(Reply::Tasks { tasks, more })
            }
            Request::Plan { task } => self.plan(conn, request, caller, &task),
            Request::Entries { place, on_behalf, after, max } => {
                let admitted = self.state.admit_look(caller, place, on_behalf);
                self.entries((conn, request), caller, admitted, after, max as usize)
            }
            Request::DaemonStatus {} => {
                let mut status = self.state.daemon_status(|id| self.live(id));
                status.counters = self.counters(caller);
                Answer::Now(Reply::Daemon { status })
            }
            Request::Dataspaces {} => Answer::reply(
                self.state.dataspaces(caller).map(|dataspaces| Reply::Dataspaces { dataspaces }),
            ),
            Request::JobReport { job } => {
                Answer::reply(self.state.report(caller, job).map(|report| Reply::Report { report }))
            }
            Request::Persist { op, dataspace, path, user, expires } => {
                let done = self.state.persist(self.now, caller, op, (&dataspace, &path), (user, expires));
                Answer::reply(done.map(|id| Reply::Submitted { id }))
            }
            Request::Persisted {} => {
                Answer::Now(Reply::Persisted { locations: self.state.persisted(caller) })
            }
            other => self.administer(conn, request, caller, other),
        }
    }

    /// Acts of administration, with a line in the log for each, and for those that are not the caller's to do.
    fn administer(&mut self, conn: u64, request: u64, caller: &Caller, message: Request) -> Answer {
        let act = audit::act(&message);
        let answer = self.do_administer(conn, request, caller, message);
        if let Some(act) = act {
            let outcome = match &answer {
                Answer::Now(Reply::Failed { refusal }) => format!("refused: {refusal}"),
                Answer::Now(_) => "done".into(),
                Answer::Later => "under way".into(),
            };
            let line = audit::line(caller, &act, &outcome);
            match caller.rank {
                Rank::Administrator | Rank::Controller => eprintln!("tidepool-staged: {line}"),
                Rank::User => self.attempts.tell(&line),
            }
        }
        answer
    }

    fn do_administer(&mut self, conn: u64, request: u64, caller: &Caller, message: Request) -> Answer {
        // Before anything is looked at: even whether a path exists is not for everybody.
        if !matches!(message, Request::Command { command: Command::Ping })
            && let Err(refusal) = self.state.demand_batch(caller)
        {
            return Answer::Now(Reply::Failed { refusal });
        }
        match message {
            Request::RegisterDataspace { dataspace } => {
                // Whether a path exists, which root's process sees everywhere, is nothing for a controller.
                let checked = if caller.is_administrator() { check_mount(&dataspace) } else { Ok(()) };
                Answer::of(checked.and_then(|()| self.state.register_dataspace(caller, dataspace)))
            }
            Request::UpdateDataspace { dataspace } => {
                let checked = check_mount(&dataspace);
                Answer::of(checked.and_then(|()| self.state.update_dataspace(caller, dataspace)))
            }
            Request::UnregisterDataspace { name } => self.unregister_dataspace(conn, request, caller, name),
            Request::RegisterJob { job } => self.register_job(caller, job, None),
            Request::RegisterJobOf { job, owner } => self.register_job(caller, job, Some(owner)),
            Request::UpdateJob { job } => {
                let id = job.id;
                Answer::of(self.state.update_job(caller, job).inspect(|()| self.visits.end(id)))
            }
            Request::UnregisterJob { job } => self.unregister_job(conn, request, caller, job),
            Request::AddProcess { job, process } => {
                let started = peer::started(process.pid);
                Answer::of(self.state.add_process(caller, job, process, started))
            }
            Request::RemoveProcess { job, process } => {
                Answer::of(self.state.remove_process(caller, job, process))
            }
            Request::Command { command: Command::Shutdown } => self.shutdown(conn, request, caller),
            Request::Command { command } => Answer::of(self.state.command(caller, command)),
            Request::Jobs {} => Answer::reply(self.state.jobs(caller).map(|jobs| Reply::Jobs { jobs })),
            Request::Leftovers { dataspace, max } => {
                self.leftovers(conn, request, caller, &dataspace, max as usize)
            }
            Request::CleanJob { job, after, dry_run } => {
                let cleaned = self.state.clean_job(self.now, caller, (job, after), dry_run);
                Answer::reply(cleaned.map(|(places, more)| Reply::Cleaned { places, more }))
            }
            Request::CleanOwn { job, after } => {
                let cleaned = self.state.clean_own(self.now, caller, (job, after));
                Answer::reply(cleaned.map(|(places, more)| Reply::Cleaned { places, more }))
            }
            Request::SetPolicy { policy } => Answer::of(self.state.set_policy(caller, policy)),
            Request::SubmitHeld { tasks } => match check_one_job(&tasks) {
                Ok(()) => {
                    self.submit_many(tasks, |daemon, task| daemon.state.submit_held(daemon.now, caller, task))
                }
                Err(refusal) => Answer::Now(Reply::Failed { refusal }),
            },
            Request::ReleaseJob { job } => self.release_job(caller, job),
            Request::Unkeep { dataspace, path, user } => {
                Answer::of(self.state.unkeep(caller, (&dataspace, &path), user))
            }
            _ => refused(Code::BAD_REQUEST, "this stager does not know such a request"),
        }
    }

    /// The first message of a connection: none other is served before it.
    pub(crate) fn hello(&self, caller: &Caller, message: &Request) -> Result<Reply, Refusal> {
        let refuse = |text: String| Err(Refusal::new(Code::BAD_REQUEST, text));
        match message {
            Request::Hello { magic, version, .. } if *magic == STAGER_MAGIC => {
                if *version != STAGER_VERSION {
                    return refuse(format!(
                        "this stager speaks version {STAGER_VERSION} of its protocol, not {version}; update the older side"
                    ));
                }
                Ok(Reply::Welcome {
                    version: STAGER_VERSION,
                    node: self.config.node.clone(),
                    pid: std::process::id(),
                    uid: caller.uid,
                    control: caller.is_administrator(),
                })
            }
            _ => refuse("a connection starts with Hello".into()),
        }
    }

    fn submit(&mut self, caller: &Caller, task: TaskSpec) -> Answer {
        let submitted = self.state.submit(self.now, caller, task);
        Answer::reply(submitted.map(|id| Reply::Submitted { id }))
    }

    fn submit_many(
        &mut self,
        tasks: Vec<TaskSpec>,
        mut submit: impl FnMut(&mut Daemon, TaskSpec) -> Result<u32, Refusal>,
    ) -> Answer {
        if tasks.len() > TASKS_AT_ONCE_MAX {
            let text = format!("{} tasks at once; at most {TASKS_AT_ONCE_MAX} can be", tasks.len());
            return refused(Code::BAD_ARGS, &text);
        }
        let mut ids = Vec::with_capacity(tasks.len());
        let mut refusals = Vec::new();
        for (at, task) in tasks.into_iter().enumerate() {
            match submit(self, task) {
                Ok(id) => ids.push(id),
                Err(refusal) => {
                    ids.push(0);
                    refusals.push((at as u32, refusal));
                }
            }
        }
        Answer::Now(Reply::SubmittedMany { ids, refused: refusals })
    }

    fn release_job(&mut self, caller: &Caller, job: u32) -> Answer {
        let released = self.state.release_job(self.now, caller, job);
        Answer::reply(released.map(|Release { tasks, more, failed }| {
            self.over.extend(failed);
            Reply::Released { tasks, more }
        }))
    }

    fn wait(&mut self, caller: &Caller, wait: Wait) -> Answer {
        if wait.ids.is_empty() || wait.ids.len() > WAIT_IDS_MAX {
            return refused(Code::BAD_ARGS, &format!("a wait is for 1 to {WAIT_IDS_MAX} tasks"));
        }
        let unended = match self.state.unended(caller, &wait.ids) {
            Ok(unended) => unended,
            Err(refusal) => return Answer::Now(Reply::Failed { refusal }),
        };
        let distinct = wait.ids.iter().collect::<std::collections::HashSet<_>>().len();
        if unended.is_empty() || (wait.any && unended.len() < distinct) {
            return Answer::Now(self.statuses(caller, &wait.ids));
        }
        if wait.deadline.is_some_and(|deadline| deadline <= self.up) {
            return Answer::Now(self.too_late(caller, &wait));
        }
        self.waits.add(wait, &unended);
        Answer::Later
    }

    /// How these tasks are: what a wait is answered with.
    pub(crate) fn statuses(&self, caller: &Caller, ids: &[u32]) -> Reply {
        let status = |id: &u32| self.state.status(self.now, caller, *id, |id| self.live(id));
        match ids.iter().map(status).collect() {
            Ok(tasks) => Reply::Tasks { tasks, more: false },
            Err(refusal) => Reply::Failed { refusal },
        }
    }

    /// What a wait is answered with whose time is over.
    pub(crate) fn too_late(&self, caller: &Caller, wait: &Wait) -> Reply {
        match wait.late {
            Late::Refuse => timed_out(),
            Late::Tell => self.statuses(caller, &wait.ids),
        }
    }

    pub(crate) fn live(&self, id: u32) -> Option<Live> {
        self.runs.get(&id).and_then(Running::live)
    }

    fn cancel(&mut self, caller: &Caller, id: u32) -> Answer {
        let cancelled = self.state.cancel(self.now, caller, id);
        match cancelled {
            Ok(Cancelled::AtOnce) => self.over.push(id),
            Ok(Cancelled::Tell) => self.cancel_running(id),
            Err(_) => {}
        }
        Answer::of(cancelled.map(drop))
    }

    fn forget(&mut self, caller: &Caller, id: u32) -> Answer {
        let forgotten = self.state.forget(caller, id);
        if forgotten.is_ok() {
            self.journals.remove(id);
        }
        Answer::of(forgotten)
    }

    fn plan(&mut self, conn: u64, request: u64, caller: &Caller, task: &TaskSpec) -> Answer {
        let start = match self.state.admit(caller, task) {
            Ok(start) => start,
            Err(refusal) => return Answer::Now(Reply::Failed { refusal }),
        };
        let model = self.state.model(task);
        let places = self.places(task);
        self.errand(conn, request, caller, Task::Plan { start: Box::new(start), places, model })
    }

    fn entries(
        &mut self,
        (conn, request): (u64, u64),
        caller: &Caller,
        admitted: Result<Start, Refusal>,
        after: Box<[u8]>,
        max: usize,
    ) -> Answer {
        match admitted {
            Ok(start) => {
                let places = self.places(&start.spec);
                let task = Task::Entries { start: Box::new(start), places, after, max };
                self.errand(conn, request, caller, task)
            }
            Err(refusal) => Answer::Now(Reply::Failed { refusal }),
        }
    }

    fn errand(&mut self, conn: u64, request: u64, caller: &Caller, task: Task) -> Answer {
        match self.find_out(conn, request, caller.uid, task) {
            Ok(()) => Answer::Later,
            Err(refusal) => Answer::Now(Reply::Failed { refusal }),
        }
    }

    /// The dataspaces that a task uses here.
    pub(crate) fn places(&self, task: &TaskSpec) -> Places {
        let mut places = Places::default();
        for resource in [Some(&task.src), task.dst.as_ref()].into_iter().flatten() {
            if let tidepool_wire::stager::Resource::Path { dataspace, host: None, .. } = resource
                && let Ok(spec) = self.state.dataspace(dataspace)
            {
                places.add(spec.clone());
            }
        }
        places
    }

    // ----- what needs a look at dataspaces first

    fn leftovers(&mut self, conn: u64, request: u64, caller: &Caller, dataspace: &str, max: usize) -> Answer {
        let found = self.state.leftovers_of(caller, dataspace);
        match found {
            Ok(spec) => {
                let task = Task::Look { dataspaces: vec![spec], max, then: Then::Show };
                self.errand(conn, request, caller, task)
            }
            Err(refusal) => Answer::Now(Reply::Failed { refusal }),
        }
    }

    fn register_job(&mut self, caller: &Caller, job: JobSpec, owner: Option<Owner>) -> Answer {
        // First: a hook must not miss a job that is registered.
        let id = job.id;
        let registered = self.marks.put(id).and_then(|()| self.state.register_job(caller, job, owner));
        if registered.is_err() && self.state.job(id).is_none() {
            self.marks.take(id);
        }
        Answer::of(registered)
    }

    fn unregister_job(&mut self, conn: u64, request: u64, caller: &Caller, job: u32) -> Answer {
        match self.state.tracked_of_job(caller, job) {
            Ok(dataspaces) => {
                let then = Then::UnregisterJob(job);
                self.errand(conn, request, caller, Task::Look { dataspaces, max: LOOK_MAX, then })
            }
            Err(refusal) => Answer::Now(Reply::Failed { refusal }),
        }
    }

    fn unregister_dataspace(&mut self, conn: u64, request: u64, caller: &Caller, name: String) -> Answer {
        let there = self.state.demand_batch(caller).and_then(|()| self.state.dataspace(&name).cloned());
        match there {
            Err(refusal) => Answer::Now(Reply::Failed { refusal }),
            Ok(spec) if spec.tracked => {
                let then = Then::UnregisterDataspace(name);
                let task = Task::Look { dataspaces: vec![spec], max: LOOK_MAX, then };
                self.errand(conn, request, caller, task)
            }
            Ok(_) => Answer::of(self.state.unregister_dataspace(caller, &name)),
        }
    }

    fn shutdown(&mut self, conn: u64, request: u64, caller: &Caller) -> Answer {
        if let Err(refusal) = self.state.command(caller, Command::Shutdown) {
            return Answer::Now(Reply::Failed { refusal });
        }
        let dataspaces = self.state.tracked();
        let task = Task::Look { dataspaces, max: LOOK_MAX, then: Then::Shutdown };
        self.errand(conn, request, caller, task)
    }

    /// What is done when it is known what lies in the dataspaces.
    pub(crate) fn found(&mut self, caller: &Caller, entries: Vec<Leftover>, more: bool, then: Then) -> Reply {
        let mut entries = entries;
        entries.retain(|entry| !self.state.is_persisted(&entry.dataspace, &entry.path));
        let held = || {
            let first = entries.first().map(|e| tidepool_stage::show_bytes(&e.path)).unwrap_or_default();
            let text = format!(
                "{}{} entries lie in tracked dataspaces, '{first}' first; list them with 'tidepool stage dataspace leftovers'",
                entries.len(),
                if more { " or more" } else { "" }
            );
            Reply::Failed { refusal: Refusal::new(Code::DATASPACE_NOT_EMPTY, text) }
        };
        let shown = Reply::Leftovers { entries: Vec::new(), more };
        let (done, reply) = match then {
            Then::Show => (Ok(()), shown),
            Then::UnregisterJob(job) => {
                let done = self.state.unregister_job(caller, job);
                if done.is_ok() {
                    self.marks.take(job);
                    self.visits.end(job);
                }
                (done, shown)
            }
            Then::UnregisterDataspace(_) | Then::Shutdown if !entries.is_empty() => return held(),
            Then::UnregisterDataspace(name) => {
                (self.state.unregister_dataspace(caller, &name), Reply::Done {})
            }
            Then::Shutdown => {
                let checked = self.state.command(caller, Command::Shutdown);
                self.stopping |= checked.is_ok();
                (checked, Reply::Done {})
            }
        };
        match (done, reply) {
            (Err(refusal), _) => Reply::Failed { refusal },
            (Ok(()), Reply::Leftovers { more, .. }) => Reply::Leftovers { entries, more },
            (Ok(()), reply) => reply,
        }
    }
}

fn timed_out() -> Reply {
    Reply::Failed { refusal: Refusal::new(Code::TIMEOUT, "the tasks had not ended in time") }
}

fn refused(code: Code, detail: &str) -> Answer {
    Answer::Now(Reply::Failed { refusal: Refusal::new(code, detail) })
}

/// A directory that does not exist is told at registration, not by the first task.
fn check_mount(dataspace: &tidepool_wire::stager::DataspaceSpec) -> Result<(), Refusal> {
    use tidepool_wire::stager::DataspaceKind::{Local, Object, Pool, Shared};
    if dataspace.kind == Object {
        let url: Result<tidepool_object::ObjectUrl, _> = dataspace.mount.parse();
        let refuse = |error| Refusal::new(Code::BAD_ARGS, format!("dataspace '{}': {error}", dataspace.name));
        return url.map(drop).map_err(refuse);
    }
    let problem = match (dataspace.kind, std::fs::metadata(&dataspace.mount)) {
        (Local | Shared, Ok(meta)) if meta.is_dir() => return Ok(()),
        (Local | Shared, Ok(_)) => "is no directory".to_string(),
        (Pool, Ok(_)) => return Ok(()),
        (Local | Shared | Pool, Err(error)) => error.to_string(),
        (_, _) => return Ok(()),
    };
    let text = format!("dataspace '{}': mount {}: {problem}", dataspace.name, dataspace.mount);
    Err(Refusal::new(Code::BAD_ARGS, text))
}
