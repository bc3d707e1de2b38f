//! Requests and replies as messages over libfabric. Format: `docs/formats/09-fabric.md`.
//!
//! ```text
//! request: NotAsked ──▶ Asked ──▶ Here ──▶ served, reply sent
//!                                  ▲ its body came with it
//! ```
//! One endpoint serves all clients. A client proves itself over its socket and gets a token there; a message without
//! a token that was given out is dropped. Requests of one client are served in the order in which they came.

use crate::counters::Counters;
use crate::serve::Service;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use tidepool_fabric::{Buffer, Completion, Endpoint, FabricError, Peer, Refused};
use tidepool_transport::random_bytes;
use tidepool_types::SessionId;
use tidepool_wire::fabric::{PREFIX_LEN, REQUEST_TAG, RequestHead, SMALL_MAX, body_tag, reply_tags};
use tidepool_wire::frame::{BULK_MAX, HEADER_LEN, Header, META_MAX};
use tidepool_wire::message::{Bytes, FabricToken, Reply};

/// Requests that may arrive before a thread looks; the provider keeps further ones.
const REQUEST_BUFFERS: usize = 64;
/// Requests of one client whose bodies are asked for; those of later ones stay where they are.
const BODIES_MAX: usize = 4;
/// Requests of one client that may wait. One that keeps to the rules has far fewer.
const WAITING_MAX: usize = 1024;
/// Bytes of replies that a client may leave untaken before its further requests wait.
const UNTAKEN_MAX: usize = 4 * (META_MAX + BULK_MAX);

type Token = [u8; 32];

/// What a message is to this side.
enum Label {
    /// The first message of anybody's request.
    Request,
    Body {
        token: Token,
        sequence: u64,
    },
    Reply {
        client: Arc<Client>,
        len: usize,
    },
}

/// A client that has proved itself.
struct Client {
    token: Token,
    /// Its connection.
    conn: u64,
    session: SessionId,
    /// `None` when its address is forgotten: nothing more may be sent there.
    peer: Mutex<Option<Peer>>,
    bodies: u64,
    replies: u64,
    /// Bytes of replies that it has not taken yet.
    untaken: AtomicUsize,
    closed: AtomicBool,
    inbox: Mutex<Inbox>,
}

#[derive(Default)]
struct Inbox {
    queue: VecDeque<Waiting>,
    /// Some thread serves it.
    busy: bool,
}

struct Waiting {
    sequence: u64,
    header: Header,
    body: Body,
}

enum Body {
    NotAsked,
    Asked,
    Here { message: Buffer, start: usize },
}

/// The daemon's endpoint and those who may use it.
pub struct Fabric {
    endpoint: Endpoint<Label>,
    clients: RwLock<HashMap<Token, Arc<Client>>>,
    /// One thread takes completions at a time: they are in the order of arrival.
    taking: Mutex<()>,
    /// Messages that the provider did not take yet.
    refused: Mutex<VecDeque<(u64, Buffer, Arc<Client>)>>,
    /// Bodies and replies under way.
    under_way: AtomicUsize,
    /// A client rang.
    rung: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where an endpoint of a daemon that others reach as `advertise` is to be: there, or where it listens.
fn address(listens: Option<SocketAddr>, advertise: &str) -> String {
    match listens {
        Some(at) if !at.ip().is_unspecified() => at.ip().to_string(),
        _ => advertise.trim_start_matches('[').trim_end_matches(']').to_string(),
    }
}

impl Fabric {
    pub fn open(provider: &str, listens: Option<SocketAddr>, advertise: &str) -> Result<Fabric, String> {
        let endpoint =
            Endpoint::open(provider, Some(&address(listens, advertise))).map_err(|e| e.to_string())?;
        let fabric = Fabric {
            endpoint,
            clients: RwLock::default(),
            taking: Mutex::default(),
            refused: Mutex::default(),
            under_way: AtomicUsize::new(0),
            rung: AtomicBool::new(false),
        };
        for _ in 0..REQUEST_BUFFERS {
            fabric.expect_request().map_err(|e| e.to_string())?;
        }
        Ok(fabric)
    }

    /// Readable when there is something to do, after [`Fabric::turn`]. `None` when the provider has no such thing.
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.endpoint.wait_fd()
    }

    /// True when somebody has to come by soon, although nothing will tell.
    pub fn needs_tick(&self) -> bool {
        let silent = self.wait_fd().is_none() && self.under_way.load(Ordering::Acquire) > 0;
        silent || !lock(&self.refused).is_empty()
    }

    pub fn ring(&self) {
        self.rung.store(true, Ordering::Release);
    }

    pub fn take_ring(&self) -> bool {
        self.rung.swap(false, Ordering::AcqRel)
    }

