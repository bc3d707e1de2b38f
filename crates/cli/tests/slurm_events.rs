//! What may happen to a job with directives, in each state that it may be in: whatever it is, the job goes on, begins anew, or
//! is over with a reason; its results are those of its program, and nothing of it is left.
//!
//! The quick part has the cells that need no pauses of Slurm's; all of them run with `TIDEPOOL_SLURM=full`, as
//! `make test-all` does. `TIDEPOOL_EVENTS=Requeue,NodeReboot` and `TIDEPOOL_STATES=Running` take those that begin so.

mod common;

use common::cluster::{Cluster, Options};
use std::fs;
use std::time::Duration;

const MIB: usize = 1 << 20;
/// What comes in, in bytes; at [`SLOW`] that takes ten seconds.
const INPUT: usize = 10 * MIB;
const SLOW: &str = "1MiB";

fn is_full() -> bool {
    std::env::var("TIDEPOOL_SLURM").is_ok_and(|value| value == "full")
}

/// What a job is at when something happens: the phases of the book.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Data come in before it has its nodes.
    StagingIn,
    /// It has its nodes, and data come in.
    Starting,
    Running,
    StagingOut,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    /// As its owner, an administrator and preemption do it.
    Requeue,
    Hold,
    /// Another time limit.
    Update,
    Cancel,
    /// slurmctld stopped, and started again.
    ControllerRestart,
    /// The same by `kill -9`.
    ControllerKill,
    /// A stager is away for so many seconds, as while it is updated.
    StagerAway(u64),
    /// A stager does not answer for so many seconds, and is not dead either.
    StagerHangs(u64),
    /// All that runs on a node ends at once.
    NodeReboot,
}

use Event::*;
use State::*;

const STATES: [State; 4] = [StagingIn, Starting, Running, StagingOut];

impl State {
    fn phase(self) -> &'static str {
        match self {
            StagingIn => "staging-in",
            Starting => "starting",
            Running => "running",
            StagingOut => "staging-out",
        }
    }
}

/// A job of two nodes that compares what came in, and writes what goes out; `pool` has its results in a pool of its own.
fn body(name: &str, state: State, pool: bool) -> String {
    let reserve = if state == StagingIn { "#TIDEPOOL reserve\n" } else { "" };
    // A pool's data go out by one node: as much as each node's.
    let (pool_line, out) = if pool {
        ("#TIDEPOOL pool size=64MiB client=fuse\n", "$TIDEPOOL_DIR/out")
    } else {
        ("", "$NVME0/out/part")
    };
    let stage_out = if pool {
        format!("#NORNS stage_out pool://out lustre://alice/{name}/part\n")
    } else {
        format!("#NORNS stage_out nvme0://out lustre://alice/{name} gather\n")
    };
    // Slurm itself is to have saved that it runs when slurmctld is killed.
    let pause = if state == Running { 15 } else { 6 };
    format!(
        "{reserve}{pool_line}#NORNS stage_in lustre://alice/in nvme0://in\n{stage_out}\
         srun sh -c 'cmp $NVME0/in $LUSTRE/alice/in && echo same'\n\
         sleep {pause}; mkdir -p $NVME0/out; cp $NVME0/in {out}; echo wrote\n"
    )
}

/// All where the variable is not set.
fn is_wanted(variable: &str, one: &impl std::fmt::Debug) -> bool {
    let wanted = std::env::var(variable).unwrap_or_default();
    wanted.split(',').any(|word| format!("{one:?}").starts_with(word))
}

