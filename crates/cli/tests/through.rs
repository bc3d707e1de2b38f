//! Pools of users, started through the stagers of their nodes from a machine that is none of them. Here all nodes are this
//! machine, so agents of one pool also meet in one directory.

mod common;

use common::{Sandbox, processes_of, text};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tidepool_testkit::Leash;

/// Nodes with stagers, and a user.
struct Cluster {
    sandbox: Sandbox,
    user: (u32, u32),
    nodes: Vec<Node>,
}

struct Node {
    name: String,
    address: String,
    stager: Option<(Child, Leash)>,
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

impl Cluster {
    fn of(nodes: usize) -> Cluster {
        let sandbox = Sandbox::new();
        sandbox.let_others_in();
        let root = rustix::process::geteuid().is_root();
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let user = if root { (7, 7) } else { own };
        for dir in [sandbox.runtime(), sandbox.store()] {
            fs::create_dir(&dir).unwrap();
            mode(&dir, 0o700);
            std::os::unix::fs::chown(&dir, Some(user.0), Some(user.1)).unwrap();
        }
        install(&sandbox.path("bin"));
        fs::write(sandbox.path("secret"), format!("{}\n{}\n", "5a".repeat(32), "07".repeat(32))).unwrap();
        mode(&sandbox.path("secret"), 0o600);
        let mut cluster = Cluster { sandbox, user, nodes: Vec::new() };
        for number in 1..=nodes {
            let at = tidepool_testkit::free_address();
            let node = Node { name: format!("n{number}"), address: at.to_string(), stager: None };
            cluster.nodes.push(node);
            cluster.launch(number - 1, "agents = true");
        }
        cluster
    }

