//! What a writer that died has stored behind the end of a file, and nobody was told of, never shows: where the file grows over it
//! there are zeros. And what living writers store at the same time stays.
//!
//! A client that keeps sizes to itself (the size cache) and then loses its connections is what daemons see of a writer that is
//! killed between storing data and telling the file's home.

use std::sync::atomic::{AtomicUsize, Ordering};
use tidepool_client::Client;
use tidepool_testkit::{Cluster, Options, Rng, cred, eventually};
use tidepool_types::{Attr, Errno, Ino, Layout, SetAttr};
use tidepool_wire::message::{Reply, Request};

const CHUNK: u64 = 64 << 10;
const BLOCK: u64 = 4096;
/// Bytes of files that are filled by a writer that dies.
const LEN: u64 = 6 * CHUNK + 3 * BLOCK + 77;

fn open_with(client: &Client, path: &str, flags: i32) -> Attr {
    client.open(Ino::ROOT, path.as_bytes(), libc::O_RDWR | flags, 0o644, &cred()).unwrap().inside().unwrap()
}

fn open(client: &Client, path: &str) -> Attr {
    open_with(client, path, libc::O_CREAT)
}

fn size(client: &Client, ino: Ino) -> u64 {
    client.get_attr(ino).unwrap().size
}

fn resize(client: &Client, ino: Ino, size: u64) {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    assert_eq!(client.set_attr(ino, &set, &cred()).unwrap().size, size);
}

fn read_all(client: &Client, ino: Ino) -> Vec<u8> {
    let mut all = vec![9; size(client, ino) as usize];
    let mut done = 0;
    while done < all.len() {
        match client.read(ino, done as u64, &mut all[done..]).unwrap() {
            0 => panic!("{done} of {} bytes", all.len()),
            count => done += count,
        }
    }
    all
}

fn runs(data: &[u8]) -> Vec<(u8, usize)> {
    data.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect()
}

fn sessions(client: &Client, daemon: usize) -> u64 {
    match client.request(daemon as u16, &Request::Status {}).unwrap() {
        Reply::Report { status } => status.sessions,
        other => panic!("{other:?}"),
    }
}

/// A writer that tells no sizes.
fn silent(cluster: &Cluster) -> Client {
    let mut pool = cluster.pool_file();
    pool.size_cache = true;
    Client::new(pool)
}

/// As the kernel does for a killed process: its connections end, and it says nothing more.
fn die(client: Client) {
    client.disconnect();
    std::mem::forget(client);
}

/// Fills chunks away from the file's home with ones that nobody is told of, dies, and is noticed.
fn leave(cluster: &Cluster, observer: &Client, path: &str) -> Attr {
    let home = usize::from(open(observer, path).ino.home());
    let before = sessions(observer, home);
    let dying = silent(cluster);
    let file = open(&dying, path);
    let told = size(observer, file.ino);
    for chunk in 1..=LEN / CHUNK {
        let at = chunk * CHUNK;
        if dying.chunk_owner(file.ino, file.layout.unwrap(), at) != file.ino.home() {
            let len = CHUNK.min(LEN - at) as usize;
            assert_eq!(dying.write(file.ino, at, &vec![1; len]).unwrap(), len);
        }
    }
    assert_eq!(size(observer, file.ino), told, "nobody was told");
    die(dying);
    eventually("the home to notice", || sessions(observer, home) == before);
    file
}

fn options(tcp_only: bool) -> Options {
    Options { layout: Layout::wide(CHUNK, 0).unwrap(), tcp_only, ..Options::default() }
}

