//! A sandbox for tests of the command: a runtime directory and a store of its own, and a
//! look at what is left of them.

#![allow(dead_code)] // Each test file uses a part.

pub mod cluster;
pub mod opens;
pub mod sshd;

use rustix::process::{Pid, Signal, kill_process};
use std::cell::RefCell;
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tidepool_testkit::Leash;
use tidepool_testkit::eventually;

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

    /// Lets other users pass through to what is open to them inside.
    pub fn let_others_in(&self) {
        std::fs::set_permissions(self.dir.path(), Permissions::from_mode(0o711))
            .expect("the owner may change permissions");
    }

    /// The command, with its files in the sandbox.
    pub fn tidepool(&self, args: &[&str]) -> Command {
        self.tidepool_at(Path::new(env!("CARGO_BIN_EXE_tidepool")), args)
    }

    /// The same of a command that lies elsewhere.
    pub fn tidepool_at(&self, program: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).env("TIDEPOOL_RUNTIME", self.runtime()).env("TIDEPOOL_STORE", self.store());
        // Nobody's resource database but the test's.
        command.env("XDG_STATE_HOME", self.path("state")).env_remove("TIDEPOOL_RESOURCES");
        for name in ["TIDEPOOL_POOL", "TIDEPOOL_DIR", "LD_PRELOAD", "SLURM_JOB_NUM_NODES", "XDG_RUNTIME_DIR"]
        {
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

/// A test that has failed leaves no pool behind: its processes name the sandbox's directory, which is unlike any other.
impl Drop for Sandbox {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for process in processes_of(self.dir.path()) {
            let pid = process.split(':').next().and_then(|pid| Pid::from_raw(pid.parse().ok()?));
            pid.map(|pid| kill_process(pid, Signal::KILL));
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let root = self.dir.path().to_string_lossy().into_owned();
        for target in
            mounts.lines().filter_map(|line| line.split(' ').nth(4)).filter(|t| t.starts_with(&root))
        {
            let _ = Command::new("fusermount3").args(["-u", "-z", target]).status();
        }
    }
}

/// A stager of one's own, as `tidepool stage start` makes it, with dataspaces `a://` and `b://`.
pub struct OwnStager {
    pub sandbox: Sandbox,
    /// On the stager that was started last, so that a test that is killed leaves none.
    leash: RefCell<Option<Leash>>,
}

impl OwnStager {
    /// With more lines of configuration.
    pub fn with(config: &str) -> OwnStager {
        OwnStager::inside(Sandbox::new(), config)
    }

    pub fn inside(sandbox: Sandbox, config: &str) -> OwnStager {
        let space = |name: &str| {
            let mount = sandbox.path(name);
            // Something may be mounted there already.
            std::fs::create_dir_all(&mount).expect("a directory can be made");
            let mount = mount.display();
            format!("[[dataspace]]\nname = \"{name}://\"\nkind = \"local\"\nmount = \"{mount}\"\n")
        };
        let text = format!("{config}\n{}{}", space("a"), space("b"));
        std::fs::write(sandbox.path("stager.toml"), text).expect("a file can be written");
        let stager = OwnStager { sandbox, leash: RefCell::default() };
        stager.start();
        stager
    }

    pub fn start(&self) -> String {
        let (dir, config) = (self.dir(), self.sandbox.path("stager.toml"));
        let program = Path::new(env!("CARGO_BIN_EXE_tidepool")).with_file_name("tidepool-staged");
        assert!(program.is_file(), "there is no tidepool-staged; run 'cargo build --workspace' first");
        let args = ["stage", "start", "--dir", &dir, "--config", &config.display().to_string()];
        let said = self.sandbox.ok(&args);
        let pid = said.split("process ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
        // The leash of a stager before this one is let go: its number may be another process's.
        *self.leash.borrow_mut() = Some(Leash::on(pid.expect("it tells its number")));
        said
    }

    pub fn dir(&self) -> String {
        self.sandbox.path("run").display().to_string()
    }

    pub fn socket(&self) -> PathBuf {
        self.sandbox.path("run/control.socket")
    }

    /// `tidepool stage` with this stager's control socket.
    pub fn stage(&self, args: &[&str]) -> Command {
        let mut command = self.sandbox.tidepool(&["stage"]);
        command.args(args).current_dir(self.sandbox.dir.path());
        command.env("TIDEPOOL_STAGER_SOCKET", self.socket()).env("TIDEPOOL_STAGER_CONTROL", self.socket());
        command
    }

    /// Runs it and demands this exit code; what it said on standard output and standard error.
    pub fn ends(&self, code: i32, args: &[&str]) -> (String, String) {
        let output = self.stage(args).output().expect("tidepool runs");
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output));
        let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (words(&output.stdout), words(&output.stderr))
    }

    pub fn ok(&self, args: &[&str]) -> String {
        self.ends(0, args).0
    }
}

