//! F11: what a program does outside the pool is not changed by the preload library, which
//! adds a few look-ups and nothing else.

mod common;

use common::{Sandbox, doors};
use std::process::Command;

/// System calls of a program from its first look at `marker` on, without their results'
/// addresses and descriptors, which loading a library shifts.
fn calls(sandbox: &Sandbox, preload: Option<&str>, marker: &str, program: &[&str]) -> Vec<String> {
    let log = sandbox.path("strace.log");
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-e", "trace=%file,%desc", "-e", "signal=none", "-o"]).arg(&log);
    if let Some(library) = preload {
        command.args(["-E", &format!("LD_PRELOAD={library}")]);
        command.args(["-E", "TIDEPOOL_DIR=/tidepool-nowhere", "-E", "TIDEPOOL_POOL=/tidepool-nowhere.json"]);
    }
    let output = command.args(program).output().expect("strace runs");
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(&log).unwrap();
    text.lines()
        .skip_while(|line| !line.contains(marker) || line.contains("execve("))
        .filter_map(|line| line.split_once(' ').map(|(_, call)| call.trim()))
        .map(|call| call.split(['(', ' ']).next().unwrap_or_default())
        // glibc 2.36 asks by descriptor with an empty path; the library asks directly.
        .map(|name| if name == "fstat" { "newfstatat" } else { name }.to_string())
        .collect()
}

/// Calls that change nothing, which the library may add: a look at an inherited descriptor
/// (does it belong to a pool?), and at a path that was not found (does it lead through a
/// symbolic link into the pool?).
const LOOKS: &[&str] = &["fcntl", "stat", "readlink", "getcwd"];

/// True when `with` is `plain` in order, with nothing but looks between.
fn only_looks_added(plain: &[String], with: &[String]) -> bool {
    let mut expected = plain.iter().peekable();
    for call in with {
        if expected.peek() == Some(&call) {
            expected.next();
        } else if !LOOKS.contains(&call.as_str()) {
            return false;
        }
    }
    expected.next().is_none()
}

#[test]
fn f11_calls_outside_the_pool_are_unchanged() {
    if Command::new("strace").arg("-V").output().is_err() {
        println!("SKIPPED: strace is not installed");
        return;
    }
    if !doors().contains(&"preload") {
        return;
    }
    let sandbox = Sandbox::new();
    let file = sandbox.path("plain");
    std::fs::write(&file, "x\n".repeat(100_000)).unwrap();
    let name = file.to_string_lossy().into_owned();
    let copy = sandbox.path("copy").to_string_lossy().into_owned();
    let library =
        std::path::Path::new(env!("CARGO_BIN_EXE_tidepool")).with_file_name("libtidepool_preload.so");
    let library = library.to_string_lossy().into_owned();
    for program in [
        vec!["cat", &name],
        vec!["wc", "-l", &name],
        vec!["cp", "--reflink=never", &name, &copy],
        vec!["ls", "-l", &name],
        vec!["touch", &name],
    ] {
        let _ = std::fs::remove_file(&copy);
        let plain = calls(&sandbox, None, "plain\"", &program);
        let _ = std::fs::remove_file(&copy); // Both begin alike.
        let with = calls(&sandbox, Some(&library), "plain\"", &program);
        assert!(plain.len() > 2, "{program:?}: nothing was traced");
        assert!(only_looks_added(&plain, &with), "{program:?}:\nwithout {plain:?}\nwith    {with:?}");
    }
}
