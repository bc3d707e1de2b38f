//! Waiting awake for a moment before sleeping.
//!
//! Where idle cores sleep (a virtual machine's most of all) a sleep and a wake-up cost up to 50 us and
//! as much processor time; an answer from a daemon that is awake takes 1 to 5. So a waiter first looks for about as long as
//! a sleep would cost, which is never much worse than the better of the two. It yields its core between looks: when the
//! one it waits for needs that core, it gets it at once. When a yield gives the core to somebody else's long computation
//! instead, the node is crowded, and waiters sleep: the kernel prefers a thread that is woken.

use std::time::{Duration, Instant};

/// Looks without a yield: for an answer that is just coming from another core.
const PAUSES: u32 = 32;
/// Longest wait awake.
const AWAKE_MAX: Duration = Duration::from_micros(50);
const AWAKE_MIN: Duration = Duration::from_micros(3);
/// Every so many waits in vain the longest is tried again.
const TRY_AGAIN: u32 = 16;
/// A yield that took longer went to somebody who computes.
const CROWDED: Duration = Duration::from_micros(150);
/// Waits that go to sleep at once after that; doubled each time in a row.
const CROWDED_WAITS: u32 = 64;
const CROWDED_WAITS_MAX: u32 = 8192;

/// What one waiter has learned about waiting.
#[derive(Debug)]
pub struct Spin {
    awake: Duration,
    in_vain: u32,
    /// Waits left that do not try.
    asleep: u32,
    penalty: u32,
}

impl Default for Spin {
    fn default() -> Spin {
        Spin { awake: AWAKE_MAX, in_vain: 0, asleep: 0, penalty: CROWDED_WAITS }
    }
}

impl Spin {
    /// Asks `done` again and again for a while; its answer, or `None` when it is time to sleep.
    pub fn until<T>(&mut self, mut done: impl FnMut() -> Option<T>) -> Option<T> {
        if self.asleep > 0 {
            self.asleep -= 1;
            return done();
        }
        for _ in 0..PAUSES {
            if let Some(value) = done() {
                return Some(value);
            }
            std::hint::spin_loop();
        }
        self.yielding(done)
    }

    fn yielding<T>(&mut self, mut done: impl FnMut() -> Option<T>) -> Option<T> {
        let start = Instant::now();
        let mut before = start;
        loop {
            std::thread::yield_now();
            let found = done();
            let now = Instant::now();
            if now - before > CROWDED {
                self.crowded();
                return found;
            }
            if found.is_some() {
                self.paid_off();
                return found;
            }
            if now - start > self.awake {
                self.vain();
                return None;
            }
            before = now;
        }
    }

    fn paid_off(&mut self) {
        self.awake = (self.awake * 2).min(AWAKE_MAX);
        self.in_vain = 0;
        self.penalty = CROWDED_WAITS;
    }

    fn vain(&mut self) {
        self.in_vain += 1;
        let again = self.in_vain.is_multiple_of(TRY_AGAIN);
        self.awake = if again { AWAKE_MAX } else { (self.awake / 2).max(AWAKE_MIN) };
    }

    fn crowded(&mut self) {
        self.asleep = self.penalty;
        self.penalty = (self.penalty * 2).min(CROWDED_WAITS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(spin: &mut Spin) -> u32 {
        let mut count = 0;
        let none: Option<()> = spin.until(|| {
            count += 1;
            None
        });
        assert_eq!(none, None);
        count
    }

    #[test]
    fn a_wait_in_vain_shortens_the_next_ones_and_is_tried_again() {
        let mut spin = Spin { awake: AWAKE_MAX, ..Spin::default() };
        for _ in 0..8 {
            spin.vain();
        }
        assert_eq!(spin.awake, AWAKE_MIN);
        for _ in 8..TRY_AGAIN {
            spin.vain();
        }
        assert_eq!(spin.awake, AWAKE_MAX);
        assert!(looks(&mut spin) > PAUSES, "it yields after the pauses");
        assert_eq!(spin.until(|| Some(1)), Some(1));
    }

    #[test]
    fn a_crowded_node_is_left_alone_for_longer_each_time() {
        let mut spin = Spin::default();
        spin.crowded();
        for _ in 0..CROWDED_WAITS {
            assert_eq!(looks(&mut spin), 1, "one look, then sleep");
        }
        assert_eq!(spin.asleep, 0);
        spin.crowded();
        assert_eq!(spin.asleep, 2 * CROWDED_WAITS);
        spin.asleep = 0;
        spin.paid_off();
        assert_eq!(spin.penalty, CROWDED_WAITS);
    }
}
