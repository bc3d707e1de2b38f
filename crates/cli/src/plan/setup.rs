//! How a pool is going to be started: what was asked for, and for the rest what the planner chooses.

use super::flags::JobFlags;
use super::gather;
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::PoolShape;
use crate::launch::{Kept, named_store};
use crate::layout::{Spread, as_kept};
use crate::place::{Layout, Place};
use std::path::PathBuf;
use tidepool_plan::{Asked, Job, Plan};

/// Bytes to be staged, as far as they are known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Staged {
    pub stage_in: Option<u64>,
    pub stage_out: Option<u64>,
}

/// All that has to be known to start a pool.
pub struct Setup {
    pub layout: Layout,
    pub spread: Spread,
    pub store: PathBuf,
    /// Of each node with a daemon; none: all.
    pub cores: Vec<Vec<u16>>,
    pub nic: Option<String>,
    pub plan: Plan,
}

impl Setup {
    /// From flags, all checked, and facts. Nothing is started.
    pub fn choose(shape: &PoolShape, staged: Staged, kept: Option<&Kept>) -> Result<Setup> {
        let user = rustix::process::geteuid().as_raw();
        Setup::choose_at(Place::choose(shape)?, user, shape, staged, kept)
    }

    /// The same at a certain place, for a user's job.
    pub fn choose_at(
        place: Place,
        user: u32,
        shape: &PoolShape,
        staged: Staged,
        kept: Option<&Kept>,
    ) -> Result<Setup> {
        let checked = shape.check_tiers().and_then(|()| shape.check_encryption());
        checked.map_err(|why| Failure::new(Kind::Usage, why))?;
        let asked = asked(shape, &place, kept)?;
        let machine = gather::machine(shape, &place, user)?;
        let plan =
            Plan::make(&machine, &job(shape, staged), &asked).context(Kind::Usage, || "layout".into())?;
        let layout = Layout::new(place, plan.deploy.value)?;
        let spread = Spread::choose(shape, &plan, layout.daemons())?;
        let store = PathBuf::from(&plan.store.value);
        let (cores, nic) = (plan.cores.value.clone(), plan.nic.value.clone());
        Ok(Setup { layout, spread, store, cores, nic, plan })
    }

    /// Refuses a pool that the job's data will not fit in. Who has said something of the job is warned of the rest.
    pub fn accept(&self, shape: &PoolShape) -> Result<()> {
        if let Some(text) = self.plan.room.warning() {
            return Err(Failure::new(Kind::Start, format!("--expect-size: {text}")));
        }
        let JobFlags { expect_size, pattern, walltime, program_nodes } = &shape.job;
        if expect_size.is_some() || pattern.is_some() || walltime.is_some() || program_nodes.is_some() {
            self.plan.warnings.iter().for_each(|warning| eprintln!("tidepool: warning: {warning}"));
        }
        Ok(())
    }
}

fn asked(shape: &PoolShape, place: &Place, kept: Option<&Kept>) -> Result<Asked> {
    let wanted = shape.layout.wanted();
    let store = match (named_store(shape, place), kept.and_then(|kept| kept.store.clone())) {
        (None, Some(kept)) => Some((kept, "its data are there")),
        (named, _) => named,
    };
    Ok(Asked {
        store: store.map(|(path, who)| Ok::<_, Failure>((absolute(path)?, who))).transpose()?,
        placement: wanted.placement,
        chunk_size: wanted.chunk_size,
        stripe: wanted.stripe,
        weights: as_kept("--weights", &shape.weights, kept.map(|kept| &kept.weights))?,
        groups: as_kept("--groups", &shape.groups, kept.map(|kept| &kept.groups))?,
        cores: shape.daemon_cores.clone().map(|cores| cores.0),
        nic: shape.nic.clone(),
        fabric: shape.fabric.clone(),
        deploy: shape.deploy,
        quota: Some(shape.quota()),
    })
}

/// A store's path for plans, which are text.
fn absolute(path: PathBuf) -> Result<String> {
    let path = std::path::absolute(&path).unwrap_or(path);
    path.into_os_string().into_string().map_err(|path| {
        Failure::new(Kind::Usage, format!("--store {}: not UTF-8; take another name", path.to_string_lossy()))
    })
}

fn job(shape: &PoolShape, staged: Staged) -> Job {
    Job {
        bytes: shape.job.expect_size,
        stage_in: staged.stage_in,
        stage_out: staged.stage_out,
        pattern: shape.job.pattern.unwrap_or_default(),
        walltime: shape.job.walltime,
        program_nodes: shape.job.program_nodes,
    }
}
