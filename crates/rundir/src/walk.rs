//! The way to a directory, one component after the other.

use crate::remote::remote;
use crate::{Trust, Unusable, Why};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RawMode, Statx, StatxFlags, fstatfs, mkdirat, open, openat,
    readlinkat, statx,
};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// Most links on one way; as in the kernel (path_resolution(7)).
const LINKS_MAX: usize = 40;
/// Most components of one way, with those of links.
const COMPONENTS_MAX: usize = 256;
/// How often a directory is made that another process removes again.
const MAKE_TRIES: usize = 3;
/// Most entries that are looked at in one directory.
pub const ENTRIES_MAX: usize = 65_536;
/// Nobody else may do anything.
pub const PRIVATE: u32 = 0o077;
/// Nobody else may change anything.
pub const UNWRITABLE: u32 = 0o022;
const STICKY: u32 = 0o1000;
const WRITE_OTHERS: u32 = 0o022;

/// What a directory has to be like.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// Who owns it.
    pub uid: u32,
    /// Root may own it as well.
    pub or_root: bool,
    /// Permissions that it must not have.
    pub forbidden: u32,
    /// It has to be on storage of this node.
    pub local: bool,
    /// The mode of directories that are made on the way.
    pub mode: u32,
}

impl Want {
    /// A directory that nobody but this user can look into, on this node.
    pub fn private(uid: u32) -> Want {
        Want { uid, or_root: false, forbidden: PRIVATE, local: true, mode: 0o700 }
    }

    fn check(&self, path: &Path, fd: BorrowedFd<'_>, stat: &Statx) -> Result<(), Unusable> {
        let fail = |why| Err(Unusable::new(path, why));
        if stat.stx_uid != self.uid && !(self.or_root && Trust::of(self.uid).trusts(stat.stx_uid)) {
            return fail(Why::Owner { uid: stat.stx_uid, wanted: self.uid });
        }
        let mode = permissions(stat);
        if mode & self.forbidden != 0 {
            return fail(Why::Mode { mode, forbidden: self.forbidden });
        }
        if self.local {
            let system = fstatfs(fd).map_err(|errno| Unusable::new(path, Why::Io(errno.into())))?;
            // The numbers have 32 bits, whatever the field has.
            if let Some(kind) = remote(system.f_type as u32) {
                return fail(Why::Remote { kind });
            }
        }
        Ok(())
    }
}

/// An open directory that is as it has to be.
#[derive(Debug)]
pub struct Dir {
    /// For looking up beneath it only (`O_PATH`).
    fd: OwnedFd,
    path: PathBuf,
}

impl Dir {
    /// Opens a directory. Nothing is made.
    pub fn open(path: &Path, want: &Want) -> Result<Dir, Unusable> {
        let dir = Walk::to(path, want, false)?;
        want.check(path, dir.fd.as_fd(), &look(dir.fd.as_fd(), path)?)?;
        Ok(dir)
    }

    /// Opens a directory; what is missing on the way is made.
    pub fn make(path: &Path, want: &Want) -> Result<Dir, Unusable> {
        let dir = Walk::to(path, want, true)?;
        want.check(path, dir.fd.as_fd(), &look(dir.fd.as_fd(), path)?)?;
        Ok(dir)
    }

    /// Opens a directory whose way there may be anything, such as a project's on shared storage: what is in it is judged
    /// by its owner only.
    pub fn open_anywhere(path: &Path, want: &Want) -> Result<Dir, Unusable> {
        let fd = openat(CWD, path, PASSING, Mode::empty()).map_err(|errno| failed(path, errno))?;
        Dir::judge(fd, path.to_path_buf(), want)
    }

