//! The copies of a job script, with the directories and pools that its places mean.

use super::JobScript;
use crate::run::Way;
use std::borrow::Cow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tidepool_directives::{
    DataspaceKind, Mapping, MappingText, Place, Problem, Said, Site as Given, SiteDataspace, Stage,
};

/// What a directory is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Storage {
    /// Of each node another one.
    OfNode,
    Shared,
    /// No site's file tells.
    Unknown,
}

/// Where a place is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Spot {
    /// In a pool of the job's, by its place among them.
    Pool { number: usize, path: String },
    /// On this machine, or another one where it is mounted.
    Dir { path: PathBuf, storage: Storage },
    /// In an object store, by its address.
    Object { store: String },
}

pub struct Step<'a> {
    pub way: Way,
    pub stage: &'a Said<Stage>,
    pub from: Spot,
    pub to: Spot,
}

impl Step<'_> {
    /// What an earlier job has kept on the node's own storage is used where it is.
    pub fn is_in_place(&self) -> bool {
        let is_own = |spot: &Spot| matches!(spot, Spot::Dir { storage: Storage::OfNode, .. });
        self.way == Way::In && is_own(&self.to) && self.from == self.to
    }
}

impl JobScript {
    /// Copies whose places are known, in their order.
    pub fn steps(&self, way: Way) -> Vec<Step<'_>> {
        let stages = match way {
            Way::In => &self.directives.stage_in,
            Way::Out => &self.directives.stage_out,
        };
        stages.iter().filter_map(|stage| self.step(way, stage)).collect()
    }

    fn step<'a>(&self, way: Way, stage: &'a Said<Stage>) -> Option<Step<'a>> {
        let (from, to) = (self.spot(&stage.origin)?, self.spot(&stage.destination)?);
        Some(Step { way, stage, from, to })
    }

    /// None for a place that a problem is told of.
    pub fn spot(&self, place: &Place) -> Option<Spot> {
        let (name, below) = match place {
            Place::Dataspace { name, .. } => (name, joined(place)),
            Place::Path(_) if self.site.is_none() => {
                return Some(Spot::Dir { path: below(Path::new("/"), place), storage: Storage::Unknown });
            }
            Place::Path(path) => {
                let (dataspace, inside) = self.given()?.resolve(path).map(|(d, p)| (d.name.clone(), p))?;
                return self.spot(&Place::Dataspace { name: dataspace, path: inside });
            }
        };
        if let Some(number) = self.directives.pools.iter().position(|pool| pool.dataspace() == *name) {
            return Some(Spot::Pool { number, path: format!("/{}", String::from_utf8(below).ok()?) });
        }
        let dataspace = self.dataspaces().iter().find(|dataspace| dataspace.name == *name)?;
        let dir = |storage| Spot::Dir { path: self::below(Path::new(&dataspace.mount), place), storage };
        match dataspace.kind {
            DataspaceKind::Local => Some(dir(Storage::OfNode)),
            DataspaceKind::Shared => Some(dir(Storage::Shared)),
            DataspaceKind::Object => Some(Spot::Object { store: dataspace.mount.clone() }),
            // Sites have no such ones.
            DataspaceKind::Pool => None,
        }
    }

    pub fn dataspaces(&self) -> &[SiteDataspace] {
        self.site.as_ref().map_or(&[], |site| &site.dataspaces)
    }

    fn given(&self) -> Option<Given<'_>> {
        let dataspaces = Cow::Borrowed(self.site.as_ref()?.dataspaces.as_slice());
        Some(Given { dataspaces, has_user: &|_| true, pool_size_max: None, job: None })
    }

    /// What is wrong with copies wherever the script runs.
    pub(super) fn wrong_steps(&self) -> Vec<Problem> {
        let places = self.directives.stage_in.iter().chain(&self.directives.stage_out);
        let places = places.flat_map(|stage| [&stage.origin, &stage.destination]);
        let places = places.chain(self.directives.persist.iter().map(|persist| &persist.location));
        let no_text = places.filter(|place| String::from_utf8(place.to_bytes()).is_err());
        let mut problems: Vec<Problem> = no_text
            .map(|place| Problem::new(&place.at, format!("'{place}' is no UTF-8 text; give it another name")))
            .collect();
        problems.extend([Way::In, Way::Out].iter().flat_map(|way| self.steps(*way)).filter_map(wrong));
        problems
    }
}

