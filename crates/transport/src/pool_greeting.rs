//! How a client and a daemon prove to each other over TCP that they know the pool's secret (`docs/formats/01-protocol.md`, Handshake).
//!
//! ```text
//! client → Begin{Noise: psk, e; which member}     daemon → Middle{Noise: e, ee}
//! client → End{first message under the keys: session}     daemon → Welcome | Refused
//! ```
//! This is `Noise_NNpsk0`. The keys that come of it are only these two sides': what follows End is sealed with them, or, without
//! encryption, lies open, and then End shows that whoever began is there now and repeats nobody's Begin.

use crate::auth::Secret;
use crate::cipher::{Keys, TAG_LEN};
use crate::sealed::Sealed;
use crate::socket::Stream;
use snow::{Builder, HandshakeState};
use std::fmt;
use std::io;
use tidepool_types::{DaemonIndex, Encryption, InstanceId, SessionId};

/// The protocol by Noise's name, and what keeps its proofs apart from those of other protocols under the same secret.
const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_BLAKE2s";
const PROLOGUE: &[u8] = b"tidepool-pool1";
/// Bytes of the longest message of the handshake: a key, what is said, a proof.
const NOISE_MAX: usize = 32 + 16 + 16;
/// Messages under the keys before the first record: the client's End, nothing of the daemon's.
const ENDS: u64 = 1;

/// Which pool it is about, and how it goes on: both sides have to mean the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms<'a> {
    pub secret: &'a Secret,
    pub instance: InstanceId,
    pub encryption: Encryption,
}

impl Terms<'_> {
    fn builder(&self) -> Result<Builder<'_>, snow::Error> {
        let pattern = PATTERN.parse().expect("the pattern is one that snow knows");
        Builder::new(pattern).psk(0, self.secret.bytes())
    }

    fn prologue(&self) -> Vec<u8> {
        [PROLOGUE, &self.instance.0, &[u8::from(!self.encryption.is_off())]].concat()
    }

    fn asking(&self) -> Result<HandshakeState, snow::Error> {
        self.builder()?.prologue(&self.prologue())?.build_initiator()
    }

    fn asked(&self) -> Result<HandshakeState, snow::Error> {
        self.builder()?.prologue(&self.prologue())?.build_responder()
    }
}

/// Keys that both sides have, after a greeting.
pub struct Greeted {
    keys: Keys,
    /// Numbers of the next messages, there and back.
    next: (u64, u64),
}

impl fmt::Debug for Greeted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Greeted(..)")
    }
}

impl Greeted {
    /// From here on all that goes over the stream is sealed.
    pub fn seal<S: Stream>(self, stream: &mut Sealed<S>) {
        stream.seal_from(self.keys, self.next);
    }
}

/// The client's half.
pub(crate) struct Asking(HandshakeState);

impl Asking {
    /// With what Begin says. Only `member` can answer.
    pub(crate) fn begin(terms: &Terms<'_>, member: DaemonIndex) -> io::Result<(Asking, Box<[u8]>)> {
        let mut hand = terms.asking().map_err(io::Error::other)?;
        let mut message = [0; NOISE_MAX];
        let len = hand.write_message(&member.to_le_bytes(), &mut message).map_err(io::Error::other)?;
        Ok((Asking(hand), message[..len].into()))
    }

    /// What End says; none when the answer does not come from who knows the secret.
    pub(crate) fn end(
        mut self,
        middle: &[u8],
        session: SessionId,
    ) -> io::Result<Option<(Greeted, Box<[u8]>)>> {
        let mut nothing = [0; NOISE_MAX];
        if self.0.read_message(middle, &mut nothing).is_err() {
            return Ok(None);
        }
        let keys = Keys::of(self.0)?;
        let mut message = [&session.0[..], &[0; TAG_LEN]].concat();
        keys.outgoing.seal(0, &mut message)?;
        Ok(Some((Greeted { keys, next: (ENDS, 0) }, message.into())))
    }
}

/// The daemon's half, which has answered.
pub struct Asked(Keys);

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Asked(..)")
    }
}

impl Asked {
    /// Which member Begin wants, and what Middle says; none when Begin is of nobody who knows the secret and means the same.
    pub fn answer(terms: &Terms<'_>, begin: &[u8]) -> Option<(Asked, DaemonIndex, Box<[u8]>)> {
        let mut hand = terms.asked().ok()?;
        let mut said = [0; NOISE_MAX];
        let len = hand.read_message(begin, &mut said).ok()?;
        let member = DaemonIndex::from_le_bytes(said[..len].try_into().ok()?);
        let mut message = [0; NOISE_MAX];
        let len = hand.write_message(&[], &mut message).ok()?;
        Some((Asked(Keys::of(hand).ok()?), member, message[..len].into()))
    }

    /// Who has come; none when End is not of the one who began.
    pub fn admit(self, end: &[u8]) -> Option<(Greeted, SessionId)> {
        let mut said = end.to_vec();
        let len = self.0.incoming.open(0, &mut said).ok()?;
        let session = SessionId(said[..len].try_into().ok()?);
        Some((Greeted { keys: self.0, next: (0, ENDS) }, session))
    }
}

#[cfg(test)]
#[path = "pool_greeting_tests.rs"]
mod tests;
