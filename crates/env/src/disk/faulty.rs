//! A disk that starts to fail at a chosen call.

use super::{DirEntry, Disk, DiskFile, OpenMode, Space, os_error};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const PAGE: u64 = 4096;

/// What a failing write (or punch) leaves behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tear {
    /// Nothing of it.
    Nothing,
    /// The first half of it, cut where a page of the file ends: what a kill or a full disk leaves.
    Pages,
    /// The first half of it, cut anywhere.
    Bytes,
    /// All of it: the error came late.
    All,
}

/// Which calls fail, and how. Calls are counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The first call that fails.
    pub at: u64,
    /// How many calls fail from there; `u64::MAX`: all.
    pub calls: u64,
    pub errno: i32,
    /// What the first failing call leaves, when it is a write. Later ones leave nothing.
    pub tear: Tear,
}

impl Fault {
    /// Call `at` and all later ones fail and do nothing: seen from the disk, the process died.
    pub fn from(at: u64, errno: i32) -> Fault {
        Fault { at, calls: u64::MAX, errno, tear: Tear::Nothing }
    }

    /// Call `at` alone fails.
    pub fn once(at: u64, errno: i32) -> Fault {
        Fault { calls: 1, ..Fault::from(at, errno) }
    }

    pub fn tearing(self, tear: Tear) -> Fault {
        Fault { tear, ..self }
    }
}

#[derive(Debug, Default)]
struct State {
    calls: u64,
    fault: Option<Fault>,
}

/// Wraps a disk, counts its mutating calls (opening with permission to create, writing,
/// changing the length, syncing, renaming, removing, making directories) and fails some.
#[derive(Clone, Debug)]
pub struct FaultyDisk<D> {
    inner: D,
    state: Arc<Mutex<State>>,
}

/// What a call may do.
enum Verdict {
    Pass,
    Fail(i32, Tear),
}

impl<D: Disk> FaultyDisk<D> {
    pub fn new(inner: D) -> FaultyDisk<D> {
        FaultyDisk { inner, state: Arc::default() }
    }

    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Sets or clears the fault and starts to count at 0.
    pub fn set_fault(&self, fault: Option<Fault>) {
        *self.state() = State { calls: 0, fault };
    }

    /// Mutating calls since the start or the last [`FaultyDisk::set_fault`].
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn verdict(&self) -> Verdict {
        let mut state = self.state();
        let call = state.calls;
        state.calls += 1;
        match state.fault {
            Some(fault) if call >= fault.at && call - fault.at < fault.calls => {
                Verdict::Fail(fault.errno, if call == fault.at { fault.tear } else { Tear::Nothing })
            }
            _ => Verdict::Pass,
        }
    }

    fn pass(&self) -> io::Result<()> {
        match self.verdict() {
            Verdict::Pass => Ok(()),
            Verdict::Fail(errno, _) => Err(os_error(errno)),
        }
    }
}

impl<D: Disk> Disk for FaultyDisk<D> {
    type File = FaultyFile<D>;

    fn open(&self, path: &str, mode: OpenMode) -> io::Result<FaultyFile<D>> {
        if mode != OpenMode::Existing {
            self.pass()?;
        }
        Ok(FaultyFile { file: self.inner.open(path, mode)?, disk: self.clone() })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.pass()?;
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.pass()?;
        self.inner.remove(path)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<DirEntry>> {
        self.inner.list(dir)
    }

    fn create_dir_all(&self, dir: &str) -> io::Result<()> {
        self.pass()?;
        self.inner.create_dir_all(dir)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.pass()?;
        self.inner.sync_dir(dir)
    }

    fn space(&self) -> io::Result<Space> {
        self.inner.space()
    }
}

/// An open file of a [`FaultyDisk`].
#[derive(Debug)]
pub struct FaultyFile<D: Disk> {
    file: D::File,
    disk: FaultyDisk<D>,
}

impl<D: Disk> DiskFile for FaultyFile<D> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn read_append(&self, out: &mut Vec<u8>, len: usize, offset: u64) -> io::Result<usize> {
        self.file.read_append(out, len, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        match self.disk.verdict() {
            Verdict::Pass => self.file.write_at(buf, offset),
            Verdict::Fail(errno, tear) => {
                let kept = torn_len(buf.len(), offset, tear);
                if kept > 0 {
                    self.file.write_at(&buf[..kept], offset)?;
                }
                Err(os_error(errno))
            }
        }
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.pass()?;
        self.file.set_len(len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        match self.disk.verdict() {
            Verdict::Pass => self.file.punch(offset, len),
            Verdict::Fail(errno, tear) => {
                let done = torn_len(usize::try_from(len).unwrap_or(usize::MAX), offset, tear);
                if done > 0 {
                    self.file.punch(offset, done as u64)?;
                }
                Err(os_error(errno))
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.pass()?;
        self.file.sync()
    }

    fn next_data(&self, from: u64) -> io::Result<Option<u64>> {
        self.file.next_data(from)
    }
}

/// Bytes that a torn write leaves.
fn torn_len(len: usize, offset: u64, tear: Tear) -> usize {
    match tear {
        Tear::Nothing => 0,
        Tear::All => len,
        Tear::Bytes => len / 2,
        Tear::Pages => {
            let middle = offset + len as u64 / 2;
            (middle - middle % PAGE).saturating_sub(offset) as usize
        }
    }
}
