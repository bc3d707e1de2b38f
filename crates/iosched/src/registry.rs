//! The strategies by name. A new one is a file in `strategies/` with its `mod` line, and a line here.

use crate::strategies::{baseline, fair, fcfs, hp, ia, model, set10};
use crate::strategy::Strategy;
use std::fmt;

/// The order in which they are listed.
pub const STRATEGIES: &[&dyn Strategy] = &[
    &baseline::Baseline,
    &hp::HighPriority,
    &ia::InterferenceAware,
    &fcfs::Fcfs,
    &set10::Set10,
    &fair::Fair,
    &model::Model,
];

/// A name that no strategy has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownStrategy {
    pub name: String,
    /// What was probably meant.
    pub meant: Option<&'static str>,
}

impl fmt::Display for UnknownStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no I/O strategy {:?}", self.name)?;
        match self.meant {
            Some(meant) => write!(f, "; did you mean {meant}?"),
            None => write!(f, "; there are {}", names().collect::<Vec<_>>().join(", ")),
        }
    }
}

impl std::error::Error for UnknownStrategy {}

pub fn names() -> impl Iterator<Item = &'static str> {
    STRATEGIES.iter().map(|strategy| strategy.name())
}

pub fn by_name(name: &str) -> Result<&'static dyn Strategy, UnknownStrategy> {
    let found = STRATEGIES.iter().find(|strategy| strategy.name() == name);
    found.copied().ok_or_else(|| UnknownStrategy { name: name.to_string(), meant: meant(name) })
}

/// The nearest name, if it is near.
fn meant(name: &str) -> Option<&'static str> {
    /// Edits between a slip and what was meant.
    const EDITS_MAX: usize = 2;
    let lower = name.to_lowercase();
    let edits = |known: &'static str| (strsim::damerau_levenshtein(&lower, known), known);
    names().map(edits).filter(|(edits, known)| *edits <= EDITS_MAX && *edits < known.len()).min().map(|m| m.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_is_found_by_its_own_name() {
        for strategy in STRATEGIES {
            assert_eq!(by_name(strategy.name()).unwrap().name(), strategy.name());
            assert!(!strategy.about().is_empty());
        }
        assert_eq!(names().collect::<BTreeSet<_>>().len(), STRATEGIES.len(), "names are given once");
    }

    #[test]
    fn other_names_are_errors_with_a_suggestion() {
        let told = |name| by_name(name).unwrap_err().to_string();
        assert_eq!(told("fcsf"), "no I/O strategy \"fcsf\"; did you mean fcfs?");
        assert_eq!(told("IA"), "no I/O strategy \"IA\"; did you mean ia?");
        assert_eq!(
            told("something"),
            "no I/O strategy \"something\"; there are baseline, hp, ia, fcfs, set10, fair, model"
        );
    }
}
