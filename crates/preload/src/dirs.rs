//! Directories: listing, making, removing, linking, renaming, and the working directory.

use crate::at::{Target, at, on_descriptor, pair};
use crate::fdtable::Entry;
use crate::files::{kernel_unless_hidden, object};
use crate::lock::ForkLock;
use crate::raw::{self, err, sys};
use crate::{cancel, config, cred, cwd, description, fdtable, fork, inside, pool};
use libc::{c_char, c_int};
use std::collections::HashMap;
use std::sync::Arc;
use tidepool_client::{Client, Cred, DirEntry, FsError, Walk};
use tidepool_types::{Errno, FileKind, Ino};

type Listing = Arc<Vec<DirEntry>>;

/// What directories under way list, by description: entries do not shift under a reader.
static LISTINGS: ForkLock<Option<HashMap<[u8; 16], Listing>>> = ForkLock::new(None);

pub fn lock_for_fork() {
    LISTINGS.acquire();
}

pub fn unlock_after_fork() {
    LISTINGS.force_open();
}

pub fn forget(entry: &Entry) {
    if entry.directory() {
        let _inside = inside::Inside::enter(inside::Work::Looks);
        if let Some(listings) = LISTINGS.lock().as_mut() {
            listings.remove(&entry.description.0);
        }
    }
}

/// Bytes of `linux_dirent64` before its name.
const DIRENT_HEADER: usize = 19;

/// # Safety
/// `buf` is writable for `len`.
pub unsafe fn getdents64(fd: c_int, buf: *mut u8, len: usize) -> isize {
    if !raw::is_memory(buf as usize, len) {
        return err(libc::EFAULT);
    }
    let Some(entry) = object(fd) else {
        // SAFETY: the caller's arguments.
        return kernel_unless_hidden(fd, || unsafe { sys!(libc::SYS_getdents64, fd, buf, len) });
    };
    if !entry.readable() {
        return err(libc::EBADF);
    }
    if !entry.directory() {
        return err(libc::ENOTDIR);
    }
    // SAFETY: the caller's promise.
    let buf = unsafe { std::slice::from_raw_parts_mut(buf, len.min(1 << 30)) };
    pool::run(|client| fill_entries(client, fd, &entry, buf))
}

/// The description's offset counts entries given out.
fn fill_entries(client: &Client, fd: i32, entry: &Entry, buf: &mut [u8]) -> pool::Outcome {
    let start = description::seek(fd, entry, 0, libc::SEEK_CUR).max(0) as usize;
    let listing = listing(client, entry, start == 0)?;
    let numbers = client.inode_numbers();
    let mut at = 0;
    let mut next = start;
    while let Some(item) = listing.get(next) {
        let size = (DIRENT_HEADER + item.name.len() + 1).next_multiple_of(8);
        if at + size > buf.len() {
            break;
        }
        put_entry(&mut buf[at..at + size], item, numbers.number(item.ino), next as u64 + 1);
        at += size;
        next += 1;
    }
    if at == 0 && next < listing.len() {
        return Err(Errno::EINVAL);
    }
    description::seek(fd, entry, next as i64, libc::SEEK_SET);
    Ok(at as isize)
}

fn put_entry(out: &mut [u8], item: &DirEntry, number: u64, cookie: u64) {
    let size = out.len() as u16;
    out.fill(0);
    out[..8].copy_from_slice(&number.to_le_bytes());
    out[8..16].copy_from_slice(&cookie.to_le_bytes());
    out[16..18].copy_from_slice(&size.to_le_bytes());
    out[18] = item.kind as u8;
    out[DIRENT_HEADER..DIRENT_HEADER + item.name.len()].copy_from_slice(&item.name);
}

fn listing(client: &Client, entry: &Entry, fresh: bool) -> Result<Listing, Errno> {
    if !fresh
        && let Some(known) = LISTINGS.lock().as_ref().and_then(|all| all.get(&entry.description.0).cloned())
    {
        return Ok(known);
    }
    let dots = |name: &[u8], ino| DirEntry { name: name.into(), ino, kind: FileKind::Directory };
    let parent = client.parent_of(entry.ino).map_err(|error| pool::report(&error))?;
    let mut all = vec![dots(b".", entry.ino), dots(b"..", parent)];
    all.extend(client.read_dir(entry.ino).map_err(|error| pool::report(&error))?);
    let all = Arc::new(all);
    if !pool::in_shared_child() {
        LISTINGS.lock().get_or_insert_default().insert(entry.description.0, all.clone());
    }
    Ok(all)
}

