//! The resource database (paper, Figure 9; `docs/formats/18-resource-database.md`): hosts, extractors, data, and which
//! host has which data. Equal data are stored once.
//!
//! Hundreds of nodes may write to one file at a time. Each writes what it has collected in one transaction, and waits
//! for its turn. On file systems that are this machine's own a write-ahead log makes that fast; a log needs memory that
//! all writers share, so elsewhere the journal is a file that is removed after each transaction.

use crate::record::{Class, Missing, Record};
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, Transaction, TransactionBehavior, params};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// `PRAGMA user_version` of a database in the form described here.
pub const FORMAT: i32 = 1;
/// `PRAGMA application_id`: `TPRD`.
pub const APPLICATION: i32 = 0x5450_5244;
/// How long a writer waits for its turn.
const TURN_MAX: Duration = Duration::from_secs(120);
/// Between two tries where SQLite does not wait.
const TURN_PAUSE: Duration = Duration::from_millis(5);
/// Most bytes of a host's name.
const HOST_MAX: usize = 255;
/// Most bytes of a record's data as JSON.
pub const DATA_MAX: usize = 64 << 20;

const TABLES: &str = "
CREATE TABLE HostTable(HostID INTEGER PRIMARY KEY, Host TEXT NOT NULL UNIQUE);
CREATE TABLE ExtractorTable(
  ExtractorID INTEGER PRIMARY KEY, Extractor TEXT NOT NULL, Version INTEGER NOT NULL, Class TEXT NOT NULL,
  UNIQUE(Extractor, Version));
CREATE TABLE DataTable(
  DataID INTEGER PRIMARY KEY, ExtractorID INTEGER NOT NULL REFERENCES ExtractorTable, Data TEXT NOT NULL,
  UNIQUE(ExtractorID, Data));
CREATE TABLE Host2Data(
  HostID INTEGER NOT NULL REFERENCES HostTable, DataID INTEGER NOT NULL REFERENCES DataTable,
  Extractor TEXT NOT NULL, Taken INTEGER NOT NULL, Source TEXT, Missing TEXT NOT NULL, Current INTEGER NOT NULL);
CREATE UNIQUE INDEX CurrentData ON Host2Data(HostID, Extractor) WHERE Current = 1;
CREATE INDEX HostsOfData ON Host2Data(DataID);
CREATE INDEX DataOfExtractor ON Host2Data(Extractor, Taken);
";

/// Why the database could not be used.
#[derive(Debug)]
pub enum DbError {
    /// It is no resource database, or one of a later release.
    Foreign {
        path: PathBuf,
        what: String,
    },
    Sqlite {
        path: PathBuf,
        source: rusqlite::Error,
    },
    /// What is to be stored breaks a rule.
    BadRecord(String),
}

impl std::fmt::Display for DbError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DbError::Foreign { path, what } => write!(f, "{}: {what}", path.display()),
            DbError::Sqlite { path, source } => write!(f, "{}: {source}", path.display()),
            DbError::BadRecord(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for DbError {}

/// A record with the host that it is of.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct HostRecord {
    pub host: String,
    #[serde(flatten)]
    pub record: Record,
}

/// Which records are wanted.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// All, when there are none.
    pub hosts: Vec<String>,
    pub extractors: Vec<String>,
    /// Those of the past, too.
    pub history: bool,
}

/// What happens to an earlier record when a newer one comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    Latest,
    History,
}

/// How many rows each table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    pub hosts: u64,
    pub extractors: u64,
    pub data: u64,
    pub host2data: u64,
}

/// An open database.
pub struct Database {
    path: PathBuf,
    connection: Connection,
}

impl Database {
    /// Opens a database to write to it; makes one where there is none.
    pub fn open(path: &Path) -> Result<Database, DbError> {
        let database = Database::connect(path, Connection::open(path))?;
        database.try_(|connection| connection.pragma_update(None, "foreign_keys", true))?;
        patiently(|| database.prepare())?;
        patiently(|| database.try_(|connection| set_journal(connection, is_own(path))))?;
        Ok(database)
    }

