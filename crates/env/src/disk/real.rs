//! The real file system below one directory.

use super::{DirEntry, Disk, DiskFile, OpenMode, Space, os_error, parts, read_zeroed};
use rustix::fs::{FallocateFlags, SeekFrom};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidepool_types::TimeSpec;

/// How much more than asked for a vector may hold before a read into its spare memory
/// would fetch too much: the read always takes all of it.
const SPARE_SLACK_MAX: usize = 4096;

/// The unit in which file systems give room back.
const PAGE: u64 = 4096;
/// Written where a file system cannot punch.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// The tree below a directory that exists.
#[derive(Clone, Debug)]
pub struct RealDisk {
    root: Arc<PathBuf>,
}

impl RealDisk {
    /// Takes an existing directory as root.
    pub fn new(root: impl AsRef<Path>) -> io::Result<RealDisk> {
        let root = root.as_ref().canonicalize()?;
        if !root.is_dir() {
            return Err(os_error(libc::ENOTDIR));
        }
        Ok(RealDisk { root: Arc::new(root) })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    fn path(&self, path: &str) -> io::Result<PathBuf> {
        let mut full = self.root.to_path_buf();
        full.extend(parts(path)?);
        Ok(full)
    }
}

impl Disk for RealDisk {
    type File = RealFile;

    fn open(&self, path: &str, mode: OpenMode) -> io::Result<RealFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        match mode {
            OpenMode::Existing => &mut options,
            OpenMode::Create => options.create(true),
            OpenMode::CreateNew => options.create_new(true),
        };
        Ok(RealFile { file: options.open(self.path(path)?)? })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from)?, self.path(to)?)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.path(path)?)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(self.path(dir)?)? {
            let entry = entry?;
            // Our own names are ASCII; a foreign name is shown approximately and matches none of ours.
            let name = entry.file_name().to_string_lossy().into_owned();
            entries.push(DirEntry { name, is_dir: entry.file_type()?.is_dir() });
        }
        entries.sort();
        Ok(entries)
    }

    fn create_dir_all(&self, dir: &str) -> io::Result<()> {
        fs::create_dir_all(self.path(dir)?)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        File::open(self.path(dir)?)?.sync_all()
    }

    fn space(&self) -> io::Result<Space> {
        let stat = rustix::fs::statvfs(&*self.root)?;
        Ok(Space {
            free: stat.f_bavail.saturating_mul(stat.f_frsize),
            total: stat.f_blocks.saturating_mul(stat.f_frsize),
        })
    }
}

/// An open file of a [`RealDisk`].
#[derive(Debug)]
pub struct RealFile {
    file: File,
}

impl RealFile {
    /// When its content changed last, as its file system has it.
    pub fn modified(&self) -> io::Result<TimeSpec> {
        let stat = rustix::fs::fstat(&self.file)?;
        Ok(TimeSpec { sec: stat.st_mtime, nsec: stat.st_mtime_nsec as u32 })
    }

    /// For file systems that cannot punch. Holes are left alone.
    pub(super) fn write_zeros(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset.saturating_add(len).min(self.len()?);
        let mut at = offset;
        while let Some(data) = self.next_data(at)?.filter(|data| *data < end) {
            let piece = (end - data).min(ZEROS.len() as u64);
            self.write_at(&ZEROS[..piece as usize], data)?;
            at = data + piece;
        }
        Ok(())
    }
}

impl DiskFile for RealFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.file.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn read_append(&self, out: &mut Vec<u8>, len: usize, offset: u64) -> io::Result<usize> {
        let start = out.len();
        out.reserve_exact(len);
        if out.capacity() - start > len + SPARE_SLACK_MAX {
            return read_zeroed(self, out, len, offset);
        }
        while out.len() < start + len {
            let at = offset + (out.len() - start) as u64;
            match rustix::io::pread(&self.file, rustix::buffer::spare_capacity(out), at) {
                Ok(0) => break,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    out.truncate(start);
                    return Err(error.into());
                }
            }
        }
        out.truncate(start + len);
        Ok(out.len() - start)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(buf, offset)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<bool> {
        let allocate = || rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, offset, len);
        match rustix::io::retry_on_intr(allocate) {
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(false),
            other => Ok(other.map(|()| true)?),
        }
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Beyond the page with the end there is nothing to punch, and far beyond it the kernel refuses to.
        let end = self.len()?.next_multiple_of(PAGE);
        let len = offset.saturating_add(len).min(end).saturating_sub(offset);
        if len == 0 {
            return Ok(());
        }
        match rustix::fs::fallocate(&self.file, flags, offset, len) {
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => self.write_zeros(offset, len),
            other => Ok(other?),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn next_data(&self, from: u64) -> io::Result<Option<u64>> {
        // Moves the handle's cursor, which nothing here ever reads.
        match rustix::fs::seek(&self.file, SeekFrom::Data(from)) {
            Ok(at) => Ok(Some(at)),
            Err(rustix::io::Errno::NXIO) => Ok(None),
            // The file system cannot tell: everything up to the end may be data.
            Err(rustix::io::Errno::INVAL) => Ok((from < self.len()?).then_some(from)),
            Err(error) => Err(error.into()),
        }
    }
}
