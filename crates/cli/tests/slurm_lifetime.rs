//! Pools that outlive their jobs, on a real cluster: `lifetime=workflow` and `lifetime=campaign`.

mod common;

use common::cluster::{Cluster, Options};
use common::text;
use serde_json::Value;
use std::fs;

/// The pools that the controller knows.
fn pools(cluster: &Cluster) -> Vec<Value> {
    cluster.report("pools").as_array().cloned().unwrap_or_default()
}

fn state(cluster: &Cluster) -> String {
    pools(cluster).iter().map(|pool| pool["state"].as_str().unwrap_or_default()).collect::<Vec<_>>().join(",")
}

/// Nothing of any pool runs or is mounted on any node.
fn assert_at_rest(cluster: &Cluster, when: &str) {
    assert_eq!(state(cluster), "rest", "{when}: {}", cluster.overview());
    for node in cluster.names() {
        let mounts = cluster.on(&node, &["cat", "/proc/mounts"]);
        assert!(!text(&mounts).contains("tidepool-20001"), "{when}: {node}: {}", text(&mounts));
    }
    for program in ["tidepoold", "tidepool node"] {
        // All nodes are one machine.
        let pattern =
            format!("{}/bin/{program}", cluster.path("").display().to_string().trim_end_matches('/'));
        let there = std::process::Command::new("pgrep").args(["-a", "-f", &pattern]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&there.stdout), "", "{when}");
    }
}

fn tidepool(cluster: &Cluster, user: &str, words: &[&str]) -> (String, Option<i32>) {
    let done = cluster.by(user, &[&[cluster.tidepool().as_str()], words].concat());
    (text(&done), done.status.code())
}

const SCRATCH: &str = "#TIDEPOOL pool name=scratch lifetime=workflow client=fuse\n";

/// H3: a workflow's jobs on one, three and two nodes find the same pool with its data; it is gone when the last is done.
#[test]
fn a_workflows_jobs_share_a_pool_on_whatever_nodes_they_run() {
    let Some(cluster) = Cluster::start(4) else { return };
    let first = cluster.sbatch(
        &["-N2", "-wnode[1-2]"],
        "#NORNS workflow-start\n#TIDEPOOL pool name=scratch lifetime=workflow size=100MiB client=fuse\n\
         srun sh -c 'head -c 300000 /dev/urandom > $TIDEPOOL_DIR/$SLURMD_NODENAME; cksum < $TIDEPOOL_DIR/$SLURMD_NODENAME'\n",
    );
    assert_eq!(cluster.wait(first).state(), "COMPLETED", "{}", cluster.overview());
    assert_at_rest(&cluster, "after the first job");
    // What the user leaves otherwise goes with his other jobs; the pool stays.
    let other = cluster.sbatch(
        &["-N2", "-wnode[1-2]"],
        "#NORNS stage_out nvme0://f lustre://alice/f\necho x > $NVME0/f; echo y > $NVME0/g\n",
    );
    assert_eq!(cluster.wait(other).state(), "COMPLETED", "{}", cluster.overview());
    let (tree, code) = tidepool(&cluster, "alice", &["workflow", "status", &first.to_string()]);
    assert!(tree.contains("pool 'scratch' is rest on node1,node2") && code == Some(0), "{tree}");
    let second = cluster.sbatch(
        &["-N3", "-wnode[2-4]"],
        &format!(
            "#NORNS workflow-prior-dependency {first}\n{SCRATCH}\
             srun sh -c 'cat $TIDEPOOL_DIR/node1 $TIDEPOOL_DIR/node2 | cksum; date > $TIDEPOOL_DIR/second-$SLURMD_NODENAME'\n"
        ),
    );
    assert_eq!(cluster.wait(second).state(), "COMPLETED", "{}", cluster.overview());
    assert_at_rest(&cluster, "after the second job");
    let seen: Vec<String> = cluster.log("alice", second).lines().map(String::from).collect();
    assert!(
        seen.len() == 3 && seen[0].ends_with(" 600000") && seen.iter().all(|line| *line == seen[0]),
        "{seen:?}"
    );
    let third = cluster.sbatch(
        &["-N1", "-wnode4"],
        &format!(
            "#NORNS workflow-prior-dependency {second}\n#NORNS workflow-end\n{SCRATCH}\
             #NORNS stage_out scratch://node1 lustre://alice/result\n\
             ls $TIDEPOOL_DIR; cksum < $TIDEPOOL_DIR/node1\n"
        ),
    );
    assert_eq!(cluster.wait(third).state(), "COMPLETED", "{}", cluster.overview());
    let log = cluster.log("alice", third);
    assert!(log.starts_with("node1\nnode2\nsecond-node2\nsecond-node3\nsecond-node4\n"), "{log}");
    let sums = cluster.log("alice", first);
    assert!(sums.lines().any(|line| log.ends_with(&format!("{line}\n"))), "{sums}{log}");
    assert_eq!(fs::metadata(cluster.pfs("alice/result")).unwrap().len(), 300_000);
    cluster.until("the workflow's end has removed it", || pools(&cluster).is_empty());
    fs::remove_file(cluster.pfs("alice/f")).unwrap();
    cluster.assert_nothing_left("after the workflow");
    assert!(!cluster.said(&["sinfo", "-h", "-N", "-o", "%f"]).contains("tidepool"));
}

