//! Jobs with directives on a real cluster: stock Slurm, four nodes with networks and stores of their own, jobs of ordinary
//! users. What a test waits for, it waits for in Slurm's own words.

mod common;

use common::cluster::{Cluster, Options, SLURM};
use common::text;
use std::fs;
use std::os::unix::fs::MetadataExt;

const MIB: usize = 1 << 20;

/// H6, H7, H15, D2, D3, D5: data are on all nodes when the program starts, results on the shared file system when Slurm
/// has ended the job, and nothing anywhere else.
#[test]
fn h6_h7_data_come_in_and_results_go_out() {
    let Some(cluster) = Cluster::start(4) else { return };
    assert_eq!(cluster.slurmctld_runs_as(), [SLURM; 4]);
    data_come_in_and_results_go_out(&cluster);
}

/// The same with hooks that run as root.
#[test]
fn h6_h7_data_come_in_and_results_go_out_with_slurm_user_root() {
    let options = Options { nodes: 4, slurm_user: Some("root"), ..Options::default() };
    let Some(cluster) = Cluster::with(options) else { return };
    assert_eq!(cluster.slurmctld_runs_as(), [0; 4]);
    data_come_in_and_results_go_out(&cluster);
}

fn data_come_in_and_results_go_out(cluster: &Cluster) {
    let data = cluster.input("alice", "in/mesh", 3 * MIB + 17);
    let job = cluster.sbatch(
        &["-N3"],
        "#NORNS stage_in lustre://alice/in nvme0://case\n\
         #NORNS stage_out nvme0://out lustre://alice/out gather\n\
         cmp $NVME0/case/mesh $LUSTRE/alice/in/mesh && echo complete\n\
         srun -N3 sh -c 'mkdir $NVME0/out; cp $NVME0/case/mesh $NVME0/out/$SLURMD_NODENAME'\n\
         echo scratch > $NVME0/forgotten\n",
    );
    let shown = cluster.wait(job);
    assert_eq!(shown.state(), "COMPLETED", "{}", cluster.overview());
    // A3: by this word the prolog knows that it has to test the nodes.
    assert_eq!(shown.word("Comment"), "tidepool");
    assert_eq!(cluster.log("alice", job), "complete\n");
    for node in ["node1", "node2", "node3"] {
        let path = cluster.pfs("alice/out").join(node);
        assert_eq!(fs::read(&path).unwrap(), data, "{node}");
        assert_eq!(fs::metadata(&path).unwrap().uid(), common::cluster::ALICE);
    }
    assert_eq!(cluster.phase(job), "done");
    assert_eq!(
        (cluster.moved(job, "in"), cluster.moved(job, "out")),
        (3 * data.len() as u64, 3 * data.len() as u64)
    );
    let page = cluster.path("report.html");
    let site = cluster.dir().join("etc/slurm.toml").display().to_string();
    let told = cluster.on(
        "ctl",
        &[
            &cluster.tidepool(),
            "slurm",
            "report",
            &job.to_string(),
            "--site",
            &site,
            "--html",
            &page.display().to_string(),
        ],
    );
    assert!(told.status.success(), "{}", text(&told));
    assert!(fs::read_to_string(page).unwrap().contains("lustre://alice/in"));
    // What was staged in is gone; what the program wrote is its own to remove.
    for node in ["node1", "node2", "node3"] {
        let left = cluster.left_on(node);
        assert!(
            left.contains(&format!("/mnt/nvme0/out/{node}")) && !left.contains("/mnt/nvme0/case"),
            "{left}"
        );
    }
    cluster.assert_nothing_left("after the job");
}

/// H9, D2: what cannot be done is refused at submission, with line and column and what was probably meant.
#[test]
fn h9_bad_directives_are_refused_at_submission() {
    let Some(cluster) = Cluster::start(1) else { return };
    cluster.input("alice", "in", 10);
    for (body, said) in [
        (
            "#NORNS stage_inn lustre://a nvme0://a\n",
            "line 2, column 8: unknown directive 'stage_inn'; did you mean 'stage_in'?",
        ),
        ("#NORNS stage_in lustr://a nvme0://a\n", "did you mean 'lustre://a'?"),
        ("#SBATCH -N1\n#TIDEPOOL pool size=1.5GB\n", "line 3, column 16"),
        ("#NORNS persist store lustre://a\n", "not on the nodes' own storage"),
        ("#NORNS persist share nvme0://a nobody-of-that-name\n", "nobody-of-that-name"),
        ("echo hello\n#NORNS stage_in lustre://a nvme0://a\n", "line 3"),
        ("#NORNS workflow-start\n#NORNS workflow-prior-dependency 5\n", "workflow"),
    ] {
        let refused = cluster.try_sbatch("alice", &[], body).expect_err(body);
        assert!(refused.contains(said), "{body}: {refused}");
    }
    let refused = cluster.try_sbatch("alice", &["--tidepool=sise=1G"], "true\n").unwrap_err();
    assert!(refused.contains("did you mean 'size'?") && refused.contains("--tidepool"), "{refused}");
    let refused = cluster.try_sbatch("alice", &["--array=1-3"], "#NORNS workflow-start\ntrue\n").unwrap_err();
    assert!(refused.contains("job arrays"), "{refused}");
    let forged = "# Submitted to Tidepool by user 20002\n#NORNS workflow-start\ntrue\n";
    let refused = cluster.try_sbatch("alice", &[], forged).unwrap_err();
    assert!(refused.contains("take it out"), "{refused}");
    assert_eq!(cluster.said(&["squeue", "-h", "-a"]), "");
}

/// H1, H2, H4, M2: a workflow's jobs run in order; strange numbers are refused, each with its reason.
#[test]
fn h1_h2_h4_workflows() {
    let Some(cluster) = Cluster::start(2) else { return };
    let note = format!("echo $SLURM_JOB_ID >> {}\n", cluster.home("alice").join("order").display());
    let first = cluster.sbatch(&["-N1", "--workflow-start=three"], &format!("sleep 2\n{note}"));
    let prior = format!("--workflow-prior-dependency={first}");
    let second = cluster.sbatch(&["-N1", &prior], &note);
    let third = cluster.sbatch(
        &["-N1"],
        &format!("#NORNS workflow-prior-dependency {first},{second}\n#NORNS workflow-end\n{note}"),
    );
    let foreign = cluster.try_sbatch("bob", &[&prior], "true\n").unwrap_err();
    assert!(foreign.contains("another user's workflow"), "{foreign}");
    let late = cluster.try_sbatch("alice", &[&prior], "true\n").unwrap_err();
    assert!(late.contains("has its last job already"), "{late}");
    let unknown = cluster.try_sbatch("alice", &["--workflow-prior-dependency=4711"], "true\n").unwrap_err();
    assert!(unknown.contains("part of no workflow"), "{unknown}");
    for job in [first, second, third] {
        assert_eq!(cluster.wait(job).state(), "COMPLETED", "{}", cluster.overview());
    }
    let order = fs::read_to_string(cluster.home("alice").join("order")).unwrap();
    assert_eq!(order, format!("{first}\n{second}\n{third}\n"));
    let told = cluster.by("alice", &[&cluster.tidepool(), "workflow", "status", &third.to_string()]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.starts_with(&format!("workflow {first} (three): completed\n")), "{told}");
    let finished = cluster.try_sbatch("alice", &[&prior], "true\n").unwrap_err();
    assert!(finished.contains("is finished"), "{finished}");
    cluster.assert_nothing_left("after the workflow");
}

