//! In which order transfers are made.

use crate::data::mix;
use serde::{Deserialize, Serialize};

/// Rounds of the Feistel network; four make a permutation that looks random.
const ROUNDS: u64 = 4;

/// An order of `0..len`, computed place by place: a run has too many transfers to shuffle a list of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Order {
    Sequential,
    /// Every `stride`-th, from the start; then those after them; and so on.
    Strided {
        stride: u64,
    },
    Random {
        seed: u64,
    },
}

impl Order {
    /// What comes at place `index` of `len`.
    pub fn at(self, index: u64, len: u64) -> u64 {
        match self {
            Order::Sequential => index,
            Order::Strided { stride } => strided(index, len, stride.clamp(1, len.max(1))),
            Order::Random { seed } => random(index, len, seed),
        }
    }
}

/// The first `len % stride` passes have one more than the others.
fn strided(index: u64, len: u64, stride: u64) -> u64 {
    let (each, longer) = (len / stride, len % stride);
    let in_longer = longer * (each + 1);
    let (pass, place) = match index < in_longer {
        true => (index / (each + 1), index % (each + 1)),
        false => (longer + (index - in_longer) / each, (index - in_longer) % each),
    };
    pass + place * stride
}

/// A permutation of the next power of four, again until it hits: at most four times on average.
fn random(index: u64, len: u64, seed: u64) -> u64 {
    let bits = 64 - len.saturating_sub(1).leading_zeros();
    let half = bits.div_ceil(2).max(1);
    let mask = (1_u64 << half) - 1;
    let mut value = index;
    loop {
        let (mut left, mut right) = (value >> half, value & mask);
        for round in 0..ROUNDS {
            let mixed = mix(seed ^ mix(right ^ (round << 56))) & mask;
            (left, right) = (right, left ^ mixed);
        }
        value = (left << half) | right;
        if value < len {
            return value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(order: Order, len: u64) -> Vec<u64> {
        (0..len).map(|index| order.at(index, len)).collect()
    }

    #[test]
    fn strides_go_in_passes() {
        assert_eq!(all(Order::Strided { stride: 3 }, 8), [0, 3, 6, 1, 4, 7, 2, 5]);
        assert_eq!(all(Order::Strided { stride: 9 }, 3), [0, 1, 2]);
        assert_eq!(all(Order::Sequential, 3), [0, 1, 2]);
    }

    #[test]
    fn random_orders_differ_by_their_seed_and_mix() {
        let (one, other) = (all(Order::Random { seed: 1 }, 1000), all(Order::Random { seed: 2 }, 1000));
        assert_ne!(one, other);
        assert_eq!(one, all(Order::Random { seed: 1 }, 1000));
        let neighbours = one.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 1).count();
        assert!(neighbours < 20, "{neighbours} of 999 steps go to a neighbour");
    }

    proptest! {
        #[test]
        fn each_order_is_a_permutation(len in 1_u64..2_000, seed: u64, stride in 1_u64..100) {
            for order in [Order::Sequential, Order::Strided { stride }, Order::Random { seed }] {
                let mut places = all(order, len);
                places.sort();
                prop_assert_eq!(places, (0..len).collect::<Vec<_>>());
            }
        }
    }
}