/// What is done, and undone where that has to be.
fn happen(cluster: &Cluster, job: u32, event: Event, slow: &str) {
    let number = job.to_string();
    let said = |words: &[&str]| cluster.said(words);
    let again = || {
        // Two minutes, which Slurm lets go by before it starts a job again.
        cluster.until("it is queued again, or was not", || {
            let shown = cluster.show(job);
            shown.state() != "PENDING" || shown.word("Reason") == "BeginTime"
        });
        if cluster.show(job).state() == "PENDING" {
            said(&["scontrol", "update", &format!("JobId={job}"), "StartTime=now"]);
        }
    };
    match event {
        Requeue => {
            // Refused where the job is over but for its data.
            let _ = cluster.on("ctl", &["scontrol", "requeue", &number]);
            std::thread::sleep(Duration::from_secs(2));
            again();
        }
        Hold => {
            let _ = cluster.on("ctl", &["scontrol", "hold", &number]);
            std::thread::sleep(Duration::from_secs(1));
            let _ = cluster.on("ctl", &["scontrol", "release", &number]);
        }
        Update => {
            let _ = cluster.on("ctl", &["scontrol", "update", &format!("JobId={job}"), "TimeLimit=9"]);
        }
        Cancel => {
            let _ = cluster.on("ctl", &["scancel", &number]);
        }
        ControllerRestart => {
            cluster.control(&["slurmctld", "stop"]);
            cluster.control(&["slurmctld", "start"]);
        }
        ControllerKill => {
            // Slurm itself loses what it has not saved yet, which may take it five seconds.
            std::thread::sleep(Duration::from_secs(6));
            cluster.control(&["slurmctld", "kill"]);
            cluster.control(&["slurmctld", "start"]);
        }
        StagerAway(seconds) => {
            cluster.control(&["stager", "kill", "node2"]);
            std::thread::sleep(Duration::from_secs(seconds));
            cluster.control(&["stager", "start", "node2"]);
            cluster.slow_down(slow);
        }
        StagerHangs(seconds) => {
            let pid = fs::read_to_string(cluster.dir().join("run/stager-node2.pid")).unwrap();
            let signal = |name: &str| cluster.said(&["kill", name, pid.trim()]);
            signal("-STOP");
            std::thread::sleep(Duration::from_secs(seconds));
            signal("-CONT");
        }
        NodeReboot => {
            cluster.control(&["node", "kill", "node2"]);
            cluster.control(&["node", "start", "node2"]);
            cluster.slow_down(slow);
            std::thread::sleep(Duration::from_secs(2));
            again();
        }
    }
}

/// One cell of the table.
fn check(cluster: &Cluster, state: State, event: Event, pool: bool) {
    let what = format!("{event:?} while {state:?}{}", if pool { ", with a pool" } else { "" });
    println!("{what}");
    let name = format!("out-{event:?}-{state:?}-{pool}").replace(['(', ')'], "-").to_lowercase();
    let slow = if matches!(state, Running) { "1GiB" } else { SLOW };
    cluster.slow_down(slow);
    let job = cluster.sbatch(&["-N2", "--requeue"], &body(&name, state, pool));
    cluster.until(&format!("{what}: it is so far"), || cluster.phase(job) == state.phase());
    if state == Running {
        // What a program does that loses a task is its own.
        let has_read = || cluster.log("alice", job).matches("same\n").count() == 2;
        cluster.until(&format!("{what}: its tasks have ended"), has_read);
    }
    happen(cluster, job, event, slow);
    if (event, state) == (ControllerKill, StagingOut) {
        // By what it had saved, slurmctld calls the hooks once more; or it calls none, and cannot be told that all is out, so
        // that the job has to go through the queue.
        cluster.wait_for(job, &["CANCELLED", "COMPLETED"]);
    } else {
        cluster.wait(job);
    }
    let shown = cluster.show(job);
    cluster.until(&format!("{what}: the book knows the end"), || {
        ["done", "failed", "cancelled", "stage-out-failed"].contains(&cluster.phase(job).as_str())
    });
    if pool && event == NodeReboot && matches!(state, Running | StagingOut) && cluster.phase(job) != "done" {
        // A part of the pool went with the node's power: its data are still there.
        assert_eq!(cluster.phase(job), "stage-out-failed", "{:#?}", cluster.events(job));
        if state == Running {
            // The program could not write its result, which its own log says, and nobody says that it is out.
            assert!(cluster.log("alice", job).contains("/out'"), "{}", cluster.log("alice", job));
            assert!(!cluster.pfs("alice").join(&name).join("part").exists());
            let done =
                cluster.by("alice", &[&cluster.tidepool(), "slurm", "discard", &job.to_string(), "--wait"]);
            assert!(done.status.success(), "{}", common::text(&done));
            return cluster.assert_nothing_left(&what);
        }
        cluster.resume("alice", job);
        // What the node's epilog had not done when its power went, the sweep does.
        let is_clear =
            || !cluster.left_on("node2").lines().any(|path| path.contains("/in") || path.contains("job-"));
        cluster.until(&format!("{what}: the node is clear"), is_clear);
    }
    let (phase, log) = (cluster.phase(job), cluster.log("alice", job));
    let all = || format!("{what}: {}\n{:#?}\n{}", shown.state(), cluster.events(job), cluster.overview());
    if event == Cancel && state != StagingOut {
        assert!(["cancelled", "failed"].contains(&phase.as_str()), "{}", all());
        assert_eq!(log.matches("wrote").count(), 0, "{}", all());
    } else {
        assert_eq!(phase, "done", "{}", all());
        assert!(log.ends_with("same\nsame\nwrote\n"), "{}\n{log}", all());
        let result = cluster.pfs("alice").join(&name).join("part");
        assert_eq!(fs::read(&result).unwrap(), fs::read(cluster.pfs("alice/in")).unwrap(), "{}", all());
    }
    cluster.assert_nothing_left(&what);
}

