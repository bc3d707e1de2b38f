//! A shape from a file: `docs/formats/25-shaped-tiers.md`. All of it is looked at, and everything that is wrong is told.

use crate::shape::{BURST_BYTES_MAX, NAME_MAX, Shape};
use std::fmt;
use tidepool_iosched::curve::{CurveError, POINTS_MAX};
use tidepool_iosched::{Curve, Curves};
use tidepool_types::parse_size;
use toml::{Table, Value};

/// Larger files are not read.
pub const FILE_BYTES_MAX: u64 = 64 << 10;
/// The least likeness of a word that is worth a question, between 0 and 1.
const LIKENESS_MIN: f64 = 0.5;
/// Bytes of a word that can be like another; all that we know are shorter.
const WORD_BYTES_MAX: usize = 80;
const KEYS: [&str; 5] = ["name", "burst-bytes", "sequential", "strided", "random"];
const POINTS: &str =
    "points as [[1, \"20MB\"], [8, \"60MB\"]]: processes, and bytes a second of all together";

/// One thing that is wrong with a shape.
pub type Problem = Wrong;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wrong {
    NotToml(String),
    Missing(&'static str),
    UnknownKey { key: String, meant: Option<&'static str> },
    Type { key: String, wanted: &'static str },
    Size { key: String, why: String },
    Curve { key: String, why: CurveError },
    Name(String),
    Burst(u64),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::NotToml(why) => f.write_str(why.trim_end()),
            Wrong::Missing(key) => write!(f, "'{key}' is missing"),
            Wrong::UnknownKey { key, meant: Some(meant) } => {
                write!(f, "there is no key '{key}'; did you mean '{meant}'?")
            }
            Wrong::UnknownKey { key, meant: None } => {
                write!(f, "there is no key '{key}'; the keys are {}", KEYS.join(", "))
            }
            Wrong::Type { key, wanted } => write!(f, "'{key}' takes {wanted}"),
            Wrong::Size { key, why } => write!(f, "'{key}': {why}"),
            Wrong::Curve { key, why } => write!(f, "'{key}': {why}"),
            Wrong::Name(name) => {
                write!(f, "name '{name}': 1 to {NAME_MAX} small letters, digits and '-'")
            }
            Wrong::Burst(bytes) => write!(f, "burst of {bytes} bytes; at most {BURST_BYTES_MAX}"),
        }
    }
}

impl std::error::Error for Wrong {}

/// The shape that a file describes, or all that is wrong with it.
pub fn read(text: &str) -> Result<Shape, Vec<Problem>> {
    let table: Table =
        text.parse().map_err(|error: toml::de::Error| vec![Wrong::NotToml(error.to_string())])?;
    let mut wrong: Vec<Wrong> =
        table.keys().filter(|key| !KEYS.contains(&key.as_str())).map(|key| unknown(key)).collect();
    let mut keep = |found: Result<Option<Curve>, Wrong>| found.unwrap_or_else(|w| (wrong.push(w), None).1);
    let curves = ["sequential", "strided", "random"].map(|key| keep(curve(&table, key)));
    let name = match table.get("name") {
        Some(Value::String(name)) => name.as_str(),
        Some(_) => {
            wrong.push(Wrong::Type { key: "name".into(), wanted: "a word" });
            ""
        }
        None => {
            wrong.push(Wrong::Missing("name"));
            ""
        }
    };
    let burst = table.get("burst-bytes").map_or(Ok(0), |value| size("burst-bytes", value));
    let burst = burst.unwrap_or_else(|w| (wrong.push(w), 0).1);
    if !table.contains_key("sequential") {
        wrong.push(Wrong::Missing("sequential"));
    }
    let [Some(sequential), strided, random] = curves else { return Err(wrong) };
    let curves = Curves {
        strided: strided.unwrap_or_else(|| sequential.clone()),
        random: random.unwrap_or_else(|| sequential.clone()),
        sequential,
    };
    match Shape::new(name, burst, curves) {
        Ok(shape) if wrong.is_empty() => Ok(shape),
        Ok(_) => Err(wrong),
        Err(one) => {
            // A name that is missing is told already.
            if !matches!(&one, Wrong::Name(name) if name.is_empty() && !wrong.is_empty()) {
                wrong.push(one);
            }
            Err(wrong)
        }
    }
}

fn unknown(key: &str) -> Wrong {
    let word = key.to_ascii_lowercase().replace('_', "-");
    let likeness = |known: &&str| strsim::normalized_damerau_levenshtein(&word, known);
    let best = KEYS.into_iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    let meant = best.filter(|known| word.len() <= WORD_BYTES_MAX && likeness(known) > LIKENESS_MIN);
    Wrong::UnknownKey { key: key.into(), meant }
}

/// None where there is none.
fn curve(table: &Table, key: &str) -> Result<Option<Curve>, Wrong> {
    let Some(value) = table.get(key) else { return Ok(None) };
    let wanted = || Wrong::Type { key: key.into(), wanted: POINTS };
    let points = value.as_array().ok_or_else(wanted)?;
    if points.len() > POINTS_MAX {
        return Err(Wrong::Curve { key: key.into(), why: CurveError::TooMany(points.len()) });
    }
    let point = |value: &Value| match value.as_array().map(Vec::as_slice) {
        Some([processes, rate]) => {
            let processes = processes.as_integer().and_then(|n| u32::try_from(n).ok()).ok_or_else(wanted)?;
            Ok((processes, size(key, rate)?))
        }
        _ => Err(wanted()),
    };
    let points = points.iter().map(point).collect::<Result<Vec<_>, Wrong>>()?;
    Curve::new(&points).map(Some).map_err(|why| Wrong::Curve { key: key.into(), why })
}

/// A size in words, or a number of bytes.
fn size(key: &str, value: &Value) -> Result<u64, Wrong> {
    let wanted = || Wrong::Type { key: key.into(), wanted: "sizes as \"20MB\", or bytes" };
    match value {
        Value::String(text) => {
            parse_size(text).map_err(|error| Wrong::Size { key: key.into(), why: error.to_string() })
        }
        Value::Integer(bytes) => u64::try_from(*bytes).map_err(|_| wanted()),
        _ => Err(wanted()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_iosched::Pattern;

    const GOOD: &str = "name = \"pfs\"\nburst-bytes = \"4MB\"\nsequential = [[1, \"20MB\"], [8, \"60MB\"], [64, 30000000]]\nrandom = [[1, \"2MB\"]]\n";

    #[test]
    fn a_file_makes_a_shape() {
        let shape = read(GOOD).unwrap();
        assert_eq!((shape.name(), shape.burst_bytes()), ("pfs", 4_000_000));
        let at = |pattern, n| shape.curves().of(pattern).at(n);
        assert_eq!(at(Pattern::Sequential, 8), 60_000_000);
        assert_eq!(at(Pattern::Sequential, 64), 30_000_000);
        assert_eq!(at(Pattern::Strided, 8), 60_000_000, "as sequential");
        assert_eq!(at(Pattern::Random, 8), 2_000_000);
        assert_eq!(read("name = \"x\"\nsequential = [[1, 5]]").unwrap().burst_bytes(), 0);
    }

    #[test]
    fn all_that_is_wrong_is_told() {
        for (from, to, words) in [
            ("name", "nmae", vec!["there is no key 'nmae'; did you mean 'name'?", "'name' is missing"]),
            ("burst-bytes", "burst_bytes", vec!["did you mean 'burst-bytes'?"]),
            ("burst-bytes", "colour", vec!["the keys are name, burst-bytes"]),
            ("\"pfs\"", "\"P F S\"", vec!["name 'P F S'"]),
            ("\"pfs\"", "1", vec!["'name' takes a word"]),
            ("\"4MB\"", "\"4 lots\"", vec!["'burst-bytes'"]),
            ("\"4MB\"", "-1", vec!["'burst-bytes' takes sizes"]),
            ("\"4MB\"", "\"2TB\"", vec!["at most 1000000000000"]),
            ("[8, \"60MB\"]", "[8]", vec!["'sequential' takes points"]),
            ("[8, \"60MB\"]", "[8, \"0\"]", vec!["'sequential': 0 bytes/s for 8 processes"]),
            ("[8, \"60MB\"]", "[-8, \"6MB\"]", vec!["'sequential' takes points"]),
            ("[[1, \"2MB\"]]", "7", vec!["'random' takes points"]),
            ("random", "randon", vec!["did you mean 'random'?"]),
            ("sequential", "strided", vec!["'sequential' is missing"]),
            ("name = \"pfs\"", "name = \"pfs", vec!["line 1"]),
        ] {
            let text = GOOD.replacen(from, to, 1);
            let wrong = read(&text).unwrap_err();
            let told: Vec<String> = wrong.iter().map(Wrong::to_string).collect();
            assert_eq!(told.len(), words.len(), "{to}: {told:?}");
            for word in words {
                assert!(told.iter().any(|line| line.contains(word)), "{to}: {told:?}");
            }
        }
        let two = read("nmae = 1\nbusrt-bytes = 2\n").unwrap_err();
        assert_eq!(two.len(), 4, "{two:?}");
    }
}
