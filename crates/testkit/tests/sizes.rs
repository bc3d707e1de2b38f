//! The size cache (F21): what a writer sees at once, and others when it has closed, synced or unlocked the file.

use tidepool_client::{Client, LockKind, LockMode, LockOwner, LockRange};
use tidepool_testkit::{Cluster, Options, Rng, cred, eventually, stored_blocks};
use tidepool_types::{Attr, Ino, SetAttr};

const DAEMONS: usize = 4;
const CHUNK: u64 = 64 << 10;

fn cluster(size_cache: bool) -> Cluster {
    Cluster::with(Options { daemons: DAEMONS, size_cache, ..Options::default() })
}

fn open(client: &Client, path: &str) -> Attr {
    let flags = libc::O_RDWR | libc::O_CREAT;
    client.open(Ino::ROOT, path.as_bytes(), flags, 0o644, &cred()).unwrap().inside().unwrap()
}

fn size(client: &Client, path: &str) -> u64 {
    client.stat(Ino::ROOT, path.as_bytes(), true, &cred()).unwrap().inside().unwrap().size
}

/// Offset of a chunk that is not at home.
fn far(client: &Client, file: &Attr) -> u64 {
    let owner = |index| client.chunk_owner(file.ino, file.layout.unwrap(), index * CHUNK);
    (1..).find(|index| owner(*index) != file.ino.home()).unwrap() * CHUNK
}

#[test]
fn f21_the_writer_sees_its_size_and_others_when_it_has_closed() {
    let cluster = cluster(true);
    let (writer, other) = (cluster.client(), cluster.client());
    let file = open(&writer, "f");
    let at = far(&writer, &file);
    let write = |offset| assert_eq!(writer.write(file.ino, offset, &[5; 100]).unwrap(), 100);

    write(at);
    assert_eq!(size(&other, "f"), 0, "not told yet");
    assert_eq!(size(&writer, "f"), at + 100, "its own question settles");
    assert_eq!(size(&other, "f"), at + 100);

    write(at + 100);
    let mut buf = [0; 300];
    assert_eq!(writer.read(file.ino, at, &mut buf).unwrap(), 200, "reads up to its own end");

    write(at + 200);
    assert_eq!(writer.append(file.ino, b"end").unwrap(), (at + 300, 3), "appends behind its own end");

    write(at + 400);
    writer.fsync(file.ino).unwrap();
    assert_eq!(size(&other, "f"), at + 500);

    write(at + 500);
    let cut = SetAttr { size: Some(at + 550), ..SetAttr::default() };
    assert_eq!(writer.set_attr(file.ino, &cut, &cred()).unwrap().size, at + 550);
    assert_eq!(size(&other, "f"), at + 550);

    write(at + 600);
    let lock = |mode| writer.lock(file.ino, LockOwner(1), LockKind::Posix, LockRange::ALL, mode, 1).unwrap();
    lock(LockMode::Write);
    lock(LockMode::Unlock);
    assert_eq!(size(&other, "f"), at + 700, "who gets a lock next sees what was done under it");

    write(at + 700);
    writer.settle(file.ino).unwrap();
    writer.release(file.ino);
    assert_eq!(size(&other, "f"), at + 800, "at close");

    open(&writer, "f");
    write(at + 800);
    drop(writer);
    assert_eq!(size(&other, "f"), at + 900, "at exit");
    assert_eq!(other.get_attr(file.ino).unwrap().stored_blocks(), stored_blocks(&other, file.ino));
}

