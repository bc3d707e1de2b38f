//! The command lines of `tidepool jobs`.

use crate::flags::size;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use tidepool_jobsim::Policy;

const STAGE_AHEAD: &str = "\
Examples:
  tidepool jobs stage-ahead kth.swf                beside the mean and beside staging at submission
  zcat curie.swf.gz | tidepool jobs stage-ahead --jobs 100000 -
  tidepool jobs stage-ahead kth.swf --bytes 1TB --rate-scatter 1 --seed 7 --html kth.html
LOG is in the Standard Workload Format. Its jobs run on a simulated machine that backfills as
Slurm does. Each reads data; when its staging begins is decided by what is known then, by the
same function as in Slurm's hooks. A job can be in time when it waits for at least as long as its
staging takes; one that starts when it is submitted cannot.
Exit codes: 1 the log cannot be read or a file not written, 2 wrong usage.";

const EVALUATE: &str = "\
Examples:
  tidepool jobs evaluate kth.swf
  tidepool jobs evaluate kth.swf --predictor default --predictor request --json
  zcat curie.swf.gz | tidepool jobs evaluate --csv users.csv --svg users.svg -
LOG is in the Standard Workload Format. Its jobs are told in the order of time: when one is submitted,
only jobs that are over by then have taught. The first part of the log warms up, the rest is judged.
MEDAE is the median absolute error of a user; users with fewer than 20 judged jobs are left out.
Exit codes: 1 the log cannot be read or a file not written, 2 wrong usage.";

#[derive(Subcommand)]
pub enum JobsCommand {
    /// Tell how well each predictor would have said how long the jobs of a log ran
    #[command(after_help = EVALUATE)]
    Evaluate(Box<EvaluateArgs>),
    /// Tell how many jobs of a log would have been late if their data had been staged ahead
    #[command(after_help = STAGE_AHEAD)]
    StageAhead(Box<StageAheadArgs>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum PolicyFlag {
    /// Conservative backfilling
    Conservative,
    /// First come first served
    Fcfs,
}

impl PolicyFlag {
    pub fn policy(self) -> Policy {
        match self {
            PolicyFlag::Conservative => Policy::Conservative,
            PolicyFlag::Fcfs => Policy::Fcfs,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            PolicyFlag::Conservative => "conservative",
            PolicyFlag::Fcfs => "fcfs",
        }
    }
}

#[derive(Args)]
pub struct StageAheadArgs {
    /// A log of jobs; - for standard input
    pub log: PathBuf,
    /// Only the first N jobs of the log that ran
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub jobs: Option<u64>,
    /// Size of the machine, in what the log counts, mostly processors [default: MaxProcs of the log, else MaxNodes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub nodes: Option<u32>,
    /// How the scheduler plans
    #[arg(long, value_enum, default_value = "conservative")]
    pub policy: PolicyFlag,
    /// Of the made-up sizes and rates
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Median of what a job reads; sizes are log-normal
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "100GB")]
    pub bytes: u64,
    /// Deviation of the sizes' logarithm
    #[arg(long, value_name = "X", value_parser = scatter, default_value = "1.5")]
    pub bytes_scatter: f64,
    /// Median of the bytes that are transferred in a second; rates are log-normal
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "500MB")]
    pub rate: u64,
    /// Deviation of the rates' logarithm
    #[arg(long, value_name = "X", value_parser = scatter, default_value = "0.5")]
    pub rate_scatter: f64,
    /// Between looks at what the scheduler plans
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub look: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write a line for each job and rule, separated by commas
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write a page with a picture of the share that was late along the log
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

#[derive(Args)]
pub struct EvaluateArgs {
    /// A log of jobs; - for standard input
    pub log: PathBuf,
    /// Only the first N jobs of the log that ran
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub jobs: Option<u64>,
    /// Share of the jobs that only teach
    #[arg(long, value_name = "SHARE", value_parser = share, default_value = "0.5")]
    pub warm_up: f64,
    /// One of them, several times if wanted [default: all]
    #[arg(long = "predictor", value_name = "NAME")]
    pub predictors: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write a line for each predictor and user, separated by commas
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write a picture of the users' errors
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Something has to be judged.
fn share(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.0..1.0).contains(value));
    value.ok_or_else(|| format!("'{text}' is no number from 0 to below 1"))
}

/// Beyond 5 there are sizes from a byte to an exabyte.
fn scatter(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.0..=5.0).contains(value));
    value.ok_or_else(|| format!("'{text}' is no number from 0 to 5"))
}
