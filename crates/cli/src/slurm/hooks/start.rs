//! When a job has its nodes: pool and data are made ready before its program starts.

use super::nodes::{Standing, Way};
use super::world::{Around, know};
use super::{Case, Desk};
use crate::exit::{Context, Failure, Kind, Result};
use crate::slurm::orders::{For, Kind as Storage};
use crate::slurm::scontrol;
use crate::slurm::stagers::Fleet;
use std::path::Path;
use std::time::{Duration, Instant};
use tidepool_batch::{Location, Phase};
use tidepool_directives::Stage;
use tidepool_stage_client::{PersistOp, env_name};

/// All of it is there, or why not.
pub fn arrived(standing: &Standing, limit: Duration) -> Result<()> {
    if let Some(trouble) = standing.trouble() {
        return Err(Failure::new(Kind::StageIn, trouble));
    }
    if !standing.ended() {
        let text = format!("staging in had not ended after {} s", limit.as_secs());
        return Err(Failure::new(Kind::TaskTimeout, text));
    }
    Ok(())
}

impl Desk {
    /// Variables of the job's environment (INVENTORY H15): slurmctld waits, so nothing is asked of anybody.
    pub fn paths(&self, job: u32, file: &Path) -> Result<String> {
        let case = self.case(job)?;
        let mut text = String::new();
        for dataspace in self.site.directories() {
            text.push_str(&format!("{}={}\n", env_name(&dataspace.name), dataspace.mount));
        }
        for pool in &case.asks.pools {
            let place = self.instance_of(&case, pool)?;
            let (mount, file) = (place.mount_path(), place.pool_file());
            if case.asks.pools.len() == 1 {
                text.push_str(&format!(
                    "TIDEPOOL_POOL={}\nTIDEPOOL_DIR={}\n",
                    file.display(),
                    mount.display()
                ));
            }
            let name = env_name(&pool.dataspace());
            text.push_str(&format!(
                "TIDEPOOL_{name}_POOL={}\nTIDEPOOL_{name}_DIR={}\n",
                file.display(),
                mount.display()
            ));
            if super::pools::may_preload(pool) {
                let library = crate::launch::tool_path("libtidepool_preload.so")?;
                text.push_str(&format!("TIDEPOOL_PRELOAD={}\n", library.display()));
            }
        }
        std::fs::write(file, text).context(Kind::Other, || file.display().to_string())?;
        Ok(String::new())
    }

    /// Slurm holds the nodes in CONFIGURING until this has ended.
    pub fn pre_run(&self, job: u32) -> Result<String> {
        let case = self.case(job)?;
        if case.job.phase == Phase::Ready {
            // Later jobs learn from it; this one runs without that as well.
            let _ = self.book.started_ahead(job, super::now());
        }
        if !case.needs_nodes() {
            // Who comes after it may want the same.
            let nodes = scontrol::job(job)?.map(|facts| facts.nodes).unwrap_or_default();
            self.noted(self.book.set_nodes(job, &nodes))?;
            self.become_(job, Phase::Running, "")?;
            return Ok(String::new());
        }
        match self.make_ready(&case) {
            Ok(()) => Ok(String::new()),
            // Other nodes may do: Slurm takes the job back into the queue, and the teardown takes everything back.
            Err(failure) if failure.kind == Kind::NoStager => {
                let _ = self.become_(job, Phase::Submitted, &failure.to_string());
                scontrol::comment(job, &format!("tidepool: {failure}"));
                Err(failure)
            }
            Err(failure) => Err(self.end(job, failure)),
        }
    }

