//! Comparing two trees entry by entry: for tests, and for whoever wants to be sure.

use crate::end::{At, Cursor, DirRef, End, EndError, EndResult, FileRef, Item, Meta, Xattr};
use std::collections::HashMap;
use tidepool_types::FileKind;
use tidepool_types::show_bytes;

/// Differences told; the comparison ends there.
pub const DIFFERENCES_MAX: usize = 100;
/// Bytes compared at a time.
const BLOCK: usize = 1 << 20;
/// Bytes of a path shown.
const PATH_SHOWN: usize = 300;

/// What to compare besides names, kinds, contents, sizes, modes, modification times,
/// hard links and `user.*` attributes.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompareOptions {
    /// Owner and group.
    pub owners: bool,
    /// The second tree may store at most this many bytes more per file than the first.
    pub holes_slack: Option<u64>,
    /// Ignore sockets, which are not copied.
    pub ignore_sockets: bool,
}

struct Compare<'a> {
    a: &'a dyn End,
    b: &'a dyn End,
    options: CompareOptions,
    found: Vec<String>,
    /// Objects of the first tree with several names, and theirs in the second; and back.
    pairs: HashMap<(u64, u64), (u64, u64)>,
    back: HashMap<(u64, u64), (u64, u64)>,
    stack: Vec<(DirRef, DirRef, Vec<u8>)>,
}

/// The differences between two trees, in words; none when they are the same.
pub fn compare(a: &dyn End, b: &dyn End, options: CompareOptions) -> EndResult<Vec<String>> {
    let mut compare = Compare {
        a,
        b,
        options,
        found: Vec::new(),
        pairs: HashMap::new(),
        back: HashMap::new(),
        stack: vec![(a.root(), b.root(), Vec::new())],
    };
    let (root_a, root_b) = (a.root(), b.root());
    compare.attributes(b".", At::Dir(&root_a), At::Dir(&root_b))?;
    while let Some((a, b, path)) = compare.stack.pop() {
        if compare.found.len() >= DIFFERENCES_MAX {
            break;
        }
        compare.directories(&a, &b, &path)?;
    }
    Ok(compare.found)
}

fn list(end: &dyn End, dir: &DirRef) -> EndResult<Vec<Item>> {
    let mut items = Vec::new();
    let mut cursor = Some(Cursor::Start);
    while let Some(from) = cursor {
        let (page, next) = end.list(dir, &from)?;
        items.extend(page);
        cursor = next;
    }
    items.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(items)
}

