//! `tidepool jobs predict`: what is told of queues in files, in all its forms, and how it refuses.

mod common;

use common::{Sandbox, text};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::process::Output;

/// Two nodes of four; the second job has both to itself, the fourth waits for somebody's hand, the fifth for the second's end.
const QUEUE: &str = "\
JOBID|USER|QOS|PARTITION|STATE|REASON|SUBMIT_TIME|START_TIME|TIME|TIME_LIMIT|NODES|CPUS|NODELIST|PRIORITY|DEPENDENCY|OVER_SUBSCRIBE|NAME
11|1|1|1|RUNNING|None|2026-11-23T11:50:00|2026-11-23T11:50:00|10:00|1:00:00|1|4|n1|9|(null)|NO|a|b
12|1|1|1|PENDING|Resources|2026-11-23T11:55:00|N/A|0:00|1:00:00|2|8||8|(null)|NO|wide
13|2|1|1|PENDING|Priority|2026-11-23T11:56:00|N/A|0:00|30:00|1|4||7|(null)|NO|narrow
14|2|1|1|PENDING|JobHeldUser|2026-11-23T11:56:00|N/A|0:00|30:00|1|4||0|(null)|NO|narrow
15|2|1|1|PENDING|Dependency|2026-11-23T11:57:00|N/A|0:00|30:00|1|4||6|afterok:12(unfulfilled)|NO|last
";
const NODES: &str = "NODELIST|PARTITION|STATE|CPUS\nn1|1*|allocated|4\nn2|1*|idle|4\n";
/// 12:00 on that day.
const NOW: u64 = 1_795_435_200;

/// User 1's jobs take 20 minutes of the hour that they ask for, user 2's nearly all of half an hour.
fn log() -> String {
    let mut log = "; MaxProcs: 8\n; MaxNodes: 2\n".to_string();
    for number in 0..200u64 {
        let (user, run, request) =
            if number % 2 == 0 { (1, 1200 + number % 7, 3600) } else { (2, 1750 + number % 5, 1800) };
        let _ =
            writeln!(log, "{number} {} 0 {run} 4 -1 -1 4 {request} -1 1 {user} 1 -1 1 1 -1 -1", number * 700);
    }
    log
}

fn predict(sandbox: &Sandbox, words: &[&str]) -> Output {
    let mut command = sandbox.tidepool(&["jobs", "predict"]);
    command.args(words).current_dir(sandbox.dir.path()).output().expect("tidepool runs")
}

fn json(sandbox: &Sandbox, words: &[&str]) -> Value {
    let said = predict(sandbox, &[words, &["--json"]].concat());
    assert!(said.status.success(), "{}", text(&said));
    serde_json::from_slice(&said.stdout).expect("it is JSON")
}

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    for (name, text) in [("queue.txt", QUEUE), ("nodes.txt", NODES), ("log.swf", &log())] {
        fs::write(sandbox.path(name), text).unwrap();
    }
    sandbox
}

const FILES: [&str; 4] = ["--queue", "queue.txt", "--sinfo", "nodes.txt"];

fn start(value: &Value, job: &str) -> Option<u64> {
    let jobs = value["jobs"].as_array().unwrap();
    let found = jobs.iter().find(|one| one["job"] == job).unwrap_or_else(|| panic!("no {job} in {value}"));
    found["planned"]["start_seconds"].as_u64()
}

