//! Secrets and keys are exchanged while stagers run: nothing that is honest ends for it, and who is taken off a list is out at once,
//! also from what he had open.

mod support;

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};
use support::{Daemon, copy, remote, well, write};
use tidepool_stage::remote::{RemoteEnd, RemoteOptions, RootRequest};
use tidepool_stage::{Cursor, End};
use tidepool_stage_client::{JobLimit, JobSpec, OnBehalf, Owner, Secret, Stager, TaskSpec, TaskState};
use tidepool_testkit::free_address;
use tidepool_transport::hex;
use tidepool_transport::remote::Meant;

const ALICE: u32 = 31_001;
const JOB: u32 = 7;

/// Secrets by their number.
fn secret(number: u8) -> Secret {
    Secret::from_hex(&hex(&[number; 32])).unwrap()
}

fn public(key: u8) -> String {
    hex(&secret(1).with_key([key; 32]).public_key().unwrap())
}

/// What a node's configuration says of trust.
#[derive(Clone)]
struct Says {
    node: &'static str,
    at: String,
    /// Its own secret and key, and the secret it accepts as well.
    own: (u8, u8),
    accepts: Option<u8>,
    admins: Vec<u8>,
    /// Nodes, where they listen, and the number of their key; one line for each.
    peers: Vec<(&'static str, String, u8)>,
}

fn put_secret(path: &Path, text: &str) {
    let temporary = path.with_extension("new");
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    fs::rename(&temporary, path).unwrap();
}

impl Says {
    /// The lines, with the files that they name.
    fn lines(&self, dir: &Path) -> String {
        let file = dir.join("own.secret");
        put_secret(&file, &format!("{}\n{}\n", hex(&[self.own.0; 32]), hex(&[self.own.1; 32])));
        let mut lines = format!(
            "node = \"{}\"\nlisten = \"{}\"\nsecret-file = \"{}\"\n",
            self.node,
            self.at,
            file.display()
        );
        if let Some(number) = self.accepts {
            let file = dir.join("other.secret");
            put_secret(&file, &hex(&[number; 32]));
            lines += &format!("accept-secret-file = \"{}\"\n", file.display());
        }
        let quoted =
            |all: Vec<String>| all.iter().map(|text| format!("\"{text}\"")).collect::<Vec<_>>().join(", ");
        let admins = self.admins.iter().map(|key| public(*key)).collect();
        let peers =
            self.peers.iter().map(|(name, at, key)| format!("{name}={at} {}", public(*key))).collect();
        lines + &format!("admins = [{}]\npeers = [{}]\n", quoted(admins), quoted(peers))
    }
}

/// A stager, what its configuration says, and what it tells.
struct Node {
    daemon: Daemon,
    says: Says,
    log: tempfile::NamedTempFile,
    read: usize,
}

impl Node {
    fn start(says: Says) -> Node {
        let log = tempfile::NamedTempFile::new().unwrap();
        let exec = format!("exec \"$@\" 2>>{}", log.path().display());
        let prefix = ["sh", "-c", &exec, "sh"].map(String::from);
        let daemon = Daemon::made(|dir| says.lines(dir), &prefix);
        Node { daemon, says, log, read: 0 }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.log.path()).unwrap()
    }

