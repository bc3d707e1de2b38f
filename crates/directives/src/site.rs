//! What only a site can say of directives: whether there are such dataspaces, such users, and so much room.

use crate::mapping::{Mapping, MappingText};
use crate::model::{Directives, Persist, PoolRequest, Stage};
use crate::near::near;
use crate::place::Place;
use crate::told::{Problem, Said, Told};
use std::borrow::Cow;
use tidepool_types::format_size;
use tidepool_wire::stager::DataspaceKind;

/// Names that a message lists.
const NAMES_SHOWN_MAX: usize = 8;

/// A dataspace of the site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SiteDataspace {
    /// `nvme0://`.
    pub name: String,
    pub kind: DataspaceKind,
    /// The directory, or the address of an object store.
    pub mount: String,
}

impl SiteDataspace {
    fn is_directory(&self) -> bool {
        matches!(self.kind, DataspaceKind::Local | DataspaceKind::Shared)
    }
}

/// What directives are held against.
pub struct Site<'a> {
    pub dataspaces: Cow<'a, [SiteDataspace]>,
    pub has_user: &'a dyn Fn(&str) -> bool,
    /// Bytes of the largest pool that a job can have.
    pub pool_size_max: Option<u64>,
    /// The number of the job whose directives these are, if it has one already.
    pub job: Option<u32>,
}

/// Where a place is.
enum Found<'a> {
    Here(&'a SiteDataspace),
    /// In one of the job's own pools.
    Pool,
}

impl Site<'_> {
    pub fn dataspace(&self, name: &str) -> Option<&SiteDataspace> {
        self.dataspaces.iter().find(|dataspace| dataspace.name == name)
    }

    /// The dataspace that a plain path is in, and its path there: of several, the one that is mounted deepest.
    pub fn resolve(&self, path: &[u8]) -> Option<(&SiteDataspace, Vec<u8>)> {
        let names: Vec<&[u8]> = plain(path).collect();
        let is_directory =
            |d: &&SiteDataspace| matches!(d.kind, DataspaceKind::Local | DataspaceKind::Shared);
        let mounts = self.dataspaces.iter().filter(is_directory).map(|dataspace| {
            let mount: Vec<&[u8]> = plain(dataspace.mount.as_bytes()).collect();
            (dataspace, mount)
        });
        let deepest =
            mounts.filter(|(_, mount)| names.starts_with(mount)).max_by_key(|(_, mount)| mount.len());
        deepest.map(|(dataspace, mount)| (dataspace, names[mount.len()..].join(&b'/')))
    }

    fn find(&self, directives: &Directives, place: &Said<Place>) -> Result<Found<'_>, Problem> {
        let name = match &place.value {
            Place::Dataspace { name, .. } => name,
            Place::Path(path) => {
                let found = self.resolve(path).map(|(dataspace, _)| Found::Here(dataspace));
                return found.ok_or_else(|| {
                    let directories = self.dataspaces.iter().filter(|dataspace| dataspace.is_directory());
                    let known = listed(directories.map(|d| format!("{} ({})", d.mount, d.name)));
                    Problem::new(
                        &place.at,
                        format!("'{place}' is in no directory of a dataspace; there are {known}"),
                    )
                });
            }
        };
        if directives.pools.iter().any(|pool| pool.dataspace() == *name) {
            return Ok(Found::Pool);
        }
        self.dataspace(name).map(Found::Here).ok_or_else(|| self.unknown(directives, name, place))
    }

    fn unknown(&self, directives: &Directives, name: &str, place: &Said<Place>) -> Problem {
        let problem = Problem::new(&place.at, format!("there is no dataspace '{name}'"));
        let pools: Vec<String> = directives.pools.iter().map(|pool| pool.dataspace()).collect();
        let all = self.dataspaces.iter().map(|dataspace| dataspace.name.as_str());
        match near(name, all.chain(pools.iter().map(String::as_str))) {
            Some(meant) => {
                let meant = place.to_string().replacen(name, meant, 1);
                problem.meant(Some(meant))
            }
            None => {
                let known = listed(self.dataspaces.iter().map(|dataspace| dataspace.name.clone()));
                Problem::new(&place.at, format!("{}; there are {known}", problem.message))
            }
        }
    }
}

