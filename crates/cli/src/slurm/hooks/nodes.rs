//! What is done at the stagers of a job's nodes: the job made known, tasks brought to their end, everything taken back.

use super::{Case, Desk};
use crate::exit::{Failure, Kind, Result};
use crate::slurm::orders::Order;
use crate::slurm::stagers::{Fleet, Ways};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tidepool_batch::{Touched, Transfer};
use tidepool_stage_client::{
    Cleaning, Code, Fate, JobLimit, JobSpec, OnBehalf, Owner, Resource, StageError, Stager, TaskSpec,
    TaskState, TaskStatus, show,
};
use tidepool_types::show_bytes;

/// Between looks at tasks: short ones end soon, long ones need no haste.
const LOOK_MIN: Duration = Duration::from_millis(5);
const LOOK_MAX: Duration = Duration::from_millis(500);
/// How often what squeue shows is renewed.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// How long cancelled tasks and removals may take.
const CLEAN_MAX: Duration = Duration::from_secs(60);
/// Between looks at whether a stager is back, and before what it was asked for is asked for again.
const LOOK_FOR_STAGERS: Duration = Duration::from_millis(500);
/// What has gone on for so long fails for another reason than what failed before it.
const WORKED_WELL: Duration = Duration::from_secs(30);

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

/// How orders are handed to stagers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Give {
    /// To be done, unless this hook's first call has had it begun.
    Now,
    /// To be done anew: where it was to go there is nothing any more.
    Anew,
    /// To be held until the job's program has ended.
    Held,
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
    /// Does something at the stagers of nodes that may be repeated, and does it again when one of them was away meanwhile:
    /// stagers start again, with their tasks, after an update or a death.
    pub fn patiently<T>(
        &self,
        case: &Case,
        nodes: &[String],
        deadline: Instant,
        act: impl Fn(&Fleet) -> Result<T>,
    ) -> Result<T> {
        let mut since: Option<Instant> = None;
        loop {
            let fleet = self.reach_all(case, nodes)?;
            let pids = fleet.each(|_, stager| stager.pid());
            let began = Instant::now();
            let failure = match act(&fleet) {
                Ok(done) => return Ok(done),
                Err(failure) => failure,
            };
            self.check_wanted(case)?;
            let Some(who) = self.was_away(&pids, &failure)? else { return Err(failure) };
            if began.elapsed() > WORKED_WELL {
                since = None;
            }
            if since.is_none() {
                self.note(case.id(), &format!("goes on when it can: {who} was away ({failure})"));
            }
            let away = since.get_or_insert(began).elapsed();
            if away >= self.site.stager_away_max || Instant::now() >= deadline {
                let text = format!("{failure}; tried for {} s", away.as_secs());
                return Err(Failure::new(Kind::NoStager, text));
            }
            std::thread::sleep(LOOK_FOR_STAGERS);
        }
    }

    /// Whose stager is not the one that was there before, if that explains a failure.
    fn was_away(&self, began: &[(String, u32)], failure: &Failure) -> Result<Option<String>> {
        let nodes: Vec<String> = began.iter().map(|(node, _)| node.clone()).collect();
        let (fleet, missing) = Fleet::reach(&Ways::of(&self.site)?, &nodes);
        if let Some((node, _)) = missing.into_iter().next() {
            return Ok(Some(format!("the stager of {node}")));
        }
        let now = fleet.each(|_, stager| stager.pid());
        let other =
            began.iter().find(|one| !now.contains(one)).map(|(node, _)| format!("the stager of {node}"));
        Ok(other.or_else(|| (failure.kind == Kind::NoStager).then(|| "a stager".into())))
    }

    /// The stagers of all these nodes. One that does not answer is waited for as long as the site says: whoever updates it
    /// needs a while; who waits sees why.
    fn reach_all(&self, case: &Case, nodes: &[String]) -> Result<Fleet> {
        let (ways, began, mut told) = (Ways::of(&self.site)?, Instant::now(), None);
        loop {
            let (fleet, missing) = Fleet::reach(&ways, nodes);
            let Some((_, why)) = missing.into_iter().next() else { return Ok(fleet) };
            if began.elapsed() >= self.site.stager_away_max {
                let text = format!("{why}; waited for {} s", began.elapsed().as_secs());
                return Err(Failure::new(Kind::NoStager, text));
            }
            if told.is_none_or(|at: Instant| at.elapsed() > TELL_EVERY) {
                told = Some(Instant::now());
                self.tell(case, &format!("waits: {why}"));
            }
            std::thread::sleep(LOOK_FOR_STAGERS);
            self.check_wanted(case)?;
        }
    }

    /// Makes the job known to its nodes' stagers. What one has of an earlier attempt is taken back; what it has of this one,
    /// as when this hook was called before, is gone on with.
    pub fn register(&self, case: &Case, fleet: &Fleet) -> Result<()> {
        self.register_at(case, fleet, fleet.names().to_vec())
    }

    /// The job runs on `hosts`, and these are the stagers that open what it may use.
    fn register_at(&self, case: &Case, fleet: &Fleet, hosts: Vec<String>) -> Result<()> {
        let job = case.id();
        let pool = |pool: &tidepool_directives::Said<tidepool_directives::PoolRequest>| {
            super::world::pool_dataspace(job, &pool.dataspace())
        };
        let pools: Vec<String> = case.asks.pools.iter().map(pool).collect();
        let limit = |name: &String| JobLimit { dataspace: name.clone(), quota: 0 };
        let spec = JobSpec {
            id: job,
            hosts,
            limits: self.site.dataspace_names().iter().chain(&pools).map(limit).collect(),
            bandwidth: 0,
        };
        let OnBehalf { uid, gid, .. } = case.owner()?;
        let owner = Owner { uid, gid };
        // So that whatever becomes of this hook, somebody looks there.
        self.noted(self.book.touch_nodes(job, fleet.names()))?;
        let known = self.noted(self.book.touched(job))?;
        let knows = |node: &str| is_of_attempt(&known, case, node).is_some();
        let one = |node: &str, stager: &Stager| -> Result<Option<u32>> {
            let register = || stager.register_job_of(&spec, owner);
            match register() {
                Err(StageError::Refused(refusal)) if refusal.code == Code::JOB_EXISTS => {
                    if knows(node) {
                        return Ok(None);
                    }
                    take_back(stager, job)?;
                    register().map_err(|error| failed(Kind::Start, error))?;
                }
                other => other.map_err(|error| failed(Kind::Start, error))?,
            }
            let ended = stager.list(Some(job), None).map_err(|error| failed(Kind::Start, error))?;
            Ok(Some(ended.iter().map(|task| task.id).max().unwrap_or(0)))
        };
        for (node, after) in fleet.all(one)? {
            if let Some(after) = after {
                self.noted(self.book.is_known_at(&case.job, &node, after))?;
            }
        }
        Ok(())
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

    /// Nodes that have given what they had of a job's input know nothing of it any more.
    pub fn forget_sources(&self, case: &Case, sources: &Fleet) {
        for (node, result) in sources.each(|_, stager| forget(stager, case.id())) {
            let result = match result {
                Ok(()) => self.book.is_clean_at(case.id(), &node).map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            if let Err(why) = result {
                self.note(case.id(), &format!("node {node}: {why}"));
            }
        }
    }

    /// Hands orders to the stagers of their nodes, but for those that they have from this hook's first call.
    pub fn give(&self, case: &Case, fleet: &Fleet, orders: &[Order], how: Give) -> Result<Vec<Given>> {
        let mut by_node: BTreeMap<&str, Vec<&Order>> = BTreeMap::new();
        for order in orders {
            by_node.entry(&order.node).or_default().push(order);
        }
        let known = self.noted(self.book.touched(case.id()))?;
        let one = |node: &str, stager: &Stager| -> Result<Vec<Given>> {
            let Some(own) = by_node.get(node) else { return Ok(Vec::new()) };
            // Where that is not known, nothing is taken for this attempt's.
            let after = is_of_attempt(&known, case, node).unwrap_or(u32::MAX);
            let mut there = going_on(stager, (case.id(), after), own, how)?;
            let mut given = Vec::with_capacity(own.len());
            let mut missing = Vec::new();
            for order in own {
                // Of several the last one: what earlier ones had copied may be gone.
                match there.iter().rposition(|task| is_of(task, &order.task)) {
                    Some(at) => {
                        given.push(Given { node: node.into(), task: there.remove(at).id, stage: order.stage })
                    }
                    None => missing.push(*order),
                }
            }
            given.extend(submit(node, stager, &missing, how)?);
            Ok(given)
        };
        let given = fleet.all(one)?;
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
            self.check_wanted(case)?;
            let failed = standing.trouble().is_some();
            if standing.ended() || failed || began.elapsed() >= limit {
                return Ok(standing);
            }
            if told.elapsed() > TELL_EVERY {
                told = Instant::now();
                self.tell(case, &format!("{what}: {}", standing.progress()));
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

    /// Takes back everything of a job that has not run, from all nodes that have something of it: tasks, what they copied,
    /// its name, its pools. What cannot be taken back is told, and its node stays noted.
    pub fn take_back_everywhere(&self, case: &Case) -> Vec<String> {
        let pools: Vec<String> = self.stop_pools(case).into_iter().collect();
        [pools, self.unkeep(case), self.clear(case, take_back)].concat()
    }

    /// Clears the nodes that have something of the job, each by `clear`; what hindered it.
    pub fn clear(&self, case: &Case, clear: impl Fn(&Stager, u32) -> Result<()> + Sync) -> Vec<String> {
        self.try_to_clear(case, clear).unwrap_or_else(|failure| vec![failure.to_string()])
    }

    fn try_to_clear(
        &self,
        case: &Case,
        clear: impl Fn(&Stager, u32) -> Result<()> + Sync,
    ) -> Result<Vec<String>> {
        let nodes = self.nodes_with_something(case)?;
        let (fleet, missing) = Fleet::reach(&Ways::of(&self.site)?, &nodes);
        let mut left: Vec<String> = missing.into_iter().map(|(_, failure)| failure.to_string()).collect();
        for (node, result) in fleet.each(|_, stager| clear(stager, case.id())) {
            let result = result.and_then(|()| self.clear_of_pools(case, &node));
            match result {
                Ok(()) => self.noted(self.book.is_clean_at(case.id(), &node))?,
                Err(failure) => left.push(format!("node {node}: {failure}")),
            }
        }
        Ok(left)
    }

    /// The job's nodes, and those of earlier attempts that could not be cleared.
    pub fn nodes_with_something(&self, case: &Case) -> Result<Vec<String>> {
        let mut nodes = case.job.nodes.clone();
        for touched in self.noted(self.book.touched(case.id()))? {
            if !nodes.contains(&touched.node) {
                nodes.push(touched.node);
            }
        }
        Ok(nodes)
    }
}

/// What a stager has answered. One that is away is another matter than one that refuses.
pub fn failed(kind: Kind, error: StageError) -> Failure {
    let kind = match error {
        StageError::Connect { .. } | StageError::Lost { .. } => Kind::NoStager,
        _ => kind,
    };
    Failure::new(kind, error.to_string())
}

/// A task that a stager has is what an order asks for.
fn is_of(task: &TaskStatus, order: &TaskSpec) -> bool {
    let shown = |place: &Resource| match place {
        Resource::Path { dataspace, host, path, .. } => {
            let host = host.as_ref().map(|host| format!("{host}/")).unwrap_or_default();
            format!("{host}{dataspace}{}", show_bytes(path))
        }
        Resource::Memory { .. } => String::new(),
    };
    task.op == order.op
        && task.src == shown(&order.src)
        && order.dst.as_ref().is_some_and(|dst| task.dst == shown(dst))
}

/// Behind which of its tasks those of a job's attempt are at a node; none where its stager was not told of it.
fn is_of_attempt(known: &[Touched], case: &Case, node: &str) -> Option<u32> {
    let own = known.iter().find(|one| one.node == node && one.known == Some(case.job.teardowns));
    own.map(|one| one.after)
}

/// Tasks of a job behind `after` that these orders need not be given for. Those that must not go on are ended.
fn going_on(
    stager: &Stager,
    (job, after): (u32, u32),
    orders: &[&Order],
    how: Give,
) -> Result<Vec<TaskStatus>> {
    let mut there = stager.list(Some(job), None).map_err(|error| failed(Kind::StageIn, error))?;
    there.retain(|task| task.id > after && !matches!(task.state, TaskState::Failed | TaskState::Cancelled));
    if how != Give::Anew {
        return Ok(there);
    }
    let own = |task: &&TaskStatus| orders.iter().any(|order| is_of(task, &order.task));
    let unended = there.iter().filter(own).filter(|task| !task.state.is_ended());
    cancel(stager, &unended.map(|task| task.id).collect::<Vec<_>>())?;
    Ok(Vec::new())
}

fn submit(node: &str, stager: &Stager, orders: &[&Order], how: Give) -> Result<Vec<Given>> {
    if orders.is_empty() {
        return Ok(Vec::new());
    }
    let tasks: Vec<TaskSpec> = orders.iter().map(|order| order.task.clone()).collect();
    let done = match how {
        Give::Held => stager.submit_held(tasks),
        Give::Now | Give::Anew => stager.submit_many(tasks),
    };
    let done = done.map_err(|error| failed(Kind::StageIn, error.error))?;
    if let Some((at, refusal)) = done.refused.first() {
        let task = orders.get(*at as usize).map(|order| words(&order.task)).unwrap_or_default();
        return Err(Failure::new(Kind::StageIn, format!("{task}: {refusal}")));
    }
    let given = |(order, task): (&&Order, u32)| Given { node: node.into(), task, stage: order.stage };
    Ok(orders.iter().zip(done.ids).map(given).collect())
}

fn words(task: &TaskSpec) -> String {
    let dst = task.dst.as_ref().map(tidepool_stage_client::show_place).unwrap_or_default();
    format!("{} to {dst}", tidepool_stage_client::show_place(&task.src))
}

fn stand(fleet: &Fleet, given: &[Given]) -> Result<Standing> {
    let one = |node: &str, stager: &Stager| {
        let own = given.iter().filter(|given| given.node == node);
        own.map(|given| stager.status(given.task).map_err(|error| failed(Kind::StageIn, error))).collect()
    };
    let all: Vec<(String, Vec<TaskStatus>)> = fleet.all(one)?;
    let tasks =
        all.into_iter().flat_map(|(node, tasks)| tasks.into_iter().map(move |task| (node.clone(), task)));
    Ok(Standing { tasks: tasks.collect() })
}

/// Ends a job's tasks at one stager, removes what its copies have made there, and forgets it.
pub fn abandon(stager: &Stager, job: u32) -> Result<()> {
    end_tasks(stager, job)?;
    match tidy(stager, job) {
        // It does not know any more what all its copies have made: that stays.
        Err(failure) if failure.kind == Kind::Refused => {
            forget(stager, job).map_err(|error| failed(Kind::Cleanup, error))
        }
        other => other,
    }
}

/// Removes what the copies of a job have made at one stager, whose results are out or not wanted, and forgets the job there.
/// The node's epilog has mostly done the former; where the stager was away then, nobody has.
pub fn tidy(stager: &Stager, job: u32) -> Result<()> {
    match stager.clean_own(job) {
        Err(StageError::Refused(refusal)) if refusal.code == Code::NO_SUCH_JOB => return Ok(()),
        Err(StageError::Refused(refusal)) if refusal.code == Code::TASK_STATE => {
            return Err(Failure::new(Kind::Refused, refusal.to_string()));
        }
        other => removed(stager, &other.map_err(|error| failed(Kind::Cleanup, error))?)?,
    }
    forget(stager, job).map_err(|error| failed(Kind::Cleanup, error))
}

pub fn end_tasks(stager: &Stager, job: u32) -> Result<()> {
    let tasks = stager.list(Some(job), None).map_err(|error| failed(Kind::Cleanup, error))?;
    let unended = tasks.iter().filter(|task| !task.state.is_ended());
    cancel(stager, &unended.map(|task| task.id).collect::<Vec<_>>())
}

/// Ends tasks; those that have ended are no trouble.
fn cancel(stager: &Stager, tasks: &[u32]) -> Result<()> {
    for id in tasks {
        match stager.cancel(*id) {
            Err(StageError::Refused(refusal)) if refusal.code == Code::TASK_STATE => {}
            other => other.map_err(|error| failed(Kind::Cleanup, error))?,
        }
    }
    wait(stager, tasks)
}

/// Ends the tasks of a job that has not run, removes what its copies made, and forgets the job there. Of a job that has
/// run that would remove its results.
fn take_back(stager: &Stager, job: u32) -> Result<()> {
    end_tasks(stager, job)?;
    match stager.clean_job(job, false) {
        Err(StageError::Refused(refusal)) if refusal.code == Code::NO_SUCH_JOB => return Ok(()),
        other => removed(stager, &other.map_err(|error| failed(Kind::Cleanup, error))?)?,
    }
    forget(stager, job).map_err(|error| failed(Kind::Cleanup, error))
}

/// Waits until places are removed.
fn removed(stager: &Stager, places: &[Cleaning]) -> Result<()> {
    let removals: Vec<u32> = places.iter().map(|place| place.removal).filter(|id| *id != 0).collect();
    wait(stager, &removals)?;
    for place in places.iter().filter(|place| place.fate == Fate::Removed && place.removal != 0) {
        let task = stager.status(place.removal).map_err(|error| failed(Kind::Cleanup, error))?;
        if task.state != TaskState::Finished {
            let text = format!("{} could not be removed: {}", place.place, show::reason(&task));
            return Err(Failure::new(Kind::Cleanup, text));
        }
    }
    Ok(())
}

fn wait(stager: &Stager, tasks: &[u32]) -> Result<()> {
    if tasks.is_empty() {
        return Ok(());
    }
    stager.wait(tasks, false, Some(CLEAN_MAX)).map(drop).map_err(|error| failed(Kind::Cleanup, error))
}

/// Ends the job's registration; one that is not known is no trouble.
pub fn forget(stager: &Stager, job: u32) -> std::result::Result<(), StageError> {
    match stager.unregister_job(job) {
        Err(StageError::Refused(refusal)) if refusal.code == Code::NO_SUCH_JOB => Ok(()),
        other => other.map(drop),
    }
}
