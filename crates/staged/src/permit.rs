//! Who may read a kept location: its owner, and those it is shared with.
//!
//! The top of the location decides: group and others have nothing there. A reader has an entry in the access control lists of
//! the top and of all files and directories below, and in the default lists of directories, so that what is made in them
//! later is his to read as well. Who comes gets the top last, when all below it is his to read; who goes loses it first.
//!
//! Everything happens in the owner's name, through descriptors that name the object itself (`O_PATH`, no link is followed), and to
//! what belongs to him only: what was looked at is what is changed, whatever is put in its place meanwhile.

use crate::acl::{ACCESS, Acl, DEFAULT, Malformed};
use crate::execute::Failed;
use crate::tasks::Run;
use rustix::buffer::spare_capacity;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, XattrFlags, chmodat, fstat, getxattr, openat,
    openat2, removexattr, setxattr,
};
use rustix::io::Errno as Sys;
use std::fmt::Display;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use tidepool_stage::{EndError, Identity};
use tidepool_stage_state::{Permit, show_resource};
use tidepool_types::{Errno, show_bytes};
use tidepool_wire::stager::{Code, Refusal, Resource};

/// Depth of directories that are gone into: each takes a descriptor.
const DEPTH_MAX: usize = 256;
/// Longest extended attribute (`XATTR_SIZE_MAX`).
const LIST_MAX: usize = 64 << 10;
/// Times a path is resolved again when a rename anywhere made the kernel give up.
const RESOLVE_TRIES_MAX: usize = 1000;

/// What a task is to do, and where.
pub struct Wanted<'a> {
    pub root: &'a OwnedFd,
    pub path: &'a [u8],
    /// For people.
    pub place: &'a Resource,
    pub owner: &'a Identity,
    pub permit: &'a Permit,
    pub run: &'a Run,
}

/// Files and directories that have been looked at.
pub type Seen = u64;

/// Why something could not be done to one object.
#[derive(Debug)]
enum Trouble {
    System(&'static str, Sys),
    /// The file system knows no lists.
    NoLists,
    Foreign(u32),
    Malformed(Malformed),
    /// Something above the location keeps a reader out.
    KeptOut(u32),
    Other(&'static str),
}

impl Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Trouble::System(what, errno) => write!(f, "{what}: {}", Errno(errno.raw_os_error())),
            Trouble::NoLists => f.write_str(
                "its file system has no access control lists, so it can be shared with nobody: have it mounted with them (option acl), keep the data in another dataspace, or give them away as a copy",
            ),
            Trouble::Foreign(uid) => {
                write!(f, "it belongs to user {uid}, who alone can change who may read it")
            }
            Trouble::Malformed(why) => write!(f, "its access control list makes no sense: {}", why.0),
            Trouble::KeptOut(user) => write!(
                f,
                "user {user} may read it now, but does not get to it: a directory above it keeps him out; let him through with 'setfacl -m u:{user}:x DIRECTORY', and share it again"
            ),
            Trouble::Other(text) => f.write_str(text),
        }
    }
}

impl Trouble {
    fn code(&self) -> (Code, i32) {
        match self {
            Trouble::System(_, errno) => (Code::SYSTEM_ERROR, errno.raw_os_error()),
            Trouble::NoLists => (Code::NOT_SUPPORTED, Errno::EOPNOTSUPP.0),
            Trouble::KeptOut(_) => (Code::SYSTEM_ERROR, Errno::EACCES.0),
            Trouble::Foreign(_) => (Code::SYSTEM_ERROR, Errno::EPERM.0),
            Trouble::Malformed(_) | Trouble::Other(_) => (Code::SYSTEM_ERROR, Errno::EINVAL.0),
        }
    }

    fn is_gone(&self) -> bool {
        matches!(self, Trouble::System(_, Sys::NOENT))
    }
}

type Tried<T> = Result<T, Trouble>;

fn system(what: &'static str) -> impl FnOnce(Sys) -> Trouble {
    move |errno| match errno {
        // The same number under both names.
        Sys::OPNOTSUPP => Trouble::NoLists,
        errno => Trouble::System(what, errno),
    }
}

