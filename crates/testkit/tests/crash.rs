//! Crash tests: daemons are killed with `kill -9` at random moments while clients write.
//!
//! They prove: no client hangs; errors name the node; everything acknowledged by fsync is
//! there after a restart; a rename happens wholly or not at all; metadata and checksums
//! stay consistent.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidepool_client::{Client, FsError};
use tidepool_testkit::{Cluster, Options, Rng, cred};
use tidepool_types::{Errno, Ino};
use tidepool_wire::message::{Reply, Request};

/// Moments at which a daemon is killed; `make test-all` sets more.
fn kills() -> usize {
    std::env::var("TIDEPOOL_KILLS").ok().and_then(|t| t.parse().ok()).unwrap_or(24)
}

/// How long a client may take to learn that a daemon died (the bar).
const NOTICE_MAX: Duration = Duration::from_secs(5);

/// What a writer was told: for each file the last generation that was fsynced, and the
/// last that was begun.
type Promises = BTreeMap<String, (u64, u64)>;

const FILE_LEN: usize = 200_000;

/// Content of a file's generation: every 8 bytes tell generation and place.
fn content(generation: u64) -> Vec<u8> {
    (0..FILE_LEN / 8).flat_map(|i| (generation << 32 | i as u64).to_le_bytes()).collect()
}

/// One file written anew under a temporary name, synced, and renamed.
fn write_file(client: &Client, name: &str, generation: u64) -> Result<(), FsError> {
    let temporary = format!("{name}.tmp");
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
    let attr = client.open(Ino::ROOT, temporary.as_bytes(), flags, 0o644, &cred())?.inside()?;
    let result = (|| {
        let data = content(generation);
        let mut done = 0;
        while done < data.len() {
            done += client.write(attr.ino, done as u64, &data[done..])?;
        }
        client.fsync(attr.ino)?;
        client.rename(Ino::ROOT, temporary.as_bytes(), Ino::ROOT, name.as_bytes(), 0, &cred())?;
        client.fsync(attr.ino)
    })();
    client.release(attr.ino);
    result
}

/// Writes files round and round until told to stop; the first error ends it as well.
fn writer(client: &Client, number: usize, stop: &AtomicBool) -> (Promises, Option<FsError>) {
    let mut promises = Promises::new();
    for generation in 1.. {
        let name = format!("w{number}-{}", generation % 4);
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let entry = promises.entry(name.clone()).or_default();
        entry.1 = generation;
        match write_file(client, &name, generation) {
            Ok(()) => entry.0 = generation,
            Err(error) => return (promises, Some(error)),
        }
    }
    (promises, None)
}

fn read_generation(client: &Client, name: &str) -> Option<u64> {
    let attr = match client.open(Ino::ROOT, name.as_bytes(), libc::O_RDONLY, 0, &cred()) {
        Ok(found) => found.inside().unwrap(),
        Err(error) if error.errno() == Errno::ENOENT => return None,
        Err(error) => panic!("{name}: {error}"),
    };
    let mut data = vec![0; FILE_LEN + 1];
    let count = client.read(attr.ino, 0, &mut data).unwrap_or_else(|e| panic!("{name}: {e}"));
    client.release(attr.ino);
    assert_eq!(count, FILE_LEN, "{name} is not whole");
    let generation = u64::from_le_bytes(data[..8].try_into().unwrap()) >> 32;
    assert!(data[..FILE_LEN] == content(generation), "{name} mixes generations");
    Some(generation)
}

fn scrub(client: &Client) {
    for daemon in 0..client.members() as u16 {
        let mut after = None;
        loop {
            let reply = client.request(daemon, &Request::Scrub { after, max: 64 }).unwrap();
            let Reply::Scrubbed { objects, more } = reply else { panic!("{reply:?}") };
            for object in &objects {
                assert!(object.bad.is_empty(), "bad blocks of {} on {daemon}: {:?}", object.ino, object.bad);
            }
            after = objects.last().map(|o| o.ino);
            if !more {
                break;
            }
        }
    }
}

