//! What a stager of another node can be asked for besides directories: a connection that from then on carries something else.

use super::frame::Channel;
use super::greeting::{GreetError, Greeting, Meant, Peer, greet, refuse};
use crate::auth::Secret;
use crate::sealed::{Sealed, SealedReader, SealedWriter};
use crate::socket::watch_tcp;
use crate::{CONNECT_MS_MAX, WATCH_MS_MAX, tune_tcp};
use std::fmt;
use std::io;
use std::net::{IpAddr, Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

tidepool_wire::messages! {
    /// What a connection may be wanted for.
    Door {
        /// The stager's own protocol (format 11), as on its control socket.
        60 Control {}
        /// Input and output of the agent of a pool's node, started as this user, for this job.
        61 Agent { uid: u32, gid: u32, groups: Vec<u32>, job: u32, node: u32 }
    }
}

/// Number of the message Done.
const DONE: u16 = 101;

/// Why there is no connection.
#[derive(Debug)]
pub enum DoorError {
    /// There is no connection at all.
    Connect(io::Error),
    Greet(GreetError),
    /// The stager does not want to, as it says.
    Shut(String),
    /// The stager does not know of such a thing.
    Older,
}

impl fmt::Display for DoorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DoorError::Connect(error) => error.fmt(f),
            DoorError::Greet(error) => error.fmt(f),
            DoorError::Shut(reason) => f.write_str(reason),
            DoorError::Older => f.write_str("knows no such request; use one release"),
        }
    }
}

impl std::error::Error for DoorError {}

impl From<GreetError> for DoorError {
    fn from(error: GreetError) -> DoorError {
        DoorError::Greet(error)
    }
}

impl From<io::Error> for DoorError {
    fn from(error: io::Error) -> DoorError {
        DoorError::Connect(error)
    }
}

impl From<DoorError> for io::Error {
    fn from(error: DoorError) -> io::Error {
        use std::io::ErrorKind;
        let kind = match &error {
            DoorError::Connect(error) | DoorError::Greet(GreetError::Lost(error)) => error.kind(),
            DoorError::Greet(GreetError::Later(_)) => ErrorKind::ConnectionRefused,
            DoorError::Greet(GreetError::Refused(_) | GreetError::Stranger | GreetError::Other(_))
            | DoorError::Shut(_) => ErrorKind::PermissionDenied,
            DoorError::Greet(_) | DoorError::Older => ErrorKind::InvalidData,
        };
        match error {
            DoorError::Connect(error) | DoorError::Greet(GreetError::Lost(error)) => error,
            error => io::Error::new(kind, error),
        }
    }
}

