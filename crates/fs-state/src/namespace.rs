//! Entries of directories: look up, make, remove, list, and the two-step changes that span
//! daemons (rename, rmdir).

use crate::state::{Context, Fail, Outcome, State};
use crate::{LIST_MAX, LIST_PLUS_MAX, MetaStore};
use tidepool_types::{Attr, Errno, FileKind, Ino, NAME_MAX, SYMLINK_MAX, TimeSpec, TxnId};
use tidepool_wire::message::{EntryPlus, NewObject, Reply, Request};
use tidepool_wire::record::{Dentry, DirPart, Hold, Inode, Mutation, Outcome as TxnOutcome};

/// The type bits of `st_mode` (S_IFMT).
const MODE_TYPE_BITS: u32 = 0o170_000;
/// Largest share of a frame that a listing fills.
const LIST_BYTES_MAX: usize = tidepool_wire::frame::META_MAX / 2;

type Named = (Box<[u8]>, Dentry);

/// How the entries of a directory change here.
#[derive(Clone, Copy)]
enum Change {
    Add(FileKind),
    Remove(FileKind),
    /// One object takes the place of another.
    Swap(FileKind, FileKind),
}

impl<S: MetaStore> State<S> {
    pub(crate) fn part(&self, dir: Ino) -> DirPart {
        self.store.dir_part(dir).unwrap_or_default()
    }

    /// The directory part after `change`, refused while the directory is being removed.
    fn changed_part(&self, dir: Ino, change: Change, now: TimeSpec) -> Result<Mutation, Fail> {
        let mut part = self.part(dir);
        let (added, removed) = match change {
            Change::Add(kind) => (Some(kind), None),
            Change::Remove(kind) => (None, Some(kind)),
            Change::Swap(new, old) => (Some(new), Some(old)),
        };
        if let (Some(hold), Some(_)) = (part.hold, added) {
            return Err(Fail::Held(hold));
        }
        if let Some(kind) = added {
            part.entries += 1;
            part.subdirs += u64::from(kind == FileKind::Directory);
        }
        if let Some(kind) = removed {
            part.entries = part.entries.saturating_sub(1);
            part.subdirs = part.subdirs.saturating_sub(u64::from(kind == FileKind::Directory));
        }
        part.changed = Some(now);
        Ok(Mutation::PutDirPart { dir, part })
    }

    /// The entry, if there is one and nothing holds it.
    fn free_dentry(&self, parent: Ino, name: &[u8]) -> Result<Option<Dentry>, Fail> {
        match self.store.dentry(parent, name) {
            Some(Dentry { hold: Some(hold), .. }) => Err(Fail::Held(hold)),
            dentry => Ok(dentry),
        }
    }

    fn existing(&self, parent: Ino, name: &[u8]) -> Result<Dentry, Fail> {
        self.free_dentry(parent, name)?.ok_or(Fail::Errno(Errno::ENOENT))
    }

    pub(crate) fn lookup(&mut self, ctx: &Context, parent: Ino, name: &[u8], open: bool) -> Outcome {
        self.check_epoch(ctx)?;
        check_name(name)?;
        let dentry = self.existing(parent, name)?;
        let attr = self.attr_if_home(dentry.ino);
        if open && attr.is_some() && dentry.kind == FileKind::Regular {
            self.handles.open(ctx.session, dentry.ino);
        }
        Ok(Reply::Entry { ino: dentry.ino, kind: dentry.kind, attr, created: false })
    }

    fn attr_if_home(&self, ino: Ino) -> Option<Attr> {
        (ino.home() == self.me).then(|| self.store.inode(ino).map(|i| i.attr)).flatten()
    }

    pub(crate) fn create(
        &mut self,
        ctx: &Context,
        parent: Ino,
        name: &[u8],
        object: &NewObject,
        excl: bool,
        open: bool,
    ) -> Outcome {
        self.check_epoch(ctx)?;
        check_name(name)?;
        if self.free_dentry(parent, name)?.is_some() {
            return if excl { Err(Errno::EEXIST.into()) } else { self.lookup(ctx, parent, name, open) };
        }
        let kind = check_object(object)?;
        let part = self.changed_part(parent, Change::Add(kind), ctx.now)?;
        let (ino, lease) = self.allocate()?;
        let inode = new_inode(ino, parent, kind, object, ctx.now);
        let attr = inode.attr.clone();
        let dentry = Dentry { ino, kind, hold: None };
        let mut batch =
            vec![Mutation::PutInode(inode), Mutation::PutDentry { parent, name: name.into(), dentry }, part];
        batch.extend(lease);
        self.commit(&batch)?;
        if open && kind == FileKind::Regular {
            self.handles.open(ctx.session, ino);
        }
        Ok(Reply::Entry { ino, kind, attr: Some(attr), created: true })
    }

