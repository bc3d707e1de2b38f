//! Pools on several tiers, and what tests do with files on them.

use crate::{Cluster, Options, SmallDisk, cred};
use std::path::PathBuf;
use tempfile::TempDir;
use tidepool_client::Client;
use tidepool_fsd::TierConfig;
use tidepool_types::Ino;
use tidepool_wire::message::{Reply, Request};

/// Shared storage of several pools: a burst buffer and a parallel file system.
pub struct Storage(TempDir);

impl Storage {
    #[allow(clippy::new_without_default, reason = "it makes directories")]
    pub fn new() -> Storage {
        Storage::of(TempDir::new().unwrap())
    }

    /// Of so many bytes altogether. None, and a word about it, without the rights to.
    pub fn small(bytes: u64) -> Option<(SmallDisk, Storage)> {
        let dir = TempDir::new().unwrap();
        let disk = SmallDisk::mount(dir.path(), bytes)?;
        Some((disk, Storage::of(dir)))
    }

    fn of(dir: TempDir) -> Storage {
        for name in ["burst", "pfs"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        Storage(dir)
    }

    /// Of `burst` or `pfs`.
    pub fn dir(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn tiers(&self, strategy: &str) -> TierConfig {
        let (burst, pfs) = (Some(self.dir("burst")), Some(self.dir("pfs")));
        TierConfig { burst, pfs, strategy: strategy.into(), ..TierConfig::default() }
    }
}

/// Two daemons on these tiers.
pub fn pool_on(tiers: TierConfig) -> Cluster {
    Cluster::with(Options { daemons: 2, tiers: Some(tiers), ..Options::default() })
}

/// An empty file in the root directory, open.
pub fn create_file(client: &Client, name: &str) -> Ino {
    let flags = libc::O_CREAT | libc::O_RDWR;
    client.open(Ino::ROOT, name.as_bytes(), flags, 0o644, &cred()).unwrap().inside().unwrap().ino
}

/// Bytes that are not the same in any two pages, nor with any two seeds.
pub fn bytes_of(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ (at / 251) as u8 ^ seed).collect()
}

pub fn write_all(client: &Client, ino: Ino, offset: u64, data: &[u8]) {
    let mut done = 0;
    while done < data.len() {
        done += client.write(ino, offset + done as u64, &data[done..]).unwrap();
    }
}

/// The first `len` bytes.
///
/// # Panics
/// When there are fewer.
pub fn read_all(client: &Client, ino: Ino, len: usize) -> Vec<u8> {
    let (mut data, mut done) = (vec![0; len], 0);
    while done < len {
        let count = client.read(ino, done as u64, &mut data[done..]).unwrap();
        assert!(count > 0, "data are missing from {done}");
        done += count;
    }
    data
}

/// What all daemons count under a name.
///
/// # Panics
/// When one is in trouble.
pub fn counted(client: &Client, name: &str) -> u64 {
    let of = |daemon: u16| {
        let Reply::Report { status } = client.request(daemon, &Request::Status {}).unwrap() else {
            panic!("a daemon tells its status");
        };
        assert_eq!(status.trouble, "");
        status.counters.iter().find(|(counter, _)| counter == name).expect("it counts that").1
    };
    (0..client.members() as u16).map(of).sum()
}
