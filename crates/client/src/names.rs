//! Making, removing, linking and listing entries.

use crate::calls::{backoff, expect_reply};
use crate::perm::{self, WRITE};
use crate::retry::Stop;
use crate::walk::{Entry, Spot};
use crate::{Client, Cred, FsError, Walk};
use tidepool_placement::entry_owner;
use tidepool_types::{Attr, Errno, FileKind, Ino, SYMLINK_MAX};
use tidepool_wire::message::{Reply, Request};

/// What distinguishes the objects that are made with a name.
struct Making<'a> {
    /// Type and permission bits, as asked for.
    mode: u32,
    rdev: u64,
    /// Symbolic links only.
    target: &'a [u8],
}

impl Client {
    /// Walks to the last component, demands that there is one and that its directory may be
    /// changed, and hands it to `act`.
    pub(crate) fn at_name<T>(
        &self,
        base: Ino,
        path: &[u8],
        cred: &Cred,
        unnamed: Errno,
        mut act: impl FnMut(u64, &Spot, &[u8]) -> Result<T, Stop>,
    ) -> Result<Walk<T>, FsError> {
        if path.is_empty() {
            return Err(Errno::ENOENT.into());
        }
        self.retrying(|generation| match self.walker(generation, base, path, cred)?.next_spot()? {
            Walk::Escape(path) => Ok(Walk::Escape(path)),
            Walk::Found(spot) => {
                let Some(name) = &spot.name else { return Err(unnamed.into()) };
                act(generation, &spot, name).map(Walk::Found)
            }
        })
    }

    fn make(
        &self,
        generation: u64,
        spot: &Spot,
        name: &[u8],
        cred: &Cred,
        new: &Making<'_>,
    ) -> Result<Attr, Stop> {
        if self.check_perm((&spot.dir).into(), cred, WRITE).is_err() {
            // An existing entry is the more telling error.
            self.lookup_entry(generation, spot.dir.ino, name, false).map_err(|stop| match stop {
                Stop::Fs(error) if error.errno() == Errno::ENOENT => Stop::from(Errno::EACCES),
                other => other,
            })?;
            return Err(Errno::EEXIST.into());
        }
        let handed = self.handed_down(&spot.dir, new.mode, cred)?;
        let object = self.new_object(spot, name, cred, handed.mode, (new.rdev, new.target.into()));
        let entry = self.create_entry(generation, spot.dir.ino, name, object, true, false)?;
        self.entry_attr(&self.give_lists(entry, &handed)?)
    }

    pub fn mkdir(&self, base: Ino, path: &[u8], mode: u32, cred: &Cred) -> Result<Walk<Attr>, FsError> {
        // As mkdir(2) has it: only a directory above hands its set-group-ID bit down.
        let mode = FileKind::Directory.mode_bits() | (mode & 0o1777);
        self.at_name(base, path, cred, Errno::EEXIST, |generation, spot, name| {
            self.make(generation, spot, name, cred, &Making { mode, rdev: 0, target: &[] })
        })
    }

    /// Makes a regular file, FIFO, socket or device node; `mode` has the type bits.
    pub fn mknod(
        &self,
        base: Ino,
        path: &[u8],
        mode: u32,
        rdev: u64,
        cred: &Cred,
    ) -> Result<Walk<Attr>, FsError> {
        let mode = if mode & libc::S_IFMT == 0 { mode | libc::S_IFREG } else { mode };
        match FileKind::from_mode(mode)? {
            FileKind::Directory | FileKind::Symlink => return Err(Errno::EINVAL.into()),
            FileKind::CharDevice | FileKind::BlockDevice if !cred.is_root() => {
                return Err(Errno::EPERM.into());
            }
            _ => {}
        }
        let mode = mode & (libc::S_IFMT | 0o7777);
        self.at_name(base, path, cred, Errno::EEXIST, |generation, spot, name| {
            if spot.wants_dir {
                return Err(Errno::ENOENT.into());
            }
            self.make(generation, spot, name, cred, &Making { mode, rdev, target: &[] })
        })
    }

    pub fn symlink(&self, target: &[u8], base: Ino, path: &[u8], cred: &Cred) -> Result<Walk<Attr>, FsError> {
        self.check_supported("symbolic links")?;
        match target.len() {
            0 => return Err(Errno::ENOENT.into()),
            len if len > SYMLINK_MAX => return Err(Errno::ENAMETOOLONG.into()),
            _ => {}
        }
        let mode = FileKind::Symlink.mode_bits() | 0o777;
        self.at_name(base, path, cred, Errno::EEXIST, |generation, spot, name| {
            if spot.wants_dir {
                return Err(Errno::ENOENT.into());
            }
            self.make(generation, spot, name, cred, &Making { mode, rdev: 0, target })
        })
    }

    /// Where a symbolic link points.
    pub fn readlink(&self, base: Ino, path: &[u8], cred: &Cred) -> Result<Walk<Vec<u8>>, FsError> {
        match self.find(base, path, false, cred)? {
            Walk::Found(attr) => self.read_link(attr.ino).map(Walk::Found),
            Walk::Escape(path) => Ok(Walk::Escape(path)),
        }
    }

    /// Where the symbolic link `ino` points.
    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>, FsError> {
        let inode = self.get_inode(ino)?;
        if inode.attr.kind() == FileKind::Symlink {
            Ok(inode.target.into_vec())
        } else {
            Err(Errno::EINVAL.into())
        }
    }

