//! What another user, a mount, a program that goes on writing, or a strange tree could do to a removal, done. What holds
//! whatever happens: nothing outside the tree changes, and either all of it is gone or an error names what stays.
//! `TIDEPOOL_SEED` repeats a run of the random trees.
//!
//! Foreign files and mounts take root. What has to be seen by an ordinary user, with few descriptors, or with mounts of its
//! own, is this program once more, as that.

use rustix::fs::{
    CWD, FileType, Mode, OFlags, RenameFlags, ResolveFlags, mkdirat, mknodat, openat, openat2, renameat_with,
};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;
use tidepool_removal::{RemovalError, Tree, Why, contents, remove};

const BOB: u32 = 31002;
const ALICE: u32 = 31001;
const ROUNDS: usize = 60;
const RACES: usize = 150;
const DEPTH: usize = 20_000;
/// More than a walk looks at in one go.
const WIDE: usize = 2_600;
/// Says to this program that it is the second one.
const AGAIN: &str = "TIDEPOOL_REMOVAL_AGAIN";

fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn is_root(test: &str) -> bool {
    if own() != 0 {
        eprintln!("SKIPPED: {test} needs root, to make files of two users or mounts");
    }
    own() == 0
}

/// Runs a test in another process, behind a program that changes what it is; false in that process itself.
fn again(test: &str, before: &[&str]) -> bool {
    if std::env::var_os(AGAIN).is_some() {
        return false;
    }
    // Where every user may run it.
    let dir = TempDir::new().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
    let program = dir.path().join("again");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut command = Command::new(before[0]);
    command.args(&before[1..]).arg(&program).args(["--exact", test, "--nocapture"]);
    let status =
        command.env_remove("LD_LIBRARY_PATH").env(AGAIN, "1").env("TMPDIR", dir.path()).status().unwrap();
    assert!(status.success(), "{test} behind {before:?}: {status}");
    true
}

/// Everything there is, without following links: what it is, whose, and what is in it. Permissions of directories are left
/// out, which a look may widen for the owner.
fn snapshot(root: &Path) -> BTreeMap<PathBuf, (u32, u32, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut ahead = vec![root.to_path_buf()];
    while let Some(path) = ahead.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let kind = meta.mode() & 0o170_000;
        let (mode, text) = match meta.file_type() {
            kind_of if kind_of.is_dir() => {
                ahead.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                (kind, Vec::new())
            }
            kind_of if kind_of.is_symlink() => {
                (meta.mode(), fs::read_link(&path).unwrap().into_os_string().into_vec())
            }
            kind_of if kind_of.is_file() && (own() == 0 || meta.mode() & 0o400 != 0) => {
                (meta.mode(), fs::read(&path).unwrap())
            }
            _ => (meta.mode(), Vec::new()),
        };
        all.insert(path, (mode, meta.uid(), text));
    }
    all
}

/// A tree in a directory with other things, which nobody may touch.
struct World {
    dir: TempDir,
}

impl World {
    fn new() -> World {
        let dir = TempDir::new_in(std::env::temp_dir().canonicalize().unwrap()).unwrap();
        let outside = dir.path().join("outside");
        fs::create_dir_all(outside.join("sub/deeper")).unwrap();
        fs::write(outside.join("precious"), "results").unwrap();
        fs::write(outside.join("sub/deeper/more"), "more results").unwrap();
        fs::create_dir(dir.path().join("tree")).unwrap();
        World { dir }
    }

    fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    fn outside(&self) -> PathBuf {
        self.dir.path().join("outside")
    }

    fn gone(&self) -> bool {
        fs::symlink_metadata(self.tree()).is_err()
    }
}

fn random_name(random: &mut fastrand::Rng) -> OsString {
    match random.u8(..6) {
        0 => OsString::from_vec(vec![b'n'; 254].into_iter().chain([random.u8(b'a'..=b'z')]).collect()),
        1 => OsString::from_vec(vec![0xff, 0xfe, random.u8(1..47), b'\n', random.u8(128..)]),
        2 => "-rf ..".into(),
        3 => format!("...{}", random.u8(..)).into(),
        _ => format!("{}", random.u16(..)).into(),
    }
}

