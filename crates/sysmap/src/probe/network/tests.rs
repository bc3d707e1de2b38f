//! Two sides in one process, and clients and listeners that lie.

use super::super::RUNS_MIN;
use super::*;
use proptest::prelude::*;
use std::io::{Read, Write};
use std::net::TcpListener;

const SMALL: How = How { size: Some(1 << 20), runs: RUNS_MIN, limit: Duration::from_secs(60) };
const LONG: Duration = Duration::from_secs(60);

fn check(peer: &Peer) {
    for spread in [peer.send, peer.receive, peer.round_trip_seconds] {
        assert!(spread.min > 0.0 && spread.min <= spread.median && spread.median <= spread.max, "{peer:?}");
        assert!(spread.runs >= RUNS_MIN && spread.stdev.is_finite(), "{peer:?}");
    }
}

#[test]
fn loopback_is_measured_and_called_so() {
    let peer = loopback(&SMALL, 3, &Stop::default()).unwrap();
    check(&peer);
    assert_eq!((peer.host.as_str(), peer.taken_ms), (LOOPBACK, 3));
}

#[test]
fn hosts_may_have_ports() {
    for (text, host, port) in [
        ("n1", "n1", PORT),
        ("n1:5", "n1", 5),
        ("10.0.0.1", "10.0.0.1", PORT),
        ("::1", "::1", PORT),
        ("[::1]", "::1", PORT),
        ("[::1]:5", "::1", 5),
        ("n1:x", "n1:x", PORT),
    ] {
        assert_eq!(host_and_port(text), (host, port), "{text}");
    }
}

/// A listener with this secret, with what it refuses, while something is done with its address.
fn beside<T>(
    secret: &Secret,
    act: impl FnOnce(SocketAddr) -> T,
) -> (T, Vec<String>, Result<SocketAddr, ProbeError>) {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let (address, mut refused) = (listener.address(), Vec::new());
    let mut note = |error: ProbeError| refused.push(error.to_string());
    let (done, served) = std::thread::scope(|scope| {
        let serving = scope.spawn(|| listener.serve(secret, LONG, &Stop::default(), &mut note));
        (act(address), serving.join().unwrap())
    });
    (done, refused, served)
}

fn try_peer(address: SocketAddr, secret: &Secret) -> Result<Peer, ProbeError> {
    peer(&address.to_string(), secret, &SMALL, 1, &Stop::default())
}

#[test]
fn another_secret_opens_nothing_and_ends_nothing() {
    let (secret, other) = (Secret::random(), Secret::random());
    let ((wrong, right), refused, served) =
        beside(&secret, |address| (try_peer(address, &other), try_peer(address, &secret)));
    let wrong = wrong.unwrap_err().to_string();
    assert!(wrong.contains("has another secret"), "{wrong}");
    check(&right.unwrap());
    assert_eq!(refused.len(), 1, "{refused:?}");
    served.unwrap();
}

/// A client that does not check the listener's proof gets no further without its own.
#[test]
fn a_forged_proof_is_refused() {
    let secret = Secret::random();
    let (answer, refused, _) = beside(&secret, |address| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"TPNP\x01\x00").unwrap();
        stream.write_all(&[7; 32]).unwrap();
        let mut challenge = [0; 6 + 32 + 32];
        stream.read_exact(&mut challenge).unwrap();
        // The listener's own proof is not one of a client.
        stream.write_all(&challenge[38..]).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        // So that it ends.
        check(&try_peer(address, &secret).unwrap());
        answer
    });
    assert_eq!(answer, [0]);
    assert!(refused[0].contains("does not know the secret"), "{refused:?}");
}

#[test]
fn nobody_there_and_nobody_coming_are_said() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = try_peer(free, &Secret::random()).unwrap_err().to_string();
    assert!(error.contains("refused") && error.contains("--listen` running there?"), "{error}");
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let none = listener.serve(&Secret::random(), Duration::ZERO, &Stop::default(), &mut |_| {});
    assert!(none.unwrap_err().to_string().contains("nobody has come in time"));
    let stop = Stop::default();
    stop.0.store(true, std::sync::atomic::Ordering::Release);
    assert!(matches!(listener.serve(&Secret::random(), LONG, &stop, &mut |_| {}), Err(ProbeError::Stopped)));
    assert!(Listener::bind(&listener.address().to_string()).err().unwrap().to_string().contains("HOST:0"));
}

#[test]
fn addresses_of_this_node_are_known() {
    let at = |text: &str| format!("{text}:1").parse::<SocketAddr>().unwrap();
    assert!(is_here(at("127.0.0.1")) && is_here(at("127.3.2.1")));
    // For documentation: nobody has it.
    assert!(!is_here(at("192.0.2.1")));
}

/// A link so slow that a run takes longer than its share gets shorter runs.
#[test]
fn slow_links_get_shorter_runs() {
    let mut counts = Vec::new();
    let slow = |count: u64| {
        counts.push(count);
        std::thread::sleep(Duration::from_micros(count / 4));
        Ok(())
    };
    let rates = runs(5, 1 << 30, Duration::from_millis(20), slow).unwrap();
    assert_eq!((rates.len(), counts.len()), (5, 6));
    assert!(counts[0] == COUNT_FIRST && counts[1..].iter().all(|count| *count < COUNT_FIRST), "{counts:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever a client says, the listener refuses it and serves the next one.
    #[test]
    fn garbage_is_refused(garbage in proptest::collection::vec(any::<u8>(), 0..200), greets in any::<bool>()) {
        let secret = Secret::random();
        let (peer, refused, served) = beside(&secret, |address| {
            let mut stream = TcpStream::connect(address).unwrap();
            let hello: &[u8] = if greets { b"TPNP\x01\x00" } else { b"" };
            // It may be refused before all is said.
            let _ = stream.write_all(hello).and_then(|()| stream.write_all(&garbage));
            drop(stream);
            try_peer(address, &secret)
        });
        prop_assert!(peer.is_ok(), "{peer:?}");
        prop_assert_eq!(refused.len(), 1);
        prop_assert!(served.is_ok());
    }

    /// Whatever a listener says, the client says that it is none.
    #[test]
    fn a_lying_listener_is_refused(garbage in proptest::collection::vec(any::<u8>(), 0..200), greets in any::<bool>()) {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = socket.accept().unwrap();
                let hello: &[u8] = if greets { b"TPNP\x01\x00" } else { b"" };
                let _ = stream.write_all(hello).and_then(|()| stream.write_all(&garbage));
            });
            try_peer(address, &Secret::random()).unwrap_err()
        });
        prop_assert!(!error.to_string().is_empty());
    }
}
