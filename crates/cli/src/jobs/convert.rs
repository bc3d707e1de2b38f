//! `tidepool jobs convert`: a log in another format.

use super::files::{FormatFlag, read};
use crate::exit::{Failure, Kind, Result};
use crate::outfile::{self, How};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidepool_joblog::{Format, Log};
use tidepool_types::format_size;

/// What a file's name may end with.
const ENDINGS: [(&str, Format, bool); 5] = [
    (".swf", Format::Swf, false),
    (".swf.gz", Format::Swf, true),
    (".csv", Format::Csv, false),
    (".csv.gz", Format::Csv, true),
    (".parquet", Format::Parquet, false),
];

pub const HELP: &str = "\
Examples:
  tidepool jobs convert kth.swf.gz kth.parquet
  sacct -a -X -S 2025-01-01 --parsable2 --format=ALL | tidepool jobs convert - year.csv
The ending of OUT says the format: .swf, .swf.gz, .csv, .csv.gz, .parquet. What cannot be used of the
log is left out and counted; columns and their units: docs/formats/32-job-logs.md.
Exit codes: 1 the log cannot be read or OUT not written, 2 wrong usage.";

#[derive(Args)]
pub struct ConvertArgs {
    /// A log of jobs; - for standard input
    pub log: PathBuf,
    /// Where to write it
    pub out: PathBuf,
    /// What the log is [default: its beginning tells]
    #[arg(long, value_enum)]
    pub format: Option<FormatFlag>,
    /// Only the first N jobs of the log that ran
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub jobs: Option<u64>,
    /// Write over a file that is there
    #[arg(long)]
    pub force: bool,
}

pub fn run(args: &ConvertArgs) -> Result<ExitCode> {
    let name = args.out.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let (_, format, packed) =
        ENDINGS.iter().find(|(ending, ..)| name.ends_with(ending)).ok_or_else(|| {
            let known: Vec<&str> = ENDINGS.iter().map(|(ending, ..)| *ending).collect();
            let text = format!("{}: its ending is none of {}", args.out.display(), known.join(", "));
            Failure::new(Kind::Usage, text)
        })?;
    if !args.force && args.out.exists() {
        return Err(taken(&args.out));
    }
    let log = read(&args.log, args.jobs, args.format)?;
    let put = put(&log, *format, *packed, args);
    put.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => taken(&args.out),
        _ => Failure::new(Kind::Other, format!("{}: {error}", args.out.display())),
    })?;
    let bytes = std::fs::metadata(&args.out).map_or(0, |file| file.len());
    println!("{}: {} jobs, {}", args.out.display(), log.jobs.len(), format_size(bytes));
    for (what, count) in log.repairs.list().into_iter().filter(|(_, count)| *count > 0) {
        println!("log: {count} {what}");
    }
    if *format == Format::Swf {
        let lost = lost(&log);
        if !lost.is_empty() {
            println!("not in SWF, which has no place for them: {}", lost.join(", "));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn taken(out: &Path) -> Failure {
    Failure::new(Kind::Usage, format!("{}: it is there already; --force writes over it", out.display()))
}

/// Writes beside it first, so that nobody finds half a log.
fn put(log: &Log, format: Format, packed: bool, args: &ConvertArgs) -> std::io::Result<()> {
    let how = How { keep_old: !args.force, ..How::default() };
    outfile::write(&args.out, how, |mut to| {
        if packed {
            let mut packer = flate2::write::GzEncoder::new(to, flate2::Compression::default());
            tidepool_joblog::write(log, format, &mut packer)?;
            packer.finish().map(drop)
        } else {
            tidepool_joblog::write(log, format, &mut to)
        }
    })
}

/// What SWF cannot say of a log.
fn lost(log: &Log) -> Vec<&'static str> {
    let names = &log.names;
    let has = [
        (!names.users.is_empty() || !names.groups.is_empty(), "names of users and groups"),
        (!names.executables.is_empty(), "names of jobs"),
        (log.jobs.iter().any(|job| job.account.is_some()), "accounts"),
        (log.jobs.iter().any(|job| job.nodes.is_some() || job.node_list.is_some()), "nodes"),
    ];
    has.into_iter().filter(|(has, _)| *has).map(|(_, what)| what).collect()
}
