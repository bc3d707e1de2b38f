//! `tidepool stage` with a real stager: every command, its text, its JSON, its exit code.

mod common;

use common::OwnStager;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use tidepool_testkit::copy_program;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The keys of an object, for shapes that scripts rely on.
fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

const TASK_KEYS: [&str; 18] = [
    "age_ms",
    "bytes_done",
    "bytes_total",
    "destination",
    "error",
    "eta_ms",
    "files_done",
    "files_total",
    "id",
    "job",
    "op",
    "percent",
    "phase",
    "rate",
    "source",
    "state",
    "total_known",
    "uid",
];
const MIB: usize = 1 << 20;

fn put(stager: &OwnStager, name: &str, bytes: usize) {
    let path = stager.sandbox.path(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, vec![b'x'; bytes]).unwrap();
}

/// A task that takes seconds; its id.
fn slow(stager: &OwnStager) -> String {
    put(stager, "a/slow", 64 * MIB);
    stager.ok(&["submit", "--bandwidth", "16MiB", "copy", "a://slow", "b://slow"]).trim().to_string()
}

#[test]
fn tasks_are_submitted_looked_at_and_forgotten() {
    let stager = OwnStager::with("");
    put(&stager, "a/x", 5);
    let id = stager.ok(&["submit", "copy", "a://x", "b://y"]).trim().to_string();
    assert!(stager.ok(&["wait", &id, "--timeout", "10m"]).contains("finished"));
    assert_eq!(fs::read(stager.sandbox.path("b/y")).unwrap(), b"xxxxx");
    let status = json(&stager.ok(&["status", &id, "--json"]));
    let task = &status["tasks"][0];
    assert_eq!(keys(task), TASK_KEYS);
    assert_eq!(
        (&task["state"], &task["percent"], &task["error"]),
        (&"finished".into(), &100.into(), &Value::Null)
    );
    assert!(stager.ok(&["status", &id]).contains("b://y"));
    assert!(stager.ok(&["list", "--state", "finished"]).contains("copy a://x -> b://y"));
    assert_eq!(json(&stager.ok(&["--json", "list", "--state", "failed"]))["tasks"], Value::Array(vec![]));
    let moved = json(&stager.ok(&["submit", "--json", "--wait", "move", "b://y", "b://z"]));
    assert_eq!(keys(&moved), ["ids", "refused", "tasks"]);
    assert_eq!(moved["tasks"][0]["state"], "finished");
    assert!(!stager.sandbox.path("b/y").exists());
    stager.ok(&["submit", "--wait", "remove", "b://z"]);
    assert!(!stager.sandbox.path("b/z").exists());
    assert_eq!(stager.ok(&["forget", &id]), format!("task {id} is forgotten\n"));
    let (_, error) = stager.ends(120, &["status", &id]);
    assert!(error.contains(&format!("no task {id}")) && error.contains("tidepool stage list"), "{error}");
    let whole = json(&stager.ok(&["status", "--json"]));
    assert_eq!((&whole["pending"], &whole["paused"]), (&0.into(), &false.into()));
    assert!(stager.ok(&["status"]).contains("first-come"));
}

