use super::*;
use std::time::{Duration, Instant};

/// Providers of every libfabric, and where they are.
const PROVIDERS: [(&str, Option<&str>); 2] = [("tcp;ofi_rxm", Some("127.0.0.1")), ("shm", Some("127.0.0.1"))];

fn open(provider: &str, at: Option<&str>) -> Option<Endpoint<u32>> {
    match Endpoint::open(provider, at) {
        Ok(endpoint) => Some(endpoint),
        Err(error) => {
            println!("SKIPPED: {error}");
            None
        }
    }
}

/// Lets both sides work until all operations of `count` have completed; by label.
fn finish(
    a: &Endpoint<u32>,
    b: &Endpoint<u32>,
    count: usize,
) -> HashMap<u32, (Vec<u8>, Result<usize, FabricError>)> {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut done = Vec::new();
    while done.len() < count {
        assert!(Instant::now() < deadline, "{} of {count} operations have completed", done.len());
        a.completions(&mut done).unwrap();
        b.completions(&mut done).unwrap();
    }
    done.into_iter().map(|done| (done.label, (done.buffer.to_vec(), done.result))).collect()
}

fn send(from: &Endpoint<u32>, other: &Endpoint<u32>, to: Peer, tag: u64, bytes: &[u8], label: u32) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut buffer = from.buffer(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    let mut completed = Vec::new();
    while let Err(refused) = from.send(to, tag, buffer, label) {
        assert!(refused.error.again && Instant::now() < deadline, "{}", refused.error);
        buffer = refused.buffer;
        // Both sides take part in getting to know each other.
        from.completions(&mut completed).unwrap();
        other.completions(&mut completed).unwrap();
    }
    assert!(completed.is_empty());
}

#[test]
fn messages_find_their_tags_at_every_length() {
    for (provider, at) in PROVIDERS {
        let (Some(a), Some(b)) = (open(provider, at), open(provider, at)) else { continue };
        let to = a.insert(b.name()).unwrap();
        for (n, len) in [1, 4096, 100_000, 5_000_000].into_iter().enumerate() {
            let label = 10 * n as u32;
            let bytes: Vec<u8> = (0..len).map(|i: u32| (i * 7 + label) as u8).collect();
            let room = |label| {
                assert!(b.receive(u64::from(label), b.buffer(bytes.len() + 9).unwrap(), label).is_ok())
            };
            room(label + 2);
            room(label + 1);
            send(&a, &b, to, u64::from(label + 1), &bytes, label + 3);
            send(&a, &b, to, u64::from(label + 2), &bytes[..1], label + 4);
            let done = finish(&a, &b, 4);
            assert_eq!(done[&(label + 1)].1, Ok(bytes.len()), "{provider}");
            assert!(done[&(label + 1)].0[..bytes.len()] == bytes, "{provider}: {len} bytes");
            assert_eq!(done[&(label + 2)].1, Ok(1), "{provider}");
            assert_eq!(done[&(label + 3)].1, Ok(0), "{provider}");
        }
    }
}

#[test]
fn waiting_is_woken_by_a_message_and_by_nothing_else() {
    for (provider, at) in PROVIDERS {
        let (Some(a), Some(b)) = (open(provider, at), open(provider, at)) else { continue };
        if b.wait_fd().is_none() {
            println!("{provider} has no descriptor to wait on");
            continue;
        }
        let to = a.insert(b.name()).unwrap();
        // The first message makes the connection.
        assert!(b.receive(1, b.buffer(8).unwrap(), 1).is_ok());
        send(&a, &b, to, 1, b"first", 2);
        finish(&a, &b, 2);
        assert!(b.receive(2, b.buffer(8).unwrap(), 3).is_ok());
        let waits = |max_ms: u64| {
            let deadline = Instant::now() + Duration::from_millis(max_ms);
            let mut done = Vec::new();
            loop {
                b.completions(&mut done).unwrap();
                let left = deadline.saturating_duration_since(Instant::now());
                if !done.is_empty() || left.is_zero() {
                    return done.len();
                }
                if b.may_wait() {
                    let fd = b.wait_fd().unwrap();
                    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
                    let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
                    let _ = rustix::event::poll(&mut fds, Some(&timeout));
                }
            }
        };
        assert_eq!(waits(50), 0, "{provider}");
        send(&a, &b, to, 2, b"second", 4);
        assert_eq!(waits(900), 1, "{provider}");
    }
}

#[test]
fn cancelled_and_abandoned_operations_end() {
    for (provider, at) in PROVIDERS {
        let (Some(a), Some(b)) = (open(provider, at), open(provider, at)) else { continue };
        for label in [1, 2] {
            assert!(a.receive(77, a.buffer(1 << 20).unwrap(), label).is_ok());
        }
        a.cancel(|label| *label == 1);
        let done = finish(&a, &b, 1);
        assert!(done[&1].1.is_err(), "{provider}");
        // The other one ends with its endpoint.
        drop(a);
    }
}

#[test]
fn mistakes_are_named() {
    let Some(a) = open("tcp;ofi_rxm", Some("127.0.0.1")) else { return };
    assert!(a.insert(b"short").unwrap_err().to_string().contains("5 bytes"));
    for (provider, word) in [("pigeon", "pigeon"), ("net", "a whole core")] {
        let Err(error) = Endpoint::<u32>::open(provider, None) else { panic!("{provider} is none") };
        assert!(error.to_string().contains(word), "{error}");
    }
    let Some(shm) = open("shm", None) else { return };
    assert!(shm.insert(b"fi_shm://no end").is_err());
}
