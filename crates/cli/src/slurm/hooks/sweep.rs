//! Jobs for which Slurm calls no hook any more, so that nobody else would ever tidy up after them, or go on with them:
//!
//! - those that it does not know: slurmctld was killed before it had saved them, or forgot them while its hooks could not
//!   run;
//! - those that it believes to be staged. slurmctld saves what its burst buffers are at every thirty seconds only, and what
//!   its jobs are at more often. After a death in between it waits for the end of staging that nobody does;
//! - those that are over, and whose teardown was killed, or left something behind on nodes that were away;
//! - those whose teardown slurmctld itself has killed, with the hooks that the job had when it was cancelled, and which it
//!   takes to be torn down for ever.
//!
//! And pools that outlive their jobs, where nobody looks after them.

use super::end::tidying;
use super::lasting::Stray;
use super::{Desk, now};
use crate::exit::{Context, Failure, Kind, Result};
use crate::slurm::flags::SweepArgs;
use crate::slurm::keeper;
use crate::slurm::scontrol::{self, Stand};
use crate::slurm::site::Site;
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidepool_batch::{Job, LastingPool, Phase};
use tidepool_env::LockedFile;

/// Jobs that have changed later are left alone: Slurm may not have told of them yet. After a start it takes care of its
/// jobs within this time.
const SETTLED_S: u64 = 60;
/// So long after a job's end, or after its teardown was last begun, somebody must be at it: after a failure Slurm begins
/// again within ten seconds.
const TORN_DOWN_S: u64 = 30;
/// In so long a hook that Slurm has called is at work, and Slurm has noticed that it has ended.
const NOTICED: Duration = Duration::from_secs(2);
/// How often a job is queued once more for its teardown.
const TRIES_MAX: usize = 3;
/// Between attempts to tidy up after a job.
const TRY_AGAIN_S: u64 = 600;
/// How long a cancelled job may take to be over.
const OVER_MAX: Duration = Duration::from_secs(60);
/// How long slurmctld may take to end what it takes to be staged out.
const LET_GO: Duration = Duration::from_secs(10);
const OVER_LOOK: Duration = Duration::from_millis(100);

/// What is the matter with a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Trouble {
    Lost,
    StuckBefore,
    StuckAfter,
    StuckTeardown,
    Untidy,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Found {
    job: u32,
    trouble: Trouble,
}

impl Trouble {
    fn done(self) -> &'static str {
        match self {
            Trouble::Lost | Trouble::Untidy => "tidied up after",
            Trouble::StuckBefore => "queued again",
            Trouble::StuckAfter => "finished",
            Trouble::StuckTeardown => "torn down once more",
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Trouble::Lost => "Slurm does not know it any more, or has ended it in the queue",
            Trouble::StuckBefore => "slurmctld has lost track of its stage-in",
            Trouble::StuckAfter => "slurmctld has lost track of its stage-out",
            Trouble::StuckTeardown => "slurmctld waits for its teardown, which nobody does",
            Trouble::Untidy => "it is over, and something of it is left",
        })
    }
}

