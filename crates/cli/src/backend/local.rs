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
use crate::instance::{Instance, OutRecord};
use crate::launch::{self, default_store};
use crate::place::Layout;
use crate::signals::Signals;
use crate::staging::Summary;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

const DATA: &str = "local";
const MARKER: &str = "local.json";

pub struct Local {
    instance: Instance,
    data: PathBuf,
    over: bool,
}

/// True for a directory that `--fs local` made.
pub fn is_local(dir: &Path) -> bool {
    dir.file_name().is_some_and(|name| name == DATA) && dir.with_file_name(MARKER).is_file()
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
        let instance = Instance::create(name)?;
        let data = instance.store_dir(&store, 0).with_file_name(DATA);
        let local = Local { instance, data, over: false };
        local.make_dirs()?;
        Ok(local)
    }

    fn make_dirs(&self) -> Result<()> {
        let fail = || self.data.display().to_string();
        // First, so that the directory is found when this process is killed.
        NodeRecord::note_store(&self.instance, &self.data)?;
        let own = self.data.parent().expect("it is below the store");
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(own).context(Kind::Start, fail)?;
        fs::write(self.data.with_file_name(MARKER), "{\"version\": 1}\n").context(Kind::Start, fail)?;
        builder.recursive(false).create(&self.data).context(Kind::Start, fail)?;
        self.instance.write_hostfile(&[crate::agent::own_name()])
    }
}

/// Removes a directory that `--fs local` made, and its mark.
pub fn remove(dir: &Path) -> std::io::Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    fs::remove_file(dir.with_file_name(MARKER))
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
