//! What a connection between stagers is once both sides have proved themselves: records that nobody else can read, change,
//! leave out, repeat, or put elsewhere (`docs/formats/13-remote-ends.md`, Records).
//!
//! The Noise protocol does it, by the crate `snow`; here is only how its messages lie in the stream.

use crate::socket::Stream;
use snow::StatelessTransportState;
use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest message of Noise, and what of it is proof.
const MESSAGE_MAX: usize = 65_535;
const TAG_LEN: usize = 16;
/// Most bytes of data in a record.
pub const RECORD_MAX: usize = MESSAGE_MAX - TAG_LEN;
/// What precedes each record: its length.
const HEAD_LEN: usize = 2;
/// Records that one direction of a connection takes: 1 TiB, at which AES-GCM still proves what it should (RFC 8446, section 5.5).
/// Who has more to say connects again.
const RECORDS_MAX: u64 = 1 << 24;
/// Records that go out with one system call.
const TOGETHER_MAX: usize = 4;
/// Bytes read at a time.
const READ_BYTES: usize = 128 << 10;

fn broken(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{what}: somebody has changed what was sent, or it is no record"),
    )
}

/// One direction of a sealed stream: records are numbered, and the number is part of the proof.
struct Way {
    state: Arc<StatelessTransportState>,
    next: u64,
}

impl Way {
    fn number(&mut self) -> io::Result<u64> {
        if self.next >= RECORDS_MAX {
            let text = format!("{RECORDS_MAX} records have gone over this connection, which is used up");
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, text));
        }
        self.next += 1;
        Ok(self.next - 1)
    }

    /// Nothing goes this way any more: after one record that is not what it should be, the next one is none either.
    fn close(&mut self) {
        self.next = RECORDS_MAX;
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
    /// Data of the records that are about to be sent, and the records.
    plain: Vec<u8>,
    records: Vec<u8>,
}

impl Sealer {
    fn put(&mut self, data: &[u8]) -> io::Result<()> {
        let number = self.way.number()?;
        let start = self.records.len();
        self.records.resize(start + HEAD_LEN + data.len() + TAG_LEN, 0);
        let into = &mut self.records[start + HEAD_LEN..];
        let len = self.way.state.write_message(number, data, into).map_err(io::Error::other)?;
        self.records[start..start + HEAD_LEN].copy_from_slice(&(len as u16).to_le_bytes());
        Ok(())
    }

    fn send(&mut self, stream: &mut impl Write) -> io::Result<()> {
        let sent = stream.write_all(&self.records);
        self.records.clear();
        sent
    }

    /// The start of all parts, as much as goes out together.
    fn write(&mut self, stream: &mut impl Write, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut written = 0;
        for part in parts {
            let mut rest: &[u8] = part;
            while !rest.is_empty() {
                let room = RECORD_MAX - self.plain.len();
                let (now, later) = rest.split_at(rest.len().min(room));
                self.plain.extend_from_slice(now);
                written += now.len();
                rest = later;
                if self.plain.len() == RECORD_MAX {
                    self.flush_record()?;
                    if self.records.len() >= TOGETHER_MAX * MESSAGE_MAX {
                        self.send(stream)?;
                        return Ok(written);
                    }
                }
            }
        }
        if !self.plain.is_empty() {
            self.flush_record()?;
        }
        self.send(stream)?;
        Ok(written)
    }

    fn flush_record(&mut self) -> io::Result<()> {
        let plain = std::mem::take(&mut self.plain);
        let put = self.put(&plain);
        self.plain = plain;
        self.plain.clear();
        put
    }
}

/// What is received.
#[derive(Debug)]
struct Opener {
    way: Way,
    /// Bytes `used..` have come and are not opened yet.
    input: Vec<u8>,
    used: usize,
    /// Bytes `taken..` are opened and not read yet.
    plain: Vec<u8>,
    taken: usize,
    ended: bool,
}

impl Opener {
    fn read(&mut self, stream: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
        while self.taken == self.plain.len() && !self.ended && !into.is_empty() {
            if !self.open_next()? {
                self.fill(stream)?;
            }
        }
        let count = into.len().min(self.plain.len() - self.taken);
        into[..count].copy_from_slice(&self.plain[self.taken..self.taken + count]);
        self.taken += count;
        Ok(count)
    }

    /// False when the next record has not all come.
    fn open_next(&mut self) -> io::Result<bool> {
        let rest = &self.input[self.used..];
        let Some(head) = rest.first_chunk::<HEAD_LEN>() else { return Ok(false) };
        let len = usize::from(u16::from_le_bytes(*head));
        let Some(record) = rest.get(HEAD_LEN..HEAD_LEN + len) else { return Ok(false) };
        let number = self.way.number()?;
        self.plain.resize(len.saturating_sub(TAG_LEN), 0);
        let opened = len >= TAG_LEN && self.way.state.read_message(number, record, &mut self.plain).is_ok();
        if !opened {
            self.way.close();
            self.plain.clear();
            self.taken = 0;
            return Err(broken("a record"));
        }
        self.taken = 0;
        self.used += HEAD_LEN + len;
        // Nothing in it: the other side has no more to say.
        self.ended = self.plain.is_empty();
        Ok(true)
    }

    fn fill(&mut self, stream: &mut impl Read) -> io::Result<()> {
        self.input.drain(..std::mem::take(&mut self.used));
        let filled = self.input.len();
        self.input.resize(filled + READ_BYTES, 0);
        let read = stream.read(&mut self.input[filled..]);
        self.input.truncate(filled + read.as_ref().map_or(0, |count| *count));
        match read {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            other => other.map(drop),
        }
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
    pub(super) fn seal(&mut self, state: StatelessTransportState) {
        let state = Arc::new(state);
        let way = || Way { state: Arc::clone(&state), next: 0 };
        let sealer = Sealer { way: way(), plain: Vec::new(), records: Vec::new() };
        let opener =
            Opener { way: way(), input: Vec::new(), used: 0, plain: Vec::new(), taken: 0, ended: false };
        self.seal = Some((sealer, opener));
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
