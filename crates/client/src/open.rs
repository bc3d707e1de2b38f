//! Opening, looking at and closing objects by path.

use crate::calls::{expect_reply, lock};
use crate::perm::{self, EXEC, READ, WRITE};
use crate::retry::Stop;
use crate::walk::{Entry, Spot, vanished};
use crate::{Client, Cred, FsError, Walk};
use tidepool_placement::entry_owner;
use tidepool_types::{Attr, DaemonIndex, Errno, FileKind, Ino, Layout, NAME_MAX, Placement, SetAttr};
use tidepool_wire::message::{NewObject, Reply, Request};

/// What became of one try to open the last component.
enum Last {
    Entry(Entry),
    /// A directory named without a last component: `/`, `.`, `..`.
    Itself,
}

impl Client {
    /// Opens by path as open(2) does: honours `O_CREAT`, `O_EXCL`, `O_TRUNC`, `O_NOFOLLOW`,
    /// `O_DIRECTORY` and `O_PATH`, checks permissions, and holds regular files open until
    /// [`Client::release`]. `mode` is reduced by the umask.
    pub fn open(
        &self,
        base: Ino,
        path: &[u8],
        flags: i32,
        mode: u32,
        cred: &Cred,
    ) -> Result<Walk<Attr>, FsError> {
        let Some(recorder) = &self.recorder else { return self.open_path(base, path, flags, mode, cred) };
        let begin = recorder.begin();
        let opened = self.open_path(base, path, flags, mode, cred)?;
        if let Walk::Found(attr) = &opened
            && attr.kind() == FileKind::Regular
            && flags & libc::O_PATH == 0
        {
            recorder.opened(begin, attr.ino, (base == Ino::ROOT).then_some(path));
        }
        Ok(opened)
    }

    fn open_path(
        &self,
        base: Ino,
        path: &[u8],
        flags: i32,
        mode: u32,
        cred: &Cred,
    ) -> Result<Walk<Attr>, FsError> {
        if path.is_empty() {
            return Err(Errno::ENOENT.into());
        }
        let opened = self.retrying(|generation| {
            let mut walker = self.walker(generation, base, path, cred)?;
            loop {
                let spot = match walker.next_spot()? {
                    Walk::Found(spot) => spot,
                    Walk::Escape(path) => return Ok(Walk::Escape(path)),
                };
                let entry = match self.open_last(generation, &spot, flags, mode, cred)? {
                    Last::Itself => {
                        let attr = self.home_attr(spot.dir.ino)?;
                        return Ok(Walk::Found((attr, false)));
                    }
                    Last::Entry(entry) => entry,
                };
                if entry.kind == FileKind::Symlink {
                    let keep = flags & libc::O_NOFOLLOW != 0 && !spot.wants_dir;
                    if keep && flags & libc::O_PATH != 0 {
                        return Ok(Walk::Found((self.entry_attr(&entry)?, false)));
                    }
                    if keep {
                        return Err(Errno::ELOOP.into());
                    }
                    if let Some(path) = walker.follow(entry.ino)? {
                        return Ok(Walk::Escape(path));
                    }
                    continue;
                }
                if spot.wants_dir && entry.kind != FileKind::Directory {
                    self.forget_handle(&entry, flags);
                    return Err(Errno::ENOTDIR.into());
                }
                // O_PATH handles are not registered: they keep nothing alive.
                let path_only = flags & libc::O_PATH != 0;
                let attr = if path_only { self.entry_attr(&entry)? } else { self.held_attr(&entry)? };
                return Ok(Walk::Found((attr, entry.created)));
            }
        })?;
        match opened {
            Walk::Escape(path) => Ok(Walk::Escape(path)),
            Walk::Found((attr, created)) => self.finish_open(attr, created, flags, cred).map(Walk::Found),
        }
    }

    /// Looks the last component up, or makes it. Registers a handle where the owner is also
    /// the object's home.
    fn open_last(
        &self,
        generation: u64,
        spot: &Spot,
        flags: i32,
        mode: u32,
        cred: &Cred,
    ) -> Result<Last, Stop> {
        let Some(name) = &spot.name else {
            let makes = flags & libc::O_CREAT != 0;
            return if makes { Err(Errno::EISDIR.into()) } else { Ok(Last::Itself) };
        };
        if flags & libc::O_CREAT == 0 {
            let open = flags & libc::O_PATH == 0;
            return Ok(Last::Entry(self.lookup_entry(generation, spot.dir.ino, name, open)?));
        }
        if spot.wants_dir {
            return Err(Errno::EISDIR.into());
        }
        let excl = flags & libc::O_EXCL != 0;
        if self.check_perm((&spot.dir).into(), cred, WRITE).is_err() {
            // Only an existing file can be opened here.
            let entry = self.lookup_entry(generation, spot.dir.ino, name, true);
            return match entry {
                Ok(_) if excl => Err(Errno::EEXIST.into()),
                Err(Stop::Fs(error)) if error.errno() == Errno::ENOENT => Err(Errno::EACCES.into()),
                other => Ok(Last::Entry(other?)),
            };
        }
        let mode = FileKind::Regular.mode_bits() | (mode & 0o7777);
        let handed = self.handed_down(&spot.dir, mode, cred)?;
        let object = self.new_object(spot, name, cred, handed.mode, (0, Box::default()));
        let entry = self.create_entry(generation, spot.dir.ino, name, object, excl, true)?;
        Ok(Last::Entry(self.give_lists(entry, &handed)?))
    }

