//! The command lines of `tidepool workload`.

use crate::flags::Door;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;
use toml::{Table, Value};

const RUN: &str = "\
Examples:
  tidepool workload run phases --processes 4 --bytes 64MB --io-ratio 0.5 /scratch/w
  tidepool workload run nastja --processes 8 --steps 200 --verify --html nastja.html /scratch/w
  tidepool workload run openfoam --pool mine --processes 4 /w     in a pool
  tidepool workload run --file two.toml --csv two.csv /scratch/w  several applications at once
Kinds: phases (compute and write in turn), wrf (read input, checkpoints, output), sph (a file of each process, then
gathered into one), openfoam (95 small files of each process), nastja (a block of each process every 20th step). What is
not said is what the papers say, which is often more than one machine has: see 'tidepool workload show KIND'.
Exit codes: 1 it could not be done, 2 wrong usage or description, 113 files are left, 114 --verify found differences.";

const SHOW: &str = "\
Examples:
  tidepool workload show openfoam                       files, bytes and operations of each step
  tidepool workload show phases --processes 8 --bytes 1GB --layout shared
  tidepool workload show --file two.toml --json";

const VERIFY: &str = "\
Examples:
  tidepool workload run nastja --processes 4 --steps 100 --keep /scratch/w
  tidepool workload verify /scratch/w
Exit code 114: something differs.";

#[derive(Subcommand)]
pub enum WorkloadCommand {
    /// Do it with real processes, in a directory of local or shared storage or in a pool, and measure it
    #[command(after_help = RUN, override_usage = "tidepool workload run [OPTIONS] KIND DIR\n       tidepool workload run --file FILE [OPTIONS] DIR")]
    Run(Box<RunArgs>),
    /// Tell what would be done: files, bytes and operations of each step
    #[command(after_help = SHOW, override_usage = "tidepool workload show [OPTIONS] KIND\n       tidepool workload show --file FILE [OPTIONS]")]
    Show(Box<ShowArgs>),
    /// Compare every byte of what a run has kept with what it wrote
    #[command(after_help = VERIFY)]
    Verify(KeptArgs),
    /// Remove what a run has kept or left, and nothing else
    #[command(after_help = "Example:\n  tidepool workload clear /scratch/w")]
    Clear(KeptArgs),
    /// One process of an application; not for people
    #[command(hide = true)]
    Worker(JobArg),
    /// Makes, compares and removes files; not for people
    #[command(hide = true)]
    Keeper(JobArg),
}

fn seconds_since_1970(text: &str) -> Result<Duration, String> {
    let number = text.parse::<f64>().map_err(|_| "write seconds since 1970".to_string())?;
    Duration::try_from_secs_f64(number).map_err(|_| format!("{number} is no moment after 1970"))
}

#[derive(Args)]
pub struct JobArg {
    /// One JSON object that says what to do
    pub job: String,
}

/// Where the files are.
#[derive(Args)]
pub struct PoolPath {
    /// DIR is in this pool
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// With --pool: how the processes see it [default: auto]
    #[arg(long, value_enum, requires = "pool")]
    pub client: Option<Door>,
}

