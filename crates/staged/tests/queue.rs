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

/// Of a kind of request to two stagers, in turn: what else the machine does meanwhile hits both.
fn times(mut request: impl FnMut(usize, usize)) -> [Times; 2] {
    let mut taken = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        for (which, taken) in taken.iter_mut().enumerate() {
            let start = Instant::now();
            request(which, round);
            taken.push(start.elapsed());
        }
    }
    taken.map(|mut taken| {
        taken.sort_unstable();
        Times { p50: taken[ROUNDS / 2], max: taken[ROUNDS - 1] }
    })
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

/// What each kind of request takes at two stagers, each with its tasks waiting.
fn measure(at: [(&Stager, &[u32]); 2]) -> Vec<(&'static str, [Times; 2])> {
    let stager = |which: usize| at[which].0;
    let any = |which: usize, round: usize| at[which].1[round * 7919 % at[which].1.len()];
    let mut new = [Vec::new(), Vec::new()];
    vec![
        ("status", times(|which, round| drop(stager(which).status(any(which, round)).unwrap()))),
        ("daemon status", times(|which, _| drop(stager(which).daemon_status().unwrap()))),
        (
            "list of 100",
            times(|which, round| {
                drop(stager(which).list_page(None, None, any(which, round), 100).unwrap());
            }),
        ),
        ("submit", times(|which, _| new[which].push(stager(which).submit(&small()).unwrap()))),
        ("cancel", times(|which, round| stager(which).cancel(new[which][round]).unwrap())),
    ]
}

/// A stager that has learned how long small copies take, and whose worker is held by the task.
fn busy() -> (Daemon, Stager, u32) {
    let daemon = Daemon::with("workers = 1");
    let stager = daemon.control();
    write(&daemon.path("a/small"), b"0123456789");
    (0..3).for_each(|_| drop(well(&stager, &small())));
    let slow = block(&daemon, &stager);
    (daemon, stager, slow)
}

#[test]
fn a_long_queue_makes_nothing_slow() {
    let (_beside, other, _) = busy();
    let (daemon, stager, slow) = busy();
    let few = other.submit_many(vec![small(); FEW]).unwrap().ids;
    let mut queued = stager.submit_many(vec![small(); FEW]).unwrap().ids;
    let before = memory(daemon.pid());
    let start = Instant::now();
    queued.extend(stager.submit_many(vec![small(); MANY - FEW]).unwrap().ids);
    println!("{} tasks submitted in batches in {:.2?}", MANY - FEW, start.elapsed());
    let each = (memory(daemon.pid()) - before) * 1024 / (MANY - FEW) as u64;
    println!("{each} bytes of the stager's memory for each queued task");
    let measured = measure([(&other, &few), (&stager, &queued)]);
    assert!(stager.daemon_status().unwrap().pending >= MANY as u64);
    for (what, [few, many]) in &measured {
        println!(
            "{what}: p50 {:.0?} with {FEW} tasks, {:.0?} with {MANY}; longest {:.1?} (50 ms: {})",
            few.p50,
            many.p50,
            many.max,
            if many.max <= Duration::from_millis(50) { "kept" } else { "MISSED" }
        );
        assert!(many.p50 <= (few.p50 * RATIO_MAX).max(few.p50 + NOISE), "{what} grows with the queue");
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