    pub(crate) fn new_object(
        &self,
        spot: &Spot,
        name: &[u8],
        cred: &Cred,
        mode: u32,
        (rdev, target): (u64, Box<[u8]>),
    ) -> NewObject {
        let (gid, mode) = perm::inherit((&spot.dir).into(), cred, mode);
        let kind = FileKind::from_mode(mode).unwrap_or(FileKind::Regular);
        let layout = self.layout_for(kind, spot.dir.layout, name);
        NewObject { mode, uid: cred.uid, gid, rdev, layout, target }
    }

    pub(crate) fn create_entry(
        &self,
        generation: u64,
        dir: Ino,
        name: &[u8],
        object: NewObject,
        excl: bool,
        open: bool,
    ) -> Result<Entry, Stop> {
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        let daemon = entry_owner(dir, name, self.members());
        let placement = object.layout.map(Layout::placement);
        let chooses_home = matches!(placement, Some(Placement::Local | Placement::Group));
        if chooses_home && object.mode & libc::S_IFMT == libc::S_IFREG {
            return self.create_at_home(generation, daemon, (dir, name), object, (excl, open));
        }
        self.create_at(generation, daemon, (dir, name), object, (excl, open))
    }

    /// Object and entry in one step, both at `daemon`.
    pub(crate) fn create_at(
        &self,
        generation: u64,
        daemon: DaemonIndex,
        (dir, name): (Ino, &[u8]),
        object: NewObject,
        (excl, open): (bool, bool),
    ) -> Result<Entry, Stop> {
        let request = Request::Create { parent: dir, name: name.into(), object, excl, open };
        let answer = self.call_entry_with(generation, daemon, (dir, name), &request, self.keep_flag())?;
        let (reply, flags) = (answer.reply, answer.flags);
        Ok(
            expect_reply!(self, daemon, reply, Reply::Entry { ino, kind, attr, created } => Entry { ino, kind, attr, created, flags })?,
        )
    }

    /// Attributes of an opened entry, with a handle registered at its home.
    fn held_attr(&self, entry: &Entry) -> Result<Attr, Stop> {
        if entry.kind != FileKind::Regular {
            return self.entry_attr(entry);
        }
        match &entry.attr {
            Some(attr) => {
                self.note_handle(entry.ino);
                Ok(self.settled_attr(attr.clone())?)
            }
            None => self.reopen(entry.ino).map_err(|e| vanished(entry.ino, e)),
        }
    }

    fn forget_handle(&self, entry: &Entry, flags: i32) {
        if flags & libc::O_PATH == 0 && entry.kind == FileKind::Regular && entry.attr.is_some() {
            self.call_one_way(entry.ino.home(), &Request::Close { ino: entry.ino });
        }
    }

    pub(crate) fn note_handle(&self, ino: Ino) {
        *lock(&self.handles).entry(ino).or_default() += 1;
    }

    /// The checks that need the attributes, and truncation.
    fn finish_open(&self, attr: Attr, created: bool, flags: i32, cred: &Cred) -> Result<Attr, FsError> {
        let checked = if created { Ok(()) } else { self.check_open(&attr, flags, cred) };
        if let Err(errno) = checked {
            if attr.kind() == FileKind::Regular && flags & libc::O_PATH == 0 {
                self.release(attr.ino);
            }
            return Err(errno.into());
        }
        self.remember_layout(&attr);
        let truncates = flags & libc::O_TRUNC != 0 && flags & libc::O_PATH == 0 && !created;
        if truncates && attr.kind() == FileKind::Regular {
            let empty = SetAttr { size: Some(0), ..SetAttr::default() };
            return self.set_attr(attr.ino, &empty, cred);
        }
        Ok(attr)
    }

    fn check_open(&self, attr: &Attr, flags: i32, cred: &Cred) -> Result<(), Errno> {
        if flags & libc::O_DIRECTORY != 0 && !attr.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        if flags & libc::O_PATH != 0 {
            return Ok(());
        }
        let access = flags & libc::O_ACCMODE;
        let writes = access != libc::O_RDONLY || flags & libc::O_TRUNC != 0;
        if attr.is_dir() && (writes || flags & libc::O_CREAT != 0) {
            return Err(Errno::EISDIR);
        }
        let mut mask = 0;
        if access != libc::O_WRONLY {
            mask |= READ;
        }
        if writes {
            mask |= WRITE;
        }
        self.check_perm(attr.into(), cred, mask)
    }

