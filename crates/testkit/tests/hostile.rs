//! Peers that mean harm: garbage, oversized and truncated messages, wrong secrets, other
//! users. A daemon answers with an error or closes; it never crashes or grows.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tidepool_client::{Client, PoolFile};
use tidepool_testkit::{Cluster, Options, Rng, eventually};
use tidepool_transport::{Identity, LocalNode};
use tidepool_transport::{Secret, connect};
use tidepool_types::{InstanceId, SessionId};
use tidepool_wire::frame::{FLAG_KEEP, HEADER_LEN, Header};
use tidepool_wire::message::{Handshake, Nonce, Reply, Request};

/// Memory a daemon may have after being fed garbage, in KiB (INVENTORY F19: 100 MB).
const RSS_KIB_MAX: u64 = 100_000;

fn fuzz_seconds() -> u64 {
    std::env::var("TIDEPOOL_FUZZ_SECONDS").ok().and_then(|t| t.parse().ok()).unwrap_or(60)
}

fn socket(cluster: &Cluster) -> PathBuf {
    cluster.pool_file().members[0].unix.clone().into()
}

fn rss_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn identity(pool: &PoolFile, session: SessionId) -> Identity {
    let PoolFile { instance, encryption, .. } = *pool;
    Identity { instance, session, secret: pool.secret.clone(), encryption }
}

fn assert_alive(cluster: &Cluster) {
    assert_eq!(cluster.client().request(0, &Request::Ping {}).unwrap(), Reply::Done {});
    let rss = rss_kib(cluster.pid(0));
    assert!(rss < RSS_KIB_MAX, "the daemon has {rss} KiB");
}

