//! What the operations of a mount do. [`crate::fs`] only converts arguments and replies.

use crate::caller;
use crate::convert::{file_attr, has_set_id, without_set_id};
use crate::ghosts::Ghosts;
use crate::idmap::IdMap;
use crate::leases::{Changing, DAEMONS_MAX, Keeper, Naming};
use crate::listing::{self, OpenDirs};
use crate::locking::{Locks, Want};
use crate::options::MountOptions;
use crate::pages::Pages;
use crate::report::Reporter;
use fuser::{FileAttr, INodeNo, Notifier, ReplyEmpty, Request};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tidepool_client::{Client, Cred, DirEntry, FsError, Kept, PoolFile, PoolMode, Walk};
use tidepool_types::acl::Acl;
use tidepool_types::{Attr, Errno, Ino, InodeNumbers, SetAttr};

/// Size shown for directories, when their home has no better one.
const DIR_SIZE: u64 = 4096;
/// Stack of a thread that waits for a lock.
const WAITER_STACK_BYTES: usize = 128 * 1024;

/// The mounter's credentials: for operations whose permissions the kernel has checked.
const ROOT: Cred = Cred { uid: 0, gid: 0, groups: Vec::new(), umask: 0 };

/// Who asks, in the pool's numbers.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// The thread; 0 when it lives in another PID name space.
    pub thread: u32,
    umask: u32,
}

impl Caller {
    /// Who makes something, with this umask. A kernel that has applied it already does no harm.
    pub fn making(self, umask: u32) -> Caller {
        Caller { umask, ..self }
    }

    /// Owner of what is made.
    fn cred(self) -> Cred {
        Cred { uid: self.uid, gid: self.gid, groups: Vec::new(), umask: self.umask }
    }
}

/// Drop an object's cached pages, then answer.
type Invalidation = (INodeNo, Box<dyn FnOnce() + Send>);

pub struct Core {
    /// Checks no permissions: either the kernel does, or nobody.
    pub client: Arc<Client>,
    /// Checks them, for the one case that the kernel cannot.
    checker: Arc<Client>,
    ids: IdMap,
    numbers: InodeNumbers,
    pub relaxed: bool,
    pub ttl: Duration,
    pub direct_io: bool,
    pub locks: Locks,
    /// The next handle of a file.
    pub handles: AtomicU64,
    pub ghosts: Ghosts,
    pub dirs: OpenDirs,
    /// What the kernel keeps by leases, when it may.
    pub keeper: Option<Arc<Keeper>>,
    /// Which pages it may have.
    pages: Arc<Mutex<Pages>>,
    reporter: Reporter,
    invalidations: OnceLock<Sender<Invalidation>>,
}

impl Core {
    /// Asks the pool for its root, so that a mount of a dead pool fails instead of hanging.
    pub fn new(checker: Arc<Client>, options: &MountOptions) -> Result<Core, FsError> {
        let relaxed = options.relaxed || !checker.pool().mode.checks_permissions();
        let client = if !checker.pool().mode.checks_permissions() {
            checker.clone()
        } else {
            Arc::new(Client::new(PoolFile { mode: PoolMode::Relaxed, ..checker.pool().clone() }))
        };
        // What the kernel hands over is in a buffer of the thread that serves it.
        client.buffers_are_stable();
        let root = client.get_attr(Ino::ROOT)?;
        // With the size cache homes do not know of every write.
        let leases = options.leases && options.cache_ttl_ms == 0 && !client.pool().size_cache;
        let leases = leases && client.members() <= DAEMONS_MAX;
        let pages: Arc<Mutex<Pages>> = Arc::default();
        Ok(Core {
            keeper: leases.then(|| Arc::new(Keeper::new(client.clone(), pages.clone()))),
            pages,
            ids: IdMap::detect(&root),
            numbers: client.inode_numbers(),
            client,
            checker,
            relaxed,
            ttl: options.ttl(),
            direct_io: options.direct_io,
            locks: Locks::default(),
            handles: AtomicU64::new(0),
            ghosts: Ghosts::default(),
            dirs: OpenDirs::default(),
            reporter: Reporter::default(),
            invalidations: OnceLock::new(),
        })
    }

