//! Flushing a pool on several tiers: ordered, limited, and only while nobody writes.

use std::path::{Path, PathBuf};
use std::time::Duration;
use tidepool_client::Client;
use tidepool_fsd::{FlushConfig, FlushWhen, TierConfig};
use tidepool_testkit::{
    Cluster, Options, Storage, bytes_of, counted, create_file, eventually, pool_on, read_all, write_all,
};
use tidepool_types::{Errno, Ino};
use tidepool_wire::message::{FlushTo, Reply, Request};

const MIB: usize = 1 << 20;
const UNIT: u64 = 128 << 10;

/// All goes to the burst buffer, and next to nothing is flushed.
fn tiers(storage: &Storage) -> TierConfig {
    TierConfig { flush_bandwidth: 1, ..storage.tiers("hp") }
}

/// Bytes above the tier, of all daemons.
fn order(client: &Client, to: FlushTo) -> u64 {
    let of = |daemon: u16| match client.request(daemon, &Request::Flush { to, bandwidth: u64::MAX }).unwrap()
    {
        Reply::FlushState { above, failures: 0, .. } => above,
        other => panic!("{other:?}"),
    };
    (0..client.members() as u16).map(of).sum()
}

/// Data large and small, on the nodes' own storage and on the burst buffer, all go to the tier named, and stay what they are.
#[test]
fn all_goes_where_it_is_ordered_to() {
    let storage = Storage::new();
    let mut cluster = Cluster::with(Options { daemons: 2, ..Options::default() });
    let own = cluster.client();
    let small: Vec<(Ino, Vec<u8>)> = (0..50)
        .map(|n| {
            let (ino, data) = (create_file(&own, &format!("s{n}")), bytes_of(100 * (n + 1), n as u8));
            write_all(&own, ino, 0, &data);
            own.fsync(ino).unwrap();
            (ino, data)
        })
        .collect();
    drop(own);
    cluster.give_tiers(tiers(&storage));
    let client = cluster.client();
    let (ino, data) = (create_file(&client, "f"), bytes_of(6 * MIB, 1));
    write_all(&client, ino, 0, &data);
    let tier = |name: &str| counted(&client, &format!("tier_{name}_bytes"));
    assert!(tier("local") > 0 && tier("burst") > 0, "{} and {}", tier("local"), tier("burst"));
    let all = tier("local") + tier("burst") + tier("pfs");
    eventually("all to be on the burst buffer", || order(&client, FlushTo::Burst) == 0);
    assert_eq!((tier("local"), tier("burst") + tier("pfs")), (0, all));
    eventually("all to be on the last tier", || order(&client, FlushTo::Last) == 0);
    assert_eq!((tier("local"), tier("burst"), tier("pfs")), (0, 0, all));
    assert!(read_all(&client, ino, data.len()) == data);
    for (ino, data) in &small {
        assert!(read_all(&client, *ino, data.len()) == *data);
    }
}

/// While an order stands, new data go where it flushes to, so that a program that writes all the time does not keep it from
/// being done; afterwards they go where the strategy says again.
#[test]
fn what_is_written_meanwhile_goes_there_too() {
    let storage = Storage::new();
    let cluster = pool_on(tiers(&storage));
    let client = cluster.client();
    let (ino, data) = (create_file(&client, "f"), bytes_of(MIB, 1));
    let mut at = 0;
    let mut go_on = || {
        write_all(&client, ino, at, &data);
        at += data.len() as u64;
    };
    go_on();
    eventually("the burst buffer to be empty", || {
        go_on();
        order(&client, FlushTo::Pfs) == 0
    });
    eventually("the strategy to be asked again", || {
        std::thread::sleep(Duration::from_millis(500));
        go_on();
        counted(&client, "tier_burst_bytes") > 0
    });
    // What is moved between two of these questions is missed or counted twice.
    eventually("everything to be counted once", || {
        let tiers = ["tier_local_bytes", "tier_burst_bytes", "tier_pfs_bytes"];
        tiers.map(|tier| counted(&client, tier)).iter().sum::<u64>() == at
    });
}

#[test]
fn what_cannot_be_done_is_refused() {
    let storage = Storage::new();
    let refused = |cluster: &Cluster, to: FlushTo| {
        let request = Request::Flush { to, bandwidth: 0 };
        match cluster.client().request(0, &request).unwrap() {
            Reply::Failed { errno, detail } => (errno, detail),
            other => panic!("{other:?}"),
        }
    };
    let (errno, said) = refused(&Cluster::start(1), FlushTo::Last);
    assert!(errno == Errno::EOPNOTSUPP && said.contains("there is nowhere to flush them to"), "{said}");
    for (to, said, without) in [
        (FlushTo::Pfs, "the pool has no parallel file system", TierConfig { pfs: None, ..tiers(&storage) }),
        (FlushTo::Burst, "the pool has no burst buffer", TierConfig { burst: None, ..tiers(&storage) }),
    ] {
        let (errno, text) = refused(&pool_on(without), to);
        assert!(errno == Errno::EINVAL && text.contains(said), "{text}");
    }
}

