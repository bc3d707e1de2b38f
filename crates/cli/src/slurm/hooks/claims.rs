//! A job has its nodes when nothing on them is in another one's way (`slurm::claims`).

use super::world::know;
use super::{Case, Desk};
use crate::exit::{Failure, Kind, Result};
use crate::slurm::claims::{Claim, Clash, clash, uses};
use crate::slurm::scontrol;
use std::time::{Duration, Instant};
use tidepool_batch::{Job, Phase};
use tidepool_directives::PoolRequest;

/// Between looks at whether those in the way have ended.
const LOOK_MIN: Duration = Duration::from_millis(50);
const LOOK_MAX: Duration = Duration::from_secs(1);
/// How often what the job waits for is told anew: it changes as others come and go.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// Its nodes are the job's, with all it has there; or it waits for them, and came before `own`. So whoever wants many nodes
/// is not overtaken for ever.
fn holds(job: &Job, own: u32) -> bool {
    match job.phase {
        Phase::Checked => job.job < own,
        Phase::Submitted => false,
        _ => job.job != own,
    }
}

/// Bytes that a pool may take of each node. One without a size may take all there is.
fn room(pool: &PoolRequest, nodes: usize, capacity: Option<u64>) -> u64 {
    let nodes = pool.nodes.unwrap_or(nodes).clamp(1, nodes.max(1)) as u64;
    match (&pool.size, capacity) {
        (Some(size), _) => size.value.div_ceil(nodes),
        (None, capacity) => capacity.unwrap_or(0),
    }
}

impl Desk {
    /// From here on the nodes are the job's. Waits as long as others are in the way, and at most as long as for data.
    pub fn take_nodes(&self, case: &Case, nodes: &[String]) -> Result<()> {
        let limit = case.asks.timeouts.stage_in.unwrap_or(self.site.stage_in_timeout);
        let began = Instant::now();
        let (mut told, mut pause) = (None, LOOK_MIN);
        while let Some(met) = self.try_to_take(case, nodes)? {
            if met.stays() {
                return Err(lasting(&met));
            }
            if began.elapsed() >= limit {
                let text = format!("{met}; waited for {} s", limit.as_secs());
                return Err(Failure::new(Kind::TaskTimeout, text));
            }
            if told.is_none_or(|at: Instant| at.elapsed() > TELL_EVERY) {
                told = Some(Instant::now());
                self.note(case.id(), &format!("waits: {met}"));
                self.tell(case, &format!("waits: {met}"));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LOOK_MAX);
            self.check_wanted(case)?;
        }
        Ok(())
    }

    fn try_to_take(&self, case: &Case, nodes: &[String]) -> Result<Option<Clash>> {
        // Look and take as one: jobs start side by side.
        let _lock = self.lock("nodes")?;
        self.noted(self.book.set_nodes(case.id(), nodes))?;
        let met = self.in_the_way(case, nodes)?;
        if met.is_none() {
            self.advance(case, Phase::Starting, "")?;
        }
        Ok(met)
    }

    /// What keeps the job from these nodes.
    pub fn in_the_way(&self, case: &Case, nodes: &[String]) -> Result<Option<Clash>> {
        let own = self.claim(case, nodes)?;
        if own.uses.is_empty() && own.room == 0 {
            return Ok(None);
        }
        let near = |job: &Job| holds(job, case.id()) && job.nodes.iter().any(|node| nodes.contains(node));
        let others = [self.claims(near)?, self.claims_of_pools()?].concat();
        Ok(clash(&own, &others, self.site.pool_capacity))
    }

    /// Nodes that still have results where the job would write, and why: it has to run on others.
    pub fn nodes_to_avoid(&self, case: &Case) -> Result<Vec<Clash>> {
        let own = self.claim(case, &[])?;
        let mut avoid: Vec<Clash> = Vec::new();
        for other in self.claims(|job| job.phase == Phase::StageOutFailed)? {
            for node in &other.nodes {
                let here = Claim { nodes: vec![node.clone()], ..own.clone() };
                avoid.extend(clash(&here, std::slice::from_ref(&other), None));
            }
        }
        Ok(avoid)
    }

