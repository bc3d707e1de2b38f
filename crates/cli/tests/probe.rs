//! `tidepool sysmap probe`: what is measured, that a plan uses it, and that nothing is left of it.

mod common;

use common::{Sandbox, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tidepool_testkit::copy_program;

/// 64 digits.
fn secret(digit: char) -> String {
    digit.to_string().repeat(64)
}

fn dir(sandbox: &Sandbox, name: &str) -> String {
    let dir = sandbox.path(name);
    fs::create_dir_all(&dir).unwrap();
    fs::canonicalize(dir).unwrap().to_str().unwrap().to_string()
}

fn probe(sandbox: &Sandbox, args: &[&str]) -> Output {
    sandbox.tidepool(&[&["sysmap", "probe", "--size", "4MiB"], args].concat()).output().unwrap()
}

fn ok(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The data of an extractor in a database.
fn kept(sandbox: &Sandbox, db: &str, extractor: &str) -> Value {
    let records = json_of(&sandbox.ok(&["sysquery", "--db", db, "--extractor", extractor]));
    assert_eq!(records.as_array().unwrap().len(), 1, "{records}");
    assert_eq!((&records[0]["class"], &records[0]["source"]), (&json!("dynamic"), &json!("probe")));
    assert!(records[0]["taken_ms"].as_u64().unwrap() > 0);
    records[0]["data"].clone()
}

fn assert_spread(spread: &Value) {
    let number = |name: &str| spread[name].as_f64().unwrap_or_else(|| panic!("no {name}: {spread}"));
    let (min, median, max) = (number("min"), number("median"), number("max"));
    assert!(0.0 < min && min <= median && median <= max, "{spread}");
    assert!(number("runs") >= 5.0 && number("stdev") >= 0.0, "{spread}");
}

fn names(list: &Value, key: &str) -> Vec<String> {
    list.as_array().unwrap().iter().map(|one| one[key].as_str().unwrap().to_string()).collect()
}

fn assert_empty(dir: &str, when: &str) {
    let left: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{when}: {left:?}");
}

#[test]
fn g10_plans_use_what_was_measured_here() {
    let sandbox = Sandbox::new();
    let (store, db) = (dir(&sandbox, "s"), sandbox.path("r.db").display().to_string());
    let plan = || {
        let args = ["plan", "--json", "--store", &store, "--stage-in", "1MB", "--db", &db];
        json_of(&sandbox.ok(&args))["costs"]["stage_in"].clone()
    };
    sandbox.ok(&["sysmap", "collect", "--db", &db, "--only", "cpu"]);
    assert_ne!(plan()["basis"], "measured");
    assert_eq!(ok(&probe(&sandbox, &["--path", &store, "--db", &db])), "");
    let rate = kept(&sandbox, &db, "storage-rates")["stores"][0].clone();
    ["write", "read", "sync_seconds"].iter().for_each(|name| assert_spread(&rate[*name]));
    assert_eq!((&rate["path"], &rate["bytes"]), (&json!(store), &json!(4 << 20)));
    assert!(rate["direct"].is_boolean());
    let told = plan();
    assert_eq!(told["basis"], "measured", "{told}");
    let seconds = 1e6 / rate["write"]["median"].as_f64().unwrap();
    assert!((told["seconds"].as_f64().unwrap() - seconds).abs() < 1e-9, "{told} {rate}");
}

#[test]
fn what_was_measured_elsewhere_is_kept() {
    let sandbox = Sandbox::new();
    let (a, b, db) = (dir(&sandbox, "a"), dir(&sandbox, "b"), sandbox.path("r.db").display().to_string());
    ok(&probe(&sandbox, &["--path", &a, "--db", &db]));
    let first = kept(&sandbox, &db, "storage-rates")["stores"][0].clone();
    ok(&probe(&sandbox, &["--path", &b, "--loopback", "--db", &db, "--history"]));
    let stores = kept(&sandbox, &db, "storage-rates")["stores"].clone();
    assert_eq!(names(&stores, "path"), [a.clone(), b.clone()]);
    assert_eq!(stores[0], first);
    ok(&probe(&sandbox, &["--path", &a, "--db", &db]));
    let stores = kept(&sandbox, &db, "storage-rates")["stores"].clone();
    assert_eq!(names(&stores, "path"), [a, b]);
    assert!(stores[0]["taken_ms"].as_u64() > first["taken_ms"].as_u64(), "{stores} {first}");
    let peers = kept(&sandbox, &db, "network-rates")["peers"].clone();
    assert_eq!(names(&peers, "host"), ["loopback"]);
    let history = sandbox.ok(&["sysmap", "export", "--db", &db, "--history"]);
    assert_eq!(history.lines().filter(|line| line.contains("storage-rates")).count(), 2, "{history}");
}

#[test]
fn all_forms_show_it_and_collect_never_measures() {
    let sandbox = Sandbox::new();
    let store = dir(&sandbox, "s");
    for form in ["json", "jsonl", "yaml", "csv", "table"] {
        let said = ok(&probe(&sandbox, &["--path", &store, "--format", form]));
        assert!(said.contains("storage-rates") && said.contains(&store), "{form}: {said}");
    }
    let listed = json_of(&sandbox.ok(&["sysmap", "extractors", "--json"]));
    let rates = listed.as_array().unwrap().iter().find(|one| one["name"] == "network-rates").unwrap();
    assert_eq!((&rates["measured"], &rates["class"]), (&json!(true), &json!("dynamic")));
    assert!(sandbox.ok(&["sysmap", "extractors"]).contains("only by `tidepool sysmap probe`"));
    let collected = json_of(&sandbox.ok(&["sysmap", "collect", "--json"]));
    assert!(names(&collected, "extractor").iter().all(|name| !name.ends_with("-rates")), "{collected}");
    let asked = sandbox.tidepool(&["sysmap", "collect", "--only", "storage-rates"]).output().unwrap();
    assert!(asked.status.code() == Some(2) && text(&asked).contains("sysmap probe"), "{}", text(&asked));
}

#[test]
fn what_cannot_be_measured_is_said_and_the_rest_is_measured() {
    let sandbox = Sandbox::new();
    let (store, db) = (dir(&sandbox, "s"), sandbox.path("r.db").display().to_string());
    let none = sandbox.path("none").display().to_string();
    let output = probe(&sandbox, &["--path", &none, "--db", &db]);
    assert!(output.status.code() == Some(1) && text(&output).contains(&none), "{}", text(&output));
    assert!(!Path::new(&db).exists());
    let text_file = sandbox.path("text").display().to_string();
    fs::write(&text_file, "years of work, and no database at all").unwrap();
    let output = probe(&sandbox, &["--path", &store, "--db", &text_file]);
    assert!(output.status.code() == Some(1) && text(&output).contains("not a database"), "{}", text(&output));
    let output = probe(&sandbox, &["--path", &none, "--path", &store, "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let records = json_of(std::str::from_utf8(&output.stdout).unwrap());
    assert_eq!(names(&records[0]["data"]["stores"], "path"), [store.as_str()]);
    assert_eq!(records[0]["missing"][0]["what"], none);

    let stat = rustix::fs::statvfs(store.as_str()).unwrap();
    // More than is free, or than a twentieth of it; nothing that nobody has so much of.
    let size = (stat.f_bavail * stat.f_frsize / 10).clamp(4 << 20, 64 << 30);
    if size < 64 << 30 {
        let args = ["sysmap", "probe", "--path", &store, "--size", &size.to_string()];
        let output = sandbox.tidepool(&args).output().unwrap();
        assert!(
            text(&output).contains(&store) && text(&output).contains("smaller --size"),
            "{}",
            text(&output)
        );
        assert_eq!(output.status.code(), Some(1));
        assert_empty(&store, "after a refusal");
    }
    for (args, words) in [
        (&[][..], "required"),
        (&["--path", &store, "--runs", "4"], "5..=100"),
        (&["--path", &store, "--limit", "1ms"], "at least"),
        (&["--path", &store, "--size", "1MiB"], "4.0 MiB to"),
        (&["--listen", "127.0.0.1", "--loopback"], "cannot be used"),
        (&["--wait", "1s", "--loopback"], "cannot be used"),
        (&["--peer", "n1"], "$TIDEPOOL_PROBE_SECRET"),
    ] {
        let output = sandbox.tidepool(&[&["sysmap", "probe"], args].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output));
        assert!(text(&output).contains(words), "{args:?}: {}", text(&output));
    }
}

/// A disk that takes no more in the middle of a run: here a limit of the process, which ends writes as a full disk does.
#[test]
fn a_write_that_fails_leaves_nothing() {
    let sandbox = Sandbox::new();
    let store = dir(&sandbox, "s");
    let script = "trap '' XFSZ; ulimit -f 6000; exec \"$@\"";
    let mut command = Command::new("bash");
    command.args(["-c", script, "bash", env!("CARGO_BIN_EXE_tidepool")]);
    command.args(["sysmap", "probe", "--size", "16MiB", "--path", &store]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains(&format!("{store}: writing: File too large")), "{}", text(&output));
    assert_empty(&store, "after a failed write");
}

#[test]
fn a_directory_of_others_is_named() {
    let sandbox = Sandbox::new();
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: needs root, to become somebody else");
        return;
    }
    sandbox.let_others_in();
    let store = dir(&sandbox, "s");
    let program = sandbox.path("tidepool");
    copy_program(env!("CARGO_BIN_EXE_tidepool").as_ref(), &program);
    let mut command = Command::new(&program);
    std::os::unix::process::CommandExt::uid(&mut command, 65534);
    let output = command.args(["sysmap", "probe", "--size", "4MiB", "--path", &store]).output().unwrap();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&store) && said.contains("name a directory that you may write to"), "{said}");
}

