//! `tidepool jobs simulate` and `nap`: what their outputs have and agree on, and how they refuse.

mod common;

use common::{Sandbox, text};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::process::Output;

/// 400 jobs on 8 processors, each of which asks for three times as long as it needs; two users and queues.
fn log() -> String {
    let mut log = "; Version: 2.2\n; MaxProcs: 16\n; MaxNodes: 8\n".to_string();
    for number in 0..400u64 {
        let run = 60 + number * 7919 % 1800;
        let (submit, processors, queue) = (number * 500, 1 + number * 31 % 16, 1 + number % 2);
        let _ = writeln!(
            log,
            "{number} {submit} -1 {run} {processors} -1 -1 {processors} {} -1 1 {queue} 1 -1 {queue} -1 -1 -1",
            run * 3
        );
    }
    log
}

fn jobs(sandbox: &Sandbox, words: &[&str]) -> Output {
    let mut command = sandbox.tidepool(&["jobs"]);
    command.args(words).current_dir(sandbox.dir.path()).output().expect("tidepool runs")
}

fn json(sandbox: &Sandbox, words: &[&str]) -> Value {
    let said = jobs(sandbox, &[words, &["--json"]].concat());
    assert!(said.status.success(), "{}", text(&said));
    serde_json::from_slice(&said.stdout).expect("it is JSON")
}

/// A column of a file of numbers.
fn column(csv: &str, name: &str) -> Vec<f64> {
    let at = csv.lines().next().unwrap().split(',').position(|head| head == name).expect(name);
    csv.lines().skip(1).map(|line| line.split(',').nth(at).unwrap().parse().unwrap_or(f64::NAN)).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn each_policy_tells_what_its_lines_say() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("log.swf"), log()).unwrap();
    let mut waits = Vec::new();
    for policy in ["fcfs", "easy", "conservative"] {
        let words = ["simulate", "log.swf", "--policy", policy, "--csv", "jobs.csv"];
        let value = json(&sandbox, &words);
        let csv = fs::read_to_string(sandbox.path("jobs.csv")).unwrap();
        let result = &value["result"];
        assert_eq!((result["jobs"].as_u64(), csv.lines().count()), (Some(400), 401));
        let wait = mean(&column(&csv, "wait_seconds"));
        assert!((result["mean_wait_seconds"].as_f64().unwrap() - wait).abs() < 1e-6, "{policy}");
        assert_eq!((value["log"]["nodes"].as_u64(), result["known_ahead"].is_null()), (Some(16), true));
        waits.push(wait);
        let said = text(&jobs(&sandbox, &words[..4]));
        assert!(said.contains(&format!("400 jobs on 16, {policy}, planned by request")), "{said}");
    }
    assert!(waits[0] > waits[2] && waits[0] > waits[1], "backfilling is no better: {waits:?}");
}

#[test]
fn predictions_and_nodes_change_what_is_planned() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("log.swf"), log()).unwrap();
    let words =
        ["simulate", "log.swf", "--policy", "easy", "--estimate", "last-two", "--backfill", "shortest"];
    let value = json(&sandbox, &words);
    assert!(value["result"]["outlived_predictions"].as_u64().unwrap() > 0, "{value}");
    let worth =
        ["simulate", "log.swf", "--policy", "easy", "--estimate", "default:90", "--backfill", "expected"];
    let slowdown = |more: &[&str]| {
        let value = json(&sandbox, &[&worth[..], more].concat());
        (value["scheduler"]["order"].clone(), value["result"]["mean_bounded_slowdown"].as_f64().unwrap())
    };
    let (submission, in_turns) = (slowdown(&[]), slowdown(&["--order", "expected", "--patience", "7d"]));
    assert_eq!((submission.0, in_turns.0), ("submission".into(), "expected".into()));
    assert!(in_turns.1 < submission.1, "{} {}", in_turns.1, submission.1);
    for (words, said) in [
        (&["--order", "expected"][..], "--order is for --policy easy"),
        (&["--policy", "fcfs", "--backfill", "shortest"], "--backfill is for --policy easy"),
        (
            &["--policy", "easy", "--patience", "1h"],
            "--patience is for --order expected and --backfill expected",
        ),
        (&["--policy", "easy", "--order", "expected", "--patience", "0.5s"], "less than a second"),
    ] {
        let refused = jobs(&sandbox, &[&["simulate", "log.swf"], words].concat());
        assert!(refused.status.code() == Some(2) && text(&refused).contains(said), "{}", text(&refused));
    }
    let exact = json(&sandbox, &["simulate", "log.swf", "--estimate", "run-time"]);
    assert_eq!(exact["result"]["outlived_predictions"], 0);
    for allocation in ["any", "contiguous"] {
        let words = ["simulate", "log.swf", "--allocation", allocation, "--csv", "jobs.csv"];
        let value = json(&sandbox, &words);
        // Nodes are those of the log's header then.
        assert_eq!(
            (value["log"]["nodes"].as_u64(), value["log"]["processors_per_node"].as_u64()),
            (Some(8), Some(2))
        );
        let counts = value["result"]["known_ahead"]["counts"].as_array().unwrap();
        assert_eq!(counts.iter().map(|count| count.as_u64().unwrap()).sum::<u64>(), 400);
        let csv = fs::read_to_string(sandbox.path("jobs.csv")).unwrap();
        let lists: Vec<&str> = csv.lines().skip(1).map(|line| line.rsplit(',').next().unwrap()).collect();
        let whole = lists.iter().all(|list| !list.contains(' '));
        assert_eq!(whole, allocation == "contiguous", "{allocation}");
    }
}

