//! Locks between hooks: files that may be removed by whoever has them.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tidepool_env::LockedFile;

/// Waits for the lock.
pub fn take(path: &Path) -> io::Result<LockedFile> {
    loop {
        let file = LockedFile::wait(File::create(path)?)?;
        if is_there(file.file(), path)? {
            return Ok(file);
        }
    }
}

/// An error when somebody else has it.
pub fn try_take(path: &Path) -> io::Result<LockedFile> {
    loop {
        let file = LockedFile::try_new(File::create(path)?).map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::new(io::ErrorKind::WouldBlock, "another hook has it"),
            TryLockError::Error(error) => error,
        })?;
        if is_there(file.file(), path)? {
            return Ok(file);
        }
    }
}

/// Who had the lock may have removed the file since it was opened here, and others lock a new one.
fn is_there(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    Ok(std::fs::metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn one_at_a_time_has_a_lock_that_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.lock");
        let inside = AtomicU32::new(0);
        let turn = |n: u32| {
            let lock = if n.is_multiple_of(2) { take(&path).ok() } else { try_take(&path).ok() };
            let Some(_lock) = lock else { return };
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
            std::thread::yield_now();
            inside.fetch_sub(1, Ordering::SeqCst);
            if n.is_multiple_of(3) {
                std::fs::remove_file(&path).unwrap();
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..5000).for_each(turn));
            }
        });
    }

    #[test]
    fn a_lock_that_is_taken_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.lock");
        let _lock = take(&path).unwrap();
        assert_eq!(try_take(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
