//! The command lines of `tidepool jobs`.

use super::ask::flags::{PREDICT, PredictArgs};
use super::convert::{self, ConvertArgs};
use super::describe::{self, DescribeArgs};
use super::files::FormatFlag;
use super::prestage::LeadFlag;
use crate::flags::size;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use tidepool_jobsim::Policy;
use tidepool_jobsim::engine;
use tidepool_jobsim::estimate::Estimate;
use tidepool_jobsim::machine::{Machine, MachineError};
use tidepool_jobsim::plan::Allocation;
use tidepool_jobsim::study::Data;
use tidepool_stage_client::words::parse_duration;

const STAGE_AHEAD: &str = "\
Examples:
  tidepool jobs stage-ahead kth.swf                beside the mean and beside staging at submission
  tidepool jobs stage-ahead --jobs 100000 curie.swf.gz
  tidepool jobs stage-ahead kth.swf --bytes 1TB --rate-scatter 1 --seed 7 --html kth.html
LOG is of any format that 'jobs describe' reads. Its jobs run on a simulated machine that backfills as
Slurm does. Each reads data; when its staging begins is decided by what is known then, by the
same function as in Slurm's hooks. A job can be in time when it waits for at least as long as its
staging takes; one that starts when it is submitted cannot.
Exit codes: 1 the log cannot be read or a file not written, 2 wrong usage.";

const SIMULATE: &str = "\
Examples:
  tidepool jobs simulate kth.swf --policy easy --json
  tidepool jobs simulate kth.swf --policy easy --estimate last-two --backfill shortest    EASY++
  tidepool jobs simulate kth.swf --policy easy --estimate default:90 --backfill expected --order expected
  tidepool jobs simulate kth.swf --allocation contiguous --csv jobs.csv
  tidepool jobs simulate --machine curie.toml curie.swf.gz
LOG is of any format that 'jobs describe' reads. Jobs end when they did; plans go by estimates. --machine
gives partitions, priorities and maintenance (docs/formats/31-batch-machines.md).
Exit codes: 1 the log cannot be read or a file not written, 2 wrong usage.";

const NAP: &str = "\
Examples:
  tidepool jobs nap kth.swf --csv nap.csv --svg nap.svg
  tidepool jobs nap kth.swf --lambda 0,0.1,1 --estimate alea,last-two --policy conservative
How long before its start were the nodes of a job known? Each run plans by estimates between the
request (lambda 1) and the run time (lambda 0), on nodes that are told from each other; beside
it are mean waits and how much of the machine was used.
Exit codes: 1 the log cannot be read or a file not written, 2 wrong usage.";

const PRE_STAGE: &str = "\
Examples:
  tidepool jobs pre-stage kth.swf --bytes 100GB --rate 1GB
  tidepool jobs pre-stage kth.swf --lead 1,3,submission --estimate alea --csv kth.csv
The data of a job can be on its nodes when it starts if these have been known for long enough. Without
reservations that is told as a bound: somebody would have to know that they do not change any more.
With them a job's nodes are its own from so many times its staging before its planned start on.
Exit codes: 1 the log cannot be read or a file not written, 2 wrong usage.";

/// Estimates between run time and request.
const LAMBDAS: &str = "1,0.9,0.8,0.6,0.4,0.2,0.1,0.05,0.02,0.01,0";

const EVALUATE: &str = "\
Examples:
  tidepool jobs evaluate kth.swf
  tidepool jobs evaluate kth.swf --predictor default --predictor request --json
  tidepool jobs evaluate --csv users.csv --svg users.svg curie.swf.gz
LOG is of any format that 'jobs describe' reads. Its jobs are told in the order of time: when one is submitted,
only jobs that are over by then have taught. The first part of the log warms up, the rest is judged.
MEDAE is the median absolute error of a user; users with fewer than 20 judged jobs are left out.
Exit codes: 1 the log cannot be read or a file not written, 2 wrong usage.";

