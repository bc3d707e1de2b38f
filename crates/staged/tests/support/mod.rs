//! A stager of its own for each test: the real program, in a directory of its own.

#![allow(dead_code, reason = "each test program uses a part")]

pub mod network;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;
use tidepool_stage_client::{
    DataspaceKind, DataspaceSpec, Op, Resource, Stager, TaskSpec, TaskState, TaskStatus,
};
use tidepool_testkit::Leash;
use tidepool_transport::{Secret, hex};

pub struct Daemon {
    pub dir: TempDir,
    child: Option<Child>,
    leash: Option<Leash>,
    /// What the configuration says besides its two dataspaces; for the next launch.
    pub config: String,
    /// What starts it: a name space's way in, or nothing.
    prefix: Vec<String>,
    program: PathBuf,
}

impl Daemon {
    /// A stager with dataspaces `a://` and `b://`, directories `a` and `b` below [`Daemon::path`].
    pub fn start() -> Daemon {
        Daemon::with("")
    }

    /// The same with more lines of configuration.
    pub fn with(config: &str) -> Daemon {
        Daemon::made(|_| config.to_string(), &[])
    }

    /// `config` makes the configuration for the stager's directory; `prefix` is a command that starts another.
    pub fn made(config: impl FnOnce(&Path) -> String, prefix: &[String]) -> Daemon {
        Daemon::of(env!("CARGO_BIN_EXE_tidepool-staged").as_ref(), config, prefix)
    }

    /// The same of another copy of the program.
    pub fn of(program: &Path, config: impl FnOnce(&Path) -> String, prefix: &[String]) -> Daemon {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        use std::os::unix::fs::PermissionsExt;
        // Other users pass through to what is theirs.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["a", "b"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            std::fs::set_permissions(dir.path().join(name), std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        let (config, prefix) = (config(dir.path()), prefix.to_vec());
        let program = program.to_path_buf();
        let mut daemon = Daemon { dir, child: None, leash: None, config, prefix, program };
        daemon.launch();
        daemon
    }

    /// A stager that others reach at `address`; all of them know one secret.
    pub fn with_peers(address: &str) -> Daemon {
        Daemon::made(|dir| listening(dir, address), &[])
    }

    /// The same with a key of its own, of this number, and more lines.
    pub fn keyed(address: &str, key: u8, more: &str) -> Daemon {
        Daemon::keyed_by(&[], address, key, more)
    }

