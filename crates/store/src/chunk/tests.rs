//! What a chunk store must do while the disk works, and what it must notice when bytes changed.

use super::small::SMALL_MAX;
use super::*;
use proptest::prelude::*;
use std::sync::Arc;
use tidepool_env::{DiskFile, ForgetfulDisk, MemDisk, OpenMode, RealDisk};
use tidepool_types::{BLOCK_SIZE, Errno, FILE_SIZE_MAX};

pub(super) const BLOCK: usize = BLOCK_SIZE as usize;
pub(super) const INO: Ino = Ino(0x0003_0000_0000_0142);
const DATA: &str = "data/42/0003000000000142";
const SUMS: &str = "data/42/0003000000000142.sum";

pub(super) fn read_all<D: Disk>(store: &ChunkStore<D>, ino: Ino) -> Result<Vec<u8>, StoreError> {
    let mut out = Vec::new();
    store.read(ino, 0, 1 << 26, &mut out).map(|()| out)
}

/// Bytes that differ everywhere.
pub(super) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ (at / 251) as u8 ^ seed | 1).collect()
}

fn flip<D: Disk>(disk: &D, path: &str, at: u64, mask: u8) {
    let file = disk.open(path, OpenMode::Existing).unwrap();
    let mut byte = [0];
    assert_eq!(file.read_at(&mut byte, at).unwrap(), 1);
    file.write_at(&[byte[0] ^ mask], at).unwrap();
}

fn file_len<D: Disk>(disk: &D, path: &str) -> u64 {
    disk.open(path, OpenMode::Existing).unwrap().len().unwrap()
}

fn content<D: Disk>(disk: &D, path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    disk.open(path, OpenMode::Existing).unwrap().read_append(&mut bytes, 1 << 20, 0).unwrap();
    bytes
}

fn store_works<D: Disk>(disk: D) {
    let store = ChunkStore::open(disk.clone()).unwrap();
    assert_eq!(read_all(&store, INO).unwrap(), b"");
    assert_eq!(store.write(INO, 0, b"").unwrap(), 0);
    assert_eq!(store.objects(None, 10).unwrap(), []);
    let data = pattern(3 * BLOCK, 7);
    assert_eq!(store.write(INO, 0, &data).unwrap(), 3);
    assert_eq!(store.write(INO, 10, b"inside").unwrap(), 0);
    assert_eq!(store.write(INO, 10 * BLOCK as u64 + 5, b"far").unwrap(), 1);
    let mut expected = data;
    expected[10..16].copy_from_slice(b"inside");
    expected.resize(10 * BLOCK + 5, 0);
    expected.extend_from_slice(b"far");
    assert_eq!(read_all(&store, INO).unwrap(), expected);

    let mut out = b"kept".to_vec();
    store.read(INO, BLOCK as u64 - 3, 2 * BLOCK, &mut out).unwrap();
    assert_eq!(out, [b"kept", &expected[BLOCK - 3..3 * BLOCK - 3]].concat());
    store.read(INO, expected.len() as u64, 5, &mut out).unwrap();
    assert_eq!(out.len(), 4 + 2 * BLOCK);

    let block = u64::from(BLOCK_SIZE);
    assert_eq!(store.extents(INO, 0, 9).unwrap(), [(0, 3 * block), (10 * block, block)]);
    assert_eq!(store.extents(INO, 2 * block + 9, 9).unwrap(), [(2 * block, block), (10 * block, block)]);
    assert_eq!(store.extents(INO, 0, 1).unwrap(), [(0, 3 * block)]);
    assert_eq!(store.extents(INO, 11 * block, 9).unwrap(), []);
    assert_eq!(store.blocks(INO).unwrap(), 4);
    assert_eq!(store.scrub(INO).unwrap(), []);
    store.sync(INO).unwrap();
    store.sync_all().unwrap();
    drop(store);

    let store = ChunkStore::open(disk).unwrap();
    assert_eq!(store.usage().unwrap().blocks, 4);
    assert_eq!(read_all(&store, INO).unwrap(), expected);
    assert_eq!(store.trim(INO, block + 100).unwrap(), -2);
    assert_eq!(read_all(&store, INO).unwrap(), expected[..BLOCK + 100]);
    assert_eq!(store.trim(INO, 1 << 40).unwrap(), 0);
    assert_eq!(store.write(INO, 3 * block, b"x").unwrap(), 1);
    let mut out = Vec::new();
    store.read(INO, block, 2 * BLOCK, &mut out).unwrap();
    assert_eq!(out[..100], expected[BLOCK..BLOCK + 100]);
    assert!(out[100..].iter().all(|byte| *byte == 0), "what was cut off must not come back");
    assert_eq!(store.drop_object(INO).unwrap(), 3);
    assert_eq!(store.drop_object(INO).unwrap(), 0);
    assert_eq!(store.usage().unwrap().blocks, 0);
    assert_eq!(read_all(&store, INO).unwrap(), b"");
    store.sync_all().unwrap();
}

