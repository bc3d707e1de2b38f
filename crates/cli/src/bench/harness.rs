//! The two sides of a comparison, and groups of worker processes on them.

use super::worker::{Answer, Job, Phase, Work};
use crate::agent::NodeRecord;
use crate::crew::Member;
use crate::doctor::facts;
use crate::exec;
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::{BenchShape, LayoutShape, PoolShape};
use crate::instance::own_uid;
use crate::launch::{self, RunningPool, default_store};
use crate::plan::{Setup, Staged};
use crate::pool::fresh_name;
use crate::signals::Signals;
use serde::Serialize;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use tidepool_types::Placement;
use tidepool_wire::message::{Reply, Request};

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    Pool,
    /// The file system that holds the store.
    Native,
}

/// One timed phase of all processes together.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    pub phase: Phase,
    /// From the first start to the last end.
    pub seconds: f64,
    /// The same with the fsync at the end of a write.
    pub synced_seconds: f64,
    pub operations: u64,
    pub bytes: u64,
    /// Processor time of the processes, and of the FUSE mount that serves them.
    pub client_cpu_seconds: f64,
    /// Processor time of the daemons on this node.
    pub daemon_cpu_seconds: f64,
}

/// A pool under measurement.
struct Bed {
    running: RunningPool,
    preload: bool,
    /// Daemons on this node.
    daemons: Vec<u32>,
    /// The process that serves the FUSE mount.
    mounter: Option<u32>,
}

pub struct Harness<'a> {
    shape: &'a BenchShape,
    signals: Signals,
    bed: Option<Bed>,
    native: NativeDir,
    groups: u64,
    /// What was done about caches, for the record.
    pub steps: BTreeSet<String>,
}

/// Directory of the comparison, removed at the end.
struct NativeDir(PathBuf);

impl Drop for NativeDir {
    fn drop(&mut self) {
        if let Err(error) = tidepool_removal::remove(&self.0, own_uid()) {
            eprintln!("tidepool: cannot remove {error}");
        }
    }
}

impl<'a> Harness<'a> {
    pub fn start(shape: &'a BenchShape) -> Result<Harness<'a>> {
        if shape.procs == 0 || shape.repeats == 0 {
            return Err(Failure::new(Kind::Usage, "--procs and --repeats must be at least 1"));
        }
        let signals = Signals::watch()?;
        let store = shape.pool.store.clone().unwrap_or_else(default_store);
        let store = std::path::absolute(&store).context(Kind::Usage, || "--store".into())?;
        let native = store.join(format!("tidepool-{}", fresh_name("bench-native")));
        fs::create_dir_all(&native).context(Kind::Start, || native.display().to_string())?;
        let native = NativeDir(native);
        let bed = Some(Bed::make(shape)?);
        Ok(Harness { shape, signals, bed, native, groups: 0, steps: BTreeSet::new() })
    }

    /// Directory whose file system the pool is compared with.
    pub fn native_dir(&self) -> &Path {
        &self.native.0
    }

    pub fn door(&self) -> &'static str {
        if self.bed().preload { "preload" } else { "fuse" }
    }

    /// Of the files that are measured.
    pub fn layout(&self) -> tidepool_types::Layout {
        self.bed().running.pool.layout
    }

    pub fn daemons(&self) -> usize {
        self.bed().running.pool.members.len()
    }

    /// Daemons whose processor time is counted.
    pub fn daemons_here(&self) -> usize {
        self.bed().daemons.len()
    }

    fn bed(&self) -> &Bed {
        self.bed.as_ref().expect("there is a pool except while it is restarted")
    }

    /// With `--cold`, later repeats start on fresh daemons.
    pub fn begin_repeat(&mut self, repeat: usize) -> Result<()> {
        if !self.shape.cold || repeat == 0 {
            return Ok(());
        }
        if let Some(old) = self.bed.take() {
            old.running.stop()?;
        }
        self.bed = Some(Bed::make(self.shape)?);
        self.steps.insert("daemons restarted and stores wiped before each repeat".into());
        Ok(())
    }

