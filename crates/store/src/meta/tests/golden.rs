//! The bytes of `docs/formats/02-metadata-log.md`, and what a reader says of wrong ones.

use super::*;
use crate::error::{StoreError, StoreErrorKind};
use tidepool_env::{DiskFile, OpenMode};
use tidepool_fs_state::MetaView;

const LOG0: &str = "meta-0000000000000000.log";
const LOG1: &str = "meta-0000000000000001.log";
const SNAP1: &str = "meta-0000000000000001.snap";

const LOG_HEADER: &[u8] = b"TPMETLOG\x03\0\0\0\x2f\x33\x95\xee";
const SNAP_HEADER: &[u8] = b"TPMETSNP\x03\0\0\0\xdd\x80\x62\xe9";
/// Of the version before.
const LOG_HEADER_2: &[u8] = b"TPMETLOG\x02\0\0\0\x97\x99\xd0\x33";

fn content(disk: &MemDisk, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    disk.open(name, OpenMode::Existing).unwrap().read_append(&mut bytes, 1 << 20, 0).unwrap();
    bytes
}

fn replace(disk: &MemDisk, name: &str, bytes: &[u8]) {
    let file = disk.open(name, OpenMode::Create).unwrap();
    file.set_len(0).unwrap();
    file.write_at(bytes, 0).unwrap();
}

fn refused(disk: &MemDisk) -> StoreError {
    MemLogStore::open(disk.clone()).err().expect("must be refused")
}

fn batch() -> [Mutation; 2] {
    [Mutation::NextCount(0x0102), Mutation::DelDentry { parent: Ino(1), name: b"ab".as_slice().into() }]
}

#[test]
fn logs_and_snapshots_have_the_specified_bytes() {
    let disk = MemDisk::new();
    let mut store = open_memlog(&disk);
    assert_eq!(content(&disk, LOG0), LOG_HEADER);
    store.commit(&batch()).unwrap();
    let payload: &[u8] = b"\x02\0\0\0\x09\x02\x01\0\0\0\0\0\0\x04\x01\0\0\0\0\0\0\0\x02\0\0\0ab";
    let record = [b"\x1c\0\0\0\xf4\xe7\xfe\xf9", payload].concat();
    assert_eq!(content(&disk, LOG0), [LOG_HEADER, &record].concat());

    store.compact().unwrap();
    assert_eq!(content(&disk, LOG1), LOG_HEADER);
    let numbers = b"\x0d\0\0\0\x46\xf5\xa4\xa2\x01\0\0\0\x09\x02\x01\0\0\0\0\0\0";
    let end = b"\x04\0\0\0\xec\xe8\x29\x7b\0\0\0\0";
    assert_eq!(content(&disk, SNAP1), [SNAP_HEADER, numbers, end].concat());
    assert_eq!(disk.list(".").unwrap().len(), 2);
}

#[test]
fn specified_bytes_are_read() {
    let disk = MemDisk::new();
    let record: &[u8] = b"\x0d\0\0\0\x46\xf5\xa4\xa2\x01\0\0\0\x09\x02\x01\0\0\0\0\0\0";
    replace(&disk, LOG0, &[LOG_HEADER, record].concat());
    assert_eq!(open_memlog(&disk).next_count(), 0x0102);
}

#[test]
fn a_sync_leaves_one_mark() {
    let disk = MemDisk::new();
    let mut store = open_memlog(&disk);
    store.commit(&[Mutation::NextCount(0x0102)]).unwrap();
    store.sync().unwrap();
    store.sync().unwrap();
    let record = b"\x0d\0\0\0\x46\xf5\xa4\xa2\x01\0\0\0\x09\x02\x01\0\0\0\0\0\0";
    let mark = b"\x0c\0\0\0\xa2\xae\x29\xf8\0\0\0\0\x25\0\0\0\0\0\0\0";
    assert_eq!(content(&disk, LOG0), [LOG_HEADER, record, mark].concat());
    drop(store);
    let mut store = open_memlog(&disk);
    assert_eq!(store.next_count(), 0x0102);
    store.sync().unwrap();
    assert_eq!(content(&disk, LOG0).len(), 16 + record.len() + mark.len(), "it is known to be synced");
}

