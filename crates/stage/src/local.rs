//! A local directory as an end of a copy.
//!
//! Every call goes through a directory's descriptor and one name. A tree may be deeper than
//! the descriptors a process has, so only the most recently used directories are open; the
//! others are opened again step by step from the nearest open one, and each step is checked
//! to lead to the same directory as before.

use crate::end::{
    At, Cursor, DirRef, End, EndError, EndResult, FileRef, Got, Item, Meta, Name, PackLimits, Put, PutHow,
    Rights, SetMeta, Written, Xattr,
};
use crate::identity::{Identity, NO_ID};
use crate::leads::{Leads, LinkAt};
use crate::nearby::Medium;
use crate::passing::Passing;
use crate::sync::lock;
use crate::whole::Whole;
use rustix::fs::{
    self, Advice, AtFlags, FileType, Gid, Mode, OFlags, RawDir, RenameFlags, SeekFrom, Stat, StatxAttributes,
    StatxFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno as Sys;
use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use tidepool_types::{Errno, FileKind, TimeSpec};

/// Directories kept open per end. Low enough for the usual limit of 1024 descriptors with
/// two ends and eight workers.
const OPEN_DIRS_MAX: usize = 192;
/// Bytes asked for in one listing call: about a thousand entries.
const LIST_BYTES: usize = 32 * 1024;
/// Entries after which a page may end.
const LIST_PAGE_MIN: usize = 128;
/// Of file systems in memory and on disks, which let one write at a time; the other reads and computes
/// meanwhile.
const WRITERS_PER_FILE: usize = 2;
/// Largest list of attribute names, and largest value, that the kernel hands out.
const XATTR_BUFFER: usize = 64 * 1024;
/// Bytes of the attribute names that most files have at most.
const XATTR_NAMES_FEW: usize = 256;

const DIR_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory below (or at) the root of a [`LocalEnd`].
pub struct LocalDir {
    parent: Option<Arc<LocalDir>>,
    name: Box<[u8]>,
    key: (u64, u64),
    fd: Mutex<Option<Arc<OwnedFd>>>,
    /// Held while a page is listed: the kernel keeps one place for all who read from a descriptor.
    listing: Mutex<()>,
    /// Used since the cache last looked.
    used: AtomicBool,
}

impl Drop for LocalDir {
    fn drop(&mut self) {
        // By hand, because dropping a chain of half a million parents recursively would
        // overflow the stack.
        let mut next = self.parent.take();
        while let Some(mut dir) = next.and_then(Arc::into_inner) {
            next = dir.parent.take();
        }
    }
}

impl LocalDir {
    /// One that stays open.
    fn top(fd: Arc<OwnedFd>) -> EndResult<LocalDir> {
        let stat = fs::fstat(&fd).map_err(fail("stat"))?;
        Ok(LocalDir {
            parent: None,
            name: Box::default(),
            key: key_of(&stat),
            fd: Mutex::new(Some(fd)),
            listing: Mutex::default(),
            used: AtomicBool::new(true),
        })
    }
}

/// A local directory. Relative paths are resolved when it is opened.
pub struct LocalEnd {
    /// None: asked of the kernel when somebody wants to know it.
    path: Option<PathBuf>,
    root: Arc<LocalDir>,
    open: Mutex<VecDeque<Weak<LocalDir>>>,
    rights: Rights,
    /// Other groups of who copies, when somebody has asked.
    groups: OnceLock<Vec<u32>>,
    /// The directory that goes away with what is in it, if the root is in one, and the root's path from there.
    whole: Option<(PathBuf, Arc<LocalDir>, Vec<u8>)>,
    /// Of the root's file system; others may be mounted below.
    medium: Medium,
    /// Files are read back from the disk, not from the kernel's memory of it.
    from_disk: bool,
    /// Listings tell the sizes of files.
    sizes: bool,
    /// Files can be made without a name, and get one later.
    pub(crate) unnamed: AtomicBool,
    /// Data can be moved past the kernel's cache.
    passing: Passing,
    /// Something that was written did not get to the disk.
    sync_failed: Mutex<Option<EndError>>,
}

pub(crate) fn fail(operation: &'static str) -> impl Fn(Sys) -> EndError {
    move |errno| EndError::new(operation, Errno(errno.raw_os_error()))
}

impl Rights {
    /// The kernel's answers are about the calling thread, so they show whom it acts as.
    pub(crate) fn of_thread() -> Rights {
        let uid = rustix::process::geteuid();
        Rights { root: uid.is_root(), uid: uid.as_raw(), gid: rustix::process::getegid().as_raw() }
    }

    /// The same for who knows it.
    pub(crate) fn of(user: &Identity) -> Rights {
        Rights { root: user.uid == 0, uid: user.uid, gid: user.gid }
    }
}

impl LocalEnd {
    /// An existing directory.
    pub fn open(path: &Path) -> EndResult<LocalEnd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = fs::open(path, flags, Mode::empty()).map_err(fail("open directory"))?;
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
        LocalEnd::of_descriptor(fd, Some(path))
    }

    /// The directory that `fd` is open on. `path` is what messages call it, if that is known.
    pub(crate) fn of_descriptor(fd: OwnedFd, path: Option<PathBuf>) -> EndResult<LocalEnd> {
        LocalEnd::of_shared(Arc::new(fd), path, Rights::of_thread())
    }

    /// The same for who has looked at whom the thread acts as.
    pub(crate) fn of_shared(fd: Arc<OwnedFd>, path: Option<PathBuf>, rights: Rights) -> EndResult<LocalEnd> {
        let medium = LocalEnd::medium_of(&fd);
        let root = LocalDir::top(fd)?;
        Ok(LocalEnd {
            path,
            root: Arc::new(root),
            open: Mutex::default(),
            rights,
            groups: OnceLock::new(),
            whole: None,
            medium,
            from_disk: false,
            sizes: true,
            unnamed: AtomicBool::new(true),
            passing: Passing::new(medium),
            sync_failed: Mutex::default(),
        })
    }

    /// A directory of a file system that goes away as a whole: links of it lead somewhere in it only as long as it is there.
    pub fn open_within(whole: &Path, path: &Path) -> EndResult<LocalEnd> {
        let end = LocalEnd::open(path)?;
        let outer = LocalEnd::open(whole)?;
        let (top, root) = (outer.shown_path(), end.shown_path());
        let Ok(below) = root.strip_prefix(&top) else { return Ok(end) };
        let below = below.as_os_str().as_bytes().to_vec();
        Ok(LocalEnd { whole: Some((whole.into(), outer.root, below)), ..end })
    }

    #[allow(clippy::unnecessary_cast, reason = "the type differs between architectures")]
    pub(crate) fn medium_of(fd: &OwnedFd) -> Medium {
        fs::fstatfs(fd).map_or(Medium::Other, |found| Medium::of(found.f_type as u64))
    }

    /// Has what is verified here read from the disk: after it is synced, and with the kernel asked to
    /// forget it before.
    #[must_use]
    pub fn verified_from_disk(self) -> LocalEnd {
        LocalEnd { from_disk: true, ..self }
    }

    /// Only for messages and for the name of the journal.
    fn shown_path(&self) -> PathBuf {
        self.path.clone().unwrap_or_else(|| {
            let fd = lock(&self.root.fd).as_ref().map_or(-1, |fd| fd.as_raw_fd());
            let link = PathBuf::from(format!("/proc/self/fd/{fd}"));
            std::fs::read_link(&link).unwrap_or(link)
        })
    }

    /// A directory that is made, with its parents, when it is missing.
    pub fn create(path: &Path) -> EndResult<LocalEnd> {
        std::fs::create_dir_all(path).map_err(|e| EndError::new("make directory", Errno::from(e)))?;
        LocalEnd::open(path)
    }

    /// Lists without looking at each file for its size: less work, where nobody wants to know how much there
    /// is to do before it is done.
    #[must_use]
    pub fn without_sizes(self) -> LocalEnd {
        LocalEnd { sizes: false, ..self }
    }

    /// Files are read back from the disk.
    pub(crate) fn reads_disk(&self) -> bool {
        self.from_disk
    }

    /// Of the root's file system.
    pub(crate) fn root_medium(&self) -> Medium {
        self.medium
    }

    /// The file lies on the root's file system.
    pub(crate) fn is_beside_root(&self, file: &FileRef) -> bool {
        let found = file_fd(file).map(fs::fstat);
        found.is_ok_and(|stat| stat.is_ok_and(|stat| key_of(&stat).0 == self.root.key.0))
    }

    /// Of the file system that a directory lies in.
    pub(crate) fn medium(&self, dir: &DirRef) -> Medium {
        match dir {
            DirRef::Local(dir) if dir.key.0 == self.root.key.0 => self.medium,
            _ => Medium::Other,
        }
    }

    fn local<'a>(&self, dir: &'a DirRef) -> EndResult<&'a Arc<LocalDir>> {
        match dir {
            DirRef::Local(dir) => Ok(dir),
            _ => Err(EndError::new("use a directory of another end", Errno::EBADF)),
        }
    }

    pub(crate) fn dir_fd(&self, dir: &DirRef) -> EndResult<Arc<OwnedFd>> {
        self.fd_of(self.local(dir)?)
    }

    /// The directory's descriptor, opened again if it was closed meanwhile.
    fn fd_of(&self, dir: &Arc<LocalDir>) -> EndResult<Arc<OwnedFd>> {
        let mut closed = Vec::new();
        let mut at = dir;
        let mut fd = loop {
            at.used.store(true, Ordering::Relaxed);
            if let Some(fd) = lock(&at.fd).clone() {
                break fd;
            }
            closed.push(at);
            at = at.parent.as_ref().expect("the root is never closed");
        };
        for step in closed.into_iter().rev() {
            let opened =
                fs::openat(&fd, &*step.name, DIR_FLAGS, Mode::empty()).map_err(fail("open directory"))?;
            fd = self.keep_checked(step, opened)?;
        }
        Ok(fd)
    }

    /// Keeps a descriptor that is meant to be `dir`, after checking that it is.
    fn keep_checked(&self, dir: &Arc<LocalDir>, opened: OwnedFd) -> EndResult<Arc<OwnedFd>> {
        let stat = fs::fstat(&opened).map_err(fail("stat"))?;
        if key_of(&stat) != dir.key {
            let detail = "the directory was replaced by another one meanwhile".to_string();
            return Err(EndError { errno: Errno::ESTALE, operation: "open directory", detail: Some(detail) });
        }
        Ok(self.keep(dir, opened))
    }

    fn keep(&self, dir: &Arc<LocalDir>, opened: OwnedFd) -> Arc<OwnedFd> {
        let fd = Arc::new(opened);
        *lock(&dir.fd) = Some(fd.clone());
        let mut open = lock(&self.open);
        open.push_back(Arc::downgrade(dir));
        // A directory used since the last look gets one more round.
        let mut spared = 0;
        while open.len() > OPEN_DIRS_MAX {
            let Some(oldest) = open.pop_front() else { break };
            let Some(dir) = oldest.upgrade() else { continue };
            if dir.used.swap(false, Ordering::Relaxed) && spared < OPEN_DIRS_MAX {
                spared += 1;
                open.push_back(oldest);
            } else {
                lock(&dir.fd).take();
            }
        }
        fd
    }

    fn open_file(
        &self,
        dir: &DirRef,
        name: &[u8],
        flags: OFlags,
        operation: &'static str,
    ) -> EndResult<FileRef> {
        let dir = self.dir_fd(dir)?;
        // O_NONBLOCK: a FIFO in the place of a file must not make us wait for a writer.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = fs::openat(&dir, name, flags, Mode::from_raw_mode(0o600)).map_err(fail(operation))?;
        Ok(FileRef::Local(Arc::new(fd)))
    }

    /// A path that reaches an object without following it, for calls that have no *at form.
    fn proc_path(dir: &OwnedFd, name: &[u8]) -> Vec<u8> {
        let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
        path.extend_from_slice(name);
        path
    }
}

