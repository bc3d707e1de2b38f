//! What a kernel has of an open file is never old: a program that keeps a file open through a mount reads what others wrote as soon as
//! their writes are acknowledged, through whatever door they came (docs/consistency.md, Doors).

use rustix::fs::FallocateFlags;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidepool_client::Client;
use tidepool_fuse::{MountOptions, Mounted};
use tidepool_testkit::{Cluster, Options, cred, eventually};
use tidepool_types::{Ino, SetAttr};
use tidepool_wire::message::LEASE_TERM_MS;

const BLOCK: usize = 4096;
/// Of the file that is shared, over chunks of several daemons.
const LEN: usize = 1 << 20;

fn can_mount(test: &str) -> bool {
    let support = tidepool_fuse::probe();
    if !support.usable() {
        eprintln!("SKIPPED: {test}: FUSE is not usable here\n{support}");
    }
    support.usable()
}

fn cluster() -> Cluster {
    Cluster::with(Options { daemons: 3, ..Options::default() })
}

fn mount(cluster: &Cluster, name: &str) -> Mounted {
    let point = cluster.dir().join(name);
    fs::create_dir(&point).unwrap();
    tidepool_fuse::mount(cluster.client().into(), &MountOptions::new(point)).unwrap()
}

/// Somebody elsewhere who writes to the file `f`.
trait Writer {
    fn put(&self, offset: u64, data: &[u8]);
}

struct ByClient(Client, Ino);

impl ByClient {
    fn new(cluster: &Cluster) -> ByClient {
        let client = cluster.client();
        let flags = libc::O_RDWR | libc::O_CREAT;
        let ino = client.open(Ino::ROOT, b"f", flags, 0o644, &cred()).unwrap().inside().unwrap().ino;
        ByClient(client, ino)
    }
}

impl Writer for ByClient {
    fn put(&self, offset: u64, data: &[u8]) {
        assert_eq!(self.0.write(self.1, offset, data).unwrap(), data.len());
    }
}

impl Writer for File {
    fn put(&self, offset: u64, data: &[u8]) {
        self.write_all_at(data, offset).unwrap();
    }
}

fn read_at(file: &File, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    file.read_exact_at(&mut buf, offset).unwrap();
    buf
}

fn all_are(bytes: &[u8], wanted: u8) -> bool {
    bytes.iter().all(|byte| *byte == wanted)
}

/// Ranks that write and read in turn and keep the file open, as MPI-IO programs do: each other's data are there after each turn.
fn in_turns(reader: &File, writer: &dyn Writer) {
    writer.put(0, &vec![0; LEN]);
    for round in 1..=20u8 {
        assert!(all_are(&read_at(reader, 0, LEN), round - 1), "before round {round}");
        writer.put(0, &vec![round; LEN]);
        assert!(all_are(&read_at(reader, 0, LEN), round), "round {round} is old");
    }
}

#[test]
fn an_open_file_shows_overwrites_of_all_doors() {
    if !can_mount("an_open_file_shows_overwrites_of_all_doors") {
        return;
    }
    let cluster = cluster();
    let client = ByClient::new(&cluster);
    let (here, there) = (mount(&cluster, "here"), mount(&cluster, "there"));
    let open = |options: &mut OpenOptions, mount: &Mounted| options.open(mount.path().join("f")).unwrap();
    let reader = open(OpenOptions::new().read(true), &here);
    in_turns(&reader, &client);
    in_turns(&reader, &open(OpenOptions::new().write(true), &there));
    in_turns(&reader, &open(OpenOptions::new().read(true).write(true), &there));
    // Who reads and writes here.
    let both = open(OpenOptions::new().read(true).write(true), &here);
    in_turns(&both, &client);
    in_turns(&both, &open(OpenOptions::new().read(true).write(true), &there));
}

/// The lease is over when the next write comes, and longer ago, and nobody has read meanwhile.
#[test]
fn an_open_file_shows_what_was_written_after_a_long_time() {
    if !can_mount("an_open_file_shows_what_was_written_after_a_long_time") {
        return;
    }
    let cluster = cluster();
    let client = ByClient::new(&cluster);
    client.put(0, &[1; LEN]);
    let mount = mount(&cluster, "m");
    let reader = File::open(mount.path().join("f")).unwrap();
    let map = map(&reader);
    for (value, wait) in [(2, LEASE_TERM_MS + 500), (3, 10), (4, 2 * LEASE_TERM_MS + 500)] {
        assert!(all_are(&read_at(&reader, 0, LEN), value - 1) && all_are(map, value - 1));
        std::thread::sleep(Duration::from_millis(wait));
        client.put(0, &vec![value; LEN]);
        assert!(all_are(&read_at(&reader, 0, LEN), value), "{value} after {wait} ms");
        assert!(all_are(map, value), "{value} in mapped memory after {wait} ms");
    }
}