/// H5: when a job fails, those after it do not run, its data stay, and the user learns why.
#[test]
fn h5_a_failure_ends_what_follows_and_keeps_the_data() {
    let Some(cluster) = Cluster::start(2) else { return };
    let body = "#NORNS workflow-start\n#NORNS persist store nvme0://kept\nmkdir $NVME0/kept; echo precious > $NVME0/kept/f; sleep 2; exit 3\n";
    let first = cluster.sbatch(&["-N1"], body);
    let second = cluster.sbatch(&["-N1"], &format!("#NORNS workflow-prior-dependency {first}\necho never\n"));
    let third = cluster.sbatch(&["-N1"], &format!("#NORNS workflow-prior-dependency {second}\necho never\n"));
    assert_eq!(cluster.wait(first).state(), "FAILED");
    for job in [second, third] {
        assert_eq!(cluster.wait(job).state(), "CANCELLED", "{}", cluster.overview());
        assert_eq!(cluster.log("alice", job), "");
        assert_eq!(cluster.phase(job), "cancelled");
    }
    let told = cluster.by("alice", &[&cluster.tidepool(), "workflow", "status", &first.to_string()]);
    assert_eq!(told.status.code(), Some(117));
    assert!(text(&told).contains("nvme0://kept is kept on node1"), "{}", text(&told));
    assert_eq!(cluster.left_on("node1").lines().next(), Some("/mnt/nvme0/kept"));
    let late = format!("#NORNS workflow-prior-dependency {first}\ntrue\n");
    assert!(cluster.try_sbatch("alice", &[], &late).unwrap_err().contains("has failed"));
    let clean = cluster.sbatch(&["-N1", "-wnode1"], "#NORNS persist delete nvme0://kept\ntrue\n");
    assert_eq!(cluster.wait(clean).state(), "COMPLETED");
    cluster.assert_nothing_left("after the data were deleted");
}

/// H13, fault matrix: a source that is missing ends the job, with the reason in plain words, and nothing is left.
#[test]
fn h13_a_missing_source_ends_the_job() {
    let Some(cluster) = Cluster::start(2) else { return };
    let job = cluster.sbatch(&["-N2"], "#NORNS stage_in lustre://alice/nothing nvme0://in\necho never\n");
    let shown = cluster.wait(job);
    assert_eq!(shown.state(), "CANCELLED", "{}", cluster.overview());
    for said in [shown.get("AdminComment"), cluster.reason(job)] {
        assert!(said.contains("lustre://alice/nothing") && said.contains("no such file"), "{said}");
    }
    assert_eq!(cluster.log("alice", job), "");
    cluster.assert_nothing_left("after a missing source");
}

