//! What a check has collected, and what is wrong with it. No I/O here.
//!
//! Records come first, then entries and stored data are counted against them, so memory
//! grows with objects, not with entries.

use super::finding::{Finding, Subject, What};
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use tidepool_placement::Placer;
use tidepool_types::{BLOCK_SIZE, DaemonIndex, FileKind, Ino, Layout, TimeSpec};
use tidepool_wire::record::{Dentry, DirPart, Hold, Inode};

/// Deepest path that is followed; a guard against cycles.
const DEPTH_MAX: usize = 4_096;

/// One object: what its record says, and what points at it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Object {
    pub kind: FileKind,
    pub nlink: u32,
    pub parent: Ino,
    pub size: u64,
    /// As recorded.
    pub blocks: i64,
    pub layout: Option<Layout>,
    pub ctime: TimeSpec,
    /// Daemon that has the record.
    pub daemon: DaemonIndex,
    /// Entries that name it, and those of them that a rename holds.
    pub names: u32,
    pub held: u32,
    /// Directories: where the entry is.
    pub holder: Option<Ino>,
    /// Directories: entries in it, over all daemons.
    pub entries: u64,
    /// Blocks stored, over all daemons.
    pub stored: u64,
    /// Blocks lie wholly beyond the size.
    pub beyond: bool,
}

/// An entry that may be wrong by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Suspect {
    pub daemon: DaemonIndex,
    pub parent: Ino,
    pub name: Box<[u8]>,
    pub dentry: Dentry,
}

/// A daemon's part of a directory that may be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    pub daemon: DaemonIndex,
    pub dir: Ino,
    pub told: DirPart,
    /// Entries and directories among them, as listed.
    pub entries: u64,
    pub subdirs: u64,
}

/// Stored data that may be wrong: on one daemon, of one object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Data {
    pub daemon: DaemonIndex,
    pub ino: Ino,
    pub blocks: u64,
    /// Offsets of blocks whose checksum is wrong.
    pub bad: Vec<u64>,
    /// Offset of a chunk that does not belong on this daemon.
    pub astray: Option<u64>,
    /// Why the daemon could not verify it.
    pub failed: String,
}

/// Everything collected so far.
pub struct Tables {
    placer: Placer,
    pub objects: HashMap<Ino, Object>,
    dir_names: HashMap<Ino, Box<[u8]>>,
    /// The first name, by directory id, of each object that was looked for.
    file_names: HashMap<Ino, (Ino, Box<[u8]>)>,
    pub suspects: Vec<Suspect>,
    pub parts: Vec<Part>,
    pub data: Vec<Data>,
}

impl Tables {
    pub fn new(placer: Placer) -> Tables {
        Tables {
            placer,
            objects: HashMap::new(),
            dir_names: HashMap::new(),
            file_names: HashMap::new(),
            suspects: Vec::new(),
            parts: Vec::new(),
            data: Vec::new(),
        }
    }

    pub fn add_inode(&mut self, daemon: DaemonIndex, inode: &Inode) {
        let attr = &inode.attr;
        let object = Object {
            kind: attr.kind(),
            nlink: attr.nlink,
            parent: inode.parent,
            size: attr.size,
            blocks: attr.blocks,
            layout: attr.layout,
            ctime: attr.ctime,
            daemon,
            names: 0,
            held: 0,
            holder: None,
            entries: 0,
            stored: 0,
            beyond: false,
        };
        self.objects.insert(attr.ino, object);
    }

    /// Directories that have a record, in order.
    pub fn directories(&self) -> Vec<Ino> {
        let is_dir = |(ino, o): (&Ino, &Object)| (o.kind == FileKind::Directory).then_some(*ino);
        let mut dirs: Vec<Ino> = self.objects.iter().filter_map(is_dir).collect();
        dirs.sort_unstable();
        dirs
    }

    /// Counts an entry; keeps it when it may be wrong. All records must be in already.
    pub fn add_entry(&mut self, daemon: DaemonIndex, parent: Ino, name: &[u8], dentry: &Dentry) {
        if let Some(dir) = self.objects.get_mut(&parent) {
            dir.entries += 1;
        }
        let sound = self.count_name(parent, name, dentry);
        let placed = self.placer.entry_owner(parent, name) == daemon;
        if !sound || !placed || dentry.hold.is_some() {
            self.suspects.push(Suspect { daemon, parent, name: name.into(), dentry: dentry.clone() });
        }
    }

