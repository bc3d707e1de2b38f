//! Nodes for stagers: network name spaces joined by a bridge where that is allowed, addresses of
//! the loopback interface where it is not. Everything is taken down when the value is dropped, and
//! what a killed run has left is taken down by the next one.

use super::{Daemon, listening, remote, resource};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tidepool_stage_client::{Resource, StageError, Stager};

const PREFIX: &str = "tpstager";
const PORT: u16 = 42_000;

/// Networks of this process.
static NETWORKS: AtomicU32 = AtomicU32::new(0);

pub struct Network {
    /// First part of the names of its name spaces; none on the loopback interface.
    name: Option<String>,
    addresses: Vec<String>,
}

fn run(words: &[&str]) -> bool {
    let done = Command::new(words[0]).args(&words[1..]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    done.is_ok_and(|status| status.success())
}

fn must(words: &[&str]) {
    assert!(run(words), "{}", words.join(" "));
}

/// Whether name spaces and mounts can be made here.
pub fn may_administer() -> bool {
    static MAY: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *MAY.get_or_init(|| {
        let probe = format!("{PREFIX}-{}-probe", std::process::id());
        let made = run(&["ip", "netns", "add", &probe]);
        let works = made && run(&["ip", "-n", &probe, "link", "add", "bridge0", "type", "bridge"]);
        if made {
            run(&["ip", "netns", "del", &probe]);
        }
        works
    })
}

impl Network {
    pub fn new(nodes: usize) -> Network {
        if !may_administer() {
            println!("NO NAME SPACES (not root, or no ip): nodes are addresses 127.0.0.x of this one");
            return Network::loopback(nodes);
        }
        sweep();
        let number = NETWORKS.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}-{}-{number}", std::process::id());
        println!("{nodes} nodes are network name spaces joined by a bridge");
        let address = |node| format!("10.77.{}.{}:{PORT}", number % 200, node + 1);
        // Made before its parts, so that a failure takes down what there is.
        let network = Network { name: Some(name), addresses: (0..nodes).map(address).collect() };
        network.build(nodes);
        network
    }

    fn loopback(nodes: usize) -> Network {
        let free = |node| {
            let listener =
                std::net::TcpListener::bind((format!("127.0.0.{}", node + 1).as_str(), 0)).unwrap();
            listener.local_addr().unwrap().to_string()
        };
        Network { name: None, addresses: (0..nodes).map(free).collect() }
    }

    fn space(&self, node: impl std::fmt::Display) -> Option<String> {
        self.name.as_ref().map(|name| format!("{name}-{node}"))
    }

    fn build(&self, nodes: usize) {
        let Some(switch) = self.space("switch") else { return };
        must(&["ip", "netns", "add", &switch]);
        must(&["ip", "-n", &switch, "link", "add", "bridge0", "type", "bridge"]);
        must(&["ip", "-n", &switch, "link", "set", "bridge0", "up"]);
        for node in 0..nodes {
            self.join(&switch, node);
        }
    }

    fn join(&self, switch: &str, node: usize) {
        let Some(space) = self.space(node) else { return };
        let port = format!("p{node}");
        let address = self.addresses[node].replace(&format!(":{PORT}"), "/24");
        must(&["ip", "netns", "add", &space]);
        let cable = ["type", "veth", "peer", "name", &port, "netns", switch];
        must(&[&["ip", "-n", &space, "link", "add", "eth0"][..], &cable[..]].concat());
        must(&["ip", "-n", switch, "link", "set", &port, "master", "bridge0", "up"]);
        must(&["ip", "-n", &space, "addr", "add", &address, "dev", "eth0"]);
        must(&["ip", "-n", &space, "link", "set", "lo", "up"]);
        must(&["ip", "-n", &space, "link", "set", "eth0", "up"]);
    }

    pub fn is_real(&self) -> bool {
        self.name.is_some()
    }

    /// Where the stager of a node listens to others.
    pub fn address(&self, node: usize) -> &str {
        &self.addresses[node]
    }

    /// What starts a program at a node.
    pub fn prefix(&self, node: usize) -> Vec<String> {
        let space =
            self.space(node).map(|space| ["ip", "netns", "exec", &space].map(str::to_string).to_vec());
        space.unwrap_or_default()
    }

    /// Takes a node's link away, or gives it back.
    pub fn link(&self, node: usize, up: bool) {
        if let Some(space) = self.space(node) {
            must(&["ip", "-n", &space, "link", "set", "eth0", if up { "up" } else { "down" }]);
        }
    }

    /// Takes a node's cable out of the switch, or puts it back: its packets are lost without a word.
    /// Not every kernel has tc's qdisc `netem`, and this needs none.
    pub fn lossy(&self, node: usize, lossy: bool) {
        let Some(switch) = self.space("switch") else { return };
        let master: &[&str] = if lossy { &["nomaster"] } else { &["master", "bridge0"] };
        must(&[&["ip", "-n", &switch, "link", "set", &format!("p{node}")][..], master].concat());
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            remove(|space| space.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('-')));
        }
    }
}

