//! The command lines of `tidepool sim calibrate` and `tidepool sim validate`.

use super::storage_flags::{CALIBRATE_STORAGE, CalibrateStorageArgs, VALIDATE_STORAGE, ValidateStorageArgs};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use tidepool_devices::disk::fit::REPEATS_MAX;

const CALIBRATE: &str = "\
Examples:
  tidepool sim calibrate disk --trace disk.trace.gz --out disk.toml
  tidepool sim calibrate disk --trace disk.trace.gz --seek disk.seek --specs disk.diskspecs --out disk.toml --folds 10
A line of a trace: R or W, Hit, Miss, Doub or Trip (not used), block address, sectors, service time in us, gap to the next request in us;
also compressed with gzip. The model is compared with the part that it was not fitted to, beside what needs no model: times
drawn among those measured for the same direction and length.
Exit codes: 1 it could not be done, 2 wrong usage.";

const VALIDATE: &str = "\
Examples:
  tidepool sim validate disk --model disk.toml --trace disk.trace.gz
  tidepool sim validate disk --model disk.toml --trace disk.trace.gz --part all --csv requests.csv
The model is told direction, address, length and gap of each request, never a measured time.
Exit codes: 1 it could not be done, 2 wrong usage.";

#[derive(Subcommand)]
pub enum CalibrateCommand {
    /// Fit a disk model to measured requests
    #[command(after_help = CALIBRATE)]
    Disk(CalibrateDiskArgs),
    /// Fit a storage device to rates measured by fio or `tidepool bench io`
    #[command(after_help = CALIBRATE_STORAGE)]
    Storage(CalibrateStorageArgs),
}

#[derive(Subcommand)]
pub enum ValidateCommand {
    /// Replay measured requests on a disk model
    #[command(after_help = VALIDATE)]
    Disk(ValidateDiskArgs),
    /// Simulate measured runs on a fitted storage device
    #[command(after_help = VALIDATE_STORAGE)]
    Storage(ValidateStorageArgs),
}

/// Which requests of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum PartFlag {
    FirstHalf,
    SecondHalf,
    All,
}

#[derive(Args)]
pub struct CalibrateDiskArgs {
    /// Measured requests
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// Measured seeks: lines of cylinders, milliseconds
    #[arg(long, value_name = "FILE")]
    pub seek: Option<PathBuf>,
    /// The disk's DiskSim specification: cylinders and segments of the buffer are read from it
    #[arg(long, value_name = "FILE")]
    pub specs: Option<PathBuf>,
    /// Write the model there
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Requests that it is fitted to
    #[arg(long, value_enum, default_value = "first-half")]
    pub part: PartFlag,
    /// Fits to requests drawn again, for intervals of the parameters; 0 for none
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = repeats)]
    pub repeats: usize,
    /// Also fit to all but one of so many parts, for each part, and compare with that one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=100))]
    pub folds: Option<u16>,
    /// Of the random streams
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct ValidateDiskArgs {
    /// From `tidepool sim calibrate disk`
    #[arg(long, value_name = "FILE")]
    pub model: PathBuf,
    /// Measured requests
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// Requests that are replayed
    #[arg(long, value_enum, default_value = "second-half")]
    pub part: PartFlag,
    /// Also write each request's measured and simulated time there
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Of the random stream
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn repeats(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number <= REPEATS_MAX);
    number.ok_or_else(|| format!("0 to {REPEATS_MAX}"))
}
