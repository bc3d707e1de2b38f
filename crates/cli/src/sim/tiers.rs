//! `tidepool sim tiers`: applications on storage tiers in virtual time, under the strategies of pools.

use super::flags::SchedulerFlag;
use super::group::Group;
use super::phold::RANKS;
use super::sweep::plan::digest;
use crate::bench::report::identity;
use crate::exit::{Context, Failure, Kind, Result};
use crate::output::{ProgressLine, table};
use crate::signals::Signals;
use clap::Args;
use serde_json::{Value, json};
use std::fs::File;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use tidepool_iosched::registry::STRATEGIES;
use tidepool_iosched::{Strategy, Tier, by_name};
use tidepool_sim::{Error, Options, Over, Scheduler, THREADS_MAX};
use tidepool_sim_tiers::read::{FILE_BYTES_MAX, read};
use tidepool_sim_tiers::{AppReport, Report, RunError, Setup, Stretch, run, run_over, stretches_by};

pub const TIERS: &str = "\
Examples:
  tidepool sim tiers small.toml                                  every strategy
  tidepool sim tiers small.toml --strategy ia --strategy model
  tidepool sim tiers small.toml --strategy ia --scheduler optimistic --threads 2
  tidepool sim tiers small.toml --strategy all --csv times.csv
  mpirun -n 2 tidepool sim tiers small.toml --mpi --scheduler optimistic    over two ranks: same results
FILE describes the machine and its applications (docs/formats/29-tier-simulation.md). Times are virtual: of a model with the
bandwidths that FILE gives. The strategies are those of pools, the very same code.
Exit codes: 1 it could not be done, 2 wrong usage or FILE, 130 stopped by Ctrl-C.";

#[derive(Args)]
pub struct TiersArgs {
    /// The machine and the applications
    pub file: PathBuf,
    /// A strategy of pools, or all; may be given several times
    #[arg(long, value_name = "NAME", default_value = "all")]
    pub strategy: Vec<String>,
    /// Of compute times that vary
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    #[arg(long, value_enum, default_value = "sequential", conflicts_with = "check_rollback")]
    pub scheduler: SchedulerFlag,
    /// Threads of the parallel schedulers
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=THREADS_MAX as i64))]
    pub threads: u16,
    /// One of the ranks of mpirun, which run the model together; --threads is of each of them
    #[arg(long)]
    pub mpi: bool,
    /// Handle every event, undo it, handle it again, and compare; one thread
    #[arg(long)]
    pub check_rollback: bool,
    /// Optimistic: set processes back at random moments for no reason, with this seed; results are the same
    #[arg(long, value_name = "SEED")]
    pub force_rollbacks: Option<u64>,
    /// Also write one row for each application and strategy
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

struct Outcome {
    report: Report,
    stretches: Vec<Stretch>,
}

pub fn tiers(args: &TiersArgs) -> Result<ExitCode> {
    Group::run(args.mpi, |group| tiers_in(args, group))
}

fn scheduler_of(args: &TiersArgs) -> Scheduler {
    if args.check_rollback { Scheduler::RollbackCheck } else { args.scheduler.scheduler() }
}

fn check(args: &TiersArgs, ranks: usize) -> Result<()> {
    let scheduler = scheduler_of(args);
    let one_thread = matches!(scheduler, Scheduler::Sequential | Scheduler::RollbackCheck);
    if args.threads > 1 && one_thread {
        return Err(Failure::new(Kind::Usage, "--threads needs --scheduler conservative or optimistic"));
    }
    if args.force_rollbacks.is_some() && scheduler != Scheduler::Optimistic {
        let text = "--force-rollbacks needs --scheduler optimistic; others never go back";
        return Err(Failure::new(Kind::Usage, text));
    }
    match ranks > 1 && one_thread {
        true => Err(Failure::new(Kind::Usage, RANKS)),
        false => Ok(()),
    }
}

