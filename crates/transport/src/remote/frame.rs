//! Frames: a fixed header, the message's fields, then bulk data; both checksummed.

use crate::write_all_slices;
use std::io::{self, BufReader, IoSlice, Read, Write};
use tidepool_blocks::crc;
use tidepool_wire::{DecodeError, Field, Reader};

/// Bytes of a header.
pub const HEADER_LEN: usize = 28;
/// First four bytes of every frame: `TPR1`. The digit is the framing's version.
const MAGIC: u32 = u32::from_le_bytes(*b"TPR1");
/// Bytes of the header that its checksum covers, before the fields.
const COVERED: usize = 20;
/// Most bytes of encoded fields.
pub const META_MAX: usize = 4 << 20;
/// Most bulk bytes.
pub const BULK_MAX: usize = 8 << 20;
/// Most bytes of fields before the other side has proved that it knows the secret.
pub const GREETING_MAX: usize = 320;
/// Bytes read ahead, so that a small frame takes one system call.
const READ_AHEAD: usize = 16 << 10;
/// Parts written with one system call; the kernel's limit is 1024.
const PARTS_MAX: usize = 1000;
/// Bulk data of at least so many bytes go aside, where there is such a way.
pub const ASIDE_MIN: usize = 4 << 10;
/// Flag of a frame whose bulk data come aside.
const FLAG_ASIDE: u16 = 1;
/// Buffers above this are given back after use.
const KEEP_MAX: usize = 1 << 20;

/// What precedes each message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    pub kind: u16,
    /// Chosen by the asking side, repeated in the answer.
    pub id: u32,
    pub meta_len: usize,
    pub bulk_len: usize,
    /// The bulk data do not follow, but come as one message by the other way.
    aside: bool,
    meta_crc: u32,
    bulk_crc: u32,
}

/// What the other side may send.
#[derive(Clone, Copy)]
pub struct Limits {
    pub meta: usize,
    pub bulk: usize,
}

/// A second way for bulk data, beside the connection.
pub trait Aside: Send {
    /// Sends the parts as one message, which is on its way when this returns.
    fn send(&mut self, parts: &[&[u8]]) -> io::Result<()>;
    /// Takes the next message, which has to fill `into`.
    fn receive(&mut self, into: &mut [u8]) -> io::Result<()>;
}

pub const GREETING: Limits = Limits { meta: GREETING_MAX, bulk: 0 };
pub const FULL: Limits = Limits { meta: META_MAX, bulk: BULK_MAX };

impl Head {
    fn encode(&self, out: &mut Vec<u8>) {
        MAGIC.put(out);
        self.kind.put(out);
        (if self.aside { FLAG_ASIDE } else { 0 }).put(out);
        self.id.put(out);
        (self.meta_len as u32).put(out);
        (self.bulk_len as u32).put(out);
        self.meta_crc.put(out);
        self.bulk_crc.put(out);
    }

    /// Reads and checks a header, before anything is allocated.
    fn decode(bytes: &[u8; HEADER_LEN], limits: Limits) -> Result<Head, DecodeError> {
        let mut from = Reader::new(bytes);
        if u32::get(&mut from)? != MAGIC {
            return Err(DecodeError::Invalid("frame magic"));
        }
        let kind = u16::get(&mut from)?;
        let flags = u16::get(&mut from)?;
        if flags & !FLAG_ASIDE != 0 {
            return Err(DecodeError::Invalid("frame flags"));
        }
        let aside = flags == FLAG_ASIDE;
        let id = u32::get(&mut from)?;
        let (meta_len, bulk_len) = (u32::get(&mut from)? as usize, u32::get(&mut from)? as usize);
        if meta_len > limits.meta {
            return Err(DecodeError::Invalid("message length"));
        }
        if bulk_len > limits.bulk {
            return Err(DecodeError::Invalid("bulk length"));
        }
        let (meta_crc, bulk_crc) = (u32::get(&mut from)?, u32::get(&mut from)?);
        Ok(Head { kind, id, meta_len, bulk_len, aside, meta_crc, bulk_crc })
    }
}

