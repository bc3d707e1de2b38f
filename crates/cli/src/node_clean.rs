//! `tidepool node-clean`: removes what pools that nobody uses any more left on this node.
//! For epilogs of batch systems, and for people.

use crate::agent::{NodeRecord, become_user};
use crate::exit::{Failure, Kind, Result};
use crate::flags::NodeCleanArgs;
use crate::instance::{self, Instance};
use crate::launch;
use serde_json::json;
use std::process::ExitCode;

pub fn node_clean(args: &NodeCleanArgs) -> Result<ExitCode> {
    // Its files belong to the user, who could lead us anywhere with them: never as root.
    if let Some(code) = become_user(args.as_user)? {
        return Ok(code);
    }
    let mut cleaned = Vec::new();
    let mut failures = Vec::new();
    for pool in instance::list().into_iter().filter(|pool| is_over(pool, args.job.as_deref())) {
        let done = if args.dry_run { Ok(()) } else { launch::clean_here(&pool, true) };
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
fn is_over(pool: &Instance, job: Option<&str>) -> bool {
    let mut records = NodeRecord::all(pool);
    records.extend(NodeRecord::starter(pool));
    if let Some(job) = job {
        return records.iter().any(|r| r.job == job);
    }
    let run = pool.run_record().map(|r| r.pid);
    let kept = run.is_none() && records.iter().flat_map(|r| &r.stores).any(|s| tidepool_fsd::is_store(s));
    let known = records.iter().flat_map(|r| r.daemons.iter().chain([&r.agent]).copied());
    !kept && !known.chain(run).any(|pid| pid != 0 && launch::is_ours(pid))
}