    fn make_ready(&self, case: &Case) -> Result<()> {
        let job = case.id();
        let facts = scontrol::job(job)?
            .ok_or_else(|| Failure::new(Kind::Other, "Slurm does not know the job any more"))?;
        let staged = case.job.phase == Phase::Ready && case.job.nodes == facts.nodes;
        self.take_nodes(case, &facts.nodes)?;
        let fleet = self.fleet(&facts.nodes)?;
        if !staged {
            self.register(case, &fleet)?;
        }
        if let Some(of) = &case.asks.resume {
            self.resume(case, &fleet, of.value)?;
            return self.become_(job, Phase::Running, "");
        }
        if let Some(of) = &case.asks.discard {
            self.discard_by(case, of.value)?;
            return self.become_(job, Phase::Running, "");
        }
        if let Some(pool) = &case.asks.end_pool {
            self.end_pool_by(case, pool.value)?;
            return self.become_(job, Phase::Running, "");
        }
        let limit = case.asks.timeouts.stage_in.unwrap_or(self.site.stage_in_timeout);
        let deadline = Instant::now() + limit;
        let around = Around::new(self, case, &fleet)?;
        let target = For { owner: around.owner, nodes: &facts.nodes, world: &around };
        let (to_pools, to_nodes): (Vec<&Stage>, Vec<&Stage>) = case
            .asks
            .stage_in
            .iter()
            .map(|stage| &stage.value)
            .partition(|stage| self.is_for_pool(case, stage));
        let orders = if staged { Vec::new() } else { target.stage_in(to_nodes)? };
        let sources = self.register_sources(case, &fleet, &orders)?;
        let given = self.give(&fleet, &orders, false)?;
        // Data come in while daemons start.
        self.start_pools(case, &fleet)?;
        let orders = target.stage_in(to_pools)?;
        let given = [given, self.give(&fleet, &orders, false)?].concat();
        let left = deadline.saturating_duration_since(Instant::now());
        let standing = self.settle(case, &fleet, &given, "staging in", left)?;
        self.record(job, &standing, Way::In);
        sources.each(|_, stager| super::nodes::forget(stager, job));
        arrived(&standing, limit)?;
        self.keep(case, &fleet, &facts.nodes)?;
        let stages = case.asks.stage_out.iter().map(|stage| &stage.value);
        let given = self.give(&fleet, &target.stage_out(stages)?, true)?;
        self.note_held(case, &given)?;
        self.become_(job, Phase::Running, "")
    }

    /// The held tasks, so that the end of the job finds them.
    fn note_held(&self, case: &Case, given: &[super::nodes::Given]) -> Result<()> {
        let held = |given: &super::nodes::Given| {
            let stage = &case.asks.stage_out[given.stage].value;
            tidepool_batch::Transfer {
                node: given.node.clone(),
                task: given.task,
                way: Way::Out.word().into(),
                state: "held".into(),
                source: stage.origin.to_string(),
                destination: stage.destination.to_string(),
                bytes: 0,
                files: 0,
                ms: 0,
                error: String::new(),
            }
        };
        self.noted(self.book.put_transfers(case.id(), &given.iter().map(held).collect::<Vec<_>>()))
    }

    /// `persist store` and `unshare` before the program starts, so that nothing of it is taken for a leftover; `share`
    /// and `delete` are for when it has ended.
    fn keep(&self, case: &Case, fleet: &Fleet, nodes: &[String]) -> Result<()> {
        for persist in case.asks.persist.iter().filter(|persist| persist.op == PersistOp::Store) {
            let place = know(self, case, &persist.location)?;
            if place.kind != Storage::Local {
                let text = format!("persist store {}: only node-local storage is kept", place.shown());
                return Err(Failure::new(Kind::Usage, text));
            }
            let store = |_: &str, stager: &tidepool_stage_client::Stager| {
                stager.persist(PersistOp::Store, &place.dataspace, &place.path, case.job.uid, 0)
            };
            fleet.all(Kind::Start, store)?;
            for node in nodes {
                let location =
                    Location { place: place.shown(), node: node.clone(), uid: case.job.uid, job: case.id() };
                self.noted(self.book.keep(&location))?;
            }
        }
        Ok(())
    }
}