    /// Registers a further handle on an object by its id.
    pub fn reopen(&self, ino: Ino) -> Result<Attr, FsError> {
        self.settle(ino)?;
        let reply = self.request(ino.home(), &Request::Open { ino })?;
        let attr = expect_reply!(self, ino.home(), reply, Reply::Attributes { attr } => attr)?;
        self.note_handle(ino);
        self.remember_layout(&attr);
        Ok(attr)
    }

    /// Gives a handle back. The last one of a nameless object lets it go.
    pub fn release(&self, ino: Ino) {
        let Some(recorder) = &self.recorder else { return self.let_go(ino) };
        let begin = recorder.begin();
        self.let_go(ino);
        recorder.released(begin, ino);
    }

    fn let_go(&self, ino: Ino) {
        // Who can tell somebody of a failure has settled the object before.
        let _ = self.settle(ino);
        let mut handles = lock(&self.handles);
        if let Some(count) = handles.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                handles.remove(&ino);
                self.direct.forget(ino);
                self.give_back(ino);
            }
        }
        drop(handles);
        self.tell_all_used();
        self.call_one_way(ino.home(), &Request::Close { ino });
    }

    /// Attributes of what a path names; with `follow`, of what a last symbolic link points to.
    pub fn stat(&self, base: Ino, path: &[u8], follow: bool, cred: &Cred) -> Result<Walk<Attr>, FsError> {
        match self.find(base, path, follow, cred)? {
            Walk::Found(attr) => self.complete_attr(attr).map(Walk::Found),
            Walk::Escape(path) => Ok(Walk::Escape(path)),
        }
    }

    /// The object a path names, as its home records it: for a directory without what the
    /// other daemons know of its entries.
    pub(crate) fn find(
        &self,
        base: Ino,
        path: &[u8],
        follow: bool,
        cred: &Cred,
    ) -> Result<Walk<Attr>, FsError> {
        self.retrying(|generation| {
            let mut walker = self.walker(generation, base, path, cred)?;
            loop {
                let spot = match walker.next_spot()? {
                    Walk::Found(spot) => spot,
                    Walk::Escape(path) => return Ok(Walk::Escape(path)),
                };
                let Some(name) = &spot.name else {
                    return Ok(Walk::Found(self.home_attr(spot.dir.ino)?));
                };
                let entry = self.lookup_entry(generation, spot.dir.ino, name, false)?;
                if entry.kind == FileKind::Symlink && (follow || spot.wants_dir) {
                    match walker.follow(entry.ino)? {
                        Some(path) => return Ok(Walk::Escape(path)),
                        None => continue,
                    }
                }
                if spot.wants_dir && entry.kind != FileKind::Directory {
                    return Err(Errno::ENOTDIR.into());
                }
                return Ok(Walk::Found(self.entry_attr(&entry)?));
            }
        })
    }

    /// The object that entry `name` of directory `dir` names, without following links: the
    /// step a kernel asks for. Attributes of directories are complete.
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr, FsError> {
        let attr = self.lookup_home(dir, name)?;
        self.complete_attr(attr)
    }

    /// Like [`Client::lookup`], but a directory's attributes are those of its home alone, so
    /// that a step of a path costs no request to all daemons. Its size, link count and times
    /// may lag; mode and owner do not.
    pub fn lookup_home(&self, dir: Ino, name: &[u8]) -> Result<Attr, FsError> {
        let attr = self.retrying(|generation| {
            self.dir_info(generation, dir)?;
            let entry = self.lookup_entry(generation, dir, name, false)?;
            self.entry_attr(&entry)
        })?;
        self.remember_layout(&attr);
        Ok(attr)
    }

    /// Checks access as access(2) does; `mask` holds `R_OK`, `W_OK`, `X_OK` or is `F_OK`.
    pub fn access(
        &self,
        base: Ino,
        path: &[u8],
        mask: i32,
        follow: bool,
        cred: &Cred,
    ) -> Result<Walk<()>, FsError> {
        let attr = match self.find(base, path, follow, cred)? {
            Walk::Found(attr) => attr,
            Walk::Escape(path) => return Ok(Walk::Escape(path)),
        };
        let mut wanted = 0;
        for (bit, right) in [(libc::R_OK, READ), (libc::W_OK, WRITE), (libc::X_OK, EXEC)] {
            if mask & bit != 0 {
                wanted |= right;
            }
        }
        self.check_perm((&attr).into(), cred, wanted)?;
        Ok(Walk::Found(()))
    }
}
