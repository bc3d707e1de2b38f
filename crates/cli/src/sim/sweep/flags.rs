//! The command line of `tidepool sim sweep`.

use clap::Args;
use std::path::PathBuf;

pub const SWEEP: &str = "\
Examples:
  tidepool sim sweep fig7.toml --vary weight.ssd=1..6 --out sweep
  tidepool sim sweep fig7.toml --vary weight.ssd=1..6 --vary stripe-size=16KiB,64KiB --seeds 5 --jobs 8 --out sweep
  tidepool sim sweep fig7.toml --vary weight.ssd=1..6 --seeds 5 --out sweep --slurm-array sweep.sh; sbatch sweep.sh
  tidepool sim sweep fig7.toml --vary weight.ssd=1..6 --seeds 5 --out sweep --collect
Knobs are those of tune. A point is a configuration with a seed; its result is a file in DIR/points that is there as a whole or
not at all, so a sweep that was stopped or killed goes on when it is started again. When all are there: DIR/points.csv, DIR/sweep.html.
Exit codes: 1 it could not be done, or points are missing, 2 wrong usage or file, 130 stopped by Ctrl-C (points that were done stay).";

/// Most processors' worth of points at once.
const JOBS_MAX: i64 = 1_024;

#[derive(Args)]
pub struct SweepArgs {
    /// The experiment (TOML)
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// What to vary, and its values: stripe-size=64KiB,256KiB or weight.ssd=1..8
    #[arg(long, value_name = "KNOB=VALUES")]
    pub vary: Vec<String>,
    /// Run each configuration with so many seeds: the first one and those that follow it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub seeds: u32,
    /// First seed; without, the file's
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Where results go; what is there already of the same sweep is not run again
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Points at once; without, as many as there are cores
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=JOBS_MAX))]
    pub jobs: Option<u32>,
    /// Run this point only
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["jobs", "collect", "slurm_array"])]
    pub point: Option<u64>,
    /// Run nothing: put together what there is
    #[arg(long, conflicts_with_all = ["jobs", "slurm_array"])]
    pub collect: bool,
    /// Run nothing: write the script of a Slurm array whose tasks run the points
    #[arg(long, value_name = "SCRIPT", conflicts_with = "jobs")]
    pub slurm_array: Option<PathBuf>,
    /// Tasks of the Slurm array; each runs several points if there are more (Slurm's MaxArraySize is 1001 if not set)
    #[arg(long, value_name = "N", default_value_t = 1_000, requires = "slurm_array", value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    pub tasks: u32,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