    /// Opens one that is there, to read. Who may not write to its directory reads it all the same.
    pub fn open_read(path: &Path) -> Result<Database, DbError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let database = Database::connect(path, Connection::open_with_flags(path, flags))?;
        match database.form()? {
            (APPLICATION, FORMAT) => Ok(database),
            form => Err(database.foreign(form)),
        }
    }

    fn connect(path: &Path, opened: rusqlite::Result<Connection>) -> Result<Database, DbError> {
        let wrong = |source| DbError::Sqlite { path: path.into(), source };
        let connection = opened.map_err(wrong)?;
        connection.busy_timeout(TURN_MAX).map_err(wrong)?;
        Ok(Database { path: path.into(), connection })
    }

    fn try_<T>(&self, act: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, DbError> {
        act(&self.connection).map_err(|source| DbError::Sqlite { path: self.path.clone(), source })
    }

    /// Application and version in the file's header.
    fn form(&self) -> Result<(i32, i32), DbError> {
        self.try_(|connection| {
            let number = |name| connection.pragma_query_value(None, name, |row| row.get(0));
            Ok((number("application_id")?, number("user_version")?))
        })
    }

    fn foreign(&self, (application, version): (i32, i32)) -> DbError {
        let what = match application {
            APPLICATION => format!("a resource database of format {version}; this release knows {FORMAT}"),
            _ => "no resource database; is it the right file?".into(),
        };
        DbError::Foreign { path: self.path.clone(), what }
    }

    /// Makes the tables in an empty file. Of several that come at a time one does.
    fn prepare(&self) -> Result<(), DbError> {
        if self.form()? == (APPLICATION, FORMAT) {
            return Ok(());
        }
        let form = self.try_(|connection| {
            let change = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
            let number = |name| change.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
            let form = (number("application_id")?, number("user_version")?);
            let tables: i64 = change.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
            if form != (0, 0) || tables > 0 {
                return Ok(form);
            }
            change.execute_batch(TABLES)?;
            change.pragma_update(None, "application_id", APPLICATION)?;
            change.pragma_update(None, "user_version", FORMAT)?;
            change.commit()?;
            Ok((APPLICATION, FORMAT))
        })?;
        if form == (APPLICATION, FORMAT) { Ok(()) } else { Err(self.foreign(form)) }
    }

    /// Stores what a host has told, all or nothing. A record that is older than the one that is there is history.
    pub fn store(&mut self, host: &str, records: &[Record], keep: Keep) -> Result<(), DbError> {
        self.store_all(std::iter::once((host, records)), keep)
    }

    /// The same for several hosts.
    pub fn store_all<'a>(
        &mut self,
        hosts: impl IntoIterator<Item = (&'a str, &'a [Record])>,
        keep: Keep,
    ) -> Result<(), DbError> {
        let mut checked = Vec::new();
        for (host, records) in hosts {
            check_host(host)?;
            let rows = records.iter().map(Checked::new).collect::<Result<Vec<_>, _>>()?;
            checked.push((host, rows));
        }
        let path = self.path.clone();
        let mut store = || -> Result<(), NotPut> {
            let change = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for (host, rows) in &checked {
                let host = host_id(&change, host)?;
                rows.iter().try_for_each(|row| put(&change, host, row, keep))?;
            }
            Ok(change.commit()?)
        };
        store().map_err(|error| error.at(&path))
    }

    /// Stores what `make` makes of a host's record of an extractor, the data that are there now given. Nobody writes
    /// between. It is never older than that record.
    pub fn revise(
        &mut self,
        host: &str,
        extractor: &str,
        keep: Keep,
        make: impl FnOnce(Option<&Value>) -> Record,
    ) -> Result<(), DbError> {
        check_host(host)?;
        let path = self.path.clone();
        let wrong = |source| DbError::Sqlite { path: path.clone(), source };
        let change =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(wrong)?;
        let id = host_id(&change, host).map_err(wrong)?;
        let before = current(&change, id, extractor).map_err(wrong)?;
        let data = before.as_ref().map(|before| data_of(&change, before.data)).transpose().map_err(wrong)?;
        // What is damaged is replaced.
        let data: Option<Value> = data.and_then(|text| serde_json::from_str(&text).ok());
        let mut record = make(data.as_ref());
        record.taken_ms = record.taken_ms.max(before.map_or(0, |before| before.taken.unsigned_abs()));
        put(&change, id, &Checked::new(&record)?, keep).map_err(|error| error.at(&path))?;
        change.commit().map_err(wrong)
    }

    /// Forgets a host. False when it is not known.
    pub fn forget(&mut self, host: &str) -> Result<bool, DbError> {
        let path = self.path.clone();
        let mut forget = || {
            let change = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let all = "DELETE FROM Host2Data WHERE HostID = (SELECT HostID FROM HostTable WHERE Host = ?1)";
            change.execute(all, [host])?;
            let there = change.execute("DELETE FROM HostTable WHERE Host = ?1", [host])? > 0;
            change.execute("DELETE FROM DataTable WHERE DataID NOT IN (SELECT DataID FROM Host2Data)", [])?;
            change.commit()?;
            Ok(there)
        };
        forget().map_err(|source| DbError::Sqlite { path, source })
    }

    /// Records by host, extractor and time.
    pub fn records(&self, wanted: &Wanted) -> Result<Vec<HostRecord>, DbError> {
        let rows = self.try_(|connection| {
            let mut statement = connection.prepare(
                "SELECT Host, e.Extractor, Version, Class, Source, Taken, Data, Missing FROM Host2Data h
                 JOIN HostTable USING(HostID) JOIN DataTable USING(DataID) JOIN ExtractorTable e USING(ExtractorID)
                 WHERE (?1 OR Current = 1)
                   AND (?2 IS NULL OR Host IN (SELECT value FROM json_each(?2)))
                   AND (?3 IS NULL OR e.Extractor IN (SELECT value FROM json_each(?3)))
                 ORDER BY Host, e.Extractor, Taken, h.rowid",
            )?;
            let some = |names: &Vec<String>| (!names.is_empty()).then(|| serde_json::json!(names).to_string());
            let params = params![wanted.history, some(&wanted.hosts), some(&wanted.extractors)];
            statement.query_map(params, Raw::of)?.collect::<rusqlite::Result<Vec<_>>>()
        })?;
        rows.into_iter().map(|raw| self.read(raw)).collect()
    }

    /// Data by what they are, with the hosts that have them now: each content once.
    pub fn contents(&self, extractor: &str) -> Result<Vec<(Value, Vec<String>)>, DbError> {
        let rows = self.try_(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT DataID, Data, Host FROM Host2Data h JOIN DataTable USING(DataID) JOIN HostTable USING(HostID)
                 WHERE Current = 1 AND h.Extractor = ?1 ORDER BY DataID, Host",
            )?;
            let row = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
            statement.query_map([extractor], row)?.collect::<rusqlite::Result<Vec<(i64, String, String)>>>()
        })?;
        let mut contents: BTreeMap<i64, (String, Vec<String>)> = BTreeMap::new();
        for (id, data, host) in rows {
            contents.entry(id).or_insert_with(|| (data, Vec::new())).1.push(host);
        }
        let parsed = contents.into_values().map(|(data, hosts)| Ok((self.json(&data)?, hosts)));
        parsed.collect()
    }

    /// Names of all hosts.
    pub fn hosts(&self) -> Result<Vec<String>, DbError> {
        self.try_(|connection| {
            let mut statement = connection.prepare("SELECT Host FROM HostTable ORDER BY Host")?;
            statement.query_map([], |row| row.get(0))?.collect()
        })
    }

    /// Names of the extractors that any host has data of.
    pub fn extractors(&self) -> Result<Vec<String>, DbError> {
        self.try_(|connection| {
            let mut statement =
                connection.prepare("SELECT DISTINCT Extractor FROM ExtractorTable ORDER BY 1")?;
            statement.query_map([], |row| row.get(0))?.collect()
        })
    }

    pub fn counts(&self) -> Result<Counts, DbError> {
        self.try_(|connection| {
            let count = |table: &str| {
                connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0))
            };
            let count = |table| count(table).map(|rows| rows.unsigned_abs());
            Ok(Counts {
                hosts: count("HostTable")?,
                extractors: count("ExtractorTable")?,
                data: count("DataTable")?,
                host2data: count("Host2Data")?,
            })
        })
    }

    fn json(&self, text: &str) -> Result<Value, DbError> {
        serde_json::from_str(text).map_err(|error| self.damaged(format!("data that are no JSON: {error}")))
    }

    fn damaged(&self, what: String) -> DbError {
        DbError::Foreign { path: self.path.clone(), what: format!("damaged: {what}") }
    }

    fn read(&self, raw: Raw) -> Result<HostRecord, DbError> {
        let missing = serde_json::from_str(&raw.missing);
        let missing = missing.map_err(|error| self.damaged(format!("a list of what is missing: {error}")))?;
        let class = match raw.class.as_str() {
            "static" => Class::Static,
            "dynamic" => Class::Dynamic,
            other => return Err(self.damaged(format!("class '{other}'"))),
        };
        let Raw { host, extractor, version, source, taken_ms, data, .. } = raw;
        let data = self.json(&data)?;
        Ok(HostRecord { host, record: Record { extractor, version, class, source, taken_ms, data, missing } })
    }
}

