//! Pools that outlive their jobs, in the book (`docs/formats/22-job-book.md`).
//!
//! ```text
//!   new ─▶ starting ─▶ up ⇄ rest ─▶ ending ─▶ (forgotten)
//!    ▲        │              │
//!    └────────┘            lost
//! ```
//! Who changes what is on the nodes holds the pool's lock meanwhile; the states say where that was left by who was killed.

use crate::book::{Book, BookError, ENDED};
use rusqlite::{OptionalExtension, Row, Transaction, params};
use serde::Serialize;
use std::fmt;

pub(crate) const TABLES: &str = "
CREATE TABLE Pool(
  Pool INTEGER PRIMARY KEY AUTOINCREMENT, Name TEXT NOT NULL, Uid INTEGER NOT NULL, Gid INTEGER, Workflow INTEGER,
  Request TEXT NOT NULL, Nodes TEXT NOT NULL DEFAULT '', Store TEXT NOT NULL DEFAULT '', State TEXT NOT NULL,
  Reason TEXT NOT NULL DEFAULT '', Used INTEGER, Made INTEGER NOT NULL, LastUse INTEGER NOT NULL);
CREATE INDEX PoolsOfUser ON Pool(Uid, Name);
CREATE TABLE PoolUser(
  Pool INTEGER NOT NULL, Job INTEGER NOT NULL, Nodes TEXT NOT NULL DEFAULT '', PRIMARY KEY(Pool, Job)) WITHOUT ROWID;
CREATE INDEX PoolsOfJob ON PoolUser(Job);
";

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolState {
    /// Jobs have said it, and none has started it.
    New,
    /// The first one starts it: there are no data of anybody's.
    Starting,
    /// Its daemons run.
    Up,
    /// Its data are on its nodes, and nothing runs.
    Rest,
    /// Some of its data were not there when it was to be started.
    Lost,
    /// It is being removed.
    Ending,
}

/// Every state with its word.
pub const POOL_STATES: [(&str, PoolState); 6] = [
    ("new", PoolState::New),
    ("starting", PoolState::Starting),
    ("up", PoolState::Up),
    ("rest", PoolState::Rest),
    ("lost", PoolState::Lost),
    ("ending", PoolState::Ending),
];

impl PoolState {
    pub fn word(self) -> &'static str {
        POOL_STATES.iter().find(|(_, state)| *state == self).map_or("", |(word, _)| word)
    }

    fn parse(word: &str) -> Option<PoolState> {
        POOL_STATES.iter().find(|(known, _)| *known == word).map(|(_, state)| *state)
    }
}

impl fmt::Display for PoolState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What a job that is submitted says of a pool that outlives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPool {
    pub name: String,
    /// It belongs to the user, not to the job's workflow.
    pub is_campaign: bool,
    /// The directive, without its lifetime.
    pub request: String,
}

/// A pool that outlives its jobs. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LastingPool {
    pub pool: u32,
    pub name: String,
    pub uid: u32,
    pub gid: Option<u32>,
    /// The workflow that it ends with; none for those of campaigns, 0 when the number has been given to another workflow.
    pub workflow: Option<u32>,
    /// What the first job has said of it.
    pub request: String,
    /// Those with its data, in the order of its daemons.
    pub nodes: Vec<String>,
    /// The directory of every node that its stores are in.
    pub store: String,
    pub state: PoolState,
    /// Why it is lost, or not removed yet.
    pub reason: String,
    /// Bytes in it when it was last put to rest.
    pub used: Option<u64>,
    pub made: u64,
    pub last_use: u64,
}

/// A job that uses a pool, or will.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PoolUser {
    pub job: u32,
    /// Those from which it uses it; none as long as it does not.
    pub nodes: Vec<String>,
}

impl PoolUser {
    pub fn is_active(&self) -> bool {
        !self.nodes.is_empty()
    }
}

type Result<T> = std::result::Result<T, BookError>;

const POOL: &str = "SELECT Pool.Pool, Name, Uid, Gid, Workflow, Request, Pool.Nodes, Store, State, Reason, Used, Made, LastUse FROM Pool";

