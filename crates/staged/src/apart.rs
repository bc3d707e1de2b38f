//! Between the event loop and workers: what a task, a plan or a look is handed over as, and what becomes of what workers say.
//!
//! Root's stager hands everything to workers. A stager that a user runs for himself does it with threads of its own.

use crate::errands::{Errand, Task as Quest, Then};
use crate::execute::{Failed, of_failure};
use crate::limits::Limits;
use crate::lines::{Wanted, hosts};
use crate::places::{PlaceError, Places};
use crate::server::Daemon;
use crate::tasks::{Answer, News, Run, Work};
use crate::visits::checked_name;
use crate::worker::{About, CALLS_MAX, FromWorker, Key, Looks, Made, NoLine, Order, Refused, ToWorker};
use rustix::event::epoll::{self, EventData, EventFlags};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tidepool_stage::remote::{Ask, Dialed};
use tidepool_stage::{Charge, EndError};
use tidepool_stage_state::{Ended, Identity, Live, Model, Origin, Outcome, Start};
use tidepool_transport::remote::GreetError;
use tidepool_types::Errno;
use tidepool_wire::stager::{
    Code, DataspaceSpec, Leftover, Op, RESOURCE_PATH_MAX, Refusal, Reply, Resource, TaskState,
};

/// Bytes of what a worker says of a failure that are kept.
const DETAIL_MAX: usize = 8 << 10;

/// How long a task may take to stop when it is cancelled, before its worker is ended.
const STOP_LOOKS_MAX: Looks = 30;

/// A running task, seen from the event loop.
pub enum Running {
    /// With threads of this process.
    Here(Arc<Run>),
    There(Box<There>),
}

/// By a worker.
pub struct There {
    worker: u64,
    live: Option<Live>,
    /// The look at which it was told to stop.
    cancelled: Option<Looks>,
    limits: Arc<Limits>,
    start: Start,
}

impl Running {
    pub fn live(&self) -> Option<Live> {
        match self {
            Running::Here(run) => Some(run.live()),
            Running::There(there) => there.live,
        }
    }
}

/// What a worker has been asked that is no task.
pub enum Call {
    Errand {
        conn: u64,
        request: u64,
        then: Then,
        model: Option<Model>,
        /// What it would be a task for.
        start: Option<Box<Start>>,
    },
    /// Whether a reader gets to what a task has shared with him: the task's end waits for it.
    Reach { id: u32, ended: Ended },
}

fn key_of(who: Identity) -> Key {
    Key { uid: who.uid, gid: who.gid }
}

impl Daemon {
    // ----- handing over

    pub(crate) fn launch(&mut self, start: Start) {
        let places = self.places(&start.spec);
        let rates = self.rates(&start);
        let token = self.journals.token(&self.config.node, start.id);
        if let Err(refusal) = self.check_hosts(&start) {
            return self.task_ended(start.id, Ended::badly(refusal));
        }
        if let Some(crews) = &self.crews {
            let run = Arc::new(Run::default());
            self.runs.insert(start.id, Running::Here(Arc::clone(&run)));
            let limits = self.limits.of(&start.quotas, &rates, Some(Arc::clone(&run)));
            return crews.task(Work { start, places, limits, run, token });
        }
        let limits = self.limits.of(&start.quotas, &rates, None);
        let id = start.id;
        match self.worker_of(key_of(start.identity)) {
            Ok(worker) => {
                let charged = limits.counts();
                let order = Order { start: start.clone(), token, charged, spaces: places.specs() };
                let there = There { worker, live: None, cancelled: None, limits, start };
                self.runs.insert(id, Running::There(Box::new(there)));
                if let Some(workers) = &mut self.workers {
                    workers.task(worker, order);
                }
            }
            Err(error) => self.task_ended(id, Ended::badly(no_worker(&error))),
        }
    }

    /// Whether tasks may go to all the hosts that this one names.
    fn check_hosts(&self, start: &Start) -> Result<(), Refusal> {
        match hosts(start).find_map(|host| self.directly.find(host).err()) {
            Some(error) => Err(of_failure(Failed::Place(error), &self.config.node).refusal),
            None => Ok(()),
        }
    }