#[test]
fn works_in_memory() {
    store_works(MemDisk::new());
}

#[test]
fn works_on_a_real_disk() {
    let dir = tempfile::tempdir().unwrap();
    store_works(RealDisk::new(dir.path()).unwrap());
}

/// The room of punched blocks comes back, on a file system that can, and huge ranges cost nothing.
#[test]
fn punching_gives_room_back() {
    let dir = tempfile::tempdir().unwrap();
    let disk = RealDisk::new(dir.path()).unwrap();
    let store = ChunkStore::open(disk.clone()).unwrap();
    let block = u64::from(BLOCK_SIZE);
    store.write(INO, 0, &pattern(64 * BLOCK, 1)).unwrap();
    store.write(INO, 1 << 40, b"far").unwrap();
    assert_eq!(store.punch(INO, block + 5, 1 << 50).unwrap(), -63);
    let file = disk.open(DATA, OpenMode::Existing).unwrap();
    assert_eq!(file.next_data(2 * block).unwrap(), None);
    assert_eq!(file.len().unwrap(), (1 << 40) + 3);
    let mut out = Vec::new();
    store.read(INO, block, BLOCK, &mut out).unwrap();
    assert_eq!(out[..5], pattern(64 * BLOCK, 1)[BLOCK..BLOCK + 5]);
    assert!(out[5..].iter().all(|byte| *byte == 0));
    assert_eq!(store.scrub(INO).unwrap(), []);
    assert_eq!(store.punch(INO, FILE_SIZE_MAX, 1).unwrap_err().errno(), Errno::EFBIG);
    assert_eq!(store.punch(Ino(77), 0, 5).unwrap(), 0, "an object that is not here");
}

#[test]
fn files_have_the_specified_bytes() {
    let disk = MemDisk::new();
    let store = ChunkStore::open(disk.clone()).unwrap();
    store.write(INO, BLOCK as u64, b"123456789").unwrap();
    assert_eq!(file_len(&disk, DATA), BLOCK as u64 + 9);
    let mut expected = b"TPCHKSUM\x01\0\0\0\x00\x10\0\0".to_vec();
    expected.extend_from_slice(&[0; 8]);
    // CRC32C of "123456789" and 4087 zeros.
    expected.extend_from_slice(b"\x0b\xe6\x71\xe3\x0b\xe6\x71\xe3");
    assert_eq!(content(&disk, SUMS), expected);
}

#[test]
fn files_of_other_versions_are_refused() {
    let disk = MemDisk::new();
    let store = ChunkStore::with_slots(disk.clone(), 0).unwrap();
    store.write(INO, 0, b"x").unwrap();
    drop(store);
    flip(&disk, SUMS, 8, 3);
    let error = ChunkStore::open(disk).err().expect("refused");
    assert_eq!(error.kind, StoreErrorKind::Version);
    assert!(error.to_string().contains("format version 2"), "{error}");
}

