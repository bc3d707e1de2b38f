//! Where the records of `tidepool sim run` go, while it runs: nothing is kept but what is bounded.

use super::engine::Watch;
use super::pfs_flags::RunArgs;
use super::rows::{Rows, names};
use super::timeline::Timeline;
use crate::exit::{Context, Failure, Kind, Result};
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use tidepool_sim::Emitted;
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
        (pfs.keep_requests, pfs.keep_work) = (true, true);
        pfs.keep_pieces = args.sub_requests.is_some();
        Ok(Outputs {
            observer: Observer::new(pfs),
            timeline: args.timeline.as_ref().map(|_| Timeline::new(args.window())),
            requests: create(&args.csv, Rows::requests)?,
            pieces: create(&args.sub_requests, Rows::pieces)?,
            names: names(pfs),
            // Only sub-requests tell processes.
            roles: if pfs.keep_pieces { pfs.roles().to_vec() } else { Vec::new() },
        })
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
            rows.end()
                .map_err(|(path, error)| Failure::new(Kind::Other, format!("{}: {error}", path.display())))?;
        }
        Ok(())
    }
}
