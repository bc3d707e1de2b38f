//! Counts of what a daemon did, for `status`.

use std::sync::atomic::{AtomicU64, Ordering};

/// Monotonic counters since the daemon's start.
#[derive(Default)]
pub struct Counters {
    pub requests: AtomicU64,
    pub failures: AtomicU64,
    /// By programs, whichever way: by request, straight from and to the daemon's files (as clients tell), by copies within the pool.
    pub bytes_read: AtomicU64,
    pub bytes_written: AtomicU64,
    /// Bytes of data copied on their way between the client's buffer and the store's system call:
    /// twice through a socket, once through a lane.
    pub bytes_copied: AtomicU64,
    pub connections: AtomicU64,
    pub refused: AtomicU64,
    pub objects_dropped: AtomicU64,
    /// Borrowers that files were lent to.
    pub loans: AtomicU64,
    /// Of the requests, those that came over the fabric.
    pub fabric_requests: AtomicU64,
}

impl Counters {
    pub fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    /// Names and values in a fixed order.
    pub fn list(&self) -> Vec<(String, u64)> {
        let all = [
            ("requests", &self.requests),
            ("failures", &self.failures),
            ("bytes_read", &self.bytes_read),
            ("bytes_written", &self.bytes_written),
            ("bytes_copied", &self.bytes_copied),
            ("connections", &self.connections),
            ("refused", &self.refused),
            ("objects_dropped", &self.objects_dropped),
            ("loans", &self.loans),
            ("fabric_requests", &self.fabric_requests),
        ];
        all.map(|(name, counter)| (name.to_string(), counter.load(Ordering::Relaxed))).to_vec()
    }
}
