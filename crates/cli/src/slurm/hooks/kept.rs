//! What `persist` says (paper, Listing 1): which nodes keep what for later jobs, and who may read it.
//!
//! Marks are made before a job's program starts, so that nothing of it is taken for a leftover; what they mean for files is
//! settled when it has ended, where it has left something. A job that never ran keeps nothing.

use super::world::{know, user_id};
use super::{Case, Desk};
use crate::exit::Result;
use crate::slurm::orders::{Known, shown_place};
use crate::slurm::stagers::{Fleet, Ways};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidepool_batch::Location;
use tidepool_stage_client::{
    Code, OnBehalf, Op, PersistOp, Persisted, Resource, StageError, Stager, TaskSpec, TaskState, show,
};
use tidepool_types::Errno;

/// How long what is done to kept data, all of them, is waited for.
const SETTLE_MAX: Duration = Duration::from_secs(600);

/// The end of what stagers keep for ever.
const NEVER: u64 = 0;

/// What of `persist` is carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settle {
    All,
    /// Results of the job are still on its nodes: nothing goes, and nobody is let in.
    Safe,
}

/// How a request that does something to files has ended.
enum Carried {
    Well,
    /// It was taken, and this went wrong.
    Badly(String),
    Refused(String),
}

impl Desk {
    /// What `persist` says of the job's end, and which nodes really keep what.
    pub fn settle_kept(&self, case: &Case, what: Settle) -> Result<()> {
        if case.asks.persist.is_empty() {
            return Ok(());
        }
        let fleet = self.fleet(&case.job.nodes)?;
        let owner = case.owner()?;
        let (stores, others): (Vec<_>, Vec<_>) =
            case.asks.persist.iter().partition(|persist| persist.op == PersistOp::Store);
        // First: nothing is shared on nodes that have nothing.
        for persist in stores {
            let expires = persist.expires.map(|time| super::now().saturating_add(time.as_secs()));
            self.settle_store(case, &fleet, &know(self, case, &persist.location)?, (owner, expires))?;
        }
        for persist in
            others.into_iter().filter(|persist| what == Settle::All || persist.op == PersistOp::Unshare)
        {
            let user = persist.user.as_ref().map_or(Ok(case.job.uid), |name| user_id(name))?;
            self.change_kept(case, persist.op, &know(self, case, &persist.location)?, user)?;
        }
        Ok(())
    }

    /// The same where something else has gone wrong already: what goes wrong here is noted.
    pub fn settle_what_can_be(&self, case: &Case) {
        if let Err(failure) = self.settle_kept(case, Settle::Safe) {
            self.note(case.id(), &format!("persist: {failure}"));
        }
    }

    fn settle_store(
        &self,
        case: &Case,
        fleet: &Fleet,
        place: &Known,
        (owner, expires): (OnBehalf, Option<u64>),
    ) -> Result<()> {
        let (job, shown) = (case.id(), place.shown());
        let here = Resource::local(place.dataspace.clone(), &place.path);
        // Nodes have features of the jobs that keep something there: of those before this one no longer.
        let known = self.noted(self.book.locations())?;
        let mut keepers: BTreeSet<u32> =
            known.iter().filter(|kept| kept.place == shown).map(|kept| kept.job).collect();
        keepers.insert(job);
        let one = |_: &str, stager: &Stager| match is_absent(stager, &here, owner) {
            true => stager.unkeep(&place.dataspace, &place.path, owner.uid).map(|()| None),
            // What the program has made is closed now.
            false => Ok(Some(carry_out(stager, PersistOp::Store, place, (owner.uid, expires)))),
        };
        for (node, settled) in fleet.each(one) {
            match settled {
                Ok(None) => self.noted(self.book.drop_location(&shown, &node))?,
                Err(error) => self.persist_failed(case, &node, &shown, &error.to_string()),
                Ok(Some(carried)) => {
                    let location =
                        Location { place: shown.clone(), node: node.clone(), uid: owner.uid, job, expires };
                    self.noted(self.book.keep_for(&location))?;
                    if let Carried::Badly(why) | Carried::Refused(why) = carried {
                        self.persist_failed(case, &node, &shown, &why);
                    }
                }
            }
        }
        keepers.into_iter().try_for_each(|job| self.mark_nodes(job))
    }

    /// Shares, or deletes, what the user has kept, on all nodes that keep it. The stagers take root's word for whose it is:
    /// the book knows.
    fn change_kept(&self, case: &Case, op: PersistOp, place: &Known, user: u32) -> Result<()> {
        let shown = place.shown();
        let is_own = |kept: &Location| kept.place == shown && kept.uid == case.job.uid;
        let own: Vec<Location> = self.noted(self.book.locations())?.into_iter().filter(is_own).collect();
        if own.is_empty() {
            self.note(case.id(), &format!("persist {shown}: nothing of this user's is kept there"));
        }
        let nodes: Vec<String> = own.iter().map(|kept| kept.node.clone()).collect();
        let (fleet, missing) = Fleet::reach(&Ways::of(&self.site)?, &nodes);
        for (node, failure) in missing {
            self.persist_failed(case, &node, &shown, &failure.to_string());
        }
        for (node, carried) in fleet.each(|_, stager| carry_out(stager, op, place, (user, None))) {
            if op == PersistOp::Delete && !matches!(carried, Carried::Refused(_)) {
                self.noted(self.book.drop_location(&shown, &node))?;
            }
            if let Carried::Badly(why) | Carried::Refused(why) = carried {
                self.persist_failed(case, &node, &shown, &why);
            }
        }
        let mut jobs: Vec<u32> = own.iter().map(|kept| kept.job).collect();
        jobs.dedup();
        jobs.into_iter().try_for_each(|job| self.mark_nodes(job))
    }

