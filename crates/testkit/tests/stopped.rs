//! Daemons that are stopped, as by SIGSTOP: they are there, and say nothing.
//!
//! It proves: a stop that is shorter than the pool's limit is not seen, and does nothing twice; a longer one ends every call with an
//! error that names the daemon, in time; what was given up so is not carried out behind the client's back; afterwards all works.

use rustix::process::Signal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tidepool_client::{
    Client, FsError, LockKind, LockMode, LockOwner, LockPlace, LockRange, LockWish, Queued,
};
use tidepool_testkit::{Cluster, Options, Rng, bytes_of, create_file, cred, eventually, read_all, write_all};
use tidepool_types::{Attr, Errno, Ino, SetAttr};

const LIMIT: Duration = Duration::from_secs(3);
/// What a busy machine may add to a limit: less than another one, so that none is waited for twice.
const SLACK: Duration = Duration::from_millis(2_700);

fn pool(daemons: usize, tcp_only: bool, limit: Duration) -> Cluster {
    let answer_ms = limit.as_millis() as u64;
    Cluster::with(Options { daemons, tcp_only, answer_ms, ..Options::default() })
}

/// A daemon that is stopped until this is dropped.
struct Stopped<'c>(&'c Cluster, usize);

impl<'c> Stopped<'c> {
    fn new(cluster: &'c Cluster, daemon: usize) -> Stopped<'c> {
        cluster.signal(daemon, Signal::STOP);
        Stopped(cluster, daemon)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.signal(self.1, Signal::CONT);
    }
}

/// What follows at once upon a silence fails at once; a call of its own waits.
const APART: Duration = Duration::from_millis(600);

/// The error of a call to a daemon that is stopped: in time, and with its name.
fn refused<T>(what: &str, call: impl FnOnce() -> Result<T, FsError>) {
    sleep(APART);
    let began = Instant::now();
    let error = call().err().unwrap_or_else(|| panic!("{what} succeeds at a stopped daemon"));
    let took = began.elapsed();
    assert_eq!(error.errno(), Errno::EIO, "{what}: {error}");
    let text = error.to_string();
    assert!(text.contains("node node0: daemon 0 has not answered for 3 s"), "{what}: {text}");
    assert!(took >= LIMIT.mul_f64(0.9) && took < LIMIT + SLACK, "{what}: {took:?}");
}

fn cut(client: &Client, ino: Ino) -> Result<Attr, FsError> {
    client.set_attr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }, &cred())
}

fn append_records(client: &Client, number: u64, stop: &AtomicBool) -> u64 {
    let ino = client.open(Ino::ROOT, b"log", libc::O_WRONLY, 0, &cred()).unwrap().inside().unwrap().ino;
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let record = [number, count].map(u64::to_le_bytes).concat();
        assert_eq!(client.append(ino, &record).unwrap().1, 16);
        count += 1;
    }
    client.release(ino);
    count
}

fn make_and_remove(client: &Client, number: u64, stop: &AtomicBool) {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
    for count in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let (name, other) = (format!("n{number}-{count}"), format!("m{number}-{count}"));
        let ino =
            client.open(Ino::ROOT, name.as_bytes(), flags, 0o644, &cred()).unwrap().inside().unwrap().ino;
        client.release(ino);
        client.rename(Ino::ROOT, name.as_bytes(), Ino::ROOT, other.as_bytes(), 0, &cred()).unwrap();
        client.mkdir(Ino::ROOT, name.as_bytes(), 0o755, &cred()).unwrap();
        client.rmdir(Ino::ROOT, name.as_bytes(), &cred()).unwrap();
        client.unlink(Ino::ROOT, other.as_bytes(), &cred()).unwrap();
    }
}

/// Large pieces, so that more is on its way than a stopped daemon's kernel takes.
fn write_much(client: &Client, number: u64, stop: &AtomicBool) {
    let ino = create_file(client, &format!("big{number}"));
    for count in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let data = bytes_of(8 << 20, count as u8);
        write_all(client, ino, 0, &data);
        assert!(read_all(client, ino, data.len()) == data, "round {count}");
    }
}

