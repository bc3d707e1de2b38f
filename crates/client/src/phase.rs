//! Hints of I/O phases (`docs/guide/tiers.md`): what a program, or who starts it, says of the next one. Never necessary: daemons
//! see phases, and guess how long they will be.

use crate::{Client, FsError};
use std::fmt;
use tidepool_types::{Errno, parse_phase_bytes, show_bytes};
pub use tidepool_wire::message::PhasePattern;
use tidepool_wire::message::Request;

/// Bytes that each process writes in a phase, for programs with the preload library.
pub const PHASE_BYTES_VARIABLE: &str = "TIDEPOOL_PHASE_BYTES";
/// Written to any file or directory of a pool, this attribute is a hint, and is not kept.
pub const PHASE_ATTRIBUTE: &[u8] = b"user.tidepool.phase";
/// Names that begin so are said to the pool, not kept: one that nobody knows is refused, lest a misspelt hint pass for one.
const OWN_ATTRIBUTES: &[u8] = b"user.tidepool.";
/// Longest hint, in bytes.
const TEXT_BYTES_MAX: usize = 256;
const PATTERNS: [(&str, PhasePattern); 3] = [
    ("sequential", PhasePattern::Sequential),
    ("strided", PhasePattern::Strided),
    ("random", PhasePattern::Random),
];

/// What is said of a phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PhaseHint {
    /// It begins soon, or has just begun.
    Begin {
        /// That all processes of the pool together write in it, if that is known.
        bytes: Option<u64>,
        pattern: Option<PhasePattern>,
    },
    /// It is over, when everybody says so who has said that it begins.
    End,
}

/// Text that is no hint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoHint(String);

impl fmt::Display for NoHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hint of a phase: {}; write 'begin', 'begin bytes=SIZE pattern=NAME' or 'end'", self.0)
    }
}

impl std::error::Error for NoHint {}

impl PhaseHint {
    /// `begin [bytes=SIZE] [pattern=sequential|strided|random]`, or `end`. Programs may leave a zero byte or a line feed behind it.
    pub fn parse(text: &[u8]) -> Result<PhaseHint, NoHint> {
        let fail = |why: String| Err(NoHint(why));
        if text.len() > TEXT_BYTES_MAX {
            return fail(format!("it has more than {TEXT_BYTES_MAX} bytes"));
        }
        let text = text.strip_suffix(b"\0").unwrap_or(text);
        let Ok(text) = std::str::from_utf8(text) else {
            return fail(format!("'{}' is no text", show_bytes(text)));
        };
        let mut words = text.split_ascii_whitespace();
        match (words.next(), words.clone().next()) {
            (Some("begin"), _) => {}
            (Some("end"), None) => return Ok(PhaseHint::End),
            (Some("end"), Some(more)) => return fail(format!("'{more}' says nothing of an end")),
            (Some(other), _) => return fail(format!("'{other}' is neither")),
            (None, _) => return fail("it is empty".into()),
        }
        let (mut bytes, mut pattern) = (None, None);
        for word in words {
            let twice = match word.split_once('=') {
                Some(("bytes", size)) => bytes.replace(parse_phase_bytes(size).map_err(NoHint)?).is_some(),
                Some(("pattern", name)) => pattern.replace(pattern_of(name)?).is_some(),
                _ => return fail(format!("'{word}' is neither bytes=SIZE nor pattern=NAME")),
            };
            if twice {
                return fail(format!("'{word}' says it a second time"));
            }
        }
        Ok(PhaseHint::Begin { bytes, pattern })
    }

    fn request(self) -> Request {
        match self {
            PhaseHint::Begin { bytes, pattern } => Request::BeginPhase { bytes, pattern },
            PhaseHint::End => Request::EndPhase {},
        }
    }
}

fn pattern_of(name: &str) -> Result<PhasePattern, NoHint> {
    let known = PATTERNS.into_iter().find(|(known, _)| *known == name);
    known
        .map(|(_, pattern)| pattern)
        .ok_or_else(|| NoHint(format!("'{name}' is none of sequential, strided, random")))
}

impl Client {
    /// Tells all daemons of the pool what is said of a phase. Pools on one tier have no use for it.
    pub fn hint_phase(&self, hint: PhaseHint) -> Result<(), FsError> {
        self.tell_all(|| hint.request())
    }

    /// The same from text, as [`PHASE_ATTRIBUTE`] has it.
    /// True when an attribute was something said to the pool, and not one to keep.
    pub(crate) fn is_told(&self, name: &[u8], value: &[u8]) -> Result<bool, FsError> {
        if name == PHASE_ATTRIBUTE {
            return self.hint_phase_by(value).map(|()| true);
        }
        if name.starts_with(OWN_ATTRIBUTES) {
            let (name, known) = (show_bytes(name), show_bytes(PHASE_ATTRIBUTE));
            return Err(FsError::new(Errno::EINVAL, format!("no attribute '{name}'; a hint is '{known}'")));
        }
        Ok(false)
    }

    fn hint_phase_by(&self, text: &[u8]) -> Result<(), FsError> {
        let hint = PhaseHint::parse(text).map_err(|error| FsError::new(Errno::EINVAL, error.to_string()))?;
        self.hint_phase(hint)
    }

    /// Has every daemon told, when it is first spoken to, that this process writes so much in each phase: the text of
    /// [`PHASE_BYTES_VARIABLE`].
    pub fn with_phase_bytes(mut self, text: &[u8]) -> Result<Client, FsError> {
        let parsed = std::str::from_utf8(text).map_err(|_| format!("'{}' is no text", show_bytes(text)));
        let bytes = parsed.and_then(parse_phase_bytes);
        let fail = |why| FsError::new(Errno::EINVAL, format!("{PHASE_BYTES_VARIABLE}: {why}"));
        self.phase_bytes = Some(bytes.map_err(fail)?);
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_read() {
        let begin = |bytes, pattern| Ok(PhaseHint::Begin { bytes, pattern });
        for (text, hint) in [
            (&b"begin"[..], begin(None, None)),
            (b"begin bytes=3GB\0", begin(Some(3_000_000_000), None)),
            (b" begin  pattern=strided bytes=512KiB\n", begin(Some(512 << 10), Some(PhasePattern::Strided))),
            (b"end", Ok(PhaseHint::End)),
            (b"end\n", Ok(PhaseHint::End)),
        ] {
            assert_eq!(PhaseHint::parse(text), hint);
        }
    }

    #[test]
    fn nonsense_is_refused_with_a_reason() {
        let long = [b"begin".to_vec(), vec![b' '; TEXT_BYTES_MAX]].concat();
        for (text, why) in [
            (&b""[..], "it is empty"),
            (b"start", "'start' is neither"),
            (b"end now", "'now' says nothing of an end"),
            (b"begin 3GB", "'3GB' is neither bytes=SIZE nor pattern=NAME"),
            (b"begin bytes=many", "'many' is not a size"),
            (b"begin bytes=0", "a phase of 0 bytes is none"),
            (b"begin bytes=2000000TiB", "'2000000TiB' is more than 1152921504606846976 bytes"),
            (b"begin bytes=1 bytes=2", "'bytes=2' says it a second time"),
            (b"begin pattern=odd", "'odd' is none of sequential, strided, random"),
            (b"begin\xff", "'begin\\xff' is no text"),
            (&long, "it has more than 256 bytes"),
        ] {
            let told = PhaseHint::parse(text).unwrap_err().to_string();
            assert!(told.contains(why) && told.contains("write 'begin'"), "{told}");
        }
    }
}
