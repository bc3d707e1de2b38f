//! The command lines of `tidepool sim calibrate storage` and `tidepool sim validate storage`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;
use tidepool_sim_models::storage::REPEATS_MAX;

pub const CALIBRATE_STORAGE: &str = "\
Examples:
  tidepool sim calibrate storage --measurements fio.json --out storage.toml
  tidepool sim calibrate storage --measurements a.json b.json --out storage.toml --part half --seed 3
  tidepool sim calibrate storage --measurements fio.json --out storage.toml --part all --trials 10
Measurements: JSON of fio (direct=1; rw=read, write, randread or randwrite; time_based; group_reporting and new_group for each
job), raw files of 'tidepool bench io --raw', or {\"runs\":[{\"write\":true,\"random\":true,\"bytes\":4096,\"clients\":8,
\"per_second\":1234.5}]}. What is written is an experiment without workloads (docs/formats/28-experiments.md).
Halves are of configurations with all their repeats: what a fit is judged by it has never seen at that size and concurrency.
Exit codes: 1 it could not be done, 2 wrong usage.";

pub const VALIDATE_STORAGE: &str = "\
Examples:
  tidepool sim validate storage --model storage.toml --measurements fio.json
  tidepool sim validate storage --model storage.toml --measurements fio.json --part all --csv runs.csv
Each configuration is run in the event kernel: so many clients, each with one request under way. --seed says, as for calibrate,
which half is which.
Exit codes: 1 it could not be done, 2 wrong usage.";

/// Which configurations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum HalfFlag {
    /// Half of them, drawn by --seed
    Half,
    /// Those that are not in the half
    OtherHalf,
    All,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum SideFlag {
    /// Through the pool
    Pool,
    /// The file system below
    Native,
}

impl SideFlag {
    /// As raw files have it.
    pub fn name(self) -> &'static str {
        match self {
            SideFlag::Pool => "pool",
            SideFlag::Native => "native",
        }
    }
}

#[derive(Args)]
pub struct MeasurementArgs {
    /// Measured runs, of fio or of `tidepool bench io`
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub measurements: Vec<PathBuf>,
    /// Which side of `tidepool bench io`
    #[arg(long, value_enum, default_value = "pool")]
    pub side: SideFlag,
    /// Draws the half, and of the random streams
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct CalibrateStorageArgs {
    #[command(flatten)]
    pub from: MeasurementArgs,
    /// Write the device there
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Configurations that it is fitted to
    #[arg(long, value_enum, default_value = "half")]
    pub part: HalfFlag,
    /// Fits to configurations drawn again, for intervals of the figures; 0 for none
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = repeats)]
    pub repeats: usize,
    /// Also fit to so many halves, of seeds from --seed on, and judge each by its other half
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000))]
    pub trials: u64,
}

#[derive(Args)]
pub struct ValidateStorageArgs {
    #[command(flatten)]
    pub from: MeasurementArgs,
    /// From `tidepool sim calibrate storage`
    #[arg(long, value_name = "FILE")]
    pub model: PathBuf,
    /// Configurations that are simulated
    #[arg(long, value_enum, default_value = "other-half")]
    pub part: HalfFlag,
    /// Also write each run with its simulated rate there
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

fn repeats(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number <= REPEATS_MAX);
    number.ok_or_else(|| format!("a whole number up to {REPEATS_MAX}"))
}
