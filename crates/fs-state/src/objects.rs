//! Records of objects at home here: attributes, sizes, link counts, handles, attributes
//! of the extended kind, locks.

use crate::lists;
use crate::locks::Set;
use crate::state::{Context, Fail, Outcome, State};
use crate::{LIST_MAX, MetaStore, Ticket};
use std::io;
use tidepool_types::{
    Attr, Errno, FILE_SIZE_MAX, FileKind, Ino, Layout, NAME_MAX, SessionId, SetAttr, TimeSpec,
    XATTR_BYTES_MAX,
};
use tidepool_wire::message::{LockMode, LockRequest, Reply};
use tidepool_wire::record::{Inode, Mutation};

/// Flags of setxattr(2).
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;

impl<S: MetaStore> State<S> {
    pub(crate) fn get_attr(&self, ino: Ino) -> Outcome {
        Ok(Reply::Attributes { attr: self.inode(ino)?.attr })
    }

    pub(crate) fn get_attrs(&self, inos: &[Ino]) -> Outcome {
        if inos.len() > LIST_MAX {
            return Err(Errno::EINVAL.into());
        }
        Ok(Reply::AttributesOf { attrs: inos.iter().filter_map(|ino| self.attr(*ino)).collect() })
    }

    pub(crate) fn open_handle(&mut self, ctx: &Context, ino: Ino) -> Outcome {
        let attr = self.inode(ino)?.attr;
        self.handles.open(ctx.session, ino);
        Ok(Reply::Attributes { attr })
    }

    /// Like [`State::open_handle`], with the version of the content when its data may be kept.
    pub(crate) fn open_kept(&mut self, ctx: &Context, ino: Ino) -> Outcome {
        let attr = self.inode(ino)?.attr;
        self.handles.open(ctx.session, ino);
        let version = if ctx.keep { self.leases.grant_version(ino, ctx.session) } else { 0 };
        Ok(Reply::Opened { attr, version })
    }

    /// Grants the asker what it needs to keep data of an object. Somebody may be changing them right now: then it is to ask again.
    pub(crate) fn keep(&mut self, ctx: &Context, ino: Ino) -> Outcome {
        let attr = self.inode(ino)?.attr;
        let granted = if ctx.keep { self.leases.grant_data(ino, ctx.session) } else { Some(0) };
        granted.map(|version| Reply::Opened { attr, version }).ok_or(Fail::Recalled)
    }

    pub(crate) fn close_handle(&mut self, ctx: &Context, ino: Ino) -> Outcome {
        if self.handles.close(ctx.session, ino) {
            self.doom_if_orphan(ino, ctx.monotonic);
        }
        Ok(Reply::Done {})
    }

    fn put(&mut self, inode: Inode) -> Outcome {
        let attr = inode.attr.clone();
        self.commit(&[Mutation::PutInode(inode)])?;
        Ok(Reply::Attributes { attr })
    }

    pub(crate) fn set_attr(&mut self, ctx: &Context, ino: Ino, set: &SetAttr, blocks: i64) -> Outcome {
        let mut inode = self.inode(ino)?;
        if let Some(mode) = set.mode {
            lists::change_mode(&mut inode, mode)?;
        }
        let attr = &mut inode.attr;
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        if let Some(size) = set.size {
            check_size(attr, size)?;
            attr.size = size;
            attr.mtime = ctx.now;
        }
        attr.atime = set.atime.unwrap_or(attr.atime);
        attr.mtime = set.mtime.unwrap_or(attr.mtime);
        attr.blocks = attr.blocks.saturating_add(blocks);
        attr.ctime = ctx.now;
        self.put(inode)
    }

    /// Files keep the layout they were made with: their data lie by it, and clients remember it.
    pub(crate) fn set_layout(&mut self, ctx: &Context, dir: Ino, layout: Option<Layout>) -> Outcome {
        let mut inode = self.inode(dir)?;
        if !inode.attr.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        inode.attr.layout = layout;
        inode.attr.ctime = ctx.now;
        self.put(inode)
    }

    /// What a write does to the record: grow to `end`, count `blocks`, move the times.
    pub(crate) fn extend(&mut self, ctx: &Context, ino: Ino, end: u64, blocks: i64) -> Outcome {
        let mut inode = self.inode(ino)?;
        check_size(&inode.attr, end)?;
        let attr = &mut inode.attr;
        attr.size = attr.size.max(end);
        attr.blocks = attr.blocks.saturating_add(blocks);
        attr.mtime = ctx.now;
        attr.ctime = ctx.now;
        self.put(inode)
    }

