//! The metadata tables in memory.

use super::ordered::Ordered;
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
    pub inodes: Ordered<Box<Inode>>,
    dirs: FxHashMap<u64, Names>,
    pub parts: Ordered<DirPart>,
    pub outcomes: FxHashMap<TxnId, Outcome>,
    pub next_count: u64,
    pub reaps: BTreeSet<Ino>,
}

impl Default for Tables {
    fn default() -> Tables {
        Tables {
            inodes: Ordered::default(),
            dirs: FxHashMap::default(),
            parts: Ordered::default(),
            outcomes: FxHashMap::default(),
            next_count: COUNT_FIRST,
            reaps: BTreeSet::new(),
        }
    }
}

impl Tables {
    pub fn apply(&mut self, mutation: Mutation) {
        match mutation {
            Mutation::PutInode(inode) => self.inodes.put(inode.attr.ino.0, Box::new(inode)),
            Mutation::DelInode(ino) => self.inodes.remove(ino.0),
            Mutation::PutDentry { parent, name, dentry } => {
                self.dirs.entry(parent.0).or_default().insert(name, dentry);
            }
            Mutation::DelDentry { parent, name } => self.remove_dentry(parent, &name),
            Mutation::PutDirPart { dir, part } => self.parts.put(dir.0, part),
            Mutation::DelDirPart(dir) => self.parts.remove(dir.0),
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
        let inodes = self.inodes.iter().map(|(_, inode)| Mutation::PutInode((**inode).clone()));
        let dentries = self.dirs.iter().flat_map(|(parent, names)| {
            let parent = Ino(*parent);
            names.iter().map(move |(name, dentry)| Mutation::PutDentry {
                parent,
                name: name.clone(),
                dentry: dentry.clone(),
            })
        });
        let parts = self.parts.iter().map(|(dir, part)| Mutation::PutDirPart { dir: Ino(dir), part: *part });
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
