//! Places below a directory that callers may not leave: a dataspace's root.
//!
//! The kernel resolves each path in one call (openat2 with `RESOLVE_BENEATH`), so nobody can
//! put a link in the way between a check and its use. Links that stay below the root are
//! followed; absolute paths, `..` above the root, links that lead out and those of `/proc`
//! are refused. The caller's rights are those of the calling thread.

use crate::end::{EndError, EndResult, Rights};
use crate::local::{LocalEnd, fail};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno as Sys;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use tidepool_types::Errno;

/// Times a path is resolved again when a rename anywhere made the kernel give up.
const RESOLVE_TRIES_MAX: usize = 1000;
const OPEN: &str = "open beneath the dataspace";
const HERE: &[u8] = b".";

impl LocalEnd {
    /// The directory `path` below `root`; the root itself for an empty path.
    pub fn open_beneath(root: impl AsFd, path: &[u8]) -> EndResult<LocalEnd> {
        of_dir(open_dir(root.as_fd(), path)?)
    }

    /// The directory that holds the last name of `path`, and that name, which need not exist
    /// and is not followed. A path that ends in a slash must not name anything but a directory.
    pub fn parent_beneath(root: impl AsFd, path: &[u8]) -> EndResult<(LocalEnd, Vec<u8>)> {
        let (dir, name, slash) = split(path)?;
        let parent = open_dir(root.as_fd(), dir)?;
        if slash {
            check_directory(&parent, name)?;
        }
        Ok((of_dir(parent)?, name.to_vec()))
    }

    /// The directory `path` below `root`. What is missing of it is made (mode 0777 less the
    /// umask).
    pub fn create_beneath(root: impl AsFd, path: &[u8]) -> EndResult<LocalEnd> {
        let root = root.as_fd();
        match open_dir(root, path) {
            Err(error) if error.errno == Errno::ENOENT => of_dir(make_dirs(root, path)?),
            other => of_dir(other?),
        }
    }

    /// Like [`LocalEnd::parent_beneath`]; the directories above the last name are made if missing.
    pub fn create_parent_beneath(root: impl AsFd, path: &[u8]) -> EndResult<(LocalEnd, Vec<u8>)> {
        let (dir, _, _) = split(path)?;
        LocalEnd::create_beneath(root.as_fd(), dir)?;
        LocalEnd::parent_beneath(root, path)
    }

    /// The directory `path` below `root`, to reach names in it and for nothing else: it is not opened for
    /// reading.
    pub(crate) fn passage_beneath(root: &Arc<OwnedFd>, path: &[u8], rights: Rights) -> EndResult<LocalEnd> {
        let dir = match path {
            b"" => Arc::clone(root),
            path => Arc::new(resolve_dir(root.as_fd(), path, OFlags::PATH)?),
        };
        LocalEnd::of_shared(dir, None, rights)
    }
}

/// A path as directory, last name, and whether a slash follows.
pub(crate) fn split(path: &[u8]) -> EndResult<(&[u8], &[u8], bool)> {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
    let start = path[..end].iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
    let name = &path[start..end];
    if matches!(name, b"" | b"." | b"..") {
        let detail = Some("the path does not end in a name".to_string());
        return Err(EndError { errno: Errno::EINVAL, operation: OPEN, detail });
    }
    Ok((&path[..start], name, end < path.len()))
}

fn open_dir(root: BorrowedFd<'_>, path: &[u8]) -> EndResult<OwnedFd> {
    resolve_dir(root, if path.is_empty() { HERE } else { path }, OFlags::RDONLY)
}

fn resolve_dir(root: BorrowedFd<'_>, path: &[u8], how: OFlags) -> EndResult<OwnedFd> {
    let flags = how | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..RESOLVE_TRIES_MAX {
        match fs::openat2(root, path, flags, Mode::empty(), resolve) {
            Err(Sys::AGAIN | Sys::INTR) => {}
            other => return other.map_err(refused),
        }
    }
    Err(refused(Sys::AGAIN))
}

fn refused(errno: Sys) -> EndError {
    let detail = match errno {
        Sys::XDEV => Some("the path leads out of the dataspace"),
        Sys::LOOP => Some("too many symbolic links, or one that only the kernel follows"),
        Sys::AGAIN => Some("directories above are renamed all the time; try again"),
        Sys::NOSYS => Some("Linux 5.6 or later is needed"),
        _ => None,
    };
    EndError { detail: detail.map(str::to_string), ..fail(OPEN)(errno) }
}

/// Makes what is missing, from the root downwards. Each step is resolved from the root, so
/// that links between directories of the dataspace work as they do without this.
fn make_dirs(root: BorrowedFd<'_>, path: &[u8]) -> EndResult<OwnedFd> {
    let mut dir = open_dir(root, HERE)?;
    let ends = path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
    for end in ends.chain([path.len()]) {
        let name = path[..end].rsplit(|b| *b == b'/').next().unwrap_or_default();
        if matches!(name, b"" | b".") {
            continue;
        }
        dir = match open_dir(root, &path[..end]) {
            Err(error) if error.errno == Errno::ENOENT => {
                make_dir(&dir, name)?;
                open_dir(root, &path[..end])?
            }
            other => other?,
        };
    }
    Ok(dir)
}

fn make_dir(dir: &OwnedFd, name: &[u8]) -> EndResult<()> {
    match fs::mkdirat(dir, name, Mode::from_raw_mode(0o777)) {
        // Somebody else made it, or it is a link to nowhere; opening it tells.
        Ok(()) | Err(Sys::EXIST) => Ok(()),
        Err(errno) => Err(fail("make directory")(errno)),
    }
}

fn check_directory(parent: &OwnedFd, name: &[u8]) -> EndResult<()> {
    match fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Directory => {
            Err(fail(OPEN)(Sys::NOTDIR))
        }
        Ok(_) | Err(Sys::NOENT) => Ok(()),
        Err(errno) => Err(fail(OPEN)(errno)),
    }
}

fn of_dir(dir: OwnedFd) -> EndResult<LocalEnd> {
    LocalEnd::of_descriptor(dir, None)
}