    /// Nodes where results of others still lie in this job's way are left out; its own wishes stay.
    pub fn avoid(&self, case: &Case) -> Result<()> {
        let job = case.id();
        let (met, before) = (self.nodes_to_avoid(case)?, self.noted(self.book.avoided(job))?);
        if met.is_empty() && before.is_empty() {
            return Ok(());
        }
        let (wanted, refused) = scontrol::wishes(job)?;
        if let Some(met) = met.iter().find(|met| wanted.iter().any(|node| node == met.node())) {
            return Err(Failure::new(Kind::Start, met.to_string()));
        }
        let mut all: Vec<String> = refused.into_iter().filter(|node| !before.contains(node)).collect();
        let mut added = Vec::new();
        for node in met.iter().map(|met| met.node().to_string()) {
            if !all.contains(&node) {
                all.push(node.clone());
                added.push(node);
            }
        }
        self.noted(self.book.set_avoided(job, &added))?;
        let text = match met.first() {
            Some(first) => format!("not on {}: {first}", added.join(",")),
            None => "may run on all nodes again".into(),
        };
        self.note(job, &text);
        scontrol::comment(job, &format!("tidepool: {text}"));
        scontrol::update_job(job, &[("ExcNodeList", &all.join(","))])
    }

    /// A job's results are not on its nodes any more: who was kept from them may run there.
    pub fn let_in(&self, of: u32) -> Result<()> {
        for node in self.noted(self.book.job(of))?.nodes {
            for job in self.noted(self.book.kept_from(&node))? {
                let case = self.case(job)?;
                let waits = scontrol::job(job)?.is_some_and(|facts| facts.is_queued());
                if let Err(failure) = if waits { self.avoid(&case) } else { Ok(()) } {
                    self.note(job, &failure.to_string());
                }
            }
        }
        Ok(())
    }

    fn claims(&self, which: impl Fn(&Job) -> bool) -> Result<Vec<Claim>> {
        let jobs = self.noted(self.book.with_nodes())?;
        jobs.into_iter()
            .filter(which)
            .map(|job| {
                let asks = super::directives(job.script.as_bytes())?;
                let nodes = job.nodes.clone();
                self.claim(&Case { job, asks }, &nodes)
            })
            .collect()
    }

    fn claim(&self, case: &Case, nodes: &[String]) -> Result<Claim> {
        let mut own_room = 0;
        for pool in &case.asks.pools {
            // One that is there already has its room.
            let is_there = pool.outlives_job() && self.is_placed(case, pool)?;
            own_room += if is_there { 0 } else { room(pool, nodes.len(), self.site.pool_capacity) };
        }
        Ok(Claim {
            holder: format!("job {}", case.id()),
            uid: case.job.uid,
            nodes: nodes.to_vec(),
            uses: uses(&case.asks, |place| know(self, case, place))?,
            room: own_room,
            has_results: case.job.phase == Phase::StageOutFailed,
        })
    }

    fn is_placed(&self, case: &Case, pool: &PoolRequest) -> Result<bool> {
        let name = pool.name.as_ref().map(|name| name.value.as_str()).unwrap_or_default();
        let there = self.noted(self.book.pool_of_job(case.id(), name))?;
        Ok(there.is_some_and(|pool| !pool.nodes.is_empty()))
    }

    /// Pools that outlive their jobs have their room also when nobody uses them.
    fn claims_of_pools(&self) -> Result<Vec<Claim>> {
        let mut claims = Vec::new();
        for pool in self.noted(self.book.pools())?.into_iter().filter(|pool| !pool.nodes.is_empty()) {
            let asks = super::directives(format!("#!/bin/sh\n{}\n", pool.request).as_bytes())?;
            let room =
                asks.pools.iter().map(|said| room(said, pool.nodes.len(), self.site.pool_capacity)).sum();
            let holder = format!("pool {} ({})", pool.pool, pool.name);
            claims.push(Claim { holder, nodes: pool.nodes, room, ..Claim::default() });
        }
        Ok(claims)
    }
}

/// On other nodes nothing may be in the way; where a node's room is too small, all are.
fn lasting(met: &Clash) -> Failure {
    let kind = match met {
        Clash::Place { .. } => Kind::NoStager,
        Clash::Room { .. } => Kind::Start,
    };
    Failure::new(kind, met.to_string())
}
