//! A sweep as an array on a real Slurm cluster.

mod common;

use common::cluster::Cluster;
use common::text;
use std::fs;

const KNOBS: [&str; 6] = ["--vary", "weight.s=1,2", "--vary", "count.t=1,2", "--seeds", "2"];

/// Tasks on two nodes find the points that one process finds.
#[test]
fn an_array_runs_all_points() {
    let Some(cluster) = Cluster::start(2) else { return };
    let (dir, program) = (cluster.pfs("alice"), cluster.tidepool());
    let text_of = "[[device]]\nname = \"d\"\nkind = \"station\"\ntime = \"exponential 1ms\"\n\
        [[servers]]\nname = \"s\"\ndevice = \"d\"\n[[servers]]\nname = \"t\"\ndevice = \"d\"\n\
        [[workload]]\nname = \"w\"\nkind = \"ior\"\nranks = 4\nblock = \"1MiB\"\ntransfer = \"128KiB\"\n";
    fs::write(dir.join("e.toml"), text_of).unwrap();
    let path = |name: &str| dir.join(name).display().to_string();
    let sweep = |out: &str, rest: &[&str]| {
        let (file, out) = (path("e.toml"), path(out));
        let words = [&[program.as_str(), "sim", "sweep", &file], &KNOBS[..], &["--out", &out], rest].concat();
        let done = cluster.by("alice", &words);
        assert!(done.status.success(), "{}", text(&done));
    };
    let script = path("sweep.sh");
    sweep("array", &["--slurm-array", &script, "--tasks", "4"]);
    // --wait: until all tasks are over; with their worst exit code.
    let log = path("%A-%a.log");
    let done = cluster.by("alice", &["sbatch", "--wait", "-o", &log, &script]);
    assert!(done.status.success(), "{}\n{}", text(&done), cluster.overview());
    sweep("array", &["--collect"]);
    sweep("whole", &["--jobs", "1"]);
    let points = |out: &str| fs::read_to_string(dir.join(out).join("points.csv")).unwrap();
    assert_eq!(points("array").lines().count(), 9);
    assert_eq!(points("array"), points("whole"));
}