fn split(names: &str) -> Vec<String> {
    names.split(',').filter(|name| !name.is_empty()).map(String::from).collect()
}

fn pool_of(row: &Row<'_>) -> rusqlite::Result<LastingPool> {
    let word: String = row.get(8)?;
    Ok(LastingPool {
        pool: row.get(0)?,
        name: row.get(1)?,
        uid: row.get(2)?,
        gid: row.get(3)?,
        workflow: row.get(4)?,
        request: row.get(5)?,
        nodes: split(&row.get::<_, String>(6)?),
        store: row.get(7)?,
        state: PoolState::parse(&word).unwrap_or(PoolState::Lost),
        reason: row.get(9)?,
        used: row.get::<_, Option<i64>>(10)?.map(|bytes| bytes as u64),
        made: row.get::<_, i64>(11)? as u64,
        last_use: row.get::<_, i64>(12)? as u64,
    })
}

/// Notes what a job that is added says: the pools that it means, which it makes if nobody has.
pub(crate) fn add(
    t: &Transaction<'_>,
    (job, uid, workflow): (u32, u32, Option<u32>),
    pools: &[NewPool],
    now: u64,
) -> rusqlite::Result<()> {
    t.execute("DELETE FROM PoolUser WHERE Job = ?1", [job])?;
    for new in pools {
        let of = if new.is_campaign { None } else { workflow };
        if of.is_none() && !new.is_campaign {
            continue;
        }
        let found: Option<u32> = t
            .query_row(
                "SELECT Pool FROM Pool WHERE Uid = ?1 AND Name = ?2 AND Workflow IS ?3 AND State <> 'ending'",
                params![uid, new.name, of],
                |row| row.get(0),
            )
            .optional()?;
        let pool = match found {
            Some(pool) => pool,
            None => {
                t.execute(
                    "INSERT INTO Pool(Name, Uid, Workflow, Request, State, Made, LastUse) VALUES(?1, ?2, ?3, ?4, 'new', ?5, ?5)",
                    params![new.name, uid, of, new.request, now as i64],
                )?;
                t.last_insert_rowid() as u32
            }
        };
        t.execute("INSERT OR REPLACE INTO PoolUser(Pool, Job) VALUES(?1, ?2)", [pool, job])?;
    }
    Ok(())
}

/// A workflow takes the number of an old one: pools of that one are nobody's but their owner's.
pub(crate) fn disown(t: &Transaction<'_>, workflow: u32) -> rusqlite::Result<()> {
    t.execute("UPDATE Pool SET Workflow = 0 WHERE Workflow = ?1", [workflow]).map(drop)
}

impl Book {
    pub fn pool(&self, pool: u32) -> Result<Option<LastingPool>> {
        Ok(self.many(&format!("{POOL} WHERE Pool.Pool = ?1"), [pool], pool_of)?.pop())
    }

    pub fn pools(&self) -> Result<Vec<LastingPool>> {
        self.many(&format!("{POOL} ORDER BY Pool.Pool"), [], pool_of)
    }

    /// The pool that a user's jobs of a workflow, or of none, mean by a name.
    pub fn pool_named(&self, uid: u32, name: &str, workflow: Option<u32>) -> Result<Option<LastingPool>> {
        let sql = format!("{POOL} WHERE Uid = ?1 AND Name = ?2 AND Workflow IS ?3 AND State <> 'ending'");
        Ok(self.many(&sql, params![uid, name, workflow], pool_of)?.pop())
    }

    /// The pool that a job means by a name.
    pub fn pool_of_job(&self, job: u32, name: &str) -> Result<Option<LastingPool>> {
        let sql = format!(
            "{POOL} JOIN PoolUser ON PoolUser.Pool = Pool.Pool WHERE PoolUser.Job = ?1 AND Name = ?2"
        );
        Ok(self.many(&sql, params![job, name], pool_of)?.pop())
    }