/// Makes who may read a location what it says. The process is its owner's.
pub fn permit(wanted: &Wanted<'_>, node: &str) -> Result<Seen, Failed> {
    let mut walk = Walk::new(wanted);
    let done = walk.whole();
    if wanted.run.is_cancelled() {
        return Err(Failed::Cancelled);
    }
    if let Err(trouble) = done {
        walk.note(trouble);
    }
    match walk.first.take() {
        None => Ok(walk.seen),
        Some((path, trouble)) => Err(Failed::Refusal(walk.refusal(node, &path, &trouble))),
    }
}

/// Whether a reader really gets to the top, which the directories above it may not let him. Called by a process that is the
/// reader, when the location's owner has let him in.
pub fn reach(wanted: &Wanted<'_>, node: &str) -> Result<(), Refusal> {
    let Some(user) = wanted.permit.user else { return Ok(()) };
    let trouble = match resolve(wanted.root, wanted.path, OFlags::RDONLY | OFlags::NONBLOCK) {
        Err(Trouble::System(_, Sys::ACCESS)) => Trouble::KeptOut(user),
        Err(trouble) => trouble,
        Ok(_) => return Ok(()),
    };
    Err(Walk { troubles: 1, ..Walk::new(wanted) }.refusal(node, &[], &trouble))
}

/// An object that permissions are changed of.
struct Object {
    /// Leads to the object itself, for calls that take no descriptor of this kind.
    link: String,
    fd: OwnedFd,
    mode: u32,
    uid: u32,
    kind: FileType,
}

impl Object {
    #[allow(clippy::unnecessary_cast, reason = "the types differ between architectures")]
    fn of(fd: OwnedFd) -> Tried<Object> {
        let stat = fstat(&fd).map_err(system("stat"))?;
        let (mode, kind) = (stat.st_mode as u32, FileType::from_raw_mode(stat.st_mode));
        Ok(Object { link: format!("/proc/self/fd/{}", fd.as_raw_fd()), fd, mode, uid: stat.st_uid, kind })
    }

    /// An entry of a directory; nothing is followed.
    fn at(dir: &OwnedFd, name: &[u8]) -> Tried<Object> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Object::of(openat(dir, name, flags, Mode::empty()).map_err(system("open"))?)
    }

    /// What lies at a path below `root`; no link on the way is followed.
    fn beneath(root: &OwnedFd, path: &[u8]) -> Tried<Object> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        resolve(root, path, flags).and_then(Object::of)
    }

    fn list(&self, name: &str) -> Tried<Option<Acl>> {
        let mut bytes = Vec::with_capacity(LIST_MAX);
        match getxattr(&self.link, name, spare_capacity(&mut bytes)) {
            Ok(_) => Acl::decode(&bytes).map(Some).map_err(Trouble::Malformed),
            Err(Sys::NODATA) => Ok(None),
            Err(errno) => Err(system("read its access control list")(errno)),
        }
    }

    fn set_list(&self, name: &str, list: &Acl) -> Tried<()> {
        let set = setxattr(&self.link, name, &list.encode(), XattrFlags::empty());
        set.map_err(system("change its access control list"))
    }

    /// The list, or what the permissions say.
    fn access(&self) -> Tried<Acl> {
        Ok(self.list(ACCESS)?.unwrap_or_else(|| Acl::of_mode(self.mode)))
    }

    fn check_owner(&self, owner: u32) -> Tried<()> {
        // Root could change what is not his; in his name that is not done either.
        if self.uid == owner { Ok(()) } else { Err(Trouble::Foreign(self.uid)) }
    }

    /// Only the owner and these readers come in.
    fn close(&self, readers: &[u32]) -> Tried<()> {
        let old = match self.access() {
            Err(Trouble::NoLists) => {
                // Permissions are enough for what is shared with nobody.
                self.change_mode()?;
                return if readers.is_empty() { Ok(()) } else { Err(Trouble::NoLists) };
            }
            other => other?,
        };
        let new = old.closed(readers);
        if new == old {
            return Ok(());
        }
        if new.is_plain() && old.is_plain() {
            return self.change_mode();
        }
        self.set_list(ACCESS, &new)
    }

    /// Takes the permissions of group and others.
    fn change_mode(&self) -> Tried<()> {
        let mode = Mode::from_raw_mode(self.mode & 0o7700);
        chmodat(CWD, &self.link, mode, AtFlags::empty()).map_err(system("change its permissions"))
    }

    /// Lets a user read it, or no more; and what is made in it later, if it is a directory.
    fn change(&self, owner: u32, user: u32, allow: bool) -> Tried<()> {
        let old = match self.access() {
            // Nobody has an entry there.
            Err(Trouble::NoLists) if !allow => return Ok(()),
            other => other?,
        };
        if self.kind == FileType::Directory {
            self.change_default(owner, user, (allow, &old))?;
        }
        let mut new = old.clone();
        match allow {
            true => new.allow(user),
            false if new.names(user) => new.deny(user),
            false => {}
        }
        if new == old || (allow && self.uid != owner && old.lets_read(user)) {
            return Ok(());
        }
        self.check_owner(owner)?;
        self.set_list(ACCESS, &new)
    }

    fn change_default(&self, owner: u32, user: u32, (allow, access): (bool, &Acl)) -> Tried<()> {
        let old = self.list(DEFAULT)?;
        if self.uid != owner && (allow || !old.as_ref().is_some_and(|old| old.names(user))) {
            // What others make in their directories is theirs to share.
            return Ok(());
        }
        let mut new = old.clone().unwrap_or_else(|| access.base());
        match (allow, &old) {
            (true, _) => new.allow(user),
            (false, Some(old)) if old.names(user) => new.deny(user),
            (false, _) => return Ok(()),
        }
        self.check_owner(owner)?;
        if !allow && new == access.base() {
            // It was made for readers, of whom there are none any more.
            return removexattr(&self.link, DEFAULT)
                .map_err(system("remove its default access control list"));
        }
        if old.as_ref() == Some(&new) { Ok(()) } else { self.set_list(DEFAULT, &new) }
    }
}

