//! Signals of a process that opens endpoints. It is a process of its own: while any endpoint is being opened, signals may be taken over.

#![cfg(feature = "libfabric")]

use tidepool_fabric::Endpoint;

const THREADS: usize = 4;
const ROUNDS: usize = 5;

/// SIGINT and SIGTERM, which the harness leaves alone.
const ENDING: u64 = 1 << (2 - 1) | 1 << (15 - 1);

fn caught() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap()
}

/// Some providers' libraries bring handlers that call exit(): who opens an endpoint cleans up before ending, or handles them as ever.
#[test]
fn signals_are_not_taken_over_by_any_number_of_threads() {
    let open = |round: usize| {
        let provider = ["tcp;ofi_rxm", "shm"][round % 2];
        match Endpoint::<()>::open(provider, Some("127.0.0.1")) {
            Ok(_) => 1,
            Err(error) => {
                println!("SKIPPED: {error}");
                0
            }
        }
    };
    assert_eq!(caught() & ENDING, 0, "nobody has done so before");
    let opened: usize = std::thread::scope(|scope| {
        let threads = [(); THREADS].map(|()| scope.spawn(|| (0..ROUNDS).map(open).sum::<usize>()));
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(opened > 0, "no endpoint was opened, so nothing was tested: is libfabric installed?");
    let now = caught();
    assert_eq!(now & ENDING, 0, "{opened} endpoints: {now:x}");
}
