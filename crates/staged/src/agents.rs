//! Agents of pools, started for controllers on other nodes (`docs/formats/13-remote-ends.md`, Doors).
//!
//! ```text
//!  stager ──▶ this program once more: a session of its own, the user's identity ──▶ tidepool node --node N
//! ```
//! Between, there is a process with one thread, because a process becomes another user safely only as a whole: a thread of
//! the stager that did could be traced by that user, and the stager with it. The agent's input and output lead to the connection by threads of the
//! stager, which alone has its keys; when the stager ends, they end, and the agent lives on.

use rustix::fs::Mode;
use rustix::process::{Gid, Uid, getegid, geteuid, getuid, setsid, umask};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use tidepool_stage::NO_ID;
use tidepool_transport::remote::Guest;

/// Most groups of a user; they have to fit into one word of a command line.
const GROUPS_MAX: usize = 8192;
/// Where programs of an agent are looked for (`fusermount3`).
const AGENT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Where agents read at which address others have reached their node.
const REACHED_AT: &str = "TIDEPOOL_REACHED_AT";
/// What files of users have no permission for unless they say so.
const UMASK: u32 = 0o022;

/// Whose agent, and for which node of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentOf {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub node: u32,
}

/// As it is passed on to the process between: `UID:GID:GROUP,GROUP:NODE`.
impl fmt::Display for AgentOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups: Vec<String> = self.groups.iter().map(u32::to_string).collect();
        write!(f, "{}:{}:{}:{}", self.uid, self.gid, groups.join(","), self.node)
    }
}

impl FromStr for AgentOf {
    type Err = String;

    fn from_str(text: &str) -> Result<AgentOf, String> {
        let refuse = || format!("'{text}' is no UID:GID:GROUPS:NODE");
        let number = |word: &str| word.parse::<u32>().map_err(|_| refuse());
        let [uid, gid, groups, node] = text.split(':').collect::<Vec<_>>()[..] else { return Err(refuse()) };
        let groups =
            groups.split(',').filter(|word| !word.is_empty()).map(number).collect::<Result<_, _>>()?;
        Ok(AgentOf { uid: number(uid)?, gid: number(gid)?, groups, node: number(node)? })
    }
}

impl AgentOf {
    /// Nobody becomes root this way, whatever the number would mean to the kernel.
    fn check(&self) -> Result<(), String> {
        let (own, root) = (geteuid().as_raw(), geteuid().is_root());
        if self.uid == 0 {
            return Err("agents are of users, never of root".into());
        }
        if [self.uid, self.gid].iter().chain(&self.groups).any(|id| *id == NO_ID) {
            return Err(format!("{NO_ID} is no number of a user or group"));
        }
        if self.groups.len() > GROUPS_MAX {
            return Err(format!("{} groups; at most {GROUPS_MAX} can be", self.groups.len()));
        }
        if !root && (self.uid, self.gid) != (own, getegid().as_raw()) {
            let uid = self.uid;
            return Err(format!(
                "a stager of user {own} starts no agents of user {uid}; that takes one of root"
            ));
        }
        Ok(())
    }

    /// For a controller the groups are the user's as this node's name service has them: one that it says might be as good as
    /// root's.
    pub fn check_groups(&self, has_group: impl Fn(u32, u32) -> bool) -> Result<(), String> {
        let all = || std::iter::once(self.gid).chain(self.groups.iter().copied());
        if all().any(|gid| gid == 0) {
            return Err("a controller starts no agents with root's group".into());
        }
        match all().find(|gid| !has_group(self.uid, *gid)) {
            None => Ok(()),
            Some(gid) => Err(format!(
                "this node does not know user {} to be in group {gid}, so a controller starts no agent of his with it",
                self.uid
            )),
        }
    }

    /// What the process between does: becomes the user and then the agent.
    pub fn run(&self) -> io::Result<Infallible> {
        self.check().map_err(io::Error::other)?;
        setsid()?;
        umask(Mode::from_raw_mode(UMASK));
        if geteuid().is_root() {
            let groups: Vec<Gid> = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
            set_thread_groups(&groups)?;
            let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
            set_thread_res_gid(gid, gid, gid)?;
            set_thread_res_uid(uid, uid, uid)?;
        }
        if [getuid(), geteuid()].iter().any(|uid| uid.as_raw() != self.uid) {
            return Err(io::Error::other(format!("this process has not become user {}", self.uid)));
        }
        let program = tidepool(&std::env::current_exe()?);
        let node = self.node.to_string();
        let mut agent = Command::new(&program);
        // It writes a log in the pool's directory. The stager's, where this process could still say something, is not the user's.
        agent.args(["node", "--node", &node]).stderr(Stdio::null());
        Err(agent.exec())
    }
}

