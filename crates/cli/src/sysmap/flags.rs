//! The command lines of `tidepool sysmap` and `tidepool sysquery`.

use crate::doctor::facts::hostname;
use crate::flags::size;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use tidepool_stage_client::words::parse_duration;
use tidepool_sysmap::db::Keep;
use tidepool_sysmap::output::Format;
use tidepool_sysmap::probe;
use tidepool_types::format_size;

const COLLECT: &str = "\
Examples:
  tidepool sysmap collect                                   this node, for people
  tidepool sysmap collect --json --only disks,filesystems
  tidepool sysmap collect --db /shared/resources.db         into a database; any number of nodes at a time
  srun --ntasks-per-node=1 tidepool sysmap collect --db /shared/resources.db
  tidepool sysmap collect --only disks --source disks=lsblk
Needs no root. What a node does not have, or what could not be read, is told with the reason.";

const PROBE: &str = "\
Examples:
  tidepool sysmap probe --path /local --path /tmp           what directories take and give
  tidepool sysmap probe --path /local --db /shared/resources.db
  tidepool sysmap probe --listen n2                         on another node; then here:
  tidepool sysmap probe --peer n2 --secret-file FILE
  tidepool sysmap probe --loopback                          how fast this node is with itself
Takes disks and networks for seconds: run it when nobody else needs them. Scratch files have no names and are gone
with the command, however it ends. A secret is 64 hexadecimal digits, as `openssl rand -hex 32` prints them, in a
file that nobody else can read, or in $TIDEPOOL_PROBE_SECRET.";

pub const QUERY: &str = "\
Examples:
  tidepool sysquery --host n1 --extractor disks
  tidepool sysquery 'hosts with >= 500GB free on nvme'
  tidepool sysquery '>= 32 cores and not network[kind = infiniband]'
  tidepool sysquery 'fabric.hosts.switch = leaf1' --extractor memory,cpu
Questions: docs/guide/sysmap.md. With a question and without --extractor the hosts' names are printed.";

#[derive(Subcommand)]
pub enum SysmapCommand {
    /// Tell what this node is made of, and keep it in a database
    #[command(after_help = COLLECT)]
    Collect(CollectArgs),
    /// Measure directories and the network to other nodes, and keep what was measured in a database
    #[command(after_help = PROBE)]
    Probe(ProbeArgs),
    /// List what can be collected, and from where
    Extractors(ExtractorsArgs),
    /// Add records that `export` or `collect --format jsonl` wrote to a database
    #[command(
        after_help = "Example:\n  ssh n1 tidepool sysmap collect --format jsonl | tidepool sysmap import -"
    )]
    Import(ImportArgs),
    /// Write the records of a database, one a line
    #[command(after_help = "Example:\n  tidepool sysmap export --history > resources.jsonl")]
    Export(ExportArgs),
    /// Forget hosts
    #[command(after_help = "Example:\n  tidepool sysmap forget --dry-run n17")]
    Forget(ForgetArgs),
}

#[derive(Args)]
pub struct DatabaseFlag {
    /// The resource database [default: $TIDEPOOL_RESOURCES, or resources.db in $XDG_STATE_HOME/tidepool]
    #[arg(long, value_name = "FILE")]
    pub db: Option<PathBuf>,
}

#[derive(Args)]
pub struct CollectArgs {
    /// Extractors, with commas; all without
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Where an extractor reads, instead of the first place that tells anything; repeatable
    #[arg(long, value_name = "EXTRACTOR=SOURCE", value_parser = parse_source)]
    pub source: Vec<(String, String)>,
    #[command(flatten)]
    pub goal: GoalFlags,
    /// The network's switches are described in this file [default: /etc/tidepool/topology.toml]
    #[arg(long, value_name = "FILE")]
    pub topology: Option<PathBuf>,
    /// Switches are described in this file of Slurm [default: /etc/slurm/topology.conf]
    #[arg(long, value_name = "FILE")]
    pub slurm_topology: Option<PathBuf>,
    /// Directory with the site's own extractors [default: /etc/tidepool/extractors.d]
    #[arg(long, value_name = "DIR")]
    pub extractors: Option<PathBuf>,
    /// How long each program that is asked may take
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "60s")]
    pub patience: Duration,
    #[command(flatten)]
    pub form: FormFlags,
}

