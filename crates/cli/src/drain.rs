//! `tidepool drain`: finishes what a killed run left, as far as it had come:
//!
//! ```text
//! stage-in    the program never ran: nothing is a result, so nothing is copied, and the pool stays
//! program     killed beside its program: what is there is copied, and nobody knows whether it is all
//! stage-out   what the program left is copied; of one that failed, what it has not made is not missed
//! done        only the pool was left to be stopped
//! ```

use crate::exit::{Failure, Kind, Result};
use crate::flags::{DrainArgs, StageShape};
use crate::instance::{Instance, OutRecord, RunPhase, RunRecord};
use crate::signals::Signals;
use crate::{instance, pool, staging};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::Arc;
use tidepool_client::Client;
use tidepool_types::format_size;

pub fn drain(args: &DrainArgs) -> Result<ExitCode> {
    let instance = instance::find(&args.choice)?;
    let record = record(&instance)?;
    if args.dry_run {
        let outs = if record.phase == RunPhase::Done { &[][..] } else { &record.outs };
        outs.iter().for_each(|out| would_copy(&instance, out));
        return Ok(ExitCode::SUCCESS);
    }
    staging::keep_back(args.gentle)?;
    let signals = Signals::watch()?;
    let copied =
        if record.phase == RunPhase::Done { Vec::new() } else { copy(&instance, &record, args, &signals)? };
    if !args.no_stop {
        pool::stop_instance(&instance, false)?;
    }
    if args.json {
        println!("{}", json!({"pool": instance.name, "outs": copied, "stopped": !args.no_stop}));
    } else if record.phase == RunPhase::Done {
        println!("the results of pool '{}' had all been copied", instance.name);
    }
    Ok(ExitCode::SUCCESS)
}

/// What a run that is over, and had started its program, has left to do.
fn record(instance: &Instance) -> Result<RunRecord> {
    let name = &instance.name;
    let record = instance.run_record()?.ok_or_else(|| {
        let text = format!("pool '{name}' was not started by 'tidepool run'; copy with 'tidepool cp'");
        Failure::new(Kind::Usage, text)
    })?;
    if record.is_going_on() {
        let text = format!("the run of pool '{name}' is going on (process {})", record.pid);
        return Err(Failure::new(Kind::Other, text));
    }
    if record.phase == RunPhase::StageIn {
        let text = format!(
            "the program of pool '{name}' was never started: its run was killed while input was staged, so there are no results and nothing is copied; 'tidepool pool stop --pool {name}' removes the pool, 'tidepool cp --pool {name}' copies what is in it"
        );
        return Err(Failure::new(Kind::StageIn, text));
    }
    Ok(record)
}

fn would_copy(instance: &Instance, out: &OutRecord) {
    println!("would copy {} of pool '{}' to {}", out.source, instance.name, out.destination.display());
}

fn copy(instance: &Instance, record: &RunRecord, args: &DrainArgs, signals: &Signals) -> Result<Vec<Value>> {
    if record.phase == RunPhase::Program {
        eprintln!(
            "tidepool: the run of pool '{}' was killed while its program ran: what is there is copied, whole or not",
            instance.name
        );
    }
    let client = Arc::new(instance.client()?);
    let failed = record.program.is_some_and(|code| code != 0);
    let mut copied = Vec::new();
    for (number, out) in record.outs.iter().enumerate() {
        if !staging::is_in_pool(&client, &out.source)? {
            if failed {
                eprintln!("tidepool: {} is not there: the program failed before it made it", out.source);
                continue;
            }
            return Err(missing(instance, out));
        }
        copied.push(copy_one(instance, &client, (number, out), args, signals)?);
    }
    Ok(copied)
}

fn missing(instance: &Instance, out: &OutRecord) -> Failure {
    let (name, source) = (&instance.name, &out.source);
    let text = format!(
        "{source} is not in pool '{name}': 'tidepool ls --pool {name}' shows what is, 'tidepool cp --pool {name}' copies it, 'tidepool pool stop --pool {name}' ends the pool"
    );
    Failure::new(Kind::StageOut, text)
}

fn copy_one(
    instance: &Instance,
    client: &Arc<Client>,
    (number, out): (usize, &OutRecord),
    args: &DrainArgs,
    signals: &Signals,
) -> Result<Value> {
    let journal = instance.dir.join(format!("out-{number}.journal"));
    let ordered = out.ordered || args.ordered;
    let shape = StageShape { bwlimit: args.bwlimit, ..staging::results(ordered) };
    let summary = staging::stage_out(client, &out.source, &out.destination, &shape, &journal, signals)?;
    if !args.json {
        println!(
            "{}: {} files, {}, of which {} were moved now",
            out.destination.display(),
            summary.files,
            format_size(summary.bytes),
            format_size(summary.bytes_copied)
        );
    }
    Ok(json!({
        "destination": out.destination, "files": summary.files, "bytes": summary.bytes,
        "bytes_copied": summary.bytes_copied, "complete": summary.complete,
    }))
}
