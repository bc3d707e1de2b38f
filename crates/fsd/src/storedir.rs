//! The directory of a daemon's stores: whose it is, and that only one daemon uses it.

use crate::Config;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use tidepool_env::LockedFile;
use tidepool_removal::{Looked, RemovalError, Tree, Why};
use tidepool_rundir::{Dir, FileWant, UNWRITABLE, Want};
use tidepool_types::{DaemonIndex, InstanceId};

/// Marks a directory as a store, so that nothing else is ever wiped.
const MARKER: &str = "tidepool-store.json";
const LOCK: &str = "lock";
/// Directories of a store.
pub const METADATA: &str = "meta";
pub const DATA: &str = "data";
/// What says that a directory is a store, and that it is in use: the last to go.
const KEPT: [&str; 2] = [MARKER, LOCK];
const VERSION: u32 = 1;
const MARKER_BYTES_MAX: u64 = 4096;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Marker {
    version: u32,
    instance: String,
    index: DaemonIndex,
}

/// Why a directory cannot be used.
#[derive(Debug)]
pub struct StoreDirError {
    path: PathBuf,
    why: String,
}

impl fmt::Display for StoreDirError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "store directory {}: {}", self.path.display(), self.why)
    }
}

impl std::error::Error for StoreDirError {}

/// What is wanted of a store directory.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub instance: InstanceId,
    pub index: DaemonIndex,
    /// Reopen a store of this instance.
    pub keep: bool,
    /// It is there, of an earlier run: a missing or empty directory is none of the pool's.
    pub again: bool,
    /// Remove a store of another instance.
    pub wipe: bool,
}

/// Of a store that the data of a kept pool should be in.
const MISSING: &str = "is missing, and with it data of the pool. If it lies on a disk that is not mounted, or was moved, bring it back and start the pool again; to give the pool up, 'tidepool pool stop' removes what is left of it";

impl Wanted {
    /// What a daemon wants of its stores.
    pub fn by(config: &Config) -> Wanted {
        let Config { instance, index, keep, again, wipe, .. } = *config;
        Wanted { instance, index, keep, again, wipe }
    }

    /// The same of those on shared storage. Which of them were there the daemon has noted in its own; others may join a pool that
    /// was kept.
    pub fn of_tiers(self) -> Wanted {
        Wanted { again: false, ..self }
    }

    fn admits_new(&self) -> Result<(), String> {
        if self.again { Err(MISSING.into()) } else { Ok(()) }
    }
}

/// A directory that belongs to this daemon until dropped.
pub struct StoreDir {
    path: PathBuf,
    _lock: LockedFile,
}

/// True when the directory is a store of some pool.
pub fn is_store(dir: &Path) -> bool {
    dir.join(MARKER).is_file()
}

/// What has to hold of a store, and of its mark, so that nobody's word alone makes something one. Where it lies is the
/// user's choice: also on shared storage.
fn wanted_of(uid: u32) -> Want {
    Want { forbidden: UNWRITABLE, local: false, ..Want::private(uid) }
}

/// Of which pool a directory is a store.
fn mark_in(dir: &Dir, uid: u32) -> Option<InstanceId> {
    let file = FileWant { uid, or_root: false, bytes_max: MARKER_BYTES_MAX };
    let marker: Marker = serde_json::from_slice(&dir.read(MARKER.as_ref(), &file).ok()?).ok()?;
    (marker.version == VERSION).then_some(marker.instance).and_then(|instance| InstanceId::parse(&instance))
}

/// A store that no daemon uses, and none can begin to, with nothing in it that would have to stay.
pub struct IdleStore {
    tree: Looked,
    _lock: Option<LockedFile>,
}

impl IdleStore {
    /// None where a directory is no store of this user, or not of a pool that is meant. One that is in use, or could not be
    /// removed whole, is an error.
    pub fn hold(
        dir: &Path,
        uid: u32,
        is_meant: impl FnOnce(InstanceId) -> bool,
    ) -> Result<Option<IdleStore>, StoreDirError> {
        let fail = |why: String| StoreDirError { path: dir.into(), why };
        let tree = match Tree::open_as(dir, &wanted_of(uid)) {
            Ok(tree) => tree,
            // It is not there, or not this user's.
            Err(RemovalError { why: Why::Root(_), .. }) => return Ok(None),
            Err(error) => return Err(fail(error.to_string())),
        };
        // What is read beneath the open directory is of what goes.
        if !mark_in(tree.dir(), uid).is_some_and(is_meant) {
            return Ok(None);
        }
        let lock = open_lock(tree.dir()).and_then(|lock| lock.map(taken).transpose()).map_err(fail)?;
        let tree = tree.look().map_err(|error| fail(error.to_string()))?;
        Ok(Some(IdleStore { tree, _lock: lock }))
    }

