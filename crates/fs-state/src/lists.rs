//! Access control lists of objects: attributes that go with the mode. Each is changed together with it, in one record.

use tidepool_types::acl::{ACCESS_LIST, Acl, DEFAULT_LIST, HAS_ACCESS_LIST, HAS_DEFAULT_LIST};
use tidepool_types::{Errno, FileKind};
use tidepool_wire::record::Inode;

pub fn is_list(name: &[u8]) -> bool {
    flag_of(name) != 0
}

fn flag_of(name: &[u8]) -> u32 {
    match name {
        _ if name == ACCESS_LIST => HAS_ACCESS_LIST,
        _ if name == DEFAULT_LIST => HAS_DEFAULT_LIST,
        _ => 0,
    }
}

/// What an attribute that is set holds, with what it means for the mode done; `None` when nothing of it is kept as an attribute.
pub fn before_set(inode: &mut Inode, name: &[u8], value: &[u8]) -> Result<Option<Box<[u8]>>, Errno> {
    let flag = flag_of(name);
    if flag == 0 {
        return Ok(Some(value.into()));
    }
    match inode.attr.kind() {
        FileKind::Symlink => return Err(Errno::EOPNOTSUPP),
        kind if flag == HAS_DEFAULT_LIST && kind != FileKind::Directory => return Err(Errno::EACCES),
        _ => {}
    }
    let Some(list) = Acl::parse(value)? else {
        remove(inode, name);
        return Ok(None);
    };
    if flag == HAS_ACCESS_LIST {
        inode.attr.mode = (inode.attr.mode & !0o777) | list.bits();
        if list.is_a_mode() {
            remove(inode, name);
            return Ok(None);
        }
    }
    inode.attr.mode |= flag;
    Ok(Some(list.to_value().into()))
}

pub fn remove(inode: &mut Inode, name: &[u8]) {
    inode.attr.mode &= !flag_of(name);
    inode.xattrs.retain(|(known, _)| **known != *name);
}

/// Changes the permission bits (07777), and the access list with them.
pub fn change_mode(inode: &mut Inode, mode: u32) -> Result<(), Errno> {
    inode.attr.mode = (inode.attr.mode & !0o7777) | (mode & 0o7777);
    if inode.attr.mode & HAS_ACCESS_LIST == 0 {
        return Ok(());
    }
    let found = inode.xattrs.iter_mut().find(|(name, _)| **name == *ACCESS_LIST);
    let (_, value) = found.ok_or(Errno::EIO)?;
    let list = Acl::parse(value)?.ok_or(Errno::EIO)?;
    *value = list.with_bits(mode).to_value().into();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_types::{Attr, Ino, TimeSpec};

    const LIST: &[u8] =
        b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x06\0\xe8\x03\0\0\x04\0\x04\0\xff\xff\xff\xff\
        \x10\0\x06\0\xff\xff\xff\xff\x20\0\x01\0\xff\xff\xff\xff";
    const PLAIN: &[u8] =
        b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x04\0\x04\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff";

    fn inode(mode: u32) -> Inode {
        let time = TimeSpec::default();
        let attr = Attr {
            ino: Ino(5),
            mode,
            nlink: 1,
            uid: 1,
            gid: 1,
            size: 0,
            blocks: 0,
            rdev: 0,
            atime: time,
            mtime: time,
            ctime: time,
            layout: Some(tidepool_types::Layout::default()),
        };
        Inode { attr, parent: Ino::ROOT, target: Box::default(), xattrs: Vec::new() }
    }

    fn set(inode: &mut Inode, name: &[u8], value: &[u8]) -> Result<bool, Errno> {
        let kept = before_set(inode, name, value)?;
        let is_kept = kept.is_some();
        inode.xattrs.extend(kept.map(|value| (name.into(), value)));
        Ok(is_kept)
    }

    #[test]
    fn a_list_shows_in_the_mode_and_follows_it() {
        let mut file = inode(0o104_600);
        assert_eq!(set(&mut file, ACCESS_LIST, LIST), Ok(true));
        assert_eq!(file.attr.mode, 0o104_761 | HAS_ACCESS_LIST);
        change_mode(&mut file, 0o640).unwrap();
        assert_eq!((file.attr.mode, file.attr.st_mode()), (0o100_640 | HAS_ACCESS_LIST, 0o100_640));
        let list = Acl::parse(&file.xattrs[0].1).unwrap().unwrap();
        assert_eq!(list.bits(), 0o640);
        assert_eq!(set(&mut file, ACCESS_LIST, PLAIN), Ok(false), "a list that a mode says");
        assert_eq!((file.attr.mode, file.xattrs.len()), (0o100_644, 0));
    }

    #[test]
    fn lists_belong_to_what_can_have_them() {
        let mut dir = inode(0o040_755);
        assert_eq!(set(&mut dir, DEFAULT_LIST, LIST), Ok(true));
        assert_eq!(dir.attr.mode, 0o040_755 | HAS_DEFAULT_LIST);
        assert_eq!(set(&mut dir, DEFAULT_LIST, &LIST[..4]), Ok(false), "an empty list removes it");
        assert_eq!((dir.attr.mode, dir.xattrs.len()), (0o040_755, 0));
        assert_eq!(set(&mut inode(0o100_644), DEFAULT_LIST, LIST), Err(Errno::EACCES));
        assert_eq!(set(&mut inode(0o120_777), ACCESS_LIST, LIST), Err(Errno::EOPNOTSUPP));
        assert_eq!(set(&mut dir, ACCESS_LIST, &LIST[..9]), Err(Errno::EINVAL));
        assert_eq!(set(&mut dir, b"user.x", b"any"), Ok(true));
    }
}
