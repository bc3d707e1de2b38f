//! Both sides of a connection between stagers prove that they know the secret, to each other and to nobody else: nothing else is
//! read before, and everything after it is sealed.
//!
//! ```text
//! client → Begin{Noise: psk, e; whom it wants}      server → Middle{Noise: e, ee, s, es; who it is}
//! client → End{Noise: s, se; who it is}             from here on all is sealed; server → Accepted
//! ```
//! This is `Noise_XXpsk0`: who only passes messages on, from whichever connection, gets a connection that he can neither read nor
//! speak on. Each side has a key besides; administrators are known by theirs.

use super::frame::Channel;
use crate::auth::{Secret, hex};
use crate::cipher::Keys;
use crate::sealed::Sealed;
use crate::socket::Stream;
use snow::{Builder, HandshakeState};
use std::fmt;
use std::io;

/// Version of the messages; both sides must name the same one. 1 was not sealed.
pub const REMOTE_VERSION: u16 = 2;
/// The protocol by Noise's name, and what keeps its proofs apart from those of other protocols under the same secret.
const PATTERN: &str = "Noise_XXpsk0_25519_AESGCM_BLAKE2s";
const PROLOGUE: &[u8] = b"tidepool-remote2";
/// What the reason of a refusal says that holds for the moment only.
const LATER: &str = "try again";
/// Longest name of a node.
pub const NAME_MAX: usize = 64;
/// Bytes of the longest message of the handshake: two keys, a name, three proofs.
const NOISE_MAX: usize = 32 + 48 + 16 + NAME_MAX;

tidepool_wire::messages! {
    /// Proof of the secret, before anything else. 1, 2 and 3 were those of version 1.
    Greeting {
        /// Version 1's. It is told apart so that its sender learns why there is nothing for it here.
        1 Hello { version: u16, nonce: tidepool_wire::message::Nonce }
        4 Accepted {}
        5 Refused { reason: String }
        6 Begin { version: u16, noise: Box<[u8]> }
        7 Middle { noise: Box<[u8]> }
        8 End { noise: Box<[u8]> }
    }
}

/// Who is at the other side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The node that it says it is; everybody who knows the secret may say so.
    pub name: String,
    /// Its public key, which it has proved to be its own.
    pub key: [u8; 32],
}

/// Who has to be at the other side.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Meant {
    /// What it has to be called; nothing for whichever is there.
    pub name: String,
    /// One of these is its public key, where there are any: while a key is exchanged a node has two.
    pub keys: Vec<[u8; 32]>,
}

impl Meant {
    /// Whoever knows the secret.
    pub fn anybody() -> Meant {
        Meant::default()
    }

    pub fn named(name: &str) -> Meant {
        Meant { name: name.into(), keys: Vec::new() }
    }
}

/// Why the other side could not be greeted.
#[derive(Debug)]
pub enum GreetError {
    /// The connection broke.
    Lost(io::Error),
    /// Not now, as its reason says.
    Later(String),
    Refused(String),
    /// It does not know the secret.
    Stranger,
    /// It is another node than was meant: what shows that.
    Other(String),
    OtherVersion,
    Unexpected,
}

impl fmt::Display for GreetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GreetError::Lost(error) => error.fmt(f),
            GreetError::Later(reason) => f.write_str(reason),
            GreetError::Refused(reason) => write!(f, "refuses this node: {reason}"),
            GreetError::Stranger => f.write_str("does not know the secret; it is not ours"),
            GreetError::Other(what) => write!(f, "is not the node that was meant: {what}"),
            GreetError::OtherVersion => f.write_str("speaks another version; use one release"),
            GreetError::Unexpected => f.write_str("unexpected answer in the greeting"),
        }
    }
}

impl std::error::Error for GreetError {}

impl From<io::Error> for GreetError {
    fn from(error: io::Error) -> GreetError {
        GreetError::Lost(error)
    }
}

fn say<S: Stream>(channel: &mut Channel<Sealed<S>>, message: &Greeting) -> io::Result<()> {
    channel.send(message.kind(), 0, |out| message.encode(out), &[])
}

/// None when something else was said.
fn hear<S: Stream>(channel: &mut Channel<Sealed<S>>) -> io::Result<Option<Greeting>> {
    let head = channel.receive()?;
    channel.bulk(&head)?;
    Ok(Greeting::decode(head.kind, channel.meta()).ok())
}

fn hear_well<S: Stream>(channel: &mut Channel<Sealed<S>>) -> Result<Greeting, GreetError> {
    match hear(channel)? {
        Some(Greeting::Refused { reason }) if reason.contains(LATER) => Err(GreetError::Later(reason)),
        Some(Greeting::Refused { reason }) if reason.contains("speaks version") => {
            Err(GreetError::OtherVersion)
        }
        Some(Greeting::Refused { reason }) => Err(GreetError::Refused(reason)),
        Some(greeting) => Ok(greeting),
        None => Err(GreetError::Lost(io::Error::new(io::ErrorKind::InvalidData, "not a greeting"))),
    }
}

/// A side of the handshake.
struct Hand(HandshakeState);

impl Hand {
    fn new(secret: &Secret, starts: bool) -> Result<Hand, snow::Error> {
        let builder = Builder::new(PATTERN.parse()?).prologue(PROLOGUE)?.psk(0, secret.bytes())?;
        let key = secret.private_key();
        let builder = builder.local_private_key(&key)?;
        Ok(Hand(if starts { builder.build_initiator()? } else { builder.build_responder()? }))
    }

