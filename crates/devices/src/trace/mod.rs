//! Files of measurements, line by line: each line is bounded, and what is wrong is told with its number.

pub mod measured;
pub mod mqsim;
pub mod seeks;
pub mod specs;

use std::fmt;
use std::io::{self, BufRead, Read};

/// Bytes of a line.
pub const LINE_MAX: usize = 4 * 1024;
/// Lines of a file, blank ones too.
const LINES_MAX: u64 = 20_000_000;
/// Requests of a trace.
pub const REQUESTS_MAX: usize = 10_000_000;
/// Sectors of a device: 8 EiB of bytes.
pub const SECTOR_MAX: u64 = 1 << 54;
/// Sectors of a request: 512 MiB.
pub const SECTORS_MAX: u32 = 1 << 20;
/// Microseconds of one service or gap: an hour.
pub const SPAN_US_MAX: f64 = 3.6e9;

/// Why a file could not be read.
#[derive(Debug)]
pub enum TraceError {
    Read { line: u64, source: io::Error },
    LineTooLong { line: u64 },
    Wrong { line: u64, what: String },
    TooMany { what: &'static str, most: usize },
    Empty { what: &'static str },
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceError::Read { line, source } => write!(f, "line {line}: {source}"),
            TraceError::LineTooLong { line } => {
                write!(f, "line {line} has more than {LINE_MAX} bytes: this is no such file")
            }
            TraceError::Wrong { line, what } => write!(f, "line {line}: {what}"),
            TraceError::TooMany { what, most } => write!(f, "more than {most} {what}: take a part of it"),
            TraceError::Empty { what } => write!(f, "there are no {what} in it"),
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TraceError::Read { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Hands each line that is not blank to `of`, with its number.
fn each_line(
    mut from: impl BufRead,
    mut of: impl FnMut(u64, &str) -> Result<(), TraceError>,
) -> Result<(), TraceError> {
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        let got = (&mut from).take(LINE_MAX as u64 + 1).read_until(b'\n', &mut bytes);
        let got = got.map_err(|source| TraceError::Read { line, source })?;
        if got == 0 {
            break;
        }
        if line > LINES_MAX {
            return Err(TraceError::TooMany { what: "lines", most: LINES_MAX as usize });
        }
        if got > LINE_MAX {
            return Err(TraceError::LineTooLong { line });
        }
        if line == 1 && bytes.starts_with(&[0x1f, 0x8b]) {
            return Err(wrong(line, "it is compressed twice, or was handed on compressed"));
        }
        let Ok(text) = std::str::from_utf8(&bytes) else {
            return Err(wrong(line, "it is no text"));
        };
        if !text.trim().is_empty() {
            of(line, text.trim())?;
        }
    }
    Ok(())
}

fn wrong(line: u64, what: impl Into<String>) -> TraceError {
    TraceError::Wrong { line, what: what.into() }
}

/// At most 60 characters of something that is wrong, with control characters as escapes.
fn shown(text: &str) -> String {
    text.chars().take(60).flat_map(char::escape_default).collect()
}

/// A whole number from `least` to `most`.
fn whole(line: u64, name: &str, text: &str, least: u64, most: u64) -> Result<u64, TraceError> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| wrong(line, format!("{name} '{}': {least} to {most}", shown(text))))
}

/// A number of at least `least` and at most `most`, with or without a fraction.
fn real(line: u64, name: &str, text: &str, least: f64, most: f64) -> Result<f64, TraceError> {
    let number = text.parse::<f64>().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| wrong(line, format!("{name} '{}': {least} to {most}", shown(text))))
}
