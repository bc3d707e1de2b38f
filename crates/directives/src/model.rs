//! What a job asks for.

use crate::mapping::MappingText;
use crate::place::Place;
use crate::told::Said;
use serde::{Serialize, Serializer};
use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;
use tidepool_plan::Deploy;
use tidepool_types::{ChunkSize, Encryption, Placement};
use tidepool_wire::stager::PersistOp;

/// Everything that the directives of one job say, in their order.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Directives {
    pub stage_in: Vec<Said<Stage>>,
    pub stage_out: Vec<Said<Stage>>,
    pub persist: Vec<Said<Persist>>,
    pub workflow: Workflow,
    pub pools: Vec<Said<PoolRequest>>,
    /// Stage in before the job starts, on nodes that a reservation fixes.
    pub reserve: bool,
    pub timeouts: Timeouts,
    /// The job whose stage-out this one finishes.
    pub resume: Option<Said<u32>>,
    /// The job whose results, which could not be staged out, this one removes.
    pub discard: Option<Said<u32>>,
    /// The pool that this job removes, by its number.
    pub end_pool: Option<Said<u32>>,
    /// Slurm's own words for its burst-buffer pools: kept, and used by Slurm alone.
    pub slurm: Vec<Said<SlurmBuffer>>,
}

/// One copy before or after the job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Stage {
    pub origin: Said<Place>,
    pub destination: Said<Place>,
    #[serde(serialize_with = "option_as_text")]
    pub mapping: Option<Said<MappingText>>,
}

/// What is to be done with a location that outlives its job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Persist {
    #[serde(serialize_with = "persist_word")]
    pub op: PersistOp,
    pub location: Said<Place>,
    /// Whom `share` and `unshare` are about; of the others whose location it is, the job's owner's without.
    pub user: Option<Said<String>>,
    /// How long after the end of the job `store` keeps it; for ever without.
    #[serde(serialize_with = "seconds")]
    pub expires: Option<Duration>,
}

/// The job's place among others.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Workflow {
    pub start: bool,
    pub name: Option<String>,
    /// Jobs that have to end well before this one starts.
    pub prior: Vec<Said<u32>>,
    pub end: bool,
    pub same_nodes: bool,
}

impl Workflow {
    /// True when the job belongs to one.
    pub fn is_any(&self) -> bool {
        self.start || !self.prior.is_empty() || self.end
    }
}

/// A file system for the job. What is not said is chosen when it is made.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct PoolRequest {
    pub name: Option<Said<String>>,
    /// Bytes.
    pub size: Option<Said<u64>>,
    pub nodes: Option<usize>,
    #[serde(serialize_with = "option_as_text")]
    pub deploy: Option<Deploy>,
    pub mode: Option<Mode>,
    #[serde(serialize_with = "chunk_size")]
    pub chunk_size: Option<ChunkSize>,
    #[serde(serialize_with = "placement")]
    pub placement: Option<Placement>,
    pub stripe: Option<u16>,
    pub client: Option<Client>,
    /// Of what goes over TCP between its nodes.
    #[serde(serialize_with = "option_as_text")]
    pub encrypt: Option<Encryption>,
    pub lifetime: Option<Lifetime>,
    #[serde(serialize_with = "option_as_text")]
    pub fs: Option<Fs>,
    #[serde(flatten)]
    pub tiers: TierRequest,
}

/// Shared storage below the pool's own, and how it is used.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct TierRequest {
    /// Whole paths of directories that all nodes see.
    pub burst: Option<String>,
    pub pfs: Option<String>,
    /// Where new data go, and when they are flushed; one that there is.
    pub strategy: Option<String>,
    pub flush: Option<Flush>,
    /// The nodes' own storage gets no new data.
    pub no_local: Option<bool>,
    /// What each process writes in an I/O phase.
    pub phase_bytes: Option<u64>,
    /// Bytes/s that each node carries to shared storage.
    pub link_bandwidth: Option<NonZeroU64>,
}

impl TierRequest {
    /// True when the pool has some.
    pub fn is_any(&self) -> bool {
        self.burst.is_some() || self.pfs.is_some()
    }
}

/// Name of the only pool of a job that has none of its own.
pub const POOL: &str = "pool";

