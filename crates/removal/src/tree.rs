//! A tree whose root is open and checked.

use crate::walk::{Does, Entry, Walk};
use crate::{RemovalError, Why};
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tidepool_rundir::{Dir, Unusable, Want};

/// A directory of a user's that could go with all that is in it. What is read beneath [`Tree::dir`] is read in what will go.
pub struct Tree {
    parent: OwnedFd,
    name: OsString,
    dir: Dir,
    root: Entry,
    uid: u32,
}

/// One that has nothing in it that would have to stay.
pub struct Looked {
    tree: Tree,
}

impl Tree {
    /// The way to it may be anything, such as a project's directory: whoever can change it chooses among this user's own
    /// directories at most, and the mark in the one that was opened says whether it is meant.
    pub fn open(path: &Path, uid: u32) -> Result<Tree, RemovalError> {
        Tree::open_as(path, &only_owned(uid))
    }

    /// The same, of a root that has to be as it is wanted.
    pub fn open_as(path: &Path, want: &Want) -> Result<Tree, RemovalError> {
        let (above, name) =
            split(path).ok_or_else(|| unusable(Unusable::new(path, tidepool_rundir::Why::Name)))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = openat(CWD, above, flags, Mode::empty())
            .map_err(|errno| unusable(Unusable::new(path, tidepool_rundir::Why::Io(errno.into()))))?;
        Tree::of(parent, path, name, want)
    }

    /// A directory in one that is open.
    pub fn beneath(parent: &Dir, name: &OsStr, uid: u32) -> Result<Tree, RemovalError> {
        let path = parent.path().join(name);
        let parent = parent.fd().try_clone_to_owned().map_err(|error| RemovalError {
            path: path.clone(),
            why: Why::Io { doing: "opening", error },
            is_whole: true,
        })?;
        Tree::of(parent, &path, name, &only_owned(uid))
    }

    fn of(parent: OwnedFd, path: &Path, name: &OsStr, want: &Want) -> Result<Tree, RemovalError> {
        let fail = |why| RemovalError { path: path.into(), why, is_whole: true };
        let dir = Dir::entry(parent.as_fd(), path, name, want).map_err(unusable)?;
        let root = Entry::of(dir.fd()).map_err(fail)?;
        if !root.is_on_mount_of(&Entry::of(parent.as_fd()).map_err(fail)?) {
            return Err(fail(Why::Mount));
        }
        Ok(Tree { parent, name: name.into(), dir, root, uid: want.uid })
    }

    /// The root.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn parent(&self) -> BorrowedFd<'_> {
        self.parent.as_fd()
    }

    pub(crate) fn name(&self) -> &OsStr {
        &self.name
    }

    pub(crate) fn root(&self) -> &Entry {
        &self.root
    }

    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    /// Looks at all of it. Directories that their owner has closed to himself are opened to him; nothing else is changed.
    pub fn look(self) -> Result<Looked, RemovalError> {
        Walk::over(&self, Does::Look)?;
        Ok(Looked { tree: self })
    }
}

impl Looked {
    pub fn path(&self) -> &Path {
        self.tree.path()
    }

    /// Removes it. Each entry is judged once more.
    pub fn remove(self) -> Result<(), RemovalError> {
        Walk::over(&self.tree, Does::Remove)
    }

    /// Removes what is in it, but for these names in the root itself.
    pub fn remove_contents(&self, kept: &[&str]) -> Result<(), RemovalError> {
        Walk::over(&self.tree, Does::Empty { kept })
    }
}

/// Whatever else may be said of it, it is this user's.
fn only_owned(uid: u32) -> Want {
    Want { forbidden: 0, local: false, ..Want::private(uid) }
}

fn unusable(error: Unusable) -> RemovalError {
    RemovalError { path: error.path, why: Why::Root(error.why), is_whole: true }
}

/// The directory above and the name: none where the last component would lead up or nowhere.
fn split(path: &Path) -> Option<(PathBuf, &OsStr)> {
    let last = path.as_os_str().as_bytes().split(|byte| *byte == b'/').rfind(|part| !part.is_empty())?;
    let name = path.file_name().filter(|name| name.as_bytes() == last)?;
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some((above.to_path_buf(), name))
}