    /// Lets the client of a connection send messages.
    pub fn admit(
        &self,
        conn: u64,
        session: SessionId,
        name: &Bytes,
        replies: u64,
    ) -> io::Result<(Token, Reply)> {
        let peer = self.endpoint.insert(name).map_err(io::Error::other)?;
        let (token, bodies) = (random_bytes(), u64::from_le_bytes(random_bytes()));
        let client = Client {
            token,
            conn,
            session,
            peer: Mutex::new(Some(peer)),
            bodies,
            replies,
            untaken: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            inbox: Mutex::default(),
        };
        self.clients.write().unwrap_or_else(PoisonError::into_inner).insert(token, Arc::new(client));
        let reply = Reply::Fabric { name: self.endpoint.name().into(), token: FabricToken(token), bodies };
        Ok((token, reply))
    }

    /// The connection of a client has ended.
    pub fn dismiss(&self, token: Token) {
        let client = self.clients.write().unwrap_or_else(PoisonError::into_inner).remove(&token);
        let Some(client) = client else { return };
        client.closed.store(true, Ordering::Release);
        lock(&client.inbox).queue.clear();
        lock(&self.refused).retain(|(_, buffer, of)| {
            let other = of.token != token;
            if !other {
                of.untaken.fetch_sub(buffer.len(), Ordering::AcqRel);
            }
            other
        });
        self.endpoint.cancel(|label| matches!(label, Label::Body { token: of, .. } if *of == token));
        self.forget(&client);
    }

    /// Forgets the address of a client that is gone, unless messages to it are still under way.
    fn forget(&self, client: &Client) {
        let mut peer = lock(&client.peer);
        if client.closed.load(Ordering::Acquire)
            && client.untaken.load(Ordering::Acquire) == 0
            && let Some(peer) = peer.take()
        {
            self.endpoint.remove(peer);
        }
    }

    fn client(&self, token: &Token) -> Option<Arc<Client>> {
        self.clients.read().unwrap_or_else(PoisonError::into_inner).get(token).cloned()
    }

    fn expect_request(&self) -> Result<(), FabricError> {
        let buffer = self.endpoint.buffer(SMALL_MAX)?;
        self.endpoint.receive(REQUEST_TAG, buffer, Label::Request).map_err(|refused| refused.error)
    }

    /// Takes what has arrived and serves it. Between the two, `rearm` lets other threads wait for more; `after`
    /// hears of connections to end (false) and of those whose clients have to be told to look (true).
    pub fn turn(&self, service: &Service, rearm: impl FnOnce(), after: impl Fn(u64, bool)) {
        let mut found = Vec::new();
        {
            let _taking = lock(&self.taking);
            loop {
                let mut done = Vec::new();
                // A queue that fails tells nothing of single messages; the clients' sockets and time-outs do.
                let read = self.endpoint.completions(&mut done);
                done.into_iter().for_each(|done| found.extend(self.arrived(service, done)));
                self.send_refused();
                if read.is_err() || self.wait_fd().is_none() || self.endpoint.may_wait() {
                    break;
                }
            }
        }
        rearm();
        found.iter().for_each(|client| self.run(service, client, &after));
    }

    /// One message has arrived, or is gone; the client that it belongs to.
    fn arrived(&self, service: &Service, done: Completion<Label>) -> Option<Arc<Client>> {
        let Completion { label, buffer, result } = done;
        match label {
            Label::Request => {
                // Without memory for it, one buffer fewer waits for requests.
                let _ = self.expect_request();
                match result {
                    Ok(len) => self.request(service, buffer, len),
                    // Longer than any first message is.
                    Err(_) => {
                        service.refused();
                        None
                    }
                }
            }
            Label::Body { token, sequence } => {
                self.under_way.fetch_sub(1, Ordering::AcqRel);
                let client = self.client(&token)?;
                let mut inbox = lock(&client.inbox);
                let waiting = inbox.queue.iter_mut().find(|waiting| waiting.sequence == sequence)?;
                match result {
                    Ok(len) if len == waiting.header.body_len() => {
                        waiting.body = Body::Here { message: buffer, start: 0 };
                    }
                    // Without its body no later request can be served: the client hears nothing and gives up.
                    _ => client.closed.store(true, Ordering::Release),
                }
                drop(inbox);
                Some(client)
            }
            Label::Reply { client, len } => {
                self.endpoint.give_back(buffer);
                self.under_way.fetch_sub(1, Ordering::AcqRel);
                client.untaken.fetch_sub(len, Ordering::AcqRel);
                self.forget(&client);
                Some(client)
            }
        }
    }

    fn request(&self, service: &Service, message: Buffer, len: usize) -> Option<Arc<Client>> {
        let Ok((head, body)) = RequestHead::decode(&message[..len]) else {
            service.refused();
            return None;
        };
        let Some(client) = self.client(&head.token.0) else {
            service.refused();
            return None;
        };
        let start = PREFIX_LEN + HEADER_LEN;
        let body = if body.is_some() { Body::Here { message, start } } else { Body::NotAsked };
        let mut inbox = lock(&client.inbox);
        if inbox.queue.len() >= WAITING_MAX {
            client.closed.store(true, Ordering::Release);
        }
        inbox.queue.push_back(Waiting { sequence: head.sequence, header: head.header, body });
        drop(inbox);
        Some(client)
    }

