//! A map that forgets what nobody has asked for in a while.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// Keys that are hashes already stay what they are; others are multiplied. The same in each run, unlike the standard
/// library's; names of users and templates are no attack on a table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain(u64);

impl Hasher for Plain {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = mixed(self.0, value);
    }
}

/// One step of a hash: a multiplication by an odd number near 2^64 / golden ratio, and the high bits brought down.
pub fn mixed(hash: u64, value: u64) -> u64 {
    let product = (hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ (product >> 29)
}

type Table<K, V> = HashMap<K, V, BuildHasherDefault<Plain>>;

/// Holds at least the `half` entries that were asked for last, and twice as many at most.
///
/// Two tables: what is asked for is in, or moves to, the young one. When that is full it becomes the old one, and what was
/// still in the old one is forgotten. Nothing depends on the order of a table.
#[derive(Clone, Debug)]
pub struct Bounded<K, V> {
    half: usize,
    young: Table<K, V>,
    old: Table<K, V>,
}

impl<K: Hash + Eq + Copy, V> Bounded<K, V> {
    pub fn new(half: usize) -> Bounded<K, V> {
        Bounded { half: half.max(1), young: Table::default(), old: Table::default() }
    }

    /// The entry as it is, without keeping it from being forgotten.
    pub fn peek(&self, key: K) -> Option<&V> {
        self.young.get(&key).or_else(|| self.old.get(&key))
    }

    pub fn get_mut(&mut self, key: K) -> Option<&mut V> {
        if let Some(value) = self.old.remove(&key) {
            self.insert(key, value);
        }
        self.young.get_mut(&key)
    }

    /// The entry, made if it is not there.
    pub fn entry(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        if !self.young.contains_key(&key) {
            let value = self.old.remove(&key).unwrap_or_else(make);
            self.insert(key, value);
        }
        self.young.get_mut(&key).expect("it was there or has just been inserted")
    }

    pub fn insert(&mut self, key: K, value: V) {
        self.old.remove(&key);
        if self.young.len() >= self.half && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    pub fn remove(&mut self, key: K) -> Option<V> {
        self.young.remove(&key).or_else(|| self.old.remove(&key))
    }

    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a list in the order of use.
        #[test]
        fn the_entries_asked_for_last_are_kept(half in 1usize..6, asked in prop::collection::vec(0u64..12, 0..80)) {
            let mut map = Bounded::new(half);
            let mut last: Vec<u64> = Vec::new();
            for (at, key) in asked.iter().enumerate() {
                let known = last.iter().rev().take(half).any(|other| other == key);
                let value = *map.entry(*key, || at);
                prop_assert!(!known || value < at, "{key} was forgotten");
                last.retain(|other| other != key);
                last.push(*key);
                prop_assert!(map.len() <= 2 * half);
            }
            for key in last.iter().rev().take(half) {
                prop_assert!(map.peek(*key).is_some() && map.get_mut(*key).is_some());
                prop_assert!(map.remove(*key).is_some() && map.peek(*key).is_none());
            }
        }
    }
}
