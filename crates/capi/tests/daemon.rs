//! The C libraries and the command against real stagers.

mod common;
#[path = "common/stager.rs"]
mod stager;

use common::succeeded;
use serde_json::Value;
use stager::{Running, own_process};
use std::os::unix::process::CommandExt;
use tidepool_stage_client::{Op, TaskSpec, TaskState, parse_place};

/// A second dataspace on the directory of `b://`, through which little passes in a second.
fn add_slow(running: &Running) {
    let mut slow = running.dataspace("b");
    slow.name = "slow://".into();
    slow.bandwidth = 1 << 20;
    running.allow(&slow);
}

#[test]
fn every_function_does_what_the_header_says() {
    let mut running = Running::start();
    add_slow(&running);
    running.run_c("calls", &[]);
    assert!(running.ended(), "the last call shuts the stager down");
}

#[test]
fn threads_do_not_hold_each_other_up() {
    let running = Running::with("workers = 4\n");
    add_slow(&running);
    running.run_c("threads", &[]);
}

#[test]
fn memory_is_copied_both_ways_here_and_elsewhere() {
    let (near, far, address) = Running::two();
    let program = near.compile("memory");
    let mut command = near.command(program);
    succeeded(&command.arg(&address).env("FAR", far.path("a")).output().unwrap());
}

