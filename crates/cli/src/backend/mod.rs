//! The kinds of file systems that `tidepool run --fs NAME` can make for a program.
//!
//! Another kind is one more file with a [`FileSystem`] and one more line in [`start`].

mod local;
mod script;
mod tidepool;

pub use local::LocalTree;
pub use tidepool::check_room;

use crate::exec;
use crate::exit::{Failure, Kind, Result};
use crate::flags::{FsKind, PoolShape};
use crate::instance::{Instance, OutRecord, RunPhase, RunRecord};
use crate::meters::Reading;
use crate::plan::Staged;
use crate::signals::Signals;
use crate::staging::{self, Summary};
use crate::top::watch::Watcher;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Child;

/// A file system that this process started and that is there for one program. Dropping it
/// without [`stop`](FileSystem::stop) or [`leave`](FileSystem::leave) stops it as well.
pub trait FileSystem {
    /// For people: of what it is made.
    fn describe(&self) -> String;
    fn instance(&self) -> &Instance;
    /// Where programs find it.
    fn path(&self) -> PathBuf;
    /// An error when it cannot be used, or not any more.
    fn health(&self) -> Result<()>;
    /// What programs on it find in their environment.
    fn environment(&self) -> Result<Vec<(OsString, OsString)>>;
    /// Copies a local file or tree to `to` below its root.
    fn stage_in(&self, from: &Path, to: &str, journal: &Path, signals: &Signals) -> Result<Summary>;
    /// Something has this path below its root.
    fn has(&self, path: &str) -> Result<bool> {
        Ok(std::fs::symlink_metadata(below(&self.path(), path, Kind::StageOut)?).is_ok())
    }
    /// Copies a file or tree out of it.
    fn stage_out(&self, out: &OutRecord, journal: &Path, signals: &Signals) -> Result<Summary>;
    /// What its nodes have done so far; none where nobody counts.
    fn meters(&self) -> Option<Reading> {
        None
    }
    /// Looks on from now at what is done to its tiers; none where it has one storage only.
    fn watch(&self) -> Option<Watcher> {
        None
    }
    /// Removes all of it.
    fn stop(self: Box<Self>) -> Result<()>;
    /// Leaves the results where they are when they could not be staged out; tells people how
    /// to get them.
    fn leave(self: Box<Self>) -> Result<()>;

    /// Starts a program in it.
    fn spawn(&self, program: &[OsString]) -> Result<Child> {
        exec::spawn_in(&self.path(), self.environment()?, program)
    }

    /// Notes how far the run has come and what it still has to do, for whoever comes after it.
    fn note_run(&self, state: (RunPhase, Option<u8>), outs: &[OutRecord]) -> Result<()> {
        self.instance().write_run_record(&RunRecord::new(self.instance(), state, outs)?)
    }
}

/// Starts the kind of file system that was asked for. It is usable when this returns.
pub fn start(kind: &FsKind, shape: &PoolShape, staged: Staged) -> Result<Box<dyn FileSystem>> {
    let name = crate::pool::fresh_name("run");
    let started: Box<dyn FileSystem> = match kind {
        FsKind::Tidepool => Box::new(tidepool::Pool::start(shape, staged, &name)?),
        FsKind::Local => Box::new(local::Local::start(shape, &name)?),
        FsKind::Script(program) => Box::new(script::Script::start(shape, &name, program)?),
    };
    started.health()?;
    Ok(started)
}

/// Staging into a file system that this machine reaches through a path.
fn stage_in_at(root: &Path, from: &Path, to: &str, journal: &Path, signals: &Signals) -> Result<Summary> {
    staging::stage_in_at(from, &below(root, to, Kind::StageIn)?, &staging::USUAL, journal, signals)
}

fn stage_out_at(root: &Path, out: &OutRecord, journal: &Path, signals: &Signals) -> Result<Summary> {
    let from = below(root, &out.source, Kind::StageOut)?;
    let (pair, shape) = ((&*from, &*out.destination), staging::results(out.ordered));
    staging::stage_out_at(Some(root), pair, &shape, journal, signals)
}

/// Only daemons keep count, and only pools are planned.
fn refuse_limits(shape: &PoolShape, kind: &str) -> Result<()> {
    if shape.job.expect_size.is_some() {
        let text = format!("{kind} is not planned; use --fs tidepool, or leave --expect-size away");
        return Err(Failure::new(Kind::Usage, text));
    }
    if shape.has_tiers() {
        let text = format!("{kind} has one storage only; use --fs tidepool, or leave --burst and --pfs away");
        return Err(Failure::new(Kind::Usage, text));
    }
    if shape.quota() == 0 && shape.quota_objects == 0 {
        return Ok(());
    }
    Err(Failure::new(Kind::Usage, format!("{kind} has no quotas; use --fs tidepool, or leave --quota away")))
}

/// A path of the file system as a path of this machine; it cannot lead out of the root.
fn below(root: &Path, path: &str, kind: Kind) -> Result<PathBuf> {
    let inside = path.trim_start_matches('/');
    if Path::new(inside).components().any(|part| part.as_os_str() == "..") {
        return Err(Failure::new(kind, format!("'{path}' leads out of the file system")));
    }
    Ok(root.join(inside))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_below_the_root() {
        let root = Path::new("/store/x");
        assert_eq!(below(root, "/a/b", Kind::StageIn).unwrap(), Path::new("/store/x/a/b"));
        assert_eq!(below(root, "/", Kind::StageIn).unwrap(), Path::new("/store/x/"));
        assert_eq!(below(root, "//etc", Kind::StageIn).unwrap(), Path::new("/store/x/etc"));
        assert!(below(root, "/a/../../b", Kind::StageIn).is_err());
    }
}