/// Stops that are shorter than the limit, one of them longer than the time for a handshake and the one in which a node is dead.
fn short_stops(tcp_only: bool) {
    let cluster = pool(3, tcp_only, Duration::from_secs(60));
    let mut rng = Rng::from_env("short_stops");
    create_file(&cluster.client(), "log");
    let stop = AtomicBool::new(false);
    let counts: Vec<u64> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|number| {
                let (cluster, stop) = (&cluster, &stop);
                scope.spawn(move || write_much(&cluster.client(), number, stop));
                scope.spawn(move || make_and_remove(&cluster.client(), number, stop));
                scope.spawn(move || append_records(&cluster.client(), number, stop))
            })
            .collect();
        for round in 0..6 {
            sleep(Duration::from_millis(rng.below(300)));
            let stopped = Stopped::new(&cluster, rng.below(3) as usize);
            sleep(Duration::from_millis(if round == 2 { 7_000 } else { rng.below(1_200) }));
            drop(stopped);
        }
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    let client = cluster.client();
    let ino = client.open(Ino::ROOT, b"log", libc::O_RDONLY, 0, &cred()).unwrap().inside().unwrap().ino;
    let total: u64 = counts.iter().sum();
    let data = read_all(&client, ino, 16 * total as usize);
    assert_eq!(client.get_attr(ino).unwrap().size, 16 * total, "each append is there once");
    let mut next = [0u64; 2];
    for record in data.chunks_exact(16) {
        let word = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().unwrap());
        let number = word(0) as usize;
        assert_eq!(word(8), next[number], "of writer {number}");
        next[number] += 1;
    }
    assert_eq!(next[..], counts[..]);
    println!("short_stops: {counts:?} records");
}

#[test]
fn a_short_stop_is_not_seen_on_the_node() {
    short_stops(false);
}

#[test]
fn a_short_stop_is_not_seen_over_tcp() {
    short_stops(true);
}

/// Requests enough for a lane.
fn make_friends(client: &Client) {
    (0..40).for_each(|_| drop(client.stat(Ino::ROOT, b"f", true, &cred()).unwrap()));
}

fn long_stop(tcp_only: bool, friends: bool) {
    let cluster = pool(1, tcp_only, LIMIT);
    let client = cluster.client();
    let (file, much) = (create_file(&client, "f"), bytes_of(4 << 20, 5));
    let big = create_file(&client, "big");
    write_all(&client, file, 0, b"before");
    write_all(&client, big, 0, &much);
    if friends {
        make_friends(&client);
    }
    let stopped = Stopped::new(&cluster, 0);
    let new = cluster.client();
    let flags = libc::O_WRONLY | libc::O_CREAT;
    refused("connect", || new.stat(Ino::ROOT, b"f", true, &cred()));
    refused("open", || new.open(Ino::ROOT, b"f", libc::O_RDONLY, 0, &cred()));
    refused("write", || client.write(file, 0, b"behind"));
    refused("large write", || new.write(big, 0, &bytes_of(4 << 20, 6)));
    refused("append", || client.append(file, b"more"));
    refused("large read", || new.read(big, 0, &mut vec![0; 4 << 20]));
    refused("create", || client.open(Ino::ROOT, b"new", flags, 0o644, &cred()));
    refused("mkdir", || client.mkdir(Ino::ROOT, b"dir", 0o755, &cred()));
    refused("unlink", || client.unlink(Ino::ROOT, b"f", &cred()));
    refused("rename", || client.rename(Ino::ROOT, b"f", Ino::ROOT, b"g", 0, &cred()));
    refused("truncate", || cut(&client, file));
    refused("fsync", || client.fsync(file));
    let (whole, mode) = (LockRange::ALL, LockMode::Write);
    refused("lock", || client.lock(file, LockOwner(1), LockKind::Posix, whole, mode, 1));
    drop(stopped);
    // Nothing of it is done now that the daemon goes on.
    let other = cluster.client();
    other.lock(file, LockOwner(2), LockKind::Posix, whole, mode, 2).unwrap();
    write_all(&other, file, 0, b"after!");
    sleep(Duration::from_millis(500));
    for client in [&client, &other, &new] {
        assert_eq!(read_all(client, file, 6), b"after!");
        assert_eq!(client.get_attr(file).unwrap().size, 6);
        assert!(read_all(client, big, 4 << 20) == much);
        for (name, there) in [("f", true), ("g", false), ("new", false), ("dir", false)] {
            let found = client.stat(Ino::ROOT, name.as_bytes(), true, &cred());
            assert_eq!(found.is_ok(), there, "{name}");
        }
    }
    client.mkdir(Ino::ROOT, b"dir", 0o755, &cred()).unwrap();
    client.unlink(Ino::ROOT, b"f", &cred()).unwrap();
}

#[test]
fn a_long_stop_ends_calls_in_time_on_a_socket() {
    long_stop(false, false);
}

#[test]
fn a_long_stop_ends_calls_in_time_through_shared_memory() {
    long_stop(false, true);
}

#[test]
fn a_long_stop_ends_calls_in_time_over_tcp() {
    long_stop(true, true);
}