/// Each way in which a file can come to have a hole.
type Growth = (&'static str, fn(&Client, Ino));

const GROWTHS: [Growth; 5] = [
    ("ftruncate", |client, ino| resize(client, ino, LEN)),
    ("a write further out, at home or not", |client, ino| {
        for at in [LEN - 10, LEN + CHUNK, LEN + 2 * CHUNK, LEN + 3 * CHUNK] {
            assert_eq!(client.write(ino, at, &[7; 10]).unwrap(), 10);
        }
    }),
    ("a long write further out", |client, ino| {
        let data = vec![7; 3 * CHUNK as usize];
        assert_eq!(client.write(ino, LEN - 10, &data).unwrap(), data.len());
    }),
    ("fallocate", |client, ino| client.allocate(ino, 0, LEN - 10, 10).unwrap()),
    ("zeroing a range", |client, ino| {
        client.allocate(ino, libc::FALLOC_FL_ZERO_RANGE, LEN - 10, 10).unwrap();
    }),
];

fn holes_are_empty(tcp_only: bool, restart: bool) {
    let mut cluster = Cluster::with(options(tcp_only));
    for (number, (how, _)) in GROWTHS.iter().enumerate() {
        for truncated in [false, true] {
            let client = cluster.client();
            let path = format!("f{number}{truncated}");
            let file = leave(&cluster, &client, &path);
            client.release(file.ino);
            drop(client);
            if restart {
                cluster.kill(usize::from(file.ino.home()));
                cluster.restart(usize::from(file.ino.home()));
            }
            let client = cluster.client();
            let ino = open_with(&client, &path, if truncated { libc::O_TRUNC } else { 0 }).ino;
            GROWTHS[number].1(&client, ino);
            for reader in [&client, &cluster.client()] {
                let found = read_all(reader, ino);
                assert!(
                    found.len() as u64 >= LEN && !found.contains(&1),
                    "{how}, truncated {truncated}: {:?}",
                    runs(&found)
                );
            }
        }
    }
}

#[test]
fn what_a_dead_writer_left_does_not_show_in_holes() {
    holes_are_empty(false, false);
}

#[test]
fn what_a_dead_writer_left_does_not_show_in_holes_over_tcp() {
    holes_are_empty(true, false);
}

/// Writer and home die together: the daemon that starts again has heard of neither.
#[test]
fn what_a_writer_left_that_died_with_the_home_does_not_show() {
    holes_are_empty(false, true);
}

/// That a daemon has data for all that was asked for does not make the file longer.
#[test]
fn nobody_reads_past_the_end_into_leavings() {
    for tcp_only in [false, true] {
        let cluster = Cluster::with(options(tcp_only));
        let client = cluster.client();
        let file = leave(&cluster, &client, "f");
        let owner = |at| client.chunk_owner(file.ino, file.layout.unwrap(), at);
        let far = (1..).map(|chunk| chunk * CHUNK).find(|at| owner(*at) != file.ino.home()).unwrap();
        let mut buf = [0; 2 * BLOCK as usize];
        let read = |client: &Client, at, buf: &mut [u8]| client.read(file.ino, at, buf).unwrap();
        assert_eq!(read(&client, far, &mut buf), 0, "tcp {tcp_only}");
        // Next to the end nothing is cleared.
        let own = vec![7; (far + BLOCK) as usize];
        assert_eq!(client.write(file.ino, 0, &own).unwrap(), own.len());
        for (reader, who) in [(&client, "the writer"), (&cluster.client(), "another")] {
            assert_eq!(read(reader, far + 10, &mut buf), BLOCK as usize - 10, "tcp {tcp_only}, {who}");
            assert_eq!(read(reader, far + BLOCK, &mut buf), 0, "tcp {tcp_only}, {who}");
            assert_eq!(runs(&read_all(reader, file.ino)), [(7, own.len())]);
        }
    }
}

fn stored(client: &Client, ino: Ino) -> u64 {
    let at = |daemon| match client.request(daemon, &Request::Scrub { after: None, max: 64 }).unwrap() {
        Reply::Scrubbed { objects, .. } => {
            objects.iter().filter(|o| o.ino == ino).map(|o| o.blocks).sum::<u64>()
        }
        other => panic!("{other:?}"),
    };
    (0..client.members() as u16).map(at).sum()
}

/// Data next to the end cost nothing and need no clearing: they are written over what lies there.
#[test]
fn appending_writes_are_not_held_up() {
    let cluster = Cluster::with(options(true));
    let client = cluster.client();
    let file = leave(&cluster, &client, "f");
    cluster.signal(1, rustix::process::Signal::STOP);
    let chunk = vec![7; CHUNK as usize / 2];
    let mut at = 0;
    let owner = |at| client.chunk_owner(file.ino, file.layout.unwrap(), at);
    while owner(at) != 1 {
        assert_eq!(client.write(file.ino, at, &chunk).unwrap(), chunk.len());
        at += chunk.len() as u64;
    }
    cluster.signal(1, rustix::process::Signal::CONT);
    assert_eq!((size(&client, file.ino), runs(&read_all(&client, file.ino)).len()), (at, 1));
}

#[test]
fn an_append_is_not_followed_or_preceded_by_leavings() {
    let cluster = Cluster::with(options(false));
    let client = cluster.client();
    let ino = leave(&cluster, &client, "f").ino;
    let (place, done) = client.append(ino, &vec![7; CHUNK as usize + 10]).unwrap();
    assert_eq!((place, done as u64), (0, CHUNK + 10));
    resize(&client, ino, LEN);
    assert_eq!(runs(&read_all(&client, ino)), [(7, CHUNK as usize + 10), (0, (LEN - CHUNK - 10) as usize)]);
}

/// The borrower of a file with something behind its end would be told a size that nobody has written.
#[test]
fn leavings_at_home_do_not_count_when_the_file_is_borrowed() {
    let cluster = Cluster::with(options(false));
    let client = cluster.client();
    let dying = silent(&cluster);
    let ino = open(&dying, "f").ino;
    // More than one chunk is told to the home later, also what lies there.
    assert_eq!(dying.write(ino, 0, &vec![1; 2 * CHUNK as usize]).unwrap() as u64, 2 * CHUNK);
    let before = sessions(&client, ino.home().into());
    die(dying);
    eventually("the home to notice", || sessions(&client, ino.home().into()) < before);
    let client = cluster.client();
    assert_eq!(open(&client, "f").ino, ino);
    let mut at = 0;
    while client.bytes_written_direct() == 0 {
        assert_eq!(client.write(ino, at, &[7; 20]).unwrap(), 20);
        at += 20;
        assert_eq!(size(&client, ino), at);
    }
    resize(&client, ino, at + 100);
    assert_eq!(runs(&read_all(&client, ino)), [(7, at as usize), (0, 100)]);
}

/// A long write that one daemon cannot take: what others have stored of it is not told of, by a writer who lives on.
#[test]
fn what_was_stored_of_a_failed_write_does_not_show() {
    let mut cluster = Cluster::with(options(false));
    let client = cluster.client();
    let file = open(&client, "f");
    let owner = |chunk: u64| client.chunk_owner(file.ino, file.layout.unwrap(), chunk * CHUNK);
    let first = (1..).find(|chunk| owner(*chunk) != file.ino.home()).unwrap();
    let chunks = (first + 1..).find(|chunk| owner(*chunk) != owner(first)).unwrap() + 1;
    (0..3).for_each(|daemon| assert_eq!(client.request(daemon, &Request::Ping {}).unwrap(), Reply::Done {}));
    cluster.kill(owner(first).into());
    let data = vec![1; (chunks * CHUNK) as usize];
    assert_eq!(
        client.write(file.ino, 0, &data).unwrap() as u64,
        first * CHUNK,
        "the part before the dead daemon"
    );
    cluster.restart(owner(first).into());
    let client = cluster.client();
    resize(&client, file.ino, chunks * CHUNK);
    let hole = ((chunks - first) * CHUNK) as usize;
    assert_eq!(runs(&read_all(&client, file.ino)), [(1, (first * CHUNK) as usize), (0, hole)]);
    assert_eq!(client.get_attr(file.ino).unwrap().blocks, stored(&client, file.ino));
}

/// Without a daemon that may keep something of the file it gets no hole: an error says which; later it does.
#[test]
fn a_daemon_that_cannot_be_asked_is_named() {
    let mut cluster = Cluster::with(options(false));
    let client = cluster.client();
    let file = leave(&cluster, &client, "f");
    let other = (0..3).find(|daemon| *daemon != usize::from(file.ino.home())).unwrap();
    cluster.kill(other);
    let longer = SetAttr { size: Some(LEN), ..SetAttr::default() };
    let error = client.set_attr(file.ino, &longer, &cred()).unwrap_err();
    assert!(error.to_string().contains(&format!("node{other}")), "{error}");
    assert_eq!(size(&client, file.ino), 0);
    cluster.restart(other);
    let client = cluster.client();
    eventually("the daemon to be reached", || client.set_attr(file.ino, &longer, &cred()).is_ok());
    assert_eq!(runs(&read_all(&client, file.ino)), [(0, LEN as usize)]);
}

#[test]
fn a_removed_file_takes_its_leavings_along() {
    let cluster = Cluster::with(options(false));
    let client = cluster.client();
    let ino = leave(&cluster, &client, "f").ino;
    assert!(stored(&client, ino) > 0 && client.get_attr(ino).unwrap().blocks == 0);
    client.release(ino);
    client.unlink(Ino::ROOT, b"f", &cred()).unwrap();
    eventually("the data to go", || stored(&client, ino) == 0);
}

/// Writers who keep sizes to themselves cannot store anything again: what they begin after a death, or a start of the home, is
/// not taken for leavings.
#[test]
fn a_writer_that_tells_late_keeps_what_it_wrote() {
    for restart in [false, true] {
        let mut cluster = Cluster::with(options(false));
        let observer = cluster.client();
        let file = leave(&cluster, &observer, "f");
        observer.release(file.ino);
        if restart {
            cluster.kill(file.ino.home().into());
            cluster.restart(file.ino.home().into());
        }
        let writer = silent(&cluster);
        assert_eq!(open(&writer, "f").ino, file.ino);
        for at in [LEN + CHUNK, LEN + 5 * CHUNK, LEN + 3 * CHUNK] {
            assert_eq!(writer.write(file.ino, at, &vec![7; CHUNK as usize]).unwrap() as u64, CHUNK);
        }
        writer.settle(file.ino).unwrap();
        let (hole, chunk) = (CHUNK as usize, CHUNK as usize);
        let wanted = [(0, LEN as usize + hole), (7, chunk), (0, hole), (7, chunk), (0, hole), (7, chunk)];
        assert_eq!(runs(&read_all(&cluster.client(), file.ino)), wanted, "restarted {restart}");
    }
}

/// What one writer was told is stored, and has not told of yet, outweighs what another one has left.
#[test]
fn a_writer_that_tells_late_is_not_robbed_by_the_death_of_another() {
    let cluster = Cluster::with(options(false));
    let writer = silent(&cluster);
    let file = open(&writer, "f");
    let chunk = vec![7; CHUNK as usize];
    let far = LEN.next_multiple_of(CHUNK) + CHUNK;
    assert_eq!(writer.write(file.ino, far, &chunk).unwrap(), chunk.len());
    let other = cluster.client();
    leave(&cluster, &other, "f");
    resize(&other, file.ino, LEN);
    writer.settle(file.ino).unwrap();
    let mut found = vec![0; chunk.len()];
    assert_eq!(other.read(file.ino, far, &mut found).unwrap(), chunk.len());
    assert!(found == chunk, "{:?}", runs(&found));
    // When he has closed it, holes are empty again.
    writer.release(file.ino);
    assert_eq!(writer.request(file.ino.home(), &Request::Ping {}).unwrap(), Reply::Done {});
    resize(&other, file.ino, 0);
    leave(&cluster, &other, "f");
    resize(&other, file.ino, LEN);
    assert_eq!(runs(&read_all(&other, file.ino)), [(0, LEN as usize)]);
}

/// A writer, until it ends in whatever way.
struct Running<'c>(&'c AtomicUsize);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Writes all of it, however often the home dies meanwhile.
fn insist(client: &Client, ino: Ino, at: u64, data: &[u8]) {
    let mut done = 0;
    while done < data.len() {
        match client.write(ino, at + done as u64, &data[done..]) {
            Ok(count) => done += count,
            Err(error) => assert_eq!(error.errno(), Errno::EIO, "{error}"),
        }
    }
}