/// A daemon is killed again and again while four clients write, sync and rename.
#[test]
fn acknowledged_data_survives_kill_9() {
    survives_kill_9("acknowledged_data_survives_kill_9", Options::default());
}

/// The same while all that is written goes to a burst buffer first, and from there to the parallel file system.
#[test]
fn acknowledged_data_on_several_tiers_survives_kill_9() {
    let shared = tempfile::TempDir::new().unwrap();
    let dir = |name: &str| {
        let dir = shared.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        Some(dir)
    };
    let (burst, pfs, strategy) = (dir("burst"), dir("pfs"), "hp".to_string());
    let tiers = Some(tidepool_fsd::TierConfig { burst, pfs, strategy, ..Default::default() });
    let flushed = survives_kill_9(
        "acknowledged_data_on_several_tiers_survives_kill_9",
        Options { tiers, ..Options::default() },
    );
    assert!(flushed > 0, "nothing was ever flushed");
}

/// Bytes that daemons with several tiers have flushed.
fn survives_kill_9(test: &str, options: Options) -> u64 {
    let (mut rng, mut flushed) = (Rng::from_env(test), 0);
    let mut cluster = Cluster::with(Options { daemons: 3, ..options });
    let mut promised = Promises::new();
    for round in 0..kills() {
        let stop = AtomicBool::new(false);
        let victim = rng.below(3) as usize;
        let pause = Duration::from_micros(rng.below(60_000));
        let clients: Vec<Client> = (0..4).map(|_| cluster.client()).collect();
        let ended: Vec<(Promises, Option<FsError>)> = std::thread::scope(|scope| {
            let writers: Vec<_> = clients
                .iter()
                .enumerate()
                .map(|(i, client)| {
                    scope.spawn({
                        let stop = &stop;
                        move || writer(client, i, stop)
                    })
                })
                .collect();
            std::thread::sleep(pause);
            cluster.kill(victim);
            let killed = Instant::now();
            stop.store(true, Ordering::Relaxed);
            let ended = writers.into_iter().map(|w| w.join().unwrap()).collect();
            assert!(killed.elapsed() < NOTICE_MAX, "round {round}: a client took {:?}", killed.elapsed());
            ended
        });
        for (promises, error) in ended {
            if let Some(error) = error {
                let text = error.to_string();
                assert!(
                    text.contains(&format!("node{victim}")),
                    "round {round}: '{text}' does not name the node"
                );
            }
            for (name, (synced, begun)) in promises {
                let before = promised.get(&name).map_or(0, |p| p.0);
                promised.insert(name, (if synced > 0 { synced } else { before }, begun));
            }
        }
        cluster.restart(victim);
        let client = cluster.client();
        for (name, (synced, begun)) in &mut promised {
            let found = read_generation(&client, name);
            let allowed = [Some(*synced).filter(|s| *s > 0), Some(*begun)];
            assert!(
                allowed.contains(&found),
                "round {round}: {name} has {found:?}, promised {synced}, begun {begun}"
            );
            *synced = found.unwrap_or(0);
        }
        scrub(&client);
        flushed += (0..3).map(|daemon| flushed_by(&client, daemon)).sum::<u64>();
        if round % 8 == 7 || round + 1 == kills() {
            check(&cluster, round);
        }
    }
    flushed
}

fn flushed_by(client: &Client, daemon: u16) -> u64 {
    let Reply::Report { status } = client.request(daemon, &Request::Status {}).unwrap() else {
        panic!("a daemon tells its status");
    };
    status.counters.iter().find(|(name, _)| name == "flushed_bytes").map_or(0, |(_, bytes)| *bytes)
}