impl PoolRequest {
    /// Under which it is used: `pool://`, or `NAME://`.
    pub fn dataspace(&self) -> String {
        format!("{}://", self.name.as_ref().map_or(POOL, |name| &name.value))
    }

    /// Other jobs find it with its data.
    pub fn outlives_job(&self) -> bool {
        matches!(self.lifetime, Some(Lifetime::Workflow | Lifetime::Campaign))
    }
}

/// How strictly POSIX is followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Posix,
    Relaxed,
    Compat,
}

/// How programs see the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Client {
    Auto,
    Fuse,
    Preload,
}

/// When data are flushed to slower storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Flush {
    /// When the strategy says so.
    Strategy,
    /// While the pool's programs write nothing.
    Idle,
}

/// When the pool ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Lifetime {
    /// With the job.
    Job,
    /// With the last job of the job's workflow.
    Workflow,
    /// When its owner ends it, or nobody has used it for long.
    Campaign,
}

pub(crate) const MODES: [(&str, Mode); 3] =
    [("posix", Mode::Posix), ("relaxed", Mode::Relaxed), ("compat", Mode::Compat)];
pub(crate) const CLIENTS: [(&str, Client); 3] =
    [("auto", Client::Auto), ("fuse", Client::Fuse), ("preload", Client::Preload)];
pub(crate) const LIFETIMES: [(&str, Lifetime); 3] =
    [("job", Lifetime::Job), ("workflow", Lifetime::Workflow), ("campaign", Lifetime::Campaign)];
pub(crate) const FLUSHES: [(&str, Flush); 2] = [("strategy", Flush::Strategy), ("idle", Flush::Idle)];
pub(crate) const YES_NO: [(&str, bool); 2] = [("yes", true), ("no", false)];
pub(crate) const PERSIST_OPS: [(&str, PersistOp); 4] = [
    ("store", PersistOp::Store),
    ("delete", PersistOp::Delete),
    ("share", PersistOp::Share),
    ("unshare", PersistOp::Unshare),
];

/// The word of a value in one of the tables above; each value has one.
pub(crate) fn word<T: Copy + PartialEq>(table: &[(&'static str, T)], value: T) -> &'static str {
    table.iter().find(|(_, of)| *of == value).map_or("unknown", |(word, _)| word)
}

macro_rules! shown_as_words {
    ($($kind:ty: $table:ident),*) => {$(
        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(word(&$table, *self))
            }
        }
    )*};
}
shown_as_words!(Mode: MODES, Client: CLIENTS, Lifetime: LIFETIMES, Flush: FLUSHES);

/// The kind of file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fs {
    /// A pool of daemons.
    Tidepool,
    /// A plain directory of one node's store.
    Local,
    /// What a program of the site makes.
    Script(String),
}

impl fmt::Display for Fs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fs::Tidepool => f.write_str("tidepool"),
            Fs::Local => f.write_str("local"),
            Fs::Script(program) => write!(f, "script:{program}"),
        }
    }
}

/// How long staging may take before the job ends, or its data stay where they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Timeouts {
    #[serde(serialize_with = "seconds")]
    pub stage_in: Option<Duration>,
    #[serde(serialize_with = "seconds")]
    pub stage_out: Option<Duration>,
}

/// `capacity=... pool=...`, as Slurm takes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SlurmBuffer {
    pub capacity: String,
    pub pool: String,
}

fn option_as_text<T: fmt::Display, S: Serializer>(value: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
    match value {
        None => to.serialize_none(),
        Some(value) => to.collect_str(value),
    }
}

fn persist_word<S: Serializer>(op: &PersistOp, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(word(&PERSIST_OPS, *op))
}

/// Bytes, or `auto`.
fn chunk_size<S: Serializer>(size: &Option<ChunkSize>, to: S) -> Result<S::Ok, S::Error> {
    match size {
        None => to.serialize_none(),
        Some(ChunkSize::Auto) => to.serialize_str("auto"),
        Some(ChunkSize::Bytes(bytes)) => to.serialize_u64(*bytes),
    }
}

fn placement<S: Serializer>(placement: &Option<Placement>, to: S) -> Result<S::Ok, S::Error> {
    match placement {
        None => to.serialize_none(),
        Some(placement) => to.serialize_str(placement.word()),
    }
}

fn seconds<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    time.map(|time| time.as_secs()).serialize(to)
}
