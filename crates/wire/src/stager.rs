//! What clients ask of a stager, and what it answers: `docs/formats/11-stager.md`.
//!
//! The operations are those of the NORNS interfaces (Miranda et al. 2019, Table I) and what a
//! client of them needs besides. [`Code`] has the published numbers.

use crate::table::{enum_field, messages};
use crate::{DecodeError, Field, Reader, field_struct};

/// Version of the messages; both sides must name the same one.
pub const STAGER_VERSION: u16 = 1;
/// What the first message of a connection starts with.
pub const STAGER_MAGIC: [u8; 8] = *b"TPSTAGER";
/// Bytes of a frame's head.
pub const HEAD_LEN: usize = 16;
/// Most bytes of a frame's body.
pub const BODY_MAX: usize = 8 << 20;
/// Most tasks of one [`Request::SubmitMany`], and of one reply that lists tasks.
pub const TASKS_AT_ONCE_MAX: usize = 16_384;
/// Most tasks that one [`Request::ReleaseJob`] releases: what some of them fail with at once still fits into one frame of the journal.
pub const RELEASED_AT_ONCE_MAX: usize = 4096;
/// Most places of one reply that says what is cleaned up: with the longest paths it still fits.
pub const CLEANED_AT_ONCE_MAX: usize = 256;
/// Longest name of a dataspace in bytes.
pub const DATASPACE_NAME_MAX: usize = 255;
/// Longest path of a resource in bytes.
pub const RESOURCE_PATH_MAX: usize = 4096;

/// What precedes each message: length of the body, kind, and the number that a reply repeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Head {
    pub len: u32,
    pub kind: u16,
    pub id: u64,
}

impl Head {
    pub fn encode(&self) -> [u8; HEAD_LEN] {
        let mut bytes = [0; HEAD_LEN];
        bytes[..4].copy_from_slice(&self.len.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.kind.to_le_bytes());
        bytes[8..].copy_from_slice(&self.id.to_le_bytes());
        bytes
    }

    /// Reads a head and checks its length before anything is allocated for the body.
    pub fn decode(bytes: &[u8; HEAD_LEN]) -> Result<Head, DecodeError> {
        let mut from = Reader::new(bytes);
        let (len, kind) = (u32::get(&mut from)?, u16::get(&mut from)?);
        if u16::get(&mut from)? != 0 {
            return Err(DecodeError::Invalid("frame flags"));
        }
        if len as usize > BODY_MAX {
            return Err(DecodeError::Invalid("message length"));
        }
        Ok(Head { len, kind, id: u64::get(&mut from)? })
    }
}

macro_rules! framed {
    ($($message:ident),*) => { $(
        impl $message {
            /// Appends the message with its head. None is made that the other side would refuse
            /// for its length.
            pub fn put_frame(&self, id: u64, out: &mut Vec<u8>) -> Result<(), DecodeError> {
                let start = out.len();
                out.extend_from_slice(&[0; HEAD_LEN]);
                self.encode(out);
                let len = out.len() - start - HEAD_LEN;
                if len > BODY_MAX {
                    out.truncate(start);
                    return Err(DecodeError::Invalid("message length"));
                }
                let head = Head { len: len as u32, kind: self.kind(), id };
                out[start..start + HEAD_LEN].copy_from_slice(&head.encode());
                Ok(())
            }
        }
    )* };
}
framed!(Request, Reply);

