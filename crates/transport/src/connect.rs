//! Connecting a client to one daemon, nearest transport first.

use crate::auth::{ClientAuth, Secret};
use crate::choice::{TRANSPORT_VARIABLE, Transport, UnknownTransport};
use crate::fabric::{self, Endpoints};
use crate::local::LocalLink;
use crate::patient::Patient;
use crate::pool_greeting::{Asking, Terms};
use crate::sealed::Sealed;
use crate::socket::{SocketLink, tune_tcp};
use crate::{ANSWER_MS_DEFAULT, CONNECT_MS_MAX, FABRIC_BUILT, Link};
use socket2::{Domain, SockAddr, Socket, Type};
use std::fmt;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tidepool_types::{DaemonIndex, Encryption, InstanceId, SessionId};
use tidepool_wire::frame::{FLAG_PACED, Header};
use tidepool_wire::message::{Handshake, Member, PROTOCOL_VERSION};

/// Who a client is to the daemons.
#[derive(Clone, Debug)]
pub struct Identity {
    pub instance: InstanceId,
    pub session: SessionId,
    pub secret: Secret,
    /// Of what goes over TCP.
    pub encryption: Encryption,
}

impl Identity {
    fn terms(&self) -> Terms<'_> {
        Terms { secret: &self.secret, instance: self.instance, encryption: self.encryption }
    }
}

/// The node this process runs on, to tell whether a Unix socket can be reached, and which ways it
/// takes.
#[derive(Clone, Debug)]
pub struct LocalNode {
    pub boot_id: String,
    /// An error is one at the first connection: not every user of this can report it before.
    pub transport: Result<Transport, UnknownTransport>,
    /// Provider of the pool's fabric, if it has one that this process may use.
    pub fabric: Option<String>,
    /// Of this process, for that fabric.
    pub endpoints: Endpoints,
    /// How long a daemon that says nothing is waited for, in the handshake and at each request.
    pub answer: Duration,
}

impl LocalNode {
    /// Reads the kernel's boot id, which all name spaces of a node share, and the environment.
    pub fn detect() -> LocalNode {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        LocalNode {
            boot_id: text.trim().to_string(),
            transport: Transport::from_env(),
            fabric: None,
            endpoints: Endpoints::default(),
            answer: Duration::from_millis(ANSWER_MS_DEFAULT),
        }
    }

    /// For processes that must not use a fabric: the preload library, whose programs' descriptors and threads are
    /// their own, and the daemons, whose few words with each other need none.
    pub fn without_fabric(self) -> LocalNode {
        let transport = self.transport.map(|t| if t == Transport::Fabric { Transport::Tcp } else { t });
        LocalNode { transport, fabric: None, ..self }
    }

    /// The provider of the fabric on which daemons of other nodes are to be reached.
    fn provider(&self, transport: Transport) -> Result<Option<&str>, &'static str> {
        match (transport, &self.fabric) {
            (Transport::Fabric, None) => Err("the pool has no fabric; start it with --fabric PROVIDER"),
            (Transport::Fabric, Some(provider)) => Ok(Some(provider)),
            (Transport::Auto, Some(provider)) if FABRIC_BUILT => Ok(Some(provider)),
            _ => Ok(None),
        }
    }

    /// Whether daemons of this node may be reached through shared memory and their files read.
    pub fn shares_memory(&self) -> bool {
        self.transport == Ok(Transport::Auto)
    }
}

/// Why no connection came about.
#[derive(Debug)]
pub struct ConnectError {
    pub host: String,
    pub what: String,
    pub source: Option<io::Error>,
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}: {}", self.host, self.what)?;
        match &self.source {
            Some(error) => write!(f, ": {error}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ConnectError {}

/// A connection after its handshake.
pub struct Connected {
    pub link: Box<dyn Link>,
    /// Directory epoch of the daemon at the time of the handshake.
    pub epoch: u64,
    pub index: DaemonIndex,
    /// False while the daemon has not been told its peers.
    pub configured: bool,
    /// Before data are moved, the daemon is to be asked.
    pub paced: bool,
}

impl fmt::Debug for Connected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connected to daemon {} at epoch {}", self.index, self.epoch)
    }
}

