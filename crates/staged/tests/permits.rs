//! H8, with real users: what is kept is read by its owner and by those he shares it with, and by nobody else. The stager runs as
//! root and changes what is the owner's in his name. Needs root; says so and passes otherwise.

mod support;

use rustix::io::Errno;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{Daemon, write};
use tidepool_stage_client::{Code, PersistOp, Stager, TaskState, TaskStatus};

const ALICE: u32 = 54_001;
const BOB: u32 = 54_002;
const CAROL: u32 = 54_003;
const LISTS: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

fn is_root() -> bool {
    let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    if !root {
        println!("SKIPPED: needs root, to have files of several users");
    }
    root
}

/// Whether a shell command of this user's succeeds.
fn can(user: u32, command: &str, path: &Path) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", command, "sh"]).arg(path).uid(user).gid(user).current_dir("/");
    shell.output().expect("there is a shell").status.success()
}

fn reads(user: u32, path: &Path) -> bool {
    let command = if path.is_dir() { "ls -l \"$1\"" } else { "cat \"$1\"" };
    can(user, command, path)
}

/// Asks in the name of Alice, as a scheduler does, and waits for what is done to the files.
fn ask(stager: &Stager, op: PersistOp, path: &str, user: u32) -> TaskStatus {
    let id = stager.persist(op, "b://", path.as_bytes(), user, 0).unwrap().expect("a task");
    stager.wait(&[id], false, None).unwrap().remove(0)
}

fn well(stager: &Stager, op: PersistOp, path: &str, user: u32) -> TaskStatus {
    let status = ask(stager, op, path, user);
    assert_eq!(status.state, TaskState::Finished, "{op:?} {path}: {status:?}");
    status
}