fn map(file: &File) -> &'static [u8] {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    // SAFETY: a new mapping of LEN bytes of a file that has as many, never unmapped and only read.
    unsafe {
        let at = mmap(std::ptr::null_mut(), LEN, ProtFlags::READ, MapFlags::SHARED, file.as_fd(), 0);
        std::slice::from_raw_parts(at.unwrap().cast(), LEN)
    }
}

/// What was in the page behind the old end, and what others cut off.
#[test]
fn an_open_file_shows_what_is_appended_and_cut_off() {
    if !can_mount("an_open_file_shows_what_is_appended_and_cut_off") {
        return;
    }
    let cluster = cluster();
    let client = ByClient::new(&cluster);
    let mount = mount(&cluster, "m");
    let path = mount.path().join("f");
    let mut tail = File::open(&path).unwrap();
    let mut here = OpenOptions::new().append(true).open(&path).unwrap();
    let mut seen = Vec::new();
    for line in 0..60u8 {
        let text = [line + 1; 100];
        match line % 2 {
            0 => assert_eq!(client.0.append(client.1, &text).unwrap().1, text.len()),
            _ => std::io::Write::write_all(&mut here, &text).unwrap(),
        }
        let before = seen.len();
        tail.read_to_end(&mut seen).unwrap();
        assert_eq!(seen[before..], text, "line {line}");
    }
    for size in [4000, 100, 0, 5000] {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        client.0.set_attr(client.1, &set, &cred()).unwrap();
        let mut now = vec![0xff; 10_000];
        assert_eq!(tail.read_at(&mut now, 0).unwrap(), size as usize);
        let kept = seen.len().min(size as usize);
        assert_eq!(now[..kept], seen[..kept]);
        assert!(all_are(&now[kept..size as usize], 0), "zeros where {size} is beyond");
        seen.truncate(kept);
    }
}

/// One writes a number that grows, others read without a pause: none is older than the last that was acknowledged before the read began.
fn never_old(cluster: &Cluster, files: &[File], writers: Vec<Box<dyn Writer + Send>>) {
    let acknowledged: Vec<AtomicU64> = writers.iter().map(|_| AtomicU64::new(0)).collect();
    let (acknowledged, over) = (&acknowledged, &AtomicBool::new(false));
    let reads: u64 = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (n, writer) in writers.into_iter().enumerate() {
            threads.push(scope.spawn(move || {
                for value in 1..=600u64 {
                    writer.put((n * BLOCK) as u64, &value.to_le_bytes());
                    acknowledged[n].store(value, Ordering::SeqCst);
                }
            }));
        }
        let readers: Vec<_> = files
            .iter()
            .map(|file| {
                scope.spawn(move || {
                    let mut reads = 0;
                    while !over.load(Ordering::SeqCst) {
                        for (n, least) in acknowledged.iter().enumerate() {
                            let least = least.load(Ordering::SeqCst);
                            let found = read_at(file, (n * BLOCK) as u64, 8);
                            let found = u64::from_le_bytes(found.try_into().unwrap());
                            assert!(found >= least, "writer {n}: {found} is older than {least}");
                            reads += 1;
                        }
                    }
                    reads
                })
            })
            .collect();
        for thread in threads {
            let ended = thread.join();
            over.store(true, Ordering::SeqCst);
            ended.unwrap();
        }
        readers.into_iter().map(|reader| reader.join().unwrap()).sum()
    });
    assert!(reads > 100, "{reads} reads; {} daemons", cluster.members());
}

#[test]
fn reads_are_never_older_than_acknowledged_writes() {
    if !can_mount("reads_are_never_older_than_acknowledged_writes") {
        return;
    }
    let cluster = cluster();
    let client = ByClient::new(&cluster);
    client.put(0, &[0; LEN]);
    let mounts = ["a", "b"].map(|name| mount(&cluster, name));
    let read = mounts.each_ref().map(|m| File::open(m.path().join("f")).unwrap());
    let write = |mount: &Mounted| OpenOptions::new().write(true).open(mount.path().join("f")).unwrap();
    never_old(&cluster, &read, vec![Box::new(ByClient::new(&cluster))]);
    client.put(0, &[0; LEN]);
    never_old(
        &cluster,
        &read,
        vec![Box::new(write(&mounts[0])), Box::new(write(&mounts[1])), Box::new(client)],
    );
}

/// Ranks on two nodes that have the file open for both, as MPI-IO has: all write their own parts at the same time, then sync, wait for each other,
/// sync, and read those of all.
#[test]
fn all_have_everything_after_sync_barrier_sync() {
    const ROUNDS: u8 = 40;
    if !can_mount("all_have_everything_after_sync_barrier_sync") {
        return;
    }
    let cluster = cluster();
    ByClient::new(&cluster).put(0, &[0; LEN]);
    let mounts = ["a", "b"].map(|name| mount(&cluster, name));
    let open = |m: &Mounted| OpenOptions::new().read(true).write(true).open(m.path().join("f")).unwrap();
    let ranks: Vec<File> = [0, 1, 0, 1].iter().map(|n| open(&mounts[*n])).collect();
    let barrier = &std::sync::Barrier::new(ranks.len());
    std::thread::scope(|scope| {
        for (rank, file) in ranks.iter().enumerate() {
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    // Parts that share pages.
                    for part in 0..32 {
                        file.put((part * ranks_apart(4) + rank * 1500) as u64, &[round; 1500]);
                    }
                    file.sync_all().unwrap();
                    barrier.wait();
                    file.sync_all().unwrap();
                    let old = (0..32).find(|part| {
                        !all_are(&read_at(file, (part * ranks_apart(4)) as u64, ranks_apart(4)), round)
                    });
                    barrier.wait();
                    assert_eq!(old, None, "rank {rank} has an old part in round {round}");
                }
            });
        }
    });
}