    /// A file that has no entry yet. When its maker dies before there is one, it wastes space.
    pub(crate) fn make_object(&mut self, ctx: &Context, object: &NewObject, open: bool) -> Outcome {
        if check_object(object)? != FileKind::Regular {
            return Err(Errno::EINVAL.into());
        }
        let (ino, lease) = self.allocate()?;
        let inode = new_inode(ino, ino, FileKind::Regular, object, ctx.now);
        let attr = inode.attr.clone();
        let mut batch = vec![Mutation::PutInode(inode)];
        batch.extend(lease);
        self.commit(&batch)?;
        if open {
            self.handles.open(ctx.session, ino);
        }
        Ok(Reply::Attributes { attr })
    }

    pub(crate) fn put_dentry(
        &mut self,
        ctx: &Context,
        parent: Ino,
        name: &[u8],
        ino: Ino,
        kind: FileKind,
    ) -> Outcome {
        self.check_epoch(ctx)?;
        check_name(name)?;
        if kind == FileKind::Directory {
            return Err(Errno::EPERM.into());
        }
        if self.free_dentry(parent, name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let part = self.changed_part(parent, Change::Add(kind), ctx.now)?;
        let dentry = Dentry { ino, kind, hold: None };
        self.commit(&[Mutation::PutDentry { parent, name: name.into(), dentry }, part])?;
        Ok(Reply::Done {})
    }

    pub(crate) fn unlink(&mut self, ctx: &Context, parent: Ino, name: &[u8]) -> Outcome {
        self.check_epoch(ctx)?;
        check_name(name)?;
        let dentry = self.existing(parent, name)?;
        if dentry.kind == FileKind::Directory {
            return Err(Errno::EISDIR.into());
        }
        let mut batch = vec![
            Mutation::DelDentry { parent, name: name.into() },
            self.changed_part(parent, Change::Remove(dentry.kind), ctx.now)?,
        ];
        let home = (dentry.ino.home() == self.me).then(|| self.store.inode(dentry.ino)).flatten();
        let attr = home.map(|inode| self.lower_nlink(inode, 1, ctx.now, &mut batch));
        self.commit(&batch)?;
        Ok(Reply::Unlinked { ino: dentry.ino, kind: dentry.kind, attr })
    }

    pub(crate) fn list(&self, dir: Ino, after: Option<&[u8]>, max: u32) -> Reply {
        let (entries, more) = self.page(dir, after, (max as usize).clamp(1, LIST_MAX));
        Reply::Entries { entries, more }
    }

    pub(crate) fn list_plus(&self, dir: Ino, after: Option<&[u8]>, max: u32) -> Reply {
        let (entries, more) = self.page(dir, after, (max as usize).clamp(1, LIST_PLUS_MAX));
        let plus =
            |(name, dentry): (_, Dentry)| EntryPlus { name, attr: self.attr_if_home(dentry.ino), dentry };
        Reply::EntriesPlus { entries: entries.into_iter().map(plus).collect(), more }
    }

    /// Entries of one listing reply, and whether more follow.
    fn page(&self, dir: Ino, after: Option<&[u8]>, max: usize) -> (Vec<Named>, bool) {
        let mut entries = self.store.list(dir, after, max);
        let full = entries.len() == max;
        let mut bytes = 0;
        let fitting = entries.iter().take_while(|(name, _)| {
            bytes += name.len() + 64;
            bytes <= LIST_BYTES_MAX
        });
        let fitting = fitting.count();
        let cut = fitting < entries.len();
        entries.truncate(fitting);
        (entries, full || cut)
    }

    pub(crate) fn parts(&self, dirs: &[Ino]) -> Outcome {
        if dirs.len() > LIST_MAX {
            return Err(Errno::EINVAL.into());
        }
        Ok(Reply::Parts { parts: dirs.iter().map(|dir| self.part(*dir)).collect() })
    }

    pub(crate) fn reset_dir_times(&mut self, dir: Ino) -> Outcome {
        let Some(mut part) = self.store.dir_part(dir) else { return Ok(Reply::Done {}) };
        if part.changed.take().is_some() {
            self.commit(&[Mutation::PutDirPart { dir, part }])?;
        }
        Ok(Reply::Done {})
    }

    pub(crate) fn prepare(&mut self, ctx: &Context, hold: Hold, parent: Ino, name: &[u8]) -> Outcome {
        self.check_epoch(ctx)?;
        check_name(name)?;
        let mut dentry = self.existing(parent, name)?;
        dentry.hold = Some(hold);
        let (ino, kind) = (dentry.ino, dentry.kind);
        self.commit(&[Mutation::PutDentry { parent, name: name.into(), dentry }])?;
        Ok(Reply::Entry { ino, kind, attr: self.attr_if_home(ino), created: false })
    }

    pub(crate) fn prepare_dir(&mut self, hold: Hold, dir: Ino) -> Outcome {
        let mut part = self.part(dir);
        match part.hold {
            Some(other) if other.txn != hold.txn => return Err(Fail::Held(other)),
            _ => part.hold = Some(hold),
        }
        if part.entries > 0 {
            return Err(Errno::ENOTEMPTY.into());
        }
        self.commit(&[Mutation::PutDirPart { dir, part }])?;
        Ok(Reply::Done {})
    }

    /// Refuses a transaction that somebody has already resolved, either way.
    fn check_undecided(&self, txn: TxnId) -> Result<(), Fail> {
        match self.store.outcome(txn) {
            Some(_) => Err(Fail::Errno(Errno::ECANCELED)),
            None => Ok(()),
        }
    }

    pub(crate) fn commit_rename(&mut self, ctx: &Context, request: &Request) -> Outcome {
        let Request::CommitRename { txn, parent, name, ino, kind, no_replace, replaces } = request else {
            return Err(Errno::EINVAL.into());
        };
        self.check_epoch(ctx)?;
        check_name(name)?;
        self.check_undecided(*txn)?;
        let old = self.free_dentry(*parent, name)?;
        if let Some(old) = &old {
            if *no_replace {
                return Err(Errno::EEXIST.into());
            }
            if old.ino == *ino {
                return Ok(Reply::Replaced { ino: Some(old.ino), kind: Some(old.kind) });
            }
            check_replaceable(old, *kind, *replaces)?;
        } else if replaces.is_some() {
            return Err(Errno::ESTALE.into());
        }
        let change = match &old {
            Some(old) => Change::Swap(*kind, old.kind),
            None => Change::Add(*kind),
        };
        let dentry = Dentry { ino: *ino, kind: *kind, hold: None };
        let moved = (*kind == FileKind::Directory).then_some((*ino, *parent));
        self.commit(&[
            Mutation::PutDentry { parent: *parent, name: name.clone(), dentry },
            self.changed_part(*parent, change, ctx.now)?,
            Mutation::PutOutcome {
                txn: *txn,
                outcome: TxnOutcome { committed: true, at: self.steady(ctx.monotonic), moved },
            },
        ])?;
        Ok(Reply::Replaced { ino: old.as_ref().map(|d| d.ino), kind: old.map(|d| d.kind) })
    }

    pub(crate) fn commit_rmdir(
        &mut self,
        ctx: &Context,
        txn: TxnId,
        parent: Ino,
        name: &[u8],
        dir: Ino,
    ) -> Outcome {
        self.check_epoch(ctx)?;
        self.check_undecided(txn)?;
        let dentry = self.existing(parent, name)?;
        if dentry.ino != dir {
            return Err(Errno::ESTALE.into());
        }
        self.commit(&[
            Mutation::DelDentry { parent, name: name.into() },
            self.changed_part(parent, Change::Remove(FileKind::Directory), ctx.now)?,
            Mutation::PutOutcome {
                txn,
                outcome: TxnOutcome { committed: true, at: self.steady(ctx.monotonic), moved: None },
            },
        ])?;
        Ok(Reply::Done {})
    }

    /// Ends a hold on an entry. Repeating it, or ending a hold that is not there, is harmless.
    pub(crate) fn finish(
        &mut self,
        ctx: &Context,
        txn: TxnId,
        committed: bool,
        parent: Ino,
        name: &[u8],
    ) -> Outcome {
        let dentry = self.store.dentry(parent, name);
        let Some(mut dentry) = dentry.filter(|d| d.hold.is_some_and(|h| h.txn == txn)) else {
            return Ok(Reply::Done {});
        };
        if committed {
            self.commit(&[
                Mutation::DelDentry { parent, name: name.into() },
                self.changed_part(parent, Change::Remove(dentry.kind), ctx.now)?,
            ])?;
        } else {
            dentry.hold = None;
            self.commit(&[Mutation::PutDentry { parent, name: name.into(), dentry }])?;
        }
        Ok(Reply::Done {})
    }

    /// Ends a hold on a directory part; a committed one also voids what clients cached.
    pub(crate) fn finish_dir(&mut self, txn: TxnId, committed: bool, dir: Ino) -> Outcome {
        let part = self.store.dir_part(dir);
        if let Some(mut part) = part.filter(|p| p.hold.is_some_and(|h| h.txn == txn)) {
            let change = if committed {
                Mutation::DelDirPart(dir)
            } else {
                part.hold = None;
                Mutation::PutDirPart { dir, part }
            };
            self.commit(&[change])?;
        }
        if committed {
            self.bump();
        }
        Ok(Reply::Done {})
    }

    pub(crate) fn resolve(&mut self, ctx: &Context, txn: TxnId) -> Outcome {
        let outcome = match self.store.outcome(txn) {
            Some(outcome) => outcome,
            None => {
                let outcome = TxnOutcome { committed: false, at: self.steady(ctx.monotonic), moved: None };
                self.commit(&[Mutation::PutOutcome { txn, outcome }])?;
                outcome
            }
        };
        Ok(Reply::Decided { committed: outcome.committed, moved: outcome.moved })
    }
}

fn check_replaceable(old: &Dentry, kind: FileKind, replaces: Option<Ino>) -> Result<(), Fail> {
    match (old.kind == FileKind::Directory, kind == FileKind::Directory) {
        (true, false) => Err(Errno::EISDIR.into()),
        (false, true) => Err(Errno::ENOTDIR.into()),
        // The client empties and holds the directory it saw; another one there now is news to it.
        (true, true) if replaces != Some(old.ino) => Err(Errno::ESTALE.into()),
        (false, false) if replaces.is_some() => Err(Errno::ESTALE.into()),
        _ => Ok(()),
    }
}

fn check_name(name: &[u8]) -> Result<(), Fail> {
    match name {
        b"" | b"." | b".." => Err(Errno::EINVAL.into()),
        _ if name.len() > NAME_MAX => Err(Errno::ENAMETOOLONG.into()),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Errno::EINVAL.into()),
        _ => Ok(()),
    }
}