fn badly(stager: &Stager, op: PersistOp, path: &str, user: u32, texts: &[&str]) -> TaskStatus {
    let status = ask(stager, op, path, user);
    assert_eq!(status.state, TaskState::Failed, "{op:?} {path}: {status:?}");
    for text in texts {
        assert!(status.refusal.detail.contains(text), "'{text}' is missing: {}", status.refusal.detail);
    }
    status
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// Alice's tree `mesh` in `b://`; what of it has been there, with its mode.
fn tree(daemon: &Daemon) -> Vec<(PathBuf, u32)> {
    let of = |name: &str| daemon.path("b/mesh").join(name);
    write(&of("deep/er/x"), b"data");
    write(&of("private"), b"data");
    write(&of("run"), b"#!/bin/sh\n");
    let all = [
        ("deep/er/x", 0o644),
        ("deep/er", 0o700),
        ("deep", 0o755),
        ("private", 0o600),
        ("run", 0o750),
        ("", 0o755),
    ];
    all.map(|(name, bits)| {
        let path = if name.is_empty() { daemon.path("b/mesh") } else { of(name) };
        chown(&path, Some(ALICE), Some(ALICE)).unwrap();
        mode(&path, bits);
        (path, bits)
    })
    .into()
}

fn bits(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn has_lists(path: &Path) -> bool {
    let get = |name| rustix::fs::lgetxattr(path, name, vec![0u8; 4096].as_mut_slice());
    LISTS.iter().any(|name| match get(*name) {
        Ok(_) => true,
        Err(Errno::NODATA | Errno::OPNOTSUPP) => false,
        Err(errno) => panic!("{}: {errno}", path.display()),
    })
}

#[test]
fn h8_others_read_what_is_kept_only_while_it_is_shared_with_them() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start();
    let stager = daemon.control();
    let all = tree(&daemon);
    let open = daemon.path("b/mesh/deep/er/x");
    mode(&daemon.path("b/mesh/deep/er"), 0o755);
    assert!(reads(BOB, &open), "it is as open as its owner made it");
    mode(&daemon.path("b/mesh/deep/er"), 0o700);
    // What nobody may touch, although it is named in the tree.
    write(&daemon.path("secret"), b"root's");
    mode(&daemon.path("secret"), 0o600);
    symlink(daemon.path("secret"), daemon.path("b/mesh/link")).unwrap();
    symlink(&daemon.dir, daemon.path("b/mesh/deep/dir")).unwrap();
    let secrets = [daemon.path("secret"), daemon.path(""), daemon.path("a")];
    let before: Vec<u32> = secrets.iter().map(|path| bits(path)).collect();

    well(&stager, PersistOp::Store, "mesh", ALICE);
    assert!(!reads(BOB, &open) && !reads(BOB, &daemon.path("b/mesh")));
    assert!(all.iter().all(|(path, _)| reads(ALICE, path)));
    for round in 0..2 {
        well(&stager, PersistOp::Share, "mesh", BOB);
        for (path, _) in &all {
            assert!(reads(BOB, path), "{round}: {}", path.display());
            assert!(!reads(CAROL, path), "{round}: {}", path.display());
            assert!(reads(ALICE, path), "{round}: {}", path.display());
            let write = if path.is_dir() { "touch \"$1/new\"" } else { "echo x >> \"$1\"" };
            assert!(!can(BOB, write, path), "{round}: {}", path.display());
        }
        assert!(can(BOB, "\"$1\"", &daemon.path("b/mesh/run")), "it stays a program");
    }
    // What comes later.
    for dir in ["mesh", "mesh/deep/er"] {
        let dir = daemon.path("b").join(dir);
        assert!(can(ALICE, "umask 077; mkdir \"$1/later\"; echo new > \"$1/later/y\"", &dir));
        assert!(reads(BOB, &dir.join("later")) && reads(BOB, &dir.join("later/y")), "{}", dir.display());
        assert!(!reads(CAROL, &dir.join("later/y")));
        std::fs::remove_dir_all(dir.join("later")).unwrap();
    }
    well(&stager, PersistOp::Share, "mesh", CAROL);
    well(&stager, PersistOp::Unshare, "mesh", BOB);
    assert!(reads(CAROL, &open) && !reads(BOB, &open));
    well(&stager, PersistOp::Unshare, "mesh", CAROL);
    well(&stager, PersistOp::Unshare, "mesh", CAROL);
    for (path, was) in &all {
        let expected = if path.ends_with("mesh") { 0o700 } else { *was };
        assert_eq!((bits(path), has_lists(path)), (expected, false), "{}", path.display());
        assert!(!reads(CAROL, path) && reads(ALICE, path));
    }
    assert_eq!(secrets.iter().map(|path| bits(path)).collect::<Vec<_>>(), before);
    assert!(!secrets.iter().any(|path| has_lists(path)), "links are not followed");
}

#[test]
fn one_file_is_kept_and_shared_like_a_tree() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start();
    let (stager, file) = (daemon.control(), daemon.path("b/one"));
    write(&file, b"data");
    chown(&file, Some(ALICE), Some(ALICE)).unwrap();
    mode(&file, 0o664);
    well(&stager, PersistOp::Store, "one", ALICE);
    assert_eq!((bits(&file), reads(BOB, &file)), (0o600, false));
    well(&stager, PersistOp::Share, "one", BOB);
    assert!(reads(BOB, &file) && !reads(CAROL, &file) && !can(BOB, "echo x >> \"$1\"", &file));
    well(&stager, PersistOp::Unshare, "one", BOB);
    assert_eq!((bits(&file), reads(BOB, &file), has_lists(&file)), (0o600, false, false));
    // What is not there yet is kept all the same, and cannot be shared yet.
    well(&stager, PersistOp::Store, "later", ALICE);
    well(&stager, PersistOp::Unshare, "later", BOB);
    let status = badly(&stager, PersistOp::Share, "later", BOB, &["b://later", "54002", "no such file"]);
    assert_eq!(status.refusal.errno, 2);
}