    /// Jobs that use a pool, or will: those that have not ended.
    pub fn pool_users(&self, pool: u32) -> Result<Vec<PoolUser>> {
        let user = |row: &Row<'_>| Ok(PoolUser { job: row.get(0)?, nodes: split(&row.get::<_, String>(1)?) });
        let sql = format!(
            "SELECT PoolUser.Job, PoolUser.Nodes FROM PoolUser JOIN Job ON Job.Job = PoolUser.Job
            WHERE Pool = ?1 AND Phase NOT IN {ENDED} ORDER BY PoolUser.Job"
        );
        self.many(&sql, [pool], user)
    }

    /// A job uses a pool from these nodes; from none: not any more.
    pub fn use_pool(&self, pool: u32, job: u32, nodes: &[String]) -> Result<()> {
        let put = "INSERT OR REPLACE INTO PoolUser VALUES(?1, ?2, ?3)";
        self.change(|t| t.execute(put, params![pool, job, nodes.join(",")])).map(drop)
    }

    pub fn nodes_of_pool_user(&self, pool: u32, job: u32) -> Result<Vec<String>> {
        let sql = "SELECT Nodes FROM PoolUser WHERE Pool = ?1 AND Job = ?2";
        let found = self.many(sql, [pool, job], |row| row.get::<_, String>(0))?;
        Ok(found.first().map(|names| split(names)).unwrap_or_default())
    }

    /// Where a pool is going to be.
    pub fn place_pool(&self, pool: u32, gid: u32, nodes: &[String], store: &str) -> Result<()> {
        self.change(|t| {
            t.execute(
                "UPDATE Pool SET Gid = ?2, Nodes = ?3, Store = ?4, State = 'starting', Reason = '' WHERE Pool = ?1",
                params![pool, gid, nodes.join(","), store],
            )
        })
        .map(drop)
    }

    pub fn set_pool(&self, pool: u32, state: PoolState, reason: &str, now: u64) -> Result<()> {
        let set = "UPDATE Pool SET State = ?2, Reason = ?3, LastUse = ?4 WHERE Pool = ?1";
        self.change(|t| t.execute(set, params![pool, state.word(), crate::book::cut(reason), now as i64]))
            .map(drop)
    }

    pub fn set_pool_used(&self, pool: u32, bytes: u64) -> Result<()> {
        self.change(|t| t.execute("UPDATE Pool SET Used = ?2 WHERE Pool = ?1", params![pool, bytes as i64]))
            .map(drop)
    }

    /// Nothing of it is left anywhere.
    pub fn drop_pool(&self, pool: u32) -> Result<()> {
        self.change(|t| {
            t.execute("DELETE FROM PoolUser WHERE Pool = ?1", [pool])?;
            t.execute("DELETE FROM Pool WHERE Pool = ?1", [pool])
        })
        .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NewJob, Phase};

    fn book() -> (tempfile::TempDir, Book) {
        let dir = tempfile::tempdir().unwrap();
        let book = Book::open(&dir.path().join("jobs.db")).unwrap();
        (dir, book)
    }

    fn says(name: &str, is_campaign: bool) -> NewPool {
        NewPool { name: name.into(), is_campaign, request: format!("#TIDEPOOL pool name={name}") }
    }

    fn job(job: u32, uid: u32, after: &[u32], pools: Vec<NewPool>) -> NewJob {
        let starts = after.is_empty().then(String::new);
        NewJob { job, uid, script: String::new(), starts, after: after.into(), is_end: false, pools }
    }

    #[test]
    fn jobs_of_a_workflow_mean_the_same_pool() {
        let (_dir, book) = book();
        book.add(&job(5, 7, &[], vec![says("a", false)]), 10).unwrap();
        book.add(&job(6, 7, &[5], vec![says("a", false), says("b", false)]), 11).unwrap();
        book.add(&job(9, 7, &[], vec![says("a", false)]), 12).unwrap();
        let of = |job: u32, name: &str| book.pool_of_job(job, name).unwrap().map(|pool| pool.pool);
        assert_eq!((of(5, "a"), of(6, "a"), of(6, "b"), of(9, "a")), (Some(1), Some(1), Some(2), Some(3)));
        assert_eq!(of(5, "b"), None);
        let pool = book.pool_named(7, "a", Some(5)).unwrap().unwrap();
        assert_eq!((pool.state, pool.made, pool.nodes.len(), pool.used), (PoolState::New, 10, 0, None));
        assert_eq!(book.pool_named(8, "a", Some(5)).unwrap(), None);
    }

