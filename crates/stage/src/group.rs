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
}

impl Group {
    fn add(&mut self, files: Vec<Read>, now: Instant) {
        self.since.get_or_insert(now);
        self.files.extend(files);
    }

    fn is_due(&self, now: Instant) -> bool {
        self.files.len() >= GROUP_FILES_MAX || self.since.is_some_and(|since| now - since >= GROUP_AGE_MAX)
    }
}

impl Job<'_> {
    /// Has files wait for the next sync, or does it.
    pub fn hold(&self, files: Vec<Read>) {
        let due = {
            let mut group = lock(&self.group);
            group.add(files, Instant::now());
            if group.is_due(Instant::now()) { std::mem::take(&mut *group) } else { Group::default() }
        };
        self.sync_group(due);
    }

    /// Nothing else is left to do: syncs what waits. False when nothing did.
    pub fn sync_waiting(&self) -> bool {
        let group = std::mem::take(&mut *lock(&self.group));
        let any = !group.files.is_empty();
        self.sync_group(group);
        any
    }

    fn sync_group(&self, group: Group) {
        if group.files.is_empty() {
            return;
        }
        match self.dst.sync_written() {
            Ok(()) => self.name_pack(group.files),
            // Nobody knows which of them it was.
            Err(error) => group
                .files
                .into_iter()
                .for_each(|file| self.abandon_part(file, Failure::target(error.clone()))),
        }
    }

    /// After a cancel, when the workers have ended: a rerun copies small files anew.
    pub fn discard_group(&self) {
        for file in std::mem::take(&mut *lock(&self.group)).files {
            file.drop_part(self.dst);
        }
    }
}
