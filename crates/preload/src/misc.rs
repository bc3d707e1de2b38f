//! Calls that fit nowhere else: fcntl, ioctl, copying inside the kernel, messages with descriptors.

use crate::at::{Target, at};
use crate::fdtable::{self, Entry};
use crate::files::{self, kernel_unless_hidden, object, on_object};
use crate::inside::{Inside, Work, inside};
use crate::paths::{self, Place};
use crate::raw::{self, err, sys};
use crate::{cancel, config, description, limit, locks, mmap, pool, sharing};
use libc::{c_char, c_int};
use std::sync::atomic::{AtomicUsize, Ordering};
use tidepool_client::Client;
use tidepool_types::Errno;

/// # Safety
/// The arguments of `fcntl`.
pub unsafe fn fcntl(fd: c_int, command: c_int, arg: usize) -> isize {
    let kernel = || match command {
        libc::F_SETLKW | libc::F_OFD_SETLKW => cancel::point(&|| raw::fcntl(fd, command, arg)),
        libc::F_GETOWN => owner(fd),
        _ => raw::fcntl(fd, command, arg),
    };
    let Some(entry) = object(fd) else {
        return kernel_unless_hidden(fd, kernel);
    };
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => fdtable::duplicate(fd, kernel),
        libc::F_GETFD => kernel(),
        libc::F_SETFD => guarded(|| description::set_cloexec(fd, &entry, arg)),
        libc::F_SETFL => guarded(|| description::set_status(fd, &entry, arg as i32)),
        libc::F_GETFL => status_flags(&entry, guarded(|| description::status(fd, &entry))),
        libc::F_SETLKW | libc::F_OFD_SETLKW => {
            cancel::test();
            lock(fd, &entry, command, arg)
        }
        libc::F_GETLK | libc::F_SETLK => lock(fd, &entry, command, arg),
        libc::F_OFD_GETLK | libc::F_OFD_SETLK => lock(fd, &entry, command, arg),
        libc::F_GETOWN | libc::F_SETOWN => sharing::kernel_owned(fd, kernel),
        _ => err(libc::EINVAL),
    }
}

fn guarded(work: impl FnOnce() -> isize) -> isize {
    let _inside = Inside::enter(Work::Looks);
    work()
}

fn lock(fd: i32, entry: &Entry, command: i32, arg: usize) -> isize {
    if entry.flags & libc::O_PATH != 0 || entry.directory() {
        return err(libc::EBADF);
    }
    // SAFETY: for these commands the argument is a `struct flock`.
    unsafe { locks::fcntl(fd, entry, command, arg as *mut libc::flock) }
}

/// glibc asks by F_GETOWN_EX, because a process group's negative number would look like an error.
fn owner(fd: i32) -> isize {
    const F_GETOWN_EX: i32 = 16;
    const F_OWNER_PGRP: i32 = 2;
    let mut told = [0i32; 2];
    let result = raw::fcntl(fd, F_GETOWN_EX, told.as_mut_ptr() as usize);
    match (result, told) {
        (0, [F_OWNER_PGRP, id]) => -(id as isize),
        (0, [_, id]) => id as isize,
        _ => result,
    }
}

fn status_flags(entry: &Entry, kernel: isize) -> isize {
    if kernel < 0 {
        return kernel;
    }
    let own = libc::O_ACCMODE | libc::O_PATH | libc::O_DIRECTORY | libc::O_SYNC | libc::O_DSYNC;
    (kernel & !(libc::O_ACCMODE as isize)) | (entry.flags & own) as isize
}

