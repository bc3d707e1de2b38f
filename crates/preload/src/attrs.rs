//! Attributes: stat and its kin, permissions, owners, times, extended attributes, statfs.

use crate::at::{Step, Target, at, look_at, on_descriptor};
use crate::fdtable::Entry;
use crate::files::{kernel_unless_hidden, object, on_object};
use crate::inside::Work;
use crate::raw::{self, err, sys};
use crate::{config, cred, inside, pool};
use libc::{c_char, c_int};
use std::sync::atomic::{AtomicU64, Ordering};
use tidepool_client::{Client, FsError, Walk};
use tidepool_types::{Attr, Errno, FileKind, InstanceId, SetAttr, TimeSpec};

/// Largest `st_blksize` told: Python and coreutils make buffers of this size per file.
const BLKSIZE_MAX: u32 = 128 * 1024;
/// `f_type` of the pool: "TIDE".
const FS_MAGIC: i64 = 0x5449_4445;

/// Device number of a pool; equal in all processes.
fn device(instance: InstanceId) -> u64 {
    let low = instance.0.iter().fold(0u32, |hash, b| hash.wrapping_mul(31).wrapping_add(u32::from(*b)));
    libc::makedev(0x7d0, low & 0xf_ffff)
}

pub fn stat_of(attr: &Attr, client: &Client) -> libc::stat {
    // SAFETY: a struct of integers.
    let mut out: libc::stat = unsafe { std::mem::zeroed() };
    out.st_dev = device(client.instance());
    out.st_ino = client.inode_numbers().number(attr.ino);
    out.st_mode = attr.st_mode();
    out.st_nlink = u64::from(attr.nlink);
    out.st_uid = attr.uid;
    out.st_gid = attr.gid;
    out.st_rdev = attr.rdev;
    out.st_size = attr.size as i64;
    out.st_blksize = i64::from((attr.chunk_size() as u32).clamp(4096, BLKSIZE_MAX));
    out.st_blocks = attr.blocks_512() as i64;
    (out.st_atime, out.st_atime_nsec) = (attr.atime.sec, i64::from(attr.atime.nsec));
    (out.st_mtime, out.st_mtime_nsec) = (attr.mtime.sec, i64::from(attr.mtime.nsec));
    (out.st_ctime, out.st_ctime_nsec) = (attr.ctime.sec, i64::from(attr.ctime.nsec));
    out
}

/// Attributes of a target.
fn attr_of(client: &Client, target: &Target, follow: bool) -> Result<Walk<Attr>, FsError> {
    match target {
        Target::Path { base, path, .. } => client.stat(*base, path, follow, &cred::effective()),
        Target::Object { entry, .. } => client.get_attr(entry.ino).map(Walk::Found),
    }
}

/// # Safety
/// `out` is valid for a `struct stat`.
pub unsafe fn fstat(fd: c_int, out: *mut libc::stat) -> isize {
    let work = |client: &Client, entry: &Entry| {
        let attr = client.get_attr(entry.ino).map_err(|error| pool::report(&error))?;
        raw::check(out, size_of::<libc::stat>())?;
        // SAFETY: the caller's promise.
        unsafe { out.write(stat_of(&attr, client)) };
        Ok(0)
    };
    match on_object(fd, Work::Looks, work) {
        // SAFETY: the caller's arguments.
        None => kernel_unless_hidden(fd, || unsafe { sys!(libc::SYS_fstat, fd, out) }),
        Some(result) => result,
    }
}

/// # Safety
/// `out` is valid for a `struct stat`.
pub unsafe fn fstatat(dirfd: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int) -> isize {
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    let work = |client: &Client, target: Target| -> Step {
        let attr = attr_of(client, &target, follow)?;
        raw::check(out, size_of::<libc::stat>())?;
        // SAFETY: the caller's promise.
        Ok(attr.map(|attr| unsafe {
            out.write(stat_of(&attr, client));
            0
        }))
    };
    if is_empty(path)
        && flags & libc::AT_EMPTY_PATH != 0
        && let Some(result) = empty_path(dirfd, &work)
    {
        return result;
    }
    let kernel = |dirfd: i32, path: *const c_char| {
        // SAFETY: the caller's arguments.
        let result = unsafe { sys!(libc::SYS_newfstatat, dirfd, path, out, flags) };
        // SAFETY: filled by the kernel just now.
        if result == 0 && follow && is_mount(unsafe { ((*out).st_dev, (*out).st_ino) }) && !inside::inside() {
            return on_root(&work);
        }
        result
    };
    look_at(dirfd, path, follow, &kernel, &work)
}

