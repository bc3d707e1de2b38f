//! Jobs that the book has and Slurm has not: slurmctld was killed before it had saved them, or forgot them while its hooks
//! could not run. Nobody else would ever tidy up after them. And pools that outlive their jobs, where nobody looks after them.

use super::lasting::Stray;
use super::{Desk, now};
use crate::exit::{Failure, Kind, Result};
use crate::slurm::flags::SweepArgs;
use crate::slurm::scontrol;
use crate::slurm::site::Site;
use serde_json::json;
use std::process::ExitCode;
use tidepool_batch::{Job, LastingPool, Phase};

/// Jobs that have changed later are left alone: Slurm may not have told of them yet.
const SETTLED_S: u64 = 60;

pub fn sweep(args: &SweepArgs) -> Result<ExitCode> {
    let desk = Desk::open(Site::read(&args.site.site)?)?;
    let lost = desk.lost()?;
    if args.dry_run {
        let pools = desk.stray_pools()?;
        match args.json {
            true => println!("{}", json!({"lost": lost, "pools": numbers(&pools)})),
            false => {
                lost.iter()
                    .for_each(|job| println!("would tidy up after job {job}, which is over for Slurm"));
                pools.iter().for_each(|(pool, what)| println!("pool {}: {}", pool.pool, what.words()));
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    // Two at once would do everything twice.
    let Ok(_lock) = desk.try_lock("sweep") else { return Ok(ExitCode::SUCCESS) };
    let mut left = Vec::new();
    for job in &lost {
        desk.note(*job, "Slurm does not know the job any more, or has ended it in the queue");
        if let Err(failure) = desk.bury(*job) {
            left.push(format!("job {job}: {failure}"));
        }
    }
    let pools = desk.stray_pools()?;
    for (pool, what) in &pools {
        left.extend(desk.look_after(pool, *what).err().map(|failure| failure.to_string()));
    }
    match args.json {
        true => println!("{}", json!({"lost": lost, "pools": numbers(&pools), "left": left})),
        false => {
            lost.iter().for_each(|job| println!("tidied up after job {job}, which is over for Slurm"));
            pools.iter().for_each(|(pool, what)| println!("pool {}: {}", pool.pool, what.words()));
        }
    }
    match left.into_iter().next() {
        None => Ok(ExitCode::SUCCESS),
        Some(first) => Err(Failure::new(Kind::Cleanup, first)),
    }
}

/// Ends a pool that outlives its jobs, for an administrator.
pub fn end_pool(site: Site, number: u32) -> Result<()> {
    let desk = Desk::open(site)?;
    super::lasting::admit_end(&desk.book, number, 0)?;
    desk.end_lasting(number)
}

fn numbers(pools: &[(LastingPool, Stray)]) -> Vec<u32> {
    pools.iter().map(|(pool, _)| pool.pool).collect()
}

impl Desk {
    /// Jobs under way that Slurm does not know, and those that it has ended in its queue, of which it tells no hook.
    fn lost(&self) -> Result<Vec<u32>> {
        let settled = |job: &Job| job.changed + SETTLED_S < now();
        let jobs: Vec<Job> = self.noted(self.book.jobs(false))?.into_iter().filter(settled).collect();
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let known = scontrol::all_jobs()?;
        let is_over = |job: &Job| match known.get(&job.job) {
            None => true,
            Some(state) => job.phase == Phase::Submitted && state == "CANCELLED",
        };
        Ok(jobs.into_iter().filter(is_over).map(|job| job.job).collect())
    }

    /// What a job that has run had written goes out first.
    fn bury(&self, job: u32) -> Result<()> {
        let has_run = self.case(job)?.job.phase.has_run();
        if has_run {
            self.post_run(job)?;
        }
        self.teardown(job, !has_run)?;
        let case = self.case(job)?;
        if case.job.phase == Phase::Submitted {
            // The hook leaves alone what Slurm may take up again; this is not that.
            self.become_(job, Phase::Cancelled, "ended before it started")?;
            self.cancel_followers(&case)?;
        }
        Ok(())
    }

    fn try_lock(&self, what: &str) -> Result<std::fs::File> {
        let path = self.site.state_dir.join(format!("{what}.lock"));
        let fail =
            |error: &dyn std::fmt::Display| Failure::new(Kind::Other, format!("{}: {error}", path.display()));
        let file = std::fs::File::create(&path).map_err(|error| fail(&error))?;
        file.try_lock().map_err(|error| fail(&error))?;
        Ok(file)
    }
}
