//! Where symbolic links of a pool lead, or of a directory that goes away as a pool does.

use crate::end::{At, DirRef, End, EndResult, Meta};
use crate::leads::{Leads, LinkAt};
use std::collections::VecDeque;
use tidepool_types::{Errno, FileKind};

/// Links on one way, as the kernel has it.
const LINKS_MAX: usize = 40;

/// Names from the pool's root on.
type Names = Vec<Vec<u8>>;

fn names(path: &[u8]) -> Names {
    let names = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    names.map(<[u8]>::to_vec).collect()
}

/// What follows the pool's path in an absolute target; none where it is about something else.
fn below<'a>(mount: &[u8], target: &'a [u8]) -> Option<&'a [u8]> {
    let rest = target.strip_prefix(mount)?;
    (rest.is_empty() || rest[0] == b'/').then_some(rest)
}

/// The target that leads from a directory to an entry.
fn relative(dir: &[Vec<u8>], to: &[Vec<u8>]) -> Vec<u8> {
    let common = dir.iter().zip(to).take_while(|(a, b)| a == b).count();
    let up = dir[common..].iter().map(|_| &b".."[..]);
    let parts: Vec<&[u8]> = up.chain(to[common..].iter().map(Vec::as_slice)).collect();
    if parts.is_empty() { b".".to_vec() } else { parts.join(&b'/') }
}

/// A target as it is written.
struct Written {
    /// None where it leaves the pool.
    path: Option<Names>,
    /// It never leaves the copied tree.
    stays: bool,
    /// It goes back up from a name of its own: what that is decides where to.
    back: bool,
}

fn written(start: &[Vec<u8>], target: &Names, tree: Option<&Names>) -> Written {
    let inside = |path: &Names| tree.is_some_and(|tree| path.starts_with(tree));
    let mut path = start.to_vec();
    let (mut stays, mut back, mut down) = (inside(&path), false, false);
    for name in target {
        if name != b".." {
            path.push(name.clone());
            down = true;
        } else if path.pop().is_some() {
            back |= down;
        } else {
            return Written { path: None, stays: false, back };
        }
        stays &= inside(&path);
    }
    Written { path: Some(path), stays, back }
}

/// What is at the end of all links.
enum Real {
    Entry {
        path: Names,
        dir: DirRef,
        meta: Meta,
    },
    Root,
    /// By this absolute target, if it is one.
    Outside(Option<Vec<u8>>),
    Nothing,
}

/// A place as a whole: its end, its root, and its path for programs.
pub(crate) struct Whole<'a> {
    pub end: &'a dyn End,
    pub root: DirRef,
    pub mount: Vec<u8>,
}

impl Whole<'_> {
    pub fn lead(&self, at: &LinkAt<'_>, target: &[u8]) -> EndResult<Leads> {
        let (dir, tree) = (names(at.dir), at.tree.map(names));
        let absolute = target.starts_with(b"/");
        let rest = if absolute { below(&self.mount, target) } else { Some(target) };
        let Some(rest) = rest.map(names) else { return Ok(Leads::There) };
        let start: &[Vec<u8>] = if absolute { &[] } else { &dir };
        let said = written(start, &rest, tree.as_ref());
        if !absolute && said.stays && !said.back {
            return Ok(Leads::There);
        }
        let real = self.real(start.iter().chain(&rest).cloned().collect())?;
        let inside = |path: &Names| tree.as_ref().is_some_and(|tree| path.starts_with(tree));
        if let Real::Entry { path, .. } = &real
            && (!absolute && said.stays && inside(path))
        {
            return Ok(Leads::There);
        }
        match said.path.filter(|path| inside(path) && !said.back) {
            Some(path) => Ok(Leads::By(relative(&dir, &path))),
            None => Ok(to_real(real, &dir, inside)),
        }
    }

    /// Follows all links on a way from the root.
    fn real(&self, way: Names) -> EndResult<Real> {
        let (mut todo, mut links) = (VecDeque::from(way), 0);
        let mut done: Vec<(Vec<u8>, DirRef, Meta)> = Vec::new();
        while let Some(name) = todo.pop_front() {
            if name == b".." {
                if done.pop().is_none() {
                    return Ok(Real::Outside(None));
                }
                continue;
            }
            let Some((dir, meta)) = self.step(&done, &name)? else { return Ok(Real::Nothing) };
            if meta.kind != FileKind::Symlink {
                done.push((name, dir, meta));
                continue;
            }
            links += 1;
            let target = self.end.read_link(&dir, &name)?;
            let absolute = target.starts_with(b"/");
            let rest = if absolute { below(&self.mount, &target) } else { Some(&target[..]) };
            match rest.map(names) {
                _ if links > LINKS_MAX => return Ok(Real::Nothing),
                None => return Ok(Real::Outside(Some(longer(target, &todo)))),
                Some(rest) => rest.into_iter().rev().for_each(|name| todo.push_front(name)),
            }
            if absolute {
                done.clear();
            }
        }
        let Some((name, dir, meta)) = done.pop() else { return Ok(Real::Root) };
        let path = done.into_iter().map(|(name, ..)| name).chain([name]).collect();
        Ok(Real::Entry { path, dir, meta })
    }

    /// The directory that a way has come to, and what has the next name in it, if there is any.
    fn step(&self, done: &[(Vec<u8>, DirRef, Meta)], name: &[u8]) -> EndResult<Option<(DirRef, Meta)>> {
        let found = match done.last() {
            None => Ok(self.root.clone()),
            Some((_, _, meta)) if meta.kind != FileKind::Directory => return Ok(None),
            Some((last, dir, _)) => self.end.open_dir(dir, last),
        };
        let found = found.and_then(|dir| self.end.stat(At::Name(&dir, name)).map(|meta| (dir, meta)));
        match found {
            Err(error) if error.errno == Errno::ENOENT => Ok(None),
            found => found.map(Some),
        }
    }
}

