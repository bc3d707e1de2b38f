//! The metadata tables in memory.

use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use tidepool_types::{Ino, TxnId};
use tidepool_wire::record::{Dentry, DirPart, Inode, Mutation, Outcome};

type Names = BTreeMap<Box<[u8]>, Dentry>;

/// First object number of a store that nothing was committed to; id 0 is never valid.
pub(super) const COUNT_FIRST: u64 = 1;

#[derive(Debug)]
pub(super) struct Tables {
    /// Boxed: half of a hash table may be empty places, which should be small.
    pub inodes: FxHashMap<u64, Box<Inode>>,
    dirs: FxHashMap<u64, Names>,
    pub parts: FxHashMap<u64, DirPart>,
    pub outcomes: FxHashMap<TxnId, Outcome>,
    pub next_count: u64,
    pub reaps: BTreeSet<Ino>,
}

impl Default for Tables {
    fn default() -> Tables {
        Tables {
            inodes: FxHashMap::default(),
            dirs: FxHashMap::default(),
            parts: FxHashMap::default(),
            outcomes: FxHashMap::default(),
            next_count: COUNT_FIRST,
            reaps: BTreeSet::new(),
        }
    }
}

impl Tables {
    pub fn apply(&mut self, mutation: Mutation) {
        match mutation {
            Mutation::PutInode(inode) => drop(self.inodes.insert(inode.attr.ino.0, Box::new(inode))),
            Mutation::DelInode(ino) => drop(self.inodes.remove(&ino.0)),
            Mutation::PutDentry { parent, name, dentry } => {
                self.dirs.entry(parent.0).or_default().insert(name, dentry);
            }
            Mutation::DelDentry { parent, name } => self.remove_dentry(parent, &name),
            Mutation::PutDirPart { dir, part } => drop(self.parts.insert(dir.0, part)),
            Mutation::DelDirPart(dir) => drop(self.parts.remove(&dir.0)),
            Mutation::PutOutcome { txn, outcome } => drop(self.outcomes.insert(txn, outcome)),
            Mutation::DelOutcome(txn) => drop(self.outcomes.remove(&txn)),
            Mutation::NextCount(count) => self.next_count = count,
            Mutation::PutReap(ino) => drop(self.reaps.insert(ino)),
            Mutation::DelReap(ino) => drop(self.reaps.remove(&ino)),
        }
    }

    fn remove_dentry(&mut self, parent: Ino, name: &[u8]) {
        if let Some(names) = self.dirs.get_mut(&parent.0) {
            names.remove(name);
            // Empty maps of removed directories must not pile up.
            if names.is_empty() {
                self.dirs.remove(&parent.0);
            }
        }
    }

    pub fn dentry(&self, parent: Ino, name: &[u8]) -> Option<&Dentry> {
        self.dirs.get(&parent.0)?.get(name)
    }

    pub fn list(&self, dir: Ino, after: Option<&[u8]>, max: usize) -> Vec<(Box<[u8]>, Dentry)> {
        let Some(names) = self.dirs.get(&dir.0) else { return Vec::new() };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let found = names.range::<[u8], _>((from, Bound::Unbounded)).take(max);
        found.map(|(name, dentry)| (name.clone(), dentry.clone())).collect()
    }

    /// Mutations that make these tables out of empty ones.
    pub fn mutations(&self) -> impl Iterator<Item = Mutation> {
        let inodes = self.inodes.values().map(|inode| Mutation::PutInode((**inode).clone()));
        let dentries = self.dirs.iter().flat_map(|(parent, names)| {
            let parent = Ino(*parent);
            names.iter().map(move |(name, dentry)| Mutation::PutDentry {
                parent,
                name: name.clone(),
                dentry: dentry.clone(),
            })
        });
        let parts = self.parts.iter().map(|(dir, part)| Mutation::PutDirPart { dir: Ino(*dir), part: *part });
        let outcomes =
            self.outcomes.iter().map(|(txn, outcome)| Mutation::PutOutcome { txn: *txn, outcome: *outcome });
        let reaps = self.reaps.iter().copied().map(Mutation::PutReap);
        std::iter::once(Mutation::NextCount(self.next_count))
            .chain(inodes)
            .chain(dentries)
            .chain(parts)
            .chain(outcomes)
            .chain(reaps)
    }
}

