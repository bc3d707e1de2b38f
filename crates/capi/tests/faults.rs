//! The thirteen faults of the reference, each as a test that fails on it (`tests/c/faults.c`).

mod common;
#[path = "common/stager.rs"]
mod stager;

use stager::{Running, program};
use std::process::Command;

/// One more dataspace on the directory of `b://`, for the test's job.
fn add(running: &Running, name: &str, capacity: u64, bandwidth: u64) {
    let mut more = running.dataspace("b");
    (more.name, more.capacity, more.bandwidth) = (name.into(), capacity, bandwidth);
    running.allow(&more);
}

/// A stager with one worker and a slow dataspace to keep it busy with.
fn with_a_busy_worker() -> Running {
    let running = Running::with("workers = 1\n");
    add(&running, "slow://", 0, 1 << 20);
    running
}

#[test]
fn fault_01_overwriting_a_longer_file_leaves_nothing_of_it() {
    Running::start().run_c("faults", &["1"]);
}

#[test]
fn fault_02_empty_files_are_copied() {
    Running::start().run_c("faults", &["2"]);
}

#[test]
fn fault_03_a_remote_namespace_that_is_not_there_is_an_error() {
    let (near, _far, address) = Running::two();
    near.run_c("faults", &["3", &address]);
}

#[test]
fn fault_04_links_in_a_directory_are_copied() {
    Running::start().run_c("faults", &["4"]);
}

#[test]
fn fault_05_copies_to_shared_paths_are_made() {
    Running::start().run_c("faults", &["5"]);
}

#[test]
fn fault_06_a_move_removes_its_source() {
    Running::start().run_c("faults", &["6"]);
}

#[test]
fn fault_07_tasks_can_be_cancelled() {
    with_a_busy_worker().run_c("faults", &["7"]);
}

#[test]
fn fault_08_any_thread_may_call() {
    Running::start().run_c("faults", &["8"]);
}

#[test]
fn fault_09_the_user_socket_does_not_administer() {
    let running = Running::start();
    let program = running.compile("faults");
    let mut command = running.command(program);
    command.arg("9").env("TIDEPOOL_STAGER_CONTROL", running.user_socket());
    common::succeeded(&command.output().unwrap());
}

#[test]
fn fault_10_submitting_does_not_walk_the_source() {
    with_a_busy_worker().run_c("faults", &["10"]);
}

#[test]
fn fault_11_memory_of_more_than_4_gib_is_not_cut() {
    let running = Running::start();
    add(&running, "small://", 1 << 20, 0);
    running.run_c("faults", &["11"]);
}

#[test]
fn fault_12_tasks_that_nobody_asks_about_are_forgotten() {
    let running = Running::with("ended-max = 10\n");
    running.run_c("faults", &["12", "10"]);
    assert!(running.control().daemon_status().unwrap().ended <= 10);
}

/// A switch in the configuration made every task a sleep that succeeded.
#[test]
fn fault_13_no_configuration_pretends_to_copy() {
    let dir = tempfile::TempDir::new().unwrap();
    let config = dir.path().join("stager.toml");
    for line in ["dry-run = true\n", "dry_run = true\n"] {
        std::fs::write(&config, line).unwrap();
        let output =
            Command::new(program("tidepool-staged")).arg("--config").arg(&config).arg("--check").output();
        assert_eq!(output.unwrap().status.code(), Some(2));
    }
    let running = Running::start();
    std::fs::write(running.path("a/in"), b"xyz").unwrap();
    common::succeeded(&running.nornsctl(&["task", "plan", "copy", "a://in", "b://out"]));
    assert!(!running.path("b/out").exists() && running.user().list(None, None).unwrap().is_empty());
}
