//! Resources as ends of a copy.
//!
//! A dataspace's root is opened with the daemon's rights; everything below it with those of the
//! task's user, and in one call of the kernel that nothing leads out of (`LocalEnd::open_beneath`).

use crate::keys::{self, Trusted};
use crate::memory::{self, MemoryEnd};
use crate::objects::ObjectPlace;
use crate::pools::PoolPlace;
use crate::tasks::Run;
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use tidepool_stage::remote::{Dial, Fabric, Reach, RemoteEnd, RemoteOptions, RootRequest};
use tidepool_stage::{At, End, EndError, Identity, LocalEnd, What};
use tidepool_stage_state::Start;
use tidepool_transport::Secret;
use tidepool_transport::remote::Meant;
use tidepool_types::Errno;
use tidepool_wire::stager::{DataspaceKind, DataspaceSpec, Resource, Verify};

/// The dataspaces of a task's resources on this node, as they were when it started.
#[derive(Clone, Default)]
pub struct Places {
    by_name: HashMap<String, (DataspaceSpec, Option<Arc<OwnedFd>>)>,
}

/// Why a place cannot be used.
pub enum PlaceError {
    End(EndError),
    NotSupported(String),
}

impl From<EndError> for PlaceError {
    fn from(error: EndError) -> PlaceError {
        PlaceError::End(error)
    }
}

impl Places {
    pub fn add(&mut self, spec: DataspaceSpec) {
        self.add_with(spec, None);
    }

    /// The same with its root, opened by somebody who can reach it.
    pub fn add_with(&mut self, spec: DataspaceSpec, root: Option<OwnedFd>) {
        self.by_name.insert(spec.name.clone(), (spec, root.map(Arc::new)));
    }

    fn get(&self, name: &str) -> Option<&(DataspaceSpec, Option<Arc<OwnedFd>>)> {
        self.by_name.get(name)
    }

    /// All of them, in the order of their names.
    pub fn specs(&self) -> Vec<DataspaceSpec> {
        let mut all: Vec<DataspaceSpec> = self.by_name.values().map(|(spec, _)| spec.clone()).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}

/// An end with what of it is meant: all of it, or one entry.
pub type Found = (Box<dyn End>, Option<Vec<u8>>);

/// One side of a task. Made with the daemon's rights, used with those of the task's user.
pub enum Place {
    /// `from_disk`: what is verified there is read back from the disk.
    Local {
        root: Arc<OwnedFd>,
        path: Vec<u8>,
        from_disk: bool,
    },
    Remote(Remote),
    Pool(PoolPlace),
    Object(ObjectPlace),
    Memory {
        address: u64,
        size: u64,
        start: Box<Start>,
        identity: Identity,
    },
}

/// A path at another stager.
pub struct Remote {
    address: String,
    way: Way,
    dataspace: String,
    path: Vec<u8>,
    identity: Identity,
    job: u32,
    run: Arc<Run>,
}

/// How one other stager is reached.
#[derive(Clone)]
pub enum Way {
    /// With the secret, and over the fabric where both have one.
    Proved { secret: Secret, fabric: Option<Fabric>, own_name: String, meant: Meant },
    /// By somebody who has the secret; over the fabric as well.
    By(Arc<dyn Dial>, Option<Fabric>),
}

/// How other stagers are reached.
#[derive(Clone)]
pub enum Peers {
    Directly(Directly),
    /// By asking the supervisor, who knows what for.
    Asking(Arc<dyn Ways>, Arc<LazyFabric>),
}

/// A worker's endpoint of the fabric, opened when it is needed first: that takes a tenth of a second.
#[derive(Default)]
pub struct LazyFabric {
    /// The provider, and the address of this node.
    of: Option<(String, Option<String>)>,
    opened: OnceLock<Option<Fabric>>,
}

impl LazyFabric {
    pub fn new(provider: &str, at: &str) -> LazyFabric {
        let at = (!at.is_empty()).then(|| at.to_string());
        let of = (!provider.is_empty()).then(|| (provider.to_string(), at));
        LazyFabric { of, opened: OnceLock::new() }
    }

