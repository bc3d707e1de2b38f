//! Keys of a table, read one by one; what is left over is unknown.

use std::collections::BTreeSet;
use toml::{Table, Value};

/// How much alike two words are of which one is suggested for the other.
const ALIKE_MIN: f64 = 0.6;

pub(super) struct Keys<'t, 'p> {
    place: String,
    table: &'t Table,
    known: BTreeSet<String>,
    problems: &'p mut Vec<String>,
}

impl<'t, 'p> Keys<'t, 'p> {
    pub fn new(place: &str, table: &'t Table, problems: &'p mut Vec<String>) -> Keys<'t, 'p> {
        Keys { place: place.to_string(), table, known: BTreeSet::new(), problems }
    }

    fn path(&self, key: &str) -> String {
        if self.place.is_empty() || self.place == key {
            key.to_string()
        } else {
            format!("{}.{key}", self.place)
        }
    }

    pub fn wrong(&mut self, key: &str, what: &str) {
        let path = self.path(key);
        self.problems.push(format!("{path}: {what}"));
    }

    pub fn known(&mut self, key: &str) {
        self.known.insert(key.to_string());
    }

    fn get(&mut self, key: &str) -> Option<&'t Value> {
        self.known(key);
        let value = self.table.get(key);
        if value.is_none() {
            self.wrong(key, "is missing");
        }
        value
    }

    fn typed<T>(&mut self, key: &str, wanted: &str, of: impl FnOnce(&'t Value) -> Option<T>) -> Option<T> {
        let read = of(self.get(key)?);
        if read.is_none() {
            self.wrong(key, wanted);
        }
        read
    }

    pub fn number(&mut self, key: &str, least: f64, most: f64) -> Option<f64> {
        let fits = |value: &Value| float(value).filter(|number| (least..=most).contains(number));
        self.typed(key, &format!("a number from {least} to {most}"), fits)
    }

    pub fn count(&mut self, key: &str, most: u64) -> Option<u64> {
        let fits = |value: &Value| {
            value.as_integer().and_then(|count| u64::try_from(count).ok()).filter(|count| *count <= most)
        };
        self.typed(key, &format!("a whole number from 0 to {most}"), fits)
    }

    pub fn flag(&mut self, key: &str) -> Option<bool> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub fn text(&mut self, key: &str, most: usize) -> Option<String> {
        let fits = |value: &Value| value.as_str().filter(|text| text.len() <= most).map(String::from);
        self.typed(key, &format!("a text of at most {most} bytes"), fits)
    }

    pub fn texts(&mut self, key: &str, most: usize, text_max: usize) -> Option<Vec<String>> {
        let fits = |value: &Value| {
            let all = value.as_array().filter(|all| all.len() <= most)?;
            all.iter()
                .map(|one| one.as_str().filter(|text| text.len() <= text_max).map(String::from))
                .collect()
        };
        self.typed(key, &format!("at most {most} texts of at most {text_max} bytes"), fits)
    }

    pub fn table(&mut self, key: &str) -> Option<&'t Table> {
        let wanted = format!("a table: [{}]", self.path(key));
        self.typed(key, &wanted, Value::as_table)
    }

    pub fn numbers(&mut self, key: &str, most: usize) -> Option<Vec<f64>> {
        let fits =
            |value: &Value| value.as_array().filter(|all| all.len() <= most)?.iter().map(float).collect();
        self.typed(key, &format!("at most {most} numbers"), fits)
    }

    pub fn pairs(&mut self, key: &str, most: usize) -> Option<Vec<(f64, f64)>> {
        let pair = |value: &Value| match value.as_array()?.as_slice() {
            [a, b] => Some((float(a)?, float(b)?)),
            _ => None,
        };
        let fits =
            |value: &Value| value.as_array().filter(|all| all.len() <= most)?.iter().map(pair).collect();
        self.typed(key, &format!("at most {most} pairs of numbers"), fits)
    }

    /// Tells of keys that nobody asked for.
    pub fn end(self) {
        for key in self.table.keys().filter(|key| !self.known.contains(*key)) {
            let likeness =
                |known: &&String| (strsim::normalized_damerau_levenshtein(key, known) * 1e6) as u64;
            let nearest = self.known.iter().max_by_key(likeness);
            let nearest = nearest.filter(|known| likeness(known) as f64 / 1e6 >= ALIKE_MIN);
            let hint = nearest.map_or(String::new(), |known| format!("; did you mean '{known}'?"));
            let shown: String = key.chars().take(60).flat_map(char::escape_default).collect();
            self.problems.push(format!("{}: there is no such key{hint}", self.path(&shown)));
        }
    }
}

/// Finite numbers, also whole ones.
fn float(value: &Value) -> Option<f64> {
    let number = value.as_float().or(value.as_integer().map(|whole| whole as f64))?;
    number.is_finite().then_some(number)
}
