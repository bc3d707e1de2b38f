//! What comes through between two nodes, over TCP. The measuring side asks, the listening side takes, gives and echoes.

mod line;
mod listen;
#[cfg(test)]
mod tests;

pub use line::COUNT_MAX;
pub use listen::Listener;

use super::{How, ProbeError, SIZE_DEFAULT, Spread, Stop, noise};
use line::{Kind, Line};
use serde::Serialize;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};
use tidepool_transport::Secret;

/// Where a listening side is looked for, unless somebody says otherwise.
pub const PORT: u16 = 42010;
/// The name under which a node's own loopback is recorded. It is no network.
pub const LOOPBACK: &str = "loopback";
/// How long connecting may take, for each address of a host.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long the proof of the secret may take.
const GREET_MAX: Duration = Duration::from_secs(5);
/// Small messages before they are timed, and those that are.
const PINGS_WARM: usize = 50;
const PINGS_MAX: usize = 1000;
/// A run grows from the first to what takes so long, if that may be so much.
const COUNT_FIRST: u64 = 64 << 10;
const RUN_ENOUGH: Duration = Duration::from_millis(200);
/// Bytes that are handed to the kernel at a time.
const PART: usize = 256 << 10;

/// What was measured between this node and another one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Peer {
    pub host: String,
    /// Bytes per second.
    pub send: Spread,
    pub receive: Spread,
    /// Of a message of 16 bytes.
    pub round_trip_seconds: Spread,
    /// Milliseconds since 1970.
    pub taken_ms: u64,
}

/// Measures with who listens at `HOST` or `HOST:PORT`. If that is this node itself, it is called [`LOOPBACK`].
pub fn peer(address: &str, secret: &Secret, how: &How, now_ms: u64, stop: &Stop) -> Result<Peer, ProbeError> {
    let failed =
        |source, advice| ProbeError::Io { what: address.into(), doing: "connecting", source, advice };
    let (host, port) = host_and_port(address);
    let stream = connect(host, port).map_err(|error| failed(error, LISTEN))?;
    let at = stream.peer_addr().map_err(|error| failed(error, ""))?;
    let host = if is_here(at) { LOOPBACK } else { host };
    let line = Line::new(stream, address.into(), Instant::now() + GREET_MAX, stop)?;
    measure(line, host, secret, how, now_ms)
}

const LISTEN: &str = "is `tidepool sysmap probe --listen` running there?";

/// Measures this node's own loopback.
pub fn loopback(how: &How, now_ms: u64, stop: &Stop) -> Result<Peer, ProbeError> {
    let secret = Secret::random();
    let listener = Listener::bind("127.0.0.1:0")?;
    let at = listener.address();
    std::thread::scope(|scope| {
        // Its own troubles show on this side, too.
        let serving = scope.spawn(|| listener.serve(&secret, GREET_MAX, stop, &mut |_| {}));
        let found = peer(&at.to_string(), &secret, how, now_ms, stop);
        let served = serving.join();
        match (found, served) {
            (Ok(_), Ok(Err(error))) => Err(error),
            (found, _) => found,
        }
    })
}

/// Whether a connection to there stays on this node.
fn is_here(at: SocketAddr) -> bool {
    // Only addresses of this node can be bound to.
    std::net::UdpSocket::bind((at.ip(), 0)).is_ok()
}

fn measure(
    mut line: Line<'_>,
    host: &str,
    secret: &Secret,
    how: &How,
    now_ms: u64,
) -> Result<Peer, ProbeError> {
    line.greet(secret)?;
    let mut line = line.with_time(Instant::now() + how.limit);
    let slice = how.slice();
    let round_trips = pings(&mut line, how.runs, slice)?;
    let most = how.size.unwrap_or(SIZE_DEFAULT).clamp(COUNT_FIRST, COUNT_MAX);
    let mut noise = vec![0; PART];
    noise::fill(&mut noise, now_ms);
    let sent = runs(how.runs, most, slice, |count| {
        line.ask(Kind::Take, count)?;
        line.pour(&noise, count)?;
        line.echoed(Kind::Take, count)
    })?;
    let received = runs(how.runs, most, slice, |count| {
        line.ask(Kind::Give, count)?;
        line.drain(&mut noise, count)
    })?;
    // Who does not hear the end notices that the connection has ended.
    let _ = line.ask(Kind::End, 0);
    let spreads = Spread::of(sent).zip(Spread::of(received)).zip(Spread::of(round_trips));
    let ((send, receive), round_trip_seconds) =
        spreads.ok_or_else(|| line.failed(io::Error::other("no run was asked for")))?;
    Ok(Peer { host: host.into(), send, receive, round_trip_seconds, taken_ms: now_ms })
}

/// Seconds of small messages.
fn pings(line: &mut Line<'_>, least: usize, most: Duration) -> Result<Vec<f64>, ProbeError> {
    let (begun, mut seconds) = (Instant::now(), Vec::with_capacity(PINGS_MAX));
    let mut warm = 0;
    while seconds.len() < least || (seconds.len() < PINGS_MAX && begun.elapsed() < most) {
        let start = Instant::now();
        line.ask(Kind::Ping, warm as u64)?;
        line.echoed(Kind::Ping, warm as u64)?;
        // Where each takes long, none is spent on warming up.
        match warm < PINGS_WARM && begun.elapsed() < most / 2 {
            true => warm += 1,
            false => seconds.push(start.elapsed().as_secs_f64()),
        }
    }
    Ok(seconds)
}

/// Bytes per second of runs, each with as many bytes as take long enough.
fn runs(
    runs: usize,
    most: u64,
    slice: Duration,
    mut run: impl FnMut(u64) -> Result<(), ProbeError>,
) -> Result<Vec<f64>, ProbeError> {
    let mut timed = |count: u64| {
        let start = Instant::now();
        run(count).map(|()| start.elapsed())
    };
    let mut count = COUNT_FIRST;
    loop {
        let took = timed(count)?;
        if took > slice / 2 {
            // The rest of the time is for the runs.
            count = shrunk(count, took, slice / 2);
            break;
        }
        if took >= RUN_ENOUGH || count >= most {
            break;
        }
        count = (count * 2).min(most);
    }
    (0..runs).map(|_| timed(count).map(|took| (count as f64 / took.as_secs_f64()).round().max(1.0))).collect()
}

/// What takes so long where `count` took `took`.
fn shrunk(count: u64, took: Duration, most: Duration) -> u64 {
    ((count as f64 * most.as_secs_f64() / took.as_secs_f64()) as u64).max(1)
}

/// `n1`, `n1:42010`, `10.0.0.1`, `fe80::1`, `[fe80::1]:42010`.
fn host_and_port(address: &str) -> (&str, u16) {
    let bare = |host: &str| host.starts_with('[') && host.ends_with(']');
    match address.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || bare(host) => match port.parse() {
            Ok(port) => (host.trim_matches(['[', ']']), port),
            // No such host, as connecting will say.
            Err(_) => (address, PORT),
        },
        _ => (address.trim_matches(['[', ']']), PORT),
    }
}

fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "this host has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_MAX) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
