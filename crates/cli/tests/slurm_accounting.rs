//! Jobs with directives where Slurm keeps accounts: slurmdbd, with a database of the test's own.

mod common;

use common::cluster::{Cluster, Options};
use common::text;
use std::path::Path;

/// Why a job could not start is known as long as Slurm's accounts are, and hooks do with accounts what they do without.
#[test]
fn d3_accounts_tell_why_a_job_could_not_start() {
    if std::env::var("TIDEPOOL_SLURM").map_or(true, |value| value != "full") {
        println!("SKIPPED: makes a database; TIDEPOOL_SLURM=full, or make test-slurm");
        return;
    }
    for program in ["/usr/sbin/slurmdbd", "/usr/sbin/mariadbd"] {
        if !Path::new(program).exists() {
            println!("SKIPPED: there is no {program}; run 'scripts/install-packages slurm-accounting' first");
            return;
        }
    }
    let Some(cluster) = Cluster::with(Options { nodes: 2, accounting: true, ..Options::default() }) else {
        return;
    };
    assert!(cluster.said(&["scontrol", "show", "config"]).contains("accounting_storage/slurmdbd"));
    let data = cluster.input("alice", "in", 100_000);
    let good = cluster.sbatch(
        &["-N2", "--tidepool=size=100MiB"],
        "#NORNS stage_in lustre://alice/in pool://in\n#NORNS stage_out pool://out lustre://alice/out\n\
         cp $TIDEPOOL_DIR/in $TIDEPOOL_DIR/out; sleep 2 # What ends in its first second ran for none, say accounts.\n",
    );
    assert_eq!(cluster.wait(good).state(), "COMPLETED", "{}", cluster.overview());
    assert_eq!(std::fs::read(cluster.pfs("alice/out")).unwrap(), data);
    let bad = cluster.sbatch(&["-N1"], "#NORNS stage_in lustre://alice/in nvme0://in\n#NORNS stage_out nvme0://in lustre://alice/out file:/no-such-mapping\ntrue\n");
    assert_eq!(cluster.wait(bad).state(), "CANCELLED", "{}", cluster.overview());
    // What sacct says: state, then comment.
    let account = |job: u32| {
        let job = job.to_string();
        let done = cluster.by("alice", &["sacct", "-n", "-X", "-P", "-j", &job, "-o", "State,AdminComment"]);
        assert!(done.status.success(), "{}", text(&done));
        String::from_utf8_lossy(&done.stdout).trim().to_string()
    };
    // slurmctld hands its accounts over from time to time.
    cluster.until("the accounts have the job", || account(good).starts_with("COMPLETED|"));
    cluster.until("the accounts have the other job", || account(bad).starts_with("CANCELLED"));
    // What was said of it while its data came in is not what is kept.
    cluster.until("the accounts say what came out", || {
        account(good) == "COMPLETED|tidepool: staged out 1 file, 100000 bytes"
    });
    let told = account(bad);
    assert!(told.contains("|tidepool: ") && told.contains("no-such-mapping"), "{told}");
    // And in a log of jobs, in both of its forms: the one that ran is there, the other was cancelled before it did.
    // By number: a job that was never eligible is in no period of time.
    let both = format!("{good},{bad}");
    for form in [&["--parsable2", "--format=ALL"][..], &["--json"]] {
        let table = cluster.said(&[&["sacct", "-a", "-j", &both], form].concat());
        let table = tidepool_joblog::read(table.as_bytes(), &Default::default()).expect("Slurm writes it");
        let ran: Vec<_> = table.jobs.iter().map(|job| (job.number, job.status, job.processors)).collect();
        assert_eq!(ran, [(good.into(), tidepool_joblog::Status::Completed, 2)], "{form:?}");
        assert_eq!((table.repairs.never_ran, table.repairs.unreadable), (1, 0), "{form:?}");
    }
    // Jobs go on while there is nobody to keep accounts.
    let pid = std::fs::read_to_string(cluster.dir().join("run/slurmdbd.pid")).unwrap();
    cluster.said(&["kill", pid.trim()]);
    let alone = cluster
        .sbatch(&["-N1"], "#NORNS stage_in lustre://alice/in nvme0://in\ncmp $NVME0/in $LUSTRE/alice/in\n");
    assert_eq!(cluster.wait(alone).state(), "COMPLETED", "{}", cluster.overview());
    cluster.assert_nothing_left("after jobs with accounts");
}