    pub fn get(&self) -> Option<&Fabric> {
        let (provider, at) = self.of.as_ref()?;
        let open = || {
            let fabric = Fabric::open(provider, at.as_deref());
            fabric.inspect_err(|error| eprintln!("tidepool-staged: {error}; data of a user go by TCP")).ok()
        };
        self.opened.get_or_init(open).as_ref()
    }
}

/// What it takes to reach other stagers.
#[derive(Clone, Default)]
pub struct Directly {
    /// What this node is called.
    pub own_name: String,
    pub trusted: Trusted,
    pub fabric: Option<Fabric>,
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    Task(u32),
    Call(u64),
}

/// Makes ways to other stagers.
pub trait Ways: Send + Sync {
    fn way(&self, whose: Whose, host: &str, run: &Arc<Run>) -> Arc<dyn Dial>;
}

impl Directly {
    /// How a host that a task names is reached, and by which address.
    pub fn find(&self, host: &str) -> Result<(String, Way), PlaceError> {
        let refuse = |text: String| Err(PlaceError::NotSupported(text));
        let trust = self.trusted.now();
        let Some(secret) = trust.secret.clone() else {
            return refuse(
                "this stager has no secret to prove to others; give it secret-file in its configuration"
                    .into(),
            );
        };
        let known = keys::meant(&trust.peers, host);
        if known.is_none() && !trust.peers.is_empty() {
            return refuse(format!(
                "'{host}' is none of the stagers that tasks may go to; 'peers' in the stager's configuration has those"
            ));
        }
        let (address, meant) = known.unwrap_or_else(|| (host.to_string(), Meant::anybody()));
        let (fabric, own_name) = (self.fabric.clone(), self.own_name.clone());
        Ok((address, Way::Proved { secret, fabric, own_name, meant }))
    }
}

/// What opening places needs to know.
pub struct Opener<'a> {
    pub places: &'a Places,
    pub start: &'a Start,
    pub identity: &'a Identity,
    pub peers: &'a Peers,
    pub whose: Whose,
    /// Is told of ends at other nodes.
    pub run: &'a Arc<Run>,
    /// As the stager is set; tasks may ask for it, too.
    pub verify_disk: bool,
}

impl Opener<'_> {
    pub fn open(&self, resource: &Resource) -> Result<Place, PlaceError> {
        match resource {
            Resource::Memory { address, size } => Ok(Place::Memory {
                address: *address,
                size: *size,
                start: Box::new(self.start.clone()),
                identity: self.identity.clone(),
            }),
            Resource::Path { dataspace, host: Some(host), path, .. } => {
                self.remote(dataspace, host, from_root(path)).map(Place::Remote)
            }
            Resource::Path { dataspace, host: None, path, .. } => self.local(dataspace, from_root(path)),
        }
    }

    fn local(&self, dataspace: &str, path: &[u8]) -> Result<Place, PlaceError> {
        let (spec, root) = self.places.get(dataspace).ok_or_else(|| gone(dataspace))?;
        match spec.kind {
            DataspaceKind::Local | DataspaceKind::Shared => {
                let root = match root {
                    Some(root) => Arc::clone(root),
                    None => Arc::new(reach_mount(&spec.mount)?),
                };
                let path = path.to_vec();
                let from_disk = self.verify_disk || self.start.spec.verify == Verify::Disk;
                Ok(Place::Local { root, path, from_disk })
            }
            DataspaceKind::Pool => Ok(Place::Pool(PoolPlace {
                file: spec.mount.clone().into(),
                path: path.to_vec(),
                identity: self.identity.clone(),
            })),
            DataspaceKind::Object => Ok(Place::Object(ObjectPlace {
                url: spec.mount.clone(),
                path: path.to_vec(),
                identity: self.identity.clone(),
            })),
        }
    }

    fn remote(&self, dataspace: &str, host: &str, path: &[u8]) -> Result<Remote, PlaceError> {
        let (address, way) = match self.peers {
            Peers::Directly(directly) => directly.find(host)?,
            Peers::Asking(ways, fabric) => {
                (host.to_string(), Way::By(ways.way(self.whose, host, self.run), fabric.get().cloned()))
            }
        };
        Ok(Remote {
            address,
            way,
            dataspace: dataspace.to_string(),
            path: path.to_vec(),
            identity: self.identity.clone(),
            job: self.start.identity.job,
            run: Arc::clone(self.run),
        })
    }
}

