//! What the end of a job means for its workflow, and for nodes that keep its data.

use super::world::feature;
use super::{Case, Desk, now};
use crate::exit::Result;
use crate::slurm::scontrol;
use std::collections::BTreeSet;
use tidepool_batch::{Phase, State};

impl Desk {
    /// A job that waits for this one must not start on what is not there: stock Slurm would let it.
    pub fn cancel_followers(&self, case: &Case) -> Result<()> {
        let mut followers: BTreeSet<u32> = match self.noted(self.book.workflow_of(case.id()))? {
            Some(workflow) => workflow.followers(case.id()),
            None => BTreeSet::new(),
        };
        followers.extend(scontrol::waiting_for(case.id()).unwrap_or_default());
        for job in followers {
            let reason = format!("job {}, which it comes after, has failed", case.id());
            let _ = self.book.become_(job, Phase::Cancelled, &reason, now());
            scontrol::comment(job, &format!("tidepool: {reason}"));
            if let Err(error) = scontrol::cancel(job) {
                self.note(case.id(), &format!("job {job} could not be cancelled: {error}"));
            }
        }
        Ok(())
    }

    /// Gives nodes that keep data of a job its feature, and takes it from those that do not any more.
    pub fn mark_nodes(&self, job: u32) -> Result<()> {
        let keep: BTreeSet<String> = self
            .noted(self.book.locations())?
            .into_iter()
            .filter(|location| location.job == job)
            .map(|location| location.node)
            .collect();
        self.mark(&feature(job), &keep)
    }

    /// Gives these nodes a feature, and no others.
    pub fn mark(&self, name: &str, keep: &BTreeSet<String>) -> Result<()> {
        // Read, change, write: hooks of other jobs must not come between.
        let _lock = self.lock("features")?;
        for node in scontrol::features()? {
            let has = node.features.iter().any(|feature| feature == name);
            if has == keep.contains(&node.name) {
                continue;
            }
            let mut features = node.features;
            match has {
                true => features.retain(|feature| feature != name),
                false => features.push(name.to_string()),
            }
            scontrol::set_features(&node.name, &features)?;
        }
        Ok(())
    }

    /// Tells the end of a workflow where its last job is looked at.
    pub fn finish_workflow(&self, case: &Case) -> Result<()> {
        let Some(whole) = self.noted(self.book.workflow_of(case.id()))? else { return Ok(()) };
        match whole.state() {
            State::Active => {}
            State::Completed => {
                self.note(case.id(), &format!("workflow {} is completed", whole.id));
                self.end_pools_of(whole.id, case.id());
            }
            State::Failed => self
                .note(case.id(), &format!("workflow {} has failed; what nodes keep for it stays", whole.id)),
        }
        Ok(())
    }
}
