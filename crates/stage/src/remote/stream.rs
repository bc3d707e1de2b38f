//! Reading and writing ranges without waiting for each piece.

use super::client::{RemoteEnd, remote_file};
use super::handle::unexpected;
use super::lines::{Backoff, Lease, Trouble};
use super::message::{Answer, Ask};
use crate::end::{End, EndError, EndResult, FileRef, ReadRange, WritePieces};
use std::collections::VecDeque;
use std::ops::Range;
use tidepool_types::Errno;

/// Bytes of one piece.
pub(super) const BLOCK: usize = 512 << 10;
/// Pieces of a stream under way: 8 MiB, which is 13 ms at 5 Gbit/s.
const WINDOW: usize = 16;

/// A connection for a stream, with the file's number in its session.
struct Line<'a> {
    lease: Lease<'a>,
    file: u32,
}

impl RemoteEnd {
    /// A connection for a stream; `None` when there is none to spare.
    fn line(&self, file: &FileRef) -> Result<Option<Line<'_>>, Trouble> {
        let Some(mut lease) = self.lines.stream_lease()? else { return Ok(None) };
        let file = remote_file(file)?.resolve(&mut lease)?;
        Ok(Some(Line { lease, file }))
    }

    /// What to tell of a trouble that may pass: nothing while there is time to try again.
    fn pass(&self, trouble: Trouble, backoff: &mut Backoff) -> EndResult<()> {
        match trouble {
            Trouble::Said(error) => Err(self.lines.named(error)),
            Trouble::Lost(_) if self.lines.wait(backoff) => Ok(()),
            Trouble::Lost(error) => Err(self.lines.give_up(&error)),
        }
    }
}

/// Writes with up to [`WINDOW`] pieces under way.
pub(super) struct Writer<'a> {
    end: &'a RemoteEnd,
    file: &'a FileRef,
    line: Option<Line<'a>>,
    /// Numbers and lengths of the pieces under way.
    sent: VecDeque<(u32, usize)>,
    /// There was no connection to spare.
    plain: bool,
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        // Answers that nobody waits for are on the way.
        if let Some(line) = self.line.as_mut().filter(|_| !self.sent.is_empty()) {
            line.lease.lost();
        }
    }
}

impl<'a> Writer<'a> {
    pub fn new(end: &'a RemoteEnd, file: &'a FileRef) -> Writer<'a> {
        Writer { end, file, line: None, sent: VecDeque::new(), plain: false }
    }

    fn open(&mut self) -> EndResult<()> {
        let mut backoff = self.end.lines.backoff();
        while self.line.is_none() && !self.plain {
            match self.end.line(self.file) {
                Ok(line) => {
                    self.plain = line.is_none();
                    self.line = line;
                }
                Err(trouble) => self.end.pass(trouble, &mut backoff)?,
            }
        }
        Ok(())
    }

    /// Waits until at most `left` pieces are under way.
    fn settle(&mut self, left: usize) -> Result<(), Trouble> {
        let Some(line) = &mut self.line else { return Ok(()) };
        while self.sent.len() > left {
            let Some(&(id, len)) = self.sent.front() else { break };
            match line.lease.receive(id, &mut [])?.0 {
                Answer::Count { count } if count as usize == len => {}
                // A short write: the rest has to follow, or the reason be found.
                Answer::Count { .. } => return Err(Trouble::Lost(std::io::ErrorKind::WriteZero.into())),
                _ => return Err(unexpected()),
            }
            self.sent.pop_front();
        }
        Ok(())
    }

    fn send(&mut self, offset: u64, data: &[u8]) -> Result<(), Trouble> {
        self.settle(WINDOW - 1)?;
        let Some(line) = &mut self.line else { return Ok(()) };
        let id = line.lease.send(&Ask::Write { file: line.file, offset }, &[data])?;
        self.sent.push_back((id, data.len()));
        Ok(())
    }

    /// After a loss the range has to be written again.
    fn told(&mut self, result: Result<(), Trouble>) -> EndResult<()> {
        match result {
            Ok(()) => Ok(()),
            Err(Trouble::Said(error)) => Err(self.end.lines.named(error)),
            Err(Trouble::Lost(error)) => {
                if let Some(line) = &mut self.line {
                    line.lease.lost();
                }
                let detail = format!("node {}: {error}", self.end.node());
                Err(EndError { errno: Errno::ECONNRESET, operation: "write", detail: Some(detail) })
            }
        }
    }
}

