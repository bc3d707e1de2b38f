//! Who sits in the network between clients and daemons: listens, changes, repeats, passes on, floods. With `encrypt=full` he learns
//! and changes nothing; with `off` some of it works, which shows that these tests would see it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidepool_client::{Client, PoolFile};
use tidepool_testkit::{Cluster, Middleman, Options, Rng, bytes_of, cred, eventually};
use tidepool_transport::{Identity, LocalNode, connect};
use tidepool_types::{Encryption, Ino, SessionId};
use tidepool_wire::frame::{HEADER_LEN, Header};
use tidepool_wire::message::{Handshake, PROTOCOL_VERSION, Reply, Request};

/// Memory a daemon may have after all that, in KiB.
const RSS_KIB_MAX: u64 = 100_000;
/// Text that nothing else looks like.
const SECRET_TEXT: &[u8] = b"nobody but Alice and her daemons may read this line";

fn pool(encryption: Encryption) -> Cluster {
    Cluster::with(Options { daemons: 1, tcp_only: true, encryption, ..Options::default() })
}

fn make(client: &Client, name: &[u8], data: &[u8]) -> Ino {
    let flags = libc::O_RDWR | libc::O_CREAT;
    let attr = client.open(Ino::ROOT, name, flags, 0o600, &cred()).unwrap().inside().unwrap();
    client.write(attr.ino, 0, data).unwrap();
    attr.ino
}

fn read(client: &Client, ino: Ino, len: usize) -> Result<Vec<u8>, tidepool_client::FsError> {
    let mut data = vec![0; len];
    client.read(ino, 0, &mut data).map(|count| data[..count].to_vec())
}

#[test]
fn who_listens_learns_nothing() {
    for (encryption, learns) in [(Encryption::Full, false), (Encryption::Off, true)] {
        let cluster = pool(encryption);
        let man = Middleman::before(&cluster.pool_file().members[0].tcp);
        let client = man.client(&cluster);
        let ino = make(&client, b"name-of-a-file", SECRET_TEXT);
        assert_eq!(read(&client, ino, 100).unwrap(), SECRET_TEXT);
        assert_eq!(man.has_seen(SECRET_TEXT), learns, "data, {encryption:?}");
        assert_eq!(man.has_seen(b"name-of-a-file"), learns, "names, {encryption:?}");
        assert!(!man.has_seen(cluster.pool_file().secret.to_hex().as_bytes()));
    }
}

/// Data that were changed on the way must not be taken for data, in either direction; what is stored stays as it was.
#[test]
fn who_changes_data_ends_the_connection() {
    let cluster = pool(Encryption::Full);
    let man = Middleman::before(&cluster.pool_file().members[0].tcp);
    let client = man.client(&cluster);
    let data = bytes_of(300_000, 7);
    let ino = make(&client, b"f", &data);
    for round in 0..6 {
        let (way, written) = if round % 2 == 0 { (&man.back, false) } else { (&man.there, true) };
        way.flip.store(true, Ordering::SeqCst);
        // A client may ask again over another connection; wrong data would be the fault.
        let result = if written {
            client.write(ino, 0, &data).map(|_| Vec::new())
        } else {
            read(&client, ino, data.len())
        };
        assert!(!way.flip.load(Ordering::SeqCst), "nothing went that way");
        if let Ok(got) = result {
            assert!(written || got == data, "round {round}: wrong data");
        }
        assert!(read(&cluster.client(), ino, data.len()).unwrap() == data, "round {round}: stored");
    }
}

/// One that is greeted already, and into which somebody else speaks.
fn spoken_into(encryption: Encryption) -> bool {
    let cluster = pool(encryption);
    let man = Middleman::before(&cluster.pool_file().members[0].tcp);
    let client = man.client(&cluster);
    client.request(0, &Request::Ping {}).unwrap();
    let mut meta = Vec::new();
    let request = Request::Shutdown { wipe: true };
    request.encode(&mut meta);
    let header = Header { kind: request.kind(), meta_len: meta.len() as u32, ..Header::default() };
    let mut daemon = man.daemons.lock().unwrap()[0].try_clone().unwrap();
    daemon.write_all(&[&header.encode()[..], &meta].concat()).unwrap();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        if !std::path::Path::new(&format!("{}/meta", cluster.store(0).display())).exists() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(cluster.client().request(0, &Request::Ping {}).unwrap(), Reply::Done {});
    false
}

#[test]
fn nobody_speaks_on_a_connection_that_others_have_made() {
    assert!(!spoken_into(Encryption::Full));
    assert!(spoken_into(Encryption::Off), "then this test would not see it");
}