pub fn sweep(args: &SweepArgs) -> Result<ExitCode> {
    if let Some(code) = keeper::as_keeper(&args.site.site)? {
        return Ok(code);
    }
    let desk = Desk::open(Site::read(&args.site.site)?)?;
    if args.dry_run {
        let (found, pools) = (desk.found()?, desk.stray_pools()?);
        match args.json {
            true => println!("{}", json!({"found": found, "pools": numbers(&pools)})),
            false => {
                found.iter().for_each(|one| println!("would look after job {}: {}", one.job, one.trouble));
                pools.iter().for_each(|(pool, what)| println!("pool {}: {}", pool.pool, what.words()));
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    // Two at once would do everything twice.
    let Ok(_lock) = desk.try_lock("sweep") else { return Ok(ExitCode::SUCCESS) };
    let found = desk.found()?;
    let mut left = Vec::new();
    for one in &found {
        desk.note(one.job, &one.trouble.to_string());
        if let Err(failure) = desk.go_on_with(one) {
            left.push(format!("job {}: {failure}", one.job));
        }
    }
    left.extend(desk.forget_expired().err().map(|failure| format!("kept data: {failure}")));
    let pools = desk.stray_pools()?;
    for (pool, what) in &pools {
        left.extend(desk.look_after(pool, *what).err().map(|failure| failure.to_string()));
    }
    match args.json {
        true => println!("{}", json!({"found": found, "pools": numbers(&pools), "left": left})),
        false => {
            found.iter().for_each(|one| println!("{} job {}: {}", one.trouble.done(), one.job, one.trouble));
            pools.iter().for_each(|(pool, what)| println!("pool {}: {}", pool.pool, what.words()));
        }
    }
    match left.into_iter().next() {
        None => Ok(ExitCode::SUCCESS),
        Some(first) => Err(Failure::new(Kind::Cleanup, first)),
    }
}

/// What is the matter with a job, if anything. `booted` is when slurmctld was started; `tried` when its teardown was begun
/// last, unless that has come to its end.
fn diagnose(job: &Job, stand: Option<&Stand>, booted: u64, tried: Option<u64>, now: u64) -> Option<Trouble> {
    if let Some(Stand { end: Some(end), .. }) = stand.filter(|stand| waits_for_teardown(stand)) {
        let since = tried.unwrap_or(0).max(*end);
        // After a start slurmctld calls all teardowns once more.
        let at_start = *end < booted && now <= booted + SETTLED_S;
        return (since + TORN_DOWN_S < now && !at_start).then_some(Trouble::StuckTeardown);
    }
    if job.changed + SETTLED_S >= now {
        return None;
    }
    let stand = match stand {
        None if !job.phase.is_final() => return Some(Trouble::Lost),
        stand => stand,
    };
    // Of a job that is ended in the queue Slurm tells no hook.
    if job.phase == Phase::Submitted && stand.is_some_and(|stand| stand.state == "CANCELLED") {
        return Some(Trouble::Lost);
    }
    if stand.is_none_or(Stand::is_over) {
        let due = tried.is_some_and(|tried| tried + TRY_AGAIN_S < now || tried < booted);
        return (due && (job.phase.is_final() || stand.is_some())).then_some(Trouble::Untidy);
    }
    let stand = stand?;
    // A hook since then would have changed it.
    if job.changed >= booted || booted + SETTLED_S >= now {
        return None;
    }
    match (stand.state.as_str(), stand.reason.as_str()) {
        ("PENDING", "BurstBufferStageIn") if !job.phase.is_final() => Some(Trouble::StuckBefore),
        // Also where all of it is out, and only slurmctld does not know.
        ("STAGE_OUT", _) => Some(Trouble::StuckAfter),
        _ => None,
    }
}

/// The job is over, and Slurm takes its teardown to be under way, or its data to be there still: it has staged the job in
/// again at the moment when it was cancelled.
fn waits_for_teardown(stand: &Stand) -> bool {
    stand.is_over() && ["teardown", "staged-in"].contains(&stand.buffers.as_str())
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
    fn found(&self) -> Result<Vec<Found>> {
        let untidy: BTreeMap<u32, u64> = self.noted(self.book.untidy())?.into_iter().collect();
        let mut jobs = self.noted(self.book.jobs(false))?;
        let known = scontrol::stands()?;
        // Those that have ended here, and not for Slurm.
        let staging_out = known.iter().filter(|(_, stand)| stand.state == "STAGE_OUT").map(|(job, _)| job);
        for job in untidy.keys().chain(staging_out) {
            if !jobs.iter().any(|known| known.job == *job) {
                jobs.extend(self.book.job(*job).ok());
            }
        }
        jobs.retain(|job| job.changed + TORN_DOWN_S < now());
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let booted = scontrol::started_at()?;
        let found = |job: Job| {
            let tried = untidy.get(&job.job).copied();
            let trouble = diagnose(&job, known.get(&job.job), booted, tried, now())?;
            Some(Found { job: job.job, trouble })
        };
        Ok(jobs.into_iter().filter_map(found).collect())
    }

    fn go_on_with(&self, found: &Found) -> Result<()> {
        match found.trouble {
            Trouble::Lost => self.bury(found.job),
            // A teardown that goes on is no trouble.
            Trouble::Untidy => match self.try_lock(&tidying(found.job)) {
                Ok(lock) => {
                    drop(lock);
                    self.bury(found.job)
                }
                Err(_) => Ok(()),
            },
            Trouble::StuckTeardown => self.tear_down_again(found.job),
            Trouble::StuckBefore => self.begin_again(found.job),
            Trouble::StuckAfter => {
                self.bury(found.job)?;
                self.let_go(found.job)
            }
        }
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

    /// Has slurmctld believe that nothing is staged out any more. What it has forgotten all about, it does not hear of; such a
    /// job has to go through the queue.
    fn let_go(&self, job: u32) -> Result<()> {
        scontrol::cancel_in_a_hurry(job)?;
        let began = Instant::now();
        while began.elapsed() < LET_GO {
            if scontrol::stand(job)?.is_none_or(|stand| stand.state != "STAGE_OUT") {
                return Ok(());
            }
            std::thread::sleep(OVER_LOOK);
        }
        scontrol::requeue_held(job)?;
        scontrol::cancel(job)
    }

    /// Slurm calls the teardown once more only when the job comes into the queue once more; then it kills nothing. What is
    /// left to do is to end the job there.
    fn tear_down_again(&self, job: u32) -> Result<()> {
        for _ in 0..TRIES_MAX {
            if !self.nobody_tears_down(job)? {
                return Ok(());
            }
            if let Err(failure) = when_over(|| scontrol::requeue_held(job)) {
                self.note(job, &format!("{failure}; Slurm lists the job until slurmctld is started again"));
                return self.bury(job);
            }
            let is_torn_down = scontrol::is_torn_down_in_time(job);
            // Whatever has become of it: nobody else would end the job, which waits in the queue.
            scontrol::cancel(job)?;
            if is_torn_down? {
                return self.bury(job);
            }
        }
        let text =
            format!("Slurm was asked {TRIES_MAX} times to tear it down once more, and still waits for that");
        Err(Failure::new(Kind::Cleanup, text))
    }

    /// Slurm waits for a teardown that does not run.
    fn nobody_tears_down(&self, job: u32) -> Result<bool> {
        // One that goes on is no trouble, nor is one that is only about to begin, or of whose end Slurm hears only now.
        for _ in 0..2 {
            if self.try_lock(&tidying(job)).is_err() {
                return Ok(false);
            }
            std::thread::sleep(NOTICED);
        }
        Ok(scontrol::stand(job)?.is_some_and(|stand| waits_for_teardown(&stand)))
    }

    /// Slurm stages a waiting job in once more only when it has been cancelled and queued again.
    fn begin_again(&self, job: u32) -> Result<()> {
        // So that its end is not taken for one: what comes after it waits on.
        self.become_(job, Phase::Submitted, "queued again: slurmctld had lost track of its stage-in")?;
        self.teardown(job, true)?;
        scontrol::cancel(job)?;
        when_over(|| scontrol::requeue(job)).map_err(|failure| {
            let text = format!("could not be queued again, submit it once more: {failure}");
            match self.case(job) {
                Ok(case) => self.end(&case, Failure::new(Kind::Start, text)),
                Err(unknown) => unknown,
            }
        })
    }

    fn try_lock(&self, what: &str) -> Result<LockedFile> {
        let path = self.lock_file(what);
        super::lock::try_take(&path).context(Kind::Other, || path.display().to_string())
    }
}

/// Does what Slurm refuses until a cancelled job is over.
fn when_over(requeue: impl Fn() -> Result<()>) -> Result<()> {
    let began = Instant::now();
    loop {
        match requeue() {
            Err(_) if began.elapsed() < OVER_MAX => std::thread::sleep(OVER_LOOK),
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(changed: u64) -> Job {
        Job {
            job: 7,
            uid: 1,
            gid: None,
            script: String::new(),
            phase: Phase::StagingIn,
            reason: String::new(),
            workflow: None,
            is_end: false,
            attempt: 1,
            nodes: Vec::new(),
            reservation: String::new(),
            estimate_ms: None,
            submitted: 0,
            changed,
            teardowns: 0,
            set_up: None,
            restarts: 0,
        }
    }

    fn stand(state: &str, reason: &str, buffers: &str, end: Option<u64>) -> Stand {
        Stand { state: state.into(), reason: reason.into(), buffers: buffers.into(), end }
    }

    #[test]
    fn teardowns_that_slurm_has_killed_are_found() {
        let checked = Job { phase: Phase::Checked, ..job(1990) };
        let over = |end| stand("CANCELLED", "None", "teardown", Some(end));
        let look = |stand: &Stand, tried| diagnose(&checked, Some(stand), 1000, tried, 2000);
        assert_eq!(look(&over(1960), Some(1900)), Some(Trouble::StuckTeardown));
        assert_eq!(
            look(&over(1960), None),
            Some(Trouble::StuckTeardown),
            "it had done all when it was killed"
        );
        assert_eq!(look(&over(1970), Some(1900)), None, "it may not have begun");
        assert_eq!(look(&over(1900), Some(1970)), None, "Slurm begins again after ten seconds");
        let staged_again = stand("CANCELLED", "None", "staged-in", Some(1960));
        assert_eq!(look(&staged_again, Some(1900)), Some(Trouble::StuckTeardown));
        assert_eq!(look(&stand("CANCELLED", "None", "complete", Some(1960)), Some(1900)), None);
        assert_eq!(look(&stand("PENDING", "Held", "teardown", None), Some(1900)), None);
        let restarted = diagnose(&checked, Some(&over(1900)), 1950, Some(1900), 2000);
        assert_eq!(restarted, None, "slurmctld has begun it again");
    }

    #[test]
    fn jobs_without_hooks_are_found() {
        let stand = |state: &str, reason: &str| stand(state, reason, "", None);
        let staging = stand("PENDING", "BurstBufferStageIn");
        let look = |changed: u64, stand: Option<&Stand>| diagnose(&job(changed), stand, 1000, None, 1100);
        assert_eq!(look(1030, None), Some(Trouble::Lost));
        assert_eq!(look(1050, None), None, "Slurm may not have told of it yet");
        assert_eq!(look(990, Some(&staging)), Some(Trouble::StuckBefore));
        assert_eq!(look(1000, Some(&staging)), None, "a hook has run since the start");
        assert_eq!(
            diagnose(&job(990), Some(&staging), 1000, None, 1055),
            None,
            "Slurm may still go on with it"
        );
        assert_eq!(look(990, Some(&stand("STAGE_OUT", "None"))), Some(Trouble::StuckAfter));
        for phase in [Phase::Done, Phase::StageOutFailed] {
            let ended = Job { phase, ..job(990) };
            let found = |state, reason| diagnose(&ended, Some(&stand(state, reason)), 1000, None, 1100);
            assert_eq!(found("STAGE_OUT", "None"), Some(Trouble::StuckAfter), "slurmctld does not know");
            assert_eq!(found("PENDING", "BurstBufferStageIn"), None, "its setup says why it cannot");
        }
        assert_eq!(look(990, Some(&stand("PENDING", "Priority"))), None);
        assert_eq!(look(990, Some(&stand("RUNNING", "None"))), None);
    }

    #[test]
    fn jobs_whose_teardown_did_not_end_are_found() {
        let over = stand("CANCELLED", "None", "", Some(1300));
        let ended = Job { phase: Phase::Failed, ..job(1500) };
        let look = |job: &Job, stand: Option<&Stand>, tried| diagnose(job, stand, 1000, tried, 2000);
        assert_eq!(look(&ended, Some(&over), None), None, "it has ended");
        assert_eq!(look(&ended, Some(&over), Some(1399)), Some(Trouble::Untidy));
        assert_eq!(look(&ended, None, Some(1399)), Some(Trouble::Untidy));
        assert_eq!(look(&ended, Some(&over), Some(1400)), None, "it may be at it");
        assert_eq!(
            look(&ended, Some(&over), Some(999)),
            Some(Trouble::Untidy),
            "slurmctld was killed meanwhile"
        );
        let queued = Job { phase: Phase::Submitted, ..job(1500) };
        assert_eq!(look(&queued, Some(&over), Some(1490)), Some(Trouble::Lost));
    }
}
