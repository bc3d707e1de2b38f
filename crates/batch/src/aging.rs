//! The clock by which pools age that outlive their jobs. Hooks are short processes: how far it has come stands in the book.

use crate::book::{Book, Result};
use rusqlite::{OptionalExtension, params};
use tidepool_types::Aging;

pub(crate) const TABLES: &str = "
CREATE TABLE Aging(One INTEGER PRIMARY KEY CHECK(One = 1), At INTEGER NOT NULL, Boot TEXT NOT NULL, Up INTEGER NOT NULL);
";

/// What clocks say at one moment, in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clocks<'a> {
    /// Since 1970; it may have been set.
    pub wall: u64,
    /// Since the machine was started, and what tells that start from others.
    pub up: u64,
    pub boot: &'a str,
}

impl Book {
    /// The clock that pools age by, which has come as far as the time that has passed since this was asked last lets it. Time in which the
    /// machine was off does not count: nobody can tell it from a clock that was set.
    pub fn age(&self, clocks: Clocks<'_>) -> Result<Aging> {
        self.change(|t| {
            let row =
                |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get(1)?, row.get::<_, i64>(2)?));
            let last: Option<(i64, String, i64)> =
                t.query_row("SELECT At, Boot, Up FROM Aging", [], row).optional()?;
            let (mut clock, passed) = match last {
                Some((at, boot, up)) if boot == clocks.boot => {
                    (Aging::new(at as u64), clocks.up.saturating_sub(up as u64))
                }
                Some((at, ..)) => (Aging::new(at as u64), 0),
                None => (Aging::new(clocks.wall), 0),
            };
            clock.look(passed, clocks.wall);
            let values = params![clock.at() as i64, clocks.boot, clocks.up as i64];
            t.execute("INSERT OR REPLACE INTO Aging(One, At, Boot, Up) VALUES(1, ?1, ?2, ?3)", values)?;
            Ok(clock)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400_000;
    const NOW: u64 = 20_000 * DAY;

    #[test]
    fn pools_age_by_time_that_has_passed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.db");
        // Each look is another process's.
        let age = |wall, up, boot| Book::open(&path).unwrap().age(Clocks { wall, up, boot }).unwrap();
        assert_eq!(age(NOW, 5000, "a").at(), NOW);
        assert_eq!(age(NOW + 1000, 6000, "a").at(), NOW + 1000);
        // Ten years ahead, an hour later.
        let jumped = age(NOW + 3650 * DAY, 3_606_000, "a");
        assert_eq!(jumped.at(), NOW + 1000 + DAY);
        assert!(!jumped.is_over(NOW + 2 * DAY) && jumped.is_over(NOW + DAY));
        // Whoever starts the machine again and again comes no further.
        for boot in ["b", "c", "d"] {
            assert_eq!(age(NOW + 3650 * DAY, 4_000_000, boot).at(), jumped.at());
        }
        // Set right, nothing is over that is not by the clock.
        assert!(!age(NOW + 2000, 4_001_000, "d").is_over(NOW + DAY));
        assert_eq!(age(NOW + 3 * DAY, 4_001_000 + DAY, "d").at(), NOW + 3 * DAY);
    }
}
