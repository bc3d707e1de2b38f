//! What goes wrong on real clusters, brought about on one: daemons die, time runs out, everybody comes at once. After each,
//! every job is over with a reason, no node is drained, nothing is left, and no byte is lost before its verified copy exists.

mod common;

use common::cluster::{ALICE, Cluster, Options};
use common::text;
use std::fs;
use std::time::Duration;

const MIB: usize = 1 << 20;

/// A stager that dies while data come in, and starts again, goes on where it was; the job waits for it.
#[test]
fn a_stager_that_dies_while_data_come_in() {
    let Some(cluster) = Cluster::start(2) else { return };
    let data = cluster.input("alice", "in", 6 * MIB);
    cluster.slow_down("1MiB");
    let job = cluster.sbatch(
        &["-N2"],
        "#NORNS stage_in lustre://alice/in nvme0://in\nsrun cmp $NVME0/in $LUSTRE/alice/in && echo same\n",
    );
    cluster.until("data come in", || cluster.phase(job) == "starting");
    cluster.control(&["stager", "kill", "node2"]);
    cluster.control(&["stager", "start", "node2"]);
    // It goes on, or Slurm queues the job again: either way it runs with its data.
    assert_eq!(cluster.wait(job).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(cluster.log("alice", job), "same\n");
    assert_eq!(data.len(), 6 * MIB);
    cluster.assert_nothing_left("after the death of a stager");
}

/// A job that meets a node without a stager is queued again, and runs when the stager is back. Slurm leaves a job whose
/// nodes could not be made ready with a reason under which it never looks at it again.
#[test]
fn a_job_that_finds_no_stager_runs_later() {
    let Some(cluster) = Cluster::start(2) else { return };
    cluster.input("alice", "in", 1000);
    cluster.control(&["stager", "kill", "node2"]);
    let job = cluster.sbatch(
        &["-N2"],
        "#NORNS stage_in lustre://alice/in nvme0://in\nsrun cmp $NVME0/in $LUSTRE/alice/in && echo same\n",
    );
    // Two minutes, which Slurm lets go by before it starts a job again.
    cluster.until("it waits for its time", || cluster.show(job).word("Reason") == "BeginTime");
    assert!(cluster.reason(job).contains("node2"), "{}", cluster.reason(job));
    cluster.control(&["stager", "start", "node2"]);
    cluster.said(&["scontrol", "update", &format!("JobId={job}"), "StartTime=now"]);
    assert_eq!(cluster.wait(job).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(cluster.log("alice", job), "same\n");
    cluster.assert_nothing_left("after a node without a stager");
}

/// A node that has been taken: its root submits what he likes to its own stager, as whomever he likes. He reaches nothing of a job
/// that does not run there, and does not administer another node; a job that does run there is opened as its owner only.
#[test]
fn a_taken_node_reaches_no_job_that_runs_elsewhere() {
    let Some(cluster) = Cluster::start(3) else { return };
    let go = cluster.pfs("alice/go");
    let body = format!(
        "#NORNS stage_out nvme0://out lustre://alice/out\nsrun sh -c 'umask 077; echo mine > $NVME0/out'\nuntil [ -e {} ]; do sleep 0.1; done\n",
        go.display()
    );
    let job = cluster.sbatch(&["-N2", "-wnode[1-2]"], &body);
    cluster.until("the file is there", || cluster.left_on("node1").contains("/mnt/nvme0/out"));
    let tidepool = cluster.tidepool();
    let copy = |behalf: &str, node: &str| {
        let from = "node1:42000/nvme0://out";
        let words =
            ["stage", "submit", "--on-behalf", behalf, "--wait", "copy", from, "lustre://alice/stolen"];
        let words: Vec<&str> = [&*tidepool].into_iter().chain(words).collect();
        text(&cluster.on(node, &words))
    };
    let of_alice = format!("{ALICE}:{ALICE}:{job}");
    let said = copy(&of_alice, "node3");
    assert!(
        said.contains(&format!("job {job} is not registered")),
        "its own stager knows no such job: {said}"
    );
    // Root of that node registers it there.
    let job_text = job.to_string();
    let words = [
        "stage",
        "--control",
        "job",
        "register",
        &job_text,
        "--host",
        "node3",
        "--limit",
        "lustre://",
        "--limit",
        "nvme0://",
    ];
    let words: Vec<&str> = [&*tidepool].into_iter().chain(words).collect();
    let done = cluster.on("node3", &words);
    assert!(done.status.success(), "{}", text(&done));
    let said = copy(&of_alice, "node3");
    assert!(said.contains("does not run on node 'node3'"), "{said}");
    let said = copy("0:0", "node3");
    assert!(said.contains("for none"), "{said}");
    // A node of the job, which was taken, too.
    let said = copy(&format!("0:0:{job}"), "node2");
    assert!(said.contains("does not act as root"), "{said}");
    assert!(!cluster.pfs("alice/stolen").exists());
    assert!(!copy(&of_alice, "node2").contains("refused"));
    assert!(cluster.pfs("alice/stolen").exists(), "the job's own nodes reach each other");
    fs::remove_file(cluster.pfs("alice/stolen")).unwrap();
    // With what it has, it administers nobody else.
    let secret = cluster.dir().join("etc/stager-node3.secret");
    let secret = secret.display().to_string();
    let words = ["stage", "--at", "node1:42000", "--secret-file", &secret, "job", "list"];
    let words: Vec<&str> = [&*tidepool].into_iter().chain(words).collect();
    let said = text(&cluster.on("node3", &words));
    assert!(said.contains("administrator"), "{said}");
    fs::write(go, "").unwrap();
    assert_eq!(cluster.wait(job).state(), "COMPLETED", "{}", cluster.overview());
    let done = cluster.on("node3", &[&tidepool, "stage", "--control", "job", "unregister", &job_text]);
    assert!(done.status.success(), "{}", text(&done));
    cluster.assert_nothing_left("after a taken node");
}

/// A stager that dies while results go out, and starts again, brings them out.
#[test]
fn a_stager_that_dies_while_results_go_out() {
    let Some(cluster) = Cluster::start(2) else { return };
    cluster.slow_down("1MiB");
    let job = cluster.sbatch(
        &["-N2"],
        "#NORNS stage_out nvme0://out lustre://alice/out\n\
         srun sh -c 'mkdir $NVME0/out; head -c 4000000 /dev/urandom > $NVME0/out/$SLURMD_NODENAME; cksum < $NVME0/out/$SLURMD_NODENAME'\n",
    );
    cluster.until("results go out", || cluster.phase(job) == "staging-out");
    cluster.control(&["stager", "kill", "node1"]);
    cluster.control(&["stager", "start", "node1"]);
    assert_eq!(cluster.wait(job).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(cluster.phase(job), "done", "{}", cluster.reason(job));
    for node in ["node1", "node2"] {
        assert_eq!(fs::metadata(cluster.pfs("alice/out").join(node)).unwrap().len(), 4_000_000);
    }
    cluster.assert_nothing_left("after the death of a stager");
}

/// Slow tests, which wait for Slurm's own pauses, run with `TIDEPOOL_SLURM=full`, as `make test-all` does.
fn is_full() -> bool {
    std::env::var("TIDEPOOL_SLURM").is_ok_and(|value| value == "full")
}

/// slurmctld may be killed and started again whatever a job is at; the quick part kills it while the program runs.
#[test]
fn slurmctld_may_die_in_each_state() {
    let Some(cluster) = Cluster::start(2) else { return };
    cluster.input("alice", "in", 12 * MIB);
    cluster.slow_down(if is_full() { "1MiB" } else { "1GiB" });
    let body = |reserve: &str, out: &str| {
        format!(
            "{reserve}#NORNS stage_in lustre://alice/in nvme0://in\n#NORNS stage_out nvme0://in lustre://alice/{out}\n\
             srun cmp $NVME0/in $LUSTRE/alice/in && echo same; sleep 12\n"
        )
    };
    let all = [("running", ""), ("staging-in", "#TIDEPOOL reserve\n"), ("starting", ""), ("staging-out", "")];
    for (phase, reserve) in all.into_iter().take(if is_full() { 4 } else { 1 }) {
        let out = format!("out-{phase}");
        let job = cluster.sbatch(&["-N2", "--requeue"], &body(reserve, &out));
        cluster.until(&format!("the job is {phase}"), || cluster.phase(job) == phase);
        // Slurm itself loses a job that it has not saved yet, which may take it five seconds.
        std::thread::sleep(Duration::from_secs(6));
        cluster.control(&["slurmctld", "kill"]);
        cluster.control(&["slurmctld", "start"]);
        let shown = cluster.wait(job);
        assert_eq!(shown.state(), "COMPLETED", "killed while {phase}: {}", cluster.overview());
        assert_eq!(cluster.log("alice", job), "same\n", "killed while {phase}");
        let (is, was) = (cluster.pfs("alice").join(&out), cluster.pfs("alice/in"));
        assert_eq!(fs::read(is).unwrap(), fs::read(was).unwrap(), "killed while {phase}");
        cluster.assert_nothing_left(&format!("killed while {phase}"));
    }
}

/// A job that slurmctld loses, since it is killed before it has saved it, leaves nothing either.
#[test]
fn a_job_that_slurmctld_loses_is_swept_up() {
    if !is_full() {
        println!("SKIPPED: takes a minute and a half; TIDEPOOL_SLURM=full, or make test-all");
        return;
    }
    let Some(cluster) = Cluster::start(2) else { return };
    cluster.input("alice", "in", 12 * MIB);
    cluster.slow_down("1MiB");
    let job = cluster.sbatch(&["-N2"], "#NORNS stage_in lustre://alice/in nvme0://in\necho never\n");
    cluster.until("data come in", || cluster.phase(job) == "starting");
    cluster.control(&["slurmctld", "kill"]);
    // As if nothing had been saved: what the file system has of it may be of any time.
    for entry in fs::read_dir(cluster.dir().join("state")).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("job_state") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    cluster.control(&["slurmctld", "start"]);
    cluster.until("it is swept up", || cluster.phase(job) == "cancelled");
    cluster.until("the nodes are back", || cluster.said(&["sinfo", "-h", "-t", "idle", "-o", "%D"]) == "2");
    cluster.assert_nothing_left("after a job that was lost");
}

/// slurmctld saves its burst buffers later than its jobs. Killed in between, it would wait for ever for the end of
/// staging that nobody does: such jobs are found, and go on.
#[test]
fn slurmctld_may_lose_track_of_staging() {
    if !is_full() {
        println!("SKIPPED: takes three minutes; TIDEPOOL_SLURM=full, or make test-all");
        return;
    }
    let Some(cluster) = Cluster::start(4) else { return };
    cluster.input("alice", "in", 10 * MIB);
    cluster.slow_down("1MiB");
    let before = cluster.sbatch(
        &["-N1", "--requeue"],
        "#TIDEPOOL reserve\n#NORNS stage_in lustre://alice/in nvme0://in\ncmp $NVME0/in $LUSTRE/alice/in && echo same\n",
    );
    let next = cluster.sbatch(&["-N1", &format!("--dependency=afterok:{before}")], "echo next\n");
    let after = cluster.sbatch(
        &["-N1"],
        "#NORNS stage_out nvme0://out lustre://alice/out\nhead -c 9000000 /dev/urandom > $NVME0/out\n",
    );
    cluster.until("data come in", || cluster.phase(before) == "staging-in");
    cluster.until("results go out", || cluster.phase(after) == "staging-out");
    // Its jobs are saved.
    std::thread::sleep(Duration::from_secs(6));
    cluster.control(&["slurmctld", "kill"]);
    for entry in fs::read_dir(cluster.dir().join("state")).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("burst_buffer") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    cluster.control(&["slurmctld", "start"]);
    cluster.slow_down("1GiB");
    cluster.until("it is found", || cluster.events(before).iter().any(|event| event.contains("lost track")));
    assert_eq!(cluster.wait(before).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(cluster.log("alice", before), "same\n");
    assert_eq!(cluster.wait(next).state(), "COMPLETED", "{}", cluster.overview());
    cluster.wait(after);
    assert_eq!(cluster.phase(after), "done", "{}", cluster.overview());
    assert_eq!(fs::metadata(cluster.pfs("alice/out")).unwrap().len(), 9_000_000);
    cluster.assert_nothing_left("after slurmctld has lost track");
}

/// A job is cancelled while one of its nodes is away: what it has there goes when the node is back.
#[test]
fn what_a_node_has_goes_when_it_is_back() {
    if !is_full() {
        println!("SKIPPED: takes two minutes; TIDEPOOL_SLURM=full, or make test-all");
        return;
    }
    let Some(cluster) = Cluster::start(2) else { return };
    cluster.input("alice", "in", 12 * MIB);
    cluster.slow_down("1MiB");
    let job = cluster
        .sbatch(&["-N2", "--no-requeue"], "#NORNS stage_in lustre://alice/in nvme0://in\necho never\n");
    cluster.until("data come in", || !cluster.left_on("node2").is_empty());
    cluster.control(&["node", "stop", "node2"]);
    cluster.said(&["scancel", &job.to_string()]);
    cluster.until("it is told", || cluster.events(job).iter().any(|event| event.contains("left behind")));
    assert_eq!(cluster.phase(job), "cancelled");
    cluster.control(&["node", "start", "node2"]);
    // It is tried again after ten minutes, and after a start of slurmctld.
    cluster.control(&["slurmctld", "kill"]);
    cluster.control(&["slurmctld", "start"]);
    cluster.until("the nodes are back", || cluster.said(&["sinfo", "-h", "-t", "idle", "-o", "%D"]) == "2");
    cluster.until("nothing is left", || cluster.left_on("node2").is_empty());
    cluster.assert_nothing_left("after a node was away");
}

/// A node that goes while results go out keeps them; the job says which node it is, and one command finishes it when the
/// node is back.
#[test]
fn a_node_that_goes_while_results_go_out() {
    let Some(cluster) = Cluster::start(2) else { return };
    cluster.slow_down("1MiB");
    let job = cluster.sbatch(
        &["-N2"],
        "#TIDEPOOL timeout stage_out=15s\n#NORNS stage_out nvme0://out lustre://alice/out\n\
         srun sh -c 'mkdir $NVME0/out; head -c 6000000 /dev/urandom > $NVME0/out/$SLURMD_NODENAME'\n",
    );
    cluster.until("results go out", || cluster.phase(job) == "staging-out");
    cluster.control(&["node", "kill", "node2"]);
    cluster.until("it is told", || cluster.phase(job) == "stage-out-failed");
    assert!(
        cluster.reason(job).contains("node2") && cluster.reason(job).contains("resume"),
        "{}",
        cluster.reason(job)
    );
    cluster.control(&["node", "start", "node2"]);
    cluster.until("the node is back", || cluster.said(&["sinfo", "-h", "-t", "idle", "-o", "%D"]) == "2");
    cluster.resume("alice", job);
    for node in ["node1", "node2"] {
        assert_eq!(fs::metadata(cluster.pfs("alice/out").join(node)).unwrap().len(), 6_000_000);
    }
    cluster.assert_nothing_left("after the node has come back");
}

/// H12: results that are not out in time stay where they are, and can be brought out later.
#[test]
fn a_timeout_of_the_stage_out_loses_nothing() {
    let Some(cluster) = Cluster::start(1) else { return };
    cluster.slow_down("1MiB");
    let job = cluster.sbatch(
        &["-N1"],
        "#TIDEPOOL timeout stage_out=2s\n#NORNS stage_out nvme0://out lustre://alice/out\nhead -c 9000000 /dev/urandom > $NVME0/out\n",
    );
    cluster.until("it is told", || cluster.phase(job) == "stage-out-failed");
    assert!(cluster.reason(job).contains("had not ended after 2 s"), "{}", cluster.reason(job));
    cluster.wait(job);
    // Whoever looks at his jobs sees that first, without asking for those that have ended.
    let later = cluster.sbatch(&["-N1", "--hold"], "#NORNS stage_in lustre://alice/in nvme0://in\ntrue\n");
    let jobs = text(&cluster.by("alice", &[&cluster.tidepool(), "slurm", "jobs"]));
    let first = jobs.lines().find(|line| line.contains("stage-")).unwrap_or_default();
    assert!(first.starts_with(&job.to_string()) && first.contains("stage-out-failed"), "{jobs}");
    cluster.said(&["scancel", &later.to_string()]);
    cluster.resume("alice", job);
    assert_eq!(fs::metadata(cluster.pfs("alice/out")).unwrap().len(), 9_000_000);
    cluster.assert_nothing_left("after a stage-out that took longer");
}

/// No nodes in time for a reservation: the job ends, and says so.
#[test]
fn a_reservation_that_is_not_had_in_time() {
    let conf = "PartitionName=short Nodes=node[1-2] MaxTime=1 DefaultTime=1\n";
    let Some(cluster) = Cluster::with(Options { nodes: 2, conf, ..Options::default() }) else { return };
    cluster.input("alice", "in", 100);
    // Its end is expected within a minute, so staging begins, and finds the place in use.
    let body = "#NORNS stage_in lustre://alice/in nvme0://in\n";
    let blocker = cluster.sbatch(&["-N2", "--exclusive", "-pshort"], &format!("{body}echo up; sleep 300\n"));
    cluster.until("it runs", || cluster.log("alice", blocker) == "up\n");
    let job = cluster
        .sbatch(&["-N2"], &format!("#TIDEPOOL reserve\n#TIDEPOOL timeout stage_in=3s\n{body}echo never\n"));
    let shown = cluster.wait(job);
    assert_eq!(shown.state(), "CANCELLED", "{}", cluster.overview());
    let reason = cluster.reason(job);
    assert!(
        reason.contains("no 2 nodes could be reserved in time: node node1: nvme0://in is in use"),
        "{reason}"
    );
    cluster.said(&["scancel", &blocker.to_string()]);
    cluster.wait(blocker);
    cluster.assert_nothing_left("after a reservation that was not had");
}

/// CAST#1003: jobs that stage the same output leave one of them, whole. On one node they would write over each other's file
/// there, too: the second waits for the first.
#[test]
fn the_same_output_staged_twice_is_one_of_both() {
    let Some(cluster) = Cluster::start(2) else { return };
    let submit = |node: &str, letter: char| {
        let body = format!(
            "#NORNS stage_out nvme0://out lustre://alice/out\nsleep 1; head -c 3000000 /dev/zero | tr '\\0' {letter} > $NVME0/out\n"
        );
        cluster.sbatch(&["-N1", "-w", node], &body)
    };
    let jobs = [submit("node1", 'a'), submit("node1", 'b'), submit("node2", 'c')];
    for job in jobs {
        cluster.wait(job);
        assert_eq!(cluster.phase(job), "done", "{}", cluster.reason(job));
    }
    let out = fs::read(cluster.pfs("alice/out")).unwrap();
    assert_eq!(out.len(), 3_000_000);
    assert!(out.iter().all(|byte| *byte == out[0]), "a mixture");
    let waited = |job: u32, of: u32| {
        let text = format!("waits: node node1: nvme0://out is in use by job {of}");
        cluster.events(job).iter().any(|event| event.contains(&text))
    };
    assert!(waited(jobs[1], jobs[0]) || waited(jobs[0], jobs[1]), "{}", cluster.overview());
    assert!(!cluster.events(jobs[2]).iter().any(|event| event.contains("waits")), "{}", cluster.overview());
    cluster.assert_nothing_left("after the same output three times");
}

/// H14: what could not be staged out is not written over by the next job of the same kind: it runs elsewhere, or says why
/// it cannot.
#[test]
fn results_that_wait_are_not_written_over() {
    let Some(cluster) = Cluster::start(2) else { return };
    let body = |limit: &str, letter: char| {
        format!(
            "{limit}#NORNS stage_out nvme0://out lustre://alice/out-{letter}\nhead -c 6000000 /dev/zero | tr '\\0' {letter} > $NVME0/out; hostname\n"
        )
    };
    cluster.slow_down("1MiB");
    let first = cluster.sbatch(&["-N1", "-w", "node1"], &body("#TIDEPOOL timeout stage_out=2s\n", 'a'));
    cluster.until("it is told", || cluster.phase(first) == "stage-out-failed");
    cluster.wait(first);
    cluster.slow_down("1GiB");
    let second = cluster.sbatch(&["-N1"], &body("", 'b'));
    let third = cluster.sbatch(&["-N1", "-w", "node1"], &body("", 'c'));
    assert_eq!(cluster.wait(second).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(cluster.log("alice", second), "node2\n");
    assert_eq!(cluster.wait(third).state(), "CANCELLED", "{}", cluster.overview());
    let why = cluster.reason(third);
    assert!(why.contains(&format!("nvme0://out still has results of job {first}")), "{why}");
    cluster.resume("alice", first);
    for (letter, byte) in [("out-a", b'a'), ("out-b", b'b')] {
        let out = fs::read(cluster.pfs("alice").join(letter)).unwrap();
        assert_eq!((out.len(), out.iter().all(|b| *b == byte)), (6_000_000, true), "{letter}");
    }
    cluster.assert_nothing_left("after results that waited");
}

/// A user whose job names a whole dataspace, and whose results cannot be brought out, keeps nobody else's jobs from its node.
#[test]
fn who_names_a_whole_dataspace_keeps_no_others_away() {
    let Some(cluster) = Cluster::start(1) else { return };
    let theirs = "#NORNS stage_out nvme0:// lustre://alice/none/of/his\nsleep 600\n";
    let bobs = cluster.try_sbatch("bob", &["-N1", "-n1", "--oversubscribe"], theirs).unwrap();
    cluster.wait_for(bobs, &["RUNNING"]);
    cluster.input("alice", "in/x", 100);
    let alices = |name: &str| {
        let body = format!("#NORNS stage_in lustre://alice/in nvme0://{name}\nls $NVME0/{name}\n");
        let job = cluster.sbatch(&["-N1", "-n1", "--oversubscribe"], &body);
        assert_eq!(cluster.wait(job).state(), "COMPLETED", "{}", cluster.overview());
        assert_eq!(cluster.log("alice", job), "x\n");
    };
    alices("while-it-runs");
    cluster.by("bob", &["scancel", &bobs.to_string()]);
    cluster.until("his results stay", || cluster.phase(bobs) == "stage-out-failed");
    alices("while-his-results-are-there");
}

/// Results that nobody wants any more are removed by their owner, and who was kept from their nodes runs there; where a node
/// does not come back, an administrator gives them up.
#[test]
fn results_that_nobody_wants_are_discarded() {
    let Some(cluster) = Cluster::start(1) else { return };
    let body = |limit: &str, letter: char| {
        format!(
            "{limit}#NORNS stage_out nvme0://out lustre://alice/out\nhead -c 6000000 /dev/zero | tr '\\0' {letter} > $NVME0/out\n"
        )
    };
    let fail = |letter: char| {
        cluster.slow_down("1MiB");
        let job = cluster.sbatch(&["-N1"], &body("#TIDEPOOL timeout stage_out=2s\n", letter));
        cluster.until("it is told", || cluster.phase(job) == "stage-out-failed");
        cluster.wait(job);
        cluster.slow_down("1GiB");
        job
    };
    let first = fail('a');
    let second = cluster.sbatch(&["-N1"], &body("", 'b'));
    cluster.until("it is kept away", || {
        cluster.events(second).iter().any(|event| event.starts_with("not on node1"))
    });
    let tidepool = cluster.tidepool();
    let words = [tidepool.as_str(), "slurm", "discard", &first.to_string()].map(String::from);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let foreign = cluster.by("bob", &[&words[..], &["--wait"]].concat());
    assert_eq!(foreign.status.code(), Some(120), "{}", common::text(&foreign));
    let would = cluster.by("alice", &[&words[..], &["--dry-run"]].concat());
    assert!(common::text(&would).contains("would submit: sbatch"), "{}", common::text(&would));
    assert_eq!(cluster.phase(first), "stage-out-failed");
    let done = cluster.by("alice", &[&words[..], &["--wait"]].concat());
    assert!(done.status.success(), "{}\n{}", common::text(&done), cluster.overview());
    assert_eq!(cluster.phase(first), "failed");
    assert_eq!(cluster.wait(second).state(), "COMPLETED", "{}", cluster.overview());
    assert!(fs::read(cluster.pfs("alice/out")).unwrap().iter().all(|byte| *byte == b'b'));
    cluster.assert_nothing_left("after results that nobody wanted");

    let third = fail('c');
    cluster.control(&["node", "stop", "node1"]);
    let site = cluster.dir().join("etc/slurm.toml").display().to_string();
    let words =
        [tidepool.as_str(), "slurm", "discard", &third.to_string(), "--site", &site].map(String::from);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let refused = cluster.on("ctl", &words);
    assert!(
        refused.status.code() == Some(113) && common::text(&refused).contains("--lost"),
        "{}",
        common::text(&refused)
    );
    let done = cluster.on("ctl", &[&words[..], &["--lost"]].concat());
    assert!(done.status.success(), "{}", common::text(&done));
    assert!(cluster.reason(third).contains("given up on node1"), "{}", cluster.reason(third));
}

/// A job that waits too long for a place that another one has ends, with the reason.
#[test]
fn a_place_that_stays_in_use() {
    let Some(cluster) = Cluster::start(1) else { return };
    // It runs until it is cancelled.
    let body = "#TIDEPOOL timeout stage_in=2s\n#NORNS stage_out nvme0://out lustre://alice/out\necho > $NVME0/out; sleep 3000\n";
    let first = cluster.sbatch(&["-N1"], body);
    cluster.wait_for(first, &["RUNNING"]);
    let second = cluster.sbatch(&["-N1"], body);
    assert_eq!(cluster.wait(second).state(), "CANCELLED", "{}", cluster.overview());
    let why = cluster.reason(second);
    assert!(why.contains(&format!("in use by job {first}")) && why.contains("waited for 2 s"), "{why}");
    // One that waits can be cancelled, and leaves the other one alone.
    let third = cluster.sbatch(&["-N1"], &body.replace("2s", "1h"));
    cluster.until("it waits", || cluster.events(third).iter().any(|event| event.starts_with("waits")));
    cluster.said(&["scancel", &third.to_string()]);
    assert_eq!(cluster.wait(third).state(), "CANCELLED", "{}", cluster.overview());
    assert_eq!(cluster.phase(first), "running");
    cluster.said(&["scancel", &first.to_string()]);
    cluster.wait(first);
    assert_eq!(fs::read(cluster.pfs("alice/out")).unwrap(), b"\n");
    cluster.assert_nothing_left("after jobs that wanted one place");
}

/// flux-coral2#466: a hundred jobs at once, more than the cluster can hold.
#[test]
fn a_hundred_jobs_at_once() {
    let Some(cluster) = Cluster::start(4) else { return };
    let data = cluster.input("alice", "in", 1000);
    let jobs: Vec<u32> = (0..100)
        .map(|number| {
            let body = format!(
                "#NORNS stage_in lustre://alice/in nvme0://in-{number}\n#NORNS stage_out nvme0://in-{number} lustre://alice/out-{number}\ntrue\n"
            );
            cluster.sbatch(&["-N1", "-n1"], &body)
        })
        .collect();
    for job in &jobs {
        cluster.wait(*job);
    }
    for (number, job) in jobs.iter().enumerate() {
        assert_eq!(cluster.phase(*job), "done", "job {job}: {}", cluster.reason(*job));
        let out = cluster.pfs("alice").join(format!("out-{number}"));
        assert_eq!(fs::read(out).unwrap(), data, "job {job}");
    }
    cluster.assert_nothing_left("after a hundred jobs");
}

/// Before 24.11, slurmscriptd hands a hook's pipe on to those that it forks at the same moment, and takes the one for
/// unfinished as long as the others are. A hook that waits, here for another job's place, holds up no other job, and not
/// slurmctld itself, which waits for the answer that it shows users.
#[test]
fn a_hook_that_waits_holds_up_no_other() {
    let Some(cluster) =
        Cluster::with(Options { nodes: 4, slowed_by: Some("slow_fork"), ..Options::default() })
    else {
        return;
    };
    cluster.input("alice", "in", 1000);
    let body =
        |place: &str, then: &str| format!("#NORNS stage_in lustre://alice/in nvme0://{place}\n{then}\n");
    let go = cluster.pfs("alice/go");
    let until = format!("until [ -e {} ]; do sleep 0.1; done", go.display());
    let one = &["-N1", "-n1", "-wnode1"];
    let first = cluster.sbatch(one, &body("same", &until));
    cluster.wait_for(first, &["RUNNING"]);
    let held = |options: &[&str], body: &str| cluster.sbatch(&[options, &["--hold"]].concat(), body);
    let second = held(one, &body("same", "true"));
    let others: Vec<u32> =
        (0..12).map(|n| held(&["-N1", "-n1"], &body(&format!("own-{n}"), "true"))).collect();
    let all: Vec<String> = [&[second], &others[..]].concat().iter().map(u32::to_string).collect();
    cluster.said(&["scontrol", "release", &all.join(",")]);
    for job in &others {
        cluster.until(&format!("job {job} ends"), || {
            let asked = cluster.by("alice", &[&cluster.tidepool(), "slurm", "jobs"]);
            assert!(asked.status.success(), "{}", common::text(&asked));
            cluster.show(*job).state() == "COMPLETED"
        });
    }
    assert_eq!(cluster.show(first).state(), "RUNNING");
    assert_eq!(cluster.show(second).state(), "CONFIGURING", "{}", cluster.overview());
    fs::write(go, "").unwrap();
    for job in [&[first, second], &others[..]].concat() {
        assert_eq!(cluster.wait(job).state(), "COMPLETED", "{}", cluster.reason(job));
    }
    cluster.assert_nothing_left("after hooks side by side");
}

/// slurmctld ends a cancelled job's hooks and begins its teardown in two threads, and when the first is late it ends the
/// teardown, too, which it then waits for until its next start. One `scancel` is enough all the same.
#[test]
fn a_teardown_that_slurmctld_kills_is_begun_again() {
    let options = Options { nodes: 2, slowed_by: Some("slow_threads"), ..Options::default() };
    let Some(cluster) = Cluster::with(options) else { return };
    cluster.input("alice", "in", 1000);
    let blocker = cluster.sbatch(&["-N2", "--exclusive"], "sleep 3000\n");
    cluster.wait_for(blocker, &["RUNNING"]);
    let killed = |job: u32| {
        let log = fs::read_to_string(cluster.dir().join("log/slurmctld.log")).unwrap();
        log.contains(&format!("teardown for JobId={job} terminated by slurmctld"))
    };
    let mut jobs: Vec<u32> = Vec::new();
    while !jobs.iter().any(|job| killed(*job)) {
        assert!(jobs.len() < 80, "none of {} teardowns was killed", jobs.len());
        let body = "#NORNS stage_in lustre://alice/in nvme0://in\necho never\n";
        let some: Vec<u32> = (0..8).map(|_| cluster.sbatch(&["-N2"], body)).collect();
        cluster.until("they are looked at", || some.iter().all(|job| cluster.phase(*job) == "checked"));
        let numbers: Vec<String> = some.iter().map(u32::to_string).collect();
        let numbers = numbers.iter().map(String::as_str);
        cluster.said(&["scancel"].into_iter().chain(numbers).collect::<Vec<_>>());
        cluster.until("Slurm has done its part", || {
            some.iter().all(|job| killed(*job) || cluster.show(*job).word("BurstBufferState") == "complete")
        });
        jobs.extend(some);
    }
    for job in &jobs {
        assert_eq!(cluster.wait(*job).state(), "CANCELLED", "{}", cluster.overview());
        assert_eq!(cluster.phase(*job), "cancelled", "{:?}", cluster.events(*job));
    }
    cluster.said(&["scancel", &blocker.to_string()]);
    cluster.wait(blocker);
    cluster.assert_nothing_left("after a teardown that was killed");
}
