//! `tidepool sim tiers`: what it tells, and what it refuses.

mod common;

use common::{Sandbox, text};
use serde_json::Value;
use std::process::Output;

const FILE: &str = r#"
[burst]
capacity = "100GB"
sequential = [[1, "200MB"]]

[pfs]
capacity = "900GB"
sequential = [[1, "100MB"]]

[transfers]
chunk = "1MB"

[[application]]
name = "app"
kind = "phases"
copies = 2
processes = 4
bytes = "25MB"
steps = 2
compute-seconds = 1
"#;

fn sim(sandbox: &Sandbox, file: &str, line: &str) -> Output {
    let path = sandbox.path("machine.toml");
    std::fs::write(&path, file).unwrap();
    let mut command = sandbox.tidepool(&["sim", "tiers"]);
    command.arg(&path).args(line.split_whitespace()).output().expect("tidepool runs")
}

fn json(sandbox: &Sandbox, line: &str) -> Value {
    let output = sim(sandbox, FILE, &format!("{line} --json"));
    assert!(output.status.success(), "{line}: {}", text(&output));
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

/// 100 MB of each application at 100 MB/s that two share: 2 s for each phase.
#[test]
fn all_schedulers_tell_the_same() {
    let sandbox = Sandbox::new();
    let expected = json(&sandbox, "--strategy baseline --strategy ia");
    let names: Vec<&str> = expected["strategies"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["strategy"].as_str())
        .collect();
    assert_eq!(names, ["baseline", "ia"]);
    let baseline = &expected["strategies"][0];
    let mean = baseline["io_mean_seconds"].as_f64().unwrap();
    assert!((mean - 2.0).abs() < 0.03, "{mean}");
    assert!(
        (baseline["stretch_most"].as_f64().unwrap() - 1.5).abs() < 0.02,
        "(1 + 2) of (1 + 1) seconds: {baseline}"
    );
    assert_eq!(baseline["applications"][1]["bytes"]["pfs"], 200_000_000);
    for other in
        ["--scheduler conservative --threads 2", "--scheduler optimistic --threads 2", "--check-rollback"]
    {
        let seen = json(&sandbox, &format!("--strategy baseline --strategy ia {other}"));
        assert_eq!(seen["strategies"], expected["strategies"], "{other}");
    }
}

#[test]
fn people_and_spreadsheets_are_told() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("times.csv");
    let output = sim(&sandbox, FILE, &format!("--csv {}", file.display()));
    assert!(output.status.success(), "{}", text(&output));
    let told = String::from_utf8(output.stdout).unwrap();
    for part in ["simulated: 2 applications", "app-2", "slowest", "fairness", "model", "set10"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let table = std::fs::read_to_string(&file).unwrap();
    let strategies = tidepool_iosched::names().count();
    assert_eq!(table.lines().count(), 1 + 2 * strategies, "{table}");
    let columns = table.lines().next().unwrap().split(',').count();
    assert!(table.lines().all(|line| line.split(',').count() == columns), "{table}");
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    let sandbox = Sandbox::new();
    for (file, line, expected) in [
        (
            FILE.replace("[burst]", "[brust]"),
            "",
            "line 2: there is no section 'brust'; did you mean 'burst'?",
        ),
        (FILE.replace("copies", "copys"), "", "did you mean 'copies'?"),
        (FILE.to_string(), "--strategy fcsf", "did you mean fcfs?"),
        (FILE.to_string(), "--threads 2", "--threads needs"),
    ] {
        let output = sim(&sandbox, &file, line);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains(expected), "{expected}: {}", text(&output));
    }
    let missing = sandbox.tidepool(&["sim", "tiers", "nowhere.toml"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(2), "{}", text(&missing));
}
