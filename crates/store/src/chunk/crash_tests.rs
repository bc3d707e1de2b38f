//! What a chunk store must keep when calls of the disk fail or the process is killed at any of them.

use super::tests::{BLOCK, INO, pattern, read_all};
use super::*;
use tidepool_env::{Fault, FaultyDisk, MemDisk, Tear};

/// One step of a script.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Write(usize, Vec<u8>),
    Trim(usize),
    Punch(usize, usize),
    Sync,
    Drop,
    GiveFiles,
}

impl Step {
    fn run<D: Disk>(&self, store: &ChunkStore<D>) -> Result<i64, StoreError> {
        match self {
            Step::Write(at, data) => store.write(INO, *at as u64, data),
            Step::Trim(size) => store.trim(INO, *size as u64),
            Step::Punch(at, len) => store.punch(INO, *at as u64, *len as u64),
            Step::Sync => store.sync(INO).map(|()| 0),
            Step::Drop => store.drop_object(INO).map(|blocks| -(blocks as i64)),
            Step::GiveFiles => store.give_files(INO).map(|()| 0),
        }
    }

    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Step::Write(at, data) => {
                bytes.resize(bytes.len().max(at + data.len()), 0);
                bytes[*at..at + data.len()].copy_from_slice(data);
            }
            Step::Trim(size) => bytes.truncate(*size),
            Step::Punch(at, len) => {
                let end = (at + len).min(bytes.len());
                bytes[(*at).min(end)..end].fill(0);
            }
            Step::Sync | Step::GiveFiles => {}
            Step::Drop => bytes.clear(),
        }
    }
}

/// Appends, overwrites, fills and punches holes, grows and cuts incomplete blocks.
fn script() -> Vec<Step> {
    let write = |at: usize, len: usize, seed: u8| Step::Write(at, pattern(len, seed));
    vec![
        write(0, 3 * BLOCK, 1),
        write(3 * BLOCK, 100, 2),
        write(3 * BLOCK + 50, 2 * BLOCK, 3),
        write(BLOCK, 2 * BLOCK, 4),
        write(100, 3 * BLOCK, 5),
        Step::Sync,
        write(20 * BLOCK + 7, BLOCK, 6),
        write(10 * BLOCK, 2 * BLOCK, 7),
        Step::Trim(11 * BLOCK + 9),
        Step::Trim(2 * BLOCK),
        write(5 * BLOCK - 1, 2, 8),
        Step::Trim(BLOCK + 1),
        write(BLOCK / 2, BLOCK, 9),
        write(0, 6 * BLOCK + 77, 10),
        Step::Punch(BLOCK - 9, 2 * BLOCK + 20),
        Step::Punch(4 * BLOCK + 10, 100),
        write(2 * BLOCK + 5, 10, 11),
        Step::Punch(5 * BLOCK, 9 * BLOCK),
    ]
}

fn block_of(bytes: &[u8], block: usize) -> Vec<u8> {
    let from = (block * BLOCK).min(bytes.len());
    let mut content = bytes[from..(from + BLOCK).min(bytes.len())].to_vec();
    content.resize(BLOCK, 0);
    content
}

/// Each block must be as it was before or after the step that failed; returns what is there.
fn check<D: Disk>(store: &ChunkStore<D>, old: &[u8], new: &[u8], what: &str) -> Vec<u8> {
    let read = read_all(store, INO).unwrap_or_else(|error| panic!("{what}: {error}"));
    let blocks = old.len().max(new.len()).max(read.len()).div_ceil(BLOCK);
    for block in 0..blocks {
        let found = block_of(&read, block);
        assert!(found == block_of(old, block) || found == block_of(new, block), "{what}: block {block}");
    }
    assert!(read.len() <= old.len().max(new.len()).next_multiple_of(BLOCK), "{what}: length");
    assert!(read.len() >= old.len().min(new.len()), "{what}: length");
    assert_eq!(store.scrub(INO).unwrap(), [], "{what}");
    read
}

