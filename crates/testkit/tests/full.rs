//! One daemon's storage fills up: the program gets ENOSPC, nothing acknowledged is lost,
//! `status` names the node, and removing files makes room again.

use std::io::Write;
use tidepool_client::Client;
use tidepool_fsd::Backend;
use tidepool_testkit::{Cluster, Options, SmallDisk, cred, eventually};
use tidepool_types::{Errno, Ino, SetAttr};
use tidepool_wire::message::{Reply, Request};

/// What a daemon takes at its start: its board, rounded up, and what its metadata store keeps back.
const BOARD: u64 = 14 << 20;

fn create(client: &Client, name: &str) -> Result<Ino, Errno> {
    let flags = libc::O_CREAT | libc::O_RDWR;
    let opened = client.open(Ino::ROOT, name.as_bytes(), flags, 0o644, &cred());
    opened.and_then(|w| w.inside()).map(|attr| attr.ino).map_err(|e| e.errno())
}

fn check_content(client: &Client, ino: Ino, len: usize, byte: u8) {
    let mut data = vec![0; len];
    let mut done = 0;
    while done < len {
        let count = client.read(ino, done as u64, &mut data[done..]).unwrap();
        assert!(count > 0, "acknowledged data is missing from {done}");
        done += count;
    }
    assert!(data.iter().all(|b| *b == byte), "acknowledged data is wrong");
}

#[test]
fn a_full_daemon_loses_nothing_and_is_named() {
    for backend in [Backend::Memlog, Backend::Lmdb] {
        let dir = tempfile::TempDir::new().unwrap();
        let small = dir.path().join("store1");
        let Some(_disk) = SmallDisk::mount(&small, BOARD + (6 << 20)) else { return };
        let stores = Some(dir.path().to_path_buf());
        let mut cluster = Cluster::with(Options { daemons: 3, stores, backend, ..Options::default() });
        let client = cluster.client();
        let mut written: Vec<(Ino, usize, u8)> = Vec::new();
        let error = fill(&client, &mut written);
        assert_eq!(error, Errno::ENOSPC, "{backend:?}");
        for (ino, len, _) in &written {
            assert_eq!(
                client.get_attr(*ino).unwrap().size,
                *len as u64,
                "{backend:?}: what was acknowledged"
            );
        }
        let total: usize = written.iter().map(|w| w.1).sum();
        assert!(total > 4 << 20, "{backend:?}: only {total} bytes fit");
        for (ino, len, byte) in &written {
            check_content(&client, *ino, *len, *byte);
        }
        match client.request(1, &Request::Status {}).unwrap() {
            Reply::Report { status } => assert!(
                status.trouble.to_lowercase().contains("space"),
                "{backend:?}: status does not tell: '{}'",
                status.trouble
            ),
            other => panic!("{other:?}"),
        }
        cluster.kill(1);
        cluster.restart(1);
        let client = cluster.client();
        for (ino, len, byte) in &written {
            check_content(&client, *ino, *len, *byte);
        }
        let log = create(&client, "log");
        if let Ok(ino) = log {
            // An append that does not fit takes back the place it had reserved.
            let mut stored = 0;
            while let Ok((offset, count)) = client.append(ino, &vec![5; 300_000]) {
                assert_eq!(offset, stored, "{backend:?}");
                stored += count as u64;
            }
            assert_eq!(client.get_attr(ino).unwrap().size, stored, "{backend:?}");
            check_content(&client, ino, stored as usize, 5);
            // Nothing of it shows where the file grows by other means.
            let set = SetAttr { size: Some(stored + 600_000), ..SetAttr::default() };
            client.set_attr(ino, &set, &cred()).unwrap();
            let mut behind = vec![1; 600_000];
            assert_eq!(client.read(ino, stored, &mut behind).unwrap(), behind.len(), "{backend:?}");
            assert!(behind.iter().all(|byte| *byte == 0), "{backend:?}: what was refused shows");
        }
        for number in 0..written.len() {
            client.unlink(Ino::ROOT, format!("f{number}").as_bytes(), &cred()).unwrap();
        }
        eventually("room to write again", || {
            create(&client, "again")
                .and_then(|ino| client.write(ino, 0, &[9; 2 << 20]).map_err(|e| e.errno()))
                == Ok(2 << 20)
        });
    }
}

/// Writes files until one write fails; notes what was acknowledged.
fn fill(client: &Client, written: &mut Vec<(Ino, usize, u8)>) -> Errno {
    for number in 0.. {
        assert!(number < 1000, "a daemon with 6 MiB takes everything");
        let ino = match create(client, &format!("f{number}")) {
            Ok(ino) => ino,
            Err(errno) => return errno,
        };
        let byte = number as u8 + 1;
        let mut done = 0;
        while done < 1 << 20 {
            match client.write(ino, done as u64, &vec![byte; 256 * 1024]) {
                Ok(count) => done += count,
                Err(error) => {
                    assert!(error.to_string().contains("node1"), "'{error}' does not name the node");
                    written.push((ino, done, byte));
                    return error.errno();
                }
            }
        }
        written.push((ino, done, byte));
    }
    unreachable!("the loop ends by return")
}

