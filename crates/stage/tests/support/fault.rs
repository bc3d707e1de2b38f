//! An end that passes everything on, and fails as it is told to.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tidepool_stage::{
    At, Cursor, DirRef, End, EndError, EndResult, FileRef, Item, Meta, Rights, SetMeta, Xattr,
};
use tidepool_types::{Errno, FileKind};

/// What [`Fault::SlowNames`] take: many times what it takes to read back a file of a test.
const SLOW: Duration = Duration::from_millis(200);

/// How to fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    None,
    /// Call number n fails with EIO, those after it work.
    Once,
    /// Call number n and all after it fail, a write after half its bytes: to the other side
    /// this is what a killed process looks like.
    Dead,
    /// Call number n fails with ENOSPC if it needs space; later ones that do as well.
    NoSpace,
    /// Every write takes at most 1000 bytes.
    ShortWrites,
    /// The n-th write stores one bit wrong and tells nobody.
    FlipOnce,
    /// Every write does.
    FlipAlways,
    /// Opening the directory or file of this length of name fails with EACCES.
    Unreadable(usize),
    /// Attributes show another modification time at every look.
    Restless,
    /// Renames take a while, in which other workers find what there is to do.
    SlowNames,
    /// Files say that they have n bytes, and none stored, as those of /proc and /sys do.
    Says,
    /// Files say that they have n bytes and that all of them are stored.
    Keeps,
    /// It gives files to groups that its user is not in: so it says.
    Boasts,
    /// Just before call number n somebody else does something: [`FaultEnd::meanwhile`].
    Overtaken,
}

pub struct FaultEnd<E> {
    pub inner: E,
    fault: Fault,
    at: u64,
    calls: AtomicU64,
    writes: AtomicU64,
    /// Bytes of the largest write.
    pub most_written: AtomicUsize,
    full: AtomicBool,
    pub log: Mutex<Vec<&'static str>>,
    /// Other files than temporary ones may be removed.
    pub removes: bool,
    /// What somebody else does.
    pub meanwhile: Box<dyn Fn() + Send + Sync>,
}

impl<E: End> FaultEnd<E> {
    pub fn new(inner: E, fault: Fault, at: u64) -> FaultEnd<E> {
        let calls = AtomicU64::new(0);
        let writes = AtomicU64::new(0);
        FaultEnd {
            inner,
            fault,
            at,
            calls,
            writes,
            most_written: AtomicUsize::new(0),
            full: AtomicBool::new(false),
            log: Mutex::default(),
            removes: false,
            meanwhile: Box::new(|| {}),
        }
    }

    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn hit(&self, operation: &'static str, needs_space: bool) -> EndResult<()> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        if self.fault == Fault::Overtaken && call == self.at {
            self.log.lock().unwrap().push(operation);
            (self.meanwhile)();
        }
        let fails = match self.fault {
            Fault::Once => call == self.at,
            Fault::Dead => call >= self.at,
            Fault::NoSpace => {
                let now = needs_space && call >= self.at;
                if now {
                    self.full.store(true, Ordering::Relaxed);
                }
                now
            }
            _ => false,
        };
        if !fails {
            return Ok(());
        }
        self.log.lock().unwrap().push(operation);
        let errno = if self.fault == Fault::NoSpace { Errno::ENOSPC } else { Errno::EIO };
        Err(EndError { errno, operation, detail: Some("node n7: injected".into()) })
    }

    fn readable(&self, name: &[u8], operation: &'static str) -> EndResult<()> {
        match self.fault {
            Fault::Unreadable(len) if name.len() == len => Err(EndError::new(operation, Errno::EACCES)),
            _ => Ok(()),
        }
    }
}

