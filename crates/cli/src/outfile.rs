//! Files that a user has named for a command to write: the one place that makes them.
//!
//! - Nothing or a regular file at the name: a new file is written beside it, synced, and renamed over it, with the
//!   old one's permissions and, where allowed, its owner. Readers find the old one or the new one, whole; when
//!   writing fails, or the command is killed, the old one is as it was. Other hard links keep the old content.
//! - A link: the same for what it points to, which need not be there. The link stays.
//! - A device, a FIFO, `/dev/stdout`, `/dev/fd/N`: opened and written to.
//! - A directory or a socket: an error.
//! - A link, regular file or FIFO that a third user has put into a directory where everybody may (`/tmp`): an
//!   error, as with the kernel's `fs.protected_symlinks`, `protected_regular` and `protected_fifos`, whatever
//!   their settings are.
//! - A regular file that may be written in a directory that may not, or that is a mount point: written in place. Its
//!   new content is made in memory, and space for it is taken, before the first byte changes; a kill or an error of
//!   the device in the middle can leave a mix, which no program could help there.

use crate::exit::{Context, Kind, Result};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Gid, Mode, OFlags, RenameFlags, Uid, fallocate, fchmod, fchown, linkat,
    openat, renameat, renameat_with, unlinkat,
};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

/// As the kernel's.
const LINKS_MAX: usize = 40;
/// Of a new file, less the umask.
const MODE_NEW: u32 = 0o666;
/// Until a file that replaces another has that one's owner.
const MODE_PRIVATE: u32 = 0o600;
const MODE_BITS: u32 = 0o777;
const STICKY_AND_WRITABLE: u32 = 0o1002;
/// Names of temporary files that are tried.
const TRIES_MAX: u32 = 100;
/// Of the target's name in that of the temporary file, which may have 255 bytes.
const STEM_MAX: usize = 100;

/// What differs between commands.
#[derive(Clone, Copy, Default)]
pub struct How {
    /// In place of those of the old file or of the umask.
    pub mode: Option<u32>,
    /// A regular file that is there is an error of kind `AlreadyExists`.
    pub keep_old: bool,
}

/// Writes a file that the user has named.
pub fn put(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    let write = write(path, How::default(), |out| out.write_all(content.as_ref()));
    write.context(Kind::Other, || path.display().to_string())
}

/// Writes a file that the user has named, piece by piece.
pub fn write(
    path: &Path,
    how: How,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    match resolve(path)? {
        Place::Direct(file) => through(file, content),
        Place::Name { old: Some(_), .. } if how.keep_old => Err(ErrorKind::AlreadyExists.into()),
        Place::Name { dir, name, old } => {
            let dir = open_dir(&dir)?;
            match New::beside(&dir, &name, how.mode, old.as_deref()) {
                Ok(new) => new.fill(&name, how, old.as_deref(), content),
                Err(error) if old.is_some() && must_be_in_place(&error) => in_place(&dir, &name, content),
                Err(error) => Err(error),
            }
        }
    }
}

/// A file that grows while the command runs, for those that go on with it later: not replaced as a whole, else as above.
pub fn grow(path: &Path) -> io::Result<File> {
    match resolve(path)? {
        Place::Direct(file) => Ok(file),
        Place::Name { dir, name, .. } => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            Ok(openat(open_dir(&dir)?, &*name, flags, Mode::from_raw_mode(MODE_NEW))?.into())
        }
    }
}

enum Place {
    Direct(File),
    /// No link is in the directory's name, nor is the name one.
    Name {
        dir: PathBuf,
        name: OsString,
        old: Option<Box<Metadata>>,
    },
}

/// Follows links as the kernel does, and refuses those that it would refuse.
fn resolve(path: &Path) -> io::Result<Place> {
    let mut todo: VecDeque<OsString> = VecDeque::new();
    let (mut at, mut links) = (PathBuf::new(), 0);
    ahead(&mut at, &mut todo, path);
    while let Some(name) = todo.pop_front() {
        if name == ".." {
            up(&mut at);
            continue;
        }
        let next = at.join(&name);
        let found = match fs::symlink_metadata(&next) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound && todo.is_empty() && !is_slashed(path) => {
                return Ok(Place::Name { dir: at, name, old: None });
            }
            // The whole name is told in any case.
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(error),
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", next.display()))),
        };
        if found.is_symlink() {
            refuse_planted(&at, &next, &found, "link")?;
            if let Some(file) = descriptor(&at, &name)? {
                return Ok(Place::Direct(file));
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(Errno::LOOP.into());
            }
            ahead(&mut at, &mut todo, &fs::read_link(&next)?);
        } else if found.is_dir() {
            at = next;
        } else if !todo.is_empty() || is_slashed(path) {
            return Err(Errno::NOTDIR.into());
        } else {
            return last(at, name, found);
        }
    }
    Err(io::Error::new(ErrorKind::IsADirectory, "it is a directory; name a file in it"))
}

