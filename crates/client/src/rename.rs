//! Rename and rmdir: changes that span daemons.
//!
//! Both hold what they take away (the source entry; the directory being removed, on every
//! daemon), then let one daemon, the decider, make the change in one atomic step, then end
//! the holds. A client that dies on the way leaves holds that the next visitor resolves by
//! asking the decider (`retry.rs`), so a rename happens wholly or not at all.

use crate::calls::{expect_reply, lock};
use crate::perm::{self, WRITE};
use crate::retry::{Stop, held_at};
use crate::walk::{Entry, Spot};
use crate::{Client, Cred, FsError, LockOwner, LockRange, Walk};
use tidepool_placement::entry_owner;
use tidepool_transport::random_bytes;
use tidepool_types::{DaemonIndex, Errno, FileKind, Ino, TxnId};
use tidepool_wire::message::{LockKind, LockMode, Reply, Request};

/// Flags of renameat2(2).
const RENAME_NOREPLACE: u32 = 1;

/// One end of a rename.
struct End<'a> {
    daemon: DaemonIndex,
    dir: Ino,
    name: &'a [u8],
}

impl Client {
    /// Removes an empty directory.
    pub fn rmdir(&self, base: Ino, path: &[u8], cred: &Cred) -> Result<Walk<()>, FsError> {
        let unnamed = match path.split(|&b| b == b'/').rfind(|part| !part.is_empty()) {
            Some(b".") => Errno::EINVAL,
            Some(b"..") => Errno::ENOTEMPTY,
            _ => Errno::EBUSY,
        };
        self.at_name(base, path, cred, unnamed, |generation, spot, name| {
            self.may_remove(generation, spot, name, cred)?;
            let entry = self.lookup_entry(generation, spot.dir.ino, name, false)?;
            if entry.kind != FileKind::Directory {
                return Err(Errno::ENOTDIR.into());
            }
            self.rmdir_entry(generation, spot.dir.ino, name, entry.ino)
        })
    }

    fn rmdir_entry(&self, generation: u64, parent: Ino, name: &[u8], dir: Ino) -> Result<(), Stop> {
        let txn = TxnId(random_bytes());
        let decider = entry_owner(parent, name, self.members());
        if let Err(stop) = self.hold_dir(txn, decider, dir) {
            self.release_dir(txn, dir, false)?;
            return Err(stop);
        }
        let request = Request::CommitRmdir { txn, parent, name: name.into(), dir };
        let reply = self.call_entry(generation, decider, parent, name, &request);
        let decided = reply.and_then(|r| Ok(expect_reply!(self, decider, r, Reply::Done {} => ())?));
        let outcome = self.outcome(txn, decider, &decided);
        if let Some(committed) = outcome {
            self.release_dir(txn, dir, committed)?;
        }
        if outcome != Some(true) {
            return decided;
        }
        let reply = self.request(dir.home(), &Request::RemoveDir { dir })?;
        Ok(expect_reply!(self, dir.home(), reply, Reply::Done {} => ())?)
    }

    /// Holds an empty directory on all daemons.
    fn hold_dir(&self, txn: TxnId, decider: DaemonIndex, dir: Ino) -> Result<(), Stop> {
        let mut result = Ok(());
        for (daemon, answer) in self.ask_all(|| Request::PrepareDir { txn, decider, dir }) {
            let held = match answer? {
                Reply::Held { hold } => Err(held_at(hold, daemon, dir)),
                reply => expect_reply!(self, daemon, reply, Reply::Done {} => ()).map_err(Stop::from),
            };
            // ENOTEMPTY is final; a hold is worth another try.
            if let Err(stop) = held
                && !matches!(result, Err(Stop::Fs(_)))
            {
                result = Err(stop);
            }
        }
        result
    }

    fn release_dir(&self, txn: TxnId, dir: Ino, committed: bool) -> Result<(), FsError> {
        self.tell_all(|| Request::FinishDir { txn, committed, dir })
    }

    /// Renames as renameat2(2) does; `flags` may hold `RENAME_NOREPLACE`. Other flags are
    /// refused with `EINVAL`, as by a kernel file system that lacks them.
    pub fn rename(
        &self,
        old_base: Ino,
        old_path: &[u8],
        new_base: Ino,
        new_path: &[u8],
        flags: u32,
        cred: &Cred,
    ) -> Result<Walk<()>, FsError> {
        self.check_supported("rename")?;
        if flags & !RENAME_NOREPLACE != 0 {
            return Err(Errno::EINVAL.into());
        }
        let no_replace = flags & RENAME_NOREPLACE != 0;
        self.at_name(old_base, old_path, cred, Errno::EBUSY, |generation, old, old_name| {
            let new = match self.walker(generation, new_base, new_path, cred)?.next_spot()? {
                Walk::Found(spot) => spot,
                // The source is in the pool, the target is not: what rename(2) says between
                // file systems, which makes programs copy.
                Walk::Escape(_) => return Err(Errno::EXDEV.into()),
            };
            let unnamed = if no_replace { Errno::EEXIST } else { Errno::EBUSY };
            let Some(new_name) = &new.name else { return Err(unnamed.into()) };
            self.may_remove(generation, old, old_name, cred)?;
            self.rename_spot(generation, (old, old_name), (&new, new_name), no_replace, cred)
        })
    }

