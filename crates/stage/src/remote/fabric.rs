//! Bulk data of connections between stagers over libfabric. Requests, and all that is small, stay on the
//! connection, whose end tells at once that the other side has died. Format: `docs/formats/13-remote-ends.md`.
//!
//! One thread takes what has completed for all connections of the process and wakes who waits for it.

use crate::sync::lock;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::fmt;
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidepool_fabric::{Buffer, Completion, Endpoint, FabricError, Peer};
use tidepool_transport::remote::Aside;

/// Pause while something is under way: for providers that cannot wake anybody.
const TICK: Duration = Duration::from_millis(1);
/// The same while nothing is.
const IDLE: Duration = Duration::from_millis(100);
/// How often who waits for a message looks whether the other side lives.
const LOOK_AROUND: Duration = Duration::from_millis(20);
/// How long one message may take; then the connection is made anew.
const MESSAGE_MAX: Duration = Duration::from_secs(60);
/// Bytes of one connection given to the provider and not gone yet.
const LEAVING_MAX: usize = 16 << 20;
/// The same of all connections: messages to those who died may stay. Beyond it new connections do without.
const STUCK_MAX: usize = 512 << 20;

fn failed(error: &FabricError) -> io::Error {
    io::Error::other(format!("fabric: {error}"))
}

/// The endpoint of this process. Clones share it.
#[derive(Clone)]
pub struct Fabric(Arc<Inner>);

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fabric({})", self.0.home.provider)
    }
}

struct Inner {
    home: Arc<Home>,
    pump: Option<JoinHandle<()>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.home.stopping.store(true, Ordering::Release);
        self.home.ring();
        if let Some(pump) = self.pump.take() {
            // Its panic was told when it happened.
            let _ = pump.join();
        }
    }
}

struct Home {
    endpoint: Endpoint<Label>,
    provider: String,
    /// Wakes the thread of completions.
    bell: OwnedFd,
    stopping: AtomicBool,
    /// Operations and bytes to be sent that the provider has.
    under_way: AtomicUsize,
    leaving: AtomicUsize,
    /// Bytes that have come here or left.
    moved: AtomicU64,
}

/// What an operation was.
enum Label {
    Send(Arc<Line>),
    Receive(Arc<Line>),
}

impl Label {
    fn line(&self) -> &Arc<Line> {
        match self {
            Label::Send(line) | Label::Receive(line) => line,
        }
    }
}

/// One connection's messages.
#[derive(Default)]
struct Line {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    leaving: usize,
    arrived: Option<(Buffer, usize)>,
    failure: Option<FabricError>,
}

impl Fabric {
    /// Opens an endpoint of `provider` (a name of `fi_info -l`), for some providers at the address `at` of this node.
    pub fn open(provider: &str, at: Option<&str>) -> Result<Fabric, String> {
        let endpoint = Endpoint::open(provider, at).map_err(|error| error.to_string())?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let home = Arc::new(Home {
            endpoint,
            provider: provider.into(),
            bell: bell.map_err(|error| format!("eventfd: {error}"))?,
            stopping: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            leaving: AtomicUsize::new(0),
            moved: AtomicU64::new(0),
        });
        let pumped = Arc::clone(&home);
        let thread = std::thread::Builder::new().name("fabric".into());
        let pump = thread.spawn(move || pumped.pump()).map_err(|error| format!("a thread: {error}"))?;
        Ok(Fabric(Arc::new(Inner { home, pump: Some(pump) })))
    }

    pub fn provider(&self) -> &str {
        &self.0.home.provider
    }

    /// Bytes that have come over it or left by it.
    pub fn moved(&self) -> u64 {
        self.0.home.moved.load(Ordering::Relaxed)
    }

    /// What the other side needs to send something here.
    pub(super) fn name(&self) -> &[u8] {
        self.0.home.endpoint.name()
    }

    /// The way for a connection's bulk data to the endpoint `name`: tags of messages there count from `there`,
    /// those of messages here from `here`.
    pub(super) fn way(
        &self,
        control: &TcpStream,
        name: &[u8],
        here: u64,
        there: u64,
    ) -> io::Result<Box<dyn Aside>> {
        let home = &self.0.home;
        if home.leaving.load(Ordering::Relaxed) > STUCK_MAX {
            return Err(io::Error::other("fabric: too much has not been taken by others"));
        }
        let control = control.try_clone()?;
        let peer = home.endpoint.insert(name).map_err(|e| failed(&e))?;
        Ok(Box::new(Way { fabric: self.clone(), line: Arc::default(), peer, control, here, there }))
    }
}

impl Home {
    /// Takes what has completed until the last connection is gone.
    fn pump(&self) {
        let mut done = Vec::new();
        while !self.stopping.load(Ordering::Acquire) {
            // What it has not delivered is missed by who waits for it, in the end.
            let _ = self.endpoint.completions(&mut done);
            for completion in done.drain(..) {
                self.deliver(completion);
            }
            self.rest();
        }
    }

    fn deliver(&self, completion: Completion<Label>) {
        let Completion { label, buffer, result } = completion;
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        let line = label.line();
        let mut state = lock(&line.state);
        if let Label::Send(_) = label {
            state.leaving -= buffer.len();
            self.leaving.fetch_sub(buffer.len(), Ordering::Relaxed);
        }
        match (&label, result) {
            (_, Err(error)) => state.failure = Some(error),
            (Label::Send(_), Ok(_)) => self.endpoint.give_back(buffer),
            (Label::Receive(_), Ok(len)) => state.arrived = Some((buffer, len)),
        }
        line.changed.notify_all();
    }