fn is_slashed(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/")
}

/// Puts a name's parts in front of those that are left.
fn ahead(at: &mut PathBuf, todo: &mut VecDeque<OsString>, path: &Path) {
    for part in path.components().rev() {
        match part {
            Component::RootDir => *at = PathBuf::from("/"),
            Component::Normal(name) => todo.push_front(name.into()),
            Component::ParentDir => todo.push_front("..".into()),
            Component::CurDir | Component::Prefix(_) => {}
        }
    }
}

/// The name has no links, so that its last part may just go.
fn up(at: &mut PathBuf) {
    match at.components().next_back() {
        None | Some(Component::ParentDir) => at.push(".."),
        Some(_) => drop(at.pop()),
    }
}

/// `.` for nothing.
fn named(dir: &Path) -> &Path {
    if dir.as_os_str().is_empty() { Path::new(".") } else { dir }
}

fn refuse_planted(dir: &Path, path: &Path, found: &Metadata, what: &str) -> io::Result<()> {
    let around = fs::metadata(named(dir))?;
    let owner = found.uid();
    let is_open = around.mode() & STICKY_AND_WRITABLE == STICKY_AND_WRITABLE;
    if !is_open || owner == rustix::process::geteuid().as_raw() || owner == around.uid() {
        return Ok(());
    }
    let why = format!(
        "{} is a {what} that uid {owner} has put into a directory where everybody may; remove it or name another file",
        path.display()
    );
    Err(io::Error::new(ErrorKind::PermissionDenied, why))
}

/// What `/dev/stdout` and `/dev/fd/N` end in: links of /proc that stand for a file that is open already.
fn descriptor(dir: &Path, name: &OsStr) -> io::Result<Option<File>> {
    let parts: Vec<&OsStr> = dir.iter().collect();
    let is_one = parts.len() >= 4 && parts[1] == "proc" && parts.last().is_some_and(|part| *part == "fd");
    if !is_one {
        return Ok(None);
    }
    let is_own = parts[2].to_str() == Some(&std::process::id().to_string());
    let own = match name.to_str() {
        Some("1") if is_own => io::stdout().as_fd().try_clone_to_owned()?,
        Some("2") if is_own => io::stderr().as_fd().try_clone_to_owned()?,
        // At the end, where it is a regular file: what others wrote to it stays.
        _ => return OpenOptions::new().append(true).open(dir.join(name)).map(Some),
    };
    Ok(Some(own.into()))
}

/// What is at the end of all links.
fn last(dir: PathBuf, name: OsString, found: Metadata) -> io::Result<Place> {
    let (path, kind) = (dir.join(&name), found.file_type());
    if kind.is_socket() {
        return Err(io::Error::new(
            ErrorKind::InvalidInput,
            "it is a socket; name a file, a FIFO or a device",
        ));
    }
    if found.is_file() || kind.is_fifo() {
        refuse_planted(&dir, &path, &found, if found.is_file() { "file" } else { "FIFO" })?;
    }
    if found.is_file() {
        return Ok(Place::Name { dir, name, old: Some(Box::new(found)) });
    }
    let flags = OFlags::NOFOLLOW | OFlags::NOCTTY;
    OpenOptions::new().write(true).custom_flags(flags.bits() as i32).open(path).map(Place::Direct)
}

fn through(file: File, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    content(&mut out)?;
    out.flush()
}

/// Held, so that nobody can put another one in its place.
fn open_dir(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(CWD, named(dir), flags, Mode::empty())?)
}

/// Names of directories that may not be written, and of mount points, cannot be replaced.
fn must_be_in_place(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|e| [Errno::ACCESS, Errno::PERM, Errno::ROFS, Errno::BUSY].contains(&e))
}

