//! Turns and shares of tiers that several pools use at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;
use tidepool_client::Client;
use tidepool_fsd::TierConfig;
use tidepool_testkit::{Cluster, Storage, counted, create_file, eventually, pool_on};
use tidepool_types::Ino;

fn three(shared: &Storage) -> Vec<Cluster> {
    (0..3).map(|_| pool_on(shared.tiers("fcfs"))).collect()
}

/// Writes on, a little at a time, until it is told to stop.
fn write_until(stop: &AtomicBool, client: &Client, ino: Ino) {
    let data = vec![7; 1 << 20];
    let mut at = 0;
    while !stop.load(Ordering::Relaxed) {
        at += client.write(ino, at % (64 << 20), &data).unwrap() as u64;
        sleep(Duration::from_millis(20));
    }
}

/// Two tiers, three pools: the third one writes nothing before one of the others has ended, and then goes where that was.
#[test]
fn who_comes_third_waits_for_its_turn() {
    let shared = Storage::new();
    let pools: Vec<Cluster> = three(&shared);
    let clients: Vec<Client> = pools.iter().map(Cluster::client).collect();
    let files: Vec<Ino> = clients.iter().map(|client| create_file(client, "f")).collect();
    let (stop, stop_all, done) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
    let written = |who: usize| counted(&clients[who], "bytes_written");
    scope(|threads| {
        threads.spawn(|| write_until(&stop, &clients[0], files[0]));
        eventually("the first to be at the burst buffer", || counted(&clients[0], "tier_burst_bytes") > 0);
        sleep(Duration::from_millis(500));
        threads.spawn(|| write_until(&stop_all, &clients[1], files[1]));
        eventually("the second to be at the file system", || counted(&clients[1], "tier_pfs_bytes") > 0);
        sleep(Duration::from_millis(500));
        let before = counted(&clients[1], "tier_burst_bytes");
        threads.spawn(|| {
            clients[2].write(files[2], 0, &vec![1; 4 << 20]).unwrap();
            done.store(true, Ordering::Relaxed);
        });
        eventually("the third to ask", || counted(&clients[2], "held_back_ms") > 1_000);
        assert!(!done.load(Ordering::Relaxed) && written(2) == 0, "{} bytes came", written(2));
        assert_eq!(counted(&clients[1], "tier_burst_bytes"), before, "the second stays where it is");
        stop.store(true, Ordering::Relaxed);
        eventually("the third to write", || done.load(Ordering::Relaxed));
        stop_all.store(true, Ordering::Relaxed);
    });
    assert_eq!(written(2), 4 << 20);
}

/// The one who has the turn dies without a word. After some seconds its news are late, and nobody waits for it.
#[test]
fn nobody_waits_for_the_dead() {
    let shared = Storage::new();
    let mut pools: Vec<Cluster> = three(&shared);
    let clients: Vec<Client> = pools.iter().map(Cluster::client).collect();
    let files: Vec<Ino> = clients.iter().map(|client| create_file(client, "f")).collect();
    for who in 0..2 {
        clients[who].write(files[who], 0, &vec![7; 4 << 20]).unwrap();
        // Shorter than a pause that ends a phase, long enough for others to hear of it.
        sleep(Duration::from_millis(300));
        for daemon in 0..2 {
            pools[who].kill(daemon);
        }
    }
    let all = vec![1; 4 << 20];
    assert_eq!(clients[2].write(files[2], 0, &all).unwrap(), all.len());
    assert!(counted(&clients[2], "held_back_ms") > 1_000, "it did wait");
}

/// No turn will come on shared storage without room: data go to the nodes' own, or fail where that is not to be used.
#[test]
fn nobody_waits_for_a_turn_on_full_storage() {
    let Some((disk, shared)) = Storage::small(4 << 20) else { return };
    let pool = |no_local| pool_on(TierConfig { no_local, ..shared.tiers("fcfs") });
    let (own, strict) = (pool(false), pool(true));
    disk.fill();
    let (own, strict) = (own.client(), strict.client());
    let data = vec![1; 2 << 20];
    // Until the schedulers have seen that it is full, data may be sent there, and fall from tier to tier.
    sleep(Duration::from_millis(500));
    assert_eq!(own.write(create_file(&own, "f"), 0, &data).unwrap(), data.len());
    assert_eq!(counted(&own, "tier_local_bytes"), data.len() as u64);
    let failed = strict.write(create_file(&strict, "f"), 0, &data).unwrap_err();
    assert_eq!(failed.errno(), tidepool_types::Errno::ENOSPC);
}
