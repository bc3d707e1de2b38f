//! The operations of the FUSE crate, converted to those of [`Core`].

use crate::convert::{chosen_time, file_type, has_set_id, no_entry};
use crate::leases::Keeper;
use crate::listing;
use crate::locking::{self, Want};
use crate::ops::{Core, gone};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier,
    RenameFlags, ReplyAttr, ReplyBmap, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};
use tidepool_client::{FsError, HeldLock};
use tidepool_types::{Attr, Errno as OurErrno, Ino, NAME_MAX, SetAttr};

/// Requests that the kernel may have under way without a program waiting, such as readahead.
const BACKGROUND_MAX: u16 = 64;
/// Attributes asked for at a time in a listing. A reply of a page has room for 25 entries, newer kernels take more.
const READDIRPLUS_BATCH: usize = 64;
/// Object ids are never given out twice.
const GENERATION: Generation = Generation(0);
/// The lowest bits of a file handle: what there is to remember of an open file.
const HANDLE_DIRECT: u64 = 1;
const HANDLE_SET_ID: u64 = 2;
/// From one handle to the next, above these bits: each open file has one of its own.
const HANDLE_NEXT: u64 = 4;

thread_local! {
    /// What is read goes through here, so that it need not be cleared for each request.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn answer_read(core: &Core, ino: Ino, offset: u64, size: u32, reply: ReplyData) {
    READ_BUFFER.with_borrow_mut(|buffer| {
        let size = size as usize;
        if buffer.len() < size {
            buffer.resize(size, 0);
        }
        match core.client.read(ino, offset, &mut buffer[..size]) {
            Ok(read) => reply.data(&buffer[..read]),
            Err(error) => reply.error(core.errno(&error)),
        }
    });
}

/// Whether what is read and written goes past the kernel's pages.
fn is_direct(handle: FileHandle, flags: i32) -> bool {
    handle.0 & HANDLE_DIRECT != 0 || flags & libc::O_DIRECT != 0
}

/// Answers with an error, or goes on with the value.
macro_rules! reply_or {
    ($self:expr, $reply:expr, $result:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) => return $reply.error($self.0.errno(&error)),
        }
    };
}

/// The file system that the session drives.
pub struct TidepoolFs(pub Arc<Core>);

fn wants_append(flags: i32) -> bool {
    flags & libc::O_APPEND != 0 && flags & libc::O_ACCMODE != libc::O_RDONLY
}

impl TidepoolFs {
    /// The lock that a request of the kernel's is about.
    fn want(
        &self,
        req: &Request,
        (number, handle, owner): (INodeNo, FileHandle, LockOwner),
        (start, end): (u64, u64),
        typ: i32,
        pid: u32,
    ) -> Result<Want, FsError> {
        let mode = locking::mode_of(typ).map_err(FsError::from)?;
        let range = locking::range_of(start, end);
        let ino = self.0.ino(number);
        Ok(Want { ino, owner: owner.0, handle: handle.0, range, mode, pid, thread: req.pid() })
    }

    fn entry(&self, reply: ReplyEntry, result: Result<Attr, FsError>) {
        let attr = reply_or!(self, reply, result);
        reply.entry(&self.0.ttl, &self.0.shown(&attr), GENERATION);
    }

    fn attr(&self, reply: ReplyAttr, result: Result<Attr, FsError>) {
        let attr = reply_or!(self, reply, result);
        reply.attr(&self.0.ttl, &self.0.shown(&attr));
    }

    fn lookup_kept(&self, keeper: &Keeper, dir: Ino, name: &[u8], reply: ReplyEntry) {
        let note = keeper.note_name(dir, name);
        let (attr, until) = reply_or!(self, reply, self.0.lookup_kept(dir, name));
        if attr.is_none() && until.is_none() {
            return reply.error(Errno::ENOENT);
        }
        let shown = attr.map_or_else(no_entry, |attr| self.0.shown(&attr));
        // Attributes are kept only when they are asked for by number: with those of an object it had not known, the kernel does not
        // notice that a recall came first.
        keeper.hand_name((dir, name), &note, until, |ttl| {
            reply.entry_with_ttls(&Duration::ZERO, &ttl, &shown, GENERATION);
        });
    }

