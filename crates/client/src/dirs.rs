//! Directories this client has seen, valid for one generation.
//!
//! Only directories are kept: an entry that is a directory changes only by rename, rmdir
//! and changes of its permissions, and each of those raises every daemon's directory epoch
//! before it returns. A request that relies on the cache carries the epoch it was filled
//! under; a daemon whose epoch is newer refuses it, and the path is resolved again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use tidepool_types::{Attr, Ino, Layout};
use tidepool_wire::record::Inode;

/// Directories kept; the cache is emptied when it is full.
const DIRS_MAX: usize = 1 << 16;

/// What resolving a path needs to know of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirInfo {
    pub ino: Ino,
    pub parent: Ino,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// What it says of the files made in it.
    pub layout: Option<Layout>,
}

impl DirInfo {
    pub fn of(inode: &Inode) -> DirInfo {
        DirInfo::from_attr(&inode.attr, inode.parent)
    }

    pub fn from_attr(attr: &Attr, parent: Ino) -> DirInfo {
        DirInfo { ino: attr.ino, parent, mode: attr.mode, uid: attr.uid, gid: attr.gid, layout: attr.layout }
    }
}

#[derive(Default)]
struct Tables {
    by_entry: HashMap<Ino, HashMap<Box<[u8]>, Ino>>,
    by_ino: HashMap<Ino, DirInfo>,
}

/// The cache. Each answer is bound to the generation it was asked for.
#[derive(Default)]
pub struct DirCache {
    generation: AtomicU64,
    tables: RwLock<Tables>,
}

impl DirCache {
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Forgets everything. The generation moves first, so that nobody adds what was
    /// resolved before.
    pub fn flush(&self) {
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        self.generation.fetch_add(1, Ordering::AcqRel);
        *tables = Tables::default();
    }

    pub fn entry(&self, parent: Ino, name: &[u8]) -> Option<DirInfo> {
        let tables = self.tables.read().unwrap_or_else(PoisonError::into_inner);
        let ino = tables.by_entry.get(&parent)?.get(name)?;
        tables.by_ino.get(ino).copied()
    }

    pub fn info(&self, dir: Ino) -> Option<DirInfo> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner).by_ino.get(&dir).copied()
    }

    /// Keeps a directory learned under `generation`, and the entry it was found by.
    pub fn add(&self, generation: u64, info: DirInfo, entry: Option<(Ino, &[u8])>) {
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        if self.generation() != generation {
            return;
        }
        if tables.by_ino.len() >= DIRS_MAX {
            *tables = Tables::default();
        }
        tables.by_ino.insert(info.ino, info);
        if let Some((parent, name)) = entry {
            tables.by_entry.entry(parent).or_default().insert(name.into(), info.ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_resolved_before_a_flush_is_not_added_after_it() {
        let info = DirInfo { ino: Ino(5), parent: Ino::ROOT, mode: 0o40755, uid: 0, gid: 0, layout: None };
        let cache = DirCache::default();
        let before = cache.generation();
        cache.add(before, info, Some((Ino::ROOT, b"d")));
        assert_eq!(cache.entry(Ino::ROOT, b"d"), Some(info));
        cache.flush();
        assert_eq!(cache.entry(Ino::ROOT, b"d"), None);
        cache.add(before, info, Some((Ino::ROOT, b"d")));
        assert_eq!(cache.info(Ino(5)), None);
    }
}
