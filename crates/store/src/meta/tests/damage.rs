//! Stores with damage in them: what they say, what they do not do, and what a repair makes of them.

use super::*;
use crate::{Salvage, StoreErrorKind, errno_of};
use tidepool_env::{DiskFile, OpenMode};
use tidepool_fs_state::MetaView;
use tidepool_types::Errno;

const LOG0: &str = "meta-0000000000000000.log";

fn file_of(store: &mut dyn MetaStore, number: u64) {
    store
        .commit(&[
            Mutation::NextCount(number + 1),
            Mutation::PutInode(inode(number, number * 10)),
            put_dentry(1, format!("file{number}").as_bytes(), number),
        ])
        .unwrap();
}

/// Changes a record within a closed environment, as a disk does that gives back something else than was written.
fn damage(dir: &Path, needle: &[u8], offset: usize) {
    let path = dir.join("data.mdb");
    let mut bytes = std::fs::read(&path).unwrap();
    let places: Vec<usize> =
        (0..bytes.len() - needle.len()).filter(|at| bytes[*at..].starts_with(needle)).collect();
    assert!(!places.is_empty(), "the record is there");
    for at in places {
        bytes[at + offset] ^= 0x10;
    }
    std::fs::write(&path, bytes).unwrap();
}

fn lmdb_with_files(dir: &Path, count: u64) {
    let mut store = open_lmdb(dir);
    (2..2 + count).for_each(|number| file_of(&mut store, number));
    store.sync().unwrap();
}

/// A flipped bit within a record is noticed, whichever it is, and costs that record only.
#[test]
fn one_bad_record_of_lmdb_costs_what_needs_it() {
    let dir = tempfile::tempdir().unwrap();
    lmdb_with_files(dir.path(), 20);
    // In the size of file 7, whose key stands in front: a value that could as well be right.
    damage(dir.path(), b"\0\0\0\0\0\0\0\x07\x07\0\0\0\0\0\0\0", 8 + 8 + 4 + 4 + 4 + 4);
    let mut store = open_lmdb(dir.path());
    assert_eq!(store.inode(Ino(7)), None);
    // Nothing is committed that may rest on that.
    let refused = store.commit(&[Mutation::DelInode(Ino(8))]).unwrap_err();
    assert_eq!(errno_of(&refused), Errno::EIO);
    let failure = store.take_failure().expect("it is said").to_string();
    assert!(failure.contains("inodes") && failure.contains("checksum"), "{failure}");
    assert!(store.take_failure().is_none());
    // All others are there, and can be changed.
    assert_eq!(store.inode(Ino(8)), Some(inode(8, 80)));
    store.commit(&[Mutation::DelInode(Ino(8))]).unwrap();
    assert_eq!(store.list(Ino(1), None, 100).len(), 20);
    assert!(store.take_failure().is_none());
    let all = store.inodes_after(None, 100);
    assert_eq!(all.len(), 18, "of 20 one is bad and one was removed");
    assert!(store.take_failure().is_some());
}

#[test]
fn a_bad_entry_of_lmdb_fails_listings_of_its_directory_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    lmdb_with_files(dir.path(), 5);
    open_lmdb(dir.path()).commit(&[put_dentry(9, b"other", 3)]).unwrap();
    damage(dir.path(), b"file4\x04\0\0\0", 5);
    let store = open_lmdb(dir.path());
    assert_eq!(store.list(Ino(1), None, 10).len(), 4);
    assert!(store.take_failure().is_some());
    assert_eq!(store.list(Ino(9), None, 10).len(), 1);
    assert_eq!(store.dentry(Ino(1), b"file5").map(|found| found.ino), Some(Ino(5)));
    assert!(store.take_failure().is_none());
}

/// Records of the version before have no sums, and stay as they are.
#[test]
fn stores_of_lmdb_of_the_version_before_are_read_and_continued() {
    let dir = tempfile::tempdir().unwrap();
    crate::meta::lmdb::make_unsummed(dir.path());
    let mut store = open_lmdb(dir.path());
    file_of(&mut store, 2);
    drop(store);
    let store = open_lmdb(dir.path());
    assert_eq!((store.inode(Ino(2)), store.next_count()), (Some(inode(2, 20)), 3));
    assert!(store.take_failure().is_none());
    drop(store);
    let mut salvage = Salvage::of_lmdb(dir.path()).unwrap();
    assert_eq!((salvage.damage.len(), salvage.objects()), (0, 1));
    salvage.write_lmdb(dir.path()).unwrap();
    assert_eq!(open_lmdb(dir.path()).inode(Ino(2)), Some(inode(2, 20)));
}

