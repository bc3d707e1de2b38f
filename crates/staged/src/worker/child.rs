//! The worker: a process that has become one user, and does his tasks.
//!
//! ```text
//!  pipe ──▶ who reads (`reading.rs`) ──▶ threads for tasks, plans, looks (`tasks.rs`) and visits (`visits.rs`) ──▶ pipe
//! ```
//! It ends when its supervisor does.

use super::message::{FromWorker, Made, NoLine, Order, Refused, Setting, ToWorker, VERSION};
use super::pipe::Inbox;
use super::reading::{Reader, Reading};
use super::sandbox;
use super::visits::Visits;
use crate::errands::{self, Errand, Then};
use crate::execute::{self, ProcessUser, Setup};
use crate::places::{LazyFabric, Peers, Places, Ways, Whose};
use crate::start::lock;
use crate::tasks::{Answer, Crews, Hear, News, Run, Teller, Work};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidepool_shm::Spin;
use tidepool_stage::remote::{Answer as RemoteAnswer, Ask, Dial, Dialed, Greeted};
use tidepool_stage::{Charge, EndError, EndResult};
use tidepool_stage_state::Live;
use tidepool_transport::remote::GreetError;
use tidepool_types::Errno;
use tidepool_wire::stager::DataspaceKind;

/// How often progress of running tasks is told.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// Longest sleep between two looks at whether a task is cancelled.
const CANCEL_LATENCY: Duration = Duration::from_millis(50);
/// How long tasks may take to stop when the supervisor is gone.
const LEAVE_MAX: Duration = Duration::from_secs(2);

