//! Resources as ends of a copy.
//!
//! A dataspace's root is opened with the daemon's rights; everything below it with those of the
//! task's user, and in one call of the kernel that nothing leads out of (`LocalEnd::open_beneath`).

use rustix::fs::{CWD, Mode, OFlags, openat};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use tidepool_stage::{At, End, EndError, LocalEnd, What};
use tidepool_types::{Errno, FileKind};
use tidepool_wire::stager::{DataspaceKind, DataspaceSpec, Resource};

/// The dataspaces of a task's resources on this node, as they were when it started.
#[derive(Clone, Default)]
pub struct Places {
    by_name: HashMap<String, DataspaceSpec>,
}

/// Why a place cannot be used.
pub enum PlaceError {
    End(EndError),
    NotSupported(String),
}

impl From<EndError> for PlaceError {
    fn from(error: EndError) -> PlaceError {
        PlaceError::End(error)
    }
}

impl Places {
    pub fn add(&mut self, spec: DataspaceSpec) {
        self.by_name.insert(spec.name.clone(), spec);
    }

    pub fn get(&self, name: &str) -> Option<&DataspaceSpec> {
        self.by_name.get(name)
    }
}

/// One side of a task, opened as far as the daemon's own rights are needed.
pub struct Root {
    fd: OwnedFd,
    path: Vec<u8>,
}

impl Root {
    pub fn open(places: &Places, resource: &Resource) -> Result<Root, PlaceError> {
        let Resource::Path { dataspace, host: None, path, .. } = resource else {
            return Err(PlaceError::NotSupported(
                "this stager cannot do that with memory or remote paths yet".into(),
            ));
        };
        let spec = places.get(dataspace).ok_or_else(|| gone(dataspace))?;
        match spec.kind {
            DataspaceKind::Local | DataspaceKind::Shared => {
                Ok(Root { fd: open_mount(&spec.mount)?, path: path.to_vec() })
            }
            DataspaceKind::Pool | DataspaceKind::Object => Err(PlaceError::NotSupported(format!(
                "dataspace '{dataspace}': this stager cannot use pools and object stores yet"
            ))),
        }
    }

    /// The source, and what of it is copied. A directory, or a link to one, is a tree.
    pub fn source(&self) -> Result<(LocalEnd, Option<Vec<u8>>), EndError> {
        match LocalEnd::open_beneath(&self.fd, &self.path) {
            Ok(end) => return Ok((end, None)),
            // No directory, or a link that leads out: a link is copied as what it is.
            Err(error) if matches!(error.errno, Errno::ENOTDIR | Errno::EXDEV | Errno::ELOOP) => {}
            Err(error) => return Err(error),
        }
        let (end, name) = LocalEnd::parent_beneath(&self.fd, &self.path)?;
        Ok((end, Some(name)))
    }

    /// The destination of a tree, or of an entry called `from`. A path that ends in '/' (or the root)
    /// is the directory the source is put into; any other is the name it gets.
    pub fn target(&self, from: Option<&[u8]>, own_name: &[u8]) -> Result<(LocalEnd, What), EndError> {
        let into = self.path.is_empty() || self.path.ends_with(b"/");
        match (from, into) {
            (None, false) => Ok((LocalEnd::create_beneath(&self.fd, &self.path)?, What::Tree)),
            (None, true) if self.path.is_empty() || own_name.is_empty() => {
                Ok((LocalEnd::create_beneath(&self.fd, &self.path)?, What::Tree))
            }
            (None, true) => {
                let path = [&self.path[..], own_name].concat();
                Ok((LocalEnd::create_beneath(&self.fd, &path)?, What::Tree))
            }
            (Some(from), true) => {
                let end = LocalEnd::create_beneath(&self.fd, &self.path)?;
                Ok((end, What::Entry { from: from.to_vec(), to: from.to_vec() }))
            }
            (Some(from), false) => {
                let (end, to) = LocalEnd::create_parent_beneath(&self.fd, &self.path)?;
                Ok((end, What::Entry { from: from.to_vec(), to }))
            }
        }
    }

    /// The directory of an entry that is to be removed, and its name.
    pub fn entry(&self) -> Result<(LocalEnd, Vec<u8>), EndError> {
        LocalEnd::parent_beneath(&self.fd, &self.path)
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Last name of the path.
    pub fn name(&self) -> &[u8] {
        let path = self.path.trim_ascii_end();
        let end = path.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
        let start = path[..end].iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
        &path[start..end]
    }
}

fn gone(dataspace: &str) -> PlaceError {
    PlaceError::End(EndError {
        errno: Errno::ENOENT,
        operation: "open dataspace",
        detail: Some(format!("there is no dataspace '{dataspace}' any more")),
    })
}

/// The directory of a dataspace.
pub fn open_mount(mount: &str) -> Result<OwnedFd, EndError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, mount, flags, Mode::empty()).map_err(|errno| EndError {
        errno: Errno(errno.raw_os_error()),
        operation: "open dataspace",
        detail: Some(format!("its mount is {mount}")),
    })
}

/// Whether an entry is a directory; links are not followed.
pub fn is_directory(end: &LocalEnd, name: &[u8]) -> Result<bool, EndError> {
    Ok(end.stat(At::Name(&end.root(), name))?.kind == FileKind::Directory)
}
