//! The way through a tree, by descriptor, level by level.
//!
//! A level remembers who its directory is. The lowest ones are held open; on the way back up, the others are opened as `..`
//! of the one below, and have to be who they were. So neither stack nor descriptors grow with the depth.

use crate::{RemovalError, Tree, Why};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RawMode, Statx, StatxFlags, chmod, openat, statx, unlinkat,
};
use rustix::io::Errno;
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Levels that are held open.
const OPEN_MAX: usize = 16;
/// Directories of one level that are noted before they are gone into.
const NOTED_MAX: usize = 1024;
/// How often a directory that was emptied is found filled again.
const FILLED_MAX: u32 = 16;
/// Levels of a tree. Whoever makes more has a fault in his program; it bounds the memory.
const DEPTH_MAX: usize = 1 << 20;
/// Longest path in an error.
const SHOWN_MAX: usize = 4096;
const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// What its owner needs to empty a directory.
const OWNERS: u32 = 0o700;

/// What is done with what is met.
#[derive(Clone, Copy)]
pub enum Does<'a> {
    Look,
    Remove,
    /// All but the root, and these names in it.
    Empty {
        kept: &'a [&'a str],
    },
}

/// Who an entry is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    device: (u32, u32),
    inode: u64,
    /// Bind mounts of one file system have one device, and numbers of their own. None where a kernel before 5.8 is asked by name.
    mount: Option<u64>,
    uid: u32,
    mode: u32,
}

impl Entry {
    /// Of something open.
    pub fn of(fd: BorrowedFd<'_>) -> Result<Entry, Why> {
        let stat =
            statx(fd, "", AtFlags::EMPTY_PATH, Entry::asked()).map_err(|e| Why::io("looking at it", e))?;
        let mut entry = Entry::from(&stat);
        if entry.mount.is_none() {
            entry.mount = Some(mount_of(fd)?);
        }
        Ok(entry)
    }

    /// Of a name, without following or mounting anything; none where there is nothing any more.
    fn named(dir: BorrowedFd<'_>, name: &CStr) -> Result<Option<Entry>, Why> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        match statx(dir, name, flags, Entry::asked()) {
            Ok(stat) => Ok(Some(Entry::from(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Why::io("looking at it", errno)),
        }
    }

    fn asked() -> StatxFlags {
        StatxFlags::BASIC_STATS | StatxFlags::MNT_ID
    }

    fn from(stat: &Statx) -> Entry {
        let knows = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID);
        Entry {
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
            mount: knows.then_some(stat.stx_mnt_id),
            uid: stat.stx_uid,
            mode: u32::from(stat.stx_mode),
        }
    }

    /// Layered file systems show files under device numbers of their layers, so of what is no directory these count only
    /// where a mount's number is not known.
    pub fn is_on_mount_of(&self, other: &Entry) -> bool {
        let same_device = self.device == other.device;
        match (self.mount, other.mount) {
            (Some(mount), Some(others)) => mount == others && (same_device || !self.is_dir()),
            _ => same_device,
        }
    }

    fn is(&self, other: &Entry) -> bool {
        self.is_on_mount_of(other) && self.inode == other.inode
    }

    fn is_dir(&self) -> bool {
        FileType::from_raw_mode(self.mode as RawMode) == FileType::Directory
    }
}

/// As kernels before 5.8 tell it.
fn mount_of(fd: BorrowedFd<'_>) -> Result<u64, Why> {
    let path = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let text =
        std::fs::read_to_string(path).map_err(|error| Why::Io { doing: "asking for its mount", error })?;
    let number = text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    number.ok_or_else(|| Why::io("asking for its mount", Errno::NOSYS))
}

struct Level {
    name: CString,
    entry: Entry,
    /// None for the root, which the tree has, and for levels far above.
    fd: Option<OwnedFd>,
    /// Directories in it that are still to be gone into.
    ahead: Vec<CString>,
    /// Where the looking goes on, when these are done.
    rest: Option<i64>,
    filled: u32,
    /// Something that is to go was there at the last look.
    is_occupied: bool,
}

impl Level {
    fn new(name: CString, entry: Entry, fd: Option<OwnedFd>) -> Level {
        Level { name, entry, fd, ahead: Vec::new(), rest: None, filled: 0, is_occupied: false }
    }
}

pub struct Walk<'a> {
    tree: &'a Tree,
    does: Does<'a>,
    /// The root first.
    levels: Vec<Level>,
    /// Something is gone.
    began: bool,
}

