//! The command lines of `tidepool sim convert` and `experiment`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;
use tidepool_io_traces::{Format, LANES, LANES_MAX};

pub const CONVERT: &str = "\
Examples:
  tidepool sim convert strace.out --out trace.txt           the format is told by the first lines
  tidepool sim convert --from strace --under /scratch strace.out --out trace.txt
  tidepool sim convert --from msr hm_0.csv.gz --lanes 8 --out trace.txt
Formats: iosig, strace (strace -f -ttt -y), blkparse, mqsim, msr, darshan-dxt (darshan-dxt-parser), tidepool (recorded by
'tidepool trace io --keep DIR'; INPUT may be that directory). Also compressed with gzip. Logs of Darshan: python -m tidepool.darshan.
What is written: docs/formats/28-experiments.md. What was left out is counted, with the reason.
Exit codes: 1 it could not be done, 2 wrong usage or trace.";

fn format(text: &str) -> Result<Format, String> {
    Format::by_name(text).ok_or_else(|| format!("write {}", Format::ALL.map(Format::name).join(", ")))
}

#[derive(Args)]
pub struct ConvertArgs {
    /// The trace
    #[arg(value_name = "INPUT")]
    pub input: PathBuf,
    /// Who wrote it; without, its first lines tell
    #[arg(long, value_name = "FORMAT", value_parser = format)]
    pub from: Option<Format>,
    /// Write the requests there
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Only files below this directory (strace, darshan-dxt); may be given several times [default: all but those of the
    /// system, as /usr and /proc]
    #[arg(long, value_name = "DIR")]
    pub under: Vec<String>,
    /// Requests of a device that may be under way at once, where a trace does not say who waits for whom (mqsim, msr)
    #[arg(long, value_name = "N", default_value_t = LANES, value_parser = clap::value_parser!(u32).range(1..=i64::from(LANES_MAX)))]
    pub lanes: u32,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub const EXPERIMENT: &str = "\
Examples:
  tidepool sim experiment --trace trace.txt --out experiment.toml
  tidepool sim experiment --trace trace.txt --servers 8 --out experiment.toml
  tidepool sim experiment --trace trace.txt --system cluster.toml --out experiment.toml
Then: tidepool sim run experiment.toml; tidepool sim tune experiment.toml --vary stripe-size=64KiB,512KiB,4MiB
Without --system, the system is assumed, which the file says: results compare, and are no forecast. The trace is looked at
before anything is written. Exit codes: 1 it could not be done, 2 wrong usage, trace or system.";

/// What becomes of the times in a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum StampsFlag {
    /// Nothing is sent before its time: the program's own pauses stay
    Recorded,
    /// Each rank sends its requests one after the other, as fast as it can
    Ignored,
}

#[derive(Args)]
pub struct ExperimentArgs {
    /// Requests, as 'tidepool trace io' and 'tidepool sim convert' write them
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// Write the experiment there
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// An experiment whose network, servers and layout to take, without its workloads
    #[arg(long, value_name = "FILE")]
    pub system: Option<PathBuf>,
    /// Daemons of the assumed system
    #[arg(long, value_name = "N", default_value_t = 4, conflicts_with = "system", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub servers: u32,
    /// What becomes of the times in the trace. With 'recorded', throughput says little: compare response times
    #[arg(long, value_enum, default_value = "ignored")]
    pub stamps: StampsFlag,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