fn invalid(error: DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// One side of a connection that carries frames.
pub struct Channel<S> {
    stream: BufReader<S>,
    /// More may be read than what is asked for.
    ahead: bool,
    limits: Limits,
    /// Frames that go out together with the next one.
    queued: Vec<u8>,
    meta: Vec<u8>,
    aside: Option<Box<dyn Aside>>,
}

impl<S: Read + Write> Channel<S> {
    /// Takes nothing but greetings until [`Channel::trust`].
    pub fn new(stream: S) -> Channel<S> {
        let stream = BufReader::with_capacity(READ_AHEAD, stream);
        Channel { stream, ahead: false, limits: GREETING, queued: Vec::new(), meta: Vec::new(), aside: None }
    }

    /// The other side has proved itself.
    pub fn trust(&mut self) {
        self.limits = FULL;
    }

    /// From now on a small frame takes one system call, and the stream is the channel's for good.
    pub fn read_ahead(&mut self) {
        self.ahead = true;
    }

    /// The stream as it is after the last frame: of a channel that has not read ahead.
    pub fn into_stream(self) -> S {
        debug_assert!(!self.ahead, "what was read ahead would be lost");
        self.stream.into_inner()
    }

    /// From now on large bulk data go by another way.
    pub fn go_aside(&mut self, way: Box<dyn Aside>) {
        self.aside = Some(way);
    }

    pub fn get_ref(&self) -> &S {
        self.stream.get_ref()
    }

    pub fn get_mut(&mut self) -> &mut S {
        self.stream.get_mut()
    }

    /// Puts a frame before the next one that is sent.
    pub fn queue(&mut self, kind: u16, id: u32, fields: impl FnOnce(&mut Vec<u8>), bulk: &[&[u8]]) {
        self.queue_with(kind, id, fields, bulk, false);
    }

    fn queue_with(
        &mut self,
        kind: u16,
        id: u32,
        fields: impl FnOnce(&mut Vec<u8>),
        bulk: &[&[u8]],
        aside: bool,
    ) {
        let start = self.queued.len();
        self.queued.resize(start + HEADER_LEN, 0);
        fields(&mut self.queued);
        let meta_len = self.queued.len() - start - HEADER_LEN;
        let bulk_len = bulk.iter().map(|part| part.len()).sum();
        let bulk_crc = bulk.iter().fold(0, |sum, part| crc::append(sum, part));
        let mut head = Head { kind, id, meta_len, bulk_len, aside, meta_crc: 0, bulk_crc };
        let mut bytes = Vec::with_capacity(HEADER_LEN);
        head.encode(&mut bytes);
        head.meta_crc = crc::append(crc::append(0, &bytes[..COVERED]), &self.queued[start + HEADER_LEN..]);
        bytes.clear();
        head.encode(&mut bytes);
        self.queued[start..start + HEADER_LEN].copy_from_slice(&bytes);
    }

    /// Sends what is queued and a frame; its bulk data are the parts one after the other.
    pub fn send(
        &mut self,
        kind: u16,
        id: u32,
        fields: impl FnOnce(&mut Vec<u8>),
        bulk: &[&[u8]],
    ) -> io::Result<()> {
        let len: usize = bulk.iter().map(|part| part.len()).sum();
        let aside = match self.aside.as_mut().filter(|_| len >= ASIDE_MIN) {
            Some(way) => way.send(bulk).map(|()| true)?,
            None => false,
        };
        self.queue_with(kind, id, fields, bulk, aside);
        let bulk = if aside { &[] } else { bulk };
        let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(bulk.len() + 1);
        slices.push(IoSlice::new(&self.queued));
        slices.extend(bulk.iter().filter(|part| !part.is_empty()).map(|part| IoSlice::new(part)));
        for slices in slices.chunks_mut(PARTS_MAX) {
            write_all_slices(self.stream.get_mut(), slices)?;
        }
        self.queued.clear();
        self.queued.shrink_to(KEEP_MAX);
        Ok(())
    }

    /// Receives a frame up to its bulk data, which have to be taken next.
    pub fn receive(&mut self) -> io::Result<Head> {
        let mut bytes = [0; HEADER_LEN];
        read_exact(&mut self.stream, self.ahead, &mut bytes)?;
        let head = Head::decode(&bytes, self.limits).map_err(invalid)?;
        if head.aside && self.aside.is_none() {
            return Err(invalid(DecodeError::Invalid("frame flags")));
        }
        self.meta.clear();
        self.meta.shrink_to(KEEP_MAX);
        self.meta.resize(head.meta_len, 0);
        read_exact(&mut self.stream, self.ahead, &mut self.meta)?;
        if crc::append(crc::append(0, &bytes[..COVERED]), &self.meta) != head.meta_crc {
            return Err(invalid(DecodeError::Invalid("checksum of a message")));
        }
        Ok(head)
    }

    /// The fields of the frame received last.
    pub fn meta(&self) -> &[u8] {
        &self.meta
    }

    /// Takes the bulk data of the frame received last.
    pub fn take_bulk(&mut self, head: &Head, into: &mut [u8]) -> io::Result<()> {
        match &mut self.aside {
            Some(way) if head.aside => way.receive(into)?,
            _ => read_exact(&mut self.stream, self.ahead, into)?,
        }
        if crc::append(0, into) != head.bulk_crc {
            return Err(invalid(DecodeError::Invalid("checksum of data")));
        }
        Ok(())
    }

    pub fn bulk(&mut self, head: &Head) -> io::Result<Vec<u8>> {
        let mut bulk = vec![0; head.bulk_len];
        self.take_bulk(head, &mut bulk)?;
        Ok(bulk)
    }
}

/// Past the buffer, which is empty, when nothing may be read ahead.
fn read_exact<S: Read>(stream: &mut BufReader<S>, ahead: bool, into: &mut [u8]) -> io::Result<()> {
    if ahead { stream.read_exact(into) } else { stream.get_mut().read_exact(into) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn frame(kind: u16, id: u32, meta: &[u8], bulk: &[&[u8]]) -> Vec<u8> {
        let (a, mut b) = UnixStream::pair().unwrap();
        Channel::new(a).send(kind, id, |out| out.extend_from_slice(meta), bulk).unwrap();
        let mut bytes = Vec::new();
        b.read_to_end(&mut bytes).unwrap();
        bytes
    }

    fn parse(bytes: &[u8]) -> io::Result<(u16, u32, Vec<u8>, Vec<u8>)> {
        let (mut a, b) = UnixStream::pair().unwrap();
        a.write_all(bytes).unwrap();
        drop(a);
        let mut channel = Channel::new(b);
        channel.trust();
        let head = channel.receive()?;
        let meta = channel.meta().to_vec();
        Ok((head.kind, head.id, meta, channel.bulk(&head)?))
    }

    #[test]
    fn frame_bytes_are_pinned() {
        let bytes = frame(0x0102, 7, b"abc", &[b"12345", b"6789"]);
        let expected =
            b"TPR1\x02\x01\0\0\x07\0\0\0\x03\0\0\0\x09\0\0\0\x1b\xab\xaa\xef\x83\x92\x06\xe3abc123456789";
        assert_eq!(bytes, expected);
        assert_eq!(parse(&bytes).unwrap(), (0x0102, 7, b"abc".to_vec(), b"123456789".to_vec()));
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let good = frame(3, 9, b"fields", &[b"some data"]);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(&bad).is_err(), "bit {bit}");
        }
    }

    /// Messages by a second socket.
    struct Socket(UnixStream);

    impl Aside for Socket {
        fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
            self.0.write_all(&parts.concat())
        }
        fn receive(&mut self, into: &mut [u8]) -> io::Result<()> {
            self.0.read_exact(into)
        }
    }

    #[test]
    fn large_data_go_aside_and_small_do_not() {
        let ((a, mut b), (way_a, way_b)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let mut sender = Channel::new(a);
        sender.go_aside(Box::new(Socket(way_a)));
        let large = vec![5; ASIDE_MIN];
        sender.send(3, 9, |out| out.extend_from_slice(b"fields"), &[&large[1..], &large[..1]]).unwrap();
        sender.send(4, 10, |_| (), &[b"small"]).unwrap();
        drop(sender);
        let mut bytes = Vec::new();
        b.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len(), 2 * HEADER_LEN + b"fieldssmall".len());
        assert_eq!(&bytes[4..8], b"\x03\0\x01\0");
        // Who has agreed to no such way does not take it.
        assert!(parse(&bytes).unwrap_err().to_string().contains("frame flags"));

        let (mut a, b) = UnixStream::pair().unwrap();
        a.write_all(&bytes).unwrap();
        let mut receiver = Channel::new(b);
        receiver.trust();
        receiver.go_aside(Box::new(Socket(way_b)));
        let head = receiver.receive().unwrap();
        assert_eq!(receiver.meta(), b"fields");
        assert_eq!(receiver.bulk(&head).unwrap(), large);
        let head = receiver.receive().unwrap();
        assert_eq!(receiver.bulk(&head).unwrap(), b"small");
    }

    #[test]
    fn what_comes_aside_is_checked() {
        let ((a, b), (way_a, mut way_b)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let mut sender = Channel::new(a);
        sender.go_aside(Box::new(Socket(way_a)));
        sender.send(3, 9, |_| (), &[&vec![5; ASIDE_MIN]]).unwrap();
        let mut sent = vec![0; ASIDE_MIN];
        way_b.read_exact(&mut sent).unwrap();
        sent[77] ^= 1;
        let (mut damager, way) = UnixStream::pair().unwrap();
        damager.write_all(&sent).unwrap();
        let mut receiver = Channel::new(b);
        receiver.trust();
        receiver.go_aside(Box::new(Socket(way)));
        let head = receiver.receive().unwrap();
        assert!(receiver.bulk(&head).unwrap_err().to_string().contains("checksum of data"));
    }

    #[test]
    fn lengths_are_checked_first() {
        let mut bytes = frame(3, 9, b"", &[]);
        bytes[12..16].copy_from_slice(&(META_MAX as u32 + 1).to_le_bytes());
        assert!(parse(&bytes).unwrap_err().to_string().contains("message length"));
        let mut bytes = frame(3, 9, b"", &[]);
        bytes[16..20].copy_from_slice(&(BULK_MAX as u32 + 1).to_le_bytes());
        assert!(parse(&bytes).unwrap_err().to_string().contains("bulk length"));
    }

    #[test]
    fn what_follows_a_frame_stays_in_the_stream() {
        let (mut a, b) = UnixStream::pair().unwrap();
        a.write_all(&[frame(3, 9, b"fields", &[]), b"something else".to_vec()].concat()).unwrap();
        drop(a);
        let mut channel = Channel::new(b);
        channel.receive().unwrap();
        let mut rest = String::new();
        channel.into_stream().read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "something else");
    }

    #[test]
    fn strangers_get_little_room() {
        let (a, b) = UnixStream::pair().unwrap();
        let long = vec![0; GREETING_MAX + 1];
        Channel::new(a).send(1, 1, |out| out.extend_from_slice(&long), &[]).unwrap();
        assert!(Channel::new(b).receive().is_err());
    }
}
