//! `tidepool workload`: real processes in a local directory and in a pool.

mod common;

use common::{Sandbox, processes_of, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a busy machine may take for what a test waits for.
const PATIENCE: Duration = Duration::from_secs(120);

/// Words of a command line.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Runs `tidepool workload` in the sandbox and demands this exit code; what it said.
fn ends(sandbox: &Sandbox, code: i32, line: &str) -> String {
    let output = sandbox
        .tidepool(&["workload"])
        .args(words(line))
        .current_dir(sandbox.dir.path())
        .output()
        .expect("tidepool runs");
    assert_eq!(output.status.code(), Some(code), "{line}: {}", text(&output));
    text(&output)
}

/// Runs it with `--json`.
fn json(sandbox: &Sandbox, line: &str) -> Value {
    let output = sandbox
        .tidepool(&["workload"])
        .args(words(line))
        .arg("--json")
        .current_dir(sandbox.dir.path())
        .output()
        .expect("tidepool runs");
    assert!(output.status.success(), "{line}: {}", text(&output));
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

fn put(sandbox: &Sandbox, name: &str, content: &str) {
    fs::write(sandbox.path(name), content).unwrap();
}

fn names(dir: PathBuf) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

const TWO: &str = r#"
[[application]]
name = "victim"
kind = "phases"
processes = 2
steps = 3
bytes = "300KB"
transfer = "64KiB"
compute-seconds = 0.05

[[application]]
name = "aggressor"
kind = "nastja"
start-seconds = 0.4
processes = 3
steps = 40
block-bytes = 10000
compute-seconds = 0.001
"#;

/// One that goes on until somebody ends it.
const ENDLESS: &str = r#"
[[application]]
name = "one"
kind = "openfoam"
processes = 2
steps = 10000000
every = 1
files = 3
file-bytes = 100
compute-seconds = 0.001

[[application]]
name = "other"
kind = "phases"
processes = 2
steps = 1
bytes = 100
compute-seconds = 604800
"#;

#[test]
fn every_kind_writes_what_it_tells_and_removes_it() {
    let sandbox = Sandbox::new();
    for (line, files, written, read) in [
        ("phases --processes 3 --steps 2 --bytes 100001 --transfer 4KB --io-ratio 0.5", 6, 600_006, 0),
        (
            "phases --processes 3 --steps 2 --bytes 100001 --transfer 4KB --pattern strided --layout shared",
            2,
            600_006,
            0,
        ),
        (
            "phases --processes 2 --steps 1 --bytes 50000 --transfer 700 --pattern random --fsync",
            2,
            100_000,
            0,
        ),
        (
            "wrf --processes 2 --steps 4 --every 2 --input-bytes 9000 --checkpoint-bytes 5000 --output-bytes 7000 --compute 0.001",
            4,
            34_000,
            18_000,
        ),
        ("sph --processes 3 --steps 2 --bytes 10001 --gatherers 2 --compute 0.001", 8, 120_012, 60_006),
        ("sph --processes 3 --steps 2 --bytes 10001 --mode direct --compute 0.001 --busy", 2, 60_006, 0),
        (
            "openfoam --processes 2 --steps 4 --every 2 --files 5 --file-bytes 3000 --compute 0.001",
            20,
            60_000,
            0,
        ),
        ("nastja --processes 2 --steps 40 --block-bytes 5000 --compute 0.001", 4, 20_000, 0),
    ] {
        let told = json(&sandbox, &format!("run {line} --verify w"));
        let compared = &told["compared"];
        assert_eq!(
            (&compared["files"], &compared["differences"]),
            (&files.into(), &serde_json::json!([])),
            "{line}"
        );
        let totals = &told["applications"][0]["totals"];
        assert_eq!(
            (&totals["bytes_written"], &totals["bytes_read"]),
            (&written.into(), &read.into()),
            "{line}"
        );
        assert!(!sandbox.path("w").exists(), "{line}: something is left");
        // What would be done is what was done; wrf's input is not measured.
        let planned = &json(&sandbox, &format!("run {line} --dry-run w"))["applications"][0]["all"];
        let prepared = if line.starts_with("wrf") { 18_000 } else { 0 };
        assert_eq!(planned["bytes_written"], written + prepared, "{line}");
        assert_eq!(planned["bytes_read"], read, "{line}");
    }
}

#[test]
fn times_are_of_the_slowest_fastest_and_mean_process() {
    let sandbox = Sandbox::new();
    let told = json(&sandbox, "run phases --processes 3 --steps 2 --bytes 200KB --compute 0.05 w");
    let one = &told["applications"][0];
    let phases = one["phases"].as_array().unwrap();
    assert_eq!(phases.len(), 2);
    let (mut io, mut compute) = (0.0, 0.0);
    for phase in phases {
        let of = |span: &str, key: &str| phase[span]["seconds"][key].as_f64().unwrap();
        for span in ["compute", "io"] {
            let (min, mean, max) = (of(span, "min"), of(span, "mean"), of(span, "max"));
            assert!(0.0 < min && min <= mean && mean <= max, "{phase}");
        }
        assert!(of("compute", "min") >= 0.05, "{phase}");
        // The barrier: nobody writes before the last one has computed.
        assert!(phase["io"]["began"].as_f64() >= phase["compute"]["ended"].as_f64(), "{phase}");
        io += of("io", "max");
        compute += of("compute", "max");
    }
    let total = |key: &str| one["totals"][key].as_f64().unwrap();
    assert!(
        (total("io_seconds") - io).abs() < 1e-9 && (total("compute_seconds") - compute).abs() < 1e-9,
        "{one}"
    );
    assert!(total("wall_seconds") >= io + compute, "{one}");
}

#[test]
fn a_ratio_is_made_of_the_first_step_or_of_what_is_told() {
    let sandbox = Sandbox::new();
    let line = "run phases --processes 2 --steps 3 --bytes 100KB --io-ratio 0.25";
    let measured = &json(&sandbox, &format!("{line} w"))["applications"][0];
    let first = measured["phases"][0]["io"]["seconds"]["max"].as_f64().unwrap();
    assert!(measured["phases"][0]["compute"].is_null(), "nothing is computed before it is known");
    assert!((measured["compute_each"].as_f64().unwrap() - 3.0 * first).abs() < 1e-6, "{measured}");
    assert_eq!(measured["derived_from"].as_f64(), Some(first));
    assert!(
        measured["phases"][1]["compute"]["seconds"]["min"].as_f64().unwrap() >= 2.99 * first,
        "{measured}"
    );
    let told = &json(&sandbox, &format!("{line} --alone 0.01 w"))["applications"][0];
    assert!(
        (told["compute_each"].as_f64().unwrap() - 0.03).abs() < 1e-9 && told["derived_from"].is_null(),
        "{told}"
    );
    assert!(told["phases"][0]["compute"]["seconds"]["min"].as_f64().unwrap() >= 0.03, "{told}");
    let said = ends(&sandbox, 0, &format!("{line} w"));
    assert!(said.contains("derived from its first measured I/O"), "{said}");
}

#[test]
fn two_applications_run_at_once_with_an_offset() {
    let sandbox = Sandbox::new();
    put(&sandbox, "two.toml", TWO);
    let told = json(&sandbox, "run --file two.toml --verify --csv two.csv --html two.html w");
    let [victim, aggressor] = [0, 1].map(|n| &told["applications"][n]);
    assert_eq!((&victim["name"], &aggressor["kind"]), (&"victim".into(), &"nastja".into()));
    let began = |all: &Value| all["phases"][0]["compute"]["began"].as_f64().unwrap();
    assert!(began(aggressor) >= 0.4 && began(victim) < began(aggressor), "{told}");
    assert_eq!(told["compared"]["files"], 3 * 2 + 2 * 3);
    let csv = fs::read_to_string(sandbox.path("two.csv")).unwrap();
    let head = "application,kind,processes,stage,step,began_seconds,compute_min_seconds,compute_mean_seconds,\
                compute_max_seconds,io_min_seconds,io_mean_seconds,io_max_seconds,bytes_written,bytes_read,operations,bytes_per_second";
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!((lines[0], lines.len()), (head, 1 + 3 + 40));
    assert!(lines.iter().all(|line| line.split(',').count() == 16), "{csv}");
    assert!(lines[1].starts_with("victim,phases,2,step,1,"), "{csv}");
    // 5 writes of each process, opened and closed.
    assert!(lines[1].contains(",600000,0,14,"), "{csv}");
    assert!(lines[4].starts_with("aggressor,nastja,3,step,1,") && lines[4].ends_with(",,,,0,0,0,"), "{csv}");
    assert!(
        lines[23].starts_with("aggressor,nastja,3,step,20,") && lines[23].contains(",30000,0,9,"),
        "{csv}"
    );
    let page = fs::read_to_string(sandbox.path("two.html")).unwrap();
    assert_eq!(page.matches("<svg").count(), 3, "steps of each, and the time line");
    assert_eq!(page.matches("<circle").count(), 3 + 2);
    let loads = ["src=", "href=", "@import", "<script", "url("];
    assert!(loads.iter().all(|word| !page.contains(word)), "the page is one file");
}

#[test]
fn a_changed_byte_is_found() {
    let sandbox = Sandbox::new();
    ends(&sandbox, 0, "run sph --processes 2 --steps 2 --bytes 20000 --compute 0.001 --keep --verify w");
    assert_eq!(ends(&sandbox, 0, "verify w").matches("6 files").count(), 1);
    let path = sandbox.path("w/sph/step0000002");
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 33_333).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 33_333).unwrap();
    let said = ends(&sandbox, 114, "verify w");
    let wanted = format!("step0000002: byte 33333 is {:#04x} instead of {:#04x}", byte[0] ^ 1, byte[0]);
    assert!(said.contains(&wanted) && said.contains("1 of 6 files"), "{said}");
    file.set_len(39_999).unwrap();
    assert!(ends(&sandbox, 114, "verify w").contains("39999 bytes instead of 40000"));
    fs::remove_file(&path).unwrap();
    assert!(ends(&sandbox, 114, "verify w").contains("No such file"));
    assert!(ends(&sandbox, 0, "clear w").contains("cleared: sph"));
    assert_eq!(names(sandbox.path("w")), [""; 0]);
    assert!(ends(&sandbox, 1, "verify w").contains("has nothing of a workload"));
}

