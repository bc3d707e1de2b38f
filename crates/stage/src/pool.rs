//! A directory of a pool as an end of a copy.

use crate::end::{At, Cursor, DirRef, End, EndError, EndResult, FileRef, Item, Meta, Rights, SetMeta, Xattr};
use crate::leads::{Leads, LinkAt};
use crate::whole::Whole;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use tidepool_client::{Client, Cred, DirEntry, FsError};
use tidepool_types::{Attr, BLOCK_SIZE, Errno, FileKind, Ino, Layout, SetAttr};
use tidepool_wire::message::{Reply, Request};

/// Entries handed out at a time.
const LIST_PAGE: usize = 1024;
/// From this many files on, one sync of the whole pool is cheaper than one for each.
const SYNC_EACH_MAX: usize = 4;

/// An open file of a pool.
pub struct PoolHandle {
    client: Arc<Client>,
    ino: Ino,
    layout: Layout,
}

impl Drop for PoolHandle {
    fn drop(&mut self) {
        self.client.release(self.ino);
    }
}

/// A directory of a pool, by its id.
pub struct PoolEnd {
    client: Arc<Client>,
    base: Ino,
    /// Of the base, from the pool's root, where that is known.
    path: Option<Vec<u8>>,
    cred: Cred,
    /// Stands for the pool where a local file system has its device number.
    dev: u64,
}

fn fail(operation: &'static str) -> impl Fn(FsError) -> EndError {
    move |error| EndError { errno: error.errno(), operation, detail: error.detail().map(str::to_string) }
}

impl PoolEnd {
    /// `base` must be a directory.
    pub fn new(client: Arc<Client>, base: Ino, cred: Cred) -> PoolEnd {
        let dev = client.instance().0[..8].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        PoolEnd { client, base, path: None, cred, dev }
    }

    /// The directory that `path` names, component by component from the pool's root and
    /// without following links; with `create`, missing ones are made with mode 0755.
    pub fn at_path(client: Arc<Client>, path: &[u8], cred: Cred, create: bool) -> EndResult<PoolEnd> {
        let mut end = PoolEnd::new(client, Ino::ROOT, cred);
        let names = || path.split(|b| *b == b'/').filter(|n| !n.is_empty() && *n != b".");
        end.path = Some(names().collect::<Vec<_>>().join(&b'/'));
        for name in names() {
            if create {
                match end.client.mkdir(end.base, name, 0o755, &end.cred).and_then(|made| made.inside()) {
                    Err(error) if error.errno() != Errno::EEXIST => {
                        return Err(fail("make directory")(error));
                    }
                    _ => {}
                }
            }
            let DirRef::Pool(next) = end.open_dir(&DirRef::Pool(end.base), name)? else { break };
            end.base = next;
        }
        Ok(end)
    }

    fn dir(&self, dir: &DirRef) -> EndResult<Ino> {
        match dir {
            DirRef::Pool(ino) => Ok(*ino),
            _ => Err(EndError::new("use a directory of another end", Errno::EBADF)),
        }
    }

    fn ino(&self, at: At<'_>, operation: &'static str) -> EndResult<Ino> {
        match at {
            At::File(file) => Ok(handle(file)?.ino),
            At::Dir(dir) => self.dir(dir),
            At::Name(dir, name) => Ok(self.client.lookup(self.dir(dir)?, name).map_err(fail(operation))?.ino),
        }
    }

    fn open_file(
        &self,
        dir: &DirRef,
        name: &[u8],
        flags: i32,
        operation: &'static str,
    ) -> EndResult<FileRef> {
        let flags = flags | libc::O_NOFOLLOW;
        let opened = self.client.open(self.dir(dir)?, name, flags, 0o600, &self.cred);
        let attr = opened.and_then(|walk| walk.inside()).map_err(fail(operation))?;
        if attr.kind() != FileKind::Regular {
            return Err(EndError::new(operation, Errno::EINVAL));
        }
        let layout = attr.layout.ok_or_else(|| EndError::new(operation, Errno::EPROTO))?;
        Ok(FileRef::Pool(Arc::new(PoolHandle { client: self.client.clone(), ino: attr.ino, layout })))
    }