/// Sends bytes and reads what comes back until the daemon closes or is silent for a moment.
fn feed(socket: &PathBuf, bytes: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    // The daemon may close before it has read everything; that is what is wanted of it.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

fn frame(kind: u16, meta: &[u8], bulk: &[u8]) -> Vec<u8> {
    let header =
        Header { kind, meta_len: meta.len() as u32, bulk_len: bulk.len() as u32, ..Header::default() };
    [&header.encode()[..], meta, bulk].concat()
}

#[test]
fn strangers_get_no_further_than_the_handshake() {
    let cluster = Cluster::start(1);
    let at = socket(&cluster);
    assert!(feed(&at, b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n").is_empty(), "not our magic: closed");
    let huge = Header { kind: 1, meta_len: 1 << 20, bulk_len: 1 << 24, ..Header::default() };
    assert!(feed(&at, &huge.encode()).is_empty(), "long frames only after the handshake");
    let mut meta = Vec::new();
    Request::Shutdown { wipe: true }.encode(&mut meta);
    let answer = feed(&at, &frame(65, &meta, &[]));
    assert!(answer.len() > HEADER_LEN, "a request before the handshake is refused in words");
    let header = Header::decode(answer[..HEADER_LEN].try_into().unwrap()).unwrap();
    let said = Handshake::decode(header.kind, &answer[HEADER_LEN..]).unwrap();
    assert!(matches!(said, Handshake::Refused { .. }), "{said:?}");
    let hello = Handshake::Hello {
        version: 99,
        instance: cluster.pool_file().instance,
        session: SessionId([0; 16]),
        nonce: Nonce([0; 32]),
    };
    let mut meta = Vec::new();
    hello.encode(&mut meta);
    assert!(String::from_utf8_lossy(&feed(&at, &frame(1, &meta, &[]))).contains("version 99"));
    assert_alive(&cluster);
}

#[test]
fn a_wrong_secret_or_instance_is_refused() {
    for tcp_only in [false, true] {
        let cluster = Cluster::with(Options { daemons: 1, tcp_only, ..Options::default() });
        let pool = cluster.pool_file();
        let wrong = [
            PoolFile { secret: Secret::random(), ..pool.clone() },
            PoolFile { instance: InstanceId([9; 16]), ..pool.clone() },
        ];
        for pool in wrong {
            let error = Client::new(pool).request(0, &Request::Ping {}).unwrap_err().to_string();
            assert!(
                error.contains("node0") && (error.contains("secret") || error.contains("pool")),
                "{error}"
            );
        }
        assert_alive(&cluster);
    }
}

/// A client that cannot prove the secret is refused by the daemon too, not only by itself.
#[test]
fn a_forged_answer_is_refused_by_the_daemon() {
    let cluster = Cluster::start(1);
    let mut stream = UnixStream::connect(socket(&cluster)).unwrap();
    let hello = Handshake::Hello {
        version: tidepool_wire::message::PROTOCOL_VERSION,
        instance: cluster.pool_file().instance,
        session: SessionId([0; 16]),
        nonce: Nonce([0; 32]),
    };
    let mut meta = Vec::new();
    hello.encode(&mut meta);
    stream.write_all(&frame(1, &meta, &[])).unwrap();
    let mut challenge = [0; HEADER_LEN + 2 + 64];
    stream.read_exact(&mut challenge).unwrap();
    stream.write_all(&frame(3, &[0x55; 32], &[])).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(String::from_utf8_lossy(&rest).contains("secret is wrong"));
    assert_alive(&cluster);
}

/// Another user is turned away before a byte is read.
#[test]
fn another_uid_is_refused() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: another_uid_is_refused needs root to become another user");
        return;
    }
    let cluster = Cluster::start(1);
    let at = socket(&cluster);
    // Even with the file permissions in its favour.
    for path in [cluster.dir(), &at] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let script = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\ns.settimeout(10)\ntry:\n  s.sendall(b'TPL1'+bytes(28))\n  print(len(s.recv(100)))\nexcept (ConnectionError,BrokenPipeError):\n  print(0)\n";
    let output = std::process::Command::new("python3")
        .args(["-c", script])
        .arg(&at)
        .uid(65534)
        .gid(65534)
        .output()
        .expect("python3 runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "0", "{output:?}");
    assert_alive(&cluster);
}

#[test]
fn silent_strangers_are_closed() {
    let cluster = Cluster::start(1);
    let streams: Vec<UnixStream> = (0..50).map(|_| UnixStream::connect(socket(&cluster)).unwrap()).collect();
    for mut stream in streams {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0, "closed without a word");
    }
    assert_alive(&cluster);
}

/// A proven peer that sends garbage for a minute (longer in test-all).
#[test]
fn garbage_from_a_proven_peer() {
    let mut rng = Rng::from_env("garbage_from_a_proven_peer");
    let cluster = Cluster::start(1);
    let pool = cluster.pool_file();
    let identity = identity(&pool, SessionId([1; 16]));
    let until = Instant::now() + Duration::from_secs(fuzz_seconds());
    let mut frames = 0u64;
    while Instant::now() < until {
        let link = connect(&pool.members[0], &LocalNode::detect(), &identity, |fd| fd).unwrap();
        let mut link = link.link;
        for _ in 0..200 {
            let kind = rng.below(76) as u16;
            // Asking a daemon to end is no garbage: it does.
            if kind == 65 {
                continue;
            }
            let len = rng.below(200) as usize;
            let mut meta = rng.bytes(len);
            if rng.below(2) == 0 && meta.len() >= 8 {
                // A plausible object id gets further into the code.
                meta[..8].copy_from_slice(&rng.below(4).to_le_bytes());
            }
            let bulk_len = rng.below(5000) as usize;
            let bulk = rng.bytes(bulk_len);
            let header = Header {
                kind,
                flags: [0, FLAG_KEEP][rng.below(2) as usize],
                id: rng.next_u64(),
                epoch: rng.below(2),
                meta_len: meta.len() as u32,
                bulk_len: bulk.len() as u32,
            };
            if link.send(&header, &meta, &bulk).is_err() {
                break;
            }
            let mut room = vec![0; 1 << 24];
            let Ok(received) = link.receive(&mut room) else { break };
            assert_eq!(received.header.id, header.id);
            Reply::decode(received.header.kind, received.meta).expect("every answer decodes");
            frames += 1;
        }
        let cut = rng.below(40) as usize;
        let half = frame(2, &rng.bytes(100), &[]);
        feed(&socket(&cluster), &half[..cut.min(half.len())]);
    }
    println!("garbage_from_a_proven_peer: {frames} frames in {} s", fuzz_seconds());
    assert!(frames > 0);
    assert_alive(&cluster);
}

/// A client that stops taking replies holds up nobody else.
#[test]
fn a_stuck_client_blocks_nobody() {
    let cluster = Cluster::start(1);
    let pool = cluster.pool_file();
    let identity = identity(&pool, SessionId([1; 16]));
    let client = cluster.client();
    let cred = tidepool_testkit::cred();
    let attr = client
        .open(tidepool_types::Ino::ROOT, b"f", libc::O_RDWR | libc::O_CREAT, 0o644, &cred)
        .unwrap()
        .inside()
        .unwrap();
    client.write(attr.ino, 0, &[1; 60_000]).unwrap();
    let mut stuck: Vec<_> = (0..20)
        .map(|_| connect(&pool.members[0], &LocalNode::detect(), &identity, |fd| fd).unwrap().link)
        .collect();
    let mut meta = Vec::new();
    Request::Read { ino: attr.ino, offset: 0, len: 60_000 }.encode(&mut meta);
    for link in &mut stuck {
        for id in 0..20 {
            let header = Header { kind: 40, id, meta_len: meta.len() as u32, ..Header::default() };
            link.send(&header, &meta, &[]).unwrap();
        }
    }
    let began = Instant::now();
    for _ in 0..100 {
        client.get_attr(attr.ino).unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(20), "others wait for a stuck client");
    drop(stuck);
    eventually("their sessions to end", || match client.request(0, &Request::Status {}).unwrap() {
        Reply::Report { status } => status.sessions == 1,
        other => panic!("{other:?}"),
    });
}