    pub fn stop(mut self) -> Result<()> {
        self.bed.take().map_or(Ok(()), |bed| bed.running.stop())
    }

    /// Runs `phases` with fresh processes; the phases that are timed.
    pub fn measure(&mut self, side: Side, work: &Work, phases: &[Phase]) -> Result<Vec<Measured>> {
        self.groups += 1;
        let name = format!("bench.{}", self.groups);
        let (dir, environment) = match side {
            Side::Native => (self.native.0.join(name), Vec::new()),
            Side::Pool => {
                let bed = self.bed();
                (bed.running.instance.mount_path().join(name), bed.environment()?)
            }
        };
        let mut group = Group::spawn(self.shape.procs, &dir, work, &environment)?;
        let mut measured = Vec::new();
        for phase in phases {
            self.signals.check()?;
            // Also before creates: ext4 gives no inode of a file that was removed shortly before as long as it
            // has its block in memory, and looks at every one of them for each new file.
            if self.shape.cold && matches!(phase, Phase::Create | Phase::Stat | Phase::Write | Phase::Read) {
                self.drop_caches();
            }
            let before = self.cpu(side);
            let answers = group.perform(*phase).map_err(|failure| self.named(side, *phase, failure))?;
            let after = self.cpu(side);
            if is_timed(*phase) {
                let (mount, daemons) = (after.0 - before.0, after.1 - before.1);
                measured.push(combine(*phase, &answers, mount, daemons));
            }
        }
        group.end()?;
        Ok(measured)
    }

    fn named(&self, side: Side, phase: Phase, failure: Failure) -> Failure {
        if let Err(stopped) = self.signals.check() {
            return stopped;
        }
        let whose = match side {
            Side::Pool => format!("the pool (door {})", self.door()),
            Side::Native => "the underlying file system".to_string(),
        };
        Failure::new(Kind::Other, format!("bench {} on {whose}: {failure}", phase.name()))
    }

    /// Processor seconds so far of the mount and of the daemons here.
    fn cpu(&self, side: Side) -> (f64, f64) {
        if side == Side::Native {
            return (0.0, 0.0);
        }
        let bed = self.bed();
        let of = |pid: &u32| facts::process_cpu(*pid).unwrap_or(0.0);
        (bed.mounter.iter().map(of).sum(), bed.daemons.iter().map(of).sum())
    }

    fn drop_caches(&mut self) {
        rustix::fs::sync();
        let step = match fs::write("/proc/sys/vm/drop_caches", "3") {
            Ok(()) => {
                "page, dentry and inode caches dropped before each create, stat, write and read".to_string()
            }
            Err(error) => format!("caches not dropped: {error}"),
        };
        self.steps.insert(step);
    }
}

impl Bed {
    fn make(shape: &BenchShape) -> Result<Bed> {
        // Where the comparison writes, too.
        let store = shape.pool.store.clone().unwrap_or_else(default_store);
        let pool = PoolShape { store: Some(store), layout: spread_out(&shape.pool), ..shape.pool.clone() };
        let setup = Setup::choose(&pool, Staged::default(), None)?;
        let running = launch::start(&pool, setup, &fresh_name("bench"), None, false)?;
        let preload = exec::uses_preload(&running.instance, shape.pool.door())?;
        let daemons = pids_here(&running)?;
        let agent = NodeRecord::read(&running.instance)?.agent.pid;
        let mounter = (!preload && agent != 0).then_some(agent);
        Ok(Bed { running, preload, daemons, mounter })
    }

    fn environment(&self) -> Result<Vec<(OsString, OsString)>> {
        exec::environment(&self.running.instance, self.preload)
    }
}

/// Over all daemons unless something else was asked for, as the papers' pools are: for one machine a plan would not
/// spread files.
fn spread_out(pool: &PoolShape) -> LayoutShape {
    let said = pool.layout.placement.is_some() || !pool.weights.is_empty() || !pool.groups.is_empty();
    LayoutShape { placement: if said { pool.layout.placement } else { Some(Placement::Wide) }, ..pool.layout }
}