#[test]
fn a_damaged_object_can_be_dropped() {
    let disk = MemDisk::new();
    ChunkStore::with_slots(disk.clone(), 0).unwrap().write(INO, 0, b"x").unwrap();
    disk.remove(SUMS).unwrap();
    let store = ChunkStore::open(disk.clone()).unwrap();
    assert_eq!(read_all(&store, INO).unwrap_err().kind, StoreErrorKind::Corrupt);
    assert!(store.write(INO, 0, b"y").is_err());
    store.drop_object(INO).unwrap();
    assert_eq!(disk.list("data/42").unwrap(), []);
    assert_eq!(store.write(INO, 0, b"y").unwrap(), 1);
}

#[test]
fn objects_are_paged_once_each() {
    let disk = MemDisk::new();
    let store = ChunkStore::with_slots(disk.clone(), 300).unwrap();
    let inos: Vec<Ino> = (1..700).map(|n| Ino(n * 37)).collect();
    for ino in &inos {
        store.write(*ino, 0, b"x").unwrap();
    }
    disk.open("data/07/foreign.txt", OpenMode::Create).unwrap();
    let mut seen = Vec::new();
    loop {
        let page = store.objects(seen.last().copied(), 13).unwrap();
        if page.is_empty() {
            break;
        }
        seen.extend(page);
    }
    assert_eq!(store.lists.load(std::sync::atomic::Ordering::Relaxed), 256, "each directory once");
    seen.sort_unstable();
    assert_eq!(seen, inos);
    assert!(store.handles.open_count() <= HANDLES_MAX);
    for ino in inos {
        assert_eq!(read_all(&store, ino).unwrap(), b"x");
    }
}

#[test]
fn ranges_beyond_the_largest_file_are_refused() {
    let store = ChunkStore::open(MemDisk::new()).unwrap();
    for offset in [FILE_SIZE_MAX, u64::MAX] {
        assert_eq!(store.write(INO, offset, b"x").unwrap_err().errno(), Errno::EFBIG);
    }
    let mut out = Vec::new();
    store.read(INO, u64::MAX, usize::MAX, &mut out).unwrap();
    store.write(INO, FILE_SIZE_MAX - 1, b"x").unwrap();
    store.read(INO, FILE_SIZE_MAX - 2, usize::MAX, &mut out).unwrap();
    assert_eq!(out, b"\0x");
    assert_eq!(store.extents(INO, 0, 9).unwrap().len(), 1);
    assert_eq!(store.scrub(INO).unwrap(), []);
    assert_eq!(store.trim(INO, 0).unwrap(), -1);
}

/// Proves that no byte can change unnoticed: each one of both files is changed in turn (one
/// bit, all bits), and then reading gives either `EIO` or the right bytes, writing into a
/// damaged block never makes it look right, and a scrub finds what reading finds.
#[test]
fn every_flipped_byte_is_detected_or_harmless() {
    let disk = MemDisk::new();
    let store = ChunkStore::open(disk.clone()).unwrap();
    store.write(INO, 0, &pattern(BLOCK, 1)).unwrap();
    // A block that a flip can turn into zeros, a hole, and an incomplete block.
    store.write(INO, BLOCK as u64, &[1]).unwrap();
    store.write(INO, 3 * BLOCK as u64, &pattern(700, 3)).unwrap();
    let expected = read_all(&store, INO).unwrap();
    drop(store);
    for path in [DATA, SUMS] {
        for at in 0..file_len(&disk, path) {
            // The middle of a block of one kind is like the rest of it.
            if path == DATA && at % 7 != 0 && at % BLOCK as u64 > 2 {
                continue;
            }
            for mask in [1, 0xff] {
                check_flipped(&disk.deep_copy(), path, at, mask, &expected);
            }
        }
    }
}

