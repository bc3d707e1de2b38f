//! What other nodes have open here: a **visit** is a root opened by another stager, with all of its connections. Root's stager has
//! visits served by workers of the users in whose names they are; here is which worker has which, and what it may say of them.

use crate::apart::charged;
use crate::limits::{Limits, Shared};
use crate::peers::{Arrived, Granted, Wanted};
use crate::server::Daemon;
use crate::worker::{Key, Looks, ToWorker};
use rustc_hash::FxHashMap;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SendError;
use std::sync::{Arc, Weak};
use tidepool_stage::EndError;
use tidepool_stage::remote::{Handed, Kept};
use tidepool_stage_state::{Identity, Side};
use tidepool_types::Errno;

/// Longest name of an entry.
const NAME_MAX: usize = 255;

/// A visit that a worker serves.
struct Visit {
    worker: u64,
    job: u32,
    limits: Arc<Limits>,
    connections: usize,
}

/// A connection that a worker serves.
struct Connection {
    worker: u64,
    visit: u64,
    /// None when it was ended here, and the worker has not noticed yet.
    kept: Option<Kept>,
    /// Looks since the other side was seen to be gone.
    gone: Looks,
}

/// So many looks after its other side has gone a connection does not count any more, whatever the worker says.
const GONE_LOOKS_MAX: Looks = 30;
/// Connections that have ended and that one worker has not let go of.
const LINGERING_MAX: usize = 2048;

/// All visits, as the event loop knows them.
#[derive(Default)]
pub struct Visits {
    /// Of jobs, wherever they are served: set when the job is no longer what it was.
    flags: FxHashMap<u32, Vec<Weak<AtomicBool>>>,
    served: FxHashMap<u64, Visit>,
    connections: FxHashMap<u64, Connection>,
    last: u64,
}

impl Visits {
    /// One that has been allowed for a job.
    pub fn allowed(&mut self, job: u32, is_over: &Arc<AtomicBool>) {
        let flags = self.flags.entry(job).or_default();
        flags.retain(|flag| flag.strong_count() > 0);
        flags.push(Arc::downgrade(is_over));
    }

    /// What other nodes have open for a job, which is no longer what it was, they have to ask for again.
    pub fn end(&mut self, job: u32) {
        for flag in self.flags.remove(&job).unwrap_or_default() {
            if let Some(flag) = flag.upgrade() {
                flag.store(true, Ordering::Release);
            }
        }
        for connection in self.connections.values_mut() {
            if self.served.get(&connection.visit).is_some_and(|visit| visit.job == job) {
                connection.kept = None;
            }
        }
    }

    /// A worker gets the first connection of a visit.
    pub fn open(&mut self, visit: u64, worker: u64, job: u32, limits: Arc<Limits>) {
        self.served.insert(visit, Visit { worker, job, limits, connections: 0 });
    }

    /// Who serves a visit, if anybody does yet.
    pub fn worker(&self, visit: u64) -> Option<u64> {
        self.served.get(&visit).map(|visit| visit.worker)
    }

    /// A connection goes to the worker of a visit that is open; its number.
    pub fn come(&mut self, visit: u64, kept: Kept) -> u64 {
        self.last += 1;
        if let Some(known) = self.served.get_mut(&visit) {
            known.connections += 1;
            let connection = Connection { worker: known.worker, visit, kept: Some(kept), gone: 0 };
            self.connections.insert(self.last, connection);
        }
        self.last
    }

    /// The limits of a visit, if it is this worker's.
    pub fn limits(&self, worker: u64, visit: u64) -> Result<&Arc<Limits>, String> {
        match self.served.get(&visit) {
            Some(known) if known.worker == worker => Ok(&known.limits),
            _ => Err(format!("speaks of visit {visit}, which it does not have")),
        }
    }

    /// A worker is done with a connection of its own.
    pub fn leave(&mut self, worker: u64, connection: u64) -> Result<(), String> {
        match self.connections.get(&connection) {
            Some(known) if known.worker == worker => {
                self.close(connection);
                Ok(())
            }
            _ => Err(format!("speaks of connection {connection}, which it does not have")),
        }
    }

    fn close(&mut self, connection: u64) {
        let Some(Connection { visit, .. }) = self.connections.remove(&connection) else { return };
        if let Some(known) = self.served.get_mut(&visit) {
            known.connections -= 1;
            if known.connections == 0 {
                self.served.remove(&visit);
            }
        }
    }

    /// Sees after connections whose other side has gone: a worker tells their end, but who has taken it over might not. The workers
    /// that do not let go of too many.
    pub fn look_after(&mut self) -> Vec<u64> {
        let mut lingering: FxHashMap<u64, usize> = FxHashMap::default();
        for connection in self.connections.values_mut() {
            connection.gone = match &connection.kept {
                Some(kept) if !is_gone(kept) => 0,
                _ => connection.gone + 1,
            };
            if connection.gone > GONE_LOOKS_MAX {
                connection.kept = None;
                *lingering.entry(connection.worker).or_default() += 1;
            }
        }
        lingering.into_iter().filter(|(_, count)| *count > LINGERING_MAX).map(|(worker, _)| worker).collect()
    }