/// A target with what was still to come behind it.
fn longer(target: Vec<u8>, todo: &VecDeque<Vec<u8>>) -> Vec<u8> {
    let more = todo.iter().flat_map(|name| [&b"/"[..], name].concat());
    target.into_iter().chain(more).collect()
}

/// Where it is by what it really leads to.
fn to_real(real: Real, dir: &Names, inside: impl Fn(&Names) -> bool) -> Leads {
    match real {
        Real::Outside(Some(path)) => Leads::By(path),
        Real::Outside(None) => Leads::There,
        Real::Nothing => Leads::Nowhere,
        Real::Root if inside(&Vec::new()) => Leads::By(relative(dir, &[])),
        Real::Root => Leads::Round(Vec::new()),
        Real::Entry { path, .. } if inside(&path) => Leads::By(relative(dir, &path)),
        Real::Entry { path, meta, .. } if meta.kind == FileKind::Directory && dir.starts_with(&path) => {
            Leads::Round(path.join(&b'/'))
        }
        Real::Entry { mut path, dir, meta } => {
            let name = path.pop().unwrap_or_default();
            Leads::Away { dir, path: path.join(&b'/'), name, meta }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_lead_from_one_place_to_another() {
        for (dir, to, target) in [
            ("out", "out/r", "r"),
            ("out/a/b", "out/r", "../../r"),
            ("out/a", "out/a", "."),
            ("", "x/y", "x/y"),
            ("a/b", "", "../.."),
            ("a/b", "c/d", "../../c/d"),
        ] {
            assert_eq!(
                relative(&names(dir.as_bytes()), &names(to.as_bytes())),
                target.as_bytes(),
                "{dir} {to}"
            );
        }
    }

    #[test]
    fn only_the_pools_own_path_is_the_pool() {
        let mount = b"/run/p/mnt";
        for (target, rest) in [
            ("/run/p/mnt", Some("")),
            ("/run/p/mnt/", Some("/")),
            ("/run/p/mnt//work/./r", Some("//work/./r")),
            ("/run/p/mnt2/r", None),
            ("/run/p", None),
            ("/home/a", None),
        ] {
            assert_eq!(below(mount, target.as_bytes()), rest.map(str::as_bytes), "{target}");
        }
    }

    #[test]
    fn what_is_written_tells_whether_it_stays() {
        let tree = names(b"out");
        for (dir, target, stays, back) in [
            ("out", "r", true, false),
            ("out/a", "../r", true, false),
            ("out/a", "../../out/r", false, false),
            ("out", "../work/r", false, false),
            ("out", "a/../r", true, true),
            ("out", "../../..", false, false),
        ] {
            let seen = written(&names(dir.as_bytes()), &names(target.as_bytes()), Some(&tree));
            assert_eq!((seen.stays, seen.back), (stays, back), "{dir} {target}");
            assert!(!written(&names(dir.as_bytes()), &names(target.as_bytes()), None).stays);
        }
        assert!(written(&names(b"out"), &names(b"../.."), None).path.is_none());
    }
}
