//! Small objects: their bytes, and that none is lost or wrong on its way between a page and files.

use super::crash_tests::{Step, break_at_any_call, fail_any_call, kill_at_any_call};
use super::small::{FILE, SMALL_MAX};
use super::tests::{BLOCK, INO, pattern, read_all};
use super::*;
use std::sync::Arc;
use tidepool_env::{DiskFile, ForgetfulDisk, MemDisk, OpenMode};

const OTHER: Ino = Ino(0x0003_0000_0000_0242);

fn page_of<D: Disk>(disk: &D, number: u64) -> Vec<u8> {
    let mut page = vec![0; BLOCK];
    disk.open(FILE, OpenMode::Existing).unwrap().read_at(&mut page, number * BLOCK as u64).unwrap();
    page
}

fn put_page<D: Disk>(disk: &D, number: u64, page: &[u8]) {
    disk.open(FILE, OpenMode::Existing).unwrap().write_at(page, number * BLOCK as u64).unwrap();
}

fn has_files<D: Disk>(disk: &D, ino: Ino) -> bool {
    disk.open(&Names::of(ino).data, OpenMode::Existing).is_ok()
}

#[test]
fn pages_have_the_specified_bytes() {
    let disk = MemDisk::new();
    let store = ChunkStore::open(disk.clone()).unwrap();
    assert_eq!(store.write(INO, 2, b"abc").unwrap(), 1);
    assert_eq!(page_of(&disk, 0)[..16], *b"TPSMALL1\x01\0\0\0\x00\x10\0\0");
    let page = page_of(&disk, 1);
    assert_eq!(page[..12], *b"\x42\x01\0\0\0\0\x03\0\x05\0\0\0");
    assert_eq!(page[16..24], *b"\0\0abc\0\0\0");
    assert_eq!(page[4088..], *b"\x42\x01\0\0\0\0\x03\0");
    let summed = [b"\x01\0\0\0", &page[..12], &page[16..]].concat();
    assert_eq!(page[12..16], crc32c::crc32c(&summed).to_le_bytes());
    assert_eq!(page[12..16], *b"\x1f\x0c\x66\x27");
    assert!(!has_files(&disk, INO));
    assert_eq!(read_all(&store, INO).unwrap(), b"\0\0abc");
}

fn scripts() -> Vec<Vec<Step>> {
    let write = |at: usize, len: usize, seed: u8| Step::Write(at, pattern(len, seed));
    vec![
        // Grows, is cut and punched, moves to files without having been synced.
        vec![
            write(0, 100, 1),
            write(50, 100, 2),
            write(3000, SMALL_MAX - 3000, 3),
            Step::Trim(3500),
            Step::Punch(10, 700),
            write(20, 5, 4),
            write(BLOCK - 10, 2 * BLOCK, 5),
            write(7, 90, 6),
            Step::Trim(5),
            write(0, 10, 7),
        ],
        // After a sync, and asked for by others.
        vec![
            write(9, 900, 1),
            Step::Sync,
            write(100, 100, 2),
            Step::GiveFiles,
            write(0, 50, 3),
            Step::Sync,
            write(20 * BLOCK, 1, 4),
        ],
        // Goes and comes back.
        vec![
            write(0, 40, 1),
            Step::Sync,
            Step::Trim(0),
            write(3, 30, 2),
            Step::Sync,
            Step::Drop,
            write(0, SMALL_MAX, 3),
            write(0, SMALL_MAX, 4),
            write(0, SMALL_MAX + 1, 5),
            Step::Drop,
            write(5, 5, 6),
        ],
    ]
}

/// Proves that a process killed at any call leaves each small object as it was before or after the step it died in.
#[test]
fn a_kill_at_any_call_leaves_small_objects_whole() {
    scripts().iter().for_each(|steps| kill_at_any_call(steps));
}

#[test]
fn one_failed_call_does_small_objects_no_harm() {
    scripts().iter().for_each(|steps| fail_any_call(steps));
}

#[test]
fn small_objects_on_a_disk_that_stays_broken_can_still_be_read() {
    scripts().iter().for_each(|steps| break_at_any_call(steps));
}

