//! What is to be copied, what is at the destination before, and what may be there afterwards.

use super::{Case, Judged, Wrong, holds};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use tidepool_testkit::trees::{self, Entry, Tree, difference, is_part};

/// Bytes that a copy of a file with holes may have more than its source.
const HOLES_SLACK: u64 = 128 << 10;

pub struct Planted {
    pub source: PathBuf,
    pub target: PathBuf,
    /// Of the source.
    pub tree: Tree,
    /// Bytes that its files take; a move takes the source away.
    room: BTreeMap<PathBuf, u64>,
    /// At the target before, and of nobody's business.
    foreign: Tree,
    /// At the target under names of the source: it is there until the copy takes its place.
    old: Tree,
    /// A directory beside the two, to which a link at the target leads.
    outside: PathBuf,
    outside_is: Tree,
}

impl Planted {
    /// A tree at `source`, and sometimes something at `target` already.
    pub fn new(case: &mut Case, source: PathBuf, target: PathBuf, outside: PathBuf) -> Planted {
        trees::write_varied(&mut case.rng, &source);
        fs::create_dir_all(&outside).expect("a directory can be made");
        fs::write(outside.join("untouched"), "outside").expect("a file can be written");
        let tree = trees::read(&source);
        let files = tree.iter().filter(|(_, entry)| matches!(entry, Entry::File { .. }));
        let planted = Planted {
            room: files.map(|(path, _)| (path.clone(), room(&source.join(path)))).collect(),
            outside_is: trees::read(&outside),
            source,
            target,
            tree,
            foreign: Tree::new(),
            old: Tree::new(),
            outside,
        };
        let shown = planted.tree.len();
        case.plan(format!("{shown} entries at {}", planted.source.display()));
        if case.chance(2) { planted.with_foreign(case) } else { planted }
    }