messages! {
    /// What a client asks.
    Request {
        /// The first message. `name` says who asks, for people.
        1 Hello { magic: [u8; 8], version: u16, name: String }
        2 Ping {}
        /// Tasks: of every caller.
        10 Submit { task: TaskSpec }
        11 SubmitMany { tasks: Vec<TaskSpec> }
        12 Status { id: u32 }
        /// Answered when all of them (or `any`) have ended, or after `timeout_ms` (`NONE`: never) with `Code::Timeout`.
        13 Wait { ids: Vec<u32>, any: bool, timeout_ms: Option<u64> }
        14 Cancel { id: u32 }
        /// Starts a failed or cancelled task again where it stopped.
        15 Resume { id: u32 }
        /// Tasks the caller may see, with ids after `after`.
        16 List { job: Option<u32>, only: Option<TaskState>, after: u32, max: u32 }
        /// What a task would do: checked and counted, nothing moved.
        17 Plan { task: TaskSpec }
        18 DaemonStatus {}
        /// Dataspaces the caller may use.
        19 Dataspaces {}
        /// Forgets an ended task.
        20 Forget { id: u32 }
        /// What tasks of a job have moved so far: of the caller's own job, or any for administrators.
        21 JobReport { job: u32 }
        /// Locations kept beyond their jobs: `store`, `delete`, `share`, `unshare` (Listing 1 of the paper). Each is answered with
        /// the number of the task that does to the files what it says.
        22 Persist { op: PersistOp, dataspace: String, path: Bytes, user: u32, expires: u64 }
        23 Persisted {}
        /// Administration: on the control socket.
        40 RegisterDataspace { dataspace: DataspaceSpec }
        41 UpdateDataspace { dataspace: DataspaceSpec }
        42 UnregisterDataspace { name: String }
        43 RegisterJob { job: JobSpec }
        44 UpdateJob { job: JobSpec }
        /// Refused while tasks of the job run. The reply lists what tracked dataspaces still hold.
        45 UnregisterJob { job: u32 }
        46 AddProcess { job: u32, process: ProcessSpec }
        47 RemoveProcess { job: u32, process: ProcessSpec }
        48 Command { command: Command }
        49 Jobs {}
        /// What lies in a dataspace and is not persisted.
        50 Leftovers { dataspace: String, max: u32 }
        51 SetPolicy { policy: Policy }
        /// Starts the removal of what copies of a job have put where there was nothing before, from the task after `after` on.
        /// Refused while copies of the job have not ended, but for `dry_run`, which only tells.
        52 CleanJob { job: u32, after: u32, dry_run: bool }
        /// Submit and Wait as one, of every caller. Answered with Tasks when the task has ended, or after `timeout_ms` with how it is
        /// then; a task that is not taken, with Failed. Was 53, without the time.
        54 SubmitAndWait { task: TaskSpec, timeout_ms: u64 }
        /// Administration: tasks in the name of one job's user that start when the job is released, and need their dataspaces only then.
        55 SubmitHeld { tasks: Vec<TaskSpec> }
        /// The job's held tasks become pending, in the order they came; at most 4,096 at once.
        56 ReleaseJob { job: u32 }
        /// Names in a directory, seen with the rights of the caller or, for administrators, of `on_behalf`; those after `after`, in
        /// the order of their bytes.
        57 Entries { place: Resource, on_behalf: Option<OnBehalf>, after: Bytes, max: u32 }
        /// Administration: a location of `user`'s is not kept any more; what lies there stays, and nothing is changed where none is
        /// kept.
        58 Unkeep { dataspace: String, path: Bytes, user: u32 }
        /// Administration: starts the removal of what copies of a job have made in tracked dataspaces of this node, from the task
        /// after `after` on, with the directories they made: what is the job's user's, not kept, and no other job's. Refused while
        /// tasks of the job have not ended, and where failed ones have been forgotten.
        59 CleanOwn { job: u32, after: u32 }
        /// As RegisterJob; only in this user's name do other nodes open what the job may use here.
        60 RegisterJobOf { job: JobSpec, owner: Owner }
    }
}

messages! {
    /// What a stager answers.
    Reply {
        1 Failed { refusal: Refusal }
        /// `control`: administration is allowed on this connection.
        2 Welcome { version: u16, node: String, pid: u32, uid: u32, control: bool }
        3 Done {}
        4 Submitted { id: u32 }
        /// One for each task, 0 where it was refused; the refusals with their places.
        5 SubmittedMany { ids: Vec<u32>, refused: Vec<(u32, Refusal)> }
        6 Task { status: TaskStatus }
        7 Tasks { tasks: Vec<TaskStatus>, more: bool }
        8 Daemon { status: StagerStatus }
        9 Dataspaces { dataspaces: Vec<DataspaceInfo> }
        10 Jobs { jobs: Vec<JobSpec> }
        11 Report { report: JobReport }
        12 Leftovers { entries: Vec<Leftover>, more: bool }
        13 Persisted { locations: Vec<Persisted> }
        14 Planned { plan: Plan }
        15 Cleaned { places: Vec<Cleaning>, more: bool }
        /// How many are held no more; `more`: ask again.
        16 Released { tasks: u32, more: bool }
        17 Entries { names: Vec<Bytes>, more: bool }
    }
}

