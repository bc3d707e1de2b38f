//! Very many tasks: what they cost, and that the stager answers as it does with few.
//!
//! Figures are printed; what is asserted are ratios, because machines differ. An operation whose cost
//! grows with the number of queued tasks would take a hundred times as long with a hundred times as many.

mod support;

use std::time::{Duration, Instant};
use support::{Daemon, copy, done, resource, well, write};
use tidepool_stage_client::{Op, Stager, TaskSpec, TaskState};

const FEW: usize = 1_000;
const MANY: usize = 100_000;
/// How often all are measured again while something is slow.
const MEASUREMENTS_MAX: usize = 20;
/// How often each operation is measured.
const ROUNDS: usize = 200;
/// Times as long as with few tasks that an operation may take with many.
const RATIO_MAX: u32 = 15;
/// Differences below this are those of the machine, not of the number of tasks.
const NOISE: Duration = Duration::from_micros(300);

/// Median and longest of a kind of request.
#[derive(Clone, Copy)]
struct Times {
    p50: Duration,
    max: Duration,
}

fn times(mut request: impl FnMut(usize)) -> Times {
    let mut taken: Vec<Duration> = (0..ROUNDS)
        .map(|round| {
            let start = Instant::now();
            request(round);
            start.elapsed()
        })
        .collect();
    taken.sort_unstable();
    Times { p50: taken[ROUNDS / 2], max: taken[ROUNDS - 1] }
}

/// Kilobytes of memory a process has.
fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("it is there");
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A task that holds its worker until it is cancelled: a byte each second.
fn block(daemon: &Daemon, stager: &Stager) -> u32 {
    write(&daemon.path("a/slow"), &vec![1; 8 << 20]);
    let id = stager.submit(&TaskSpec { bandwidth: 1, ..copy("a://slow", "b://slow") }).unwrap();
    while stager.status(id).unwrap().state != TaskState::Running {
        std::thread::sleep(Duration::from_millis(10));
    }
    id
}

fn small() -> TaskSpec {
    TaskSpec { size_hint: 10, ..copy("a://small", "b://small") }
}

/// What each kind of request takes with `queued` tasks waiting.
fn measure(stager: &Stager, queued: &[u32]) -> Vec<(&'static str, Times)> {
    let any = |round: usize| queued[round * 7919 % queued.len()];
    let mut new = Vec::new();
    vec![
        ("status", times(|round| drop(stager.status(any(round)).unwrap()))),
        ("daemon status", times(|_| drop(stager.daemon_status().unwrap()))),
        ("list of 100", times(|round| drop(stager.list_page(None, None, any(round), 100).unwrap()))),
        ("submit", times(|_| new.push(stager.submit(&small()).unwrap()))),
        ("cancel", times(|round| stager.cancel(new[round]).unwrap())),
    ]
}

fn is_as_fast(few: &Times, many: &Times) -> bool {
    many.p50 <= (few.p50 * RATIO_MAX).max(few.p50 + NOISE)
}

/// Each kind at its best of several measurements, as long as one is slow: others may use the disk meanwhile. What grows with the
/// queue is slow in all of them.
fn at_its_best(
    few: &[(&'static str, Times)],
    measure: impl Fn() -> Vec<(&'static str, Times)>,
) -> Vec<(&'static str, Times)> {
    let mut best = measure();
    for _ in 0..MEASUREMENTS_MAX {
        if few.iter().zip(&best).all(|((_, few), (_, many))| is_as_fast(few, many)) {
            break;
        }
        std::thread::sleep(Duration::from_secs(2));
        for ((_, best), (_, again)) in best.iter_mut().zip(measure()) {
            if again.p50 < best.p50 {
                *best = again;
            }
        }
    }
    best
}

#[test]
fn a_long_queue_makes_nothing_slow() {
    let daemon = Daemon::with("workers = 1");
    let stager = daemon.control();
    write(&daemon.path("a/small"), b"0123456789");
    // It has learned how long such tasks take.
    (0..3).for_each(|_| drop(well(&stager, &small())));
    let slow = block(&daemon, &stager);
    let mut queued = stager.submit_many(vec![small(); FEW]).unwrap().ids;
    let few = measure(&stager, &queued);
    let before = memory(daemon.pid());
    let start = Instant::now();
    queued.extend(stager.submit_many(vec![small(); MANY - FEW]).unwrap().ids);
    println!("{} tasks submitted in batches in {:.2?}", MANY - FEW, start.elapsed());
    let each = (memory(daemon.pid()) - before) * 1024 / (MANY - FEW) as u64;
    println!("{each} bytes of the stager's memory for each queued task");
    let many = at_its_best(&few, || measure(&stager, &queued));
    assert!(stager.daemon_status().unwrap().pending >= MANY as u64);
    for ((what, few), (_, many)) in few.iter().zip(&many) {
        println!(
            "{what}: p50 {:.0?} with {FEW} tasks, {:.0?} with {MANY}; longest {:.1?} (50 ms: {})",
            few.p50,
            many.p50,
            many.max,
            if many.max <= Duration::from_millis(50) { "kept" } else { "MISSED" }
        );
        assert!(is_as_fast(few, many), "{what} grows with the queue");
    }
    // They run when their turn comes.
    stager.cancel(slow).unwrap();
    stager.wait(&queued[..10], false, None).unwrap();
}

#[test]
fn a_stager_with_very_many_tasks_starts_again() {
    let mut daemon = Daemon::with("workers = 1\nended-max = 200000");
    let stager = daemon.control();
    // Half of them end at once: there is nothing to remove.
    let gone = TaskSpec::new(Op::Remove, resource("a://gone"), None);
    assert_eq!(done(&stager, &gone).state, TaskState::Failed);
    let ids = stager.submit_many(vec![gone; MANY - 1]).unwrap().ids;
    while stager.daemon_status().unwrap().ended < MANY as u64 {
        std::thread::sleep(Duration::from_millis(50));
    }
    block(&daemon, &stager);
    let pending = stager.submit_many(vec![small(); MANY]).unwrap().ids;
    let journal = || std::fs::metadata(daemon.path("run/stager.journal")).unwrap().len();
    let before = journal();
    drop(stager);
    let start = Instant::now();
    daemon.restart();
    println!(
        "{MANY} ended and {MANY} pending tasks are back after {:.2?}: a journal of {} KiB, {} KiB afterwards",
        start.elapsed(),
        before >> 10,
        std::fs::metadata(daemon.path("run/stager.journal")).unwrap().len() >> 10
    );
    let stager = daemon.control();
    let status = stager.daemon_status().unwrap();
    assert_eq!(status.ended, MANY as u64);
    // And the one that holds the worker.
    assert_eq!(status.pending + status.running, MANY as u64 + 1);
    assert_eq!(stager.status(ids[MANY / 2]).unwrap().state, TaskState::Failed);
    assert_eq!(stager.status(pending[MANY - 1]).unwrap().state, TaskState::Pending);
}
