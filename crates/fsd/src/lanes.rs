//! Lanes in shared memory: giving them out, and the workers that serve them.
//!
//! One awake worker serves all short requests of a node's clients, which would wait for one
//! another at the metadata's lock in any case, and nobody pays for waking a second one. Before it
//! moves much data or syncs, it has another take over.

use crate::FRAMES_PER_TURN;
use crate::serve::{Service, Shared};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};
use std::time::Duration;
use tidepool_shm::{Bell, LANES_MAX, ServerLane, Spin, Turn};
use tidepool_types::SessionId;
use tidepool_wire::frame::{HEADER_LEN, Header};
use tidepool_wire::message::Request;

/// Requests about more data than this are not short.
const SHORT_BYTES_MAX: u32 = 16 << 10;
/// How long a worker sleeps at most; `Lanes::stop` wakes it before.
const SLEEP: Duration = Duration::from_secs(3600);

struct Given {
    lane: Mutex<ServerLane>,
    /// Somebody has come for a request while a worker had the lane: that one looks again.
    missed: AtomicBool,
    /// The connection it belongs to.
    token: u64,
    session: SessionId,
}

/// See [`Lanes::work`].
type Deliver<'a> = &'a dyn Fn(u64, &[u8]) -> bool;

/// The lanes of one daemon.
pub struct Lanes {
    bell: Bell,
    bell_fd: OwnedFd,
    given: RwLock<Vec<Option<Arc<Given>>>>,
    ended: AtomicBool,
}

/// What follows from serving a lane, for the connection it belongs to.
pub enum After {
    /// It has a reply to send that did not fit the lane.
    Serve { token: u64 },
    /// The client broke the rules.
    Close { token: u64 },
}

impl Lanes {
    pub fn new() -> io::Result<Lanes> {
        let (bell, bell_fd) = Bell::create()?;
        Ok(Lanes { bell, bell_fd, given: RwLock::default(), ended: AtomicBool::new(false) })
    }

    /// A lane for a connection: its number, and the descriptors of lane and bell. An error when there are too many.
    pub fn open(&self, token: u64, session: SessionId) -> io::Result<(usize, [OwnedFd; 2])> {
        let (lane, fd) = ServerLane::create()?;
        let bell = self.bell_fd.try_clone()?;
        let given =
            Arc::new(Given { lane: Mutex::new(lane), missed: AtomicBool::new(false), token, session });
        let mut all = self.given.write().unwrap_or_else(PoisonError::into_inner);
        let number = match all.iter().position(Option::is_none) {
            Some(free) => free,
            None if all.len() < LANES_MAX => {
                all.push(None);
                all.len() - 1
            }
            None => return Err(io::Error::other("all lanes are in use")),
        };
        all[number] = Some(given);
        Ok((number, [fd, bell]))
    }

    pub fn close(&self, number: usize) {
        let mut all = self.given.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = all.get_mut(number) {
            *place = None;
        }
    }

    /// Lets all workers end.
    pub fn stop(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.bell.call_all();
    }

    /// Wakes a worker when requests wait that nobody was woken for.
    pub fn nudge(&self) {
        if self.bell.is_pending() {
            self.bell.call();
        }
    }

    /// One worker: serves lanes until [`Lanes::stop`]. `deliver` puts a reply behind those that a connection has to
    /// send; false when that are too many.
    pub fn work(&self, service: &Service, deliver: impl Fn(u64, &[u8]) -> bool, then: impl Fn(After)) {
        let mut spin = Spin::default();
        let mut out = Vec::new();
        let mut last = 0;
        self.bell.wake_up();
        loop {
            // In this order: `stop` ends us first and calls then.
            let calls = self.bell.calls();
            if self.ended.load(Ordering::SeqCst) {
                break;
            }
            let found = self.bell.take(last).or_else(|| self.bell.wait(last, &mut spin, calls, SLEEP));
            let Some(number) = found else { continue };
            last = number;
            let given = self.given.read().unwrap_or_else(PoisonError::into_inner).get(number).cloned();
            if let Some(given) = given.flatten()
                && let Some(after) = self.turn(number, &given, service, &deliver, &mut out)
            {
                then(after);
            }
        }
        self.bell.turn_away();
    }