    /// The mark goes last: what is left when this is interrupted is still known as a store.
    pub fn remove(self) -> Result<(), RemovalError> {
        self.tree.remove_contents(&KEPT)?;
        self.tree.remove()
    }
}

/// A store that no daemon uses, and none can begin to: for whoever repairs it.
pub struct StillStore {
    _lock: Option<LockedFile>,
}

impl StillStore {
    /// A store of this user's; anything else is an error.
    pub fn hold(path: &Path) -> Result<StillStore, StoreDirError> {
        let fail = |why: String| StoreDirError { path: path.into(), why };
        let uid = rustix::process::geteuid().as_raw();
        let dir = Dir::open(path, &wanted_of(uid)).map_err(|error| fail(error.to_string()))?;
        if mark_in(&dir, uid).is_none() {
            return Err(fail(format!("{MARKER} does not say that it is a store of this release and user")));
        }
        let lock = open_lock(&dir).and_then(|lock| lock.map(taken).transpose()).map_err(fail)?;
        Ok(StillStore { _lock: lock })
    }
}

/// A store's lock, if there is one, without making or following anything.
fn open_lock(dir: &Dir) -> Result<Option<File>, String> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match openat(dir.fd(), LOCK, flags, Mode::empty()) {
        Ok(fd) => Ok(Some(File::from(fd))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(format!("cannot open its lock: {errno}")),
    }
}

/// Holds a lock, or says that a daemon does.
fn taken(lock: File) -> Result<LockedFile, String> {
    match LockedFile::try_new(lock) {
        Ok(lock) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err("another daemon is using it".into()),
        Err(TryLockError::Error(error)) => Err(format!("cannot lock it: {error}")),
    }
}

/// Whether a daemon could claim all its directories as they are now. Nothing is made or removed: of daemons that start
/// together, one would have wiped its store before another is refused.
pub fn check_stores(config: &Config) -> Result<(), StoreDirError> {
    let wanted = Wanted::by(config);
    let lower = config.tiers.as_ref().map(|tiers| tiers.stores(config.instance, config.index));
    let of_tiers = wanted.of_tiers();
    let all = lower.iter().flatten().map(|path| (path, &of_tiers)).chain([(&config.dir, &wanted)]);
    for (path, wanted) in all {
        check(path, wanted).map_err(|why| StoreDirError { path: path.clone(), why })?;
    }
    check_parts(config)
}

/// Whether a store of an earlier run has what it had then.
pub fn check_parts(config: &Config) -> Result<(), StoreDirError> {
    if !config.again {
        return Ok(());
    }
    let is_there = |part: &str| config.dir.join(part).is_dir();
    let mut names = fs::read_dir(config.dir.join(METADATA)).into_iter().flatten().flatten();
    let has_metadata = names.any(|entry| {
        let name = entry.file_name();
        name == "data.mdb" || name.to_string_lossy().starts_with("meta-")
    });
    let missing = match (has_metadata, is_there(DATA)) {
        (false, _) => METADATA,
        (true, false) => DATA,
        (true, true) => return Ok(()),
    };
    Err(StoreDirError { path: config.dir.join(missing), why: MISSING.into() })
}

fn check(path: &Path, wanted: &Wanted) -> Result<(), String> {
    let names = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return wanted.admits_new(),
        names => names.map_err(|error| format!("cannot read it: {error}"))?,
    };
    if names.count() == 0 {
        return wanted.admits_new();
    }
    refuse_others(path)?;
    let uid = rustix::process::geteuid().as_raw();
    let tree = Tree::open(path, uid).map_err(|error| error.to_string())?;
    open_lock(tree.dir()).and_then(|lock| lock.map(taken).transpose())?;
    match admit(path, wanted)? {
        Admitted::AsItIs => Ok(()),
        Admitted::Wiped => tree.look().map(drop).map_err(|error| format!("cannot wipe it: {error}")),
    }
}

fn refuse_others(path: &Path) -> Result<(), String> {
    if is_store(path) {
        return Ok(());
    }
    Err(format!(
        "holds files that are no store ({MARKER} is missing), so it is left alone; name an empty or new directory"
    ))
}

