//! What goes over a fabric: the specification is `docs/formats/09-fabric.md`.

use crate::frame::{HEADER_LEN, Header};
use crate::message::FabricToken;
use crate::{DecodeError, Field, Reader};

/// Tag of every request's first message: `TPFABRIC`.
pub const REQUEST_TAG: u64 = u64::from_le_bytes(*b"TPFABRIC");
/// Bytes before the frame of a request.
pub const PREFIX_LEN: usize = 40;
/// Longest message that carries a whole request or reply. A longer one sends its body apart.
pub const SMALL_MAX: usize = 16 << 10;

/// What a request's first message starts with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestHead {
    pub token: FabricToken,
    /// Counts the connection's requests; gives the tags of what belongs to this one.
    pub sequence: u64,
    pub header: Header,
}

impl RequestHead {
    pub const LEN: usize = PREFIX_LEN + HEADER_LEN;

    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = Vec::with_capacity(Self::LEN);
        self.token.put(&mut bytes);
        self.sequence.put(&mut bytes);
        bytes.extend_from_slice(&self.header.encode());
        bytes.try_into().expect("the fields add up to LEN")
    }

    /// Reads the head of a message; the second value is its body when that came with it.
    pub fn decode(message: &[u8]) -> Result<(RequestHead, Option<&[u8]>), DecodeError> {
        let mut from = Reader::new(message);
        let token = Field::get(&mut from)?;
        let sequence = Field::get(&mut from)?;
        let (header, body) = split_frame(message.get(PREFIX_LEN..).unwrap_or_default())?;
        Ok((RequestHead { token, sequence, header }, body))
    }
}

/// Reads a frame whose body may come apart.
pub fn split_frame(message: &[u8]) -> Result<(Header, Option<&[u8]>), DecodeError> {
    let (head, body) = message.split_first_chunk().ok_or(DecodeError::Invalid("message length"))?;
    let header = Header::decode(head)?;
    match body.len() {
        len if len == header.body_len() => Ok((header, Some(body))),
        0 => Ok((header, None)),
        _ => Err(DecodeError::Invalid("message length")),
    }
}

/// Tag of a request's body.
pub fn body_tag(bodies: u64, sequence: u64) -> u64 {
    bodies.wrapping_add(sequence)
}

/// Tags of a reply and of its body.
pub fn reply_tags(replies: u64, sequence: u64) -> (u64, u64) {
    let first = replies.wrapping_add(sequence.wrapping_mul(2));
    (first, first.wrapping_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(meta_len: u32) -> RequestHead {
        let header = Header { kind: 40, meta_len, ..Header::default() };
        RequestHead { token: FabricToken([0xab; 32]), sequence: 0x0102, header }
    }

    #[test]
    fn head_bytes_are_pinned() {
        let bytes = head(3).encode();
        assert_eq!(&bytes[..PREFIX_LEN], [&[0xab; 32][..], b"\x02\x01\0\0\0\0\0\0"].concat());
        assert_eq!(bytes[PREFIX_LEN..], head(3).header.encode());
        assert_eq!(RequestHead::decode(&bytes), Ok((head(3), None)));
        let whole = [&bytes[..], b"xyz"].concat();
        assert_eq!(RequestHead::decode(&whole), Ok((head(3), Some(&b"xyz"[..]))));
        assert_eq!(RequestHead::decode(&head(0).encode()), Ok((head(0), Some(&[][..]))));
        for bad in [&whole[..whole.len() - 1], &bytes[..50], &[]] {
            assert!(RequestHead::decode(bad).is_err());
        }
    }

    #[test]
    fn tags_are_pinned() {
        assert_eq!(REQUEST_TAG.to_le_bytes(), *b"TPFABRIC");
        assert_eq!(body_tag(u64::MAX, 2), 1);
        assert_eq!(reply_tags(10, 3), (16, 17));
    }
}
