//! Moving: by a rename, or by a copy after which exactly what was copied is removed.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use support::fault::{Fault, FaultEnd};
use support::{Place, memory_dir, noise};
use tempfile::TempDir;
use tidepool_stage::{
    CompareOptions, Control, End, LocalEnd, MoveReport, PoolEnd, StageOptions, What, compare, move_tree,
};
use tidepool_testkit::{Cluster, cred};
use tidepool_types::Errno;

fn options() -> StageOptions {
    StageOptions { workers: 3, ..StageOptions::default() }
}

fn entry(from: &str, to: &str) -> What {
    What::Entry { from: from.into(), to: to.into() }
}

fn local(path: &Path) -> LocalEnd {
    LocalEnd::open(path).unwrap()
}

fn moved(src: &dyn End, dst: &dyn End, what: &What) -> MoveReport {
    move_tree(src, dst, what, &options(), &Control::default())
}

/// Two directories of different file systems, and a copy of the torture tree to compare with.
struct Apart {
    place: Place,
    far: TempDir,
    like: PathBuf,
}

impl Apart {
    fn new() -> Apart {
        let place = Place::with_torture(memory_dir());
        let far = tempfile::tempdir().unwrap();
        let like = place.dir.path().join("like");
        let copied = std::process::Command::new("cp").arg("-a").arg(place.src()).arg(&like).status();
        assert!(copied.unwrap().success());
        assert_ne!(fs::metadata(far.path()).unwrap().dev(), fs::metadata(&like).unwrap().dev());
        Apart { place, far, like }
    }

    fn assert_arrived(&self, at: &Path) {
        let options = CompareOptions { owners: true, holes_slack: Some(64 << 10), ignore_sockets: true };
        let differences = compare(&local(&self.like), &local(at), options).unwrap();
        assert!(differences.is_empty(), "{differences:#?}");
    }
}

#[test]
fn on_one_file_system_a_move_is_a_rename() {
    let place = Place::with_torture(memory_dir());
    let target = place.dir.path().join("target");
    fs::create_dir(&target).unwrap();
    let ino = fs::metadata(place.src().join("a/one")).unwrap().ino();
    let report = moved(&local(place.dir.path()), &local(&target), &entry("src", "new name"));
    assert!(report.complete && report.renamed, "{report:#?}");
    assert!(!place.src().exists());
    assert_eq!(fs::metadata(target.join("new name/a/one")).unwrap().ino(), ino);
}

#[test]
fn existing_targets_are_dealt_with_as_a_copy_does() {
    let dir = memory_dir();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    fs::create_dir_all(a.join("dir")).unwrap();
    fs::create_dir_all(b.join("dir")).unwrap();
    for (path, text) in
        [("a/f", "new"), ("b/f", "old"), ("a/dir/x", "x"), ("b/dir/y", "y"), ("a/in the way", "f")]
    {
        fs::write(dir.path().join(path), text).unwrap();
    }
    fs::create_dir(b.join("in the way")).unwrap();
    let (src, dst) = (local(&a), local(&b));
    let report = moved(&src, &dst, &entry("f", "f"));
    assert!(report.complete && report.renamed, "{report:#?}");
    assert_eq!((fs::read(b.join("f")).unwrap(), a.join("f").exists()), (b"new".to_vec(), false));
    let report = moved(&src, &dst, &entry("dir", "dir"));
    assert!(report.complete && !report.renamed, "{report:#?}");
    assert!(b.join("dir/x").exists() && b.join("dir/y").exists() && !a.join("dir").exists());
    let report = moved(&src, &dst, &entry("in the way", "in the way"));
    assert!(!report.complete && report.removal.is_none(), "{report:#?}");
    assert!(a.join("in the way").is_file() && b.join("in the way").is_dir());
    for (name, errno) in [("none", Some(Errno::ENOENT)), ("..", None)] {
        let report = moved(&src, &dst, &entry(name, "x"));
        assert_eq!((report.complete, report.copy.errors[0].errno), (false, errno), "{name}");
    }
}

#[test]
fn two_names_of_one_file_and_a_move_onto_itself() {
    let dir = memory_dir();
    fs::write(dir.path().join("one"), b"x").unwrap();
    fs::hard_link(dir.path().join("one"), dir.path().join("two")).unwrap();
    let end = local(dir.path());
    let report = moved(&end, &end, &entry("one", "two"));
    assert!(report.complete, "{report:#?}");
    assert!(!dir.path().join("one").exists() && dir.path().join("two").exists());
    let report = moved(&end, &end, &entry("two", "two"));
    assert!(!report.complete, "{report:#?}");
    assert_eq!(fs::read(dir.path().join("two")).unwrap(), b"x");
    fs::create_dir_all(dir.path().join("d/inner")).unwrap();
    let report = moved(&end, &local(&dir.path().join("d/inner")), &entry("d", "d"));
    assert!(!report.complete && dir.path().join("d/inner").exists(), "{report:#?}");
}

