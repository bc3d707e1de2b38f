//! A system that goes on from a checkpoint (`docs/formats/26-simulation.md`). States and messages say beside their types how
//! they are written; here is what has to hold before one goes on from them.
//!
//! A checkpoint's checksum finds damage, not forgery. So all that later is a place in a list, a sum that is taken from, or a
//! number that is added to is looked at once, here, and handlers can count on it.

use crate::message::Message;
use crate::system::{Pfs, Role, State};
use tidepool_sim::Simulation;
use tidepool_sim::checkpoint::LoadError;

/// Times, places and sums are at most so large: 146 years of nanoseconds, and sums of two need no care.
const NUMBER_MAX: u64 = 1 << 62;

pub(crate) fn are_small(numbers: &[u64]) -> bool {
    numbers.iter().all(|number| *number <= NUMBER_MAX)
}

/// Whether a message is one of the system: [`Pfs::knows`].
pub(crate) type Knows<'a> = &'a dyn Fn(&Message) -> bool;

/// Goes on where [`Simulation::save`] was. The system must be the same, as `about` says.
pub fn load(pfs: Pfs, about: &str, bytes: &[u8]) -> Result<Simulation<Pfs>, LoadError> {
    let simulation = Simulation::load(pfs, about, bytes)?;
    let (pfs, now) = (simulation.model(), simulation.now().0);
    if !pfs.roles().iter().zip(simulation.states()).all(|(role, state)| pfs.fits(*role, state, now)) {
        return Err(LoadError::Damaged(
            "a client, node, server, device or switch is in a state that there is not",
        ));
    }
    if !simulation.messages().all(|event| pfs.knows(&event.message)) {
        return Err(LoadError::Damaged("a message is of nobody, or of a time or place that there is not"));
    }
    Ok(simulation)
}

impl Pfs {
    fn fits(&self, role: Role, state: &State, now: u64) -> bool {
        match (role, state) {
            (Role::Client(application, rank), State::Client(client)) => client.fits(application, rank),
            (Role::Server(number), State::Server(server)) => server.fits(self, number),
            (Role::Device(number), State::Device(disk)) => disk.fits(self, number, now),
            (Role::Switch(number), State::Switch(switch)) => switch.fits(self, number),
            (Role::Node(number), State::Node(node)) => node.fits(self, number),
            _ => false,
        }
    }

    /// Whether a message is between clients, their nodes and servers of this system.
    pub(crate) fn knows(&self, message: &Message) -> bool {
        let is_end = |process: u32| {
            let role = self.roles().get(process as usize);
            matches!(role, Some(Role::Client(..) | Role::Server(_) | Role::Node(_)))
        };
        is_end(message.sender)
            && is_end(message.receiver)
            && are_small(&[message.offset, message.local, message.start, message.end])
    }
}
