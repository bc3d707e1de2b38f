//! Listings of directories: one snapshot per open directory, so that offsets are stable.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidepool_client::{Client, DirEntry, FsError};
use tidepool_types::{FileKind, Ino};

/// One open directory.
#[derive(Default)]
pub struct OpenDir {
    /// With the moment it was begun.
    listing: Mutex<Option<(Instant, Arc<[DirEntry]>)>>,
}

impl OpenDir {
    /// The listing to serve `offset` from. Offset 0 is the first read or a rewinddir(3), which
    /// must show what has changed.
    pub fn listing(
        &self,
        offset: u64,
        list: impl FnOnce() -> Result<Vec<DirEntry>, FsError>,
    ) -> Result<Arc<[DirEntry]>, FsError> {
        let mut listing = self.listing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = listing.as_ref().filter(|_| offset != 0) {
            return Ok(known.clone());
        }
        let begun = Instant::now();
        let fresh: Arc<[DirEntry]> = list()?.into();
        *listing = Some((begun, fresh.clone()));
        Ok(fresh)
    }

    /// How old the listing is by now.
    pub fn age(&self) -> Duration {
        let listing = self.listing.lock().unwrap_or_else(PoisonError::into_inner);
        listing.as_ref().map_or(Duration::ZERO, |(begun, _)| begun.elapsed())
    }
}

/// The entries at and after `offset`, each with the offset that follows it.
pub fn from_offset(listing: &[DirEntry], offset: u64) -> impl Iterator<Item = (u64, &DirEntry)> {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(listing.len());
    listing[start..].iter().zip(start as u64 + 1..).map(|(entry, next)| (next, entry))
}

/// All entries of a directory, with `.` and `..` in front.
pub fn list(client: &Client, dir: Ino) -> Result<Vec<DirEntry>, FsError> {
    let parent = if dir == Ino::ROOT { dir } else { client.parent_of(dir)? };
    let dot = |name: &[u8], ino| DirEntry { name: name.to_vec(), ino, kind: FileKind::Directory };
    let mut entries = vec![dot(b".", dir), dot(b"..", parent)];
    entries.extend(client.read_dir(dir)?);
    Ok(entries)
}

pub fn is_dots(entry: &DirEntry) -> bool {
    entry.name == b"." || entry.name == b".."
}

/// The open directories by handle number.
#[derive(Default)]
pub struct OpenDirs {
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<OpenDir>>>,
}

impl OpenDirs {
    pub fn open(&self) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(handle, Arc::default());
        handle
    }

    /// The open directory; a new one for a handle that was never given out.
    pub fn get(&self, handle: u64) -> Arc<OpenDir> {
        self.lock().get(&handle).cloned().unwrap_or_default()
    }

    pub fn close(&self, handle: u64) {
        self.lock().remove(&handle);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<OpenDir>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_types::Errno;

    fn entries(names: &[&str]) -> Vec<DirEntry> {
        let entry = |n: &&str| DirEntry { name: n.as_bytes().to_vec(), ino: Ino(5), kind: FileKind::Regular };
        names.iter().map(entry).collect()
    }

    fn names(listing: &[DirEntry], offset: u64) -> Vec<(u64, String)> {
        from_offset(listing, offset)
            .map(|(next, e)| (next, String::from_utf8(e.name.clone()).unwrap()))
            .collect()
    }

    #[test]
    fn reading_goes_on_where_it_stopped() {
        let all = entries(&[".", "..", "a", "b"]);
        assert_eq!(names(&all, 2), [(3, "a".into()), (4, "b".into())]);
        assert_eq!(names(&all, 4), []);
        assert_eq!(names(&all, u64::MAX), []);
        assert_eq!(names(&all, 0).len(), 4);
    }

    #[test]
    fn a_snapshot_lasts_until_it_is_rewound() {
        let dir = OpenDir::default();
        assert_eq!(dir.listing(0, || Ok(entries(&["a", "b"]))).unwrap().len(), 2);
        assert_eq!(dir.listing(1, || Ok(entries(&[]))).unwrap().len(), 2);
        assert_eq!(dir.listing(0, || Ok(entries(&["c"]))).unwrap().len(), 1);
        assert!(dir.listing(0, || Err(Errno::EIO.into())).is_err());
    }

    #[test]
    fn a_read_in_the_middle_of_an_unknown_handle_lists() {
        let dirs = OpenDirs::default();
        assert_eq!(dirs.get(77).listing(2, || Ok(entries(&["a", "b", "c"]))).unwrap().len(), 3);
        let handle = dirs.open();
        dirs.get(handle).listing(0, || Ok(entries(&["a"]))).unwrap();
        assert_eq!(dirs.get(handle).listing(1, || Ok(vec![])).unwrap().len(), 1);
        dirs.close(handle);
        assert_eq!(dirs.get(handle).listing(1, || Ok(vec![])).unwrap().len(), 0);
    }
}
