//! What a run has put on the node's own storage, so that it is gone when the run is.
//!
//! Only what was not there before counts: what somebody else had put there stays, with what was copied into it.

use crate::exit::{Context, Failure, Kind, Result, first};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tidepool_stage::{Control, Doomed, LocalEnd, PART_PREFIX, PathHash, StageOptions, remove};

/// What an owner needs to remove what is in a directory.
const WORKABLE: u32 = 0o700;

#[derive(Default, Debug)]
pub struct Made {
    places: Vec<PathBuf>,
    /// Directories that were missing above them, the deepest first.
    above: Vec<PathBuf>,
}

impl Made {
    /// Notes what a copy of `from` to exactly `to` is about to make. Called before anything of it is there.
    pub fn note(&mut self, from: &Path, to: &Path) -> Result<()> {
        let fail = |path: &Path| path.display().to_string();
        if !is_there(to).context(Kind::StageIn, || fail(to))? {
            for dir in to.ancestors().skip(1) {
                if is_there(dir).context(Kind::StageIn, || fail(dir))? {
                    break;
                }
                self.above.push(dir.into());
            }
            self.places.push(to.into());
            return Ok(());
        }
        if !from.is_dir() || !to.is_dir() {
            return Ok(());
        }
        let before: BTreeSet<OsString> = names(to).context(Kind::StageIn, || fail(to))?.collect();
        let coming = names(from).context(Kind::StageIn, || fail(from))?;
        self.places.extend(coming.filter(|name| !before.contains(name)).map(|name| to.join(name)));
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Removes all of it but what is to be kept.
    pub fn remove(self, keep: &[PathBuf]) -> Result<()> {
        let gone = |place: &PathBuf| {
            let parts = |()| remove_parts(place).context(Kind::Cleanup, || place.display().to_string());
            remove_but(place, keep).and_then(parts)
        };
        let ended = self.places.iter().rev().map(gone).fold(Ok(()), first);
        let mut above = self.above;
        above.sort_by_key(|dir| std::cmp::Reverse(dir.components().count()));
        above.retain(|dir| !keep.iter().any(|kept| dir.starts_with(kept)));
        above.iter().map(|dir| remove_empty(dir)).fold(ended, first)
    }
}

/// A directory in which something else is by now stays.
fn remove_empty(dir: &Path) -> Result<()> {
    match fs::remove_dir(dir) {
        Err(error) if is_in_use(&error) || error.kind() == ErrorKind::NotFound => Ok(()),
        other => other.context(Kind::Cleanup, || dir.display().to_string()),
    }
}

fn is_in_use(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists)
}

/// A link is there, wherever it leads.
fn is_there(path: &Path) -> std::io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(error),
    }
}

fn names(dir: &Path) -> std::io::Result<impl Iterator<Item = OsString>> {
    let entries = fs::read_dir(dir)?.collect::<std::io::Result<Vec<_>>>()?;
    Ok(entries.into_iter().map(|entry| entry.file_name()))
}

/// Removes a file or tree, but not what `keep` names in it.
pub fn remove_but(path: &Path, keep: &[PathBuf]) -> Result<()> {
    if keep.iter().any(|kept| path.starts_with(kept)) {
        return Ok(());
    }
    if !keep.iter().any(|kept| kept.starts_with(path)) {
        return remove_whole(path);
    }
    let meta = fs::symlink_metadata(path);
    if !meta.is_ok_and(|meta| meta.is_dir()) {
        return Ok(());
    }
    for name in names(path).context(Kind::Cleanup, || path.display().to_string())? {
        remove_but(&path.join(name), keep)?;
    }
    // What was to be kept may not be there.
    remove_empty(path)
}

fn remove_whole(path: &Path) -> Result<()> {
    let shown = || path.display().to_string();
    if !is_there(path).context(Kind::Cleanup, shown)? {
        return Ok(());
    }
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Failure::new(Kind::Cleanup, format!("{} has no name", shown())));
    };
    let end = LocalEnd::open(dir).context(Kind::Cleanup, shown)?;
    let doomed = Doomed::Entry(name.as_bytes().into());
    let go = || remove(&end, &doomed, &StageOptions::default(), &Control::default());
    let mut report = go();
    if !report.complete {
        // Copies have the modes of what they are copies of: directories that nobody may write to.
        open_up(path);
        report = go();
    }
    match report.errors.first() {
        None => Ok(()),
        Some(error) => Err(Failure::new(Kind::Cleanup, format!("{}: {error}", dir.display()))),
    }
}

/// Lets the owner write to all directories of a tree, as far as he may. What cannot be changed is told when it cannot be
/// removed.
fn open_up(path: &Path) {
    let Ok(meta) = fs::symlink_metadata(path) else { return };
    if !meta.is_dir() {
        return;
    }
    if meta.mode() & WORKABLE != WORKABLE {
        let _ = fs::set_permissions(path, Permissions::from_mode(meta.mode() | WORKABLE));
    }
    let Ok(names) = names(path) else { return };
    names.for_each(|name| open_up(&path.join(name)));
}

