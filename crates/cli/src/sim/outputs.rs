//! Where the records of `tidepool sim run` go, while it runs: nothing is kept but what is bounded.

use super::engine::Watch;
use super::pfs_flags::RunArgs;
use super::rows::{Rows, Written, names};
use super::timeline::Timeline;
use crate::exit::{Context, Failure, Kind, Result};
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use tidepool_sim::Emitted;
use tidepool_sim::checkpoint::{LoadError, Reader, Saved};
use tidepool_sim_models::observe::Observer;
use tidepool_sim_models::{Pfs, Record, Role};

pub struct Outputs {
    pub observer: Observer,
    pub timeline: Option<Timeline>,
    requests: Option<Rows>,
    pieces: Option<Rows>,
    names: Vec<String>,
    roles: Vec<Role>,
}

impl Outputs {
    /// Makes the model write what is needed for the files, and creates them where `writes`: of several ranks, the first.
    pub fn new(args: &RunArgs, pfs: &mut Pfs, writes: bool) -> Result<Outputs> {
        let create = |path: &Option<std::path::PathBuf>, rows: fn(&Path) -> io::Result<Rows>| {
            let create =
                |path: &std::path::PathBuf| rows(path).context(Kind::Other, || path.display().to_string());
            path.as_ref().filter(|_| writes).map(create).transpose()
        };
        write_what_is_wanted(args, pfs);
        Ok(Outputs {
            observer: Observer::new(pfs),
            timeline: args.timeline.as_ref().map(|_| Timeline::new(args.window())),
            requests: create(&args.csv, Rows::requests)?,
            pieces: create(&args.sub_requests, Rows::pieces)?,
            names: names(pfs),
            roles: roles(pfs),
        })
    }

    /// As [`Outputs::new`], but going on with what [`Outputs::save`] told.
    pub fn go_on(args: &RunArgs, pfs: &mut Pfs, writes: bool, kept: &[u8]) -> Result<Outputs> {
        write_what_is_wanted(args, pfs);
        let mut from = Reader::new(kept);
        let mut parts = || {
            let observer = Observer::load(pfs, &mut from)?;
            let load = |_| Timeline::load(args.window(), pfs, &mut from);
            let timeline = args.timeline.as_ref().map(load).transpose()?;
            let written = <(Option<Written>, Option<Written>)>::load(&mut from)?;
            let is_whole = from.is_empty();
            let is_same = (written.0.is_some(), written.1.is_some())
                == (args.csv.is_some(), args.sub_requests.is_some());
            match is_whole && is_same {
                true => Ok((observer, timeline, written)),
                false => Err(LoadError::Damaged("what it says of the run's files")),
            }
        };
        let (observer, timeline, (csv, sub_requests)) =
            parts().context(Kind::Other, || "--resume".to_string())?;
        let go_on = |path: &Option<std::path::PathBuf>, written: Option<Written>| {
            let (Some(path), Some(written), true) = (path, written, writes) else { return Ok(None) };
            Rows::go_on(path, written).map(Some).context(Kind::Other, || path.display().to_string())
        };
        Ok(Outputs {
            observer,
            timeline,
            requests: go_on(&args.csv, csv)?,
            pieces: go_on(&args.sub_requests, sub_requests)?,
            names: names(pfs),
            roles: roles(pfs),
        })
    }

    /// For a checkpoint: sums, and how much is in the files, all of which is there.
    pub fn save(&mut self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.observer.save(&mut out);
        if let Some(timeline) = &self.timeline {
            timeline.save(&mut out);
        }
        for rows in [&mut self.requests, &mut self.pieces] {
            let written = rows.as_mut().map(Rows::keep).transpose();
            written.map_err(|(path, error)| told(&path, &error))?.save(&mut out);
        }
        Ok(out)
    }

    /// How many requests were done.
    pub fn done(&self) -> u64 {
        self.observer.requests.values().map(|of| of.latencies.count).sum()
    }

    pub fn take(&mut self, emitted: &Emitted<Record>, watch: &Watch) {
        self.observer.take(emitted);
        let record = &emitted.record;
        if let Some(timeline) = &mut self.timeline {
            timeline.take(record);
        }
        let rows = match record {
            Record::Request(request) => {
                watch.done.fetch_add(1, Ordering::Relaxed);
                if let Some(rows) = &mut self.requests {
                    rows.request(&self.names, request);
                }
                &self.requests
            }
            Record::Piece(piece) => {
                if let Some(rows) = &mut self.pieces {
                    rows.piece(&self.names, &self.roles, piece);
                }
                &self.pieces
            }
            Record::Work(_) | Record::Waits(_) | Record::Step(_) => &None,
        };
        if rows.as_ref().is_some_and(Rows::is_broken) {
            watch.broken.store(true, Ordering::Relaxed);
        }
    }

    /// All lines are in their files.
    pub fn end(&mut self) -> Result<()> {
        for rows in [self.requests.take(), self.pieces.take()].into_iter().flatten() {
            rows.end().map_err(|(path, error)| told(&path, &error))?;
        }
        Ok(())
    }
}

/// What the model has to write for the outputs.
fn write_what_is_wanted(args: &RunArgs, pfs: &mut Pfs) {
    (pfs.keep_requests, pfs.keep_work) = (true, true);
    pfs.keep_pieces = args.sub_requests.is_some();
}

/// Only sub-requests tell processes.
fn roles(pfs: &Pfs) -> Vec<Role> {
    if pfs.keep_pieces { pfs.roles().to_vec() } else { Vec::new() }
}

fn told(path: &Path, error: &io::Error) -> Failure {
    Failure::new(Kind::Other, format!("{}: {error}", path.display()))
}
