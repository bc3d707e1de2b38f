//! What a log is: packed or not, and in which format.

use crate::lines::BYTES_MAX;
use crate::{Format, LogError};
use flate2::bufread::MultiGzDecoder;
use std::fmt;
use std::io::{self, BufRead, BufReader, Cursor, Read};

/// Bytes of a log's beginning that tell its format.
const HEAD: u64 = 64 * 1024;
/// Bytes that are unpacked at once.
const UNPACKED: usize = 256 * 1024;
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// What some programs of Windows put before UTF-8; and how a text in UTF-16 begins.
const MARK: &[u8] = b"\xef\xbb\xbf";
const UTF16: [&[u8]; 2] = [&[0xff, 0xfe], &[0xfe, 0xff]];
/// Other packers, by their first bytes, with what unpacks them.
const PACKERS: [(&[u8], &str, &str); 5] = [
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], "xz", "xzcat"),
    (&[0x28, 0xb5, 0x2f, 0xfd], "zstd", "zstdcat"),
    (b"BZh", "bzip2", "bzcat"),
    (&[0x1f, 0x9d], "compress", "zcat"),
    (b"PK\x03\x04", "zip", "unzip -p"),
];

/// More than [`BYTES_MAX`] were unpacked.
#[derive(Debug)]
pub(crate) struct TooLong;

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        LogError::TooLong.fmt(f)
    }
}

impl std::error::Error for TooLong {}

/// Gives so many bytes, then an error.
struct Bounded<R> {
    from: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let got = self.from.read(to)?;
        self.left = self.left.checked_sub(got as u64).ok_or_else(|| io::Error::other(TooLong))?;
        Ok(got)
    }
}

fn head<R: BufRead>(mut from: R) -> Result<(Vec<u8>, impl BufRead), LogError> {
    let mut head = Vec::new();
    let got = (&mut from).take(HEAD).read_to_end(&mut head);
    got.map_err(|source| LogError::Read { line: 0, source })?;
    if head.starts_with(MARK) {
        head.drain(..MARK.len());
    }
    Ok((head.clone(), Cursor::new(head).chain(from)))
}

/// The log's own bytes, and its format.
pub(crate) fn open<'a>(
    from: impl BufRead + 'a,
    format: Option<Format>,
) -> Result<(Box<dyn BufRead + 'a>, Format), LogError> {
    let (first, from) = head(from)?;
    if !first.starts_with(&GZIP) {
        return told(&first, Box::new(from), format);
    }
    let unpacked = Bounded { from: MultiGzDecoder::new(from), left: BYTES_MAX };
    let (first, from) = head(BufReader::with_capacity(UNPACKED, unpacked))?;
    if first.starts_with(&GZIP) {
        return Err(LogError::PackedTwice);
    }
    told(&first, Box::new(from), format)
}

fn told<'a>(
    head: &[u8],
    from: Box<dyn BufRead + 'a>,
    format: Option<Format>,
) -> Result<(Box<dyn BufRead + 'a>, Format), LogError> {
    if head.is_empty() {
        return Err(LogError::Empty);
    }
    if UTF16.iter().any(|mark| head.starts_with(mark)) {
        return Err(LogError::Utf16);
    }
    if let Some((_, by, unpack)) = PACKERS.iter().find(|(mark, ..)| head.starts_with(mark)) {
        return Err(LogError::Packed { by, unpack });
    }
    Ok((from, format.map_or_else(|| detect(head), Ok)?))
}

/// By what a log begins with. What is nothing else is a log in the Standard Workload Format, or a bad one.
fn detect(head: &[u8]) -> Result<Format, LogError> {
    if head.starts_with(crate::parquet::MAGIC) {
        return Ok(Format::Parquet);
    }
    let text = String::from_utf8_lossy(head);
    let text = text.trim_start_matches('\u{feff}').trim_start();
    if text.starts_with(['{', '[']) {
        return Ok(Format::SacctJson);
    }
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or("");
    if crate::sacct::separator(first).is_some() {
        return Ok(Format::Sacct);
    }
    if first.starts_with("JobID") && lines.next().is_some_and(|next| next.starts_with("---")) {
        return Err(LogError::NotParsable);
    }
    let head = text.lines().find(|line| !line.starts_with('#')).unwrap_or("");
    if crate::csv::is_head(head) { Ok(Format::Csv) } else { Ok(Format::Swf) }
}
