//! File systems: which the kernel knows, and what is free on those mounted.

use super::disks::disk_of;
use super::mounts;
use super::{Extractor, Found, Gaps, Source, told};
use crate::record::{Class, Missing};
use crate::system::System;
use serde::Serialize;
use std::collections::BTreeSet;

const KNOWN: &str = "/proc/filesystems";
/// Kinds that keep no data of users: nothing is ever free there.
const NO_STORAGE: &[&str] = &[
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "efivarfs",
    "fusectl",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "rpc_pipefs",
    "securityfs",
    "sysfs",
    "tracefs",
];
/// Kinds at other machines: one that is gone would hold up who asks for its space.
const REMOTE: &[&str] = &[
    "9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "orangefs",
    "smb3", "virtiofs", "wekafs",
];

#[derive(Serialize, Debug, PartialEq)]
struct Types {
    /// Kinds of file systems that the kernel can mount now.
    known: Vec<String>,
}

#[derive(Serialize, Debug, PartialEq)]
struct Space {
    filesystems: Vec<Filesystem>,
}

#[derive(Serialize, Debug, PartialEq)]
struct Filesystem {
    target: String,
    kind: String,
    source: String,
    device: String,
    /// The disk it is on, and this one's kind as `disks` tells it; `memory` for tmpfs.
    disk: Option<String>,
    disk_kind: Option<String>,
    read_only: bool,
    total_bytes: u64,
    /// For users; root may have more.
    available_bytes: u64,
    files: u64,
    files_free: u64,
}

pub const TYPES: Extractor = Extractor {
    name: "filesystem-types",
    about: "file systems the kernel can mount",
    class: Class::Static,
    version: 1,
    sources: &[Source { name: "proc", about: KNOWN, read: |system, _| told(types(system)) }],
};

pub const SPACE: Extractor = Extractor {
    name: "filesystems",
    about: "free space of this node's own mounted file systems",
    class: Class::Dynamic,
    version: 1,
    sources: &[Source {
        name: "statvfs",
        about: "mount points of /proc/self/mountinfo, asked one by one",
        read: |system, gaps| told(space(system, gaps)),
    }],
};

fn types(system: &System) -> Found<Types> {
    let text = system.text(KNOWN)?;
    let mut known: Vec<String> =
        text.lines().filter_map(|line| Some(line.split_whitespace().last()?.into())).collect();
    known.sort_unstable();
    Ok(Types { known })
}

fn space(system: &System, gaps: &mut Gaps) -> Found<Space> {
    if !system.is_here() {
        return Err(Missing::new("statvfs", "it only tells of the node it runs on"));
    }
    let mounts = mounts::by_proc(system, gaps)?.mounts;
    let (mut filesystems, mut seen) = (Vec::new(), BTreeSet::new());
    // Of several at one place the last is what programs see.
    for mount in mounts.into_iter().rev() {
        if !seen.insert(mount.target.clone()) || NO_STORAGE.contains(&mount.kind.as_str()) {
            continue;
        }
        if is_kept_elsewhere(&mount.kind) {
            let why = format!(
                "not asked: {} is another machine's or a program's, which may not answer",
                mount.kind
            );
            gaps.push(Missing::new(mount.target, why));
            continue;
        }
        match rustix::fs::statvfs(mount.target.as_str()) {
            Ok(stat) if stat.f_blocks > 0 => filesystems.push(filesystem(system, mount, &stat)),
            Ok(_) => {}
            Err(error) => gaps.push(Missing::new(mount.target, error)),
        }
    }
    filesystems.sort_by(|a, b| a.target.cmp(&b.target));
    Ok(Space { filesystems })
}

/// FUSE file systems are programs; those on a disk of this node have a kind of their own.
fn is_kept_elsewhere(kind: &str) -> bool {
    REMOTE.contains(&kind) || kind == "fuse" || kind.starts_with("fuse.")
}

fn filesystem(system: &System, mount: mounts::Mount, stat: &rustix::fs::StatVfs) -> Filesystem {
    let mounts::Mount { target, kind, source, device, read_only } = mount;
    let disk = disk_of(system, &device);
    let in_memory = matches!(kind.as_str(), "tmpfs" | "ramfs").then_some("memory");
    let disk_kind = disk.as_ref().map(|(_, kind)| *kind).or(in_memory).map(String::from);
    Filesystem {
        target,
        kind,
        source,
        device,
        disk: disk.map(|(name, _)| name),
        disk_kind,
        read_only,
        total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        available_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        files: stat.f_files,
        files_free: stat.f_favail,
    }
}
