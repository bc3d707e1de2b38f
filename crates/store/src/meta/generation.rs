//! File names of generations, and which of them a directory holds.

use crate::error::StoreError;
use tidepool_env::Disk;

/// The directory of a metadata store is the root of its disk.
pub(super) const DIR: &str = ".";
const PREFIX: &str = "meta-";
const SNAP: &str = ".snap";
const LOG: &str = ".log";
const TEMP: &str = ".snap.tmp";

pub(super) fn snap_name(generation: u64) -> String {
    format!("{PREFIX}{generation:016x}{SNAP}")
}

pub(super) fn log_name(generation: u64) -> String {
    format!("{PREFIX}{generation:016x}{LOG}")
}

pub(super) fn temp_name(generation: u64) -> String {
    format!("{PREFIX}{generation:016x}{TEMP}")
}

/// The files of a store, found by name. Foreign names are left alone.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub snaps: Vec<u64>,
    pub logs: Vec<u64>,
    pub temps: Vec<u64>,
}

impl Found {
    pub fn scan<D: Disk>(disk: &D) -> Result<Found, StoreError> {
        let entries =
            disk.list(DIR).map_err(|e| StoreError::io("list the files of the metadata store", &e))?;
        let mut found = Found::default();
        for entry in entries.iter().filter(|entry| !entry.is_dir) {
            found.add(&entry.name);
        }
        Ok(found)
    }

    fn add(&mut self, name: &str) {
        let Some((digits, suffix)) = name.strip_prefix(PREFIX).and_then(|rest| rest.split_at_checked(16))
        else {
            return;
        };
        let Ok(generation) = u64::from_str_radix(digits, 16) else { return };
        match suffix {
            SNAP => self.snaps.push(generation),
            LOG => self.logs.push(generation),
            TEMP => self.temps.push(generation),
            _ => {}
        }
    }

    /// Names of everything that does not belong to generation `current`.
    pub fn stale(&self, current: u64) -> Vec<String> {
        let not_current = |generation: &&u64| **generation != current;
        let snaps = self.snaps.iter().filter(not_current).map(|g| snap_name(*g));
        let logs = self.logs.iter().filter(not_current).map(|g| log_name(*g));
        snaps.chain(logs).chain(self.temps.iter().map(|g| temp_name(*g))).collect()
    }
}
