//! The directory of a job script's run: beside the pools, whose names start with no dot.
//!
//! ```text
//! BASE/.job-NAME/run.json    whose it is, and which places on the node's own storage it fills
//! BASE/.job-NAME/script/     the script as it was when the run began
//! BASE/.job-NAME/in-N        progress of copies
//! ```

use crate::agent::own_name;
use crate::exit::{Context, Failure, Kind, Result};
use crate::instance::{self, RECORD_VERSION, Reach, check_record, own_uid};
use crate::process::Process;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tidepool_removal::{Looked, Tree};
use tidepool_rundir::{Dir, FileWant, UNWRITABLE, Want};
use tidepool_transport::LocalNode;

const START: &str = ".job-";
const RECORD: &str = "run.json";
const RECORD_BYTES_MAX: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    version: u32,
    uid: u32,
    host: String,
    boot_id: String,
    pid: u32,
    start: u64,
    script: String,
    /// On the node's own storage.
    places: Vec<PathBuf>,
}

impl Record {
    fn process(&self) -> Process {
        Process { pid: self.pid, start: self.start }
    }
}

/// The record of a run; none where it is of another release, or nobody's word.
fn read(dir: &Dir) -> Option<Record> {
    let want = FileWant { uid: own_uid(), or_root: false, bytes_max: RECORD_BYTES_MAX };
    let text = dir.read(RECORD.as_ref(), &want).ok()?;
    let record: Record = serde_json::from_slice(&text).ok()?;
    check_record(record.version, record.uid).is_ok().then_some(record)
}

pub struct OwnDir {
    pub path: PathBuf,
}

impl OwnDir {
    /// Refuses to share places with a run that is going on: whoever ends first would take them from the other.
    pub fn make(script: &str, places: Vec<PathBuf>) -> Result<OwnDir> {
        // Not a session's: a run in a job has to meet those in it.
        let base = instance::base_dir(Reach::Everywhere)?;
        let path = base.join(crate::pool::fresh_name(START.trim_end_matches('-')));
        let shown = path.display().to_string();
        fs::DirBuilder::new().mode(0o700).create(&path).context(Kind::Start, || shown.clone())?;
        let own = OwnDir { path };
        let Process { pid, start } = Process::own();
        let record = Record {
            version: RECORD_VERSION,
            uid: own_uid(),
            host: own_name(),
            boot_id: LocalNode::detect().boot_id,
            pid,
            start,
            script: script.into(),
            places,
        };
        let text = serde_json::to_vec(&record).context(Kind::Start, || shown.clone())?;
        // Under its name it is whole.
        let temporary = own.path.join("run.json.tmp");
        fs::write(&temporary, text)
            .and_then(|()| fs::rename(&temporary, own.path.join(RECORD)))
            .context(Kind::Start, || shown)?;
        own.look_at_others(&record)?;
        Ok(own)
    }

    /// Own record first: of two that start at the same time, at least one sees the other.
    fn look_at_others(&self, own: &Record) -> Result<()> {
        let want = Want { forbidden: UNWRITABLE, ..Want::private(own_uid()) };
        for (base, name) in instance::bases().iter().flat_map(|base| {
            let names = base.names().unwrap_or_default();
            names.into_iter().map(move |name| (base, name))
        }) {
            let is_job = name.as_encoded_bytes().starts_with(START.as_bytes());
            let Some(dir) = is_job.then(|| base.child(&name, &want).ok()).flatten() else { continue };
            if dir.path() == self.path {
                continue;
            }
            // Those of other nodes, and of other releases, are left alone.
            let Some(other) = read(&dir).filter(|other| other.host == own.host) else { continue };
            if other.boot_id != own.boot_id || !other.process().lives() || other.pid == own.pid {
                // Its run was killed. What it had staged stays: nobody knows what is in it by now.
                let tree = Tree::beneath(base, &name, own_uid());
                let _ = tree.and_then(Tree::look).and_then(Looked::remove);
                continue;
            }
            if let Some(place) = own.places.iter().find(|place| other.places.iter().any(|p| meet(p, place))) {
                let text = format!(
                    "{} belongs to {}, which process {} runs; wait for its end, or stage to another place",
                    place.display(),
                    other.script,
                    other.pid
                );
                return Err(Failure::new(Kind::StageIn, text));
            }
        }
        Ok(())
    }

    /// Puts the script there, under its own name.
    pub fn put_script(&self, name: &Path, text: &[u8]) -> Result<PathBuf> {
        let dir = self.path.join("script");
        let path = dir.join(name.file_name().unwrap_or("script".as_ref()));
        let write = || {
            fs::create_dir(&dir)?;
            fs::OpenOptions::new().write(true).create_new(true).mode(0o700).open(&path)?.write_all(text)
        };
        write().context(Kind::Start, || path.display().to_string())?;
        Ok(path)
    }
}

impl Drop for OwnDir {
    fn drop(&mut self) {
        if let Err(error) = tidepool_removal::remove(&self.path, own_uid()) {
            eprintln!("tidepool: {error}");
        }
    }
}

/// One is the other, or in it.
fn meet(a: &Path, b: &Path) -> bool {
    a.starts_with(b) || b.starts_with(a)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_meet_in_each_other() {
        let meet = |a: &str, b: &str| meet(Path::new(a), Path::new(b));
        assert!(meet("/n/a", "/n/a") && meet("/n/a", "/n/a/b") && meet("/n/a/b", "/n/a"));
        assert!(!meet("/n/a", "/n/ab") && !meet("/n/a", "/n/b"));
    }
}