/// A cluster whose jobs have something to read.
fn cluster(site: &'static str) -> Option<Cluster> {
    let cluster = Cluster::with(Options { nodes: 2, site, ..Options::default() })?;
    cluster.input("alice", "in", INPUT);
    Some(cluster)
}

/// A restart of slurmctld, an update of a stager and a requeue while data come in cost no job, and no data twice.
#[test]
fn a_job_whose_data_come_in_goes_on() {
    let Some(cluster) = cluster("") else { return };
    check(&cluster, Starting, Requeue, false);
    check(&cluster, Starting, ControllerRestart, true);
    let before = cluster.events(2).iter().filter(|event| event.contains("is up after")).count();
    assert_eq!(before, 1, "a pool that is up is not started again: {:#?}", cluster.events(2));
    assert_eq!(cluster.moved(2, "in"), 2 * INPUT as u64, "no byte came in twice");
    check(&cluster, Starting, StagerAway(6), false);
    assert_eq!(cluster.moved(3, "in"), 2 * INPUT as u64, "no byte came in twice");
    check(&cluster, Starting, StagerAway(6), true);
    let starts = cluster.events(4).iter().filter(|event| event.contains("is up after")).count();
    assert_eq!(starts, 1, "a pool that this try finds up is not started again: {:#?}", cluster.events(4));
}

/// A pool that loses its daemons while data come in, as when a node's power goes for a moment, is started again: no program
/// begins with a pool that does not answer.
#[test]
fn a_pool_that_dies_before_the_program_begins_is_started_again() {
    let Some(cluster) = cluster("") else { return };
    cluster.slow_down(SLOW);
    let job = cluster.sbatch(&["-N2"], &body("reborn", Starting, true));
    let starts = || cluster.events(job).iter().filter(|event| event.contains("is up after")).count();
    cluster.until("its pool is up", || starts() == 1 && cluster.phase(job) == "starting");
    // All of the node's, and nobody else's.
    let kill = "own=$(readlink /proc/self/ns/mnt); n=0; for p in /proc/[0-9]*; do \
        [ \"$(cat $p/comm 2>/dev/null)\" = tidepoold ] && [ \"$(readlink $p/ns/mnt)\" = \"$own\" ] && kill -9 ${p#/proc/} && n=1; \
        done; [ $n = 1 ]";
    let killed = cluster.on("node2", &["sh", "-c", kill]);
    assert!(killed.status.success(), "{}", common::text(&killed));
    assert_eq!(cluster.wait(job).state(), "COMPLETED", "{}", cluster.overview());
    cluster.until("the book knows the end", || cluster.phase(job) == "done");
    assert_eq!(starts(), 2, "{:#?}", cluster.events(job));
    assert!(cluster.log("alice", job).ends_with("same\nsame\nwrote\n"), "{}", cluster.log("alice", job));
    let result = cluster.pfs("alice/reborn/part");
    assert_eq!(fs::read(result).unwrap(), fs::read(cluster.pfs("alice/in")).unwrap());
    cluster.assert_nothing_left("after a pool that was started twice");
}

/// A job that is queued again while its program runs has no results yet: that is no failure, and it begins anew.
#[test]
fn a_job_that_runs_begins_anew() {
    let Some(cluster) = cluster("") else { return };
    check(&cluster, Running, Requeue, false);
}

/// A job that is cancelled owes no results, also before its program has begun or where that ends with 0; for Slurm it is
/// COMPLETING with exit code 0, like one that should have made them.
#[test]
fn a_cancelled_job_owes_no_results() {
    let Some(cluster) = cluster("") else { return };
    let submit = |name: &str, program: &str| {
        cluster.sbatch(
            &["-N2"],
            &format!("#NORNS stage_out nvme0://none lustre://alice/{name} gather\n{program}\n"),
        )
    };
    let ends = |what: &str, job: u32, phase: &str| {
        cluster.until(&format!("{what}: {phase}"), || {
            let now = cluster.phase(job);
            let is_over = ["done", "failed", "cancelled", "stage-out-failed"].contains(&now.as_str());
            assert!(!is_over || now == phase, "{what}: {now}: {:#?}", cluster.events(job));
            is_over
        });
    };
    let at_once = "until scontrol show job $1 | grep -q JobState=RUNNING; do :; done; scancel $1";
    for _ in 0..4 {
        let job = submit("early", "sleep 100");
        cluster.said(&["sh", "-c", at_once, "sh", &job.to_string()]);
        ends("cancelled as it starts", job, "failed");
    }
    let polite = "trap 'exit 0' TERM; sleep 100 & echo ready; wait";
    let begin = |name| {
        let job = submit(name, polite);
        cluster.until("its program runs", || cluster.log("alice", job).contains("ready"));
        job
    };
    let job = begin("cancelled");
    cluster.said(&["scancel", "--full", &job.to_string()]);
    ends("cancelled, and ended with 0", job, "failed");
    let job = begin("polite");
    cluster.said(&["scancel", "--full", "--signal=TERM", &job.to_string()]);
    ends("ended by itself after a signal that was no cancelling", job, "stage-out-failed");
    let discarded =
        cluster.by("alice", &[&cluster.tidepool(), "slurm", "discard", &job.to_string(), "--wait"]);
    assert!(discarded.status.success(), "{}", common::text(&discarded));
    // Where nothing tells it from a job that should have made results, they are missed.
    let program = cluster.dir().join("libexec/tidepool_job_state");
    fs::rename(&program, program.with_extension("away")).unwrap();
    let job = submit("untold", "sleep 100");
    cluster.said(&["sh", "-c", at_once, "sh", &job.to_string()]);
    ends("cancelled, and nobody can tell", job, "stage-out-failed");
    let told =
        cluster.events(job).iter().any(|event| event.contains("not known whether the program was cancelled"));
    assert!(told, "{:#?}", cluster.events(job));
}