    /// True when the entry's object is there and is what the entry says.
    pub fn count_name(&mut self, parent: Ino, name: &[u8], dentry: &Dentry) -> bool {
        let Some(object) = self.objects.get_mut(&dentry.ino) else { return false };
        if object.kind != dentry.kind {
            return false;
        }
        if dentry.hold.is_some() {
            object.held += 1;
            object.holder.get_or_insert(parent);
        } else {
            object.names += 1;
            object.holder = Some(parent);
        }
        if object.kind == FileKind::Directory {
            self.dir_names.insert(dentry.ino, name.into());
        }
        true
    }

    /// Notes a name of an object. Daemons are asked side by side, so the first of several
    /// names is kept, not the last heard of: a report names the same path every time.
    pub fn learn_name(&mut self, ino: Ino, dir: Ino, name: &[u8]) {
        let known = self.file_names.get(&ino);
        if known.is_none_or(|(d, n)| (dir, name) < (*d, &n[..])) {
            self.file_names.insert(ino, (dir, name.into()));
        }
    }

    /// Keeps a part when it may be wrong.
    pub fn add_part(&mut self, part: Part) {
        if !part.agrees() || part.told.hold.is_some() || !self.objects.contains_key(&part.dir) {
            self.parts.push(part);
        }
    }

    /// Counts stored blocks; keeps what may be wrong.
    pub fn add_stored(&mut self, daemon: DaemonIndex, ino: Ino, blocks: u64, bad: &[u64]) {
        let known = self.objects.get_mut(&ino).map(|object| object.stored += blocks).is_some();
        if !bad.is_empty() || (!known && blocks > 0) {
            self.data.push(Data { bad: bad.to_vec(), ..Data::of(daemon, ino, blocks) });
        }
    }

    /// Looks where a daemon's stored ranges (offset, length) of an object lie.
    pub fn add_ranges(&mut self, daemon: DaemonIndex, ino: Ino, ranges: &[(u64, u64)]) {
        let Some(object) = self.objects.get_mut(&ino) else { return };
        let block = u64::from(BLOCK_SIZE);
        let end = ranges.iter().map(|(start, len)| start + len).max().unwrap_or(0);
        object.beyond |= end > object.size.next_multiple_of(block);
        // Only files have data; whatever lies there of other objects is not to be judged by its place.
        let Some(layout) = object.layout else { return };
        let astray = ranges
            .iter()
            .filter(|(_, len)| *len > 0)
            .flat_map(|(start, len)| layout.chunk_at(*start)..=layout.chunk_at(start + len - 1))
            .find(|index| self.placer.chunk_owner(ino, layout, *index) != daemon);
        if let Some(index) = astray {
            self.data.push(Data { astray: Some(index * layout.chunk_size()), ..Data::of(daemon, ino, 0) });
        }
    }

    pub fn add_unverified(&mut self, daemon: DaemonIndex, ino: Ino, failed: String) {
        self.data.push(Data { failed, ..Data::of(daemon, ino, 0) });
    }

    /// Forgets what was counted for an object, and puts its present record there.
    pub fn replace(&mut self, ino: Ino, found: Option<(DaemonIndex, &Inode)>) {
        self.objects.remove(&ino);
        self.dir_names.remove(&ino);
        if let Some((daemon, inode)) = found {
            self.add_inode(daemon, inode);
        }
    }

    /// Absolute path of a directory, when its chain of names leads to the root.
    pub fn dir_path(&self, dir: Ino) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        let mut at = dir;
        while at != Ino::ROOT {
            if names.len() > DEPTH_MAX {
                return None;
            }
            names.push(self.dir_names.get(&at)?);
            at = self.objects.get(&at)?.holder?;
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Some(if path.is_empty() { b"/".to_vec() } else { path })
    }

    fn entry_path(&self, parent: Ino, name: &[u8]) -> Option<Vec<u8>> {
        let mut path = self.dir_path(parent)?;
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Some(path)
    }

