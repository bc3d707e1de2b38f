//! Slurm's hooks as the user `slurm`, who is not root on the controller and has a key that is not an administrator's: whole jobs, what
//! `tidepool slurm install --check` says, and what whoever has become that user gets.

mod common;

use common::cluster::{ALICE, Cluster, Options, SLURM};
use common::text;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Output;

const MIB: usize = 1 << 20;
/// Something is not as it has to be.
const UNFIT: i32 = 115;

fn etc(cluster: &Cluster, name: &str) -> PathBuf {
    cluster.dir().join("etc").join(name)
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn check(cluster: &Cluster) -> Output {
    let (dir, site) = (shown(&cluster.dir()), shown(&etc(cluster, "slurm.toml")));
    let libexec = format!("{dir}/libexec");
    let tidepool = cluster.tidepool();
    let words =
        ["slurm", "install", "--check", "--json", "--conf-dir", &dir, "--libexec", &libexec, "--site", &site];
    cluster.on("ctl", &[&[tidepool.as_str()], &words[..]].concat())
}

/// What is said of the thing whose name has this in it, and its level.
fn found(done: &Output, what: &str) -> (bool, bool, String) {
    let told: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|_| panic!("{}", text(done)));
    let all = told["findings"].as_array().unwrap();
    let of = |finding: &&Value| finding["what"].as_str().unwrap().contains(what);
    let finding = all.iter().find(of).unwrap_or_else(|| panic!("{what}: {told:#}"));
    let words = format!("{} {}", finding["trouble"].as_str().unwrap(), finding["advice"].as_str().unwrap());
    (finding["well"].as_bool().unwrap(), finding["warning"].as_bool().unwrap(), words)
}

#[track_caller]
fn is_well(cluster: &Cluster) {
    let done = check(cluster);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let told: Value = serde_json::from_slice(&done.stdout).unwrap();
    let warned = told["findings"].as_array().unwrap().iter().any(|finding| finding["warning"] == true);
    assert!(told["well"] == true && !warned, "{told:#}");
}

/// `what` is not as it has to be; the trouble and what to do about it have these words.
#[track_caller]
fn is_unfit(cluster: &Cluster, what: &str, words: &[&str]) {
    let done = check(cluster);
    assert_eq!(done.status.code(), Some(UNFIT), "{}", text(&done));
    let (well, _, said) = found(&done, what);
    assert!(!well && words.iter().all(|word| said.contains(word)), "{what}: {said}");
}

fn mode(path: &Path, bits: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(bits)).unwrap();
}

fn all_in(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        all.extend(if entry.is_dir() { all_in(&entry) } else { Vec::new() });
        all.push(entry);
    }
    all
}

/// Data come in from the parallel file system as a mapping file says that only the user can read, a pool holds some of them, results of
/// both go out.
#[test]
fn a_job_runs_to_its_end_with_hooks_of_slurm() {
    let Some(cluster) = Cluster::start(2) else { return };
    assert_eq!(cluster.slurmctld_runs_as(), [SLURM; 4]);
    is_well(&cluster);
    let data = cluster.input("alice", "in/mesh", 2 * MIB + 5);
    cluster.input("alice", "in/field", MIB);
    let mapping = cluster.pfs("alice/mapping");
    fs::write(&mapping, "mesh node1\nfield node2\n").unwrap();
    chown(&mapping, Some(ALICE), Some(ALICE)).unwrap();
    mode(&mapping, 0o600);
    let job = cluster.sbatch(
        &["-N2"],
        &format!(
            "#TIDEPOOL pool size=64MiB client=fuse\n\
             #NORNS stage_in lustre://alice/in nvme0://case file:{}\n\
             #NORNS stage_in lustre://alice/in/mesh pool://mesh\n\
             #NORNS stage_out pool://out lustre://alice/out\n\
             #NORNS persist store nvme0://kept\n\
             srun sh -c 'ls $NVME0/case'\n\
             cmp $NVME0/case/mesh $TIDEPOOL_DIR/mesh && cp $TIDEPOOL_DIR/mesh $TIDEPOOL_DIR/out\n\
             echo x > $NVME0/kept\n",
            mapping.display()
        ),
    );
    let ended = cluster.wait(job);
    assert_eq!(ended.state(), "COMPLETED", "{}", cluster.overview());
    cluster.until("the job is done", || cluster.phase(job) == "done");
    let mut names: Vec<String> = cluster.log("alice", job).lines().map(String::from).collect();
    names.sort();
    assert_eq!(names, ["field", "mesh"], "each node its own");
    assert_eq!(fs::read(cluster.pfs("alice/out")).unwrap(), data);
    assert_eq!(fs::metadata(cluster.pfs("alice/out")).unwrap().uid(), ALICE);
    // It was slurm who did it: all of the book is his, and nobody else gets into it.
    let book = cluster.dir().join("tidepool");
    assert_eq!(fs::metadata(&book).unwrap().mode() & 0o7777, 0o700);
    // Root looks at it, and tidies up, without leaving anything of his there.
    let (tidepool, site) = (cluster.tidepool(), shown(&etc(&cluster, "slurm.toml")));
    let jobs = cluster.said(&[&tidepool, "slurm", "jobs", "--all", "--site", &site]);
    assert!(jobs.contains(" done "), "{jobs}");
    fs::remove_file(book.join("sweep.lock")).unwrap();
    cluster.said(&[&tidepool, "slurm", "sweep", "--site", &site]);
    let foreign: Vec<PathBuf> = all_in(&book)
        .into_iter()
        .filter(|path| fs::metadata(path).is_ok_and(|meta| meta.uid() != SLURM))
        .collect();
    assert_eq!(foreign, Vec::<PathBuf>::new());
    assert!(book.join("sweep.lock").exists() && book.join("jobs.db").exists());
    let log = fs::read_to_string(cluster.dir().join("log/stager-node1.log")).unwrap();
    assert!(
        log.contains(&format!(
            "audit: controller of another node: RegisterJobOf job {job} of user {ALICE}: done"
        )),
        "{log}"
    );
    is_well(&cluster);
}

