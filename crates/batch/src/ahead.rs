//! Stagings ahead of their jobs, in the book (`docs/formats/22-job-book.md`): what later ones learn from.
//!
//! A staging is noted from its first look at Slurm's plan on, look by look, since a hook may be killed. It counts
//! as soon as its data were there and its job could start.

use crate::book::{Book, BookError};
use rusqlite::{Row, params};

/// Stagings that are kept; those that come to nothing are among them.
const KEPT_MAX: i64 = 512;
/// Looks that are noted of one: more than a trigger remembers. Later ones are not.
const LOOKS_MAX: i64 = 256;

pub(crate) const TABLES: &str = "
CREATE TABLE Ahead(
  Number INTEGER PRIMARY KEY AUTOINCREMENT, Job INTEGER NOT NULL, Estimate INTEGER, Began INTEGER, Took INTEGER, Start INTEGER);
CREATE TABLE AheadLook(Number INTEGER NOT NULL, At INTEGER NOT NULL, Planned INTEGER NOT NULL, PRIMARY KEY(Number, At)) WITHOUT ROWID;
";

/// A staging that came to an end, and whose job could start. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedAhead {
    pub estimate_ms: Option<u64>,
    pub began: u64,
    pub took_ms: u64,
    /// When the job could start, data or not.
    pub start: u64,
    /// When somebody looked, and when the job, or its nodes, were to be free then.
    pub looks: Vec<(u64, u64)>,
}

impl Book {
    /// A staging ahead of a job is being waited for; its number.
    pub fn plan_ahead(&self, job: u32, estimate_ms: Option<u64>) -> Result<i64, BookError> {
        self.change(|t| {
            let estimate = estimate_ms.map(|ms| ms as i64);
            t.execute("INSERT INTO Ahead(Job, Estimate) VALUES(?1, ?2)", params![job, estimate])?;
            let number = t.last_insert_rowid();
            for table in ["Ahead", "AheadLook"] {
                t.execute(&format!("DELETE FROM {table} WHERE Number <= ?1"), [number - KEPT_MAX])?;
            }
            Ok(number)
        })
    }

    /// At `at` the job was to start at `planned`.
    pub fn look_ahead(&self, number: i64, at: u64, planned: u64) -> Result<(), BookError> {
        let put = "INSERT OR REPLACE INTO AheadLook SELECT ?1, ?2, ?3
            WHERE (SELECT count(*) FROM AheadLook WHERE Number = ?1) < ?4";
        self.change(|t| t.execute(put, params![number, at as i64, planned as i64, LOOKS_MAX])).map(drop)
    }

    /// Its data were there. `start` is when the nodes were free, if they were by then.
    pub fn staged_ahead(
        &self,
        number: i64,
        (began, took_ms): (u64, u64),
        start: Option<u64>,
    ) -> Result<(), BookError> {
        let set = "UPDATE Ahead SET Began = ?2, Took = ?3, Start = ?4 WHERE Number = ?1";
        let start = start.map(|start| start as i64);
        self.change(|t| t.execute(set, params![number, began as i64, took_ms as i64, start])).map(drop)
    }

    /// A job starts: if its data were there before its nodes were free, that is now.
    pub fn started_ahead(&self, job: u32, now: u64) -> Result<(), BookError> {
        let set = "UPDATE Ahead SET Start = ?2 WHERE Took IS NOT NULL AND Start IS NULL
            AND Number = (SELECT max(Number) FROM Ahead WHERE Job = ?1)";
        self.change(|t| t.execute(set, params![job, now as i64])).map(drop)
    }

