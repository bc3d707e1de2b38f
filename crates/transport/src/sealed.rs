//! What a connection is once both sides have proved themselves: records that nobody else can read, change, leave out, repeat, or put
//! elsewhere (`docs/formats/13-remote-ends.md`, Records). Connections between stagers are always that, those of pools on wish.
//!
//! They are messages of the Noise protocol (`cipher.rs`); here is how those lie in the stream.

use crate::cipher::{Cipher, KEY_LEN, Keys, TAG_LEN};
use crate::socket::Stream;
use std::fmt;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Longest message of Noise.
const MESSAGE_MAX: usize = 65_535;
/// Most bytes of data in a record.
pub const RECORD_MAX: usize = MESSAGE_MAX - TAG_LEN;
/// What precedes each record: its length.
const HEAD_LEN: usize = 2;
/// Records of one direction under one key: at most 1 TiB, at which AES-GCM still proves what it should (RFC 8446, section 5.5).
const RECORDS_PER_KEY: u64 = 1 << 24;
/// Records that go out with one system call.
const TOGETHER_MAX: usize = 4;
/// Bytes read at a time: at first, and where much comes.
const READ_BYTES_MIN: usize = 4 << 10;
const READ_BYTES_MAX: usize = 128 << 10;

fn broken(what: &str) -> io::Error {
    io::Error::new(
        ErrorKind::InvalidData,
        format!("{what}: somebody has changed what was sent, or it is no record"),
    )
}

/// One direction of a sealed stream: records are numbered, and the number is part of the proof.
struct Way {
    cipher: Cipher,
    records_per_key: u64,
    next: u64,
    closed: bool,
}

impl Way {
    /// The number of the next record, for which the key is good.
    fn number(&mut self) -> io::Result<u64> {
        if self.closed {
            let text = "an earlier record was broken, or could not be sent; connect again";
            return Err(io::Error::new(ErrorKind::ConnectionAborted, text));
        }
        let number = self.next;
        if number > 0 && number.is_multiple_of(self.records_per_key) {
            self.cipher.renew();
        }
        self.next += 1;
        Ok(number)
    }

    /// As [`Cipher::seal`].
    fn seal(&mut self, record: &mut [u8]) -> io::Result<()> {
        let number = self.number()?;
        self.cipher.seal(number, record)
    }

    /// As [`Cipher::open`]. Nothing goes this way any more after one record that is not what it should be.
    fn open(&mut self, record: &mut [u8]) -> io::Result<usize> {
        let number = self.number()?;
        self.cipher.open(number, record).map_err(|_| {
            self.closed = true;
            broken("a record")
        })
    }

    fn half(&self) -> Half {
        Half { key: self.cipher.raw(), next: self.next }
    }
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Way({})", self.next)
    }
}

/// What is sent.
#[derive(Debug)]
struct Sealer {
    way: Way,
    /// Records `sent..made` have not gone yet. After them the next one is being made, of `pending` bytes of data so far.
    records: Vec<u8>,
    made: usize,
    sent: usize,
    pending: usize,
}

impl Sealer {
    fn new(way: Way) -> Sealer {
        Sealer { way, records: Vec::new(), made: 0, sent: 0, pending: 0 }
    }

    /// Puts data into the record that is being made, as far as there is room; how many bytes.
    fn add(&mut self, data: &[u8]) -> usize {
        let count = data.len().min(RECORD_MAX - self.pending);
        let at = self.made + HEAD_LEN + self.pending;
        if self.records.len() < at + count + TAG_LEN {
            self.records.resize(at + count + TAG_LEN, 0);
        }
        self.records[at..at + count].copy_from_slice(&data[..count]);
        self.pending += count;
        count
    }

