//! Checks of real daemons, sound, in use, and damaged on purpose.

use super::finding::What;
use super::{Report, examine};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use tidepool_client::{Client, Walk};
use tidepool_placement::entry_owner;
use tidepool_testkit::{Cluster, cred};
use tidepool_types::{FileKind, Ino, TxnId};
use tidepool_wire::message::{Reply, Request};

const DAEMONS: usize = 3;

fn found<T>(walk: Result<Walk<T>, tidepool_client::FsError>) -> T {
    match walk {
        Ok(Walk::Found(value)) => value,
        Ok(Walk::Escape(_)) => panic!("the path leaves the pool"),
        Err(error) => panic!("{error}"),
    }
}

fn make_dir(client: &Client, path: &[u8]) -> Ino {
    found(client.mkdir(Ino::ROOT, path, 0o755, &cred())).ino
}

fn make_file(client: &Client, path: &[u8], bytes: usize) -> Ino {
    let ino = found(client.mknod(Ino::ROOT, path, 0o644, 0, &cred())).ino;
    let data = vec![b'x'; bytes];
    assert_eq!(client.write(ino, 0, &data).unwrap(), bytes);
    ino
}

/// `/d`, `/d/e`, `/d/f` with several chunks, `/d/g` hard-linked as `/h`, `/d/small` in a page, a symbolic link.
fn populate(client: &Client) {
    make_dir(client, b"/d");
    make_dir(client, b"/d/e");
    make_file(client, b"/d/f", 300_000);
    make_file(client, b"/d/g", 5000);
    make_file(client, b"/d/small", 10);
    found(client.link(Ino::ROOT, b"/d/g", Ino::ROOT, b"/h", false, &cred()));
    found(client.symlink(b"/d", Ino::ROOT, b"/s", &cred()));
}

fn ino_of(client: &Client, path: &[u8]) -> Ino {
    found(client.stat(Ino::ROOT, path, false, &cred())).ino
}

fn check(client: &Client) -> Report {
    examine(client, "test".into(), true).unwrap()
}

#[track_caller]
fn assert_finds(client: &Client, wanted: &[(What, Option<&str>)]) {
    let report = check(client);
    let all: Vec<_> = report.findings.iter().map(|s| (s.finding.subject.what, s.path.as_deref())).collect();
    assert_eq!(all, wanted, "{}", report.text());
}

#[track_caller]
fn done(client: &Client, daemon: u16, request: &Request) {
    let reply = client.request(daemon, request).unwrap();
    assert!(!matches!(reply, Reply::Failed { .. } | Reply::Held { .. }), "{reply:?}");
}

/// Flips a bit of the data of an object that is in a page (format 3, "Small objects").
fn flip_in_page(cluster: &Cluster, ino: Ino) {
    let mut files = vec![cluster.store(usize::from(ino.home()))];
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(fs::read_dir(path).unwrap().map(|e| e.unwrap().path()));
        } else if path.ends_with("data/small") {
            let mut bytes = fs::read(&path).unwrap();
            let id = ino.0.to_le_bytes();
            let page = (4096..bytes.len()).step_by(4096).find(|at| bytes[*at..].starts_with(&id)).unwrap();
            bytes[page + 16] ^= 1;
            return fs::write(path, bytes).unwrap();
        }
    }
    panic!("no small objects")
}

/// The stored data of an object, on the daemon that is its home.
fn data_file(cluster: &Cluster, ino: Ino) -> PathBuf {
    let name = format!("{:016x}", ino.0);
    let mut dirs = vec![cluster.store(usize::from(ino.home()))];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap().map(|e| e.unwrap()) {
            match entry.file_type().unwrap().is_dir() {
                true => dirs.push(entry.path()),
                false if entry.file_name().to_string_lossy() == name => return entry.path(),
                false => {}
            }
        }
    }
    panic!("no data of object {ino}")
}

#[test]
fn a_sound_pool_is_counted_and_has_no_findings() {
    let cluster = Cluster::start(DAEMONS);
    let client = cluster.client();
    populate(&client);
    let report = check(&client);
    assert!(report.findings.is_empty(), "{}", report.text());
    // With the root; 300,000, 5,000 and 10 bytes are 74, 2 and 1 blocks.
    assert_eq!((report.objects, report.entries, report.blocks), (7, 7, 77));
}

#[test]
fn damaged_names_are_found() {
    let cluster = Cluster::start(DAEMONS);
    let client = cluster.client();
    populate(&client);
    let (dir, file) = (ino_of(&client, b"/d"), ino_of(&client, b"/d/g"));
    let owner = |parent, name: &[u8]| entry_owner(parent, name, DAEMONS);
    let put = |daemon, parent, name: &[u8], ino| {
        let kind = FileKind::Regular;
        done(&client, daemon, &Request::PutDentry { parent, name: name.into(), ino, kind });
    };
    put(owner(dir, b"gone"), dir, b"gone", Ino::new(1, 999));
    put((owner(dir, b"lost") + 1) % 3, dir, b"lost", file);
    done(&client, file.home(), &Request::Nlink { ino: file, delta: 1 });
    let deep = ino_of(&client, b"/d/e");
    done(&client, deep.home(), &Request::SetParent { dir: deep, parent: Ino::ROOT });
    let (parent, name) = (dir, b"f".as_slice().into());
    let txn = TxnId([5; 16]);
    done(&client, owner(dir, b"f"), &Request::Prepare { txn, decider: 0, parent, name });
    assert_finds(
        &client,
        &[
            (What::DanglingEntry, Some("/d/gone")),
            (What::MisplacedEntry, Some("/d/lost")),
            (What::WrongParent, Some("/d/e")),
            (What::LeftHold, Some("/d/f")),
        ],
    );
}

