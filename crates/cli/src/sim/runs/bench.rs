//! Raw files of `tidepool bench io`.

use super::super::storage_flags::SideFlag;
use super::RUNS_MAX;
use super::fio::{RunsError, fail, shown};
use serde_json::{Map, Value};
use tidepool_sim_models::storage::{BYTES_MAX, CLIENTS_MAX, Config, Run};

/// The runs of one side. Writes end when their fsync has returned.
pub(super) fn read(all: &Map<String, Value>, side: SideFlag) -> Result<Vec<Run>, RunsError> {
    if all.get("bench").and_then(Value::as_str) != Some("io") {
        return Err(fail("it is of another benchmark than 'tidepool bench io'"));
    }
    let clients = all.get("procs").and_then(Value::as_u64).filter(|n| (1..=CLIENTS_MAX).contains(n));
    let clients =
        clients.ok_or_else(|| fail(format!("'procs' is no number from 1 to {CLIENTS_MAX}")))? as u32;
    let samples = all.get("samples").and_then(Value::as_array).ok_or_else(|| fail("'samples' is no list"))?;
    if samples.len() > RUNS_MAX {
        return Err(fail(format!("{} samples; at most {RUNS_MAX}", samples.len())));
    }
    let mut runs = Vec::new();
    for sample in samples {
        let case = sample["case"].as_str().unwrap_or("without a name");
        let wrong = |why: &str| RunsError { job: Some(case.to_string()), why: why.into() };
        let measured = &sample["measured"];
        let is_write = match measured["phase"].as_str() {
            Some("write") => true,
            Some("read") => false,
            _ => continue,
        };
        if sample["side"].as_str() != Some(side.name()) {
            continue;
        }
        let is_random = match case {
            _ if case.contains(", random,") => true,
            _ if case.contains(", sequential,") => false,
            _ => return Err(wrong("it is neither sequential nor random")),
        };
        let number = |key: &str| measured[key].as_f64().filter(|n| n.is_finite() && *n > 0.0);
        let seconds = number(if is_write { "synced_seconds" } else { "seconds" });
        let (Some(bytes), Some(operations), Some(seconds)) = (number("bytes"), number("operations"), seconds)
        else {
            return Err(wrong("bytes, operations and seconds have to be above 0"));
        };
        let length = (bytes / operations).round();
        if !(1.0..=BYTES_MAX as f64).contains(&length) {
            return Err(wrong(&format!(
                "requests of {} bytes; 1 to {BYTES_MAX}",
                shown(&length.to_string())
            )));
        }
        let config = Config { is_write, is_random, bytes: length as u32, clients };
        runs.push(Run { config, rate: operations / seconds });
    }
    Ok(runs)
}
