//! The command line of `tidepool stage`: one definition for parser, help and man pages.

use clap::builder::{OsStringValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;
use tidepool_stage_client::words::{
    KINDS, POLICIES, STATES, dataspace_name, parse_duration, parse_limit, parse_on_behalf, parse_word,
};
use tidepool_stage_client::{
    DataspaceKind, JobLimit, OnBehalf, Op, Owner, Policy, Resource, StagerAt, TaskState, parse_place,
};
use tidepool_types::parse_size;

pub const HELP: &str = "\
Places: DATASPACE://PATH, or HOST:PORT/DATASPACE://PATH at the stager that listens there.
Another node's stager: --at HOST:PORT with the stagers' secret, as on its control socket.
Sockets: tasks go to the user socket ($TIDEPOOL_STAGER_SOCKET, or the usual place); administration, and anything
with --control or --on-behalf, to the control socket ($TIDEPOOL_STAGER_CONTROL).
Exit codes: 0 done; 1 anything else failed; 2 wrong usage; 117 a task failed; 118 a task was cancelled; 119 not
ended in time; 120 the stager refused; 121 no stager answers; 122 not permitted; 123 a plan found problems.";

const SUBMIT: &str = "\
Examples:
  tidepool stage submit --wait copy lustre://in/mesh nvme0://mesh
  tidepool stage submit move nvme0://out n1:42000/nvme0://out
  tidepool stage submit --bandwidth 200MiB --priority 5 copy nvme0://out lustre://out
  tidepool stage submit --on-behalf 1000:1000:42 remove nvme0://mesh
  tidepool stage submit --on-behalf 1000:1000:42 --held copy nvme0://out lustre://out     starts at 'job release 42'
  tidepool stage submit --from tasks.txt
A destination that ends in '/' is a directory to copy into. A line of a task list (docs/formats/15-task-lists.md):
  copy lustre://in \"nvme0://with blank\" priority=5 bandwidth=200MiB size=4GiB verify=no";

const STATUS: &str = "\
Examples:
  tidepool stage status                 the stager as a whole
  tidepool stage status 7 8             two tasks
  tidepool stage status --job 42        the tasks of a job
  tidepool stage status --watch 7       until it ends; redrawn on a terminal, else a line for each change
  tidepool stage status --watch         all tasks that have not ended";

const MAP: &str = "\
Mappings: replicate (every node gets all), scatter (entries in turn), scatter:PATTERN (by {rank} in their names),
gather (all into one directory), gather:NAME (with {node} in NAME: a directory each), file:PATH (lines of ENTRY NODE [TARGET]).
When data goes to nodes, DESTINATION is the place on each of them; when it comes from them, SOURCE is.
What is scattered is listed by the stager that it is at; of a SOURCE at HOST:PORT, --secret-file lets that be asked.
Examples:
  tidepool stage map scatter:processor{rank} lustre://case nvme0://case --node n1 --node n2=n2:42000
  tidepool stage map gather nvme0://out lustre://out --node n1 --node n2=n2:42000 | tidepool stage submit --wait --from -";

const READY: &str = "\
All copies and moves of the job so far are what it waits for, without those that are held: ask before the job starts. With --clean, which is for
administrators, a job whose data did not come leaves nothing: copies are removed from where they made something new. What was
there before, what was moved (nothing else may hold it) and kept locations stay, and are told.
Exit codes: 0 the data are there; 117 a task failed, or what it staged is gone; 118 one was cancelled; 119 not in time; 113 with
--clean: something is left, as told; 120 the job is not known.
Examples:
  tidepool stage job ready 42 --timeout 10m --clean
  tidepool stage job ready 42 --clean --dry-run";

const RETRY: &str = "\
Data stay where they are until a task has brought them over and verified them: mend what the errors say, then retry.
Exit codes: as of wait; 0 also when nothing had failed.
Examples:
  tidepool stage job retry 42 --wait
  tidepool stage job retry 42 --cancelled";

const RELEASE: &str = "\
Tasks submitted with --held become pending in the order they came. One whose dataspace is not there, or not for the job, fails.
Exit codes: 0; with --wait as of wait; 120 the job is not known.
Examples:
  tidepool stage job release 42
  tidepool stage job release 42 --wait";

const WHERE: &str = "\
Places are counted, not compared: a node holds as much as it has files and bytes there, and the node that holds most has all of it.
A copy compares, and moves what differs.
Exit codes: 0; 123 no node holds any of it.
Examples:
  tidepool stage where nvme0://mesh --node n1 --node n2=n2:42000
  sbatch --nodelist \"$(tidepool stage where nvme0://mesh --best 2 --node n1 --node n2=n2:42000 --node n3=n3:42000)\" next.sh
  tidepool stage where nvme0://mesh --node n1 --node n2=n2:42000 --bring-to n1 | tidepool stage submit --wait --from -";

#[derive(Args)]
pub struct StageArgs {
    /// The stager's socket, instead of the usual ones
    #[arg(long, global = true, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Use the control socket: for administrators
    #[arg(long, global = true)]
    pub control: bool,
    /// The stager of another node, where it listens to others: for administrators, by the key in --secret-file
    #[arg(long, global = true, value_name = "HOST:PORT", value_parser = address, conflicts_with = "socket",
          requires = "secret_file")]
    pub at: Option<String>,
    /// The stagers' secret, as their configuration names it
    #[arg(long, global = true, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: StageCommand,
}

