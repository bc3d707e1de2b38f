//! Tables of an experiment file, and what is wrong in them, by line.

use crate::span::{Span, parse_span, parse_time};
use std::cell::RefCell;
use std::fmt;
use tidepool_sim::Time;
use tidepool_types::parse_size;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The least likeness of a word that is worth a question, between 0 and 1.
const LIKENESS_MIN: f64 = 0.5;
/// Bytes of a word that can be like another; all that we know are shorter.
const WORD_BYTES_MAX: usize = 80;
/// Most bytes of somebody else's text in a message.
const QUOTED_MAX: usize = 60;

/// Something wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// From 1; none when it is about the whole.
    pub line: Option<usize>,
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

/// The text, and what was found wrong in it so far.
pub struct Source<'a> {
    pub text: &'a str,
    problems: RefCell<Vec<Problem>>,
}

impl<'a> Source<'a> {
    pub fn new(text: &'a str) -> Source<'a> {
        Source { text, problems: RefCell::default() }
    }

    pub fn wrong(&self, at: usize, what: impl Into<String>) {
        let line = 1 + self.text.bytes().take(at).filter(|byte| *byte == b'\n').count();
        self.problems.borrow_mut().push(Problem { line: Some(line), what: what.into() });
    }

    /// Whether nothing is wrong so far.
    pub fn is_sound(&self) -> bool {
        self.problems.borrow().is_empty()
    }

    /// In the order of lines.
    pub fn end(self) -> Vec<Problem> {
        let mut all = self.problems.into_inner();
        all.sort_by_key(|problem| problem.line);
        all
    }
}

/// The known word that was probably meant.
pub fn near<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > WORD_BYTES_MAX {
        return None;
    }
    let word = word.to_ascii_lowercase().replace('_', "-");
    let like = |known: &str| strsim::normalized_damerau_levenshtein(&word, known);
    let best = known.into_iter().max_by(|a, b| like(a).total_cmp(&like(b)));
    best.filter(|known| like(known) > LIKENESS_MIN)
}

