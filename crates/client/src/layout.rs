//! Layouts: which one a new object gets, where local files go, and what a directory says of its files.

use crate::calls::expect_reply;
use crate::retry::Stop;
use crate::walk::Entry;
use crate::{Client, Cred, FsError, Wanted};
use std::sync::PoisonError;
use tidepool_types::{Attr, DaemonIndex, Errno, FileKind, Ino, Layout, Placement};
use tidepool_wire::message::{NewObject, Reply, Request};

/// Layouts remembered; the table is emptied when it is full.
const LAYOUTS_MAX: usize = 1 << 16;

/// What became of a try to make a local file.
enum Made {
    Entry(Entry),
    /// The name was taken meanwhile.
    Taken,
}

impl Client {
    /// Layout of the file `ino`. It never changes, so it is asked for once.
    pub(crate) fn layout(&self, ino: Ino) -> Result<Layout, FsError> {
        let known = self.layouts.read().unwrap_or_else(PoisonError::into_inner).get(&ino).copied();
        if let Some(layout) = known {
            return Ok(layout);
        }
        let attr = self.home_attr(ino)?;
        self.remember_layout(&attr);
        // Objects without data have none, and every request about their data fails at their home.
        Ok(attr.layout.unwrap_or(Layout::LOCAL))
    }

    pub(crate) fn remember_layout(&self, attr: &Attr) {
        let (FileKind::Regular, Some(layout)) = (attr.kind(), attr.layout) else { return };
        let mut layouts = self.layouts.write().unwrap_or_else(PoisonError::into_inner);
        if layouts.len() >= LAYOUTS_MAX {
            layouts.clear();
        }
        layouts.insert(attr.ino, layout);
    }

    /// The daemon that keeps the chunk with the byte at `offset`.
    pub fn chunk_owner(&self, ino: Ino, layout: Layout, offset: u64) -> DaemonIndex {
        self.placer.chunk_owner(ino, layout, layout.chunk_at(offset))
    }

    /// True when a write of the bytes before `end` is one request to one daemon.
    pub fn is_one_step(&self, ino: Ino, end: u64) -> bool {
        self.layout(ino).is_ok_and(|layout| end <= layout.chunk_size())
    }

    /// What a new object records: a file how its data lie, a directory what it tells its files. First the hint that
    /// the name matches, then the directory, then the pool.
    pub(crate) fn layout_for(&self, kind: FileKind, dir: Option<Layout>, name: &[u8]) -> Option<Layout> {
        let is_dir = kind == FileKind::Directory;
        if !is_dir && kind != FileKind::Regular {
            return None;
        }
        let base = dir.unwrap_or(self.pool().layout);
        let hint = self.pool().hints.iter().find(|hint| hint.matches(name, is_dir));
        match hint.and_then(|hint| hint.wanted.on(base).ok()) {
            Some(layout) => Some(layout),
            None if is_dir => dir,
            None => Some(base),
        }
    }

    /// Where an object with placement "local" or "group" gets its home; none when it shall be local and no daemon is here.
    fn home_for(
        &self,
        layout: Option<Layout>,
        owner: DaemonIndex,
        dir: Ino,
        name: &[u8],
    ) -> Option<DaemonIndex> {
        match layout.filter(|layout| layout.placement() == Placement::Group) {
            Some(layout) => Some(self.placer.home_in_group(layout, owner, &self.node_daemons, (dir, name))),
            None => self.near_daemon(owner, dir, name),
        }
    }

    /// A daemon of this node for the data of a local file: the entry's owner when it is here.
    fn near_daemon(&self, owner: DaemonIndex, dir: Ino, name: &[u8]) -> Option<DaemonIndex> {
        if self.node_daemons.contains(&owner) {
            return Some(owner);
        }
        let count = self.node_daemons.len();
        (count > 0).then(|| self.node_daemons[usize::from(tidepool_placement::entry_owner(dir, name, count))])
    }

