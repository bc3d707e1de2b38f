//! `--fs script:PROGRAM`: any other file system, such as BeeOND, behind a program of the
//! site's. It is called with one word, in the instance's directory:
//!
//! ```text
//! PROGRAM start     makes the file system on the nodes; ends when it can be used
//! PROGRAM health    ends with 0 while it can be used
//! PROGRAM path      prints where programs find it, an absolute path, on one line
//! PROGRAM stop      removes it; also called after a start that failed
//! ```
//! `$TIDEPOOL_HOSTFILE` names a file with one node per line, `$TIDEPOOL_NAME` is a name for
//! this file system that no other has, `$TIDEPOOL_STORE` the directory for its data.

use super::{FileSystem, stage_in_at, stage_out_at};
use crate::exec;
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::PoolShape;
use crate::instance::{Instance, OutRecord, Reach};
use crate::launch::{self, default_store};
use crate::place::Layout;
use crate::signals::Signals;
use crate::staging::Summary;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tidepool_transport::random_bytes;
use tidepool_types::InstanceId;

pub struct Script {
    program: PathBuf,
    store: PathBuf,
    instance: Instance,
    path: PathBuf,
    over: bool,
}

impl Script {
    pub fn start(shape: &PoolShape, name: &str, program: &Path) -> Result<Script> {
        super::refuse_limits(shape, "--fs script")?;
        let nodes = Layout::asked(shape)?.place.names()?;
        let instance = Instance::create(name, Reach::Everywhere)?;
        let mut script = Script {
            program: std::path::absolute(program).context(Kind::Usage, || program.display().to_string())?,
            store: shape.store.clone().unwrap_or_else(default_store),
            instance,
            path: PathBuf::new(),
            over: false,
        };
        let id = InstanceId(random_bytes());
        crate::agent::NodeRecord::note_starter(&script.instance, id, Path::new(""))?;
        script.instance.write_hostfile(&nodes)?;
        script.call("start", Kind::Start)?;
        script.path = PathBuf::from(script.call("path", Kind::Start)?.trim_end_matches('\n'));
        if !script.path.is_absolute() || !script.path.is_dir() {
            let text = format!("{} path: '{}' is no directory", program.display(), script.path.display());
            return Err(Failure::new(Kind::Start, text));
        }
        Ok(script)
    }

    /// What the program prints when called with this word. It says what it does on standard error.
    fn call(&self, word: &str, kind: Kind) -> Result<String> {
        let what = || format!("{} {word}", self.program.display());
        let output = Command::new(&self.program)
            .arg(word)
            .current_dir(&self.instance.dir)
            .env("TIDEPOOL_HOSTFILE", self.instance.hostfile())
            .env("TIDEPOOL_NAME", &self.instance.name)
            .env("TIDEPOOL_STORE", &self.store)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .context(kind, what)?;
        if !output.status.success() {
            return Err(Failure::new(kind, format!("{} failed: {}", what(), output.status)));
        }
        String::from_utf8(output.stdout).context(kind, what)
    }

    fn stop_now(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.over, true) {
            return Ok(());
        }
        let stopped = self.call("stop", Kind::Cleanup);
        // Its directory is needed for another try.
        stopped.and_then(|_| launch::clean_here(&self.instance, true))
    }
}

impl FileSystem for Script {
    fn describe(&self) -> String {
        format!("{} at {}", self.program.display(), self.path.display())
    }

    fn instance(&self) -> &Instance {
        &self.instance
    }

    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    fn health(&self) -> Result<()> {
        self.call("health", Kind::NoPool).map(|_| ())
    }

    fn environment(&self) -> Result<Vec<(OsString, OsString)>> {
        let mut variables = exec::node_variables(&self.instance);
        variables.push(("TIDEPOOL_DIR".into(), self.path.clone().into()));
        Ok(variables)
    }

    fn stage_in(&self, from: &Path, to: &str, journal: &Path, signals: &Signals) -> Result<Summary> {
        stage_in_at(&self.path, from, to, journal, signals)
    }

    fn stage_out(&self, out: &OutRecord, journal: &Path, signals: &Signals) -> Result<Summary> {
        stage_out_at(&self.path, out, journal, signals)
    }

    fn stop(mut self: Box<Self>) -> Result<()> {
        self.stop_now()
    }

    fn leave(mut self: Box<Self>) -> Result<()> {
        self.over = true;
        let (path, program) = (self.path.display(), self.program.display());
        eprintln!("tidepool: the results stay in {path}; '{program} stop' removes them");
        Ok(())
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        if let Err(failure) = self.stop_now() {
            eprintln!("tidepool: {failure}");
        }
    }
}
