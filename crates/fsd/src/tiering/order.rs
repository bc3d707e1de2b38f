//! What somebody has ordered to be flushed. Pure.
//!
//! ```text
//! ──asked──▶ stands ──nothing left above, and nobody has asked for a while──▶ over
//!              ▲ asked again │
//!              └─────────────┘
//! ```
//! While it stands, new data go where it flushes to: else what is written all the time would keep it from ever being done.

use std::fmt;
use std::time::{Duration, Instant};
use tidepool_store::TierIndex;

/// How long an order stands on when nothing is left to do: who asked looks again.
const STANDS_FOR: Duration = Duration::from_secs(5);

pub struct Order {
    pub to: TierIndex,
    /// Most bytes in a second; 0 for the daemon's own limits.
    pub bandwidth: u64,
    asked: Instant,
    /// Since something was moved last.
    failures: u32,
    why: String,
}

/// How far an order is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Bytes that are left.
    pub above: u64,
    /// Bytes that were moved since the start of the daemon.
    pub moved: u64,
    pub failures: u32,
    pub why: String,
}

impl Order {
    pub fn new(to: TierIndex, bandwidth: u64, now: Instant) -> Order {
        Order { to, bandwidth, asked: now, failures: 0, why: String::new() }
    }

    pub fn again(self, now: Instant) -> Order {
        Order { asked: now, ..self }
    }

    pub fn is_over(&self, above: u64, now: Instant) -> bool {
        above == 0 && now.saturating_duration_since(self.asked) >= STANDS_FOR
    }

    pub fn moved(&mut self) {
        (self.failures, self.why) = (0, String::new());
    }

    pub fn failed(&mut self, why: &dyn fmt::Display) {
        (self.failures, self.why) = (self.failures.saturating_add(1), why.to_string());
    }

    pub fn progress(&self, above: u64, moved: u64) -> Progress {
        // What failed on the way to an end that was reached is of no interest.
        let failures = if above == 0 { 0 } else { self.failures };
        Progress { above, moved, failures, why: self.why.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_stands_until_nothing_is_left_and_nobody_asks() {
        let start = Instant::now();
        let order = Order::new(2, 0, start);
        assert!(!order.is_over(0, start));
        assert!(order.is_over(0, start + STANDS_FOR));
        assert!(!order.is_over(1, start + 100 * STANDS_FOR), "something is left");
        let order = order.again(start + STANDS_FOR);
        assert!(!order.is_over(0, start + STANDS_FOR), "somebody has asked");
    }

    #[test]
    fn failures_are_counted_until_something_moves() {
        let mut order = Order::new(1, 0, Instant::now());
        order.failed(&"full");
        order.failed(&"still full");
        let told = order.progress(5, 6);
        assert_eq!(told, Progress { above: 5, moved: 6, failures: 2, why: "still full".into() });
        order.moved();
        assert_eq!(order.progress(5, 7), Progress { above: 5, moved: 7, failures: 0, why: String::new() });
    }
}
