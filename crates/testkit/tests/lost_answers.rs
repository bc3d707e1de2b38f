//! A mount's own changes of names whose answers are lost: they fail, and may have been done all the same. What was done is seen through
//! the mount as everywhere, at once and not only when its leases are over.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidepool_client::Client;
use tidepool_fuse::{MountOptions, Mounted};
use tidepool_testkit::{Cluster, Middleman, Options, cred};
use tidepool_types::Ino;

/// More answers than a change of names waits for.
const ANSWERS_MAX: i64 = 12;
const ROUNDS_MAX: u32 = 10;

fn can_mount(test: &str) -> bool {
    let support = tidepool_fuse::probe();
    if !support.usable() {
        eprintln!("SKIPPED: {test}: FUSE is not usable here\n{support}");
    }
    support.usable()
}

/// What is done through the mount, in a directory that has `old` (of two bytes, also called `also`), `new` (of one), and an empty directory `dir`.
type Change = fn(&Path) -> io::Result<()>;

const CHANGES: [(&str, Change); 11] = [
    ("rename", |dir| fs::rename(dir.join("new"), dir.join("old"))),
    ("rename to no name", |dir| fs::rename(dir.join("new"), dir.join("none"))),
    ("rename of a directory", |dir| fs::rename(dir.join("dir"), dir.join("none"))),
    ("unlink", |dir| fs::remove_file(dir.join("old"))),
    ("rmdir", |dir| fs::remove_dir(dir.join("dir"))),
    ("mkdir", |dir| fs::create_dir(dir.join("none"))),
    ("symlink", |dir| std::os::unix::fs::symlink("old", dir.join("none"))),
    ("link", |dir| fs::hard_link(dir.join("new"), dir.join("none"))),
    ("chmod", |dir| fs::set_permissions(dir.join("new"), fs::Permissions::from_mode(0o600))),
    ("truncate", |dir| OpenOptions::new().write(true).open(dir.join("old"))?.set_len(1)),
    ("create", |dir| OpenOptions::new().write(true).create_new(true).open(dir.join("none")).map(drop)),
];

const NAMES: [&str; 5] = ["old", "also", "new", "dir", "none"];

fn prepare(client: &Client, dir: &[u8]) -> Ino {
    let dir = client.mkdir(Ino::ROOT, dir, 0o755, &cred()).unwrap().inside().unwrap().ino;
    for (name, data) in [("old", &b"xx"[..]), ("new", b"y")] {
        let flags = libc::O_RDWR | libc::O_CREAT;
        let file = client.open(dir, name.as_bytes(), flags, 0o644, &cred()).unwrap().inside().unwrap().ino;
        client.write(file, 0, data).unwrap();
        if name == "old" {
            client.link_ino(file, dir, b"also", &cred()).unwrap().inside().unwrap();
        }
    }
    client.mkdir(dir, b"dir", 0o755, &cred()).unwrap().inside().unwrap();
    dir
}

fn file(mode: u32, bytes: u64, links: u64) -> String {
    format!("mode {:o}, {bytes} bytes, {links} links", mode & 0o7777)
}

/// Modes, sizes and link counts of what the names are.
fn seen_in_mount(dir: &Path) -> Vec<String> {
    let seen = |name: &&str| match fs::symlink_metadata(dir.join(name)) {
        Ok(meta) if meta.is_dir() => format!("{name}: directory"),
        Ok(meta) => format!("{name}: {}", file(meta.mode(), meta.len(), meta.nlink())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => format!("{name}: none"),
        Err(error) => format!("{name}: {error}"),
    };
    NAMES.iter().map(seen).collect()
}

fn seen_by_client(client: &Client, dir: Ino) -> Vec<String> {
    let seen = |name: &&str| match client.lookup(dir, name.as_bytes()) {
        Ok(attr) if attr.is_dir() => format!("{name}: directory"),
        Ok(attr) => format!("{name}: {}", file(attr.mode, attr.size, attr.nlink.into())),
        Err(error) if error.errno().0 == libc::ENOENT => format!("{name}: none"),
        Err(error) => format!("{name}: {error}"),
    };
    NAMES.iter().map(seen).collect()
}

/// Loses all answers of the daemon but the first few of a change, for each number of them.
fn lose(
    cluster: &Cluster,
    man: &Middleman,
    mount: &Mounted,
    (what, change): (&str, Change),
    round: u32,
) -> u32 {
    let direct = cluster.client();
    let mut proven = 0;
    for answers in 0..ANSWERS_MAX {
        let name = format!("{what} {answers} {round}");
        let ino = prepare(&direct, name.as_bytes());
        let dir = mount.path().join(&name);
        let before = seen_in_mount(&dir);
        man.back.passes.store(answers, Ordering::SeqCst);
        let done = change(&dir);
        man.back.passes.store(i64::MAX, Ordering::SeqCst);
        let stored = seen_by_client(&direct, ino);
        if done.is_err() && stored != before {
            proven += 1;
            // The kernel lets go of the directory when the program has its error, and cannot forget before.
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(seen_in_mount(&dir), stored, "{name}: {done:?}, before: {before:?}");
        }
    }
    proven
}

#[test]
fn what_was_done_without_an_answer_is_seen_here_as_well() {
    if !can_mount("what_was_done_without_an_answer_is_seen_here_as_well") {
        return;
    }
    let cluster = Cluster::with(Options { daemons: 1, tcp_only: true, ..Options::default() });
    let man = Middleman::before(&cluster.pool_file().members[0].tcp);
    let point = cluster.dir().join("mount");
    fs::create_dir(&point).unwrap();
    let mount = tidepool_fuse::mount(man.client(&cluster).into(), &MountOptions::new(point)).unwrap();
    for change in CHANGES {
        // Recalls pass as well and are counted, so that the answer meant may be another one.
        let mut rounds = (0..ROUNDS_MAX).map(|round| lose(&cluster, &man, &mount, change, round));
        let proven = rounds.find(|proven| *proven > 0);
        println!("{}: failed and done {proven:?} times", change.0);
        assert!(proven.is_some(), "{}: no answer was lost, so nothing is proven", change.0);
    }
}