fn tiers_in(args: &TiersArgs, group: &mut Group) -> Result<ExitCode> {
    group.same(check(args, group.ranks()))?;
    let (strategies, scheduler) = (group.same(chosen(&args.strategy))?, scheduler_of(args));
    let setup = setup(&args.file)?;
    let signals = Signals::watch()?;
    let line = Mutex::new(ProgressLine::new());
    let (mut outcomes, first) = (Vec::new(), group.is_first());
    for (number, strategy) in strategies.iter().enumerate() {
        let tell = |progress: tidepool_sim::Progress| {
            if let (Ok(mut line), true) = (line.lock(), first) {
                let (now, events) = (progress.now.0 / 1_000_000_000, progress.events);
                line.draw(&format!(
                    "{} ({} of {}): {now} s, {events} events",
                    strategy.name(),
                    number + 1,
                    strategies.len()
                ));
            }
            if signals.seen().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let options = Options {
            scheduler,
            threads: args.threads.into(),
            forced_rollbacks: args.force_rollbacks,
            progress: Some(&tell),
            ..Options::default()
        };
        match outcome(&setup, *strategy, args.seed, &options, group) {
            Ok(outcome) => outcomes.push(outcome),
            Err(RunError::Stopped) => break,
            Err(error) => {
                // What ranks have to say of each other only one of them knows.
                let is_of_all = !matches!(error, RunError::Simulation(Error::Ranks(_)));
                let text = format!("{}: strategy {}: {error}", args.file.display(), strategy.name());
                let failed = Err(Failure::new(Kind::Other, text));
                return if is_of_all { group.same(failed) } else { failed };
            }
        }
    }
    if let Ok(mut line) = line.lock() {
        line.clear();
    }
    group.end()?;
    if !group.is_first() {
        return Ok(ExitCode::SUCCESS);
    }
    signals.check()?;
    if let Some(file) = &args.csv {
        crate::outfile::put(file, csv(&outcomes))?;
    }
    match args.json {
        true => println!("{}", value(&setup, &outcomes, args.seed)),
        false => print!("{}", text(&setup, &outcomes)),
    }
    Ok(ExitCode::SUCCESS)
}

fn chosen(names: &[String]) -> Result<Vec<&'static dyn Strategy>> {
    if names.iter().any(|name| name == "all") {
        return Ok(STRATEGIES.to_vec());
    }
    names.iter().map(|name| by_name(name).context(Kind::Usage, || "--strategy".into())).collect()
}

fn setup(file: &Path) -> Result<Setup> {
    let what = || file.display().to_string();
    let mut text = String::new();
    let opened = File::open(file).context(Kind::Usage, what)?;
    opened.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).context(Kind::Usage, what)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(Failure::new(Kind::Usage, format!("{}: longer than 1 MiB", file.display())));
    }
    read(&text).map_err(|problems| {
        let lines: Vec<String> =
            problems.iter().map(|problem| format!("{}: {problem}", file.display())).collect();
        Failure::new(Kind::Usage, lines.join("\n"))
    })
}

