//! All jobs with directives, in a database on the controller (`docs/formats/22-job-book.md`).
//!
//! Hooks are processes of their own, and those of different jobs run side by side; each change is one transaction. A
//! controller that is killed and starts again finds every job as its last hook left it.

use crate::phase::Phase;
use crate::workflow::{Step, Workflow};
use crate::{aging, ahead, lasting};
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, Transaction, TransactionBehavior, params};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `PRAGMA user_version` of a book in the form described here.
pub const FORMAT: i32 = 5;
/// The form before there were pools that outlive their jobs.
const FORMAT_WITHOUT_POOLS: i32 = 1;
/// The form before stagings ahead of jobs were noted.
const FORMAT_WITHOUT_AHEAD: i32 = 2;
/// The form before teardowns were counted, nodes with something of a job noted, and there was a clock that pools age by.
const FORMAT_WITHOUT_TEARDOWNS: i32 = 3;
/// The form before kept places had an end.
const FORMAT_WITHOUT_EXPIRY: i32 = 4;
/// Forms that are brought up to date when they are opened.
const EARLIER: std::ops::RangeInclusive<i32> = FORMAT_WITHOUT_POOLS..=FORMAT_WITHOUT_EXPIRY;
/// `PRAGMA application_id`: `TPJB`.
pub const APPLICATION: i32 = 0x5450_4a42;
/// How long a hook waits for its turn.
const TURN_MAX: Duration = Duration::from_secs(30);
/// Bytes of a reason; more is cut.
const REASON_MAX: usize = 2000;

const TABLES: &str = "
CREATE TABLE Job(
  Job INTEGER PRIMARY KEY, Uid INTEGER NOT NULL, Gid INTEGER, Script TEXT NOT NULL, Phase TEXT NOT NULL,
  Reason TEXT NOT NULL DEFAULT '', Workflow INTEGER, IsEnd INTEGER NOT NULL DEFAULT 0, Attempt INTEGER NOT NULL DEFAULT 1,
  Nodes TEXT NOT NULL DEFAULT '', Reservation TEXT NOT NULL DEFAULT '', Estimate INTEGER, Submitted INTEGER NOT NULL,
  Changed INTEGER NOT NULL);
CREATE INDEX JobsOfWorkflow ON Job(Workflow) WHERE Workflow IS NOT NULL;
CREATE TABLE After(Job INTEGER NOT NULL, Prior INTEGER NOT NULL, PRIMARY KEY(Job, Prior)) WITHOUT ROWID;
CREATE TABLE Workflow(Workflow INTEGER PRIMARY KEY, Uid INTEGER NOT NULL, Name TEXT NOT NULL);
CREATE TABLE Event(Job INTEGER NOT NULL, At INTEGER NOT NULL, Text TEXT NOT NULL);
CREATE INDEX EventsOfJob ON Event(Job);
CREATE TABLE Transfer(
  Job INTEGER NOT NULL, Node TEXT NOT NULL, Task INTEGER NOT NULL, Way TEXT NOT NULL, State TEXT NOT NULL, Source TEXT NOT NULL,
  Destination TEXT NOT NULL, Bytes INTEGER NOT NULL, Files INTEGER NOT NULL, Millis INTEGER NOT NULL, Error TEXT NOT NULL,
  PRIMARY KEY(Job, Node, Task)) WITHOUT ROWID;
CREATE TABLE Location(
  Place TEXT NOT NULL, Node TEXT NOT NULL, Uid INTEGER NOT NULL, Job INTEGER NOT NULL, PRIMARY KEY(Place, Node)) WITHOUT ROWID;
";

/// Phases after which nothing comes by itself.
pub(crate) const ENDED: &str = "('done', 'failed', 'cancelled', 'stage-out-failed')";

const TABLES_OF_FORM_2: &str = "
CREATE TABLE Avoided(Job INTEGER NOT NULL, Node TEXT NOT NULL, PRIMARY KEY(Job, Node)) WITHOUT ROWID;
CREATE TABLE Untidy(Job INTEGER PRIMARY KEY, Tried INTEGER NOT NULL);
";

const TABLES_OF_FORM_4: &str = "
ALTER TABLE Job ADD COLUMN Teardowns INTEGER NOT NULL DEFAULT 0;
ALTER TABLE Job ADD COLUMN SetUp INTEGER;
ALTER TABLE Job ADD COLUMN Restarts INTEGER NOT NULL DEFAULT 0;
CREATE TABLE Touched(
  Job INTEGER NOT NULL, Node TEXT NOT NULL, Known INTEGER, After INTEGER NOT NULL DEFAULT 0, PRIMARY KEY(Job, Node)) WITHOUT ROWID;
";

const TABLES_OF_FORM_5: &str = "
ALTER TABLE Location ADD COLUMN Expires INTEGER;
";

/// Why the book could not be used.
#[derive(Debug)]
pub enum BookError {
    /// It is none, or one of a later release.
    Foreign {
        path: PathBuf,
        what: String,
    },
    Sqlite {
        path: PathBuf,
        source: rusqlite::Error,
    },
    Unknown(u32),
    /// A job cannot go from its phase to that one.
    Phase {
        job: u32,
        from: Phase,
        to: Phase,
    },
    /// The batch system has begun to take back what a hook works for.
    TakenBack {
        job: u32,
    },
}

