//! Sets of nodes, as bits.

/// Nodes 0 to 63 are the first word's, from its lowest bit on. Sets of one machine have the same number of words.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeSet {
    words: Box<[u64]>,
}

impl NodeSet {
    /// None of so many nodes.
    pub fn none(nodes: u32) -> NodeSet {
        NodeSet { words: vec![0; words(nodes)].into() }
    }

    /// All of so many nodes.
    pub fn all(nodes: u32) -> NodeSet {
        let mut set = NodeSet::none(nodes);
        set.add(0, nodes);
        set
    }

    /// Those bits.
    pub fn of_words(words: &[u64]) -> NodeSet {
        NodeSet { words: words.into() }
    }

    /// Adds the nodes from `first` on, before `end`.
    pub fn add(&mut self, first: u32, end: u32) {
        for node in first..end {
            self.words[node as usize / 64] |= 1 << (node % 64);
        }
    }

    pub fn words(&self) -> &[u64] {
        &self.words
    }

    pub fn count(&self) -> u32 {
        count(&self.words)
    }

    pub fn has(&self, node: u32) -> bool {
        self.words.get(node as usize / 64).is_some_and(|word| word >> (node % 64) & 1 == 1)
    }

    /// In the order of their numbers.
    pub fn nodes(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(at, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(at as u32 * 64 + bit)
            })
        })
    }

    /// Longest run of nodes with successive numbers.
    pub fn longest_run(&self) -> u32 {
        runs(&self.words).map(|(first, end)| end - first).max().unwrap_or(0)
    }
}

/// Words for so many nodes.
pub fn words(nodes: u32) -> usize {
    (nodes as usize).div_ceil(64)
}

pub fn count(words: &[u64]) -> u32 {
    words.iter().map(|word| word.count_ones()).sum()
}

/// Nodes with successive numbers, as first and end, in their order.
pub fn runs(words: &[u64]) -> impl Iterator<Item = (u32, u32)> + '_ {
    let end = words.len() as u32 * 64;
    let mut from = 0;
    std::iter::from_fn(move || {
        let first = next(words, from, end, false);
        if first == end {
            return None;
        }
        from = next(words, first, end, true);
        Some((first, from))
    })
}

/// The first bit from `from` on that is set, or with `inverted` that is not; else `end`.
fn next(words: &[u64], from: u32, end: u32, inverted: bool) -> u32 {
    let turn = if inverted { u64::MAX } else { 0 };
    let mut mask = u64::MAX << (from % 64);
    for (at, word) in words.iter().enumerate().skip(from as usize / 64) {
        let found = (word ^ turn) & mask;
        if found != 0 {
            return at as u32 * 64 + found.trailing_zeros();
        }
        mask = u64::MAX;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn runs_by_hand() {
        let mut set = NodeSet::none(200);
        set.add(3, 5);
        set.add(60, 130);
        set.add(191, 192);
        assert_eq!(runs(set.words()).collect::<Vec<_>>(), [(3, 5), (60, 130), (191, 192)]);
        assert_eq!((set.longest_run(), set.count()), (70, 73));
        assert_eq!(runs(NodeSet::all(128).words()).collect::<Vec<_>>(), [(0, 128)]);
        assert_eq!(NodeSet::none(0).longest_run(), 0);
    }

    proptest! {
        #[test]
        fn a_set_is_that_of_the_standard_library(ranges in prop::collection::vec((0u32..150, 0u32..30), 0..12)) {
            let (mut set, mut slow) = (NodeSet::none(180), BTreeSet::new());
            for (first, length) in ranges {
                set.add(first, first + length);
                slow.extend(first..first + length);
            }
            prop_assert_eq!(set.nodes().collect::<Vec<_>>(), slow.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(set.count() as usize, slow.len());
            prop_assert!((0..200).all(|node| set.has(node) == slow.contains(&node)));
            let of_runs: BTreeSet<u32> = runs(set.words()).flat_map(|(first, end)| first..end).collect();
            prop_assert_eq!(of_runs, slow);
        }
    }
}