#[derive(Args)]
pub struct KeptArgs {
    /// The directory that was given to the run
    pub dir: PathBuf,
    #[command(flatten)]
    pub reached: PoolPath,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct RunArgs {
    /// The kind of application, and where: each application gets a directory of its own there
    #[arg(value_name = "KIND DIR", num_args = 1..=2, required = true)]
    pub places: Vec<PathBuf>,
    /// Applications from a file instead (docs/formats/23-workloads.md)
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub shape: Shape,
    #[command(flatten)]
    pub reached: PoolPath,
    /// Begin at this moment, in seconds since 1970 ('date +%s' and a few more), so that several runs begin together;
    /// processes are started and files prepared before
    #[arg(long, value_name = "SECONDS", value_parser = seconds_since_1970)]
    pub start_at: Option<Duration>,
    /// Compute by using the processor; without, processes sleep
    #[arg(long)]
    pub busy: bool,
    /// Read all files back afterwards and compare every byte
    #[arg(long)]
    pub verify: bool,
    /// Leave the files
    #[arg(long)]
    pub keep: bool,
    /// Remove first what an earlier run has kept or left
    #[arg(long)]
    pub wipe: bool,
    /// Tell what would be done, and end
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write a line for each step of each application, separated by commas
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write a page with pictures of the steps
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

#[derive(Args)]
pub struct ShowArgs {
    /// The kind of application
    #[arg(value_name = "KIND", required_unless_present = "file", conflicts_with = "file")]
    pub kind: Option<String>,
    /// Applications from a file instead (docs/formats/23-workloads.md)
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub shape: Shape,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// One application: the same words as in a file.
#[derive(Args, Clone, Default)]
#[group(id = "of-application", multiple = true, conflicts_with = "file")]
pub struct Shape {
    /// Name of its directory [default: the kind]
    #[arg(long, value_name = "NAME", help_heading = "Application")]
    name: Option<String>,
    /// Processes
    #[arg(long, value_name = "N", help_heading = "Application")]
    processes: Option<u32>,
    /// Time steps
    #[arg(long, value_name = "N", help_heading = "Application")]
    steps: Option<u32>,
    /// Do I/O at every N-th step
    #[arg(long, value_name = "N", help_heading = "Application")]
    every: Option<u32>,
    /// Bytes of one read or write
    #[arg(long, value_name = "SIZE", help_heading = "Application")]
    transfer: Option<String>,
    /// Sync data before files are closed
    #[arg(long, help_heading = "Application")]
    fsync: bool,
    /// Of random orders and data
    #[arg(long, value_name = "N", help_heading = "Application", value_parser = clap::value_parser!(i64).range(0..))]
    seed: Option<i64>,
    /// How long each step computes
    #[arg(long, alias = "compute", value_name = "SECONDS", help_heading = "Application")]
    compute_seconds: Option<f64>,
    /// Compute so long that I/O is this share of the time, by what the first step with I/O takes
    #[arg(long, value_name = "SHARE", help_heading = "Application")]
    io_ratio: Option<f64>,
    /// With --io-ratio: how long a step's I/O takes without others; it is not measured then
    #[arg(long, alias = "alone", value_name = "SECONDS", help_heading = "Application")]
    alone_seconds: Option<f64>,
    /// phases, sph: of each process and step
    #[arg(long, value_name = "SIZE", help_heading = "Application")]
    bytes: Option<String>,
    /// phases: sequential, strided or random
    #[arg(long, value_name = "PATTERN", help_heading = "Application")]
    pattern: Option<String>,
    /// phases, wrf: files per-process, or one that is shared
    #[arg(long, value_name = "LAYOUT", help_heading = "Application")]
    layout: Option<String>,
    /// phases: with strided files of their own, transfers from one to the next
    #[arg(long, value_name = "N", help_heading = "Application")]
    stride: Option<u32>,
    /// wrf: read by each process at the start
    #[arg(long, value_name = "SIZE", help_heading = "Application")]
    input_bytes: Option<String>,
    /// wrf: of each process and checkpoint
    #[arg(long, value_name = "SIZE", help_heading = "Application")]
    checkpoint_bytes: Option<String>,
    /// wrf: of each process at the end
    #[arg(long, value_name = "SIZE", help_heading = "Application")]
    output_bytes: Option<String>,
    /// sph: gather files of the processes at the end, or write shared ones (direct)
    #[arg(long, value_name = "MODE", help_heading = "Application")]
    mode: Option<String>,
    /// sph: processes that gather
    #[arg(long, value_name = "N", help_heading = "Application")]
    gatherers: Option<u32>,
    /// openfoam: of each process and written step
    #[arg(long, value_name = "N", help_heading = "Application")]
    files: Option<u32>,
    /// openfoam: of each file
    #[arg(long, value_name = "SIZE", help_heading = "Application")]
    file_bytes: Option<String>,
    /// nastja: of each process's block
    #[arg(long, value_name = "SIZE", help_heading = "Application")]
    block_bytes: Option<String>,
}

impl Shape {
    /// The table that a file would have.
    pub fn table(&self, kind: &str) -> Table {
        let number = |n: Option<u32>| n.map(|n| Value::Integer(n.into()));
        let word = |word: &Option<String>| word.clone().map(Value::String);
        let keys = [
            ("kind", Some(Value::String(kind.into()))),
            ("name", word(&self.name)),
            ("processes", number(self.processes)),
            ("steps", number(self.steps)),
            ("every", number(self.every)),
            ("transfer", word(&self.transfer)),
            ("fsync", self.fsync.then_some(Value::Boolean(true))),
            ("seed", self.seed.map(Value::Integer)),
            ("compute-seconds", self.compute_seconds.map(Value::Float)),
            ("io-ratio", self.io_ratio.map(Value::Float)),
            ("alone-seconds", self.alone_seconds.map(Value::Float)),
            ("bytes", word(&self.bytes)),
            ("pattern", word(&self.pattern)),
            ("layout", word(&self.layout)),
            ("stride", number(self.stride)),
            ("input-bytes", word(&self.input_bytes)),
            ("checkpoint-bytes", word(&self.checkpoint_bytes)),
            ("output-bytes", word(&self.output_bytes)),
            ("mode", word(&self.mode)),
            ("gatherers", number(self.gatherers)),
            ("files", number(self.files)),
            ("file-bytes", word(&self.file_bytes)),
            ("block-bytes", word(&self.block_bytes)),
        ];
        keys.into_iter().filter_map(|(key, value)| Some((key.to_string(), value?))).collect()
    }
}
