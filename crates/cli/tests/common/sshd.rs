//! A real sshd on a loopback port: its own host key, a key that lets nobody but this test in, and names of hosts
//! that all lead here.

use super::{Sandbox, text};
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SSHD: &str = "/usr/sbin/sshd";
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Sshd {
    pub dir: TempDir,
    process: Child,
}

impl Sshd {
    /// `None`, loudly, where no sshd can be started.
    pub fn start() -> Option<Sshd> {
        if !Path::new(SSHD).exists() {
            println!("SKIPPED: {SSHD} is missing; run 'scripts/install-packages slurm' first");
            return None;
        }
        let dir = TempDir::new().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        for key in ["host", "user"] {
            let made =
                Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &path(key)]).status();
            assert!(made.unwrap().success());
        }
        let port = tidepool_testkit::free_address().port();
        let host_key = fs::read_to_string(path("host.pub")).unwrap();
        fs::write(path("known"), format!("here {host_key}")).unwrap();
        fs::copy(path("user.pub"), path("authorized")).unwrap();
        let server = format!(
            "ListenAddress 127.0.0.1\nPort {port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\n\
             StrictModes no\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\n",
            path("host"),
            path("authorized")
        );
        fs::write(path("sshd_config"), server).unwrap();
        let client = format!(
            "Host node-a node-b node-c node-d node-e node1 node2 node3\n Port {port}\nHost node-off\n Port 1\nHost *\n HostName 127.0.0.1\n\
             HostKeyAlias here\n UserKnownHostsFile {}\n IdentityFile {}\n IdentitiesOnly yes\n",
            path("known"),
            path("user")
        );
        fs::write(path("config"), client).unwrap();
        // Debian's sshd wants it, and makes it only when it is started as a service.
        let _ = fs::create_dir("/run/sshd");
        let log = fs::File::create(path("log")).unwrap();
        let process = Command::new(SSHD)
            .args(["-D", "-e", "-f", &path("sshd_config")])
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let sshd = Sshd { dir, process };
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "sshd does not start: {}", sshd.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(sshd)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Words for `$TIDEPOOL_SSH`.
    pub fn words(&self) -> String {
        format!("ssh  -F {}", self.dir.path().join("config").display())
    }

    pub fn tidepool(&self, sandbox: &Sandbox, args: &[&str]) -> Command {
        let mut command = sandbox.tidepool(args);
        command.env("TIDEPOOL_SSH", self.words());
        command
    }

    pub fn ok(&self, sandbox: &Sandbox, args: &[&str]) -> String {
        let done = self.tidepool(sandbox, args).output().unwrap();
        assert!(done.status.success(), "{args:?}: {}\nsshd: {}", text(&done), self.log());
        String::from_utf8_lossy(&done.stdout).into_owned()
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
