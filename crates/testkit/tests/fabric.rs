//! Pools over libfabric, with each provider that libfabric has for one machine.

#![cfg(feature = "libfabric")]

use std::time::{Duration, Instant};
use tidepool_client::Client;
use tidepool_fabric::Endpoint;
use tidepool_testkit::{Cluster, Options, Rng, cred, eventually};
use tidepool_types::{Attr, Errno, Ino};
use tidepool_wire::fabric::{REQUEST_TAG, RequestHead};
use tidepool_wire::frame::Header;
use tidepool_wire::message::{DaemonStatus, FabricToken, Reply, Request};

const PROVIDERS: [&str; 2] = ["tcp;ofi_rxm", "shm"];

/// A pool for each provider that is here.
fn on_providers(test: impl Fn(&str, Cluster)) {
    let mut tested = 0;
    for provider in PROVIDERS {
        if let Err(error) = Endpoint::<()>::open(provider, Some("127.0.0.1")) {
            println!("SKIPPED: {error}");
            continue;
        }
        println!("provider: {provider}");
        test(
            provider,
            Cluster::with(Options {
                tcp_only: true,
                fabric: provider.into(),
                encryption: tidepool_types::Encryption::Off,
                ..Options::default()
            }),
        );
        tested += 1;
    }
    println!("{tested} of {} providers tested", PROVIDERS.len());
}

fn create(client: &Client, path: &str) -> Attr {
    let flags = libc::O_RDWR | libc::O_CREAT;
    client.open(Ino::ROOT, path.as_bytes(), flags, 0o644, &cred()).unwrap().inside().unwrap()
}

fn status(client: &Client, daemon: u16) -> DaemonStatus {
    match client.request(daemon, &Request::Status {}).unwrap() {
        Reply::Report { status } => status,
        other => panic!("{other:?}"),
    }
}

fn count(client: &Client, daemon: u16, name: &str) -> u64 {
    let counters = status(client, daemon).counters;
    counters.iter().find(|(of, _)| of == name).unwrap_or_else(|| panic!("no counter {name}")).1
}

/// Data of all lengths, below and above what one message carries, from several threads at once.
#[test]
fn files_come_back_as_they_were_written() {
    on_providers(|provider, cluster| {
        let (writer, reader) = (cluster.client(), cluster.client());
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let (writer, reader) = (&writer, &reader);
                scope.spawn(move || {
                    let mut rng = Rng::from_env("files_come_back_as_they_were_written");
                    for (n, len) in [0, 1, 4096, 16_300, 16_400, 300_000, 3_000_001].into_iter().enumerate() {
                        let file = create(writer, &format!("f{thread}.{n}"));
                        let data = rng.bytes(len);
                        let mut done = 0;
                        while done < len {
                            done += writer.write(file.ino, done as u64, &data[done..]).unwrap();
                        }
                        let mut back = vec![0; len + 10];
                        assert_eq!(reader.read(file.ino, 0, &mut back).unwrap(), len, "{provider}");
                        assert!(back[..len] == data, "{provider}: {len} bytes");
                    }
                });
            }
        });
        assert_eq!(reader.read_dir(Ino::ROOT).unwrap().len(), 21);
        for daemon in 0..3 {
            let (all, fabric) =
                (count(&reader, daemon, "requests"), count(&reader, daemon, "fabric_requests"));
            // The others: telling the members, asking for the fabric, and, with shm, ringing.
            println!("{provider}: {fabric} of {all}");
            assert!(fabric > 10 && (provider == "shm" || all < fabric + 30), "{provider}: {fabric} of {all}");
            assert_eq!(count(&reader, daemon, "refused"), 0, "{provider}");
        }
    });
}

/// A killed daemon is an error at once, not after a time-out; started again, it is found again.
#[test]
fn a_killed_daemon_is_noticed_at_once() {
    on_providers(|provider, mut cluster| {
        let client = cluster.client();
        let file = create(&client, "f");
        let data = vec![7; 500_000];
        client.write(file.ino, 0, &data).unwrap();
        cluster.kill(1);
        let began = Instant::now();
        let error = client.request(1, &Request::Ping {}).unwrap_err();
        assert_eq!(error.errno(), Errno::EIO, "{provider}: {error}");
        let mut back = vec![0; data.len()];
        let error = client.read(file.ino, 0, &mut back).unwrap_err();
        assert_eq!(error.errno(), Errno::EIO, "{provider}: {error}");
        assert!(began.elapsed() < Duration::from_secs(2), "{provider}: {:?}", began.elapsed());
        assert_eq!(client.request(0, &Request::Ping {}).unwrap(), Reply::Done {}, "{provider}");
        cluster.restart(1);
        let client = cluster.client();
        assert_eq!(client.read(file.ino, 0, &mut back).unwrap(), data.len());
        assert!(back == data, "{provider}");
    });
}

