//! Before a job has nodes: what it reads is looked at, and nodes are wished for that have it.

use super::world::know;
use super::{Case, Desk, now};
use crate::exit::{Failure, Kind, Result};
use crate::slurm::orders::Kind as Storage;
use crate::slurm::scontrol;
use crate::slurm::stagers::Ways;
use tidepool_batch::Phase;
use tidepool_env::LockedFile;
use tidepool_stage_client::{Op, Resource, Stager, TaskSpec};

/// Nodes that are asked before it is given up that any stager answers.
const ASKED_MAX: usize = 8;

impl Desk {
    /// Looks at what the job reads: it is there, may be read, and how long it will take.
    pub fn setup(&self, job: u32, uid: u32, gid: u32) -> Result<String> {
        self.noted(self.book.set_gid(job, gid))?;
        if self.goes_on(job)? {
            return Ok(String::new());
        }
        let (_turn, case) = self.turn_to_set_up(job)?;
        if case.job.uid != uid {
            let text = format!("the job belongs to user {uid}, and was submitted as user {}'s", case.job.uid);
            return Err(self.end(&case, Failure::new(Kind::Other, text)));
        }
        self.queued_again(&case)?;
        self.noted(self.book.note_setup(job))?;
        let case = self.case(job)?;
        self.look(&case).map_err(|failure| self.end(&case, failure))?;
        self.advance(&case, Phase::Checked, "")?;
        Ok(String::new())
    }

    /// slurmctld was started again: the job goes on where it was. The hook of before may still be at work, for hours; so it is not
    /// waited for, as Slurm waits for this one.
    fn goes_on(&self, job: u32) -> Result<bool> {
        let known = self.noted(self.book.job(job))?;
        Ok(known.is_set_up() && matches!(known.phase, Phase::Checked | Phase::StagingIn | Phase::Ready))
    }

    /// As [`Desk::turn`], also for a job that has ended: it may be queued once more. A hook that is at work for a start that Slurm
    /// has forgotten ends.
    fn turn_to_set_up(&self, job: u32) -> Result<(LockedFile, Case)> {
        if matches!(self.noted(self.book.job(job))?.phase, Phase::Starting | Phase::Running) {
            self.noted(self.book.begin_teardown(job, now()))?;
        }
        let lock = self.lock(&super::starting(job))?;
        Ok((lock, self.case(job)?))
    }

    /// What Slurm, its owner or an administrator has queued once more.
    fn queued_again(&self, case: &Case) -> Result<()> {
        let job = case.id();
        match case.job.phase {
            Phase::Submitted => {}
            Phase::StageOutFailed => {
                let text =
                    format!("results of its last run are still on its nodes: 'tidepool slurm resume {job}'");
                // Not by `end`: those results are still to be brought out.
                scontrol::comment(job, &format!("tidepool: {text}"));
                scontrol::cancel_from_hook(job, &self.site.file)?;
                return Err(Failure::new(Kind::Usage, text));
            }
            phase if phase.is_final() => self.noted(self.book.revive(job, now()))?,
            phase => self.become_(job, Phase::Submitted, &format!("queued again while it was {phase}"))?,
        }
        for left in self.take_back_everywhere(&self.case(job)?) {
            self.note(job, &format!("of an earlier attempt: {left}"));
        }
        self.noted(self.book.set_nodes(job, &[]))
    }

