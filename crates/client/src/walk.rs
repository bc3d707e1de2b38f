//! Resolving paths.
//!
//! A path is walked one component at a time through directories, which usually are in the
//! cache; the last component is left to the operation, so that most operations need one
//! request. Permissions to search each directory are checked on the way.

use crate::calls::expect_reply;
use crate::dirs::DirInfo;
use crate::known::Told;
use crate::perm::{self, EXEC};
use crate::retry::Stop;
use crate::{Client, Cred, FsError};
use tidepool_placement::entry_owner;
use tidepool_types::{Attr, Errno, FileKind, Ino, NAME_MAX};
use tidepool_wire::message::{Reply, Request};
use tidepool_wire::record::Inode;

/// Most symbolic links followed in one path, as in the kernel.
const LINKS_MAX: u32 = 40;

/// The result of an operation on a path, or where the path leads outside the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Walk<T> {
    Found(T),
    /// An absolute path outside the pool, reached through a symbolic link or `..`.
    Escape(Vec<u8>),
}

impl<T> Walk<T> {
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Walk<U> {
        match self {
            Walk::Found(value) => Walk::Found(f(value)),
            Walk::Escape(path) => Walk::Escape(path),
        }
    }

    /// The value; a path that leads outside becomes `EXDEV`.
    pub fn inside(self) -> Result<T, FsError> {
        match self {
            Walk::Found(value) => Ok(value),
            Walk::Escape(path) => Err(FsError::new(
                Errno::EXDEV,
                format!("the path leads outside the pool, to {}", String::from_utf8_lossy(&path)),
            )),
        }
    }
}

/// An entry and what is known of its object.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub ino: Ino,
    pub kind: FileKind,
    pub attr: Option<Attr>,
    pub created: bool,
    /// Of the reply that told of it: what may be kept.
    pub flags: u16,
}

/// Where a path ends: a name in a directory, or a directory itself (`/`, `.`, `..`).
pub(crate) struct Spot {
    pub dir: DirInfo,
    pub name: Option<Box<[u8]>>,
    /// The path ended in a slash.
    pub wants_dir: bool,
}

/// A walk under way.
pub(crate) struct Walker<'a> {
    client: &'a Client,
    cred: &'a Cred,
    pub generation: u64,
    dir: DirInfo,
    rest: Vec<u8>,
    links: u32,
}

impl Client {
    pub(crate) fn walker<'a>(
        &'a self,
        generation: u64,
        base: Ino,
        path: &[u8],
        cred: &'a Cred,
    ) -> Result<Walker<'a>, Stop> {
        let dir = self.dir_info(generation, base)?;
        Ok(Walker { client: self, cred, generation, dir, rest: path.to_vec(), links: 0 })
    }

    /// A directory by its id, checked to exist under this generation.
    pub(crate) fn dir_info(&self, generation: u64, dir: Ino) -> Result<DirInfo, Stop> {
        if let Some(info) = self.dirs.info(dir) {
            return Ok(info);
        }
        let inode = self.get_inode(dir)?;
        if !inode.attr.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        let info = DirInfo::of(&inode);
        self.dirs.add(generation, info, None);
        Ok(info)
    }

    pub(crate) fn get_inode(&self, ino: Ino) -> Result<Inode, FsError> {
        let reply = self.request(ino.home(), &Request::GetInode { ino })?;
        expect_reply!(self, ino.home(), reply, Reply::Object { inode } => inode)
    }

    /// Looks an entry up at its owner.
    pub(crate) fn lookup_entry(
        &self,
        generation: u64,
        dir: Ino,
        name: &[u8],
        open: bool,
    ) -> Result<Entry, Stop> {
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        let daemon = entry_owner(dir, name, self.members());
        if !open && let Some(told) = self.known(generation, daemon, dir, name) {
            return match told {
                Told::Absent => Err(Errno::ENOENT.into()),
                Told::Attr(attr) => {
                    Ok(Entry { ino: attr.ino, kind: attr.kind(), attr: Some(attr), created: false, flags: 0 })
                }
            };
        }
        let request = Request::Lookup { parent: dir, name: name.into(), open };
        let reply = self.call_entry(generation, daemon, dir, name, &request)?;
        Ok(
            expect_reply!(self, daemon, reply, Reply::Entry { ino, kind, attr, created } => Entry { ino, kind, attr, created, flags: 0 })?,
        )
    }

    /// Attributes of an entry's object: those that came with it, or asked for at its home.
    pub(crate) fn entry_attr(&self, entry: &Entry) -> Result<Attr, Stop> {
        match &entry.attr {
            Some(attr) => Ok(self.settled_attr(attr.clone())?),
            None => self.home_attr(entry.ino).map_err(|e| vanished(entry.ino, e)),
        }
    }

    pub(crate) fn home_attr(&self, ino: Ino) -> Result<Attr, FsError> {
        self.settle(ino)?;
        if let Some(attr) = self.known_attr(ino) {
            return Ok(attr);
        }
        let reply = self.request(ino.home(), &Request::GetAttr { ino })?;
        expect_reply!(self, ino.home(), reply, Reply::Attributes { attr } => attr)
    }

    pub(crate) fn check_perm(&self, object: perm::Owned, cred: &Cred, mask: u32) -> Result<(), Errno> {
        if self.relaxed() { Ok(()) } else { self.check_rights(object, cred, mask) }
    }
}