/// What is missing is named, with who it has to belong to.
#[test]
fn check_names_what_the_hooks_user_lacks() {
    let Some(cluster) = Cluster::start(1) else { return };
    assert_eq!(cluster.slurmctld_runs_as(), [SLURM; 4]);
    is_well(&cluster);
    let (book, secret, site) =
        (cluster.dir().join("tidepool"), etc(&cluster, "controller.secret"), etc(&cluster, "slurm.toml"));
    // The job book is root's. Then hooks say so as well, and no job is taken that nobody would look after.
    chown(&book, Some(0), Some(0)).unwrap();
    is_unfit(&cluster, "the job book", &["belongs to user 0, not to slurm", "chown -R slurm"]);
    let said = cluster
        .try_sbatch("alice", &["-N1"], "#NORNS stage_in lustre://alice/in nvme0://in\ntrue\n")
        .unwrap_err();
    assert!(!said.is_empty());
    chown(&book, Some(SLURM), Some(SLURM)).unwrap();
    mode(&book, 0o755);
    is_unfit(&cluster, "the job book", &["others get into it", "chmod 700"]);
    mode(&book, 0o700);
    let roots = book.join("pool-9.lock");
    fs::write(&roots, "").unwrap();
    is_unfit(&cluster, "the job book", &["pool-9.lock in it is not slurm's", "chown -R slurm"]);
    fs::remove_file(&roots).unwrap();
    fs::rename(&book, cluster.dir().join("away")).unwrap();
    is_unfit(&cluster, "the job book", &["No such file", "install -d -o slurm -m 700"]);
    fs::rename(cluster.dir().join("away"), &book).unwrap();
    // The secret cannot be read, or too many can read it.
    chown(&secret, Some(0), Some(0)).unwrap();
    is_unfit(&cluster, "controller.secret", &["Permission denied", "chown slurm", "chmod 600"]);
    chown(&secret, Some(SLURM), Some(SLURM)).unwrap();
    mode(&secret, 0o640);
    is_unfit(&cluster, "controller.secret", &["others can read it", "chmod 600"]);
    mode(&secret, 0o600);
    mode(&site, 0o600);
    is_unfit(&cluster, "slurm.toml", &["Permission denied", "0644"]);
    mode(&site, 0o644);
    is_well(&cluster);
    // Stagers that do not know the key, or know it for more than it needs.
    let stager = etc(&cluster, "stager-node1.toml");
    let right = fs::read_to_string(&stager).unwrap();
    let known_as = |text: &str| {
        fs::write(&stager, text).unwrap();
        cluster.control(&["stager", "kill", "node1"]);
        cluster.control(&["stager", "start", "node1"]);
        cluster.until("the stager is up", || {
            let up = cluster.on("node1", &[&cluster.tidepool(), "stage", "--control", "status"]);
            up.status.success()
        });
    };
    known_as(&right.replace("controllers = ", "# controllers = "));
    is_unfit(&cluster, "stager of node1", &["'controllers'"]);
    known_as(&right.replace("controllers = ", "admins = "));
    let done = check(&cluster);
    assert_eq!(done.status.code(), Some(0), "it works: {}", text(&done));
    let (well, warning, said) = found(&done, "stager of node1");
    assert!(well && warning && said.contains("administrator's") && said.contains("'controllers'"), "{said}");
    // Nobody would find what is staged in where a job's $NVME0 leads.
    known_as(&right.replace("mount = \"/mnt/nvme0\"", "mount = \"/mnt\""));
    is_unfit(&cluster, "stager of node1", &["nvme0:// is at /mnt there", "/mnt/nvme0"]);
    known_as(&right.replace("kind = \"shared\"", "kind = \"local\""));
    is_unfit(&cluster, "stager of node1", &["lustre:// is local there", "shared"]);
    known_as(&right);
    is_well(&cluster);
    let away = cluster.dir().join("pfs-away");
    fs::rename(cluster.pfs(""), &away).unwrap();
    is_unfit(&cluster, "stager of node1", &["lustre://", "no such file", "make or mount"]);
    fs::rename(&away, cluster.pfs("")).unwrap();
    is_well(&cluster);
    let site = etc(&cluster, "slurm.toml");
    let text = fs::read_to_string(&site).unwrap();
    fs::write(&site, text.replace("pool-store = \"/mnt/nvme0\"", "pool-store = \"/mnt/nvme0/pools\""))
        .unwrap();
    is_unfit(&cluster, "stager of node1", &["pool-store /mnt/nvme0/pools", "no such file", "make or mount"]);
    fs::write(&site, text).unwrap();
    is_well(&cluster);
    // A user who does not exist, and root, whose nothing of this is.
    let conf = cluster.dir().join("slurm.conf");
    let text = fs::read_to_string(&conf).unwrap();
    fs::write(&conf, text.replace("SlurmUser=slurm", "SlurmUser=slrum")).unwrap();
    is_unfit(&cluster, "SlurmUser=slrum", &["no user 'slrum'"]);
    fs::write(&conf, text.replace("SlurmUser=slurm", "SlurmUser=root")).unwrap();
    is_unfit(&cluster, "the job book", &["belongs to user 20003, not to root"]);
    fs::write(&conf, &text).unwrap();
}

