//! Pools of real daemon processes for tests.
//!
//! Daemons are killed with `kill -9` and started again; nothing is simulated. Every random
//! choice comes from [`Rng`], whose seed is printed and can be set with `TIDEPOOL_SEED`.

#![forbid(unsafe_code)]

mod act_as;
mod address;
mod leash;
mod middleman;
mod program;
mod small_disk;
mod stopped;
mod tiered;
pub mod trees;

pub use act_as::ActAs;
pub use address::free_address;
pub use leash::Leash;
pub use middleman::{Middleman, Way};
pub use program::{copy_program, put_program};
pub use small_disk::SmallDisk;
pub use stopped::{stop, thread_states};
pub use tiered::{Storage, bytes_of, counted, create_file, pool_on, read_all, write_all};

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;
use tidepool_client::{Client, Cred, Hint, PoolFile, PoolMode};
use tidepool_fsd::{Backend, Config, Ready};
use tidepool_transport::{ANSWER_MS_DEFAULT, Secret, random_bytes};
use tidepool_types::{Encryption, Ino, InstanceId, Layout};
use tidepool_wire::message::{Member, Reply, Request};

/// How a test's pool differs from the default one.
#[derive(Clone)]
pub struct Options {
    pub daemons: usize,
    pub layout: Layout,
    pub weights: Vec<u32>,
    pub groups: Vec<String>,
    pub hints: Vec<Hint>,
    pub size_cache: bool,
    pub mode: PoolMode,
    pub backend: Backend,
    /// Listen on TCP only, so that the TCP transport is what is tested.
    pub tcp_only: bool,
    /// Listen on TCP as well, for [`Cluster::client_on`].
    pub tcp_too: bool,
    /// Where the stores go; a temporary directory when none.
    pub stores: Option<PathBuf>,
    /// Limits of each daemon; 0 for none.
    pub quota_bytes: u64,
    pub quota_objects: u64,
    /// Provider of libfabric; for pools with `tcp_only`, without encryption.
    pub fabric: String,
    /// Of what goes over TCP.
    pub encryption: Encryption,
    /// How long clients wait for a daemon that says nothing.
    pub answer_ms: u64,
    /// Shared storage below each daemon's own.
    pub tiers: Option<tidepool_fsd::TierConfig>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            daemons: 3,
            layout: Layout::wide(64 << 10, 0).expect("64 KiB are a chunk"),
            weights: Vec::new(),
            groups: Vec::new(),
            hints: Vec::new(),
            size_cache: false,
            mode: PoolMode::Posix,
            backend: Backend::Memlog,
            tcp_only: false,
            tcp_too: false,
            stores: None,
            quota_bytes: 0,
            quota_objects: 0,
            fabric: String::new(),
            encryption: Encryption::Full,
            answer_ms: ANSWER_MS_DEFAULT,
            tiers: None,
        }
    }
}

/// A pool of daemon processes in a temporary directory.
pub struct Cluster {
    dir: TempDir,
    stores: PathBuf,
    options: Options,
    instance: InstanceId,
    secret: Secret,
    daemons: Vec<Option<Child>>,
    members: Vec<Member>,
    /// Where each daemon listens on TCP, also when it is started again: who knows it does not learn another place.
    tcp: Vec<SocketAddr>,
}

/// The rights of the user running the tests, or root's.
pub fn cred() -> Cred {
    Cred {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: Vec::new(),
        umask: 0o022,
    }
}

/// A built program of this workspace. `make test` builds them before the tests run.
///
/// # Panics
/// When the program has not been built.
pub fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("a test knows its own path");
    let path = own.parent().and_then(Path::parent).expect("tests lie in target/PROFILE/deps").join(name);
    assert!(path.is_file(), "{} is missing: run 'cargo build --workspace' first", path.display());
    path
}

impl Cluster {
    pub fn start(daemons: usize) -> Cluster {
        Cluster::with(Options { daemons, ..Options::default() })
    }

    pub fn with(options: Options) -> Cluster {
        let dir = TempDir::new().expect("a temporary directory can be made");
        let mut cluster = Cluster {
            stores: options.stores.clone().unwrap_or_else(|| dir.path().to_path_buf()),
            dir,
            instance: InstanceId(random_bytes()),
            secret: Secret::random(),
            daemons: (0..options.daemons).map(|_| None).collect(),
            members: Vec::new(),
            tcp: (0..if options.tcp_only || options.tcp_too { options.daemons } else { 0 })
                .map(|_| free_address())
                .collect(),
            options,
        };
        let ready: Vec<Ready> = (0..cluster.options.daemons).map(|i| cluster.spawn(i)).collect();
        cluster.members = ready.into_iter().map(member).collect();
        cluster.tell_members();
        cluster
    }

    fn config(&self, index: usize) -> Config {
        let unix = (!self.options.tcp_only).then(|| self.dir.path().join(format!("d{index}.sock")));
        Config {
            instance: self.instance,
            secret: self.secret.clone(),
            index: index as u16,
            host: format!("node{index}"),
            dir: self.store(index),
            unix,
            tcp: self.tcp.get(index).copied(),
            advertise: "127.0.0.1".into(),
            backend: self.options.backend,
            keep: true,
            again: false,
            wipe: false,
            workers: 4,
            lifeline: false,
            quota_bytes: self.options.quota_bytes,
            cores: Vec::new(),
            quota_objects: self.options.quota_objects,
            fabric: self.options.fabric.clone(),
            encryption: self.options.encryption,
            tiers: self.options.tiers.clone(),
        }
    }

    /// Directory of a daemon's stores.
    pub fn store(&self, index: usize) -> PathBuf {
        self.stores.join(format!("store{index}"))
    }

