//! Real stagers for tests.

#![allow(dead_code, reason = "each test program uses a part")]

use super::common::{c_source, compile, install, succeeded};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;
use tidepool_stage_client::{DataspaceKind, DataspaceSpec, JobLimit, JobSpec, ProcessSpec, Stager};
use tidepool_testkit::Leash;

/// The job that the test and its children belong to.
pub const JOB: u32 = 42;

/// A built program of this workspace.
pub fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.parent().and_then(Path::parent).unwrap().join(name);
    assert!(path.is_file(), "{} is missing: run 'cargo build --workspace' first", path.display());
    path
}

/// A stager with the dataspaces `a://` and `b://`, both open to [`JOB`], and directories for them.
pub struct Running {
    pub dir: TempDir,
    child: Child,
    leash: Leash,
}

impl Running {
    pub fn start() -> Running {
        Running::with("")
    }

    /// With more lines in the configuration file, in which `DIR` is the test's directory.
    pub fn with(more: &str) -> Running {
        let dir = TempDir::new().unwrap();
        write_secret(&dir.path().join("secret"));
        let more = more.replace("DIR", &dir.path().display().to_string());
        for name in ["a", "b", "stager"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("stager.toml"), more).unwrap();
        let child = spawn(dir.path());
        let leash = Leash::on(child.id());
        let running = Running { dir, child, leash };
        let control = running.control();
        for name in ["a", "b"] {
            control.register_dataspace(&running.dataspace(name)).unwrap();
        }
        control.register_job(&job(&["a://", "b://"])).unwrap();
        control.add_process(JOB, own_process()).unwrap();
        running
    }

    /// Registers one more dataspace, open to the job.
    pub fn allow(&self, space: &DataspaceSpec) {
        let control = self.control();
        control.register_dataspace(space).unwrap();
        control.update_job(&job(&["a://", "b://", &space.name])).unwrap();
    }

    /// Two stagers that know each other, and where the second listens. It has `far://` in its directory `a`.
    pub fn two() -> (Running, Running, String) {
        let port = tidepool_testkit::free_address();
        let near = Running::with("secret-file = \"DIR/secret\"\n");
        let far = Running::with(&format!("secret-file = \"DIR/secret\"\nlisten = \"{port}\"\n"));
        let mut space = far.dataspace("a");
        space.name = "far://".into();
        far.allow(&space);
        (near, far, port.to_string())
    }

    pub fn dataspace(&self, name: &str) -> DataspaceSpec {
        DataspaceSpec {
            name: format!("{name}://"),
            kind: DataspaceKind::Local,
            mount: self.path(name).display().to_string(),
            tracked: false,
            capacity: 0,
            streams_max: 0,
            bandwidth: 0,
        }
    }

    /// A file or directory of the test.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn user_socket(&self) -> PathBuf {
        self.path("stager/user.socket")
    }

    pub fn control_socket(&self) -> PathBuf {
        self.path("stager/control.socket")
    }

    pub fn user(&self) -> Stager {
        Stager::connect(self.user_socket()).unwrap()
    }

    pub fn control(&self) -> Stager {
        Stager::connect(self.control_socket()).unwrap()
    }

    /// A command that finds this stager, and the directories as `A` and `B`.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command
            .env("TIDEPOOL_STAGER_SOCKET", self.user_socket())
            .env("TIDEPOOL_STAGER_CONTROL", self.control_socket())
            .env("A", self.path("a"))
            .env("B", self.path("b"));
        command
    }

    /// Compiles `tests/c/NAME.c`.
    #[track_caller]
    pub fn compile(&self, name: &str) -> PathBuf {
        install(self.dir.path());
        compile(&self.dir, &c_source(&format!("{name}.c")), &["-std=gnu11"])
    }

    /// Compiles and runs `tests/c/NAME.c`.
    #[track_caller]
    pub fn run_c(&self, name: &str, args: &[&str]) {
        let program = self.compile(name);
        succeeded(&self.command(program).args(args).output().unwrap());
    }

    /// Runs `nornsctl`.
    pub fn nornsctl(&self, args: &[&str]) -> Output {
        self.command(program("nornsctl")).args(args).output().unwrap()
    }

    /// `kill -9`, and a new start on the same files.
    pub fn restart(&mut self) {
        self.kill();
        self.child = spawn(self.dir.path());
        self.leash = Leash::on(self.child.id());
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the stager to end by itself; true when it did so in order.
    pub fn ended(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The test's job, with dataspaces and no quotas.
fn job(dataspaces: &[&str]) -> JobSpec {
    let limits = dataspaces.iter().map(|name| JobLimit { dataspace: name.to_string(), quota: 0 }).collect();
    JobSpec { id: JOB, hosts: vec!["n0".into()], limits, bandwidth: 0 }
}

fn spawn(dir: &Path) -> Child {
    let mut command = Command::new(program("tidepool-staged"));
    command.arg("--config").arg(dir.join("stager.toml")).arg("--dir").arg(dir.join("stager"));
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("ready"), "the stager did not start: {line}");
    child
}

/// The same for all stagers of a test.
fn write_secret(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, "5a".repeat(32)).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

pub fn own_process() -> ProcessSpec {
    use std::os::unix::fs::MetadataExt;
    let own = std::fs::metadata("/proc/self").unwrap();
    ProcessSpec { pid: std::process::id() as i32, uid: own.uid(), gid: own.gid() }
}
