//! Trees to copy, and an end that fails on demand.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod fault;
pub mod remote;

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tidepool_stage::{CompareOptions, Control, LocalEnd, StageOptions, StageReport, What, compare, stage};

/// Bytes of the odd file of [`torture`] that spans ranges.
pub const LARGE: u64 = 40 << 20;

/// A fresh directory in memory, where sync costs nothing.
pub fn memory_dir() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Bytes without a pattern, the same for the same seed.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

pub fn set_times(path: &Path, sec: i64, nsec: i64) {
    let time = Timespec { tv_sec: sec, tv_nsec: nsec };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Makes a file of `size` bytes with data only at `places`.
pub fn sparse(path: &Path, size: u64, places: &[u64]) {
    let file = fs::File::create(path).unwrap();
    file.set_len(size).unwrap();
    for place in places {
        file.write_all_at(&noise(4096, *place), *place).unwrap();
    }
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// True when the file system below `dir` keeps user attributes.
pub fn has_xattrs(dir: &Path) -> bool {
    let probe = dir.join("xattr-probe");
    fs::write(&probe, b"").unwrap();
    let set = rustix::fs::setxattr(&probe, "user.probe", b"1", XattrFlags::empty());
    fs::remove_file(&probe).unwrap();
    set.is_ok()
}

/// A small tree with one of everything that has ever gone wrong.
pub fn torture(root: &Path) {
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    fs::create_dir(root.join("empty dir")).unwrap();
    fs::write(root.join("empty"), b"").unwrap();
    fs::write(root.join("a/small"), b"hello").unwrap();
    fs::write(root.join("a/b/page"), noise(4096, 1)).unwrap();
    fs::write(root.join("a/b/odd size"), noise(70_001, 2)).unwrap();
    fs::write(root.join("-rf"), b"leading dash").unwrap();
    fs::write(root.join("new\nline"), b"n").unwrap();
    fs::write(root.join(OsStr::from_bytes(b"bad\xff\xfeutf8")), b"u").unwrap();
    fs::write(root.join(OsStr::from_bytes(&[b'x'; 255])), b"long").unwrap();
    fs::write(root.join("a/one"), noise(9000, 3)).unwrap();
    fs::hard_link(root.join("a/one"), root.join("a/b/two")).unwrap();
    fs::hard_link(root.join("a/one"), root.join("three")).unwrap();
    symlink("small", root.join("a/link")).unwrap();
    symlink("/nonexistent/\u{e9}", root.join("a/dangling")).unwrap();
    symlink("/etc/hostname", root.join("absolute")).unwrap();
    symlink("..", root.join("a/up")).unwrap();
    let mode = Mode::from_raw_mode(0o640);
    rustix::fs::mknodat(CWD, root.join("fifo"), FileType::Fifo, mode, 0).unwrap();
    sparse(&root.join("sparse"), 3 << 20, &[1 << 20, 2 << 20]);
    sparse(&root.join("hole only"), 5 << 20, &[]);
    sparse(&root.join("large sparse"), LARGE, &[0, 9 << 20, 17 << 20, LARGE - 4096]);
    for (name, mode) in [("a/small", 0o4755), ("a/b/page", 0o2711), ("empty", 0o000), ("-rf", 0o444)] {
        chmod(&root.join(name), mode);
    }
    chmod(&root.join("empty dir"), 0o1777);
    if has_xattrs(root) {
        rustix::fs::setxattr(root.join("a/small"), "user.note", b"\0v\xff", XattrFlags::empty()).unwrap();
        rustix::fs::setxattr(root.join("a/b"), "user.dir", b"", XattrFlags::empty()).unwrap();
    }
    chmod(&root.join("a/b/c"), 0o555);
    for (i, name) in
        ["a/small", "a/link", "a/one", "fifo", "sparse", "large sparse", "-rf", "a/b/c", "a/b", "a", "."]
            .iter()
            .enumerate()
    {
        set_times(&root.join(name), 1_000_000_000 + i as i64, 123_456_789);
    }
}

/// A source with the torture tree, a place for the copy, and one for journals.
pub struct Place {
    pub dir: TempDir,
}

impl Place {
    pub fn new(dir: TempDir) -> Place {
        fs::create_dir(dir.path().join("src")).unwrap();
        Place { dir }
    }

    pub fn with_torture(dir: TempDir) -> Place {
        let place = Place::new(dir);
        torture(&place.src());
        place
    }

    pub fn src(&self) -> PathBuf {
        self.dir.path().join("src")
    }

    pub fn dst(&self) -> PathBuf {
        self.dir.path().join("dst")
    }

    pub fn options(&self) -> StageOptions {
        StageOptions {
            workers: 3,
            journal_dir: Some(self.dir.path().join("state")),
            ..StageOptions::default()
        }
    }

    pub fn ends(&self) -> (LocalEnd, LocalEnd) {
        (LocalEnd::open(&self.src()).unwrap(), LocalEnd::create(&self.dst()).unwrap())
    }

    pub fn copy(&self, options: &StageOptions) -> StageReport {
        let (src, dst) = self.ends();
        stage(&src, &dst, &What::Tree, options, &Control::default())
    }

    pub fn differences(&self) -> Vec<String> {
        let (src, dst) = self.ends();
        let options = CompareOptions { owners: true, holes_slack: Some(64 << 10), ignore_sockets: true };
        compare(&src, &dst, options).unwrap()
    }

    pub fn assert_same(&self) {
        let differences = self.differences();
        assert!(differences.is_empty(), "{differences:#?}");
    }

    /// Every name in the destination that is a regular file holds what the source's does.
    pub fn assert_no_partial_file(&self) {
        let mut stack = vec![PathBuf::new()];
        while let Some(dir) = stack.pop() {
            let Ok(entries) = fs::read_dir(self.dst().join(&dir)) else { continue };
            for entry in entries.map(Result::unwrap) {
                let path = dir.join(entry.file_name());
                let kind = entry.file_type().unwrap();
                if kind.is_dir() {
                    stack.push(path);
                } else if kind.is_file() && !is_part(&path) {
                    let (ours, theirs) = (fs::read(self.src().join(&path)), fs::read(self.dst().join(&path)));
                    assert!(ours.unwrap() == theirs.unwrap(), "{} is not as at the source", path.display());
                }
            }
        }
    }

    /// Bytes of the files that are under their final names; each object once.
    pub fn finished_bytes(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let mut seen = std::collections::HashSet::new();
        let mut stack = vec![self.dst()];
        let mut bytes = 0;
        while let Some(dir) = stack.pop() {
            for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
                let meta = entry.metadata().unwrap();
                if meta.is_dir() {
                    stack.push(entry.path());
                } else if meta.is_file() && !is_part(&entry.path()) && seen.insert(meta.ino()) {
                    bytes += meta.blocks() * 512;
                }
            }
        }
        bytes
    }

    pub fn parts_left(&self) -> Vec<PathBuf> {
        let mut stack = vec![self.dst()];
        let mut parts = Vec::new();
        while let Some(dir) = stack.pop() {
            for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_dir() {
                    stack.push(entry.path());
                } else if is_part(&entry.path()) {
                    parts.push(entry.path());
                }
            }
        }
        parts
    }

    pub fn journals(&self) -> usize {
        fs::read_dir(self.dir.path().join("state")).map_or(0, Iterator::count)
    }
}

pub fn is_part(path: &Path) -> bool {
    path.file_name().is_some_and(|n| n.as_bytes().starts_with(tidepool_stage::PART_PREFIX))
}
