//! A cluster of machines with their own networks, Slurm with Tidepool's parts, and a stager on each node:
//! `integrations/slurm/test-cluster`. Jobs are those of the ordinary users alice and bob.

use super::text;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tidepool_testkit::copy_program;

/// How long Slurm may take for what a test waits for, on a busy machine, and after a start that it has to recover from.
const PATIENCE: Duration = Duration::from_secs(240);
pub const ALICE: u32 = 20001;
pub const BOB: u32 = 20002;
pub const SLURM: u32 = 20003;

pub fn integration(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integrations/slurm").join(name)
}

/// What a test may set.
#[derive(Default)]
pub struct Options {
    pub nodes: usize,
    /// Lines of slurm.conf, of slurm.toml, and of burst_buffer.conf.
    pub conf: &'static str,
    pub site: &'static str,
    pub burst_buffer: &'static str,
    /// Size of each node's store.
    pub nvme: Option<&'static str>,
    /// With slurmdbd.
    pub accounting: bool,
    /// Who slurmctld and the hooks run as, where it is not `slurm`.
    pub slurm_user: Option<&'static str>,
    /// A library that slows slurmctld down, `slow_fork` or `slow_threads`, from the file in C beside this.
    pub slowed_by: Option<&'static str>,
}

pub struct Cluster {
    /// Not below /tmp: each machine has its own.
    temporary: TempDir,
}

/// A job as Slurm shows it.
pub struct Shown(String);

impl Shown {
    pub fn get(&self, key: &str) -> String {
        let key = format!("{key}=");
        // As a word of its own: `Comment` is no `AdminComment`.
        let at = self.0.match_indices(&key).map(|(at, _)| at);
        let mut whole = at.filter(|at| self.0[..*at].ends_with(|c: char| c.is_whitespace()) || *at == 0);
        let value = whole.next().map(|at| &self.0[at + key.len()..]).unwrap_or_default();
        value.lines().next().unwrap_or_default().to_string()
    }

    pub fn word(&self, key: &str) -> String {
        self.get(key).split_whitespace().next().unwrap_or_default().to_string()
    }

    pub fn state(&self) -> String {
        self.word("JobState")
    }
}

impl Cluster {
    /// `None`, loudly, where no cluster can be started.
    pub fn start(nodes: usize) -> Option<Cluster> {
        Cluster::with(Options { nodes, ..Options::default() })
    }

