//! The command line: one definition for the parser and the help.

use crate::flush::flags::{FlushArgs, FlushBandwidth, FlushFlag, flush_bandwidth};
use crate::jobs::flags::JobsCommand;
use crate::place::NodeAt;
use crate::plan::flags::{self as plan_flags, JobFlags, PlanArgs};
use crate::sim::flags::SimCommand;
use crate::slurm::flags::{SlurmCommand, WorkflowCommand};
use crate::stage::flags::{self as stage_flags, StageArgs};
use crate::sysmap::flags::{self as sysmap_flags, QueryArgs, SysmapCommand};
use crate::tiers::flags::TiersCommand;
use crate::top::flags::{self as top_flags, MetricsArgs, TopArgs};
use crate::topology::flags::{TopologyCommand, TopologyFlags};
use crate::trace::io::TraceIoArgs;
use crate::workload::flags::WorkloadCommand;
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use tidepool_client::Wanted;
use tidepool_fsd::{FlushConfig, TierConfig};
use tidepool_plan::Deploy;
use tidepool_shape::Shape;
use tidepool_stage_client::words::parse_duration;
use tidepool_transport::ANSWER_MS;
use tidepool_types::{ChunkSize, Encryption, Placement, parse_bandwidth, parse_phase_bytes, parse_size};

const RUN_EXAMPLES: &str = "\
Examples:
  tidepool run -- ls -la                                  a pool of one daemon, for one command
  tidepool run --nodes 4 --in data:/in --out /out:results -- ./solver
  tidepool run --hosts n1,n2 --store /local -- mpirun ./app
  tidepool run --job job.sh 100                           what the script's directives say, without Slurm
Inside a Slurm allocation its nodes are used through srun. The program starts in the pool
and finds its path in $TIDEPOOL_DIR. Output is staged out also when the program fails.
Exit code: the program's own; 110 pool did not start, 111 stage-in failed, 112 output is
incomplete, 113 something may be left behind.";

/// A file system for one job, made of its nodes' local storage.
#[derive(Parser)]
#[command(name = "tidepool", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Start a pool, stage input in, run a program on it, stage output out, stop the pool
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Start, list, show or stop pools that outlive one command
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Tell how a pool would be made for a job, why, and what it would cost
    #[command(after_help = plan_flags::PLAN)]
    Plan(Box<PlanArgs>),
    /// Run a program on a running pool
    #[command(after_help = "Example:\n  tidepool exec --pool mine -- sh -c 'cd $TIDEPOOL_DIR && make'")]
    Exec(ExecArgs),
    /// Mount a running pool by FUSE, in the foreground, until Ctrl-C
    #[command(after_help = "Example:\n  tidepool mount --pool mine /tmp/mine")]
    Mount(MountArgs),
    /// List a directory of a pool, without interception or mount
    #[command(after_help = "Example:\n  tidepool ls --pool mine -l /out")]
    Ls(LsArgs),
    /// Print files of a pool
    #[command(after_help = "Example:\n  tidepool cat --pool mine /out/log")]
    Cat(CatArgs),
    /// Copy files and trees, here or into or out of a pool, verified and resumable
    #[command(
        after_help = "Examples:\n  tidepool cp data /scratch\n  tidepool cp -T data /scratch/copy\n  tidepool cp --pool mine data pool:/in\n  tidepool cp --pool mine pool:/out results\n  tidepool cp --gentle --bwlimit 100MiB --pool mine pool:/out results   beside a program\nPaths in the pool start with 'pool:'. As with cp -a, a copy gets its source's name in a directory that exists.\nRun an interrupted copy again to go on with it."
    )]
    Cp(CpArgs),
    /// Remove files and, with -r, trees of a pool
    #[command(after_help = "Example:\n  tidepool rm --pool mine --dry-run -r /scratch")]
    Rm(RmArgs),
    /// Make directories in a pool
    Mkdir(MkdirArgs),
    /// Show or set how the data of files lie on the daemons of a pool
    #[command(subcommand)]
    Layout(LayoutCommand),
    /// Show who loads shared storage, whom that slows down, and who is to blame
    #[command(after_help = top_flags::TOP)]
    Top(TopArgs),
    /// Tell what daemons count, and who loads shared storage, to Prometheus
    #[command(after_help = top_flags::METRICS)]
    Metrics(MetricsArgs),
    /// Finish the stage-out of a run that was killed, then stop its pool; nothing is copied of one whose program never ran
    #[command(
        after_help = "Examples:\n  tidepool drain --pool run-1a2b3c4d\n  tidepool drain --gentle --bwlimit 100MiB     beside programs"
    )]
    Drain(DrainArgs),
    /// Verify the metadata and every checksum of a pool
    Check(CheckArgs),
    /// Tell what works on this node, and what to do about the rest
    Doctor(DoctorArgs),
    /// Watch a program to learn what it needs of a file system
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Measure metadata or data speed, beside the underlying file system
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Do I/O of the kind programs make, alone or several at once, and measure it
    #[command(subcommand)]
    Workload(WorkloadCommand),
    /// Measure how storage bears many processes at once: a burst buffer, a parallel file system, or shaped ones
    #[command(subcommand)]
    Tiers(TiersCommand),
    /// Simulate systems of many processes in virtual time
    #[command(subcommand)]
    Sim(SimCommand),
    /// Hand staging tasks to this node's stager, watch and administer them
    #[command(after_help = stage_flags::HELP)]
    Stage(Box<StageArgs>),
    /// Tell what nodes are made of, and keep it in a database
    #[command(subcommand)]
    Sysmap(SysmapCommand),
    /// Ask the resource database
    #[command(after_help = sysmap_flags::QUERY)]
    Sysquery(Box<QueryArgs>),
    /// Show the network of the machine: leaf switches, islands, racks
    #[command(subcommand)]
    Topology(TopologyCommand),
    /// Jobs with directives in Slurm: scripts checked, jobs told of, stage-outs finished, Slurm configured
    #[command(subcommand)]
    Slurm(SlurmCommand),
    /// What would have become of the jobs of a log, and what will of those of a queue
    #[command(subcommand)]
    Jobs(JobsCommand),
    /// Test whether this node can take part in a pool; for prologs of batch systems
    #[command(after_help = "Example:\n  tidepool node-check --store /local --min-free 10GiB")]
    NodeCheck(NodeCheckArgs),
    /// Remove what dead pools left on this node; for epilogs of batch systems
    #[command(after_help = "Example:\n  tidepool node-clean --dry-run")]
    NodeClean(NodeCleanArgs),
    /// Jobs that belong together
    #[command(subcommand)]
    Workflow(WorkflowCommand),
    /// The agent that `tidepool` starts on each node; not for people
    #[command(hide = true)]
    Node(NodeArgs),
    /// What stands by a mount and ends its connection when its process was killed and cannot end; not for people
    #[command(hide = true)]
    MountGuard { pid: u32 },
    /// Write the manual pages of this program; `make install` does
    #[command(hide = true)]
    Man { dir: PathBuf },
}