/// Proves that what a sync promised outlives a power failure whatever the object did afterwards, and that a page
/// given up before a sync does not come back after it.
#[test]
fn synced_small_objects_survive_a_power_failure() {
    type Act = fn(&ChunkStore<ForgetfulDisk>);
    let moves: [(Act, &[u8]); 5] = [
        (|_| (), b"synced"),
        (|store| store.give_files(INO).unwrap(), b"synced"),
        (|store| store.write(INO, 6, &[7; BLOCK]).and(store.sync(INO)).unwrap(), b"synced\x07"),
        (|store| store.trim(INO, 0).and(store.sync(INO)).unwrap(), b""),
        (|store| store.punch(INO, 0, 9).and(store.sync_all()).unwrap(), b""),
    ];
    for (at, (act, wanted)) in moves.into_iter().enumerate() {
        for (all, others) in [(false, false), (true, false), (false, true)] {
            let disk = ForgetfulDisk::new();
            let store = ChunkStore::open(disk.clone()).unwrap();
            store.write(INO, 0, b"synced").unwrap();
            if all { store.sync_all() } else { store.sync(INO) }.unwrap();
            act(&store);
            if others {
                // Takes along what there is of everybody's pages.
                store.write(OTHER, 0, b"other").unwrap();
                store.sync(OTHER).unwrap();
            }
            drop(store);
            disk.crash();
            let store = ChunkStore::open(disk).unwrap();
            let found = read_all(&store, INO).unwrap();
            assert_eq!(found[..found.len().min(7)], *wanted, "case {at}, all: {all}, others: {others}");
            assert_eq!(store.scrub(INO).unwrap(), []);
        }
    }
}

/// Changes any byte of the page: the object is whole, or says that it is not, and can be replaced or removed.
#[test]
fn every_flipped_byte_of_a_page_is_noticed() {
    for at in (0..BLOCK).filter(|at| *at < 40 || at % 97 == 0 || *at >= BLOCK - 10) {
        let disk = MemDisk::new();
        let store = ChunkStore::open(disk.clone()).unwrap();
        let content = pattern(3000, 3);
        store.write(INO, 0, &content).unwrap();
        store.write(OTHER, 0, b"other").unwrap();
        drop(store);
        let mut page = page_of(&disk, 1);
        page[at] ^= 0x10;
        put_page(&disk, 1, &page);
        let store = ChunkStore::open(disk.clone()).unwrap();
        assert_eq!(read_all(&store, INO).unwrap_err().kind, StoreErrorKind::Corrupt, "byte {at}");
        assert_eq!(store.scrub(INO).unwrap().len(), 1, "byte {at}");
        assert_eq!(read_all(&store, OTHER).unwrap(), b"other");
        assert!(store.write(INO, 10, b"not into damage").is_err());
        assert!(store.write(INO, 10, &[1; BLOCK]).is_err());
        if at % 2 == 0 {
            assert_eq!(store.drop_object(INO).unwrap(), 1);
        }
        store.write(INO, 0, &[9; SMALL_MAX]).unwrap();
        assert_eq!(read_all(&store, INO).unwrap(), [9; SMALL_MAX]);
        assert_eq!(store.scrub(INO).unwrap(), []);
        drop(store);
        assert_eq!(read_all(&ChunkStore::open(disk).unwrap(), INO).unwrap(), [9; SMALL_MAX]);
    }
}

#[test]
fn a_page_that_nobody_can_tell_apart_makes_absent_objects_fail() {
    let disk = MemDisk::new();
    ChunkStore::open(disk.clone()).unwrap().write(INO, 0, b"x").unwrap();
    let mut page = page_of(&disk, 1);
    page[..8].fill(0);
    page[BLOCK - 8..].fill(0);
    put_page(&disk, 1, &page);
    let store = ChunkStore::open(disk).unwrap();
    assert_eq!(read_all(&store, INO).unwrap_err().kind, StoreErrorKind::Corrupt);
    assert_eq!(store.read_into(INO, 0, &mut [0; 9]).unwrap_err().kind, StoreErrorKind::Corrupt);
    store.write(OTHER, 0, b"fine").unwrap();
    assert_eq!(read_all(&store, OTHER).unwrap(), b"fine");
}

#[test]
fn pages_in_the_wrong_place_do_not_count() {
    let disk = MemDisk::new();
    let store = ChunkStore::open(disk.clone()).unwrap();
    store.write(INO, 0, b"one").unwrap();
    store.write(OTHER, 0, b"two").unwrap();
    put_page(&disk, 2, &page_of(&disk, 1));
    assert_eq!(read_all(&store, OTHER).unwrap_err().kind, StoreErrorKind::Corrupt);
    let store = ChunkStore::open(disk).unwrap();
    assert_eq!(read_all(&store, INO).unwrap(), b"one");
}

