//! Pools whose data go over TCP on one machine, and the measurement of that.

mod common;

use common::{Sandbox, text};
use serde_json::Value;
use std::fs;
use std::process::Command;

/// Removes what the Unix sockets of a pool's daemons are reached by: who gets through now uses TCP.
fn cut_sockets(sandbox: &Sandbox, pool: &str) -> usize {
    let file = fs::read(sandbox.runtime().join(pool).join("pool.json")).unwrap();
    let pool: Value = serde_json::from_slice(&file).unwrap();
    let members = pool["members"].as_array().unwrap();
    for member in members {
        assert!(member["tcp"].as_str().unwrap().starts_with("127.0.0.1:"), "{member}");
        fs::remove_file(member["unix"].as_str().unwrap()).unwrap();
    }
    members.len()
}

#[test]
fn tcp_is_used_where_the_environment_asks_for_it() {
    let sandbox = Sandbox::new();
    let tcp = |args: &[&str]| {
        let output = sandbox.tidepool(args).env("TIDEPOOL_TRANSPORT", "tcp").output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", text(&output));
        output.stdout
    };
    tcp(&["pool", "start", "--name", "t", "--nodes", "3", "--client", "preload"]);
    assert_eq!(cut_sockets(&sandbox, "t"), 3);
    let data: Vec<u8> = (0..3_000_001u32).map(|i| (i * 7 / 3) as u8).collect();
    fs::write(sandbox.path("data"), &data).unwrap();
    let copy = format!("cp {} big && cat big", sandbox.path("data").display());
    assert!(tcp(&["exec", "--pool", "t", "--client", "preload", "--", "sh", "-c", &copy]) == data);
    tcp(&["pool", "stop", "--pool", "t"]);
    sandbox.assert_nothing_left("after a pool over TCP");
}

#[test]
fn a_transport_that_is_not_there_is_named() {
    let sandbox = Sandbox::new();
    let with = |value: &str, args: &[&str]| {
        let output = sandbox.tidepool(args).env("TIDEPOOL_TRANSPORT", value).output().unwrap();
        assert!(!output.status.success(), "{args:?}");
        text(&output)
    };
    let wrong = with("tpc", &["run", "--nodes", "1", "--client", "preload", "--", "true"]);
    assert!(wrong.contains("TIDEPOOL_TRANSPORT is 'tpc'") && wrong.contains("'tcp'?"), "{wrong}");
    sandbox.ok(&["pool", "start", "--name", "u", "--nodes", "1", "--client", "preload"]);
    let unasked = with("tcp", &["ls", "--pool", "u", "/"]);
    assert!(unasked.contains("does not listen on TCP"), "{unasked}");
    let wrong = with("tpc", &["ls", "--pool", "u", "/"]);
    assert!(wrong.contains("'tcp'?"), "{wrong}");
    sandbox.ok(&["pool", "stop", "--pool", "u"]);
    sandbox.assert_nothing_left("after a pool without TCP");
}

#[test]
fn bench_tcp_compares_with_iperf3() {
    let sandbox = Sandbox::new();
    let shape = ["bench", "tcp", "--sizes", "64KiB", "--file-size", "4MiB", "--repeats", "1", "--json"];
    let nowhere = sandbox.tidepool(&shape).env("PATH", sandbox.path("nowhere")).output().unwrap();
    assert!(text(&nowhere).contains("install the package iperf3"), "{}", text(&nowhere));
    if Command::new("iperf3").arg("--version").output().is_err() {
        println!("SKIPPED: iperf3 is not installed");
        return;
    }
    let report: Value = serde_json::from_str(&sandbox.ok(&shape)).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let kinds: Vec<&str> = rows.iter().map(|row| row["what"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["write", "rewrite", "read"]);
    for row in rows {
        let number =
            |at: &str| row.pointer(at).and_then(Value::as_f64).unwrap_or_else(|| panic!("{at}: {row}"));
        let [open, encrypted, iperf3, _] =
            ["/pools/open/rate/median", "/pools/encrypted/rate/median", "/iperf3/median", "/store/median"]
                .map(|at| {
                    assert!(number(at) > 1e6, "{at}: {row}");
                    number(at)
                });
        assert!((number("/pools/open/ratio") - open / iperf3).abs() < 1e-6, "{row}");
        assert!((number("/encrypted_of_open") - encrypted / open).abs() < 1e-6, "{row}");
    }
    assert_eq!(report["pool"]["daemons"], 4);
    sandbox.assert_nothing_left("after bench tcp");
}
