//! Random batches, reopening and compaction in between, against plain `BTreeMap`s.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
struct Oracle {
    inodes: BTreeMap<Ino, Inode>,
    dentries: BTreeMap<(Ino, Box<[u8]>), Dentry>,
    parts: BTreeMap<Ino, DirPart>,
    outcomes: BTreeMap<TxnId, Outcome>,
    next_count: Option<u64>,
    reaps: BTreeSet<Ino>,
}

impl Oracle {
    fn apply(&mut self, mutation: &Mutation) {
        match mutation.clone() {
            Mutation::PutInode(inode) => drop(self.inodes.insert(inode.attr.ino, inode)),
            Mutation::DelInode(ino) => drop(self.inodes.remove(&ino)),
            Mutation::PutDentry { parent, name, dentry } => {
                self.dentries.insert((parent, name), dentry);
            }
            Mutation::DelDentry { parent, name } => {
                self.dentries.remove(&(parent, name));
            }
            Mutation::PutDirPart { dir, part } => drop(self.parts.insert(dir, part)),
            Mutation::DelDirPart(dir) => drop(self.parts.remove(&dir)),
            Mutation::PutOutcome { txn, outcome } => drop(self.outcomes.insert(txn, outcome)),
            Mutation::DelOutcome(txn) => drop(self.outcomes.remove(&txn)),
            Mutation::NextCount(count) => self.next_count = Some(count),
            Mutation::PutReap(ino) => drop(self.reaps.insert(ino)),
            Mutation::DelReap(ino) => drop(self.reaps.remove(&ino)),
        }
    }

    fn agrees(&self, store: &dyn MetaStore) {
        let inodes: Vec<_> = self.inodes.values().cloned().collect();
        assert_eq!(store.inodes_after(None, 1000), inodes);
        assert_eq!(store.inodes_after(Some(Ino(4)), 2), inodes_above(&self.inodes, 4, 2));
        assert_eq!(store.inode_count(), inodes.len() as u64);
        let parts: Vec<_> = self.parts.iter().map(|(dir, part)| (*dir, *part)).collect();
        assert_eq!(store.dir_parts_after(None, 1000), parts);
        assert_eq!(store.reaps(1000), self.reaps.iter().copied().collect::<Vec<_>>());
        assert_eq!(store.outcomes(1000).into_iter().collect::<BTreeMap<_, _>>(), self.outcomes);
        assert_eq!(store.next_count(), self.next_count.unwrap_or(1));
        for ino in (1..9).map(Ino) {
            assert_eq!(store.inode(ino).as_ref(), self.inodes.get(&ino));
            assert_eq!(store.dir_part(ino).as_ref(), self.parts.get(&ino));
            self.directory_agrees(store, ino);
        }
    }

    fn directory_agrees(&self, store: &dyn MetaStore, dir: Ino) {
        let names: Vec<_> = self.dentries.iter().filter(|((parent, _), _)| *parent == dir).collect();
        let listed = store.list(dir, None, 1000);
        assert!(
            listed.iter().map(|(name, dentry)| (name, dentry)).eq(names.iter().map(|((_, n), d)| (n, *d)))
        );
        let after: Vec<_> = store.list(dir, Some(b"b"), 2);
        let above: Vec<_> = listed.iter().filter(|(name, _)| name[..] > b"b"[..]).take(2).cloned().collect();
        assert_eq!(after, above);
        for (name, dentry) in &listed {
            assert_eq!(store.dentry(dir, name).as_ref(), Some(dentry));
        }
    }
}

fn inodes_above(inodes: &BTreeMap<Ino, Inode>, ino: u64, max: usize) -> Vec<Inode> {
    inodes.range(Ino(ino + 1)..).take(max).map(|(_, inode)| inode.clone()).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Commit(Vec<Mutation>),
    Reopen,
    Compact,
    Sync,
}

pub(super) fn mutation() -> impl Strategy<Value = Mutation> {
    let ino = || 1..9u64;
    let name = || prop::collection::vec(b'a'..b'd', 1..3);
    prop_oneof![
        (ino(), any::<u64>()).prop_map(|(ino, size)| Mutation::PutInode(inode(ino, size))),
        ino().prop_map(|ino| Mutation::DelInode(Ino(ino))),
        (ino(), name(), ino()).prop_map(|(parent, name, ino)| put_dentry(parent, &name, ino)),
        (ino(), name())
            .prop_map(|(parent, name)| Mutation::DelDentry { parent: Ino(parent), name: name.into() }),
        (ino(), any::<u64>()).prop_map(|(dir, entries)| put_part(dir, entries)),
        ino().prop_map(|dir| Mutation::DelDirPart(Ino(dir))),
        (0..4u8, any::<bool>()).prop_map(|(txn, committed)| put_outcome(txn, committed)),
        (0..4u8).prop_map(|txn| Mutation::DelOutcome(TxnId([txn; 16]))),
        any::<u64>().prop_map(Mutation::NextCount),
        ino().prop_map(|ino| Mutation::PutReap(Ino(ino))),
        ino().prop_map(|ino| Mutation::DelReap(Ino(ino))),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::collection::vec(mutation(), 0..8).prop_map(Step::Commit),
        1 => Just(Step::Reopen),
        1 => Just(Step::Compact),
        1 => Just(Step::Sync),
    ]
}

fn follow(open: &Opener, steps: &[Step]) {
    let mut store = open();
    let mut oracle = Oracle::default();
    for step in steps {
        match step {
            Step::Commit(batch) => {
                store.commit(batch).unwrap();
                batch.iter().for_each(|mutation| oracle.apply(mutation));
            }
            Step::Reopen => {
                drop(store);
                store = open();
            }
            Step::Compact => store.compact().unwrap(),
            Step::Sync => store.sync().unwrap(),
        }
        oracle.agrees(&*store);
    }
    drop(store);
    oracle.agrees(&*open());
}

proptest! {
    #[test]
    fn memlog_agrees_with_the_oracle(steps in prop::collection::vec(step(), 1..40)) {
        follow(&memlog_opener(), &steps);
    }
}

proptest! {
    // Each case makes files.
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn lmdb_agrees_with_the_oracle(steps in prop::collection::vec(step(), 1..25)) {
        follow(&lmdb_opener(), &steps);
    }
}