pub fn mkdirat(dirfd: c_int, path: *const c_char, mode: u32) -> isize {
    // SAFETY: the caller's arguments.
    let kernel = |dirfd: i32, path: *const c_char| unsafe { sys!(libc::SYS_mkdirat, dirfd, path, mode) };
    at(dirfd, path, false, &kernel, &|client, target| match target {
        Target::Path { base, path, .. } => Ok(client.mkdir(base, path, mode, &cred::effective())?.map(|_| 0)),
        Target::Object { .. } => Err(Errno::EEXIST.into()),
    })
}

pub fn mknodat(dirfd: c_int, path: *const c_char, mode: u32, device: u64) -> isize {
    // SAFETY: the caller's arguments.
    let kernel =
        |dirfd: i32, path: *const c_char| unsafe { sys!(libc::SYS_mknodat, dirfd, path, mode, device) };
    let mode = if mode & libc::S_IFMT == 0 { mode | libc::S_IFREG } else { mode };
    at(dirfd, path, false, &kernel, &|client, target| match target {
        Target::Path { base, path, .. } => {
            Ok(client.mknod(base, path, mode, device, &cred::effective())?.map(|_| 0))
        }
        Target::Object { .. } => Err(Errno::EEXIST.into()),
    })
}

pub fn unlinkat(dirfd: c_int, path: *const c_char, flags: c_int) -> isize {
    // SAFETY: the caller's arguments.
    let kernel = |dirfd: i32, path: *const c_char| unsafe { sys!(libc::SYS_unlinkat, dirfd, path, flags) };
    at(dirfd, path, false, &kernel, &|client, target| match target {
        Target::Path { .. } if flags & !libc::AT_REMOVEDIR != 0 => Err(Errno::EINVAL.into()),
        Target::Path { base, path, .. } if flags == 0 => {
            fork::note_unlink();
            Ok(client.unlink(base, path, &cred::effective())?.map(|()| 0))
        }
        Target::Path { base, path, .. } => Ok(client.rmdir(base, path, &cred::effective())?.map(|()| 0)),
        Target::Object { .. } => Err(Errno::EPERM.into()),
    })
}

/// C's `remove`: unlink, or rmdir for a directory.
pub fn remove(path: *const c_char) -> isize {
    let result = unlinkat(libc::AT_FDCWD, path, 0);
    if result == err(libc::EISDIR) || result == err(libc::EPERM) {
        return match unlinkat(libc::AT_FDCWD, path, libc::AT_REMOVEDIR) {
            code if code == err(libc::ENOTDIR) => result,
            other => other,
        };
    }
    result
}

pub fn renameat2(odir: c_int, old: *const c_char, ndir: c_int, new: *const c_char, flags: u32) -> isize {
    // SAFETY: the caller's arguments.
    let kernel = |old: (i32, *const c_char), new: (i32, *const c_char)| unsafe {
        if flags == 0 {
            sys!(libc::SYS_renameat, old.0, old.1, new.0, new.1)
        } else {
            sys!(libc::SYS_renameat2, old.0, old.1, new.0, new.1, flags)
        }
    };
    pair((odir, old), (ndir, new), &kernel, &|client, (obase, opath), (nbase, npath)| {
        fork::note_unlink();
        client.rename(obase, opath, nbase, npath, flags, &cred::effective())
    })
}

pub fn linkat(odir: c_int, old: *const c_char, ndir: c_int, new: *const c_char, flags: c_int) -> isize {
    // SAFETY: the caller's arguments.
    let kernel = |old: (i32, *const c_char), new: (i32, *const c_char)| unsafe {
        sys!(libc::SYS_linkat, old.0, old.1, new.0, new.1, flags)
    };
    let follow = flags & libc::AT_SYMLINK_FOLLOW != 0;
    pair((odir, old), (ndir, new), &kernel, &|client, (obase, opath), (nbase, npath)| {
        client.link(obase, opath, nbase, npath, follow, &cred::effective())
    })
}