    #[test]
    fn a_campaigns_pool_is_its_users() {
        let (_dir, book) = book();
        book.add(&job(5, 7, &[], vec![says("a", true)]), 10).unwrap();
        book.add(&job(6, 7, &[], vec![says("a", true)]), 11).unwrap();
        book.add(&job(7, 8, &[], vec![says("a", true)]), 12).unwrap();
        let all = book.pools().unwrap();
        assert_eq!(all.iter().map(|pool| (pool.pool, pool.uid)).collect::<Vec<_>>(), [(1, 7), (2, 8)]);
        // One that is on its way out is nobody's any more, and its number never comes again.
        book.set_pool(1, PoolState::Ending, "", 13).unwrap();
        book.add(&job(8, 7, &[], vec![says("a", true)]), 14).unwrap();
        assert_eq!(book.pool_of_job(8, "a").unwrap().unwrap().pool, 3);
        book.drop_pool(3).unwrap();
        book.add(&job(9, 7, &[], vec![says("a", true)]), 15).unwrap();
        assert_eq!(book.pool_of_job(9, "a").unwrap().unwrap().pool, 4);
    }

    #[test]
    fn users_are_jobs_that_have_not_ended() {
        let (_dir, book) = book();
        book.add(&job(5, 7, &[], vec![says("a", true)]), 10).unwrap();
        book.add(&job(6, 7, &[], vec![says("a", true)]), 10).unwrap();
        book.use_pool(1, 5, &["n1".into(), "n2".into()]).unwrap();
        let users = book.pool_users(1).unwrap();
        assert_eq!(
            users.iter().map(|user| (user.job, user.is_active())).collect::<Vec<_>>(),
            [(5, true), (6, false)]
        );
        assert_eq!(users[0].nodes, ["n1", "n2"]);
        book.become_(5, Phase::Failed, "", 11).unwrap();
        assert_eq!(book.pool_users(1).unwrap().len(), 1);
        // What it used is known until it is tidied up.
        assert_eq!(book.nodes_of_pool_user(1, 5).unwrap(), ["n1", "n2"]);
        book.use_pool(1, 5, &[]).unwrap();
        assert_eq!(book.nodes_of_pool_user(1, 5).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn what_becomes_of_a_pool_is_noted() {
        let (_dir, book) = book();
        book.add(&job(5, 7, &[], vec![says("a", false)]), 10).unwrap();
        book.place_pool(1, 8, &["n2".into(), "n1".into()], "/local").unwrap();
        book.set_pool(1, PoolState::Rest, "", 20).unwrap();
        book.set_pool_used(1, 1 << 41).unwrap();
        let pool = book.pool(1).unwrap().unwrap();
        assert_eq!(
            (pool.gid, pool.nodes, pool.store),
            (Some(8), vec!["n2".to_string(), "n1".into()], "/local".into())
        );
        assert_eq!((pool.state, pool.used, pool.last_use), (PoolState::Rest, Some(1 << 41), 20));
    }

    #[test]
    fn a_workflow_with_an_old_number_does_not_get_the_old_ones_pools() {
        let (_dir, book) = book();
        book.add(&job(5, 7, &[], vec![says("a", false)]), 10).unwrap();
        book.add(&job(5, 7, &[], vec![says("a", false)]), 20).unwrap();
        let pools = book.pools().unwrap();
        assert_eq!(pools.iter().map(|pool| pool.workflow).collect::<Vec<_>>(), [Some(0), Some(5)]);
        assert_eq!(book.pool_of_job(5, "a").unwrap().unwrap().pool, 2);
    }

    #[test]
    fn words_lead_back_to_states() {
        for (word, state) in POOL_STATES {
            assert_eq!((state.word(), PoolState::parse(word)), (word, Some(state)));
        }
    }
}