/// Data that are changed while the applications run are found by `--verify` at the end, and nothing of them is left.
#[test]
fn what_changes_during_a_run_is_found_at_its_end() {
    let sandbox = Sandbox::new();
    // The second one keeps the first one's files waiting.
    let late = TWO.replace("start-seconds = 0.4", "start-seconds = 8");
    put(&sandbox, "late.toml", &late);
    let child = start(&sandbox, "run --file late.toml --verify w");
    let [file, next] = [1, 2].map(|step| sandbox.path(&format!("w/victim/step000000{step}.p00000")));
    wait_for("step 2", || next.exists());
    fs::File::options().write(true).open(&file).unwrap().write_all_at(b"?", 4500).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(114), "{}", text(&output));
    assert!(text(&output).contains("step0000001.p00000: byte 4500 is 0x3f instead of"), "{}", text(&output));
    assert!(!sandbox.path("w").exists());
}

fn start(sandbox: &Sandbox, line: &str) -> Child {
    let mut command = sandbox.tidepool(&["workload"]);
    command.args(words(line)).current_dir(sandbox.dir.path());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("tidepool starts")
}

/// Shells allow 1,024 open files at first, and each process takes two of the command.
#[test]
fn many_processes_run_where_few_open_files_are_allowed() {
    let sandbox = Sandbox::new();
    let own = sandbox.tidepool(&[]);
    let mut command = Command::new("prlimit");
    command.arg("--nofile=64:4096").arg(own.get_program()).arg("workload");
    command
        .args(words("run nastja --processes 60 --steps 20 --compute 0 --block-bytes 1000 --json --verify w"));
    let output = command.current_dir(sandbox.dir.path()).output().expect("prlimit runs");
    assert!(output.status.success(), "{}", text(&output));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["compared"]["files"], 60);
}

