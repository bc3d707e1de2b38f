//! Does a path lead into the pool? Answered from the text alone on the common way; the kernel is asked
//! only about `..` outside the pool and about relative paths that could reach the mount.

use crate::raw::{self, sys};
use crate::{config, cwd, fdtable};
use std::borrow::Cow;
use tidepool_types::Ino;

/// Where a path leads.
#[derive(Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// The kernel's business, with the caller's own arguments.
    Kernel,
    /// `path`, never empty, relative to directory `base` of the pool.
    Pool { base: Ino, path: Cow<'a, [u8]> },
    /// A descriptor of this process, by `/proc/self/fd/N` and the like.
    Descriptor(i32),
}

/// Classifies the pair that the `*at` calls take.
pub fn classify<'a>(dirfd: i32, path: &'a [u8]) -> Place<'a> {
    let Some(mount) = config::mount() else { return Place::Kernel };
    if path.first() == Some(&b'/') {
        return absolute(mount, path);
    }
    if path.is_empty() {
        return Place::Kernel;
    }
    if dirfd == libc::AT_FDCWD {
        if let Some(base) = cwd::inside_pool() {
            return Place::Pool { base, path: Cow::Borrowed(path) };
        }
    } else if let Some(entry) = fdtable::ours(dirfd) {
        return Place::Pool { base: entry.ino, path: Cow::Borrowed(path) };
    }
    if may_reach(mount, path) { relative(mount, dirfd, path) } else { Place::Kernel }
}

fn absolute<'a>(mount: &[u8], path: &'a [u8]) -> Place<'a> {
    match strip(mount, path) {
        Strip::Inside(rest) => Place::Pool { base: Ino::ROOT, path: Cow::Borrowed(dot(&path[rest..])) },
        Strip::Outside => special(path).map_or(Place::Kernel, Place::Descriptor),
        Strip::DotDot => match settle(mount, path) {
            Some(rest) => Place::Pool { base: Ino::ROOT, path: Cow::Owned(dot(&rest).to_vec()) },
            None => Place::Kernel,
        },
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Strip {
    /// Offset in the path of what follows the mount.
    Inside(usize),
    Outside,
    /// `..` before the mount was reached: only the kernel knows.
    DotDot,
}

/// Matches an absolute path with the mount, component by component.
fn strip(mount: &[u8], path: &[u8]) -> Strip {
    let mut at = 0;
    let mut left = mount;
    loop {
        while path.get(at) == Some(&b'/') {
            at += 1;
        }
        if left.is_empty() {
            return Strip::Inside(at);
        }
        let part = component(&path[at..]);
        match part {
            b"." => at += 1,
            b"" => return Strip::Outside,
            b".." => return Strip::DotDot,
            _ => {
                let want = component(&left[1..]);
                if part != want {
                    return if has_dotdot(&path[at..]) { Strip::DotDot } else { Strip::Outside };
                }
                at += part.len();
                left = &left[1 + want.len()..];
            }
        }
    }
}

fn component(path: &[u8]) -> &[u8] {
    &path[..path.iter().position(|&b| b == b'/').unwrap_or(path.len())]
}

fn has_dotdot(path: &[u8]) -> bool {
    path.split(|&b| b == b'/').any(|part| part == b"..")
}

/// Can this relative path reach the mount from some directory outside? Only by `..` or by naming a
/// component of the mount first.
fn may_reach(mount: &[u8], path: &[u8]) -> bool {
    let mut path = path;
    while let Some(rest) = path.strip_prefix(b"./") {
        path = rest;
    }
    let first = component(path);
    mount[1..].split(|&b| b == b'/').any(|part| part == first) || has_dotdot(path)
}

/// Resolves every `..` that lies outside the pool with the kernel's help; what follows the mount.
#[cold]
fn settle(mount: &[u8], path: &[u8]) -> Option<Vec<u8>> {
    let mut path = path.to_vec();
    for _ in 0..MOST_DOTDOTS {
        match strip(mount, &path) {
            Strip::Inside(rest) => return Some(path[rest..].to_vec()),
            Strip::Outside => return None,
            Strip::DotDot => path = resolve_first_dotdot(&path)?,
        }
    }
    None
}

const MOST_DOTDOTS: usize = 256;

fn resolve_first_dotdot(path: &[u8]) -> Option<Vec<u8>> {
    let mut end = 0;
    for part in path.split(|&b| b == b'/') {
        end += part.len();
        if part == b".." {
            break;
        }
        end += 1;
    }
    let mut resolved = canonical_directory(libc::AT_FDCWD, &path[..end])?;
    resolved.extend_from_slice(&path[end..]);
    Some(resolved)
}

/// Absolute path without symbolic links of a directory the kernel knows.
pub fn canonical_directory(dirfd: i32, path: &[u8]) -> Option<Vec<u8>> {
    let mut name = path.to_vec();
    name.push(0);
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: `name` ends with NUL.
    let fd = unsafe { sys!(libc::SYS_openat, dirfd, name.as_ptr(), flags, 0) };
    if fd < 0 {
        return None;
    }
    let found = path_of_descriptor(fd as i32);
    raw::close(fd as i32);
    found
}

/// What /proc says the descriptor is.
pub fn path_of_descriptor(fd: i32) -> Option<Vec<u8>> {
    let mut digits = [0; 20];
    let name = [b"/proc/self/fd/", raw::decimal(fd as u64, &mut digits), b"\0"].concat();
    let mut buf = [0u8; 4096];
    raw::readlink(&name, &mut buf).map(<[u8]>::to_vec)
}

#[cold]
fn relative<'a>(mount: &[u8], dirfd: i32, path: &'a [u8]) -> Place<'a> {
    let start = if dirfd == libc::AT_FDCWD { cwd::kernel_cwd() } else { path_of_descriptor(dirfd) };
    let Some(mut joined) = start.filter(|start| start.first() == Some(&b'/')) else { return Place::Kernel };
    let mut rest = path;
    // The start is free of symbolic links, so leading dots can be taken off lexically.
    loop {
        match component(rest) {
            b".." => joined.truncate(joined.iter().rposition(|&b| b == b'/').unwrap_or(0)),
            b"." => {}
            _ => break,
        }
        rest = &rest[component(rest).len()..];
        while let Some(tail) = rest.strip_prefix(b"/") {
            rest = tail;
        }
        if rest.is_empty() {
            break;
        }
    }
    joined.push(b'/');
    joined.extend_from_slice(rest);
    match settle(mount, &joined) {
        Some(rest) => Place::Pool { base: Ino::ROOT, path: Cow::Owned(dot(&rest).to_vec()) },
        None => Place::Kernel,
    }
}

