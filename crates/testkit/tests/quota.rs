//! Quotas in bytes and in objects.

use tidepool_client::{Client, FsError};
use tidepool_testkit::{Cluster, Options, cred};
use tidepool_types::{Errno, Ino, SetAttr};

const BYTES: u64 = 1 << 20;

fn open(client: &Client, name: &str) -> Result<Ino, FsError> {
    let flags = libc::O_RDWR | libc::O_CREAT;
    let opened = client.open(Ino::ROOT, name.as_bytes(), flags, 0o644, &cred())?;
    Ok(opened.inside()?.ino)
}

/// Appends until it fails; how much was stored, and the error.
fn fill(client: &Client, ino: Ino, step: usize) -> (u64, Errno) {
    let mut at = 0;
    loop {
        match client.write(ino, at, &vec![7; step]) {
            Ok(count) => at += count as u64,
            Err(error) => return (at, error.errno()),
        }
    }
}

#[test]
fn bytes_are_limited_and_come_back() {
    for daemons in [1, 3] {
        let options = Options { daemons, quota_bytes: BYTES, ..Options::default() };
        let cluster = Cluster::with(options);
        let client = cluster.client();
        let total = BYTES * daemons as u64;
        let stat = client.stat_fs().unwrap();
        assert_eq!(stat.blocks * stat.block_size, total, "what programs see is the quota");
        let ino = open(&client, "f").unwrap();
        let (stored, error) = fill(&client, ino, 10_000);
        assert_eq!(error, Errno::EDQUOT);
        // Chunks of one file spread over the daemons evenly, but not exactly.
        assert!(stored <= total && stored > total / 2, "{daemons} daemons: {stored}");
        // What is there can be overwritten, read, cut and removed.
        assert_eq!(client.write(ino, 0, &[8; 100_000]).unwrap(), 100_000);
        let mut got = vec![0; 100_000];
        assert_eq!(client.read(ino, 0, &mut got).unwrap(), 100_000);
        assert!(got.iter().all(|b| *b == 8));
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        client.set_attr(ino, &set, &cred()).unwrap();
        assert_eq!(client.write(ino, 0, &[9; 500_000]).unwrap(), 500_000, "there is room again");
        client.release(ino);
        client.unlink(Ino::ROOT, b"f", &cred()).unwrap();
        let ino = open(&client, "g").unwrap();
        assert_eq!(fill(&client, ino, 10_000).1, Errno::EDQUOT);
    }
}

#[test]
fn writers_at_the_same_time_stay_within_it() {
    let cluster = Cluster::with(Options { daemons: 1, quota_bytes: BYTES, ..Options::default() });
    let stored: u64 = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|n| {
                let client = cluster.client();
                scope.spawn(move || {
                    let ino = open(&client, &format!("f{n}")).unwrap();
                    let (stored, error) = fill(&client, ino, 8192);
                    assert_eq!(error, Errno::EDQUOT);
                    stored
                })
            })
            .collect();
        writers.into_iter().map(|w| w.join().unwrap()).sum()
    });
    assert!(stored <= BYTES && stored > BYTES - 4 * 8192, "{stored}");
}

#[test]
fn objects_are_limited_and_come_back() {
    let cluster = Cluster::with(Options { daemons: 1, quota_objects: 5, ..Options::default() });
    let client = cluster.client();
    // The root is one of them.
    for n in 0..4 {
        client.release(open(&client, &format!("f{n}")).unwrap());
    }
    assert_eq!(open(&client, "more").unwrap_err().errno(), Errno::EDQUOT);
    assert_eq!(client.mkdir(Ino::ROOT, b"d", 0o755, &cred()).unwrap_err().errno(), Errno::EDQUOT);
    open(&client, "f1").expect("what is there can be opened");
    client.link(Ino::ROOT, b"f2", Ino::ROOT, b"another", false, &cred()).expect("a name is no object");
    client.unlink(Ino::ROOT, b"f3", &cred()).unwrap();
    open(&client, "more").expect("there is room again");
}