#[derive(Subcommand)]
pub enum StageCommand {
    /// Hand over tasks and print their ids
    #[command(after_help = SUBMIT)]
    Submit(SubmitArgs),
    /// Show what tasks would do and what speaks against them, without doing anything
    #[command(after_help = "Example:\n  tidepool stage plan copy lustre://in/mesh nvme0://mesh")]
    Plan(SpecArgs),
    /// Show the stager as a whole, or tasks
    #[command(after_help = STATUS)]
    Status(StatusArgs),
    /// Show all tasks that the caller may see
    #[command(after_help = "Example:\n  tidepool stage list --state failed")]
    List(Selection),
    /// Wait until tasks have ended, and show how
    #[command(
        after_help = "Examples:\n  tidepool stage wait 7 8\n  tidepool stage wait --any --timeout 30s 7 8"
    )]
    Wait(WaitArgs),
    /// End tasks; what they have under final names stays
    #[command(after_help = "Example:\n  tidepool stage cancel 7 8")]
    Cancel(TaskIds),
    /// Start failed or cancelled tasks again where they stopped
    #[command(after_help = "Example:\n  tidepool stage resume 7")]
    Resume(TaskIds),
    /// Forget ended tasks and what is kept to resume them
    #[command(after_help = "Example:\n  tidepool stage forget 7 8")]
    Forget(TaskIds),
    /// Print the tasks that lay data out over nodes, as a list that submit --from reads
    #[command(after_help = MAP)]
    Map(MapArgs),
    /// Show which nodes hold data already, and what would have to be moved to each
    #[command(after_help = WHERE)]
    Where(WhereArgs),
    /// Print the directories of dataspaces as variables for a shell
    #[command(after_help = "Example:\n  eval \"$(tidepool stage env)\" && ls $NVME0")]
    Env,
    /// Print the public key of a secret-file: an administrator's is for 'admins' in stagers' configurations, a node's for 'peers'
    #[command(
        after_help = "Example:\n  (head -n 1 stager.secret; openssl rand -hex 32) > admin.secret && chmod 600 admin.secret\n  tidepool stage key admin.secret"
    )]
    Key {
        /// The stagers' secret, and in a second line its holder's own key
        file: PathBuf,
    },
    /// Dataspaces: the storage that tasks move data between
    #[command(subcommand)]
    Dataspace(DataspaceCommand),
    /// Jobs: who may use which dataspaces
    #[command(subcommand)]
    Job(JobCommand),
    /// Locations that outlive their jobs
    #[command(subcommand)]
    Persist(PersistCommand),
    /// Set the order in which pending tasks start
    #[command(after_help = "Example:\n  tidepool stage policy fair-by-job")]
    Policy {
        #[arg(value_parser = word(&POLICIES))]
        policy: Policy,
    },
    /// Refuse new tasks from now on
    #[command(after_help = "Example:\n  tidepool stage pause")]
    Pause,
    /// Take new tasks again
    #[command(visible_alias = "resume-all", after_help = "Example:\n  tidepool stage unpause")]
    Unpause,
    /// End the stager; refused while tasks have not ended or tracked dataspaces hold anything
    #[command(after_help = "Example:\n  tidepool stage shutdown")]
    Shutdown,
    /// Start a stager of one's own and wait until it answers
    #[command(after_help = "\
