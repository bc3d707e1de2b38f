//! Nodes of which jobs can have a part: each is so many bits with successive numbers. A node that has fewer processors than that
//! lacks some of its bits in the set of all.

/// What a job wants of each of its nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Share {
    Bits(u32),
    /// All that the node has.
    Whole,
}

/// The nodes, in the order of their numbers, that have enough free: the first bit of each, and how many are wanted of it. `all` are the bits
/// that nodes have.
pub fn of<'a>(
    free: &'a [u64],
    all: &'a [u64],
    size: u32,
    share: Share,
) -> impl Iterator<Item = (u32, u32)> + 'a {
    let size = size.max(1);
    let end = all.len() as u32 * 64;
    (0..end).step_by(size as usize).filter_map(move |first| {
        let has = count(free, first, (first + size).min(end));
        let wants = match share {
            Share::Bits(bits) => bits.max(1),
            Share::Whole => count(all, first, (first + size).min(end)).max(1),
        };
        (has >= wants).then_some((first, wants))
    })
}

/// Bits from `first` on, before `end`.
fn count(words: &[u64], first: u32, end: u32) -> u32 {
    let mut sum = 0;
    let begin = first as usize / 64;
    let those = words.iter().enumerate().take((end as usize).div_ceil(64)).skip(begin);
    for (at, word) in those {
        let (base, mut word) = (at as u32 * 64, *word);
        if first > base {
            word &= u64::MAX << (first - base);
        }
        if end - base < 64 {
            word &= (1 << (end - base)) - 1;
        }
        sum += word.count_ones();
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::super::NodeSet;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against bits one by one.
        #[test]
        fn nodes_with_enough_are_those_of_a_slow_look(
            size in 1u32..100,
            nodes in 1u32..7,
            lacking in prop::collection::vec(0u32..600, 0..40),
            taken in prop::collection::vec(0u32..600, 0..200),
            bits in 1u32..100,
            whole: bool,
        ) {
            let units = size * nodes;
            let mut all = NodeSet::none(units);
            (0..units).filter(|unit| !lacking.contains(unit)).for_each(|unit| all.add(unit, unit + 1));
            let mut free = NodeSet::none(units);
            all.nodes().filter(|unit| !taken.contains(unit)).for_each(|unit| free.add(unit, unit + 1));
            let share = if whole { Share::Whole } else { Share::Bits(bits) };
            let got: Vec<(u32, u32)> = of(free.words(), all.words(), size, share).collect();
            let slow: Vec<(u32, u32)> = (0..nodes).filter_map(|node| {
                let own = || node * size..(node + 1) * size;
                let has = own().filter(|unit| free.has(*unit)).count() as u32;
                let exist = own().filter(|unit| all.has(*unit)).count() as u32;
                let wants = if whole { exist.max(1) } else { bits };
                (has >= wants).then_some((node * size, wants))
            }).collect();
            prop_assert_eq!(got, slow);
        }
    }
}