/// A log of the version before has no marks: it gets none, so that a reader of that version could go on, and what follows a bad
/// record is damage.
#[test]
fn logs_of_the_version_before_are_read_and_continued() {
    let disk = MemDisk::new();
    let record: &[u8] = b"\x0d\0\0\0\x46\xf5\xa4\xa2\x01\0\0\0\x09\x02\x01\0\0\0\0\0\0";
    replace(&disk, LOG0, &[LOG_HEADER_2, record].concat());
    let mut store = open_memlog(&disk);
    assert_eq!(store.next_count(), 0x0102);
    let mut large = inode(2, 0);
    large.target = vec![b'x'; 5000].into();
    store.commit(&[Mutation::PutInode(large)]).unwrap();
    store.sync().unwrap();
    let len = content(&disk, LOG0).len();
    store.commit(&[Mutation::NextCount(9)]).unwrap();
    assert_eq!(content(&disk, LOG0).len(), len + record.len(), "no mark");
    drop(store);
    let mut holed = content(&disk, LOG0);
    holed[1000..4096].fill(0);
    replace(&disk, LOG0, &holed);
    assert_eq!(refused(&disk).kind, StoreErrorKind::Corrupt);
    holed[1000..4096].fill(b'x');
    replace(&disk, LOG0, &holed);
    let mut store = open_memlog(&disk);
    store.compact().unwrap();
    assert_eq!(content(&disk, LOG1), LOG_HEADER);
    drop(store);
    assert_eq!((open_memlog(&disk).next_count(), open_memlog(&disk).inode_count()), (9, 1));
}

#[test]
fn other_versions_and_files_are_refused() {
    let disk = MemDisk::new();
    drop(open_memlog(&disk));
    let mut newer = content(&disk, LOG0);
    newer[8] = 4;
    replace(&disk, LOG0, &newer);
    let error = refused(&disk);
    assert_eq!(error.kind, StoreErrorKind::Version);
    assert!(error.to_string().contains("format version is 4"), "{error}");
    assert!(error.to_string().contains(LOG0), "{error}");

    replace(&disk, LOG0, b"some other file of some other program");
    assert_eq!(refused(&disk).kind, StoreErrorKind::Corrupt);
}

#[test]
fn every_torn_tail_is_cut() {
    let disk = MemDisk::new();
    let mut store = open_memlog(&disk);
    store.commit(&[Mutation::NextCount(7)]).unwrap();
    let good = content(&disk, LOG0).len();
    store.commit(&batch()).unwrap();
    drop(store);
    let bytes = content(&disk, LOG0);
    for len in good..bytes.len() {
        for filler in [&[][..], &[0; 100], &[0xff; 9]] {
            replace(&disk, LOG0, &[&bytes[..len], filler].concat());
            let mut store = open_memlog(&disk);
            assert_eq!(store.next_count(), 7, "cut at {len}");
            store.commit(&[Mutation::NextCount(8)]).unwrap();
            drop(store);
            assert_eq!(open_memlog(&disk).next_count(), 8);
        }
    }
}

#[test]
fn a_half_made_first_log_is_made_again() {
    for start in [&LOG_HEADER[..0], &LOG_HEADER[..5], &[0; 15]] {
        let disk = MemDisk::new();
        replace(&disk, LOG0, start);
        assert_eq!(open_memlog(&disk).next_count(), 1);
        assert_eq!(content(&disk, LOG0), LOG_HEADER);
    }
}

/// Proves that no damage before the last record of a log, and none in a snapshot, passes for
/// a shorter history.
#[test]
fn damage_in_the_middle_is_an_error_that_says_where() {
    let disk = MemDisk::new();
    let mut store = open_memlog(&disk);
    store.commit(&batch()).unwrap();
    store.compact().unwrap();
    let snap = content(&disk, SNAP1);
    store.commit(&batch()).unwrap();
    let first_len = content(&disk, LOG1).len();
    store.commit(&batch()).unwrap();
    drop(store);
    let log = content(&disk, LOG1);
    for at in 16..first_len {
        let mut bad = log.clone();
        bad[at] ^= 0x10;
        replace(&disk, LOG1, &bad);
        let error = refused(&disk);
        assert_eq!((error.kind, error.offset), (StoreErrorKind::Corrupt, Some(16)), "byte {at}");
        assert_eq!(error.path.as_deref(), Some(LOG1));
    }
    replace(&disk, LOG1, &log);
    for at in 0..snap.len() {
        let mut bad = snap.clone();
        bad[at] ^= 0x10;
        replace(&disk, SNAP1, &bad);
        assert_eq!(refused(&disk).path.as_deref(), Some(SNAP1), "byte {at}");
        replace(&disk, SNAP1, &snap[..at]);
        assert_eq!(refused(&disk).kind, StoreErrorKind::Corrupt, "cut at {at}");
    }
    replace(&disk, SNAP1, &snap);
    assert_eq!(open_memlog(&disk).next_count(), 0x0102);
}

