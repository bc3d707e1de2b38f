//! The side that listens: it serves one client that knows the secret, and ends.

use super::super::{ProbeError, Stop, noise};
use super::line::{Kind, Line};
use super::{GREET_MAX, PART, host_and_port};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};
use tidepool_transport::Secret;

/// How long a client may measure.
const SESSION_MAX: Duration = Duration::from_secs(3600);
/// How often it is looked whether somebody has come.
const LOOK_AROUND: Duration = Duration::from_millis(10);

pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// At `HOST` or `HOST:PORT`; with port 0 at one that is free.
    pub fn bind(text: &str) -> Result<Listener, ProbeError> {
        let failed = |source: io::Error| {
            let advice = match source.kind() {
                io::ErrorKind::AddrInUse => "HOST:0 takes a port that is free",
                io::ErrorKind::AddrNotAvailable => "name an address of this node",
                _ => "",
            };
            ProbeError::Io { what: text.into(), doing: "listening", source, advice }
        };
        let bind = || {
            let addresses: Vec<SocketAddr> = host_and_port(text).to_socket_addrs()?.collect();
            let socket = TcpListener::bind(addresses.as_slice())?;
            socket.set_nonblocking(true)?;
            let address = socket.local_addr()?;
            Ok(Listener { socket, address })
        };
        bind().map_err(failed)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the first client that proves the secret. Those that do not are told of, and waiting goes on.
    pub fn serve(
        &self,
        secret: &Secret,
        wait: Duration,
        stop: &Stop,
        refused: &mut dyn FnMut(ProbeError),
    ) -> Result<SocketAddr, ProbeError> {
        let until = Instant::now() + wait;
        loop {
            stop.check()?;
            if Instant::now() >= until {
                return Err(self.failed(io::Error::new(io::ErrorKind::TimedOut, "nobody has come in time")));
            }
            match self.socket.accept() {
                Ok((stream, from)) => match greeted(stream, from, secret, stop) {
                    Ok(line) => return session(line).map(|()| from),
                    Err(ProbeError::Stopped) => return Err(ProbeError::Stopped),
                    Err(error) => refused(error),
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(LOOK_AROUND),
                // One that came and went.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    fn failed(&self, source: io::Error) -> ProbeError {
        ProbeError::Io { what: self.address.to_string(), doing: "waiting for a client", source, advice: "" }
    }
}

fn greeted<'a>(
    stream: TcpStream,
    from: SocketAddr,
    secret: &Secret,
    stop: &'a Stop,
) -> Result<Line<'a>, ProbeError> {
    let mut line = Line::new(stream, from.to_string(), Instant::now() + GREET_MAX, stop)?;
    line.be_greeted(secret)?;
    Ok(line.with_time(Instant::now() + SESSION_MAX))
}

/// Does what it is asked for, up to the end.
fn session(mut line: Line<'_>) -> Result<(), ProbeError> {
    let mut room = vec![0; PART];
    noise::fill(&mut room, std::process::id().into());
    loop {
        let frame = line.frame()?;
        match frame.kind {
            Kind::Ping => line.ask(Kind::Ping, frame.count)?,
            Kind::Take => {
                line.drain(&mut room, frame.count)?;
                line.ask(Kind::Take, frame.count)?;
            }
            Kind::Give => line.pour(&room, frame.count)?,
            Kind::End => return Ok(()),
        }
    }
}
