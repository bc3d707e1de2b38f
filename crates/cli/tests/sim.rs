//! `tidepool sim`: what it tells, and what it refuses.

mod common;

use common::{Sandbox, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::process::{Output, Stdio};
use std::time::Duration;

fn phold(sandbox: &Sandbox, line: &str) -> Output {
    sandbox.tidepool(&["sim", "phold"]).args(line.split_whitespace()).output().expect("tidepool runs")
}

/// With `--json`.
fn json(sandbox: &Sandbox, line: &str) -> Value {
    let output = phold(sandbox, &format!("{line} --json"));
    assert!(output.status.success(), "{line}: {}", text(&output));
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

#[test]
fn all_schedulers_tell_the_same_trace() {
    let sandbox = Sandbox::new();
    let model = "--processes 300 --end 30ms --lookahead 1us --seed 5";
    let expected = json(&sandbox, model);
    let result = &expected["result"];
    // A message each 901 us and process.
    let events = result["events"].as_u64().unwrap();
    assert!((9_500..10_500).contains(&events), "{expected}");
    assert_eq!((&result["complete"], &result["undone"]), (&true.into(), &0.into()));
    assert!(
        result["cpu_seconds"].as_f64().unwrap() > 0.0
            && result["memory_peak_bytes"].as_u64().unwrap() > 1 << 20
    );
    let per_second = result["events_per_cpu_second"].as_f64().unwrap();
    let seconds = result["cpu_seconds"].as_f64().unwrap();
    assert!((per_second * seconds / events as f64 - 1.0).abs() < 1e-9, "{expected}");
    for other in [
        "--scheduler conservative --threads 2",
        "--scheduler optimistic --threads 2",
        "--scheduler optimistic --threads 3 --ahead 1",
        "--scheduler optimistic --force-rollbacks 9",
        "--scheduler optimistic --threads 2 --force-rollbacks 9",
        "--check-rollback",
    ] {
        let seen = json(&sandbox, &format!("{model} {other}"));
        assert_eq!(seen["result"]["trace"], result["trace"], "{other}");
        assert_eq!(seen["result"]["events"], result["events"], "{other}");
        if other.contains("--force") {
            assert!(seen["result"]["undone"].as_u64().unwrap() > 1_000, "{other}: {seen}");
            assert_eq!(seen["force_rollbacks"], 9);
        }
    }
    assert_ne!(json(&sandbox, "--processes 300 --end 30ms --seed 6")["result"]["trace"], result["trace"]);
}

#[test]
fn people_are_told_what_was_done() {
    let sandbox = Sandbox::new();
    let output =
        phold(&sandbox, "--processes 50 --end 5ms --scheduler optimistic --threads 2 --message-bytes 8");
    assert!(output.status.success(), "{}", text(&output));
    let told = String::from_utf8(output.stdout).unwrap();
    for part in [
        "50 processes, 8 bytes",
        "25 % remote",
        "until 5 ms",
        "per CPU-second",
        "efficiency",
        "memory",
        "trace ",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

#[test]
fn what_has_no_sense_is_refused() {
    let sandbox = Sandbox::new();
    for (line, why) in [
        ("--message-bytes 63", "8, 16, 32, 64"),
        ("--processes 0", "1..=100000000"),
        ("--processes 100000000 --messages 10000", "at most 1073741824 messages"),
        ("--remote 1.5", "from 0 to 1"),
        ("--remote nan", "from 0 to 1"),
        ("--end 5", "900us"),
        ("--lookahead 0ns", "lookahead is 1 ns"),
        ("--threads 0", "1 to 1024"),
        ("--threads 2", "--scheduler conservative or optimistic"),
        ("--threads 2 --check-rollback", "one thread"),
        ("--scheduler optimistic --check-rollback", "cannot be used with"),
        ("--ahead 0", "1.."),
        ("--force-rollbacks 3", "--scheduler optimistic"),
        ("--scheduler conservative --force-rollbacks 3", "--scheduler optimistic"),
    ] {
        let output = phold(&sandbox, line);
        assert_eq!(output.status.code(), Some(2), "{line}: {}", text(&output));
        assert!(text(&output).contains(why), "{line}: {}", text(&output));
    }
}

#[test]
fn a_checkpoint_is_gone_on_with() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("state");
    let model = "--processes 200 --seed 9 --lookahead 1us";
    let expected = json(&sandbox, &format!("{model} --end 40ms"));
    let first = format!("{model} --end 15ms --scheduler optimistic --threads 2 --every 4ms --checkpoint");
    let first = json(&sandbox, &format!("{first} {}", file.display()));
    let then = format!("{model} --end 40ms --scheduler conservative --threads 2 --resume {}", file.display());
    let then = json(&sandbox, &then);
    assert_eq!(then["result"]["trace"], expected["result"]["trace"]);
    let events = |of: &Value| of["result"]["events"].as_u64().unwrap();
    assert_eq!(events(&first) + events(&then), events(&expected));
    let refused = |line: String, code: i32, why: &str| {
        let output = phold(&sandbox, &line);
        assert_eq!(output.status.code(), Some(code), "{line}: {}", text(&output));
        assert!(text(&output).contains(why), "{line}: {}", text(&output));
    };
    refused(format!("--processes 200 --seed 8 --resume {}", file.display()), 1, "another model");
    refused(format!("{model} --end 14ms --resume {}", file.display()), 2, "behind --end 14 ms");
    refused(format!("{model} --every 0ns --checkpoint {}", file.display()), 2, "at least 1ns");
    refused(format!("{model} --every 1ms"), 2, "--checkpoint");
    std::fs::write(&file, "nonsense").unwrap();
    refused(format!("{model} --resume {}", file.display()), 1, "no checkpoint");
    refused(format!("{model} --resume {}", sandbox.path("none").display()), 1, "No such file");
}

#[test]
fn an_interrupted_run_tells_what_was_done() {
    let sandbox = Sandbox::new();
    for scheduler in ["sequential", "conservative", "optimistic"] {
        let mut command =
            sandbox.tidepool(&["sim", "phold", "--json", "--end", "100000s", "--scheduler", scheduler]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(1_000));
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{scheduler}: {}", text(&output));
        let seen: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(seen["result"]["complete"], false, "{scheduler}");
        assert!(seen["result"]["events"].as_u64().unwrap() > 0, "{scheduler}: {seen}");
    }
}