/// Whatever ends a run, no file and no process of it is left.
#[test]
fn an_interrupted_run_leaves_nothing() {
    let sandbox = Sandbox::new();
    put(&sandbox, "endless.toml", ENDLESS);
    for (signal, code) in [(Signal::INT, Some(130)), (Signal::TERM, Some(143)), (Signal::KILL, None)] {
        let child = start(&sandbox, "run --file endless.toml w");
        wait_for("a written step", || sandbox.path("w/one/processor1/0000002/field02").exists());
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), code, "{signal:?}: {}", text(&output));
        if code.is_some() {
            assert!(text(&output).contains("stopped by signal"), "{}", text(&output));
        }
        // After SIGKILL it is the keeper that clears, by itself.
        wait_for("the end of all processes", || processes_of(sandbox.dir.path()).is_empty());
        assert!(!sandbox.path("w").exists(), "{signal:?}: files are left");
    }
}

fn since_1970() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

#[test]
fn a_run_begins_when_it_is_told_to() {
    let sandbox = Sandbox::new();
    let line =
        |at: f64| format!("run phases --processes 2 --bytes 1000 --steps 1 --compute 0 --start-at {at:.3} w");
    let at = since_1970() + 4.0;
    ends(&sandbox, 0, &line(at));
    assert!(since_1970() >= at);
    for (at, why) in [(at, "after --start-at: give it longer"), (at * 1000.0, "is it in seconds?")] {
        let said = ends(&sandbox, 1, &line(at));
        assert!(said.contains(why), "{said}");
    }
    for (word, why) in
        [("-1", "no moment after 1970"), ("nan", "no moment after 1970"), ("noon", "write seconds")]
    {
        let said = ends(&sandbox, 2, &format!("run phases --start-at={word} w"));
        assert!(said.contains(why), "{said}");
    }
    // Who waits for his start is stopped like anybody else.
    let child = start(&sandbox, &line(since_1970() + 86_400.0));
    wait_for("the processes", || processes_of(sandbox.dir.path()).len() >= 3);
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    assert!(!sandbox.path("w").exists());
}