/// A temporary file, which goes unless it gets the target's name.
struct New<'a> {
    dir: &'a OwnedFd,
    name: OsString,
    file: File,
    is_kept: bool,
}

impl Drop for New<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            // What failed before is told; of this one, a file that is left over tells.
            let _ = unlinkat(self.dir, &*self.name, AtFlags::empty());
        }
    }
}

impl<'a> New<'a> {
    fn beside(
        dir: &'a OwnedFd,
        name: &OsStr,
        mode: Option<u32>,
        old: Option<&Metadata>,
    ) -> io::Result<New<'a>> {
        let first = if old.is_some() || mode.is_some() { MODE_PRIVATE } else { MODE_NEW };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let stem = OsStr::from_bytes(&name.as_bytes()[..name.len().min(STEM_MAX)]);
        for number in 0..TRIES_MAX {
            let mut own = OsString::from(".");
            own.push(stem);
            own.push(format!(".{}-{number}.new", std::process::id()));
            match openat(dir, &*own, flags, Mode::from_raw_mode(first)) {
                Ok(file) => return Ok(New { dir, name: own, file: file.into(), is_kept: false }),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::new(ErrorKind::AlreadyExists, "all names of temporary files beside it are taken"))
    }

    fn fill(
        mut self,
        name: &OsStr,
        how: How,
        old: Option<&Metadata>,
        content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut out = BufWriter::new(&self.file);
        content(&mut out)?;
        out.flush()?;
        drop(out);
        if let Some(old) = old {
            self.take_after(old)?;
        }
        if let Some(mode) = how.mode {
            fchmod(&self.file, Mode::from_raw_mode(mode))?;
        }
        self.file.sync_all()?;
        let renamed = if how.keep_old { self.rename_to_free(name) } else { self.rename_over(name) };
        match renamed {
            Ok(()) => Ok(()),
            Err(error) if old.is_some() && must_be_in_place(&error) => {
                let bytes = self.content()?;
                in_place(self.dir, name, |out| out.write_all(&bytes))
            }
            Err(error) => Err(error),
        }
    }

    /// Owner and permissions of the file that it replaces.
    fn take_after(&self, old: &Metadata) -> io::Result<()> {
        let own = self.file.metadata()?;
        let mut mode = old.mode() & MODE_BITS;
        let group = Some(Gid::from_raw(old.gid()));
        if own.uid() != old.uid() || own.gid() != old.gid() {
            let both = fchown(&self.file, Some(Uid::from_raw(old.uid())), group);
            if both.is_err() && fchown(&self.file, None, group).is_err() {
                // Another group may do no more than everybody.
                mode = mode & !0o070 | (mode & 0o007) << 3 & mode;
            }
        }
        Ok(fchmod(&self.file, Mode::from_raw_mode(mode))?)
    }

    fn rename_over(&mut self, name: &OsStr) -> io::Result<()> {
        renameat(self.dir, &*self.name, self.dir, name)?;
        self.is_kept = true;
        Ok(())
    }

    fn rename_to_free(&mut self, name: &OsStr) -> io::Result<()> {
        match renameat_with(self.dir, &*self.name, self.dir, name, RenameFlags::NOREPLACE) {
            Ok(()) => self.is_kept = true,
            // NFS among others; the temporary name goes at the end.
            Err(Errno::INVAL | Errno::NOSYS) => {
                linkat(self.dir, &*self.name, self.dir, name, AtFlags::empty())?
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn content(&self) -> io::Result<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut bytes = Vec::new();
        let mut file = File::from(openat(self.dir, &*self.name, flags, Mode::empty())?);
        io::Read::read_to_end(&mut file, &mut bytes)?;
        Ok(bytes)
    }
}

fn in_place(
    dir: &OwnedFd,
    name: &OsStr,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    content(&mut bytes)?;
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(dir, name, flags, Mode::empty())?);
    let (before, size) = (file.metadata()?.len(), bytes.len() as u64);
    if size > before {
        match fallocate(&file, FallocateFlags::KEEP_SIZE, 0, size) {
            // File systems that cannot take space in advance.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    file.write_all(&bytes)?;
    file.set_len(size)?;
    file.sync_all()
}

#[cfg(test)]
#[path = "outfile_tests.rs"]
mod tests;
