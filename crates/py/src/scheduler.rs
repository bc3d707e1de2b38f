//! Logs on a simulated scheduler, for `tidepool.jobs.simulate`.

use crate::jobs::{Columns, in_order};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use tidepool_joblog::{Job, Log, PROCESSORS_MAX, SECONDS_MAX};
use tidepool_jobsim::engine::{Backfill, Correction, Early, Policy, Precedence, Setup};
use tidepool_jobsim::estimate::{Estimate, predictor};
use tidepool_jobsim::machine::{self, Fate, Load, Machine, MachineError, Size};
use tidepool_jobsim::measure::{Classes, Measures, measure};
use tidepool_jobsim::plan::Allocation;

fn wrong(text: impl ToString) -> PyErr {
    PyValueError::new_err(text.to_string())
}

/// The machine's size is told by arguments here.
fn wrong_machine(error: MachineError) -> PyErr {
    match error.missing() {
        Some(Size::Nodes) => wrong(format!("{error}; say nodes=")),
        Some(Size::PerNode) => wrong(format!("{error}; say per_node=")),
        None => wrong(error),
    }
}

/// One of these words.
fn one_of<T: Copy>(what: &str, word: &str, all: &[(&str, T)]) -> PyResult<T> {
    let found = all.iter().find(|one| one.0 == word).map(|one| one.1);
    found.ok_or_else(|| {
        let known: Vec<&str> = all.iter().map(|one| one.0).collect();
        wrong(format!("{what}: '{word}' is none of {}", known.join(", ")))
    })
}

/// How nodes are told from each other, before it is known how many a switch has.
#[derive(Clone, Copy)]
enum Choice {
    Any,
    Contiguous,
    Switch,
}

const CHOICES: [(&str, Choice); 3] =
    [("any", Choice::Any), ("contiguous", Choice::Contiguous), ("switch", Choice::Switch)];
const BACKFILLS: [(&str, Backfill); 3] =
    [("queue", Backfill::Queue), ("shortest", Backfill::Shortest), ("expected", Backfill::Expected)];
const ORDERS: [(&str, Precedence); 2] =
    [("submission", Precedence::Submission), ("expected", Precedence::Expected)];
const CORRECTIONS: [(&str, Correction); 4] = [
    ("steps", Correction::Steps),
    ("double", Correction::Double),
    ("request", Correction::Request),
    ("expected", Correction::Expected),
];

/// What is asked for; words as those of `tidepool jobs simulate`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Asked {
    policy: String,
    estimate: String,
    backfill: String,
    order: String,
    patience_s: Option<u64>,
    correction: Option<String>,
    allocation: Option<String>,
    /// Of a machine's file (format 31).
    machine: Option<String>,
    nodes: Option<u32>,
    per_node: Option<u32>,
    machine_processors: Option<u32>,
    kills: bool,
}

/// What became of a log's jobs, as columns, and measures of all. `place` is a job's row.
#[pyfunction]
pub fn simulate<'py>(
    py: Python<'py>,
    columns: &Bound<'py, PyDict>,
    asked: Asked,
) -> PyResult<Bound<'py, PyDict>> {
    let log = log(&Columns::new(columns)?, asked.machine_processors)?;
    let run = py.detach(|| run(&log, &asked))?;
    let dict = PyDict::new(py);
    let put = |name: &str, value: &dyn Fn(usize) -> Option<u64>| {
        let number = |at| value(at).map_or(-1, |value| value as i64).to_le_bytes();
        let column: Vec<u8> = (0..run.fates.len()).flat_map(number).collect();
        dict.set_item(name, PyBytes::new(py, &column))
    };
    put("place", &|at| Some(run.load.tasks[at].job.number))?;
    put("start_s", &|at| Some(run.fates[at].start_s))?;
    put("end_s", &|at| Some(run.fates[at].end_s))?;
    put("estimate_s", &|at| Some(run.fates[at].estimate_s))?;
    put("corrections", &|at| Some(run.fates[at].corrections.into()))?;
    put("nodes", &|at| Some(run.load.tasks[at].nodes.into()))?;
    put("known_ahead_s", &|at| run.fates[at].known_ahead_s)?;
    dict.set_item("too_large", run.load.too_large)?;
    dict.set_item("measures", told(py, &run.measures)?)?;
    Ok(dict)
}

struct Ran {
    load: Load,
    fates: Vec<Fate>,
    measures: Measures,
}

