//! `tidepool jobs simulate`: a log on a simulated scheduler.

use super::files::read;
use super::flags::{BackfillFlag, EarlyFlag, MachineArgs, OrderFlag, SimulateArgs};
use super::page_of;
use crate::bench::report::identity;
use crate::exit::{Failure, Kind, Result};
use crate::output::{duration, table};
use clap::ValueEnum;
use serde_json::{Value, json};
use std::fmt::Write;
use std::process::ExitCode;
use std::time::Instant;
use tidepool_jobsim::Log;
use tidepool_jobsim::engine::{Early, Order, Policy, Setup};
use tidepool_jobsim::estimate;
use tidepool_jobsim::machine::{self, FILE_BYTES_MAX, Fate, Load, Machine};
use tidepool_jobsim::measure::{Classes, Measures, measure};
use tidepool_jobsim::plan::set::runs;
use tidepool_jobsim::plan::{Allocation, NodeSet};

const CSV_HEAD: &str = "job,submit_seconds,start_seconds,end_seconds,wait_seconds,request_seconds,estimate_seconds,corrections,\
processors,nodes,partition,known_ahead_seconds,node_list\n";

/// A log and the machine that it runs on.
pub struct Ground {
    pub log: Log,
    pub machine: Machine,
    pub load: Load,
    pub allocation: Option<Allocation>,
}

pub fn dispatch(args: &SimulateArgs) -> Result<ExitCode> {
    let mut setup = args.setup().map_err(|wrong| Failure::new(Kind::Usage, wrong))?;
    let ground = ground(&args.machine, args.by_node())?;
    setup.early = early(args.early, setup.policy, ground.allocation.is_some() || ground.machine.is_divided());
    setup.blocks = ground.blocks()?;
    let jobs = machine::jobs(&ground.load.tasks);
    let mut predictor = estimate::predictor(&args.estimate, &jobs);
    let begun = Instant::now();
    let fates = ground.machine.run(&ground.load, &setup, ground.allocation, &mut *predictor);
    let seconds = begun.elapsed().as_secs_f64();
    let measures = measure(&ground.load.tasks, &fates, ground.machine.nodes);
    if let Some(path) = &args.csv {
        let text = csv(&ground, &fates);
        crate::outfile::put(path, text)?;
    }
    match args.json {
        true => println!("{}", value(args, &ground, &setup, &measures, seconds)),
        false => print!("{}", text(args, &ground, &measures)),
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads a log and its machine. By node, each node is one of the log's header; else each processor by itself.
pub fn ground(args: &MachineArgs, by_node: bool) -> Result<Ground> {
    let log = read(&args.log, args.jobs, args.format)?;
    let mut machine = match &args.machine {
        Some(path) => machine_of(path)?,
        None => Machine::default(),
    };
    machine.nodes = args.nodes.unwrap_or(machine.nodes);
    machine.processors_per_node = args.per_node.unwrap_or(machine.processors_per_node);
    let wrong = |error: machine::MachineError| {
        let hint = match error.missing() {
            Some(machine::Size::Nodes) => "; say --nodes",
            Some(machine::Size::PerNode) => "; say --per-node",
            None => "",
        };
        Failure::new(Kind::Usage, format!("{}: {error}{hint}", args.log.display()))
    };
    let machine = machine.complete(&log, by_node).map_err(wrong)?;
    let allocation = match args.allocation {
        Some(flag) => Some(flag.allocation(&machine).map_err(wrong)?),
        None if by_node => Some(Allocation::Lowest),
        None => None,
    };
    if (allocation.is_some() || machine.is_divided()) && machine.nodes > machine::NODES_MAX {
        return Err(wrong(machine::MachineError::TooManyNodes { nodes: machine.nodes }));
    }
    let load = machine.load(&log, allocation).map_err(wrong)?;
    Ok(Ground { log, machine, load, allocation })
}

impl Ground {
    pub fn blocks(&self) -> Result<Vec<(u64, tidepool_jobsim::plan::Block)>> {
        self.machine.blocks(&self.load.tasks).map_err(|error| Failure::new(Kind::Usage, error.to_string()))
    }

    /// What was repaired or left out, in words, with counts above 0.
    pub fn repairs(&self) -> Vec<(&'static str, u64)> {
        let repairs = self.log.repairs.list().into_iter();
        let all = repairs.chain([("jobs larger than the machine, left out", self.load.too_large)]);
        all.filter(|(_, count)| *count > 0).collect()
    }

    pub fn value(&self, args: &MachineArgs) -> Value {
        let repairs = self.repairs();
        json!({
            "path": args.log,
            "nodes": self.machine.nodes,
            "processors_per_node": self.machine.processors_per_node,
            "too_large": self.load.too_large,
            "repairs": repairs.iter().map(|(what, count)| json!({ "what": what, "count": count })).collect::<Vec<_>>(),
        })
    }
}

pub fn machine_of(path: &std::path::Path) -> Result<Machine> {
    let name = || path.display().to_string();
    let text = page_of(path, FILE_BYTES_MAX)?;
    machine::read(&text).map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(|problem| format!("{}: {problem}", name())).collect();
        Failure::new(Kind::Usage, lines.join("\n"))
    })
}

pub fn early(flag: Option<EarlyFlag>, policy: Policy, named: bool) -> Early {
    flag.map_or_else(|| Early::usual(policy, named), EarlyFlag::early)
}

