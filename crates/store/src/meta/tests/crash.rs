//! What the log keeps when calls of the disk fail, the process is killed, or the power fails.

use super::*;
use proptest::prelude::*;
use std::io;
use tidepool_env::{DiskFile, Fault, FaultyDisk, ForgetfulDisk, Tear};
use tidepool_fs_state::MetaView;

/// What the stores below are asked to do: each step commits one number and some records.
const STEPS: u64 = 12;

fn step(store: &mut dyn MetaStore, number: u64) -> io::Result<()> {
    store.commit(&[
        Mutation::NextCount(number),
        Mutation::PutInode(inode(1 + number % 5, number)),
        put_dentry(1, format!("{number}").as_bytes(), number),
    ])
}

/// The store must hold exactly the first `number` steps.
fn holds(store: &dyn MetaStore, number: u64, what: &str) {
    assert_eq!(store.next_count(), number.max(1), "{what}");
    assert_eq!(store.list(Ino(1), None, 1000).len() as u64, number, "{what}");
    assert_eq!(store.inode_count(), number.min(5), "{what}");
    for last in number.saturating_sub(4).max(1)..=number {
        assert_eq!(store.inode(Ino(1 + last % 5)), Some(inode(1 + last % 5, last)), "{what}");
    }
}

/// Steps, with a compaction or a sync after some. Stops at the first error; returns the
/// number of steps acknowledged and the number that were so at the last sync.
fn run<D: Disk>(disk: &D) -> (u64, u64, bool) {
    let Ok(mut store) = MemLogStore::open(disk.clone()) else { return (0, 0, false) };
    store.set_compact_log_min(0);
    let mut synced = 0;
    for number in 1..=STEPS {
        if step(&mut store, number).is_err() {
            return (number - 1, synced, false);
        }
        let after = match number % 4 {
            1 => store.compact(),
            3 => store.sync().map(|()| synced = number),
            _ => Ok(()),
        };
        if after.is_err() {
            return (number, synced, false);
        }
    }
    (STEPS, synced, true)
}

fn calls_of_a_run() -> u64 {
    let disk = FaultyDisk::new(MemDisk::new());
    assert_eq!(run(&disk), (STEPS, STEPS - 1, true));
    disk.calls()
}

/// Proves that a process killed at any call of the disk, whatever part of the call was done,
/// leaves a store that opens with every acknowledged step; the step it died in may be there
/// only when all of its record reached the file.
#[test]
fn a_kill_at_any_call_keeps_what_was_acknowledged() {
    for tear in [Tear::Nothing, Tear::Bytes, Tear::Pages, Tear::All] {
        for at in 0..calls_of_a_run() {
            let inner = MemDisk::new();
            let disk = FaultyDisk::new(inner.clone());
            disk.set_fault(Some(Fault::from(at, libc::EIO).tearing(tear)));
            let (acknowledged, ..) = run(&disk);
            let what = format!("{tear:?} at call {at}");
            let store = open_memlog(&inner);
            let found = store.list(Ino(1), None, 1000).len() as u64;
            assert!(found == acknowledged || (found == acknowledged + 1 && tear == Tear::All), "{what}");
            holds(&store, found, &what);
            assert!(inner.list(".").unwrap().len() <= 2, "{what}: old files are left");
            // The successor works.
            drop(store);
            let mut store = open_memlog(&inner);
            step(&mut store, found + 1).unwrap();
            store.compact().unwrap();
            holds(&open_memlog(&inner), found + 1, &what);
        }
    }
}

/// Proves that one failing call leaves a store that goes on in the same process, that a
/// batch whose commit failed is not visible, and that a reopen shows the same.
#[test]
fn one_failed_call_does_no_harm() {
    for tear in [Tear::Nothing, Tear::Bytes, Tear::All] {
        for at in 0..calls_of_a_run() {
            fail_once(Fault::once(at, libc::ENOSPC).tearing(tear));
        }
    }
}

