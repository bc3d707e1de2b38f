//! Both sides of a connection between stagers prove that they know the secret: nothing else is read before.

use super::frame::Channel;
use crate::auth::{ClientAuth, Secret, ServerAuth};
use std::fmt;
use std::io::{self, Read, Write};
use tidepool_types::InstanceId;
use tidepool_wire::message::{Nonce, Proof};

/// Version of the messages; both sides must name the same one.
pub const REMOTE_VERSION: u16 = 1;
/// Keeps proofs of this protocol apart from those of others under the same secret.
const PURPOSE: InstanceId = InstanceId(*b"tidepool-remote1");
/// What the reason of a refusal says that holds for the moment only.
const LATER: &str = "try again";

tidepool_wire::messages! {
    /// Proof of the secret, before anything else.
    Greeting {
        1 Hello { version: u16, nonce: Nonce }
        2 Challenge { version: u16, nonce: Nonce, proof: Proof }
        3 Answer { proof: Proof }
        4 Accepted {}
        5 Refused { reason: String }
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

fn say<S: Read + Write>(channel: &mut Channel<S>, message: &Greeting) -> io::Result<()> {
    channel.send(message.kind(), 0, |out| message.encode(out), &[])
}

/// None when something else was said.
fn hear<S: Read + Write>(channel: &mut Channel<S>) -> io::Result<Option<Greeting>> {
    let head = channel.receive()?;
    channel.bulk(&head)?;
    Ok(Greeting::decode(head.kind, channel.meta()).ok())
}

fn hear_well<S: Read + Write>(channel: &mut Channel<S>) -> Result<Greeting, GreetError> {
    match hear(channel)? {
        Some(Greeting::Refused { reason }) if reason.contains(LATER) => Err(GreetError::Later(reason)),
        Some(Greeting::Refused { reason }) => Err(GreetError::Refused(reason)),
        Some(greeting) => Ok(greeting),
        None => Err(GreetError::Lost(io::Error::new(io::ErrorKind::InvalidData, "not a greeting"))),
    }
}

/// The client's side. When it is well, the channel takes whole messages.
pub fn greet<S: Read + Write>(secret: &Secret, channel: &mut Channel<S>) -> Result<(), GreetError> {
    let auth = ClientAuth::new(secret, PURPOSE);
    say(channel, &Greeting::Hello { version: REMOTE_VERSION, nonce: auth.nonce() })?;
    let (nonce, proof) = match hear_well(channel)? {
        Greeting::Challenge { version: REMOTE_VERSION, nonce, proof } => (nonce, proof),
        _ => return Err(GreetError::OtherVersion),
    };
    let proof = auth.answer(&nonce, &proof).ok_or(GreetError::Stranger)?;
    say(channel, &Greeting::Answer { proof })?;
    match hear_well(channel)? {
        Greeting::Accepted {} => {
            channel.trust();
            Ok(())
        }
        _ => Err(GreetError::Unexpected),
    }
}

/// Tells the other side why there is nothing for it here.
pub fn refuse<S: Read + Write>(channel: &mut Channel<S>, reason: &str) -> io::Result<()> {
    say(channel, &Greeting::Refused { reason: reason.into() })
}

/// The server's side: true when both sides have proved themselves, and the channel takes whole messages.
pub fn admit<S: Read + Write>(secret: &Secret, channel: &mut Channel<S>) -> io::Result<bool> {
    let nonce = match hear(channel)? {
        Some(Greeting::Hello { version: REMOTE_VERSION, nonce }) => nonce,
        Some(Greeting::Hello { version, .. }) => {
            let reason = format!("this node speaks version {REMOTE_VERSION}, not {version}; use one release");
            return refuse(channel, &reason).map(|()| false);
        }
        _ => return refuse(channel, "not a greeting").map(|()| false),
    };
    let auth = ServerAuth::new(PURPOSE, nonce);
    let (nonce, proof) = auth.challenge(secret);
    say(channel, &Greeting::Challenge { version: REMOTE_VERSION, nonce, proof })?;
    match hear(channel)? {
        Some(Greeting::Answer { proof }) if auth.accepts(secret, &proof) => {
            say(channel, &Greeting::Accepted {})?;
            channel.trust();
            Ok(true)
        }
        _ => refuse(channel, "the secret is wrong").map(|()| false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn meet(client: &Secret, server: &Secret) -> (Result<(), GreetError>, bool) {
        let (a, b) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let admitted = scope.spawn(|| admit(server, &mut Channel::new(b)).unwrap_or(false));
            let mut channel = Channel::new(a);
            let greeted = greet(client, &mut channel);
            drop(channel);
            (greeted, admitted.join().unwrap())
        })
    }

    #[test]
    fn only_who_knows_the_secret_is_admitted() {
        let (ours, other) = (Secret::random(), Secret::random());
        assert!(matches!(meet(&ours, &ours), (Ok(()), true)));
        assert!(matches!(meet(&ours, &other), (Err(GreetError::Stranger), false)));
    }

    #[test]
    fn a_refusal_for_the_moment_is_none_for_ever() {
        for (reason, later) in [("1024 connections; try again later", true), ("go away", false)] {
            let (a, b) = UnixStream::pair().unwrap();
            refuse(&mut Channel::new(b), reason).unwrap();
            let error = hear_well(&mut Channel::new(a)).unwrap_err();
            assert_eq!(matches!(&error, GreetError::Later(told) if told == reason), later, "{error:?}");
            assert_eq!(matches!(&error, GreetError::Refused(told) if told == reason), !later, "{error:?}");
        }
    }

    #[test]
    fn bytes_of_a_greeting_are_pinned() {
        let hello = Greeting::Hello { version: 1, nonce: Nonce([9; 32]) };
        let mut bytes = Vec::new();
        hello.encode(&mut bytes);
        assert_eq!((hello.kind(), bytes), (1, [&b"\x01\0"[..], &[9; 32]].concat()));
    }
}