/// The room of a pool ends while another application would go on for a week.
#[test]
fn one_application_that_fails_ends_the_others() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["pool", "start", "--name", "mine", "--client", "preload", "--local", "--quota", "4MiB"]);
    let full = TWO.replace("300KB", "9MB").replace("compute-seconds = 0.001", "compute-seconds = 604800");
    put(&sandbox, "full.toml", &full);
    let said = ends(&sandbox, 1, "run --file full.toml --pool mine /w");
    assert!(said.contains("application 'victim', process ") && said.contains("writing "), "{said}");
    assert!(said.contains("fewer processes, steps or bytes need less room"), "{said}");
    assert_eq!(sandbox.ok(&["ls", "--pool", "mine", "/"]), "");
    sandbox.ok(&["pool", "stop", "--pool", "mine"]);
    sandbox.assert_nothing_left("after the pool");
}

#[test]
fn files_of_others_are_refused_and_stay() {
    let sandbox = Sandbox::new();
    let line = "run phases --processes 1 --steps 1 --bytes 100 --compute 0.001";
    fs::create_dir_all(sandbox.path("w/phases")).unwrap();
    put(&sandbox, "w/phases/thesis.tex", "years of work");
    for wipe in ["", " --wipe"] {
        let said = ends(&sandbox, 1, &format!("{line}{wipe} w"));
        assert!(said.contains("w/phases has 1 file(s) that no workload has made, as thesis.tex"), "{said}");
    }
    assert_eq!(fs::read_to_string(sandbox.path("w/phases/thesis.tex")).unwrap(), "years of work");
    assert_eq!(names(sandbox.path("w/phases")), ["thesis.tex"]);
    // Beside others' files there is room for a directory.
    ends(&sandbox, 0, &format!("{line} --name other w"));
    assert_eq!(names(sandbox.path("w")), ["phases"]);
    // Refused before anything is made, also of the other applications.
    put(&sandbox, "two.toml", &TWO.replace("aggressor", "phases"));
    ends(&sandbox, 1, "run --file two.toml w");
    assert_eq!(names(sandbox.path("w")), ["phases"]);
}

#[test]
fn files_of_an_earlier_run_are_removed_when_asked_and_nothing_else() {
    let sandbox = Sandbox::new();
    let line = "run openfoam --processes 2 --steps 2 --every 1 --files 2 --file-bytes 10 --compute 0.001";
    ends(&sandbox, 0, &format!("{line} --keep w"));
    let said = ends(&sandbox, 1, &format!("{line} w"));
    assert!(said.contains("w/openfoam has files of an earlier run; --wipe removes them first"), "{said}");
    // With other parameters: the earlier run's own are known.
    ends(
        &sandbox,
        0,
        &format!("{} --wipe --keep w", line.replace("--processes 2 --steps 2", "--processes 1 --steps 1")),
    );
    assert_eq!(names(sandbox.path("w/openfoam")), [".tidepool-workload", "processor0"]);
    assert_eq!(names(sandbox.path("w/openfoam/processor0")), ["0000001"]);
    put(&sandbox, "w/openfoam/notes", "mine");
    let said = ends(&sandbox, 113, "clear w");
    assert!(said.contains("it has 'notes', which this run has not made"), "{said}");
    assert_eq!(names(sandbox.path("w/openfoam")), [".tidepool-workload", "notes"]);
    fs::remove_file(sandbox.path("w/openfoam/notes")).unwrap();
    ends(&sandbox, 0, "clear w");
}

