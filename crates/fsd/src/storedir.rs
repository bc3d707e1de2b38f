//! The directory of a daemon's stores: whose it is, and that only one daemon uses it.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use tidepool_rundir::{Dir, FileWant, UNWRITABLE, Want};
use tidepool_types::{DaemonIndex, InstanceId};

/// Marks a directory as a store, so that nothing else is ever wiped.
const MARKER: &str = "tidepool-store.json";
const LOCK: &str = "lock";
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
pub struct Wanted {
    pub instance: InstanceId,
    pub index: DaemonIndex,
    /// Reopen a store of this instance.
    pub keep: bool,
    /// Remove a store of another instance.
    pub wipe: bool,
}

/// A directory that belongs to this daemon until dropped.
pub struct StoreDir {
    path: PathBuf,
    _lock: File,
}

/// True when the directory is a store of some pool.
pub fn is_store(dir: &Path) -> bool {
    dir.join(MARKER).is_file()
}

/// Whose store a directory is: of which pool, where it and its mark are this user's. None for all else, so that nobody's
/// word alone makes something a store.
pub fn store_of(dir: &Path, uid: u32) -> Option<InstanceId> {
    // Where it lies is the user's choice: also on shared storage.
    let want = Want { forbidden: UNWRITABLE, local: false, ..Want::private(uid) };
    let file = FileWant { uid, or_root: false, bytes_max: MARKER_BYTES_MAX };
    let text = Dir::open_anywhere(dir, &want).and_then(|dir| dir.read(MARKER.as_ref(), &file)).ok()?;
    let marker: Marker = serde_json::from_slice(&text).ok()?;
    (marker.version == VERSION).then_some(marker.instance).and_then(|instance| InstanceId::parse(&instance))
}

impl StoreDir {
    /// Takes a directory over: makes it, reopens it, or wipes it, as wanted and allowed.
    /// A directory with other content than a store is never touched.
    pub fn claim(path: &Path, wanted: &Wanted) -> Result<StoreDir, StoreDirError> {
        let fail = |why: String| StoreDirError { path: path.into(), why };
        let io = |what: &'static str| move |e: io::Error| fail(format!("{what}: {e}"));
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io("cannot make it"))?;
        let fresh = fs::read_dir(path).map_err(io("cannot read it"))?.next().is_none();
        if !fresh && !is_store(path) {
            return Err(fail(format!(
                "holds files that are no store ({MARKER} is missing), so it is left alone; name an empty or new directory"
            )));
        }
        let lock = File::create(path.join(LOCK)).map_err(io("cannot lock it"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(fail("another daemon is using it".into())),
            Err(TryLockError::Error(error)) => return Err(fail(format!("cannot lock it: {error}"))),
        }
        if !fresh {
            admit(path, wanted).map_err(fail)?;
        }
        let marker = Marker { version: VERSION, instance: wanted.instance.to_string(), index: wanted.index };
        let text = serde_json::to_string(&marker).expect("a marker always serializes");
        fs::write(path.join(MARKER), text).map_err(io("cannot mark it"))?;
        Ok(StoreDir { path: path.into(), _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the stores and the directory.
    pub fn wipe(self) -> io::Result<()> {
        wipe_contents(&self.path)?;
        fs::remove_file(self.path.join(MARKER))?;
        fs::remove_file(self.path.join(LOCK))?;
        fs::remove_dir(&self.path)
    }
}

/// Decides what to do with an existing store.
fn admit(path: &Path, wanted: &Wanted) -> Result<(), String> {
    let text = fs::read(path.join(MARKER)).map_err(|e| format!("cannot read {MARKER}: {e}"))?;
    let marker: Marker = serde_json::from_slice(&text).map_err(|e| format!("{MARKER}: {e}"))?;
    if marker.version != VERSION {
        return Err(format!("has store version {}, this release reads {VERSION}", marker.version));
    }
    let same = marker.instance == wanted.instance.to_string() && marker.index == wanted.index;
    if same && wanted.keep {
        return Ok(());
    }
    if same || wanted.wipe {
        return wipe_contents(path).map_err(|e| format!("cannot wipe it: {e}"));
    }
    Err(format!(
        "belongs to daemon {} of pool {}; start that pool with --keep, or use --wipe to remove its data",
        marker.index, marker.instance
    ))
}

/// Removes all but the marker and the lock.
fn wipe_contents(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_name() == MARKER || entry.file_name() == LOCK {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
