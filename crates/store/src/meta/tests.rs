//! One behaviour suite for all back ends, a slow oracle, and what only one back end promises.

mod crash;
mod damage;
mod golden;
mod oracle;
mod room;
mod suite;

use crate::meta::{LmdbOptions, LmdbStore, MemLogStore};
use std::path::Path;
use tidepool_env::{Disk, MemDisk};
use tidepool_fs_state::MetaStore;
use tidepool_types::{Attr, FileKind, Ino, TimeSpec, TxnId};
use tidepool_wire::record::{Dentry, DirPart, Hold, Inode, Mutation, Outcome};

pub(super) fn time(sec: i64) -> TimeSpec {
    TimeSpec { sec, nsec: 5 }
}

pub(super) fn inode(ino: u64, size: u64) -> Inode {
    let attr = Attr {
        ino: Ino(ino),
        mode: FileKind::Regular.mode_bits() | 0o644,
        nlink: 1,
        uid: 1000,
        gid: 100,
        size,
        blocks: 0,
        rdev: 0,
        atime: time(1),
        mtime: time(2),
        ctime: time(3),
        layout: Some(tidepool_types::Layout::default()),
    };
    let xattrs = vec![(b"user.a".as_slice().into(), b"b".as_slice().into())];
    Inode { attr, parent: Ino::ROOT, target: Box::default(), xattrs }
}

pub(super) fn dentry(ino: u64) -> Dentry {
    let hold = Hold { txn: TxnId([ino as u8; 16]), decider: 3, since: time(9) };
    Dentry { ino: Ino(ino), kind: FileKind::Regular, hold: ino.is_multiple_of(2).then_some(hold) }
}

pub(super) fn put_dentry(parent: u64, name: &[u8], ino: u64) -> Mutation {
    Mutation::PutDentry { parent: Ino(parent), name: name.into(), dentry: dentry(ino) }
}

pub(super) fn put_part(dir: u64, entries: u64) -> Mutation {
    let part = DirPart { entries, subdirs: 1, changed: Some(time(4)), hold: None };
    Mutation::PutDirPart { dir: Ino(dir), part }
}

pub(super) fn put_outcome(txn: u8, committed: bool) -> Mutation {
    Mutation::PutOutcome { txn: TxnId([txn; 16]), outcome: Outcome { committed, at: time(7), moved: None } }
}

pub(super) fn open_memlog<D: Disk>(disk: &D) -> MemLogStore<D> {
    let mut store = MemLogStore::open(disk.clone()).unwrap();
    // Every compaction asked for is done.
    store.set_compact_log_min(0);
    store
}

pub(super) fn open_lmdb(dir: &Path) -> LmdbStore {
    LmdbStore::open(dir, LmdbOptions { map_bytes: 1 << 28, ..LmdbOptions::default() }).unwrap()
}

/// Opens a store again and again over the same files.
pub(super) type Opener = Box<dyn Fn() -> Box<dyn MetaStore>>;

pub(super) fn memlog_opener() -> Opener {
    let disk = MemDisk::new();
    Box::new(move || Box::new(open_memlog(&disk)))
}

pub(super) fn lmdb_opener() -> Opener {
    let dir = tempfile::tempdir().unwrap();
    Box::new(move || Box::new(open_lmdb(dir.path())))
}
