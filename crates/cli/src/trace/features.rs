//! What a program needs of a file system, and what gives it.

use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use tidepool_io_traces::strace::Call;

/// Whether something is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Support {
    Yes,
    /// With a difference that some programs notice.
    But(&'static str),
    No(&'static str),
}

use Support::{But, No, Yes};

/// One thing that programs ask of a file system.
pub struct Feature {
    pub id: &'static str,
    pub what: &'static str,
    pub fuse: Support,
    pub preload: Support,
    /// In a pool with `--mode relaxed`, with `--mode compat`.
    pub relaxed: Support,
    pub compat: Support,
}

const fn feature(id: &'static str, what: &'static str) -> Feature {
    Feature { id, what, fuse: Yes, preload: Yes, relaxed: Yes, compat: Yes }
}

const NO_NAMES: Support = No("compat has no rename and no links");
const UNCHECKED: Support = But("permissions are kept and shown, not checked");

/// All features, in the order of the report.
pub const FEATURES: &[Feature] = &[
    feature("data", "reads and writes"),
    feature("append", "appends (O_APPEND)"),
    feature("truncate", "truncation"),
    feature("shared-write", "several processes writing one file"),
    Feature { compat: NO_NAMES, ..feature("rename", "rename") },
    Feature { compat: NO_NAMES, ..feature("rename-flags", "rename without replacing, or exchanging") },
    Feature { compat: NO_NAMES, ..feature("hard-link", "hard links") },
    Feature { compat: NO_NAMES, ..feature("symlink", "symbolic links") },
    feature("unlinked-open", "use of files that were removed while open"),
    Feature {
        fuse: But("refused (EOPNOTSUPP); most programs then make a file with a name"),
        preload: But("refused (EOPNOTSUPP); most programs then make a file with a name"),
        ..feature("tmpfile", "files without a name (O_TMPFILE)")
    },
    feature("list", "listing of directories"),
    Feature { relaxed: UNCHECKED, compat: UNCHECKED, ..feature("permissions", "modes and owners") },
    feature("times", "setting times"),
    feature("xattr", "extended attributes"),
    Feature {
        preload: But("fcntl locks end at exec and are lost with their daemon"),
        fuse: But("locks are lost when their daemon restarts"),
        ..feature("posix-lock", "fcntl locks")
    },
    Feature {
        fuse: But("locks are lost when their daemon restarts"),
        preload: But("locks are lost when their daemon restarts"),
        ..feature("flock", "flock locks")
    },
    feature("ofd-lock", "open file description locks"),
    Feature {
        preload: But(
            "other processes see it at msync, munmap and exit; processes that are no kin cannot map one file so",
        ),
        ..feature("mmap-shared", "writable shared mappings")
    },
    Feature {
        preload: But("a mapping is a copy made at the call"),
        ..feature("mmap", "mappings for reading, or private ones")
    },
    feature("fsync", "fsync"),
    feature("allocate", "allocation of space (fallocate)"),
    feature("punch", "holes punched, ranges zeroed"),
    feature("seek-hole", "looking for holes (SEEK_HOLE, SEEK_DATA)"),
    Feature {
        preload: But(
            "splice is refused (EINVAL), copies to files outside the pool EXDEV; most programs then read and write",
        ),
        ..feature("copy-range", "copying inside the kernel")
    },
    feature("direct", "O_DIRECT"),
    Feature { preload: No("they can be made but not opened"), ..feature("special", "pipes and devices") },
    Feature {
        fuse: But("changes by other nodes are not told"),
        preload: No("refused: EOPNOTSUPP"),
        ..feature("watch", "watching for changes (inotify)")
    },
    Feature { preload: No("its requests do not pass by the library"), ..feature("io-uring", "io_uring") },
    Feature {
        preload: No("the preload library does not reach static programs"),
        ..feature("static", "a program that is statically linked")
    },
    Feature {
        preload: No("a program with set-user-id ignores the preload library"),
        ..feature("setuid", "a program with set-user-id")
    },
];

/// How often a feature was used, and an example.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Use {
    pub count: u64,
    pub failed: u64,
    pub example: String,
}