    /// A worker has ended, and so have its connections; how many. Who was there connects again.
    pub fn worker_gone(&mut self, worker: u64) -> usize {
        let of = |(number, known): (&u64, &Connection)| (known.worker == worker).then_some(*number);
        let gone: Vec<u64> = self.connections.iter().filter_map(of).collect();
        gone.iter().for_each(|connection| self.close(*connection));
        gone.len()
    }
}

fn is_gone(kept: &Kept) -> bool {
    let mut watched = [PollFd::new(kept.stream(), PollFlags::RDHUP)];
    let seen = poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    seen.is_ok() && watched[0].revents().intersects(ends)
}

/// What a worker says that has got a name in a visit's root: an entry of it, if at all.
pub fn checked_name(name: Option<&[u8]>) -> Result<Option<&[u8]>, String> {
    let is_entry = |name: &[u8]| {
        !matches!(name, b"" | b"." | b"..")
            && name.len() <= NAME_MAX
            && !name.iter().any(|byte| matches!(byte, b'/' | 0))
    };
    match name {
        Some(name) if !is_entry(name) => Err("says that it has made an entry with an impossible name".into()),
        name => Ok(name),
    }
}

impl Daemon {
    pub(crate) fn admit_peer(&mut self, wanted: Wanted) {
        let want = &wanted.request;
        let who = Identity { uid: want.uid, gid: want.gid, job: want.job.unwrap_or(0) };
        let side = if want.write { Side::Target } else { Side::Source };
        let opened = self.state.open_for_peer(&wanted.visitor, who, &want.dataspace, &want.path, side);
        let granted = opened.map(|opened| {
            let rate = opened.dataspace.bandwidth;
            let rates = (rate > 0).then(|| (Shared::Dataspace(opened.dataspace.name.clone()), rate));
            let limits = self.limits.of(&opened.quotas, rates.as_slice(), None);
            let number = self.state.peer_came(&opened.dataspace.name);
            let is_over = Arc::default();
            if who.job != 0 {
                self.visits.allowed(who.job, &is_over);
            }
            Granted { dataspace: opened.dataspace, limits, number, groups: opened.groups, is_over }
        });
        // A peer that has gone meanwhile wants no answer.
        if let Err(SendError(Ok(granted))) = wanted.answer.send(granted) {
            self.state.peer_left(granted.number);
        }
    }

    /// A connection of a visit that a worker serves.
    pub(crate) fn host(&mut self, arrived: Arrived) {
        let Arrived { visit, opening, handed, is_over, answer } = arrived;
        let ready = match opening {
            // Its job may have ended since it was allowed.
            _ if is_over.load(Ordering::Acquire) => Err(EndError::new("open dataspace", Errno::ESTALE)),
            Some(first) if !self.may_visit(first.key) => {
                Err(no_worker(&io::Error::other("as many as may serve other nodes do; try again later")))
            }
            Some(first) => match self.worker_of(first.key) {
                Ok(worker) => {
                    self.visits.open(visit, worker, first.job, first.limits);
                    Ok((worker, Some((first.opening, first.root))))
                }
                Err(error) => Err(no_worker(&error)),
            },
            None => match self.visits.worker(visit) {
                Some(worker) => Ok((worker, None)),
                None => Err(EndError::new("open dataspace", Errno::ESTALE)),
            },
        };
        let (worker, opening) = match ready {
            Ok(ready) => ready,
            Err(error) => return drop(answer.send(Err((handed, error)))),
        };
        let Handed { session, request, stream, seals, kept } = *handed;
        let connection = self.visits.come(visit, kept);
        let (opening, root) = opening.unzip();
        let message = ToWorker::Serve { connection, visit, session, request, seals, opening };
        let fds = [Some(OwnedFd::from(stream)), root].into_iter().flatten().collect();
        if let Some(workers) = &mut self.workers {
            workers.serve(worker, message, fds);
        }
        // Its thread may end.
        let _ = answer.send(Ok(()));
    }

    /// Whether there is a worker for a visit, or one may be started.
    fn may_visit(&self, key: Key) -> bool {
        self.workers.as_ref().is_some_and(|workers| workers.of(key).is_some() || workers.may_serve_more())
    }

    /// A worker is about to put something where a visit is. `call` is 0 where it does not wait for an answer.
    pub(crate) fn puts(&mut self, worker: u64, (call, visit): (u64, u64), bytes: u64) -> Result<(), String> {
        let taken = self.visits.limits(worker, visit)?.take(bytes);
        if call != 0 {
            self.tell_worker(worker, charged(call, taken), Vec::new());
        }
        Ok(())
    }
}

fn no_worker(error: &io::Error) -> EndError {
    let detail = format!("no worker can be started: {error}");
    EndError { errno: Errno::EAGAIN, operation: "open dataspace", detail: Some(detail) }
}
