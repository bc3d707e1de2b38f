//! What can be wrong with a description of applications.

use std::fmt;

/// The least likeness of a word that is worth a question, between 0 and 1.
const LIKENESS_MIN: f64 = 0.5;
/// Bytes of a word that can be like another; all that we know are shorter.
const WORD_BYTES_MAX: usize = 80;

#[derive(Clone, PartialEq, Debug)]
pub struct Problem {
    /// As people name it: `'a'` or `number 2`; none when it is about the whole, or there is only one.
    pub application: Option<String>,
    pub what: Wrong,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Wrong {
    NotToml(String),
    /// So many applications.
    Count(usize),
    Missing(&'static str),
    UnknownKey {
        key: String,
        meant: Option<String>,
        known: Vec<String>,
    },
    OfOtherKind {
        key: String,
        of: &'static str,
        kind: String,
    },
    UnknownWord {
        key: &'static str,
        word: String,
        meant: Option<String>,
        known: Vec<String>,
    },
    Type {
        key: String,
        wanted: &'static str,
    },
    Range {
        key: String,
        allowed: String,
    },
    Size {
        key: String,
        why: String,
    },
    Name(String),
    Twice(String),
    Both(&'static str, &'static str),
    Without(&'static str, &'static str),
    NeverWritten {
        every: u64,
        steps: u64,
    },
    Gatherers {
        gatherers: u32,
        processes: u32,
    },
    TooMuch {
        what: &'static str,
        count: u128,
        most: u64,
    },
}

impl Wrong {
    pub(super) fn unknown_key<'a>(key: &str, known: impl IntoIterator<Item = &'a str>) -> Wrong {
        let known: Vec<String> = known.into_iter().map(String::from).collect();
        Wrong::UnknownKey { key: key.into(), meant: near(key, &known), known }
    }

    pub(super) fn unknown_word<'a>(
        key: &'static str,
        word: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) -> Wrong {
        let known: Vec<String> = known.into_iter().map(String::from).collect();
        Wrong::UnknownWord { key, word: word.into(), meant: near(word, &known), known }
    }
}

fn near(word: &str, known: &[String]) -> Option<String> {
    if word.len() > WORD_BYTES_MAX {
        return None;
    }
    let word = word.to_ascii_lowercase().replace('_', "-");
    let likeness = |known: &&String| strsim::normalized_damerau_levenshtein(&word, known);
    let best = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    best.filter(|known| likeness(known) > LIKENESS_MIN).cloned()
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.application {
            Some(application) => write!(f, "application {application}: {}", self.what),
            None => write!(f, "{}", self.what),
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::NotToml(why) => write!(f, "{}", why.trim_end()),
            Wrong::Count(0) => write!(f, "it describes no application; write [[application]] and its keys"),
            Wrong::Count(count) => {
                write!(f, "it describes {count} applications; at most {}", crate::APPLICATIONS_MAX)
            }
            Wrong::Missing(key) => write!(f, "'{key}' is missing"),
            Wrong::UnknownKey { key, meant: Some(meant), .. } => {
                write!(f, "there is no key '{key}'; did you mean '{meant}'?")
            }
            Wrong::UnknownKey { key, known, .. } => {
                write!(f, "there is no key '{key}'; the keys are {}", known.join(", "))
            }
            Wrong::OfOtherKind { key, of, kind } => {
                write!(f, "'{key}' is for the kind {of}, not for {kind}")
            }
            Wrong::UnknownWord { key, word, meant: Some(meant), .. } => {
                write!(f, "{key} '{word}' is not known; did you mean '{meant}'?")
            }
            Wrong::UnknownWord { key, word, known, .. } => {
                write!(f, "{key} '{word}' is not known; write one of {}", known.join(", "))
            }
            Wrong::Type { key, wanted } => write!(f, "'{key}' takes {wanted}"),
            Wrong::Range { key, allowed } => write!(f, "'{key}' is out of range: {allowed}"),
            Wrong::Size { key, why } => write!(f, "'{key}': {why}"),
            other => other.fmt_of_whole(f),
        }
    }
}

impl Wrong {
    /// What is wrong between keys.
    fn fmt_of_whole(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Name(name) => write!(
                f,
                "name '{name}': 1 to {} letters, digits, '-', '_' and '.', with a letter, digit or '_' first",
                crate::NAME_MAX
            ),
            Wrong::Twice(name) => write!(
                f,
                "two applications are called '{name}'; give each a 'name' (without, it is called as its kind)"
            ),
            Wrong::Both(one, other) => write!(f, "'{one}' and '{other}' exclude each other"),
            Wrong::Without(one, other) => write!(f, "'{one}' is of use with '{other}' only"),
            Wrong::NeverWritten { every, steps } => {
                write!(f, "with {steps} steps and I/O at every {every}th there is never any")
            }
            Wrong::Gatherers { gatherers, processes } => {
                write!(f, "{gatherers} gatherers are more than the {processes} processes")
            }
            Wrong::TooMuch { what, count, most } => write!(f, "{count} {what} in all; at most {most}"),
            _ => Ok(()),
        }
    }
}
