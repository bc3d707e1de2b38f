//! Small files on a disk of this node that wait, under temporary names, for one sync of the file
//! system: a sync for each, or for each few, would take longer than all else.
//!
//! ```text
//! written and read back ──▶ held ──enough, or long enough──▶ synced ──▶ final names ──▶ journal
//! ```

use crate::job::Job;
use crate::pack::Read;
use crate::report::Failure;
use crate::sync::lock;
use std::time::{Duration, Instant};

/// Files that wait at most.
const GROUP_FILES_MAX: usize = 4096;
/// How long the first of them waits at most while others are written: progress counts finished files.
const GROUP_AGE_MAX: Duration = Duration::from_millis(250);

/// What waits.
#[derive(Default)]
pub(crate) struct Group {
    files: Vec<Read>,
    since: Option<Instant>,
    /// Syncs under way.
    syncs: usize,
}

impl Group {
    fn add(&mut self, files: Vec<Read>, now: Instant) {
        self.since.get_or_insert(now);
        self.files.extend(files);
    }

    /// Syncs are done one after another: while one is under way, the next group grows.
    fn is_due(&self, now: Instant) -> bool {
        let old = || self.since.is_some_and(|since| now - since >= GROUP_AGE_MAX);
        self.files.len() >= GROUP_FILES_MAX || (self.syncs == 0 && old())
    }

    /// What is to be synced now.
    fn start(&mut self) -> Vec<Read> {
        self.since = None;
        self.syncs += usize::from(!self.files.is_empty());
        std::mem::take(&mut self.files)
    }
}

impl Job<'_> {
    /// Has files wait for the next sync, or does it.
    pub fn hold(&self, files: Vec<Read>) {
        let due = {
            let mut group = lock(&self.group);
            group.add(files, Instant::now());
            if group.is_due(Instant::now()) { group.start() } else { Vec::new() }
        };
        self.sync_group(due);
    }

    /// Nothing else is left to do: syncs what waits. False when nothing did.
    pub fn sync_waiting(&self) -> bool {
        let due = lock(&self.group).start();
        let any = !due.is_empty();
        self.sync_group(due);
        any
    }

    fn sync_group(&self, files: Vec<Read>) {
        if files.is_empty() {
            return;
        }
        let synced = self.dst.sync_written();
        lock(&self.group).syncs -= 1;
        match synced {
            Ok(()) => self.name_pack(files),
            // Nobody knows which of them it was.
            Err(error) => {
                files.into_iter().for_each(|file| self.abandon_part(file, Failure::target(error.clone())));
            }
        }
    }

    /// After a cancel, when the workers have ended: a rerun copies small files anew.
    pub fn discard_group(&self) {
        for file in lock(&self.group).start() {
            file.drop_part(self.dst);
        }
    }
}