#[test]
fn what_is_not_the_owners_is_left_and_told() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start();
    let stager = daemon.control();
    tree(&daemon);
    // Root's, readable by nobody else, and by all.
    write(&daemon.path("b/mesh/deep/theirs"), b"x");
    mode(&daemon.path("b/mesh/deep/theirs"), 0o600);
    write(&daemon.path("b/mesh/public"), b"x");
    mode(&daemon.path("b/mesh/public"), 0o644);
    well(&stager, PersistOp::Store, "mesh", ALICE);
    let told = ["'deep/theirs'", "belongs to user 0"];
    badly(&stager, PersistOp::Share, "mesh", BOB, &told);
    let theirs = daemon.path("b/mesh/deep/theirs");
    assert_eq!((bits(&theirs), has_lists(&theirs)), (0o600, false));
    assert!(!reads(BOB, &theirs) && reads(BOB, &daemon.path("b/mesh/public")));
    assert!(reads(BOB, &daemon.path("b/mesh/deep/er/x")), "the others are shared");
    well(&stager, PersistOp::Unshare, "mesh", BOB);
    assert!(!reads(BOB, &daemon.path("b/mesh/public")));
    // A place that is another user's as a whole, also root's own stager's.
    for (place, owner) in [("bobs", BOB), ("roots", 0)] {
        write(&daemon.path("b").join(place).join("x"), b"x");
        chown(daemon.path("b").join(place), Some(owner), Some(owner)).unwrap();
        let told = format!("belongs to user {owner}");
        badly(&stager, PersistOp::Store, place, ALICE, &[&told]);
        assert_eq!(bits(&daemon.path("b").join(place)) & 0o055, 0o055, "{place}");
    }
    // And one that a link leads to.
    symlink("roots", daemon.path("b/link")).unwrap();
    badly(&stager, PersistOp::Store, "link", ALICE, &["links are not followed"]);
    badly(&stager, PersistOp::Store, "link/x", ALICE, &["symbolic link"]);
}

#[test]
fn a_reader_who_does_not_get_there_is_told_of() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start();
    let stager = daemon.control();
    write(&daemon.path("b/alice/mesh/x"), b"x");
    for path in ["b/alice", "b/alice/mesh", "b/alice/mesh/x"] {
        chown(daemon.path(path), Some(ALICE), Some(ALICE)).unwrap();
    }
    mode(&daemon.path("b/alice"), 0o700);
    well(&stager, PersistOp::Store, "alice/mesh", ALICE);
    badly(&stager, PersistOp::Share, "alice/mesh", BOB, &["does not get to it", "setfacl -m u:54002:x"]);
    assert!(!reads(BOB, &daemon.path("b/alice/mesh/x")));
    mode(&daemon.path("b/alice"), 0o711);
    well(&stager, PersistOp::Share, "alice/mesh", BOB);
    assert!(reads(BOB, &daemon.path("b/alice/mesh/x")));
}

/// Proves that a share that a kill has interrupted is carried out when the stager is back: `kill -9` right after it was asked
/// for, with more files than can be done by then.
#[test]
fn a_killed_stager_goes_on_with_sharing() {
    const FILES: usize = 20_000;
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start();
    let dir = daemon.path("b/mesh");
    std::fs::create_dir(&dir).unwrap();
    for at in 0..FILES {
        let path = dir.join(at.to_string());
        std::fs::write(&path, b"x").unwrap();
        mode(&path, 0o600);
        chown(&path, Some(ALICE), Some(ALICE)).unwrap();
    }
    chown(&dir, Some(ALICE), Some(ALICE)).unwrap();
    well(&daemon.control(), PersistOp::Store, "mesh", ALICE);
    let id = daemon.control().persist(PersistOp::Share, "b://", b"mesh", BOB, 0).unwrap().unwrap();
    daemon.restart();
    let status = daemon.control().wait(&[id], false, None).unwrap().remove(0);
    assert_eq!((status.state, status.files_done), (TaskState::Finished, FILES as u64 + 1), "{status:?}");
    assert!(can(BOB, "cd \"$1\" && cat *", &dir));
    well(&daemon.control(), PersistOp::Unshare, "mesh", BOB);
    assert!(!(0..FILES).any(|at| has_lists(&dir.join(at.to_string()))));
}

