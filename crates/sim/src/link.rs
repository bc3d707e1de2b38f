//! Runs over several machines: what the kernel wants of whatever connects them.
//!
//! A run over ranks is the same program on each, with the same simulation. Each handles its part of the processes; at the end
//! all have all of them again. Ranks meet when threads do, so one operation is enough: each gives each of the others some
//! bytes, and gets theirs. `crates/sim-mpi` does that with MPI.

use std::fmt;

/// What did not work between ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkError(pub String);

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LinkError {}

/// The way to the other ranks.
///
/// Whoever implements it has to end all ranks when one of them gives up: the others wait for it.
pub trait Link {
    /// This one, from 0.
    fn rank(&self) -> usize;

    /// How many there are, with this one.
    fn ranks(&self) -> usize;

    /// Gives `out[r]` to each other rank `r`, and leaves in `into[r]` what that one gave to this one in its call with the same
    /// number. Both have a place for each rank; that of this one is not looked at.
    fn exchange(&mut self, out: &[&[u8]], into: &mut [Vec<u8>]) -> Result<(), LinkError>;
}

/// A link, and which simulation it is for.
pub struct Over<'a> {
    pub link: &'a mut dyn Link,
    /// Which model it is, with all that decides what it does, as for [`Simulation::save`](crate::Simulation::save).
    pub about: &'a str,
}