/// A daemon killed while a request is with it: the client hears of it while it waits.
#[test]
fn a_daemon_that_dies_over_a_request_is_noticed() {
    on_providers(|provider, mut cluster| {
        let client = cluster.client();
        let file = create(&client, "f");
        cluster.signal(file.ino.home().into(), rustix::process::Signal::STOP);
        // The signal takes effect when the daemon's threads next run.
        std::thread::sleep(Duration::from_millis(100));
        let waiting = std::thread::spawn(move || {
            let error = client.write(file.ino, 0, &[1; 50_000]).unwrap_err();
            (error, Instant::now())
        });
        std::thread::sleep(Duration::from_millis(300));
        assert!(!waiting.is_finished(), "{provider}");
        let killed = Instant::now();
        cluster.kill(file.ino.home().into());
        let (error, at) = waiting.join().unwrap();
        assert_eq!(error.errno(), Errno::EIO, "{provider}: {error}");
        assert!(at - killed < Duration::from_secs(2), "{provider}: {:?}", at - killed);
    });
}

/// Clients that come and go leave nothing, however they go.
#[test]
fn clients_come_and_go() {
    on_providers(|provider, cluster| {
        for round in 0..10 {
            let client = cluster.client();
            let file = create(&client, &format!("f{round}"));
            client.write(file.ino, 0, &[round; 100_000]).unwrap();
        }
        let last = cluster.client();
        eventually("only the last session is left", || status(&last, 0).sessions <= 1);
        println!("{provider}: {:?}", status(&last, 0).counters);
    });
}

/// F19: a daemon with clients that ask nothing takes no processor time.
#[test]
fn an_idle_daemon_is_quiet() {
    on_providers(|provider, cluster| {
        let client = cluster.client();
        let file = create(&client, "f");
        client.write(file.ino, 0, &[1; 500_000]).unwrap();
        let ticks = || -> Vec<u64> { (0..3).map(|daemon| cpu_ticks(cluster.pid(daemon))).collect() };
        let before = ticks();
        std::thread::sleep(Duration::from_secs(3));
        for (before, after) in before.into_iter().zip(ticks()) {
            // A tick is 10 ms; the daemons' own background work takes less than one in this time.
            assert!(after - before <= 3, "{provider}: {} ticks in 3 s", after - before);
        }
        client.read(file.ino, 0, &mut [0; 1000]).unwrap();
    });
}

fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Messages of those who have not proved themselves, and nonsense, are dropped and counted.
#[test]
fn strangers_messages_are_dropped() {
    on_providers(|provider, cluster| {
        let client = cluster.client();
        create(&client, "f");
        // A stranger knows the endpoint, as anybody may, but no token.
        let Reply::Fabric { name, token, .. } = admitted(&cluster) else { panic!("no fabric") };
        let stranger = Endpoint::<()>::open(provider, Some("127.0.0.1")).unwrap();
        let daemon = stranger.insert(&name).unwrap();
        let header =
            Header { kind: Request::Shutdown { wipe: true }.kind(), meta_len: 1, ..Header::default() };
        let forged = RequestHead { token: FabricToken([7; 32]), sequence: 0, header }.encode();
        let late = RequestHead { token, sequence: 0, header }.encode();
        let mut messages =
            vec![[&forged[..], &[1]].concat(), [&late[..], &[1]].concat(), vec![1, 2, 3], vec![9; 16_384]];
        if provider != "shm" {
            // shm of libfabric 1.17 gives nothing more to a receiver whose buffer was too small. Only processes of the
            // pool's own user can send there.
            messages.push(vec![9; 20_000]);
        }
        let sent = messages.len() as u64;
        for message in messages {
            let mut buffer = stranger.buffer(message.len()).unwrap();
            buffer.copy_from_slice(&message);
            let mut done = Vec::new();
            while let Err(refused) = stranger.send(daemon, REQUEST_TAG, buffer, ()) {
                assert!(refused.error.again, "{provider}: {}", refused.error);
                buffer = refused.buffer;
                stranger.completions(&mut done).unwrap();
                // With shm the daemon looks when somebody rings.
                client.request(0, &Request::Ping {}).unwrap();
            }
        }
        eventually("the daemon has seen them", || {
            stranger.completions(&mut Vec::new()).unwrap();
            count(&client, 0, "refused") >= sent
        });
        assert_eq!(client.request(0, &Request::Ping {}).unwrap(), Reply::Done {}, "{provider}");
    });
}

/// What a client gets that asks daemon 0 for its fabric, and then hangs up.
fn admitted(cluster: &Cluster) -> Reply {
    use tidepool_transport::{Identity, LocalNode, connect, random_bytes};
    let pool = cluster.pool_file();
    let session = tidepool_types::SessionId(random_bytes());
    let (instance, encryption) = (pool.instance, pool.encryption);
    let identity = Identity { instance, session, secret: pool.secret.clone(), encryption };
    let mut link = connect(&pool.members[0], &LocalNode::detect(), &identity, |fd| fd).unwrap().link;
    let own = Endpoint::<()>::open(&pool.fabric, Some("127.0.0.1")).unwrap();
    let request = Request::OpenFabric { name: own.name().into(), replies: 5 };
    let mut meta = Vec::new();
    request.encode(&mut meta);
    let header = Header { kind: request.kind(), meta_len: meta.len() as u32, ..Header::default() };
    link.send(&header, &meta, &[]).unwrap();
    let received = link.receive(&mut []).unwrap();
    Reply::decode(received.header.kind, received.meta).unwrap()
}