impl fmt::Display for BookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BookError::Foreign { path, what } => write!(f, "{}: {what}", path.display()),
            BookError::Sqlite { path, source } => write!(f, "{}: {source}", path.display()),
            BookError::Unknown(job) => write!(f, "job {job} has no directives, or is not known any more"),
            BookError::Phase { job, from, to } => write!(f, "job {job} is {from} and cannot become {to}"),
            BookError::TakenBack { job } => {
                write!(f, "job {job} is queued again or over: what was begun for it is taken back")
            }
        }
    }
}

impl std::error::Error for BookError {}

pub(crate) type Result<T> = std::result::Result<T, BookError>;

/// A job that has just been submitted.
#[derive(Clone, Debug, Default)]
pub struct NewJob {
    pub job: u32,
    pub uid: u32,
    pub script: String,
    /// The workflow it starts, with its name.
    pub starts: Option<String>,
    /// Jobs of a workflow that it comes after.
    pub after: Vec<u32>,
    pub is_end: bool,
    /// Those that outlive it.
    pub pools: Vec<lasting::NewPool>,
}

/// A job as it stands. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Job {
    pub job: u32,
    pub uid: u32,
    pub gid: Option<u32>,
    #[serde(skip)]
    pub script: String,
    pub phase: Phase,
    /// Why it is in this phase, in plain words; empty where nothing is to be said.
    pub reason: String,
    pub workflow: Option<u32>,
    pub is_end: bool,
    /// How often it has been queued.
    pub attempt: u32,
    pub nodes: Vec<String>,
    /// Of nodes that are held for it; empty without.
    pub reservation: String,
    /// Milliseconds that its stage-in will take, as far as is known.
    pub estimate_ms: Option<u64>,
    pub submitted: u64,
    pub changed: u64,
    /// How often the batch system has begun to take back what was done for it. A hook that began before the last time works
    /// for an attempt that is over.
    pub teardowns: u32,
    /// The teardowns that there had been when it was set up last; none before.
    pub set_up: Option<u32>,
    /// How often the batch system had queued it again when it got its nodes.
    pub restarts: u32,
}

impl Job {
    /// A hook that began with `self` still works for what the job is now.
    pub fn is_same_attempt(&self, now: &Job) -> bool {
        self.teardowns == now.teardowns && !now.phase.is_final()
    }

    /// Its setup is called a second time, as after a restart of the controller: nothing was taken back since.
    pub fn is_set_up(&self) -> bool {
        self.set_up == Some(self.teardowns)
    }
}

/// A node that has, or may have, something of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    pub node: String,
    /// The teardowns that there had been when the node's stager was told of the job; none before.
    pub known: Option<u32>,
    /// The last task of the job that the stager had had then: those of later numbers are of this attempt.
    pub after: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    pub at: u64,
    pub text: String,
}

/// What a staging task of a job has come to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Transfer {
    pub node: String,
    pub task: u32,
    /// `in`, `out` or `clean`.
    pub way: String,
    pub state: String,
    pub source: String,
    pub destination: String,
    pub bytes: u64,
    pub files: u64,
    pub ms: u64,
    pub error: String,
}

/// A kept place of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Location {
    pub place: String,
    pub node: String,
    pub uid: u32,
    pub job: u32,
    /// When its node's stager removes it, in seconds since 1970.
    pub expires: Option<u64>,
}

/// The open book.
pub struct Book {
    path: PathBuf,
    connection: Connection,
}

impl Book {
    /// Opens the book to write; makes one where there is none.
    pub fn open(path: &Path) -> Result<Book> {
        let book = Book::connect(path, Connection::open(path))?;
        book.try_(|c| c.pragma_update(None, "journal_mode", "wal"))?;
        // Each hook's change survives a crash of the machine.
        book.try_(|c| c.pragma_update(None, "synchronous", "full"))?;
        match book.form()? {
            (APPLICATION, FORMAT) => return Ok(book),
            (0, 0) => book.bring_up_to_date()?,
            (APPLICATION, form) if EARLIER.contains(&form) => book.bring_up_to_date()?,
            form => return Err(book.foreign(form)),
        }
        Ok(book)
    }

    /// Makes the tables that are missing. Another process may do so at the same time.
    fn bring_up_to_date(&self) -> Result<()> {
        self.change(|t| {
            let form: i32 = t.pragma_query_value(None, "user_version", |row| row.get(0))?;
            if form == 0 {
                t.execute_batch(TABLES)?;
                t.pragma_update(None, "application_id", APPLICATION)?;
            }
            if form <= FORMAT_WITHOUT_POOLS {
                t.execute_batch(lasting::TABLES)?;
                t.execute_batch(TABLES_OF_FORM_2)?;
            }
            if form <= FORMAT_WITHOUT_AHEAD {
                t.execute_batch(ahead::TABLES)?;
            }
            if form <= FORMAT_WITHOUT_TEARDOWNS {
                t.execute_batch(TABLES_OF_FORM_4)?;
                t.execute_batch(aging::TABLES)?;
            }
            if form <= FORMAT_WITHOUT_EXPIRY {
                t.execute_batch(TABLES_OF_FORM_5)?;
                t.pragma_update(None, "user_version", FORMAT)?;
            }
            Ok(())
        })
    }

