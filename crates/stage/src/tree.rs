//! The part of the tree that is being copied, and how it is named in messages.

use crate::end::{DirRef, Meta};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use tidepool_types::{FileKind, TimeSpec, show_bytes};

/// Bytes of a path shown in a message; of a longer one the end is shown.
const PATH_SHOWN_MAX: usize = 2048;

/// Names a path below the root of a copy in the journal: each level hashes the one above
/// and its own name, so that no path string is ever needed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PathHash(pub [u8; 16]);

impl PathHash {
    pub fn child(self, name: &[u8]) -> PathHash {
        let mut hasher = Sha256::new();
        hasher.update(self.0);
        hasher.update(name);
        PathHash(first_16(&hasher.finalize()))
    }
}

pub(crate) fn first_16(digest: &[u8]) -> [u8; 16] {
    digest[..16].try_into().expect("a digest has 32 bytes")
}

/// A directory while anything below it is unfinished.
pub(crate) struct DirNode {
    pub parent: Option<Arc<DirNode>>,
    pub name: Arc<[u8]>,
    pub hash: PathHash,
    pub src: DirRef,
    pub dst: DirRef,
    /// Source attributes when the directory was opened; `None` for the root of a copy of a
    /// single entry, whose own attributes are nobody's business.
    pub meta: Option<Meta>,
    /// Made by this run, so nothing can be in it yet.
    pub fresh: bool,
    /// The time it gets in place of the source's.
    pub mtime: Option<TimeSpec>,
    pub failed: AtomicBool,
    pub spot: Spot,
    /// Times it was listed again, when it is being removed.
    pub listed: AtomicU32,
    /// Unfinished entries, and one for the listing.
    pending: AtomicUsize,
}

impl Drop for DirNode {
    fn drop(&mut self) {
        // By hand: see `LocalDir`.
        let mut next = self.parent.take();
        while let Some(mut node) = next.and_then(Arc::into_inner) {
            next = node.parent.take();
        }
    }
}

/// Where a directory of the source is, as far as links in it need that.
#[derive(Clone, Debug, Default)]
pub(crate) enum Spot {
    /// In its parent.
    #[default]
    Below,
    /// All of it is copied; its path at the source.
    Top(Arc<[u8]>),
    /// One entry of it is; its path at the source.
    Passage(Arc<[u8]>),
}

/// What a directory node is made of.
pub(crate) struct NewDir {
    pub parent: Option<Arc<DirNode>>,
    pub name: Arc<[u8]>,
    pub src: DirRef,
    pub dst: DirRef,
    pub meta: Option<Meta>,
    pub fresh: bool,
    pub mtime: Option<TimeSpec>,
    pub spot: Spot,
}

impl DirNode {
    pub fn new(new: NewDir) -> Arc<DirNode> {
        let hash = new.parent.as_ref().map_or_else(PathHash::default, |p| p.hash.child(&new.name));
        Arc::new(DirNode {
            parent: new.parent,
            name: new.name,
            hash,
            src: new.src,
            dst: new.dst,
            meta: new.meta,
            fresh: new.fresh,
            mtime: new.mtime,
            spot: new.spot,
            failed: AtomicBool::new(false),
            listed: AtomicU32::new(0),
            pending: AtomicUsize::new(1),
        })
    }

    /// Notes further unfinished entries.
    pub fn add(&self, count: usize) {
        self.pending.fetch_add(count, Ordering::AcqRel);
    }

    /// Notes that an entry or the listing is finished; true for the last.
    pub fn finish_one(&self) -> bool {
        self.pending.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Path of an entry below the root of the copy, for people.
    pub fn path_of(&self, name: &[u8]) -> String {
        let mut names: Vec<&[u8]> = vec![name];
        let mut bytes = name.len();
        let mut at = Some(self);
        let mut cut = false;
        while let Some(dir) = at.filter(|d| d.parent.is_some()) {
            if dir.is_detour() {
                at = dir.parent.as_deref();
                continue;
            }
            bytes += dir.name.len() + 1;
            if bytes > PATH_SHOWN_MAX {
                cut = true;
                break;
            }
            names.push(&dir.name);
            at = dir.parent.as_deref();
        }
        names.reverse();
        let path = show_bytes(&names.join(&b'/'));
        if cut { format!("…/{path}") } else { path }
    }

    /// It stands between a link that is followed and what that leads to.
    pub fn is_detour(&self) -> bool {
        self.parent.is_some() && matches!(self.spot, Spot::Passage(_))
    }

    /// Path of the directory itself.
    pub fn path(&self) -> String {
        match &self.parent {
            Some(parent) => parent.path_of(&self.name),
            None => ".".into(),
        }
    }
}

/// An entry to be copied.
#[derive(Clone)]
pub(crate) struct Entry {
    pub dir: Arc<DirNode>,
    pub from: Arc<[u8]>,
    /// Differs from `from` only for a single entry copied under another name.
    pub to: Arc<[u8]>,
    pub kind: Option<FileKind>,
    pub attempt: u32,
    /// Has waited for another name of its object.
    pub deferred: bool,
    /// Bytes of it counted as seen.
    pub seen: u64,
    /// Those of them counted as done.
    pub credited: u64,
    /// What its source was when its copy began, when that matters later.
    pub meta: Option<Arc<Meta>>,
}

impl Entry {
    pub fn new(dir: Arc<DirNode>, from: Arc<[u8]>, to: Arc<[u8]>, kind: Option<FileKind>) -> Entry {
        Entry { dir, from, to, kind, attempt: 0, deferred: false, seen: 0, credited: 0, meta: None }
    }

    pub fn hash(&self) -> PathHash {
        self.dir.hash.child(&self.to)
    }

    pub fn path(&self) -> String {
        self.dir.path_of(if self.dir.is_detour() { &self.to } else { &self.from })
    }

    /// The whole path at the destination, below the root of the copy.
    pub fn path_bytes(&self) -> Vec<u8> {
        let mut names: Vec<&[u8]> = vec![&self.to];
        let mut at = Some(&*self.dir);
        while let Some(dir) = at {
            names.push(&dir.name);
            at = dir.parent.as_deref();
        }
        names.reverse();
        names.join(&b'/')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_hashes_depend_on_the_levels() {
        let root = PathHash::default();
        assert_ne!(root.child(b"a").child(b"b"), root.child(b"ab"));
        assert_ne!(root.child(b"a").child(b"b"), root.child(b"b").child(b"a"));
    }
}