    /// The record that is being made is complete.
    fn close_record(&mut self) -> io::Result<()> {
        let start = self.made + HEAD_LEN;
        let len = std::mem::take(&mut self.pending) + TAG_LEN;
        if self.records.len() < start + len {
            self.records.resize(start + len, 0);
        }
        self.way.seal(&mut self.records[start..start + len])?;
        self.records[self.made..start].copy_from_slice(&(len as u16).to_le_bytes());
        self.made = start + len;
        Ok(())
    }

    /// Makes records of the start of all parts, of as much as goes out together.
    fn gather(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut taken = 0;
        for part in parts {
            let mut rest: &[u8] = part;
            while !rest.is_empty() {
                let count = self.add(rest);
                (rest, taken) = (&rest[count..], taken + count);
                if self.pending == RECORD_MAX {
                    self.close_record()?;
                    if self.made >= TOGETHER_MAX * MESSAGE_MAX {
                        return Ok(taken);
                    }
                }
            }
        }
        if self.pending > 0 {
            self.close_record()?;
        }
        Ok(taken)
    }

    /// Sends all records. After an error nothing is sent any more.
    fn send(&mut self, stream: &mut impl Write) -> io::Result<()> {
        let sent = stream.write_all(&self.records[self.sent..self.made]);
        (self.sent, self.made) = (0, 0);
        self.way.closed |= sent.is_err();
        sent
    }

    /// Sends of the records what a stream takes that does not wait; true when that was all.
    fn push(&mut self, stream: &mut impl Write) -> io::Result<bool> {
        while self.sent < self.made {
            match stream.write(&self.records[self.sent..self.made]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        (self.sent, self.made) = (0, 0);
        Ok(true)
    }

    fn write(&mut self, stream: &mut impl Write, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let taken = self.gather(parts)?;
        self.send(stream)?;
        Ok(taken)
    }
}

/// What is received.
#[derive(Debug)]
struct Opener {
    way: Way,
    /// Bytes `used..filled` have come and are not opened yet; the rest is room.
    input: Vec<u8>,
    used: usize,
    filled: usize,
    /// Bytes of the input that are opened and not read yet.
    plain: Range<usize>,
    /// Bytes to read at a time.
    step: usize,
    /// The last read has taken all that was there.
    drained: bool,
    ended: bool,
}

impl Opener {
    fn new(way: Way) -> Opener {
        let (input, used, filled, plain) = (Vec::new(), 0, 0, 0..0);
        Opener { way, input, used, filled, plain, step: READ_BYTES_MIN, drained: false, ended: false }
    }

    fn read(&mut self, stream: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        while self.plain.is_empty() && !self.ended {
            match self.next_len() {
                Some(len) => self.open_next(len)?,
                None => self.fill(stream)?,
            }
        }
        let count = into.len().min(self.plain.len());
        into[..count].copy_from_slice(&self.input[self.plain.start..][..count]);
        self.plain.start += count;
        Ok(count)
    }

    /// The length of the next record, when all of it has come.
    fn next_len(&self) -> Option<usize> {
        let rest = &self.input[self.used..self.filled];
        let len = usize::from(u16::from_le_bytes(*rest.first_chunk()?));
        (rest.len() >= HEAD_LEN + len).then_some(len)
    }

    fn open_next(&mut self, len: usize) -> io::Result<()> {
        let start = self.used + HEAD_LEN;
        let count = self.way.open(&mut self.input[start..start + len])?;
        self.plain = start..start + count;
        self.used = start + len;
        // Nothing in it: the other side has no more to say.
        self.ended = count == 0;
        Ok(())
    }

    /// Reads once, little at a time on a connection on which little comes. Everything opened has been read.
    fn fill(&mut self, stream: &mut impl Read) -> io::Result<()> {
        self.plain = 0..0;
        self.input.copy_within(self.used..self.filled, 0);
        self.filled -= std::mem::take(&mut self.used);
        if self.input.len() < self.filled + self.step {
            self.input.resize(self.filled + self.step, 0);
        }
        let room = &mut self.input[self.filled..];
        let (read, asked) = (stream.read(room), room.len());
        let count = match read {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            other => other?,
        };
        self.filled += count;
        self.drained = count < asked;
        self.step = if self.drained { self.step } else { (2 * self.step).min(READ_BYTES_MAX) };
        Ok(())
    }

    /// True when asking the stream again now would be in vain, and nothing is left of what it has given.
    fn is_dry(&self) -> bool {
        self.drained && self.plain.is_empty() && self.next_len().is_none()
    }

    fn has_unread(&self) -> bool {
        !self.plain.is_empty() || self.used < self.filled
    }
}

/// One direction as another process goes on with it.
#[derive(Clone, PartialEq, Eq)]
pub struct Half {
    pub key: [u8; KEY_LEN],
    /// Number of the next record.
    pub next: u64,
}
tidepool_wire::field_struct!(Half { key, next });

/// Neither key is for anybody's eyes.
impl fmt::Debug for Half {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Half({})", self.next)
    }
}

/// What another process needs, besides the stream, to go on with a sealed connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seals {
    pub outgoing: Half,
    pub incoming: Half,
    /// Bytes that were opened and not read.
    pub plain: Box<[u8]>,
    /// Bytes that have come and were not opened.
    pub input: Box<[u8]>,
    pub ended: bool,
}
tidepool_wire::field_struct!(Seals { outgoing, incoming, plain, input, ended });

