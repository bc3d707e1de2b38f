//! The resource database: equal data once, history, many writers, and files that are something else.

use serde_json::json;
use std::path::Path;
use std::sync::Barrier;
use tidepool_sysmap::db::{Database, DbError, HostRecord, Keep, Wanted};
use tidepool_sysmap::{Class, Missing, Record};

fn record(extractor: &str, taken_ms: u64, data: serde_json::Value) -> Record {
    let (extractor, source) = (extractor.to_string(), Some("test".to_string()));
    Record { extractor, version: 1, class: Class::Static, source, taken_ms, data, missing: vec![] }
}

fn open(dir: &Path) -> Database {
    Database::open(&dir.join("resources.db")).unwrap()
}

fn all(database: &Database, history: bool) -> Vec<HostRecord> {
    database.records(&Wanted { history, ..Wanted::default() }).unwrap()
}

#[test]
fn equal_data_of_a_hundred_hosts_are_stored_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut database = open(dir.path());
    for n in 0..100 {
        let records = [record("cpu", 1, json!({"cores": 8})), record("memory", 1, json!({"total": 1}))];
        database.store(&format!("n{n}"), &records, Keep::Latest).unwrap();
    }
    let counts = database.counts().unwrap();
    assert_eq!((counts.hosts, counts.extractors, counts.data, counts.host2data), (100, 2, 2, 200));
    let contents = database.contents("cpu").unwrap();
    assert_eq!((contents.len(), contents[0].1.len()), (1, 100));
}

/// A version of an extractor is of one class: another one under its number is refused, with all that comes with it.
#[test]
fn another_class_is_another_version() {
    let dir = tempfile::tempdir().unwrap();
    let mut database = open(dir.path());
    database.store("n1", &[record("coolers", 1, json!(1))], Keep::Latest).unwrap();
    let other = Record { class: Class::Dynamic, ..record("coolers", 2, json!(2)) };
    let both = [record("cpu", 2, json!(2)), other.clone()];
    let said = database.store("n1", &both, Keep::Latest).unwrap_err().to_string();
    assert!(said.contains("'coolers': version 1 has the other class"), "{said}");
    let left = all(&database, true);
    assert_eq!((left.len(), left[0].record.class), (1, Class::Static), "{left:?}");
    let said = database.revise("n1", "coolers", Keep::Latest, |_| other.clone()).unwrap_err().to_string();
    assert!(said.contains("other class"), "{said}");
    database.store("n1", &[Record { version: 2, ..other }], Keep::Latest).unwrap();
    assert_eq!(all(&database, false)[0].record.class, Class::Dynamic);
}

#[test]
fn what_was_stored_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut database = open(dir.path());
    let mut told = record("disks", 5, json!({"disks": [], "x": null}));
    told.missing = vec![Missing::new("/sys/block", "Permission denied")];
    let nothing =
        Record { source: None, data: json!(null), class: Class::Dynamic, ..record("load", 6, json!(1)) };
    database.store("n1", &[told.clone(), nothing.clone()], Keep::Latest).unwrap();
    let found = open(dir.path());
    let with_host = |record| HostRecord { host: "n1".into(), record };
    assert_eq!(all(&found, false), [told, nothing].map(with_host));
    let none = Wanted { hosts: vec!["n2".into()], ..Wanted::default() };
    assert_eq!(found.records(&none).unwrap(), []);
    let one = Wanted { extractors: vec!["load".into()], ..Wanted::default() };
    assert_eq!(found.records(&one).unwrap().len(), 1);
}

