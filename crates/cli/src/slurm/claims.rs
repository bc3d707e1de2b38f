//! What jobs on one node may not have both at once: places of its storage, and more room for pools than there is. Pure.
//!
//! Two programs that write one place leave a mixture, and a job that starts over what another has not staged out yet
//! destroys it. A dataspace of a node is the same for all its jobs, so only who uses what can tell.
//!
//! A user can name what he likes. Who names a whole dataspace means what he has in it: it keeps no other user's jobs away.

use super::orders::{Kind, Known};
use tidepool_directives::{Directives, Place};
use tidepool_stage_client::PersistOp;
use tidepool_types::format_size;

/// A place of node-local storage, and what a job does with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Use {
    pub place: Known,
    /// Otherwise it reads it only.
    pub writes: bool,
}

/// What a job has, or wants, on each of its nodes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Claim {
    /// A job, or a pool that outlives its jobs: `job 17`.
    pub holder: String,
    /// The user whose it is.
    pub uid: u32,
    pub nodes: Vec<String>,
    pub uses: Vec<Use>,
    /// Bytes of its pools on each node.
    pub room: u64,
    /// It is over, and its results are still there.
    pub has_results: bool,
}

/// Why two jobs cannot be on one node now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Clash {
    Place {
        node: String,
        place: String,
        holder: String,
        has_results: bool,
    },
    /// `holders` have the rest; none when there is not so much at all.
    Room {
        node: String,
        wanted: u64,
        free: u64,
        holders: Vec<String>,
    },
}

impl Clash {
    pub fn node(&self) -> &str {
        match self {
            Clash::Place { node, .. } | Clash::Room { node, .. } => node,
        }
    }

    /// It does not go away by waiting.
    pub fn stays(&self) -> bool {
        match self {
            Clash::Place { has_results, .. } => *has_results,
            Clash::Room { holders, .. } => holders.is_empty(),
        }
    }
}

impl std::fmt::Display for Clash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Clash::Place { node, place, holder, has_results: true } => write!(
                f,
                "node {node}: {place} still has results of {holder}; 'tidepool slurm resume' brings them out"
            ),
            Clash::Place { node, place, holder, .. } => write!(
                f,
                "node {node}: {place} is in use by {holder}; give each job a place of its own, or whole nodes (--exclusive)"
            ),
            Clash::Room { node, wanted, free, holders } if holders.is_empty() => write!(
                f,
                "node {node}: the job's pools want {}, and a node has {} for pools: ask for more nodes, or less",
                format_size(*wanted),
                format_size(*free)
            ),
            Clash::Room { node, wanted, free, holders } => write!(
                f,
                "node {node}: the job's pools want {} and have {}; {} have the rest",
                format_size(*wanted),
                format_size(*free),
                holders.join(", ")
            ),
        }
    }
}

/// The places of node-local storage that directives name.
pub fn uses<E>(asks: &Directives, know: impl Fn(&Place) -> Result<Known, E>) -> Result<Vec<Use>, E> {
    let mut uses = Vec::new();
    let mut add = |place: &Place, writes: bool| -> Result<(), E> {
        let place = know(place)?;
        if place.kind == Kind::Local {
            uses.push(Use { place, writes });
        }
        Ok(())
    };
    for stage in &asks.stage_in {
        // What is used where it lies is not written.
        let stays = stage.origin.is_same(&stage.destination);
        add(&stage.origin, false)?;
        add(&stage.destination, !stays)?;
    }
    for stage in &asks.stage_out {
        add(&stage.origin, true)?;
        add(&stage.destination, true)?;
    }
    for persist in &asks.persist {
        add(&persist.location, matches!(persist.op, PersistOp::Store | PersistOp::Delete))?;
    }
    Ok(uses)
}

/// The first thing that keeps a job from having its nodes, while others have theirs. `capacity` is what a node has for
/// pools.
pub fn clash(own: &Claim, others: &[Claim], capacity: Option<u64>) -> Option<Clash> {
    let places = own.nodes.iter().find_map(|node| {
        let here = others.iter().filter(|other| other.nodes.contains(node));
        here.flat_map(|other| other.uses.iter().map(move |theirs| (other, theirs))).find_map(
            |(other, theirs)| {
                let binds = |mine: &Use| own.uid == other.uid || !(is_whole(mine) || is_whole(theirs));
                let mine = own.uses.iter().find(|mine| collide(mine, theirs) && binds(mine))?;
                Some(Clash::Place {
                    node: node.clone(),
                    place: mine.place.shown(),
                    holder: other.holder.clone(),
                    has_results: other.has_results,
                })
            },
        )
    });
    places.or_else(|| own.nodes.iter().find_map(|node| no_room(own, others, node, capacity?)))
}

fn no_room(own: &Claim, others: &[Claim], node: &String, capacity: u64) -> Option<Clash> {
    let here: Vec<&Claim> =
        others.iter().filter(|other| other.room > 0 && other.nodes.contains(node)).collect();
    let taken = here.iter().fold(0u64, |sum, other| sum.saturating_add(other.room));
    let free = capacity.saturating_sub(taken);
    (own.room > free).then(|| Clash::Room {
        node: node.clone(),
        wanted: own.room,
        free,
        // Those that are in the way: alone it might not fit either.
        holders: match own.room > capacity {
            true => Vec::new(),
            false => here.iter().map(|other| other.holder.clone()).collect(),
        },
    })
}

