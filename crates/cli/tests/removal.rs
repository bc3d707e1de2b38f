//! What `pool start` and `pool stop` must not remove: data of a running pool, what was there before a start that is refused,
//! and what is another user's, or on another mount, in a store. Where it takes two users or mounts it takes root.

mod common;

use common::{Sandbox, text};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const BOB: u32 = 31002;
const DEATH_MAX: Duration = Duration::from_secs(10);

/// A pool of two daemons with a file in it.
struct Pool {
    sandbox: Sandbox,
}

impl Pool {
    fn start() -> Pool {
        let sandbox = Sandbox::new();
        sandbox.ok(&["pool", "start", "--name", "one", "--nodes", "2", "--client", "preload"]);
        fs::write(sandbox.path("file"), vec![7; 3 << 20]).unwrap();
        sandbox.ok(&["cp", "--pool", "one", &sandbox.path("file").to_string_lossy(), "pool:/"]);
        Pool { sandbox }
    }

    fn store(&self, daemon: usize) -> PathBuf {
        self.sandbox.store().join(format!("tidepool-one/d{daemon}"))
    }

    /// From another shell, whose pools are elsewhere.
    fn start_elsewhere(&self, more: &[&str]) -> Output {
        let args = ["pool", "start", "--name", "one", "--nodes", "2", "--client", "preload"];
        let mut command = self.sandbox.tidepool(&[&args[..], more].concat());
        command.env("TIDEPOOL_RUNTIME", self.sandbox.path("rt2")).output().unwrap()
    }

    /// Ends a daemon as a fault would.
    fn kill(&self, daemon: usize) {
        let text = fs::read_to_string(self.sandbox.runtime().join("one/node-0.json")).unwrap();
        let record: serde_json::Value = serde_json::from_str(&text).unwrap();
        let pid = record["daemons"][daemon].as_i64().unwrap();
        kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
        let began = Instant::now();
        let lives =
            || fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z"));
        while lives() {
            assert!(began.elapsed() < DEATH_MAX, "daemon {daemon} does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn stop(&self) -> Output {
        self.sandbox.tidepool(&["pool", "stop", "--pool", "one"]).output().unwrap()
    }
}

/// Names and sizes of all there is.
fn entries(root: &Path) -> BTreeMap<PathBuf, u64> {
    let mut all = BTreeMap::new();
    let mut ahead = vec![root.to_path_buf()];
    while let Some(path) = ahead.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            ahead.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        all.insert(path, if meta.is_file() { meta.len() } else { 0 });
    }
    all
}

fn refused(done: &Output, word: &str) {
    assert!(!done.status.success() && text(done).contains(word), "{word}: {}", text(done));
}

#[test]
fn a_start_on_the_stores_of_a_running_pool_removes_nothing() {
    let pool = Pool::start();
    for more in [&[][..], &["--wipe"], &["--keep"], &["--keep", "--wipe"]] {
        refused(&pool.start_elsewhere(more), "another daemon is using it");
        let out = pool.sandbox.path("out");
        pool.sandbox.ok(&["cp", "--pool", "one", "pool:/file", &out.to_string_lossy()]);
        assert_eq!(fs::read(&out).unwrap(), fs::read(pool.sandbox.path("file")).unwrap(), "{more:?}");
        fs::remove_file(out).unwrap();
    }
    // Of a pool with a dead daemon, too, whose store nobody holds: it starts first, and would be up before the other is refused.
    pool.kill(0);
    let before = entries(&pool.store(0));
    for more in [&[][..], &["--wipe"]] {
        refused(&pool.start_elsewhere(more), "store directory");
        assert_eq!(before, entries(&pool.store(0)), "{more:?}");
    }
    pool.sandbox.ok(&["pool", "stop", "--pool", "one"]);
    pool.sandbox.assert_nothing_left("after stop");
}

#[test]
fn a_start_that_is_refused_for_one_store_wipes_no_other() {
    let pool = Pool::start();
    pool.sandbox.ok(&["pool", "stop", "--pool", "one", "--keep"]);
    fs::rename(pool.store(1), pool.sandbox.path("aside")).unwrap();
    fs::create_dir(pool.store(1)).unwrap();
    fs::write(pool.store(1).join("results"), "precious").unwrap();
    let before = entries(&pool.sandbox.store());
    refused(&pool.start_elsewhere(&["--wipe"]), "holds files that are no store");
    assert_eq!(before, entries(&pool.sandbox.store()));
    // With its store back the pool has its data back.
    fs::remove_file(pool.store(1).join("results")).unwrap();
    fs::remove_dir(pool.store(1)).unwrap();
    fs::rename(pool.sandbox.path("aside"), pool.store(1)).unwrap();
    let args = ["pool", "start", "--name", "one", "--nodes", "2", "--client", "preload", "--keep"];
    pool.sandbox.ok(&args);
    let out = pool.sandbox.path("out");
    pool.sandbox.ok(&["cp", "--pool", "one", "pool:/file", &out.to_string_lossy()]);
    assert_eq!(fs::read(&out).unwrap(), fs::read(pool.sandbox.path("file")).unwrap());
    pool.sandbox.ok(&["pool", "stop", "--pool", "one"]);
}

/// By the daemon, when it is told to end, and by the command, for one that is dead.
#[test]
fn a_stop_follows_no_link() {
    let pool = Pool::start();
    let outside = pool.sandbox.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("results"), "precious").unwrap();
    for daemon in 0..2 {
        for place in ["link", "data/link"] {
            symlink(&outside, pool.store(daemon).join(place)).unwrap();
        }
    }
    pool.kill(1);
    pool.sandbox.ok(&["pool", "stop", "--pool", "one"]);
    pool.sandbox.assert_nothing_left("after stop");
    assert_eq!(fs::read(outside.join("results")).unwrap(), b"precious");
}