/// By this process alone, or by all ranks together.
fn outcome(
    setup: &Setup,
    strategy: &'static dyn Strategy,
    seed: u64,
    options: &Options<'_>,
    group: &mut Group,
) -> std::result::Result<Outcome, RunError> {
    let mut each = |setup: &Setup| match group.link() {
        None => run(setup, strategy, seed, options),
        Some(link) => {
            // All that decides what the model does.
            let about = format!("strategy {}, seed {seed}, setup {:016x}", strategy.name(), digest(setup));
            run_over(setup, strategy, seed, options, &mut Over { link, about: &about })
        }
    };
    let report = each(setup)?;
    let stretches = stretches_by(setup, &report, each)?;
    Ok(Outcome { report, stretches })
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

impl Outcome {
    fn apps(&self) -> impl Iterator<Item = (&AppReport, &Stretch)> {
        self.report.apps.iter().zip(&self.stretches)
    }

    fn stretch_most(&self) -> f64 {
        self.stretches.iter().map(|stretch| stretch.run).fold(0.0, f64::max)
    }
}

fn text(setup: &Setup, outcomes: &[Outcome]) -> String {
    let mut rows = vec![
        [
            "strategy",
            "application",
            "I/O time of a phase",
            "end",
            "longer than alone",
            "of it I/O",
            "local, burst, pfs",
            "moved",
        ]
        .map(String::from)
        .to_vec(),
    ];
    for outcome in outcomes {
        for (app, stretch) in outcome.apps() {
            let all: u64 = app.bytes.iter().sum();
            let part = |bytes: u64| (100.0 * bytes as f64 / all.max(1) as f64).round();
            let [local, burst, pfs] = app.bytes.map(part);
            rows.push(vec![
                outcome.report.strategy.to_string(),
                app.name.clone(),
                format!("{:.3} s", seconds(app.io_mean_ns())),
                format!("{:.3} s", seconds(app.end_ns)),
                format!("{:.2}", stretch.run),
                format!("{:.2}", stretch.io),
                format!("{local} {burst} {pfs} %"),
                app.moves.to_string(),
            ]);
        }
    }
    let mut all = vec![
        [
            "strategy",
            "mean I/O time",
            "slowest",
            "all ended",
            "all on pfs",
            "burst busy",
            "pfs busy",
            "fairness",
            "stretch",
        ]
        .map(String::from)
        .to_vec(),
    ];
    for outcome in outcomes {
        let report = &outcome.report;
        let busy = |tier| match report.tiers[tier as usize].servers {
            0 => "-".to_string(),
            _ => format!("{:.0} %", 100.0 * report.busy(tier)),
        };
        all.push(vec![
            report.strategy.to_string(),
            format!("{:.3} s", seconds(report.io_mean_ns())),
            format!("{:.3} s", seconds(report.io_slowest_ns())),
            format!("{:.3} s", seconds(report.end_ns)),
            format!("{:.3} s", seconds(report.flushed_ns)),
            busy(Tier::Burst),
            busy(Tier::Pfs),
            format!("{:.3}", report.fairness()),
            format!("{:.2}", outcome.stretch_most()),
        ]);
    }
    format!(
        "simulated: {} applications, bandwidths as the file gives them\n{}\n{}",
        setup.apps.len(),
        table(&rows),
        table(&all)
    )
}

fn csv(outcomes: &[Outcome]) -> String {
    let mut text = "strategy,application,io_mean_s,io_total_s,end_s,stretch_run,stretch_io,local_bytes,burst_bytes,pfs_bytes,moves,\
                    refused,waited_s,all_io_mean_s,all_io_slowest_s,all_end_s,all_flushed_s,local_busy,burst_busy,pfs_busy,\
                    burst_used,pfs_used,fairness\n"
        .to_string();
    for outcome in outcomes {
        let report = &outcome.report;
        for (app, stretch) in outcome.apps() {
            let [local, burst, pfs] = app.bytes;
            text += &format!(
                "{},{},{:.6},{:.6},{:.6},{:.4},{:.4},{local},{burst},{pfs},{},{},{:.6},",
                report.strategy,
                app.name,
                seconds(app.io_mean_ns()),
                seconds(app.io_total_ns()),
                seconds(app.end_ns),
                stretch.run,
                stretch.io,
                app.moves,
                app.refused,
                seconds(app.waited_ns),
            );
            text += &format!(
                "{:.6},{:.6},{:.6},{:.6},{:.4},{:.4},{:.4},{:.4},{:.4},{:.4}\n",
                seconds(report.io_mean_ns()),
                seconds(report.io_slowest_ns()),
                seconds(report.end_ns),
                seconds(report.flushed_ns),
                report.busy(Tier::Local),
                report.busy(Tier::Burst),
                report.busy(Tier::Pfs),
                report.used(Tier::Burst),
                report.used(Tier::Pfs),
                report.fairness(),
            );
        }
    }
    text
}

fn value(setup: &Setup, outcomes: &[Outcome], seed: u64) -> Value {
    let mut all = identity("sim-tiers");
    all["simulated"] = true.into();
    all["seed"] = seed.into();
    all["alone_on_pfs_seconds"] =
        setup.apps.iter().map(|app| app.alone_on_pfs(setup).as_secs_f64()).collect();
    all["strategies"] = outcomes.iter().map(of_one).collect();
    all
}

fn of_one(outcome: &Outcome) -> Value {
    let report = &outcome.report;
    let app = |(app, stretch): (&AppReport, &Stretch)| {
        json!({
            "name": app.name,
            "io_mean_seconds": seconds(app.io_mean_ns()),
            "io_seconds": app.io_ns.iter().map(|ns| seconds(*ns)).collect::<Vec<_>>(),
            "end_seconds": seconds(app.end_ns),
            "flushed_seconds": seconds(app.flushed_ns),
            "waited_seconds": seconds(app.waited_ns),
            "stretch": { "run": stretch.run, "io": stretch.io },
            "bytes": { "local": app.bytes[0], "burst": app.bytes[1], "pfs": app.bytes[2] },
            "moves": app.moves,
            "refused_chunks": app.refused,
            "decisions": app.decisions,
            "late_decisions": app.late,
        })
    };
    let tier = |tier: Tier| {
        let of = &report.tiers[tier as usize];
        json!({
            "name": tier.name(),
            "servers": of.servers,
            "busy": report.busy(tier),
            "used": report.used(tier),
            "written_bytes": of.written_bytes,
            "flushed_in_bytes": of.flushed_in_bytes,
            "flushed_out_bytes": of.flushed_out_bytes,
        })
    };
    json!({
        "strategy": report.strategy,
        "io_mean_seconds": seconds(report.io_mean_ns()),
        "io_slowest_seconds": seconds(report.io_slowest_ns()),
        "end_seconds": seconds(report.end_ns),
        "flushed_seconds": seconds(report.flushed_ns),
        "fairness": report.fairness(),
        "stretch_most": outcome.stretch_most(),
        "events": report.events,
        "trace": format!("{:016x}", report.trace),
        "applications": outcome.apps().map(app).collect::<Vec<_>>(),
        "tiers": Tier::ALL.map(tier),
    })
}