    /// The same, started by `prefix`.
    pub fn keyed_by(prefix: &[String], address: &str, key: u8, more: &str) -> Daemon {
        let config = |dir: &Path| {
            let lines = listening(dir, address);
            let mut secret = std::fs::OpenOptions::new().append(true).open(dir.join("secret")).unwrap();
            let digits = format!("\n{}\n", hex(&[key; 32]));
            std::io::Write::write_all(&mut secret, digits.as_bytes()).unwrap();
            lines + more
        };
        Daemon::made(config, prefix)
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    pub fn launch(&mut self) {
        let space = |name: &str| {
            let mount = self.path(name);
            format!(
                "[[dataspace]]\nname = \"{name}://\"\nkind = \"local\"\nmount = \"{}\"\n",
                mount.display()
            )
        };
        let text = format!("{}\n{}{}", self.config, space("a"), space("b"));
        std::fs::write(self.path("stager.toml"), text).unwrap();
        let words: Vec<&OsStr> =
            self.prefix.iter().map(AsRef::as_ref).chain([self.program.as_os_str()]).collect();
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .args(["--config".as_ref(), self.path("stager.toml").as_os_str()])
            .args(["--dir".as_ref(), self.path("run").as_os_str()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the stager's program is there");
        self.leash = Some(Leash::on(child.id()));
        let mut line = String::new();
        let out = child.stdout.take().expect("it was piped");
        BufReader::new(out).read_line(&mut line).unwrap();
        assert!(line.contains("ready"), "the stager did not start: {line:?}");
        self.child = Some(child);
    }

    /// kill -9.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        self.leash = None;
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub fn restart(&mut self) {
        self.kill();
        self.launch();
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    pub fn control_socket(&self) -> PathBuf {
        self.path("run/control.socket")
    }

    pub fn user_socket(&self) -> PathBuf {
        self.path("run/user.socket")
    }

    pub fn control(&self) -> Stager {
        Stager::connect(self.control_socket()).expect("the control socket answers")
    }

    pub fn wait_gone(&mut self) -> std::process::ExitStatus {
        let ended = self.child.take().expect("it runs").wait().unwrap();
        self.leash = None;
        ended
    }

    pub fn signal(&self, signal: &str) {
        let done = Command::new("kill").args([signal, &self.pid().to_string()]).status();
        assert!(done.expect("kill is there").success());
    }

    /// To its workers as well: whatever they are at ends or waits with it.
    pub fn signal_all(&self, signal: &str) {
        self.signal(signal);
        for worker in children(self.pid()) {
            // It may have ended by itself.
            let _ = Command::new("kill").args([signal, &worker.to_string()]).status();
        }
    }
}

/// Configuration of a stager that others reach; its secret is the one of all tests.
pub fn listening(dir: &Path, address: &str) -> String {
    use std::os::unix::fs::OpenOptionsExt;
    let path = dir.join("secret");
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    std::io::Write::write_all(&mut file.unwrap(), "5a".repeat(32).as_bytes()).unwrap();
    let admin = hex(&admin_secret().public_key().unwrap());
    format!("listen = \"{address}\"\nsecret-file = \"{}\"\nadmins = [\"{admin}\"]\n", path.display())
}

/// What the administrator of such stagers has.
pub fn admin_secret() -> Secret {
    Secret::from_hex(&"5a".repeat(32)).unwrap().with_key([7; 32])
}

pub fn remote(text: &str, host: &str) -> Resource {
    let Resource::Path { dataspace, path, .. } = resource(text) else { unreachable!() };
    Resource::remote(dataspace, host, &path)
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.kill();
        }
    }
}

pub fn copy(from: &str, to: &str) -> TaskSpec {
    TaskSpec::new(Op::Copy, resource(from), Some(resource(to)))
}

/// `a://in/x` as a resource of this node.
pub fn resource(text: &str) -> Resource {
    let at = text.find("://").expect("a dataspace and a path") + 3;
    Resource::local(&text[..at], &text.as_bytes()[at..])
}

/// Submits and waits.
pub fn done(stager: &Stager, spec: &TaskSpec) -> TaskStatus {
    let id = stager.submit(spec).expect("the task is taken");
    stager.wait(&[id], false, None).expect("it ends").remove(0)
}

/// Submits, waits, and demands success.
pub fn well(stager: &Stager, spec: &TaskSpec) -> TaskStatus {
    let status = done(stager, spec);
    assert_eq!(status.state, TaskState::Finished, "{status:?}");
    status
}

pub fn write(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().expect("it has one")).unwrap();
    std::fs::write(path, bytes).unwrap();
}

pub fn local(name: &str, mount: &Path) -> DataspaceSpec {
    DataspaceSpec {
        name: name.into(),
        kind: DataspaceKind::Local,
        mount: mount.display().to_string(),
        tracked: false,
        capacity: 0,
        streams_max: 0,
        bandwidth: 0,
    }
}

/// Two trees have the same names and contents.
pub fn same(one: &Path, other: &Path) {
    let diff = Command::new("diff").args(["-r", "--no-dereference"]).arg(one).arg(other).output();
    let diff = diff.expect("diff is there");
    assert!(diff.status.success(), "{}", String::from_utf8_lossy(&diff.stdout));
}

/// Processes that a process's threads have started.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let lists =
        tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default());
    lists
        .flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
        .collect()
}
