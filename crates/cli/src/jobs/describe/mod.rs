//! `tidepool jobs describe`: what is in a log.

mod calendar;
mod frame;
mod plots;
mod tell;

use super::files::{FormatFlag, read};
use crate::exit::{Context, Kind, Result};
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;
use tidepool_joblog::describe::describe;

pub const HELP: &str = "\
Examples:
  tidepool jobs describe kth.swf.gz --html kth.html
  tidepool jobs describe kth.swf --json --svg pictures
  sacct -a -S 2025-01-01 --parsable2 --format=ALL | tidepool jobs describe -
LOG: Standard Workload Format; what Slurm's 'sacct' writes with --parsable2 or --json; CSV and Parquet of
'jobs convert'; packed by gzip or not. Which it is, its beginning tells (docs/formats/32-job-logs.md).
Faults are repaired, each kind in one way, and counted.
Exit codes: 1 the log cannot be read or a file not written, 2 wrong usage.";

#[derive(Args)]
pub struct DescribeArgs {
    /// A log of jobs; - for standard input
    pub log: PathBuf,
    /// What the log is [default: its beginning tells]
    #[arg(long, value_enum)]
    pub format: Option<FormatFlag>,
    /// Only the first N jobs of the log that ran
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub jobs: Option<u64>,
    /// Processors of the machine [default: from the log, else the most that its jobs had at a time]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub processors: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write all figures, one a line, separated by commas
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write pictures: load, submissions, times, processors, requests, users
    #[arg(long, value_name = "DIR")]
    pub svg: Option<PathBuf>,
    /// Write a page with everything
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

pub fn run(args: &DescribeArgs) -> Result<ExitCode> {
    let log = read(&args.log, args.jobs, args.format)?;
    let told = describe(&log, args.processors);
    if let Some(path) = &args.csv {
        crate::outfile::put(path, tell::csv(&log, &told))?;
    }
    if let Some(dir) = &args.svg {
        std::fs::create_dir_all(dir).context(Kind::Other, || dir.display().to_string())?;
        for (name, picture) in plots::all(&log, &told) {
            let path = dir.join(format!("{name}.svg"));
            crate::outfile::put(&path, picture)?;
        }
    }
    if let Some(path) = &args.html {
        let page = tell::html(&args.log, &log, &told);
        crate::outfile::put(path, page)?;
    }
    match args.json {
        true => println!("{}", tell::value(&args.log, &log, &told)),
        false => print!("{}", tell::text(&args.log, &log, &told)),
    }
    Ok(ExitCode::SUCCESS)
}
