//! A job script as a run: the same description that a batch system gets, on this machine.
//!
//! | in Slurm | here |
//! |---|---|
//! | each node's own storage | that of this machine, whatever the mapping |
//! | the stagers copy | this process does, with the same engine |
//! | nodes, time, workflows | whoever starts the script knows: they are told, and left out |

use super::job::{Copy, Here, Job, Program, Route, Script, Spread, Way, Wish};
use crate::agent::own_name;
use crate::exit::{Failure, Kind, Result};
use crate::flags::{Door, FsKind, RunArgs};
use crate::jobscript::{JobScript, Spot, Step, Storage, fs_of, outlives, shape_of};
use crate::launch::wants_mount;
use crate::place::Place;
use crate::slurm::lint;
use nix::unistd::{User, geteuid};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use tidepool_directives::{
    DataspaceKind, Directives, Mapping, MappingText, Persist, PersistOp, Problem, Said, Stage, env_name,
};

/// Largest file of a mapping.
const MAPPING_BYTES_MAX: u64 = 256 << 20;

pub fn job(script: &Path, args: &RunArgs) -> Result<Job> {
    let mut script = JobScript::load(script, args.site.as_deref())?;
    script.accept(Kind::Usage)?;
    let mut build = Build { script: &script, args, problems: Vec::new(), warnings: Vec::new() };
    let made = build.job();
    let Build { mut problems, warnings, .. } = build;
    eprint!("{}", script.warning_lines());
    warnings.iter().for_each(|warning| eprintln!("tidepool: warning: {warning}"));
    problems.sort_by_key(lint::place);
    script.problems = problems;
    script.accept(Kind::Usage)?;
    let mut job = made?;
    if let Program::Script(program) = &mut job.program {
        program.warnings = script.warning_lines().lines().map(String::from).chain(warnings).collect();
    }
    require_mounts(&script, &job)?;
    require_origins(&script, &job)?;
    Ok(job)
}

struct Build<'a> {
    script: &'a JobScript,
    args: &'a RunArgs,
    /// What of the directives cannot be done here.
    problems: Vec<Problem>,
    warnings: Vec<String>,
}

