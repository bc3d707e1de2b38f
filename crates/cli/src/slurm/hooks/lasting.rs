//! Pools that outlive their jobs (`lifetime=workflow`, `lifetime=campaign`; docs/decisions/0024-pools-that-outlive-jobs.md).
//!
//! Their data stay on the nodes that the first job has put them on; their daemons run only while a job uses them. Whoever
//! starts, ends or removes something of a pool holds its lock, and notes in the book what he is about to do.

use super::nodes::failed;
use super::pools::shape;
use super::{Case, Desk, now};
use crate::agent::Order;
use crate::backend::check_room;
use crate::exit::{Failure, Kind, Result};
use crate::instance::Instance;
use crate::launch::tell_daemons;
use crate::layout::Spread;
use crate::place::NodeAt;
use crate::plan::Staged;
use crate::slurm::site::Site;
use crate::slurm::stagers::{Fleet, Ways};
use crate::stagers::{Begin, Through, User};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};
use tidepool_batch::{Book, Clocks, LastingPool, NewPool, PoolState, PoolUser};
use tidepool_client::{Client, PoolFile};
use tidepool_directives::{Deploy, Directives, Lifetime, PoolRequest, Problem, Said};
use tidepool_stage_client::{Code, PersistOp, StageError, Stager};
use tidepool_transport::LocalNode;
use tidepool_types::{Aging, POOL_NAME_MAX};
use tidepool_wire::message::{Reply, Request};

/// How long the removal of what a stager keeps of a pool may take.
const REMOVE_MAX: Duration = Duration::from_secs(600);

/// What a job says of pools that outlive it.
pub fn said(asks: &Directives) -> Vec<NewPool> {
    let lasting = asks.pools.iter().filter(|pool| pool.outlives_job());
    let new = |pool: &Said<PoolRequest>| {
        Some(NewPool {
            name: pool.name.as_ref()?.value.clone(),
            is_campaign: pool.lifetime == Some(Lifetime::Campaign),
            request: request_line(pool),
        })
    };
    lasting.filter_map(new).collect()
}

/// What is wrong with them by what the book knows, at submission.
pub fn admit(site: &Site, asks: &Directives, uid: u32) -> Result<Vec<Problem>> {
    let lasting: Vec<&Said<PoolRequest>> = asks.pools.iter().filter(|pool| pool.outlives_job()).collect();
    // Before the first job of all there is no book.
    if lasting.is_empty() || !site.book().exists() {
        return Ok(Vec::new());
    }
    let fail = |error: tidepool_batch::BookError| Failure::new(Kind::Other, error.to_string());
    let book = Book::open_read(&site.book()).map_err(fail)?;
    let prior = asks.workflow.prior.first();
    let workflow = prior.and_then(|job| book.job(job.value).ok()).and_then(|job| job.workflow);
    let mut problems = Vec::new();
    for pool in lasting {
        let of = if pool.lifetime == Some(Lifetime::Campaign) { None } else { workflow };
        let Some(name) =
            pool.name.as_ref().filter(|_| of.is_some() || pool.lifetime == Some(Lifetime::Campaign))
        else {
            continue;
        };
        if let Some(there) = book.pool_named(uid, name, of).map_err(fail)? {
            let wrong = contradictions(&there.request, &request_line(pool));
            problems.extend(
                wrong.iter().map(|why| Problem::new(&pool.at, format!("pool '{name}' is there: {why}"))),
            );
        }
    }
    Ok(problems)
}

/// Whether `uid` may end a pool: by the book alone.
pub fn admit_end(book: &Book, pool: u32, uid: u32) -> Result<LastingPool> {
    let refuse = |why: String| Failure::new(Kind::Refused, format!("pool {pool}: {why}"));
    let found = book.pool(pool).map_err(|error| refuse(error.to_string()))?;
    let found = found.ok_or_else(|| refuse("there is none; 'tidepool slurm pools' lists them".into()))?;
    if found.uid != uid && uid != 0 {
        return Err(refuse("it is another user's".into()));
    }
    let users = book.pool_users(pool).map_err(|error| refuse(error.to_string()))?;
    // One that waits for it is told when it starts.
    match users.iter().find(|user| user.is_active()) {
        None => Ok(found),
        Some(user) => {
            Err(refuse(format!("job {} uses it; cancel the job first, or wait for its end", user.job)))
        }
    }
}

