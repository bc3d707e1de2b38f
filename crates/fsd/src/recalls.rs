//! What connections hear that have not just asked: recalls of what mounts keep (`docs/formats/10-leases.md`), turns at locks.
//!
//! A thread of its own puts them there: a worker that serves one connection must not wait for another one.

use crate::serve::Service;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use tidepool_fs_state::{Answered, Context, Locks, Recall, Ticket};
use tidepool_types::{Errno, Ino, SessionId};
use tidepool_wire::frame::Header;
use tidepool_wire::message::{LockRequest, Reply};

/// Others keep what is to change, and have been told.
#[derive(Debug)]
pub struct Recalling;

#[derive(Default)]
struct Waiting {
    recalls: Vec<Recall>,
    answered: Vec<Answered>,
    ended: bool,
}

/// Recalls to be sent, and where to.
pub struct Recalls {
    waiting: Mutex<Waiting>,
    more: Condvar,
    /// Connection that each session watches on.
    watching: Mutex<HashMap<SessionId, u64>>,
    /// Somebody has watched, or may have watched an earlier daemon.
    watched: AtomicBool,
    /// The store says that there are leases, for a daemon that starts after us.
    noted: AtomicBool,
    note: PathBuf,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recalls {
    /// `note` is the file that says so.
    pub fn new(note: PathBuf) -> Recalls {
        Recalls {
            waiting: Mutex::default(),
            more: Condvar::new(),
            watching: Mutex::default(),
            watched: AtomicBool::new(false),
            noted: AtomicBool::new(false),
            note,
        }
    }

    pub fn send(&self, recalls: Vec<Recall>) {
        if !recalls.is_empty() {
            lock(&self.waiting).recalls.extend(recalls);
            self.more.notify_one();
        }
    }

    fn answer(&self, answered: Vec<Answered>) {
        if !answered.is_empty() {
            lock(&self.waiting).answered.extend(answered);
            self.more.notify_one();
        }
    }

    /// Hands replies to `deliver`, with the connections they go to and the header of what they answer, until [`Recalls::end`].
    pub fn run(&self, deliver: impl Fn(u64, &Header, &Reply)) {
        loop {
            let idle = |w: &mut Waiting| w.recalls.is_empty() && w.answered.is_empty() && !w.ended;
            let waiting = self.more.wait_while(lock(&self.waiting), idle);
            let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
            if waiting.ended {
                return;
            }
            let recalls = std::mem::take(&mut waiting.recalls);
            let answered = std::mem::take(&mut waiting.answered);
            drop(waiting);
            for Answered { ticket, refused } in answered {
                let reply = refused.map_or(Reply::Done {}, refusal);
                deliver(ticket.connection, &Header { id: ticket.request, ..Header::default() }, &reply);
            }
            for Recall { session, id, key } in recalls {
                // Who watches no more is waited for until what he keeps is out of date.
                let token = lock(&self.watching).get(&session).copied();
                if let Some(token) = token {
                    deliver(token, &Header::default(), &Reply::Recall { id, key });
                }
            }
        }
    }

    pub fn end(&self) {
        lock(&self.waiting).ended = true;
        self.more.notify_all();
    }

    /// False when nobody can keep anything.
    fn matter(&self) -> bool {
        self.watched.load(Ordering::SeqCst)
    }
}

fn refusal(errno: Errno) -> Reply {
    Reply::Failed { errno, detail: String::new() }
}

/// Data of an object are being written by a request.
pub struct Writing<'s> {
    service: &'s Service,
    ino: Ino,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.service.state().leases.end_write(self.ino);
    }
}

impl Service {
    /// An earlier daemon in this store may have left leases: until they are over nothing changes. To be called before anybody is served.
    pub fn recover_leases(&self) -> std::io::Result<()> {
        if self.recalls().note.try_exists()? {
            self.recalls().watched.store(true, Ordering::SeqCst);
            // The note stays: we may be killed before they are over.
            self.recalls().noted.store(true, Ordering::Release);
            self.state().leases.stay_quiet(self.monotonic());
        }
        Ok(())
    }

    /// From now on the session's recalls go to connection `token`.
    pub fn watch(&self, session: SessionId, token: u64) -> std::io::Result<()> {
        let recalls = self.recalls();
        if !recalls.noted.load(Ordering::Acquire) {
            std::fs::write(&recalls.note, b"")?;
            recalls.noted.store(true, Ordering::Release);
        }
        recalls.watched.store(true, Ordering::SeqCst);
        lock(&recalls.watching).insert(session, token);
        self.state().leases.watch(session);
        Ok(())
    }

    /// The connection `token` is gone, on which the session may have watched.
    pub fn watches_no_more(&self, session: SessionId, token: u64) {
        let mut watching = lock(&self.recalls().watching);
        if watching.get(&session) == Some(&token) {
            watching.remove(&session);
            drop(watching);
            self.state().leases.unwatch(session);
        }
    }

    /// Queues for a lock; the reply when it is refused at once.
    pub fn wait_for_lock(
        &self,
        session: SessionId,
        ino: Ino,
        lock: &LockRequest,
        ticket: Ticket,
    ) -> Option<Reply> {
        let mut state = self.state();
        let refused = state.wait_for_lock(session, ino, lock, ticket);
        self.tell_waiters(&mut state.locks);
        refused.map(refusal)
    }

    /// The connection `token` is gone, on which somebody may have waited for a lock.
    pub fn waits_no_more(&self, token: u64) {
        let mut state = self.state();
        state.locks.withdraw(token);
        self.tell_waiters(&mut state.locks);
    }

    /// To be called when locks may have ended.
    pub fn tell_waiters(&self, locks: &mut Locks) {
        self.recalls().answer(locks.take_answered());
    }

    /// To be called before data at home here are written by a request; what it returns is to be kept until all is recorded.
    pub fn begin_write(&self, ctx: &Context, ino: Ino) -> Result<Option<Writing<'_>>, Recalling> {
        // One that watches only now finds at the latest the record changed, and is recalled then.
        if !self.recalls().matter() {
            return Ok(None);
        }
        let mut state = self.state();
        state.leases.acting(ctx.session, ctx.monotonic);
        let free = state.leases.begin_write(ino);
        self.recalls().send(state.leases.take_recalls());
        if free { Ok(Some(Writing { service: self, ino })) } else { Err(Recalling) }
    }

    /// To be called before an object at home here is lent.
    pub fn may_lend(&self, session: SessionId, ino: Ino) -> bool {
        let now = self.monotonic();
        let mut state = self.state();
        state.leases.acting(session, now);
        let free = state.leases.lend(ino);
        self.recalls().send(state.leases.take_recalls());
        free
    }
}