#[test]
fn between_file_systems_all_is_copied_and_then_removed() {
    let apart = Apart::new();
    let (src, dst) = (local(apart.place.dir.path()), local(apart.far.path()));
    let report = moved(&src, &dst, &entry("src", "moved"));
    assert!(report.complete && !report.renamed, "{report:#?}");
    apart.assert_arrived(&apart.far.path().join("moved"));
    assert!(!apart.place.src().exists());
    let removal = report.removal.unwrap();
    assert_eq!((removal.dirs, removal.files), (5, 19));
    // The content alone, back again.
    fs::create_dir(apart.place.src()).unwrap();
    let report = moved(&local(&apart.far.path().join("moved")), &local(&apart.place.src()), &What::Tree);
    assert!(report.complete, "{report:#?}");
    apart.assert_arrived(&apart.place.src());
    assert_eq!(fs::read_dir(apart.far.path().join("moved")).unwrap().count(), 0);
}

#[test]
fn a_move_from_a_pool_and_within_one() {
    let apart = Apart::new();
    let cluster = Cluster::start(2);
    let client = Arc::new(cluster.client());
    let pool = |path: &[u8]| PoolEnd::at_path(client.clone(), path, cred(), true).unwrap();
    let (a, b) = (pool(b"/a"), pool(b"/b"));
    let report = moved(&local(apart.place.dir.path()), &a, &entry("src", "tree"));
    assert!(report.complete && !report.renamed, "{report:#?}");
    let report = moved(&a, &b, &entry("tree", "there"));
    assert!(report.complete && report.renamed, "{report:#?}");
    let report = moved(&b, &local(apart.far.path()), &entry("there", "back"));
    assert!(report.complete, "{report:#?}");
    apart.assert_arrived(&apart.far.path().join("back"));
    for end in [&a, &b] {
        assert!(end.list(&end.root(), &Default::default()).unwrap().0.is_empty());
    }
}

/// What appears or changes at the source when everything is copied stays there.
#[test]
fn only_what_was_copied_is_removed() {
    let apart = Apart::new();
    let src = apart.place.src();
    let late = After {
        inner: local(apart.far.path()),
        done: AtomicBool::new(false),
        act: &|| {
            fs::write(src.join("a/late"), b"new").unwrap();
            fs::write(src.join("a/b/page"), b"changed").unwrap();
            fs::create_dir(src.join("late dir")).unwrap();
            fs::remove_file(src.join("absolute")).unwrap();
            symlink("elsewhere", src.join("absolute")).unwrap();
        },
    };
    let report = moved(&local(apart.place.dir.path()), &late, &entry("src", "moved"));
    assert!(late.done.load(Ordering::Relaxed), "nothing was changed");
    assert!(report.copy.complete && !report.complete, "{report:#?}");
    let removal = report.removal.unwrap();
    let mut stayed: Vec<_> = removal.errors.iter().map(|error| error.path.as_str()).collect();
    stayed.sort();
    assert_eq!(stayed, ["src/a/b/page", "src/a/late", "src/absolute", "src/late dir"]);
    assert_eq!(fs::read(src.join("a/b/page")).unwrap(), b"changed");
    assert_eq!(fs::read(src.join("a/late")).unwrap(), b"new");
    assert!(src.join("late dir").is_dir() && src.join("absolute").is_symlink());
    assert!(!src.join("a/small").exists() && !src.join("three").exists());
    apart.assert_arrived(&apart.far.path().join("moved"));
}

#[test]
fn sockets_stay_and_are_named() {
    let apart = Apart::new();
    let _socket = std::os::unix::net::UnixListener::bind(apart.place.src().join("a/socket")).unwrap();
    let report = moved(&local(apart.place.dir.path()), &local(apart.far.path()), &entry("src", "moved"));
    assert!(!report.complete);
    let removal = report.removal.unwrap();
    assert_eq!((removal.error_count, removal.errors[0].path.as_str()), (1, "src/a/socket"));
    assert!(apart.place.src().join("a/socket").exists());
}

