//! The command line of `tidepool jobs predict`.

use crate::jobs::flags::SchedulerFlag;
use clap::Args;
use std::path::PathBuf;

pub const PREDICT: &str = "\
Examples:
  tidepool jobs predict --history kth.swf                   of the queue that squeue and sinfo tell of here
  tidepool jobs predict --history kth.swf 4711 4712_3
  tidepool jobs predict --history kth.swf --script job.sh   as if it were submitted now, last in the queue
  tidepool jobs predict --history kth.swf --judge 100 --csv told.csv --svg held.svg    did such ranges hold?
  tidepool jobs predict --history kth.swf --calibrate 20    ranges as wide as they had to be in the past
  squeue --json | tidepool jobs predict --queue - --sinfo nodes.txt --history kth.swf --json
Tells when the jobs of a queue start, where, and when they end, by a simulated scheduler that goes on
from what runs now; which columns and fields are read: docs/formats/33-queues.md. HISTORY teaches how
long jobs run, and what is submitted later. Nine tenths of the draws are within a range. Those who
are submitted later are behind all that wait, and priorities stay as they are now.
Exit codes: 1 squeue or sinfo does not answer, or a file cannot be read, 2 wrong usage or input.";

#[derive(Args)]
pub struct PredictArgs {
    /// Only these jobs, as 4711 or 4711_3 [default: all; with --script only that]
    #[arg(value_name = "JOBID")]
    pub jobs: Vec<String>,
    /// A log of jobs that are over; without, jobs run until their limits and nothing is drawn
    #[arg(long, value_name = "LOG")]
    pub history: Option<PathBuf>,
    /// What squeue printed, as text or JSON; - for standard input [default: squeue is asked]
    #[arg(long, value_name = "FILE")]
    pub queue: Option<PathBuf>,
    /// What sinfo printed [default: without --queue and --machine sinfo is asked]
    #[arg(long, value_name = "FILE")]
    pub sinfo: Option<PathBuf>,
    /// Nodes, priorities of partitions, and maintenance from now on (docs/formats/31-batch-machines.md)
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// A job script, as if it were submitted now
    #[arg(long, value_name = "FILE")]
    pub script: Option<PathBuf>,
    /// Whose the script's job is [default: $USER]
    #[arg(long, value_name = "NAME", requires = "script")]
    pub user: Option<String>,
    /// Priority of the script's job [default: below all others]
    #[arg(long, value_name = "X", requires = "script", value_parser = priority, allow_negative_numbers = true)]
    pub priority: Option<f64>,
    /// Run the history on a simulated machine, tell at N moments of its second half of all that wait, and count how often that held
    #[arg(long, value_name = "N", requires = "history", conflicts_with_all = ["jobs", "queue", "sinfo", "script"],
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub judge: Option<u32>,
    /// Make ranges as wide as they had to be at N moments each of the history's second quarter and second half, the latest most, on a simulated machine
    #[arg(long, value_name = "N", requires = "history", conflicts_with = "judge",
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub calibrate: Option<u32>,
    /// When the queue was written, as it writes times [default: from the times in it]
    #[arg(long, value_name = "TIME", requires = "queue")]
    pub now: Option<String>,
    /// How the scheduler plans; conservative is nearest to Slurm's backfilling
    #[arg(long, value_enum, default_value = "conservative")]
    pub policy: SchedulerFlag,
    /// How often run times are drawn
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub draws: u32,
    /// Of the draws
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Draws at once [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write a line for each job, separated by commas; with --judge for each that was told of
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Draw how often ranges of each width held
    #[arg(long, value_name = "FILE", requires = "judge")]
    pub svg: Option<PathBuf>,
}

fn priority(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| value.is_finite());
    value.ok_or_else(|| format!("'{text}' is no number"))
}
