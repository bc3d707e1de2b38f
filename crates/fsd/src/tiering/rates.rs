//! How much is moved in a second, from counters that are looked at now and then. Pure.

/// Rates are of this long a time at least.
const OVER_NS: u64 = 1_000_000_000;

/// What programs write, what they read, and what is flushed.
#[derive(Default, Debug)]
pub struct Rates {
    since_ns: u64,
    then: [u64; 3],
    per_s: [u64; 3],
}

impl Rates {
    /// `moved`: bytes since the start of the daemon.
    pub fn observe(&mut self, now_ns: u64, moved: [u64; 3]) {
        let passed_ns = now_ns.saturating_sub(self.since_ns);
        if passed_ns < OVER_NS {
            return;
        }
        let rate = |at: usize| {
            let bytes = u128::from(moved[at].saturating_sub(self.then[at]));
            u64::try_from(bytes * u128::from(OVER_NS) / u128::from(passed_ns)).unwrap_or(u64::MAX)
        };
        self.per_s = [rate(0), rate(1), rate(2)];
        (self.since_ns, self.then) = (now_ns, moved);
    }

    /// Of the last second that was looked at whole, in bytes/s.
    pub fn per_s(&self) -> [u64; 3] {
        self.per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_last_second() {
        let s = OVER_NS;
        let mut rates = Rates::default();
        rates.observe(s, [0, 0, 0]);
        rates.observe(s + s / 2, [1000, 0, 0]);
        assert_eq!(rates.per_s(), [0; 3], "it is not over");
        rates.observe(2 * s, [1000, 2000, 0]);
        assert_eq!(rates.per_s(), [1000, 2000, 0]);
        rates.observe(4 * s, [1000, 2000, 500]);
        assert_eq!(rates.per_s(), [0, 0, 250]);
    }
}
