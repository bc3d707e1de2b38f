//! Permission checks, as the kernel does them.
//!
//! They run in the client: a pool belongs to one user, whose processes all know its secret,
//! so the daemons have nobody to keep out (`docs/decisions/0002-permissions.md`).

use tidepool_types::Errno;

pub const READ: u32 = 4;
pub const WRITE: u32 = 2;
pub const EXEC: u32 = 1;

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const STICKY: u32 = 0o1000;
const IS_DIR: u32 = 0o040_000;
const TYPE: u32 = 0o170_000;

/// On whose behalf an operation is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cred {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub umask: u32,
}

impl Cred {
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    pub fn is_root(&self) -> bool {
        self.uid == 0
    }
}

/// Who owns something and what its mode is.
#[derive(Clone, Copy)]
pub struct Owned {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

impl From<&tidepool_types::Attr> for Owned {
    fn from(attr: &tidepool_types::Attr) -> Owned {
        Owned { mode: attr.mode, uid: attr.uid, gid: attr.gid }
    }
}

impl From<&crate::dirs::DirInfo> for Owned {
    fn from(dir: &crate::dirs::DirInfo) -> Owned {
        Owned { mode: dir.mode, uid: dir.uid, gid: dir.gid }
    }
}

/// Checks that `cred` has all rights of `mask` (READ, WRITE, EXEC).
pub fn check(object: Owned, cred: &Cred, mask: u32) -> Result<(), Errno> {
    if cred.is_root() {
        let runnable = object.mode & TYPE == IS_DIR || object.mode & 0o111 != 0;
        return if mask & EXEC == 0 || runnable { Ok(()) } else { Err(Errno::EACCES) };
    }
    let granted = if cred.uid == object.uid {
        object.mode >> 6
    } else if cred.in_group(object.gid) {
        object.mode >> 3
    } else {
        object.mode
    };
    if granted & mask == mask { Ok(()) } else { Err(Errno::EACCES) }
}

/// Checks the right to remove or rename an entry of a sticky directory.
pub fn check_sticky(dir: Owned, object: Owned, cred: &Cred) -> Result<(), Errno> {
    let allowed = dir.mode & STICKY == 0 || cred.is_root() || cred.uid == dir.uid || cred.uid == object.uid;
    if allowed { Ok(()) } else { Err(Errno::EPERM) }
}

pub fn is_sticky(mode: u32) -> bool {
    mode & STICKY != 0
}

/// Group and mode of an object made in `dir`: set-group-ID directories hand both on.
pub fn inherit(dir: Owned, cred: &Cred, mode: u32) -> (u32, u32) {
    if dir.mode & SET_GID == 0 {
        return (cred.gid, mode);
    }
    let is_dir = mode & TYPE == IS_DIR;
    (dir.gid, if is_dir { mode | SET_GID } else { mode })
}

/// Permission bits after a chmod by `cred`: a group one is not in loses set-group-ID.
pub fn chmod_bits(object: Owned, cred: &Cred, mode: u32) -> Result<u32, Errno> {
    if !cred.is_root() && cred.uid != object.uid {
        return Err(Errno::EPERM);
    }
    let keep_gid = cred.is_root() || cred.in_group(object.gid) || object.mode & TYPE == IS_DIR;
    Ok(if keep_gid { mode } else { mode & !SET_GID })
}

/// Checks a chown by `cred`; the mode afterwards, without set-ID bits for files of users.
pub fn chown_mode(object: Owned, cred: &Cred, uid: Option<u32>, gid: Option<u32>) -> Result<u32, Errno> {
    let to_self = uid.is_none_or(|u| u == object.uid) && gid.is_none_or(|g| cred.in_group(g));
    let allowed = cred.is_root() || (cred.uid == object.uid && to_self);
    if !allowed {
        return Err(Errno::EPERM);
    }
    let is_file = object.mode & TYPE != IS_DIR;
    let drops = is_file && object.mode & 0o111 != 0;
    Ok(if drops { object.mode & 0o7777 & !(SET_UID | SET_GID) } else { object.mode & 0o7777 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> Cred {
        Cred { uid, gid: uid, groups: vec![50], umask: 0 }
    }

    #[test]
    fn the_first_matching_class_decides() {
        let file = Owned { mode: 0o100_047, uid: 1, gid: 50 };
        assert_eq!(check(file, &user(1), READ), Err(Errno::EACCES), "owner has no rights although others do");
        assert_eq!(check(file, &user(2), READ), Ok(()));
        assert_eq!(check(file, &user(2), WRITE), Err(Errno::EACCES));
        assert_eq!(check(file, &Cred { groups: vec![], ..user(3) }, READ | WRITE | EXEC), Ok(()));
    }

    #[test]
    fn root_may_all_but_run_what_nobody_may() {
        let file = Owned { mode: 0o100_000, uid: 1, gid: 1 };
        assert_eq!(check(file, &user(0), READ | WRITE), Ok(()));
        assert_eq!(check(file, &user(0), EXEC), Err(Errno::EACCES));
        assert_eq!(check(Owned { mode: 0o040_000, ..file }, &user(0), EXEC), Ok(()));
    }

    #[test]
    fn sticky_directories_protect_others_files() {
        let dir = Owned { mode: 0o041_777, uid: 9, gid: 9 };
        let file = Owned { mode: 0o100_666, uid: 1, gid: 1 };
        assert_eq!(check_sticky(dir, file, &user(2)), Err(Errno::EPERM));
        assert_eq!(check_sticky(dir, file, &user(1)), Ok(()));
        assert_eq!(check_sticky(dir, file, &user(9)), Ok(()));
    }
}
