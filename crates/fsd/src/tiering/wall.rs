//! The time since 1970 for what daemons tell each other, from a clock that does not jump. Pure.

pub const NS_OF_MS: u64 = 1_000_000;
/// The system's clock was set when it is off by so much.
const SET_MS: u64 = 500;

/// Keeps the two clocks together: a moment of one is always the same moment of the other, unless the system's clock is set.
#[derive(Default, Debug)]
pub struct WallClock {
    ahead_ms: Option<u64>,
}

impl WallClock {
    /// Milliseconds since 1970 at `now_ns` of the other clock; `system_ms` by the system's clock.
    pub fn at(&mut self, now_ns: u64, system_ms: u64) -> u64 {
        let own_ms = now_ns / NS_OF_MS;
        let known = self.ahead_ms.map(|ahead| own_ms + ahead);
        match known.filter(|known| known.abs_diff(system_ms) < SET_MS) {
            Some(known) => known,
            None => {
                self.ahead_ms = Some(system_ms.saturating_sub(own_ms));
                system_ms
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_stay_where_they_are_unless_the_clock_is_set() {
        let mut wall = WallClock::default();
        assert_eq!(wall.at(5_900_000, 1_000_000), 1_000_000);
        assert_eq!(wall.at(6_000_000, 1_000_000), 1_000_001, "one clock has ticked, the other not yet");
        assert_eq!(wall.at(1_005_000_000, 1_001_499), 1_001_000);
        assert_eq!(wall.at(1_005_000_000, 1_001_500), 1_001_500);
        assert_eq!(wall.at(1_006_000_000, 900_000), 900_000);
    }
}