/// Removes the name spaces that `doomed` names.
fn remove(doomed: impl Fn(&str) -> bool) {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if doomed(&name) {
            run(&["ip", "netns", "del", &name]);
        }
    }
}

/// What runs that were killed have left behind.
fn sweep() {
    let owner = |space: &str| -> Option<u32> {
        space.strip_prefix(PREFIX)?.strip_prefix('-')?.split('-').next()?.parse().ok()
    };
    remove(|space| owner(space).is_some_and(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()));
}

/// A mount that goes with the value.
pub struct Mount {
    at: std::path::PathBuf,
}

impl Mount {
    /// `words`: arguments of mount(8) before the directory. None where it is not allowed.
    pub fn new(words: &[&str], at: &std::path::Path) -> Option<Mount> {
        std::fs::create_dir_all(at).unwrap();
        let at = at.to_path_buf();
        let text = at.to_str().expect("tests use plain names").to_string();
        run(&[&["mount"], words, &[&text]].concat()).then_some(Mount { at })
    }

    pub fn remount(&self, options: &str) {
        must(&["mount", "-o", &format!("remount,{options}"), self.at.to_str().expect("a plain name")]);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A stager that dies slowly may still be in it.
        run(&["umount", "-l", self.at.to_str().expect("a plain name")]);
    }
}

/// Stagers on nodes of their own. They end before their network does.
pub struct World {
    pub stagers: Vec<Mutex<Daemon>>,
    pub network: Network,
    sockets: Vec<PathBuf>,
    dirs: Vec<PathBuf>,
}

impl World {
    /// `config`: more lines of configuration, for the stager's directory.
    pub fn new(nodes: usize, config: impl Fn(&Path) -> String) -> World {
        let network = Network::new(nodes);
        let start = |node| {
            let config = |dir: &Path| {
                let listening = listening(dir, network.address(node));
                format!("node = \"n{node}\"\n{listening}{}", config(dir))
            };
            Daemon::made(config, &network.prefix(node))
        };
        let stagers: Vec<Daemon> = (0..nodes).map(start).collect();
        let sockets = stagers.iter().map(Daemon::control_socket).collect();
        let dirs = stagers.iter().map(|stager| stager.path("")).collect();
        World { stagers: stagers.into_iter().map(Mutex::new).collect(), network, sockets, dirs }
    }

    /// A file or directory of a node.
    pub fn path(&self, node: usize, below: &str) -> PathBuf {
        self.dirs[node].join(below)
    }

    /// What lies at `of`, as the stager of node `seen_from` calls it.
    pub fn resource(&self, seen_from: usize, of: (usize, &str)) -> Resource {
        match of.0 == seen_from {
            true => resource(of.1),
            false => remote(of.1, self.network.address(of.0)),
        }
    }

    /// Once, on a connection of its own.
    pub fn try_ask<T>(
        &self,
        node: usize,
        ask: impl FnOnce(&Stager) -> Result<T, StageError>,
    ) -> Result<T, StageError> {
        ask(&Stager::connect(&self.sockets[node])?)
    }

    /// Until the stager of the node answers; what it refuses is an answer.
    pub fn ask<T>(
        &self,
        node: usize,
        ask: impl Fn(&Stager) -> Result<T, StageError>,
    ) -> Result<T, StageError> {
        loop {
            match self.try_ask(node, &ask) {
                Ok(answer) => return Ok(answer),
                Err(StageError::Refused(refusal)) => return Err(StageError::Refused(refusal)),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    pub fn kill_and_restart(&self, node: usize) {
        self.stagers[node].lock().unwrap_or_else(PoisonError::into_inner).restart();
    }
}
