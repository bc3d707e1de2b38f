//! Opening, closing, duplicating, reading, writing, seeking.

use crate::at::{self, Step, Target, at, at_as};
use crate::fdtable::{self, Entry};
use crate::inside::{self, Inside, Work, inside};
use crate::placeholder::{self, Record};
use crate::raw::{self, err, sys};
use crate::{cancel, config, cred, description, dirs, limit, locks, mmap, pool};
use libc::{c_char, c_int, iovec};
use tidepool_client::{Client, FsError, Walk};
use tidepool_types::{Attr, Errno, FileKind, Ino, SetAttr};

/// Flags of open that stay with the description and that the kernel does not keep for a memfd.
const KEPT: i32 = libc::O_ACCMODE | libc::O_PATH | libc::O_DIRECTORY | libc::O_SYNC | libc::O_DSYNC;
/// Most bytes of one read or write, as in the kernel.
pub const COUNT_MAX: usize = 0x7fff_f000;

/// `openat` and all its kin. `cancellable`: a cancellation point of pthreads.
pub fn open_at(dirfd: c_int, path: *const c_char, flags: c_int, mode: u32, cancellable: bool) -> isize {
    let kernel = |dirfd: i32, path: *const c_char| {
        // SAFETY: the caller's arguments.
        let open = || unsafe { sys!(libc::SYS_openat, dirfd, path, flags, mode) };
        let fd = if cancellable { cancel::point(&open) } else { open() };
        kernel_opened(fd, flags, mode)
    };
    // A handle that a killed process leaves ends with its session.
    let kind = if flags & (libc::O_CREAT | libc::O_TRUNC) == 0 { Work::Looks } else { Work::Changes };
    at_as(kind, dirfd, path, flags & libc::O_NOFOLLOW == 0, &kernel, &|client, target| {
        open_in_pool(client, target, flags, mode)
    })
}

/// Notes what the kernel opened; the mount directory itself, reached by a link, becomes the pool's root.
fn kernel_opened(fd: isize, flags: i32, mode: u32) -> isize {
    if fd < 0 {
        return fd;
    }
    if flags & libc::O_DIRECTORY != 0 && !inside() && crate::attrs::is_mount_directory(fd as i32) {
        raw::close(fd as i32);
        return open_root(flags, mode);
    }
    fdtable::foreign(fd as i32);
    fd
}

#[cold]
fn open_root(flags: i32, mode: u32) -> isize {
    pool::run(|client| {
        let target = Target::Path { dirfd: libc::AT_FDCWD, base: tidepool_types::Ino::ROOT, path: b"." };
        match open_in_pool(client, target, flags, mode) {
            Ok(Walk::Found(fd)) => Ok(fd),
            Ok(Walk::Escape(_)) => Err(Errno::ELOOP),
            Err(error) => Err(error.errno()),
        }
    })
}

