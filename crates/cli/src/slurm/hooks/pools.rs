//! Pools of jobs: started on the job's nodes through their stagers, and ended when the results are out.
//!
//! The controller keeps the pool file as long as the pool lives, so that it can end the daemons itself. Pools that outlive
//! their jobs are in `lasting.rs`; here they are told apart, and made known to the stagers as the others are.

use super::world::pool_dataspace;
use super::{Case, Desk};
use crate::agent::Order;
use crate::backend::check_room;
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::{Cli, Command, PoolCommand, PoolShape};
use crate::instance::Instance;
use crate::launch::tell_daemons;
use crate::node_clean::HOOKS_PREFIX;
use crate::place::NodeAt;
use crate::plan::Staged;
use crate::slurm::stagers::{Fleet, Ways};
use crate::stagers::{Begin, Through, User};
use clap::Parser;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tidepool_client::{Client, PoolFile};
use tidepool_directives::{Client as Door, Fs, PoolRequest, Said};
use tidepool_stage_client::{Code, DataspaceKind, DataspaceSpec, StageError};
use tidepool_transport::Secret;
use tidepool_types::POOL_NAME_MAX;
use tidepool_wire::message::Request;

/// How long daemons may take to end.
const STOP_MAX: Duration = Duration::from_secs(30);

/// Characters of the name of a job's pool: on nodes the job's number stands before it.
const NAME_MAX: usize = POOL_NAME_MAX - "job-4294967295-".len();

/// What of a pool cannot be done in a job, at submission.
pub fn check(pool: &PoolRequest) -> std::result::Result<(), String> {
    match (&pool.fs, &pool.name) {
        (Some(Fs::Local | Fs::Script(_)), _) => Err(
            "in a directive only fs=tidepool can be had; 'tidepool run --fs' in the script has the others"
                .into(),
        ),
        (_, Some(name)) if name.len() > NAME_MAX && !pool.outlives_job() => Err(format!(
            "the name of a job's pool has at most {NAME_MAX} characters; '{name}' has {}",
            name.len()
        )),
        _ => Ok(()),
    }
}

/// The pool's flags, as words of the command line: so they are checked in one place.
pub fn shape(pool: &PoolRequest, store: &std::path::Path) -> Result<PoolShape> {
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
    say("--encrypt", pool.encrypt.map(|encryption| encryption.to_string()));
    say("--burst", pool.tiers.burst.clone());
    say("--pfs", pool.tiers.pfs.clone());
    say("--strategy", pool.tiers.strategy.clone());
    say("--flush", pool.tiers.flush.map(|flush| flush.to_string()));
    say("--link-bandwidth", pool.tiers.link_bandwidth.map(|bytes| bytes.to_string()));
    say("--phase-bytes", pool.tiers.phase_bytes.map(|bytes| bytes.to_string()));
    if pool.tiers.no_local == Some(true) {
        words.push("--no-local".into());
    }
    let parsed = Cli::try_parse_from(&words).map_err(|error| Failure::new(Kind::Usage, error.to_string()))?;
    match parsed.command {
        Command::Pool(PoolCommand::Start(args)) => Ok(args.shape),
        _ => Err(Failure::new(Kind::Usage, words.join(" "))),
    }
}

/// Programs may have to find the pool by the preload library: where it is mounted, tasks do without.
pub fn may_preload(pool: &PoolRequest) -> bool {
    pool.client != Some(Door::Fuse)
}

