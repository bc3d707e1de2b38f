//! What is done at the stagers of a job's nodes: the job made known, tasks brought to their end, everything taken back.

use super::{Case, Desk};
use crate::exit::{Failure, Kind, Result};
use crate::slurm::orders::Order;
use crate::slurm::scontrol;
use crate::slurm::stagers::{Fleet, Ways};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tidepool_batch::Transfer;
use tidepool_stage_client::{
    Code, Fate, JobLimit, JobSpec, OnBehalf, Owner, Resource, StageError, Stager, TaskSpec, TaskState,
    TaskStatus, show,
};

/// Between looks at tasks: short ones end soon, long ones need no haste.
const LOOK_MIN: Duration = Duration::from_millis(5);
const LOOK_MAX: Duration = Duration::from_millis(500);
/// How often what squeue shows is renewed.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// How long cancelled tasks and removals may take.
const CLEAN_MAX: Duration = Duration::from_secs(60);

/// Which way data go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    In,
    Out,
}

impl Way {
    pub fn word(self) -> &'static str {
        match self {
            Way::In => "in",
            Way::Out => "out",
        }
    }
}

/// A task that a stager has, and the order that it is for.
#[derive(Clone, Debug)]
pub struct Given {
    pub node: String,
    pub task: u32,
    pub stage: usize,
}

/// How given tasks stand, all together.
#[derive(Default, Debug)]
pub struct Standing {
    pub tasks: Vec<(String, TaskStatus)>,
}

impl Standing {
    pub fn ended(&self) -> bool {
        self.tasks.iter().all(|(_, task)| task.state.is_ended())
    }

    /// The first that has not ended well, in words.
    pub fn trouble(&self) -> Option<String> {
        let bad =
            |(_, task): &&(String, TaskStatus)| task.state.is_ended() && task.state != TaskState::Finished;
        let (node, task) = self.tasks.iter().find(bad)?;
        Some(format!("node {node}: {} to {}: {}", task.src, task.dst, why(task)))
    }

    fn progress(&self) -> String {
        let sum = |of: fn(&TaskStatus) -> u64| self.tasks.iter().map(|(_, task)| of(task)).sum::<u64>();
        let (done, total) = (sum(|task| task.bytes_done), sum(|task| task.bytes_total));
        let eta = self.tasks.iter().filter_map(|(_, task)| task.eta_ms).max();
        let percent = (done * 100).checked_div(total).unwrap_or(0);
        let eta = eta.map(|ms| format!(", {} left", show::duration(ms))).unwrap_or_default();
        format!("{percent} %{eta}")
    }
}

fn why(task: &TaskStatus) -> String {
    match task.state {
        TaskState::Cancelled => "was cancelled".into(),
        _ => show::reason(task),
    }
}

pub fn transfer(node: &str, task: &TaskStatus, way: Way) -> Transfer {
    Transfer {
        node: node.into(),
        task: task.id,
        way: way.word().into(),
        state: show::state(task.state).into(),
        source: task.src.clone(),
        destination: task.dst.clone(),
        bytes: task.bytes_done,
        files: task.files_done,
        ms: task.age_ms,
        error: if task.state == TaskState::Failed { show::reason(task) } else { String::new() },
    }
}

impl Desk {
    /// Makes the job known to its nodes' stagers. Where it is known from an earlier attempt, it begins anew.
    pub fn register(&self, case: &Case, fleet: &Fleet) -> Result<()> {
        self.register_at(case, fleet, fleet.names().to_vec())
    }