fn check_flipped(disk: &MemDisk, path: &str, at: u64, mask: u8, expected: &[u8]) {
    flip(disk, path, at, mask);
    let Ok(store) = ChunkStore::open(disk.clone()) else { return };
    let outcome = read_all(&store, INO);
    let scrubbed = store.scrub(INO);
    match &outcome {
        Ok(read) => assert_eq!(read, expected, "{path} byte {at}"),
        Err(error) => assert_eq!(error.errno(), Errno::EIO),
    }
    assert_eq!(outcome.is_ok(), scrubbed.as_ref().is_ok_and(Vec::is_empty), "{path} byte {at}");
    if path == DATA {
        assert_eq!(scrubbed.unwrap()[0].offset, at / BLOCK as u64 * BLOCK as u64);
        let inside = (at / BLOCK as u64 * BLOCK as u64) + 600;
        assert_eq!(store.write(INO, inside, b"z").unwrap_err().errno(), Errno::EIO);
        assert!(read_all(&store, INO).is_err());
        store.write(INO, at / BLOCK as u64 * BLOCK as u64, &[9; BLOCK]).unwrap();
        assert_eq!(store.scrub(INO).unwrap(), [], "overwriting all of a block heals it");
    }
}

#[test]
fn data_that_lost_its_end_is_noticed() {
    let disk = MemDisk::new();
    let store = ChunkStore::open(disk.clone()).unwrap();
    store.write(INO, 0, &pattern(4 * BLOCK, 1)).unwrap();
    drop(store);
    for len in [0, 100, BLOCK as u64, 3 * BLOCK as u64 + 1] {
        let disk = disk.deep_copy();
        disk.open(DATA, OpenMode::Existing).unwrap().set_len(len).unwrap();
        let store = ChunkStore::open(disk).unwrap();
        assert_eq!(read_all(&store, INO).unwrap_err().kind, StoreErrorKind::Corrupt, "{len}");
        assert!(!store.scrub(INO).unwrap().is_empty());
    }
}

/// Proves that writers of disjoint ranges, also within one block, never lose each other's
/// bytes while readers, a scrub and more objects than handles keep the store busy.
#[test]
fn writers_of_disjoint_ranges_do_not_disturb_each_other() {
    const WRITERS: usize = 4;
    const STRIDE: usize = 1000;
    let store = Arc::new(ChunkStore::open(MemDisk::new()).unwrap());
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let store = store.clone();
            scope.spawn(move || {
                for step in 0..300 {
                    let offset = (step * WRITERS + writer) * STRIDE;
                    store.write(INO, offset as u64, &pattern(STRIDE, writer as u8)).unwrap();
                    // Pushes handles out of the table.
                    store.write(Ino(1000 + (step * WRITERS + writer) as u64), 0, b"other").unwrap();
                }
            });
        }
        let store = store.clone();
        scope.spawn(move || {
            for _ in 0..50 {
                read_all(&store, INO).unwrap();
                assert_eq!(store.scrub(INO).unwrap(), []);
                store.sync_all().unwrap();
            }
        });
    });
    let all = read_all(&store, INO).unwrap();
    assert_eq!(all.len(), 300 * WRITERS * STRIDE);
    for (piece, at) in all.chunks(STRIDE).zip(0..) {
        assert_eq!(piece, pattern(STRIDE, (at % WRITERS) as u8), "piece {at}");
    }
}

/// Proves that a drop that meets writes leaves either no object or one that holds only later writes.
#[test]
fn drops_and_writes_may_meet() {
    let disk = MemDisk::new();
    let store = ChunkStore::open(disk.clone()).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..3u8 {
            let store = &store;
            scope.spawn(move || {
                for _ in 0..500 {
                    store.write(INO, u64::from(seed) * 5000, &pattern(5000, seed)).unwrap();
                    read_all(store, INO).unwrap();
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..500 {
                store.drop_object(INO).unwrap();
            }
        });
    });
    read_all(&store, INO).unwrap();
    assert_eq!(store.usage().unwrap().blocks, store.blocks(INO).unwrap());
    drop(store);
    let store = ChunkStore::open(disk).unwrap();
    assert_eq!(store.usage().unwrap().blocks, store.blocks(INO).unwrap());
}

