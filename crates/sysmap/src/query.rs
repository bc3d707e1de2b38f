//! What people ask the resource database for (`docs/guide/sysmap.md`): `hosts with >= 500GB free on nvme`,
//! `cpu.cores >= 32 and not network.interfaces[kind = infiniband]`.
//!
//! A question is parsed as a whole before anything is read. Its conditions are looked at once for each content, not for
//! each host.

mod parse;

use crate::db::{Database, DbError};
use serde_json::Value;
use std::collections::BTreeSet;

pub use parse::{BadQuery, parse};

/// A question.
#[derive(Clone, Debug, PartialEq)]
pub enum Query {
    All(Vec<Query>),
    Any(Vec<Query>),
    Not(Box<Query>),
    /// The data of one extractor meet a condition.
    Data {
        extractor: String,
        condition: Condition,
    },
}

/// Something about data.
#[derive(Clone, Debug, PartialEq)]
pub enum Condition {
    /// A value at a path, or any of the values when lists are on the way, compares so.
    Compare { path: Vec<String>, compare: Compare, to: Literal },
    /// So many elements of the list at a path meet a condition (which all of them do when there is none).
    Count { path: Vec<String>, inner: Option<Box<Inner>>, compare: Compare, to: f64 },
}

/// A condition for the elements of a list.
#[derive(Clone, Debug, PartialEq)]
pub enum Inner {
    All(Vec<Inner>),
    Any(Vec<Inner>),
    Not(Box<Inner>),
    Is(Condition),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    Less,
    AtMost,
    Equal,
    Other,
    AtLeast,
    More,
    /// A text has another one in it, whatever the case of letters.
    Contains,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    Number(f64),
    Text(String),
    Truth(bool),
}

impl Compare {
    fn of(self, ordering: Option<std::cmp::Ordering>) -> bool {
        use std::cmp::Ordering::{Equal, Greater, Less};
        match self {
            Compare::Less => ordering == Some(Less),
            Compare::AtMost => matches!(ordering, Some(Less | Equal)),
            Compare::Equal => ordering == Some(Equal),
            Compare::Other => ordering != Some(Equal),
            Compare::AtLeast => matches!(ordering, Some(Greater | Equal)),
            Compare::More => ordering == Some(Greater),
            Compare::Contains => false,
        }
    }

    /// A value that is of another kind than what it is compared with meets nothing but `!=`.
    fn holds(self, value: &Value, to: &Literal) -> bool {
        match (value, to) {
            (Value::String(text), Literal::Text(to)) if self == Compare::Contains => {
                text.to_lowercase().contains(&to.to_lowercase())
            }
            (Value::String(text), Literal::Text(to)) => self.of(Some(text.as_str().cmp(to.as_str()))),
            (Value::Number(number), Literal::Number(to)) => {
                self.of(number.as_f64().and_then(|number| number.partial_cmp(to)))
            }
            (Value::Bool(truth), Literal::Truth(to)) => self.of(Some(truth.cmp(to))),
            _ => self == Compare::Other,
        }
    }
}

/// Values at a path; where a list is on the way, those of its elements.
fn values<'a>(data: &'a Value, path: &[String]) -> Vec<&'a Value> {
    let spread = |value: &'a Value| match value {
        Value::Array(list) => list.iter().collect(),
        other => vec![other],
    };
    path.iter().fold(spread(data), |at, name| {
        at.into_iter().filter_map(|value| value.get(name)).flat_map(spread).collect()
    })
}

impl Condition {
    pub fn holds(&self, data: &Value) -> bool {
        match self {
            Condition::Compare { path, compare, to } => {
                let mut found = values(data, path).into_iter().filter(|value| !value.is_null());
                found.any(|value| compare.holds(value, to))
            }
            Condition::Count { path, inner, compare, to } => {
                let met = |value: &&&Value| {
                    !value.is_null() && inner.as_ref().is_none_or(|inner| inner.holds(value))
                };
                let count = values(data, path).iter().filter(met).count();
                compare.of((count as f64).partial_cmp(to))
            }
        }
    }
}

impl Inner {
    fn holds(&self, data: &Value) -> bool {
        match self {
            Inner::All(parts) => parts.iter().all(|part| part.holds(data)),
            Inner::Any(parts) => parts.iter().any(|part| part.holds(data)),
            Inner::Not(part) => !part.holds(data),
            Inner::Is(condition) => condition.holds(data),
        }
    }
}

impl Query {
    /// The extractors it is about.
    pub fn extractors(&self) -> Vec<&str> {
        match self {
            Query::All(parts) | Query::Any(parts) => parts.iter().flat_map(Query::extractors).collect(),
            Query::Not(part) => part.extractors(),
            Query::Data { extractor, .. } => vec![extractor],
        }
    }

    /// Names of the hosts of which it holds, in order.
    pub fn hosts(&self, database: &Database) -> Result<Vec<String>, DbError> {
        let all: BTreeSet<String> = database.hosts()?.into_iter().collect();
        Ok(self.among(database, &all)?.into_iter().collect())
    }

    fn among(&self, database: &Database, all: &BTreeSet<String>) -> Result<BTreeSet<String>, DbError> {
        match self {
            Query::All(parts) => parts.iter().try_fold(all.clone(), |met, part| {
                let of_part = part.among(database, all)?;
                Ok(met.into_iter().filter(|host| of_part.contains(host)).collect())
            }),
            Query::Any(parts) => parts.iter().try_fold(BTreeSet::new(), |mut met, part| {
                met.extend(part.among(database, all)?);
                Ok(met)
            }),
            Query::Not(part) => {
                let met = part.among(database, all)?;
                Ok(all.difference(&met).cloned().collect())
            }
            Query::Data { extractor, condition } => {
                let contents = database.contents(extractor)?;
                let met = contents.into_iter().filter(|(data, _)| condition.holds(data));
                Ok(met.flat_map(|(_, hosts)| hosts).collect())
            }
        }
    }
}
