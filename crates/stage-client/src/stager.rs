//! A stager as a caller has it: connecting, greeting, connecting again.

use crate::at::StagerAt;
use crate::connection::{Broken, CallError, Connection};
use crate::error::StageError;
use rustix::process::{PTracer, Pid, set_ptracer};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidepool_transport::Secret;
use tidepool_transport::remote::{Door, open_door};
use tidepool_wire::stager::{Code, Reply, Request, STAGER_MAGIC, STAGER_VERSION};

/// How long a stager may take to greet back. After that the one of this node may take as long as it lives.
pub const HELLO_MS_MAX: u64 = 10_000;
/// How long the stager of another node may take to answer: its node may have lost its power, and it may be stopped.
pub const ANSWER_MS_MAX: u64 = 30_000;
/// How much longer where it counts or lists files first.
pub const COUNT_MS_MAX: u64 = 600_000;
/// How long a stager that was there may take to come back before a request fails.
pub const RECONNECT_MS_MAX: u64 = 2_000;
/// Between two attempts.
const RECONNECT_PAUSE: Duration = Duration::from_millis(10);

/// A stager. Its methods may be called from any number of threads at once.
pub struct Stager {
    way: Way,
    name: String,
    current: Mutex<Arc<Greeted>>,
    /// Of a stager of another node; see [`Stager::answering_within`].
    answer_max: Duration,
}

/// How a stager is reached, at first and when it was lost.
struct Way {
    at: StagerAt,
    /// For an address.
    secret: Option<Secret>,
}

impl Way {
    fn connect(&self) -> io::Result<OwnedFd> {
        match (&self.at, &self.secret) {
            (StagerAt::Address(address), Some(secret)) => Ok(open_door(address, secret, &Door::Control {})
                .map_err(|error| unanswered(error.into()))?
                .into()),
            (StagerAt::Address(_), None) => {
                Err(io::Error::new(io::ErrorKind::PermissionDenied, "no secret to prove"))
            }
            (StagerAt::Socket(path), _) => Ok(crate::locate::connect(path)?.into()),
        }
    }
}

/// A time that is over reads as "temporarily unavailable" otherwise.
fn unanswered(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(
            io::ErrorKind::TimedOut,
            "who listens there does not answer; is the stager stopped, or its node overloaded?",
        ),
        _ => error,
    }
}

/// A connection on which both sides know each other.
struct Greeted {
    connection: Connection,
    welcome: Welcome,
}

/// What a stager said of itself.
#[derive(Clone, Debug)]
struct Welcome {
    node: String,
    pid: u32,
    control: bool,
}

impl Stager {
    /// Connects to the stager that listens at `socket`. It will know the caller by the name of the program.
    pub fn connect(socket: impl AsRef<Path>) -> Result<Stager, StageError> {
        Stager::connect_as(socket, &own_name())
    }

    /// Connects under a name, which the stager shows to people and uses for nothing else.
    pub fn connect_as(socket: impl AsRef<Path>, name: &str) -> Result<Stager, StageError> {
        Stager::by(Way { at: StagerAt::Socket(socket.as_ref().to_path_buf()), secret: None }, name)
    }

    /// Connects to the stager of another node, which listens at `address` (`host:port`) to those who know the stagers' secret.
    /// They administer it, as on its control socket; tasks about memory are refused, which would be that of another node.
    /// One that does not answer in [`ANSWER_MS_MAX`] is taken for gone.
    pub fn connect_at(address: &str, secret: &Secret) -> Result<Stager, StageError> {
        let way = Way { at: StagerAt::Address(address.to_string()), secret: Some(secret.clone()) };
        Stager::by(way, &own_name())
    }

    fn by(way: Way, name: &str) -> Result<Stager, StageError> {
        let current = Mutex::new(Arc::new(greet(&way, name)?));
        let answer_max = Duration::from_millis(ANSWER_MS_MAX);
        Ok(Stager { way, name: name.to_string(), current, answer_max })
    }

    /// The stager of another node is taken for gone after so long without an answer, instead of [`ANSWER_MS_MAX`].
    pub fn answering_within(self, limit: Duration) -> Stager {
        Stager { answer_max: limit, ..self }
    }

    /// Where it is asked.
    pub fn at(&self) -> &StagerAt {
        &self.way.at
    }

