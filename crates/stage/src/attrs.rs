//! Owners, modes, times and extended attributes.
//!
//! Policy: the owner is copied by root only, the group by whoever is in it, too. Set-user-ID and set-group-ID bits are
//! kept where the copy belongs to the same user and group as the source, because on a file
//! of another user they would mean something else. `user.*` attributes and POSIX ACLs are
//! always tried, `trusted.*` and `security.*` by root only, `security.selinux` never (the
//! destination's policy labels its files). What the destination refuses is a warning.

use crate::compound::is_refusal;
use crate::end::{At, End, EndResult, Meta, Refused, SetMeta, Xattr};
use crate::job::Job;
use crate::report::Failure;
use tidepool_types::FileKind;

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;

/// Whether a copy gets an extended attribute of this name.
pub(crate) fn is_wanted(name: &[u8], root: bool) -> bool {
    let privileged = name.starts_with(b"trusted.") || name.starts_with(b"security.");
    name.starts_with(b"user.")
        || name.starts_with(b"system.posix_acl_")
        || (root && privileged && name != b"security.selinux")
}

/// Owner, mode and times that a copy gets which is made at an end.
pub(crate) fn wanted(meta: &Meta, end: &dyn End) -> SetMeta {
    let rights = end.rights();
    let gives_group = rights.root || end.gives_group(meta.gid);
    let mut mode = meta.mode;
    if !rights.root && meta.kind != FileKind::Directory {
        let (other_user, other_group) = (meta.uid != rights.uid, !gives_group && meta.gid != rights.gid);
        mode &= !(if other_user { SET_UID } else { 0 } | if other_group { SET_GID } else { 0 });
    }
    let owner = if rights.root { meta.uid } else { rights.uid };
    SetMeta {
        owner: gives_group.then_some((owner, meta.gid)),
        // The mode of a symbolic link means nothing and cannot be set.
        mode: (meta.kind != FileKind::Symlink).then_some(mode),
        times: Some((meta.atime, meta.mtime)),
    }
}

/// Sets attributes of what is the copier's own. A group that is refused (an owner is root's to set) is left as it is, and a
/// set-group-ID bit is not for another one.
pub(crate) fn set_kept<E: End + ?Sized>(end: &E, at: At<'_>, set: &SetMeta) -> EndResult<Option<Refused>> {
    let refusal = match (end.set_meta(at, set), set.owner) {
        (Err(error), Some((_, gid))) if is_refusal(&error) && !end.rights().root => (gid, error),
        (result, _) => return result.map(|()| None),
    };
    let (gid, error) = refusal;
    let is = end.stat(at)?;
    let keeps_bits = is.gid == gid || is.kind == FileKind::Directory;
    let mode = set.mode.map(|mode| if keeps_bits { mode } else { mode & !SET_GID });
    end.set_meta(at, &SetMeta { owner: None, mode, ..*set })?;
    Ok((is.gid != gid).then(|| (format!("group {gid}").into_bytes(), error)))
}

impl Job<'_> {
    /// Owner, mode and times that the copy of an object gets.
    pub fn wanted_meta(&self, meta: &Meta) -> SetMeta {
        wanted(meta, self.dst)
    }

    /// Gives `to` the attributes of `from`; times last. `path` is asked for only to warn.
    pub fn copy_attributes(
        &self,
        path: &dyn Fn() -> String,
        from: At<'_>,
        to: At<'_>,
        meta: &Meta,
    ) -> Result<(), Failure> {
        let xattrs = if self.wants_xattrs(meta.kind) { self.src.xattrs(from) } else { Ok(Vec::new()) };
        let xattrs = self.wanted_xattrs(path, xattrs)?;
        let refused = self.dst.dress(to, &self.wanted_meta(meta), &xattrs).map_err(Failure::target)?;
        self.warn_refused(path, &refused);
        Ok(())
    }

    /// The kernel allows users' attributes on files and directories only.
    fn wants_xattrs(&self, kind: FileKind) -> bool {
        self.dst.rights().root || matches!(kind, FileKind::Regular | FileKind::Directory)
    }

    /// Those of an object's extended attributes that its copy gets.
    pub fn wanted_xattrs(
        &self,
        path: &dyn Fn() -> String,
        found: EndResult<Vec<Xattr>>,
    ) -> Result<Vec<Xattr>, Failure> {
        let root = self.dst.rights().root;
        match found {
            Ok(mut xattrs) => {
                xattrs.retain(|(name, _)| is_wanted(name, root));
                Ok(xattrs)
            }
            Err(error) if is_refusal(&error) => {
                self.findings.warn(path(), format!("extended attributes are not copied: source: {error}"));
                Ok(Vec::new())
            }
            Err(error) => Err(Failure::source(error)),
        }
    }

    pub fn warn_refused(&self, path: &dyn Fn() -> String, refused: &[Refused]) {
        refused.iter().for_each(|refused| self.findings.warn(path(), refusal(refused)));
    }
}

/// What the destination refused, in words.
pub(crate) fn refusal((name, error): &Refused) -> String {
    format!("attribute {} is not copied: destination: {error}", crate::show_bytes(name))
}
