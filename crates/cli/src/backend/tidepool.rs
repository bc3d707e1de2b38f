//! `--fs tidepool`: a pool of daemons on all nodes.

use super::FileSystem;
use crate::exec;
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::{Door, PoolShape};
use crate::instance::{Instance, OutRecord};
use crate::launch::{self, RunningPool};
use crate::meters::Reading;
use crate::plan::{Setup, Staged};
use crate::signals::Signals;
use crate::staging::{self, Summary};
use crate::top::place::Place;
use crate::top::watch::Watcher;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidepool_client::Client;
use tidepool_iosched::JobId;
use tidepool_types::format_size;
use tidepool_wire::message::Request;

pub struct Pool {
    running: RunningPool,
    client: Arc<Client>,
    door: Door,
}

impl Pool {
    pub fn start(shape: &PoolShape, staged: Staged, name: &str) -> Result<Pool> {
        let setup = Setup::choose(shape, staged, None)?;
        setup.accept(shape)?;
        let running = launch::start(shape, setup, name, None, false)?;
        let client = Arc::new(running.client());
        check_room(&client, shape.job.expect_size)?;
        Ok(Pool { running, client, door: shape.door() })
    }
}

/// Asks the daemons themselves whether the job's data have room: facts may be old, or not known.
pub fn check_room(client: &Client, expected: Option<u64>) -> Result<()> {
    let Some(expected) = expected else { return Ok(()) };
    let space = client.stat_fs().context(Kind::Start, || "asking for free space".into())?;
    let free = space.blocks_free * space.block_size;
    if expected > free {
        let (expected, free) = (format_size(expected), format_size(free));
        let text = format!(
            "--expect-size: {expected} do not fit: the pool has room for {free}; take more nodes, another --store, or less data"
        );
        return Err(Failure::new(Kind::Start, text));
    }
    Ok(())
}

impl FileSystem for Pool {
    fn describe(&self) -> String {
        format!("{} daemon(s)", self.client.members())
    }

    fn instance(&self) -> &Instance {
        &self.running.instance
    }

    fn path(&self) -> PathBuf {
        self.running.instance.mount_path()
    }

    fn health(&self) -> Result<()> {
        let ping = self.client.request(0, &Request::Ping {});
        ping.map(|_| ()).map_err(|error| Failure::new(Kind::NoPool, error.to_string()))
    }

    fn environment(&self) -> Result<Vec<(OsString, OsString)>> {
        let instance = &self.running.instance;
        exec::environment(instance, exec::uses_preload(instance, self.door)?)
    }

    fn stage_in(&self, from: &Path, to: &str, journal: &Path, signals: &Signals) -> Result<Summary> {
        staging::stage_in(&self.client, from, to, &staging::USUAL, journal, signals)
    }

    fn has(&self, path: &str) -> Result<bool> {
        staging::is_in_pool(&self.client, path)
    }

    fn stage_out(&self, out: &OutRecord, journal: &Path, signals: &Signals) -> Result<Summary> {
        let shape = staging::results(out.ordered);
        staging::stage_out(&self.client, &out.source, &out.destination, &shape, journal, signals)
    }

    fn meters(&self) -> Option<Reading> {
        Some(Reading::take(&self.client))
    }

    fn watch(&self) -> Option<Watcher> {
        let place = Place::of(&self.running.instance.tiers()?)?;
        let job = tidepool_fsd::job_of(&self.client.pool().instance.to_string());
        Some(Watcher::start(place, JobId(job)))
    }

    fn stop(self: Box<Self>) -> Result<()> {
        drop(self.client);
        self.running.stop()
    }

    fn leave(mut self: Box<Self>) -> Result<()> {
        if self.running.is_gone() {
            eprintln!("tidepool: the pool has been ended from outside, and its data is gone");
            return self.stop();
        }
        let name = self.running.detach().name;
        eprintln!("tidepool: pool '{name}' is left running; 'tidepool drain --pool {name}' tries again");
        Ok(())
    }
}