impl Build<'_> {
    fn job(&mut self) -> Result<Job> {
        let directives = &self.script.directives;
        self.ignored(directives);
        let pools = self.pools()?;
        let stage_in = self.copies(Way::In)?;
        let stage_out = self.copies(Way::Out)?;
        let (keep, delete) = self.persists();
        Ok(Job {
            pools,
            stage_in,
            program: Program::Script(self.program()?),
            stage_out,
            ordered: self.args.ordered,
            require: self.args.require,
            stage_in_limit: directives.timeouts.stage_in,
            stage_out_limit: directives.timeouts.stage_out,
            keep,
            delete,
        })
    }

    fn refuse(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// What only means something where jobs wait for each other.
    fn ignored(&mut self, directives: &Directives) {
        let workflow = &directives.workflow;
        let prior: Vec<String> = workflow.prior.iter().map(ToString::to_string).collect();
        let resume = directives.resume.as_ref();
        let lines = [
            workflow.start.then(|| "workflow-start is ignored: in Slurm jobs that name this one come after it".into()),
            (!prior.is_empty()).then(|| {
                let jobs = prior.join(", ");
                format!("workflow-prior-dependency is ignored: in Slurm this job would wait until job {jobs} has ended well")
            }),
            workflow.same_nodes.then(|| {
                "workflow-same-nodes is ignored: in Slurm this job would get the nodes of the one before it".into()
            }),
            workflow.end.then(|| "workflow-end is ignored: in Slurm the workflow would be over with this job".into()),
            directives.reserve.then(|| {
                "reserve is ignored: in Slurm nodes would be reserved, and data staged to them, while the job waits".into()
            }),
            resume.map(|job| {
                format!("resume is ignored: in Slurm this job would finish the stage-out of job {job}")
            }),
        ];
        self.warnings.extend(lines.into_iter().flatten());
    }

    fn pools(&mut self) -> Result<Vec<Wish>> {
        let asked = &self.script.directives.pools;
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        let nodes = match Place::choose(&self.args.shape)? {
            Place::Local(_) => None,
            place => Some(place.names()?.len()),
        };
        let mut wishes = Vec::new();
        for pool in asked {
            self.problems.extend(outlives(pool));
            let divided = pool.nodes.is_some_and(|nodes| nodes > 1) || pool.deploy.is_some();
            if nodes.is_none() && divided {
                let text =
                    format!("{}: nodes= and deploy= are ignored: this is one machine", pool.dataspace());
                self.warnings.push(text);
            }
            match shape_of(pool, &self.args.shape, nodes) {
                Err(problem) => self.refuse(problem),
                Ok(shape) => wishes.push(Wish { dataspace: Some(pool.dataspace()), fs: fs_of(pool), shape }),
            }
        }
        let is_local = |step: &Step<'_>| [&step.from, &step.to].into_iter().any(is_of_node);
        let steps = [Way::In, Way::Out].into_iter().flat_map(|way| self.script.steps(way));
        if let Some(nodes) = nodes.filter(|nodes| *nodes > 1 && steps.into_iter().any(|step| is_local(&step)))
        {
            let text = format!(
                "nodes' own storage is that of this machine: the {nodes} hosts are for the pool only"
            );
            self.warnings.push(text);
        }
        self.need_mounts(&wishes)?;
        Ok(wishes)
    }

    /// The preload library shows a program one pool.
    fn need_mounts(&mut self, wishes: &[Wish]) -> Result<()> {
        if wishes.len() < 2 {
            return Ok(());
        }
        for (wish, pool) in wishes.iter().zip(&self.script.directives.pools) {
            if wish.fs == FsKind::Tidepool && !wants_mount(wish.shape.door())? {
                let why = match wish.shape.door() {
                    Door::Preload => "client=preload shows programs one pool only",
                    Door::Auto | Door::Fuse => {
                        "FUSE cannot be used here, and the preload library shows one pool only"
                    }
                };
                self.problems
                    .push(Problem::new(&pool.at, format!("several pools have to be mounted: {why}")));
            }
        }
        Ok(())
    }

    fn copies(&mut self, way: Way) -> Result<Vec<Copy>> {
        let mut copies = Vec::new();
        for step in self.script.steps(way) {
            copies.extend(self.copy(step)?);
        }
        Ok(copies)
    }

    fn copy(&mut self, step: Step<'_>) -> Result<Option<Copy>> {
        let Stage { origin, destination, mapping } = &step.stage.value;
        for (place, spot) in [(origin, &step.from), (destination, &step.to)] {
            if let Spot::Object { store } = spot {
                let text = format!(
                    "'{place}' is in an object store, {store}: this needs a stager, which the job has in Slurm"
                );
                self.refuse(Problem::new(&place.at, text));
                return Ok(None);
            }
        }
        let passing = step.way == Way::In && is_of_node(&step.to) && !step.is_in_place();
        let route = match (step.from, step.to) {
            (Spot::Dir { path, .. }, Spot::Pool { number, path: to }) => {
                Route::Into { pool: number, from: path, to }
            }
            (Spot::Pool { number, path: from }, Spot::Dir { path, .. }) => {
                Route::OutOf { pool: number, from, to: path }
            }
            (Spot::Dir { path: from, .. }, Spot::Dir { path: to, .. }) => {
                let Some((spread, to)) = self.spread(mapping.as_ref(), to)? else { return Ok(None) };
                Route::Here(Here { from, to, spread, passing })
            }
            // Steps that make no sense are refused already.
            _ => return Ok(None),
        };
        let (from, to) = (origin.to_string(), destination.to_string());
        Ok(Some(Copy { route, label: format!("{from} -> {to}"), from, to }))
    }

    /// What a mapping comes to where there is one node.
    fn spread(
        &mut self,
        mapping: Option<&Said<MappingText>>,
        to: PathBuf,
    ) -> Result<Option<(Spread, PathBuf)>> {
        let Some(said) = mapping else { return Ok(Some((Spread::Whole, to))) };
        let spread = match &said.value {
            Mapping::Replicate | Mapping::Gather => Spread::Whole,
            Mapping::Scatter => Spread::Entries(None),
            Mapping::ScatterByRank { before, after } => {
                let (before, after) = (before.clone(), after.clone());
                Spread::Entries(Some(Mapping::ScatterByRank { before, after }))
            }
            Mapping::GatherApart { name } => {
                return Ok(Some((Spread::Whole, to.join(name.replace("{node}", &own_name())))));
            }
            Mapping::File(_) => match lines(&said.value) {
                Ok(lines) => Spread::Lines(lines),
                Err(why) => {
                    self.refuse(Problem::new(&said.at, why));
                    return Ok(None);
                }
            },
        };
        Ok(Some((spread, to)))
    }

    /// What stays, and what goes.
    fn persists(&mut self) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let (mut keep, mut delete) = (Vec::new(), Vec::new());
        for persist in &self.script.directives.persist {
            match self.persist(persist) {
                Err(problem) => self.refuse(problem),
                Ok((PersistOp::Delete, path)) => delete.push(path),
                Ok((_, path)) => keep.push(path),
            }
        }
        (keep, delete)
    }

    fn persist(&self, persist: &Said<Persist>) -> std::result::Result<(PersistOp, PathBuf), Problem> {
        let Persist { op, location, user, expires } = &persist.value;
        let refuse = |text: String| Err(Problem::new(&persist.at, text));
        if matches!(op, PersistOp::Share | PersistOp::Unshare) {
            let word = if *op == PersistOp::Share { "share" } else { "unshare" };
            return refuse(format!(
                "'persist {word}' needs a stager, which acts for several users; here there is none"
            ));
        }
        if let Some(other) = user.as_ref().filter(|user| !is_own(user)) {
            return refuse(format!(
                "what is of {other} needs a stager, which acts for several users; here there is none"
            ));
        }
        if expires.is_some() {
            return refuse("'expires=' needs a stager, which removes it in time; here there is none".into());
        }
        let Some(Spot::Dir { path, storage: Storage::OfNode }) = self.script.spot(location) else {
            return refuse(format!(
                "whether '{location}' is on the nodes' own storage only a site's file tells; --site FILE names one"
            ));
        };
        let is_mount = |mount: &str| mount_path(mount) == path;
        if self.script.dataspaces().iter().any(|dataspace| is_mount(&dataspace.mount)) {
            return refuse(format!("'{location}' is all of a dataspace; name what is kept there"));
        }
        Ok((*op, path))
    }

    fn program(&self) -> Result<Script> {
        let interpreter = interpreter(&self.script.text)
            .map_err(|why| Failure::new(Kind::Usage, format!("{}:1:1: error: {why}", self.script.shown)))?;
        let directories = self
            .script
            .dataspaces()
            .iter()
            .filter(|dataspace| matches!(dataspace.kind, DataspaceKind::Local | DataspaceKind::Shared));
        let variable = |name: &str, mount: &str| (env_name(name).into(), mount.into());
        Ok(Script {
            shown: self.script.shown.clone(),
            interpreter,
            text: self.script.text.clone(),
            args: self.args.args.iter().chain(&self.args.program).cloned().collect(),
            variables: directories.map(|d| variable(&d.name, &d.mount)).collect(),
            warnings: Vec::new(),
        })
    }
}

