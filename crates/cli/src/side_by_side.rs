//! Asking every daemon of a pool, or every node, at the same time, so that a few dead ones cost one wait and not one each.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidepool_client::Client;
use tidepool_types::DaemonIndex;

/// Those asked at once. A thread that waits for a dead node needs little else than its stack.
const THREADS_MAX: usize = 64;

/// What `ask` says of each daemon, in their order.
pub fn each_daemon<T: Send>(client: &Client, ask: impl Fn(DaemonIndex) -> T + Sync) -> Vec<T> {
    each(client.members(), |daemon| ask(daemon as DaemonIndex))
}

/// What `ask` says of each of `count` numbers, in their order.
pub fn each<T: Send>(count: usize, ask: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let answers: Mutex<Vec<(usize, T)>> = Mutex::new(Vec::with_capacity(count));
    std::thread::scope(|scope| {
        for _ in 0..count.min(THREADS_MAX) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let answer = ask(number);
                    answers.lock().unwrap_or_else(PoisonError::into_inner).push((number, answer));
                }
            });
        }
    });
    let mut answers = answers.into_inner().unwrap_or_else(PoisonError::into_inner);
    answers.sort_by_key(|(number, _)| *number);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use tidepool_testkit::Cluster;

    /// All are under way before the first has ended; answers come in order.
    #[test]
    fn nobody_waits_for_another() {
        let cluster = Cluster::start(5);
        let client = cluster.client();
        let all_there = Barrier::new(5);
        let answers = each_daemon(&client, |daemon| {
            all_there.wait();
            daemon * 2
        });
        assert_eq!(answers, [0, 2, 4, 6, 8]);
    }
}
