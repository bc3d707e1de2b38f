//! Writes straight to a daemon's files: what others see of them, and that nothing acknowledged is lost whoever dies, stops
//! or wants the file.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};
use tidepool_client::Client;
use tidepool_shm::{GRAIN, Loan};
use tidepool_testkit::{Cluster, Options, Rng, cred, eventually};
use tidepool_transport::{Identity, LocalNode, connect};
use tidepool_types::{Attr, Ino, SessionId, SetAttr, TimeSpec};
use tidepool_wire::message::{Reply, Request};

fn open(client: &Client, name: &[u8]) -> Ino {
    let flags = libc::O_RDWR | libc::O_CREAT;
    client.open(Ino::ROOT, name, flags, 0o644, &cred()).unwrap().inside().unwrap().ino
}

fn attr(client: &Client, ino: Ino) -> Attr {
    match client.request(ino.home(), &Request::GetAttr { ino }).unwrap() {
        Reply::Attributes { attr } => attr,
        other => panic!("{other:?}"),
    }
}

fn read_all(client: &Client, ino: Ino, len: usize) -> Vec<u8> {
    let mut got = vec![0xee; len + 1];
    let count = client.read(ino, 0, &mut got).unwrap();
    got.truncate(count);
    got
}

/// Writes so much that the next write is a direct one.
fn warm(client: &Client, ino: Ino) {
    for round in 0..12 {
        client.write(ino, 0, &[round; 4096]).unwrap();
    }
    let before = client.bytes_written_direct();
    client.write(ino, 0, &[1; 4096]).unwrap();
    assert!(client.bytes_written_direct() > before, "the file is borrowed by now");
}

/// Every block of every object matches its checksum, and the record counts what is stored.
fn assert_sound(client: &Client, ino: Ino) {
    let mut stored = 0;
    for daemon in 0..client.members() as u16 {
        let Reply::Scrubbed { objects, .. } =
            client.request(daemon, &Request::Scrub { after: None, max: 64 }).unwrap()
        else {
            panic!("no scrub")
        };
        for object in objects {
            assert!(object.bad.is_empty(), "daemon {daemon}: {object:?}");
            if object.ino == ino {
                stored += object.blocks;
            }
        }
    }
    assert_eq!(attr(client, ino).stored_blocks(), stored, "recorded blocks");
}

/// What one client has written another one's stat shows, without ending the loan.
#[test]
fn sizes_of_lent_files_are_seen_at_once() {
    let mut rng = Rng::from_env("sizes_of_lent_files_are_seen_at_once");
    for daemons in [1, 3] {
        let cluster = Cluster::with(Options { daemons, tcp_too: true, ..Options::default() });
        let (writer, other) = (cluster.client(), cluster.client());
        let ino = open(&writer, b"f");
        // The daemon of this number is none that has the file.
        let over_tcp = cluster.client_on(daemons);
        warm(&writer, ino);
        let (mut size, mut mtime) = (4096, attr(&other, ino).mtime);
        let direct = writer.bytes_written_direct();
        for _ in 0..400 {
            let (at, len) = (rng.below(1 << 21), rng.below(40_000) + 1);
            writer.write(ino, at, &rng.bytes(len as usize)).unwrap();
            size = size.max(at + len);
            let attr = attr(&other, ino);
            assert_eq!(attr.size, size);
            assert!(attr.mtime >= mtime);
            mtime = attr.mtime;
            let found = other.lookup(Ino::ROOT, b"f").unwrap();
            assert_eq!((found.size, found.blocks > 0), (size, true));
            assert_eq!(other.read_dir_plus(Ino::ROOT).unwrap()[0].1.as_ref().map(|a| a.size), Some(size));
            assert_eq!(over_tcp.get_attrs(&[ino]).unwrap()[&ino].size, size);
        }
        assert!(writer.bytes_written_direct() > direct + (4 << 20), "most of it went directly");
        // An append starts where the other one's writes end.
        assert_eq!(other.append(ino, b"tail").unwrap(), (size, 4));
        assert_sound(&other, ino);
        writer.release(ino);
        assert_eq!(attr(&other, ino).size, size + 4);
    }
}

fn clock() -> TimeSpec {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    TimeSpec { sec: since.as_secs() as i64, nsec: since.subsec_nanos() }
}

fn written_between(client: &Client, ino: Ino, round: u64) {
    let before = clock();
    client.write(ino, round % 7 * 1000, &[1; 500]).unwrap();
    let (after, told) = (clock(), attr(client, ino).mtime);
    assert!(before <= told && told <= after, "round {round}: {before:?} {told:?} {after:?}");
}

