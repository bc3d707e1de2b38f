//! Pools inside Slurm allocations, on a real cluster: `integrations/slurm/test-cluster`
//! starts munge, slurmctld and several slurmd on this machine. All nodes share one file
//! system, so agents of one pool also meet in one directory.

mod common;

use common::{Sandbox, doors, processes_of, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tidepool_testkit::{copy_program, put_program};

const TIDEPOOL: &str = env!("CARGO_BIN_EXE_tidepool");
/// How long Slurm may take to start or to end a job on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn integration(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integrations/slurm").join(name)
}

/// A cluster of this test's own, with a sandbox for the pools on it.
struct Cluster {
    dir: TempDir,
    sandbox: Sandbox,
    /// The command that jobs run.
    tidepool: PathBuf,
}

impl Cluster {
    /// `None`, loudly, where no cluster can be started.
    fn start(nodes: usize) -> Option<Cluster> {
        Cluster::with_hooks(nodes, None)
    }

    /// With the text of a hooks.conf, `integrations/slurm/prolog` and `epilog` are used.
    fn with_hooks(nodes: usize, conf: Option<&str>) -> Option<Cluster> {
        let installed = ["/usr/sbin/slurmd", "/usr/sbin/slurmctld", "/usr/sbin/munged"];
        if installed.iter().any(|p| !Path::new(p).exists()) || !rustix::process::geteuid().is_root() {
            println!("SKIPPED: needs root and slurmd; run 'scripts/install-packages slurm' first");
            return None;
        }
        let tidepool = PathBuf::from(TIDEPOOL);
        let mut cluster = Cluster { dir: TempDir::new().unwrap(), sandbox: Sandbox::new(), tidepool };
        // Jobs of other users look into both.
        for dir in [cluster.dir.path(), cluster.sandbox.dir.path()] {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut command = Command::new(integration("test-cluster"));
        command.args(["start", "--one-host"]).arg(cluster.dir.path().join("slurm")).arg(nodes.to_string());
        if let Some(conf) = conf {
            cluster.install();
            let (sandbox, file) =
                (cluster.sandbox.dir.path().display(), cluster.dir.path().join("hooks.conf"));
            let tidepool = cluster.tidepool.display();
            let paths =
                format!("TIDEPOOL={tidepool}\nTIDEPOOL_RUNTIME={sandbox}/rt\nTIDEPOOL_STORE={sandbox}\n");
            fs::write(&file, paths + conf).unwrap();
            for (hook, variable) in [("prolog", "TIDEPOOL_TEST_PROLOG"), ("epilog", "TIDEPOOL_TEST_EPILOG")] {
                command.env(variable, cluster.wrap(hook, &file));
            }
        }
        let done = command.output().unwrap();
        assert!(done.status.success(), "{}", text(&done));
        Some(cluster)
    }

    /// Puts the programs where other users can run them, whoever owns the directory they were built in.
    fn install(&mut self) {
        let (from, to) = (Path::new(TIDEPOOL).parent().unwrap(), self.dir.path().join("bin"));
        fs::create_dir(&to).unwrap();
        for name in ["tidepool", "tidepoold", "libtidepool_preload.so"] {
            // A link where that is possible: debug builds are large.
            if fs::hard_link(from.join(name), to.join(name)).is_err() {
                copy_program(&from.join(name), &to.join(name));
            }
        }
        self.tidepool = to.join("tidepool");
    }

    /// A program that runs a hook with its configuration.
    fn wrap(&self, hook: &str, conf: &Path) -> PathBuf {
        let path = self.dir.path().join(hook);
        let script = format!(
            "#!/bin/sh\nTIDEPOOL_HOOKS_CONF={} exec {}\n",
            conf.display(),
            integration(hook).display()
        );
        put_program(&path, &script);
        path
    }

    /// A command of Slurm's, for this cluster, with the sandbox's directories.
    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(args)
            .env("SLURM_CONF", self.dir.path().join("slurm/slurm.conf"))
            .env("TIDEPOOL_RUNTIME", self.sandbox.runtime())
            .env("TIDEPOOL_STORE", self.sandbox.store())
            .stdin(Stdio::null());
        for name in ["TIDEPOOL_POOL", "TIDEPOOL_DIR", "LD_PRELOAD", "SLURM_JOB_NUM_NODES"] {
            command.env_remove(name);
        }
        command
    }

