//! A run from its beginning to the moment when all lies on the PFS.

use crate::model::Tiers;
use crate::plan::{PlanError, Setup};
use crate::report::{AppReport, Report, Shares, Stretch};
use std::fmt;
use tidepool_iosched::Strategy;
use tidepool_sim::{Error, Options, Simulation, Time};

/// Why a run came to nothing.
#[derive(Clone, PartialEq, Debug)]
pub enum RunError {
    Plan(PlanError),
    Simulation(Error),
    /// Nothing happens any more, and an application has not ended or has data above the PFS.
    Unfinished {
        app: String,
    },
    /// Somebody wanted it to end.
    Stopped,
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Plan(error) => error.fmt(f),
            RunError::Simulation(error) => error.fmt(f),
            RunError::Unfinished { app } => {
                write!(f, "nothing happens any more, and application '{app}' has not come to its end")
            }
            RunError::Stopped => f.write_str("stopped before its end"),
        }
    }
}

impl std::error::Error for RunError {}

impl From<PlanError> for RunError {
    fn from(error: PlanError) -> RunError {
        RunError::Plan(error)
    }
}

impl From<Error> for RunError {
    fn from(error: Error) -> RunError {
        RunError::Simulation(error)
    }
}

/// A setup at time 0.
pub fn simulation(
    setup: &Setup,
    strategy: &'static dyn Strategy,
    seed: u64,
) -> Result<Simulation<Tiers>, RunError> {
    setup.check()?;
    Ok(Simulation::new(Tiers::new(setup.clone(), strategy), seed)?)
}

/// Runs the applications until all their data are on the PFS.
pub fn run(
    setup: &Setup,
    strategy: &'static dyn Strategy,
    seed: u64,
    options: &Options<'_>,
) -> Result<Report, RunError> {
    let mut simulation = simulation(setup, strategy, seed)?;
    simulation.run(Time::MAX, options)?;
    if simulation.pending() > 0 {
        return Err(RunError::Stopped);
    }
    let shares = Shares::of(simulation.states().enumerate());
    finished(setup, &shares)?;
    Ok(Report::of(simulation.model(), shares, (simulation.events(), simulation.trace())))
}

/// Whether every application has ended, and all of its data are on the PFS.
pub(crate) fn finished(setup: &Setup, shares: &Shares) -> Result<(), RunError> {
    match setup.apps.iter().zip(&shares.apps).find(|(_, share)| !share.done) {
        Some((plan, _)) => Err(RunError::Unfinished { app: plan.workload.name.clone() }),
        None => Ok(()),
    }
}

/// How much longer each application took than it would alone, on the same machine under the same strategy. Applications that are alike
/// are run once.
pub fn stretches(
    setup: &Setup,
    together: &Report,
    strategy: &'static dyn Strategy,
    seed: u64,
    options: &Options<'_>,
) -> Result<Vec<Stretch>, RunError> {
    stretches_by(setup, together, |alone| run(alone, strategy, seed, options))
}

/// The same, with runs of whoever wants to run them otherwise.
pub fn stretches_by(
    setup: &Setup,
    together: &Report,
    mut run: impl FnMut(&Setup) -> Result<Report, RunError>,
) -> Result<Vec<Stretch>, RunError> {
    let mut known: Vec<(crate::plan::App, AppReport)> = Vec::new();
    let mut all = Vec::new();
    for (plan, report) in setup.apps.iter().zip(&together.apps) {
        let mut own = plan.clone();
        own.workload.name.clear();
        own.workload.start = std::time::Duration::ZERO;
        let alone = match known.iter().find(|(other, _)| *other == own) {
            Some((_, alone)) => alone.clone(),
            None => {
                let setup = Setup { apps: vec![own.clone()], ..setup.clone() };
                let alone = run(&setup)?.apps.swap_remove(0);
                known.push((own, alone.clone()));
                alone
            }
        };
        let ratio = |a: u64, b: u64| a as f64 / b.max(1) as f64;
        all.push(Stretch {
            run: ratio(report.end_ns - report.start_ns.min(report.end_ns), alone.end_ns),
            io: ratio(report.io_total_ns(), alone.io_total_ns()),
        });
    }
    Ok(all)
}
