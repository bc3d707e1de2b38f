//! A pool on several tiers: programs see one file system, wherever their data lie (INVENTORY K3 to K6, K10).

use tidepool_fsd::TierConfig;
use tidepool_testkit::{
    Storage, bytes_of, counted, create_file, cred, eventually, pool_on, read_all, write_all,
};
use tidepool_types::Ino;
use tidepool_wire::message::Request;

const MIB: usize = 1 << 20;

/// K5: all data go to the parallel file system.
#[test]
fn baseline_uses_the_parallel_file_system_only() {
    let storage = Storage::new();
    let cluster = pool_on(storage.tiers("baseline"));
    let client = cluster.client();
    let (ino, data) = (create_file(&client, "f"), bytes_of(5 * MIB, 1));
    write_all(&client, ino, 0, &data);
    assert_eq!(counted(&client, "tier_local_bytes"), 0);
    assert_eq!(counted(&client, "tier_burst_bytes"), 0);
    assert_eq!(counted(&client, "tier_pfs_bytes"), data.len() as u64);
    assert!(read_all(&client, ino, data.len()) == data);
}

/// K6, K10: data go to the burst buffer first, and from there to the parallel file system, without anybody noticing.
#[test]
fn hp_writes_to_the_burst_buffer_and_flushes() {
    let storage = Storage::new();
    let slowly = TierConfig { flush_bandwidth: 2 * MIB as u64, ..storage.tiers("hp") };
    let cluster = pool_on(slowly);
    let client = cluster.client();
    let (ino, mut data) = (create_file(&client, "f"), bytes_of(8 * MIB, 1));
    write_all(&client, ino, 0, &data);
    assert_eq!(counted(&client, "tier_local_bytes"), 0);
    assert!(counted(&client, "tier_burst_bytes") > 0);
    // While it moves: reading, writing over, holes, growing, shrinking.
    let mut round = 0u8;
    while counted(&client, "tier_burst_bytes") > 0 {
        round = round.wrapping_add(1);
        let at = usize::from(round) * 37_000 % (7 * MIB);
        let part = bytes_of(60_000, round);
        write_all(&client, ino, at as u64, &part);
        data[at..at + part.len()].copy_from_slice(&part);
        assert!(read_all(&client, ino, data.len()) == data, "round {round}");
    }
    assert_eq!(counted(&client, "tier_pfs_bytes"), data.len() as u64);
    eventually("it to be counted", || counted(&client, "flushed_bytes") >= data.len() as u64);
    assert!(read_all(&client, ino, data.len()) == data);
    client.unlink(Ino::ROOT, b"f", &cred()).unwrap();
    client.release(ino);
    eventually("its space to come back", || counted(&client, "tier_pfs_bytes") == 0);
}

/// Data that move are nobody's to read or write without the daemon; who has heard so does not ask again.
#[test]
fn files_are_asked_for_once() {
    let storage = Storage::new();
    let cluster = pool_on(storage.tiers("baseline"));
    let client = cluster.client();
    let ino = create_file(&client, "f");
    let small = |count: u64| {
        for at in 0..count {
            client.write(ino, at, b"x").unwrap();
            client.read(ino, at, &mut [0]).unwrap();
        }
        counted(&client, "requests")
    };
    let few = small(200);
    let many = small(2000);
    let beside = |from: u64, to: u64, count: u64| to - from - 2 * count;
    // What is left are the questions for these counts.
    assert_eq!(beside(few, many, 2000), beside(many, small(100), 100));
    assert_eq!((client.bytes_written_direct(), client.bytes_uncopied()), (0, 0));
}

/// A file whose parts lie on three tiers is one file (K3).
#[test]
fn a_file_on_all_tiers_is_one() {
    let storage = Storage::new();
    let mut cluster = pool_on(TierConfig { flush_bandwidth: 1, ..storage.tiers("hp") });
    let client = cluster.client();
    let (ino, data) = (create_file(&client, "f"), bytes_of(6 * MIB, 3));
    write_all(&client, ino, 0, &data[..3 * MIB]);
    eventually("some of it to be flushed", || counted(&client, "tier_pfs_bytes") > 0);
    assert!(counted(&client, "tier_burst_bytes") > 0);
    write_all(&client, ino, 3 * MIB as u64, &data[3 * MIB..]);
    assert!(read_all(&client, ino, data.len()) == data);
    client.fsync(ino).unwrap();
    for daemon in 0..2 {
        cluster.kill(daemon);
        cluster.restart(daemon);
    }
    let client = cluster.client();
    assert!(counted(&client, "tier_burst_bytes") > 0 && counted(&client, "tier_pfs_bytes") > 0);
    assert!(read_all(&client, ino, data.len()) == data);
}

/// K7: a pool that writes leaves the burst buffer to another one that writes there already; when that has ended, the rest of
/// what is written goes there, too (K11).
#[test]
fn ia_keeps_two_pools_out_of_each_others_way() {
    let storage = Storage::new();
    let mut keep = storage.tiers("ia");
    keep.flush_bandwidth = 1;
    let (first, second) = (pool_on(keep.clone()), pool_on(keep));
    let clients = [first.client(), second.client()];
    let files = clients.each_ref().map(|client| create_file(client, "f"));
    let (part, mut at) = (bytes_of(200_000, 1), 0);
    let mut write_on = |who: &[usize], rounds: usize| {
        for _ in 0..rounds {
            who.iter().for_each(|who| write_all(&clients[*who], files[*who], at, &part));
            at += part.len() as u64;
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    };
    write_on(&[0], 30);
    let burst = |who: usize| counted(&clients[who], "tier_burst_bytes");
    let pfs = |who: usize| counted(&clients[who], "tier_pfs_bytes");
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
        let mut cluster = pool_on(TierConfig { pfs: None, ..storage.tiers(strategy) });
        let client = cluster.client();
        let (ino, data) = (create_file(&client, "f"), bytes_of(3 * MIB, 1));
        write_all(&client, ino, 0, &data);
        client.fsync(ino).unwrap();
        drop(client);
        cluster.kill(0);
        cluster.restart(0);
        let client = cluster.client();
        assert_eq!(counted(&client, "tier_burst_bytes"), data.len() as u64);
        assert_eq!(counted(&client, "tier_local_bytes"), 0);
        assert!(read_all(&client, ino, data.len()) == data);
    }
}

/// Directories that are named are left as they were.
#[test]
fn nothing_is_left_on_shared_storage() {
    let storage = Storage::new();
    let cluster = pool_on(storage.tiers("hp"));
    let client = cluster.client();
    let ino = create_file(&client, "f");
    write_all(&client, ino, 0, &bytes_of(MIB, 1));
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