/// How programs see the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Door {
    /// FUSE where it works, else preload
    Auto,
    /// A FUSE mount: works for all programs
    Fuse,
    /// The preload library: no mount, dynamic programs only
    Preload,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum BackendFlag {
    /// In-memory tables with a write-ahead log
    Memlog,
    /// LMDB, for name spaces larger than memory
    Lmdb,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ModeFlag {
    /// Permissions are checked
    Posix,
    /// Permissions are not checked
    Relaxed,
    /// As GekkoFS: no permission checks, no rename, no links
    Compat,
}

/// What kind of file system `run` makes; see `backend/mod.rs`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FsKind {
    Tidepool,
    Local,
    Script(PathBuf),
}

impl fmt::Display for FsKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FsKind::Tidepool => f.write_str("a pool"),
            FsKind::Local => f.write_str("a local directory"),
            FsKind::Script(program) => write!(f, "a file system by {}", program.display()),
        }
    }
}

fn fs_kind(text: &str) -> Result<FsKind, String> {
    match text.split_once(':') {
        None if text == "tidepool" => Ok(FsKind::Tidepool),
        None if text == "local" => Ok(FsKind::Local),
        Some(("script", program)) if !program.is_empty() => Ok(FsKind::Script(program.into())),
        _ => Err("write tidepool, local or script:PROGRAM".to_string()),
    }
}

/// `UID:GID`.
pub fn user(text: &str) -> Result<(u32, u32), String> {
    let ids = text.split_once(':').and_then(|(u, g)| Some((u.parse().ok()?, g.parse().ok()?)));
    ids.ok_or_else(|| "write UID:GID, two numbers".to_string())
}

pub fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|e| e.to_string())
}

/// How the data of files lie on the daemons. What is not said stays as it is.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct LayoutShape {
    /// Where a file's data go: over all daemons (wide), to the node where the file is made (local),
    /// over all daemons by their weights (weighted), over the daemons of one group (group)
    #[arg(long, value_name = "PLACEMENT", value_parser = placement)]
    pub placement: Option<Placement>,
    /// Bytes of a chunk: a power of two, or auto: what was measured to suit own and shared files alike
    /// [default for a pool: auto]
    #[arg(long, value_name = "SIZE", value_parser = ChunkSize::from_str)]
    pub chunk_size: Option<ChunkSize>,
    /// Put the chunks of a file on N daemons in turn, instead of all; 0 for all. For wide
    #[arg(long, value_name = "N")]
    pub stripe: Option<u16>,
}

impl LayoutShape {
    pub fn wanted(&self) -> Wanted {
        let chunk_size = self.chunk_size.map(ChunkSize::bytes);
        Wanted { placement: self.placement, chunk_size, stripe: self.stripe, group: None }
    }
}

fn placement(word: &str) -> Result<Placement, String> {
    Placement::parse(word).ok_or_else(|| "write wide, local, weighted or group".to_string())
}

/// Cores of a node, in ascending order.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct CoreList(pub Vec<u16>);

fn absolute(text: &str) -> Result<PathBuf, String> {
    std::path::absolute(text).map_err(|e| e.to_string())
}

/// A strategy for I/O phases.
fn strategy(text: &str) -> Result<String, String> {
    tidepool_iosched::by_name(text).map(|known| known.name().into()).map_err(|e| e.to_string())
}

/// A shape from a file; all that is wrong with it, each in a line.
pub fn shape_file(path: &str) -> Result<Shape, String> {
    let bytes = std::fs::metadata(path).map_err(|e| e.to_string())?.len();
    if bytes > tidepool_shape::FILE_BYTES_MAX {
        return Err(format!("larger than {} bytes", tidepool_shape::FILE_BYTES_MAX));
    }
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    tidepool_shape::read(&text).map_err(|problems| {
        problems.iter().map(|problem| format!("{path}: {problem}")).collect::<Vec<_>>().join("\n  ")
    })
}

fn cores(text: &str) -> Result<CoreList, String> {
    let number = |text: &str| match text.parse::<u16>() {
        Ok(core) if core < tidepool_fsd::CORES_MAX => Ok(core),
        _ => Err(format!("'{text}' is no core: write numbers below {} as 0-3,8", tidepool_fsd::CORES_MAX)),
    };
    let mut all = BTreeSet::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(format!("'{part}' is no range of cores: {first} is more than {last}"));
        }
        all.extend(first..=last);
    }
    Ok(CoreList(all.into_iter().collect()))
}