/// A path.
pub type Bytes = Box<[u8]>;

/// Result codes. Those up to -201 but the ones named ours have the numbers and meanings of the
/// published NORNS interface; ours fill gaps of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Code(pub i32);

macro_rules! codes {
    ($($(#[$doc:meta])* $number:literal $name:ident $published:literal $text:literal)*) => {
        impl Code {
            $($(#[$doc])* pub const $name: Code = Code($number);)*

            /// Every (number, name in C without `NORNS_`, text).
            pub const ALL: &'static [(i32, &'static str, &'static str)] = &[$(($number, $published, $text)),*];

            /// Plain words; none for a number that is no code.
            pub fn text(self) -> Option<&'static str> {
                match self.0 { $($number => Some($text),)* _ => None }
            }
        }
    };
}

codes! {
    0 SUCCESS "SUCCESS" "Success"
    -1 INTERNAL "ESNAFU" "Internal error"
    -2 BAD_ARGS "EBADARGS" "Bad arguments"
    -3 BAD_REQUEST "EBADREQUEST" "Bad request"
    -4 NO_MEMORY "ENOMEM" "Cannot allocate memory"
    -5 TIMEOUT "ETIMEOUT" "Timeout exceeded"
    -6 CONNECTION_FAILED "ECONNFAILED" "Cannot connect to daemon"
    -7 SEND_FAILED "ERPCSENDFAILED" "Cannot send requests to daemon"
    -8 RECEIVE_FAILED "ERPCRECVFAILED" "Cannot receive responses from daemon"
    -9 PAUSED "EACCEPTPAUSED" "Daemon does not accept new tasks"
    -10 JOB_EXISTS "EJOBEXISTS" "Job already exists"
    -11 NO_SUCH_JOB "ENOSUCHJOB" "Job does not exist"
    /// Ours.
    -12 JOB_BUSY "EJOBBUSY" "Job has unfinished tasks"
    -20 PROCESS_EXISTS "EPROCESSEXISTS" "Process already exists"
    -21 NO_SUCH_PROCESS "ENOSUCHPROCESS" "Process does not exist"
    -30 DATASPACE_EXISTS "ENAMESPACEEXISTS" "Namespace already exists"
    -31 NO_SUCH_DATASPACE "ENOSUCHNAMESPACE" "Namespace does not exist"
    -32 DATASPACE_NOT_EMPTY "ENAMESPACENOTEMPTY" "Namespace is not empty"
    /// Ours.
    -33 DATASPACE_BUSY "ENAMESPACEBUSY" "Namespace is used by unfinished tasks"
    -40 TASK_EXISTS "ETASKEXISTS" "Task already exists"
    -41 NO_SUCH_TASK "ENOSUCHTASK" "Task does not exist"
    -42 TOO_MANY_TASKS "ETOOMANYTASKS" "Too many pending tasks"
    -43 TASKS_PENDING "ETASKSPENDING" "There are still pending tasks"
    /// Ours: how a cancelled task ends.
    -44 CANCELLED "ECANCELED" "Task was cancelled"
    /// Ours: the operation does not fit the task's state.
    -45 TASK_STATE "ETASKSTATE" "Not possible in the task's state"
    /// Ours: administration by others, processes of no job, dataspaces of other jobs.
    -50 NOT_PERMITTED "EPERM" "Not permitted"
    -110 RESOURCE_EXISTS "ERESOURCEEXISTS" "Resource already exists"
    -111 NO_SUCH_RESOURCE "ENOSUCHRESOURCE" "Resource does not exist"
    -200 NOT_SUPPORTED "ENOTSUPPORTED" "Not supported"
    -201 SYSTEM_ERROR "ESYSTEMERROR" "Operating system error"
}

impl Field for Code {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Code, DecodeError> {
        Ok(Code(Field::get(from)?))
    }
}

/// Why something was not done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    pub code: Code,
    /// Error number of the system with [`Code::SYSTEM_ERROR`]; else 0.
    pub errno: i32,
    /// What, where, what to do: for people.
    pub detail: String,
}
field_struct!(Refusal { code, errno, detail });

impl Refusal {
    pub fn new(code: Code, detail: impl Into<String>) -> Refusal {
        Refusal { code, errno: 0, detail: detail.into() }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.detail.as_str(), self.code.text()) {
            ("", Some(text)) => f.write_str(text),
            ("", None) => write!(f, "error {}", self.code.0),
            (detail, _) => f.write_str(detail),
        }
    }
}

impl std::error::Error for Refusal {}

enum_field!(
    /// What a task does.
    Op {
        Copy = 1,
        Move = 2,
        Remove = 3,
        /// Changes who may read a kept location. Comes from `persist` only, and cannot be submitted.
        Permit = 4,
    }
);
enum_field!(
    /// Where a path is, as the submitter sees it.
    Access { Local = 1, Remote = 2, Shared = 3 }
);
enum_field!(
    /// How far a task is.
    TaskState { Pending = 1, Running = 2, Finished = 3, Failed = 4, Cancelled = 5 }
);
enum_field!(
    /// What a task is at.
    TaskPhase {
        Queued = 1,
        Walking = 2,
        Copying = 3,
        Finishing = 4,
        Removing = 5,
        Ended = 6,
        /// Of a pending task: it starts when its job is released.
        Held = 7,
    }
);
enum_field!(
    /// What is read back and compared before final names appear.
    Verify {
        No = 0,
        /// What the kernel holds of it, unless the stager reads from disks.
        Yes = 1,
        /// What the disk gives back, once it is synced and the kernel was asked to forget it.
        Disk = 2,
    }
);
enum_field!(PersistOp { Store = 1, Delete = 2, Share = 3, Unshare = 4 });
enum_field!(Command { Ping = 1, Pause = 2, Resume = 3, Shutdown = 4 });
enum_field!(
    /// Order in which pending tasks start. Tasks of higher priority start first under all of them.
    Policy { FirstCome = 1, ShortestFirst = 2, FairByJob = 3, FairByUser = 4 }
);
enum_field!(
    /// What a dataspace is.
    DataspaceKind {
        /// A directory on storage of this node.
        Local = 1,
        /// A mounted shared file system.
        Shared = 2,
        /// A pool: `mount` is its pool file.
        Pool = 3,
        /// An object store: `mount` is its URL.
        Object = 4,
    }
);

enum_field!(
    /// What becomes of a staged place when its job is cleaned up after.
    Fate {
        /// It was made by the copy, and goes.
        Removed = 1,
        /// The copy has made nothing.
        Nothing = 2,
        /// Something was there before the copy: all of it stays.
        WasThere = 3,
        /// It was moved there, so nothing else may hold it.
        OnlyCopy = 4,
        /// It is, lies under or holds a kept location.
        Kept = 5,
    }
);

impl TaskState {
    pub fn is_ended(self) -> bool {
        !matches!(self, TaskState::Pending | TaskState::Running)
    }
}

/// One end of a task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Resource {
    /// Memory of the submitting process.
    Memory { address: u64, size: u64 },
    /// A path in a dataspace: of this node, or of the stager at `host` (`address:port`).
    Path { access: Access, dataspace: String, host: Option<String>, path: Bytes },
}

