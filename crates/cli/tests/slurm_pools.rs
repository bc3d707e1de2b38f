//! Pools that jobs ask for, on a real cluster (INVENTORY A1, A2, A4).

mod common;

use common::cluster::{ALICE, Cluster, Options};
use common::text;
use std::fs;
use std::time::Instant;

const MIB: usize = 1 << 20;

/// A1, A2, D5: the pool is there on all nodes when the program starts, filled with its data, through a mount and through
/// the preload library; its results are staged out when the program has ended, and nothing of it is left.
#[test]
fn a1_a2_a_job_asks_for_a_pool_with_a_flag() {
    let Some(cluster) = Cluster::start(4) else { return };
    let data = cluster.input("alice", "in/mesh", 2 * MIB + 3);
    for (client, nodes) in [("fuse", 4), ("preload", 2)] {
        let out = format!("out-{client}");
        let option = format!("--tidepool=size=100MiB client={client}");
        let job = cluster.sbatch(
            &[&format!("-N{nodes}"), &option],
            &format!(
                "#NORNS stage_in lustre://alice/in pool://case\n#NORNS stage_out pool://out lustre://alice/{out}\n\
                 mkdir $TIDEPOOL_DIR/out\n\
                 srun sh -c 'cmp $TIDEPOOL_DIR/case/mesh $LUSTRE/alice/in/mesh && cp $TIDEPOOL_DIR/case/mesh $TIDEPOOL_DIR/out/$SLURMD_NODENAME'\n\
                 mount | grep -c tidepool-20001 || true\n"
            ),
        );
        assert_eq!(cluster.wait(job).state(), "COMPLETED", "{}", cluster.overview());
        let mounted = if client == "fuse" { "1\n" } else { "0\n" };
        assert_eq!(cluster.log("alice", job), mounted, "{client}");
        for node in 1..=nodes {
            assert_eq!(
                fs::read(cluster.pfs("alice").join(&out).join(format!("node{node}"))).unwrap(),
                data,
                "{client}"
            );
        }
        assert_eq!(cluster.phase(job), "done");
        cluster.assert_nothing_left(client);
    }
}