/// Connects to `member` by its Unix socket when it is on this node, else by TCP, and
/// proves both sides to each other. `place` may move the socket's descriptor elsewhere.
pub fn connect(
    member: &Member,
    local: &LocalNode,
    identity: &Identity,
    place: impl Fn(OwnedFd) -> OwnedFd,
) -> Result<Connected, ConnectError> {
    let fail = |what: &str, source| ConnectError { host: member.host.clone(), what: what.into(), source };
    let transport = *local.transport.as_ref().map_err(|e| fail(&e.to_string(), None))?;
    let unix = if transport.is_near() { open_unix(member, local) } else { Ok(None) };
    let unix = unix.map_err(|e| fail("its daemon takes no connections", Some(e)))?;
    let (link, done): (Box<dyn Link>, Done) = match unix {
        Some(stream) => {
            let stream = UnixStream::from(place(stream.into()));
            let mut link = LocalLink::new(stream, local.shares_memory());
            let done = greet(&mut link, member, local.answer, |link| prove(link, identity))?;
            (Box::new(link), done)
        }
        None => {
            let stream = open_tcp(member, transport);
            let stream = stream.map_err(|e| fail("cannot connect to its daemon", Some(e)))?;
            let mut link = SocketLink::new(Sealed::new(Patient::new(place(stream.into()).into())));
            let done = greet(&mut link, member, local.answer, |link| prove_far(link, member, identity))?;
            match local.provider(transport).map_err(|why| fail(why, None))? {
                Some(provider) => {
                    let opened = fabric::open(link, provider, &local.endpoints, local.answer);
                    let advice = "cannot use the pool's fabric (TIDEPOOL_TRANSPORT=tcp does without)";
                    (opened.map_err(|e| fail(advice, Some(e)))?, done)
                }
                None => (Box::new(link), done),
            }
        }
    };
    let Done { epoch, index, configured, paced } = done;
    Ok(Connected { link, epoch, index, configured, paced })
}

/// Both sides prove themselves to each other as `prove` does it. A daemon that says nothing is waited for as at a request.
fn greet<L: Link>(
    link: &mut L,
    member: &Member,
    answer: Duration,
    prove: impl FnOnce(&mut L) -> Result<(), HandshakeError>,
) -> Result<Done, ConnectError> {
    let fail = |what: &str, source| ConnectError { host: member.host.clone(), what: what.into(), source };
    let timeout = link.set_timeout(answer);
    timeout.map_err(|e| fail("cannot set a timeout", Some(e)))?;
    let done = prove(link).and_then(|()| welcomed(link)).map_err(|e| match e {
        HandshakeError::Io(error) => fail("handshake failed", Some(error)),
        HandshakeError::Said(text) => fail(&text, None),
    })?;
    if done.index != member.index {
        return Err(fail("answered as another member of the pool; is the pool file out of date?", None));
    }
    Ok(done)
}

