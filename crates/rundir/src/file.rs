//! Files of ours: regular, of the right owner, of a bounded size.

use crate::walk::{PASSING, check_name, failed, kind, look, permissions};
use crate::{Dir, Trust, UNWRITABLE, Unusable, Why};
use rustix::fs::{CWD, FileType, Mode, OFlags, Statx, fstat, openat};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// What a file has to be like.
#[derive(Clone, Copy, Debug)]
pub struct FileWant {
    pub uid: u32,
    /// Root may own it as well.
    pub or_root: bool,
    pub bytes_max: u64,
}

impl Dir {
    /// The bytes of a file in this directory.
    pub fn read(&self, name: &OsStr, want: &FileWant) -> Result<Vec<u8>, Unusable> {
        let path = self.path().join(name);
        check_name(&path, name)?;
        read_at(self.fd(), name, &path, want)
    }
}

/// The bytes of a file. The way to it may be anything: what counts is who owns it, and that nobody else may write to it.
pub fn read_file(path: &Path, want: &FileWant) -> Result<Vec<u8>, Unusable> {
    read_at(CWD, path.as_os_str(), path, want)
}

fn read_at(dir: BorrowedFd<'_>, name: &OsStr, path: &Path, want: &FileWant) -> Result<Vec<u8>, Unusable> {
    // First without touching it: opening a device may do something, and a link is told by its owner.
    let there = openat(dir, name, PASSING, Mode::empty()).map_err(|errno| failed(path, errno))?;
    let stat = look(there.as_fd(), path)?;
    check_type(path, &stat)?;
    check_owner(path, &stat, want)?;
    drop(there);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = openat(dir, name, flags, Mode::empty()).map_err(|errno| failed(path, errno))?;
    // Something else may be there by now: only what was opened counts.
    let stat = look(fd.as_fd(), path)?;
    check_type(path, &stat)?;
    check_owner(path, &stat, want)?;
    read_whole(fd, path, want.bytes_max)
}

fn check_type(path: &Path, stat: &Statx) -> Result<(), Unusable> {
    match kind(stat) {
        FileType::RegularFile => Ok(()),
        FileType::Symlink => Err(Unusable::new(path, Why::Link { uid: stat.stx_uid })),
        _ => Err(Unusable::new(path, Why::NotRegular)),
    }
}

fn check_owner(path: &Path, stat: &Statx, want: &FileWant) -> Result<(), Unusable> {
    let is_theirs = stat.stx_uid == want.uid || want.or_root && Trust::of(want.uid).trusts(stat.stx_uid);
    if !is_theirs {
        return Err(Unusable::new(path, Why::Owner { uid: stat.stx_uid, wanted: want.uid }));
    }
    match permissions(stat) & UNWRITABLE {
        0 => Ok(()),
        _ => Err(Unusable::new(path, Why::Mode { mode: permissions(stat), forbidden: UNWRITABLE })),
    }
}

/// Sizes are asked of the file only to say so early: it may grow meanwhile.
fn read_whole(fd: OwnedFd, path: &Path, max: u64) -> Result<Vec<u8>, Unusable> {
    let too_large = || Unusable::new(path, Why::TooLarge { max });
    let said = fstat(&fd).map_err(|errno| failed(path, errno))?.st_size;
    if u64::try_from(said).is_ok_and(|said| said > max) {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    let read = File::from(fd).take(max + 1).read_to_end(&mut bytes);
    read.map_err(|error| Unusable::new(path, Why::Io(error)))?;
    if bytes.len() as u64 > max { Err(too_large()) } else { Ok(bytes) }
}

/// Whether a socket is in this directory.
pub fn is_socket_of(dir: &Dir, name: &OsStr) -> bool {
    let found = openat(dir.fd(), name, PASSING, Mode::empty());
    let stat = found.ok().and_then(|fd| look(fd.as_fd(), dir.path()).ok());
    stat.is_some_and(|stat| kind(&stat) == FileType::Socket)
}