/// Returns when none of a pool's daemons answers any more.
pub fn wait_for_silence(client: &Client, pool: impl std::fmt::Display) -> Result<()> {
    let deadline = Instant::now() + STOP_MAX;
    while (0..client.members() as u16).any(|daemon| client.request(daemon, &Request::Ping {}).is_ok()) {
        if Instant::now() > deadline {
            return Err(Failure::new(Kind::Cleanup, format!("pool {pool} does not end")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

impl Desk {
    /// The name of a job's pool, on its nodes and here.
    fn name_of(&self, case: &Case, pool: &PoolRequest) -> Result<String> {
        match &pool.name {
            _ if pool.outlives_job() => self.lasting_name(case, pool),
            Some(name) => Ok(format!("{HOOKS_PREFIX}{}-{}", case.id(), name.value)),
            None => Ok(format!("{HOOKS_PREFIX}{}", case.id())),
        }
    }

    /// The pool as its nodes see it.
    pub fn instance_of(&self, case: &Case, pool: &PoolRequest) -> Result<Instance> {
        let name = self.name_of(case, pool)?;
        match PoolFile::read(&self.file(&name)) {
            Ok(file) => Ok(Instance::of_pool(&name, &file)),
            // It never came up.
            Err(_) => Instance::elsewhere(&name, case.job.uid),
        }
    }

    /// The pool file of a pool that has this name on its nodes.
    pub fn file(&self, name: &str) -> PathBuf {
        self.site.state_dir.join("pools").join(format!("{name}.json"))
    }

    /// Starts the job's pools, and makes them known to the stager that fills them. Whether one of them is empty: one that is up
    /// already, from this hook's first call or its first try, is not started anew. `started` has what its tries have started.
    pub fn start_pools(
        &self,
        case: &Case,
        fleet: &Fleet,
        started: &RefCell<BTreeSet<String>>,
    ) -> Result<bool> {
        let mut is_new = false;
        for pool in &case.asks.pools {
            if pool.outlives_job() {
                self.open_lasting(case, fleet.names(), pool, case.id())?;
                self.announce(case, fleet, pool)?;
                continue;
            }
            let name = self.name_of(case, pool)?;
            let is_ours = case.job.nodes == fleet.names() || started.borrow().contains(&name);
            if !is_ours || !self.is_up(case, pool) {
                if self.file(&name).exists() {
                    // One of an earlier attempt, or a start that was killed. Its agents may still be tidying up.
                    self.stop_pool(case, pool)?;
                    self.remove_from(case, &name, fleet.names())?;
                }
                self.start_pool(case, fleet, pool, Begin::Once)?;
                started.borrow_mut().insert(name);
                is_new = true;
            }
            self.announce(case, fleet, pool)?;
        }
        Ok(is_new)
    }

    /// All of a job's pool answers.
    pub fn is_up(&self, case: &Case, pool: &PoolRequest) -> bool {
        let file = self.name_of(case, pool).ok().and_then(|name| PoolFile::read(&self.file(&name)).ok());
        file.is_some_and(|file| {
            let client = Client::new(file);
            (0..client.members() as u16).all(|daemon| client.request(daemon, &Request::Ping {}).is_ok())
        })
    }

    /// Which of the job's own pools does not answer, if one does not.
    pub fn all_pools_are_up(&self, case: &Case) -> std::result::Result<(), String> {
        let mut own = case.asks.pools.iter().filter(|pool| !pool.outlives_job());
        match own.find(|pool| !self.is_up(case, pool)) {
            None => Ok(()),
            Some(pool) => Err(format!("{} does not answer on all nodes", pool.dataspace())),
        }
    }

    /// Starts pools again whose data are still on the nodes of a job. `by` is the job that uses them now.
    pub fn reopen_pools(&self, case: &Case, fleet: &Fleet, by: u32) -> Result<()> {
        for pool in &case.asks.pools {
            if pool.outlives_job() {
                self.open_lasting(case, fleet.names(), pool, by)?;
            } else {
                let path = self.file(&self.name_of(case, pool)?);
                let file =
                    PoolFile::read(&path).map_err(|error| Failure::new(Kind::Start, error.to_string()))?;
                self.start_pool(case, fleet, pool, Begin::Again(file.instance, file.secret))?;
            }
            self.announce(case, fleet, pool)?;
        }
        Ok(())
    }

    fn start_pool(&self, case: &Case, fleet: &Fleet, pool: &Said<PoolRequest>, begin: Begin) -> Result<()> {
        let through = self.through_nodes(case, fleet.names())?;
        let shape = shape(pool, &self.site.pool_store)?;
        let setup = through.choose(&shape, Staged::default())?;
        setup.accept(&shape)?;
        let began = Instant::now();
        let name = self.name_of(case, pool)?;
        if matches!(begin, Begin::Once) {
            // So that whoever comes after a death of this process knows that there may be something.
            self.write_file(&name, "")?;
        }
        // What it is to have room for is in it already where its data are still there.
        let to_come = if matches!(begin, Begin::Once) { shape.job.expect_size } else { None };
        let started = through.start(&shape, &setup, &name, begin)?;
        let seconds = began.elapsed().as_secs_f64();
        self.note(case.id(), &format!("pool {name} is up after {seconds:.2} s"));
        self.remember(&name, &started.pool)?;
        check_room(&Client::new(started.pool), to_come)
    }

    /// The job's user on nodes, through their stagers.
    fn through_nodes(&self, case: &Case, nodes: &[String]) -> Result<Through> {
        let owner = case.owner()?;
        let ways = Ways::of(&self.site)?;
        let node = |name: &String| NodeAt { name: name.clone(), address: ways.address(name) };
        Ok(Through {
            nodes: nodes.iter().map(node).collect(),
            secret: self.secret()?,
            user: User::known_here(owner.uid, owner.gid)?,
            job: case.id(),
        })
    }

    /// Tells the stager of the job's first node, which fills and empties the pool.
    fn announce(&self, case: &Case, fleet: &Fleet, pool: &Said<PoolRequest>) -> Result<()> {
        let (_, head) = fleet.head().ok_or_else(|| Failure::new(Kind::Start, "the job has no nodes"))?;
        let dataspace = DataspaceSpec {
            name: pool_dataspace(case.id(), &pool.dataspace()),
            kind: DataspaceKind::Pool,
            mount: self.instance_of(case, pool)?.pool_file().display().to_string(),
            tracked: false,
            capacity: 0,
            streams_max: 0,
            bandwidth: 0,
        };
        let fail = |error: StageError| Failure::new(Kind::Start, error.to_string());
        match head.register_dataspace(&dataspace) {
            // Of an earlier attempt of the job's, whose end slurmctld has missed.
            Err(StageError::Refused(refusal)) if refusal.code == Code::DATASPACE_EXISTS => {
                head.unregister_dataspace(&dataspace.name).map_err(fail)?;
                head.register_dataspace(&dataspace).map_err(fail)
            }
            other => other.map_err(fail),
        }
    }

    pub fn secret(&self) -> Result<Secret> {
        let file = &self.site.secret_file;
        Secret::read(file).context(Kind::Usage, || file.display().to_string())
    }

    pub fn remember(&self, name: &str, file: &PoolFile) -> Result<()> {
        self.write_file(name, &file.to_json())
    }

    /// Whole, or not at all. An empty one says that the pool was begun to be started, and that nothing more is known.
    fn write_file(&self, name: &str, text: &str) -> Result<()> {
        let path = self.file(name);
        let shown = || path.display().to_string();
        let dir = path.parent().expect("it is in the state directory");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).context(Kind::Start, shown)?;
        let mut out = tempfile::Builder::new()
            .permissions(fs::Permissions::from_mode(0o600))
            .tempfile_in(dir)
            .context(Kind::Start, shown)?;
        std::io::Write::write_all(&mut out, text.as_bytes()).context(Kind::Start, shown)?;
        out.as_file().sync_all().context(Kind::Start, shown)?;
        out.persist(&path).map(drop).map_err(|error| error.error).context(Kind::Start, shown)
    }

    pub fn forget_file(&self, name: &str) -> Result<()> {
        let path = self.file(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Failure::new(Kind::Cleanup, format!("{}: {error}", path.display())))
            }
            _ => Ok(()),
        }
    }

    /// Ends the job's pools with all their data; why not, where one stays. Those that outlive it are left by it.
    pub fn stop_pools(&self, case: &Case) -> Option<String> {
        self.leave_pools(case, case.id());
        let own = case.asks.pools.iter().filter(|pool| !pool.outlives_job());
        own.filter_map(|pool| self.stop_pool(case, pool).err()).map(|failure| failure.to_string()).next()
    }

    /// Ends the daemons of the job's pools, and leaves the data where they are.
    pub fn keep_pools(&self, case: &Case) {
        self.leave_pools(case, case.id());
        for pool in case.asks.pools.iter().filter(|pool| !pool.outlives_job()) {
            self.forget_dataspace(case, pool);
            let Ok(name) = self.name_of(case, pool) else { continue };
            if let Ok(file) = PoolFile::read(&self.file(&name)) {
                for missing in tell_daemons(&Client::new(file), false) {
                    self.note(case.id(), &format!("pool {name}: not reached: {missing}"));
                }
            }
        }
    }

    /// `by` does not use the job's lasting pools any more. Nothing of the job hangs on how their daemons end.
    pub fn leave_pools(&self, case: &Case, by: u32) {
        for pool in case.asks.pools.iter().filter(|pool| pool.outlives_job()) {
            self.forget_dataspace(case, pool);
            let left = self.lasting(case, pool).and_then(|lasting| self.close_lasting(lasting.pool, by));
            if let Err(failure) = left {
                self.note(by, &failure.to_string());
            }
        }
    }

    fn stop_pool(&self, case: &Case, pool: &Said<PoolRequest>) -> Result<()> {
        let name = self.name_of(case, pool)?;
        let path = self.file(&name);
        // It was never begun, or is stopped already.
        if !path.exists() {
            return Ok(());
        }
        self.forget_dataspace(case, pool);
        let is_told = match PoolFile::read(&path) {
            Ok(file) => {
                let client = Client::new(file);
                let missing = tell_daemons(&client, true);
                wait_for_silence(&client, &name)?;
                missing.first().map_or(Ok(()), |first| Err(first.clone()))
            }
            Err(_) => Err("it never came up".to_string()),
        };
        if let Err(why) = is_told {
            self.note(case.id(), &format!("pool {name}: {why}; its nodes are looked at"));
            self.remove_from(case, &name, &case.job.nodes)?;
        }
        self.forget_file(&name)
    }

    /// Removes what is there of a job's pool on nodes, whatever state it is in: mounts, daemons, data.
    fn remove_from(&self, case: &Case, name: &str, nodes: &[String]) -> Result<()> {
        let through = self.through_nodes(case, nodes)?;
        let told = through.tidy(Order::Remove, name, &self.site.pool_store, nodes.len())?;
        told.into_iter().try_for_each(|(_, stores)| stores.map(drop))
    }

    /// The same of all pools of a job on all its nodes.
    pub fn clear_pools(&self, case: &Case) -> Result<()> {
        let mut own = case.asks.pools.iter().filter(|pool| !pool.outlives_job());
        own.try_for_each(|pool| self.remove_from(case, &self.name_of(case, pool)?, &case.job.nodes))
    }

    /// The same of all pools of a job on a node of an earlier attempt. Its own nodes' are stopped with the whole pool.
    pub fn clear_of_pools(&self, case: &Case, node: &String) -> Result<()> {
        if case.job.nodes.contains(node) {
            return Ok(());
        }
        let own = case.asks.pools.iter().filter(|pool| !pool.outlives_job());
        for pool in own {
            self.remove_from(case, &self.name_of(case, pool)?, std::slice::from_ref(node))?;
        }
        Ok(())
    }

    fn forget_dataspace(&self, case: &Case, pool: &Said<PoolRequest>) {
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