    fn meta(&self, attr: &Attr) -> Meta {
        Meta {
            dev: self.dev,
            ino: attr.ino.0,
            kind: attr.kind(),
            mode: attr.mode & 0o7777,
            nlink: attr.nlink.into(),
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            stored: attr.stored_blocks().saturating_mul(BLOCK_SIZE.into()),
            rdev: attr.rdev,
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
        }
    }

    /// First stored range that ends after `from` on the daemon that keeps the chunk there.
    fn extent_at(&self, file: &PoolHandle, from: u64) -> EndResult<Option<(u64, u64)>> {
        let daemon = self.client.chunk_owner(file.ino, file.layout, from);
        let request = Request::Extents { ino: file.ino, from, max: 1 };
        match self.client.request(daemon, &request).map_err(fail("find hole"))? {
            Reply::Ranges { ranges } => Ok(ranges.first().copied()),
            Reply::Failed { errno, detail } => {
                let detail = format!("node {}: {detail}", self.client.host(daemon));
                Err(EndError { errno, operation: "find hole", detail: Some(detail) })
            }
            _ => Err(EndError::new("find hole", Errno::EPROTO)),
        }
    }
}

fn item((entry, attr): (DirEntry, Option<Attr>)) -> Item {
    Item {
        name: entry.name,
        kind: Some(entry.kind),
        size: attr.filter(|a| a.kind() == FileKind::Regular).map(|a| a.size),
    }
}

fn handle(file: &FileRef) -> EndResult<&PoolHandle> {
    match file {
        FileRef::Pool(handle) => Ok(handle),
        _ => Err(EndError::new("use a file of another end", Errno::EBADF)),
    }
}

impl End for PoolEnd {
    fn describe(&self) -> String {
        format!("pool {} at {}", self.client.pool().mount.display(), self.base)
    }

    fn identity(&self) -> Vec<u8> {
        format!("pool:{}:{}", self.client.instance(), self.base).into_bytes()
    }

    fn rights(&self) -> Rights {
        Rights { root: self.cred.is_root(), uid: self.cred.uid, gid: self.cred.gid }
    }

    fn gives_group(&self, gid: u32) -> bool {
        self.cred.in_group(gid)
    }

    fn place(&self) -> Option<Vec<u8>> {
        self.path.clone()
    }

    fn holds(&self, other: &dyn End) -> bool {
        let dev = |end: &dyn End| end.stat(At::Dir(&end.root())).map(|meta| meta.dev);
        matches!(other.root(), DirRef::Pool(_)) && dev(other).is_ok_and(|dev| dev == self.dev)
    }

    fn leads(&self, at: &LinkAt<'_>, target: &[u8]) -> EndResult<Leads> {
        let mount = self.client.pool().mount.as_os_str().as_bytes().to_vec();
        Whole { end: self, root: DirRef::Pool(Ino::ROOT), mount }.lead(at, target)
    }

    fn knows_sizes(&self, _meta: &Meta) -> bool {
        true
    }

    fn reads_touch_atime(&self) -> bool {
        false
    }

    fn root(&self) -> DirRef {
        DirRef::Pool(self.base)
    }

    fn open_dir(&self, dir: &DirRef, name: &[u8]) -> EndResult<DirRef> {
        let attr = self.client.lookup_home(self.dir(dir)?, name).map_err(fail("open directory"))?;
        if attr.is_dir() {
            Ok(DirRef::Pool(attr.ino))
        } else {
            Err(EndError::new("open directory", Errno::ENOTDIR))
        }
    }

    fn leave_dir(&self, _dir: &DirRef) {}