#[test]
fn the_newest_counts_and_history_is_kept_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let mut database = open(dir.path());
    let mut store = |taken, free: u64, keep| {
        database.store("n1", &[record("space", taken, json!({"free": free}))], keep).unwrap();
    };
    store(10, 1, Keep::Latest);
    store(20, 2, Keep::Latest);
    // Of a clock that is behind, or imported from an old file.
    store(15, 9, Keep::Latest);
    let seen = |records: Vec<HostRecord>| {
        records
            .iter()
            .map(|r| (r.record.taken_ms, r.record.data["free"].as_u64().unwrap()))
            .collect::<Vec<_>>()
    };
    let database = open(dir.path());
    assert_eq!(seen(all(&database, true)), [(20, 2)]);
    assert_eq!(database.counts().unwrap().data, 1, "data that nobody has go");
    let mut database = database;
    let mut store = |taken, free: u64| {
        database.store("n1", &[record("space", taken, json!({"free": free}))], Keep::History).unwrap();
    };
    store(30, 3);
    store(25, 4);
    let database = open(dir.path());
    assert_eq!(seen(all(&database, true)), [(20, 2), (25, 4), (30, 3)]);
    assert_eq!(seen(all(&database, false)), [(30, 3)]);
}

/// Ten at a time add to one record, some with clocks that are behind.
#[test]
fn revisions_of_one_record_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for n in 0..10u64 {
            let dir = dir.path();
            scope.spawn(move || {
                let add = |before: Option<&serde_json::Value>| {
                    let mut list = before.map_or(vec![], |data| data.as_array().unwrap().clone());
                    list.push(json!(n));
                    record("rates", 100 - n, json!(list))
                };
                open(dir).revise("n1", "rates", Keep::Latest, add).unwrap();
            });
        }
    });
    let records = all(&open(dir.path()), true);
    let mut list: Vec<u64> = serde_json::from_value(records[0].record.data.clone()).unwrap();
    list.sort_unstable();
    assert_eq!((records.len(), list), (1, (0..10).collect()));
    assert_eq!(records[0].record.taken_ms, 100);
    assert_eq!(open(dir.path()).counts().unwrap().data, 1, "data that nobody has go");
}

#[test]
fn a_new_version_of_a_form_is_another_row() {
    let dir = tempfile::tempdir().unwrap();
    let mut database = open(dir.path());
    database.store("n1", &[record("cpu", 1, json!(1))], Keep::Latest).unwrap();
    database.store("n2", &[Record { version: 2, ..record("cpu", 1, json!(1)) }], Keep::Latest).unwrap();
    let counts = database.counts().unwrap();
    assert_eq!((counts.extractors, counts.data), (2, 2));
    database.store("n1", &[Record { version: 2, ..record("cpu", 2, json!(1)) }], Keep::Latest).unwrap();
    assert_eq!(all(&database, false).iter().map(|r| r.record.version).collect::<Vec<_>>(), [2, 2]);
}

#[test]
fn a_host_is_forgotten_with_what_only_it_had() {
    let dir = tempfile::tempdir().unwrap();
    let mut database = open(dir.path());
    for (host, cores) in [("n1", 8), ("n2", 16), ("n3", 8)] {
        database.store(host, &[record("cpu", 1, json!(cores))], Keep::Latest).unwrap();
    }
    assert!(database.forget("n2").unwrap() && !database.forget("n2").unwrap());
    assert!(database.forget("n1").unwrap());
    assert_eq!(database.hosts().unwrap(), ["n3"]);
    assert_eq!(database.counts().unwrap().data, 1);
}

/// 1,000 hosts, 100 of them different, from 50 writers at a time, each with a connection of its own.
#[test]
fn fifty_writers_lose_no_host() {
    let dir = tempfile::tempdir().unwrap();
    let barrier = Barrier::new(50);
    std::thread::scope(|scope| {
        for writer in 0..50u64 {
            let (dir, barrier) = (dir.path(), &barrier);
            scope.spawn(move || {
                barrier.wait();
                for n in (0..20).map(|n| writer * 20 + n) {
                    let records = [
                        record("cpu", n, json!({"cores": n % 100})),
                        record("disks", n, json!({"bytes": n % 100})),
                    ];
                    open(dir).store(&format!("n{n:04}"), &records, Keep::Latest).unwrap();
                }
            });
        }
    });
    let database = open(dir.path());
    let counts = database.counts().unwrap();
    assert_eq!((counts.hosts, counts.data, counts.host2data), (1000, 200, 2000));
    for r in all(&database, false).iter().filter(|r| r.record.extractor == "cpu") {
        let n: u64 = r.host[1..].parse().unwrap();
        assert_eq!(r.record.data["cores"], n % 100);
    }
}