/// Puts something into a directory; true where it is a directory.
fn put(world: &World, path: &Path, random: &mut fastrand::Rng) -> bool {
    // Nothing is written through a link, or into a FIFO.
    if fs::symlink_metadata(path).is_ok() {
        return false;
    }
    let outside = world.outside();
    match random.u8(..12) {
        0..=3 => return fs::create_dir(path).is_ok(),
        4 => drop(symlink(&outside, path)),
        5 => drop(symlink("../".repeat(random.usize(1..20)), path)),
        6 => drop(symlink(outside.join("precious"), path)),
        7 => drop(fs::hard_link(outside.join("precious"), path)),
        8 => drop(mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)),
        // The path may be longer than an address.
        9 => drop(UnixListener::bind(path)),
        // Only what is made here: a link of this name may lead to '/', whose mode this would change.
        10 => drop(fs::OpenOptions::new().write(true).create_new(true).mode(0o000).open(path)),
        _ => drop(
            fs::File::create_new(path).and_then(|mut file| file.write_all(&vec![b'x'; random.usize(..9000)])),
        ),
    }
    false
}

/// A random tree; its directories, the root first.
fn grow(world: &World, random: &mut fastrand::Rng) -> Vec<PathBuf> {
    let mut dirs = vec![world.tree()];
    for _ in 0..random.usize(..120) {
        // Rather deep than wide.
        let parent = if random.bool() { dirs.last() } else { random.choice(&dirs) }.unwrap();
        let path = parent.join(random_name(random));
        if path.as_os_str().len() < 3000 && put(world, &path, random) {
            dirs.push(path);
        }
    }
    dirs
}

/// Something that is not this user's, somewhere in the tree; where and whose.
fn plant(dirs: &[PathBuf], random: &mut fastrand::Rng) -> PathBuf {
    let path = random.choice(dirs).unwrap().join("bobs");
    match random.u8(..3) {
        0 => fs::create_dir(&path).unwrap(),
        1 => fs::write(&path, "bob's").unwrap(),
        _ => symlink("/", &path).unwrap(),
    }
    lchown(&path, Some(BOB), Some(BOB)).unwrap();
    path
}

