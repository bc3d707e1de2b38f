//! Asking every daemon of a pool at the same time, so that a few dead nodes cost one wait and not one each.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidepool_client::Client;
use tidepool_types::DaemonIndex;

/// Daemons asked at once. A thread that waits for a dead node needs little else than its stack.
const THREADS_MAX: usize = 64;

/// What `ask` says of each daemon, in their order.
pub fn each_daemon<T: Send>(client: &Client, ask: impl Fn(DaemonIndex) -> T + Sync) -> Vec<T> {
    let members = client.members();
    let next = AtomicUsize::new(0);
    let answers: Mutex<Vec<(usize, T)>> = Mutex::new(Vec::with_capacity(members));
    std::thread::scope(|scope| {
        for _ in 0..members.min(THREADS_MAX) {
            scope.spawn(|| {
                loop {
                    let daemon = next.fetch_add(1, Ordering::Relaxed);
                    if daemon >= members {
                        return;
                    }
                    let answer = ask(daemon as DaemonIndex);
                    answers.lock().unwrap_or_else(PoisonError::into_inner).push((daemon, answer));
                }
            });
        }
    });
    let mut answers = answers.into_inner().unwrap_or_else(PoisonError::into_inner);
    answers.sort_by_key(|(daemon, _)| *daemon);
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
