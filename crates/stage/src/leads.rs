//! Symbolic links out of a place that does not outlast the copy, or lies elsewhere for whoever comes after it: a pool.
//!
//! A link that stays within what is copied means the same in the copy. One by the pool's own path gets the relative target that does. One
//! that leads to something else in the pool would lead nowhere when the pool is gone: it is followed, as `rsync --copy-unsafe-links` does,
//! and what it leads to is in the copy under the link's name. Links out of the pool are copied as they are. Docs: `docs/guide/staging.md`.

use crate::end::{DirRef, Meta};
use crate::job::{Job, bump};
use crate::report::Failure;
use crate::sched::DirTask;
use crate::tree::{DirNode, Entry, NewDir, Spot};
use std::sync::Arc;
use tidepool_types::{FileKind, show_bytes};

/// A link that was found.
pub struct LinkAt<'a> {
    /// The directory that it is in: its path from the root of all of the place, without a slash at either end.
    pub dir: &'a [u8],
    /// The directory of which all is copied; none where the link itself was named.
    pub tree: Option<&'a [u8]>,
}

/// Where a link leads.
pub enum Leads {
    /// To what it leads to in the copy as well, or out of the place.
    There,
    /// There, by this target.
    By(Vec<u8>),
    /// To an entry that is not copied with it: its directory, that one's path, and its name.
    Away { dir: DirRef, path: Vec<u8>, name: Vec<u8>, meta: Meta },
    /// To a directory that the link is in.
    Round(Vec<u8>),
    /// To nothing in the place.
    Nowhere,
}

/// What is left to do for a link.
pub(crate) enum Link {
    /// Make it, with this target.
    Make(Vec<u8>),
    /// It is followed: another entry has taken its place.
    Followed,
}

/// The top of what is copied that a directory is in, if there is one, and the directory's own path.
fn position(dir: &DirNode) -> (Option<Arc<[u8]>>, Vec<u8>) {
    let (mut names, mut at): (Vec<&[u8]>, _) = (Vec::new(), dir);
    while let (Spot::Below, Some(parent)) = (&at.spot, &at.parent) {
        names.push(&at.name);
        at = parent;
    }
    let (tree, path) = match &at.spot {
        Spot::Top(path) => (Some(path.clone()), path.clone()),
        Spot::Passage(path) => (None, path.clone()),
        Spot::Below => (None, Arc::default()),
    };
    names.push(&path);
    names.reverse();
    let path = names.join(&b'/');
    (tree, path)
}

/// A directory that is being copied already, above this one or as it.
fn is_in(dir: &DirNode, key: (u64, u64)) -> bool {
    let mut at = Some(dir);
    while let Some(node) = at {
        if node.meta.as_ref().is_some_and(|meta| meta.key() == key) {
            return true;
        }
        at = node.parent.as_deref();
    }
    false
}

fn round(path: &[u8]) -> Failure {
    let text = "which it is in, so following it has no end: make it a relative link within what is copied, or remove it";
    Failure::Refused(format!("it leads to /{}, {text}", show_bytes(path)))
}

impl Job<'_> {
    /// What a link's copy is made with, or that it is none.
    pub fn led(&self, entry: &Entry, target: Vec<u8>) -> Result<Link, Failure> {
        if !self.leads {
            return Ok(Link::Make(target));
        }
        let (tree, dir) = position(&entry.dir);
        let at = LinkAt { dir: &dir, tree: tree.as_deref() };
        match self.src.leads(&at, &target).map_err(Failure::source)? {
            Leads::There => Ok(Link::Make(target)),
            Leads::By(target) => Ok(Link::Make(target)),
            Leads::Nowhere => {
                let text = format!("it leads to {}, where nothing is; copied as it is", show_bytes(&target));
                self.findings.warn(entry.path(), text);
                Ok(Link::Make(target))
            }
            Leads::Round(path) => Err(round(&path)),
            Leads::Away { path, name, meta, .. } if is_in(&entry.dir, meta.key()) => {
                Err(round(&[&path[..], &name].join(&b'/')))
            }
            Leads::Away { path, name, .. } if self.is_move() => Err(Failure::Refused(format!(
                "it leads to /{}/{}, which is not moved with it; copy it instead",
                show_bytes(&path),
                show_bytes(&name)
            ))),
            Leads::Away { dir, path, name, meta } => {
                self.follow(entry, (dir, path), name, &meta);
                Ok(Link::Followed)
            }
        }
    }

    /// Has what a link leads to copied under its name.
    fn follow(&self, link: &Entry, (dir, path): (DirRef, Vec<u8>), name: Vec<u8>, meta: &Meta) {
        let way = DirNode::new(NewDir {
            parent: Some(link.dir.clone()),
            name: Arc::from(&b""[..]),
            src: dir,
            dst: link.dir.dst.clone(),
            meta: None,
            fresh: link.dir.fresh,
            mtime: None,
            spot: Spot::Passage(path.into()),
        });
        let mut entry = Entry::new(way, name.into(), link.to.clone(), Some(meta.kind));
        self.bury(link);
        bump(&self.control.inner.files_done, 1);
        if meta.kind == FileKind::Regular {
            self.see(&mut entry, meta.size);
        }
        let (dirs, files): (Vec<DirTask>, Vec<Entry>) = self.sort_entry(entry, 0);
        self.sched.add(dirs, files);
    }
}
