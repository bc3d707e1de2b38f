//! `tidepool slurm resume`: a job of the user's that does nothing but finish a stage-out (INVENTORY H14). So the nodes are
//! the scheduler's to give, and root's part is the hooks'.

use super::flags::ResumeArgs;
use crate::exit::{Context, Failure, Kind, Result};
use serde_json::json;
use std::io::Write;
use std::process::{Command, ExitCode, Stdio};

pub fn resume(args: &ResumeArgs) -> Result<ExitCode> {
    let told = super::ask(&args.site, &["job", &args.job.to_string()])?;
    let job = &told["job"];
    let nodes: Vec<&str> =
        job["nodes"].as_array().into_iter().flatten().filter_map(serde_json::Value::as_str).collect();
    if job["phase"] != "stage-out-failed" || nodes.is_empty() {
        let phase = job["phase"].as_str().unwrap_or("not known");
        let text = format!("job {} is {phase}: nothing of it waits to be staged out", args.job);
        return Err(Failure::new(Kind::Refused, text));
    }
    let words = [
        "--parsable".to_string(),
        format!("--nodes={}", nodes.len()),
        format!("--nodelist={}", nodes.join(",")),
        format!("--job-name=tidepool-resume-{}", args.job),
        "--output=/dev/null".into(),
    ];
    if args.dry_run {
        println!("would submit: sbatch {} with '#TIDEPOOL resume {}'", words.join(" "), args.job);
        return Ok(ExitCode::SUCCESS);
    }
    let number = submit(&words, &format!("resume {}", args.job), args.wait)?;
    if !args.wait {
        match args.json {
            true => println!("{}", json!({"job": args.job, "by": number})),
            false => println!("job {number} finishes the stage-out of job {}", args.job),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let after = super::ask(&args.site, &["job", &args.job.to_string()])?;
    let done = after["job"]["phase"] == "done";
    if args.json {
        println!("{}", json!({"job": args.job, "by": number, "done": done}));
    }
    if done {
        return Ok(ExitCode::SUCCESS);
    }
    let by = super::ask(&args.site, &["job", &number.to_string()])?;
    let why = by["job"]["reason"].as_str().unwrap_or_default().to_string();
    Err(Failure::new(Kind::StageOut, format!("the stage-out of job {} is not finished: {why}", args.job)))
}

/// Submits a job that does nothing but what a directive says; its number. With `wait` when it has ended.
pub fn submit(words: &[String], directive: &str, wait: bool) -> Result<u32> {
    let mut command = Command::new("sbatch");
    command.args(words);
    if wait {
        command.arg("--wait");
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context(Kind::Other, || "sbatch".into())?;
    let script = format!("#!/bin/sh\n#TIDEPOOL {directive}\ntrue\n");
    let mut input = child.stdin.take().expect("it is piped");
    input.write_all(script.as_bytes()).context(Kind::Other, || "sbatch".into())?;
    drop(input);
    let said = child.wait_with_output().context(Kind::Other, || "sbatch".into())?;
    let text = String::from_utf8_lossy(&said.stdout);
    // With --wait sbatch ends as the job does, which the book knows better.
    text.trim().split(';').next().unwrap_or_default().parse().map_err(|_| {
        Failure::new(Kind::Refused, format!("sbatch: {}", String::from_utf8_lossy(&said.stderr).trim()))
    })
}