/// The command beside this program.
fn tidepool(staged: &Path) -> PathBuf {
    staged.with_file_name("tidepool")
}

/// Starts agents.
#[derive(Clone)]
pub struct Agents {
    /// Says the configuration.
    allowed: bool,
    node: String,
    /// This program, where it was when it started: an upgrade may put another one there.
    staged: PathBuf,
}

impl Agents {
    pub fn new(allowed: bool, node: &str) -> io::Result<Agents> {
        Ok(Agents { allowed, node: node.into(), staged: std::env::current_exe()? })
    }

    /// Starts an agent whose input and output are the guest's connection, and stays until it has ended.
    pub fn serve(&self, of: &AgentOf, job: u32, guest: Guest) -> io::Result<()> {
        if let Err(why) = self.check(of) {
            return guest.turn_away(&why);
        }
        let reached_at = guest.reached_at().filter(|ip| !ip.is_loopback());
        // Before the agent is there, which may speak at once.
        let connection = guest.let_in()?;
        let whose = || format!("of user {} for job {job}", of.uid);
        let mut agent = self.start(of, job, reached_at, connection).inspect_err(|error| {
            eprintln!("tidepool-staged: an agent {} cannot be started: {error}", whose());
        })?;
        let status = agent.wait()?;
        if !status.success() {
            eprintln!("tidepool-staged: the agent {} (process {}) ended: {status}", whose(), agent.id());
        }
        Ok(())
    }

    fn check(&self, of: &AgentOf) -> Result<(), String> {
        if !self.allowed {
            let why = "this stager starts no agents of pools; 'agents = true' in its configuration lets it";
            return Err(why.into());
        }
        of.check()?;
        let program = tidepool(&self.staged);
        match program.is_file() {
            true => Ok(()),
            false => Err(format!("{} is missing; install it beside tidepool-staged", program.display())),
        }
    }

    /// From here on only the agent has the connection.
    fn start(
        &self,
        of: &AgentOf,
        job: u32,
        reached_at: Option<IpAddr>,
        connection: UnixStream,
    ) -> io::Result<Child> {
        let mut command = Command::new(&self.staged);
        command.arg("--agent").arg(of.to_string()).current_dir("/").env_clear();
        command.env("PATH", AGENT_PATH).env("HOME", "/").env("SLURMD_NODENAME", &self.node);
        if let Some(ip) = reached_at {
            command.env(REACHED_AT, ip.to_string());
        }
        if job != 0 {
            command.env("SLURM_JOB_ID", job.to_string());
        }
        command.stdout(OwnedFd::from(connection.try_clone()?)).stdin(OwnedFd::from(connection));
        command.spawn()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(uid: u32, gid: u32, groups: &[u32]) -> AgentOf {
        AgentOf { uid, gid, groups: groups.to_vec(), node: 7 }
    }

    #[test]
    fn what_is_passed_on_comes_back() {
        for agent in [of(1, 2, &[]), of(1, 2, &[3]), of(1, 2, &[3, 4])] {
            assert_eq!(agent.to_string().parse(), Ok(agent));
        }
        assert_eq!(of(1, 2, &[3, 4]).to_string(), "1:2:3,4:7");
        for bad in ["", "1:2:3", "1:2:x:4", "-1:2::4", "1:2::4:5"] {
            assert!(bad.parse::<AgentOf>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_controller_lends_nobody_a_group() {
        let has = |uid: u32, gid: u32| (uid, gid) == (7, 7) || (uid, gid) == (7, 8) || gid == 0;
        assert!(of(7, 7, &[7, 8]).check_groups(has).is_ok());
        for (agent, words) in [
            (of(7, 0, &[7]), "root's group"),
            (of(7, 7, &[7, 0]), "root's group"),
            (of(7, 9, &[7]), "group 9"),
            (of(7, 7, &[7, 9]), "group 9"),
            (of(8, 8, &[]), "user 8"),
        ] {
            let said = agent.check_groups(has).unwrap_err();
            assert!(said.contains(words), "{agent}: {said}");
        }
    }

    #[test]
    fn nobody_becomes_root() {
        // The last ones are "leave it as it is" to the kernel.
        for (agent, words) in [
            (of(0, 7, &[]), "never of root"),
            (of(NO_ID, 7, &[]), "no number"),
            (of(7, NO_ID, &[]), "no number"),
            (of(7, 7, &[7, NO_ID]), "no number"),
            (of(7, 7, &[7; GROUPS_MAX + 1]), "at most"),
        ] {
            let said = agent.check().unwrap_err();
            assert!(said.contains(words), "{agent}: {said}");
        }
    }
}