fn random_trees() {
    let seed = std::env::var("TIDEPOOL_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("TIDEPOOL_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..ROUNDS {
        let world = World::new();
        let dirs = grow(&world, &mut random);
        let planted = (own() == 0 && random.u8(..3) == 0).then(|| plant(&dirs, &mut random));
        let outside = snapshot(&world.outside());
        let whole = planted.as_ref().map(|_| snapshot(&world.tree()));
        for dir in dirs.iter().rev() {
            if random.u8(..8) == 0 {
                fs::set_permissions(dir, Permissions::from_mode(random.u32(..8) << 6)).unwrap();
            }
        }
        let done = remove(&world.tree(), own());
        let case = format!("TIDEPOOL_SEED={seed}: round {round}: {done:?}");
        assert_eq!(outside, snapshot(&world.outside()), "{case}");
        match (planted, done) {
            (None, done) => assert!(done.is_ok() && world.gone(), "{case}"),
            (Some(path), Err(error)) => {
                assert!(matches!(error.why, Why::Foreign { uid: BOB, .. }), "{case}");
                assert_eq!(error.path, path, "{case}");
                assert!(error.to_string().contains("nothing was removed"), "{error}");
                assert_eq!(whole.unwrap(), snapshot(&world.tree()), "{case}");
            }
            (Some(_), Ok(())) => panic!("bob's things are gone: {case}"),
        }
    }
}

#[test]
fn random_trees_are_removed_or_refused_whole() {
    is_root("the part of random_trees_are_removed_or_refused_whole with foreign files");
    random_trees();
}

/// Root may look into everything; only an ordinary user meets directories that he has closed to himself.
#[test]
fn random_trees_of_an_ordinary_user() {
    let ids = [format!("--reuid={ALICE}"), format!("--regid={ALICE}")];
    if own() == 0
        && again("random_trees_of_an_ordinary_user", &["setpriv", &ids[0], &ids[1], "--clear-groups"])
    {
        return;
    }
    random_trees();
}

/// Neither the stack nor the table of descriptors holds a level each.
#[test]
fn a_tree_of_20000_levels_goes_with_few_descriptors() {
    if again("a_tree_of_20000_levels_goes_with_few_descriptors", &["prlimit", "--nofile=64:64"]) {
        return;
    }
    let world = World::new();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = openat(CWD, world.tree(), flags, Mode::empty()).unwrap();
    for level in 0..DEPTH {
        for name in if level % 1000 == 0 { &["d", "beside"][..] } else { &["d"] } {
            mkdirat(&at, *name, Mode::from_raw_mode(0o700)).unwrap();
        }
        at = openat(&at, "d", flags, Mode::empty()).unwrap();
    }
    let outside = snapshot(&world.outside());
    remove(&world.tree(), own()).unwrap();
    assert!(world.gone());
    assert_eq!(outside, snapshot(&world.outside()));
}

#[test]
fn a_wide_directory_is_looked_at_to_its_end() {
    let world = World::new();
    for number in 0..WIDE {
        fs::create_dir_all(world.tree().join(format!("{number}/x"))).unwrap();
    }
    if is_root("the part of a_wide_directory_is_looked_at_to_its_end with a foreign file") {
        let planted: Vec<PathBuf> =
            (0..WIDE).map(|number| world.tree().join(format!("{number}/x"))).collect();
        // Wherever in the order of the directory it is.
        for path in planted.iter().step_by(WIDE / 13) {
            lchown(path, Some(BOB), None).unwrap();
            let error = remove(&world.tree(), own()).unwrap_err();
            assert_eq!(error.path, *path);
            assert!(planted.iter().all(|path| path.is_dir()));
            lchown(path, Some(own()), None).unwrap();
        }
    }
    remove(&world.tree(), own()).unwrap();
    assert!(world.gone());
}

#[test]
fn only_a_directory_of_the_user_is_a_root() {
    let world = World::new();
    let at = |name: &str| world.dir.path().join(name);
    symlink(world.outside(), at("link")).unwrap();
    fs::write(at("file"), "").unwrap();
    mknodat(CWD, at("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let before = snapshot(world.dir.path());
    for name in ["link", "file", "fifo", "outside/..", "outside/.", "link/..", "tree/../outside/.."] {
        for done in [remove(&at(name), own()), contents(&at(name), own(), &[])] {
            assert!(matches!(done, Err(RemovalError { why: Why::Root(_), .. })), "{name}: {done:?}");
        }
    }
    for path in ["/", "", ".", ".."] {
        assert!(remove(Path::new(path), own()).is_err(), "{path}");
    }
    assert!(remove(&at("outside"), own() + 1).is_err(), "it is not that user's");
    let missing = remove(&at("missing"), own()).unwrap_err();
    assert!(missing.is_missing() && remove(&at("missing/x"), own()).unwrap_err().is_missing());
    assert_eq!(before, snapshot(world.dir.path()));
    // A link to be followed by a slash at its end is a link.
    let slashed = PathBuf::from(format!("{}/", at("link").display()));
    assert!(remove(&slashed, own()).is_err());
    assert_eq!(before, snapshot(world.dir.path()));
}

#[test]
fn a_root_of_another_user_is_refused_with_his_number() {
    if !is_root("a_root_of_another_user_is_refused_with_his_number") {
        return;
    }
    let world = World::new();
    chown(world.tree(), Some(BOB), None).unwrap();
    let error = remove(&world.tree(), ALICE).unwrap_err().to_string();
    assert!(error.contains("31002") && error.contains("31001"), "{error}");
    assert!(!world.gone());
    // Root removes it for the one whose it is.
    remove(&world.tree(), BOB).unwrap();
    assert!(world.gone());
}

#[test]
fn contents_keeps_names_of_the_root_only() {
    let world = World::new();
    let tree = world.tree();
    fs::create_dir_all(tree.join("a/lock")).unwrap();
    for name in ["lock", "mark", "a/mark", "other"] {
        fs::write(tree.join(name), name).unwrap();
    }
    contents(&tree, own(), &["lock", "mark"]).unwrap();
    let mut left: Vec<OsString> =
        fs::read_dir(&tree).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["lock", "mark"]);
    assert_eq!(fs::read(tree.join("lock")).unwrap(), b"lock");
    contents(&tree, own(), &["lock", "mark"]).unwrap();
    contents(&tree, own(), &[]).unwrap();
    assert_eq!(fs::read_dir(&tree).unwrap().count(), 0);
}

#[test]
fn the_way_may_be_written_in_any_manner() {
    let world = World::new();
    for way in ["outside/..", ".", "outside/sub/../.."] {
        fs::create_dir_all(world.tree().join("x")).unwrap();
        let path = PathBuf::from(format!("{}/{way}/tree//", world.dir.path().display()));
        remove(&path, own()).unwrap();
        assert!(world.gone(), "{way}");
    }
}

/// What was judged is what goes: a tree that is put in the place of an open one stays.
#[test]
fn another_tree_in_the_place_of_an_open_one_stays() {
    let world = World::new();
    fs::write(world.tree().join("file"), "").unwrap();
    let tree = Tree::open(&world.tree(), own()).unwrap();
    renameat_with(CWD, world.tree(), CWD, world.outside(), RenameFlags::EXCHANGE).unwrap();
    let looked = tree.look().unwrap();
    let _ = looked.remove();
    assert_eq!(fs::read(world.tree().join("precious")).unwrap(), b"results");
    assert_eq!(fs::read(world.tree().join("sub/deeper/more")).unwrap(), b"more results");
}

/// Only the removal is to be led astray by links, not who swaps them.
fn exchange(a: &Path, b: &Path) {
    let (flags, mode) = (OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let above = |path: &Path| openat2(CWD, path.parent().unwrap(), flags, mode, ResolveFlags::NO_SYMLINKS);
    if let (Ok(to_a), Ok(to_b)) = (above(a), above(b)) {
        let _ =
            renameat_with(to_a, a.file_name().unwrap(), to_b, b.file_name().unwrap(), RenameFlags::EXCHANGE);
    }
}

/// Somebody goes on renaming and swapping while the tree is removed.
fn race(
    world: &World,
    other: &Path,
    swap: impl Fn() -> (PathBuf, PathBuf) + Sync,
) -> Result<(), RemovalError> {
    let (over, began) = (AtomicBool::new(false), AtomicBool::new(false));
    let before = snapshot(other);
    let done = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                let (a, b) = swap();
                exchange(&a, &b);
                began.store(true, Ordering::Release);
            }
        });
        while !began.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let done = remove(&world.tree(), own());
        over.store(true, Ordering::Release);
        done
    });
    assert_eq!(before, snapshot(other), "{done:?}");
    match &done {
        Ok(()) => assert!(world.gone()),
        Err(error) => assert!(error.path.starts_with(world.tree()) && !world.gone(), "{error}"),
    }
    done
}

