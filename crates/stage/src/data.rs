//! Moving and checking bytes of one range of a file.

use crate::RANGE_BYTES;
use crate::compound::{PlainWriter, stored};
use crate::end::{End, EndError, FileRef, WritePieces};
use crate::job::{Job, bump};
use crate::report::{Failure, Side};
use crate::sync::lock;
use std::ops::Range;
use std::sync::Mutex;
use tidepool_blocks::crc;

/// Times a range is written that got lost on the way.
const LOST_MAX: u32 = 4;

/// Times a range is written again that came back otherwise.
const WRONG_MAX: u32 = 1;

/// A file of the destination, to be written.
#[derive(Clone, Copy)]
pub(crate) struct Output<'a> {
    pub file: &'a FileRef,
    /// Read back each block when it is written.
    pub check: bool,
    /// Held while a block is written, where the file system lets one write at a time: whoever waits
    /// here sleeps, whoever waits there spins.
    pub turn: Option<&'a Mutex<()>>,
}

/// A file of one end, to be read.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    pub end: &'a dyn End,
    pub file: &'a FileRef,
    pub side: Side,
    /// It has no holes; do not ask.
    pub dense: bool,
}

impl Input<'_> {
    /// The next stored bytes in `range`; empty at its end when there are none.
    fn data(&self, range: Range<u64>) -> Result<Range<u64>, Failure> {
        if self.dense {
            return Ok(range);
        }
        stored(self.end, self.file, range).map_err(|error| self.fail(error))
    }

    fn fail(&self, error: EndError) -> Failure {
        Failure::End { side: self.side, error }
    }

    /// What it means that the file is shorter than it said.
    fn short(&self) -> Failure {
        if self.side == Side::Source { Failure::Changed } else { Failure::Mismatch }
    }
}

impl Job<'_> {
    pub fn source<'a>(&'a self, file: &'a FileRef, dense: bool) -> Input<'a> {
        Input { end: self.src, file, side: Side::Source, dense }
    }

    pub fn target<'a>(&'a self, file: &'a FileRef, dense: bool) -> Input<'a> {
        Input { end: self.dst, file, side: Side::Target, dense }
    }

    /// Checksum of a range, holes counting as zeros. `each` gets the stored bytes with theirs.
    pub fn scan(
        &self,
        input: Input<'_>,
        range: Range<u64>,
        buf: &mut [u8],
        mut each: impl FnMut(u64, &[u8], u32) -> Result<(), Failure>,
    ) -> Result<u32, Failure> {
        let mut crc = 0;
        let mut at = range.start;
        while at < range.end {
            let data = input.data(at..range.end)?;
            crc = crc::append_zeros(crc, data.start - at);
            at = data.start;
            let mut reader = input.end.reader(input.file, data.clone());
            while at < data.end {
                self.check_cancel()?;
                let want = buf.len().min(usize::try_from(data.end - at).unwrap_or(usize::MAX));
                let count = reader.read(&mut buf[..want]).map_err(|error| input.fail(error))?;
                if count == 0 {
                    return Err(input.short());
                }
                let sum = crc::append(0, &buf[..count]);
                crc = crc::join(crc, sum, count as u64);
                each(at, &buf[..count], sum)?;
                at += count as u64;
            }
        }
        Ok(crc)
    }

    /// Copies the stored bytes of a range; the checksum of the range as it was read. What does not
    /// come back as it was written, if that can be seen at once, is written a second time.
    pub fn copy_range(
        &self,
        from: Input<'_>,
        to: Output<'_>,
        range: Range<u64>,
        buf: &mut [u8],
    ) -> Result<u32, Failure> {
        let mut lost = 0;
        let mut wrong = 0;
        loop {
            // Once something was lost, piece by piece: each is then asked for until it is there.
            let mut writer: Box<dyn WritePieces + '_> = match lost {
                0 => self.dst.writer(to.file),
                _ => Box::new(PlainWriter::new(self.dst, to.file)),
            };
            match self.try_copy_range(from, to, &mut *writer, range.clone(), buf) {
                Err(Failure::Mismatch) if wrong < WRONG_MAX => wrong += 1,
                Err(Failure::End { side: Side::Target, error }) if error.is_lost() && lost < LOST_MAX => {
                    lost += 1;
                }
                other => return other,
            }
        }
    }

    fn try_copy_range(
        &self,
        from: Input<'_>,
        to: Output<'_>,
        writer: &mut dyn WritePieces,
        range: Range<u64>,
        buf: &mut [u8],
    ) -> Result<u32, Failure> {
        let len = range.end - range.start;
        let mut stored = 0;
        let (buf, back) = if to.check { buf.split_at_mut(buf.len() / 2) } else { (buf, &mut [][..]) };
        let crc = self.scan(from, range, buf, |at, data, sum| {
            stored += data.len() as u64;
            self.put_block(to, writer, (at, data, sum), back)
        })?;
        writer.finish().map_err(Failure::target)?;
        bump(&self.totals.holes, len - stored);
        Ok(crc)
    }

    /// Writes what was read at a place, with its checksum. `back` is room to read it back.
    pub fn put_block(
        &self,
        to: Output<'_>,
        writer: &mut dyn WritePieces,
        (at, data, sum): (u64, &[u8], u32),
        back: &mut [u8],
    ) -> Result<(), Failure> {
        self.admit(data.len() as u64)?;
        let turn = to.turn.map(lock);
        writer.write(at, data).map_err(Failure::target)?;
        drop(turn);
        if to.check {
            self.check_written(to.file, at, &mut back[..data.len()], sum)?;
        }
        bump(&self.control.inner.bytes_copied, data.len() as u64);
        self.control.inner.tick();
        Ok(())
    }

    /// Reads back what was written a moment ago.
    fn check_written(&self, file: &FileRef, at: u64, back: &mut [u8], sum: u32) -> Result<(), Failure> {
        let mut filled = 0;
        while filled < back.len() {
            let count =
                self.dst.read(file, at + filled as u64, &mut back[filled..]).map_err(Failure::target)?;
            if count == 0 {
                return Err(Failure::Mismatch);
            }
            filled += count;
        }
        if crc::append(0, back) == sum { Ok(()) } else { Err(Failure::Mismatch) }
    }

    /// Has an end read a range and tell its checksum.
    pub fn sum_range(&self, of: Input<'_>, range: Range<u64>, buf: &mut [u8]) -> Result<u32, Failure> {
        let (mut crc, mut at) = (0, range.start);
        while at < range.end {
            self.check_cancel()?;
            let end = range.end.min(at + RANGE_BYTES);
            let sum = of.end.checksum(of.file, at..end, of.dense, buf).map_err(|error| of.fail(error))?;
            crc = crc::join(crc, sum.ok_or_else(|| of.short())?, end - at);
            at = end;
        }
        Ok(crc)
    }

    /// Reads a range back from the destination; its checksum.
    pub fn read_back(
        &self,
        file: &FileRef,
        range: Range<u64>,
        dense: bool,
        buf: &mut [u8],
    ) -> Result<u32, Failure> {
        self.sum_range(self.target(file, dense), range, buf)
    }
}