    /// Takes up to `max` recorded blocks off the record: how many. Who drops data takes first what may go and tells of the
    /// rest afterwards; of several at the same time each gets only what no other has taken.
    pub(crate) fn take_blocks(&mut self, ino: Ino, max: u64) -> Outcome {
        let mut inode = self.inode(ino)?;
        let taken = inode.attr.blocks.clamp(0, i64::try_from(max).unwrap_or(i64::MAX));
        if taken > 0 {
            inode.attr.blocks -= taken;
            self.commit(&[Mutation::PutInode(inode)])?;
        }
        Ok(Reply::Written { blocks: taken, attr: None })
    }

    /// Records what was written beside us into the files of an object at home here: its size is at least `size`, it has
    /// `blocks` more, and was written at `written`, if it was, which is no later than `now`. Its attributes; `None` when there is no such
    /// object.
    pub fn written_beside(
        &mut self,
        ino: Ino,
        size: u64,
        blocks: i64,
        (written, now): (Option<TimeSpec>, TimeSpec),
    ) -> io::Result<Option<Attr>> {
        let Some(mut inode) = self.checked(self.store.inode(ino))? else { return Ok(None) };
        let old = inode.attr.clone();
        let attr = &mut inode.attr;
        attr.size = attr.size.max(size);
        attr.blocks = attr.blocks.saturating_add(blocks);
        if let Some(written) = written.map(|written| written.min(now)) {
            // Others may have changed it later, by requests; but a time that was set ahead is overtaken.
            if attr.mtime < written || attr.mtime > now {
                attr.mtime = written;
            }
            attr.ctime = attr.ctime.max(attr.mtime);
        }
        let attr = attr.clone();
        if attr != old {
            // Who may keep something of a lent object is its borrower.
            self.store.commit(&[Mutation::PutInode(inode)])?;
        }
        Ok(Some(attr))
    }

    fn attr(&self, ino: Ino) -> Option<Attr> {
        self.store.inode(ino).map(|inode| inode.attr)
    }

    /// Attributes of an object at home here.
    pub fn attr_of(&self, ino: Ino) -> io::Result<Option<Attr>> {
        self.checked(self.attr(ino))
    }

    pub(crate) fn reserve(&mut self, ctx: &Context, ino: Ino, len: u64) -> Outcome {
        let mut inode = self.inode(ino)?;
        let offset = inode.attr.size;
        let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
        check_size(&inode.attr, end)?;
        inode.attr.size = end;
        inode.attr.mtime = ctx.now;
        inode.attr.ctime = ctx.now;
        let attr = inode.attr.clone();
        self.commit(&[Mutation::PutInode(inode)])?;
        Ok(Reply::Offset { offset, attr })
    }

    pub(crate) fn unreserve(&mut self, ino: Ino, offset: u64, len: u64) -> Outcome {
        let mut inode = self.inode(ino)?;
        // Somebody may have appended behind it: then its zeros have to stay.
        if offset.checked_add(len) == Some(inode.attr.size) {
            inode.attr.size = offset;
        }
        self.put(inode)
    }

    pub(crate) fn nlink(&mut self, ctx: &Context, ino: Ino, delta: i32) -> Outcome {
        let mut inode = self.inode(ino)?;
        if inode.attr.is_dir() {
            return Err(Errno::EPERM.into());
        }
        if delta < 0 {
            let mut batch = Vec::new();
            let attr = self.lower_nlink(inode, delta.unsigned_abs(), ctx.now, &mut batch);
            self.commit(&batch)?;
            return Ok(Reply::Attributes { attr });
        }
        if inode.attr.nlink == 0 {
            return Err(Errno::ENOENT.into());
        }
        inode.attr.nlink = inode.attr.nlink.checked_add_signed(delta).ok_or(Errno::EMLINK)?;
        inode.attr.ctime = ctx.now;
        self.put(inode)
    }

    /// Adds to `batch` what losing `by` names does; a nameless object nobody has open goes.
    pub(crate) fn lower_nlink(
        &mut self,
        mut inode: Inode,
        by: u32,
        now: TimeSpec,
        batch: &mut Vec<Mutation>,
    ) -> Attr {
        let ino = inode.attr.ino;
        inode.attr.nlink = inode.attr.nlink.saturating_sub(by);
        inode.attr.ctime = now;
        let attr = inode.attr.clone();
        if attr.nlink > 0 || self.handles.is_open(ino) {
            batch.push(Mutation::PutInode(inode));
            return attr;
        }
        batch.push(Mutation::DelInode(ino));
        if attr.kind() == FileKind::Regular && (attr.blocks != 0 || attr.size > 0) {
            // The peers have no chunks of a local file.
            if attr.layout != Some(Layout::LOCAL) {
                batch.push(Mutation::PutReap(ino));
            }
            self.dropped.push(ino);
        }
        attr
    }

