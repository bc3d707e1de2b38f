//! The command lines of `tidepool sim scale`, `run` and `tune`.

use super::flags::{SchedulerFlag, span, threads};
use super::timeline::{EVENTS_DEFAULT, EVENTS_MAX, Window};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use tidepool_sim::Time;

pub const SCALE: &str = "\
Examples:
  tidepool sim scale                                        2048 clients, 1024 servers (S1, Figure 6)
  tidepool sim scale --scheduler conservative --threads 2
  mpirun -n 4 tidepool sim scale --mpi --scheduler conservative     over four ranks: same trace
  tidepool sim scale --clients 999000 --servers 500 --reads 1       a million processes
  tidepool sim scale --clients 16 --servers 8 --check-rollback
All clients open a file of their own, read and close it. Runs with the same trace have handled the same events in the same
order at each process, whatever the scheduler.
Exit codes: 1 it could not be done, 2 wrong usage, 130 stopped by Ctrl-C (what was done until then is told).";

/// How a model is run.
#[derive(Args)]
pub struct EngineArgs {
    #[arg(long, value_enum, default_value = "sequential", conflicts_with = "check_rollback")]
    pub scheduler: SchedulerFlag,
    /// Threads of the parallel schedulers
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = threads)]
    pub threads: usize,
    /// Handle every event, undo it, handle it again, and compare; one thread
    #[arg(long)]
    pub check_rollback: bool,
}

#[derive(Args)]
pub struct ScaleArgs {
    /// Processes of the application, each with a file of its own
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=50_000_000))]
    pub clients: u32,
    /// Servers, each with a disk
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub servers: u32,
    /// Reads of each client
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub reads: u32,
    /// Bytes of a read
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = size)]
    pub transfer: u64,
    /// Bytes of a stripe
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = size)]
    pub stripe: u64,
    /// From a client to a server
    #[arg(long, value_name = "TIME", default_value = "50us", value_parser = span)]
    pub latency: Time,
    /// Of the random streams
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub engine: EngineArgs,
    /// One of the ranks of mpirun, which run the model together; --threads is of each of them
    #[arg(long)]
    pub mpi: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// 1 byte to 1 GiB.
fn size(text: &str) -> Result<u64, String> {
    let bytes = tidepool_types::parse_size(text).map_err(|error| error.to_string())?;
    if (1..=1u64 << 30).contains(&bytes) { Ok(bytes) } else { Err("1 byte to 1GiB".to_string()) }
}

pub const RUN: &str = "\
Examples:
  tidepool sim run checkpoint.toml
  tidepool sim run checkpoint.toml --json --csv requests.csv
  tidepool sim run checkpoint.toml --scheduler optimistic --threads 2
  mpirun -n 4 tidepool sim run checkpoint.toml --mpi --scheduler conservative
  tidepool sim run checkpoint.toml --html report.html --timeline trace.json --timeline-to 100ms
  tidepool sim run checkpoint.toml --csv requests.csv --checkpoint run.state --every 10s
  tidepool sim run checkpoint.toml --csv requests.csv --checkpoint run.state --every 10s --resume run.state
The file: docs/formats/28-experiments.md. All of it is looked at before anything runs. Results do not depend on the scheduler.
Exit codes: 1 it could not be done, 2 wrong usage or file, 130 stopped by Ctrl-C (what was done until then is told).";

#[derive(Args)]
pub struct RunArgs {
    /// The experiment (TOML)
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Of the random streams; without, the file's
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Write a line for each request to this file
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write a line for each sub-request (a stripe of a request, at a server) to this file
    #[arg(long, value_name = "FILE")]
    pub sub_requests: Option<PathBuf>,
    /// Write a time line that ui.perfetto.dev and chrome://tracing show
    #[arg(long, value_name = "FILE")]
    pub timeline: Option<PathBuf>,
    /// The time line begins at this virtual time
    #[arg(long, value_name = "TIME", default_value = "0ns", value_parser = span, requires = "timeline")]
    pub timeline_from: Time,
    /// The time line ends at this virtual time
    #[arg(long, value_name = "TIME", value_parser = span, requires = "timeline")]
    pub timeline_to: Option<Time>,
    /// Most requests and pieces of work in the time line
    #[arg(long, value_name = "N", default_value_t = EVENTS_DEFAULT, requires = "timeline",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(EVENTS_MAX)))]
    pub timeline_events: u32,
    /// Write a page with plots
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Keep the state in this file, at the end and when Ctrl-C ends the run early (docs/formats/26-simulation.md)
    #[arg(long, value_name = "FILE")]
    pub checkpoint: Option<PathBuf>,
    /// With --checkpoint: also each time that so much virtual time has passed
    #[arg(long, value_name = "TIME", value_parser = span, requires = "checkpoint")]
    pub every: Option<Time>,
    /// Go on where this checkpoint was made: the same experiment, seed, --csv, --sub-requests and --timeline, any scheduler
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    #[command(flatten)]
    pub engine: EngineArgs,
    /// One of the ranks of mpirun, which run the experiment together; --threads is of each of them
    #[arg(long)]
    pub mpi: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl RunArgs {
    /// Of the time line.
    pub fn window(&self) -> Window {
        let to = self.timeline_to.unwrap_or(Time::MAX).0;
        Window { from: self.timeline_from.0, to, events_max: self.timeline_events as usize }
    }
}

pub const TUNE: &str = "\
Examples:
  tidepool sim tune fig7.toml --vary weight.ssd=1..8
  tidepool sim tune fig7.toml --vary stripe-size=8KiB,64KiB --vary weight.ssd=1..8 --vary count.ssd=1..4 --goal per-price
  tidepool sim tune fig7.toml --vary weight.ssd=1..100 --vary weight.hdd=1..10 --trials 60
Knobs: stripe-size, eager, server-threads, weight.CLASS, count.CLASS. At most --trials configurations are run: all there are if
that is enough, else one knob after the other is turned until nothing gets better.
Exit codes: 1 it could not be done, 2 wrong usage or file, 130 stopped by Ctrl-C (what was tried until then is told).";

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum GoalFlag {
    /// Most bytes a second
    Throughput,
    /// Least mean response time
    Response,
    /// Most bytes a second for the price of all servers
    PerPrice,
}

#[derive(Args)]
pub struct TuneArgs {
    /// The experiment (TOML)
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// What to vary, and its values: stripe-size=64KiB,256KiB or weight.ssd=1..8
    #[arg(long, value_name = "KNOB=VALUES", required = true)]
    pub vary: Vec<String>,
    #[arg(long, value_enum, default_value = "throughput")]
    pub goal: GoalFlag,
    /// Price of a server of each class, as hdd=1,ssd=4; without, the file's
    #[arg(long, value_name = "CLASS=PRICE,...", value_delimiter = ',', value_parser = price)]
    pub cost: Vec<(String, f64)>,
    /// Most configurations to run
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub trials: u32,
    /// Of the random streams; without, the file's
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Known, to be refused with a word on what to do instead
    #[arg(long, hide = true)]
    pub mpi: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `ssd=4`.
fn price(text: &str) -> Result<(String, f64), String> {
    let (class, price) = text.split_once('=').ok_or("write CLASS=PRICE: ssd=4")?;
    let price = price.parse().ok().filter(|price| (0.0..=1e12).contains(price));
    price.map(|price| (class.to_string(), price)).ok_or_else(|| "a price from 0 to 1e12".to_string())
}
