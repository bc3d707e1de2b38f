//! Who waits for locks of objects at home here.
//!
//! ```text
//! wait ──▶ waiting ──(nothing is in its way)──▶ turn ──set──▶ held
//!             │                                  │
//!             └── withdraw, end of session ──────┴── withdraw, lapse ──▶ gone
//! ```
//! A turn keeps others out as a lock does, until its owner takes the lock or [`TURN_MAX`] is over: a waiter may have left
//! without a word (a cancelled thread), and must not get a lock that nobody knows of.

use crate::locks::{LockTable, Owner, Set, excludes};
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tidepool_types::{Errno, Ino, SessionId};
use tidepool_wire::message::{LockKind, LockMode, LockRequest};

/// How long a turn is kept for a waiter that does not come.
const TURN_MAX: Duration = Duration::from_secs(1);
/// `pid` of locks that belong to open files, as F_GETLK tells it. No process waits for itself through them.
pub const PID_OPEN_FILE: u32 = u32::MAX;

/// Where a waiter waits: one connection waits for one lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket {
    pub connection: u64,
    /// Id of the request that is to be answered.
    pub request: u64,
}

/// What a waiter hears in the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answered {
    pub ticket: Ticket,
    /// Otherwise it is its turn.
    pub refused: Option<Errno>,
}

#[derive(Clone, Debug)]
struct Waiter {
    ticket: Ticket,
    session: SessionId,
    lock: LockRequest,
    /// Until when its turn lasts, once it has come.
    turn: Option<Duration>,
}

impl Waiter {
    fn owner(&self) -> Owner {
        Owner::of(self.session, &self.lock)
    }

    /// Its turn keeps this lock of another owner out.
    fn keeps_out(&self, owner: &Owner, lock: &LockRequest) -> bool {
        let meets = self.lock.start <= lock.end && lock.start <= self.lock.end;
        let is_other = self.owner() != *owner && self.lock.kind == lock.kind;
        self.turn.is_some() && is_other && meets && excludes(self.lock.mode, lock.mode)
    }
}

/// Locks held, and those that wait for them in the order in which they came.
#[derive(Default)]
pub struct Locks {
    held: LockTable,
    waiting: HashMap<Ino, Vec<Waiter>>,
    /// What the waiter of a connection waits for.
    places: HashMap<u64, Ino>,
    answered: Vec<Answered>,
    now: Duration,
}

impl Locks {
    /// The first lock of another owner that `lock` cannot coexist with. A turn is as good as a lock.
    pub fn conflict(&self, ino: Ino, session: SessionId, lock: &LockRequest) -> Option<LockRequest> {
        let owner = Owner::of(session, lock);
        let turns = self.waiting.get(&ino).into_iter().flatten().filter(|w| w.keeps_out(&owner, lock));
        let turns = turns.map(|waiter| waiter.lock.clone());
        self.held.conflict(ino, session, lock).into_iter().chain(turns).min_by_key(|l| (l.start, l.owner))
    }

    /// Sets or releases a range at once.
    pub fn set(&mut self, ino: Ino, session: SessionId, lock: &LockRequest) -> Set {
        let takes = lock.mode != LockMode::Unlock;
        if takes && self.is_kept_out(ino, &Owner::of(session, lock), lock) {
            return Set::InTheWay;
        }
        let set = self.held.set(ino, session, lock);
        if set == Set::Done && takes {
            self.end_turn(ino, &Owner::of(session, lock), lock);
        }
        if set == Set::Done && lock.mode != LockMode::Write {
            self.wake(ino);
        }
        set
    }

    /// Queues a waiter; what it hears comes with [`Locks::take_answered`], perhaps at once.
    pub fn wait(&mut self, ino: Ino, session: SessionId, lock: &LockRequest, ticket: Ticket) {
        let waiter = Waiter { ticket, session, lock: lock.clone(), turn: None };
        let refused = if self.places.contains_key(&ticket.connection) {
            Some(Errno::EBUSY)
        } else if self.closes_a_circle(ino, &waiter) {
            Some(Errno::EDEADLK)
        } else {
            None
        };
        if refused.is_some() {
            return self.answered.push(Answered { ticket, refused });
        }
        self.places.insert(ticket.connection, ino);
        self.waiting.entry(ino).or_default().push(waiter);
        self.wake(ino);
    }

