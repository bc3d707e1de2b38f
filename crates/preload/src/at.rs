//! The way of every call with a path: classify, then the kernel or the pool, and over again when a
//! symbolic link crosses the border.

use crate::fdtable::{self, Entry};
use crate::inside::{Work, inside};
use crate::paths::{self, Place};
use crate::{cwd, description, pool, raw};
use libc::c_char;
use std::cell::RefCell;
use tidepool_client::{Client, FsError, Walk};
use tidepool_types::Ino;

/// What a call with a path is about, in the pool.
pub enum Target<'a> {
    Path {
        dirfd: i32,
        base: Ino,
        path: &'a [u8],
    },
    /// An open object, named by `/proc/self/fd/N`, or by its descriptor with an empty path.
    Object {
        fd: i32,
        entry: Entry,
    },
}

/// Result of the pool's side: a value, or the way out.
pub type Step = Result<Walk<isize>, FsError>;

/// Border crossings in one path; the same as the kernel's bound on symbolic links.
const CROSSINGS_MAX: usize = 40;

/// Does a call on `(dirfd, path)`. `kernel` gets the arguments it shall use; `pool` runs inside the
/// guard. With `follow` unset, /proc/self/fd/N names the link and not the object.
pub fn at(
    dirfd: i32,
    path: *const c_char,
    follow: bool,
    kernel: &dyn Fn(i32, *const c_char) -> isize,
    pool: &dyn Fn(&Client, Target) -> Step,
) -> isize {
    at_as(Work::Changes, dirfd, path, follow, kernel, pool)
}

/// The same for a call that changes nothing in the pool.
pub fn look_at(
    dirfd: i32,
    path: *const c_char,
    follow: bool,
    kernel: &dyn Fn(i32, *const c_char) -> isize,
    pool: &dyn Fn(&Client, Target) -> Step,
) -> isize {
    at_as(Work::Looks, dirfd, path, follow, kernel, pool)
}

pub fn at_as(
    kind: Work,
    dirfd: i32,
    path: *const c_char,
    follow: bool,
    kernel: &dyn Fn(i32, *const c_char) -> isize,
    pool: &dyn Fn(&Client, Target) -> Step,
) -> isize {
    if !raw::is_memory(path as usize, 1) || inside() {
        return kernel(dirfd, path);
    }
    // SAFETY: the caller's path; a C string by the call's contract.
    let bytes = unsafe { raw::bytes(path) };
    if bytes.len() >= raw::PATH_MAX {
        return raw::err(libc::ENAMETOOLONG);
    }
    match step(kind, dirfd, bytes, follow, pool) {
        Next::Done(result) => result,
        Next::Kernel => {
            let result = kernel(dirfd, path);
            if !lost(result) || bytes.is_empty() || crate::config::mount().is_none() {
                return result;
            }
            match paths::through_links(dirfd, bytes, follow) {
                Some(inside) => cross(kind, inside, follow, kernel, pool),
                None => result,
            }
        }
        Next::Cross(path) => cross(kind, path, follow, kernel, pool),
    }
}

/// Errors that a link into the pool causes, whose target the kernel cannot see.
fn lost(result: isize) -> bool {
    result == raw::err(libc::ENOENT) || result == raw::err(libc::ENOTDIR)
}

enum Next {
    Done(isize),
    Kernel,
    /// Go on with this absolute path.
    Cross(Vec<u8>),
}

fn step(kind: Work, dirfd: i32, path: &[u8], follow: bool, work: &dyn Fn(&Client, Target) -> Step) -> Next {
    let (dirfd, path) = paths::below_descriptor(dirfd, path);
    match paths::classify(dirfd, path) {
        Place::Kernel => Next::Kernel,
        Place::Descriptor(fd) => match fdtable::ours(fd).filter(|_| follow) {
            Some(entry) => in_pool(kind, Target::Object { fd, entry }, work),
            None => Next::Kernel,
        },
        Place::Pool { base, path } => in_pool(kind, Target::Path { dirfd, base, path: &path }, work),
    }
}

fn in_pool(kind: Work, target: Target, work: &dyn Fn(&Client, Target) -> Step) -> Next {
    let escape = RefCell::new(None);
    let result = pool::run_as(kind, |client| match work(client, target) {
        Ok(Walk::Found(value)) => Ok(value),
        Ok(Walk::Escape(path)) => {
            *escape.borrow_mut() = Some(path);
            Ok(0)
        }
        Err(error) => Err(pool::report(&error)),
    });
    match escape.into_inner() {
        Some(path) => Next::Cross(path),
        None => Next::Done(result),
    }
}

