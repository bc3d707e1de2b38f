//! A client that writes anything into the memory it shares with a daemon.

use crate::{Config, Daemon};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use tidepool_shm::{Bell, ClientLane, Posted, Waited};
use tidepool_types::SessionId;
use tidepool_wire::frame::Header;
use tidepool_wire::message::{Reply, Request};

const SLOT_PAGE: u64 = 4096;

fn daemon(dir: &std::path::Path) -> Daemon {
    let config = format!(
        r#"{{"instance":"{}","secret":"{}","index":0,"host":"here","dir":"{}","unix":"{}"}}"#,
        "0".repeat(31) + "1",
        "0f".repeat(32),
        dir.join("store").display(),
        dir.join("socket").display()
    );
    Daemon::start(&Config::parse(&config).unwrap()).unwrap()
}

/// Scribbles over one slot, the way a client does that knows the layout and means harm.
fn scribble(rng: &mut fastrand::Rng, lane: &File, bell: &File) {
    let slot = SLOT_PAGE * rng.u64(1..=4);
    let request = Header {
        kind: rng.u16(0..70),
        flags: rng.u16(0..3),
        id: rng.u64(..),
        epoch: rng.u64(0..2),
        meta_len: rng.u32(0..5000),
        bulk_len: rng.u32(0..600_000),
    };
    // Asking a daemon to end is no garbage: it does.
    if request.kind != 65 {
        let bytes: Vec<u8> = (0..rng.usize(1..300)).map(|_| rng.u8(..)).collect();
        lane.write_all_at(&request.encode(), slot + 64).unwrap();
        lane.write_all_at(&bytes, slot + 96 + rng.u64(0..16)).unwrap();
        if rng.bool() {
            lane.write_all_at(&rng.u64(0..4).to_le_bytes(), slot + 96).unwrap();
        }
    }
    let word = if rng.u8(..) < 200 { 1 } else { rng.u32(..) };
    lane.write_all_at(&word.to_le_bytes(), slot).unwrap();
    if rng.u8(..) < 20 {
        bell.write_all_at(&rng.u32(..).to_le_bytes(), [64, 128][rng.usize(..2)]).unwrap();
    }
    bell.write_all_at(&rng.u64(..).to_le_bytes(), 192 + 8 * rng.u64(0..16)).unwrap();
}

fn ping(daemon: &Daemon) {
    let (number, [lane, bell]) = daemon.hub.lanes.open(7, SessionId([2; 16])).unwrap();
    let (mut client, bell) = (ClientLane::open(&lane).unwrap(), Bell::open(&bell).unwrap());
    let header = Header { kind: Request::Ping {}.kind(), id: 5, ..Header::default() };
    assert_eq!(client.post(&header.encode(), &[], &[], false), Posted::Yes);
    bell.ring(number);
    // Nothing of the bell can be relied on any more but the daemon's own look at it.
    let woken = client.wait(Duration::from_secs(60), || {
        daemon.hub.lanes.nudge();
        false
    });
    assert_eq!(woken, Waited::Here);
    let header = Header::decode(&client.header()).unwrap();
    let meta = client.fetch(header.meta_len as usize, &mut []).unwrap();
    assert_eq!((header.id, Reply::decode(header.kind, meta)), (5, Ok(Reply::Done {})));
    daemon.hub.lanes.close(number);
}

#[test]
fn scribbling_in_shared_memory_harms_nobody_else() {
    let text = std::env::var("TIDEPOOL_FUZZ_SECONDS").unwrap_or_default();
    let seconds = text.parse::<u64>().unwrap_or(60) / 20;
    let seed =
        std::env::var("TIDEPOOL_SEED").ok().and_then(|t| t.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("scribbling_in_shared_memory_harms_nobody_else: TIDEPOOL_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path());
    let until = Instant::now() + Duration::from_secs(seconds.max(1));
    let mut rounds = 0;
    while Instant::now() < until {
        let (number, fds): (usize, [OwnedFd; 2]) = daemon.hub.lanes.open(9, SessionId([1; 16])).unwrap();
        let [lane, bell] = fds.map(File::from);
        for _ in 0..200 {
            scribble(&mut rng, &lane, &bell);
            daemon.hub.lanes.nudge();
            rounds += 1;
        }
        daemon.hub.lanes.close(number);
        ping(&daemon);
    }
    println!("{rounds} rounds");
    assert!(daemon.threads.iter().all(|thread| !thread.is_finished()), "a worker has died");
    let stop = daemon.stopper();
    stop();
    daemon.run().unwrap();
    assert!(
        !dir.path().join("store").exists() || dir.path().join("store").read_dir().unwrap().next().is_none()
    );
}