fn open_in_pool(client: &Client, target: Target, flags: i32, mode: u32) -> Step {
    if flags & libc::O_TMPFILE == libc::O_TMPFILE {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let (attr, path) = match target {
        Target::Path { dirfd, base, path } => {
            match client.open(base, path, flags, mode, &cred::effective())? {
                Walk::Escape(path) => return Ok(Walk::Escape(path)),
                Walk::Found(attr) => {
                    let path = at::full_path(client, dirfd, base, path);
                    client.name_recorded(attr.ino, &path);
                    (attr, path)
                }
            }
        }
        Target::Object { fd, entry } => (reopen(client, entry, flags)?, description::path(fd)),
    };
    let made = descriptor_for(client, &attr, &path, flags);
    if made.is_err() && !attr.is_dir() && flags & libc::O_PATH == 0 {
        client.release(attr.ino);
    }
    made.map(Walk::Found).map_err(FsError::from)
}

/// Opens once more what a descriptor of ours has open.
fn reopen(client: &Client, entry: Entry, flags: i32) -> Result<Attr, FsError> {
    let attr = client.get_attr(entry.ino)?;
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    if attr.is_dir() && writes {
        return Err(Errno::EISDIR.into());
    }
    if !attr.is_dir() && flags & libc::O_DIRECTORY != 0 {
        return Err(Errno::ENOTDIR.into());
    }
    let attr = if attr.is_dir() || flags & libc::O_PATH != 0 { attr } else { client.reopen(entry.ino)? };
    if flags & libc::O_TRUNC != 0 && writes {
        return client.set_attr(
            entry.ino,
            &SetAttr { size: Some(0), ..SetAttr::default() },
            &cred::effective(),
        );
    }
    Ok(attr)
}

/// Makes the descriptor that stands for an object just opened.
fn descriptor_for(client: &Client, attr: &Attr, path: &[u8], flags: i32) -> Result<isize, Errno> {
    let served = [FileKind::Regular, FileKind::Directory].contains(&attr.kind());
    if !served && flags & libc::O_PATH == 0 {
        // Pipes, sockets and devices have no kernel behind them here.
        return Err(Errno::ENXIO);
    }
    let directory = if attr.is_dir() { libc::O_DIRECTORY } else { 0 };
    let record = Record {
        instance: client.instance(),
        ino: attr.ino,
        flags: (flags & KEPT & !libc::O_DIRECTORY) | directory,
        description: pool::new_description(),
    };
    let (status, cloexec) = (flags & description::STATUS, flags & libc::O_CLOEXEC != 0);
    let lazy =
        if pool::in_shared_child() { None } else { fdtable::open_lazily(&record, path, status, cloexec) };
    let fd = lazy.unwrap_or_else(|| open_placed(&record, path, status, cloexec));
    if fd < 0 {
        return Err(Errno(-fd as i32));
    }
    if flags & libc::O_TRUNC != 0 {
        mmap::refresh(client, attr.ino, 0, 0);
    }
    Ok(fd)
}

/// A descriptor with a placeholder from the start: for a child that shares our memory, and for numbers
/// beyond the table.
#[cold]
fn open_placed(record: &Record, path: &[u8], status: i32, cloexec: bool) -> isize {
    let fd = placeholder::create(record, path, cloexec);
    if fd < 0 {
        return fd;
    }
    if status != 0 {
        raw::fcntl(fd as i32, libc::F_SETFL, status as usize);
    }
    if !pool::in_shared_child() {
        fdtable::adopt(fd as i32, record);
    }
    fd
}

pub fn close(fd: c_int) -> isize {
    if inside() {
        fdtable::unhide(fd);
        return raw::close(fd);
    }
    if fdtable::has_slot(fd) && !locks::any_posix() && !locks::any_by_description() && !mmap::any() {
        return close_simply(fd);
    }
    if fdtable::hidden(fd) {
        return err(libc::EBADF);
    }
    let last = leave(fd);
    let result = raw::close(fd);
    finish(last);
    result
}

/// Closes a descriptor of ours when nothing but the object itself hangs on it, in one guard.
fn close_simply(fd: i32) -> isize {
    let _inside = Inside::enter(Work::Looks);
    let last = fdtable::forget(fd);
    let mut result = raw::close(fd);
    if let Some(entry) = last {
        dirs::forget(&entry);
        if entry.held() && pool::connected() {
            let settled = pool::run_inside(|client| {
                let settled = pool::settle(client, entry.ino);
                client.release(entry.ino);
                settled.map(|()| 0)
            });
            if raw::is_err(settled) {
                result = settled;
            }
        }
    }
    result
}

/// Before `fd` is closed or replaced: forgets it. The entry when the description goes with it.
fn leave(fd: i32) -> Option<Entry> {
    if locks::any_posix() || mmap::any() {
        closing(fd);
    }
    fdtable::forget(fd)
}

#[cold]
fn closing(fd: i32) {
    if let Some(entry) = fdtable::ours(fd) {
        locks::closing(&entry);
        mmap::flush(entry.ino);
    }
}

/// After a description's last descriptor here is gone.
fn finish(last: Option<Entry>) {
    if let Some(entry) = last {
        dirs::forget(&entry);
        locks::closed(&entry);
        if entry.held() {
            pool::release(entry.ino);
        }
    }
}

pub fn dup(fd: c_int) -> isize {
    if fdtable::hidden(fd) {
        return err(libc::EBADF);
    }
    // SAFETY: no pointers.
    fdtable::duplicate(fd, || unsafe { sys!(libc::SYS_dup, fd) })
}

pub fn dup2(old: c_int, new: c_int) -> isize {
    if old == new {
        return if fdtable::hidden(old) { err(libc::EBADF) } else { raw_dup2(old, new) };
    }
    replace(old, new, raw_dup2)
}

fn raw_dup2(old: i32, new: i32) -> isize {
    // SAFETY: no pointers.
    unsafe { sys!(libc::SYS_dup2, old, new) }
}

pub fn dup3(old: c_int, new: c_int, flags: c_int) -> isize {
    // SAFETY: no pointers.
    let call = |old, new| unsafe { sys!(libc::SYS_dup3, old, new, flags) };
    if old == new { call(old, new) } else { replace(old, new, call) }
}

fn replace(old: i32, new: i32, call: impl Fn(i32, i32) -> isize) -> isize {
    if inside() {
        return call(old, new);
    }
    if fdtable::hidden(old) || fdtable::hidden(new) {
        return err(libc::EBADF);
    }
    if new >= 0 && raw::fcntl(old, libc::F_GETFD, 0) < 0 {
        return call(old, new);
    }
    let last = leave(new);
    let result = fdtable::duplicate(old, || call(old, new));
    finish(last);
    result
}

pub fn close_range(first: u32, last: u32, flags: c_int) -> isize {
    if first > last || inside() || config::mount().is_none() {
        // SAFETY: no pointers.
        return unsafe { sys!(libc::SYS_close_range, first, last, flags) };
    }
    let mut gone = Vec::new();
    if flags & libc::CLOSE_RANGE_CLOEXEC as i32 == 0 {
        gone.extend(fdtable::known_between(first, last).filter(|fd| !fdtable::hidden(*fd)).filter_map(leave));
    }
    let mut from = first;
    let mut result = 0;
    for hidden in fdtable::hidden_between(first, last) {
        if hidden > from {
            result = raw_close_range(from, hidden - 1, flags).min(result);
        }
        from = hidden + 1;
    }
    if from <= last {
        result = raw_close_range(from, last, flags).min(result);
    }
    gone.into_iter().for_each(|entry| finish(Some(entry)));
    result
}

fn raw_close_range(first: u32, last: u32, flags: i32) -> isize {
    // SAFETY: no pointers.
    unsafe { sys!(libc::SYS_close_range, first, last, flags) }
}

pub fn close_from(first: c_int) -> isize {
    close_range(first.max(0) as u32, u32::MAX, 0)
}

/// The object behind `fd`, unless the call is the kernel's.
#[inline(always)]
pub fn object(fd: i32) -> Option<Entry> {
    if fdtable::surely_foreign(fd) { None } else { fdtable::ours(fd) }
}

/// A descriptor call that the kernel does, unless the descriptor is the client's.
pub fn kernel_unless_hidden(fd: i32, call: impl FnOnce() -> isize) -> isize {
    if fdtable::hidden(fd) { err(libc::EBADF) } else { call() }
}

/// Does `work` on the object behind `fd`, in one guard and with one question to the kernel. `None` when
/// the call is the kernel's.
#[inline(always)]
pub fn on_object(fd: i32, kind: Work, work: impl FnOnce(&Client, &Entry) -> pool::Outcome) -> Option<isize> {
    if fdtable::surely_foreign(fd) {
        return None;
    }
    if fdtable::has_slot(fd)
        && let Some(inside) = Inside::enter(kind)
    {
        if !pool::in_shared_child()
            && let Some(entry) = fdtable::remembered(fd)
        {
            return Some(pool::run_inside(|client| work(client, &entry)));
        }
        drop(inside);
    }
    let entry = fdtable::ours(fd)?;
    Some(pool::run_as(kind, |client| work(client, &entry)))
}

/// A readable regular file, or why not.
fn may_read(entry: &Entry) -> Result<(), Errno> {
    match () {
        () if !entry.readable() => Err(Errno::EBADF),
        () if entry.directory() => Err(Errno::EISDIR),
        () => Ok(()),
    }
}

fn may_write(entry: &Entry) -> Result<(), Errno> {
    if entry.writable() { Ok(()) } else { Err(Errno::EBADF) }
}

/// Reads at the description's offset.
///
/// # Safety
/// `buf` is writable for `count`, by the contract of `read`.
pub unsafe fn read_next(
    client: &Client,
    fd: i32,
    entry: &Entry,
    buf: *mut u8,
    count: usize,
) -> pool::Outcome {
    may_read(entry)?;
    let count = count.min(COUNT_MAX);
    raw::check(buf, count)?;
    if count == 0 {
        return Ok(0);
    }
    // Moving the offset first, in one atomic step, shares it rightly with threads and processes.
    let end = description::seek(fd, entry, count as i64, libc::SEEK_CUR);
    if end < 0 {
        return if end == err(libc::EBADF) { Err(Errno::EBADF) } else { Ok(0) };
    }
    // SAFETY: the caller's promise.
    let got = unsafe { read_at(client, entry, buf, count, end as u64 - count as u64) };
    let short = count as i64 - got.unwrap_or(0) as i64;
    if short > 0 {
        description::seek(fd, entry, -short, libc::SEEK_CUR);
    }
    got
}

/// # Safety
/// As for `read_next`.
pub unsafe fn read_at(
    client: &Client,
    entry: &Entry,
    buf: *mut u8,
    count: usize,
    offset: u64,
) -> pool::Outcome {
    may_read(entry)?;
    let count = count.min(COUNT_MAX);
    raw::check(buf, count)?;
    if count == 0 {
        return Ok(0);
    }
    // What is not written back is older than what was asked for, no more.
    let _ = mmap::flush_ino(client, entry.ino);
    // SAFETY: the caller's promise.
    let buf = unsafe { std::slice::from_raw_parts_mut(buf, count) };
    read_fully(client, entry, buf, offset)
}

fn read_fully(client: &Client, entry: &Entry, buf: &mut [u8], offset: u64) -> pool::Outcome {
    // Fewer bytes than wanted: the file ends there.
    let read = client.read(entry.ino, offset, buf).map_err(|error| pool::report(&error))?;
    Ok(read as isize)
}

/// Writes at the description's offset, or at the end where it appends.
///
/// # Safety
/// `buf` is readable for `count`, by the contract of `write`.
pub unsafe fn write_next(
    client: &Client,
    fd: i32,
    entry: &Entry,
    buf: *const u8,
    count: usize,
) -> pool::Outcome {
    may_write(entry)?;
    let count = count.min(COUNT_MAX);
    raw::check(buf, count)?;
    if count == 0 {
        return Ok(0);
    }
    if description::appends(fd, entry) {
        // SAFETY: the caller's promise.
        let (put, end) = unsafe { append(client, entry, buf, count)? };
        description::seek(fd, entry, end as i64, libc::SEEK_SET);
        return Ok(put);
    }
    let end = description::seek(fd, entry, count as i64, libc::SEEK_CUR);
    if end < 0 {
        return Err(if end == err(libc::EBADF) { Errno::EBADF } else { Errno::EFBIG });
    }
    // SAFETY: the caller's promise.
    let put = unsafe { write_at(client, entry, buf, count, end as u64 - count as u64) };
    let short = count as i64 - put.unwrap_or(0) as i64;
    if short > 0 {
        description::seek(fd, entry, -short, libc::SEEK_CUR);
    }
    put
}

/// The bytes stored, and where they end.
///
/// # Safety
/// As for `write_next`.
unsafe fn append(
    client: &Client,
    entry: &Entry,
    buf: *const u8,
    count: usize,
) -> Result<(isize, u64), Errno> {
    inside::hold_signals();
    let _ = mmap::flush_ino(client, entry.ino);
    let count = match limit::is_set() {
        true => limit::room(client.get_attr(entry.ino).map_err(|error| pool::report(&error))?.size, count)?,
        false => count,
    };
    // SAFETY: the caller's promise.
    let buf = unsafe { std::slice::from_raw_parts(buf, count) };
    let (start, stored) = client.append(entry.ino, buf).map_err(|error| pool::report(&error))?;
    written(client, entry, start, stored)?;
    Ok((stored as isize, start + stored as u64))
}

/// What follows every write: synchronous files are synced, mappings see the new bytes.
pub fn written(client: &Client, entry: &Entry, offset: u64, len: usize) -> Result<(), Errno> {
    mmap::refresh(client, entry.ino, offset, len);
    if entry.flags & libc::O_DSYNC != 0 {
        client.fsync(entry.ino).map_err(|error| pool::report(&error))?;
    }
    Ok(())
}

/// # Safety
/// As for `write_next`.
unsafe fn write_at(
    client: &Client,
    entry: &Entry,
    buf: *const u8,
    count: usize,
    offset: u64,
) -> pool::Outcome {
    may_write(entry)?;
    let count = limit::room(offset, count.min(COUNT_MAX))?;
    // No signal can end a single request half done.
    if !client.is_one_step(entry.ino, offset.saturating_add(count as u64)) {
        inside::hold_signals();
    }
    let _ = mmap::flush_ino(client, entry.ino);
    // SAFETY: the caller's promise.
    let buf = unsafe { std::slice::from_raw_parts(buf, count) };
    let mut done = 0;
    while done < buf.len() {
        match client.write(entry.ino, offset + done as u64, &buf[done..]) {
            Ok(n) => done += n,
            Err(_) if done > 0 => break,
            Err(error) => return Err(pool::report(&error)),
        }
    }
    written(client, entry, offset, done)?;
    Ok(done as isize)
}

/// `pwrite`.
///
/// # Safety
/// As for `write_next`.
pub unsafe fn put_at(
    client: &Client,
    fd: i32,
    entry: &Entry,
    buf: *const u8,
    count: usize,
    offset: i64,
) -> pool::Outcome {
    if offset < 0 {
        return Err(Errno::EINVAL);
    }
    may_write(entry)?;
    let count = count.min(COUNT_MAX);
    raw::check(buf, count)?;
    if count == 0 {
        return Ok(0);
    }
    // SAFETY: the caller's promise.
    unsafe {
        // Linux appends whatever the offset (pwrite(2), BUGS).
        if description::appends(fd, entry) {
            append(client, entry, buf, count).map(|(put, _)| put)
        } else {
            write_at(client, entry, buf, count, offset as u64)
        }
    }
}

/// Calls `one` for each buffer until a short count.
///
/// # Safety
/// `iov` points to `count` valid buffers.
pub unsafe fn each_buffer(
    iov: *const iovec,
    count: c_int,
    one: &mut dyn FnMut(*mut u8, usize) -> pool::Outcome,
) -> pool::Outcome {
    // SAFETY: the caller's promise.
    unsafe { check_buffers(iov, count)? };
    let mut total = 0isize;
    for i in 0..count as usize {
        // SAFETY: within `count`.
        let buffer = unsafe { &*iov.add(i) };
        let len = buffer.iov_len.min(COUNT_MAX - total as usize);
        let n = match one(buffer.iov_base.cast(), len) {
            Ok(n) => n,
            Err(_) if total > 0 => break,
            Err(error) => return Err(error),
        };
        total += n;
        if (n as usize) < buffer.iov_len {
            break;
        }
    }
    Ok(total)
}

/// As the kernel checks before it does anything.
///
/// # Safety
/// As for `each_buffer`.
unsafe fn check_buffers(iov: *const iovec, count: c_int) -> Result<(), Errno> {
    let count = usize::try_from(count).ok().filter(|count| *count <= 1024).ok_or(Errno::EINVAL)?;
    raw::check(iov, count * size_of::<iovec>())?;
    let mut all = (0..count).map(|i| {
        // SAFETY: within `count`.
        unsafe { &*iov.add(i) }
    });
    if all.clone().any(|one| isize::try_from(one.iov_len).is_err()) {
        return Err(Errno::EINVAL);
    }
    all.try_for_each(|one| raw::check(one.iov_base, one.iov_len))
}

/// Bytes of all buffers.
///
/// # Safety
/// As for `each_buffer`.
unsafe fn gather(iov: *const iovec, count: c_int) -> Vec<u8> {
    let mut all = Vec::new();
    // SAFETY: the caller's promise. The count was checked.
    let _ = unsafe {
        each_buffer(iov, count, &mut |base, len| {
            all.extend_from_slice(std::slice::from_raw_parts(base, len));
            Ok(len as isize)
        })
    };
    all
}

/// One write, so that buffers stay together.
///
/// # Safety
/// The arguments of `writev`, on one of ours.
pub unsafe fn write_all_next(
    client: &Client,
    fd: i32,
    entry: &Entry,
    iov: *const iovec,
    count: c_int,
) -> pool::Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        check_buffers(iov, count)?;
        if count == 1 {
            return write_next(client, fd, entry, (*iov).iov_base.cast(), (*iov).iov_len);
        }
        let all = gather(iov, count);
        write_next(client, fd, entry, all.as_ptr(), all.len())
    }
}

