//! Wall clock and monotonic clock.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidepool_types::TimeSpec;

/// Where time comes from.
pub trait Clock: Send + Sync {
    /// Wall clock: for times that people and programs see. It may jump.
    fn now(&self) -> TimeSpec;
    /// Time since an arbitrary start; it never goes back. For timeouts and durations.
    fn monotonic(&self) -> Duration;
}

/// The clocks of the operating system.
#[derive(Clone, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    pub fn new() -> SystemClock {
        SystemClock { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> TimeSpec {
        timespec(SystemTime::now())
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
}

fn timespec(time: SystemTime) -> TimeSpec {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => {
            TimeSpec { sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nsec: since.subsec_nanos() }
        }
        // A clock before 1970. `nsec` counts upwards from `sec`, so round the seconds down.
        Err(before) => {
            let before = before.duration();
            let (sec, nsec) = (i64::try_from(before.as_secs()).unwrap_or(i64::MAX), before.subsec_nanos());
            match nsec {
                0 => TimeSpec { sec: -sec, nsec: 0 },
                _ => TimeSpec { sec: -sec - 1, nsec: 1_000_000_000 - nsec },
            }
        }
    }
}

/// A clock that moves only when told to. Clones share the time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    time: Arc<Mutex<ManualTime>>,
}

#[derive(Debug, Default)]
struct ManualTime {
    now: TimeSpec,
    monotonic: Duration,
}

impl ManualClock {
    pub fn new(now: TimeSpec) -> ManualClock {
        ManualClock { time: Arc::new(Mutex::new(ManualTime { now, monotonic: Duration::ZERO })) }
    }

    /// Moves both clocks on.
    pub fn advance(&self, by: Duration) {
        let mut time = self.lock();
        time.monotonic += by;
        let nsec = time.now.nsec + by.subsec_nanos();
        time.now = TimeSpec {
            sec: time.now.sec
                + i64::try_from(by.as_secs()).expect("tests stay within 2^63 seconds")
                + i64::from(nsec / 1_000_000_000),
            nsec: nsec % 1_000_000_000,
        };
    }

    /// Makes the wall clock jump; the monotonic clock does not notice.
    pub fn set_now(&self, now: TimeSpec) {
        self.lock().now = now;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ManualTime> {
        self.time.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> TimeSpec {
        self.lock().now
    }

    fn monotonic(&self) -> Duration {
        self.lock().monotonic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_time_carries_nanoseconds() {
        let clock = ManualClock::new(TimeSpec { sec: 10, nsec: 900_000_000 });
        let same = clock.clone();
        clock.advance(Duration::from_millis(1200));
        assert_eq!(same.now(), TimeSpec { sec: 12, nsec: 100_000_000 });
        assert_eq!(same.monotonic(), Duration::from_millis(1200));
        clock.set_now(TimeSpec { sec: 1, nsec: 0 });
        assert_eq!(same.monotonic(), Duration::from_millis(1200));
    }

    #[test]
    fn times_before_the_epoch_round_down() {
        let half = UNIX_EPOCH - Duration::from_millis(500);
        assert_eq!(timespec(half), TimeSpec { sec: -1, nsec: 500_000_000 });
        assert_eq!(timespec(UNIX_EPOCH - Duration::from_secs(2)), TimeSpec { sec: -2, nsec: 0 });
    }

    #[test]
    fn system_clock_runs_forward() {
        let clock = SystemClock::new();
        let (first, second) = (clock.monotonic(), clock.monotonic());
        assert!(second >= first);
        assert!(clock.now().sec > 1_600_000_000);
    }
}