    pub fn caller(&self, request: &Request) -> Caller {
        Caller {
            uid: self.ids.user_to_pool(request.uid()),
            gid: self.ids.group_to_pool(request.gid()),
            thread: request.pid(),
            umask: 0,
        }
    }

    /// To be called before names are changed for a request, and kept until it is answered.
    pub fn naming(&self, request: &Request) -> Option<Naming<'_>> {
        self.keeper.as_ref().map(|keeper| keeper.naming(request.pid()))
    }

    /// An object by the kernel's number, and back.
    pub fn ino(&self, number: INodeNo) -> Ino {
        self.numbers.ino(number.0)
    }

    pub fn number(&self, ino: Ino) -> INodeNo {
        INodeNo(self.numbers.number(ino))
    }

    /// Attributes as the kernel takes them.
    pub fn shown(&self, attr: &Attr) -> FileAttr {
        let mut shown = file_attr(attr, self.numbers);
        shown.uid = self.ids.user_of_pool(attr.uid);
        shown.gid = self.ids.group_of_pool(attr.gid);
        shown
    }

    /// The number of an error, whose details go to the user.
    pub fn errno(&self, error: &FsError) -> fuser::Errno {
        self.reporter.report(error);
        fuser::Errno::from_i32(error.errno().0)
    }

    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr, FsError> {
        // Without caching the kernel asks again for the attributes it shows.
        let attr = if self.ttl.is_zero() {
            self.client.lookup_home(dir, name)
        } else {
            self.client.lookup(dir, name)
        }?;
        self.ghosts.seen(dir, name, &attr);
        Ok(presentable(attr))
    }

    /// Like [`Core::lookup`]; `None` for a name that is not there. Until when the kernel may keep the name.
    pub fn lookup_kept(&self, dir: Ino, name: &[u8]) -> Result<(Option<Attr>, Option<Instant>), FsError> {
        let (attr, until) = self.client.lookup_kept(dir, name)?;
        let attr = attr.inspect(|attr| self.ghosts.seen(dir, name, attr)).map(presentable);
        Ok((attr, until))
    }

    /// Like [`Core::get_attr`]; until when the kernel may keep them.
    pub fn get_attr_kept(&self, ino: Ino) -> Result<(Attr, Option<Instant>), FsError> {
        match self.client.attr_kept(ino) {
            Ok((attr, until)) => Ok((attr.clone(), keepable(&attr, until))),
            Err(error) => self.ghost(ino, error).map(|attr| (attr, None)),
        }
    }

    fn ghost(&self, ino: Ino, error: FsError) -> Result<Attr, FsError> {
        match error.errno() {
            Errno::ENOENT | Errno::ESTALE => self.ghosts.get(ino).ok_or(Errno::ESTALE.into()),
            _ => Err(error),
        }
    }

    /// This mount is about to change an object, or the entries of a directory.
    fn changing(&self, ino: Ino) -> Option<Changing<'_>> {
        self.keeper.as_ref().map(|keeper| keeper.changing(ino))
    }

    fn writing(&self, ino: Ino, through_pages: bool) -> Option<Changing<'_>> {
        self.keeper.as_ref().map(|keeper| keeper.writing(ino, through_pages))
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file was opened so that the kernel keeps pages of it.
    pub fn opened_cached(&self, ino: Ino) {
        self.pages().opened_cached(ino);
    }

    pub fn closed_cached(&self, ino: Ino) {
        self.pages().closed_cached(ino);
    }

    /// Answers when the kernel has no pages that it was told to drop and could not yet.
    pub fn answer_settled(&self, ino: Ino, answer: impl FnOnce() + Send + 'static) {
        let owes = self.pages().owes(ino);
        if owes { self.invalidate(ino, answer) } else { answer() }
    }

    /// Answers after data were changed in a way that leaves the kernel's pages as they are: it has none of them by then.
    pub fn answer_past_pages(&self, ino: Ino, answer: impl FnOnce() + Send + 'static) {
        let to_drop = self.pages().changed_past(ino);
        if to_drop { self.invalidate(ino, answer) } else { answer() }
    }

    /// What became of a change of data. Of one that failed a part may have been done, which the kernel does not expect: it keeps its pages,
    /// and nobody recalls them for a change of this mount.
    fn changed<T>(&self, ino: Ino, change: Result<T, FsError>) -> Result<T, FsError> {
        if let (Err(_), Some(keeper)) = (&change, &self.keeper) {
            keeper.drop_now(ino);
        }
        change
    }

    /// What became of a change of names and attributes of objects. One that failed may have been done: its answer may be lost, or only a part
    /// of it was refused. The kernel does not expect that either, and our own changes recall nothing here.
    fn tried<T>(
        &self,
        names: &[(Ino, &[u8])],
        objects: &[Ino],
        change: Result<T, FsError>,
    ) -> Result<T, FsError> {
        if let (Err(error), Some(keeper)) = (&change, &self.keeper)
            && !is_refusal(error.errno())
        {
            keeper.forget_names(names);
            let named = names.iter().filter_map(|(dir, name)| self.ghosts.last_seen(*dir, name));
            named.chain(objects.iter().copied()).for_each(|ino| keeper.forget_attr(ino));
        }
        change
    }

    /// With names kept the kernel does not look one up before it removes it.
    fn see_before_removal(&self, dir: Ino, name: &[u8]) {
        if self.keeper.is_some() && !self.ghosts.needs_none(dir, name) {
            // If it is not there, the removal says so.
            let _ = self.client.lookup_home(dir, name).map(|attr| self.ghosts.seen(dir, name, &attr));
        }
    }

    /// What a file handle names: an object itself (`.`), or a directory's parent.
    pub fn by_handle(&self, ino: Ino, name: &[u8]) -> Result<Attr, FsError> {
        let ino = if name == b".." { self.client.parent_of(ino).map_err(gone)? } else { ino };
        let attr = self.client.get_attr(ino).map_err(gone)?;
        // One that is kept only as long as somebody has it open is no handle's any more, as on other file systems.
        if !attr.is_dir() && attr.nlink == 0 {
            return Err(Errno::ESTALE.into());
        }
        Ok(attr)
    }

    pub fn get_attr(&self, ino: Ino) -> Result<Attr, FsError> {
        self.client.get_attr(ino).or_else(|error| self.ghost(ino, error))
    }

    /// Changes attributes. Truncation by others and changes of owner take the set-ID bits
    /// away, which the kernel leaves to us.
    pub fn set_attr(&self, ino: Ino, set: &SetAttr, caller: Caller) -> Result<Attr, FsError> {
        let set = &SetAttr {
            uid: set.uid.map(|id| self.ids.user_to_pool(id)),
            gid: set.gid.map(|id| self.ids.group_to_pool(id)),
            ..set.clone()
        };
        let _changing = self.changing(ino);
        let attr = self.tried(&[], &[ino], self.client.set_attr(ino, set, &ROOT).map_err(gone));
        let attr = if set.size.is_some() { self.changed(ino, attr)? } else { attr? };
        let chowned = set.uid.is_some() || set.gid.is_some();
        let truncated = set.size.is_some() && caller.uid != 0;
        if attr.is_dir() || set.mode.is_some() || !(chowned || truncated) {
            return Ok(attr);
        }
        self.drop_set_id(attr, caller)
    }

    fn drop_set_id(&self, attr: Attr, caller: Caller) -> Result<Attr, FsError> {
        let in_group = || caller.uid == 0 || self.whole_cred(caller).in_group(attr.gid);
        match without_set_id(attr.mode, in_group) {
            Some(mode) => {
                let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
                self.client.set_attr(attr.ino, &set, &ROOT)
            }
            None => Ok(attr),
        }
    }

    pub fn mknod(
        &self,
        dir: Ino,
        name: &[u8],
        mode: u32,
        rdev: u32,
        caller: Caller,
    ) -> Result<Attr, FsError> {
        let _changing = self.changing(dir);
        let made = self.client.mknod(dir, name, mode, rdev.into(), &caller.cred());
        self.made(dir, name, made)
    }

    pub fn mkdir(&self, dir: Ino, name: &[u8], mode: u32, caller: Caller) -> Result<Attr, FsError> {
        let _changing = self.changing(dir);
        self.made(dir, name, self.client.mkdir(dir, name, mode, &caller.cred()))
    }

    pub fn symlink(&self, dir: Ino, name: &[u8], target: &[u8], caller: Caller) -> Result<Attr, FsError> {
        let _changing = self.changing(dir);
        self.made(dir, name, self.client.symlink(target, dir, name, &caller.cred()))
    }

    fn made(&self, dir: Ino, name: &[u8], made: Result<Walk<Attr>, FsError>) -> Result<Attr, FsError> {
        let attr = self.tried(&[(dir, name)], &[], made)?.inside()?;
        self.ghosts.seen(dir, name, &attr);
        Ok(presentable(attr))
    }

    pub fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr, FsError> {
        let _changing = (self.changing(dir), self.changing(ino));
        self.client.get_attr(ino).map_err(gone)?;
        self.tried(&[(dir, name)], &[ino], self.client.link_ino(ino, dir, name, &ROOT))?.inside()?;
        self.client.get_attr(ino)
    }

    pub fn unlink(&self, dir: Ino, name: &[u8]) -> Result<(), FsError> {
        let _changing = self.changing(dir);
        self.see_before_removal(dir, name);
        self.tried(&[(dir, name)], &[], self.client.unlink(dir, name, &ROOT))?.inside()?;
        self.ghosts.removed(dir, name);
        Ok(())
    }

    pub fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<(), FsError> {
        let _changing = self.changing(dir);
        self.see_before_removal(dir, name);
        self.tried(&[(dir, name)], &[], self.client.rmdir(dir, name, &ROOT))?.inside()?;
        self.ghosts.removed(dir, name);
        Ok(())
    }

    pub fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: u32) -> Result<(), FsError> {
        let _changing = (self.changing(from.0), self.changing(to.0));
        self.see_before_removal(to.0, to.1);
        let changing_any = || self.keeper.iter().for_each(|keeper| keeper.changing_any());
        changing_any();
        let renamed = self.client.rename(from.0, from.1, to.0, to.1, flags, &ROOT);
        changing_any();
        self.tried(&[from, to], &[], renamed)?.inside()?;
        self.ghosts.removed(to.0, to.1);
        Ok(())
    }

    /// Makes and opens a file. The kernel asks for this when it saw no such name; when there
    /// is one by now, nobody has checked its permissions yet.
    pub fn create(
        &self,
        dir: Ino,
        name: &[u8],
        flags: i32,
        mode: u32,
        caller: Caller,
    ) -> Result<(Attr, Kept), FsError> {
        let _changing = self.changing(dir);
        if self.keeper.is_some() {
            let made = self.create_kept(dir, name, mode, caller);
            match made {
                Err(error) if error.errno() == Errno::EEXIST && flags & libc::O_EXCL == 0 => {}
                other => return other,
            }
        }
        let flags = flags | libc::O_CREAT | libc::O_NOFOLLOW;
        let make = |flags| {
            let opened = self.client.open(dir, name, flags, mode, &caller.cred());
            self.tried(&[(dir, name)], &[], opened)?.inside()
        };
        let attr = if self.relaxed || flags & libc::O_EXCL != 0 {
            make(flags)?
        } else {
            match make(flags | libc::O_EXCL) {
                Err(error) if error.errno() == Errno::EEXIST => {
                    self.check_access(dir, name, flags, caller)?;
                    make(flags & !libc::O_CREAT)?
                }
                other => other?,
            }
        };
        self.ghosts.seen(dir, name, &attr);
        self.locks.opened(attr.ino);
        Ok((attr, Kept::default()))
    }

    /// Makes a file that is not there yet, and opens it.
    fn create_kept(&self, dir: Ino, name: &[u8], mode: u32, caller: Caller) -> Result<(Attr, Kept), FsError> {
        let mode = libc::S_IFREG | mode & 0o7777;
        let recalls = self.keeper.as_ref().map_or(0, |keeper| keeper.note_any());
        let made = self.client.make_kept(dir, name, (mode, 0, &[]), &caller.cred(), true);
        let (attr, kept) = self.tried(&[(dir, name)], &[], made)?;
        self.ghosts.seen(dir, name, &attr);
        self.locks.opened(attr.ino);
        if let Some((keeper, until)) = self.keeper.as_ref().zip(kept.attr) {
            keeper.made(attr.ino, recalls, until);
        }
        let kept = Kept { attr: keepable(&attr, kept.attr), ..kept };
        Ok((attr, kept))
    }

    fn check_access(&self, dir: Ino, name: &[u8], flags: i32, caller: Caller) -> Result<(), FsError> {
        let access = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => libc::R_OK,
            libc::O_WRONLY => libc::W_OK,
            _ => libc::R_OK | libc::W_OK,
        };
        let mask = if flags & libc::O_TRUNC != 0 { access | libc::W_OK } else { access };
        self.checker.access(dir, name, mask, false, &self.whole_cred(caller))?.inside()
    }

    /// Who asks, with the groups that the kernel does not tell.
    fn whole_cred(&self, caller: Caller) -> Cred {
        let groups = caller::groups(caller.thread).into_iter().map(|id| self.ids.group_to_pool(id));
        Cred { groups: groups.collect(), ..caller.cred() }
    }

    /// Opens a file by id; its attributes, and whether the kernel's pages are those of the file. If it is to be truncated,
    /// the kernel says so in a request of its own.
    pub fn open(&self, ino: Ino) -> Result<(Attr, bool), FsError> {
        let (attr, pages) = match &self.keeper {
            Some(keeper) => keeper.open(ino).map_err(gone)?,
            None => (self.client.reopen(ino).map_err(gone)?, false),
        };
        self.locks.opened(ino);
        Ok((attr, pages))
    }

    pub fn release(&self, ino: Ino, handle: u64) -> Result<(), FsError> {
        let unlocked = self.locks.closed(&self.client, ino, handle);
        self.client.release(ino);
        unlocked
    }

    /// Writes where the kernel says.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8], through_pages: bool) -> Result<usize, FsError> {
        let _writing = self.writing(ino, through_pages);
        self.changed(ino, self.client.write(ino, offset, data))
    }

    /// Writes at the end of file, which only the file's home knows.
    pub fn append(&self, ino: Ino, data: &[u8]) -> Result<usize, FsError> {
        let _writing = self.writing(ino, false);
        self.changed(ino, self.client.append(ino, data).map(|(_, stored)| stored))
    }

    /// After a write by somebody other than root to a file with set-ID bits.
    pub fn written_by_other(&self, ino: Ino, caller: Caller) -> Result<(), FsError> {
        let attr = self.client.get_attr(ino)?;
        self.drop_set_id(attr, caller).map(|_| ())
    }

    /// fallocate(2). `set_id`: the file had set-ID bits when it was opened. The kernel leaves it to us to take
    /// them away, as after a write, and does not say when: by everybody but root.
    pub fn allocate(
        &self,
        ino: Ino,
        mode: i32,
        range: (u64, u64),
        set_id: bool,
        caller: Caller,
    ) -> Result<(), FsError> {
        let _changing = self.changing(ino);
        self.changed(ino, self.client.allocate(ino, mode, range.0, range.1))?;
        if set_id && caller.uid != 0 { self.written_by_other(ino, caller) } else { Ok(()) }
    }

    /// copy_file_range(2).
    pub fn copy(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<usize, FsError> {
        let _changing = self.changing(to.0);
        self.changed(to.0, self.client.copy_range(from.0, from.1, to.0, to.1, len))
    }

    /// An attribute; access control lists have the numbers of the mount's name space.
    pub fn get_xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, FsError> {
        let value = self.client.get_xattr(ino, name).map_err(gone)?;
        if !tidepool_client::is_list(name) {
            return Ok(value);
        }
        let list = Acl::parse(&value)?.ok_or(Errno::ENODATA)?;
        let shown = list.map_ids(|id| self.ids.user_of_pool(id), |id| self.ids.group_of_pool(id));
        Ok(shown.to_value())
    }

    /// Sets or removes an access control list; the kernel has checked whose the object is.
    pub fn set_list(
        &self,
        ino: Ino,
        name: &[u8],
        value: Option<&[u8]>,
        caller: Caller,
    ) -> Result<(), FsError> {
        let _changing = self.changing(ino);
        let list = value.map(Acl::parse).transpose()?.flatten();
        let list = list.map(|list| {
            list.map_ids(|id| self.ids.user_to_pool(id), |id| self.ids.group_to_pool(id)).to_value()
        });
        self.client.change_list(ino, name, list.as_deref(), &self.whole_cred(caller)).map_err(gone)
    }

    pub fn set_xattr(&self, ino: Ino, name: &[u8], value: &[u8], flags: i32) -> Result<(), FsError> {
        let _changing = self.changing(ino);
        self.tried(&[], &[ino], self.client.set_xattr(ino, name, value, flags).map_err(gone))
    }

    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<(), FsError> {
        let _changing = self.changing(ino);
        self.tried(&[], &[ino], self.client.remove_xattr(ino, name))
    }

    pub fn list(&self, handle: u64, dir: Ino, offset: u64) -> Result<Arc<[DirEntry]>, FsError> {
        self.dirs.get(handle).listing(offset, || listing::list(&self.client, dir))
    }

    /// Sets a lock and answers; waits for it on a thread of its own.
    pub fn set_lock(self: &Arc<Core>, want: Want, sleep: bool, reply: ReplyEmpty) {
        // Asked first: the end may come in between.
        let ending = self.locks.is_ending(&want);
        match self.locks.set(&self.client, &want) {
            Err(error) if error.errno() == Errno::EAGAIN && sleep => {
                self.on_a_waiter(want, reply, Locks::wait)
            }
            Err(error) if error.errno() == Errno::EAGAIN && ending => {
                self.on_a_waiter(want, reply, Locks::set_after_release);
            }
            result => self.answer_lock(&want, result, reply),
        }
    }

    /// Takes a lock in a thread of its own.
    fn on_a_waiter(
        self: &Arc<Core>,
        want: Want,
        reply: ReplyEmpty,
        take: fn(&Locks, &Client, &Want) -> Result<(), FsError>,
    ) {
        if !self.locks.begin_wait() {
            return reply.error(fuser::Errno::ENOLCK);
        }
        let core = self.clone();
        let wait = move || {
            let result = take(&core.locks, &core.client, &want);
            core.locks.end_wait();
            core.answer_lock(&want, result, reply);
        };
        let thread = std::thread::Builder::new().name("tidepool-lock".into()).stack_size(WAITER_STACK_BYTES);
        if let Err(error) = thread.spawn(wait) {
            // The reply went with the closure and has told the program EIO.
            self.locks.end_wait();
            self.reporter
                .report(&FsError::new(Errno::EAGAIN, format!("no thread to wait for a lock: {error}")));
        }
    }

    fn answer_lock(&self, want: &Want, result: Result<(), FsError>, reply: ReplyEmpty) {
        use tidepool_client::LockMode;
        match result {
            Err(error) => reply.error(self.errno(&error)),
            // Whoever gets a lock must see what the one before wrote, on whatever node.
            Ok(()) if want.mode != LockMode::Unlock && !self.direct_io => {
                self.invalidate(want.ino, || reply.ok())
            }
            Ok(()) => reply.ok(),
        }
    }

    /// Has the kernel drop an object's pages, then answers. Never from a thread that serves
    /// requests: the kernel may have to write pages back first, by a request to us.
    fn invalidate(&self, ino: Ino, answer: impl FnOnce() + Send + 'static) {
        let answer: Box<dyn FnOnce() + Send> = Box::new(answer);
        let left = match self.invalidations.get() {
            Some(queue) => queue.send((self.number(ino), answer)).err().map(|unsent| unsent.0.1),
            None => Some(answer),
        };
        if let Some(answer) = left {
            answer();
        }
    }

    /// Starts what keeps leases, if there are to be any.
    pub fn start_keeper(&self, notifier: Notifier) -> std::io::Result<()> {
        self.keeper.as_ref().map_or(Ok(()), |keeper| keeper.start(notifier))
    }

    /// Starts the thread that invalidates. It ends with the last user of this core.
    pub fn start_invalidator(&self, notifier: Notifier) -> std::io::Result<()> {
        let (queue, jobs) = channel();
        std::thread::Builder::new()
            .name("tidepool-inval".into())
            .spawn(move || run_invalidator(&jobs, &notifier))?;
        // Set once per mount.
        let _ = self.invalidations.set(queue);
        Ok(())
    }
}

