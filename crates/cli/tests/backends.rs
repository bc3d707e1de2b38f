//! A6: `run` with other kinds of file systems than a pool.

mod common;

use common::{Sandbox, text};
use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tidepool_testkit::put_program;

/// A script back end that makes a directory and notes with what it was called.
const SCRIPT: &str = r#"#!/bin/sh
set -e
dir=$TIDEPOOL_STORE/by-script-$TIDEPOOL_NAME
echo "$1 $(tr '\n' ' ' < "$TIDEPOOL_HOSTFILE")" >> "${0%/*}/calls"
test ! -e "${0%/*}/fail-$1"
case $1 in
    start) mkdir -p "$dir" ;;
    health) test -d "$dir" ;;
    path) echo "$dir" ;;
    stop) rm -rf "$dir" ;;
esac
"#;

fn script(sandbox: &Sandbox) -> String {
    // Its name shows that no shell sees it.
    let path = sandbox.path("my $(fs); script");
    put_program(&path, SCRIPT);
    format!("script:{}", path.display())
}

/// Input arrives, the program starts in the file system and finds its path, output arrives
/// with the program's exit code, nothing is left.
fn run_goes_in_and_out(sandbox: &Sandbox, kind: &str) {
    fs::create_dir_all(sandbox.path("in/sub")).unwrap();
    for i in 0..20 {
        fs::write(sandbox.path("in").join(format!("sub/f{i}")), format!("{i}\n").repeat(1000)).unwrap();
    }
    let input = format!("{}:/data", sandbox.path("in").display());
    let output = format!("/out:{}", sandbox.path("results").display());
    let program = "set -e; test \"$PWD\" = \"$TIDEPOOL_DIR\"; test -s $TIDEPOOL_HOSTFILE; test -z \"$LD_PRELOAD\"; \
                   mkdir out; cat data/sub/f* | sort -n > out/sorted; exit 7";
    let args = ["run", "--fs", kind, "--in", &input, "--out", &output, "--json", "--", "sh", "-c", program];
    let done = sandbox.tidepool(&args).output().unwrap();
    assert_eq!(done.status.code(), Some(7), "{kind}: {}", text(&done));
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&report["program_exit"], &report["complete"]), (&7.into(), &true.into()));
    let sorted = fs::read_to_string(sandbox.path("results/sorted")).unwrap();
    assert_eq!((sorted.lines().count(), sorted.lines().last()), (20000, Some("19")));
    sandbox.assert_nothing_left(kind);
}

#[test]
fn a6_a_local_directory_takes_a_run() {
    run_goes_in_and_out(&Sandbox::new(), "local");
}

#[test]
fn a6_a_script_takes_a_run() {
    let sandbox = Sandbox::new();
    run_goes_in_and_out(&sandbox, &script(&sandbox));
    let calls = fs::read_to_string(sandbox.path("calls")).unwrap();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let expected: String =
        ["start", "path", "health", "stop"].iter().map(|word| format!("{word} {host} \n")).collect();
    assert_eq!(calls, expected);
}

#[test]
fn a6_a_script_that_fails_is_named_and_stopped() {
    let sandbox = Sandbox::new();
    let kind = script(&sandbox);
    for (word, code) in [("start", 110), ("path", 110), ("health", 116), ("stop", 113)] {
        let mark = sandbox.path(&format!("fail-{word}"));
        fs::write(&mark, "").unwrap();
        let done = sandbox.tidepool(&["run", "--fs", &kind, "--", "true"]).output().unwrap();
        assert_eq!(done.status.code(), Some(code), "{word}: {}", text(&done));
        assert!(text(&done).contains(&format!("script {word} failed")), "{}", text(&done));
        fs::remove_file(&mark).unwrap();
        if word == "stop" {
            // What it left is for its own means; the record of it is removed by ours.
            fs::remove_dir_all(sandbox.store()).unwrap();
            sandbox.ok(&["pool", "stop"]);
        }
        sandbox.assert_nothing_left(word);
    }
}

/// Output that cannot be staged stays where it is, and its place is told.
#[test]
fn a6_results_of_a_local_run_are_kept_when_they_cannot_be_staged() {
    let sandbox = Sandbox::new();
    let out = format!("/missing:{}", sandbox.path("o").display());
    let args = ["run", "--fs", "local", "--out", &out, "--", "sh", "-c", "echo precious > kept"];
    let done = sandbox.tidepool(&args).output().unwrap();
    assert_eq!(done.status.code(), Some(112), "{}", text(&done));
    let said = text(&done);
    let place = said.split("the results stay in ").nth(1).and_then(|t| t.split(';').next()).unwrap();
    assert_eq!(fs::read_to_string(PathBuf::from(place).join("kept")).unwrap(), "precious\n");
    sandbox.ok(&["pool", "stop"]);
    sandbox.assert_nothing_left("after pool stop");
}

/// What a killed run left is found and removed.
#[test]
fn a6_node_clean_removes_a_killed_local_run() {
    let sandbox = Sandbox::new();
    let args =
        ["run", "--fs", "local", "--", "sh", "-c", "while test -e $TIDEPOOL_HOSTFILE; do sleep 0.05; done"];
    let mut run = sandbox.tidepool(&args).stderr(Stdio::null()).spawn().unwrap();
    let begun = || {
        let pools = fs::read_dir(sandbox.runtime()).into_iter().flatten().flatten();
        pools.map(|e| e.path().join("run.json")).any(|p| p.exists())
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    while !begun() {
        assert!(Instant::now() < deadline, "the run does not begin");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(sandbox.ok(&["node-clean"]), "", "a run that goes on is left alone");
    run.kill().unwrap();
    run.wait().unwrap();
    assert!(sandbox.ok(&["node-clean"]).starts_with("removed pool 'run-"));
    std::thread::sleep(Duration::from_millis(500));
    sandbox.assert_nothing_left("after node-clean");
}

#[test]
fn a6_what_a_kind_cannot_do_is_refused() {
    let sandbox = Sandbox::new();
    for (args, words) in [
        (vec!["--fs", "local", "--hosts", "a,b"], "one node"),
        (vec!["--fs", "local", "--quota", "1GiB"], "no quotas"),
        (vec!["--fs", "local", "--expect-size", "1GiB"], "is not planned"),
        (vec!["--fs", "script:/bin/true", "--quota-objects", "7"], "no quotas"),
        (vec!["--fs", "lustre"], "script:PROGRAM"),
        (vec!["--fs", "script:"], "script:PROGRAM"),
    ] {
        let done = sandbox.tidepool(&[&["run"], &args[..], &["--", "true"]].concat()).output().unwrap();
        assert_eq!(done.status.code(), Some(2), "{args:?}: {}", text(&done));
        assert!(text(&done).contains(words), "{args:?}: {}", text(&done));
        sandbox.assert_nothing_left(&format!("{args:?}"));
    }
}