fn is_empty(path: *const c_char) -> bool {
    // SAFETY: a C string, if it can be memory.
    path.is_null() || (raw::is_memory(path as usize, 1) && unsafe { *path == 0 })
}

/// Calls on the descriptor itself, or on the working directory.
fn empty_path(dirfd: i32, work: &dyn Fn(&Client, Target) -> Step) -> Option<isize> {
    if inside::inside() || config::mount().is_none() {
        return None;
    }
    if dirfd == libc::AT_FDCWD {
        crate::cwd::inside_pool()?;
        return Some(at(libc::AT_FDCWD, c".".as_ptr(), true, &|_, _| err(libc::ENOENT), work));
    }
    on_descriptor(dirfd, work)
}

/// The call on the pool's root, reached through a link outside that leads to the mount directory.
#[cold]
fn on_root(work: &dyn Fn(&Client, Target) -> Step) -> isize {
    let Some(mount) = config::mount() else { return err(libc::ENOENT) };
    assert_eq!(mount.first(), Some(&b'/'));
    // SAFETY: the mount text is followed by a NUL.
    at(libc::AT_FDCWD, mount.as_ptr().cast(), true, &|_, _| err(libc::ENOENT), work)
}

static MOUNT_DEV: AtomicU64 = AtomicU64::new(0);
static MOUNT_INO: AtomicU64 = AtomicU64::new(0);

/// Is this the real (empty) directory under the mount path?
fn is_mount(id: (u64, u64)) -> bool {
    if MOUNT_INO.load(Ordering::Relaxed) == 0 {
        let Some(mount) = config::mount() else { return false };
        // SAFETY: a struct of integers; the mount text is followed by a NUL.
        unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            if sys!(libc::SYS_stat, mount.as_ptr(), &raw mut stat) != 0 {
                return false;
            }
            MOUNT_DEV.store(stat.st_dev, Ordering::Relaxed);
            MOUNT_INO.store(stat.st_ino, Ordering::Relaxed);
        }
    }
    (MOUNT_DEV.load(Ordering::Relaxed), MOUNT_INO.load(Ordering::Relaxed)) == id
}

/// Is the kernel's `fd` the mount directory?
pub fn is_mount_directory(fd: i32) -> bool {
    // SAFETY: a struct of integers, filled by the kernel.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        config::mount().is_some()
            && sys!(libc::SYS_fstat, fd, &raw mut stat) == 0
            && is_mount((stat.st_dev, stat.st_ino))
    }
}

/// # Safety
/// `out` is valid for a `struct statx`.
pub unsafe fn statx(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mask: u32,
    out: *mut libc::statx,
) -> isize {
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    let work = |client: &Client, target: Target| -> Step {
        let attr = attr_of(client, &target, follow)?;
        raw::check(out, size_of::<libc::statx>())?;
        // SAFETY: the caller's promise.
        Ok(attr.map(|attr| unsafe {
            out.write(statx_of(&stat_of(&attr, client)));
            0
        }))
    };
    if is_empty(path)
        && flags & libc::AT_EMPTY_PATH != 0
        && let Some(result) = empty_path(dirfd, &work)
    {
        return result;
    }
    let kernel = |dirfd: i32, path: *const c_char| {
        // SAFETY: the caller's arguments.
        let result = unsafe { sys!(libc::SYS_statx, dirfd, path, flags, mask, out) };
        // SAFETY: filled by the kernel just now.
        let id = || unsafe { (libc::makedev((*out).stx_dev_major, (*out).stx_dev_minor), (*out).stx_ino) };
        if result == 0 && follow && is_mount(id()) && !inside::inside() {
            return on_root(&work);
        }
        result
    };
    look_at(dirfd, path, follow, &kernel, &work)
}

