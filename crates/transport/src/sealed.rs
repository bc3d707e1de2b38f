//! What a connection is once both sides have proved themselves: records that nobody else can read, change, leave out, repeat, or put
//! elsewhere (`docs/formats/13-remote-ends.md`, Records). Connections between stagers are always that, those of pools on wish.
//!
//! The Noise protocol does it, by the crate `snow`; here is only how its messages lie in the stream.

use crate::socket::Stream;
use snow::StatelessTransportState;
use std::fmt;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Longest message of Noise, and what of it is proof.
const MESSAGE_MAX: usize = 65_535;
const TAG_LEN: usize = 16;
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

/// The keys of both directions.
struct Keys {
    state: RwLock<StatelessTransportState>,
    records_per_key: u64,
}

/// One direction of a sealed stream: records are numbered, and the number is part of the proof.
struct Way {
    keys: Arc<Keys>,
    outgoing: bool,
    next: u64,
    closed: bool,
}

impl Way {
    /// The number of the next record, for which the keys are good.
    fn number(&mut self) -> io::Result<u64> {
        if self.closed {
            let text = "an earlier record was broken, or could not be sent; connect again";
            return Err(io::Error::new(ErrorKind::ConnectionAborted, text));
        }
        let number = self.next;
        if number > 0 && number.is_multiple_of(self.keys.records_per_key) {
            let mut state = self.keys.state.write().unwrap_or_else(PoisonError::into_inner);
            if self.outgoing { state.rekey_outgoing() } else { state.rekey_incoming() }
        }
        self.next += 1;
        Ok(number)
    }

    fn seal(&mut self, data: &[u8], into: &mut [u8]) -> io::Result<usize> {
        let number = self.number()?;
        let state = self.keys.state.read().unwrap_or_else(PoisonError::into_inner);
        state.write_message(number, data, into).map_err(io::Error::other)
    }

    /// Nothing goes this way any more after one record that is not what it should be.
    fn open(&mut self, record: &[u8], into: &mut [u8]) -> io::Result<()> {
        let number = self.number()?;
        let state = self.keys.state.read().unwrap_or_else(PoisonError::into_inner);
        let opened = record.len() >= TAG_LEN && state.read_message(number, record, into).is_ok();
        drop(state);
        self.closed = !opened;
        if opened { Ok(()) } else { Err(broken("a record")) }
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
    /// Data of the record that is about to be made.
    plain: Vec<u8>,
    /// Records `sent..made` have not gone yet.
    records: Vec<u8>,
    made: usize,
    sent: usize,
}

impl Sealer {
    fn new(way: Way) -> Sealer {
        Sealer { way, plain: Vec::new(), records: Vec::new(), made: 0, sent: 0 }
    }

    fn put(&mut self, data: &[u8]) -> io::Result<()> {
        let start = self.made + HEAD_LEN;
        let end = start + data.len() + TAG_LEN;
        if self.records.len() < end {
            self.records.resize(end, 0);
        }
        let len = self.way.seal(data, &mut self.records[start..end])?;
        self.records[self.made..start].copy_from_slice(&(len as u16).to_le_bytes());
        self.made = end;
        Ok(())
    }

    /// Makes records of the start of all parts, of as much as goes out together.
    fn gather(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut taken = 0;
        for part in parts {
            let mut rest: &[u8] = part;
            while !rest.is_empty() {
                let room = RECORD_MAX - self.plain.len();
                let (now, later) = rest.split_at(rest.len().min(room));
                (rest, taken) = (later, taken + now.len());
                if now.len() == RECORD_MAX {
                    self.put(now)?;
                } else {
                    self.plain.extend_from_slice(now);
                }
                if self.plain.len() == RECORD_MAX {
                    self.put_plain()?;
                }
                if self.plain.is_empty() && self.made >= TOGETHER_MAX * MESSAGE_MAX {
                    return Ok(taken);
                }
            }
        }
        if !self.plain.is_empty() {
            self.put_plain()?;
        }
        Ok(taken)
    }

    fn put_plain(&mut self) -> io::Result<()> {
        let plain = std::mem::take(&mut self.plain);
        let put = self.put(&plain);
        self.plain = plain;
        self.plain.clear();
        put
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
    /// Bytes to read at a time.
    step: usize,
    /// The last read has taken all that was there.
    drained: bool,
    /// Bytes `taken..` are opened and not read yet.
    plain: Vec<u8>,
    taken: usize,
    ended: bool,
}

impl Opener {
    fn new(way: Way) -> Opener {
        let (input, plain) = (Vec::new(), Vec::new());
        let (used, filled, taken) = (0, 0, 0);
        Opener { way, input, used, filled, step: READ_BYTES_MIN, drained: false, plain, taken, ended: false }
    }

    fn read(&mut self, stream: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        while self.taken == self.plain.len() && !self.ended {
            let Some(len) = self.next_len() else {
                self.fill(stream)?;
                continue;
            };
            let count = len.saturating_sub(TAG_LEN);
            // Straight to its place where there is room for all of it.
            if count > 0 && count <= into.len() {
                let record = &self.input[self.used + HEAD_LEN..][..len];
                // With room for the proof nothing is copied aside meanwhile.
                let room = into.len().min(len);
                self.way.open(record, &mut into[..room])?;
                self.used += HEAD_LEN + len;
                return Ok(count);
            }
            self.open_aside(len)?;
        }
        let count = into.len().min(self.plain.len() - self.taken);
        into[..count].copy_from_slice(&self.plain[self.taken..self.taken + count]);
        self.taken += count;
        Ok(count)
    }

    /// The length of the next record, when all of it has come.
    fn next_len(&self) -> Option<usize> {
        let rest = &self.input[self.used..self.filled];
        let len = usize::from(u16::from_le_bytes(*rest.first_chunk()?));
        (rest.len() >= HEAD_LEN + len).then_some(len)
    }

    fn open_aside(&mut self, len: usize) -> io::Result<()> {
        self.taken = 0;
        // With room for the proof, as above.
        self.plain.resize(len, 0);
        let record = &self.input[self.used + HEAD_LEN..][..len];
        let opened = self.way.open(record, &mut self.plain);
        self.plain.truncate(if opened.is_ok() { len - TAG_LEN } else { 0 });
        opened?;
        self.used += HEAD_LEN + len;
        // Nothing in it: the other side has no more to say.
        self.ended = self.plain.is_empty();
        Ok(())
    }

    /// Reads once, little at a time on a connection on which little comes.
    fn fill(&mut self, stream: &mut impl Read) -> io::Result<()> {
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
        self.drained && self.taken == self.plain.len() && self.next_len().is_none()
    }

    fn has_unread(&self) -> bool {
        self.taken < self.plain.len() || self.used < self.filled
    }
}

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
    pub(crate) fn seal(&mut self, state: StatelessTransportState) {
        self.seal_from(state, (0, 0));
    }

    /// The same where messages under these keys have gone before: the numbers of the next one there and back.
    pub(crate) fn seal_from(&mut self, state: StatelessTransportState, next: (u64, u64)) {
        self.seal_with(state, next, RECORDS_PER_KEY);
    }

    fn seal_with(&mut self, state: StatelessTransportState, next: (u64, u64), records_per_key: u64) {
        let keys = Arc::new(Keys { state: RwLock::new(state), records_per_key });
        let way = |outgoing, next| Way { keys: Arc::clone(&keys), outgoing, next, closed: false };
        self.seal = Some((Sealer::new(way(true, next.0)), Opener::new(way(false, next.1))));
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
        self.sealer.put(&[])?;
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
