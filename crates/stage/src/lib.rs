//! Parallel, streamed, verified, resumable copies of trees between local directories and
//! pools.
//!
//! ```no_run
//! use tidepool_stage::{Control, LocalEnd, StageOptions, What, stage};
//!
//! let source = LocalEnd::open("/data/in".as_ref())?;
//! let target = LocalEnd::create("/scratch/in".as_ref())?;
//! let report = stage(&source, &target, &What::Tree, &StageOptions::default(), &Control::default());
//! assert!(report.complete, "{:?}", report.errors);
//! # Ok::<(), tidepool_stage::EndError>(())
//! ```
//!
//! What a copy promises, `docs/guide/staging.md` tells users; in short:
//!
//! - A final name never holds a partial file. Data goes to a temporary name, is made
//!   durable, read back, compared, and renamed.
//! - [`StageReport::complete`] is true only when every entry was copied and verified and its
//!   source was unchanged at the end.
//! - Nothing at the destination is removed but our own temporary files and what a verified
//!   entry of the same name replaces.
//! - A rerun after any interruption copies what is missing, and of a large file the ranges
//!   that are missing.
//!
//! Memory does not grow with the tree, with these exceptions: directories whose content is
//! unfinished (the path to each file being copied), one entry per hard-linked object,
//! about 30 bytes per file that the journal of an earlier run lists, 16 bytes per range of
//! each large file under way, and the listing of each pool directory being walked.
//!
//! Threads: [`stage`] runs its own workers and returns when they have ended.

#![forbid(unsafe_code)]

mod attrs;
mod beneath;
mod compare;
mod compound;
mod data;
mod end;
mod gentle;
mod group;
mod identity;
mod job;
mod journal;
mod large;
mod leads;
mod ledger;
mod limit;
mod links;
mod local;
mod lone;
mod moving;
mod nearby;
mod options;
mod ordered;
mod other;
mod pace;
mod pack;
mod passing;
mod pool;
mod progress;
mod reflink;
pub mod remote;
mod remove;
mod report;
mod room;
mod scan;
mod sched;
mod small;
mod sync;
mod tree;
mod untold;
mod walk;
mod whole;

pub use compare::{CompareOptions, DIFFERENCES_MAX, compare};
pub use end::{
    At, Content, Cursor, DirRef, End, EndError, EndResult, FileRef, Got, Item, Meta, Name, Naming, Nature,
    PackLimits, Put, PutHow, ReadRange, Refused, Rights, SetMeta, WritePieces, Written, Xattr,
};
pub use gentle::be_gentle;
pub use identity::{Identity, NO_ID};
pub use job::stage;
pub use journal::{Header as JournalHeader, JournalError, Past, PastLarge, Record, Version};
pub use leads::{Leads, LinkAt};
pub use limit::{Bucket, Charge, Charged};
pub use local::{LocalDir, LocalEnd};
pub use lone::Lone;
pub use moving::{MoveReport, move_tree};
pub use options::{StageOptions, WORKERS_DEFAULT_MAX, WORKERS_MAX, What};
pub use pool::{PoolEnd, PoolHandle};
pub use progress::{Control, Phase, Progress};
pub use remove::{Doomed, LISTINGS_MAX, RemoveReport, Spared, remove, remove_but};
pub use report::{
    ERRORS_KEPT_MAX, Failure, FailureKind, Side, StageError, StageReport, StageWarning, WARNINGS_KEPT_MAX,
};
pub use sched::FILES_QUEUED_MAX;
pub use tidepool_types::show_bytes;
pub use tree::PathHash;

/// Bytes of one range of a large file: the unit of parallel work and of resuming. Part of the
/// journal's format.
pub const RANGE_BYTES: u64 = 8 << 20;
/// Files from this size on are cut into ranges.
pub const LARGE_BYTES_MIN: u64 = 2 * RANGE_BYTES;
/// Bytes read and written at a time: several chunks, so that several daemons work at once.
pub const BLOCK_BYTES: usize = 2 << 20;
/// The same between local places, for what is read and for reading it back: both stay in a core's
/// cache between these steps.
pub const NEAR_BLOCK_BYTES: usize = 512 << 10;
/// The same within memory, for files of one worker: what is read back is still in the nearest cache then.
pub const MEMORY_BLOCK_BYTES: usize = 128 << 10;
/// The same for large files on disks.
pub const DISK_BLOCK_BYTES: usize = 4 << 20;
/// The most that a worker which gives way to others has for a block, and for the same one when it is read back. Many kernels let nobody
/// else have a core in the midst of a call: beside a program that wrote 4 MiB at a time to a disk a solver took 20 % longer, beside one
/// that wrote 128 KiB not measurably.
pub(crate) const GENTLE_BUFFER_BYTES: usize = 256 << 10;
/// Times an entry is tried whose source changes meanwhile: once, and three times again.
pub const ATTEMPTS_MAX: u32 = 4;
/// Small files that a worker makes durable together.
pub const BATCH_FILES_MAX: usize = 32;
/// Bytes of them.
pub const BATCH_BYTES_MAX: u64 = 16 << 20;
/// Start of the names of temporary files.
pub const PART_PREFIX: &[u8] = b".tidepool-part.";