/// The mount itself is `.` below its root; an empty path would be an error.
fn dot(path: &[u8]) -> &[u8] {
    if path.is_empty() { b"." } else { path }
}

/// The descriptor that a path of /proc or /dev names.
pub fn special(path: &[u8]) -> Option<i32> {
    if !path.starts_with(b"/dev/") && !path.starts_with(b"/proc/") {
        return None;
    }
    match path {
        b"/dev/stdin" => return Some(0),
        b"/dev/stdout" => return Some(1),
        b"/dev/stderr" => return Some(2),
        _ => {}
    }
    for prefix in [&b"/dev/fd/"[..], b"/proc/self/fd/", b"/proc/thread-self/fd/"] {
        if let Some(rest) = path.strip_prefix(prefix) {
            return number(rest);
        }
    }
    let rest = path.strip_prefix(b"/proc/")?;
    let pid = component(rest);
    if number(pid)? != raw::getpid() {
        return None;
    }
    number(rest[pid.len()..].strip_prefix(b"/fd/")?)
}

/// A path that goes on behind a directory of the pool that a descriptor has open, `/proc/self/fd/N/...`, is one below
/// that descriptor: the kernel's link leads elsewhere.
pub fn below_descriptor(dirfd: i32, path: &[u8]) -> (i32, &[u8]) {
    if !path.starts_with(b"/proc/") && !path.starts_with(b"/dev/fd/") {
        return (dirfd, path);
    }
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    let found = slashes.skip(1).find_map(|at| Some((special(&path[..at])?, &path[at..])));
    match found.filter(|(fd, _)| fdtable::ours(*fd).is_some_and(|entry| entry.directory())) {
        Some((fd, rest)) => {
            let start = rest.iter().position(|&b| b != b'/').unwrap_or(rest.len());
            (fd, dot(&rest[start..]))
        }
        None => (dirfd, path),
    }
}

