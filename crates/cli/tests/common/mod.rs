//! A sandbox for tests of the command: a runtime directory and a store of its own, and a
//! look at what is left of them.

#![allow(dead_code)] // Each test file uses a part.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

pub struct Sandbox {
    pub dir: TempDir,
}

impl Sandbox {
    pub fn new() -> Sandbox {
        Sandbox { dir: TempDir::new().expect("a temporary directory can be made") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn runtime(&self) -> PathBuf {
        self.path("rt")
    }

    pub fn store(&self) -> PathBuf {
        self.path("store")
    }

    /// The command, with its files in the sandbox.
    pub fn tidepool(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidepool"));
        command.args(args).env("TIDEPOOL_RUNTIME", self.runtime()).env("TIDEPOOL_STORE", self.store());
        for name in ["TIDEPOOL_POOL", "TIDEPOOL_DIR", "LD_PRELOAD", "SLURM_JOB_NUM_NODES"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs the command and demands success.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.tidepool(args).output().expect("tidepool runs");
        assert!(output.status.success(), "{args:?}: {}", text(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Demands that no process, mount, socket or file of any pool of this sandbox is left.
    pub fn assert_nothing_left(&self, when: &str) {
        let root = self.dir.path();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("Linux has mountinfo");
        assert!(!mounts.contains(&*root.to_string_lossy()), "{when}: a mount is left:\n{mounts}");
        for folder in [self.runtime(), self.store()] {
            let left: Vec<PathBuf> = std::fs::read_dir(&folder)
                .map(|entries| entries.flatten().map(|e| e.path()).collect())
                .unwrap_or_default();
            assert!(left.is_empty(), "{when}: files are left: {left:?}");
        }
        let processes = processes_of(root);
        assert!(processes.is_empty(), "{when}: processes are left: {processes:?}");
    }
}

/// Processes of ours whose command line, environment or working directory is in `root`.
pub fn processes_of(root: &Path) -> Vec<String> {
    let wanted = root.to_string_lossy().into_owned();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("Linux has /proc").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.bytes().all(|b| b.is_ascii_digit()) || name == std::process::id().to_string() {
            continue;
        }
        let read = |file: &str| std::fs::read(entry.path().join(file)).unwrap_or_default();
        let environment = String::from_utf8_lossy(&read("environ")).into_owned();
        let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
        if environment.contains(&wanted) || command.contains(&wanted) {
            found.push(format!("{name}: {command}"));
        }
    }
    found
}

pub fn text(output: &Output) -> String {
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// How programs see the pool: those doors that work on this machine.
pub fn doors() -> Vec<&'static str> {
    let mut doors = Vec::new();
    let library = Path::new(env!("CARGO_BIN_EXE_tidepool")).with_file_name("libtidepool_preload.so");
    if library.is_file() {
        doors.push("preload");
    } else {
        println!("SKIPPED: no preload library beside the command; run 'cargo build --workspace' first");
    }
    if std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok() {
        doors.push("fuse");
    } else {
        println!("SKIPPED: /dev/fuse cannot be opened here, so nothing is tested through FUSE");
    }
    // For work on one door: TIDEPOOL_DOOR=fuse.
    if let Ok(only) = std::env::var("TIDEPOOL_DOOR") {
        doors.retain(|door| *door == only);
    }
    doors
}
