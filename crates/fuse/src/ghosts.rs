//! Objects without a name that the kernel still holds: a directory somebody stands in, a
//! FIFO that is open. Daemons keep nameless regular files for open handles only, so the last
//! attributes of the others are kept here until the kernel forgets them.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use tidepool_types::{Attr, FileKind, Ino};

/// Lookups remembered. The kernel looks a name up right before it removes it.
const RECENT_MAX: usize = 1024;
/// Nameless objects remembered; all are forgotten when the table is full.
const GHOSTS_MAX: usize = 4096;

struct Seen {
    dir: Ino,
    name: Box<[u8]>,
    attr: Attr,
}

pub struct Ghosts {
    hash: RandomState,
    recent: Box<[Mutex<Option<Seen>>]>,
    gone: Mutex<HashMap<Ino, Attr>>,
}

impl Default for Ghosts {
    fn default() -> Ghosts {
        Ghosts {
            hash: RandomState::new(),
            recent: (0..RECENT_MAX).map(|_| Mutex::new(None)).collect(),
            gone: Mutex::default(),
        }
    }
}

impl Ghosts {
    fn slot(&self, dir: Ino, name: &[u8]) -> &Mutex<Option<Seen>> {
        &self.recent[self.hash.hash_one((dir, name)) as usize % RECENT_MAX]
    }

    /// Notes what a name was last seen to be.
    pub fn seen(&self, dir: Ino, name: &[u8], attr: &Attr) {
        let seen = Seen { dir, name: name.into(), attr: attr.clone() };
        *self.slot(dir, name).lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
    }

    /// True when the name is known to be a regular file's, of which the daemons keep what is open.
    pub fn needs_none(&self, dir: Ino, name: &[u8]) -> bool {
        let slot = self.slot(dir, name).lock().unwrap_or_else(PoisonError::into_inner);
        let seen = slot.as_ref().filter(|s| s.dir == dir && *s.name == *name);
        seen.is_some_and(|s| s.attr.kind() == FileKind::Regular)
    }

    /// What a name was last seen to be.
    pub fn last_seen(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        let slot = self.slot(dir, name).lock().unwrap_or_else(PoisonError::into_inner);
        slot.as_ref().filter(|seen| seen.dir == dir && *seen.name == *name).map(|seen| seen.attr.ino)
    }

    /// Notes that a name was removed, or replaced by rename.
    pub fn removed(&self, dir: Ino, name: &[u8]) {
        let slot = self.slot(dir, name).lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Seen { mut attr, .. }) = slot.filter(|s| s.dir == dir && *s.name == *name) else { return };
        if attr.is_dir() || attr.nlink <= 1 {
            attr.nlink = 0;
            let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
            if gone.len() >= GHOSTS_MAX {
                gone.clear();
            }
            gone.insert(attr.ino, attr);
        }
    }

    /// Last attributes of an object that the daemons no longer know.
    pub fn get(&self, ino: Ino) -> Option<Attr> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner).get(&ino).cloned()
    }

    /// The kernel has let go of an object.
    pub fn forget(&self, ino: Ino) {
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone.remove(&ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_types::TimeSpec;

    fn attr(ino: u64, mode: u32, nlink: u32) -> Attr {
        let time = TimeSpec::default();
        Attr {
            ino: Ino(ino),
            mode,
            nlink,
            uid: 0,
            gid: 0,
            size: 0,
            blocks: 0,
            rdev: 0,
            atime: time,
            mtime: time,
            ctime: time,
            layout: Some(tidepool_types::Layout::default()),
        }
    }

    #[test]
    fn the_last_name_leaves_a_ghost_until_it_is_forgotten() {
        let ghosts = Ghosts::default();
        ghosts.seen(Ino::ROOT, b"d", &attr(7, libc::S_IFDIR, 3));
        ghosts.removed(Ino::ROOT, b"other");
        assert_eq!(ghosts.get(Ino(7)), None);
        ghosts.removed(Ino::ROOT, b"d");
        assert_eq!(ghosts.get(Ino(7)).unwrap().nlink, 0);
        ghosts.forget(Ino(7));
        assert_eq!(ghosts.get(Ino(7)), None);
    }

    #[test]
    fn an_object_with_further_names_leaves_none() {
        let ghosts = Ghosts::default();
        ghosts.seen(Ino::ROOT, b"f", &attr(8, libc::S_IFREG, 2));
        ghosts.removed(Ino::ROOT, b"f");
        assert_eq!(ghosts.get(Ino(8)), None);
    }
}