    /// Forgets what stagers have removed because its time was over. Nodes that are away are asked again.
    pub fn forget_expired(&self) -> Result<()> {
        let due = |kept: &Location| kept.expires.is_some_and(|end| end <= super::now());
        let over: Vec<Location> = self.noted(self.book.locations())?.into_iter().filter(due).collect();
        if over.is_empty() {
            return Ok(());
        }
        let nodes: BTreeSet<String> = over.iter().map(|kept| kept.node.clone()).collect();
        let (fleet, _) = Fleet::reach(&Ways::of(&self.site)?, &Vec::from_iter(nodes));
        let there: BTreeMap<String, Vec<Persisted>> = fleet
            .each(|_, stager| stager.persisted())
            .into_iter()
            .filter_map(|(node, kept)| Some((node, kept.ok()?)))
            .collect();
        for kept in &over {
            let is_there =
                |known: &Persisted| is_same(&shown_place(&known.dataspace, &known.path), &kept.place);
            // Its clock may be behind, or it is paused.
            if there.get(&kept.node).is_none_or(|known| known.iter().any(is_there)) {
                continue;
            }
            self.noted(self.book.drop_location(&kept.place, &kept.node))?;
            self.note(
                kept.job,
                &format!("node {}: {} is not kept any more: its time was over", kept.node, kept.place),
            );
            self.mark_nodes(kept.job)?;
        }
        Ok(())
    }

    /// For the job's report: Slurm takes no comment on a job that has ended.
    fn persist_failed(&self, case: &Case, node: &str, place: &str, why: &str) {
        self.note(case.id(), &format!("node {node}: persist {place}: {why}"));
    }

    /// Takes the marks back of a job that has not run; what earlier jobs keep there stays kept. Before its copies are taken
    /// back, which what is kept is spared from.
    pub fn unkeep(&self, case: &Case) -> Vec<String> {
        self.try_unkeep(case).unwrap_or_else(|failure| vec![failure.to_string()])
    }

    fn try_unkeep(&self, case: &Case) -> Result<Vec<String>> {
        let stores = case.asks.persist.iter().filter(|persist| persist.op == PersistOp::Store);
        let places: Vec<Known> =
            stores.map(|persist| know(self, case, &persist.location)).collect::<Result<_>>()?;
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let kept = self.noted(self.book.locations())?;
        let others = |node: &str, place: &Known| {
            kept.iter().find(|kept| kept.node == node && kept.place == place.shown() && kept.job != case.id())
        };
        // Nodes that cannot be reached are told of by who takes the rest back.
        let (fleet, _) = Fleet::reach(&Ways::of(&self.site)?, &case.job.nodes);
        let one = |node: &str, stager: &Stager| {
            let own: Vec<&Known> = places.iter().filter(|place| others(node, place).is_none()).collect();
            // This job's mark has taken the end of an earlier one's away.
            let ends = places.iter().filter_map(|place| Some((place, others(node, place)?.expires?)));
            match stager.job_report(case.id()) {
                // Not begun there, or over: then the marks are those of what it has left.
                Err(StageError::Refused(refusal)) if refusal.code == Code::NO_SUCH_JOB => Ok(Vec::new()),
                Err(error) => Err(error),
                Ok(_) => {
                    for (place, end) in ends {
                        stager.persist(PersistOp::Store, &place.dataspace, &place.path, case.job.uid, end)?;
                    }
                    own.iter()
                        .try_for_each(|place| stager.unkeep(&place.dataspace, &place.path, case.job.uid))
                        .map(|()| own)
                }
            }
        };
        let mut left = Vec::new();
        for (node, unkept) in fleet.each(one) {
            match unkept {
                Ok(places) => places
                    .iter()
                    .try_for_each(|place| self.noted(self.book.drop_location(&place.shown(), &node)))?,
                Err(error) => left.push(format!("node {node}: {error}")),
            }
        }
        Ok(left)
    }
}

/// Whether two places are one: directives may say `a:///./x/` for `a://x`.
fn is_same(one: &str, other: &str) -> bool {
    let names = |place: &str| -> Vec<String> {
        place.split('/').filter(|name| !["", "."].contains(name)).map(String::from).collect()
    };
    names(one) == names(other)
}

/// Has a stager do something, and waits until it is done.
fn carry_out(stager: &Stager, op: PersistOp, place: &Known, (user, expires): (u32, Option<u64>)) -> Carried {
    let asked = stager.persist(op, &place.dataspace, &place.path, user, expires.unwrap_or(NEVER));
    let task = match asked {
        Err(error) => return Carried::Refused(error.to_string()),
        // Stagers of before give none.
        Ok(None) => return Carried::Well,
        Ok(Some(task)) => task,
    };
    match stager.wait(&[task], false, Some(SETTLE_MAX)) {
        Err(error) => Carried::Badly(format!("task {task}: {error}")),
        Ok(tasks) => match tasks.first() {
            Some(task) if task.state == TaskState::Finished => Carried::Well,
            Some(task) => Carried::Badly(show::reason(task)),
            None => Carried::Badly(format!("the stager does not know task {task} any more")),
        },
    }
}

/// Whether there is nothing at a place. What cannot be looked at may be there.
fn is_absent(stager: &Stager, place: &Resource, owner: OnBehalf) -> bool {
    let look =
        TaskSpec { on_behalf: Some(owner), ..TaskSpec::new(Op::Copy, place.clone(), Some(place.clone())) };
    match stager.plan(&look) {
        Err(StageError::Refused(refusal)) => refusal.errno == Errno::ENOENT.0,
        _ => false,
    }
}
