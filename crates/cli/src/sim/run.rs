//! `tidepool sim run`: an experiment from a file.

use super::engine::Watch;
use super::group::Group;
use super::outputs::Outputs;
use super::pfs_flags::RunArgs;
use super::told::{text, value};
use super::{files, html};
use crate::exit::{Context, Failure, Kind, Result};
use crate::signals::Signals;
use std::fmt::{self, Write};
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;
use tidepool_sim::Emitted;
use tidepool_sim_models::experiment::{Experiment, TEXT_MAX};
use tidepool_sim_models::topology::Description;
use tidepool_sysmap::{Fabric, Link, Topology};

/// Most bytes of a trace.
const TRACE_MAX: u64 = 1 << 30;

pub fn run(args: &RunArgs) -> Result<ExitCode> {
    Group::run(args.mpi, |group| run_in(args, group))
}

fn run_in(args: &RunArgs, group: &mut Group) -> Result<ExitCode> {
    group.same(args.engine.check())?;
    let signals = Signals::watch()?;
    let experiment = read(&args.file)?;
    let mut system = experiment.system().context(Kind::Usage, || args.file.display().to_string())?;
    let mut outputs = Outputs::new(args, &mut system, group.is_first())?;
    let requests = experiment.applications.iter().map(|all| all.program.requests()).sum();
    let (watch, seed) = (Watch { requests, ..Watch::default() }, args.seed.unwrap_or(experiment.seed));
    let about = about(&experiment, args);
    let sink = |emitted: Emitted<_>| outputs.take(&emitted, &watch);
    let outcome = match args.mpi {
        true => args.engine.run_over((system, &about), seed, (&signals, &watch), group, sink),
        false => args.engine.run_with(system, seed, &signals, &watch, sink),
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
        std::fs::write(file, page).context(Kind::Other, || file.display().to_string())?;
    }
    if args.json {
        let mut all = value(args, &outcome, &outputs);
        all["run"]["ranks"] = group.ranks().into();
        println!("{all}");
    } else {
        print!("{}", text(args, &outcome, &outputs));
    }
    signals.check()?;
    Ok(ExitCode::SUCCESS)
}

/// All that decides what ranks do, with the files that the experiment names: they may be others on other machines.
fn about(experiment: &Experiment, args: &RunArgs) -> String {
    struct Hashed(DefaultHasher);
    impl fmt::Write for Hashed {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    let mut hashed = Hashed(DefaultHasher::new());
    let written = write!(hashed, "{experiment:?}");
    debug_assert!(written.is_ok(), "hashing cannot fail");
    let (seed, pieces) = (args.seed.unwrap_or(experiment.seed), args.sub_requests.is_some());
    format!("experiment {:016x}, seed {seed}, sub-requests {pieces}", hashed.0.finish())
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
