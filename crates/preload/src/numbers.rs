//! Calls by their number: of `syscall`, and of system call instructions outside libc (`dispatch.rs`).

use crate::at::at;
use crate::attrs::Where;
use crate::raw::{self, err, sys};
use crate::{aio, attrs, cred, dirs, exec, files, keep, locks, misc, mmap, sharing, signals};
use libc::{c_char, c_int};
use tidepool_client::Walk;
use tidepool_types::Errno;

const SYS_FCHMODAT2: i64 = 452;
const SYS_OPENAT2: i64 = 437;

/// One table makes the dispatcher and the question which calls it knows.
macro_rules! calls {
    (($n:ident, $a:ident, $fd:ident, $path:ident) $($($number:path)|+ => $body:expr,)*) => {
        /// Does a call as the function of its name does; the kernel's where it is none of files.
        ///
        /// # Safety
        /// The arguments of the system call.
        pub unsafe fn call($n: i64, $a: [usize; 6]) -> isize {
            let $path = |i: usize| $a[i] as *const c_char;
            let $fd = |i: usize| $a[i] as c_int;
            // SAFETY: each call's own arguments, by the kernel's order.
            unsafe {
                match $n {
                    $($($number)|+ => $body,)*
                    _ if cred::changes($n) => cred::by_number($n, $a),
                    _ => raw::syscall6($n, $a[0], $a[1], $a[2], $a[3], $a[4], $a[5]),
                }
            }
        }

        /// True for calls that are not simply the kernel's.
        pub fn is_known(n: i64) -> bool {
            match n {
                $($($number)|+ => true,)*
                _ => cred::changes(n),
            }
        }
    };
}