    /// Opens one that is there, to read.
    pub fn open_read(path: &Path) -> Result<Book> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let book = Book::connect(path, Connection::open_with_flags(path, flags))?;
        match book.form()? {
            (APPLICATION, FORMAT) => Ok(book),
            // The first look after an upgrade of the programs may be one at submission.
            (APPLICATION, form) if EARLIER.contains(&form) => book.bring_up_to_date().map(|()| book),
            form => Err(book.foreign(form)),
        }
    }

    fn connect(path: &Path, opened: rusqlite::Result<Connection>) -> Result<Book> {
        let wrong = |source| BookError::Sqlite { path: path.into(), source };
        let connection = opened.map_err(wrong)?;
        connection.busy_timeout(TURN_MAX).map_err(wrong)?;
        Ok(Book { path: path.into(), connection })
    }

    fn form(&self) -> Result<(i32, i32)> {
        let value = |name| self.try_(|c| c.pragma_query_value(None, name, |row| row.get(0)));
        Ok((value("application_id")?, value("user_version")?))
    }

    fn foreign(&self, (application, version): (i32, i32)) -> BookError {
        let what = match application {
            APPLICATION => {
                format!("a job book of form {version}; this program knows {FORMAT}: use a newer one")
            }
            _ => "no job book of Tidepool's: name another file".into(),
        };
        BookError::Foreign { path: self.path.clone(), what }
    }

    fn try_<T>(&self, act: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        act(&self.connection).map_err(|source| BookError::Sqlite { path: self.path.clone(), source })
    }

    /// One transaction that is certain of its turn before it looks.
    pub(crate) fn change<T>(&self, act: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>) -> Result<T> {
        self.try_(|c| {
            let transaction = Transaction::new_unchecked(c, TransactionBehavior::Immediate)?;
            let result = act(&transaction)?;
            transaction.commit()?;
            Ok(result)
        })
    }

    /// A job that was submitted at `now`. A number that Slurm gives out anew takes the place of the old job.
    pub fn add(&self, new: &NewJob, now: u64) -> Result<()> {
        self.change(|t| {
            for table in ["Job", "After", "Event", "Transfer", "Avoided", "Touched"] {
                t.execute(&format!("DELETE FROM {table} WHERE Job = ?1"), [new.job])?;
            }
            let workflow = match (&new.starts, new.after.first()) {
                (Some(name), _) => {
                    lasting::disown(t, new.job)?;
                    t.execute(
                        "INSERT OR REPLACE INTO Workflow VALUES(?1, ?2, ?3)",
                        params![new.job, new.uid, name],
                    )?;
                    Some(new.job)
                }
                (None, Some(prior)) => {
                    let of = "SELECT Workflow FROM Job WHERE Job = ?1";
                    t.query_row(of, [prior], |row| row.get(0)).optional()?.flatten()
                }
                (None, None) => None,
            };
            t.execute(
                "INSERT INTO Job(Job, Uid, Script, Phase, Workflow, IsEnd, Submitted, Changed) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7)",
                params![new.job, new.uid, new.script, Phase::Submitted.word(), workflow, new.is_end, now as i64],
            )?;
            untidy(t, new.job, now)?;
            for prior in &new.after {
                t.execute("INSERT OR IGNORE INTO After VALUES(?1, ?2)", params![new.job, prior])?;
            }
            lasting::add(t, (new.job, new.uid, workflow), &new.pools, now)?;
            note(t, new.job, now, "submitted")
        })
    }

    pub fn job(&self, job: u32) -> Result<Job> {
        let found = self.try_(|c| c.query_row(&format!("{JOB} WHERE Job = ?1"), [job], job_of).optional())?;
        found.ok_or(BookError::Unknown(job))
    }

    /// Jobs in the order of their numbers; those that have ended only with `all`.
    pub fn jobs(&self, all: bool) -> Result<Vec<Job>> {
        let only = if all { String::new() } else { format!("WHERE Phase NOT IN {ENDED}") };
        self.many(&format!("{JOB} {only} ORDER BY Job"), [], job_of)
    }

    /// Jobs that have, or wait for, nodes, or have results on them, in the order of their numbers.
    pub fn with_nodes(&self) -> Result<Vec<Job>> {
        let over = "('done', 'failed', 'cancelled')";
        self.many(&format!("{JOB} WHERE Nodes <> '' AND Phase NOT IN {over} ORDER BY Job"), [], job_of)
    }

    /// Moves a job to a phase; refused when it has ended otherwise meanwhile: a hook that comes late changes nothing.
    pub fn become_(&self, job: u32, phase: Phase, reason: &str, now: u64) -> Result<()> {
        self.move_on((job, None), phase, reason, now)
    }

    /// The same by a hook that began with `job`: also refused when what it works for is being taken back.
    pub fn advance(&self, job: &Job, phase: Phase, reason: &str, now: u64) -> Result<()> {
        self.move_on((job.job, Some(job.teardowns)), phase, reason, now)
    }

    fn move_on(
        &self,
        (job, teardowns): (u32, Option<u32>),
        phase: Phase,
        reason: &str,
        now: u64,
    ) -> Result<()> {
        let refused = self.change(|t| {
            let row = |row: &Row<'_>| Ok((phase_of(&row.get::<_, String>(0)?), row.get::<_, u32>(1)?));
            let sql = "SELECT Phase, Teardowns FROM Job WHERE Job = ?1";
            let Some((from, torn)) = t.query_row(sql, [job], row).optional()? else {
                return Ok(Some(BookError::Unknown(job)));
            };
            if teardowns.is_some_and(|begun_with| begun_with != torn) {
                return Ok(Some(BookError::TakenBack { job }));
            }
            if !from.may_become(phase) {
                return Ok(Some(BookError::Phase { job, from, to: phase }));
            }
            let reason = cut(reason);
            t.execute(
                "UPDATE Job SET Phase = ?2, Reason = ?3, Changed = ?4, Attempt = Attempt + ?5 WHERE Job = ?1",
                params![job, phase.word(), reason, now as i64, i64::from(phase == Phase::Submitted)],
            )?;
            let colon = if reason.is_empty() { "" } else { ": " };
            note(t, job, now, &format!("{phase}{colon}{reason}"))?;
            Ok(None)
        })?;
        refused.map_or(Ok(()), Err)
    }

    /// The batch system takes back what was done for the job: hooks that began before work for nothing any more.
    pub fn begin_teardown(&self, job: u32, now: u64) -> Result<()> {
        self.change(|t| {
            t.execute("UPDATE Job SET Teardowns = Teardowns + 1 WHERE Job = ?1", [job])?;
            t.execute("UPDATE Untidy SET Tried = ?2 WHERE Job = ?1", params![job, now as i64]).map(drop)
        })
    }

    /// The job's setup has been called; see [`Job::is_set_up`].
    pub fn note_setup(&self, job: u32) -> Result<()> {
        self.change(|t| t.execute("UPDATE Job SET SetUp = Teardowns WHERE Job = ?1", [job])).map(drop)
    }

    /// Something of a job may be on these nodes from now on.
    pub fn touch_nodes(&self, job: u32, nodes: &[String]) -> Result<()> {
        let sql = "INSERT OR IGNORE INTO Touched(Job, Node) VALUES(?1, ?2)";
        self.change(|t| nodes.iter().try_for_each(|node| t.execute(sql, params![job, node]).map(drop)))
    }

    /// A node's stager knows the job of this attempt, which has no tasks there yet but ended ones up to `after`.
    pub fn is_known_at(&self, job: &Job, node: &str, after: u32) -> Result<()> {
        let sql = "INSERT OR REPLACE INTO Touched VALUES(?1, ?2, ?3, ?4)";
        self.change(|t| t.execute(sql, params![job.job, node, job.teardowns, after])).map(drop)
    }

    /// Nothing of a job is on a node any more.
    pub fn is_clean_at(&self, job: u32, node: &str) -> Result<()> {
        self.change(|t| t.execute("DELETE FROM Touched WHERE Job = ?1 AND Node = ?2", params![job, node]))
            .map(drop)
    }

    /// The nodes that may have something of a job, by name.
    pub fn touched(&self, job: u32) -> Result<Vec<Touched>> {
        let touched =
            |row: &Row<'_>| Ok(Touched { node: row.get(0)?, known: row.get(1)?, after: row.get(2)? });
        self.many("SELECT Node, Known, After FROM Touched WHERE Job = ?1 ORDER BY Node", [job], touched)
    }

    /// A job that has ended is queued once more, by its owner or an administrator: it begins anew.
    pub fn revive(&self, job: u32, now: u64) -> Result<()> {
        self.change(|t| {
            let sql = "UPDATE Job SET Phase = ?2, Reason = '', Attempt = 1, Changed = ?3 WHERE Job = ?1";
            t.execute(sql, params![job, Phase::Submitted.word(), now as i64])?;
            untidy(t, job, now)?;
            note(t, job, now, "submitted once more")
        })
    }

    /// Its owner gives up what a job could not stage out.
    pub fn give_up(&self, job: u32, reason: &str, now: u64) -> Result<()> {
        self.change(|t| {
            let sql =
                "UPDATE Job SET Phase = ?2, Reason = ?3, Changed = ?4 WHERE Job = ?1 AND Phase = 'stage-out-failed'";
            t.execute(sql, params![job, Phase::Failed.word(), cut(reason), now as i64])?;
            note(t, job, now, &cut(reason))
        })
    }

    /// Jobs after which nobody has tidied up to the end, and when that was tried last.
    pub fn untidy(&self) -> Result<Vec<(u32, u64)>> {
        let one = |row: &Row<'_>| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64));
        self.many("SELECT Job, Tried FROM Untidy ORDER BY Job", [], one)
    }

    /// Nothing of the job is left but what has to stay.
    pub fn is_tidy(&self, job: u32) -> Result<()> {
        self.change(|t| t.execute("DELETE FROM Untidy WHERE Job = ?1", [job])).map(drop)
    }

    /// Nodes that a job is kept from, beyond its own wishes.
    pub fn set_avoided(&self, job: u32, nodes: &[String]) -> Result<()> {
        self.change(|t| {
            t.execute("DELETE FROM Avoided WHERE Job = ?1", [job])?;
            nodes.iter().try_for_each(|node| {
                t.execute("INSERT INTO Avoided VALUES(?1, ?2)", params![job, node]).map(drop)
            })
        })
    }

    pub fn avoided(&self, job: u32) -> Result<Vec<String>> {
        self.many("SELECT Node FROM Avoided WHERE Job = ?1 ORDER BY Node", [job], |row| row.get(0))
    }

    /// Jobs that are kept from a node.
    pub fn kept_from(&self, node: &str) -> Result<Vec<u32>> {
        self.many("SELECT Job FROM Avoided WHERE Node = ?1 ORDER BY Job", [node], |row| row.get(0))
    }

    pub fn set_gid(&self, job: u32, gid: u32) -> Result<()> {
        self.set(job, "Gid", gid)
    }

    pub fn set_nodes(&self, job: u32, nodes: &[String]) -> Result<()> {
        self.set(job, "Nodes", nodes.join(","))
    }

    pub fn set_restarts(&self, job: u32, restarts: u32) -> Result<()> {
        self.set(job, "Restarts", restarts)
    }

    pub fn set_reservation(&self, job: u32, name: &str) -> Result<()> {
        self.set(job, "Reservation", name)
    }

    pub fn set_estimate(&self, job: u32, ms: Option<u64>) -> Result<()> {
        self.set(job, "Estimate", ms.map(|ms| ms as i64))
    }

    fn set(&self, job: u32, column: &'static str, value: impl rusqlite::ToSql) -> Result<()> {
        self.change(|t| {
            t.execute(&format!("UPDATE Job SET {column} = ?2 WHERE Job = ?1"), params![job, value])
        })?;
        Ok(())
    }

    /// What is going on in a phase, in plain words; the next phase has its own.
    pub fn set_reason(&self, job: u32, reason: &str) -> Result<()> {
        self.set(job, "Reason", cut(reason))
    }

    /// Somebody still looks after the job.
    pub fn touch(&self, job: u32, now: u64) -> Result<()> {
        self.set(job, "Changed", now as i64)
    }

    pub fn note(&self, job: u32, text: &str, now: u64) -> Result<()> {
        self.change(|t| note(t, job, now, &cut(text)))
    }

    pub fn events(&self, job: u32) -> Result<Vec<Event>> {
        let event = |row: &Row<'_>| Ok(Event { at: row.get::<_, i64>(0)? as u64, text: row.get(1)? });
        self.many("SELECT At, Text FROM Event WHERE Job = ?1 ORDER BY rowid", [job], event)
    }

    /// Takes the place of what was noted of the same task before.
    pub fn put_transfers(&self, job: u32, transfers: &[Transfer]) -> Result<()> {
        self.change(|t| {
            let mut put = t.prepare(
                "INSERT OR REPLACE INTO Transfer VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            )?;
            for x in transfers {
                put.execute(params![
                    job,
                    x.node,
                    x.task,
                    x.way,
                    x.state,
                    x.source,
                    x.destination,
                    x.bytes as i64,
                    x.files as i64,
                    x.ms as i64,
                    cut(&x.error)
                ])?;
            }
            Ok(())
        })
    }

    pub fn transfers(&self, job: u32) -> Result<Vec<Transfer>> {
        let transfer = |row: &Row<'_>| {
            let number = |at: usize| Ok::<_, rusqlite::Error>(row.get::<_, i64>(at)? as u64);
            Ok(Transfer {
                node: row.get(0)?,
                task: row.get(1)?,
                way: row.get(2)?,
                state: row.get(3)?,
                source: row.get(4)?,
                destination: row.get(5)?,
                bytes: number(6)?,
                files: number(7)?,
                ms: number(8)?,
                error: row.get(9)?,
            })
        };
        let sql = "SELECT Node, Task, Way, State, Source, Destination, Bytes, Files, Millis, Error FROM Transfer WHERE Job = ?1 ORDER BY Node, Task";
        self.many(sql, [job], transfer)
    }

    /// The workflow that a job is part of.
    pub fn workflow_of(&self, job: u32) -> Result<Option<Workflow>> {
        match self.job(job)?.workflow {
            Some(id) => self.workflow(id),
            None => Ok(None),
        }
    }

    /// A workflow by its number, which is that of its first job.
    pub fn workflow(&self, id: u32) -> Result<Option<Workflow>> {
        let head = |row: &Row<'_>| Ok((row.get::<_, u32>(0)?, row.get::<_, String>(1)?));
        let found = self.try_(|c| {
            c.query_row("SELECT Uid, Name FROM Workflow WHERE Workflow = ?1", [id], head).optional()
        })?;
        let Some((owner, name)) = found else { return Ok(None) };
        let step = |row: &Row<'_>| {
            Ok(Step {
                job: row.get(0)?,
                phase: phase_of(&row.get::<_, String>(1)?),
                after: Vec::new(),
                is_end: row.get(2)?,
            })
        };
        let mut steps =
            self.many("SELECT Job, Phase, IsEnd FROM Job WHERE Workflow = ?1 ORDER BY Job", [id], step)?;
        for step in &mut steps {
            step.after =
                self.many("SELECT Prior FROM After WHERE Job = ?1 ORDER BY Prior", [step.job], |row| {
                    row.get(0)
                })?;
        }
        Ok(Some(Workflow { id, name, owner, steps }))
    }

    /// Numbers of all workflows, the newest last.
    pub fn workflows(&self) -> Result<Vec<u32>> {
        self.many("SELECT Workflow FROM Workflow ORDER BY Workflow", [], |row| row.get(0))
    }

    /// Notes that a place of a node is to be kept beyond its job. Where an earlier job keeps it already, it stays that one's
    /// until this one has ended: it may still come to nothing.
    pub fn keep(&self, location: &Location) -> Result<()> {
        self.put_location("IGNORE", location)
    }

    /// The same of a job that has ended: it is the last one that keeps it.
    pub fn keep_for(&self, location: &Location) -> Result<()> {
        self.put_location("REPLACE", location)
    }

    fn put_location(&self, or: &'static str, location: &Location) -> Result<()> {
        let Location { place, node, uid, job, expires } = location;
        let expires = expires.map(|at| i64::try_from(at).unwrap_or(i64::MAX));
        self.change(|t| {
            t.execute(
                &format!(
                    "INSERT OR {or} INTO Location(Place, Node, Uid, Job, Expires) VALUES(?1, ?2, ?3, ?4, ?5)"
                ),
                params![place, node, uid, job, expires],
            )
        })?;
        Ok(())
    }

    pub fn drop_location(&self, place: &str, node: &str) -> Result<()> {
        self.change(|t| t.execute("DELETE FROM Location WHERE Place = ?1 AND Node = ?2", [place, node]))?;
        Ok(())
    }

    pub fn locations(&self) -> Result<Vec<Location>> {
        let location = |row: &Row<'_>| {
            let expires: Option<i64> = row.get(4)?;
            Ok(Location {
                place: row.get(0)?,
                node: row.get(1)?,
                uid: row.get(2)?,
                job: row.get(3)?,
                expires: expires.map(|at| at.unsigned_abs()),
            })
        };
        self.many("SELECT Place, Node, Uid, Job, Expires FROM Location ORDER BY Place, Node", [], location)
    }

    /// Forgets jobs that ended before `before`, when nothing of theirs is left to be done and their workflow is over;
    /// how many.
    pub fn forget(&self, before: u64) -> Result<usize> {
        let over =
            "Phase IN ('done', 'failed', 'cancelled') AND Changed < ?1 AND (Workflow IS NULL OR NOT EXISTS(
            SELECT 1 FROM Pool WHERE Pool.Workflow = Job.Workflow) AND NOT EXISTS(
            SELECT 1 FROM Job AS Other WHERE Other.Workflow = Job.Workflow AND
            (Other.Changed >= ?1 OR Other.Phase NOT IN ('done', 'failed', 'cancelled'))))";
        self.change(|t| {
            let jobs: Vec<u32> = t
                .prepare(&format!("SELECT Job FROM Job WHERE {over}"))?
                .query_map([before as i64], |row| row.get(0))?
                .collect::<rusqlite::Result<_>>()?;
            for job in &jobs {
                for table in ["Job", "After", "Event", "Transfer", "PoolUser", "Avoided", "Untidy", "Touched"] {
                    t.execute(&format!("DELETE FROM {table} WHERE Job = ?1"), [job])?;
                }
            }
            t.execute(
                "DELETE FROM Workflow WHERE NOT EXISTS(SELECT 1 FROM Job WHERE Job.Workflow = Workflow.Workflow)",
                [],
            )?;
            Ok(jobs.len())
        })
    }

    pub(crate) fn many<T>(
        &self,
        sql: &str,
        values: impl rusqlite::Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>> {
        self.try_(|c| c.prepare(sql)?.query_map(values, read)?.collect())
    }
}

