//! Attributes, extended attributes, space.

use crate::calls::{Bulk, Call, expect_reply};
use crate::loan::nanos_now;
use crate::perm::{self, WRITE};
use crate::{Client, Cred, FsError, FsStat, Walk};
use std::collections::HashSet;
use tidepool_types::{Attr, BLOCK_SIZE, DaemonIndex, Errno, Ino, SetAttr, TimeSpec};
use tidepool_wire::message::{Reply, Request};
use tidepool_wire::record::DirPart;

/// Size shown for directories.
const DIR_SIZE: u64 = 4096;

impl Client {
    /// Attributes of an object. Those of a directory are put together from all daemons.
    pub fn get_attr(&self, ino: Ino) -> Result<Attr, FsError> {
        let attr = self.home_attr(ino)?;
        self.complete_attr(attr)
    }

    /// Adds to a directory's own record what each daemon knows of its entries.
    pub(crate) fn complete_attr(&self, mut attr: Attr) -> Result<Attr, FsError> {
        self.remember_layout(&attr);
        if !attr.is_dir() {
            return Ok(attr);
        }
        let parts = self.dir_parts(attr.ino)?;
        put_together(&mut attr, &parts);
        Ok(attr)
    }

    /// What each daemon knows of a directory's entries.
    fn dir_parts(&self, dir: Ino) -> Result<Vec<DirPart>, FsError> {
        let known = (0..self.members() as u16).map(|daemon| self.known_part(daemon, dir));
        if let Some(parts) = known.collect() {
            return Ok(parts);
        }
        let answers = self.ask_all(|| Request::DirStat { dir });
        answers
            .map(|(daemon, answer)| expect_reply!(self, daemon, answer?, Reply::Part { part } => part))
            .collect()
    }

    /// Sends the same request to every daemon at once.
    pub(crate) fn ask_all(
        &self,
        request: impl Fn() -> Request,
    ) -> impl Iterator<Item = (DaemonIndex, Result<Reply, FsError>)> {
        let all = (0..self.members()).map(|daemon| daemon as DaemonIndex).collect();
        self.ask_each(all, request)
    }

    /// Sends the same request to these daemons at once.
    pub(crate) fn ask_each(
        &self,
        daemons: Vec<DaemonIndex>,
        request: impl Fn() -> Request,
    ) -> impl Iterator<Item = (DaemonIndex, Result<Reply, FsError>)> {
        let call = |daemon: &DaemonIndex| Call::new(*daemon, request(), Bulk::None);
        let mut calls: Vec<Call<'_>> = daemons.iter().map(call).collect();
        let answers = self.call_all(&mut calls);
        daemons.into_iter().zip(answers.into_iter().map(|a| a.map(|a| a.reply)))
    }

    /// Sends a request to every daemon and demands `Done` of each.
    pub(crate) fn tell_all(&self, request: impl Fn() -> Request) -> Result<(), FsError> {
        let mut result = Ok(());
        for (daemon, answer) in self.ask_all(request) {
            let done = answer.and_then(|r| expect_reply!(self, daemon, r, Reply::Done {} => ()));
            result = result.and(done);
        }
        result
    }

    /// Changes attributes of an object. A size truncates or extends a file; whether the
    /// caller may write is checked when a file is opened, so not here. A time may be [`TimeSpec::NOW`].
    pub fn set_attr(&self, ino: Ino, set: &SetAttr, cred: &Cred) -> Result<Attr, FsError> {
        let old = self.home_attr(ino)?;
        let set = with_times_of(nanos_now(), self.permitted(&old, set, cred)?);
        let mut blocks = 0;
        if let Some(size) = set.size {
            if old.is_dir() {
                return Err(Errno::EISDIR.into());
            }
            blocks = self.trim_for(&old, size)?;
        }
        let touches_times = set.mtime.is_some() || set.atime.is_some();
        if old.is_dir() && touches_times {
            self.tell_all(|| Request::ResetDirTimes { dir: ino })?;
        }
        let reply = self.request(ino.home(), &Request::SetAttr { ino, set: set.clone(), blocks })?;
        let attr = expect_reply!(self, ino.home(), reply, Reply::Attributes { attr } => attr)?;
        if old.is_dir() && (set.mode.is_some() || set.uid.is_some() || set.gid.is_some()) {
            self.tell_all(|| Request::Bump {})?;
        }
        self.complete_attr(attr)
    }

    /// The change as `cred` may make it.
    fn permitted(&self, old: &Attr, set: &SetAttr, cred: &Cred) -> Result<SetAttr, FsError> {
        let mut set = set.clone();
        if self.relaxed() {
            return Ok(set);
        }
        // Also when it is the mode that it has: whose it is not may not, and set-group-ID may have to go.
        if let Some(mode) = set.mode {
            set.mode = Some(perm::chmod_bits(old.into(), cred, mode)?);
        }
        if set.uid.is_some() || set.gid.is_some() {
            let mode = perm::chown_mode(old.into(), cred, set.uid, set.gid)?;
            set.mode = set.mode.or(Some(mode));
        }
        self.check_times(old, &set, cred)?;
        Ok(set)
    }

