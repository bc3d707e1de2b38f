//! Agents of pools, started by a stager for who asks from another node. Here the agent is a script, which tells what it is.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use support::{Daemon, listening};
use tempfile::TempDir;
use tidepool_testkit::{copy_program, put_program};
use tidepool_transport::remote::{Door, DoorError, open_door};

/// Says what it is, then repeats what it hears; ends with its input, unless it was told to stay.
const AGENT: &str = "#!/bin/sh
echo \"$(id -u) $(id -ru) $(id -g) $(id -G)\"
echo \"$*\"
pwd
umask
echo $$ $(ps -o sid= -p $$)
echo out >&2
env | sort | tr '\\n' ' '
echo
while read -r line; do echo \"heard $line\"; [ \"$line\" = stay ] && stay=yes; done
[ -z \"$stay\" ] || exec sleep 1000
";

fn own() -> (u32, u32) {
    (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw())
}

/// A user whose agents this process's stager may start, with groups.
fn user() -> (u32, u32, Vec<u32>) {
    let (uid, gid) = own();
    if uid == 0 { (7, 8, vec![8, 9, 10]) } else { (uid, gid, Vec::new()) }
}

/// A stager with an agent beside it.
struct Node {
    daemon: Daemon,
    at: String,
    bin: TempDir,
}

fn executable(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

impl Node {
    fn with(config: &str) -> Node {
        let bin = tempfile::tempdir().unwrap();
        executable(bin.path(), 0o755);
        let staged = bin.path().join("tidepool-staged");
        copy_program(env!("CARGO_BIN_EXE_tidepool-staged").as_ref(), &staged);
        put_program(&bin.path().join("tidepool"), AGENT);
        let at = tidepool_testkit::free_address().to_string();
        let config = |dir: &Path| format!("node = \"n7\"\n{}{config}\n", listening(dir, &at));
        Node { daemon: Daemon::of(&staged, config, &[]), at, bin }
    }

    fn tidepool(&self) -> PathBuf {
        self.bin.path().join("tidepool")
    }

    fn ask(&self, uid: u32, gid: u32, groups: Vec<u32>) -> Result<UnixStream, DoorError> {
        let secret = support::admin_secret();
        open_door(&self.at, &secret, &Door::Agent { uid, gid, groups, job: 42, node: 3 })
    }

    fn agent(&self) -> Agent {
        let (uid, gid, groups) = user();
        Agent::new(self.ask(uid, gid, groups).unwrap())
    }

    /// Processes that the stager has started and that are not reaped yet.
    fn children(&self) -> usize {
        support::children(self.daemon.pid()).len()
    }
}

/// The other end of an agent.
struct Agent {
    lines: BufReader<UnixStream>,
    said: Vec<String>,
}

impl Agent {
    /// With what it says of itself.
    fn new(stream: UnixStream) -> Agent {
        let mut agent = Agent { lines: BufReader::new(stream), said: Vec::new() };
        agent.said = (0..6).map(|_| agent.line()).collect();
        agent
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.lines.read_line(&mut line).unwrap() > 0, "it says no more after {:?}", self.said);
        line.trim_end().to_string()
    }

    fn tell(&self, text: &str) {
        self.lines.get_ref().write_all(text.as_bytes()).unwrap();
    }

    fn pid(&self) -> u32 {
        self.said[4].split(' ').next().unwrap().parse().unwrap()
    }

    /// Ends its input; it says nothing more, and is gone.
    fn end(mut self) {
        self.lines.get_ref().shutdown(Shutdown::Write).unwrap();
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
    }
}

#[test]
fn an_agent_is_the_users_and_nothing_else() {
    let node = Node::with("agents = true");
    let agent = node.agent();
    let (uid, gid, groups) = user();
    let ids: Vec<u32> = agent.said[0].split(' ').map(|id| id.parse().unwrap()).collect();
    assert_eq!(ids[..3], [uid, uid, gid]);
    if own().0 == 0 {
        assert_eq!(ids[3..], groups);
    }
    assert_eq!(agent.said[1], "node --node 3");
    assert_eq!((agent.said[2].as_str(), agent.said[3].as_str()), ("/", "0022"));
    let mut session = agent.said[4].split_whitespace();
    assert_eq!(session.next(), session.next(), "it leads a session of its own");
    let environment: Vec<&str> = agent.said[5].split(' ').collect();
    for variable in ["HOME=/", "SLURM_JOB_ID=42", "SLURMD_NODENAME=n7"] {
        assert!(environment.contains(&variable), "{environment:?}");
    }
    // The shell adds some; what this test was started with is not among them.
    assert!(!environment.iter().any(|variable| variable.starts_with("CARGO")), "{environment:?}");
    agent.end();
}

#[test]
fn nothing_of_what_follows_the_answer_is_lost() {
    let node = Node::with("agents = true");
    let mut agent = node.agent();
    let long = "x".repeat(100_000);
    for round in 0..20 {
        agent.tell(&format!("{round}{long}\n"));
        assert_eq!(agent.line(), format!("heard {round}{long}"));
    }
    agent.end();
}

#[test]
fn what_may_not_be_is_refused_with_a_reason() {
    let node = Node::with("agents = true");
    let (uid, gid, _) = user();
    let refused = |node: &Node, uid, gid, groups| match node.ask(uid, gid, groups) {
        Err(DoorError::Shut(reason)) => reason,
        other => panic!("{other:?}"),
    };
    for (uid, gid, groups, words) in [
        (0, gid, vec![], "never of root"),
        (u32::MAX, gid, vec![], "no number"),
        (uid, u32::MAX, vec![], "no number"),
        (uid, gid, vec![u32::MAX], "no number"),
        (uid, gid, vec![gid; 10_000], "at most"),
    ] {
        let said = refused(&node, uid, gid, groups);
        assert!(said.contains(words), "{said}");
    }
    if own().0 != 0 {
        assert!(refused(&node, uid + 1, gid, Vec::new()).contains("takes one of root"));
    }
    std::fs::remove_file(node.tidepool()).unwrap();
    assert!(refused(&node, uid, gid, Vec::new()).contains("is missing"));
    let shy = Node::with("");
    assert!(refused(&shy, uid, gid, Vec::new()).contains("agents = true"));
    assert_eq!((node.children(), shy.children()), (0, 0));
}

#[test]
fn an_agent_outlives_its_stager() {
    let mut node = Node::with("agents = true");
    let staying = |node: &Node| {
        let mut agent = node.agent();
        agent.tell("stay\n");
        assert_eq!(agent.line(), "heard stay");
        agent
    };
    let (mut one, two) = (staying(&node), staying(&node));
    node.daemon.kill();
    // Who started it is told that nothing more can be said.
    let mut rest = String::new();
    one.lines.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
    node.daemon.launch();
    let three = staying(&node);
    node.daemon.signal("-TERM");
    assert!(node.daemon.wait_gone().success());
    std::thread::sleep(std::time::Duration::from_millis(200));
    for agent in [one, two, three] {
        let pid = agent.pid().to_string();
        assert!(std::process::Command::new("kill").arg(&pid).status().unwrap().success(), "{pid} has ended");
    }
}

#[test]
fn an_agent_that_ends_is_reaped() {
    let node = Node::with("agents = true");
    let agents: Vec<Agent> = (0..5).map(|_| node.agent()).collect();
    let pids: Vec<u32> = agents.iter().map(Agent::pid).collect();
    assert_eq!(node.children(), 5);
    agents.into_iter().for_each(Agent::end);
    while node.children() > 0 {
        std::thread::yield_now();
    }
    assert!(!pids.iter().any(|pid| Path::new(&format!("/proc/{pid}")).exists()));
    // Who goes away without a word ends its agent as well.
    drop(node.agent());
    while node.children() > 0 {
        std::thread::yield_now();
    }
}
