//! Pools of jobs: started on the job's nodes through their stagers, and ended when the results are out.
//!
//! The controller keeps the pool file as long as the pool lives, so that it can end the daemons itself.

use super::world::pool_dataspace;
use super::{Case, Desk};
use crate::backend::check_room;
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::{Cli, Command, PoolCommand, PoolShape};
use crate::instance::Instance;
use crate::launch::tell_daemons;
use crate::place::NodeAt;
use crate::plan::Staged;
use crate::slurm::stagers::{Fleet, Ways};
use crate::stagers::{Through, User};
use clap::Parser;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tidepool_client::{Client, PoolFile};
use tidepool_directives::{Client as Door, Fs, Lifetime, PoolRequest};
use tidepool_stage_client::{Code, DataspaceKind, DataspaceSpec, StageError};
use tidepool_transport::Secret;
use tidepool_types::InstanceId;
use tidepool_wire::message::Request;

/// How long daemons may take to end.
const STOP_MAX: Duration = Duration::from_secs(30);

/// What of a pool cannot be done in a job, at submission.
pub fn check(pool: &PoolRequest) -> std::result::Result<(), String> {
    match (&pool.fs, pool.lifetime) {
        (Some(Fs::Local | Fs::Script(_)), _) => Err(
            "in a directive only fs=tidepool can be had; 'tidepool run --fs' in the script has the others"
                .into(),
        ),
        (_, Some(Lifetime::Workflow | Lifetime::Campaign)) => Err(
            "pools that outlive their job cannot be had yet; keep data on nodes with '#NORNS persist store'"
                .into(),
        ),
        _ => Ok(()),
    }
}

/// The pool's flags, as words of the command line: so they are checked in one place.
fn shape(pool: &PoolRequest, store: &std::path::Path) -> Result<PoolShape> {
    let mut words: Vec<String> = ["tidepool", "pool", "start", "--store"].map(String::from).to_vec();
    words.push(store.display().to_string());
    let mut say = |flag: &str, value: Option<String>| {
        if let Some(value) = value {
            words.extend([flag.to_string(), value]);
        }
    };
    say("--quota", pool.size.as_ref().map(|size| size.value.to_string()));
    say("--expect-size", pool.size.as_ref().map(|size| size.value.to_string()));
    let deploy = pool.deploy.map(|deploy| deploy.to_string());
    say("--deploy", deploy.or_else(|| pool.nodes.map(|nodes| format!("subset:{nodes}"))));
    say("--mode", pool.mode.map(|mode| mode.to_string()));
    let chunk = pool.chunk_size.map(|size| match size {
        tidepool_types::ChunkSize::Auto => "auto".to_string(),
        tidepool_types::ChunkSize::Bytes(bytes) => bytes.to_string(),
    });
    say("--chunk-size", chunk);
    say("--placement", pool.placement.map(|placement| placement.word().to_string()));
    say("--stripe", pool.stripe.map(|stripe| stripe.to_string()));
    say("--client", pool.client.map(|client| client.to_string()));
    let parsed = Cli::try_parse_from(&words).map_err(|error| Failure::new(Kind::Usage, error.to_string()))?;
    match parsed.command {
        Command::Pool(PoolCommand::Start(args)) => Ok(args.shape),
        _ => Err(Failure::new(Kind::Usage, words.join(" "))),
    }
}

/// The name of a job's pool, on its nodes and here.
pub fn name_of(job: u32, pool: &PoolRequest) -> String {
    match &pool.name {
        Some(name) => format!("job-{job}-{}", name.value),
        None => format!("job-{job}"),
    }
}

/// The pool as its nodes see it.
pub fn instance_of(case: &Case, pool: &PoolRequest) -> Result<Instance> {
    Instance::elsewhere(&name_of(case.id(), pool), case.job.uid)
}

/// Programs may have to find the pool by the preload library: where it is mounted, tasks do without.
pub fn may_preload(pool: &PoolRequest) -> bool {
    pool.client != Some(Door::Fuse)
}

impl Desk {
    fn file(&self, case: &Case, pool: &PoolRequest) -> PathBuf {
        self.site.state_dir.join("pools").join(format!("{}.json", name_of(case.id(), pool)))
    }

    /// Starts the job's pools, and makes them known to the stager that fills them.
    pub fn start_pools(&self, case: &Case, fleet: &Fleet) -> Result<()> {
        for pool in &case.asks.pools {
            self.start_pool(case, fleet, pool, None)?;
        }
        Ok(())
    }

    /// Starts pools again whose data are still on the nodes of a job.
    pub fn reopen_pools(&self, case: &Case, fleet: &Fleet) -> Result<()> {
        for pool in &case.asks.pools {
            let path = self.file(case, pool);
            let file = PoolFile::read(&path).map_err(|error| Failure::new(Kind::Start, error.to_string()))?;
            self.start_pool(case, fleet, pool, Some((file.instance, file.secret)))?;
        }
        Ok(())
    }

