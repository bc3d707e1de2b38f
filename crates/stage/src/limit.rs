//! Limits on bytes, and on bytes per second.

use crate::end::EndResult;
use crate::sync::lock;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Seconds of the rate that may be saved up while nothing is sent.
const BURST_SECONDS: f64 = 0.1;

/// Limits that several copies share, and that their caller keeps.
pub trait Charge: Send + Sync {
    /// Called before `bytes` are put at a destination. May wait, for the sake of a common rate. An
    /// error (`EDQUOT`) keeps them away from there.
    fn charge(&self, bytes: u64) -> EndResult<()>;

    /// A file has got its final name: in the root of the end it was put at, or somewhere below. Told by who serves an
    /// end to other nodes.
    fn named(&self, _in_root: Option<&[u8]>) {}

    /// There is something that charging counts: what is charged twice is a mistake.
    fn counts(&self) -> bool {
        true
    }
}

/// Shared limits as an option.
#[derive(Clone)]
pub struct Charged(pub Arc<dyn Charge>);

impl fmt::Debug for Charged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Charged(..)")
    }
}

/// A token bucket that may go into debt: whoever takes more than there is waits the debt
/// off, so blocks larger than the bucket pass as well.
pub struct Bucket {
    rate: f64,
    state: Mutex<State>,
}

struct State {
    tokens: f64,
    last: Instant,
}

impl Bucket {
    pub fn new(bytes_per_second: u64, now: Instant) -> Bucket {
        Bucket { rate: bytes_per_second.max(1) as f64, state: Mutex::new(State { tokens: 0.0, last: now }) }
    }

    /// Takes `bytes`; how long to wait before going on.
    pub fn take(&self, bytes: u64, now: Instant) -> Duration {
        let mut state = lock(&self.state);
        let earned = now.saturating_duration_since(state.last).as_secs_f64() * self.rate;
        state.last = now;
        state.tokens = (state.tokens + earned).min(self.rate * BURST_SECONDS) - bytes as f64;
        Duration::from_secs_f64((-state.tokens).max(0.0) / self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_holds_over_time_and_idle_time_saves_up_little() {
        let start = Instant::now();
        let bucket = Bucket::new(1000, start);
        assert_eq!(bucket.take(500, start), Duration::from_millis(500));
        assert_eq!(bucket.take(500, start), Duration::from_secs(1));
        let later = start + Duration::from_secs(100);
        assert_eq!(bucket.take(100, later), Duration::ZERO);
        assert_eq!(bucket.take(1000, later), Duration::from_secs(1));
    }
}