    fn output(&self, program: &str, args: &[&str]) -> Output {
        self.command(program, args).output().unwrap()
    }

    fn said(&self, program: &str, args: &[&str]) -> String {
        let done = self.output(program, args);
        assert!(done.status.success(), "{program} {args:?}: {}", text(&done));
        String::from_utf8_lossy(&done.stdout).trim().to_string()
    }

    /// `tidepool ARGS` in an allocation of its own.
    fn tidepool(&self, nodes: usize, args: &[&str]) -> Output {
        // Those of the job before may still be completing.
        let (count, list) = (format!("-N{nodes}"), format!("-wnode[1-{nodes}]"));
        self.output("salloc", &[&["-Q", &count, &list, TIDEPOOL], args].concat())
    }

    /// Submits `tidepool ARGS` as a batch job that `exec`s it; the job's number.
    fn submit(&self, sbatch: &[&str], args: &[&str]) -> String {
        let script = self.sandbox.path("job.sh");
        let words: Vec<String> = args.iter().map(|a| format!("'{a}'")).collect();
        let command = format!("#!/bin/sh\nexec {} {}\n", self.tidepool.display(), words.join(" "));
        fs::write(&script, command).unwrap();
        let log = self.sandbox.path("job.log");
        fs::write(&log, "").unwrap();
        let (script, log) = (script.to_string_lossy(), log.to_string_lossy());
        self.said("sbatch", &[&["--parsable", "-o", &log], sbatch, &[&script]].concat())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.sandbox.path("job.log")).unwrap_or_default()
    }

    /// Waits until a job is over, its epilogs included.
    fn wait_for(&self, job: &str) {
        self.until("the job ends", || {
            let state = self.said("squeue", &["-h", "-o", "%t", "-t", "all", "-j", job]);
            let busy = self.said("sinfo", &["-h", "-o", "%t"]).contains("comp");
            !busy && !["R", "PD", "CF", "CG"].contains(&state.as_str())
        });
    }

    fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < deadline, "in vain: {what}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Demands that nothing is left once Slurm has ended the job's last processes.
    fn assert_nothing_left(&self, when: &str) {
        let deadline = Instant::now() + Duration::from_secs(15);
        while !processes_of(self.sandbox.dir.path()).is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
        self.sandbox.assert_nothing_left(when);
    }

    /// `kill -9` for every process of the pools here: nobody can clean up.
    fn kill_outright(&self) {
        let pools: Vec<PathBuf> =
            fs::read_dir(self.sandbox.runtime()).unwrap().map(|e| e.unwrap().path()).collect();
        assert_eq!(pools.len(), 1, "{pools:?}");
        let mut pids = Vec::new();
        for name in ["run.json", "node-0.json", "node-1.json"] {
            let record: serde_json::Value =
                serde_json::from_slice(&fs::read(pools[0].join(name)).unwrap()).unwrap();
            pids.extend([&record["pid"], &record["agent"]].into_iter().filter_map(serde_json::Value::as_i64));
            let daemons = record["daemons"].as_array().into_iter().flatten();
            pids.extend(daemons.filter_map(serde_json::Value::as_i64));
        }
        assert_eq!(pids.len(), 5, "{pids:?}");
        for pid in pids {
            let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
    }

    /// Starts a job whose program goes on until it is stopped, and waits for the program.
    fn submit_endless(&self, sbatch: &[&str], door: &str) -> String {
        let out = format!("/:{}", self.sandbox.path("out").display());
        // It ends with the pool: Slurm loses track of it when its parent is killed.
        let program = "echo precious > result; echo up; while test -e $TIDEPOOL_POOL; do sleep 0.1; done";
        let args = ["run", "--client", door, "--out", &out, "--", "sh", "-c", program];
        let job = self.submit(sbatch, &args);
        self.until("the program starts", || self.log().contains("up\n"));
        job
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let slurm = self.dir.path().join("slurm");
        let stopped = Command::new(integration("test-cluster")).arg("stop").arg(&slurm).status();
        if std::thread::panicking() {
            for log in ["slurmctld.log", "slurmd-node1.log"] {
                println!("{log}:\n{}", fs::read_to_string(slurm.join("log").join(log)).unwrap_or_default());
            }
        }
        assert!(stopped.is_ok_and(|s| s.success()) || std::thread::panicking());
    }
}

