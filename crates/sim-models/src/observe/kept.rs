//! What was seen of a run, in a checkpoint of it.

use super::{Activity, Observer, Progress, Queue, Requests};
use crate::message::Op;
use crate::system::Pfs;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use tidepool_sim::checkpoint::{LoadError, Reader, Saved};
use tidepool_sim::saved;

/// Counts are at most so large, so that they can be counted on from.
const NUMBER_MAX: u64 = 1 << 62;

saved!(struct Requests { bytes, latencies });
saved!(struct Activity { device_busy, device_time, threads_busy, threads_wait, bytes_read, bytes_written });
saved!(struct Progress { requests, bytes_read, bytes_written });

impl Saved for Queue {
    /// When those that the device has will be done by rising time, so that equal ones have equal bytes.
    fn save(&self, out: &mut Vec<u8>) {
        let Queue { ends, waiting, most } = self;
        let mut ends: Vec<u64> = ends.iter().map(|end| end.0).collect();
        ends.sort_unstable();
        ends.save(out);
        [*waiting, *most].save(out);
    }

    fn load(from: &mut Reader<'_>) -> Result<Queue, LoadError> {
        let ends: Vec<u64> = Saved::load(from)?;
        let [waiting, most] = Saved::load(from)?;
        Ok(Queue { ends: ends.into_iter().map(Reverse).collect(), waiting, most })
    }
}

impl Observer {
    /// All that it has seen.
    pub fn save(&self, out: &mut Vec<u8>) {
        let Observer { grid, requests, clients, classes, servers, queues, class_of: _, end } = self;
        grid.save(out);
        end.save(out);
        requests.save(out);
        clients.save(out);
        classes.save(out);
        servers.save(out);
        queues.save(out);
    }

    /// One that goes on seeing this system where another one was kept.
    pub fn load(pfs: &Pfs, from: &mut Reader<'_>) -> Result<Observer, LoadError> {
        let new = Observer::new(pfs);
        let (grid, end) = (Saved::load(from)?, Saved::load(from)?);
        let requests: BTreeMap<(u32, Op), Requests> = Saved::load(from)?;
        let (clients, classes, servers, queues) =
            (Saved::load(from)?, Saved::load(from)?, Saved::load(from)?, Saved::load(from)?);
        let seen =
            Observer { grid, requests, clients, classes, servers, queues, end, class_of: new.class_of };
        let is_of_it = (seen.classes.len(), seen.servers.len(), seen.queues.len())
            == (new.classes.len(), new.servers.len(), new.queues.len())
            && seen.requests.keys().all(|(application, _)| (*application as usize) < pfs.applications.len());
        match is_of_it && seen.is_sound() {
            true => Ok(seen),
            false => {
                Err(LoadError::Damaged("what was seen of the run is of another system, or does not add up"))
            }
        }
    }

    fn is_sound(&self) -> bool {
        let of_kind = |requests: &Requests| {
            requests.bytes <= NUMBER_MAX
                && requests.latencies.count <= NUMBER_MAX
                && requests.latencies.is_sound()
        };
        let queue =
            |queue: &Queue| queue.waiting < u32::MAX / 2 && queue.ends.len() < (u32::MAX / 2) as usize;
        self.grid.is_sound()
            && !self.grid.ends_before(self.end)
            && self.requests.values().all(of_kind)
            && self.queues.iter().all(queue)
    }
}