#[test]
fn check_is_content_with_root_as_well() {
    let options = Options { nodes: 1, slurm_user: Some("root"), ..Options::default() };
    let Some(cluster) = Cluster::with(options) else { return };
    assert_eq!(cluster.slurmctld_runs_as(), [0; 4]);
    is_well(&cluster);
}

/// Whoever has become slurm has his key, and all that the hooks have. Root's data, and the stagers, are not his.
#[test]
fn who_has_become_slurm_is_not_root_on_the_nodes() {
    let Some(cluster) = Cluster::start(1) else { return };
    let (tidepool, secret) = (cluster.tidepool(), shown(&etc(&cluster, "controller.secret")));
    let as_slurm = |words: &[&str]| {
        let way = ["stage", "--at", "node1:42000", "--secret-file", &secret];
        cluster.by("slurm", &[&[tidepool.as_str()], &way[..], words].concat())
    };
    let held = cluster.pfs("roots");
    fs::write(&held, "root's").unwrap();
    mode(&held, 0o600);
    let look = as_slurm(&["dataspace", "list"]);
    assert!(look.status.success(), "{}", text(&look));
    for words in [
        &["submit", "copy", "lustre://roots", "nvme0://x"][..],
        &["submit", "--on-behalf", "0:0:0", "copy", "lustre://roots", "nvme0://x"],
        &["submit", "--on-behalf", "20001:0:0", "copy", "lustre://roots", "nvme0://x"],
        &["dataspace", "register", "all://", "--mount", "/"],
        &["dataspace", "unregister", "nvme0://"],
        &["pause"],
        &["shutdown"],
        &["policy", "fair-by-user"],
        &["job", "list"],
    ] {
        let done = as_slurm(words);
        assert!(!done.status.success(), "{words:?}: {}", text(&done));
        assert!(text(&done).contains("controller"), "{words:?}: {}", text(&done));
    }
    // As a user he may, but the file is not the user's.
    let done = as_slurm(&["submit", "--on-behalf", "20001:20001:0", "copy", "lustre://roots", "nvme0://x"]);
    assert!(done.status.success(), "{}", text(&done));
    let waited = as_slurm(&["wait", String::from_utf8_lossy(&done.stdout).trim()]);
    assert!(text(&waited).to_lowercase().contains("permission denied"), "{}", text(&waited));
    assert_eq!(cluster.left_on("node1"), "");
    // Nor are the book's users' secrets anybody else's.
    let done = cluster.by("alice", &["ls", &shown(&cluster.dir().join("tidepool"))]);
    assert!(text(&done).contains("Permission denied"), "{}", text(&done));
    let done = cluster.by("alice", &["cat", &secret]);
    assert!(text(&done).contains("Permission denied"), "{}", text(&done));
}