/// All that a client has said, said once more: the file that it removed last stays as it was made since.
#[test]
fn what_is_repeated_does_nothing() {
    for encryption in [Encryption::Full, Encryption::Off] {
        let cluster = pool(encryption);
        let address = cluster.pool_file().members[0].tcp.clone();
        let man = Middleman::before(&address);
        let client = man.client(&cluster);
        make(&client, b"f", b"first");
        client.unlink(Ino::ROOT, b"f", &cred()).unwrap();
        drop(client);
        let ino = make(&cluster.client(), b"f", b"second");
        let said = man.there.seen.lock().unwrap().clone();
        // At once, and as the client said it: Begin, and the rest when the daemon has answered.
        assert!(feed(&address, &said).ends_with(b"not a handshake"));
        let begin = frame_len(&said);
        let end = begin + frame_len(&said[begin..]);
        let mut again = TcpStream::connect(&address).unwrap();
        again.write_all(&said[..begin]).unwrap();
        let mut head = [0; HEADER_LEN];
        again.read_exact(&mut head).unwrap();
        let mut middle = vec![0; Header::decode(&head).unwrap().body_len()];
        again.read_exact(&mut middle).unwrap();
        again.write_all(&said[begin..end]).unwrap();
        let mut answer = Vec::new();
        again.read_to_end(&mut answer).unwrap();
        assert!(String::from_utf8_lossy(&answer).contains("secret is wrong"), "{encryption:?}: {answer:?}");
        assert_eq!(read(&cluster.client(), ino, 10).unwrap(), b"second", "{encryption:?}");
        assert!(cluster.client().lookup(Ino::ROOT, b"f").is_ok());
    }
}

/// A middleman leads a client to another member of the same pool, which would take its files for its own.
#[test]
fn who_wants_one_member_does_not_get_another() {
    for encryption in [Encryption::Full, Encryption::Off] {
        let options = Options { daemons: 2, tcp_only: true, encryption, ..Options::default() };
        let cluster = Cluster::with(options);
        let mut pool = cluster.pool_file();
        pool.members[0].tcp = pool.members[1].tcp.clone();
        let error = Client::new(pool).request(0, &Request::Ping {}).unwrap_err().to_string();
        assert!(error.contains("this is member 1 of the pool, not 0"), "{error}");
    }
}

/// The pool file of a client that is out of date, or that somebody has changed to listen.
#[test]
fn both_sides_have_to_mean_the_same_encryption() {
    for (theirs, ours) in [(Encryption::Full, Encryption::Off), (Encryption::Off, Encryption::Full)] {
        let cluster = pool(theirs);
        let wrong = PoolFile { encryption: ours, ..cluster.pool_file() };
        let error = Client::new(wrong).request(0, &Request::Ping {}).unwrap_err().to_string();
        assert!(error.contains(&format!("encrypt={}", theirs.word())), "{error}");
    }
}

/// What a raw connection gets for these bytes, until the daemon closes.
fn feed(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

fn frame_len(bytes: &[u8]) -> usize {
    HEADER_LEN + Header::decode(bytes.first_chunk().unwrap()).unwrap().body_len()
}

fn frame(message: &Handshake) -> Vec<u8> {
    let mut meta = Vec::new();
    message.encode(&mut meta);
    let header = Header { kind: message.kind(), meta_len: meta.len() as u32, ..Header::default() };
    [&header.encode()[..], &meta].concat()
}

/// What an older release says gets an answer in words that it understands.
#[test]
fn an_older_client_is_told_why() {
    let cluster = pool(Encryption::Full);
    let pool = cluster.pool_file();
    let (instance, session) = (pool.instance, SessionId([1; 16]));
    let nonce = tidepool_wire::message::Nonce([1; 32]);
    for (version, says) in [(2, "version 2 is not"), (PROTOCOL_VERSION, "Begin is first")] {
        let hello = Handshake::Hello { version, instance, session, nonce };
        let answer = feed(&pool.members[0].tcp, &frame(&hello));
        let header = Header::decode(answer[..HEADER_LEN].try_into().unwrap()).unwrap();
        assert_eq!(header.kind, 5);
        assert!(String::from_utf8_lossy(&answer).contains(says), "{version}");
    }
    // Without the pool's secret nothing comes of Begin, whatever it says.
    let begin =
        Handshake::Begin { version: PROTOCOL_VERSION, instance, encrypted: true, noise: [1; 50].into() };
    assert!(String::from_utf8_lossy(&feed(&pool.members[0].tcp, &frame(&begin))).contains("secret is wrong"));
    for noise in [vec![], vec![0; 3000]] {
        let noise = noise.into();
        let begin = Handshake::Begin { version: PROTOCOL_VERSION, instance, encrypted: true, noise };
        assert!(!feed(&pool.members[0].tcp, &frame(&begin)).is_empty());
    }
}

fn status(pid: u32, key: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse().unwrap()
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Thousands who connect and say little hold neither descriptors nor memory, and keep nobody out: each honest client
/// is in long before any of them has had his time.
#[test]
fn a_crowd_that_says_nothing_keeps_nobody_out() {
    let cluster = pool(Encryption::Full);
    let address = cluster.pool_file().members[0].tcp.clone();
    let before = descriptors(cluster.pid(0));
    let stop = Arc::new(AtomicBool::new(false));
    let crowd: Vec<_> = (0..4)
        .map(|_| {
            let (address, stop) = (address.clone(), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut held = std::collections::VecDeque::new();
                let mut made = 0;
                while !stop.load(Ordering::Relaxed) {
                    if let Ok(mut stream) = TcpStream::connect(&address) {
                        let _ = stream.write_all(b"TPL1");
                        held.push_back(stream);
                        made += 1;
                    }
                    if held.len() > 400 {
                        held.pop_front();
                    }
                    std::thread::sleep(Duration::from_micros(500));
                }
                made
            })
        })
        .collect();
    let mut most = 0;
    let mut failures = 0;
    for round in 0..60 {
        let client = cluster.client();
        match client.request(0, &Request::Ping {}) {
            Ok(reply) => assert_eq!(reply, Reply::Done {}, "round {round}"),
            Err(_) => failures += 1,
        }
        most = most.max(descriptors(cluster.pid(0)));
        std::thread::sleep(Duration::from_millis(50));
    }
    stop.store(true, Ordering::Relaxed);
    let made: usize = crowd.into_iter().map(|thread| thread.join().unwrap()).sum();
    println!("{made} strangers, {most} descriptors at most ({before} before), {failures} of 60 turned away");
    assert!(made > 1500, "only {made} came: nothing was tried");
    assert!(most < before + tidepool_fsd::UNPROVEN_MAX + 80, "{most} descriptors, {before} before");
    assert!(failures <= 6, "{failures} of 60 honest clients were turned away");
    assert!(status(cluster.pid(0), "VmRSS:") < RSS_KIB_MAX);
}

/// The time for a greeting counts also while a daemon always has something to do.
#[test]
fn a_busy_daemon_closes_late_greetings_as_well() {
    let cluster = pool(Encryption::Full);
    let address = cluster.pool_file().members[0].tcp.clone();
    let stop = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = (0..8)
        .map(|_| {
            let (client, stop) = (cluster.client(), Arc::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    client.request(0, &Request::Ping {}).unwrap();
                }
            })
        })
        .collect();
    let mut stream = TcpStream::connect(&address).unwrap();
    let sender = stream.try_clone().unwrap();
    // A byte now and then is no greeting either.
    let dripping = std::thread::spawn(move || {
        let mut sender = sender;
        for byte in b"TPL1".iter().chain([0; 28].iter()) {
            if sender.write_all(&[*byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(700));
        }
    });
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let began = Instant::now();
    let _ = stream.read(&mut [0; 1]);
    let took = began.elapsed();
    stop.store(true, Ordering::Relaxed);
    busy.into_iter().for_each(|thread| thread.join().unwrap());
    dripping.join().unwrap();
    assert!(took < Duration::from_secs(20), "it was left open for {took:?}");
}

