//! Logs as files, of any format.

use crate::exit::{Context, Kind, Result};
use clap::ValueEnum;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use tidepool_joblog::{Format, Log, Options};

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum FormatFlag {
    /// Standard Workload Format
    Swf,
    /// What 'sacct --parsable2' writes
    Sacct,
    /// What 'sacct --json' writes
    SacctJson,
    /// The table that 'jobs convert' writes
    Csv,
    /// The same in Parquet
    Parquet,
}

impl FormatFlag {
    fn format(self) -> Format {
        match self {
            FormatFlag::Swf => Format::Swf,
            FormatFlag::Sacct => Format::Sacct,
            FormatFlag::SacctJson => Format::SacctJson,
            FormatFlag::Csv => Format::Csv,
            FormatFlag::Parquet => Format::Parquet,
        }
    }
}

/// Reads a log; without a format its beginning tells what it is.
pub fn read(path: &Path, jobs: Option<u64>, format: Option<FormatFlag>) -> Result<Log> {
    let jobs_max = jobs.and_then(|jobs| usize::try_from(jobs).ok()).unwrap_or(usize::MAX);
    let options = Options { format: format.map(FormatFlag::format), jobs_max };
    if path.as_os_str() == "-" {
        let input = std::io::stdin().lock();
        return tidepool_joblog::read(input, &options).context(Kind::Other, || "standard input".into());
    }
    let name = || path.display().to_string();
    let file = File::open(path).context(Kind::Other, name)?;
    tidepool_joblog::read(BufReader::new(file), &options).context(Kind::Other, name)
}
