//! Pools over ssh.

mod common;

use common::sshd::Sshd;
use common::{Sandbox, doors, processes_of, text};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tidepool_testkit::copy_program;

const PATIENCE: Duration = Duration::from_secs(30);

fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn signal(pid: i64, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// Our ssh clients: `PID: COMMAND`.
fn clients(sandbox: &Sandbox) -> Vec<String> {
    processes_of(sandbox.dir.path()).into_iter().filter(|p| p.contains(": ssh -F")).collect()
}

fn kill_clients(sandbox: &Sandbox) {
    for client in clients(sandbox) {
        signal(client.split(':').next().unwrap().parse().unwrap(), Signal::KILL);
    }
    until("the clients end", || clients(sandbox).is_empty());
}

/// Process ids in a node's record of a pool.
fn pids(sandbox: &Sandbox, node: usize) -> (i64, i64) {
    let file = sandbox.runtime().join(format!("mine/node-{node}.json"));
    let record: serde_json::Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    (record["agent"].as_i64().unwrap(), record["daemons"][0].as_i64().unwrap())
}

/// A daemon on each host under the name that was given; data in and out; nothing is left.
/// The programs are in a directory that a careless shell command would stumble over.
#[test]
fn a_run_uses_the_hosts() {
    let Some(sshd) = Sshd::start() else { return };
    let own = Path::new(env!("CARGO_BIN_EXE_tidepool"));
    for door in doors() {
        let sandbox = Sandbox::new();
        let bin = sandbox.path("it's$HOME;here");
        fs::create_dir(&bin).unwrap();
        for name in ["tidepool", "tidepoold", "libtidepool_preload.so"] {
            copy_program(&own.with_file_name(name), &bin.join(name));
        }
        fs::write(sandbox.path("in"), "over ssh\n").unwrap();
        let input = format!("{}:/in", sandbox.path("in").display());
        let output = format!("/:{}", sandbox.path("out").display());
        let program = r#"set -e; "$0" pool status --json; echo $TIDEPOOL_NODES > nodes; cp in copy"#;
        let program_path = bin.join("tidepool").display().to_string();
        let hosts = ["--hosts", "node-a,node-b"];
        let args = ["run", "--client", door, "--in", &input, "--out", &output];
        let mut command = Command::new(bin.join("tidepool"));
        command.args(args).args(hosts).args(["--", "sh", "-c", program, &program_path]);
        command.env("TIDEPOOL_RUNTIME", sandbox.runtime()).env("TIDEPOOL_STORE", sandbox.store());
        let done = command.env("TIDEPOOL_SSH", sshd.words()).output().unwrap();
        assert!(done.status.success(), "{door}: {}\nsshd: {}", text(&done), sshd.log());
        let status: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        for (number, host) in ["node-a", "node-b"].iter().enumerate() {
            assert_eq!(status["daemons"][number]["host"], *host, "{door}: {status}");
            assert_eq!(status["daemons"][number]["reachable"], true, "{door}: {status}");
        }
        assert_eq!(fs::read_to_string(sandbox.path("out/nodes")).unwrap(), "node-a,node-b\n");
        assert_eq!(fs::read_to_string(sandbox.path("out/copy")).unwrap(), "over ssh\n");
        fs::remove_dir_all(bin).unwrap();
        sandbox.assert_nothing_left(door);
    }
}

/// The error names the host and says what ssh said; the other host is cleaned up.
#[test]
fn a_host_that_cannot_be_reached_is_named() {
    let Some(sshd) = Sshd::start() else { return };
    let sandbox = Sandbox::new();
    let args = ["pool", "start", "--hosts", "node-a,node-off"];
    let done = sshd.tidepool(&sandbox, &args).output().unwrap();
    assert_eq!(done.status.code(), Some(110), "{}", text(&done));
    let said = text(&done);
    assert!(said.contains("host node-off") && said.contains("Connection refused"), "{said}");
    until("agents end", || processes_of(sandbox.dir.path()).is_empty());
    sandbox.assert_nothing_left("after a failed start");
    // A program that is not there is named as well.
    let done = sshd.tidepool(&sandbox, &args).env("TIDEPOOL_SSH", "/no/such/rsh -x").output().unwrap();
    assert_eq!(done.status.code(), Some(110), "{}", text(&done));
    assert!(text(&done).contains("host node-a: /no/such/rsh"), "{}", text(&done));
    sandbox.assert_nothing_left("without ssh");
}

/// A failure on the other side is told with the host's name and the daemon's reason.
#[test]
fn a_failure_on_a_host_is_told_with_its_reason() {
    let Some(sshd) = Sshd::start() else { return };
    let sandbox = Sandbox::new();
    let foreign = sandbox.store().join("tidepool-mine/d1");
    fs::create_dir_all(&foreign).unwrap();
    fs::write(foreign.join("thesis.tex"), "precious").unwrap();
    let args = ["pool", "start", "--name", "mine", "--hosts", "node-a,node-b"];
    let done = sshd.tidepool(&sandbox, &args).output().unwrap();
    assert_eq!(done.status.code(), Some(110), "{}", text(&done));
    assert!(text(&done).contains("node node-b") && text(&done).contains("left alone"), "{}", text(&done));
    until("agents end", || processes_of(sandbox.dir.path()).is_empty());
    assert_eq!(fs::read_to_string(foreign.join("thesis.tex")).unwrap(), "precious");
}

/// A pool outlives its ssh connections, and a hang-up of its agents: only `pool stop` ends it.
#[test]
fn a_pool_outlives_its_connections() {
    let Some(sshd) = Sshd::start() else { return };
    let sandbox = Sandbox::new();
    sshd.ok(&sandbox, &["pool", "start", "--name", "mine", "--hosts", "node-a,node-b"]);
    assert_eq!(clients(&sandbox).len(), 2);
    kill_clients(&sandbox);
    for node in 0..2 {
        signal(pids(&sandbox, node).0, Signal::HUP);
    }
    std::thread::sleep(Duration::from_millis(500));
    sandbox.ok(&["mkdir", "/still-there"]);
    sandbox.ok(&["pool", "status"]);
    sandbox.ok(&["pool", "stop"]);
    until("agents end", || processes_of(sandbox.dir.path()).is_empty());
    sandbox.assert_nothing_left("after pool stop");
}

/// Agents end with their daemons, and the connections with them; the stores of daemons that
/// were killed stay until `pool stop`.
#[test]
fn agents_end_with_their_daemons() {
    let Some(sshd) = Sshd::start() else { return };
    let sandbox = Sandbox::new();
    sshd.ok(&sandbox, &["pool", "start", "--name", "mine", "--hosts", "node-a,node-b"]);
    for node in 0..2 {
        signal(pids(&sandbox, node).1, Signal::KILL);
    }
    until("agents and connections end", || processes_of(sandbox.dir.path()).is_empty());
    assert!(sandbox.store().join("tidepool-mine/d0").is_dir());
    sandbox.ok(&["pool", "stop"]);
    sandbox.assert_nothing_left("after pool stop");
}

/// A16: a host without daemons keeps a way into the pool, and ends when the pool does.
#[test]
fn a16_a_host_without_daemons_ends_with_the_pool() {
    let Some(sshd) = Sshd::start() else { return };
    let sandbox = Sandbox::new();
    let start = ["pool", "start", "--name", "mine", "--hosts", "node-a,node-b", "--deploy", "dedicated:1"];
    sshd.ok(&sandbox, &start);
    let exec = sandbox.ok(&["exec", "--", "sh", "-c", "cat $TIDEPOOL_HOSTFILE"]);
    assert_eq!(exec, "node-b\n");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(clients(&sandbox).len(), 2, "the node without daemons stays");
    let record = fs::read_to_string(sandbox.runtime().join("mine/node-1.json")).unwrap();
    assert!(record.contains("\"daemons\":[]"), "{record}");
    sandbox.ok(&["pool", "stop"]);
    until("the node without daemons ends", || processes_of(sandbox.dir.path()).is_empty());
    sandbox.assert_nothing_left("after pool stop");
    let refused = sandbox.tidepool(&["run", "--deploy", "subset:1", "--", "true"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused).contains("one machine cannot be divided"), "{}", text(&refused));
}

/// The parent of a process, by its name in `/proc`.
fn parent_program(client: &str) -> String {
    let read = |pid: &str, what: &str| fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap_or_default();
    let status = read(client.split(':').next().unwrap(), "status");
    let parent =
        status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap_or_default().trim().to_string();
    read(&parent, "cmdline").replace('\0', " ")
}

const FIVE: [&str; 7] =
    ["start", "--name", "mine", "--fan-out", "2", "--hosts", "node-a,node-b,node-c,node-d,node-e"];

/// A8: with a fan-out of two the command reaches two of five hosts, and these reach the others. The pool outlives
/// the agent in the middle.
#[test]
fn a8_hosts_start_hosts() {
    let Some(sshd) = Sshd::start() else { return };
    let sandbox = Sandbox::new();
    sshd.ok(&sandbox, &[&["pool"], &FIVE[..]].concat());
    // Those that agents started have the server's environment, not the sandbox's.
    let clients: Vec<String> =
        processes_of(sshd.dir.path()).into_iter().filter(|p| p.contains(": ssh -F")).collect();
    assert_eq!(clients.len(), 5, "{clients:?}");
    let by_agents = clients.iter().filter(|c| parent_program(c).contains("node --node")).count();
    assert_eq!(by_agents, 3, "{clients:?}");
    let status: serde_json::Value = serde_json::from_str(&sandbox.ok(&["pool", "status", "--json"])).unwrap();
    for (number, host) in ["node-a", "node-b", "node-c", "node-d", "node-e"].iter().enumerate() {
        assert_eq!(status["daemons"][number]["host"], *host, "{status}");
        assert_eq!(status["daemons"][number]["reachable"], true, "{status}");
    }
    signal(pids(&sandbox, 0).0, Signal::KILL);
    sandbox.ok(&["mkdir", "/still-there"]);
    sandbox.ok(&["pool", "stop"]);
    until("agents end", || processes_of(sandbox.dir.path()).is_empty());
    sandbox.assert_nothing_left("after pool stop");
}

/// A host that another host cannot reach is named, and so are the two and what ssh said; all others are cleaned up.
#[test]
fn a8_a_host_lost_below_another_is_named() {
    let Some(sshd) = Sshd::start() else { return };
    let sandbox = Sandbox::new();
    let args = ["pool", "start", "--fan-out", "2", "--hosts", "node-a,node-b,node-c,node-d,node-off,node-e"];
    let done = sshd.tidepool(&sandbox, &args).output().unwrap();
    assert_eq!(done.status.code(), Some(110), "{}", text(&done));
    let said = text(&done);
    for part in ["node-off", "reached from", "Connection refused", "--fan-out 0"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    until("agents end", || processes_of(sandbox.dir.path()).is_empty());
    sandbox.assert_nothing_left("after a failed start");
}

/// A failure below another host is told with the host's name and the daemon's reason; so is the whole pool's end.
#[test]
fn a8_a_failure_below_another_is_told() {
    let Some(sshd) = Sshd::start() else { return };
    let sandbox = Sandbox::new();
    let foreign = sandbox.store().join("tidepool-mine/d4");
    fs::create_dir_all(&foreign).unwrap();
    fs::write(foreign.join("thesis.tex"), "precious").unwrap();
    let done = sshd.tidepool(&sandbox, &[&["pool"], &FIVE[..]].concat()).output().unwrap();
    assert_eq!(done.status.code(), Some(110), "{}", text(&done));
    assert!(text(&done).contains("node node-e") && text(&done).contains("left alone"), "{}", text(&done));
    until("agents end", || processes_of(sandbox.dir.path()).is_empty());
    assert_eq!(fs::read_to_string(foreign.join("thesis.tex")).unwrap(), "precious");
}