calls! {
    (n, a, fd, path)
    libc::SYS_open => files::open_at(libc::AT_FDCWD, path(0), fd(1), a[2] as u32, false),
    libc::SYS_creat => {
        files::open_at(libc::AT_FDCWD, path(0), libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, a[1] as u32, false)
    },
    libc::SYS_openat => files::open_at(fd(0), path(1), fd(2), a[3] as u32, false),
    SYS_OPENAT2 => openat2(fd(0), path(1), a[2] as *const u64, a[3]),
    libc::SYS_close => files::close(fd(0)),
    libc::SYS_close_range => files::close_range(a[0] as u32, a[1] as u32, fd(2)),
    libc::SYS_dup => files::dup(fd(0)),
    libc::SYS_dup2 => files::dup2(fd(0), fd(1)),
    libc::SYS_dup3 => files::dup3(fd(0), fd(1), fd(2)),
    libc::SYS_fcntl => misc::fcntl(fd(0), fd(1), a[2]),
    libc::SYS_flock => locks::flock(fd(0), fd(1)),
    libc::SYS_ioctl => misc::ioctl(fd(0), a[1] as u64, a[2]),

    libc::SYS_read => misc::read(fd(0), a[1] as *mut u8, a[2], false),
    libc::SYS_write => misc::write(fd(0), a[1] as *const u8, a[2], false),
    libc::SYS_pread64 => misc::pread(fd(0), a[1] as *mut u8, a[2], a[3] as i64),
    libc::SYS_pwrite64 => misc::pwrite(fd(0), a[1] as *const u8, a[2], a[3] as i64),
    libc::SYS_readv => misc::readv(fd(0), a[1] as *const _, fd(2), -1, 0),
    libc::SYS_writev => misc::writev(fd(0), a[1] as *const _, fd(2), -1, 0),
    libc::SYS_preadv => at_offset(a[3], &|offset| misc::readv(fd(0), a[1] as *const _, fd(2), offset, 0)),
    libc::SYS_pwritev => at_offset(a[3], &|offset| misc::writev(fd(0), a[1] as *const _, fd(2), offset, 0)),
    libc::SYS_preadv2 => misc::readv(fd(0), a[1] as *const _, fd(2), a[3] as i64, fd(5)),
    libc::SYS_pwritev2 => misc::writev(fd(0), a[1] as *const _, fd(2), a[3] as i64, fd(5)),
    libc::SYS_lseek => files::lseek(fd(0), a[1] as i64, fd(2)),
    libc::SYS_sendfile => misc::sendfile(fd(0), fd(1), a[2] as *mut i64, a[3]),
    libc::SYS_copy_file_range => {
        misc::copy_file_range(fd(0), a[1] as *mut i64, fd(2), a[3] as *mut i64, a[4], a[5] as u32)
    },
    libc::SYS_splice => misc::splice(n, a, [a[0], a[2]]),
    libc::SYS_tee => misc::splice(n, a, [a[0], a[1]]),
    libc::SYS_vmsplice => misc::splice(n, a, [a[0], a[0]]),
    libc::SYS_fsync | libc::SYS_fdatasync => files::fsync(fd(0), n),
    libc::SYS_sync => misc::sync(),
    libc::SYS_syncfs => misc::syncfs(fd(0)),
    libc::SYS_readahead => misc::readahead(fd(0), a[1] as i64, a[2]),
    libc::SYS_sync_file_range => misc::sync_file_range(fd(0), a[1] as i64, a[2] as i64, a[3] as u32),
    libc::SYS_truncate => files::truncate(path(0), a[1] as i64),
    libc::SYS_ftruncate => match files::object(fd(0)) {
        Some(entry) => files::truncate_ours(&entry, a[1] as i64),
        None => files::kernel_unless_hidden(fd(0), || sys!(n, a[0], a[1])),
    },
    libc::SYS_fallocate => files::fallocate(fd(0), fd(1), a[2] as i64, a[3] as i64),

    libc::SYS_stat => attrs::fstatat(libc::AT_FDCWD, path(0), a[1] as *mut libc::stat, 0),
    libc::SYS_lstat => {
        attrs::fstatat(libc::AT_FDCWD, path(0), a[1] as *mut libc::stat, libc::AT_SYMLINK_NOFOLLOW)
    },
    libc::SYS_fstat => attrs::fstat(fd(0), a[1] as *mut libc::stat),
    libc::SYS_newfstatat => attrs::fstatat(fd(0), path(1), a[2] as *mut libc::stat, fd(3)),
    libc::SYS_statx => attrs::statx(fd(0), path(1), fd(2), a[3] as u32, a[4] as *mut libc::statx),
    libc::SYS_access => attrs::faccessat(libc::AT_FDCWD, path(0), fd(1), 0),
    libc::SYS_faccessat => attrs::faccessat(fd(0), path(1), fd(2), 0),
    libc::SYS_faccessat2 => attrs::faccessat(fd(0), path(1), fd(2), fd(3)),
    libc::SYS_chmod => attrs::fchmodat(libc::AT_FDCWD, path(0), a[1] as u32, 0),
    libc::SYS_fchmod => attrs::fchmod(fd(0), a[1] as u32),
    libc::SYS_fchmodat => attrs::fchmodat(fd(0), path(1), a[2] as u32, 0),
    SYS_FCHMODAT2 => attrs::fchmodat(fd(0), path(1), a[2] as u32, fd(3)),
    libc::SYS_chown => attrs::fchownat(libc::AT_FDCWD, path(0), a[1] as u32, a[2] as u32, 0),
    libc::SYS_lchown => {
        attrs::fchownat(libc::AT_FDCWD, path(0), a[1] as u32, a[2] as u32, libc::AT_SYMLINK_NOFOLLOW)
    },
    libc::SYS_fchown => attrs::fchown(fd(0), a[1] as u32, a[2] as u32),
    libc::SYS_fchownat => attrs::fchownat(fd(0), path(1), a[2] as u32, a[3] as u32, fd(4)),
    libc::SYS_utime => attrs::utime(path(0), a[1] as *const _),
    libc::SYS_utimes => attrs::futimesat(libc::AT_FDCWD, path(0), a[1] as *const _, 0),
    libc::SYS_futimesat => attrs::futimesat(fd(0), path(1), a[2] as *const _, 0),
    libc::SYS_utimensat => attrs::utimensat(fd(0), path(1), a[2] as *const _, fd(3)),
    libc::SYS_umask => cred::umask(a[0] as u32),
    libc::SYS_statfs => attrs::statfs(path(0), a[1] as *mut _),
    libc::SYS_fstatfs => attrs::fstatfs(fd(0), a[1] as *mut _),
    libc::SYS_getxattr => attrs::getxattr(Where::Path(path(0), true), path(1), a[2] as *mut u8, a[3]),
    libc::SYS_lgetxattr => attrs::getxattr(Where::Path(path(0), false), path(1), a[2] as *mut u8, a[3]),
    libc::SYS_fgetxattr => attrs::getxattr(Where::Fd(fd(0)), path(1), a[2] as *mut u8, a[3]),
    libc::SYS_setxattr => attrs::setxattr(Where::Path(path(0), true), path(1), a[2] as *const u8, a[3], fd(4)),
    libc::SYS_lsetxattr => attrs::setxattr(Where::Path(path(0), false), path(1), a[2] as *const u8, a[3], fd(4)),
    libc::SYS_fsetxattr => attrs::setxattr(Where::Fd(fd(0)), path(1), a[2] as *const u8, a[3], fd(4)),
    libc::SYS_listxattr => attrs::listxattr(Where::Path(path(0), true), a[1] as *mut u8, a[2]),
    libc::SYS_llistxattr => attrs::listxattr(Where::Path(path(0), false), a[1] as *mut u8, a[2]),
    libc::SYS_flistxattr => attrs::listxattr(Where::Fd(fd(0)), a[1] as *mut u8, a[2]),
    libc::SYS_removexattr => attrs::removexattr(Where::Path(path(0), true), path(1)),
    libc::SYS_lremovexattr => attrs::removexattr(Where::Path(path(0), false), path(1)),
    libc::SYS_fremovexattr => attrs::removexattr(Where::Fd(fd(0)), path(1)),

    libc::SYS_getdents64 => dirs::getdents64(fd(0), a[1] as *mut u8, a[2]),
    libc::SYS_mkdir => dirs::mkdirat(libc::AT_FDCWD, path(0), a[1] as u32),
    libc::SYS_mkdirat => dirs::mkdirat(fd(0), path(1), a[2] as u32),
    libc::SYS_mknod => dirs::mknodat(libc::AT_FDCWD, path(0), a[1] as u32, a[2] as u64),
    libc::SYS_mknodat => dirs::mknodat(fd(0), path(1), a[2] as u32, a[3] as u64),
    libc::SYS_rmdir => dirs::unlinkat(libc::AT_FDCWD, path(0), libc::AT_REMOVEDIR),
    libc::SYS_unlink => dirs::unlinkat(libc::AT_FDCWD, path(0), 0),
    libc::SYS_unlinkat => dirs::unlinkat(fd(0), path(1), fd(2)),
    libc::SYS_rename => dirs::renameat2(libc::AT_FDCWD, path(0), libc::AT_FDCWD, path(1), 0),
    libc::SYS_renameat => dirs::renameat2(fd(0), path(1), fd(2), path(3), 0),
    libc::SYS_renameat2 => dirs::renameat2(fd(0), path(1), fd(2), path(3), a[4] as u32),
    libc::SYS_link => dirs::linkat(libc::AT_FDCWD, path(0), libc::AT_FDCWD, path(1), 0),
    libc::SYS_linkat => dirs::linkat(fd(0), path(1), fd(2), path(3), fd(4)),
    libc::SYS_symlink => dirs::symlinkat(path(0), libc::AT_FDCWD, path(1)),
    libc::SYS_symlinkat => dirs::symlinkat(path(0), fd(1), path(2)),
    libc::SYS_readlink => dirs::readlinkat(libc::AT_FDCWD, path(0), a[1] as *mut u8, a[2]),
    libc::SYS_readlinkat => dirs::readlinkat(fd(0), path(1), a[2] as *mut u8, a[3]),
    libc::SYS_chdir => dirs::chdir(path(0)),
    libc::SYS_fchdir => dirs::fchdir(fd(0)),
    libc::SYS_getcwd => getcwd(a[0] as *mut c_char, a[1]),
    libc::SYS_chroot => misc::refused_path(path(0), libc::EOPNOTSUPP, &|path| sys!(n, path)),

    libc::SYS_mmap => mmap::mmap(a[0], a[1], fd(2), fd(3), fd(4), a[5] as i64),
    libc::SYS_munmap => mmap::munmap(a[0], a[1]),
    libc::SYS_msync => mmap::msync(a[0], a[1], fd(2)),
    libc::SYS_mremap => mmap::mremap(a[0], a[1], a[2], fd(3), a[4]),

    libc::SYS_execve => exec::execve(path(0), a[1] as *const _, a[2] as *const _),
    libc::SYS_execveat => exec::execveat(fd(0), path(1), a[2] as *const _, a[3] as *const _, fd(4)),
    libc::SYS_exit_group => keep::exit(fd(0)),
    libc::SYS_fork | libc::SYS_vfork | libc::SYS_clone | libc::SYS_clone3 => sharing::by_number(n, a),
    libc::SYS_sendmsg | libc::SYS_sendmmsg => sharing::send_by_number(n, a),
    libc::SYS_recvmsg => misc::recvmsg_by_number(a),
    libc::SYS_bind | libc::SYS_connect => misc::socket_path(n, fd(0), a[1] as *const _, a[2] as u32),
    libc::SYS_inotify_add_watch => {
        misc::refused_path(path(1), libc::EOPNOTSUPP, &|path| sys!(n, a[0], path, a[2]))
    },
    libc::SYS_name_to_handle_at => misc::name_to_handle_at(fd(0), path(1), [a[2], a[3], a[4]]),
    libc::SYS_rt_sigaction => signals::by_number(a),
    libc::SYS_io_setup | libc::SYS_io_uring_setup => aio::by_number(n, a),
}