/// The Unix socket, when the daemon is on this node and the socket can be reached (it
/// cannot from inside a container with a file system of its own). An error: the daemon is there, and takes nobody.
fn open_unix(member: &Member, local: &LocalNode) -> io::Result<Option<UnixStream>> {
    if member.unix.is_empty() || member.boot_id != local.boot_id {
        return Ok(None);
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // The kernel has connecting wait as long as sending, where too many wait already to be taken.
    socket.set_write_timeout(Some(local.answer))?;
    match SockAddr::unix(&member.unix).and_then(|address| socket.connect(&address)) {
        Ok(()) => Ok(Some(socket.into())),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
        Err(_) => Ok(None),
    }
}

fn open_tcp(member: &Member, transport: Transport) -> io::Result<TcpStream> {
    if member.tcp.is_empty() {
        let why = match transport {
            Transport::Tcp | Transport::Fabric => format!(
                "it does not listen on TCP; set {TRANSPORT_VARIABLE}=tcp also where the pool is started"
            ),
            _ => format!("nothing listens at {} (is the daemon running?)", member.unix),
        };
        return Err(io::Error::new(io::ErrorKind::NotConnected, why));
    }
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address");
    for address in member.tcp.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, Duration::from_millis(CONNECT_MS_MAX)) {
            Ok(stream) => {
                tune_tcp(&stream)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

enum HandshakeError {
    Io(io::Error),
    Said(String),
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> HandshakeError {
        HandshakeError::Io(error)
    }
}

struct Done {
    epoch: u64,
    index: DaemonIndex,
    configured: bool,
    paced: bool,
}

/// On a Unix socket.
fn prove(link: &mut dyn Link, identity: &Identity) -> Result<(), HandshakeError> {
    let auth = ClientAuth::new(&identity.secret, identity.instance);
    let hello = Handshake::Hello {
        version: PROTOCOL_VERSION,
        instance: identity.instance,
        session: identity.session,
        nonce: auth.nonce(),
    };
    send(link, &hello)?;
    let (nonce, proof) = match receive(link)?.0 {
        Handshake::Challenge { version: PROTOCOL_VERSION, nonce, proof } => (nonce, proof),
        Handshake::Challenge { version, .. } => {
            return Err(HandshakeError::Said(format!(
                "speaks protocol version {version}, this client {PROTOCOL_VERSION}; use the same release"
            )));
        }
        other => return Err(unexpected(other)),
    };
    let answer = auth.answer(&nonce, &proof).ok_or_else(stranger)?;
    Ok(send(link, &Handshake::Answer { proof: answer })?)
}

/// On TCP. What follows is sealed where the pool wants that.
fn prove_far(
    link: &mut SocketLink<Sealed<Patient>>,
    member: &Member,
    identity: &Identity,
) -> Result<(), HandshakeError> {
    let Identity { instance, encryption, .. } = *identity;
    let (asking, noise) = Asking::begin(&identity.terms(), member.index)?;
    let encrypted = !encryption.is_off();
    send(link, &Handshake::Begin { version: PROTOCOL_VERSION, instance, encrypted, noise })?;
    let noise = match receive(link)?.0 {
        Handshake::Middle { noise } => noise,
        other => return Err(unexpected(other)),
    };
    let (greeted, noise) = asking.end(&noise, identity.session)?.ok_or_else(stranger)?;
    send(link, &Handshake::End { noise })?;
    if encrypted {
        greeted.seal(link.stream_mut());
    }
    Ok(())
}

fn stranger() -> HandshakeError {
    HandshakeError::Said("does not know this pool's secret; it is not ours".into())
}

fn welcomed(link: &mut dyn Link) -> Result<Done, HandshakeError> {
    match receive(link)? {
        (Handshake::Welcome { index, configured }, header) => {
            let paced = header.flags & FLAG_PACED != 0;
            Ok(Done { epoch: header.epoch, index, configured, paced })
        }
        (other, _) => Err(unexpected(other)),
    }
}

fn unexpected(message: Handshake) -> HandshakeError {
    match message {
        Handshake::Refused { reason } => HandshakeError::Said(format!("refused: {reason}")),
        other => HandshakeError::Said(format!("unexpected {} in the handshake", other.name())),
    }
}

fn send(link: &mut dyn Link, message: &Handshake) -> io::Result<()> {
    let mut meta = Vec::new();
    message.encode(&mut meta);
    let header = Header { kind: message.kind(), meta_len: meta.len() as u32, ..Header::default() };
    link.send(&header, &meta, &[])
}

fn receive(link: &mut dyn Link) -> io::Result<(Handshake, Header)> {
    let received = link.receive(&mut [])?;
    let message = Handshake::decode(received.header.kind, received.meta)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    Ok((message, received.header))
}