#[test]
fn other_files_are_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other.db");
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("CREATE TABLE theirs(x)").unwrap();
    let said = |path: &Path| match Database::open(path) {
        Err(error @ DbError::Foreign { .. }) => error.to_string(),
        Err(error) => error.to_string(),
        Ok(_) => panic!("it was opened"),
    };
    assert!(said(&path).contains("no resource database"), "{}", said(&path));
    let tables: i64 = other.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).unwrap();
    assert_eq!(tables, 1);

    std::fs::write(dir.path().join("text"), "years of work, and no database at all").unwrap();
    assert!(said(&dir.path().join("text")).contains("not a database"));
    open(dir.path());
    let later = rusqlite::Connection::open(dir.path().join("resources.db")).unwrap();
    later.pragma_update(None, "user_version", 2).unwrap();
    assert!(said(&dir.path().join("resources.db")).contains("format 2; this release knows 1"));
    assert!(Database::open_read(&dir.path().join("none")).is_err());
    assert!(!dir.path().join("none").exists());
}

#[test]
fn bad_names_and_times_are_refused_before_anything_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let mut database = open(dir.path());
    let good = record("cpu", 1, json!(1));
    for host in ["", "a\nb", &"x".repeat(256)] {
        assert!(matches!(
            database.store(host, std::slice::from_ref(&good), Keep::Latest),
            Err(DbError::BadRecord(_))
        ));
    }
    let late = Record { taken_ms: u64::MAX, ..good.clone() };
    assert!(database.store("n1", &[good, late], Keep::Latest).is_err());
    assert_eq!(database.counts().unwrap().hosts, 0);
}

/// The numbers in the file's header, which other programs look at.
#[test]
fn the_header_is_pinned() {
    let dir = tempfile::tempdir().unwrap();
    // Closed, so that all is in the file.
    drop(open(dir.path()));
    let bytes = std::fs::read(dir.path().join("resources.db")).unwrap();
    assert_eq!(&bytes[..16], b"SQLite format 3\0");
    assert_eq!(&bytes[68..72], b"TPRD");
    assert_eq!(&bytes[60..64], [0, 0, 0, 1]);
}

/// A question over 1,000 hosts, 100 of them different: how long it takes is printed, what it says is checked.
#[test]
fn a_question_finds_all_hosts_it_is_about() {
    let dir = tempfile::tempdir().unwrap();
    let mut database = open(dir.path());
    let hosts: Vec<(String, Vec<Record>)> = (0..1000u64)
        .map(|n| {
            let space = json!({"filesystems": [
                {"target": "/", "disk_kind": "ssd", "available_bytes": 1, "read_only": false},
                {"target": "/local", "disk_kind": "nvme", "available_bytes": n % 100 * 10_000_000_000, "read_only": false},
            ]});
            (format!("n{n:04}"), vec![record("cpu", 1, json!({"cores": n % 100})), record("filesystems", 1, space)])
        })
        .collect();
    database
        .store_all(hosts.iter().map(|(host, records)| (host.as_str(), records.as_slice())), Keep::Latest)
        .unwrap();
    let question =
        tidepool_sysmap::query::parse("hosts with >= 500GB free on nvme and not 70 cores").unwrap();
    let begun = std::time::Instant::now();
    let found = question.hosts(&database).unwrap();
    println!("{:?} for a question over 1,000 hosts", begun.elapsed());
    let expected: Vec<&str> =
        (0..1000).filter(|n| (50..70).contains(&(n % 100))).map(|n| hosts[n].0.as_str()).collect();
    assert_eq!(found, expected);
}
