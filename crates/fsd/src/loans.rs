//! Files lent to processes of this node that write to them (`docs/formats/07-shared-memory.md`, "Loan").
//!
//! As long as an object is lent, its size, times and blocks are what its files say: they are looked up there for
//! every answer, and clients do not find the object on the board. Whatever changes or reads the data by way of the daemon takes
//! the loan back first.
//!
//! Lock order: a loan's own state, then the table of loans, then the chunk store's object or the metadata's state.

use crate::counters::Counters;
use crate::serve::Service;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidepool_shm::{BORROWERS_MAX, Loan, Recalled};
use tidepool_store::{Borrower, LeftLoan, Lent, Standing, StoreError, StoreErrorKind};
use tidepool_types::{Attr, Errno, Ino, SessionId, TimeSpec};
use tidepool_wire::message::{Reply, Request};

/// Objects lent at the same time. Each costs up to four descriptors and two more per borrower.
const LOANS_MAX: usize = 64;
/// In a second.
const NANOS: u64 = 1_000_000_000;
/// How long a write under way is waited for before the files are left to a borrower that is stopped.
const RECALL_MAX: Duration = Duration::from_secs(2);
/// How long an object is not lent again after somebody else wanted its data.
const CONTESTED: Duration = Duration::from_secs(1);
/// Contested objects remembered; the table is emptied when it is full.
const CONTESTED_MAX: usize = 1024;

/// A process that has the files.
struct Holder {
    session: SessionId,
    pidfd: OwnedFd,
}

impl Holder {
    fn lives(&self) -> bool {
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        // Readable once the process is gone. When it cannot be asked it may live.
        !matches!(poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&now)), Ok(1..))
    }
}

enum Phase {
    /// Borrowers may write.
    Out(Box<Lent>),
    /// Nobody writes any more, and what became of it is recorded; the note is still there.
    Back,
    Over,
}

struct Inner {
    phase: Phase,
    holders: Vec<Holder>,
    /// A recall has found a borrower stopped: the files have to be left to it.
    left: bool,
}

/// One lent object.
struct Entry {
    loan: Loan,
    fd: OwnedFd,
    inner: Mutex<Inner>,
}

/// The loans of a daemon.
#[derive(Default)]
pub struct Loans {
    out: Mutex<HashMap<Ino, Arc<Entry>>>,
    count: AtomicUsize,
    contested: Mutex<HashMap<Ino, Instant>>,
}