/// Whichever call of the target fails, every file is whole at one of the two places at least.
#[test]
fn a_failure_anywhere_loses_nothing() {
    let mut at = 0;
    loop {
        let place = Place::new(memory_dir());
        let far = tempfile::tempdir().unwrap();
        fs::create_dir(place.src().join("d")).unwrap();
        let content = noise(50_000, 7);
        fs::write(place.src().join("d/file"), &content).unwrap();
        fs::hard_link(place.src().join("d/file"), place.src().join("name")).unwrap();
        let mut src = FaultEnd::new(local(place.dir.path()), Fault::None, 0);
        src.removes = true;
        let dst = FaultEnd::new(local(far.path()), Fault::Once, at);
        let report = moved(&src, &dst, &entry("src", "dst"));
        let failed = !dst.log.lock().unwrap().is_empty();
        for name in ["d/file", "name"] {
            let copies = [place.src().join(name), far.path().join("dst").join(name)].map(fs::read);
            assert!(copies.iter().flatten().any(|copy| *copy == content), "{at}: {name} is lost");
            if !report.copy.complete {
                assert!(copies[0].is_ok(), "{at}: removed though the copy is not complete");
            }
        }
        if !failed {
            assert!(report.complete && !place.src().exists(), "{report:#?}");
            break;
        }
        at += 1;
    }
    println!("{at} places to fail");
    assert!(at > 10);
}

/// Wherever a move is killed, doing it again ends well; names of one file stay names of one file,
/// although the source may have lost some of them meanwhile.
#[test]
fn a_move_that_was_killed_anywhere_keeps_hard_links() {
    let mut at = 0;
    loop {
        let place = Place::new(memory_dir());
        let far = tempfile::tempdir().unwrap();
        fs::create_dir(place.src().join("d")).unwrap();
        fs::write(place.src().join("d/file"), noise(5000, 7)).unwrap();
        fs::hard_link(place.src().join("d/file"), place.src().join("name")).unwrap();
        symlink("d", place.src().join("link")).unwrap();
        fs::hard_link(place.src().join("link"), place.src().join("link too")).unwrap();
        let mut src = FaultEnd::new(local(place.dir.path()), Fault::Dead, at);
        src.removes = true;
        let killed = moved(&src, &local(far.path()), &entry("src", "dst"));
        if killed.complete {
            break;
        }
        if place.src().exists() {
            let again = moved(&local(place.dir.path()), &local(far.path()), &entry("src", "dst"));
            assert!(again.complete && !place.src().exists(), "{at}: {again:#?}");
        }
        let inode = |name: &str| fs::symlink_metadata(far.path().join("dst").join(name)).unwrap().ino();
        assert_eq!(inode("d/file"), inode("name"), "{at}");
        assert_eq!(inode("link"), inode("link too"), "{at}");
        assert!(fs::read(far.path().join("dst/name")).unwrap() == noise(5000, 7));
        at += 1;
    }
    println!("{at} places to be killed at");
    assert!(at > 10);
}

/// Wherever a move is killed, doing it again leaves directories with the times that they had, although removing what is in them gives
/// the source's other ones.
#[test]
fn a_move_that_was_killed_anywhere_keeps_times_of_directories() {
    let old = |second| std::time::UNIX_EPOCH + std::time::Duration::from_secs(second);
    let dirs = [("", old(1_000)), ("d", old(2_000)), ("d/e", old(3_000)), ("empty", old(4_000))];
    let mut at = 0;
    loop {
        let place = Place::new(memory_dir());
        let far = tempfile::tempdir().unwrap();
        let journals = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.src().join("d/e")).unwrap();
        fs::create_dir(place.src().join("empty")).unwrap();
        for name in ["one", "two", "d/one", "d/two", "d/e/one", "d/e/two"] {
            fs::write(place.src().join(name), name).unwrap();
        }
        for (dir, time) in dirs.iter().rev() {
            fs::File::open(place.src().join(dir)).unwrap().set_modified(*time).unwrap();
        }
        let options = StageOptions { journal_dir: Some(journals.path().into()), ..options() };
        let once = |src: &dyn End| {
            let what = entry("src", "dst");
            move_tree(src, &local(far.path()), &what, &options, &Control::default())
        };
        let mut src = FaultEnd::new(local(place.dir.path()), Fault::Dead, at);
        src.removes = true;
        let killed = once(&src);
        if !killed.complete && place.src().exists() {
            let again = once(&local(place.dir.path()));
            assert!(again.complete && !place.src().exists(), "{at}: {again:#?}");
        }
        for (dir, time) in dirs {
            let there = fs::metadata(far.path().join("dst").join(dir)).unwrap().modified().unwrap();
            assert_eq!(there, time, "{at}: {dir}");
        }
        if killed.complete {
            assert_eq!(fs::read_dir(journals.path()).unwrap().count(), 0, "its journal is left");
            break;
        }
        at += 1;
    }
    println!("{at} places to be killed at");
    assert!(at > 10);
}