/// Whether a process has a file open that lay in `dir` and has no name any more.
fn has_scratch(pid: u32, dir: &str) -> bool {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut paths = open.filter_map(|entry| fs::read_link(entry.path()).ok());
    paths.any(|path| path.starts_with(dir) && path.to_string_lossy().ends_with("(deleted)"))
}

/// Whatever ends it: what it was writing goes with it, and nothing is stored.
#[test]
fn a_stopped_measurement_leaves_nothing() {
    let sandbox = Sandbox::new();
    let (store, db) = (dir(&sandbox, "s"), sandbox.path("r.db"));
    for (signal, code) in [(Signal::INT, Some(130)), (Signal::TERM, Some(143)), (Signal::KILL, None)] {
        let args = ["sysmap", "probe", "--runs", "100", "--limit", "1h", "--path", &store, "--db"];
        let mut command = sandbox.tidepool(&args);
        let mut child = command.arg(&db).stderr(Stdio::null()).spawn().unwrap();
        while !has_scratch(child.id(), &store) {
            assert!(child.try_wait().unwrap().is_none(), "it has ended before it was stopped");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), code, "{signal:?}");
        assert_empty(&store, "after a signal");
        assert!(!db.exists());
    }
}

/// Another node: a process that listens at an address of its own. It ends with the test.
struct Listening {
    child: Child,
    address: String,
    out: BufReader<std::process::ChildStdout>,
}