    /// Path of what a finding is about.
    pub fn path_of(&self, subject: &Subject) -> Option<String> {
        let path = match (&subject.entry, subject.ino) {
            (Some((parent, name)), _) => self.entry_path(*parent, name),
            (None, Some(ino)) => self.dir_path(ino).or_else(|| {
                let (parent, name) = self.file_names.get(&ino)?;
                self.entry_path(*parent, name)
            }),
            (None, None) => None,
        }?;
        Some(String::from_utf8_lossy(&path).into_owned())
    }

    /// Everything that is wrong.
    pub fn findings(&self) -> Vec<Finding> {
        let mut all = Vec::new();
        self.judge_root(&mut all);
        for (ino, object) in &self.objects {
            judge_object(*ino, object, &mut all);
        }
        self.judge_chains(&mut all);
        self.suspects.iter().for_each(|s| self.judge_entry(s, &mut all));
        self.parts.iter().for_each(|p| self.judge_part(p, &mut all));
        self.data.iter().for_each(|d| self.judge_data(d, &mut all));
        all.sort_by_key(|f| (f.subject.what, f.subject.daemon, f.subject.ino));
        all
    }

    fn judge_root(&self, all: &mut Vec<Finding>) {
        let root = self.objects.get(&Ino::ROOT);
        let good = root.is_some_and(|r| r.kind == FileKind::Directory && r.parent == Ino::ROOT);
        if !good {
            all.push(Finding::of_object(
                What::NoRoot,
                Ino::ROOT,
                "the root directory has no proper record".into(),
            ));
        }
    }

    /// Follows every directory up to the root; each cycle is reported once.
    fn judge_chains(&self, all: &mut Vec<Finding>) {
        let mut done: HashSet<Ino> = HashSet::from([Ino::ROOT]);
        for start in self.directories() {
            let mut chain = Vec::new();
            let mut at = Some(start);
            while let Some(ino) = at.filter(|ino| done.insert(*ino)) {
                chain.push(ino);
                at = self.objects.get(&ino).and_then(|o| o.holder);
            }
            // It ended at something seen before: if that is in this very chain, it is a cycle.
            if let Some(ring) = at.and_then(|ino| chain.iter().position(|c| *c == ino)) {
                let members = chain.split_off(ring);
                let text = format!("{} directories lie in each other, apart from the root", members.len());
                let first = members.iter().min().copied().unwrap_or(start);
                all.push(Finding { involved: members, ..Finding::of_object(What::Cycle, first, text) });
            }
        }
    }

    fn judge_entry(&self, suspect: &Suspect, all: &mut Vec<Finding>) {
        let dentry = &suspect.dentry;
        let mut push = |what, detail| all.push(Finding::of_entry(what, suspect, detail));
        if self.placer.entry_owner(suspect.parent, &suspect.name) != suspect.daemon {
            push(What::MisplacedEntry, "the entry is on a daemon where nobody looks for it".into());
        }
        if let Some(hold) = dentry.hold {
            push(What::LeftHold, format!("a rename that did not finish holds it ({})", hold_text(&hold)));
            // The rename may be decided already: the entry says nothing about its object.
            return;
        }
        match self.objects.get(&dentry.ino) {
            None => push(What::DanglingEntry, format!("object {} does not exist", dentry.ino)),
            Some(object) if object.kind != dentry.kind => {
                push(
                    What::WrongKind,
                    format!("the entry says {:?}, the object is {:?}", dentry.kind, object.kind),
                );
            }
            Some(_) => {}
        }
    }

    fn judge_part(&self, part: &Part, all: &mut Vec<Finding>) {
        let mut push = |what, detail| all.push(Finding::of_part(what, part.daemon, part.dir, detail));
        let counted = part.told.entries;
        if !part.agrees() {
            push(
                What::WrongCounts,
                format!(
                    "{counted} entries and {} directories counted, {} and {} listed",
                    part.told.subdirs, part.entries, part.subdirs
                ),
            );
        }
        if let Some(hold) = &part.told.hold {
            push(
                What::LeftHold,
                format!("a removal that did not finish holds the directory ({})", hold_text(hold)),
            );
        }
        match (self.objects.contains_key(&part.dir), part.entries) {
            (true, _) => {}
            (false, 0) => push(What::LeftPart, "a removed directory left an empty part".into()),
            (false, n) => {
                push(What::UnknownDirectory, format!("{n} entries of a directory that does not exist"))
            }
        }
    }