/// After `kill -9` of the daemon a file that a living process had borrowed has to move to other files. Without room for that
/// the daemon serves all else, says what is wrong, and moves it as soon as there is room.
#[test]
fn a_borrowed_file_that_cannot_move_is_refused_alone() {
    const LEN: usize = 2_200_000;
    const FILLER: usize = 3_500_000;
    let dir = tempfile::TempDir::new().unwrap();
    let Some(_disk) = SmallDisk::mount(&dir.path().join("store0"), BOARD + (6 << 20)) else { return };
    let stores = Some(dir.path().to_path_buf());
    let mut cluster = Cluster::with(Options { daemons: 1, stores, ..Options::default() });
    let client = cluster.client();
    let files = ["borrowed", "filler", "small"].map(|name| create(&client, name).unwrap());
    let [borrowed, filler, small] = files;
    for (ino, len) in [(borrowed, LEN), (filler, FILLER), (small, 100)] {
        assert_eq!(client.write(ino, 0, &vec![7; len]).unwrap(), len);
    }
    for ino in [borrowed, filler].repeat(9) {
        client.write(ino, 0, &[7; 4096]).unwrap();
    }
    assert!(client.bytes_written_direct() > 0, "the file is borrowed");
    cluster.kill(0);
    cluster.restart(0);
    let other = cluster.client();
    check_content(&other, small, 100, 7);
    assert_eq!(other.get_attr(borrowed).unwrap().size, LEN as u64);
    for _ in 0..2 {
        let error = other.read(borrowed, 0, &mut [0; 100]).unwrap_err();
        assert_eq!(error.errno(), Errno::ENOSPC, "{error}");
    }
    let Reply::Report { status } = other.request(0, &Request::Status {}).unwrap() else {
        panic!("no report")
    };
    assert!(status.trouble.to_lowercase().contains("space"), "'{}'", status.trouble);
    assert!(create(&other, "new").is_ok());
    // The same is true of this one. It goes without moving first.
    other.unlink(Ino::ROOT, b"filler", &cred()).unwrap();
    drop(client);
    eventually("room to move", || other.read(borrowed, 0, &mut [0; 100]).is_ok());
    check_content(&other, borrowed, LEN, 7);
    other.write(borrowed, 0, &[8; 10]).unwrap();
}

/// Fills a daemon with names alone, and what is left of its disk with a file that is none of the pool's: to remove is possible
/// all the same, until nothing is left, also after the daemon was killed. So is to make something then.
#[test]
fn names_go_where_they_took_the_last_byte() {
    for (backend, daemons) in
        [(Backend::Memlog, 1), (Backend::Memlog, 3), (Backend::Lmdb, 1), (Backend::Lmdb, 3)]
    {
        let what = format!("{backend:?}, {daemons} daemons");
        let dir = tempfile::TempDir::new().unwrap();
        let small = dir.path().join("store0");
        let Some(_disk) = SmallDisk::mount(&small, BOARD + (4 << 20)) else { return };
        let stores = Some(dir.path().to_path_buf());
        let mut cluster = Cluster::with(Options { daemons, stores, backend, ..Options::default() });
        let client = cluster.client();
        let names = fill_with_names(&client, &what);
        use_up(&small.join("foreign"));
        let (first, rest) = names.split_at(names.len() / 3);
        remove_names(&client, first, &what);
        cluster.kill(0);
        cluster.restart(0);
        let client = cluster.client();
        remove_names(&client, rest, &what);
        for name in &names {
            let found = client.lookup(Ino::ROOT, name.as_bytes());
            assert_eq!(found.unwrap_err().errno(), Errno::ENOENT, "{what}: {name}");
        }
        std::fs::remove_file(small.join("foreign")).unwrap();
        eventually("room for new names", || (0..100).all(|n| create(&client, &format!("new{n}")).is_ok()));
    }
}

/// Until ten in a row have failed, since each daemon has its own names.
fn fill_with_names(client: &Client, what: &str) -> Vec<String> {
    let (mut names, mut failed) = (Vec::new(), 0);
    for number in 0.. {
        assert!(number < 1_000_000, "{what}: 4 MiB take everything");
        let name = format!("{number}-{}", "n".repeat(number % 200));
        match create(client, &name) {
            Ok(_) => names.push(name),
            Err(errno) => {
                assert_eq!(errno, Errno::ENOSPC, "{what}");
                failed += 1;
            }
        }
        if failed == 10 {
            break;
        }
    }
    println!("{what}: {} names", names.len());
    assert!(names.len() > 2000, "{what}: only {} names", names.len());
    names
}

fn remove_names(client: &Client, names: &[String], what: &str) {
    for name in names {
        let removed = client.unlink(Ino::ROOT, name.as_bytes(), &cred());
        removed.unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
    }
}

fn use_up(path: &std::path::Path) {
    let mut file = std::fs::File::create(path).unwrap();
    let full = std::iter::repeat_with(|| file.write_all(&[1; 4096])).find_map(Result::err).unwrap();
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
}
