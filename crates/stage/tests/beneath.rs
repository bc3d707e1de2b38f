//! Directories below a root that nobody leads out of.

mod support;

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use support::memory_dir;
use tempfile::TempDir;
use tidepool_stage::{At, Control, Cursor, End, EndError, LocalEnd, StageOptions, What, stage};
use tidepool_types::Errno;

/// `space` is the dataspace; `outside` lies beside it.
fn place() -> (TempDir, OwnedFd) {
    let dir = memory_dir();
    fs::create_dir_all(dir.path().join("space/a/b")).unwrap();
    fs::create_dir(dir.path().join("outside")).unwrap();
    fs::write(dir.path().join("outside/secret"), b"secret").unwrap();
    fs::write(dir.path().join("space/a/file"), b"mine").unwrap();
    let root = fs::File::open(dir.path().join("space")).unwrap().into();
    (dir, root)
}

fn ino(end: &LocalEnd) -> u64 {
    end.stat(At::Dir(&end.root())).unwrap().ino
}

fn ino_of(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

fn error<T>(result: Result<T, EndError>) -> EndError {
    result.err().expect("this must be refused")
}

#[test]
fn directories_below_the_root_are_found() {
    let (dir, root) = place();
    let space = dir.path().join("space");
    symlink("a/b", space.join("inner")).unwrap();
    symlink("../inner", space.join("a/back")).unwrap();
    for (path, real) in [
        ("", ""),
        (".", ""),
        ("a", "a"),
        ("a/", "a"),
        ("a//b/./", "a/b"),
        ("a/b/..", "a"),
        ("a/b/../..", ""),
        ("inner", "a/b"),
        ("inner/", "a/b"),
        ("a/back", "a/b"),
    ] {
        let end = LocalEnd::open_beneath(&root, path.as_bytes()).unwrap();
        assert_eq!(ino(&end), ino_of(&space.join(real)), "{path}");
        assert_eq!(end.describe(), fs::canonicalize(space.join(real)).unwrap().display().to_string());
    }
}

#[test]
fn nothing_leads_out() {
    let (dir, root) = place();
    let space = dir.path().join("space");
    symlink(dir.path().join("outside"), space.join("absolute")).unwrap();
    symlink("../outside", space.join("relative")).unwrap();
    symlink("../../outside", space.join("a/deeper")).unwrap();
    symlink("relative", space.join("twice")).unwrap();
    symlink("/proc/self/root", space.join("magic")).unwrap();
    let full = space.display().to_string();
    for path in [
        "..",
        "../outside",
        "a/../../outside",
        "/",
        "/etc",
        &full,
        "absolute",
        "relative",
        "a/deeper",
        "twice",
        "magic",
    ] {
        let below = format!("{path}/x");
        for error in [
            error(LocalEnd::open_beneath(&root, path.as_bytes())),
            error(LocalEnd::create_beneath(&root, path.as_bytes())),
            error(LocalEnd::parent_beneath(&root, below.as_bytes())),
            error(LocalEnd::create_parent_beneath(&root, below.as_bytes())),
        ] {
            assert_eq!(error.errno, Errno(libc::EXDEV), "{path}: {error}");
            assert!(error.to_string().contains("leads out of the dataspace"), "{path}: {error}");
        }
    }
    assert_eq!(fs::read_dir(dir.path().join("outside")).unwrap().count(), 1, "something was made outside");
}

#[test]
fn the_last_name_is_not_followed() {
    let (dir, root) = place();
    symlink("../outside/secret", dir.path().join("space/a/link")).unwrap();
    for (path, parent, name) in [
        ("a/link", "a", "link"),
        ("a/new", "a", "new"),
        ("a/new/", "a", "new"),
        ("top", "", "top"),
        ("a/b/", "a", "b"),
    ] {
        let (end, found) = LocalEnd::parent_beneath(&root, path.as_bytes()).unwrap();
        assert_eq!(found, name.as_bytes());
        assert_eq!(ino(&end), ino_of(&dir.path().join("space").join(parent)), "{path}");
    }
    for path in ["", "/", ".", "a/..", "a/.", "a/../"] {
        assert_eq!(error(LocalEnd::parent_beneath(&root, path.as_bytes())).errno, Errno::EINVAL, "{path}");
    }
    for path in ["a/file/", "a/link/"] {
        assert_eq!(error(LocalEnd::parent_beneath(&root, path.as_bytes())).errno, Errno::ENOTDIR, "{path}");
    }
    assert_eq!(error(LocalEnd::open_beneath(&root, b"a/file")).errno, Errno::ENOTDIR);
    assert_eq!(error(LocalEnd::parent_beneath(&root, b"none/x")).errno, Errno::ENOENT);
}

#[test]
fn missing_directories_are_made_below_the_root_only() {
    let (dir, root) = place();
    let space = dir.path().join("space");
    symlink("../a", space.join("a/b/up")).unwrap();
    symlink("nowhere", space.join("dangling")).unwrap();
    symlink("../outside/made", space.join("dangling out")).unwrap();
    for (path, real) in [
        ("x/y//z/", "x/y/z"),
        ("x/y/../w", "x/w"),
        ("a/b/../c/d", "a/c/d"),
        ("./p/./q", "p/q"),
        ("a/b", "a/b"),
    ] {
        let end = LocalEnd::create_beneath(&root, path.as_bytes()).unwrap();
        assert_eq!(ino(&end), ino_of(&space.join(real)), "{path}");
    }
    let (end, name) = LocalEnd::create_parent_beneath(&root, b"m/n/o").unwrap();
    assert_eq!((ino(&end), name.as_slice()), (ino_of(&space.join("m/n")), &b"o"[..]));
    assert!(!space.join("m/n/o").exists());
    assert_eq!(error(LocalEnd::create_beneath(&root, b"dangling/x")).errno, Errno::ENOENT);
    assert_eq!(error(LocalEnd::create_beneath(&root, b"dangling out/x")).errno, Errno(libc::EXDEV));
    assert_eq!(error(LocalEnd::create_beneath(&root, b"a/file/x")).errno, Errno::ENOTDIR);
    assert_eq!(error(LocalEnd::create_beneath(&root, b"new/../../outside/x")).errno, Errno(libc::EXDEV));
    assert_eq!(fs::read_dir(dir.path().join("outside")).unwrap().count(), 1);
}

/// While one thread swaps a directory with a link that leads out, another opens it: it gets
/// the directory or a refusal, never what lies outside.
#[test]
fn a_swap_at_any_moment_leads_nowhere() {
    let (dir, root) = place();
    let space = dir.path().join("space");
    fs::create_dir(space.join("real")).unwrap();
    symlink("../outside", space.join("trap")).unwrap();
    let stop = AtomicBool::new(false);
    let (mut opened, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let space = fs::File::open(&space).unwrap();
            while !stop.load(Ordering::Relaxed) {
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(&space, "real", &space, "trap", exchange).unwrap();
            }
        });
        for round in 0..20_000 {
            let made = format!("real/{}", round % 10);
            match round % 3 {
                0 => count(LocalEnd::open_beneath(&root, b"real"), &mut opened, &mut refused),
                1 => count(LocalEnd::create_beneath(&root, made.as_bytes()), &mut opened, &mut refused),
                _ => count(
                    LocalEnd::parent_beneath(&root, made.as_bytes()).map(|found| found.0),
                    &mut opened,
                    &mut refused,
                ),
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("{opened} opened, {refused} refused");
    assert!(opened > 0 && refused > 0, "the race was not met");
    assert_eq!(fs::read_dir(dir.path().join("outside")).unwrap().count(), 1, "something was made outside");
}

fn count(found: Result<LocalEnd, EndError>, opened: &mut u64, refused: &mut u64) {
    match found {
        Ok(end) => {
            let (items, _) = end.list(&end.root(), &Cursor::Start).unwrap();
            assert!(items.iter().all(|item| item.name != b"secret"), "led out");
            *opened += 1;
        }
        Err(error) => {
            let known = [Errno(libc::EXDEV), Errno(libc::EAGAIN)].contains(&error.errno);
            assert!(known, "{error}");
            *refused += 1;
        }
    }
}

#[test]
fn a_copy_between_places_below_works() {
    let (dir, root) = place();
    let source = LocalEnd::open_beneath(&root, b"a").unwrap();
    let target = LocalEnd::create_beneath(&root, b"copy/of/a").unwrap();
    let report = stage(&source, &target, &What::Tree, &StageOptions::default(), &Control::default());
    assert!(report.complete, "{report:#?}");
    assert_eq!(fs::read(dir.path().join("space/copy/of/a/file")).unwrap(), b"mine");
}
