//! One connection, used by any number of threads.
//!
//! Requests carry numbers and replies repeat them. Of the threads that wait for replies one reads
//! for all; when it has its own reply, it hands reading on to another that waits.

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::Duration;
use tidepool_shm::Spin;
use tidepool_wire::stager::{HEAD_LEN, Head, Reply, Request};

/// Read at once when nothing larger is expected: many small replies.
const READ_LEN: usize = 16 << 10;

/// Why a connection is of no use any more.
#[derive(Clone, Debug)]
pub(crate) enum Broken {
    Ended(io::ErrorKind, String),
    Protocol(String),
}

impl Broken {
    fn io(error: &io::Error) -> Broken {
        Broken::Ended(error.kind(), error.to_string())
    }
}

/// Why a call has no reply.
#[derive(Debug)]
pub(crate) enum CallError {
    TooLong,
    /// The connection is of no use and the request did not leave.
    NotSent(Broken),
    Sent(Broken),
}

pub(crate) struct Connection {
    /// A connected stream socket of any kind.
    stream: OwnedFd,
    next_id: AtomicU64,
    /// Held while a frame is written, so that frames do not mix. The buffer is used again.
    outgoing: Mutex<Vec<u8>>,
    replies: Mutex<Replies>,
}

struct Replies {
    /// With the thread that reads while one does.
    inbox: Option<Inbox>,
    waiting: Vec<Waiting>,
    broken: Option<Broken>,
}

/// A thread between its request and its reply.
struct Waiting {
    id: u64,
    thread: Thread,
    /// It waits for somebody to wake it: it can be made the reader. A thread that is still
    /// sending cannot, since it may have to wait for the stager to read.
    parked: bool,
    reply: Option<Reply>,
}

/// A thread that panics holds none of these locks at a point where what they guard is half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    pub(crate) fn new(stream: OwnedFd) -> Connection {
        let replies = Replies { inbox: Some(Inbox::default()), waiting: Vec::new(), broken: None };
        Connection {
            stream,
            next_id: AtomicU64::new(1),
            outgoing: Mutex::default(),
            replies: Mutex::new(replies),
        }
    }

    /// How long a reply may take from now on.
    pub(crate) fn wait_at_most(&self, timeout: Option<Duration>) -> io::Result<()> {
        Ok(set_socket_timeout(&self.stream, Timeout::Recv, timeout)?)
    }

    /// Sends a request and waits for its reply, at most for `limit` where there is one. Where that is over, the connection is
    /// of no use to anybody any more: the other side does not work.
    pub(crate) fn call(&self, request: &Request, limit: Option<Duration>) -> Result<Reply, CallError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.register(id)?;
        if let Err(error) = self.send(id, request) {
            lock(&self.replies).remove(id);
            return Err(error);
        }
        self.receive(id, Expected::of(request), limit).map_err(CallError::Sent)
    }

    /// Before the request leaves, so that whoever reads its reply knows whose it is.
    fn register(&self, id: u64) -> Result<(), CallError> {
        let mut replies = lock(&self.replies);
        if let Some(broken) = &replies.broken {
            return Err(CallError::NotSent(broken.clone()));
        }
        replies.waiting.push(Waiting { id, thread: std::thread::current(), parked: false, reply: None });
        Ok(())
    }

    fn send(&self, id: u64, request: &Request) -> Result<(), CallError> {
        let mut frame = lock(&self.outgoing);
        frame.clear();
        request.put_frame(id, &mut frame).map_err(|_| CallError::TooLong)?;
        let mut sent = 0;
        while sent < frame.len() {
            match send(&self.stream, &frame[sent..], SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(error) => {
                    let broken = Broken::io(&error.into());
                    self.fail(broken.clone());
                    // The stager carries out whole frames only.
                    return Err(CallError::NotSent(broken));
                }
            }
        }
        Ok(())
    }

    fn receive(&self, id: u64, expected: Expected, limit: Option<Duration>) -> Result<Reply, Broken> {
        loop {
            let mut replies = lock(&self.replies);
            if let Some(reply) = replies.take_reply(id) {
                return Ok(reply);
            }
            if let Some(broken) = replies.broken.clone() {
                replies.remove(id);
                return Err(broken);
            }
            if let Some(inbox) = replies.inbox.take() {
                drop(replies);
                if let Err(error) = limit.map_or(Ok(()), |limit| self.wait_at_most(Some(limit))) {
                    return Err(self.give_up(lock(&self.replies), id, Broken::io(&error)));
                }
                return self.read_for_all(id, inbox, expected);
            }
            replies.park(id);
            drop(replies);
            std::thread::park();
        }
    }

    /// Reads until the reply to `id` is there. The others' go to those who wait for them.
    fn read_for_all(&self, id: u64, mut inbox: Inbox, expected: Expected) -> Result<Reply, Broken> {
        loop {
            let message = inbox.next(&self.stream, expected);
            let mut replies = lock(&self.replies);
            match message {
                Ok((got, reply)) if got == id => {
                    replies.remove(id);
                    replies.hand_on(inbox);
                    return Ok(reply);
                }
                Ok((got, reply)) => {
                    if !replies.deliver(got, reply) {
                        let broken = Broken::Protocol(format!("a reply to request {got}, which nobody made"));
                        return Err(self.give_up(replies, id, broken));
                    }
                }
                Err(broken) => return Err(self.give_up(replies, id, broken)),
            }
        }
    }

    fn give_up(&self, mut replies: MutexGuard<'_, Replies>, id: u64, broken: Broken) -> Broken {
        replies.remove(id);
        drop(replies);
        self.fail(broken.clone());
        broken
    }

    /// No further request leaves, and everybody who waits is told.
    fn fail(&self, broken: Broken) {
        let mut replies = lock(&self.replies);
        replies.broken.get_or_insert(broken);
        let _ = shutdown(&self.stream, Shutdown::Both);
        for waiting in &replies.waiting {
            waiting.thread.unpark();
        }
    }
}