/// What was seen so far.
pub struct Survey {
    under: Vec<PathBuf>,
    pub uses: BTreeMap<&'static str, Use>,
    /// Processes that wrote each file.
    writers: HashMap<PathBuf, HashSet<u32>>,
}

impl Survey {
    /// Only what happens under these directories counts.
    pub fn new(under: Vec<PathBuf>) -> Survey {
        Survey { under, uses: BTreeMap::new(), writers: HashMap::new() }
    }

    pub fn note(&mut self, feature: &'static str, call: &Call) {
        debug_assert!(FEATURES.iter().any(|f| f.id == feature), "{feature}");
        let make = || Use { count: 0, failed: 0, example: format!("{}({})", call.name, call.args) };
        let entry = self.uses.entry(feature).or_insert_with(make);
        entry.count += 1;
        entry.failed += u64::from(!call.succeeded);
    }

    fn inside(&self, path: &Path) -> bool {
        self.under.iter().any(|dir| path.starts_with(dir))
    }

    /// Looks at one call.
    pub fn call(&mut self, call: &Call) {
        if call.name == "io_uring_setup" {
            return self.note("io-uring", call);
        }
        if call.name == "execve" && call.succeeded {
            return self.program(call);
        }
        if !call.paths.iter().any(|path| self.inside(path)) {
            return;
        }
        if call.on_deleted && call.name != "close" {
            self.note("unlinked-open", call);
        }
        if is_write(&call.name) {
            self.write(call);
        }
        for id in needs(call) {
            self.note(id, call);
        }
    }

    fn write(&mut self, call: &Call) {
        let Some(path) = call.paths.first().filter(|path| self.inside(path)) else { return };
        let writers = self.writers.entry(path.clone()).or_default();
        if writers.insert(call.pid) && writers.len() == 2 {
            self.note("shared-write", call);
        }
    }

    /// A program that was started, wherever it lies.
    fn program(&mut self, call: &Call) {
        let Some(path) = call.paths.first() else { return };
        if is_static(path) {
            self.note("static", call);
        }
        if is_setuid(path) {
            self.note("setuid", call);
        }
    }
}

fn is_write(name: &str) -> bool {
    matches!(name, "write" | "writev" | "pwrite64" | "pwritev" | "pwritev2")
}

/// The features that one call on a path needs.
fn needs(call: &Call) -> Vec<&'static str> {
    let has = |word: &str| call.args.contains(word);
    match call.name.as_str() {
        "read" | "readv" | "pread64" | "preadv" | "preadv2" => vec!["data"],
        name if is_write(name) => vec!["data"],
        "open" | "openat" | "openat2" | "creat" => opened(call),
        "truncate" | "ftruncate" => vec!["truncate"],
        "rename" | "renameat" => vec!["rename"],
        "renameat2" if has("RENAME_") => vec!["rename", "rename-flags"],
        "renameat2" => vec!["rename"],
        "link" | "linkat" => vec!["hard-link"],
        "symlink" | "symlinkat" => vec!["symlink"],
        "getdents" | "getdents64" => vec!["list"],
        "chmod" | "fchmod" | "fchmodat" | "fchmodat2" | "chown" | "fchown" | "lchown" | "fchownat" => {
            vec!["permissions"]
        }
        "utime" | "utimes" | "utimensat" | "futimesat" => vec!["times"],
        name if name.ends_with("xattr") => vec!["xattr"],
        "fcntl" if has("F_OFD_") => vec!["ofd-lock"],
        "fcntl" if has("F_SETLK") || has("F_GETLK") => vec!["posix-lock"],
        "fcntl" if has("F_SETFL") && has("O_APPEND") => vec!["append"],
        "flock" => vec!["flock"],
        "mmap" if has("MAP_SHARED") && has("PROT_WRITE") => vec!["mmap-shared"],
        "mmap" => vec!["mmap"],
        "fsync" | "fdatasync" | "sync_file_range" | "syncfs" => vec!["fsync"],
        "fallocate" if has("FALLOC_FL_PUNCH_HOLE") || has("FALLOC_FL_ZERO_RANGE") => vec!["punch"],
        "fallocate" => vec!["allocate"],
        "lseek" if has("SEEK_HOLE") || has("SEEK_DATA") => vec!["seek-hole"],
        "copy_file_range" | "sendfile" | "splice" => vec!["copy-range"],
        "mknod" | "mknodat" => vec!["special"],
        "inotify_add_watch" | "fanotify_mark" => vec!["watch"],
        _ => Vec::new(),
    }
}