/// The time of a write lies between its beginning and its end, whether it goes to a lent file or by a request: what is written later
/// never looks older.
#[test]
fn times_of_all_files_are_of_one_clock() {
    let cluster = Cluster::start(1);
    let (writer, other) = (cluster.client(), cluster.client());
    let lent = open(&writer, b"lent");
    warm(&writer, lent);
    let direct = writer.bytes_written_direct();
    for round in 0..1000u64 {
        written_between(&writer, lent, round);
        // A new file each time, which is never borrowed.
        let asked = open(&other, format!("asked.{round}").as_bytes());
        written_between(&other, asked, round);
        other.release(asked);
    }
    assert!(writer.bytes_written_direct() > direct + 100 * 500, "it was lent");
}

/// Writes until one is a direct one, which after a contest takes its time.
fn write_directly(client: &Client, ino: Ino) {
    let before = client.bytes_written_direct();
    eventually("a direct write", || {
        client.write(ino, 0, &[1; 4096]).unwrap();
        client.bytes_written_direct() > before
    });
}

/// A time that was set stays until the next write, which overtakes it, also one that was set ahead.
#[test]
fn times_that_were_set_last_until_the_next_write() {
    let cluster = Cluster::start(1);
    let (writer, other) = (cluster.client(), cluster.client());
    let ino = open(&writer, b"f");
    let now = clock();
    for sec in [1, now.sec + 1000, now.sec] {
        write_directly(&writer, ino);
        let mtime = TimeSpec { sec, nsec: 5 };
        other.set_attr(ino, &SetAttr { mtime: Some(mtime), ..SetAttr::default() }, &cred()).unwrap();
        assert_eq!([attr(&other, ino).mtime, attr(&writer, ino).mtime], [mtime, mtime]);
        let before = clock();
        write_directly(&writer, ino);
        let told = attr(&other, ino).mtime;
        assert!(before <= told && told <= clock(), "{sec}: {told:?}");
        // Somebody else's write comes after it, and looking does not turn it back.
        let before = clock();
        other.append(ino, b"x").unwrap();
        let told = attr(&other, ino).mtime;
        assert!(before <= told && attr(&writer, ino).mtime >= told, "{before:?} {told:?}");
    }
}

/// The same while loans end: nobody is told what was true before.
#[test]
fn sizes_are_never_old_while_loans_end() {
    const ROUNDS: u64 = 300;
    let cluster = Cluster::start(1);
    let writer = cluster.client();
    let ino = open(&writer, b"f");
    let (written, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for by_name in [false, true] {
            let (cluster, written, done) = (&cluster, &written, &done);
            scope.spawn(move || {
                let client = cluster.client();
                while !done.load(Ordering::Acquire) {
                    let told = written.load(Ordering::Acquire);
                    let size = match by_name {
                        true => client.lookup(Ino::ROOT, b"f").unwrap().size,
                        false => attr(&client, ino).size,
                    };
                    assert!(size >= told, "{size} bytes, when {told} were written");
                }
            });
        }
        for _ in 0..ROUNDS {
            for _ in 0..12 {
                let at = written.load(Ordering::Acquire);
                writer.write(ino, at, &[1; 2000]).unwrap();
                written.store(at + 2000, Ordering::Release);
            }
            // The last handle: the loan ends.
            writer.reopen(ino).unwrap();
            writer.release(ino);
            writer.release(ino);
            writer.reopen(ino).unwrap();
        }
        done.store(true, Ordering::Release);
    });
    assert!(writer.bytes_written_direct() > 0);
}

#[test]
fn two_processes_write_one_file() {
    const SLOT: u64 = 12_000;
    const ROUNDS: u64 = 400;
    let cluster = Cluster::start(1);
    let clients = [cluster.client(), cluster.client()];
    let ino = open(&clients[0], b"f");
    clients[1].reopen(ino).unwrap();
    std::thread::scope(|scope| {
        for (client, n) in clients.iter().zip(0..) {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let slot = round * 2 + n;
                    client.write(ino, slot * SLOT, &[slot as u8 | 1; SLOT as usize]).unwrap();
                }
            });
        }
    });
    let data = read_all(&clients[0], ino, (2 * ROUNDS * SLOT) as usize);
    assert_eq!(data.len() as u64, 2 * ROUNDS * SLOT);
    for (bytes, slot) in data.chunks(SLOT as usize).zip(0u64..) {
        assert!(bytes.iter().all(|b| *b == slot as u8 | 1), "slot {slot}");
    }
    assert!(clients.iter().all(|c| c.bytes_written_direct() > 0));
    assert_sound(&clients[0], ino);
}