Example:
  tidepool stage start --dir /tmp/me/stager
It says which variables to set, so that the other commands find it.")]
    Start(StartArgs),
    /// Stop a stager of one's own and wait until it is gone
    #[command(after_help = "\
Examples:
  tidepool stage stop --dir /tmp/me/stager
  tidepool stage stop --dir /tmp/me/stager --now     unended tasks go on at the next start")]
    Stop(StopArgs),
}

/// A name of a table, as one of the flag's possible values.
fn word<T: Copy + Send + Sync + 'static>(
    table: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(table.iter().map(|(name, _)| *name))
        .try_map(move |name: String| parse_word(table, &name))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum OpFlag {
    /// Copy, and keep the source
    Copy,
    /// Copy, verify, and remove the source
    Move,
    /// Remove
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

/// Paths may be any bytes.
fn place() -> impl TypedValueParser<Value = Resource> {
    OsStringValueParser::new().try_map(|text| parse_place(text.as_bytes()))
}

/// What tasks are, named or listed.
#[derive(Args)]
pub struct SpecArgs {
    #[arg(required_unless_present = "from")]
    pub op: Option<OpFlag>,
    /// DATASPACE://PATH, or HOST:PORT/DATASPACE://PATH at another stager
    #[arg(value_parser = place(), required_unless_present = "from")]
    pub source: Option<Resource>,
    /// The same, but for a removal
    #[arg(value_parser = place())]
    pub destination: Option<Resource>,
    /// Read tasks from a file, one a line; '-' for standard input. The options are for those lines that do not say
    #[arg(long, value_name = "FILE", conflicts_with_all = ["op", "source", "destination"])]
    pub from: Option<PathBuf>,
    /// Tasks of higher priority start first
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    pub priority: i32,
    /// Bytes per second of each task; no limit of its own without
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub bandwidth: Option<u64>,
    /// Do not read back and compare before final names appear
    #[arg(long)]
    pub no_verify: bool,
    /// Read back from the disk itself, where the destination is on the stager's node: after the sync, and past the kernel's memory
    #[arg(long, conflicts_with = "no_verify")]
    pub verify_disk: bool,
    /// Bytes it will move, where known: for shortest-first order
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size_hint: Option<u64>,
    /// In whose name, and for which job: administrators only
    #[arg(long, value_name = "UID:GID[:JOB]", value_parser = parse_on_behalf)]
    pub on_behalf: Option<OnBehalf>,
}

#[derive(Args)]
pub struct SubmitArgs {
    #[command(flatten)]
    pub spec: SpecArgs,
    /// Wait until they have ended, and show how
    #[arg(long)]
    pub wait: bool,
    /// Start them when the job they are for is released ('job release'), not before; until then its dataspaces need not be there
    #[arg(long, requires = "on_behalf", conflicts_with = "wait")]
    pub held: bool,
}

/// Which tasks.
#[derive(Args, Clone, Default)]
pub struct Selection {
    /// Of this job only
    #[arg(long, value_name = "JOB")]
    pub job: Option<u32>,
    /// In this state only
    #[arg(long, value_name = "STATE", value_parser = word(&STATES))]
    pub state: Option<TaskState>,
}

#[derive(Args)]
pub struct StatusArgs {
    #[arg(value_name = "TASK", conflicts_with_all = ["job", "state"])]
    pub tasks: Vec<u32>,
    #[command(flatten)]
    pub selection: Selection,
    /// Show changes until all of them have ended; with --json one object a line
    #[arg(long)]
    pub watch: bool,
}

#[derive(Args)]
pub struct MapArgs {
    pub mapping: String,
    #[arg(value_parser = place())]
    pub source: Resource,
    #[arg(value_parser = place())]
    pub destination: Resource,
    /// A node: NAME=HOST:PORT of its stager, or NAME alone for the one the tasks are submitted on
    #[arg(long, required = true, value_name = "NAME[=HOST:PORT]", value_parser = node_flag)]
    pub node: Vec<NodeFlag>,
    /// In whose name the source is looked at: administrators only
    #[arg(long, value_name = "UID:GID[:JOB]", value_parser = parse_on_behalf)]
    pub on_behalf: Option<OnBehalf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFlag {
    pub name: String,
    pub address: Option<String>,
}

fn node_flag(text: &str) -> Result<NodeFlag, String> {
    let (name, text_address) = match text.split_once('=') {
        None => (text, None),
        Some((name, address)) => (name, Some(address)),
    };
    match text_address {
        _ if name.is_empty() => Err("a node has a name: NAME or NAME=HOST:PORT".into()),
        None => Ok(NodeFlag { name: name.into(), address: None }),
        Some(text) => Ok(NodeFlag { name: name.into(), address: Some(address(text)?) }),
    }
}

/// Where a stager listens to others.
pub fn address(text: &str) -> Result<String, String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(text.into()),
        _ => Err(format!("'{text}' is no HOST:PORT")),
    }
}

