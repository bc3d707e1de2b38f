//! The life of a pool under the command: start, stage, run, drain, stop, and what is left
//! when any of it is interrupted.

mod common;

use common::opens::Opens;
use common::{Sandbox, doors, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

fn numbers(path: &std::path::Path, files: usize) {
    fs::create_dir_all(path.join("sub")).unwrap();
    for i in 0..files {
        fs::write(path.join(format!("sub/f{i}")), format!("{i}\n").repeat(1000)).unwrap();
    }
}

/// A1: the program finds the pool's path in an environment variable, starts there, and its
/// output arrives; its exit code is the command's.
#[test]
fn a1_run_stages_in_runs_and_stages_out() {
    for door in doors() {
        let sandbox = Sandbox::new();
        numbers(&sandbox.path("in"), 20);
        let input = format!("{}:/data", sandbox.path("in").display());
        let output = format!("/out:{}", sandbox.path("results").display());
        let script = r#"set -e; test "$PWD" = "$TIDEPOOL_DIR"; mkdir out; cat data/sub/f* | sort -n > out/sorted; wc -l < out/sorted; exit 7"#;
        let args = [
            "run", "--nodes", "3", "--client", door, "--in", &input, "--out", &output, "--json", "--", "sh",
            "-c", script,
        ];
        let done = sandbox.tidepool(&args).output().unwrap();
        assert_eq!(done.status.code(), Some(7), "{door}: {}", text(&done));
        let stdout = String::from_utf8_lossy(&done.stdout);
        let mut lines = stdout.lines();
        assert_eq!(lines.next().map(str::trim), Some("20000"), "{door}");
        let report: serde_json::Value = serde_json::from_str(lines.next().unwrap()).unwrap();
        assert_eq!((&report["program_exit"], &report["complete"]), (&7.into(), &true.into()));
        let sorted = fs::read_to_string(sandbox.path("results/sorted")).unwrap();
        assert_eq!((sorted.lines().count(), sorted.lines().last()), (20000, Some("19")));
        sandbox.assert_nothing_left(door);
    }
}

/// A program that crashes leaves its core where it can be found, and the run ends as its program did.
#[test]
fn crashes_leave_a_core_and_no_pool() {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if pattern.trim() != "core" || !rustix::process::geteuid().is_root() {
        return println!("SKIPPED: cores go elsewhere here ({})", pattern.trim());
    }
    for door in doors() {
        let sandbox = Sandbox::new();
        let script = r#"ulimit -c unlimited; for i in 1 2; do mkdir d$i; (cd d$i; sh -c 'kill -SEGV $$'); done; ls d1/core* >&2; exit 7"#;
        let done =
            sandbox.tidepool(&["run", "--nodes", "2", "--client", door, "--", "sh", "-c", script]).output();
        let done = done.unwrap();
        assert_eq!(done.status.code(), Some(7), "{door}: {}", text(&done));
        let kept = sandbox.runtime().join(".cores");
        if door == "fuse" {
            assert!(text(&done).contains("d1/core") && !kept.exists(), "{}", text(&done));
        } else {
            let core = fs::read_dir(&kept).unwrap().next().unwrap().unwrap().path();
            assert!(text(&done).contains(core.to_str().unwrap()), "{}", text(&done));
            assert!(fs::read(&core).unwrap().starts_with(b"\x7fELF"));
            fs::remove_dir_all(&kept).unwrap();
        }
        sandbox.assert_nothing_left(door);
    }
}

/// A1: without the command no daemon starts; there is nothing else that could start one.
#[test]
fn a1_a_dry_run_starts_nothing() {
    let sandbox = Sandbox::new();
    numbers(&sandbox.path("in"), 3);
    let input = format!("{}:/in", sandbox.path("in").display());
    let said =
        sandbox.ok(&["run", "--nodes", "4", "--in", &input, "--out", "/o:out", "--dry-run", "--", "prog"]);
    for words in ["4 daemon(s)", "3 files", "would run: prog", "would stop"] {
        assert!(said.contains(words), "{said}");
    }
    sandbox.assert_nothing_left("after a dry run");
}

#[test]
fn exit_codes_tell_what_failed() {
    let sandbox = Sandbox::new();
    let store = sandbox.store();
    fs::create_dir(&store).unwrap();
    let code = |args: &[&str]| {
        let done = sandbox.tidepool(args).output().unwrap();
        (done.status.code().unwrap(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let out = format!("/missing:{}", sandbox.path("o").display());
    for (args, expected, words) in [
        (vec!["run", "--", "no-such-program"], 127, "not found"),
        (vec!["run", "--in", "/no/such:/in", "--", "true"], 111, "/no/such"),
        (vec!["run", "--chunk-size", "1.5MB", "--", "true"], 2, "fractions"),
        (vec!["run", "--nodes", "0", "--", "true"], 2, "at least one"),
        (vec!["pool", "status", "--pool", "nobody"], 116, "nobody"),
        (vec!["exec", "--", "true"], 116, "no pool"),
    ] {
        let (got, said) = code(&args);
        assert_eq!(got, expected, "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
        sandbox.assert_nothing_left(&format!("{args:?}"));
    }
    // Output that cannot be staged keeps the pool; drain says so as well; then it is stopped.
    let (got, said) = code(&["run", "--out", &out, "--", "true"]);
    assert_eq!(got, 112, "{said}");
    assert!(said.contains("tidepool drain"), "{said}");
    assert_eq!(code(&["drain"]).0, 112);
    sandbox.ok(&["pool", "stop"]);
    sandbox.assert_nothing_left("after pool stop");
}

/// F29: a directory with other content is never touched, not even with --wipe.
#[test]
fn f29_foreign_directories_are_refused() {
    let sandbox = Sandbox::new();
    let foreign = sandbox.store().join("tidepool-mine/d0");
    fs::create_dir_all(&foreign).unwrap();
    fs::write(foreign.join("thesis.tex"), "precious").unwrap();
    let done = sandbox.tidepool(&["pool", "start", "--name", "mine", "--wipe"]).output().unwrap();
    assert_eq!(done.status.code(), Some(110), "{}", text(&done));
    assert!(text(&done).contains("left alone"), "{}", text(&done));
    assert_eq!(fs::read_to_string(foreign.join("thesis.tex")).unwrap(), "precious");
}

/// F31: a pool stopped with --keep has its names and data when it is started again.
#[test]
fn f31_a_kept_pool_comes_back() {
    for backend in ["memlog", "lmdb"] {
        let sandbox = Sandbox::new();
        let start =
            ["pool", "start", "--name", "camp", "--nodes", "2", "--client", "preload", "--backend", backend];
        sandbox.ok(&[&start[..], &["--keep"]].concat());
        numbers(&sandbox.path("in"), 10);
        sandbox.ok(&["cp", &sandbox.path("in").to_string_lossy(), "pool:/in"]);
        sandbox.ok(&["pool", "stop", "--keep"]);
        assert!(common::processes_of(sandbox.dir.path()).is_empty());
        assert!(sandbox.ok(&["pool", "list"]).contains("data kept"));
        sandbox.ok(&[&start[..], &["--keep"]].concat());
        assert_eq!(sandbox.ok(&["cat", "/in/sub/f7"]), "7\n".repeat(1000));
        sandbox.ok(&["check"]);
        sandbox.ok(&["pool", "stop"]);
        sandbox.assert_nothing_left("after the last stop");
    }
}

/// A9: the first operation after start never fails.
#[test]
fn a9_a_started_pool_answers_at_once() {
    let sandbox = Sandbox::new();
    for round in 0..10 {
        sandbox.ok(&["pool", "start", "--name", "p", "--nodes", "4", "--client", "preload"]);
        for i in 0..10 {
            sandbox.ok(&["mkdir", &format!("/d{round}-{i}")]);
        }
        sandbox.ok(&["pool", "stop"]);
    }
    sandbox.assert_nothing_left("after ten pools");
}

/// Copies in and out again; a second copy of the same moves nothing.
#[test]
fn cp_goes_both_ways_and_resumes() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["pool", "start", "--name", "p", "--nodes", "2", "--client", "preload"]);
    numbers(&sandbox.path("in"), 50);
    let (from, to) = (sandbox.path("in"), sandbox.path("back"));
    sandbox.ok(&["cp", &from.to_string_lossy(), "pool:/x/y"]);
    let first = sandbox.ok(&["cp", "--json", "pool:/x/y", &to.to_string_lossy()]);
    let second = sandbox.ok(&["cp", "--json", "-T", "pool:/x/y", &to.to_string_lossy()]);
    let copied =
        |said: &str| serde_json::from_str::<serde_json::Value>(said).unwrap()["bytes_copied"].as_u64();
    assert!(copied(&first).unwrap() > 0);
    assert_eq!(copied(&second), Some(0), "{second}");
    assert_eq!(fs::read(from.join("sub/f49")).unwrap(), fs::read(to.join("sub/f49")).unwrap());
    sandbox.ok(&["rm", "-r", "/x"]);
    assert_eq!(sandbox.ok(&["ls"]), "");
    sandbox.ok(&["pool", "stop"]);
    sandbox.assert_nothing_left("after cp");
}

/// Moments at which a run is interrupted; `make test-all` sets more.
fn stops() -> u64 {
    std::env::var("TIDEPOOL_STOPS").ok().and_then(|t| t.parse().ok()).unwrap_or(12)
}

/// Ctrl-C or SIGTERM at random moments of a run, over all its phases: nothing is left.
#[test]
fn signals_leave_nothing_behind() {
    let mut rng = tidepool_testkit::Rng::from_env("signals_leave_nothing_behind");
    let doors = doors();
    for round in 0..stops() {
        let door = doors[round as usize % doors.len()];
        let sandbox = Sandbox::new();
        numbers(&sandbox.path("in"), 100);
        let input = format!("{}:/in", sandbox.path("in").display());
        let output = format!("/:{}", sandbox.path("out").display());
        let args =
            ["run", "--nodes", "2", "--client", door, "--in", &input, "--out", &output, "--", "sleep", "0.3"];
        let mut child = sandbox.tidepool(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let pause = Duration::from_micros(rng.below(900_000));
        std::thread::sleep(pause);
        let signal =
            if rng.below(2) == 0 { rustix::process::Signal::INT } else { rustix::process::Signal::TERM };
        let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
        let _ = rustix::process::kill_process(pid, signal);
        let done = child.wait_with_output_now();
        let when = format!("round {round}: {signal:?} after {pause:?} ({door}): {done}");
        if sandbox.runtime().exists() && fs::read_dir(sandbox.runtime()).unwrap().next().is_some() {
            // Interrupted while staging out: the results are kept on purpose, and said so.
            assert!(done.contains("tidepool drain"), "{when}");
            sandbox.ok(&["drain"]);
        }
        sandbox.assert_nothing_left(&when);
    }
}

trait WaitText {
    fn wait_with_output_now(&mut self) -> String;
}

impl WaitText for std::process::Child {
    fn wait_with_output_now(&mut self) -> String {
        let mut said = String::new();
        let mut stderr = self.stderr.take().unwrap();
        std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
        let status = self.wait().unwrap();
        format!("{:?} {:?} {said}", status.code(), status.signal())
    }
}

/// `kill -9` of the command while it stages out: no final name holds a partial file, and a
/// drain moves at most what was not finished.
#[test]
fn a_killed_stage_out_is_finished_by_drain() {
    let sandbox = Sandbox::new();
    let input = sandbox.path("in");
    fs::create_dir(&input).unwrap();
    let whole = vec![b'x'; 300_000];
    for i in 0..300 {
        fs::write(input.join(format!("f{i}")), &whole).unwrap();
    }
    let spec = format!("{}:/data", input.display());
    let out = sandbox.path("out");
    let out_spec = format!("/data:{}", out.display());
    let args =
        ["run", "--nodes", "2", "--client", "preload", "--in", &spec, "--out", &out_spec, "--", "true"];
    let mut child = sandbox.tidepool(&args).stderr(Stdio::null()).spawn().unwrap();
    let finished = || {
        fs::read_dir(&out)
            .map(|e| e.flatten().filter(|e| !e.file_name().to_string_lossy().starts_with('.')).count())
            .unwrap_or(0)
    };
    let deadline = Instant::now() + Duration::from_secs(120);
    while finished() < 60 && child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "the stage-out does not begin");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let before = finished();
    assert!((60..300).contains(&before), "killed in the middle: {before} of 300 files");
    for entry in fs::read_dir(&out).unwrap().flatten() {
        if !entry.file_name().to_string_lossy().starts_with('.') {
            assert!(fs::read(entry.path()).unwrap() == whole, "{:?} is partial", entry.path());
        }
    }
    let args = ["drain", "--gentle", "--bwlimit", "100MiB", "--json"];
    let mut child = sandbox.tidepool(&args).stdout(Stdio::piped()).spawn().unwrap();
    while finished() < before + 10 {
        assert!(child.try_wait().unwrap().is_none(), "the drain ended before it was looked at");
        std::thread::sleep(Duration::from_millis(1));
    }
    let policies = common::policies(child.id());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && policies.len() > 1, "{policies:?}");
    assert!(policies.iter().all(|policy| *policy == common::IDLE), "{policies:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    let moved = report["outs"][0]["bytes_copied"].as_u64().unwrap();
    let unfinished = (300 - before as u64) * whole.len() as u64;
    println!("{before} of 300 files were finished; the drain moved {moved} of {unfinished} unfinished bytes");
    assert!(moved <= unfinished, "moved {moved}, unfinished {unfinished}");
    assert_eq!(finished(), 300);
    sandbox.assert_nothing_left("after the drain");
}

/// `kill -9` of the node's agent, which holds the mount: `pool stop` cleans up all the same.
#[test]
fn a_killed_agent_leaves_nothing_after_stop() {
    for door in doors() {
        let sandbox = Sandbox::new();
        sandbox.ok(&["pool", "start", "--name", "k", "--nodes", "2", "--client", door]);
        let agent = common::processes_of(sandbox.dir.path())
            .into_iter()
            .find(|p| p.contains(" node "))
            .expect("a pool has an agent");
        let pid: i32 = agent.split(':').next().unwrap().parse().unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        sandbox.ok(&["pool", "stop"]);
        sandbox.assert_nothing_left(door);
    }
}

/// The same while its daemons begin: one that has been told what to do goes on without it, and whoever cleans up has to know of it.
#[test]
fn an_agent_killed_while_its_daemons_begin_leaves_none() {
    let sandbox = Sandbox::new();
    // Beside the build, where programs can have one more name.
    let bin = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let built = Path::new(env!("CARGO_BIN_EXE_tidepool")).parent().unwrap();
    for name in ["tidepool", "libtidepool_preload.so"] {
        fs::hard_link(built.join(name), bin.path().join(name)).unwrap();
    }
    let (mark, real) = (sandbox.path("killed"), built.join("tidepoold"));
    // What records name counts only as long as it runs a program of ours.
    let shell = bin.path().join("tidepool-shell");
    fs::copy("/bin/bash", &shell).unwrap();
    let script = format!(
        "#!{}\nread -r line\nmkdir {} 2> /dev/null && kill -9 $PPID\nexec {} <<< \"$line\"\n",
        shell.display(),
        mark.display(),
        real.display()
    );
    let daemon = bin.path().join("tidepoold");
    fs::write(&daemon, script).unwrap();
    fs::set_permissions(&daemon, fs::Permissions::from_mode(0o755)).unwrap();
    // So many that the first has begun before the last is there.
    let args = ["run", "--local", "--nodes", "24", "--client", "preload", "--", "true"];
    let ended = sandbox.tidepool_at(&bin.path().join("tidepool"), &args).output().unwrap();
    assert_eq!(ended.status.code(), Some(110), "{}", text(&ended));
    assert!(mark.exists(), "no daemon was told anything: {}", text(&ended));
    sandbox.assert_nothing_left("after its agent was killed");
}

/// A daemon that was killed is named by `status`, and by the error a program's user sees.
#[test]
fn a_killed_daemon_is_named() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["pool", "start", "--name", "k", "--nodes", "2", "--client", "preload"]);
    let status = sandbox.ok(&["pool", "status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let pid = status["daemons"][1]["pid"].as_i64().unwrap() as i32;
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let began = Instant::now();
    let listed = sandbox.tidepool(&["ls", "/"]).output().unwrap();
    assert!(began.elapsed() < Duration::from_secs(5));
    let host = status["daemons"][1]["host"].as_str().unwrap();
    assert!(!listed.status.success() && text(&listed).contains(host), "{}", text(&listed));
    let after = sandbox.tidepool(&["pool", "status"]).output().unwrap();
    assert_eq!(after.status.code(), Some(1));
    assert!(text(&after).contains("not reachable"), "{}", text(&after));
    sandbox.ok(&["pool", "stop"]);
    sandbox.assert_nothing_left("after a daemon was killed");
}

/// A7, A8: pools of several sizes are started, timed and gone; what is not measured says so.
#[test]
fn a7_start_and_stop_are_timed() {
    let sandbox = Sandbox::new();
    let text = sandbox.ok(&["bench", "start", "--counts", "1,3", "--repeats", "2", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["samples"].as_array().unwrap().len(), 4);
    for row in report["rows"].as_array().unwrap() {
        let measured = row["daemons"].as_u64().unwrap() <= 3;
        assert_eq!(row["source"], if measured { "measured" } else { "modelled" });
        assert!(row["start"]["median"].as_f64().unwrap() > 0.0 || !measured, "{row}");
    }
    sandbox.assert_nothing_left("after bench start");
    let wrong = sandbox.tidepool(&["bench", "start", "--counts", "0"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
}

/// Programs meet a quota as they meet a full disk, and `df` shows it.
#[test]
fn a_quota_is_seen_and_kept() {
    let sandbox = Sandbox::new();
    for door in doors() {
        let script = "df -B1 --output=size . | tail -1; dd if=/dev/zero of=f bs=64k count=200 2>&1; ls -l f";
        let args = ["run", "--client", door, "--nodes", "2", "--quota", "4MiB", "--quota-objects", "100"];
        let done = sandbox.tidepool(&[&args[..], &["--", "sh", "-c", script]].concat()).output().unwrap();
        let said = text(&done);
        assert!(said.contains("4194304"), "{door}: {said}");
        assert!(said.contains("quota"), "{door}: {said}");
        sandbox.assert_nothing_left(door);
    }
}

/// A18: each phase says how busy devices, network and daemons were.
#[test]
fn a18_a_run_tells_what_its_nodes_did() {
    let sandbox = Sandbox::new();
    let program = "i=0; while [ $i -lt 40 ]; do dd if=/dev/zero of=f$i bs=64k count=4 conv=fsync 2>/dev/null; i=$((i+1)); done; sleep 0.2";
    for (store, has_device) in [(None, None), (Some("/dev/shm"), Some(false))] {
        let store: Vec<&str> = store.map_or(vec![], |dir| vec!["--store", dir]);
        let args = [&["run", "--json"][..], &store, &["--", "sh", "-c", program]].concat();
        let said = sandbox.ok(&args);
        let report: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
        let phases = report["phases"].as_array().unwrap();
        let of_program = &phases.iter().find(|phase| phase["phase"] == "program").unwrap()["use"];
        assert!(of_program["requests"].as_u64().unwrap() >= 40, "a file takes a request at least: {report}");
        let share = of_program["daemons"]["share"].as_f64().unwrap();
        assert!((0.0..=1.01).contains(&share), "{report}");
        let device = &of_program["device"];
        assert!(device.is_null() || device["share"].as_f64().unwrap() >= 0.0, "{report}");
        if has_device == Some(false) {
            assert!(device.is_null(), "memory is no device: {report}");
        }
        assert!(phases.iter().find(|phase| phase["phase"] == "start").unwrap()["use"].is_null());
    }
    sandbox.assert_nothing_left("after the runs");
}

/// Writes 200 MB and reads them, in pieces of the size in bytes that is the argument.
const WRITES_AND_READS: &str = "
import os, sys
piece = os.urandom(int(sys.argv[1]))
file = os.open(os.environ['TIDEPOOL_DIR'] + '/f', os.O_CREAT | os.O_RDWR)
count = 204800000 // len(piece)
for n in range(count):
    assert os.pwrite(file, piece, n * len(piece)) == len(piece)
for n in range(count):
    assert os.pread(file, len(piece), n * len(piece)) == piece
os.close(file)
";

/// A18: what a program writes and reads in the daemons' files itself, without asking them, is done as well; and who hardly had anything to do is
/// not named as what limits.
#[test]
fn a18_what_is_done_in_lent_files_is_told() {
    const BYTES: u64 = 204_800_000;
    let sandbox = Sandbox::new();
    for nodes in ["1", "2"] {
        let args = ["run", "--json", "--client", "preload", "--nodes", nodes, "--"];
        let program = ["python3", "-c", WRITES_AND_READS, "65536"];
        let done = sandbox.tidepool(&[&args[..], &program].concat()).output().unwrap();
        assert!(done.status.success(), "{}", text(&done));
        let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        let phases = report["phases"].as_array().unwrap();
        let used = &phases.iter().find(|phase| phase["phase"] == "program").unwrap()["use"];
        let calls = 2 * BYTES / 65_536;
        assert!(used["requests"].as_u64().unwrap() < calls / 2, "it was not lent: {report}");
        assert_eq!((&used["bytes_written"], &used["bytes_read"]), (&BYTES.into(), &BYTES.into()), "{report}");
        let said = text(&done);
        let line =
            said.lines().find(|line| line.starts_with("tidepool: program")).expect("the phase is told");
        assert!(line.contains("; 195.3 MiB written, 195.3 MiB read in the pool"), "{line}");
        let limit = &used["bottleneck"];
        assert_ne!(limit, "daemons", "{report}");
        assert_eq!(line.contains("limited by"), !limit.is_null(), "{line} {report}");
        assert!(limit.as_str().is_none_or(|what| used[what]["share"].as_f64().unwrap() >= 0.7), "{report}");
    }
    sandbox.assert_nothing_left("after the runs");
}

/// A19: while its program runs, a job asks nothing of the shared file system: what is opened there is what staging opens,
/// however often the program opens its files.
#[test]
fn a19_the_shared_file_system_is_left_alone_by_programs() {
    const FILES: usize = 20;
    const ROUNDS: usize = 30;
    let sandbox = Sandbox::new();
    let (shared, results) = (sandbox.path("pfs/data"), sandbox.path("pfs/results"));
    for dir in [&shared, &results] {
        fs::create_dir_all(dir).unwrap();
    }
    for number in 0..FILES {
        fs::write(shared.join(format!("f{number}")), "data\n").unwrap();
    }
    let opens = Opens::watch(&[&shared, &results]);
    let work = |input: &str, output: &str| {
        format!(
            "for i in $(seq {ROUNDS}); do for f in {input}/f*; do read line < $f; done; echo $i > {output}/o; done"
        )
    };
    let (input, output) = (format!("{}:/in", shared.display()), format!("/out:{}", results.display()));
    let staged = |program: &str| {
        let args = ["run", "--in", &input, "--out", &output, "--", "sh", "-c", program];
        sandbox.ok(&args);
        opens.count()
    };
    let make = "mkdir $TIDEPOOL_DIR/out";
    let idle = staged(&format!("{make}; echo 0 > $TIDEPOOL_DIR/out/o"));
    let busy = staged(&format!("{make}; {}", work("$TIDEPOOL_DIR/in", "$TIDEPOOL_DIR/out")));
    let plain = work(&shared.display().to_string(), &results.display().to_string());
    assert!(std::process::Command::new("sh").args(["-c", &plain]).status().unwrap().success());
    let direct = opens.count();
    println!("opens of the shared files: {direct} without a pool, {busy} with one, {idle} by staging alone");
    assert!(direct >= ROUNDS * FILES, "{direct}");
    assert!(busy <= idle + 2, "{busy} opens, of which staging makes {idle}");
    assert!(idle < direct / 5, "{idle} of {direct}");
}