/// Connects to `address`, which is `host:port`, and gives up after [`CONNECT_MS_MAX`] with each address of the host.
fn dial(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, Duration::from_millis(CONNECT_MS_MAX)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Connects to the stager that listens at `address`, and proves both sides to each other: this one is called `own`, and the
/// other one has to be `meant`.
pub fn connect(
    address: &str,
    secret: &Secret,
    (own, meant): (&str, &Meant),
) -> Result<Channel<Sealed<TcpStream>>, GreetError> {
    let stream = dial(address)?;
    tune_tcp(&stream)?;
    wait_at_most(&stream, Some(Duration::from_millis(CONNECT_MS_MAX)))?;
    let mut channel = Channel::new(Sealed::new(stream));
    greet(secret, (own, meant), &mut channel)?;
    Ok(channel)
}

/// Connects to the stager that listens at `address`, and asks. What is returned leads to the
/// stager: threads of this process seal what is written to it, and open what is read.
pub fn open_door(address: &str, secret: &Secret, door: &Door) -> Result<UnixStream, DoorError> {
    let mut channel = connect(address, secret, ("", &Meant::anybody())).map_err(|error| match error {
        GreetError::Lost(error) => DoorError::Connect(error),
        error => DoorError::Greet(error),
    })?;
    channel.send(door.kind(), 0, |out| door.encode(out), &[])?;
    let head = channel.receive()?;
    channel.bulk(&head)?;
    match (head.kind, Greeting::decode(head.kind, channel.meta())) {
        (DONE, _) => {}
        (_, Ok(Greeting::Refused { reason })) => return Err(DoorError::Shut(reason)),
        _ => return Err(DoorError::Older),
    }
    settle(channel.get_ref().get_ref())?;
    Ok(lead(channel)?)
}

/// Lets the other side's bytes come and go by a local socket.
fn lead(channel: Channel<Sealed<TcpStream>>) -> io::Result<UnixStream> {
    let (here, there) = UnixStream::pair()?;
    pass_on(channel, there)?;
    Ok(here)
}

/// The same by a socket that is there already: whoever has its other end speaks and hears, and has no keys.
pub fn pass_on(channel: Channel<Sealed<TcpStream>>, there: UnixStream) -> io::Result<()> {
    wait_at_most(channel.get_ref().get_ref(), None)?;
    let sealed = channel.into_stream();
    let handle = sealed.get_ref().try_clone()?;
    let (reader, writer) = sealed.split(handle)?;
    let (from, to) = (there.try_clone()?, there);
    std::thread::Builder::new().name("seal".into()).spawn(move || seal(from, writer))?;
    std::thread::Builder::new().name("open".into()).spawn(move || open(reader, &to))?;
    Ok(())
}

/// Sends what is said here, to the end of it.
fn seal(mut from: UnixStream, mut to: SealedWriter<TcpStream>) {
    // How it ends is seen by both sides.
    if io::copy(&mut from, &mut to).is_ok() {
        let _ = to.end();
        let _ = to.get_ref().shutdown(Shutdown::Write);
    } else {
        let _ = to.get_ref().shutdown(Shutdown::Both);
    }
    let _ = from.shutdown(Shutdown::Read);
}

/// Says here what comes, to the end of it.
fn open(mut from: SealedReader<TcpStream>, mut to: &UnixStream) {
    let heard = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
    if heard.is_err() {
        // Nothing said from here on would be heard either.
        let _ = to.shutdown(Shutdown::Both);
    }
}

fn wait_at_most(stream: &TcpStream, timeout: Option<Duration>) -> io::Result<()> {
    stream.set_read_timeout(timeout)?;
    stream.set_write_timeout(timeout)
}

/// From here on either side may be silent for as long as it lives.
fn settle(stream: &TcpStream) -> io::Result<()> {
    wait_at_most(stream, None)?;
    watch_tcp(stream, Duration::from_millis(WATCH_MS_MAX))
}

/// Who stands at a door and has proved that it knows the secret.
pub struct Guest {
    channel: Channel<Sealed<TcpStream>>,
    id: u32,
    peer: Peer,
}

impl Guest {
    /// `id`: number of the request.
    pub fn new(channel: Channel<Sealed<TcpStream>>, id: u32, peer: Peer) -> Guest {
        Guest { channel, id, peer }
    }

    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Where it comes from, for people.
    pub fn address(&self) -> String {
        let address = self.channel.get_ref().get_ref().peer_addr();
        address.map_or_else(|_| "an unknown address".into(), |address| address.to_string())
    }

    /// The address of this node at which it has come.
    pub fn reached_at(&self) -> Option<IpAddr> {
        self.channel.get_ref().get_ref().local_addr().ok().map(|address| address.ip())
    }

    /// Says that it is done; what is returned leads to the other side.
    pub fn let_in(mut self) -> io::Result<UnixStream> {
        self.channel.send(DONE, self.id, |_| (), &[])?;
        settle(self.channel.get_ref().get_ref())?;
        lead(self.channel)
    }

    /// Says why not.
    pub fn turn_away(mut self, reason: &str) -> io::Result<()> {
        refuse(&mut self.channel, reason)
    }
}

#[cfg(test)]
mod tests {
    use super::super::greeting::admit;
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    fn secret() -> Secret {
        Secret::from_hex(&"5a".repeat(32)).unwrap()
    }

    /// One connection is greeted, and what it asks for is given to `serve`.
    fn serve(serve: impl FnOnce(Door, Guest) + Send + 'static) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let mut channel = Channel::new(Sealed::new(listener.accept().unwrap().0));
            if let Ok((peer, ())) = admit(&[secret()], "n1", &mut channel, |_, _| Ok(())).unwrap() {
                let head = channel.receive().unwrap();
                let door = Door::decode(head.kind, channel.meta()).unwrap();
                serve(door, Guest::new(channel, head.id, peer));
            }
        });
        address
    }

    #[test]
    fn what_follows_the_answer_is_left_to_who_comes_next() {
        let address = serve(|door, guest| {
            assert_eq!(door, Door::Control {});
            // Already there when the answer is sent.
            let mut stream = guest.let_in().unwrap();
            stream.write_all(b"from the server").unwrap();
            let mut heard = Vec::new();
            stream.read_to_end(&mut heard).unwrap();
            assert_eq!(heard, b"from the client");
        });
        let mut stream = open_door(&address, &secret(), &Door::Control {}).unwrap();
        let mut heard = [0; 15];
        stream.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"from the server");
        stream.write_all(b"from the client").unwrap();
    }

    #[test]
    fn a_shut_door_tells_why() {
        let address = serve(|_, guest| guest.turn_away("not today").unwrap());
        let error = open_door(&address, &secret(), &Door::Control {}).unwrap_err();
        assert!(matches!(&error, DoorError::Shut(reason) if reason == "not today"), "{error:?}");
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::PermissionDenied);
        let address = serve(|_, _| panic!("nobody gets here"));
        let error = open_door(&address, &Secret::random(), &Door::Control {}).unwrap_err();
        assert!(matches!(error, DoorError::Greet(GreetError::Refused(_))), "{error:?}");
    }

    #[test]
    fn nobody_there_is_an_error_of_the_system() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = open_door(&free.to_string(), &secret(), &Door::Control {}).unwrap_err();
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn bytes_are_pinned() {
        let mut bytes = Vec::new();
        Door::Control {}.encode(&mut bytes);
        assert_eq!((Door::Control {}.kind(), bytes), (60, Vec::new()));
        let agent = Door::Agent { uid: 1, gid: 2, groups: vec![3, 4], job: 5, node: 6 };
        let mut bytes = Vec::new();
        agent.encode(&mut bytes);
        let expected = b"\x01\0\0\0\x02\0\0\0\x02\0\0\0\x03\0\0\0\x04\0\0\0\x05\0\0\0\x06\0\0\0".to_vec();
        assert_eq!((agent.kind(), &bytes), (61, &expected));
        assert_eq!(Door::decode(61, &bytes), Ok(agent));
    }
}