impl Resource {
    /// A path on this node.
    pub fn local(dataspace: impl Into<String>, path: &[u8]) -> Resource {
        Resource::Path { access: Access::Local, dataspace: dataspace.into(), host: None, path: path.into() }
    }

    /// A path at another stager.
    pub fn remote(dataspace: impl Into<String>, host: impl Into<String>, path: &[u8]) -> Resource {
        let host = Some(host.into());
        Resource::Path { access: Access::Remote, dataspace: dataspace.into(), host, path: path.into() }
    }
}

impl Field for Resource {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Resource::Memory { address, size } => {
                1u8.put(out);
                address.put(out);
                size.put(out);
            }
            Resource::Path { access, dataspace, host, path } => {
                2u8.put(out);
                access.put(out);
                dataspace.put(out);
                host.put(out);
                path.put(out);
            }
        }
    }
    fn get(from: &mut Reader<'_>) -> Result<Resource, DecodeError> {
        match u8::get(from)? {
            1 => Ok(Resource::Memory { address: Field::get(from)?, size: Field::get(from)? }),
            2 => Ok(Resource::Path {
                access: Field::get(from)?,
                dataspace: Field::get(from)?,
                host: Field::get(from)?,
                path: Field::get(from)?,
            }),
            _ => Err(DecodeError::Invalid("resource")),
        }
    }
}

