//! `tidepool plan`: how a pool would be made for a job, why, and what it would cost.

pub mod flags;
mod gather;
mod script;
mod setup;
pub mod slurm;

pub use setup::{Setup, Staged};

use crate::exit::{Kind, Result};
use crate::output::{duration, table};
use crate::staging;
use flags::{Amount, PlanArgs};
use serde_json::{Value, json};
use std::process::ExitCode;
use tidepool_plan::{Cost, Plan};
use tidepool_types::format_size;

pub fn plan(args: &PlanArgs) -> Result<ExitCode> {
    if let Some(script) = &args.script {
        return script::plan(args, script);
    }
    let staged =
        Staged { stage_in: bytes(args.stage_in.as_ref())?, stage_out: bytes(args.stage_out.as_ref())? };
    let mut shape = args.shape.clone();
    shape.job.walltime = shape.job.walltime.or_else(slurm::time_limit);
    let setup = Setup::choose(&shape, staged, None)?;
    if args.json {
        println!("{:#}", as_json(&setup));
    } else {
        print!("{}", text(&setup));
    }
    let fits = setup.plan.room.fits() != Some(false);
    Ok(if fits { ExitCode::SUCCESS } else { ExitCode::from(Kind::PlanProblems.code()) })
}

fn as_json(setup: &Setup) -> Value {
    let mut told = setup.plan.json();
    told["nodes"] = json!(setup.layout.place.names().unwrap_or_default());
    told["daemons"] = json!(setup.layout.daemons());
    told
}

fn bytes(amount: Option<&Amount>) -> Result<Option<u64>> {
    match amount {
        None => Ok(None),
        Some(Amount::Bytes(bytes)) => Ok(Some(*bytes)),
        Some(Amount::Of(path)) => Ok(Some(staging::measure_local(path)?.bytes)),
    }
}

fn text(setup: &Setup) -> String {
    format!("{}\n\n{}", setup.layout.describe(), choices(setup))
}

/// What was chosen, and what it costs.
fn choices(setup: &Setup) -> String {
    let plan = &setup.plan;
    let mut rows = vec![["choice", "value", "otherwise", "rests on", "because"].map(String::from).to_vec()];
    for row in plan.rows() {
        let basis = format!("{:?}", row.basis).to_lowercase();
        rows.push(vec![row.what.into(), row.value, row.flag.into(), basis, row.why]);
    }
    let mut text = format!("{}\n{}", table(&rows), room(plan));
    for (what, cost) in [
        ("start and stop", &plan.costs.start),
        ("stage-in", &plan.costs.stage_in),
        ("stage-out", &plan.costs.stage_out),
    ] {
        text.push_str(&cost_line(what, cost));
    }
    if let Some(share) = plan.costs.share {
        let least = if plan.costs.partial { "at least " } else { "" };
        text.push_str(&format!("of the wall time: {least}{:.2} %\n", share * 100.0));
    }
    plan.warnings.iter().for_each(|warning| text.push_str(&format!("warning: {warning}\n")));
    text
}

fn room(plan: &Plan) -> String {
    let available = plan.room.available.map_or("not known".into(), format_size);
    match plan.room.needed {
        Some(needed) => format!("room: {available}, needed: {}\n", format_size(needed)),
        None => format!("room: {available}\n"),
    }
}

fn cost_line(what: &str, cost: &Cost) -> String {
    let basis = format!("{:?}", cost.basis).to_lowercase();
    match cost.seconds {
        Some(seconds) => format!("{what}: {} ({basis}: {})\n", duration(seconds), cost.why),
        None => format!("{what}: not known ({})\n", cost.why),
    }
}
