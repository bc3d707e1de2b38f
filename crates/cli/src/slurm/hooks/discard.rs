//! A job that removes what another one could not stage out, since nobody wants it any more. It runs on that job's nodes, where
//! the data are; an administrator may do without, where nodes do not come back.

use super::nodes::abandon;
use super::world::know;
use super::{Case, Desk, now};
use crate::exit::{Failure, Kind, Result};
use crate::slurm::orders::Kind as Storage;
use crate::slurm::scontrol;
use crate::slurm::site::Site;
use crate::slurm::stagers::{Fleet, Ways};
use std::time::Duration;
use tidepool_stage_client::{Op, Resource, StageError, Stager, TaskSpec, TaskState, show};
use tidepool_types::Errno;

/// How long the removal of results may take.
const REMOVE_MAX: Duration = Duration::from_secs(3600);

/// For an administrator, where the book is. With `lost`, nodes that do not answer are given up.
pub fn discard_here(site: Site, of: u32, lost: bool) -> Result<()> {
    let desk = Desk::open(site)?;
    super::resume::admit(&desk.book, "discard", of, 0)?;
    let case = desk.case(of)?;
    let (fleet, missing) = Fleet::reach(&Ways::of(&desk.site)?, &case.job.nodes);
    if let Some((node, failure)) = missing.first().filter(|_| !lost) {
        let text = format!("node {node} does not answer ({failure}); --lost gives up what it has");
        return Err(Failure::new(Kind::Cleanup, text));
    }
    let given_up: Vec<&str> = missing.iter().map(|(node, _)| node.as_str()).collect();
    let more = match given_up.is_empty() {
        true => String::new(),
        false => format!("; given up on {}", given_up.join(", ")),
    };
    desk.discard(&case, &fleet, &format!("its results were discarded by an administrator{more}"))
}

impl Desk {
    pub fn discard_by(&self, case: &Case, of: u32) -> Result<()> {
        let other = self.case(of)?;
        let fleet = self.fleet(&other.job.nodes)?;
        self.discard(&other, &fleet, &format!("its results were discarded by job {}", case.id()))
    }

    fn discard(&self, other: &Case, fleet: &Fleet, words: &str) -> Result<()> {
        let of = other.id();
        for (node, ended) in fleet.each(|_, stager| abandon(stager, of)) {
            ended.map_err(|failure| Failure::new(Kind::Cleanup, format!("node {node}: {failure}")))?;
            self.noted(self.book.is_clean_at(of, &node))?;
        }
        for place in self.results_of(other)? {
            let remove = |_: &str, stager: &Stager| {
                remove(stager, &place).map_err(|why| Failure::new(Kind::Cleanup, why))
            };
            fleet.all(remove)?;
        }
        if let Some(why) = self.stop_pools(other) {
            return Err(Failure::new(Kind::Cleanup, why));
        }
        self.noted(self.book.give_up(of, words, now()))?;
        scontrol::comment_in_accounts(of, &format!("tidepool: {words}"));
        self.let_in(of)?;
        self.finish_workflow(other)
    }

    /// What a job stages out of its nodes' own storage, as tasks that remove it.
    fn results_of(&self, other: &Case) -> Result<Vec<TaskSpec>> {
        let owner = other.owner()?;
        let mut tasks = Vec::new();
        for stage in &other.asks.stage_out {
            let from = know(self, other, &stage.origin)?;
            if from.kind == Storage::Local {
                let place = Resource::local(from.dataspace, &from.path);
                // No job's: it is forgotten already.
                let owner = tidepool_stage_client::OnBehalf { job: 0, ..owner };
                tasks.push(TaskSpec { on_behalf: Some(owner), ..TaskSpec::new(Op::Remove, place, None) });
            }
        }
        Ok(tasks)
    }
}

/// What is not there need not be removed.
fn remove(stager: &Stager, task: &TaskSpec) -> std::result::Result<(), String> {
    let said = |error: StageError| error.to_string();
    let id = match stager.submit(task) {
        Err(StageError::Refused(refusal)) if refusal.errno == Errno::ENOENT.0 => return Ok(()),
        other => other.map_err(said)?,
    };
    stager.wait(&[id], false, Some(REMOVE_MAX)).map_err(said)?;
    let ended = stager.status(id).map_err(said)?;
    match ended.state {
        TaskState::Finished => Ok(()),
        TaskState::Failed if ended.refusal.errno == Errno::ENOENT.0 => Ok(()),
        _ => Err(format!("{} could not be removed: {}", ended.src, show::reason(&ended))),
    }
}