/// The directive, as other jobs' are compared with it.
fn request_line(pool: &Said<PoolRequest>) -> String {
    let alone = PoolRequest { lifetime: None, ..pool.value.clone() };
    let alone = Directives { pools: vec![Said::new(alone, &pool.at)], ..Directives::default() };
    alone.to_lines().join("\n")
}

/// What a job says of a pool that is not as another one has made it.
fn contradictions(first: &str, later: &str) -> Vec<String> {
    // `fs=tidepool` is what is had in any case.
    let shape = |line: &str| -> Vec<String> {
        let words =
            line.split(' ').skip(2).filter(|word| !word.starts_with("name=") && *word != "fs=tidepool");
        words.map(String::from).collect()
    };
    let (first, later) = (shape(first), shape(later));
    let key = |word: &str| word.split('=').next().unwrap_or_default().to_string();
    let differs = later.iter().filter(|word| !first.contains(word));
    let tell = |word: &String| match first.iter().find(|had| key(had) == key(word)) {
        Some(had) => format!("it was made with {had}, not {word}; leave that out, or take another name"),
        None => format!("it was made without {}=; leave {word} out, or take another name", key(word)),
    };
    differs.map(tell).collect()
}

/// The pool on its nodes. Numbers never come again, so that neither does a name.
fn name_on_nodes(pool: &LastingPool) -> String {
    let mut name = format!("pool-{}-{}", pool.pool, pool.name);
    name.truncate(POOL_NAME_MAX);
    name
}

/// The feature of nodes that have data of a pool.
pub fn feature(pool: u32) -> String {
    format!("tidepool-pool-{pool}")
}

fn lock_name(pool: u32) -> String {
    format!("pool-{pool}")
}

fn shown(pool: &LastingPool) -> String {
    format!("pool '{}' (number {})", pool.name, pool.pool)
}

fn answers(client: &Client, daemon: u16) -> bool {
    client.request(daemon, &Request::Ping {}).is_ok()
}

impl Desk {
    /// The pool that a job means, by what was noted when it was submitted.
    pub fn lasting(&self, case: &Case, request: &PoolRequest) -> Result<LastingPool> {
        let name = request.name.as_ref().map(|name| name.value.clone()).unwrap_or_default();
        self.noted(self.book.pool_of_job(case.id(), &name))?.ok_or_else(|| {
            let text = format!("pool '{name}' was ended after this job had been submitted; submit it again");
            Failure::new(Kind::Start, text)
        })
    }

    pub fn lasting_name(&self, case: &Case, request: &PoolRequest) -> Result<String> {
        Ok(name_on_nodes(&self.lasting(case, request)?))
    }

    fn through(&self, pool: &LastingPool, gid: u32, nodes: &[String]) -> Result<Through> {
        let ways = Ways::of(&self.site)?;
        let node = |name: &String| NodeAt { name: name.clone(), address: ways.address(name) };
        Ok(Through {
            nodes: nodes.iter().map(node).collect(),
            secret: self.secret()?,
            user: User::known_here(pool.uid, gid)?,
            // No job's: the epilog of none of them waits for it, or ends it.
            job: 0,
        })
    }