    /// The number of a user's worker, which is started where there is none.
    pub(crate) fn worker_of(&mut self, key: Key) -> io::Result<u64> {
        let Some(workers) = &mut self.workers else {
            return Err(io::Error::other("this stager has no workers"));
        };
        if let Some(worker) = workers.of(key) {
            return Ok(worker);
        }
        let number = self.next_token;
        self.next_token += 1;
        workers.start(number, key)?;
        let stream = workers.stream(number).ok_or_else(|| io::Error::other("it is gone"))?;
        epoll::add(&self.epoll, stream, EventData::new_u64(number), EventFlags::IN)?;
        Ok(number)
    }

    /// Has something found out, which is answered later.
    pub(crate) fn find_out(
        &mut self,
        conn: u64,
        request: u64,
        uid: u32,
        quest: Quest,
    ) -> Result<(), Refusal> {
        if let Some(crews) = &self.crews {
            crews.errand(Errand { conn, request, task: quest });
            return Ok(());
        }
        if uid != 0 && self.workers.as_ref().is_some_and(|workers| workers.calls_of(uid) >= CALLS_MAX) {
            let text = format!(
                "{CALLS_MAX} plans and looks of user {uid} are under way, the most one may have; wait for some of them"
            );
            return Err(Refusal::new(Code::TOO_MANY_TASKS, text));
        }
        let start = match &quest {
            Quest::Plan { start, .. } | Quest::Entries { start, .. } => Some(start.clone()),
            Quest::Reach { .. } | Quest::Look { .. } => None,
        };
        if let Some(start) = &start {
            self.check_hosts(start)?;
        }
        let Handed { key, spaces, then, model, of } = handed(quest);
        let worker = self.worker_of(key).map_err(|error| no_worker(&error))?;
        let Some(workers) = &mut self.workers else { return Ok(()) };
        let call = workers.call(worker, &spaces, of);
        self.calls.insert(call, Call::Errand { conn, request, then, model, start });
        Ok(())
    }

    pub(crate) fn cancel_running(&mut self, id: u32) {
        match self.runs.get_mut(&id) {
            Some(Running::Here(run)) => run.cancel(),
            Some(Running::There(there)) => {
                there.cancelled.get_or_insert(self.looks);
                if let Some(workers) = &self.workers {
                    workers.tell(there.worker, ToWorker::Cancel { id }, Vec::new());
                }
            }
            None => {}
        }
    }

    // ----- what workers say

    pub(crate) fn hear_worker(&mut self, worker: u64) {
        let Some(workers) = &mut self.workers else { return };
        for word in workers.read(worker) {
            if let Err(why) = self.take_word(worker, word)
                && let Some(workers) = &mut self.workers
            {
                return workers.expel(worker, why);
            }
        }
        // Its end is told once.
        if let Some(workers) = &self.workers
            && !workers.is_open(worker)
            && let Some(stream) = workers.stream(worker)
        {
            let _ = epoll::delete(&self.epoll, stream);
        }
    }