fn json(output: &std::process::Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn nornsctl_does_what_it_says() {
    let mut running = Running::start();
    std::fs::write(running.path("a/in"), b"12345").unwrap();
    std::fs::create_dir(running.path("c")).unwrap();
    let mount = running.path("c").display().to_string();
    let ok = |args: &[&str]| succeeded(&running.nornsctl(args));
    let ok_json = |args: &[&str]| json(&running.nornsctl(&[&["--json"], args].concat()));

    assert!(ok(&["ping"]).contains("answers"));
    assert_eq!(ok_json(&["status"])["paused"], false);
    ok(&[
        "namespace",
        "register",
        "c://",
        "--mount",
        &mount,
        "--track",
        "--capacity",
        "1MiB",
        "--streams",
        "2",
    ]);
    ok(&[
        "namespace",
        "update",
        "c://",
        "--mount",
        &mount,
        "--track",
        "--capacity",
        "2MiB",
        "--type",
        "lustre",
    ]);
    // A process of a job sees the job's dataspaces.
    let pid = std::process::id().to_string();
    ok(&["process", "remove", "42", &pid]);
    let all = ok_json(&["namespace", "list"]);
    let third = &all["namespaces"][2];
    assert_eq!((&third["nsid"], &third["type"]), (&Value::from("c://"), &Value::from("lustre")));
    assert_eq!((&third["capacity"], &third["tracked"]), (&Value::from(2 << 20), &Value::from(true)));
    assert!(ok(&["namespace", "list"]).contains("2.0 MiB"));

    ok(&["job", "register", "7", "--host", "n0", "--limit", "a://", "--limit", "c://=1MiB"]);
    ok(&["job", "update", "7", "--host", "n0", "--host", "n1", "--limit", "a://", "--limit", "c://=2MiB"]);
    let jobs = ok_json(&["job", "list"]);
    assert_eq!(jobs["jobs"][0]["job"], 7);
    assert_eq!(jobs["jobs"][0]["limits"][1]["quota"], 2 << 20);
    ok(&["process", "add", "7", &pid]);

    let plan = ok_json(&["task", "plan", "copy", "a://in", "c://out"]);
    assert_eq!((&plan["bytes"], &plan["files"]), (&Value::from(5), &Value::from(1)));
    assert!(!running.path("c/out").exists());
    let id = ok(&["task", "submit", "--as", "0:0", "--job", "7", "copy", "a://in", "c://out"]);
    let id = id.trim().to_string();
    let waited = ok_json(&["task", "wait", "--timeout", "600", &id]);
    assert_eq!(waited["tasks"][0]["state"], "finished");
    assert_eq!(std::fs::read(running.path("c/out")).unwrap(), b"12345");
    assert!(ok(&["task", "status", &id]).contains("finished"));
    assert_eq!(
        ok_json(&["task", "list", "--job", "7", "--state", "finished"])["tasks"].as_array().unwrap().len(),
        1
    );
    assert_eq!(ok_json(&["task", "list", "--state", "pending"])["tasks"].as_array().unwrap().len(), 0);
    assert_eq!(ok_json(&["job", "report", "7"])["bytes"], 5);
    assert_eq!(ok_json(&["namespace", "leftovers", "c://"])["leftovers"][0]["path"], "out");
    ok(&["task", "forget", &id]);

    let failed = running.nornsctl(&["--json", "task", "submit", "--wait", "copy", "a://absent", "c://x"]);
    assert_eq!(failed.status.code(), Some(3));
    assert_eq!(json(&failed)["tasks"][0]["error"]["errno"], 2);
    let unknown = running.nornsctl(&["--json", "task", "status", &id]);
    assert_eq!(unknown.status.code(), Some(1));
    assert_eq!(json(&unknown)["error"]["name"], "NORNS_ENOSUCHTASK");
    assert_eq!(running.nornsctl(&["task", "submit", "copy", "a", "b"]).status.code(), Some(2));
    assert_eq!(running.nornsctl(&["task", "submit", "copy", "a://in"]).status.code(), Some(2));
    let socket = running.user_socket().display().to_string();
    let refused = running.nornsctl(&["--socket", &socket, "pause"]);
    assert_eq!(refused.status.code(), Some(6), "{refused:?}");
    assert_eq!(running.nornsctl(&["--socket", "/nonexistent", "ping"]).status.code(), Some(5));

    ok(&["pause"]);
    let paused = running.nornsctl(&["--json", "task", "submit", "copy", "a://in", "c://out"]);
    assert_eq!(json(&paused)["error"]["name"], "NORNS_EACCEPTPAUSED");
    ok(&["resume"]);
    ok(&["policy", "fair-by-user"]);
    assert_eq!(ok_json(&["status"])["policy"], "fair-by-user");
    let held = running.nornsctl(&["--json", "shutdown"]);
    assert_eq!(json(&held)["error"]["name"], "NORNS_ENAMESPACENOTEMPTY");
    assert!(ok(&["job", "unregister", "7"]).contains("c://out"));
    std::fs::remove_file(running.path("c/out")).unwrap();
    ok(&["namespace", "unregister", "c://"]);
    ok(&["shutdown"]);
    assert!(running.ended());
}

#[test]
fn nornsctl_waits_and_cancels() {
    let running = Running::start();
    add_slow(&running);
    std::fs::write(running.path("a/large"), vec![7; 64 << 20]).unwrap();
    let id = succeeded(&running.nornsctl(&["task", "submit", "copy", "a://large", "slow://large"]));
    let id = id.trim();
    assert_eq!(running.nornsctl(&["task", "wait", "--timeout", "0.01", id]).status.code(), Some(4));
    succeeded(&running.nornsctl(&["task", "cancel", id]));
    assert_eq!(running.nornsctl(&["task", "wait", id]).status.code(), Some(3));
    // Faster now: it goes on where it stopped.
    let mut quick = running.dataspace("b");
    quick.name = "slow://".into();
    running.control().update_dataspace(&quick).unwrap();
    succeeded(&running.nornsctl(&["task", "resume", id]));
    succeeded(&running.nornsctl(&["task", "wait", id]));
    assert_eq!(std::fs::read(running.path("b/large")).unwrap(), vec![7; 64 << 20]);
}

#[test]
fn a_wait_outlives_a_killed_stager() {
    let mut running = Running::start();
    add_slow(&running);
    std::fs::write(running.path("a/large"), vec![7; 3 << 20]).unwrap();
    let user = running.user();
    let place = |text: &[u8]| parse_place(text).unwrap();
    let task = TaskSpec::new(Op::Copy, place(b"a://large"), Some(place(b"slow://large")));
    let id = user.submit(&task).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| user.wait(&[id], false, None).unwrap());
        while user.status(id).unwrap().bytes_done == 0 {
            std::thread::yield_now();
        }
        running.restart();
        let ended = waiting.join().unwrap();
        assert_eq!(ended[0].state, TaskState::Finished, "{ended:?}");
    });
    assert_eq!(std::fs::read(running.path("b/large")).unwrap(), vec![7; 3 << 20]);
}

/// Others can neither administer nor use another job's dataspaces.
#[test]
fn others_have_no_rights() {
    if own_process().uid != 0 {
        println!("SKIPPED: only root can become another user");
        return;
    }
    let running = Running::start();
    use std::os::unix::fs::PermissionsExt;
    for path in [running.dir.path().to_path_buf(), running.path("stager")] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let nobody = |args: &[&str]| {
        let mut command = running.command(stager::program("nornsctl"));
        command.args(args).uid(65534).gid(65534).output().unwrap()
    };
    assert_eq!(nobody(&["pause"]).status.code(), Some(6));
    let socket = running.user_socket().display().to_string();
    let register = ["--socket", &socket, "namespace", "register", "etc://", "--mount", "/etc"];
    assert_eq!(nobody(&register).status.code(), Some(6));
    // A child of this process, so of its job by descent, but another user.
    assert_eq!(nobody(&["task", "submit", "copy", "a://in", "b://out"]).status.code(), Some(6));
    assert_eq!(nobody(&["ping"]).status.code(), Some(0), "the user socket is open to all");
}
