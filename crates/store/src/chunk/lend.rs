//! Lending an object's files to processes of this node that write to them.
//!
//! While files are lent the store changes nothing in them and answers nothing about them: who wants that takes them back first.
//! A note beside the files tells the next daemon, should this one be killed meanwhile. `docs/formats/03-chunk-store.md`, section 7.

use super::handles::Handle;
use super::object::{Names, State, remove_file};
use super::sums::BLOCK;
use super::{ChunkStore, DIRS, dir_name};
use crate::error::StoreError;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use tidepool_env::{Disk, DiskFile, OpenMode, RealDisk};
use tidepool_types::{Ino, TimeSpec};

const NOTE_MAGIC: &[u8; 8] = b"TPLENT01";
/// Magic and blocks elsewhere.
const NOTE_HEAD: usize = 16;
const BORROWER_LEN: usize = 16;
/// Borrowers that a note may name; more means that it is none.
const BORROWERS_MAX: usize = 1024;

/// A process that files are lent to. The start time tells it from a later one of the same number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Borrower {
    pub pid: u32,
    pub start: u64,
}

/// A loan that an earlier daemon has left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeftLoan {
    pub ino: Ino,
    /// Blocks of the object that other daemons kept when it was lent.
    pub elsewhere: i64,
    pub borrowers: Vec<Borrower>,
    /// The note is not as it was written, as after a power failure: who borrowed is not known.
    pub damaged: bool,
}

/// A lent object.
pub struct Lent {
    object: Handle<RealDisk>,
    elsewhere: i64,
    borrowers: u64,
    /// When the data file had been written last before.
    written: TimeSpec,
    /// Stored blocks, as far as they are in the store's own count.
    counted: AtomicU64,
}

/// What borrowers have made of an object so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    pub data_len: u64,
    /// Entries that the checksum file has room for.
    pub sum_blocks: u64,
    pub blocks: u64,
    /// When it was written, if it was.
    pub written: Option<TimeSpec>,
}

impl ChunkStore<RealDisk> {
    /// Lends an object and tells how it stands; `None` when it is not here. `elsewhere`: blocks of it that other daemons keep.
    pub fn lend(&self, ino: Ino, elsewhere: i64) -> Result<Option<(Lent, Standing)>, StoreError> {
        self.give_files(ino)?;
        let Some(object) = self.get(ino)? else { return Ok(None) };
        let mut state = object.lock_lent();
        if object.is_gone() || state.is_lent() {
            return Ok(None);
        }
        let counted = AtomicU64::new(object.blocks(&state)?);
        let written = object.data_written().map_err(|e| lend_failed(ino, &e))?;
        let lent = Lent { object: object.clone(), elsewhere, borrowers: 0, written, counted };
        let standing = self.stand(&lent, &state, u64::MAX)?;
        self.write_note(ino, 0, &note_head(elsewhere)).map_err(|e| lend_failed(ino, &e))?;
        // Nothing may fail from here on: only the one who has the loan can end it.
        state.set_lent(true);
        drop(state);
        // What is written from now on is not synced, whoever writes it.
        self.handles.mark_dirty(ino);
        Ok(Some((lent, standing)))
    }

    /// Descriptors for a further borrower, for reading and writing: data and checksums.
    pub fn borrow(&self, lent: &mut Lent, borrower: Borrower) -> Result<[OwnedFd; 2], StoreError> {
        let ino = lent.object.ino;
        let at = (NOTE_HEAD + lent.borrowers as usize * BORROWER_LEN) as u64;
        self.write_note(ino, at, &borrower.encode()).map_err(|e| lend_failed(ino, &e))?;
        lent.borrowers += 1;
        let names = Names::of(ino);
        let open = |name: &String| {
            let file = OpenOptions::new().read(true).write(true).open(self.disk.root().join(name));
            file.map(OwnedFd::from).map_err(|e| lend_failed(ino, &e).in_file(name))
        };
        Ok([open(&names.data)?, open(&names.sums)?])
    }

    /// What has become of a lent object. Its borrowers may go on meanwhile. `claimed`: where their complete writes end.
    pub fn standing(&self, lent: &Lent, claimed: u64) -> Result<Standing, StoreError> {
        let mut state = lent.object.lock_lent();
        lent.object.refresh(&mut state)?;
        self.stand(lent, &state, claimed)
    }

    fn stand(&self, lent: &Lent, state: &State, claimed: u64) -> Result<Standing, StoreError> {
        let ino = lent.object.ino;
        let blocks = lent.object.blocks(state)?;
        self.add_blocks(blocks as i64 - lent.counted.swap(blocks, Relaxed) as i64);
        let written = lent.object.data_written().map_err(|e| lend_failed(ino, &e))?;
        let (data_len, sum_blocks) = state.lengths();
        let data_len = data_len.min(claimed);
        Ok(Standing { data_len, sum_blocks, blocks, written: (written != lent.written).then_some(written) })
    }