    /// The error says what cannot be.
    fn take_word(&mut self, worker: u64, word: FromWorker) -> Result<(), String> {
        match word {
            FromWorker::Ready {} | FromWorker::Pong { .. } => Ok(()),
            FromWorker::Unfit { why } => Err(format!("cannot become him: {}", shortened(why))),
            FromWorker::Ended { id, ended } => {
                let ended = checked(ended)?;
                self.of_worker(worker, id)?;
                if let Some(workers) = &mut self.workers {
                    workers.task_over(worker, id);
                }
                self.worker_ended(id, ended);
                Ok(())
            }
            FromWorker::Makes { id, place, top } => {
                self.of_worker(worker, id)?;
                if place.len() > 2 * RESOURCE_PATH_MAX || !place.starts_with(&top) {
                    return Err("says that it makes something at an impossible place".into());
                }
                self.state.makes(id, &place, &top);
                self.noted_apart.push((worker, id));
                Ok(())
            }
            FromWorker::Received { id, place, bytes } => {
                let (job, dataspace) = self.target_of(worker, id)?;
                if place.len() > 2 * RESOURCE_PATH_MAX {
                    return Err("says that it has put something at an impossible place".into());
                }
                self.state.received(job, (&dataspace, &place), bytes);
                Ok(())
            }
            FromWorker::Charge { call, id, bytes } => {
                let taken = self.of_worker(worker, id)?.limits.take(bytes);
                self.tell_worker(worker, charged(call, taken), Vec::new());
                Ok(())
            }
            FromWorker::Puts { call, visit, bytes } => self.puts(worker, (call, visit), bytes),
            FromWorker::Names { visit, name } => {
                let name = checked_name(name.as_deref())?;
                self.visits.limits(worker, visit)?.named(name);
                Ok(())
            }
            FromWorker::Left { connection } => {
                self.visits.leave(worker, connection)?;
                if let Some(workers) = &mut self.workers {
                    workers.left(worker);
                }
                Ok(())
            }
            FromWorker::NeedJournal { id } => {
                let uid = self.of_worker(worker, id)?.start.identity.uid;
                let file = self.journal_of(id, uid).map(OwnedFd::from);
                let given = file.is_some();
                self.tell_worker(worker, ToWorker::Journal { id, given }, file.into_iter().collect());
                Ok(())
            }
            FromWorker::NeedLine { line, task, call, host, kind, body } => {
                let start = self.start_of(worker, task, call)?;
                if !hosts(&start).any(|named| named == host) {
                    return Err(format!("wants to go to '{}', which its task does not", shortened(host)));
                }
                let first = Ask::decode(kind, &body).map_err(|error| format!("asks nonsense: {error}"))?;
                if !self.workers.as_mut().is_some_and(|workers| workers.makes_line(worker)) {
                    let failed =
                        GreetError::Later("many connections are being made already; try again".into());
                    let (message, fds) = line_for(line, Err(failed));
                    self.tell_worker(worker, message, fds);
                    return Ok(());
                }
                let directly = self.directly.clone();
                Wanted { worker, line, host, first, start, directly }.make(&self.making, &self.teller);
                Ok(())
            }
            FromWorker::Progress { id, live } => {
                // 100 is for what has ended.
                let percent = live.percent.map(|percent| percent.min(99));
                self.of_worker(worker, id)?.live = Some(Live { percent, ..live });
                Ok(())
            }
            FromWorker::Answer { call, kind, body } => {
                let reply =
                    Reply::decode(kind, &body).map_err(|error| format!("answered nonsense: {error}"))?;
                self.answered(worker, call, Ok(reply))
            }
            FromWorker::Found { call, entries, more } => self.answered(worker, call, Err((entries, more))),
        }
    }

    pub(crate) fn tell_worker(&self, worker: u64, message: ToWorker, fds: Vec<OwnedFd>) {
        if let Some(workers) = &self.workers {
            workers.tell(worker, message, fds);
        }
    }

    /// A task that this worker was given.
    fn of_worker(&mut self, worker: u64, id: u32) -> Result<&mut There, String> {
        let is_at_it = self.workers.as_ref().is_some_and(|workers| workers.has_task(worker, id));
        match self.runs.get_mut(&id) {
            Some(Running::There(there)) if is_at_it && there.worker == worker => Ok(there),
            _ => Err(format!("speaks of task {id}, which it does not have")),
        }
    }

    /// What a worker's task or call is about.
    fn start_of(&mut self, worker: u64, task: u32, call: u64) -> Result<Box<Start>, String> {
        if task != 0 {
            return Ok(Box::new(self.of_worker(worker, task)?.start.clone()));
        }
        let asked = self.workers.as_ref().is_some_and(|workers| workers.has_call(worker, call));
        match self.calls.get(&call) {
            Some(Call::Errand { start: Some(start), .. }) if asked => Ok(start.clone()),
            _ => Err(format!("speaks of call {call}, which it does not have")),
        }
    }