fn run_invalidator(jobs: &Receiver<Invalidation>, notifier: &Notifier) {
    for (number, answer) in jobs {
        // Length 0 means the whole file. An error means that the kernel keeps nothing of it
        // or that the mount is gone.
        let _ = notifier.inval_inode(number, 0, 0);
        answer();
    }
}

/// What a change of names or attributes is told when nothing of it was done.
fn is_refusal(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::EPERM
            | Errno::ENOENT
            | Errno::EACCES
            | Errno::EBUSY
            | Errno::EEXIST
            | Errno::EXDEV
            | Errno::ENOTDIR
            | Errno::EISDIR
            | Errno::EINVAL
            | Errno::EROFS
            | Errno::EMLINK
            | Errno::ENAMETOOLONG
            | Errno::ENOTEMPTY
            | Errno::ELOOP
            | Errno::ENODATA
            | Errno::ERANGE
            | Errno::E2BIG
            | Errno::EOPNOTSUPP
            | Errno::ESTALE
    )
}

/// The error for an object that is gone although the kernel has its id. "Stale" makes the
/// kernel walk the path again: the name may lead to another object by now, as it does when
/// somebody replaces the file by rename between the kernel's lookup and its open.
pub fn gone(error: FsError) -> FsError {
    if error.errno() == Errno::ENOENT { Errno::ESTALE.into() } else { error }
}

/// Attributes that the kernel may keep. Those with set-ID bits change when somebody else writes, as we do it, not the kernel.
fn keepable(attr: &Attr, until: Option<Instant>) -> Option<Instant> {
    until.filter(|_| attr.is_dir() || !has_set_id(attr.mode))
}

/// A directory's record at its home has no size and may have no link count.
fn presentable(mut attr: Attr) -> Attr {
    if attr.is_dir() {
        attr.nlink = attr.nlink.max(2);
        attr.size = DIR_SIZE;
    }
    attr
}
