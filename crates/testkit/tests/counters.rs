//! What daemons count as read and written is what programs have read and written, whichever way the data went.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use tidepool_client::Client;
use tidepool_testkit::{Cluster, Options, bytes_of, counted, create_file, eventually, read_all, write_all};
use tidepool_types::Ino;

const BYTES: usize = 24 << 20;
/// Of a client that is killed so much may be missing for each daemon.
const UNTOLD: u64 = 4 << 20;

fn write_in_pieces(client: &Client, ino: Ino, data: &[u8], piece: usize) {
    for (number, piece_of) in data.chunks(piece).enumerate() {
        write_all(client, ino, (number * piece) as u64, piece_of);
    }
}

fn read_in_pieces(client: &Client, ino: Ino, len: usize, piece: usize) {
    let mut buf = vec![0; piece];
    for at in (0..len).step_by(piece) {
        let mut done = 0;
        while done < piece.min(len - at) {
            let end = piece.min(len - at);
            done += client.read(ino, (at + done) as u64, &mut buf[done..end]).unwrap();
        }
    }
}

/// Bytes counted as written and read since.
fn since(client: &Client, before: (u64, u64)) -> (u64, u64) {
    let (written, read) = (counted(client, "bytes_written"), counted(client, "bytes_read"));
    (written - before.0, read - before.1)
}

fn now(client: &Client) -> (u64, u64) {
    since(client, (0, 0))
}

#[test]
fn all_ways_count() {
    for daemons in [1, 3] {
        let pool = Cluster::start(daemons);
        let (client, eye) = (pool.client(), pool.client());
        let data = bytes_of(BYTES, 3);
        for piece in [4096, 100_000, 1 << 20] {
            let before = now(&eye);
            let direct = (client.bytes_written_direct(), client.bytes_uncopied());
            let ino = create_file(&client, &format!("file{piece}"));
            write_in_pieces(&client, ino, &data, piece);
            read_in_pieces(&client, ino, BYTES, piece);
            read_in_pieces(&client, ino, BYTES, piece);
            assert!(client.bytes_written_direct() > direct.0 && client.bytes_uncopied() > direct.1);
            client.fsync(ino).unwrap();
            // One that is told without a reply may be served a moment later.
            let (written, read) = (BYTES as u64, 2 * BYTES as u64);
            eventually("all is counted", || {
                since(&eye, before).0 >= written && since(&eye, before).1 >= read
            });
            client.release(ino);
            let all = since(&eye, before);
            // Blocks that are written in part are read before, by who writes; nobody counts that.
            assert_eq!(all, (written, read), "{daemons} daemons, pieces of {piece}");
        }
        // By request alone it is the same.
        let remote = Cluster::with(Options { daemons, tcp_only: true, ..Options::default() });
        let client = remote.client();
        let ino = create_file(&client, "file");
        write_in_pieces(&client, ino, &data, 1 << 20);
        read_in_pieces(&client, ino, BYTES, 1 << 20);
        assert_eq!(now(&client), (BYTES as u64, BYTES as u64));
    }
}

#[test]
fn a_client_that_ends_has_told_all() {
    let pool = Cluster::start(2);
    let (client, eye) = (pool.client(), pool.client());
    let ino = create_file(&client, "file");
    let data = bytes_of(BYTES, 5);
    write_in_pieces(&client, ino, &data, 64 << 10);
    assert_eq!(read_all(&eye, ino, BYTES), data);
    drop(client);
    eventually("all is counted", || counted(&eye, "bytes_written") == BYTES as u64);
}

const CHILD: &str = "TIDEPOOL_TEST_COUNTERS_POOL";

/// The client of a process that is killed has told all but the last few MiB.
#[test]
fn of_a_killed_client_little_is_missing() {
    if let Some(pool) = std::env::var_os(CHILD) {
        let client = Client::new(tidepool_client::PoolFile::read(std::path::Path::new(&pool)).unwrap());
        let ino = create_file(&client, "file");
        write_in_pieces(&client, ino, &bytes_of(BYTES, 7), 64 << 10);
        eprintln!("WRITTEN");
        std::thread::sleep(std::time::Duration::from_secs(600));
    }
    let pool = Cluster::start(2);
    let eye = pool.client();
    let file = pool.dir().join("pool.json");
    pool.pool_file().write(&file).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "of_a_killed_client_little_is_missing", "--nocapture", "--test-threads=1"])
        .env(CHILD, &file)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("WRITTEN")));
    child.kill().unwrap();
    child.wait().unwrap();
    let least = BYTES as u64 - 2 * UNTOLD;
    eventually("most is counted", || counted(&eye, "bytes_written") >= least);
    assert!(counted(&eye, "bytes_written") <= BYTES as u64);
}

/// Data that the daemons move are read and written as well.
#[test]
fn copies_within_the_pool_count() {
    let pool = Cluster::start(3);
    let (client, eye) = (pool.client(), pool.client());
    let ino = create_file(&client, "from");
    write_in_pieces(&client, ino, &bytes_of(BYTES, 9), 1 << 20);
    client.fsync(ino).unwrap();
    eventually("it is counted", || counted(&eye, "bytes_written") == BYTES as u64);
    let to = create_file(&client, "to");
    let before = now(&eye);
    let mut done = 0;
    while done < BYTES as u64 {
        done += client.copy_range(ino, done, to, done, BYTES as u64 - done).unwrap() as u64;
    }
    assert_eq!(since(&eye, before), (BYTES as u64, BYTES as u64));
}