    /// Removes a name that is no directory's.
    pub fn unlink(&self, base: Ino, path: &[u8], cred: &Cred) -> Result<Walk<()>, FsError> {
        let removed = self.at_name(base, path, cred, Errno::EISDIR, |generation, spot, name| {
            self.may_remove(generation, spot, name, cred)?;
            if spot.wants_dir {
                self.lookup_entry(generation, spot.dir.ino, name, false)?;
                return Err(Errno::ENOTDIR.into());
            }
            self.unlink_entry(generation, spot.dir.ino, name)
        })?;
        match removed {
            Walk::Escape(path) => Ok(Walk::Escape(path)),
            Walk::Found(entry) => self.drop_link(entry).map(Walk::Found),
        }
    }

    fn unlink_entry(&self, generation: u64, dir: Ino, name: &[u8]) -> Result<Entry, Stop> {
        let daemon = entry_owner(dir, name, self.members());
        let request = Request::Unlink { parent: dir, name: name.into() };
        let reply = self.call_entry(generation, daemon, dir, name, &request)?;
        Ok(
            expect_reply!(self, daemon, reply, Reply::Unlinked { ino, kind, attr } => Entry { ino, kind, attr, created: false, flags: 0 })?,
        )
    }

    /// Lowers the link count at the object's home, unless the entry's owner did.
    pub(crate) fn drop_link(&self, entry: Entry) -> Result<(), FsError> {
        if entry.attr.is_some() {
            return Ok(());
        }
        let reply = self.request(entry.ino.home(), &Request::Nlink { ino: entry.ino, delta: -1 })?;
        expect_reply!(self, entry.ino.home(), reply, Reply::Attributes { .. } => ())
    }

    /// Checks the right to remove an entry: write on the directory, and ownership when it
    /// is sticky.
    pub(crate) fn may_remove(
        &self,
        generation: u64,
        spot: &Spot,
        name: &[u8],
        cred: &Cred,
    ) -> Result<(), Stop> {
        let dir = perm::Owned::from(&spot.dir);
        self.check_perm(dir, cred, WRITE)?;
        if self.relaxed() || !perm::is_sticky(dir.mode) || cred.is_root() {
            return Ok(());
        }
        let entry = self.lookup_entry(generation, spot.dir.ino, name, false)?;
        let attr = self.entry_attr(&entry)?;
        Ok(perm::check_sticky(dir, (&attr).into(), cred)?)
    }

    /// A further name for an object that is no directory.
    pub fn link(
        &self,
        old_base: Ino,
        old_path: &[u8],
        new_base: Ino,
        new_path: &[u8],
        follow: bool,
        cred: &Cred,
    ) -> Result<Walk<()>, FsError> {
        match self.find(old_base, old_path, follow, cred)? {
            Walk::Found(attr) => self.link_object(&attr, new_base, new_path, cred),
            Walk::Escape(path) => Ok(Walk::Escape(path)),
        }
    }

    /// Like [`Client::link`], for an object known by its id.
    pub fn link_ino(
        &self,
        ino: Ino,
        new_base: Ino,
        new_path: &[u8],
        cred: &Cred,
    ) -> Result<Walk<()>, FsError> {
        let attr = self.home_attr(ino)?;
        self.link_object(&attr, new_base, new_path, cred)
    }

    fn link_object(&self, attr: &Attr, base: Ino, path: &[u8], cred: &Cred) -> Result<Walk<()>, FsError> {
        self.check_supported("hard links")?;
        let (ino, kind) = (attr.ino, attr.kind());
        if kind == FileKind::Directory {
            return Err(Errno::EPERM.into());
        }
        // First the count, then the name: a client that dies in between leaves a count too
        // high, which wastes space, never a name without an object.
        let reply = self.request(ino.home(), &Request::Nlink { ino, delta: 1 })?;
        expect_reply!(self, ino.home(), reply, Reply::Attributes { .. } => ())?;
        let named = self.at_name(base, path, cred, Errno::EEXIST, |generation, spot, name| {
            self.check_perm((&spot.dir).into(), cred, WRITE)?;
            if spot.wants_dir {
                return Err(Errno::ENOENT.into());
            }
            let daemon = entry_owner(spot.dir.ino, name, self.members());
            let request = Request::PutDentry { parent: spot.dir.ino, name: name.into(), ino, kind };
            let reply = self.call_entry(generation, daemon, spot.dir.ino, name, &request)?;
            Ok(expect_reply!(self, daemon, reply, Reply::Done {} => ())?)
        });
        match &named {
            Ok(Walk::Found(())) => {}
            // The answer was lost: the name may be there. A count too high wastes space; one
            // too low would lose the object with its first name.
            Err(error) if error.outcome_unknown() => {}
            _ => {
                self.request(ino.home(), &Request::Nlink { ino, delta: -1 })?;
            }
        }
        named
    }

    /// Directory that holds the directory `dir`; the root holds itself.
    pub fn parent_of(&self, dir: Ino) -> Result<Ino, FsError> {
        Ok(self.get_inode(dir)?.parent)
    }

    /// Waits before asking again; shared by lock waiters and others that poll.
    pub fn pause(attempt: u32) {
        std::thread::sleep(backoff(attempt));
    }
}
