//! The keys that a greeting by Noise leaves, and what is done with them: messages with numbers, each direction under its own key.
//!
//! `snow` greets; its transport states keep their keys to themselves. Here they can be given to another process, which goes on with
//! the connection, and a message is sealed and opened where it lies. What is done is what the Noise protocol says (revision 34: the
//! cipher's nonce, section 12.4; Rekey, section 4.2), by the same AES-GCM of `ring`; the tests hold it against snow's.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use snow::HandshakeState;
use std::fmt;
use std::io;

/// What of a message is proof.
pub const TAG_LEN: usize = 16;
/// Bytes of a key.
pub const KEY_LEN: usize = 32;
/// The number that no message has: what is sealed under it is the next key.
const REKEY: u64 = u64::MAX;

/// The key of one direction.
pub struct Cipher {
    raw: [u8; KEY_LEN],
    key: LessSafeKey,
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cipher(..)")
    }
}

/// A message was changed, or is another one than was expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forged;

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

impl Cipher {
    pub fn new(raw: [u8; KEY_LEN]) -> Cipher {
        let key = UnboundKey::new(&AES_256_GCM, &raw).expect("a key of the cipher's length");
        Cipher { raw, key: LessSafeKey::new(key) }
    }

    /// For whoever goes on with the connection.
    pub fn raw(&self) -> [u8; KEY_LEN] {
        self.raw
    }

    /// Seals the bytes before the last [`TAG_LEN`], which become the proof. No two messages under a key may have the same number.
    pub fn seal(&self, number: u64, message: &mut [u8]) -> io::Result<()> {
        let at = message.len().checked_sub(TAG_LEN).filter(|_| number != REKEY);
        let Some(at) = at else {
            return Err(io::Error::other("no room for the proof, or no number left: connect again"));
        };
        let (data, proof) = message.split_at_mut(at);
        let tag = self.key.seal_in_place_separate_tag(nonce(number), Aad::empty(), data);
        proof.copy_from_slice(tag.map_err(io::Error::other)?.as_ref());
        Ok(())
    }

    /// Opens a message where it lies; how many bytes it has, at the start.
    pub fn open(&self, number: u64, message: &mut [u8]) -> Result<usize, Forged> {
        if number == REKEY {
            return Err(Forged);
        }
        let opened = self.key.open_in_place(nonce(number), Aad::empty(), message);
        opened.map(|data| data.len()).map_err(|_| Forged)
    }

    /// From here on it is the next key.
    pub fn renew(&mut self) {
        let mut next = [0; KEY_LEN];
        let sealed = self.key.seal_in_place_separate_tag(nonce(REKEY), Aad::empty(), &mut next);
        // Nothing needs the proof: it is never sent.
        sealed.map(drop).expect("a key is shorter than a message may be");
        *self = Cipher::new(next);
    }
}

/// The keys of both directions, seen from one side.
#[derive(Debug)]
pub struct Keys {
    pub outgoing: Cipher,
    pub incoming: Cipher,
}

