//! `tidepool jobs pre-stage`: whose data could be there before the start, with reserved nodes and without (INVENTORY D4).

use super::flags::PreStageArgs;
use super::simulate::{Ground, ground, measures_value};
use crate::bench::report::identity;
use crate::exit::Result;
use crate::output::{duration, table};
use serde_json::{Value, json};
use std::fmt::Write;
use std::process::ExitCode;
use tidepool_jobsim::estimate;
use tidepool_jobsim::machine;
use tidepool_jobsim::plan::Allocation;
use tidepool_jobsim::prestage::{Lead, Staged, pre_stage};
use tidepool_jobsim::study::Data;
use tidepool_types::format_size;

const CSV_HEAD: &str = "lead,jobs,staged,staged_share,waited_long_enough,mean_wait_seconds,mean_bounded_slowdown,utilisation,held_node_hours,\
used_node_hours\n";

/// When nodes are reserved, as the command line says it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LeadFlag(pub Lead);

impl std::str::FromStr for LeadFlag {
    type Err = String;

    fn from_str(word: &str) -> std::result::Result<LeadFlag, String> {
        if word == "submission" {
            return Ok(LeadFlag(Lead::AtSubmission));
        }
        let times = word.parse::<f64>().ok().filter(|times| (1.0..=1e6).contains(times));
        let wanted = || format!("'{word}' is neither a number of at least 1 nor 'submission'");
        times.map(|times| LeadFlag(Lead::Times(times))).ok_or_else(wanted)
    }
}

fn name(lead: Lead) -> String {
    match lead {
        Lead::Never => "never".into(),
        Lead::Times(times) => times.to_string(),
        Lead::AtSubmission => "submission".into(),
    }
}

pub fn dispatch(args: &PreStageArgs) -> Result<ExitCode> {
    let ground = ground(&args.machine, true)?;
    let data = args.made_up.data();
    let loads = data.loads(ground.load.tasks.len());
    let takes: Vec<u64> = loads.iter().map(|load| load.took_ms.div_ceil(1000)).collect();
    let leads: Vec<Lead> = std::iter::once(Lead::Never).chain(args.leads.iter().map(|lead| lead.0)).collect();
    let all: Vec<Staged> = super::on_threads(args.threads, &leads, |lead| {
        let jobs = machine::jobs(&ground.load.tasks);
        let mut predictor = estimate::predictor(&args.estimate, &jobs);
        let allocation = ground.allocation.unwrap_or(Allocation::Lowest);
        pre_stage(&ground.machine, &ground.load, &takes, *lead, allocation, &mut *predictor)
    });
    if let Some(path) = &args.csv {
        crate::outfile::put(path, csv(&all))?;
    }
    match args.json {
        true => println!("{}", value(args, &ground, &data, &all)),
        false => print!("{}", text(args, &ground, &all)),
    }
    Ok(ExitCode::SUCCESS)
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn text(args: &PreStageArgs, ground: &Ground, all: &[Staged]) -> String {
    let mut out = format!(
        "{}: {} jobs on {} nodes, planned by {}; data of {} x e^({} normal) at {}/s x e^({} normal), seed {}\n",
        args.machine.log.display(),
        ground.load.tasks.len(),
        ground.machine.nodes,
        args.estimate,
        format_size(args.made_up.bytes),
        args.made_up.bytes_scatter,
        format_size(args.made_up.rate),
        args.made_up.rate_scatter,
        args.made_up.seed
    );
    for (what, count) in ground.repairs() {
        let _ = writeln!(out, "log: {count} {what}");
    }
    let head = [
        "NODES RESERVED",
        "DATA THERE",
        "WAITED LONG ENOUGH",
        "MEAN WAIT",
        "SLOWDOWN",
        "USED",
        "HELD IDLE",
        "HELD, OF TIME USED",
    ];
    let mut rows = vec![head.map(String::from).to_vec()];
    for staged in all {
        let measures = &staged.measures;
        rows.push(vec![
            match staged.lead {
                Lead::Never => "never (bound)".into(),
                Lead::Times(times) => format!("{times} x staging before"),
                Lead::AtSubmission => "at submission".into(),
            },
            percent(share(staged.staged, measures.jobs)),
            percent(share(staged.waited, measures.jobs)),
            duration(measures.wait_mean_s),
            format!("{:.2}", measures.slowdown_mean),
            percent(measures.utilisation),
            format!("{:.0} node-h", staged.held_node_hours),
            percent(staged.held_node_hours / staged.used_node_hours.max(f64::MIN_POSITIVE)),
        ]);
    }
    out + "\n" + &table(&rows)
}

fn csv(all: &[Staged]) -> String {
    let mut out = CSV_HEAD.to_string();
    for staged in all {
        let measures = &staged.measures;
        let _ = writeln!(
            out,
            "{},{},{},{},{},{},{},{},{},{}",
            name(staged.lead),
            measures.jobs,
            staged.staged,
            share(staged.staged, measures.jobs),
            staged.waited,
            measures.wait_mean_s,
            measures.slowdown_mean,
            measures.utilisation,
            staged.held_node_hours,
            staged.used_node_hours
        );
    }
    out
}

fn value(args: &PreStageArgs, ground: &Ground, data: &Data, all: &[Staged]) -> Value {
    let mut value = identity("jobs-pre-stage");
    value["log"] = ground.value(&args.machine);
    value["estimate"] = json!(args.estimate.to_string());
    value["data"] = json!({
        "seed": data.seed,
        "bytes_median": args.made_up.bytes,
        "bytes_scatter": data.bytes_scatter,
        "rate_median": args.made_up.rate,
        "rate_scatter": data.rate_scatter,
    });
    let lead = |staged: &Staged| {
        json!({
            "lead": name(staged.lead),
            "staged": staged.staged,
            "staged_share": share(staged.staged, staged.measures.jobs),
            "waited_long_enough": staged.waited,
            "held_node_hours": staged.held_node_hours,
            "used_node_hours": staged.used_node_hours,
            "result": measures_value(&staged.measures),
        })
    };
    value["leads"] = all.iter().map(lead).collect();
    value
}
