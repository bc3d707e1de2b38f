//! A pool of two daemons in this process, mounted twice: each mount has a client session of
//! its own and so stands for a node.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use tidepool_client::{Client, PoolFile};
use tidepool_fsd::{Config, Daemon};
use tidepool_fuse::{MountOptions, Mounted};
use tidepool_wire::message::{Reply, Request};

static COUNT: AtomicU32 = AtomicU32::new(0);

pub struct Pool {
    pub dir: PathBuf,
    pub file: PoolFile,
    stops: Vec<Box<dyn Fn() + Send>>,
    daemons: Vec<JoinHandle<()>>,
}

/// A pool, unless this node cannot mount, which is said loudly.
pub fn pool(test: &str) -> Option<Pool> {
    let support = tidepool_fuse::probe();
    if !support.usable() {
        eprintln!("SKIPPED: {test}: FUSE is not usable here\n{support}");
        return None;
    }
    Some(Pool::start(test))
}

impl Pool {
    fn start(test: &str) -> Pool {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("tidepool-fuse-{test}-{}-{number}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let instance = format!("{:024x}{:08x}", std::process::id(), number);
        let mut pool = Pool { file: pool_file(&instance, &[]), dir, stops: Vec::new(), daemons: Vec::new() };
        let mut members = Vec::new();
        for index in 0..2 {
            members.push(pool.start_daemon(&instance, index));
        }
        pool.file = pool_file(&instance, &members);
        let client = Client::new(pool.file.clone());
        for index in 0..2 {
            let told = client.request(index, &Request::Members { members: pool.file.members.clone() });
            assert!(matches!(told, Ok(Reply::Done {})), "{told:?}");
        }
        pool
    }

    fn start_daemon(&mut self, instance: &str, index: u16) -> serde_json::Value {
        let config = serde_json::json!({
            "instance": instance,
            "secret": "ab".repeat(32),
            "index": index,
            "host": format!("node{index}"),
            "dir": self.dir.join(format!("store{index}")),
            "unix": self.dir.join(format!("socket{index}")),
        });
        let daemon = Daemon::start(&Config::parse(&config.to_string()).unwrap()).unwrap();
        let ready = daemon.ready();
        let member = serde_json::json!({
            "host": ready.host, "boot_id": ready.boot_id, "tcp": ready.tcp, "unix": ready.unix,
        });
        self.stops.push(Box::new(daemon.stopper()));
        self.daemons.push(std::thread::spawn(move || daemon.run().unwrap()));
        member
    }

    /// Mounts the pool at a new directory.
    pub fn mount(&self, name: &str) -> Mounted {
        self.mount_with(name, |options| options)
    }

    pub fn mount_with(&self, name: &str, change: impl FnOnce(MountOptions) -> MountOptions) -> Mounted {
        let point = self.dir.join(name);
        fs::create_dir_all(&point).unwrap();
        let client = Arc::new(Client::new(self.file.clone()));
        tidepool_fuse::mount(client, &change(MountOptions::new(point))).unwrap()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for path in tidepool_fuse::mounts_below(&self.dir) {
            let _ = tidepool_fuse::unmount(&path);
        }
        self.stops.iter().for_each(|stop| stop());
        for daemon in self.daemons.drain(..) {
            let _ = daemon.join();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn pool_file(instance: &str, members: &[serde_json::Value]) -> PoolFile {
    let placeholder = serde_json::json!({"host": "none", "boot_id": "", "tcp": "", "unix": "/none"});
    let members = if members.is_empty() { vec![placeholder] } else { members.to_vec() };
    let text = serde_json::json!({
        "version": 2, "instance": instance, "secret": "ab".repeat(32), "mount": "/pool",
        "layout": {"chunk_size": 65536}, "mode": "posix", "members": members,
    });
    PoolFile::parse(text.to_string().as_bytes()).unwrap()
}

/// Runs a program in a directory; `None`, said loudly, when it is not installed.
pub fn run(dir: &Path, program: &str, args: &[&str]) -> Option<String> {
    let output = match std::process::Command::new(program).args(args).current_dir(dir).output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("SKIPPED: {program} {args:?}: {error}");
            return None;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?} in {}: {text}{errors}", dir.display());
    Some(text)
}
