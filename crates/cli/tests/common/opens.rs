//! Opens of files, counted by the kernel.

use rustix::fs::inotify;
use std::path::Path;

/// Counts opens of what lies directly in some directories.
pub struct Opens(std::os::fd::OwnedFd);

impl Opens {
    pub fn watch(dirs: &[&Path]) -> Opens {
        let watcher = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        for dir in dirs {
            inotify::add_watch(&watcher, *dir, inotify::WatchFlags::OPEN).unwrap();
        }
        Opens(watcher)
    }

    /// Of files, not of directories, since the last call.
    pub fn count(&self) -> usize {
        let mut space = [std::mem::MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.0, &mut space);
        let mut count = 0;
        while let Ok(event) = reader.next() {
            assert!(!event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW), "too many to count");
            count += usize::from(!event.events().contains(inotify::ReadFlags::ISDIR));
        }
        count
    }
}
