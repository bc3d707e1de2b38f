//! `tidepool layout`, and the flags that say how data lie.

mod common;

use common::{Sandbox, doors, text};
use std::fs;

/// A pool's wish comes true from the flags to the file, through the door.
#[test]
fn layouts_are_set_shown_and_handed_down() {
    let sandbox = Sandbox::new();
    let hints = sandbox.path("hints");
    fs::write(&hints, "# by name\n*.h5 chunk-size=1MiB stripe=2\nproc*/ placement=local\n").unwrap();
    let hints = hints.to_str().unwrap();
    let start = ["pool", "start", "--name", "lay", "--nodes", "3", "--client", "preload", "--hints", hints];
    sandbox.ok(&[&start[..], &["--weights", "2,1,1"]].concat());
    let layout = |args: &[&str]| sandbox.ok(&[&["layout"], args].concat());
    let show = |path: &str| layout(&["show", "--pool", "lay", path]);
    assert!(show("/").contains("as the pool says, weighted, chunks of 512KiB"), "{}", show("/"));

    sandbox.ok(&["mkdir", "--pool", "lay", "/d", "/proc1"]);
    layout(&["set", "--pool", "lay", "--placement", "wide", "--stripe", "2", "/d"]);
    assert!(
        show("/d").contains("files made here: wide, chunks of 512KiB, over 2 daemons in turn"),
        "{}",
        show("/d")
    );
    assert!(show("/proc1").contains("files made here: local"), "{}", show("/proc1"));
    let make = "cd $TIDEPOOL_DIR && echo 1 > d/f && echo 2 > d/a.h5 && echo 3 > proc1/f && echo 4 > top";
    sandbox.ok(&["exec", "--pool", "lay", "--client", "preload", "--", "bash", "-c", make]);
    assert!(show("/d/f").contains("over 2 daemons in turn; daemons "), "{}", show("/d/f"));
    assert!(show("/d/a.h5").contains("wide, chunks of 1MiB, over 2 daemons"), "{}", show("/d/a.h5"));
    assert!(show("/proc1/f").contains("local; daemons "), "{}", show("/proc1/f"));
    assert!(show("/top").contains("weighted"), "{}", show("/top"));
    let json = layout(&["show", "--pool", "lay", "--json", "/d/a.h5"]);
    for part in ["\"chunk_size\":1048576", "\"placement\":\"wide\"", "\"stripe\":2"] {
        assert!(json.contains(part), "{json}");
    }
    layout(&["set", "--pool", "lay", "--as-pool", "/d"]);
    assert!(show("/d").contains("as the pool says"), "{}", show("/d"));

    for (args, code, words) in [
        (&["set", "--pool", "lay", "--placement", "local", "/top"][..], 1, "a file keeps the layout"),
        (&["set", "--pool", "lay", "/d"], 2, "say what is to be set"),
        (
            &["set", "--pool", "lay", "--placement", "local", "--stripe", "2", "/d"],
            2,
            "a stripe is for placement 'wide'",
        ),
        (&["set", "--pool", "lay", "--placement", "near", "/d"], 2, "write wide, local, weighted or group"),
        (&["set", "--pool", "lay", "--chunk-size", "3MiB", "/d"], 2, "power of two"),
    ] {
        let output = sandbox.tidepool(&[&["layout"], args].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output));
        assert!(text(&output).contains(words), "{args:?}: {}", text(&output));
    }
    sandbox.ok(&["check", "--pool", "lay"]);
    sandbox.ok(&["pool", "stop", "--pool", "lay"]);
    sandbox.assert_nothing_left("after the pool");
}

/// All of it is checked before anything is started.
#[test]
fn f32_wrong_spreads_are_refused_before_the_start() {
    let sandbox = Sandbox::new();
    let hints = sandbox.path("hints");
    fs::write(&hints, "*.h5 chunksize=1MiB\n").unwrap();
    for (args, words) in [
        (
            &["--hints", hints.to_str().unwrap()][..],
            "line 1: there is no key 'chunksize'; did you mean 'chunk-size'?",
        ),
        (&["--hints", "/no/such/file"], "No such file"),
        (&["--weights", "1"], "1 weights for 2 daemons"),
        (&["--weights", "0,0"], "all weights are 0"),
        (&["--weights", "1,2000"], "the largest is 1000"),
        (&["--placement", "weighted"], "no weights; give --weights"),
        (&["--placement", "group"], "no groups; give --weights or --groups"),
        (&["--groups", "leaf1"], "1 groups for 2 daemons"),
        (&["--groups", "leaf1,"], "is no name"),
        (&["--groups", "a,b", "--stripe", "2", "--placement", "group"], "a stripe is for placement 'wide'"),
        (&["--placement", "local", "--chunk-size", "1MiB"], "not cut into chunks"),
    ] {
        let output = sandbox.tidepool(&[&["pool", "start", "--nodes", "2"], args].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output));
        assert!(text(&output).contains(words), "{args:?}: {}", text(&output));
    }
    sandbox.assert_nothing_left("after refusals");
}