/// From one part of a rank to its next.
fn ranks_apart(ranks: usize) -> usize {
    ranks * 1500
}

/// A direct write by one thread, buffered reads by others of the same node beside it (xfstests generic/451).
#[test]
fn direct_writes_leave_no_old_pages() {
    if !can_mount("direct_writes_leave_no_old_pages") {
        return;
    }
    let cluster = cluster();
    ByClient::new(&cluster).put(0, &[0; LEN]);
    let mount = mount(&cluster, "m");
    let path = mount.path().join("f");
    let direct = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    struct Direct(File);
    impl Writer for Direct {
        fn put(&self, offset: u64, data: &[u8]) {
            let mut page = vec![0; 2 * BLOCK];
            let start = page.as_ptr().align_offset(BLOCK);
            page[start..start + data.len()].copy_from_slice(data);
            self.0.write_all_at(&page[start..start + BLOCK], offset).unwrap();
        }
    }
    let readers = [(); 3].map(|()| File::open(&path).unwrap());
    never_old(&cluster, &readers, vec![Box::new(Direct(direct))]);
}

/// Changes a file all of whose bytes are 1; whether it said that it could not. The second is open for reading as well.
type Change = fn(&File, &File) -> bool;

const CHANGES: &[(&str, Change)] = &[
    ("cutting off", |file, _| file.set_len(0).is_err()),
    ("punching", |file, _| {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file, how, 0, LEN as u64).is_err()
    }),
    ("writing", |file, _| !matches!(file.write_at(&vec![2; LEN], 0), Ok(LEN))),
    ("writing through pages", |_, both| !matches!(both.write_at(&vec![2; LEN], 0), Ok(LEN))),
];

/// A daemon is away when this mount changes a file, so the change is done in part. What it has done is seen here as everywhere.
#[test]
fn changes_that_fail_half_way_leave_no_old_pages() {
    if !can_mount("changes_that_fail_half_way_leave_no_old_pages") {
        return;
    }
    for (what, change) in CHANGES {
        let mut cluster = cluster();
        let client = ByClient::new(&cluster);
        client.put(0, &vec![1; LEN]);
        let here = mount(&cluster, "here");
        let open = |options: &mut OpenOptions| options.open(here.path().join("f")).unwrap();
        let reader = open(OpenOptions::new().read(true));
        let writer = open(OpenOptions::new().write(true));
        let both = open(OpenOptions::new().read(true).write(true));
        assert!(all_are(&read_at(&reader, 0, LEN), 1));
        let away = (usize::from(client.1.home()) + 1) % 3;
        cluster.kill(away);
        assert!(change(&writer, &both), "{what}: all daemons are needed for it");
        cluster.restart(away);
        let mut stored = vec![9; LEN];
        assert_eq!(client.0.read(client.1, 0, &mut stored).unwrap(), LEN);
        assert!(!all_are(&stored, 1), "{what}: nothing was done, so nothing is proven");
        eventually("pages that are not old", || {
            let seen = read_at(&reader, 0, LEN);
            let wrong = seen.iter().zip(&stored).filter(|(seen, stored)| seen != stored).count();
            println!("{what}: {wrong} bytes are old");
            wrong == 0
        });
    }
}

/// Pages of a file that nobody changes stay, as long as it is open: reading them again asks nobody.
#[test]
fn pages_of_a_quiet_file_stay() {
    if !can_mount("pages_of_a_quiet_file_stay") {
        return;
    }
    let cluster = cluster();
    ByClient::new(&cluster).put(0, &[1; LEN]);
    let mount = mount(&cluster, "m");
    let client = cluster.client();
    let bytes_read = || -> u64 {
        let told = |daemon| match client.request(daemon, &tidepool_wire::message::Request::Status {}) {
            Ok(tidepool_wire::message::Reply::Report { status }) => {
                status.counters.iter().find(|(name, _)| name == "requests").unwrap().1
            }
            other => panic!("{other:?}"),
        };
        (0..cluster.members() as u16).map(told).sum()
    };
    let reader = File::open(mount.path().join("f")).unwrap();
    eventually("pages that stay", || {
        read_at(&reader, 0, LEN);
        let (start, before) = (Instant::now(), bytes_read());
        for _ in 0..200 {
            assert!(all_are(&read_at(&reader, 0, BLOCK), 1));
        }
        bytes_read() - before < 50 && start.elapsed() < Duration::from_millis(LEASE_TERM_MS)
    });
}
