//! What another user could do to directories and files that are to be ours, done: links, names taken before us, FIFOs,
//! devices, sizes, and changes between looking and using. Most of it takes root, who makes files of two users.

use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tidepool_rundir::{Dir, FileWant, Places, SLOTS, UNWRITABLE, Want, Why, read_file};

const ALICE: u32 = 31001;
const BOB: u32 = 31002;
/// Longer than any of these calls takes that is not stuck.
const STUCK: Duration = Duration::from_secs(5);

fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: {test} needs root, to make files of two users");
    }
    root
}

/// As `/tmp`: everybody may make something, and rename only what is his.
fn common() -> TempDir {
    let dir = TempDir::new().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    dir
}

fn dir_of(path: &Path, uid: u32, mode: u32) {
    fs::create_dir(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    chown(path, Some(uid), Some(uid)).unwrap();
}

fn file_of(path: &Path, uid: u32, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    chown(path, Some(uid), Some(uid)).unwrap();
}

fn link_of(target: &Path, path: &Path, uid: u32) {
    symlink(target, path).unwrap();
    std::os::unix::fs::lchown(path, Some(uid), Some(uid)).unwrap();
}

fn alice() -> Want {
    Want::private(ALICE)
}

fn places(common: &Path) -> Places {
    Places {
        uid: ALICE,
        named: None,
        session: None,
        in_job: false,
        temporary: common.into(),
        sessions: common.join("no-sessions"),
        logind: common.join("no-logind"),
        linger: common.join("no-linger"),
    }
}

#[test]
fn only_a_private_directory_of_the_user_is_opened() {
    if !is_root("only_a_private_directory_of_the_user_is_opened") {
        return;
    }
    let common = common();
    let at = |name: &str| common.path().join(name);
    dir_of(&at("good"), ALICE, 0o700);
    dir_of(&at("bobs"), BOB, 0o700);
    dir_of(&at("roots"), 0, 0o700);
    dir_of(&at("open"), ALICE, 0o750);
    file_of(&at("file"), ALICE, "");
    link_of(&at("good"), &at("own-link"), ALICE);
    link_of(&at("good"), &at("bobs-link"), BOB);
    link_of(&at("nowhere"), &at("dangling"), BOB);
    assert_eq!(Dir::open(&at("good"), &alice()).unwrap().path(), at("good"));
    let why = |name: &str| Dir::open(&at(name), &alice()).unwrap_err().why;
    assert!(matches!(why("bobs"), Why::Owner { uid: BOB, wanted: ALICE }));
    assert!(matches!(why("roots"), Why::Owner { uid: 0, .. }));
    assert!(matches!(why("open"), Why::Mode { mode: 0o750, .. }));
    assert!(matches!(why("file"), Why::NotDirectory));
    assert!(matches!(why("own-link"), Why::Link { uid: ALICE }));
    assert!(matches!(why("bobs-link"), Why::Link { uid: BOB }));
    assert!(matches!(why("dangling"), Why::Link { uid: BOB }));
    assert!(matches!(why("missing"), Why::Missing));
    // A link is not made up for either.
    for name in ["own-link", "bobs-link", "dangling", "bobs", "file"] {
        assert!(Dir::make(&at(name), &alice()).is_err(), "{name}");
    }
    assert!(!at("nowhere").exists());
    let said = Dir::open(&at("bobs"), &alice()).unwrap_err().to_string();
    assert!(said.contains("uid 31002") && said.contains("bobs"), "{said}");
}

#[test]
fn nothing_is_used_below_what_others_can_rename() {
    if !is_root("nothing_is_used_below_what_others_can_rename") {
        return;
    }
    let common = common();
    let at = |name: &str| common.path().join(name);
    for (name, uid, mode, fit) in [
        ("bobs", BOB, 0o755, false),
        ("bobs-sticky", BOB, 0o1777, false),
        ("open", 0, 0o777, false),
        ("group", 0, 0o775, false),
        ("alices-open", ALICE, 0o770, false),
        ("roots", 0, 0o755, true),
        ("alices", ALICE, 0o755, true),
        ("sticky", 0, 0o1777, true),
    ] {
        dir_of(&at(name), uid, mode);
        dir_of(&at(name).join("rt"), ALICE, 0o700);
        let opened = Dir::open(&at(name).join("rt"), &alice());
        assert_eq!(opened.is_ok(), fit, "{name}: {opened:?}");
        if let Err(error) = opened {
            assert!(matches!(error.why, Why::Parent { .. }), "{name}: {error}");
        }
    }
    // A link in the middle: root's and one's own are the machine's set-up, anybody else's is a trap.
    for (uid, fit) in [(0, true), (ALICE, true), (BOB, false)] {
        let link = at(&format!("to-alices-{uid}"));
        link_of(&at("alices"), &link, uid);
        assert_eq!(Dir::open(&link.join("rt"), &alice()).is_ok(), fit, "link of {uid}");
    }
    // Where a link leads is looked at as well; a circle ends.
    link_of(&at("bobs"), &at("roots-link-to-bobs"), 0);
    let why = Dir::open(&at("roots-link-to-bobs").join("rt"), &alice()).unwrap_err().why;
    assert!(matches!(why, Why::Parent { uid: BOB, .. }));
    link_of(&at("circle"), &at("circle"), 0);
    assert!(Dir::open(&at("circle").join("rt"), &alice()).is_err());
    assert!(matches!(Dir::open(Path::new("rt"), &alice()).unwrap_err().why, Why::Name));
    // Up and down again is a way like others.
    assert!(Dir::open(&at("roots").join("../alices/rt"), &alice()).is_ok());
    assert!(Dir::open(&at("roots").join("../bobs/rt"), &alice()).is_err());
}

#[test]
fn a_file_that_hangs_or_never_ends_is_not_read() {
    if !is_root("a_file_that_hangs_or_never_ends_is_not_read") {
        return;
    }
    let common = common();
    let base = common.path().join("rt");
    dir_of(&base, ALICE, 0o700);
    let at = |name: &str| base.join(name);
    file_of(&at("good"), ALICE, "text");
    file_of(&at("bobs"), BOB, "text");
    file_of(&at("writable"), ALICE, "text");
    fs::set_permissions(at("writable"), fs::Permissions::from_mode(0o620)).unwrap();
    file_of(&at("large"), ALICE, "");
    // 10 GB without a byte on the disk.
    fs::File::options().write(true).open(at("large")).unwrap().set_len(10_000_000_000).unwrap();
    file_of(&at("just-too-large"), ALICE, "12345");
    dir_of(&at("dir"), ALICE, 0o700);
    let make = |name: &str, kind, device| {
        mknodat(CWD, at(name), kind, Mode::from_raw_mode(0o600), device).unwrap();
        chown(at(name), Some(ALICE), Some(ALICE)).unwrap();
    };
    make("fifo", FileType::Fifo, 0);
    make("zero", FileType::CharacterDevice, rustix::fs::makedev(1, 5));
    make("socket", FileType::Socket, 0);
    link_of(Path::new("/dev/zero"), &at("to-zero"), ALICE);
    link_of(&at("good"), &at("to-good"), ALICE);
    let dir = Dir::open(&base, &alice()).unwrap();
    let want = FileWant { uid: ALICE, or_root: false, bytes_max: 4 };
    let began = Instant::now();
    let read = |name: &str| dir.read(OsStr::new(name), &want);
    assert_eq!(read("good").unwrap(), b"text");
    assert!(matches!(read("bobs").unwrap_err().why, Why::Owner { uid: BOB, .. }));
    assert!(matches!(read("writable").unwrap_err().why, Why::Mode { mode: 0o620, .. }));
    for name in ["large", "just-too-large"] {
        assert!(matches!(read(name).unwrap_err().why, Why::TooLarge { max: 4 }), "{name}");
    }
    for name in ["fifo", "zero", "socket", "dir"] {
        assert!(matches!(read(name).unwrap_err().why, Why::NotRegular), "{name}");
    }
    for name in ["to-zero", "to-good"] {
        assert!(matches!(read(name).unwrap_err().why, Why::Link { uid: ALICE }), "{name}");
    }
    for name in ["../rt/good", "..", ".", "", "/etc/passwd"] {
        assert!(matches!(read(name).unwrap_err().why, Why::Name), "{name}");
    }
    assert!(matches!(read("missing").unwrap_err().why, Why::Missing));
    // The same by path, where root's word counts as well.
    let or_root = FileWant { or_root: true, ..want };
    file_of(&at("roots"), 0, "text");
    assert!(read_file(&at("roots"), &or_root).is_ok() && read_file(&at("roots"), &want).is_err());
    assert!(read_file(&at("bobs"), &or_root).is_err() && read_file(&at("fifo"), &or_root).is_err());
    assert!(began.elapsed() < STUCK, "{:?}", began.elapsed());
    assert_eq!(dir.names().unwrap().len(), 12);
}

/// Somebody swaps the directory for a link to his own again and again, as fast as he can: whatever was opened is the
/// user's, and every file read in it is.
#[test]
fn a_directory_swapped_between_look_and_use_leads_nowhere_else() {
    if !is_root("a_directory_swapped_between_look_and_use_leads_nowhere_else") {
        return;
    }
    // Root does the swapping, so that it works at all.
    let common = TempDir::new().unwrap();
    let at = |name: &str| common.path().join(name);
    dir_of(&at("rt"), ALICE, 0o700);
    dir_of(&at("bobs"), BOB, 0o777);
    link_of(&at("bobs"), &at("trap"), ALICE);
    for name in ["record", "pool.json"] {
        file_of(&at("rt").join(name), ALICE, "mine");
        file_of(&at("bobs").join(name), ALICE, "planted");
    }
    let over = AtomicBool::new(false);
    let (mut opened, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                renameat_with(CWD, at("rt"), CWD, at("trap"), RenameFlags::EXCHANGE).unwrap();
            }
        });
        let want = FileWant { uid: ALICE, or_root: false, bytes_max: 100 };
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(800) {
            match Dir::open(&at("rt"), &alice()) {
                Ok(dir) => {
                    opened += 1;
                    assert_eq!(dir.read(OsStr::new("record"), &want).unwrap(), b"mine");
                    assert_eq!(dir.read(OsStr::new("pool.json"), &want).unwrap(), b"mine");
                }
                Err(error) => {
                    refused += 1;
                    assert!(matches!(error.why, Why::Link { .. }), "{error}");
                }
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(opened > 100 && refused > 100, "the race did not happen: {opened} opened, {refused} refused");
}

/// The same with a file and a link, a FIFO, and somebody else's file in its place.
#[test]
fn a_file_swapped_between_look_and_use_is_not_read() {
    if !is_root("a_file_swapped_between_look_and_use_is_not_read") {
        return;
    }
    let common = TempDir::new().unwrap();
    let base = common.path().join("rt");
    dir_of(&base, ALICE, 0o700);
    let at = |name: &str| base.join(name);
    file_of(&at("record"), ALICE, "mine");
    file_of(&common.path().join("bobs"), BOB, "planted");
    file_of(&at("a"), BOB, "planted");
    link_of(&common.path().join("bobs"), &at("b"), ALICE);
    mknodat(CWD, at("c"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    chown(at("c"), Some(ALICE), Some(ALICE)).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for other in ["a", "b", "c"] {
                    for _ in 0..2 {
                        renameat_with(CWD, at("record"), CWD, at(other), RenameFlags::EXCHANGE).unwrap();
                    }
                }
            }
        });
        let dir = Dir::open(&base, &alice()).unwrap();
        let want = FileWant { uid: ALICE, or_root: false, bytes_max: 100 };
        let (mut read, mut refused) = (0, 0);
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(800) {
            match dir.read(OsStr::new("record"), &want) {
                Ok(text) => {
                    read += 1;
                    assert_eq!(text, b"mine");
                }
                Err(_) => refused += 1,
            }
        }
        over.store(true, Ordering::Relaxed);
        assert!(read > 50 && refused > 50, "the race did not happen: {read} read, {refused} refused");
    });
}