/// Jobs numbered by their rows.
fn log(columns: &Columns<'_>, processors: Option<u32>) -> PyResult<Log> {
    let (submits, runs) = (columns.numbers("submit_s")?, columns.numbers("run_s")?);
    let requests = columns.numbers("request_s")?;
    let (given, requested) = (columns.marks("given_processors")?, columns.marks("processors")?);
    let (users, groups) = (columns.marks("user")?, columns.marks("group")?);
    let (executables, queues) = (columns.marks("executable")?, columns.marks("queue")?);
    let partitions = columns.marks("partition")?;
    let seconds = |name: &str, at: usize, value: i64, least: u64| {
        let found = u64::try_from(value).ok().filter(|value| (least..=SECONDS_MAX).contains(value));
        found.ok_or_else(|| wrong(format!("row {at}: {name} is {value}, not from {least} to {SECONDS_MAX}")))
    };
    let job = |at: usize| -> PyResult<Job> {
        let ran_s = seconds("run_s", at, runs[at], 1)?;
        let asked = requests[at] > 0;
        let request_s = if asked { seconds("request_s", at, requests[at], 1)? } else { ran_s };
        let processors = given[at].or(requested[at]).filter(|count| (1..=PROCESSORS_MAX).contains(count));
        Ok(Job {
            number: at as u64,
            submit_s: seconds("submit_s", at, submits[at], 0)?,
            run_s: ran_s.min(request_s),
            overran_s: ran_s.saturating_sub(request_s),
            request_s,
            asked,
            processors: processors.ok_or_else(|| wrong(format!("row {at}: it has no processors")))?,
            requested_processors: requested[at],
            user: users[at],
            group: groups[at],
            executable: executables[at],
            queue: queues[at],
            partition: partitions[at],
            ..Job::default()
        })
    };
    let jobs = (0..submits.len()).map(job).collect::<PyResult<Vec<Job>>>()?;
    in_order(jobs.iter().map(|job| job.submit_s))?;
    Ok(Log { jobs, processors, ..Log::default() })
}

fn run(log: &Log, asked: &Asked) -> PyResult<Ran> {
    let policies = Policy::ALL.map(|policy| (policy.name(), policy));
    let policy = one_of("policy", &asked.policy, &policies)?;
    let backfill = one_of("backfill", &asked.backfill, &BACKFILLS)?;
    let precedence = one_of("order", &asked.order, &ORDERS)?;
    if policy != Policy::Easy && backfill != Backfill::Queue {
        return Err(wrong(format!("backfill: '{}' is for policy 'easy'", asked.backfill)));
    }
    if policy != Policy::Easy && precedence != Precedence::Submission {
        return Err(wrong(format!("order: '{}' is for policy 'easy'", asked.order)));
    }
    if asked.patience_s == Some(0) {
        return Err(wrong("patience_s: 0 is less than a second"));
    }
    let correction = match &asked.correction {
        Some(word) => one_of("correction", word, &CORRECTIONS)?,
        None => Correction::usual(backfill),
    };
    let choice = asked.allocation.as_ref().map(|word| one_of("allocation", word, &CHOICES)).transpose()?;
    let estimate: Estimate = asked.estimate.parse().map_err(|error| wrong(format!("estimate: {error}")))?;
    let mut machine = machine_of(asked)?;
    machine = machine.complete(log, false).map_err(wrong_machine)?;
    let allocation = match choice {
        None => None,
        Some(Choice::Any) => Some(Allocation::Lowest),
        Some(Choice::Contiguous) => Some(Allocation::Contiguous),
        Some(Choice::Switch) => Some(machine.by_switch().map_err(wrong_machine)?),
    };
    let named = allocation.is_some() || machine.is_divided();
    if named && machine.nodes > machine::NODES_MAX {
        return Err(wrong_machine(MachineError::TooManyNodes { nodes: machine.nodes }));
    }
    let load = machine.load(log, allocation).map_err(wrong_machine)?;
    let early = Early::usual(policy, named);
    let mut setup =
        Setup { early, backfill, precedence, correction, kills: asked.kills, ..Setup::new(policy) };
    setup.patience_s = asked.patience_s.unwrap_or(setup.patience_s);
    setup.blocks = machine.blocks(&load.tasks).map_err(wrong_machine)?;
    let mut predictor = predictor(&estimate, &machine::jobs(&load.tasks));
    let fates = machine.run(&load, &setup, allocation, &mut *predictor);
    let measures = measure(&load.tasks, &fates, machine.nodes);
    Ok(Ran { load, fates, measures })
}

fn machine_of(asked: &Asked) -> PyResult<Machine> {
    let mut machine = match &asked.machine {
        None => Machine::default(),
        Some(text) => machine::read(text).map_err(|problems| {
            let lines: Vec<String> = problems.iter().map(|problem| format!("machine: {problem}")).collect();
            wrong(lines.join("\n"))
        })?,
    };
    machine.nodes = asked.nodes.unwrap_or(machine.nodes);
    machine.processors_per_node = asked.per_node.unwrap_or(machine.processors_per_node);
    Ok(machine)
}

fn told<'py>(py: Python<'py>, measures: &Measures) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("jobs", measures.jobs)?;
    dict.set_item("mean_wait_s", measures.wait_mean_s)?;
    dict.set_item("median_wait_s", measures.wait_median_s)?;
    dict.set_item("p90_wait_s", measures.wait_p90_s)?;
    dict.set_item("longest_wait_s", measures.wait_max_s)?;
    dict.set_item("mean_bounded_slowdown", measures.slowdown_mean)?;
    dict.set_item("utilisation", measures.utilisation)?;
    dict.set_item("makespan_s", measures.makespan_s)?;
    dict.set_item("idle_node_hours", measures.idle_node_hours)?;
    dict.set_item("outlived_predictions", measures.outlived)?;
    let shares = measures.classes.map(|classes| Classes::NAMES.into_iter().zip(classes.shares()));
    dict.set_item("known_ahead", shares.map(|shares| shares.collect::<Vec<_>>()))?;
    Ok(dict)
}