/// What a borrower gets.
pub struct Granted {
    pub number: u32,
    /// Data, checksums, the loan itself.
    pub fds: [OwnedFd; 3],
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Loans {
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    fn get(&self, ino: Ino) -> Option<Arc<Entry>> {
        if self.is_empty() {
            return None;
        }
        lock(&self.out).get(&ino).cloned()
    }

    pub fn has(&self, ino: Ino) -> bool {
        self.get(ino).is_some()
    }

    fn all(&self) -> Vec<Ino> {
        if self.is_empty() { Vec::new() } else { lock(&self.out).keys().copied().collect() }
    }

    fn contest(&self, ino: Ino) {
        let mut contested = lock(&self.contested);
        if contested.len() >= CONTESTED_MAX {
            contested.clear();
        }
        contested.insert(ino, Instant::now());
    }

    fn is_contested(&self, ino: Ino) -> bool {
        let mut contested = lock(&self.contested);
        let recent = contested.get(&ino).is_some_and(|since| since.elapsed() < CONTESTED);
        if !recent {
            contested.remove(&ino);
        }
        recent
    }
}

impl Service {
    /// Lends an object's files to process `pid`. An error means that it goes on by requests.
    pub fn lend(&self, session: SessionId, pid: Pid, ino: Ino) -> Result<Granted, StoreError> {
        if !self.quota_is_unlimited() {
            return Err(StoreError::never_lent(ino, "a pool with a quota counts every write"));
        }
        if self.chunks().only().is_none() {
            return Err(StoreError::never_lent(ino, "on several tiers data move while they are used"));
        }
        let refused = |why: &str| Err(StoreError::refused(ino, why));
        let borrower = Borrower { pid: pid.as_raw_nonzero().get() as u32, start: start_time(pid) };
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) if borrower.start != 0 => pidfd,
            _ => return refused("the process cannot be watched"),
        };
        if self.loans().is_contested(ino) {
            return refused("others use it");
        }
        let entry = match self.loans().get(ino) {
            Some(entry) => entry,
            None => match self.lend_first(session, ino)? {
                Some(entry) => entry,
                None => return refused("it cannot be lent now"),
            },
        };
        let mut inner = lock(&entry.inner);
        let number = inner.holders.len();
        let Phase::Out(lent) = &mut inner.phase else { return refused("it is being taken back") };
        if number >= BORROWERS_MAX {
            return refused("it is lent to many");
        }
        // The first one has asked before it was lent at all.
        if number > 0 && ino.home() == self.index() && !self.may_lend(session, ino) {
            return refused("others keep what they know of it");
        }
        let borrowed = self.chunks().own().borrow(lent, borrower).and_then(|files| {
            let fd = entry.fd.try_clone().map_err(|e| StoreError::refused(ino, &e.to_string()))?;
            Ok((files, fd))
        });
        let ([data, sums], fd) = match borrowed {
            Ok(borrowed) => borrowed,
            Err(error) => {
                let unused = inner.holders.is_empty();
                drop(inner);
                // Nobody would ever give it back.
                return if unused { self.call_in(ino).and(Err(error)) } else { Err(error) };
            }
        };
        inner.holders.push(Holder { session, pidfd });
        Counters::add(&self.counters.loans, 1);
        Ok(Granted { number: number as u32, fds: [data, sums, fd] })
    }

    fn lend_first(&self, session: SessionId, ino: Ino) -> Result<Option<Arc<Entry>>, StoreError> {
        let mut out = lock(&self.loans().out);
        if out.contains_key(&ino) || out.len() >= LOANS_MAX || self.has_lost_store() {
            return Ok(None);
        }
        let elsewhere = if ino.home() == self.index() {
            if !self.may_lend(session, ino) {
                return Ok(None);
            }
            let mut state = self.state();
            // One without size and blocks would be removed without a look for chunks.
            let attr = state.attr_of(ino).map_err(|error| StoreError::of_record(ino, error))?;
            let Some(attr) = attr.filter(|a| a.size > 0 || a.blocks != 0) else {
                state.leases.lending_is_over(ino);
                return Ok(None);
            };
            self.board().withhold(ino.0);
            drop(state);
            attr.blocks - self.chunks().blocks(ino).unwrap_or_default() as i64
        } else {
            0
        };
        // From here on answers look at the files, as soon as there is an entry: before anybody can write. What may fail
        // comes first: an object that is lent without an entry could never be taken back.
        let made =
            Loan::create().map_err(|e| StoreError::refused(ino, &e.to_string())).and_then(|(loan, fd)| {
                let Some((lent, standing)) = self.chunks().lend(ino, elsewhere)? else { return Ok(None) };
                loan.grown_to(standing.data_len, standing.sum_blocks);
                let inner = Inner { phase: Phase::Out(Box::new(lent)), holders: Vec::new(), left: false };
                Ok(Some(Arc::new(Entry { loan, fd, inner: Mutex::new(inner) })))
            });
        match &made {
            Ok(Some(entry)) => {
                self.loans().count.fetch_add(1, Ordering::SeqCst);
                out.insert(ino, Arc::clone(entry));
            }
            _ => {
                self.state().leases.lending_is_over(ino);
                self.board().show(ino.0);
            }
        }
        made
    }

    /// Does something with the data of an object for `session`, after its loan is back. It is not lent again for a while,
    /// unless the loan was that session's own.
    pub fn owning<T>(
        &self,
        session: SessionId,
        ino: Ino,
        run: impl FnMut() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.owning_for(ino, Some(session), run)
    }

    /// The same for one that writes: he is no rival, and may soon have the files as well.
    pub fn owning_quietly<T>(
        &self,
        ino: Ino,
        run: impl FnMut() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.owning_for(ino, None, run)
    }

    fn contest(&self, session: SessionId, ino: Ino) {
        let own =
            |entry: Arc<Entry>| lock(&entry.inner).holders.iter().all(|holder| holder.session == session);
        if !self.loans().get(ino).is_some_and(own) {
            self.loans().contest(ino);
        }
    }

    fn owning_for<T>(
        &self,
        ino: Ino,
        rival: Option<SessionId>,
        mut run: impl FnMut() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        loop {
            match run() {
                Err(error) if error.kind == StoreErrorKind::Lent => {
                    if let Some(session) = rival {
                        self.contest(session, ino);
                    }
                    self.call_in(ino)?;
                }
                other => return other,
            }
        }
    }

    /// Drops the chunks of an object that nobody wants any more. What a borrower who is stopped may still write goes into files
    /// without a name.
    pub fn drop_lent(&self, ino: Ino) -> Result<u64, StoreError> {
        loop {
            match self.chunks().drop_object(ino) {
                Err(error) if error.kind == StoreErrorKind::Lent => self.end_loan(ino, false)?,
                other => return other,
            }
        }
    }

    /// Takes the loan of an object back, if there is one, and records what became of it.
    pub fn call_in(&self, ino: Ino) -> Result<(), StoreError> {
        self.end_loan(ino, true)
    }

    /// With `keep` false the data need not outlast it.
    fn end_loan(&self, ino: Ino, keep: bool) -> Result<(), StoreError> {
        let Some(entry) = self.loans().get(ino) else { return Ok(()) };
        let mut inner = lock(&entry.inner);
        let Inner { phase, holders, left } = &mut *inner;
        if let Phase::Out(lent) = phase {
            let lives = |who: usize| holders.get(who).is_some_and(Holder::lives);
            *left |= entry.loan.recall(RECALL_MAX, lives) == Recalled::Stopped;
            // After a failure it is still lent, and tried again.
            let before = lent.counted() as i64;
            let claimed = entry.loan.lengths().0;
            let standing =
                self.chunks().own().take_back(lent, claimed, keep && *left, || self.board().moved())?;
            self.record(ino, &standing, before, entry.loan.written())?;
            *phase = Phase::Back;
        }
        if let Phase::Back = phase {
            self.chunks().own().loan_is_over(ino)?;
            *phase = Phase::Over;
            let mut out = lock(&self.loans().out);
            if out.get(&ino).is_some_and(|listed| Arc::ptr_eq(listed, &entry)) {
                out.remove(&ino);
                self.loans().count.fetch_sub(1, Ordering::SeqCst);
                // Before it can be lent again.
                let mut state = self.state();
                state.leases.lending_is_over(ino);
                self.board().show(ino.0);
            }
        }
        Ok(())
    }

    /// What the files of a lent object say, recorded; its attributes when it is lent and at home here.
    pub fn look(&self, ino: Ino) -> Result<Option<Attr>, StoreError> {
        let Some(entry) = self.loans().get(ino) else { return Ok(None) };
        let inner = lock(&entry.inner);
        if let Phase::Out(lent) = &inner.phase {
            let before = lent.counted() as i64;
            let standing = self.chunks().own().standing(lent, entry.loan.lengths().0)?;
            return self.record(ino, &standing, before, entry.loan.written());
        }
        Ok(None)
    }

    pub fn look_all(&self) -> Result<(), StoreError> {
        self.loans().all().into_iter().try_for_each(|ino| self.look(ino).map(|_| ()))
    }

    pub fn call_in_all(&self) -> Result<(), StoreError> {
        self.loans().all().into_iter().try_for_each(|ino| self.call_in(ino))
    }

    /// `written`: what the loan says of it, in nanoseconds since 1970. The files themselves know it less exactly.
    fn record(
        &self,
        ino: Ino,
        standing: &Standing,
        before: i64,
        written: u64,
    ) -> Result<Option<Attr>, StoreError> {
        if ino.home() != self.index() {
            return Ok(None);
        }
        let blocks = (standing.blocks as i64).saturating_sub(before);
        let said = (written > 0)
            .then_some(TimeSpec { sec: (written / NANOS) as i64, nsec: (written % NANOS) as u32 });
        let times = (said.max(standing.written), self.now());
        let recorded = self.state().written_beside(ino, standing.data_len, blocks, times);
        recorded.map_err(|e| StoreError::recording(ino, &e))
    }

    /// A session has closed an object, or everything.
    pub fn borrower_leaves(&self, session: SessionId, ino: Option<Ino>) {
        let objects = ino.map_or_else(|| self.loans().all(), |ino| vec![ino]);
        for ino in objects {
            let Some(entry) = self.loans().get(ino) else { continue };
            let mine = lock(&entry.inner).holders.iter().any(|holder| holder.session == session);
            // The others ask again soon; it is simpler than leaving one of them out.
            if mine && let Err(error) = self.call_in(ino) {
                self.note_trouble(&error);
            }
        }
    }

    /// True when a request may have to wait for a borrower.
    pub fn may_wait(&self, request: &Request) -> bool {
        if self.loans().is_empty() {
            return false;
        }
        use Request as R;
        match request {
            R::SetAttr { ino, .. }
            | R::TakeBlocks { ino, .. }
            | R::Keep { ino }
            | R::Write { ino, .. }
            | R::Read { ino, .. }
            | R::Close { ino }
            | R::GiveBack { ino } => self.loans().has(*ino),
            // Chunks may have to go.
            R::Unlink { .. } | R::Nlink { .. } | R::CommitRename { .. } => true,
            _ => false,
        }
    }

    /// What has to happen to loans before a metadata request is carried out.
    pub fn before(&self, session: SessionId, request: &Request) -> Result<(), StoreError> {
        if self.loans().is_empty() {
            return Ok(());
        }
        use Request as R;
        match request {
            R::SetAttr { ino, .. } | R::TakeBlocks { ino, .. } | R::Keep { ino }
                if self.loans().has(*ino) =>
            {
                self.contest(session, *ino);
                self.call_in(*ino)
            }
            R::Reserve { ino, .. } | R::Unreserve { ino, .. } | R::GetInode { ino } => {
                self.look(*ino).map(|_| ())
            }
            R::ScanInodes { .. } => self.look_all(),
            R::Close { ino } => {
                self.borrower_leaves(session, Some(*ino));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Puts what the files of a lent object say into a reply that was made while there were loans. One that has ended since
    /// is in the state by now, but may not have been when the reply was made.
    pub fn after(&self, reply: &mut Reply) -> Result<(), StoreError> {
        match reply {
            Reply::Entry { attr: Some(attr), .. }
            | Reply::Attributes { attr }
            | Reply::Opened { attr, .. }
            | Reply::Offset { attr, .. } => self.refresh(attr),
            Reply::EntriesPlus { entries, .. } => {
                entries.iter_mut().filter_map(|e| e.attr.as_mut()).try_for_each(|attr| self.refresh(attr))
            }
            Reply::AttributesOf { attrs } => attrs.iter_mut().try_for_each(|attr| self.refresh(attr)),
            _ => Ok(()),
        }
    }

    fn record_of(&self, ino: Ino) -> Result<Option<Attr>, StoreError> {
        self.state().attr_of(ino).map_err(|error| StoreError::of_record(ino, error))
    }

    fn refresh(&self, attr: &mut Attr) -> Result<(), StoreError> {
        let fresh = match self.look(attr.ino)? {
            Some(fresh) => Some(fresh),
            None => self.record_of(attr.ino)?,
        };
        if let Some(fresh) = fresh {
            *attr = fresh;
        }
        Ok(())
    }

    /// Takes back what an earlier daemon in this store had lent. To be called before anybody is served. What cannot be taken back,
    /// as on a full disk, is tried again whenever somebody wants it, and refused as long as it fails.
    pub fn recover_loans(&self) -> Result<(), StoreError> {
        for left in self.chunks().own().left_loans()? {
            if let Err(error) = self.adopt(&left).and_then(|()| self.call_in(left.ino)) {
                self.note_trouble(&error);
            }
        }
        Ok(())
    }

    fn adopt(&self, left: &LeftLoan) -> Result<(), StoreError> {
        let (loan, fd) = Loan::create().map_err(|e| StoreError::refused(left.ino, &e.to_string()))?;
        let Some((lent, standing)) = self.chunks().own().adopt(left)? else {
            return self.chunks().own().loan_is_over(left.ino);
        };
        loan.grown_to(standing.data_len, standing.sum_blocks);
        // Borrowers have seen on the board by now that their loan is void, unless they are writing right now.
        let stopped = left.damaged || left.borrowers.iter().any(lives);
        let inner = Inner { phase: Phase::Out(Box::new(lent)), holders: Vec::new(), left: stopped };
        let entry = Arc::new(Entry { loan, fd, inner: Mutex::new(inner) });
        lock(&self.loans().out).insert(left.ino, entry);
        self.loans().count.fetch_add(1, Ordering::SeqCst);
        self.board().withhold(left.ino.0);
        self.record_left(left, &standing)
    }

    fn record_left(&self, loan: &LeftLoan, standing: &Standing) -> Result<(), StoreError> {
        let Some(attr) = self.record_of(loan.ino)? else { return Ok(()) };
        let before = attr.blocks.saturating_sub(loan.elsewhere);
        self.record(loan.ino, standing, before, 0).map(|_| ())
    }
}

fn lives(borrower: &Borrower) -> bool {
    Pid::from_raw(borrower.pid as i32).is_some_and(|pid| start_time(pid) == borrower.start)
}

/// When a process started, in ticks since boot; 0 when there is none.
fn start_time(pid: Pid) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    start_time_in(&stat.unwrap_or_default()).unwrap_or_default()
}

/// Field 22. The second one is a name in brackets that may hold anything.
fn start_time_in(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// The answer to who may not borrow: he goes on by requests, so it is none of the daemon's trouble.
pub fn refusal(error: &StoreError) -> Reply {
    let errno = if error.errno() == Errno::EIO { Errno::EAGAIN } else { error.errno() };
    Reply::Failed { errno, detail: error.to_string() }
}

/// The process at the other end of a Unix socket, as it was when it connected.
pub fn peer_of(socket: &std::os::unix::net::UnixStream) -> io::Result<Pid> {
    Ok(rustix::net::sockopt::socket_peercred(socket)?.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_times_are_found_behind_any_name() {
        let fields = (3..30).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(start_time_in(&format!("12 (a) b) (c)) {fields}")), Some(22));
        assert_eq!(start_time_in("12 (a"), None);
        assert_eq!(start_time_in(""), None);
        let me = Pid::from_raw(std::process::id() as i32).unwrap();
        assert!(start_time(me) > 0);
        assert!(!lives(&Borrower { pid: std::process::id(), start: start_time(me) + 1 }));
    }
}
