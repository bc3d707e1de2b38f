//! The metadata tables in memory.

use super::ordered::Ordered;
use super::room;
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
    /// Most bytes that a snapshot of all takes, its frame left out.
    len: u64,
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
            len: room::OF_NUMBER,
        }
    }
}

impl Tables {
    pub fn apply(&mut self, mutation: Mutation) {
        let put = room::of(&mutation);
        let (stays, went) = self.change(mutation);
        self.len = self.len + if stays { put } else { 0 } - went;
    }

    /// Whether the mutation puts something there, and the bytes of what was there before.
    fn change(&mut self, mutation: Mutation) -> (bool, u64) {
        let went = |was: bool, len: u64| if was { len } else { 0 };
        match mutation {
            Mutation::PutInode(inode) => {
                let before = self.inodes.put(inode.attr.ino.0, Box::new(inode));
                (true, before.map_or(0, |inode| room::of_inode(&inode)))
            }
            Mutation::DelInode(ino) => {
                (false, self.inodes.remove(ino.0).map_or(0, |inode| room::of_inode(&inode)))
            }
            Mutation::PutDentry { parent, name, dentry } => {
                let len = room::of_dentry(&name);
                (true, went(self.dirs.entry(parent.0).or_default().insert(name, dentry).is_some(), len))
            }
            Mutation::DelDentry { parent, name } => {
                (false, went(self.remove_dentry(parent, &name), room::of_dentry(&name)))
            }
            Mutation::PutDirPart { dir, part } => {
                (true, went(self.parts.put(dir.0, part).is_some(), room::OF_PART))
            }
            Mutation::DelDirPart(dir) => (false, went(self.parts.remove(dir.0).is_some(), room::OF_PART)),
            Mutation::PutOutcome { txn, outcome } => {
                (true, went(self.outcomes.insert(txn, outcome).is_some(), room::OF_OUTCOME))
            }
            Mutation::DelOutcome(txn) => {
                (false, went(self.outcomes.remove(&txn).is_some(), room::OF_OUTCOME))
            }
            Mutation::NextCount(count) => {
                self.next_count = count;
                (false, 0)
            }
            Mutation::PutReap(ino) => (true, went(!self.reaps.insert(ino), room::OF_NUMBER)),
            Mutation::DelReap(ino) => (false, went(self.reaps.remove(&ino), room::OF_NUMBER)),
        }
    }

    /// Whether it was there.
    fn remove_dentry(&mut self, parent: Ino, name: &[u8]) -> bool {
        let Some(names) = self.dirs.get_mut(&parent.0) else { return false };
        let was = names.remove(name).is_some();
        // Empty maps of removed directories must not pile up.
        if names.is_empty() {
            self.dirs.remove(&parent.0);
        }
        was
    }

    /// Most bytes that a snapshot of all takes, its frame left out.
    pub fn len(&self) -> u64 {
        self.len
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