/// Each write to another daemon than the home takes one request instead of two; a writer that goes on for long tells now and then.
#[test]
fn f21_small_writes_take_one_request() {
    for (size_cache, per_write) in [(false, 2), (true, 1)] {
        // Daemons of this node would lend their files, and writes take no request at all.
        let options = Options { daemons: DAEMONS, size_cache, tcp_only: true, ..Options::default() };
        let cluster = Cluster::with(options);
        let (writer, other) = (cluster.client(), cluster.client());
        let file = open(&writer, "f");
        let at = far(&writer, &file);
        let sent = || writer.request_counts().iter().sum::<u64>();
        writer.write(file.ino, at, &[1; 8]).unwrap();
        let before = sent();
        (0..50).for_each(|i| assert_eq!(writer.write(file.ino, at + 8 * i, &[2; 8]).unwrap(), 8));
        let taken = sent() - before;
        // A slow machine may make the oldest write due once or twice.
        assert!((50 * per_write..=50 * per_write + 5).contains(&taken), "{size_cache}: {taken} requests");
        std::thread::sleep(std::time::Duration::from_millis(120));
        writer.write(file.ino, at + 400, &[3; 8]).unwrap();
        assert_eq!(size(&other, "f"), at + 408, "{size_cache}: told by age");
    }
}

/// Many writers of one file, each with blocks of its own, and many who append: nothing is lost, nothing overlaps.
#[test]
fn f26_a_shared_file_is_whole_after_its_writers() {
    const WRITERS: u64 = 4;
    const WRITES: u64 = 300;
    const LEN: u64 = 3000;
    let mut rng = Rng::from_env("f26_a_shared_file_is_whole_after_its_writers");
    let cluster = cluster(true);
    let client = cluster.client();
    let file = open(&client, "shared");
    open(&client, "log");
    let orders: Vec<Vec<u64>> = (0..WRITERS)
        .map(|_| {
            let mut order: Vec<u64> = (0..WRITES).collect();
            (1..order.len()).for_each(|i| order.swap(i, rng.below(i as u64 + 1) as usize));
            order
        })
        .collect();
    std::thread::scope(|scope| {
        for (writer, order) in (0..WRITERS).zip(&orders) {
            let client = cluster.client();
            scope.spawn(move || {
                let (shared, log) = (open(&client, "shared").ino, open(&client, "log").ino);
                for i in order {
                    let at = (i * WRITERS + writer) * LEN;
                    assert_eq!(
                        client.write(shared, at, &vec![writer as u8 + 1; LEN as usize]).unwrap() as u64,
                        LEN
                    );
                    client.append(log, &[writer as u8 + 1; 700]).unwrap();
                }
                client.release(shared);
                client.release(log);
            });
        }
    });
    let attr = client.get_attr(file.ino).unwrap();
    assert_eq!((attr.size, attr.stored_blocks()), (WRITERS * WRITES * LEN, stored_blocks(&client, file.ino)));
    let mut all = vec![0; attr.size as usize];
    assert_eq!(client.read(file.ino, 0, &mut all).unwrap(), all.len());
    for (piece, writer) in all.chunks(LEN as usize).zip((0..WRITERS).cycle()) {
        assert!(piece.iter().all(|b| u64::from(*b) == writer + 1));
    }
    let log = open(&client, "log");
    let mut lines = vec![0; (WRITERS * WRITES * 700) as usize];
    assert_eq!((log.size as usize, client.read(log.ino, 0, &mut lines).unwrap()), (lines.len(), lines.len()));
    assert!(lines.chunks(700).all(|line| line[0] > 0 && line.iter().all(|b| *b == line[0])));
}

/// A writer that is killed loses the sizes it had not told, and leaves nothing behind when its file is removed.
#[test]
fn a_killed_writers_data_go_with_its_file() {
    let cluster = cluster(true);
    let (writer, other) = (cluster.client(), cluster.client());
    let file = open(&writer, "f");
    writer.write(file.ino, far(&writer, &file), &vec![1; 4096]).unwrap();
    other.unlink(Ino::ROOT, b"f", &cred()).unwrap();
    assert_eq!(stored_blocks(&other, file.ino), 1);
    // As the kernel does for a killed process: its connections end, and it says nothing more.
    writer.disconnect();
    std::mem::forget(writer);
    eventually("the data to go", || stored_blocks(&other, file.ino) == 0);
}
