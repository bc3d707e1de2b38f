//! `tidepool jobs predict` on a real cluster: what it tells of a simple queue is what Slurm then does. The history knows that alice's jobs
//! are over long before their limits; who believed the limits would be wrong by minutes.

mod common;

use common::cluster::Cluster;
use common::text;
use serde_json::Value;
use std::fs;

/// How long jobs sleep, of the 5 minutes that they ask for.
const SLEEP_S: u64 = 15;
/// How far a start may be from what was told: Slurm looks now and then, and machines are busy.
const TOLERANCE_S: u64 = 20;

/// As sacct writes it: forty jobs like those that are submitted here.
fn history() -> String {
    let mut all =
        "JobID|User|Partition|JobName|Submit|Start|End|ElapsedRaw|TimelimitRaw|State|AllocCPUS|NNodes\n"
            .to_string();
    for number in 0..40 {
        let time = |second: u64| format!("2026-01-02T{:02}:{:02}:{second:02}", number / 2, number % 2 * 30);
        all.push_str(&format!(
            "{number}|alice|test|sleeper|{}|{}|{}|{SLEEP_S}|5|COMPLETED|8|2\n",
            time(0),
            time(1),
            time(1 + SLEEP_S)
        ));
    }
    all
}

#[test]
fn what_is_told_of_a_simple_queue_is_what_slurm_does() {
    let Some(cluster) = Cluster::start(2) else { return };
    let log = cluster.pfs("alice").join("history.txt");
    fs::write(&log, history()).unwrap();
    let (log, program) = (log.display().to_string(), cluster.tidepool());
    let options = ["-N2", "--exclusive", "-n8", "-t5", "-J", "sleeper"];
    let body = format!("sleep {SLEEP_S}\n");
    let first = cluster.sbatch(&options, &body);
    cluster.wait_for(first, &["RUNNING"]);
    let second = cluster.sbatch(&options, &body);
    let third = cluster.sbatch(&options, &body);
    let held = cluster.sbatch(&[&options[..], &["--hold"]].concat(), &body);
    let tell = |words: &[&str]| -> Value {
        let words = [&[&program, "jobs", "predict", "--history", &log, "--json"], words].concat();
        let done = cluster.by("alice", &words);
        assert!(done.status.success(), "{}\n{}", text(&done), cluster.overview());
        serde_json::from_slice(&done.stdout).expect("it is JSON")
    };
    let all = tell(&[]);
    let script = cluster.home("alice").join("next.sh");
    fs::write(&script, "#!/bin/bash\n#SBATCH -N2 -n8 --exclusive --time=5 -J sleeper\nsleep 15\n").unwrap();
    let next = tell(&["--script", &script.display().to_string()]);
    let of = |value: &Value, job: u32| -> Value {
        let name = job.to_string();
        let found = value["jobs"].as_array().unwrap().iter().find(|one| one["job"] == name.as_str());
        found.unwrap_or_else(|| panic!("no {job} in {value}")).clone()
    };
    assert!(of(&all, held)["untold"].as_str().unwrap().starts_with("held"), "{all}");
    assert_eq!((&all["machine"]["nodes"], &all["history"]["jobs"]), (&2.into(), &40.into()), "{all}");
    let told = |value: &Value| value["planned"]["start_seconds"].as_u64().unwrap();
    let after = told(&of(&all, third));
    assert!((after + 5..after + 60).contains(&told(&next["jobs"][0])), "{next}");
    for job in [second, third] {
        let said = of(&all, job);
        assert_eq!(said["planned"]["nodes"], "node[1-2]", "{all}");
        cluster.wait_for(job, &["RUNNING", "COMPLETED"]);
        let started = cluster.said(&[
            "env",
            "SLURM_TIME_FORMAT=%s",
            "squeue",
            "-h",
            "-t",
            "all",
            "-o",
            "%S",
            "-j",
            &job.to_string(),
        ]);
        let started: u64 = started.parse().expect("a time");
        let apart = told(&said).abs_diff(started);
        println!("job {job}: told {}, started {started}, {apart} s apart", told(&said));
        assert!(apart <= TOLERANCE_S, "{apart} s apart: {all}\n{}", cluster.overview());
    }
}