/// H5: a workflow that has failed keeps its pool, says so, and one command of its owner's ends it.
#[test]
fn a_failed_workflow_keeps_its_pool_until_it_is_ended() {
    let Some(cluster) = Cluster::start(3) else { return };
    let first = cluster.sbatch(
        &["-N2", "-wnode[1-2]"],
        &format!("#NORNS workflow-start\n{SCRATCH}echo precious > $TIDEPOOL_DIR/f; exit 3\n"),
    );
    assert_eq!(cluster.wait(first).state(), "FAILED", "{}", cluster.overview());
    let (tree, code) = tidepool(&cluster, "alice", &["workflow", "status", &first.to_string()]);
    let advice = "pool 'scratch' is rest on node1,node2; 'tidepool slurm end-pool 1' removes it";
    assert!(tree.contains(advice) && code == Some(117), "{tree}");
    let kept = cluster.left_on("node1");
    assert!(kept.contains("/mnt/nvme0/tidepool-pool-1-scratch/d0"), "{kept}");
    // No other workflow of the same user has it, and no other user ends it.
    let other = cluster.sbatch(
        &["-N1"],
        &format!("#NORNS workflow-start\n#NORNS workflow-end\n{SCRATCH}ls $TIDEPOOL_DIR\n"),
    );
    assert_eq!(cluster.wait(other).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(cluster.log("alice", other), "");
    cluster.until("that one's is gone", || pools(&cluster).len() == 1);
    let (said, code) = tidepool(&cluster, "bob", &["slurm", "end-pool", "1", "--wait"]);
    assert!(said.contains("another user's") && code == Some(120), "{said}");
    let (said, code) = tidepool(&cluster, "alice", &["slurm", "end-pool", "scratch", "--dry-run"]);
    assert!(said.contains("#TIDEPOOL end-pool 1") && code == Some(0), "{said}");
    let (said, code) = tidepool(&cluster, "alice", &["slurm", "end-pool", "scratch", "--wait"]);
    assert_eq!(code, Some(0), "{said}\n{}", cluster.overview());
    assert_eq!(pools(&cluster), Vec::<Value>::new());
    cluster.assert_nothing_left("after the pool of a failed workflow was ended");
    let (said, code) = tidepool(&cluster, "alice", &["slurm", "end-pool", "1"]);
    assert!(said.contains("there is no pool 1") && code == Some(120), "{said}");
}

/// WANTS: independent jobs of one user share a pool, two of them at once and on nodes of their own; nobody else does.
#[test]
fn jobs_of_a_campaign_share_a_pool_also_at_the_same_time() {
    let Some(cluster) = Cluster::start(4) else { return };
    let pool = "#TIDEPOOL pool name=mesh lifetime=campaign client=fuse\n";
    let first = cluster.sbatch(&["-N1", "-wnode1"], &format!("{pool}echo one > $TIDEPOOL_DIR/one\n"));
    assert_eq!(cluster.wait(first).state(), "COMPLETED", "{}", cluster.overview());
    assert_at_rest(&cluster, "after the first job");
    // Each waits for what the other writes: they cannot run one after the other.
    let body = |own: &str, other: &str| {
        format!(
            "{pool}cat $TIDEPOOL_DIR/one; touch $TIDEPOOL_DIR/{own}; until test -e $TIDEPOOL_DIR/{other}; do sleep 0.1; done; {}\n",
            if own == "b" {
                "until test -e $TIDEPOOL_DIR/go; do sleep 0.1; done; cat $TIDEPOOL_DIR/go"
            } else {
                "echo met"
            }
        )
    };
    let a = cluster.sbatch(&["-N2", "-wnode[2-3]"], &body("a", "b"));
    let b = cluster.sbatch(&["-N2", "-wnode[3-4]"], &body("b", "a"));
    assert_eq!(cluster.wait(a).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(cluster.log("alice", a), "one\nmet\n");
    // The one that goes on keeps daemons and its mounts; that of the other's own node is gone.
    let mounted = |node: &str| text(&cluster.on(node, &["cat", "/proc/mounts"])).contains("tidepool-20001");
    assert!(!mounted("node2") && mounted("node3") && mounted("node4") && mounted("node1"));
    let table = pools(&cluster)[0].clone();
    assert_eq!(
        (table["state"].as_str(), &table["jobs"], &table["in_use"]),
        (Some("up"), &serde_json::json!([b]), &true.into())
    );
    let (said, code) = tidepool(&cluster, "alice", &["slurm", "end-pool", "mesh"]);
    assert!(said.contains(&format!("job {b} uses it")) && code == Some(120), "{said}");
    // Another user's of the same name is another one, also while the first is up.
    let bobs = cluster
        .try_sbatch(
            "bob",
            &["-N1", "-wnode1"],
            &format!("{pool}ls -A $TIDEPOOL_DIR; echo bob > $TIDEPOOL_DIR/bob\n"),
        )
        .unwrap();
    assert_eq!(cluster.wait(bobs).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(cluster.log("bob", bobs), "");
    let third = cluster.sbatch(&["-N1", "-wnode2"], &format!("{pool}echo ended > $TIDEPOOL_DIR/go\n"));
    assert_eq!(cluster.wait(third).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(cluster.wait(b).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(cluster.log("alice", b), "one\nended\n");
    let (table, code) = tidepool(&cluster, "alice", &["slurm", "pools"]);
    assert!(table.contains("alice") && table.contains("bob") && code == Some(0), "{table}");
    assert_eq!(state(&cluster), "rest,rest");
    for (user, name) in [("alice", "mesh"), ("bob", "mesh")] {
        let (said, code) = tidepool(&cluster, user, &["slurm", "end-pool", name, "--wait"]);
        assert_eq!(code, Some(0), "{user}: {said}\n{}", cluster.overview());
    }
    cluster.assert_nothing_left("after both campaigns");
}

/// What contradicts the pool that is there, or cannot be had, is refused with line and column; what leaves it open is not.
#[test]
fn later_jobs_say_no_other_shape() {
    let Some(cluster) = Cluster::start(2) else { return };
    let refused = |body: &str| cluster.try_sbatch("alice", &["-N1"], &format!("{body}\ntrue\n")).unwrap_err();
    for (line, words) in [
        ("#TIDEPOOL pool lifetime=campaign", "line 2, column 11: a pool that outlives its job needs a name"),
        (
            "#TIDEPOOL pool name=a lifetime=workflow",
            "line 2, column 11: lifetime=workflow is for jobs of a workflow",
        ),
        ("#TIDEPOOL end-pool 1", "pool 1: there is none"),
    ] {
        let said = refused(line);
        assert!(said.contains(words), "{line}: {said}");
    }
    let pool = "#TIDEPOOL pool name=a lifetime=campaign";
    let first =
        cluster.sbatch(&["-N2"], &format!("{pool} size=64MiB client=fuse\necho x > $TIDEPOOL_DIR/x\n"));
    // Known from its submission on.
    let said = refused(&format!("{pool} size=1GiB"));
    assert!(
        said.contains("line 2, column 11: pool 'a' is there: it was made with size=64MiB, not size=1GiB"),
        "{said}"
    );
    assert!(refused(&format!("{pool} mode=relaxed")).contains("it was made without mode="));
    assert_eq!(cluster.wait(first).state(), "COMPLETED", "{}", cluster.overview());
    let second = cluster.sbatch(
        &["-N1"],
        &format!("{pool} size=64MiB\ncat $TIDEPOOL_DIR/x; head -c 100M /dev/zero > $TIDEPOOL_DIR/y\n"),
    );
    assert_eq!(cluster.wait(second).state(), "FAILED", "{}", cluster.overview());
    let log = cluster.log("alice", second);
    assert!(log.starts_with("x\n") && log.contains("quota exceeded"), "{log}");
    let root = cluster.on("ctl", &[&cluster.tidepool(), "slurm", "end-pool", "1", "--site", &site(&cluster)]);
    assert!(root.status.success(), "{}", text(&root));
    cluster.assert_nothing_left("after the administrator has ended it");
}

fn site(cluster: &Cluster) -> String {
    cluster.dir().join("etc/slurm.toml").display().to_string()
}

/// Several pools in one job: each with its own data, directory and lifetime.
#[test]
fn one_job_has_several_pools() {
    let Some(cluster) = Cluster::start(2) else { return };
    let data = cluster.input("alice", "in", 100_000);
    let job = cluster.sbatch(
        &["-N2"],
        "#NORNS workflow-start\n#NORNS workflow-end\n#TIDEPOOL pool name=a client=fuse\n#TIDEPOOL pool name=b client=fuse size=10MiB\n\
         #TIDEPOOL pool name=c client=fuse lifetime=workflow\n\
         #NORNS stage_in lustre://alice/in a://in\n#NORNS stage_in lustre://alice/in c://in\n\
         #NORNS stage_out b://out lustre://alice/out-b\n#NORNS stage_out c://out lustre://alice/out-c\n\
         echo ${TIDEPOOL_DIR:-none}\nsrun sh -c 'mount | grep -c tidepool-20001'\n\
         mkdir $TIDEPOOL_B_DIR/out; cp $TIDEPOOL_A_DIR/in $TIDEPOOL_B_DIR/out/in; cp $TIDEPOOL_C_DIR/in $TIDEPOOL_C_DIR/out; ls $TIDEPOOL_A_DIR\n",
    );
    assert_eq!(cluster.wait(job).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(cluster.log("alice", job), "none\n3\n3\nin\n");
    for out in ["out-b/in", "out-c"] {
        assert_eq!(fs::read(cluster.pfs("alice").join(out)).unwrap(), data, "{out}");
    }
    cluster.until("the workflow's pool is gone", || pools(&cluster).is_empty());
    cluster.assert_nothing_left("after a job with three pools");
}

/// A job that ends before it has made its pool leaves nothing of it: cancelled in the queue, or refused its size.
#[test]
fn a_pool_that_never_was_leaves_nothing() {
    let Some(cluster) = Cluster::with(Options { nodes: 2, nvme: Some("64M"), ..Options::default() }) else {
        return;
    };
    let pool = "#TIDEPOOL pool name=a lifetime=campaign";
    let blocker = cluster.sbatch(&["-N2", "--exclusive"], "sleep 300\n");
    cluster.wait_for(blocker, &["RUNNING"]);
    let pending = cluster.sbatch(&["-N2"], &format!("{pool}\ntrue\n"));
    cluster.until("it is looked at", || cluster.phase(pending) == "checked");
    assert_eq!(state(&cluster), "new");
    cluster.said(&["scancel", &pending.to_string()]);
    cluster.until("it is cancelled", || cluster.phase(pending) == "cancelled");
    cluster.said(&["scancel", &blocker.to_string()]);
    cluster.wait(blocker);
    cluster.said(&[&cluster.tidepool(), "slurm", "sweep", "--site", &site(&cluster)]);
    assert_eq!(state(&cluster), "");
    let large = cluster.sbatch(&["-N2"], &format!("{pool} size=10TiB\necho never\n"));
    assert_eq!(cluster.wait(large).state(), "CANCELLED", "{}", cluster.overview());
    assert!(cluster.reason(large).contains("10.0 TiB"), "{}", cluster.reason(large));
    cluster.said(&[&cluster.tidepool(), "slurm", "sweep", "--site", &site(&cluster)]);
    assert_eq!(state(&cluster), "");
    cluster.assert_nothing_left("after pools that never were");
}

/// A campaign's pool that no job uses for as long as the site allows is removed by the sweep, and not before.
#[test]
fn an_idle_campaign_ends() {
    let site_conf = "campaign-idle-max = \"20s\"\n";
    let Some(cluster) = Cluster::with(Options { nodes: 3, site: site_conf, ..Options::default() }) else {
        return;
    };
    let pool = "#TIDEPOOL pool name=a lifetime=campaign client=fuse\n";
    let job = cluster.sbatch(&["-N1", "-wnode3"], &format!("{pool}echo x > $TIDEPOOL_DIR/x\n"));
    assert_eq!(cluster.wait(job).state(), "COMPLETED", "{}", cluster.overview());
    // The nodes with its data are preferred.
    let next = cluster.sbatch(&["-N1"], &format!("{pool}hostname; cat $TIDEPOOL_DIR/x\n"));
    assert_eq!(cluster.wait(next).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(cluster.log("alice", next), "node3\nx\n");
    let told = cluster.said(&[
        &cluster.tidepool(),
        "slurm",
        "sweep",
        "--dry-run",
        "--json",
        "--site",
        &site(&cluster),
    ]);
    assert_eq!(told, r#"{"found":[],"pools":[]}"#);
    cluster.until("it has been idle for too long", || {
        cluster.said(&[&cluster.tidepool(), "slurm", "sweep", "--site", &site(&cluster)]);
        pools(&cluster).is_empty()
    });
    cluster.assert_nothing_left("after a campaign that was idle");
}

/// Fault matrix: a daemon is killed while a job uses the pool. What was written stays, and the next job has it.
#[test]
fn a_killed_daemon_loses_no_data_of_a_campaign() {
    let Some(cluster) = Cluster::start(2) else { return };
    let pool = "#TIDEPOOL pool name=a lifetime=campaign client=fuse placement=wide\n";
    let job = cluster.sbatch(
        &["-N2"],
        &format!("{pool}seq 500000 > $TIDEPOOL_DIR/f; sync $TIDEPOOL_DIR/f; echo up; sleep 300\n"),
    );
    cluster.until("it runs", || cluster.log("alice", job) == "up\n");
    let kill = r#"kill -9 $(sed 's/.*"daemons":\[\([0-9]*\).*/\1/' /tmp/tidepool-20001/pool-*/node-*.json)"#;
    assert!(cluster.on("node2", &["sh", "-c", kill]).status.success());
    // Who comes while the others are used is told.
    let next = cluster.sbatch(&["-N1", "-wnode1"], &format!("{pool}echo never\n"));
    assert_eq!(cluster.wait(next).state(), "CANCELLED", "{}", cluster.overview());
    let why = cluster.reason(next);
    assert!(
        why.contains("its daemon on node2 does not answer, and job") && why.contains("'a' (number 1)"),
        "{why}"
    );
    cluster.said(&["scancel", &job.to_string()]);
    cluster.wait(job);
    cluster.until("it is at rest", || state(&cluster) == "rest");
    let last = cluster
        .sbatch(&["-N1", "-wnode1"], &format!("{pool}seq 500000 | cmp - $TIDEPOOL_DIR/f && echo same\n"));
    assert_eq!(cluster.wait(last).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(cluster.log("alice", last), "same\n");
    // What is gone from a node is told, and not made up for by an empty store.
    cluster.on("node2", &["sh", "-c", "rm -r /mnt/nvme0/tidepool-pool-*"]);
    let lost = cluster.sbatch(&["-N1", "-wnode1"], &format!("{pool}echo never\n"));
    assert_eq!(cluster.wait(lost).state(), "CANCELLED", "{}", cluster.overview());
    assert!(
        cluster.reason(lost).contains("its data on node2 are not there any more"),
        "{}",
        cluster.reason(lost)
    );
    assert_eq!(state(&cluster), "lost");
    let (said, code) = tidepool(&cluster, "alice", &["slurm", "end-pool", "a", "--wait"]);
    assert_eq!(code, Some(0), "{said}\n{}", cluster.overview());
    cluster.assert_nothing_left("after a lost pool");
}

/// Fault matrix: a node of the pool is down when the next job starts. The job waits, with a reason that names pool, node and
/// way out; when the node is back, it runs and has the data.
#[test]
fn a_stopped_node_is_named_and_its_data_are_there_when_it_is_back() {
    let away = "stager-away-max = \"1s\"\n";
    let Some(cluster) = Cluster::with(Options { nodes: 3, site: away, ..Options::default() }) else { return };
    let pool = "#TIDEPOOL pool name=a lifetime=campaign client=fuse placement=wide\n";
    let job = cluster.sbatch(&["-N2", "-wnode[1-2]"], &format!("{pool}seq 500000 > $TIDEPOOL_DIR/f\n"));
    assert_eq!(cluster.wait(job).state(), "COMPLETED", "{}", cluster.overview());
    cluster.control(&["node", "stop", "node2"]);
    let next = cluster
        .sbatch(&["-N1", "-wnode3"], &format!("{pool}seq 500000 | cmp - $TIDEPOOL_DIR/f && echo same\n"));
    cluster.until("it is told", || cluster.events(next).iter().any(|event| event.contains("node2")));
    let events = cluster.events(next).join("\n");
    for part in ["pool 'a' (number 1)", "node node2", "tidepool slurm end-pool 1"] {
        assert!(events.contains(part), "{part}: {events}");
    }
    assert_eq!(cluster.log("alice", next), "");
    // Slurm takes the job up again, in case the node is back: by itself after two minutes.
    cluster.until("it is queued again", || cluster.show(next).word("Reason") == "BeginTime");
    cluster.control(&["node", "start", "node2"]);
    cluster.until("the node is back", || cluster.said(&["sinfo", "-h", "-t", "idle", "-o", "%D"]) == "3");
    cluster.wait_for(next, &["PENDING"]);
    cluster.said(&["scontrol", "update", &format!("JobId={next}"), "StartTime=now"]);
    assert_eq!(cluster.wait(next).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(cluster.log("alice", next), "same\n");
    // A removal that a node keeps from ending is finished when it is back.
    cluster.control(&["node", "stop", "node2"]);
    let (said, code) = tidepool(&cluster, "alice", &["slurm", "end-pool", "a", "--wait"]);
    assert!(said.contains("node2") && code == Some(113), "{said}");
    assert_eq!(state(&cluster), "ending");
    cluster.control(&["node", "start", "node2"]);
    cluster.until("the sweep goes on", || {
        cluster.on("ctl", &[&cluster.tidepool(), "slurm", "sweep", "--site", &site(&cluster)]);
        pools(&cluster).is_empty()
    });
    cluster.until("the node is back", || cluster.said(&["sinfo", "-h", "-t", "idle", "-o", "%D"]) == "3");
    cluster.assert_nothing_left("after a node that was away");
}

/// slurmctld is killed between two jobs of a workflow, and while one runs: nothing is lost.
#[test]
fn slurmctld_may_die_between_jobs() {
    let Some(cluster) = Cluster::start(2) else { return };
    let first =
        cluster.sbatch(&["-N2"], &format!("#NORNS workflow-start\n{SCRATCH}echo one > $TIDEPOOL_DIR/one\n"));
    assert_eq!(cluster.wait(first).state(), "COMPLETED", "{}", cluster.overview());
    // Slurm itself forgets what it has not saved, which may take it five seconds.
    std::thread::sleep(std::time::Duration::from_secs(6));
    cluster.control(&["slurmctld", "kill"]);
    cluster.control(&["slurmctld", "start"]);
    let second = cluster.sbatch(
        &["-N1"],
        &format!("#NORNS workflow-prior-dependency {first}\n#NORNS workflow-end\n{SCRATCH}cat $TIDEPOOL_DIR/one; sleep 12\n"),
    );
    cluster.until("it runs", || cluster.log("alice", second) == "one\n");
    std::thread::sleep(std::time::Duration::from_secs(6));
    cluster.control(&["slurmctld", "kill"]);
    cluster.control(&["slurmctld", "start"]);
    assert_eq!(cluster.wait(second).state(), "COMPLETED", "{}", cluster.overview());
    cluster.until("the workflow's end has removed it", || pools(&cluster).is_empty());
    cluster.assert_nothing_left("after slurmctld has died twice");
}

/// WANTS 11: results that could not go out are still in the workflow's pool; when they are out, the workflow is completed,
/// and the pool goes.
#[test]
fn results_in_a_workflows_pool_are_finished_later() {
    let Some(cluster) = Cluster::start(2) else { return };
    let first = cluster.sbatch(
        &["-N1", "-wnode1"],
        &format!("#NORNS workflow-start\n{SCRATCH}seq 100000 > $TIDEPOOL_DIR/f\n"),
    );
    assert_eq!(cluster.wait(first).state(), "COMPLETED", "{}", cluster.overview());
    let last = cluster.sbatch(
        &["-N1", "-wnode2"],
        &format!("#NORNS workflow-prior-dependency {first}\n#NORNS workflow-end\n{SCRATCH}#NORNS stage_out scratch://f lustre://bob/f\ntrue\n"),
    );
    cluster.wait(last);
    assert_eq!(cluster.phase(last), "stage-out-failed", "{}", cluster.overview());
    assert_at_rest(&cluster, "after a stage-out that has failed");
    fs::set_permissions(cluster.pfs("bob"), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    cluster.resume("alice", last);
    assert_eq!(fs::metadata(cluster.pfs("bob/f")).unwrap().len(), 588_895);
    cluster.until("the workflow's end has removed it", || pools(&cluster).is_empty());
    let (tree, code) = tidepool(&cluster, "alice", &["workflow", "status", &first.to_string()]);
    assert!(tree.contains("completed") && code == Some(0), "{tree}");
    cluster.assert_nothing_left("after a stage-out that was finished later");
}
