//! How far a check is: what it looks at now, of how much, and how long that will take.

use crate::output::{duration, rate, time_left};
use tidepool_types::{BLOCK_SIZE, format_size};

/// What is looked at, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    Records,
    Names,
    Data,
}

/// One phase. Programs may use the pool, so there can be more in the end than was told before.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Progress {
    pub phase: Phase,
    /// Records, names, or blocks of data.
    pub done: u64,
    pub total: u64,
    pub seconds: f64,
}

impl Progress {
    pub fn words(&self) -> String {
        let Progress { phase, done, total, seconds } = *self;
        let bytes = |blocks: u64| blocks.saturating_mul(u64::from(BLOCK_SIZE));
        let mut text = match phase {
            Phase::Records => format!("checking records: {done} of {total}"),
            Phase::Names => format!("checking names: {done} of {total}"),
            Phase::Data => {
                format!("checking data: {} of {}", format_size(bytes(done)), format_size(bytes(total)))
            }
        };
        let left = total.saturating_sub(done);
        if left == 0 {
            return text;
        }
        text.push_str(&format!(", {} %", u128::from(done) * 100 / u128::from(total)));
        if phase == Phase::Data && done > 0 {
            text.push_str(&format!(", {}", rate(bytes(done), seconds)));
        }
        if let Some(left) = time_left(done, left, seconds) {
            text.push_str(&format!(", {} left", duration(left)));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tells_how_much_and_how_long() {
        let at = |phase, done, total, seconds| Progress { phase, done, total, seconds }.words();
        assert_eq!(at(Phase::Records, 0, 200, 0.0), "checking records: 0 of 200, 0 %");
        assert_eq!(at(Phase::Names, 50, 200, 2.0), "checking names: 50 of 200, 25 %, 6.0 s left");
        assert_eq!(
            at(Phase::Data, 256, 1024, 1.0),
            "checking data: 1.0 MiB of 4.0 MiB, 25 %, 1.0 MiB/s, 3.0 s left"
        );
        // What was made meanwhile is looked at as well.
        assert_eq!(at(Phase::Records, 201, 200, 2.0), "checking records: 201 of 200");
        assert_eq!(at(Phase::Data, 0, 0, 2.0), "checking data: 0 B of 0 B");
        assert_eq!(at(Phase::Names, u64::MAX / 2, u64::MAX, 1.0).split(", ").nth(1), Some("49 %"));
    }
}