pub(crate) fn file_fd(file: &FileRef) -> EndResult<&OwnedFd> {
    match file {
        FileRef::Local(fd) => Ok(fd),
        _ => Err(EndError::new("use a file of another end", Errno::EBADF)),
    }
}

pub(crate) fn advise(file: &FileRef, offset: u64, len: u64, advice: Advice) {
    if let (Ok(fd), Some(len)) = (file_fd(file), NonZeroU64::new(len)) {
        let _ = fs::fadvise(fd, offset, Some(len), advice);
    }
}

#[allow(clippy::unnecessary_cast, reason = "the types of struct stat differ between architectures")]
fn key_of(stat: &Stat) -> (u64, u64) {
    (stat.st_dev as u64, stat.st_ino as u64)
}

#[allow(clippy::unnecessary_cast, reason = "the types of struct stat differ between architectures")]
fn meta_of(stat: &Stat) -> EndResult<Meta> {
    let time = |sec, nsec| TimeSpec { sec, nsec };
    let mode = stat.st_mode as u32;
    let (dev, ino) = key_of(stat);
    Ok(Meta {
        dev,
        ino,
        kind: FileKind::from_mode(mode).map_err(|errno| EndError::new("stat", errno))?,
        mode: mode & 0o7777,
        nlink: stat.st_nlink as u64,
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: stat.st_size as u64,
        stored: (stat.st_blocks as u64).saturating_mul(512),
        rdev: stat.st_rdev as u64,
        atime: time(stat.st_atime as i64, stat.st_atime_nsec as u32),
        mtime: time(stat.st_mtime as i64, stat.st_mtime_nsec as u32),
        ctime: time(stat.st_ctime as i64, stat.st_ctime_nsec as u32),
    })
}

