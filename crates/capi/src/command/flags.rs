//! The command line: one definition for the parser and the help.

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use tidepool_stage_client::words::{parse_ids, parse_limit};
use tidepool_stage_client::{
    DataspaceKind, JobLimit, Op, PlaceError, Policy, Resource, TaskState, parse_place,
};
use tidepool_types::parse_size;

const HELP: &str = "\
Examples:
  nornsctl namespace register nvme0:// --mount /mnt/nvme0 --capacity 500GiB --track
  nornsctl job register 42 --host n0 --host n1 --limit nvme0://=100GiB --limit lustre://
  nornsctl process add 42 31337
  nornsctl task submit --wait copy lustre://in/mesh nvme0://mesh
  nornsctl status --json

Places: DATASPACE://PATH, or HOST:PORT/DATASPACE://PATH at another node's stager.
Socket: the control socket (TIDEPOOL_STAGER_CONTROL, or the usual place). What every user may do goes to
the user socket (TIDEPOOL_STAGER_SOCKET) where the control socket cannot be opened.

Exit codes: 0 done; 1 refused or failed, the message says why; 2 wrong usage; 3 a task that was waited for
failed or was cancelled; 4 tasks had not ended in time; 5 no stager answers; 6 not permitted.";

/// Administer the stager of this node and its tasks, under the names of the NORNS interfaces
#[derive(Parser)]
#[command(name = "nornsctl", version, max_term_width = 110, after_help = HELP)]
pub struct Cli {
    /// The stager's socket, instead of the usual ones
    #[arg(long, global = true, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Test whether the stager answers
    Ping,
    /// Show how many tasks there are and how long they will take
    Status,
    /// Refuse new tasks from now on
    Pause,
    /// Take new tasks again
    Resume,
    /// End the stager; refused while tasks have not ended or tracked namespaces hold anything
    Shutdown,
    /// Set the order in which pending tasks start
    Policy { policy: PolicyFlag },
    /// Dataspaces: the storage that tasks move data between
    #[command(subcommand, alias = "dataspace")]
    Namespace(NamespaceCommand),
    /// Jobs: who may use which dataspaces
    #[command(subcommand)]
    Job(JobCommand),
    /// Processes of jobs
    #[command(subcommand)]
    Process(ProcessCommand),
    /// Tasks: copies, moves and removals
    #[command(subcommand)]
    Task(TaskCommand),
    /// Write the manual pages of this program; `make install` does
    #[command(hide = true)]
    Man { dir: PathBuf },
}

#[derive(Clone, Copy, ValueEnum)]
pub enum PolicyFlag {
    /// As they were submitted
    FirstCome,
    /// The smallest first
    ShortestFirst,
    /// Jobs in turn
    FairByJob,
    /// Users in turn
    FairByUser,
}

impl PolicyFlag {
    pub fn policy(self) -> Policy {
        match self {
            PolicyFlag::FirstCome => Policy::FirstCome,
            PolicyFlag::ShortestFirst => Policy::ShortestFirst,
            PolicyFlag::FairByJob => Policy::FairByJob,
            PolicyFlag::FairByUser => Policy::FairByUser,
        }
    }
}

#[derive(Subcommand)]
pub enum NamespaceCommand {
    /// Make storage known under a name
    #[command(after_help = "Example:\n  nornsctl namespace register nvme0:// --mount /mnt/nvme0 --track")]
    Register(NamespaceArgs),
    /// Replace what is known of a namespace
    Update(NamespaceArgs),
    /// Forget a namespace; refused while tasks use it, or while it is tracked and holds anything
    Unregister { nsid: String },
    /// Show the namespaces that the caller may use
    List,
    /// Show what lies in a namespace and is not persisted
    Leftovers {
        nsid: String,
        /// Entries at most
        #[arg(long, default_value_t = 1000)]
        max: u32,
    },
}

#[derive(Args)]
pub struct NamespaceArgs {
    /// Its name, such as nvme0://
    pub nsid: String,
    /// Directory; with --type pool the pool file
    #[arg(long)]
    pub mount: String,
    #[arg(long, value_name = "TYPE", default_value = "posix")]
    pub r#type: TypeFlag,
    /// Tell what is left in it when jobs or the stager end
    #[arg(long)]
    pub track: bool,
    /// Bytes that tasks may put there in all, such as 500GiB; no limit without
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub capacity: Option<u64>,
    /// Bytes per second of all tasks together; no limit without
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub bandwidth: Option<u64>,
    /// Tasks at a time; no limit without
    #[arg(long, value_name = "COUNT")]
    pub streams: Option<u32>,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum TypeFlag {
    /// A directory on storage of this node
    Posix,
    /// A directory on persistent memory of this node
    Nvml,
    /// A mounted shared file system
    Lustre,
    /// A pool
    Pool,
    /// An object store
    Object,
}

impl TypeFlag {
    pub fn kind(self) -> DataspaceKind {
        match self {
            TypeFlag::Posix | TypeFlag::Nvml => DataspaceKind::Local,
            TypeFlag::Lustre => DataspaceKind::Shared,
            TypeFlag::Pool => DataspaceKind::Pool,
            TypeFlag::Object => DataspaceKind::Object,
        }
    }
}

#[derive(Subcommand)]
pub enum JobCommand {
    /// Make a job known, with its nodes and the namespaces it may use
    #[command(
        after_help = "Example:\n  nornsctl job register 42 --host n0 --limit nvme0://=100GiB --limit lustre://"
    )]
    Register(JobArgs),
    /// Replace what is known of a job
    Update(JobArgs),
    /// Forget a job, and show what tracked namespaces still hold; refused while it has unfinished tasks
    Unregister { job: u32 },
    /// Show all jobs
    List,
    /// Show what the tasks of a job have moved
    Report { job: u32 },
}

