//! `tidepool sim run`: an experiment from a file.

use super::engine::Watch;
use super::group::Group;
use super::kept::{About, Keeper, Kept};
use super::outputs::Outputs;
use super::pfs_flags::RunArgs;
use super::told::{text, value};
use super::{files, html, kept};
use crate::exit::{Context, Failure, Kind, Result};
use crate::signals::Signals;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use tidepool_sim::{Emitted, Simulation};
use tidepool_sim_models::experiment::{Experiment, TEXT_MAX};
use tidepool_sim_models::topology::Description;
use tidepool_sysmap::{Fabric, Link, Topology};

/// Most bytes of a trace.
const TRACE_MAX: u64 = 1 << 30;

pub fn run(args: &RunArgs) -> Result<ExitCode> {
    Group::run(args.mpi, |group| run_in(args, group))
}

fn run_in(args: &RunArgs, group: &mut Group) -> Result<ExitCode> {
    group.same(args.engine.check().and_then(|()| kept::check(args)))?;
    let signals = Signals::watch()?;
    let experiment = read(&args.file)?;
    let mut system = experiment.system().context(Kind::Usage, || args.file.display().to_string())?;
    let requests = experiment.applications.iter().map(|all| all.program.requests()).sum();
    let (watch, seed) = (Watch { requests, ..Watch::default() }, args.seed.unwrap_or(experiment.seed));
    let about = About::new(&experiment, seed, args);
    let read = |file| Kept::read(file, &about).map(|kept| (file, kept));
    let kept = args.resume.as_deref().map(read).transpose()?;
    let mut outputs = match &kept {
        None => Outputs::new(args, &mut system, group.is_first()),
        Some((_, kept)) => kept.outputs(args, &mut system, group.is_first()),
    }?;
    watch.done.store(outputs.done(), Ordering::Relaxed);
    let outcome = if kept.is_some() || args.checkpoint.is_some() {
        let what = || "sim run".to_string();
        let simulation = match &kept {
            None => Simulation::new(system, seed).context(Kind::Other, what),
            Some((file, kept)) => kept.simulation(system, &about, file),
        }?;
        drop(kept);
        let keeper = Keeper { about: &about, file: args.checkpoint.as_deref() };
        let to = (&mut outputs, &keeper);
        args.engine.run_kept(simulation, args.every, (&signals, &watch), group, to)
    } else {
        let sink = |emitted: Emitted<_>| outputs.take(&emitted, &watch);
        match args.mpi {
            true => {
                let about = about.to_string();
                args.engine.run_over((system, &about), seed, (&signals, &watch), group, sink)
            }
            false => args.engine.run_with(system, seed, &signals, &watch, sink),
        }
    }?;
    if !group.is_first() {
        return Ok(ExitCode::SUCCESS);
    }
    outputs.end()?;
    let pfs = outcome.simulation.model();
    if let (Some(file), Some(timeline)) = (&args.timeline, &outputs.timeline) {
        timeline.write(file, pfs).context(Kind::Other, || file.display().to_string())?;
        if let Some(note) = timeline.note() {
            eprintln!("tidepool: {}: {note}", file.display());
        }
    }
    if let Some(file) = &args.html {
        let page = html::report(&args.file, seed, &experiment, &outcome, &outputs.observer);
        crate::outfile::put(file, page)?;
    }
    if args.json {
        let mut all = value(args, &outcome, &outputs);
        all["run"]["ranks"] = group.ranks().into();
        println!("{all}");
    } else {
        print!("{}", text(args, &outcome, &outputs));
    }
    if let Some(file) = args.checkpoint.as_ref().filter(|_| outcome.simulation.pending() > 0) {
        let (now, file) = (outcome.simulation.now(), file.display());
        eprintln!("tidepool: kept at {now} of virtual time; to go on: the same command with --resume {file}");
    }
    signals.check()?;
    Ok(ExitCode::SUCCESS)
}

/// The whole of a file, when it is not too long.
pub fn text_of(file: &Path, most: u64) -> io::Result<String> {
    whole(File::open(file)?, most)
}

fn whole(from: impl Read, most: u64) -> io::Result<String> {
    let mut text = String::new();
    from.take(most + 1).read_to_string(&mut text)?;
    match text.len() as u64 > most {
        true => Err(io::Error::other(format!("more than {most} bytes"))),
        false => Ok(text),
    }
}

/// An experiment, or all that is wrong with it.
pub fn read(file: &Path) -> Result<Experiment> {
    let text = text_of(file, TEXT_MAX as u64).context(Kind::Usage, || file.display().to_string())?;
    let beside = file.parent().unwrap_or(Path::new(""));
    let load = |path: &str| {
        let lines = files::lines(&beside.join(path));
        lines.and_then(|lines| whole(lines, TRACE_MAX)).map_err(|error| error.to_string())
    };
    let switches = |path: &str| switches(&beside.join(path));
    Experiment::read_with(&text, &load, &switches).map_err(|problems| {
        let told: Vec<String> =
            problems.iter().map(|problem| format!("{}: {problem}", file.display())).collect();
        Failure::new(Kind::Usage, told.join("\n"))
    })
}

/// A network of switches from a file.
fn switches(path: &Path) -> std::result::Result<Description, String> {
    let fabric = Fabric::read(path).map_err(|missing| missing.why)?;
    let network = Topology::new(&fabric).map_err(|error| error.to_string())?;
    let bytes = |gigabits: f64| (gigabits * 1e9 / 8.0) as u64;
    let node = |host: &str| {
        // Messages go over its leaf: of a host on several switches the other links carry nothing.
        let leaf = network.leaf_of(host)?;
        let port = network.ports_of(host).iter().find(|port| port.switch == leaf);
        let speed = port.and_then(|port| Some(port.gigabits_per_second? * f64::from(port.count)));
        Some((host.to_string(), leaf.to_string(), speed.map_or(0, bytes)))
    };
    let link = |link: &Link| {
        let speed = link.gigabits_per_second.map_or(0, |each| bytes(each * f64::from(link.count)));
        (link.a.clone(), link.b.clone(), speed)
    };
    Ok(Description {
        switches: network.switches().iter().map(|switch| switch.name.clone()).collect(),
        nodes: network.hosts().into_iter().filter_map(node).collect(),
        links: network.links().iter().map(link).collect(),
    })
}
