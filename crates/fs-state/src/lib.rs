//! The metadata state machine of one pool daemon.
//!
//! Pure: a request and the time come in; a reply comes out, and the store it was given has
//! taken one atomic batch of mutations. `docs/consistency.md` says what it promises.
//!
//! ```text
//!             Prepare / PrepareDir                 Finish(committed) : entry or part is gone
//!   free ───────────────────────────▶ held by txn ─┤
//!    ▲                                              └ Finish(aborted)  : free again
//!    └──────────────────────────────────────────────────────┘
//!   The decider of txn:  undecided ── CommitRename / CommitRmdir ──▶ committed
//!                            └─────── Resolve by anyone ───────────▶ aborted
//! ```

#![forbid(unsafe_code)]

use std::time::Duration;

mod handles;
mod leases;
mod lists;
mod locks;
mod namespace;
mod objects;
mod state;
mod tables;
mod waiting;

pub use leases::{Kept, Leases, Recall};
pub use state::{Context, State, StateConfig};
pub use tables::{MetaStore, MetaView, Watched};
pub use waiting::{Answered, Locks, PID_OPEN_FILE, Ticket};

/// How long an object without names outlives its last known handle. Covers the moment in
/// which a forked or exec'ed process has not yet registered the handles it inherited.
pub const ORPHAN_GRACE: Duration = Duration::from_secs(2);
/// The same after a restart of the daemon, which forgets all handles.
pub const ORPHAN_GRACE_RESTART: Duration = Duration::from_secs(30);
/// How long a decider remembers outcomes. Far longer than any client keeps a hold waiting.
pub const OUTCOME_KEEP_MS: u64 = 3_600_000;
/// Most entries or records in one listing reply; keeps it below the frame's limit.
pub const LIST_MAX: usize = 2_000;
/// The same for entries with attributes, each of which is looked up while others wait.
pub const LIST_PLUS_MAX: usize = 512;