pub fn lseek(fd: c_int, offset: i64, whence: c_int) -> isize {
    if [libc::SEEK_SET, libc::SEEK_CUR].contains(&whence) {
        return seek(fd, offset, whence);
    }
    let Some(entry) = object(fd) else {
        return kernel_unless_hidden(fd, || raw::lseek(fd, offset, whence));
    };
    if entry.flags & libc::O_PATH != 0 {
        return err(libc::EBADF);
    }
    let target = match whence {
        libc::SEEK_END => pool::look(|client| {
            let size = client.get_attr(entry.ino).map_err(|error| pool::report(&error))?.size;
            (size as i64).checked_add(offset).map(|at| at as isize).ok_or(Errno::EOVERFLOW)
        }),
        libc::SEEK_DATA | libc::SEEK_HOLE => seek_data(&entry, offset, whence == libc::SEEK_DATA),
        _ => err(libc::EINVAL),
    };
    match target {
        -4095..0 if whence == libc::SEEK_END && offset < 0 => err(libc::EINVAL),
        -4095..0 => target,
        _ => seek(fd, target as i64, libc::SEEK_SET),
    }
}

/// Moves an offset without asking the pool.
fn seek(fd: i32, offset: i64, whence: i32) -> isize {
    let guard = if fdtable::has_slot(fd) { Inside::enter(Work::Looks) } else { None };
    match object(fd) {
        None => kernel_unless_hidden(fd, || raw::lseek(fd, offset, whence)),
        Some(entry) if entry.flags & libc::O_PATH != 0 => err(libc::EBADF),
        Some(entry) => {
            let _inside = guard.or_else(|| Inside::enter(Work::Looks));
            description::seek(fd, &entry, offset, whence)
        }
    }
}

