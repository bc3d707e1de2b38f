//! Repeating what met a directory change or another client's transaction.

use crate::calls::{Answer, Bulk, backoff};
use crate::{Client, FsError};
use std::time::{Duration, Instant};
use tidepool_types::{DaemonIndex, Errno, Ino};
use tidepool_wire::message::{Reply, Request};
use tidepool_wire::record::Hold;

/// How long a hold is waited for before its transaction is resolved. A live holder needs
/// a few round trips; one that died needs somebody to do this.
const HOLD_PATIENCE: Duration = Duration::from_millis(1_500);
/// Attempts before an operation gives up against a storm of directory changes.
const ATTEMPTS_MAX: u32 = 10_000;

/// Why an attempt ended.
pub(crate) enum Stop {
    Fs(FsError),
    /// A cached directory is out of date.
    Stale,
    Held(HeldAt),
    /// The object behind an entry was gone when its home was asked: the entry has been
    /// replaced or removed since it was looked up.
    Vanished(Ino),
}

/// Times in a row the same entry may lead to the same missing object before it counts as
/// damage. A replaced entry leads elsewhere at once.
const VANISHED_MAX: u32 = 20;

/// A hold somebody ran into, and where.
#[derive(Clone)]
pub(crate) struct HeldAt {
    hold: Hold,
    daemon: DaemonIndex,
    dir: Ino,
    name: Box<[u8]>,
}

impl From<FsError> for Stop {
    fn from(error: FsError) -> Stop {
        Stop::Fs(error)
    }
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Fs(errno.into())
    }
}

impl Client {
    /// Repeats `attempt` until it is neither stale nor held.
    pub(crate) fn retrying<T>(&self, mut attempt: impl FnMut(u64) -> Result<T, Stop>) -> Result<T, FsError> {
        let mut waiting: Option<(Instant, HeldAt)> = None;
        let mut vanished: Option<(Ino, u32)> = None;
        for count in 0..ATTEMPTS_MAX {
            match attempt(self.dirs.generation()) {
                Ok(value) => return Ok(value),
                Err(Stop::Fs(error)) => return Err(error),
                Err(Stop::Stale) => {}
                Err(Stop::Vanished(ino)) => {
                    let times = vanished.filter(|(before, _)| *before == ino).map_or(1, |(_, n)| n + 1);
                    if times > VANISHED_MAX {
                        let text =
                            format!("an entry names object {ino}, which is missing; run 'tidepool check'");
                        return Err(FsError::new(Errno::EIO, text));
                    }
                    vanished = Some((ino, times));
                }
                Err(Stop::Held(held)) => {
                    let since = match &waiting {
                        Some((since, before)) if before.hold.txn == held.hold.txn => *since,
                        _ => Instant::now(),
                    };
                    if since.elapsed() > HOLD_PATIENCE {
                        self.resolve_hold(&held)?;
                    } else {
                        std::thread::sleep(backoff(count));
                    }
                    waiting = Some((since, held));
                }
            }
        }
        Err(FsError::new(Errno::EAGAIN, "directories keep changing under this operation"))
    }

    /// Ends a hold whose owner does not: asks the decider for the outcome and carries it out.
    fn resolve_hold(&self, held: &HeldAt) -> Result<(), FsError> {
        let txn = held.hold.txn;
        let (committed, moved) = match self.request(held.hold.decider, &Request::Resolve { txn })? {
            Reply::Decided { committed, moved } => (committed, moved),
            other => return Err(self.unexpected(held.hold.decider, other)),
        };
        if let Some((dir, parent)) = moved {
            self.request(dir.home(), &Request::SetParent { dir, parent })?;
        }
        // Which of the two is held was not told; ending a hold that is not there does nothing.
        let (parent, name) = (held.dir, held.name.clone());
        if !name.is_empty() {
            self.request(held.daemon, &Request::Finish { txn, committed, parent, name })?;
        }
        self.request(held.daemon, &Request::FinishDir { txn, committed, dir: held.dir })?;
        if moved.is_some() {
            self.tell_all(|| Request::Bump {})?;
        }
        Ok(())
    }

    /// One request about entry `name` of `dir` that relies on directories resolved in
    /// `generation`.
    pub(crate) fn call_entry(
        &self,
        generation: u64,
        daemon: DaemonIndex,
        dir: Ino,
        name: &[u8],
        request: &Request,
    ) -> Result<Reply, Stop> {
        self.call_entry_with(generation, daemon, (dir, name), request, 0).map(|answer| answer.reply)
    }

    /// The same with flags.
    pub(crate) fn call_entry_with(
        &self,
        generation: u64,
        daemon: DaemonIndex,
        (dir, name): (Ino, &[u8]),
        request: &Request,
        flags: u16,
    ) -> Result<Answer, Stop> {
        let epoch = self.epoch_of(daemon);
        if epoch == 0 {
            // Without this daemon's epoch it could not tell that our directories are old.
            self.request(daemon, &Request::Ping {})?;
            return Err(Stop::Stale);
        }
        if self.dirs.generation() != generation {
            return Err(Stop::Stale);
        }
        let answer = self.call_with(daemon, request, (epoch, flags), Bulk::None)?;
        match answer.reply {
            Reply::Stale {} => Err(Stop::Stale),
            Reply::Held { hold } => Err(Stop::Held(HeldAt { hold, daemon, dir, name: name.into() })),
            _ => Ok(answer),
        }
    }
}

/// A hold met outside [`Client::call_entry`].
pub(crate) fn held_at(hold: Hold, daemon: DaemonIndex, dir: Ino) -> Stop {
    Stop::Held(HeldAt { hold, daemon, dir, name: Box::default() })
}