/// Processes of the daemons on this node.
fn pids_here(running: &RunningPool) -> Result<Vec<u32>> {
    let client = running.client();
    let here = tidepool_transport::LocalNode::detect().boot_id;
    let mut pids = Vec::new();
    for member in running.pool.members.iter().filter(|m| m.boot_id == here) {
        match client.request(member.index, &Request::Status {})? {
            Reply::Report { status } => pids.push(status.pid),
            other => {
                let text = format!("daemon {}: unexpected answer {}", member.index, other.name());
                return Err(Failure::new(Kind::Other, text));
            }
        }
    }
    Ok(pids)
}

fn is_timed(phase: Phase) -> bool {
    matches!(phase, Phase::Create | Phase::Stat | Phase::Remove | Phase::Write | Phase::Rewrite | Phase::Read)
}

fn combine(phase: Phase, answers: &[Answer], mount_cpu: f64, daemon_cpu: f64) -> Measured {
    let first = answers.iter().map(|a| a.began_ns).min().unwrap_or(0);
    let until = |end: fn(&Answer) -> u64| {
        let last = answers.iter().map(end).max().unwrap_or(first);
        last.saturating_sub(first) as f64 / 1e9
    };
    Measured {
        phase,
        seconds: until(|a| a.ended_ns),
        synced_seconds: until(|a| a.synced_ns),
        operations: answers.iter().map(|a| a.operations).sum(),
        bytes: answers.iter().map(|a| a.bytes).sum(),
        client_cpu_seconds: answers.iter().map(|a| a.cpu_ns).sum::<u64>() as f64 / 1e9 + mount_cpu,
        daemon_cpu_seconds: daemon_cpu,
    }
}

/// Worker processes that go through the same phases together.
struct Group {
    workers: Vec<Member>,
}

impl Group {
    fn spawn(procs: usize, dir: &Path, work: &Work, environment: &[(OsString, OsString)]) -> Result<Group> {
        let mut group = Group { workers: Vec::new() };
        for rank in 0..procs as u64 {
            let job = Job { dir: dir.into(), rank, procs: procs as u64, work: work.clone() };
            let job = serde_json::to_string(&job).expect("a job always serializes");
            group.workers.push(Member::start(
                "a bench worker",
                &["bench", "worker", &job],
                environment,
                false,
            )?);
        }
        group.workers.iter_mut().try_for_each(Member::is_ready)?;
        Ok(group)
    }

    /// All processes do one phase; it ends when the last one is done.
    fn perform(&mut self, phase: Phase) -> Result<Vec<Answer>> {
        for worker in &mut self.workers {
            worker.tell(phase.name())?;
        }
        let mut answers = Vec::new();
        for (rank, worker) in self.workers.iter_mut().enumerate() {
            let line = worker.line()?;
            let answer: Answer =
                serde_json::from_str(&line).context(Kind::Other, || format!("a worker said '{line}'"))?;
            if !answer.error.is_empty() {
                return Err(Failure::new(Kind::Other, format!("process {rank}: {}", answer.error)));
            }
            answers.push(answer);
        }
        Ok(answers)
    }

    fn end(mut self) -> Result<()> {
        self.workers.iter_mut().try_for_each(Member::end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_taken_together_from_first_start_to_last_end() {
        let answer = |began_ns, ended_ns, synced_ns| Answer {
            began_ns,
            ended_ns,
            synced_ns,
            cpu_ns: 500_000_000,
            operations: 10,
            bytes: 4096,
            error: String::new(),
        };
        let (a, b) =
            (answer(0, 1_000_000_000, 1_000_000_000), answer(500_000_000, 2_000_000_000, 3_000_000_000));
        let both = combine(Phase::Write, &[a, b], 1.0, 0.25);
        assert_eq!((both.seconds, both.synced_seconds), (2.0, 3.0));
        assert_eq!((both.operations, both.bytes), (20, 8192));
        assert_eq!((both.client_cpu_seconds, both.daemon_cpu_seconds), (2.0, 0.25));
    }
}
