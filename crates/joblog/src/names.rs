//! Names as numbers, from 1 in the order in which they come.

use crate::table::Numbered;
use std::collections::HashMap;

#[derive(Default)]
pub(crate) struct Interned {
    numbers: HashMap<String, u32>,
}

impl Interned {
    /// What is empty has none.
    pub fn number(&mut self, name: &str) -> Option<u32> {
        if name.is_empty() {
            return None;
        }
        if let Some(number) = self.numbers.get(name) {
            return Some(*number);
        }
        let number = u32::try_from(self.numbers.len() + 1).ok()?;
        self.numbers.insert(name.to_string(), number);
        Some(number)
    }

    pub fn named(self) -> Numbered {
        self.numbers.into_iter().map(|(name, number)| (number, name)).collect()
    }
}