/// Tries again while others keep the file for themselves. SQLite waits for them by itself, but not where the kind of the
/// journal changes, nor where two that wait would wait for each other.
fn patiently<T>(mut act: impl FnMut() -> Result<T, DbError>) -> Result<T, DbError> {
    let until = Instant::now() + TURN_MAX;
    loop {
        match act() {
            Err(DbError::Sqlite { source, .. }) if is_busy(&source) && Instant::now() < until => {
                std::thread::sleep(TURN_PAUSE);
            }
            other => return other,
        }
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
}

/// Whether only this machine reads and writes what a path's file system keeps. One that is not known is taken for shared.
fn is_own(path: &Path) -> bool {
    /// `f_type` of ext2 to ext4, XFS, Btrfs, tmpfs, overlayfs, F2FS, ZFS.
    const OWN: &[u64] =
        &[0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0xf2f5_2010, 0x2fc1_2fc1];
    rustix::fs::statfs(path).is_ok_and(|stat| OWN.contains(&(stat.f_type as u64)))
}

/// With a log a power failure may cost the last transactions, but never the database: nodes can be asked again.
fn set_journal(connection: &Connection, own: bool) -> rusqlite::Result<()> {
    let (mode, synchronous) = if own { ("wal", "NORMAL") } else { ("delete", "FULL") };
    // It is in the file: only the first one changes it, and has to be alone for that.
    let now: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
    if now != mode {
        connection.pragma_update_and_check(None, "journal_mode", mode, |_| Ok(()))?;
    }
    connection.pragma_update(None, "synchronous", synchronous)
}

fn check_host(host: &str) -> Result<(), DbError> {
    let fine = (1..=HOST_MAX).contains(&host.len()) && !host.contains(char::is_control);
    if fine {
        return Ok(());
    }
    let shown = crate::system::clip(host);
    Err(DbError::BadRecord(format!(
        "'{shown}' is no host's name: 1 to {HOST_MAX} bytes, none a control character"
    )))
}

/// A record as it is stored.
struct Checked<'a> {
    record: &'a Record,
    data: String,
    missing: String,
}