impl Walk<'_> {
    pub fn over(tree: &Tree, does: Does<'_>) -> Result<(), RemovalError> {
        let name = CString::new(tree.name().as_bytes()).expect("a name that was opened has no zero in it");
        let root = Level::new(name, *tree.root(), None);
        let mut walk = Walk { tree, does, levels: vec![root], began: false };
        walk.scan()?;
        while let Some(level) = walk.levels.last_mut() {
            match level.ahead.pop() {
                Some(name) => walk.enter(name)?,
                None if level.rest.is_some() => walk.scan()?,
                None => walk.leave()?,
            }
        }
        Ok(())
    }

    fn removes(&self) -> bool {
        !matches!(self.does, Does::Look)
    }

    fn fail(&self, name: Option<&CStr>, why: Why) -> RemovalError {
        let below = self.levels.iter().skip(1).map(|level| level.name.as_c_str()).chain(name);
        RemovalError { path: shown(self.tree, below), why, is_whole: !self.began }
    }

    fn at(&self, number: usize) -> BorrowedFd<'_> {
        self.levels[number].fd.as_ref().map_or_else(|| self.tree.dir().fd(), AsFd::as_fd)
    }

    fn lowest(&self) -> usize {
        self.levels.len() - 1
    }

    /// What would have to stay is an error.
    fn judge(&self, entry: &Entry) -> Result<(), Why> {
        let wanted = self.tree.uid();
        if !entry.is_on_mount_of(self.tree.root()) {
            return Err(Why::Mount);
        }
        if entry.uid != wanted { Err(Why::Foreign { uid: entry.uid, wanted }) } else { Ok(()) }
    }

    fn is_kept(&self, name: &CStr) -> bool {
        let Does::Empty { kept } = self.does else { return false };
        self.levels.len() == 1 && kept.iter().any(|kept| kept.as_bytes() == name.to_bytes())
    }

    /// Looks at the lowest level from where that stopped, or, where entries are removed, from its beginning: notes its
    /// directories, and removes all else.
    fn scan(&mut self) -> Result<(), RemovalError> {
        let lowest = self.lowest();
        let mut list = self.list(lowest).map_err(|why| self.fail(None, why))?;
        let from = self.levels[lowest].rest.take().filter(|_| !self.removes());
        if let Some(offset) = from {
            list.seek(offset).map_err(|errno| self.fail(None, Why::io("reading it", errno)))?;
        }
        self.levels[lowest].is_occupied = false;
        while let Some(entry) = list.read() {
            let entry = entry.map_err(|errno| self.fail(None, Why::io("reading it", errno)))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") || self.is_kept(name) {
                continue;
            }
            self.meet(lowest, name).map_err(|why| self.fail(Some(name), why))?;
            let level = &mut self.levels[lowest];
            if level.ahead.len() == NOTED_MAX {
                level.rest = Some(entry.offset());
                break;
            }
        }
        Ok(())
    }

    fn meet(&mut self, lowest: usize, name: &CStr) -> Result<(), Why> {
        let Some(entry) = Entry::named(self.at(lowest), name)? else { return Ok(()) };
        self.judge(&entry)?;
        self.levels[lowest].is_occupied = true;
        if entry.is_dir() {
            self.levels[lowest].ahead.push(name.to_owned());
        } else if self.removes() {
            match unlinkat(self.at(lowest), name, AtFlags::empty()) {
                Ok(()) => self.began = true,
                // It became a directory; or somebody was faster. The next look tells.
                Err(Errno::ISDIR | Errno::NOENT) => {}
                Err(Errno::BUSY) => return Err(Why::Mount),
                Err(errno) => return Err(Why::io("removing it", errno)),
            }
        }
        Ok(())
    }

    /// A directory for reading. One that its owner has closed to himself is opened to him.
    fn list(&self, number: usize) -> Result<rustix::fs::Dir, Why> {
        let dir = self.at(number);
        let is_owners = rustix::process::geteuid().as_raw() == self.tree.uid();
        if is_owners && self.levels[number].entry.mode & OWNERS != OWNERS {
            // fchmod(2) takes no such descriptor; what this link leads to is what was judged.
            let mode = Mode::from_raw_mode((self.levels[number].entry.mode & 0o7777 | OWNERS) as RawMode);
            chmod(format!("/proc/self/fd/{}", dir.as_raw_fd()), mode)
                .map_err(|e| Why::io("opening it to its owner", e))?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let list = openat(dir, ".", flags, Mode::empty()).map_err(|errno| Why::io("reading it", errno))?;
        rustix::fs::Dir::new(list).map_err(|errno| Why::io("reading it", errno))
    }

    /// Goes down.
    fn enter(&mut self, name: CString) -> Result<(), RemovalError> {
        let lowest = self.lowest();
        if lowest == DEPTH_MAX {
            return Err(self.fail(Some(&name), Why::TooDeep { max: DEPTH_MAX }));
        }
        let fd = match openat(self.at(lowest), &name, DIRECTORY, Mode::empty()) {
            Ok(fd) => fd,
            // Something else is there by now, or nothing. The next look at this level tells.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            Err(errno) => return Err(self.fail(Some(&name), Why::io("opening it", errno))),
        };
        let entry = Entry::of(fd.as_fd()).map_err(|why| self.fail(Some(&name), why))?;
        self.judge(&entry).map_err(|why| self.fail(Some(&name), why))?;
        self.levels.push(Level::new(name, entry, Some(fd)));
        if let Some(far) = self.levels.len().checked_sub(OPEN_MAX + 1) {
            self.levels[far].fd = None;
        }
        self.scan()
    }

    /// Goes up, and removes the directory that was emptied.
    fn leave(&mut self) -> Result<(), RemovalError> {
        let lowest = self.lowest();
        let is_emptied = match (self.does, lowest) {
            (Does::Look, _) => true,
            (Does::Empty { .. }, 0) => !self.levels[0].is_occupied,
            (Does::Remove, 0) => self.unlink_dir(0)?,
            _ => {
                self.open_above(lowest)?;
                self.unlink_dir(lowest)?
            }
        };
        if !is_emptied {
            return self.again(lowest);
        }
        if matches!(self.does, Does::Look) && lowest > 0 {
            self.open_above(lowest)?;
        }
        self.levels.pop();
        Ok(())
    }

    /// The level above may have been closed on the way down.
    fn open_above(&mut self, number: usize) -> Result<(), RemovalError> {
        let above = number - 1;
        if above == 0 || self.levels[above].fd.is_some() {
            return Ok(());
        }
        let fd = openat(self.at(number), "..", DIRECTORY, Mode::empty())
            .map_err(|errno| self.fail(None, Why::io("going up from it", errno)))?;
        let entry = Entry::of(fd.as_fd()).map_err(|why| self.fail(None, why))?;
        if !entry.is(&self.levels[above].entry) {
            return Err(self.fail(None, Why::Moved));
        }
        self.levels[above].fd = Some(fd);
        Ok(())
    }

    /// False where there is something in it.
    fn unlink_dir(&mut self, number: usize) -> Result<bool, RemovalError> {
        let level = &self.levels[number];
        let parent = if number == 0 { self.tree.parent() } else { self.at(number - 1) };
        let there = Entry::named(parent, &level.name).map_err(|why| self.fail(None, why))?;
        match there {
            None => return Ok(true),
            Some(there) if there.is(&level.entry) => {}
            // Not the one that was emptied. Below the root the next look at the level above sees to it.
            Some(_) if number > 0 => return Ok(true),
            Some(_) => return Err(self.fail(None, Why::Moved)),
        }
        match unlinkat(parent, &level.name, AtFlags::REMOVEDIR) {
            Ok(()) => self.began = true,
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST) => return Ok(false),
            Err(Errno::BUSY) => return Err(self.fail(None, Why::Mount)),
            Err(errno) => return Err(self.fail(None, Why::io("removing it", errno))),
        }
        Ok(true)
    }

    /// Something is in the lowest level that was not, or was left for later.
    fn again(&mut self, lowest: usize) -> Result<(), RemovalError> {
        self.levels[lowest].filled += 1;
        if self.levels[lowest].filled > FILLED_MAX {
            return Err(self.fail(None, Why::Filling));
        }
        self.scan()
    }
}

/// The path of what is below the root; cut in its middle where it is very long.
fn shown<'n>(tree: &Tree, below: impl DoubleEndedIterator<Item = &'n CStr>) -> PathBuf {
    let mut room = SHOWN_MAX;
    let mut names: Vec<&OsStr> = Vec::new();
    for name in below.rev() {
        let length = name.to_bytes().len() + 1;
        if length > room {
            names.push("...".as_ref());
            break;
        }
        room -= length;
        names.push(OsStr::from_bytes(name.to_bytes()));
    }
    names.push(tree.path().as_os_str());
    names.into_iter().rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kernels that do not tell by statx(2) are asked for the same number.
    #[test]
    fn a_mount_has_one_number_whoever_is_asked() {
        for path in ["/", "/proc", "/dev"] {
            let open = rustix::fs::open(path, DIRECTORY, Mode::empty()).unwrap();
            let told = Entry::of(open.as_fd()).unwrap().mount;
            assert_eq!(told, Some(mount_of(open.as_fd()).unwrap()), "{path}");
        }
    }
}