    pub(crate) fn remove_dir(&mut self, dir: Ino) -> Outcome {
        match self.store.inode(dir) {
            Some(inode) if !inode.attr.is_dir() => Err(Errno::ENOTDIR.into()),
            Some(_) if dir == Ino::ROOT => Err(Errno::EBUSY.into()),
            Some(_) => {
                self.commit(&[Mutation::DelInode(dir)])?;
                Ok(Reply::Done {})
            }
            None => Ok(Reply::Done {}),
        }
    }

    pub(crate) fn set_parent(&mut self, ctx: &Context, dir: Ino, parent: Ino) -> Outcome {
        let mut inode = self.inode(dir)?;
        if !inode.attr.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        inode.parent = parent;
        inode.attr.ctime = ctx.now;
        self.put(inode)
    }

    pub(crate) fn set_xattr(
        &mut self,
        ctx: &Context,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Outcome {
        if name.is_empty() || name.len() > NAME_MAX || name.contains(&0) {
            return Err(Errno::ERANGE.into());
        }
        let mut inode = self.inode(ino)?;
        let Some(value) = lists::before_set(&mut inode, name, value)? else {
            inode.attr.ctime = ctx.now;
            return self.put(inode);
        };
        match inode.xattrs.binary_search_by(|(n, _)| (**n).cmp(name)) {
            Ok(_) if flags & XATTR_CREATE != 0 => return Err(Errno::EEXIST.into()),
            Ok(at) => inode.xattrs[at].1 = value,
            Err(_) if flags & XATTR_REPLACE != 0 => return Err(Errno::ENODATA.into()),
            Err(at) => inode.xattrs.insert(at, (name.into(), value)),
        }
        let bytes: usize = inode.xattrs.iter().map(|(n, v)| n.len() + v.len()).sum();
        if bytes > XATTR_BYTES_MAX {
            return Err(Errno::ENOSPC.into());
        }
        inode.attr.ctime = ctx.now;
        self.put(inode)
    }

    pub(crate) fn remove_xattr(&mut self, ctx: &Context, ino: Ino, name: &[u8]) -> Outcome {
        let mut inode = self.inode(ino)?;
        if lists::is_list(name) {
            // Without one there is nothing to do.
            lists::remove(&mut inode, name);
        } else {
            let at = inode.xattrs.binary_search_by(|(n, _)| (**n).cmp(name)).map_err(|_| Errno::ENODATA)?;
            inode.xattrs.remove(at);
        }
        inode.attr.ctime = ctx.now;
        self.put(inode)
    }

    /// Queues for a lock; `Some` when that is refused at once. What the waiter hears comes with `locks.take_answered`.
    pub fn wait_for_lock(
        &mut self,
        session: SessionId,
        ino: Ino,
        lock: &LockRequest,
        ticket: Ticket,
    ) -> Option<Errno> {
        if lock.start > lock.end || lock.mode == LockMode::Unlock {
            return Some(Errno::EINVAL);
        }
        let there = self.store.inode(ino).is_some();
        match self.checked(there) {
            Ok(true) => self.locks.wait(ino, session, lock, ticket),
            Ok(false) => return Some(Errno::ENOENT),
            Err(error) => return Some(Errno::from(&error)),
        }
        None
    }

    pub(crate) fn lock(&mut self, ctx: &Context, ino: Ino, lock: &LockRequest) -> Outcome {
        if lock.start > lock.end {
            return Err(Errno::EINVAL.into());
        }
        self.inode(ino)?;
        match self.locks.set(ino, ctx.session, lock) {
            Set::Done => Ok(Reply::Done {}),
            Set::InTheWay => Err(Errno::EAGAIN.into()),
            Set::NoRoom => Err(Errno::ENOLCK.into()),
        }
    }
}

fn check_size(attr: &Attr, size: u64) -> Result<(), Errno> {
    match attr.kind() {
        FileKind::Regular if size <= FILE_SIZE_MAX => Ok(()),
        FileKind::Regular => Err(Errno::EFBIG),
        FileKind::Directory => Err(Errno::EISDIR),
        _ => Err(Errno::EINVAL),
    }
}