/// Directories `0/0` to `3/3` with files, as many links to the outside beside them.
fn raced() -> World {
    let world = World::new();
    for number in 0..16 {
        let dir = world.tree().join(format!("{}/{}", number / 4, number % 4));
        fs::create_dir_all(dir.join("sub/deeper")).unwrap();
        fs::write(dir.join("precious"), "").unwrap();
        fs::write(dir.join("sub/deeper/more"), "").unwrap();
        symlink(world.outside(), world.tree().join(format!("{}/link{}", number / 4, number % 4))).unwrap();
        symlink(world.outside(), world.tree().join(format!("link{}", number / 4))).ok();
    }
    world
}

#[test]
fn links_that_take_a_directorys_place_lead_nowhere() {
    let mut gone = 0;
    for _ in 0..RACES {
        let world = raced();
        let done = race(&world, &world.outside(), || {
            let (a, b, c) = (fastrand::u8(..4), fastrand::u8(..4), fastrand::u8(..4));
            let tree = world.tree();
            match fastrand::u8(..4) {
                0 => (tree.join(format!("{a}")), tree.join(format!("link{a}"))),
                1 => (tree.join(format!("{a}/{b}")), tree.join(format!("{a}/link{b}"))),
                2 => (tree.join(format!("{a}/{b}/sub")), tree.join(format!("{a}/link{b}"))),
                _ => (tree.join(format!("{a}/{b}/sub")), tree.join(format!("{c}"))),
            }
        });
        gone += usize::from(done.is_ok());
    }
    assert!(gone > 0, "no removal in {RACES} got through");
}