fn untidy(t: &Transaction<'_>, job: u32, now: u64) -> rusqlite::Result<()> {
    t.execute("INSERT OR REPLACE INTO Untidy VALUES(?1, ?2)", params![job, now as i64]).map(drop)
}

const JOB: &str = "SELECT Job, Uid, Gid, Script, Phase, Reason, Workflow, IsEnd, Attempt, Nodes, Reservation, Estimate, Submitted, Changed, Teardowns, SetUp, Restarts FROM Job";

fn phase_of(word: &str) -> Phase {
    Phase::parse(word).unwrap_or(Phase::Failed)
}

fn job_of(row: &Row<'_>) -> rusqlite::Result<Job> {
    let nodes: String = row.get(9)?;
    let number = |at: usize| Ok::<_, rusqlite::Error>(row.get::<_, i64>(at)? as u64);
    Ok(Job {
        job: row.get(0)?,
        uid: row.get(1)?,
        gid: row.get(2)?,
        script: row.get(3)?,
        phase: phase_of(&row.get::<_, String>(4)?),
        reason: row.get(5)?,
        workflow: row.get(6)?,
        is_end: row.get(7)?,
        attempt: row.get(8)?,
        nodes: nodes.split(',').filter(|name| !name.is_empty()).map(String::from).collect(),
        reservation: row.get(10)?,
        estimate_ms: row.get::<_, Option<i64>>(11)?.map(|ms| ms as u64),
        submitted: number(12)?,
        changed: number(13)?,
        teardowns: row.get(14)?,
        set_up: row.get(15)?,
        restarts: row.get(16)?,
    })
}