#[test]
fn what_was_synced_survives_a_power_failure() {
    for all in [false, true] {
        let disk = ForgetfulDisk::new();
        let store = ChunkStore::with_slots(disk.clone(), 0).unwrap();
        let data = pattern(3 * BLOCK + 9, 1);
        store.write(INO, 0, &data).unwrap();
        store.write(Ino(9), 0, b"not synced").unwrap();
        if all {
            store.sync_all().unwrap()
        } else {
            store.sync(INO).unwrap()
        }
        disk.crash();
        let store = ChunkStore::open(disk.clone()).unwrap();
        assert_eq!(read_all(&store, INO).unwrap(), data);
        assert_eq!(store.objects(None, 9).unwrap().len(), if all { 2 } else { 1 });
        // A new process must sync what the old one wrote.
        store.write(INO, 5, b"more").unwrap();
        drop(store);
        ChunkStore::open(disk.clone()).unwrap().sync_all().unwrap();
        disk.crash();
        let store = ChunkStore::open(disk).unwrap();
        assert_eq!(read_all(&store, INO).unwrap()[5..9], *b"more");
    }
}

#[derive(Clone, Debug)]
enum Op {
    Write(u64, usize, u8),
    Read(u64, usize),
    Trim(u64),
    Punch(u64, usize),
    Drop,
    /// For others to write to.
    GiveFiles,
    Sync,
    Reopen,
    Check,
}

fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..SMALL_MAX as u64,
        0..20_000u64,
        (0..12u64).prop_map(|block| block * BLOCK as u64),
        0..200_000u64
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let len = || prop_oneof![1..200usize, 1..20_000usize, (1..4usize).prop_map(|count| count * BLOCK)];
    prop_oneof![
        8 => (offset(), len(), any::<u8>()).prop_map(|(at, len, seed)| Op::Write(at, len, seed)),
        4 => (offset(), len()).prop_map(|(at, len)| Op::Read(at, len)),
        3 => offset().prop_map(Op::Trim),
        3 => (offset(), len()).prop_map(|(at, len)| Op::Punch(at, len)),
        1 => Just(Op::Trim(0)),
        1 => Just(Op::Drop),
        1 => Just(Op::GiveFiles),
        1 => Just(Op::Sync),
        2 => Just(Op::Reopen),
        2 => Just(Op::Check),
    ]
}

/// The slow oracle: bytes and, for each block, whether it is stored.
#[derive(Default)]
struct Oracle {
    bytes: Vec<u8>,
    stored: std::collections::BTreeSet<usize>,
    /// Once it has files it keeps them until it is dropped.
    files: bool,
}

impl Oracle {
    fn write(&mut self, at: usize, data: &[u8]) -> i64 {
        let before = self.stored.len() as i64;
        self.files |= at + data.len() > SMALL_MAX;
        self.bytes.resize(self.bytes.len().max(at + data.len()), 0);
        self.bytes[at..at + data.len()].copy_from_slice(data);
        self.stored.extend(at / BLOCK..(at + data.len()).div_ceil(BLOCK));
        self.stored.len() as i64 - before
    }

    fn trim(&mut self, size: usize) -> i64 {
        let before = self.stored.len() as i64;
        self.bytes.truncate(size);
        self.stored.retain(|block| *block < size.div_ceil(BLOCK));
        self.stored.len() as i64 - before
    }

    fn punch(&mut self, at: usize, len: usize) -> i64 {
        let before = self.stored.len() as i64;
        let end = (at + len).min(self.bytes.len());
        if at < end {
            self.bytes[at..end].fill(0);
            let last = if end == self.bytes.len() { end.div_ceil(BLOCK) } else { end / BLOCK };
            self.stored.retain(|block| !(at.div_ceil(BLOCK)..last).contains(block));
            if !self.files && self.stored.is_empty() {
                // Nothing remembers how long it was.
                self.bytes.clear();
            }
        }
        self.stored.len() as i64 - before
    }

