//! `--fs local`: a plain directory of the store, on one node and without daemons.
//!
//! ```text
//! STORE/tidepool-NAME/local.json     marks the directory beside it as ours to remove
//! STORE/tidepool-NAME/local/         the file system
//! ```

use super::{FileSystem, stage_in_at, stage_out_at};
use crate::agent::NodeRecord;
use crate::exec;
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::PoolShape;
use crate::instance::{Instance, OutRecord, Reach, own_uid};
use crate::launch::{self, default_store};
use crate::place::Layout;
use crate::signals::Signals;
use crate::staging::Summary;
use rustix::fs::{AtFlags, unlinkat};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use tidepool_removal::{Looked, RemovalError, Tree};
use tidepool_rundir::{Dir, FileWant, UNWRITABLE, Want};
use tidepool_transport::random_bytes;
use tidepool_types::InstanceId;

const DATA: &str = "local";
const MARKER: &str = "local.json";
const MARKER_VERSION: u32 = 2;
const MARKER_BYTES_MAX: u64 = 4096;

pub struct Local {
    instance: Instance,
    data: PathBuf,
    over: bool,
}

/// Written beside the data.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Marker {
    version: u32,
    /// The identity of the file system, as its record has it.
    instance: String,
}

/// A directory that `--fs local` made, with nothing in it that would have to stay.
pub struct LocalTree {
    parent: Dir,
    /// None where only the mark is left.
    data: Option<Looked>,
}

impl LocalTree {
    /// Directories that were made for these records, and nobody else's: their marks are this user's and say so.
    pub fn of(records: &[NodeRecord]) -> std::result::Result<Vec<LocalTree>, RemovalError> {
        let stores = records.iter().flat_map(|record| record.stores.iter().map(move |dir| (dir, record)));
        stores
            .filter_map(|(dir, record)| marked_for(dir, record))
            .map(|parent| {
                let data = match Tree::beneath(&parent, DATA.as_ref(), own_uid()) {
                    Ok(tree) => Some(tree.look()?),
                    Err(error) if error.is_missing() => None,
                    Err(error) => return Err(error),
                };
                Ok(LocalTree { parent, data })
            })
            .collect()
    }

    /// Removes it, and its mark.
    pub fn remove(self) -> std::io::Result<()> {
        if let Some(data) = self.data {
            data.remove()?;
        }
        Ok(unlinkat(self.parent.fd(), MARKER, AtFlags::empty())?)
    }
}

/// The directory with the mark, if that is of this record.
fn marked_for(dir: &Path, record: &NodeRecord) -> Option<Dir> {
    let parent = dir.parent().filter(|_| dir.file_name().is_some_and(|name| name == DATA))?;
    let want = Want { forbidden: UNWRITABLE, local: false, ..Want::private(own_uid()) };
    let file = FileWant { uid: own_uid(), or_root: false, bytes_max: MARKER_BYTES_MAX };
    let parent = Dir::open_anywhere(parent, &want).ok()?;
    let marker: Marker = serde_json::from_slice(&parent.read(MARKER.as_ref(), &file).ok()?).ok()?;
    (marker.version == MARKER_VERSION && marker.instance == record.instance).then_some(parent)
}

impl Local {
    pub fn start(shape: &PoolShape, name: &str) -> Result<Local> {
        if Layout::asked(shape)?.nodes() > 1 {
            let text =
                "--fs local is a directory of one node; use --local, or --fs tidepool for several nodes";
            return Err(Failure::new(Kind::Usage, text));
        }
        super::refuse_limits(shape, "--fs local")?;
        let store = shape.store.clone().unwrap_or_else(default_store);
        let store = std::path::absolute(&store).unwrap_or(store);
        let instance = Instance::create(name, Reach::Here)?;
        let data = instance.store_dir(&store, 0).with_file_name(DATA);
        let local = Local { instance, data, over: false };
        local.make_dirs()?;
        Ok(local)
    }

    fn make_dirs(&self) -> Result<()> {
        let fail = || self.data.display().to_string();
        // First, so that the directory is found when this process is killed.
        let id = InstanceId(random_bytes());
        NodeRecord::note_store(&self.instance, id, &self.data)?;
        let own = self.data.parent().expect("it is below the store");
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(own).context(Kind::Start, fail)?;
        let marker = Marker { version: MARKER_VERSION, instance: id.to_string() };
        let text = serde_json::to_vec(&marker).expect("words and numbers always serialize");
        fs::write(self.data.with_file_name(MARKER), text).context(Kind::Start, fail)?;
        builder.recursive(false).create(&self.data).context(Kind::Start, fail)?;
        self.instance.write_hostfile(&[crate::agent::own_name()])
    }
}

impl FileSystem for Local {
    fn describe(&self) -> String {
        format!("the directory {}", self.data.display())
    }

    fn instance(&self) -> &Instance {
        &self.instance
    }

    fn path(&self) -> PathBuf {
        self.data.clone()
    }

    fn health(&self) -> Result<()> {
        fs::read_dir(&self.data).map(|_| ()).context(Kind::NoPool, || self.data.display().to_string())
    }

    fn environment(&self) -> Result<Vec<(OsString, OsString)>> {
        let mut variables = exec::node_variables(&self.instance);
        variables.push(("TIDEPOOL_DIR".into(), self.data.clone().into()));
        Ok(variables)
    }

    fn stage_in(&self, from: &Path, to: &str, journal: &Path, signals: &Signals) -> Result<Summary> {
        stage_in_at(&self.data, from, to, journal, signals)
    }

    fn stage_out(&self, out: &OutRecord, journal: &Path, signals: &Signals) -> Result<Summary> {
        stage_out_at(&self.data, out, journal, signals)
    }

    fn stop(mut self: Box<Self>) -> Result<()> {
        self.over = true;
        launch::clean_here(&self.instance, true)
    }

    fn leave(mut self: Box<Self>) -> Result<()> {
        self.over = true;
        let (name, data) = (&self.instance.name, self.data.display());
        eprintln!("tidepool: the results stay in {data}; 'tidepool pool stop --pool {name}' removes them");
        Ok(())
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if !self.over
            && let Err(failure) = launch::clean_here(&self.instance, true)
        {
            eprintln!("tidepool: {failure}");
        }
    }
}