fn kind_of(file_type: FileType) -> Option<FileKind> {
    Some(match file_type {
        FileType::RegularFile => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Unknown => return None,
    })
}

/// Kind and size of a listed entry. Sizes are asked for here, while the directory is hot:
/// progress needs them long before the file is opened.
fn item_of(dir: &OwnedFd, name: &[u8], kind: Option<FileKind>, sizes: bool) -> Item {
    let mut item = Item { name: name.into(), kind, size: None };
    if (kind.is_none() || (sizes && kind == Some(FileKind::Regular)))
        && let Ok(meta) =
            fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(fail("stat")).and_then(|s| meta_of(&s))
    {
        item.kind = Some(meta.kind);
        item.size = (meta.kind == FileKind::Regular).then_some(meta.size);
    }
    item
}

fn list_page(dir: &OwnedFd, sizes: bool) -> Result<(Vec<Item>, Option<u64>), Sys> {
    let mut buffer = Vec::with_capacity(LIST_BYTES);
    let mut raw = RawDir::new(dir, buffer.spare_capacity_mut());
    let mut items = Vec::new();
    while let Some(entry) = raw.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        let next = entry.next_entry_cookie();
        if !matches!(name, b"." | b"..") {
            items.push(item_of(dir, name, kind_of(entry.file_type()), sizes));
        }
        if raw.is_buffer_empty() && items.len() >= LIST_PAGE_MIN {
            return Ok((items, Some(next)));
        }
    }
    // The end is seen at once: a listing left open in every directory on the way down would
    // have each opened again on the way up.
    Ok((items, None))
}

