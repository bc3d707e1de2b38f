//! What a session has open: numbers for directories, files and listings.

use super::message::{Place, ROOT};
use crate::end::{Cursor, DirRef, EndError, EndResult, FileRef};
use crate::sync::lock;
use std::collections::HashMap;
use std::sync::Mutex;
use tidepool_types::Errno;

/// Directories that a session may have open. The end keeps few descriptors for them.
pub const DIRS_MAX: usize = 1 << 18;
/// Files that a session may have open; each takes a descriptor.
pub const FILES_MAX: usize = 4096;
/// Listings of directories that a session may have under way.
const LISTINGS_MAX: usize = 4096;

#[derive(Default)]
struct Tables {
    last: u32,
    dirs: HashMap<u32, DirRef>,
    files: HashMap<u32, FileRef>,
    listings: HashMap<u32, (u32, Cursor)>,
}

impl Tables {
    /// A number that is not in use.
    fn number(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1);
            let used = self.dirs.contains_key(&self.last)
                || self.files.contains_key(&self.last)
                || self.listings.contains_key(&self.last);
            if self.last != ROOT && !used {
                return self.last;
            }
        }
    }
}

pub(super) struct Table {
    tables: Mutex<Tables>,
}

fn full(what: &str, max: usize) -> EndError {
    let detail = format!("a session may have {max} {what} open");
    EndError { errno: Errno::ENFILE, operation: "open", detail: Some(detail) }
}

fn unknown() -> EndError {
    let detail = "it is not open in this session".to_string();
    EndError { errno: Errno::EBADF, operation: "check the request", detail: Some(detail) }
}

impl Table {
    pub fn new(root: DirRef) -> Table {
        let dirs = HashMap::from([(ROOT, root)]);
        Table { tables: Mutex::new(Tables { dirs, ..Tables::default() }) }
    }

    pub fn add_dir(&self, dir: DirRef) -> EndResult<u32> {
        let mut tables = lock(&self.tables);
        if tables.dirs.len() >= DIRS_MAX {
            return Err(full("directories", DIRS_MAX));
        }
        let number = tables.number();
        tables.dirs.insert(number, dir);
        Ok(number)
    }

    pub fn add_file(&self, file: FileRef) -> EndResult<u32> {
        let mut tables = lock(&self.tables);
        if tables.files.len() >= FILES_MAX {
            return Err(full("files", FILES_MAX));
        }
        let number = tables.number();
        tables.files.insert(number, file);
        Ok(number)
    }

    pub fn dir(&self, number: u32) -> EndResult<DirRef> {
        lock(&self.tables).dirs.get(&number).cloned().ok_or_else(unknown)
    }

    pub fn file(&self, number: u32) -> EndResult<FileRef> {
        lock(&self.tables).files.get(&number).cloned().ok_or_else(unknown)
    }

    /// Where a listing goes on, as a client is told. A pool's listing stays here, because
    /// only this session has it.
    pub fn keep_place(&self, dir: u32, cursor: Cursor) -> EndResult<Place> {
        if let Cursor::Local(cookie) = cursor {
            return Ok(Place::Cookie(cookie));
        }
        let mut tables = lock(&self.tables);
        if tables.listings.len() >= LISTINGS_MAX {
            return Err(full("listings", LISTINGS_MAX));
        }
        let number = tables.number();
        tables.listings.insert(number, (dir, cursor));
        Ok(Place::Kept(number))
    }

    pub fn cursor(&self, dir: u32, place: &Place) -> EndResult<Cursor> {
        match place {
            Place::Start => Ok(Cursor::Start),
            Place::Cookie(cookie) => Ok(Cursor::Local(*cookie)),
            Place::Kept(number) => {
                let mut tables = lock(&self.tables);
                let (_, cursor) = tables.listings.get(number).ok_or_else(unknown)?;
                let cursor = cursor.clone();
                // What came before this page is not asked for again.
                tables.listings.retain(|n, (of, _)| *of != dir || n == number);
                Ok(cursor)
            }
        }
    }

    /// Forgets directories, after telling their end.
    pub fn close(&self, dirs: &[u32], files: &[u32]) -> Vec<DirRef> {
        let mut tables = lock(&self.tables);
        files.iter().for_each(|file| drop(tables.files.remove(file)));
        if !dirs.is_empty() {
            tables.listings.retain(|_, (of, _)| !dirs.contains(of));
        }
        dirs.iter().filter(|dir| **dir != ROOT).filter_map(|dir| tables.dirs.remove(dir)).collect()
    }
}
