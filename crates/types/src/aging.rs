//! Time for what is removed when it is old.

/// How many times faster than time passes a clock is followed that is ahead.
pub const CATCH_UP: u64 = 24;

/// A wall clock that is not believed at once, in milliseconds since 1970.
///
/// Who removes something because its time is over must not do so because somebody has set a clock. This one follows the wall clock when that
/// goes as time passes. When the wall clock is ahead - it was set, or nobody has looked for a while - it is followed [`CATCH_UP`] times as
/// fast as time passes: what was to be kept for six weeks is there for almost two days more, in which somebody may notice. When the
/// wall clock is behind, nothing is over until it is right again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aging {
    /// Never goes back.
    at: u64,
    wall: u64,
}

impl Aging {
    /// One that starts at a time that somebody believes.
    pub fn new(at: u64) -> Aging {
        Aging { at, wall: at }
    }

    /// So much time has passed since the last look, and now it is `wall`.
    pub fn look(&mut self, passed: u64, wall: u64) {
        self.wall = wall;
        self.at = self.at.max(wall.min(self.at.saturating_add(passed.saturating_mul(CATCH_UP))));
    }

    /// As far as it has come: what the next one starts at.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// By how much the wall clock is ahead.
    pub fn lag(&self) -> u64 {
        self.wall.saturating_sub(self.at)
    }

    pub fn is_over(&self, end: u64) -> bool {
        end <= self.at.min(self.wall)
    }

    /// The end that was meant by somebody who reads `end` off the same wall clock: where that is behind, it is as far ahead of this one.
    pub fn meant(&self, end: u64) -> u64 {
        match end.checked_sub(self.wall) {
            Some(span) => end.max(self.at.saturating_add(span)),
            None => end,
        }
    }

    /// Time that has to pass before `end` can be over, as long as the wall clock goes on from where it is.
    pub fn left(&self, end: u64) -> u64 {
        end.saturating_sub(self.at) / CATCH_UP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400_000;
    const WEEK: u64 = 7 * DAY;
    const START: u64 = 20_000 * DAY;

    /// Seconds until something is over, and no more than `most`.
    fn passes(clock: &mut Aging, end: u64, wall: impl Fn(u64) -> u64, most: u64) -> u64 {
        (0..most)
            .find(|second| {
                clock.look(1000, wall(*second));
                clock.is_over(end)
            })
            .unwrap_or(most)
    }

    #[test]
    fn a_clock_that_goes_as_time_passes_is_believed() {
        let mut clock = Aging::new(START);
        let seconds = passes(&mut clock, START + DAY, |s| START + s * 1000, 100_000);
        assert_eq!((seconds, clock.lag()), (86_400, 0));
    }

    #[test]
    fn a_jump_ahead_takes_its_time() {
        let mut clock = Aging::new(START);
        let seconds = passes(&mut clock, START + 6 * WEEK, |s| START + 3650 * DAY + s * 1000, 1_000_000);
        assert_eq!(seconds + 1, 6 * 7 * 3600, "a 24th of six weeks");
        // Set back again, nothing is over that is not by the clock.
        assert!(!Aging { wall: START, ..clock }.is_over(START + 1));
        clock.look(0, START + DAY);
        assert!(clock.is_over(START + DAY) && !clock.is_over(START + DAY + 1));
    }

    #[test]
    fn a_clock_that_is_behind_ends_nothing_and_is_forgotten() {
        let mut clock = Aging::new(START);
        clock.look(1000, 0);
        assert!(!clock.is_over(START));
        // Six weeks are six weeks, whatever the clock says when they begin.
        let end = clock.meant(6 * WEEK);
        assert_eq!(end, START + 6 * WEEK);
        clock.look(1000, START + 2000);
        assert!(clock.is_over(START + 2000) && !clock.is_over(end));
        assert_eq!(clock.meant(START + WEEK), START + WEEK);
        assert_eq!(clock.meant(5), 5, "what is over is over");
    }

    #[test]
    fn looks_without_time_between_them_bring_nothing() {
        let mut clock = Aging::new(START);
        for _ in 0..1_000_000 {
            clock = Aging::new(clock.at());
            clock.look(0, START + WEEK);
        }
        assert_eq!((clock.at(), clock.lag()), (START, WEEK));
        assert_eq!(clock.left(START + DAY), DAY / 24);
        clock.look(u64::MAX, START + WEEK);
        assert_eq!(clock.at(), START + WEEK);
    }
}