fn list_xattrs(at: At<'_>, end: &LocalEnd, buffer: &mut [u8]) -> EndResult<Result<usize, Sys>> {
    Ok(match at {
        At::File(file) => fs::flistxattr(file_fd(file)?, buffer),
        At::Dir(dir) => fs::flistxattr(&*end.dir_fd(dir)?, buffer),
        At::Name(dir, name) => fs::llistxattr(LocalEnd::proc_path(&*end.dir_fd(dir)?, name), buffer),
    })
}

fn xattr_names(at: At<'_>, end: &LocalEnd) -> EndResult<Vec<u8>> {
    // The kernel takes as much memory as it is offered, which costs more than the list of most files.
    let mut few = [0; XATTR_NAMES_FEW];
    let mut names = Vec::new();
    let listed = match list_xattrs(at, end, &mut few)? {
        Err(Sys::RANGE) => {
            names.resize(XATTR_BUFFER, 0);
            list_xattrs(at, end, &mut names)?.inspect(|len| names.truncate(*len))
        }
        listed => listed.inspect(|len| names.extend_from_slice(&few[..*len])),
    };
    match listed {
        Ok(_) => Ok(names),
        Err(Sys::OPNOTSUPP | Sys::NOSYS) => Ok(Vec::new()),
        Err(errno) => Err(fail("list attributes")(errno)),
    }
}

fn xattr_value(at: At<'_>, end: &LocalEnd, name: &[u8]) -> EndResult<Option<Vec<u8>>> {
    let mut value = Vec::with_capacity(XATTR_BUFFER);
    let buffer = rustix::buffer::spare_capacity(&mut value);
    let got = match at {
        At::File(file) => fs::fgetxattr(file_fd(file)?, name, buffer),
        At::Dir(dir) => fs::fgetxattr(&*end.dir_fd(dir)?, name, buffer),
        At::Name(dir, file) => fs::lgetxattr(LocalEnd::proc_path(&*end.dir_fd(dir)?, file), name, buffer),
    };
    match got {
        Ok(_) => Ok(Some(value)),
        Err(Sys::NODATA) => Ok(None),
        Err(errno) => Err(fail("read attribute")(errno)),
    }
}