    fn judge(fd: OwnedFd, path: PathBuf, want: &Want) -> Result<Dir, Unusable> {
        let stat = look(fd.as_fd(), &path)?;
        match kind(&stat) {
            FileType::Directory => {}
            FileType::Symlink => return Err(Unusable::new(&path, Why::Link { uid: stat.stx_uid })),
            _ => return Err(Unusable::new(&path, Why::NotDirectory)),
        }
        want.check(&path, fd.as_fd(), &stat)?;
        Ok(Dir { fd, path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// A directory in this one.
    pub fn child(&self, name: &OsStr, want: &Want) -> Result<Dir, Unusable> {
        Dir::entry(self.fd(), &self.path.join(name), name, want)
    }

    /// A directory in one that is open, which need not be as this one has to be.
    pub fn entry(parent: BorrowedFd<'_>, path: &Path, name: &OsStr, want: &Want) -> Result<Dir, Unusable> {
        check_name(path, name)?;
        let fd = openat(parent, name, PASSING, Mode::empty()).map_err(|errno| failed(path, errno))?;
        Dir::judge(fd, path.to_path_buf(), want)
    }

    /// The names in it, sorted.
    pub fn names(&self) -> Result<Vec<OsString>, Unusable> {
        let fail = |errno| failed(&self.path, errno);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = openat(&self.fd, ".", flags, Mode::empty()).map_err(fail)?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(fd).map_err(fail)? {
            let name = entry.map_err(fail)?.file_name().to_bytes().to_vec();
            if matches!(&*name, b"." | b"..") {
                continue;
            }
            if names.len() == ENTRIES_MAX {
                return Err(Unusable::new(&self.path, Why::TooManyEntries { max: ENTRIES_MAX }));
            }
            names.push(OsString::from_vec(name));
        }
        names.sort();
        Ok(names)
    }
}

/// Opens anything without touching it: a device does nothing, a FIFO is not waited for.
pub(crate) const PASSING: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

pub(crate) fn failed(path: &Path, errno: Errno) -> Unusable {
    let why = if errno == Errno::NOENT { Why::Missing } else { Why::Io(errno.into()) };
    Unusable::new(path, why)
}

/// A single name, that leads nowhere else.
pub(crate) fn check_name(path: &Path, name: &OsStr) -> Result<(), Unusable> {
    let bytes = name.as_bytes();
    match bytes.is_empty() || bytes.contains(&b'/') || matches!(bytes, b"." | b"..") {
        true => Err(Unusable::new(path, Why::Name)),
        false => Ok(()),
    }
}

/// Attributes as they are known here: a file system in somebody's process is not asked, who could leave us waiting.
pub(crate) fn look(fd: BorrowedFd<'_>, path: &Path) -> Result<Statx, Unusable> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(fd, "", flags, StatxFlags::BASIC_STATS).map_err(|errno| Unusable::new(path, Why::Io(errno.into())))
}

pub(crate) fn kind(stat: &Statx) -> FileType {
    FileType::from_raw_mode(RawMode::from(stat.stx_mode))
}

pub(crate) fn permissions(stat: &Statx) -> u32 {
    u32::from(stat.stx_mode) & 0o7777
}

/// A way that is being gone.
struct Walk<'a> {
    path: &'a Path,
    want: &'a Want,
    trust: Trust,
    make: bool,
    at: OwnedFd,
    /// For messages.
    shown: PathBuf,
    ahead: VecDeque<OsString>,
    links: usize,
    steps: usize,
}

impl Walk<'_> {
    fn to(path: &Path, want: &Want, make: bool) -> Result<Dir, Unusable> {
        let mut walk = Walk {
            path,
            want,
            trust: Trust::of(want.uid),
            make,
            at: root(path)?,
            shown: PathBuf::from("/"),
            ahead: VecDeque::new(),
            links: 0,
            steps: 0,
        };
        if !path.is_absolute() {
            return Err(walk.fail(Why::Name));
        }
        walk.put_ahead(path);
        walk.check_parent(&look(walk.at.as_fd(), path)?)?;
        while let Some(name) = walk.ahead.pop_front() {
            walk.step(&name)?;
        }
        Ok(Dir { fd: walk.at, path: path.to_path_buf() })
    }

    fn fail(&self, why: Why) -> Unusable {
        Unusable::new(self.path, why)
    }

    /// The components of a path before those that are ahead.
    fn put_ahead(&mut self, path: &Path) {
        for part in path.components().rev() {
            match part {
                Component::Normal(name) => self.ahead.push_front(name.into()),
                Component::ParentDir => self.ahead.push_front("..".into()),
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            }
        }
    }

    fn step(&mut self, name: &OsStr) -> Result<(), Unusable> {
        self.steps += 1;
        if self.steps > COMPONENTS_MAX {
            return Err(self.fail(Why::Io(Errno::NAMETOOLONG.into())));
        }
        let next = self.enter(name)?;
        let stat = look(next.as_fd(), self.path)?;
        let is_last = self.ahead.is_empty();
        match kind(&stat) {
            FileType::Symlink if is_last => Err(self.fail(Why::Link { uid: stat.stx_uid })),
            FileType::Symlink => self.follow(&next, &stat),
            FileType::Directory => {
                self.shown.push(name);
                self.at = next;
                if is_last { Ok(()) } else { self.check_parent(&stat) }
            }
            _ => Err(self.fail(Why::NotDirectory)),
        }
    }

    fn enter(&self, name: &OsStr) -> Result<OwnedFd, Unusable> {
        for _ in 0..MAKE_TRIES {
            match openat(&self.at, name, PASSING, Mode::empty()) {
                Err(Errno::NOENT) if self.make => {}
                other => return other.map_err(|errno| failed(self.path, errno)),
            }
            match mkdirat(&self.at, name, Mode::from_raw_mode(self.want.mode)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(self.fail(Why::Io(errno.into()))),
            }
        }
        Err(self.fail(Why::Missing))
    }

    /// A link in the middle is part of how the machine is set up (`/var/run`, `/home`), where root or the user has made it.
    fn follow(&mut self, link: &OwnedFd, stat: &Statx) -> Result<(), Unusable> {
        if !self.trust.trusts(stat.stx_uid) {
            return Err(self.fail(Why::Link { uid: stat.stx_uid }));
        }
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(self.fail(Why::Io(Errno::LOOP.into())));
        }
        let target = readlinkat(link, "", Vec::new()).map_err(|errno| self.fail(Why::Io(errno.into())))?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        if target.is_absolute() {
            self.at = root(self.path)?;
            self.shown = PathBuf::from("/");
        }
        self.put_ahead(&target);
        Ok(())
    }

    /// Whoever owns a directory, or may write to it, can rename what is in it; in a sticky one only what is his.
    fn check_parent(&self, stat: &Statx) -> Result<(), Unusable> {
        let mode = permissions(stat);
        let is_open = mode & WRITE_OTHERS != 0 && mode & STICKY == 0;
        match self.trust.trusts(stat.stx_uid) && !is_open {
            true => Ok(()),
            false => Err(self.fail(Why::Parent { path: self.shown.clone(), uid: stat.stx_uid, mode })),
        }
    }
}

fn root(path: &Path) -> Result<OwnedFd, Unusable> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open("/", flags, Mode::empty()).map_err(|errno| Unusable::new(path, Why::Io(errno.into())))
}
