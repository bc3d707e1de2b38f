//! A pool on several tiers: programs see one file system, wherever their data lie (INVENTORY K3 to K6, K10).

use std::path::PathBuf;
use tempfile::TempDir;
use tidepool_client::Client;
use tidepool_fsd::TierConfig;
use tidepool_testkit::{Cluster, Options, cred, eventually};
use tidepool_types::Ino;
use tidepool_wire::message::{Reply, Request};

const MIB: usize = 1 << 20;

/// Shared storage of several pools.
struct Storage(TempDir);

impl Storage {
    fn new() -> Storage {
        let dir = TempDir::new().unwrap();
        for name in ["burst", "pfs"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        Storage(dir)
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn tiers(&self, strategy: &str) -> TierConfig {
        let (burst, pfs) = (Some(self.dir("burst")), Some(self.dir("pfs")));
        TierConfig { burst, pfs, strategy: strategy.into(), ..TierConfig::default() }
    }

    fn pool(&self, tiers: TierConfig) -> Cluster {
        Cluster::with(Options { daemons: 2, tiers: Some(tiers), ..Options::default() })
    }
}

fn create(client: &Client, name: &str) -> Ino {
    let flags = libc::O_CREAT | libc::O_RDWR;
    client.open(Ino::ROOT, name.as_bytes(), flags, 0o644, &cred()).unwrap().inside().unwrap().ino
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ (at / 251) as u8 ^ seed).collect()
}

fn write(client: &Client, ino: Ino, offset: u64, data: &[u8]) {
    let mut done = 0;
    while done < data.len() {
        done += client.write(ino, offset + done as u64, &data[done..]).unwrap();
    }
}

fn read(client: &Client, ino: Ino, len: usize) -> Vec<u8> {
    let (mut data, mut done) = (vec![0; len], 0);
    while done < len {
        let count = client.read(ino, done as u64, &mut data[done..]).unwrap();
        assert!(count > 0, "data are missing from {done}");
        done += count;
    }
    data
}

/// What all daemons count under a name.
fn count(client: &Client, name: &str) -> u64 {
    let of = |daemon: u16| {
        let Reply::Report { status } = client.request(daemon, &Request::Status {}).unwrap() else {
            panic!("a daemon tells its status");
        };
        assert_eq!(status.trouble, "");
        status.counters.iter().find(|(counter, _)| counter == name).expect("it counts that").1
    };
    (0..client.members() as u16).map(of).sum()
}

/// K5: all data go to the parallel file system.
#[test]
fn baseline_uses_the_parallel_file_system_only() {
    let storage = Storage::new();
    let cluster = storage.pool(storage.tiers("baseline"));
    let client = cluster.client();
    let (ino, data) = (create(&client, "f"), pattern(5 * MIB, 1));
    write(&client, ino, 0, &data);
    assert_eq!(count(&client, "tier_local_bytes"), 0);
    assert_eq!(count(&client, "tier_burst_bytes"), 0);
    assert_eq!(count(&client, "tier_pfs_bytes"), data.len() as u64);
    assert!(read(&client, ino, data.len()) == data);
}

/// K6, K10: data go to the burst buffer first, and from there to the parallel file system, without anybody noticing.
#[test]
fn hp_writes_to_the_burst_buffer_and_flushes() {
    let storage = Storage::new();
    let slowly = TierConfig { flush_bandwidth: 2 * MIB as u64, ..storage.tiers("hp") };
    let cluster = storage.pool(slowly);
    let client = cluster.client();
    let (ino, mut data) = (create(&client, "f"), pattern(8 * MIB, 1));
    write(&client, ino, 0, &data);
    assert_eq!(count(&client, "tier_local_bytes"), 0);
    assert!(count(&client, "tier_burst_bytes") > 0);
    // While it moves: reading, writing over, holes, growing, shrinking.
    let mut round = 0u8;
    while count(&client, "tier_burst_bytes") > 0 {
        round = round.wrapping_add(1);
        let at = usize::from(round) * 37_000 % (7 * MIB);
        let part = pattern(60_000, round);
        write(&client, ino, at as u64, &part);
        data[at..at + part.len()].copy_from_slice(&part);
        assert!(read(&client, ino, data.len()) == data, "round {round}");
    }
    assert_eq!(count(&client, "tier_pfs_bytes"), data.len() as u64);
    eventually("it to be counted", || count(&client, "flushed_bytes") >= data.len() as u64);
    assert!(read(&client, ino, data.len()) == data);
    client.unlink(Ino::ROOT, b"f", &cred()).unwrap();
    client.release(ino);
    eventually("its space to come back", || count(&client, "tier_pfs_bytes") == 0);
}

/// A file whose parts lie on three tiers is one file (K3).
#[test]
fn a_file_on_all_tiers_is_one() {
    let storage = Storage::new();
    let mut cluster = storage.pool(TierConfig { flush_bandwidth: 1, ..storage.tiers("hp") });
    let client = cluster.client();
    let (ino, data) = (create(&client, "f"), pattern(6 * MIB, 3));
    write(&client, ino, 0, &data[..3 * MIB]);
    eventually("some of it to be flushed", || count(&client, "tier_pfs_bytes") > 0);
    assert!(count(&client, "tier_burst_bytes") > 0);
    write(&client, ino, 3 * MIB as u64, &data[3 * MIB..]);
    assert!(read(&client, ino, data.len()) == data);
    client.fsync(ino).unwrap();
    for daemon in 0..2 {
        cluster.kill(daemon);
        cluster.restart(daemon);
    }
    let client = cluster.client();
    assert!(count(&client, "tier_burst_bytes") > 0 && count(&client, "tier_pfs_bytes") > 0);
    assert!(read(&client, ino, data.len()) == data);
}

/// K7: a pool that writes leaves the burst buffer to another one that writes there already; when that has ended, the rest of
/// what is written goes there, too (K11).
#[test]
fn ia_keeps_two_pools_out_of_each_others_way() {
    let storage = Storage::new();
    let mut keep = storage.tiers("ia");
    keep.flush_bandwidth = 1;
    let (first, second) = (storage.pool(keep.clone()), storage.pool(keep));
    let clients = [first.client(), second.client()];
    let files = clients.each_ref().map(|client| create(client, "f"));
    let (part, mut at) = (pattern(200_000, 1), 0);
    let mut write_on = |who: &[usize], rounds: usize| {
        for _ in 0..rounds {
            who.iter().for_each(|who| write(&clients[*who], files[*who], at, &part));
            at += part.len() as u64;
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    };
    write_on(&[0], 30);
    let burst = |who: usize| count(&clients[who], "tier_burst_bytes");
    let pfs = |who: usize| count(&clients[who], "tier_pfs_bytes");
    assert!(burst(0) > 0, "alone it has the burst buffer");
    write_on(&[0, 1], 60);
    // It may take a second until the second one hears of the first.
    assert!(pfs(1) > burst(1), "{} on the file system, {} in the burst buffer", pfs(1), burst(1));
    let before = burst(1);
    write_on(&[1], 60);
    assert!(burst(1) > before, "the rest goes where it is free now");
}

/// A burst buffer alone is the last tier, whatever a strategy would send further.
#[test]
fn a_burst_buffer_without_a_parallel_file_system() {
    for strategy in ["hp", "ia"] {
        let storage = Storage::new();
        let mut cluster = storage.pool(TierConfig { pfs: None, ..storage.tiers(strategy) });
        let client = cluster.client();
        let (ino, data) = (create(&client, "f"), pattern(3 * MIB, 1));
        write(&client, ino, 0, &data);
        client.fsync(ino).unwrap();
        drop(client);
        cluster.kill(0);
        cluster.restart(0);
        let client = cluster.client();
        assert_eq!(count(&client, "tier_burst_bytes"), data.len() as u64);
        assert_eq!(count(&client, "tier_local_bytes"), 0);
        assert!(read(&client, ino, data.len()) == data);
    }
}

/// Directories that are named are left as they were.
#[test]
fn nothing_is_left_on_shared_storage() {
    let storage = Storage::new();
    let cluster = storage.pool(storage.tiers("hp"));
    let client = cluster.client();
    let ino = create(&client, "f");
    write(&client, ino, 0, &pattern(MIB, 1));
    for daemon in 0..2 {
        client.request(daemon, &Request::Shutdown { wipe: true }).unwrap();
    }
    for tier in ["burst", "pfs"] {
        let stores = storage.dir(tier).join("tidepool-stores");
        eventually("the stores to go", || {
            std::fs::read_dir(&stores).is_ok_and(|mut dir| dir.next().is_none())
        });
    }
}