/// Between the look at an entry and the look at its object, both may have gone.
pub(crate) fn vanished(ino: Ino, error: FsError) -> Stop {
    if error.errno() == Errno::ENOENT { Stop::Vanished(ino) } else { Stop::Fs(error) }
}

impl Walker<'_> {
    /// Walks to the last component without looking it up.
    pub fn next_spot(&mut self) -> Result<Walk<Spot>, Stop> {
        loop {
            let (name, more, wants_dir) = self.take_component();
            match name.as_slice() {
                b"" => return Ok(Walk::Found(Spot { dir: self.dir, name: None, wants_dir: true })),
                b"." => {}
                b".." => {
                    self.may_search()?;
                    if self.dir.ino == Ino::ROOT {
                        return Ok(Walk::Escape(self.above_root()));
                    }
                    self.dir = self.client.dir_info(self.generation, self.dir.parent)?;
                }
                _ if !more => {
                    self.may_search()?;
                    return Ok(Walk::Found(Spot { dir: self.dir, name: Some(name.into()), wants_dir }));
                }
                _ => {
                    self.may_search()?;
                    if let Some(path) = self.enter(&name)? {
                        return Ok(Walk::Escape(path));
                    }
                }
            }
        }
    }

    /// Cuts the next component off the rest: the name, whether another follows, and whether
    /// a slash follows.
    fn take_component(&mut self) -> (Vec<u8>, bool, bool) {
        let start = self.rest.iter().position(|b| *b != b'/').unwrap_or(self.rest.len());
        let tail = &self.rest[start..];
        let end = tail.iter().position(|b| *b == b'/').unwrap_or(tail.len());
        let (name, after) = tail.split_at(end);
        let more = after.iter().any(|b| *b != b'/');
        let result = (name.to_vec(), more, !after.is_empty());
        self.rest = after.to_vec();
        result
    }

    fn may_search(&self) -> Result<(), Stop> {
        Ok(self.client.check_perm((&self.dir).into(), self.cred, EXEC)?)
    }

    /// Steps into a directory, through a symbolic link when it is one. An outside path when
    /// the link leads there.
    fn enter(&mut self, name: &[u8]) -> Result<Option<Vec<u8>>, Stop> {
        if let Some(info) = self.client.dirs.entry(self.dir.ino, name) {
            self.dir = info;
            return Ok(None);
        }
        let entry = self.client.lookup_entry(self.generation, self.dir.ino, name, false)?;
        match entry.kind {
            FileKind::Directory => {
                let attr = self.client.entry_attr(&entry)?;
                let info = DirInfo::from_attr(&attr, self.dir.ino);
                self.client.dirs.add(self.generation, info, Some((self.dir.ino, name)));
                self.dir = info;
                Ok(None)
            }
            FileKind::Symlink => self.follow(entry.ino),
            _ => Err(Errno::ENOTDIR.into()),
        }
    }

    /// Puts a link's target before the rest of the path; the path outside when it leads there.
    pub fn follow(&mut self, link: Ino) -> Result<Option<Vec<u8>>, Stop> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Errno::ELOOP.into());
        }
        let inode = self.client.get_inode(link).map_err(|e| vanished(link, e))?;
        let mut path = inode.target.into_vec();
        path.extend_from_slice(&self.rest);
        if path.first() != Some(&b'/') {
            self.rest = path;
            return Ok(None);
        }
        let mount = self.client.mount();
        match path.strip_prefix(mount) {
            Some(inside) if inside.is_empty() || inside[0] == b'/' => {
                self.rest = inside.to_vec();
                self.dir = self.client.dir_info(self.generation, Ino::ROOT)?;
                Ok(None)
            }
            _ => Ok(Some(path)),
        }
    }

    /// The outside path of `..` at the root.
    fn above_root(&self) -> Vec<u8> {
        let mount = self.client.mount();
        let cut = mount.iter().rposition(|b| *b == b'/').unwrap_or(0);
        let mut path = mount[..cut].to_vec();
        path.extend_from_slice(&self.rest);
        if path.is_empty() {
            path.push(b'/');
        }
        path
    }
}