    fn list(&self, dir: &DirRef, from: &Cursor) -> EndResult<(Vec<Item>, Option<Cursor>)> {
        let (entries, start) = match from {
            Cursor::Pool { entries, at } => (entries.clone(), *at),
            _ => {
                let listed = self.client.read_dir_plus(self.dir(dir)?).map_err(fail("list"))?;
                (listed.into_iter().map(item).collect(), 0)
            }
        };
        let end = entries.len().min(start + LIST_PAGE);
        let items = entries[start..end].to_vec();
        let next = (end < entries.len()).then_some(Cursor::Pool { entries, at: end });
        Ok((items, next))
    }

    fn stat(&self, at: At<'_>) -> EndResult<Meta> {
        let attr = match at {
            At::File(file) => self.client.get_attr(handle(file)?.ino),
            At::Dir(dir) => self.client.get_attr(self.dir(dir)?),
            At::Name(dir, name) => self.client.lookup(self.dir(dir)?, name),
        };
        Ok(self.meta(&attr.map_err(fail("stat"))?))
    }

    fn read_link(&self, dir: &DirRef, name: &[u8]) -> EndResult<Vec<u8>> {
        let ino = self.ino(At::Name(dir, name), "read link")?;
        self.client.read_link(ino).map_err(fail("read link"))
    }

    fn xattrs(&self, at: At<'_>) -> EndResult<Vec<Xattr>> {
        let ino = self.ino(at, "list attributes")?;
        let mut found = Vec::new();
        for name in self.client.list_xattr(ino).map_err(fail("list attributes"))? {
            match self.client.get_xattr(ino, &name) {
                Ok(value) => found.push((name, value)),
                Err(error) if error.errno() == Errno::ENODATA => {}
                Err(error) => return Err(fail("read attribute")(error)),
            }
        }
        Ok(found)
    }

    fn open_read(&self, dir: &DirRef, name: &[u8]) -> EndResult<FileRef> {
        self.open_file(dir, name, libc::O_RDONLY, "open")
    }

    fn read(&self, file: &FileRef, offset: u64, buf: &mut [u8]) -> EndResult<usize> {
        self.client.read(handle(file)?.ino, offset, buf).map_err(fail("read"))
    }

    fn next_data(&self, file: &FileRef, offset: u64) -> EndResult<Option<u64>> {
        match self.client.next_data(handle(file)?.ino, offset) {
            Ok(at) => Ok(at),
            Err(error) if error.errno() == Errno::ENXIO => Ok(None),
            Err(error) => Err(fail("find data")(error)),
        }
    }

    fn next_hole(&self, file: &FileRef, offset: u64, limit: u64) -> EndResult<u64> {
        // `Client::next_hole` would look through the whole rest of the file.
        let file = handle(file)?;
        let mut at = offset;
        while at < limit {
            match self.extent_at(file, at)? {
                // Neighbouring ranges of one daemon may belong to chunks far apart.
                Some((start, len)) if start <= at && start + len > at => {
                    at = (start + len).min(file.layout.next_chunk(at));
                }
                _ => return Ok(at),
            }
        }
        Ok(limit)
    }

    fn drop_cache(&self, _file: &FileRef, _offset: u64, _len: u64) {}

    fn create(&self, dir: &DirRef, name: &[u8]) -> EndResult<FileRef> {
        self.open_file(dir, name, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, "create")
    }

    fn open_write(&self, dir: &DirRef, name: &[u8]) -> EndResult<FileRef> {
        self.open_file(dir, name, libc::O_RDWR, "open")
    }

    fn write(&self, file: &FileRef, offset: u64, data: &[u8]) -> EndResult<usize> {
        self.client.write(handle(file)?.ino, offset, data).map_err(fail("write"))
    }