fn hosts_of(status: &str) -> Vec<String> {
    let status: serde_json::Value = serde_json::from_str(status).unwrap();
    let host = |d: &serde_json::Value| {
        assert_eq!(d["reachable"], true, "{d}");
        d["host"].as_str().unwrap().to_string()
    };
    status["daemons"].as_array().unwrap().iter().map(host).collect()
}

/// A1, A2: a pool over the nodes of the allocation, a daemon on each under the node's own
/// name; steps on all nodes use it; data goes in and out; nothing is left.
#[test]
fn a2_a_run_uses_the_nodes_of_its_allocation() {
    let Some(cluster) = Cluster::start(4) else { return };
    let names = ["node1", "node2", "node3", "node4"];
    fs::create_dir(cluster.sandbox.path("in")).unwrap();
    fs::write(cluster.sandbox.path("in/f"), "from outside\n").unwrap();
    let input = format!("{}:/data", cluster.sandbox.path("in").display());
    for (nodes, door) in [2, 4].into_iter().flat_map(|n| doors().into_iter().map(move |d| (n, d))) {
        let out = cluster.sandbox.path(&format!("out-{nodes}-{door}"));
        let output = format!("/out:{}", out.display());
        let program = format!(
            "set -e; {TIDEPOOL} pool status --json; mkdir out; \
             srun sh -c 'cat data/f > out/$SLURMD_NODENAME'; cp $TIDEPOOL_HOSTFILE out/hosts"
        );
        let args = ["run", "--client", door, "--in", &input, "--out", &output, "--", "sh", "-c", &program];
        let done = cluster.tidepool(nodes, &args);
        assert!(done.status.success(), "{nodes} {door}: {}", text(&done));
        assert_eq!(hosts_of(&String::from_utf8_lossy(&done.stdout)), names[..nodes], "{door}");
        for name in &names[..nodes] {
            assert_eq!(fs::read_to_string(out.join(name)).unwrap(), "from outside\n", "{door}");
        }
        let hosts = fs::read_to_string(out.join("hosts")).unwrap();
        assert_eq!(hosts.lines().collect::<Vec<_>>(), names[..nodes], "{door}");
        cluster.assert_nothing_left(&format!("{nodes} nodes, {door}"));
    }
}

/// A batch job; its pool outlives one command, and daemons are reached over TCP by clients
/// on machines where their Unix sockets are not.
#[test]
fn a2_a_batch_job_starts_and_stops_a_pool_over_tcp() {
    let Some(cluster) = Cluster::start(2) else { return };
    let script = cluster.sandbox.path("job.sh");
    let log = cluster.sandbox.path("job.log");
    // Another boot id makes a client believe that it is elsewhere.
    let job = format!(
        "#!/bin/sh\nset -e\nt={TIDEPOOL}\n$t pool start --name mine --client preload\n$t mkdir /a\n\
         mkdir $TIDEPOOL_RUNTIME/far\n\
         sed 's/\"boot_id\": \"[^\"]*\"/\"boot_id\": \"elsewhere\"/' $TIDEPOOL_RUNTIME/mine/pool.json \
         > $TIDEPOOL_RUNTIME/far/pool.json\n\
         echo over TCP: $($t ls --pool far) $($t pool status --pool far --json | grep -o '\"reachable\":true' | wc -l)\n\
         rm -r $TIDEPOOL_RUNTIME/far\n$t pool stop\n"
    );
    fs::write(&script, job).unwrap();
    let done =
        cluster.output("sbatch", &["--wait", "-N2", "-o", &log.to_string_lossy(), &script.to_string_lossy()]);
    assert!(done.status.success(), "{}\n{}", text(&done), cluster.log());
    assert!(cluster.log().contains("over TCP: a 2"), "{}", cluster.log());
    cluster.assert_nothing_left("after the batch job");
}