fn note(t: &Transaction<'_>, job: u32, now: u64, text: &str) -> rusqlite::Result<()> {
    t.execute("INSERT INTO Event VALUES(?1, ?2, ?3)", params![job, now as i64, text]).map(drop)
}

/// At most [`REASON_MAX`] bytes, whole characters.
pub(crate) fn cut(text: &str) -> String {
    let end = (0..=text.len().min(REASON_MAX)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text[..end].to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workflow::State;

    fn book() -> (tempfile::TempDir, Book) {
        let dir = tempfile::tempdir().unwrap();
        let book = Book::open(&dir.path().join("jobs.db")).unwrap();
        (dir, book)
    }

    fn new(job: u32, after: &[u32]) -> NewJob {
        let starts = after.is_empty().then(|| "w".to_string());
        NewJob {
            job,
            uid: 7,
            script: "#!/bin/sh".into(),
            starts,
            after: after.into(),
            is_end: false,
            pools: Vec::new(),
        }
    }

    #[test]
    fn what_is_written_is_there_after_opening_again() {
        let (dir, book) = book();
        book.add(&new(5, &[]), 100).unwrap();
        book.become_(5, Phase::StagingIn, "", 101).unwrap();
        book.set_nodes(5, &["n1".into(), "n2".into()]).unwrap();
        book.set_gid(5, 8).unwrap();
        book.set_estimate(5, Some(1500)).unwrap();
        book.set_reservation(5, "tidepool-5").unwrap();
        let transfer = Transfer {
            node: "n1".into(),
            task: 3,
            way: "in".into(),
            state: "finished".into(),
            source: "lustre://a".into(),
            destination: "nvme0://a".into(),
            bytes: 1 << 40,
            files: 2,
            ms: 5,
            error: String::new(),
        };
        book.put_transfers(5, std::slice::from_ref(&transfer)).unwrap();
        drop(book);
        let book = Book::open(&dir.path().join("jobs.db")).unwrap();
        let job = book.job(5).unwrap();
        assert_eq!((job.phase, job.gid, job.attempt), (Phase::StagingIn, Some(8), 1));
        assert_eq!((job.nodes, job.estimate_ms), (vec!["n1".to_string(), "n2".into()], Some(1500)));
        assert_eq!((job.submitted, job.changed, job.workflow), (100, 101, Some(5)));
        assert_eq!(book.transfers(5).unwrap(), [transfer]);
        let texts: Vec<String> = book.events(5).unwrap().into_iter().map(|event| event.text).collect();
        assert_eq!(texts, ["submitted", "staging-in"]);
    }

    #[test]
    fn a_late_hook_changes_no_end() {
        let (_dir, book) = book();
        book.add(&new(5, &[]), 1).unwrap();
        book.become_(5, Phase::Cancelled, "by its owner", 2).unwrap();
        let late = book.become_(5, Phase::Running, "", 3).unwrap_err();
        assert!(matches!(late, BookError::Phase { from: Phase::Cancelled, .. }), "{late}");
        assert_eq!(book.job(5).unwrap().reason, "by its owner");
        assert!(matches!(book.become_(6, Phase::Done, "", 3), Err(BookError::Unknown(6))));
    }

    /// Slurm queues a job again while a hook stages it in: what that hook does afterwards is nobody's.
    #[test]
    fn a_hook_of_an_attempt_that_is_taken_back_changes_nothing() {
        let (_dir, book) = book();
        book.add(&new(5, &[]), 1).unwrap();
        book.become_(5, Phase::Checked, "", 2).unwrap();
        let began = book.job(5).unwrap();
        book.advance(&began, Phase::Starting, "", 3).unwrap();
        assert!(began.is_same_attempt(&book.job(5).unwrap()));
        book.begin_teardown(5, 4).unwrap();
        for phase in [Phase::Running, Phase::Failed, Phase::Submitted] {
            let late = book.advance(&began, phase, "", 5).unwrap_err();
            assert!(matches!(late, BookError::TakenBack { job: 5 }), "{late}");
        }
        assert!(!began.is_same_attempt(&book.job(5).unwrap()));
        assert_eq!(book.job(5).unwrap().phase, Phase::Starting);
        let next = book.job(5).unwrap();
        book.advance(&next, Phase::Running, "", 6).unwrap();
        assert_eq!(book.untidy().unwrap(), [(5, 4)]);
    }

    #[test]
    fn a_setup_that_is_called_again_is_told_from_a_new_attempt() {
        let (_dir, book) = book();
        book.add(&new(5, &[]), 1).unwrap();
        assert!(!book.job(5).unwrap().is_set_up());
        book.note_setup(5).unwrap();
        assert!(book.job(5).unwrap().is_set_up());
        book.begin_teardown(5, 2).unwrap();
        assert!(!book.job(5).unwrap().is_set_up());
    }

    #[test]
    fn nodes_are_touched_until_nothing_is_there() {
        let (_dir, book) = book();
        book.add(&new(5, &[]), 1).unwrap();
        let nodes = ["n1".to_string(), "n2".into()];
        book.touch_nodes(5, &nodes).unwrap();
        book.begin_teardown(5, 2).unwrap();
        book.is_known_at(&book.job(5).unwrap(), "n2", 17).unwrap();
        book.touch_nodes(5, &nodes).unwrap();
        let touched = |node: &str, known, after| Touched { node: node.into(), known, after };
        assert_eq!(book.touched(5).unwrap(), [touched("n1", None, 0), touched("n2", Some(1), 17)]);
        book.is_clean_at(5, "n1").unwrap();
        book.is_clean_at(5, "n3").unwrap();
        assert_eq!(book.touched(5).unwrap(), [touched("n2", Some(1), 17)]);
        book.add(&new(5, &[]), 3).unwrap();
        assert_eq!(book.touched(5).unwrap(), []);
    }

    #[test]
    fn h2_a_workflow_is_its_jobs() {
        let (_dir, book) = book();
        book.add(&new(5, &[]), 1).unwrap();
        book.add(&new(6, &[5]), 2).unwrap();
        book.add(&NewJob { is_end: true, ..new(7, &[5, 6]) }, 3).unwrap();
        let whole = book.workflow_of(7).unwrap().unwrap();
        assert_eq!((whole.id, whole.owner, whole.state()), (5, 7, State::Active));
        assert_eq!(whole.step(7).unwrap().after, [5, 6]);
        for job in 5..8 {
            book.become_(job, Phase::StagingOut, "", 4).unwrap();
            book.become_(job, Phase::StagedOut, "", 4).unwrap();
            book.become_(job, Phase::Done, "", 4).unwrap();
        }
        assert_eq!(book.workflow(5).unwrap().unwrap().state(), State::Completed);
        assert_eq!(book.workflow(6).unwrap(), None);
        assert_eq!(book.forget(4).unwrap(), 0);
        assert_eq!(book.forget(5).unwrap(), 3);
        assert_eq!(book.workflows().unwrap(), []);
    }

    #[test]
    fn a_number_that_comes_again_is_another_job() {
        let (_dir, book) = book();
        book.add(&new(5, &[]), 1).unwrap();
        book.become_(5, Phase::Failed, "x", 2).unwrap();
        book.add(&new(5, &[]), 3).unwrap();
        assert_eq!(book.job(5).unwrap().phase, Phase::Submitted);
        assert_eq!(book.events(5).unwrap().len(), 1);
    }

    #[test]
    fn hooks_side_by_side_lose_nothing() {
        let (dir, book) = book();
        let path = dir.path().join("jobs.db");
        std::thread::scope(|scope| {
            for part in 0..4u32 {
                let path = &path;
                scope.spawn(move || {
                    let book = Book::open(path).unwrap();
                    for job in 0..25 {
                        book.add(&new(part * 100 + job, &[]), 1).unwrap();
                        book.become_(part * 100 + job, Phase::Running, "", 2).unwrap();
                    }
                });
            }
        });
        let jobs = book.jobs(false).unwrap();
        assert_eq!(jobs.len(), 100);
        assert!(jobs.iter().all(|job| job.phase == Phase::Running));
    }

    #[test]
    fn another_programs_database_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.db");
        Connection::open(&path).unwrap().execute_batch("PRAGMA user_version = 3; CREATE TABLE T(A)").unwrap();
        assert!(matches!(Book::open(&path), Err(BookError::Foreign { .. })));
    }

    /// A book as the release before has written it, with its jobs and what is in it afterwards.
    #[test]
    fn books_of_earlier_forms_are_brought_up_to_date() {
        let opens = [Book::open as fn(&Path) -> _, Book::open_read];
        for (open, form) in opens.into_iter().flat_map(|open| EARLIER.map(move |form| (open, form))) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("jobs.db");
            let old = Connection::open(&path).unwrap();
            old.execute_batch(TABLES).unwrap();
            old.pragma_update(None, "application_id", APPLICATION).unwrap();
            old.pragma_update(None, "user_version", form).unwrap();
            if form >= 2 {
                old.execute_batch(lasting::TABLES).unwrap();
                old.execute_batch(TABLES_OF_FORM_2).unwrap();
            }
            if form >= 3 {
                old.execute_batch(ahead::TABLES).unwrap();
            }
            if form >= 4 {
                old.execute_batch(TABLES_OF_FORM_4).unwrap();
                old.execute_batch(aging::TABLES).unwrap();
            }
            old.execute("INSERT INTO Location VALUES('nvme0://x', 'n1', 7, 5)", []).unwrap();
            let row = "INSERT INTO Job(Job, Uid, Script, Phase, Submitted, Changed) VALUES(5, 7, '', 'running', 1, 2)";
            old.execute(row, []).unwrap();
            drop(old);
            let book = open(&path).unwrap();
            assert_eq!(
                (book.form().unwrap(), book.job(5).unwrap().phase),
                ((APPLICATION, FORMAT), Phase::Running)
            );
            let job = book.job(5).unwrap();
            assert_eq!((job.teardowns, job.set_up, book.touched(5).unwrap()), (0, None, vec![]));
            let kept =
                Location { place: "nvme0://x".into(), node: "n1".into(), uid: 7, job: 5, expires: None };
            assert_eq!(book.locations().unwrap(), [kept]);
            assert_eq!((book.pools().unwrap(), book.stagings_ahead(1).unwrap()), (vec![], vec![]));
            drop(book);
            assert_eq!(open(&path).unwrap().jobs(true).unwrap().len(), 1);
        }
    }

    #[test]
    fn what_an_earlier_job_keeps_is_its_own_until_a_later_one_has_ended() {
        let (_dir, book) = book();
        let of =
            |job, expires| Location { place: "nvme0://x".into(), node: "n1".into(), uid: 7, job, expires };
        book.keep(&of(5, Some(77))).unwrap();
        book.keep(&of(6, None)).unwrap();
        assert_eq!(book.locations().unwrap(), [of(5, Some(77))]);
        book.keep_for(&of(6, None)).unwrap();
        assert_eq!(book.locations().unwrap(), [of(6, None)]);
        book.drop_location("nvme0://x", "n1").unwrap();
        assert_eq!(book.locations().unwrap(), []);
    }

    #[test]
    fn long_reasons_are_cut_between_characters() {
        let text = "ä".repeat(REASON_MAX);
        assert_eq!(cut(&text).len(), REASON_MAX);
        assert_eq!(cut(&format!("x{text}")).len(), REASON_MAX - 1);
    }
}