    /// The last ones that came to an end, in the order in which they did.
    pub fn stagings_ahead(&self, count_max: usize) -> Result<Vec<StagedAhead>, BookError> {
        let one = |row: &Row<'_>| {
            let number = |at: usize| Ok::<_, rusqlite::Error>(row.get::<_, i64>(at)? as u64);
            let estimate_ms = row.get::<_, Option<i64>>(1)?.map(|ms| ms as u64);
            let (began, took_ms, start) = (number(2)?, number(3)?, number(4)?);
            Ok((row.get(0)?, StagedAhead { estimate_ms, began, took_ms, start, looks: Vec::new() }))
        };
        let last = "SELECT Number, Estimate, Began, Took, Start FROM Ahead WHERE Start IS NOT NULL
            ORDER BY max(Start, Began + Took / 1000) DESC, Number DESC LIMIT ?1";
        let mut all: Vec<(i64, StagedAhead)> = self.many(last, [count_max as i64], one)?;
        all.reverse();
        let look = |row: &Row<'_>| Ok((row.get::<_, i64>(0)? as u64, row.get::<_, i64>(1)? as u64));
        for (number, staging) in &mut all {
            let of = "SELECT At, Planned FROM AheadLook WHERE Number = ?1 ORDER BY At";
            staging.looks = self.many(of, [*number], look)?;
        }
        Ok(all.into_iter().map(|(_, staging)| staging).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book() -> (tempfile::TempDir, Book) {
        let dir = tempfile::tempdir().unwrap();
        let book = Book::open(&dir.path().join("jobs.db")).unwrap();
        (dir, book)
    }

    #[test]
    fn what_came_to_an_end_is_told_in_that_order() {
        let (_dir, book) = book();
        let [late, unended, in_time] = [5, 6, 7].map(|job| book.plan_ahead(job, Some(1500)).unwrap());
        for (number, at, planned) in [(late, 10, 90), (late, 20, 60), (in_time, 10, 40), (unended, 10, 40)] {
            book.look_ahead(number, at, planned).unwrap();
        }
        book.staged_ahead(late, (30, 50_000), Some(60)).unwrap();
        book.staged_ahead(in_time, (12, 5_000), None).unwrap();
        assert_eq!(book.stagings_ahead(9).unwrap().len(), 1);
        // Its nodes were free before; a job that was not staged ahead; the one whose start was not known.
        for job in [5, 4, 7] {
            book.started_ahead(job, 40).unwrap();
        }
        let first = StagedAhead {
            estimate_ms: Some(1500),
            began: 12,
            took_ms: 5_000,
            start: 40,
            looks: vec![(10, 40)],
        };
        let second = StagedAhead {
            estimate_ms: Some(1500),
            began: 30,
            took_ms: 50_000,
            start: 60,
            looks: vec![(10, 90), (20, 60)],
        };
        assert_eq!(book.stagings_ahead(9).unwrap(), [first, second.clone()]);
        assert_eq!(book.stagings_ahead(1).unwrap(), [second]);
        // Queued once more, the job does not end the earlier staging again.
        book.plan_ahead(7, None).unwrap();
        book.started_ahead(7, 99).unwrap();
        assert!(book.stagings_ahead(9).unwrap().iter().all(|staging| staging.start < 99));
    }

    #[test]
    fn no_more_is_kept_than_is_of_use() {
        let (_dir, book) = book();
        let first = book.plan_ahead(1, None).unwrap();
        for at in 0..LOOKS_MAX as u64 + 10 {
            book.look_ahead(first, at, 9).unwrap();
        }
        book.staged_ahead(first, (1, 1), Some(2)).unwrap();
        assert_eq!(book.stagings_ahead(9).unwrap()[0].looks.len(), LOOKS_MAX as usize);
        let second = book.plan_ahead(2, None).unwrap();
        book.staged_ahead(second, (1, 1), Some(2)).unwrap();
        let others = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < ?1)
            INSERT INTO Ahead(Job) SELECT 3 FROM n";
        book.change(|t| t.execute(others, [KEPT_MAX - 2])).unwrap();
        assert_eq!(book.stagings_ahead(9).unwrap().len(), 2);
        book.plan_ahead(4, None).unwrap();
        assert_eq!(book.stagings_ahead(9).unwrap().len(), 1, "the first is forgotten");
        let looks: i64 = book.many("SELECT count(*) FROM AheadLook", [], |row| row.get(0)).unwrap()[0];
        assert_eq!(looks, 0);
    }
}
