//! `tidepool plan SCRIPT`: what a job script would do, step by step, and what speaks against it.

mod row;

use super::flags::PlanArgs;
use super::{Setup, Staged, as_json, bytes, choices, gather, slurm};
use crate::exit::{Failure, Kind, Result};
use crate::flags::{FsKind, PoolShape};
use crate::jobscript::{Header, JobScript, Spot, Step, Storage, fs_of, header, shape_of, tiers_of};
use crate::output::{duration, table};
use crate::place::Place;
use crate::run::Way;
use crate::slurm::lint;
use crate::staging::{self, Summary};
use row::{Row, What, each, how};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tidepool_directives::{Persist, PersistOp, PoolRequest, Problem, Said, Stage, show_kept_for};
use tidepool_plan::{Basis, Cost, Machine};
use tidepool_types::format_size;

pub fn plan(args: &PlanArgs, script: &Path) -> Result<ExitCode> {
    let script = JobScript::load(script, args.site.as_deref())?;
    if !script.problems.is_empty() {
        match args.json {
            true => println!("{:#}", json_of(&script, None)),
            false => print!("{}{}", script.problem_lines(), script.warning_lines()),
        }
        return Ok(ExitCode::from(Kind::PlanProblems.code()));
    }
    let (header, problems) = header(&script.text);
    let mut outlook = Outlook::of_job(args, &script, &header, problems)?;
    outlook.look()?;
    match args.json {
        true => println!("{:#}", json_of(&script, Some(&outlook))),
        false => print!("{}", outlook.text()),
    }
    let fits = outlook.against.is_empty() && outlook.pools.iter().all(Planned::fits);
    Ok(if fits { ExitCode::SUCCESS } else { ExitCode::from(Kind::PlanProblems.code()) })
}

/// A pool of the script, and how it would be made, where that is ours to plan.
struct Planned {
    dataspace: String,
    fs: FsKind,
    setup: Option<Setup>,
    /// Shared storage below it, in words.
    tiers: Option<String>,
}

impl Planned {
    fn fits(&self) -> bool {
        self.setup.as_ref().is_none_or(|setup| setup.plan.room.fits() != Some(false))
    }
}

struct Outlook<'a> {
    args: &'a PlanArgs,
    script: &'a JobScript,
    place: Place,
    nodes: usize,
    /// Nobody knows yet which nodes these are.
    imagined: bool,
    walltime: Option<Duration>,
    machine: Machine,
    pools: Vec<Planned>,
    rows: Vec<Row>,
    warnings: Vec<String>,
    against: Vec<Problem>,
}

/// Where the job would run: on the nodes that are named, or that it has; else, the second says, on as many as it asks for,
/// whichever they are. One is taken to be like this machine.
fn place(args: &PlanArgs, script: &JobScript, header: &Header) -> Result<(Place, bool)> {
    let mut shape = args.shape.clone();
    if shape.local {
        return Ok((Place::Local(1), false));
    }
    let asked = shape.nodes.take().or(header.nodes);
    match Place::choose(&shape)? {
        Place::Local(_) => {
            let of_pools = script.directives.pools.iter().filter_map(|pool| pool.nodes).max();
            match asked.or(of_pools).unwrap_or(1) {
                0 => Err(Failure::new(Kind::Usage, "--nodes 0: a job has at least one node")),
                1 => Ok((Place::Local(1), false)),
                nodes => Ok((Place::Slurm(nodes), true)),
            }
        }
        place => Ok((place, false)),
    }
}