/// `FIONREAD` and friends make no sense on a pool file; cloning is not offered.
pub fn ioctl(fd: c_int, request: u64, arg: usize) -> isize {
    const FICLONE: u64 = 0x4004_9409;
    const FICLONERANGE: u64 = 0x4020_940d;
    let Some(entry) = object(fd) else {
        // SAFETY: the caller's arguments.
        return kernel_unless_hidden(fd, || unsafe { sys!(libc::SYS_ioctl, fd, request, arg) });
    };
    let close_on_exec = |flags: i32| guarded(|| description::set_cloexec(fd, &entry, flags as usize));
    match request {
        libc::FIOCLEX => close_on_exec(libc::FD_CLOEXEC),
        libc::FIONCLEX => close_on_exec(0),
        FICLONE | FICLONERANGE => err(libc::EOPNOTSUPP),
        _ => err(libc::ENOTTY),
    }
}

/// Bytes moved per step of an emulated copy.
const COPY_STEP: usize = 1 << 20;

/// # Safety
/// `offset` is null or valid.
pub unsafe fn sendfile(out: c_int, from: c_int, offset: *mut i64, count: usize) -> isize {
    if object(out).is_none() && object(from).is_none() {
        // SAFETY: the caller's arguments.
        return kernel_unless_hidden(out, || unsafe { sys!(libc::SYS_sendfile, out, from, offset, count) });
    }
    if !offset.is_null() && !raw::is_memory(offset as usize, 8) {
        return err(libc::EFAULT);
    }
    let mut buf = vec![0u8; count.min(COPY_STEP)];
    // SAFETY: the buffer is valid; the offset is the caller's.
    unsafe {
        let got = if offset.is_null() {
            read(from, buf.as_mut_ptr(), buf.len(), false)
        } else {
            pread(from, buf.as_mut_ptr(), buf.len(), *offset)
        };
        if got <= 0 {
            return got;
        }
        let put = write(out, buf.as_ptr(), got as usize, false);
        if !offset.is_null() {
            *offset += put.max(0) as i64;
        } else if put < got {
            lseek_back(from, got - put.max(0));
        }
        put
    }
}

fn lseek_back(fd: i32, by: isize) {
    files::lseek(fd, -(by as i64), libc::SEEK_CUR);
}

/// # Safety
/// The offsets are null or valid.
pub unsafe fn copy_file_range(
    from: c_int,
    at: *mut i64,
    to: c_int,
    offset: *mut i64,
    count: usize,
    flags: u32,
) -> isize {
    let (source, target) = match (object(from), object(to)) {
        (Some(source), Some(target)) => (source, target),
        (None, None) => {
            // SAFETY: the caller's arguments.
            let call = || unsafe { sys!(libc::SYS_copy_file_range, from, at, to, offset, count, flags) };
            return kernel_unless_hidden(from, || kernel_unless_hidden(to, call));
        }
        // What the kernel says across file systems: every caller copies by hand then.
        _ => return err(libc::EXDEV),
    };
    if flags != 0 {
        return err(libc::EINVAL);
    }
    if [at, offset].iter().any(|own| !own.is_null() && !raw::is_memory(*own as usize, 8)) {
        return err(libc::EFAULT);
    }
    if !source.readable() || !target.writable() || description::appends(to, &target) {
        return err(libc::EBADF);
    }
    let place = |own: *mut i64, fd| match own.is_null() {
        true => files::lseek(fd, 0, libc::SEEK_CUR) as i64,
        // SAFETY: the caller's promise.
        false => unsafe { *own },
    };
    let (start, end) = (place(at, from), place(offset, to));
    let (Ok(start), Ok(end)) = (u64::try_from(start), u64::try_from(end)) else { return err(libc::EINVAL) };
    let copied = pool::run(|client| {
        let _ = mmap::flush_ino(client, source.ino);
        let count = limit::room(end, count)?;
        let copied = client.copy_range(source.ino, start, target.ino, end, count as u64);
        let copied = copied.map_err(|error| pool::report(&error))?;
        files::written(client, &target, end, copied)?;
        Ok(copied as isize)
    });
    if copied > 0 {
        for (own, fd) in [(at, from), (offset, to)] {
            match own.is_null() {
                true => _ = files::lseek(fd, copied as i64, libc::SEEK_CUR),
                // SAFETY: the caller's promise.
                false => unsafe { *own += copied as i64 },
            }
        }
    }
    copied
}