impl<E: End> End for FaultEnd<E> {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn identity(&self) -> Vec<u8> {
        self.inner.identity()
    }
    fn rights(&self) -> Rights {
        self.inner.rights()
    }
    fn gives_group(&self, gid: u32) -> bool {
        self.fault == Fault::Boasts || self.inner.gives_group(gid)
    }
    fn knows_sizes(&self, meta: &Meta) -> bool {
        !matches!(self.fault, Fault::Says | Fault::Keeps) && self.inner.knows_sizes(meta)
    }
    fn reads_touch_atime(&self) -> bool {
        self.inner.reads_touch_atime()
    }
    fn root(&self) -> DirRef {
        self.inner.root()
    }
    fn leave_dir(&self, dir: &DirRef) {
        self.inner.leave_dir(dir)
    }
    fn drop_cache(&self, file: &FileRef, offset: u64, len: u64) {
        self.inner.drop_cache(file, offset, len)
    }
    /// So that what follows from it is tested wherever the tests run.
    fn syncs_together(&self, _: &DirRef) -> bool {
        true
    }
    fn sync_written(&self) -> EndResult<()> {
        self.hit("sync file system", true)?;
        self.inner.sync_written()
    }
    fn reads_back_at_once(&self, dir: &DirRef) -> bool {
        self.inner.reads_back_at_once(dir)
    }
    fn begin_sync(&self, file: &FileRef, offset: u64, len: u64) {
        self.inner.begin_sync(file, offset, len)
    }
    fn writers_per_file(&self) -> usize {
        self.inner.writers_per_file()
    }
    fn buffer_bytes(&self) -> usize {
        self.inner.buffer_bytes()
    }
    fn open_dir(&self, dir: &DirRef, name: &[u8]) -> EndResult<DirRef> {
        self.hit("open directory", false)?;
        self.readable(name, "open directory")?;
        self.inner.open_dir(dir, name)
    }
    fn list(&self, dir: &DirRef, from: &Cursor) -> EndResult<(Vec<Item>, Option<Cursor>)> {
        self.hit("list", false)?;
        self.inner.list(dir, from)
    }
    fn stat(&self, at: At<'_>) -> EndResult<Meta> {
        self.hit("stat", false)?;
        let mut meta = self.inner.stat(at)?;
        if self.fault == Fault::Restless && meta.kind == FileKind::Regular {
            meta.mtime.sec += self.calls() as i64;
        }
        if matches!(self.fault, Fault::Says | Fault::Keeps) && meta.kind == FileKind::Regular {
            (meta.size, meta.stored) = (self.at, if self.fault == Fault::Keeps { self.at } else { 0 });
        }
        Ok(meta)
    }
    fn read_link(&self, dir: &DirRef, name: &[u8]) -> EndResult<Vec<u8>> {
        self.hit("read link", false)?;
        self.inner.read_link(dir, name)
    }
    fn xattrs(&self, at: At<'_>) -> EndResult<Vec<Xattr>> {
        self.hit("list attributes", false)?;
        self.inner.xattrs(at)
    }
    fn open_read(&self, dir: &DirRef, name: &[u8]) -> EndResult<FileRef> {
        self.hit("open", false)?;
        self.readable(name, "open")?;
        self.inner.open_read(dir, name)
    }
    fn read(&self, file: &FileRef, offset: u64, buf: &mut [u8]) -> EndResult<usize> {
        self.hit("read", false)?;
        self.inner.read(file, offset, buf)
    }
    fn next_data(&self, file: &FileRef, offset: u64) -> EndResult<Option<u64>> {
        self.hit("find data", false)?;
        self.inner.next_data(file, offset)
    }
    fn next_hole(&self, file: &FileRef, offset: u64, limit: u64) -> EndResult<u64> {
        self.hit("find hole", false)?;
        self.inner.next_hole(file, offset, limit)
    }
    fn create(&self, dir: &DirRef, name: &[u8]) -> EndResult<FileRef> {
        self.hit("create", true)?;
        self.inner.create(dir, name)
    }
    fn open_write(&self, dir: &DirRef, name: &[u8]) -> EndResult<FileRef> {
        self.hit("open", false)?;
        self.inner.open_write(dir, name)
    }
    fn write(&self, file: &FileRef, offset: u64, data: &[u8]) -> EndResult<usize> {
        let write = self.writes.fetch_add(1, Ordering::Relaxed);
        self.most_written.fetch_max(data.len(), Ordering::Relaxed);
        if let Err(error) = self.hit("write", true) {
            let _ = self.inner.write(file, offset, &data[..data.len() / 2]);
            return Err(error);
        }
        match self.fault {
            Fault::ShortWrites => self.inner.write(file, offset, &data[..data.len().min(1000)]),
            Fault::FlipAlways => self.flipped(file, offset, data),
            Fault::FlipOnce if write == self.at => self.flipped(file, offset, data),
            _ => self.inner.write(file, offset, data),
        }
    }
    fn truncate(&self, file: &FileRef, size: u64) -> EndResult<()> {
        self.hit("set size", false)?;
        self.inner.truncate(file, size)
    }
    fn fsync(&self, file: &FileRef) -> EndResult<()> {
        self.hit("fsync", true)?;
        self.inner.fsync(file)
    }
    fn fsync_dir(&self, dir: &DirRef) -> EndResult<()> {
        self.hit("fsync directory", true)?;
        self.inner.fsync_dir(dir)
    }
    fn fsync_all(&self) -> EndResult<()> {
        self.hit("sync", true)?;
        self.inner.fsync_all()
    }
    fn make_dir(&self, dir: &DirRef, name: &[u8]) -> EndResult<()> {
        self.hit("make directory", true)?;
        self.inner.make_dir(dir, name)
    }
    fn make_symlink(&self, dir: &DirRef, name: &[u8], target: &[u8]) -> EndResult<()> {
        self.hit("make link", true)?;
        self.inner.make_symlink(dir, name, target)
    }
    fn make_node(&self, dir: &DirRef, name: &[u8], kind: FileKind, rdev: u64) -> EndResult<()> {
        self.hit("make node", true)?;
        self.inner.make_node(dir, name, kind, rdev)
    }
    fn make_link(&self, old: (&DirRef, &[u8]), new: (&DirRef, &[u8])) -> EndResult<()> {
        self.hit("hard link", true)?;
        self.inner.make_link(old, new)
    }
    fn rename(&self, dir: &DirRef, from: &[u8], to: &[u8]) -> EndResult<()> {
        self.hit("rename", true)?;
        if self.fault == Fault::SlowNames {
            std::thread::sleep(SLOW);
        }
        self.inner.rename(dir, from, to)
    }
    fn unlink(&self, dir: &DirRef, name: &[u8]) -> EndResult<()> {
        let temporary = name.starts_with(tidepool_stage::PART_PREFIX);
        assert!(temporary || self.removes, "removes a file that is not a temporary one");
        self.hit("remove", false)?;
        self.inner.unlink(dir, name)
    }
    fn set_meta(&self, at: At<'_>, set: &SetMeta) -> EndResult<()> {
        self.hit("set attributes", false)?;
        self.inner.set_meta(at, set)
    }
    fn set_xattr(&self, at: At<'_>, name: &[u8], value: &[u8]) -> EndResult<()> {
        self.hit("set attribute", false)?;
        self.inner.set_xattr(at, name, value)
    }
    fn remove_dir(&self, dir: &DirRef, name: &[u8]) -> EndResult<()> {
        assert!(self.removes, "removes a directory");
        self.hit("remove directory", false)?;
        self.inner.remove_dir(dir, name)
    }
    fn is_mount(&self, dir: &DirRef) -> EndResult<bool> {
        self.inner.is_mount(dir)
    }
    fn move_entry(&self, from: (&DirRef, &[u8]), to: (&DirRef, &[u8]), replace: bool) -> EndResult<()> {
        self.hit("move", true)?;
        self.inner.move_entry(from, to, replace)
    }
    fn clone_file(&self, from: &FileRef, to: &FileRef) -> EndResult<()> {
        self.hit("clone", true)?;
        self.inner.clone_file(from, to)
    }
}

impl<E: End> FaultEnd<E> {
    fn flipped(&self, file: &FileRef, offset: u64, data: &[u8]) -> EndResult<usize> {
        let mut wrong = data.to_vec();
        let middle = wrong.len() / 2;
        wrong[middle] ^= 0x10;
        self.inner.write(file, offset, &wrong)
    }
}