    fn target_of(&mut self, worker: u64, id: u32) -> Result<(u32, String), String> {
        let start = &self.of_worker(worker, id)?.start;
        match &start.spec.dst {
            Some(Resource::Path { dataspace, host: None, .. }) => Ok((start.identity.job, dataspace.clone())),
            _ => Err(format!("has put something where task {id} puts nothing")),
        }
    }

    /// The journal of a task that runs; none when it has to do without.
    pub(crate) fn journal_of(&mut self, id: u32, uid: u32) -> Option<File> {
        self.journals.file(id, uid).unwrap_or_else(|error| {
            eprintln!("tidepool-staged: task {id} has no journal, and starts anew after a kill: {error}");
            None
        })
    }

    /// What was to be found out: a reply, or entries.
    fn answered(
        &mut self,
        worker: u64,
        call: u64,
        found: Result<Reply, (Vec<Leftover>, bool)>,
    ) -> Result<(), String> {
        if !self.workers.as_mut().is_some_and(|workers| workers.call_over(worker, call)) {
            return Err("answers what it was not asked".into());
        }
        self.call_over(call, found);
        Ok(())
    }

    fn call_over(&mut self, call: u64, found: Result<Reply, (Vec<Leftover>, bool)>) {
        match (self.calls.remove(&call), found) {
            (Some(Call::Errand { conn, request, then, .. }), Err((entries, more))) => {
                self.answer(conn, request, Answer::Found { entries, more, then });
            }
            (Some(Call::Errand { conn, request, model, .. }), Ok(reply)) => {
                self.answer(conn, request, Answer::Reply(estimated(reply, model)));
            }
            (Some(Call::Reach { id, ended }), Ok(Reply::Failed { refusal })) => {
                let busy_ms = ended.busy_ms;
                self.task_ended(id, Ended { busy_ms, ..Ended::badly(refusal) });
            }
            (Some(Call::Reach { id, ended }), _) => self.task_ended(id, ended),
            (None, _) => {}
        }
    }

    /// A task of a worker has ended there.
    fn worker_ended(&mut self, id: u32, ended: Ended) {
        let shared = match self.runs.get(&id) {
            Some(Running::There(there)) if ended.state == TaskState::Finished => reader_of(&there.start),
            _ => None,
        };
        match shared {
            Some(start) => self.ask_reader(id, start, ended),
            None => self.task_ended(id, ended),
        }
    }

    /// Only he himself can tell whether a reader gets to what is shared with him.
    fn ask_reader(&mut self, id: u32, start: Start, ended: Ended) {
        let places: Places = self.places(&start.spec);
        let worker = match self.worker_of(key_of(start.identity)) {
            Ok(worker) => worker,
            Err(error) => return self.task_ended(id, Ended::badly(no_worker(&error))),
        };
        let Some(workers) = &mut self.workers else { return };
        let order = Order { start, token: [0; 8], charged: false, spaces: places.specs() };
        let call = workers.call(worker, &places.specs(), |call| ToWorker::Reach { call, order });
        self.calls.insert(call, Call::Reach { id, ended });
    }

    pub(crate) fn task_ended(&mut self, id: u32, ended: Ended) {
        self.runs.remove(&id);
        if ended.state == TaskState::Finished {
            self.journals.remove(id);
        }
        if self.state.ended(self.now, id, ended) == Outcome::Over {
            self.over.push(id);
        }
    }

    /// What goes with a message could not be opened, so the worker has not got it.
    pub(crate) fn undelivered(&mut self, worker: u64, about: About, error: EndError) {
        let failed = || Failed::Place(PlaceError::End(error.clone()));
        match about {
            About::Task(id) => {
                let known = self.of_worker(worker, id).is_ok();
                if let Some(workers) = self.workers.as_mut().filter(|_| known) {
                    workers.task_over(worker, id);
                    self.task_ended(id, of_failure(failed(), &self.config.node));
                }
            }
            About::Call(call) => {
                let refusal = of_failure(failed(), &self.config.node).refusal;
                // One that is not asked any more.
                let _ = self.answered(worker, call, Ok(Reply::Failed { refusal }));
            }
            About::Worker => {}
        }
    }