    /// Something of somebody else's at the target: beside names of the source, and under them.
    fn with_foreign(mut self, case: &mut Case) -> Planted {
        fs::create_dir_all(self.target.join("their dir/below")).unwrap();
        fs::write(self.target.join("their dir/below/file"), "theirs").unwrap();
        fs::write(self.target.join("their file"), "theirs, too").unwrap();
        let dirs: Vec<PathBuf> = self.paths(|entry| matches!(entry, Entry::Dir { .. }));
        let files: Vec<PathBuf> = self.paths(|entry| matches!(entry, Entry::File { .. }));
        let dir = self.target.join(&dirs[case.rng.below(dirs.len() as u64) as usize]);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("their file here"), "theirs, here").unwrap();
        for (number, path) in files.iter().enumerate().take(6) {
            let at = self.target.join(path);
            if !at.parent().is_some_and(Path::is_dir) {
                continue;
            }
            match case.rng.below(6) {
                0 => fs::write(&at, format!("old {number}")).unwrap(),
                // The same size, and almost the same content.
                1 => {
                    let mut bytes = fs::read(self.source.join(path)).unwrap();
                    bytes.last_mut().into_iter().for_each(|byte| *byte ^= 1);
                    fs::write(&at, bytes).unwrap();
                }
                2 => symlink(self.outside.join("untouched"), &at).unwrap(),
                3 => fs::hard_link(self.target.join("their file"), &at).unwrap(),
                _ => {}
            }
        }
        for (path, entry) in trees::read(&self.target) {
            let list = if self.tree.contains_key(&path) { &mut self.old } else { &mut self.foreign };
            list.insert(path, entry);
        }
        case.plan(format!("of others: {:?}; before: {:?}", self.foreign.keys(), self.old.keys()));
        self
    }

    fn paths(&self, which: impl Fn(&Entry) -> bool) -> Vec<PathBuf> {
        self.tree.iter().filter(|(_, entry)| which(entry)).map(|(path, _)| path.clone()).collect()
    }

    /// All of the source is there as it is there, and all of others' as it was, and nothing else.
    pub fn is_whole(&self, there: &Tree) -> Judged<()> {
        let mut wanted = self.tree.clone();
        wanted.extend(self.foreign.iter().map(|(path, entry)| (path.clone(), alone(entry))));
        let wrong = difference(&wanted, there);
        holds(wrong.is_empty(), || format!("SUCCESS, and the target is not the source: {wrong:#?}"))
    }

    /// The same of a directory here, with the holes.
    pub fn is_whole_at(&self, target: &Path) -> Judged<()> {
        self.is_whole(&trees::read(target))?;
        for (path, was) in &self.room {
            let is = room(&target.join(path));
            holds(is <= was + HOLES_SLACK, || {
                format!("{path:?} has lost its holes: {is} bytes instead of {was}")
            })?;
        }
        Ok(())
    }

    /// It did not succeed: whatever has a final name is what it was or what it is to be.
    pub fn is_partial(&self, there: &Tree) -> Judged<()> {
        let wrong: Vec<String> = there
            .iter()
            .filter(|(path, entry)| !is_part(path) && !self.may_be(path, entry))
            .map(|(path, entry)| {
                format!(
                    "{path:?} is {entry:?}; source {:?}, before {:?}",
                    self.tree.get(path),
                    self.old.get(path)
                )
            })
            .collect();
        holds(wrong.is_empty(), || format!("a name has what it may not have: {wrong:#?}"))?;
        self.keeps_others(there)
    }

    /// Whatever was there is there.
    pub fn keeps_others(&self, there: &Tree) -> Judged<()> {
        let lost: Vec<&PathBuf> =
            self.foreign.keys().chain(self.old.keys()).filter(|path| !there.contains_key(*path)).collect();
        holds(lost.is_empty(), || format!("removed at the target: {lost:?}"))
    }

    fn may_be(&self, path: &Path, entry: &Entry) -> bool {
        let like = |other: &Entry| match (entry, other) {
            // Their times and modes come last, and are changed by what comes in.
            (Entry::Dir { .. }, Entry::Dir { .. }) => true,
            _ => alone(entry) == alone(other),
        };
        [&self.tree, &self.old, &self.foreign].iter().any(|tree| tree.get(path).is_some_and(like))
    }

    /// The source, and what is outside, are as they were.
    pub fn nothing_else_changed(&self) -> Judged<()> {
        let changed = difference(&self.tree, &trees::read(&self.source));
        holds(changed.is_empty(), || format!("the source has changed: {changed:#?}"))?;
        let changed = difference(&self.outside_is, &trees::read(&self.outside));
        holds(changed.is_empty(), || format!("what a link leads to has changed: {changed:#?}"))
    }
}

fn room(file: &Path) -> u64 {
    fs::metadata(file).map_or(0, |meta| meta.blocks() * 512)
}

/// Without its other names, of which some may not be there yet, or no more.
fn alone(entry: &Entry) -> Entry {
    match entry.clone() {
        Entry::File { mode, content, mtime, xattrs, .. } => {
            Entry::File { mode, content, mtime, xattrs, first: None }
        }
        other => other,
    }
}

/// A failure says which command failed, and why or where.
pub fn tells(said: &str, errno: Option<&str>, places: &[&Path]) -> Judged<()> {
    let named = said.lines().any(|line| line.starts_with("tidepool: "));
    let why = errno.is_none_or(|name| {
        let number = match name {
            "EIO" => 5,
            "EINTR" => 4,
            "ENOMEM" => 12,
            "EACCES" => 13,
            "EPERM" => 1,
            "ENFILE" => 23,
            "EMFILE" => 24,
            "ENOSPC" => 28,
            "EROFS" => 30,
            "ESTALE" => 116,
            "EDQUOT" => 122,
            other => panic!("{other} has no number here"),
        };
        said.contains(name) || said.contains(&format!("os error {number})"))
            // Some functions of the standard library tell another error than theirs.
            || places.iter().any(|place| said.contains(&*place.to_string_lossy()))
    });
    if named && why { Ok(()) } else { Err(Wrong(format!("it does not say what failed ({errno:?}): {said}"))) }
}