/// A stream that carries plain bytes during the greeting, and records after it.
#[derive(Debug)]
pub struct Sealed<S> {
    stream: S,
    seal: Option<(Sealer, Opener)>,
    /// When the greeting has to be over.
    until: Option<Instant>,
}

impl<S: Stream> Sealed<S> {
    pub fn new(stream: S) -> Sealed<S> {
        Sealed { stream, seal: None, until: None }
    }

    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// The stream of a connection that is not sealed.
    pub fn into_inner(self) -> S {
        debug_assert!(self.seal.is_none(), "what has been opened already would be lost");
        self.stream
    }

    /// Reads take until then in all, however many there are; `None`: as the stream's own timeout says.
    pub fn end_at(&mut self, until: Option<Instant>) {
        self.until = until;
    }

    /// From here on everything is sealed.
    pub(crate) fn seal(&mut self, keys: Keys) {
        self.seal_from(keys, (0, 0));
    }

    /// The same where messages under these keys have gone before: the numbers of the next one there and back.
    pub(crate) fn seal_from(&mut self, keys: Keys, next: (u64, u64)) {
        self.seal_with(keys, next, RECORDS_PER_KEY);
    }

    fn seal_with(&mut self, keys: Keys, next: (u64, u64), records_per_key: u64) {
        let way = |cipher, next| Way { cipher, records_per_key, next, closed: false };
        self.seal = Some((Sealer::new(way(keys.outgoing, next.0)), Opener::new(way(keys.incoming, next.1))));
    }

    /// The stream, and what another process needs to go on where this one is. Everything written has gone.
    pub fn take_apart(self) -> io::Result<(S, Seals)> {
        match self.seal {
            Some((sealer, opener)) if !sealer.way.closed && !opener.way.closed && sealer.made == 0 => {
                let unread = |range: Range<usize>| opener.input[range].into();
                let seals = Seals {
                    outgoing: sealer.way.half(),
                    incoming: opener.way.half(),
                    plain: unread(opener.plain.clone()),
                    input: unread(opener.used..opener.filled),
                    ended: opener.ended,
                };
                Ok((self.stream, seals))
            }
            _ => Err(io::Error::new(ErrorKind::InvalidInput, "this connection is not whole, or not sealed")),
        }
    }