/// Another user's directory of the same shape, put in the place of one that is being removed, and taken away again.
#[test]
fn a_foreign_directory_that_takes_a_place_stays_whole() {
    if !is_root("a_foreign_directory_that_takes_a_place_stays_whole") {
        return;
    }
    let mut refused = 0;
    for _ in 0..RACES {
        let world = raced();
        let bobs = world.dir.path().join("bobs");
        fs::create_dir_all(bobs.join("x/y")).unwrap();
        for path in ["x/y", "x", ""] {
            fs::write(bobs.join(path).join("precious"), "bob's").unwrap();
            chown(bobs.join(path).join("precious"), Some(BOB), None).unwrap();
            chown(bobs.join(path), Some(BOB), None).unwrap();
        }
        // Held by a descriptor: wherever it is, it is looked at.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let held = openat(CWD, &bobs, flags, Mode::empty()).unwrap();
        let before = snapshot(&PathBuf::from(proc_path(&held)).join("."));
        let place = |number: u8| world.tree().join(format!("{}/{}", number / 4, number % 4));
        let done = race(&world, &world.outside(), || (bobs.clone(), place(fastrand::u8(..16))));
        assert_eq!(before, snapshot(&PathBuf::from(proc_path(&held)).join(".")), "{done:?}");
        refused += usize::from(done.is_err());
    }
    eprintln!("{refused} of {RACES} removals met it");
}

fn proc_path(fd: &impl std::os::fd::AsRawFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// A program that goes on making files: an end comes, with an error or without.
#[test]
fn a_tree_that_is_filled_again_ends_in_an_error_that_says_so() {
    let world = raced();
    let over = AtomicBool::new(false);
    let done = std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0_u64.. {
                let _ = fs::write(world.tree().join(format!("2/new{number}")), "");
                if over.load(Ordering::Acquire) {
                    break;
                }
            }
        });
        let done = remove(&world.tree(), own());
        over.store(true, Ordering::Release);
        done
    });
    match done {
        Ok(()) => assert!(world.gone()),
        Err(error) => assert!(matches!(error.why, Why::Filling) && error.is_filling(), "{error}"),
    }
}

/// Whether this is the program in a name space of mounts of its own; else it has been run as that, or cannot be.
fn has_own_mounts(test: &str) -> bool {
    if !is_root(test) {
        return false;
    }
    let private = ["unshare", "--mount", "--propagation", "private"];
    if std::env::var_os(AGAIN).is_none()
        && !Command::new(private[0]).args(&private[1..]).arg("true").status().is_ok_and(|s| s.success())
    {
        eprintln!("SKIPPED: {test} may not make a mount name space");
        return false;
    }
    !again(test, &private)
}

fn run(command: &str, args: &[&str], at: &Path) {
    assert!(Command::new(command).args(args).arg(at).status().unwrap().success(), "{command} {args:?}");
}