fn is_of_node(spot: &Spot) -> bool {
    matches!(spot, Spot::Dir { storage: Storage::OfNode, .. })
}

fn mount_path(mount: &str) -> PathBuf {
    Path::new(mount).components().collect()
}

fn is_own(user: &str) -> bool {
    matches!(User::from_name(user), Ok(Some(user)) if user.uid == geteuid())
}

/// Entries that a mapping file names, and what they are called here: every node is this one.
fn lines(mapping: &MappingText) -> std::result::Result<Vec<(String, String)>, String> {
    let read = |path: &str| {
        let fail = |error: std::io::Error| error.to_string();
        let length = std::fs::metadata(path).map_err(fail)?.len();
        match length > MAPPING_BYTES_MAX {
            true => Err(format!("it has more than {MAPPING_BYTES_MAX} bytes")),
            false => std::fs::read_to_string(path).map_err(fail),
        }
    };
    let Mapping::File(lines) = mapping.clone().read(read).map_err(|error| format!("'{mapping}': {error}"))?
    else {
        return Err(format!("'{mapping}' is no file"));
    };
    let mut by_name: BTreeMap<String, String> = BTreeMap::new();
    for line in lines {
        let name = line.target.unwrap_or_else(|| line.entry.clone());
        for path in [&line.entry, &name] {
            let inside = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
            if !inside {
                return Err(format!("'{mapping}': '{path}' leads elsewhere"));
            }
        }
        match by_name.insert(name.clone(), line.entry.clone()) {
            Some(other) if other != line.entry => {
                let text = format!("'{mapping}': '{other}' and '{}' are both called '{name}'", line.entry);
                return Err(text + ", on different nodes; here there is one");
            }
            _ => {}
        }
    }
    Ok(by_name.into_iter().map(|(name, entry)| (entry, name)).collect())
}