#[test]
fn a_queue_is_told_by_limits_and_by_a_history() {
    let sandbox = sandbox();
    let by_limits = json(&sandbox, &FILES);
    assert_eq!((by_limits["now_seconds"].as_u64(), &by_limits["history"]), (Some(NOW), &Value::Null));
    // 11 runs until 12:50, then 12 until 13:50. 13 is over before that, on the node that is free now.
    let starts = ["11", "12", "13", "14", "15"].map(|job| start(&by_limits, job));
    assert_eq!(starts, [Some(NOW - 600), Some(NOW + 3000), Some(NOW), None, Some(NOW + 6600)]);
    let told = json(&sandbox, &[&FILES[..], &["--history", "log.swf"]].concat());
    assert_eq!((told["history"]["jobs"].as_u64(), told["draws"]["count"].as_u64()), (Some(200), Some(200)));
    // User 1's jobs are over after 20 minutes; but 13 is on the other node until then.
    let wide = start(&told, "12").unwrap() - NOW;
    assert!((1700..=1800).contains(&wide), "{wide}: {told}");
    let job = &told["jobs"][1];
    let range = ["5", "50", "95"].map(|share| job["start_seconds"][share].as_u64().unwrap());
    assert!(range.is_sorted() && range[0] >= NOW && job["same_nodes_share"].as_f64().unwrap() > 0.9, "{job}");
    assert_eq!(
        (&told["jobs"][3]["untold"], &told["jobs"][1]["planned"]["nodes"]),
        (&"held (JobHeldUser)".into(), &"n[1-2]".into())
    );
    assert!(told["unknown"].as_array().unwrap().len() >= 3);
    // The same to the digit, with any threads.
    let again = json(&sandbox, &[&FILES[..], &["--history", "log.swf", "--threads", "1"]].concat());
    assert_eq!(told["jobs"], again["jobs"]);
    let text = text(&predict(
        &sandbox,
        &[&FILES[..], &["--history", "log.swf", "12", "14", "--csv", "told.csv"]].concat(),
    ));
    for part in [
        "2026-11-23 12:00:00: 1 jobs run, 4 wait, on 2 nodes",
        "200 jobs have taught",
        "no start can be told: held (JobHeldUser)",
        "not known:",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let csv = fs::read_to_string(sandbox.path("told.csv")).unwrap();
    assert_eq!((csv.lines().count(), csv.lines().nth(1).unwrap().split(',').count()), (3, 16), "{csv}");
}

#[test]
fn json_scripts_machines_and_policies_are_taken() {
    let sandbox = sandbox();
    let queue = serde_json::json!({ "jobs": [
        { "job_id": 11, "job_state": "RUNNING", "user_name": "1", "nodes": "n1", "node_count": 1, "cpus": 4, "shared": "none",
          "submit_time": NOW - 600, "start_time": NOW - 600, "time_limit": 60, "priority": 9, "partition": "1", "state_reason": "None" },
        { "job_id": 12, "job_state": "PENDING", "user_name": "1", "node_count": 2, "cpus": 8, "shared": "none",
          "submit_time": NOW - 300, "time_limit": 60, "priority": 8, "partition": "1", "state_reason": "Resources" },
    ]});
    fs::write(sandbox.path("queue.json"), queue.to_string()).unwrap();
    fs::write(sandbox.path("job.sh"), "#!/bin/bash\n#SBATCH -N 1 -n 4 --exclusive -t 40 --mem=3G\nsrun x\n")
        .unwrap();
    fs::write(sandbox.path("machine.toml"), "nodes = 2\nprocessors-per-node = 4\n[[block]]\nname = \"m\"\nfrom-seconds = 1000\nseconds = 9000\nnodes = \"0\"\n").unwrap();
    let now = NOW.to_string();
    let base = ["--queue", "queue.json", "--now", &now];
    let with = |words: &[&str]| json(&sandbox, &[&base[..], words].concat());
    let script = with(&["--sinfo", "nodes.txt", "--script", "job.sh"]);
    // Behind all others, on the node that is free until 12 needs it.
    assert_eq!((start(&script, "job.sh"), script["jobs"].as_array().unwrap().len()), (Some(NOW), 1));
    assert!(script["unknown"].to_string().contains("whether the script's job waits for memory"), "{script}");
    // The free node is away from 1000 s on: 12 waits for it, and the script's job for the other.
    let away = with(&["--machine", "machine.toml", "--script", "job.sh", "--policy", "easy"]);
    assert_eq!(start(&away, "job.sh"), Some(NOW + 3000), "{away}");
    let away = with(&["--machine", "machine.toml"]);
    assert_eq!(start(&away, "12"), Some(NOW + 10_000), "{away}");
    let before = with(&["--sinfo", "nodes.txt", "--script", "job.sh", "--priority", "100", "12"]);
    assert_eq!((start(&before, "job.sh"), start(&before, "12")), (Some(NOW), Some(NOW + 3000)), "{before}");
}

#[test]
fn what_is_wrong_is_refused_with_its_place() {
    let sandbox = sandbox();
    fs::write(sandbox.path("bad.txt"), QUEUE.replace("|2|8||8|", "|two|8||8|")).unwrap();
    fs::write(sandbox.path("bare.swf"), log().split_off(28)).unwrap();
    fs::write(sandbox.path("bad.sh"), "#SBATCH -N four\n").unwrap();
    for (words, code, wanted) in [
        (vec!["--queue", "bad.txt", "--sinfo", "nodes.txt"], 2, "bad.txt: line 3: NODES: 'two' is no number"),
        (vec!["--queue", "log.swf", "--sinfo", "nodes.txt"], 2, "log.swf: line 1: no column 'JOBID'"),
        (vec!["--queue", "bad.txt", "--sinfo", "nodes.txt"], 2, "is printed by: squeue --all -o \"%i|"),
        (vec!["--queue", "queue.txt"], 2, "--sinfo FILE"),
        (
            vec!["--queue", "queue.txt", "--sinfo", "log.swf"],
            2,
            "log.swf: line 1: the columns NODELIST, PARTITION and STATE are needed",
        ),
        (vec!["--queue", "none.txt"], 1, "none.txt"),
        ([&FILES[..], &["99"]].concat(), 2, "job 99 is not in the queue"),
        ([&FILES[..], &["x"]].concat(), 2, "'x' is no job"),
        ([&FILES[..], &["--now", "noon"]].concat(), 2, "--now: 'noon' is no time"),
        (
            [&FILES[..], &["--script", "bad.sh"]].concat(),
            2,
            "bad.sh: line 1, column 9: 'four' is no number of nodes",
        ),
        (vec!["--judge", "5"], 2, "--history"),
        (vec!["--judge", "5", "--history", "bare.swf"], 2, "say 'nodes' in a file for --machine"),
    ] {
        let said = predict(&sandbox, &words);
        assert_eq!(said.status.code(), Some(code), "{words:?}: {}", text(&said));
        assert!(text(&said).contains(wanted), "{words:?}: {}", text(&said));
    }
}

/// Along the log itself: all that is told of is counted, and the same is told again.
#[test]
fn a_log_judges_what_would_have_been_told() {
    let sandbox = sandbox();
    let words = ["--history", "log.swf", "--judge", "20", "--draws", "20"];
    let value = json(&sandbox, &words);
    assert!(value["jobs"].as_u64().unwrap() > 10, "{value}");
    let start = &value["without_later_submissions"]["start"];
    let sum: f64 = ["within", "before", "after"].iter().map(|name| start[name].as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-9 && start["within"].as_f64().unwrap() > 0.5, "{value}");
    let calibrated = &value["calibrated"];
    assert!(calibrated["times"]["start"]["above"].as_f64().unwrap() >= 0.0, "{value}");
    assert_eq!(value["held"].as_array().unwrap().len(), 11);
    let drawn = ["--csv", "judged.csv", "--svg", "judged.svg"];
    assert!(predict(&sandbox, &[&words[..], &drawn].concat()).status.success());
    let csv = fs::read_to_string(sandbox.path("judged.csv")).unwrap();
    assert_eq!(csv.lines().count() as u64, 1 + value["jobs"].as_u64().unwrap());
    assert!(fs::read_to_string(sandbox.path("judged.svg")).unwrap().matches("<polyline").count() == 5);
    let told = json(&sandbox, &[&FILES[..], &["--history", "log.swf", "--calibrate", "20"]].concat());
    assert!(told["calibration"]["jobs"].as_u64().unwrap() >= 20, "{told}");
    let said = text(&predict(&sandbox, &words));
    assert!(
        said.contains("start, without later submissions") && said.contains("limits as run times"),
        "{said}"
    );
}
