//! Access control lists on real mounts: the kernel checks them, and what one node changes the other goes by.

#![forbid(unsafe_code)]

mod common;

use common::{pool, run};
use std::path::Path;
use std::process::Command;

fn root_with_tools(test: &str) -> bool {
    let has = |program| run(Path::new("/"), program, &["--version"]).is_some();
    let usable = rustix::process::geteuid().is_root() && has("setfacl") && has("setpriv");
    if !usable {
        eprintln!("SKIPPED: {test}: not root, or setfacl or setpriv is missing");
    }
    usable
}

fn sh(dir: &Path, script: &str) {
    let out = Command::new("sh").args(["-ec", script]).current_dir(dir).output().unwrap();
    assert!(out.status.success(), "{script}: {}", String::from_utf8_lossy(&out.stderr));
}

/// Whether somebody else may do something.
fn may(dir: &Path, uid: u32, groups: &str, script: &str) -> bool {
    let id = uid.to_string();
    let groups = format!("--groups={groups}");
    let args = ["--reuid", &id, "--regid", &id, &groups, "sh", "-c", script];
    Command::new("setpriv").args(args).current_dir(dir).output().unwrap().status.success()
}

#[test]
fn who_is_in_a_list_may_what_it_says_on_both_nodes() {
    let Some(pool) = pool("acl") else { return };
    if !root_with_tools("acl") {
        return;
    }
    let all = |options| tidepool_fuse::MountOptions { allow_other: true, ..options };
    let (a, b) = (pool.mount_with("a", all), pool.mount_with("b", all));
    // A third node, which has seen nothing so far.
    let late = pool.mount("late");
    let (a, b) = (a.path(), b.path());
    sh(a, "chmod 755 .; echo text > f; chmod 640 f; setfacl -m u:1111:rw,g:2222:r f");
    for dir in [a, b] {
        assert!(may(dir, 1111, "7", "cat f && echo >> f"), "a user");
        assert!(may(dir, 9999, "2222", "cat f") && !may(dir, 9999, "2222", "echo >> f"), "a group");
        assert!(!may(dir, 9999, "7", "cat f"), "nobody of them");
        assert!(!may(dir, 1111, "7", "setfacl -m u:9999:r f"), "not the owner");
    }
    sh(late.path(), "getfacl f | grep -q user:1111:rw-");
    // The mask follows chmod, and both kernels forget what they knew.
    for (changes, other) in [(a, b), (b, a)] {
        sh(changes, "setfacl -m u:1111:rw f; chmod 600 f");
        assert!(!may(other, 1111, "7", "cat f") && !may(changes, 1111, "7", "cat f"));
        sh(changes, "chmod 660 f");
        assert!(may(other, 1111, "7", "echo >> f"));
        sh(changes, "setfacl -x u:1111 f");
        assert!(!may(other, 1111, "7", "cat f"));
        sh(changes, "setfacl -m u:1111:r f");
        assert!(may(other, 1111, "7", "cat f") && !may(other, 1111, "7", "echo >> f"));
    }
    // Directories: searching, making, and what is handed down.
    sh(a, "mkdir d; chmod 700 d; setfacl -m u:1111:rwx,d:u:1111:rwx,d:o::- d");
    assert!(
        may(b, 1111, "7", "umask 0; cd d && echo own > own && mkdir sub && ls")
            && !may(b, 9999, "7", "cat d/own")
    );
    sh(a, "umask 0; echo roots > d/roots; mkdir d/sub/deep; echo > d/sub/deep/x");
    assert!(may(b, 1111, "7", "cat d/roots && echo >> d/sub/deep/x") && !may(b, 9999, "7", "ls d"));
    sh(b, "setfacl -x u:1111 d");
    assert!(!may(a, 1111, "7", "cat d/roots"));
    // A group that is not the owner's own loses set-group-ID with the list.
    sh(a, "echo > s; chown 1111:2222 s; chmod 2755 s");
    assert!(may(b, 1111, "7", "setfacl -m u:9999:r s && test ! -g s"));
}