/// A path starts at its dataspace's root, with or without a slash.
fn from_root(path: &[u8]) -> &[u8] {
    let start = path.iter().position(|b| *b != b'/').unwrap_or(path.len());
    &path[start..]
}

/// A path's directory and last name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
    let start = path[..end].iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
    (&path[..start], &path[start..end])
}

/// No directory, or a link that leads out: a link is copied as what it is.
fn is_entry(error: &EndError) -> bool {
    matches!(error.errno, Errno::ENOTDIR | Errno::EXDEV | Errno::ELOOP)
}

fn boxed((end, name): (LocalEnd, Vec<u8>)) -> (Box<dyn End>, Vec<u8>) {
    (Box::new(end), name)
}

impl Place {
    /// The source, and what of it is copied. A directory, or a link to one, is a tree. `write`: it is
    /// going to be removed.
    pub fn source(&self, write: bool) -> Result<Found, EndError> {
        match self {
            Place::Local { root, path, .. } => match LocalEnd::open_beneath(&**root, path) {
                Ok(end) => Ok((Box::new(end), None)),
                Err(error) if is_entry(&error) => {
                    let (end, name) = boxed(LocalEnd::parent_beneath(&**root, path)?);
                    Ok((end, Some(name)))
                }
                Err(error) => Err(error),
            },
            Place::Remote(remote) => remote.source(write),
            Place::Pool(pool) => match pool.open(&pool.path, false) {
                Ok(end) => Ok((Box::new(end), None)),
                Err(error) if is_entry(&error) => {
                    let (dir, name) = split(&pool.path);
                    Ok((Box::new(pool.open(dir, false)?), Some(name.to_vec())))
                }
                Err(error) => Err(error),
            },
            Place::Object(object) => match object.open(&object.path, false) {
                Ok(end) => Ok((Box::new(end), None)),
                Err(error) if error.errno == Errno::ENOTDIR => {
                    let (dir, name) = split(&object.path);
                    Ok((Box::new(object.open(dir, false)?), Some(name.to_vec())))
                }
                Err(error) => Err(error),
            },
            Place::Memory { .. } => Ok((Box::new(self.memory()?), Some(memory::NAME.to_vec()))),
        }
    }

    fn memory(&self) -> Result<MemoryEnd, EndError> {
        match self {
            Place::Memory { address, size, start, identity } => {
                MemoryEnd::open(start.origin, *address, *size, identity)
            }
            _ => Err(EndError::new("use as memory", Errno::EINVAL)),
        }
    }

    /// The destination of a tree, or of an entry called `from`. A path that ends in '/' (or the root)
    /// is the directory the source is put into; any other is the name it gets.
    pub fn target(&self, from: Option<&[u8]>, own_name: &[u8]) -> Result<(Box<dyn End>, What), EndError> {
        let Some(path) = self.path() else { return self.memory_target(from) };
        let into = path.is_empty() || path.ends_with(b"/");
        let entry = |to: Vec<u8>| What::Entry { from: from.unwrap_or_default().to_vec(), to };
        match (from, into) {
            (None, true) if !path.is_empty() => {
                Ok((self.make_directory(&[path, own_name].concat())?, What::Tree))
            }
            (None, _) => Ok((self.make_directory(path)?, What::Tree)),
            (Some(from), true) => Ok((self.make_directory(path)?, entry(from.to_vec()))),
            (Some(_), false) => {
                let (dir, name) = split(path);
                Ok((self.make_directory(dir)?, entry(name.to_vec())))
            }
        }
    }

    /// Path of what [`Place::target`] is going to be; none for memory.
    pub fn place(&self, from: Option<&[u8]>, own_name: &[u8]) -> Option<Vec<u8>> {
        let path = self.path()?;
        Some(match from {
            _ if !path.is_empty() && !path.ends_with(b"/") => path.to_vec(),
            None if path.is_empty() => Vec::new(),
            None => [path, own_name].concat(),
            Some(from) => [path, from].concat(),
        })
    }

    /// The dataspace's root, to look at and to remove below; none where there are no directories.
    pub fn root_end(&self) -> Result<Option<Box<dyn End>>, EndError> {
        Ok(match self {
            Place::Local { root, .. } => Some(Box::new(LocalEnd::open_beneath(&**root, b"")?)),
            Place::Remote(remote) => Some(Box::new(remote.open(b"", true)?)),
            Place::Pool(pool) => Some(Box::new(pool.open(b"", false)?)),
            Place::Object(_) | Place::Memory { .. } => None,
        })
    }

