//! A job that finishes the stage-out of another one (INVENTORY H14): it runs on that job's nodes, where the data still are.

use super::end::Ended;
use super::kept::Settle;
use super::nodes::{Standing, failed, tidy};
use super::{Case, Desk};
use crate::exit::{Failure, Kind, Result};
use crate::slurm::scontrol;
use crate::slurm::stagers::Fleet;
use std::time::Instant;
use tidepool_batch::Phase;
use tidepool_stage_client::{Code, StageError, Stager, TaskState};

/// Whether `uid` may finish, or give up, the stage-out of that job, at submission: only the book is asked.
pub fn admit(book: &tidepool_batch::Book, what: &str, of: u32, uid: u32) -> Result<()> {
    let refuse = |why: String| Failure::new(Kind::Usage, format!("{what} {of}: {why}"));
    let job = book.job(of).map_err(|error| refuse(error.to_string()))?;
    if job.uid != uid && uid != 0 {
        return Err(refuse("it is another user's job".into()));
    }
    match job.phase {
        Phase::StageOutFailed => Ok(()),
        phase => Err(refuse(format!("the job is {phase}: nothing of it waits to be staged out"))),
    }
}

impl Desk {
    /// Brings over what is still on the nodes, on the nodes that this job has been given.
    pub fn resume(&self, case: &Case, fleet: &Fleet, of: u32) -> Result<()> {
        let other = self.case(of)?;
        if let Some(missing) = other.job.nodes.iter().find(|node| !fleet.names().contains(node)) {
            let text = format!("data of job {of} are on {missing}, which is none of this job's nodes");
            return Err(Failure::new(Kind::Usage, text));
        }
        self.note(of, &format!("job {} goes on with its stage-out", case.id()));
        let brought = self.bring(case, &other, fleet);
        self.leave_pools(&other, case.id());
        brought?;
        // It may have been the last of its workflow.
        self.finish_workflow(&other)
    }

    fn bring(&self, case: &Case, other: &Case, fleet: &Fleet) -> Result<()> {
        let of = other.id();
        self.reopen_pools(other, fleet, case.id())?;
        fleet.all(|_, stager| again(stager, of).map_err(|error| failed(Kind::StageOut, error)))?;
        let limit = case.asks.timeouts.stage_out.unwrap_or(self.site.stage_out_timeout);
        let deadline = Instant::now() + limit;
        let (standing, missing) = self.wait_for_tasks(other, &other.job.nodes, deadline, &|| true)?;
        if let Some((node, failure)) = missing.into_iter().next() {
            return Err(Failure::new(Kind::StageOut, format!("node {node} does not answer ({failure})")));
        }
        self.record_out(other, &standing)?;
        self.judge(other, fleet, &standing, limit)
    }

    fn judge(
        &self,
        other: &Case,
        fleet: &Fleet,
        standing: &Standing,
        limit: std::time::Duration,
    ) -> Result<()> {
        let of = other.id();
        if let Some(why) = self.verdict(other, standing, limit, Ended::Well)? {
            self.note(of, &format!("its stage-out has failed again: {why}"));
            self.keep_pools(other);
            return Err(Failure::new(Kind::StageOut, format!("job {of}: {why}; the data are kept")));
        }
        let stopped = self.stop_pools(other).map_or(Ok(()), |why| Err(Failure::new(Kind::Cleanup, why)));
        // On a node whose power went, there is more of a pool than what was started again.
        if let Err(failure) = stopped.and_then(|()| self.clear_pools(other)) {
            self.note(of, &failure.to_string());
        }
        if let Err(failure) = self.settle_kept(other, Settle::All) {
            self.note(of, &format!("persist: {failure}"));
        }
        for (node, ()) in fleet.all(|_, stager| tidy(stager, of))? {
            self.noted(self.book.is_clean_at(of, &node))?;
        }
        self.become_(of, Phase::Done, "finished later")?;
        self.let_in(of)?;
        scontrol::comment_in_accounts(of, "tidepool: stage-out finished later");
        Ok(())
    }
}

/// Starts tasks again that have not ended well.
fn again(stager: &Stager, job: u32) -> std::result::Result<(), StageError> {
    for state in [TaskState::Failed, TaskState::Cancelled] {
        for task in stager.list(Some(job), Some(state))? {
            match stager.resume(task.id) {
                // It goes on already.
                Err(StageError::Refused(refusal)) if refusal.code == Code::TASK_STATE => {}
                other => other?,
            }
        }
    }
    Ok(())
}
