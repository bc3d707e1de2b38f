//! Random trees, and what is in a tree: everything of it that a copy has to keep.

use crate::Rng;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names that programs stumble over.
const ODD: &[&[u8]] =
    &[b"-rf", b"two words", b"new\nline", b"\xff\xfe", b"*", b"\\", b"a'\"b", b".hidden", b".tidepool-parts"];
/// Sizes at which copies change how they work: pages, packs of small files, chunks, blocks.
const SMALL: &[usize] = &[0, 1, 100, 4_072, 4_073, 4_095, 4_096, 4_097, 9_000];
const MIDDLE: &[usize] = &[65_535, 65_536, 65_537, 131_072, 131_073, 524_287, 524_289, 1_048_577];
/// From here on a file is copied by ranges.
const RANGED: u64 = 16 << 20;
/// Seconds that times of files lie behind 2001.
const TIMES: u64 = 700_000_000;

/// Writes a random tree: small files, a large one, links, hard links, empty directories, odd names.
///
/// # Panics
/// When something cannot be made; this holds for all of this module.
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
        files.push(dir.join(format!("file{n}")));
        let size = one_of(rng, SMALL);
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

/// The same with what else a copy has to keep: sizes around its bounds, holes, a FIFO, attributes, and times and modes of everything.
pub fn write_varied(rng: &mut Rng, at: &Path) {
    write_random(rng, at, 1_000);
    if rng.below(2) == 0 {
        let size = one_of(rng, MIDDLE);
        file(rng, &at.join("middle"), size);
    }
    if rng.below(4) == 0 {
        sparse(rng, &at.join("sparse"), 300_000);
    }
    if rng.below(8) == 0 {
        sparse(rng, &at.join("ranged"), RANGED);
    }
    if rng.below(3) == 0 {
        rustix::fs::mknodat(CWD, at.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    }
    if rng.below(3) == 0 {
        let set = |name: &str, value: &[u8]| {
            rustix::fs::setxattr(at.join(name), "user.note", value, XattrFlags::empty())
        };
        // Not every file system in memory has them.
        let _ = set("large", b"\0v\xff").and_then(|()| set("empty", b"of a directory"));
    }
    dress(rng, at);
}

/// Times and modes, from the bottom upwards.
fn dress(rng: &mut Rng, at: &Path) {
    for path in read(at).into_keys().rev() {
        let path = if path.as_os_str().is_empty() { at.to_path_buf() } else { at.join(path) };
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            let mode = [0o755, 0o700, 0o2775, 0o555][rng.below(4) as usize];
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let (tv_sec, tv_nsec) = ((1_000_000_000 + rng.below(TIMES)) as i64, rng.below(1_000_000_000) as _);
        let time = Timespec { tv_sec, tv_nsec };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

fn one_of(rng: &mut Rng, sizes: &[usize]) -> usize {
    sizes[rng.below(sizes.len() as u64) as usize]
}

/// Bytes without a pattern, eight at a time.
fn noise(rng: &mut Rng, size: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..size.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    bytes.truncate(size);
    bytes
}

fn file(rng: &mut Rng, path: &Path, size: usize) {
    fs::write(path, noise(rng, size)).unwrap();
    let mode = [0o644, 0o600, 0o755, 0o440][rng.below(4) as usize];
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// At least so long, with data at a few places, perhaps at none.
fn sparse(rng: &mut Rng, path: &Path, size_min: u64) {
    let size = size_min + rng.below(5_000);
    let file = fs::File::create(path).unwrap();
    file.set_len(size).unwrap();
    for _ in 0..rng.below(4) {
        let at = rng.below(size - 4_000);
        file.write_all_at(&noise(rng, 4_000), at).unwrap();
    }
}

/// What a file holds.
#[derive(Clone, PartialEq, Eq)]
pub struct Content(Arc<[u8]>);

impl Content {
    pub fn of(bytes: &[u8]) -> Content {
        Content(bytes.into())
    }

    /// How many bytes it is.
    pub fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    /// Where two first differ.
    fn first_other(&self, other: &Content) -> Option<usize> {
        let least = self.0.len().min(other.0.len());
        self.0.iter().zip(other.0.iter()).position(|(a, b)| a != b).or(Some(least)).filter(|_| self != other)
    }
}

/// No bytes: nobody could read them.
impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        write!(f, "{} bytes of {:08x}", self.0.len(), hasher.finish() as u32)
    }
}

/// Nanoseconds since 1970.
pub type Time = i128;

/// What an entry is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    Dir {
        mode: u32,
        mtime: Time,
        xattrs: Vec<(String, Vec<u8>)>,
    },
    File {
        mode: u32,
        content: Content,
        mtime: Time,
        xattrs: Vec<(String, Vec<u8>)>,
        /// The first name in the tree of a file with several.
        first: Option<PathBuf>,
    },
    Link {
        to: PathBuf,
    },
    Fifo {
        mode: u32,
    },
    Other,
}

