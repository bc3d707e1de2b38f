//! When a job has its nodes: pool and data are made ready before its program starts.

use super::nodes::{Give, Standing, Way, failed};
use super::world::{Around, know};
use super::{Case, Desk};
use crate::exit::{Context, Failure, Kind, Result};
use crate::slurm::orders::{For, Kind as Storage};
use crate::slurm::scontrol;
use crate::slurm::stagers::Fleet;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};
use tidepool_batch::{Location, Phase};
use tidepool_directives::Stage;
use tidepool_stage_client::{PersistOp, Stager, env_name};

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
            let (mount, file, hosts) = (place.mount_path(), place.pool_file(), place.hostfile());
            if case.asks.pools.len() == 1 {
                text.push_str(&format!(
                    "TIDEPOOL_POOL={}\nTIDEPOOL_DIR={}\nTIDEPOOL_HOSTFILE={}\n",
                    file.display(),
                    mount.display(),
                    hosts.display()
                ));
            }
            let name = env_name(&pool.dataspace());
            text.push_str(&format!(
                "TIDEPOOL_{name}_POOL={}\nTIDEPOOL_{name}_DIR={}\nTIDEPOOL_{name}_HOSTFILE={}\n",
                file.display(),
                mount.display(),
                hosts.display()
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
        let (_turn, case) = self.turn(job)?;
        if case.job.phase.has_run() {
            return self.started_once_more(&case).map(|()| String::new());
        }
        if case.job.phase == Phase::Ready {
            // Later jobs learn from it; this one runs without that as well.
            let _ = self.book.started_ahead(job, super::now());
            self.end_reservation(&case);
        }
        if !case.needs_nodes() {
            // Who comes after it may want the same.
            if let Some(facts) = scontrol::job(job)? {
                self.noted(self.book.set_nodes(job, &facts.nodes))?;
                self.noted(self.book.set_restarts(job, facts.restarts))?;
            }
            self.advance(&case, Phase::Running, "")?;
            return Ok(String::new());
        }
        match self.make_ready(&case) {
            Ok(()) => Ok(String::new()),
            // Other nodes may do: Slurm takes the job back into the queue, and the teardown takes everything back.
            Err(failure) if failure.kind == Kind::NoStager => {
                if self.advance(&case, Phase::Submitted, &failure.to_string()).is_ok() {
                    scontrol::comment(job, &format!("tidepool: {failure}"));
                }
                Err(failure)
            }
            Err(failure) => Err(self.end(&case, failure)),
        }
    }

    /// slurmctld was killed within seconds of a job's start, before it had saved it, and starts it once more. Where all is
    /// as it was left, it may; else the job comes into the queue, and begins anew when what it had written is out.
    fn started_once_more(&self, case: &Case) -> Result<()> {
        let job = case.id();
        let why = match case.job.phase {
            Phase::Running => match self.find_ready(case) {
                Ok(()) => {
                    self.note(job, "started once more: slurmctld had forgotten that it was ready");
                    return Ok(());
                }
                Err(failure) => {
                    self.advance(case, Phase::Submitted, &failure.to_string())?;
                    failure.to_string()
                }
            },
            Phase::StagingOut => match self.data_out(job) {
                Ok(_) => "it had run already".into(),
                Err(failure) => failure.to_string(),
            },
            phase => format!("it was {phase} already"),
        };
        let text =
            format!("slurmctld starts the job once more, which it had forgotten; it is queued again: {why}");
        self.note(job, &text);
        Err(Failure::new(Kind::Start, text))
    }

    /// An error unless all that a job's program is to find is there.
    fn find_ready(&self, case: &Case) -> Result<()> {
        let job = case.id();
        let nodes = scontrol::job(job)?.map(|facts| facts.nodes).unwrap_or_default();
        if nodes != case.job.nodes {
            let text =
                format!("it was made ready on {}, not on {}", case.job.nodes.join(","), nodes.join(","));
            return Err(Failure::new(Kind::Start, text));
        }
        if !case.needs_nodes() {
            return Ok(());
        }
        let fleet = self.fleet(&nodes)?;
        let known = |_: &str, stager: &Stager| {
            stager.job_report(job).map(drop).map_err(|error| failed(Kind::Start, error))
        };
        fleet.all(known)?;
        self.all_pools_are_up(case).map_err(|why| Failure::new(Kind::Start, why))
    }

    fn make_ready(&self, case: &Case) -> Result<()> {
        let facts = scontrol::job(case.id())?
            .ok_or_else(|| Failure::new(Kind::Other, "Slurm does not know the job any more"))?;
        let limit = case.asks.timeouts.stage_in.unwrap_or(self.site.stage_in_timeout);
        self.noted(self.book.set_restarts(case.id(), facts.restarts))?;
        self.take_nodes(case, &facts.nodes)?;
        let deadline = Instant::now() + limit;
        let started = RefCell::new(BTreeSet::new());
        self.patiently(case, &facts.nodes, deadline, |fleet| {
            self.make_ready_at(case, fleet, (limit, deadline), &started)
        })
    }

    /// Every step may be done again: what is there stays, and what is under way goes on.
    fn make_ready_at(
        &self,
        case: &Case,
        fleet: &Fleet,
        (limit, deadline): (Duration, Instant),
        started: &RefCell<BTreeSet<String>>,
    ) -> Result<()> {
        let (job, nodes) = (case.id(), fleet.names());
        let staged = case.job.phase == Phase::Ready && case.job.nodes == nodes;
        if !staged {
            self.register(case, fleet)?;
        }
        if let Some(of) = &case.asks.resume {
            self.resume(case, fleet, of.value)?;
            return self.advance(case, Phase::Running, "");
        }
        if let Some(of) = &case.asks.discard {
            self.discard_by(case, of.value)?;
            return self.advance(case, Phase::Running, "");
        }
        if let Some(pool) = &case.asks.end_pool {
            self.end_pool_by(case, pool.value)?;
            return self.advance(case, Phase::Running, "");
        }
        let around = Around::new(self, case, fleet)?;
        let target = For { owner: around.owner, nodes, world: &around };
        let (to_pools, to_nodes): (Vec<&Stage>, Vec<&Stage>) = case
            .asks
            .stage_in
            .iter()
            .map(|stage| &stage.value)
            .partition(|stage| self.is_for_pool(case, stage));
        let orders = if staged { Vec::new() } else { target.stage_in(to_nodes)? };
        let sources = self.register_sources(case, fleet, &orders)?;
        let given = self.give(case, fleet, &orders, Give::Now)?;
        // Data come in while daemons start.
        let is_new = self.start_pools(case, fleet, started)?;
        let orders = target.stage_in(to_pools)?;
        let how = if is_new { Give::Anew } else { Give::Now };
        let given = [given, self.give(case, fleet, &orders, how)?].concat();
        let left = deadline.saturating_duration_since(Instant::now());
        let standing = self.settle(case, fleet, &given, "staging in", left)?;
        self.record(job, &standing, Way::In);
        self.forget_sources(case, &sources);
        arrived(&standing, limit)?;
        self.keep(case, fleet, nodes)?;
        let stages = case.asks.stage_out.iter().map(|stage| &stage.value);
        let given = self.give(case, fleet, &target.stage_out(stages)?, Give::Held)?;
        self.note_held(case, &given)?;
        // A node that was down meanwhile has its stager again, which has gone on; daemons nobody has started again.
        self.all_pools_are_up(case).map_err(|why| Failure::new(Kind::NoStager, why))?;
        self.advance(case, Phase::Running, "")?;
        if !standing.tasks.is_empty() {
            // Instead of how far they were.
            scontrol::comment(job, "tidepool: all data are in");
        }
        Ok(())
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
            let store = |_: &str, stager: &Stager| {
                let kept = stager.persist(PersistOp::Store, &place.dataspace, &place.path, case.job.uid, 0);
                kept.map_err(|error| failed(Kind::Start, error))
            };
            fleet.all(store)?;
            for node in nodes {
                // Its end counts from the job's.
                let location = Location {
                    place: place.shown(),
                    node: node.clone(),
                    uid: case.job.uid,
                    job: case.id(),
                    expires: None,
                };
                self.noted(self.book.keep(&location))?;
            }
        }
        Ok(())
    }
}
