//! `GET /metrics`, and nothing else. One connection at a time, each for a limited time: who asks is a scraper, now and then.

use crate::exit::{Context, Kind, Result};
use crate::signals::Signals;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How often it is looked whether somebody asks, and whether a signal came.
const POLL: Duration = Duration::from_millis(50);
/// A connection is closed then, whatever it does.
const CONNECTION_MAX: Duration = Duration::from_secs(10);
/// Bytes and lines of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;

pub fn serve(address: SocketAddr, mut text: impl FnMut() -> Result<String>) -> Result<ExitCode> {
    let told = || format!("listening on {address}; choose another --listen");
    let listener = TcpListener::bind(address).context(Kind::Other, told)?;
    listener.set_nonblocking(true).context(Kind::Other, told)?;
    let bound = listener.local_addr().context(Kind::Other, told)?;
    let signals = Signals::watch()?;
    eprintln!("tidepool: http://{bound}/metrics");
    loop {
        signals.check()?;
        match listener.accept() {
            // Who hangs up early misses the answer, which is nobody else's business.
            Ok((stream, _)) => drop(answer(&stream, &mut text)),
            Err(_) => std::thread::sleep(POLL),
        }
    }
}

fn answer(stream: &TcpStream, text: &mut impl FnMut() -> Result<String>) -> io::Result<()> {
    let until = Instant::now() + CONNECTION_MAX;
    stream.set_nonblocking(false)?;
    let reply = match head(stream, until)? {
        Asked::Metrics => match text() {
            Ok(text) => reply("200 OK", "text/plain; version=0.0.4; charset=utf-8", "", &text),
            Err(failure) => plain("500 Internal Server Error", "", &failure.to_string()),
        },
        Asked::Elsewhere => plain("404 Not Found", "", "there is /metrics only"),
        Asked::OtherMethod => plain("405 Method Not Allowed", "Allow: GET\r\n", "only GET is answered"),
        Asked::Nonsense => plain("400 Bad Request", "", "this is no request"),
    };
    put(stream, reply.as_bytes(), until)?;
    stream.shutdown(std::net::Shutdown::Write)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Metrics,
    Elsewhere,
    OtherMethod,
    Nonsense,
}

fn head(mut stream: &TcpStream, until: Instant) -> io::Result<Asked> {
    let mut bytes = Vec::new();
    let mut piece = [0; 1024];
    loop {
        if let Some(asked) = asked(&bytes) {
            return Ok(asked);
        }
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut piece)? {
            0 => return Ok(Asked::Nonsense),
            count => bytes.extend(&piece[..count]),
        }
    }
}

/// None while more has to come.
fn asked(bytes: &[u8]) -> Option<Asked> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) if bytes.len() <= HEAD_BYTES_MAX => None,
        Ok(httparse::Status::Partial) | Err(_) => Some(Asked::Nonsense),
        Ok(httparse::Status::Complete(_)) => {
            let path = request.path.unwrap_or_default().split('?').next();
            Some(match (request.method, path) {
                (Some("GET"), Some("/metrics")) => Asked::Metrics,
                (Some("GET"), _) => Asked::Elsewhere,
                _ => Asked::OtherMethod,
            })
        }
    }
}

fn put(mut stream: &TcpStream, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        let count = stream.write(bytes)?;
        bytes = &bytes[count..];
    }
    Ok(())
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn plain(status: &str, header: &str, text: &str) -> String {
    reply(status, "text/plain; charset=utf-8", header, &format!("{text}\n"))
}

fn reply(status: &str, kind: &str, header: &str, text: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{header}Connection: close\r\n\r\n{text}",
        text.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_metrics_are_given() {
        for (head, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", Some(Asked::Metrics)),
            ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", Some(Asked::Metrics)),
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n", None),
            ("GET / HTTP/1.1\r\n\r\n", Some(Asked::Elsewhere)),
            ("GET /metrics/.. HTTP/1.1\r\n\r\n", Some(Asked::Elsewhere)),
            ("POST /metrics HTTP/1.1\r\n\r\n", Some(Asked::OtherMethod)),
            ("\x01\x02", Some(Asked::Nonsense)),
        ] {
            assert_eq!(asked(head.as_bytes()), expected, "{head}");
        }
        let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(HEAD_BYTES_MAX));
        assert_eq!(asked(long.as_bytes()), Some(Asked::Nonsense));
    }
}
