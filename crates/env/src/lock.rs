//! A file that is locked (flock(2)) for as long as it is held, and not a moment longer.

use std::fs::{File, TryLockError};
use std::io;

/// A locked file. Dropping it lets the lock go.
///
/// Closing a file is not enough: a child that another thread is just starting has the same open file until its exec, and
/// with it the lock, so who wants it next would be told that somebody has it.
#[derive(Debug)]
pub struct LockedFile(File);

impl LockedFile {
    /// Locks a file, or says that somebody has it, or why it cannot be locked.
    pub fn try_new(file: File) -> Result<LockedFile, TryLockError> {
        file.try_lock().map(|()| LockedFile(file))
    }

    /// Waits for the lock.
    pub fn wait(file: File) -> io::Result<LockedFile> {
        file.lock().map(|()| LockedFile(file))
    }

    pub fn file(&self) -> &File {
        &self.0
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // It goes with the file's last descriptor at the latest.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_ends_with_its_holder_though_the_file_stays_open_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = LockedFile::try_new(File::create(&path).unwrap()).unwrap();
        // As a child has it between its fork and its exec.
        let copy = first.file().try_clone().unwrap();
        let busy = LockedFile::try_new(File::open(&path).unwrap());
        assert!(matches!(busy, Err(TryLockError::WouldBlock)));
        drop(first);
        LockedFile::try_new(File::open(&path).unwrap()).unwrap();
        drop(copy);
    }
}
