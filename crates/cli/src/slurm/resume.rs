//! `tidepool slurm resume` and `discard`: a job of the user's that does nothing but finish a stage-out (INVENTORY H14), or
//! give it up. So the nodes are the scheduler's to give, and root's part is the hooks'.

use super::flags::{DiscardArgs, ResumeArgs};
use super::hooks;
use super::keeper;
use super::site::Site;
use crate::exit::{Context, Failure, Kind, Result};
use serde_json::json;
use std::io::Write;
use std::process::{Command, ExitCode, Stdio};

/// What such a job does to another one.
struct Errand {
    directive: &'static str,
    doing: &'static str,
    /// The phase of the other job when it is done.
    done: &'static str,
    failed: Kind,
}

const RESUME: Errand =
    Errand { directive: "resume", doing: "finishes the stage-out of", done: "done", failed: Kind::StageOut };
const DISCARD: Errand =
    Errand { directive: "discard", doing: "removes the results of", done: "failed", failed: Kind::Cleanup };

pub fn resume(args: &ResumeArgs) -> Result<ExitCode> {
    RESUME.run(args)
}

pub fn discard(args: &DiscardArgs) -> Result<ExitCode> {
    let site = &args.errand.site.site;
    // Burst buffers are not for root's jobs; where the book is, he needs none.
    if !keeper::keeps_book(site)? {
        if args.lost {
            let text =
                "--lost is for root, or SlurmUser, on the controller: only an administrator gives up nodes";
            return Err(Failure::new(Kind::Usage, text));
        }
        return DISCARD.run(&args.errand);
    }
    let job = args.errand.job;
    if args.errand.dry_run {
        println!("would remove the results of job {job} that are still on its nodes");
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(code) = keeper::as_keeper(site)? {
        return Ok(code);
    }
    hooks::discard_here(Site::read(site)?, job, args.lost)?;
    if args.errand.json {
        println!("{}", json!({"job": job, "done": true}));
    }
    Ok(ExitCode::SUCCESS)
}

impl Errand {
    fn run(&self, args: &ResumeArgs) -> Result<ExitCode> {
        let Errand { directive, doing, .. } = self;
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
            format!("--job-name=tidepool-{directive}-{}", args.job),
            "--output=/dev/null".into(),
        ];
        if args.dry_run {
            println!("would submit: sbatch {} with '#TIDEPOOL {directive} {}'", words.join(" "), args.job);
            return Ok(ExitCode::SUCCESS);
        }
        let number = submit(&words, &format!("{directive} {}", args.job), args.wait)?;
        if !args.wait {
            match args.json {
                true => println!("{}", json!({"job": args.job, "by": number})),
                false => println!("job {number} {doing} job {}", args.job),
            }
            return Ok(ExitCode::SUCCESS);
        }
        self.judge(args, number)
    }

    fn judge(&self, args: &ResumeArgs, number: u32) -> Result<ExitCode> {
        let after = super::ask(&args.site, &["job", &args.job.to_string()])?;
        let done = after["job"]["phase"] == self.done;
        if args.json {
            println!("{}", json!({"job": args.job, "by": number, "done": done}));
        }
        if done {
            return Ok(ExitCode::SUCCESS);
        }
        let by = super::ask(&args.site, &["job", &number.to_string()])?;
        let why = by["job"]["reason"].as_str().unwrap_or_default();
        let text = format!("job {number}, which {} job {}, has not succeeded: {why}", self.doing, args.job);
        Err(Failure::new(self.failed, text))
    }
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
