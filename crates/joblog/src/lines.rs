//! Lines with their numbers, none longer than a limit.

use crate::{Format, LogError};
use std::io::{BufRead, Read};

/// Bytes of a line. Node lists of the largest machines take some 10 KiB.
pub const LINE_MAX: usize = 64 * 1024;
/// Bytes of a log, unpacked: 64 GiB.
pub const BYTES_MAX: u64 = 1 << 36;

pub(crate) struct Lines<R> {
    from: R,
    format: Format,
    /// Of the last one, from 1.
    pub line: u64,
    bytes: Vec<u8>,
    text: String,
    /// Lines that were no UTF-8.
    pub not_utf8: u64,
}

impl<R: BufRead> Lines<R> {
    pub fn new(from: R, format: Format) -> Lines<R> {
        Lines { from, format, line: 0, bytes: Vec::new(), text: String::new(), not_utf8: 0 }
    }

    /// The next one, without its end.
    pub fn next(&mut self) -> Result<Option<&str>, LogError> {
        self.line += 1;
        let line = self.line;
        self.bytes.clear();
        let got = (&mut self.from).take(LINE_MAX as u64 + 1).read_until(b'\n', &mut self.bytes);
        let got = got.map_err(|source| match source.get_ref() {
            Some(inner) if inner.is::<crate::gate::TooLong>() => LogError::TooLong,
            _ => LogError::Read { line, source },
        })?;
        if got > LINE_MAX {
            return Err(LogError::LineTooLong { line, format: self.format });
        }
        if got == 0 {
            return Ok(None);
        }
        let text = String::from_utf8_lossy(&self.bytes);
        self.not_utf8 += u64::from(matches!(text, std::borrow::Cow::Owned(_)));
        self.text.clear();
        self.text.push_str(text.trim_end_matches(['\n', '\r']));
        Ok(Some(&self.text))
    }
}
