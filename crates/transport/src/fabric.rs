//! The connection to a daemon over libfabric: requests and replies as messages, beside the socket over which both
//! sides proved themselves and whose end tells of a death at once. Format: `docs/formats/09-fabric.md`.

use crate::Link;
use crate::patient::Patient;
use crate::sealed::Sealed;
use crate::socket::{Received, SocketLink};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{RecvFlags, recv};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidepool_fabric::{Buffer, Completion, Endpoint, FabricError, Peer};
use tidepool_wire::fabric::{REQUEST_TAG, RequestHead, SMALL_MAX, body_tag, reply_tags, split_frame};
use tidepool_wire::frame::{FLAG_ONE_WAY, HEADER_LEN, Header};
use tidepool_wire::message::{FabricToken, Reply, Request};

/// How long a provider that cannot wake anybody is left alone while something is under way.
const TICK: Duration = Duration::from_millis(1);

/// Whether this build can use a fabric at all.
pub const FABRIC_BUILT: bool = true;

/// What a message is to its link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Part {
    Reply(u64),
    Body(u64),
    Sent,
}

#[derive(Clone, Copy)]
struct Label {
    link: u64,
    part: Part,
}

/// The endpoints of a process: one for each of its addresses from which it talks to daemons, since opening one may
/// take a tenth of a second and some megabytes. Clones share them.
#[derive(Clone, Default)]
pub struct Endpoints(Arc<Mutex<HashMap<IpAddr, Arc<Home>>>>);

impl fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Endpoints(..)")
    }
}

impl Endpoints {
    fn at(&self, provider: &str, at: IpAddr) -> io::Result<Arc<Home>> {
        let mut all = lock(&self.0);
        if let Some(home) = all.get(&at) {
            return Ok(Arc::clone(home));
        }
        let endpoint = Endpoint::open(provider, Some(&at.to_string())).map_err(|e| failed(&e))?;
        let home = Arc::new(Home { endpoint, boxes: Mutex::default(), links: AtomicU64::new(0) });
        all.insert(at, Arc::clone(&home));
        Ok(home)
    }
}

/// One endpoint and what has arrived for whom.
struct Home {
    endpoint: Endpoint<Label>,
    boxes: Mutex<HashMap<u64, Mailbox>>,
    links: AtomicU64,
}