#[test]
fn whoever_takes_a_name_is_named_and_passed_by() {
    if !is_root("whoever_takes_a_name_is_named_and_passed_by") {
        return;
    }
    let common = common();
    let at = |slot: u32| match slot {
        0 => common.path().join("tidepool-31001"),
        slot => common.path().join(format!("tidepool-31001-{slot}")),
    };
    let places = places(common.path());
    dir_of(&at(0), BOB, 0o700);
    link_of(Path::new("/nowhere"), &at(1), 31003);
    // Root, whose test this is, would make one of his own.
    dir_of(&at(2), ALICE, 0o700);
    let chosen = places.choose_here().unwrap();
    assert_eq!(chosen.dir.path(), at(2));
    let uids: Vec<_> = chosen.passed.iter().map(|why| why.culprit()).collect();
    assert_eq!(uids, [Some(BOB), Some(31003)]);
}

/// As the user himself, who makes what is missing.
#[test]
fn all_who_look_agree_and_nine_names_are_tried() {
    let common = common();
    let own = rustix::process::geteuid().as_raw();
    let places = Places { uid: own, ..places(common.path()) };
    let at = |slot: u32| match slot {
        0 => common.path().join(format!("tidepool-{own}")),
        slot => common.path().join(format!("tidepool-{own}-{slot}")),
    };
    // Taken by something that is no directory of ours: what anybody could have put there.
    for slot in 0..SLOTS {
        fs::write(at(slot), "").unwrap();
        let chosen = places.choose_shared().unwrap();
        assert_eq!(chosen.dir.path(), at(slot + 1));
        assert_eq!(chosen.passed.len() as u32, slot + 1);
        assert_eq!(places.choose_here().unwrap().dir.path(), at(slot + 1));
        let (there, refused) = places.there();
        assert_eq!(there.iter().map(Dir::path).collect::<Vec<_>>(), [at(slot + 1)]);
        assert_eq!(refused.len() as u32, slot + 1);
        fs::remove_dir(at(slot + 1)).unwrap();
    }
    fs::write(at(SLOTS), "").unwrap();
    let none = places.choose_shared().unwrap_err();
    assert_eq!(none.tried.len() as u32, SLOTS + 1);
    assert!(none.to_string().contains("TIDEPOOL_RUNTIME"), "{none}");
}

