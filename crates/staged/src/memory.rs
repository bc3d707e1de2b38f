//! Memory of the process that submitted a task, as an end of a copy with one file in it.
//!
//! Reading and writing another process's memory is for the kernel to allow: it is done by a process that is the task's user
//! altogether and for ever, a worker of his or a stager that he runs for himself. So a process which has gained rights since it
//! submitted the task is safe from it.

use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;
use std::io::{IoSlice, IoSliceMut};
use tidepool_stage::{
    At, Cursor, DirRef, End, EndError, EndResult, FileRef, Identity, Item, Meta, Rights, SetMeta, Xattr,
};
use tidepool_stage_state::Origin;
use tidepool_types::{Errno, FileKind, TimeSpec};

/// Name of the one file.
pub const NAME: &[u8] = b"memory";
const ROOT: DirRef = DirRef::Other(0);
const FILE: FileRef = FileRef::Other(1);

type Answer = Result<Vec<u8>, Errno>;

pub struct MemoryEnd {
    origin: Origin,
    address: u64,
    size: u64,
    identity: (u32, u32),
    made: TimeSpec,
}

impl MemoryEnd {
    /// `identity` is whom the task acts as.
    pub fn open(origin: Origin, address: u64, size: u64, identity: &Identity) -> EndResult<MemoryEnd> {
        if origin.pid <= 0 {
            return Err(fail("reach the process", Errno::EINVAL, "the task came from no process"));
        }
        // The kernel looks at the real identity, and this must be nobody else's.
        if rustix::process::getuid().as_raw() != identity.uid {
            return Err(fail("reach the process", Errno::EPERM, "only a process of its user may reach it"));
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Ok(MemoryEnd {
            origin,
            address,
            size,
            identity: (identity.uid, identity.gid),
            made: TimeSpec { sec: now.as_secs() as i64, nsec: now.subsec_nanos() },
        })
    }

    fn read_at(&self, at: u64, len: usize) -> EndResult<Vec<u8>> {
        self.told("read", read(self.origin, at, len))
    }

    fn told(&self, operation: &'static str, answer: Answer) -> EndResult<Vec<u8>> {
        answer.map_err(|errno| {
            let why = match errno {
                Errno::EPERM => "the kernel does not let this user reach the process's memory (ptrace scope)",
                Errno::EFAULT => "the memory region is not all mapped",
                Errno::ESRCH => "the process that submitted the task has ended",
                _ => "memory of the submitting process",
            };
            fail(operation, errno, why)
        })
    }

    fn meta(&self, kind: FileKind) -> Meta {
        let file = kind == FileKind::Regular;
        Meta {
            dev: u64::MAX,
            ino: if file { 1 } else { 0 },
            kind,
            mode: if file { 0o600 } else { 0o700 },
            nlink: 1,
            uid: self.identity.0,
            gid: self.identity.1,
            size: if file { self.size } else { 0 },
            stored: self.size,
            rdev: 0,
            atime: self.made,
            mtime: self.made,
            ctime: self.made,
        }
    }

    /// The address of a range of the file.
    fn range(&self, operation: &'static str, offset: u64, len: u64) -> EndResult<u64> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok(self.address + offset),
            _ => Err(fail(operation, Errno::EFBIG, "the memory region is smaller than what is copied to it")),
        }
    }
}

fn fail(operation: &'static str, errno: Errno, why: &str) -> EndError {
    EndError { errno, operation, detail: Some(why.to_string()) }
}

fn unsupported<T>(operation: &'static str) -> EndResult<T> {
    Err(fail(operation, Errno::EOPNOTSUPP, "memory holds one file and nothing else"))
}

fn errno(error: nix::errno::Errno) -> Errno {
    Errno(error as i32)
}

fn read(origin: Origin, at: u64, len: usize) -> Answer {
    same_process(origin)?;
    let mut data = vec![0; len];
    let remote = [RemoteIoVec { base: at as usize, len }];
    let pid = Pid::from_raw(origin.pid);
    let count = process_vm_readv(pid, &mut [IoSliceMut::new(&mut data)], &remote).map_err(errno)?;
    data.truncate(count);
    // The number may have been given away meanwhile.
    same_process(origin)?;
    Ok(data)
}

fn write(origin: Origin, at: u64, data: &[u8]) -> Answer {
    same_process(origin)?;
    let remote = [RemoteIoVec { base: at as usize, len: data.len() }];
    let pid = Pid::from_raw(origin.pid);
    let count = process_vm_writev(pid, &[IoSlice::new(data)], &remote).map_err(errno)?;
    if count < data.len() {
        return Err(Errno::EFAULT);
    }
    same_process(origin)?;
    Ok(Vec::new())
}

fn same_process(origin: Origin) -> Result<(), Errno> {
    match crate::peer::started(origin.pid) {
        started if started != 0 && started == origin.started => Ok(()),
        _ => Err(Errno::ESRCH),
    }
}

impl End for MemoryEnd {
    fn describe(&self) -> String {
        format!("memory of process {}", self.origin.pid)
    }

