//! Every intercepted call: one list makes the exported symbols, the patches of libc and the table in
//! `docs/guide/preload-calls.md`.

use crate::attrs::Where;
use crate::real::real;
use crate::signals::OldStyle;
use crate::{
    attrs, cancel, cred, dirs, dispatch, exec, files, keep, library, locks, misc, mmap, numbers, raw,
    sharing, signals,
};
use libc::{AT_EACCESS, AT_FDCWD, AT_REMOVEDIR, AT_SYMLINK_NOFOLLOW};
use libc::{c_char, c_int, c_long, c_uint, c_void, iovec, mode_t, off_t, stat, statfs, timespec, timeval};
use std::ffi::CStr;

/// How a call is caught.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// Exported symbols, and the function's entry in libc is patched.
    Both,
    /// Private to glibc: patched only.
    Patch,
    /// Exported symbols only: libc does not call it itself.
    Export,
}

/// Address of a door's code.
pub struct Handler(pub *const ());

// SAFETY: the address of a function never changes.
unsafe impl Sync for Handler {}

pub struct Door {
    pub names: &'static [&'static CStr],
    pub how: How,
    pub handler: Handler,
    /// What happens to pool paths and descriptors.
    #[cfg_attr(not(test), allow(dead_code, reason = "for the table in the guide"))]
    pub pool: &'static str,
    /// What is refused, and with which error.
    #[cfg_attr(not(test), allow(dead_code, reason = "for the table in the guide"))]
    pub refused: &'static str,
}

/// Doors return negative error numbers inside and libc's convention outside.
macro_rules! doors {
    ($($how:ident [$($name:literal)+] $args:tt $body:block $pool:literal $refused:literal)*) => {
        pub static LIST: &[Door] = &[$(Door {
            names: &[$(match CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a symbol has no NUL"),
            }),+],
            how: How::$how,
            handler: Handler({
                // SAFETY: the arguments are the program's, by the contract of the libc function.
                #[allow(unused_unsafe)]
                unsafe extern "C-unwind" fn door $args -> isize { raw::to_libc(unsafe { $body }) }
                door as *const ()
            }),
            pool: $pool,
            refused: $refused,
        }),*];
        $(export!($how [$($name)+] $args $body);)*
    };
}

macro_rules! export {
    (Patch [$($name:literal)+] $args:tt $body:block) => {};
    ($how:ident [] $args:tt $body:block) => {};
    ($how:ident [$name:literal $($more:literal)*] $args:tt $body:block) => {
        #[cfg(not(test))]
        const _: () = {
            // SAFETY: the symbol stands in for libc's of the same name; the arguments are the program's.
            #[allow(unused_unsafe)]
            #[unsafe(export_name = $name)]
            unsafe extern "C-unwind" fn door $args -> isize { raw::to_libc(unsafe { $body }) }
        };
        export!($how [$($more)*] $args $body);
    };
}

fn pointer(set: &Option<libc::sigset_t>) -> *const libc::sigset_t {
    set.as_ref().map_or(std::ptr::null(), std::ptr::from_ref)
}

type Path = *const c_char;
type Strings = *const *const c_char;