    /// SIGHUP, and what the stager says of it.
    fn hang_up(&mut self) -> String {
        self.daemon.signal("-HUP");
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let log = self.log();
            let said: Vec<&str> = log.lines().filter(|line| line.contains("read anew")).collect();
            if said.len() > self.read {
                self.read = said.len();
                return said[self.read - 1].to_string();
            }
            assert!(Instant::now() < until, "it does not read its configuration:\n{log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Changes what the configuration says, and has it read.
    fn now(&mut self, change: impl FnOnce(&mut Says)) {
        change(&mut self.says);
        let spaces = fs::read_to_string(self.daemon.path("stager.toml")).unwrap();
        let spaces = &spaces[spaces.find("[[dataspace]]").unwrap()..];
        let text = format!("{}\n{spaces}", self.says.lines(self.daemon.dir.path()));
        fs::write(self.daemon.path("stager.toml"), text).unwrap();
        let said = self.hang_up();
        assert!(!said.contains("as before"), "{said}");
    }
}

/// Two nodes that know each other, and an administrator with key 7.
fn two() -> (Node, Node) {
    let (first, second) = (free_address().to_string(), free_address().to_string());
    let peers = vec![("n1", first.clone(), 1), ("n2", second.clone(), 2)];
    let says = |node, at, key| Says {
        node,
        at,
        own: (100, key),
        accepts: None,
        admins: vec![7],
        peers: peers.clone(),
    };
    (Node::start(says("n1", first, 1)), Node::start(says("n2", second, 2)))
}

fn admin(secret_number: u8, key: u8) -> Secret {
    secret(secret_number).with_key([key; 32])
}

/// A file from each node to the other one.
fn copies_go(first: &Node, second: &Node, round: u32) {
    for (from, to, at) in [(first, second, &second.says.at), (second, first, &first.says.at)] {
        let name = format!("file-{round}");
        write(&from.daemon.path(&format!("a/{name}")), name.as_bytes());
        let dst = Some(remote(&format!("b://{name}"), at));
        well(&from.daemon.control(), &TaskSpec { dst, ..copy(&format!("a://{name}"), "b://x") });
        assert_eq!(fs::read(to.daemon.path(&format!("b/{name}"))).unwrap(), name.as_bytes(), "round {round}");
    }
}

/// Of stagers that know no node by its key: so only the secret is tried, and jobs need not be registered.
#[test]
fn secrets_are_exchanged_without_a_stop() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: needs root, whose stager listens for others in tests");
        return;
    }
    let (mut first, mut second) = two();
    // Nodes without keys here: what is tried is the secret.
    for node in [&mut first, &mut second] {
        node.now(|says| {
            says.peers.clear();
            says.own.1 += 50;
        });
    }
    let data: Vec<u8> = (0..24u32 << 20).map(|i| (i % 251) as u8).collect();
    write(&first.daemon.path("a/big"), &data);
    let dst = Some(remote("b://big", &second.says.at));
    let slow = TaskSpec { dst, bandwidth: 3 << 20, ..copy("a://big", "b://x") };
    let running = first.daemon.control().submit(&slow).unwrap();
    let mut held = Stager::connect_at(&first.says.at, &admin(100, 7)).unwrap();
    // Both accept the new one; each proves the new one and still accepts the old one; nobody accepts that any more.
    let steps: [fn(&mut Says); 3] = [
        |says| says.accepts = Some(101),
        |says| (says.own.0, says.accepts) = (101, Some(100)),
        |says| says.accepts = None,
    ];
    let mut round = 0;
    for step in steps {
        for turn in 0..2 {
            if turn == 0 {
                first.now(step)
            } else {
                second.now(step)
            }
            round += 1;
            copies_go(&first, &second, round);
        }
        if round == 4 {
            assert!(held.daemon_status().is_ok(), "the old secret counts still");
        }
    }
    assert!(held.daemon_status().is_err(), "who has proved only the old secret is still there");
    let error = Stager::connect_at(&first.says.at, &admin(100, 7)).err().unwrap().to_string();
    assert!(error.contains("secret"), "{error}");
    held = Stager::connect_at(&first.says.at, &admin(101, 7)).unwrap();
    assert!(held.daemon_status().is_ok());
    let ended =
        first.daemon.control().wait(&[running], false, Some(Duration::from_secs(120))).unwrap().remove(0);
    assert_eq!(ended.state, TaskState::Finished, "the copy that ran all the time: {ended:?}");
    assert!(fs::read(second.daemon.path("b/big")).unwrap() == data);
}

/// Of a job of Alice's that runs on both nodes.
fn jobs_copies_go(first: &Node, second: &Node, round: u32) {
    for (from, to, at) in [(first, second, &second.says.at), (second, first, &first.says.at)] {
        let name = format!("job-{round}");
        let path = from.daemon.path(&format!("a/{name}"));
        write(&path, name.as_bytes());
        std::os::unix::fs::chown(&path, Some(ALICE), Some(ALICE)).unwrap();
        let on_behalf = Some(OnBehalf { uid: ALICE, gid: ALICE, job: JOB });
        let dst = Some(remote(&format!("b://{name}"), at));
        well(&from.daemon.control(), &TaskSpec { dst, on_behalf, ..copy(&format!("a://{name}"), "b://x") });
        assert_eq!(fs::read(to.daemon.path(&format!("b/{name}"))).unwrap(), name.as_bytes(), "round {round}");
    }
}

