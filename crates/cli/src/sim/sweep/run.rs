//! Points, several at once: a thread for each, which runs the sequential scheduler.

use super::plan::{Plan, Point};
use super::store::Store;
use crate::exit::{Context, Kind, Result};
use crate::output::{ProgressLine, duration};
use crate::signals::Signals;
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;
use tidepool_sim::{Options, Progress};
use tidepool_sim_models::experiment::Experiment;
use tidepool_sim_models::observe::{Latencies, Observer};
use tidepool_sim_models::{Results, run_with};

/// Runs what is not there yet, until all is done or a signal comes; how many were run.
pub fn run(plan: &Plan, store: &Store<'_>, missing: &[u64], jobs: usize, signals: &Signals) -> Result<usize> {
    let (next, stop, began) = (AtomicUsize::new(0), AtomicBool::new(false), Instant::now());
    let mut line = ProgressLine::new();
    let (mut done, mut wrong) = (0, None);
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        for _ in 0..jobs.min(missing.len()) {
            let (tell, next, stop) = (tell.clone(), &next, &stop);
            scope.spawn(move || {
                let ends = || stop.load(Ordering::Relaxed) || signals.seen().is_some();
                while let Some(number) = missing.get(next.fetch_add(1, Ordering::Relaxed)).filter(|_| !ends())
                {
                    let result = one(plan, store, &plan.point(*number), &ends);
                    // Nobody is gone who could be told: the receiver lives until all threads are done.
                    let _ = tell.send(result);
                }
            });
        }
        drop(tell);
        for result in told {
            match result {
                Ok(true) => done += 1,
                Ok(false) => {}
                Err(error) => {
                    stop.store(true, Ordering::Relaxed);
                    wrong.get_or_insert(error);
                }
            }
            let left = began.elapsed().as_secs_f64() * (missing.len() - done) as f64 / done.max(1) as f64;
            line.draw(&format!("{done} of {} points, {} left", missing.len(), duration(left)));
        }
    });
    line.clear();
    match wrong {
        Some(error) => Err(error),
        None => Ok(done),
    }
}

/// Whether the point was run to its end; only then is there a result.
fn one(plan: &Plan, store: &Store<'_>, point: &Point, ends: &(dyn Fn() -> bool + Sync)) -> Result<bool> {
    match simulate(&plan.experiment_of(point), ends)? {
        Some(result) => store.keep(point, result).map(|()| true),
        None => Ok(false),
    }
}

/// None when it was ended early. What is no system has a result that says why.
fn simulate(experiment: &Experiment, ends: &(dyn Fn() -> bool + Sync)) -> Result<Option<Value>> {
    let mut system = match experiment.system() {
        Ok(system) => system,
        Err(why) => return Ok(Some(json!({ "not_possible": why.to_string() }))),
    };
    system.keep_requests = true;
    let mut observer = Observer::new(&system);
    let tell = |_: Progress| if ends() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let options = Options { progress: Some(&tell), ..Options::default() };
    let (simulation, results) =
        run_with(system, experiment.seed, &options, |emitted| observer.take(&emitted))
            .context(Kind::Other, || "sim sweep".to_string())?;
    if simulation.pending() > 0 {
        return Ok(None);
    }
    let mut latencies = Latencies::default();
    observer.by_op().iter().for_each(|(_, requests)| latencies.merge(&requests.latencies));
    Ok(Some(value(experiment, &results, &latencies)))
}

/// Nothing that depends on the machine: the same point has the same bytes wherever it is run.
fn value(experiment: &Experiment, results: &Results, latencies: &Latencies) -> Value {
    let end = results.end.0.max(1) as f64;
    let busy = || results.servers.iter().map(|server| server.device_busy as f64 / end);
    json!({
        "virtual_ns": results.end.0,
        "requests": results.requests,
        "bytes_read": results.bytes_read,
        "bytes_written": results.bytes_written,
        "bytes_per_second": results.throughput(),
        "response_mean_ns": latencies.mean(),
        "response_p50_ns": latencies.quantile(0.5),
        "response_p90_ns": latencies.quantile(0.9),
        "response_p99_ns": latencies.quantile(0.99),
        "response_p999_ns": latencies.quantile(0.999),
        "response_max_ns": latencies.most(),
        "device_busy_mean": busy().sum::<f64>() / results.servers.len().max(1) as f64,
        "device_busy_most": busy().fold(0.0, f64::max),
        "price": experiment.price(),
        "events": results.report.events,
        "trace": format!("{:016x}", results.trace),
    })
}