#[derive(Subcommand)]
pub enum JobsCommand {
    /// Tell what is in a log: how much, by whom, when, and how good the requests are
    #[command(after_help = describe::HELP)]
    Describe(Box<DescribeArgs>),
    /// Write a log in another format
    #[command(after_help = convert::HELP)]
    Convert(Box<ConvertArgs>),
    /// Run a log's jobs on a simulated batch scheduler
    #[command(after_help = SIMULATE)]
    Simulate(Box<SimulateArgs>),
    /// Tell how long before its start the nodes of each job were known
    #[command(after_help = NAP)]
    Nap(Box<NapArgs>),
    /// Tell whose data could be on their nodes before the start, and what reserved nodes cost
    #[command(after_help = PRE_STAGE)]
    PreStage(Box<PreStageArgs>),
    /// Tell how well each predictor would have said how long the jobs of a log ran
    #[command(after_help = EVALUATE)]
    Evaluate(Box<EvaluateArgs>),
    /// Tell when the jobs of a queue, or a job script's, will start, where, and when they end
    #[command(after_help = PREDICT)]
    Predict(Box<PredictArgs>),
    /// Tell how many jobs of a log would have been late if their data had been staged ahead
    #[command(after_help = STAGE_AHEAD)]
    StageAhead(Box<StageAheadArgs>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum PolicyFlag {
    /// Conservative backfilling
    Conservative,
    /// First come first served
    Fcfs,
}

impl PolicyFlag {
    pub fn policy(self) -> Policy {
        match self {
            PolicyFlag::Conservative => Policy::Conservative,
            PolicyFlag::Fcfs => Policy::Fcfs,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            PolicyFlag::Conservative => "conservative",
            PolicyFlag::Fcfs => "fcfs",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum SchedulerFlag {
    /// First come first served
    Fcfs,
    /// Backfilling that puts only the first of the queue not off
    Easy,
    /// Backfilling that puts nobody off
    Conservative,
}

impl SchedulerFlag {
    pub fn policy(self) -> engine::Policy {
        match self {
            SchedulerFlag::Fcfs => engine::Policy::Fcfs,
            SchedulerFlag::Easy => engine::Policy::Easy,
            SchedulerFlag::Conservative => engine::Policy::Conservative,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum EarlyFlag {
    /// They stay: no compression
    Keep,
    /// Each nearer beside all others, in the order of the queue
    Nearer,
    /// Each nearer beside all others, in the order of planned starts
    NearerByStart,
    /// All anew, in the order of the queue
    Anew,
    /// All anew, in the order of planned starts
    AnewByStart,
}

impl EarlyFlag {
    pub fn early(self) -> engine::Early {
        use engine::{Early, Order};
        match self {
            EarlyFlag::Keep => Early::Keep,
            EarlyFlag::Nearer => Early::Nearer(Order::Queue),
            EarlyFlag::NearerByStart => Early::Nearer(Order::Start),
            EarlyFlag::Anew => Early::Anew(Order::Queue),
            EarlyFlag::AnewByStart => Early::Anew(Order::Start),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum BackfillFlag {
    /// As they stand in the queue
    Queue,
    /// The shortest estimate first
    Shortest,
    /// The shortest first, and such too that may delay the first of the queue, where that is expected to spare more slowdown than it costs
    Expected,
}

impl BackfillFlag {
    pub fn backfill(self) -> engine::Backfill {
        match self {
            BackfillFlag::Queue => engine::Backfill::Queue,
            BackfillFlag::Shortest => engine::Backfill::Shortest,
            BackfillFlag::Expected => engine::Backfill::Expected,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum OrderFlag {
    /// As they were submitted
    Submission,
    /// Those first whose waiting is expected to cost most slowdown for as long as they take, the more the longer they have waited
    Expected,
}

impl OrderFlag {
    pub fn precedence(self) -> engine::Precedence {
        match self {
            OrderFlag::Submission => engine::Precedence::Submission,
            OrderFlag::Expected => engine::Precedence::Expected,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum CorrectionFlag {
    /// By 1 min, then 5, 15 and 30 min, 1, 2, 5, 10, 20, 50, 100 h
    Steps,
    /// To twice the time that it has run for
    Double,
    /// To its request
    Request,
    /// As jobs that ran for so long are known to go on
    Expected,
}

impl CorrectionFlag {
    pub fn correction(self) -> engine::Correction {
        match self {
            CorrectionFlag::Steps => engine::Correction::Steps,
            CorrectionFlag::Double => engine::Correction::Double,
            CorrectionFlag::Request => engine::Correction::Request,
            CorrectionFlag::Expected => engine::Correction::Expected,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum AllocationFlag {
    /// Any nodes, the lowest numbers first
    Any,
    /// Nodes with successive numbers
    Contiguous,
    /// Few switches, the fullest that suffices
    Switch,
}

impl AllocationFlag {
    pub fn allocation(self, machine: &Machine) -> Result<Allocation, MachineError> {
        match self {
            AllocationFlag::Any => Ok(Allocation::Lowest),
            AllocationFlag::Contiguous => Ok(Allocation::Contiguous),
            AllocationFlag::Switch => machine.by_switch(),
        }
    }
}

/// A log, and on what it runs.
#[derive(Args)]
pub struct MachineArgs {
    /// A log of jobs: SWF, what sacct writes, or a table, packed by gzip or not; - for standard input
    pub log: PathBuf,
    /// What the log is [default: its beginning tells]
    #[arg(long, value_enum)]
    pub format: Option<FormatFlag>,
    /// Only the first N jobs of the log that ran
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub jobs: Option<u64>,
    /// Nodes, partitions, priorities and maintenance (docs/formats/31-batch-machines.md)
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// Nodes of the machine [default: from the log]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub nodes: Option<u32>,
    /// Processors of a node, which one job has for itself [default: 1; where nodes are told apart and the log has both, MaxProcs by MaxNodes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub per_node: Option<u32>,
    /// Tell nodes from each other, and choose so
    #[arg(long, value_enum)]
    pub allocation: Option<AllocationFlag>,
}

#[derive(Args)]
pub struct SimulateArgs {
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Who may start before whom
    #[arg(long, value_enum, default_value = "conservative")]
    pub policy: SchedulerFlag,
    /// What plans go by: request, run-time, lambda=X, last-two, alea, or a predictor of 'jobs evaluate' (default, default:90)
    #[arg(long, value_name = "ESTIMATE", default_value = "request")]
    pub estimate: Estimate,
    /// What becomes of plans when a job ends early [default: nearer; anew-by-start where nodes are told apart]
    #[arg(long, value_enum)]
    pub early: Option<EarlyFlag>,
    /// Order of those tried beside the first of the queue, under EASY [default: queue]
    #[arg(long, value_enum)]
    pub backfill: Option<BackfillFlag>,
    /// Order of the queue within a priority, under EASY [default: submission]
    #[arg(long, value_enum)]
    pub order: Option<OrderFlag>,
    /// After how long a job's waiting counts twice, with --order or --backfill expected [default: 48h]
    #[arg(long, value_name = "TIME", value_parser = patience)]
    pub patience: Option<u64>,
    /// How the limit of a job moves that outlives its prediction, up to its request [default: expected with --backfill expected, else steps]
    #[arg(long, value_enum)]
    pub correction: Option<CorrectionFlag>,
    /// Jobs that ran for longer than their request do so here too
    #[arg(long)]
    pub no_kill: bool,
    /// A job that can start earlier gets other nodes even if its own are free
    #[arg(long)]
    pub change_nodes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write a line for each job, separated by commas
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

impl SimulateArgs {
    /// How the machine is run, but for its blocks and for what becomes of plans; or what makes no sense.
    pub fn setup(&self) -> Result<engine::Setup, String> {
        let policy = self.policy.policy();
        let expects =
            self.order == Some(OrderFlag::Expected) || self.backfill == Some(BackfillFlag::Expected);
        let given = [
            (self.backfill.is_some(), "--backfill"),
            (self.order.is_some(), "--order"),
            (self.patience.is_some(), "--patience"),
        ];
        if let Some((_, flag)) = given.iter().find(|(given, _)| *given && policy != engine::Policy::Easy) {
            return Err(format!("{flag} is for --policy easy"));
        }
        if self.patience.is_some() && !expects {
            return Err("--patience is for --order expected and --backfill expected".into());
        }
        let usual = engine::Setup::new(policy);
        let backfill = self.backfill.map_or(usual.backfill, BackfillFlag::backfill);
        Ok(engine::Setup {
            backfill,
            precedence: self.order.map_or(usual.precedence, OrderFlag::precedence),
            patience_s: self.patience.unwrap_or(usual.patience_s),
            correction: self
                .correction
                .map_or_else(|| engine::Correction::usual(backfill), CorrectionFlag::correction),
            kills: !self.no_kill,
            keeps_nodes: !self.change_nodes,
            keeps_lists: self.csv.is_some(),
            ..usual
        })
    }

    /// Whether nodes are those of the log's header.
    pub fn by_node(&self) -> bool {
        self.machine.allocation.is_some()
    }
}

#[derive(Args)]
pub struct NapArgs {
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Schedulers
    #[arg(long = "policy", value_enum, value_delimiter = ',', default_value = "conservative,fcfs")]
    pub policies: Vec<SchedulerFlag>,
    /// Estimates between request (1) and run time (0) [S0 equation 1]
    #[arg(long = "lambda", value_name = "X,...", value_delimiter = ',', default_value = LAMBDAS, value_parser = part)]
    pub lambdas: Vec<f64>,
    /// Further estimates: request, run-time, last-two, alea, or predictors of 'jobs evaluate' (default, default:90)
    #[arg(long = "estimate", value_name = "ESTIMATE,...", value_delimiter = ',', default_value = "alea")]
    pub further: Vec<Estimate>,
    /// What becomes of plans when a job ends early [default: anew-by-start]
    #[arg(long, value_enum)]
    pub early: Option<EarlyFlag>,
    /// A job that can start earlier gets other nodes even if its own are free
    #[arg(long)]
    pub change_nodes: bool,
    /// Runs at once [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write a line for each run, separated by commas
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write the figure: a stacked bar for each run
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write a page with the figure and the table
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

impl NapArgs {
    pub fn estimates(&self) -> Vec<Estimate> {
        self.lambdas
            .iter()
            .map(|lambda| Estimate::Lambda(*lambda))
            .chain(self.further.iter().copied())
            .collect()
    }
}

/// In whole seconds, at least one.
fn patience(text: &str) -> Result<u64, String> {
    let seconds = parse_duration(text)?.as_secs();
    if seconds == 0 { Err("less than a second".into()) } else { Ok(seconds) }
}

fn part(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.0..=1.0).contains(value));
    value.ok_or_else(|| format!("'{text}' is no number from 0 to 1"))
}

/// The data of jobs, of which logs say nothing.
#[derive(Args)]
pub struct MadeUpArgs {
    /// Of the made-up sizes and rates
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Median of what a job reads; sizes are log-normal
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "100GB")]
    pub bytes: u64,
    /// Deviation of the sizes' logarithm
    #[arg(long, value_name = "X", value_parser = scatter, default_value = "1.5")]
    pub bytes_scatter: f64,
    /// Median of the bytes that are transferred in a second; rates are log-normal
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "500MB")]
    pub rate: u64,
    /// Deviation of the rates' logarithm
    #[arg(long, value_name = "X", value_parser = scatter, default_value = "0.5")]
    pub rate_scatter: f64,
}

impl MadeUpArgs {
    pub fn data(&self) -> Data {
        Data {
            seed: self.seed,
            bytes: self.bytes as f64,
            bytes_scatter: self.bytes_scatter,
            rate: self.rate.max(1) as f64,
            rate_scatter: self.rate_scatter,
        }
    }
}

#[derive(Args)]
pub struct PreStageArgs {
    #[command(flatten)]
    pub machine: MachineArgs,
    /// When nodes are reserved: times of the staging before the planned start, or submission
    #[arg(long = "lead", value_name = "X,...", value_delimiter = ',', default_value = "1,2,5,10,submission")]
    pub leads: Vec<LeadFlag>,
    /// What plans go by: request, run-time, lambda=X, last-two, alea, or a predictor of 'jobs evaluate' (default, default:90)
    #[arg(long, value_name = "ESTIMATE", default_value = "request")]
    pub estimate: Estimate,
    #[command(flatten)]
    pub made_up: MadeUpArgs,
    /// Runs at once [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write a line for each lead, separated by commas
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

#[derive(Args)]
pub struct StageAheadArgs {
    /// A log of jobs: SWF, what sacct writes, or a table, packed by gzip or not; - for standard input
    pub log: PathBuf,
    /// What the log is [default: its beginning tells]
    #[arg(long, value_enum)]
    pub format: Option<FormatFlag>,
    /// Only the first N jobs of the log that ran
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub jobs: Option<u64>,
    /// Size of the machine, in what the log counts, mostly processors [default: MaxProcs of the log, else MaxNodes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub nodes: Option<u32>,
    /// How the scheduler plans
    #[arg(long, value_enum, default_value = "conservative")]
    pub policy: PolicyFlag,
    #[command(flatten)]
    pub made_up: MadeUpArgs,
    /// Between looks at what the scheduler plans
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub look: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write a line for each job and rule, separated by commas
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write a page with a picture of the share that was late along the log
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

#[derive(Args)]
pub struct EvaluateArgs {
    /// A log of jobs: SWF, what sacct writes, or a table, packed by gzip or not; - for standard input
    pub log: PathBuf,
    /// What the log is [default: its beginning tells]
    #[arg(long, value_enum)]
    pub format: Option<FormatFlag>,
    /// Only the first N jobs of the log that ran
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub jobs: Option<u64>,
    /// Share of the jobs that only teach
    #[arg(long, value_name = "SHARE", value_parser = share, default_value = "0.5")]
    pub warm_up: f64,
    /// One of them, several times if wanted [default: all]
    #[arg(long = "predictor", value_name = "NAME")]
    pub predictors: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write a line for each predictor and user, separated by commas
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write a picture of the users' errors
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Something has to be judged.
fn share(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.0..1.0).contains(value));
    value.ok_or_else(|| format!("'{text}' is no number from 0 to below 1"))
}

/// Beyond 5 there are sizes from a byte to an exabyte.
fn scatter(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.0..=5.0).contains(value));
    value.ok_or_else(|| format!("'{text}' is no number from 0 to 5"))
}