#[derive(Args)]
pub struct JobArgs {
    pub job: u32,
    /// A node of the job; may be repeated
    #[arg(long = "host", value_name = "NAME", required = true)]
    pub hosts: Vec<String>,
    /// A namespace it may use and, after '=', how many bytes it may put there; may be repeated
    #[arg(long = "limit", value_name = "NSID[=SIZE]", value_parser = parse_limit)]
    pub limits: Vec<JobLimit>,
    /// Bytes per second of all its tasks together; no limit without
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub bandwidth: Option<u64>,
}

#[derive(Subcommand)]
pub enum ProcessCommand {
    /// Let a process and its children submit tasks as part of a job
    Add(ProcessArgs),
    /// Take that back
    Remove(ProcessArgs),
}

#[derive(Args)]
pub struct ProcessArgs {
    pub job: u32,
    pub pid: i32,
    /// User of the process; who owns it now without
    #[arg(long)]
    pub uid: Option<u32>,
    /// Group of the process; the one it has now without
    #[arg(long)]
    pub gid: Option<u32>,
}

#[derive(Subcommand)]
pub enum TaskCommand {
    /// Hand a task over and print its id
    #[command(after_help = "\
Examples:
  nornsctl task submit copy lustre://in/mesh nvme0://mesh
  nornsctl task submit --wait --as 1000:1000 --job 42 move nvme0://out n1:42000/nvme0://out
  nornsctl task submit remove nvme0://mesh")]
    Submit(SubmitArgs),
    /// Show what a task would do, without doing it
    Plan(SpecArgs),
    /// Show how a task is
    Status { task: u32 },
    /// Wait until tasks have ended
    #[command(after_help = "Example:\n  nornsctl task wait --timeout 60 7 8 9")]
    Wait(WaitArgs),
    /// End a task
    Cancel { task: u32 },
    /// Start a failed or cancelled task again where it stopped
    Resume { task: u32 },
    /// Forget an ended task
    Forget { task: u32 },
    /// Show all tasks that the caller may see
    List(ListArgs),
}

#[derive(Clone, Copy, ValueEnum)]
pub enum OpFlag {
    Copy,
    /// Copy, verify, and remove the source
    Move,
    Remove,
}

impl OpFlag {
    pub fn op(self) -> Op {
        match self {
            OpFlag::Copy => Op::Copy,
            OpFlag::Move => Op::Move,
            OpFlag::Remove => Op::Remove,
        }
    }
}

#[derive(Args)]
pub struct SpecArgs {
    pub op: OpFlag,
    /// DATASPACE://PATH or HOST:PORT/DATASPACE://PATH
    #[arg(value_parser = place())]
    pub source: Resource,
    /// The same, but for a removal
    #[arg(value_parser = place())]
    pub destination: Option<Resource>,
    /// Tasks of higher priority start first
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    pub priority: i32,
    /// Do not read back and compare before final names appear
    #[arg(long)]
    pub no_verify: bool,
    /// Read back from the disk itself, where the destination is on the stager's node: after the sync, and past the kernel's memory
    #[arg(long, conflicts_with = "no_verify")]
    pub verify_disk: bool,
    /// Bytes per second; no limit of its own without
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub bandwidth: Option<u64>,
    /// In whose name, on the control socket
    #[arg(long = "as", value_name = "UID:GID", value_parser = parse_ids)]
    pub owner: Option<(u32, u32)>,
    /// For which job, with --as
    #[arg(long, value_name = "JOB", requires = "owner")]
    pub job: Option<u32>,
}

/// Paths may be any bytes; they are meant as in the C interfaces.
fn place() -> impl TypedValueParser<Value = Resource> {
    OsStringValueParser::new().try_map(|text| {
        let mut place = parse_place(text.as_bytes())?;
        if let Resource::Path { path, .. } = &mut place {
            *path = tidepool_norns::inside(path).into();
        }
        Ok::<_, PlaceError>(place)
    })
}

#[derive(Args)]
pub struct SubmitArgs {
    #[command(flatten)]
    pub spec: SpecArgs,
    /// Wait until it has ended, and show how
    #[arg(long)]
    pub wait: bool,
}

#[derive(Args)]
pub struct WaitArgs {
    #[arg(required = true, value_name = "TASK")]
    pub tasks: Vec<u32>,
    /// The end of one of them is enough
    #[arg(long)]
    pub any: bool,
    /// Seconds at most
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub timeout: Option<std::time::Duration>,
}

fn parse_seconds(text: &str) -> Result<std::time::Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "write a number of seconds".to_string())?;
    std::time::Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
}

#[derive(Clone, Copy, ValueEnum)]
pub enum StateFlag {
    Pending,
    Running,
    Finished,
    Failed,
    Cancelled,
}

impl StateFlag {
    pub fn state(self) -> TaskState {
        match self {
            StateFlag::Pending => TaskState::Pending,
            StateFlag::Running => TaskState::Running,
            StateFlag::Finished => TaskState::Finished,
            StateFlag::Failed => TaskState::Failed,
            StateFlag::Cancelled => TaskState::Cancelled,
        }
    }
}

#[derive(Args)]
pub struct ListArgs {
    /// Of this job only
    #[arg(long, value_name = "JOB")]
    pub job: Option<u32>,
    /// In this state only
    #[arg(long, value_name = "STATE")]
    pub state: Option<StateFlag>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn seconds_are_read() {
        assert!(parse_seconds("1.5").is_ok() && parse_seconds("-1").is_err() && parse_seconds("x").is_err());
    }
}