fn timestamps(times: (TimeSpec, TimeSpec)) -> Timestamps {
    let spec = |t: TimeSpec| Timespec { tv_sec: t.sec, tv_nsec: t.nsec.into() };
    Timestamps { last_access: spec(times.0), last_modification: spec(times.1) }
}

/// Whom something is to belong to.
fn owner((uid, gid): (u32, u32)) -> EndResult<(Option<Uid>, Option<Gid>)> {
    match [uid, gid].contains(&NO_ID) {
        true => Err(fail("set owner")(rustix::io::Errno::INVAL)),
        false => Ok((Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))),
    }
}

fn set_open(fd: &OwnedFd, set: &SetMeta) -> EndResult<()> {
    if let Some((uid, gid)) = set.owner.map(owner).transpose()? {
        fs::fchown(fd, uid, gid).map_err(fail("set owner"))?;
    }
    if let Some(mode) = set.mode {
        fs::fchmod(fd, Mode::from_raw_mode(mode)).map_err(fail("set mode"))?;
    }
    set.times.map_or(Ok(()), |times| fs::futimens(fd, &timestamps(times)).map_err(fail("set times")))
}

fn set_named(dir: &OwnedFd, name: &[u8], set: &SetMeta) -> EndResult<()> {
    let nofollow = AtFlags::SYMLINK_NOFOLLOW;
    if let Some((uid, gid)) = set.owner.map(owner).transpose()? {
        fs::chownat(dir, name, uid, gid, nofollow).map_err(fail("set owner"))?;
    }
    if let Some(mode) = set.mode {
        // Follows links; the engine never sets the mode of one.
        fs::chmodat(dir, name, Mode::from_raw_mode(mode), AtFlags::empty()).map_err(fail("set mode"))?;
    }
    set.times.map_or(Ok(()), |times| {
        fs::utimensat(dir, name, &timestamps(times), nofollow).map_err(fail("set times"))
    })
}

/// File systems on which a file takes what it is long, by the magic numbers of statfs(2): ext2 to ext4, XFS, tmpfs.
const PLAIN: [u64; 3] = [0xef53, 0x5846_5342, 0x0102_1994];

impl End for LocalEnd {
    fn describe(&self) -> String {
        self.shown_path().display().to_string()
    }

    fn identity(&self) -> Vec<u8> {
        [b"local:", self.shown_path().as_os_str().as_bytes()].concat()
    }

    fn rights(&self) -> Rights {
        self.rights
    }

    fn place(&self) -> Option<Vec<u8>> {
        self.whole.as_ref().map(|(_, _, below)| below.clone())
    }

    fn leads(&self, at: &LinkAt<'_>, target: &[u8]) -> EndResult<Leads> {
        let Some((path, top, _)) = &self.whole else { return Ok(Leads::There) };
        let mount = path.as_os_str().as_bytes().to_vec();
        Whole { end: self, root: DirRef::Local(top.clone()), mount }.lead(at, target)
    }

    /// Also what is kept for root.
    fn room(&self) -> Option<u64> {
        let root = lock(&self.root.fd);
        let found = fs::fstatfs(root.as_ref()?).ok()?;
        let is_plain = PLAIN.contains(&(found.f_type as u64));
        // A tmpfs without a limit has no blocks.
        (is_plain && found.f_blocks > 0).then_some(found.f_bfree * found.f_bsize as u64)
    }

    fn gives_group(&self, gid: u32) -> bool {
        // Whom the kernel takes the thread for does not change while it copies.
        let groups =
            || rustix::process::getgroups().unwrap_or_default().into_iter().map(Gid::as_raw).collect();
        gid == self.rights.gid || self.groups.get_or_init(groups).contains(&gid)
    }

    /// Of file systems that keep what they say. What is mounted below the root is another one, be it on a single file.
    fn knows_sizes(&self, meta: &Meta) -> bool {
        self.medium != Medium::Other && meta.dev == self.root.key.0
    }

    fn reads_touch_atime(&self) -> bool {
        true
    }

    fn root(&self) -> DirRef {
        DirRef::Local(self.root.clone())
    }

