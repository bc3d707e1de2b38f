//! The command lines of `tidepool tiers`.

use crate::flags::{shape_file, size};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use tidepool_iosched::Pattern;
use tidepool_shape::Shape;

const MEASURE: &str = "\
Examples:
  tidepool tiers measure /pfs/me                          write with 1 to 64 processes, three patterns
  tidepool tiers measure /pfs/me --processes 2,8,32 --bytes 256MiB --direction read --html pfs.html
  tidepool tiers measure /tmp/slow --shape slow.toml --bytes 4MiB    storage that is slowed down
Each process writes, or reads, a file of its own that has no name, so nothing is left whatever happens. The kernel's cache is
passed by where the file system lets it be; else what is written is synced within the time.
The result is kept in DIR/tidepool-curves.json (docs/formats/25-shaped-tiers.md).
Exit codes: 1 it could not be done, 2 wrong usage.";

#[derive(Subcommand)]
pub enum TiersCommand {
    /// Measure the bandwidth of a directory's storage against the number of processes
    #[command(after_help = MEASURE)]
    Measure(Box<MeasureArgs>),
    /// Show what was measured in a directory
    #[command(after_help = "Example:\n  tidepool tiers show /pfs/me")]
    Show(ShowArgs),
    /// One process that writes or reads; not for people
    #[command(hide = true)]
    Worker(crate::workload::flags::JobArg),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PatternFlag {
    /// Block after block
    Sequential,
    /// Every 8th block, then those next to them
    Strided,
    /// In a random order
    Random,
}

impl PatternFlag {
    pub fn name(self) -> &'static str {
        match self {
            PatternFlag::Sequential => "sequential",
            PatternFlag::Strided => "strided",
            PatternFlag::Random => "random",
        }
    }

    pub fn pattern(self) -> Pattern {
        match self {
            PatternFlag::Sequential => Pattern::Sequential,
            PatternFlag::Strided => Pattern::Strided,
            PatternFlag::Random => Pattern::Random,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    Write,
    Read,
}

impl Direction {
    pub fn name(self) -> &'static str {
        match self {
            Direction::Write => "write",
            Direction::Read => "read",
        }
    }
}

#[derive(Args)]
pub struct MeasureArgs {
    /// A directory of the storage
    pub dir: PathBuf,
    /// Slow it down to the bandwidths of a file, for tests and demonstrations; the result says so
    #[arg(long, value_name = "FILE", value_parser = shape_file)]
    pub shape: Option<Shape>,
    /// Numbers of processes
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_value = "1,2,4,8,16,32,64")]
    pub processes: Vec<u32>,
    /// In which order the blocks of a file are written or read
    #[arg(
        long,
        value_enum,
        value_name = "PATTERN,...",
        value_delimiter = ',',
        default_value = "sequential,strided,random"
    )]
    pub patterns: Vec<PatternFlag>,
    /// Of each process
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "16MiB")]
    pub bytes: u64,
    /// Of one write or read: a multiple of 4 KiB
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "1MiB")]
    pub block: u64,
    #[arg(long, value_enum, default_value = "write")]
    pub direction: Direction,
    /// How often each is measured; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Processes stop after so many seconds, wherever they are
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    pub seconds: f64,
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write a line for each repeat, separated by commas
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write a page with a picture of the curves
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

#[derive(Args)]
pub struct ShowArgs {
    /// The directory that was measured
    pub dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