fn seek_data(entry: &Entry, offset: i64, data: bool) -> isize {
    if offset < 0 {
        return err(libc::ENXIO);
    }
    mmap::flush(entry.ino);
    pool::run(|client| {
        let size = client.get_attr(entry.ino).map_err(|error| pool::report(&error))?.size;
        if offset as u64 >= size {
            return Err(Errno::ENXIO);
        }
        if !data {
            let hole = client.next_hole(entry.ino, offset as u64).map_err(|error| pool::report(&error))?;
            return Ok(hole.min(size) as isize);
        }
        match client.next_data(entry.ino, offset as u64).map_err(|error| pool::report(&error))? {
            Some(at) if at < size => Ok(at as isize),
            _ => Err(Errno::ENXIO),
        }
    })
}

pub fn fsync(fd: c_int, number: i64) -> isize {
    let Some(entry) = object(fd) else {
        // SAFETY: no pointers.
        return kernel_unless_hidden(fd, || cancel::point(&|| unsafe { sys!(number, fd) }));
    };
    mmap::flush(entry.ino);
    pool::run(|client| client.fsync(entry.ino).map(|_| 0).map_err(|error| pool::report(&error)))
}

/// Sets the size of an open file.
pub fn truncate_ours(entry: &Entry, size: i64) -> isize {
    if size < 0 || !entry.writable() || entry.directory() {
        return err(libc::EINVAL);
    }
    mmap::flush(entry.ino);
    pool::run(|client| {
        let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
        may_grow(client, entry.ino, size as u64)?;
        client.set_attr(entry.ino, &set, &cred::of_open_file()).map_err(|error| pool::report(&error))?;
        mmap::refresh(client, entry.ino, 0, 0);
        Ok(0)
    })
}

