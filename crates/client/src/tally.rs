//! What this process has read and written in files of daemons without asking them, for their counters.
//!
//! A daemon does not see such reads and writes. It is told after each 4 MiB, and when a file is synced or let go, and at the end; a
//! process that is killed has told all but the last 4 MiB of each daemon.

use crate::Client;
use crate::calls::{Bulk, Call};
use std::sync::atomic::{AtomicU64, Ordering};
use tidepool_types::DaemonIndex;
use tidepool_wire::message::Request;

/// Bytes after which a daemon is told.
const TOLD_EVERY: u64 = 4 << 20;

/// Bytes that a daemon has not been told of.
#[derive(Default)]
struct Untold {
    read: AtomicU64,
    written: AtomicU64,
}

/// For each daemon.
pub(crate) struct Tally {
    daemons: Box<[Untold]>,
    /// Of all: most questions need not look through them.
    bytes: AtomicU64,
}

impl Tally {
    pub fn new(daemons: usize) -> Tally {
        Tally { daemons: (0..daemons).map(|_| Untold::default()).collect(), bytes: AtomicU64::new(0) }
    }

    /// Notes bytes; true when it is time to tell the daemon.
    fn note(&self, daemon: DaemonIndex, read: u64, written: u64) -> bool {
        let Some(untold) = self.daemons.get(usize::from(daemon)) else { return false };
        self.bytes.fetch_add(read + written, Ordering::Relaxed);
        let read = untold.read.fetch_add(read, Ordering::Relaxed) + read;
        let written = untold.written.fetch_add(written, Ordering::Relaxed) + written;
        read + written >= TOLD_EVERY
    }

    /// What is told now.
    fn take(&self, daemon: DaemonIndex) -> Option<(u64, u64)> {
        let untold = self.daemons.get(usize::from(daemon))?;
        let taken = (untold.read.swap(0, Ordering::Relaxed), untold.written.swap(0, Ordering::Relaxed));
        self.bytes.fetch_sub(taken.0 + taken.1, Ordering::Relaxed);
        (taken != (0, 0)).then_some(taken)
    }

    pub fn is_told(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) == 0
    }
}

impl Client {
    pub(crate) fn note_read(&self, daemon: DaemonIndex, bytes: usize) {
        if self.tally.note(daemon, bytes as u64, 0) {
            self.tell_used(daemon);
        }
    }

    pub(crate) fn note_written(&self, daemon: DaemonIndex, bytes: usize) {
        if self.tally.note(daemon, 0, bytes as u64) {
            self.tell_used(daemon);
        }
    }

    /// Tells a daemon what it did not see. Nothing depends on it but counters, so a failure is nobody's; but the answer is waited for: what
    /// nobody waits for is lost with a process that is killed at once.
    fn tell_used(&self, daemon: DaemonIndex) {
        if let Some((read, written)) = self.tally.take(daemon) {
            let _ = self.request(daemon, &Request::Used { read, written });
        }
    }

    /// The same for all daemons.
    pub(crate) fn tell_all_used(&self) {
        if !self.tally.is_told() {
            let used = |daemon| {
                let (read, written) = self.tally.take(daemon)?;
                Some(Call::new(daemon, Request::Used { read, written }, Bulk::None))
            };
            // As with one.
            let _ =
                self.call_all(&mut (0..self.members() as DaemonIndex).filter_map(used).collect::<Vec<_>>());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_told_by_bytes_and_of_each_once() {
        let tally = Tally::new(2);
        assert!(tally.is_told());
        assert!(!tally.note(1, 5, 0) && !tally.note(1, 0, TOLD_EVERY - 6));
        assert!(!tally.note(0, 7, 0));
        assert!(tally.note(1, 1, 0));
        assert_eq!(tally.take(1), Some((6, TOLD_EVERY - 6)));
        assert_eq!((tally.take(1), tally.is_told()), (None, false));
        assert_eq!((tally.take(0), tally.is_told()), (Some((7, 0)), true));
        assert!(!tally.note(9, TOLD_EVERY, 0), "there is no such daemon");
        assert!(tally.is_told());
    }
}