    /// The stager's node.
    pub fn node(&self) -> String {
        self.current().welcome.node.clone()
    }

    /// The stager's process id.
    pub fn pid(&self) -> u32 {
        self.current().welcome.pid
    }

    /// Whether administration is allowed on this connection.
    pub fn is_control(&self) -> bool {
        self.current().welcome.control
    }

    fn current(&self) -> Arc<Greeted> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets the stager read and write this process's memory where Yama keeps processes of one user
    /// apart (`ptrace_scope` 1). Done before each submission of a task with memory; the kernel keeps one such process.
    pub fn allow_memory_access(&self) {
        if !matches!(self.way.at, StagerAt::Socket(_)) {
            return;
        }
        // No Yama, or a stager of another process namespace: nothing that could be allowed.
        let _ = Pid::from_raw(self.pid() as i32).map(|pid| set_ptracer(PTracer::ProcessID(pid)));
    }

    /// Asks and waits for the answer. A request that did not leave, or one that changes nothing, is repeated once
    /// on a new connection when the stager went away under it.
    pub(crate) fn call(&self, request: &Request) -> Result<Reply, StageError> {
        let greeted = self.current();
        let limit = self.answer_max(request);
        let broken = match greeted.connection.call(request, limit) {
            Ok(reply) => return answer(reply),
            Err(CallError::TooLong) => return Err(StageError::TooLong { request: request.name() }),
            Err(CallError::NotSent(broken)) => broken,
            Err(CallError::Sent(broken)) if !may_repeat(request) => {
                return Err(self.lost(request, broken, true));
            }
            Err(CallError::Sent(broken)) => broken,
        };
        if let Broken::Protocol(what) = broken {
            return Err(StageError::Protocol { at: self.way.at.clone(), what });
        }
        match self.again(&greeted)?.connection.call(request, limit) {
            Ok(reply) => answer(reply),
            Err(CallError::TooLong) => Err(StageError::TooLong { request: request.name() }),
            Err(CallError::NotSent(broken)) => Err(self.lost(request, broken, false)),
            Err(CallError::Sent(broken)) => Err(self.lost(request, broken, true)),
        }
    }

    /// How long the answer to a request is waited for: that of this node's stager as long as it lives.
    fn answer_max(&self, request: &Request) -> Option<Duration> {
        let asked = match request {
            Request::Wait { timeout_ms, .. } => timeout_ms.unwrap_or(0),
            Request::SubmitAndWait { timeout_ms, .. } => *timeout_ms,
            Request::Plan { .. } | Request::Entries { .. } | Request::Leftovers { .. } => COUNT_MS_MAX,
            _ => 0,
        };
        self.is_elsewhere().then(|| self.answer_max.saturating_add(Duration::from_millis(asked)))
    }

    /// The stager is another node's.
    pub(crate) fn is_elsewhere(&self) -> bool {
        matches!(self.way.at, StagerAt::Address(_))
    }

    /// A connection that is not `old`: one that another thread has made since, or a new one.
    fn again(&self, old: &Arc<Greeted>) -> Result<Arc<Greeted>, StageError> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&current, old) {
            *current = Arc::new(greet_patiently(&self.way, &self.name)?);
        }
        Ok(current.clone())
    }

    fn lost(&self, request: &Request, broken: Broken, sent: bool) -> StageError {
        let at = self.way.at.clone();
        match broken {
            Broken::Protocol(what) => StageError::Protocol { at, what },
            Broken::Ended(kind, text) => {
                StageError::Lost { at, request: request.name(), sent, source: io::Error::new(kind, text) }
            }
        }
    }

    /// For a reply that does not belong to the request.
    pub(crate) fn unexpected(&self, reply: &Reply) -> StageError {
        StageError::Protocol { at: self.way.at.clone(), what: format!("the answer {}", reply.name()) }
    }
}

fn answer(reply: Reply) -> Result<Reply, StageError> {
    match reply {
        Reply::Failed { refusal } => Err(StageError::Refused(refusal)),
        reply => Ok(reply),
    }
}