    /// Makes a file that shall lie on this node or in a group, or opens the one that has the name. The object comes first and then
    /// the entry: who dies in between leaves an object without a name, which wastes space.
    pub(crate) fn create_at_home(
        &self,
        generation: u64,
        owner: DaemonIndex,
        (dir, name): (Ino, &[u8]),
        object: NewObject,
        (excl, open): (bool, bool),
    ) -> Result<Entry, Stop> {
        let home = self.home_for(object.layout, owner, dir, name);
        let Some(home) = home.filter(|home| *home != owner) else {
            // Without a daemon here there is no local: the data go where those of other files go.
            let elsewhere = Wanted { placement: Some(Placement::Wide), ..Wanted::default() };
            let layout = if home.is_some() { object.layout } else { elsewhere.on(self.pool().layout).ok() };
            return self.create_at(
                generation,
                owner,
                (dir, name),
                NewObject { layout, ..object },
                (excl, open),
            );
        };
        loop {
            match self.lookup_entry(generation, dir, name, open && !excl) {
                Ok(_) if excl => return Err(Errno::EEXIST.into()),
                Err(Stop::Fs(error)) if error.errno() == Errno::ENOENT => {}
                other => return other,
            }
            match self.make_and_name(generation, (owner, home), (dir, name), &object, open)? {
                Made::Entry(entry) => return Ok(entry),
                Made::Taken if excl => return Err(Errno::EEXIST.into()),
                Made::Taken => {}
            }
        }
    }

    fn make_and_name(
        &self,
        generation: u64,
        (owner, home): (DaemonIndex, DaemonIndex),
        (dir, name): (Ino, &[u8]),
        object: &NewObject,
        open: bool,
    ) -> Result<Made, Stop> {
        let make = Request::MakeObject { object: object.clone(), open };
        let attr = expect_reply!(self, home, self.request(home, &make)?, Reply::Attributes { attr } => attr)?;
        let (ino, kind) = (attr.ino, attr.kind());
        let put = Request::PutDentry { parent: dir, name: name.into(), ino, kind };
        let named = self
            .call_entry(generation, owner, dir, name, &put)
            .and_then(|reply| Ok(expect_reply!(self, owner, reply, Reply::Done {} => ())?));
        let Err(stop) = named else {
            return Ok(Made::Entry(Entry { ino, kind, attr: Some(attr), created: true, flags: 0 }));
        };
        if matches!(&stop, Stop::Fs(error) if error.outcome_unknown()) {
            // The name may be there: the object must stay.
            return Err(stop);
        }
        if open {
            self.call_one_way(home, &Request::Close { ino });
        }
        self.request(home, &Request::Nlink { ino, delta: -1 })?;
        match stop {
            Stop::Fs(error) if error.errno() == Errno::EEXIST => Ok(Made::Taken),
            other => Err(other),
        }
    }

    /// Sets what a directory says of the files and directories made in it from now on; `None`: as the pool does. Only
    /// its owner may.
    pub fn set_layout(&self, dir: Ino, layout: Option<Layout>, cred: &Cred) -> Result<Attr, FsError> {
        let old = self.home_attr(dir)?;
        if !old.is_dir() {
            let text =
                "a file keeps the layout it was made with; set it for its directory, then copy the file";
            return Err(FsError::new(Errno::ENOTDIR, text));
        }
        if !self.relaxed() && !cred.is_root() && cred.uid != old.uid {
            return Err(Errno::EPERM.into());
        }
        if layout.is_some_and(|layout| layout.placement() == Placement::Weighted)
            && !self.placer.is_weighted()
        {
            return Err(FsError::new(
                Errno::EINVAL,
                "the daemons of this pool have no weights; start it with --weights",
            ));
        }
        if let Some(layout) = layout.filter(|layout| layout.placement() == Placement::Group) {
            self.check_group(layout)?;
        }
        let reply = self.request(dir.home(), &Request::SetLayout { dir, layout })?;
        let attr = expect_reply!(self, dir.home(), reply, Reply::Attributes { attr } => attr)?;
        // Clients keep directories with their layouts; as after a change of permissions, none may go on with the old one.
        self.tell_all(|| Request::Bump {})?;
        self.complete_attr(attr)
    }

    fn check_group(&self, layout: Layout) -> Result<(), FsError> {
        let text = match layout.named_group() {
            _ if !self.placer.is_grouped() => {
                "the daemons of this pool have no groups; start it with --groups".into()
            }
            Some(number) if self.placer.group(number).is_empty() => {
                format!("this pool has no group {number}; 'tidepool pool status' names them")
            }
            _ => return Ok(()),
        };
        Err(FsError::new(Errno::EINVAL, text))
    }

    /// What files made in a directory get, without hints.
    pub fn layout_in(&self, dir: &Attr) -> Layout {
        dir.layout.unwrap_or(self.pool().layout)
    }
}