/// At most so much of a text that it can be shown.
pub fn quoted(text: &str) -> String {
    let mut short: String = text.chars().take(QUOTED_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(QUOTED_MAX).is_some() {
        short += "...";
    }
    short
}

/// `there is no {what} 'x'; did you mean 'y'?`
pub fn unknown(what: &str, word: &str, known: &[&str]) -> String {
    let word_shown = quoted(word);
    match near(word, known.iter().copied()) {
        Some(meant) => format!("there is no {what} '{word_shown}'; did you mean '{meant}'?"),
        None => format!("there is no {what} '{word_shown}'; there are {}", known.join(", ")),
    }
}

/// One table. Keys that nobody asked for are wrong.
pub struct Fields<'s, 'a> {
    pub source: &'s Source<'a>,
    table: &'s DeTable<'a>,
    /// Where it is, for what is missing.
    pub at: usize,
    /// As people name it: `[network]`.
    what: &'static str,
    known: Vec<&'static str>,
}

type Found<'s, 'a> = (usize, &'s DeValue<'a>);

impl<'s, 'a> Fields<'s, 'a> {
    pub fn new(source: &'s Source<'a>, table: &'s DeTable<'a>, at: usize, what: &'static str) -> Self {
        Fields { source, table, at, what, known: Vec::new() }
    }

    fn find(&mut self, key: &'static str) -> Option<Found<'s, 'a>> {
        self.known.push(key);
        self.table.get(key).map(|value| (value.span().start, value.get_ref()))
    }

    pub fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    pub fn missing(&self, key: &str) {
        self.source.wrong(self.at, format!("{} has no '{key}'", self.what));
    }

    fn takes(&self, at: usize, key: &str, wanted: &str) {
        self.source.wrong(at, format!("'{key}' takes {wanted}"));
    }

    /// A word or text, and where it is.
    pub fn text(&mut self, key: &'static str) -> Option<(usize, &'s str)> {
        let (at, value) = self.find(key)?;
        let text = value.as_str();
        if text.is_none() {
            self.takes(at, key, "text in quotes");
        }
        Some((at, text?))
    }

    pub fn read<T>(&mut self, key: &'static str, read: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let (at, text) = self.text(key)?;
        let result = read(text);
        result
            .map_err(|why| self.source.wrong(at, format!("'{key}': {}", why.replace(text, &quoted(text)))))
            .ok()
    }

    pub fn span(&mut self, key: &'static str, without: Span) -> Span {
        self.read(key, parse_span).unwrap_or(without)
    }

    pub fn time(&mut self, key: &'static str, without: Time) -> Time {
        self.read(key, parse_time).unwrap_or(without)
    }

    /// A number, or text with a unit.
    pub fn size(&mut self, key: &'static str, from: u64, most: u64) -> Option<u64> {
        let (at, value) = self.find(key)?;
        let read = match value {
            DeValue::String(text) => {
                let result = parse_size(text);
                result.map_err(|why| why.to_string().replace(text.as_ref(), &quoted(text)))
            }
            DeValue::Integer(_) => integer(value).ok_or_else(|| "it is larger than 2^64".into()),
            _ => Err("write a number of bytes, or 64KiB".to_string()),
        };
        match read {
            Ok(bytes) if (from..=most).contains(&bytes) => Some(bytes),
            Ok(bytes) => {
                self.source.wrong(at, format!("'{key}' is {bytes}; it can be {from} to {most}"));
                None
            }
            Err(why) => {
                self.source.wrong(at, format!("'{key}': {why}"));
                None
            }
        }
    }

    pub fn number(&mut self, key: &'static str, without: u64, from: u64, most: u64) -> u64 {
        let Some((at, value)) = self.find(key) else { return without };
        let read = integer(value).filter(|number| (from..=most).contains(number));
        if read.is_none() {
            self.takes(at, key, &format!("a whole number from {from} to {most}"));
        }
        read.unwrap_or(without)
    }

    /// A number from 0 on, with a point or without.
    pub fn real(&mut self, key: &'static str) -> Option<f64> {
        let (at, value) = self.find(key)?;
        let real = match value {
            DeValue::Float(float) => float.as_str().replace('_', "").parse::<f64>().ok(),
            _ => integer(value).map(|integer| integer as f64),
        };
        let real = real.filter(|real| real.is_finite() && *real >= 0.0);
        if real.is_none() {
            self.takes(at, key, "a number from 0 on");
        }
        real
    }

    pub fn flag(&mut self, key: &'static str, without: bool) -> bool {
        let Some((at, value)) = self.find(key) else { return without };
        if value.as_bool().is_none() {
            self.takes(at, key, "true or false");
        }
        value.as_bool().unwrap_or(without)
    }

    /// One of some words.
    pub fn choice<T: Copy>(&mut self, key: &'static str, choices: &[(&'static str, T)]) -> Option<T> {
        let (at, word) = self.text(key)?;
        let found = choices.iter().find(|(name, _)| *name == word);
        if found.is_none() {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            self.source.wrong(at, unknown(key, word, &names));
        }
        found.map(|(_, choice)| *choice)
    }

    /// A list of words.
    pub fn words(&mut self, key: &'static str) -> Option<Vec<(usize, &'s str)>> {
        let (at, value) = self.find(key)?;
        let word = |item: &'s Spanned<DeValue<'a>>| Some((item.span().start, item.get_ref().as_str()?));
        let words: Option<Vec<_>> = value.as_array().and_then(|all| all.iter().map(word).collect());
        if words.is_none() {
            self.takes(at, key, "a list of words");
        }
        words
    }

    /// A table below this one; `what` is how people name it.
    pub fn table(&mut self, key: &'static str, what: &'static str) -> Option<Fields<'s, 'a>> {
        let (at, value) = self.find(key)?;
        match value.as_table() {
            Some(table) => Some(Fields::new(self.source, table, at, what)),
            None => {
                self.takes(at, key, &format!("a table: {what}"));
                None
            }
        }
    }

    /// Tables below this one, at most so many.
    pub fn tables(&mut self, key: &'static str, what: &'static str, most: usize) -> Vec<Fields<'s, 'a>> {
        let Some((at, value)) = self.find(key) else { return Vec::new() };
        let table = |item: &'s Spanned<DeValue<'a>>| {
            let (at, table) = (item.span().start, item.get_ref().as_table()?);
            Some(Fields::new(self.source, table, at, what))
        };
        let all: Option<Vec<_>> = value.as_array().and_then(|all| all.iter().map(table).collect());
        match all {
            Some(all) if all.len() <= most => return all,
            Some(all) => self.source.wrong(at, format!("{} tables {what}; at most {most}", all.len())),
            None => self.takes(at, key, &format!("tables, each as {what}")),
        }
        Vec::new()
    }

    /// What is left over is wrong.
    pub fn end(self) {
        for key in self.table.keys().filter(|key| !self.known.contains(&key.get_ref().as_ref())) {
            let what = unknown(&format!("key in {}", self.what), key.get_ref(), &self.known);
            self.source.wrong(key.span().start, what);
        }
    }
}

fn integer(value: &DeValue<'_>) -> Option<u64> {
    let integer = value.as_integer()?;
    u64::from_str_radix(integer.as_str(), integer.radix()).ok()
}