/// Pieces at several daemons that are stopped do not wait one after the other.
#[test]
fn several_stopped_daemons_cost_one_limit() {
    for tcp_only in [false, true] {
        let cluster = pool(3, tcp_only, LIMIT);
        let client = cluster.client();
        let ino = create_file(&client, "f");
        let data = bytes_of(6 << 20, 1);
        write_all(&client, ino, 0, &data);
        let new = cluster.client();
        assert!(read_all(&new, ino, data.len()) == data);
        let stopped: Vec<_> = (0..3).map(|daemon| Stopped::new(&cluster, daemon)).collect();
        let began = Instant::now();
        let _ = cut(&new, ino).unwrap_err();
        assert!(began.elapsed() < LIMIT + SLACK, "{:?}", began.elapsed());
        if tcp_only {
            sleep(APART);
            let began = Instant::now();
            let error = new.fsync(ino).unwrap_err();
            assert!(began.elapsed() < LIMIT + SLACK, "{:?}: {error}", began.elapsed());
        }
        drop(stopped);
        sleep(APART);
        assert!(read_all(&new, ino, data.len()) == data);
    }
}

fn wish(ino: Ino) -> LockWish {
    let (owner, kind, range) = (LockOwner(1), LockKind::Posix, LockRange::ALL);
    LockWish { ino, owner, kind, range, mode: LockMode::Write, pid: 1 }
}

/// Looks, as the doors do, until something is seen.
fn see(place: &mut LockPlace, patience: Duration) -> Result<Queued, FsError> {
    let began = Instant::now();
    loop {
        match place.look() {
            Ok(Queued::Waits) if began.elapsed() < patience => sleep(Duration::from_millis(20)),
            seen => return seen,
        }
    }
}

#[test]
fn who_waits_for_a_lock_notices_a_stopped_daemon() {
    for tcp_only in [false, true] {
        let cluster = pool(1, tcp_only, LIMIT);
        let (one, two) = (cluster.client(), cluster.client());
        let ino = create_file(&one, "locked");
        let take =
            |client: &Client, mode| client.lock(ino, LockOwner(1), LockKind::Posix, LockRange::ALL, mode, 1);
        take(&one, LockMode::Write).unwrap();
        let mut place = two.queue_for_lock(&wish(ino)).unwrap();
        assert_eq!(see(&mut place, 4 * LIMIT).unwrap(), Queued::Waits, "a healthy daemon is waited for");
        {
            let _stopped = Stopped::new(&cluster, 0);
            assert_eq!(see(&mut place, LIMIT / 2).unwrap(), Queued::Waits);
        }
        assert_eq!(see(&mut place, 2 * LIMIT).unwrap(), Queued::Waits, "a short stop is not seen");
        let stopped = Stopped::new(&cluster, 0);
        refused("waiting", || see(&mut place, LIMIT + SLACK));
        let began = Instant::now();
        place.leave();
        assert!(began.elapsed() < SLACK, "who is interrupted is not kept: {:?}", began.elapsed());
        drop(stopped);
        // Who has given up keeps nobody waiting.
        take(&one, LockMode::Unlock).unwrap();
        let mut place = two.queue_for_lock(&wish(ino)).unwrap();
        assert_eq!(see(&mut place, SLACK).unwrap(), Queued::Turn);
        take(&two, LockMode::Write).unwrap();
        take(&two, LockMode::Unlock).unwrap();
        eventually("the lock is free", || take(&one, LockMode::Write).is_ok());
    }
}

/// A daemon whose peer is stopped serves everybody else, and its own clocks go on.
#[test]
fn a_stopped_peer_holds_up_no_clocks() {
    let cluster = pool(2, false, Duration::from_secs(60));
    let client = cluster.client();
    for number in 0..20 {
        let ino = create_file(&client, &format!("f{number}"));
        write_all(&client, ino, 0, &bytes_of(1 << 20, 1));
        client.release(ino);
    }
    let locked = (0..).map(|n| create_file(&client, &format!("l{n}"))).find(|ino| ino.home() == 0).unwrap();
    for number in 0..20 {
        client.unlink(Ino::ROOT, format!("f{number}").as_bytes(), &cred()).unwrap();
    }
    let _stopped = Stopped::new(&cluster, 1);
    let mut place = client.queue_for_lock(&wish(locked)).unwrap();
    assert_eq!(see(&mut place, SLACK).unwrap(), Queued::Turn);
    let other = cluster.client();
    let began = Instant::now();
    while other.lock(locked, LockOwner(2), LockKind::Posix, LockRange::ALL, LockMode::Write, 2).is_err() {
        assert!(began.elapsed() < 2 * SLACK, "the turn ends");
        sleep(Duration::from_millis(20));
    }
}