/// The record goes last, so a stop that was refused can be done again.
#[test]
fn a_stop_that_meets_another_users_directory_leaves_all_as_it_was() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: a_stop_that_meets_another_users_directory_leaves_all_as_it_was needs root");
        return;
    }
    let pool = Pool::start();
    (0..2).for_each(|daemon| pool.kill(daemon));
    let bobs = pool.store(1).join("data/bobs");
    fs::create_dir(&bobs).unwrap();
    lchown(&bobs, Some(BOB), Some(BOB)).unwrap();
    let before = entries(&pool.sandbox.store());
    let done = pool.stop();
    refused(&done, "31002");
    assert!(text(&done).contains(&*bobs.to_string_lossy()), "{}", text(&done));
    assert_eq!(before, entries(&pool.sandbox.store()));
    fs::remove_dir(&bobs).unwrap();
    pool.sandbox.ok(&["pool", "stop", "--pool", "one"]);
    pool.sandbox.assert_nothing_left("after stop");
}

#[test]
fn a_stop_enters_no_mount() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: a_stop_enters_no_mount needs root, to make one");
        return;
    }
    let pool = Pool::start();
    (0..2).for_each(|daemon| pool.kill(daemon));
    let (outside, at) = (pool.sandbox.path("outside"), pool.store(1).join("data/mounted"));
    [&outside, &at].iter().for_each(|path| fs::create_dir(path).unwrap());
    fs::write(outside.join("results"), "precious").unwrap();
    let before = entries(&pool.sandbox.store());
    let stop = pool.sandbox.tidepool(&["pool", "stop", "--pool", "one"]);
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c"]);
    command.arg(r#"mount --bind "$1" "$2" && shift 2 && exec "$@""#).arg("sh").args([&outside, &at]);
    command.arg(stop.get_program()).args(stop.get_args());
    for (name, value) in stop.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    refused(&command.output().unwrap(), "mounted");
    assert_eq!(fs::read(outside.join("results")).unwrap(), b"precious");
    assert_eq!(before, entries(&pool.sandbox.store()));
    pool.sandbox.ok(&["pool", "stop", "--pool", "one"]);
    pool.sandbox.assert_nothing_left("after stop");
    assert_eq!(fs::read(outside.join("results")).unwrap(), b"precious");
}

/// A store that somebody removes under a running daemon is noticed: nothing is acknowledged that would be gone, and what is there can
/// still be copied out.
#[test]
fn a_store_that_is_removed_under_its_daemon_is_noticed() {
    for (place, moved) in [("", false), ("", true), ("data", false), ("meta", true)] {
        let pool = Pool::start();
        let path = pool.store(1).join(place);
        if moved {
            fs::rename(&path, pool.sandbox.path("aside")).unwrap();
        } else {
            fs::remove_dir_all(&path).unwrap();
        }
        let began = Instant::now();
        loop {
            let status = pool.sandbox.tidepool(&["pool", "status", "--pool", "one"]).output().unwrap();
            if text(&status).contains("was removed") {
                assert!(!status.status.success());
                break;
            }
            assert!(began.elapsed() < DEATH_MAX, "{place}: {}", text(&status));
            std::thread::sleep(Duration::from_millis(50));
        }
        // Names lie at both daemons.
        let file = pool.sandbox.path("file");
        let copied = |number: u32| {
            let to = format!("pool:/again{number}");
            pool.sandbox.tidepool(&["cp", "--pool", "one", &file.to_string_lossy(), &to]).output().unwrap()
        };
        let all: Vec<Output> = (0..8).map(copied).collect();
        let refused: Vec<&Output> = all.iter().filter(|done| !done.status.success()).collect();
        assert!(!refused.is_empty(), "{place}: all of it was acknowledged");
        assert!(refused.iter().all(|done| text(done).contains("was removed")), "{}", text(refused[0]));
        let stopped = pool.stop();
        if moved && place.is_empty() {
            // It is not where the pool could remove it.
            assert!(pool.sandbox.path("aside/tidepool-store.json").exists());
        }
        assert!(stopped.status.success() || text(&stopped).contains("store"), "{}", text(&stopped));
    }
}