impl Listening {
    fn at(sandbox: &Sandbox, address: &str, secret: &str, more: &[&str]) -> Listening {
        let mut command = sandbox.tidepool(&[&["sysmap", "probe", "--listen", address], more].concat());
        command.env("TIDEPOOL_PROBE_SECRET", secret).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let said = line.strip_prefix("listening at ").unwrap_or_else(|| panic!("it said '{line}'"));
        let address = said.split(' ').next().unwrap().to_string();
        Listening { child, address, out }
    }

    /// How it ended and what it said.
    fn end(mut self) -> (Option<i32>, String) {
        let code = self.child.wait().unwrap().code();
        let mut said = String::new();
        self.out.read_to_string(&mut said).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (code, said)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn peer(sandbox: &Sandbox, address: &str, secret: &str, more: &[&str]) -> Output {
    let mut command =
        sandbox.tidepool(&[&["sysmap", "probe", "--size", "16MiB", "--peer", address], more].concat());
    command.env("TIDEPOOL_PROBE_SECRET", secret).output().unwrap()
}

#[test]
fn two_nodes_measure_what_is_between_them() {
    let sandbox = Sandbox::new();
    let db = sandbox.path("r.db").display().to_string();
    for address in ["127.0.0.2:0", "127.0.0.3:0"] {
        let listening = Listening::at(&sandbox, address, &secret('5'), &[]);
        let output = peer(&sandbox, &listening.address, &secret('5'), &["--db", &db]);
        ok(&output);
        assert!(text(&output).contains("recorded as 'loopback'"), "{}", text(&output));
        let (code, said) = listening.end();
        assert!(code == Some(0) && said.contains("has measured"), "{said}");
    }
    let peers = kept(&sandbox, &db, "network-rates")["peers"].clone();
    // One entry: both are this node.
    assert_eq!(names(&peers, "host"), ["loopback"]);
    for peer in peers.as_array().unwrap() {
        ["send", "receive", "round_trip_seconds"].iter().for_each(|name| assert_spread(&peer[*name]));
    }
}

/// A pool file's kind of secret, kept where only its owner can read it.
fn secret_file(sandbox: &Sandbox, mode: u32, text: &str) -> PathBuf {
    let file = sandbox.path(&format!("secret{mode:o}"));
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    file
}

#[test]
fn only_who_knows_the_secret_measures() {
    let sandbox = Sandbox::new();
    let listening = Listening::at(&sandbox, "127.0.0.2:0", &secret('a'), &[]);
    let wrong = peer(&sandbox, &listening.address, &secret('b'), &[]);
    assert!(wrong.status.code() == Some(1) && wrong.stdout.is_empty(), "{}", text(&wrong));
    assert!(text(&wrong).contains("another secret"), "{}", text(&wrong));
    // It still waits for who knows it: from a file, which counts before the environment.
    let file = secret_file(&sandbox, 0o600, &format!("{}\n", secret('a')));
    let file = file.to_str().unwrap();
    ok(&peer(&sandbox, &listening.address, &secret('b'), &["--secret-file", file]));
    let (code, said) = listening.end();
    assert!(code == Some(0) && said.contains("refused: 127.0.0.1:"), "{said}");

    let open = secret_file(&sandbox, 0o644, &secret('a'));
    let short = secret_file(&sandbox, 0o400, "12");
    for (file, words) in
        [(&open, "chmod 600"), (&short, "64 hexadecimal digits"), (&sandbox.path("no"), "No such")]
    {
        let output = peer(&sandbox, "127.0.0.2", &secret('a'), &["--secret-file", file.to_str().unwrap()]);
        assert!(output.status.code() == Some(2) && text(&output).contains(words), "{}", text(&output));
    }
}

#[test]
fn nobody_there_nobody_coming_and_ctrl_c() {
    let sandbox = Sandbox::new();
    // A port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.4:0").unwrap().local_addr().unwrap().to_string();
    let output = peer(&sandbox, &free, &secret('a'), &[]);
    let said = text(&output);
    assert!(
        output.status.code() == Some(1) && said.contains(&free) && said.contains("--listen` running"),
        "{said}"
    );

    let (code, said) = Listening::at(&sandbox, "127.0.0.2:0", &secret('a'), &["--wait", "0s"]).end();
    assert!(code == Some(1) && said.contains("nobody has come in time"), "{said}");

    let listening = Listening::at(&sandbox, "127.0.0.2:0", &secret('a'), &[]);
    kill_process(Pid::from_child(&listening.child), Signal::INT).unwrap();
    assert_eq!(listening.end().0, Some(130));
}