/// Entries by their paths below the root.
pub type Tree = BTreeMap<PathBuf, Entry>;

/// What lies at a path now. What goes away meanwhile is left out.
pub fn read(at: &Path) -> Tree {
    let (mut tree, mut objects) = (Tree::new(), BTreeMap::new());
    read_into(at, Path::new(""), &mut tree, &mut objects);
    name_objects(&mut tree, &objects);
    tree
}

/// Paths by the object that has them.
type Objects = BTreeMap<(u64, u64), Vec<PathBuf>>;

fn read_into(root: &Path, below: &Path, tree: &mut Tree, objects: &mut Objects) {
    let path = if below.as_os_str().is_empty() { root.to_path_buf() } else { root.join(below) };
    let Ok(meta) = fs::symlink_metadata(&path) else { return };
    let Some(entry) = entry(&path, &meta) else { return };
    if meta.is_file() && meta.nlink() > 1 {
        objects.entry((meta.dev(), meta.ino())).or_default().push(below.to_path_buf());
    }
    tree.insert(below.to_path_buf(), entry);
    if meta.is_dir() {
        for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
            read_into(root, &below.join(entry.file_name()), tree, objects);
        }
    }
}

fn name_objects(tree: &mut Tree, objects: &Objects) {
    for names in objects.values().filter(|names| names.len() > 1) {
        let least = names.iter().min();
        for name in names {
            if let Some(Entry::File { first, .. }) = tree.get_mut(name) {
                *first = least.cloned();
            }
        }
    }
}

fn entry(path: &Path, meta: &fs::Metadata) -> Option<Entry> {
    use std::os::unix::fs::FileTypeExt;
    let mode = meta.mode() & 0o7777;
    let mtime = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
    Some(if meta.is_dir() {
        Entry::Dir { mode, mtime, xattrs: user_xattrs(path) }
    } else if meta.is_symlink() {
        Entry::Link { to: fs::read_link(path).ok()? }
    } else if meta.is_file() {
        let content = Content::of(&fs::read(path).ok()?);
        Entry::File { mode, content, mtime, xattrs: user_xattrs(path), first: None }
    } else if meta.file_type().is_fifo() {
        Entry::Fifo { mode }
    } else {
        Entry::Other
    })
}

fn user_xattrs(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut names = [0; 4_096];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let names = names[..len].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
    let mut found: Vec<(String, Vec<u8>)> = names
        .filter_map(|name| {
            let mut value = [0; 4_096];
            let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]).ok()?;
            Some((String::from_utf8_lossy(name).into_owned(), value[..len].to_vec()))
        })
        .collect();
    found.sort();
    found
}

/// A temporary file of a copy.
pub fn is_part(path: &Path) -> bool {
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
        (Entry::File { content, .. }, Some(Entry::File { content: whole, .. })) => content != whole,
        (Entry::Dir { .. }, Some(Entry::Dir { .. })) => false,
        (entry, Some(source)) => entry != source,
        (_, None) => true,
    };
    let found = there.iter().filter(|(path, entry)| !is_part(path) && wrong(path, entry));
    found.map(|(path, entry)| told(path, from.get(path), Some(entry))).collect()
}

/// How two trees differ, for people.
pub fn difference(from: &Tree, there: &Tree) -> Vec<String> {
    let missing = from.iter().filter(|(path, entry)| there.get(*path) != Some(entry));
    let missing = missing.map(|(path, entry)| told(path, Some(entry), there.get(path)));
    let more = there.iter().filter(|(path, _)| !from.contains_key(*path));
    missing.chain(more.map(|(path, entry)| told(path, None, Some(entry)))).collect()
}

fn told(path: &Path, from: Option<&Entry>, there: Option<&Entry>) -> String {
    let place = match (from, there) {
        (Some(Entry::File { content, .. }), Some(Entry::File { content: other, .. })) => {
            content.first_other(other).map(|at| format!("; the contents part at byte {at}"))
        }
        _ => None,
    };
    format!("{path:?}: {there:?}, at the source {from:?}{}", place.unwrap_or_default())
}
