//! Framing: a fixed header, the message's fields, then bulk data.

use crate::{DecodeError, Field, Reader};

/// Bytes of a frame header.
pub const HEADER_LEN: usize = 32;
/// First four bytes of every frame: `TPL1`. The digit is the framing's version.
pub const MAGIC: u32 = u32::from_le_bytes(*b"TPL1");
/// Most bytes of encoded fields in one frame.
pub const META_MAX: usize = 1 << 20;
/// Most bulk bytes in one frame: the largest chunk.
pub const BULK_MAX: usize = tidepool_types::CHUNK_SIZE_MAX as usize;
/// Flag: the sender wants no reply.
pub const FLAG_ONE_WAY: u16 = 1;
/// Flag: the sender would keep what it is told (format 10); in a reply, it may keep the entry.
pub const FLAG_KEEP: u16 = 2;
/// Flag of a reply: the attributes and the data may be kept.
pub const FLAG_KEEP_ATTR: u16 = 4;
/// Flag of a reply: before data are written or read, `Admit` is to be asked.
pub const FLAG_PACED: u16 = 8;
const FLAGS: u16 = FLAG_ONE_WAY | FLAG_KEEP | FLAG_KEEP_ATTR | FLAG_PACED;

/// What precedes each message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// Message kind: see `docs/formats/01-protocol.md`.
    pub kind: u16,
    pub flags: u16,
    /// Chosen by the requester, repeated in the reply.
    pub id: u64,
    /// Requests: the directory epoch the sender relies on, 0 for none. Replies: the daemon's.
    pub epoch: u64,
    pub meta_len: u32,
    pub bulk_len: u32,
}

impl Header {
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = Vec::with_capacity(HEADER_LEN);
        MAGIC.put(&mut bytes);
        self.kind.put(&mut bytes);
        self.flags.put(&mut bytes);
        self.id.put(&mut bytes);
        self.epoch.put(&mut bytes);
        self.meta_len.put(&mut bytes);
        self.bulk_len.put(&mut bytes);
        bytes.try_into().expect("the fields add up to HEADER_LEN")
    }

    /// Reads and checks a header: magic, flags and both lengths, before anything is allocated.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Header, DecodeError> {
        let mut from = Reader::new(bytes);
        if u32::get(&mut from)? != MAGIC {
            return Err(DecodeError::Invalid("frame magic"));
        }
        let header = Header {
            kind: Field::get(&mut from)?,
            flags: Field::get(&mut from)?,
            id: Field::get(&mut from)?,
            epoch: Field::get(&mut from)?,
            meta_len: Field::get(&mut from)?,
            bulk_len: Field::get(&mut from)?,
        };
        if header.flags & !FLAGS != 0 {
            return Err(DecodeError::Invalid("frame flags"));
        }
        if header.meta_len as usize > META_MAX {
            return Err(DecodeError::Invalid("message length"));
        }
        if header.bulk_len as usize > BULK_MAX {
            return Err(DecodeError::Invalid("bulk length"));
        }
        Ok(header)
    }

    /// Bytes that follow the header.
    pub fn body_len(&self) -> usize {
        self.meta_len as usize + self.bulk_len as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_bytes_are_pinned() {
        let header =
            Header { kind: 0x0102, flags: 1, id: 0x0a0b, epoch: 7, meta_len: 3, bulk_len: 0x0100_0000 };
        let bytes = *b"TPL1\x02\x01\x01\x00\x0b\x0a\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\x01";
        assert_eq!(header.encode(), bytes);
        assert_eq!(Header::decode(&bytes), Ok(header));
    }

    #[test]
    fn flags_are_pinned() {
        assert_eq!((FLAG_ONE_WAY, FLAG_KEEP, FLAG_KEEP_ATTR, FLAG_PACED), (1, 2, 4, 8));
        let header = Header { kind: 1, flags: FLAG_KEEP | FLAG_KEEP_ATTR, ..Header::default() };
        assert_eq!(Header::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn bad_headers_are_refused() {
        let good = Header { kind: 1, ..Header::default() };
        let mut bytes = good.encode();
        bytes[0] = b'X';
        assert_eq!(Header::decode(&bytes), Err(DecodeError::Invalid("frame magic")));
        let long = Header { meta_len: META_MAX as u32 + 1, ..good };
        assert_eq!(Header::decode(&long.encode()), Err(DecodeError::Invalid("message length")));
        let bulky = Header { bulk_len: BULK_MAX as u32 + 1, ..good };
        assert_eq!(Header::decode(&bulky.encode()), Err(DecodeError::Invalid("bulk length")));
        let flagged = Header { flags: 16, ..good };
        assert_eq!(Header::decode(&flagged.encode()), Err(DecodeError::Invalid("frame flags")));
    }
}