pub fn symlinkat(text: *const c_char, dirfd: c_int, path: *const c_char) -> isize {
    // SAFETY: the caller's arguments.
    let kernel = |dirfd: i32, path: *const c_char| unsafe { sys!(libc::SYS_symlinkat, text, dirfd, path) };
    at(dirfd, path, false, &kernel, &|client, target| match target {
        _ if !raw::is_memory(text as usize, 1) => Err(Errno::EFAULT.into()),
        Target::Path { base, path, .. } => {
            // SAFETY: a C string by the call's contract.
            let text = unsafe { raw::bytes(text) };
            if text.len() >= raw::PATH_MAX {
                return Err(Errno::ENAMETOOLONG.into());
            }
            Ok(client.symlink(text, base, path, &cred::effective())?.map(|_| 0))
        }
        Target::Object { .. } => Err(Errno::EEXIST.into()),
    })
}

/// # Safety
/// `buf` is writable for `len`.
pub unsafe fn readlinkat(dirfd: c_int, path: *const c_char, buf: *mut u8, len: usize) -> isize {
    let put = |text: &[u8]| {
        let n = text.len().min(len);
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buf, n) };
        n as isize
    };
    if raw::is_memory(path as usize, 1) && !inside::inside() && config::mount().is_some() {
        // SAFETY: as above.
        if unsafe { *path == 0 }
            && let Some(result) = on_descriptor(dirfd, &|client, target| match target {
                Target::Object { .. } if len == 0 => Err(Errno::EINVAL.into()),
                Target::Object { entry, .. } => Ok(Walk::Found(put(&client.read_link(entry.ino)?))),
                Target::Path { .. } => Err(Errno::ENOENT.into()),
            })
        {
            return result;
        }
        // SAFETY: a C string by the call's contract.
        let link = cancel::held_back(|| magic_link(unsafe { raw::bytes(path) }).map(|text| put(&text)));
        if let Some(put) = link {
            return if len == 0 { err(libc::EINVAL) } else { put };
        }
    }
    // SAFETY: the caller's arguments.
    let kernel =
        |dirfd: i32, path: *const c_char| unsafe { sys!(libc::SYS_readlinkat, dirfd, path, buf, len) };
    at(dirfd, path, false, &kernel, &|client, target| match target {
        _ if len == 0 => Err(Errno::EINVAL.into()),
        Target::Path { base, path, .. } => {
            Ok(client.readlink(base, path, &cred::effective())?.map(|text| put(&text)))
        }
        Target::Object { .. } => Err(Errno::EINVAL.into()),
    })
}

/// Links of /proc that the kernel would answer with our stand-ins.
fn magic_link(path: &[u8]) -> Option<Vec<u8>> {
    if !path.starts_with(b"/proc/") && !path.starts_with(b"/dev/") {
        return None;
    }
    match path {
        b"/proc/self/exe" => return Some(config::exe_path().to_vec()).filter(|path| !path.is_empty()),
        b"/proc/self/cwd" => return working_path().and_then(Result::ok),
        _ => {}
    }
    let fd = crate::paths::special(path).filter(|_| !path.starts_with(b"/dev/std"))?;
    fdtable::ours(fd)?;
    Some(description::path(fd))
}

pub fn chdir(path: *const c_char) -> isize {
    let kernel = |_: i32, path: *const c_char| {
        // SAFETY: the caller's path.
        let result = unsafe { sys!(libc::SYS_chdir, path) };
        if result == 0 && !inside::inside() && config::mount().is_some() {
            if cwd::kernel_cwd().as_deref() == config::mount() {
                return pool::run(|client| move_to(client, Ino::ROOT, b""));
            }
            cwd::leave();
        }
        result
    };
    at(libc::AT_FDCWD, path, true, &kernel, &|client, target| match target {
        Target::Path { base, path, .. } => {
            match client.stat(base, path, true, &cred::effective())? {
                Walk::Escape(path) => return Ok(Walk::Escape(path)),
                Walk::Found(attr) if !attr.is_dir() => return Err(Errno::ENOTDIR.into()),
                Walk::Found(_) => {}
            }
            if let Walk::Escape(path) = client.access(base, path, libc::X_OK, true, &cred::effective())? {
                return Ok(Walk::Escape(path));
            }
            let start =
                if base == Ino::ROOT { Vec::new() } else { below_mount(client, current(client, base)?) };
            Ok(Walk::Found(move_to(client, Ino::ROOT, &[&start[..], b"/", path].concat())?))
        }
        Target::Object { fd, entry } => Ok(Walk::Found(enter_object(client, fd, &entry)?)),
    })
}