#[test]
fn a_named_directory_is_used_or_nothing_is() {
    let common = common();
    let own = rustix::process::geteuid().as_raw();
    let named = common.path().join("a/b");
    let places = Places { uid: own, named: Some(named.clone()), ..places(common.path()) };
    assert_eq!(places.choose_here().unwrap().dir.path(), named);
    assert_eq!((places.all(), places.shared()), (vec![named.clone()], vec![named.clone()]));
    fs::set_permissions(&named, fs::Permissions::from_mode(0o755)).unwrap();
    let error = places.choose_here().unwrap_err();
    assert_eq!(error.tried.len(), 1);
    assert!(error.to_string().contains("0755"), "{error}");
    assert!(places.there().0.is_empty());
}

#[test]
fn a_sessions_directory_is_used_where_it_lasts() {
    let common = common();
    let own = rustix::process::geteuid().as_raw();
    let sessions = common.path().join("user");
    let session = sessions.join(own.to_string());
    let (logind, linger) = (common.path().join("logind"), common.path().join("linger"));
    for dir in [&sessions, &logind, &linger] {
        fs::create_dir(dir).unwrap();
    }
    let places = Places {
        uid: own,
        session: Some(session.clone()),
        sessions: sessions.clone(),
        logind: logind.clone(),
        linger: linger.clone(),
        ..places(common.path())
    };
    let shared = common.path().join(format!("tidepool-{own}"));
    let chosen = |places: &Places| places.choose_here().unwrap().dir.path().to_path_buf();
    // It is not there, as on the nodes of a job whose environment names it; nobody but the system makes one.
    assert_eq!(chosen(&places), shared);
    assert!(!session.exists());
    fs::create_dir(&session).unwrap();
    fs::set_permissions(&session, fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(chosen(&places), session.join("tidepool/pools"));
    // All nodes of a pool find the same path; a session is none of theirs.
    assert_eq!(places.choose_shared().unwrap().dir.path(), shared);
    assert_eq!(chosen(&Places { in_job: true, ..places.clone() }), shared);
    // logind takes it away with the last session, unless the user lingers.
    fs::write(logind.join(own.to_string()), "# private\nNAME=me\nSTATE=active\n").unwrap();
    assert_eq!(chosen(&places), shared);
    fs::write(linger.join("me"), "").unwrap();
    assert_eq!(chosen(&places), session.join("tidepool/pools"));
    // Others may look into it: it is somebody's mistake.
    fs::set_permissions(&session, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(chosen(&places), shared);
    // Whoever looks finds both, also without the variable.
    let found: Vec<PathBuf> = Places { session: None, ..places }.all();
    assert_eq!(found[..2], [session.join("tidepool/pools"), shared]);
    assert_eq!(found.len() as u32, SLOTS + 2);
    assert!(found.iter().all(|place| !place.display().to_string().ends_with('/')), "{found:?}");
}

#[test]
fn a_users_stager_has_its_sockets_where_they_are_looked_for() {
    let common = common();
    let own = rustix::process::geteuid().as_raw();
    let places = Places { uid: own, ..places(common.path()) };
    let first = common.path().join(format!("tidepool-{own}"));
    fs::write(&first, "").unwrap();
    let chosen = places.choose_stager().unwrap();
    assert_eq!(chosen.dir.path(), common.path().join(format!("tidepool-{own}-1/.stager")));
    assert_eq!(chosen.passed.len(), 1);
    assert!(places.stagers().contains(&chosen.dir.path().to_path_buf()));
    // What pools are told does not move it.
    let named = Places { named: Some(common.path().join("rt")), ..places.clone() };
    assert_eq!(named.choose_stager().unwrap().dir.path(), chosen.dir.path());
    let session = common.path().join("session");
    fs::create_dir(&session).unwrap();
    let places = Places { session: Some(session.clone()), ..places };
    assert_eq!(
        places.choose_stager().unwrap().dir.path(),
        chosen.dir.path(),
        "others may look into the session's"
    );
    fs::set_permissions(&session, fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(places.choose_stager().unwrap().dir.path(), session.join("tidepool/stager"));
    assert_eq!(places.stagers()[0], session.join("tidepool/stager"));
}

#[test]
fn what_is_made_is_private_and_its_parents_follow_the_wish() {
    let common = common();
    let own = rustix::process::geteuid().as_raw();
    let want = Want { forbidden: UNWRITABLE, mode: 0o755, ..Want::private(own) };
    Dir::make(&common.path().join("run/stager"), &want).unwrap();
    let mode = |path: &str| fs::metadata(common.path().join(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("run"), mode("run/stager")), (0o755, 0o755));
    Dir::make(&common.path().join("rt/deep"), &Want::private(own)).unwrap();
    assert_eq!((mode("rt"), mode("rt/deep")), (0o700, 0o700));
}

#[test]
fn children_are_checked_like_their_parents() {
    if !is_root("children_are_checked_like_their_parents") {
        return;
    }
    let common = common();
    let base = common.path().join("rt");
    dir_of(&base, ALICE, 0o700);
    dir_of(&base.join("pool"), ALICE, 0o700);
    dir_of(&base.join("bobs"), BOB, 0o700);
    link_of(&base.join("pool"), &base.join("link"), ALICE);
    mknodat(CWD, base.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let dir = Dir::open(&base, &alice()).unwrap();
    let child = |name: &str| dir.child(OsStr::new(name), &alice());
    assert!(child("pool").is_ok());
    assert!(matches!(child("bobs").unwrap_err().why, Why::Owner { uid: BOB, .. }));
    assert!(matches!(child("link").unwrap_err().why, Why::Link { .. }));
    assert!(matches!(child("fifo").unwrap_err().why, Why::NotDirectory));
    assert!(matches!(child("..").unwrap_err().why, Why::Name));
}