/// What a new pool looks like.
#[derive(Args, Clone)]
pub struct PoolShape {
    /// Daemons of a pool on this machine, or nodes to use of what the batch system has given
    #[arg(short = 'n', long, value_name = "N")]
    pub nodes: Option<usize>,
    /// Hosts to use through ssh, separated by commas, or @FILE with one per line
    #[arg(long, value_name = "HOSTS", conflicts_with = "local")]
    pub hosts: Option<String>,
    /// Hosts that one machine starts through ssh: with more, the first N each start N others, and so on. 0: this
    /// machine starts all, for clusters whose nodes cannot reach each other by ssh
    #[arg(long, value_name = "N", default_value_t = crate::relay::FAN_OUT)]
    pub fan_out: usize,
    /// Use this machine only, also inside a job of a batch system
    #[arg(long)]
    pub local: bool,
    /// Which nodes get daemons: all (shared), the first N (subset:N), or the first N, which
    /// programs then are to leave alone (dedicated:N); see $TIDEPOOL_NODES, $TIDEPOOL_HOSTFILE
    /// [default: shared]
    #[arg(long, value_name = "MODE", value_parser = Deploy::from_str)]
    pub deploy: Option<Deploy>,
    /// Node-local directory for the pool's data [default: $TIDEPOOL_STORE, $TMPDIR, or what 'tidepool plan' tells]
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Remove the data of another pool found in the store directory
    #[arg(long)]
    pub wipe: bool,
    #[command(flatten)]
    pub layout: LayoutShape,
    /// How much of the data each daemon takes, as numbers from 0 to 1000 in the order of the
    /// daemons: for devices of different speed or size. Placement is then weighted unless it is named
    #[arg(long, value_name = "W,W,...", value_delimiter = ',')]
    pub weights: Vec<u32>,
    /// The name of each daemon's group, in the order of the daemons. Placement is then group unless it is named:
    /// a file's data stay on the group of the node where it is made
    #[arg(long, value_name = "NAME,NAME,...", value_delimiter = ',')]
    pub groups: Vec<String>,
    /// File that says which layout files of which names get
    #[arg(long, value_name = "FILE")]
    pub hints: Option<PathBuf>,
    /// Let a process tell later and together how far it has written: many small writes to shared files
    /// are faster, but others see the file's size when the writer has closed or synced it
    #[arg(long)]
    pub size_cache: bool,
    /// Metadata store of the daemons
    #[arg(long, value_enum, default_value = "memlog")]
    pub backend: BackendFlag,
    /// How strictly POSIX is followed [default: posix]
    #[arg(long, value_enum)]
    pub mode: Option<ModeFlag>,
    /// Most bytes of data in the pool; each daemon gets an equal share [default: 0: no limit]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub quota: Option<u64>,
    /// Most files, directories and links in the pool; each daemon gets an equal share
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub quota_objects: u64,
    /// Threads of each daemon [default: cores + 2]
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub daemon_threads: usize,
    /// Provider of libfabric (see 'fi_info -l') for messages between nodes, in builds with libfabric
    #[arg(long, value_name = "PROVIDER")]
    pub fabric: Option<String>,
    /// What is done to what goes over TCP between nodes: full (nobody else can read or change it) or off
    /// [default: full; off with --fabric]
    #[arg(long, value_name = "HOW", value_parser = encryption)]
    pub encrypt: Option<Encryption>,
    /// Directory of a shared burst buffer: data go there or to --pfs as --strategy says, and are read from wherever they lie
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    pub burst: Option<PathBuf>,
    /// Directory of the parallel file system, for data that the pool's own storage is not to keep
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    pub pfs: Option<PathBuf>,
    /// Slow --burst down to the bandwidths of a file, for tests and demonstrations on one machine
    /// (docs/formats/25-shaped-tiers.md)
    #[arg(long, value_name = "FILE", requires = "burst", value_parser = shape_file)]
    pub shape_burst: Option<Shape>,
    /// The same for --pfs
    #[arg(long, value_name = "FILE", requires = "pfs", value_parser = shape_file)]
    pub shape_pfs: Option<Shape>,
    /// Which storage new data go to, when, and when they are flushed to the slower one: baseline (the parallel file system
    /// only), hp (the burst buffer first), ia (where nobody is in the way), fcfs (one pool at a time on each), and, by
    /// bandwidths that 'tidepool tiers measure' has found, fair (equal shares), set10 (short periods first), model (least
    /// time for all) [default: ia]
    #[arg(long, value_name = "NAME", value_parser = strategy)]
    pub strategy: Option<String>,
    /// With --burst or --pfs: put no new data on the nodes' own storage
    #[arg(long)]
    pub no_local: bool,
    /// Most bytes that each daemon flushes in a second. Or for some of these, separated by commas: burst=SIZE and
    /// pfs=SIZE, each daemon to that tier; pool=SIZE, all daemons together; daemon=SIZE [default: 0: no limit]
    #[arg(long, value_name = "SIZE", value_parser = flush_bandwidth)]
    pub flush_bandwidth: Option<FlushBandwidth>,
    /// When data are flushed [default: strategy]
    #[arg(long, value_enum, value_name = "WHEN")]
    pub flush: Option<FlushFlag>,
    /// Bytes that each process writes in an I/O phase, if that is known: strategies then need not guess.
    /// $TIDEPOOL_PHASE_BYTES of a program with the preload library wins
    #[arg(long, value_name = "SIZE", value_parser = parse_phase_bytes)]
    pub phase_bytes: Option<u64>,
    /// Bytes that the network of each node carries to shared storage in a second, if that is known: 'model' then does not
    /// keep apart what no storage can be filled with
    #[arg(long, value_name = "SIZE", value_parser = parse_bandwidth)]
    pub link_bandwidth: Option<NonZeroU64>,
    /// Network interface by which daemons on other nodes are reached, as ib0 [default: what 'tidepool plan' tells]
    #[arg(long, value_name = "NAME")]
    pub nic: Option<String>,
    /// Cores of its node that a daemon may use, as 0-3,8 [default: what 'tidepool plan' tells: all, or those near the
    /// store's disk]
    #[arg(long, value_name = "LIST", value_parser = cores)]
    pub daemon_cores: Option<CoreList>,
    /// How long programs and commands wait for a daemon that is there and says nothing, as one that is stopped, before they
    /// get EIO: 1s to 1h
    #[arg(long, value_name = "TIME", value_parser = answer_timeout, default_value = "120s")]
    pub answer_timeout: Duration,
    /// How programs see the pool [default: auto]
    #[arg(long, value_enum)]
    pub client: Option<Door>,
    /// Milliseconds for which a FUSE mount may reuse names and attributes; 0 is strict. Safe
    /// and much faster where all programs use the same mount
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub cache_ttl: u64,
    #[command(flatten)]
    pub job: JobFlags,
    #[command(flatten)]
    pub network: TopologyFlags,
}

