//! Waiting awake for a moment before sleeping.
//!
//! Where idle cores sleep (a virtual machine's most of all) a sleep and a wake-up cost up to 50 us and
//! as much processor time; an answer from a daemon that is awake takes 1 to 5. So a waiter first looks for about as long as
//! a sleep would cost, which is never much worse than the better of the two. It yields its core between looks: when the
//! one it waits for needs that core, it gets it at once. When a yield gives the core to somebody else's long computation
//! instead, the node is crowded, and waiters sleep: the kernel prefers a thread that is woken.

use std::time::{Duration, Instant};

/// Every so many waits in vain the longest is tried again.
const TRY_AGAIN: u32 = 16;
/// Shorter waits are not worth a look at the clock.
const STEP: Duration = Duration::from_micros(3);
/// Waits that go to sleep at once after that; doubled each time in a row.
const CROWDED_WAITS: u32 = 64;
const CROWDED_WAITS_MAX: u32 = 8192;

/// How a waiter looks for what it waits for.
#[derive(Debug, PartialEq, Eq)]
struct Habit {
    /// Looks without a yield: for an answer that is just coming from another core.
    pauses: u32,
    /// Longest and shortest wait awake.
    awake_max: Duration,
    awake_min: Duration,
    /// A yield that took longer went to somebody who computes.
    crowded: Duration,
}

/// Looks at a word of memory.
const MEMORY: Habit = Habit {
    pauses: 32,
    awake_max: Duration::from_micros(50),
    awake_min: Duration::from_micros(3),
    crowded: Duration::from_micros(150),
};

/// Looks by a system call, and a wake-up costs the other side one more: many clients of one daemon that only
/// yield to each other get more done than if each slept, so they wait longer, and a yield to all of them in turn is no crowd.
const CALLS: Habit = Habit {
    pauses: 0,
    awake_max: Duration::from_micros(400),
    awake_min: Duration::ZERO,
    crowded: Duration::from_millis(1),
};

/// The same for what others have to work on first. They need the cores more than who waits.
const WORK: Habit = Habit { awake_max: Duration::from_micros(50), ..CALLS };

/// What one waiter has learned about waiting.
#[derive(Debug)]
pub struct Spin {
    habit: &'static Habit,
    awake: Duration,
    in_vain: u32,
    /// Waits left that do not try.
    asleep: u32,
    penalty: u32,
}

impl Default for Spin {
    fn default() -> Spin {
        Spin::with(&MEMORY)
    }
}

impl Spin {
    /// For looks that are system calls.
    pub fn of_calls() -> Spin {
        Spin::with(&CALLS)
    }

    /// For looks that are system calls, at what takes work.
    pub fn of_work() -> Spin {
        Spin::with(&WORK)
    }

    fn with(habit: &'static Habit) -> Spin {
        Spin { habit, awake: habit.awake_max, in_vain: 0, asleep: 0, penalty: CROWDED_WAITS }
    }

    /// Asks `done` again and again for a while; its answer, or `None` when it is time to sleep.
    pub fn until<T>(&mut self, mut done: impl FnMut() -> Option<T>) -> Option<T> {
        if self.asleep > 0 {
            self.asleep -= 1;
            return done();
        }
        for _ in 0..self.habit.pauses {
            if let Some(value) = done() {
                return Some(value);
            }
            std::hint::spin_loop();
        }
        self.yielding(done)
    }

    fn yielding<T>(&mut self, mut done: impl FnMut() -> Option<T>) -> Option<T> {
        if self.awake.is_zero() {
            let found = done();
            if found.is_none() {
                self.vain();
            }
            return found;
        }
        let start = Instant::now();
        let mut before = start;
        loop {
            std::thread::yield_now();
            let found = done();
            let now = Instant::now();
            if now - before > self.habit.crowded {
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
        self.awake = (self.awake * 2).clamp(STEP, self.habit.awake_max);
        self.in_vain = 0;
        self.penalty = CROWDED_WAITS;
    }

    fn vain(&mut self) {
        self.in_vain += 1;
        let again = self.in_vain.is_multiple_of(TRY_AGAIN);
        let shorter = if self.awake > STEP { self.awake / 2 } else { Duration::ZERO };
        self.awake = if again { self.habit.awake_max } else { shorter.max(self.habit.awake_min) };
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
        let mut spin = Spin::default();
        for _ in 0..8 {
            spin.vain();
        }
        assert_eq!(spin.awake, MEMORY.awake_min);
        for _ in 8..TRY_AGAIN {
            spin.vain();
        }
        assert_eq!(spin.awake, MEMORY.awake_max);
        assert!(looks(&mut spin) > MEMORY.pauses, "it yields after the pauses");
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

    #[test]
    fn calls_that_wait_in_vain_end_with_one_look_and_then_a_long_one() {
        let mut spin = Spin::of_calls();
        for _ in 0..10 {
            spin.vain();
        }
        assert!(spin.awake.is_zero());
        assert_eq!(looks(&mut spin), 1, "no look is for nothing");
        for _ in spin.in_vain..TRY_AGAIN {
            spin.vain();
        }
        assert_eq!(spin.awake, CALLS.awake_max);
        spin.awake = Duration::ZERO;
        spin.paid_off();
        assert_eq!(spin.awake, STEP, "it grows again from nothing");
    }
}