impl StoreDir {
    /// Takes a directory over: makes it, reopens it, or wipes it, as wanted and allowed.
    /// A directory with other content than a store is never touched.
    pub fn claim(path: &Path, wanted: &Wanted) -> Result<StoreDir, StoreDirError> {
        let fail = |why: String| StoreDirError { path: path.into(), why };
        let io = |what: &'static str| move |e: io::Error| fail(format!("{what}: {e}"));
        if wanted.again && !path.exists() {
            return Err(fail(MISSING.into()));
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io("cannot make it"))?;
        let fresh = fs::read_dir(path).map_err(io("cannot read it"))?.next().is_none();
        match fresh {
            true => wanted.admits_new().map_err(fail)?,
            false => refuse_others(path).map_err(fail)?,
        }
        let lock = taken(File::create(path.join(LOCK)).map_err(io("cannot lock it"))?).map_err(fail)?;
        if !fresh && admit(path, wanted).map_err(fail)? == Admitted::Wiped {
            wipe_contents(path).map_err(|error| fail(format!("cannot wipe it: {error}")))?;
        }
        let marker = Marker { version: VERSION, instance: wanted.instance.to_string(), index: wanted.index };
        let text = serde_json::to_string(&marker).expect("a marker always serializes");
        fs::write(path.join(MARKER), text).map_err(io("cannot mark it"))?;
        Ok(StoreDir { path: path.into(), _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What tells whether this directory, with these parts, is still there.
    pub fn tether(&self, parts: &[&str]) -> Tether {
        let all = [&[LOCK], parts].concat().into_iter().map(|name| self.path.join(name));
        Tether { held: all.filter_map(|path| Some((id_of(&path).ok()?, path))).collect() }
    }

    /// Removes the stores and the directory.
    pub fn wipe(self) -> io::Result<()> {
        wipe_contents(&self.path)?;
        fs::remove_file(self.path.join(MARKER))?;
        fs::remove_file(self.path.join(LOCK))?;
        fs::remove_dir(&self.path)
    }
}

/// Device and number of what is at a path.
fn id_of(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|meta| (meta.dev(), meta.ino()))
}

/// What a daemon's store consists of, as it was when the daemon took it over.
pub struct Tether {
    held: Vec<((u64, u64), PathBuf)>,
}

impl Tether {
    /// What of it has been removed, or has something else in its place. A failure to look is no removal.
    pub fn lost(&self) -> Option<&Path> {
        let is_lost = |(id, path): &&((u64, u64), PathBuf)| match id_of(path) {
            Ok(there) => there != *id,
            Err(error) => matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
        };
        let path = self.held.iter().find(is_lost).map(|(_, path)| path.as_path())?;
        // The lock stands for the whole.
        if path.ends_with(LOCK) { path.parent() } else { Some(path) }
    }
}

/// How an existing store is taken over.
#[derive(PartialEq, Eq)]
enum Admitted {
    AsItIs,
    Wiped,
}

/// Decides what to do with an existing store.
fn admit(path: &Path, wanted: &Wanted) -> Result<Admitted, String> {
    let text = fs::read(path.join(MARKER)).map_err(|e| format!("cannot read {MARKER}: {e}"))?;
    let marker: Marker = serde_json::from_slice(&text).map_err(|e| format!("{MARKER}: {e}"))?;
    if marker.version != VERSION {
        return Err(format!("has store version {}, this release reads {VERSION}", marker.version));
    }
    let same = marker.instance == wanted.instance.to_string() && marker.index == wanted.index;
    if same && wanted.keep {
        return Ok(Admitted::AsItIs);
    }
    if wanted.again {
        return Err(format!(
            "is the store of daemon {} of pool {}, where that of daemon {} of this pool should be: data of the pool are missing. Put its stores back in their places, or give the pool up with 'tidepool pool stop'",
            marker.index, marker.instance, wanted.index
        ));
    }
    if same || wanted.wipe {
        return Ok(Admitted::Wiped);
    }
    Err(format!(
        "belongs to daemon {} of pool {}; start that pool with --keep, or use --wipe to remove its data",
        marker.index, marker.instance
    ))
}

/// Removes all but the marker and the lock.
fn wipe_contents(path: &Path) -> Result<(), RemovalError> {
    tidepool_removal::contents(path, rustix::process::geteuid().as_raw(), &KEPT)
}