/// A16: daemons on a part of the nodes, a way into the pool on all, and the program knows
/// which nodes are for it.
#[test]
fn a16_daemons_on_a_part_of_the_nodes() {
    let Some(cluster) = Cluster::start(3) else { return };
    for (deploy, daemons, compute) in [
        ("subset:1", vec!["node1"], vec!["node1", "node2", "node3"]),
        ("dedicated:1", vec!["node1"], vec!["node2", "node3"]),
    ] {
        for door in doors() {
            let program = format!(
                "set -e; {TIDEPOOL} pool status --json; \
                 srun -N{} -w $TIDEPOOL_NODES sh -c 'echo $SLURMD_NODENAME > $SLURMD_NODENAME'; cat node*",
                compute.len()
            );
            let args = ["run", "--client", door, "--deploy", deploy, "--", "sh", "-c", &program];
            let done = cluster.tidepool(3, &args);
            assert!(done.status.success(), "{deploy} {door}: {}", text(&done));
            let stdout = String::from_utf8_lossy(&done.stdout).into_owned();
            let (status, files) = stdout.split_once('\n').unwrap();
            assert_eq!(hosts_of(status), daemons, "{deploy} {door}");
            assert_eq!(files.lines().collect::<Vec<_>>(), compute, "{deploy} {door}");
            cluster.assert_nothing_left(&format!("{deploy} {door}"));
        }
    }
    let refused = cluster.tidepool(3, &["run", "--deploy", "dedicated:3", "--", "true"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused).contains("none would be left"), "{}", text(&refused));
}

/// A2: Slurm ends all processes of a cancelled job; the pool goes with its data, everywhere.
#[test]
fn a2_a_cancelled_job_leaves_nothing() {
    let Some(cluster) = Cluster::start(3) else { return };
    for door in doors() {
        let job = cluster.submit_endless(&["-N3"], door);
        cluster.said("scancel", &[&job]);
        cluster.wait_for(&job);
        cluster.assert_nothing_left(door);
        assert!(!cluster.log().contains("left running"), "{}", cluster.log());
    }
}

/// A signal for the batch shell alone, as from `--signal=B:TERM@120` before the time limit,
/// ends the program, and its output arrives.
#[test]
fn a_warned_job_stages_out() {
    let Some(cluster) = Cluster::start(2) else { return };
    let job = cluster.submit_endless(&["-N2"], doors().first().unwrap_or(&"auto"));
    cluster.said("scancel", &["--batch", "--signal=TERM", &job]);
    cluster.wait_for(&job);
    let result = fs::read_to_string(cluster.sandbox.path("out/result"));
    assert_eq!(result.ok().as_deref(), Some("precious\n"), "{}", cluster.log());
    cluster.assert_nothing_left("after the stage-out");
}