/// A socket, or where a stager of another node listens.
fn stager_at(text: &str) -> Result<StagerAt, String> {
    Ok(match address(text) {
        Ok(address) if !text.contains('/') => StagerAt::Address(address),
        _ => StagerAt::Socket(text.into()),
    })
}

#[derive(Args)]
pub struct WaitArgs {
    #[arg(required = true, value_name = "TASK")]
    pub tasks: Vec<u32>,
    /// The end of one of them is enough
    #[arg(long)]
    pub any: bool,
    /// How long at most, such as 30s or 2h
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
}

#[derive(Args)]
pub struct TaskIds {
    #[arg(required = true, value_name = "TASK")]
    pub tasks: Vec<u32>,
}

#[derive(Subcommand)]
pub enum DataspaceCommand {
    /// Show the dataspaces that the caller may use
    #[command(after_help = "Example:\n  tidepool stage dataspace list")]
    List,
    /// Make storage known under a name
    #[command(after_help = "\
Examples:
  tidepool stage dataspace register nvme0:// --mount /mnt/nvme0 --track --capacity 500GiB
  tidepool stage dataspace register lustre:// --kind shared --mount /lustre --bandwidth 2GiB --streams 8
  tidepool stage dataspace register mine:// --pool mine")]
    Register(DataspaceArgs),
    /// Replace what is known of a dataspace
    #[command(
        after_help = "Example:\n  tidepool stage dataspace update nvme0:// --mount /mnt/nvme0 --capacity 1TiB"
    )]
    Update(DataspaceArgs),
    /// Forget a dataspace; refused while tasks use it, or while it is tracked and holds anything
    #[command(after_help = "Example:\n  tidepool stage dataspace unregister nvme0://")]
    Unregister {
        #[arg(value_parser = dataspace_name)]
        name: String,
    },
    /// Show what lies in a dataspace and is not persisted
    #[command(after_help = "Example:\n  tidepool stage dataspace leftovers nvme0://")]
    Leftovers {
        #[arg(value_parser = dataspace_name)]
        name: String,
        /// Entries at most
        #[arg(long, default_value_t = 1000)]
        max: u32,
    },
}