/// INVENTORY C5 and C7: a bar for each estimate and scheduler, with waits and use beside; the same with any threads.
#[test]
fn c5_each_estimate_and_scheduler_has_its_bar() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("log.swf"), log()).unwrap();
    let value = json(
        &sandbox,
        &["nap", "log.swf", "--csv", "nap.csv", "--svg", "nap.svg", "--html", "nap.html", "--threads", "2"],
    );
    let csv = fs::read_to_string(sandbox.path("nap.csv")).unwrap();
    assert_eq!((csv.lines().count(), value["points"].as_array().unwrap().len()), (1 + 2 * 12, 24));
    let classes = ["instant_share", "below_1s_share", "1s_to_10min_share", "above_10min_share"];
    let shares = classes.map(|name| column(&csv, name));
    for row in 0..24 {
        let sum: f64 = shares.iter().map(|shares| shares[row]).sum();
        assert!((sum - 1.0).abs() < 1e-9, "row {row}");
        let used = column(&csv, "utilisation")[row];
        assert!(used > 0.1 && used < 1.0);
    }
    // With the run times known nothing that is planned changes.
    assert_eq!(
        (column(&csv, "lambda")[10], shares[1][10], shares[2][10] + shares[3][10] > 0.1),
        (0.0, 0.0, true)
    );
    let drawn = fs::read_to_string(sandbox.path("nap.svg")).unwrap();
    assert_eq!((drawn.matches("<rect").count(), drawn.contains("mean wait")), (4 + 24 * 4, true));
    assert!(fs::read_to_string(sandbox.path("nap.html")).unwrap().contains("<svg"));
    assert!(jobs(&sandbox, &["nap", "log.swf", "--csv", "one.csv", "--threads", "1"]).status.success());
    assert_eq!(fs::read_to_string(sandbox.path("one.csv")).unwrap(), csv);
}

/// INVENTORY C6: a machine that is away now and then, of which a part is lent, has fewer jobs that start at once.
#[test]
fn c6_maintenance_and_campaigns_change_the_share_of_instant_jobs() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("log.swf"), log()).unwrap();
    let machine = "[[block]]\nname = \"maintenance\"\nfrom-seconds = 20000\nseconds = 7200\nevery-seconds = 40000\nannounced-seconds = 10000\n\
        [[block]]\nname = \"campaign\"\nfrom-seconds = 100000\nseconds = 50000\nnodes = \"0-15\"\n";
    fs::write(sandbox.path("machine.toml"), machine).unwrap();
    // Large enough for most to start at once, as ForHLR II was.
    let words = ["simulate", "log.swf", "--allocation", "any", "--nodes", "32"];
    let instant = |value: &Value| value["result"]["known_ahead"]["counts"][0].as_u64().unwrap();
    let without = instant(&json(&sandbox, &words));
    let with = json(&sandbox, &[&words[..], &["--machine", "machine.toml", "--csv", "jobs.csv"]].concat());
    assert!(instant(&with) < without * 9 / 10, "{} of {without}", instant(&with));
    let csv = fs::read_to_string(sandbox.path("jobs.csv")).unwrap();
    let (starts, ends) = (column(&csv, "start_seconds"), column(&csv, "end_seconds"));
    for (start, end) in starts.iter().zip(&ends) {
        assert!(
            (0..5)
                .all(|n| *end <= 20000.0 + 40000.0 * f64::from(n)
                    || *start >= 27200.0 + 40000.0 * f64::from(n))
        );
    }
}