fn listed(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<String> = names.take(NAMES_SHOWN_MAX + 1).collect();
    if names.len() > NAMES_SHOWN_MAX {
        names[NAMES_SHOWN_MAX] = "...".into();
    }
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

fn plain(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|b| *b == b'/').filter(|name| !matches!(*name, b"" | b"."))
}

/// What speaks against directives at a site.
pub fn check(directives: &Directives, site: &Site<'_>) -> Vec<Problem> {
    let mut told = Told::default();
    for stage in directives.stage_in.iter().chain(&directives.stage_out) {
        self::stage(directives, site, stage, &mut told);
    }
    directives.persist.iter().for_each(|persist| self::persist(directives, site, persist, &mut told));
    directives.pools.iter().for_each(|pool| self::pool(site, pool, &mut told));
    let others = directives.workflow.prior.iter().chain(&directives.resume).chain(&directives.discard);
    for job in others.filter(|job| site.job == Some(job.value)) {
        told.add(Problem::new(&job.at, format!("job {job} is this job itself")));
    }
    told.in_order()
}

fn stage(directives: &Directives, site: &Site<'_>, stage: &Stage, told: &mut Told) {
    let mut find = |place| site.find(directives, place).map_err(|problem| told.add(problem)).ok();
    let (origin, destination) = (find(&stage.origin), find(&stage.destination));
    let Some(mapping) = &stage.mapping else { return };
    let (place, found, does) = match mapping.value {
        Mapping::Replicate | Mapping::Scatter | Mapping::ScatterByRank { .. } => {
            (&stage.destination, destination, "brings data to nodes")
        }
        Mapping::Gather | Mapping::GatherApart { .. } => (&stage.origin, origin, "fetches data from nodes"),
        MappingText::File(_) => return,
    };
    let is_local = |found: &Found<'_>| matches!(found, Found::Here(d) if d.kind == DataspaceKind::Local);
    if found.is_some_and(|found| !is_local(&found)) {
        let text =
            format!("'{mapping}' {does}, and '{place}' is one place for all nodes; leave the mapping away");
        told.add(Problem::new(&mapping.at, text));
    }
}

fn persist(directives: &Directives, site: &Site<'_>, persist: &Persist, told: &mut Told) {
    let location = &persist.location;
    match site.find(directives, location) {
        Err(problem) => told.add(problem),
        Ok(Found::Here(dataspace)) if dataspace.kind == DataspaceKind::Local => {}
        Ok(Found::Here(_)) => {
            let text = format!("'{location}' is not on the nodes' own storage, so nobody takes it away");
            told.add(Problem::new(&location.at, text));
        }
        Ok(Found::Pool) => {
            let text = format!("'{location}' is in a pool, which lifetime= keeps, not 'persist'");
            told.add(Problem::new(&location.at, text));
        }
    }
    if let Some(user) = persist.user.as_ref().filter(|user| !(site.has_user)(user)) {
        told.add(Problem::new(&user.at, format!("there is no user '{user}'")));
    }
}

fn pool(site: &Site<'_>, pool: &Said<PoolRequest>, told: &mut Told) {
    let name = pool.dataspace();
    if site.dataspace(&name).is_some() {
        let at = pool.name.as_ref().map_or(&pool.at, |name| &name.at);
        told.add(Problem::new(
            at,
            format!("'{name}' is a dataspace of this site; give the pool another name"),
        ));
    }
    let too_large = site.pool_size_max.zip(pool.size.as_ref()).filter(|(most, size)| size.value > *most);
    if let Some((most, size)) = too_large {
        let text = format!("a pool has at most {} here, not {}", format_size(most), format_size(size.value));
        told.add(Problem::new(&size.at, text));
    }
}