    fn look(&self, case: &Case) -> Result<()> {
        let mut sources = Vec::new();
        for stage in &case.asks.stage_in {
            let from = know(self, case, &stage.origin)?;
            // What nodes keep is looked for when the job has nodes.
            if from.kind == Storage::Shared {
                sources.push((from, know(self, case, &stage.destination)?));
            }
        }
        if sources.is_empty() {
            return Ok(());
        }
        let stager = self.any_stager()?;
        let owner = case.owner()?;
        let mut estimate = Some(0u64);
        for (from, to) in sources {
            let source = Resource::local(from.dataspace.clone(), &from.path);
            // The destination only says which pair of dataspaces it is; a pool's is not known yet.
            let destination = match to.kind {
                Storage::Pool => source.clone(),
                _ => Resource::local(to.dataspace.clone(), &to.path),
            };
            let task = TaskSpec {
                on_behalf: Some(tidepool_stage_client::OnBehalf { job: 0, ..owner }),
                ..TaskSpec::new(Op::Copy, source, Some(destination))
            };
            let plan = stager.plan(&task).map_err(|error| {
                Failure::new(Kind::StageIn, format!("stage_in {}: {error}", from.shown()))
            })?;
            estimate = estimate.zip(plan.estimate_ms).map(|(sum, ms)| sum + ms);
        }
        self.noted(self.book.set_estimate(case.id(), estimate))
    }

    /// A stager of some node: all see the shared file systems.
    fn any_stager(&self) -> Result<Stager> {
        let ways = Ways::of(&self.site)?;
        let mut last = Failure::new(Kind::NoStager, "no node of the cluster is up");
        for node in scontrol::live_nodes()?.iter().take(ASKED_MAX) {
            match ways.connect(node) {
                Ok(stager) => return Ok(stager),
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    /// Where the job's predecessors are over: its nodes are chosen by what lies where, and reserved if it asks for that.
    pub fn data_in(&self, job: u32) -> Result<String> {
        let (_turn, case) = self.turn(job)?;
        if case.job.phase >= Phase::Ready {
            // slurmctld was started again.
            return Ok(String::new());
        }
        self.avoid(&case).map_err(|failure| self.end(&case, failure))?;
        self.place(&case).map_err(|failure| self.end(&case, failure))?;
        if !case.asks.reserve || case.asks.stage_in.is_empty() {
            return Ok(String::new());
        }
        self.stage_ahead(&case).map_err(|failure| self.end(&case, failure))?;
        Ok(String::new())
    }

    /// Nodes of the jobs that this one comes after: required, or preferred.
    fn place(&self, case: &Case) -> Result<()> {
        let mut nodes: Vec<String> = Vec::new();
        for prior in &case.asks.workflow.prior {
            let Ok(prior) = self.book.job(prior.value) else { continue };
            nodes.extend(prior.nodes.into_iter().filter(|node| !nodes.contains(node)).collect::<Vec<_>>());
        }
        if case.asks.workflow.same_nodes && !nodes.is_empty() {
            self.note(case.id(), &format!("has to run on {}", nodes.join(",")));
            return scontrol::update_job(case.id(), &[("ReqNodeList", &nodes.join(","))]);
        }
        self.prefer(case)
    }

    /// Soft: nodes that hold what this job reads are preferred, by a feature that they have as long as they hold it.
    fn prefer(&self, case: &Case) -> Result<()> {
        let mut features = Vec::new();
        for location in self.noted(self.book.locations())? {
            let feature = super::world::feature(location.job);
            let prior = case.asks.workflow.prior.iter().any(|prior| prior.value == location.job);
            if prior && !features.contains(&feature) {
                features.push(feature);
            }
        }
        for pool in case.asks.pools.iter().filter(|pool| pool.outlives_job()) {
            // One that is not there yet is preferred nowhere.
            let there = self.lasting(case, pool)?;
            features.extend((!there.nodes.is_empty()).then(|| super::lasting::feature(there.pool)));
        }
        if features.is_empty() {
            return Ok(());
        }
        let wanted = features.join("|");
        if let Err(failure) = scontrol::update_job(case.id(), &[("Prefer", &wanted)]) {
            // A wish only: the job runs anywhere, and data move.
            self.note(case.id(), &format!("cannot prefer nodes with {wanted}: {failure}"));
        }
        Ok(())
    }

    /// True for a copy into the job's pool, which does not exist before the job has its nodes.
    pub fn is_for_pool(&self, case: &Case, stage: &tidepool_directives::Stage) -> bool {
        know(self, case, &stage.destination).is_ok_and(|known| known.kind == Storage::Pool)
    }
}