/// Refuses what would make a file longer than this process may.
fn may_grow(client: &Client, ino: Ino, wanted: u64) -> Result<(), Errno> {
    if !limit::is_set() {
        return Ok(());
    }
    limit::grows(client.get_attr(ino).map_err(|error| pool::report(&error))?.size, wanted)
}

pub fn truncate(path: *const c_char, size: i64) -> isize {
    // SAFETY: the caller's arguments.
    let kernel = |_: i32, path: *const c_char| unsafe { sys!(libc::SYS_truncate, path, size) };
    at(libc::AT_FDCWD, path, true, &kernel, &|client, target| {
        if size < 0 {
            return Err(Errno::EINVAL.into());
        }
        let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
        let found = match &target {
            Target::Path { base, path, .. } if limit::is_set() => {
                client.stat(*base, path, true, &cred::effective())?.map(|attr| Some(attr.ino))
            }
            Target::Path { .. } => Walk::Found(None),
            Target::Object { entry, .. } => Walk::Found(Some(entry.ino)),
        };
        if let Walk::Found(Some(ino)) = found {
            may_grow(client, ino, size as u64)?;
        }
        let done = match target {
            Target::Path { base, path, .. } => {
                client.set_attr_at(base, path, true, &set, &cred::effective())?
            }
            Target::Object { entry, .. } => {
                Walk::Found(client.set_attr(entry.ino, &set, &cred::effective())?)
            }
        };
        if let Walk::Found(attr) = &done {
            mmap::refresh(client, attr.ino, 0, 0);
        }
        Ok(done.map(|_| 0))
    })
}

/// Grows files, punches and zeroes; reserves nothing.
pub fn fallocate(fd: c_int, mode: c_int, offset: i64, len: i64) -> isize {
    let Some(entry) = object(fd) else {
        // SAFETY: no pointers.
        return kernel_unless_hidden(fd, || unsafe { sys!(libc::SYS_fallocate, fd, mode, offset, len) });
    };
    let (Ok(start), Ok(bytes)) = (u64::try_from(offset), u64::try_from(len)) else {
        return err(libc::EINVAL);
    };
    if !entry.writable() {
        return err(libc::EBADF);
    }
    mmap::flush(entry.ino);
    pool::run(|client| {
        if mode & (libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE) == 0 {
            may_grow(client, entry.ino, start.saturating_add(bytes))?;
        }
        client.allocate(entry.ino, mode, start, bytes).map_err(|error| pool::report(&error))?;
        mmap::refresh(client, entry.ino, start, usize::try_from(len).unwrap_or(usize::MAX));
        Ok(0)
    })
}