    /// The job runs on `hosts`, and these are the stagers that open what it may use.
    fn register_at(&self, case: &Case, fleet: &Fleet, hosts: Vec<String>) -> Result<()> {
        let pool = |pool: &tidepool_directives::Said<tidepool_directives::PoolRequest>| {
            super::world::pool_dataspace(case.id(), &pool.dataspace())
        };
        let pools: Vec<String> = case.asks.pools.iter().map(pool).collect();
        let limit = |name: &String| JobLimit { dataspace: name.clone(), quota: 0 };
        let spec = JobSpec {
            id: case.id(),
            hosts,
            limits: self.site.dataspace_names().iter().chain(&pools).map(limit).collect(),
            bandwidth: 0,
        };
        let OnBehalf { uid, gid, .. } = case.owner()?;
        let owner = Owner { uid, gid };
        let one = |_: &str, stager: &Stager| match stager.register_job_of(&spec, owner) {
            Err(StageError::Refused(refusal)) if refusal.code == Code::JOB_EXISTS => {
                take_back(stager, case.id()).map_err(|failure| failure.to_string())?;
                stager.register_job_of(&spec, owner).map_err(|error| error.to_string())
            }
            other => other.map_err(|error| error.to_string()),
        };
        fleet.all(Kind::Start, one).map(drop)
    }

    /// Makes the job known to nodes that are not the job's and have what it reads; those nodes.
    pub fn register_sources(&self, case: &Case, fleet: &Fleet, orders: &[Order]) -> Result<Fleet> {
        let ways = Ways::of(&self.site)?;
        let hosts = orders.iter().filter_map(|order| match &order.task.src {
            Resource::Path { host: Some(host), .. } => ways.node(host).map(String::from),
            _ => None,
        });
        let mut nodes: Vec<String> = hosts.filter(|node| fleet.get(node).is_none()).collect();
        nodes.sort();
        nodes.dedup();
        let sources = Fleet::connect(&ways, &nodes)?;
        // They serve the job's nodes, which open what lies there.
        let hosts = [fleet.names(), sources.names()].concat();
        self.register_at(case, &sources, hosts)?;
        Ok(sources)
    }

    /// Hands orders to the stagers of their nodes.
    pub fn give(&self, fleet: &Fleet, orders: &[Order], held: bool) -> Result<Vec<Given>> {
        let mut by_node: BTreeMap<&str, Vec<&Order>> = BTreeMap::new();
        for order in orders {
            by_node.entry(&order.node).or_default().push(order);
        }
        let one = |node: &str, stager: &Stager| -> std::result::Result<Vec<Given>, String> {
            let Some(own) = by_node.get(node) else { return Ok(Vec::new()) };
            let tasks: Vec<TaskSpec> = own.iter().map(|order| order.task.clone()).collect();
            let done = match held {
                true => stager.submit_held(tasks).map_err(|error| error.to_string())?,
                false => stager.submit_many(tasks).map_err(|error| error.to_string())?,
            };
            if let Some((at, refusal)) = done.refused.first() {
                let task = own.get(*at as usize).map(|order| words(&order.task)).unwrap_or_default();
                return Err(format!("{task}: {refusal}"));
            }
            let given = |(order, task): (&&Order, u32)| Given { node: node.into(), task, stage: order.stage };
            Ok(own.iter().zip(done.ids).map(given).collect())
        };
        let given = fleet.all(Kind::StageIn, one)?;
        Ok(given.into_iter().flat_map(|(_, given)| given).collect())
    }

    /// Waits until given tasks have ended, or `limit` is over; how they stand then. squeue shows meanwhile what goes on.
    pub fn settle(
        &self,
        case: &Case,
        fleet: &Fleet,
        given: &[Given],
        what: &str,
        limit: Duration,
    ) -> Result<Standing> {
        let (began, mut pause, mut told) = (Instant::now(), LOOK_MIN, Instant::now());
        loop {
            let standing = stand(fleet, given)?;
            let failed = standing.trouble().is_some();
            if standing.ended() || failed || began.elapsed() >= limit {
                return Ok(standing);
            }
            if told.elapsed() > TELL_EVERY {
                told = Instant::now();
                scontrol::comment(case.id(), &format!("tidepool: {what}: {}", standing.progress()));
            }
            std::thread::sleep(pause.min(limit.saturating_sub(began.elapsed())));
            pause = (pause * 2).min(LOOK_MAX);
        }
    }

    pub fn record(&self, job: u32, standing: &Standing, way: Way) {
        let transfers: Vec<Transfer> =
            standing.tasks.iter().map(|(node, task)| transfer(node, task, way)).collect();
        if let Err(error) = self.book.put_transfers(job, &transfers) {
            self.note(job, &error.to_string());
        }
    }