fn collide(one: &Use, other: &Use) -> bool {
    (one.writes || other.writes) && one.place.dataspace == other.place.dataspace && {
        let (one, other) = (names(&one.place), names(&other.place));
        let shorter = one.len().min(other.len());
        one[..shorter] == other[..shorter]
    }
}

/// All of a dataspace.
fn is_whole(one: &Use) -> bool {
    names(&one.place).is_empty()
}

fn names(place: &Known) -> Vec<&[u8]> {
    place.path.split(|b| *b == b'/').filter(|name| !matches!(*name, b"" | b".")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(text: &str) -> Known {
        Known { dataspace: "nvme0://".into(), path: text.into(), kind: Kind::Local }
    }

    fn claim(job: u32, nodes: &[&str], uses: &[(&str, bool)]) -> Claim {
        let uses = uses.iter().map(|(path, writes)| Use { place: local(path), writes: *writes }).collect();
        Claim {
            holder: format!("job {job}"),
            nodes: nodes.iter().map(|n| n.to_string()).collect(),
            uses,
            ..Claim::default()
        }
    }

    #[test]
    fn places_collide_on_a_shared_node_when_one_writes() {
        let meets = |one: (&str, bool), other: (&str, bool), nodes: &[&str]| {
            clash(&claim(2, &["n1", "n2"], &[one]), &[claim(1, nodes, &[other])], None).is_some()
        };
        assert!(meets(("out", true), ("out", true), &["n2"]));
        assert!(!meets(("out", true), ("out", true), &["n3"]));
        assert!(!meets(("in", false), ("in", false), &["n1"]));
        assert!(meets(("in", false), ("./in//", true), &["n1"]));
        // A directory and what is in it, but not what begins with the same letters.
        assert!(meets(("out/a", true), ("out", false), &["n1"]));
        assert!(meets(("", true), ("out", false), &["n1"]));
        assert!(!meets(("out", true), ("output", true), &["n1"]));
    }

    /// Else one user's directive would keep everybody from the node, for as long as his results are there.
    #[test]
    fn who_names_a_whole_dataspace_means_what_he_has_there() {
        let of = |uid: u32, job: u32, path: &str| Claim { uid, ..claim(job, &["n1"], &[(path, true)]) };
        for (bobs, alices, meets) in [("", "x", false), ("x", "", false), ("", "", false), ("x", "x/y", true)]
        {
            for has_results in [false, true] {
                let bob = Claim { has_results, ..of(1002, 1, bobs) };
                assert_eq!(clash(&of(1001, 2, alices), std::slice::from_ref(&bob), None).is_some(), meets);
                assert!(clash(&of(1002, 3, alices), &[bob], None).is_some(), "his own jobs wait");
            }
        }
    }

    #[test]
    fn results_that_wait_are_no_matter_of_time() {
        let old = Claim { has_results: true, ..claim(1, &["n1"], &[("out", true)]) };
        let met = clash(&claim(2, &["n1"], &[("out", true)]), &[old], None).unwrap();
        assert!(met.stays());
        assert_eq!(
            met.to_string(),
            "node n1: nvme0://out still has results of job 1; 'tidepool slurm resume' brings them out"
        );
    }

    #[test]
    fn pools_share_what_a_node_has() {
        let pool = |job: u32, node: &str, room: u64| Claim { room, ..claim(job, &[node], &[]) };
        let others = [pool(1, "n1", 60), pool(2, "n2", 90)];
        assert_eq!(clash(&pool(3, "n1", 40), &others, Some(100)), None);
        let met = clash(&pool(3, "n1", 41), &others, Some(100)).unwrap();
        assert_eq!(
            met,
            Clash::Room { node: "n1".into(), wanted: 41, free: 40, holders: vec!["job 1".into()] }
        );
        assert!(!met.stays());
        assert!(clash(&pool(3, "n1", 101), &[], Some(100)).unwrap().stays());
        assert_eq!(clash(&pool(3, "n1", u64::MAX), &others, None), None);
    }

    #[test]
    fn directives_say_what_is_used() {
        let script =
            b"#!/bin/sh\n#NORNS stage_in lustre://in nvme0://in\n#NORNS stage_in nvme0://kept nvme0://kept\n\
            #NORNS stage_out nvme0://out lustre://out\n#NORNS persist store nvme0://more\n";
        let (asks, _) = Directives::parse(script).unwrap();
        let know = |place: &Place| {
            let Place::Dataspace { name, path } = place else { return Err(()) };
            let kind = if name == "nvme0://" { Kind::Local } else { Kind::Shared };
            Ok(Known { dataspace: name.clone(), path: path.clone(), kind })
        };
        let found: Vec<(String, bool)> =
            uses(&asks, know).unwrap().iter().map(|x| (x.place.shown(), x.writes)).collect();
        let found: Vec<(&str, bool)> =
            found.iter().map(|(place, writes)| (place.as_str(), *writes)).collect();
        assert_eq!(
            found,
            [
                ("nvme0://in", true),
                ("nvme0://kept", false),
                ("nvme0://kept", false),
                ("nvme0://out", true),
                ("nvme0://more", true)
            ]
        );
    }
}