impl Compare<'_> {
    fn differ(&mut self, path: &[u8], what: impl std::fmt::Display) {
        let shown = &path[path.len().saturating_sub(PATH_SHOWN)..];
        self.found.push(format!("{}: {what}", show_bytes(shown)));
    }

    fn directories(&mut self, a: &DirRef, b: &DirRef, path: &[u8]) -> EndResult<()> {
        let (mut ours, mut theirs) = (list(self.a, a)?, list(self.b, b)?);
        if self.options.ignore_sockets {
            ours.retain(|item| item.kind != Some(FileKind::Socket));
            theirs.retain(|item| item.kind != Some(FileKind::Socket));
        }
        let mut theirs = theirs.into_iter().peekable();
        for item in ours {
            while let Some(extra) = theirs.next_if(|t| t.name < item.name) {
                self.differ(&join(path, &extra.name), "only in the second");
            }
            let child = join(path, &item.name);
            if theirs.next_if(|t| t.name == item.name).is_some() {
                self.entry(a, b, &item.name, &child)?;
            } else {
                self.differ(&child, "only in the first");
            }
        }
        for extra in theirs {
            self.differ(&join(path, &extra.name), "only in the second");
        }
        self.a.leave_dir(a);
        self.b.leave_dir(b);
        Ok(())
    }

    fn entry(&mut self, a: &DirRef, b: &DirRef, name: &[u8], path: &[u8]) -> EndResult<()> {
        let metas = self.attributes(path, At::Name(a, name), At::Name(b, name))?;
        let Some((ours, theirs)) = metas else { return Ok(()) };
        match ours.kind {
            FileKind::Directory => {
                let (a, b) = (self.a.open_dir(a, name)?, self.b.open_dir(b, name)?);
                self.stack.push((a, b, path.to_vec()));
            }
            FileKind::Symlink => {
                let targets = (self.a.read_link(a, name)?, self.b.read_link(b, name)?);
                if targets.0 != targets.1 {
                    self.differ(path, "link targets differ");
                }
            }
            FileKind::Regular => {
                self.files(&self.a.open_read(a, name)?, &self.b.open_read(b, name)?, &ours, &theirs, path)?
            }
            _ => {}
        }
        Ok(())
    }

    /// Compares attributes; those of both when the kinds are the same.
    fn attributes(&mut self, path: &[u8], a: At<'_>, b: At<'_>) -> EndResult<Option<(Meta, Meta)>> {
        let (ours, theirs) = (self.a.stat(a)?, self.b.stat(b)?);
        if ours.kind != theirs.kind {
            self.differ(path, format!("{:?} and {:?}", ours.kind, theirs.kind));
            return Ok(None);
        }
        let is_link = ours.kind == FileKind::Symlink;
        if !is_link && ours.mode != theirs.mode {
            self.differ(path, format!("modes {:o} and {:o}", ours.mode, theirs.mode));
        }
        if ours.mtime != theirs.mtime {
            self.differ(path, format!("modified {:?} and {:?}", ours.mtime, theirs.mtime));
        }
        if self.options.owners && (ours.uid, ours.gid) != (theirs.uid, theirs.gid) {
            self.differ(path, "owners differ");
        }
        if matches!(ours.kind, FileKind::CharDevice | FileKind::BlockDevice) && ours.rdev != theirs.rdev {
            self.differ(path, "device numbers differ");
        }
        if ours.kind != FileKind::Directory {
            self.names(path, &ours, &theirs);
        }
        if matches!(ours.kind, FileKind::Regular | FileKind::Directory)
            && users(self.a.xattrs(a)?) != users(self.b.xattrs(b)?)
        {
            self.differ(path, "user attributes differ");
        }
        Ok(Some((ours, theirs)))
    }

    /// The names of one object in the first tree are those of one object in the second.
    fn names(&mut self, path: &[u8], ours: &Meta, theirs: &Meta) {
        if ours.nlink < 2 && theirs.nlink < 2 {
            return;
        }
        let there = *self.pairs.entry(ours.key()).or_insert(theirs.key());
        let back = *self.back.entry(theirs.key()).or_insert(ours.key());
        if there != theirs.key() || back != ours.key() {
            self.differ(path, "hard links differ");
        }
    }

    fn files(&mut self, a: &FileRef, b: &FileRef, ours: &Meta, theirs: &Meta, path: &[u8]) -> EndResult<()> {
        if ours.size != theirs.size {
            self.differ(path, format!("sizes {} and {}", ours.size, theirs.size));
            return Ok(());
        }
        if let Some(slack) = self.options.holes_slack
            && theirs.stored > ours.stored.saturating_add(slack)
        {
            self.differ(path, format!("stored bytes {} and {}", ours.stored, theirs.stored));
        }
        let (mut left, mut right) = (vec![0; BLOCK], vec![0; BLOCK]);
        let mut at = 0;
        while at < ours.size {
            // Where both have a hole there is nothing to compare.
            let data = (self.a.next_data(a, at)?, self.b.next_data(b, at)?);
            let Some(start) = data.0.into_iter().chain(data.1).min() else { return Ok(()) };
            at = start;
            let count = read_full(self.a, a, at, &mut left)?;
            if count != read_full(self.b, b, at, &mut right)? || left[..count] != right[..count] {
                self.differ(path, format!("contents differ at or after byte {at}"));
                return Ok(());
            }
            if count == 0 {
                return Ok(());
            }
            at += count as u64;
        }
        Ok(())
    }
}

fn users(mut xattrs: Vec<Xattr>) -> Vec<Xattr> {
    xattrs.retain(|(name, _)| name.starts_with(b"user."));
    xattrs.sort();
    xattrs
}

/// Bytes of a file from a place on, as many as there are and have room.
pub(crate) fn read_full(end: &dyn End, file: &FileRef, at: u64, buf: &mut [u8]) -> Result<usize, EndError> {
    let mut done = 0;
    while done < buf.len() {
        match end.read(file, at + done as u64, &mut buf[done..])? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    // Only for messages: the end is enough, and a deep tree would make it quadratic.
    let tail = &path[path.len().saturating_sub(PATH_SHOWN)..];
    if tail.is_empty() { name.to_vec() } else { [tail, b"/", name].concat() }
}