#[derive(Args)]
pub struct DataspaceArgs {
    /// Its name, such as nvme0://
    #[arg(value_parser = dataspace_name)]
    pub name: String,
    /// Directory; with --kind pool the pool file, with --kind object s3://BUCKET/PREFIX?OPTIONS
    #[arg(long, required_unless_present = "pool")]
    pub mount: Option<String>,
    /// Storage of this node, a mounted shared file system, a pool, or an object store
    #[arg(long, value_name = "KIND", default_value = "local", value_parser = word(&KINDS))]
    pub kind: DataspaceKind,
    /// The running pool of this name on this node, in place of --mount and --kind
    #[arg(long, value_name = "NAME", conflicts_with_all = ["mount", "kind"])]
    pub pool: Option<String>,
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

#[derive(Subcommand)]
pub enum JobCommand {
    /// Make a job known, with its nodes and the dataspaces it may use
    #[command(
        after_help = "Example:\n  tidepool stage job register 42 --host n0 --limit nvme0://=100GiB --limit lustre://"
    )]
    Register(RegisterArgs),
    /// Replace what is known of a job
    #[command(after_help = "Example:\n  tidepool stage job update 42 --host n0 --limit nvme0://=200GiB")]
    Update(JobArgs),
    /// Forget a job, and show what tracked dataspaces still hold; refused while it has unended tasks
    #[command(after_help = "Example:\n  tidepool stage job unregister 42")]
    Unregister { job: u32 },
    /// Show all jobs
    #[command(after_help = "Example:\n  tidepool stage job list")]
    List,
    /// Show what the tasks of a job have moved
    #[command(after_help = "Example:\n  tidepool stage job report 42")]
    Report { job: u32 },
    /// Wait until the data of a job are there, before it starts; 0 only when all are
    #[command(after_help = READY)]
    Ready(ReadyArgs),
    /// Let the held tasks of a job start
    #[command(after_help = RELEASE)]
    Release(ReleaseArgs),
    /// Let failed tasks of a job go on where they stopped
    #[command(after_help = RETRY)]
    Retry(RetryArgs),
    /// Let a process and its children submit tasks as part of a job
    #[command(after_help = "Example:\n  tidepool stage job add-process 42 31337")]
    AddProcess(ProcessArgs),
    /// Take that back
    #[command(after_help = "Example:\n  tidepool stage job remove-process 42 31337")]
    RemoveProcess(ProcessArgs),
}

#[derive(Args)]
pub struct JobArgs {
    pub job: u32,
    /// A node of the job; may be repeated
    #[arg(long = "host", value_name = "NAME", required = true)]
    pub hosts: Vec<String>,
    /// A dataspace it may use and, after '=', how many bytes it may put there; may be repeated
    #[arg(long = "limit", value_name = "DATASPACE[=SIZE]", value_parser = parse_limit)]
    pub limits: Vec<JobLimit>,
    /// Bytes per second of all its tasks together; no limit without
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub bandwidth: Option<u64>,
}

#[derive(Args)]
pub struct RegisterArgs {
    #[command(flatten)]
    pub job: JobArgs,
    /// Whose job it is: where stagers know nodes by their keys, other nodes open its data in this user's name only
    #[arg(long, value_name = "NAME|UID:GID", value_parser = parse_owner)]
    pub owner: Option<Owner>,
}

/// A user of this machine, or numbers.
fn parse_owner(text: &str) -> Result<Owner, String> {
    if let Some((uid, gid)) = text.split_once(':') {
        let number =
            |part: &str| part.parse::<u32>().map_err(|_| format!("'{part}' is no number of a user or group"));
        return Ok(Owner { uid: number(uid)?, gid: number(gid)? });
    }
    match nix::unistd::User::from_name(text) {
        Ok(Some(user)) => Ok(Owner { uid: user.uid.as_raw(), gid: user.gid.as_raw() }),
        _ => Err(format!("there is no user '{text}' on this machine; UID:GID does without")),
    }
}

#[derive(Args)]
pub struct ReadyArgs {
    pub job: u32,
    /// How long at most, such as 30s or 2h [default: until all of them have ended]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
    /// Unless the data are there: end what is under way, and remove what was staged, on all nodes
    #[arg(long)]
    pub clean: bool,
    /// Only show what --clean would remove now; waits for nothing
    #[arg(long, requires = "clean")]
    pub dry_run: bool,
    /// Do not look whether what was staged still lies there
    #[arg(long)]
    pub no_look: bool,
    /// Control socket of one more stager that has tasks of the job, or, with --secret-file, where it listens; may be repeated
    #[arg(long = "stager", value_name = "PATH|HOST:PORT", value_parser = stager_at)]
    pub stagers: Vec<StagerAt>,
}