/// The path of the working directory, which is `ino`. It may have been renamed, by whomever: then it is
/// found from its parents.
fn current(client: &Client, ino: Ino) -> Result<Vec<u8>, FsError> {
    let cred = cred::of_open_file();
    let path = cwd::path();
    let below = below_mount(client, path.clone());
    let name = if below.is_empty() { &b"."[..] } else { &below[1..] };
    let there = client.stat(Ino::ROOT, name, false, &cred).and_then(Walk::inside);
    if there.is_ok_and(|attr| attr.ino == ino) {
        return Ok(path);
    }
    let mount = config::mount().unwrap_or(client.mount());
    let path = [mount, &upwards(client, ino)?].concat();
    cwd::enter(ino, path.clone());
    Ok(path)
}

/// The path below the mount of a directory of which only the id is known.
fn upwards(client: &Client, ino: Ino) -> Result<Vec<u8>, FsError> {
    let mut path = Vec::new();
    let mut at = ino;
    while at != Ino::ROOT {
        let parent = client.parent_of(at)?;
        let entries = client.read_dir(parent)?;
        let entry = entries.iter().find(|entry| entry.ino == at).ok_or(Errno::ENOENT)?;
        path = [b"/", &entry.name[..], &path].concat();
        if path.len() >= raw::PATH_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        at = parent;
    }
    Ok(path)
}

/// The same for calls: `None` when it is outside the pool.
fn working_path() -> Option<Result<Vec<u8>, isize>> {
    let ino = cwd::inside_pool()?;
    let mut path = Vec::new();
    let result = pool::look(|client| {
        path = current(client, ino).map_err(|error| pool::report(&error))?;
        Ok(0)
    });
    Some(if raw::is_err(result) { Err(result) } else { Ok(path) })
}

fn below_mount(client: &Client, path: Vec<u8>) -> Vec<u8> {
    path.strip_prefix(client.mount()).unwrap_or(&path).to_vec()
}

fn enter_object(client: &Client, fd: i32, entry: &Entry) -> pool::Outcome {
    if !entry.directory() {
        return Err(Errno::ENOTDIR);
    }
    let path = below_mount(client, description::path(fd));
    let known = canonical(client, &path).ok().filter(|(ino, _)| *ino == entry.ino);
    // Renamed since it was opened: the id is right, the name is the last one known.
    let (ino, path) = known.unwrap_or((entry.ino, path));
    settle_in(client, ino, &path)
}

fn move_to(client: &Client, base: Ino, path: &[u8]) -> pool::Outcome {
    assert_eq!(base, Ino::ROOT);
    let (ino, path) = canonical(client, path)?;
    settle_in(client, ino, &path)
}

fn settle_in(client: &Client, ino: Ino, below: &[u8]) -> pool::Outcome {
    let mount = client.mount();
    let mut name = config::mount().unwrap_or(mount).to_vec();
    name.push(0);
    // SAFETY: the name ends with NUL.
    let result = unsafe { sys!(libc::SYS_chdir, name.as_ptr()) };
    if result < 0 {
        return Err(Errno(-result as i32));
    }
    name.pop();
    name.extend_from_slice(below);
    cwd::enter(ino, name);
    Ok(0)
}

