//! The file system client of a pool.
//!
//! One [`Client`] serves all threads of a process. It resolves paths, computes owners,
//! splits data into chunks and talks to the daemons; the doors (preload, FUSE, command)
//! only convert. `docs/consistency.md` says what callers may rely on.

#![forbid(unsafe_code)]

#[macro_use(eprintln)]
extern crate tidepool_types;

mod acls;
mod attrs;
mod calls;
mod copy;
mod data;
mod direct;
mod dirs;
mod error;
mod hints;
mod known;
mod layout;
mod leases;
mod listing;
mod loan;
mod locks;
mod names;
mod open;
mod pace;
mod perm;
mod phase;
mod poolfile;
mod record;
mod rename;
mod retry;
mod sizes;
mod space;
mod tally;
mod walk;

pub use acls::is_list;
pub use calls::{Client, set_fd_placer};
pub use error::FsError;
pub use hints::{HINTS_MAX, Hint, Wanted};
pub use leases::{DataLease, Kept, Watch, Word};
pub use listing::DirEntry;
pub use locks::{HeldLock, LockOwner, LockPlace, LockRange, LockWish, PID_OPEN_FILE, Queued};
pub use perm::Cred;
pub use phase::{NoHint, PHASE_ATTRIBUTE, PHASE_BYTES_VARIABLE, PhaseHint, PhasePattern};
pub use poolfile::{PoolFile, PoolFileError, PoolMode, group_names, placer, possible};
pub use record::RECORD_VARIABLE;
pub use sizes::SIZE_CACHE_VARIABLE;
pub use tidepool_wire::message::{LeaseKey, LockKind, LockMode, VERSION_MADE};
pub use walk::Walk;

/// Space of the whole pool, in blocks of `block_size` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsStat {
    pub block_size: u64,
    pub blocks: u64,
    pub blocks_free: u64,
    pub files: u64,
}
