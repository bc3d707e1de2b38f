//! The columns of our own table, as CSV and Parquet have them: `docs/formats/32-job-logs.md`.

use crate::header::Reader;
use crate::names::Interned;
use crate::table::{
    JOBS_MAX, Job, KIB_MAX, Log, NUMBER_MAX, Names, Numbered, PROCESSORS_MAX, SECONDS_MAX, Status,
};
use crate::{Format, LogError, finish};

/// A column of numbers.
pub(crate) struct Number {
    pub name: &'static str,
    pub get: fn(&Job) -> Option<u64>,
    set: fn(&mut Job, u64),
    /// What is larger cannot be read.
    most: u64,
}

/// A column of names, beside that of their numbers.
pub(crate) struct Text {
    pub name: &'static str,
    pub get: fn(&Job) -> Option<u32>,
    set: fn(&mut Job, u32),
    pub names: fn(&Names) -> &Numbered,
    names_mut: fn(&mut Names) -> &mut Numbered,
}

/// Rows with those that are left out: few bytes of Parquet can be many rows that say nothing.
const ROWS_MAX: u64 = 10 * JOBS_MAX as u64;
const U32: u64 = u32::MAX as u64;
const PROCESSORS: u64 = PROCESSORS_MAX as u64;
pub(crate) const STATUS: &str = "status";

macro_rules! number {
    ($name:literal, $field:ident, $most:expr) => {
        Number {
            name: $name,
            get: |job| job.$field.map(u64::from),
            set: |job, value| job.$field = value.try_into().ok(),
            most: $most,
        }
    };
}

macro_rules! text {
    ($name:literal, $field:ident, $names:ident) => {
        Text {
            name: $name,
            get: |job| job.$field,
            set: |job, value| job.$field = Some(value),
            names: |names| &names.$names,
            names_mut: |names| &mut names.$names,
        }
    };
}

pub(crate) const NUMBERS: [Number; 19] = [
    Number {
        name: "job",
        get: |job| Some(job.number),
        set: |job, value| job.number = value,
        most: NUMBER_MAX,
    },
    Number {
        name: "submit_seconds",
        get: |job| Some(job.submit_s),
        set: |job, value| job.submit_s = value,
        most: SECONDS_MAX,
    },
    number!("wait_seconds", waited_s, SECONDS_MAX),
    Number {
        name: "run_seconds",
        get: |job| Some(job.ran_s()),
        set: |job, value| job.run_s = value,
        most: SECONDS_MAX,
    },
    Number {
        name: "request_seconds",
        get: |job| job.asked.then_some(job.request_s),
        set: |job, value| job.request_s = value,
        most: SECONDS_MAX,
    },
    Number {
        name: "processors",
        get: |job| Some(job.processors.into()),
        set: |job, value| job.processors = value as u32,
        most: PROCESSORS,
    },
    number!("requested_processors", requested_processors, PROCESSORS),
    number!("nodes", nodes, PROCESSORS),
    number!("cpu_seconds", cpu_s, SECONDS_MAX),
    number!("used_memory_kib", used_memory_kib, KIB_MAX),
    number!("requested_memory_kib", requested_memory_kib, KIB_MAX),
    number!("user", user, U32),
    number!("group", group, U32),
    number!("account", account, U32),
    number!("executable", executable, U32),
    number!("queue", queue, U32),
    number!("partition", partition, U32),
    number!("preceding_job", preceding, NUMBER_MAX),
    number!("think_seconds", think_s, SECONDS_MAX),
];

pub(crate) const TEXTS: [Text; 7] = [
    text!("user_name", user, users),
    text!("group_name", group, groups),
    text!("account_name", account, accounts),
    text!("executable_name", executable, executables),
    text!("queue_name", queue, queues),
    text!("partition_name", partition, partitions),
    text!("node_list", node_list, node_lists),
];

/// Of these each is needed.
const NEEDED: [(&str, &str); 2] = [
    ("submit_seconds", "when it was submitted (submit_seconds)"),
    ("run_seconds", "how long it ran (run_seconds)"),
];
/// Of these one.
const PROCESSOR_COLUMNS: [&str; 2] = ["processors", "requested_processors"];

/// What of a table's columns nothing says.
pub(crate) fn missing(has: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let mut missing: Vec<&str> =
        NEEDED.iter().filter(|(name, _)| !has(name)).map(|(_, words)| *words).collect();
    if !PROCESSOR_COLUMNS.into_iter().any(&has) {
        missing.push("how many processors it had (processors, requested_processors)");
    }
    missing
}

/// What a cell says.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Cell {
    None,
    Number(f64),
    Whole(u64),
    Wrong,
}

/// A row as it stands there.
pub(crate) struct Row<'a> {
    pub numbers: [Cell; NUMBERS.len()],
    pub status: &'a str,
    pub texts: [&'a str; TEXTS.len()],
}

impl Row<'_> {
    pub fn empty() -> Row<'static> {
        Row { numbers: [Cell::None; NUMBERS.len()], status: "", texts: [""; TEXTS.len()] }
    }
}

/// Makes a log of rows.
pub(crate) struct Builder {
    pub log: Log,
    pub header: Reader,
    interned: [Interned; TEXTS.len()],
    rows: u64,
}

impl Builder {
    pub fn new() -> Builder {
        Builder { log: Log::default(), header: Reader::default(), interned: Default::default(), rows: 0 }
    }

    pub fn header_line(&mut self, line: &str) {
        self.header.line(line, &mut self.log.repairs);
    }

    pub fn add(&mut self, row: &Row<'_>) -> Result<(), LogError> {
        if self.log.jobs.len() == JOBS_MAX || self.rows == ROWS_MAX {
            return Err(LogError::TooManyJobs);
        }
        self.rows += 1;
        let mut job = Job { number: self.rows, ..Job::default() };
        for (column, cell) in NUMBERS.iter().zip(row.numbers) {
            let value = match cell {
                Cell::None => None,
                Cell::Whole(value) => Some(value),
                // Data frames have numbers with a point where some are missing; -1 is none, as in SWF.
                Cell::Number(value) if value.is_nan() || value == -1.0 => None,
                Cell::Number(value) if (0.0..=column.most as f64).contains(&value) => {
                    Some(value.ceil() as u64)
                }
                Cell::Number(_) | Cell::Wrong => {
                    self.log.repairs.unreadable += 1;
                    return Ok(());
                }
            };
            let Some(value) = value else {
                if column.name == "submit_seconds" {
                    self.log.repairs.unreadable += 1;
                    return Ok(());
                }
                continue;
            };
            if value > column.most {
                self.log.repairs.unreadable += 1;
                return Ok(());
            }
            (column.set)(&mut job, value);
        }
        job.requested_processors = job.requested_processors.filter(|count| *count > 0);
        job.status = Status::named(row.status).unwrap_or_default();
        let Some(mut job) = job.settle(&mut self.log.repairs) else { return Ok(()) };
        for ((column, name), interned) in TEXTS.iter().zip(row.texts).zip(&mut self.interned) {
            if name.is_empty() {
                continue;
            }
            let number = (column.get)(&job).or_else(|| interned.number(name));
            let Some(number) = number else { continue };
            (column.set)(&mut job, number);
            let names = (column.names_mut)(&mut self.header.names);
            names.entry(number).or_insert_with(|| name.to_string());
        }
        self.log.jobs.push(job);
        Ok(())
    }

    pub fn finish(mut self, format: Format) -> Result<Log, LogError> {
        (self.log.header, self.log.names) = (self.header.header, self.header.names);
        finish(self.log, format)
    }
}
