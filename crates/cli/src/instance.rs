//! Pools of this user on this node: where their files are and how they are found.
//!
//! ```text
//! BASE/                      of mode 0700; where it is: docs/decisions/0041-shared-directories.md
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
//!   .cores/                  core files of programs that crashed in pools that have ended
//! ```

use crate::agent::NodeRecord;
use crate::cores;
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::PoolChoice;
use crate::process::Process;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tidepool_client::{Client, PoolFile};
use tidepool_fsd::TierConfig;
use tidepool_removal::{RemovalError, Tree};
use tidepool_rundir::{Chosen, Dir, FileWant, Places, UNWRITABLE, Unusable, Want};
use tidepool_transport::LocalNode;

/// Version of the records of `docs/formats/34-node-records.md`.
pub const RECORD_VERSION: u32 = 1;
/// The same of a run's record.
const RUN_VERSION: u32 = 2;
/// Longest record: stores of a thousand daemons on one machine, with the longest paths.
const RECORD_BYTES_MAX: u64 = 8 << 20;
/// How often the removal of an instance's directory is tried while something is put into it.
const REMOVE_TRIES: u32 = 40;
const REMOVE_PAUSE: Duration = Duration::from_millis(25);
/// Where core files of ended pools are; no pool's name.
const CORES: &str = ".cores";

/// A pool on this node, running or not.
#[derive(Clone, Debug)]
pub struct Instance {
    pub name: String,
    pub dir: PathBuf,
}

/// What a run has to do when its program has ended, kept for `drain`.
/// Format: `docs/formats/34-node-records.md`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRecord {
    version: u32,
    /// The identity of the pool.
    instance: String,
    uid: u32,
    boot_id: String,
    /// The process of the run; while it lives, `drain` keeps away.
    pub pid: u32,
    start: u64,
    /// Written before it begins.
    pub phase: RunPhase,
    /// Exit code of the program, once it has ended.
    pub program: Option<u8>,
    pub outs: Vec<OutRecord>,
}

/// How far a run has come.
///
/// ```text
/// stage-in ──▶ program ──▶ stage-out ──▶ done
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunPhase {
    StageIn,
    Program,
    StageOut,
    /// All results are at their destinations.
    Done,
}

impl RunRecord {
    /// Of a run that this process is.
    pub fn new(
        instance: &Instance,
        (phase, program): (RunPhase, Option<u8>),
        outs: &[OutRecord],
    ) -> Result<RunRecord> {
        let Process { pid, start } = Process::own();
        Ok(RunRecord {
            version: RUN_VERSION,
            instance: NodeRecord::identity(instance)?,
            uid: own_uid(),
            boot_id: LocalNode::detect().boot_id,
            pid,
            start,
            phase,
            program,
            outs: outs.to_vec(),
        })
    }

    fn parse(text: &[u8]) -> std::result::Result<RunRecord, String> {
        let record: RunRecord = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        check_record_of(RUN_VERSION, record.version, record.uid)?;
        Ok(record)
    }

    /// Its process, on this machine.
    pub fn process(&self) -> Option<Process> {
        let here = self.boot_id == LocalNode::detect().boot_id;
        here.then_some(Process { pid: self.pid, start: self.start })
    }

    pub fn is_going_on(&self) -> bool {
        self.process().is_some_and(Process::lives)
    }
}

/// What all records say first.
pub fn check_record(version: u32, uid: u32) -> std::result::Result<(), String> {
    check_record_of(RECORD_VERSION, version, uid)
}

fn check_record_of(wanted: u32, version: u32, uid: u32) -> std::result::Result<(), String> {
    let own = own_uid();
    match (version == wanted, uid) {
        (true, uid) if uid == own => Ok(()),
        (true, uid) => Err(format!("is of uid {uid}, not of uid {own}")),
        (false, _) => Err(format!("has version {version}, this release reads {wanted}")),
    }
}

pub fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
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