/// Runs the script until a step fails. Returns that step and the bytes acknowledged before it.
fn run_until_failure<D: Disk>(store: &ChunkStore<D>, steps: &[Step], bytes: &mut Vec<u8>) -> Option<usize> {
    for (at, step) in steps.iter().enumerate() {
        if step.run(store).is_err() {
            return Some(at);
        }
        step.apply(bytes);
    }
    None
}

fn calls_of(steps: &[Step]) -> u64 {
    let disk = FaultyDisk::new(MemDisk::new());
    let store = ChunkStore::open(disk.clone()).unwrap();
    disk.set_fault(None);
    assert_eq!(run_until_failure(&store, steps, &mut Vec::new()), None);
    disk.calls()
}

fn after(old: &[u8], step: &Step) -> Vec<u8> {
    let mut new = old.to_vec();
    step.apply(&mut new);
    new
}

/// Proves that a process killed at any call of the disk, whether the call did nothing, part
/// of its pages or everything, leaves each block as it was before or after the step it died
/// in, also when the successor is killed in the same way at any call while it goes on.
#[test]
fn a_kill_at_any_call_leaves_every_block_valid() {
    assert!(calls_of(&script()) > 30);
    kill_at_any_call(&script());
}

pub(super) fn kill_at_any_call(steps: &[Step]) {
    let total = calls_of(steps);
    for tear in [Tear::Nothing, Tear::Pages, Tear::All] {
        for first in 0..total {
            let killed = kill_in(MemDisk::new(), steps, &[], first, tear);
            for second in 0..12 {
                let (disk, bytes, at) = &killed;
                let again = kill_in(disk.deep_copy(), &steps[*at..], bytes, second, tear);
                let store = ChunkStore::open(again.0.clone()).unwrap();
                run_until_failure(&store, &steps[*at + again.2..], &mut again.1.clone());
                assert_eq!(store.scrub(INO).unwrap(), [], "{tear:?} {first} {second}");
            }
        }
    }
}

/// Runs `steps` on `inner` and kills the process at call `at`. Returns the disk, what it
/// holds, and the step that was cut short.
fn kill_in(inner: MemDisk, steps: &[Step], bytes: &[u8], at: u64, tear: Tear) -> (MemDisk, Vec<u8>, usize) {
    let disk = FaultyDisk::new(inner.clone());
    let store = ChunkStore::open(disk.clone()).unwrap();
    disk.set_fault(Some(Fault::from(at, libc::EIO).tearing(tear)));
    let mut old = bytes.to_vec();
    let failed = run_until_failure(&store, steps, &mut old);
    let new = failed.map_or(old.clone(), |step| after(&old, &steps[step]));
    drop(store);
    let store = ChunkStore::open(inner.clone()).unwrap();
    let found = check(&store, &old, &new, &format!("{tear:?} at call {at}, step {failed:?}"));
    drop(store);
    (inner, found, failed.unwrap_or(steps.len()))
}

/// Proves that one failing call, even one that tears a block in the middle, leaves a store
/// that goes on: nothing acknowledged is lost, the step can be repeated, and the number of
/// stored blocks is right.
#[test]
fn one_failed_call_does_no_harm() {
    fail_any_call(&script());
}

pub(super) fn fail_any_call(steps: &[Step]) {
    let total = calls_of(steps);
    for tear in [Tear::Nothing, Tear::Pages, Tear::Bytes, Tear::All] {
        for errno in [libc::ENOSPC, libc::EIO] {
            for at in 0..total {
                fail_once(steps, Fault::once(at, errno).tearing(tear));
            }
        }
    }
}