fn statx_of(stat: &libc::stat) -> libc::statx {
    // SAFETY: a struct of integers.
    let mut out: libc::statx = unsafe { std::mem::zeroed() };
    let time = |sec, nsec: i64| {
        // SAFETY: a struct of integers.
        let mut time: libc::statx_timestamp = unsafe { std::mem::zeroed() };
        (time.tv_sec, time.tv_nsec) = (sec, nsec as u32);
        time
    };
    out.stx_mask = libc::STATX_BASIC_STATS;
    out.stx_blksize = stat.st_blksize as u32;
    out.stx_nlink = stat.st_nlink as u32;
    (out.stx_uid, out.stx_gid) = (stat.st_uid, stat.st_gid);
    out.stx_mode = stat.st_mode as u16;
    out.stx_ino = stat.st_ino;
    out.stx_size = stat.st_size as u64;
    out.stx_blocks = stat.st_blocks as u64;
    out.stx_atime = time(stat.st_atime, stat.st_atime_nsec);
    out.stx_mtime = time(stat.st_mtime, stat.st_mtime_nsec);
    out.stx_ctime = time(stat.st_ctime, stat.st_ctime_nsec);
    (out.stx_rdev_major, out.stx_rdev_minor) = (libc::major(stat.st_rdev), libc::minor(stat.st_rdev));
    (out.stx_dev_major, out.stx_dev_minor) = (libc::major(stat.st_dev), libc::minor(stat.st_dev));
    out
}

pub fn faccessat(dirfd: c_int, path: *const c_char, mask: c_int, flags: c_int) -> isize {
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    let kernel = |dirfd: i32, path: *const c_char| {
        // SAFETY: the caller's arguments.
        unsafe {
            if flags == 0 {
                return sys!(libc::SYS_faccessat, dirfd, path, mask);
            }
            sys!(libc::SYS_faccessat2, dirfd, path, mask, flags)
        }
    };
    look_at(dirfd, path, follow, &kernel, &|client, target| {
        let cred = if flags & libc::AT_EACCESS != 0 { cred::effective() } else { cred::real() };
        match target {
            _ if mask & !7 != 0 => Err(Errno::EINVAL.into()),
            Target::Path { base, path, .. } => {
                Ok(client.access(base, path, mask, follow, &cred)?.map(|()| 0))
            }
            Target::Object { entry, .. } => {
                client.may(&client.get_attr(entry.ino)?, &cred, mask)?;
                Ok(Walk::Found(0))
            }
        }
    })
}

/// Changes attributes by path.
fn set_at(
    dirfd: i32,
    path: *const c_char,
    follow: bool,
    set: &SetAttr,
    kernel: &dyn Fn(i32, *const c_char) -> isize,
) -> isize {
    at(dirfd, path, follow, kernel, &|client, target| set_target(client, target, follow, set))
}

fn set_target(client: &Client, target: Target, follow: bool, set: &SetAttr) -> Step {
    let done = match target {
        Target::Path { base, path, .. } => client.set_attr_at(base, path, follow, set, &cred::effective())?,
        Target::Object { entry, .. } => Walk::Found(client.set_attr(entry.ino, set, &cred::effective())?),
    };
    Ok(done.map(|_| 0))
}

/// Changes attributes by descriptor.
fn set_fd(fd: i32, set: &SetAttr, kernel: impl FnOnce() -> isize) -> isize {
    match object(fd) {
        None => kernel_unless_hidden(fd, kernel),
        Some(entry) if entry.flags & libc::O_PATH != 0 => err(libc::EBADF),
        Some(entry) => pool::run(|client| {
            client
                .set_attr(entry.ino, set, &cred::effective())
                .map(|_| 0)
                .map_err(|error| pool::report(&error))
        }),
    }
}

pub fn fchmodat(dirfd: c_int, path: *const c_char, mode: u32, flags: c_int) -> isize {
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    let kernel = |dirfd: i32, path: *const c_char| {
        // SAFETY: the caller's arguments.
        unsafe {
            if flags == 0 {
                return sys!(libc::SYS_fchmodat, dirfd, path, mode);
            }
            match sys!(SYS_FCHMODAT2, dirfd, path, mode, flags) {
                code if code == err(libc::ENOSYS) => err(libc::EOPNOTSUPP),
                other => other,
            }
        }
    };
    let set = SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() };
    at(dirfd, path, follow, &kernel, &|client, target| {
        if !follow
            && let Target::Path { base, path, .. } = &target
            && let Walk::Found(attr) = client.stat(*base, path, false, &cred::effective())?
            && attr.kind() == tidepool_types::FileKind::Symlink
        {
            return Err(Errno::EOPNOTSUPP.into());
        }
        set_target(client, target, follow, &set)
    })
}

/// Since Linux 6.6; older kernels have no way to set a mode without following.
const SYS_FCHMODAT2: i64 = 452;