impl WritePieces for Writer<'_> {
    fn write(&mut self, offset: u64, data: &[u8]) -> EndResult<()> {
        self.open()?;
        if self.plain {
            return self.end.write_plainly(self.file, offset, data);
        }
        for (piece, at) in data.chunks(BLOCK).zip((offset..).step_by(BLOCK)) {
            let sent = self.send(at, piece);
            self.told(sent)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> EndResult<()> {
        let settled = self.settle(0);
        self.told(settled)?;
        self.line = None;
        Ok(())
    }
}

/// Reads with up to [`WINDOW`] pieces asked for ahead.
pub(super) struct Reader<'a> {
    end: &'a RemoteEnd,
    file: &'a FileRef,
    /// What the caller has not got yet.
    rest: Range<u64>,
    line: Option<Line<'a>>,
    /// Start of what is not asked for yet.
    next: u64,
    /// Numbers and lengths of the pieces asked for.
    asked: VecDeque<(u32, usize)>,
    backoff: Backoff,
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.reset();
    }
}

impl<'a> Reader<'a> {
    pub fn new(end: &'a RemoteEnd, file: &'a FileRef, range: Range<u64>) -> Reader<'a> {
        let (next, backoff) = (range.start, end.lines.backoff());
        let asked = VecDeque::new();
        Reader { end, file, rest: range, line: None, next, asked, backoff }
    }

    /// Gives the connection back; with answers on the way it is of no use to others.
    fn reset(&mut self) {
        if let Some(line) = self.line.as_mut().filter(|_| !self.asked.is_empty()) {
            line.lease.lost();
        }
        self.line = None;
        self.asked.clear();
        self.next = self.rest.start;
    }

    fn try_read(&mut self, buf: &mut [u8]) -> Result<usize, Trouble> {
        if self.line.is_none() {
            self.line = self.end.line(self.file)?;
            self.next = self.rest.start;
        }
        let Some(line) = &mut self.line else {
            let want = buf.len().min(usize::try_from(self.rest.end - self.rest.start).unwrap_or(usize::MAX));
            return Ok(self.end.read(self.file, self.rest.start, &mut buf[..want])?);
        };
        while self.asked.len() < WINDOW && self.next < self.rest.end {
            let len = (self.rest.end - self.next).min(BLOCK.min(buf.len()) as u64) as usize;
            let ask = Ask::Read { file: line.file, offset: self.next, len: len as u32 };
            self.asked.push_back((line.lease.send(&ask, &[])?, len));
            self.next += len as u64;
        }
        let Some(&(id, len)) = self.asked.front() else { return Ok(0) };
        if len > buf.len() {
            // Asked for when the caller had more room: once more, in pieces that fit.
            self.reset();
            return self.try_read(buf);
        }
        let (answer, count) = line.lease.receive(id, buf)?;
        self.asked.pop_front();
        match answer {
            Answer::Data { offset } if offset != self.rest.start => return Err(unexpected()),
            Answer::Data { .. } if count < len => {
                // The file is shorter than it was, or the read was: what follows does not fit.
                self.rest.start += count as u64;
                self.reset();
                self.rest.start -= count as u64;
            }
            Answer::Data { .. } => {}
            _ => return Err(unexpected()),
        }
        Ok(count)
    }
}

impl ReadRange for Reader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> EndResult<usize> {
        if self.rest.is_empty() || buf.is_empty() {
            return Ok(0);
        }
        loop {
            match self.try_read(buf) {
                Ok(count) => {
                    self.rest.start += count as u64;
                    if self.rest.is_empty() {
                        self.reset();
                    }
                    return Ok(count);
                }
                Err(trouble) => {
                    self.reset();
                    self.end.pass(trouble, &mut self.backoff)?;
                }
            }
        }
    }
}