#[derive(Args)]
pub struct RetryArgs {
    pub job: u32,
    /// Those that were cancelled, too
    #[arg(long)]
    pub cancelled: bool,
    /// Wait until they have ended, and show how
    #[arg(long)]
    pub wait: bool,
    /// Socket of one more stager that has tasks of the job, or, with --secret-file, where it listens; may be repeated
    #[arg(long = "stager", value_name = "PATH|HOST:PORT", value_parser = stager_at)]
    pub stagers: Vec<StagerAt>,
}

#[derive(Args)]
pub struct ReleaseArgs {
    pub job: u32,
    /// Wait until they have ended, and show how
    #[arg(long)]
    pub wait: bool,
}

#[derive(Args)]
pub struct WhereArgs {
    /// A dataspace, or what lies in one, on the nodes
    #[arg(required = true, value_name = "PLACE", value_parser = place())]
    pub places: Vec<Resource>,
    /// A node: NAME=HOST:PORT of its stager, or NAME alone for the one that is asked
    #[arg(long, required = true, value_name = "NAME[=HOST:PORT]", value_parser = node_flag)]
    pub node: Vec<NodeFlag>,
    /// Print the names of the so many best nodes only, with commas between them
    #[arg(long, value_name = "COUNT", conflicts_with = "bring_to")]
    pub best: Option<usize>,
    /// Print the tasks that bring to this node what it lacks, as a list that submit --from reads
    #[arg(long, value_name = "NAME")]
    pub bring_to: Option<String>,
}

#[derive(Args)]
pub struct ProcessArgs {
    pub job: u32,
    pub pid: i32,
    /// User of the process [default: who owns it now]
    #[arg(long)]
    pub uid: Option<u32>,
    /// Group of the process [default: the one it has now]
    #[arg(long)]
    pub gid: Option<u32>,
}

#[derive(Subcommand)]
pub enum PersistCommand {
    /// Keep a location beyond its job, for its owner alone
    ///
    /// What is there already loses the permissions of group and others at its top.
    #[command(after_help = "Example:\n  tidepool stage persist store nvme0://mesh --expires 6w")]
    Store {
        #[arg(value_parser = place())]
        location: Resource,
        /// Remove the data after this time, such as 12h, 7d or 6w [default: never]
        #[arg(long, value_name = "TIME", value_parser = parse_duration)]
        expires: Option<Duration>,
        /// Who owns it: administrators only [default: the caller]
        #[arg(long, value_name = "UID")]
        owner: Option<u32>,
    },
    /// Remove a kept location and its data; prints the id of the task that does it
    #[command(after_help = "Example:\n  tidepool stage persist delete nvme0://mesh")]
    Delete {
        #[arg(value_parser = place())]
        location: Resource,
    },
    /// Let another user read a kept location: all files below it, and those made there later
    ///
    /// By access control lists. Files of other owners are left, and told of. Waits until it is done.
    #[command(after_help = "Example:\n  tidepool stage persist share nvme0://mesh 1001")]
    Share {
        #[arg(value_parser = place())]
        location: Resource,
        uid: u32,
    },
    /// Take that back, and wait until it is done
    #[command(after_help = "Example:\n  tidepool stage persist unshare nvme0://mesh 1001")]
    Unshare {
        #[arg(value_parser = place())]
        location: Resource,
        uid: u32,
    },
    /// Show the kept locations that the caller may see
    #[command(after_help = "Example:\n  tidepool stage persist list")]
    List,
}

#[derive(Args)]
pub struct StartArgs {
    /// Directory of its sockets, journal and log
    #[arg(long)]
    pub dir: PathBuf,
    /// Configuration file (TOML), see docs/guide/stager.md
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

#[derive(Args)]
pub struct StopArgs {
    /// The directory it was started with
    #[arg(long)]
    pub dir: PathBuf,
    /// Also with unended tasks, which go on at the next start, or with data in tracked dataspaces
    #[arg(long)]
    pub now: bool,
}