#[test]
fn a_repair_of_lmdb_leaves_out_what_is_bad_and_keeps_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    lmdb_with_files(dir.path(), 50);
    damage(dir.path(), b"file4\x04\0\0\0", 5);
    let before = std::fs::read(dir.path().join("data.mdb")).unwrap();
    let mut salvage = Salvage::of_lmdb(dir.path()).unwrap();
    assert_eq!(std::fs::read(dir.path().join("data.mdb")).unwrap(), before, "looking changes nothing");
    assert_eq!((salvage.damage.len(), salvage.objects()), (1, 50));
    assert!(salvage.damage[0].why.contains("dentries"), "{:?}", salvage.damage);
    let kept = salvage.write_lmdb(dir.path()).unwrap();
    assert_eq!(std::fs::read(dir.path().join(&kept[0])).unwrap(), before);
    let mut store = open_lmdb(dir.path());
    assert_eq!(store.list(Ino(1), None, 100).len(), 49);
    assert!(store.take_failure().is_none());
    assert!(store.next_count() > 1 << 40, "numbers that were lost are not given out again");
    file_of(&mut store, 77);
    drop(store);
    // Once more, with nothing to do.
    let mut salvage = Salvage::of_lmdb(dir.path()).unwrap();
    assert!(salvage.damage.is_empty());
    assert_ne!(salvage.write_lmdb(dir.path()).unwrap(), kept, "what was kept first stays");
}

fn log_with_files(count: u64) -> (MemDisk, Vec<u64>) {
    let disk = MemDisk::new();
    let mut store = open_memlog(&disk);
    let mut begins = Vec::new();
    for number in 2..2 + count {
        begins.push(store.disk_len());
        file_of(&mut store, number);
    }
    store.sync().unwrap();
    (disk, begins)
}

fn change(disk: &MemDisk, name: &str, at: u64, bytes: &[u8]) {
    disk.open(name, OpenMode::Existing).unwrap().write_at(bytes, at).unwrap();
}

#[test]
fn a_repair_of_a_log_leaves_out_what_is_bad_and_keeps_the_old_file() {
    let (disk, begins) = log_with_files(30);
    change(&disk, LOG0, begins[5] + 20, b"\xff\xff");
    change(&disk, LOG0, begins[9], &[0; 600]);
    let length = disk.open(LOG0, OpenMode::Existing).unwrap().len().unwrap();
    assert_eq!(MemLogStore::open(disk.clone()).err().map(|e| e.kind), Some(StoreErrorKind::Corrupt));
    let mut salvage = Salvage::of_log(&disk).unwrap();
    let at: Vec<_> = salvage.damage.iter().map(|damage| damage.at.unwrap()).collect();
    assert_eq!(at, [begins[5], begins[9]]);
    let bytes = salvage.damage[0].bytes.unwrap();
    assert_eq!(bytes, begins[6] - begins[5]);
    let lost = 1 + begins[9..].iter().filter(|at| **at < begins[9] + 600).count() as u64;
    assert_eq!(salvage.objects(), 30 - lost);
    assert_eq!(
        MemLogStore::open(disk.clone()).err().map(|e| e.kind),
        Some(StoreErrorKind::Corrupt),
        "unchanged"
    );
    let kept = salvage.write_log(&disk).unwrap();
    assert_eq!(disk.open(&kept[0], OpenMode::Existing).unwrap().len().unwrap(), length);
    let store = open_memlog(&disk);
    assert_eq!(store.inode_count(), 30 - lost);
    assert!(store.next_count() > 1 << 40);
    assert!(store.inode(Ino(31)).is_some() && store.inode(Ino(7)).is_none());
    drop(store);
    assert!(disk.open(&kept[0], OpenMode::Existing).is_ok(), "a start does not remove it");
    assert!(Salvage::of_log(&disk).unwrap().damage.is_empty());
}

#[test]
fn a_snapshot_or_a_file_that_is_missing_can_be_repaired_too() {
    let (disk, _) = log_with_files(300);
    let mut store = open_memlog(&disk);
    store.compact().unwrap();
    (400..405).for_each(|number| file_of(&mut store, number));
    drop(store);
    let (snap, log) = ("meta-0000000000000001.snap", "meta-0000000000000001.log");
    let cut = disk.deep_copy();
    cut.open(snap, OpenMode::Existing).unwrap().set_len(9000).unwrap();
    let mut salvage = Salvage::of_log(&cut).unwrap();
    assert_eq!((salvage.damage.len(), salvage.objects()), (1, 5), "{:?}", salvage.damage);
    salvage.write_log(&cut).unwrap();
    assert_eq!(open_memlog(&cut).inode_count(), 5);
    for (gone, left) in [(snap, 5), (log, 300)] {
        let copy = disk.deep_copy();
        copy.remove(gone).unwrap();
        let mut salvage = Salvage::of_log(&copy).unwrap();
        assert_eq!(salvage.damage.len(), 1);
        assert_eq!((&*salvage.damage[0].file, salvage.objects()), (gone, left));
        salvage.write_log(&copy).unwrap();
        assert_eq!(open_memlog(&copy).inode_count(), left);
    }
}

/// A store of another version is not taken for a damaged one.
#[test]
fn other_versions_are_not_repaired() {
    let (disk, _) = log_with_files(3);
    change(&disk, LOG0, 8, &[9]);
    assert_eq!(Salvage::of_log(&disk).unwrap_err().kind, StoreErrorKind::Version);
}