    /// Memory takes the content of one file.
    fn memory_target(&self, from: Option<&[u8]>) -> Result<(Box<dyn End>, What), EndError> {
        let from = from.ok_or_else(|| EndError {
            errno: Errno::EISDIR,
            operation: "copy to memory",
            detail: Some("only a file can be copied to memory".into()),
        })?;
        let what = What::Entry { from: from.to_vec(), to: memory::NAME.to_vec() };
        Ok((Box::new(self.memory()?), what))
    }

    fn path(&self) -> Option<&[u8]> {
        match self {
            Place::Local { path, .. } => Some(path),
            Place::Remote(remote) => Some(&remote.path),
            Place::Pool(pool) => Some(&pool.path),
            Place::Object(object) => Some(&object.path),
            Place::Memory { .. } => None,
        }
    }

    fn make_directory(&self, path: &[u8]) -> Result<Box<dyn End>, EndError> {
        match self {
            Place::Local { root, from_disk, .. } => {
                let end = LocalEnd::create_beneath(&**root, path)?;
                Ok(if *from_disk { Box::new(end.verified_from_disk()) } else { Box::new(end) })
            }
            Place::Remote(remote) => remote.make_directory(path),
            Place::Pool(pool) => Ok(Box::new(pool.open(path, true)?)),
            Place::Object(object) => Ok(Box::new(object.open(path, true)?)),
            Place::Memory { .. } => Err(EndError::new("make directory", Errno::ENOTDIR)),
        }
    }

    /// The directory of an entry that is to be removed, and its name.
    pub fn entry(&self) -> Result<(Box<dyn End>, Vec<u8>), EndError> {
        match self {
            Place::Local { root, path, .. } => Ok(boxed(LocalEnd::parent_beneath(&**root, path)?)),
            Place::Remote(remote) => {
                let (dir, name) = split(&remote.path);
                Ok((Box::new(remote.open(dir, true)?), name.to_vec()))
            }
            Place::Pool(pool) => {
                let (dir, name) = split(&pool.path);
                Ok((Box::new(pool.open(dir, false)?), name.to_vec()))
            }
            Place::Object(object) => {
                let (dir, name) = split(&object.path);
                Ok((Box::new(object.open(dir, false)?), name.to_vec()))
            }
            Place::Memory { .. } => Err(EndError::new("name", Errno::EINVAL)),
        }
    }

    /// Last name of the path.
    pub fn name(&self) -> &[u8] {
        split(self.path().unwrap_or_default()).1
    }

    /// The dataspace's root and the path below it, where both are of this node's file systems.
    pub fn local(&self) -> Option<(&Arc<OwnedFd>, &[u8])> {
        match self {
            Place::Local { root, path, .. } => Some((root, path)),
            _ => None,
        }
    }

    /// The root's descriptor, on this node.
    pub fn fd(&self) -> Option<&OwnedFd> {
        match self {
            Place::Local { root, .. } => Some(&**root),
            _ => None,
        }
    }
}

impl Remote {
    fn open(&self, path: &[u8], write: bool) -> Result<RemoteEnd, EndError> {
        let root = RootRequest {
            dataspace: self.dataspace.clone(),
            path: path.to_vec(),
            write,
            uid: self.identity.uid,
            gid: self.identity.gid,
            groups: self.identity.groups.clone(),
            job: (self.job != 0).then_some(self.job),
        };
        let options = match &self.way {
            Way::By(dial, fabric) => {
                let fabric = fabric.clone();
                RemoteOptions {
                    fabric,
                    ..RemoteOptions::new(&self.address, Reach::By(Arc::clone(dial)), root)
                }
            }
            Way::Proved { secret, fabric, own_name, meant } => {
                let (own_name, meant, fabric) = (own_name.clone(), meant.clone(), fabric.clone());
                RemoteOptions {
                    own_name,
                    meant,
                    fabric,
                    ..RemoteOptions::new(&self.address, secret.clone(), root)
                }
            }
        };
        RemoteEnd::open_noting(options, |handle| self.run.note_end(handle))
    }

