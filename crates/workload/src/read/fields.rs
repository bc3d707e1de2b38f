//! Values of a table, each looked at once; what is wrong is kept, and a default goes on in its place.

use super::problem::Wrong;
use super::time;
use crate::SECONDS_MAX;
use std::time::Duration;
use tidepool_types::{format_size, parse_size};
use toml::{Table, Value};

pub struct Fields<'a> {
    table: &'a Table,
    wrong: Vec<Wrong>,
}

impl<'a> Fields<'a> {
    pub fn new(table: &'a Table) -> Fields<'a> {
        Fields { table, wrong: Vec::new() }
    }

    pub fn wrong(&mut self, wrong: Wrong) {
        self.wrong.push(wrong);
    }

    pub fn end(self) -> Result<(), Vec<Wrong>> {
        if self.wrong.is_empty() { Ok(()) } else { Err(self.wrong) }
    }

    fn wants(&mut self, key: &str, wanted: &'static str) {
        self.wrong.push(Wrong::Type { key: key.into(), wanted });
    }

    pub fn word(&mut self, key: &str) -> Option<String> {
        match self.table.get(key)? {
            Value::String(word) => Some(word.clone()),
            _ => {
                self.wants(key, "a word");
                None
            }
        }
    }

    pub fn flag(&mut self, key: &str, default: bool) -> bool {
        match self.table.get(key) {
            None => default,
            Some(Value::Boolean(flag)) => *flag,
            Some(_) => {
                self.wants(key, "true or false");
                default
            }
        }
    }

    pub fn number(&mut self, key: &str, default: u64, least: u64, most: u64) -> u64 {
        let Some(value) = self.table.get(key) else { return default };
        match value.as_integer() {
            None => self.wants(key, "a whole number"),
            Some(number) => match u64::try_from(number).ok().filter(|n| (least..=most).contains(n)) {
                Some(number) => return number,
                None => self.range(key, format!("{least} to {most}")),
            },
        }
        default
    }

    /// Bytes: a number, or text with a unit.
    pub fn size(&mut self, key: &str, default: u64, most: u64) -> u64 {
        let bytes = match self.table.get(key) {
            None => return default,
            Some(Value::Integer(number)) => u64::try_from(*number).ok(),
            Some(Value::String(text)) => match parse_size(text) {
                Ok(bytes) => Some(bytes),
                Err(error) => {
                    self.wrong.push(Wrong::Size { key: key.into(), why: error.to_string() });
                    return default;
                }
            },
            Some(_) => {
                self.wants(key, "a size: a number of bytes, or text as \"1MiB\"");
                return default;
            }
        };
        match bytes.filter(|bytes| (1..=most).contains(bytes)) {
            Some(bytes) => bytes,
            None => {
                self.range(key, format!("1 byte to {}", format_size(most)));
                default
            }
        }
    }

    pub fn seconds(&mut self, key: &str, least: f64) -> Option<Duration> {
        let seconds = self.float(key, "seconds, as a number")?;
        let time = time(seconds, least);
        if time.is_none() {
            self.range(key, format!("{least} to {SECONDS_MAX} seconds"));
        }
        time
    }

    /// Of a whole: at most 1.
    pub fn share(&mut self, key: &str, least: f64) -> Option<f64> {
        let share = self.float(key, "a number up to 1")?;
        if (least..=1.0).contains(&share) {
            return Some(share);
        }
        self.range(key, format!("{least} to 1"));
        None
    }

    fn float(&mut self, key: &str, wanted: &'static str) -> Option<f64> {
        match self.table.get(key)? {
            Value::Float(number) => Some(*number),
            Value::Integer(number) => Some(*number as f64),
            _ => {
                self.wants(key, wanted);
                None
            }
        }
    }

    pub fn choice<T: Copy>(&mut self, key: &'static str, default: T, known: &[(&'static str, T)]) -> T {
        let Some(word) = self.word(key) else { return default };
        match known.iter().find(|(name, _)| *name == word) {
            Some((_, choice)) => *choice,
            None => {
                self.wrong.push(Wrong::unknown_word(key, &word, known.iter().map(|(name, _)| *name)));
                default
            }
        }
    }

    fn range(&mut self, key: &str, allowed: String) {
        self.wrong.push(Wrong::Range { key: key.into(), allowed });
    }
}