#[test]
fn what_is_wrong_is_said_before_anything_is_done() {
    let sandbox = Sandbox::new();
    put(
        &sandbox,
        "bad.toml",
        &TWO.replace("bytes = \"300KB\"", "byte = \"300KB\"").replace("nastja", "nastya"),
    );
    let said = ends(&sandbox, 2, "run --file bad.toml w");
    assert!(
        said.contains("bad.toml: application 'victim': there is no key 'byte'; did you mean 'bytes'?"),
        "{said}"
    );
    assert!(
        said.contains(
            "bad.toml: application 'aggressor': kind 'nastya' is not known; did you mean 'nastja'?"
        ),
        "{said}"
    );
    put(&sandbox, "two.toml", TWO);
    for (code, line, why) in [
        (2, "run --file missing.toml w", "missing.toml: No such file"),
        (2, "run --file two.toml --processes 3 w", "cannot be used with"),
        (2, "run --file two.toml phases w", "with --file there is only DIR"),
        (2, "run w", "write KIND and DIR"),
        (2, "run fases w", "kind 'fases' is not known; did you mean 'phases'?"),
        (2, "run nastja --bytes 1MB w", "'bytes' is for the kind phases, not for nastja"),
        (2, "run nastja w", "4800 processes are more than the 1024 of one machine"),
        (2, "run phases --compute 1 --io-ratio 0.5 w", "exclude each other"),
        (2, "run phases --bytes much w", "'bytes': "),
        (2, "show", "required"),
        (116, "run phases --pool nowhere /w", "nowhere"),
        (1, "run phases --processes 1 --bytes 1000 --steps 1 a/b/c", "neither it nor the directory above it"),
        (1, "run phases --processes 1024 --bytes 1TB w", "are to be written, and"),
        (1, "verify nowhere", "looking into"),
    ] {
        let said = ends(&sandbox, code, line);
        assert!(said.contains(why), "{line}: {said}");
    }
    assert!(!sandbox.path("w").exists() && !sandbox.path("a").exists());
}

#[test]
fn what_would_be_done_is_shown() {
    let sandbox = Sandbox::new();
    let said = ends(&sandbox, 0, "show openfoam");
    let expected = "\
openfoam: openfoam, 4800 process(es), 20 step(s), I/O at every 10th, each computes 1 s
EACH           TIMES  FILES   WRITTEN    READ  OPERATIONS
prepare        1      0       0 B        0 B   4800
step without   18     0       0 B        0 B   0
step with I/O  2      456000  84.9 GiB   0 B   2740800
all together          912000  169.9 GiB  0 B   5486400
";
    assert!(said.contains(expected), "{said}");
    let told = json(&sandbox, "show phases --processes 2 --bytes 1GB");
    assert_eq!(told["applications"][0]["phases"][0]["each"]["bytes_written"], 2_000_000_000_u64);
}

/// Through the preload library, by which this process does not see the files itself.
#[test]
fn in_a_pool_that_is_not_mounted_it_works_as_elsewhere() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["pool", "start", "--name", "mine", "--nodes", "2", "--client", "preload", "--local"]);
    let line = "sph --pool mine --processes 2 --steps 2 --bytes 100KB --compute 0.001";
    let told = json(&sandbox, &format!("run {line} --verify /w"));
    assert_eq!(
        (&told["compared"]["files"], &told["compared"]["differences"]),
        (&6.into(), &serde_json::json!([]))
    );
    assert_eq!(sandbox.ok(&["ls", "--pool", "mine", "/"]), "");
    ends(&sandbox, 0, &format!("run {line} --keep /w"));
    assert!(sandbox.ok(&["ls", "--pool", "mine", "/w/sph"]).contains("step0000002.p00001"));
    assert!(ends(&sandbox, 0, "verify --pool mine /w").contains("all are as they were written"));
    ends(&sandbox, 0, "clear --pool mine /w");
    assert_eq!(sandbox.ok(&["ls", "--pool", "mine", "/w"]), "");
    let mount = sandbox.path("rt/mine/mnt").display().to_string();
    let said = ends(&sandbox, 2, &format!("run phases --processes 1 {mount}/w"));
    assert!(said.contains("is in pool 'mine', which is not mounted here; write --pool mine"), "{said}");
    assert!(ends(&sandbox, 2, "run phases --pool mine ../w").contains("a path in the pool"));
    sandbox.ok(&["pool", "stop", "--pool", "mine"]);
    sandbox.assert_nothing_left("after the pool");
}