/// The owner's own changes of other kinds, between its direct writes.
#[test]
fn truncates_and_holes_between_direct_writes() {
    let mut rng = Rng::from_env("truncates_and_holes_between_direct_writes");
    let cluster = Cluster::start(1);
    let client = cluster.client();
    let ino = open(&client, b"f");
    let mut model: Vec<u8> = Vec::new();
    for _ in 0..40 {
        for _ in 0..30 {
            let (at, len) = (rng.below(600_000) as usize, rng.below(60_000) as usize + 1);
            let data = rng.bytes(len);
            client.write(ino, at as u64, &data).unwrap();
            model.resize(model.len().max(at + len), 0);
            model[at..at + len].copy_from_slice(&data);
        }
        let at = rng.below(600_000);
        if rng.below(2) == 0 {
            client.set_attr(ino, &SetAttr { size: Some(at), ..SetAttr::default() }, &cred()).unwrap();
            model.resize(at as usize, 0);
        } else {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            client.allocate(ino, mode, at, 70_000).unwrap();
            let len = model.len();
            model[(at as usize).min(len)..(at as usize + 70_000).min(len)].fill(0);
        }
        assert!(read_all(&client, ino, model.len()) == model);
    }
    assert!(client.bytes_written_direct() > 1 << 20);
    assert_sound(&client, ino);
}

/// `kill -9` of the daemon at random moments while a client writes beside it.
#[test]
fn a_killed_daemon_loses_nothing_of_it() {
    let mut rng = Rng::from_env("a_killed_daemon_loses_nothing_of_it");
    let mut cluster = Cluster::start(1);
    let mut model: Vec<u8> = Vec::new();
    let ino = open(&cluster.client(), b"f");
    let mut direct = 0;
    for _ in 0..15 {
        let client = cluster.client();
        client.reopen(ino).unwrap();
        let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
        let pause = Duration::from_micros(rng.below(30_000));
        let seed = rng.next_u64();
        let (model_now, failed) = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let mut rng = Rng::new(seed);
                let mut model = std::mem::take(&mut model);
                while !stop.load(Ordering::Relaxed) {
                    let (at, len) = (rng.below(1 << 20) as usize, rng.below(30_000) as usize + 1);
                    let data = rng.bytes(len);
                    let result = client.write(ino, at as u64, &data);
                    if result.is_err() {
                        return (model, Some((at, data)));
                    }
                    model.resize(model.len().max(at + len), 0);
                    model[at..at + len].copy_from_slice(&data);
                    written.fetch_add(1, Ordering::Relaxed);
                }
                (model, None)
            });
            eventually("writes", || written.load(Ordering::Relaxed) > 20 || thread.is_finished());
            std::thread::sleep(pause);
            cluster.kill(0);
            // Some more, which nobody answers for: the loan is there until a daemon starts again.
            std::thread::sleep(Duration::from_millis(1));
            stop.store(true, Ordering::Relaxed);
            thread.join().unwrap()
        });
        direct += client.bytes_written_direct();
        model = model_now;
        cluster.restart(0);
        let reader = cluster.client();
        let size = attr(&reader, ino).size as usize;
        // The write that was not acknowledged may have happened, wholly or in part.
        let unsure = failed.map_or(0..0, |(at, data)| at..at + data.len());
        assert!(size >= model.len() && size <= model.len().max(unsure.end), "{size}");
        let got = read_all(&reader, ino, size);
        let differs =
            (0..size).find(|i| !unsure.contains(i) && got[*i] != model.get(*i).copied().unwrap_or(0));
        assert_eq!(differs, None, "of {size}");
        model = got;
        assert_sound(&reader, ino);
        // The one who had the loan goes on through the new daemon.
        client.write(ino, 5, b"after").unwrap();
        model[5..10].copy_from_slice(b"after");
        assert!(read_all(&reader, ino, size) == model);
    }
    assert!(direct > 4 << 20, "{direct} bytes went directly");
}

/// A borrower of its own making, whose moves the test decides.
struct Borrower {
    data: OwnedFd,
    sums: OwnedFd,
    loan: Loan,
    _link: Box<dyn tidepool_transport::Link>,
}

