//! `tidepool slurm lint`.

mod common;

use common::{Sandbox, text};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::process::Stdio;

const SITE: &str = r#"
pool-size-max = "1TiB"

[[dataspace]]
name = "nvme0://"
kind = "local"
mount = "/mnt/nvme0"

[[dataspace]]
name = "lustre://"
kind = "shared"
mount = "/scratch"
"#;

fn put(sandbox: &Sandbox, name: &str, content: &str) -> String {
    let path = sandbox.path(name);
    fs::write(&path, content).unwrap();
    path.to_str().unwrap().into()
}

/// What is printed for a script at the site, and the exit code.
fn lint(script: &str, flags: &[&str]) -> (String, Option<i32>) {
    let sandbox = Sandbox::new();
    let site = put(&sandbox, "slurm.toml", SITE);
    let script = put(&sandbox, "job.sh", script);
    let args = [&["slurm", "lint", "--site", &site, &script], flags].concat();
    let output = sandbox.tidepool(&args).output().unwrap();
    assert!(output.stderr.is_empty(), "{}", text(&output));
    let printed = String::from_utf8(output.stdout).unwrap();
    (printed.replace(&format!("{}/", sandbox.dir.path().display()), ""), output.status.code())
}

#[test]
fn a_right_script_is_told_in_plain_words() {
    let script = "\
#!/bin/bash
#SBATCH -N 4
#TIDEPOOL pool size=10GiB nodes=4 mode=relaxed name=pool lifetime=workflow
#TIDEPOOL reserve
#TIDEPOOL timeout stage_in=10m
#NORNS stage_in lustre://case nvme0://case scatter:processor{rank}
#NORNS stage_out nvme0://case /scratch/out gather
#NORNS stage_out pool://log lustre://log
#NORNS persist store nvme0://keep
#NORNS persist share nvme0://keep root
#NORNS workflow-prior-dependency 7 8
#NORNS workflow-same-nodes
#NORNS capacity=10GB pool=nvme
srun ./solver
";
    let expected = "\
pool       pool://, of 10.0 GiB, on 4 nodes, until the end of the workflow, mode=relaxed
reserve    nodes first, so that data are there when the job starts
stage in   lustre://case to nvme0://case; its entries go to the nodes by their ranks, processor{rank}
stage out  nvme0://case to /scratch/out; from all nodes into one directory
stage out  pool://log to lustre://log
stage in   for at most 600 s
persist    nvme0://keep stays when the job has ended
persist    root may read nvme0://keep
workflow   after job 7, 8, on the same nodes
Slurm      10GB of its burst-buffer pool 'nvme'
";
    assert_eq!(lint(script, &[]), (expected.into(), Some(0)));
    let tiers = "#TIDEPOOL pool burst=/bb/ana pfs=/work/ana flush=idle no-local=yes phase-bytes=1GiB link-bandwidth=1GiB\n#NORNS stage_in lustre://a pool://a\n";
    let expected = "\
pool      pool://, burst buffer /bb/ana, parallel file system /work/ana, strategy ia, flushed only while nothing is written, no new data on the nodes' own storage, 1.0 GiB of each process in a phase, 1.0 GiB/s from each node
stage in  lustre://a to pool://a
";
    assert_eq!(lint(tiers, &[]), (expected.into(), Some(0)));
    assert_eq!(lint("#!/bin/sh\nsrun a\n", &[]), ("job.sh has no directives\n".into(), Some(0)));
}

#[test]
fn problems_are_printed_for_editors_in_the_order_of_the_script() {
    let script = "\
#!/bin/bash
#TIDEPOOL pool size=2TiB pfs=/work strategy=fcsf
# NORNS stage_in lustre://a nvme0://a
#NORNS stage_in lustr://in nvme0://in
#NORNS stage_inn lustre://in nvme0://x
#NORNS persist share nvme0://keep nobody-of-this-name
";
    let expected = "\
job.sh:2:16: error: a pool has at most 1.0 TiB here, not 2.0 TiB
job.sh:2:36: error: 'fcsf' is none of baseline, hp, ia, fcfs, set10, fair, model; did you mean 'fcfs'?
job.sh:4:17: error: there is no dataspace 'lustr://'; did you mean 'lustre://in'?
job.sh:5:8: error: unknown directive 'stage_inn'; did you mean 'stage_in'?
job.sh:6:35: error: there is no user 'nobody-of-this-name'
job.sh:3:1: warning: this is a comment, not a directive: '# NORNS stage_in lustre://a nvme0://a'; did you mean '#NORNS stage_in'?
";
    assert_eq!(lint(script, &[]), (expected.into(), Some(123)));
}

#[test]
fn warnings_alone_are_no_failure() {
    let expected = "\
job.sh:1:11: warning: nodes are reserved for stage_in, and nothing is staged in
reserve  nodes first, so that data are there when the job starts
";
    assert_eq!(lint("#TIDEPOOL reserve\n", &[]), (expected.into(), Some(0)));
}

#[test]
fn programs_get_json() {
    let (printed, code) = lint("#NORNS stage_in lustre://in nvme0://in gather\n", &["--json"]);
    let told: Value = serde_json::from_str(&printed).unwrap();
    let problem = json!({
        "line": 1, "column": 40, "suggestion": null,
        "message": "'gather' fetches data from nodes, and 'lustre://in' is one place for all nodes; leave the mapping away",
    });
    let expected = json!({
        "script": "job.sh", "site": "slurm.toml", "problems": [problem], "warnings": [], "directives": null,
    });
    assert_eq!((told, code), (expected, Some(123)));
    let (printed, code) = lint("#TIDEPOOL pool size=1KiB\n", &["--json"]);
    let told: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((told["directives"]["pools"][0]["size"].as_u64(), code), (Some(1024), Some(0)));
    assert_eq!(told["problems"], json!([]));
}

#[test]
fn a_script_comes_from_standard_input_too() {
    let sandbox = Sandbox::new();
    let site = put(&sandbox, "slurm.toml", SITE);
    let mut command = sandbox.tidepool(&["slurm", "lint", "--site", &site, "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"#NORNS pol\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(printed, "-:1:8: error: unknown directive 'pol'; did you mean 'pool'?\n");
    assert_eq!(output.status.code(), Some(123));
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let sandbox = Sandbox::new();
    let script = put(&sandbox, "job.sh", "#TIDEPOOL pool\n");
    let site = put(
        &sandbox,
        "slurm.toml",
        "[[dataspace]]\nnme = \"a://\"\nkind = \"local\"\nmount = \"/a\"\ncolour = 1\n",
    );
    let long = put(&sandbox, "long.toml", &"#".repeat((1 << 20) + 1));
    let missing = sandbox.path("missing").display().to_string();
    for (args, code, expected) in [
        (vec!["--site", &missing, &script], 2, vec!["missing: No such file"]),
        (vec!["--site", &site, &missing], 1, vec!["missing: No such file"]),
        (
            vec!["--site", &site, &script],
            2,
            vec![
                "slurm.toml: dataspace 1: there is no key 'nme'; did you mean 'name'?",
                "slurm.toml: dataspace 1: there is no key 'colour'; the keys are name, kind, mount",
                "slurm.toml: dataspace 1: name is missing",
            ],
        ),
        (vec!["--site", &long, &script], 2, vec!["long.toml: longer than 1048576 bytes"]),
    ] {
        let output = sandbox.tidepool(&[vec!["slurm", "lint"], args].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", text(&output));
        let told = String::from_utf8_lossy(&output.stderr);
        for part in expected {
            assert!(told.contains(part), "{told}");
        }
    }
}
