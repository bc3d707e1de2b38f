//! Pools of this user on this node: where their files are and how they are found.
//!
//! ```text
//! BASE/                      $TIDEPOOL_RUNTIME or /tmp/tidepool-UID, the same on all nodes; mode 0700
//!   NAME/pool.json           the pool file (secret, members)
//!   NAME/run.json            what `run` still has to do, for `drain`; its process
//!   NAME/mnt/                the pool's path for programs
//!   NAME/dN.sock             sockets of the daemons here
//!   NAME/node-K.json         processes and stores of node K, when it is on this machine
//!   NAME/starter.json        the process that started the pool, and its job; where that was on another machine, the first agent here
//!   NAME/hostfile            the nodes for computing, one per line
//!   NAME/tiers.json          the storage below the pool's own, where there is any
//!   NAME/lock                held while agents of several nodes change these files
//!   NAME/log                 what agents and daemons say
//!   NAME/log-HOST, log-srun  what ssh, srun and the agents behind them say
//!   NAME/out-N.journal/      progress of each stage-out
//! ```

use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::PoolChoice;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidepool_client::{Client, PoolFile};
use tidepool_fsd::TierConfig;

/// How often the removal of an instance's directory is tried while something is put into it.
const REMOVE_TRIES: u32 = 40;
const REMOVE_PAUSE: Duration = Duration::from_millis(25);

/// A pool on this node, running or not.
#[derive(Clone, Debug)]
pub struct Instance {
    pub name: String,
    pub dir: PathBuf,
}

/// What a run has to do when its program has ended, kept for `drain`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRecord {
    /// The process of the run; while it lives, `drain` keeps away.
    pub pid: u32,
    pub outs: Vec<OutRecord>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutRecord {
    /// Path in the pool.
    pub source: String,
    /// Absolute local path.
    pub destination: PathBuf,
    /// Names appear oldest first, when all is copied.
    #[serde(default)]
    pub ordered: bool,
}

impl Instance {
    pub fn pool_file(&self) -> PathBuf {
        self.dir.join("pool.json")
    }

    pub fn mount_path(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    pub fn log_path(&self) -> PathBuf {
        self.dir.join("log")
    }

    pub fn hostfile(&self) -> PathBuf {
        self.dir.join("hostfile")
    }

    /// Nodes for computing; empty when none were written down.
    pub fn compute_nodes(&self) -> Vec<String> {
        let text = fs::read_to_string(self.hostfile()).unwrap_or_default();
        text.lines().map(String::from).collect()
    }

    pub fn write_hostfile(&self, nodes: &[String]) -> Result<()> {
        let text: String = nodes.iter().map(|node| format!("{node}\n")).collect();
        fs::write(self.hostfile(), text).context(Kind::Start, || self.hostfile().display().to_string())
    }

    fn tiers_path(&self) -> PathBuf {
        self.dir.join("tiers.json")
    }

    /// The storage below the pool's own; none where there is none.
    pub fn tiers(&self) -> Option<TierConfig> {
        let text = fs::read(self.tiers_path()).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// A kept pool may have had others before.
    pub fn write_tiers(&self, tiers: Option<&TierConfig>) -> Result<()> {
        let path = self.tiers_path();
        let written = match tiers {
            Some(tiers) => {
                fs::write(&path, serde_json::to_vec(tiers).expect("words and numbers always serialize"))
            }
            None => fs::remove_file(&path).or_else(|error| match error.kind() {
                ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            }),
        };
        written.context(Kind::Start, || path.display().to_string())
    }

    /// Keeps the agents of other nodes on this machine away from the directory's files.
    pub fn lock(&self) -> std::io::Result<fs::File> {
        let file = fs::File::create(self.dir.join("lock"))?;
        file.lock()?;
        Ok(file)
    }

    pub fn run_record_path(&self) -> PathBuf {
        self.dir.join("run.json")
    }

    pub fn socket(&self, daemon: usize) -> PathBuf {
        self.dir.join(format!("d{daemon}.sock"))
    }

    pub fn read_pool_file(&self) -> Result<PoolFile> {
        PoolFile::read(&self.pool_file()).map_err(|e| Failure::new(Kind::NoPool, e.to_string()))
    }

    pub fn client(&self) -> Result<Client> {
        Ok(Client::new(self.read_pool_file()?))
    }

    /// Where daemons keep the data of this pool below the store directory.
    pub fn store_dir(&self, store: &Path, daemon: usize) -> PathBuf {
        store.join(format!("tidepool-{}", self.name)).join(format!("d{daemon}"))
    }

    pub fn run_record(&self) -> Option<RunRecord> {
        let text = fs::read(self.run_record_path()).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub fn write_run_record(&self, record: &RunRecord) -> Result<()> {
        let text = serde_json::to_vec(record).expect("a record always serializes");
        let temporary = self.dir.join("run.json.tmp");
        fs::write(&temporary, text)
            .and_then(|()| fs::rename(&temporary, self.run_record_path()))
            .context(Kind::Start, || format!("{}", self.run_record_path().display()))
    }

    /// Makes the directories of a new instance.
    pub fn create(name: &str) -> Result<Instance> {
        check_name(name)?;
        let base = base_dir()?;
        let dir = base.join(name);
        match fs::DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                return Err(Instance { name: name.into(), dir }.exists_already());
            }
            Err(error) => return Err(Failure::new(Kind::Start, format!("{}: {error}", dir.display()))),
        }
        let instance = Instance { name: name.into(), dir };
        fs::create_dir(instance.mount_path())
            .context(Kind::Start, || instance.mount_path().display().to_string())?;
        Ok(instance)
    }

    pub fn exists_already(&self) -> Failure {
        let (name, dir) = (&self.name, self.dir.display());
        let text = format!("pool '{name}' exists already ({dir}); stop it first, or choose another name");
        Failure::new(Kind::Start, text)
    }

    /// A pool of this user's on other nodes: nothing is made here.
    pub fn elsewhere(name: &str, uid: u32) -> Result<Instance> {
        check_name(name)?;
        let dir = base_path_of(uid).join(name);
        match dir.is_absolute() {
            true => Ok(Instance { name: name.into(), dir }),
            false => {
                let text = "$TIDEPOOL_RUNTIME is no absolute path, so it means nothing on other nodes";
                Err(Failure::new(Kind::Usage, text))
            }
        }
    }

    /// Removes the instance's directory; its mount must be gone.
    pub fn remove(&self) -> std::io::Result<()> {
        match fs::remove_dir(self.mount_path()) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
                // Somebody's results may be among them: they are not ours to remove.
                return Err(std::io::Error::other(format!(
                    "programs that are not intercepted (static ones?) wrote files to {} itself; move them away, then stop the pool again",
                    self.mount_path().display()
                )));
            }
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut tries_left = REMOVE_TRIES;
        loop {
            match fs::remove_dir_all(&self.dir) {
                // An agent that is about to end takes the lock, which makes its file.
                Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty && tries_left > 0 => {
                    tries_left -= 1;
                    std::thread::sleep(REMOVE_PAUSE);
                }
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => return Ok(()),
            }
        }
    }
}