fn number(text: &[u8]) -> Option<i32> {
    if text.is_empty() || text.len() > 9 || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(text.iter().fold(0, |n, b| n * 10 + i32::from(b - b'0')))
}

/// After the kernel said that `path` does not exist: does it pass through a symbolic link (outside the
/// pool) that leads into the pool? The absolute pool path then. Without `follow` a link at its very end
/// is not passed through.
#[cold]
pub fn through_links(dirfd: i32, path: &[u8], follow: bool) -> Option<Vec<u8>> {
    let mount = config::mount()?;
    let mut todo = match path.first() {
        Some(b'/') => path.to_vec(),
        _ => {
            let start = if dirfd == libc::AT_FDCWD { cwd::kernel_cwd()? } else { path_of_descriptor(dirfd)? };
            [&start[..], b"/", path].concat()
        }
    };
    let mut links = 0;
    let mut at = 0;
    let mut buf = [0u8; 4096];
    loop {
        while todo.get(at) == Some(&b'/') {
            at += 1;
        }
        let part = component(&todo[at..]).len();
        if part == 0 {
            return None;
        }
        let end = at + part;
        if end == todo.len() && !follow {
            return None;
        }
        let mut name = todo[..end].to_vec();
        name.push(0);
        if let Some(target) = raw::readlink(&name, &mut buf) {
            links += 1;
            if links > 40 {
                return None;
            }
            let mut next = if target.first() == Some(&b'/') { Vec::new() } else { todo[..at].to_vec() };
            next.extend_from_slice(target);
            next.extend_from_slice(&todo[end..]);
            todo = next;
            at = 0;
            if let Some(rest) = settle(mount, &todo) {
                return Some([mount, b"/", &rest].concat());
            }
        } else {
            at = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNT: &[u8] = b"/tmp/tide-paths-test/m";

    fn inside(path: &str) -> Option<String> {
        match strip(MOUNT, path.as_bytes()) {
            Strip::Inside(at) => Some(path[at..].to_string()),
            Strip::Outside => None,
            Strip::DotDot => settle(MOUNT, path.as_bytes()).map(|rest| String::from_utf8(rest).unwrap()),
        }
    }

    #[test]
    fn absolute_paths_are_classified() {
        for (path, expect) in [
            ("/tmp/tide-paths-test/m", Some("")),
            ("/tmp/tide-paths-test/m/", Some("")),
            ("/tmp//tide-paths-test/./m//a/b/", Some("a/b/")),
            ("/tmp/tide-paths-test/m/../x", Some("../x")),
            ("/tmp/tide-paths-test/mx", None),
            ("/tmp/tide-paths-test", None),
            ("/", None),
            ("/usr/../tmp/tide-paths-test/m/f", Some("f")),
            ("/usr/lib/../../tmp/tide-paths-test/m/a/../f", Some("a/../f")),
            ("/usr/nowhere/../../tmp/tide-paths-test/m/f", None),
            ("/usr/../etc", None),
        ] {
            assert_eq!(inside(path).as_deref(), expect, "{path}");
        }
    }

    #[test]
    fn relative_paths_that_may_reach() {
        assert!(may_reach(MOUNT, b"m/f") && may_reach(MOUNT, b"./tmp/x") && may_reach(MOUNT, b"a/../b"));
        assert!(!may_reach(MOUNT, b"file") && !may_reach(MOUNT, b"a/m"));
    }

    #[test]
    fn descriptors_by_path() {
        assert_eq!(special(b"/dev/fd/7"), Some(7));
        assert_eq!(special(b"/proc/self/fd/12"), Some(12));
        assert_eq!(special(format!("/proc/{}/fd/3", raw::getpid()).as_bytes()), Some(3));
        assert_eq!(special(b"/proc/self/fd/"), None);
        assert_eq!(special(b"/proc/1x/fd/3"), None);
        assert_eq!(special(b"/dev/null"), None);
    }
}