/// The data of a kept pool lie by its weights: they come back, and others are refused.
#[test]
fn a_kept_pool_keeps_its_weights() {
    let sandbox = Sandbox::new();
    let start = ["pool", "start", "--name", "kept", "--nodes", "2", "--client", "preload", "--keep"];
    sandbox.ok(&[&start[..], &["--weights", "1,3", "--chunk-size", "64KiB"]].concat());
    let make = "cd $TIDEPOOL_DIR && seq 1 200000 > f && cksum f";
    let exec =
        |line| sandbox.ok(&["exec", "--pool", "kept", "--client", "preload", "--", "bash", "-c", line]);
    let sum = exec(make);
    sandbox.ok(&["pool", "stop", "--pool", "kept", "--keep"]);
    let output = sandbox.tidepool(&[&start[..], &["--weights", "1,1"]].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("first weights (1,3)"), "{}", text(&output));
    let output = sandbox.tidepool(&[&start[..], &["--groups", "a,b"]].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("first groups (none)"), "{}", text(&output));
    sandbox.ok(&start);
    assert_eq!(exec("cd $TIDEPOOL_DIR && cksum f"), sum);
    sandbox.ok(&["pool", "stop", "--pool", "kept"]);
    sandbox.assert_nothing_left("after the pool");
}

/// A12: files lie on one group, that of their maker or the one their directory names; commands tell which.
#[test]
fn a12_groups_are_set_and_shown() {
    let sandbox = Sandbox::new();
    let start = ["pool", "start", "--name", "grp", "--nodes", "4", "--client", "preload"];
    sandbox.ok(&[&start[..], &["--groups", "leaf1,leaf1,leaf2,leaf2", "--chunk-size", "64KiB"]].concat());
    let show = |path: &str| sandbox.ok(&["layout", "show", "--pool", "grp", path]);
    assert!(show("/").contains("as the pool says, group, chunks of 64KiB"), "{}", show("/"));
    assert!(sandbox.ok(&["pool", "status", "--pool", "grp"]).contains("leaf2"));
    sandbox.ok(&["mkdir", "--pool", "grp", "/two"]);
    sandbox.ok(&["layout", "set", "--pool", "grp", "--group", "leaf2", "/two"]);
    assert!(show("/two").contains("(leaf2)"), "{}", show("/two"));
    let make = "cd $TIDEPOOL_DIR/two && for i in 1 2 3 4 5 6 7 8; do seq 1 100000 > f$i; done && cksum f*";
    let exec = |line| sandbox.ok(&["exec", "--pool", "grp", "--client", "preload", "--", "bash", "-c", line]);
    let sums = exec(make);
    for number in 1..=8 {
        let shown = show(&format!("/two/f{number}"));
        assert!(shown.contains("(leaf2); daemons 2 3") || shown.contains("(leaf2); daemons 3 2"), "{shown}");
    }
    let json = sandbox.ok(&["layout", "show", "--pool", "grp", "--json", "/two/f1"]);
    assert!(json.contains("\"group\":\"leaf2\""), "{json}");
    let output = sandbox.tidepool(&["layout", "set", "--pool", "grp", "--group", "leaf9", "/two"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("it has leaf1, leaf2"), "{}", text(&output));
    assert_eq!(exec("cd $TIDEPOOL_DIR/two && cksum f*"), sums);
    sandbox.ok(&["check", "--pool", "grp"]);
    sandbox.ok(&["pool", "stop", "--pool", "grp"]);
    sandbox.assert_nothing_left("after the pool");
}

/// F21: with the size cache a size is right when its writer has closed the file or ended, through both doors.
#[test]
fn f21_sizes_are_right_after_close_and_exit() {
    let sandbox = Sandbox::new();
    for door in doors() {
        // The second writer leaves the file open until it ends, the third hands it to a program of its own.
        let script = "cd $TIDEPOOL_DIR && dd if=/dev/zero of=a bs=9000 count=200 status=none && stat -c %s a && \
                      bash -c 'exec 3>b; for i in 1 2 3; do printf %70000d 1 >&3; done; kill -0 $$' && stat -c %s b && \
                      bash -c 'exec 3>c; printf %70000d 1 >&3; printf %70000d 1 >&3; exec cat a >&3' && stat -c %s c";
        let args = ["run", "--nodes", "3", "--client", door, "--chunk-size", "64KiB", "--size-cache", "--"];
        let said = sandbox.ok(&[&args[..], &["bash", "-c", script]].concat());
        assert_eq!(said.lines().collect::<Vec<_>>(), ["1800000", "210000", "1940000"], "{door}");
    }
    sandbox.assert_nothing_left("after the runs");
    let mut wrong =
        sandbox.tidepool(&["run", "--client", "preload", "--", "bash", "-c", "echo > $TIDEPOOL_DIR/f"]);
    let output = wrong.env("TIDEPOOL_SIZE_CACHE", "yes").output().unwrap();
    assert!(text(&output).contains("set it to on or off"), "{}", text(&output));
}