/// A job's pool on a burst buffer and a parallel file system: its data lie there, and nothing of it stays.
#[test]
fn a_job_asks_for_tiers() {
    let Some(cluster) = Cluster::start(2) else { return };
    let dir = |name: &str| {
        let path = cluster.pfs("alice").join(name);
        fs::create_dir(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(ALICE), Some(ALICE)).unwrap();
        path
    };
    let (burst, pfs) = (dir("burst"), dir("deep"));
    // What is flushed leaves the burst buffer: so it is written until some is seen there.
    let job = cluster.sbatch(
        &["-N2"],
        &format!(
            "#TIDEPOOL pool burst={} pfs={} strategy=ia no-local=yes client=preload\n\
             #NORNS stage_out pool://f lustre://alice/f\n\
             head -c 3000000 /dev/zero > $TIDEPOOL_DIR/f\n\
             until {} pool status | grep -o 'local 0 B, burst [1-9]'; do head -c 3000000 /dev/zero > $TIDEPOOL_DIR/g; done\n",
            burst.display(),
            pfs.display(),
            cluster.tidepool()
        ),
    );
    assert_eq!(cluster.wait(job).state(), "COMPLETED", "{}", cluster.overview());
    assert!(cluster.log("alice", job).starts_with("local 0 B, burst "), "{}", cluster.log("alice", job));
    assert_eq!(fs::metadata(cluster.pfs("alice/f")).unwrap().len(), 3_000_000);
    for dir in [&burst, &pfs] {
        let left: Vec<_> = fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
    let refused = cluster.try_sbatch("alice", &["--tidepool=pfs=/x strategy=fsfc"], "true\n").unwrap_err();
    assert!(refused.contains("did you mean 'fcfs'?"), "{refused}");
    cluster.assert_nothing_left("after a job with tiers");
}

/// A1: srun and salloc take the flag as sbatch does, and refuse what is wrong in it.
#[test]
fn a1_srun_and_salloc_take_the_flag_too() {
    let Some(cluster) = Cluster::start(2) else { return };
    let show = "echo $SLURMD_NODENAME > $TIDEPOOL_DIR/$SLURMD_NODENAME; sleep 1; ls $TIDEPOOL_DIR | wc -l";
    for words in [
        &["srun", "-Q", "-N2", "--tidepool=client=fuse", "--workflow-start", "sh", "-c", show][..],
        &["salloc", "-Q", "-N2", "--tidepool=client=preload", "srun", "sh", "-c", show],
    ] {
        let done = cluster.by("alice", words);
        assert!(done.status.success(), "{words:?}: {}", text(&done));
        assert_eq!(String::from_utf8_lossy(&done.stdout), "2\n2\n", "{words:?}: {}", text(&done));
        cluster.until("the job is over", || cluster.report("jobs") == serde_json::json!([]));
        cluster.assert_nothing_left(words[0]);
    }
    let refused = cluster.by("alice", &["srun", "-N1", "--tidepool=sise=1G", "true"]);
    assert!(text(&refused).contains("did you mean 'size'?"), "{}", text(&refused));
    let refused = cluster.by("alice", &["srun", "-N1", "--bb=#NORNS stage_inn a b", "true"]);
    assert!(text(&refused).contains("did you mean 'stage_in'?"), "{}", text(&refused));
}

/// A1: the same script without the flag starts no process of ours on any node.
#[test]
fn a1_without_the_flag_nothing_is_started() {
    let Some(cluster) = Cluster::start(2) else { return };
    // Whatever the hooks would start here would be found by its name.
    let body = "srun sh -c 'ls /run/tidepool/jobs; ls -d /tmp/tidepool-* 2>/dev/null; env | grep TIDEPOOL; echo done'\n";
    let job = cluster.sbatch(&["-N2"], body);
    assert_eq!(cluster.wait(job).state(), "COMPLETED");
    assert_eq!(cluster.log("alice", job), "done\ndone\n");
    assert_eq!(cluster.report("jobs-all"), serde_json::json!([]));
    cluster.assert_nothing_left("after a job without directives");
}

/// WANTS 18: a pool that cannot hold what it is asked for ends the job before it starts; so does one that is refused here.
#[test]
fn pools_that_cannot_be_had_end_the_job_with_a_reason() {
    let Some(cluster) = Cluster::with(Options { nodes: 2, nvme: Some("64M"), ..Options::default() }) else {
        return;
    };
    let job = cluster.sbatch(&["-N2"], "#TIDEPOOL pool size=10TiB\necho never\n");
    assert_eq!(cluster.wait(job).state(), "CANCELLED", "{}", cluster.overview());
    assert!(cluster.reason(job).contains("10.0 TiB"), "{}", cluster.reason(job));
    assert_eq!(cluster.log("alice", job), "");
    for (line, said) in [
        ("fs=local", "tidepool run --fs"),
        ("name=a-name-with-more-than-25-letters", "has at most 25 characters"),
    ] {
        let refused =
            cluster.try_sbatch("alice", &[], &format!("#TIDEPOOL pool {line}\ntrue\n")).unwrap_err();
        assert!(refused.contains(said), "{refused}");
    }
    cluster.assert_nothing_left("after pools that could not be had");
}

/// Fault matrix: a pool that is full gives the program EDQUOT, its results go out, and nothing is left.
#[test]
fn a_full_pool_is_the_programs_trouble() {
    let Some(cluster) = Cluster::start(2) else { return };
    let job = cluster.sbatch(
        &["-N2"],
        "#TIDEPOOL pool size=8MiB client=fuse\n#NORNS stage_out pool://kept lustre://alice/kept\n\
         echo precious > $TIDEPOOL_DIR/kept\nhead -c 20000000 /dev/zero > $TIDEPOOL_DIR/big\n",
    );
    assert_eq!(cluster.wait(job).state(), "FAILED", "{}", cluster.overview());
    assert!(cluster.log("alice", job).contains("quota exceeded"), "{}", cluster.log("alice", job));
    assert_eq!(fs::read_to_string(cluster.pfs("alice/kept")).unwrap(), "precious\n");
    assert_eq!(cluster.phase(job), "failed");
    cluster.assert_nothing_left("after a full pool");
}

/// WANTS 11: a job that is cancelled or hits its limit loses no result.
#[test]
fn results_of_a_cancelled_job_are_staged_out_of_its_pool() {
    let Some(cluster) = Cluster::start(2) else { return };
    let job = cluster.sbatch(
        &["-N2"],
        "#TIDEPOOL pool client=fuse\n#NORNS stage_out pool://f lustre://alice/f\necho precious > $TIDEPOOL_DIR/f; echo up; sleep 300\n",
    );
    cluster.until("it runs", || cluster.log("alice", job) == "up\n");
    cluster.said(&["scancel", &job.to_string()]);
    assert_eq!(cluster.wait(job).state(), "CANCELLED", "{}", cluster.overview());
    assert_eq!(fs::read_to_string(cluster.pfs("alice/f")).unwrap(), "precious\n");
    cluster.assert_nothing_left("after a cancelled job with a pool");
}

/// Fault matrix, WANTS 6: a daemon dies while the program runs. What cannot be staged out is told, and no mount and no process
/// of the pool keeps a node from the next job; the data are there when they are asked for.
#[test]
fn a_dead_daemon_strands_no_node() {
    let Some(cluster) = Cluster::start(2) else { return };
    let job = cluster.sbatch(
        &["-N2"],
        "#TIDEPOOL pool size=6MiB client=fuse placement=wide\n#NORNS stage_out pool://f lustre://alice/f\n\
         head -c 4000000 /dev/urandom > $TIDEPOOL_DIR/f; cp $TIDEPOOL_DIR/f $LUSTRE/alice/same; echo up; sleep 300\n",
    );
    cluster.until("it runs", || cluster.log("alice", job) == "up\n");
    let kill = r#"kill -9 $(sed 's/.*"daemons":\[\([0-9]*\).*/\1/' /tmp/tidepool-20001/job-*/node-*.json)"#;
    let killed = cluster.on("node2", &["sh", "-c", kill]);
    assert!(killed.status.success(), "{}", text(&killed));
    cluster.said(&["scancel", &job.to_string()]);
    cluster.wait(job);
    assert_eq!(cluster.phase(job), "stage-out-failed", "{}", cluster.overview());
    assert_eq!(cluster.said(&["sinfo", "-h", "-t", "idle", "-o", "%D"]), "2");
    let processes = cluster
        .on("node1", &["sh", "-c", "ls -d /proc/[0-9]*/exe >/dev/null; mount | grep -c tidepool-20001"]);
    assert_eq!(String::from_utf8_lossy(&processes.stdout), "0\n");
    // The daemon's files outlive it.
    cluster.resume("alice", job);
    let (result, written) =
        (fs::read(cluster.pfs("alice/f")).unwrap(), fs::read(cluster.pfs("alice/same")).unwrap());
    assert!(written.len() == 4_000_000 && result == written, "{} bytes", result.len());
    cluster.assert_nothing_left("after the resumed stage-out");
    let next = cluster.sbatch(&["-N2"], "#TIDEPOOL pool client=fuse\ndate > $TIDEPOOL_DIR/f && echo fine\n");
    assert_eq!(cluster.wait(next).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(cluster.log("alice", next), "fine\n");
}

/// A4: a pool on four nodes costs less than 2 s beyond what Slurm itself takes for a job with a burst buffer.
#[test]
fn a4_what_a_pool_costs_is_told() {
    let Some(cluster) = Cluster::start(4) else { return };
    let run = |directives: &str| {
        let began = Instant::now();
        let job = cluster.sbatch(&["-N4"], &format!("{directives}true\n"));
        cluster.wait(job);
        let report = cluster.report(&format!("job {job}"));
        (began.elapsed().as_secs_f64(), report)
    };
    let mut seconds = (Vec::new(), Vec::new());
    for _ in 0..5 {
        seconds.0.push(run("#NORNS workflow-start\n").0);
        seconds.1.push(run("#TIDEPOOL pool client=fuse\n").0);
    }
    let median = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let (without, with) = (median(seconds.0), median(seconds.1));
    println!(
        "a job on 4 nodes: {without:.2} s with an empty burst buffer, {with:.2} s with a pool: {:.2} s more",
        with - without
    );
    assert_eq!(
        fs::metadata(cluster.home("alice")).map(|meta| std::os::unix::fs::MetadataExt::uid(&meta)).unwrap(),
        ALICE
    );
    cluster.assert_nothing_left("after pools in turn");
}

/// flux-coral2#466: a hundred jobs at once whose pools want more than the nodes have for them. Each gets what it was
/// promised, in its turn.
#[test]
fn a_hundred_pools_where_few_have_room() {
    let site = "pool-capacity = \"64MiB\"\n";
    let Some(cluster) = Cluster::with(Options { nodes: 4, site, ..Options::default() }) else { return };
    let body = "#TIDEPOOL pool size=30MiB client=preload\nhead -c 25000000 /dev/zero > $TIDEPOOL_DIR/f && echo fine\n";
    let jobs: Vec<u32> = (0..100).map(|_| cluster.sbatch(&["-N1", "-n1"], body)).collect();
    let mut waited = 0;
    for job in &jobs {
        assert_eq!(
            cluster.wait(*job).state(),
            "COMPLETED",
            "{}: {}",
            cluster.reason(*job),
            cluster.overview()
        );
        assert_eq!(cluster.log("alice", *job), "fine\n");
        waited +=
            usize::from(cluster.events(*job).iter().any(|event| event.contains("the job's pools want")));
    }
    // Four processors and room for two pools on each node.
    assert!(waited > 10, "only {waited} jobs had to wait");
    // What no node ever has is told at once, and where it would do.
    let one = cluster.sbatch(&["-N1"], "#TIDEPOOL pool size=100MiB\ntrue\n");
    assert_eq!(cluster.wait(one).state(), "CANCELLED");
    assert!(cluster.reason(one).contains("ask for more nodes, or less"), "{}", cluster.reason(one));
    let two = cluster.sbatch(&["-N2"], "#TIDEPOOL pool size=100MiB\ntrue\n");
    assert_eq!(cluster.wait(two).state(), "COMPLETED", "{}", cluster.reason(two));
    // Pools that outlive their jobs have their room also while nobody uses them.
    let campaign = "#TIDEPOOL pool name=mesh lifetime=campaign size=50MiB\ntrue\n";
    assert_eq!(cluster.wait(cluster.sbatch(&["-N1", "-wnode1"], campaign)).state(), "COMPLETED");
    assert_eq!(cluster.wait(cluster.sbatch(&["-N1", "-wnode1"], campaign)).state(), "COMPLETED");
    let third = format!("#TIDEPOOL timeout stage_in=1s\n{body}").replace("pool size", "pool name=x size");
    let third =
        third.replacen("#TIDEPOOL timeout", "#NORNS stage_in lustre://alice/in x://in\n#TIDEPOOL timeout", 1);
    cluster.input("alice", "in", 10);
    let third = cluster.sbatch(&["-N1", "-wnode1"], &third);
    assert_eq!(cluster.wait(third).state(), "CANCELLED", "{}", cluster.overview());
    assert!(cluster.reason(third).contains("pool 1 (mesh) have the rest"), "{}", cluster.reason(third));
    let ended = cluster.by("alice", &[&cluster.tidepool(), "slurm", "end-pool", "mesh", "--wait"]);
    assert!(ended.status.success(), "{}", text(&ended));
    cluster.assert_nothing_left("after a hundred pools");
}
