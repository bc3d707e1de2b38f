//! What `sacct --json` tells, job by job. Between Slurm 21.08 and 24.11 numbers have become `{"set", "infinite", "number"}`, and states lists.

use super::values::Memory;
use super::{Record, Table};
use crate::table::{Log, SECONDS_MAX};
use crate::{Format, LogError};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

/// Bytes of one job without its steps, of one step, or of anything else. Jobs take some kilobytes.
pub const VALUE_BYTES_MAX: u64 = 16 << 20;
/// Bytes that are read at once.
const BUFFER: usize = 64 * 1024;
const MINUTE_S: u64 = 60;
/// Larger numbers stand for "no limit" in Slurm.
const MINUTES_MAX: u64 = 0xffff_fff0;

/// Gives so many bytes until it is told that a value is done.
struct Fuse<R> {
    from: R,
    left: Rc<Cell<u64>>,
    blown: Rc<Cell<bool>>,
}

impl<R: Read> Read for Fuse<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let got = self.from.read(to)?;
        let Some(left) = self.left.get().checked_sub(got as u64) else {
            self.blown.set(true);
            return Err(io::Error::other("too large"));
        };
        self.left.set(left);
        Ok(got)
    }
}

/// Where jobs go.
struct Sink {
    table: RefCell<Table>,
    jobs_max: usize,
    left: Rc<Cell<u64>>,
    /// Any that a job led to.
    failed: Cell<Option<LogError>>,
}

impl Sink {
    fn renew(&self) {
        self.left.set(VALUE_BYTES_MAX);
    }
}

/// Reads a whole document: `{"jobs": [...]}`, or the list alone.
pub fn read(from: impl BufRead, jobs_max: usize) -> Result<Log, LogError> {
    let left = Rc::new(Cell::new(VALUE_BYTES_MAX));
    let blown = Rc::new(Cell::new(false));
    let fuse = Fuse { from, left: left.clone(), blown: blown.clone() };
    let sink = Sink { table: RefCell::new(Table::default()), jobs_max, left, failed: Cell::new(None) };
    let mut deserializer = serde_json::Deserializer::from_reader(BufReader::with_capacity(BUFFER, fuse));
    let done = Document(&sink).deserialize(&mut deserializer).and_then(|()| deserializer.end());
    if let Err(source) = done {
        if let Some(error) = sink.failed.take() {
            return Err(error);
        }
        return Err(match blown.get() {
            true => LogError::JobTooLarge { bytes: VALUE_BYTES_MAX },
            false => LogError::Json { source },
        });
    }
    sink.table.into_inner().finish(Format::SacctJson)
}

struct Document<'a>(&'a Sink);

impl<'de> DeserializeSeed<'de> for Document<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Document<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with 'jobs'")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            self.0.renew();
            match key.as_str() {
                "jobs" => map.next_value_seed(Jobs(self.0))?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
        Jobs(self.0).visit_seq(seq)
    }
}

struct Jobs<'a>(&'a Sink);

impl<'de> DeserializeSeed<'de> for Jobs<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Jobs<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of jobs")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        self.0.renew();
        while seq.next_element_seed(One(self.0))?.is_some() {
            self.0.renew();
        }
        Ok(())
    }
}

/// A job.
struct One<'a>(&'a Sink);

impl<'de> DeserializeSeed<'de> for One<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for One<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a job")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut job = serde_json::Map::new();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "steps" => map.next_value_seed(Steps(self.0))?,
                "job_id" | "state" | "time" | "tres" | "required" | "user" | "group" | "account"
                | "partition" | "qos" | "name" | "nodes" | "allocation_nodes" | "association" => {
                    job.insert(key, map.next_value()?);
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        let mut table = self.0.table.borrow_mut();
        if table.log.jobs.len() < self.0.jobs_max
            && let Err(error) = table.add(&record(&Value::Object(job)))
        {
            self.0.failed.set(Some(error));
            return Err(serde::de::Error::custom("see there"));
        }
        Ok(())
    }
}

/// Counts the steps of a job.
struct Steps<'a>(&'a Sink);

impl<'de> DeserializeSeed<'de> for Steps<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Steps<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of steps")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {
            self.0.renew();
            self.0.table.borrow_mut().log.repairs.steps += 1;
        }
        Ok(())
    }
}

/// A number in any of the ways in which it is written; none if it is not set, or without limit.
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::String(digits) => digits.parse().ok(),
        Value::Object(of) => {
            let is = |key: &str| of.get(key).and_then(Value::as_bool);
            let there = is("set") != Some(false) && is("infinite") != Some(true);
            of.get("number").filter(|_| there).and_then(Value::as_u64)
        }
        _ => None,
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

/// One of a list of `{"type": "cpu", "count": 4}`.
fn resource(list: &Value, name: &str) -> Option<u64> {
    let one = list.as_array()?.iter().find(|one| one["type"] == name)?;
    number(&one["count"]).filter(|count| *count > 0)
}

fn record(job: &Value) -> Record<'_> {
    let count =
        |value: u64| u32::try_from(value).ok().filter(|count| (1..=crate::PROCESSORS_MAX).contains(count));
    let seconds = |value: &Value| number(value).filter(|seconds| *seconds <= SECONDS_MAX);
    let time = |name: &str| seconds(&job["time"][name]).filter(|seconds| *seconds > 0);
    let (given, asked) = (&job["tres"]["allocated"], &job["tres"]["requested"]);
    let state = &job["state"]["current"];
    let limit = number(&job["time"]["limit"]).filter(|minutes| (1..MINUTES_MAX).contains(minutes));
    let start_s = time("start");
    Record {
        number: number(&job["job_id"]),
        state: state.as_array().and_then(|all| all.first()).unwrap_or(state).as_str().unwrap_or(""),
        submit_s: time("submission"),
        start_s,
        end_s: time("end"),
        // A job that was cancelled before it ran has an end, and no start.
        elapsed_s: start_s.and_then(|_| seconds(&job["time"]["elapsed"])).or(Some(0)),
        limit_s: limit.map(|minutes| minutes * MINUTE_S).filter(|seconds| *seconds <= SECONDS_MAX),
        given: resource(given, "cpu").and_then(count),
        requested: resource(asked, "cpu").or_else(|| number(&job["required"]["CPUs"])).and_then(count),
        nodes: resource(given, "node").or_else(|| number(&job["allocation_nodes"])).and_then(count),
        memory: resource(asked, "mem").map(|mib| Memory::Job(mib.saturating_mul(1024))),
        cpu_s: seconds(&job["time"]["total"]["seconds"]),
        user: Some(text(&job["user"]))
            .filter(|user| !user.is_empty())
            .unwrap_or(text(&job["association"]["user"])),
        group: text(&job["group"]),
        account: text(&job["account"]),
        partition: text(&job["partition"]),
        queue: text(&job["qos"]),
        name: text(&job["name"]),
        node_list: text(&job["nodes"]),
    }
}
