//! Appending to the log without a call for each record.
//!
//! The log's next bytes are allocated and mapped in advance, so that a record is in the kernel's page cache, where a kill
//! cannot reach it, as soon as it is copied. Where that is not offered (other file systems, disks of tests, a disk that is
//! nearly full) each record is written by a call.

use std::io;
use tidepool_env::DiskFile;
use tidepool_shm::{WINDOW_ALIGN, Window};

/// Bytes that are mapped at a time. Readers see zeros in what is not used yet.
const WINDOW_LEN: usize = 256 << 10;

/// The mapped piece of the log's end.
#[derive(Default)]
pub(super) struct Ahead {
    window: Option<(u64, Window)>,
    /// Where it is worth to ask for the next one.
    next: u64,
}

impl Ahead {
    /// Appends `bytes` at `at`, the end of what is valid.
    pub fn append<F: DiskFile>(&mut self, file: &F, bytes: &[u8], at: u64) -> io::Result<()> {
        if self.room(at) < bytes.len() && at >= self.next {
            self.advance(file, at);
        }
        match &self.window {
            Some((start, window)) if self.room(at) >= bytes.len() => {
                window.put((at - start) as usize, bytes);
                Ok(())
            }
            _ => file.write_at(bytes, at),
        }
    }

    /// Lets go of the file's end: it may be cut from now on. True when there is something to cut.
    pub fn end(&mut self) -> bool {
        self.window.take().is_some()
    }

    fn room(&self, at: u64) -> usize {
        let end = self.window.as_ref().map_or(at, |(start, _)| start + WINDOW_LEN as u64);
        end.saturating_sub(at) as usize
    }

    fn advance<F: DiskFile>(&mut self, file: &F, at: u64) {
        let start = at - at % WINDOW_ALIGN;
        // An error here is no error of the append: what does not fit is said by the write.
        let opened = file.descriptor().and_then(|fd| Window::open(fd, start, WINDOW_LEN).ok().flatten());
        self.next = if opened.is_some() { start } else { at } + WINDOW_LEN as u64 - WINDOW_ALIGN;
        self.window = opened.map(|window| (start, window));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemLogStore;
    use crate::meta::generation::log_name;
    use tidepool_env::{Disk, OpenMode, RealDisk};
    use tidepool_fs_state::{MetaStore, MetaView};
    use tidepool_types::Ino;
    use tidepool_wire::record::Mutation;

    /// In memory, where windows are always on offer.
    fn dir() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").unwrap()
    }

    fn reaps(numbers: std::ops::Range<u64>) -> Vec<Mutation> {
        numbers.map(|n| Mutation::PutReap(Ino(n))).collect()
    }

    /// A process that is killed leaves zeros behind the last record: they are no damage, and are cut.
    #[test]
    fn a_log_that_was_allocated_in_advance_is_read_and_cut() {
        let dir = dir();
        let len = || std::fs::metadata(dir.path().join(log_name(0))).unwrap().len();
        let open = || MemLogStore::open(RealDisk::new(dir.path()).unwrap()).unwrap();
        let mut valid = 0;
        for round in 0..4_u64 {
            let mut store = open();
            assert_eq!(len(), valid.max(16), "cut to what is valid");
            assert_eq!(store.reaps(usize::MAX).len() as u64, round * 40_000);
            // Records of 20 bytes to some hundred KiB: within a window, over its end, and larger than one.
            let mut next = round * 40_000 + 1;
            for count in [1, 1, 100, 3000, 1, 30_000, 5000, 1, 1, 1895] {
                store.commit(&reaps(next..next + count)).unwrap();
                next += count;
            }
            valid = store.disk_len();
            assert!(len() > valid, "some room is allocated");
            match round % 2 {
                0 => std::mem::forget(store),
                _ => drop(store),
            }
        }
        assert_eq!(len(), valid, "an orderly end cuts it as well");
        assert_eq!(open().reaps(usize::MAX).len(), 160_000);
    }

    /// What a window holds is what a write would have put there.
    #[test]
    fn both_ways_make_the_same_bytes() {
        let dir = dir();
        let disk = RealDisk::new(dir.path()).unwrap();
        let (one, other) =
            (disk.open("a", OpenMode::Create).unwrap(), disk.open("b", OpenMode::Create).unwrap());
        let mut ahead = Ahead::default();
        let mut at = 16;
        for round in 0..5000_u64 {
            let bytes = vec![
                (round % 200) as u8 + 1;
                (round * 7919 % 300) as usize + if round % 900 == 0 { 200_000 } else { 0 }
            ];
            ahead.append(&one, &bytes, at).unwrap();
            other.write_at(&bytes, at).unwrap();
            at += bytes.len() as u64;
        }
        assert!(ahead.end(), "a window was there");
        one.set_len(at).unwrap();
        let [a, b] = ["a", "b"].map(|name| std::fs::read(dir.path().join(name)).unwrap());
        assert!(a == b);
    }
}
