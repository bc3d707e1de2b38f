//! Damaged metadata and journals, through the programs: what starts, what does not and says so, and what `tidepool check --repair` makes
//! of it. A power failure is a page of zeros where the kernel had not written one.

mod common;

use common::{OwnStager, Sandbox, text};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

const FILES: usize = 30;
const DEATH_MAX: Duration = Duration::from_secs(10);

/// A pool of one daemon with files in it.
struct Pool {
    sandbox: Sandbox,
    backend: &'static str,
}

impl Pool {
    fn with(backend: &'static str) -> Pool {
        let sandbox = Sandbox::new();
        let start =
            ["pool", "start", "--name", "one", "--nodes", "1", "--client", "preload", "--backend", backend];
        sandbox.ok(&start);
        fs::create_dir(sandbox.path("in")).unwrap();
        for number in 0..FILES {
            fs::write(sandbox.path(&format!("in/file{number:02}")), content(number)).unwrap();
        }
        sandbox.ok(&["cp", "--pool", "one", &sandbox.path("in").to_string_lossy(), "pool:/"]);
        Pool { sandbox, backend }
    }

    fn meta(&self) -> PathBuf {
        self.sandbox.store().join("tidepool-one/d0/meta")
    }

    fn log(&self) -> PathBuf {
        let logs = fs::read_dir(self.meta()).unwrap().map(|entry| entry.unwrap().path());
        logs.into_iter().find(|path| path.extension().is_some_and(|ext| ext == "log")).unwrap()
    }

    fn again(&self) -> Output {
        self.again_with(self.backend)
    }

    fn again_with(&self, backend: &str) -> Output {
        let start = ["pool", "start", "--name", "one", "--nodes", "1", "--client", "preload", "--keep"];
        self.sandbox.tidepool(&start).args(["--backend", backend]).output().unwrap()
    }

    fn stop(&self) {
        self.sandbox.ok(&["pool", "stop", "--pool", "one", "--keep"]);
    }

    fn repair(&self, more: &[&str]) -> Output {
        let store = self.sandbox.store();
        let store = store.to_string_lossy();
        let args = [&["check", "--repair", &store][..], more].concat();
        self.sandbox.tidepool(&args).stdin(Stdio::null()).output().unwrap()
    }

    fn cat(&self, number: usize) -> Output {
        let file = format!("/in/file{number:02}");
        self.sandbox.tidepool(&["cat", "--pool", "one", &file]).output().unwrap()
    }

    /// Numbers of the files that are there, each with its content.
    fn whole(&self) -> Vec<usize> {
        let whole = |number: &usize| {
            let read = self.cat(*number);
            assert!(
                !read.status.success() || read.stdout == content(*number),
                "file {number} has other content"
            );
            read.status.success()
        };
        (0..FILES).filter(whole).collect()
    }