fn fail_once(fault: Fault) {
    let what = format!("{fault:?}");
    let inner = MemDisk::new();
    let disk = FaultyDisk::new(inner.clone());
    disk.set_fault(Some(fault));
    let mut store = match MemLogStore::open(disk.clone()) {
        Ok(store) => store,
        Err(_) => MemLogStore::open(disk).unwrap(),
    };
    store.set_compact_log_min(0);
    for number in 1..=STEPS {
        if let Err(error) = step(&mut store, number) {
            assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{what}");
            holds(&store, number - 1, &what);
            step(&mut store, number).unwrap();
        }
        holds(&store, number, &what);
        let again = match number % 4 {
            1 => store.compact().or_else(|_| store.compact()),
            3 => store.sync().or_else(|_| store.sync()),
            _ => Ok(()),
        };
        again.unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    drop(store);
    holds(&open_memlog(&inner), STEPS, &what);
}

#[test]
fn a_log_that_cannot_be_cut_back_refuses_until_compacted() {
    let inner = MemDisk::new();
    let disk = FaultyDisk::new(inner.clone());
    let mut store = open_memlog(&disk);
    step(&mut store, 1).unwrap();
    disk.set_fault(Some(Fault { at: 0, calls: 2, errno: libc::EIO, tear: Tear::Bytes }));
    assert_eq!(step(&mut store, 2).unwrap_err().raw_os_error(), Some(libc::EIO));
    let error = step(&mut store, 2).unwrap_err().to_string();
    assert!(error.contains("meta-0000000000000000.log") && error.contains("restart"), "{error}");
    holds(&store, 1, "while broken");
    holds(&open_memlog(&inner.deep_copy()), 1, "reopened while broken");
    store.set_compact_log_min(u64::MAX);
    store.compact().unwrap();
    step(&mut store, 2).unwrap();
    drop(store);
    holds(&open_memlog(&inner), 2, "healed");
}

/// A sync that failed must not be followed by one that only seems to succeed: the kernel may
/// have dropped the pages it could not write.
#[test]
fn a_failed_sync_is_made_good_by_writing_everything_anew() {
    let inner = ForgetfulDisk::new();
    let disk = FaultyDisk::new(inner.clone());
    let mut store = open_memlog(&disk);
    step(&mut store, 1).unwrap();
    disk.set_fault(Some(Fault::once(0, libc::EIO)));
    assert!(store.sync().is_err());
    store.sync().unwrap();
    assert!(inner.list(".").unwrap().iter().any(|entry| entry.name.ends_with("1.snap")));
    inner.crash();
    holds(&open_memlog(&inner), 1, "after the power failure");
}

/// Proves that a power failure at any call keeps what was synced, whether the names reached
/// the disk by themselves or not.
#[test]
fn a_power_failure_at_any_call_keeps_what_was_synced() {
    for keep_names in [false, true] {
        for at in 0..=calls_of_a_run() {
            let inner = ForgetfulDisk::new();
            let disk = FaultyDisk::new(inner.clone());
            disk.set_fault(Some(Fault::from(at, libc::EIO)));
            let (acknowledged, synced, _) = run(&disk);
            if keep_names {
                inner.crash_keeping_names()
            } else {
                inner.crash()
            }
            let what = format!("call {at}, names kept: {keep_names}");
            let store = open_memlog(&inner);
            let found = store.list(Ino(1), None, 1000).len() as u64;
            assert!((synced..=acknowledged).contains(&found), "{what}: {found} of {synced}..={acknowledged}");
            holds(&store, found, &what);
        }
    }
}

/// Proves that what was committed before a kill and synced by the successor is durable.
#[test]
fn a_successor_syncs_what_it_inherits() {
    let disk = ForgetfulDisk::new();
    let mut store = open_memlog(&disk);
    step(&mut store, 1).unwrap();
    drop(store);
    open_memlog(&disk).sync().unwrap();
    disk.crash();
    holds(&open_memlog(&disk), 1, "after the power failure");
}

/// One of a sequence that a power failure ends.
#[derive(Clone, Debug)]
enum Event {
    /// Commits of one number each, with attributes of so many bytes.
    Commit(Vec<usize>),
    Sync,
    Compact,
    Reopen,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => prop::collection::vec(prop_oneof![0..300_usize, 3000..9000_usize], 1..20).prop_map(Event::Commit),
        2 => Just(Event::Sync),
        1 => Just(Event::Compact),
        1 => Just(Event::Reopen),
    ]
}

/// A record of `len` bytes in which `number` is in every place that can show it.
fn sized(number: u64, len: usize) -> Mutation {
    let mut inode = inode(1 + number % 7, number);
    inode.target = vec![number as u8; len].into();
    Mutation::PutInode(inode)
}

/// Carries the events out from the state after `begun` commits: how many there are then, and how many of them were synced.
fn carry_out(disk: &ForgetfulDisk, lens: &mut Vec<usize>, events: &[Event]) -> usize {
    let mut store = open_memlog(disk);
    let mut synced = lens.len();
    for event in events {
        match event {
            Event::Commit(sizes) => {
                for len in sizes {
                    let number = lens.len() as u64 + 1;
                    store.commit(&[Mutation::NextCount(number + 1), sized(number, *len)]).unwrap();
                    lens.push(*len);
                }
            }
            Event::Sync => {
                store.sync().unwrap();
                synced = lens.len();
            }
            Event::Compact => store.compact().unwrap(),
            Event::Reopen => {
                drop(store);
                store = open_memlog(disk);
            }
        }
    }
    synced
}

