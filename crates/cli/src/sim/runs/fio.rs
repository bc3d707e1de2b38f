//! What fio writes with `--output-format=json`, as far as it is needed here.

use super::RUNS_MAX;
use serde_json::{Map, Value};
use std::fmt;
use tidepool_sim_models::storage::{BYTES_MAX, CLIENTS_MAX, Config, Run};

/// Why a file cannot be used: which job, and what is wrong with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunsError {
    pub job: Option<String>,
    pub why: String,
}

impl fmt::Display for RunsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.job {
            Some(job) => write!(f, "job '{}': {}", shown(job), self.why),
            None => f.write_str(&self.why),
        }
    }
}

impl std::error::Error for RunsError {}

/// Most characters of somebody else's text in a message.
const SHOWN_MAX: usize = 40;

pub(super) fn shown(text: &str) -> String {
    text.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect()
}

pub(super) fn fail(why: impl Into<String>) -> RunsError {
    RunsError { job: None, why: why.into() }
}

/// An entry of `jobs`: a thread, or all of a group with `group_reporting`.
struct Entry {
    group: u64,
    name: String,
    config: Config,
    rate: f64,
}

/// The runs of a file's `jobs`.
pub(super) fn read(all: &Map<String, Value>) -> Result<Vec<Run>, RunsError> {
    let empty = Map::new();
    let global = all.get("global options").and_then(Value::as_object).unwrap_or(&empty);
    let jobs = all.get("jobs").and_then(Value::as_array).ok_or_else(|| fail("'jobs' is no list"))?;
    if jobs.len() > RUNS_MAX {
        return Err(fail(format!("{} jobs; at most {RUNS_MAX}", jobs.len())));
    }
    let mut entries: Vec<Entry> = Vec::new();
    for job in jobs {
        let name = job["jobname"].as_str().unwrap_or("without a name");
        let entry = entry(job, global, name);
        let entry = entry.map_err(|why| RunsError { job: Some(name.to_string()), why })?;
        // Without group_reporting each thread has an entry of its own.
        match entries.last_mut().filter(|last| last.group == entry.group && last.name == entry.name) {
            Some(last) => last.rate += entry.rate,
            None => entries.push(entry),
        }
    }
    Ok(entries.into_iter().map(|entry| Run { config: entry.config, rate: entry.rate }).collect())
}

fn entry(job: &Value, global: &Map<String, Value>, name: &str) -> Result<Entry, String> {
    let own = job["job options"].as_object();
    let option = |key: &str| {
        let value = own.and_then(|own| own.get(key)).or_else(|| global.get(key));
        value.and_then(Value::as_str)
    };
    if let Some(error) = job["error"].as_i64().filter(|error| *error != 0) {
        return Err(format!("it ended with error {error}"));
    }
    if option("direct") != Some("1") {
        return Err("it was not measured with direct=1, so caches are in it".into());
    }
    let pattern = option("rw").or_else(|| option("readwrite")).unwrap_or("read");
    let (is_write, is_random) = match pattern {
        "read" => (false, false),
        "write" => (true, false),
        "randread" => (false, true),
        "randwrite" => (true, true),
        other => {
            return Err(format!("rw={} is none of read, write, randread, randwrite", shown(other)));
        }
    };
    let bytes = size(option("bs").or_else(|| option("blocksize")).unwrap_or("4k"))?;
    let count = |key: &str| match option(key) {
        None => Ok(1),
        Some(text) => text.parse::<u64>().map_err(|_| format!("{key}={} is no number", shown(text))),
    };
    // An engine that waits for each request has one under way, whatever the depth.
    let waits = option("ioengine")
        .is_none_or(|engine| ["psync", "sync", "pvsync", "pvsync2", "vsync"].contains(&engine));
    let depth = if waits { 1 } else { count("iodepth")? };
    let clients = count("numjobs")?.checked_mul(depth).filter(|n| (1..=CLIENTS_MAX).contains(n));
    let clients = clients.ok_or_else(|| format!("numjobs times iodepth is not 1 to {CLIENTS_MAX}"))? as u32;
    let side = &job[if is_write { "write" } else { "read" }];
    let rate = side["iops"].as_f64().filter(|rate| rate.is_finite() && *rate > 0.0);
    let rate = rate.ok_or("it tells no requests per second: it did nothing, or is not fio's")?;
    let group = job["groupid"].as_u64().unwrap_or(0);
    Ok(Entry { group, name: name.into(), config: Config { is_write, is_random, bytes, clients }, rate })
}

/// `4k`, `4KiB`, `4096`: all powers of 1024, as fio has them unless it is told otherwise.
fn size(text: &str) -> Result<u32, String> {
    let wrong = || format!("bs={} is no size from 1 byte to 1 GiB", shown(text));
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return Err(wrong()),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.filter(|bytes| (1..=BYTES_MAX).contains(bytes)).map(|bytes| bytes as u32).ok_or_else(wrong)
}