    /// Serves a client's requests as far as they are here.
    fn run(&self, service: &Service, client: &Arc<Client>, after: &impl Fn(u64, bool)) {
        let mut out = Vec::new();
        while let Some(Waiting { sequence, header, body: Body::Here { message, start } }) = self.next(client)
        {
            let body = &message[start..start + header.body_len()];
            let (meta, bulk) = body.split_at(header.meta_len as usize);
            out.clear();
            service.serve(client.session, &header, meta, bulk, &mut out);
            Counters::add(&service.counters.fabric_requests, 1);
            self.endpoint.give_back(message);
            let sent = out.is_empty() || self.reply(client, sequence, &out).is_ok();
            lock(&client.inbox).busy = false;
            if !sent {
                client.closed.store(true, Ordering::Release);
            }
            if !out.is_empty() && self.wait_fd().is_none() {
                after(client.conn, true);
            }
        }
        if client.closed.load(Ordering::Acquire) && self.client(&client.token).is_some() {
            after(client.conn, false);
        }
    }

    /// The next request to serve; also asks for the bodies of those behind it.
    fn next(&self, client: &Arc<Client>) -> Option<Waiting> {
        let mut inbox = lock(&client.inbox);
        let held_up = client.untaken.load(Ordering::Acquire) >= UNTAKEN_MAX;
        if inbox.busy || held_up || client.closed.load(Ordering::Acquire) {
            return None;
        }
        for waiting in inbox.queue.iter_mut().take(BODIES_MAX) {
            if matches!(waiting.body, Body::NotAsked) {
                self.ask_for_body(client, waiting);
            }
        }
        if !matches!(inbox.queue.front()?.body, Body::Here { .. }) {
            return None;
        }
        inbox.busy = true;
        inbox.queue.pop_front()
    }

    fn ask_for_body(&self, client: &Client, waiting: &mut Waiting) {
        let sequence = waiting.sequence;
        let Ok(buffer) = self.endpoint.buffer(waiting.header.body_len()) else { return };
        let label = Label::Body { token: client.token, sequence };
        // Counted before, because it may arrive at once.
        self.under_way.fetch_add(1, Ordering::AcqRel);
        match self.endpoint.receive(body_tag(client.bodies, sequence), buffer, label) {
            Ok(()) => waiting.body = Body::Asked,
            Err(_) => drop(self.under_way.fetch_sub(1, Ordering::AcqRel)),
        }
    }

    fn reply(&self, client: &Arc<Client>, sequence: u64, frame: &[u8]) -> Result<(), FabricError> {
        let (tag, body) = reply_tags(client.replies, sequence);
        if frame.len() <= SMALL_MAX {
            return self.send(client, tag, frame);
        }
        let (head, rest) = frame.split_at(HEADER_LEN);
        self.send(client, tag, head)?;
        self.send(client, body, rest)
    }

    fn send(&self, client: &Arc<Client>, tag: u64, bytes: &[u8]) -> Result<(), FabricError> {
        let mut buffer = self.endpoint.buffer(bytes.len())?;
        buffer.copy_from_slice(bytes);
        client.untaken.fetch_add(bytes.len(), Ordering::AcqRel);
        self.post(tag, buffer, Arc::clone(client))
    }

    /// The bytes count as untaken already.
    fn post(&self, tag: u64, buffer: Buffer, client: Arc<Client>) -> Result<(), FabricError> {
        let len = buffer.len();
        let of = Arc::clone(&client);
        let address = lock(&of.peer);
        let Some(peer) = *address else { return Ok(()) };
        self.under_way.fetch_add(1, Ordering::AcqRel);
        let Err(Refused { buffer, error, .. }) =
            self.endpoint.send(peer, tag, buffer, Label::Reply { client, len })
        else {
            return Ok(());
        };
        self.under_way.fetch_sub(1, Ordering::AcqRel);
        if error.again {
            // The provider is still making a connection, or has no room.
            lock(&self.refused).push_back((tag, buffer, Arc::clone(&of)));
            return Ok(());
        }
        of.untaken.fetch_sub(len, Ordering::AcqRel);
        Err(error)
    }

    /// Tries once more what the provider did not take; what it refuses again waits on.
    fn send_refused(&self) {
        let waiting = std::mem::take(&mut *lock(&self.refused));
        for (tag, buffer, client) in waiting {
            if self.post(tag, buffer, Arc::clone(&client)).is_err() {
                client.closed.store(true, Ordering::Release);
            }
        }
    }
}