fn borrower(cluster: &Cluster, ino: Ino) -> Borrower {
    let pool = cluster.pool_file();
    let (instance, encryption) = (pool.instance, pool.encryption);
    let identity = Identity { instance, session: SessionId([7; 16]), secret: pool.secret, encryption };
    let mut link = connect(&pool.members[0], &LocalNode::detect(), &identity, |fd| fd).unwrap().link;
    let (reply, fds) = link.ask_for_descriptors(&Request::Borrow { ino }).unwrap().unwrap();
    let Reply::Borrowed { number } = reply else { panic!("{reply:?}") };
    let [data, sums, loan] = <[OwnedFd; 3]>::try_from(fds).unwrap();
    Borrower { data, sums, loan: Loan::open(&loan, number).unwrap(), _link: link }
}

#[test]
fn a_stopped_borrower_is_left_behind() {
    let cluster = Cluster::start(1);
    let (writer, reader) = (cluster.client(), cluster.client());
    let ino = open(&writer, b"f");
    let old: Vec<u8> = (0..3 * GRAIN).map(|i| (i / 4096 + 1) as u8).collect();
    writer.write(ino, 0, &old).unwrap();
    reader.reopen(ino).unwrap();
    for _ in 0..8 {
        reader.read(ino, 0, &mut [0; 4096]).unwrap();
    }
    let uncopied = reader.bytes_uncopied();
    assert!(uncopied > 0, "the reader has the files as well");
    // The writer's own loan must be over: it would be lent again at once.
    writer.release(ino);
    eventually("the loan is back", || {
        cluster.client().request(0, &Request::Trim { ino, size: 1 << 40 }).is_ok()
    });
    std::thread::sleep(Duration::from_millis(1100));

    let stopped = borrower(&cluster, ino);
    assert!(stopped.loan.begin(0), "and here it stops, in the middle of a write");
    let start = Instant::now();
    let other = cluster.client();
    other.reopen(ino).unwrap();
    assert_eq!(other.write(ino, 0, &[0xaa; 4096]).unwrap(), 4096);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());

    // What it writes from now on is nobody's.
    rustix::io::pwrite(&stopped.data, &[0xbb; 4096], 0).unwrap();
    let sum = tidepool_blocks::padded_sum(&[0xbb; 4096]).to_le_bytes();
    rustix::io::pwrite(&stopped.sums, &[sum, sum].concat(), tidepool_blocks::entry_at(0)).unwrap();
    assert!(!stopped.loan.end(0), "its write does not count");
    let mut wanted = old.clone();
    wanted[..4096].fill(0xaa);
    for client in [&reader, &other, &cluster.client()] {
        assert!(read_all(client, ino, wanted.len()) == wanted);
    }
    assert_sound(&other, ino);
    assert!(
        !cluster.store(0).join("data/data").join(format!("{:02x}/{:016x}.lent", ino.0 as u8, ino.0)).exists()
    );
}

/// A dead borrower's word is taken at once.
#[test]
fn a_borrower_that_is_gone_is_not_waited_for() {
    let cluster = Cluster::start(1);
    let writer = cluster.client();
    let ino = open(&writer, b"f");
    writer.write(ino, 0, &[1; 10_000]).unwrap();
    let gone = borrower(&cluster, ino);
    assert!(gone.loan.begin(GRAIN));
    assert!(gone.loan.end(GRAIN));
    drop(gone);
    let start = Instant::now();
    writer.write(ino, 0, &[2; 10]).unwrap();
    assert!(start.elapsed() < Duration::from_millis(1500), "{:?}", start.elapsed());
}

#[test]
fn removed_files_leave_nothing() {
    let cluster = Cluster::start(1);
    let (writer, other) = (cluster.client(), cluster.client());
    for n in 0..20 {
        let name = format!("f{n}");
        let ino = open(&writer, name.as_bytes());
        warm(&writer, ino);
        writer.write(ino, 100_000, &[1; 100_000]).unwrap();
        other.unlink(Ino::ROOT, name.as_bytes(), &cred()).unwrap();
        // Open, so it is there, and still written to.
        writer.write(ino, 5, b"x").unwrap();
        writer.release(ino);
    }
    let empty = || {
        let Ok(Reply::Space { stat }) = other.request(0, &Request::StatFs {}) else { panic!("no space") };
        stat.used == 0
    };
    eventually("their blocks are given back", empty);
    let mut left = walk(&cluster.store(0).join("data"));
    left.retain(|name| name != "small");
    assert_eq!(left, Vec::<String>::new());
}

fn walk(dir: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(walk(&entry.path())),
            false => found.push(entry.file_name().to_string_lossy().into_owned()),
        }
    }
    found
}