/// What was installed is taken away when Slurm does not use it any more and no job has something on its nodes; what is others'
/// stays, and Slurm goes on without it.
#[test]
fn nothing_of_ours_is_left_beside_slurm() {
    let Some(cluster) = Cluster::start(1) else { return };
    let (dir, site) = (shown(&cluster.dir()), shown(&etc(&cluster, "slurm.toml")));
    let libexec = format!("{dir}/libexec");
    let tidepool = cluster.tidepool();
    let uninstall = |more: &[&str]| {
        let words = ["slurm", "uninstall", "--conf-dir", &dir, "--libexec", &libexec, "--site", &site];
        cluster.on("ctl", &[&[tidepool.as_str()], &words[..], more].concat())
    };
    let refused = |words: &[&str]| {
        let done = uninstall(&[]);
        assert_eq!(done.status.code(), Some(120), "{}", text(&done));
        assert!(words.iter().all(|word| text(&done).contains(word)), "{}", text(&done));
    };
    let written: Vec<PathBuf> = ["burst_buffer.lua", "job_submit.lua", "burst_buffer.conf", "plugstack.conf"]
        .map(|name| cluster.dir().join(name))
        .into_iter()
        .chain(all_in(Path::new(&libexec)))
        .collect();
    let all_there = || assert!(written.iter().all(|path| path.exists()));
    // A job has results on its node, and slurm.conf names the files.
    let job = cluster.sbatch(&["-N1"], "#NORNS stage_out nvme0://none lustre://alice/out\ntrue\n");
    cluster.until("its results are there to stay", || cluster.phase(job) == "stage-out-failed");
    refused(&["Prolog", "Epilog", "BurstBufferType", "JobSubmitPlugins"]);
    let conf = cluster.dir().join("slurm.conf");
    let is_named = |line: &&str| {
        let keys = ["BurstBufferType", "JobSubmitPlugins", "Prolog=", "Epilog="];
        !keys.iter().any(|key| line.starts_with(key))
    };
    let without: Vec<String> =
        fs::read_to_string(&conf).unwrap().lines().filter(is_named).map(String::from).collect();
    let named = fs::read_to_string(&conf).unwrap();
    fs::write(&conf, without.join("\n") + "\n").unwrap();
    refused(&[&format!("{job} (stage-out-failed)"), "discard"]);
    all_there();
    // A prolog of the site's own that calls ours.
    let own = cluster.dir().join("site-prolog");
    fs::write(&own, format!("#!/bin/sh\n{libexec}/prolog\n")).unwrap();
    fs::write(&conf, without.join("\n") + &format!("\nProlog={}\n", own.display())).unwrap();
    refused(&["Prolog=", "site-prolog"]);
    fs::write(&conf, &named).unwrap();
    cluster.said(&[&tidepool, "slurm", "discard", &job.to_string(), "--site", &site]);
    cluster.until("they are given up", || cluster.phase(job) == "failed");
    fs::write(&conf, without.join("\n") + "\n").unwrap();
    // Another's file of the same name, and a link of his.
    fs::write(cluster.dir().join("job_submit.lua"), "-- the site's own\n").unwrap();
    let precious = cluster.dir().join("precious");
    fs::write(&precious, "Written by `tidepool slurm install`").unwrap();
    fs::remove_file(cluster.dir().join("burst_buffer.conf")).unwrap();
    std::os::unix::fs::symlink(&precious, cluster.dir().join("burst_buffer.conf")).unwrap();
    let told = uninstall(&["--dry-run"]);
    assert!(told.status.success() && text(&told).contains("would remove"), "{}", text(&told));
    all_there();
    let done = uninstall(&[]);
    assert!(
        done.status.success() && text(&done).contains("job_submit.lua is not Tidepool's"),
        "{}",
        text(&done)
    );
    let left: Vec<&PathBuf> = written.iter().filter(|path| fs::symlink_metadata(path).is_ok()).collect();
    let names: Vec<_> = left.iter().map(|path| path.file_name().unwrap()).collect();
    assert_eq!(names, ["job_submit.lua", "burst_buffer.conf"]);
    assert!(precious.exists() && Path::new(&site).exists() && !Path::new(&libexec).exists());
    let again = uninstall(&["--json"]);
    let told: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(told["removed"], serde_json::json!([]), "{told}");
    cluster.control(&["slurmctld", "stop"]);
    cluster.control(&["slurmctld", "start"]);
    cluster.said(&["scontrol", "reconfigure"]);
    let job = cluster.sbatch(&["-N1"], "echo without\n");
    cluster.until("a job runs", || cluster.log("alice", job) == "without\n");
}