    fn start_pool(
        &self,
        case: &Case,
        fleet: &Fleet,
        pool: &PoolRequest,
        kept: Option<(InstanceId, Secret)>,
    ) -> Result<()> {
        let owner = case.owner()?;
        let ways = Ways::of(&self.site)?;
        let node = |name: &String| NodeAt { name: name.clone(), address: ways.address(name) };
        let through = Through {
            nodes: fleet.names().iter().map(node).collect(),
            secret: self.secret()?,
            user: User::known_here(owner.uid, owner.gid)?,
            job: case.id(),
        };
        let shape = shape(pool, &self.site.pool_store)?;
        let setup = through.choose(&shape, Staged::default())?;
        setup.accept(&shape)?;
        let began = Instant::now();
        let started = through.start(&shape, &setup, &name_of(case.id(), pool), kept)?;
        self.note(
            case.id(),
            &format!("pool {} is up after {:.2} s", started.instance.name, began.elapsed().as_secs_f64()),
        );
        self.remember(case, pool, &started.pool)?;
        check_room(&Client::new(started.pool.clone()), shape.job.expect_size)?;
        let (_, head) = fleet.head().ok_or_else(|| Failure::new(Kind::Start, "the job has no nodes"))?;
        let dataspace = DataspaceSpec {
            name: pool_dataspace(case.id(), &pool.dataspace()),
            kind: DataspaceKind::Pool,
            mount: started.instance.pool_file().display().to_string(),
            tracked: false,
            capacity: 0,
            streams_max: 0,
            bandwidth: 0,
        };
        head.register_dataspace(&dataspace).map_err(|error| Failure::new(Kind::Start, error.to_string()))
    }

    fn secret(&self) -> Result<Secret> {
        let file = &self.site.secret_file;
        Secret::read(file).context(Kind::Usage, || file.display().to_string())
    }

    fn remember(&self, case: &Case, pool: &PoolRequest, file: &PoolFile) -> Result<()> {
        let path = self.file(case, pool);
        let shown = || path.display().to_string();
        let dir = path.parent().expect("it is in the state directory");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).context(Kind::Start, shown)?;
        let mut options = fs::OpenOptions::new();
        let mut out = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .context(Kind::Start, shown)?;
        std::io::Write::write_all(&mut out, file.to_json().as_bytes()).context(Kind::Start, shown)
    }

    /// Ends the job's pools with all their data; why not, where one stays.
    pub fn stop_pools(&self, case: &Case) -> Option<String> {
        case.asks
            .pools
            .iter()
            .filter_map(|pool| self.stop_pool(case, pool).err())
            .map(|failure| failure.to_string())
            .next()
    }

    /// Ends the daemons of the job's pools, and leaves the data where they are.
    pub fn keep_pools(&self, case: &Case) {
        for pool in &case.asks.pools {
            self.forget_dataspace(case, pool);
            if let Ok(file) = PoolFile::read(&self.file(case, pool)) {
                for missing in tell_daemons(&Client::new(file), false) {
                    self.note(
                        case.id(),
                        &format!("pool {}: not reached: {missing}", name_of(case.id(), pool)),
                    );
                }
            }
        }
    }

    fn stop_pool(&self, case: &Case, pool: &PoolRequest) -> Result<()> {
        let path = self.file(case, pool);
        // It never came up, or is stopped already.
        if !path.exists() {
            return Ok(());
        }
        let file = PoolFile::read(&path).map_err(|error| Failure::new(Kind::Cleanup, error.to_string()))?;
        self.forget_dataspace(case, pool);
        let client = Client::new(file);
        let missing = tell_daemons(&client, true);
        let deadline = Instant::now() + STOP_MAX;
        while (0..client.members() as u16).any(|daemon| client.request(daemon, &Request::Ping {}).is_ok()) {
            if Instant::now() > deadline {
                return Err(Failure::new(
                    Kind::Cleanup,
                    format!("pool {} does not end", name_of(case.id(), pool)),
                ));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        if let Some(first) = missing.first() {
            self.note(case.id(), &format!("pool {}: not reached: {first}", name_of(case.id(), pool)));
        }
        fs::remove_file(&path).context(Kind::Cleanup, || path.display().to_string())
    }

    fn forget_dataspace(&self, case: &Case, pool: &PoolRequest) {
        let Some(head) = case.job.nodes.first() else { return };
        let name = pool_dataspace(case.id(), &pool.dataspace());
        let forget = || -> std::result::Result<(), String> {
            let stager = Ways::of(&self.site)
                .and_then(|ways| ways.connect(head))
                .map_err(|error| error.to_string())?;
            match stager.unregister_dataspace(&name) {
                Err(StageError::Refused(refusal)) if refusal.code == Code::NO_SUCH_DATASPACE => Ok(()),
                other => other.map_err(|error| error.to_string()),
            }
        };
        if let Err(why) = forget() {
            self.note(case.id(), &format!("node {head}: {why}"));
        }
    }
}