fn opened(call: &Call) -> Vec<&'static str> {
    let flags =
        [("O_APPEND", "append"), ("O_TRUNC", "truncate"), ("O_DIRECT", "direct"), ("O_TMPFILE", "tmpfile")];
    // O_DIRECTORY begins like O_DIRECT.
    let words: Vec<&str> = call.args.split([',', '|', ' ', '=', '{', '}']).collect();
    flags.into_iter().filter(|(flag, _)| words.contains(flag)).map(|(_, id)| id).collect()
}

/// An ELF program without an interpreter.
fn is_static(path: &Path) -> bool {
    use std::io::Read;
    let mut head = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(4096).read_to_end(&mut head));
    let word = |at: usize, len: usize| {
        let bytes = head.get(at..at + len)?;
        Some(bytes.iter().rev().fold(0usize, |n, b| n << 8 | usize::from(*b)))
    };
    if read.is_err() || !head.starts_with(b"\x7fELF\x02\x01") {
        return false;
    }
    const PT_INTERP: usize = 3;
    let (Some(at), Some(size), Some(count)) = (word(32, 8), word(54, 2), word(56, 2)) else { return false };
    !(0..count).any(|n| at.checked_add(n * size).and_then(|at| word(at, 4)) == Some(PT_INTERP))
}

fn is_setuid(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).is_ok_and(|meta| meta.mode() & 0o6000 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_io_traces::strace::Reader;

    fn survey(lines: &[&str]) -> BTreeMap<&'static str, Use> {
        let mut reader = Reader::new(Path::new("/w"));
        let mut survey = Survey::new(vec!["/w".into()]);
        lines.iter().filter_map(|line| reader.line(line)).for_each(|call| survey.call(&call));
        survey.uses
    }

    #[test]
    fn only_what_happens_below_counts() {
        let uses = survey(&[
            r#"1 openat(AT_FDCWD</w>, "/etc/x", O_RDONLY|O_DIRECTORY) = 3</etc/x>"#,
            r#"1 rename("/tmp/a", "/tmp/b") = 0"#,
            r#"1 rename("/tmp/a", "b") = 0"#,
            r#"1 rename("b", "c") = -1 ENOENT (No such file or directory)"#,
            r#"1 openat(AT_FDCWD</w>, "d", O_RDONLY|O_DIRECTORY) = 3</w/d>"#,
            r#"1 write(4</w/f>, "x", 1) = 1"#,
            r#"2 write(4</w/f>, "x", 1) = 1"#,
            r#"2 read(4</w/f>(deleted), "x", 1) = 1"#,
            r#"2 renameat2(AT_FDCWD</w>, "a", AT_FDCWD</w>, "b", RENAME_NOREPLACE) = 0"#,
        ]);
        let counts: Vec<_> = uses.iter().map(|(id, u)| (*id, u.count, u.failed)).collect();
        assert_eq!(
            counts,
            [
                ("data", 3, 0),
                ("rename", 3, 1),
                ("rename-flags", 1, 0),
                ("shared-write", 1, 0),
                ("unlinked-open", 1, 0)
            ]
        );
    }

    #[test]
    fn flags_are_whole_words() {
        let call = |flags: &str| format!(r#"1 openat(AT_FDCWD</w>, "O_APPEND", {flags}) = 3</w/x>"#);
        assert!(survey(&[&call("O_RDONLY|O_DIRECTORY")]).keys().all(|id| *id != "direct"));
        assert!(survey(&[&call("O_WRONLY|O_DIRECT")]).contains_key("direct"));
    }

    #[test]
    fn static_programs_are_told_from_dynamic_ones() {
        assert!(!is_static(Path::new("/bin/sh")));
        assert!(!is_static(Path::new("/etc/passwd")));
        if Path::new("/bin/busybox").exists() {
            assert!(is_static(Path::new("/bin/busybox")), "Debian's busybox-static");
        }
    }
}