    /// A worker's process has ended: so have its tasks, which can be resumed.
    pub(crate) fn worker_gone(&mut self, worker: u64, why: &str) {
        let Some(left) = self.workers.as_mut().and_then(|workers| workers.gone(worker, why)) else { return };
        let refusal = |what: &str| {
            let detail = format!("on {}: {}{what}", self.config.node, left.why);
            Refusal { code: Code::SYSTEM_ERROR, errno: Errno::EIO.0, detail }
        };
        let visited = self.visits.worker_gone(worker);
        if !left.tasks.is_empty() || !left.calls.is_empty() || visited > 0 {
            let text = format!(
                "{}; {} tasks of it have failed, and {visited} connections of other nodes have ended",
                left.why,
                left.tasks.len()
            );
            if let Some(workers) = &mut self.workers {
                workers.log(&text);
            }
        }
        let (task, call) = (refusal("; resume the task"), refusal("; ask again"));
        for id in left.tasks {
            let cancelled =
                matches!(self.runs.get(&id), Some(Running::There(there)) if there.cancelled.is_some());
            let ended = if cancelled { Ended::cancelled() } else { Ended::badly(task.clone()) };
            self.task_ended(id, ended);
        }
        for id in left.calls {
            self.call_over(id, Ok(Reply::Failed { refusal: call.clone() }));
        }
    }

    pub(crate) fn look_after_workers(&mut self) {
        // In a file system that does not answer nothing else ends a task.
        let stuck: Vec<u64> =
            self.runs.iter().filter_map(|(id, running)| self.stuck_worker(*id, running)).collect();
        for worker in stuck {
            if let Some(workers) = &mut self.workers {
                workers.expel(worker, format!("has not stopped a task for {STOP_LOOKS_MAX} s"));
            }
        }
        let lingering = self.visits.look_after();
        if let Some(workers) = &mut self.workers {
            for worker in lingering {
                workers.expel(worker, "does not let go of connections that have ended".into());
            }
            workers.look_after();
        }
    }

    /// The worker that has not stopped a task although it was told to, and has had the time.
    fn stuck_worker(&self, id: u32, running: &Running) -> Option<u64> {
        let Running::There(there) = running else { return None };
        let late = there.cancelled.is_some_and(|at| self.looks.saturating_sub(at) > STOP_LOOKS_MAX);
        // It may be a reader's answer that the task's end waits for.
        let workers = self.workers.as_ref()?;
        (late && workers.has_task(there.worker, id)).then_some(there.worker)
    }

    /// What workers wait for is in the journal.
    pub(crate) fn tell_noted(&mut self) {
        for (worker, id) in std::mem::take(&mut self.noted_apart) {
            self.tell_worker(worker, ToWorker::Noted { id }, Vec::new());
        }
    }

    /// The news that are about tasks of this process.
    pub(crate) fn hear_task(&mut self, news: News) {
        match news {
            News::Ended { id, ended } => self.task_ended(id, ended),
            News::Journal { id, answer } => {
                let uid = self.state.owner(id).unwrap_or_default();
                let file = self.journal_of(id, uid);
                // Who was cancelled does not wait any more.
                let _ = answer.send(file);
            }
            News::Line { worker, line, made } => {
                if let Some(workers) = &mut self.workers {
                    workers.made_line(worker);
                }
                let (message, fds) = line_for(line, made);
                self.tell_worker(worker, message, fds);
            }
            News::Undelivered { worker, about, error } => self.undelivered(worker, about, error),
            News::WorkerGone { worker, why } => self.worker_gone(worker, &why),
            _ => {}
        }
    }
}

/// Something to be found out, as a worker is asked for it.
struct Handed {
    key: Key,
    spaces: Vec<DataspaceSpec>,
    then: Then,
    model: Option<Model>,
    of: Box<dyn FnOnce(u64) -> ToWorker>,
}

