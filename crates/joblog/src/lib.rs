//! Logs of batch systems as one typed table.
//!
//! ```text
//! SWF ──────────────┐
//! sacct --parsable2 ┤            ┌─▶ describe
//! sacct --json ─────┼─▶ Log ─────┼─▶ simulate, evaluate, ...
//! CSV, Parquet ─────┘            └─▶ SWF, CSV, Parquet
//! ```
//! A reader tells by a log's beginning what it is, and whether gzip has packed it. Faults of real logs are repaired, each kind in
//! one way, and counted. Formats: `docs/formats/32-job-logs.md`.
//!
//! No clock and no files: logs come in as a reader, and all times are the log's.

#![forbid(unsafe_code)]

mod columns;
pub mod csv;
pub mod describe;
mod error;
mod gate;
pub mod header;
mod lines;
mod names;
pub mod parquet;
mod repairs;
pub mod sacct;
pub mod swf;
mod table;

pub use error::{LogError, SACCT_COLUMNS};
pub use header::Header;
pub use lines::{BYTES_MAX, LINE_MAX};
pub use repairs::Repairs;
pub use table::{
    JOBS_MAX, Job, KIB_MAX, Log, NUMBER_MAX, Names, Numbered, PROCESSORS_MAX, SECONDS_MAX, Status,
};

use std::io::{self, BufRead, Write};

/// How a log is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// Standard Workload Format.
    #[default]
    Swf,
    /// `sacct --parsable2`.
    Sacct,
    /// `sacct --json`.
    SacctJson,
    /// Our table.
    Csv,
    Parquet,
}

impl Format {
    pub const ALL: [Format; 5] =
        [Format::Swf, Format::Sacct, Format::SacctJson, Format::Csv, Format::Parquet];

    pub fn name(self) -> &'static str {
        match self {
            Format::Swf => "swf",
            Format::Sacct => "sacct",
            Format::SacctJson => "sacct-json",
            Format::Csv => "csv",
            Format::Parquet => "parquet",
        }
    }

    pub(crate) fn words(self) -> &'static str {
        match self {
            Format::Swf => "in the Standard Workload Format",
            Format::Sacct => "of 'sacct --parsable2'",
            Format::SacctJson => "of 'sacct --json'",
            Format::Csv => "in CSV",
            Format::Parquet => "in Parquet",
        }
    }
}

/// What of a log, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Without, its beginning tells.
    pub format: Option<Format>,
    /// The first so many jobs that ran, in the order of its lines.
    pub jobs_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { format: None, jobs_max: usize::MAX }
    }
}

/// Reads a log of any format, packed by gzip or not.
pub fn read<'a>(from: impl BufRead + 'a, options: &Options) -> Result<Log, LogError> {
    let (from, format) = gate::open(from, options.format)?;
    let jobs_max = options.jobs_max;
    match format {
        Format::Swf => swf::read(from, jobs_max),
        Format::Sacct => sacct::read(from, jobs_max),
        Format::SacctJson => sacct::json::read(from, jobs_max),
        Format::Csv => csv::read(from, jobs_max),
        Format::Parquet => parquet::read(from, jobs_max),
    }
}

/// Writes a log; what `sacct` writes only Slurm does.
pub fn write(log: &Log, format: Format, to: impl Write) -> io::Result<()> {
    match format {
        Format::Swf => swf::write(log, to),
        Format::Csv => csv::write(log, to),
        Format::Parquet => parquet::write(log, to),
        Format::Sacct | Format::SacctJson => {
            Err(io::Error::new(io::ErrorKind::Unsupported, "Slurm's own formats are only read"))
        }
    }
}

/// What is the same for all formats: the order of submission, and what of jobs is told only by all.
pub(crate) fn finish(mut log: Log, format: Format) -> Result<Log, LogError> {
    if log.jobs.is_empty() {
        let (left_out, unreadable) = (log.repairs.left_out(), log.repairs.unreadable);
        return Err(LogError::NoJobs { format, left_out, unreadable });
    }
    let mut latest = 0;
    for job in &log.jobs {
        log.repairs.out_of_order += u64::from(job.submit_s < latest);
        latest = latest.max(job.submit_s);
    }
    let mut numbers: Vec<u64> = log.jobs.iter().map(|job| job.number).collect();
    numbers.sort_unstable();
    log.repairs.repeated = numbers.windows(2).filter(|pair| pair[0] == pair[1]).count() as u64;
    log.processors = log.header.max_procs.or(log.header.max_nodes);
    log.nodes = log.header.max_nodes;
    log.jobs.sort_by_key(|job| job.submit_s);
    Ok(log)
}
