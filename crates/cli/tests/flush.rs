//! `tidepool pool flush`, as users type it.

mod common;

use common::{Sandbox, text};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

struct Tiers {
    sandbox: Sandbox,
    burst: String,
    pfs: String,
    input: String,
}

/// A pool whose data stay on the burst buffer, next to nothing of them is flushed by itself, with 4 MB in it.
fn pool(more: &[&str]) -> Tiers {
    let sandbox = Sandbox::new();
    let dir = |name: &str| {
        fs::create_dir(sandbox.path(name)).unwrap();
        sandbox.path(name).display().to_string()
    };
    let (burst, pfs, input) = (dir("burst"), dir("pfs"), sandbox.path("in").display().to_string());
    fs::write(&input, (0..1_000_000u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>()).unwrap();
    let start = ["pool", "start", "--name", "p", "--nodes", "2", "--client", "preload", "--burst", &burst];
    let strategy = ["--strategy", "hp", "--flush-bandwidth", "1"];
    sandbox.ok(&[&start[..], &["--pfs", &pfs], &strategy, more].concat());
    sandbox.ok(&["cp", &input, "pool:/f"]);
    Tiers { sandbox, burst, pfs, input }
}

impl Tiers {
    fn assert_whole(&self) {
        let output = self.sandbox.path("out").display().to_string();
        let _ = fs::remove_file(&output);
        self.sandbox.ok(&["cp", "pool:/f", &output]);
        assert!(fs::read(&self.input).unwrap() == fs::read(&output).unwrap());
    }

    fn lies(&self) -> String {
        // A daemon that was in trouble says so for good.
        let output = self.sandbox.tidepool(&["pool", "status"]).output().unwrap();
        let status = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = status.lines().find_map(|line| line.strip_prefix("data on tiers: "));
        line.expect("a pool on tiers tells them").split(';').next().unwrap().to_string()
    }

    fn json(&self, words: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.sandbox.ok(words)).unwrap()
    }
}

/// When it ends, everything lies on the last tier; with nothing to do it says so.
#[test]
fn it_ends_when_all_lies_there() {
    let tiers = pool(&[]);
    assert!(!tiers.lies().contains("burst 0 B"), "{}", tiers.lies());
    let report = tiers.json(&["pool", "flush", "--wait", "--bandwidth", "1GiB", "--json"]);
    assert_eq!(tiers.lies(), "local 0 B, burst 0 B, pfs 3.8 MiB");
    assert_eq!((&report["complete"], &report["written_meanwhile_bytes"]), (&true.into(), &0.into()));
    assert!(report["moved_bytes"].as_u64().unwrap() > 0, "{report}");
    let again = tiers.json(&["pool", "flush", "--json"]);
    assert_eq!((&again["complete"], &again["left_bytes"]), (&true.into(), &0.into()));
    assert!(tiers.sandbox.ok(&["pool", "flush", "--to", "pfs"]).contains("nothing is to be moved"));
    tiers.assert_whole();
    tiers.sandbox.ok(&["pool", "stop"]);
    for dir in [&tiers.burst, &tiers.pfs] {
        assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
    }
    tiers.sandbox.assert_nothing_left("after a flush");
}

/// Without --wait it is ordered only, and goes on by itself.
#[test]
fn it_goes_on_by_itself() {
    let tiers = pool(&[]);
    let said = tiers.sandbox.ok(&["pool", "flush", "--bandwidth", "1GiB"]);
    assert!(said.contains("are on the way") || said.contains("nothing is to be moved"), "{said}");
    tidepool_testkit::eventually("it to be flushed", || tiers.lies() == "local 0 B, burst 0 B, pfs 3.8 MiB");
    tiers.sandbox.ok(&["pool", "stop"]);
}

/// A program that writes all the time does not keep it from ending, and is told of.
#[test]
fn what_is_written_meanwhile_is_told() {
    let tiers = pool(&[]);
    let script = "i=0; while [ ! -e $0 ]; do dd if=/dev/zero of=g bs=64k count=1 seek=$i 2>/dev/null; i=$((i+1)); done; echo $i";
    let stop = tiers.sandbox.path("stop").display().to_string();
    let words = ["exec", "--client", "preload", "--", "sh", "-c", script, &stop];
    let mut writer = tiers.sandbox.tidepool(&words).stdout(Stdio::piped()).spawn().unwrap();
    let written = || {
        let status = tiers.json(&["pool", "status", "--json"]);
        let daemons = status["daemons"].as_array().unwrap();
        daemons.iter().map(|daemon| daemon["counters"]["bytes_written"].as_u64().unwrap()).sum::<u64>()
    };
    let before = written();
    tidepool_testkit::eventually("it to write", || written() > before);
    // Slow enough for the program to write something while it lasts.
    let report = tiers.json(&["pool", "flush", "--wait", "--bandwidth", "2MiB", "--json"]);
    fs::write(&stop, "").unwrap();
    assert!(writer.wait().unwrap().success());
    assert!(report["written_meanwhile_bytes"].as_u64().unwrap() > 0, "{report}");
    tiers.assert_whole();
    tiers.sandbox.ok(&["pool", "stop"]);
}

