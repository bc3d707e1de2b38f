//! What an extractor has found.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Whether data change while nobody changes the hardware (paper, section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Components: equal on equal nodes, and the same tomorrow.
    Static,
    /// What is free or in use at the time of the record.
    Dynamic,
}

/// Something that could not be read. What is known without it is told all the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// A file, a program or a library.
    pub what: String,
    pub why: String,
}

impl Missing {
    pub fn new(what: impl Into<String>, why: impl ToString) -> Missing {
        Missing { what: what.into(), why: why.to_string() }
    }
}

/// One extractor's finding on one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub extractor: String,
    /// The version of the data's form.
    pub version: u32,
    pub class: Class,
    /// Where the data are from; none when no source has told any.
    pub source: Option<String>,
    /// Milliseconds since 1970.
    pub taken_ms: u64,
    /// Null when no source has told any.
    pub data: Value,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<Missing>,
}