#[cold]
fn cross(
    kind: Work,
    path: Vec<u8>,
    follow: bool,
    kernel: &dyn Fn(i32, *const c_char) -> isize,
    pool: &dyn Fn(&Client, Target) -> Step,
) -> isize {
    let mut path = path;
    for _ in 0..CROSSINGS_MAX {
        match step(kind, libc::AT_FDCWD, &path, follow, pool) {
            Next::Done(result) => return result,
            Next::Cross(next) => path = next,
            Next::Kernel => {
                let mut name = path.clone();
                name.push(0);
                let result = kernel(libc::AT_FDCWD, name.as_ptr().cast());
                match paths::through_links(libc::AT_FDCWD, &path, follow).filter(|_| lost(result)) {
                    Some(inside) => path = inside,
                    None => return result,
                }
            }
        }
    }
    raw::err(libc::ELOOP)
}

/// Does a call with an optional path on a descriptor: `AT_EMPTY_PATH`, or a null path where that means
/// the descriptor itself.
pub fn on_descriptor(fd: i32, pool: &dyn Fn(&Client, Target) -> Step) -> Option<isize> {
    let entry = fdtable::ours(fd)?;
    Some(match in_pool(Work::Changes, Target::Object { fd, entry }, pool) {
        Next::Done(result) => result,
        _ => raw::err(libc::EXDEV),
    })
}

/// The pool's side of a call with two paths.
pub type PairWork<'a> = dyn Fn(&Client, (Ino, &[u8]), (Ino, &[u8])) -> Result<Walk<()>, FsError> + 'a;

/// Does a call with two paths. A pair that spans the border gives `EXDEV`, on which programs copy.
pub fn pair(
    old: (i32, *const c_char),
    new: (i32, *const c_char),
    kernel: &dyn Fn((i32, *const c_char), (i32, *const c_char)) -> isize,
    work: &PairWork,
) -> isize {
    if inside() {
        return kernel(old, new);
    }
    // The kernel is not asked: it would look the other name up first, and say ENOENT for one that only the pool has.
    if !raw::is_memory(old.1 as usize, 1) || !raw::is_memory(new.1 as usize, 1) {
        return raw::err(libc::EFAULT);
    }
    // SAFETY: the caller's C strings.
    let (old_path, new_path) = unsafe { (raw::bytes(old.1), raw::bytes(new.1)) };
    if old_path.len().max(new_path.len()) >= raw::PATH_MAX {
        return raw::err(libc::ENAMETOOLONG);
    }
    let (from, to) = (paths::below_descriptor(old.0, old_path), paths::below_descriptor(new.0, new_path));
    let places = (paths::classify(from.0, from.1), paths::classify(to.0, to.1));
    match &places {
        (Place::Pool { base, path }, Place::Pool { base: base2, path: path2 }) => {
            pool::run(|client| match work(client, (*base, path), (*base2, path2)) {
                Ok(Walk::Found(())) => Ok(0),
                Ok(Walk::Escape(_)) => Err(tidepool_types::Errno::EXDEV),
                Err(error) => Err(pool::report(&error)),
            })
        }
        (Place::Pool { .. }, _) | (_, Place::Pool { .. }) => raw::err(libc::EXDEV),
        _ => {
            let result = kernel(old, new);
            if lost(result) && crate::config::mount().is_some() {
                return pair_through_links(old, new, result, kernel, work);
            }
            result
        }
    }
}

#[cold]
fn pair_through_links(
    old: (i32, *const c_char),
    new: (i32, *const c_char),
    result: isize,
    kernel: &dyn Fn((i32, *const c_char), (i32, *const c_char)) -> isize,
    work: &PairWork,
) -> isize {
    // SAFETY: checked for null by the caller; C strings.
    let (old_path, new_path) = unsafe { (raw::bytes(old.1), raw::bytes(new.1)) };
    let led = (paths::through_links(old.0, old_path, false), paths::through_links(new.0, new_path, false));
    let named = |led: Option<Vec<u8>>| {
        led.map(|mut path| {
            path.push(0);
            path
        })
    };
    match (named(led.0), named(led.1)) {
        (None, None) => result,
        (a, b) => {
            let old = a.as_ref().map_or(old, |path| (libc::AT_FDCWD, path.as_ptr().cast()));
            let new = b.as_ref().map_or(new, |path| (libc::AT_FDCWD, path.as_ptr().cast()));
            pair(old, new, kernel, work)
        }
    }
}

/// The absolute path that a target was named by, for the placeholder's record.
pub fn full_path(client: &Client, dirfd: i32, base: Ino, path: &[u8]) -> Vec<u8> {
    let start = if base == Ino::ROOT {
        client.mount().to_vec()
    } else if dirfd == libc::AT_FDCWD {
        cwd::path()
    } else {
        description::path(dirfd)
    };
    if path == b"." { start } else { [&start[..], b"/", path].concat() }
}
