//! A hash table whose numbers can be gone through in order.

use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Numbers that one word stands for.
const WORD: u64 = 64;

/// Values by number. Checks go through them page by page while programs change them, so a page must cost no more than what is in it,
/// the first one as well: sorting all numbers once would keep everybody waiting while that lasts.
#[derive(Debug)]
pub(super) struct Ordered<V> {
    values: FxHashMap<u64, V>,
    /// Which numbers there are, 64 in a word. Objects are numbered one after the other, so that this is small beside the values.
    words: BTreeMap<u64, u64>,
    #[cfg(test)]
    looked_at: std::cell::Cell<u64>,
}

impl<V> Default for Ordered<V> {
    fn default() -> Ordered<V> {
        Ordered {
            values: FxHashMap::default(),
            words: BTreeMap::new(),
            #[cfg(test)]
            looked_at: Default::default(),
        }
    }
}

impl<V> Ordered<V> {
    /// What was there before.
    pub fn put(&mut self, number: u64, value: V) -> Option<V> {
        let before = self.values.insert(number, value);
        if before.is_none() {
            *self.words.entry(number / WORD).or_default() |= 1 << (number % WORD);
        }
        before
    }

    /// What was there.
    pub fn remove(&mut self, number: u64) -> Option<V> {
        let before = self.values.remove(&number)?;
        if let Entry::Occupied(mut word) = self.words.entry(number / WORD) {
            *word.get_mut() &= !(1 << (number % WORD));
            if *word.get() == 0 {
                word.remove();
            }
        }
        Some(before)
    }

    pub fn get(&self, number: u64) -> Option<&V> {
        self.values.get(&number)
    }

    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// In no order, which costs least.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &V)> {
        self.values.iter().map(|(number, value)| (*number, value))
    }

    /// Those above `after`, ascending.
    pub fn above(&self, after: Option<u64>) -> impl Iterator<Item = (u64, &V)> {
        let from = after.map_or(Some(0), |after| after.checked_add(1));
        let words = from.into_iter().flat_map(move |from| {
            let first = from / WORD;
            self.words.range(first..).map(move |(word, bits)| {
                self.note_look();
                let cut = if *word == first { from % WORD } else { 0 };
                (*word, *bits & (u64::MAX << cut))
            })
        });
        let numbers = words.flat_map(|(word, bits)| bits_of(bits).map(move |bit| word * WORD + bit));
        numbers.filter_map(|number| Some((number, self.values.get(&number)?)))
    }

    fn note_look(&self) {
        #[cfg(test)]
        self.looked_at.set(self.looked_at.get() + 1);
    }
}

/// Places of the bits that are set, ascending.
fn bits_of(bits: u64) -> impl Iterator<Item = u64> {
    let mut left = bits;
    std::iter::from_fn(move || {
        let place = (left != 0).then(|| u64::from(left.trailing_zeros()));
        left &= left.wrapping_sub(1);
        place
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(numbers: impl Iterator<Item = u64>) -> Ordered<u64> {
        let mut all = Ordered::default();
        for number in numbers {
            all.put(number, number);
        }
        all
    }

    fn numbers(all: &Ordered<u64>, after: Option<u64>) -> Vec<u64> {
        all.above(after).map(|(number, _)| number).collect()
    }

    /// Near to each other, far apart, and at the ends of what there is.
    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![
            0u64..300,
            (0u64..4, 0u64..70).prop_map(|(home, count)| (home << 48) | count),
            (0u64..70).prop_map(|n| u64::MAX - n)
        ]
    }

    proptest! {
        #[test]
        fn it_is_a_sorted_map(
            steps in prop::collection::vec((number(), 0u8..3), 0..300),
            looks in prop::collection::vec(number(), 1..20),
        ) {
            let (mut all, mut slow) = (Ordered::default(), BTreeMap::new());
            for (step, (number, what)) in steps.into_iter().enumerate() {
                if what == 0 {
                    all.remove(number);
                    slow.remove(&number);
                } else {
                    all.put(number, step);
                    slow.insert(number, step);
                }
            }
            prop_assert_eq!(all.len(), slow.len());
            prop_assert!(all.above(None).eq(slow.iter().map(|(number, step)| (*number, step))));
            for look in looks {
                prop_assert_eq!(all.get(look), slow.get(&look));
                let above = slow.range(look..).filter(|(number, _)| **number > look);
                prop_assert!(all.above(Some(look)).eq(above.map(|(number, step)| (*number, step))));
            }
            let left: Vec<u64> = slow.keys().copied().collect();
            for number in left {
                all.remove(number);
            }
            prop_assert!(all.words.is_empty(), "nothing is kept of what is gone");
        }
    }

    /// Every page, also the first, costs what it has, however many there are.
    #[test]
    fn a_page_looks_at_no_more_than_it_has() {
        const PAGE: usize = 512;
        let all = of(1..=1_000_000);
        for after in [None, Some(0), Some(63), Some(500_000), Some(999_999)] {
            all.looked_at.set(0);
            let page: Vec<u64> = all.above(after).take(PAGE).map(|(number, _)| number).collect();
            let first = after.unwrap_or(0) + 1;
            assert_eq!(page, (first..=1_000_000).take(PAGE).collect::<Vec<_>>());
            assert!(all.looked_at.get() <= PAGE as u64 / WORD + 2, "{after:?}: {}", all.looked_at.get());
        }
    }

    #[test]
    fn what_comes_and_goes_between_pages() {
        let mut all = of(1..=10);
        all.remove(3);
        all.remove(4);
        all.put(20, 20);
        assert_eq!(numbers(&all, Some(3)), [5, 6, 7, 8, 9, 10, 20]);
        assert_eq!(numbers(&all, Some(u64::MAX)), []);
    }
}