/// A kept pool whose store is gone - a disk that is not mounted, a directory that was moved - is not started with an empty one in its place.
#[test]
fn a_kept_pool_is_not_started_without_its_stores() {
    let pool = Pool::start();
    pool.sandbox.ok(&["pool", "stop", "--pool", "one", "--keep"]);
    let aside = pool.sandbox.path("aside");
    let start = ["pool", "start", "--name", "one", "--nodes", "2", "--client", "preload", "--keep"];
    let refused_for = |place: &str| {
        let path = pool.store(1).join(place);
        let before = entries(&pool.store(0));
        fs::rename(&path, &aside).unwrap();
        for empty in [false, true] {
            if empty {
                fs::create_dir(&path).unwrap();
            }
            let done = pool.sandbox.tidepool(&start).output().unwrap();
            assert!(!done.status.success(), "{place}, {empty}: {}", text(&done));
            let word = text(&done);
            assert!(word.contains("pool stop") && word.contains("d1"), "{place}: {word}");
            assert_eq!(before, entries(&pool.store(0)), "{place}");
            if empty {
                fs::remove_dir_all(&path).unwrap();
            } else {
                assert!(!path.exists(), "{place}: nothing was made");
            }
        }
        fs::rename(&aside, &path).unwrap();
    };
    ["", "meta"].iter().for_each(|place| refused_for(place));
    // Nor with another in its place, and --wipe does not make room for an empty one.
    let exchange = || {
        fs::rename(pool.store(0), &aside).unwrap();
        fs::rename(pool.store(1), pool.store(0)).unwrap();
        fs::rename(&aside, pool.store(1)).unwrap();
    };
    exchange();
    let before = entries(&pool.sandbox.store());
    for more in [&[][..], &["--wipe"]] {
        let done = pool.sandbox.tidepool(&[&start[..], more].concat()).output().unwrap();
        refused(&done, "is the store of daemon 1");
        assert_eq!(before, entries(&pool.sandbox.store()), "{more:?}");
    }
    exchange();
    pool.sandbox.ok(&start);
    let out = pool.sandbox.path("out");
    pool.sandbox.ok(&["cp", "--pool", "one", "pool:/file", &out.to_string_lossy()]);
    assert_eq!(fs::read(&out).unwrap(), fs::read(pool.sandbox.path("file")).unwrap());
    pool.sandbox.ok(&["pool", "stop", "--pool", "one"]);
    pool.sandbox.assert_nothing_left("after stop");
}

/// Jobs with several pools know them by their files. A path that is none stops nothing, and removes nothing.
#[test]
fn a_pool_is_meant_by_its_file_too_and_by_nothing_else() {
    let pool = Pool::start();
    let file = pool.sandbox.runtime().join("one/pool.json");
    let stop = |said: &Path| {
        let said = said.to_string_lossy().into_owned();
        pool.sandbox.tidepool(&["pool", "stop", "--pool", &said]).output().unwrap()
    };
    let results = pool.sandbox.path("results");
    fs::create_dir(&results).unwrap();
    fs::write(results.join("other"), "mine").unwrap();
    fs::create_dir(results.join("copied")).unwrap();
    fs::write(results.join("pool.json"), "mine").unwrap();
    fs::copy(&file, results.join("copied/pool.json")).unwrap();
    for name in ["other", "pool.json", "copied/pool.json", "copied", "missing/pool.json"] {
        let refused = stop(&results.join(name));
        assert!(matches!(refused.status.code(), Some(2 | 116)), "{name}: {}", text(&refused));
        assert_eq!(fs::read(results.join("other")).unwrap(), b"mine", "{name}");
        assert!(results.join("copied/pool.json").exists() && file.exists(), "{name}");
    }
    let listed = pool.sandbox.tidepool(&["ls", "/", "--pool", &file.to_string_lossy()]).output().unwrap();
    assert!(text(&listed).contains("file"), "{}", text(&listed));
    let by_name = pool.sandbox.tidepool(&["ls", "/"]).env("TIDEPOOL_POOL", "one").output().unwrap();
    assert!(by_name.status.success(), "{}", text(&by_name));
    // From beside it.
    let mut stop = pool.sandbox.tidepool(&["pool", "stop", "--pool", "./pool.json"]);
    let stopped = stop.current_dir(file.parent().unwrap()).output().unwrap();
    assert!(stopped.status.success(), "{}", text(&stopped));
    pool.sandbox.assert_nothing_left("after a pool was stopped by its file");
}