/// splice and tee move pages, which pool files have none of.
pub fn splice(number: i64, args: [usize; 6], fds: [usize; 2]) -> isize {
    if fds.iter().any(|fd| object(*fd as i32).is_some()) {
        return err(libc::EINVAL);
    }
    // SAFETY: the caller's arguments.
    unsafe { raw::syscall6(number, args[0], args[1], args[2], args[3], args[4], args[5]) }
}

/// # Safety
/// The arguments of `read`.
pub unsafe fn read(fd: c_int, buf: *mut u8, count: usize, cancellable: bool) -> isize {
    // SAFETY: the caller's promise.
    let work = |client: &Client, entry: &Entry| unsafe { files::read_next(client, fd, entry, buf, count) };
    on_object(fd, Work::Looks, work).unwrap_or_else(|| {
        // SAFETY: the caller's arguments.
        let kernel = || unsafe { sys!(libc::SYS_read, fd, buf, count) };
        kernel_unless_hidden(fd, || if cancellable { cancel::point(&kernel) } else { kernel() })
    })
}

/// # Safety
/// The arguments of `write`.
pub unsafe fn write(fd: c_int, buf: *const u8, count: usize, cancellable: bool) -> isize {
    // SAFETY: the caller's promise.
    let work = |client: &Client, entry: &Entry| unsafe { files::write_next(client, fd, entry, buf, count) };
    on_object(fd, Work::Looks, work).unwrap_or_else(|| {
        // SAFETY: the caller's arguments.
        let kernel = || unsafe { sys!(libc::SYS_write, fd, buf, count) };
        kernel_unless_hidden(fd, || if cancellable { cancel::point(&kernel) } else { kernel() })
    })
}

/// # Safety
/// The arguments of `pread`.
pub unsafe fn pread(fd: c_int, buf: *mut u8, count: usize, offset: i64) -> isize {
    let work = |client: &Client, entry: &Entry| match u64::try_from(offset) {
        // SAFETY: the caller's promise.
        Ok(offset) => unsafe { files::read_at(client, entry, buf, count, offset) },
        Err(_) => Err(Errno::EINVAL),
    };
    on_object(fd, Work::Looks, work).unwrap_or_else(|| {
        // SAFETY: the caller's arguments.
        let kernel = || unsafe { sys!(libc::SYS_pread64, fd, buf, count, offset) };
        kernel_unless_hidden(fd, || cancel::point(&kernel))
    })
}

/// # Safety
/// The arguments of `pwrite`.
pub unsafe fn pwrite(fd: c_int, buf: *const u8, count: usize, offset: i64) -> isize {
    // SAFETY: the caller's promise.
    let work =
        |client: &Client, entry: &Entry| unsafe { files::put_at(client, fd, entry, buf, count, offset) };
    on_object(fd, Work::Looks, work).unwrap_or_else(|| {
        // SAFETY: the caller's arguments.
        let kernel = || unsafe { sys!(libc::SYS_pwrite64, fd, buf, count, offset) };
        kernel_unless_hidden(fd, || cancel::point(&kernel))
    })
}