/// Directories in the place of files that a flush would make: those that were made.
fn in_the_way(burst: &Path, pfs: &Path) -> Vec<PathBuf> {
    let mut put = Vec::new();
    for entry in fs::read_dir(burst).unwrap().flatten() {
        let there = pfs.join(entry.file_name());
        if entry.path().is_dir() {
            fs::create_dir_all(&there).unwrap();
            put.extend(in_the_way(&entry.path(), &there));
        } else if !there.exists() {
            fs::create_dir(&there).unwrap();
            put.push(there);
        }
    }
    put
}

/// A tier that fails ends the wait with an error; when it is well again, the same command goes on.
#[test]
fn a_tier_that_fails_is_named() {
    let tiers = pool(&["--flush", "idle"]);
    let stores = |tier: &str| tiers.sandbox.path(tier).join("tidepool-stores");
    // Flushing one unit at a time, the daemons have next to nothing there; a file just written they have wholly above, if this test
    // is not held up for so long that they have flushed it.
    let in_its_way = |number: usize| {
        tiers.sandbox.ok(&["cp", &tiers.input, &format!("pool:/g{number}")]);
        in_the_way(&stores("burst"), &stores("pfs"))
    };
    let put = (0..20).map(in_its_way).find(|put| !put.is_empty()).expect("each copy was flushed at once");
    let flush = ["pool", "flush", "--wait", "--bandwidth", "1GiB"];
    let done = tiers.sandbox.tidepool(&flush).output().unwrap();
    assert_eq!(done.status.code(), Some(112), "{}", text(&done));
    for said in ["cannot move", "Is a directory", "it goes on trying"] {
        assert!(text(&done).contains(said), "{}", text(&done));
    }
    put.iter().for_each(|dir| fs::remove_dir(dir).unwrap());
    tiers.sandbox.ok(&flush);
    assert!(tiers.lies().starts_with("local 0 B, burst 0 B, pfs "), "{}", tiers.lies());
    tiers.assert_whole();
    tiers.sandbox.ok(&["pool", "stop"]);
}

/// A pool that is kept can give the burst buffer back.
#[test]
fn a_pool_is_stopped_with_nothing_on_the_burst_buffer() {
    let tiers = pool(&["--keep"]);
    tiers.sandbox.ok(&["pool", "stop", "--keep"]);
    let blocks = |dir: &str| {
        let output = std::process::Command::new("du").args(["-sk", dir]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    assert!(blocks(&tiers.burst) > 3000, "without it data stay there");
    let start = ["pool", "start", "--name", "p", "--nodes", "2", "--client", "preload", "--keep"];
    let with = ["--burst", &tiers.burst, "--pfs", &tiers.pfs, "--strategy", "hp"];
    tiers.sandbox.ok(&[&start[..], &with].concat());
    tiers.sandbox.ok(&["pool", "stop", "--keep", "--flush-first"]);
    assert!(blocks(&tiers.burst) < 1000, "{} KiB are left", blocks(&tiers.burst));
    tiers.sandbox.ok(&[&start[..], &with].concat());
    assert_eq!(tiers.lies(), "local 0 B, burst 0 B, pfs 3.8 MiB");
    tiers.assert_whole();
    tiers.sandbox.ok(&["pool", "stop"]);
    tiers.sandbox.assert_nothing_left("after a pool that was kept");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let sandbox = Sandbox::new();
    let refused = |words: &[&str], said: &str| {
        let done = sandbox.tidepool(words).output().unwrap();
        assert_eq!(done.status.code(), Some(2), "{words:?}: {}", text(&done));
        assert!(text(&done).contains(said), "{words:?}: {}", text(&done));
    };
    let pfs = sandbox.path("pfs").display().to_string();
    fs::create_dir(&pfs).unwrap();
    let start = ["pool", "start", "--name", "p", "--nodes", "1", "--client", "preload"];
    for (words, said) in [
        (&["--flush", "idle"][..], "--flush is for pools with shared storage"),
        (&["--pfs", &pfs, "--flush", "idel"], "'idle'"),
        (
            &["--pfs", &pfs, "--flush-bandwidth", "bust=1MB"],
            "'bust' is unknown; write burst, pfs, pool or daemon",
        ),
        (&["--pfs", &pfs, "--flush-bandwidth", "burst=1MB"], "is for pools with --burst"),
    ] {
        refused(&[&start[..], words].concat(), said);
    }
    refused(&["pool", "stop", "--flush-first"], "--keep");
    sandbox.ok(&start);
    refused(&["pool", "flush", "--wait"], "there is nowhere to flush them to");
    sandbox.ok(&["pool", "stop"]);
    sandbox.ok(&[&start[..], &["--pfs", &pfs]].concat());
    refused(&["pool", "flush", "--to", "burst"], "the pool has no burst buffer");
    sandbox.ok(&["pool", "stop"]);
    sandbox.assert_nothing_left("after refusals");
}