fn fuzz_seconds() -> u64 {
    std::env::var("TIDEPOOL_FUZZ_SECONDS").ok().and_then(|t| t.parse().ok()).unwrap_or(20)
}

/// Garbage, and nearly good messages, at the greeting and as records, beside an honest client.
#[test]
fn garbage_over_tcp_breaks_nothing() {
    let mut rng = Rng::from_env("garbage_over_tcp_breaks_nothing");
    let cluster = pool(Encryption::Full);
    let pool = cluster.pool_file();
    let address = &pool.members[0].tcp;
    let honest = cluster.client();
    let ino = make(&honest, b"f", SECRET_TEXT);
    let until = Instant::now() + Duration::from_secs(fuzz_seconds());
    let mut tries = 0u64;
    while Instant::now() < until {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
        let len = rng.below(120) as usize;
        let begin = Handshake::Begin {
            version: PROTOCOL_VERSION,
            instance: pool.instance,
            encrypted: true,
            noise: rng.bytes(len).into(),
        };
        let mut bytes = frame(&begin);
        for _ in 0..rng.below(4) {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << rng.below(8);
        }
        let cut = rng.below(bytes.len() as u64 + 40) as usize;
        let _ = stream.write_all(&bytes[..cut.min(bytes.len())]);
        let _ = stream.read(&mut [0; 256]);
        // One who has the secret, and says nonsense after it.
        let man = Middleman::before(address);
        let mut through = pool.clone();
        through.members[0].tcp = man.address.to_string();
        let identity = Identity {
            instance: pool.instance,
            session: SessionId([9; 16]),
            secret: pool.secret.clone(),
            encryption: Encryption::Full,
        };
        let known = connect(&through.members[0], &LocalNode::detect(), &identity, |fd| fd).unwrap();
        let mut daemon = man.daemons.lock().unwrap()[0].try_clone().unwrap();
        let len = rng.below(70_000) as usize;
        let _ = daemon.write_all(&rng.bytes(len));
        drop(known);
        if tries.is_multiple_of(16) {
            assert_eq!(read(&honest, ino, 100).unwrap(), SECRET_TEXT);
        }
        tries += 1;
    }
    println!("garbage_over_tcp_breaks_nothing: {tries} tries in {} s", fuzz_seconds());
    assert!(tries > 20);
    assert_eq!(read(&cluster.client(), ino, 100).unwrap(), SECRET_TEXT);
    assert!(status(cluster.pid(0), "VmRSS:") < RSS_KIB_MAX);
    eventually("connections to end", || descriptors(cluster.pid(0)) < 60);
}