    /// A connection that another process has [taken apart](Sealed::take_apart).
    pub fn put_together(stream: S, seals: Seals) -> Sealed<S> {
        let Seals { outgoing, incoming, plain, input, ended } = seals;
        let keys = Keys { outgoing: Cipher::new(outgoing.key), incoming: Cipher::new(incoming.key) };
        let mut sealed = Sealed::new(stream);
        sealed.seal_from(keys, (outgoing.next, incoming.next));
        if let Some((_, opener)) = &mut sealed.seal {
            opener.plain = 0..plain.len();
            opener.used = plain.len();
            opener.filled = plain.len() + input.len();
            opener.input = [plain, input].concat();
            opener.ended = ended;
        }
        sealed
    }

    pub fn is_sealed(&self) -> bool {
        self.seal.is_some()
    }

    /// True when the last read has taken all that the stream had for now; false where nobody knows.
    pub fn is_dry(&self) -> bool {
        self.seal.as_ref().is_some_and(|(_, opener)| opener.is_dry())
    }

    /// Seals the start of `data` for a stream that does not wait, and sends what it takes; how much was sealed. Nothing is while
    /// earlier records wait ([`push`](Sealed::push)).
    pub fn offer(&mut self, data: &[u8]) -> io::Result<usize> {
        let Some((sealer, _)) = &mut self.seal else { return self.stream.write(data) };
        if !sealer.push(&mut self.stream)? {
            return Err(ErrorKind::WouldBlock.into());
        }
        let taken = sealer.gather(&[IoSlice::new(data)])?;
        sealer.push(&mut self.stream)?;
        Ok(taken)
    }

    /// Sends what is sealed already as far as the stream takes it without waiting; true when that was all.
    pub fn push(&mut self) -> io::Result<bool> {
        match &mut self.seal {
            None => Ok(true),
            Some((sealer, _)) => sealer.push(&mut self.stream),
        }
    }

    /// Both directions for themselves, of a sealed stream and another handle of it.
    pub fn split(self, other: S) -> io::Result<(SealedReader<S>, SealedWriter<S>)> {
        let Some((sealer, opener)) = self.seal else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "this connection is not sealed"));
        };
        Ok((SealedReader { stream: self.stream, opener }, SealedWriter { stream: other, sealer }))
    }

    fn keep_time(&self) -> io::Result<()> {
        let Some(until) = self.until else { return Ok(()) };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.timeout(left.max(Duration::from_millis(1)))
    }
}

impl<S: Stream> Read for Sealed<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.keep_time()?;
        match &mut self.seal {
            None => self.stream.read(into),
            Some((_, opener)) => opener.read(&mut self.stream, into),
        }
    }
}

impl<S: AsFd> AsFd for Sealed<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl<S: Stream> Stream for Sealed<S> {
    fn timeout(&self, timeout: Duration) -> io::Result<()> {
        self.stream.timeout(timeout)
    }

    fn wait_at_most(&mut self, limit: Duration) -> io::Result<()> {
        self.stream.wait_at_most(limit)
    }

    fn has_unread(&self) -> bool {
        self.seal.as_ref().is_some_and(|(_, opener)| opener.has_unread())
    }
}

impl<S: Stream> Write for Sealed<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut self.seal {
            None => self.stream.write_vectored(parts),
            Some((sealer, _)) => sealer.write(&mut self.stream, parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// The direction of a sealed stream that is read.
#[derive(Debug)]
pub struct SealedReader<S> {
    stream: S,
    opener: Opener,
}

impl<S: Read> Read for SealedReader<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.opener.read(&mut self.stream, into)
    }
}

/// The one that is written.
#[derive(Debug)]
pub struct SealedWriter<S> {
    stream: S,
    sealer: Sealer,
}

impl<S: Write> SealedWriter<S> {
    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Tells the other side that no more comes; without it, it takes the end of the stream for a loss.
    pub fn end(&mut self) -> io::Result<()> {
        self.sealer.close_record()?;
        self.sealer.send(&mut self.stream)
    }
}

impl<S: Write> Write for SealedWriter<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sealer.write(&mut self.stream, &[IoSlice::new(bytes)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
#[path = "sealed_tests.rs"]
mod tests;