    pub fn with(options: Options) -> Option<Cluster> {
        let installed =
            ["/usr/sbin/slurmd", "/usr/sbin/slurmctld", "/usr/sbin/munged", "/usr/include/slurm/spank.h"];
        if installed.iter().any(|p| !Path::new(p).exists()) || !rustix::process::geteuid().is_root() {
            println!("SKIPPED: needs root and slurmd; run 'scripts/install-packages slurm' first");
            return None;
        }
        let temporary = TempDir::new_in("/var/tmp").unwrap();
        fs::set_permissions(temporary.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let cluster = Cluster { temporary };
        cluster.install();
        let mut command = Command::new(integration("test-cluster"));
        command.arg("start").arg("--bin").arg(cluster.path("bin"));
        for (flag, lines) in
            [("--conf", options.conf), ("--site-conf", options.site), ("--bb-conf", options.burst_buffer)]
        {
            let file = cluster.path(&flag[2..]);
            fs::write(&file, lines).unwrap();
            command.arg(flag).arg(file);
        }
        if options.accounting {
            command.arg("--accounting");
        }
        if let Some(user) = options.slurm_user {
            command.args(["--slurm-user", user]);
        }
        if let Some(size) = options.nvme {
            command.env("TIDEPOOL_TEST_NVME", size);
        }
        if let Some(name) = options.slowed_by {
            command.env("TIDEPOOL_TEST_SLURMCTLD", cluster.library(name));
        }
        let done = command.arg(cluster.dir()).arg(options.nodes.to_string()).output().unwrap();
        assert!(done.status.success(), "{}", text(&done));
        for (user, id) in [("alice", ALICE), ("bob", BOB)] {
            let own = cluster.pfs(user);
            fs::create_dir(&own).unwrap();
            chown(&own, Some(id), Some(id)).unwrap();
        }
        Some(cluster)
    }

    /// Puts the programs where all users of all machines can run them.
    fn install(&self) {
        let (from, to) = (Path::new(env!("CARGO_BIN_EXE_tidepool")).parent().unwrap(), self.path("bin"));
        fs::create_dir(&to).unwrap();
        for name in ["tidepool", "tidepoold", "tidepool-staged", "libtidepool_preload.so"] {
            // A link where that is possible: debug builds are large.
            if fs::hard_link(from.join(name), to.join(name)).is_err() {
                copy_program(&from.join(name), &to.join(name));
            }
        }
    }

    fn library(&self, name: &str) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/common/{name}.c"));
        let library = self.path(&format!("{name}.so"));
        let built =
            Command::new("gcc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).output().unwrap();
        assert!(built.status.success(), "{}", text(&built));
        library
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.temporary.path().join(name)
    }

    pub fn dir(&self) -> PathBuf {
        self.path("cluster")
    }

    /// In the shared file system, `lustre://`.
    pub fn pfs(&self, name: &str) -> PathBuf {
        self.dir().join("pfs").join(name)
    }

    pub fn home(&self, user: &str) -> PathBuf {
        self.dir().join("home").join(user)
    }

    pub fn tidepool(&self) -> String {
        self.path("bin/tidepool").display().to_string()
    }

    /// A file of a user's in the shared file system, with bytes that are easy to tell from others.
    pub fn input(&self, user: &str, name: &str, bytes: usize) -> Vec<u8> {
        let data: Vec<u8> =
            (0..bytes).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        let path = self.pfs(user).join(name);
        let id = if user == "alice" { ALICE } else { BOB };
        let mut below = self.pfs(user);
        for part in Path::new(name).parent().unwrap().components() {
            below.push(part);
            if !below.exists() {
                fs::create_dir(&below).unwrap();
                chown(&below, Some(id), Some(id)).unwrap();
            }
        }
        fs::write(&path, &data).unwrap();
        chown(&path, Some(id), Some(id)).unwrap();
        data
    }

    fn command(&self, machine: &str, user: Option<&str>, words: &[&str]) -> Command {
        let mut command = Command::new(integration("test-cluster"));
        command.args(["exec", "-n", machine]);
        if let Some(user) = user {
            command.args(["-u", user]);
        }
        command.arg(self.dir()).args(words).current_dir("/").stdin(Stdio::null());
        // Programs in the cluster see none of what this test was started with.
        let own = std::env::vars_os().map(|(name, _)| name);
        for name in own.filter(|name| name.as_encoded_bytes().starts_with(b"TIDEPOOL_")) {
            command.env_remove(name);
        }
        for name in ["LD_PRELOAD", "TMPDIR"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs a command on a machine: `ctl` is where slurmctld is.
    pub fn on(&self, machine: &str, words: &[&str]) -> Output {
        self.command(machine, None, words).output().unwrap()
    }

    /// The same as a user, where slurmctld is.
    pub fn by(&self, user: &str, words: &[&str]) -> Output {
        self.command("ctl", Some(user), words).output().unwrap()
    }

    pub fn said(&self, words: &[&str]) -> String {
        let done = self.on("ctl", words);
        assert!(done.status.success(), "{words:?}: {}", text(&done));
        String::from_utf8_lossy(&done.stdout).trim().to_string()
    }

    /// Submits a script's body; what sbatch says.
    pub fn try_sbatch(&self, user: &str, options: &[&str], body: &str) -> Result<u32, String> {
        let home = self.home(user).display().to_string();
        let number = fs::read_dir(&home).unwrap().count();
        let script = format!("{home}/job-{number}.sh");
        fs::write(&script, format!("#!/bin/bash\n{body}")).unwrap();
        let words =
            [&["sbatch", "--parsable", "--chdir", &home, "-o", "%j.log"], options, &[&script]].concat();
        let done = self.by(user, &words);
        match done.status.success() {
            true => Ok(String::from_utf8_lossy(&done.stdout).trim().parse().unwrap()),
            false => Err(String::from_utf8_lossy(&done.stderr).into_owned()),
        }
    }

    pub fn sbatch(&self, options: &[&str], body: &str) -> u32 {
        self.try_sbatch("alice", options, body).unwrap_or_else(|said| panic!("{said}"))
    }

    pub fn log(&self, user: &str, job: u32) -> String {
        fs::read_to_string(self.home(user).join(format!("{job}.log"))).unwrap_or_default()
    }

    pub fn show(&self, job: u32) -> Shown {
        let done = self.on("ctl", &["scontrol", "show", "job", &job.to_string()]);
        Shown(String::from_utf8_lossy(&done.stdout).into_owned())
    }

    /// Waits until a job is over for Slurm, its hooks and epilogs included.
    pub fn wait(&self, job: u32) -> Shown {
        const OPEN: [&str; 6] = ["PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "STAGE_OUT", "REQUEUED"];
        self.until(&format!("job {job} ends"), || {
            let shown = self.show(job);
            let buffer = shown.word("BurstBufferState");
            !OPEN.contains(&shown.state().as_str()) && (buffer.is_empty() || buffer == "complete")
        });
        self.until("the epilogs end", || !self.said(&["sinfo", "-h", "-o", "%t"]).contains("comp"));
        self.show(job)
    }

    /// A job's owner has its results brought out after all, and waits for it: for the job that does it, too.
    pub fn resume(&self, user: &str, job: u32) {
        let done = self.by(user, &[&self.tidepool(), "slurm", "resume", &job.to_string(), "--wait"]);
        assert!(done.status.success(), "{}\n{}", text(&done), self.overview());
        self.wait_for_own_jobs();
    }

    /// Jobs that commands have submitted are over for who waits for them (`--wait`) before their epilogs and teardowns are.
    fn wait_for_own_jobs(&self) {
        let jobs = self.said(&["scontrol", "-o", "show", "jobs"]);
        for line in jobs.lines().filter(|line| line.contains(" JobName=tidepool-")) {
            let number = line.strip_prefix("JobId=").and_then(|rest| rest.split(' ').next());
            self.wait(number.and_then(|number| number.parse().ok()).expect(line));
        }
    }

    /// Waits until a job is in one of these states.
    pub fn wait_for(&self, job: u32, states: &[&str]) {
        self.until(&format!("job {job} is {states:?}"), || states.contains(&self.show(job).state().as_str()));
    }

    pub fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < deadline, "in vain: {what}\n{}\n{}", self.overview(), self.logs());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub fn overview(&self) -> String {
        let (jobs, nodes) =
            (self.on("ctl", &["scontrol", "show", "job"]), self.on("ctl", &["sinfo", "-N", "-l"]));
        format!("{}{}{}", text(&jobs), text(&nodes), self.report("jobs-all"))
    }

    fn logs(&self) -> String {
        let mut all = String::new();
        for log in fs::read_dir(self.dir().join("log")).into_iter().flatten().flatten() {
            let said = fs::read_to_string(log.path()).unwrap_or_default();
            let from = said.char_indices().rev().nth(3000).map_or(0, |(at, _)| at);
            all.push_str(&format!("--- {}\n{}\n", log.path().display(), &said[from..]));
        }
        all
    }

    /// What the controller's part knows, in JSON.
    pub fn report(&self, words: &str) -> serde_json::Value {
        let words: Vec<&str> = ["scontrol", "show", "bbstat"].into_iter().chain(words.split(' ')).collect();
        let done = self.on("ctl", &words);
        serde_json::from_slice(&done.stdout).unwrap_or_else(|_| text(&done).into())
    }

    pub fn phase(&self, job: u32) -> String {
        self.report(&format!("job {job}"))["job"]["phase"].as_str().unwrap_or_default().to_string()
    }

    pub fn reason(&self, job: u32) -> String {
        self.report(&format!("job {job}"))["job"]["reason"].as_str().unwrap_or_default().to_string()
    }

    /// What happened to a job, in order.
    pub fn events(&self, job: u32) -> Vec<String> {
        let report = self.report(&format!("job {job}"));
        let events = report["events"].as_array().cloned().unwrap_or_default();
        events.iter().filter_map(|event| event["text"].as_str()).map(String::from).collect()
    }

    /// Bytes that tasks of a job have moved that way.
    pub fn moved(&self, job: u32, way: &str) -> u64 {
        let report = self.report(&format!("job {job}"));
        let transfers = report["transfers"].as_array().cloned().unwrap_or_default();
        transfers.iter().filter(|t| t["way"] == way).filter_map(|t| t["bytes"].as_u64()).sum()
    }

    pub fn names(&self) -> Vec<String> {
        self.said(&["sinfo", "-h", "-N", "-o", "%N"]).lines().map(|name| name.trim().to_string()).collect()
    }

    /// Everything that a node has of jobs.
    pub fn left_on(&self, node: &str) -> String {
        let look = "find /mnt/nvme0 /run/tidepool/jobs /tmp -mindepth 1 2>/dev/null | grep -v '^/tmp/tidepool-[0-9]*$'";
        String::from_utf8_lossy(&self.on(node, &["sh", "-c", look]).stdout).into_owned()
    }

    /// Removes what programs of tests write on nodes besides what is staged in or kept: it is theirs to remove, not the epilog's.
    fn remove_what_programs_wrote(&self, node: &str) {
        let places = ["out", "forgotten", "f", "g", "result"].map(|name| format!("/mnt/nvme0/{name}"));
        let words: Vec<&str> =
            ["rm", "-rf", "--"].into_iter().chain(places.iter().map(String::as_str)).collect();
        let done = self.on(node, &words);
        assert!(done.status.success(), "{}", text(&done));
    }

    /// Nothing of any job is left anywhere but what its program wrote, and all nodes are as good as before.
    pub fn assert_nothing_left(&self, when: &str) {
        self.wait_for_own_jobs();
        for node in self.names() {
            self.remove_what_programs_wrote(&node);
            assert_eq!(self.left_on(&node), "", "{when}: {node}\n{}\n{}", self.overview(), self.logs());
            let words = [&self.tidepool(), "stage", "--control", "--json", "persist", "list"];
            let kept = String::from_utf8_lossy(&self.on(&node, &words).stdout).into_owned();
            let kept: serde_json::Value =
                serde_json::from_str(&kept).expect("the stager tells what it keeps");
            assert_eq!(kept["locations"], serde_json::json!([]), "{when}: {node}");
        }
        assert_eq!(self.said(&["sinfo", "-h", "-t", "drain,down,fail", "-o", "%N"]), "", "{when}");
        let reservations = self.on("ctl", &["scontrol", "show", "reservation"]);
        assert!(text(&reservations).contains("No reservations"), "{when}: {}", text(&reservations));
        let processes =
            Command::new("pgrep").args(["-a", "-f"]).arg(self.path("bin/tidepoold")).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&processes.stdout), "", "{when}");
    }

    /// Limits what each node's stager reads from and writes to the shared file system, in bytes per second.
    pub fn slow_down(&self, bandwidth: &str) {
        let mount = self.dir().join("pfs").display().to_string();
        let words = [
            "stage",
            "dataspace",
            "update",
            "lustre://",
            "--kind",
            "shared",
            "--bandwidth",
            bandwidth,
            "--mount",
            &mount,
        ];
        for node in self.names() {
            let done = self.on(&node, &[&[self.tidepool().as_str()], &words[..]].concat());
            assert!(done.status.success(), "{}", text(&done));
        }
    }

    /// Who slurmctld runs as: all four ids (proc(5)), so that none brings root's rights back.
    pub fn slurmctld_runs_as(&self) -> Vec<u32> {
        let pid = fs::read_to_string(self.dir().join("run/slurmctld.pid")).unwrap();
        let status = fs::read_to_string(format!("/proc/{}/status", pid.trim())).unwrap();
        let line = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
        line.split_whitespace().skip(1).map(|uid| uid.parse().unwrap()).collect()
    }

    /// `slurmctld start|stop|kill`, `node start|stop NODE`.
    pub fn control(&self, words: &[&str]) {
        let mut command = Command::new(integration("test-cluster"));
        let (what, rest) = words.split_at(2);
        let done = command.args(what).arg(self.dir()).args(rest).output().unwrap();
        assert!(done.status.success(), "{words:?}: {}", text(&done));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}\n{}", self.overview(), self.logs());
        }
        let stopped = Command::new(integration("test-cluster")).arg("stop").arg(self.dir()).status();
        assert!(stopped.is_ok_and(|s| s.success()) || std::thread::panicking());
    }
}
