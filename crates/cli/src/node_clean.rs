//! `tidepool node-clean`: removes what pools that nobody uses any more left on this node.
//! For epilogs of batch systems, and for people.

use crate::agent::{NodeRecord, become_user};
use crate::exit::{Failure, Kind, Result};
use crate::flags::NodeCleanArgs;
use crate::instance::{self, Instance};
use crate::launch;
use crate::process::Process;
use serde_json::json;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How the names of pools begin that hooks start for a job, before its number.
pub const HOOKS_PREFIX: &str = "job-";

const LOOK_MIN: Duration = Duration::from_millis(5);
const LOOK_MAX: Duration = Duration::from_millis(500);

pub fn node_clean(args: &NodeCleanArgs) -> Result<ExitCode> {
    // What the directories say is the user's word, or somebody else's: root neither reads nor follows it.
    if let Some(code) = become_user(args.as_user)? {
        return Ok(code);
    }
    if let (Some(limit), Some(job)) = (args.wait, &args.job) {
        return wait_for_job(job, limit).map(|()| ExitCode::SUCCESS);
    }
    let mut cleaned = Vec::new();
    let mut failures = Vec::new();
    for pool in instance::list() {
        let spared =
            args.spare_pools_of_hooks && args.job.as_ref().is_some_and(|job| is_of_hooks(&pool, job));
        if spared {
            continue;
        }
        let done = match is_over(&pool, args.job.as_deref()) {
            Ok(true) if args.dry_run => Ok(()),
            Ok(true) => launch::clean_here(&pool, true),
            Ok(false) => continue,
            Err(failure) => Err(failure),
        };
        match done {
            Ok(()) => cleaned.push(pool.name),
            Err(failure) => failures.push(format!("pool '{}': {failure}", pool.name)),
        }
    }
    if args.json {
        println!("{}", json!({"cleaned": cleaned, "dry_run": args.dry_run, "errors": failures}));
    } else {
        let verb = if args.dry_run { "would remove" } else { "removed" };
        cleaned.iter().for_each(|name| println!("{verb} pool '{name}' from this node"));
    }
    if failures.is_empty() {
        Ok(ExitCode::SUCCESS)
    } else {
        Err(Failure::new(Kind::Cleanup, failures.join("; ")))
    }
}

/// A job's pools are over when the job is. Without a job, a pool is when none of the
/// processes that it had here is left and its data was not kept on purpose.
fn is_over(pool: &Instance, job: Option<&str>) -> Result<bool> {
    let mut records = NodeRecord::all(pool)?;
    records.extend(NodeRecord::starter(pool)?);
    if let Some(job) = job {
        return Ok(records.iter().any(|r| r.job == job));
    }
    let run = pool.run_record()?;
    let kept = run.is_none() && records.iter().flat_map(|r| &r.stores).any(|s| tidepool_fsd::is_store(s));
    let runs = run.is_some_and(|run| run.is_going_on());
    Ok(!kept && !runs && !records.iter().flat_map(NodeRecord::processes).any(Process::lives))
}

/// It was started by the batch system's hooks, which end it: what is left of it are results that could not be brought out, also on
/// nodes whose own part has gone well.
fn is_of_hooks(pool: &Instance, job: &str) -> bool {
    let rest = pool.name.strip_prefix(HOOKS_PREFIX).and_then(|rest| rest.strip_prefix(job));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Waits until no agent of the job's pools lives here.
fn wait_for_job(job: &str, limit: Duration) -> Result<()> {
    let deadline = Instant::now() + limit;
    let mut pause = LOOK_MIN;
    loop {
        let mut going_on = false;
        for pool in instance::list() {
            // One that nobody can read is not waited for.
            let records = NodeRecord::all(&pool).unwrap_or_default();
            going_on |= records.iter().any(|record| record.job == job)
                && NodeRecord::agents(&pool).is_ok_and(|agents| !agents.is_empty());
        }
        if !going_on {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Failure::new(Kind::Other, format!("a pool of job {job} does not end")));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LOOK_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_of_hooks_are_known_by_their_names() {
        let is = |name: &str| is_of_hooks(&Instance { name: name.into(), dir: "/".into() }, "4");
        assert!(is("job-4") && is("job-4-scratch"));
        assert!(!is("job-42") && !is("job-42-4") && !is("run-4") && !is("job-") && !is("mine"));
    }
}