    fn get_attr_kept(&self, keeper: &Keeper, ino: Ino, reply: ReplyAttr) {
        let note = keeper.note(ino);
        let (attr, until) = reply_or!(self, reply, self.0.get_attr_kept(ino));
        let shown = self.0.shown(&attr);
        keeper.hand_attr(ino, &note, until, |ttl| reply.attr(&ttl, &shown));
    }

    fn empty(&self, reply: ReplyEmpty, result: Result<(), FsError>) {
        reply_or!(self, reply, result);
        reply.ok();
    }

    /// Handle and flags of a file that was opened.
    fn opened(&self, attr: &Attr, flags: i32) -> (FileHandle, FopenFlags) {
        let mut handle = self.0.handles.fetch_add(HANDLE_NEXT, Ordering::Relaxed);
        let mut open_flags = FopenFlags::empty();
        if self.0.direct_io {
            open_flags |= FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        }
        // With pages cached, an append would be put where this node believes the end to be. Who only writes fills no pages then, that
        // would need a lease: each write is a request in any case.
        let only_writes = flags & libc::O_ACCMODE == libc::O_WRONLY;
        if self.0.direct_io || only_writes || wants_append(flags) {
            open_flags |= FopenFlags::FOPEN_DIRECT_IO;
            handle |= HANDLE_DIRECT;
        } else {
            self.0.opened_cached(attr.ino);
        }
        if has_set_id(attr.mode) {
            handle |= HANDLE_SET_ID;
        }
        (FileHandle(handle), open_flags)
    }

    /// Answers a request for an extended attribute or the list of them.
    fn xattr(&self, reply: ReplyXattr, size: u32, result: Result<Vec<u8>, FsError>) {
        let value = reply_or!(self, reply, result);
        let len = u32::try_from(value.len()).unwrap_or(u32::MAX);
        match size {
            0 => reply.size(len),
            room if room < len => reply.error(Errno::ERANGE),
            _ => reply.data(&value),
        }
    }

    fn statistics(&self, reply: ReplyStatfs) {
        let stat = reply_or!(self, reply, self.0.client.stat_fs());
        let block = u32::try_from(stat.block_size).unwrap_or(u32::MAX);
        let (blocks, free) = (stat.blocks, stat.blocks_free);
        // Any free block may become a file.
        reply.statfs(blocks, free, free, stat.files + free, free, block, NAME_MAX as u32, block);
    }
}

