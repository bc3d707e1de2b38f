//! Access control lists: who may do what by them, and what is handed down to what is made.
//!
//! The home keeps a list and the mode that shows it together; an object's mode says whether it has one, so that nobody asks for
//! lists that are not there.

use crate::calls::expect_reply;
use crate::dirs::DirInfo;
use crate::perm::{self, Owned};
use crate::walk::Entry;
use crate::{Client, Cred, FsError};
use tidepool_types::acl::{ACCESS_LIST, Acl, Asker, DEFAULT_LIST, HAS_ACCESS_LIST, HAS_DEFAULT_LIST};
use tidepool_types::{Attr, Errno, FileKind, Ino, SetAttr};
use tidepool_wire::message::{Reply, Request};

const SET_GID: u32 = 0o2000;
const GROUP_CLASS: u32 = 0o070;

/// What an object is made with.
pub(crate) struct Handed {
    /// Type and permission bits.
    pub mode: u32,
    lists: Vec<(&'static [u8], Vec<u8>)>,
}

impl Client {
    /// The list that an object has, if it has one.
    fn list_of(&self, ino: Ino, name: &[u8]) -> Result<Option<Acl>, FsError> {
        let inode = self.get_inode(ino)?;
        let found = inode.xattrs.iter().find(|(known, _)| **known == *name);
        Ok(found.map(|(_, value)| Acl::parse(value)).transpose()?.flatten())
    }

    /// Checks that `cred` has all rights of `mask`, by the mode and, for those who do not own it, by the access list.
    pub(crate) fn check_rights(&self, object: Owned, cred: &Cred, mask: u32) -> Result<(), Errno> {
        let by_list = object.mode & HAS_ACCESS_LIST != 0 && !cred.is_root() && cred.uid != object.uid;
        let list = if by_list { self.list_of(object.ino, ACCESS_LIST).map_err(|e| e.errno())? } else { None };
        let Some(list) = list else { return perm::check(object, cred, mask) };
        let asker = Asker { uid: cred.uid, gid: cred.gid, groups: &cred.groups };
        if list.grants(&asker, object.gid, mask) { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// Permission of an open object, as `access` on its path would tell; `mask` holds `R_OK`, `W_OK`, `X_OK`.
    pub fn may(&self, attr: &Attr, cred: &Cred, mask: i32) -> Result<(), Errno> {
        self.check_rights(attr.into(), cred, mask as u32 & 7)
    }

    /// With what `mode` and the umask, or the default list of the directory in its place, have an object made.
    pub(crate) fn handed_down(&self, dir: &DirInfo, mode: u32, cred: &Cred) -> Result<Handed, FsError> {
        let kind = FileKind::from_mode(mode)?;
        if kind == FileKind::Symlink {
            return Ok(Handed { mode, lists: Vec::new() });
        }
        let has_list = dir.mode & HAS_DEFAULT_LIST != 0;
        let list = if has_list { self.list_of(dir.ino, DEFAULT_LIST)? } else { None };
        let Some(list) = list else {
            return Ok(Handed { mode: mode & !(cred.umask & 0o777), lists: Vec::new() });
        };
        let mut lists = Vec::new();
        if kind == FileKind::Directory {
            lists.push((DEFAULT_LIST, list.to_value()));
        }
        let access = list.handed_down(mode);
        let mut bits = access.bits();
        if !access.is_a_mode() {
            // Nobody of the group gets by the mask what the list does not give him: the bits come with the list.
            bits &= !GROUP_CLASS;
            lists.push((ACCESS_LIST, access.to_value()));
        }
        Ok(Handed { mode: (mode & !0o777) | bits, lists })
    }

    /// Gives an object that was just made its lists.
    pub(crate) fn give_lists(&self, mut entry: Entry, handed: &Handed) -> Result<Entry, FsError> {
        for (name, value) in handed.lists.iter().filter(|_| entry.created) {
            let attr = self.put_list(entry.ino, name, value)?;
            entry.attr = entry.attr.map(|_| attr);
            // What the home told of it is older.
            entry.flags = 0;
        }
        Ok(entry)
    }

    /// After a list was changed: who searches and makes things in a directory by what he knows of it is to look again.
    pub(crate) fn list_changed(&self, attr: &Attr, name: &[u8]) -> Result<(), FsError> {
        if attr.is_dir() && is_list(name) { self.tell_all(|| Request::Bump {}) } else { Ok(()) }
    }

    fn put_list(&self, ino: Ino, name: &[u8], value: &[u8]) -> Result<Attr, FsError> {
        let request = Request::SetXattr { ino, name: name.into(), value: value.into(), flags: 0 };
        let reply = self.request(ino.home(), &request)?;
        expect_reply!(self, ino.home(), reply, Reply::Attributes { attr } => attr)
    }

    /// Sets a list (`system.posix_acl_access`, `system.posix_acl_default`), or removes it where `value` is `None`, in the name of
    /// `cred`: by the owner only.
    pub fn change_list(
        &self,
        ino: Ino,
        name: &[u8],
        value: Option<&[u8]>,
        cred: &Cred,
    ) -> Result<(), FsError> {
        let old = self.home_attr(ino)?;
        if !self.relaxed() && !cred.is_root() && cred.uid != old.uid {
            return Err(Errno::EPERM.into());
        }
        match value {
            Some(value) => self.set_xattr(ino, name, value, 0)?,
            None => self.remove_xattr(ino, name)?,
        }
        let attr = self.home_attr(ino)?;
        let strange = !cred.is_root() && !cred.in_group(attr.gid);
        if name == ACCESS_LIST && value.is_some() && attr.mode & SET_GID != 0 && strange {
            let set = SetAttr { mode: Some(attr.mode & 0o7777 & !SET_GID), ..SetAttr::default() };
            self.set_attr(ino, &set, cred)?;
        }
        Ok(())
    }
}

/// True for the names of lists.
pub fn is_list(name: &[u8]) -> bool {
    name == ACCESS_LIST || name == DEFAULT_LIST
}