    fn rename_spot(
        &self,
        generation: u64,
        (old, old_name): (&Spot, &[u8]),
        (new, new_name): (&Spot, &[u8]),
        no_replace: bool,
        cred: &Cred,
    ) -> Result<(), Stop> {
        let source = self.lookup_entry(generation, old.dir.ino, old_name, false)?;
        let is_dir = source.kind == FileKind::Directory;
        if !is_dir && (old.wants_dir || new.wants_dir) {
            return Err(Errno::ENOTDIR.into());
        }
        self.check_perm((&new.dir).into(), cred, WRITE)?;
        if is_dir && old.dir.ino != new.dir.ino {
            let attr = self.entry_attr(&source)?;
            self.check_perm((&attr).into(), cred, WRITE)?;
        }
        let target = match self.lookup_entry(generation, new.dir.ino, new_name, false) {
            Ok(entry) => Some(entry),
            Err(Stop::Fs(error)) if error.errno() == Errno::ENOENT => None,
            Err(stop) => return Err(stop),
        };
        if let Some(target) = &target {
            if no_replace {
                return Err(Errno::EEXIST.into());
            }
            if target.ino == source.ino {
                return Ok(());
            }
            self.check_target_sticky(new, target, cred)?;
        }
        let from = self.end(old.dir.ino, old_name);
        let to = self.end(new.dir.ino, new_name);
        if !is_dir || from.dir == to.dir {
            return self.move_entry(generation, &from, &to, &source, target.as_ref(), no_replace);
        }
        // Two renames of directories at once could each put one below the other: they take turns.
        let _turn = self.rename_turn()?;
        self.check_no_cycle(source.ino, to.dir)?;
        self.move_entry(generation, &from, &to, &source, target.as_ref(), no_replace)
    }