pub fn fchmod(fd: c_int, mode: u32) -> isize {
    let set = SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() };
    // SAFETY: no pointers.
    set_fd(fd, &set, || unsafe { sys!(libc::SYS_fchmod, fd, mode) })
}

fn owners(uid: u32, gid: u32) -> SetAttr {
    let given = |id: u32| (id != u32::MAX).then_some(id);
    SetAttr { uid: given(uid), gid: given(gid), ..SetAttr::default() }
}

pub fn fchownat(dirfd: c_int, path: *const c_char, uid: u32, gid: u32, flags: c_int) -> isize {
    let set = owners(uid, gid);
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    if is_empty(path)
        && flags & libc::AT_EMPTY_PATH != 0
        && let Some(result) = empty_path(dirfd, &|client, target| set_target(client, target, follow, &set))
    {
        return result;
    }
    // SAFETY: the caller's arguments.
    let kernel =
        |dirfd: i32, path: *const c_char| unsafe { sys!(libc::SYS_fchownat, dirfd, path, uid, gid, flags) };
    set_at(dirfd, path, follow, &set, &kernel)
}

pub fn fchown(fd: c_int, uid: u32, gid: u32) -> isize {
    // SAFETY: no pointers.
    set_fd(fd, &owners(uid, gid), || unsafe { sys!(libc::SYS_fchown, fd, uid, gid) })
}

/// # Safety
/// `times` is null or points to two timespecs.
unsafe fn time_change(times: *const libc::timespec) -> Result<SetAttr, isize> {
    let one = |time: &libc::timespec| match time.tv_nsec {
        libc::UTIME_NOW => Ok(Some(TimeSpec::NOW)),
        libc::UTIME_OMIT => Ok(None),
        0..=999_999_999 => Ok(Some(TimeSpec { sec: time.tv_sec, nsec: time.tv_nsec as u32 })),
        _ => Err(err(libc::EINVAL)),
    };
    if times.is_null() {
        let now = Some(TimeSpec::NOW);
        return Ok(SetAttr { atime: now, mtime: now, ..SetAttr::default() });
    }
    // SAFETY: the caller's promise.
    let (atime, mtime) = unsafe { (&*times, &*times.add(1)) };
    Ok(SetAttr { atime: one(atime)?, mtime: one(mtime)?, ..SetAttr::default() })
}

/// # Safety
/// `times` is null or points to two timespecs.
pub unsafe fn utimensat(
    dirfd: c_int,
    path: *const c_char,
    times: *const libc::timespec,
    flags: c_int,
) -> isize {
    // SAFETY: the caller's promise.
    let set = match unsafe { time_change(times) } {
        Ok(set) => set,
        Err(code) => return code,
    };
    if path.is_null() || (is_empty(path) && flags & libc::AT_EMPTY_PATH != 0) {
        // SAFETY: the caller's arguments; a null path means the descriptor.
        return set_fd(dirfd, &set, || unsafe { sys!(libc::SYS_utimensat, dirfd, path, times, flags) });
    }
    // SAFETY: the caller's arguments.
    let kernel =
        |dirfd: i32, path: *const c_char| unsafe { sys!(libc::SYS_utimensat, dirfd, path, times, flags) };
    set_at(dirfd, path, flags & libc::AT_SYMLINK_NOFOLLOW == 0, &set, &kernel)
}

/// The older calls' microseconds as nanoseconds; null stays null.
///
/// # Safety
/// `times` is null or points to two timevals.
pub unsafe fn from_timevals(times: *const libc::timeval) -> Result<Option<[libc::timespec; 2]>, isize> {
    if times.is_null() {
        return Ok(None);
    }
    let one = |time: &libc::timeval| libc::timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_usec * 1000 };
    // SAFETY: the caller's promise.
    let (a, b) = unsafe { (&*times, &*times.add(1)) };
    if [a, b].iter().any(|time| !(0..1_000_000).contains(&time.tv_usec)) {
        return Err(err(libc::EINVAL));
    }
    Ok(Some([one(a), one(b)]))
}

/// # Safety
/// `times` is null or points to two timevals.
pub unsafe fn futimesat(
    dirfd: c_int,
    path: *const c_char,
    times: *const libc::timeval,
    flags: c_int,
) -> isize {
    // SAFETY: the caller's promise.
    match unsafe { from_timevals(times) } {
        // SAFETY: an array of two, or null.
        Ok(times) => unsafe {
            utimensat(dirfd, path, times.as_ref().map_or(std::ptr::null(), |t| t.as_ptr()), flags)
        },
        Err(code) => code,
    }
}

