//! Programs that a test makes and runs.
//!
//! Another process writes them. A child that another test of the same program starts meanwhile has, until its `execve`, what
//! this process has open; and what somebody has open for writing cannot be run (`ETXTBSY`).

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// A program that anybody may run, with this text.
pub fn put_program(path: &Path, text: &str) {
    let mut install = Command::new("install");
    install.args(["-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped());
    let mut writer = install.spawn().expect("install(1) runs");
    writer.stdin.take().expect("piped").write_all(text.as_bytes()).expect("it reads all");
    assert!(writer.wait().expect("it ends").success(), "{} is written", path.display());
}

/// A copy of a program, with its rights.
pub fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-p").arg("--").arg(from).arg(to).status().expect("cp(1) runs");
    assert!(copied.success(), "{} is copied to {}", from.display(), to.display());
}