/// `preadv` and `pwritev`, whose offset is not that of the descriptor.
fn at_offset(offset: usize, call: &dyn Fn(i64) -> isize) -> isize {
    let offset = offset as i64;
    if offset < 0 { err(libc::EINVAL) } else { call(offset) }
}

/// The kernel's `getcwd` gives the length with the NUL, and makes no memory.
///
/// # Safety
/// `buf` has room for `size`.
unsafe fn getcwd(buf: *mut c_char, size: usize) -> isize {
    if size == 0 {
        return err(libc::ERANGE);
    }
    if !raw::is_memory(buf as usize, size.min(raw::PATH_MAX)) {
        return err(libc::EFAULT);
    }
    // SAFETY: the caller's promise; a C string when it is done.
    unsafe {
        let result = dirs::getcwd(buf, size);
        if raw::is_err(result) { result } else { raw::bytes(buf).len() as isize + 1 }
    }
}

/// `openat2`: the rules about links (`resolve`) cannot be kept in the pool.
///
/// # Safety
/// `how` is valid for `size`.
unsafe fn openat2(dirfd: c_int, path: *const c_char, how: *const u64, size: usize) -> isize {
    // SAFETY: the caller's arguments.
    let kernel = |dirfd: i32, path: *const c_char| unsafe { sys!(SYS_OPENAT2, dirfd, path, how, size) };
    if size < 24 || !raw::is_memory(how as usize, size) {
        return kernel(dirfd, path);
    }
    // SAFETY: three words at least, checked above.
    let (flags, mode, resolve) = unsafe { (*how, *how.add(1), *how.add(2)) };
    if resolve == 0 {
        return files::open_at(dirfd, path, flags as i32, mode as u32, false);
    }
    at(dirfd, path, true, &kernel, &|_, _| -> Result<Walk<isize>, _> { Err(Errno::ENOSYS.into()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_files_are_known_and_others_are_not() {
        for n in [libc::SYS_rename, libc::SYS_openat, libc::SYS_setuid, libc::SYS_rt_sigaction] {
            assert!(is_known(n), "{n}");
        }
        for n in [libc::SYS_futex, libc::SYS_getpid, libc::SYS_epoll_wait, libc::SYS_nanosleep] {
            assert!(!is_known(n), "{n}");
        }
    }
}