    /// Serves what waits in a lane, until others have their turn. A lane that another worker has is left to that one: it may wait
    /// for a peer, which waits for us to serve others.
    fn turn(
        &self,
        number: usize,
        given: &Given,
        service: &Service,
        deliver: Deliver<'_>,
        out: &mut Vec<u8>,
    ) -> Option<After> {
        let mut lane = given.take()?;
        let after = self.serve_some(number, &mut lane, given, service, (deliver, out));
        drop(lane);
        if given.missed.swap(false, Ordering::SeqCst) {
            self.bell.mark(number);
        }
        after
    }

    fn serve_some(
        &self,
        number: usize,
        lane: &mut ServerLane,
        given: &Given,
        service: &Service,
        (deliver, out): (Deliver<'_>, &mut Vec<u8>),
    ) -> Option<After> {
        for _ in 0..FRAMES_PER_TURN {
            match self.serve(lane, given, service, deliver, out) {
                Served::Nothing => return None,
                Served::One => {}
                Served::After(after) => {
                    self.bell.mark(number);
                    return Some(after);
                }
            }
        }
        self.bell.mark(number);
        None
    }

    fn serve(
        &self,
        lane: &mut ServerLane,
        given: &Given,
        service: &Service,
        deliver: Deliver<'_>,
        out: &mut Vec<u8>,
    ) -> Served {
        let meta_len = |bytes: &[u8; HEADER_LEN]| Header::decode(bytes).map_or(0, |h| h.meta_len as usize);
        let Turn::Request { fields, area } = lane.take(meta_len) else { return Served::Nothing };
        let Ok(header) = Header::decode(&fields.header) else { return given.broken() };
        if header.meta_len as usize != fields.meta.len() || header.bulk_len as usize > area.len() {
            return given.broken();
        }
        out.clear();
        let request = Request::decode(header.kind, fields.meta);
        let long = request.as_ref().is_ok_and(|r| takes_long(r, header.bulk_len) || service.may_wait(r));
        if long {
            self.bell.turn_away();
        }
        let shared = service.serve_shared(given.session, &header, request, area, out);
        if long {
            self.bell.wake_up();
        }
        match shared {
            Shared::NoReply => lane.no_answer(),
            Shared::Reply { bulk_in_frame: true } => return given.elsewhere(lane, deliver, out),
            Shared::Reply { bulk_in_frame: false } => {
                let answered = out.split_first_chunk().map(|(head, meta)| lane.answer(head, meta));
                if !matches!(answered, Some(Ok(()))) {
                    return given.elsewhere(lane, deliver, out);
                }
            }
        }
        Served::One
    }
}

enum Served {
    Nothing,
    One,
    After(After),
}

impl Given {
    /// The lane, unless another worker has it, who will look once more.
    fn take(&self) -> Option<MutexGuard<'_, ServerLane>> {
        let try_lock = || match self.lane.try_lock() {
            Ok(lane) => Some(lane),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        try_lock().or_else(|| {
            self.missed.store(true, Ordering::SeqCst);
            // He may have let go before he could see that.
            try_lock()
        })
    }

    fn broken(&self) -> Served {
        Served::After(After::Close { token: self.token })
    }

    /// The lane is ours until this is done: a worker that serves the next request must not overtake us, because
    /// clients take replies in the order of their requests.
    fn elsewhere(&self, lane: &mut ServerLane, deliver: Deliver<'_>, out: &[u8]) -> Served {
        let token = self.token;
        // The client must know before bytes come: it takes any at its socket for our end.
        lane.elsewhere();
        Served::After(if deliver(token, out) { After::Serve { token } } else { After::Close { token } })
    }
}

/// True for requests during which another worker should look after the other lanes.
fn takes_long(request: &Request, bulk_len: u32) -> bool {
    match request {
        Request::Read { len, .. } => *len > SHORT_BYTES_MAX,
        Request::Write { .. } => bulk_len > SHORT_BYTES_MAX,
        Request::Sync { .. }
        | Request::SyncAll {}
        | Request::Trim { .. }
        | Request::Punch { .. }
        | Request::Copy { .. }
        | Request::Drop { .. }
        | Request::Scrub { .. }
        | Request::Flush { .. }
        | Request::Extents { .. }
        | Request::ScanInodes { .. }
        | Request::ScanDirs { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
#[path = "lanes_tests.rs"]
mod tests;