    fn read(&self, at: usize, len: usize) -> &[u8] {
        let from = at.min(self.bytes.len());
        &self.bytes[from..(at + len).min(self.bytes.len()).max(from)]
    }

    fn extents(&self) -> Vec<(u64, u64)> {
        let mut found: Vec<(u64, u64)> = Vec::new();
        for block in &self.stored {
            let start = (block * BLOCK) as u64;
            match found.last_mut() {
                Some((offset, len)) if *offset + *len == start => *len += BLOCK as u64,
                _ => found.push((start, BLOCK as u64)),
            }
        }
        found
    }
}

fn follow(ops: &[Op]) {
    let disk = MemDisk::new();
    let mut store = ChunkStore::open(disk.clone()).unwrap();
    let mut oracle = Oracle::default();
    for op in ops {
        match op {
            Op::Write(at, len, seed) => {
                let data = pattern(*len, *seed);
                assert_eq!(store.write(INO, *at, &data).unwrap(), oracle.write(*at as usize, &data));
            }
            Op::Read(at, len) => {
                let mut out = Vec::new();
                store.read(INO, *at, *len, &mut out).unwrap();
                assert_eq!(out, oracle.read(*at as usize, *len));
            }
            Op::Trim(size) => assert_eq!(store.trim(INO, *size).unwrap(), oracle.trim(*size as usize)),
            Op::Punch(at, len) => {
                assert_eq!(store.punch(INO, *at, *len as u64).unwrap(), oracle.punch(*at as usize, *len));
            }
            Op::Drop => {
                assert_eq!(store.drop_object(INO).unwrap(), oracle.stored.len() as u64);
                oracle = Oracle::default();
            }
            Op::GiveFiles => {
                store.give_files(INO).unwrap();
                oracle.files |= !oracle.stored.is_empty();
            }
            Op::Sync => store.sync(INO).unwrap(),
            Op::Reopen => {
                drop(store);
                store = ChunkStore::open(disk.clone()).unwrap();
            }
            Op::Check => {
                assert_eq!(store.extents(INO, 0, 1000).unwrap(), oracle.extents());
                assert_eq!(store.scrub(INO).unwrap(), []);
                assert_eq!(store.blocks(INO).unwrap(), oracle.stored.len() as u64);
                assert_eq!(store.usage().unwrap().blocks, oracle.stored.len() as u64);
            }
        }
    }
    assert_eq!(read_all(&store, INO).unwrap(), oracle.bytes);
}

proptest! {
    #[test]
    fn agrees_with_a_slow_oracle(ops in prop::collection::vec(op(), 1..60)) {
        follow(&ops);
    }
}

/// Names of removed files that this process still has open below `dir`.
fn removed_but_open(dir: &std::path::Path) -> usize {
    let links =
        std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|e| e.path().read_link().ok());
    let inside =
        |path: &std::path::PathBuf| path.starts_with(dir) && path.to_string_lossy().ends_with("(deleted)");
    links.filter(inside).count()
}

/// Dropping a large object is quick; who needs its space gets it.
#[test]
fn the_space_of_large_objects_is_given_back_on_demand() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let store = ChunkStore::open(RealDisk::new(&root).unwrap()).unwrap();
    let small = Ino(8);
    store.write(small, 0, &pattern(BLOCK, 1)).unwrap();
    store.write(INO, 0, &pattern(2 << 20, 2)).unwrap();
    store.drop_object(small).unwrap();
    assert_eq!(removed_but_open(&root), 0, "a small one goes at once");
    assert_eq!(store.drop_object(INO).unwrap(), 512);
    assert_eq!(removed_but_open(&root), 2, "data and checksums wait");
    assert_eq!(read_all(&store, INO).unwrap(), [], "but for nobody else");
    assert_eq!(store.usage().unwrap().blocks, 0);
    assert_eq!(removed_but_open(&root), 0, "who asks for the space has it freed first");
    assert!(!store.bury(), "nothing is left");
}
