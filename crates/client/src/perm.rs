//! Permission checks, as the kernel does them.
//!
//! They run in the client: a pool belongs to one user, whose processes all know its secret,
//! so the daemons have nobody to keep out (`docs/decisions/0002-permissions.md`).

use tidepool_types::{Errno, Ino};

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
    pub ino: Ino,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

impl From<&tidepool_types::Attr> for Owned {
    fn from(attr: &tidepool_types::Attr) -> Owned {
        Owned { ino: attr.ino, mode: attr.mode, uid: attr.uid, gid: attr.gid }
    }
}

impl From<&crate::dirs::DirInfo> for Owned {
    fn from(dir: &crate::dirs::DirInfo) -> Owned {
        Owned { ino: dir.ino, mode: dir.mode, uid: dir.uid, gid: dir.gid }
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
    let keep_gid = cred.is_root() || cred.in_group(object.gid);
    Ok(if keep_gid { mode } else { mode & !SET_GID })
}

/// Checks a chown by `cred`; the mode afterwards. What is no directory loses set-user-ID, and set-group-ID where that lets the
/// group run it or the group is not one's own (without, it once stood for mandatory locking).
pub fn chown_mode(object: Owned, cred: &Cred, uid: Option<u32>, gid: Option<u32>) -> Result<u32, Errno> {
    let to_self = uid.is_none_or(|u| u == object.uid) && gid.is_none_or(|g| cred.in_group(g));
    let allowed = cred.is_root() || (cred.uid == object.uid && to_self);
    if !allowed {
        return Err(Errno::EPERM);
    }
    let bits = object.mode & 0o7777;
    if object.mode & TYPE == IS_DIR {
        return Ok(bits);
    }
    let runs = bits & 0o010 != 0 || !(cred.is_root() || cred.in_group(object.gid));
    Ok(bits & !SET_UID & !(if runs { SET_GID } else { 0 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> Cred {
        Cred { uid, gid: uid, groups: vec![50], umask: 0 }
    }

    #[test]
    fn the_first_matching_class_decides() {
        let file = Owned { ino: Ino(9), mode: 0o100_047, uid: 1, gid: 50 };
        assert_eq!(check(file, &user(1), READ), Err(Errno::EACCES), "owner has no rights although others do");
        assert_eq!(check(file, &user(2), READ), Ok(()));
        assert_eq!(check(file, &user(2), WRITE), Err(Errno::EACCES));
        assert_eq!(check(file, &Cred { groups: vec![], ..user(3) }, READ | WRITE | EXEC), Ok(()));
    }

    #[test]
    fn root_may_all_but_run_what_nobody_may() {
        let file = Owned { ino: Ino(9), mode: 0o100_000, uid: 1, gid: 1 };
        assert_eq!(check(file, &user(0), READ | WRITE), Ok(()));
        assert_eq!(check(file, &user(0), EXEC), Err(Errno::EACCES));
        assert_eq!(check(Owned { mode: 0o040_000, ..file }, &user(0), EXEC), Ok(()));
    }

    #[test]
    fn set_id_bits_go_with_owners_and_groups_that_are_not_ones_own() {
        let file = |mode: u32| Owned { ino: Ino(9), mode: 0o100_000 | mode, uid: 1, gid: 60 };
        let dir = Owned { ino: Ino(9), mode: 0o040_755, uid: 1, gid: 60 };
        assert_eq!(chmod_bits(file(0o755), &user(1), 0o6755), Ok(0o4755));
        assert_eq!(chmod_bits(dir, &user(1), 0o2755), Ok(0o755));
        assert_eq!(chmod_bits(dir, &user(0), 0o2755), Ok(0o2755));
        assert_eq!(chmod_bits(file(0o755), &user(2), 0o755), Err(Errno::EPERM));
        for (mode, after) in [(0o6755, 0o755), (0o6745, 0o2745), (0o4644, 0o644), (0o644, 0o644)] {
            assert_eq!(chown_mode(file(mode), &user(0), Some(5), None), Ok(after), "{mode:o}");
        }
        assert_eq!(chown_mode(file(0o2745), &user(1), None, Some(50)), Ok(0o745), "of a group not one's own");
        assert_eq!(chown_mode(Owned { mode: 0o046_755, ..dir }, &user(0), Some(5), None), Ok(0o6755));
    }

    #[test]
    fn sticky_directories_protect_others_files() {
        let dir = Owned { ino: Ino(9), mode: 0o041_777, uid: 9, gid: 9 };
        let file = Owned { ino: Ino(9), mode: 0o100_666, uid: 1, gid: 1 };
        assert_eq!(check_sticky(dir, file, &user(2)), Err(Errno::EPERM));
        assert_eq!(check_sticky(dir, file, &user(1)), Ok(()));
        assert_eq!(check_sticky(dir, file, &user(9)), Ok(()));
    }
}