/// How long a daemon may take to say how it is, where its pool allows no less.
pub const QUESTION_MAX: Duration = Duration::from_secs(5);

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

    /// For questions about the daemons themselves, which one that is stopped is not to hold up for long.
    pub fn hurried_client(&self) -> Result<Client> {
        Ok(self.client()?.hurried(QUESTION_MAX))
    }

    pub fn client(&self) -> Result<Client> {
        Ok(Client::new(self.read_pool_file()?))
    }

    /// Where daemons keep the data of this pool below the store directory.
    pub fn store_dir(&self, store: &Path, daemon: usize) -> PathBuf {
        store.join(format!("tidepool-{}", self.name)).join(format!("d{daemon}"))
    }

    /// None where no run made the pool. One that cannot be read is an error: nobody knows what it would have said.
    pub fn run_record(&self) -> Result<Option<RunRecord>> {
        let Some(dir) = self.open()? else { return Ok(None) };
        let Some(text) = self.read_in(&dir, "run.json".as_ref())? else { return Ok(None) };
        RunRecord::parse(&text).map(Some).map_err(|why| self.unreadable("run.json", &why))
    }

    /// Its directory, if there is one, and only if nobody else has a hand in it.
    pub fn open(&self) -> Result<Option<Dir>> {
        let want = Want { forbidden: UNWRITABLE, ..Want::private(own_uid()) };
        match Dir::open(&self.dir, &want) {
            Ok(dir) => Ok(Some(dir)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(Failure::new(Kind::NoPool, format!("pool '{}': {error}", self.name))),
        }
    }

    /// A record, if there is one.
    pub fn read_in(&self, dir: &Dir, name: &OsStr) -> Result<Option<Vec<u8>>> {
        let want = FileWant { uid: own_uid(), or_root: false, bytes_max: RECORD_BYTES_MAX };
        match dir.read(name, &want) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(self.unreadable(&name.to_string_lossy(), &error.why.to_string())),
        }
    }

    /// Fails closed: what a record names may be in use.
    pub fn unreadable(&self, name: &str, why: &str) -> Failure {
        let (pool, dir) = (&self.name, self.dir.display());
        let text = format!(
            "pool '{pool}': {dir}/{name} {why}; nothing is removed on its word: if the pool is over, remove its data and {dir} yourself"
        );
        Failure::new(Kind::Cleanup, text)
    }

    pub fn write_run_record(&self, record: &RunRecord) -> Result<()> {
        let text = serde_json::to_vec(record).expect("a record always serializes");
        let temporary = self.dir.join("run.json.tmp");
        // What follows is done on its word, also after a power failure.
        let written = fs::File::create(&temporary)
            .and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&temporary, self.run_record_path()))
            .and_then(|()| fs::File::open(&self.dir)?.sync_all());
        written.context(Kind::Start, || format!("{}", self.run_record_path().display()))
    }

    /// Makes the directories of a new instance.
    pub fn create(name: &str, reach: Reach) -> Result<Instance> {
        Instance::create_but(name, reach, &[])
    }

    /// The same, elsewhere than in these, which are somebody else's on another node.
    pub fn create_but(name: &str, reach: Reach, taken: &[PathBuf]) -> Result<Instance> {
        check_name(name)?;
        if let Some(there) = list().into_iter().find(|there| there.name == name) {
            return Err(there.exists_already());
        }
        let dir = base_dir_but(reach, taken)?.join(name);
        match fs::DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                return Err(Instance { name: name.into(), dir }.exists_already());
            }
            Err(error) => return Err(Failure::new(Kind::Start, format!("{}: {error}", dir.display()))),
        }
        let instance = Instance { name: name.into(), dir };
        let mount = instance.mount_path();
        let made = fs::create_dir(&mount).context(Kind::Start, || mount.display().to_string());
        if made.is_err() {
            // Empty, and of no use to anybody.
            let _ = fs::remove_dir(&instance.dir);
        }
        made.map(|()| instance)
    }

    pub fn exists_already(&self) -> Failure {
        let (name, dir) = (&self.name, self.dir.display());
        let text = format!("pool '{name}' exists already ({dir}); stop it first, or choose another name");
        Failure::new(Kind::Start, text)
    }

    /// A pool of this user's on other nodes: nothing is made here.
    pub fn elsewhere(name: &str, uid: u32) -> Result<Instance> {
        let first = Instance::everywhere(name, uid)?.into_iter().next();
        first.ok_or_else(|| Failure::new(Kind::Start, "there is no directory for pools"))
    }

    /// Where a pool of this file is on its nodes.
    pub fn of_pool(name: &str, pool: &PoolFile) -> Instance {
        let dir = pool.mount.parent().unwrap_or(Path::new("/")).to_path_buf();
        Instance { name: name.into(), dir }
    }

    /// Where a pool of this user's on other nodes may be, in the order in which that is tried.
    pub fn everywhere(name: &str, uid: u32) -> Result<Vec<Instance>> {
        check_name(name)?;
        if std::env::var_os("TIDEPOOL_RUNTIME").is_some_and(|dir| Path::new(&dir).is_relative()) {
            let text = "$TIDEPOOL_RUNTIME is no absolute path, so it means nothing on other nodes";
            return Err(Failure::new(Kind::Usage, text));
        }
        let places = Places::of(uid).shared().into_iter();
        Ok(places.map(|base| Instance { name: name.into(), dir: base.join(name) }).collect())
    }

    /// An error where its directory holds what could not be removed; its mount must be gone.
    pub fn look_before_removal(&self) -> std::result::Result<(), RemovalError> {
        RemovalError::unless_missing(Tree::open(&self.dir, own_uid()).and_then(Tree::look).map(drop))
    }

    /// Removes the instance's directory; its mount must be gone.
    pub fn remove(&self) -> std::io::Result<()> {
        let removed = match fs::remove_dir(self.mount_path()) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
                self.move_cores_away()?;
                fs::remove_dir(self.mount_path())
            }
            removed => removed,
        };
        match removed {
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
            match tidepool_removal::remove(&self.dir, own_uid()) {
                // An agent that is about to end takes the lock, which makes its file.
                Err(error) if error.is_filling() && tries_left > 0 => {
                    tries_left -= 1;
                    std::thread::sleep(REMOVE_PAUSE);
                }
                done => return Ok(RemovalError::unless_missing(done)?),
            }
        }
    }

    /// What the kernel wrote for programs that crashed is kept beside the pools, and told.
    pub fn move_cores_away(&self) -> std::io::Result<()> {
        let beside = self.dir.parent().unwrap_or(Path::new("/")).join(CORES);
        for path in cores::move_away(&self.mount_path(), &beside, &self.name)? {
            eprintln!(
                "tidepool: a program crashed in pool '{}'; its core file is {}",
                self.name,
                path.display()
            );
        }
        Ok(())
    }
}