/// A container's file system out of layers shows files of each under a device number of their own. They are all on one mount.
#[test]
fn layers_are_no_mounts() {
    if !has_own_mounts("layers_are_no_mounts") {
        return;
    }
    let world = World::new();
    let below = |name: &str| world.outside().join(name);
    for name in ["lower", "upper"] {
        fs::create_dir(below(name)).unwrap();
        run("mount", &["-t", "tmpfs", "tmpfs"], &below(name));
    }
    fs::create_dir_all(below("lower/tree/sub")).unwrap();
    fs::write(below("lower/tree/sub/old"), "old").unwrap();
    for name in ["upper/data", "upper/work", "merged"] {
        fs::create_dir(below(name)).unwrap();
    }
    let show = |name: &str| below(name).display().to_string();
    let layers = format!(
        "lowerdir={},upperdir={},workdir={},xino=off",
        show("lower"),
        show("upper/data"),
        show("upper/work")
    );
    if !Command::new("mount")
        .args(["-t", "overlay", "overlay", "-o", &layers])
        .arg(below("merged"))
        .status()
        .is_ok_and(|status| status.success())
    {
        eprintln!("SKIPPED: layers_are_no_mounts: this kernel has no overlay");
        return;
    }
    let tree = below("merged/tree");
    fs::write(tree.join("new"), "new").unwrap();
    let devices = [tree.clone(), tree.join("sub/old")].map(|path| fs::metadata(path).unwrap().dev());
    println!("devices of directories and of a file of the lower layer: {devices:?}");
    remove(&tree, own()).unwrap();
    assert!(!tree.exists());
}

/// Mounts below the tree, of which a bind mount has the same device number as all else.
#[test]
fn nothing_is_removed_across_a_mount() {
    if !has_own_mounts("nothing_is_removed_across_a_mount") {
        return;
    }
    for place in ["a/b", "a/b/c", "a", ""] {
        for kind in ["directory", "file", "tmpfs", "itself"] {
            let world = World::new();
            let at = world.tree().join(place);
            fs::create_dir_all(world.tree().join("a/b/c")).unwrap();
            fs::write(world.tree().join("first"), "").unwrap();
            let (outside, own_path) = (world.outside(), at.display().to_string());
            let (precious, target) = (outside.join("precious"), outside.display().to_string());
            let at = match kind {
                "directory" => {
                    run("mount", &["--bind", &target], &at);
                    at
                }
                "itself" => {
                    run("mount", &["--bind", &own_path], &at);
                    at
                }
                "tmpfs" => {
                    run("mount", &["-t", "tmpfs", "tmpfs"], &at);
                    at
                }
                _ => {
                    let file = at.join("file");
                    fs::write(&file, "").unwrap();
                    run("mount", &["--bind", &precious.display().to_string()], &file);
                    file
                }
            };
            let before = snapshot(world.dir.path());
            for done in [remove(&world.tree(), own()), contents(&world.tree(), own(), &[])] {
                let error = done.expect_err("there is a mount");
                assert!(matches!(error.why, Why::Mount), "{place} {kind}: {error}");
                assert_eq!(error.path, at, "{place} {kind}");
                assert!(error.to_string().contains("nothing was removed"), "{error}");
                assert_eq!(before, snapshot(world.dir.path()), "{place} {kind}");
            }
            run("umount", &[], &at);
            remove(&world.tree(), own()).unwrap();
            assert!(world.gone() && world.outside().join("precious").is_file());
        }
    }
}

#[test]
fn what_an_error_says_is_short_whatever_the_names_are() {
    if !is_root("what_an_error_says_is_short_whatever_the_names_are") {
        return;
    }
    let world = World::new();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = openat(CWD, world.tree(), flags, Mode::empty()).unwrap();
    let name = "n".repeat(255);
    for _ in 0..200 {
        mkdirat(&at, &*name, Mode::from_raw_mode(0o700)).unwrap();
        at = openat(&at, &*name, flags, Mode::empty()).unwrap();
    }
    rustix::fs::chownat(&at, "", Some(rustix::fs::Uid::from_raw(BOB)), None, rustix::fs::AtFlags::EMPTY_PATH)
        .unwrap();
    let error = remove(&world.tree(), own()).unwrap_err();
    assert!(
        error.to_string().len() < 6000 && error.path.starts_with(world.tree()),
        "{}",
        error.to_string().len()
    );
    assert!(error.path.as_os_str().as_bytes().ends_with(name.as_bytes()));
    rustix::fs::chownat(
        &at,
        "",
        Some(rustix::fs::Uid::from_raw(own())),
        None,
        rustix::fs::AtFlags::EMPTY_PATH,
    )
    .unwrap();
    remove(&world.tree(), own()).unwrap();
}