    /// Takes back everything of a job that has not run: tasks, what they copied, its name. What cannot be reached is told.
    pub fn take_all_back(&self, job: u32, nodes: &[String]) -> Vec<String> {
        let Ok(ways) = Ways::of(&self.site) else { return Vec::new() };
        let (fleet, missing) = Fleet::reach(&ways, nodes);
        let mut left: Vec<String> = missing.into_iter().map(|(_, failure)| failure.to_string()).collect();
        for (node, result) in fleet.each(|_, stager| take_back(stager, job)) {
            left.extend(result.err().map(|failure| format!("node {node}: {failure}")));
        }
        left
    }
}

fn words(task: &TaskSpec) -> String {
    let dst = task.dst.as_ref().map(tidepool_stage_client::show_place).unwrap_or_default();
    format!("{} to {dst}", tidepool_stage_client::show_place(&task.src))
}

fn stand(fleet: &Fleet, given: &[Given]) -> Result<Standing> {
    let one = |node: &str, stager: &Stager| {
        let own = given.iter().filter(|given| given.node == node);
        own.map(|given| stager.status(given.task)).collect::<std::result::Result<Vec<_>, _>>()
    };
    let all = fleet.all(Kind::StageIn, one)?;
    let tasks =
        all.into_iter().flat_map(|(node, tasks)| tasks.into_iter().map(move |task| (node.clone(), task)));
    Ok(Standing { tasks: tasks.collect() })
}

/// Ends a job's tasks at one stager and forgets the job there.
pub fn abandon(stager: &Stager, job: u32) -> Result<()> {
    end_tasks(stager, job)?;
    forget(stager, job).map_err(|error| Failure::new(Kind::Cleanup, error.to_string()))
}

fn end_tasks(stager: &Stager, job: u32) -> Result<()> {
    let fail = |error: StageError| Failure::new(Kind::Cleanup, error.to_string());
    let unended = || -> Result<Vec<u32>> {
        let tasks = stager.list(Some(job), None).map_err(fail)?;
        Ok(tasks.iter().filter(|task| !task.state.is_ended()).map(|task| task.id).collect())
    };
    let tasks = unended()?;
    for id in &tasks {
        match stager.cancel(*id) {
            Err(StageError::Refused(refusal)) if refusal.code == Code::TASK_STATE => {}
            other => other.map_err(fail)?,
        }
    }
    wait(stager, &tasks)
}

/// Ends the tasks of a job that has not run, removes what its copies made, and forgets the job there. Of a job that has
/// run that would remove its results.
fn take_back(stager: &Stager, job: u32) -> Result<()> {
    let fail = |error: StageError| Failure::new(Kind::Cleanup, error.to_string());
    end_tasks(stager, job)?;
    let places = match stager.clean_job(job, false) {
        Err(StageError::Refused(refusal)) if refusal.code == Code::NO_SUCH_JOB => return Ok(()),
        other => other.map_err(fail)?,
    };
    let removals: Vec<u32> = places.iter().map(|place| place.removal).filter(|id| *id != 0).collect();
    wait(stager, &removals)?;
    for place in places.iter().filter(|place| place.fate == Fate::Removed && place.removal != 0) {
        let task = stager.status(place.removal).map_err(fail)?;
        if task.state != TaskState::Finished {
            let text = format!("{} could not be removed: {}", place.place, show::reason(&task));
            return Err(Failure::new(Kind::Cleanup, text));
        }
    }
    forget(stager, job).map_err(fail)
}

fn wait(stager: &Stager, tasks: &[u32]) -> Result<()> {
    if tasks.is_empty() {
        return Ok(());
    }
    match stager.wait(tasks, false, Some(CLEAN_MAX)) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::new(Kind::Cleanup, error.to_string())),
    }
}

/// Ends the job's registration; one that is not known is no trouble.
pub fn forget(stager: &Stager, job: u32) -> std::result::Result<(), StageError> {
    match stager.unregister_job(job) {
        Err(StageError::Refused(refusal)) if refusal.code == Code::NO_SUCH_JOB => Ok(()),
        other => other.map(drop),
    }
}