/// Whether asking twice is the same as asking once. No catch-all: a new request has to be decided on.
fn may_repeat(request: &Request) -> bool {
    match request {
        Request::Ping {}
        | Request::Status { .. }
        | Request::Wait { .. }
        | Request::List { .. }
        | Request::Plan { .. }
        | Request::Entries { .. }
        | Request::DaemonStatus {}
        | Request::Dataspaces {}
        | Request::JobReport { .. }
        | Request::Persisted {}
        | Request::Jobs {}
        | Request::Leftovers { .. }
        | Request::SetPolicy { .. }
        // What is being removed already is told again.
        | Request::CleanJob { .. }
        | Request::CleanOwn { .. }
        // What was released is not held any more; only the count may be that of the rest.
        | Request::ReleaseJob { .. }
        | Request::Unkeep { .. } => true,
        Request::Hello { .. }
        | Request::Submit { .. }
        | Request::SubmitMany { .. }
        | Request::SubmitHeld { .. }
        | Request::SubmitAndWait { .. }
        | Request::Cancel { .. }
        | Request::Resume { .. }
        | Request::Forget { .. }
        | Request::Persist { .. }
        | Request::RegisterDataspace { .. }
        | Request::UpdateDataspace { .. }
        | Request::UnregisterDataspace { .. }
        | Request::RegisterJob { .. }
        | Request::RegisterJobOf { .. }
        | Request::UpdateJob { .. }
        | Request::UnregisterJob { .. }
        | Request::AddProcess { .. }
        | Request::RemoveProcess { .. }
        | Request::Command { .. } => false,
    }
}

/// The name of this program.
fn own_name() -> String {
    let program = std::env::args_os().next().unwrap_or_default();
    Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Greets a stager that was there before and may be starting again.
fn greet_patiently(way: &Way, name: &str) -> Result<Greeted, StageError> {
    let give_up = Instant::now() + Duration::from_millis(RECONNECT_MS_MAX);
    loop {
        match greet(way, name) {
            Err(StageError::Connect { .. } | StageError::Lost { .. }) if Instant::now() < give_up => {
                std::thread::sleep(RECONNECT_PAUSE);
            }
            result => return result,
        }
    }
}

fn greet(way: &Way, name: &str) -> Result<Greeted, StageError> {
    let failed = |source| StageError::Connect { at: way.at.clone(), source };
    let connection = Connection::new(way.connect().map_err(failed)?);
    let hello = Request::Hello { magic: STAGER_MAGIC, version: STAGER_VERSION, name: name.to_string() };
    let limit = Duration::from_millis(HELLO_MS_MAX);
    let welcome = read_welcome(&way.at, connection.call(&hello, Some(limit)))?;
    connection.wait_at_most(None).map_err(failed)?;
    Ok(Greeted { connection, welcome })
}

fn read_welcome(at: &StagerAt, reply: Result<Reply, CallError>) -> Result<Welcome, StageError> {
    let at = at.clone();
    match reply {
        Ok(Reply::Welcome { version: STAGER_VERSION, node, pid, uid: _, control }) => {
            Ok(Welcome { node, pid, control })
        }
        Ok(Reply::Welcome { version, .. }) => Err(StageError::Version { at, theirs: version }),
        Ok(Reply::Failed { refusal }) => Err(StageError::Refused(refusal)),
        Ok(other) => {
            Err(StageError::Protocol { at, what: format!("{} in answer to a greeting", other.name()) })
        }
        Err(CallError::Sent(Broken::Protocol(what)) | CallError::NotSent(Broken::Protocol(what))) => {
            Err(StageError::Protocol { at, what })
        }
        Err(CallError::Sent(Broken::Ended(kind, text)) | CallError::NotSent(Broken::Ended(kind, text))) => {
            Err(StageError::Lost { at, request: "Hello", sent: false, source: greeting_error(kind, text) })
        }
        Err(CallError::TooLong) => Err(StageError::Refused(refused_name())),
    }
}

/// Says what has not been answered, and for how long.
fn greeting_error(kind: io::ErrorKind, text: String) -> io::Error {
    match kind {
        io::ErrorKind::TimedOut => io::Error::new(
            io::ErrorKind::TimedOut,
            format!("no answer to a greeting within {HELLO_MS_MAX} ms"),
        ),
        _ => io::Error::new(kind, text),
    }
}

fn refused_name() -> tidepool_wire::stager::Refusal {
    tidepool_wire::stager::Refusal::new(Code::BAD_ARGS, "the name of the program is too long to greet with")
}