    fn open_dir(&self, dir: &DirRef, name: &[u8]) -> EndResult<DirRef> {
        let parent = self.local(dir)?;
        let fd = self.fd_of(parent)?;
        let opened = fs::openat(&fd, name, DIR_FLAGS, Mode::empty()).map_err(fail("open directory"))?;
        let stat = fs::fstat(&opened).map_err(fail("stat"))?;
        let child = Arc::new(LocalDir {
            parent: Some(parent.clone()),
            name: name.into(),
            key: key_of(&stat),
            fd: Mutex::new(None),
            listing: Mutex::default(),
            used: AtomicBool::new(true),
        });
        self.keep(&child, opened);
        Ok(DirRef::Local(child))
    }

    fn leave_dir(&self, dir: &DirRef) {
        let DirRef::Local(dir) = dir else { return };
        let Some(parent) = &dir.parent else { return };
        let Some(fd) = lock(&dir.fd).take() else { return };
        // One step up is cheaper than all steps down from the root; a failure means only
        // that the steps down are taken.
        if lock(&parent.fd).is_none()
            && let Ok(up) = fs::openat(&fd, "..", DIR_FLAGS, Mode::empty())
        {
            let _ = self.keep_checked(parent, up);
        }
    }

    fn list(&self, dir: &DirRef, from: &Cursor) -> EndResult<(Vec<Item>, Option<Cursor>)> {
        let dir = self.local(dir)?;
        let fd = self.fd_of(dir)?;
        let cookie = match from {
            Cursor::Local(cookie) => *cookie,
            _ => 0,
        };
        // Another one that is listing it, such as who counts ahead, would take entries away from this one.
        let _alone = lock(&dir.listing);
        fs::seek(&fd, SeekFrom::Start(cookie)).map_err(fail("list"))?;
        let (items, next) = list_page(&fd, self.sizes).map_err(fail("list"))?;
        Ok((items, next.map(Cursor::Local)))
    }

    fn stat(&self, at: At<'_>) -> EndResult<Meta> {
        let stat = match at {
            At::File(file) => fs::fstat(file_fd(file)?),
            At::Dir(dir) => fs::fstat(&*self.dir_fd(dir)?),
            At::Name(dir, name) => fs::statat(&*self.dir_fd(dir)?, name, AtFlags::SYMLINK_NOFOLLOW),
        };
        meta_of(&stat.map_err(fail("stat"))?)
    }

    fn read_link(&self, dir: &DirRef, name: &[u8]) -> EndResult<Vec<u8>> {
        let fd = self.dir_fd(dir)?;
        fs::readlinkat(&fd, name, Vec::new()).map(|t| t.into_bytes()).map_err(fail("read link"))
    }

    fn xattrs(&self, at: At<'_>) -> EndResult<Vec<Xattr>> {
        let names = xattr_names(at, self)?;
        let mut found = Vec::new();
        for name in names.split(|b| *b == 0).filter(|n| !n.is_empty()) {
            if let Some(value) = xattr_value(at, self, name)? {
                found.push((name.to_vec(), value));
            }
        }
        Ok(found)
    }

    fn open_read(&self, dir: &DirRef, name: &[u8]) -> EndResult<FileRef> {
        match self.open_file(dir, name, OFlags::RDONLY | OFlags::NOATIME, "open") {
            // Only the owner may leave the access time alone.
            Err(error) if error.errno == Errno::EPERM => self.open_file(dir, name, OFlags::RDONLY, "open"),
            other => other,
        }
    }