/// The process's standard input is the pipe.
pub fn run() -> ExitCode {
    if is_well(serve()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn is_well(served: io::Result<()>) -> bool {
    served.inspect_err(|error| eprintln!("tidepool-staged: worker: {error}")).is_ok()
}

pub(super) fn invalid(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

fn serve() -> io::Result<()> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let pipe = socket.try_clone()?;
    let mut inbox = Inbox::new(socket);
    let Some((ToWorker::Begin { version: VERSION, setting }, alive)) = inbox.next()? else {
        return Err(invalid("this is for the stager itself to start, of the same release"));
    };
    // The lock goes with the process, and no sooner.
    std::mem::forget(alive);
    let entered = sandbox::enter(&setting);
    let desk = Arc::new(Desk::new(pipe, Reading::new(inbox)));
    if let Err(why) = entered {
        desk.tell(&FromWorker::Unfit { why });
        return Ok(());
    }
    desk.tell(&FromWorker::Ready {});
    let worker = Arc::new(Worker::start(&setting, desk)?);
    let deputy = Arc::clone(&worker);
    let take_turns = move || {
        deputy.desk.reading.take_over(Reader::Other);
        // Whichever of the two sees the end, it is the process's.
        std::process::exit(i32::from(!is_well(deputy.serve(Reader::Other))))
    };
    std::thread::Builder::new().name("deputy".into()).spawn(take_turns)?;
    worker.serve(Reader::One)
}

struct Worker {
    desk: Arc<Desk>,
    setup: Arc<Setup>,
    teller: Teller,
    crews: Crews,
    visits: Visits,
    /// Threads that read are not gentle, so they do no tasks where those have to be.
    gentle: bool,
}

impl Worker {
    fn start(setting: &Setting, desk: Arc<Desk>) -> io::Result<Worker> {
        let fabric = Arc::new(LazyFabric::new(&setting.fabric, &setting.fabric_at));
        let setup = Arc::new(Setup {
            node: setting.node.clone(),
            threads: setting.threads as usize,
            peers: Peers::Asking(Arc::new(Asking(Arc::clone(&desk))), Arc::clone(&fabric)),
            verify_disk: setting.verify_disk,
            own: ProcessUser::ask().map_err(io::Error::other)?,
        });
        let teller = Teller::new(Arc::clone(&desk) as Arc<dyn Hear>);
        let crews = Crews::start((setting.workers, setting.gentle), &setup, &teller)?;
        let telling = Arc::clone(&desk);
        std::thread::Builder::new().name("progress".into()).spawn(move || telling.tell_progress())?;
        let visits = Visits::new(Arc::clone(&desk), fabric, setting.verify_disk);
        Ok(Worker { desk, setup, teller, crews, visits, gentle: setting.gentle })
    }

    /// Reads, in turns with the other one, until the supervisor is gone.
    fn serve(&self, me: Reader) -> io::Result<()> {
        let reading = &self.desk.reading;
        // What comes next is asked for by who has just been answered, by way of himself and the event loop, which takes as long as a small
        // file does. Where tasks are gentle somebody else does them, and no core is kept awake for that.
        let mut spin = if self.gentle { Spin::of_work() } else { Spin::of_calls() };
        let served = loop {
            let work = match self.read(&mut reading.inbox(), &mut spin) {
                Ok(Some(work)) => work,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            };
            let work = || {
                let (id, ended) = (work.start.id, execute::run(&self.setup, &work, &self.teller));
                self.crews.done();
                self.teller.tell(News::Ended { id, ended });
            };
            if !reading.work(me, work) {
                reading.take_over(me);
            }
        };
        self.leave();
        served
    }

    /// Until there is a task that the reader should do itself; none when the supervisor is gone.
    fn read(&self, inbox: &mut Inbox, spin: &mut Spin) -> io::Result<Option<Work>> {
        loop {
            while let Some((message, fds)) = inbox.take()? {
                match message {
                    ToWorker::Task { order } if !self.gentle => self.crews.leave(self.task(order, fds)?),
                    message => self.obey(message, fds)?,
                }
            }
            if !self.gentle
                && let Some(work) = self.crews.lend_a_hand()
            {
                return Ok(Some(work));
            }
            if !self.fill(inbox, spin)? {
                return Ok(None);
            }
        }
    }

    /// Takes what comes next, awake for a moment and then asleep, and wakes threads for tasks that wait meanwhile. False when the
    /// supervisor is gone.
    fn fill(&self, inbox: &mut Inbox, spin: &mut Spin) -> io::Result<bool> {
        let filled = spin.until(|| {
            self.crews.look();
            inbox.fill_at_once().transpose()
        });
        if let Some(filled) = filled {
            return filled;
        }
        loop {
            let timeout = self.crews.look();
            let timeout = timeout.map(|time| Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() });
            match poll(&mut [PollFd::new(inbox.socket(), PollFlags::IN)], timeout.as_ref()) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return inbox.fill(),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn obey(&self, message: ToWorker, fds: Vec<OwnedFd>) -> io::Result<()> {
        match message {
            ToWorker::Begin { .. } => return Err(invalid("a second beginning")),
            ToWorker::Task { order } => self.crews.task(self.task(order, fds)?),
            ToWorker::Cancel { id } => {
                if let Some(run) = lock(&self.desk.runs).get(&id) {
                    run.cancel();
                }
            }
            ToWorker::Noted { id } => self.desk.noted(id),
            ToWorker::Charged { call, wait_us, refused } => {
                self.desk.charged(call, Duration::from_micros(wait_us), refused)
            }
            ToWorker::Journal { id, given } => {
                let file = fds.into_iter().next().filter(|_| given).map(File::from);
                self.desk.journal(id, file);
            }
            ToWorker::Plan { call, order } => {
                let places = places(&order, fds)?;
                let start = Box::new(order.start);
                self.errand(call, errands::Task::Plan { start, places, model: None });
            }
            ToWorker::Entries { call, order, after, max } => {
                let places = places(&order, fds)?;
                let start = Box::new(order.start);
                self.errand(call, errands::Task::Entries { start, places, after, max: max as usize });
            }
            ToWorker::Line { line, made, failed } => self.desk.line(line, dialed(made, failed, fds)?),
            ToWorker::Reach { call, order } => {
                let places = places(&order, fds)?;
                self.errand(call, errands::Task::Reach { start: Box::new(order.start), places });
            }
            ToWorker::Look { call, spaces, max } => {
                let task = errands::Task::Look { dataspaces: spaces, max: max as usize, then: Then::Show };
                self.errand(call, task);
            }
            ToWorker::Serve { connection, visit, session, request, seals, opening } => {
                let (stream, asked) = Visits::asked((visit, session), opening, fds)?;
                self.visits.serve(connection, Greeted::new(stream, seals, request), asked);
            }
            ToWorker::Ping { number } => self.desk.tell(&FromWorker::Pong { number }),
        }
        Ok(())
    }

    /// A task as it is done.
    fn task(&self, order: Order, fds: Vec<OwnedFd>) -> io::Result<Work> {
        let id = order.start.id;
        let run = Arc::new(Run::default());
        lock(&self.desk.runs).insert(id, Arc::clone(&run));
        let limits: Arc<dyn Charge> = Arc::new(Asked {
            desk: Arc::clone(&self.desk),
            id,
            counts: order.charged,
            run: Arc::clone(&run),
        });
        let places = places(&order, fds)?;
        Ok(Work { start: order.start, places, limits, run, token: order.token })
    }

    fn errand(&self, call: u64, task: errands::Task) {
        self.crews.errand(Errand { conn: 0, request: call, task });
    }

    /// The supervisor is gone: what runs stops where it is, and goes on with another one.
    fn leave(&self) {
        let until = Instant::now() + LEAVE_MAX;
        self.desk.gone();
        while !lock(&self.desk.runs).is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The dataspaces of an order with their roots.
fn places(order: &Order, fds: Vec<OwnedFd>) -> io::Result<Places> {
    let (mut places, mut roots) = (Places::default(), fds.into_iter());
    for spec in &order.spaces {
        let is_directory = matches!(spec.kind, DataspaceKind::Local | DataspaceKind::Shared);
        let root = match is_directory {
            true => Some(roots.next().ok_or_else(|| invalid("a dataspace without its root"))?),
            false => None,
        };
        places.add_with(spec.clone(), root);
    }
    Ok(places)
}

/// What the supervisor has got of another stager.
fn dialed(
    made: Option<Made>,
    failed: Option<NoLine>,
    fds: Vec<OwnedFd>,
) -> io::Result<Result<Dialed, GreetError>> {
    let Made { kind, body, seals } = match (made, failed) {
        (_, Some(failed)) => return Ok(Err(failed.into())),
        (Some(made), None) => made,
        (None, None) => return Err(invalid("neither a connection nor why there is none")),
    };
    let answer = RemoteAnswer::decode(kind, &body).map_err(|error| invalid(error.to_string()))?;
    let stream = fds.into_iter().next().map(TcpStream::from);
    Ok(Ok(Dialed { answer, connection: stream.zip(seals) }))
}

/// Answers to what tasks have asked the supervisor for.
type Calls<K, V> = Mutex<HashMap<K, Sender<V>>>;

/// What all threads tell the supervisor, and hear of it.
pub(super) struct Desk {
    pipe: Mutex<UnixStream>,
    reading: Reading,
    runs: Mutex<HashMap<u32, Arc<Run>>>,
    notes: Calls<u32, ()>,
    journals: Calls<u32, Option<File>>,
    charges: Calls<u64, Result<Duration, Refused>>,
    lines: Calls<u64, Result<Dialed, GreetError>>,
    last_call: AtomicU64,
}

impl Desk {
    fn new(pipe: UnixStream, reading: Reading) -> Desk {
        Desk {
            pipe: Mutex::new(pipe),
            reading,
            runs: Mutex::default(),
            notes: Mutex::default(),
            journals: Mutex::default(),
            charges: Mutex::default(),
            lines: Mutex::default(),
            last_call: AtomicU64::new(0),
        }
    }

    pub(super) fn tell(&self, message: &FromWorker) {
        // A supervisor that is gone is seen by who reads.
        let _ = lock(&self.pipe).write_all(&message.frame());
    }

    /// Says that bytes are about to be put somewhere; how long to wait before.
    pub(super) fn charge(&self, message: impl FnOnce(u64) -> FromWorker) -> EndResult<Duration> {
        let fail = |errno, detail| EndError { errno, operation: "write", detail: Some(detail) };
        // 0 means that nobody waits.
        let call = self.last_call.fetch_add(1, Ordering::Relaxed) + 1;
        let (tell, answer) = channel();
        lock(&self.charges).insert(call, tell);
        self.tell(&message(call));
        self.reading.waits();
        match answer.recv() {
            Ok(Ok(wait)) => Ok(wait),
            Ok(Err(refused)) => Err(fail(Errno(refused.errno), refused.detail)),
            Err(_) => Err(fail(Errno::ECANCELED, "the stager is ending".into())),
        }
    }

    fn noted(&self, id: u32) {
        if let Some(noted) = lock(&self.notes).remove(&id) {
            let _ = noted.send(());
        }
    }

    fn journal(&self, id: u32, file: Option<File>) {
        if let Some(answer) = lock(&self.journals).remove(&id) {
            let _ = answer.send(file);
        }
    }

    fn charged(&self, call: u64, wait: Duration, refused: Option<Refused>) {
        if let Some(answer) = lock(&self.charges).remove(&call) {
            let _ = answer.send(refused.map_or(Ok(wait), Err));
        }
    }

    fn line(&self, line: u64, made: Result<Dialed, GreetError>) {
        if let Some(answer) = lock(&self.lines).remove(&line) {
            let _ = answer.send(made);
        }
    }

    /// Nobody answers any more.
    fn gone(&self) {
        for run in lock(&self.runs).values() {
            run.cancel();
        }
        lock(&self.notes).clear();
        lock(&self.journals).clear();
        lock(&self.charges).clear();
        lock(&self.lines).clear();
    }

    fn tell_progress(&self) {
        let mut told: HashMap<u32, Live> = HashMap::new();
        loop {
            std::thread::sleep(PROGRESS_EVERY);
            let runs: Vec<(u32, Arc<Run>)> =
                lock(&self.runs).iter().map(|(id, run)| (*id, Arc::clone(run))).collect();
            told.retain(|id, _| runs.iter().any(|(running, _)| running == id));
            for (id, run) in runs {
                let live = run.live();
                if told.get(&id) != Some(&live) {
                    told.insert(id, live);
                    self.progress(id, live);
                }
            }
        }
    }

    /// Not of a task whose end has been told.
    fn progress(&self, id: u32, live: Live) {
        let runs = lock(&self.runs);
        if runs.contains_key(&id) {
            self.tell(&FromWorker::Progress { id, live });
        }
    }
}

impl Hear for Desk {
    fn hear(&self, news: News) {
        match news {
            News::Ended { id, ended } => {
                let mut runs = lock(&self.runs);
                runs.remove(&id);
                self.tell(&FromWorker::Ended { id, ended });
            }
            News::Makes { id, place, top, noted } => {
                lock(&self.notes).insert(id, noted);
                self.tell(&FromWorker::Makes { id, place: place.into(), top: top.into() });
                self.reading.waits();
            }
            News::Journal { id, answer } => {
                lock(&self.journals).insert(id, answer);
                self.tell(&FromWorker::NeedJournal { id });
                self.reading.waits();
            }
            News::Received { task, place, bytes, .. } => {
                self.tell(&FromWorker::Received { id: task, place: place.into(), bytes });
            }
            News::Answer { request: call, answer, .. } => self.tell(&answered(call, answer)),
            // Other stagers come to the supervisor.
            News::Peer(_)
            | News::Arrived(_)
            | News::Guest { .. }
            | News::Trust(_)
            | News::PeerLeft(_)
            | News::WorkerGone { .. }
            | News::Undelivered { .. }
            | News::Line { .. } => {}
        }
    }
}

fn answered(call: u64, answer: Answer) -> FromWorker {
    match answer {
        Answer::Reply(reply) => {
            let mut body = Vec::new();
            reply.encode(&mut body);
            FromWorker::Answer { call, kind: reply.kind(), body: body.into() }
        }
        Answer::Found { entries, more, .. } => FromWorker::Found { call, entries, more },
    }
}

/// Connections to other stagers, which the supervisor makes: only he has the secret.
struct Asking(Arc<Desk>);

impl Ways for Asking {
    fn way(&self, whose: Whose, host: &str, run: &Arc<Run>) -> Arc<dyn Dial> {
        Arc::new(Line { desk: Arc::clone(&self.0), whose, host: host.into(), run: Arc::clone(run) })
    }
}

struct Line {
    desk: Arc<Desk>,
    whose: Whose,
    host: String,
    run: Arc<Run>,
}

impl Dial for Line {
    fn dial(&self, first: &Ask) -> Result<Dialed, GreetError> {
        let line = self.desk.last_call.fetch_add(1, Ordering::Relaxed);
        let (tell, answer) = channel();
        lock(&self.desk.lines).insert(line, tell);
        let (task, call) = match self.whose {
            Whose::Task(id) => (id, 0),
            Whose::Call(call) => (0, call),
        };
        let mut body = Vec::new();
        first.encode(&mut body);
        let (host, kind, body) = (self.host.clone(), first.kind(), body.into());
        self.desk.tell(&FromWorker::NeedLine { line, task, call, host, kind, body });
        self.desk.reading.waits();
        let made = loop {
            match answer.recv_timeout(CANCEL_LATENCY) {
                Ok(made) => break made,
                Err(RecvTimeoutError::Timeout) if !self.run.is_cancelled() => {}
                Err(_) => break Err(GreetError::Lost(io::ErrorKind::ConnectionAborted.into())),
            }
        };
        lock(&self.desk.lines).remove(&line);
        made
    }
}

/// Limits that the supervisor keeps: each range is asked for.
struct Asked {
    desk: Arc<Desk>,
    id: u32,
    counts: bool,
    run: Arc<Run>,
}

impl Charge for Asked {
    fn charge(&self, bytes: u64) -> EndResult<()> {
        if !self.counts {
            return Ok(());
        }
        let id = self.id;
        let wait = self.desk.charge(|call| FromWorker::Charge { call, id, bytes })?;
        let until = Instant::now() + wait;
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            if self.run.is_cancelled() {
                return Ok(());
            }
            std::thread::sleep(left.min(CANCEL_LATENCY));
        }
        Ok(())
    }

    fn counts(&self) -> bool {
        self.counts
    }
}
