//! Which nodes hold data already, so that the next phase of a workflow can run there, and what is to be moved when it
//! cannot (Miranda et al. 2019, Sections I and III).

use super::flags::{NodeFlag, WhereArgs};
use super::outcome::{Done, Result};
use crate::exit::{Failure, Kind};
use serde_json::json;
use tidepool_directives::show_word;
use tidepool_stage_client::{Op, Resource, StageError, Stager, TaskSpec, show, show_place};
use tidepool_types::{Errno, format_size};

/// What of one place lies on one node.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Held {
    bytes: u64,
    files: u64,
}

/// A node, with what it holds of each place, or why that is not known.
struct Node<'a> {
    flag: &'a NodeFlag,
    held: Vec<Held>,
    error: Option<String>,
}

pub fn find(stager: &Stager, args: &WhereArgs) -> Result<Done> {
    let mut nodes = Vec::with_capacity(args.node.len());
    for flag in &args.node {
        nodes.push(look(stager, flag, &args.places)?);
    }
    let all: Vec<Held> = (0..args.places.len()).map(|at| most(&nodes, at)).collect();
    // The first of several equals: the caller's order counts.
    let mut order: Vec<&Node<'_>> = nodes.iter().filter(|node| node.error.is_none()).collect();
    order.sort_by_key(|node| node.lacks(&all));
    let found = all.iter().any(|held| *held != Held::default());
    let failure = (!found).then(|| {
        let places: Vec<String> = args.places.iter().map(show_place).collect();
        Failure::new(Kind::PlanProblems, format!("no node holds any of {}", places.join(", ")))
    });
    let text = match (args.best, &args.bring_to) {
        _ if !found => table(&nodes, &all),
        (Some(count), _) => names(&order, count)?,
        (None, Some(name)) => tasks(&nodes, args, &all, name)?,
        (None, None) => table(&nodes, &all),
    };
    let one = |node: &Node<'_>| {
        let held: Vec<_> = node.held.iter().map(|h| json!({ "bytes": h.bytes, "files": h.files })).collect();
        json!({
            "node": node.flag.name, "address": node.flag.address, "holds": held,
            "would_move": node.error.is_none().then(|| node.lacks(&all).bytes), "error": node.error,
        })
    };
    let best = order.first().filter(|_| found).map(|node| &node.flag.name);
    let json = json!({
        "places": args.places.iter().map(show_place).collect::<Vec<_>>(),
        "nodes": nodes.iter().map(one).collect::<Vec<_>>(),
        "best": best,
    });
    Ok(Done { text, json, failure })
}

impl Node<'_> {
    /// What would have to be brought here.
    fn lacks(&self, all: &[Held]) -> Held {
        let lack = |(all, own): (&Held, &Held)| Held {
            bytes: all.bytes.saturating_sub(own.bytes),
            files: all.files.saturating_sub(own.files),
        };
        let lacks = all.iter().zip(&self.held).map(lack);
        lacks.fold(Held::default(), |a, b| Held { bytes: a.bytes + b.bytes, files: a.files + b.files })
    }
}

fn most(nodes: &[Node<'_>], place: usize) -> Held {
    nodes.iter().filter_map(|node| node.held.get(place)).copied().max().unwrap_or_default()
}

fn at(node: &NodeFlag, place: &Resource) -> Resource {
    match (place, &node.address) {
        (Resource::Path { dataspace, path, .. }, Some(address)) => {
            Resource::remote(dataspace.clone(), address.clone(), path)
        }
        (place, _) => place.clone(),
    }
}

fn look<'a>(stager: &Stager, flag: &'a NodeFlag, places: &[Resource]) -> Result<Node<'a>> {
    let mut node = Node { flag, held: Vec::with_capacity(places.len()), error: None };
    for place in places {
        if !matches!(place, Resource::Path { host: None, .. }) {
            let text = format!("{} names a node; name nodes with --node", show_place(place));
            return Err(Failure::new(Kind::Usage, text).into());
        }
        let there = at(flag, place);
        match stager.plan(&TaskSpec::new(Op::Copy, there.clone(), Some(there))) {
            Ok(plan) => node.held.push(Held { bytes: plan.bytes, files: plan.files }),
            Err(StageError::Refused(refusal)) if refusal.errno == Errno::ENOENT.0 => {
                node.held.push(Held::default());
            }
            Err(StageError::Refused(refusal)) => {
                node.held = vec![Held::default(); places.len()];
                node.error = Some(refusal.to_string());
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(node)
}

fn table(nodes: &[Node<'_>], all: &[Held]) -> String {
    let row = |node: &Node<'_>| {
        let held = node
            .held
            .iter()
            .fold(Held::default(), |a, b| Held { bytes: a.bytes + b.bytes, files: a.files + b.files });
        let (holds, files) = (format_size(held.bytes), held.files.to_string());
        match &node.error {
            None => [node.flag.name.clone(), holds, files, format_size(node.lacks(all).bytes), String::new()],
            Some(error) => [node.flag.name.clone(), "-".into(), "-".into(), "-".into(), error.clone()],
        }
    };
    show::table(["NODE", "HOLDS", "FILES", "WOULD MOVE", "ERROR"], nodes.iter().map(row).collect())
}

fn names(order: &[&Node<'_>], count: usize) -> Result<String> {
    if count == 0 || order.len() < count {
        let text = format!("{count} nodes are wanted, and {} could be looked at", order.len());
        return Err(Failure::new(Kind::Usage, text).into());
    }
    let names: Vec<&str> = order[..count].iter().map(|node| node.flag.name.as_str()).collect();
    Ok(format!("{}\n", names.join(",")))
}

/// Copies of what a node lacks, each from the first node that has all of it.
fn tasks(nodes: &[Node<'_>], args: &WhereArgs, all: &[Held], name: &str) -> Result<String> {
    let to = nodes
        .iter()
        .find(|node| node.flag.name == name)
        .ok_or_else(|| Failure::new(Kind::Usage, format!("--bring-to {name}: no --node has this name")))?;
    let mut text = String::new();
    for (place, (resource, all)) in args.places.iter().zip(all).enumerate() {
        let holder = nodes.iter().find(|node| node.error.is_none() && node.held[place] == *all);
        let Some(from) = holder.filter(|_| to.held[place] < *all) else { continue };
        let word = |node: &Node<'_>| show_word(show_place(&at(node.flag, resource)).as_bytes());
        text.push_str(&format!("copy {} {}\n", word(from), word(to)));
    }
    Ok(text)
}