    /// Starts the stager of a node.
    fn launch(&mut self, node: usize, config: &str) {
        let Node { name, address, .. } = &self.nodes[node];
        let secret = self.sandbox.path("secret");
        let text = format!(
            "admins = [\"13be4feaeaf204c7fd3358fc9c00721881d174278128227ec674f37f7fe97b6d\"]\nnode = \"{name}\"\nlisten = \"{address}\"\nsecret-file = \"{}\"\n{config}\n",
            secret.display()
        );
        let file = self.sandbox.path(&format!("{name}.toml"));
        fs::write(&file, text).unwrap();
        let mut child = Command::new(self.program("tidepool-staged"))
            .args(["--config".as_ref(), file.as_os_str()])
            .args(["--dir".as_ref(), self.sandbox.path(&format!("stager-{name}")).as_os_str()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let leash = Leash::on(child.id());
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("ready"), "{line}");
        self.nodes[node].stager = Some((child, leash));
    }

    fn kill_stager(&mut self, node: usize) {
        let (mut child, leash) = self.nodes[node].stager.take().unwrap();
        drop(leash);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn program(&self, name: &str) -> PathBuf {
        self.sandbox.path("bin").join(name)
    }

    fn stagers(&self) -> String {
        let all = self.nodes.iter().map(|node| format!("{}={}", node.name, node.address));
        all.collect::<Vec<_>>().join(",")
    }

    /// `pool start` of the controller.
    fn start(&self, name: &str, args: &[&str]) -> Output {
        let (stagers, secret) = (self.stagers(), self.sandbox.path("secret"));
        let user = format!("{}:{}", self.user.0, self.user.1);
        let mut command = self.sandbox.tidepool(&["pool", "start", "--json", "--name", name]);
        command.args(["--stagers", &stagers, "--as", &user, "--job", "42", "--secret-file"]).arg(secret);
        // What a controller has there is nothing to the nodes.
        command.env("TMPDIR", self.sandbox.path("no-such-place"));
        command.args(args).output().unwrap()
    }

    fn started(&self, name: &str, args: &[&str]) -> Value {
        let output = self.start(name, args);
        assert!(output.status.success(), "{args:?}: {}", text(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn refused(&self, name: &str, args: &[&str]) -> String {
        let output = self.start(name, args);
        assert_eq!(output.status.code(), Some(110), "{args:?}: {}", text(&output));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// A command of the user's.
    fn user(&self, args: &[&str]) -> Output {
        let mut command = Command::new(self.program("tidepool"));
        for (name, value) in self.sandbox.tidepool(&[]).get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.args(args).current_dir("/").env("HOME", "/");
        if self.user.0 != rustix::process::geteuid().as_raw() {
            command.uid(self.user.0).gid(self.user.1);
        }
        command.output().unwrap()
    }

    fn ok(&self, args: &[&str]) -> String {
        let output = self.user(args);
        assert!(output.status.success(), "{args:?}: {}", text(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn hosts(&self, pool: &str) -> Vec<String> {
        let status: Value =
            serde_json::from_str(&self.ok(&["pool", "status", "--json", "--pool", pool])).unwrap();
        let host = |daemon: &Value| {
            assert_eq!(daemon["reachable"], true, "{daemon}");
            daemon["host"].as_str().unwrap().to_string()
        };
        status["daemons"].as_array().unwrap().iter().map(host).collect()
    }

    /// Whether the user can use FUSE here.
    fn may_mount(&self) -> bool {
        let said: Value = serde_json::from_str(&self.ok(&["doctor", "--json"])).unwrap();
        let lines = said["lines"].as_array().unwrap();
        let ways = lines.iter().find(|line| line["topic"] == "ways in").unwrap();
        let may = ways["text"].as_str().unwrap().contains("auto takes fuse");
        if !may {
            println!("SKIPPED: user {} may not use FUSE here, so nothing is tested through it", self.user.0);
        }
        may
    }

    /// Processes that are no stager's.
    fn others(&self) -> Vec<String> {
        let mut all = processes_of(self.sandbox.dir.path());
        all.retain(|process| !process.contains("tidepool-staged --config"));
        all
    }

    /// Ends the stagers; nothing of any pool is left.
    fn end(mut self) {
        // Agents of a pool that was stopped are about to end.
        while !self.others().is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        (0..self.nodes.len()).for_each(|node| self.kill_stager(node));
        self.sandbox.assert_nothing_left("at the end");
    }
}

/// The programs where all users can run them. By other processes: one that this one has open for writing could not be run.
fn install(bin: &Path) {
    fs::create_dir(bin).unwrap();
    let built = Path::new(env!("CARGO_BIN_EXE_tidepool"));
    for name in ["tidepool", "tidepoold", "tidepool-staged", "libtidepool_preload.so"] {
        let from = built.with_file_name(name);
        assert!(from.is_file(), "there is no {name}; run 'cargo build --workspace' first");
        let linked = fs::hard_link(&from, bin.join(name)).is_ok();
        assert!(linked || Command::new("cp").arg(&from).arg(bin).status().unwrap().success());
    }
}

#[test]
fn a_users_pool_is_started_found_used_and_stopped() {
    for door in ["auto", "preload"] {
        let cluster = Cluster::of(3);
        let store = cluster.sandbox.store();
        let said = cluster.started("mine", &["--client", door]);
        let mounts = door == "auto" && cluster.may_mount();
        assert_eq!((&said["daemons"], &said["mounted"]), (&3.into(), &mounts.into()));
        assert_eq!(said["pool_file"].as_str(), cluster.sandbox.runtime().join("mine/pool.json").to_str());
        assert_eq!(cluster.hosts("mine"), ["n1", "n2", "n3"]);
        // All of it is the user's.
        for dir in [cluster.sandbox.runtime().join("mine"), store.join("tidepool-mine")] {
            // A mount of the user's is not even root's to look at.
            let entries = fs::read_dir(dir).unwrap().flatten().filter(|entry| entry.file_name() != "mnt");
            for entry in entries {
                let meta = fs::symlink_metadata(entry.path()).unwrap();
                assert_eq!(meta.uid(), cluster.user.0, "{}", entry.path().display());
            }
        }
        assert_eq!(fs::read_dir(store.join("tidepool-mine")).unwrap().count(), 3);
        let program = "echo text > f; mkdir d; cat f; echo $TIDEPOOL_NODES";
        let said = cluster.ok(&["exec", "--pool", "mine", "--", "sh", "-c", program]);
        assert_eq!(said, "text\nn1,n2,n3\n");
        assert!(cluster.ok(&["ls", "--pool", "mine", "/"]).contains('f'));
        cluster.ok(&["pool", "stop", "--pool", "mine"]);
        cluster.end();
    }
}

#[test]
fn a_pool_outlives_the_stagers_that_started_it() {
    let mut cluster = Cluster::of(2);
    cluster.started("mine", &["--client", "preload"]);
    (0..2).for_each(|node| cluster.kill_stager(node));
    assert_eq!(cluster.hosts("mine"), ["n1", "n2"]);
    (0..2).for_each(|node| cluster.launch(node, "agents = true"));
    assert_eq!(cluster.hosts("mine"), ["n1", "n2"]);
    cluster.ok(&["pool", "stop", "--pool", "mine"]);
    cluster.end();
}

#[test]
fn an_epilog_finds_the_pool_by_its_job() {
    let cluster = Cluster::of(2);
    cluster.started("mine", &["--client", "preload"]);
    let user = format!("{}:{}", cluster.user.0, cluster.user.1);
    let clean = |job: &str| {
        let mut command = Command::new(cluster.program("tidepool"));
        command.args(["node-clean", "--json", "--job", job, "--as", &user]);
        command.env("TIDEPOOL_RUNTIME", cluster.sandbox.runtime());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        said["cleaned"].clone()
    };
    assert_eq!(clean("43"), serde_json::json!([]));
    assert_eq!(cluster.hosts("mine"), ["n1", "n2"]);
    assert_eq!(clean("42"), serde_json::json!(["mine"]));
    cluster.end();
}

#[test]
fn a_pool_that_cannot_be_whole_leaves_nothing() {
    let mut cluster = Cluster::of(3);
    cluster.kill_stager(1);
    let at = cluster.nodes[1].address.clone();
    let said = cluster.refused("mine", &[]);
    assert!(said.contains("n2") && said.contains(&at), "{said}");
    assert!(fs::read_dir(cluster.sandbox.runtime()).unwrap().next().is_none());
    // One that does not want to.
    cluster.launch(1, "");
    let said = cluster.refused("mine", &[]);
    assert!(said.contains("n2") && said.contains("agents = true"), "{said}");
    cluster.kill_stager(1);
    cluster.launch(1, "agents = true");
    // A daemon that cannot be started: a store where the user may not write.
    let said = cluster.refused("mine", &["--store", "/proc/none"]);
    assert!(said.contains("n1") || said.contains("n2") || said.contains("n3"), "{said}");
    assert!(cluster.others().is_empty(), "{:?}", cluster.others());
    assert!(fs::read_dir(cluster.sandbox.runtime()).unwrap().next().is_none());
    cluster.started("mine", &[]);
    cluster.ok(&["pool", "stop", "--pool", "mine"]);
    cluster.end();
}

#[test]
fn another_pool_of_this_name_is_left_alone() {
    let cluster = Cluster::of(2);
    let first = cluster.started("mine", &["--client", "preload"]);
    let said = cluster.refused("mine", &["--client", "preload"]);
    assert!(said.contains("'mine' exists already"), "{said}");
    assert_eq!(cluster.hosts("mine"), ["n1", "n2"]);
    let pool = fs::read_to_string(cluster.sandbox.runtime().join("mine/pool.json")).unwrap();
    assert!(pool.contains(first["instance"].as_str().unwrap()));
    // Nor one that the user has started himself.
    cluster.ok(&["pool", "stop", "--pool", "mine"]);
    cluster.ok(&["pool", "start", "--name", "mine", "--client", "preload"]);
    let said = cluster.refused("mine", &["--client", "preload"]);
    assert!(said.contains("'mine' exists already"), "{said}");
    assert_eq!(cluster.hosts("mine").len(), 1);
    cluster.ok(&["pool", "stop", "--pool", "mine"]);
    cluster.end();
}

#[test]
fn what_is_planned_is_not_this_machines() {
    let cluster = Cluster::of(2);
    let dry = |environment: &[(&str, &str)], args: &[&str]| {
        let (stagers, secret) = (cluster.stagers(), cluster.sandbox.path("secret"));
        let mut command = cluster.sandbox.tidepool(&["pool", "start", "--dry-run", "--as", "7:7"]);
        command.args(["--stagers", &stagers, "--secret-file"]).arg(secret).args(args);
        command.env_remove("TIDEPOOL_STORE").env("TMPDIR", "/var/tmp/mine").envs(environment.iter().copied());
        command.output().unwrap()
    };
    for (environment, args, store) in [
        (&[][..], &[][..], "data in /tmp\n"),
        (&[("TIDEPOOL_STORE", "/local")], &[], "data in /local\n"),
        (&[("TIDEPOOL_STORE", "/local")], &["--store", "/nvme"], "data in /nvme\n"),
    ] {
        let said = dry(environment, args);
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(
            said.ends_with(store) && said.contains("of user 7: 2 node(s) through their stagers: n1, n2"),
            "{said}"
        );
    }
    for wrong in [
        &["--hosts", "a"][..],
        &["--keep", "--name", "x"],
        &["--nodes", "2"],
        &["--stagers", "n1=h:1"],
        &["--stagers", "n3"],
    ] {
        assert_eq!(dry(&[], wrong).status.code(), Some(2), "{wrong:?}");
    }
    for half in [&["--stagers", "n1=h:1"][..], &["--job", "7"], &["--as", "7:7"]] {
        let output = cluster.sandbox.tidepool(&["pool", "start", "--dry-run"]).args(half).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{half:?}");
    }
    cluster.end();
}
