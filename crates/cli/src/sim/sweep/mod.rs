//! `tidepool sim sweep`: all configurations of some knobs, several at once, on one machine or as a Slurm array.

pub mod flags;
pub mod plan;
mod run;
mod slurm;
mod store;
mod told;

use crate::exit::{Context, Failure, Kind, Result};
use crate::outfile::{self, How};
use crate::signals::Signals;
use flags::SweepArgs;
use plan::Plan;
use std::path::Path;
use std::process::ExitCode;
use store::Store;

/// Numbers of points that are told.
const TOLD_MAX: usize = 10;

pub fn sweep(args: &SweepArgs) -> Result<ExitCode> {
    let signals = Signals::watch()?;
    let plan = Plan::new(args)?;
    let points = plan.points();
    if let Some(number) = args.point.filter(|number| *number >= points) {
        let text =
            format!("--point {number}: there are {points} points, from 0 to {}", points.saturating_sub(1));
        return Err(Failure::new(Kind::Usage, text));
    }
    let store = Store::open(&plan, &args.out)?;
    if let Some(file) = &args.slurm_array {
        write_script(file, &slurm::script(args, points)?)?;
        println!("{} runs {points} points as a Slurm array: sbatch {0}", file.display());
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(number) = args.point {
        return one(args, &plan, &store, number, &signals);
    }
    if !args.collect {
        let (_, missing) = store.all();
        let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let jobs = args.jobs.map_or_else(cores, |jobs| jobs as usize);
        run::run(&plan, &store, &missing, jobs, &signals)?;
    }
    let (done, missing) = store.all();
    told::tell(args, &plan, &store, &done, &missing)?;
    signals.check()?;
    match missing.is_empty() {
        true => Ok(ExitCode::SUCCESS),
        false => Err(Failure::new(Kind::Other, lacking(&missing, points))),
    }
}

fn one(args: &SweepArgs, plan: &Plan, store: &Store<'_>, number: u64, signals: &Signals) -> Result<ExitCode> {
    let point = plan.point(number);
    let before = store.result(&point).is_some();
    if !before {
        run::run(plan, store, &[number], 1, signals)?;
    }
    signals.check()?;
    let missing = || Failure::new(Kind::Other, format!("point {number} has no result"));
    let result = store.result(&point).ok_or_else(missing)?;
    match (args.json, before) {
        (true, _) => println!("{result}"),
        (false, true) => println!("point {number} was done before"),
        (false, false) => println!("point {number} is done"),
    }
    Ok(ExitCode::SUCCESS)
}

fn lacking(missing: &[u64], points: u64) -> String {
    let first: Vec<String> = missing.iter().take(TOLD_MAX).map(u64::to_string).collect();
    let more = if missing.len() > TOLD_MAX { " ..." } else { "" };
    format!(
        "{} of {points} points are missing: {}{more}; without --collect they are run",
        missing.len(),
        first.join(", ")
    )
}

fn write_script(file: &Path, text: &str) -> Result<()> {
    let how = How { mode: Some(0o755), ..How::default() };
    let written = outfile::write(file, how, |out| out.write_all(text.as_bytes()));
    written.context(Kind::Other, || file.display().to_string())
}