    /// Number of daemons.
    pub fn members(&self) -> usize {
        self.daemons.len()
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn spawn(&mut self, index: usize) -> Ready {
        let mut child = Command::new(program("tidepoold"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("tidepoold starts");
        let mut stdin = child.stdin.take().expect("stdin is piped");
        writeln!(stdin, "{}", self.config(index).to_json()).expect("a fresh daemon reads its configuration");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("stdout is piped");
        BufReader::new(stdout).read_line(&mut line).expect("a daemon answers");
        let ready: Ready = serde_json::from_str(&line).expect("a daemon answers in JSON");
        assert!(ready.ready, "daemon {index}: {}", ready.error);
        self.daemons[index] = Some(child);
        ready
    }

    fn tell_members(&self) {
        let client = self.client();
        for daemon in 0..self.options.daemons as u16 {
            let request = Request::Members { members: self.members.clone() };
            let reply = client.request(daemon, &request).expect("a fresh daemon answers");
            assert_eq!(reply, Reply::Done {});
        }
    }

    pub fn pool_file(&self) -> PoolFile {
        PoolFile {
            instance: self.instance,
            secret: self.secret.clone(),
            mount: "/tidepool-test".into(),
            layout: self.options.layout,
            weights: self.options.weights.clone(),
            groups: self.options.groups.clone(),
            hints: self.options.hints.clone(),
            size_cache: self.options.size_cache,
            mode: self.options.mode,
            members: self.members.clone(),
            fabric: self.options.fabric.clone(),
            encryption: self.options.encryption,
            answer_ms: self.options.answer_ms,
        }
    }

    /// A client with a session of its own.
    pub fn client(&self) -> Client {
        Client::new(self.pool_file())
    }

    /// A client for which only the daemon `index` is on its node; it reaches the others by TCP.
    pub fn client_on(&self, index: usize) -> Client {
        assert!(self.options.tcp_too, "the daemons listen on their Unix sockets only");
        let mut pool = self.pool_file();
        for member in pool.members.iter_mut().filter(|member| usize::from(member.index) != index) {
            member.boot_id = format!("node {}", member.index);
        }
        Client::new(pool)
    }

    pub fn pid(&self, index: usize) -> u32 {
        self.daemons[index].as_ref().expect("the daemon runs").id()
    }

    /// `kill -9`; returns when the process is gone.
    pub fn kill(&mut self, index: usize) {
        let mut child = self.daemons[index].take().expect("the daemon runs");
        child.kill().expect("a running daemon can be killed");
        child.wait().expect("a killed daemon can be waited for");
    }

    /// Starts a killed daemon again on its stores.
    pub fn restart(&mut self, index: usize) {
        let ready = self.spawn(index);
        self.members[index] = member(ready);
        self.tell_members();
    }

    /// What daemons are started with from now on.
    pub fn set_tiers(&mut self, tiers: tidepool_fsd::TierConfig) {
        self.options.tiers = Some(tiers);
    }

    /// Kills all daemons and starts them again with shared storage below their own.
    pub fn give_tiers(&mut self, tiers: tidepool_fsd::TierConfig) {
        (0..self.members()).for_each(|index| self.kill(index));
        self.set_tiers(tiers);
        for index in 0..self.members() {
            let ready = self.spawn(index);
            self.members[index] = member(ready);
        }
        self.tell_members();
    }

    /// SIGSTOP or SIGCONT. A daemon that is stopped says nothing more from when this returns.
    pub fn signal(&self, index: usize, signal: rustix::process::Signal) {
        if signal == rustix::process::Signal::STOP {
            return stop(self.pid(index));
        }
        let pid = rustix::process::Pid::from_raw(self.pid(index) as i32).expect("process ids are positive");
        rustix::process::kill_process(pid, signal).expect("a running daemon can be signalled");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.daemons.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn member(ready: Ready) -> Member {
    Member { index: ready.index, host: ready.host, boot_id: ready.boot_id, tcp: ready.tcp, unix: ready.unix }
}

/// Content that tells where it belongs: each 8 bytes say of which generation they are, and the how many'th of their file.
pub fn pattern(generation: u64, first_word: u64, words: usize) -> Vec<u8> {
    let word = |number: u64| (generation << 32 | number).to_le_bytes();
    (first_word..first_word + words as u64).flat_map(word).collect()
}

/// A small random source with a printed, replayable seed.
pub struct Rng(u64);

impl Rng {
    /// Takes the seed from `TIDEPOOL_SEED`, or makes one, and prints it.
    pub fn from_env(test: &str) -> Rng {
        let seed = match std::env::var("TIDEPOOL_SEED") {
            Ok(text) => text.parse().expect("TIDEPOOL_SEED is a number"),
            Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64),
        };
        println!("{test}: TIDEPOOL_SEED={seed} replays this");
        Rng::new(seed)
    }

    pub fn new(seed: u64) -> Rng {
        Rng(seed | 1)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next_u64() >> 11) % bound
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| (self.next_u64() >> 32) as u8).collect()
    }
}

/// Blocks of an object as the daemons count them in their files, for pools of few objects.
///
/// # Panics
/// When one does not answer, or finds a damaged block.
pub fn stored_blocks(client: &Client, ino: Ino) -> u64 {
    let count = |daemon| match client.request(daemon, &Request::Scrub { after: None, max: 64 }).unwrap() {
        Reply::Scrubbed { objects, .. } => {
            assert!(objects.iter().all(|object| object.bad.is_empty()), "daemon {daemon}: {objects:?}");
            objects.iter().filter(|object| object.ino == ino).map(|object| object.blocks).sum::<u64>()
        }
        other => panic!("{other:?}"),
    };
    (0..client.members() as u16).map(count).sum()
}

/// Waits until `done` holds.
///
/// # Panics
/// After 30 seconds: longer than anything waited for takes on a loaded machine.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
