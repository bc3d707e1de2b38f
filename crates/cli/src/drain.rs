//! `tidepool drain`: finishes what a killed run left.

use crate::exit::{Failure, Kind, Result};
use crate::flags::{DrainArgs, StageShape};
use crate::signals::Signals;
use crate::{instance, pool, staging};
use serde_json::json;
use std::process::ExitCode;
use std::sync::Arc;
use tidepool_types::format_size;

pub fn drain(args: &DrainArgs) -> Result<ExitCode> {
    let instance = instance::find(&args.choice)?;
    let record = instance.run_record()?.ok_or_else(|| {
        let text =
            format!("pool '{}' was not started by 'tidepool run'; copy with 'tidepool cp'", instance.name);
        Failure::new(Kind::Usage, text)
    })?;
    if record.is_going_on() {
        let text = format!("the run of pool '{}' is going on (process {})", instance.name, record.pid);
        return Err(Failure::new(Kind::Other, text));
    }
    if args.dry_run {
        for out in &record.outs {
            println!(
                "would copy {} of pool '{}' to {}",
                out.source,
                instance.name,
                out.destination.display()
            );
        }
        return Ok(ExitCode::SUCCESS);
    }
    staging::keep_back(args.gentle)?;
    let signals = Signals::watch()?;
    let client = Arc::new(instance.client()?);
    let mut copied = Vec::new();
    for (number, out) in record.outs.iter().enumerate() {
        let journal = instance.dir.join(format!("out-{number}.journal"));
        let ordered = out.ordered || args.ordered;
        let shape = StageShape { bwlimit: args.bwlimit, ..staging::results(ordered) };
        let summary = staging::stage_out(&client, &out.source, &out.destination, &shape, &journal, &signals)?;
        if !args.json {
            println!(
                "{}: {} files, {}, of which {} were moved now",
                out.destination.display(),
                summary.files,
                format_size(summary.bytes),
                format_size(summary.bytes_copied)
            );
        }
        copied.push(json!({
            "destination": out.destination, "files": summary.files, "bytes": summary.bytes,
            "bytes_copied": summary.bytes_copied, "complete": summary.complete,
        }));
    }
    drop(client);
    if !args.no_stop {
        pool::stop_instance(&instance, false)?;
    }
    if args.json {
        println!("{}", json!({"pool": instance.name, "outs": copied, "stopped": !args.no_stop}));
    }
    Ok(ExitCode::SUCCESS)
}