fn handed(quest: Quest) -> Handed {
    let order = |start: &Start, places: &Places| Order {
        start: start.clone(),
        token: [0; 8],
        charged: false,
        spaces: places.specs(),
    };
    match quest {
        Quest::Plan { start, places, model } => {
            let (key, order) = (key_of(start.identity), order(&start, &places));
            let of = Box::new(|call| ToWorker::Plan { call, order });
            Handed { key, spaces: places.specs(), then: Then::Show, model, of }
        }
        Quest::Entries { start, places, after, max } => {
            let (key, order) = (key_of(start.identity), order(&start, &places));
            let of = Box::new(move |call| ToWorker::Entries { call, order, after, max: max as u32 });
            Handed { key, spaces: places.specs(), then: Then::Show, model: None, of }
        }
        Quest::Look { dataspaces, max, then } => {
            let of = Box::new(move |call| ToWorker::Look { call, spaces: dataspaces, max: max as u32 });
            // What others have left there only root sees.
            Handed { key: Key { uid: 0, gid: 0 }, spaces: Vec::new(), then, model: None, of }
        }
        Quest::Reach { start, places } => {
            let (key, order) = (key_of(start.identity), order(&start, &places));
            let of = Box::new(|call| ToWorker::Reach { call, order });
            Handed { key, spaces: places.specs(), then: Then::Show, model: None, of }
        }
    }
}

/// For a task that has shared a location with somebody: the same in the reader's name.
fn reader_of(start: &Start) -> Option<Start> {
    let permit = start.permit.as_ref().filter(|_| start.spec.op == Op::Permit)?;
    let user = permit.user.filter(|user| permit.readers.contains(user))?;
    let identity = Identity { uid: user, gid: Identity::OWN_GROUP, job: 0 };
    Some(Start { identity, origin: Origin { pid: 0, started: 0 }, ..start.clone() })
}

fn no_worker(error: &io::Error) -> Refusal {
    Refusal::new(Code::SYSTEM_ERROR, format!("no worker can be started: {error}"))
}

fn shortened(text: String) -> String {
    match text.char_indices().nth(DETAIL_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// What became of a connection that a worker wanted.
fn line_for(line: u64, made: Result<Dialed, GreetError>) -> (ToWorker, Vec<OwnedFd>) {
    let Dialed { answer, connection } = match made {
        Ok(dialed) => dialed,
        Err(error) => {
            let failed = Some(NoLine::from(error));
            return (ToWorker::Line { line, made: None, failed }, Vec::new());
        }
    };
    let mut body = Vec::new();
    answer.encode(&mut body);
    let (stream, seals) = connection.unzip();
    let made = Some(Made { kind: answer.kind(), body: body.into(), seals });
    (ToWorker::Line { line, made, failed: None }, stream.into_iter().map(OwnedFd::from).collect())
}

/// Whether bytes may be put somewhere, and when.
pub fn charged(call: u64, taken: Result<Duration, EndError>) -> ToWorker {
    match taken {
        Ok(wait) => ToWorker::Charged { call, wait_us: wait.as_micros() as u64, refused: None },
        Err(EndError { errno, detail, .. }) => {
            let refused = Refused { errno: errno.0, detail: detail.unwrap_or_default() };
            ToWorker::Charged { call, wait_us: 0, refused: Some(refused) }
        }
    }
}

/// An end as it can be.
fn checked(ended: Ended) -> Result<Ended, String> {
    if !matches!(ended.state, TaskState::Finished | TaskState::Failed | TaskState::Cancelled) {
        return Err(format!("says that a task has ended as {:?}", ended.state));
    }
    if (ended.state == TaskState::Finished) != (ended.refusal.code == Code::SUCCESS) {
        return Err("contradicts itself about how a task has ended".into());
    }
    let refusal = Refusal { detail: shortened(ended.refusal.detail), ..ended.refusal };
    Ok(Ended { refusal, ..ended })
}

/// A plan with what is known of earlier tasks.
fn estimated(reply: Reply, model: Option<Model>) -> Reply {
    match (reply, model) {
        (Reply::Planned { mut plan }, Some(model)) => {
            let ms = |seconds: f64| (seconds * 1000.0) as u64;
            plan.estimate_ms = model.estimate(plan.bytes, plan.files).map(ms);
            plan.lead_ms = model.lead(plan.bytes, plan.files).map(ms);
            Reply::Planned { plan }
        }
        (reply, _) => reply,
    }
}