/// # Safety
/// `times` is null or valid.
pub unsafe fn utime(path: *const c_char, times: *const libc::utimbuf) -> isize {
    if times.is_null() {
        // SAFETY: null times mean now.
        return unsafe { utimensat(libc::AT_FDCWD, path, std::ptr::null(), 0) };
    }
    // SAFETY: the caller's promise.
    let times = unsafe { &*times };
    let both = [times.actime, times.modtime].map(|sec| libc::timespec { tv_sec: sec, tv_nsec: 0 });
    // SAFETY: an array of two.
    unsafe { utimensat(libc::AT_FDCWD, path, both.as_ptr(), 0) }
}

fn statfs_of(client: &Client) -> Result<libc::statfs, FsError> {
    let told = client.stat_fs()?;
    // SAFETY: a struct of integers.
    let mut out: libc::statfs = unsafe { std::mem::zeroed() };
    out.f_type = FS_MAGIC;
    out.f_bsize = told.block_size as i64;
    out.f_frsize = told.block_size as i64;
    out.f_blocks = told.blocks;
    out.f_bfree = told.blocks_free;
    out.f_bavail = told.blocks_free;
    // Objects need no table of their own: as many as there is room for.
    out.f_files = told.files + told.blocks_free;
    out.f_ffree = told.blocks_free;
    out.f_namelen = tidepool_types::NAME_MAX as i64;
    Ok(out)
}

/// # Safety
/// `out` is valid for a `struct statfs`.
pub unsafe fn statfs(path: *const c_char, out: *mut libc::statfs) -> isize {
    // SAFETY: the caller's arguments.
    let kernel = |_: i32, path: *const c_char| unsafe { sys!(libc::SYS_statfs, path, out) };
    at(libc::AT_FDCWD, path, true, &kernel, &|client, target| {
        if let Walk::Escape(path) = attr_of(client, &target, true)? {
            return Ok(Walk::Escape(path));
        }
        raw::check(out, size_of::<libc::statfs>())?;
        // SAFETY: the caller's promise.
        unsafe { out.write(statfs_of(client)?) };
        Ok(Walk::Found(0))
    })
}

/// # Safety
/// `out` is valid for a `struct statfs`.
pub unsafe fn fstatfs(fd: c_int, out: *mut libc::statfs) -> isize {
    if object(fd).is_none() {
        // SAFETY: the caller's arguments.
        return kernel_unless_hidden(fd, || unsafe { sys!(libc::SYS_fstatfs, fd, out) });
    }
    pool::run(|client| {
        let told = statfs_of(client).map_err(|error| pool::report(&error))?;
        // SAFETY: the caller's promise.
        unsafe { out.write(told) };
        Ok(0)
    })
}

/// Where an extended attribute call looks.
#[derive(Clone, Copy)]
pub enum Where {
    Path(*const c_char, bool),
    Fd(c_int),
}

/// Does an xattr call: `numbers` are the kernel's calls for a path, a path not followed, a descriptor.
fn xattr(
    place: Where,
    numbers: [i64; 3],
    arguments: [usize; 4],
    work: &dyn Fn(&Client, tidepool_types::Ino, FileKind) -> Result<isize, FsError>,
) -> isize {
    let call = |number: i64, first: usize| {
        let [b, c, d, e] = arguments;
        // SAFETY: the caller's arguments.
        unsafe { raw::syscall6(number, first, b, c, d, e, 0) }
    };
    match place {
        Where::Fd(fd) => match object(fd) {
            None => kernel_unless_hidden(fd, || call(numbers[2], fd as usize)),
            Some(entry) if entry.flags & libc::O_PATH != 0 => err(libc::EBADF),
            Some(entry) => pool::run(|client| {
                let kind = if entry.directory() { FileKind::Directory } else { FileKind::Regular };
                work(client, entry.ino, kind).map_err(|error| pool::report(&error))
            }),
        },
        Where::Path(path, follow) => {
            let number = if follow { numbers[0] } else { numbers[1] };
            let kernel = |_: i32, path: *const c_char| call(number, path as usize);
            at(libc::AT_FDCWD, path, follow, &kernel, &|client, target| match attr_of(
                client, &target, follow,
            )? {
                Walk::Found(attr) => Ok(Walk::Found(work(client, attr.ino, attr.kind())?)),
                Walk::Escape(path) => Ok(Walk::Escape(path)),
            })
        }
    }
}