/// A user and what he asks for in whose name: administrators only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OnBehalf {
    pub uid: u32,
    pub gid: u32,
    /// 0 for none.
    pub job: u32,
}
field_struct!(OnBehalf { uid, gid, job });

/// A task as it is submitted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskSpec {
    pub op: Op,
    pub src: Resource,
    /// None for [`Op::Remove`] and [`Op::Permit`].
    pub dst: Option<Resource>,
    /// Higher first.
    pub priority: i32,
    pub verify: Verify,
    /// Bytes per second; 0 for no limit of its own.
    pub bandwidth: u64,
    /// Bytes it will move as far as the submitter knows; 0 when not.
    pub size_hint: u64,
    pub on_behalf: Option<OnBehalf>,
}
field_struct!(TaskSpec { op, src, dst, priority, verify, bandwidth, size_hint, on_behalf });

impl TaskSpec {
    /// A verified task with nothing special.
    pub fn new(op: Op, src: Resource, dst: Option<Resource>) -> TaskSpec {
        TaskSpec {
            op,
            src,
            dst,
            priority: 0,
            verify: Verify::Yes,
            bandwidth: 0,
            size_hint: 0,
            on_behalf: None,
        }
    }
}

/// How a task is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskStatus {
    pub id: u32,
    pub op: Op,
    pub state: TaskState,
    pub phase: TaskPhase,
    /// Why it failed; `Code::SUCCESS` otherwise.
    pub refusal: Refusal,
    pub job: u32,
    pub uid: u32,
    /// `nvme0://in`, for people.
    pub src: String,
    pub dst: String,
    pub bytes_done: u64,
    /// Bytes known so far; final when `total_known`.
    pub bytes_total: u64,
    pub files_done: u64,
    pub files_total: u64,
    pub total_known: bool,
    /// Bytes per second lately.
    pub rate: u64,
    pub eta_ms: Option<u64>,
    /// Milliseconds since it was submitted, or from then to its end.
    pub age_ms: u64,
    /// Share of the whole, while it runs and the whole is known: bytes count half when they are copied, and half when they
    /// are verified.
    pub percent: Option<u8>,
}
field_struct!(TaskStatus {
    id,
    op,
    state,
    phase,
    refusal,
    job,
    uid,
    src,
    dst,
    bytes_done,
    bytes_total,
    files_done,
    files_total,
    total_known,
    rate,
    eta_ms,
    age_ms,
    percent,
});

/// The whole daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StagerStatus {
    pub node: String,
    pub pending: u64,
    pub running: u64,
    pub ended: u64,
    /// Until nothing is left to do; none when it cannot be told.
    pub eta_ms: Option<u64>,
    pub bytes_done: u64,
    pub rate: u64,
    pub paused: bool,
    pub policy: Policy,
    pub workers: u32,
    pub counters: Vec<(String, u64)>,
}
field_struct!(StagerStatus {
    node,
    pending,
    running,
    ended,
    eta_ms,
    bytes_done,
    rate,
    paused,
    policy,
    workers,
    counters,
});