/// `tidepool check` finds no damage (what only wastes space is allowed).
fn check(cluster: &Cluster, round: usize) {
    let pool = cluster.dir().join("pool.json");
    cluster.pool_file().write(&pool).unwrap();
    let said = std::process::Command::new(tidepool_testkit::program("tidepool"))
        .arg("check")
        .env("TIDEPOOL_POOL", &pool)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&said.stdout);
    assert!(said.status.success(), "round {round}: {text}{}", String::from_utf8_lossy(&said.stderr));
}

/// A restarted daemon has forgotten who has what open; clients tell it again by themselves.
#[test]
fn handles_are_registered_again_after_a_restart() {
    let mut cluster = Cluster::start(1);
    let client = cluster.client();
    let flags = libc::O_RDWR | libc::O_CREAT;
    let attr = client.open(Ino::ROOT, b"f", flags, 0o644, &cred()).unwrap().inside().unwrap();
    client.write(attr.ino, 0, b"still here").unwrap();
    client.unlink(Ino::ROOT, b"f", &cred()).unwrap();
    cluster.kill(0);
    cluster.restart(0);
    let mut buf = [0; 10];
    assert_eq!(client.read(attr.ino, 0, &mut buf).unwrap(), 10);
    assert_eq!(&buf, b"still here");
    match client.request(0, &Request::Status {}).unwrap() {
        Reply::Report { status } => assert_eq!(status.open_handles, 1),
        other => panic!("{other:?}"),
    }
}

/// All that a program may do next when daemons were killed and started again while it did nothing.
const STEPS: [&str; 8] = ["read", "write", "append", "fsync", "truncate", "stat", "open", "list"];

fn step(client: &Client, ino: Ino, step: &str) -> Result<(), FsError> {
    let data = vec![7; FILE_LEN];
    match step {
        "read" => client.read(ino, 0, &mut vec![0; FILE_LEN]).map(|count| assert_eq!(count, FILE_LEN)),
        "write" => client.write(ino, 0, &data).map(|count| assert_eq!(count, FILE_LEN)),
        "append" => client.append(ino, &data).map(|(_, count)| assert_eq!(count, FILE_LEN)),
        "fsync" => client.fsync(ino),
        "truncate" => {
            let set = tidepool_types::SetAttr { size: Some(FILE_LEN as u64), ..Default::default() };
            client.set_attr(ino, &set, &cred()).map(drop)
        }
        "stat" => client.get_attr(ino).map(drop),
        "open" => client
            .open(Ino::ROOT, b"f", libc::O_RDONLY, 0, &cred())
            .map(|found| client.release(found.inside().unwrap().ino)),
        "list" => client.read_dir_plus(Ino::ROOT).map(drop),
        other => panic!("{other}"),
    }
}

/// Programs that were idle while all daemons were killed and started again see nothing of it: their connections are dead, and
/// what is sent on one has not begun. Through shared memory, sockets, and TCP.
#[test]
fn who_was_idle_while_daemons_were_started_again_sees_no_error() {
    let mut cluster = Cluster::with(Options { daemons: 3, tcp_too: true, ..Options::default() });
    let clients = [cluster.client(), cluster.client_on(0), cluster.client_on(1)];
    let flags = libc::O_RDWR | libc::O_CREAT;
    let open =
        |client: &Client| client.open(Ino::ROOT, b"f", flags, 0o644, &cred()).unwrap().inside().unwrap();
    let inos = clients.each_ref().map(|client| open(client).ino);
    for what in STEPS {
        for (client, ino) in clients.iter().zip(inos) {
            // Connections and lanes to all of them, some of which were lent files.
            for _ in 0..4 {
                step(client, ino, "write").unwrap();
                step(client, ino, "read").unwrap();
                step(client, ino, "list").unwrap();
            }
        }
        for daemon in 0..3 {
            cluster.kill(daemon);
            cluster.restart(daemon);
        }
        for (number, (client, ino)) in clients.iter().zip(inos).enumerate() {
            step(client, ino, what).unwrap_or_else(|error| panic!("{what} of client {number}: {error}"));
        }
    }
}
