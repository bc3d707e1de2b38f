//! MPI, through the crate `mpi` (rsmpi).

use crate::JoinError;
use crate::pieces::{PIECE, pieces, room};
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, Destination, Equivalence, Source};
use mpi::{Tag, Threading};
use tidepool_sim::{Link, LinkError};

/// Of all messages.
const TAG: Tag = 1;
/// The exit code after a panic, as Rust's own.
const PANICKED: u8 = 101;

/// This process as one of the ranks.
pub struct World {
    /// None behind [`World::leave`].
    universe: Option<Universe>,
    all: SimpleCommunicator,
}

impl World {
    /// Only the calling thread may use the world.
    pub fn join() -> Result<World, JoinError> {
        let (universe, threading) =
            mpi::initialize_with_threading(Threading::Funneled).ok_or(JoinError::Twice)?;
        let world = World { all: universe.world(), universe: Some(universe) };
        match threading {
            Threading::Single => {
                world.leave();
                Err(JoinError::NoThreads)
            }
            _ => Ok(world),
        }
    }

    /// Waits for all ranks to leave.
    pub fn leave(mut self) {
        drop(self.universe.take());
    }

    /// Ends all ranks, and `mpirun` with this exit code.
    pub fn end_all(&self, code: u8) -> ! {
        self.all.abort(code.into())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.universe.is_some() {
            self.end_all(if std::thread::panicking() { PANICKED } else { 1 });
        }
    }
}

impl Link for World {
    fn rank(&self) -> usize {
        self.all.rank() as usize
    }

    fn ranks(&self) -> usize {
        self.all.size() as usize
    }

    /// All sends are under way before anything is waited for, so no two ranks wait for each other. What MPI itself
    /// cannot do ends all ranks, with its own words.
    fn exchange(&mut self, out: &[&[u8]], into: &mut [Vec<u8>]) -> Result<(), LinkError> {
        let me = self.rank();
        let others = || (0..self.ranks()).filter(|rank| *rank != me);
        mpi::request::scope(|scope| {
            let mut sends = Vec::new();
            for rank in others() {
                let to = self.all.process_at_rank(rank as i32);
                let all = pieces(out[rank]).map(|piece| to.immediate_send_with_tag(scope, piece, TAG));
                sends.extend(all);
            }
            others().for_each(|rank| self.receive(rank, &mut into[rank]));
            for send in sends {
                send.wait();
            }
            Ok(())
        })
    }
}

impl World {
    fn receive(&self, rank: usize, into: &mut Vec<u8>) {
        into.clear();
        loop {
            let (message, status) = self.all.process_at_rank(rank as i32).matched_probe_with_tag(TAG);
            let count = usize::try_from(status.count(u8::equivalent_datatype())).unwrap_or(usize::MAX);
            match room(into, count) {
                Ok(room) => message.matched_receive_into(room),
                Err(error) => {
                    // What is under way between ranks cannot be taken back one by one.
                    eprintln!("rank {}: from rank {rank}: {error}", self.rank());
                    self.end_all(1)
                }
            };
            if count < PIECE {
                return;
            }
        }
    }
}