#[test]
fn a_missing_file_is_an_error() {
    let disk = MemDisk::new();
    let mut store = open_memlog(&disk);
    store.commit(&batch()).unwrap();
    store.compact().unwrap();
    drop(store);
    let copy = disk.deep_copy();
    copy.remove(LOG1).unwrap();
    assert_eq!(refused(&copy).path.as_deref(), Some(LOG1));
    disk.remove(SNAP1).unwrap();
    assert_eq!(refused(&disk).path.as_deref(), Some(SNAP1));
}

/// A user's attribute may hold the bytes of a record. A torn tail that contains it is still
/// a torn tail, since a record is only valid at its own place.
#[test]
fn a_record_inside_a_record_is_not_believed() {
    let disk = MemDisk::new();
    let mut store = open_memlog(&disk);
    store.commit(&[Mutation::NextCount(7)]).unwrap();
    let inner = content(&disk, LOG0)[16..].to_vec();
    let good = content(&disk, LOG0).len();
    let mut trap = inode(2, 0);
    trap.xattrs = vec![(b"user.trap".as_slice().into(), [inner, vec![0; 50]].concat().into())];
    store.commit(&[Mutation::PutInode(trap)]).unwrap();
    drop(store);
    let bytes = content(&disk, LOG0);
    replace(&disk, LOG0, &bytes[..bytes.len() - 1]);
    let store = open_memlog(&disk);
    assert_eq!((store.next_count(), store.inode_count()), (7, 0));
    assert_eq!(content(&disk, LOG0).len(), good);
}

#[test]
fn compaction_waits_until_it_pays() {
    let disk = MemDisk::new();
    let mut store = MemLogStore::open(disk.clone()).unwrap();
    store.set_compact_log_min(2000);
    let mut sizes = Vec::new();
    for round in 0..200 {
        store.commit(&[Mutation::PutInode(inode(2 + round % 40, round))]).unwrap();
        let before = store.disk_len();
        store.compact().unwrap();
        if store.disk_len() < before {
            sizes.push(before);
        }
    }
    assert!((2..20).contains(&sizes.len()), "{sizes:?}");
    assert!(sizes.iter().all(|size| *size > 2000));
    assert_eq!(open_memlog(&disk).inode_count(), 40);
}

#[test]
fn a_batch_that_is_too_large_is_refused_whole() {
    let disk = MemDisk::new();
    let mut store = open_memlog(&disk);
    let mut huge = inode(2, 0);
    huge.target = vec![b'x'; 64 << 20].into();
    let error = store.commit(&[Mutation::NextCount(9), Mutation::PutInode(huge)]).unwrap_err();
    assert_eq!(crate::errno_of(&error), tidepool_types::Errno::EINVAL);
    assert_eq!((store.next_count(), store.inode_count()), (1, 0));
    store.commit(&[Mutation::NextCount(3)]).unwrap();
}

#[test]
fn lmdb_refuses_other_versions_and_fills_up_cleanly() {
    let dir = tempfile::tempdir().unwrap();
    let options = LmdbOptions { map_bytes: 1 << 17, power_safe: true };
    let mut store = LmdbStore::open(dir.path(), options).unwrap();
    let mut count = 0;
    let error = loop {
        match store.commit(&[Mutation::PutInode(inode(2 + count, 0)), Mutation::NextCount(count)]) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!((store.inode_count(), store.next_count()), (count, count - 1));
    store.sync().unwrap();
    assert!(LmdbStore::open(&dir.path().join("missing"), options).is_err());
}
