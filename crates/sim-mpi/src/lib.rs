//! The ranks of an MPI program as a [`Link`](tidepool_sim::Link) of the event kernel.
//!
//! [`World::join`] makes this process one of them. It has to end with [`World::leave`] on all ranks, or with
//! [`World::end_all`] on one: a world that is merely dropped, for example by a panic, ends all ranks, because the others
//! would wait for this one for ever. When a rank is killed, `mpirun` ends the others.
//!
//! Without the feature `mpi` nobody can join.

#![forbid(unsafe_code)]

#[cfg(not(feature = "mpi"))]
mod absent;
mod pieces;
#[cfg(feature = "mpi")]
mod world;

#[cfg(not(feature = "mpi"))]
pub use absent::World;
pub use pieces::{FRAME_MAX, PIECE};
#[cfg(feature = "mpi")]
pub use world::World;

use std::fmt;

/// Why this process cannot be a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JoinError {
    /// Built without the feature `mpi`.
    NotBuilt,
    /// MPI had been started before in this process.
    Twice,
    /// This MPI does not bear threads beside the one that uses it.
    NoThreads,
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            JoinError::NotBuilt => {
                "this program was built without MPI; scripts/install-packages mpi installs what is needed, and \
                 cargo build --release -p tidepool-cli --features mpi builds it"
            }
            JoinError::Twice => "MPI was started in this process before; a process joins once",
            JoinError::NoThreads => "this MPI does not allow threads (MPI_THREAD_FUNNELED); use another build of it",
        })
    }
}

impl std::error::Error for JoinError {}