#[derive(Args)]
#[command(group = clap::ArgGroup::new("what").multiple(true).required(true).args(["path", "peer", "loopback", "listen"]))]
pub struct ProbeArgs {
    /// Measure what this directory takes and gives; repeatable
    #[arg(long, value_name = "DIR")]
    pub path: Vec<PathBuf>,
    /// Measure with who listens there; repeatable [default port: 42010]
    #[arg(long, value_name = "HOST[:PORT]")]
    pub peer: Vec<String>,
    /// Measure with this node itself; recorded as host 'loopback', which no plan takes for the network
    #[arg(long)]
    pub loopback: bool,
    /// Let one other node measure with this one, at this address; port 0 takes a free one
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with_all = ["path", "peer", "loopback", "db", "format", "json"])]
    pub listen: Option<String>,
    /// How long to wait for that node
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "10m",
          conflicts_with_all = ["path", "peer", "loopback"])]
    pub wait: Duration,
    /// File with the secret that both nodes have [default: the secret in $TIDEPOOL_PROBE_SECRET]
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Bytes of a run; on disks at most a twentieth of what is free [default: 256MiB, or what there is room for]
    #[arg(long, value_name = "SIZE", value_parser = probe_size)]
    pub size: Option<u64>,
    /// How often each measurement is made
    #[arg(long, value_name = "N", default_value_t = probe::RUNS_MIN as u16,
          value_parser = clap::value_parser!(u16).range(probe::RUNS_MIN as i64..=probe::RUNS_MAX as i64))]
    pub runs: u16,
    /// How long each directory or peer may take; runs get shorter to keep to it
    #[arg(long, value_name = "DURATION", value_parser = probe_limit, default_value = "60s")]
    pub limit: Duration,
    #[command(flatten)]
    pub goal: GoalFlags,
    #[command(flatten)]
    pub form: FormFlags,
}

/// Where records of this host go.
#[derive(Args)]
pub struct GoalFlags {
    /// Put the records into this database instead of printing them; what was measured of other directories and peers stays
    #[arg(long, value_name = "FILE")]
    pub db: Option<PathBuf>,
    /// Keep earlier records in the database, too
    #[arg(long, requires = "db")]
    pub history: bool,
    /// This host's name
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
}

impl GoalFlags {
    pub fn host(&self) -> String {
        self.host.clone().unwrap_or_else(hostname)
    }

    pub fn keep(&self) -> Keep {
        if self.history { Keep::History } else { Keep::Latest }
    }
}

#[derive(Args)]
pub struct FormFlags {
    /// How records are printed
    #[arg(long, value_name = "FORM", default_value = "table", conflicts_with = "json")]
    pub format: FormatFlag,
    /// As --format json
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum FormatFlag {
    /// For people
    Table,
    /// One list of records
    Json,
    /// A record a line; can be imported
    Jsonl,
    Yaml,
    /// A value a line
    Csv,
}

impl FormFlags {
    pub fn format(&self) -> Format {
        match self.format {
            _ if self.json => Format::Json,
            FormatFlag::Table => Format::Table,
            FormatFlag::Json => Format::Json,
            FormatFlag::Jsonl => Format::JsonLines,
            FormatFlag::Yaml => Format::Yaml,
            FormatFlag::Csv => Format::Csv,
        }
    }
}

#[derive(Args)]
pub struct ExtractorsArgs {
    /// Directory with the site's own extractors [default: /etc/tidepool/extractors.d]
    #[arg(long, value_name = "DIR")]
    pub extractors: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct ImportArgs {
    /// Files with a record a line; '-' is standard input
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Keep earlier records, too
    #[arg(long)]
    pub history: bool,
    #[command(flatten)]
    pub database: DatabaseFlag,
}

#[derive(Args)]
pub struct ExportArgs {
    /// Earlier records, too
    #[arg(long)]
    pub history: bool,
    #[command(flatten)]
    pub database: DatabaseFlag,
}

#[derive(Args)]
pub struct ForgetArgs {
    /// Names, or lists such as node[01-16]
    #[arg(required = true)]
    pub hosts: Vec<String>,
    /// Only tell what would be forgotten
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub database: DatabaseFlag,
}

#[derive(Args)]
pub struct QueryArgs {
    /// Which hosts: 'hosts with >= 500GB free on nvme'
    pub question: Option<String>,
    /// Hosts, also as lists such as node[01-16]; repeatable
    #[arg(long, value_name = "HOSTS")]
    pub host: Vec<String>,
    /// Extractors, with commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub extractor: Vec<String>,
    /// Earlier records, too
    #[arg(long)]
    pub history: bool,
    #[command(flatten)]
    pub database: DatabaseFlag,
    /// How the answer is printed
    #[arg(long, value_name = "FORM", default_value = "json")]
    pub format: FormatFlag,
}

fn probe_size(text: &str) -> Result<u64, String> {
    let size = size(text)?;
    match (probe::SIZE_MIN..=probe::SIZE_MAX).contains(&size) {
        true => Ok(size),
        false => {
            Err(format!("it has to be {} to {}", format_size(probe::SIZE_MIN), format_size(probe::SIZE_MAX)))
        }
    }
}

fn probe_limit(text: &str) -> Result<Duration, String> {
    /// Less leaves no time for five runs.
    const LEAST: Duration = Duration::from_secs(1);
    let limit = parse_duration(text).map_err(|error| error.to_string())?;
    if limit < LEAST { Err(format!("it has to be {LEAST:?} at least")) } else { Ok(limit) }
}

fn parse_source(text: &str) -> Result<(String, String), String> {
    let (extractor, source) = text.split_once('=').ok_or("expected EXTRACTOR=SOURCE, as disks=lsblk")?;
    Ok((extractor.into(), source.into()))
}
