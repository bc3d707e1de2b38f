//! The kernel's connections to the processes that serve mounts: which are of a pool, and how they are ended.
//!
//! A mount that is taken away goes on for as long as something has it: an open file, or a mount namespace that was made, for a container, while
//! it was there and has a copy. Its process goes on as well then. Ending the connection ends all that at once.

use crate::error::MountError;
use crate::mountinfo::{self, MountEntry, is_ours};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tidepool_types::InstanceId;

/// Where the kernel's list of connections is by custom.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// A mount of a pool, as a mount namespace of this node shows it, and what ends its connection.
#[derive(Debug)]
pub struct Connection {
    entry: MountEntry,
    /// A process of the namespace, where it is not this one's.
    elsewhere: Option<u32>,
    /// Nothing where this user cannot end connections.
    end: Option<File>,
}

impl Connection {
    pub fn path(&self) -> &Path {
        &self.entry.path
    }

    /// Whether both are of one connection, and both are there.
    pub fn is_of_same(&self, other: &Connection) -> bool {
        self.entry.device == other.entry.device
    }

    /// Ends the connection: whoever uses the mount gets ENOTCONN from now on, in any mount namespace, and its process ends. It is of this
    /// mount, also when that has gone meanwhile and another has its number.
    ///
    /// # Errors
    /// [`MountError::Stays`] when this user cannot, and another mount namespace has the mount. Without such a copy the kernel ends the
    /// connection when the mount is taken away and its last file is closed.
    pub fn end(self) -> Result<(), MountError> {
        match (self.end, self.elsewhere) {
            (Some(mut end), _) => {
                // It may have ended by itself.
                let _ = end.write_all(b"1");
                Ok(())
            }
            (None, None) => Ok(()),
            (None, Some(pid)) => {
                Err(MountError::Stays { path: self.entry.path, pid, device: self.entry.device })
            }
        }
    }
}

/// What this user has mounted of a pool in this mount namespace, last mounted first, which is the order to unmount in. Somebody else's mount
/// may say that it is of any pool, and lie behind a link that he changes.
pub fn mounts_of(instance: InstanceId) -> Vec<Connection> {
    let mut found = seen_by(None, instance);
    found.reverse();
    found
}

/// The same in other mount namespaces: copies of mounts that are or were here, and mounts that were made there. Those that this user can see,
/// because processes run in them that he may look at.
pub fn copies_of(instance: InstanceId) -> Vec<Connection> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut known: HashSet<_> = view_of("self").into_iter().collect();
    let mut other = |pid: &u32| view_of(&pid.to_string()).is_some_and(|view| known.insert(view));
    pids.filter(|pid| other(pid)).flat_map(|pid| seen_by(Some(pid), instance)).collect()
}

/// The mount namespace of a process, and its root: only mounts below that are shown to it.
fn view_of(process: &str) -> Option<(PathBuf, PathBuf)> {
    let link = |name: &str| std::fs::read_link(format!("/proc/{process}/{name}")).ok();
    Some((link("ns/mnt")?, link("root")?))
}

fn seen_by(pid: Option<u32>, instance: InstanceId) -> Vec<Connection> {
    let mounts = mountinfo::of_pool(pid, instance);
    let connection = |entry: MountEntry| {
        let end = open_if(&entry, || mountinfo::of_pool(pid, instance).contains(&entry));
        Connection { entry, elsewhere: pid, end }
    };
    mounts.into_iter().map(connection).collect()
}

/// For a mount whose process is dead, or has been told to die: its connection is ended before it is taken away, where this user can do that,
/// because the process may be unable to end before.
pub fn end_and_unmount(path: &Path) -> Result<(), MountError> {
    let ours = || mountinfo::mount_at(path).filter(is_ours);
    if let Some(entry) = ours()
        && let Some(mut end) = open_if(&entry, || ours().as_ref() == Some(&entry))
    {
        // It may have ended by itself.
        let _ = end.write_all(b"1");
    }
    mountinfo::unmount(path)
}

/// What ends a mount's connection if the mount is there still when that is open: had it gone before, the number could be that of somebody
/// else's by then.
fn open_if(entry: &MountEntry, is_there: impl Fn() -> bool) -> Option<File> {
    open_connection(&entry.device).filter(|_| is_there())
}

/// What ends the connection of a mount's device `0:minor` when something is written to it. It is of this connection, also when its number is
/// used again.
pub(crate) fn open_connection(device: &str) -> Option<File> {
    let minor: u32 = device.strip_prefix("0:")?.parse().ok()?;
    let name = format!("{minor}/abort");
    let shown = File::options().write(true).open(Path::new(CONNECTIONS).join(&name));
    shown.or_else(|_| open_unshown(&name)).ok()
}

/// The same where the system does not show connections, for root: from a list that is nowhere in the name space.
fn open_unshown(name: &str) -> io::Result<File> {
    let list = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&list)?;
    let list = fsmount(&list, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    Ok(rustix::fs::openat(&list, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_connection_is_none() {
        for device in ["", "0", "0:", "0:x", "0:4294967295", "0:../../1", "8:1"] {
            assert!(open_connection(device).is_none(), "{device}");
        }
    }

    #[test]
    fn what_cannot_be_ended_is_told_where_it_goes_on() {
        let connection = |elsewhere| Connection {
            entry: MountEntry {
                device: "0:50".into(),
                path: "/pool".into(),
                fstype: "fuse.tidepool".into(),
                source: b"tidepool:00ff".to_vec(),
                user: Some(7),
            },
            elsewhere,
            end: None,
        };
        assert!(connection(None).end().is_ok());
        let told = connection(Some(4711)).end().unwrap_err().to_string();
        for part in ["/pool", "process 4711", "connections/50/abort"] {
            assert!(told.contains(part), "{told}");
        }
    }
}