/// What a start finds of a move that was not finished, and of damage.
#[test]
fn of_a_page_and_files_the_valid_page_wins() {
    for damaged in [false, true] {
        let disk = MemDisk::new();
        let store = ChunkStore::open(disk.clone()).unwrap();
        store.write(INO, 0, b"page").unwrap();
        let mut page = page_of(&disk, 1);
        store.give_files(INO).unwrap();
        store.write(INO, 0, b"file").unwrap();
        assert!(has_files(&disk, INO) && page_of(&disk, 1).iter().all(|byte| *byte == 0));
        drop(store);
        page[100] ^= u8::from(damaged);
        put_page(&disk, 1, &page);
        let store = ChunkStore::open(disk.clone()).unwrap();
        assert_eq!(read_all(&store, INO).unwrap(), if damaged { b"file" } else { b"page" });
        assert_eq!(has_files(&disk, INO), damaged);
        assert_eq!(store.usage().unwrap().blocks, 1);
        assert_eq!(store.objects(None, 9).unwrap(), [INO]);
    }
}

#[test]
fn without_a_free_page_objects_get_files() {
    let disk = MemDisk::new();
    let store = ChunkStore::with_slots(disk.clone(), 2).unwrap();
    let inos: Vec<Ino> = (1..=4).map(Ino).collect();
    for ino in &inos {
        store.write(*ino, 0, &ino.0.to_le_bytes()).unwrap();
    }
    assert_eq!(inos.iter().map(|ino| has_files(&disk, *ino)).collect::<Vec<_>>(), [false, false, true, true]);
    store.drop_object(Ino(1)).unwrap();
    store.write(Ino(5), 0, b"takes its place").unwrap();
    assert!(!has_files(&disk, Ino(5)));
    drop(store);
    let store = ChunkStore::with_slots(disk.clone(), 2).unwrap();
    store.drop_object(Ino(2)).unwrap();
    store.write(Ino(6), 0, b"as well").unwrap();
    assert!(!has_files(&disk, Ino(6)));
    assert_eq!(store.usage().unwrap().blocks, 4);
    assert_eq!(read_all(&store, Ino(3)).unwrap(), 3u64.to_le_bytes());
}

#[test]
fn a_full_disk_keeps_small_objects() {
    let store = ChunkStore::open(MemDisk::with_capacity(20 * BLOCK as u64)).unwrap();
    let mut stored = Vec::new();
    let error = loop {
        let ino = Ino(stored.len() as u64 + 1);
        match store.write(ino, 0, &pattern(100, ino.0 as u8)) {
            Ok(_) => stored.push(ino),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind, StoreErrorKind::NoSpace);
    assert!(stored.len() > 5);
    assert!(store.write(stored[0], 0, &[1; 3 * BLOCK]).is_err(), "there is no room for files either");
    for ino in &stored {
        assert_eq!(read_all(&store, *ino).unwrap(), pattern(100, ino.0 as u8));
        store.write(*ino, 0, b"overwriting needs no room").unwrap();
    }
    assert_eq!(store.usage().unwrap().blocks, stored.len() as u64);
    store.drop_object(stored[0]).unwrap();
    store.write(Ino(999), 0, b"room again").unwrap();
}

/// Threads that write to parts of the same objects, which move to files under their hands.
#[test]
fn writers_meet_while_objects_move() {
    let store = Arc::new(ChunkStore::with_slots(MemDisk::new(), 16).unwrap());
    let inos: Vec<Ino> = (1..=24).map(|n| Ino(n << 8)).collect();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (store, inos) = (store.clone(), inos.clone());
            scope.spawn(move || {
                for ino in &inos {
                    let own = pattern(700, thread as u8);
                    store.write(*ino, thread * 700, &own).unwrap();
                    let mut out = Vec::new();
                    store.read(*ino, thread * 700, 700, &mut out).unwrap();
                    assert_eq!(out, own);
                    if ino.0 >> 8 & 3 == thread {
                        store.write(*ino, 100_000, b"far").unwrap();
                        store.give_files(*ino).unwrap();
                    }
                }
            });
        }
    });
    for ino in inos {
        let all = read_all(&store, ino).unwrap();
        (0..4).for_each(|t| assert_eq!(all[t * 700..(t + 1) * 700], pattern(700, t as u8)));
        assert_eq!(all[100_000..], *b"far");
        assert_eq!(store.scrub(ino).unwrap(), []);
    }
    assert_eq!(store.usage().unwrap().blocks, 24 * 2);
}

#[test]
fn other_versions_are_refused() {
    for (at, kind) in [(8, StoreErrorKind::Version), (0, StoreErrorKind::Corrupt)] {
        let disk = MemDisk::new();
        drop(ChunkStore::open(disk.clone()).unwrap());
        let mut page = page_of(&disk, 0);
        page[at] ^= 3;
        put_page(&disk, 0, &page);
        assert_eq!(ChunkStore::open(disk).err().expect("refused").kind, kind);
    }
}