/// A dataspace as it is registered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataspaceSpec {
    /// `nvme0://`.
    pub name: String,
    pub kind: DataspaceKind,
    pub mount: String,
    /// What is left in it is told when jobs or the daemon end.
    pub tracked: bool,
    /// Bytes that tasks may put there in all; 0 for no limit.
    pub capacity: u64,
    /// Tasks at a time; 0 for no limit.
    pub streams_max: u32,
    /// Bytes per second of all tasks together; 0 for no limit.
    pub bandwidth: u64,
}
field_struct!(DataspaceSpec { name, kind, mount, tracked, capacity, streams_max, bandwidth });

/// A dataspace as the caller may use it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataspaceInfo {
    pub dataspace: DataspaceSpec,
    /// Bytes the caller's job may put there; 0 for no limit.
    pub quota: u64,
    /// Bytes tasks of the caller's job have put there.
    pub used: u64,
}
field_struct!(DataspaceInfo { dataspace, quota, used });

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobLimit {
    pub dataspace: String,
    /// Bytes; 0 for no limit.
    pub quota: u64,
}
field_struct!(JobLimit { dataspace, quota });

/// A job: its nodes, and the dataspaces it may use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobSpec {
    pub id: u32,
    pub hosts: Vec<String>,
    pub limits: Vec<JobLimit>,
    /// Bytes per second of all its tasks together; 0 for no limit.
    pub bandwidth: u64,
}
field_struct!(JobSpec { id, hosts, limits, bandwidth });

/// Whose a job is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}
field_struct!(Owner { uid, gid });

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessSpec {
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
}
field_struct!(ProcessSpec { pid, uid, gid });

/// What staging a job has cost (`job report`, INVENTORY I24 of the design).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobReport {
    pub job: u32,
    pub tasks: u64,
    pub failed: u64,
    pub bytes: u64,
    pub files: u64,
    /// Milliseconds that tasks ran, added up.
    pub busy_ms: u64,
    /// From, to, bytes, milliseconds.
    pub pairs: Vec<PairReport>,
}
field_struct!(JobReport { job, tasks, failed, bytes, files, busy_ms, pairs });

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PairReport {
    pub from: String,
    pub to: String,
    pub bytes: u64,
    pub files: u64,
    pub busy_ms: u64,
}
field_struct!(PairReport { from, to, bytes, files, busy_ms });

/// Something that lies in a dataspace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leftover {
    pub dataspace: String,
    pub path: Bytes,
    pub directory: bool,
    pub size: u64,
    pub uid: u32,
}
field_struct!(Leftover { dataspace, path, directory, size, uid });

/// A location that outlives its job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Persisted {
    pub dataspace: String,
    pub path: Bytes,
    pub owner: u32,
    /// Users who may read it.
    pub shared: Vec<u32>,
    /// Seconds since 1970; 0 for never.
    pub expires: u64,
}
field_struct!(Persisted { dataspace, path, owner, shared, expires });

/// What becomes of what a task has put somewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cleaning {
    pub task: u32,
    /// `n1:42000/nvme0://in`, for people.
    pub place: String,
    pub fate: Fate,
    /// The task that removes it; 0 for none.
    pub removal: u32,
}
field_struct!(Cleaning { task, place, fate, removal });

/// What a task would do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    pub files: u64,
    pub dirs: u64,
    pub bytes: u64,
    /// Bytes free at the destination; none where it cannot be told.
    pub free: Option<u64>,
    /// Bytes the job may still put there; none without a limit.
    pub quota_left: Option<u64>,
    /// As learned from earlier tasks between the two dataspaces; none before the first.
    pub estimate_ms: Option<u64>,
    /// How long before the data are needed it should start, so that few are late.
    pub lead_ms: Option<u64>,
    /// What speaks against it; empty when nothing does.
    pub problems: Vec<String>,
}
field_struct!(Plan { files, dirs, bytes, free, quota_left, estimate_ms, lead_ms, problems });
