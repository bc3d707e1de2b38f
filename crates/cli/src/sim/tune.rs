//! `tidepool sim tune`: which configuration does best (S1 §IV-D).

use super::pfs_flags::{GoalFlag, TuneArgs};
use super::pool_options::Pool;
use super::run::read;
use crate::bench::report::identity;
use crate::exit::{Context, Failure, Kind, Result};
use crate::output::{ProgressLine, table};
use crate::signals::Signals;
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::process::ExitCode;
use tidepool_sim::{Options, Progress};
use tidepool_sim_models::experiment::Experiment;
use tidepool_sim_models::run;
use tidepool_sim_models::tune::{Goal, Score, Trial, Vary, best, frontier, search, size, turned};
use tidepool_types::format_size;

/// Decision 33 says why.
const NO_RANKS: &str = "--mpi: configurations of a search are runs of their own, and do not run over ranks; `tidepool sim sweep` runs such \
    points side by side, on the tasks of a Slurm array, too, and `tidepool sim run --mpi` one of them over ranks";

pub fn tune(args: &TuneArgs) -> Result<ExitCode> {
    if args.mpi {
        return Err(Failure::new(Kind::Usage, NO_RANKS));
    }
    let signals = Signals::watch()?;
    let mut experiment = read(&args.file)?;
    for (class, price) in &args.cost {
        let text = format!("--cost: there is no class of servers '{class}'");
        let at = experiment.class(class).ok_or_else(|| Failure::new(Kind::Usage, text))?;
        experiment.servers[at].price = *price;
    }
    experiment.seed = args.seed.unwrap_or(experiment.seed);
    let knobs = args.vary.iter().map(|text| Vary::parse(text, &experiment));
    let space: Vec<Vary> =
        knobs.collect::<std::result::Result<_, _>>().context(Kind::Usage, || "--vary".to_string())?;
    let goal = match args.goal {
        GoalFlag::Throughput => Goal::Throughput,
        GoalFlag::Response => Goal::Response,
        GoalFlag::PerPrice => Goal::ThroughputPerPrice,
    };
    let trials = tried(args, &experiment, &space, goal, &signals)?;
    if args.json {
        println!("{}", value(args, &experiment, &space, &trials, goal));
    } else {
        print!("{}", text(&experiment, &space, &trials, goal));
    }
    signals.check()?;
    match best(&trials, goal) {
        Some(_) => Ok(ExitCode::SUCCESS),
        None => Err(Failure::new(Kind::Usage, "none of these configurations is possible")),
    }
}

fn tried(
    args: &TuneArgs,
    experiment: &Experiment,
    space: &[Vary],
    goal: Goal,
    signals: &Signals,
) -> Result<Vec<Trial>> {
    let (mut line, mut number, mut broken) = (ProgressLine::new(), 0, None);
    let most = size(space).min(args.trials as usize);
    let trials = search(experiment, space, goal, args.trials as usize, |turned| {
        number += 1;
        line.draw(&format!("configuration {number} of at most {most}"));
        if signals.seen().is_some() || broken.is_some() {
            return None;
        }
        score(turned, signals).unwrap_or_else(|error| {
            broken = Some(error);
            None
        })
    });
    line.clear();
    match broken {
        Some(error) => Err(error),
        None => Ok(trials),
    }
}

/// None for what is no system, and when a signal has ended it.
fn score(experiment: &Experiment, signals: &Signals) -> Result<Option<Score>> {
    let Ok(system) = experiment.system() else { return Ok(None) };
    let tell = |_: Progress| match signals.seen() {
        Some(_) => ControlFlow::Break(()),
        None => ControlFlow::Continue(()),
    };
    let options = Options { progress: Some(&tell), ..Options::default() };
    let (simulation, results) =
        run(system, experiment.seed, &options).context(Kind::Other, || "sim tune".to_string())?;
    if simulation.pending() > 0 {
        return Ok(None);
    }
    let response = results.waited as f64 / results.requests.max(1) as f64;
    Ok(Some(Score { throughput: results.throughput(), response, price: experiment.price() }))
}

fn value(args: &TuneArgs, experiment: &Experiment, space: &[Vary], trials: &[Trial], goal: Goal) -> Value {
    let told = |trial: &Trial| {
        let knobs = space.iter().zip(&trial.values).map(|(vary, value)| (vary.name.clone(), json!(value)));
        json!({
            "knobs": knobs.collect::<serde_json::Map<_, _>>(),
            "bytes_per_second": trial.score.map(|score| score.throughput),
            "response_mean_ns": trial.score.map(|score| score.response),
            "price": trial.score.map(|score| score.price),
        })
    };
    let mut all = identity("sim-tune");
    all["experiment"] = args.file.display().to_string().into();
    all["tried"] = trials.iter().map(told).collect();
    all["frontier"] = frontier(trials).into_iter().map(told).collect();
    all["best"] = best(trials, goal).map_or(Value::Null, told);
    all["pool"] = best(trials, goal).map_or(Value::Null, |best| pool_of(experiment, space, best).value());
    all
}

/// The best configuration as options of a pool.
fn pool_of(experiment: &Experiment, space: &[Vary], best: &Trial) -> Pool {
    let names: Vec<&str> = space.iter().map(|vary| vary.name.as_str()).collect();
    Pool::of(&turned(experiment, space, &best.values), &names)
}

fn text(experiment: &Experiment, space: &[Vary], trials: &[Trial], goal: Goal) -> String {
    let on = frontier(trials);
    let best = best(trials, goal);
    let mut head: Vec<String> = space.iter().map(|vary| vary.name.clone()).collect();
    head.extend(["throughput", "mean ms", "price", ""].map(String::from));
    let mut rows = vec![head];
    for trial in trials {
        let mut row: Vec<String> = trial.values.iter().map(u64::to_string).collect();
        match trial.score {
            None => row.push("not possible".into()),
            Some(score) => {
                let mark = match (best == Some(trial), on.contains(&trial)) {
                    (true, _) => "best",
                    (_, true) => "frontier",
                    _ => "",
                };
                row.extend([
                    format!("{}/s", format_size(score.throughput as u64)),
                    format!("{:.3}", score.response / 1e6),
                    score.price.to_string(),
                    mark.to_string(),
                ]);
            }
        }
        rows.push(row);
    }
    let pool = best.map_or(String::new(), |best| pool_of(experiment, space, best).text());
    table(&rows) + &pool
}