fn answer_timeout(text: &str) -> Result<Duration, String> {
    let (least, most) = (*ANSWER_MS.start(), *ANSWER_MS.end());
    let time = parse_duration(text)?;
    if (Duration::from_millis(least)..=Duration::from_millis(most)).contains(&time) {
        return Ok(time);
    }
    Err(format!("write a time from {} to {} s, such as 30s", least / 1000, most / 1000))
}

fn encryption(text: &str) -> Result<Encryption, String> {
    Encryption::parse(text).map_err(|error| error.to_string())
}

/// The strategy of pools with shared storage, unless another one is named.
pub const STRATEGY: &str = "ia";

impl PoolShape {
    pub fn mode(&self) -> ModeFlag {
        self.mode.unwrap_or(ModeFlag::Posix)
    }

    /// Of what goes over TCP. What goes over a fabric is not encrypted, so nobody is told that it were.
    pub fn encryption(&self) -> Encryption {
        let usual = if self.fabric.is_some() { Encryption::Off } else { Encryption::Full };
        self.encrypt.unwrap_or(usual)
    }

    /// What is wrong with --encrypt beside other flags.
    pub fn check_encryption(&self) -> Result<(), String> {
        match &self.fabric {
            Some(provider) if !self.encryption().is_off() => Err(format!(
                "--encrypt full: nothing encrypts what goes over a fabric; leave out --fabric '{provider}', or say --encrypt off"
            )),
            _ => Ok(()),
        }
    }

    /// Bytes; 0: no limit.
    pub fn quota(&self) -> u64 {
        self.quota.unwrap_or(0)
    }

    pub fn has_tiers(&self) -> bool {
        self.burst.is_some() || self.pfs.is_some()
    }

    /// Storage below the pool's own; none without --burst and --pfs.
    /// `name`: of the pool.
    pub fn tiers(&self, name: &str, daemons: usize) -> Option<TierConfig> {
        let limits = self.flush_bandwidth.unwrap_or_default();
        self.has_tiers().then(|| TierConfig {
            burst: self.burst.clone(),
            pfs: self.pfs.clone(),
            strategy: self.strategy.clone().unwrap_or_else(|| STRATEGY.into()),
            name: name.into(),
            no_local: self.no_local,
            flush_bandwidth: limits.of_daemon(daemons),
            flush: FlushConfig {
                when: self.flush.map(FlushFlag::when).unwrap_or_default(),
                to_burst: limits.to_burst,
                to_pfs: limits.to_pfs,
            },
            shape_burst: self.shape_burst.clone(),
            shape_pfs: self.shape_pfs.clone(),
            phase_bytes: self.phase_bytes,
            link_bandwidth: self.link_bandwidth,
        })
    }

    /// Tiers that are slowed down, and what every output says of them.
    pub fn shaped(&self) -> BTreeMap<String, String> {
        let tiers = [("burst", &self.shape_burst), ("pfs", &self.shape_pfs)];
        let label = |shape: &Shape| tidepool_shape::label(shape.name());
        tiers
            .into_iter()
            .filter_map(|(tier, shape)| Some((tier.into(), shape.as_ref().map(label)?)))
            .collect()
    }

    /// What is said of tiers has to have some.
    pub fn check_tiers(&self) -> Result<(), String> {
        if self.strategy.as_deref() == Some("baseline") && self.burst.is_some() && self.pfs.is_none() {
            return Err("--strategy baseline uses the parallel file system only; name it with --pfs".into());
        }
        if self.has_tiers() && self.burst == self.pfs {
            return Err("--burst and --pfs name the same directory; leave one of the two away".into());
        }
        let limits = self.flush_bandwidth.unwrap_or_default();
        for (limit, dir, name) in [(limits.to_burst, &self.burst, "burst"), (limits.to_pfs, &self.pfs, "pfs")]
        {
            if limit > 0 && self.has_tiers() && dir.is_none() {
                return Err(format!("--flush-bandwidth {name}=… is for pools with --{name}"));
            }
        }
        let said = [
            (self.strategy.is_some(), "--strategy"),
            (self.flush_bandwidth.is_some(), "--flush-bandwidth"),
            (self.flush.is_some(), "--flush"),
            (self.no_local, "--no-local"),
            (self.phase_bytes.is_some(), "--phase-bytes"),
            (self.link_bandwidth.is_some(), "--link-bandwidth"),
        ];
        match said.into_iter().find(|(said, _)| *said) {
            Some((_, flag)) if !self.has_tiers() => {
                Err(format!("{flag} is for pools with shared storage; name it with --pfs, --burst or both"))
            }
            _ => Ok(()),
        }
    }

    pub fn door(&self) -> Door {
        self.client.unwrap_or(Door::Auto)
    }
}