    /// The waiter of a connection waits no more, nor comes when it is its turn.
    pub fn withdraw(&mut self, connection: u64) {
        let Some(ino) = self.places.remove(&connection) else { return };
        self.forget(ino, |waiter| waiter.ticket.connection == connection);
        self.wake(ino);
    }

    /// Ends turns that nobody came for.
    pub fn lapse(&mut self, now: Duration) {
        self.now = now;
        let over = |w: &Waiter| w.turn.is_some_and(|until| until <= now);
        let late: Vec<Ino> =
            self.waiting.iter().filter(|(_, all)| all.iter().any(over)).map(|l| *l.0).collect();
        for ino in late {
            self.forget(ino, over);
            self.wake(ino);
        }
    }

    pub fn release_session(&mut self, session: SessionId) {
        self.held.release_session(session);
        let objects: Vec<Ino> = self.waiting.keys().copied().collect();
        for ino in objects {
            self.forget(ino, |waiter| waiter.session == session);
            self.wake(ino);
        }
    }

    /// Who has heard nothing yet of what became of it.
    pub fn take_answered(&mut self) -> Vec<Answered> {
        std::mem::take(&mut self.answered)
    }

    fn is_kept_out(&self, ino: Ino, owner: &Owner, lock: &LockRequest) -> bool {
        self.waiting.get(&ino).is_some_and(|all| all.iter().any(|w| w.keeps_out(owner, lock)))
    }

    fn end_turn(&mut self, ino: Ino, owner: &Owner, lock: &LockRequest) {
        let same = |w: &Waiter| (w.lock.start, w.lock.end, w.lock.mode) == (lock.start, lock.end, lock.mode);
        self.forget(ino, |waiter| waiter.turn.is_some() && waiter.owner() == *owner && same(waiter));
    }

    fn forget(&mut self, ino: Ino, which: impl Fn(&Waiter) -> bool) {
        let Some(all) = self.waiting.get_mut(&ino) else { return };
        for gone in all.extract_if(.., |waiter| which(waiter)) {
            self.places.remove(&gone.ticket.connection);
        }
        if all.is_empty() {
            self.waiting.remove(&ino);
        }
    }

    /// Gives everybody a turn who has nothing in his way, those who came first before the others.
    fn wake(&mut self, ino: Ino) {
        let Some(all) = self.waiting.get_mut(&ino) else { return };
        let mut turns: Vec<usize> = (0..all.len()).filter(|at| all[*at].turn.is_some()).collect();
        for at in 0..all.len() {
            let waiter = &all[at];
            let owner = waiter.owner();
            let is_free = waiter.turn.is_none()
                && !turns.iter().any(|turn| all[*turn].keeps_out(&owner, &waiter.lock))
                && self.held.conflict(ino, waiter.session, &waiter.lock).is_none();
            if is_free {
                all[at].turn = Some(self.now + TURN_MAX);
                turns.push(at);
                self.answered.push(Answered { ticket: all[at].ticket, refused: None });
            }
        }
    }

    /// Whether those in the way of a process wait, themselves or those in their way, for a lock of its own. As Linux does, all
    /// threads of a process are taken for one.
    fn closes_a_circle(&self, ino: Ino, waiter: &Waiter) -> bool {
        if !is_of_process(&waiter.lock) {
            return false;
        }
        let me = waiter.owner();
        let mut seen = HashSet::new();
        let mut open = self.in_the_way(ino, waiter);
        while let Some(owner) = open.pop() {
            if owner == me {
                return true;
            }
            if !seen.insert(owner) {
                continue;
            }
            for (ino, waiters) in &self.waiting {
                let of_owner = waiters.iter().filter(|w| w.turn.is_none() && w.owner() == owner);
                let waits = of_owner.filter(|w| is_of_process(&w.lock));
                open.extend(waits.flat_map(|w| self.in_the_way(*ino, w)));
            }
        }
        false
    }

    /// All owners that a waiter waits for.
    fn in_the_way(&self, ino: Ino, waiter: &Waiter) -> Vec<Owner> {
        let owner = waiter.owner();
        let turns = self.waiting.get(&ino).into_iter().flatten();
        let turns = turns.filter(|w| w.keeps_out(&owner, &waiter.lock)).map(Waiter::owner);
        self.held.holders(ino, &owner, &waiter.lock).into_iter().chain(turns).collect()
    }
}

fn is_of_process(lock: &LockRequest) -> bool {
    lock.kind == LockKind::Posix && lock.pid != PID_OPEN_FILE
}

#[cfg(test)]
#[path = "waiting_tests.rs"]
mod tests;