/// Attributes of users belong to files and directories: others' modes say nothing of who may read and write.
fn has_user_attributes(name: &[u8], kind: FileKind, refusal: Errno) -> Result<(), Errno> {
    let theirs = [FileKind::Regular, FileKind::Directory].contains(&kind);
    if theirs || !name.starts_with(b"user.") { Ok(()) } else { Err(refusal) }
}

/// The name of an attribute.
///
/// # Safety
/// A C string, if it can be memory.
unsafe fn name_at<'a>(name: *const c_char) -> Result<&'a [u8], Errno> {
    raw::check(name, 1)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { raw::bytes(name) })
}

/// Gives `text` out by the rules of getxattr and listxattr: size 0 asks for the length.
///
/// # Safety
/// `buf` is writable for `size`.
unsafe fn give(text: &[u8], buf: *mut u8, size: usize) -> Result<isize, FsError> {
    if size == 0 {
        return Ok(text.len() as isize);
    }
    if size < text.len() {
        return Err(Errno::ERANGE.into());
    }
    raw::check(buf, text.len())?;
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buf, text.len()) };
    Ok(text.len() as isize)
}

/// # Safety
/// The arguments of `getxattr`.
pub unsafe fn getxattr(place: Where, name: *const c_char, buf: *mut u8, size: usize) -> isize {
    let numbers = [libc::SYS_getxattr, libc::SYS_lgetxattr, libc::SYS_fgetxattr];
    xattr(place, numbers, [name as usize, buf as usize, size, 0], &|client, ino, kind| {
        // SAFETY: the caller's promise.
        let name = unsafe { name_at(name)? };
        has_user_attributes(name, kind, Errno(libc::ENODATA))?;
        // SAFETY: the caller's promise.
        unsafe { give(&client.get_xattr(ino, name)?, buf, size) }
    })
}

/// # Safety
/// The arguments of `setxattr`.
pub unsafe fn setxattr(
    place: Where,
    name: *const c_char,
    value: *const u8,
    size: usize,
    flags: c_int,
) -> isize {
    let numbers = [libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr];
    xattr(place, numbers, [name as usize, value as usize, size, flags as usize], &|client, ino, kind| {
        raw::check(value, size)?;
        // SAFETY: the caller's promise.
        let (name, value) = unsafe {
            let value = if size == 0 { &[][..] } else { std::slice::from_raw_parts(value, size) };
            (name_at(name)?, value)
        };
        has_user_attributes(name, kind, Errno::EPERM)?;
        if tidepool_client::is_list(name) {
            return client.change_list(ino, name, Some(value), &cred::effective()).map(|()| 0);
        }
        if !name.starts_with(b"user.") && !name.starts_with(b"trusted.") && !name.starts_with(b"security.") {
            return Err(Errno::EOPNOTSUPP.into());
        }
        client.set_xattr(ino, name, value, flags).map(|()| 0)
    })
}

/// # Safety
/// The arguments of `listxattr`.
pub unsafe fn listxattr(place: Where, buf: *mut u8, size: usize) -> isize {
    let numbers = [libc::SYS_listxattr, libc::SYS_llistxattr, libc::SYS_flistxattr];
    xattr(place, numbers, [buf as usize, size, 0, 0], &|client, ino, _| {
        let names = client.list_xattr(ino)?;
        let text: Vec<u8> = names.iter().flat_map(|name| name.iter().chain(&[0]).copied()).collect();
        // SAFETY: the caller's promise.
        unsafe { give(&text, buf, size) }
    })
}

/// # Safety
/// The arguments of `removexattr`.
pub unsafe fn removexattr(place: Where, name: *const c_char) -> isize {
    let numbers = [libc::SYS_removexattr, libc::SYS_lremovexattr, libc::SYS_fremovexattr];
    xattr(place, numbers, [name as usize, 0, 0, 0], &|client, ino, kind| {
        // SAFETY: the caller's promise.
        let name = unsafe { name_at(name)? };
        has_user_attributes(name, kind, Errno::EPERM)?;
        if tidepool_client::is_list(name) {
            return client.change_list(ino, name, None, &cred::effective()).map(|()| 0);
        }
        client.remove_xattr(ino, name).map(|()| 0)
    })
}