#[derive(Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub shape: PoolShape,
    /// Kind of file system: a pool of daemons (tidepool), a plain directory of one node's store
    /// (local), or what a program of the site's makes (script:PROGRAM)
    #[arg(long, value_name = "KIND", default_value = "tidepool", value_parser = fs_kind)]
    pub fs: FsKind,
    /// Copy SRC into the pool at DST before the program starts
    #[arg(long = "in", value_name = "SRC:/DST")]
    pub stage_in: Vec<String>,
    /// Copy /SRC of the pool to DST when the program has ended
    #[arg(long = "out", value_name = "/SRC:DST")]
    pub stage_out: Vec<String>,
    /// Give results their names only when all are copied, oldest change first: nobody sees a file there without an older one
    #[arg(long)]
    pub ordered: bool,
    /// Fail with 112 where a result has no file, instead of warning
    #[arg(long)]
    pub require: bool,
    /// Run a batch script, here and without a batch system: its #NORNS and #TIDEPOOL lines say what is started and staged.
    /// Flags win over what its pools say
    #[arg(long, value_name = "SCRIPT", conflicts_with_all = ["fs", "stage_in", "stage_out"])]
    pub job: Option<PathBuf>,
    /// The site's dataspaces, for --job [default: /etc/tidepool/slurm.toml, if it is there]
    #[arg(long, value_name = "FILE", requires = "job")]
    pub site: Option<PathBuf>,
    /// Say what would be done, with sizes, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print a report as one line of JSON on standard output at the end
    #[arg(long)]
    pub json: bool,
    /// Seconds between SIGTERM and SIGKILL for the program when the run is stopped
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub kill_grace: u64,
    /// Arguments of the script that --job names; those that start with '-' come behind '--'
    #[arg(value_name = "ARGS")]
    pub args: Vec<OsString>,
    /// The program and its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

const START: &str = "\
Examples:
  tidepool pool start --name mine --nodes 2
  tidepool pool start --name job-42 --stagers n1=n1:42000,n2=n2:42000 --secret-file /etc/tidepool/admin.secret \\
    --as 1000:1000 --job 42                    root, for a user, on nodes whose stagers start agents";

#[derive(Subcommand)]
pub enum PoolCommand {
    /// Start a pool
    #[command(after_help = START)]
    Start(Box<StartArgs>),
    /// Stop a pool and remove everything it made
    #[command(
        after_help = "Examples:\n  tidepool pool stop --pool mine\n  tidepool pool stop --pool mine --keep     leave the data for a later start --keep\n  tidepool pool stop --pool mine --keep --flush-first     and none of them on the burst buffer"
    )]
    Stop(StopArgs),
    /// Show the daemons of a pool
    Status(StatusArgs),
    /// Move what a pool on several tiers has to the slowest one, now and whatever its strategy says
    #[command(
        after_help = "Examples:\n  tidepool pool flush --pool mine --wait\n  tidepool pool flush --pool mine --to burst --bandwidth 100MB\nWhile it goes on, new data go there, too. With --wait the command ends with 0 only when all lies there."
    )]
    Flush(FlushArgs),
    /// List the pools of this user on this node
    List(ListArgs),
}

#[derive(Args)]
pub struct StartArgs {
    /// Name of the pool [default: made up]
    #[arg(long)]
    pub name: Option<String>,
    #[command(flatten)]
    pub shape: PoolShape,
    #[command(flatten)]
    pub through: ThroughFlags,
    /// Reopen the data of a pool of this name that was stopped with --keep
    #[arg(long, requires = "name")]
    pub keep: bool,
    #[arg(long)]
    pub dry_run: bool,
    #[arg(long)]
    pub json: bool,
}

/// A user's pool on nodes that this machine is none of: for batch systems.
#[derive(Args, Clone)]
pub struct ThroughFlags {
    /// Start another user's pool on these nodes, through their stagers. Nothing of it is on this machine: the user finds and
    /// stops it on its nodes. The store is --store, $TIDEPOOL_STORE, or what the resource database tells of the nodes, else /tmp
    #[arg(long, value_name = "NAME=HOST:PORT,...", value_delimiter = ',', hide_short_help = true,
          requires_all = ["secret_file", "as_user"], conflicts_with_all = ["keep", "hosts", "nodes", "local"])]
    pub stagers: Vec<NodeAt>,
    /// With --stagers: their secret, as their configuration names it
    #[arg(long, value_name = "FILE", requires = "stagers", hide_short_help = true)]
    pub secret_file: Option<PathBuf>,
    /// With --stagers: whose pool it is, with the groups that this machine knows of the user
    #[arg(long = "as", value_name = "UID:GID", value_parser = user, requires = "stagers", hide_short_help = true)]
    pub as_user: Option<(u32, u32)>,
    /// With --stagers: the job it is for, by which 'tidepool node-clean --job' finds it; 0 for none
    #[arg(long, value_name = "ID", default_value_t = 0, requires = "stagers", hide_short_help = true)]
    pub job: u32,
}

/// Which pool is meant.
#[derive(Args, Clone)]
pub struct PoolChoice {
    /// Name of the pool, or the path of its pool file, as variables of jobs have it [default: $TIDEPOOL_POOL, or the only one on this node]
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
}

