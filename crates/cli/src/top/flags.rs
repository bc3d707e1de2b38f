//! The command lines of `tidepool top` and `tidepool metrics`.

use clap::Args;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

pub const TOP: &str = "\
Examples:
  tidepool top                          directories of your pools, again and again, until Ctrl-C
  tidepool top --once /pfs/scratch      whoever uses this one
  tidepool top --json --interval 5 --pool mine
Pools with --burst or --pfs tell their load beside the storage that they share, whoever they belong to. What one would have
alone is known from measured curves (tidepool-curves.json in a tier's directory), else from its own best phase.
Exit codes: 1 a directory cannot be read, 116 nobody uses shared storage there.";

pub const METRICS: &str = "\
Examples:
  tidepool metrics                                    your pools here, once, in the text format
  tidepool metrics --out /var/lib/node_exporter/tidepool.prom
  tidepool metrics --listen 9877 --pool mine          http://127.0.0.1:9877/metrics, until Ctrl-C
The names are in docs/guide/observing.md.
Exit codes: 1 a directory cannot be read or FILE not written, 116 no pool is running here.";

/// Which shared storage is meant.
#[derive(Args, Clone, Debug)]
pub struct Where {
    /// Directories of shared storage: the slowest one that a pool was started with [default: those of your pools here]
    #[arg(value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// The directories of this pool
    #[arg(long, value_name = "NAME", conflicts_with = "dirs")]
    pub pool: Option<String>,
    /// With DIR: the directory of the burst buffer before it, for its curves
    #[arg(long, value_name = "DIR", requires = "dirs")]
    pub burst: Option<PathBuf>,
}

#[derive(Args)]
pub struct TopArgs {
    #[command(flatten)]
    pub at: Where,
    /// Between two looks; loads are told once a second [default: 1]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "once")]
    pub interval: Option<Duration>,
    /// Look once, as when standard output is no terminal and --interval is not given
    #[arg(long)]
    pub once: bool,
    /// Print JSON, a line for each look
    #[arg(long)]
    pub json: bool,
}

/// Longest time between two looks.
const INTERVAL_MAX_S: f64 = 86_400.0;

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.1..=INTERVAL_MAX_S).contains(number));
    number.map(Duration::from_secs_f64).ok_or_else(|| format!("write seconds from 0.1 to {INTERVAL_MAX_S}"))
}

#[derive(Args)]
pub struct MetricsArgs {
    #[command(flatten)]
    pub at: Where,
    /// Serve GET /metrics there; a port alone is one of this machine only
    #[arg(long, value_name = "ADDR:PORT", value_parser = address, conflicts_with = "out")]
    pub listen: Option<SocketAddr>,
    /// Write them to FILE, which is replaced at once: for the textfile collector of node_exporter
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let port = text.parse::<u16>().map(|port| (Ipv4Addr::LOCALHOST, port).into());
    port.or_else(|_| text.parse()).map_err(|_| "write ADDR:PORT, as 127.0.0.1:9877, or a port".to_string())
}
