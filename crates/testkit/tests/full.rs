//! One daemon's storage fills up: the program gets ENOSPC, nothing acknowledged is lost,
//! `status` names the node, and removing files makes room again.

use tidepool_client::Client;
use tidepool_fsd::Backend;
use tidepool_testkit::{Cluster, Options, SmallDisk, cred, eventually};
use tidepool_types::{Errno, Ino};
use tidepool_wire::message::{Reply, Request};

/// What a daemon takes at its start: its board, rounded up.
const BOARD: u64 = 13 << 20;

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