    fn kill(&self) {
        let record = fs::read_to_string(self.sandbox.runtime().join("one/node-0.json")).unwrap();
        let record: serde_json::Value = serde_json::from_str(&record).unwrap();
        let pid = record["daemons"][0].as_i64().unwrap() as i32;
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        let began = Instant::now();
        while fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z")) {
            assert!(began.elapsed() < DEATH_MAX, "the daemon does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn content(number: usize) -> Vec<u8> {
    vec![number as u8 + 1; 100 + number * 700]
}

fn all() -> Vec<usize> {
    (0..FILES).collect()
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x20;
    fs::write(path, bytes).unwrap();
}

fn place_of(path: &Path, needle: &[u8]) -> usize {
    let bytes = fs::read(path).unwrap();
    bytes.windows(needle.len()).position(|window| window == needle).expect("it stands there")
}

/// Names and contents of all files in a directory.
fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all.into_iter()
        .filter(|path| path.is_file())
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

#[test]
fn a_damaged_log_is_refused_told_of_and_repaired() {
    let pool = Pool::with("memlog");
    // In use.
    let busy = pool.repair(&["--dry-run"]);
    assert!(!busy.status.success() && text(&busy).contains("another daemon is using it"), "{}", text(&busy));
    pool.stop();
    let well = pool.repair(&[]);
    assert!(well.status.success() && text(&well).contains("nothing is damaged"), "{}", text(&well));
    flip(&pool.log(), place_of(&pool.log(), b"file07"));
    let before = files(&pool.meta());
    let refused = pool.again();
    assert!(!refused.status.success() && text(&refused).contains("check --repair"), "{}", text(&refused));
    // Looking, and being asked where nobody answers, change nothing.
    let looked = pool.repair(&["--dry-run", "--json"]);
    assert_eq!(looked.status.code(), Some(114), "{}", text(&looked));
    let said: serde_json::Value = serde_json::from_slice(&looked.stdout).unwrap();
    assert_eq!(said["repaired"], false);
    assert_eq!(said["places"][0]["damage"].as_array().unwrap().len(), 1, "{said}");
    assert!(said["places"][0]["damage"][0]["at"].as_u64().is_some());
    assert_eq!(pool.repair(&[]).status.code(), Some(2));
    assert_eq!(files(&pool.meta()), before);
    let repaired = pool.repair(&["--yes"]);
    assert!(repaired.status.success() && text(&repaired).contains("kept as"), "{}", text(&repaired));
    let log = before.iter().find(|(name, _)| name.extension().is_some_and(|ext| ext == "log")).unwrap();
    assert!(files(&pool.meta()).iter().any(|(_, bytes)| *bytes == log.1), "the damaged log is kept");
    let started = pool.again();
    assert!(started.status.success(), "{}", text(&started));
    let whole = pool.whole();
    assert!(whole.len() >= FILES - 1 && !whole.contains(&7), "{whole:?}");
    // What is made now takes nobody's place.
    pool.sandbox.ok(&["cp", "--pool", "one", &pool.sandbox.path("in/file07").to_string_lossy(), "pool:/in/"]);
    assert_eq!(pool.whole(), all());
    pool.sandbox.ok(&["pool", "stop", "--pool", "one"]);
}

#[test]
fn a_bad_record_of_lmdb_fails_what_needs_it_until_it_is_repaired() {
    let pool = Pool::with("lmdb");
    pool.stop();
    let data = pool.meta().join("data.mdb");
    let mut bytes = fs::read(&data).unwrap();
    // Each copy of the entry, also on pages that are free: behind its name stands the object's number.
    let places: Vec<usize> = (0..bytes.len() - 6).filter(|at| &bytes[*at..*at + 6] == b"file07").collect();
    assert!(!places.is_empty());
    places.iter().for_each(|at| bytes[at + 6] ^= 1);
    fs::write(&data, bytes).unwrap();
    let started = pool.again();
    assert!(started.status.success(), "{}", text(&started));
    // More often than there are workers: each one that ended would be missed.
    for _ in 0..40 {
        let failed = pool.cat(7);
        assert!(!failed.status.success() && text(&failed).contains("dentries"), "{}", text(&failed));
    }
    assert_eq!(pool.whole().len(), FILES - 1);
    let status = pool.sandbox.tidepool(&["pool", "status", "--pool", "one"]).output().unwrap();
    assert!(text(&status).contains("checksum"), "{}", text(&status));
    pool.stop();
    let repaired = pool.repair(&["--yes"]);
    assert!(repaired.status.success() && text(&repaired).contains("dentries"), "{}", text(&repaired));
    let started = pool.again();
    assert!(started.status.success(), "{}", text(&started));
    assert_eq!(pool.whole().len(), FILES - 1);
    pool.sandbox.ok(&["cp", "--pool", "one", &pool.sandbox.path("in/file07").to_string_lossy(), "pool:/in/"]);
    assert_eq!(pool.whole(), all());
    pool.sandbox.ok(&["ls", "--pool", "one", "/in"]);
    pool.sandbox.ok(&["pool", "stop", "--pool", "one"]);
}

/// It would look like an empty pool.
#[test]
fn a_store_of_the_other_backend_is_refused() {
    for (made, other) in [("memlog", "lmdb"), ("lmdb", "memlog")] {
        let pool = Pool::with(made);
        pool.stop();
        let refused = pool.again_with(other);
        assert!(
            !refused.status.success() && text(&refused).contains(&format!("--backend {made}")),
            "{}",
            text(&refused)
        );
        assert!(pool.again().status.success());
        assert_eq!(pool.whole(), all());
        pool.sandbox.ok(&["pool", "stop", "--pool", "one"]);
    }
}

/// Of the log's end that was not synced any page may be missing after a power failure.
#[test]
fn a_page_that_was_not_synced_costs_no_start() {
    for page in 0..3 {
        let pool = Pool::with("memlog");
        let valid = || fs::read(pool.log()).unwrap().iter().rposition(|byte| *byte != 0).unwrap() + 1;
        // What `cp` brings is synced.
        let synced = valid();
        let make = "cd $TIDEPOOL_DIR; for n in $(seq 300); do : > later$n; done";
        pool.sandbox.ok(&["exec", "--pool", "one", "--", "/bin/sh", "-c", make]);
        pool.kill();
        let end = valid();
        let begin = (synced + 4096).next_multiple_of(4096) + page * 4096;
        assert!(begin + 8192 < end, "records follow: {synced}, {end}");
        let mut bytes = fs::read(pool.log()).unwrap();
        bytes[begin..begin + 4096].fill(0);
        fs::write(pool.log(), bytes).unwrap();
        let started = pool.again();
        assert!(started.status.success(), "{}", text(&started));
        assert_eq!(pool.whole(), all());
        let listed = pool.sandbox.ok(&["ls", "--pool", "one", "/"]);
        let later = listed.lines().filter(|line| line.contains("later")).count();
        assert!((1..300).contains(&later), "{later} of 300");
        let checked = pool.sandbox.tidepool(&["check", "--pool", "one"]).output().unwrap();
        assert_ne!(checked.status.code(), Some(114), "{}", text(&checked));
        pool.sandbox.ok(&["pool", "stop", "--pool", "one"]);
    }
}

/// A stager with tasks in its journal that is not running any more.
fn stopped_stager() -> (OwnStager, PathBuf) {
    let stager = OwnStager::with("");
    for number in 0..8 {
        fs::write(stager.sandbox.path(&format!("a/in{number}")), vec![number; 1000]).unwrap();
        stager.ok(&["submit", "--wait", "copy", &format!("a://in{number}"), &format!("b://out{number}")]);
    }
    stager.sandbox.ok(&["stage", "stop", "--now", "--dir", &stager.dir()]);
    let dir = journal_dir(stager.sandbox.dir.path());
    (stager, dir)
}

fn journal_dir(root: &Path) -> PathBuf {
    let mut ahead = vec![root.to_path_buf()];
    while let Some(dir) = ahead.pop() {
        if dir.join("stager.journal").is_file() {
            return dir;
        }
        let below = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        ahead.extend(below.filter(|path| path.is_dir()));
    }
    panic!("there is no journal");
}

#[test]
fn a_damaged_journal_is_refused_kept_and_repaired() {
    let (stager, dir) = stopped_stager();
    let journal = dir.join("stager.journal");
    flip(&journal, place_of(&journal, b"in3"));
    let before = fs::read(&journal).unwrap();
    let (state, config) = (stager.dir(), stager.sandbox.path("stager.toml"));
    let start = ["stage", "start", "--dir", &state, "--config", &config.display().to_string()];
    let refused = stager.sandbox.tidepool(&start).output().unwrap();
    assert!(!refused.status.success() && text(&refused).contains("is damaged: bytes"), "{}", text(&refused));
    assert_eq!(fs::read(&journal).unwrap(), before);
    let repair = |more: &str| {
        let args = ["check", "--repair", &dir.to_string_lossy(), more];
        stager.sandbox.tidepool(&args).stdin(Stdio::null()).output().unwrap()
    };
    let looked = repair("--dry-run");
    assert_eq!(looked.status.code(), Some(114), "{}", text(&looked));
    assert_eq!(fs::read(&journal).unwrap(), before);
    let repaired = repair("--yes");
    assert!(repaired.status.success(), "{}", text(&repaired));
    assert_eq!(fs::read(dir.join("damaged-stager.journal")).unwrap(), before);
    stager.start();
    let busy = repair("--dry-run");
    assert!(!busy.status.success() && text(&busy).contains("a stager is using it"), "{}", text(&busy));
    let listed = stager.ok(&["list"]);
    let known = (0..8).filter(|number| listed.contains(&format!("in{number}"))).count();
    assert_eq!(known, 7, "{listed}");
    // Numbers of tasks that are lost are not given out again.
    fs::write(stager.sandbox.path("a/more"), "more").unwrap();
    stager.ok(&["submit", "--wait", "copy", "a://more", "b://more"]);
}
