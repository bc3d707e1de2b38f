//! `tidepool topology`: the network of the machine; and where other commands find it.

mod draw;
pub mod flags;
mod flow;
mod show;

use crate::exit::{Context, Failure, Kind, Result};
use crate::sysmap;
use flags::{TopologyCommand, TopologyFlags};
use std::path::Path;
use std::process::ExitCode;
use tidepool_sysmap::db::Database;
use tidepool_sysmap::{Fabric, Missing, Topology, TopologyError};

/// Most hosts that a message names.
const HOSTS_SHOWN: usize = 3;

pub fn dispatch(command: &TopologyCommand) -> Result<ExitCode> {
    match command {
        TopologyCommand::Flow(args) => flow::flow(args),
        TopologyCommand::Draw(args) => draw::draw(args),
        TopologyCommand::Show(args) => show::show(args),
    }
}

/// The network that the flags tell of: a file, Slurm's file, or what hosts have told the resource database. None when nothing
/// tells of any: no flag is given and there is no database, or no host in it knows of a switch.
pub fn find(flags: &TopologyFlags) -> Result<Option<Topology>> {
    if let Some(path) = &flags.topology {
        return of_file(path, Fabric::read(path)).map(Some);
    }
    if let Some(path) = &flags.slurm_topology {
        return of_file(path, Fabric::read_slurm(path)).map(Some);
    }
    match sysmap::open_read_if_there(flags.db.as_deref())? {
        Some(database) => of_database(&database),
        None => Ok(None),
    }
}

/// The same for commands that need one.
fn need(flags: &TopologyFlags) -> Result<Topology> {
    let text = "nothing tells of the network's switches; say --topology FILE (docs/formats/17-topology.md), or collect it: \
                `tidepool sysmap collect --only fabric --db FILE`";
    find(flags)?.ok_or_else(|| Failure::new(Kind::Other, text))
}

fn of_file(path: &Path, read: std::result::Result<Fabric, Missing>) -> Result<Topology> {
    let what = || path.display().to_string();
    let fabric = read.map_err(|missing| missing.why).context(Kind::Other, what)?;
    Topology::new(&fabric).context(Kind::Other, what)
}

fn of_database(database: &Database) -> Result<Option<Topology>> {
    let contents = database.contents("fabric").map_err(sysmap::failed)?;
    let (mut fabrics, mut hosts) = (Vec::new(), Vec::new());
    for (data, of) in contents.into_iter().filter(|(data, _)| !data.is_null()) {
        let fabric: Fabric = serde_json::from_value(data)
            .context(Kind::Other, || format!("the switches that {} told of", named(&of)))?;
        fabrics.push(fabric);
        hosts.push(of);
    }
    match Topology::merged(fabrics.into_iter()) {
        Ok(topology) => Ok(Some(topology)),
        Err(TopologyError::Empty) => Ok(None),
        Err(error) => Err(Failure::new(Kind::Other, explained(&error, &hosts))),
    }
}

/// An error with the hosts that told what is wrong.
fn explained(error: &TopologyError, hosts: &[Vec<String>]) -> String {
    let TopologyError::Contradiction { what, one, other } = error else { return error.to_string() };
    let who = |record: usize| hosts.get(record).map_or_else(String::new, |hosts| named(hosts));
    format!(
        "{what}: {} told {}, {} told {}; collect `fabric` there again, or say --topology FILE",
        who(one.record),
        one.says,
        who(other.record),
        other.says
    )
}

fn named(hosts: &[String]) -> String {
    let some = hosts.iter().take(HOSTS_SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match hosts.len().saturating_sub(HOSTS_SHOWN) {
        0 => some,
        more => format!("{some} and {more} more"),
    }
}