fn check_name(name: &str) -> Result<()> {
    tidepool_types::check_pool_name(name).map_err(|text| Failure::new(Kind::Usage, text))
}

/// Who has to find a pool's directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Processes of this machine.
    Here,
    /// Those of other nodes as well, at the same path.
    Everywhere,
}

/// The directory of new instances, made if missing. Whoever has taken a better place is named.
pub fn base_dir(reach: Reach) -> Result<PathBuf> {
    base_dir_but(reach, &[])
}

fn base_dir_but(reach: Reach, taken: &[PathBuf]) -> Result<PathBuf> {
    let places = Places::own();
    let chosen = match reach {
        Reach::Here => places.choose_here(),
        Reach::Everywhere => places.choose_shared_but(taken),
    };
    let Chosen { dir, passed } = chosen.map_err(|none| Failure::new(Kind::Start, none.to_string()))?;
    passed.iter().for_each(|why| warn(why, &format!("{} is used instead", dir.path().display())));
    Ok(dir.path().to_path_buf())
}

/// Makes a directory that only this user can look into, or says who else could.
pub fn private_dir(dir: &Path) -> Result<()> {
    let made = Dir::make(dir, &Want::private(own_uid()));
    made.map(drop).map_err(|error| Failure::new(Kind::Start, error.to_string()))
}

/// Tells once of each place what is wrong with it: somebody else may be up to something.
fn warn(why: &Unusable, then: &str) {
    static TOLD: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    if TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert(why.path.clone()) {
        eprintln!("tidepool: warning: {why}; {then}");
    }
}

/// The directories that may hold instances of this user.
pub fn bases() -> Vec<Dir> {
    let (there, refused) = Places::own().there();
    refused.iter().for_each(|why| warn(why, "nothing in it is believed"));
    there
}