    /// The store is the only one again that writes to the files. What lies beyond `claimed` is of writes that failed or were cut short,
    /// and goes. With `left`, somebody who is stopped still may write: the object moves to other files, and `moved` is called
    /// before the first change in them.
    pub fn take_back(
        &self,
        lent: &Lent,
        claimed: u64,
        left: bool,
        moved: impl FnOnce(),
    ) -> Result<Standing, StoreError> {
        let object = &lent.object;
        let mut state = object.lock_lent();
        object.refresh(&mut state)?;
        let keep = claimed.checked_next_multiple_of(BLOCK as u64).unwrap_or(claimed);
        object.trim(&mut state, keep).map_err(|failed| failed.error)?;
        let standing = self.stand(lent, &state, claimed)?;
        if left {
            object.copy_to(&self.disk, &mut state, &Names::moved(object.ino), moved)?;
            self.names_changed(object.ino);
            self.handles.forget(object.ino);
        }
        state.set_lent(false);
        drop(state);
        self.handles.mark_dirty(object.ino);
        Ok(standing)
    }

    /// Forgets that an object was lent: what came of it is recorded.
    pub fn loan_is_over(&self, ino: Ino) -> Result<(), StoreError> {
        remove_file(&self.disk, ino, &Names::note(ino))
    }

    /// The loans that an earlier daemon has left.
    pub fn left_loans(&self) -> Result<Vec<LeftLoan>, StoreError> {
        let mut found = Vec::new();
        for dir in (0..DIRS).map(|dir| dir_name(dir as u8)) {
            let failed = |e: io::Error| StoreError::io("look for loans", &e).in_file(&dir);
            let entries = match self.disk.list(&dir) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other.map_err(failed)?,
            };
            for ino in entries.iter().filter_map(|entry| Names::noted(&entry.name)) {
                found.push(self.read_note(ino)?);
            }
        }
        Ok(found)
    }

    /// An object that an earlier daemon has lent, as a loan of this store's, and how it stands. `None` when there is no such
    /// object any more.
    pub fn adopt(&self, loan: &LeftLoan) -> Result<Option<(Lent, Standing)>, StoreError> {
        for name in Names::moved(loan.ino).files() {
            remove_file(&self.disk, loan.ino, name)?;
        }
        let Some(object) = self.get(loan.ino)? else { return Ok(None) };
        let mut state = object.lock_lent();
        let counted = AtomicU64::new(object.blocks(&state)?);
        let written = TimeSpec::default();
        let lent = Lent { object: object.clone(), elsewhere: loan.elsewhere, borrowers: 0, written, counted };
        let standing = self.stand(&lent, &state, u64::MAX)?;
        state.set_lent(true);
        Ok(Some((lent, standing)))
    }

    fn write_note(&self, ino: Ino, at: u64, bytes: &[u8]) -> io::Result<()> {
        let file = self.disk.open(&Names::note(ino), OpenMode::Create)?;
        if at == 0 {
            file.set_len(0)?;
        }
        file.write_at(bytes, at)
    }

    fn read_note(&self, ino: Ino) -> Result<LeftLoan, StoreError> {
        let name = Names::note(ino);
        let failed = |e: &io::Error| StoreError::io("read the note of a loan", e).of(ino).in_file(&name);
        let mut bytes = vec![0; NOTE_HEAD + BORROWERS_MAX * BORROWER_LEN];
        let file = self.disk.open(&name, OpenMode::Existing).map_err(|e| failed(&e))?;
        let len = file.read_at(&mut bytes, 0).map_err(|e| failed(&e))?;
        // A daemon killed while it wrote the note had not lent anything yet.
        let Some((head, borrowers)) = bytes[..len].split_first_chunk::<NOTE_HEAD>() else {
            return Ok(LeftLoan { ino, elsewhere: 0, borrowers: Vec::new(), damaged: false });
        };
        if head[..8] != *NOTE_MAGIC {
            return Ok(LeftLoan { ino, elsewhere: 0, borrowers: Vec::new(), damaged: true });
        }
        let elsewhere = i64::from_le_bytes(head[8..].try_into().expect("eight bytes"));
        let borrowers = borrowers.chunks_exact(BORROWER_LEN).map(Borrower::decode).collect();
        Ok(LeftLoan { ino, elsewhere, borrowers, damaged: false })
    }
}

impl Lent {
    /// Blocks that other daemons kept when it was lent.
    pub fn elsewhere(&self) -> i64 {
        self.elsewhere
    }

    /// Stored blocks here that the store has counted.
    pub fn counted(&self) -> u64 {
        self.counted.load(Relaxed)
    }
}