/// One task's way through a location.
struct Walk<'a> {
    wanted: &'a Wanted<'a>,
    owner: u32,
    /// Names from the top to where it is.
    at: Vec<Vec<u8>>,
    seen: Seen,
    first: Option<(Vec<u8>, Trouble)>,
    troubles: u64,
}

/// A directory with those of its directories that are still to be gone into.
struct Level {
    fd: OwnedFd,
    dirs: Vec<Vec<u8>>,
}

impl<'a> Walk<'a> {
    fn new(wanted: &'a Wanted<'a>) -> Walk<'a> {
        let owner = wanted.owner.uid;
        Walk { wanted, owner, at: Vec::new(), seen: 0, first: None, troubles: 0 }
    }

    /// A user is to be able to read what he may not have read before.
    fn lets_in(&self) -> bool {
        let Permit { readers, user } = self.wanted.permit;
        user.is_some_and(|user| readers.contains(&user) && user != self.owner)
    }

    fn whole(&mut self) -> Tried<()> {
        let Permit { readers, user } = self.wanted.permit;
        let mut top = match Object::beneath(self.wanted.root, self.wanted.path) {
            // It may still be made, or is gone.
            Err(trouble) if trouble.is_gone() && !self.lets_in() => return Ok(()),
            other => other?,
        };
        if !matches!(top.kind, FileType::Directory | FileType::RegularFile) {
            return Err(Trouble::Other("only files and directories are kept, and links are not followed"));
        }
        top.check_owner(self.owner)?;
        let others: Vec<u32> = readers.iter().copied().filter(|reader| Some(*reader) != *user).collect();
        match top.close(&others) {
            // Nobody has an entry there who could lose it.
            Err(Trouble::NoLists) if user.is_some() && !self.lets_in() => return Ok(()),
            other => other?,
        }
        // With its permissions as they are now.
        top = Object::of(top.fd)?;
        self.seen += 1;
        let Some(user) = *user else { return Ok(()) };
        if top.kind == FileType::Directory {
            let allow = self.lets_in();
            match top.access() {
                Err(Trouble::NoLists) if !allow => return Ok(()),
                access => top.change_default(self.owner, user, (allow, &access?))?,
            }
            self.tree(&top, user)?;
        }
        if self.lets_in() { top.close(readers) } else { Ok(()) }
    }

    fn tree(&mut self, top: &Object, user: u32) -> Tried<()> {
        let mut levels = vec![self.level(top, user)?];
        while let Some(level) = levels.last_mut() {
            if self.wanted.run.is_cancelled() {
                return Ok(());
            }
            let Some(name) = level.dirs.pop() else {
                levels.pop();
                self.at.pop();
                continue;
            };
            let found = Object::at(&level.fd, &name);
            self.at.push(name);
            let below = match levels.len() {
                DEPTH_MAX => Err(Trouble::Other("too many directories above it; bring it further up")),
                _ => found.and_then(|object| self.enter(&object, user)),
            };
            match below {
                Ok(Some(level)) => levels.push(level),
                other => {
                    other.err().into_iter().for_each(|trouble| self.note(trouble));
                    self.at.pop();
                }
            }
        }
        Ok(())
    }

    /// A directory that is changed and then listed, so that what comes meanwhile is in the list or has inherited.
    fn enter(&mut self, object: &Object, user: u32) -> Tried<Option<Level>> {
        if object.kind != FileType::Directory {
            return Ok(None);
        }
        self.seen += 1;
        if let Err(trouble) = object.change(self.owner, user, self.lets_in()) {
            self.note(trouble);
        }
        self.level(object, user).map(Some)
    }

    /// Changes the files of a directory.
    fn level(&mut self, object: &Object, user: u32) -> Tried<Level> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(&object.fd, ".", flags, Mode::empty()).map_err(system("list"))?;
        let mut dirs = Vec::new();
        for entry in Dir::read_from(fd.as_fd()).map_err(system("list"))? {
            let entry = entry.map_err(system("list"))?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            if self.wanted.run.is_cancelled() {
                break;
            }
            match entry.file_type() {
                FileType::Directory => dirs.push(name.to_vec()),
                // Of some file systems the list does not tell.
                FileType::RegularFile | FileType::Unknown => self.file(&fd, name, user, &mut dirs),
                _ => {}
            }
        }
        Ok(Level { fd, dirs })
    }

    fn file(&mut self, dir: &OwnedFd, name: &[u8], user: u32, dirs: &mut Vec<Vec<u8>>) {
        let changed = Object::at(dir, name).and_then(|object| match object.kind {
            FileType::Directory => {
                dirs.push(name.to_vec());
                Ok(())
            }
            FileType::RegularFile => {
                self.seen += 1;
                object.change(self.owner, user, self.lets_in())
            }
            _ => Ok(()),
        });
        if let Err(trouble) = changed {
            self.at.push(name.to_vec());
            self.note(trouble);
            self.at.pop();
        }
    }

    /// What is gone meanwhile is no trouble.
    fn note(&mut self, trouble: Trouble) {
        if trouble.is_gone() && !self.at.is_empty() {
            return;
        }
        self.troubles += 1;
        self.first.get_or_insert_with(|| (self.at.join(&b'/'), trouble));
    }

    fn refusal(&self, node: &str, path: &[u8], trouble: &Trouble) -> Refusal {
        let place = show_resource(self.wanted.place);
        let what = match self.wanted.permit.user {
            Some(user) if self.lets_in() => format!("share {place} with user {user}"),
            Some(user) => format!("no longer share {place} with user {user}"),
            None => format!("keep {place} for user {} alone", self.owner),
        };
        let entry = if path.is_empty() { String::new() } else { format!(" '{}':", show_bytes(path)) };
        let others = match self.troubles {
            0 | 1 => String::new(),
            all => format!(" (and {} more errors)", all - 1),
        };
        let (code, errno) = trouble.code();
        Refusal { code, errno, detail: format!("on {node}: cannot {what}:{entry} {trouble}{others}") }
    }
}

/// Opens what lies at a path below `root`, following no links.
fn resolve(root: &OwnedFd, path: &[u8], how: OFlags) -> Tried<OwnedFd> {
    let (flags, links) = (how | OFlags::CLOEXEC, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS);
    for _ in 0..RESOLVE_TRIES_MAX {
        match openat2(root, path, flags, Mode::empty(), links) {
            Err(Sys::AGAIN | Sys::INTR) => {}
            Err(Sys::LOOP) => {
                return Err(Trouble::Other("its path leads over a symbolic link; name what that leads to"));
            }
            other => return other.map_err(system("open")),
        }
    }
    Err(Trouble::System("open", Sys::AGAIN))
}

impl From<EndError> for Trouble {
    fn from(error: EndError) -> Trouble {
        Trouble::System(error.operation, Sys::from_raw_os_error(error.errno.0))
    }
}
