//! Moving and checking bytes of one range of a file.

use crate::crc;
use crate::end::{End, FileRef};
use crate::job::{Job, bump};
use crate::report::{Failure, Side};
use std::ops::Range;

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
        let fail = |error| Failure::End { side: self.side, error };
        match self.end.next_data(self.file, range.start).map_err(fail)? {
            Some(start) if start < range.end => {
                let end = self.end.next_hole(self.file, start, range.end).map_err(fail)?;
                // A hole where data was a moment ago: the file is being changed. Reading
                // there is harmless, not moving on is not.
                Ok(start..end.clamp(start + 1, range.end))
            }
            _ => Ok(range.end..range.end),
        }
    }
}

impl Job<'_> {
    pub fn source<'a>(&'a self, file: &'a FileRef, dense: bool) -> Input<'a> {
        Input { end: self.src, file, side: Side::Source, dense }
    }

    pub fn target<'a>(&'a self, file: &'a FileRef, dense: bool) -> Input<'a> {
        Input { end: self.dst, file, side: Side::Target, dense }
    }

    /// Checksum of a range, holes counting as zeros. `each` gets the stored bytes.
    pub fn scan(
        &self,
        input: Input<'_>,
        range: Range<u64>,
        buf: &mut [u8],
        mut each: impl FnMut(u64, &[u8]) -> Result<(), Failure>,
    ) -> Result<u32, Failure> {
        let mut crc = 0;
        let mut at = range.start;
        while at < range.end {
            let data = input.data(at..range.end)?;
            crc = crc::append_zeros(crc, data.start - at);
            at = data.start;
            while at < data.end {
                self.check_cancel()?;
                let want = buf.len().min(usize::try_from(data.end - at).unwrap_or(usize::MAX));
                let count = input.end.read(input.file, at, &mut buf[..want]);
                let count = count.map_err(|error| Failure::End { side: input.side, error })?;
                if count == 0 {
                    // Shorter than it said.
                    return Err(if input.side == Side::Source {
                        Failure::Changed
                    } else {
                        Failure::Mismatch
                    });
                }
                crc = crc::append(crc, &buf[..count]);
                each(at, &buf[..count])?;
                at += count as u64;
            }
        }
        Ok(crc)
    }

    /// Copies the stored bytes of a range; the checksum of the range as it was read.
    pub fn copy_range(
        &self,
        from: Input<'_>,
        to: &FileRef,
        range: Range<u64>,
        buf: &mut [u8],
    ) -> Result<u32, Failure> {
        let len = range.end - range.start;
        let mut stored = 0;
        let crc = self.scan(from, range, buf, |at, data| {
            self.write_all(to, at, data)?;
            stored += data.len() as u64;
            bump(&self.control.inner.bytes_copied, data.len() as u64);
            self.throttle(data.len() as u64)
        })?;
        bump(&self.totals.holes, len - stored);
        Ok(crc)
    }

    fn write_all(&self, to: &FileRef, mut at: u64, mut data: &[u8]) -> Result<(), Failure> {
        while !data.is_empty() {
            let count = self.dst.write(to, at, data).map_err(Failure::target)?;
            if count == 0 || count > data.len() {
                let error = crate::EndError::new("write", tidepool_types::Errno::EIO);
                return Err(Failure::target(error));
            }
            at += count as u64;
            data = &data[count..];
        }
        Ok(())
    }

    /// Reads a range back from the destination; its checksum.
    pub fn read_back(
        &self,
        file: &FileRef,
        range: Range<u64>,
        dense: bool,
        buf: &mut [u8],
    ) -> Result<u32, Failure> {
        self.dst.drop_cache(file, range.start, range.end - range.start);
        self.scan(self.target(file, dense), range, buf, |_, _| Ok(()))
    }
}