impl Filesystem for TidepoolFs {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Not FUSE_ATOMIC_O_TRUNC: with it the kernel has a file truncated before it looks whether that runs as a program.
        let mut wanted = vec![
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_POSIX_LOCKS,
            InitFlags::FUSE_FLOCK_LOCKS,
            InitFlags::FUSE_ASYNC_DIO,
            // Objects are found by their numbers alone.
            InitFlags::FUSE_EXPORT_SUPPORT,
            // A link's target never changes.
            InitFlags::FUSE_CACHE_SYMLINKS,
            // Without it each write asks for the attribute security.capability first.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ];
        if !self.0.ttl.is_zero() {
            // Attributes that come with a listing are of use only when they may be kept.
            wanted.extend([InitFlags::FUSE_DO_READDIRPLUS, InitFlags::FUSE_READDIRPLUS_AUTO]);
        }
        if !self.0.relaxed {
            // The kernel checks access control lists; what is made gets the default list in place of the umask, by us.
            wanted.extend([InitFlags::FUSE_POSIX_ACL, InitFlags::FUSE_DONT_MASK]);
        }
        for flag in wanted {
            // What an older kernel lacks it does not need from us either.
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn destroy(&mut self) {
        self.0.locks.stop();
        self.0.keeper.iter().for_each(|keeper| keeper.stop());
        self.0.client.disconnect();
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if let b"." | b".." = name.as_bytes() {
            // By a file handle (open_by_handle_at), of what the kernel has forgotten.
            let attr = reply_or!(self, reply, self.0.by_handle(self.0.ino(parent), name.as_bytes()));
            return reply.entry(&Duration::ZERO, &self.0.shown(&attr), GENERATION);
        }
        if let Some(keeper) = &self.0.keeper {
            return self.lookup_kept(keeper, self.0.ino(parent), name.as_bytes(), reply);
        }
        match self.0.lookup(self.0.ino(parent), name.as_bytes()) {
            Err(error) if error.errno() == OurErrno::ENOENT && !self.0.ttl.is_zero() => {
                reply.entry(&self.0.ttl, &no_entry(), GENERATION);
            }
            result => self.entry(reply, result),
        }
    }

    fn forget(&self, _req: &Request, number: INodeNo, _nlookup: u64) {
        self.0.ghosts.forget(self.0.ino(number));
        self.0.keeper.iter().for_each(|keeper| keeper.forgotten(self.0.ino(number)));
    }

    fn getattr(&self, _req: &Request, number: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match &self.0.keeper {
            Some(keeper) => self.get_attr_kept(keeper, self.0.ino(number), reply),
            None => self.attr(reply, self.0.get_attr(self.0.ino(number))),
        }
    }

    fn setattr(
        &self,
        req: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = SetAttr {
            mode: mode.map(|m| m & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(chosen_time),
            mtime: mtime.map(chosen_time),
        };
        self.attr(reply, self.0.set_attr(self.0.ino(number), &set, self.0.caller(req)));
    }

    fn readlink(&self, _req: &Request, number: INodeNo, reply: ReplyData) {
        let target = reply_or!(self, reply, self.0.client.read_link(self.0.ino(number)).map_err(gone));
        reply.data(&target);
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let _naming = self.0.naming(req);
        self.entry(
            reply,
            self.0.mknod(self.0.ino(parent), name.as_bytes(), mode, rdev, self.0.caller(req).making(umask)),
        );
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let _naming = self.0.naming(req);
        self.entry(
            reply,
            self.0.mkdir(self.0.ino(parent), name.as_bytes(), mode, self.0.caller(req).making(umask)),
        );
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _naming = self.0.naming(req);
        self.empty(reply, self.0.unlink(self.0.ino(parent), name.as_bytes()));
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _naming = self.0.naming(req);
        self.empty(reply, self.0.rmdir(self.0.ino(parent), name.as_bytes()));
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let _naming = self.0.naming(req);
        let target = target.as_os_str().as_bytes();
        self.entry(reply, self.0.symlink(self.0.ino(parent), name.as_bytes(), target, self.0.caller(req)));
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let _naming = self.0.naming(req);
        let (from, to) = ((self.0.ino(parent), name.as_bytes()), (self.0.ino(newparent), newname.as_bytes()));
        self.empty(reply, self.0.rename(from, to, flags.bits()));
    }

    fn link(&self, req: &Request, number: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let _naming = self.0.naming(req);
        self.entry(reply, self.0.link(self.0.ino(number), self.0.ino(newparent), newname.as_bytes()));
    }

    fn open(&self, _req: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let opened = self.0.open(self.0.ino(number));
        let (attr, pages_stay) = reply_or!(self, reply, opened);
        let (handle, mut open_flags) = self.opened(&attr, flags.0);
        if pages_stay {
            open_flags |= FopenFlags::FOPEN_KEEP_CACHE;
        }
        reply.opened(handle, open_flags);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let _naming = self.0.naming(req);
        let recalls = self.0.keeper.as_ref().map(|keeper| (keeper, keeper.note_any()));
        let (dir, name) = (self.0.ino(parent), name.as_bytes());
        let created = self.0.create(dir, name, flags, mode, self.0.caller(req).making(umask));
        let (attr, kept) = reply_or!(self, reply, created);
        let (handle, open_flags) = self.opened(&attr, flags);
        let answer = |ttl| reply.created(&ttl, &self.0.shown(&attr), GENERATION, handle, open_flags);
        let Some((keeper, recalls)) = recalls else { return answer(self.0.ttl) };
        let until = kept.entry.zip(kept.attr).map(|(entry, attr)| entry.min(attr));
        keeper.hand_made(attr.ino, (dir, name), recalls, until, answer);
    }

    fn read(
        &self,
        _req: &Request,
        number: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let ino = self.0.ino(number);
        match self.0.keeper.as_ref().filter(|_| !is_direct(fh, flags.0)) {
            None => answer_read(&self.0, ino, offset, size, reply),
            Some(keeper) => {
                let core = self.0.clone();
                let read = move || answer_read(&core, ino, offset, size, reply);
                keeper.read(ino, (offset, size.into()), read);
            }
        }
    }

    fn write(
        &self,
        req: &Request,
        number: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let ino = self.0.ino(number);
        // Pages that the kernel writes back belong where they are.
        let paged = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let written = if wants_append(flags.0) && !paged {
            self.0.append(ino, data)
        } else {
            self.0.write(ino, offset, data, paged || !is_direct(fh, flags.0))
        };
        let written = reply_or!(self, reply, written);
        if fh.0 & HANDLE_SET_ID != 0 && write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            reply_or!(self, reply, self.0.written_by_other(ino, self.0.caller(req)));
        }
        if is_direct(fh, flags.0) && !paged {
            return self.0.answer_past_pages(ino, move || reply.written(written as u32));
        }
        reply.written(written as u32);
        if let Some(keeper) = &self.0.keeper {
            keeper.written(ino);
        }
    }

    fn flush(&self, _req: &Request, number: INodeNo, fh: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        let settled = self.0.client.settle(self.0.ino(number));
        self.empty(
            reply,
            settled.and(self.0.locks.flushed(&self.0.client, self.0.ino(number), owner.0, fh.0)),
        );
    }

    fn release(
        &self,
        _req: &Request,
        number: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if fh.0 & HANDLE_DIRECT == 0 {
            self.0.closed_cached(self.0.ino(number));
        }
        self.empty(reply, self.0.release(self.0.ino(number), fh.0));
    }

    fn fsync(&self, _req: &Request, number: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply_or!(self, reply, self.0.client.fsync(self.0.ino(number)));
        self.0.answer_settled(self.0.ino(number), || reply.ok());
    }

    fn opendir(&self, _req: &Request, _number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(self.0.dirs.open()), FopenFlags::empty());
    }

    fn readdir(
        &self,
        _req: &Request,
        number_: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = reply_or!(self, reply, self.0.list(fh.0, self.0.ino(number_), offset));
        for (next, entry) in listing::from_offset(&entries, offset) {
            let kind = file_type(entry.kind);
            if reply.add(self.0.number(entry.ino), next, kind, OsStr::from_bytes(&entry.name)) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(
        &self,
        _req: &Request,
        number_: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let dir = self.0.ino(number_);
        let entries = reply_or!(self, reply, self.0.list(fh.0, dir, offset));
        let rest: Vec<_> = listing::from_offset(&entries, offset).collect();
        // Names are as old as the listing; the kernel may keep them for the rest of their time.
        let ttl = self.0.ttl.saturating_sub(self.0.dirs.get(fh.0).age());
        'full: for batch in rest.chunks(READDIRPLUS_BATCH) {
            let inos: Vec<Ino> = batch.iter().map(|(_, entry)| entry.ino).collect();
            let known = reply_or!(self, reply, self.0.client.get_attrs(&inos));
            for (next, entry) in batch {
                // Removed since it was listed: the lookup of its name tells.
                let Some(attr) = known.get(&entry.ino) else { continue };
                if !listing::is_dots(entry) {
                    self.0.ghosts.seen(dir, &entry.name, attr);
                }
                let name = OsStr::from_bytes(&entry.name);
                if reply.add(self.0.number(attr.ino), *next, name, &ttl, &self.0.shown(attr), GENERATION) {
                    break 'full;
                }
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _req: &Request,
        _number: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.0.dirs.close(fh.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        _number: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.empty(reply, self.0.client.sync_all());
    }

    fn statfs(&self, _req: &Request, _number: INodeNo, reply: ReplyStatfs) {
        self.statistics(reply);
    }

    fn setxattr(
        &self,
        req: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let name = name.as_bytes();
        if tidepool_client::is_list(name) {
            return self
                .empty(reply, self.0.set_list(self.0.ino(number), name, Some(value), self.0.caller(req)));
        }
        self.empty(reply, self.0.set_xattr(self.0.ino(number), name, value, flags));
    }

    fn getxattr(&self, _req: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = name.as_bytes();
        self.xattr(reply, size, self.0.get_xattr(self.0.ino(number), name));
    }

    fn listxattr(&self, _req: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.0.client.list_xattr(self.0.ino(number)).map_err(gone);
        let joined = names.map(|names| {
            names
                .into_iter()
                .flat_map(|mut name| {
                    name.push(0);
                    name
                })
                .collect::<Vec<u8>>()
        });
        self.xattr(reply, size, joined);
    }

    fn removexattr(&self, req: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if tidepool_client::is_list(name.as_bytes()) {
            let done = self.0.set_list(self.0.ino(number), name.as_bytes(), None, self.0.caller(req));
            return self.empty(reply, done);
        }
        self.empty(reply, self.0.remove_xattr(self.0.ino(number), name.as_bytes()));
    }

    /// Asked only of relaxed mounts, where all is allowed. "Not implemented" means that to the
    /// kernel, which then stops asking.
    fn access(&self, _req: &Request, _number: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn getlk(
        &self,
        req: &Request,
        number: INodeNo,
        fh: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let want = self.want(req, (number, fh, owner), (start, end), typ, pid);
        let want = reply_or!(self, reply, want);
        match reply_or!(self, reply, self.0.locks.test(&self.0.client, &want)) {
            Some(HeldLock { range, mode, pid }) => {
                let (start, end) = locking::kernel_range(range);
                reply.locked(start, end, locking::l_type_of(mode), pid);
            }
            None => reply.locked(start, end, libc::F_UNLCK, 0),
        }
    }

    fn setlk(
        &self,
        req: &Request,
        number: INodeNo,
        fh: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let want = self.want(req, (number, fh, owner), (start, end), typ, pid);
        let want = reply_or!(self, reply, want);
        self.0.set_lock(want, sleep, reply);
    }

    fn fallocate(
        &self,
        req: &Request,
        number: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let set_id = fh.0 & HANDLE_SET_ID != 0;
        let done = self.0.allocate(self.0.ino(number), mode, (offset, length), set_id, self.0.caller(req));
        self.empty(reply, done);
    }

    fn lseek(
        &self,
        _req: &Request,
        number: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        let ino = self.0.ino(number);
        let found = match whence {
            libc::SEEK_DATA => self.0.client.next_data(ino, offset),
            libc::SEEK_HOLE => self.0.client.next_hole(ino, offset).map(Some),
            _ => return reply.error(Errno::EINVAL),
        };
        match reply_or!(self, reply, found) {
            Some(at) => reply.offset(i64::try_from(at).unwrap_or(i64::MAX)),
            None => reply.error(Errno::ENXIO),
        }
    }

    /// The kernel has written back what it holds of the source, and drops what it holds of the target.
    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        _fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let (from, to) = (self.0.ino(ino_in), self.0.ino(ino_out));
        let copied = self.0.copy((from, offset_in), (to, offset_out), len);
        let copied = reply_or!(self, reply, copied);
        // As after fallocate, the kernel leaves it to us to take set-ID bits away.
        if fh_out.0 & HANDLE_SET_ID != 0 && self.0.caller(req).uid != 0 {
            reply_or!(self, reply, self.0.written_by_other(to, self.0.caller(req)));
        }
        self.0.answer_past_pages(to, move || reply.written(copied as u32));
    }

    fn ioctl(
        &self,
        _req: &Request,
        _number: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    /// Files are always ready, which is what the kernel takes this to mean.
    fn poll(
        &self,
        _req: &Request,
        _number: INodeNo,
        _fh: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn bmap(&self, _req: &Request, _number: INodeNo, _blocksize: u32, _index: u64, reply: ReplyBmap) {
        reply.error(Errno::ENOSYS);
    }
}