fn check_object(object: &NewObject) -> Result<FileKind, Fail> {
    let kind = FileKind::from_mode(object.mode)?;
    let layout_fits = match kind {
        FileKind::Regular => object.layout.is_some(),
        FileKind::Directory => true,
        _ => object.layout.is_none(),
    };
    let target_fits = match kind {
        FileKind::Symlink => (1..=SYMLINK_MAX).contains(&object.target.len()),
        _ => object.target.is_empty(),
    };
    if target_fits && layout_fits { Ok(kind) } else { Err(Errno::EINVAL.into()) }
}

fn new_inode(ino: Ino, parent: Ino, kind: FileKind, object: &NewObject, now: TimeSpec) -> Inode {
    let attr = Attr {
        ino,
        mode: object.mode & (MODE_TYPE_BITS | 0o7777),
        nlink: if kind == FileKind::Directory { 2 } else { 1 },
        uid: object.uid,
        gid: object.gid,
        size: object.target.len() as u64,
        blocks: 0,
        rdev: object.rdev,
        atime: now,
        mtime: now,
        ctime: now,
        layout: object.layout,
    };
    let parent = if kind == FileKind::Directory { parent } else { Ino::ROOT };
    Inode { attr, parent, target: object.target.clone(), xattrs: Vec::new() }
}
