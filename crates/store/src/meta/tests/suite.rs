//! What every metadata store must do.

use super::*;

macro_rules! suite {
    ($($case:ident),* $(,)?) => {
        mod memlog { $(#[test] fn $case() { super::$case(&super::memlog_opener()); })* }
        mod lmdb { $(#[test] fn $case() { super::$case(&super::lmdb_opener()); })* }
    };
}

suite!(
    an_empty_store_holds_nothing,
    records_are_put_and_deleted,
    listings_are_ordered_and_paged,
    checks_page_in_order,
    committed_batches_survive_a_reopen,
    the_last_mutation_of_a_batch_wins,
    long_names_and_large_records_fit,
);

fn an_empty_store_holds_nothing(open: &Opener) {
    let mut store = open();
    assert_eq!(store.inode(Ino(1)), None);
    assert_eq!(store.dentry(Ino(1), b"x"), None);
    assert_eq!(store.dir_part(Ino(1)), None);
    assert_eq!(store.list(Ino(1), None, 10), []);
    assert_eq!(store.outcome(TxnId::default()), None);
    assert_eq!(store.outcomes(10), []);
    assert_eq!(store.reaps(10), []);
    assert_eq!((store.next_count(), store.inode_count()), (1, 0));
    store.commit(&[]).unwrap();
    store.compact().unwrap();
    store.sync().unwrap();
    assert!(["memlog", "lmdb"].contains(&store.name()));
}

fn records_are_put_and_deleted(open: &Opener) {
    let mut store = open();
    let puts = [
        Mutation::PutInode(inode(5, 10)),
        put_dentry(1, b"five", 5),
        put_part(1, 1),
        put_outcome(1, true),
        Mutation::NextCount(600),
        Mutation::PutReap(Ino(77)),
    ];
    store.commit(&puts).unwrap();
    assert_eq!(store.inode(Ino(5)), Some(inode(5, 10)));
    assert_eq!(store.dentry(Ino(1), b"five"), Some(dentry(5)));
    assert_eq!(store.dentry(Ino(1), b"fiv"), None);
    assert_eq!(store.dentry(Ino(2), b"five"), None);
    assert_eq!(store.dir_part(Ino(1)).unwrap().entries, 1);
    assert_eq!(store.outcome(TxnId([1; 16])).unwrap(), Outcome { committed: true, at: time(7), moved: None });
    assert_eq!(store.outcomes(9).len(), 1);
    assert_eq!((store.next_count(), store.inode_count()), (600, 1));
    assert_eq!(store.reaps(9), [Ino(77)]);
    let deletes = [
        Mutation::DelInode(Ino(5)),
        Mutation::DelDentry { parent: Ino(1), name: b"five".as_slice().into() },
        Mutation::DelDirPart(Ino(1)),
        Mutation::DelOutcome(TxnId([1; 16])),
        Mutation::DelReap(Ino(77)),
    ];
    // Twice: deleting what is not there is no error.
    store.commit(&deletes).unwrap();
    store.commit(&deletes).unwrap();
    assert_eq!(store.inode(Ino(5)), None);
    assert_eq!(store.list(Ino(1), None, 9), []);
    assert_eq!(store.dir_part(Ino(1)), None);
    assert_eq!(store.outcomes(9), []);
    assert_eq!(store.reaps(9), []);
    assert_eq!((store.next_count(), store.inode_count()), (600, 0));
}

fn listings_are_ordered_and_paged(open: &Opener) {
    let mut store = open();
    let names: [&[u8]; 6] = [b"\x01", b"A", b"a", b"aa", b"b\xff", b"\xff\xff"];
    let batch: Vec<_> = names.iter().rev().map(|name| put_dentry(300, name, 7)).collect();
    store.commit(&batch).unwrap();
    // Neighbours in the order of keys, which must not leak in.
    store
        .commit(&[put_dentry(299, b"\xff", 1), put_dentry(301, b"\x00", 1), put_dentry(44, b"z", 1)])
        .unwrap();
    let list = |after: Option<&[u8]>, max| -> Vec<Vec<u8>> {
        store.list(Ino(300), after, max).into_iter().map(|(name, _)| name.into_vec()).collect()
    };
    assert_eq!(list(None, 100), names);
    assert_eq!(list(None, 2), names[..2]);
    assert_eq!(list(Some(b"a"), 2), names[3..5]);
    assert_eq!(list(Some(b"a\x00"), 1), names[3..4]);
    assert_eq!(list(Some(b"\xff\xff"), 9), Vec::<Vec<u8>>::new());
    assert_eq!(list(None, 0), Vec::<Vec<u8>>::new());
    assert_eq!(store.list(Ino(300), Some(b"A"), 1)[0].1, dentry(7));
}

fn checks_page_in_order(open: &Opener) {
    let mut store = open();
    let inos = [1, 2, 255, 256, 65_536, 1 << 48, u64::MAX];
    for ino in inos.iter().rev() {
        store
            .commit(&[Mutation::PutInode(inode(*ino, 0)), put_part(*ino, *ino), Mutation::PutReap(Ino(*ino))])
            .unwrap();
    }
    let mut seen = Vec::new();
    while let [.., last] = &store.inodes_after(seen.last().copied(), 2)[..] {
        seen.extend(store.inodes_after(seen.last().copied(), 2).iter().map(|inode| inode.attr.ino));
        assert_eq!(seen.last(), Some(&last.attr.ino));
    }
    assert_eq!(seen, inos.map(Ino));
    let parts = store.dir_parts_after(Some(Ino(2)), 3);
    assert_eq!(
        parts.iter().map(|(ino, part)| (ino.0, part.entries)).collect::<Vec<_>>(),
        [(255, 255), (256, 256), (65_536, 65_536)]
    );
    assert_eq!(store.dir_parts_after(None, 0), []);
    assert_eq!(store.reaps(3), [Ino(1), Ino(2), Ino(255)]);
    assert_eq!(store.inode_count(), 7);
}

fn committed_batches_survive_a_reopen(open: &Opener) {
    let mut store = open();
    for round in 0..20u64 {
        let name = format!("file{round}");
        store
            .commit(&[
                Mutation::PutInode(inode(round + 2, round)),
                put_dentry(1, name.as_bytes(), round + 2),
                Mutation::NextCount(round + 3),
            ])
            .unwrap();
        match round % 3 {
            0 => {
                drop(store);
                store = open();
            }
            1 => store.compact().unwrap(),
            _ => store.sync().unwrap(),
        }
        assert_eq!(store.inode_count(), round + 1);
        assert_eq!(store.next_count(), round + 3);
        assert_eq!(store.list(Ino(1), None, 100).len() as u64, round + 1);
        assert_eq!(store.inode(Ino(2)), Some(inode(2, 0)));
    }
}

fn the_last_mutation_of_a_batch_wins(open: &Opener) {
    let mut store = open();
    store
        .commit(&[
            Mutation::PutInode(inode(2, 1)),
            Mutation::DelInode(Ino(2)),
            Mutation::PutInode(inode(2, 2)),
            Mutation::PutInode(inode(3, 1)),
            Mutation::DelInode(Ino(3)),
        ])
        .unwrap();
    drop(store);
    let store = open();
    assert_eq!((store.inode(Ino(2)), store.inode(Ino(3))), (Some(inode(2, 2)), None));
}

fn long_names_and_large_records_fit(open: &Opener) {
    let mut store = open();
    let name = [b'n'; tidepool_types::NAME_MAX];
    let mut large = inode(2, 0);
    large.xattrs = vec![(b"user.big".as_slice().into(), vec![7; tidepool_types::XATTR_BYTES_MAX - 8].into())];
    store.commit(&[put_dentry(u64::MAX, &name, 2), Mutation::PutInode(large.clone())]).unwrap();
    drop(store);
    let store = open();
    assert_eq!(store.inode(Ino(2)), Some(large));
    assert_eq!(store.list(Ino(u64::MAX), None, 9)[0].0[..], name);
}