#[test]
fn a_nodes_key_is_exchanged_without_a_stop() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: needs root, whose stager acts for others");
        return;
    }
    let (mut first, mut second) = two();
    let limits = ["a://", "b://"].map(|name| JobLimit { dataspace: name.into(), quota: 0 }).to_vec();
    let spec = JobSpec { id: JOB, hosts: vec!["n1".into(), "n2".into()], limits, bandwidth: 0 };
    for node in [&first, &second] {
        node.daemon.control().register_job_of(&spec, Owner { uid: ALICE, gid: ALICE }).unwrap();
    }
    jobs_copies_go(&first, &second, 0);
    let at = second.says.at.clone();
    // The new key is known everywhere, then the node has it, then the old one is known nowhere.
    first.now(|says| says.peers.push(("n2", at.clone(), 3)));
    second.now(|says| says.peers.push(("n2", at.clone(), 3)));
    jobs_copies_go(&first, &second, 1);
    second.now(|says| says.own.1 = 3);
    jobs_copies_go(&first, &second, 2);
    for node in [&mut first, &mut second] {
        node.now(|says| says.peers.retain(|(_, _, key)| *key != 2));
    }
    jobs_copies_go(&first, &second, 3);
    // Whoever has found the old key somewhere is nobody.
    let root = RootRequest {
        dataspace: "a://".into(),
        path: Vec::new(),
        write: false,
        uid: ALICE,
        gid: ALICE,
        groups: vec![ALICE],
        job: Some(JOB),
    };
    let options = |key| RemoteOptions::new(&first.says.at, secret(100).with_key([key; 32]), root.clone());
    assert!(RemoteEnd::open(options(3)).is_ok());
    assert!(RemoteEnd::open(options(2)).is_err());
}

#[test]
fn who_is_taken_off_a_list_is_out_at_once() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: needs root, whose stager acts for others");
        return;
    }
    let (mut first, _second) = two();
    // An administrator at the socket, one in the middle of a directory, and one who stays.
    first.now(|says| says.admins = vec![7, 8]);
    let (gone, stays) = (admin(100, 7), admin(100, 8));
    let held = Stager::connect_at(&first.says.at, &gone).unwrap();
    assert!(held.daemon_status().is_ok());
    let kept = Stager::connect_at(&first.says.at, &stays).unwrap();
    write(&first.daemon.path("a/file"), b"data");
    let root = RootRequest {
        dataspace: "a://".into(),
        path: Vec::new(),
        write: false,
        uid: 0,
        gid: 0,
        groups: vec![0],
        job: None,
    };
    let mut options = RemoteOptions::new(&first.says.at, gone.clone(), root);
    options.meant = Meant::named("n1");
    let end = RemoteEnd::open(options).map_err(|error| error.to_string()).unwrap();
    assert!(list(&end).is_ok());
    first.now(|says| says.admins = vec![8]);
    assert!(held.daemon_status().is_err(), "at the socket");
    assert!(list(&end).is_err(), "in a directory");
    assert!(Stager::connect_at(&first.says.at, &gone).is_err(), "anew");
    assert!(kept.daemon_status().is_ok(), "who stays keeps his connection");
}

fn list(end: &RemoteEnd) -> Result<usize, String> {
    let listed = end.list(&end.root(), &Cursor::default());
    listed.map(|(items, _)| items.len()).map_err(|error| error.to_string())
}

#[test]
fn a_configuration_that_is_wrong_changes_nothing() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: needs root, whose stager acts for others");
        return;
    }
    let (mut first, _second) = two();
    let held = Stager::connect_at(&first.says.at, &admin(100, 7)).unwrap();
    let good = fs::read_to_string(first.daemon.path("stager.toml")).unwrap();
    let without = good.replace(&format!("admins = [\"{}\"]", public(7)), "admins = []");
    assert_ne!(good, without);
    // Each takes the administrator off the list, and is wrong elsewhere.
    let wrong = [
        (format!("admin = 1\n{without}"), "unknown field `admin`"),
        (format!("workers = 0\n{without}"), "workers"),
        (format!("accept-secret-file = \"/nowhere\"\n{without}"), "accept-secret-file"),
    ];
    for (text, names) in &wrong {
        fs::write(first.daemon.path("stager.toml"), text).unwrap();
        let said = first.hang_up();
        assert!(said.contains("goes on as before") && first.log().contains(names), "{}", first.log());
        assert!(held.daemon_status().is_ok() && Stager::connect_at(&first.says.at, &admin(100, 7)).is_ok());
    }
    // A secret that others can read is none.
    fs::write(first.daemon.path("stager.toml"), &without).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(first.daemon.path("own.secret"), open).unwrap();
    assert!(first.hang_up().contains("others can read it"));
    assert!(held.daemon_status().is_ok());
}