    fn read(&self, file: &FileRef, offset: u64, buf: &mut [u8]) -> EndResult<usize> {
        let fd = file_fd(file)?;
        let mut done = 0;
        while done < buf.len() {
            match self.passing.read(fd, offset + done as u64, &mut buf[done..]) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Sys::INTR) => {}
                Err(errno) => return Err(fail("read")(errno)),
            }
        }
        Ok(done)
    }

    fn next_data(&self, file: &FileRef, offset: u64) -> EndResult<Option<u64>> {
        match fs::seek(file_fd(file)?, SeekFrom::Data(offset)) {
            Ok(at) => Ok(Some(at)),
            Err(Sys::NXIO) => Ok(None),
            // A file system without holes to tell of: all is data.
            Err(Sys::INVAL | Sys::OPNOTSUPP) => Ok(Some(offset)),
            Err(errno) => Err(fail("find data")(errno)),
        }
    }

    fn next_hole(&self, file: &FileRef, offset: u64, limit: u64) -> EndResult<u64> {
        match fs::seek(file_fd(file)?, SeekFrom::Hole(offset)) {
            Ok(at) => Ok(at.min(limit)),
            Err(Sys::NXIO | Sys::INVAL | Sys::OPNOTSUPP) => Ok(limit),
            Err(errno) => Err(fail("find hole")(errno)),
        }
    }

    fn drop_cache(&self, file: &FileRef, offset: u64, len: u64) {
        // Advice only; the verification reads in any case.
        advise(file, offset, len, Advice::DontNeed);
    }

    fn will_read(&self, file: &FileRef, offset: u64, len: u64) {
        // What is announced, the kernel keeps.
        if self.medium == Medium::Disk && !self.passing.works() {
            advise(file, offset, len, Advice::WillNeed);
        }
    }

    fn reads_back_at_once(&self, dir: &DirRef) -> bool {
        !self.from_disk && self.medium(dir) != Medium::Other
    }

    fn begin_sync(&self, file: &FileRef, offset: u64, len: u64) {
        if self.medium == Medium::Disk && !self.passing.works() {
            // To forget pages that are not written yet, the kernel starts to write them. It keeps those.
            advise(file, offset, len, Advice::DontNeed);
        }
    }

    fn writers_per_file(&self) -> usize {
        if self.medium == Medium::Other { usize::MAX } else { WRITERS_PER_FILE }
    }

    fn buffer_bytes(&self) -> usize {
        self.medium.block_bytes()
    }

    fn small_buffer_bytes(&self) -> usize {
        self.medium.small_block_bytes()
    }

    fn create(&self, dir: &DirRef, name: &[u8]) -> EndResult<FileRef> {
        self.open_file(dir, name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, "create")
    }

    fn open_write(&self, dir: &DirRef, name: &[u8]) -> EndResult<FileRef> {
        self.open_file(dir, name, OFlags::RDWR, "open")
    }

    fn write(&self, file: &FileRef, offset: u64, data: &[u8]) -> EndResult<usize> {
        let fd = file_fd(file)?;
        loop {
            match self.passing.write(fd, offset, data) {
                Err(Sys::INTR) => {}
                other => return other.map_err(fail("write")),
            }
        }
    }

    fn truncate(&self, file: &FileRef, size: u64) -> EndResult<()> {
        fs::ftruncate(file_fd(file)?, size).map_err(fail("set size"))
    }

    fn fsync(&self, file: &FileRef) -> EndResult<()> {
        fs::fsync(file_fd(file)?).map_err(fail("fsync"))
    }

    fn pack_limits(&self) -> PackLimits {
        self.limits_nearby()
    }

    fn workers_wanted(&self) -> usize {
        self.workers_nearby()
    }

    fn fsync_many(&self, files: &[&FileRef]) -> Vec<EndResult<()>> {
        self.sync_together(files)
    }

    fn syncs_together(&self, dir: &DirRef) -> bool {
        self.medium(dir) == Medium::Disk && !self.from_disk
    }

    fn put_unsynced(&self, files: &[Put<'_>], how: PutHow) -> Vec<EndResult<Written>> {
        if files.iter().any(|put| !self.syncs_together(put.at.dir)) {
            return self.put_files(files, how);
        }
        let mut buf = Vec::new();
        files.iter().map(|put| self.put_checked(put, how, &mut buf).map(|(_, written)| written)).collect()
    }

    fn sync_written(&self) -> EndResult<()> {
        let mut failed = lock(&self.sync_failed);
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        // The kernel tells an error once to each who has the file system open (Linux 5.8), whosever
        // file it was. The lock keeps another one from taking the next sync for its own's success.
        let synced = fs::syncfs(&*self.fd_of(&self.root)?).map_err(fail("sync file system"));
        synced.inspect_err(|error| *failed = Some(error.clone()))
    }

    fn gets_rechecked(&self) -> bool {
        self.medium != Medium::Other
    }

    fn names_at_once(&self, dir: &DirRef) -> bool {
        self.names_nearby(dir)
    }

    fn put_named(&self, files: &[Put<'_>], how: PutHow) -> Vec<EndResult<Written>> {
        let mut buf = Vec::new();
        files.iter().map(|put| self.put_linked(put, how, &mut buf)).collect()
    }

    fn get_files(&self, names: &[Name<'_>], limits: &PackLimits) -> Vec<EndResult<Got>> {
        self.get_nearby(names, limits)
    }

    fn put_files(&self, files: &[Put<'_>], how: PutHow) -> Vec<EndResult<Written>> {
        self.put_nearby(files, how)
    }

    fn fsync_dir(&self, dir: &DirRef) -> EndResult<()> {
        match fs::fsync(&*self.dir_fd(dir)?) {
            // Some file systems have nothing to sync in a directory and say so.
            Ok(()) | Err(Sys::INVAL) => Ok(()),
            Err(errno) => Err(fail("fsync directory")(errno)),
        }
    }

    fn fsync_all(&self) -> EndResult<()> {
        Ok(())
    }

    fn make_dir(&self, dir: &DirRef, name: &[u8]) -> EndResult<()> {
        fs::mkdirat(&*self.dir_fd(dir)?, name, Mode::from_raw_mode(0o700)).map_err(fail("make directory"))
    }

    fn make_symlink(&self, dir: &DirRef, name: &[u8], target: &[u8]) -> EndResult<()> {
        fs::symlinkat(target, &*self.dir_fd(dir)?, name).map_err(fail("make link"))
    }

    fn make_node(&self, dir: &DirRef, name: &[u8], kind: FileKind, rdev: u64) -> EndResult<()> {
        let file_type = FileType::from_raw_mode(kind.mode_bits());
        fs::mknodat(&*self.dir_fd(dir)?, name, file_type, Mode::from_raw_mode(0o600), rdev)
            .map_err(fail("make node"))
    }

    fn make_link(&self, old: (&DirRef, &[u8]), new: (&DirRef, &[u8])) -> EndResult<()> {
        let (old_fd, new_fd) = (self.dir_fd(old.0)?, self.dir_fd(new.0)?);
        fs::linkat(&*old_fd, old.1, &*new_fd, new.1, AtFlags::empty()).map_err(fail("hard link"))
    }

    fn rename(&self, dir: &DirRef, from: &[u8], to: &[u8]) -> EndResult<()> {
        let fd = self.dir_fd(dir)?;
        fs::renameat(&*fd, from, &*fd, to).map_err(fail("rename"))
    }

    fn unlink(&self, dir: &DirRef, name: &[u8]) -> EndResult<()> {
        fs::unlinkat(&*self.dir_fd(dir)?, name, AtFlags::empty()).map_err(fail("remove"))
    }

    fn set_meta(&self, at: At<'_>, set: &SetMeta) -> EndResult<()> {
        match at {
            At::File(file) => set_open(file_fd(file)?, set),
            At::Dir(dir) => set_open(&*self.dir_fd(dir)?, set),
            At::Name(dir, name) => set_named(&*self.dir_fd(dir)?, name, set),
        }
    }

    fn set_xattr(&self, at: At<'_>, name: &[u8], value: &[u8]) -> EndResult<()> {
        let flags = XattrFlags::empty();
        match at {
            At::File(file) => fs::fsetxattr(file_fd(file)?, name, value, flags),
            At::Dir(dir) => fs::fsetxattr(&*self.dir_fd(dir)?, name, value, flags),
            At::Name(dir, file) => {
                fs::lsetxattr(LocalEnd::proc_path(&*self.dir_fd(dir)?, file), name, value, flags)
            }
        }
        .map_err(fail("set attribute"))
    }

    fn remove_dir(&self, dir: &DirRef, name: &[u8]) -> EndResult<()> {
        fs::unlinkat(&*self.dir_fd(dir)?, name, AtFlags::REMOVEDIR).map_err(fail("remove directory"))
    }

    fn is_mount(&self, dir: &DirRef) -> EndResult<bool> {
        let fd = self.dir_fd(dir)?;
        match fs::statx(&fd, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE) {
            Ok(found) => Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)),
            // Before Linux 4.11; other file systems are told apart by their numbers.
            Err(Sys::NOSYS) => Ok(false),
            Err(errno) => Err(fail("stat")(errno)),
        }
    }

    fn move_entry(&self, from: (&DirRef, &[u8]), to: (&DirRef, &[u8]), replace: bool) -> EndResult<()> {
        if matches!(to.0, DirRef::Pool(_)) {
            return Err(EndError::new("move", Errno::EXDEV));
        }
        let (old, new) = (self.dir_fd(from.0)?, self.dir_fd(to.0)?);
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        fs::renameat_with(&*old, from.1, &*new, to.1, flags).map_err(fail("move"))
    }

    fn clone_file(&self, from: &FileRef, to: &FileRef) -> EndResult<()> {
        fs::ioctl_ficlone(file_fd(to)?, file_fd(from)?).map_err(fail("clone"))
    }
}
