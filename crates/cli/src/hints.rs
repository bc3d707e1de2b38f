//! Hints files: which layout files of which names get. Format: `docs/formats/08-hints.md`.

use crate::exit::{Context, Failure, Kind, Result};
use std::path::Path;
use tidepool_client::{HINTS_MAX, Hint, Wanted};
use tidepool_types::{ChunkSize, Placement};

/// Largest hints file: 256 lines of about 4 KiB.
const BYTES_MAX: u64 = 1 << 20;
const KEYS: [&str; 3] = ["placement", "chunk-size", "stripe"];

/// Reads a hints file. An error names the line.
pub fn read(path: &Path) -> Result<Vec<Hint>> {
    let place = || format!("--hints {}", path.display());
    let bytes = std::fs::metadata(path).context(Kind::Usage, place)?.len();
    if bytes > BYTES_MAX {
        return Err(Failure::new(Kind::Usage, format!("{}: larger than {BYTES_MAX} bytes", place())));
    }
    let text = std::fs::read_to_string(path).context(Kind::Usage, place)?;
    parse(&text).map_err(|why| Failure::new(Kind::Usage, format!("{}, {why}", place())))
}

fn parse(text: &str) -> std::result::Result<Vec<Hint>, String> {
    let mut hints = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut words = line.split_whitespace().peekable();
        if words.peek().is_none_or(|word| word.starts_with('#')) {
            continue;
        }
        let hint = hint(words).map_err(|why| format!("line {number}: {why}"))?;
        hints.push(hint);
        if hints.len() > HINTS_MAX {
            return Err(format!("line {number}: more than {HINTS_MAX} hints"));
        }
    }
    Ok(hints)
}

fn hint<'a>(mut words: impl Iterator<Item = &'a str>) -> std::result::Result<Hint, String> {
    let pattern = words.next().unwrap_or_default();
    let mut wanted = Wanted::default();
    let mut seen = Vec::new();
    for word in words {
        let (key, value) = word.split_once('=').ok_or_else(|| format!("'{word}' is not KEY=VALUE"))?;
        if seen.contains(&key) {
            return Err(format!("'{key}' is there twice"));
        }
        seen.push(key);
        set(&mut wanted, key, value)?;
    }
    if seen.is_empty() {
        return Err(format!("pattern '{pattern}' has nothing to say; the keys are {}", KEYS.join(", ")));
    }
    Hint::new(pattern, wanted)
}

fn set(wanted: &mut Wanted, key: &str, value: &str) -> std::result::Result<(), String> {
    match key {
        "placement" => {
            let placement = Placement::parse(value);
            wanted.placement = Some(
                placement
                    .ok_or_else(|| format!("placement '{value}': write wide, local, weighted or group"))?,
            );
        }
        "chunk-size" => wanted.chunk_size = Some(value.parse::<ChunkSize>()?.bytes()),
        "stripe" => {
            wanted.stripe =
                Some(value.parse().map_err(|_| format!("stripe '{value}': write a number from 0 to 65535"))?);
        }
        _ => return Err(unknown(key)),
    }
    Ok(())
}

/// What was probably meant by a key that does not exist.
fn unknown(key: &str) -> String {
    let near = |known: &&str| strsim::normalized_damerau_levenshtein(key, known);
    let best = KEYS.iter().max_by(|a, b| near(a).total_cmp(&near(b)));
    match best.filter(|known| near(known) > 0.5) {
        Some(known) => format!("there is no key '{key}'; did you mean '{known}'?"),
        None => format!("there is no key '{key}'; the keys are {}", KEYS.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn f32_hints_are_read() {
        let text = "# checkpoints\n\n  *.h5  chunk-size=4MiB stripe=8\nprocessor*/ placement=local # not a comment\n";
        assert_eq!(parse(text), Err("line 4: '#' is not KEY=VALUE".to_string()));
        let hints = parse(&text.replace(" # not a comment", "")).unwrap();
        let told: Vec<_> = hints.iter().map(|h| (h.pattern(), h.wanted)).collect();
        let striped = Wanted { chunk_size: Some(4 << 20), stripe: Some(8), ..Wanted::default() };
        let local = Wanted { placement: Some(Placement::Local), ..Wanted::default() };
        assert_eq!(told, [("*.h5".to_string(), striped), ("processor*/".to_string(), local)]);
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, words) in [
            (
                "*.a stripe=1\n*.b chunksize=1MiB",
                "line 2: there is no key 'chunksize'; did you mean 'chunk-size'?",
            ),
            ("*.a colour=red", "there is no key 'colour'; the keys are placement, chunk-size, stripe"),
            ("*.a placement=near", "placement 'near': write wide, local, weighted or group"),
            ("*.a chunk-size=3MiB", "power of two"),
            ("*.a chunk-size=big", "or auto"),
            ("*.a stripe=-1", "0 to 65535"),
            ("*.a stripe=1 stripe=2", "twice"),
            ("*.a", "nothing to say"),
            ("a/*.b stripe=1", "names, not paths"),
            ("[ stripe=1", "pattern '['"),
            ("*.a placement=local stripe=2", "a stripe is for placement 'wide'"),
        ] {
            let said = parse(text).unwrap_err();
            assert!(said.contains(words), "{said}");
        }
        assert!(parse(&"a stripe=1\n".repeat(HINTS_MAX + 1)).unwrap_err().contains("more than 256"));
    }

    proptest! {
        /// Whatever a file holds is read or refused.
        #[test]
        fn garbage_never_panics(text in "([*a-z\\[\\]/?#=0-9 \\-]|stripe=|chunk-size=|placement=|\\n|\\PC){0,60}") {
            let _ = parse(&text);
        }
    }
}
