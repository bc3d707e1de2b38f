//! A job script as `tidepool run` and `tidepool plan` read it: its directives, held against what the site has.
//!
//! | file | what of it |
//! |---|---|
//! | `steps.rs` | its copies, with the directories and pools that its places mean |
//! | `shape.rs` | its pools, as the flags that stand for the same |
//! | `header.rs` | what its `#SBATCH` lines say of nodes and time |

mod header;
mod shape;
mod steps;

pub use header::{Header, Takes, fewest, header, options};
pub use shape::{fs_of, outlives, shape_of, tiers_of};
pub use steps::{Spot, Step, Storage};

use crate::exit::{Context, Failure, Kind, Result};
use crate::slurm::lint;
use crate::slurm::site::Site;
use std::borrow::Cow;
use std::path::Path;
use tidepool_directives::{
    DataspaceKind, Directives, POOL, Place, Problem, Reading, Said, Site as Given, SiteDataspace, Warning,
    check,
};

pub struct JobScript {
    /// As it was named.
    pub shown: String,
    pub text: Vec<u8>,
    pub directives: Directives,
    pub warnings: Vec<Warning>,
    /// In the order of the script.
    pub problems: Vec<Problem>,
    pub site: Option<Site>,
}

impl JobScript {
    pub fn load(script: &Path, site: Option<&Path>) -> Result<JobScript> {
        let shown = script.display().to_string();
        let text = lint::read(script).context(Kind::Usage, || shown.clone())?;
        let site = Site::load(site)?;
        let Reading { directives, mut problems, warnings } = Reading::of(&text);
        problems.extend(match &site {
            Some(site) => site.check(&directives)?,
            None => check_alone(&directives),
        });
        let mut script = JobScript { shown, text, directives, warnings, problems, site };
        // Of what is wrong already, no more is said.
        if script.problems.is_empty() {
            script.problems = script.wrong_steps();
        }
        script.problems.sort_by_key(lint::place);
        Ok(script)
    }

    /// Problems as editors read them.
    pub fn problem_lines(&self) -> String {
        lint::lines(&self.shown, "error", &self.problems)
    }

    pub fn warning_lines(&self) -> String {
        lint::lines(&self.shown, "warning", &self.warnings)
    }

    /// Tells what is wrong, if anything is.
    pub fn accept(&self, kind: Kind) -> Result<()> {
        if self.problems.is_empty() {
            return Ok(());
        }
        eprint!("{}", self.problem_lines());
        let text = match self.problems.len() {
            1 => "a directive cannot be carried out".into(),
            count => format!("{count} things are wrong with the directives"),
        };
        Err(Failure::new(kind, format!("{}: {text}; nothing was started", self.shown)))
    }
}

/// What can be said of directives where no site's file tells of dataspaces.
fn check_alone(directives: &Directives) -> Vec<Problem> {
    let staged = directives.stage_in.iter().chain(&directives.stage_out);
    let staged = staged.flat_map(|stage| [&stage.origin, &stage.destination]);
    let places = staged.chain(directives.persist.iter().map(|persist| &persist.location));
    let unknown: Vec<Problem> = places.filter_map(|place| unknown(directives, place)).collect();
    if !unknown.is_empty() {
        return unknown;
    }
    // Any directory may be on this node's own storage.
    let root = SiteDataspace { name: "/".into(), kind: DataspaceKind::Local, mount: "/".into() };
    let given =
        Given { dataspaces: Cow::Owned(vec![root]), has_user: &|_| true, pool_size_max: None, job: None };
    check(directives, &given)
}

fn unknown(directives: &Directives, place: &Said<Place>) -> Option<Problem> {
    let name = place.dataspace()?;
    // Who has no pool of this name was told so.
    if name == format!("{POOL}://") || directives.pools.iter().any(|pool| pool.dataspace() == name) {
        return None;
    }
    let text = format!("nobody knows where '{name}' is: there is no site's file; --site FILE names one");
    Some(Problem::new(&place.at, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(script: &str) -> Vec<String> {
        let reading = Reading::of(script.as_bytes());
        assert_eq!(reading.problems, []);
        check_alone(&reading.directives).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn without_a_site_there_are_directories_and_pools() {
        let fine = "#TIDEPOOL pool\n#NORNS stage_in /a pool://a\n#NORNS stage_in /b /tmp/b replicate\n";
        assert_eq!(alone(fine), Vec::<String>::new());
        assert_eq!(
            alone("#TIDEPOOL pool\n#NORNS stage_in lustre://a pool://a\n#NORNS persist store nvme0://x\n"),
            [
                "line 2, column 17: nobody knows where 'lustre://' is: there is no site's file; --site FILE names one",
                "line 3, column 22: nobody knows where 'nvme0://' is: there is no site's file; --site FILE names one",
            ]
        );
        assert_eq!(
            alone("#TIDEPOOL pool\n#NORNS stage_in /a pool://a replicate\n"),
            [
                "line 2, column 29: 'replicate' brings data to nodes, and 'pool://a' is one place for all nodes; leave the mapping away"
            ]
        );
    }
}