impl<'a> Outlook<'a> {
    fn of_job(
        args: &'a PlanArgs,
        script: &'a JobScript,
        header: &Header,
        against: Vec<Problem>,
    ) -> Result<Outlook<'a>> {
        let (place, imagined) = place(args, script, header)?;
        let nodes = match &place {
            Place::Slurm(nodes) => *nodes,
            other => other.names()?.len(),
        };
        let user = rustix::process::geteuid().as_raw();
        let machine = gather::machine(&args.shape, &place, user)?;
        let walltime = args.shape.job.walltime.or(header.time).or_else(slurm::time_limit);
        let mut warnings = Vec::new();
        if let Some(asked) = header.nodes.filter(|asked| *asked != nodes) {
            warnings.push(format!("the script asks for {asked} nodes, and this is planned on {nodes}"));
        }
        let (pools, rows) = (Vec::new(), Vec::new());
        Ok(Outlook {
            args,
            script,
            place,
            nodes,
            imagined,
            walltime,
            machine,
            pools,
            rows,
            warnings,
            against,
        })
    }

    fn look(&mut self) -> Result<()> {
        let steps = self.script.steps(Way::In);
        let sizes = self.sizes(&steps)?;
        self.plan_pools(&steps, &sizes)?;
        self.pool_rows();
        for (step, size) in steps.iter().zip(&sizes) {
            let row = self.stage_in(step, size.as_ref(), &steps, &sizes);
            self.rows.push(row);
        }
        self.check_own_room(&steps);
        self.check_time(&steps);
        self.rows.push(Row::new(What::Program, "", "", &self.script.shown));
        for step in self.script.steps(Way::Out) {
            let how = how(&step);
            let Stage { origin, destination, .. } = &step.stage.value;
            self.rows.push(Row::new(What::StageOut, &origin.to_string(), &destination.to_string(), &how));
        }
        self.pool_stage_out()?;
        self.what_stays(&steps);
        self.against.sort_by_key(lint::place);
        Ok(())
    }

    /// What the origins of copies have, as far as it can be counted here. One that is missing speaks against the script.
    fn sizes(&mut self, steps: &[Step<'_>]) -> Result<Vec<Option<Summary>>> {
        let mut brought: Vec<(&Path, Option<Summary>)> = Vec::new();
        let mut sizes = Vec::new();
        for step in steps {
            let size = match &step.from {
                Spot::Dir { path, storage } => {
                    match brought.iter().rev().find(|(to, _)| path.starts_with(to)) {
                        Some((to, size)) => size.clone().filter(|_| to == path),
                        None => self.size(path, *storage, step.stage)?,
                    }
                }
                // Only its store could tell, and pools are empty before the job.
                Spot::Object { .. } | Spot::Pool { .. } => None,
            };
            if let Spot::Dir { path, .. } = &step.to {
                brought.push((path, size.clone()));
            }
            sizes.push(size);
        }
        Ok(sizes)
    }

    fn size(&mut self, path: &Path, storage: Storage, stage: &Stage) -> Result<Option<Summary>> {
        let here = matches!(self.place, Place::Local(_));
        // What nodes keep for this job nobody can count elsewhere.
        if storage == Storage::OfNode && !here || !self.is_mounted(path) {
            return Ok(None);
        }
        match std::fs::symlink_metadata(path) {
            Ok(_) => staging::measure_local(path).map(Some),
            Err(_) if storage == Storage::OfNode => Ok(None),
            Err(error) => {
                let text = format!("'{}' cannot be staged in: {}: {error}", stage.origin, path.display());
                self.against.push(Problem::new(&stage.origin.at, text));
                Ok(None)
            }
        }
    }

    /// Whether the dataspace that a path is in is on this machine at all.
    fn is_mounted(&self, path: &Path) -> bool {
        let mounts = self.script.dataspaces().iter().map(|dataspace| Path::new(&dataspace.mount));
        let nearest =
            mounts.filter(|mount| path.starts_with(mount)).max_by_key(|mount| mount.components().count());
        nearest.is_none_or(Path::is_dir)
    }

    fn plan_pools(&mut self, steps: &[Step<'_>], sizes: &[Option<Summary>]) -> Result<()> {
        let pools = &self.script.directives.pools;
        let amounts = [("--stage-in", &self.args.stage_in), ("--stage-out", &self.args.stage_out)];
        if let Some((flag, _)) = amounts.iter().find(|(_, amount)| amount.is_some() && pools.len() != 1) {
            let text = format!("{flag} is for scripts with one pool; this one has {}", pools.len());
            return Err(Failure::new(Kind::Usage, text));
        }
        let outs = self.script.steps(Way::Out);
        for (number, pool) in pools.iter().enumerate() {
            let is_out =
                |step: &Step<'_>| matches!(&step.from, Spot::Pool { number: of, .. } if *of == number);
            let staged = Staged {
                stage_in: bytes(self.args.stage_in.as_ref())?.or(into_pool(number, steps, sizes)),
                stage_out: bytes(self.args.stage_out.as_ref())?.or((!outs.iter().any(is_out)).then_some(0)),
            };
            if let Some(lifetime) = pool.lifetime.filter(|_| pool.outlives_job()) {
                self.warnings.push(format!(
                    "lifetime={lifetime} is for Slurm's hooks, not for 'tidepool run --job'; the plan is that of the first job: later ones find the pool on its nodes"
                ));
            }
            let fs = fs_of(pool);
            let made = match (&fs, &pool.fs) {
                (FsKind::Tidepool, _) => self.setup(pool, staged)?,
                (_, Some(fs)) => {
                    self.warnings
                        .push(format!("fs={fs} is made by 'tidepool run --job', and not by Slurm's hooks"));
                    None
                }
                (_, None) => None,
            };
            let (setup, tiers) = made.unzip();
            self.pools.push(Planned { dataspace: pool.dataspace(), fs, setup, tiers: tiers.flatten() });
        }
        Ok(())
    }

    /// Directories of shared storage may be on other machines only, so one that is missing here is no error.
    fn look_for_tiers(&mut self, shape: &PoolShape) {
        for (key, dir) in [("burst", &shape.burst), ("pfs", &shape.pfs)] {
            if let Some(dir) = dir.as_ref().filter(|dir| !dir.is_dir()) {
                let text = format!("{key}={}: there is no such directory on this machine", dir.display());
                self.warnings.push(text);
            }
        }
    }

    /// How a pool is made, and the shared storage below it in words.
    fn setup(&mut self, pool: &Said<PoolRequest>, staged: Staged) -> Result<Option<(Setup, Option<String>)>> {
        let mut shape = match shape_of(pool, &self.args.shape, Some(self.nodes)) {
            Ok(shape) => shape,
            // With --local, nothing is divided.
            Err(_) if self.args.shape.local => self.args.shape.clone(),
            Err(problem) => {
                self.against.push(problem);
                return Ok(None);
            }
        };
        if matches!(self.place, Place::Local(_)) {
            shape.deploy = self.args.shape.deploy;
        }
        if let (Place::Slurm(_) | Place::Ssh(_), Some(site)) = (&self.place, &self.script.site) {
            // There the hooks start it.
            shape.store = shape.store.or_else(|| Some(site.pool_store.clone()));
        }
        shape.job.walltime = self.walltime;
        let user = rustix::process::geteuid().as_raw();
        self.look_for_tiers(&shape);
        let tiers = lint::tier_words(&tiers_of(&shape));
        let setup = Setup::choose_at(self.place.clone(), user, &shape, staged, None)?;
        Ok(Some((setup, tiers)))
    }

    fn pool_rows(&mut self) {
        for (planned, pool) in self.pools.iter().zip(&self.script.directives.pools) {
            let size = pool.size.as_ref().map(|size| format!("{}, ", format_size(size.value)));
            let what = match &planned.setup {
                Some(setup) => format!("{} daemon(s)", setup.layout.daemons()),
                None => planned.fs.to_string(),
            };
            let tiers = planned.tiers.as_ref().map(|words| format!(", {words}"));
            let how = size.unwrap_or_default() + &what + &tiers.unwrap_or_default();
            let mut row = Row::new(What::Pool, "", &planned.dataspace, &how);
            row.cost = planned.setup.as_ref().map(|setup| setup.plan.costs.start.clone());
            self.rows.push(row);
        }
    }

    fn stage_in(
        &self,
        step: &Step<'_>,
        size: Option<&Summary>,
        steps: &[Step<'_>],
        sizes: &[Option<Summary>],
    ) -> Row {
        let Stage { origin, destination, mapping } = &step.stage.value;
        let mut row = Row::new(What::StageIn, &origin.to_string(), &destination.to_string(), &how(step));
        (row.files, row.bytes) = (size.map(|size| size.files), size.map(|size| size.bytes));
        match &step.to {
            _ if step.is_in_place() => {
                let why = "it is there already, on the nodes that have kept it".into();
                row.cost = Some(Cost { seconds: Some(0.0), why, basis: Basis::Assumed });
            }
            Spot::Dir { path, storage: Storage::OfNode } => {
                row.bytes_each = row.bytes.and_then(|bytes| each(bytes, mapping.as_ref(), self.nodes));
                row.cost = Some(self.machine.own_copy(&path.display().to_string(), row.bytes_each, true));
            }
            Spot::Pool { number, .. } => {
                let all = into_pool(*number, steps, sizes).filter(|all| *all > 0);
                let setup = self.pools[*number].setup.as_ref();
                row.cost = setup.zip(all.zip(row.bytes)).map(|(setup, (all, own))| {
                    let whole = setup.plan.costs.stage_in.clone();
                    Cost {
                        seconds: whole.seconds.map(|all_of_it| all_of_it * own as f64 / all as f64),
                        ..whole
                    }
                });
            }
            Spot::Dir { .. } | Spot::Object { .. } => {}
        }
        row
    }

    /// All that is staged onto each node has to have room there.
    fn check_own_room(&mut self, steps: &[Step<'_>]) {
        let mut mounts: Vec<(PathBuf, u64, &Said<Stage>)> = Vec::new();
        let rows = self.rows.iter().filter(|row| row.what == What::StageIn);
        for (step, row) in steps.iter().zip(rows) {
            let (Spot::Dir { path, .. }, Some(bytes)) = (&step.to, row.bytes_each) else { continue };
            let spaces = self.script.dataspaces().iter().map(|dataspace| Path::new(&dataspace.mount));
            let Some(mount) =
                spaces.filter(|mount| path.starts_with(mount)).max_by_key(|m| m.components().count())
            else {
                continue;
            };
            match mounts.iter_mut().find(|(known, ..)| known == mount) {
                Some((_, sum, _)) => *sum += bytes,
                None => mounts.push((mount.into(), bytes, step.stage)),
            }
        }
        for (mount, bytes, stage) in mounts {
            let room = self.machine.own_room(&mount.display().to_string());
            if let Some((room, node)) = room.filter(|(room, _)| *room < bytes) {
                let (bytes, room) = (format_size(bytes), format_size(room));
                let text = format!(
                    "{bytes} are staged to {} of each node, and {node} has room for {room}",
                    mount.display()
                );
                self.against.push(Problem::new(&stage.destination.at, text));
            }
        }
    }

    fn check_time(&mut self, steps: &[Step<'_>]) {
        let known = self.rows.iter().filter(|row| row.what == What::StageIn);
        let seconds: f64 = known.filter_map(|row| row.cost.as_ref()?.seconds).sum();
        let limit = self.script.directives.timeouts.stage_in;
        if let (Some(limit), Some(first)) =
            (limit.filter(|limit| limit.as_secs_f64() < seconds), steps.first())
        {
            let (limit, takes) = (duration(limit.as_secs_f64()), duration(seconds));
            let text = format!("staging in takes about {takes}, and its timeout is {limit}");
            self.against.push(Problem::new(&first.stage.at, text));
        }
    }

    /// What somebody has said of the results, who cannot be counted before there are any.
    fn pool_stage_out(&mut self) -> Result<()> {
        let Some(bytes) = bytes(self.args.stage_out.as_ref())? else { return Ok(()) };
        let cost =
            self.pools.first().and_then(|pool| Some(pool.setup.as_ref()?.plan.costs.stage_out.clone()));
        let prefix = self.pools.first().map(|pool| pool.dataspace.clone()).unwrap_or_default();
        let mut rows =
            self.rows.iter_mut().filter(|row| row.what == What::StageOut && row.from.starts_with(&prefix));
        // How much of it each of several takes is not known.
        if let (Some(row), None) = (rows.next(), rows.next()) {
            (row.bytes, row.cost) = (Some(bytes), cost);
        }
        Ok(())
    }

    fn what_stays(&mut self, steps: &[Step<'_>]) {
        let directives = &self.script.directives;
        let kept = |op: PersistOp| directives.persist.iter().filter(move |persist| persist.op == op);
        for Persist { op, location, user, expires } in directives.persist.iter().map(|persist| &persist.value)
        {
            let user = user.as_ref().map(|user| user.value.as_str()).unwrap_or_default();
            let (what, how) = match op {
                PersistOp::Store => {
                    let time =
                        expires.map(|time| format!(", for {}", show_kept_for(time))).unwrap_or_default();
                    (What::Stays, format!("for later jobs on the same nodes{time}"))
                }
                PersistOp::Delete => (What::Goes, "when all is staged out".to_string()),
                PersistOp::Share => (What::Stays, format!("{user} may read it")),
                PersistOp::Unshare => (What::Stays, format!("{user} may not read it any more")),
            };
            self.rows.push(Row::new(what, "", &location.to_string(), &how));
        }
        for pool in &directives.pools {
            let (what, how) = match pool.outlives_job() {
                true => (What::Stays, "for later jobs that say the same"),
                false => (What::Goes, "with all that is in it"),
            };
            self.rows.push(Row::new(what, "", &pool.dataspace(), how));
        }
        for step in steps.iter().filter(|step| !step.is_in_place()) {
            let Spot::Dir { path, storage: Storage::OfNode } = &step.to else { continue };
            let stays = kept(PersistOp::Store).any(|persist| {
                matches!(self.script.spot(&persist.location), Some(Spot::Dir { path: kept, .. }) if path.starts_with(&kept))
            });
            if !stays {
                let destination = step.stage.destination.to_string();
                self.rows.push(Row::new(What::Goes, "", &destination, "with what programs put there"));
            }
        }
    }

    /// Of all that can be told, and whether that is all.
    fn seconds(&self) -> (f64, bool) {
        let timed = self.rows.iter().filter(|row| row.what.takes_time());
        let seconds: Vec<Option<f64>> = timed.map(|row| row.cost.as_ref()?.seconds).collect();
        (seconds.iter().flatten().sum::<f64>() + 0.0, seconds.iter().all(Option::is_some))
    }

    fn text(&self) -> String {
        let shown = &self.script.shown;
        let mut told = lint::lines(shown, "error", &self.against) + &self.script.warning_lines();
        self.warnings.iter().for_each(|warning| told.push_str(&format!("warning: {warning}\n")));
        let limit = self.walltime.map(|time| format!(", for at most {}", duration(time.as_secs_f64())));
        told.push_str(&format!("{shown}: {} node(s){}\n\n", self.nodes, limit.unwrap_or_default()));
        let head = ["step", "from", "to", "how", "size", "time"].map(String::from).to_vec();
        let rows = self.rows.iter().map(Row::cells);
        told.push_str(&table(&std::iter::once(head).chain(rows).collect::<Vec<_>>()));
        told.push_str(&format!("\n{}\n", self.sum()));
        for pool in &self.pools {
            if let Some(setup) = &pool.setup {
                let place = match self.imagined {
                    true => format!("{} node(s), whichever they will be", self.nodes),
                    false => setup.layout.describe(),
                };
                told.push_str(&format!("\n{}: {place}\n\n{}", pool.dataspace, choices(setup)));
            }
        }
        told
    }

    fn sum(&self) -> String {
        let (seconds, whole) = self.seconds();
        let least = if whole { "about" } else { "at least" };
        let wall = self.walltime.map(|time| time.as_secs_f64()).filter(|seconds| *seconds > 0.0);
        let share = wall.map(|wall| format!(", {:.2} % of the time limit", seconds / wall * 100.0));
        format!("pools and staging: {least} {}{}", duration(seconds), share.unwrap_or_default())
    }
}

/// Bytes that are staged into a pool, if all of them are known.
fn into_pool(number: usize, steps: &[Step<'_>], sizes: &[Option<Summary>]) -> Option<u64> {
    let own = steps.iter().zip(sizes);
    let own = own.filter(|(step, _)| matches!(&step.to, Spot::Pool { number: of, .. } if *of == number));
    own.map(|(_, size)| size.as_ref().map(|size| size.bytes)).sum()
}

fn json_of(script: &JobScript, outlook: Option<&Outlook<'_>>) -> Value {
    let mut told = json!({
        "script": script.shown,
        "site": script.site.as_ref().map(|site| &site.file),
        "problems": script.problems,
        "warnings": script.warnings,
        "steps": null,
        "pools": null,
    });
    let Some(outlook) = outlook else { return told };
    let pools = outlook.pools.iter().map(|pool| {
        let mut plan = pool.setup.as_ref().map_or(json!({}), as_json);
        plan["dataspace"] = json!(pool.dataspace);
        plan
    });
    let (seconds, whole) = outlook.seconds();
    let wall = outlook.walltime.map(|time| time.as_secs_f64());
    told["problems"] = json!(outlook.against);
    told["notes"] = json!(outlook.warnings);
    told["nodes"] = json!(outlook.nodes);
    told["walltime_seconds"] = json!(wall);
    told["steps"] = outlook.rows.iter().map(Row::json).collect();
    told["seconds"] = json!(seconds);
    told["partial"] = json!(!whole);
    told["pools"] = pools.collect();
    told
}