/// The store holds the first so many commits, and nothing else.
fn prefix(store: &dyn MetaStore, lens: &[usize]) -> usize {
    let count = store.next_count() as usize - 1;
    assert!(count <= lens.len(), "{count} of {} commits", lens.len());
    let mut want: Vec<Inode> = Vec::new();
    for number in (1..=count as u64).rev().take(7) {
        let Mutation::PutInode(inode) = sized(number, lens[number as usize - 1]) else { unreachable!() };
        want.push(inode);
    }
    want.sort_by_key(|inode| inode.attr.ino);
    assert_eq!(store.inodes_after(None, 100), want, "after {count} commits");
    count
}

proptest! {
    /// Proves that a power failure that loses any of the pages that were not synced, again and again, leaves a store that opens with
    /// everything that was synced, and with nothing that was never committed or that follows something lost.
    #[test]
    fn any_pages_that_were_not_synced_may_be_lost(
        rounds in prop::collection::vec((prop::collection::vec(event(), 1..8), any::<u64>(), 1..8_u64), 1..5)
    ) {
        let disk = ForgetfulDisk::new();
        open_memlog(&disk).sync().unwrap();
        let mut lens = Vec::new();
        for (events, seed, share) in rounds {
            let synced = carry_out(&disk, &mut lens, &events);
            let mut random = seed | 1;
            disk.crash_amid_writes(|| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % 8 < share
            });
            let store = open_memlog(&disk);
            let found = prefix(&store, &lens);
            prop_assert!(found >= synced, "{found} commits, {synced} were synced");
            lens.truncate(found);
            drop(store);
            // What was found stays, and is a base for the next failure only when it was synced.
            let mut store = open_memlog(&disk);
            prop_assert_eq!(prefix(&store, &lens), found);
            store.sync().unwrap();
        }
    }
}

/// Fills pages with records and says where each begins.
fn filled(disk: &MemDisk, count: u64, sync_at: u64) -> Vec<u64> {
    let mut store = open_memlog(disk);
    (1..=count)
        .map(|number| {
            let at = store.disk_len();
            store.commit(&[Mutation::NextCount(number + 1), sized(number, 300)]).unwrap();
            if number == sync_at {
                store.sync().unwrap();
            }
            at
        })
        .collect()
}

fn zeroed(disk: &MemDisk, from: u64, to: u64) -> MemDisk {
    let copy = disk.deep_copy();
    let log = copy.open("meta-0000000000000000.log", tidepool_env::OpenMode::Existing).unwrap();
    log.punch(from, to - from).unwrap();
    copy
}

/// A page of the end that was not synced is missing: what follows goes as well, and is told. The same page before the last sync is damage.
#[test]
fn a_missing_page_is_damage_only_where_it_was_synced() {
    let disk = MemDisk::new();
    let begins = filled(&disk, 100, 40);
    let synced = begins[40];
    for page in 0..10_u64 {
        let (from, to) = (page * 4096, (page + 1) * 4096);
        let opened = MemLogStore::open(zeroed(&disk, from.max(16), to));
        if from >= synced {
            let store = opened.unwrap();
            let whole = begins.iter().filter(|at| **at < from).count() as u64;
            assert!([whole, whole + 1].contains(&store.next_count()), "page {page}: {}", store.next_count());
            assert!(store.next_count() > 40);
            let told = store.unwritten().expect("records follow").clone();
            assert!(told.at <= from && told.to_string().contains("never synced"), "{told}");
        } else {
            let error = opened.err().unwrap_or_else(|| panic!("page {page} of {synced} synced bytes"));
            assert_eq!(error.kind, crate::StoreErrorKind::Corrupt);
        }
    }
    // The page in which the last sync ended had been written up to there, or up to any record behind.
    for at in [synced + 20, begins[41], begins[42]] {
        let end = at.next_multiple_of(4096);
        let store = MemLogStore::open(zeroed(&disk, at, end)).unwrap();
        assert!((41..=43).contains(&store.next_count()), "{}", store.next_count());
    }
}

/// A bit that flips is no page that was not written, synced or not.
#[test]
fn a_flipped_bit_behind_the_last_sync_is_damage() {
    let disk = MemDisk::new();
    let begins = filled(&disk, 30, 10);
    let log = disk.open("meta-0000000000000000.log", tidepool_env::OpenMode::Existing).unwrap();
    for at in (begins[12]..begins[14]).step_by(7) {
        let copy = disk.deep_copy();
        let mut byte = [0];
        log.read_at(&mut byte, at).unwrap();
        let file = copy.open("meta-0000000000000000.log", tidepool_env::OpenMode::Existing).unwrap();
        file.write_at(&[byte[0] ^ 4], at).unwrap();
        let error = MemLogStore::open(copy).err().unwrap_or_else(|| panic!("byte {at} flipped"));
        assert_eq!(error.kind, crate::StoreErrorKind::Corrupt);
    }
}