impl Keys {
    /// Of a greeting that is over.
    pub fn of(mut hand: HandshakeState) -> io::Result<Keys> {
        // The keys of a half of it would be no secret.
        if !hand.is_handshake_finished() {
            return Err(io::Error::other("the greeting is not over"));
        }
        let (first, second) = hand.dangerously_get_raw_split();
        let (outgoing, incoming) = if hand.is_initiator() { (first, second) } else { (second, first) };
        Ok(Keys { outgoing: Cipher::new(outgoing), incoming: Cipher::new(incoming) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use snow::{Builder, StatelessTransportState};

    /// Both sides of a greeting that is over, twice: once to be taken apart, once for snow.
    fn greeted() -> [HandshakeState; 4] {
        let builder =
            || Builder::new("Noise_NNpsk0_25519_AESGCM_BLAKE2s".parse().unwrap()).psk(0, &[1; 32]).unwrap();
        let make = || {
            let mut a = builder().fixed_ephemeral_key_for_testing_only(&[7; 32]).build_initiator().unwrap();
            let mut b = builder().fixed_ephemeral_key_for_testing_only(&[8; 32]).build_responder().unwrap();
            let (mut message, mut nothing) = ([0; 128], [0; 128]);
            let len = a.write_message(&[], &mut message).unwrap();
            b.read_message(&message[..len], &mut nothing).unwrap();
            let len = b.write_message(&[], &mut message).unwrap();
            a.read_message(&message[..len], &mut nothing).unwrap();
            (a, b)
        };
        let ((a, b), (c, d)) = (make(), make());
        [a, b, c, d]
    }

    fn snows(hand: HandshakeState) -> StatelessTransportState {
        hand.into_stateless_transport_mode().unwrap()
    }

    proptest! {
        /// Messages of either are those of the other, in both directions, whatever their numbers and however often keys are renewed.
        #[test]
        fn it_is_what_snow_does(
            data in proptest::collection::vec(any::<u8>(), 0..300),
            numbers in proptest::collection::vec(0..u64::MAX, 1..4),
            renewals in 0..3,
        ) {
            let [a, b, c, d] = greeted();
            let (mut here, mut there) = (Keys::of(a).unwrap(), Keys::of(b).unwrap());
            let (mut left, mut right) = (snows(c), snows(d));
            for _ in 0..renewals {
                here.outgoing.renew();
                there.incoming.renew();
                here.incoming.renew();
                there.outgoing.renew();
                left.rekey_outgoing();
                left.rekey_incoming();
                right.rekey_outgoing();
                right.rekey_incoming();
            }
            for number in numbers {
                for (ours, theirs, snow, snows_peer) in [
                    (&here.outgoing, &there.incoming, &left, &right),
                    (&there.outgoing, &here.incoming, &right, &left),
                ] {
                    let mut message = [&data[..], &[0; TAG_LEN]].concat();
                    ours.seal(number, &mut message).unwrap();
                    let mut expected = vec![0; data.len() + TAG_LEN];
                    snow.write_message(number, &data, &mut expected).unwrap();
                    prop_assert_eq!(&message, &expected);
                    let mut plain = vec![0; message.len()];
                    let len = snows_peer.read_message(number, &message, &mut plain).unwrap();
                    prop_assert_eq!(&plain[..len], &data[..]);
                    prop_assert!(theirs.open(number ^ 1, &mut message.clone()).is_err());
                    prop_assert_eq!(theirs.open(number, &mut message), Ok(data.len()));
                    prop_assert_eq!(&message[..data.len()], &data[..]);
                }
            }
        }

        #[test]
        fn what_was_changed_does_not_open(
            data in proptest::collection::vec(any::<u8>(), 0..100),
            bit in any::<prop::sample::Index>(),
        ) {
            let cipher = Cipher::new([5; 32]);
            let mut message = [&data[..], &[0; TAG_LEN]].concat();
            cipher.seal(3, &mut message).unwrap();
            let bit = bit.index(message.len() * 8);
            message[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(cipher.open(3, &mut message), Err(Forged));
        }
    }

    #[test]
    fn a_greeting_that_is_not_over_gives_no_keys() {
        let builder =
            Builder::new("Noise_NNpsk0_25519_AESGCM_BLAKE2s".parse().unwrap()).psk(0, &[1; 32]).unwrap();
        let mut hand = builder.build_initiator().unwrap();
        hand.write_message(&[], &mut [0; 128]).unwrap();
        assert!(Keys::of(hand).is_err());
    }

    #[test]
    fn there_is_no_message_with_the_number_of_the_next_key() {
        let cipher = Cipher::new([5; 32]);
        assert!(cipher.seal(u64::MAX, &mut [0; 48]).is_err());
        let mut next = [0; 48];
        let tag = cipher.key.seal_in_place_separate_tag(nonce(u64::MAX), Aad::empty(), &mut next[..32]);
        next[32..].copy_from_slice(tag.unwrap().as_ref());
        assert_eq!(cipher.open(u64::MAX, &mut next), Err(Forged));
        assert!(cipher.seal(0, &mut [0; TAG_LEN - 1]).is_err());
        assert_eq!(cipher.open(0, &mut [0; TAG_LEN - 1]), Err(Forged));
    }

    #[test]
    fn keys_do_not_print() {
        assert_eq!(format!("{:?}", Cipher::new([5; 32])), "Cipher(..)");
    }
}