/// Living writers, each with blocks of its own further and further out, while others leave something behind the end and die, and
/// with `kills` the file's home is killed as well: what was acknowledged is there.
fn nobody_loses_anything(name: &str, kills: bool) {
    const WRITERS: u64 = 3;
    const WRITES: u64 = 250;
    let mut rng = Rng::from_env(name);
    let mut cluster = Cluster::with(options(false));
    let ino = open(&cluster.client(), "shared").ino;
    let home = usize::from(ino.home());
    let running = AtomicUsize::new(WRITERS as usize);
    let block = |writer: u64, number: u64| (number * (WRITERS + 1) + writer) * 5 * BLOCK;
    let (mut deaths, mut killed) = (0, 0);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (client, running) = (cluster.client(), Running(&running));
            assert_eq!(open(&client, "shared").ino, ino);
            scope.spawn(move || {
                let _running = running;
                for number in 0..WRITES {
                    // Some of them reach into the next chunk, some lie at home.
                    insist(&client, ino, block(writer, number), &[10 + writer as u8; 4 * BLOCK as usize]);
                }
                client.release(ino);
            });
        }
        while running.load(Ordering::Acquire) > 0 {
            let dying = silent(&cluster);
            assert_eq!(open(&dying, "shared").ino, ino);
            let ahead = size(&dying, ino) / (5 * BLOCK) / (WRITERS + 1) + rng.below(20);
            dying.write(ino, block(WRITERS, ahead), &[1; 4 * BLOCK as usize]).unwrap();
            die(dying);
            deaths += 1;
            if kills && rng.below(4) == 0 {
                cluster.kill(home);
                cluster.restart(home);
                killed += 1;
            }
        }
    });
    println!("{deaths} deaths, the home was killed {killed} times");
    let all = read_all(&cluster.client(), ino);
    for (writer, number) in (0..WRITERS).flat_map(|w| (0..WRITES).map(move |n| (w, n))) {
        let at = block(writer, number) as usize;
        let found = runs(&all[at..at + 4 * BLOCK as usize]);
        assert_eq!(found, [(10 + writer as u8, 4 * BLOCK as usize)], "write {number} of writer {writer}");
    }
    assert!(deaths > 0 && kills == (killed > 0));
}

#[test]
fn living_writers_lose_nothing_while_others_die() {
    nobody_loses_anything("living_writers_lose_nothing_while_others_die", false);
}

#[test]
fn living_writers_lose_nothing_while_others_and_the_home_die() {
    nobody_loses_anything("living_writers_lose_nothing_while_others_and_the_home_die", true);
}