impl Replies {
    fn place(&self, id: u64) -> Option<usize> {
        self.waiting.iter().position(|waiting| waiting.id == id)
    }

    fn remove(&mut self, id: u64) {
        if let Some(place) = self.place(id) {
            self.waiting.swap_remove(place);
        }
    }

    fn take_reply(&mut self, id: u64) -> Option<Reply> {
        let place = self.place(id)?;
        let reply = self.waiting[place].reply.take()?;
        self.waiting.swap_remove(place);
        Some(reply)
    }

    fn park(&mut self, id: u64) {
        if let Some(place) = self.place(id) {
            self.waiting[place].parked = true;
        }
    }

    /// False when nobody waits for such a reply.
    fn deliver(&mut self, id: u64, reply: Reply) -> bool {
        let Some(place) = self.place(id) else { return false };
        let waiting = &mut self.waiting[place];
        if waiting.reply.replace(reply).is_some() {
            return false;
        }
        waiting.thread.unpark();
        true
    }

    /// Another thread is woken to read, when one waits.
    fn hand_on(&mut self, inbox: Inbox) {
        self.inbox = Some(inbox);
        if let Some(next) = self.waiting.iter().find(|waiting| waiting.parked && waiting.reply.is_none()) {
            next.thread.unpark();
        }
    }
}

/// When the reply that the reader waits for will come.
#[derive(Clone, Copy)]
enum Expected {
    Soon,
    /// When tasks have ended.
    Later,
}

impl Expected {
    fn of(request: &Request) -> Expected {
        match request {
            Request::Wait { .. } | Request::SubmitAndWait { .. } => Expected::Later,
            _ => Expected::Soon,
        }
    }
}

/// Bytes received and not yet used.
struct Inbox {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// What has been learned about waiting for either.
    soon: Spin,
    later: Spin,
}

impl Default for Inbox {
    fn default() -> Inbox {
        Inbox { bytes: Vec::new(), start: 0, end: 0, soon: Spin::of_calls(), later: Spin::of_work() }
    }
}

impl Inbox {
    fn next(&mut self, stream: &OwnedFd, expected: Expected) -> Result<(u64, Reply), Broken> {
        let wrong = |error: tidepool_wire::DecodeError| Broken::Protocol(error.to_string());
        let bytes = self.fill(HEAD_LEN, stream, expected)?;
        let head = Head::decode(bytes.try_into().expect("filled to this length")).map_err(wrong)?;
        let whole = HEAD_LEN + head.len as usize;
        let bytes = self.fill(whole, stream, expected)?;
        let reply = Reply::decode(head.kind, &bytes[HEAD_LEN..]).map_err(wrong)?;
        self.start += whole;
        Ok((head.id, reply))
    }

    /// The first `len` unused bytes.
    fn fill(&mut self, len: usize, stream: &OwnedFd, expected: Expected) -> Result<&[u8], Broken> {
        if self.start + len > self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            self.bytes.resize(len.max(READ_LEN), 0);
        }
        while self.end - self.start < len {
            match self.read_some(stream, expected) {
                Ok(0) => return Err(Broken::io(&io::Error::other("it closed the connection"))),
                Ok(count) => self.end += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Broken::io(&error)),
            }
        }
        Ok(&self.bytes[self.start..self.start + len])
    }

    /// Waits awake for a moment first: the stager mostly answers before a sleep would have begun.
    fn read_some(&mut self, stream: &OwnedFd, expected: Expected) -> io::Result<usize> {
        let room = &mut self.bytes[self.end..];
        let spin = match expected {
            Expected::Soon => &mut self.soon,
            Expected::Later => &mut self.later,
        };
        let found = spin.until(|| match recv(stream, &mut *room, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN) => None,
            got => Some(got),
        });
        match found {
            Some(got) => Ok(got?.0),
            None => match recv(stream, room, RecvFlags::empty()) {
                Err(Errno::AGAIN) => Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time")),
                got => Ok(got?.0),
            },
        }
    }
}