struct Mailbox {
    arrived: HashMap<Part, (Buffer, usize)>,
    /// Messages given to the provider and not gone yet.
    leaving: usize,
    failure: Option<FabricError>,
    /// Wakes the link's thread when another one has taken something for it.
    bell: OwnedFd,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Home {
    /// Takes what has arrived for any link; `me` needs no bell.
    fn progress(&self, me: u64) -> io::Result<()> {
        let mut done = Vec::new();
        self.endpoint.completions(&mut done).map_err(|e| failed(&e))?;
        let mut boxes = lock(&self.boxes);
        for Completion { label: Label { link, part }, buffer, result } in done {
            let Some(mailbox) = boxes.get_mut(&link) else { continue };
            match result {
                Err(error) => mailbox.failure = Some(error),
                Ok(_) if part == Part::Sent => self.endpoint.give_back(buffer),
                Ok(len) => drop(mailbox.arrived.insert(part, (buffer, len))),
            }
            if part == Part::Sent {
                mailbox.leaving -= 1;
            }
            if link != me {
                // It counts; only a full one, which is readable already, refuses.
                let _ = rustix::io::write(&mailbox.bell, &1u64.to_le_bytes());
            }
        }
        Ok(())
    }
}

/// A control socket and its share of an endpoint as one [`Link`].
pub struct FabricLink {
    control: SocketLink<Sealed<Patient>>,
    home: Arc<Home>,
    id: u64,
    bell: OwnedFd,
    daemon: Peer,
    token: FabricToken,
    /// First tags of what goes there and comes back.
    bodies: u64,
    replies: u64,
    sequence: u64,
    /// Requests without a reply so far, oldest first.
    waiting: VecDeque<u64>,
    meta: Vec<u8>,
    timeout: Duration,
}

impl Drop for FabricLink {
    fn drop(&mut self) {
        lock(&self.home.boxes).remove(&self.id);
        // Replies nobody waits for any more; what is on its way there stays until it is gone.
        self.home.endpoint.cancel(|label| label.link == self.id && label.part != Part::Sent);
        self.home.endpoint.remove(self.daemon);
    }
}

/// What the control socket shows.
#[derive(PartialEq, Eq)]
enum Control {
    Quiet,
    Data,
    Gone,
}

fn failed(error: &FabricError) -> io::Error {
    io::Error::other(format!("fabric: {error}"))
}

/// Asks a daemon that has proved itself over `control` for messages over `provider`.
pub fn open(
    mut control: SocketLink<Sealed<Patient>>,
    provider: &str,
    endpoints: &Endpoints,
    timeout: Duration,
) -> io::Result<Box<dyn Link>> {
    // The way to the daemon goes through this node's address that the control socket has found.
    let home = endpoints.at(provider, control.stream().get_ref().get_ref().local_addr()?.ip())?;
    let replies = u64::from_le_bytes(crate::random_bytes());
    let asked = Request::OpenFabric { name: home.endpoint.name().into(), replies };
    let (name, token, bodies) = match ask(&mut control, &asked)? {
        Reply::Fabric { name, token, bodies } => (name, token, bodies),
        Reply::Failed { detail, .. } => return Err(io::Error::other(detail)),
        other => return Err(io::Error::other(format!("answered {}", other.name()))),
    };
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let daemon = home.endpoint.insert(&name).map_err(|e| failed(&e))?;
    let id = home.links.fetch_add(1, Ordering::Relaxed);
    let mailbox = Mailbox { arrived: HashMap::new(), leaving: 0, failure: None, bell: bell.try_clone()? };
    lock(&home.boxes).insert(id, mailbox);
    Ok(Box::new(FabricLink {
        control,
        home,
        id,
        bell,
        daemon,
        token,
        bodies,
        replies,
        sequence: 0,
        waiting: VecDeque::new(),
        meta: Vec::new(),
        timeout,
    }))
}

fn ask(control: &mut SocketLink<Sealed<Patient>>, request: &Request) -> io::Result<Reply> {
    let mut meta = Vec::new();
    request.encode(&mut meta);
    let header = Header { kind: request.kind(), meta_len: meta.len() as u32, ..Header::default() };
    control.send(&header, &meta, &[])?;
    let received = control.receive(&mut [])?;
    Reply::decode(received.header.kind, received.meta)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

impl FabricLink {
    fn wakes(&self) -> bool {
        self.home.endpoint.wait_fd().is_some()
    }

    fn control(&self) -> Control {
        let mut byte = [0u8; 1];
        match recv(self.control.stream(), &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Err(rustix::io::Errno::AGAIN) => Control::Quiet,
            Ok((0, _)) | Err(_) => Control::Gone,
            Ok(_) => Control::Data,
        }
    }

    /// Gives a message to the provider, which may first need to hear of other things.
    fn post(&mut self, tag: u64, parts: [&[u8]; 3]) -> io::Result<()> {
        let mut buffer =
            self.home.endpoint.buffer(parts.iter().map(|part| part.len()).sum()).map_err(|e| failed(&e))?;
        let mut rest = &mut buffer[..];
        for part in parts {
            let (here, behind) = rest.split_at_mut(part.len());
            here.copy_from_slice(part);
            rest = behind;
        }
        let deadline = Instant::now() + self.timeout;
        let label = Label { link: self.id, part: Part::Sent };
        // Counted before, because it may be gone at once.
        self.mailbox(|mailbox| mailbox.leaving += 1);
        while let Err(refused) = self.home.endpoint.send(self.daemon, tag, buffer, label) {
            if !refused.error.again {
                return Err(failed(&refused.error));
            }
            buffer = refused.buffer;
            // The daemon has to take part in making the connection.
            self.ring()?;
            self.wait(deadline.min(Instant::now() + TICK))?;
            if Instant::now() > deadline {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        Ok(())
    }

    fn expect(&mut self, tag: u64, len: usize, part: Part) -> io::Result<()> {
        let buffer = self.home.endpoint.buffer(len).map_err(|e| failed(&e))?;
        let label = Label { link: self.id, part };
        self.home.endpoint.receive(tag, buffer, label).map_err(|refused| failed(&refused.error))
    }

    fn mailbox<T>(&self, look: impl FnOnce(&mut Mailbox) -> T) -> T {
        look(lock(&self.home.boxes).get_mut(&self.id).expect("a link has its mailbox until it is dropped"))
    }

    /// How much is there, and how much is leaving; an error when a message has failed.
    fn state(&self) -> io::Result<(usize, usize)> {
        self.mailbox(|mailbox| match mailbox.failure.take() {
            Some(error) => Err(failed(&error)),
            None => Ok((mailbox.arrived.len(), mailbox.leaving)),
        })
    }

    /// Tells the daemon to look, where its provider cannot.
    fn ring(&mut self) -> io::Result<()> {
        if self.wakes() {
            return Ok(());
        }
        let header = Header { kind: Request::Ring {}.kind(), flags: FLAG_ONE_WAY, ..Header::default() };
        self.control.send(&header, &[], &[])
    }

    /// To be called before the look at the mailbox that decides whether to wait: what comes later rings again.
    fn silence_bell(&self) {
        // Nothing to read: it has not rung.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    /// Takes what has arrived; when that was nothing, waits for more until `deadline`.
    fn wait(&mut self, deadline: Instant) -> io::Result<()> {
        let before = self.state()?;
        self.home.progress(self.id)?;
        if before != self.state()? || self.wakes() && !self.home.endpoint.may_wait() {
            return Ok(());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let left = if self.wakes() { left } else { left.min(TICK) };
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let control = PollFd::new(self.control.stream(), PollFlags::IN);
        let mut fds = vec![control, PollFd::new(&self.bell, PollFlags::IN)];
        fds.extend(self.home.endpoint.wait_fd().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) if !fds[0].revents().is_empty() => self.hear(),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The control socket says that there is something here, or that the daemon is gone.
    fn hear(&mut self) -> io::Result<()> {
        match self.control() {
            Control::Data if !self.wakes() => self.control.receive(&mut []).map(drop),
            Control::Quiet => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn take(&mut self, wanted: Part) -> io::Result<(Buffer, usize)> {
        let deadline = Instant::now() + self.timeout;
        loop {
            self.silence_bell();
            if let Some(arrived) = self.mailbox(|mailbox| mailbox.arrived.remove(&wanted)) {
                return Ok(arrived);
            }
            if Instant::now() > deadline {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.wait(deadline)?;
        }
    }

    /// A reply without its body, and where the body is: behind it or in a message of its own.
    fn take_reply(&mut self, bulk_max: usize) -> io::Result<(Header, Buffer, usize)> {
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_string());
        let sequence = self.waiting.pop_front().ok_or_else(|| invalid("no request waits for a reply"))?;
        let (message, len) = self.take(Part::Reply(sequence))?;
        let (header, body) = split_frame(&message[..len]).map_err(|e| invalid(&e.to_string()))?;
        if header.bulk_len as usize > bulk_max {
            return Err(invalid("more data than was asked for"));
        }
        if body.is_some() {
            return Ok((header, message, HEADER_LEN));
        }
        let (_, tag) = reply_tags(self.replies, sequence);
        self.expect(tag, header.body_len(), Part::Body(sequence))?;
        self.home.endpoint.give_back(message);
        let (body, len) = self.take(Part::Body(sequence))?;
        if len != header.body_len() {
            return Err(invalid("a body of another length than its header says"));
        }
        Ok((header, body, 0))
    }
}

impl Link for FabricLink {
    fn send(&mut self, header: &Header, meta: &[u8], bulk: &[u8]) -> io::Result<()> {
        let one_way = header.flags & FLAG_ONE_WAY != 0;
        let sequence = self.sequence;
        self.sequence += 1;
        if !one_way {
            let (tag, _) = reply_tags(self.replies, sequence);
            self.expect(tag, SMALL_MAX, Part::Reply(sequence))?;
            self.waiting.push_back(sequence);
        }
        let head = RequestHead { token: self.token, sequence, header: *header }.encode();
        if head.len() + meta.len() + bulk.len() <= SMALL_MAX {
            self.post(REQUEST_TAG, [&head, meta, bulk])?;
        } else {
            self.post(REQUEST_TAG, [&head, &[], &[]])?;
            self.post(body_tag(self.bodies, sequence), [meta, bulk, &[]])?;
        }
        self.ring()?;
        // Nobody may come by here soon to let the provider do its work.
        let deadline = Instant::now() + self.timeout;
        while one_way && Instant::now() < deadline {
            self.silence_bell();
            if self.state()?.1 == 0 {
                break;
            }
            self.wait(deadline)?;
        }
        Ok(())
    }

    fn receive(&mut self, bulk: &mut [u8]) -> io::Result<Received<'_>> {
        let (header, buffer, start) = self.take_reply(bulk.len())?;
        let (meta, data) = buffer[start..start + header.body_len()].split_at(header.meta_len as usize);
        self.meta.clear();
        self.meta.extend_from_slice(meta);
        bulk[..data.len()].copy_from_slice(data);
        self.home.endpoint.give_back(buffer);
        Ok(Received { header, meta: &self.meta })
    }

    fn ask_for_descriptors(&mut self, _request: &Request) -> io::Result<Option<(Reply, Vec<OwnedFd>)>> {
        Ok(None)
    }

    fn is_stale(&self) -> bool {
        match self.control() {
            Control::Quiet => false,
            // The daemon rang for a reply that was seen before.
            Control::Data => self.wakes(),
            Control::Gone => true,
        }
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.control.socket()
    }

    fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.timeout = timeout;
        self.control.set_timeout(timeout)
    }
}