/// The directory at `path` below the mount, and its path without links or dots (empty for the root).
fn canonical(client: &Client, path: &[u8]) -> Result<(Ino, Vec<u8>), Errno> {
    let cred = cred::of_open_file();
    let mut done: Vec<u8> = Vec::new();
    let mut todo: Vec<Vec<u8>> = parts(path);
    let mut links = 0;
    while let Some(part) = todo.pop() {
        if part == b".." {
            done.truncate(done.iter().rposition(|&b| b == b'/').unwrap_or(0));
            continue;
        }
        let next = [&done[..], b"/", &part].concat();
        let attr = client.stat(Ino::ROOT, &next[1..], false, &cred).and_then(Walk::inside);
        let attr = attr.map_err(|error| error.errno())?;
        if attr.kind() != FileKind::Symlink {
            done = next;
            continue;
        }
        links += 1;
        if links > 40 {
            return Err(Errno::ELOOP);
        }
        let target = client.readlink(Ino::ROOT, &next[1..], &cred).and_then(Walk::inside);
        let target = target.map_err(|error| error.errno())?;
        let inside = match target.strip_prefix(client.mount()) {
            Some(rest) => {
                done.clear();
                rest
            }
            None if target.first() == Some(&b'/') => return Err(Errno::EXDEV),
            None => &target,
        };
        todo.extend(parts(inside));
    }
    let path = if done.is_empty() { &b"."[..] } else { &done[1..] };
    let attr = client.stat(Ino::ROOT, path, false, &cred).and_then(Walk::inside);
    Ok((attr.map_err(|error| error.errno())?.ino, done))
}

/// Components, last first, without empty ones and dots.
fn parts(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|&b| b == b'/')
        .rev()
        .filter(|part| !part.is_empty() && part != b".")
        .map(<[u8]>::to_vec)
        .collect()
}

pub fn fchdir(fd: c_int) -> isize {
    let Some(entry) = object(fd) else {
        // SAFETY: no pointers.
        let result = kernel_unless_hidden(fd, || unsafe { sys!(libc::SYS_fchdir, fd) });
        if result == 0 && config::mount().is_some() {
            cwd::leave();
        }
        return result;
    };
    let allowed = |client: &Client, cred: &Cred| {
        let attr = client.get_attr(entry.ino).map_err(|error| pool::report(&error))?;
        client.may(&attr, cred, libc::X_OK).map(|()| 0)
    };
    pool::run(|client| {
        if !entry.directory() {
            return Err(Errno::ENOTDIR);
        }
        allowed(client, &cred::effective())?;
        enter_object(client, fd, &entry)
    })
}

/// `getcwd` with libc's conventions: a null buffer is allocated. The pointer, or a negative error.
///
/// # Safety
/// `buf` is null or writable for `size`.
pub unsafe fn getcwd(buf: *mut c_char, size: usize) -> isize {
    let mut text = [0u8; 4096];
    let len = match cancel::held_back(|| working_directory(&mut text)) {
        Ok(len) => len,
        Err(code) => return code,
    };
    if size == 0 && !buf.is_null() {
        return err(libc::EINVAL);
    }
    if size != 0 && size < len {
        return err(libc::ERANGE);
    }
    let out = if buf.is_null() {
        // SAFETY: the program frees it, as documented.
        unsafe { libc::malloc(if size == 0 { len } else { size }).cast() }
    } else {
        buf
    };
    if out.is_null() {
        return err(libc::ENOMEM);
    }
    // SAFETY: `out` has room for `len`, checked above.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), out.cast(), len) };
    out as isize
}

/// The path and its NUL; the length with the NUL.
fn working_directory(text: &mut [u8; 4096]) -> Result<usize, isize> {
    if !inside::inside()
        && config::mount().is_some()
        && let Some(path) = working_path()
    {
        let path = path?;
        if path.len() >= text.len() {
            return Err(err(libc::ENAMETOOLONG));
        }
        text[..path.len()].copy_from_slice(&path);
        return Ok(path.len() + 1);
    }
    // SAFETY: the buffer is valid for its length.
    let n = unsafe { sys!(libc::SYS_getcwd, text.as_mut_ptr(), text.len()) };
    match n {
        n if n < 0 => Err(n),
        // "(unreachable)": outside of our root directory.
        _ if text[0] != b'/' => Err(err(libc::ENOENT)),
        n => Ok(n as usize),
    }
}