impl<'a> Checked<'a> {
    fn new(record: &'a Record) -> Result<Checked<'a>, DbError> {
        let bad = |why: String| {
            DbError::BadRecord(format!("record '{}': {why}", crate::system::clip(&record.extractor)))
        };
        // Fields of objects are sorted: equal data are equal texts.
        let data = serde_json::to_string(&record.data).map_err(|error| bad(error.to_string()))?;
        if data.len() > DATA_MAX {
            return Err(bad(format!("its data have more than {DATA_MAX} bytes")));
        }
        if i64::try_from(record.taken_ms).is_err() {
            return Err(bad(format!("its time {} is too late", record.taken_ms)));
        }
        let missing =
            serde_json::to_string::<[Missing]>(&record.missing).map_err(|error| bad(error.to_string()))?;
        Ok(Checked { record, data, missing })
    }
}

/// A record as it comes from the tables.
struct Raw {
    host: String,
    extractor: String,
    version: u32,
    class: String,
    source: Option<String>,
    taken_ms: u64,
    data: String,
    missing: String,
}

impl Raw {
    fn of(row: &Row<'_>) -> rusqlite::Result<Raw> {
        Ok(Raw {
            host: row.get(0)?,
            extractor: row.get(1)?,
            version: row.get(2)?,
            class: row.get(3)?,
            source: row.get(4)?,
            taken_ms: row.get::<_, i64>(5)?.unsigned_abs(),
            data: row.get(6)?,
            missing: row.get(7)?,
        })
    }
}

fn host_id(change: &Transaction<'_>, host: &str) -> rusqlite::Result<i64> {
    change.prepare_cached("INSERT OR IGNORE INTO HostTable(Host) VALUES (?1)")?.execute([host])?;
    change.prepare_cached("SELECT HostID FROM HostTable WHERE Host = ?1")?.query_row([host], |row| row.get(0))
}

/// None when the extractor's version is known with the other class.
fn extractor_id(change: &Transaction<'_>, record: &Record) -> rusqlite::Result<Option<i64>> {
    let class = match record.class {
        Class::Static => "static",
        Class::Dynamic => "dynamic",
    };
    change
        .prepare_cached(
            "INSERT OR IGNORE INTO ExtractorTable(Extractor, Version, Class) VALUES (?1, ?2, ?3)",
        )?
        .execute(params![record.extractor, record.version, class])?;
    change
        .prepare_cached(
            "SELECT ExtractorID FROM ExtractorTable WHERE Extractor = ?1 AND Version = ?2 AND Class = ?3",
        )?
        .query_row(params![record.extractor, record.version, class], |row| row.get(0))
        .optional()
}

fn data_id(change: &Transaction<'_>, extractor: i64, data: &str) -> rusqlite::Result<i64> {
    change
        .prepare_cached("INSERT OR IGNORE INTO DataTable(ExtractorID, Data) VALUES (?1, ?2)")?
        .execute(params![extractor, data])?;
    change
        .prepare_cached("SELECT DataID FROM DataTable WHERE ExtractorID = ?1 AND Data = ?2")?
        .query_row(params![extractor, data], |row| row.get(0))
}

fn data_of(change: &Transaction<'_>, data: i64) -> rusqlite::Result<String> {
    change.prepare_cached("SELECT Data FROM DataTable WHERE DataID = ?1")?.query_row([data], |row| row.get(0))
}

/// Why a row was not put.
enum NotPut {
    Sqlite(rusqlite::Error),
    /// The extractor's version has the other class here.
    Class {
        extractor: String,
        version: u32,
    },
}

impl From<rusqlite::Error> for NotPut {
    fn from(error: rusqlite::Error) -> NotPut {
        NotPut::Sqlite(error)
    }
}

impl NotPut {
    fn at(self, path: &Path) -> DbError {
        match self {
            NotPut::Sqlite(source) => DbError::Sqlite { path: path.into(), source },
            NotPut::Class { extractor, version } => DbError::BadRecord(format!(
                "record '{}': version {version} has the other class in {}; another class is another version",
                crate::system::clip(&extractor),
                path.display()
            )),
        }
    }
}

/// The current row of a host and an extractor.
struct Current {
    row: i64,
    data: i64,
    taken: i64,
}

fn current(change: &Transaction<'_>, host: i64, extractor: &str) -> rusqlite::Result<Option<Current>> {
    change
        .prepare_cached(
            "SELECT rowid, DataID, Taken FROM Host2Data WHERE HostID = ?1 AND Extractor = ?2 AND Current = 1",
        )?
        .query_row(params![host, extractor], |row| {
            Ok(Current { row: row.get(0)?, data: row.get(1)?, taken: row.get(2)? })
        })
        .optional()
}

fn put(change: &Transaction<'_>, host: i64, row: &Checked<'_>, keep: Keep) -> Result<(), NotPut> {
    let record = row.record;
    let taken = i64::try_from(record.taken_ms).unwrap_or(i64::MAX);
    let before = current(change, host, &record.extractor)?;
    let newest = before.as_ref().is_none_or(|before| before.taken <= taken);
    if !newest && keep == Keep::Latest {
        return Ok(());
    }
    let Some(extractor) = extractor_id(change, record)? else {
        return Err(NotPut::Class { extractor: record.extractor.clone(), version: record.version });
    };
    let data = data_id(change, extractor, &row.data)?;
    if let (Some(before), true) = (before, newest) {
        retire(change, &before, data, keep)?;
    }
    change
        .prepare_cached(
            "INSERT INTO Host2Data(HostID, DataID, Extractor, Taken, Source, Missing, Current)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![host, data, record.extractor, taken, record.source, row.missing, newest])?;
    Ok(())
}

/// Makes room for a newer row. Data that nobody has any more go.
fn retire(change: &Transaction<'_>, before: &Current, newer: i64, keep: Keep) -> rusqlite::Result<()> {
    if keep == Keep::History {
        change.prepare_cached("UPDATE Host2Data SET Current = 0 WHERE rowid = ?1")?.execute([before.row])?;
        return Ok(());
    }
    change.prepare_cached("DELETE FROM Host2Data WHERE rowid = ?1")?.execute([before.row])?;
    if before.data != newer {
        change
            .prepare_cached(
                "DELETE FROM DataTable WHERE DataID = ?1 AND NOT EXISTS (SELECT 1 FROM Host2Data WHERE DataID = ?1)",
            )?
            .execute([before.data])?;
    }
    Ok(())
}
