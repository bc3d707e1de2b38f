//! What a stager knows and decides, without I/O and without a clock: tasks and their order,
//! jobs, processes, dataspaces and their limits, and how long transfers take.
//!
//! The daemon calls [`State`] with what happened and the time, appends the [`Record`]s of
//! [`State::take_records`] to its journal before it answers anybody, and starts what
//! [`State::start_next`] returns. After a restart the records are replayed. After Miranda et al.
//! 2019 (NORNS), Section IV-B, Figure 3.

#![forbid(unsafe_code)]

mod arbiter;
mod backlog;
mod budget;
mod clean;
mod controller;
mod ended;
mod held;
mod learn;
pub mod log;
mod permit;
mod persist;
mod placed;
mod queries;
mod record;
mod rights;
mod spaces;
mod state;
mod task;
mod turn;
mod waits;

pub use arbiter::{Arbiter, Queued};
pub use budget::Budget;
pub use ended::FAILURES_MAX;
pub use held::{Release, check_one_job};
pub use learn::{Learned, Model};
pub use persist::Doubt;
pub use record::{Record, ReplayError};
pub use rights::{Caller, Opened, Rank, Side, Visitor};
pub use state::{Cancelled, Config, Left, State};
pub use task::{Ended, Identity, Live, Made, Origin, Permit, Quota, Start, put_at, show_resource};
pub use turn::Outcome;
pub use waits::{Late, Wait, Waits};

/// Milliseconds since 1970.
pub type Millis = u64;