/// The rule, for reports.
pub fn rule(early: Early, policy: Policy) -> &'static str {
    match (policy, early) {
        (Policy::Easy, _) => "the first of the queue is planned anew",
        (_, Early::Keep) => "plans stay",
        (_, Early::Nearer(Order::Queue)) => "each job nearer beside all others, in the order of the queue",
        (_, Early::Nearer(Order::Start)) => {
            "each job nearer beside all others, in the order of planned starts"
        }
        (_, Early::Anew(Order::Queue)) => "all plans anew, in the order of the queue",
        (_, Early::Anew(Order::Start)) => "all plans anew, in the order of planned starts",
    }
}

pub fn measures_value(measures: &Measures) -> Value {
    let classes = measures.classes.map(|classes| {
        json!({
            "counts": classes.counts(),
            "shares": classes.shares(),
            "names": Classes::NAMES,
        })
    });
    json!({
        "jobs": measures.jobs,
        "mean_wait_seconds": measures.wait_mean_s,
        "median_wait_seconds": measures.wait_median_s,
        "p90_wait_seconds": measures.wait_p90_s,
        "longest_wait_seconds": measures.wait_max_s,
        "mean_bounded_slowdown": measures.slowdown_mean,
        "utilisation": measures.utilisation,
        "makespan_seconds": measures.makespan_s,
        "idle_node_hours": measures.idle_node_hours,
        "outlived_predictions": measures.outlived,
        "known_ahead": classes,
    })
}

fn value(args: &SimulateArgs, ground: &Ground, setup: &Setup, measures: &Measures, seconds: f64) -> Value {
    let mut all = identity("jobs-simulate");
    all["log"] = ground.value(&args.machine);
    all["scheduler"] = json!({
        "policy": setup.policy.name(),
        "estimate": args.estimate.to_string(),
        "order": word(args.order.unwrap_or(OrderFlag::Submission)),
        "backfill": word(args.backfill.unwrap_or(BackfillFlag::Queue)),
        "patience_seconds": setup.patience_s,
        "after_an_early_end": rule(setup.early, setup.policy),
        "kills_at_request": setup.kills,
        "nodes_told_apart": measures.classes.is_some(),
    });
    all["result"] = measures_value(measures);
    all["simulation_seconds"] = json!(seconds);
    all
}

/// Of the command line.
fn word(flag: impl ValueEnum) -> String {
    flag.to_possible_value().expect("none is hidden").get_name().to_string()
}

fn text(args: &SimulateArgs, ground: &Ground, measures: &Measures) -> String {
    let Machine { nodes, processors_per_node, .. } = ground.machine;
    let machine = match processors_per_node {
        1 => format!("{nodes}"),
        per_node => format!("{nodes} nodes of {per_node}"),
    };
    let policy = args.policy.policy();
    let mut out = format!(
        "{}: {} jobs on {machine}, {}, planned by {}\n",
        args.machine.log.display(),
        measures.jobs,
        policy.name(),
        args.estimate
    );
    for (what, count) in ground.repairs() {
        let _ = writeln!(out, "log: {count} {what}");
    }
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let mut rows = vec![
        vec!["MEAN WAIT".to_string(), duration(measures.wait_mean_s)],
        vec![
            "MEDIAN, 90 %, LONGEST".into(),
            [measures.wait_median_s, measures.wait_p90_s, measures.wait_max_s].map(duration).join(", "),
        ],
        vec!["MEAN BOUNDED SLOWDOWN".into(), format!("{:.2}", measures.slowdown_mean)],
        vec!["MACHINE USED".into(), percent(measures.utilisation)],
        vec!["OUTLIVED THEIR PREDICTION".into(), format!("{}", measures.outlived)],
    ];
    for (name, share) in Classes::NAMES.iter().zip(measures.classes.iter().flat_map(Classes::shares)) {
        rows.push(vec![format!("NODES KNOWN {}", name.to_uppercase()), percent(share)]);
    }
    out + "\n" + &table(&rows)
}

fn csv(ground: &Ground, fates: &[Fate]) -> String {
    let mut out = CSV_HEAD.to_string();
    for (task, fate) in ground.load.tasks.iter().zip(fates) {
        let partition = task.partition.checked_sub(1).map_or("", |of| &ground.machine.partitions[of].name);
        let ahead = fate.known_ahead_s.map(|seconds| seconds.to_string()).unwrap_or_default();
        let _ = writeln!(
            out,
            "{},{},{},{},{},{},{},{},{},{},{},{ahead},{}",
            task.job.number,
            task.job.submit_s,
            fate.start_s,
            fate.end_s,
            fate.start_s - task.job.submit_s,
            task.job.request_s,
            fate.estimate_s,
            fate.corrections,
            task.job.processors,
            task.nodes,
            partition.replace([',', '"', '\n'], " "),
            fate.nodes.as_ref().map(node_list).unwrap_or_default()
        );
    }
    out
}

/// `0-3 7`.
fn node_list(nodes: &NodeSet) -> String {
    let ranges = runs(nodes.words()).map(|(first, end)| match end - first {
        1 => first.to_string(),
        _ => format!("{first}-{}", end - 1),
    });
    ranges.collect::<Vec<_>>().join(" ")
}