    fn truncate(&self, file: &FileRef, size: u64) -> EndResult<()> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.client.set_attr(handle(file)?.ino, &set, &self.cred).map(drop).map_err(fail("set size"))
    }

    fn fsync(&self, file: &FileRef) -> EndResult<()> {
        self.client.fsync(handle(file)?.ino).map_err(fail("fsync"))
    }

    fn fsync_many(&self, files: &[&FileRef]) -> Vec<EndResult<()>> {
        if files.len() <= SYNC_EACH_MAX {
            return files.iter().map(|file| self.fsync(file)).collect();
        }
        let result = self.fsync_all();
        files.iter().map(|_| result.clone()).collect()
    }

    fn fsync_dir(&self, _dir: &DirRef) -> EndResult<()> {
        // Entries of one directory live on all daemons; `fsync_all` covers them once, at the end.
        Ok(())
    }

    fn fsync_all(&self) -> EndResult<()> {
        self.client.sync_all().map_err(fail("sync pool"))
    }

    fn make_dir(&self, dir: &DirRef, name: &[u8]) -> EndResult<()> {
        let made = self.client.mkdir(self.dir(dir)?, name, 0o700, &self.cred);
        made.and_then(|walk| walk.inside()).map(drop).map_err(fail("make directory"))
    }

    fn make_symlink(&self, dir: &DirRef, name: &[u8], target: &[u8]) -> EndResult<()> {
        let made = self.client.symlink(target, self.dir(dir)?, name, &self.cred);
        made.and_then(|walk| walk.inside()).map(drop).map_err(fail("make link"))
    }

    fn make_node(&self, dir: &DirRef, name: &[u8], kind: FileKind, rdev: u64) -> EndResult<()> {
        let made = self.client.mknod(self.dir(dir)?, name, kind.mode_bits() | 0o600, rdev, &self.cred);
        made.and_then(|walk| walk.inside()).map(drop).map_err(fail("make node"))
    }

    fn make_link(&self, old: (&DirRef, &[u8]), new: (&DirRef, &[u8])) -> EndResult<()> {
        let ino = self.ino(At::Name(old.0, old.1), "hard link")?;
        let linked = self.client.link_ino(ino, self.dir(new.0)?, new.1, &self.cred);
        linked.and_then(|walk| walk.inside()).map_err(fail("hard link"))
    }

    fn rename(&self, dir: &DirRef, from: &[u8], to: &[u8]) -> EndResult<()> {
        let dir = self.dir(dir)?;
        let renamed = self.client.rename(dir, from, dir, to, 0, &self.cred);
        renamed.and_then(|walk| walk.inside()).map_err(fail("rename"))
    }

    fn unlink(&self, dir: &DirRef, name: &[u8]) -> EndResult<()> {
        let removed = self.client.unlink(self.dir(dir)?, name, &self.cred);
        removed.and_then(|walk| walk.inside()).map_err(fail("remove"))
    }

    fn set_meta(&self, at: At<'_>, set: &SetMeta) -> EndResult<()> {
        let ino = self.ino(at, "set attributes")?;
        let set = SetAttr {
            mode: set.mode,
            uid: set.owner.map(|o| o.0),
            gid: set.owner.map(|o| o.1),
            size: None,
            atime: set.times.map(|t| t.0),
            mtime: set.times.map(|t| t.1),
        };
        self.client.set_attr(ino, &set, &self.cred).map(drop).map_err(fail("set attributes"))
    }

    fn set_xattr(&self, at: At<'_>, name: &[u8], value: &[u8]) -> EndResult<()> {
        let ino = self.ino(at, "set attribute")?;
        self.client.set_xattr(ino, name, value, 0).map_err(fail("set attribute"))
    }

    fn remove_dir(&self, dir: &DirRef, name: &[u8]) -> EndResult<()> {
        let removed = self.client.rmdir(self.dir(dir)?, name, &self.cred);
        removed.and_then(|walk| walk.inside()).map_err(fail("remove directory"))
    }

    fn move_entry(&self, from: (&DirRef, &[u8]), to: (&DirRef, &[u8]), replace: bool) -> EndResult<()> {
        let DirRef::Pool(new) = to.0 else { return Err(EndError::new("move", Errno::EXDEV)) };
        let flags = if replace { 0 } else { libc::RENAME_NOREPLACE };
        let renamed = self.client.rename(self.dir(from.0)?, from.1, *new, to.1, flags, &self.cred);
        renamed.and_then(|walk| walk.inside()).map_err(fail("move"))
    }
}
