//! What orders ask of others: the site, the stagers, the book, and the user's files.

use super::{Case, Desk};
use crate::exit::{Context, Failure, Kind, Result};
use crate::slurm::orders::{self, Known, World};
use crate::slurm::stagers::{Fleet, Ways};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use tidepool_batch::Location;
use tidepool_directives::Place;
use tidepool_stage_client::{DataspaceKind, OnBehalf, Resource};

/// Bytes of a mapping file.
const FILE_BYTES_MAX: u64 = 256 << 20;

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
        read_as(path, self.owner.uid, self.owner.gid)
    }

    fn address(&self, node: &str) -> String {
        self.ways.address(node)
    }
}

/// Reads a file in a user's name: hooks run as root, and what they say of it goes to the user.
fn read_as(path: &str, uid: u32, gid: u32) -> Result<String> {
    let fail = |why: String| Failure::new(Kind::StageIn, format!("{path}: {why}"));
    if !path.starts_with('/') {
        return Err(fail("name a mapping file by its whole path".into()));
    }
    let mut child = Command::new("/bin/cat")
        .args(["--", path])
        .uid(uid)
        .gid(gid)
        .current_dir("/")
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context(Kind::Other, || "/bin/cat".into())?;
    let mut text = Vec::new();
    let mut out = child.stdout.take().expect("it is piped").take(FILE_BYTES_MAX + 1);
    out.read_to_end(&mut text).context(Kind::StageIn, || path.to_string())?;
    drop(out);
    let ended = child.wait_with_output().context(Kind::StageIn, || path.to_string())?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(fail(format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr).trim().to_string();
        return Err(Failure::new(Kind::StageIn, said.trim_start_matches("/bin/cat: ").to_string()));
    }
    String::from_utf8(text).map_err(|_| fail("it is no UTF-8 text".into()))
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