    fn judge_data(&self, data: &Data, all: &mut Vec<Finding>) {
        let mut push = |what, detail| all.push(Finding::of_part(what, data.daemon, data.ino, detail));
        if let Some(first) = data.bad.first() {
            push(
                What::BadChecksum,
                format!("{} block(s) are damaged, the first at offset {first}", data.bad.len()),
            );
        }
        if !data.failed.is_empty() {
            push(What::Unverified, format!("its data could not be verified: {}", data.failed));
        }
        if let Some(offset) = data.astray {
            push(
                What::ChunkAstray,
                format!("data at offset {offset} is on a daemon where nobody looks for it"),
            );
        }
        if data.blocks > 0 && !self.objects.contains_key(&data.ino) {
            push(What::UnknownObject, format!("{} block(s) of an object that does not exist", data.blocks));
        }
    }
}

impl Part {
    /// What the daemon counted is what it lists.
    pub fn agrees(&self) -> bool {
        (self.told.entries, self.told.subdirs) == (self.entries, self.subdirs)
    }
}

impl Data {
    fn of(daemon: DaemonIndex, ino: Ino, blocks: u64) -> Data {
        Data { daemon, ino, blocks, bad: Vec::new(), astray: None, failed: String::new() }
    }
}

fn hold_text(hold: &Hold) -> String {
    format!("transaction {}, decided by daemon {}", hold.txn, hold.decider)
}

fn judge_object(ino: Ino, object: &Object, all: &mut Vec<Finding>) {
    let mut push = |what, detail| all.push(Finding::of_object(what, ino, detail));
    if object.daemon != ino.home() {
        push(
            What::MisplacedObject,
            format!("its record is on daemon {}, where nobody looks for it", object.daemon),
        );
    }
    match object.kind {
        FileKind::Directory => judge_directory(ino, object, &mut push),
        _ => judge_links(object, &mut push),
    }
    if object.beyond {
        push(What::BeyondEnd, format!("data is stored beyond the end ({} bytes)", object.size));
    }
    let uncounted = i64::try_from(object.stored).unwrap_or(i64::MAX).saturating_sub(object.blocks);
    let what = match uncounted.cmp(&0) {
        Ordering::Less => What::BlocksMissing,
        Ordering::Equal => return,
        Ordering::Greater => What::BlocksUnrecorded,
    };
    let text = format!("{} blocks recorded, {} stored", object.blocks, object.stored);
    all.push(Finding { uncounted, ..Finding::of_object(what, ino, text) });
}

fn judge_links(object: &Object, push: &mut impl FnMut(What, String)) {
    let (nlink, names) = (object.nlink, object.names);
    let text = format!("link count {nlink}, {names} name(s)");
    if names > nlink {
        push(What::TooManyNames, text);
    } else if nlink > names + object.held {
        push(What::TooFewNames, text);
    }
}

fn judge_directory(ino: Ino, object: &Object, push: &mut impl FnMut(What, String)) {
    let names = object.names;
    if ino == Ino::ROOT {
        if names > 0 {
            push(What::SeveralNames, "an entry names the root".into());
        }
        return;
    }
    match (names, object.held) {
        (0, 0) if object.entries > 0 => {
            push(
                What::Unreachable,
                format!("the directory has no name; {} entries are in it", object.entries),
            );
        }
        (0, 0) => push(What::EmptyUnreachable, "an empty directory has no name".into()),
        (0, 1) | (1, _) => {}
        (0, n) | (n, _) => push(What::SeveralNames, format!("the directory has {n} names")),
    }
    if let (1, 0, Some(holder)) = (names, object.held, object.holder)
        && holder != object.parent
    {
        let text = format!("'..' leads to object {}, the directory lies in {holder}", object.parent);
        push(What::WrongParent, text);
    }
}

#[cfg(test)]
#[path = "tables_tests.rs"]
mod tests;
