//! What is said of a script: where, what, and what was probably meant.

use serde::{Serialize, Serializer};
use std::fmt;
use std::ops::Deref;
use tidepool_types::show_bytes;

/// Problems that are told at once; the last one then says that there are more. The same holds for warnings.
pub const PROBLEMS_MAX: usize = 100;

/// Characters of a message: a word of a script can be longer.
pub const MESSAGE_MAX: usize = 1000;

/// Where something is written. Lines and columns count from 1, columns in characters.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(untagged)]
pub enum At {
    Line {
        line: usize,
        column: usize,
    },
    /// In the value of an option of the command that submits the job.
    Option {
        option: String,
        column: usize,
    },
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Line { line, column } => write!(f, "line {line}, column {column}"),
            At::Option { option, column } => write!(f, "option --{option}, column {column}"),
        }
    }
}

/// Something, and where it is said. What is said in two places is equal when it is the same.
#[derive(Clone, Debug)]
pub struct Said<T> {
    pub value: T,
    pub at: At,
}

impl<T> Said<T> {
    pub fn new(value: T, at: &At) -> Said<T> {
        Said { value, at: at.clone() }
    }
}

impl<T> Deref for Said<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: PartialEq> PartialEq for Said<T> {
    fn eq(&self, other: &Said<T>) -> bool {
        self.value == other.value
    }
}

impl<T: Eq> Eq for Said<T> {}

impl<T: fmt::Display> fmt::Display for Said<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

/// The value alone.
impl<T: Serialize> Serialize for Said<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(to)
    }
}

/// What is wrong.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Problem {
    #[serde(flatten)]
    pub at: At,
    pub message: String,
    /// What was probably meant, in place of what is there.
    pub suggestion: Option<String>,
}

/// What is odd, and not wrong.
pub type Warning = Problem;

impl Problem {
    /// Scripts may hold anything, and what is told of them goes to terminals and logs: control characters are escaped, and
    /// long words cut.
    pub fn new(at: &At, message: impl AsRef<str>) -> Problem {
        let message = show_bytes(message.as_ref().as_bytes());
        let message = match message.char_indices().nth(MESSAGE_MAX) {
            Some((end, _)) => format!("{}...", &message[..end]),
            None => message,
        };
        Problem { at: at.clone(), message, suggestion: None }
    }

    pub fn meant(self, suggestion: Option<impl AsRef<str>>) -> Problem {
        let suggestion = suggestion.map(|text| show_bytes(text.as_ref().as_bytes()));
        let suggestion = suggestion.filter(|text| text.len() <= MESSAGE_MAX);
        Problem { suggestion, ..self }
    }

    /// Without the place.
    pub fn what(&self) -> String {
        match &self.suggestion {
            None => self.message.clone(),
            Some(meant) => format!("{}; did you mean '{meant}'?", self.message),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.what())
    }
}

impl std::error::Error for Problem {}

/// Problems or warnings, not without end.
#[derive(Debug, Default)]
pub(crate) struct Told {
    all: Vec<Problem>,
    /// Where the first one is that is left out.
    more: Option<At>,
}

impl Told {
    pub fn add(&mut self, problem: Problem) {
        if self.all.len() < PROBLEMS_MAX - 1 {
            self.all.push(problem);
        } else if self.more.is_none() {
            self.more = Some(problem.at);
        }
    }

    /// Nothing more is told.
    pub fn is_full(&self) -> bool {
        self.more.is_some()
    }

    /// In the order of the script.
    pub fn in_order(mut self) -> Vec<Problem> {
        let place = |problem: &Problem| match &problem.at {
            At::Line { line, column } => (*line, *column),
            At::Option { column, .. } => (0, *column),
        };
        self.all.sort_by_key(place);
        let told = self.all.len();
        let more = self.more.map(|at| Problem::new(&at, format!("there is more: only {told} are told")));
        self.all.into_iter().chain(more).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_end() {
        let long = "\u{e9}".repeat(MESSAGE_MAX + 1);
        let problem = Problem::new(&At::Line { line: 1, column: 1 }, &long).meant(Some(&long));
        assert_eq!((problem.message.chars().count(), problem.suggestion), (MESSAGE_MAX + 3, None));
    }

    #[test]
    fn problems_come_in_order_and_end() {
        let mut told = Told::default();
        let at = |line| At::Line { line, column: 1 };
        (1..=PROBLEMS_MAX + 5).rev().for_each(|line| told.add(Problem::new(&at(line), "bad")));
        let told = told.in_order();
        assert_eq!(told.len(), PROBLEMS_MAX);
        assert_eq!(told[0], Problem::new(&at(7), "bad"));
        let last = told.last().unwrap().to_string();
        assert_eq!(last, "line 6, column 1: there is more: only 99 are told");
    }
}