doors! {
    Both ["open" "open64" "__open" "__open64"] (path: Path, flags: c_int, mode: mode_t)
        { cancel::test(); files::open_at(AT_FDCWD, path, flags, mode, true) }
        "opened in the pool; the descriptor is a placeholder" "O_TMPFILE: EOPNOTSUPP; pipes, devices: ENXIO"
    Patch ["__open_nocancel" "__open64_nocancel"] (path: Path, flags: c_int, mode: mode_t)
        { files::open_at(AT_FDCWD, path, flags, mode, false) }
        "as open; used by stdio, opendir and others" ""
    Both ["openat" "openat64"] (dir: c_int, path: Path, flags: c_int, mode: mode_t)
        { cancel::test(); files::open_at(dir, path, flags, mode, true) }
        "as open" "as open"
    Both ["__open_2" "__open64_2"] (path: Path, flags: c_int)
        { cancel::test(); files::open_at(AT_FDCWD, path, flags, 0, true) } "as open" "as open"
    Both ["__openat_2" "__openat64_2"] (dir: c_int, path: Path, flags: c_int)
        { cancel::test(); files::open_at(dir, path, flags, 0, true) } "as open" "as open"
    Both ["creat" "creat64"] (path: Path, mode: mode_t)
        { cancel::test(); files::open_at(AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode, true) }
        "as open" ""
    Both ["close" "__close"] (fd: c_int) { cancel::test(); files::close(fd) }
        "the last descriptor releases the object; drops the process's fcntl locks on it" ""
    Patch ["__close_nocancel"] (fd: c_int) { files::close(fd) } "as close; used by fclose and others" ""
    Both ["close_range"] (first: c_uint, last: c_uint, flags: c_int) { files::close_range(first, last, flags) }
        "as close; the client's own descriptors stay" ""
    Both ["closefrom"] (first: c_int) { files::close_from(first) } "as close_range" ""
    Both ["dup"] (fd: c_int) { files::dup(fd) } "shares offset and flags, as always" ""
    Both ["dup2" "__dup2"] (old: c_int, new: c_int) { files::dup2(old, new) } "as dup" ""
    Both ["dup3"] (old: c_int, new: c_int, flags: c_int) { files::dup3(old, new, flags) } "as dup" ""
    Both ["fcntl" "fcntl64" "__fcntl" "__libc_fcntl64"] (fd: c_int, command: c_int, arg: usize)
        { misc::fcntl(fd, command, arg) }
        "duplicates, flags, POSIX and OFD locks over the whole pool" "leases, seals, notifications: EINVAL"
    Both ["flock"] (fd: c_int, operation: c_int) { locks::flock(fd, operation) }
        "locks over the whole pool" ""
    Both ["ioctl"] (fd: c_int, request: u64, arg: usize) { misc::ioctl(fd, request, arg) }
        "FIOCLEX, FIONCLEX" "FICLONE: EOPNOTSUPP; others: ENOTTY"

    Both ["read" "__read"] (fd: c_int, buf: *mut u8, count: usize) { cancel::test(); misc::read(fd, buf, count, true) }
        "read from the pool at the shared offset" ""
    Patch ["__read_nocancel"] (fd: c_int, buf: *mut u8, count: usize) { misc::read(fd, buf, count, false) }
        "as read; used by stdio" ""
    Both ["write" "__write"] (fd: c_int, buf: *const u8, count: usize) { cancel::test(); misc::write(fd, buf, count, true) }
        "written to the pool before it returns" ""
    Patch ["__write_nocancel"] (fd: c_int, buf: *const u8, count: usize) { misc::write(fd, buf, count, false) }
        "as write; used by stdio" ""
    Both ["pread" "pread64" "__pread64" "__libc_pread"] (fd: c_int, buf: *mut u8, count: usize, offset: off_t)
        { cancel::test(); misc::pread(fd, buf, count, offset) } "as read, at an offset" ""
    Patch ["__pread64_nocancel"] (fd: c_int, buf: *mut u8, count: usize, offset: off_t)
        { misc::pread(fd, buf, count, offset) } "as pread" ""
    Both ["pwrite" "pwrite64" "__pwrite64" "__libc_pwrite"] (fd: c_int, buf: *const u8, count: usize, offset: off_t)
        { cancel::test(); misc::pwrite(fd, buf, count, offset) } "as write, at an offset" ""
    Both ["readv"] (fd: c_int, iov: *const iovec, count: c_int) { cancel::test(); misc::readv(fd, iov, count, -1, 0) }
        "as read, buffer by buffer" ""
    Both ["writev"] (fd: c_int, iov: *const iovec, count: c_int) { cancel::test(); misc::writev(fd, iov, count, -1, 0) }
        "as one write" ""
    Both ["preadv" "preadv64"] (fd: c_int, iov: *const iovec, count: c_int, offset: off_t)
        { cancel::test(); if offset < 0 { raw::err(libc::EINVAL) } else { misc::readv(fd, iov, count, offset, 0) } }
        "as pread, buffer by buffer" ""
    Both ["pwritev" "pwritev64"] (fd: c_int, iov: *const iovec, count: c_int, offset: off_t)
        { cancel::test(); if offset < 0 { raw::err(libc::EINVAL) } else { misc::writev(fd, iov, count, offset, 0) } }
        "as pwrite, buffer by buffer" ""
    Both ["preadv2" "preadv64v2"] (fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int)
        { cancel::test(); misc::readv(fd, iov, count, offset, flags) } "as preadv" "RWF_NOWAIT and later flags: EOPNOTSUPP"
    Both ["pwritev2" "pwritev64v2"] (fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int)
        { cancel::test(); misc::writev(fd, iov, count, offset, flags) } "as pwritev" "RWF_APPEND, RWF_NOWAIT: EOPNOTSUPP"
    Both ["lseek" "lseek64" "__lseek" "llseek"] (fd: c_int, offset: off_t, whence: c_int)
        { files::lseek(fd, offset, whence) } "all whences, also SEEK_DATA and SEEK_HOLE" ""
    Both ["sendfile" "sendfile64"] (out: c_int, from: c_int, offset: *mut off_t, count: usize)
        { misc::sendfile(out, from, offset, count) } "read and written, at most 1 MiB per call" ""
    Both ["copy_file_range"]
        (from: c_int, at: *mut off_t, to: c_int, at2: *mut off_t, count: usize, flags: c_uint)
        { cancel::test(); misc::copy_file_range(from, at, to, at2, count, flags) }
        "within the pool the daemons copy" "between the pool and the rest EXDEV, on which programs copy by hand"
    Both ["splice"] (from: c_int, at: *mut off_t, to: c_int, at2: *mut off_t, count: usize, flags: c_uint)
        { misc::splice(libc::SYS_splice,
            [from as usize, at as usize, to as usize, at2 as usize, count, flags as usize],
            [from as usize, to as usize]) }
        "" "EINVAL"
    Both ["tee"] (from: c_int, to: c_int, count: usize, flags: c_uint)
        { misc::splice(libc::SYS_tee, [from as usize, to as usize, count, flags as usize, 0, 0],
            [from as usize, to as usize]) }
        "" "EINVAL"
    Both ["vmsplice"] (fd: c_int, iov: *const iovec, count: usize, flags: c_uint)
        { misc::splice(libc::SYS_vmsplice, [fd as usize, iov as usize, count, flags as usize, 0, 0],
            [fd as usize, fd as usize]) }
        "" "EINVAL"

    Both ["fsync"] (fd: c_int) { cancel::test(); files::fsync(fd, libc::SYS_fsync) }
        "data and record are on the daemons' disks" ""
    Both ["fdatasync"] (fd: c_int) { cancel::test(); files::fsync(fd, libc::SYS_fdatasync) } "as fsync" ""
    Both ["sync"] () { misc::sync() } "the whole pool, when this process used it" ""
    Both ["syncfs"] (fd: c_int) { misc::syncfs(fd) } "the whole pool" ""
    Both ["readahead"] (fd: c_int, offset: off_t, count: usize) { misc::readahead(fd, offset, count) }
        "nothing is done" ""
    Both ["sync_file_range"] (fd: c_int, offset: off_t, len: off_t, flags: c_uint)
        { cancel::test(); misc::sync_file_range(fd, offset, len, flags) } "as fsync" ""
    Both ["truncate" "truncate64"] (path: Path, size: off_t) { files::truncate(path, size) } "cut or extended" ""
    Both ["ftruncate" "ftruncate64"] (fd: c_int, size: off_t)
        { match files::object(fd) {
            Some(entry) => files::truncate_ours(&entry, size),
            None => files::kernel_unless_hidden(fd, || raw::sys!(libc::SYS_ftruncate, fd, size)),
        } }
        "cut or extended" ""
    Both ["fallocate" "fallocate64"] (fd: c_int, mode: c_int, offset: off_t, len: off_t)
        { cancel::test(); files::fallocate(fd, mode, offset, len) }
        "extends, punches holes, zeroes ranges; no space is reserved" "collapsing and inserting: EOPNOTSUPP"
    Both ["posix_fallocate" "posix_fallocate64"] (fd: c_int, offset: off_t, len: off_t)
        { misc::error_as_result(files::fallocate(fd, 0, offset, len)) } "as fallocate" ""

    Both ["stat" "stat64"] (path: Path, out: *mut stat) { attrs::fstatat(AT_FDCWD, path, out, 0) }
        "the object's attributes" ""
    Both ["lstat" "lstat64"] (path: Path, out: *mut stat)
        { attrs::fstatat(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW) } "as stat" ""
    Both ["fstat" "fstat64" "__fstat64"] (fd: c_int, out: *mut stat) { attrs::fstat(fd, out) } "as stat" ""
    Both ["fstatat" "fstatat64"] (dir: c_int, path: Path, out: *mut stat, flags: c_int)
        { attrs::fstatat(dir, path, out, flags) } "as stat" ""
    Both ["__xstat" "__xstat64"] (_version: c_int, path: Path, out: *mut stat)
        { attrs::fstatat(AT_FDCWD, path, out, 0) } "as stat; old programs" ""
    Both ["__lxstat" "__lxstat64"] (_version: c_int, path: Path, out: *mut stat)
        { attrs::fstatat(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW) } "as stat; old programs" ""
    Both ["__fxstat" "__fxstat64"] (_version: c_int, fd: c_int, out: *mut stat) { attrs::fstat(fd, out) }
        "as stat; old programs" ""
    Both ["__fxstatat" "__fxstatat64"] (_version: c_int, dir: c_int, path: Path, out: *mut stat, flags: c_int)
        { attrs::fstatat(dir, path, out, flags) } "as stat; old programs" ""
    Both ["statx"] (dir: c_int, path: Path, flags: c_int, mask: c_uint, out: *mut libc::statx)
        { attrs::statx(dir, path, flags, mask, out) } "as stat; no birth time" ""
    Both ["access"] (path: Path, mask: c_int) { attrs::faccessat(AT_FDCWD, path, mask, 0) } "by real ids" ""
    Both ["eaccess" "euidaccess"] (path: Path, mask: c_int) { attrs::faccessat(AT_FDCWD, path, mask, AT_EACCESS) }
        "by effective ids" ""
    Both ["faccessat"] (dir: c_int, path: Path, mask: c_int, flags: c_int)
        { attrs::faccessat(dir, path, mask, flags) } "as access" ""
    Both ["chmod"] (path: Path, mode: mode_t) { attrs::fchmodat(AT_FDCWD, path, mode, 0) }
        "changed in the pool" ""
    Both ["fchmod"] (fd: c_int, mode: mode_t) { attrs::fchmod(fd, mode) } "as chmod" ""
    Both ["fchmodat"] (dir: c_int, path: Path, mode: mode_t, flags: c_int)
        { attrs::fchmodat(dir, path, mode, flags) } "as chmod" "a symbolic link itself: EOPNOTSUPP"
    Both ["lchmod"] (path: Path, mode: mode_t) { attrs::fchmodat(AT_FDCWD, path, mode, AT_SYMLINK_NOFOLLOW) }
        "as chmod" "a symbolic link: EOPNOTSUPP"
    Both ["chown"] (path: Path, uid: c_uint, gid: c_uint)
        { attrs::fchownat(AT_FDCWD, path, uid, gid, 0) } "changed in the pool" ""
    Both ["lchown"] (path: Path, uid: c_uint, gid: c_uint)
        { attrs::fchownat(AT_FDCWD, path, uid, gid, AT_SYMLINK_NOFOLLOW) } "as chown" ""
    Both ["fchown"] (fd: c_int, uid: c_uint, gid: c_uint) { attrs::fchown(fd, uid, gid) } "as chown" ""
    Both ["fchownat"] (dir: c_int, path: Path, uid: c_uint, gid: c_uint, flags: c_int)
        { attrs::fchownat(dir, path, uid, gid, flags) } "as chown" ""
    Both ["utime"] (path: Path, times: *const libc::utimbuf) { attrs::utime(path, times) } "changed in the pool" ""
    Both ["utimes"] (path: Path, times: *const timeval)
        { attrs::futimesat(AT_FDCWD, path, times, 0) } "as utime" ""
    Both ["lutimes"] (path: Path, times: *const timeval)
        { attrs::futimesat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW) } "as utime" ""
    Both ["futimes"] (fd: c_int, times: *const timeval)
        { attrs::futimesat(fd, std::ptr::null(), times, 0) } "as utime" ""
    Both ["futimesat"] (dir: c_int, path: Path, times: *const timeval)
        { attrs::futimesat(dir, path, times, 0) } "as utime" ""
    Both ["utimensat"] (dir: c_int, path: Path, times: *const timespec, flags: c_int)
        { if path.is_null() { raw::err(libc::EINVAL) } else { attrs::utimensat(dir, path, times, flags) } }
        "as utime" ""
    Both ["futimens"] (fd: c_int, times: *const timespec)
        { attrs::utimensat(fd, std::ptr::null(), times, 0) } "as utime" ""
    Both ["umask"] (mask: mode_t) { cred::umask(mask) } "applied when the client creates" ""
    Both ["statfs" "statfs64" "__statfs"] (path: Path, out: *mut statfs) { attrs::statfs(path, out) }
        "space of the whole pool; statvfs and pathconf too" ""
    Both ["fstatfs" "fstatfs64"] (fd: c_int, out: *mut statfs) { attrs::fstatfs(fd, out) }
        "as statfs" ""

    Both ["getxattr"] (path: Path, name: Path, buf: *mut u8, size: usize)
        { attrs::getxattr(Where::Path(path, true), name, buf, size) } "kept by the pool" ""
    Both ["lgetxattr"] (path: Path, name: Path, buf: *mut u8, size: usize)
        { attrs::getxattr(Where::Path(path, false), name, buf, size) } "as getxattr" ""
    Both ["fgetxattr"] (fd: c_int, name: Path, buf: *mut u8, size: usize)
        { attrs::getxattr(Where::Fd(fd), name, buf, size) } "as getxattr" ""
    Both ["setxattr"] (path: Path, name: Path, value: *const u8, size: usize, flags: c_int)
        { attrs::setxattr(Where::Path(path, true), name, value, size, flags) }
        "kept by the pool; access control lists are checked and handed down" "others of system.*: EOPNOTSUPP"
    Both ["lsetxattr"] (path: Path, name: Path, value: *const u8, size: usize, flags: c_int)
        { attrs::setxattr(Where::Path(path, false), name, value, size, flags) } "as setxattr" "as setxattr"
    Both ["fsetxattr"] (fd: c_int, name: Path, value: *const u8, size: usize, flags: c_int)
        { attrs::setxattr(Where::Fd(fd), name, value, size, flags) } "as setxattr" "as setxattr"
    Both ["listxattr"] (path: Path, buf: *mut u8, size: usize)
        { attrs::listxattr(Where::Path(path, true), buf, size) } "as getxattr" ""
    Both ["llistxattr"] (path: Path, buf: *mut u8, size: usize)
        { attrs::listxattr(Where::Path(path, false), buf, size) } "as getxattr" ""
    Both ["flistxattr"] (fd: c_int, buf: *mut u8, size: usize)
        { attrs::listxattr(Where::Fd(fd), buf, size) } "as getxattr" ""
    Both ["removexattr"] (path: Path, name: Path) { attrs::removexattr(Where::Path(path, true), name) }
        "as setxattr" ""
    Both ["lremovexattr"] (path: Path, name: Path) { attrs::removexattr(Where::Path(path, false), name) }
        "as setxattr" ""
    Both ["fremovexattr"] (fd: c_int, name: Path) { attrs::removexattr(Where::Fd(fd), name) } "as setxattr" ""

    Both ["getdents64"] (fd: c_int, buf: *mut u8, len: usize) { dirs::getdents64(fd, buf, len) }
        "a listing taken when reading starts; opendir, readdir, scandir, fts, ftw, glob rest on it" ""
    Both ["mkdir"] (path: Path, mode: mode_t) { dirs::mkdirat(AT_FDCWD, path, mode) }
        "made in the pool" ""
    Both ["mkdirat"] (dir: c_int, path: Path, mode: mode_t) { dirs::mkdirat(dir, path, mode) } "as mkdir" ""
    Both ["mknod"] (path: Path, mode: mode_t, device: u64)
        { dirs::mknodat(AT_FDCWD, path, mode, device) }
        "made in the pool" "opening a pipe, socket or device: ENXIO"
    Both ["mknodat"] (dir: c_int, path: Path, mode: mode_t, device: u64)
        { dirs::mknodat(dir, path, mode, device) } "as mknod" "as mknod"
    Both ["__xmknod"] (_version: c_int, path: Path, mode: mode_t, device: *const u64)
        { dirs::mknodat(AT_FDCWD, path, mode, *device) } "as mknod; old programs" "as mknod"
    Both ["__xmknodat"] (_version: c_int, dir: c_int, path: Path, mode: mode_t, device: *const u64)
        { dirs::mknodat(dir, path, mode, *device) } "as mknod; old programs" "as mknod"
    Both ["mkfifo"] (path: Path, mode: mode_t)
        { dirs::mknodat(AT_FDCWD, path, libc::S_IFIFO | (mode & 0o7777), 0) } "as mknod" "as mknod"
    Both ["mkfifoat"] (dir: c_int, path: Path, mode: mode_t)
        { dirs::mknodat(dir, path, libc::S_IFIFO | (mode & 0o7777), 0) } "as mknod" "as mknod"
    Both ["rmdir"] (path: Path) { dirs::unlinkat(AT_FDCWD, path, AT_REMOVEDIR) }
        "removed from the pool" ""
    Both ["unlink"] (path: Path) { dirs::unlinkat(AT_FDCWD, path, 0) }
        "removed; open descriptors keep the object" ""
    Both ["unlinkat"] (dir: c_int, path: Path, flags: c_int) { dirs::unlinkat(dir, path, flags) } "as unlink" ""
    Both ["remove"] (path: Path) { dirs::remove(path) } "as unlink or rmdir" ""
    Both ["rename"] (old: Path, new: Path) { dirs::renameat2(AT_FDCWD, old, AT_FDCWD, new, 0) }
        "atomic" "between the pool and elsewhere: EXDEV"
    Both ["renameat"] (odir: c_int, old: Path, ndir: c_int, new: Path)
        { dirs::renameat2(odir, old, ndir, new, 0) } "as rename" "as rename"
    Both ["renameat2"] (odir: c_int, old: Path, ndir: c_int, new: Path, flags: c_uint)
        { dirs::renameat2(odir, old, ndir, new, flags) } "as rename" "as rename; RENAME_WHITEOUT: EINVAL"
    Both ["link"] (old: Path, new: Path) { dirs::linkat(AT_FDCWD, old, AT_FDCWD, new, 0) }
        "a further name" "between the pool and elsewhere: EXDEV"
    Both ["linkat"] (odir: c_int, old: Path, ndir: c_int, new: Path, flags: c_int)
        { dirs::linkat(odir, old, ndir, new, flags) }
        "as link" "/proc/self/fd/N of a pool file: EXDEV"
    Both ["symlink"] (text: Path, path: Path) { dirs::symlinkat(text, AT_FDCWD, path) }
        "targets may lead outside" ""
    Both ["symlinkat"] (text: Path, dir: c_int, path: Path) { dirs::symlinkat(text, dir, path) } "as symlink" ""
    Both ["readlink"] (path: Path, buf: *mut u8, len: usize)
        { dirs::readlinkat(AT_FDCWD, path, buf, len) }
        "also /proc/self/fd/N, cwd and exe; realpath rests on it" ""
    Both ["readlinkat"] (dir: c_int, path: Path, buf: *mut u8, len: usize)
        { dirs::readlinkat(dir, path, buf, len) } "as readlink" ""
    Both ["chdir"] (path: Path) { dirs::chdir(path) }
        "kept by the client; the kernel's directory is the empty mount directory" ""
    Both ["fchdir"] (fd: c_int) { dirs::fchdir(fd) } "as chdir" ""
    Both ["getcwd"] (buf: *mut c_char, size: usize)
        { misc::null_on_error(dirs::getcwd(buf, size)) } "the path without symbolic links" ""
    Both ["chroot"] (path: Path)
        { misc::refused_path(path, libc::EOPNOTSUPP, &|path| raw::sys!(libc::SYS_chroot, path)) }
        "" "EOPNOTSUPP"

    Both ["mmap" "mmap64" "__mmap"]
        (addr: usize, len: usize, prot: c_int, flags: c_int, fd: c_int, offset: off_t)
        { mmap::mmap(addr, len, prot, flags, fd, offset) }
        "a copy in memory; shared changes are written back by msync, munmap, close, fsync, exec and exit"
        "writable and shared in a second family of processes: EAGAIN"
    Both ["munmap" "__munmap"] (addr: usize, len: usize) { mmap::munmap(addr, len) } "writes back" ""
    Both ["msync"] (addr: usize, len: usize, flags: c_int) { cancel::test(); mmap::msync(addr, len, flags) }
        "writes back; MS_SYNC syncs" ""
    Both ["mremap"] (addr: usize, old: usize, new: usize, flags: c_int, target: usize)
        { mmap::mremap(addr, old, new, flags, target) } "shrinks" "growing or moving a shared mapping: ENOMEM"

    Both ["execve"] (path: Path, argv: Strings, envp: Strings) { exec::execve(path, argv, envp) }
        "programs and scripts of the pool run; execv, execvp, posix_spawn, system, popen rest on it"
        "set-user-id bits are ignored"
    Both ["execveat"] (dir: c_int, path: Path, argv: Strings, envp: Strings, flags: c_int)
        { exec::execveat(dir, path, argv, envp, flags) } "as execve" "as execve"
    Both ["fexecve"] (fd: c_int, argv: Strings, envp: Strings)
        { exec::execveat(fd, c"".as_ptr(), argv, envp, libc::AT_EMPTY_PATH) } "as execve" "as execve"
    Both ["_exit" "_Exit"] (status: c_int) { keep::exit(status) } "shared mappings are written back; flock locks that others share are handed on" ""
    Export ["vfork" "__vfork"] () { raw::from_libc(libc::fork() as isize) } "done as fork" ""
    Export ["_Fork"] () { sharing::bare_fork() } "as fork" ""
    Export ["clone" "__clone"]
        (function: usize, stack: usize, flags: c_int, a: usize, b: usize, c: usize, d: usize)
        { sharing::clone(function, stack, flags, [a, b, c, d]) }
        "the child shares what is open, with its offsets" ""
    Export ["posix_spawn"] (pid: usize, path: usize, a: usize, b: usize, c: usize, d: usize)
        { sharing::spawn(false, pid, path, [a, b, c, d]) } "as clone; see execve" ""
    Export ["posix_spawnp"] (pid: usize, file: usize, a: usize, b: usize, c: usize, d: usize)
        { sharing::spawn(true, pid, file, [a, b, c, d]) } "as posix_spawn" ""
    Export ["system"] (command: Path) { sharing::system(command) } "as posix_spawn" ""
    Export ["popen" "_IO_popen"] (command: Path, mode: Path) { sharing::popen(command, mode) }
        "as posix_spawn" ""
    Export ["wordexp"] (words: Path, out: *mut c_void, flags: c_int) { sharing::wordexp(words, out, flags) }
        "as posix_spawn" ""
    Export ["unshare"] (flags: c_int) { sharing::unshare(flags) } "as clone; ids are asked for again" ""
    Export ["sendmsg"] (fd: c_int, message: *const libc::msghdr, flags: c_int)
        { sharing::sendmsg(fd, message, flags) }
        "pool descriptors can be passed on; they share their offset" ""
    Export ["sendmmsg"] (fd: c_int, all: *mut libc::mmsghdr, count: c_uint, flags: c_int)
        { sharing::sendmmsg(fd, all, count, flags) } "as sendmsg" ""
    Export ["recvmsg"] (fd: c_int, message: *mut libc::msghdr, flags: c_int)
        { misc::recvmsg(fd, message, flags) } "received pool descriptors are recognised" ""

    Export ["sigaction" "__sigaction"]
        (signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction)
        { signals::sigaction(signal, new, old) }
        "noted: signals wait during calls on the pool when the program has handlers" ""
    Export ["signal" "bsd_signal" "ssignal"] (signal: c_int, handler: usize)
        { signals::signal(OldStyle::Signal, signal, handler) } "as sigaction" ""
    Export ["sysv_signal" "__sysv_signal"] (signal: c_int, handler: usize)
        { signals::signal(OldStyle::SysvSignal, signal, handler) } "as sigaction" ""
    Export ["sigset"] (signal: c_int, handler: usize)
        { signals::signal(OldStyle::Sigset, signal, handler) } "as sigaction" ""
    Both ["sigprocmask"] (how: c_int, new: *const u64, old: *mut u64) { dispatch::sigmask(how, new, old) }
        "as always; SIGSYS is never held back" ""
    Both ["pthread_sigmask"] (how: c_int, new: *const u64, old: *mut u64)
        { misc::error_as_result(dispatch::sigmask(how, new, old)) } "as sigprocmask" ""
    Export ["sigsuspend"] (mask: *const libc::sigset_t)
        { let mask = dispatch::waiting_mask(mask);
          real!(SIGSUSPEND(pointer(&mask)) as fn(*const libc::sigset_t) -> c_int) } "as sigprocmask" ""
    Export ["ppoll"] (fds: usize, count: usize, time: usize, mask: *const libc::sigset_t)
        { let mask = dispatch::waiting_mask(mask);
          real!(PPOLL(fds, count, time, pointer(&mask)) as fn(usize, usize, usize, *const libc::sigset_t) -> c_int) }
        "as sigprocmask" ""
    Export ["pselect"] (count: c_int, a: usize, b: usize, c: usize, time: usize, mask: *const libc::sigset_t)
        { let mask = dispatch::waiting_mask(mask);
          real!(PSELECT(count, a, b, c, time, pointer(&mask))
              as fn(c_int, usize, usize, usize, usize, *const libc::sigset_t) -> c_int) }
        "as sigprocmask" ""
    Export ["epoll_pwait"] (fd: c_int, events: usize, count: c_int, time: c_int, mask: *const libc::sigset_t)
        { let mask = dispatch::waiting_mask(mask);
          real!(EPOLL_PWAIT(fd, events, count, time, pointer(&mask))
              as fn(c_int, usize, c_int, c_int, *const libc::sigset_t) -> c_int) }
        "as sigprocmask" ""
    Export ["pthread_create"] (thread: usize, attributes: usize, function: usize, argument: usize)
        { dispatch::create(thread, attributes, function, argument) }
        "noted: calls that the thread makes outside libc are seen" ""
    Export ["prctl"] (option: c_int, a: usize, b: usize, c: usize, d: usize)
        { dispatch::prctl([option as usize, a, b, c, d]) }
        "noted: a program that uses syscall user dispatch itself has it for itself" ""
    Export ["setuid"] (id: c_uint) { cred::changing(|| real!(SETUID(id) as fn(c_uint) -> c_int)) }
        "noted: ids are asked for again" ""
    Export ["setgid"] (id: c_uint) { cred::changing(|| real!(SETGID(id) as fn(c_uint) -> c_int)) }
        "as setuid" ""
    Export ["seteuid"] (id: c_uint) { cred::changing(|| real!(SETEUID(id) as fn(c_uint) -> c_int)) }
        "as setuid" ""
    Export ["setegid"] (id: c_uint) { cred::changing(|| real!(SETEGID(id) as fn(c_uint) -> c_int)) }
        "as setuid" ""
    Export ["setreuid"] (a: c_uint, b: c_uint)
        { cred::changing(|| real!(SETREUID(a, b) as fn(c_uint, c_uint) -> c_int)) } "as setuid" ""
    Export ["setregid"] (a: c_uint, b: c_uint)
        { cred::changing(|| real!(SETREGID(a, b) as fn(c_uint, c_uint) -> c_int)) } "as setuid" ""
    Export ["setresuid"] (a: c_uint, b: c_uint, c: c_uint)
        { cred::changing(|| real!(SETRESUID(a, b, c) as fn(c_uint, c_uint, c_uint) -> c_int)) } "as setuid" ""
    Export ["setresgid"] (a: c_uint, b: c_uint, c: c_uint)
        { cred::changing(|| real!(SETRESGID(a, b, c) as fn(c_uint, c_uint, c_uint) -> c_int)) } "as setuid" ""
    Export ["setgroups"] (count: usize, groups: usize)
        { cred::changing(|| real!(SETGROUPS(count, groups) as fn(usize, usize) -> c_int)) } "as setuid" ""
    Export ["initgroups"] (user: Path, group: c_uint)
        { cred::changing(|| real!(INITGROUPS(user, group) as fn(Path, c_uint) -> c_int)) } "as setuid" ""
    Export ["setns"] (fd: c_int, kind: c_int)
        { cred::changing(|| real!(SETNS(fd, kind) as fn(c_int, c_int) -> c_int)) } "as setuid" ""

    Both ["bind"] (fd: c_int, address: *const libc::sockaddr, len: c_uint)
        { misc::socket_path(libc::SYS_bind, fd, address, len) } "" "Unix sockets in the pool: EOPNOTSUPP"
    Both ["connect" "__connect"] (fd: c_int, address: *const libc::sockaddr, len: c_uint)
        { misc::socket_path(libc::SYS_connect, fd, address, len) } "" "Unix sockets in the pool: EOPNOTSUPP"
    Both ["inotify_add_watch"] (fd: c_int, path: Path, mask: c_uint)
        { misc::refused_path(path, libc::EOPNOTSUPP,
            &|path| raw::sys!(libc::SYS_inotify_add_watch, fd, path, mask)) }
        "" "EOPNOTSUPP"
    Both ["name_to_handle_at"] (dir: c_int, path: Path, handle: *mut c_void, id: *mut c_int, flags: c_int)
        { misc::name_to_handle_at(dir, path, [handle as usize, id as usize, flags as usize]) }
        "" "EOPNOTSUPP"
    Export ["dlerror"] () { library::error() as isize } "as always, with the paths of libraries of the pool" ""
    Export ["syscall"] (n: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize)
        { numbers::call(n, [a, b, c, d, e, f]) }
        "file calls by number are done as the functions above" ""
}