    /// Has the pool up on its nodes, and open on those of the job; `by` uses it from now on.
    pub fn open_lasting(
        &self,
        case: &Case,
        nodes: &[String],
        request: &Said<PoolRequest>,
        by: u32,
    ) -> Result<()> {
        let number = self.lasting(case, request)?.pool;
        let _lock = self.lock(&lock_name(number))?;
        let pool = self.lasting(case, request)?;
        if let Some(why) = contradictions(&pool.request, &request_line(request)).first() {
            return Err(Failure::new(Kind::Usage, format!("{}: {why}", shown(&pool))));
        }
        self.noted(self.book.use_pool(pool.pool, by, nodes))?;
        let began = Instant::now();
        match pool.state {
            PoolState::New | PoolState::Starting => self.make(&pool, case.owner()?.gid, nodes, by)?,
            PoolState::Rest | PoolState::Up | PoolState::Lost => self.bring_up(&pool, nodes, by)?,
            PoolState::Ending => {
                let text = format!("{} is being removed; submit the job again", shown(&pool));
                return Err(Failure::new(Kind::Start, text));
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        self.note(by, &format!("{} is up after {seconds:.2} s", shown(&pool)));
        Ok(())
    }

    /// What the first job said, without what makes no sense of a pool that is there.
    fn first_request(pool: &LastingPool) -> Result<PoolRequest> {
        let asks = super::directives(format!("{}\n", pool.request).as_bytes())?;
        let first = asks.pools.into_iter().next();
        first.map(|said| said.value).ok_or_else(|| {
            Failure::new(Kind::Other, format!("{}: the book has no directive of it", shown(pool)))
        })
    }

    /// The first job of all starts it, on its nodes.
    fn make(&self, pool: &LastingPool, gid: u32, nodes: &[String], by: u32) -> Result<()> {
        if pool.state == PoolState::Starting {
            // Whoever was starting it was killed.
            self.sweep_up(pool)?;
        }
        let through = self.through(pool, gid, nodes)?;
        let shape = shape(&Desk::first_request(pool)?, &self.site.pool_store)?;
        let setup = through.choose(&shape, Staged::default())?;
        setup.accept(&shape)?;
        let own = &nodes[..setup.layout.daemon_nodes.min(nodes.len())];
        let store = setup.store.display().to_string();
        self.noted(self.book.place_pool(pool.pool, gid, own, &store))?;
        let pool = LastingPool { gid: Some(gid), nodes: own.to_vec(), store, ..pool.clone() };
        let name = name_on_nodes(&pool);
        let start = || -> Result<()> {
            let started = through.start(&shape, &setup, &name, Begin::ToStay)?;
            self.remember(&name, &started.pool)?;
            check_room(&Client::new(started.pool), shape.job.expect_size)?;
            self.guard(&pool, PersistOp::Store)
        };
        if let Err(failure) = start() {
            if let Err(left) = self.sweep_up(&pool) {
                self.note(by, &format!("{}: {left}", shown(&pool)));
            }
            return Err(failure);
        }
        self.noted(self.book.set_pool(pool.pool, PoolState::Up, "", self.used_now()?))?;
        self.mark(&feature(pool.pool), &own.iter().cloned().collect())
    }

    /// Removes what a start that has failed has left; then it is as if nobody had tried.
    fn sweep_up(&self, pool: &LastingPool) -> Result<()> {
        match self.remove_everywhere(pool).into_iter().next() {
            None => self.noted(self.book.set_pool(pool.pool, PoolState::New, "", self.used_now()?)),
            Some(left) => Err(Failure::new(Kind::Cleanup, format!("left behind: {left}"))),
        }
    }

    /// A pool whose data are on its nodes.
    fn bring_up(&self, pool: &LastingPool, nodes: &[String], by: u32) -> Result<()> {
        let name = name_on_nodes(pool);
        let file = PoolFile::read(&self.file(&name))
            .map_err(|error| Failure::new(Kind::Start, error.to_string()))?;
        self.reach_nodes(pool)?;
        let users = self.noted(self.book.pool_users(pool.pool))?;
        let others: Vec<&PoolUser> = users.iter().filter(|user| user.job != by && user.is_active()).collect();
        let client = Client::new(file.clone());
        let silent = (0..client.members() as u16).find(|daemon| !answers(&client, *daemon));
        match (silent, others.first()) {
            (None, Some(_)) => self.join(pool, &file, nodes, &others),
            (Some(daemon), Some(other)) => {
                let text = format!(
                    "{}: its daemon on {} does not answer, and job {} uses the others; submit the job again when that has ended",
                    shown(pool),
                    client.host(daemon),
                    other.job
                );
                Err(Failure::new(Kind::Start, text))
            }
            (_, None) => self.start_again(pool, &file, nodes),
        }
    }

    /// Nodes that are away are told before anything is changed.
    fn reach_nodes(&self, pool: &LastingPool) -> Result<()> {
        let (_, missing) = Fleet::reach(&Ways::of(&self.site)?, &pool.nodes);
        match missing.into_iter().next() {
            None => Ok(()),
            Some((_, failure)) => {
                let text = format!(
                    "{}: some of its data are on a node that does not answer: {failure}; the job is tried again, until Slurm holds it; 'tidepool slurm end-pool {}' gives the data up",
                    shown(pool),
                    pool.pool
                );
                Err(Failure::new(failure.kind, text))
            }
        }
    }

    fn join(
        &self,
        pool: &LastingPool,
        file: &PoolFile,
        nodes: &[String],
        others: &[&PoolUser],
    ) -> Result<()> {
        let is_open =
            |node: &&String| pool.nodes.contains(node) || others.iter().any(|user| user.nodes.contains(node));
        let new: Vec<String> = nodes.iter().filter(|node| !is_open(node)).cloned().collect();
        if new.is_empty() {
            return Ok(());
        }
        let name = name_on_nodes(pool);
        let through = self.through(pool, gid_of(pool)?, &new)?;
        // What a use that was killed has left there would be in the way.
        self.tidy(pool, &new, 0, Order::Remove)?;
        through.join(&shape(&Desk::first_request(pool)?, Path::new(&pool.store))?, &name, file)
    }

    /// Its daemons where the data are; mounted there, and on the job's nodes.
    fn start_again(&self, pool: &LastingPool, file: &PoolFile, nodes: &[String]) -> Result<()> {
        let all: Vec<String> = pool
            .nodes
            .iter()
            .chain(nodes.iter().filter(|node| !pool.nodes.contains(node)))
            .cloned()
            .collect();
        // From here on something may run there, whatever becomes of this process.
        self.noted(self.book.set_pool(pool.pool, PoolState::Up, "", self.used_now()?))?;
        tell_daemons(&Client::new(file.clone()), false);
        let stores = self.tidy(pool, &all, pool.nodes.len(), Order::Rest)?;
        let lacks = |(node, stores): &&(String, usize)| *stores == 0 && pool.nodes.contains(node);
        if let Some((node, _)) = stores.iter().find(lacks) {
            let why = format!("its data on {node} are not there any more");
            self.noted(self.book.set_pool(pool.pool, PoolState::Lost, &why, self.used_now()?))?;
            let text = format!("{}: {why}; end it with 'tidepool slurm end-pool {}'", shown(pool), pool.pool);
            return Err(Failure::new(Kind::Start, text));
        }
        let request = PoolRequest {
            deploy: Some(Deploy::Subset(pool.nodes.len())),
            nodes: None,
            ..Desk::first_request(pool)?
        };
        let mut shape = shape(&request, Path::new(&pool.store))?;
        // Its data take some of the room already.
        shape.job.expect_size = None;
        let through = self.through(pool, gid_of(pool)?, &all)?;
        let mut setup = through.choose(&shape, Staged::default())?;
        // Its data lie as they were laid.
        setup.spread = Spread {
            layout: file.layout,
            weights: file.weights.clone(),
            groups: file.groups.clone(),
            hints: file.hints.clone(),
        };
        let name = name_on_nodes(pool);
        let started =
            through.start(&shape, &setup, &name, Begin::Again(file.instance, file.secret.clone()))?;
        self.remember(&name, &started.pool)
    }

    /// Each node's stores afterwards; the first that could not be tidied up is an error.
    fn tidy(
        &self,
        pool: &LastingPool,
        nodes: &[String],
        daemons: usize,
        order: Order,
    ) -> Result<Vec<(String, usize)>> {
        let through = self.through(pool, gid_of(pool)?, nodes)?;
        let told = through.tidy(order, &name_on_nodes(pool), Path::new(&pool.store), daemons)?;
        told.into_iter().map(|(node, stores)| Ok((node, stores?))).collect()
    }

    /// `by` does not use the pool any more. The last one ends its daemons.
    pub fn close_lasting(&self, number: u32, by: u32) -> Result<()> {
        let _lock = self.lock(&lock_name(number))?;
        let Some(pool) = self.noted(self.book.pool(number))? else { return Ok(()) };
        let left = self.noted(self.book.nodes_of_pool_user(number, by))?;
        if left.is_empty() {
            return Ok(());
        }
        let users = self.noted(self.book.pool_users(number))?;
        let others: Vec<&PoolUser> = users.iter().filter(|user| user.job != by && user.is_active()).collect();
        let done = match others.is_empty() {
            true => self.put_to_rest(&pool, &left),
            false => {
                let stays = |node: &&String| {
                    pool.nodes.contains(node) || others.iter().any(|user| user.nodes.contains(node))
                };
                let gone: Vec<String> = left.iter().filter(|node| !stays(node)).cloned().collect();
                self.tidy(&pool, &gone, 0, Order::Remove).map(drop)
            }
        };
        self.noted(self.book.use_pool(number, by, &[]))?;
        done
    }

    /// Ends its daemons; its data stay. `left` are nodes from which it was used.
    fn put_to_rest(&self, pool: &LastingPool, left: &[String]) -> Result<()> {
        match pool.state {
            PoolState::New | PoolState::Rest | PoolState::Lost | PoolState::Ending => return Ok(()),
            PoolState::Starting => return self.sweep_up(pool),
            PoolState::Up => {}
        }
        if let Ok(file) = PoolFile::read(&self.file(&name_on_nodes(pool))) {
            let client = Client::new(file);
            if let Some(used) = used(&client) {
                self.noted(self.book.set_pool_used(pool.pool, used))?;
            }
            tell_daemons(&client, false);
            super::pools::wait_for_silence(&client, pool.pool)?;
        }
        let others: Vec<String> = left.iter().filter(|node| !pool.nodes.contains(node)).cloned().collect();
        let opened = self.tidy(pool, &others, 0, Order::Remove);
        let own = self.tidy(pool, &pool.nodes, pool.nodes.len(), Order::Rest);
        self.noted(self.book.set_pool(pool.pool, PoolState::Rest, "", self.used_now()?))?;
        opened.and(own).map(drop)
    }

    /// Removes a pool with its data, when no job uses it.
    pub fn end_lasting(&self, number: u32) -> Result<()> {
        let _lock = self.lock(&lock_name(number))?;
        let Some(pool) = self.noted(self.book.pool(number))? else { return Ok(()) };
        if let Some(user) = self.noted(self.book.pool_users(number))?.iter().find(|user| user.is_active()) {
            return Err(Failure::new(Kind::Refused, format!("{}: job {} uses it", shown(&pool), user.job)));
        }
        // Who kills this finds it on its way out, and whoever comes next makes another one.
        self.noted(self.book.set_pool(number, PoolState::Ending, &pool.reason, pool.last_use))?;
        if let Some(left) = self.remove_everywhere(&pool).into_iter().next() {
            self.noted(self.book.set_pool(number, PoolState::Ending, &left, pool.last_use))?;
            let text = format!("{} is not removed yet: {left}; it is tried again", shown(&pool));
            return Err(Failure::new(Kind::Cleanup, text));
        }
        self.noted(self.book.drop_pool(number))?;
        self.mark(&feature(number), &BTreeSet::new())
    }

    /// Everything that its nodes and this one have of it; what could not be removed, and why.
    fn remove_everywhere(&self, pool: &LastingPool) -> Vec<String> {
        let Some(gid) = pool.gid.filter(|_| !pool.nodes.is_empty()) else { return Vec::new() };
        let name = name_on_nodes(pool);
        let told = self
            .through(pool, gid, &pool.nodes)
            .and_then(|through| through.tidy(Order::Remove, &name, Path::new(&pool.store), pool.nodes.len()));
        let mut left: Vec<String> = match told {
            Ok(told) => told.into_iter().filter_map(|(_, done)| Some(done.err()?.to_string())).collect(),
            Err(failure) => vec![failure.to_string()],
        };
        if left.is_empty() {
            left.extend(self.guard(pool, PersistOp::Delete).err().map(|failure| failure.to_string()));
            left.extend(self.forget_file(&name).err().map(|failure| failure.to_string()));
        }
        left
    }

    /// Where users' own leavings are removed with their jobs, the stagers keep the pool's stores from that.
    fn guard(&self, pool: &LastingPool, op: PersistOp) -> Result<()> {
        let instance = Instance::elsewhere(&name_on_nodes(pool), pool.uid)?;
        let store = instance.store_dir(Path::new(&pool.store), 0);
        let dir = store.parent().unwrap_or(&store).as_os_str().as_encoded_bytes().to_vec();
        let Ok((dataspace, path)) = self.site.resolve(&tidepool_directives::Place::Path(dir)) else {
            return Ok(());
        };
        if dataspace.kind != tidepool_directives::DataspaceKind::Local {
            return Ok(());
        }
        let ask = |_: &str, stager: &Stager| match stager.persist(op, &dataspace.name, &path, pool.uid, 0) {
            Err(StageError::Refused(refusal)) if refusal.code == Code::NO_SUCH_RESOURCE => Ok(()),
            // What is not there any more cannot be removed: how that ends is of no interest.
            Ok(Some(removal)) => stager.wait(&[removal], false, Some(REMOVE_MAX)).map(drop),
            other => other.map(drop),
        };
        let ask =
            |node: &str, stager: &Stager| ask(node, stager).map_err(|error| failed(Kind::Cleanup, error));
        self.fleet(&pool.nodes)?.all(ask).map(drop)
    }

    /// The pools of a workflow that is completed.
    pub fn end_pools_of(&self, workflow: u32, job: u32) {
        let all = self.book.pools().unwrap_or_default();
        for pool in all.iter().filter(|pool| pool.workflow == Some(workflow)) {
            match self.end_lasting(pool.pool) {
                Ok(()) => self.note(job, &format!("{} is removed", shown(pool))),
                Err(failure) => self.note(job, &failure.to_string()),
            }
        }
    }

    /// This job removes a pool, in its owner's name.
    pub fn end_pool_by(&self, case: &Case, number: u32) -> Result<()> {
        admit_end(&self.book, number, case.job.uid)?;
        self.end_lasting(number)
    }

    /// Pools that have nobody who looks after them, and what is to be done with them.
    pub fn stray_pools(&self) -> Result<Vec<(LastingPool, Stray)>> {
        let mut found = Vec::new();
        let clock = self.age()?;
        for pool in self.noted(self.book.pools())? {
            let users = self.noted(self.book.pool_users(pool.pool))?;
            if let Some(what) = self.stray(&pool, &users, &clock)? {
                found.push((pool, what));
            }
        }
        Ok(found)
    }

    /// The clock that pools age by: no jump of the controller's hurries it.
    fn age(&self) -> Result<Aging> {
        let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let boot = LocalNode::detect().boot_id;
        let clocks = Clocks { wall: now() * 1000, up: up.tv_sec as u64 * 1000, boot: &boot };
        self.noted(self.book.age(clocks))
    }

    /// When a pool was used last, if that is now: not earlier than what pools age by, while the controller's clock is behind.
    fn used_now(&self) -> Result<u64> {
        Ok(now().max(self.age()?.at() / 1000))
    }

    fn stray(&self, pool: &LastingPool, users: &[PoolUser], clock: &Aging) -> Result<Option<Stray>> {
        if users.iter().any(PoolUser::is_active) {
            return Ok(None);
        }
        let is_completed = match pool.workflow {
            Some(workflow) => self
                .noted(self.book.workflow(workflow))?
                .is_some_and(|whole| whole.state() == tidepool_batch::State::Completed),
            None => false,
        };
        let is_idle = |max: Duration| clock.is_over((pool.last_use + max.as_secs() + 1).saturating_mul(1000));
        Ok(match pool.state {
            PoolState::Up | PoolState::Starting => Some(Stray::Unused),
            PoolState::Ending => Some(Stray::Ending),
            _ if is_completed => Some(Stray::Completed),
            PoolState::New if users.is_empty() => Some(Stray::NeverMade),
            PoolState::Rest | PoolState::Lost if pool.workflow.is_none() && users.is_empty() => {
                self.site.campaign_idle_max.filter(|max| is_idle(*max)).map(|_| Stray::Idle)
            }
            _ => None,
        })
    }

    /// Does it.
    pub fn look_after(&self, pool: &LastingPool, what: Stray) -> Result<()> {
        match what {
            Stray::Unused => {
                let _lock = self.lock(&lock_name(pool.pool))?;
                let Some(pool) = self.noted(self.book.pool(pool.pool))? else { return Ok(()) };
                let users = self.noted(self.book.pool_users(pool.pool))?;
                match users.iter().any(PoolUser::is_active) {
                    true => Ok(()),
                    // From where it was used is not known any more; there it ends by itself.
                    false => self.put_to_rest(&pool, &[]),
                }
            }
            Stray::Ending | Stray::Completed | Stray::NeverMade | Stray::Idle => self.end_lasting(pool.pool),
        }
    }
}

/// Why a pool is not as it should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stray {
    /// Its daemons run for nobody.
    Unused,
    /// Its removal was not finished.
    Ending,
    /// Its workflow is completed.
    Completed,
    /// The jobs that said it have ended before one of them had made it.
    NeverMade,
    /// Nobody has used it for as long as the site allows.
    Idle,
}

impl Stray {
    pub fn words(self) -> &'static str {
        match self {
            Stray::Unused => "no job uses it: its daemons are ended",
            Stray::Ending => "its removal goes on",
            Stray::Completed => "its workflow is completed: it is removed",
            Stray::NeverMade => "no job has made it: it is forgotten",
            Stray::Idle => "it was not used for longer than campaign-idle-max: it is removed",
        }
    }
}