    fn source(&self, write: bool) -> Result<Found, EndError> {
        match self.open(&self.path, write) {
            Ok(end) => Ok((Box::new(end), None)),
            Err(error) if is_entry(&error) => {
                let (dir, name) = split(&self.path);
                Ok((Box::new(self.open(dir, write)?), Some(name.to_vec())))
            }
            Err(error) => Err(error),
        }
    }

    /// Opens a directory for writing. What is missing of it is made first.
    fn make_directory(&self, path: &[u8]) -> Result<Box<dyn End>, EndError> {
        match self.open(path, true) {
            Ok(end) => return Ok(Box::new(end)),
            Err(error) if error.errno == Errno::ENOENT => {}
            Err(error) => return Err(error),
        }
        let end = self.open(b"", true)?;
        let mut dir = end.root();
        for name in path.split(|b| *b == b'/').filter(|name| !matches!(*name, b"" | b".")) {
            let (below, made) = end.make_or_enter_dir(&dir, name)?;
            if made {
                // As mkdir(2) with the usual umask would.
                let set = tidepool_stage::SetMeta { mode: Some(0o755), ..Default::default() };
                end.set_meta(At::Dir(&below), &set)?;
            }
            dir = below;
        }
        drop(end);
        Ok(Box::new(self.open(path, true)?))
    }
}

fn gone(dataspace: &str) -> PlaceError {
    PlaceError::End(EndError {
        errno: Errno::ENOENT,
        operation: "open dataspace",
        detail: Some(format!("there is no dataspace '{dataspace}' any more")),
    })
}

/// The directory of a dataspace.
pub fn open_mount(mount: &str) -> Result<OwnedFd, EndError> {
    open(mount, OFlags::RDONLY)
}

/// The same as a place to start from only: what is below is opened in the name of somebody else.
pub fn reach_mount(mount: &str) -> Result<OwnedFd, EndError> {
    open(mount, OFlags::PATH)
}

fn open(mount: &str, how: OFlags) -> Result<OwnedFd, EndError> {
    let flags = how | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, mount, flags, Mode::empty()).map_err(|errno| EndError {
        errno: Errno(errno.raw_os_error()),
        operation: "open dataspace",
        detail: Some(format!("its mount is {mount}")),
    })
}

/// Fails when there is no such entry; links are not followed.
pub fn look(end: &dyn End, name: &[u8]) -> Result<(), EndError> {
    end.stat(At::Name(&end.root(), name)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_stage_state::Origin;
    use tidepool_wire::stager::{Op, TaskSpec};

    /// Where the kernel's memory of a file and the file are told apart, the end says what it would read back.
    #[test]
    fn tasks_and_the_stager_can_ask_for_the_disk() {
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let mount = root.path().display().to_string();
        let mut places = Places::default();
        places.add(DataspaceSpec {
            name: "a://".into(),
            kind: DataspaceKind::Local,
            mount,
            tracked: false,
            capacity: 0,
            streams_max: 0,
            bandwidth: 0,
        });
        let (run, identity) = (Arc::default(), Identity { uid: 0, gid: 0, groups: Vec::new() });
        let peers = Peers::Directly(Directly::default());
        for (verify_disk, verify, disk) in
            [(false, Verify::Yes, false), (false, Verify::Disk, true), (true, Verify::Yes, true)]
        {
            let place = Resource::local("a://", b"in/x");
            let spec = TaskSpec { verify, ..TaskSpec::new(Op::Copy, place.clone(), Some(place.clone())) };
            let who = tidepool_stage_state::Identity { uid: 0, gid: 0, job: 0 };
            let (origin, quotas) = (Origin { pid: 1, started: 0 }, Vec::new());
            let start =
                Start { id: 1, spec, identity: who, origin, again: false, quotas, made: None, permit: None };
            let opener = Opener {
                places: &places,
                start: &start,
                identity: &identity,
                peers: &peers,
                whose: Whose::Task(1),
                run: &run,
                verify_disk,
            };
            let Ok(target) = opener.open(&place) else { panic!("the dataspace is there") };
            let (end, _) = target.target(Some(b"x"), b"x").unwrap();
            assert_eq!(end.reads_back_at_once(&end.root()), !disk, "{verify_disk} {verify:?}");
        }
    }
}