fn wrong(step: Step<'_>) -> Option<Problem> {
    if step.is_in_place() {
        return None;
    }
    let Stage { origin, destination, mapping } = &step.stage.value;
    let (place, text) = match (step.way, &step.from, &step.to) {
        (Way::In, Spot::Pool { .. }, _) => {
            (origin, format!("'{origin}' is empty before the job: nothing can be staged in from there"))
        }
        (Way::Out, _, Spot::Pool { .. }) => {
            (destination, format!("'{destination}' ends with the job: nothing can be staged out to there"))
        }
        (_, Spot::Dir { path: from, .. }, Spot::Dir { path: to, .. }) if from == to => {
            (destination, format!("'{destination}' is also the origin"))
        }
        (_, Spot::Dir { path: from, .. }, Spot::Dir { path: to, .. }) if to.starts_with(from) => {
            (destination, format!("'{destination}' is in '{origin}': a copy would copy itself"))
        }
        (_, Spot::Pool { .. }, _) | (_, _, Spot::Pool { .. }) => {
            let mapping = mapping.as_ref().filter(|mapping| is_by_entry(mapping))?;
            let text = format!("'{mapping}' is for nodes' own storage; a pool is one place for all of them");
            return Some(Problem::new(&mapping.at, text));
        }
        _ => return None,
    };
    Some(Problem::new(&place.at, text))
}

fn is_by_entry(mapping: &MappingText) -> bool {
    !matches!(mapping, Mapping::Replicate | Mapping::Gather)
}

/// Names on the way to a place, without what leads nowhere.
fn joined(place: &Place) -> Vec<u8> {
    place.names().collect::<Vec<_>>().join(&b'/')
}

fn below(root: &Path, place: &Place) -> PathBuf {
    // The mount as its names, so that equal places have equal paths.
    let root: PathBuf = root.components().collect();
    place.names().fold(root, |path, name| path.join(std::ffi::OsStr::from_bytes(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slurm::site::Site;
    use std::fs;
    use tempfile::TempDir;

    const SITE: &str = "\
        [[dataspace]]\nname = \"nvme0://\"\nkind = \"local\"\nmount = \"/mnt//nvme0/\"\n\
        [[dataspace]]\nname = \"deep://\"\nkind = \"local\"\nmount = \"/scratch/deep\"\n\
        [[dataspace]]\nname = \"lustre://\"\nkind = \"shared\"\nmount = \"/scratch\"\n\
        [[dataspace]]\nname = \"s3://\"\nkind = \"object\"\nmount = \"s3://bucket\"\n";

    fn load(text: &str) -> JobScript {
        let dir = TempDir::new().unwrap();
        let (script, site) = (dir.path().join("job.sh"), dir.path().join("site.toml"));
        fs::write(&script, text).unwrap();
        fs::write(&site, SITE).unwrap();
        assert!(Site::load(Some(&site)).is_ok());
        JobScript::load(&script, Some(&site)).unwrap()
    }

    fn told(text: &str) -> Vec<String> {
        load(text).problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn places_are_found_in_dataspaces_and_pools() {
        let script = load(
            "#TIDEPOOL pool name=s\n#NORNS stage_in lustre://a//./b s://\n#NORNS stage_in /scratch/deep/x nvme0://x\n\
             #NORNS stage_in s3://in s://in/y\n",
        );
        assert_eq!(script.problems, []);
        let dir = |path: &str, storage| Spot::Dir { path: path.into(), storage };
        let pool = |path: &str| Spot::Pool { number: 0, path: path.into() };
        let spots: Vec<(Spot, Spot)> =
            script.steps(Way::In).into_iter().map(|step| (step.from, step.to)).collect();
        assert_eq!(
            spots,
            [
                (dir("/scratch/a/b", Storage::Shared), pool("/")),
                (dir("/scratch/deep/x", Storage::OfNode), dir("/mnt/nvme0/x", Storage::OfNode)),
                (Spot::Object { store: "s3://bucket".into() }, pool("/in/y")),
            ]
        );
        assert_eq!(script.steps(Way::Out).len(), 0);
    }

    #[test]
    fn what_nodes_have_kept_is_used_in_its_place() {
        let script = load("#NORNS stage_in nvme0://a nvme0:///a/\n#NORNS stage_in nvme0://a nvme0://b\n");
        assert_eq!(script.problems, []);
        let places: Vec<bool> = script.steps(Way::In).iter().map(Step::is_in_place).collect();
        assert_eq!(places, [true, false]);
        assert_eq!(told("#NORNS stage_out nvme0://a /mnt/nvme0/a").len(), 1);
    }

    #[test]
    fn copies_that_make_no_sense_are_told() {
        assert_eq!(
            told(
                "#TIDEPOOL pool\n#NORNS stage_in pool://a nvme0://c\n#NORNS stage_out nvme0://a pool://b\n\
                 #NORNS stage_in /scratch/a lustre://a/\n#NORNS stage_in lustre://a /scratch/a/b\n\
                 #NORNS stage_in nvme0://x pool://x file:/map\n#NORNS stage_in lustre://\"\\xFF\" pool://y\n"
            ),
            [
                "line 2, column 17: 'pool://a' is empty before the job: nothing can be staged in from there",
                "line 3, column 28: 'pool://b' ends with the job: nothing can be staged out to there",
                "line 4, column 28: 'lustre://a/' is also the origin",
                "line 5, column 28: '/scratch/a/b' is in 'lustre://a': a copy would copy itself",
                "line 6, column 36: 'file:/map' is for nodes' own storage; a pool is one place for all of them",
                "line 7, column 17: 'lustre://\\xff' is no UTF-8 text; give it another name",
            ]
        );
    }
}
