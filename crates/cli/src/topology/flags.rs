//! The command lines of `tidepool topology`.

use clap::{Args, Subcommand, ValueEnum};
use std::num::NonZeroUsize;
use std::path::PathBuf;

const SHOW: &str = "\
Examples:
  tidepool topology show                                what the resource database tells
  tidepool topology show --topology switches.toml
  tidepool topology show --slurm-topology /etc/slurm/topology.conf --json";

const FLOW: &str = "\
Examples:
  tidepool topology flow --topology switches.toml
  tidepool topology flow --topology switches.toml --off core[2-6]
  tidepool topology flow --topology switches.toml --off core[2-6] --pools leaf
  tidepool topology flow --device-write 2GB --stripe 4 --json
Each writer is one flow at its max-min fair rate; its data go to its pool's nodes in equal shares, by the shortest ways.
Nothing is measured, and protocols, metadata and processors are left out. Rates are bytes a second.";

const DRAW: &str = "\
Examples:
  tidepool topology draw --topology switches.toml -o network.svg
  tidepool topology draw --pool mine -o pool.svg
  tidepool topology draw --pool mine --path /out/field -o file.svg     the file's chunks on each node";

#[derive(Subcommand)]
pub enum TopologyCommand {
    /// List leaf switches with their hosts, islands, racks and links
    #[command(after_help = SHOW)]
    Show(ShowArgs),
    /// Model how fast nodes write to each other over the network, with switches off, with pools at leaf switches
    #[command(after_help = FLOW)]
    Flow(FlowArgs),
    /// Draw it as SVG, with the nodes of a pool and where a file lies
    #[command(after_help = DRAW)]
    Draw(DrawArgs),
}

/// Where the network is described; the first that is given is taken.
#[derive(Args, Clone, Debug, Default)]
pub struct TopologyFlags {
    /// A file that describes the network's switches (docs/formats/17-topology.md)
    #[arg(long, value_name = "FILE", conflicts_with = "slurm_topology")]
    pub topology: Option<PathBuf>,
    /// A file of Slurm that does, topology.conf
    #[arg(long, value_name = "FILE")]
    pub slurm_topology: Option<PathBuf>,
    /// The resource database; it tells of the network where no file does [default: $TIDEPOOL_RESOURCES, or resources.db in
    /// $XDG_STATE_HOME/tidepool]
    #[arg(long, value_name = "FILE")]
    pub db: Option<PathBuf>,
}

#[derive(Args)]
pub struct ShowArgs {
    #[command(flatten)]
    pub network: TopologyFlags,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct DrawArgs {
    #[command(flatten)]
    pub network: TopologyFlags,
    /// Where to; '-' is standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Mark the nodes that have daemons of this pool
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Write on each node how many chunks of this file of the pool lie there [default pool: $TIDEPOOL_POOL, or the only one]
    #[arg(long, value_name = "PATH")]
    pub path: Option<PathBuf>,
}

#[derive(Args)]
pub struct FlowArgs {
    #[command(flatten)]
    pub network: TopologyFlags,
    /// Nodes that keep data, as node[01-16]; all of the network without
    #[arg(long, value_name = "HOSTS")]
    pub nodes: Option<String>,
    /// Nodes that write; all that keep data without
    #[arg(long, value_name = "HOSTS")]
    pub writers: Option<String>,
    /// Switches that are off, as core[2-6]
    #[arg(long, value_name = "SWITCHES")]
    pub off: Option<String>,
    /// Which nodes keep a writer's data
    #[arg(long, value_enum, default_value = "none")]
    pub pools: PoolsFlag,
    /// To so many nodes of its pool each writer's data go, in turn; to all without
    #[arg(long, value_name = "N")]
    pub stripe: Option<NonZeroUsize>,
    /// What a node's storage takes in a second
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "500MB")]
    pub device_write: u64,
    /// Speed of a link of which nobody tells it
    #[arg(long, value_name = "NUMBER")]
    pub gigabits_per_second: Option<f64>,
    /// How traffic takes one of several ways that are equally short
    #[arg(long, value_enum, default_value = "even")]
    pub routing: RoutingFlag,
    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print a line of names and a line of values, separated by commas
    #[arg(long)]
    pub csv: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum PoolsFlag {
    /// Any
    None,
    /// Those at the writer's leaf switch
    Leaf,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum RoutingFlag {
    /// Evenly over all of them
    Even,
    /// All between two nodes by one that a hash chooses
    Hashed,
}

fn size(text: &str) -> Result<u64, String> {
    tidepool_types::parse_size(text).map_err(|error| error.to_string())
}