/// Directories in the place of files that a flush would make: it fails until they are gone.
struct InTheWay(Vec<PathBuf>);

impl InTheWay {
    /// In the stores on `pfs`, of all that is on `burst` only.
    fn put(burst: &Path, pfs: &Path) -> InTheWay {
        let mut put = InTheWay(Vec::new());
        for entry in std::fs::read_dir(burst).unwrap().flatten() {
            let there = pfs.join(entry.file_name());
            if entry.path().is_dir() {
                std::fs::create_dir_all(&there).unwrap();
                put.0.extend(InTheWay::put(&entry.path(), &there).0);
            } else if !there.exists() {
                std::fs::create_dir(&there).unwrap();
                put.0.push(there);
            }
        }
        put
    }

    fn remove(self) {
        self.0.iter().for_each(|dir| std::fs::remove_dir(dir).unwrap());
    }
}

/// A tier that fails is told of; when it is well again the flush goes on.
#[test]
fn failures_are_told() {
    let storage = Storage::new();
    let flush = FlushConfig { when: FlushWhen::Idle, ..FlushConfig::default() };
    let cluster = pool_on(TierConfig { flush, ..tiers(&storage) });
    let client = cluster.client();
    // Two: in the first moment of a phase each daemon may begin to flush one, and stops there for its limit.
    let (files, data) = (["f", "g"].map(|name| create_file(&client, name)), bytes_of(3 * MIB, 1));
    files.iter().for_each(|ino| write_all(&client, *ino, 0, &data));
    let stores = |tier: &str| storage.dir(tier).join("tidepool-stores");
    let in_the_way = InTheWay::put(&stores("burst"), &stores("pfs"));
    assert!(!in_the_way.0.is_empty());
    let ask = |daemon: u16, bandwidth: u64| match client
        .request(daemon, &Request::Flush { to: FlushTo::Last, bandwidth })
        .unwrap()
    {
        Reply::FlushState { above, failures, detail, .. } => (above, failures, detail),
        other => panic!("{other:?}"),
    };
    eventually("three failures", || {
        let (above, failures, detail) = ask(0, u64::MAX - 1);
        assert!(failures == 0 || (above > 0 && detail.contains("Is a directory")), "{detail}");
        failures >= 3
    });
    in_the_way.remove();
    eventually("all to be on the last tier", || ask(0, u64::MAX).0 + ask(1, u64::MAX).0 == 0);
    assert!(files.iter().all(|ino| read_all(&client, *ino, data.len()) == data));
}

/// With `idle` nothing is flushed while a program writes, whatever the strategy says, and everything when it does not.
#[test]
fn idle_flushes_while_nobody_writes() {
    let storage = Storage::new();
    let flush = FlushConfig { when: FlushWhen::Idle, ..FlushConfig::default() };
    let cluster = pool_on(TierConfig { flush_bandwidth: 0, flush, ..tiers(&storage) });
    let client = cluster.client();
    let (ino, part) = (create_file(&client, "f"), bytes_of(300_000, 1));
    for round in 0..40 {
        write_all(&client, ino, round * part.len() as u64, &part);
        std::thread::sleep(Duration::from_millis(50));
    }
    let all = 40 * part.len() as u64;
    // Each of two daemons may have begun in the moment before it heard of the first bytes.
    assert!(counted(&client, "flushed_bytes") <= 2 * UNIT, "a phase went on all the time");
    eventually("it to be flushed", || {
        counted(&client, "tier_burst_bytes") == 0 && counted(&client, "flushed_bytes") >= all
    });
}

/// A limit on a tier keeps flushes to that one from going on, not those to another one.
#[test]
fn each_tier_has_a_limit_of_its_own() {
    let storage = Storage::new();
    let flush = FlushConfig { when: FlushWhen::Idle, to_pfs: 1, ..FlushConfig::default() };
    let limited = pool_on(TierConfig { flush_bandwidth: 0, flush, ..tiers(&storage) });
    let client = limited.client();
    let ino = create_file(&client, "f");
    write_all(&client, ino, 0, &bytes_of(8 * MIB, 1));
    eventually("the first unit to be flushed", || counted(&client, "flushed_bytes") > 0);
    std::thread::sleep(Duration::from_secs(1));
    assert!(counted(&client, "flushed_bytes") <= 2 * UNIT, "each of two daemons has flushed one unit");
    let flush = FlushConfig { to_burst: 1, to_pfs: 0, ..flush };
    let other = pool_on(TierConfig { flush_bandwidth: 0, flush, ..tiers(&storage) });
    let client = other.client();
    let ino = create_file(&client, "f");
    write_all(&client, ino, 0, &bytes_of(8 * MIB, 1));
    eventually("all to be flushed", || counted(&client, "flushed_bytes") == 8 * MIB as u64);
}
