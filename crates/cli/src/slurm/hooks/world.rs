//! What orders ask of others: the site, the stagers, the book, and the user's files.

use super::{Case, Desk};
use crate::exit::{Failure, Kind, Result};
use crate::slurm::orders::{self, Known, World};
use crate::slurm::stagers::{Fleet, Ways};
use tidepool_batch::Location;
use tidepool_directives::{DataspaceKind, Place};
use tidepool_stage::remote::{RemoteEnd, RootRequest};
use tidepool_stage::{End, EndError};
use tidepool_stage_client::{OnBehalf, Resource};

/// Bytes of a mapping file.
const FILE_BYTES_MAX: usize = 256 << 20;
/// Bytes of it that are asked for at a time.
const READ_AT_ONCE: usize = 1 << 20;

/// The world as one job's hooks see it.
pub struct Around<'a> {
    pub desk: &'a Desk,
    pub case: &'a Case,
    pub ways: Ways,
    pub fleet: &'a Fleet,
    pub owner: OnBehalf,
    pub kept: Vec<Location>,
}

impl<'a> Around<'a> {
    pub fn new(desk: &'a Desk, case: &'a Case, fleet: &'a Fleet) -> Result<Around<'a>> {
        let kept = desk.noted(desk.book.locations())?;
        Ok(Around { desk, case, ways: Ways::of(&desk.site)?, fleet, owner: case.owner()?, kept })
    }
}

impl Around<'_> {
    /// Reads a mapping file in the user's name: what is said of it goes to him. Hooks have no rights of his, so the stager of the
    /// job's first node opens it.
    fn read(&self, path: &str) -> std::result::Result<String, String> {
        let place = Place::Path(path.as_bytes().to_vec());
        let found =
            self.desk.site.resolve(&place).ok().filter(|(found, _)| found.kind == DataspaceKind::Shared);
        let Some((dataspace, below)) = found else {
            return Err("no node can be asked for it; put a mapping file into a shared dataspace, and name it by its whole path".into());
        };
        let at = below.iter().rposition(|byte| *byte == b'/');
        let (dir, name) = at.map_or((&[][..], &below[..]), |at| (&below[..at], &below[at + 1..]));
        let (head, _) = self.fleet.head().ok_or("the job has no nodes")?;
        let OnBehalf { uid, gid, job } = self.owner;
        let root = RootRequest {
            dataspace: dataspace.name.clone(),
            path: dir.to_vec(),
            write: false,
            uid,
            gid,
            groups: vec![gid],
            job: Some(job),
        };
        let end = self.ways.open(head, root).map_err(|error| error.to_string())?;
        String::from_utf8(read_whole(&end, name)?).map_err(|_| "it is no UTF-8 text".to_string())
    }
}

/// The name under which stagers know a pool of a job.
pub fn pool_dataspace(job: u32, named: &str) -> String {
    format!("{}-{job}://", named.trim_end_matches("://"))
}

/// Which dataspace a place of a job is in.
pub fn know(desk: &Desk, case: &Case, place: &Place) -> Result<Known> {
    if let Place::Dataspace { name, path } = place
        && case.asks.pools.iter().any(|pool| pool.dataspace() == *name)
    {
        let dataspace = pool_dataspace(case.id(), name);
        return Ok(Known { dataspace, path: path.clone(), kind: orders::Kind::Pool });
    }
    let (dataspace, path) = desk.site.resolve(place).map_err(|why| Failure::new(Kind::Usage, why))?;
    let kind = match dataspace.kind {
        DataspaceKind::Local => orders::Kind::Local,
        DataspaceKind::Object => orders::Kind::Object,
        DataspaceKind::Shared | DataspaceKind::Pool => orders::Kind::Shared,
    };
    Ok(Known { dataspace: dataspace.name.clone(), path, kind })
}

impl World for Around<'_> {
    fn know(&self, place: &Place) -> Result<Known> {
        know(self.desk, self.case, place)
    }

    fn entries(&self, node: Option<&str>, place: &Known) -> Result<Vec<String>> {
        let resource = Resource::local(place.dataspace.clone(), &place.path);
        let ask = |stager: &tidepool_stage_client::Stager| {
            let names = stager
                .entries(&resource, Some(self.owner))
                .map_err(|error| Failure::new(Kind::StageIn, format!("{}: {error}", place.shown())))?;
            let text = |name: Box<[u8]>| {
                String::from_utf8(name.into_vec()).map_err(|error| {
                    let name = String::from_utf8_lossy(error.as_bytes()).into_owned();
                    Failure::new(Kind::StageIn, format!("{}: '{name}' is no UTF-8 text", place.shown()))
                })
            };
            names.into_iter().map(text).collect()
        };
        match node {
            None => {
                let (_, head) =
                    self.fleet.head().ok_or_else(|| Failure::new(Kind::StageIn, "the job has no nodes"))?;
                ask(head)
            }
            Some(node) => match self.fleet.get(node) {
                Some(stager) => ask(stager),
                // It keeps data and is none of the job's nodes.
                None => ask(&self.ways.connect(node)?),
            },
        }
    }

    fn holders(&self, place: &Known) -> Result<Vec<String>> {
        let shown = place.shown();
        let under = |kept: &str| {
            let dir = kept.trim_end_matches('/');
            shown.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                || dir.ends_with(':')
        };
        let mut nodes: Vec<String> = Vec::new();
        for location in self.kept.iter().filter(|location| under(&location.place)) {
            if !nodes.contains(&location.node) {
                nodes.push(location.node.clone());
            }
        }
        Ok(nodes)
    }

    fn file(&self, path: &str) -> Result<String> {
        let fail = |why: String| Failure::new(Kind::StageIn, format!("{path}: {why}"));
        self.read(path).map_err(fail)
    }

    fn address(&self, node: &str) -> String {
        self.ways.address(node)
    }
}

/// Reads a file as far as it may be long.
fn read_whole(end: &RemoteEnd, name: &[u8]) -> std::result::Result<Vec<u8>, String> {
    let said = |error: EndError| error.to_string();
    let file = end.open_read(&end.root(), name).map_err(said)?;
    let (mut text, mut block) = (Vec::new(), vec![0; READ_AT_ONCE]);
    loop {
        match end.read(&file, text.len() as u64, &mut block).map_err(said)? {
            0 => return Ok(text),
            read => text.extend_from_slice(&block[..read]),
        }
        if text.len() > FILE_BYTES_MAX {
            return Err(format!("it has more than {FILE_BYTES_MAX} bytes"));
        }
    }
}

/// The feature of nodes that keep data of a job.
pub fn feature(job: u32) -> String {
    format!("tidepool-{job}")
}

/// The reservation of nodes for a job.
pub fn reservation(job: u32) -> String {
    format!("tidepool-{job}")
}

pub fn user_name(uid: u32) -> Result<String> {
    let found = nix::unistd::User::from_uid(uid.into()).ok().flatten();
    found
        .map(|user| user.name)
        .ok_or_else(|| Failure::new(Kind::Other, format!("user {uid} has no name here")))
}

pub fn user_id(name: &str) -> Result<u32> {
    let found = nix::unistd::User::from_name(name).ok().flatten();
    found
        .map(|user| user.uid.as_raw())
        .ok_or_else(|| Failure::new(Kind::Usage, format!("there is no user '{name}'")))
}
