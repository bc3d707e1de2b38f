//! Turns, with real tasks: whose copies take for ever keep nobody waiting, and end whole.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::time::{Duration, Instant};
use support::{Daemon, copy, well, write};
use tidepool_stage_client::{OnBehalf, Stager, TaskSpec, TaskState};

const ALICE: u32 = 31_001;
const BOB: u32 = 31_002;
const KIB: usize = 1 << 10;
/// One place for all, and turns of a second.
const CONFIG: &str = "workers = 1\nuser-extra-max = 0\nuser-turn = 1\n";
/// No copy here takes as long: who waits for another one's end fails.
const LONG: Duration = Duration::from_secs(60);

fn of(uid: u32, spec: TaskSpec) -> TaskSpec {
    TaskSpec { on_behalf: Some(OnBehalf { uid, gid: uid, job: 0 }), ..spec }
}

fn file(daemon: &Daemon, uid: u32, name: &str, bytes: usize) -> Vec<u8> {
    let content: Vec<u8> = (0..bytes).map(|at| (at / KIB * 7 + at) as u8).collect();
    write(&daemon.path(name), &content);
    chown(daemon.path(name), Some(uid), Some(uid)).unwrap();
    content
}

fn gave_way(stager: &Stager) -> u64 {
    let counters = stager.daemon_status().unwrap().counters;
    counters.iter().find(|(name, _)| name == "gave-way").expect("it is told").1
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Alice's copies take ten minutes each, and she has many. Bob's wait for none of them.
#[test]
fn a_copy_that_takes_for_ever_gives_way_and_is_whole_in_the_end() {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        return println!("SKIPPED: needs root, to have tasks of several users");
    }
    let mut daemon = Daemon::with(CONFIG);
    let stager = daemon.control();
    file(&daemon, ALICE, "a/for ever", 40 << 20);
    let slow = |to: &str| {
        let spec = TaskSpec { bandwidth: 64 << 10, ..copy("a://for ever", to) };
        stager.submit(&of(ALICE, spec)).unwrap()
    };
    let for_ever: Vec<u32> = (0..3).map(|at| slow(&format!("b://{at}"))).collect();
    // This one she lets go on: at its speed, it gives way several times before it is whole.
    let content = file(&daemon, ALICE, "a/slow", 2 << 20);
    let end = stager
        .submit(&of(ALICE, TaskSpec { priority: 10, bandwidth: 1 << 20, ..copy("a://slow", "b://slow") }))
        .unwrap();
    until("her first copy runs", || stager.status(for_ever[0]).unwrap().state == TaskState::Running);
    let bobs = file(&daemon, BOB, "a/bobs", 3000);
    for round in 0..3 {
        let begun = Instant::now();
        well(&stager, &of(BOB, copy("a://bobs", "b://bobs")));
        assert!(begun.elapsed() < LONG, "round {round}");
        assert_eq!(fs::read(daemon.path("b/bobs")).unwrap(), bobs);
    }
    let times = gave_way(&stager);
    assert!(times >= 2, "{times} times");
    for id in &for_ever {
        let state = stager.status(*id).unwrap().state;
        assert!(matches!(state, TaskState::Pending | TaskState::Running), "{state:?}");
    }
    // What has given way is not forgotten by a stager that is killed.
    daemon.restart();
    let stager = daemon.control();
    for id in for_ever {
        stager.cancel(id).unwrap();
    }
    let ended = stager.wait(&[end], false, Some(LONG)).unwrap().remove(0);
    assert_eq!((ended.state, ended.bytes_done), (TaskState::Finished, 2 << 20), "{ended:?}");
    assert_eq!(fs::read(daemon.path("b/slow")).unwrap(), content);
    let left: Vec<_> = fs::read_dir(daemon.path("b"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !["bobs", "slow"].contains(&name.as_str()) && !name.starts_with(".tidepool-part."))
        .collect();
    assert_eq!(left, [""; 0], "nothing has a name of a copy that is not whole");
}

/// Who waits for a task is not told of an end when it gives way.
#[test]
fn who_waits_for_a_task_waits_for_its_end() {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        return println!("SKIPPED: needs root, to have tasks of several users");
    }
    let daemon = Daemon::with(CONFIG);
    let stager = daemon.control();
    let content = file(&daemon, ALICE, "a/slow", 3 << 20);
    file(&daemon, BOB, "a/bobs", 10);
    let spec = of(ALICE, TaskSpec { bandwidth: 1 << 20, ..copy("a://slow", "b://slow") });
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let stager = daemon.control();
            well(&stager, &spec)
        });
        until("it gives way", || {
            well(&stager, &of(BOB, copy("a://bobs", "b://bobs")));
            gave_way(&stager) > 0
        });
        assert_eq!(waiting.join().unwrap().state, TaskState::Finished);
    });
    assert_eq!(fs::read(daemon.path("b/slow")).unwrap(), content);
}