#[derive(Args)]
pub struct StopArgs {
    #[command(flatten)]
    pub choice: PoolChoice,
    /// Leave the data in the store directories
    #[arg(long)]
    pub keep: bool,
    /// With --keep, of a pool on several tiers: move all data to the slowest tier before. The pool goes on when that fails
    #[arg(long, requires = "keep")]
    pub flush_first: bool,
    #[arg(long)]
    pub dry_run: bool,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub choice: PoolChoice,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct ListArgs {
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct ExecArgs {
    #[command(flatten)]
    pub choice: PoolChoice,
    #[arg(long, value_enum, default_value = "auto")]
    pub client: Door,
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

#[derive(Subcommand)]
pub enum TraceCommand {
    /// List the POSIX features a program uses, and which door and mode of a pool give them
    #[command(
        after_help = "Examples:\n  tidepool trace posix -- ./solver case\n  tidepool trace posix --under /scratch/me --json -- make\nThe program runs where you are, under strace, not on a pool. It takes longer than usual."
    )]
    Posix(TracePosixArgs),
    /// Record what a program reads and writes on a pool, as requests for the simulator
    #[command(after_help = crate::trace::io::HELP)]
    Io(TraceIoArgs),
}

#[derive(Args)]
pub struct TracePosixArgs {
    /// Count only what happens below this directory; may be given several times [default: here]
    #[arg(long, value_name = "DIR")]
    pub under: Vec<PathBuf>,
    /// Read a file that `strace -f -y -qq` wrote, instead of running a program
    #[arg(long, value_name = "FILE", conflicts_with = "program")]
    pub read: Option<PathBuf>,
    /// Keep strace's output in this file
    #[arg(long, value_name = "FILE", conflicts_with = "read")]
    pub keep: Option<PathBuf>,
    /// Print JSON; the program's own output then goes to standard error
    #[arg(long)]
    pub json: bool,
    #[arg(last = true, required_unless_present = "read", value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

#[derive(Args)]
pub struct MountArgs {
    #[command(flatten)]
    pub choice: PoolChoice,
    /// Where to mount [default: the pool's own path]
    pub mountpoint: Option<PathBuf>,
    /// Milliseconds for which the kernel may reuse attributes and entries, however old; 0 is strict
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub cache_ttl: u64,
    /// Let the kernel keep nothing but open files' pages: for comparisons
    #[arg(long)]
    pub no_leases: bool,
    /// Let other users in
    #[arg(long)]
    pub allow_other: bool,
    #[arg(long)]
    pub read_only: bool,
}

#[derive(Args)]
pub struct LsArgs {
    #[command(flatten)]
    pub choice: PoolChoice,
    /// Show modes, owners, sizes and times
    #[arg(short = 'l')]
    pub long: bool,
    #[arg(long)]
    pub json: bool,
    #[arg(default_value = "/")]
    pub path: PathBuf,
}

#[derive(Args)]
pub struct CatArgs {
    #[command(flatten)]
    pub choice: PoolChoice,
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
}

/// How staging works.
#[derive(Args, Clone)]
pub struct StageShape {
    /// Threads that copy [default: twice the cores, at most 8]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Most bytes per second
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub bwlimit: Option<u64>,
    /// Do not read files back after writing them
    #[arg(long)]
    pub no_verify: bool,
    /// Read local files back from the disk, not from the kernel's memory
    #[arg(long, conflicts_with = "no_verify")]
    pub verify_disk: bool,
    /// Take files of equal size and modification time for the same without reading them
    #[arg(long)]
    pub trust_mtime: bool,
    /// Give files their names only when all are copied, oldest change first: nobody sees a file there without an older one
    #[arg(long)]
    pub ordered: bool,
}

#[derive(Args)]
pub struct CpArgs {
    #[command(flatten)]
    pub choice: PoolChoice,
    #[command(flatten)]
    pub shape: StageShape,
    /// Use only what others leave of processors and disks (SCHED_IDLE); --bwlimit limits what daemons do for it
    #[arg(long)]
    pub gentle: bool,
    /// The destination is the copy itself, also if it is a directory: what is the same there is not copied
    #[arg(short = 'T', long)]
    pub no_target_directory: bool,
    #[arg(long)]
    pub dry_run: bool,
    #[arg(long)]
    pub json: bool,
    /// Sources and, last, the destination: local paths, or pool:/PATH
    #[arg(required = true, num_args = 2.., value_name = "SRC... DST")]
    pub paths: Vec<OsString>,
}

#[derive(Args)]
pub struct RmArgs {
    #[command(flatten)]
    pub choice: PoolChoice,
    /// Remove directories and all in them
    #[arg(short)]
    pub recursive: bool,
    /// Name what would be removed, and remove nothing
    #[arg(long)]
    pub dry_run: bool,
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
}

#[derive(Args)]
pub struct MkdirArgs {
    #[command(flatten)]
    pub choice: PoolChoice,
    /// Make missing parents, and do not mind existing directories
    #[arg(short)]
    pub parents: bool,
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
}

#[derive(Subcommand)]
pub enum LayoutCommand {
    /// Say what files and directories made in a directory from now on get
    #[command(
        after_help = "Examples:\n  tidepool layout set --pool mine --placement local /scratch\n  tidepool layout set --pool mine --chunk-size 4MiB --stripe 8 /out\n  tidepool layout set --pool mine --as-pool /out\nWhat is there already keeps its layout; so do files moved in."
    )]
    Set(LayoutSetArgs),
    /// Show the layout of files, and what directories say of theirs
    #[command(after_help = "Example:\n  tidepool layout show --pool mine /out /out/data.h5")]
    Show(LayoutShowArgs),
}

#[derive(Args)]
pub struct LayoutSetArgs {
    #[command(flatten)]
    pub choice: PoolChoice,
    #[command(flatten)]
    pub shape: LayoutShape,
    /// Put the data on the daemons of this group, wherever files are made; implies placement group
    #[arg(long, value_name = "NAME", conflicts_with = "stripe")]
    pub group: Option<String>,
    /// Follow the pool again
    #[arg(long, conflicts_with_all = ["placement", "chunk_size", "stripe", "group"])]
    pub as_pool: bool,
    #[arg(required = true, value_name = "DIR")]
    pub paths: Vec<PathBuf>,
}