/// All keys of a map in order, page by page, for checks: they are looked through once, when the first page is asked for. What is put in
/// later is not among them; what is taken out is left out.
#[derive(Debug, Default)]
pub(super) struct KeyScan {
    sorted: Vec<u64>,
    /// How often all keys were looked through.
    #[cfg(test)]
    pub begun: u32,
}

impl KeyScan {
    /// The `max` smallest keys above `after`, ascending.
    pub fn page<V>(&mut self, map: &FxHashMap<u64, V>, after: Option<Ino>, max: usize) -> Vec<u64> {
        if after.is_none() || self.sorted.is_empty() {
            self.begin(map);
        }
        let from = after.map_or(0, |after| self.sorted.partition_point(|key| *key <= after.0));
        let there = self.sorted[from..].iter().copied().filter(|key| map.contains_key(key));
        let page: Vec<u64> = there.take(max).collect();
        if page.len() < max {
            self.sorted = Vec::new();
        }
        page
    }

    fn begin<V>(&mut self, map: &FxHashMap<u64, V>) {
        self.sorted = map.keys().copied().collect();
        self.sorted.sort_unstable();
        #[cfg(test)]
        {
            self.begun += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(keys: impl Iterator<Item = u64>) -> FxHashMap<u64, ()> {
        keys.map(|key| (key, ())).collect()
    }

    fn pages(scan: &mut KeyScan, map: &FxHashMap<u64, ()>, max: usize) -> Vec<u64> {
        let mut all: Vec<u64> = Vec::new();
        loop {
            let page = scan.page(map, all.last().map(|last| Ino(*last)), max);
            all.extend(&page);
            if page.len() < max {
                return all;
            }
        }
    }

    #[test]
    fn all_keys_come_in_order_and_are_looked_through_once() {
        let (map, mut scan) = (map((0..10_000).map(|n| n * 37 % 10_007 + 1)), KeyScan::default());
        let mut wanted: Vec<u64> = map.keys().copied().collect();
        wanted.sort_unstable();
        assert_eq!(pages(&mut scan, &map, 7), wanted);
        assert_eq!((scan.begun, scan.sorted.capacity()), (1, 0), "and nothing is kept");
        assert_eq!(pages(&mut scan, &map, 5000), wanted, "the last page is full");
        assert_eq!(scan.begun, 2);
    }

    #[test]
    fn keys_that_go_meanwhile_are_left_out() {
        let (mut map, mut scan) = (map(1..=10), KeyScan::default());
        assert_eq!(scan.page(&map, None, 3), [1, 2, 3]);
        map.remove(&3);
        map.remove(&4);
        map.insert(20, ());
        assert_eq!(scan.page(&map, Some(Ino(3)), 3), [5, 6, 7]);
        let rest = scan.page(&map, Some(Ino(7)), 9);
        assert!(rest == [8, 9, 10] || rest == [8, 9, 10, 20]);
        assert_eq!(scan.page(&map, None, 20).len(), 9, "a new scan has all");
    }

    #[test]
    fn two_at_the_same_time_have_all_each() {
        let (map, mut scan) = (map(1..=100), KeyScan::default());
        let mut seen = [Vec::new(), Vec::new()];
        for turn in 0..60 {
            let mine: &mut Vec<u64> = &mut seen[turn % 2];
            let page = scan.page(&map, mine.last().map(|last| Ino(*last)), 4);
            mine.extend(page);
        }
        let all: Vec<u64> = (1..=100).collect();
        assert!(seen.iter().all(|seen| *seen == all));
    }
}