#[test]
fn a_directory_removed_under_its_entries() {
    let cluster = Cluster::start(DAEMONS);
    let client = cluster.client();
    populate(&client);
    let dir = ino_of(&client, b"/d");
    done(&client, dir.home(), &Request::RemoveDir { dir });
    let whats: Vec<What> = check(&client).findings.iter().map(|s| s.finding.subject.what).collect();
    assert!(whats.contains(&What::DanglingEntry) && whats.contains(&What::UnknownDirectory), "{whats:?}");
}

#[test]
fn leaks_are_found_and_are_no_damage() {
    let cluster = Cluster::start(DAEMONS);
    let client = cluster.client();
    populate(&client);
    let file = ino_of(&client, b"/d/g");
    done(&client, file.home(), &Request::Nlink { ino: file, delta: 1 });
    let report = check(&client);
    let whats: Vec<What> = report.findings.iter().map(|s| s.finding.subject.what).collect();
    assert_eq!(whats, [What::TooFewNames]);
    assert_eq!(report.count(super::Severity::Damage), 0);
}

/// Changes an object's data while its daemon is stopped, so that nothing it keeps open or
/// in memory hides the change.
fn while_stopped(cluster: &mut Cluster, ino: Ino, change: impl Fn(&Cluster)) {
    let home = usize::from(ino.home());
    cluster.kill(home);
    change(cluster);
    cluster.restart(home);
}

#[test]
fn a_flipped_bit_and_lost_data_are_found_with_their_paths() {
    let mut cluster = Cluster::start(DAEMONS);
    let client = cluster.client();
    populate(&client);
    let [flipped, lost, small] = [b"/d/f".as_slice(), b"/d/g", b"/d/small"].map(|path| ino_of(&client, path));
    while_stopped(&mut cluster, small, |cluster| flip_in_page(cluster, small));
    while_stopped(&mut cluster, flipped, |cluster| {
        let path = data_file(cluster, flipped);
        let mut bytes = fs::read(&path).unwrap();
        bytes[5000] ^= 1;
        fs::write(&path, bytes).unwrap();
    });
    while_stopped(&mut cluster, lost, |cluster| {
        let path = data_file(cluster, lost);
        fs::remove_file(path.with_extension("sum")).unwrap();
        fs::remove_file(path).unwrap();
    });
    assert_finds(
        &cluster.client(),
        // `/h` is the name of `/d/g` in the directory with the lower id.
        &[
            (What::BadChecksum, Some("/d/f")),
            (What::BadChecksum, Some("/d/small")),
            (What::BlocksMissing, Some("/h")),
        ],
    );
}

/// Makes, fills, renames, links and removes files and directories until told to stop.
fn use_pool(client: &Client, user: u32, stop: &AtomicBool) {
    let path = |name: &str, round: u32| format!("/d/{name}.{user}.{}", round % 7).into_bytes();
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let (file, moved, link) = (path("file", round), path("moved", round), path("link", round));
        make_file(client, &file, 100_000);
        found(client.link(Ino::ROOT, &file, Ino::ROOT, &link, false, &cred()));
        found(client.rename(Ino::ROOT, &file, Ino::ROOT, &moved, 0, &cred()));
        found(client.unlink(Ino::ROOT, &moved, &cred()));
        found(client.unlink(Ino::ROOT, &link, &cred()));
        let (dir, there) = (path("dir", round), format!("/d/e/there.{user}").into_bytes());
        make_dir(client, &dir);
        found(client.rename(Ino::ROOT, &dir, Ino::ROOT, &there, 0, &cred()));
        found(client.rmdir(Ino::ROOT, &there, &cred()));
    }
}

#[test]
fn a_pool_in_use_gives_no_false_alarm() {
    let cluster = Cluster::start(DAEMONS);
    let client = cluster.client();
    populate(&client);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for user in 0..2 {
            let (cluster, stop) = (&cluster, &stop);
            scope.spawn(move || use_pool(&cluster.client(), user, stop));
        }
        let reports: Vec<Report> = (0..3).map(|_| check(&client)).collect();
        stop.store(true, Ordering::Relaxed);
        for report in reports {
            assert!(report.findings.is_empty(), "{}", report.text());
        }
    });
}

/// Counts that are wrong in either direction are told, repaired when that is asked for, and then right.
#[test]
fn wrong_counts_are_repaired() {
    let cluster = Cluster::start(DAEMONS);
    let client = cluster.client();
    populate(&client);
    for (path, blocks) in [(b"/d/f".as_slice(), 1000), (b"/d/g", -2), (b"/d/small", -(1 << 60))] {
        let ino = ino_of(&client, path);
        done(&client, ino.home(), &Request::SetAttr { ino, set: Default::default(), blocks });
    }
    let mut report = check(&client);
    assert_eq!((report.count(super::Severity::Damage), report.count(super::Severity::Warning)), (1, 2));
    report.repair_counts(&client).unwrap();
    assert_eq!((report.repaired(), report.count(super::Severity::Damage)), (3, 0), "{}", report.text());
    assert!(report.text().contains("3 count(s) repaired"), "{}", report.text());
    assert_finds(&client, &[]);
}

/// Records of 60 KiB each: a page of them is no larger than a message may be.
#[test]
fn records_with_large_attributes_are_all_looked_at() {
    let cluster = Cluster::start(1);
    let client = cluster.client();
    for n in 0..60 {
        make_file(&client, format!("/{n}").as_bytes(), 10);
        let ino = ino_of(&client, format!("/{n}").as_bytes());
        client.set_xattr(ino, b"user.large", &vec![b'x'; 60 << 10], 0).unwrap();
    }
    let report = check(&client);
    assert!(report.findings.is_empty(), "{}", report.text());
    assert_eq!((report.objects, report.entries, report.blocks), (61, 60, 60));
}
