//! `tidepool jobs`: what its outputs have, and how it refuses.

mod common;

use common::{Sandbox, text};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::io::Write;
use std::process::{Output, Stdio};

/// 400 jobs on 8 processors, each of which asks for three times as long as it needs.
fn log() -> String {
    let mut log = "; Version: 2.2\n; MaxProcs: 8\n".to_string();
    for number in 0..400u64 {
        let run = 60 + number * 7919 % 1800;
        let (submit, processors) = (number * 500, 1 + number * 31 % 8);
        let _ = writeln!(
            log,
            "{number} {submit} -1 {run} {processors} -1 -1 {processors} {} -1 1 1 1 -1 -1 -1 -1 -1",
            run * 3
        );
    }
    log + "400 0 0 -1 -1 -1 -1 8 60\nnot a job\n"
}

fn stage_ahead(sandbox: &Sandbox, words: &[&str]) -> Output {
    let mut command = sandbox.tidepool(&["jobs", "stage-ahead"]);
    command.args(words).current_dir(sandbox.dir.path()).output().expect("tidepool runs")
}

#[test]
fn each_output_has_all_rules_and_the_same_figures() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("log.swf"), log()).unwrap();
    let words = ["--bytes", "20GB", "--seed", "3", "log.swf"];
    let said = stage_ahead(&sandbox, &words);
    assert!(said.status.success(), "{}", text(&said));
    let said = text(&said);
    for part in [
        "400 jobs on 8",
        "trigger",
        "mean + 30 s",
        "at submission",
        "1 lines that cannot be read",
        "1 jobs that never ran",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let all = [&words[..], &["--json", "--csv", "all.csv", "--html", "all.html"]].concat();
    let json = stage_ahead(&sandbox, &all);
    let value: Value = serde_json::from_slice(&json.stdout).expect("it is JSON");
    assert_eq!((value["jobs"].as_u64(), value["data"]["seed"].as_u64()), (Some(400), Some(3)));
    let csv = fs::read_to_string(sandbox.path("all.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 3 * 400);
    for (at, rule) in ["trigger", "mean", "at-once"].into_iter().enumerate() {
        let late =
            csv.lines().filter(|line| line.starts_with(&format!("{rule},")) && line.ends_with("true,true"));
        assert_eq!(value["rules"][at]["late"].as_u64(), Some(late.count() as u64), "{rule}");
    }
    assert_eq!(value["rules"][2]["late"], 0);
    let page = fs::read_to_string(sandbox.path("all.html")).unwrap();
    assert_eq!((page.matches("<polyline").count(), page.matches("<tr>").count()), (3, 4));
    let again = stage_ahead(&sandbox, &all);
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(again["rules"], value["rules"]);
}

#[test]
fn a_log_comes_from_standard_input_too() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.tidepool(&["jobs", "stage-ahead", "--json", "--jobs", "50", "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(log().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let value: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(value["jobs"], 50);
}

#[test]
fn what_cannot_be_done_is_said_with_its_code() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("packed"), [0x28, 0xb5, 0x2f, 0xfd, 0]).unwrap();
    fs::write(sandbox.path("cut.gz"), [0x1f, 0x8b, 8, 0]).unwrap();
    fs::write(sandbox.path("text"), "hello\n").unwrap();
    fs::write(sandbox.path("small"), "1 0 0 5 3 -1 -1 3 9\n").unwrap();
    let cases: [(&[&str], i32, &str); 8] = [
        (&["packed"], 1, "packed by zstd: unpack it first"),
        (&["cut.gz"], 1, "cut.gz: what gzip packed is cut off here"),
        (&["text"], 1, "Standard Workload Format"),
        (&["missing"], 1, "missing: No such file"),
        (&["small"], 2, "say --nodes"),
        (&["small", "--nodes", "2"], 2, "want more than 2"),
        (&["small", "--rate-scatter", "9"], 2, "no number from 0 to 5"),
        (&["small", "--nodes", "0"], 2, "not in"),
    ];
    for (words, code, part) in cases {
        let said = stage_ahead(&sandbox, words);
        assert_eq!(said.status.code(), Some(code), "{words:?}: {}", text(&said));
        assert!(text(&said).contains(part), "{words:?}: {}", text(&said));
    }
}

/// Two users who always run as long, and one of whom nothing is known.
fn regular_log() -> String {
    let line = |number: u64| {
        let (submit, user) = (number * 700, number % 2);
        let run = [300, 4000][user as usize];
        format!("{number} {submit} 5 {run} 4 -1 -1 4 36000 -1 1 {user} 1 -1 -1 -1 -1 -1\n")
    };
    (0..300).map(line).collect()
}

#[test]
fn predictors_are_compared_on_a_log() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("log.swf"), regular_log()).unwrap();
    let evaluate = |words: &[&str]| {
        let mut command = sandbox.tidepool(&["jobs", "evaluate", "log.swf"]);
        command.args(words).current_dir(sandbox.dir.path()).output().expect("tidepool runs")
    };
    let said = text(&evaluate(&[]));
    assert!(said.contains("150 jobs warm up, 150 are judged; 2 users"), "{said}");
    let json = evaluate(&["--json", "--csv", "users.csv", "--svg", "users.svg"]);
    let value: Value = serde_json::from_slice(&json.stdout).expect("it is JSON");
    let all = value["predictors"].as_array().unwrap();
    assert!(all.len() >= 13, "{all:?}");
    let of = |name: &str| all.iter().find(|one| one["predictor"] == name).unwrap();
    // Errors by hand: what never changes is known after one job; the request is 8.9 and 9.9 h too long.
    for name in ["default", "last", "last-two", "same", "expert"] {
        assert_eq!(of(name)["medae_median_user_seconds"], 0.0, "{name}");
    }
    assert_eq!(of("request")["medae_of_users_seconds"], serde_json::json!([32000.0, 35700.0]));
    assert_eq!(of("request")["under_share"], 0.0);
    assert_eq!(of("default")["coverage"]["95"], 1.0);
    let csv = fs::read_to_string(sandbox.path("users.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 2 * all.len());
    let svg = fs::read_to_string(sandbox.path("users.svg")).unwrap();
    assert!(svg.contains(">default<") && svg.contains(">request<"), "{svg}");
    let one: Value = serde_json::from_slice(&evaluate(&["--predictor", "alea", "--json"]).stdout).unwrap();
    assert_eq!(one["predictors"].as_array().map(Vec::len), Some(1));
    let wrong = evaluate(&["--predictor", "guess"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong).contains("'guess' is no predictor; there are default, request"), "{}", text(&wrong));
}
