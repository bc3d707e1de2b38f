//! What the log keeps when calls of the disk fail, the process is killed, or the power fails.

use super::*;
use std::io;
use tidepool_env::{Fault, FaultyDisk, ForgetfulDisk, Tear};
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