    fn end<'a>(&self, dir: Ino, name: &'a [u8]) -> End<'a> {
        End { daemon: entry_owner(dir, name, self.members()), dir, name }
    }

    fn check_target_sticky(&self, new: &Spot, target: &Entry, cred: &Cred) -> Result<(), Stop> {
        let dir = perm::Owned::from(&new.dir);
        if self.relaxed() || !perm::is_sticky(dir.mode) || cred.is_root() {
            return Ok(());
        }
        let attr = self.entry_attr(target)?;
        Ok(perm::check_sticky(dir, (&attr).into(), cred)?)
    }

    fn check_no_cycle(&self, moved: Ino, mut dir: Ino) -> Result<(), Stop> {
        loop {
            if dir == moved {
                return Err(Errno::EINVAL.into());
            }
            if dir == Ino::ROOT {
                return Ok(());
            }
            dir = self.parent_of(dir)?;
        }
    }

    fn move_entry(
        &self,
        generation: u64,
        from: &End<'_>,
        to: &End<'_>,
        source: &Entry,
        target: Option<&Entry>,
        no_replace: bool,
    ) -> Result<(), Stop> {
        let is_dir = source.kind == FileKind::Directory;
        let txn = TxnId(random_bytes());
        let prepare = Request::Prepare { txn, decider: to.daemon, parent: from.dir, name: from.name.into() };
        let reply = self.call_entry(generation, from.daemon, from.dir, from.name, &prepare)?;
        let held = expect_reply!(self, from.daemon, reply, Reply::Entry { ino, .. } => ino)?;
        let replaces = target.filter(|t| t.kind == FileKind::Directory && is_dir).map(|t| t.ino);
        let decided = if held == source.ino {
            self.decide_rename(generation, txn, to, source, replaces, no_replace)
        } else {
            Err(Stop::Stale)
        };
        let outcome = match &decided {
            Ok(Decided::SameObject) => Some(false),
            decided => self.outcome(txn, to.daemon, decided),
        };
        if let Some(committed) = outcome {
            let (parent, name) = (from.dir, from.name.into());
            self.request(from.daemon, &Request::Finish { txn, committed, parent, name })?;
        }
        let replaced = match decided {
            Ok(Decided::Moved(replaced)) => replaced,
            Ok(Decided::SameObject) => return Ok(()),
            // It happened, only the answer was lost; what it replaced was lost with it and
            // keeps a link count too high, which wastes space.
            Err(_) if outcome == Some(true) => None,
            Err(stop) => return Err(stop),
        };
        if let Some((ino, kind)) = replaced {
            self.drop_replaced(ino, kind)?;
        }
        self.note_move(source.ino, is_dir && from.dir != to.dir, to.dir)?;
        if is_dir {
            self.tell_all(|| Request::Bump {})?;
        }
        Ok(())
    }

    /// Tells the moved object's home. POSIX leaves it open whether rename changes ctime;
    /// programs that look expect it, of directories too.
    fn note_move(&self, ino: Ino, new_parent: bool, parent: Ino) -> Result<(), FsError> {
        let request = if new_parent {
            Request::SetParent { dir: ino, parent }
        } else {
            Request::SetAttr { ino, set: Default::default(), blocks: 0 }
        };
        self.request(ino.home(), &request).map(|_| ())
    }

    /// The step that makes a rename happen, with the directory it replaces held empty.
    fn decide_rename(
        &self,
        generation: u64,
        txn: TxnId,
        to: &End<'_>,
        source: &Entry,
        replaces: Option<Ino>,
        no_replace: bool,
    ) -> Result<Decided, Stop> {
        let held = replaces.map_or(Ok(()), |dir| self.hold_dir(txn, to.daemon, dir));
        let decided = held.and_then(|()| {
            let request = Request::CommitRename {
                txn,
                parent: to.dir,
                name: to.name.into(),
                ino: source.ino,
                kind: source.kind,
                no_replace,
                replaces,
            };
            let reply = self.call_entry(generation, to.daemon, to.dir, to.name, &request)?;
            match reply {
                // The target changed since it was looked at, or somebody took us for dead.
                Reply::Failed { errno: Errno::ESTALE | Errno::ECANCELED, .. } => Err(Stop::Stale),
                reply => {
                    Ok(expect_reply!(self, to.daemon, reply, Reply::Replaced { ino, kind } => ino.zip(kind))?)
                }
            }
        });
        if let Some(dir) = replaces
            && let Some(committed) = self.outcome(txn, to.daemon, &decided)
        {
            self.release_dir(txn, dir, committed)?;
        }
        Ok(match decided? {
            Some((ino, _)) if ino == source.ino => Decided::SameObject,
            replaced => Decided::Moved(replaced),
        })
    }

    /// Whether a transaction was committed, from what its deciding step returned. When the
    /// answer was lost the decider is asked; `None` when it cannot be reached, and then the
    /// holds have to stay for whoever comes by when it can.
    fn outcome<T>(&self, txn: TxnId, decider: DaemonIndex, decided: &Result<T, Stop>) -> Option<bool> {
        match decided {
            Ok(_) => Some(true),
            // One that says nothing would be waited for once more.
            Err(Stop::Fs(error)) if error.is_silence() => None,
            Err(Stop::Fs(error)) if error.outcome_unknown() => {
                match self.request(decider, &Request::Resolve { txn }) {
                    Ok(Reply::Decided { committed, .. }) => Some(committed),
                    _ => None,
                }
            }
            Err(_) => Some(false),
        }
    }

    fn drop_replaced(&self, ino: Ino, kind: FileKind) -> Result<(), FsError> {
        if kind != FileKind::Directory {
            return self.drop_link(Entry { ino, kind, attr: None, created: false, flags: 0 });
        }
        let reply = self.request(ino.home(), &Request::RemoveDir { dir: ino })?;
        expect_reply!(self, ino.home(), reply, Reply::Done {} => ())
    }

    /// Waits for the pool-wide right to move a directory to another one.
    fn rename_turn(&self) -> Result<RenameTurn<'_>, FsError> {
        let owner = LockOwner(u64::from_le_bytes(random_bytes()));
        let mut attempt = 0;
        loop {
            let taken = self.lock(
                Ino::ROOT,
                owner,
                LockKind::Rename,
                LockRange::ALL,
                LockMode::Write,
                std::process::id(),
            );
            match taken {
                Ok(()) => return Ok(RenameTurn { client: self, owner }),
                Err(error) if error.errno() == Errno::EAGAIN => {
                    Client::pause(attempt);
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Objects this client holds open, for tests and status.
    pub fn open_objects(&self) -> Vec<Ino> {
        lock(&self.handles).keys().copied().collect()
    }
}

/// How a decided rename went.
enum Decided {
    Moved(Option<(Ino, FileKind)>),
    /// Both names already were the same object: nothing to do, says rename(2).
    SameObject,
}

/// The right to move directories, until dropped.
struct RenameTurn<'a> {
    client: &'a Client,
    owner: LockOwner,
}

impl Drop for RenameTurn<'_> {
    fn drop(&mut self) {
        // A lost unlock ends with the session.
        let _ = self.client.lock(
            Ino::ROOT,
            self.owner,
            LockKind::Rename,
            LockRange::ALL,
            LockMode::Unlock,
            std::process::id(),
        );
    }
}