#[derive(Args)]
pub struct LayoutShowArgs {
    #[command(flatten)]
    pub choice: PoolChoice,
    #[arg(long)]
    pub json: bool,
    #[arg(default_value = "/")]
    pub paths: Vec<PathBuf>,
}

#[derive(Args)]
pub struct DrainArgs {
    #[command(flatten)]
    pub choice: PoolChoice,
    /// Leave the pool running afterwards
    #[arg(long)]
    pub no_stop: bool,
    /// As 'tidepool run --ordered', also where the run was started without
    #[arg(long)]
    pub ordered: bool,
    /// Use only what others leave of processors and disks (SCHED_IDLE); --bwlimit limits what daemons do for it
    #[arg(long)]
    pub gentle: bool,
    /// Most bytes per second
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub bwlimit: Option<u64>,
    #[arg(long)]
    pub dry_run: bool,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(
    after_help = "Examples:\n  tidepool check --pool mine\n  tidepool check --pool mine --repair-counts\n  tidepool check --repair /local/tidepool --dry-run"
)]
pub struct CheckArgs {
    #[command(flatten)]
    pub choice: PoolChoice,
    /// Set the recorded blocks of files where they are wrong to what is stored. Data are not touched: what is missing
    /// stays missing, but is not reported any more
    #[arg(long)]
    pub repair_counts: bool,
    /// Do not give way to programs that use the pool
    #[arg(long, conflicts_with = "repair")]
    pub fast: bool,
    /// Of a pool that is stopped, or a stager: say what is damaged in the metadata or the journal in this directory or below,
    /// what is lost by a repair, and make a store or a journal of the rest. What was damaged is kept beside it
    #[arg(long, value_name = "DIR", conflicts_with_all = ["pool", "repair_counts"])]
    pub repair: Option<PathBuf>,
    /// With --repair: look only
    #[arg(long, requires = "repair")]
    pub dry_run: bool,
    /// With --repair: do not ask
    #[arg(long, requires = "repair", conflicts_with = "dry_run")]
    pub yes: bool,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct DoctorArgs {
    /// Directory that a pool would keep its data in
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct NodeCheckArgs {
    /// Directory that a pool would keep its data in
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Free space there must be
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub min_free: Option<u64>,
    /// A port of another node that must answer
    #[arg(long, value_name = "HOST:PORT")]
    pub peer: Vec<String>,
    /// As root: do it as this user
    #[arg(long = "as", value_name = "UID:GID", value_parser = user)]
    pub as_user: Option<(u32, u32)>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct NodeCleanArgs {
    /// Remove the pools of this Slurm job, which is over [default: pools without
    /// processes here, except those stopped with --keep]
    #[arg(long, value_name = "ID")]
    pub job: Option<String>,
    /// As root: do it as this user, whose pools are meant
    #[arg(long = "as", value_name = "UID:GID", value_parser = user)]
    pub as_user: Option<(u32, u32)>,
    /// Name what would be removed, and remove nothing
    #[arg(long)]
    pub dry_run: bool,
    #[arg(long)]
    pub json: bool,
    /// Leave pools that Slurm's hooks have started for the job, and end themselves: results of other nodes may need this one's part
    #[arg(long, requires = "job")]
    pub spare_pools_of_hooks: bool,
    /// Remove nothing, and wait at most so long until no pool of the job runs here; 'tidepool slurm epilog' does
    #[arg(long, hide = true, requires = "job", value_name = "TIME", value_parser = parse_duration)]
    pub wait: Option<Duration>,
}

#[derive(Subcommand)]
pub enum BenchCommand {
    /// Create, stat and remove empty files
    #[command(after_help = "Example:\n  tidepool bench md --nodes 2 --procs 2 --files 10000")]
    Md(BenchMdArgs),
    /// Write and read files
    #[command(after_help = "Example:\n  tidepool bench io --sizes 8KiB,1MiB --file-size 64MiB")]
    Io(BenchIoArgs),
    /// Start and stop pools of different sizes on this machine
    #[command(after_help = "Example:\n  tidepool bench start --counts 8,16 --repeats 3")]
    Start(BenchStartArgs),
    /// What daemons take at rest, and their memory per file
    #[command(after_help = "Example:\n  tidepool bench footprint --files 100000 --seconds 5")]
    Footprint(BenchFootprintArgs),
    /// Write and read files over TCP on the loopback, in turn with iperf3
    #[command(after_help = "Example:\n  tidepool bench tcp --sizes 1MiB --file-size 256MiB")]
    Tcp(BenchTcpArgs),
    /// Send requests to a stager of its own
    #[command(after_help = "Example:\n  tidepool bench stager --clients 1,8,32 --requests 20000")]
    Stager(BenchStagerArgs),
    /// One process of a benchmark; not for people
    #[command(hide = true)]
    Worker(BenchWorkerArgs),
    /// One client of a stager; not for people
    #[command(hide = true)]
    StagerClient(BenchStagerClientArgs),
    /// One client of a stager at another node; not for people
    #[command(hide = true)]
    RemoteClient(BenchRemoteArgs),
    /// Send back what comes; not for people
    #[command(hide = true)]
    Echo(BenchEchoArgs),
}

#[derive(Args)]
pub struct BenchShape {
    #[command(flatten)]
    pub pool: PoolShape,
    /// Processes at work
    #[arg(long, default_value_t = 2)]
    pub procs: usize,
    /// Repeats of each measurement, alternating with the underlying file system
    #[arg(long, default_value_t = 5)]
    pub repeats: usize,
    /// Restart the pool before each repeat; drop the caches before all but removes, as root
    #[arg(long)]
    pub cold: bool,
    /// Directory for the raw results (JSON, one file per call)
    #[arg(long, value_name = "DIR")]
    pub raw: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct BenchMdArgs {
    #[command(flatten)]
    pub shape: BenchShape,
    /// Files of each process
    #[arg(long, default_value_t = 10_000)]
    pub files: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LayoutFlag {
    /// A file of each process's own
    Files,
    /// One file for all processes
    Shared,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum OrderFlag {
    Sequential,
    Random,
}

#[derive(Args)]
pub struct BenchIoArgs {
    #[command(flatten)]
    pub shape: BenchShape,
    /// Transfer sizes, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "8KiB,64KiB,1MiB,64MiB", value_parser = size)]
    pub sizes: Vec<u64>,
    /// Bytes each process writes and reads per measurement
    #[arg(long, default_value = "128MiB", value_parser = size)]
    pub file_size: u64,
    /// Who writes where
    #[arg(long, value_enum, value_delimiter = ',', default_value = "files,shared")]
    pub layouts: Vec<LayoutFlag>,
    /// In which order
    #[arg(long, value_enum, value_delimiter = ',', default_value = "sequential,random")]
    pub orders: Vec<OrderFlag>,
}

#[derive(Args)]
pub struct BenchStartArgs {
    #[command(flatten)]
    pub pool: PoolShape,
    /// Numbers of daemons, separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "8,16,32,64")]
    pub counts: Vec<usize>,
    /// Repeats of each measurement
    #[arg(long, default_value_t = 5)]
    pub repeats: usize,
    /// Directory for the raw results (JSON, one file per call)
    #[arg(long, value_name = "DIR")]
    pub raw: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct BenchFootprintArgs {
    #[command(flatten)]
    pub pool: PoolShape,
    /// Files to make; 0 for none
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub files: u64,
    /// Seconds of rest
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub seconds: u64,
    /// Directory for the raw results (JSON, one file per call)
    #[arg(long, value_name = "DIR")]
    pub raw: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct BenchTcpArgs {
    #[command(flatten)]
    pub shape: BenchShape,
    /// Transfer sizes, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "1MiB", value_parser = size)]
    pub sizes: Vec<u64>,
    /// Bytes each process writes and reads per measurement
    #[arg(long, default_value = "256MiB", value_parser = size)]
    pub file_size: u64,
}

/// What is asked of a stager.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StagerWork {
    /// Requests that do nothing: what the socket costs
    Ping,
    /// Submissions of tasks that stay pending
    Submit,
    /// The same, many at once
    Batch,
    /// Submit a copy of 4 KiB and wait for its end
    Copy,
    /// The same with one request
    Both,
}

impl StagerWork {
    pub fn name(self) -> &'static str {
        match self {
            StagerWork::Ping => "ping",
            StagerWork::Submit => "submit",
            StagerWork::Batch => "batch",
            StagerWork::Copy => "copy",
            StagerWork::Both => "both",
        }
    }
}

#[derive(Args)]
pub struct BenchStagerArgs {
    /// Client processes, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "1,8,32")]
    pub clients: Vec<usize>,
    /// Requests of each client (tasks for `batch`)
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub requests: u64,
    /// Tasks of one submission of `batch`
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=16_384))]
    pub batch: u64,
    /// What to ask, separated by commas; they take turns
    #[arg(long, value_delimiter = ',', default_value = "ping,submit,batch,copy,both")]
    pub work: Vec<StagerWork>,
    /// Repeats of each measurement
    #[arg(long, default_value_t = 5)]
    pub repeats: usize,
    /// Where the stager keeps its journal and its files [default: a temporary directory]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Directory for the raw results (JSON, one file per call)
    #[arg(long, value_name = "DIR")]
    pub raw: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct BenchStagerClientArgs {
    #[arg(long)]
    pub socket: PathBuf,
    #[arg(long)]
    pub work: StagerWork,
    #[arg(long)]
    pub requests: u64,
    #[arg(long)]
    pub batch: u64,
    #[arg(long)]
    pub rank: usize,
    /// File for the nanoseconds of each request
    #[arg(long)]
    pub times: PathBuf,
}

/// What is asked of a stager at another node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum RemoteWork {
    /// Messages that come back from `bench echo`: what the network costs
    Plain,
    /// Requests that do nothing
    Ping,
    /// How a file is
    Look,
    /// Bytes from memory into a file
    Push,
    /// Bytes of a file into memory
    Pull,
}

#[derive(Args)]
pub struct BenchRemoteArgs {
    #[arg(long)]
    pub address: String,
    #[arg(long)]
    pub work: RemoteWork,
    /// Requests, or bytes for `push` and `pull`
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub count: u64,
    /// Requests at a time, 1 to 16
    #[arg(long, default_value_t = 1)]
    pub in_flight: usize,
    #[arg(long, default_value_t = 0)]
    pub rank: usize,
    /// The stager's secret; not for `plain`
    #[arg(long, value_name = "FILE")]
    pub secret: Option<PathBuf>,
    #[arg(long, default_value = "b://")]
    pub dataspace: String,
    /// File for the nanoseconds of each request
    #[arg(long)]
    pub times: PathBuf,
}

#[derive(Args)]
pub struct BenchEchoArgs {
    #[arg(long)]
    pub listen: std::net::SocketAddr,
}

#[derive(Args)]
pub struct BenchWorkerArgs {
    /// One JSON object that says what to do
    pub job: String,
}

#[derive(Args)]
pub struct NodeArgs {
    /// Which node of the plan this is [default: $SLURM_PROCID]
    #[arg(long)]
    pub node: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_read_as_taskset_reads_them() {
        assert_eq!(cores("8,0-2,1").unwrap(), CoreList(vec![0, 1, 2, 8]));
        for bad in ["", "a", "3-1", "1024", "0-1024", "1-", ","] {
            assert!(cores(bad).is_err(), "{bad}");
        }
    }
}