/// A2: what a job left that was killed outright is removed by `node-clean`, and nothing else.
#[test]
fn a2_node_clean_removes_what_a_killed_job_left() {
    let Some(cluster) = Cluster::start(2) else { return };
    for door in doors() {
        let job = cluster.submit_endless(&["-N2"], door);
        cluster.kill_outright();
        cluster.said("scancel", &[&job]);
        cluster.wait_for(&job);
        cluster.sandbox.ok(&["pool", "start", "--local", "--name", "other", "--client", "preload"]);
        let clean = |args: &[&str]| cluster.sandbox.ok(&[&["node-clean"], args].concat());
        assert_eq!(clean(&["--job", "999999"]), "", "{door}");
        let planned = clean(&["--job", &job, "--dry-run"]);
        assert!(planned.starts_with("would remove pool 'run-"), "{door}: {planned}");
        let done: serde_json::Value = serde_json::from_str(&clean(&["--job", &job, "--json"])).unwrap();
        assert_eq!(done["cleaned"].as_array().unwrap().len(), 1, "{door}: {done}");
        assert_eq!(clean(&[]), "", "{door}: a living pool is left alone");
        cluster.sandbox.ok(&["pool", "stop", "--pool", "other"]);
        cluster.assert_nothing_left(door);
    }
}