/// A mount that goes with the test.
struct Mount(tempfile::TempDir);

impl Mount {
    /// A file system without access control lists.
    fn without_lists() -> Option<Mount> {
        let dir = tempfile::tempdir().unwrap();
        mode(dir.path(), 0o755);
        let done = Command::new("mount").args(["-t", "ramfs", "ramfs"]).arg(dir.path()).output();
        let made = done.is_ok_and(|done| done.status.success());
        if !made {
            println!("SKIPPED: a ramfs, which has no access control lists, cannot be mounted here");
        }
        made.then_some(Mount(dir))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_file_system_without_lists_is_told_of() {
    if !is_root() {
        return;
    }
    let Some(mount) = Mount::without_lists() else { return };
    let daemon = Daemon::start();
    let stager = daemon.control();
    let dir = mount.0.path().join("mesh");
    write(&dir.join("x"), b"x");
    chown(&dir, Some(ALICE), Some(ALICE)).unwrap();
    stager.register_dataspace(&support::local("bare://", mount.0.path())).unwrap();
    let ask = |op, user| {
        let id = stager.persist(op, "bare://", b"mesh", user, 0).unwrap().unwrap();
        stager.wait(&[id], false, None).unwrap().remove(0)
    };
    // Permissions do for what is shared with nobody.
    assert_eq!(ask(PersistOp::Store, ALICE).state, TaskState::Finished);
    assert_eq!((bits(&dir), reads(BOB, &dir.join("x"))), (0o700, false));
    let status = ask(PersistOp::Share, BOB);
    assert_eq!((status.state, status.refusal.code), (TaskState::Failed, Code::NOT_SUPPORTED), "{status:?}");
    for text in ["bare://mesh", "user 54002", "no access control lists", "option acl"] {
        assert!(status.refusal.detail.contains(text), "{}", status.refusal.detail);
    }
    assert!(!reads(BOB, &dir.join("x")));
    assert_eq!(ask(PersistOp::Unshare, BOB).state, TaskState::Finished);
}

/// The lists are those that setfacl(1) makes, which is another one's code.
#[test]
fn lists_are_those_of_setfacl() {
    if !is_root() {
        return;
    }
    if Command::new("setfacl").arg("--version").output().is_err() {
        println!("SKIPPED: needs setfacl and getfacl (package acl)");
        return;
    }
    let daemon = Daemon::start();
    let stager = daemon.control();
    tree(&daemon);
    assert!(can(
        ALICE,
        "setfacl -m u:54003:rw \"$1/private\"; setfacl -m g:7:r \"$1/deep\"",
        &daemon.path("b/mesh")
    ));
    well(&stager, PersistOp::Store, "mesh", ALICE);
    assert!(can(0, "cp -a \"$1\" \"$1.theirs\"", &daemon.path("b/mesh")));
    well(&stager, PersistOp::Share, "mesh", BOB);
    let theirs = daemon.path("b/mesh.theirs");
    let set = "setfacl -R -m u:54002:rX \"$1\" && find \"$1\" -type d -exec setfacl -m d:u:54002:rx '{}' +";
    assert!(can(0, set, &theirs));
    let lists = |dir: &str| {
        let out = Command::new("getfacl").args(["-R", "."]).current_dir(daemon.path(dir)).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    assert!(lists("b/mesh").contains("default:user:54002:r-x"), "{}", lists("b/mesh"));
    assert_eq!(lists("b/mesh"), lists("b/mesh.theirs"));
}