/// `scancel --hurry` while a program runs or results go out gives up what is not out, at once, and says so; nothing of it
/// stays.
#[test]
fn results_that_are_not_out_are_given_up_in_a_hurry() {
    let Some(cluster) = cluster("") else { return };
    for (pool, state) in [(false, StagingOut), (true, StagingOut), (false, Running), (true, Running)] {
        println!("pool {pool}, {state:?}");
        cluster.slow_down("1GiB");
        let name = format!("hurried-{pool}-{state:?}");
        let job = cluster.sbatch(&["-N2"], &body(&name, Running, pool));
        cluster.until("it runs", || cluster.phase(job) == "running");
        // Ten bytes each second: it would go on for days.
        cluster.slow_down("10B");
        cluster.until("it is so far", || cluster.phase(job) == state.phase());
        cluster.said(&["scancel", "--hurry", &job.to_string()]);
        let shown = cluster.wait(job);
        let all = || format!("{:#?}\n{}", cluster.events(job), cluster.overview());
        assert!(!shown.get("Reason").contains("data_out"), "{}\n{}", shown.get("Reason"), all());
        cluster.until("the book knows the end", || cluster.phase(job) == "cancelled");
        assert!(cluster.reason(job).contains("given up"), "{}", all());
        let report = cluster.report(&format!("job {job}"));
        let ways: Vec<&serde_json::Value> =
            report["transfers"].as_array().unwrap().iter().filter(|row| row["way"] == "out").collect();
        assert!(!ways.is_empty() && ways.iter().all(|row| row["state"] != "finished"), "{report:#}");
        assert!(!cluster.pfs("alice").join(&name).join("part").exists(), "{}", all());
        cluster.assert_nothing_left("after results were given up");
    }
}

/// All events in all states.
#[test]
fn whatever_happens_in_whatever_state() {
    if !is_full() {
        println!("SKIPPED: takes half an hour; TIDEPOOL_SLURM=full, or make test-all");
        return;
    }
    let events = [
        Requeue,
        Hold,
        Update,
        Cancel,
        ControllerRestart,
        ControllerKill,
        StagerAway(60),
        StagerHangs(60),
        NodeReboot,
    ];
    let Some(cluster) = cluster("") else { return };
    for event in events.into_iter().filter(|event| is_wanted("TIDEPOOL_EVENTS", event)) {
        for state in STATES.into_iter().filter(|state| is_wanted("TIDEPOOL_STATES", state)) {
            check(&cluster, state, event, false);
            if state != StagingIn {
                check(&cluster, state, event, true);
            }
        }
    }
}

/// A stager that hangs is not waited for for ever: the job says which one it is, and is queued again, as others may do.
#[test]
fn a_stager_that_hangs_is_noticed() {
    let Some(cluster) = cluster("stager-away-max = \"5s\"\n") else { return };
    cluster.slow_down(SLOW);
    let job = cluster.sbatch(&["-N2", "--requeue"], &body("hung", Starting, false));
    cluster.until("data come in", || cluster.phase(job) == "starting");
    let pid = fs::read_to_string(cluster.dir().join("run/stager-node2.pid")).unwrap();
    cluster.said(&["kill", "-STOP", pid.trim()]);
    cluster.until("it is queued again", || cluster.show(job).word("Reason") == "BeginTime");
    let shown = cluster.show(job).get("AdminComment");
    assert!(shown.contains("node2") && shown.contains("stager"), "{shown}");
    cluster.said(&["kill", "-CONT", pid.trim()]);
    cluster.said(&["scontrol", "update", &format!("JobId={job}"), "StartTime=now"]);
    assert_eq!(cluster.wait(job).state(), "COMPLETED", "{}", cluster.overview());
    cluster.assert_nothing_left("after a stager that hung");
}
