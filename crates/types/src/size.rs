//! Sizes as people write them: `4096`, `512KiB`, `1GB`.

use crate::PHASE_BYTES_MAX;
use std::fmt;
use std::num::NonZeroU64;

/// Why a text is no size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SizeError {
    text: String,
    why: &'static str,
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is not a size: {}; write a whole number with an optional unit, such as 4096, 512KiB or 1GB",
            self.text, self.why
        )
    }
}

impl std::error::Error for SizeError {}

const UNITS: [(&str, u64); 13] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
];

/// Bytes that `text` names. `KiB`, `MiB`, `GiB`, `TiB` and the bare letters count in
/// powers of 1024, `KB`, `MB`, `GB`, `TB` in powers of 1000. Fractions, signs and other
/// units are refused, because a size that was silently misread has cost users data.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let fail = |why| Err(SizeError { text: text.to_string(), why });
    let trimmed = text.trim();
    let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 {
        return fail("it does not start with a digit");
    }
    let (number, unit) = trimmed.split_at(digits);
    if unit.starts_with('.') || unit.starts_with(',') {
        return fail("fractions are not accepted");
    }
    let unit = unit.trim_start().to_ascii_lowercase();
    let Some((_, scale)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return fail("the unit is unknown");
    };
    match number.parse::<u64>().ok().and_then(|n| n.checked_mul(*scale)) {
        Some(bytes) => Ok(bytes),
        None => fail("it is larger than 2^64 bytes"),
    }
}

/// Bytes of an I/O phase: a size from 1 to [`PHASE_BYTES_MAX`].
pub fn parse_phase_bytes(text: &str) -> Result<u64, String> {
    match parse_size(text).map_err(|error| error.to_string())? {
        0 => Err("a phase of 0 bytes is none".into()),
        bytes if bytes > PHASE_BYTES_MAX => Err(format!("'{text}' is more than {PHASE_BYTES_MAX} bytes")),
        bytes => Ok(bytes),
    }
}

/// Bytes that a network link carries in a second: a size, at least 1.
pub fn parse_bandwidth(text: &str) -> Result<NonZeroU64, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    NonZeroU64::new(bytes).ok_or_else(|| "a link of 0 bytes a second carries nothing".into())
}

/// Bytes in the largest binary unit that keeps the number at least 1: `1.5 GiB`.
pub fn format_size(bytes: u64) -> String {
    const NAMES: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < NAMES.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", NAMES[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512KiB", 524288),
            ("1GB", 1_000_000_000),
            ("2 g", 2 << 30),
            ("1TiB", 1 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_advice() {
        for text in ["", "-1", "1.5GB", "1,5GB", "12 parsecs", "KiB", "99999999999TB", "0x10"] {
            let error = parse_size(text).unwrap_err().to_string();
            assert!(error.contains("512KiB"), "{text}: {error}");
        }
    }

    #[test]
    fn phases_have_some_bytes() {
        assert_eq!((parse_phase_bytes("1"), parse_phase_bytes("1048576TiB")), (Ok(1), Ok(1 << 60)));
        for (text, why) in
            [("0", "0 bytes"), ("1048577TiB", "is more than 1152921504606846976"), ("x", "512KiB")]
        {
            assert!(parse_phase_bytes(text).unwrap_err().contains(why), "{text}");
        }
    }

    #[test]
    fn sizes_print() {
        assert_eq!(format_size(1023), "1023 B");
        assert_eq!(format_size(3 << 29), "1.5 GiB");
    }
}