#[test]
fn partitions_and_priorities_hold() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("log.swf"), log()).unwrap();
    let machine = "nodes = 8\nprocessors-per-node = 2\n[[partition]]\nname = \"small\"\nqueues = [1]\nnodes = \"0-3\"\n\
        [[partition]]\nname = \"first\"\nqueues = [2]\npriority = 5\n";
    fs::write(sandbox.path("machine.toml"), machine).unwrap();
    let words = ["simulate", "log.swf", "--machine", "machine.toml", "--csv", "jobs.csv", "--policy", "easy"];
    let value = json(&sandbox, &words);
    assert!(value["log"]["too_large"].as_u64().unwrap() > 50, "{value}");
    let csv = fs::read_to_string(sandbox.path("jobs.csv")).unwrap();
    for line in csv.lines().skip(1).filter(|line| line.contains(",small,")) {
        let list = line.rsplit(',').next().unwrap();
        assert!(list.split([' ', '-']).all(|node| node.parse::<u32>().unwrap() < 4), "{line}");
    }
    let wait_of = |name: &str| {
        let waits: Vec<f64> = csv
            .lines()
            .filter(|line| line.contains(name))
            .map(|line| line.split(',').nth(4).unwrap().parse().unwrap())
            .collect();
        mean(&waits)
    };
    assert!(wait_of(",first,") < wait_of(",small,"));
}

/// INVENTORY D4: with reserved nodes more data are there, at a price.
#[test]
fn d4_reserved_nodes_stage_more_and_cost() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("log.swf"), log()).unwrap();
    let words = ["pre-stage", "log.swf", "--bytes", "50GB", "--lead", "1,5,submission", "--csv", "lead.csv"];
    let value = json(&sandbox, &words);
    let csv = fs::read_to_string(sandbox.path("lead.csv")).unwrap();
    let (staged, held) = (column(&csv, "staged"), column(&csv, "held_node_hours"));
    assert_eq!(staged.len(), 4);
    assert!(staged[1] < staged[2] && staged[2] < staged[3], "{staged:?}");
    assert!(held[0] == 0.0 && held[3] > 0.0, "{held:?}");
    assert_eq!(value["leads"][3]["staged"].as_f64(), Some(staged[3]));
}

#[test]
fn what_cannot_be_done_is_said_with_its_code() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("log"), "1 0 0 5 3 -1 -1 3 9\n").unwrap();
    fs::write(sandbox.path("packed"), [0x28, 0xb5, 0x2f, 0xfd, 0]).unwrap();
    fs::write(sandbox.path("bad.toml"), "nods = 3\n[[block]]\nseconds = 0\n").unwrap();
    fs::write(sandbox.path("far.toml"), "[[block]]\nfrom-seconds = 0\nseconds = 5\nnodes = \"7-9\"\n")
        .unwrap();
    let cases: [(&[&str], i32, &str); 11] = [
        (&["simulate", "packed"], 1, "packed by zstd: unpack it first"),
        (&["simulate", "missing"], 1, "missing: No such file"),
        (&["simulate", "log"], 2, "say --nodes"),
        (&["nap", "log", "--nodes", "2"], 2, "want more than 2"),
        (&["nap", "log", "--nodes", "2000000"], 2, "say --per-node"),
        (&["nap", "log", "--nodes", "4", "--lambda", "2"], 2, "no number from 0 to 1"),
        (&["simulate", "log", "--nodes", "4", "--estimate", "guess"], 2, "'lambda=X'"),
        (&["pre-stage", "log", "--nodes", "4", "--lead", "0.5"], 2, "neither a number of at least 1"),
        (&["simulate", "log", "--nodes", "4", "--allocation", "switch"], 2, "switch-nodes"),
        (
            &["simulate", "log", "--nodes", "4", "--machine", "bad.toml"],
            2,
            "line 1: there is no key 'nods'; did you mean 'nodes'?",
        ),
        (
            &["simulate", "log", "--nodes", "4", "--machine", "far.toml"],
            2,
            "has node 9, but the machine has only 0 to 3",
        ),
    ];
    for (words, code, part) in cases {
        let said = jobs(&sandbox, words);
        assert_eq!(said.status.code(), Some(code), "{words:?}: {}", text(&said));
        assert!(text(&said).contains(part), "{words:?}: {}", text(&said));
    }
}