/// A2: the epilog does the same by itself, as the job's user.
#[test]
fn a2_the_epilog_cleans_up_after_a_killed_job() {
    const NOBODY: u32 = 65534;
    let Some(cluster) = Cluster::with_hooks(2, Some("")) else { return };
    for dir in ["rt", "store", "out"] {
        fs::create_dir(cluster.sandbox.path(dir)).unwrap();
        fs::set_permissions(cluster.sandbox.path(dir), fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(cluster.sandbox.path(dir), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    fs::write(cluster.sandbox.path("job.log"), "").unwrap();
    std::os::unix::fs::chown(cluster.sandbox.path("job.log"), Some(NOBODY), Some(NOBODY)).unwrap();
    let job = cluster.submit_endless(&["-N2", "--uid=nobody", "--gid=nogroup", "-D", "/"], "preload");
    cluster.kill_outright();
    cluster.said("scancel", &[&job]);
    cluster.wait_for(&job);
    cluster.assert_nothing_left("after the epilog");
}

/// A3: the prolog's health test holds a job back that asks for Tidepool, and says why.
#[test]
fn a3_the_prolog_drains_an_unfit_node_with_a_reason() {
    let Some(cluster) = Cluster::with_hooks(1, Some("TIDEPOOL_MIN_FREE=1000TiB\n")) else { return };
    // A1, A4: jobs that did not ask are not tested, so the same node is good enough.
    assert_eq!(cluster.said("srun", &["-N1", "echo", "fine"]), "fine");
    assert_eq!(cluster.said("srun", &["-N1", "--comment=not-tidepool", "echo", "fine"]), "fine");
    let job = cluster.submit(&["-N1", "--comment=tidepool"], &["run", "--", "true"]);
    cluster.until("the node is drained", || cluster.said("sinfo", &["-h", "-o", "%t"]).contains("drain"));
    let reason = cluster.said("sinfo", &["-h", "-R", "-o", "%200E"]);
    assert!(reason.contains("free space") && reason.contains("1000.0 TiB"), "{reason}");
    cluster.said("scancel", &[&job]);
    cluster.assert_nothing_left("after the prolog");
}

/// A1, A4: a job that does not use Tidepool starts no process of it, with the hooks in place.
#[test]
fn a1_a_job_without_a_pool_starts_nothing() {
    // Hooks that called the command would notice that it is not there, and drain the nodes.
    let Some(cluster) = Cluster::with_hooks(2, Some("TIDEPOOL=/no/such/program\n")) else { return };
    for _ in 0..3 {
        let script = "test ! -e $TIDEPOOL_RUNTIME; env | grep -c '^TIDEPOOL_[DPN]'";
        let said = cluster.output("srun", &["-N2", "sh", "-c", script]);
        assert_eq!(String::from_utf8_lossy(&said.stdout), "0\n0\n", "{}", text(&said));
        assert_eq!(cluster.said("sinfo", &["-h", "-t", "drain", "-o", "%N"]), "");
    }
    assert!(!cluster.sandbox.runtime().exists());
    cluster.assert_nothing_left("after a job of others");
}

/// A command outside the nodes, as on a login node with `salloc`: it does not see the nodes'
/// files, so its programs use an agent of their own, and TCP.
#[test]
fn a2_a_command_on_another_machine_reaches_the_pool() {
    let Some(cluster) = Cluster::start(2) else { return };
    let runtime = cluster.sandbox.runtime();
    fs::create_dir(&runtime).unwrap();
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).unwrap();
    for door in doors() {
        let out = cluster.sandbox.path(&format!("out-{door}"));
        let script = format!(
            "set -e; mount -t tmpfs -o mode=700 tidepool-test {rt}\n\
             {TIDEPOOL} run --client {door} --out /:{out} -- \
             sh -c 'echo here > here; srun -N2 sh -c \"cat here > \\$SLURMD_NODENAME\"; ls {rt}/*/node-*.json'\n\
             ls {rt}",
            rt = runtime.display(),
            out = out.display()
        );
        let done = cluster.output("salloc", &["-Q", "-N2", "unshare", "--mount", "sh", "-c", &script]);
        assert!(done.status.success(), "{door}: {}", text(&done));
        let stdout = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(stdout.trim_end().ends_with("node-2.json"), "{door}: the third agent: {stdout}");
        for name in ["here", "node1", "node2"] {
            assert_eq!(fs::read_to_string(out.join(name)).unwrap(), "here\n", "{door}");
        }
        cluster.assert_nothing_left(door);
    }
}

/// Whatever tasks the job was submitted for, and while its own steps use all that it has,
/// each node gets one agent.
#[test]
fn a2_the_shape_of_the_jobs_tasks_does_not_matter() {
    let Some(cluster) = Cluster::start(2) else { return };
    for shape in
        ["--ntasks-per-node=3", "--cpus-per-task=2", "--ntasks=5", "--exclusive", "--hint=nomultithread"]
    {
        let script = format!(
            "srun sleep 30 & sleep 0.5; {TIDEPOOL} run --client preload -- {TIDEPOOL} pool status --json; kill $!"
        );
        let done = cluster.output("salloc", &["-Q", "-N2", shape, "sh", "-c", &script]);
        let stdout = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(stdout.starts_with('{'), "{shape}: {}", text(&done));
        assert_eq!(hosts_of(stdout.trim()), ["node1", "node2"], "{shape}");
        cluster.assert_nothing_left(shape);
    }
}

/// G10: in a job `plan` is about the job's nodes and its time limit, and knows its leaf switches from Slurm's own file.
#[test]
fn g10_plans_are_for_the_allocation() {
    let Some(cluster) = Cluster::start(2) else { return };
    let topology = cluster.sandbox.path("topology.conf");
    let nodes = cluster.said("sinfo", &["-h", "-N", "-o", "%N"]);
    let (first, second) = nodes.split_once('\n').unwrap();
    let text = format!(
        "SwitchName=leaf1 Nodes={first}\nSwitchName=leaf2 Nodes={second}\nSwitchName=core Switches=leaf[1-2]\n"
    );
    fs::write(&topology, text).unwrap();
    let args = ["plan", "--json", "--placement", "group", "--slurm-topology", topology.to_str().unwrap()];
    let job = cluster.submit(&["-N2", "--time=10"], &args);
    cluster.wait_for(&job);
    let told: serde_json::Value = serde_json::from_str(&cluster.log()).unwrap_or_else(|error| {
        panic!("{error}: {}", cluster.log());
    });
    assert_eq!(told["nodes"], serde_json::json!([first, second]), "{told}");
    assert_eq!(told["groups"]["value"], serde_json::json!(["leaf1", "leaf2"]), "{told}");
    // The job may run for ten minutes.
    let share = told["costs"]["share"].as_f64().expect("the time limit is known");
    let seconds = told["seconds"].as_f64().unwrap();
    assert!((share - seconds / 600.0).abs() < 1e-3, "{told}");
    cluster.assert_nothing_left("after a plan");
}