fn check_name(name: &str) -> Result<()> {
    tidepool_types::check_pool_name(name).map_err(|text| Failure::new(Kind::Usage, text))
}

/// The directory of all instances, made if missing and refused if it is not ours alone.
pub fn base_dir() -> Result<PathBuf> {
    let dir = base_path();
    private_dir(&dir)?;
    Ok(dir)
}

/// Makes a directory, or refuses one that others can change: they could put their own pool
/// files into it.
pub fn private_dir(dir: &Path) -> Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .context(Kind::Start, || dir.display().to_string())?;
    let meta = fs::symlink_metadata(dir).context(Kind::Start, || dir.display().to_string())?;
    let uid = rustix::process::geteuid().as_raw();
    if !meta.is_dir() || meta.uid() != uid || meta.mode() & 0o077 != 0 {
        let text = format!(
            "{} must be a directory of uid {uid} with mode 0700; set TIDEPOOL_RUNTIME to another one",
            dir.display()
        );
        return Err(Failure::new(Kind::Start, text));
    }
    Ok(())
}

/// Not `$XDG_RUNTIME_DIR`: it exists only where the user has logged in, which is not so on
/// the nodes of a job.
fn base_path() -> PathBuf {
    base_path_of(rustix::process::geteuid().as_raw())
}

fn base_path_of(uid: u32) -> PathBuf {
    match std::env::var_os("TIDEPOOL_RUNTIME") {
        Some(dir) => dir.into(),
        None => PathBuf::from(format!("/tmp/tidepool-{uid}")),
    }
}

/// All instances of this user on this node, by name.
pub fn list() -> Vec<Instance> {
    let Ok(entries) = fs::read_dir(base_path()) else { return Vec::new() };
    let mut all: Vec<Instance> = entries
        .flatten()
        // What starts with a dot is no pool's: journals of copies without one.
        .filter(|e| !e.file_name().as_encoded_bytes().starts_with(b".") && e.path().is_dir())
        .map(|e| Instance { name: e.file_name().to_string_lossy().into_owned(), dir: e.path() })
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// The instance a command means: by name, by `$TIDEPOOL_POOL`, or the only one.
pub fn find(choice: &PoolChoice) -> Result<Instance> {
    if let Some(name) = &choice.pool {
        check_name(name)?;
        let dir = base_path().join(name);
        return if dir.is_dir() { Ok(Instance { name: name.clone(), dir }) } else { Err(unknown(name)) };
    }
    if let Some(file) = std::env::var_os("TIDEPOOL_POOL") {
        let dir = Path::new(&file).parent().unwrap_or(Path::new("/")).to_path_buf();
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        return Ok(Instance { name, dir });
    }
    let mut all = list();
    match all.len() {
        1 => Ok(all.remove(0)),
        0 => Err(Failure::new(Kind::NoPool, "no pool is running here; start one with 'tidepool pool start'")),
        _ => {
            let names: Vec<_> = all.iter().map(|i| i.name.as_str()).collect();
            let text = format!("several pools are here ({}); say which with --pool NAME", names.join(", "));
            Err(Failure::new(Kind::NoPool, text))
        }
    }
}

fn unknown(name: &str) -> Failure {
    let names: Vec<String> = list().into_iter().map(|i| i.name).collect();
    let known = if names.is_empty() {
        "none is running here".into()
    } else {
        format!("here are: {}", names.join(", "))
    };
    Failure::new(Kind::NoPool, format!("no pool '{name}'; {known}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_the_base_directory() {
        for bad in ["", "..", "a/b", "-x", ".hidden", "a b", &"x".repeat(41)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        assert!(check_name("run-1a2b.3_c").is_ok());
    }
}