    /// Whoever may write to an object may have it look changed, as writing would. Other times are its owner's to give.
    fn check_times(&self, old: &Attr, set: &SetAttr, cred: &Cred) -> Result<(), FsError> {
        if cred.is_root() || cred.uid == old.uid {
            return Ok(());
        }
        match (set.atime, set.mtime) {
            (None, None) => Ok(()),
            (Some(TimeSpec::NOW), Some(TimeSpec::NOW)) => Ok(self.check_rights(old.into(), cred, WRITE)?),
            _ => Err(Errno::EPERM.into()),
        }
    }

    /// Like [`Client::set_attr`], for a path; truncating needs the right to write.
    pub fn set_attr_at(
        &self,
        base: Ino,
        path: &[u8],
        follow: bool,
        set: &SetAttr,
        cred: &Cred,
    ) -> Result<Walk<Attr>, FsError> {
        let attr = match self.stat(base, path, follow, cred)? {
            Walk::Found(attr) => attr,
            Walk::Escape(path) => return Ok(Walk::Escape(path)),
        };
        if set.size.is_some() {
            self.check_perm((&attr).into(), cred, WRITE)?;
        }
        self.set_attr(attr.ino, set, cred).map(Walk::Found)
    }

    pub fn get_xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, FsError> {
        check_name_space(name)?;
        let inode = self.get_inode(ino)?;
        let found = inode.xattrs.into_iter().find(|(n, _)| **n == *name);
        found.map(|(_, value)| value.into_vec()).ok_or(Errno::ENODATA.into())
    }

    pub fn list_xattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>, FsError> {
        Ok(self.get_inode(ino)?.xattrs.into_iter().map(|(name, _)| name.into_vec()).collect())
    }

    /// Sets an attribute; `flags` are those of setxattr(2). [`crate::PHASE_ATTRIBUTE`] is a hint, and nothing of it is kept.
    pub fn set_xattr(&self, ino: Ino, name: &[u8], value: &[u8], flags: i32) -> Result<(), FsError> {
        check_name_space(name)?;
        let flags = u32::try_from(flags).map_err(|_| Errno::EINVAL)?;
        if value.len() > tidepool_types::XATTR_BYTES_MAX {
            return Err(Errno::E2BIG.into());
        }
        if self.is_told(name, value)? {
            return Ok(());
        }
        let request = Request::SetXattr { ino, name: name.into(), value: value.into(), flags };
        let reply = self.request(ino.home(), &request)?;
        let attr = expect_reply!(self, ino.home(), reply, Reply::Attributes { attr } => attr)?;
        self.list_changed(&attr, name)
    }

    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<(), FsError> {
        check_name_space(name)?;
        let reply = self.request(ino.home(), &Request::RemoveXattr { ino, name: name.into() })?;
        let attr = expect_reply!(self, ino.home(), reply, Reply::Attributes { attr } => attr)?;
        self.list_changed(&attr, name)
    }

    /// Space of all daemons together; a file system that several of them use counts once.
    pub fn stat_fs(&self) -> Result<FsStat, FsError> {
        let (mut total, mut free, mut files) = (0, 0, 0);
        let mut seen = HashSet::new();
        for (daemon, answer) in self.ask_all(|| Request::StatFs {}) {
            let stat = expect_reply!(self, daemon, answer?, Reply::Space { stat } => stat)?;
            let node = &self.pool().members[usize::from(daemon)].boot_id;
            files += stat.objects;
            if seen.insert((node.as_str(), stat.device)) {
                total += stat.total;
                free += stat.free;
            }
        }
        let block_size = u64::from(BLOCK_SIZE);
        Ok(FsStat { block_size, blocks: total / block_size, blocks_free: free / block_size, files })
    }
}

/// Adds to a directory's own record what the daemons know of its entries.
pub(crate) fn put_together(attr: &mut Attr, parts: &[DirPart]) {
    let subdirs: u64 = parts.iter().map(|part| part.subdirs).sum();
    attr.nlink = 2 + u32::try_from(subdirs).unwrap_or(u32::MAX - 2);
    attr.size = DIR_SIZE;
    if let Some(changed) = parts.iter().filter_map(|part| part.changed).max() {
        attr.mtime = attr.mtime.max(changed);
        attr.ctime = attr.ctime.max(changed);
    }
}

/// Extended attributes belong to a name space; those of `system.` have meanings, of which a pool knows access control lists.
fn check_name_space(name: &[u8]) -> Result<(), Errno> {
    if crate::is_list(name) {
        return Ok(());
    }
    let known = [&b"user."[..], b"trusted.", b"security."];
    match known.iter().find_map(|space| name.strip_prefix(*space)) {
        None => Err(Errno::EOPNOTSUPP),
        Some(b"") => Err(Errno::EINVAL),
        Some(_) => Ok(()),
    }
}

/// The change at this moment, with all its times given.
fn with_times_of(nanos: u64, set: SetAttr) -> SetAttr {
    let now = TimeSpec { sec: (nanos / 1_000_000_000) as i64, nsec: (nanos % 1_000_000_000) as u32 };
    let given = |time: Option<TimeSpec>| time.map(|time| if time == TimeSpec::NOW { now } else { time });
    SetAttr { atime: given(set.atime), mtime: given(set.mtime), ..set }
}