fn gid_of(pool: &LastingPool) -> Result<u32> {
    pool.gid.ok_or_else(|| Failure::new(Kind::Other, format!("{} has never been placed", shown(pool))))
}

/// Bytes in the pool, if all daemons say it.
fn used(client: &Client) -> Option<u64> {
    let of = |daemon: u16| match client.request(daemon, &Request::Status {}) {
        Ok(Reply::Report { status }) => Some(status.space.used),
        _ => None,
    };
    (0..client.members() as u16).map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(keys: &str) -> String {
        let text = format!("#TIDEPOOL pool name=a lifetime=campaign {keys}\n");
        let (asks, _) = Directives::parse(text.as_bytes()).unwrap();
        request_line(&asks.pools[0])
    }

    #[test]
    fn later_jobs_say_what_the_first_has_said_or_less() {
        let first = line("size=1GiB nodes=2");
        for same in ["", "size=1024MiB", "nodes=2", "nodes=2 size=1GiB", "fs=tidepool"] {
            assert_eq!(contradictions(&first, &line(same)), Vec::<String>::new(), "{same}");
        }
        for (other, words) in [
            ("size=2GiB", "it was made with size=1GiB, not size=2GiB"),
            ("mode=relaxed", "it was made without mode=; leave mode=relaxed out"),
        ] {
            let told = contradictions(&first, &line(other));
            assert!(told.len() == 1 && told[0].starts_with(words), "{told:?}");
        }
    }

    #[test]
    fn names_on_nodes_are_short_enough_and_never_the_same() {
        let pool = |pool: u32| LastingPool {
            pool,
            name: "x".repeat(POOL_NAME_MAX),
            uid: 7,
            gid: None,
            workflow: None,
            request: String::new(),
            nodes: Vec::new(),
            store: String::new(),
            state: PoolState::New,
            reason: String::new(),
            used: None,
            made: 0,
            last_use: 0,
        };
        let names: Vec<String> = [1, 11, u32::MAX].map(|number| name_on_nodes(&pool(number))).into();
        for name in &names {
            assert_eq!(tidepool_types::check_pool_name(name), Ok(()), "{name}");
        }
        assert!(names[0] != names[1] && names[1] != names[2]);
    }
}
