//! What is neither a regular file nor a directory.

use crate::end::{At, EndError, EndResult, Meta};
use crate::job::{Job, Outcome};
use crate::leads::Link;
use crate::links::{Claimed, Key};
use crate::ordered::Held;
use crate::report::Failure;
use crate::tree::Entry;
use tidepool_types::{Errno, FileKind};

fn outcome(kind: FileKind) -> Outcome {
    if kind == FileKind::Symlink { Outcome::Symlink } else { Outcome::Special }
}

/// Whether a copy takes the place of what is there. A device, a FIFO or a socket is somebody's way to something, not a
/// copy of before: only the same one may be made anew. A directory refuses by itself.
pub(crate) fn may_replace(there: &Meta, by: &Meta) -> EndResult<()> {
    let is_way = !matches!(there.kind, FileKind::Regular | FileKind::Symlink | FileKind::Directory);
    if !is_way || (there.kind, there.rdev) == (by.kind, by.rdev) {
        return Ok(());
    }
    let detail = format!("{} has this name, and a copy replaces only files and links", there.kind.words());
    Err(EndError { errno: Errno::EEXIST, operation: "replace", detail: Some(detail) })
}

impl Job<'_> {
    /// What has the entry's name at the destination, if a copy may take its place.
    pub fn replaced(&self, entry: &Entry, by: &Meta) -> Result<Option<Meta>, Failure> {
        let there = self.there(entry)?;
        there.as_ref().map_or(Ok(()), |there| may_replace(there, by)).map_err(Failure::target)?;
        Ok(there)
    }

    /// Copies a symbolic link, FIFO or device node, or leaves it out with a warning.
    pub fn other(&self, mut entry: Entry, kind: FileKind) {
        let mut key = None;
        match self.copy_other(&mut entry, kind, &mut key) {
            Ok(Some(outcome)) => self.finish(&entry, key, &outcome),
            Ok(None) => {}
            Err(failure) => self.give_up(entry, key, failure),
        }
    }

    fn leave_out(&self, entry: &Entry, why: &str) -> Option<Outcome> {
        self.findings.warn(entry.path(), why.into());
        Some(Outcome::LeftOut)
    }

    fn copy_other(
        &self,
        entry: &mut Entry,
        kind: FileKind,
        key: &mut Option<Key>,
    ) -> Result<Option<Outcome>, Failure> {
        let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        if kind == FileKind::Socket {
            return Ok(self.leave_out(entry, "a socket means nothing without its process; left out"));
        }
        if device && !self.dst.rights().root {
            return Ok(self.leave_out(entry, "only root can make device nodes; left out"));
        }
        let meta = self.src.stat(At::Name(&entry.dir.src, &entry.from)).map_err(Failure::source)?;
        if meta.kind != kind {
            return Err(Failure::Changed);
        }
        self.look(entry, &meta);
        let target = match self.link_of(entry, kind)? {
            Some((_, Link::Followed)) => return Ok(None),
            Some((target, Link::Make(made))) => Some((target, made)),
            None => None,
        };
        let is_changed = target.as_ref().is_some_and(|(target, made)| target != made);
        if meta.nlink > 1 && !is_changed {
            match self.links.claim(meta.key(), entry) {
                Claimed::Lead => *key = Some(meta.key()),
                Claimed::Parked => return Ok(None),
                Claimed::Link(leader) => {
                    let waits = self.link_or_hold(entry, &leader, &meta)?;
                    return Ok((!waits).then_some(Outcome::Link));
                }
            }
        }
        match self.make_other(entry, &meta, *key, target) {
            Err(Failure::End { error, .. }) if device && error.errno == Errno::EPERM => {
                if let Some(key) = key.take() {
                    self.sched.again(self.links.abandon(key));
                }
                Ok(self.leave_out(entry, "the destination refuses device nodes; left out"))
            }
            Err(failure) => Err(failure),
            Ok(waits) => Ok((!waits).then(|| outcome(kind))),
        }
    }

    /// Where a symbolic link leads, and what its copy is made with.
    fn link_of(&self, entry: &Entry, kind: FileKind) -> Result<Option<(Vec<u8>, Link)>, Failure> {
        if kind != FileKind::Symlink {
            return Ok(None);
        }
        let target = self.src.read_link(&entry.dir.src, &entry.from).map_err(Failure::source)?;
        let link = self.led(entry, target.clone())?;
        Ok(Some((target, link)))
    }

    /// True when it has to wait for its name. `link`: where it leads, and what its copy is made with.
    fn make_other(
        &self,
        entry: &Entry,
        meta: &Meta,
        key: Option<Key>,
        link: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Result<bool, Failure> {
        let (target, made) = link.unzip();
        if let Some(there) = self.replaced(entry, meta)?
            && self.is_same(entry, meta, &there, made.as_deref())?
        {
            return self.dress(entry, &entry.to, meta).map(|()| false);
        }
        let (dir, part) = (&entry.dir.dst, self.part_name(entry));
        self.over_leftover(entry, &part, || match &made {
            Some(target) => self.dst.make_symlink(dir, &part, target),
            None => self.dst.make_node(dir, &part, meta.kind, meta.rdev),
        })?;
        let named =
            self.dress(entry, &part, meta).and_then(|()| self.check_named(entry, meta, target.as_deref()));
        let waits = self.options.ordered;
        let named = named.and_then(|()| match waits {
            true => Ok(()),
            false => self.dst.rename(dir, &part, &entry.to).map_err(Failure::target),
        });
        if named.is_err() {
            // The first error is the one to tell; a rerun removes the file.
            let _ = self.dst.unlink(dir, &part);
        } else if waits {
            let (entry, meta, outcome) = (entry.clone(), meta.clone(), outcome(meta.kind));
            self.keep_back(vec![Held { entry, key, part, meta, crc: 0, outcome }]);
        }
        named.map(|()| waits)
    }

    fn is_same(
        &self,
        entry: &Entry,
        meta: &Meta,
        there: &Meta,
        target: Option<&[u8]>,
    ) -> Result<bool, Failure> {
        if there.kind != meta.kind || self.is_wrongly_shared(meta, there) {
            return Ok(false);
        }
        match target {
            Some(target) => {
                let theirs = self.dst.read_link(&entry.dir.dst, &entry.to).map_err(Failure::target)?;
                Ok(theirs == target)
            }
            None => Ok(meta.kind == FileKind::Fifo || there.rdev == meta.rdev),
        }
    }

    fn dress(&self, entry: &Entry, name: &[u8], meta: &Meta) -> Result<(), Failure> {
        let from = At::Name(&entry.dir.src, &entry.from);
        self.copy_attributes(&|| entry.path(), from, At::Name(&entry.dir.dst, name), meta)
    }

    /// The source is still what was copied. A link that was pointed elsewhere meanwhile is
    /// another object; following its old target would be no copy of anything.
    fn check_named(&self, entry: &Entry, meta: &Meta, target: Option<&[u8]>) -> Result<(), Failure> {
        let now = self.src.stat(At::Name(&entry.dir.src, &entry.from)).map_err(Failure::source)?;
        let same_target = match target {
            Some(target) => {
                self.src.read_link(&entry.dir.src, &entry.from).map_err(Failure::source)? == target
            }
            None => true,
        };
        if meta.unchanged(&now) && same_target { Ok(()) } else { Err(Failure::Changed) }
    }
}