/// Temporary files of a copy that did not end well: they are called by the name of what they were to become.
fn remove_parts(place: &Path) -> std::io::Result<()> {
    let (Some(dir), Some(name)) = (place.parent(), place.file_name()) else { return Ok(()) };
    if !is_there(dir)? {
        return Ok(());
    }
    let hash = PathHash::default().child(name.as_bytes()).0;
    let hash: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let start = [PART_PREFIX, hash.as_bytes(), b"."].concat();
    let is_part = |name: &OsStr| name.as_bytes().starts_with(&start);
    names(dir)?.filter(|name| is_part(name)).try_for_each(|part| fs::remove_file(dir.join(part)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn tree(root: &Path, files: &[&str]) {
        for file in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
    }

    fn left(root: &Path) -> Vec<String> {
        let mut found = Vec::new();
        let mut dirs = vec![root.to_path_buf()];
        while let Some(dir) = dirs.pop() {
            for name in names(&dir).unwrap() {
                let path = dir.join(name);
                found.push(path.strip_prefix(root).unwrap().display().to_string());
                if path.symlink_metadata().unwrap().is_dir() {
                    dirs.push(path);
                }
            }
        }
        found.sort();
        found
    }

    #[test]
    fn what_was_made_goes_with_what_came_into_it() {
        let dir = TempDir::new().unwrap();
        let (source, node) = (dir.path().join("source"), dir.path().join("node"));
        tree(&source, &["case/mesh"]);
        tree(&node, &["others/file"]);
        let mut made = Made::default();
        made.note(&source.join("case"), &node.join("ana/deep/case")).unwrap();
        tree(&node, &["ana/deep/case/mesh", "ana/deep/case/result", "ana/mine"]);
        fs::set_permissions(node.join("ana/deep/case"), Permissions::from_mode(0o555)).unwrap();
        made.remove(&[]).unwrap();
        assert_eq!(left(&node), ["ana", "ana/mine", "others", "others/file"]);
    }

    #[test]
    fn what_was_there_before_stays() {
        let dir = TempDir::new().unwrap();
        let (source, node) = (dir.path().join("source"), dir.path().join("node"));
        tree(&source, &["a/x", "b", "c"]);
        tree(&node, &["a/old", "b"]);
        let mut made = Made::default();
        made.note(&source, &node).unwrap();
        made.note(&source.join("b"), &node.join("b")).unwrap();
        tree(&node, &["a/x", "c", "result"]);
        made.remove(&[]).unwrap();
        assert_eq!(left(&node), ["a", "a/old", "a/x", "b", "result"]);
    }

    #[test]
    fn what_is_kept_stays_and_nothing_beside_it() {
        let dir = TempDir::new().unwrap();
        let (source, node) = (dir.path().join("source"), dir.path().join("node"));
        tree(&source, &["mesh/m", "log"]);
        fs::create_dir(&node).unwrap();
        let mut made = Made::default();
        made.note(&source, &node.join("case")).unwrap();
        tree(&node, &["case/mesh/m", "case/log", "case/sub/x"]);
        made.remove(&[node.join("case/mesh")]).unwrap();
        assert_eq!(left(&node), ["case", "case/mesh", "case/mesh/m"]);
        let mut made = Made::default();
        made.note(&source, &node.join("other/case")).unwrap();
        tree(&node, &["other/case/log"]);
        made.remove(&[node.join("other"), node.join("case")]).unwrap();
        assert_eq!(left(&node).len(), 6, "{:?}", left(&node));
    }

    #[test]
    fn halves_of_files_go_too() {
        let dir = TempDir::new().unwrap();
        let (source, node) = (dir.path().join("source"), dir.path().join("node"));
        tree(&source, &["big"]);
        fs::create_dir(&node).unwrap();
        let mut made = Made::default();
        made.note(&source.join("big"), &node.join("big")).unwrap();
        let hash: String =
            PathHash::default().child(b"big").0[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let part = format!("{}{hash}.0123", String::from_utf8_lossy(PART_PREFIX));
        tree(&node, &[&part, "bigger"]);
        made.remove(&[]).unwrap();
        assert_eq!(left(&node), ["bigger"]);
    }

    #[test]
    fn links_are_not_followed() {
        let dir = TempDir::new().unwrap();
        tree(dir.path(), &["precious/thesis", "case/x"]);
        std::os::unix::fs::symlink("../precious", dir.path().join("case/link")).unwrap();
        remove_but(&dir.path().join("case"), &[]).unwrap();
        assert_eq!(left(dir.path()), ["precious", "precious/thesis"]);
        std::os::unix::fs::symlink("precious", dir.path().join("case")).unwrap();
        remove_but(&dir.path().join("case"), &[]).unwrap();
        assert_eq!(left(dir.path()), ["precious", "precious/thesis"]);
    }
}