    fn write(&mut self, name: &str) -> Result<Box<[u8]>, snow::Error> {
        let name = &name.as_bytes()[..name.len().min(NAME_MAX)];
        let mut message = [0; NOISE_MAX];
        let len = self.0.write_message(name, &mut message)?;
        Ok(message[..len].into())
    }

    /// The name that the message brings; none when it is not for us.
    fn read(&mut self, message: &[u8]) -> Option<String> {
        let mut name = [0; NOISE_MAX];
        let len = self.0.read_message(message, &mut name).ok()?;
        String::from_utf8(name[..len].to_vec()).ok()
    }

    /// The key that the other side has proved.
    fn key(&self) -> io::Result<[u8; 32]> {
        let key = self.0.get_remote_static().and_then(|key| key.try_into().ok());
        key.ok_or_else(|| io::Error::other("the other side has no key"))
    }

    /// From here on the channel is sealed, and takes whole messages.
    fn seal<S: Stream>(self, name: String, channel: &mut Channel<Sealed<S>>) -> io::Result<Peer> {
        let key = self.key()?;
        channel.get_mut().seal(Keys::of(self.0)?);
        channel.trust();
        Ok(Peer { name, key })
    }
}

/// The client's side: it wants `meant`, and says nothing of itself to anybody else. When it is well, the channel takes whole messages.
pub fn greet<S: Stream>(
    secret: &Secret,
    (own, meant): (&str, &Meant),
    channel: &mut Channel<Sealed<S>>,
) -> Result<Peer, GreetError> {
    let mut hand = Hand::new(secret, true).map_err(io::Error::other)?;
    let noise = hand.write(&meant.name).map_err(io::Error::other)?;
    say(channel, &Greeting::Begin { version: REMOTE_VERSION, noise })?;
    let Greeting::Middle { noise } = hear_well(channel)? else { return Err(GreetError::Unexpected) };
    let name = hand.read(&noise).ok_or(GreetError::Stranger)?;
    if !meant.name.is_empty() && meant.name != name {
        return Err(GreetError::Other(format!("it is called '{name}'")));
    }
    let key = hand.key()?;
    if !meant.keys.is_empty() && !meant.keys.contains(&key) {
        let text = format!("it is called '{name}', and its key, {}, is not that node's", hex(&key));
        return Err(GreetError::Other(text));
    }
    let noise = hand.write(own).map_err(io::Error::other)?;
    say(channel, &Greeting::End { noise })?;
    let peer = hand.seal(name, channel)?;
    match hear_well(channel)? {
        Greeting::Accepted {} => Ok(peer),
        _ => Err(GreetError::Unexpected),
    }
}

/// Tells the other side why there is nothing for it here.
pub fn refuse<S: Stream>(channel: &mut Channel<Sealed<S>>, reason: &str) -> io::Result<()> {
    say(channel, &Greeting::Refused { reason: reason.into() })
}

/// The server's side, which knows these secrets: while they are exchanged there are two. Who is there when both sides have proved
/// themselves, and the channel takes whole messages; else why not. Who has proved himself, and is not `wanted` all the same, is told why.
pub fn admit<S: Stream, T>(
    secrets: &[Secret],
    own: &str,
    channel: &mut Channel<Sealed<S>>,
    wanted: impl FnOnce(&Peer, &Secret) -> Result<T, String>,
) -> io::Result<Result<(Peer, T), &'static str>> {
    let noise = match hear(channel)? {
        Some(Greeting::Begin { version: REMOTE_VERSION, noise }) => noise,
        Some(Greeting::Begin { version, .. } | Greeting::Hello { version, .. }) => {
            let reason = format!("this node speaks version {REMOTE_VERSION}, not {version}; use one release");
            return refuse(channel, &reason).map(|()| Err("it speaks another version"));
        }
        _ => return refuse(channel, "not a greeting").map(|()| Err("it said something else")),
    };
    let heard = |secret| {
        let mut hand = Hand::new(secret, false).ok()?;
        hand.read(&noise).map(|meant| (hand, meant, secret))
    };
    let Some((mut hand, meant, secret)) = secrets.iter().find_map(heard) else {
        return refuse(channel, "the secret is wrong").map(|()| Err("it does not know the secret"));
    };
    if !meant.is_empty() && meant != own {
        let reason = format!("this is node '{own}'");
        return refuse(channel, &reason).map(|()| Err("it wants another node"));
    }
    let noise = hand.write(own).map_err(io::Error::other)?;
    say(channel, &Greeting::Middle { noise })?;
    let Some(Greeting::End { noise }) = hear(channel)? else {
        return refuse(channel, "not a greeting").map(|()| Err("it said something else"));
    };
    let Some(name) = hand.read(&noise) else {
        return refuse(channel, "the secret is wrong").map(|()| Err("it could not go on"));
    };
    let peer = hand.seal(name, channel)?;
    match wanted(&peer, secret) {
        Ok(kept) => {
            say(channel, &Greeting::Accepted {})?;
            Ok(Ok((peer, kept)))
        }
        Err(reason) => refuse(channel, &reason).map(|()| Err("it is not wanted now")),
    }
}

#[cfg(test)]
#[path = "greeting_tests.rs"]
mod tests;