/// What the kernel makes of the first line of an executable script: a program, and all behind it as one argument.
fn interpreter(script: &[u8]) -> std::result::Result<Vec<OsString>, &'static str> {
    const ADVICE: &str =
        "the first line has to be #! and the path of the program that the script is for, as sbatch wants it";
    let line = script.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_prefix(b"#!").ok_or(ADVICE)?.trim_ascii();
    let end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
    let (program, argument) = (&line[..end], line[end..].trim_ascii());
    if !program.starts_with(b"/") {
        return Err(ADVICE);
    }
    let words = [program, argument].into_iter().filter(|word| !word.is_empty());
    Ok(words.map(|word| OsStr::from_bytes(word).to_os_string()).collect())
}

/// A copy to a file system that is not mounted would end on the disk below.
fn require_mounts(script: &JobScript, job: &Job) -> Result<()> {
    for copy in job.stage_in.iter().chain(&job.stage_out) {
        let paths = match &copy.route {
            Route::Into { from, .. } => [Some(from), None],
            Route::OutOf { to, .. } => [Some(to), None],
            Route::Here(here) => [Some(&here.from), Some(&here.to)],
        };
        for dataspace in script.dataspaces() {
            let mount = mount_path(&dataspace.mount);
            if paths.iter().flatten().any(|path| path.starts_with(&mount)) && !mount.is_dir() {
                let (name, mount) = (&dataspace.name, mount.display());
                let text =
                    format!("{}: {name} is {mount}, and there is no such directory here", script.shown);
                return Err(Failure::new(Kind::StageIn, text));
            }
        }
    }
    Ok(())
}

/// Nothing is started for data that are not there. What an earlier copy brings may come yet.
fn require_origins(script: &JobScript, job: &Job) -> Result<()> {
    let mut brought: Vec<&Path> = Vec::new();
    for copy in &job.stage_in {
        let (from, to) = match &copy.route {
            Route::Into { from, .. } => (from, None),
            Route::Here(here) => (&here.from, Some(here.to.as_path())),
            Route::OutOf { .. } => continue,
        };
        let may_come = brought.iter().any(|place| from.starts_with(place) || place.starts_with(from));
        if !may_come && std::fs::symlink_metadata(from).is_err() {
            let text =
                format!("{}: {} does not exist: {} is missing", script.shown, copy.from, from.display());
            return Err(Failure::new(Kind::StageIn, text));
        }
        brought.extend(to);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_says_what_runs_a_script() {
        let read = |text: &str| {
            let words = interpreter(text.as_bytes()).ok()?;
            Some(words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>())
        };
        for (script, words) in [
            ("#!/bin/sh\nx", vec!["/bin/sh"]),
            ("#! /bin/bash  -e -u \n", vec!["/bin/bash", "-e -u"]),
            ("#!/usr/bin/env python3", vec!["/usr/bin/env", "python3"]),
        ] {
            assert_eq!(read(script), Some(words.into_iter().map(String::from).collect()), "{script}");
        }
        for script in ["", "echo", " #!/bin/sh", "#!", "#!bash\n", "#!\n/bin/sh"] {
            assert_eq!(read(script), None, "{script}");
        }
    }

    #[test]
    fn mapping_files_bring_every_entry_here_once() {
        let dir = tempfile::TempDir::new().unwrap();
        let file = dir.path().join("map");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            lines(&Mapping::File(file.display().to_string()))
        };
        let pair = |entry: &str, name: &str| (entry.to_string(), name.to_string());
        assert_eq!(
            read("b n1\na n1 c\na n2 c\na/x n2\n"),
            Ok(vec![pair("a/x", "a/x"), pair("b", "b"), pair("a", "c")])
        );
        for (text, words) in [
            ("a n1 c\nb n2 c\n", "'a' and 'b' are both called 'c'"),
            ("../a n1\n", "leads elsewhere"),
            ("a n1 /etc\n", "leads elsewhere"),
            ("a\n", "line 1"),
        ] {
            let told = read(text).unwrap_err();
            assert!(told.contains(words), "{told}");
        }
        let told = lines(&Mapping::File("/no/such".into())).unwrap_err();
        assert!(told.contains("No such file"), "{told}");
    }
}