    fn identity(&self) -> Vec<u8> {
        let Origin { pid, started } = self.origin;
        format!("memory:{pid}:{started}:{}:{}", self.address, self.size).into_bytes()
    }

    fn rights(&self) -> Rights {
        Rights { root: false, uid: self.identity.0, gid: self.identity.1 }
    }

    fn knows_sizes(&self, _meta: &Meta) -> bool {
        true
    }

    fn reads_touch_atime(&self) -> bool {
        false
    }

    fn root(&self) -> DirRef {
        ROOT
    }

    fn open_dir(&self, _: &DirRef, _: &[u8]) -> EndResult<DirRef> {
        unsupported("open directory")
    }

    fn leave_dir(&self, _: &DirRef) {}

    fn list(&self, _: &DirRef, _: &Cursor) -> EndResult<(Vec<Item>, Option<Cursor>)> {
        // As a destination, it takes what it is given: nothing is there before.
        Ok((Vec::new(), None))
    }

    fn stat(&self, at: At<'_>) -> EndResult<Meta> {
        match at {
            At::Dir(_) => Ok(self.meta(FileKind::Directory)),
            At::File(_) | At::Name(_, NAME) => Ok(self.meta(FileKind::Regular)),
            At::Name(..) => Err(EndError::new("stat", Errno::ENOENT)),
        }
    }

    fn read_link(&self, _: &DirRef, _: &[u8]) -> EndResult<Vec<u8>> {
        unsupported("read link")
    }

    fn xattrs(&self, _: At<'_>) -> EndResult<Vec<Xattr>> {
        Ok(Vec::new())
    }

    fn open_read(&self, _: &DirRef, name: &[u8]) -> EndResult<FileRef> {
        if name == NAME { Ok(FILE) } else { Err(EndError::new("open", Errno::ENOENT)) }
    }

    fn read(&self, _: &FileRef, offset: u64, buf: &mut [u8]) -> EndResult<usize> {
        let len = (buf.len() as u64).min(self.size.saturating_sub(offset)) as usize;
        if len == 0 {
            return Ok(0);
        }
        let data = self.read_at(self.address + offset, len)?;
        if data.is_empty() {
            return Err(fail("read", Errno::EFAULT, "the memory region is not all mapped"));
        }
        buf[..data.len()].copy_from_slice(&data);
        Ok(data.len())
    }

    fn next_data(&self, _: &FileRef, offset: u64) -> EndResult<Option<u64>> {
        Ok((offset < self.size).then_some(offset))
    }

    fn next_hole(&self, _: &FileRef, _: u64, limit: u64) -> EndResult<u64> {
        Ok(limit)
    }

    fn drop_cache(&self, _: &FileRef, _: u64, _: u64) {}

    fn create(&self, _: &DirRef, _: &[u8]) -> EndResult<FileRef> {
        Ok(FILE)
    }

    fn open_write(&self, _: &DirRef, _: &[u8]) -> EndResult<FileRef> {
        Ok(FILE)
    }

    fn write(&self, _: &FileRef, offset: u64, data: &[u8]) -> EndResult<usize> {
        let at = self.range("write", offset, data.len() as u64)?;
        self.told("write", write(self.origin, at, data))?;
        Ok(data.len())
    }

    /// What follows writes the data of a file with holes; the holes are zeros.
    fn truncate(&self, _: &FileRef, size: u64) -> EndResult<()> {
        if size > self.size {
            return Err(fail("truncate", Errno::EFBIG, "the memory region is smaller than the file"));
        }
        let zeros = vec![0; 1 << 20];
        let mut at = 0;
        while at < size {
            let len = (size - at).min(zeros.len() as u64);
            self.write(&FILE, at, &zeros[..len as usize])?;
            at += len;
        }
        Ok(())
    }

    fn fsync(&self, _: &FileRef) -> EndResult<()> {
        Ok(())
    }

    fn fsync_dir(&self, _: &DirRef) -> EndResult<()> {
        Ok(())
    }

    fn fsync_all(&self) -> EndResult<()> {
        Ok(())
    }

    fn make_dir(&self, _: &DirRef, _: &[u8]) -> EndResult<()> {
        unsupported("make directory")
    }

    fn make_symlink(&self, _: &DirRef, _: &[u8], _: &[u8]) -> EndResult<()> {
        unsupported("make link")
    }

    fn make_node(&self, _: &DirRef, _: &[u8], _: FileKind, _: u64) -> EndResult<()> {
        unsupported("make node")
    }

    fn make_link(&self, _: (&DirRef, &[u8]), _: (&DirRef, &[u8])) -> EndResult<()> {
        unsupported("make link")
    }

    fn rename(&self, _: &DirRef, _: &[u8], _: &[u8]) -> EndResult<()> {
        Ok(())
    }

    fn unlink(&self, _: &DirRef, _: &[u8]) -> EndResult<()> {
        Ok(())
    }

    fn set_meta(&self, _: At<'_>, _: &SetMeta) -> EndResult<()> {
        Ok(())
    }

    fn set_xattr(&self, _: At<'_>, _: &[u8], _: &[u8]) -> EndResult<()> {
        Err(EndError::new("set attribute", Errno::EOPNOTSUPP))
    }
}