/// All instances of this user on this node, by name.
pub fn list() -> Vec<Instance> {
    let want = Want { forbidden: UNWRITABLE, ..Want::private(own_uid()) };
    let mut all: Vec<Instance> = Vec::new();
    for base in bases() {
        let names = base.names().unwrap_or_else(|why| {
            warn(&why, "its pools are not looked at");
            Vec::new()
        });
        // What starts with a dot is no pool's: journals of copies without one.
        for name in names.into_iter().filter(|name| !name.as_encoded_bytes().starts_with(b".")) {
            let Some(text) = name.to_str().filter(|text| check_name(text).is_ok()) else { continue };
            let is_new = all.iter().all(|other| other.name != text);
            match base.child(&name, &want) {
                Ok(dir) if is_new => all.push(Instance { name: text.into(), dir: dir.path().into() }),
                Err(why) if why.culprit().is_some() => warn(&why, "it is no pool of yours"),
                _ => {}
            }
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// All directories of this user's that a pool of this name has here: the one that somebody says, and those in other places.
pub fn all_of(said: &Instance) -> Result<Vec<Instance>> {
    let want = Want { forbidden: UNWRITABLE, ..Want::private(own_uid()) };
    let mut all = match Dir::open(&said.dir, &want) {
        Ok(_) => vec![said.clone()],
        // What is somebody else's holds nothing of this user's.
        Err(why) if why.is_missing() || why.culprit().is_some() => Vec::new(),
        Err(why) => return Err(Failure::new(Kind::Cleanup, why.to_string())),
    };
    for dir in bases().iter().filter_map(|base| base.child(said.name.as_ref(), &want).ok()) {
        if dir.path() != said.dir {
            all.push(Instance { name: said.name.clone(), dir: dir.path().into() });
        }
    }
    Ok(all)
}

/// The instance a command means: by name, by `$TIDEPOOL_POOL`, or the only one.
pub fn find(choice: &PoolChoice) -> Result<Instance> {
    if let Some(said) = &choice.pool {
        return if said.contains('/') { of_file(Path::new(said)) } else { named(said) };
    }
    if let Some(said) = std::env::var_os("TIDEPOOL_POOL") {
        let name = said.to_str().filter(|said| !said.contains('/'));
        return name.map_or_else(|| Ok(beside(Path::new(&said))), named);
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

fn named(name: &str) -> Result<Instance> {
    check_name(name)?;
    list().into_iter().find(|there| there.name == name).ok_or_else(|| unknown(name))
}

/// The pool whose file this is. Jobs with several pools have a variable with the path of each. Only the file that lies where the pool
/// itself is: beside a copy there may be somebody's results, and what is stopped is removed.
fn of_file(path: &Path) -> Result<Instance> {
    let pool = PoolFile::read(path).map_err(|error| Failure::new(Kind::NoPool, error.to_string()))?;
    let instance = beside(&pool.mount);
    let real = |path: &Path| fs::canonicalize(path).ok();
    if real(path).is_none_or(|path| real(&instance.pool_file()) != Some(path)) {
        let (said, file) = (path.display(), instance.pool_file());
        let text = format!("--pool {said}: that is a copy; the pool's own file is {}", file.display());
        return Err(Failure::new(Kind::Usage, text));
    }
    Ok(instance)
}

fn beside(path: &Path) -> Instance {
    let dir = path.parent().unwrap_or(Path::new("/")).to_path_buf();
    let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Instance { name, dir }
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
    /// The example of `docs/formats/34-node-records.md`, with the uid of whoever runs this.
    #[test]
    fn a_runs_record_is_these_bytes() {
        let spec = include_str!("../../../docs/formats/34-node-records.md");
        let line = spec.lines().find(|line| line.contains("\"outs\"")).expect("it has an example");
        let text = line.replace("\"uid\":31001", &format!("\"uid\":{}", own_uid()));
        let record = RunRecord::parse(text.as_bytes()).expect("the example is right");
        assert_eq!((record.pid, record.start, record.outs.len()), (12, 3400, 1));
        assert_eq!((record.phase, record.program), (RunPhase::StageOut, Some(0)));
        assert_eq!(serde_json::to_string(&record).expect("a record always serializes"), text);
        assert!(record.process().is_none() && !record.is_going_on(), "it is of another start of the machine");
        for (from, to, word) in [
            ("\"version\":2", "\"version\":1", "version 1"),
            (&*format!("\"uid\":{}", own_uid()), "\"uid\":31999", "uid 31999"),
            ("\"pid\"", "\"more\":1,\"pid\"", "more"),
            ("\"start\":3400,", "", "start"),
            ("\"phase\":\"stage-out\",", "", "phase"),
            ("stage-out", "lunch", "lunch"),
        ] {
            let error = RunRecord::parse(text.replacen(from, to, 1).as_bytes()).expect_err(word);
            assert!(error.contains(word), "{word}: {error}");
        }
    }
}