// dlopen looks at its caller's address (for $ORIGIN and name spaces), so libc's own is jumped to, not
// called, unless the library is in the pool.
#[cfg(not(test))]
#[unsafe(naked)]
#[unsafe(export_name = "dlopen")]
unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "mov rsi, qword ptr [rsp + 24]",
        "call {target}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        target = sym library::dlopen_target,
    )
}

#[cfg(not(test))]
#[unsafe(naked)]
#[unsafe(export_name = "dlmopen")]
unsafe extern "C" fn dlmopen(space: c_long, path: *const c_char, flags: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "mov rdi, rsi",
        "mov rsi, qword ptr [rsp + 24]",
        "call {target}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        target = sym library::dlmopen_target,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The guide's table, made from the list.
    fn table() -> String {
        let mut text = String::from(
            "# Calls that the preload client intercepts\n\n\
             Made from the list in `crates/preload/src/list.rs` by its test; `TIDEPOOL_BLESS=1 cargo test -p \
             tidepool-preload` rewrites it.\n\n\
             How: *both* = exported symbol and patched entry in libc (so that libc's own calls are seen), *patch* = \
             private to glibc, *export* = symbol only. Functions of libc that rest on these calls (stdio, opendir, \
             realpath, mkstemp, ...) need no entry.\n\n\
             | call | how | in the pool | refused |\n|---|---|---|---|\n",
        );
        for door in LIST {
            let names: Vec<_> =
                door.names.iter().map(|name| format!("`{}`", name.to_str().unwrap())).collect();
            let how = format!("{:?}", door.how).to_lowercase();
            text += &format!("| {} | {how} | {} | {} |\n", names.join(" "), door.pool, door.refused);
        }
        text += "| `io_setup` `io_submit` `io_getevents` `io_pgetevents` `io_destroy` `io_queue_init` `io_queue_run` `io_queue_release` | export | libaio: done when submitted, told by the kernel's queue, beside requests on other files | by `syscall`: `io_setup` is ENOSYS |\n";
        text += "| `io_uring_setup` `io_uring_queue_init` `io_uring_queue_init_params` `io_uring_queue_init_mem` | export | | ENOSYS, in liburing and by `syscall`, for whatever files: programs fall back; `TIDEPOOL_PRELOAD_AIO=kernel` allows it for files outside the pool |\n";
        text + "| `dlopen` `dlmopen` | export | the library is copied to memory, with those it needs that are in the pool (`RPATH`, `RUNPATH`, `$ORIGIN`, `LD_LIBRARY_PATH`) | what runs in another name space of the loader does not see the pool |\n"
    }

    #[test]
    fn the_guide_has_the_list() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/preload-calls.md");
        if std::env::var_os("TIDEPOOL_BLESS").is_some() {
            std::fs::create_dir_all(std::path::Path::new(path).parent().unwrap()).unwrap();
            std::fs::write(path, table()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap_or_default(), table());
    }

    #[test]
    fn no_name_is_listed_twice() {
        let mut names: Vec<_> = LIST.iter().flat_map(|door| door.names).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn every_call_says_what_it_does() {
        for door in LIST {
            assert!(!door.pool.is_empty() || !door.refused.is_empty(), "{:?}", door.names);
        }
    }
}
