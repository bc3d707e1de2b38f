//! What a copy has finished, so that a move removes exactly that from the source.
//!
//! About 30 bytes of memory per entry: one hash, and a second for names of hard-linked objects.

use crate::end::Meta;
use crate::sync::lock;
use crate::tree::{PathHash, first_16};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::sync::Mutex;
use tidepool_types::{FileKind, TimeSpec};

type Proof = [u8; 16];

#[derive(Default)]
pub(crate) struct Ledger {
    proofs: Mutex<HashSet<Proof>>,
    /// Objects of which the move removed a name, which changes the ctime of the others.
    parted: Mutex<HashSet<(u64, u64)>>,
}

/// Names an entry and what it was. Directories change while entries are removed from them,
/// so only who they are counts.
fn proof(path: PathHash, meta: &Meta, with_ctime: bool) -> Proof {
    let mut hasher = Sha256::new();
    hasher.update(path.0);
    for number in [meta.dev, meta.ino, meta.kind.mode_bits().into(), with_ctime.into()] {
        hasher.update(number.to_le_bytes());
    }
    if meta.kind != FileKind::Directory {
        hasher.update(meta.size.to_le_bytes());
        for TimeSpec { sec, nsec } in
            [Some(meta.mtime), with_ctime.then_some(meta.ctime)].into_iter().flatten()
        {
            hasher.update(sec.to_le_bytes());
            hasher.update(nsec.to_le_bytes());
        }
    }
    first_16(&hasher.finalize())
}

fn has_names(meta: &Meta) -> bool {
    meta.kind != FileKind::Directory && meta.nlink > 1
}

impl Ledger {
    /// `meta` is what the entry was when it was copied and, by the copy's own check, still was
    /// afterwards.
    pub fn add(&self, path: PathHash, meta: &Meta) {
        let mut proofs = lock(&self.proofs);
        proofs.insert(proof(path, meta, true));
        if has_names(meta) {
            proofs.insert(proof(path, meta, false));
        }
    }

    /// True when the entry was copied and is still what it was.
    pub fn has(&self, path: PathHash, now: &Meta) -> bool {
        let has = |with_ctime| lock(&self.proofs).contains(&proof(path, now, with_ctime));
        has(true) || (lock(&self.parted).contains(&now.key()) && has(false))
    }

    /// Tells that a name of the object is about to be removed.
    pub fn part(&self, meta: &Meta) {
        if has_names(meta) {
            lock(&self.parted).insert(meta.key());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(ino: u64, nlink: u64, ctime: i64) -> Meta {
        let time = |sec| TimeSpec { sec, nsec: 1 };
        Meta {
            dev: 1,
            ino,
            kind: FileKind::Regular,
            mode: 0o644,
            nlink,
            uid: 0,
            gid: 0,
            size: 10,
            stored: 10,
            rdev: 0,
            atime: time(3),
            mtime: time(2),
            ctime: time(ctime),
        }
    }

    #[test]
    fn only_what_was_copied_and_is_the_same_counts() {
        let ledger = Ledger::default();
        let (path, was) = (PathHash::default().child(b"a"), meta(5, 1, 7));
        ledger.add(path, &was);
        assert!(ledger.has(path, &was));
        assert!(ledger.has(path, &Meta { atime: TimeSpec::default(), mode: 0, ..was.clone() }));
        assert!(!ledger.has(PathHash::default().child(b"b"), &was));
        for changed in [
            Meta { size: 11, ..was.clone() },
            Meta { ino: 6, ..was.clone() },
            Meta { mtime: TimeSpec { sec: 2, nsec: 2 }, ..was.clone() },
            Meta { ctime: TimeSpec { sec: 7, nsec: 2 }, ..was.clone() },
            Meta { kind: FileKind::Symlink, ..was.clone() },
        ] {
            assert!(!ledger.has(path, &changed), "{changed:?}");
        }
    }

    #[test]
    fn other_names_may_be_changed_by_our_removal_only() {
        let ledger = Ledger::default();
        let path = PathHash::default().child(b"b");
        ledger.add(path, &meta(5, 2, 7));
        let left = meta(5, 1, 8);
        assert!(!ledger.has(path, &left), "somebody else removed the other name or did more");
        ledger.part(&meta(5, 2, 7));
        assert!(ledger.has(path, &left));
        assert!(!ledger.has(path, &Meta { size: 9, ..left }));
    }
}
