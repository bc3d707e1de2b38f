//! Random trees, and what is in a tree.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use tidepool_testkit::Rng;

/// Names that programs stumble over.
const ODD: &[&[u8]] =
    &[b"-rf", b"two words", b"new\nline", b"\xff\xfe", b"*", b"\\", b"a'\"b", b".hidden", b".tidepool-parts"];

/// Writes a random tree: small files, a large one, links, hard links, empty directories, odd names.
pub fn write_random(rng: &mut Rng, at: &Path, large_max: u64) {
    let mut dirs = vec![at.to_path_buf()];
    fs::create_dir_all(at).unwrap();
    for n in 0..rng.below(5) {
        let above = dirs[rng.below(dirs.len() as u64) as usize].clone();
        dirs.push(above.join(format!("dir{n}")));
        fs::create_dir(&dirs[dirs.len() - 1]).unwrap();
    }
    let mut files = Vec::new();
    for n in 0..2 + rng.below(40) {
        let dir = &dirs[rng.below(dirs.len() as u64) as usize];
        let size = [0, 1, 100, 4096, 9000][rng.below(5) as usize];
        files.push(dir.join(format!("file{n}")));
        file(rng, &files[files.len() - 1], size);
    }
    let size = 1 + rng.below(large_max);
    file(rng, &at.join("large"), size as usize);
    for _ in 0..rng.below(4) {
        let name = at.join(OsStr::from_bytes(ODD[rng.below(ODD.len() as u64) as usize]));
        file(rng, &name, 10);
    }
    fs::create_dir(at.join("empty")).unwrap();
    symlink("large", at.join("link")).unwrap();
    symlink("no/such/thing", at.join("dangling")).unwrap();
    let linked = &files[rng.below(files.len() as u64) as usize];
    fs::hard_link(linked, at.join("same as another")).unwrap();
    fs::hard_link(at.join("large"), at.join("large too")).unwrap();
}

fn file(rng: &mut Rng, path: &Path, size: usize) {
    fs::write(path, rng.bytes(size)).unwrap();
    let mode = [0o644, 0o600, 0o755, 0o440][rng.below(4) as usize];
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// What an entry is. Hard links are the same where their numbers are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    Dir { mode: u32 },
    File { mode: u32, size: u64, content: u64, links: u64 },
    Link { to: PathBuf },
    Other,
}

/// Entries by their paths below the root.
pub type Tree = BTreeMap<PathBuf, Entry>;

/// What lies at a path now. What goes away meanwhile is left out.
pub fn read(at: &Path) -> Tree {
    let mut tree = Tree::new();
    read_into(at, Path::new(""), &mut tree);
    tree
}

fn read_into(root: &Path, below: &Path, tree: &mut Tree) {
    let path = if below.as_os_str().is_empty() { root.to_path_buf() } else { root.join(below) };
    let Some(entry) = entry(&path) else { return };
    let is_dir = matches!(entry, Entry::Dir { .. });
    tree.insert(below.to_path_buf(), entry);
    if is_dir {
        for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
            read_into(root, &below.join(entry.file_name()), tree);
        }
    }
}

fn entry(path: &Path) -> Option<Entry> {
    let meta = fs::symlink_metadata(path).ok()?;
    let mode = meta.mode() & 0o7777;
    Some(if meta.is_dir() {
        Entry::Dir { mode }
    } else if meta.is_symlink() {
        Entry::Link { to: fs::read_link(path).ok()? }
    } else if meta.is_file() {
        let bytes = fs::read(path).ok()?;
        Entry::File { mode, size: bytes.len() as u64, content: hash(&bytes), links: meta.nlink() }
    } else {
        Entry::Other
    })
}

pub fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

fn is_part(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(b".tidepool-part."))
}

/// Temporary files below a directory.
pub fn parts(at: &Path) -> Vec<PathBuf> {
    read(at).into_keys().filter(|path| is_part(path)).collect()
}

/// What of `there` has a final name and is not whole: every file has to be one of `from`, and every
/// other entry as well. Links of a file may be missing still, and attributes of directories.
pub fn unfinished(from: &Tree, there: &Tree) -> Vec<String> {
    let wrong = |path: &PathBuf, entry: &Entry| match (entry, from.get(path)) {
        (Entry::File { size, content, .. }, Some(Entry::File { size: s, content: c, .. })) => {
            (size, content) != (s, c)
        }
        (Entry::Dir { .. }, Some(Entry::Dir { .. })) => false,
        (entry, Some(source)) => entry != source,
        (_, None) => true,
    };
    let found = there.iter().filter(|(path, entry)| !is_part(path) && wrong(path, entry));
    found
        .map(|(path, entry)| format!("{}: {entry:?} is {:?} at the source", path.display(), from.get(path)))
        .collect()
}

/// How two trees differ, for people.
pub fn difference(from: &Tree, there: &Tree) -> Vec<String> {
    let missing = from.iter().filter(|(path, entry)| there.get(*path) != Some(entry));
    let missing =
        missing.map(|(path, entry)| format!("{}: {entry:?} is {:?}", path.display(), there.get(path)));
    let more = there
        .keys()
        .filter(|path| !from.contains_key(*path))
        .map(|path| format!("{} is new", path.display()));
    missing.chain(more).collect()
}