/// The root of a tree is removed by who had it moved, and he may be killed before that: doing all of it again finds an empty root
/// with the times of its removals.
#[test]
fn a_tree_that_is_moved_again_keeps_the_times_of_its_root() {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000);
    let place = Place::new(memory_dir());
    let far = tempfile::tempdir().unwrap();
    fs::write(place.src().join("one"), "one").unwrap();
    fs::File::open(place.src()).unwrap().set_modified(time).unwrap();
    for run in ["first", "again"] {
        let journal =
            fs::OpenOptions::new().read(true).append(true).create(true).open(far.path().join("journal"));
        let options = StageOptions { journal_file: Some(Arc::new(journal.unwrap())), ..options() };
        let (src, dst) = (local(&place.src()), far.path().join("dst"));
        fs::create_dir_all(&dst).unwrap();
        let report = move_tree(&src, &local(&dst), &What::Tree, &options, &Control::default());
        assert!(report.complete && fs::read_dir(place.src()).unwrap().count() == 0, "{run}: {report:#?}");
        assert_eq!(fs::metadata(&dst).unwrap().modified().unwrap(), time, "{run}");
    }
}

/// Does something when all is written and made durable: between the copy and the removal.
struct After<'a> {
    inner: LocalEnd,
    done: AtomicBool,
    act: &'a (dyn Fn() + Sync),
}

mod after {
    use super::*;
    use tidepool_stage::{At, Cursor, DirRef, EndResult, FileRef, Item, Meta, Rights, SetMeta, Xattr};
    use tidepool_types::FileKind;

    macro_rules! pass_on {
        ($($name:ident($($arg:ident: $kind:ty),*) -> $back:ty;)*) => {
            $(fn $name(&self, $($arg: $kind),*) -> $back { self.inner.$name($($arg),*) })*
        };
    }

    impl End for After<'_> {
        fn fsync_all(&self) -> EndResult<()> {
            self.inner.fsync_all()?;
            if !self.done.swap(true, Ordering::Relaxed) {
                (self.act)();
            }
            Ok(())
        }

        pass_on! {
            describe() -> String;
            identity() -> Vec<u8>;
            rights() -> Rights;
            reads_touch_atime() -> bool;
            root() -> DirRef;
            open_dir(dir: &DirRef, name: &[u8]) -> EndResult<DirRef>;
            leave_dir(dir: &DirRef) -> ();
            list(dir: &DirRef, from: &Cursor) -> EndResult<(Vec<Item>, Option<Cursor>)>;
            stat(at: At<'_>) -> EndResult<Meta>;
            read_link(dir: &DirRef, name: &[u8]) -> EndResult<Vec<u8>>;
            xattrs(at: At<'_>) -> EndResult<Vec<Xattr>>;
            open_read(dir: &DirRef, name: &[u8]) -> EndResult<FileRef>;
            read(file: &FileRef, offset: u64, buf: &mut [u8]) -> EndResult<usize>;
            next_data(file: &FileRef, offset: u64) -> EndResult<Option<u64>>;
            next_hole(file: &FileRef, offset: u64, limit: u64) -> EndResult<u64>;
            drop_cache(file: &FileRef, offset: u64, len: u64) -> ();
            create(dir: &DirRef, name: &[u8]) -> EndResult<FileRef>;
            open_write(dir: &DirRef, name: &[u8]) -> EndResult<FileRef>;
            write(file: &FileRef, offset: u64, data: &[u8]) -> EndResult<usize>;
            truncate(file: &FileRef, size: u64) -> EndResult<()>;
            fsync(file: &FileRef) -> EndResult<()>;
            fsync_dir(dir: &DirRef) -> EndResult<()>;
            make_dir(dir: &DirRef, name: &[u8]) -> EndResult<()>;
            make_symlink(dir: &DirRef, name: &[u8], target: &[u8]) -> EndResult<()>;
            make_node(dir: &DirRef, name: &[u8], kind: FileKind, rdev: u64) -> EndResult<()>;
            make_link(old: (&DirRef, &[u8]), new: (&DirRef, &[u8])) -> EndResult<()>;
            rename(dir: &DirRef, from: &[u8], to: &[u8]) -> EndResult<()>;
            unlink(dir: &DirRef, name: &[u8]) -> EndResult<()>;
            set_meta(at: At<'_>, set: &SetMeta) -> EndResult<()>;
            set_xattr(at: At<'_>, name: &[u8], value: &[u8]) -> EndResult<()>;
        }
    }
}
