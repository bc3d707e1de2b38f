//! The command lines of `tidepool sim scale`, `run` and `tune`.

use super::flags::{SchedulerFlag, span, threads};
use clap::Args;
use tidepool_sim::Time;

pub const SCALE: &str = "\
Examples:
  tidepool sim scale                                        2048 clients, 1024 servers (S1, Figure 6)
  tidepool sim scale --scheduler conservative --threads 2
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
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
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
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// 1 byte to 1 GiB.
fn size(text: &str) -> Result<u64, String> {
    let bytes = tidepool_types::parse_size(text).map_err(|error| error.to_string())?;
    if (1..=1u64 << 30).contains(&bytes) { Ok(bytes) } else { Err("1 byte to 1GiB".to_string()) }
}