fn fail_once(steps: &[Step], fault: Fault) {
    let what = format!("{fault:?}");
    let inner = MemDisk::new();
    let disk = FaultyDisk::new(inner.clone());
    let store = ChunkStore::open(disk.clone()).unwrap();
    disk.set_fault(Some(fault));
    let mut bytes = Vec::new();
    for step in steps {
        let new = after(&bytes, step);
        if let Err(error) = step.run(&store) {
            assert_eq!(error.errno().0, fault.errno, "{what}");
            check(&store, &bytes, &new, &what);
            assert_eq!(store.usage().unwrap().blocks, store.blocks(INO).unwrap(), "{what} {step:?}");
            step.run(&store).unwrap_or_else(|error| panic!("{what}: repeating {step:?}: {error}"));
        }
        bytes = new;
        assert_eq!(read_all(&store, INO).unwrap(), bytes, "{what} {step:?}");
        assert_eq!(store.usage().unwrap().blocks, store.blocks(INO).unwrap(), "{what} {step:?}");
    }
    drop(store);
    let store = ChunkStore::open(inner).unwrap();
    assert_eq!(read_all(&store, INO).unwrap(), bytes, "{what}");
    assert_eq!(store.usage().unwrap().blocks, store.blocks(INO).unwrap(), "{what}");
}

/// Proves that a disk that stays broken loses nothing that was acknowledged, seen by the
/// process that met the failure.
#[test]
fn a_disk_that_stays_broken_can_still_be_read() {
    break_at_any_call(&script());
}

pub(super) fn break_at_any_call(steps: &[Step]) {
    let total = calls_of(steps);
    for tear in [Tear::Nothing, Tear::Pages, Tear::All] {
        for at in 0..total {
            let disk = FaultyDisk::new(MemDisk::new());
            let store = ChunkStore::open(disk.clone()).unwrap();
            disk.set_fault(Some(Fault::from(at, libc::EIO).tearing(tear)));
            let mut bytes = Vec::new();
            if let Some(step) = run_until_failure(&store, steps, &mut bytes) {
                check(&store, &bytes, &after(&bytes, &steps[step]), &format!("{tear:?} at call {at}"));
            }
        }
    }
}

#[test]
fn a_full_disk_keeps_what_it_has() {
    let disk = MemDisk::with_capacity(16 * BLOCK as u64);
    let store = ChunkStore::open(disk).unwrap();
    let mut written = 0;
    let error = loop {
        match store.write(INO, written * BLOCK as u64, &pattern(BLOCK, written as u8)) {
            Ok(delta) => written += delta.unsigned_abs(),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind, StoreErrorKind::NoSpace);
    assert_eq!(store.usage().unwrap().blocks, written);
    let all = read_all(&store, INO).unwrap();
    assert_eq!(all.len() as u64, written * BLOCK as u64);
    all.chunks(BLOCK).zip(0..).for_each(|(block, at)| assert_eq!(block, pattern(BLOCK, at)));
    store.write(INO, 0, b"overwriting needs no room").unwrap();
    store.trim(INO, BLOCK as u64).unwrap();
    store.write(INO, BLOCK as u64, &pattern(BLOCK, 0)).unwrap();
}

/// Proves that a drop killed at any call removes the object or leaves all of it.
#[test]
fn a_drop_is_all_or_nothing() {
    for at in 0..4 {
        let inner = MemDisk::new();
        let disk = FaultyDisk::new(inner.clone());
        let store = ChunkStore::open(disk.clone()).unwrap();
        let data = pattern(9000, 1);
        store.write(INO, 0, &data).unwrap();
        disk.set_fault(Some(Fault::from(at, libc::EIO)));
        let dropped = store.drop_object(INO).is_ok();
        drop(store);
        let store = ChunkStore::open(inner).unwrap();
        let left = read_all(&store, INO).unwrap();
        assert!(left.is_empty() || (!dropped && left == data));
        let blocks = store.usage().unwrap().blocks;
        assert_eq!(blocks, if left.is_empty() { 0 } else { 3 });
        // A checksum file left alone must not be believed.
        store.write(INO, 5000, b"new").unwrap();
        let mut out = Vec::new();
        store.read(INO, 4990, 20, &mut out).unwrap();
        assert_eq!(out[10..13], *b"new");
        store.drop_object(INO).unwrap();
        assert_eq!(store.objects(None, 9).unwrap(), []);
    }
}
