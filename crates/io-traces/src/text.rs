//! Lines and the numbers in them.

use crate::{LINE_MAX, LINES_MAX};
use std::fmt;
use std::io::{self, BufRead, Read};
use std::str::FromStr;

/// Most characters of somebody else's text in a message.
const SHOWN_MAX: usize = 60;

/// Why a trace could not be read.
#[derive(Debug)]
pub struct TraceError {
    /// From 1; none when it is about the whole.
    pub line: Option<u64>,
    pub what: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl std::error::Error for TraceError {}

pub type Result<T> = std::result::Result<T, TraceError>;

pub fn wrong(line: u64, what: impl Into<String>) -> TraceError {
    TraceError { line: Some(line), what: what.into() }
}

/// So much of a text as can be shown, with control characters as escapes.
pub fn shown(text: &str) -> String {
    let mut short: String = text.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_MAX).is_some() {
        short += "...";
    }
    short
}

/// Lines of a text, each bounded, with their numbers.
pub struct Lines<R> {
    from: R,
    bytes: Vec<u8>,
    number: u64,
    /// The last line has no line feed: it may be cut.
    pub cut: bool,
}

impl<R: BufRead> Lines<R> {
    pub fn new(from: R) -> Lines<R> {
        Lines { from, bytes: Vec::new(), number: 0, cut: false }
    }

    /// The next line that is not blank, without its end.
    pub fn next(&mut self) -> Result<Option<(u64, &str)>> {
        loop {
            self.bytes.clear();
            let line = self.number + 1;
            let limit = LINE_MAX as u64 + 1;
            let got = (&mut self.from).take(limit).read_until(b'\n', &mut self.bytes);
            match got {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                // What is compressed and damaged ends so.
                Err(source) if source.kind() == io::ErrorKind::Interrupted => continue,
                Err(source) => return Err(wrong(line, source.to_string())),
            }
            self.number = line;
            if line > LINES_MAX {
                return Err(wrong(line, format!("more than {LINES_MAX} lines; take a part of the trace")));
            }
            if self.bytes.len() > LINE_MAX {
                return Err(wrong(line, format!("more than {LINE_MAX} bytes: this is no such trace")));
            }
            self.cut = self.bytes.last() != Some(&b'\n');
            if line == 1 && self.bytes.starts_with(&[0x1f, 0x8b]) {
                return Err(wrong(line, "it is compressed twice, or was handed on compressed"));
            }
            if !self.bytes.iter().all(u8::is_ascii_whitespace) {
                break;
            }
        }
        match std::str::from_utf8(&self.bytes) {
            Ok(text) if !text.contains('\0') => Ok(Some((self.number, text.trim_end()))),
            _ => Err(wrong(self.number, "it is no text: is this the right format?")),
        }
    }
}

/// A whole number from `least` to `most`.
pub fn whole<T>(line: u64, name: &str, text: &str, least: T, most: T) -> Result<T>
where
    T: FromStr + PartialOrd + fmt::Display + Copy,
{
    // A sign is no part of these formats.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|number| digits && (least..=most).contains(number));
    number.ok_or_else(|| wrong(line, format!("{name} '{}': {least} to {most}", shown(text))))
}

/// Seconds with any number of decimals, up to `most`, as nanoseconds; what is smaller is dropped.
pub fn seconds(line: u64, name: &str, text: &str, most: u64) -> Result<u64> {
    decimal_seconds(text).filter(|ns| *ns <= most.saturating_mul(1_000_000_000)).ok_or_else(|| {
        wrong(line, format!("{name} '{}': seconds from 0 to {most}, as 12.000345", shown(text)))
    })
}

/// `12.000345` as nanoseconds.
pub fn decimal_seconds(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) {
        return None;
    }
    let part = &part[..part.len().min(9)];
    let part = part.parse::<u64>().ok()? * 10u64.pow(9 - part.len() as u32);
    whole.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(part)
}

/// A name without white space, `#` and bytes that are no visible ASCII: those are written as `%20`.
pub fn escaped(name: &[u8]) -> String {
    escape(name, b"#%")
}

/// The same for what is escaped already, as far as it is.
pub fn escaped_word(word: &str) -> String {
    escape(word.as_bytes(), b"#")
}

fn escape(name: &[u8], special: &[u8]) -> String {
    let mut word = String::with_capacity(name.len());
    for byte in name {
        match byte {
            0x21..=0x7e if !special.contains(byte) => word.push(char::from(*byte)),
            _ => word += &format!("%{byte:02x}"),
        }
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_exact() {
        for (text, ns) in [
            ("0", Some(0)),
            ("1.5", Some(1_500_000_000)),
            ("0.000000001", Some(1)),
            ("0.0000000019", Some(1)),
            ("1700000000.123456", Some(1_700_000_000_123_456_000)),
            ("-1", None),
            ("+1", None),
            ("1.", None),
            (".5", None),
            ("1e3", None),
            ("99999999999999999999", None),
            ("", None),
        ] {
            assert_eq!(decimal_seconds(text), ns, "{text}");
        }
    }

    #[test]
    fn names_become_words() {
        assert_eq!(escaped("a b#c%\u{e4}\n".as_bytes()), "a%20b%23c%25%c3%a4%0a");
        assert_eq!(escaped(b"/data/x.bin"), "/data/x.bin");
        assert_eq!(escaped_word("a%20b#\u{e4}"), "a%20b%23%c3%a4");
    }
}