impl Drop for OwnStager {
    fn drop(&mut self) {
        let _ = self.sandbox.tidepool(&["stage", "stop", "--now", "--dir", &self.dir()]).output();
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

/// Runs a command with its output in `log`; what it said and how it ended, or `hangs` after `max`.
pub fn run_bounded(
    command: &mut Command,
    log: &Path,
    max: Duration,
) -> Result<(std::process::ExitStatus, String), String> {
    let file = File::create(log).expect("a log can be made");
    let errors = file.try_clone().expect("a descriptor can be duplicated");
    let mut child = command.stdin(Stdio::null()).stdout(file).stderr(errors).spawn().expect("it starts");
    let said = || {
        std::fs::read(log).map(|log| String::from_utf8_lossy(&log).into_owned()).map_err(|e| e.to_string())
    };
    let deadline = Instant::now() + max;
    let status = loop {
        match child.try_wait().expect("a child can be waited for") {
            Some(status) => break status,
            None if Instant::now() > deadline => {
                child.kill().expect("a child can be killed");
                child.wait().expect("a killed child ends");
                return Err(format!("hangs; it has said: {}", said()?));
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    Ok((status, said()?))
}

/// A test program that `scripts/install-tools` installs; `None`, said loudly, when it is not there.
pub fn tool(name: &str) -> Option<PathBuf> {
    let command = Path::new(env!("CARGO_BIN_EXE_tidepool"));
    let built = command.parent().and_then(Path::parent).expect("the command lies in target/PROFILE");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let installed = [built, &source].map(|target| target.join("tools/bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = installed.into_iter().chain(std::env::split_paths(&path));
    let found = places.map(|place| place.join(name)).find(|program| program.is_file());
    if found.is_none() {
        println!("SKIPPED: {name} is not installed; run 'scripts/install-tools'");
    }
    found
}

/// A mount of a pool in the foreground, gone at the end.
pub struct Mount {
    pub path: PathBuf,
    child: Child,
    killed: bool,
}

impl Mount {
    /// Mounts a pool for all users at `name` in the sandbox.
    pub fn of(sandbox: &Sandbox, pool: &str, name: &str, options: &[&str]) -> Mount {
        let path = sandbox.path(name);
        let mut command = sandbox.tidepool(&["mount", "--pool", pool, "--allow-other"]);
        command.args(options).arg(&path);
        Mount::by(command, path)
    }

    /// The mount that a command makes, which stays in the foreground.
    pub fn by(mut command: Command, path: PathBuf) -> Mount {
        std::fs::create_dir_all(&path).expect("a directory can be made");
        let child = command.spawn().expect("tidepool starts");
        let mut mount = Mount { path, child, killed: false };
        let deadline = Instant::now() + Duration::from_secs(30);
        while !mount.is_there() {
            assert!(Instant::now() < deadline, "the mount does not come up");
            let ended = mount.child.try_wait().expect("a child can be waited for");
            assert!(ended.is_none(), "tidepool mount ended: {ended:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        mount
    }

    fn is_there(&self) -> bool {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("Linux has mountinfo");
        mounts.contains(&format!(" {} ", self.path.display()))
    }

    /// `kill -9` of its process, and what is left of it is torn off.
    pub fn kill(mut self) {
        self.child.kill().expect("a child can be killed");
        let child = &mut self.child;
        eventually("the end of a mount that was killed", || child.try_wait().is_ok_and(|end| end.is_some()));
        let _ = Command::new("umount").arg("-l").arg(&self.path).stderr(Stdio::null()).status();
        assert!(!self.is_there(), "{} cannot be unmounted", self.path.display());
        self.killed = true;
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.killed {
            return;
        }
        // The process unmounts when it is told to end; only when it cannot is the mount torn off.
        let told = Command::new("kill").arg(self.child.id().to_string()).status();
        if !told.is_ok_and(|status| status.success()) {
            let _ = Command::new("umount").arg("-l").arg(&self.path).status();
        }
        let _ = self.child.wait();
    }
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

/// The scheduling policies of a process's threads, as proc_pid_stat(5) numbers them; empty when it is gone.
pub fn policies(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stats = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
    // Behind the name, which is in brackets, the policy is field 41 of all.
    stats.filter_map(|stat| stat.rsplit_once(") ")?.1.split(' ').nth(41 - 3)?.parse().ok()).collect()
}

/// `SCHED_IDLE`.
pub const IDLE: u32 = 5;