impl Borrower {
    fn encode(self) -> [u8; BORROWER_LEN] {
        let mut bytes = [0; BORROWER_LEN];
        bytes[..4].copy_from_slice(&self.pid.to_le_bytes());
        bytes[8..].copy_from_slice(&self.start.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Borrower {
        Borrower {
            pid: u32::from_le_bytes(bytes[..4].try_into().expect("four bytes")),
            start: u64::from_le_bytes(bytes[8..BORROWER_LEN].try_into().expect("eight bytes")),
        }
    }
}

fn note_head(elsewhere: i64) -> [u8; NOTE_HEAD] {
    let mut bytes = [0; NOTE_HEAD];
    bytes[..8].copy_from_slice(NOTE_MAGIC);
    bytes[8..].copy_from_slice(&elsewhere.to_le_bytes());
    bytes
}

fn lend_failed(ino: Ino, error: &io::Error) -> StoreError {
    StoreError::io("lend the data", error).of(ino)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::StoreErrorKind;

    fn store() -> (tempfile::TempDir, ChunkStore<RealDisk>) {
        let dir = tempfile::tempdir().unwrap();
        let store = ChunkStore::open(RealDisk::new(dir.path()).unwrap()).unwrap();
        (dir, store)
    }

    const INO: Ino = Ino(0x1234);
    const BORROWER: Borrower = Borrower { pid: 0x0a0b, start: 0x0102_0304_0506 };

    #[test]
    fn a_lent_object_is_left_alone_until_it_is_back() {
        let (_dir, store) = store();
        assert!(store.lend(INO, 0).unwrap().is_none(), "not here");
        store.write(INO, 0, &[1; 5000]).unwrap();
        let (mut lent, _) = store.lend(INO, 3).unwrap().unwrap();
        assert!(store.lend(INO, 3).unwrap().is_none(), "once");
        for refused in [
            store.write(INO, 0, b"x").map(|_| ()),
            store.trim(INO, 0).map(|_| ()),
            store.drop_object(INO).map(|_| ()),
            store.read(INO, 0, 1, &mut Vec::new()),
        ] {
            assert_eq!(refused.unwrap_err().kind, StoreErrorKind::Lent);
        }
        let [data, sums] = store.borrow(&mut lent, BORROWER).unwrap();
        let block = [7; BLOCK];
        let entry = super::super::sums::padded_sum(&block).to_le_bytes();
        write_beside(&sums, &[entry, entry].concat(), 16 + 8 * 2);
        write_beside(&data, &block, 2 * BLOCK as u64);
        let standing = store.standing(&lent, u64::MAX).unwrap();
        assert_eq!((standing.data_len, standing.blocks), (3 * BLOCK as u64, 3));
        // Nobody claims the last block: a write that failed.
        let standing = store.take_back(&lent, 5000, false, || panic!("nothing moves")).unwrap();
        assert_eq!((standing.data_len, standing.blocks, store.stored_blocks()), (5000, 2, 2));
        store.loan_is_over(INO).unwrap();
        store.write(INO, 0, b"x").unwrap();
        assert!(store.left_loans().unwrap().is_empty());
    }

    fn write_beside(fd: &OwnedFd, bytes: &[u8], at: u64) {
        use std::os::unix::fs::FileExt;
        std::fs::File::from(fd.try_clone().unwrap()).write_all_at(bytes, at).unwrap();
    }

    #[test]
    fn notes_are_as_specified_and_survive() {
        let (dir, store) = store();
        store.write(INO, 0, &[1; 100]).unwrap();
        let (mut lent, _) = store.lend(INO, 9).unwrap().unwrap();
        store.borrow(&mut lent, BORROWER).unwrap();
        let path = dir.path().join("data/34/0000000000001234.lent");
        let mut wanted = b"TPLENT01\x09\0\0\0\0\0\0\0\x0b\x0a\0\0\0\0\0\0".to_vec();
        wanted.extend([6, 5, 4, 3, 2, 1, 0, 0]);
        assert_eq!(std::fs::read(&path).unwrap(), wanted);
        drop((lent, store));

        let store = ChunkStore::open(RealDisk::new(dir.path()).unwrap()).unwrap();
        let left = store.left_loans().unwrap();
        assert_eq!(left, [LeftLoan { ino: INO, elsewhere: 9, borrowers: vec![BORROWER], damaged: false }]);
        let before = std::fs::File::open(dir.path().join("data/34/0000000000001234")).unwrap();
        let mut moved = false;
        let (lent, standing) = store.adopt(&left[0]).unwrap().unwrap();
        assert_eq!(store.read(INO, 0, 1, &mut Vec::new()).unwrap_err().kind, StoreErrorKind::Lent);
        assert_eq!((standing.data_len, lent.elsewhere()), (100, 9));
        store.take_back(&lent, standing.data_len, true, || moved = true).unwrap();
        store.loan_is_over(INO).unwrap();
        assert!(moved);
        // Who has the old file writes to nobody's.
        use std::os::unix::fs::MetadataExt;
        assert_eq!(before.metadata().unwrap().nlink(), 0);
        let mut out = Vec::new();
        store.read(INO, 0, 200, &mut out).unwrap();
        assert_eq!(out, [1; 100]);
        assert!(store.left_loans().unwrap().is_empty());

        std::fs::write(&path, b"TPLENT").unwrap();
        assert_eq!(store.left_loans().unwrap()[0].borrowers, [], "cut short: nothing was lent");
        std::fs::write(&path, [9; 40]).unwrap();
        assert!(store.left_loans().unwrap()[0].damaged, "nobody is known, somebody may write");
    }
}