/// The user's rights count, not those of the hooks.
#[test]
fn what_a_user_may_not_read_is_not_staged() {
    let Some(cluster) = Cluster::start(1) else { return };
    cluster.input("bob", "secret", 10);
    fs::set_permissions(cluster.pfs("bob"), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    for body in [
        "#NORNS stage_in lustre://bob/secret nvme0://in\necho never\n".to_string(),
        format!(
            "#NORNS stage_in lustre://alice/in nvme0://in file:{}/secret\necho never\n",
            cluster.pfs("bob").display()
        ),
    ] {
        cluster.input("alice", "in/x", 10);
        let job = cluster.sbatch(&["-N1"], &body);
        assert_eq!(cluster.wait(job).state(), "CANCELLED", "{body}");
        assert!(cluster.reason(job).to_lowercase().contains("permission denied"), "{}", cluster.reason(job));
    }
    cluster.assert_nothing_left("after what was not permitted");
}

/// H13, fault matrix: no room on one node. All nodes are clean afterwards, and the next job gets them.
#[test]
fn h13_a_full_disk_ends_the_job_and_leaves_nothing() {
    let Some(cluster) = Cluster::with(Options { nodes: 2, nvme: Some("8M"), ..Options::default() }) else {
        return;
    };
    cluster.input("alice", "big", 12 * MIB);
    cluster.input("alice", "small", MIB);
    let body = "#NORNS stage_in lustre://alice/small nvme0://small\n#NORNS stage_in lustre://alice/big nvme0://big\necho never\n";
    let job = cluster.sbatch(&["-N2"], body);
    assert_eq!(cluster.wait(job).state(), "CANCELLED", "{}", cluster.overview());
    let why = cluster.reason(job);
    assert!(why.contains("node") && why.contains("nvme0://big") && why.contains("ENOSPC"), "{why}");
    cluster.assert_nothing_left("after a full disk");
    let next = cluster.sbatch(&["-N2"], "#NORNS stage_in lustre://alice/small nvme0://small\ntrue\n");
    assert_eq!(cluster.wait(next).state(), "COMPLETED");
}

/// H12: data that are not there when the time is over end the job, on all nodes.
#[test]
fn h12_a_timeout_of_the_stage_in_ends_the_job() {
    let Some(cluster) = Cluster::start(2) else { return };
    cluster.input("alice", "in", 64 * MIB);
    let body = "#TIDEPOOL timeout stage_in=3s\n#NORNS stage_in lustre://alice/in nvme0://in\necho never\n";
    cluster.slow_down("1MiB");
    let job = cluster.sbatch(&["-N2"], body);
    assert_eq!(cluster.wait(job).state(), "CANCELLED", "{}", cluster.overview());
    assert!(cluster.reason(job).contains("staging in had not ended after 3 s"), "{}", cluster.reason(job));
    assert_eq!(cluster.log("alice", job), "");
    cluster.assert_nothing_left("after a timeout");
}

/// H11, WANTS 9: how far staging is, and how long it will still take, stands where users look; what was learned of one job
/// tells how long the next one's takes.
#[test]
fn h11_progress_and_estimates_are_shown() {
    let Some(cluster) = Cluster::start(1) else { return };
    cluster.input("alice", "in", 9 * MIB);
    cluster.slow_down("1MiB");
    let body = "#NORNS stage_in lustre://alice/in nvme0://in\ntrue\n";
    let first = cluster.sbatch(&["-N1"], body);
    let id = first.to_string();
    let shown = || cluster.said(&["squeue", "-h", "-j", &id, "-O", "admin_comment:200"]);
    cluster.until("squeue shows it", || shown().contains("staging in: ") && shown().contains("left"));
    assert_eq!(cluster.wait(first).state(), "COMPLETED");
    let second = cluster.sbatch(&["-N1"], body);
    cluster.wait(second);
    let report = cluster.report(&format!("job {second}"));
    let estimate = report["job"]["estimate_ms"].as_u64().expect("an estimate after the first job");
    assert!((4_000..20_000).contains(&estimate), "{estimate} ms for what took nine seconds");
}

/// H14: what cannot go out stays on the nodes; the job says so, nobody who waits for it starts, and one command finishes
/// it.
#[test]
fn h14_a_failed_stage_out_keeps_the_data_and_is_resumed() {
    let Some(cluster) = Cluster::start(2) else { return };
    let out = cluster.pfs("alice/out");
    fs::create_dir(&out).unwrap();
    let body = "#NORNS workflow-start\n#NORNS stage_out nvme0://out lustre://alice/out/deep\nsleep 2; mkdir $NVME0/out; echo precious > $NVME0/out/f\n";
    let job = cluster.sbatch(&["-N1"], body);
    let next = cluster.sbatch(&["-N1"], &format!("#NORNS workflow-prior-dependency {job}\necho never\n"));
    let plain = cluster.sbatch(&["-N1", &format!("--dependency=afterok:{job}")], "echo never\n");
    let shown = cluster.wait(job);
    for said in [shown.get("SystemComment"), cluster.reason(job)] {
        assert!(said.contains("lustre://alice/out/deep") && said.contains("resume"), "{said}");
    }
    assert_eq!(cluster.phase(job), "stage-out-failed");
    for waiting in [next, plain] {
        assert_eq!(cluster.wait(waiting).state(), "CANCELLED", "{}", cluster.overview());
        assert_eq!(cluster.log("alice", waiting), "");
    }
    assert!(cluster.left_on("node1").contains("/mnt/nvme0/out/f"), "{}", cluster.left_on("node1"));
    // What was wrong is mended.
    std::os::unix::fs::chown(&out, Some(common::cluster::ALICE), Some(common::cluster::ALICE)).unwrap();
    cluster.resume("alice", job);
    assert_eq!(fs::read_to_string(out.join("deep/f")).unwrap(), "precious\n");
    assert_eq!(cluster.phase(job), "done");
    cluster.assert_nothing_left("after the resumed stage-out");
}

/// H8, H16: what is kept outlives its job; the next job runs where it is, and nothing moves.
#[test]
fn h8_h16_kept_data_are_used_in_place() {
    let Some(cluster) = Cluster::start(4) else { return };
    let body = "#NORNS workflow-start\n#NORNS persist store nvme0://case\n\
                srun sh -c 'mkdir $NVME0/case; head -c 1000000 /dev/urandom > $NVME0/case/$SLURMD_NODENAME'\n";
    let first = cluster.sbatch(&["-N2", "-wnode[3-4]"], body);
    let second = cluster.sbatch(
        &["-N2"],
        &format!(
            "#NORNS workflow-prior-dependency {first}\n#NORNS stage_in nvme0://case nvme0://case\n\
             #NORNS persist delete nvme0://case\n#NORNS workflow-end\nsrun sh -c 'hostname; ls $NVME0/case'\n"
        ),
    );
    assert_eq!(cluster.wait(first).state(), "COMPLETED");
    assert_eq!(cluster.wait(second).state(), "COMPLETED", "{}", cluster.overview());
    let mut lines: Vec<String> = cluster.log("alice", second).lines().map(String::from).collect();
    lines.sort();
    assert_eq!(lines, ["node3", "node3", "node4", "node4"]);
    assert_eq!(cluster.moved(second, "in"), 0);
    cluster.assert_nothing_left("after the data were deleted");
}

/// What `tidepool slurm kept` tells a user: places, nodes and jobs, and whether there is an end.
fn kept(cluster: &Cluster, user: &str, more: &[&str]) -> Vec<(String, usize, u64, bool)> {
    let said = cluster.by(user, &[&[&cluster.tidepool(), "slurm", "kept", "--json"], more].concat());
    assert!(said.status.success(), "{}", common::text(&said));
    let all: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    let one = |place: &serde_json::Value| {
        let shown = place["place"].as_str().unwrap().to_string();
        let nodes = place["nodes"].as_array().unwrap().len();
        (shown, nodes, place["job"].as_u64().unwrap(), place["expires"].is_u64())
    };
    all.as_array().unwrap().iter().map(one).collect()
}

/// Ends of kept data count from their job's, the last job that says so decides, one that has not run decides nothing; then
/// nodes and book forget them.
#[test]
fn kept_data_go_when_their_time_is_over() {
    let Some(cluster) = Cluster::start(2) else { return };
    let make = "srun sh -c 'mkdir -p $NVME0/mesh; echo > $NVME0/mesh/x'\n";
    let first = cluster.sbatch(&["-N2"], &format!("#NORNS persist store nvme0://mesh expires=6w\n{make}"));
    assert_eq!(cluster.wait(first).state(), "COMPLETED", "{}", cluster.overview());
    let row = |job: u32, has_end: bool| vec![("nvme0://mesh".to_string(), 2, u64::from(job), has_end)];
    assert_eq!(kept(&cluster, "alice", &[]), row(first, true));
    assert_eq!((kept(&cluster, "bob", &[]), kept(&cluster, "bob", &["--all"])), (vec![], row(first, true)));
    let at_node = || {
        let words = [&cluster.tidepool(), "stage", "--control", "--json", "persist", "list"];
        let said = cluster.on("node1", &words);
        let told: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
        told["locations"][0]["expires"].as_u64()
    };
    let end = at_node().expect("it has an end");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!((now + 42 * 86_400 - 600..=now + 42 * 86_400 + 10).contains(&end), "{end}, now {now}");
    // It keeps the place when it gets its nodes, and does not come to run.
    let fails = "#NORNS persist store nvme0://mesh\n#NORNS stage_in lustre://alice/none nvme0://in\ntrue\n";
    let failed = cluster.sbatch(&["-N2"], fails);
    assert_eq!(cluster.wait(failed).state(), "CANCELLED", "{}", cluster.overview());
    assert_eq!((at_node(), kept(&cluster, "alice", &[])), (Some(end), row(first, true)));
    let ever = cluster.sbatch(&["-N2"], &format!("#NORNS persist store nvme0://mesh\n{make}"));
    assert_eq!(cluster.wait(ever).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!((at_node(), kept(&cluster, "alice", &[])), (None, row(ever, false)));
    let soon = cluster.sbatch(&["-N2"], &format!("#NORNS persist store nvme0://mesh expires=5s\n{make}"));
    assert_eq!(cluster.wait(soon).state(), "COMPLETED", "{}", cluster.overview());
    cluster.until("the nodes' stagers have removed it", || {
        ["node1", "node2"].iter().all(|node| cluster.left_on(node).is_empty())
    });
    // The hooks' own sweep does it.
    cluster.until("the book has forgotten it", || kept(&cluster, "alice", &["--all"]).is_empty());
    let features = cluster.said(&["sinfo", "-h", "-N", "-o", "%f"]);
    assert!(!features.contains("tidepool-"), "{features}");
    cluster.assert_nothing_left("after kept data went");
}

/// What a program of bob's on the only node says that reads a file which alice keeps there.
fn bobs_cat(cluster: &Cluster, name: &str) -> String {
    let job = cluster.try_sbatch("bob", &["-N1"], &format!("cat /mnt/nvme0/mesh/{name} 2>&1\n")).unwrap();
    let shown = cluster.wait(job);
    let said = cluster.log("bob", job);
    assert_eq!(shown.state() == "COMPLETED", !said.contains("Permission denied"), "{said}");
    said
}

/// H8: what is kept is its owner's alone. Shared, it is read by the other user's programs and jobs, with what comes later; not
/// shared any more, it is not. Nobody but its owner deletes it.
#[test]
fn h8_shared_with_another_user_who_cannot_delete_it() {
    let Some(cluster) = Cluster::start(1) else { return };
    let alices = |body: &str| {
        let job = cluster.sbatch(&["-N1"], body);
        assert_eq!(cluster.wait(job).state(), "COMPLETED", "{}", cluster.overview());
        job
    };
    alices(
        "#NORNS persist store nvme0://mesh\n\
         umask 022; mkdir -p $NVME0/mesh/deep; echo precious > $NVME0/mesh/f; cp $NVME0/mesh/f $NVME0/mesh/deep\n",
    );
    assert!(bobs_cat(&cluster, "f").contains("Permission denied"));
    alices("#NORNS persist share nvme0://mesh bob\ntrue\n");
    assert_eq!(bobs_cat(&cluster, "f"), "precious\n");
    assert_eq!(bobs_cat(&cluster, "deep/f"), "precious\n");
    alices("echo more > /mnt/nvme0/mesh/deep/later\n");
    assert_eq!(bobs_cat(&cluster, "deep/later"), "more\n");
    let listed =
        cluster.on("node1", &[&cluster.tidepool(), "stage", "--control", "--json", "persist", "list"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("20002"), "{}", text(&listed));
    let steal =
        "#NORNS stage_in nvme0://mesh nvme0://mine\n#NORNS persist delete nvme0://mesh\ncat $NVME0/mine/f\n";
    let bobs = cluster.try_sbatch("bob", &["-N1"], steal).unwrap();
    assert_eq!(cluster.wait(bobs).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(cluster.log("bob", bobs), "precious\n");
    assert!(cluster.events(bobs).iter().any(|e| e.contains("nothing of this user's is kept there")));
    assert!(cluster.left_on("node1").contains("/mnt/nvme0/mesh/f"), "{}", cluster.left_on("node1"));
    // Kept once more, it stays shared; what cannot be shared is told where its owner looks.
    cluster.on("node1", &["sh", "-c", "echo x > /mnt/nvme0/mesh/roots; chmod 600 /mnt/nvme0/mesh/roots"]);
    let told = alices("#NORNS persist share nvme0://mesh bob\n#NORNS persist store nvme0://mesh\ntrue\n");
    let why = "node node1: persist nvme0://mesh: on node1: cannot share nvme0://mesh with user 20002: 'roots': it belongs to user 0";
    assert!(cluster.events(told).iter().any(|e| e.contains(why)), "{:?}", cluster.events(told));
    let report = cluster.said(&[
        &cluster.tidepool(),
        "slurm",
        "report",
        &told.to_string(),
        "--site",
        &cluster.dir().join("etc/slurm.toml").display().to_string(),
    ]);
    assert!(report.contains(why), "{report}");
    assert_eq!(bobs_cat(&cluster, "f"), "precious\n");
    alices("#NORNS persist unshare nvme0://mesh bob\ntrue\n");
    for name in ["f", "deep/f", "deep/later"] {
        assert!(bobs_cat(&cluster, name).contains("Permission denied"), "{name}");
    }
    alices("#NORNS persist delete nvme0://mesh\ntrue\n");
    cluster.assert_nothing_left("after the owner's delete");
}

/// H8: a job that ends before its program starts keeps nothing, and leaves to earlier jobs what those keep.
#[test]
fn h8_a_job_that_never_ran_keeps_nothing() {
    let Some(cluster) = Cluster::start(1) else { return };
    cluster.input("alice", "in/mesh", 1000);
    let kept = || {
        let book = tidepool_batch::Book::open(&cluster.dir().join("tidepool/jobs.db")).unwrap();
        let of = |kept: tidepool_batch::Location| (kept.place, kept.job);
        book.locations().unwrap().into_iter().map(of).collect::<Vec<_>>()
    };
    // The marks are there when the mapping turns out to be missing.
    let fails = |job: u32| {
        assert_eq!(cluster.wait(job).state(), "CANCELLED", "{}", cluster.overview());
        assert!(cluster.reason(job).contains("no-such-mapping"), "{}", cluster.reason(job));
    };
    let body = "#NORNS stage_in lustre://alice/in nvme0://new/in\n#NORNS persist store nvme0://new\n\
                #NORNS persist store nvme0://old\n#NORNS stage_out nvme0://new lustre://alice/out file:/no-such-mapping\ntrue\n";
    fails(cluster.sbatch(&["-N1"], body));
    cluster.assert_nothing_left("after a job that failed before it started");
    assert_eq!(kept(), []);
    let first = cluster
        .sbatch(&["-N1"], "#NORNS persist store nvme0://old\nmkdir $NVME0/old; echo x > $NVME0/old/x\n");
    assert_eq!(cluster.wait(first).state(), "COMPLETED", "{}", cluster.overview());
    fails(cluster.sbatch(&["-N1"], body));
    assert_eq!(kept(), [("nvme0://old".to_string(), first)]);
    assert_eq!(cluster.left_on("node1"), "/mnt/nvme0/old\n/mnt/nvme0/old/x\n");
    // Nor does one keep anything that has made nothing.
    let none = cluster
        .sbatch(&["-N1"], "#NORNS persist store nvme0://new\n#NORNS persist delete nvme0://old\ntrue\n");
    assert_eq!(cluster.wait(none).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(kept(), []);
    cluster.assert_nothing_left("after what was kept was deleted");
}

/// M2: with workflow-same-nodes the next job waits for the nodes of the one before it.
#[test]
fn m2_the_same_nodes_when_that_is_asked_for() {
    let Some(cluster) = Cluster::start(3) else { return };
    let first = cluster.sbatch(&["-N1", "-wnode3", "--workflow-start"], "true\n");
    assert_eq!(cluster.wait(first).state(), "COMPLETED");
    let prior = format!("--workflow-prior-dependency={first}");
    let second = cluster.sbatch(&["-N1", &prior, "--workflow-same-nodes"], "hostname\n");
    assert_eq!(cluster.wait(second).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(cluster.log("alice", second), "node3\n");
    let alone = cluster.try_sbatch("alice", &["--workflow-same-nodes"], "true\n").unwrap_err();
    assert!(alone.contains("the nodes of which job?"), "{alone}");
}

/// H10: entries go to nodes by the ranks in their names, and come back into one directory, the same as before.
#[test]
fn h10_scattered_by_rank_and_gathered_again() {
    let Some(cluster) = Cluster::start(3) else { return };
    let data: Vec<Vec<u8>> =
        (0..6).map(|rank| cluster.input("alice", &format!("case/processor{rank}/U"), 1000 + rank)).collect();
    let job = cluster.sbatch(
        &["-N3"],
        "#NORNS stage_in lustre://alice/case nvme0://case scatter:processor{rank}\n\
         #NORNS stage_out nvme0://case lustre://alice/back gather\n\
         srun sh -c 'echo $SLURMD_NODENAME $(ls $NVME0/case)' | sort\n",
    );
    assert_eq!(cluster.wait(job).state(), "COMPLETED", "{}", cluster.overview());
    let expected = "node1 processor0 processor1\nnode2 processor2 processor3\nnode3 processor4 processor5\n";
    assert_eq!(cluster.log("alice", job), expected);
    for (rank, data) in data.iter().enumerate() {
        assert_eq!(fs::read(cluster.pfs("alice/back").join(format!("processor{rank}/U"))).unwrap(), *data);
    }
    cluster.assert_nothing_left("after the round trip");
}

/// H16: where the nodes are busy, data move from node to node and not over the shared file system.
#[test]
fn h16_data_move_from_node_to_node_when_they_have_to() {
    let Some(cluster) = Cluster::start(4) else { return };
    let body = "#NORNS workflow-start\n#NORNS persist store nvme0://case\n\
                srun sh -c 'mkdir $NVME0/case; head -c 1000000 /dev/urandom > $NVME0/case/$SLURMD_NODENAME'\n";
    let first = cluster.sbatch(&["-N2", "-wnode[1-2]"], body);
    assert_eq!(cluster.wait(first).state(), "COMPLETED");
    let blocker = cluster.sbatch(&["-N2", "-wnode[1-2]", "--exclusive"], "sleep 60\n");
    cluster.wait_for(blocker, &["RUNNING"]);
    let second = cluster.sbatch(
        &["-N2"],
        &format!(
            "#NORNS workflow-prior-dependency {first}\n#NORNS stage_in nvme0://case nvme0://case\n\
             #NORNS stage_out nvme0://case lustre://alice/result\n#NORNS persist delete nvme0://case\n#NORNS workflow-end\n\
             srun sh -c 'hostname; ls $NVME0/case'\n"
        ),
    );
    assert_eq!(cluster.wait(second).state(), "COMPLETED", "{}", cluster.overview());
    let mut lines: Vec<String> = cluster.log("alice", second).lines().map(String::from).collect();
    lines.sort();
    assert_eq!(lines, ["node1", "node2", "node3", "node4"]);
    assert_eq!(cluster.moved(second, "in"), 2_000_000);
    assert_eq!(fs::read_dir(cluster.pfs("alice/result")).unwrap().count(), 2);
    cluster.said(&["scancel", &blocker.to_string()]);
    cluster.wait(blocker);
}

/// D4: nodes are fixed by a reservation, and data are there before the job is given to them.
#[test]
fn d4_data_are_staged_to_reserved_nodes_before_the_job_starts() {
    let Some(cluster) = Cluster::start(3) else { return };
    let data = cluster.input("alice", "in", MIB);
    let job = cluster.sbatch(
        &["-N2"],
        "#TIDEPOOL reserve\n#NORNS stage_in lustre://alice/in nvme0://in\nsrun cmp $NVME0/in $LUSTRE/alice/in && echo complete\n",
    );
    let shown = cluster.wait(job);
    assert_eq!(shown.state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(cluster.log("alice", job), "complete\n");
    let events = cluster.events(job);
    let at = |what: &str| events.iter().position(|event| event == what);
    assert!(
        at("staging-in").is_some() && at("staging-in") < at("ready") && at("ready") < at("starting"),
        "{events:?}"
    );
    assert_eq!(cluster.moved(job, "in"), 2 * data.len() as u64);
    cluster.assert_nothing_left("after the job on reserved nodes");
}

/// A job that Slurm has no nodes for yet says what it waits for, and goes on when there are some.
#[test]
fn a_job_that_is_planned_nowhere_says_so() {
    let Some(cluster) = Cluster::start(2) else { return };
    cluster.input("alice", "in", 1000);
    cluster.said(&["scontrol", "update", "NodeName=node2", "State=DRAIN", "Reason=away"]);
    let body = "#TIDEPOOL reserve\n#NORNS stage_in lustre://alice/in nvme0://in\ncmp $NVME0/in $LUSTRE/alice/in && echo same\n";
    let job = cluster.sbatch(&["-N1", "-wnode2"], body);
    let told = || cluster.show(job).get("AdminComment");
    cluster.until("what it waits for is told", || told().contains("waits until Slurm plans where it starts"));
    assert_eq!(cluster.show(job).state(), "PENDING");
    cluster.said(&["scontrol", "update", "NodeName=node2", "State=RESUME"]);
    assert_eq!(cluster.wait(job).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(cluster.log("alice", job), "same\n");
    cluster.assert_nothing_left("after a job that had no nodes");
}

/// What holds nodes for a job that waits ends when the job has them: it may want a core of a node only, and others the rest.
/// While it waits, nobody else begins there, whose job it may ever be.
#[test]
fn a_reservation_is_for_its_job_alone_and_no_longer_than_it_waits() {
    let Some(cluster) = Cluster::start(1) else { return };
    cluster.input("alice", "in", 1000);
    let go = cluster.pfs("alice/go");
    let until = format!("until [ -e {} ]; do sleep 0.1; done\n", go.display());
    let blocker = cluster.sbatch(&["-N1", "--exclusive", "-t1"], &until);
    cluster.wait_for(blocker, &["RUNNING"]);
    let body = format!("#TIDEPOOL reserve\n#NORNS stage_in lustre://alice/in nvme0://in\n{until}");
    let job = cluster.sbatch(&["-n1"], &body.replace("go ]", "end ]"));
    cluster.until("its data are there", || cluster.phase(job) == "ready");
    let held = format!("tidepool-{job}");
    let into = format!("--reservation={held}");
    let said = cluster.try_sbatch("alice", &["-n1", &into], "true\n").unwrap_err();
    assert!(said.contains(&format!("{held} holds nodes for job {job} alone")), "{said}");
    let listed = cluster.try_sbatch("alice", &["-n1", &format!("--reservation=other,{held}")], "true\n");
    assert!(listed.unwrap_err().contains("alone"));
    let other = cluster.sbatch(&["-n1"], "true\n");
    let update = ["scontrol", "update", &format!("job={other}"), &format!("ReservationName={held}")];
    let moved = cluster.by("alice", &update);
    assert!(!moved.status.success(), "{}", common::text(&moved));
    assert!(cluster.said(&["scontrol", "show", "reservation"]).contains(&held));
    fs::write(go, "").unwrap();
    cluster.wait_for(job, &["RUNNING"]);
    assert!(!cluster.said(&["scontrol", "show", "reservation"]).contains(&held));
    assert_eq!(cluster.wait(other).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(cluster.show(job).state(), "RUNNING");
    fs::write(cluster.pfs("alice/end"), "").unwrap();
    assert_eq!(cluster.wait(job).state(), "COMPLETED", "{}", cluster.overview());
    cluster.assert_nothing_left("after a job that had a reservation");
}

/// H3: with what the administrators' guide proposes, later phases grow older while they wait for earlier ones.
#[test]
fn h3_later_phases_age_from_their_submission() {
    let conf = "PriorityType=priority/multifactor\nPriorityFlags=ACCRUE_ALWAYS\nPriorityWeightAge=1000\n";
    let Some(cluster) = Cluster::with(Options { nodes: 1, conf, ..Options::default() }) else { return };
    let first = cluster.sbatch(&["-N1"], "#NORNS workflow-start\nsleep 4\n");
    let next = format!("#NORNS workflow-prior-dependency {first}\ntrue\n");
    let second = cluster.sbatch(&["-N1"], &next);
    let third = cluster.sbatch(&["-N1"], &next.replace(&first.to_string(), &second.to_string()));
    assert_eq!(cluster.wait(third).state(), "COMPLETED", "{}", cluster.overview());
    for job in [second, third] {
        let shown = cluster.show(job);
        assert_eq!(shown.word("AccrueTime"), shown.word("SubmitTime"), "{}", cluster.overview());
        assert!(shown.word("EligibleTime") > shown.word("SubmitTime"), "{}", cluster.overview());
    }
    cluster.assert_nothing_left("after phases that waited");
}

/// H11, D4: where all nodes are busy, data come to those that Slurm plans for the job while others still run there, and
/// the job starts when they end.
#[test]
fn h11_data_are_there_when_busy_nodes_become_free() {
    let Some(cluster) = Cluster::start(2) else { return };
    let data = cluster.input("alice", "in", MIB);
    // Slurm expects its end after a minute.
    let go = cluster.pfs("alice/go");
    let until = format!(
        "until [ -e {} ]; do sleep 0.1; done; cmp $NVME0/own $LUSTRE/alice/in && echo own\n",
        go.display()
    );
    let own = "#NORNS stage_in lustre://alice/in nvme0://own\n";
    let blocker = cluster.sbatch(&["-N2", "--exclusive", "-t1"], &format!("{own}{until}"));
    cluster.wait_for(blocker, &["RUNNING"]);
    let job = cluster.sbatch(
        &["-N2"],
        "#TIDEPOOL reserve\n#NORNS stage_in lustre://alice/in nvme0://in\nsrun cmp $NVME0/in $LUSTRE/alice/in && echo complete\n",
    );
    cluster.until("its data are there", || cluster.phase(job) == "ready");
    assert_eq!(cluster.show(blocker).state(), "RUNNING");
    assert_eq!(cluster.moved(job, "in"), 2 * data.len() as u64);
    fs::write(go, "").unwrap();
    assert_eq!(cluster.wait(blocker).state(), "COMPLETED", "{}", cluster.overview());
    // The same user's next data are nothing that the job before has left behind.
    assert_eq!(cluster.wait(job).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(cluster.log("alice", job), "complete\n");
    assert_eq!(cluster.log("alice", blocker), "own\n");
    assert_eq!(cluster.moved(job, "in"), 2 * data.len() as u64);
    // Later jobs learn from it: the plan was the blocker's limit, and the job could start before, when all was there.
    let book = tidepool_batch::Book::open(&cluster.dir().join("tidepool/jobs.db")).unwrap();
    let learned = book.stagings_ahead(9).unwrap();
    let [staging] = &learned[..] else { panic!("{learned:?}") };
    assert!(staging.began + staging.took_ms / 1000 <= staging.start, "{staging:?}");
    let (at, planned) = staging.looks[0];
    assert!(at <= staging.began && staging.start < planned && planned <= at + 120, "{staging:?}");
    cluster.assert_nothing_left("after the job on nodes that were busy");
}

/// Fault matrix: a user may end a job at any time, with one command, and nothing is left.
#[test]
fn one_scancel_is_enough_in_each_state() {
    let Some(cluster) = Cluster::start(2) else { return };
    cluster.input("alice", "in", MIB);
    let staging =
        "#NORNS stage_in lustre://alice/in nvme0://in\n#NORNS stage_out nvme0://in lustre://alice/out\n";
    let blocker = cluster.sbatch(&["-N2", "--exclusive"], "sleep 300\n");
    cluster.wait_for(blocker, &["RUNNING"]);
    let pending = cluster.sbatch(&["-N2"], &format!("{staging}echo never\n"));
    cluster.until("it is looked at", || cluster.phase(pending) == "checked");
    cluster.said(&["scancel", &pending.to_string()]);
    assert_eq!(cluster.wait(pending).state(), "CANCELLED");
    assert_eq!(cluster.phase(pending), "cancelled");
    let reserving = cluster.sbatch(&["-N2"], &format!("#TIDEPOOL reserve\n{staging}echo never\n"));
    // Slurm expects the blocker to end in an hour: staging would begin a little earlier.
    cluster.until("it waits for its time", || {
        cluster.events(reserving).iter().any(|e| e.contains("expected start"))
    });
    cluster.said(&["scancel", &reserving.to_string()]);
    assert_eq!(cluster.wait(reserving).state(), "CANCELLED", "{}", cluster.overview());
    cluster.said(&["scancel", &blocker.to_string()]);
    cluster.wait(blocker);
    cluster.assert_nothing_left("after jobs that were cancelled before they started");
    let running = cluster.sbatch(&["-N2"], &format!("{staging}echo up; sleep 300\n"));
    cluster.until("it runs", || cluster.log("alice", running) == "up\n");
    cluster.said(&["scancel", &running.to_string()]);
    assert_eq!(cluster.wait(running).state(), "CANCELLED");
    // What it had is staged out all the same.
    assert_eq!(fs::read(cluster.pfs("alice/out")).unwrap(), fs::read(cluster.pfs("alice/in")).unwrap());
    cluster.assert_nothing_left("after a job that was cancelled while it ran");
}

/// The commands of both guides, as they stand there: `$ ` is a user's, `# ` an administrator's; files are those that the
/// guide shows under their names.
#[test]
fn the_guides_commands_work() {
    let Some(cluster) = Cluster::start(2) else { return };
    cluster.input("alice", "input", 1000);
    let path = format!("PATH={}:/usr/sbin:/usr/bin:/sbin:/bin", cluster.path("bin").display());
    let dir = cluster.dir().display().to_string();
    let mut count = 0;
    for guide in ["slurm-user.md", "slurm-admin.md"] {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide").join(guide);
        let text = fs::read_to_string(page).unwrap();
        for block in text.split("```").skip(1).step_by(2) {
            let (head, body) = block.split_once('\n').unwrap();
            if let Some(name) = head.strip_prefix("bash ") {
                fs::write(cluster.home("alice").join(name), body).unwrap();
                continue;
            }
            for line in body.lines().filter(|_| head == "text") {
                let (who, command) = match line.split_at_checked(2) {
                    Some(("$ ", command)) => ("alice", command),
                    Some(("# ", command)) => ("root", command),
                    _ => continue,
                };
                // Its output is shown, and what it shows is wrong on purpose.
                if command == "tidepool slurm lint job.sh" {
                    continue;
                }
                let command = command
                    .replace("/etc/slurm", &dir)
                    .replace("/etc/tidepool", &format!("{dir}/etc"))
                    .replace("/usr/local/libexec/tidepool", &format!("{dir}/libexec"));
                let home = cluster.home("alice").display().to_string();
                let script = format!("cd {home} && {command}");
                let words = ["env", &path, "sh", "-c", &script];
                let done = if who == "root" { cluster.on("ctl", &words) } else { cluster.by(who, &words) };
                assert!(done.status.success(), "{guide}: {line}: {}", common::text(&done));
                count += 1;
            }
        }
    }
    assert!(count >= 15, "the guides show {count} commands");
    assert!(cluster.home("alice").join("report.html").exists());
    cluster.assert_nothing_left("after the guides");
}

/// A job that has ended runs once more when its owner queues it again, with all its staging.
#[test]
fn a_job_may_be_queued_again_when_it_has_ended() {
    let Some(cluster) = Cluster::start(1) else { return };
    let data = cluster.input("alice", "in", 1000);
    let body = "#NORNS stage_in lustre://alice/in nvme0://in\n#NORNS stage_out nvme0://out lustre://alice/out\n\
        cp $NVME0/in $NVME0/out; echo run\n";
    let job = cluster.sbatch(&["-N1", "--requeue", "--open-mode=append"], body);
    cluster.wait(job);
    assert_eq!(cluster.phase(job), "done");
    fs::remove_file(cluster.pfs("alice/out")).unwrap();
    let id = job.to_string();
    let done = cluster.by("alice", &["scontrol", "requeue", &id]);
    assert!(done.status.success(), "{}", common::text(&done));
    let report = || {
        let done = cluster.by("alice", &[&cluster.tidepool(), "slurm", "report", &id]);
        String::from_utf8(done.stdout).unwrap().lines().next().unwrap_or_default().to_string()
    };
    let first = report();
    assert!(first.starts_with(&format!("job {id}: queued again; its attempt before was done")), "{first}");
    cluster.said(&["scontrol", "update", &format!("JobId={id}"), "StartTime=now"]);
    cluster.until("it has run again", || cluster.log("alice", job) == "run\nrun\n");
    assert_eq!(cluster.wait(job).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(cluster.phase(job), "done", "{}", cluster.reason(job));
    assert_eq!(fs::read(cluster.pfs("alice/out")).unwrap(), data);
    assert_eq!(report(), format!("job {id}: done"));
    cluster.assert_nothing_left("after a job that ran twice");
}

/// A3: a node that fails the test is drained, with the reason, before the job's program starts there; the job runs on
/// another one. Jobs that did not ask for Tidepool are not tested.
#[test]
fn a3_an_unfit_node_is_drained_and_the_job_goes_elsewhere() {
    let Some(cluster) = Cluster::start(2) else { return };
    cluster.input("alice", "in", 1000);
    let done = cluster.on("node1", &["mount", "-o", "remount,ro", "/tmp"]);
    assert!(done.status.success(), "{}", common::text(&done));
    let plain = cluster.sbatch(&["-N1", "-w", "node1"], "echo fine\n");
    assert_eq!(cluster.wait(plain).state(), "COMPLETED", "{}", cluster.overview());
    let body = "#NORNS stage_in lustre://alice/in nvme0://in\ntest -s $NVME0/in && hostname\n";
    let job = cluster.sbatch(&["-N1", "--requeue"], body);
    cluster.until("the node is drained", || {
        cluster.said(&["sinfo", "-h", "-t", "drain", "-o", "%N"]) == "node1"
    });
    let reason = cluster.said(&["sinfo", "-h", "-R", "-o", "%200E"]);
    assert!(reason.contains("/tmp") && reason.contains("Read-only"), "{reason}");
    // Slurm lets two minutes go by before it starts a job again.
    cluster.until("it is queued again", || cluster.show(job).word("Restarts") == "1");
    cluster.said(&["scontrol", "update", &format!("JobId={job}"), "StartTime=now"]);
    assert_eq!(cluster.wait(job).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(cluster.log("alice", job), "node2\n");
    let done = cluster.on("node1", &["mount", "-o", "remount,rw", "/tmp"]);
    assert!(done.status.success(), "{}", common::text(&done));
    cluster.said(&["scontrol", "update", "NodeName=node1", "State=RESUME"]);
    cluster.assert_nothing_left("after an unfit node");
}

/// The first component of a heterogeneous job has directives; in others they are refused.
#[test]
fn the_first_component_of_a_heterogeneous_job_has_directives() {
    let Some(cluster) = Cluster::start(3) else { return };
    cluster.input("alice", "in", 1000);
    let first = "#SBATCH -N1 --exclusive\n#NORNS stage_in lustre://alice/in nvme0://in\n#SBATCH hetjob\n#SBATCH -N2 --exclusive\n";
    let body = "srun --het-group=0,1 sh -c 'echo $SLURMD_NODENAME $(ls $NVME0)' | sort\n";
    let job = cluster.sbatch(&[], &format!("{first}{body}"));
    assert_eq!(cluster.wait(job).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(cluster.log("alice", job), "node1 in\nnode2\nnode3\n");
    let wrong = format!("{first}#NORNS stage_in lustre://alice/in nvme0://in\n{body}");
    let said = cluster.try_sbatch("alice", &[], &wrong).unwrap_err();
    assert!(said.contains("only the first component of a job may have directives"), "{said}");
    cluster.assert_nothing_left("after a heterogeneous job");
}

/// The pool is the first component's: in others no variable names it, for whatever looked there would find nothing, or another's.
#[test]
fn other_components_of_a_heterogeneous_job_have_no_pool() {
    let Some(cluster) = Cluster::start(3) else { return };
    let first = "#SBATCH -N1\n#TIDEPOOL pool size=20MiB\n#SBATCH hetjob\n#SBATCH -N2\n";
    let each = "srun --het-group=0,1 sh -c 'echo $SLURMD_NODENAME; env | grep -E \"^TIDEPOOL.*(DIR|POOL|HOSTFILE)=\"; test -z \"$TIDEPOOL_DIR\" || ls -d $TIDEPOOL_DIR' > all 2> told\n";
    let body = format!(
        "{first}cd $HOME\n{each}grep -c 'has not the job' told; sort all | uniq -c | grep node; grep -c TIDEPOOL_DIR= all\n"
    );
    let job = cluster.sbatch(&[], &body);
    assert_eq!(cluster.wait(job).state(), "COMPLETED", "{}", cluster.overview());
    let log = cluster.log("alice", job);
    let words: Vec<&str> = log.split_whitespace().collect();
    assert_eq!(words, ["2", "1", "node1", "1", "node2", "1", "node3", "1"], "{log}");
    cluster.assert_nothing_left("after a heterogeneous job with a pool");
}

/// A step that srun starts inside a pool runs there, through either door: Slurm itself puts its tasks into /tmp, where nobody
/// looks for results. Where a task cannot run there it fails.
#[test]
fn tasks_run_where_srun_was_started() {
    let Some(cluster) = Cluster::start(2) else { return };
    for door in ["fuse", "preload"] {
        let job = cluster.sbatch(
            &["-N2"],
            &format!(
                "#TIDEPOOL pool size=64MiB client={door}\n#NORNS stage_out pool://d lustre://alice/{door}\n\
                 cd $TIDEPOOL_DIR && mkdir -p d/e && cd d || exit 9\n\
                 srun sh -c 'pwd > cwd-$SLURMD_NODENAME'\n\
                 (cd e && srun -N1 -n1 sh -c 'echo > below')\n\
                 srun -N1 --chdir=$TIDEPOOL_DIR/d/e sh -c 'echo > asked'; echo asked $?\n\
                 srun -N1 sh -c 'echo > dashed' sh -D $TIDEPOOL_DIR/d/e; echo dashed $?\n\
                 cd /; srun -N1 -D $TIDEPOOL_DIR/d/e sh -c 'echo > asked-from-outside'; echo from outside $?\n\
                 srun -N1 pwd; srun -N1 --chdir=/usr pwd\n"
            ),
        );
        let shown = cluster.wait(job);
        let log = cluster.log("alice", job);
        assert_eq!(shown.state(), "COMPLETED", "{door}: {log}{}", cluster.overview());
        let said: Vec<&str> =
            log.lines().filter(|line| !line.contains("slurmstepd") && !line.contains("srun:")).collect();
        // The library is told of its directory by srun's own, so that one that was started elsewhere cannot say it.
        let outside = if door == "fuse" { "from outside 0" } else { "from outside 1" };
        let asked = if door == "fuse" { "asked 0" } else { "asked 1" };
        assert_eq!(said, [asked, "dashed 0", outside, "/", "/usr"], "{door}: {log}");
        assert_eq!(log.contains("this task was to run in"), door == "preload", "{door}: {log}");
        let names = |path: &str| {
            let mut names: Vec<String> = fs::read_dir(cluster.pfs(path))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
                .collect();
            names.sort();
            names.join(" ")
        };
        assert_eq!(names(&format!("alice/{door}")), "cwd-node1 cwd-node2 dashed e", "{door}: {log}");
        let below = if door == "fuse" { "asked asked-from-outside below" } else { "below" };
        assert_eq!(names(&format!("alice/{door}/e")), below, "{door}: {log}");
        let cwd = fs::read_to_string(cluster.pfs("alice").join(door).join("cwd-node2")).unwrap();
        assert!(cwd.trim().ends_with("/mnt/d"), "{door}: {cwd}");
    }
    cluster.assert_nothing_left("after steps in pools");
}

/// The same where a user starts the pool himself, in an allocation.
#[test]
fn tasks_of_a_run_in_an_allocation_run_in_its_pool() {
    let Some(cluster) = Cluster::start(2) else { return };
    for door in ["fuse", "preload"] {
        let out = format!("/r:{}", cluster.pfs("alice").join(door).display());
        let program = "mkdir r && cd r && srun sh -c 'echo > from-$SLURMD_NODENAME'; ls";
        let tidepool = cluster.tidepool();
        let words =
            ["salloc", "-Q", "-N2", &tidepool, "run", "--client", door, "--require", "--out", &out, "--"];
        let done = cluster.by("alice", &[&words[..], &["sh", "-c", program]].concat());
        assert!(done.status.success(), "{door}: {}", text(&done));
        for node in ["node1", "node2"] {
            assert!(
                cluster.pfs("alice").join(door).join(format!("from-{node}")).exists(),
                "{door}: {}",
                text(&done)
            );
        }
    }
}

/// Nobody can want a result of a program that failed before it had one; of one that did well it is missing.
#[test]
fn results_that_a_failed_program_had_not_made() {
    let Some(cluster) = Cluster::start(1) else { return };
    let body = |place: &str, program: &str| {
        format!("#NORNS stage_out nvme0://{place} lustre://alice/none\n{program}\n")
    };
    let failed = cluster.sbatch(&["-N1"], &body("one", "exit 3"));
    let missing = cluster.sbatch(&["-N1"], &body("two", "true"));
    cluster.wait(failed);
    cluster.wait(missing);
    assert_eq!(cluster.phase(failed), "failed", "{:?}", cluster.events(failed));
    assert!(cluster.events(failed).iter().any(|event| event.contains("ended before it made it")));
    assert_eq!(cluster.phase(missing), "stage-out-failed", "{:?}", cluster.events(missing));
    let done =
        cluster.by("alice", &[&cluster.tidepool(), "slurm", "discard", &missing.to_string(), "--wait"]);
    assert!(done.status.success(), "{}", text(&done));
    cluster.assert_nothing_left("after results that were not made");
}

/// Results that were written elsewhere are told of where their owner looks: Slurm calls the job completed.
#[test]
fn a_result_without_a_file_is_told() {
    let Some(cluster) = Cluster::start(2) else { return };
    let body = |name: &str, program: &str| {
        format!(
            "#NORNS stage_out nvme0://out lustre://alice/{name} gather\nsrun mkdir $NVME0/out\n{program}\n"
        )
    };
    let empty = cluster.sbatch(&["-N2"], &body("empty", "echo result > $NVME0/elsewhere"));
    cluster.wait(empty);
    let full = cluster.sbatch(&["-N2"], &body("full", "echo result > $NVME0/out/f"));
    cluster.wait(full);
    let told = |job| cluster.events(job).join("\n");
    assert!(told(empty).contains("stage-out of nvme0://out brought no file"), "{}", told(empty));
    assert!(!told(full).contains("brought no file"), "one node has a file: {}", told(full));
    assert_eq!(cluster.phase(empty), "done");
    for node in cluster.names() {
        cluster.on(&node, &["rm", "-f", "/mnt/nvme0/elsewhere"]);
    }
    cluster.assert_nothing_left("after a result without a file");
}