/// `readv`, `preadv` and `preadv2`; offset -1 is the descriptor's own.
///
/// # Safety
/// The arguments of `preadv2`.
pub unsafe fn readv(fd: c_int, iov: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize {
    let mut at = offset;
    let work = |client: &Client, entry: &Entry| {
        may_be_flagged(flags)?;
        // SAFETY: the caller's promise.
        unsafe {
            files::each_buffer(iov, count, &mut |base, len| {
                if offset == -1 {
                    return files::read_next(client, fd, entry, base, len);
                }
                let n = files::read_at(client, entry, base, len, at as u64)?;
                at += n as i64;
                Ok(n)
            })
        }
    };
    on_object(fd, Work::Looks, work).unwrap_or_else(|| {
        kernel_unless_hidden(fd, || {
            vectored(libc::SYS_readv, libc::SYS_preadv2, fd, iov, count, offset, flags)
        })
    })
}

/// `writev`, `pwritev` and `pwritev2`.
///
/// # Safety
/// The arguments of `pwritev2`.
pub unsafe fn writev(fd: c_int, iov: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize {
    let mut at = offset;
    let work = |client: &Client, entry: &Entry| {
        may_be_flagged(flags)?;
        // SAFETY: the caller's promise.
        unsafe {
            if offset == -1 {
                return files::write_all_next(client, fd, entry, iov, count);
            }
            files::each_buffer(iov, count, &mut |base, len| {
                let n = files::put_at(client, fd, entry, base, len, at)?;
                at += n as i64;
                Ok(n)
            })
        }
    };
    on_object(fd, Work::Changes, work).unwrap_or_else(|| {
        kernel_unless_hidden(fd, || {
            vectored(libc::SYS_writev, libc::SYS_pwritev2, fd, iov, count, offset, flags)
        })
    })
}

/// Flags of `preadv2` and `pwritev2` that change nothing here.
fn may_be_flagged(flags: c_int) -> Result<(), Errno> {
    let harmless = libc::RWF_HIPRI | libc::RWF_SYNC | libc::RWF_DSYNC;
    if flags & !harmless == 0 { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
}

fn vectored(
    plain: i64,
    at: i64,
    fd: i32,
    iov: *const libc::iovec,
    count: i32,
    offset: i64,
    flags: i32,
) -> isize {
    // SAFETY: the caller's arguments. The offset goes in one register on x86_64; the next is unused.
    cancel::point(&|| unsafe {
        if offset == -1 && flags == 0 {
            sys!(plain, fd, iov, count)
        } else {
            sys!(at, fd, iov, count, offset, 0, flags)
        }
    })
}

/// Reading ahead is the daemons' business: nothing is done, by the kernel's rules.
pub fn readahead(fd: c_int, offset: i64, count: usize) -> isize {
    match object(fd) {
        Some(entry) if !entry.readable() => err(libc::EBADF),
        Some(entry) if entry.directory() => err(libc::EINVAL),
        Some(_) => 0,
        // SAFETY: no pointers.
        None => kernel_unless_hidden(fd, || unsafe { sys!(libc::SYS_readahead, fd, offset, count) }),
    }
}

pub fn sync() -> isize {
    // SAFETY: no arguments.
    unsafe { sys!(libc::SYS_sync) };
    mmap::flush_all();
    if pool::connected() && !inside() {
        pool::run(|client| client.sync_all().map(|()| 0).map_err(|error| pool::report(&error)));
    }
    0
}

pub fn syncfs(fd: c_int) -> isize {
    if object(fd).is_none() {
        // SAFETY: no pointers.
        return kernel_unless_hidden(fd, || unsafe { sys!(libc::SYS_syncfs, fd) });
    }
    mmap::flush_all();
    pool::run(|client| client.sync_all().map(|()| 0).map_err(|error| pool::report(&error)))
}

pub fn sync_file_range(fd: c_int, offset: i64, len: i64, flags: u32) -> isize {
    if object(fd).is_some() {
        return files::fsync(fd, libc::SYS_fsync);
    }
    // SAFETY: no pointers.
    kernel_unless_hidden(fd, || unsafe { sys!(libc::SYS_sync_file_range, fd, offset, len, flags) })
}

/// Calls with a path that the pool does not offer: `refusal` for pool paths.
pub fn refused_path(path: *const c_char, refusal: i32, kernel: &dyn Fn(*const c_char) -> isize) -> isize {
    at(libc::AT_FDCWD, path, true, &|_, path| kernel(path), &|_: &Client, _: Target| {
        Err(Errno(refusal).into())
    })
}

/// Makes or joins a socket by a path: the pool has no socket files.
///
/// # Safety
/// The arguments of `bind` or `connect`.
pub unsafe fn socket_path(number: i64, fd: c_int, address: *const libc::sockaddr, len: u32) -> isize {
    // SAFETY: the caller's arguments.
    let kernel = || unsafe { sys!(number, fd, address, len) };
    let blocking = || if number == libc::SYS_connect { cancel::point(&kernel) } else { kernel() };
    if inside() || config::mount().is_none() || address.is_null() || len as usize <= SUN_PATH {
        return blocking();
    }
    // SAFETY: at least the family is there, and `len` bytes in all.
    let (family, text) = unsafe {
        (
            (*address).sa_family,
            std::slice::from_raw_parts(address.cast::<u8>().add(SUN_PATH), len as usize - SUN_PATH),
        )
    };
    let text = &text[..text.iter().position(|&b| b == 0).unwrap_or(text.len())];
    if i32::from(family) == libc::AF_UNIX
        && matches!(paths::classify(libc::AT_FDCWD, text), Place::Pool { .. })
    {
        return err(libc::EOPNOTSUPP);
    }
    blocking()
}

/// Offset of a Unix socket address's path.
const SUN_PATH: usize = 2;

/// libc's own `recvmsg` and `recvmmsg`, which we do not patch.
pub static REAL_RECVMSG: AtomicUsize = AtomicUsize::new(0);

/// # Safety
/// The arguments of `recvmsg`.
pub unsafe fn recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> isize {
    type Real = unsafe extern "C-unwind" fn(c_int, *mut libc::msghdr, c_int) -> isize;
    let real = REAL_RECVMSG.load(Ordering::Relaxed);
    // SAFETY: the address of libc's function of this type.
    let result = unsafe {
        match std::mem::transmute::<usize, Option<Real>>(real) {
            Some(real) => real(fd, message, flags),
            None => return sys!(libc::SYS_recvmsg, fd, message, flags),
        }
    };
    // SAFETY: filled in by the kernel.
    if result >= 0 && unsafe { (*message).msg_controllen } > 0 {
        // SAFETY: as above.
        unsafe { received(message) };
    }
    raw::from_libc(result)
}

/// # Safety
/// The arguments of the system call.
pub unsafe fn recvmsg_by_number(a: [usize; 6]) -> isize {
    let message = a[1] as *const libc::msghdr;
    // SAFETY: the caller's arguments; the kernel has filled the message in.
    unsafe {
        let result = sys!(libc::SYS_recvmsg, a[0], message, a[2]);
        if result >= 0 && (*message).msg_controllen > 0 {
            received(message);
        }
        result
    }
}

/// # Safety
/// A message just received.
unsafe fn received(message: *const libc::msghdr) {
    // SAFETY: walks the control messages that the kernel wrote.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let fds = libc::CMSG_DATA(header).cast::<i32>();
                let bytes = (*header).cmsg_len - (fds as usize - header as usize);
                for i in 0..bytes / size_of::<i32>() {
                    fdtable::unknown(fds.add(i).read_unaligned());
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// `name_to_handle_at`: a handle would outlive what the client knows.
pub fn name_to_handle_at(dirfd: c_int, path: *const c_char, rest: [usize; 3]) -> isize {
    let [handle, mount_id, flags] = rest;
    // SAFETY: the caller's arguments.
    let kernel = |dirfd: i32, path: *const c_char| unsafe {
        sys!(libc::SYS_name_to_handle_at, dirfd, path, handle, mount_id, flags)
    };
    at(dirfd, path, true, &kernel, &|_, _| Err(Errno::EOPNOTSUPP.into()))
}

/// glibc's null-pointer convention for calls that give a pointer.
pub fn null_on_error(result: isize) -> isize {
    if raw::to_libc(result) == -1 && raw::is_err(result) { 0 } else { result }
}

/// The convention of the posix_ calls: the error is the result.
pub fn error_as_result(result: isize) -> isize {
    if raw::is_err(result) { -result } else { 0 }
}
