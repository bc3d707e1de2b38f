//! Compiling C programs against the headers and the library of this build.

#![allow(dead_code, reason = "each test program uses a part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

pub fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// The library that this build made.
pub fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let found = own.ancestors().skip(1).take(2).map(|dir| dir.join("libnorns.so")).find(|so| so.exists());
    found.expect("cargo builds the library before its tests")
}

/// A directory as `make install` makes it: one library under both names.
pub fn install(dir: &Path) {
    for name in ["libnorns.so", "libnornsctl.so"] {
        let _ = std::fs::remove_file(dir.join(name));
        std::os::unix::fs::symlink(library(), dir.join(name)).unwrap();
    }
}

#[track_caller]
pub fn succeeded(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Compiles a source file as people would: all warnings are errors, both libraries are linked.
#[track_caller]
pub fn compile(dir: &TempDir, source: &Path, extra: &[&str]) -> PathBuf {
    install(dir.path());
    let program = dir.path().join(source.file_stem().unwrap());
    let compiler = if source.extension().is_some_and(|e| e == "cc") { "c++" } else { "cc" };
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Werror", "-g", "-pthread"]).args(extra).arg("-I").arg(include());
    command.arg("-o").arg(&program).arg(source).arg("-L").arg(dir.path());
    command.args(["-lnorns", "-lnornsctl"]).arg(format!("-Wl,-rpath,{}", dir.path().display()));
    succeeded(&command.output().unwrap());
    program
}

pub fn c_source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name)
}