    /// Waits until there is something to take.
    fn rest(&self) {
        let fd = self.endpoint.wait_fd();
        if fd.is_some() && !self.endpoint.may_wait() {
            return;
        }
        let pause = if self.under_way.load(Ordering::Relaxed) > 0 { TICK } else { IDLE };
        let pause = Timespec { tv_sec: 0, tv_nsec: pause.subsec_nanos().into() };
        let mut fds = vec![PollFd::new(&self.bell, PollFlags::IN)];
        fds.extend(fd.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        // Interrupted or not, the next turn looks again.
        let _ = poll(&mut fds, Some(&pause));
        // It has not rung: nothing to read.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    fn ring(&self) {
        // It counts; only a full one, which is readable already, refuses.
        let _ = rustix::io::write(&self.bell, &1u64.to_le_bytes());
    }
}

/// One connection's share of the endpoint.
struct Way {
    fabric: Fabric,
    line: Arc<Line>,
    peer: Peer,
    /// Shows that the other side has died.
    control: TcpStream,
    /// Tags of the next messages.
    here: u64,
    there: u64,
}

impl Drop for Way {
    fn drop(&mut self) {
        let endpoint = &self.home().endpoint;
        endpoint.cancel(|label| Arc::ptr_eq(label.line(), &self.line));
        endpoint.remove(self.peer);
    }
}

impl Way {
    fn home(&self) -> &Home {
        &self.fabric.0.home
    }

    /// Waits until `ready` finds what it looks for.
    fn wait<T>(&self, mut ready: impl FnMut(&mut State) -> Option<T>) -> io::Result<T> {
        let until = Instant::now() + MESSAGE_MAX;
        let mut state = lock(&self.line.state);
        loop {
            if let Some(error) = &state.failure {
                return Err(failed(error));
            }
            if let Some(found) = ready(&mut state) {
                return Ok(found);
            }
            let waited = self.line.changed.wait_timeout(state, LOOK_AROUND);
            let (again, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            if timeout.timed_out() {
                drop(again);
                self.check(until)?;
                state = lock(&self.line.state);
            } else {
                state = again;
            }
        }
    }

    /// Fails when the other side has gone or the time is over.
    fn check(&self, until: Instant) -> io::Result<()> {
        let mut watched = [PollFd::new(&self.control, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut watched, Some(&now)).is_ok_and(|count| count > 0) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if Instant::now() > until {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "a message over the fabric"));
        }
        Ok(())
    }

    /// Gives a message to the provider, which may first need the other side to make a connection.
    fn post(&self, tag: u64, mut buffer: Buffer) -> io::Result<()> {
        let (home, len) = (self.home(), buffer.len());
        let until = Instant::now() + MESSAGE_MAX;
        lock(&self.line.state).leaving += len;
        home.leaving.fetch_add(len, Ordering::Relaxed);
        home.under_way.fetch_add(1, Ordering::Relaxed);
        let error = loop {
            let label = Label::Send(Arc::clone(&self.line));
            let refused = match home.endpoint.send(self.peer, tag, buffer, label) {
                Ok(()) => {
                    home.ring();
                    return Ok(());
                }
                Err(refused) => refused,
            };
            if !refused.error.again {
                break failed(&refused.error);
            }
            if let Err(error) = self.check(until) {
                break error;
            }
            buffer = refused.buffer;
            home.ring();
            std::thread::sleep(TICK);
        };
        lock(&self.line.state).leaving -= len;
        home.leaving.fetch_sub(len, Ordering::Relaxed);
        home.under_way.fetch_sub(1, Ordering::Relaxed);
        Err(error)
    }
}

impl Aside for Way {
    fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let len = parts.iter().map(|part| part.len()).sum();
        self.wait(|state| (state.leaving == 0 || state.leaving + len <= LEAVING_MAX).then_some(()))?;
        let mut buffer = self.home().endpoint.buffer(len).map_err(|e| failed(&e))?;
        let mut rest = &mut buffer[..];
        for part in parts {
            let (here, behind) = rest.split_at_mut(part.len());
            here.copy_from_slice(part);
            rest = behind;
        }
        self.post(self.there, buffer)?;
        self.there = self.there.wrapping_add(1);
        self.home().moved.fetch_add(len as u64, Ordering::Relaxed);
        Ok(())
    }

    fn receive(&mut self, into: &mut [u8]) -> io::Result<()> {
        let home = self.home();
        let buffer = home.endpoint.buffer(into.len()).map_err(|e| failed(&e))?;
        home.under_way.fetch_add(1, Ordering::Relaxed);
        let label = Label::Receive(Arc::clone(&self.line));
        if let Err(refused) = home.endpoint.receive(self.here, buffer, label) {
            home.under_way.fetch_sub(1, Ordering::Relaxed);
            return Err(failed(&refused.error));
        }
        home.ring();
        let (buffer, len) = self.wait(|state| state.arrived.take())?;
        if len != into.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message of another length than said"));
        }
        into.copy_from_slice(&buffer[..len]);
        home.endpoint.give_back(buffer);
        home.moved.fetch_add(len as u64, Ordering::Relaxed);
        self.here = self.here.wrapping_add(1);
        Ok(())
    }
}