/// `kill -9`. The next stager can start when this returns: the last of its threads has let go of its lock.
fn kill(stager: &OwnStager) {
    let started = stager.sandbox.ok(&["stage", "--json", "start", "--dir", &stager.dir()]);
    let pid = json(&started)["pid"].to_string();
    assert!(std::process::Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    let lock = fs::File::open(stager.sandbox.path("run/lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
}

/// What the stager has been asked so far, without this question.
fn requests(stager: &OwnStager) -> u64 {
    let status = json(&stager.ok(&["status", "--json"]));
    let counters = &status["counters"];
    counters["requests"].as_u64().unwrap_or_else(|| panic!("{status}"))
}

#[test]
fn a_short_task_is_submitted_and_waited_for_with_one_request() {
    let stager = OwnStager::with("");
    put(&stager, "a/x", 5);
    let asked = |args: &[&str]| {
        let before = requests(&stager);
        stager.ok(args);
        requests(&stager) - before
    };
    let nothing = asked(&["list", "--state", "failed"]);
    assert_eq!(asked(&["submit", "--wait", "--verify-disk", "copy", "a://x", "b://y"]), nothing);
    assert_eq!(fs::read(stager.sandbox.path("b/y")).unwrap(), b"xxxxx");
}

#[test]
fn a_submission_that_waits_outlives_a_killed_stager() {
    let stager = OwnStager::with("");
    put(&stager, "a/slow", 16 * MIB);
    let submit = ["--json", "submit", "--wait", "--bandwidth", "4MiB", "copy", "a://slow", "b://slow"];
    let waiting = stager.stage(&submit).stdout(Stdio::piped()).spawn().unwrap();
    let moved = || {
        let tasks = json(&stager.ok(&["--json", "list", "--state", "running"]));
        tasks["tasks"][0]["bytes_done"].as_u64()
    };
    // It has waited with its first request, and asks for the task by its number.
    while moved().is_none_or(|bytes| bytes < 4 * MIB as u64) {
        std::thread::yield_now();
    }
    kill(&stager);
    stager.start();
    let output = waiting.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", common::text(&output));
    let told = json(&String::from_utf8_lossy(&output.stdout));
    assert_eq!((&told["ids"][0], &told["tasks"][0]["state"]), (&1.into(), &"finished".into()));
    assert_eq!(fs::metadata(stager.sandbox.path("b/slow")).unwrap().len(), 16 * MIB as u64);
}

#[test]
fn ends_of_tasks_have_exit_codes_of_their_own() {
    let stager = OwnStager::with("");
    let (out, error) = stager.ends(117, &["submit", "--wait", "copy", "a://missing", "b://x"]);
    assert!(out.contains("failed"), "{out}");
    for part in ["a://missing -> b://x", "no such file", "resume", "task 1 at "] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(!error.contains("stager.toml"));
    let id = slow(&stager);
    let (_, error) = stager.ends(119, &["wait", &id, "--timeout", "50ms"]);
    assert!(error.contains("in time") && error.contains("wait again"), "{error}");
    stager.ok(&["cancel", &id]);
    stager.ends(118, &["wait", &id]);
    let (out, _) = stager.ends(120, &["--json", "cancel", &id]);
    assert_eq!(json(&out)["refused"][0]["error"]["name"], "NORNS_ETASKSTATE");
    assert_eq!(stager.ok(&["resume", &id]), format!("task {id} goes on\n"));
    stager.ok(&["wait", &id]);
    assert_eq!(fs::metadata(stager.sandbox.path("b/slow")).unwrap().len(), 64 * MIB as u64);
    // One of several is enough, and who has not ended has not failed.
    let next = slow(&stager);
    stager.ok(&["wait", "--any", &id, &next]);
    stager.ok(&["cancel", &next]);
    stager.ends(117, &["wait", "1", &next]);
}

#[test]
fn what_goes_wrong_before_a_task_has_exit_codes_too() {
    let stager = OwnStager::with("");
    put(&stager, "a/x", 1);
    let (out, error) = stager.ends(120, &["--json", "submit", "copy", "nowhere://x", "b://x"]);
    let told = &json(&out)["error"];
    assert_eq!(keys(told), ["code", "detail", "exit", "name", "node"]);
    assert_eq!((&told["name"], &told["exit"]), (&"NORNS_ENOSUCHNAMESPACE".into(), &120.into()));
    assert!(error.contains("a://, b://"), "{error}");
    stager.ends(2, &["submit", "copy", "a://x"]);
    stager.ends(2, &["submit", "remove", "a://x", "b://x"]);
    stager.ends(2, &["submit", "copy", "here", "b://x"]);
    stager.ends(2, &["submit"]);
    stager.ends(2, &["submit", "--verify-disk", "--no-verify", "copy", "a://x", "b://x"]);
    stager.ok(&["pause"]);
    let (_, error) = stager.ends(120, &["submit", "copy", "a://x", "b://x"]);
    assert!(error.contains("unpause"), "{error}");
    stager.ok(&["unpause"]);
    let user = stager.sandbox.path("run/user.socket").display().to_string();
    let (_, error) = stager.ends(122, &["--socket", &user, "pause"]);
    assert!(error.contains("control"), "{error}");
    let (_, error) = stager.ends(121, &["--socket", "/nonexistent/socket", "status"]);
    assert!(error.contains("/nonexistent/socket") && error.contains("tidepool-staged"), "{error}");
}

#[test]
fn other_users_are_kept_out() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: needs root, to become another user");
        return;
    }
    let stager = OwnStager::with("");
    stager.sandbox.let_others_in();
    fs::set_permissions(stager.sandbox.path("run"), fs::Permissions::from_mode(0o711)).unwrap();
    let program = tempfile::tempdir().unwrap();
    fs::set_permissions(program.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = program.path().join("tidepool");
    copy_program(env!("CARGO_BIN_EXE_tidepool").as_ref(), &copy);
    let as_nobody = |socket: &str, args: &[&str]| {
        let mut command = std::process::Command::new(&copy);
        command.arg("stage").arg("--socket").arg(stager.sandbox.path(socket)).args(args);
        command.uid(65534).gid(65534).output().unwrap()
    };
    for (socket, args) in [
        ("run/control.socket", &["status"][..]),
        ("run/user.socket", &["shutdown"]),
        ("run/user.socket", &["submit", "copy", "a://x", "b://x"]),
        ("run/user.socket", &["job", "list"]),
    ] {
        let output = as_nobody(socket, args);
        assert_eq!(output.status.code(), Some(122), "{args:?}: {}", common::text(&output));
    }
}

#[test]
fn lists_of_tasks_are_submitted_whole_or_not_at_all() {
    let stager = OwnStager::with("");
    put(&stager, "a/with blank", 3);
    put(&stager, "a/x", 4);
    let list = stager.sandbox.path("tasks.txt");
    fs::write(&list, "# in\ncopy \"a://with blank\" b://1 priority=3\ncopy a://x b://2 verify=no\n").unwrap();
    let done = json(&stager.ok(&["submit", "--wait", "--json", "--from", "tasks.txt"]));
    assert_eq!(done["tasks"].as_array().unwrap().len(), 2);
    assert_eq!(fs::read(stager.sandbox.path("b/1")).unwrap().len(), 3);
    fs::write(&list, "copy a://x b://3\ncopy a://x\n").unwrap();
    let (_, error) = stager.ends(2, &["submit", "--from", "tasks.txt"]);
    assert!(error.contains("tasks.txt: line 2, column 11: the destination is missing"), "{error}");
    assert!(error.contains("nothing was submitted") && !stager.sandbox.path("b/3").exists(), "{error}");
    // What the stager refuses does not keep the others.
    let mut child = stager
        .stage(&["submit", "--json", "--from", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"\ncopy q://x b://4\ncopy a://x b://5\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(120), "{}", common::text(&output));
    let said = json(&String::from_utf8_lossy(&output.stdout));
    assert_eq!((&said["ids"][0], &said["refused"][0]["line"]), (&0.into(), &2.into()));
    assert!(String::from_utf8_lossy(&output.stderr).contains("line 2: the stager of"));
    stager.ok(&["wait", &said["ids"][1].to_string()]);
    assert!(stager.sandbox.path("b/5").exists());
    stager.ends(1, &["submit", "--from", "missing.txt"]);
}

#[test]
fn a_plan_counts_and_tells_problems() {
    let stager = OwnStager::with("");
    put(&stager, "a/tree/x", 1000);
    put(&stager, "a/tree/y", 24);
    let text = stager.ok(&["plan", "copy", "a://tree", "b://tree"]);
    assert!(text.starts_with("copy a://tree -> b://tree\n") && text.contains("1.0 KiB"), "{text}");
    let plan = json(&stager.ok(&["--json", "plan", "copy", "a://tree", "b://tree"]));
    assert_eq!((&plan["problems"], &plan["plans"][0]["bytes"]), (&0.into(), &1024.into()));
    assert_eq!(plan["plans"][0]["files"], 2);
    assert!(!stager.sandbox.path("b/tree").exists());
    let mount = stager.sandbox.path("b").display().to_string();
    stager.ok(&["dataspace", "update", "b", "--mount", &mount, "--capacity", "1000"]);
    let (out, error) = stager.ends(123, &["plan", "copy", "a://tree", "b://tree"]);
    assert!(out.contains("problem: ") && error.contains("1 problem(s)"), "{out}{error}");
    stager.ends(117, &["submit", "--wait", "copy", "a://tree", "b://tree"]);
}

/// 1,000 files at a rate that takes seconds.
fn slow_tree(stager: &OwnStager) -> String {
    (0..1000).for_each(|n| put(stager, &format!("a/tree/{n}"), 40_000));
    stager.ok(&["submit", "--bandwidth", "10MiB", "copy", "a://tree", "b://tree"]).trim().to_string()
}

fn percentages(told: &[Option<u64>]) -> Vec<u64> {
    let known: Vec<u64> = told.iter().flatten().copied().collect();
    assert!(known.is_sorted(), "percentages fall: {known:?}");
    assert_eq!(known.last(), Some(&100), "{known:?}");
    known
}

#[test]
fn who_watches_sees_progress_that_never_falls() {
    let stager = OwnStager::with("");
    let id = slow_tree(&stager);
    let watcher = stager.stage(&["status", "--watch", &id]).stdout(Stdio::piped()).spawn().unwrap();
    let objects = stager.ok(&["--json", "status", "--watch", &id]);
    let objects: Vec<Value> = objects.lines().map(json).collect();
    let (end, updates) = objects.split_last().unwrap();
    assert_eq!(end["ended"], 1);
    assert!(updates.iter().all(|update| keys(update) == TASK_KEYS));
    let seen = percentages(&updates.iter().map(|u| u["percent"].as_u64()).collect::<Vec<_>>());
    assert!(seen.len() >= 4, "{seen:?}");
    let lines = String::from_utf8(watcher.wait_with_output().unwrap().stdout).unwrap();
    let percent = |line: &str| line.split_once(" %")?.0.rsplit_once(' ')?.1.parse().ok();
    assert!(percentages(&lines.lines().map(percent).collect::<Vec<_>>()).len() >= 4, "{lines}");
    assert!(lines.contains("/s") && lines.contains("left"), "{lines}");
    assert_eq!(stager.ok(&["status", "--watch"]), "no task is under way\n");
}

#[test]
fn who_watches_sees_a_killed_stager_come_back() {
    let stager = OwnStager::with("");
    let id = slow_tree(&stager);
    let mut watcher =
        stager.stage(&["--json", "status", "--watch", &id]).stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    kill(&stager);
    stager.start();
    let output = {
        let mut said = String::new();
        std::io::Read::read_to_string(watcher.stdout.as_mut().unwrap(), &mut said).unwrap();
        said
    };
    assert!(watcher.wait().unwrap().success(), "{output}");
    let updates: Vec<Value> = output.lines().map(json).collect();
    percentages(&updates[..updates.len() - 1].iter().map(|u| u["percent"].as_u64()).collect::<Vec<_>>());
    assert_eq!(fs::read_dir(stager.sandbox.path("b/tree")).unwrap().count(), 1000);
}

#[test]
fn a_terminal_is_redrawn() {
    let Some(script) = common::tool("script") else { return };
    let stager = OwnStager::with("");
    let id = slow(&stager);
    let line = format!("{} stage status --watch {id}", env!("CARGO_BIN_EXE_tidepool"));
    let mut command = std::process::Command::new(script);
    command.args(["-qec", &line, "/dev/null"]).env("TIDEPOOL_STAGER_SOCKET", stager.socket());
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("\x1b[2A\x1b[J"), "{said}");
    assert!(said.contains("100 %"), "{said}");
}

#[test]
fn dataspaces_are_administered() {
    let stager = OwnStager::with("");
    let mount = stager.sandbox.path("a").display().to_string();
    // As the caller's shell sees it, wherever the stager runs.
    let register = ["dataspace", "register", "c", "--mount", "a", "--track", "--capacity", "1MiB"];
    assert_eq!(stager.ok(&register), "dataspace c:// is registered\n");
    let (_, error) = stager.ends(120, &register);
    assert!(error.contains("'update'"), "{error}");
    stager.ok(&[
        "dataspace",
        "update",
        "c",
        "--mount",
        &mount,
        "--track",
        "--streams",
        "2",
        "--bandwidth",
        "1GiB",
    ]);
    let all = json(&stager.ok(&["dataspace", "list", "--json"]));
    let c = all["dataspaces"].as_array().unwrap().iter().find(|d| d["name"] == "c://").unwrap();
    assert_eq!(
        keys(c),
        ["bandwidth", "capacity", "kind", "mount", "name", "quota", "streams_max", "tracked", "used"]
    );
    assert_eq!(c["mount"], mount.as_str());
    assert_eq!((&c["kind"], &c["capacity"], &c["streams_max"]), (&"local".into(), &0.into(), &2.into()));
    assert!(stager.ok(&["dataspace", "list"]).contains("1.0 GiB/s"));
    put(&stager, "a/left", 7);
    assert_eq!(stager.ok(&["dataspace", "leftovers", "c"]), "c://left  7 B\n");
    assert_eq!(
        json(&stager.ok(&["--json", "dataspace", "leftovers", "c://"]))["leftovers"][0]["path"],
        "left"
    );
    let (_, error) = stager.ends(120, &["dataspace", "unregister", "c://"]);
    assert!(error.contains("left"), "{error}");
    fs::remove_file(stager.sandbox.path("a/left")).unwrap();
    stager.ok(&["dataspace", "unregister", "c://"]);
    let (_, error) = stager.ends(120, &["dataspace", "register", "d://", "--mount", "/nonexistent"]);
    assert!(error.contains("/nonexistent"), "{error}");
    stager.ends(2, &["dataspace", "register", "a/b", "--mount", &mount]);
}

#[test]
fn pools_are_dataspaces_by_name() {
    let stager = OwnStager::with("");
    put(&stager, "a/in/x", 100_000);
    stager.sandbox.ok(&["pool", "start", "--name", "mine"]);
    assert_eq!(
        stager.ok(&["dataspace", "register", "p", "--pool", "mine"]),
        "dataspace p:// is registered\n"
    );
    stager.ok(&["submit", "--wait", "copy", "a://in", "p://in"]);
    stager.ok(&["submit", "--wait", "copy", "p://in/x", "b://x"]);
    assert_eq!(fs::metadata(stager.sandbox.path("b/x")).unwrap().len(), 100_000);
    stager.ok(&["dataspace", "unregister", "p"]);
    // The same task by the same name, on another tier.
    let tier = ["submit", "--wait", "copy", "a://in/x", "tier://swapped"];
    stager.ok(&["dataspace", "register", "tier", "--mount", "b"]);
    stager.ok(&tier);
    stager.ok(&["dataspace", "update", "tier", "--pool", "mine"]);
    stager.ok(&tier);
    assert!(stager.sandbox.path("b/swapped").exists());
    assert!(stager.sandbox.ok(&["ls", "--pool", "mine", "/"]).contains("swapped"));
    stager.ok(&["dataspace", "unregister", "tier"]);
    stager.sandbox.ok(&["pool", "stop", "--pool", "mine"]);
    stager.ends(2, &["dataspace", "register", "p", "--pool", "mine", "--mount", "a"]);
    stager.ends(2, &["dataspace", "register", "p"]);
    let (_, error) = stager.ends(116, &["dataspace", "register", "p", "--pool", "mine"]);
    assert!(error.contains("mine"), "{error}");
}

#[test]
fn stagers_of_other_nodes_are_reached_by_host_and_port() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    fs::write(secret.path(), format!("{}\n{}\n", "5a".repeat(32), "07".repeat(32))).unwrap();
    let secret = format!(
        "secret-file = \"{}\"\nadmins = [\"13be4feaeaf204c7fd3358fc9c00721881d174278128227ec674f37f7fe97b6d\"]",
        secret.path().display()
    );
    let address = tidepool_testkit::free_address().to_string();
    let there = OwnStager::with(&format!("{secret}\nlisten = \"{address}\""));
    let here = OwnStager::with(&secret);
    put(&here, "a/tree/x", 3000);
    let target = format!("{address}/b://in");
    here.ok(&["submit", "--wait", "copy", "a://tree", &target]);
    assert_eq!(fs::metadata(there.sandbox.path("b/in/x")).unwrap().len(), 3000);
    let list = here.ok(&["list"]);
    assert!(list.contains(&format!("copy a://tree -> {target}")), "{list}");
    here.ok(&["submit", "--wait", "move", &format!("{target}/x"), "b://back"]);
    assert!(here.sandbox.path("b/back").exists() && !there.sandbox.path("b/in/x").exists());
    let missing = format!("{address}/z://x");
    let (_, error) = here.ends(117, &["submit", "--wait", "copy", &missing, "b://x"]);
    assert!(error.contains(&missing) && error.contains("no dataspace 'z://'"), "{error}");
}

#[test]
fn jobs_are_administered() {
    let stager = OwnStager::with("");
    put(&stager, "a/x", 2000);
    stager.ok(&["job", "register", "42", "--host", "n0", "--limit", "a", "--limit", "b://=1000"]);
    let jobs = json(&stager.ok(&["job", "list", "--json"]));
    assert_eq!(jobs["jobs"][0]["limits"][1], serde_json::json!({ "dataspace": "b://", "quota": 1000 }));
    assert!(stager.ok(&["job", "list"]).contains("b://=1000 B"));
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let behalf = format!("{uid}:{gid}:42");
    let submit = ["submit", "--wait", "--on-behalf", &behalf, "copy", "a://x", "b://x"];
    let (_, error) = stager.ends(117, &submit);
    assert!(error.contains("job 42") && error.contains("1000"), "{error}");
    stager.ok(&["job", "update", "42", "--host", "n0", "--limit", "a://", "--limit", "b://=1MiB"]);
    stager.ok(&submit);
    let report = json(&stager.ok(&["job", "report", "42", "--json"]));
    assert_eq!((&report["tasks"], &report["failed"], &report["bytes"]), (&2.into(), &1.into(), &2000.into()));
    assert_eq!(keys(&report["pairs"][0]), ["busy_ms", "bytes", "files", "from", "to"]);
    assert!(stager.ok(&["status", "--job", "42"]).lines().count() == 3);
    let own = std::process::id().to_string();
    stager.ok(&["job", "add-process", "42", &own]);
    // What this process starts belongs to the job: no --on-behalf, and the user socket.
    let user = stager.sandbox.path("run/user.socket").display().to_string();
    stager.ok(&["--socket", &user, "submit", "--wait", "copy", "a://x", "b://y"]);
    stager.ok(&["job", "remove-process", "42", &own]);
    stager.ends(120, &["job", "add-process", "43", &own]);
    stager.ends(1, &["job", "add-process", "42", "999999999"]);
    assert_eq!(stager.ok(&["job", "unregister", "42"]), "nothing is left\n");
    let (_, error) = stager.ends(120, &["job", "unregister", "42"]);
    assert!(error.contains("job list"), "{error}");
}

#[test]
fn locations_are_kept_shared_and_removed() {
    let stager = OwnStager::with("");
    put(&stager, "b/mesh/x", 9);
    stager.ok(&["persist", "store", "b://mesh", "--expires", "6w"]);
    stager.ok(&["persist", "share", "b://mesh", "1001"]);
    let kept = &json(&stager.ok(&["--json", "persist", "list"]))["locations"][0];
    assert_eq!(keys(kept), ["dataspace", "expires", "owner", "path", "shared"]);
    assert_eq!((&kept["path"], &kept["shared"]), (&"mesh".into(), &serde_json::json!([1001])));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let weeks = (kept["expires"].as_u64().unwrap() - now) as f64 / 604_800.0;
    assert!((5.9..=6.0).contains(&weeks), "{weeks}");
    assert!(stager.ok(&["persist", "list"]).contains("in 4"));
    stager.ok(&["persist", "unshare", "b://mesh", "1001"]);
    let task = stager.ok(&["persist", "delete", "b://mesh"]).trim().to_string();
    stager.ok(&["wait", &task]);
    assert!(!stager.sandbox.path("b/mesh").exists());
    let (_, error) = stager.ends(120, &["persist", "share", "b://mesh", "1001"]);
    assert!(error.contains("persist list"), "{error}");
    stager.ok(&["persist", "store", "b://other", "--owner", "1000"]);
    assert_eq!(json(&stager.ok(&["--json", "persist", "list"]))["locations"][0]["owner"], 1000);
    stager.ends(2, &["persist", "store", "b://x", "--expires", "soon"]);
    stager.ends(2, &["persist", "store", "n1:42000/b://x"]);
}

#[test]
fn a_stager_of_ones_own_starts_and_stops() {
    let stager = OwnStager::with("");
    assert!(stager.start().contains("runs already"));
    let started = json(&stager.sandbox.ok(&["stage", "--json", "start", "--dir", &stager.dir()]));
    assert_eq!(keys(&started), ["already", "control_socket", "dir", "log", "node", "pid", "user_socket"]);
    assert_eq!(stager.ok(&["policy", "fair-by-user"]).split(' ').next_back(), Some("fair-by-user\n"));
    assert!(stager.ok(&["status"]).contains("fair-by-user"));
    stager.ends(2, &["policy", "fifo"]);
    let id = slow(&stager);
    let (_, error) = stager.ends(120, &["stop", "--dir", &stager.dir()]);
    assert!(error.contains("list --control"), "{error}");
    assert!(stager.ok(&["stop", "--dir", &stager.dir(), "--now"]).contains("is stopped"));
    assert!(!stager.socket().exists());
    stager.ends(121, &["stop", "--dir", &stager.dir()]);
    assert!(stager.start().contains("is up"));
    stager.ok(&["wait", &id]);
    stager.ok(&["shutdown"]);
    while stager.socket().exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    fs::write(stager.sandbox.path("stager.toml"), "workers = 0\n").unwrap();
    let config = stager.sandbox.path("stager.toml").display().to_string();
    let (_, error) = stager.ends(1, &["start", "--dir", &stager.dir(), "--config", &config]);
    assert!(error.contains("workers is 0") && error.contains("log ends with"), "{error}");
}

#[test]
fn every_command_has_help_with_an_example() {
    let sandbox = common::Sandbox::new();
    let help = |args: &[&str]| sandbox.ok(&[&["stage"], args, &["--help"]].concat());
    let top = help(&[]);
    let commands = |text: &str| -> Vec<String> {
        let listed = text.lines().skip_while(|line| *line != "Commands:").skip(1);
        let named = listed.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
        named
            .filter_map(|line| line.split_whitespace().next().map(str::to_string))
            .filter(|w| w != "help")
            .collect()
    };
    let mut leaves = 0;
    for name in commands(&top) {
        let text = help(&[&name]);
        let below = commands(&text);
        for command in &below {
            let text = help(&[&name, command]);
            leaves += usize::from(text.contains("tidepool stage") && text.contains("--json"));
        }
        assert!(!below.is_empty() || text.contains("Example"), "{name}: {text}");
    }
    assert!(leaves >= 15, "{leaves} commands below others");
    for code in 117..=123 {
        assert!(top.contains(&code.to_string()), "{top}");
    }
}

/// A configuration that the daemon reads; what it says about it.
fn check(config: &std::path::Path) -> std::process::Output {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_tidepool")).with_file_name("tidepool-staged");
    std::process::Command::new(program).arg("--check").arg("--config").arg(config).output().unwrap()
}

#[test]
fn the_guide_shows_every_key_of_the_configuration() {
    let sandbox = common::Sandbox::new();
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/stager.md");
    let page = fs::read_to_string(page).unwrap();
    let shown = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let secret = sandbox.path("secret");
    fs::write(&secret, format!("{}\n{}\n", "5a".repeat(32), "07".repeat(32))).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let config = sandbox.path("stager.toml");
    // A daemon without libfabric refuses to be told of a fabric.
    let usual: String =
        shown.lines().filter(|line| !line.starts_with("fabric = ")).map(|line| format!("{line}\n")).collect();
    let secrets = ["/etc/tidepool/stager.secret", "/etc/tidepool/other.secret"];
    let usual = secrets.iter().fold(usual, |text, file| text.replace(file, &secret.display().to_string()));
    fs::write(&config, usual).unwrap();
    let output = check(&config);
    assert!(output.status.success(), "{}", common::text(&output));
    // The error about an unknown key lists those there are.
    for unknown in
        ["nokey = 1\n", "[[dataspace]]\nname = \"a\"\nkind = \"local\"\nmount = \"/\"\nnokey = 1\n"]
    {
        fs::write(&config, unknown).unwrap();
        let said = String::from_utf8(check(&config).stderr).unwrap();
        let keys: Vec<&str> =
            said.split("expected one of").nth(1).unwrap().split('`').skip(1).step_by(2).collect();
        assert!(keys.len() >= 7, "{said}");
        for key in keys {
            let there = shown.contains(&format!("\n{key} = ")) || shown.starts_with(&format!("{key} = "));
            assert!(there || shown.contains(&format!("[[{key}]]")), "the guide does not show {key}");
        }
    }
}

/// A stager that listens to others, and the flags that lead to it from another node.
fn listening() -> (OwnStager, tempfile::TempDir, [String; 4]) {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    fs::write(&secret, format!("{}\n{}\n", "5a".repeat(32), "07".repeat(32))).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let free = tidepool_testkit::free_address();
    let stager = OwnStager::with(&format!(
        "listen = \"{free}\"\nsecret-file = \"{}\"\nadmins = [\"13be4feaeaf204c7fd3358fc9c00721881d174278128227ec674f37f7fe97b6d\"]",
        secret.display()
    ));
    let flags = ["--at".into(), free.to_string(), "--secret-file".into(), secret.display().to_string()];
    (stager, dir, flags)
}

#[test]
fn a_stager_of_another_node_is_asked_with_the_secret() {
    let (stager, _dir, [at, address, file, secret]) = listening();
    let afar = [at.as_str(), &address, &file, &secret];
    let with = |args: &[&'static str]| [&afar[..], args].concat();
    put(&stager, "a/x", 5);
    stager.ok(&with(&["submit", "--wait", "copy", "a://x", "b://y"]));
    assert!(stager.sandbox.path("b/y").exists());
    // Administration, without --control.
    stager.ok(&with(&["job", "register", "42", "--host", "n0", "--limit", "a://"]));
    assert!(stager.ok(&["job", "list"]).contains("42"));
    stager.ok(&with(&["job", "ready", "42"]));
    let own = stager.socket().display().to_string();
    stager.ok(&["--socket", &own, "--secret-file", &secret, "job", "ready", "42", "--stager", &address]);
    // What goes wrong names the address, and has the codes of other stagers.
    let (_, said) = stager.ends(2, &["--at", &address, "status"]);
    assert!(said.contains("--secret-file"), "{said}");
    let (_, said) = stager.ends(2, &["job", "ready", "42", "--stager", &address]);
    assert!(said.contains(&address) && said.contains("--secret-file"), "{said}");
    stager.ends(2, &with(&["--socket", "/s", "status"]));
    let (_, said) = stager.ends(2, &with(&["stop", "--dir", "/no/such"]));
    assert!(said.contains("its own node"), "{said}");
    stager.ends(2, &["--at", "nowhere", "--secret-file", &secret, "status"]);
    // Who knows the secret only is a node, and no administrator.
    let node = stager.sandbox.path("node");
    fs::write(&node, "5a".repeat(32)).unwrap();
    fs::set_permissions(&node, fs::Permissions::from_mode(0o600)).unwrap();
    let node = node.display().to_string();
    let (_, said) = stager.ends(122, &["--at", &address, "--secret-file", &node, "status"]);
    assert!(said.contains("only administrators") && said.contains("admins"), "{said}");
    let key = stager.ok(&["key", &secret]);
    assert_eq!(key.trim(), "13be4feaeaf204c7fd3358fc9c00721881d174278128227ec674f37f7fe97b6d");
    let (_, said) = stager.ends(2, &["key", &node]);
    assert!(said.contains("second line"), "{said}");
    let other = stager.sandbox.path("other");
    fs::write(&other, "5b".repeat(32)).unwrap();
    let open = other.display().to_string();
    let (_, said) = stager.ends(2, &["--at", &address, "--secret-file", &open, "status"]);
    assert!(said.contains("chmod 600"), "{said}");
    fs::set_permissions(&other, fs::Permissions::from_mode(0o600)).unwrap();
    let (_, said) = stager.ends(122, &["--at", &address, "--secret-file", &open, "status"]);
    assert!(said.contains(&address), "{said}");
    stager.ok(&["shutdown"]);
    let (out, _) = stager.ends(121, &with(&["--json", "status"]));
    let error = &json(&out)["error"];
    assert_eq!(error["exit"], 121);
    assert!(error["detail"].as_str().unwrap().contains(&address), "{error}");
}
