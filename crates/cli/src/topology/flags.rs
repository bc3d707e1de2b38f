//! The command lines of `tidepool topology`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

const SHOW: &str = "\
Examples:
  tidepool topology show                                what the resource database tells
  tidepool topology show --topology switches.toml
  tidepool topology show --slurm-topology /etc/slurm/topology.conf --json";

#[derive(Subcommand)]
pub enum TopologyCommand {
    /// List leaf switches with their hosts, islands, racks and links
    #[command(after_help = SHOW)]
    Show(ShowArgs),
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
    /// The resource database that does, without either [default: $TIDEPOOL_RESOURCES, or resources.db in $XDG_STATE_HOME/tidepool]
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
