//! Mounts of `tidepool mount` when their pool is stopped.

mod common;

use common::{Sandbox, doors, text};
use std::path::Path;
use std::process::{Child, Stdio};
use tidepool_testkit::eventually;

fn is_mounted(path: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

fn mount(sandbox: &Sandbox, pool: &str, name: &str) -> Child {
    let path = sandbox.path(name);
    std::fs::create_dir(&path).unwrap();
    let mut command = sandbox.tidepool(&["mount", "--pool", pool]);
    let child = command.arg(&path).stderr(Stdio::null()).spawn().unwrap();
    eventually("a mount", || is_mounted(&path) && std::fs::read_dir(&path).is_ok());
    child
}

/// One that lives, one whose process was killed, and one of another pool, which is none of its business. The command of the one
/// that lives ends by itself, and what was written through it is there when the pool starts again.
#[test]
fn stopping_a_pool_takes_its_mounts_away() {
    if !doors().contains(&"fuse") {
        return eprintln!("SKIPPED: FUSE is not usable here");
    }
    let sandbox = Sandbox::new();
    for pool in ["one", "other"] {
        sandbox.ok(&["pool", "start", "--name", pool, "--nodes", "1"]);
    }
    let mut lives = mount(&sandbox, "one", "lives");
    let mut dead = mount(&sandbox, "one", "dead");
    let mut others = mount(&sandbox, "other", "others");
    std::fs::write(sandbox.path("lives/file"), "kept").unwrap();
    let held = std::fs::File::open(sandbox.path("lives/file")).unwrap();
    dead.kill().unwrap();
    dead.wait().unwrap();
    let broken = std::fs::read_dir(sandbox.path("dead")).unwrap_err();
    assert_eq!(broken.raw_os_error(), Some(libc::ENOTCONN));

    let stopped = sandbox.tidepool(&["pool", "stop", "--pool", "one", "--keep"]).output().unwrap();
    assert!(stopped.status.success(), "{}", text(&stopped));
    assert!(!is_mounted(&sandbox.path("lives")) && !is_mounted(&sandbox.path("dead")), "{}", text(&stopped));
    assert!(is_mounted(&sandbox.path("others")));
    drop(held);
    assert!(lives.wait().unwrap().success());

    sandbox.ok(&["pool", "start", "--name", "one", "--nodes", "1", "--keep"]);
    let mut again = mount(&sandbox, "one", "again");
    assert_eq!(std::fs::read_to_string(sandbox.path("again/file")).unwrap(), "kept");
    sandbox.ok(&["pool", "stop", "--pool", "one"]);
    assert!(again.wait().unwrap().success());
    sandbox.ok(&["pool", "stop", "--pool", "other"]);
    assert!(others.wait().unwrap().success());
    sandbox.assert_nothing_left("after the last pool was stopped");
}
