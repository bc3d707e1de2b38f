//! Runs as they are: `{"runs": [{"write": true, "random": true, "bytes": 4096, "clients": 8, "per_second": 1234.5}]}`.

use super::RUNS_MAX;
use super::fio::{RunsError, fail};
use serde_json::{Map, Value};
use tidepool_sim_models::experiment::unknown;
use tidepool_sim_models::storage::{BYTES_MAX, CLIENTS_MAX, Config, Run};

const KEYS: [&str; 5] = ["write", "random", "bytes", "clients", "per_second"];

pub(super) fn read(all: &Map<String, Value>) -> Result<Vec<Run>, RunsError> {
    let runs = all.get("runs").and_then(Value::as_array).ok_or_else(|| fail("'runs' is no list"))?;
    if runs.len() > RUNS_MAX {
        return Err(fail(format!("{} runs; at most {RUNS_MAX}", runs.len())));
    }
    let of = |(at, run): (usize, &Value)| {
        read_one(run).map_err(|why| RunsError { job: None, why: format!("run {}: {why}", at + 1) })
    };
    runs.iter().enumerate().map(of).collect()
}

fn read_one(run: &Value) -> Result<Run, String> {
    let table = run.as_object().ok_or("it is no table")?;
    if let Some(other) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(unknown("key", other, &KEYS));
    }
    let flag = |key: &str| run[key].as_bool().ok_or_else(|| format!("'{key}' is neither true nor false"));
    let count = |key: &str, most: u64| {
        let number = run[key].as_u64().filter(|number| (1..=most).contains(number));
        number
            .map(|number| number as u32)
            .ok_or_else(|| format!("'{key}' is no whole number from 1 to {most}"))
    };
    let rate = run["per_second"].as_f64().filter(|rate| rate.is_finite() && *rate > 0.0);
    let rate = rate.ok_or("'per_second' is no number above 0")?;
    let (bytes, clients) = (count("bytes", BYTES_MAX)?, count("clients", CLIENTS_MAX)?);
    Ok(Run { config: Config { is_write: flag("write")?, is_random: flag("random")?, bytes, clients }, rate })
}
